"""Messages between processes: their bits, their bytes, and how all end when one does not answer."""

import json
import os
import re
import select
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import ranks
from launching import LIMIT, MPI4PY, MPIEXEC, RANKS, all_gone, environment, needs_mpi, pids_of
from processes import finished, started

from sbm.distributed import comm
from sbm.distributed.comm import SerialComm, launched_size, world
from sbm.errors import SettingsError


def launch(size, folder, name, *arguments):
    """Run a function of ranks.py in so many processes."""
    line = [MPIEXEC, "-n", size, *MPI4PY, RANKS, name, folder, *arguments]
    return finished([str(word) for word in line], env=environment())


def run(size, folder, name, *arguments):
    """Run a function of ranks.py that ends well; what each process found."""
    done = launch(size, folder, name, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


# ----------------------------------------------------------------------------------------- sums


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def summed(request, tmp_path_factory):
    """What each process has of all sums."""
    return run(request.param, tmp_path_factory.mktemp("sums"), "sums")


NAMES = tuple(ranks.arrays(0, 1))


def sent(summed, how, name):
    """Bytes that all processes together have sent."""
    return sum(found[how][name]["sent"] for found in summed)


@needs_mpi
def test_a_sum_is_taken_in_the_order_of_the_processes_bit_for_bit(summed):
    size = len(summed)
    for name in NAMES:
        assert summed[0]["all"][name]["bits"] == ranks.bits(ranks.in_order(name, [*range(size)]))


def test_in_another_order_the_bits_are_others():
    expected = ranks.in_order("many", [0, 1, 2])
    assert ranks.bits(ranks.in_order("many", [2, 1, 0])) != ranks.bits(expected)


@needs_mpi
def test_all_processes_have_the_same_bits_whether_zeros_are_sent_or_not(summed):
    for name in NAMES:
        seen = {found[how][name]["bits"] for found in summed for how in ranks.HOW}
        assert len(seen) == 1, name


@needs_mpi
def test_all_numbers_cost_what_the_model_says(summed):
    size = len(summed)
    for name in NAMES:
        n = ranks.arrays(0, size)[name].size
        slices = -(-n // ranks.SMALL_SLICE)
        counts = 8 * slices * size * (size - 1)  # of what is not 0
        assert sent(summed, "all", name) == 16 * n * (size - 1) + counts, name


@needs_mpi
def test_pairs_cost_what_the_model_says(summed):
    size = len(summed)
    for name in NAMES:
        terms = [ranks.arrays(rank, size)[name].ravel() for rank in range(size)]
        n = len(terms[0])
        begins = range(0, n, ranks.SMALL_SLICE)
        owner = np.empty(n, np.int64)
        for begin in begins:
            width = min(ranks.SMALL_SLICE, n - begin)
            cuts = [width * k // size for k in range(1, size)]
            owner[begin : begin + width] = np.searchsorted(cuts, np.arange(width), "right")
        away = sum(np.count_nonzero(term[owner != rank]) for rank, term in enumerate(terms))
        total = np.count_nonzero(ranks.in_order(name, [*range(size)]))
        counts = 3 * 8 * len(begins) * size * (size - 1)
        expected = 12 * (away + total * (size - 1)) + counts
        assert sent(summed, "pairs", name) == (expected if size > 1 else 0), name


@needs_mpi
def test_what_is_sent_is_chosen_slice_by_slice(summed):
    if len(summed) == 1:
        assert {sent(summed, how, name) for how in ranks.HOW for name in NAMES} == {0}
        return
    assert sent(summed, "as counted", "many") == sent(summed, "all", "many")
    assert sent(summed, "as counted", "few") == sent(summed, "pairs", "few")
    assert sent(summed, "as counted", "few") < 0.2 * sent(summed, "all", "few")
    both = [sent(summed, how, "many and few") for how in ("as counted", "pairs", "all")]
    assert both[0] < min(both[1:])


@needs_mpi
def test_memory_of_a_sum_does_not_grow_with_the_array(tmp_path):
    for found in run(2, tmp_path, "large_sum"):
        assert found["right"]
        assert found["grown"] < found["array"] / 4


# ------------------------------------------------------------------------------- other messages


@needs_mpi
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_numbers_and_words_of_all_reach_all(tmp_path, size):
    run(size, tmp_path, "talk")


def test_alone_it_is_the_same():
    ranks.speak(SerialComm())
    assert SerialComm().sent == 0
    SerialComm().abort(3)  # does nothing


@needs_mpi
@pytest.mark.parametrize("size", [2, 3, 4])
def test_arrays_change_places_in_order(tmp_path, size):
    for found in run(size, tmp_path, "swap"):
        assert found["sent"] == [found["of"], found["of"]]


# ------------------------------------------------------------------------------- how it is started


def python(*arguments, **variables):
    """Run Python by itself."""
    return finished([sys.executable, *map(str, arguments)], env=environment(**variables))


def test_who_trains_alone_does_not_import_mpi4py(tmp_path):
    (tmp_path / "a.svm").write_text("+1 1:1\n-1 2:1\n" * 20)
    script = """
import sys
from sbm.cli import main
from sbm.distributed.comm import world
for line in (["split", "-q", "a.svm"], ["train", "-q", "a.sbm"]):
    try:
        main(line)
    except SystemExit as ended:
        assert not ended.code, ended.code
assert type(world()).__name__ == "SerialComm"
print([name for name in sys.modules if name.startswith("mpi4py")])
"""
    done = finished([sys.executable, "-c", script], env=environment(), cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def alone(monkeypatch):
    """As if neither a launcher nor mpi4py had started the tests."""
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    for name in comm._SIZES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("name", comm._SIZES)
def test_launchers_say_how_many_there_are(alone, name):
    assert launched_size() == 1
    for said, size in (("3", 3), ("", 1), ("many", 1), ("-2", 1)):
        alone.setenv(name, said)
        assert launched_size() == size


def test_processes_that_know_nothing_of_each_other_are_refused(alone):
    alone.setenv("PMI_SIZE", "2")
    with pytest.raises(SettingsError) as error:
        world()
    assert str(error.value) == (
        "2 processes were started, but not through mpi4py, so that none knows the others; "
        "start them with mpiexec -n 2 python -m mpi4py -m sbm train ..."
    )


WORLD = "from sbm.distributed.comm import world; print(type(world(9)).__name__)"


@needs_mpi
def test_a_launcher_of_another_mpi_is_refused():
    done = python("-m", "mpi4py", "-c", WORLD, OMPI_COMM_WORLD_SIZE="2")
    assert done.returncode == 1
    assert (
        "sbm.errors.SettingsError: 2 processes were started, but each of them is alone: the "
        "launcher is of another MPI than the one mpi4py has found; use the mpiexec of that one"
    ) in done.stderr.splitlines()


@needs_mpi
def test_one_process_through_mpi4py_is_alone():
    done = python("-m", "mpi4py", "-c", WORLD)
    assert (done.returncode, done.stdout, done.stderr) == (0, "SerialComm\n", "")


@needs_mpi
def test_without_an_mpi_library_a_sentence_says_so():
    done = python("-m", "mpi4py", "-c", WORLD, MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"sbm\.errors\.SettingsError: mpi4py cannot use an MPI library \(.*/nowhere/libmpi\.so.*\);"
        r" where there is none, pip install 'mpich>=5,<6' brings one",
        said,
    ), said


# --------------------------------------------------------------------------------------- faults

DEADLINE = 3  # seconds


def sentence(rank, size):
    return (
        f"sbm: process {rank} of {size} heard nothing of the others for {DEADLINE} s "
        "(--comm-timeout): one of them, or the network, stands still; "
        "all end, the same command goes on from the last commit"
    )


@needs_mpi
def test_a_mistake_in_one_process_ends_all(tmp_path):
    done = launch(3, tmp_path, "fail", 1)
    assert done.returncode == 1
    assert "RuntimeError: of one process" in done.stderr.splitlines()
    assert all_gone(pids_of(tmp_path))


@needs_mpi
def test_one_process_can_end_all_with_a_code(tmp_path):
    assert launch(3, tmp_path, "give_up", 1, 7).returncode == 7
    assert all_gone(pids_of(tmp_path))


@needs_mpi
def test_control_c_while_one_waits_ends_all(tmp_path):
    done = launch(2, tmp_path, "interrupted", 1)
    assert done.returncode == 130
    assert "KeyboardInterrupt" in done.stderr
    assert all_gone(pids_of(tmp_path))


@needs_mpi
def test_a_process_that_stands_still_meets_the_deadline(tmp_path):
    done = launch(3, tmp_path, "signalled", 1, "SIGSTOP", DEADLINE)
    # Not always 75: where mpiexec hears of all of them at once it is the signal it sent to one.
    assert done.returncode in (75, 9)
    codes = {path.stem: path.read_text() for path in tmp_path.glob("*.code")}
    assert codes
    assert codes.items() <= {("0", "75"), ("2", "75")}
    said = [line for line in done.stderr.splitlines() if line.startswith("sbm:")]
    assert said
    assert set(said) <= {sentence(0, 3), sentence(2, 3)}
    assert all_gone(pids_of(tmp_path))


def test_who_gives_up_says_so_and_ends_with_75(monkeypatch, capfd):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    comm.MpiComm._give_up(SimpleNamespace(rank=2, size=3, _timeout=DEADLINE))
    assert codes == [75]
    assert capfd.readouterr().err == sentence(2, 3) + "\n"


WAITS = """
import os, sys
from sbm.distributed import comm
comm.HEARD = float(sys.argv[1])
os.write(2, b"the last word")
os.write(1, b"said")
comm._wait_until_heard()
os.write(int(sys.argv[2]), b"heard")
"""


@pytest.mark.parametrize(("seconds", "is_read"), [(600.0, True), (0.01, False)])
def test_who_ends_all_waits_until_the_launcher_has_read_but_not_for_ever(seconds, is_read):
    ear, mouth = os.pipe()
    line = [sys.executable, "-c", WAITS, seconds, mouth]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "pass_fds": [mouth]}
    with started(line, **streams) as process:
        os.close(mouth)
        assert process.stdout.read(4) == b"said"
        if is_read:
            assert select.select([ear], [], [], 0.2)[0] == []
            assert process.stderr.read(13) == b"the last word"
        assert os.read(ear, 10) == b"heard"
    os.close(ear)


def test_what_is_no_pipe_is_not_waited_for(tmp_path):
    with open(tmp_path / "out.txt", "wb") as file:
        line = [sys.executable, "-c", WAITS, "600", "1"]
        assert finished(line, stdout=file, stderr=file).returncode == 0
    assert (tmp_path / "out.txt").read_bytes() == b"the last wordsaidheard"


@needs_mpi
def test_a_process_that_is_killed_ends_all(tmp_path):
    done = launch(3, tmp_path, "signalled", 1, "SIGKILL", LIMIT)
    assert done.returncode != 0
    assert "sbm:" not in done.stderr  # nobody has waited for the deadline
    assert all_gone(pids_of(tmp_path))


@needs_mpi
@pytest.mark.parametrize("name", ["not_started", "not_ended"])
def test_start_and_end_meet_the_deadline(tmp_path, name):
    done = launch(2, tmp_path, name, 1, 2)
    assert done.returncode != 0
    assert "Alarm clock (signal 14)" in done.stdout
    assert all_gone(pids_of(tmp_path))
