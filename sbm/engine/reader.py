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
from sbm.store.blocks import BlockStore, Chunk

__all__ = ["BlockReader", "Place", "RowWeights"]

NextBlock = TypeVar("NextBlock")


class RowWeights(Protocol):
    """Row weights in the order of the store; see `sbm.dataset.weights`."""

    def read(self, chunk: Chunk, out: npt.NDArray[np.float64]) -> None:
        """Write the weights of a chunk's rows."""


@dataclass
class Place:
    """Where a block is decoded to.

    Attributes
    ----------
    rows : Rows
        Room for the rows.
    offsets : list of int
        Position in the arena of the nonzeros of each chunk.
    is_decoded : bool
        Whether the rows are there.
    """

    rows: Rows
    offsets: list[int]
    is_decoded: bool = False

    @classmethod
    def of(cls, part: Part, rows: Rows, offset: int) -> Place:
        """Return a place with contiguous nonzeros."""
        sizes = (chunk.nnz for chunk in part.chunks[:-1])
        return cls(rows, list(itertools.accumulate(sizes, initial=offset)))


class BlockReader:
    """Reads blocks, either into two alternating buffers, or to places where they stay decoded.

    Parameters
    ----------
    store : BlockStore
    plan : MemoryPlan
        Its parts are the blocks, by number.
    staying : sequence of int
        Blocks that stay decoded.
    is_whole : bool
        Whether no other blocks are read. Then there are no caches and buffers.
    y_dtype : dtype
        int32 for class codes, float64 for targets.
    threads : int
    caches : int
        Nonzeros of the caches, behind those of the blocks that stay decoded.
    rate : float, optional
        Maximum bytes read per second, to simulate a slow disk.
    weights : RowWeights, optional
        Factor of each row's cost.

    Attributes
    ----------
    arena : Arena
    decoded : int
        Nonzeros at the front of the arena of the blocks that stay decoded.
    pool : Executor
        Reads ahead; see `loading_thread`.
    bytes_read : int
        Bytes of block files read so far.
    disk_before : float
        Seconds of waiting for the disk before a resume.
    failure : Exception or None
        Why the block that is read ahead cannot be used; also raised when it is requested.
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
        chunks = {block: plan.parts[block].chunks for block in staying}
        more = 0 if is_whole else caches + 2 * plan.part_nnz
        self.arena, offsets, self.decoded = store.arena(chunks, more)

        def room(rows: int) -> Rows:
            return self.arena.room(rows, y_dtype, weights is not None)

        self._staying = {k: Place(room(plan.parts[k].rows), at) for k, at in offsets.items()}
        self._buffers = [room(0 if is_whole else plan.part_rows) for _ in range(2)]
        first = self.decoded + caches
        self._offsets = (first, first + plan.part_nnz)
        # Does not affect the result.
        self._decoders = plan.decoders(threads, plan.left - plan.decoded_bytes(staying))
        self.pool = loading_thread(threads)
        self.bytes_read, self.disk_before = 0, 0.0
        self.failure: Exception | None = None
        self._slept = 0.0

    @property
    def disk_seconds(self) -> float:
        """Seconds spent waiting for the disk so far."""
        return self.disk_before + self._store.read_seconds + self._slept

    def read(
        self,
        order: Iterable[int],
        prepare: Callable[[int, int], NextBlock],
        begin: Callable[[int, NextBlock], None],
        look: Callable[[NextBlock, int, Rows], None] | None = None,
    ) -> Generator[Prefetched[int, NextBlock, Rows]]:
        """Yield the blocks in the given order; each is read while the previous one is in use.

        Parameters
        ----------
        order : iterable of int
        prepare : callable
            ``prepare(block, slot)``, called before the previous block is yielded.
        begin : callable
            ``begin(block, coming)``, called in the reading thread before the block is read;
            `coming` is the result of `prepare`.
        look : callable, optional
            ``look(coming, first, rows)``, called for each decoded chunk in the decoding thread;
            `first` is the number of its first row in the block.
        """
        self.failure = None
        with ThreadPoolExecutor(self._decoders, "sbm-decode") as decoders:
            spread = decoders.map if self._decoders > 1 else map

            def load(block: int, slot: int, coming: NextBlock) -> Rows:
                part, place = self._parts[block], self._place(block, slot)

                def decode(chunk: Chunk, first: int, offset: int) -> None:
                    into = place.rows.part(first, chunk.rows)
                    rows = self._store.read([chunk], into, offset)
                    if self._weights is not None and into.weights is not None:
                        self._weights.read(chunk, into.weights)
                    if look is not None:
                        look(coming, first, rows)

                with self._noting_failure():
                    begin(block, coming)
                    if place.is_decoded and look is not None:
                        look(coming, 0, place.rows)
                    elif not place.is_decoded:
                        firsts = itertools.accumulate((c.rows for c in part.chunks), initial=0)
                        with self._held_back(block):
                            for _ in spread(decode, part.chunks, firsts, place.offsets):
                                pass
                        place.is_decoded = True
                return place.rows

            yield from prefetched(order, prepare, load, self.pool)

    def _place(self, block: int, slot: int) -> Place:
        """Return where a block is, or the buffer to decode it to."""
        if block in self._staying:
            return self._staying[block]
        part = self._parts[block]
        return Place.of(part, self._buffers[slot].part(0, part.rows), self._offsets[slot])

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Store an exception in `failure`, so that it is known before the block is requested."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise

    @contextmanager
    def _held_back(self, block: int) -> Iterator[None]:
        """Count the bytes of a block, and sleep as needed to respect the maximum rate."""
        begin = time.perf_counter()
        yield
        size = sum(map(self._store.bytes_on_disk, self._parts[block].chunks))
        self.bytes_read += size
        if self._rate is not None:
            late = max(0.0, size / self._rate - (time.perf_counter() - begin))
            time.sleep(late)
            self._slept += late
