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
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from sbm.compiled.clock import clock, compile_seconds, seconds_left
from sbm.dataset.open import Reader, open_rows
from sbm.dataset.options import ReadKeywords, ReadOptions
from sbm.distributed.comm import SerialComm
from sbm.engine.machine import peak_bytes, return_freed_memory
from sbm.engine.problems import make_problems
from sbm.engine.progress import Progress
from sbm.errors import DataError, SettingsError, StoreError
from sbm.inputs.urls import remote_terms
from sbm.losses import LOSSES
from sbm.models.metrics import BinaryMetrics
from sbm.models.model import Model
from sbm.plain import dataclass
from sbm.programs.reporting.picture import check_picture, draw_metric
from sbm.programs.train import train
from sbm.programs.training.checks import FirstLook, check_settings
from sbm.programs.training.evaluation import base_rate, choose_metric
from sbm.programs.training.fit import fit
from sbm.programs.training.job import Job, StartPoint, TrainOptions
from sbm.programs.training.newton import folds_start_with_newton
from sbm.programs.training.ranks import WorkShare
from sbm.programs.training.state import refuse_unfinished, same_run
from sbm.programs.training.task import Task
from sbm.programs.training.training import Method, Training
from sbm.programs.tuning.dense import CrossValidation
from sbm.programs.tuning.grid import LOOSER, Grid
from sbm.programs.tuning.sparse import SparseCrossValidation
from sbm.settings import Settings
from sbm.store.run import Run, is_finished, run_folder
from sbm.units import parse_grid


def tune(
    data: Any = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    Cs: Sequence[float] | float | str,
    folds: int = 5,
    metric: str | None = None,
    picture: str | Path | None = None,
    resume: bool | None = None,
    progress: Progress | None = None,
    **reading: Unpack[ReadKeywords],
) -> tuple[Model, dict[str, Any]]:
    """Find the best C by cross-validation, and train on all rows with it.

    Parameters
    ----------
    data
        A store, text or matrices, as for `sbm.train`. Default: the only ``*.sbm`` in the current
        folder.
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
    **reading
        How to read text or matrices; ``help(sbm.ReadOptions)`` lists the names.

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
        the total), ``peak_rss_bytes``, ``train`` (the report of the training), ``read`` (the report
        of reading text, as of `sbm.split`; None for a store).

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
    if settings.method == "newton" and LOSSES[settings.loss].joint:
        raise SettingsError(
            f"sbm tune does not support solver newton with loss {settings.loss}; use solver auto"
        )
    how, comm = ReadOptions.of(reading), SerialComm()
    look = FirstLook(settings, comm, progress, resume=False, reading=how)
    reader = Reader(how, progress=progress, before=look.before_text)
    with (
        remote_terms(settings.remote_timeout, progress.stage),
        open_rows(data, model, settings, reader) as (rows, path, read),
    ):
        few = settings
        if settings.method != "columns":  # screening does not pay with few passes
            few = replace(settings, screen=False)
        job = _Tuning(
            rows, path.with_name(path.name + ".tune"), few,
            TrainOptions(resume, progress=progress), begin, comm, read,
            Cs=values, n_folds=folds, metric=metric,
        )  # fmt: skip
        report = _cross_validate(job, run_folder(path))
        if picture is not None:
            draw_metric(report, picture)
        limit = settings.time_limit  # for all; the last training gets at least a moment
        limit = None if limit is None else max(0.001, seconds_left(limit, begin))
        best = replace(settings, C=report["best"], time_limit=limit)
        result, report["train"] = train(job.store, path, best, resume=resume, progress=progress)
    with contextlib.suppress(StoreError):
        Run.remove(job.folder)  # the record first, which names the other files
        shutil.rmtree(job.folder, ignore_errors=True)  # unless another process uses it
    report["read"] = read
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


@dataclass
class _Tuning(Job):
    """The cross-validation of a tuning: its models are trained together, like one model.

    Attributes
    ----------
    Cs : list of float
        In ascending order.
    n_folds : int
    metric : str or None
    grid : Grid
    """

    Cs: list[float] = field(kw_only=True)
    n_folds: int = field(kw_only=True)
    metric: str | None = field(kw_only=True)
    grid: Grid = field(init=False)

    def _resolve(self, solver: str, counts: Sequence[float] | None = None) -> Task:
        """Return the task of the models of all C and folds."""
        store, n = self.store, self.n_folds
        one = Task.of(replace(self.asked, solver=solver), store)
        problems = [
            make_problems(replace(one.settings, C=C), store, counts)
            for C in self.Cs for _ in range(n)
        ]  # fmt: skip
        metric = choose_metric(self.metric, problems[0], store)
        self.grid = Grid(self.Cs, n, metric, problems, base_rate(metric, store))
        passes = one.max_passes
        if one.method == "columns":  # one C after the other, from the same first pass
            problems, passes = problems[:n], 1 + len(self.Cs) * one.max_passes
        models, exams = len(problems), 0
        if metric.task == "binary":  # needs all decision values of each model
            exams = BinaryMetrics.bytes_for(store.n_rows // n, models)
        return replace(
            one, share=WorkShare(self.comm, [p for some in problems for p in some], False),
            tol=LOOSER * one.tol, max_passes=passes, models=models, judge_bytes=exams,
            advice="fewer values of C or fewer folds",
        )  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """Return what identifies the tuning."""
        grid = self.grid
        return super().identity() | {
            "kind": "tune", "Cs": grid.Cs, "folds": grid.n_folds, "metric": grid.metric.name,
        }  # fmt: skip

    def find_start(self) -> StartPoint:
        """Find a checkpoint of the same tuning."""
        if self.options.resume is False:
            return StartPoint()
        return StartPoint(same_run(self.folder, self.itself))

    def _starts_with_newton(self) -> bool:
        """Return whether `auto` begins with Newton's method; folds cannot switch to it later."""
        return folds_start_with_newton(self.task) and self.can_switch()

    def is_too_large(self) -> bool:
        """Return False: there is no smaller plan to go on with."""
        return False

    def make_method(self, training: Training) -> Method:
        """Return the method of a running tuning."""
        is_sparse = self.task.method == "columns"
        return (SparseCrossValidation if is_sparse else CrossValidation)(training, self.grid)


def _cross_validate(job: _Tuning, run_of_model: Path) -> dict[str, Any]:
    """Run or resume the cross-validation; if it already finished, return its report."""
    job.prepare()
    Run.require_free(run_of_model)  # the last training needs it
    start = job.find_start()
    if start.record is not None and is_finished(start.record):
        report: dict[str, Any] = start.record["report"]
        return report
    if job.options.resume is not False:
        refuse_unfinished(run_of_model)
    job.compile_kernels()
    job.balance_classes()
    with job.store.in_use(), job.open_run(start) as run:
        try:
            training = Training(job, run, job.make_method)
            with training.method.at_work():
                training.start(start)
                fit(training)
            report = training.method.facts()
        except DataError:  # this run cannot be resumed
            shutil.rmtree(run.folder, ignore_errors=True)
            raise
        report |= {
            "passes": training.state.passes, "bytes_read": training.method.reader.bytes_read,
            "seconds": {"tune": clock() - job.begin},
        }  # fmt: skip
        run.note(report=report)
    return report
