"""One-vs-rest of more classes than memory or a checkpoint holds: some classes at a time.

Memory may be too small for the weights of all classes, or to keep all rows in one part with the
variables of all classes. The classes are independent. So each turn is an ordinary training of some
classes on all rows. All turns have the same run, locked from the first to the last; its checkpoints
name the turn and have the reports of those before it, whose models are in the folder of the run. At
the end, the model file is joined from those of the turns, some features at a time. With lists of
variables, all turns start from the solution of a training before the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbm.compiled.clock import clock, seconds_left
from sbm.engine.machine import peak_bytes
from sbm.errors import MemoryPlanError, StoreError
from sbm.models.model import Model
from sbm.models.weights import JoinedWeights
from sbm.programs.training.job import Job, StartPoint
from sbm.programs.training.needs import plan_of
from sbm.programs.training.ranks import (
    finished_model,
    only,
    side_by_side,
    total_report,
    without_pruning,
)
from sbm.programs.training.state import identity, run_to_resume
from sbm.programs.training.task import Task
from sbm.settings import Settings
from sbm.solver.gap import proven
from sbm.solver.problem import MultiProblem
from sbm.store.blocks import BlockStore
from sbm.store.files import file_checksum, make_folder, remove
from sbm.store.run import Run, run_folder

__all__ = ["divide_classes", "train_in_turns"]

# Of a turn: the header of a checkpoint has about 2 kB for each, and at most 16 MB.
MOST_CLASSES = 4000
MOST_TURNS = 4  # for the rows to be in one part: each turn reads them again
_LEAST = 3  # classes of a turn
_SHARED = "shared.model"  # in the folder of the run

Result = tuple[Model | None, dict[str, Any]]


def divide_classes(task: Task) -> list[slice]:
    """Return the classes of each turn: one turn for all classes if they fit, or must.

    In a turn, weights take at most half of the memory that is free for rows and weights.
    """
    n, settings, first = len(task.store.labels or []), task.settings, task.problems[0]
    whole = _cut(n, 1)
    if n <= 2 or task.loss.joint or task.method == "columns":
        return whole
    options = settings.calibrate, settings.validate, settings.warm_start, settings.weights == "-"
    if any(options):  # they need all classes at once
        return whole
    if not first.classify or sum(problem.n_outputs for problem in task.share.every) == 1:
        return whole
    if n <= MOST_CLASSES and _fits(task, n):
        return _cut(n, _turns_of_one_part(task, n))
    plan_of(_of(task, _LEAST))
    # Classes that fit, and that do not; a turn has at least two.
    least, most = _LEAST, min(n, MOST_CLASSES + 1)
    while most - least > 1:
        middle = (least + most) // 2
        if _fits(task, middle, copies=2):
            least = middle
        else:
            most = middle
    return _cut(n, -(-n // least))


def _cut(n: int, turns: int) -> list[slice]:
    return [slice(n * k // turns, n * (k + 1) // turns) for k in range(turns)]


def _turns_of_one_part(task: Task, n: int) -> int:
    """Return the number of turns in which all rows are one part; 1 if that takes many."""
    for turns in range(1, MOST_TURNS + 1):
        if (size := -(-n // turns)) < _LEAST:
            break
        if plan_of(_of(task, size, in_groups=True)).is_whole:
            return turns
    return 1


def _of(task: Task, n: int, in_groups: bool = False) -> Task:
    """Return the task of the first `n` classes, possibly in groups that several threads solve."""
    first, every = task.share.every[0], task.share.every
    if isinstance(first, MultiProblem):  # one group of all classes
        every = [replace(first, first=0, n_outputs=len(first.costs))]
    problems = only(every, slice(0, n))
    share = replace(task.share, every=side_by_side(problems) if in_groups else problems)
    return replace(task, share=share)


def _fits(task: Task, n: int, copies: int = 1) -> bool:
    """Return whether a training of `n` classes fits, possibly with several times its weights."""
    try:
        plan = plan_of(_of(task, n), copies=copies)
    except MemoryPlanError:
        return False
    return not plan.is_lean or not plan.is_crowded or n <= _LEAST


def train_in_turns(
    job: Job, task: Task, turns: Sequence[slice], train: Callable[[Job], Result]
) -> Result:
    """Train the classes of each turn, and join the models.

    Parameters
    ----------
    job : Job
        The whole training, not prepared.
    task : Task
        That of all classes.
    turns : sequence of slice
        Class codes of each turn.
    train : callable
        Runs a training to its end.
    """
    folder, options = run_folder(job.path), job.options
    itself = identity(job.asked, job.store, task.read_weights(job.path.parent, options.progress))
    record = run_to_resume(folder, itself, options.resume, job.store)
    if (finished := finished_model(job.comm, job.path, record)) is not None:
        with suppress(StoreError), Run.locked(folder):  # left if it was killed after its end
            _remove_all(folder)
        return finished
    make_folder(folder)  # row weights are copied to it
    with Run.locked(folder):
        # Another process may have ended since.
        record = run_to_resume(folder, itself, options.resume, job.store, is_locked=True)
        return _train_each(job, task, turns, train, record)


def _train_each(
    job: Job,
    task: Task,
    turns: Sequence[slice],
    train: Callable[[Job], Result],
    record: dict[str, Any] | None,
) -> Result:
    """Start from the checkpoint of a run that is locked, or from zero if there is none."""
    folder, store, options, n = run_folder(job.path), job.store, job.options, len(turns)
    models = [folder / f"classes-{k:05d}.model" for k in range(n)]
    reports: list[dict[str, Any]] = [] if record is None else record.get("reports", [])
    is_resumed = record is not None and record.get("turns_left", 0) > 0
    if not is_resumed or not all(path.exists() for path in models[: len(reports)]):
        is_resumed, reports = False, []
        _remove_all(folder)
    resume, late = None if is_resumed else False, 0.0
    begin, done = clock(), len(reports)
    shared = _shared_start(job, task, n - done, train, is_resumed)
    for k in range(done, n):
        first, last = turns[k].start, turns[k].stop
        what = f"classes {first + 1:,} to {last:,} of {turns[-1].stop:,}"
        options.progress.stage(f"turn {k + 1} of {n}: {what}")
        begin = clock() if k > done else begin  # with the shared start
        part = Job(
            store, models[k], _with_its_share(job, n - k, late), replace(options, resume=resume),
            job.begin, job.comm, classes=turns[k], whole_run=folder,
            turn={"turns": n, "turns_left": n - k, "reports": reports}, shared_start=shared,
        )  # fmt: skip
        _, report = train(part)
        store, resume = part.store, False  # whose features are scaled
        # Seconds that it took after its limit: its last pass, certificate and model.
        late = max(late, -seconds_left(part.asked.time_limit, job.begin))
        report["seconds"]["total"] -= begin - job.begin
        reports = [*reports, report | {"was_finished": False}]  # killed before the next one began
    begin = clock()
    report = total_report(reports, job.asked.tol)
    model = _join(models, store, report)
    model.save(job.path)
    report |= {"model": str(job.path), "resumed": is_resumed, "read": job.read}
    report["seconds"]["total"] += clock() - begin
    report["peak_rss_bytes"] = peak_bytes()
    with part.open_run(StartPoint(Run.read(folder))) as run:
        run.log({"event": "end", **report})
        run.note(
            report=report, reports=reports, turns_left=0, model_crc32=file_checksum(job.path),
            passes=report["passes"], certificate=without_pruning(report),
        )  # fmt: skip
    _remove_all(folder)
    remove([folder / _SHARED, run_folder(folder / _SHARED)])
    return Model.load(job.path, most_dense=0), report


def _shared_start(
    job: Job, task: Task, turns: int, train: Callable[[Job], Result], is_resumed: bool
) -> Path | None:
    """Solve the problem in which all rows are negative; return its run, or None without lists."""
    if not turns or not isinstance(task.share.every[0], MultiProblem):
        return None
    job.options.progress.stage("shared start: all rows are negative")
    n, path = len(task.store.labels or []), run_folder(job.path) / _SHARED
    asked = _with_its_share(job, turns + 1, 0.0)
    # Its gap is a part of that of each class.
    asked = replace(asked, tol=0.1 * asked.tol, solver="dual")
    is_fresh = job.options.resume is False and not is_resumed
    options = replace(job.options, resume=False if is_fresh else None)
    # No row has the class after the last one.
    train(Job(job.store, path, asked, options, job.begin, job.comm, classes=slice(n, n + 1)))
    return run_folder(path)


def _with_its_share(job: Job, turns: int, late: float) -> Settings:
    """Return the settings of the next turn, whose share of the time is that of each one left."""
    left = seconds_left(job.asked.time_limit, job.begin)
    if left == math.inf:
        return job.asked
    return replace(job.asked, time_limit=clock() - job.begin + max(0.0, left / turns - late))


def _join(models: Sequence[Path], store: BlockStore, report: dict[str, Any]) -> Model:
    """Return the model of all classes; its weights are read from the models of the turns."""
    ids = store.read_feature_ids()
    W = JoinedWeights(models, ids)
    info = {**W.info, "certificate": {**W.info["certificate"]}}
    info["certificate"] |= proven(report)
    info |= {name: report[name] for name in ("rounds", "converged", "passes", "updates")}
    return Model(
        ids, W, W.labels, W.bias, W.bias_weights, info, names=store.read_names(),
        label_names=W.label_names,
    )  # fmt: skip


def _remove_all(folder: Path) -> None:
    """Remove the models of all turns."""
    remove(list(folder.glob("classes-*")))
