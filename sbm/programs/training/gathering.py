"""Write a model whose classes are divided among ranks: rank 0 asks the others for some features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sbm.distributed.comm import Comm
from sbm.models.weights import WindowedWeights, merged

__all__ = ["gathered"]

Part = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]
_END = -1  # instead of a feature


@contextmanager
def gathered(comm: Comm, mine: WindowedWeights) -> Iterator[WindowedWeights | None]:
    """Yield the weights of all ranks in rank 0, to be read inside; None in the others.

    These answer until rank 0 leaves the context. All ranks call this together.
    """
    if comm.size == 1:
        yield mine
        return
    total = mine.counts.astype(np.float64)
    comm.add_up(total)
    if comm.rank:
        yield None
        while (asked := comm.share(None)[0]) != _END:
            first, end, columns_of = asked
            classes, values = mine.read(first, end, np.array(columns_of, np.int32))
            comm.gather([len(values)])
            comm.exchange([(0, mine.counts[first:end]), (0, classes), (0, values)], [])
        return

    def read(first: int, end: int, columns: npt.NDArray[np.int32]) -> Part:
        comm.share((first, end, columns.tolist()))
        own, own_values = mine.read(first, end, columns)
        ends = np.cumsum(comm.gather([len(own)])[:, 0].astype(np.int64))
        counts = np.empty((comm.size, end - first), np.int64)
        outs, values = np.empty(ends[-1], np.int32), np.empty(ends[-1])
        counts[0], outs[: ends[0]], values[: ends[0]] = mine.counts[first:end], own, own_values
        received: list[tuple[int, npt.NDArray[np.generic]]] = []
        for rank in range(1, comm.size):
            theirs = slice(ends[rank - 1], ends[rank])
            received += [(rank, counts[rank]), (rank, outs[theirs]), (rank, values[theirs])]
        comm.exchange([], received)
        return merged(counts, outs, values)

    yield replace(mine, counts=total.astype(np.int64), read=read)
    comm.share(_END)
