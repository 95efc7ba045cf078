"""The dual variables of a working set: one per row, or lists in one pool.

Both kinds have the same methods. The variables of a row are appended when its block is merged, and
spilled when the row leaves the working set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists, join
from sbm.compiled.calls import load
from sbm.solver.block import Block

__all__ = ["FEW", "MANY", "DenseSet", "ListPool", "admit_block"]

FEW = 16  # as in kernels/multiclass.py
MANY = 32  # number of classes above which visiting only a few of them pays off

Int32s: TypeAlias = npt.NDArray[np.int32]
Bools: TypeAlias = npt.NDArray[np.bool_]


class DenseSet:
    """One variable per row.

    Parameters
    ----------
    capacity : int
        Largest number of rows.

    Attributes
    ----------
    values : ndarray, shape (capacity,), float64
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cache_limit = capacity
        self.values = np.empty(capacity)
        self._copy: npt.NDArray[np.float64] | None = None

    def append(self, first: int, rows: Int32s, alpha: Alphas) -> None:
        """Copy the variables of rows of a block to working rows starting at `first`."""
        assert isinstance(alpha, Dense)
        np.take(alpha.values, rows, out=self.values[first : first + len(rows)], mode="clip")

    def admit(self, part: int, alpha: Alphas) -> None:
        """Register the variables of a part that come from a file or another process."""

    def sizes(self, n: int) -> npt.NDArray[np.int64] | None:
        """Return the room of each row's variables in the pool; None as there is no pool."""
        return None

    def count_zero(self, n: int) -> int:
        """Return how many of the first `n` rows have only zero variables."""
        return n - int(np.count_nonzero(self.values[:n]))

    def take(self, rows: npt.NDArray[np.int64]) -> Dense:
        """Return a copy of the variables of some working rows."""
        return Dense(self.values[rows])

    def copy(self, n: int) -> Dense:
        """Return a copy of the variables of the first `n` rows, which the next call overwrites."""
        if self._copy is None:
            self._copy = np.empty(self.capacity)
        np.copyto(self._copy[:n], self.values[:n])
        return Dense(self._copy[:n])

    def fits(self, home: Int32s, alpha: Alphas) -> bool:
        """Return whether `replace` can be called with these variables."""
        return True

    def replace(self, home: Int32s, alpha: Alphas) -> None:
        """Replace the variables of all working rows, which are of the given parts."""
        self.fill(alpha)

    def spill(
        self, keep: Bools, home: Int32s, row: Int32s, block: Block, alpha: Alphas
    ) -> tuple[Int32s, Int32s, Alphas]:
        """Keep the variables of the chosen rows and return those of the others.

        Parameters
        ----------
        keep, home, row : ndarray, shape (n,), bool, int32, int32
            Rows to keep; part of each row and its position there.
        block : Block
            The current block.
        alpha : Alphas, changed in place
            Variables of the current block.

        Returns
        -------
        home, row, alpha
            Rows of other blocks that leave with a nonzero variable.
        """
        assert isinstance(alpha, Dense)
        leaving = len(keep) - int(np.count_nonzero(keep))
        evicted = np.empty(leaving, np.int32), np.empty(leaving, np.int32), np.empty(leaving)
        n = load("sbm.solver.kernels.working_set").spill(
            keep, home, row, block.at, self.values[: len(keep)], alpha.values, *evicted
        )
        return evicted[0][:n], evicted[1][:n], Dense(evicted[2][:n])

    def fill(self, alpha: Alphas) -> None:
        """Set the variables of the first rows."""
        assert isinstance(alpha, Dense)
        self.values[: len(alpha)] = alpha.values

    def state(self, n: int) -> dict[str, npt.NDArray[np.generic]]:
        """Return the variables of the first `n` rows as arrays to store."""
        return {"alpha": self.values[:n]}

    def restore(self, state: Mapping[str, npt.NDArray[Any]], n: int) -> None:
        """Restore the result of `state` for `n` rows."""
        self.values[:n] = state["alpha"]


class ListPool:
    """A list of (output, variable) per row, all in one pair of arrays of bounded size.

    Parameters
    ----------
    block_rows, cache_rows : int
        Rows of the largest block, and of the cache.
    row_variables : int
        Average number of variables per row that fit.
    part_rows : sequence of int
        Rows of each part of the data.
    n_outputs : int

    Attributes
    ----------
    begin, count : ndarray, shape (capacity,), int64, int32
        List of each row: ``outputs[begin[i] : begin[i] + count[i]]``.
    outputs, betas : ndarray, shape (room,), int32, float64
    used : ndarray, shape (1,), int64
        Used entries of the pool.
    held : ndarray, shape (n_parts,), int64
        Number of variables of each part, in memory and on disk, plus how many fewer it may have
        than the largest part.
    held_limit : int
        Maximum of `held`.
    cache_limit : int
        Maximum number of pool entries for the lists of cached rows.
    few, n_few : ndarray, shape (capacity, FEW + 1), (capacity,), int32
        Scratch of the kernel for the relevant classes of a row; empty if there are few classes.
    """

    def __init__(
        self,
        block_rows: int,
        cache_rows: int,
        row_variables: int,
        part_rows: Sequence[int],
        n_outputs: int = 0,
    ) -> None:
        self._kernels = load("sbm.solver.kernels.lists")
        self.capacity = block_rows + cache_rows
        limits = row_variables * np.array(part_rows, np.int64)
        self.held_limit = int(limits.max())
        self._never = self.held_limit - limits
        self.cache_limit = cache_rows * (row_variables + 1)
        # A growing list exists twice for a moment, so there is room for one more list.
        room = self.capacity * (row_variables + 1) + row_variables + 2
        self.begin = np.empty(self.capacity, np.int64)
        self.count = np.empty(self.capacity, np.int32)
        self.outputs = np.empty(room, np.int32)
        self.betas = np.empty(room)
        self.used = np.zeros(1, np.int64)
        self.held = self._never.copy()
        picked = self.capacity if n_outputs > MANY else 0
        self.few = np.empty((picked, FEW + 1), np.int32)
        self.n_few = np.empty(picked, np.int32)

    def append(self, first: int, rows: Int32s, alpha: Alphas) -> None:
        """Copy the lists of rows of a block; see `DenseSet.append`."""
        assert isinstance(alpha, Lists)
        appended = self._kernels.append(
            first, rows, alpha.offsets, alpha.outputs, alpha.values, self.begin, self.count,
            self.outputs, self.betas, self.used,
        )  # fmt: skip
        assert appended == len(rows), "the limits leave room for every block"

    def admit(self, part: int, alpha: Alphas) -> None:
        """Register the lists of a part; see `DenseSet.admit`.

        If they are too many, the smallest variables are set to 0 in place, which is feasible for
        all losses with lists.
        """
        assert isinstance(alpha, Lists)
        own = slice(alpha.offsets[0], alpha.offsets[-1])
        outputs, values = alpha.outputs[own], alpha.values[own]
        most = self.held_limit - int(self._never[part])
        if len(values) > most:
            kept = np.zeros(len(values), np.bool_)
            kept[np.argsort(-values, kind="stable")[:most]] = True
            of_row = np.repeat(np.arange(len(alpha)), alpha.counts)[kept]
            counts = np.bincount(of_row, minlength=len(alpha))
            alpha.set(np.concatenate([[0], np.cumsum(counts)]), outputs[kept], values[kept])
        self.held[part] = self._never[part] + int(alpha.offsets[-1] - alpha.offsets[0])

    def sizes(self, n: int) -> npt.NDArray[np.int64] | None:
        """Return the pool entries used by each of the first `n` rows."""
        return self.count[:n].astype(np.int64) + 1

    def count_zero(self, n: int) -> int:
        """Return how many of the first `n` rows have only zero variables."""
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
        self, keep: Bools, home: Int32s, row: Int32s, block: Block, alpha: Alphas
    ) -> tuple[Int32s, Int32s, Alphas]:
        """Keep the lists of the chosen rows and return the others; see `DenseSet.spill`."""
        assert isinstance(alpha, Lists)
        origin, offsets = np.empty(len(alpha), np.int32), np.empty(len(alpha) + 1, np.int64)
        sizes, count = np.empty(2, np.int64), self.count[: len(keep)]
        self._kernels.count_spilled(
            keep, home, row, block.at, count, alpha.offsets, origin, offsets, sizes
        )
        rows, variables = sizes.tolist()
        spilled = _room_of(offsets)
        evicted = np.empty(rows, np.int32), np.empty(rows, np.int32)
        theirs = Lists(
            np.empty(rows + 1, np.int64), np.empty(variables, np.int32), np.empty(variables)
        )
        self._kernels.spill(
            keep, home, row, block.at, self.begin, count, self.outputs, self.betas,
            alpha.offsets, alpha.outputs, alpha.values, origin,
            offsets, spilled.outputs, spilled.values,
            *evicted, theirs.offsets, theirs.outputs, theirs.values,
        )  # fmt: skip
        alpha.set(offsets, spilled.outputs, spilled.values)
        numbers = np.cumsum(keep, dtype=np.int32)
        self._kernels.keep_lists(
            keep, numbers, self.begin, self.count, self.outputs, self.betas, self.used
        )
        return *evicted, theirs

    def fill(self, alpha: Alphas) -> None:
        """Set the lists of the first rows; all others are removed from the pool."""
        assert isinstance(alpha, Lists)
        lists, n = alpha, len(alpha)
        self.begin[:n] = lists.offsets[:-1] + np.arange(1, n + 1)  # each list follows its head
        self.count[:n] = lists.counts
        heads = self.begin[:n] - 1
        self.outputs[heads], self.betas[heads] = np.arange(n), self.count[:n]
        self._kernels.copy_lists(
            lists.offsets[:-1], lists.counts, lists.outputs, lists.values,
            self.begin[:n], self.outputs, self.betas,
        )  # fmt: skip
        self.used[0] = n + len(lists.outputs)

    def copy(self, n: int) -> Lists:
        """Return a copy of the lists of the first `n` rows."""
        return self.take(np.arange(n))

    def fits(self, home: Int32s, alpha: Alphas) -> bool:
        """Return whether `replace` can be called with these lists."""
        assert isinstance(alpha, Lists)
        held = self._held_with(home, alpha)
        room = len(alpha) + len(alpha.values)
        return room <= len(self.outputs) and bool((held <= self.held_limit).all())

    def replace(self, home: Int32s, alpha: Alphas) -> None:
        """Replace the lists of all working rows, which are of the given parts."""
        assert isinstance(alpha, Lists)
        self.held[:] = self._held_with(home, alpha)
        self.fill(alpha)

    def _held_with(self, home: Int32s, alpha: Lists) -> npt.NDArray[np.int64]:
        growth = alpha.counts - self.count[: len(alpha)]
        return self.held + np.bincount(home, growth, len(self.held)).astype(np.int64)

    def state(self, n: int) -> dict[str, npt.NDArray[np.generic]]:
        """Return the lists of the first `n` rows as arrays to store."""
        lists = self.take(np.arange(n))
        return {
            "alpha_offsets": lists.offsets, "alpha_outputs": lists.outputs, "alpha": lists.values,
            "held": self.held,
        }  # fmt: skip

    def restore(self, state: Mapping[str, npt.NDArray[Any]], n: int) -> None:
        """Restore the result of `state` for `n` rows.

        Raises
        ------
        ValueError
            If the lists have another number of rows, or do not fit.
        """
        offsets, outputs = state["alpha_offsets"], state["alpha_outputs"]
        sound = len(offsets) == n + 1 and offsets[0] == 0 and offsets[-1] == len(outputs)
        if not sound or (np.diff(offsets) < 0).any() or n + len(outputs) > len(self.outputs):
            raise ValueError("lists of variables are invalid or do not fit")
        self.fill(Lists(offsets, outputs, state["alpha"]))
        self.held[:] = state["held"]


def admit_block(pool: DenseSet | ListPool, block: Block, alpha: Alphas) -> None:
    """Register the variables of a block that come from elsewhere; see `ListPool.admit`.

    Those for which the pool has no room become 0 in `alpha`, which may be stored then.
    """
    parts = []
    for part, first, n_rows in block.slices():
        own = alpha.part(first, n_rows)
        pool.admit(part, own)
        parts.append(own)
    if isinstance(alpha, Lists):
        kept = join(parts)
        assert isinstance(kept, Lists)
        alpha.set(kept.offsets, kept.outputs, kept.values)


def _room_for(counts: npt.NDArray[np.int64]) -> Lists:
    """Return uninitialized lists of the given lengths."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return _room_of(offsets)


def _room_of(offsets: npt.NDArray[np.int64]) -> Lists:
    """Return uninitialized lists with these offsets."""
    return Lists(offsets, np.empty(offsets[-1], np.int32), np.empty(offsets[-1]))
