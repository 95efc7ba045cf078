"""Blocks of numbers that travel between processes, each as a whole or as the list of its nonzeros.

A process has room for as many blocks as it ever holds at the same time. A block lies in one of
these places as long as it is there, and is overwritten when it has gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sbm.distributed.comm import PAIR_BYTES, Comm

__all__ = ["MovingBlocks"]

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class MovingBlocks:
    """The blocks that are in this process, all 0 in the beginning.

    Parameters
    ----------
    comm : Comm
    rows : sequence of int
        Of each block, wherever it is.
    width : int
        Numbers a row.
    here : sequence of int
        Blocks that are in this process.
    places : int
        Most blocks that are here at a time, those included that come while others go.

    Attributes
    ----------
    table : ndarray, shape (places * most rows, width), float64
        All rows that are here, those of a block one behind the other.
    """

    def __init__(
        self, comm: Comm, rows: Sequence[int], width: int, here: Sequence[int], places: int
    ) -> None:
        self._comm, self._rows = comm, rows
        self._height = max(rows)
        self.table: Floats = np.zeros((places * self._height, width))
        self._free = [self._height * place for place in reversed(range(places))]
        self._first = {block: self._free.pop() for block in here}

    @property
    def here(self) -> list[int]:
        """Blocks that are in this process."""
        return sorted(self._first)

    def place(self, block: int) -> npt.NDArray[np.int32]:
        """Rows of the table that a block has, shape (rows of the block,), int32."""
        first = self._first[block]
        return np.arange(first, first + self._rows[block], dtype=np.int32)

    def block(self, block: int) -> Floats:
        """Return a block that is here, shape (rows of the block, width), as a view."""
        first = self._first[block]
        return self.table[first : first + self._rows[block]]

    def clear_like(self, other: MovingBlocks) -> None:
        """Make all numbers 0; let blocks lie where others that are in the same processes lie.

        As long as both move alike, a block has the same rows in both tables.
        """
        self.table[:] = 0.0
        self._free, self._first = list(other._free), dict(other._first)

    def move(self, leaving: Sequence[tuple[int, int]], coming: Sequence[tuple[int, int]]) -> None:
        """Send blocks and receive others; does not wait for processes that it has none of.

        Parameters
        ----------
        leaving, coming : sequence of (int, int)
            Block, and the process it goes to or comes from; between two processes in the same
            order at both.
        """
        for block, _ in coming:
            self._first[block] = self._free.pop()
        theirs = {block: np.empty(self._rows[block], np.int64) for block, _ in coming}
        mine = {
            block: np.array([np.count_nonzero(row) for row in self.block(block)], np.int64)
            for block, _ in leaving
        }
        self._comm.exchange(_to(leaving, mine), _to(coming, theirs))
        parcels = {block: self._pack(block, counts) for block, counts in mine.items()}
        rooms = {block: self._room(block, counts) for block, counts in theirs.items()}
        self._comm.exchange(
            [(rank, array) for block, rank in leaving for array in parcels[block]],
            [(rank, array) for block, rank in coming for array in rooms[block]],
        )
        for block, counts in theirs.items():
            self._unpack(block, counts, rooms[block])
        for block, _ in leaving:
            self._free.append(self._first.pop(block))

    def _is_sparse(self, block: int, counts: Counts) -> bool:
        """Whether the nonzeros take less than half as many bytes as all numbers."""
        return bool(2 * PAIR_BYTES * counts.sum() < self.block(block).nbytes)

    def _pack(self, block: int, counts: Counts) -> list[npt.NDArray[np.generic]]:
        """Return what is sent of a block: its places and values, or itself."""
        numbers = self.block(block)
        if not self._is_sparse(block, counts):
            return [numbers]
        places, values = self._room(block, counts)
        for row, (begin, end) in zip(numbers, _ranges(counts), strict=True):
            found = np.flatnonzero(row)
            places[begin:end], values[begin:end] = found, row[found]
        return [places, values]

    def _room(self, block: int, counts: Counts) -> list[npt.NDArray[np.generic]]:
        """Return arrays for what is sent of a block that has so many nonzeros in its rows."""
        if not self._is_sparse(block, counts):
            return [self.block(block)]
        n = int(counts.sum())
        return [np.empty(n, np.int32), np.empty(n)]

    def _unpack(self, block: int, counts: Counts, parcel: list[npt.NDArray[np.generic]]) -> None:
        """Fill in a block that came as places and values."""
        if not self._is_sparse(block, counts):
            return
        places, values = parcel
        numbers = self.block(block)
        numbers[:] = 0.0
        for row, (begin, end) in zip(numbers, _ranges(counts), strict=True):
            row[places[begin:end]] = values[begin:end]


def _to(
    moves: Sequence[tuple[int, int]], arrays: Mapping[int, Counts]
) -> list[tuple[int, npt.NDArray[np.generic]]]:
    """Return messages of one array a block."""
    return [(rank, arrays[block]) for block, rank in moves]


def _ranges(counts: Counts) -> list[tuple[int, int]]:
    """Return begin and end of each row's nonzeros."""
    ends = np.cumsum(counts)
    return list(zip((ends - counts).tolist(), ends.tolist(), strict=True))
