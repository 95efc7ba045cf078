"""How a training by blocks of classes is divided: who meets whom, and in which parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sbm.alphas import Lists
from sbm.distributed.comm import Comm
from sbm.jobs.classblocks.data import SortedRows
from sbm.jobs.classblocks.plan import ClassPlan, cut_meeting, plan_classes
from sbm.jobs.classblocks.schedule import Meeting, Schedule, deal_classes, make_schedule
from sbm.jobs.machine.limits import system_limit
from sbm.jobs.training.problem import make_problems
from sbm.rows import Rows
from sbm.settings import Settings
from sbm.solver.pairs import Fixtures
from sbm.solver.problem import MultiProblem
from sbm.store.blocks import BlockStore, Chunk

__all__ = ["Division", "Field", "MeetingPart", "divide", "parts_of"]

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
