"""Tune: cross-validate many values of C at the same time, reading the data once per pass for all.

There is one model per value of C and fold, and all of them learn from each loaded block. The fold
is a hash of a row's content, so copies of a held-out row never reach the model either. Small values
of C start first. Larger ones follow one by one: each starts from the alphas of the largest C so
far, and only if that one is as good as the best. A model with a small enough gap is paused; a C
that is clearly worse is dropped. At the end the remaining models are certified and evaluated at
fixed weights, and the best C is trained on all rows.

Each pass ends with a checkpoint in ``MODEL.tune.run/``, from which the same command resumes.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sbm.distributed.comm import SerialComm
from sbm.engine.clock import clock, compile_seconds, seconds_left
from sbm.engine.engine import Engine, Pauses
from sbm.engine.kernels import kernels_of, prepare
from sbm.engine.learners import Folds, HeldOut
from sbm.engine.machine import peak_bytes, return_freed_memory
from sbm.engine.memory import MemoryPlan
from sbm.engine.problems import make_problems
from sbm.engine.progress import Progress
from sbm.errors import DataError, SettingsError, StoreError
from sbm.losses import LOSSES
from sbm.models.metrics import BinaryMetrics
from sbm.models.model import Model
from sbm.programs.reporting.picture import check_picture, draw_metric
from sbm.programs.train import train
from sbm.programs.training.checks import check_settings
from sbm.programs.training.evaluation import choose_metric
from sbm.programs.training.needs import fits, near_bytes, plan_of
from sbm.programs.training.newton import starts_with_newton
from sbm.programs.training.places import find_store, place_of
from sbm.programs.training.ranks import WorkShare
from sbm.programs.training.scales import scale_features
from sbm.programs.training.state import identity, open_run, refuse_unfinished, same_run
from sbm.programs.training.task import Task
from sbm.programs.training.warmstart import shape_record
from sbm.programs.tuning.grid import Grid
from sbm.programs.tuning.sparse import SparseTuning
from sbm.programs.tuning.state import Tuning
from sbm.settings import Settings
from sbm.solver.problem import AnyProblem
from sbm.store.blocks import BlockStore, require_whole
from sbm.store.run import Run, is_finished, run_folder
from sbm.units import count, parse_grid

if TYPE_CHECKING:
    from sbm.programs.splitting.weights import AnyWeights


def tune(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    Cs: Sequence[float] | float | str,
    folds: int = 5,
    metric: str | None = None,
    picture: str | Path | None = None,
    resume: bool | None = None,
    progress: Progress | None = None,
) -> tuple[Model, dict[str, Any]]:
    """Find the best C by cross-validation, and train on all rows with it.

    Parameters
    ----------
    store : str or Path, optional
        Default: the only ``*.sbm`` in the current folder.
    model : str or Path, optional
        Model to write; as for `sbm.train`.
    settings : sbm.Settings or dict, optional
        Settings of all trainings; `C` is ignored. Folds are trained to ten times `tol`.
    Cs : sequence of float, float or str
        Values to try; as text, like the command line: ``"0.01:100:x10"``.
    folds : int
        Number of folds, from 2 to 255.
    metric : str, optional
        A key of `METRICS` in `sbm.programs.training.evaluation`. Default: ``accuracy``, or ``mse``
        for regression.
    picture : str or Path, optional
        File for a picture (.png, needs matplotlib) of the metric over C.
    resume : bool, optional
        False: start over. Default: resume an unfinished call with the same arguments.
    progress : Progress, optional
        Receives each block and each pass.

    Returns
    -------
    model : Model
        The model of the best C, trained on all rows.
    report : dict
        ``metric``, ``folds``, ``best`` (C), ``settings`` (a dict for each C: ``C``, ``mean``,
        ``std``, ``folds``, ``passes``, ``seconds`` of solving, ``relative_gap`` (the worst of the
        folds), ``n_nonzero`` (of sparse models, mean over folds), ``status``: ``converged``,
        ``given up``, ``not tried`` or ``not converged``),
        ``passes``, ``bytes_read``, ``seconds`` (tune, train, total; compile, which is not part of
        the total), ``peak_rss_bytes``, ``train`` (the report of the training).

    Raises
    ------
    SettingsError
        Invalid values of C, folds, metric or settings.
    StoreError, DataError, MemoryPlanError
        As for `sbm.train`.
    """
    begin, compiled_before = clock(), compile_seconds()
    return_freed_memory()
    settings, progress = Settings.of(settings), Progress.of(progress)
    values = _check(Cs, folds, settings)
    if picture is not None:
        check_picture(picture, "--png")
    check_settings(settings)
    blocks = BlockStore(find_store(store))
    require_whole(blocks)
    path = place_of(model, blocks)
    choose_metric(metric, make_problems(replace(settings, C=values[0]), blocks), blocks)
    if settings.solver == "newton" and LOSSES[settings.loss].joint:
        raise SettingsError(
            f"sbm tune does not support solver newton with loss {settings.loss}; use solver auto"
        )
    # Screening does not pay with few passes.
    few_passes = replace(_with_solver(settings, blocks, folds * len(values)), screen=False)
    validation = _make_validation(few_passes, blocks, path, values, folds, metric, progress, begin)
    report = validation.run(resume)
    if picture is not None:
        draw_metric(report, picture)
    limit = settings.time_limit  # for all; the last training gets at least a moment
    limit = None if limit is None else max(0.001, seconds_left(limit, begin))
    best = replace(settings, C=report["best"], time_limit=limit)
    result, report["train"] = train(blocks.folder, path, best, resume=resume, progress=progress)
    with contextlib.suppress(StoreError):
        Run.remove(validation.folder)  # the record first, which names the other files
    shutil.rmtree(validation.folder, ignore_errors=True)
    report["seconds"] |= {
        "train": report["train"]["seconds"]["total"], "total": clock() - begin,
        "compile": compile_seconds() - compiled_before,
    }  # fmt: skip
    report["peak_rss_bytes"] = peak_bytes()
    return result, report


def _check(Cs: Sequence[float] | float | str, folds: int, settings: Settings) -> list[float]:
    """Check the arguments; return the values of C in ascending order."""
    if isinstance(Cs, str):
        Cs = parse_grid(Cs)
    values = sorted(set(np.atleast_1d(np.asarray(Cs, dtype=object))))
    if not values:
        raise SettingsError("no values of C; write them as 0.01:100:x10 or 0.1,1,10")
    values = [replace(settings, C=C).C for C in values]
    if not isinstance(folds, int | np.integer) or not 2 <= folds <= 255:
        raise SettingsError(f"folds is {folds}; it must be between 2 and 255")
    settings.refuse_foreign("tune")
    if settings.loss == "one_class":
        raise SettingsError("sbm tune does not support loss one_class, which has no C to choose")
    if settings.weights == "-":
        raise SettingsError("sbm tune reads weights twice, which a pipe does not allow; use a file")
    return values


def _with_solver(settings: Settings, rows: BlockStore, models: int) -> Settings:
    """Return the settings with the solver of the folds; unlike `sbm.train`, it is never changed."""
    task = Task.of(settings, rows)
    if settings.solver == "auto" and task.method == "dual" and starts_with_newton(task):
        newton = replace(settings, solver="newton")
        problems = models * make_problems(newton, rows)
        if fits(_task(newton, rows, problems, models)):
            return newton
    return task.settings


def _task(
    settings: Settings,
    rows: BlockStore,
    problems: list[AnyProblem],
    models: int,
    judge_bytes: int = 0,
) -> Task:
    """Return the task of many models together."""
    share = WorkShare(SerialComm(), problems, False)
    advice = "fewer values of C or fewer folds"
    return Task(settings, rows, share, models=models, judge_bytes=judge_bytes, advice=advice)


@dataclass(frozen=True)
class _CrossValidation:
    """A planned cross-validation."""

    task: Task
    path: Path
    grid: Grid
    weights: AnyWeights | None
    plan: MemoryPlan
    progress: Progress
    begin: float

    @property
    def folder(self) -> Path:
        """Folder of its run; it is removed once the model is written."""
        return run_folder(self.path.with_name(self.path.name + ".tune"))

    @property
    def itself(self) -> dict[str, Any]:
        """Its identity, stored in each checkpoint."""
        grid = self.grid
        return identity(self.task.settings, self.task.store, self.weights) | {
            "kind": "tune", "Cs": grid.Cs, "folds": grid.n_folds, "metric": grid.metric.name,
            "shape": shape_record(self.task.store, self.plan, grid.every),
        }  # fmt: skip

    def run(self, resume: bool | None) -> dict[str, Any]:
        """Run or resume the cross-validation; if it already finished, return its report."""
        Run.require_free(run_folder(self.path))  # the last training needs it
        record = same_run(self.folder, self.itself) if resume is not False else None
        is_done = record is not None and is_finished(record)
        if resume is not False and not is_done:
            refuse_unfinished(run_folder(self.path))
        if record is not None and is_done:
            found: dict[str, Any] = record["report"]
            return found
        with (
            self.task.store.in_use(),
            open_run(self.folder, self.grid.every, self.plan, record) as run,
        ):
            try:
                report = self._run_passes(run, record)
            except DataError:  # this run cannot be resumed
                shutil.rmtree(run.folder, ignore_errors=True)
                raise
            report["seconds"] = {"tune": clock() - self.begin}
            run.note(report=report)
        return report

    def _is_late(self) -> bool:
        return seconds_left(self.task.settings.time_limit, self.begin) < 0

    def _run_passes(self, run: Run, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Run passes over the active models; then evaluate the remaining ones."""
        task, grid = self.task, self.grid
        if task.method == "columns":
            return SparseTuning(
                task, self.plan, grid, self.progress, self.weights, run, self.itself, self._is_late,
            ).walk(record)  # fmt: skip
        reserved = near_bytes(task, self.plan)
        engine = Engine(
            task.store, task.settings, grid.every, self.plan, run, self.progress,
            held_out=HeldOut(Folds(grid.n_folds, task.settings.seed), grid.held_out),
            weights=self.weights, pauses=Pauses(self._is_late),
            staying=self.plan.staying(range(len(self.plan.parts)), reserved),
        )  # fmt: skip
        tuning = Tuning(engine, task, grid, run, self.itself)
        with engine.at_work():
            if record is not None:
                tuning.resume(record)
            is_over = False
            while not is_over:
                is_over = self._run_active(tuning)
                tuning.judge()
                is_over = is_over or not tuning.active
            tuning.commit()  # the report needs a checkpoint
        return tuning.report()

    def _run_active(self, tuning: Tuning) -> bool:
        """Run passes until all models are paused; return whether a limit was reached before."""
        while tuning.active:
            if tuning.passes >= self.task.settings.max_passes:
                return True
            n_active = len(tuning.active)
            tuning.run_pass()
            if tuning.passes > 1:
                tuning.give_up()
            if tuning.passes > 1 or not tuning.active:
                tuning.go_up()
            tuning.tell(n_active)
            if self._is_late():
                return True
            tuning.commit_if_due()
        return False


def _make_validation(
    settings: Settings,
    rows: BlockStore,
    path: Path,
    Cs: list[float],
    folds: int,
    metric: str | None,
    progress: Progress,
    begin: float,
) -> _CrossValidation:
    """Create the models of a tuning, plan their memory, and compile the kernels."""
    rows.scaling = settings.scale
    each = Task.of(settings, rows)
    weights = each.read_weights(path.parent)
    counts = each.class_counts(weights)
    problems = [
        make_problems(replace(settings, C=C), rows, counts) for C in Cs for _ in range(folds)
    ]
    grid = Grid(Cs, folds, choose_metric(metric, problems[0], rows), problems)
    n, every = len(grid.problems), grid.every
    if each.method == "columns":  # one C after the other
        n, every = folds, [p for some in grid.problems[:folds] for p in some]
    exams = 0
    if grid.metric.task == "binary":  # needs all decision values of each model
        exams = BinaryMetrics.bytes_for(rows.n_rows // folds, n)
    task = _task(settings, rows, every, n, exams)
    plan = plan_of(task, progress=progress)
    models, blocks = len(grid.every), count(len(plan.parts), "block")
    progress.note(f"{models} models, {blocks}; memory: {plan.describe()}")
    prepare(kernels_of(settings, grid.every, rows.has_weights), rows.value_type, progress)
    prepare("validate", rows.value_type, progress)
    scale_features(rows, progress)
    return _CrossValidation(task, path, grid, weights, plan, progress, begin)
