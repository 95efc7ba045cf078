"""The memory plan of a training by blocks of classes.

One half of what the bound leaves is for weights, the other half for rows: so the parts in which
two blocks are solved, and with them the model, do not depend on how many blocks of weights a
process holds, which is less the more processes there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sbm.engine.memory import BUFFER_ROW, INTERPRETER, OVERHEAD, Shape, row_bytes
from sbm.errors import MemoryPlanError
from sbm.settings import format_size
from sbm.solver.pairs import count_days, pairs_of
from sbm.store.blocks import CHUNK_NNZ, NONZERO_BYTES, BlockStore, Chunk

__all__ = [
    "ClassPlan", "Meeting", "Schedule", "cut_meeting", "deal_classes", "make_schedule",
    "plan_classes",
]  # fmt: skip


NOWHERE = -1


@dataclass(frozen=True)
class Meeting:
    """Two blocks of classes, or twice the same, in one process."""

    first: int
    second: int
    rank: int

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that are needed for it."""
        return (self.first,) if self.first == self.second else (self.first, self.second)


@dataclass(frozen=True)
class Schedule:
    """An epoch.

    Attributes
    ----------
    days : list of list of Meeting
        No block takes part in two meetings of a day.
    ranks : list of list of int
        Process of each block on each day; those of the first day are its homes.
    """

    days: list[list[Meeting]]
    ranks: list[list[int]]

    @property
    def home(self) -> list[int]:
        """Process of each block at the beginning and at the end."""
        return self.ranks[0]

    def moves(self, number: int) -> list[tuple[int, int, int]]:
        """Return block, source and target of the moves due before a day.

        Before the one behind the last all go home.
        """
        if number == 0:
            return []
        after = self.home if number == len(self.days) else self.ranks[number]
        ends = enumerate(zip(self.ranks[number - 1], after, strict=True))
        return [(block, source, target) for block, (source, target) in ends if source != target]

    def moves_of(
        self, number: int, rank: int
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return blocks that leave a process before a day, and where to; that come, and whence.

        The order is that of the blocks, for all processes.
        """
        due = self.moves(number)
        return (
            [(block, target) for block, source, target in due if source == rank],
            [(block, source) for block, source, target in due if target == rank],
        )

    def meetings(self, rank: int) -> list[tuple[int, Meeting]]:
        """Return the meetings in a process, each with the number of its day."""
        found = enumerate(self.days)
        return [(k, meeting) for k, some in found for meeting in some if meeting.rank == rank]

    def most_blocks(self, rank: int) -> int:
        """Return how many blocks a process holds at a time, those that come and go included."""
        coming = [len(self.moves_of(k + 1, rank)[1]) for k in range(len(self.ranks))]
        return max(places.count(rank) + n for places, n in zip(self.ranks, coming, strict=True))

    def most_moves(self, rank: int) -> int:
        """Return how many blocks a process sends and receives at a time, at most."""
        return max(sum(map(len, self.moves_of(k + 1, rank))) for k in range(len(self.ranks)))


def make_schedule(n_blocks: int, n_ranks: int, work: Sequence[int] | None = None) -> Schedule:
    """Divide the meetings of an epoch among processes.

    On every day the meetings are divided by their number, as evenly as that goes; which process
    gets which depends on where the blocks are, and then on how much each had to do so far.

    Parameters
    ----------
    n_blocks, n_ranks : int
        Processes that there is no work for hold nothing.
    work : sequence of int, optional
        What each block adds to a meeting: as blocks have equally many classes, its rows or
        nonzeros. Default: equal shares.

    Returns
    -------
    Schedule
    """
    work = work or [1] * n_blocks
    loads = [0] * n_ranks
    at = [NOWHERE] * n_blocks
    days, ranks = [], []
    for day in range(count_days(n_blocks) if n_blocks > 1 else 0):
        pairs = [(int(a), int(b)) for a, b in pairs_of(n_blocks, day)]
        chosen = _choose_ranks(pairs, at, loads, [work[a] + work[b] for a, b in pairs])
        for (a, b), rank in zip(pairs, chosen, strict=True):
            at[a] = at[b] = rank
            loads[rank] += work[a] + work[b]
        days.append([Meeting(a, b, r) for (a, b), r in zip(pairs, chosen, strict=True)])
        ranks.append(list(at))
    # Who has no partner on the first of these days, of an odd number, is where it plays next.
    first = ranks[0] if ranks else [0] * n_blocks
    home = [ranks[1][b] if rank == NOWHERE else rank for b, rank in enumerate(first)]
    ranks[:1] = [home]
    days.insert(0, [Meeting(b, b, rank) for b, rank in enumerate(home)])
    return Schedule(days, [home, *ranks] if n_blocks > 1 else [home])


def _choose_ranks(
    pairs: Sequence[tuple[int, int]], at: Sequence[int], loads: Sequence[int], work: Sequence[int]
) -> list[int]:
    """Return the process of each pair of blocks of a day.

    Pairs whose blocks are together stay. Of the others, those with the fewest processes left that
    hold one of their blocks come first: where each process holds one block of two pairs, the pairs
    are cycles, and after the first one of a cycle all the others have one left to choose.
    """
    loads = list(loads)
    room = [-(-len(pairs) // len(loads))] * len(loads)
    chosen = [NOWHERE] * len(pairs)
    waiting = set(range(len(pairs)))

    def open_ranks(k: int) -> list[int]:
        return sorted({at[b] for b in pairs[k] if at[b] != NOWHERE and room[at[b]] > 0})

    def urgency(k: int) -> tuple[bool, int, int, int]:
        a, b = pairs[k]
        left = len(open_ranks(k))
        return at[a] != at[b] or left == 0, left or 3, -work[k], k

    while waiting:
        k = min(waiting, key=urgency)
        options = open_ranks(k) or [rank for rank in range(len(loads)) if room[rank] > 0]
        rank = min(options, key=lambda rank: (loads[rank], rank))
        waiting.remove(k)
        chosen[k] = rank
        room[rank] -= 1
        loads[rank] += work[k]
    return chosen


def deal_classes(rows: Sequence[int], n_blocks: int) -> list[npt.NDArray[np.int32]]:
    """Deal classes to blocks of equally many classes, and about equally many rows.

    The class with the most rows first, each to the block that has the fewest rows so far and room
    for another class.

    Parameters
    ----------
    rows : sequence of int
        Of each class.
    n_blocks : int
        Some blocks are empty where there are fewer classes.

    Returns
    -------
    list of ndarray of int32
        Classes of each block, in ascending order.
    """
    n = len(rows)
    room = [(n + k) // n_blocks for k in range(n_blocks)][::-1]
    totals = [0] * n_blocks
    dealt: list[list[int]] = [[] for _ in range(n_blocks)]
    for c in sorted(range(n), key=lambda c: (-rows[c], c)):
        open_blocks = [b for b in range(n_blocks) if len(dealt[b]) < room[b]]
        block = min(open_blocks, key=lambda b: (totals[b], b))
        dealt[block].append(c)
        totals[block] += rows[c]
    return [np.array(sorted(classes), np.int32) for classes in dealt]


# Order of the rows by class; all variables, and their places as they turn into lists again.
_PAIR_ROW = 64
_PAIR_VARIABLE = 8 + 16 + 12

# Encoding of rows that are sorted, and encoded variables on their way to the disk.
ENCODING, UNWRITTEN_BYTES = 16_000_000, 4_000_000
# While a chunk is decoded: its bytes and symbols, a nonzero.
DECODE_NONZERO = 12
# Sorting the rows of a batch: start, length, class; block, order.
SORTED_ROW = BUFFER_ROW + 4 + 8 + 8
# A chunk of sorted rows takes at most this share of what there is for rows.
CHUNK_SHARE = 16


@dataclass(frozen=True)
class ClassPlan:
    """How the bytes are spent.

    Attributes
    ----------
    room : int
        Bytes for rows at work, or rows being sorted.
    chunk_rows : int
        Most rows of a chunk of sorted rows.
    row, nonzero : int
        Bytes of a row at work, its variables included, and of a nonzero: of two buffers for both.
    items : dict of str to int
        Bytes by purpose.
    """

    room: int
    chunk_rows: int
    row: int
    nonzero: int
    items: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.items.values())

    @property
    def batch(self) -> int:
        """Bytes of rows that are sorted at a time."""
        return self.room - ENCODING

    def bytes_of(self, chunks: Sequence[Chunk]) -> int:
        """Bytes of rows at work."""
        return sum(self.nonzero * chunk.nnz + self.row * chunk.rows for chunk in chunks)

    def describe(self) -> str:
        """The items in words."""
        return ", ".join(f"{name} {format_size(size)}" for name, size in self.items.items())


def plan_classes(
    store: BlockStore, mem: int, schedule: Schedule, sizes: Sequence[int], n_weights: int
) -> ClassPlan:
    """Turn a memory bound into room for rows, the same for any number of processes.

    Parameters
    ----------
    store : BlockStore
    mem : int
        Bytes of each process.
    schedule : Schedule
    sizes : sequence of int
        Classes of each block.
    n_weights : int
        Weights of a class.

    Returns
    -------
    ClassPlan

    Raises
    ------
    MemoryPlanError
        The bound is too small; says what would do.
    """
    nonzero, size, n_classes = NONZERO_BYTES[store.value_type], max(sizes), sum(sizes)
    n_ranks = 1 + max(schedule.home)
    block = 8 * n_weights * size
    # Beside the weights those of the variables, to certify; and what is sent as places and values.
    tables = [2 * block * schedule.most_blocks(rank) for rank in range(n_ranks)]
    sent = [block * schedule.most_moves(rank) // 2 for rank in range(n_ranks)]
    weights = max(map(sum, zip(tables, sent, strict=True)))
    model = 8 * n_weights * n_classes + max(8 * n_weights * n_classes, tables[0] // 2)
    largest = max(store.chunks, key=lambda chunks: max(c.nnz for c in chunks))
    chunk = max(largest, key=lambda c: c.nnz)
    chunk_nnz = max(chunk.nnz, min(CHUNK_NNZ, store.nnz))
    fixed = {
        "interpreter": INTERPRETER,
        "decoding": chunk_nnz * (DECODE_NONZERO + nonzero),
        # A mark a row: whether it has variables that are not 0.
        "overhead": OVERHEAD + UNWRITTEN_BYTES + store.n_rows + 16 * store.n_rows // len(sizes),
    }
    shape = Shape(n_weights, [size], listed=True)
    row = 2 * BUFFER_ROW + sum(row_bytes(shape, size)) + _PAIR_ROW + size * _PAIR_VARIABLE
    rows_of_chunk = max(c.rows for chunks in store.chunks for c in chunks)
    least = max(
        CHUNK_SHARE * row,
        4 * nonzero * chunk_nnz * CHUNK_SHARE // (CHUNK_SHARE - 2),
        ENCODING + nonzero * chunk_nnz + SORTED_ROW * rows_of_chunk,
    )
    spent = sum(fixed.values())
    halves = 2 * max(weights, least)
    model += 8 * n_weights  # ids
    if spent + max(halves, model) > mem:
        last = {"weights": weights, "as much for rows": halves - weights}
        if model > halves:
            last = {"the model": model}
        needed = ", ".join(f"{k} {format_size(v)}" for k, v in (fixed | last).items())
        advice = ", or more processes" if weights > least and halves >= model else ""
        raise MemoryPlanError(
            f"--mem {format_size(mem)} is too little to train on {store.folder} with "
            f"{len(sizes)} blocks of classes, which needs {needed}; the least that works is "
            f"--mem {-(-(spent + max(halves, model)) // 1_000_000)}MB{advice}",
            spent + max(halves, model),
        )
    room = (mem - spent) // 2
    items = fixed | {"weights": weights, "rows": room}
    return ClassPlan(room, max(1, room // (CHUNK_SHARE * row)), row, 2 * nonzero, items)


def cut_meeting(plan: ClassPlan, sides: Sequence[Sequence[Chunk]]) -> list[list[Chunk]]:
    """Cut the rows of the blocks of a meeting into as few parts as fit the plan.

    Every part has its share of each block, so that pairs of classes meet in all of them.

    Parameters
    ----------
    plan : ClassPlan
    sides : sequence of sequence of Chunk
        Chunks of each of the blocks.

    Returns
    -------
    list[list[Chunk]]
        Of each part, those of the first block before those of the second.
    """
    most = max(map(len, sides))
    least = sum(map(plan.bytes_of, sides)) // plan.room
    for cuts in range(max(1, min(least, most)), most + 1):
        found = [[c for side in sides for c in side[k::cuts]] for k in range(cuts)]
        if cuts == most or max(map(plan.bytes_of, found)) <= plan.room:
            return found
    return []
