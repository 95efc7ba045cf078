"""How a training by blocks of classes is divided: who meets whom, and in which parts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sbm.alphas import Lists
from sbm.distributed.comm import Comm
from sbm.engine.machine import system_limit
from sbm.engine.problems import make_problems
from sbm.engine.progress import Progress
from sbm.programs.classblocks.plan import (
    SORTED_ROW,
    ClassPlan,
    Meeting,
    Schedule,
    cut_meeting,
    deal_classes,
    make_schedule,
    plan_classes,
)
from sbm.rows import Arena, Rows
from sbm.settings import Settings
from sbm.solver.pairs import Fixtures
from sbm.solver.problem import MultiProblem
from sbm.store.blocks import (
    NONZERO_BYTES,
    BlockStore,
    BlockWriter,
    Chunk,
    write_generation,
    write_manifest,
)  # fmt: skip
from sbm.store.files import lock, make_folder, remove

__all__ = ["Division", "Field", "MeetingPart", "SortedRows", "divide", "parts_of", "sorted_rows"]


LEVEL = 1  # of zstd


class SortedRows:
    """A store with a block for each block of classes that has rows.

    Parameters
    ----------
    store : BlockStore
    blocks : sequence of int
        Number of each block of the store among the blocks of classes.
    n_blocks : int

    Attributes
    ----------
    store : BlockStore
    chunks : list of list of Chunk
        Of each block of classes.
    """

    def __init__(self, store: BlockStore, blocks: Sequence[int], n_blocks: int) -> None:
        self.store = store
        self.chunks: list[list[Chunk]] = [[] for _ in range(n_blocks)]
        for block, chunks in zip(blocks, store.chunks, strict=True):
            self.chunks[block] = chunks


@contextlib.contextmanager
def sorted_rows(
    store: BlockStore,
    folder: Path,
    classes: Sequence[npt.NDArray[np.int32]],
    wanted: Collection[int],
    plan: ClassPlan,
    progress: Progress,
) -> Iterator[SortedRows]:
    """Read a store once, and write its rows by blocks of classes; they are gone afterwards.

    What a block looks like depends on the plan, not on what else is wanted.

    Parameters
    ----------
    store : BlockStore
    folder : Path
        Where to put them; what is there is replaced.
    classes : sequence of ndarray of int32
        Classes of each block.
    wanted : collection of int
        The blocks that are needed.
    plan : ClassPlan
    progress : Progress

    Yields
    ------
    SortedRows

    Raises
    ------
    StoreError
        Something cannot be read or written, or another process is at work there.
    """
    make_folder(folder.parent)
    with lock(folder.with_name(folder.name + ".lock"), f"the run {folder.parent}"):
        remove([folder])
        make_folder(folder)
        try:
            yield _sort(store, folder, classes, wanted, plan, progress)
        finally:
            remove([folder])


def _sort(
    store: BlockStore,
    folder: Path,
    classes: Sequence[npt.NDArray[np.int32]],
    wanted: Collection[int],
    plan: ClassPlan,
    progress: Progress,
) -> SortedRows:
    """Write the rows, an index and a manifest."""
    block_of = np.empty(sum(map(len, classes)), np.int32)
    for block, mine in enumerate(classes):
        block_of[mine] = block if block in wanted else len(classes)
    counts = np.array(store.label_counts)
    filled = [b for b in sorted(wanted) if counts[classes[b]].sum() > 0]
    progress.start("sort", store.n_rows, "rows")
    with ThreadPoolExecutor(1, "sbm-write") as pool:
        writer = BlockWriter(folder, 0, len(classes), LEVEL, pool)
        _write_rows(store, writer, block_of, plan, progress)
        blocks, index = writer.finish()
    progress.finish()
    generation = {
        **write_generation(folder, 0, np.empty(0, np.int64), index),
        "rows": sum(entry["rows"] for entry in blocks),
        "blocks": [entry["file"] for entry in blocks],
        "sources": [], "options": {}, "added": store.manifest["generations"][0]["added"],
    }  # fmt: skip
    manifest = {
        **store.manifest,
        "blocks": blocks,
        "rows": generation["rows"],
        "nnz": sum(entry["nnz"] for entry in blocks),
        "generations": [generation],
    }
    write_manifest(folder, manifest)
    return SortedRows(BlockStore(folder), filled, len(classes))


def _write_rows(
    store: BlockStore,
    writer: BlockWriter,
    block_of: npt.NDArray[np.int32],
    plan: ClassPlan,
    progress: Progress,
) -> None:
    """Deal the rows of the store to blocks, in its order, as many at a time as there is room."""
    batches = list(_batches(store, plan.batch))
    n_rows = max(sum(c.rows for c in batch) for batch in batches)
    nnz = max(sum(c.nnz for c in batch) for batch in batches)
    room = Arena.of(nnz, store.value_type).room(n_rows)
    done = 0
    for batch in batches:
        rows = store.read(batch, room, 0)
        blocks = block_of[rows.y]
        deal = [np.flatnonzero(blocks == b) for b in range(writer.n_blocks)]
        for k in range(0, max(map(len, deal)), plan.chunk_rows):
            writer.add(rows, [mine[k : k + plan.chunk_rows] for mine in deal])
        writer.wait()
        done += len(rows)
        progress.advance(done)


def _batches(store: BlockStore, room: int) -> Iterator[list[Chunk]]:
    """Yield chunks of the store that are decoded together."""
    nonzero = NONZERO_BYTES[store.value_type]
    batch: list[Chunk] = []
    taken = 0
    for chunk in (c for chunks in store.chunks for c in chunks):
        size = nonzero * chunk.nnz + SORTED_ROW * chunk.rows
        if batch and taken + size > room:
            yield batch
            batch, taken = [], 0
        batch.append(chunk)
        taken += size
    yield batch


Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Division:
    """What all processes know alike: the problem, and who meets whom.

    Attributes
    ----------
    problem : MultiProblem
    n_weights : int
        Of a class.
    classes : list of ndarray of int32
        Of each block.
    column : ndarray, shape (n_classes,), int32
        Number of each class in its block.
    rows : list of int
        Rows of each block.
    schedule : Schedule
    plan : ClassPlan
    """

    problem: MultiProblem
    n_weights: int
    classes: list[Int32s]
    column: Int32s
    rows: list[int]
    schedule: Schedule
    plan: ClassPlan

    @property
    def n_classes(self) -> int:
        """Classes of all blocks."""
        return len(self.column)

    def needed_at(self, rank: int) -> set[int]:
        """Return the blocks that ever take part in a meeting in a process."""
        return {b for _, meeting in self.schedule.meetings(rank) for b in meeting.blocks}


def divide(store: BlockStore, settings: Settings, comm: Comm) -> Division:
    """Divide the classes of a store.

    Raises
    ------
    SbmError
        The settings do not fit the store, or the memory bound is too small.
    """
    (problem,) = make_problems(settings, store)
    assert isinstance(problem, MultiProblem)
    assert settings.class_blocks is not None
    counts = store.label_counts
    classes = deal_classes(counts, settings.class_blocks)
    sizes = [len(mine) for mine in classes]
    column = np.empty(len(counts), np.int32)
    for mine in classes:
        column[mine] = np.arange(len(mine))
    rows = [sum(counts[c] for c in mine) for mine in classes]
    schedule = make_schedule(len(classes), comm.size, rows)
    n_weights = store.n_features + (problem.bias > 0)
    limit = system_limit()
    bounds = comm.gather([settings.mem_bytes, math.inf if limit is None else limit.size])
    plan = plan_classes(store, int(bounds.min()), schedule, sizes, n_weights)
    return Division(problem, n_weights, classes, column, rows, schedule, plan)


@dataclass(frozen=True)
class MeetingPart:
    """A part of a meeting: rows of its blocks that are loaded, and solved, at a time.

    Attributes
    ----------
    number : int
        Under which the run keeps its variables.
    day : int
    pair : int
        Number of the meeting among those of all processes.
    cut : int
        Number of the part among those of the meeting.
    meeting : Meeting
    chunks : list of Chunk
        Those of the first block before those of the second.
    """

    number: int
    day: int
    pair: int
    cut: int
    meeting: Meeting
    chunks: list[Chunk]

    @property
    def rows(self) -> int:
        """Rows of both blocks."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def nnz(self) -> int:
        """Nonzeros of both blocks."""
        return sum(chunk.nnz for chunk in self.chunks)


def parts_of(division: Division, rows: SortedRows, rank: int) -> list[MeetingPart]:
    """Cut the meetings in a process into parts, in their order."""
    parts: list[MeetingPart] = []
    pair = 0
    for day, meetings in enumerate(division.schedule.days):
        for meeting in meetings:
            sides = [rows.chunks[block] for block in meeting.blocks]
            if meeting.rank == rank and any(sides):
                for cut, chunks in enumerate(cut_meeting(division.plan, sides)):
                    parts.append(MeetingPart(len(parts), day, pair, cut, meeting, chunks))
            pair += 1
    return parts


@dataclass(frozen=True)
class Field:
    """The rows and classes of a meeting, by numbers of their own.

    Attributes
    ----------
    rows : Rows
        `y` counts the classes of the first block and then those of the second.
    classes : ndarray, shape (n_classes here,), int32
        Their codes.
    others : ndarray, shape (2, n_columns), int32
        Of rows of the first and of the second block: class of each column of variables.
    n_first : int
        Classes of the first block.
    fixtures : Fixtures
    """

    rows: Rows
    classes: Int32s
    others: Int32s
    n_first: int
    fixtures: Fixtures

    @classmethod
    def of(
        cls, blocks: Sequence[Int32s], places: Sequence[Int32s], rows: Rows, column: Int32s
    ) -> Field:
        """Number the classes of one block or two, at these rows of W."""
        first, second = blocks[0], blocks[-1]
        fixtures = Fixtures.between(*places) if len(blocks) == 2 else Fixtures.within(*places)
        others = np.zeros((2, max(len(first), len(second))), np.int32)
        others[0, : len(second)], others[1, : len(first)] = second, first
        code = np.zeros(len(column), np.int32)
        code[second] = (len(first) if len(blocks) == 2 else 0) + column[second]
        code[first] = column[first]
        mine = replace(rows, y=code[rows.y])
        return cls(mine, np.concatenate(blocks), others, len(first), fixtures)

    def spread(self, alpha: Lists, column: Int32s) -> Floats:
        """Return lists of variables as a table, shape (n_rows, n_columns), zeros included."""
        beta = np.zeros((len(self.rows), self.others.shape[1]))
        beta[np.repeat(np.arange(len(self.rows)), alpha.counts), column[alpha.outputs]] = (
            alpha.values
        )
        return beta

    def gather(self, beta: Floats) -> Lists:
        """Undo `spread`; the outputs are codes of classes."""
        row, column = np.nonzero(beta)
        side = (self.rows.y >= self.n_first).astype(np.intp)
        counts = np.bincount(row, minlength=len(beta))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Lists(offsets, self.others[side[row], column], beta[row, column])
