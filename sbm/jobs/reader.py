"""The blocks of a training, each read, decoded and screened ahead of its use."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sbm.jobs.memory import MemoryPlan
from sbm.jobs.prefetch import Loaded, prefetched
from sbm.rows import SPARE, Arena, Rows
from sbm.store.blocks import BlockStore, Chunk

__all__ = ["BlockReader"]

Coming = TypeVar("Coming")


class BlockReader:
    """Reads blocks into two buffers behind the cache, in turn.

    Parameters
    ----------
    store : BlockStore
    plan : MemoryPlan
        Its parts are the blocks, by number.
    arena : Arena
        Nonzeros of the cache first, then those of the two buffers.
    ahead : bool
        Read in a second thread, while the block before is in use.
    decoders : int
        Chunks that are decoded at a time. What is read is the same.
    rate : float, optional
        Read no more bytes a second than this, as a slow disk would.

    Attributes
    ----------
    bytes_read : int
        Bytes of block files read so far.
    """

    def __init__(
        self,
        store: BlockStore,
        plan: MemoryPlan,
        arena: Arena,
        ahead: bool = True,
        decoders: int = 1,
        rate: float | None = None,
    ) -> None:
        self._store = store
        self._parts = plan.parts
        first = plan.cache_nnz + SPARE
        self._offsets = (first, first + plan.part_nnz)
        self._buffers = [arena.room(plan.part_rows) for _ in range(2)]
        self._ahead = ahead
        self._decoders = decoders
        self._rate = rate
        self.bytes_read = 0
        self._slept = 0.0

    @property
    def disk_seconds(self) -> float:
        """Time spent so far waiting for the disk."""
        return self._store.read_seconds + self._slept

    def read(
        self,
        order: npt.NDArray[np.intp],
        prepare: Callable[[int, int], Coming],
        look: Callable[[Coming, int, Rows], None] | None = None,
    ) -> Iterator[Loaded[int, Coming, Rows]]:
        """Yield the blocks in the given order, each read while the one before is in use.

        Parameters
        ----------
        order : ndarray of int
        prepare : callable
            ``prepare(block, slot)``, called before the block in front of this one is yielded.
        look : callable, optional
            ``look(coming, first, rows)`` sees every chunk as soon as it is decoded, in the thread
            that decoded it: what `prepare` returned, number of its first row, its rows.
        """
        with ThreadPoolExecutor(self._decoders, "sbm-decode") as pool:
            spread = pool.map if self._decoders > 1 else map

            def load(j: int, slot: int, coming: Coming) -> Rows:
                begin = time.perf_counter()
                part, into, nonzeros = self._parts[j], self._buffers[slot], self._offsets[slot]
                rows = 0
                places = []
                for chunk in part.chunks:
                    places.append((chunk, rows, nonzeros))
                    rows, nonzeros = rows + chunk.rows, nonzeros + chunk.nnz

                def decode(place: tuple[Chunk, int, int]) -> None:
                    chunk, first, offset = place
                    decoded = self._store.read([chunk], into.part(first, chunk.rows), offset)
                    if look is not None:
                        look(coming, first, decoded)

                for _ in spread(decode, places):
                    pass
                size = sum(c.size for c in part.chunks)
                self.bytes_read += size
                if self._rate is not None:
                    late = max(0.0, size / self._rate - (time.perf_counter() - begin))
                    time.sleep(late)
                    self._slept += late
                return into.part(0, rows)

            items = [int(j) for j in order]
            yield from prefetched(items, prepare, load, ahead=self._ahead)
