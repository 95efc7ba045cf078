"""The ranks of one training: division of work, folders of runs, and common decisions.

A single rank has all blocks and keeps its run next to the model.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.clock import stopped_clock
from sbm.distributed.comm import Comm, SerialComm
from sbm.engine.machine import usable_threads
from sbm.engine.memory import MemoryPlan
from sbm.errors import StoreError
from sbm.models.model import Model
from sbm.models.weights import WindowedWeights
from sbm.plain import dataclass
from sbm.programs.training.gathering import gathered
from sbm.programs.training.state import family_of
from sbm.settings import Settings
from sbm.solver.gap import Certificate, proven, relative
from sbm.solver.problem import AnyProblem, MultiProblem
from sbm.store.blocks import BlockStore, block_name_of
from sbm.store.files import file_checksum, make_folder, remove, write_atomically
from sbm.store.run import Run, runs_here

__all__ = [
    "MANY",
    "StatusFile",
    "WorkShare",
    "any_of",
    "common_record",
    "deal_parts",
    "finished_model",
    "folder_of",
    "forget_others",
    "one_first",
    "only",
    "refuse_others",
    "runs_of_others",
    "share_cores", "side_by_side",
    "total_report",
]  # fmt: skip

STATUS = "status.json"
_SUMMED = ("updates", "visits", "visits_cut_short", "dropped", "added")
Weights = npt.NDArray[np.float64]
# One-vs-rest of so many classes is divided into two groups, and into four or more of at most so
# many: more rows of a group are at rest than of all classes, which makes up for visiting each row
# in every group.
_PAIR, MANY = 10, 32


def any_of(comm: Comm, *flags: bool) -> list[bool]:
    """Return for each flag whether it is set in any rank; all ranks must call this together."""
    if comm.size == 1:
        return list(flags)
    return [bool(column.any()) for column in comm.gather([float(flag) for flag in flags]).T]


def side_by_side(problems: list[AnyProblem]) -> list[AnyProblem]:
    """Divide one-vs-rest into groups of classes that several threads solve."""
    one = problems[0]
    if not isinstance(one, MultiProblem) or one.loss.joint:
        return problems
    n = one.n_outputs
    return list(one.groups(max(4, -(-n // MANY)) if n >= MANY else 1 + (n >= _PAIR)))


@dataclass
class WorkShare:
    """The share of a rank in a training: some blocks, or some classes of one-vs-rest.

    Attributes
    ----------
    comm : Comm
        Connects all ranks.
    every : list of Problem, MultiProblem or OneClass
        All problems of the training.
    is_by_class : bool
        Whether each rank trains separate classes on all rows. Then no weights are added up.
    by_block : bool
        Whether the ranks have different blocks.
    """

    comm: Comm
    every: list[AnyProblem]
    is_by_class: bool
    by_block: bool = False

    @classmethod
    def of(cls, comm: Comm, every: list[AnyProblem], store: BlockStore) -> WorkShare:
        """Divide problems by class if enough are independent and all ranks have all rows."""
        if comm.size == 1:
            return cls(comm, side_by_side(every), False)
        one, classes = every[0], every
        if isinstance(one, MultiProblem) and not one.loss.joint:
            n = len(one.costs)
            classes = list(replace(one, first=0, n_outputs=n).groups(min(n, comm.size)))
        by_block = any_of(comm, len(store.blocks_here) < store.n_blocks)[0]
        if by_block or len(classes) < comm.size:
            return cls(comm, every, False, by_block)
        return cls(comm, classes, True)

    @property
    def adding(self) -> Comm:
        """Connects the ranks whose weights are added up."""
        return SerialComm() if self.is_by_class else self.comm

    @property
    def problems(self) -> list[AnyProblem]:
        """The problems of this rank."""
        return self.every[self.comm.rank :: self.comm.size] if self.is_by_class else self.every

    def collected_bytes(self, n_weights: int) -> int:
        """Return the bytes of the weights that rank 0 collects from all ranks."""
        others = sum(problem.n_outputs for problem in self.every)
        return 8 * n_weights * others if self.is_by_class and self.comm.rank == 0 else 0

    @contextlib.contextmanager
    def collected(
        self, weights: list[Weights] | WindowedWeights
    ) -> Iterator[list[Weights] | WindowedWeights]:
        """Yield the weights of all problems in rank 0, and an empty list in the others.

        Parameters
        ----------
        weights : list of ndarray, shape (n_weights, n_outputs), float64
            One array for each problem of this rank; or the weights of its classes.
        """
        if isinstance(weights, WindowedWeights):
            with gathered(self.comm, weights) as found:
                yield [] if found is None else found
        else:
            yield self._collect(weights)

    def _collect(self, weights: list[Weights]) -> list[Weights]:
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
        """Return the report of the whole training, given the report of each rank."""
        report |= {"processes": self.comm.size, "bytes_sent": self.comm.sent}
        if not self.is_by_class:
            return report
        figures = {name: report[name] for name in (*_SUMMED, "passes") if name in report}
        theirs = self.comm.share(proven(report) | figures)
        return report | _total(theirs)


def only(problems: Sequence[AnyProblem], classes: slice) -> list[AnyProblem]:
    """Return the one-vs-rest problems of some classes."""
    one = problems[0]
    if not isinstance(one, MultiProblem):
        return list(problems[classes])
    return [replace(one, first=classes.start, n_outputs=classes.stop - classes.start)]


def _total(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of a training, given those for some classes each."""
    whole = Certificate.total([Certificate(**proven(one)) for one in reports])
    summed = {name: sum(one[name] for one in reports) for name in _SUMMED if name in reports[0]}
    return {**whole.to_dict(), **summed, "passes": max(one["passes"] for one in reports)}


def total_report(reports: Sequence[dict[str, Any]], tol: float) -> dict[str, Any]:
    """Return the report of a training, given those of its turns."""
    longest = max(reports, key=lambda one: one["passes"])
    left = [one["passes_left"] for one in reports if one["passes_left"] is not None]
    total = {**longest, **_total(reports)}
    return total | {
        "converged": without_pruning(total)["relative_gap"] <= tol,
        "seconds": {k: sum(one["seconds"][k] for one in reports) for k in longest["seconds"]},
        "bytes_read": sum(one["bytes_read"] for one in reports),
        "passes_left": max(left, default=None),
        "is_falling": all(one["is_falling"] for one in reports),
        "was_finished": False,
    }


def without_pruning(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the certificate of a report as it was before small weights were dropped."""
    primal, gap = (report[name] - report.get("added", 0.0) for name in ("primal", "gap"))
    changed = {"primal": primal, "gap": gap, "relative_gap": relative(gap, primal, report["dual"])}
    return proven({**report, **changed})


def share_cores(settings: Settings, comm: Comm) -> Settings:
    """Divide the cores of a machine among its ranks, unless `threads` is set."""
    if comm.size == 1 or settings.threads is not None:
        return settings
    neighbours = Counter(comm.share(platform.node()))[platform.node()]
    return replace(settings, threads=max(1, usable_threads(None) // neighbours))


def refuse_others(comm: Comm, store: BlockStore, itself: Mapping[str, Any]) -> None:
    """Check that all ranks have the same data and settings.

    Raises
    ------
    StoreError
        They differ.
    """
    chosen = {name: value for name, value in itself["settings"].items() if name != "threads"}
    mine = [itself["data"], chosen, itself["weights"]]
    for rank, theirs in enumerate(comm.share(mine)):
        if theirs[0] != mine[0]:
            raise StoreError(
                f"{store.name} of rank {comm.rank} and the store of rank {rank} differ; "
                "give all ranks the same store, or shards of one store"
            )
        if theirs != json.loads(json.dumps(mine)):
            raise StoreError(
                f"ranks {comm.rank} and {rank} have different settings or row weights; start all "
                "ranks with the same command and files"
            )


def deal_parts(comm: Comm, store: BlockStore, plan: MemoryPlan) -> list[list[int]]:
    """Divide the parts among the ranks that have their files, with balanced sizes.

    Returns
    -------
    list of list of int
        The parts of each rank.

    Raises
    ------
    StoreError
        No rank has the files of a part.
    """
    if comm.size == 1:  # missing files are reported when they are read
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
    """Return the folder for this rank's part of a run."""
    return run if comm.size == 1 else run / f"rank-{comm.rank}-of-{comm.size}"


def runs_of_others(run: Path, comm: Comm) -> list[Path]:
    """Return the existing folders of a run with another number of ranks."""
    return next((folders for n, folders in runs_here(run).items() if n != comm.size), [])


def forget_others(run: Path, size: int) -> None:
    """Remove the files of a run with another number of ranks."""
    for n, folders in runs_here(run).items():
        for folder in folders if n not in (1, size) else ():
            remove([folder])  # other ranks do the same
        if n == 1 != size:
            with contextlib.suppress(StoreError):
                Run.remove(run)


def common_record(
    comm: Comm, folder: Path, record: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the last checkpoint that all ranks have; None if there is none.

    If a rank was killed while the others wrote a checkpoint, it is one checkpoint behind. It is
    never two behind, because no rank writes another one before all have written the last.

    Parameters
    ----------
    comm : Comm
    folder : Path
        Folder of this rank; its run is rolled back to that checkpoint.
    record : mapping or None
        The last checkpoint of this rank, if it can be resumed.
    """
    if comm.size == 1:
        return None if record is None else dict(record)
    before = None if record is None else record.get("before")
    # A rank that was killed before it switched to another solver has none of these checkpoints.
    mine = [(int(one["commit"]), family_of(one)) for one in (record, before) if one is not None]
    theirs = [set(map(tuple, one)) for one in comm.share(mine)]
    common = set.intersection(*theirs)
    if record is None or not common:
        return None
    if record["commit"] != max(common)[0]:
        record = Run.roll_back(folder)
    # A rank that was killed before it recorded the end must not disagree with the others.
    is_done = not any_of(comm, not record["is_done"])[0]
    return {**record, "is_done": is_done}


def finished_model(
    comm: Comm, path: Path, record: Mapping[str, Any] | None
) -> tuple[Model | None, dict[str, Any]] | None:
    """Return model and report of a training that is finished in all ranks; otherwise None.

    It is not finished if a rank was killed before it recorded the end, or if the model file is
    missing or changed.

    Parameters
    ----------
    comm : Comm
    path : Path
        Path of the model. Rank 0 reads and returns it; the others return None for the model.
    record : mapping or None
        The last checkpoint of this rank.
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
    """Call `work` in rank 0 first, then in the others, which can reuse its files."""
    if comm.rank == 0:
        work()
    with stopped_clock():  # rank 0 may compile
        comm.barrier()
    if comm.rank > 0:
        work()


class StatusFile:
    """The status of a training with several ranks: ``MODEL.run/status.json``, written by rank 0.

    Exit codes of launchers are not reliable: they may be 0 although a rank was killed, or nonzero
    after success. Use this file and the model instead.

    Parameters
    ----------
    run : Path
        Folder of the run.
    comm : Comm
    """

    def __init__(self, run: Path, comm: Comm) -> None:
        self._path, self._comm = run / STATUS, comm
        if comm.size > 1:
            make_folder(run)

    def say(self, state: str, **facts: Any) -> None:
        """Write the file in rank 0; do nothing in other ranks or with a single rank."""
        if self._comm.size > 1 and self._comm.rank == 0:
            content = {"state": state, "processes": self._comm.size, **facts}
            write_atomically(self._path, [json.dumps(content, indent=1).encode()])
