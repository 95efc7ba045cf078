"""Write a model whose classes are divided among ranks: rank 0 asks the others for some features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sbm.distributed.comm import Comm
from sbm.models.weights import WindowedWeights, by_feature

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
    codes = np.arange(mine.n_outputs, dtype=np.int32)
    if comm.rank:
        yield None
        while (asked := comm.share(None)[0]) != _END:
            first, end = asked
            classes, values = mine.read(first, end, codes)
            comm.gather([len(values)])
            comm.exchange([(0, mine.counts[first:end]), (0, classes), (0, values)], [])
        return

    def read(first: int, end: int, columns: npt.NDArray[np.int32]) -> Part:
        comm.share((first, end))
        classes, values = mine.read(first, end, codes)
        sizes = comm.gather([len(values)])[:, 0].astype(np.int64)
        counts = [mine.counts[first:end]] + [np.empty(end - first, np.int64) for _ in sizes[1:]]
        parts = [(classes, values)] + [(np.empty(n, np.int32), np.empty(n)) for n in sizes[1:]]
        received: list[tuple[int, npt.NDArray[np.generic]]] = []
        for rank in range(1, comm.size):
            received += [(rank, counts[rank]), (rank, parts[rank][0]), (rank, parts[rank][1])]
        comm.exchange([], received)
        every = np.arange(end - first, dtype=np.int32)
        of = np.concatenate([np.repeat(every, some) for some in counts])
        outs = columns[np.concatenate([part[0] for part in parts])]
        return by_feature(of, outs, np.concatenate([part[1] for part in parts]))

    yield replace(mine, counts=total.astype(np.int64), read=read, is_sorted=True)
    comm.share(_END)
