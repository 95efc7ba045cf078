"""Messages between two hosts: what goes over the cable, and what happens when it breaks."""

import contextlib
import json
import re

import numpy as np
import pytest
from families import Case
from helpers import write_rows
from launching import LIMIT, MPI4PY, MPIEXEC, RANKS, all_gone, environment, needs_mpi, pids_of
from processes import finished, wait_until
from two_hosts import two_hosts, why_not

import sbm

REASON = why_not()
pytestmark = [needs_mpi, pytest.mark.netns, pytest.mark.skipif(bool(REASON), reason=REASON)]
DEADLINE = 3  # seconds


@pytest.fixture
def both(tmp_path):
    with two_hosts(tmp_path) as hosts:
        yield hosts


@pytest.mark.parametrize("per_host", [1, 2])
@pytest.mark.parametrize(("n", "every"), [(2_000_000, 1), (6_000_000, 20)], ids=["all", "pairs"])
def test_what_goes_over_the_cable_is_what_is_counted(both, tmp_path, per_host, n, every):
    wire = both.run(per_host, RANKS, "sum_of", tmp_path, n, every)
    size = 2 * per_host
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    assert [one["host"] for one in found] == ["sbm1"] * per_host + ["sbm2"] * per_host
    assert all(one["right"] for one in found)
    # Of the others that a process sends to, so many are on the other host.
    away = per_host / (size - 1)
    for k, sent in enumerate(wire):
        here = found[k * per_host : (k + 1) * per_host]
        assert sent == pytest.approx(away * sum(one["sent"] for one in here), rel=0.2)


@pytest.mark.parametrize("per_host", [1, 2])
def test_a_model_of_two_hosts_is_that_of_one(both, tmp_path, per_host):
    write_rows(tmp_path / "a.svm", *Case("hinge", 2).rows(1, n=80))
    sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", blocks=4)
    program = ("-m", "sbm", "train", "-q", "--tol", "0.05", tmp_path / "a.sbm", "-o")
    line = [MPIEXEC, "-n", 2 * per_host, *MPI4PY, *program, tmp_path / "one.model"]
    finished([str(w) for w in line], check=True, env=environment())
    both.run(per_host, *program, tmp_path / "two.model")
    assert (tmp_path / "two.model").read_bytes() == (tmp_path / "one.model").read_bytes()


def test_a_training_sends_over_the_cable_what_it_reports(both, tmp_path):
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 20_000)) * (random.random((300, 20_000)) < 0.3)
    write_rows(tmp_path / "a.svm", X, random.choice([-1.0, 1.0], 300))
    sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", blocks=4)
    model = tmp_path / "m.model"
    program = ("-q", "--tol", "1e-6", "--max-passes", "500", tmp_path / "a.sbm", "-o", model)
    sent = both.run(1, "-m", "sbm", "train", *program)
    report = json.loads((tmp_path / "m.model.run" / "status.json").read_text())["report"]
    n_sums = 2 * report["passes"] + 1  # two syncs a pass, and a certificate
    assert report["bytes_sent"] == pytest.approx(n_sums * 20_000 * 8, rel=0.2)
    assert sent[0] == pytest.approx(report["bytes_sent"], rel=0.2)


@pytest.fixture
def going(both, tmp_path):
    """Two processes on each host that add up for ever, and their launcher."""
    with both.start(2, RANKS, "for_ever", tmp_path, DEADLINE) as launcher:
        wait_until(lambda: len(list(tmp_path.glob("*.going"))) == 4, launcher)
        yield launcher


def test_without_the_cable_all_end_at_their_deadline(both, going, tmp_path):
    assert all(len(host.processes()) > 2 for host in both.hosts)
    both.cut()
    assert all_gone(pids_of(tmp_path), within=LIMIT)
    # The launcher itself waits for the other host, longer than we would: who starts it ends it.
    going.kill()
    _, said = going.communicate()
    assert re.search(rf"sbm: process [01] of 4 heard nothing of the others for {DEADLINE} s", said)


def test_when_a_host_dies_all_end(both, going, tmp_path):
    both.hosts[1].kill_all()
    going.communicate()
    assert going.returncode != 0
    assert all_gone(pids_of(tmp_path))
    wait_until(lambda: not any(host.processes() for host in both.hosts))


def test_nothing_is_left_of_two_hosts(tmp_path):
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(RuntimeError), two_hosts(tmp_path) as both:
            launcher = stack.enter_context(both.start(1, RANKS, "for_ever", tmp_path, DEADLINE))
            wait_until(lambda: len(list(tmp_path.glob("*.going"))) == 2, launcher)
            raise RuntimeError("of the test")
        launcher.communicate()
        assert launcher.returncode != 0
    assert all_gone([*pids_of(tmp_path), *(host.holder.pid for host in both.hosts)])
