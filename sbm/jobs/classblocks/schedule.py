"""Which blocks of classes meet when, and in which process.

Weston-Watkins needs the weights of two classes at a time (`sbm.solver.pairs`), so that classes can
be divided among processes. Single classes would travel far too often; blocks of classes meet on
match days as single classes do, and all pairs of classes of two blocks are solved where these meet.
On the first day of an epoch every block is at home and by itself.

A pair of blocks meets in the same process in every epoch, so its variables never travel; weights
do. A day begins with as many blocks as possible where they are: of 2 P blocks in P processes each
keeps one and sends one. In the end all go home, and the next epoch is like the one before.

What is solved, and in which order each block takes part, depends on the blocks alone, never on the
number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sbm.solver.pairs import count_days, pairs_of

__all__ = ["Meeting", "Schedule", "deal_classes", "make_schedule"]

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
