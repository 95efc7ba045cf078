"""The dual variables of a working set: one a row, or lists in one pool.

Both kinds have the same methods, named after what happens to a row: its variables are appended
when a block is merged and spilled when it leaves, home to its block or elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists
from sbm.compiled import load

__all__ = ["FEW", "MANY", "DenseSet", "ListPool"]

FEW = 16  # of kernels/multiclass.py
MANY = 32  # classes above which it pays to choose a few of them

Int32s: TypeAlias = npt.NDArray[np.int32]
Bools: TypeAlias = npt.NDArray[np.bool_]


class DenseSet:
    """One variable a row.

    Parameters
    ----------
    capacity : int
        Rows.

    Attributes
    ----------
    values : ndarray, shape (capacity,), float64
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cache_limit = capacity
        self.values = np.empty(capacity)

    def append(self, first: int, rows: Int32s, alpha: Alphas) -> None:
        """Take over the variables of rows of a block, for working rows from `first` on."""
        assert isinstance(alpha, Dense)
        np.take(alpha.values, rows, out=self.values[first : first + len(rows)], mode="clip")

    def admit(self, block: int, alpha: Alphas) -> None:
        """Get to know the variables of a block that come from elsewhere."""

    def sizes(self, n: int) -> npt.NDArray[np.int64] | None:
        """Room that variables take beside their row's: none."""
        return None

    def count_zero(self, n: int) -> int:
        """Return how many of the first `n` rows have no variable but 0."""
        return n - int(np.count_nonzero(self.values[:n]))

    def take(self, rows: npt.NDArray[np.int64]) -> Dense:
        """Return a copy of the variables of some working rows."""
        return Dense(self.values[rows])

    def spill(
        self, keep: Bools, home: Int32s, row: Int32s, block: int, alpha: Alphas
    ) -> tuple[Int32s, Int32s, Alphas]:
        """Keep the variables of the chosen rows, and hand back those of the others.

        Parameters
        ----------
        keep, home, row : ndarray, shape (n,), bool, int32, int32
            Chosen rows; block of each row and its number there.
        block : int
            The block at work.
        alpha : Alphas, changed in place
            Of that block.

        Returns
        -------
        home, row, alpha
            Of rows of other blocks that leave with a variable that is not 0.
        """
        assert isinstance(alpha, Dense)
        leaving = len(keep) - int(np.count_nonzero(keep))
        evicted = np.empty(leaving, np.int32), np.empty(leaving, np.int32), np.empty(leaving)
        n = load("sbm.solver.kernels.working_set").spill(
            keep, home, row, block, self.values[: len(keep)], alpha.values, *evicted
        )
        return evicted[0][:n], evicted[1][:n], Dense(evicted[2][:n])

    def fill(self, alpha: Alphas) -> None:
        """Let the first rows have these variables."""
        assert isinstance(alpha, Dense)
        self.values[: len(alpha)] = alpha.values

    def state(self, n: int) -> dict[str, npt.NDArray[np.generic]]:
        """Variables of the first `n` rows as arrays to keep."""
        return {"alpha": self.values[:n]}

    def restore(self, state: Mapping[str, npt.NDArray[Any]], n: int) -> None:
        """Undo `state`, of `n` rows."""
        self.values[:n] = state["alpha"]


class ListPool:
    """A list of (output, variable) a row, all in one pair of arrays of bounded size.

    Parameters
    ----------
    block_rows, cache_rows : int
        Rows of the largest block, and of the cache.
    row_variables : int
        Variables that there is room for, a row, on average.
    n_homes : int
        Number of blocks.
    n_outputs : int

    Attributes
    ----------
    begin, count : ndarray, shape (capacity,), int64, int32
        List of each row: ``outputs[begin[i] : begin[i] + count[i]]``.
    outputs, betas : ndarray, shape (room,), int32, float64
    used : ndarray, shape (1,), int64
        How much of the pool is taken.
    held : ndarray, shape (n_homes,), int64
        Variables of each block, in memory or on disk.
    held_limit : int
        Most variables of a block.
    cache_limit : int
        Most room of the pool that the lists of cached rows may take.
    few, n_few : ndarray, shape (capacity, FEW + 1), (capacity,), int32
        Scratch of the kernel, for the classes that matter to a row; of no rows if there are few.
    """

    def __init__(
        self, block_rows: int, cache_rows: int, row_variables: int, n_homes: int, n_outputs: int = 0
    ) -> None:
        self._kernels = load("sbm.solver.kernels.lists")
        self.capacity = block_rows + cache_rows
        self.held_limit = block_rows * row_variables
        self.cache_limit = cache_rows * (row_variables + 1)
        # A list that grows lies in two places for a moment: with room for one more, the last one
        # can grow too.
        room = self.capacity * (row_variables + 1) + row_variables + 2
        self.begin = np.empty(self.capacity, np.int64)
        self.count = np.empty(self.capacity, np.int32)
        self.outputs = np.empty(room, np.int32)
        self.betas = np.empty(room)
        self.used = np.zeros(1, np.int64)
        self.held = np.zeros(n_homes, np.int64)
        picked = self.capacity if n_outputs > MANY else 0
        self.few = np.empty((picked, FEW + 1), np.int32)
        self.n_few = np.empty(picked, np.int32)

    def append(self, first: int, rows: Int32s, alpha: Alphas) -> None:
        """Take over the lists of rows of a block; see `DenseSet.append`."""
        assert isinstance(alpha, Lists)
        appended = self._kernels.append(
            first, rows, alpha.offsets, alpha.outputs, alpha.values, self.begin, self.count,
            self.outputs, self.betas, self.used,
        )  # fmt: skip
        assert appended == len(rows), "the limits leave room for every block"

    def admit(self, block: int, alpha: Alphas) -> None:
        """Count the lists of a block that come from elsewhere.

        Where they have more variables than a block may have, the smallest become 0, in place: of
        losses with lists that is always allowed.
        """
        assert isinstance(alpha, Lists)
        own = slice(alpha.offsets[0], alpha.offsets[-1])
        outputs, values = alpha.outputs[own], alpha.values[own]
        if len(values) > self.held_limit:
            kept = np.zeros(len(values), np.bool_)
            kept[np.argsort(-values, kind="stable")[: self.held_limit]] = True
            of_row = np.repeat(np.arange(len(alpha)), alpha.counts)[kept]
            counts = np.bincount(of_row, minlength=len(alpha))
            alpha.set(np.concatenate([[0], np.cumsum(counts)]), outputs[kept], values[kept])
        self.held[block] = int(alpha.offsets[-1] - alpha.offsets[0])

    def sizes(self, n: int) -> npt.NDArray[np.int64] | None:
        """Room that the list of each of the first `n` rows takes."""
        return self.count[:n].astype(np.int64) + 1

    def count_zero(self, n: int) -> int:
        """Return how many of the first `n` rows have no variable but 0."""
        return n - int(np.count_nonzero(self.count[:n]))

    def take(self, rows: npt.NDArray[np.int64]) -> Lists:
        """Return a copy of the lists of some working rows."""
        begins, counts = self.begin[rows], self.count[rows].astype(np.int64)
        lists = _room_for(counts)
        self._kernels.copy_lists(
            begins, counts, self.outputs, self.betas, lists.offsets, lists.outputs, lists.values
        )
        return lists

    def spill(
        self, keep: Bools, home: Int32s, row: Int32s, block: int, alpha: Alphas
    ) -> tuple[Int32s, Int32s, Alphas]:
        """Keep the lists of the chosen rows, and hand back the others; see `DenseSet.spill`."""
        assert isinstance(alpha, Lists)
        is_mine = home == block
        self._go_home(np.flatnonzero(is_mine), keep, row, alpha)
        elsewhere = np.flatnonzero(~is_mine & ~keep & (self.count[: len(keep)] > 0))
        evicted = self.take(elsewhere)
        self._close_ranks(np.flatnonzero(keep))
        return home[elsewhere], row[elsewhere], evicted

    def _go_home(self, mine: npt.NDArray[np.int64], keep: Bools, row: Int32s, alpha: Lists) -> None:
        """Put the lists of working rows into those of their block, where cached rows have none."""
        theirs, places = alpha.counts, row[mine]
        theirs[places] = 0
        ours = np.where(keep[mine], 0, self.count[mine]).astype(np.int64)
        counts = theirs.copy()
        counts[places] = ours
        lists = _room_for(counts)
        self._kernels.copy_lists(
            alpha.offsets[:-1], theirs, alpha.outputs, alpha.values,
            lists.offsets, lists.outputs, lists.values,
        )  # fmt: skip
        self._kernels.copy_lists(
            self.begin[mine], ours, self.outputs, self.betas,
            lists.offsets[places], lists.outputs, lists.values,
        )  # fmt: skip
        alpha.set(lists.offsets, lists.outputs, lists.values)

    def _close_ranks(self, kept: npt.NDArray[np.int64]) -> None:
        """Move the lists of the kept rows to the front of the pool, in their order."""
        self.fill(self.take(kept))

    def fill(self, alpha: Alphas) -> None:
        """Let the pool hold these lists, of the first rows, and nothing else."""
        assert isinstance(alpha, Lists)
        lists, n = alpha, len(alpha)
        self.begin[:n] = lists.offsets[:-1] + np.arange(1, n + 1)  # in front of each, its head
        self.count[:n] = lists.counts
        heads = self.begin[:n] - 1
        self.outputs[heads], self.betas[heads] = np.arange(n), self.count[:n]
        self._kernels.copy_lists(
            lists.offsets[:-1], lists.counts, lists.outputs, lists.values,
            self.begin[:n], self.outputs, self.betas,
        )  # fmt: skip
        self.used[0] = n + len(lists.outputs)

    def state(self, n: int) -> dict[str, npt.NDArray[np.generic]]:
        """Lists of the first `n` rows as arrays to keep."""
        lists = self.take(np.arange(n))
        return {
            "alpha_offsets": lists.offsets, "alpha_outputs": lists.outputs, "alpha": lists.values,
            "held": self.held,
        }  # fmt: skip

    def restore(self, state: Mapping[str, npt.NDArray[Any]], n: int) -> None:
        """Undo `state`, of `n` rows.

        Raises
        ------
        ValueError
            The lists are not of so many rows, or there is no room for them.
        """
        offsets, outputs = state["alpha_offsets"], state["alpha_outputs"]
        sound = len(offsets) == n + 1 and offsets[0] == 0 and offsets[-1] == len(outputs)
        if not sound or (np.diff(offsets) < 0).any() or n + len(outputs) > len(self.outputs):
            raise ValueError("lists of variables that do not fit")
        self.fill(Lists(offsets, outputs, state["alpha"]))
        self.held[:] = state["held"]


def _room_for(counts: npt.NDArray[np.int64]) -> Lists:
    """Return lists of the given lengths, nothing filled in."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return Lists(offsets, np.empty(offsets[-1], np.int32), np.empty(offsets[-1]))
