"""Read, decode and screen the blocks of a training ahead of their use."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sbm.engine.memory import MemoryPlan, Part
from sbm.engine.prefetch import Prefetched, loading_thread, prefetched
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.metric import multiply
from sbm.store.blocks import BlockStore, Chunk

__all__ = ["BlockReader", "Place", "RowWeights"]

NextBlock = TypeVar("NextBlock")


class RowWeights(Protocol):
    """Row weights in the order of the store; see `sbm.dataset.weights`."""

    def read(self, chunk: Chunk, out: npt.NDArray[np.float64]) -> None:
        """Write the weights of a chunk's rows."""


@dataclass
class Place:
    """Where a part is decoded to.

    Attributes
    ----------
    part : Part
    rows : Rows
        Room for the rows.
    offsets : list of int
        Position in the arena of the nonzeros of each chunk.
    stays : bool
        Whether they stay there.
    is_decoded : bool
        Whether the rows are there.
    """

    part: Part
    rows: Rows
    offsets: list[int]
    stays: bool = False
    is_decoded: bool = False

    @classmethod
    def of(cls, part: Part, rows: Rows, offset: int) -> Place:
        """Return a place with contiguous nonzeros."""
        sizes = (chunk.nnz for chunk in part.chunks[:-1])
        return cls(part, rows, list(itertools.accumulate(sizes, initial=offset)))

    def chunks(self, first: int) -> Iterator[tuple[Chunk, Rows, int, int]]:
        """Yield what to decode, given the number of the first row in the block.

        That is each chunk, the room for its rows, and where these and its nonzeros begin: in the
        block, and in the arena.
        """
        begin = 0
        for chunk, offset in zip(self.part.chunks, self.offsets, strict=True):
            yield chunk, self.rows.part(begin, chunk.rows), first + begin, offset
            begin += chunk.rows


class BlockReader:
    """Reads blocks, either into two alternating buffers, or to places where they stay decoded.

    Parameters
    ----------
    store : BlockStore
    plan : MemoryPlan
    staying : sequence of int
        Parts that stay decoded.
    is_whole : bool
        Whether no other parts are read. Then there are no caches, and no buffers for nonzeros.
    y_dtype : dtype
        int32 for class codes, float64 for targets.
    threads : int
    caches : int
        Nonzeros of the caches, behind those of the parts that stay decoded.
    rate : float, optional
        Maximum bytes read per second, to simulate a slow disk.
    weights : RowWeights, optional
        Factor of each row's cost.

    Attributes
    ----------
    arena : Arena
    decoded : int
        Nonzeros at the front of the arena of the parts that stay decoded.
    pool : Executor
        Reads ahead; see `loading_thread`.
    bytes_read : int
        Bytes of block files read so far.
    disk_before : float
        Seconds of waiting for the disk before a resume.
    failure : Exception or None
        Why the block that is read ahead cannot be used; also raised when it is requested.
    units : ndarray, shape (n_weights,), float64, or None
        Powers of two that the values of each feature are divided by, if wanted.
    """

    def __init__(
        self,
        store: BlockStore,
        plan: MemoryPlan,
        staying: Sequence[int],
        is_whole: bool,
        y_dtype: npt.DTypeLike,
        threads: int,
        *,
        caches: int = 0,
        rate: float | None = None,
        weights: RowWeights | None = None,
    ) -> None:
        self._store, self._parts = store, plan.parts
        self._weights, self._rate = weights, rate
        chunks = {part: plan.parts[part].chunks for part in staying}
        more = 0 if is_whole else caches + 2 * plan.block_nnz
        self.arena, offsets, self.decoded = store.arena(chunks, more)

        def room(rows: int) -> Rows:
            return self.arena.room(rows, y_dtype, weights is not None)

        self._staying = {
            k: Place(plan.parts[k], room(plan.parts[k].rows), at, stays=True)
            for k, at in offsets.items()
        }
        rows = 0 if is_whole and not plan.draws else plan.block_rows
        self._buffers = [room(rows) for _ in range(2)]
        first = self.decoded + caches
        self._offsets = (first, first + plan.block_nnz)
        # Does not affect the result.
        solving = 0 if plan.is_whole else 1  # the solver waits for the screen of a single part
        self._decoders = plan.decoders(threads - solving, plan.left - plan.decoded_bytes(staying))
        self.pool = loading_thread(threads)
        self.bytes_read, self.disk_before = 0, 0.0
        self.failure: Exception | None = None
        self.units: npt.NDArray[np.float64] | None = None
        self._in_units = False  # whether the parts that stay decoded are
        self._slept = 0.0

    @property
    def disk_seconds(self) -> float:
        """Seconds spent waiting for the disk so far."""
        return self.disk_before + self._store.read_seconds + self._slept

    def read(
        self,
        order: Iterable[Sequence[int]],
        prepare: Callable[[Sequence[int], int], NextBlock],
        begin: Callable[[Sequence[int], NextBlock], None],
        look: Callable[[NextBlock, int, Rows], None] | None = None,
        in_units: bool = False,
    ) -> Generator[Prefetched[Sequence[int], NextBlock, Rows]]:
        """Yield the blocks in the given order; each is read while the previous one is in use.

        Parameters
        ----------
        order : iterable of sequence of int
            The parts of each block.
        prepare : callable
            ``prepare(parts, slot)``, called before the previous block is yielded.
        begin : callable
            ``begin(parts, coming)``, called in the reading thread before the block is read;
            `coming` is the result of `prepare`.
        look : callable, optional
            ``look(coming, first, rows)``, called for each decoded chunk in the decoding thread;
            `first` is the number of its first row in the block.
        in_units : bool
            Whether to divide values by `units`, if there are any.
        """
        self.failure = None
        self._set_units(in_units)
        with ThreadPoolExecutor(self._decoders, "sbm-decode") as decoders:
            spread = decoders.map if self._decoders > 1 else map

            def load(block: Sequence[int], slot: int, coming: NextBlock) -> Rows:
                def decode(chunk: Chunk, into: Rows, first: int, offset: int) -> None:
                    rows = self._store.read([chunk], into, offset)
                    if self._weights is not None and into.weights is not None:
                        self._weights.read(chunk, into.weights)
                    if self._in_units:
                        self._multiply(chunk, offset)
                    if look is not None:
                        look(coming, first, rows)

                with self._noting_failure():
                    begin(block, coming)
                    places = list(self._places(block, slot))
                    todo, seen = list[tuple[Chunk, Rows, int, int]](), list[tuple[int, Rows]]()
                    for place, first in places:
                        if not place.is_decoded:
                            todo += place.chunks(first)
                        elif look is not None:
                            seen += [(at, rows) for _, rows, at, _ in place.chunks(first)]
                    if look is not None:
                        for _ in spread(lambda task: look(coming, *task), seen):
                            pass
                    with self._held_back(chunk for chunk, *_ in todo):
                        for _ in spread(lambda task: decode(*task), todo):
                            pass
                    return self._rows_of(places, slot)

            yield from prefetched(order, prepare, load, self.pool)

    def _set_units(self, wanted: bool) -> None:
        """Divide the values of parts that stay decoded by the units, or multiply them again."""
        if self.units is None or wanted == self._in_units:
            return
        self._in_units = wanted
        for place in self._staying.values():
            if place.is_decoded:
                for chunk, offset in zip(place.part.chunks, place.offsets, strict=True):
                    self._multiply(chunk, offset)

    def _multiply(self, chunk: Chunk, offset: int) -> None:
        """Change the values of a chunk at a position of the arena."""
        assert self.units is not None
        own = slice(offset, offset + chunk.nnz)
        factors = 1.0 / self.units if self._in_units else self.units
        if self.arena.values is not None:
            multiply(self.arena.indices[own], self.arena.values[own], factors)

    def leave_units(self) -> None:
        """Multiply values again that stay decoded in memory."""
        self._set_units(False)

    def _places(self, block: Sequence[int], slot: int) -> Iterator[tuple[Place, int]]:
        """Yield where each part of a block is, or is to be decoded to, and its first row."""
        first, offset = 0, self._offsets[slot]
        for number in block:
            part = self._parts[number]
            if number in self._staying:
                yield self._staying[number], first
            else:
                yield Place.of(part, self._buffers[slot].part(first, part.rows), offset), first
                offset += part.nnz
            first += part.rows

    def _rows_of(self, places: Sequence[tuple[Place, int]], slot: int) -> Rows:
        """Return the rows of a block; its nonzeros stay where they are."""
        for place, _ in places:
            place.is_decoded = True
        if len(places) == 1:
            return places[0][0].rows
        n, buffer = 0, self._buffers[slot]
        for place, first in places:
            n += len(place.rows)
            if place.stays:
                buffer.part(first, len(place.rows)).copy_from(place.rows)
        return buffer.part(0, n)

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Store an exception in `failure`, so that it is known before the block is requested."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise

    @contextmanager
    def _held_back(self, chunks: Iterable[Chunk]) -> Iterator[None]:
        """Count the bytes of chunks, and sleep as needed to respect the maximum rate."""
        begin = time.perf_counter()
        yield
        size = sum(map(self._store.bytes_on_disk, chunks))
        self.bytes_read += size
        if self._rate is not None:
            late = max(0.0, size / self._rate - (time.perf_counter() - begin))
            time.sleep(late)
            self._slept += late
