"""Train Weston-Watkins by blocks of classes, which processes divide among themselves.

In an epoch all pairs of classes are solved (Alber, Zimmert, Dogan & Kloft 2016): blocks of classes
meet on match days (`sbm.programs.classblocks.plan`), and where two meet, all pairs of their classes
are. Weights travel between processes; the variables of a pair of classes stay where it meets. Every
process has a copy of the rows, sorted by blocks of classes, and reads those of a meeting part by
part.

The gap of Weston-Watkins is a sum over rows and other classes, so it is certified in the same way,
pair by pair at fixed W: no process ever holds all weights, but the first one, to write the model.

What is solved, in which order and with which random numbers depends on settings and store alone:
the model has the same bytes whatever the number of processes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.distributed.comm import Comm
from sbm.engine.clock import clock
from sbm.engine.kernels import prepare
from sbm.engine.machine import peak_bytes
from sbm.engine.problems import make_model
from sbm.engine.progress import Progress
from sbm.errors import SettingsError, StoreError
from sbm.losses import MOST_RESTING
from sbm.models.model import Model
from sbm.programs.classblocks.division import (
    Division,
    MeetingPart,
    SortedRows,
    divide,
    parts_of,
    sorted_rows,
)
from sbm.programs.classblocks.epochs import ClassJob, Epochs
from sbm.programs.classblocks.plan import UNWRITTEN_BYTES
from sbm.programs.training.ledger import identity, is_finished, run_to_go_on_with
from sbm.programs.training.ranks import (
    StatusFile,
    common_record,
    finished_model,
    forget_others,
    one_first,
    runs_of_others,
)  # fmt: skip
from sbm.programs.training.setup import run_at, run_folder
from sbm.settings import Settings
from sbm.store.blocks import BlockStore
from sbm.store.files import file_checksum
from sbm.store.run import Run

__all__ = ["train_class_blocks"]


def train_class_blocks(
    store: BlockStore,
    path: Path,
    settings: Settings,
    comm: Comm,
    *,
    resume: bool | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    begin: float | None = None,
) -> tuple[Model | None, dict[str, Any]]:
    """Train a model on a store, together with the other processes, which all call this.

    Parameters
    ----------
    store : BlockStore
        The same for all processes.
    path : Path
        Where the first process writes the model; runs are beside it, as those of any training.
    settings : Settings
        With `class_blocks`.
    comm : Comm
    resume, is_stopped, progress : see `sbm.programs.train.train`
        `is_stopped` is asked before each match day; what was done since the end of the last epoch
        is lost then.
    begin : float, optional
        When the training began, by `sbm.engine.clock.clock`.

    Returns
    -------
    model : Model or None
        None but in the first process.
    report : dict
        As of `sbm.train`; with ``processes``, and ``bytes_sent`` by the one that sent most.

    Raises
    ------
    SbmError
        As of `sbm.programs.train.train`.
    KeyboardInterrupt
        One of the processes was told to stop.
    """
    begin = clock() if begin is None else begin
    progress = (progress or Progress()) if comm.rank == 0 else Progress()
    division = divide(store, settings, comm)
    itself = identity(settings, store, None) | {
        "processes": comm.size,
        "shape": {"class_blocks": settings.class_blocks, "room": division.plan.room},
    }
    job = ClassJob(store, path, settings, comm, is_stopped, progress, begin, itself)
    status = StatusFile(run_folder(path), comm)
    if resume is not False:
        _refuse_other_processes(run_folder(path), comm)
    record = run_to_go_on_with(job.folder, itself, settings, resume)
    record = common_record(comm, job.folder, record)
    if (finished := finished_model(comm, path, record)) is not None:
        return finished
    progress.note(
        f"{len(division.classes)} blocks of classes in {comm.size} processes; memory of each: "
        f"{division.plan.describe()}"
    )
    one_first(comm, lambda: prepare("class-blocks", store.value_type, progress))
    with store.in_use(), _rows_of(job, division) as rows:
        parts = parts_of(division, rows, comm.rank)
        with _open_run(job, division, parts, record) as run:
            status.say("running")
            W, report = _learn(Epochs(job, division, rows, parts, run), record)
            model = _finish(job, division, run, W, report, is_resumed=record is not None)
            status.say("finished", report=report)
    return model, report


def _rows_of(job: ClassJob, division: Division) -> AbstractContextManager[SortedRows]:
    """Sort the rows that this process needs by blocks of classes."""
    return sorted_rows(
        job.store, job.folder / "rows", division.classes, division.needed_at(job.comm.rank),
        division.plan, job.progress,
    )  # fmt: skip


def _learn(
    epochs: Epochs, record: Mapping[str, Any] | None
) -> tuple[npt.NDArray[np.float64] | None, dict[str, Any]]:
    """Train; return all weights, in the first process, and the report."""
    report = epochs.run(record)
    begin = clock()
    W = epochs.collect()
    report["seconds"]["total"] += clock() - begin
    return W, report


def _finish(
    job: ClassJob,
    division: Division,
    run: Run,
    W: npt.NDArray[np.float64] | None,
    report: dict[str, Any],
    is_resumed: bool,
) -> Model | None:
    """Write the model in the process that has the weights; note in all runs that there is one."""
    begin, path, comm = clock(), job.path, job.comm
    gc.collect()  # of the epochs, which may know themselves: their memory goes to the writing
    model = None
    if W is not None:
        model = make_model(job.store, job.settings, [division.problem], [W], report)
        model.info["calibration"] = None
        model.save(path)
    comm.barrier()  # nobody has finished before there is a model
    report |= {"model": str(path), "resumed": is_resumed, "was_finished": False}
    report["seconds"]["total"] += clock() - begin
    report["peak_rss_bytes"] = int(comm.gather([peak_bytes()]).max())
    run.log({"event": "end", **report})
    run.note(report=report, model_crc32=file_checksum(path) if model else None)
    forget_others(run_folder(path), comm.size)
    return model


def _refuse_other_processes(run: Path, comm: Comm) -> None:
    """Refuse to go on with what another number of processes began: they divide it otherwise.

    Raises
    ------
    SettingsError
        There is such a training, and it has not come to its end.
    """
    with suppress(StoreError):
        for folder in runs_of_others(run, comm)[:1]:
            record = Run.read(folder)
            before = record.get("processes", 1)
            if not is_finished(record):
                raise SettingsError(
                    f"{run} holds an unfinished training in {before} processes, and now there are "
                    f"{comm.size}; start as many to go on with it, or start over with --fresh"
                )


def _open_run(
    job: ClassJob,
    division: Division,
    parts: Sequence[MeetingPart],
    record: Mapping[str, Any] | None,
) -> AbstractContextManager[Run]:
    """Open the run of this process, which keeps the variables of each part of its meetings."""
    resting = sorted(set(division.problem.resting_values))[:MOST_RESTING]
    n_rows = [part.rows for part in parts]
    return run_at(
        job.folder, record, n_rows, division.n_classes, resting, 0, UNWRITTEN_BYTES,
        job.comm.size > 1,
    )  # fmt: skip
