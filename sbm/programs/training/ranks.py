"""The processes of one training: who does what, where each keeps its run, what they agree on.

Alone there is one, which has all blocks, keeps its run beside the model and agrees with itself.
"""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.distributed.comm import Comm, SerialComm
from sbm.engine.clock import stopped_clock
from sbm.engine.machine import usable_threads
from sbm.engine.memory import MemoryPlan
from sbm.engine.problems import make_problems
from sbm.errors import StoreError
from sbm.models.model import Model
from sbm.settings import Settings
from sbm.solver.gap import Certificate
from sbm.solver.problem import AnyProblem, MultiProblem
from sbm.store.blocks import BlockStore, block_name_of
from sbm.store.files import file_checksum, make_folder, write_atomically
from sbm.store.run import Run, runs_here

__all__ = [
    "StatusFile",
    "WorkShare",
    "any_of",
    "common_name",
    "common_record",
    "deal_parts",
    "finished_model",
    "folder_of",
    "forget_others",
    "one_first",
    "own_name",
    "refuse_others",
    "runs_of_others",
    "share_cores",
]  # fmt: skip

STATUS = "status.json"
RANK = "{rank}"
_PROVEN = ("primal", "dual", "gap", "relative_gap", "drift", "n_support", "n_free")
_SUMMED = ("updates", "visits", "visits_cut_short")
Weights = npt.NDArray[np.float64]


def any_of(comm: Comm, *flags: bool) -> list[bool]:
    """Return for each flag whether it is set anywhere; all processes ask at the same time."""
    if comm.size == 1:
        return list(flags)
    return [bool(column.any()) for column in comm.gather([float(flag) for flag in flags]).T]


@dataclass
class WorkShare:
    """What a process does of a training: some blocks, or some classes of one-vs-rest.

    Attributes
    ----------
    comm : Comm
        All processes.
    every : list of Problem, MultiProblem or OneClass
        All there is to be solved.
    is_by_class : bool
        Whether each process has classes, and sees all rows, of its own: nothing is added up then.
    """

    comm: Comm
    every: list[AnyProblem]
    is_by_class: bool

    @classmethod
    def of(
        cls,
        comm: Comm,
        settings: Settings,
        store: BlockStore,
        counts: Sequence[float] | None = None,
    ) -> WorkShare:
        """Divide by classes where they share nothing, are enough, and everybody sees all rows."""
        every = make_problems(settings, store, counts)
        if comm.size == 1:
            return cls(comm, every, False)
        one, classes = every[0], every
        if isinstance(one, MultiProblem) and not one.loss.joint:
            n = len(one.costs)
            classes = list(replace(one, first=0, n_outputs=n).groups(min(n, comm.size)))
        is_whole = len(store.blocks_here) == store.n_blocks
        if any_of(comm, not is_whole)[0] or len(classes) < comm.size:
            return cls(comm, every, False)
        return cls(comm, classes, True)

    @property
    def adding(self) -> Comm:
        """Those whose weights are added up."""
        return SerialComm() if self.is_by_class else self.comm

    @property
    def problems(self) -> list[AnyProblem]:
        """What this process solves."""
        return self.every[self.comm.rank :: self.comm.size] if self.is_by_class else self.every

    def collect(self, weights: list[Weights]) -> list[Weights]:
        """Return the weights of all problems in process 0, and none in the others.

        Parameters
        ----------
        weights : list of ndarray, shape (n_weights, n_outputs), float64
            Of the problems of this process; consumed.
        """
        comm = self.comm
        if not self.is_by_class:
            return weights if comm.rank == 0 else []
        if comm.rank > 0:
            comm.exchange([(0, W) for W in weights], [])
            return []
        n_weights = len(weights[0])
        found = [
            weights[k // comm.size]
            if k % comm.size == 0
            else np.empty((n_weights, problem.n_outputs))
            for k, problem in enumerate(self.every)
        ]
        comm.exchange([], [(k % comm.size, W) for k, W in enumerate(found) if k % comm.size])
        return found

    def total(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return the report of all processes, given that of each."""
        report |= {"processes": self.comm.size, "bytes_sent": self.comm.sent}
        if not self.is_by_class:
            return report
        theirs = self.comm.share({name: report[name] for name in (*_PROVEN, *_SUMMED, "passes")})
        whole = Certificate.total([Certificate(**{k: r[k] for k in _PROVEN}) for r in theirs])
        summed = {name: sum(one[name] for one in theirs) for name in _SUMMED}
        most = max(one["passes"] for one in theirs)
        return {**report, **whole.to_dict(), **summed, "passes": most}


def share_cores(settings: Settings, comm: Comm) -> Settings:
    """Let the processes of a machine share its cores, where nothing else is asked for."""
    if comm.size == 1 or settings.threads is not None:
        return settings
    neighbours = Counter(comm.share(platform.node()))[platform.node()]
    return replace(settings, threads=max(1, usable_threads(None) // neighbours))


def refuse_others(comm: Comm, store: BlockStore, itself: Mapping[str, Any]) -> None:
    """See to it that all processes are about to do the same.

    Raises
    ------
    StoreError
        They have other data, or other settings.
    """
    chosen = {name: value for name, value in itself["settings"].items() if name != "threads"}
    mine = [itself["data"], chosen, itself["weights"]]
    for rank, theirs in enumerate(comm.share(mine)):
        if theirs[0] != mine[0]:
            raise StoreError(
                f"{store.folder} of rank {comm.rank} and the store of rank {rank} differ; "
                "give all ranks the same store, or shards of one store"
            )
        if theirs != json.loads(json.dumps(mine)):
            raise StoreError(f"ranks {comm.rank} and {rank} have different settings")


def own_name(name: str | Path, comm: Comm) -> Path:
    """Return what a name stands for in this process: ``{rank}`` in it is the process's number."""
    return Path(str(name).replace(RANK, str(comm.rank)))


def common_name(store: str | Path, suffix: str) -> Path | None:
    """Return what to call what is made of all shards: ``big.{rank}.sbm`` gives ``big.model``.

    None where the store is not named for each process.
    """
    if RANK not in str(store):
        return None
    return Path(Path(store).stem.replace(RANK, "").rstrip(".-_") + suffix)


def deal_parts(comm: Comm, store: BlockStore, plan: MemoryPlan) -> list[list[int]]:
    """Return the parts of each process: those it can see, about as many nonzeros for each.

    Raises
    ------
    StoreError
        A part that no process can see.
    """
    if comm.size == 1:  # what is missing is said where it is needed
        return [list(range(len(plan.parts)))]
    here = set(store.blocks_here)
    mine = [
        number
        for number, part in enumerate(plan.parts)
        if here.issuperset(piece.block for piece in part.pieces)
    ]
    seen = [set(theirs) for theirs in comm.share(mine)]
    loads = [0] * comm.size
    dealt: list[list[int]] = [[] for _ in range(comm.size)]
    for number, part in enumerate(plan.parts):
        takers = [rank for rank in range(comm.size) if number in seen[rank]]
        if not takers:
            names = sorted({_name(store, piece.block) for piece in part.pieces})
            raise StoreError(
                f"{' and '.join(names)} of {store.folder} not found by any of the {comm.size} "
                "ranks; start one rank per shard, or copy the missing files"
            )
        rank = min(takers, key=lambda taker: (loads[taker], taker))
        loads[rank] += part.nnz + part.rows
        dealt[rank].append(number)
    return dealt


def _name(store: BlockStore, block: int) -> str:
    return block_name_of(store.manifest, block)


# ------------------------------------------------------------------------------------- the run


def folder_of(run: Path, comm: Comm) -> Path:
    """Return where this process keeps its part of a run."""
    return run if comm.size == 1 else run / f"rank-{comm.rank}-of-{comm.size}"


def runs_of_others(run: Path, comm: Comm) -> list[Path]:
    """Return the folders, that are here, of a run of another number of processes."""
    return next((folders for n, folders in runs_here(run).items() if n != comm.size), [])


def forget_others(run: Path, size: int) -> None:
    """Remove what was left by a run of another number of processes."""
    for n, folders in runs_here(run).items():
        for folder in folders if n not in (1, size) else ():
            shutil.rmtree(folder, ignore_errors=True)  # other processes do the same
        if n == 1 != size:
            with contextlib.suppress(StoreError):
                Run.remove(run)


def common_record(
    comm: Comm, folder: Path, record: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the last commit that all processes have; None where there is none.

    A process that was killed between two others that had committed already is one commit behind,
    never two: nobody commits again before all have.

    Parameters
    ----------
    comm : Comm
    folder : Path
        Of this process; its run goes back to that commit.
    record : mapping or None
        Its last commit, if it is one to go on with.
    """
    if comm.size == 1:
        return None if record is None else dict(record)
    before = None if record is None else record.get("before")
    mine = [int(one["commit"]) for one in (record, before) if one is not None]
    theirs = [set(one) for one in comm.share(mine)]
    common = set.intersection(*theirs)
    if record is None or not common:
        return None
    if record["commit"] != max(common):
        record = Run.roll_back(folder)
    # One that was killed before it noted the end does not know why another one would go on.
    is_done = not any_of(comm, not record["is_done"])[0]
    return {**record, "is_done": is_done}


def finished_model(
    comm: Comm, path: Path, record: Mapping[str, Any] | None
) -> tuple[Model | None, dict[str, Any]] | None:
    """Return what a training came to that all processes know to be finished; None where it is not.

    Some may have been killed before they noted the end, others behind it; or the model is gone.

    Parameters
    ----------
    comm : Comm
    path : Path
        Of the model, which process 0 reads and returns, and None in the others.
    record : mapping or None
        The last commit of this process.
    """
    report = None if record is None else record.get("report")
    is_there, model = report is not None, None
    if record is not None and is_there and comm.rank == 0:
        is_there = path.exists() and file_checksum(path) == record.get("model_crc32")
        model = Model.load(path) if is_there else None
    if any_of(comm, not is_there)[0]:
        return None
    assert report is not None
    return model, {**report, "model": str(path), "was_finished": True}


def one_first(comm: Comm, work: Callable[[], None]) -> None:
    """Do something in process 0 and then in the others, who may find what it has left on disk."""
    if comm.rank == 0:
        work()
    with stopped_clock():  # process 0 may compile
        comm.barrier()
    if comm.rank > 0:
        work()


class StatusFile:
    """What came of a training of several processes: ``MODEL.run/status.json``, by process 0.

    Launchers end with 0 although a process was killed, or with another number although all is
    well: this file, and the model, tell.

    Parameters
    ----------
    run : Path
    comm : Comm
    """

    def __init__(self, run: Path, comm: Comm) -> None:
        self._path, self._comm = run / STATUS, comm
        if comm.size > 1:
            make_folder(run)

    def say(self, state: str, **facts: Any) -> None:
        """Replace the file; alone, and in all processes but one, do nothing."""
        if self._comm.size > 1 and self._comm.rank == 0:
            content = {"state": state, "processes": self._comm.size, **facts}
            write_atomically(self._path, [json.dumps(content, indent=1).encode()])
