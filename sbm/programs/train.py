"""Train: selective block minimization over a block store (Algorithm 1 of Chang & Roth 2011).

Pass after pass over all blocks, each of which is loaded, merged with the cache, solved and selected
from (`sbm.engine.engine`), until the free running estimate of the gap says that it may be
small enough; then a pass of its own certifies the model at fixed W.

All there is to go on from is committed at the end of every pass and now and then inside: whenever
the process ends, the same command goes on from there (`sbm.programs.training.ledger`) and comes
to the same bytes as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from sbm.distributed.comm import Comm, SerialComm
from sbm.engine.clock import clock
from sbm.engine.machine import peak_bytes, return_freed_memory
from sbm.engine.problems import label_warning, make_model
from sbm.engine.progress import Progress
from sbm.errors import MemoryPlanError
from sbm.models.model import Model
from sbm.programs.training.calibration import calibrate_beside
from sbm.programs.training.job import TrainingPlan
from sbm.programs.training.passtest import PassTest
from sbm.programs.training.ranks import (
    common_name,
    finished_model,
    forget_others,
    own_name,
    share_cores,
)  # fmt: skip
from sbm.programs.training.scales import feature_scales
from sbm.programs.training.setup import find_store, place_of, run_folder
from sbm.programs.training.state import Training, final_report
from sbm.settings import Settings
from sbm.store.blocks import BlockStore, require_whole
from sbm.store.files import file_checksum
from sbm.store.run import Run

__all__ = ["train"]


@overload
def train(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    resume: bool | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    read_rate: float | None = None,
    test: str | Path | None = None,
    test_every: int = 1,
    comm: None = None,
) -> tuple[Model, dict[str, Any]]: ...


@overload
def train(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    resume: bool | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    read_rate: float | None = None,
    test: str | Path | None = None,
    test_every: int = 1,
    comm: Comm,
) -> tuple[Model | None, dict[str, Any]]: ...


def train(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    resume: bool | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    read_rate: float | None = None,
    test: str | Path | None = None,
    test_every: int = 1,
    comm: Comm | None = None,
) -> tuple[Model | None, dict[str, Any]]:
    """Train a model on a store.

    Resumes an unfinished run with the same store and settings. If that run already finished,
    returns its model and report.

    Several processes train one model together if each of them calls this with the same arguments
    (`sbm.programs.training.ranks`). Where one of them fails the others wait for it, until their
    deadline: end them all then (``comm.abort``).

    Parameters
    ----------
    store : str or Path, optional
        Default: the only ``*.sbm`` in the current folder. Of several processes ``{rank}`` in it is
        the number of each.
    model : str or Path, optional
        Where the model goes. Default: the store's name with ``.model``, in the current folder. The
        state of the training is kept beside it in ``MODEL.run/``.
    settings : sbm.Settings or dict, optional
        Loss, cost, memory and the rest; ``help(sbm.Settings)`` lists the names.
    resume : bool, optional
        True: there must be something to go on with. False: begin anew, whatever there is. Default:
        go on with a training of the same store and settings if there is one.
    is_stopped : callable
        Is asked after each block whether to commit and end.
    progress : Progress, optional
        Is told each block and each pass.
    read_rate : float, optional
        Read no more bytes a second than this, as from a slow disk; for benchmarks.
    test : str or Path, optional
        Text or store to predict after every `test_every`-th pass and after the last one; what comes
        of it is in the log and told to `progress`, as ``test`` of a pass. The model is the same,
        and no seconds count that this takes.
    test_every : int
        Passes.
    comm : Comm, optional
        Of several processes, as ``sbm.distributed.comm.world()`` returns it. Default: alone.

    Returns
    -------
    model : Model
        The certified one, as written; of several processes, in number 0 alone, None in the others.
    report : dict
        ``primal``, ``dual``, ``gap``, ``relative_gap``, ``drift``, ``converged``, ``passes``,
        ``rounds`` (of each pass),
        ``visits``, ``updates``, ``visits_cut_short`` (in the last pass), ``seconds`` (total, disk,
        load, wait, solve, certify, combine, write; compile, which is no part of the total),
        ``bytes_read``, ``peak_rss_bytes``, ``n_support``, ``n_free``, ``blocks``, ``passes_left``
        (to the tolerance, by the last gaps), ``feature_scales`` (smallest and largest, unless it
        converged), ``model``; ``resumed``
        (whether it was gone on with) and ``was_finished``. Seconds and bytes are those of all the
        processes that took part, one after the other; of several at a time, those of this one.
        These also report ``processes`` and ``bytes_sent`` by this one.

    Raises
    ------
    StoreError
        No store, damaged, or in use; or there is an unfinished training of other data.
    DataError
        The labels do not fit the loss; or there is no test text, or it is none.
    SettingsError
        A setting that does not exist, is out of range, or means nothing for the loss; or there is
        an unfinished training with other settings.
    MemoryPlanError
        ``settings.mem`` is too small; says what would do.
    KeyboardInterrupt
        It was told to stop; all is kept.
    """
    begin = clock()
    return_freed_memory()
    comm = comm or SerialComm()
    settings = share_cores(Settings.of(settings), comm)
    blocks = BlockStore(find_store(None if store is None else own_name(store, comm)))
    if comm.size == 1:
        require_whole(blocks)
    path = place_of(model or (common_name(store, ".model") if store else None), blocks)
    if progress is not None and (odd := label_warning(settings, blocks)):
        progress.stage(odd)
    pass_test = None if test is None else PassTest(test, test_every)
    if pass_test is not None:
        pass_test.refuse_in_many(settings, comm.size)
    if settings.class_blocks is not None:
        from sbm.programs.classblocks.training import train_class_blocks  # a program of its own

        return train_class_blocks(
            blocks, path, settings, comm, resume=resume, is_stopped=is_stopped, progress=progress,
            begin=begin,
        )  # fmt: skip
    job = TrainingPlan(
        blocks, path, settings, resume, is_stopped, progress or Progress(), begin, read_rate, comm,
        pass_test,
    )  # fmt: skip
    while True:
        try:
            return _train(job)
        except MemoryPlanError:
            raise
        except MemoryError:
            if not job.may_plan_with_less:
                raise
        job.plan_with_less()  # not above: what was raised keeps the arrays of all it went through


def _train(job: TrainingPlan) -> tuple[Model | None, dict[str, Any]]:
    """Train as planned: pass after pass until the gap is small enough or a budget is used up."""
    job.prepare()
    start = job.find_start()
    finished = finished_model(job.comm, job.path, start.last_commit)
    if finished is not None:
        return finished
    job.compile_kernels()
    # All that can be refused comes before the run of an earlier training is replaced.
    start = job.with_earlier(start)
    job.balance_classes()
    with job.store.in_use(), job.open_run(start) as run:
        job.status.say("running")
        training = Training(job, run)
        with training.engine.at_work():
            training.start(start)
            ledger = training.ledger
            while not ledger.is_done:
                done = ledger.ended  # set if the last commit was between a pass and its certificate
                if done is None:
                    training.begin_pass()
                    done = training.add(*training.engine.run_pass(ledger.passes, only=ledger.only))
                is_late = training.is_late()
                is_last = is_late or ledger.passes >= job.settings.max_passes
                certificate = None
                if training.is_certificate_due(done) or is_last:
                    certificate = training.certify(is_last)
                    is_last = is_last or certificate.relative_gap <= job.settings.tol
                training.end_pass(done, certificate, is_late, is_last)
            training.wait_for_all()
            calibration = calibrate_beside(training) if job.spare else None
        report = job.share.total(final_report(training))
        weights = [solver.W for solver in training.solvers]
        del training  # and its memory, before the model is written
        return _finish(job, run, weights, calibration, report, is_resumed=start.record is not None)


def _finish(
    job: TrainingPlan,
    run: Run,
    weights: list[npt.NDArray[np.float64]],
    calibration: dict[str, Any] | None,
    report: dict[str, Any],
    *,
    is_resumed: bool,
) -> tuple[Model | None, dict[str, Any]]:
    """Write the model, and note in the run that there is one."""
    begin = clock()
    model = crc32 = None
    weights = job.share.collect(weights)
    if job.comm.rank == 0:
        model = make_model(job.store, job.settings, job.share.every, weights, report)
        model.info["calibration"] = calibration
        model.save(job.path)
        crc32 = file_checksum(job.path)
    report |= {"model": str(job.path), "resumed": is_resumed, "was_finished": False}
    report["feature_scales"] = None if report["converged"] else feature_scales(job.store)
    report["seconds"]["total"] += clock() - begin
    report["peak_rss_bytes"] = peak_bytes()
    run.log({"event": "end", **report})
    run.note(report=report, model_crc32=job.comm.share(crc32)[0])
    forget_others(run_folder(job.path), job.comm.size)
    job.status.say("finished", report=report)
    return model, report
