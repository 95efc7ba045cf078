"""Communication between the ranks of one training.

All ranks run the same program and make the same sequence of calls. `SerialComm` is for a single
process; `MpiComm` uses mpi4py, which is imported only here.

A sum is computed slice by slice. Each rank receives its range of the slice from all others, adds
the parts in the order of the ranks, and sends the sum to all (reduce-scatter and allgather). So all
ranks get the same bits with any MPI library. Zeros need not be sent: sparse ranges are sent as
indices and values if that takes less than half of the bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError

if TYPE_CHECKING:
    from mpi4py import MPI

Floats = npt.NDArray[np.float64]
Message = tuple[int, npt.NDArray[Any]]

EXIT_TIMEOUT = 75
TIMEOUT = 600.0
# Numbers per slice of a sum: a rank needs memory for at most 5 times as many in addition to W.
SLICE = 1 << 19
SMALL = 8192  # fewer numbers are sent to all ranks at once
PAIR_BYTES = 12  # an index and a value
MOST_BYTES = 1 << 30  # per message: an MPI library may count in 32 bits
# Polling, in seconds. Messages progress only during a poll, so a waiting rank polls without a pause
# but lets other processes run; after a while it sleeps for a share of the time waited.
SPIN, SHARE, LONGEST = 0.05, 0.005, 1e-3


class Comm(Protocol):
    """Collective operations between the ranks.

    Attributes
    ----------
    rank, size : int
        Number of this rank, from 0, and the number of ranks.
    sent : int
        Bytes this rank has sent to others, without the overhead of MPI and the network.
    """

    rank: int
    size: int
    sent: int

    def add_up(self, array: npt.NDArray[Any]) -> None:
        """Replace an array, float64 and C-contiguous, by its sum over all ranks."""

    def gather(self, numbers: Sequence[float]) -> Floats:
        """Gather n numbers from each rank; return shape (size, n), float64."""

    def collect(
        self, mine: npt.NDArray[Any], sizes: npt.NDArray[np.int64]
    ) -> list[npt.NDArray[Any]]:
        """Return the array of each rank, by rank; all know their sizes.

        Parameters
        ----------
        mine : ndarray, shape (sizes[rank],)
        sizes : ndarray, shape (size,), int64
        """

    def share(self, content: Any) -> list[Any]:
        """Return the JSON content of each rank, by rank, as copies."""

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        """Send arrays to other ranks and receive others in place, all at the same time.

        Between two ranks, arrays arrive in the order they are sent, and sizes must match. Arrays to
        receive into must be C-contiguous.
        """

    def barrier(self) -> None:
        """Wait for all ranks."""

    def leave(self) -> None:
        """Finish communication; after this the ranks may exit independently."""

    def abort(self, code: int) -> None:
        """End all ranks, including this one; without other ranks, do nothing."""


class SerialComm:
    """Communication of a single process."""

    rank, size, sent = 0, 1, 0

    def add_up(self, array: npt.NDArray[Any]) -> None:
        """See `Comm`."""

    def gather(self, numbers: Sequence[float]) -> Floats:
        """See `Comm`."""
        return np.array([numbers], np.float64)

    def collect(
        self, mine: npt.NDArray[Any], sizes: npt.NDArray[np.int64]
    ) -> list[npt.NDArray[Any]]:
        """See `Comm`."""
        return [mine]

    def share(self, content: Any) -> list[Any]:
        """See `Comm`."""
        return [json.loads(json.dumps(content))]

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        """See `Comm`; both lists must be empty."""
        assert not send
        assert not receive

    def barrier(self) -> None:
        """See `Comm`."""

    def leave(self) -> None:
        """See `Comm`."""

    def abort(self, code: int) -> None:
        """See `Comm`."""


class Replicas(SerialComm):
    """Communication of rank 0 as if all ranks had the same content as this process.

    Parameters
    ----------
    size : int
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self, numbers: Sequence[float]) -> Floats:
        """See `Comm`."""
        return np.tile(np.array(numbers, np.float64), (self.size, 1))

    def share(self, content: Any) -> list[Any]:
        """See `Comm`."""
        return [json.loads(json.dumps(content)) for _ in range(self.size)]


class MpiComm:
    """Communication over MPI, with a timeout.

    Parameters
    ----------
    timeout : float
        Seconds. If no message arrives for that long, all ranks end with `EXIT_TIMEOUT`.
    world : mpi4py.MPI.Intracomm, optional
        Default: all ranks.
    sparse : bool or None
        Whether to send only nonzeros. None: choose by their number. Results do not depend on it.
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
        self._scratch = np.empty(0)  # kept: a new array each time took longer than its messages
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
        if len(flat) <= SMALL:
            flat[:] = 0.0 + np.add.reduce(self._gather(flat), axis=0)
            return
        counts = self._gather(np.array([np.count_nonzero(part != 0.0) for part in parts], np.int64))
        for part, n_nonzero in zip(parts, counts.sum(axis=0), strict=True):
            self._add_up_slice(part, int(n_nonzero))

    def _add_up_slice(self, part: Floats, n_nonzero: int) -> None:
        """Sum a slice with `n_nonzero` nonzeros in all ranks together."""
        ends = np.array([len(part) * k // self.size for k in range(self.size + 1)])
        own = part[ends[self.rank] : ends[self.rank + 1]]
        if self._is_sparse(n_nonzero, self.size * len(part)):
            total = self._collect_pairs(part, ends)
            sizes = self._gather(np.array([np.count_nonzero(total != 0.0)], np.int64))[:, 0]
            if self._is_sparse(int(sizes.sum()), len(part)):
                self._spread_pairs(total, part, ends, sizes)
                return
        else:  # the sum of dense terms is dense
            total = self._collect(part, ends)
        own[:] = total
        self._count(own.nbytes * (self.size - 1))
        everywhere = [part, (np.diff(ends), ends[:-1])]
        self._wait(self._world.Iallgatherv(self._mpi.IN_PLACE, everywhere))

    def _is_sparse(self, n_nonzero: int, n: int) -> bool:
        """Return whether indices and values take less than half the bytes of all numbers."""
        return 2 * PAIR_BYTES * n_nonzero < 8 * n if self._sparse is None else self._sparse

    def _collect(self, part: Floats, ends: npt.NDArray[np.int64]) -> Floats:
        """Return the sum of this rank's range."""
        width = int(ends[self.rank + 1] - ends[self.rank])
        if len(self._scratch) < self.size * width:
            self._scratch = np.empty(self.size * width)
        theirs = self._scratch[: self.size * width]
        self._send_parts(part, ends, theirs, width * np.arange(self.size + 1))
        total, *others = theirs.reshape(self.size, width)
        total += 0.0  # 0.0 + -0.0 is 0.0: the same as for pairs, which omit -0.0
        for other in others:
            total += other
        return total

    def _collect_pairs(self, part: Floats, ends: npt.NDArray[np.int64]) -> Floats:
        """Return the sum of this rank's range; indices and values are sent."""
        places = np.flatnonzero(part != 0.0)  # several times as fast as for numbers
        cuts = np.searchsorted(places, ends)
        widths = np.diff(cuts)
        values = part[places]
        local = (places - np.repeat(ends[:-1], widths)).astype(np.int32)
        theirs = np.empty(self.size, np.int64)
        self._count(theirs.nbytes - theirs.itemsize)
        self._wait(self._world.Ialltoall(widths, theirs))
        bounds = np.append(0, np.cumsum(theirs))
        got, numbers = np.empty(bounds[-1], np.int32), np.empty(bounds[-1])
        self._send_parts(local, cuts, got, bounds)
        self._send_parts(values, cuts, numbers, bounds)
        width = int(ends[self.rank + 1] - ends[self.rank])
        return cast("Floats", np.bincount(got, numbers, width))  # adds in the order of the ranks

    def _send_parts(
        self,
        mine: npt.NDArray[Any],
        cuts: npt.NDArray[np.int64],
        received: npt.NDArray[Any],
        bounds: npt.NDArray[np.int64],
    ) -> None:
        """Send each rank its part of an array, and receive one part from each.

        The rank's own part is copied directly: sending it through MPI took more than ten times as
        long as all the others.
        """
        own = self.rank
        received[bounds[own] : bounds[own + 1]] = mine[cuts[own] : cuts[own + 1]]
        there, here = np.diff(cuts), np.diff(bounds)
        there[own] = here[own] = 0
        self._count(mine.itemsize * int(there.sum()))
        self._wait(
            self._world.Ialltoallv([mine, (there, cuts[:-1])], [received, (here, bounds[:-1])])
        )

    def _spread_pairs(
        self, total: Floats, part: Floats, ends: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """Give all ranks the sums of all ranges; indices and values are sent."""
        places = np.flatnonzero(total != 0.0)
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

    def collect(
        self, mine: npt.NDArray[Any], sizes: npt.NDArray[np.int64]
    ) -> list[npt.NDArray[Any]]:
        """See `Comm`."""
        ends = np.cumsum(sizes)
        theirs = np.empty(ends[-1], mine.dtype)
        self._count(mine.nbytes * (self.size - 1))
        self._wait(self._world.Iallgatherv(mine, [theirs, (sizes, ends - sizes)]))
        return np.split(theirs, ends[:-1])

    def share(self, content: Any) -> list[Any]:
        """See `Comm`."""
        mine = np.frombuffer(json.dumps(content).encode(), np.uint8)
        sizes = self._gather(np.array([len(mine)], np.int64))[:, 0]
        return [json.loads(text.tobytes()) for text in self.collect(mine, sizes)]

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        """See `Comm`."""
        assert all(array.flags.c_contiguous for _, array in receive)
        assert all(rank != self.rank for rank, _ in (*send, *receive))
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
        """See `Comm`; without this, a launcher treats an exit code above 0 as a crash."""
        self.barrier()
        self._mpi.Finalize()

    def abort(self, code: int) -> None:
        """See `Comm`; waits first, so that the launcher can forward the last output."""
        if not self._mpi.Is_finalized():
            time.sleep(0.5)
            self._world.Abort(code)
            os._exit(code)  # Abort returns if the launcher cannot be reached

    # -------------------------------------------------------------------------------- waiting

    def _count(self, n_bytes: int) -> None:
        self.sent += n_bytes

    def _wait(self, *requests: MPI.Request) -> None:
        """Wait until all requests are complete; the timeout restarts with each completion."""
        waiting, heard = list(requests), time.monotonic()
        while (done := self._mpi.Request.Testsome(waiting)) is not None:
            now = time.monotonic()
            if done:
                heard = now
            elif now - heard > self._timeout:
                self._give_up()
            elif now - heard > SPIN:
                time.sleep(min(LONGEST, SHARE * (now - heard)))
            else:
                os.sched_yield()

    def _give_up(self) -> None:
        text = (
            f"sbm: rank {self.rank} of {self.size}: no message from the other ranks for "
            f"{self._timeout:g} s (--comm-timeout); aborting. Run the same command to resume from "
            "the last checkpoint.\n"
        )
        try:
            os.write(2, text.encode())
        finally:
            self.abort(EXIT_TIMEOUT)


def _pieces(array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Cut an array into messages of a bounded size, as bytes."""
    flat = array.reshape(-1).view(np.uint8)
    return [flat[k : k + MOST_BYTES] for k in range(0, len(flat), MOST_BYTES)]


# Environment variables in which launchers pass the number of ranks.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def launched_size() -> int:
    """Return the number of ranks that the launcher started; 1 without a launcher."""
    sizes = [os.environ.get(name, "") for name in _SIZES]
    return max((int(size) for size in sizes if size.isdecimal()), default=1)


def world(timeout: float = TIMEOUT) -> Comm:
    """Return the communication of this process: `MpiComm` if it was started through mpi4py.

    Call it first. The timeout applies to messages only: MPI itself waits without limit for all
    ranks to start and to end.

    Raises
    ------
    SettingsError
        Several processes were started that cannot communicate, so that each would train a whole
        model; or no MPI library was found.
    """
    if "mpi4py" not in sys.modules:
        if launched_size() > 1:
            raise SettingsError(
                f"{launched_size()} processes were started without mpi4py and cannot "
                f"communicate; start them with mpiexec -n {launched_size()} python -m mpi4py "
                "-m sbm train ..."
            )
        return SerialComm()
    try:
        comm = MpiComm(timeout)  # waits for all ranks to start
    except (ImportError, RuntimeError) as error:
        raise SettingsError(
            f"mpi4py cannot load an MPI library ({' '.join(str(error).split())}); if none is "
            "installed, run: pip install 'mpich>=5,<6'"
        ) from None
    if comm.size == 1 and launched_size() > 1:
        raise SettingsError(
            f"{launched_size()} processes were started, but they cannot communicate: the launcher "
            "and mpi4py use different MPI libraries; use the mpiexec of mpi4py's MPI"
        )
    return comm if comm.size > 1 else SerialComm()
