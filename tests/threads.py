"""Ranks of one training as threads: `MpiComm` with an in-memory MPI."""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
from inside import MpiComm

Result = TypeVar("Result")
PATIENT = 300.0  # seconds, on a busy machine


class AbortedError(Exception):
    """Another rank failed."""


class _Request:
    """A message under way: `finish` receives it as soon as `is_ready`."""

    def __init__(
        self,
        is_ready: Callable[[], bool] = lambda: True,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_ready, self.finish, self.is_done = is_ready, finish, False


class _Mpi:
    """The part of mpi4py.MPI that `MpiComm` uses, for ranks in one process."""

    IN_PLACE = object()
    COMM_WORLD = None

    def __init__(self, size: int) -> None:
        self.size, self.is_aborted, self.changed = size, False, threading.Condition()
        self.letters: dict[Any, list[Any]] = defaultdict(list)
        self.Request = SimpleNamespace(Testsome=self._test_some)

    def post(self, key: Any, content: Any) -> None:
        with self.changed:
            self.letters[key].append(content)
            self.changed.notify_all()

    def abort(self) -> None:
        with self.changed:
            self.is_aborted = True
            self.changed.notify_all()

    def _test_some(self, requests: Sequence[_Request]) -> list[int] | None:
        waiting = [k for k, request in enumerate(requests) if not request.is_done]
        if not waiting:
            return None
        with self.changed:
            self.changed.wait_for(
                lambda: self.is_aborted or any(requests[k].is_ready() for k in waiting), 0.05
            )
            if self.is_aborted:
                raise AbortedError
            done = [k for k in waiting if requests[k].is_ready()]
        for k in done:
            requests[k].finish()
            requests[k].is_done = True
        return done


class _World:
    """The communicator of one rank."""

    def __init__(self, mpi: _Mpi, rank: int) -> None:
        self._mpi, self._rank = mpi, rank
        self._calls = 0  # of collectives: every rank makes the same ones
        self._received: dict[int, int] = defaultdict(int)

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._mpi.size

    def _collective(self, mine: Any, put: Callable[[int, Any], None]) -> _Request:
        """Show something to all ranks; `put` takes what each has shown."""
        self._calls += 1
        letters = self._mpi.letters[self._calls]
        self._mpi.post(self._calls, (self._rank, mine))

        def receive() -> None:
            for rank, theirs in letters:
                put(rank, theirs)

        return _Request(lambda: len(letters) == self._mpi.size, receive)

    def Ibarrier(self) -> _Request:
        return self._collective(None, lambda rank, theirs: None)

    def Iallgather(self, mine: Any, theirs: Any) -> _Request:
        return self._collective(mine.copy(), theirs.__setitem__)

    def Iallgatherv(self, mine: Any, into: Any) -> _Request:
        target, (counts, begins) = into
        parts = [target[b : b + n] for b, n in zip(begins, counts, strict=True)]
        mine = parts[self._rank] if mine is self._mpi.IN_PLACE else mine
        return self._collective(mine.copy(), lambda rank, array: np.copyto(parts[rank], array))

    def Ialltoall(self, mine: Any, theirs: Any) -> _Request:
        own = self._rank
        return self._collective(mine.copy(), lambda rank, row: theirs.__setitem__(rank, row[own]))

    def Ialltoallv(self, mine: Any, theirs: Any) -> _Request:
        (array, (counts, begins)), (target, (widths, places)) = mine, theirs
        out = [array[b : b + n].copy() for b, n in zip(begins, counts, strict=True)]
        room = [target[b : b + n] for b, n in zip(places, widths, strict=True)]
        own = self._rank
        return self._collective(out, lambda rank, parts: np.copyto(room[rank], parts[own]))

    def Isend(self, array: Any, rank: int) -> _Request:
        self._mpi.post((self._rank, rank), array.copy())
        return _Request()

    def Irecv(self, array: Any, rank: int) -> _Request:
        letters, number = self._mpi.letters[rank, self._rank], self._received[rank]
        self._received[rank] += 1

        def receive() -> None:
            array[...] = letters[number]

        return _Request(lambda: len(letters) > number, receive)


def in_threads(
    size: int, work: Callable[[MpiComm], Result], timeout: float = PATIENT, **options: Any
) -> list[Result]:
    """Call a function as each of several ranks; return the results by rank.

    If some raise, the first error that is not `AbortedError` is raised here.
    """
    mpi, errors = _Mpi(size), []
    results: list[Any] = [None] * size
    with patch.dict(sys.modules, {"mpi4py": SimpleNamespace(MPI=mpi)}):
        comms = [MpiComm(timeout, _World(mpi, rank), **options) for rank in range(size)]

    def run(rank: int) -> None:
        try:
            results[rank] = work(comms[rank])
        except BaseException as error:
            errors.append(error)
            mpi.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors.sort(key=lambda error: isinstance(error, AbortedError))
    if errors:
        raise errors[0]
    return results
