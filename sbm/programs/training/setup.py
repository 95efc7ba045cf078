"""Set up a training: store, memory plan, run and row weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbm.distributed.comm import SLICE
from sbm.engine.clock import clock
from sbm.engine.columns import plan_columns
from sbm.engine.learners import Folds
from sbm.engine.machine import system_limit, within_limit
from sbm.engine.memory import (
    EVICTED_BYTES,
    UNWRITTEN_BYTES,
    MemoryPlan,
    Shape,
    plan_training,
    row_place_bytes,
)
from sbm.engine.problems import make_problems
from sbm.engine.progress import Progress
from sbm.engine.sync import shared_bytes
from sbm.errors import DataError, MemoryPlanError, StoreError, require_path
from sbm.losses import MOST_RESTING
from sbm.models.model import check_output
from sbm.programs.training.newton import (
    MOST_FEATURES,
    accelerates,
    bytes_of_matrices,
    is_smooth,
    is_wide,
    newton_row_bytes,
)
from sbm.programs.training.scales import FEATURE_BYTES
from sbm.settings import Settings
from sbm.solver.problem import AnyProblem, OneClass
from sbm.store.blocks import BlockStore
from sbm.store.run import Run

if TYPE_CHECKING:
    from sbm.programs.splitting.weights import AnyWeights

__all__ = [
    "FOLDS", "HELD_OUT_BYTES", "as_path", "class_counts", "find_store", "fits_newton",
    "held_out_problems",
    "open_run", "place_of", "plan_of", "read_weights", "require_weights", "shape_of", "time_left",
]  # fmt: skip

FOLDS = Folds(5, seed=0)
HELD_OUT_BYTES = 16_000_000  # for decision values; more rows would change little


_HELD_OUT_ROW = 1  # its fold

# Memory of a sum over all ranks besides the array: ranges of the others, indices and values.
COMM_BYTES = 5 * 8 * SLICE


def find_store(store: str | Path | None) -> Path:
    """Return the given store, or the only one in the current folder.

    Raises
    ------
    StoreError
        The current folder has no store, or several.
    """
    if store is not None:
        require_path(store, "the store", "expected its path; sbm.split writes one")
        return Path(store)
    found = sorted(p for p in Path().glob("*.sbm") if p.is_dir())
    if not found:
        raise StoreError("no *.sbm store in this folder; create one with sbm split, or name it")
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise StoreError(f"several stores in this folder ({names}); name the one to use")
    return found[0]


def as_path(model: str | Path) -> Path:
    """Return a model's name as a path.

    Raises
    ------
    SettingsError
        It is not a path, for example settings passed by position.
    """
    keyword = "pass settings by keyword: settings=sbm.Settings(C=0.1)"
    require_path(model, "the model", f"a path is expected; {keyword}")
    return Path(model)


def place_of(model: str | Path | None, store: BlockStore | None) -> Path:
    """Return the path to write a model to. Default: the store's name, in the current folder.

    Raises
    ------
    StoreError
        The path is not writable, or holds something else.
    SettingsError
        It is not a path.
    """
    if model is None:
        assert store is not None
        model = f"{store.folder.resolve().stem}.model"
    path = as_path(model)
    check_output(path)
    return path


def plan_of(
    settings: Settings,
    store: BlockStore,
    shape: Shape,
    bound: int | None = None,
    progress: Progress | None = None,
    reserved: int = 0,
) -> MemoryPlan:
    """Plan the memory of a training.

    Parameters
    ----------
    settings : Settings
    store : BlockStore
    shape : Shape
    bound : int, optional
        Bytes. Default: `settings.mem`, or the limit of the system if that is less.
    progress : Progress, optional
        Receives a note if the limit of the system applies.
    reserved : int
        See `plan_training` and `plan_columns`.

    Returns
    -------
    MemoryPlan

    Raises
    ------
    MemoryPlanError
        The bound is too small; the message has the smallest one that works.
    """
    # Policy none means no cache, and Newton's method has none.
    is_without = settings.policy == "none" or settings.solver == "newton"
    cache_frac = 0.0 if is_without else settings.cache_frac

    def plan(mem: int) -> MemoryPlan:
        if settings.penalty != "l2":
            is_weighted = has_weights(settings, store)
            return plan_columns(store, mem, shape, is_weighted, settings.intercept, reserved)
        return plan_training(store, mem, cache_frac, shape, reserved)

    if bound is not None:
        return plan(bound)
    limit = system_limit()
    found = within_limit(plan, settings.mem_bytes, limit, Progress.of(progress).note)
    return found if limit is None else replace(found, mem=min(found.mem, limit.size))


def fits_newton(
    settings: Settings,
    store: BlockStore,
    problems: Sequence[AnyProblem],
    bound: int | None = None,
    reserved: int = 0,
) -> bool:
    """Return whether Newton's method fits into memory: its matrix, or else all rows."""
    try:
        shape = shape_of(settings, store, problems)
        plan = plan_of(settings, store, shape, bound, reserved=reserved)
    except MemoryPlanError:
        return False
    missing = plan.missing(range(len(plan.parts)), reserved)
    return not is_wide(settings, store, problems) or missing <= 0


def time_left(settings: Settings, begin: float) -> float:
    """Return the seconds left of the time limit, counted from `begin`; infinity without one."""
    if settings.time_limit is None:
        return math.inf
    return float(settings.time_limit) - (clock() - begin)


def shape_of(
    settings: Settings,
    store: BlockStore,
    problems: Sequence[AnyProblem],
    models: int = 1,
    processes: int = 1,
    by_block: bool = False,
) -> Shape:
    """Return what the memory of a training depends on.

    With several models, rows have folds. With several ranks, each rank keeps the weights and
    alphas of the last sum.

    Parameters
    ----------
    settings, store, problems
        Those of the training.
    models, processes : int
        Number of models trained at the same time, and number of ranks.
    by_block : bool
        Whether the ranks have different blocks.

    Returns
    -------
    Shape
    """
    # W, and a copy to screen and certify with; one-class adds the sum of all rows and mixtures; a
    # warm start adds the earlier W.
    is_one_class = isinstance(problems[0], OneClass)
    copies = 5 if is_one_class else 2
    held_out = models > 1 or isinstance(settings.validate, float)
    targets = not problems[0].classify
    n_weights = store.n_features + (problems[0].bias > 0)
    shared = 0
    if processes > 1:
        shared = COMM_BYTES + sum(shared_bytes(n_weights, p.n_outputs) for p in problems)
    scaled = store.n_features * (settings.scale != "none")
    accelerated = is_wide(settings, store, problems) and accelerates(problems[0], processes)
    return Shape(
        n_weights=n_weights,
        outputs=[problem.n_outputs for problem in problems],
        listed=problems[0].listed,
        copies=copies + (settings.warm_start is not None) + (processes > 1),
        row_bytes=4 * targets
        + 8 * has_weights(settings, store)
        + _HELD_OUT_ROW * held_out
        + newton_row_bytes(settings, store, problems, models),
        more_bytes=HELD_OUT_BYTES * settings.calibrate
        + shared
        + 8 * scaled
        + 2 * store.names_bytes
        + (0 if store.memory is None else store.memory.reader_bytes),
        ranks=processes,
        by_block=by_block,
        hessian_bytes=bytes_of_matrices(settings, store, problems, models),
        first_bytes=max(
            row_place_bytes(store) if settings.weights is not None else 0, FEATURE_BYTES * scaled
        ),
        models=models,
        may_join=(settings.parts == "auto" or accelerated) and models == 1 and not is_one_class,
        is_accelerated=accelerated,
        advice=_advice(settings, store, problems[0]),
    )


def _advice(settings: Settings, store: BlockStore, problem: AnyProblem) -> str:
    """Return what else to do if memory is too small; empty if there is nothing."""
    if problem.loss.joint:
        return "--loss hinge, which trains some classes at a time"
    has_matrix = settings.solver == "newton" and store.n_features > MOST_FEATURES
    is_only_with_matrix = settings.intercept and not is_smooth(problem.loss)
    return "--bias 1 instead of --intercept" if has_matrix and is_only_with_matrix else ""


@contextmanager
def open_run(
    folder: Path,
    problems: Sequence[AnyProblem],
    plan: MemoryPlan,
    record: Mapping[str, Any] | None = None,
    is_one_of_many: bool = False,
    is_same_log: bool = False,
) -> Iterator[Run]:
    """Open a run for the alphas of each problem.

    Parameters
    ----------
    folder : Path
    problems : sequence of Problem, MultiProblem or OneClass
    plan : MemoryPlan
    record : mapping, optional
        Record of the checkpoint to resume from. Default: start a new run.
    is_one_of_many : bool
        Whether other ranks train the same model, each with its own run.
    is_same_log : bool
        Whether a new run continues the log of the one that it replaces.

    Yields
    ------
    Run

    Raises
    ------
    StoreError
        Another process is training this model, or has changed the run; or it is not writable.
    """
    rows_of_parts = [part.rows for part in plan.parts] * len(problems)
    lists_of = max(p.n_outputs for p in problems) if problems[0].listed else None
    values = sorted({value for p in problems for value in p.resting_values})[:MOST_RESTING]
    shape = (rows_of_parts, lists_of, values, EVICTED_BYTES, UNWRITTEN_BYTES, is_one_of_many)
    if record is None:
        with Run.create(folder, *shape) as run:
            if is_same_log:
                run.continue_log()
            yield run
        return
    with Run.resume(folder, *shape) as (run, found):
        if found["state"] != record["state"]:
            raise StoreError(f"{folder} was changed by another process; run the command again")
        yield run


def class_counts(
    settings: Settings, store: BlockStore, weights: AnyWeights | None
) -> list[float] | None:
    """Return the row weight per class for balanced class weights; None to use row counts."""
    if weights is None or settings.class_weight != "balanced":
        return None
    return weights.class_totals(store)


def has_weights(settings: Settings, store: BlockStore) -> bool:
    """Return whether rows have weights, from a file or in the store."""
    return settings.weights is not None or store.has_weights


def require_weights(settings: Settings) -> None:
    """Check that the file of row weights exists, if there is one.

    Raises
    ------
    DataError
        It is missing, or not a file.
    """
    name = settings.weights
    if name not in (None, "-") and not Path(name).is_file():
        what = "is not a file" if Path(name).exists() else "does not exist"
        raise DataError(f"{name} {what}; expected a text file with one weight per line")


def read_weights(
    settings: Settings, store: BlockStore, problems: Sequence[AnyProblem], folder: Path
) -> AnyWeights | None:
    """Read the row weights, if any, into the order of the store.

    Raises
    ------
    DataError
        The file is missing or invalid.
    """
    if not has_weights(settings, store):
        return None
    # Most trainings have no weights.
    from sbm.programs.splitting.weights import RowWeights, StoredWeights

    weights: AnyWeights
    if settings.weights is None:
        weights = StoredWeights(store)
    elif store.has_weights:
        raise DataError(f"{store.name} has row weights; leave out --weights")
    else:
        require_weights(settings)
        weights = RowWeights(store, settings.weights, folder)
    for problem in problems:
        if isinstance(problem, OneClass):
            problem.total = weights.total
    return weights


def held_out_problems(
    settings: Settings, store: BlockStore, counts: Sequence[float] | None = None
) -> list[AnyProblem]:
    """Create the problems of the second model; none without `calibrate`. See `make_problems`."""
    return make_problems(settings, store, counts) if settings.calibrate else []
