"""Messages between two hosts: bytes on the cable, and behaviour after it breaks."""

import json
import re

import pytest
from families import Case, make_store
from launching import LIMIT, MPI4PY, MPIEXEC, RANKS, all_gone, environment, needs_mpi, pids_of
from processes import finished, wait_until
from two_hosts import two_hosts, why_not

REASON = why_not()
pytestmark = [
    needs_mpi, pytest.mark.slow, pytest.mark.process, pytest.mark.netns,
    pytest.mark.skipif(bool(REASON), reason=REASON),
]  # fmt: skip
DEADLINE = 3  # seconds


@pytest.fixture
def both(tmp_path):
    with two_hosts(tmp_path) as hosts:
        yield hosts


@pytest.mark.parametrize(("n", "every"), [(2_000_000, 1), (6_000_000, 20)], ids=["all", "pairs"])
def test_cable_carries_the_bytes_counted(both, tmp_path, n, every):
    wire = both.run(2, RANKS, "sum_of", tmp_path, n, every)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [one["host"] for one in found] == ["sbm1", "sbm1", "sbm2", "sbm2"]
    assert all(one["right"] for one in found)
    for sent, here in zip(wire, (found[:2], found[2:]), strict=True):
        # Of the three other processes, two are on the other host.
        assert sent == pytest.approx(2 / 3 * sum(one["sent"] for one in here), rel=0.2)


def test_two_hosts_train_same_model_as_one(both, tmp_path):
    store = make_store(tmp_path, *Case("hinge", 2).rows(1, n=80), blocks=4)
    program = ("-m", "sbm", "train", "-q", "--tol", "0.05", store, "-o")
    line = [MPIEXEC, "-n", 4, *MPI4PY, *program, tmp_path / "one.model"]
    finished(line, check=True, env=environment())
    both.run(2, *program, tmp_path / "two.model")
    assert (tmp_path / "two.model").read_bytes() == (tmp_path / "one.model").read_bytes()


@pytest.mark.parametrize("fault", ["cable", "host"])
def test_ranks_exit_when_other_host_disappears(both, tmp_path, fault):
    with both.start(2, RANKS, "for_ever", tmp_path, DEADLINE) as launcher:
        wait_until(lambda: len(list(tmp_path.glob("*.going"))) == 4, launcher)
        if fault == "cable":
            both.cut()
            assert all_gone(pids_of(tmp_path), within=LIMIT)
            launcher.kill()  # it waits for the other host, longer than we would
            _, said = launcher.communicate()
            assert re.search(rf"sbm: .*rank [01] of 4.* {DEADLINE}", said)
        else:
            both.kill(1)
            launcher.communicate()
            assert launcher.returncode != 0
            assert all_gone(pids_of(tmp_path))
