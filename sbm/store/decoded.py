"""Decoded chunks of rows in memory, with all nonzeros in one arena."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.plain import dataclass
from sbm.rows import SPARE, Arena, Rows
from sbm.store.codec import gather_rows

_OBJECTS = 1_000  # bytes of Python's objects for a chunk


@dataclass(frozen=True)
class DecodedChunk:
    """A chunk in memory."""

    offset: int  # position of the first nonzero in the arena
    lengths: npt.NDArray[np.int32]  # shape (n_rows,)
    # shape (n_rows,); ``codes`` (uint8 or uint16) or ``labels`` (float64), as in a chunk on disk
    labels: Mapping[str, npt.NDArray[Any]]
    # indices, values: shape (nnz,); views of the arena; `values` is None if all are 1
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating] | None

    @property
    def place(self) -> slice:
        """Its nonzeros in the arena."""
        return slice(self.offset, self.offset + len(self.indices))

    @property
    def table_bytes(self) -> int:
        """Memory of its lengths and labels, and of Python's objects."""
        arrays = [self.lengths, *self.labels.values()]
        return _OBJECTS + sum(array.nbytes for array in arrays)


class DecodedChunks:
    """Decoded chunks, by block and number in the block.

    The arena has address space for `capacity` nonzeros, but takes only the memory that is used.

    Parameters
    ----------
    capacity : int
        Maximum number of nonzeros in the arena, including the caches and buffers of a training. It
        is less if there is not enough address space.
    dtype : {"float32", "float64"}
        Type of values.

    Attributes
    ----------
    capacity : int
        Maximum number of nonzeros.
    used : int
        Nonzeros at the front of the arena that belong to chunks, or did.
    nnz, table_bytes : int
        Nonzeros of all chunks, and memory of their lengths and labels.
    scaled : set of (int, int)
        Keys of the chunks whose values are scaled, here or in the file they were spilled to.
    """

    def __init__(self, capacity: int, dtype: str) -> None:
        self.capacity, self._dtype = capacity, dtype
        while True:
            try:
                self._indices = _reserve(self.capacity + SPARE, "int32")
                self._values = _reserve(self.capacity + SPARE, dtype)
                break
            except MemoryError:
                if not self.capacity:
                    raise
                self.capacity //= 4  # as with ulimit -v: leave address space for others, too
        self._has_values = False
        self._chunks: dict[tuple[int, int], DecodedChunk] = {}
        self.scaled: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self.used = self.nnz = self.table_bytes = 0

    def width(self, values: bool = False) -> int:
        """Return the bytes per nonzero, now or if rows with values are added."""
        return 4 + (self._has_values or values) * self._values.itemsize

    def nbytes(self, values: bool = False) -> int:
        """Return the memory of all chunks, now or if rows with values are added."""
        return self.nnz * self.width(values) + self.table_bytes

    def arena(self) -> Arena:
        """Return the arena. The nonzeros from `used` on are free."""
        return Arena(self._indices, self._values if self._has_values else None)

    def have_values(self) -> None:
        """Note that not all values are 1; those so far are."""
        if not self._has_values:
            for key, chunk in self._chunks.items():
                values = self._values[chunk.place]
                values[:] = 1
                self._chunks[key] = replace(chunk, values=values)
            self._has_values = True

    def gather(
        self,
        block: int,
        number: int,
        rows: Rows,
        chosen: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        labels: Mapping[str, npt.NDArray[Any]],
    ) -> DecodedChunk | None:
        """Copy rows to the end of the arena, each sorted by index; called in several threads.

        Returns None if there is no room.

        Parameters
        ----------
        block, number : int
            Key of the new chunk.
        chosen : ndarray of int64
            The rows to copy, in order.
        lengths : ndarray of int32
            Their lengths; kept.
        labels : dict of str to ndarray
            See `DecodedChunk`.
        """
        nnz = int(lengths.sum(dtype=np.int64))
        if (offset := self._take(nnz)) is None:
            return None
        own = slice(offset, offset + nnz)
        values = self._values[own] if self._has_values else None
        chunk = DecodedChunk(offset, lengths, labels, self._indices[own], values)
        gather_rows(
            rows.starts, rows.indices, rows.values, chosen, lengths, chunk.indices, chunk.values
        )  # fmt: skip
        with self._lock:
            self._chunks[block, number] = chunk
            self.nnz += nnz
            self.table_bytes += chunk.table_bytes
        return chunk

    def place_of(self, block: int, number: int, nnz: int) -> int:
        """Return where a chunk is, or room for it at the end of the arena."""
        chunk = self.get(block, number)
        found = self._take(nnz) if chunk is None else chunk.offset
        assert found is not None
        return found

    def has_room(self, nnz: int) -> bool:
        """Return whether nonzeros fit at the end of the arena."""
        return self.used + nnz <= self.capacity

    def _take(self, nnz: int) -> int | None:
        """Return the position of room for nonzeros at the end of the arena, if there is room."""
        with self._lock:
            if not self.has_room(nnz):
                return None
            self.used += nnz
            return self.used - nnz

    def release(self) -> None:
        """Give back the arena, when it has no chunks any more."""
        self.capacity = self.used = 0
        self._indices, self._values = _reserve(SPARE, "int32"), _reserve(SPARE, self._dtype)

    def get(self, block: int, number: int) -> DecodedChunk | None:
        """Return a chunk; None if it is not in memory."""
        return self._chunks.get((block, number))

    def numbers(self, block: int) -> list[int]:
        """Return the numbers of the chunks of a block that are in memory."""
        return sorted(number for of, number in self._chunks if of == block)

    def drop(self, block: int, number: int) -> None:
        """Remove a chunk and give its memory back to the system."""
        chunk = self._chunks.pop((block, number))
        self.nnz -= len(chunk.indices)
        self.table_bytes -= chunk.table_bytes
        for array in (self._indices, self._values):
            _give_back(array, chunk.place.start, chunk.place.stop)

    def close_up(self) -> None:
        """Move the chunks to the front of the arena and give the rest back to the system."""
        self.used = 0
        for key, chunk in sorted(self._chunks.items(), key=lambda item: item[1].offset):
            begin, self.used = self.used, self.used + len(chunk.indices)
            if begin == chunk.offset:
                continue
            moved = replace(
                chunk, offset=begin, indices=self._indices[begin : self.used],
                values=None if chunk.values is None else self._values[begin : self.used],
            )  # fmt: skip
            moved.indices[:] = chunk.indices
            if self._has_values:
                self._values[moved.place] = self._values[chunk.place]
            self._chunks[key] = moved
        for array in (self._indices, self._values):
            _give_back(array, self.used, len(array))

    def renumber(self, blocks: Mapping[int, int]) -> None:
        """Change the numbers of blocks."""
        self._chunks = {(blocks[k], number): c for (k, number), c in self._chunks.items()}


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
