"""Messages between the processes of one training: over MPI, or to nobody.

All processes run the same program and call the same methods equally often. `SerialComm` is the one
of a program that runs alone; `MpiComm` stands on mpi4py, which is imported here and nowhere else.

A sum is taken range by range: of every slice each process gets one range from all the others, adds
in the order of their numbers, and sends the sum to all (reduce-scatter and allgather). So all hold
the same bits, whatever MPI library it is, and numbers that are 0 need not be sent: sparse ranges
are lists of places and values, wherever these take less than half of the bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["EXIT_TIMEOUT", "Comm", "MpiComm", "SerialComm", "launched_size", "world"]

Floats = npt.NDArray[np.float64]
Message = tuple[int, npt.NDArray[Any]]

EXIT_TIMEOUT = 75
TIMEOUT = 600.0
# Numbers that are added at a time: what a process needs for it is twice as large, whatever W is.
SLICE = 1 << 19
PAIR_BYTES = 12  # a place and a value
MOST_BYTES = 1 << 30  # of a message: an MPI library may count in 32 bits
# A rank that waits looks again soon at first, and then seldom enough to leave the core to others.
SPINS, SHORTEST, LONGEST = 200, 2e-5, 1e-3


class Comm(Protocol):
    """What a process says to the others.

    Attributes
    ----------
    rank, size : int
        Number of this process, from 0, and how many there are.
    sent : int
        Bytes this process has sent to others, headers apart.
    """

    rank: int
    size: int
    sent: int

    def add_up(self, array: npt.NDArray[Any]) -> None:
        """Replace an array, float64 and C-contiguous, by its sum over all processes."""

    def gather(self, numbers: Sequence[float]) -> Floats:
        """Return a few numbers of each process, shape (size, n), float64."""

    def share(self, content: Any) -> list[Any]:
        """Return JSON content of each process, by rank."""

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        """Send arrays to processes, and receive others in place, all at the same time.

        Between two processes the arrays come in the order in which they are sent.
        """

    def barrier(self) -> None:
        """Wait for all the others."""

    def leave(self) -> None:
        """Part from the others, when all is said: how this process ends is its own affair then."""

    def abort(self, code: int) -> None:
        """End all the processes, this one included; alone, do nothing."""


class SerialComm:
    """Of a program that runs alone."""

    rank, size, sent = 0, 1, 0

    def add_up(self, array: npt.NDArray[Any]) -> None:
        """See `Comm`."""

    def gather(self, numbers: Sequence[float]) -> Floats:
        """See `Comm`."""
        return np.array([numbers], np.float64)

    def share(self, content: Any) -> list[Any]:
        """See `Comm`."""
        return [content]

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        """See `Comm`; there is nobody to send to."""
        assert not send
        assert not receive

    def barrier(self) -> None:
        """See `Comm`."""

    def leave(self) -> None:
        """See `Comm`."""

    def abort(self, code: int) -> None:
        """See `Comm`."""


class MpiComm:
    """Over MPI; nothing waits longer than the deadline.

    Parameters
    ----------
    timeout : float
        Seconds. Where the others are not heard of for so long, the process ends with
        `EXIT_TIMEOUT`, and the launcher ends the others.
    world : mpi4py.MPI.Intracomm, optional
        Default: all processes.
    sparse : bool or None
        Send zeros or not; None: as the counts say. No result depends on it.
    """

    def __init__(
        self,
        timeout: float = TIMEOUT,
        world: MPI.Intracomm | None = None,
        sparse: bool | None = None,
    ) -> None:
        from mpi4py import MPI

        self._mpi, self._world, self._sparse = MPI, world or MPI.COMM_WORLD, sparse
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self._timeout = timeout
        self.sent = 0

    # ----------------------------------------------------------------------------- collectives

    def add_up(self, array: npt.NDArray[Any]) -> None:
        """See `Comm`."""
        assert array.dtype == np.float64
        assert array.flags.c_contiguous
        flat = array.reshape(-1)
        parts = [flat[k : k + SLICE] for k in range(0, len(flat), SLICE)]
        if not parts or self.size == 1:
            return
        counts = self._gather(np.array([np.count_nonzero(part) for part in parts], np.int64))
        for part, n_nonzero in zip(parts, counts.sum(axis=0), strict=True):
            self._add_up_slice(part, int(n_nonzero))

    def _add_up_slice(self, part: Floats, n_nonzero: int) -> None:
        """Sum a slice that has so many nonzeros in all processes together."""
        ends = np.array([len(part) * k // self.size for k in range(self.size + 1)])
        own = part[ends[self.rank] : ends[self.rank + 1]]
        if self._is_sparse(n_nonzero, self.size * len(part)):
            total = self._collect_pairs(part, ends)
        else:
            total = self._collect(part, ends)
        sizes = self._gather(np.array([np.count_nonzero(total)], np.int64))[:, 0]
        if self._is_sparse(int(sizes.sum()), len(part)):
            self._spread_pairs(total, part, ends, sizes)
        else:
            own[:] = total
            widths = np.diff(ends)
            self._count(own.nbytes * (self.size - 1))
            self._wait(
                self._world.Iallgatherv(self._mpi.IN_PLACE, [part, (widths, ends[:-1])])
            )  # fmt: skip

    def _is_sparse(self, n_nonzero: int, n: int) -> bool:
        """Whether places and values take less than half as many bytes as all numbers."""
        return 2 * PAIR_BYTES * n_nonzero < 8 * n if self._sparse is None else self._sparse

    def _collect(self, part: Floats, ends: npt.NDArray[np.int64]) -> Floats:
        """Return the sum of this process's range."""
        width = int(ends[self.rank + 1] - ends[self.rank])
        theirs = np.empty((self.size, width))
        here = np.full(self.size, width)
        self._count(part.nbytes - 8 * width)
        self._wait(
            self._world.Ialltoallv(
                [part, (np.diff(ends), ends[:-1])],
                [theirs, (here, np.arange(self.size) * width)],
            )
        )
        total: Floats = theirs[0]
        for other in theirs[1:]:
            total += other
        return total

    def _collect_pairs(self, part: Floats, ends: npt.NDArray[np.int64]) -> Floats:
        """Return the sum of this process's range; places and values are sent."""
        places = np.flatnonzero(part)
        cuts = np.searchsorted(places, ends)
        widths = np.diff(cuts)
        values = part[places]
        local = (places - np.repeat(ends[:-1], widths)).astype(np.int32)
        theirs = np.empty(self.size, np.int64)
        self._wait(self._world.Ialltoall(widths.astype(np.int64), theirs))
        begins = np.cumsum(theirs) - theirs
        got, numbers = np.empty(theirs.sum(), np.int32), np.empty(theirs.sum())
        for mine, received in ((local, got), (values, numbers)):
            self._count(mine.itemsize * int(len(mine) - widths[self.rank]))
            self._wait(
                self._world.Ialltoallv([mine, (widths, cuts[:-1])], [received, (theirs, begins)])
            )
        total = np.zeros(ends[self.rank + 1] - ends[self.rank])
        for begin, n in zip(begins, theirs, strict=True):  # in the order of the ranks
            total[got[begin : begin + n]] += numbers[begin : begin + n]
        return total

    def _spread_pairs(
        self, total: Floats, part: Floats, ends: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """Give all processes the sums of all ranges; places and values are sent."""
        places = np.flatnonzero(total)
        begins = np.cumsum(sizes) - sizes
        got, numbers = np.empty(sizes.sum(), np.int32), np.empty(sizes.sum())
        for mine, received in ((places.astype(np.int32), got), (total[places], numbers)):
            self._count(mine.nbytes * (self.size - 1))
            self._wait(self._world.Iallgatherv(mine, [received, (sizes, begins)]))
        part[:] = 0.0
        part[got + np.repeat(ends[:-1], sizes)] = numbers

    def _gather(self, mine: npt.NDArray[Any]) -> npt.NDArray[Any]:
        theirs = np.empty((self.size, *mine.shape), mine.dtype)
        self._count(mine.nbytes * (self.size - 1))
        self._wait(self._world.Iallgather(mine, theirs))
        return theirs

    def gather(self, numbers: Sequence[float]) -> Floats:
        """See `Comm`."""
        theirs: Floats = self._gather(np.array(numbers, np.float64))
        return theirs

    def share(self, content: Any) -> list[Any]:
        """See `Comm`."""
        mine = np.frombuffer(json.dumps(content).encode(), np.uint8)
        sizes = self._gather(np.array([len(mine)], np.int64))[:, 0]
        ends = np.cumsum(sizes)
        theirs = np.empty(ends[-1], np.uint8)
        self._count(mine.nbytes * (self.size - 1))
        self._wait(self._world.Iallgatherv(mine, [theirs, (sizes, ends - sizes)]))
        texts = [theirs[end - n : end].tobytes() for end, n in zip(ends, sizes, strict=True)]
        return [json.loads(text) for text in texts]

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        """See `Comm`."""
        waiting = [
            self._world.Irecv(piece, rank) for rank, array in receive for piece in _pieces(array)
        ]
        for rank, array in send:
            self._count(array.nbytes)
            waiting += [self._world.Isend(piece, rank) for piece in _pieces(array)]
        self._wait(*waiting)

    def barrier(self) -> None:
        """See `Comm`."""
        self._wait(self._world.Ibarrier())

    def leave(self) -> None:
        """See `Comm`; a launcher that is told nothing takes an exit code above 0 for a crash."""
        self.barrier()
        self._mpi.Finalize()

    def abort(self, code: int) -> None:
        """See `Comm`."""
        if not self._mpi.Is_finalized():
            self._world.Abort(code)

    # -------------------------------------------------------------------------------- waiting

    def _count(self, n_bytes: int) -> None:
        self.sent += n_bytes

    def _wait(self, *requests: MPI.Request) -> None:
        """Wait until all is sent and received, or the deadline."""
        waiting, begin, pause, looks = list(requests), time.monotonic(), SHORTEST, 0
        while not self._mpi.Request.Testall(waiting):
            looks += 1
            if looks < SPINS:
                continue
            if time.monotonic() - begin > self._timeout:
                self._give_up()
            time.sleep(pause)
            pause = min(LONGEST, 1.5 * pause)

    def _give_up(self) -> NoReturn:
        text = (
            f"sbm: process {self.rank} of {self.size} heard nothing of the others for "
            f"{self._timeout:g} s (--comm-timeout): one of them, or the network, stands still; "
            "all end, the same command goes on from the last commit\n"
        )
        try:
            os.write(2, text.encode())
        finally:
            os._exit(EXIT_TIMEOUT)


def _pieces(array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Cut an array into messages of a bounded size, as bytes."""
    flat = array.reshape(-1).view(np.uint8)
    return [flat[k : k + MOST_BYTES] for k in range(0, len(flat), MOST_BYTES)]


# Variables by which launchers tell a process how many there are.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def launched_size() -> int:
    """Return how many processes the launcher says it has started; 1 without a launcher."""
    sizes = [os.environ.get(name, "") for name in _SIZES]
    return max((int(size) for size in sizes if size.isdecimal()), default=1)


def world(timeout: float = TIMEOUT) -> Comm:
    """Return what the process was started with: over MPI if mpi4py started it.

    Raises
    ------
    SettingsError
        Several processes were started that do not know each other; each would train a whole model.
    """
    line = f"mpiexec -n {launched_size()} python -m mpi4py -m sbm train ..."
    if "mpi4py.run" not in sys.modules and "mpi4py" not in sys.modules:
        if launched_size() > 1:
            raise SettingsError(
                f"{launched_size()} processes were started, but not through mpi4py, so that none "
                f"knows the others; start them with {line}"
            )
        return SerialComm()
    comm = MpiComm(timeout)
    if comm.size == 1 and launched_size() > 1:
        raise SettingsError(
            f"{launched_size()} processes were started, but each of them is alone: the launcher is "
            "of another MPI than the one mpi4py has found; use the mpiexec of that one"
        )
    return comm if comm.size > 1 else SerialComm()
