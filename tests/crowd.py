"""Processes that are threads: many of them at once, without a launcher."""

import json
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

DEADLINE = 30.0  # seconds


class Crowd:
    """What the members share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=DEADLINE)
        self.table: list[Any] = [None] * size
        self.mail: dict[tuple[int, int], queue.Queue[Any]] = defaultdict(queue.Queue)


class Member:
    """A `sbm.distributed.comm.Comm` of one thread."""

    def __init__(self, crowd: Crowd, rank: int) -> None:
        self._crowd, self.rank, self.size, self.sent = crowd, rank, crowd.size, 0

    def _all(self, mine: Any) -> list[Any]:
        """Show all the others something; what they show must stay as it is."""
        self._crowd.table[self.rank] = mine
        self.barrier()
        found = list(self._crowd.table)
        self.barrier()
        return found

    def add_up(self, array: Any) -> None:
        array[:] = sum(self._all(array.copy()))

    def gather(self, numbers: Any) -> Any:
        return np.array(self._all(list(numbers)), np.float64)

    def share(self, content: Any) -> list[Any]:
        return [json.loads(text) for text in self._all(json.dumps(content))]

    def exchange(self, send: Any, receive: Any) -> None:
        for rank, array in send:
            self.sent += array.nbytes
            self._crowd.mail[self.rank, rank].put(array.copy())
        for rank, array in receive:
            array[:] = self._crowd.mail[rank, self.rank].get(timeout=DEADLINE)

    def barrier(self) -> None:
        self._crowd.barrier.wait()

    def abort(self, code: int) -> None:
        self._crowd.barrier.abort()


def together(size: int, work: Callable[[Member], Any]) -> list[Any]:
    """Return what each of so many members comes to; raise what the first of them raises."""
    crowd = Crowd(size)

    def one(rank: int) -> Any:
        try:
            return work(Member(crowd, rank))
        except BaseException:
            crowd.barrier.abort()  # the others need not wait
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
        errors = [future.exception() for future in futures]
    first = [e for e in errors if e is not None and not isinstance(e, threading.BrokenBarrierError)]
    if first:
        raise first[0]
    return [future.result() for future in futures]
