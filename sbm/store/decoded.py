"""Decoded chunks of rows in memory, with all nonzeros in one arena."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.rows import SPARE, Arena, Rows
from sbm.store.codec import gather_rows

__all__ = ["DecodedChunk", "DecodedChunks"]


@dataclass(frozen=True)
class DecodedChunk:
    """A chunk in memory.

    Attributes
    ----------
    offset : int
        Position of the first nonzero in the arena.
    lengths : ndarray, shape (n_rows,), int32
    labels : dict of str to ndarray, shape (n_rows,)
        ``codes`` (uint8 or uint16) or ``labels`` (float64), as in a chunk on disk.
    indices, values : ndarray, shape (nnz,)
        Views of the arena; `values` is None if all are 1.
    """

    offset: int
    lengths: npt.NDArray[np.int32]
    labels: Mapping[str, npt.NDArray[Any]]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating] | None


class DecodedChunks:
    """Decoded chunks, by block and number in the block.

    The arena has address space for `capacity` nonzeros, but takes only the memory that is used.

    Parameters
    ----------
    capacity : int
        Maximum number of nonzeros in the arena, including the caches and buffers of a training.
    dtype : {"float32", "float64"}
        Type of values.

    Attributes
    ----------
    used : int
        Nonzeros at the front of the arena that belong to chunks, or did.
    nbytes : int
        Memory of all chunks.

    Raises
    ------
    MemoryError
        There is not enough address space.
    """

    def __init__(self, capacity: int, dtype: str) -> None:
        self._indices = _reserve(capacity + SPARE, "int32")
        self._values = _reserve(capacity + SPARE, dtype)
        self._has_values = False
        self._chunks: dict[tuple[int, int], DecodedChunk] = {}
        self._lock = threading.Lock()
        self.used = 0
        self.nbytes = 0

    @property
    def width(self) -> int:
        """Bytes per nonzero."""
        return self.width_with(False)

    def width_with(self, values: bool) -> int:
        """Return the bytes per nonzero if rows with or without values are added."""
        return 4 + (self._has_values or values) * self._values.itemsize

    @property
    def table_bytes(self) -> int:
        """Memory of the lengths and labels of all chunks."""
        return sum(_table_bytes(chunk) for chunk in self._chunks.values())

    def arena(self) -> Arena:
        """Return the arena. The nonzeros from `used` on are free."""
        return Arena(self._indices, self._values if self._has_values else None)

    def have_values(self) -> None:
        """Note that not all values are 1; those so far are."""
        if not self._has_values:
            self._values[: self.used] = 1
            self._has_values = True
            self.nbytes += self.used * self._values.itemsize

    def gather(
        self,
        block: int,
        number: int,
        rows: Rows,
        chosen: npt.NDArray[np.int64],
        labels: Mapping[str, npt.NDArray[Any]],
    ) -> DecodedChunk:
        """Copy rows to the end of the arena, each sorted by index; called in several threads.

        Parameters
        ----------
        block, number : int
            Key of the new chunk.
        rows : Rows
        chosen : ndarray of int64
            The rows to copy, in order.
        labels : dict of str to ndarray
            See `DecodedChunk`.
        """
        lengths, nnz = np.empty(len(chosen), np.int32), int(rows.lengths[chosen].sum())
        offset = self._take(nnz)
        own = slice(offset, offset + nnz)
        values = self._values[own] if self._has_values else None
        chunk = DecodedChunk(offset, lengths, labels, self._indices[own], values)
        gather_rows(
            rows.starts, rows.lengths, rows.indices, rows.values, chosen, lengths, chunk.indices,
            chunk.values,
        )  # fmt: skip
        with self._lock:
            self._chunks[block, number] = chunk
            self.nbytes += len(chunk.indices) * self.width + _table_bytes(chunk)
        return chunk

    def place(self, block: int, number: int, nnz: int) -> int:
        """Return where a chunk is, or room for it at the end of the arena."""
        chunk = self.get(block, number)
        return self._take(nnz) if chunk is None else chunk.offset

    def _take(self, nnz: int) -> int:
        """Return the position of room for nonzeros at the end of the arena."""
        with self._lock:
            offset = self.used
            self.used += nnz
        if self.used > len(self._indices) - SPARE:
            raise MemoryError
        return offset

    def get(self, block: int, number: int) -> DecodedChunk | None:
        """Return a chunk; None if it is not in memory."""
        return self._chunks.get((block, number))

    def numbers(self, block: int) -> list[int]:
        """Return the numbers of the chunks of a block that are in memory."""
        return sorted(number for of, number in self._chunks if of == block)

    def drop(self, block: int, number: int) -> None:
        """Remove a chunk and give its memory back to the system."""
        chunk = self._chunks.pop((block, number))
        self.nbytes -= len(chunk.indices) * self.width + _table_bytes(chunk)
        for array in (self._indices, self._values):
            _give_back(array, chunk.offset, chunk.offset + len(chunk.indices))

    def free_end(self) -> None:
        """Free the arena behind the last chunk."""
        ends = (chunk.offset + len(chunk.indices) for chunk in self._chunks.values())
        self.used = max(ends, default=0)

    def renumber(self, blocks: Mapping[int, int]) -> None:
        """Change the numbers of blocks."""
        self._chunks = {(blocks[k], number): c for (k, number), c in self._chunks.items()}


def _table_bytes(chunk: DecodedChunk) -> int:
    return chunk.lengths.nbytes + sum(array.nbytes for array in chunk.labels.values())


def _reserve(n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array that takes memory only where it is written."""
    size = n * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError:
        raise MemoryError from None
    if hasattr(mmap, "MADV_HUGEPAGE"):  # random access is faster, as with arrays of numpy
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype)


def _give_back(array: npt.NDArray[Any], begin: int, end: int) -> None:
    """Give whole pages of an array from `_reserve` back to the system, if it supports that."""
    memory, page = array.base, mmap.PAGESIZE
    while isinstance(memory, memoryview):
        memory = memory.obj
    first = -(-begin * array.itemsize // page) * page
    size = end * array.itemsize // page * page - first
    if size > 0 and isinstance(memory, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED, first, size)
