"""Programs of each rank in tests of several: ``mpiexec ... ranks.py NAME FOLDER ...``.

A process writes ``RANK.pid`` to the folder when it starts, and its result to ``RANK.json``.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from inside import Comm, MpiComm, train_ranks, world
from inside import distributed_comm_module as messages

PATIENT = 300.0  # seconds, on a busy machine
SMALL_SLICE = 1000
HOW = {"as counted": None, "pairs": True, "all": False}  # how zeros are sent


# ------------------------------------------------------------------------------ arrays to add


def _spread(rng: np.random.Generator, n: int) -> npt.NDArray[np.float64]:
    """Numbers so different in size that their sum depends on the order."""
    values: npt.NDArray[np.float64] = rng.normal(size=n) * 10.0 ** rng.integers(-8, 9, n)
    return values


def arrays(rank: int, size: int) -> dict[str, npt.NDArray[np.float64]]:
    """Return the arrays that a rank adds up, by name; every rank can compute those of others."""
    rng = np.random.default_rng(rank)
    few = _spread(rng, 5 * SMALL_SLICE + 75) * (rng.random(5 * SMALL_SLICE + 75) < 0.02)
    strange = _spread(rng, 50)
    strange[7:10] = [[np.nan, np.inf, np.inf], [1.0, -np.inf, 1.0]][rank > 0]
    cancelling = np.full(500, float(rank)) * (np.arange(500) % 3 == 0)
    cancelling[::6] = {0: 1.0, size - 1: -1.0}.get(rank, 0.0)
    return {
        "nothing": np.empty(0),
        **{f"{n} numbers": _spread(rng, n) for n in (1, 2, 3, 5)},
        "matrix": _spread(rng, 37 * 5).reshape(37, 5),
        "cube of few": few[-3000:].reshape(10, 20, 15).copy(),
        "many": _spread(rng, 5 * SMALL_SLICE + 77),
        "few": few,
        "many and few": np.append(_spread(rng, 2 * SMALL_SLICE), few[: 2 * SMALL_SLICE]),
        "many of one": _spread(rng, 2500) * (rank == size - 1),
        "zeros": np.zeros(2500),
        "minus zeros": np.full(2500, -0.0),
        "not numbers": strange,
        "cancelling": cancelling,
    }


def in_order(name: str, size: int) -> npt.NDArray[np.float64]:
    """Return the expected sum, added rank by rank."""
    terms = [arrays(rank, size)[name] for rank in range(size)]
    if size == 1:
        return terms[0]
    total = np.zeros(terms[0].shape)
    with np.errstate(invalid="ignore"):
        for term in terms:
            total += term
    return total


def sums(comm: Comm) -> dict[str, int]:
    """Check the bits of all sums; return the bytes that this process sent, by name."""
    found = {}
    for name, array in arrays(comm.rank, comm.size).items():
        before, expected = comm.sent, in_order(name, comm.size)
        with np.errstate(invalid="ignore"):
            comm.add_up(array)
        nan = np.isnan(expected)
        assert (np.isnan(array) == nan).all()
        assert array[~nan].tobytes() == expected[~nan].tobytes(), name
        found[name] = comm.sent - before
    return found


# --------------------------------------------------------------------------- all other messages


def speak(comm: Comm) -> None:
    """Check that small messages of all ranks reach all ranks."""
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


def swap(comm: Comm) -> list[int]:
    """Check arrays that go round in a circle and to all others; return size and bytes sent."""
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def kinds(rank: int) -> list[npt.NDArray[Any]]:
        rng = np.random.default_rng(rank)
        return [
            rng.normal(size=(7, 3)),
            rng.integers(0, 99, 1000).astype(np.int32),
            np.empty(0),
            rng.integers(0, 255, 300_000).astype(np.uint8),
            np.full((), rank + 0.5),
        ]

    mine, room, before = kinds(comm.rank), [np.ones_like(a) for a in kinds(source)], comm.sent
    comm.exchange([(to, array) for array in mine], [(source, array) for array in room])
    sent = comm.sent - before
    for array, expected in zip(room, kinds(source), strict=True):
        assert array.tobytes() == expected.tobytes()

    # Two arrays to the same rank: their order decides which is which.
    others = [k for k in range(comm.size) if k != comm.rank]
    pairs = [np.empty(2) for _ in (*others, *others)]
    comm.exchange(
        [(k, np.array([comm.rank, turn])) for turn in (0.0, 1.0) for k in others],
        list(zip((*others, *others), pairs, strict=True)),
    )
    assert [array.tolist() for array in pairs] == [[k, turn] for turn in (0, 1) for k in others]
    return [sum(array.nbytes for array in mine), sent]


def all_messages(folder: Path) -> dict[str, dict[str, int]]:
    """Check every kind of message; return what sums sent, by how zeros are sent."""
    messages.SLICE = SMALL_SLICE
    speak(world(PATIENT))
    for messages.MOST_BYTES in (1 << 30, 10_000):  # arrays whole and in pieces
        size, sent = swap(world(PATIENT))
        assert size == sent
    return {how: sums(MpiComm(PATIENT, sparse=sparse)) for how, sparse in HOW.items()}


# ----------------------------------------------------------------------------------- trainings


def train_all(folder: Path) -> None:
    """Train in several ways, with zeros sent and not."""
    for name, sparse in (("mpi", None), ("pairs", True), ("all", False)):
        train_each(MpiComm(PATIENT, sparse=sparse), folder, name)


def train_each(comm: Comm, folder: Path, name: str) -> None:
    """Train a model on each store in the folder, with the settings in a file next to it."""
    for store in sorted(folder.glob("*.sbm")):
        options = json.loads(store.with_suffix(".json").read_text())
        train_ranks(comm, store, store.with_suffix(f".{name}.model"), options)


def command(folder: Path, fault: str, *words: str) -> None:
    """Run a command of sbm that may meet a fault.

    A fault is a JSON list ``[rank, function, when, count, signal]``: process `rank` sends itself
    the signal before or after its `count`-th call of the function; null means no fault. The rank
    touches ``RANK.there`` at that call.
    """
    from inside import Dual, Engine, Model, Run, StatusFile
    from inside import module_main as run

    rank, chosen = os.environ["PMI_RANK"], json.loads(fault)
    if chosen is not None and str(chosen[0]) == rank:
        owner, method = chosen[1].split(".")
        owners = {one.__name__: one for one in (Dual, Engine, Model, MpiComm, Run, StatusFile)}

        def fall() -> None:
            (folder / f"{rank}.there").touch()
            os.kill(os.getpid(), signal.Signals[chosen[4]])

        _meet(owners[owner], method, chosen[2], chosen[3], fall)
    sys.argv[1:] = words
    run()


def _meet(owner: Any, method: str, when: str, count: int, what: Callable[[], None]) -> None:
    """Do something before or after a call of a method."""
    original, calls = getattr(owner, method), [0]

    def faulty(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == count and when == "before":
            what()
        result = original(*arguments, **options)
        if calls[0] == count and when == "after":
            what()
        return result

    setattr(owner, method, faulty)


# --------------------------------------------------------------------------------------- faults


def for_ever(folder: Path, timeout: str) -> None:
    """Add up until something happens."""
    comm = world(float(timeout))
    while True:
        comm.add_up(np.ones(100_000))
        (folder / f"{comm.rank}.going").touch()


def sum_of(folder: Path, n: str, every: str) -> dict[str, Any]:
    """Sum arrays in which every so many numbers are not 0; return host, bytes sent, and memory."""
    comm = MpiComm(PATIENT)
    comm.add_up(np.ones(3 * messages.SLICE))  # what MPI itself allocates once
    before, sent = _peak(), comm.sent
    array, places = np.zeros(int(n)), slice(None, None, int(every))
    array[places] = comm.rank + 1.0
    comm.add_up(array)
    right = bool((array[places] == comm.size * (comm.size + 1) / 2).all())
    return {
        "sent": comm.sent, "of": comm.sent - sent, "right": right, "host": os.uname().nodename,
        "grown": _peak() - before,
    }  # fmt: skip


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(name: str, folder: Path, *rest: str) -> None:
    rank = os.environ.get("PMI_RANK", "0")
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    found = globals()[name](folder, *rest)
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
