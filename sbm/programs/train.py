"""Train: selective block minimization over a block store (Algorithm 1 of Chang & Roth 2011).

Each pass loads every block, merges it with the cache, solves it and selects the next cache
(`sbm.engine.engine`). When the running estimate of the gap is small enough, a separate read of all
blocks certifies the model at fixed W.

Checkpoints are written at the end of passes and from time to time during a pass. After any
interruption the same command resumes from the last one (`sbm.programs.training.state`) and produces
the same bytes as an uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from sbm.compiled.clock import clock, compile_seconds
from sbm.dataset.frames import Model
from sbm.dataset.open import Reader, open_rows
from sbm.dataset.options import ReadKeywords, ReadOptions
from sbm.distributed.comm import Comm, SerialComm
from sbm.engine.machine import peak_bytes, return_freed_memory
from sbm.engine.problems import label_warning, make_model
from sbm.engine.progress import Progress
from sbm.errors import MemoryPlanError, require_path
from sbm.inputs.urls import remote_terms
from sbm.methods import method_named
from sbm.models.weights import WindowedWeights
from sbm.programs.frequencies import frequencies_of
from sbm.programs.training.checks import FirstLook, check_settings, refuse_pipes
from sbm.programs.training.fit import fit
from sbm.programs.training.job import Job, TrainOptions
from sbm.programs.training.ranks import (
    finished_model,
    forget_others,
    share_cores,
)
from sbm.programs.training.task import Task
from sbm.programs.training.training import Training, final_report
from sbm.programs.training.turns import divide_classes, train_in_turns
from sbm.settings import Settings
from sbm.store.files import file_checksum
from sbm.store.run import Run, run_folder


def train(
    data: Any = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    resume: bool | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    keep_store: str | Path | None = None,
    **reading: Unpack[ReadKeywords],
) -> tuple[Model, dict[str, Any]]:
    """Train a model on text, matrices or a store.

    Resumes an unfinished run with the same data and settings. If that run already finished,
    returns its model and report.

    Parameters
    ----------
    data : str, Path or iterable of these; (X, y) or iterable of these; optional
        Text files or globs, plain or compressed, ``-`` for standard input, or matrices, as for
        `sbm.split`; they are read once, into memory as far as ``settings.mem`` allows. Or one
        store. Default: the only ``*.sbm`` in the current folder.
    model : str or Path, optional
        Model to write. Default: the name of the data with ``.model``, in the current folder. The
        state of the training is kept in ``MODEL.run/`` next to it.
    settings : sbm.Settings or dict, optional
        Loss, cost, memory and so on; ``help(sbm.Settings)`` lists the names.
    resume : bool, optional
        True: fail if there is nothing to resume. False: start over. Default: resume an unfinished
        training with the same data and settings if there is one.
    is_stopped : callable
        Called after each block; if true, the training writes a checkpoint and ends.
    progress : Progress, optional
        Receives each block and each pass.
    keep_store : str or Path, optional
        Also write the store that `sbm.split` would write, here.
    **reading
        How to read text or matrices; ``help(sbm.ReadOptions)`` lists the names. `strict` is also
        for the data of ``settings.validate``.

    Returns
    -------
    model : Model
        The certified model, as written.
    report : dict
        ``primal``, ``dual``, ``gap``, ``relative_gap``, ``drift``, ``converged``, ``passes``,
        ``validation`` (None, or a dict: ``data`` or ``share``, ``metric``, the best ``score``, its
        ``pass``, whose model this is, ``rows``, ``threshold``, and ``ended_by``: ``validation``,
        ``tol`` or ``limit``),
        ``solver`` (the last one, except of sparse models: ``dual``, ``newton``, ``interior point``,
        ``accelerated``, ``conjugate gradients`` or ``method of multipliers``),
        ``switched_after`` (passes of the first solver, or None), ``scale`` (of the problem
        that is certified), ``scale_rounding`` (most relative rounding of a scaled value,
        None without), ``rounds`` (of each pass), ``visits``, ``updates``,
        ``visits_cut_short`` (in the last pass),
        ``seconds`` (total, disk, load, wait, solve, certify, combine, write; compile, which is not
        part of the total), ``bytes_read``, ``peak_rss_bytes``, ``n_support`` and ``n_free``
        (support vectors, and those with alpha below its upper bound; left out if the loss has
        none), ``n_nonzero`` and ``n_weights`` (of sparse models), with `prune` also ``dropped``
        (weights) and ``added`` (by that to the primal value; the certificate includes it),
        ``blocks``, ``decoded_share`` (of the rows, those that stayed decoded), ``passes_left``
        (estimate of the passes to the tolerance, None if the gaps of the last solver show no
        trend), ``is_falling`` (whether the gap falls fast enough for more passes to help),
        ``only_label`` (if the model predicts no other), ``model``, ``resumed``,
        ``was_finished``, and ``read`` (the report of reading text, as of `sbm.split`, with
        ``seconds``; None for a store). Seconds and bytes include those before a resume.

    Raises
    ------
    StoreError
        The store is missing, damaged or in use; or there is an unfinished training on other data.
    DataError
        The text is invalid; the labels do not fit the loss; or the validation data is missing or
        invalid.
    SettingsError
        An unknown setting, a value out of range, or a setting that does not apply to the loss; or
        there is an unfinished training with other settings.
    MemoryPlanError
        ``settings.mem`` is too small; the message has the smallest value that works.
    KeyboardInterrupt
        `is_stopped` returned true; a checkpoint was written.
    """
    options = TrainOptions(
        resume, is_stopped, Progress.of(progress), ReadOptions.of(reading), keep_store
    )
    found, report = train_ranks(SerialComm(), data, model, settings, options)
    assert found is not None  # rank 0 has the model
    return found, report


def train_ranks(
    comm: Comm,
    data: Any = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    options: TrainOptions | None = None,
) -> tuple[Model | None, dict[str, Any]]:
    """Train one model with several ranks; each rank calls this with the same arguments.

    If a rank fails, the others wait until their timeout; end them with ``comm.abort``. See
    `sbm.programs.training.ranks`.

    Parameters
    ----------
    comm : Comm
        From ``sbm.distributed.comm.world()``.
    data
        As for `train`; ``{rank}`` in the name of a store is replaced by the number of the rank.
        Each rank reads all of a text.
    model, settings
        As for `train`.

    Returns
    -------
    model : Model or None
        The model in rank 0, None in the other ranks.
    report : dict
        As for `train`, with seconds and bytes of this rank. With several ranks it also has
        ``processes`` (their number) and ``bytes_sent`` by this rank.

    Raises
    ------
    SbmError, KeyboardInterrupt
        As for `train`.
    """
    begin = clock()
    return_freed_memory()
    options = options or TrainOptions()
    if model is not None and not isinstance(model, Settings | Mapping):
        advice = "give rows and labels as a pair: sbm.train((X, y), NAME)"
        require_path(model, "the name of the model", advice)
    settings = share_cores(Settings.of(settings), comm)
    with remote_terms(settings.remote_timeout, options.progress.stage, options.is_stopped):
        check_settings(settings, comm.size)
        refuse_pipes(
            data=data, weights=settings.weights, test=options.test, validate=settings.validate
        )
        look = FirstLook(
            settings, comm, options.progress, options.resume, options.test, options.reading
        )
        reader = Reader(
            options.reading, options.keep_store, comm, options.progress, options.is_stopped,
            options.while_reading, look.before_text, has_others=options.test is not None,
        )  # fmt: skip
        compiled_before = compile_seconds()
        with open_rows(data, model, settings, reader) as (store, path, read):
            look.at_store(path, store, read is not None)
            if odd := label_warning(settings, store):
                options.progress.stage(odd)
            job = Job(store, path, settings, options, begin, comm, read)
            job.compile_seconds = compile_seconds() - compiled_before
            task = Task.of(settings, store) if comm.size == 1 else None
            if task is not None and len(turns := divide_classes(task)) > 1:
                return train_in_turns(job, task, turns, _train_to_the_end)
            return _train_to_the_end(job)


def _train_to_the_end(job: Job) -> tuple[Model | None, dict[str, Any]]:
    """Train, with another solver or smaller blocks if needed."""
    while True:
        try:
            if (found := _train(job)) is not None:
                return found
            continue  # with another solver
        except MemoryPlanError:
            raise
        except MemoryError:
            if not job.may_plan_with_less:
                raise
        job.plan_with_less()  # outside the handler: its traceback keeps arrays alive


def _train(job: Job) -> tuple[Model | None, dict[str, Any]] | None:
    """Run passes until the gap is small enough or a budget is used up.

    Returns None if the training goes on with another solver.
    """
    job.prepare()
    start = job.find_start()
    finished = finished_model(job.comm, job.path, start.last_commit)
    if finished is not None:
        return finished
    job.compile_kernels()
    # All checks come before the run of an earlier training is replaced.
    start = job.with_earlier(start)
    job.balance_classes()
    with job.store.in_use(), job.open_run(start) as run:
        job.status.say("running")
        training = Training(job, run, method_named(job.task.method))
        with training.method.at_work():
            training.start(start)
            if (carried := fit(training)) is not None:
                job.switch(carried, start)
                return None
            training.wait_for_all()
            calibration = None
            if job.task.others:
                from sbm.programs.training.calibration import calibrate_beside

                calibration = calibrate_beside(training)
            threshold = job.task.settings.prune
            left = None if threshold is None else training.method.prune(threshold)
        report = job.task.share.total(final_report(training, left))
        weights = training.weights
        is_resumed = job.is_resumed or start.record is not None
        del training  # free its memory before the model is written
        return _finish(job, run, weights, calibration, report, is_resumed=is_resumed)


def _finish(
    job: Job,
    run: Run,
    weights: list[npt.NDArray[np.float64]] | WindowedWeights,
    calibration: dict[str, Any] | None,
    report: dict[str, Any],
    *,
    is_resumed: bool,
) -> tuple[Model | None, dict[str, Any]]:
    """Write the model and mark the run as finished."""
    begin = clock()
    model = crc32 = None
    report["scale"] = job.task.settings.scale
    report["scale_rounding"] = job.store.scale_rounding
    with job.task.share.collected(weights) as every:
        if job.comm.rank == 0:
            model = make_model(
                job.store, job.asked, job.task.share.every, every, report,
                job.classes or slice(None), in_place=job.plan.is_lean,
            )  # fmt: skip
            model.info["calibration"] = calibration
            if "names" not in model.info and (found := frequencies_of(job.store)) is not None:
                model.info["frequencies"] = found
            report["only_label"] = model.label_texts()[0] if len(model.labels) == 1 else None
            model.save(job.path)
    if model is not None:
        if isinstance(model.W, WindowedWeights):  # those of the training take more memory
            model = Model.load(job.path, most_dense=0)
        crc32 = file_checksum(job.path)
    report |= {"model": str(job.path), "resumed": is_resumed, "was_finished": False}
    report["read"] = job.read
    report["seconds"]["total"] += clock() - begin
    report["peak_rss_bytes"] = peak_bytes()
    run.log({"event": "end", **report})
    run.note(report=report, model_crc32=job.comm.share(crc32)[0])
    forget_others(run_folder(job.path), job.comm.size)
    job.status.say("finished", report=report)
    return model, report
