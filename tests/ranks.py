"""What each process does in the tests of messages: ``mpiexec ... ranks.py NAME FOLDER ...``.

A process leaves ``RANK.pid`` in the folder when it starts, and what it found in ``RANK.json``.
"""

import hashlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sbm
from sbm.distributed import comm as messages
from sbm.distributed.comm import Comm, MpiComm, world

PATIENT = 60.0  # seconds
SMALL_SLICE = 1000
HOW = {"as counted": None, "pairs": True, "all": False}


# ------------------------------------------------------------------------------ arrays to add


def _spread(rng: np.random.Generator, n: int) -> npt.NDArray[np.float64]:
    """Numbers so different in size that their sum depends on the order."""
    values: npt.NDArray[np.float64] = rng.normal(size=n) * 10.0 ** rng.integers(-8, 9, n)
    return values


def _few(rng: np.random.Generator, n: int, share: float = 0.02) -> npt.NDArray[np.float64]:
    return _spread(rng, n) * (rng.random(n) < share)


def arrays(rank: int, size: int) -> dict[str, npt.NDArray[np.float64]]:
    """What a process adds up, by name; each process can make those of the others."""
    rng = np.random.default_rng(rank)
    strange = _spread(rng, 50)
    strange[7:10] = [[np.nan, np.inf, np.inf], [1.0, -np.inf, 1.0]][rank > 0]
    cancelling = np.full(500, float(rank)) * (np.arange(500) % 3 == 0)
    cancelling[::6] = {0: 1.0, size - 1: -1.0}.get(rank, 0.0)
    return {
        "nothing": np.empty(0),
        **{f"{n} numbers": _spread(rng, n) for n in (1, 2, 3, 5)},
        "matrix": _spread(rng, 37 * 5).reshape(37, 5),
        "cube of few": _few(rng, 3000).reshape(10, 20, 15),
        "many": _spread(rng, 5 * SMALL_SLICE + 77),
        "few": _few(rng, 5 * SMALL_SLICE + 77),
        "many and few": np.append(_spread(rng, 2 * SMALL_SLICE), _few(rng, 2 * SMALL_SLICE)),
        "many of one": _spread(rng, 2500) * (rank == size - 1),
        "zeros": np.zeros(2500),
        "minus zeros": np.full(2500, -0.0),
        "not numbers": strange,
        "cancelling": cancelling,
    }


def in_order(name: str, ranks: list[int]) -> npt.NDArray[np.float64]:
    """The sum that is expected: one after the other; of one process what it has."""
    terms = [arrays(rank, len(ranks))[name] for rank in ranks]
    if len(terms) == 1:
        return terms[0]
    total = np.zeros(terms[0].shape)
    with np.errstate(invalid="ignore"):
        for term in terms:
            total += term
    return total


def bits(array: npt.NDArray[np.float64]) -> str:
    """All that there is in an array, NaN being NaN."""
    plain = np.where(np.isnan(array), np.nan, array)
    return hashlib.sha256(plain.tobytes()).hexdigest() + str(array.shape)


def sums(folder: Path) -> dict[str, Any]:
    """Bits and bytes of sums, by how zeros are sent and by name of the array."""
    messages.SLICE = SMALL_SLICE
    found: dict[str, Any] = {}
    for how, sparse in HOW.items():
        comm = MpiComm(PATIENT, sparse=sparse)
        for name, array in arrays(comm.rank, comm.size).items():
            before = comm.sent
            with np.errstate(invalid="ignore"):
                comm.add_up(array)
            found.setdefault(how, {})[name] = {"bits": bits(array), "sent": comm.sent - before}
    return found


def large_sum(folder: Path) -> dict[str, Any]:
    """How much memory a sum of 64 MB takes, and whether it is right."""
    comm = world(PATIENT)
    comm.add_up(np.ones(3 * messages.SLICE))  # what MPI takes once
    array = np.arange(8_000_000, dtype=np.float64)
    before = _peak()
    comm.add_up(array)
    grown = _peak() - before
    right = bool((array == comm.size * np.arange(8_000_000)).all())
    return {"array": array.nbytes, "grown": grown, "right": right}


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --------------------------------------------------------------------------- all other messages


def speak(comm: Comm) -> None:
    """Hold a Comm, of whatever kind, to what it promises, sums apart."""
    size, rank = comm.size, comm.rank
    got = comm.gather([rank, 0.1, np.inf])
    assert got.dtype == np.float64
    assert got.tolist() == [[k, 0.1, np.inf] for k in range(size)]
    assert comm.gather([]).shape == (size, 0)

    long = {"of": rank, "text": "Grüße \N{SNOWMAN} \udc80", "list": [None, True, 1.5] * 1000 * rank}
    shared = comm.share(long)
    assert shared == [{**long, "of": k, "list": [None, True, 1.5] * 1000 * k} for k in range(size)]
    assert shared[rank] is not long
    assert comm.share((rank,)) == [[k] for k in range(size)]

    array = np.arange(5.0)
    comm.add_up(array)
    assert array.tolist() == [size * k for k in range(5)]
    comm.exchange([], [])
    comm.barrier()


def talk(folder: Path) -> None:
    """Speak in several ways."""
    comm = MpiComm(PATIENT)
    speak(comm)
    speak(comm)
    assert world(PATIENT).size == comm.size


def swap(folder: Path) -> dict[str, Any]:
    """Exchange arrays round in a circle, several at a time, large ones and in pieces."""
    comm = MpiComm(PATIENT)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def kinds(rank: int) -> list[npt.NDArray[Any]]:
        rng = np.random.default_rng(rank)
        return [
            rng.normal(size=(7, 3)),
            rng.integers(0, 99, 1000).astype(np.int32),
            np.empty(0),
            rng.integers(0, 255, 3_000_000).astype(np.uint8),
            np.full((), rank + 0.5),
        ]

    sent = []
    for most in (messages.MOST_BYTES, 100_000):
        messages.MOST_BYTES = most
        mine, room = kinds(comm.rank), [np.full_like(array, 1) for array in kinds(source)]
        before = comm.sent
        comm.exchange([(to, array) for array in mine], [(source, array) for array in room])
        sent.append(comm.sent - before)
        for array, expected in zip(room, kinds(source), strict=True):
            assert array.tobytes() == expected.tobytes()

    # Everybody to everybody, and two to the same one, of which the order says which is which.
    others = [k for k in range(comm.size) if k != comm.rank]
    room = [np.empty(2) for _ in (*others, *others)]
    comm.exchange(
        [(k, np.array([comm.rank, turn])) for turn in (0.0, 1.0) for k in others],
        list(zip((*others, *others), room, strict=True)),
    )
    assert [array.tolist() for array in room] == [[k, turn] for turn in (0, 1) for k in others]
    return {"sent": sent, "of": sum(array.nbytes for array in kinds(comm.rank))}


# --------------------------------------------------------------------------------------- faults


def fail(folder: Path, rank: str) -> None:
    """One process has a mistake, while the others wait for it."""
    comm = world(PATIENT)
    comm.barrier()
    if comm.rank == int(rank):
        raise RuntimeError("of one process")
    comm.add_up(np.ones(10))


def give_up(folder: Path, rank: str, code: str) -> None:
    """One process ends all."""
    comm = world(PATIENT)
    comm.barrier()
    if comm.rank == int(rank):
        comm.abort(int(code))
    comm.share("others wait")


def signalled(folder: Path, rank: str, name: str, timeout: str) -> None:
    """One process gets a signal between two sums; who gives up then notes its exit code."""
    comm = world(float(timeout))
    leave = os._exit

    def note_and_leave(code: int) -> None:
        noted = folder / f"{comm.rank}.noted"
        noted.write_text(str(code))
        noted.rename(folder / f"{comm.rank}.code")  # it may be killed at any moment
        leave(code)

    os._exit = note_and_leave
    comm.add_up(np.ones(10))
    if comm.rank == int(rank):
        os.kill(os.getpid(), signal.Signals[name])
    comm.add_up(np.ones(10))


def interrupted(folder: Path, rank: str) -> None:
    """One process gets Ctrl-C while it waits for the others."""
    comm = world(PATIENT)
    comm.barrier()
    if comm.rank == int(rank):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        comm.barrier()
    time.sleep(PATIENT)


def not_started(folder: Path, rank: str, timeout: str) -> None:
    """One process ends before it has said a word."""
    if int(os.environ["PMI_RANK"]) != int(rank):
        world(float(timeout))


def not_ended(folder: Path, rank: str, timeout: str) -> None:
    """One process stands still when all is done."""
    comm = world(float(timeout))
    comm.barrier()
    if comm.rank == int(rank):
        os.kill(os.getpid(), signal.SIGSTOP)


def for_ever(folder: Path, timeout: str) -> None:
    """Add up until something happens."""
    comm = world(float(timeout))
    while True:
        comm.add_up(np.ones(100_000))
        (folder / f"{comm.rank}.going").touch()


def train_all(folder: Path) -> None:
    """Train in several ways, with zeros sent and not."""
    for name, sparse in (("mpi", None), ("pairs", True), ("all", False)):
        train_each(MpiComm(PATIENT, sparse=sparse), folder, name)


def train_each(comm: Comm, folder: Path, name: str) -> None:
    """Train a model of each store there; its settings are in a file beside it."""
    for store in sorted(folder.glob("*.sbm")):
        options = json.loads(store.with_suffix(".json").read_text())
        sbm.train(store, store.with_suffix(f".{name}.model"), options, comm=comm)


def sum_of(folder: Path, n: str, every: str) -> dict[str, Any]:
    """One sum in which every so many numbers are not 0; what was sent, and from where."""
    comm = MpiComm(PATIENT)
    array, places = np.zeros(int(n)), slice(None, None, int(every))
    array[places] = comm.rank + 1.0
    expected = np.zeros(int(n))
    expected[places] = comm.size * (comm.size + 1) / 2
    comm.add_up(array)
    right = bool((array == expected).all())
    return {"sent": comm.sent, "right": right, "host": os.uname().nodename}


def main(name: str, folder: Path, *rest: str) -> None:
    rank = os.environ.get("PMI_RANK", "0")
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    found = globals()[name](folder, *rest)
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
