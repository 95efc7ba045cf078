"""Messages between ranks: bits and bytes of sums, order, deadlines, and how ranks are started."""

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import ranks
from families import Case, make_store
from inside import MpiComm, SerialComm, launched_size, main, patch, world
from inside import cli_processes_module as processes
from inside import distributed_comm_module as comm
from launching import environment
from processes import finished
from threads import in_threads

import sbm
from sbm.errors import SettingsError, StoreError


def bytes_of(name, size):
    """Bytes that all ranks send for a sum: as dense numbers, and as pairs of index and value."""
    terms = [ranks.arrays(rank, size)[name].ravel() for rank in range(size)]
    n = len(terms[0])
    slices = -(-n // ranks.SMALL_SLICE)
    owner = np.empty(n, np.int64)
    for begin in range(0, n, ranks.SMALL_SLICE):
        width = min(ranks.SMALL_SLICE, n - begin)
        cuts = [width * k // size for k in range(1, size)]
        owner[begin : begin + width] = np.searchsorted(cuts, np.arange(width), "right")
    away = sum(np.count_nonzero(term[owner != rank]) for rank, term in enumerate(terms))
    total = np.count_nonzero(ranks.in_order(name, size))
    counts = 8 * slices * size * (size - 1)
    return 16 * n * (size - 1) + counts, 12 * (away + total * (size - 1)) + 3 * counts


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sums_follow_rank_order(monkeypatch, size):
    patch(monkeypatch, "SLICE", ranks.SMALL_SLICE)
    patch(monkeypatch, "SMALL", 0)
    found = {}
    for how, sparse in ranks.HOW.items():
        theirs = in_threads(size, ranks.sums, sparse=sparse)  # which checks the bits
        found[how] = {name: sum(one[name] for one in theirs) for name in theirs[0]}
    if size == 1:
        assert {sent for sums in found.values() for sent in sums.values()} == {0}
        return
    for name in found["all"]:
        assert (found["all"][name], found["pairs"][name]) == bytes_of(name, size), name
    chosen = found["as counted"]
    assert chosen["many"] == found["all"]["many"]
    assert chosen["few"] == found["pairs"]["few"] < 0.2 * found["all"]["few"]
    mixed = "many and few"  # chosen slice by slice
    assert chosen[mixed] < min(found["all"][mixed], found["pairs"][mixed])


@pytest.mark.parametrize("size", [2, 4])
def test_messages_reach_all_ranks_in_order(monkeypatch, size):
    in_threads(size, ranks.speak)
    for most in (1 << 30, 9_999):
        patch(monkeypatch, "MOST_BYTES", most)
        for expected, sent in in_threads(size, ranks.swap):
            assert expected == sent


def test_single_rank_gives_the_same():
    ranks.speak(SerialComm())
    assert SerialComm().sent == 0
    SerialComm().abort(3)  # does nothing


@pytest.mark.long
@pytest.mark.parametrize("silent", [0, 1])
def test_deadline_ends_the_rank_with_75(monkeypatch, capfd, silent):
    """Each message restarts the timeout; only a late one ends the rank."""

    def leave(mine, code):
        raise SystemExit(code)

    over = threading.Event()

    def work(mine):
        for _ in range(4):
            if mine.rank == silent:
                over.wait(0.1)
            mine.barrier()
        if mine.rank == silent:
            over.wait(5)
        else:
            try:
                mine.barrier()
            finally:
                over.set()

    monkeypatch.setattr(MpiComm, "abort", leave)
    with pytest.raises(SystemExit, match="75"):
        in_threads(2, work, timeout=0.3)
    said = capfd.readouterr().err
    assert said.startswith(f"sbm: rank {1 - silent} of 2")
    assert "0.3 s" in said
    assert "--comm-timeout" in said


# ------------------------------------------------------------------------------- how it is started


@pytest.fixture
def alone(monkeypatch):
    """As if neither a launcher nor mpi4py had started the tests."""
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    for name in comm._SIZES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("name", comm._SIZES)
def test_launched_size_is_read_from_the_launcher(alone, name):
    assert launched_size() == 1
    assert isinstance(world(), SerialComm)
    assert "mpi4py" not in sys.modules
    for said, size in (("", 1), ("many", 1), ("-2", 1), ("3", 3)):
        alone.setenv(name, said)
        assert launched_size() == size
    with pytest.raises(SettingsError, match=r"3 processes .* mpiexec -n 3 python -m mpi4py"):
        world()  # each would train a whole model


@pytest.mark.parametrize("command", sorted({*sbm.cli.cli.commands} - {"train"}))
def test_other_commands_refuse_several_processes(alone, capsys, command):
    alone.setenv("PMI_SIZE", "2")
    words = {"precompile": [], "predict": ["a.model", "b.svm"], "tune": ["a.sbm", "-C", "1"]}
    for line, code in ((words.get(command, ["a.sbm"]), 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as end:
            main([command, *line])
        assert (end.value.code or 0) == code
        facts = capsys.readouterr().err
        assert (f"sbm {command}" in facts and " 2 " in f" {facts}") == bool(code)


@pytest.mark.parametrize(("rank", "error", "code", "said"), [
    (0, StoreError("broken"), 1, "sbm: broken"), (1, StoreError("broken"), 1, "sbm: rank 1: "),
    (0, KeyboardInterrupt(), 130, "sbm: stopped"), (1, KeyboardInterrupt(), 130, ""),
])  # fmt: skip
def test_failed_command_ends_the_other_ranks(
    tmp_path, monkeypatch, capsys, rank, error, code, said
):
    ends, waits = [], []

    def fail(content):
        raise error

    one = SimpleNamespace(rank=rank, size=2, share=fail, gather=fail, abort=ends.append)
    patch(monkeypatch, "world", lambda timeout: one)
    patch(monkeypatch, "_others", [])
    monkeypatch.setattr(processes.time, "sleep", waits.append)
    store = make_store(tmp_path, *Case("hinge", 2).rows(), blocks=2)
    with pytest.raises(SystemExit, match=str(code)):
        main(["train", "-q", str(store), "-o", str(tmp_path / "m.model")])
    assert ends == [code]
    assert len(waits) == rank  # rank 0 is heard first
    found = capsys.readouterr().err.split("\n")
    assert [line[: len(said)] for line in found if line] == ([said] if said else [])


@pytest.mark.process
def test_single_process_does_not_import_mpi4py(tmp_path):
    (tmp_path / "a.svm").write_text("+1 1:1\n-1 2:1\n" * 20)
    script = """
import sys, sbm
sbm.split("a.svm", "a.sbm")
sbm.train("a.sbm")
print([name for name in sys.modules if name.startswith("mpi4py")])
"""
    done = finished([sys.executable, "-c", script], env=environment(), cwd=tmp_path, check=True)
    assert done.stdout == "[]\n"


def test_world_is_what_mpi4py_started(alone):
    mpi = SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_rank=lambda: 1, Get_size=lambda: 2))
    alone.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    assert (world(50).rank, world(50).size) == (1, 2)
    mpi.COMM_WORLD.Get_size = lambda: 1
    assert isinstance(world(50), SerialComm)
    alone.setenv("PMI_SIZE", "2")
    with pytest.raises(SettingsError, match=r"2 processes .* different MPI libraries"):
        world(50)
    alone.setitem(sys.modules, "mpi4py", SimpleNamespace())
    with pytest.raises(SettingsError, match=r"mpi4py .*mpich"):
        world(50)
