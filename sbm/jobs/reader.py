"""The blocks of a training, each read and decoded ahead of its use."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sbm.jobs.memory import MemoryPlan
from sbm.jobs.prefetch import Loaded, prefetched
from sbm.rows import SPARE, Arena, Rows
from sbm.store.blocks import BlockStore

__all__ = ["BlockReader"]


class BlockReader:
    """Reads blocks into two buffers behind the cache, in turn.

    Parameters
    ----------
    store : BlockStore
    plan : MemoryPlan
        Its parts are the blocks, by number.
    arena : Arena
        Nonzeros of the cache first, then those of the two buffers.

    Attributes
    ----------
    bytes_read : int
        Bytes of block files read so far.
    """

    def __init__(self, store: BlockStore, plan: MemoryPlan, arena: Arena) -> None:
        self._store = store
        self._parts = plan.parts
        first = plan.cache_nnz + SPARE
        self._offsets = (first, first + plan.part_nnz)
        self._buffers = [arena.room(plan.part_rows) for _ in range(2)]
        self.bytes_read = 0

    def read(self, order: npt.NDArray[np.intp]) -> Iterator[Loaded[int, Rows]]:
        """Yield the blocks in the given order, each read while the one before is in use."""
        return prefetched([int(j) for j in order], self._load)

    def _load(self, j: int, slot: int) -> Rows:
        part = self._parts[j]
        self.bytes_read += sum(c.size for c in part.chunks)
        return self._store.read(part.chunks, self._buffers[slot], self._offsets[slot])
