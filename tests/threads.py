"""Several processes of one training, played by threads: the same messages without MPI."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from queue import Queue
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Result = TypeVar("Result")
PATIENT = 60.0  # seconds


class _Table:
    """Where the threads meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.slots: list[Any] = [None] * size
        self.letters: dict[tuple[int, int], Queue[npt.NDArray[Any]]] = defaultdict(Queue)


class ThreadComm:
    """A `Comm` between threads; sums are taken in the order of the ranks, as over MPI."""

    def __init__(self, rank: int, table: _Table) -> None:
        self.rank, self.size, self.sent = rank, table.size, 0
        self._table = table

    def _all(self, mine: Any) -> list[Any]:
        self._table.slots[self.rank] = mine
        self._table.barrier.wait(PATIENT)
        theirs = list(self._table.slots)
        self._table.barrier.wait(PATIENT)
        return theirs

    def add_up(self, array: npt.NDArray[Any]) -> None:
        assert array.dtype == np.float64
        assert array.flags.c_contiguous
        total = np.zeros_like(array)
        for theirs in self._all(array.copy()):
            total += theirs
        array[...] = total

    def gather(self, numbers: Sequence[float]) -> npt.NDArray[np.float64]:
        return np.array(self._all(list(numbers)), np.float64)

    def share(self, content: Any) -> list[Any]:
        return [json.loads(text) for text in self._all(json.dumps(content))]

    def exchange(self, send: Sequence[Any], receive: Sequence[Any]) -> None:
        for rank, array in send:
            self.sent += array.nbytes
            self._table.letters[self.rank, rank].put(array.copy())
        for rank, array in receive:
            array[...] = self._table.letters[rank, self.rank].get(timeout=PATIENT)

    def barrier(self) -> None:
        self._all(None)

    def leave(self) -> None:
        self.barrier()

    def abort(self, code: int) -> None:
        self._table.barrier.abort()


def in_threads(size: int, work: Callable[[ThreadComm], Result]) -> list[Result]:
    """Call a function as each of several processes; return what each returned, by rank.

    Where some raise, the first that did not just hear of it is raised here.
    """
    table = _Table(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        comm = ThreadComm(rank, table)
        try:
            results[rank] = work(comm)
        except BaseException as error:
            errors.append(error)
            comm.abort(1)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))
    if errors:
        raise errors[0]
    return results
