"""Ranks started by MPI: same bytes as ranks in threads, one output, and every early end."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import ranks
from families import Case, make_store
from helpers import load_script
from inside import EXIT_TIMEOUT, Run, patch, runs_here, train_ranks
from launching import (
    MPI4PY,
    MPIEXEC,
    OPEN_MPI,
    RANKS,
    all_gone,
    environment,
    needs_mpi,
    needs_open_mpi,
    open_mpi_environment,
    pids_of,
)
from processes import finished, started, wait_until
from threads import in_threads

import sbm

pytestmark = pytest.mark.process
OPTIONS = {
    "C": 0.1,
    "tol": 1e-4,
    "max_passes": 300,
    "mem": "400MB",
    "threads": 1,
    "parts": "blocks",
}
WORDS = shlex.split("-C 0.1 --tol 1e-4 --max-passes 300 --mem 400MB --threads 1 --parts blocks")
# Writes a checkpoint at the end of every round.
OFTEN = ["--checkpoint-every", "0.001s"]


def line_of(size, *words):
    """Return the command line that starts several ranks."""
    return [str(word) for word in (MPIEXEC, "-n", size, *MPI4PY, *words)]


def launch(size, *words):
    """Run an sbm command with several ranks."""
    return finished(line_of(size, "-m", "sbm", *words), env=environment())


def said(done):
    """Return the lines that sbm wrote to stderr, without those of the launcher."""
    return [text for text in done.stderr.splitlines() if text.startswith(("sbm:", "Error:"))]


def played(size, store, name="played.model", **options):
    """Return the bytes that ranks in threads write."""
    path = store.parent / name
    in_threads(size, lambda comm: train_ranks(comm, store, path, {**OPTIONS, **options}))
    return path.read_bytes()


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path, *Case("hinge", 2).rows(1), blocks=5)


@pytest.fixture
def model(tmp_path):
    return tmp_path / "m.model"


def run_of(model):
    return model.with_name(model.name + ".run")


def state(model):
    return json.loads((run_of(model) / "status.json").read_text())["state"]


# ------------------------------------------------------------------------------------ messages

SIZES = [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4))]


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize("size", SIZES)
def test_mpi_sends_what_threads_send(tmp_path, monkeypatch, size):
    done = finished(line_of(size, RANKS, "all_messages", tmp_path), env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    patch(monkeypatch, "SLICE", ranks.SMALL_SLICE)
    for how, sparse in ranks.HOW.items():
        assert [one[how] for one in found] == in_threads(size, ranks.sums, sparse=sparse)


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_write_the_bytes_of_threads(tmp_path, size):
    for case in (Case("hinge", 2), Case("weston_watkins", 3), Case("hinge", 3),
                 Case("one_class", 1, {"nu": 0.2})):  # fmt: skip
        store = make_store(tmp_path, *case.rows(1), name=str(case), blocks=5)
        settings = (
            {k: v for k, v in OPTIONS.items() if k != "C"}
            | case.at(0.1)
            | {"tol": 1e-3, "parts": "blocks"}
        )
        store.with_suffix(".json").write_text(json.dumps(settings))
    done = finished(line_of(size, RANKS, "train_all", tmp_path), env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    in_threads(size, lambda comm: ranks.train_each(comm, tmp_path, "threads"))
    for store in tmp_path.glob("*.sbm"):
        expected = store.with_suffix(".threads.model").read_bytes()
        for name in ("mpi", "pairs", "all"):
            assert store.with_suffix(f".{name}.model").read_bytes() == expected, (store, name)


@needs_mpi
@pytest.mark.slow
def test_memory_of_a_sum_is_bounded(tmp_path):
    n = 8_000_000
    finished(line_of(2, RANKS, "sum_of", tmp_path, n, 1), env=environment(), check=True)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["right"]
        assert found["grown"] - 8 * n < 8 * n / 4


# ------------------------------------------------------------------------------------ one voice


@pytest.mark.long
@needs_mpi
def test_launch_writes_and_reports_once(store, model):
    words = ["train", str(store), "-o", str(model), *WORDS]
    done = finished([sys.executable, "-m", "sbm", *words, "--launch", "2"], env=environment())
    assert done.returncode == 0
    assert model.read_bytes() == played(2, store)
    lines = done.stderr.splitlines()
    assert lines[0] == shlex.join(line_of(2, "-m", "sbm", *words))
    passes = [int(text.split()[0]) for text in lines if text.split()[0].isdecimal()]
    assert passes == sorted(set(passes))
    assert [text.startswith(str(model)) for text in done.stdout.splitlines()] == [
        True,
        False,
        False,
        False,
    ]


def rows_of_two_classes():
    return Case("hinge", 2).rows(1)


def rows_of_many_classes():
    """So many classes and features that the weights are divided by class."""
    random = np.random.default_rng(0)
    X = random.random((1500, 10_000), np.float32) * (random.random((1500, 10_000)) < 0.002)
    return X.astype(float), np.arange(1500.0) % 750


@needs_mpi
@needs_open_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "rows", "family"),
    [
        ("hinge", rows_of_two_classes, "dual"),
        ("crammer_singer", rows_of_many_classes, "classes"),
    ],
)
def test_open_mpi_writes_the_bytes_of_mpich(tmp_path, loss, rows, family):
    store = make_store(tmp_path, *rows(), blocks=5)
    words = f"--loss {loss} -C 0.1 --tol 1e-2 --mem 200MB --threads 1 --json".split()
    line, bytes_of = "from mpi4py import MPI; print(MPI.Get_library_version())", {}
    for name, python, env in (
        ("MPICH", sys.executable, environment()),
        ("Open MPI", OPEN_MPI / "bin" / "python", open_mpi_environment()),
    ):
        assert name in finished([python, "-c", line], env=env).stdout
        for size in (1, 2):
            model = tmp_path / f"{name}-{size}.model"
            launched = [python, "-m", "sbm", "train", store, "-o", model, "--launch", size, *words]
            done = finished(launched, env=env)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout).get("processes", 1) == size
            bytes_of[name, size] = model.read_bytes()
        assert Run.read(run_of(tmp_path / f"{name}-1.model"))["method"]["family"] == family
    for size in (1, 2):
        assert bytes_of["Open MPI", size] == bytes_of["MPICH", size]


@needs_mpi
@pytest.mark.slow
def test_unconverged_json_is_one_object(store, model):
    done = launch(2, "train", store, "-o", model, *WORDS, "--json", "--max-passes", "1")
    assert done.returncode == 3
    report = json.loads(done.stdout)
    assert (report["processes"], report["converged"], report["model"]) == (2, False, str(model))
    (text,) = said(done)
    assert "--max-passes" in text
    assert state(model) == "finished"


@needs_mpi
@pytest.mark.parametrize(("words", "code", "fact"), [
    (["d.sbm", "--tol", "-1"], 2, "--tol"),
    pytest.param(["d.sbm", "--rouns", "3"], 2, "No such option", marks=pytest.mark.slow),
    pytest.param(["no.sbm"], 1, "no.sbm", marks=pytest.mark.slow),
    pytest.param(["d.sbm", "--mem", "100MB"], 1, "--mem", marks=pytest.mark.slow),
])  # fmt: skip
def test_common_error_is_reported_once(store, model, words, code, fact):
    done = launch(2, "train", store.parent / words[0], "-o", model, *WORDS, *words[1:])
    assert done.returncode == code
    (text,) = said(done)
    assert fact in text
    assert not model.exists()


@pytest.mark.long
@needs_mpi
def test_damage_in_one_rank_ends_all(store, model):
    played(2, store)
    folder = store.with_name("played.model.run") / "rank-1-of-2"
    path = store / f"block-{Run.read(folder)['own'][0]:06d}.sbb"
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    done = launch(2, "train", "-q", store, "-o", model, *WORDS)
    assert done.returncode == 1
    (text,) = said(done)
    assert text.startswith(f"sbm: rank 1: {path}")
    assert not model.exists()
    assert state(model) == "running"


# -------------------------------------------------------------------------------- ended early


def begin(size, store, model, fault=None, *words):
    """Start a training that meets a fault, see `ranks.command`."""
    for path in (*store.parent.glob("*.pid"), *store.parent.glob("*.there")):
        path.unlink()
    words = ["train", "-q", store, "-o", model, *WORDS, *OFTEN, *words]
    return started(
        line_of(size, RANKS, "command", store.parent, json.dumps(fault), *words),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def end(process, store):
    """Wait until all processes have ended; return exit code and output."""
    out, err = process.communicate()
    assert len(pids_of(store.parent)) > 0
    assert all_gone(pids_of(store.parent))
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def fall(size, store, model, fault, *words):
    """Run a training until its fault."""
    with begin(size, store, model, fault, *words) as process:
        done = end(process, store)
    assert (store.parent / f"{fault[0]}.there").exists(), f"{fault} has not come: {done}"
    assert done.returncode != 0
    return done


def resume(size, store, model, *words):
    """Let the same command finish; return the bytes of the model."""
    with begin(size, store, model, None, *words) as process:
        done = end(process, store)
    assert (done.returncode, done.stderr) == (0, "")
    assert state(model) == "finished"
    return model.read_bytes()


def assert_unfinished(model):
    assert not model.exists()
    assert state(model) == "running"


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize(("solver", "faults"), [
    ("auto", [[1, "MpiComm.add_up", "after", 3], [0, "Run.commit", "before", 2]]),
    ("newton", [[1, "MpiComm.add_up", "after", 30], [0, "Run.commit", "before", 2]]),
    pytest.param("auto", [
        [1, "Engine._load", "before", 2],
        [0, "MpiComm._wait", "before", 31],  # its messages are under way
        [0, "Dual.certify", "after", 1],
    ], marks=pytest.mark.slow),
    pytest.param("auto", [
        [1, "Run.commit", "before", 1],  # the other rank has written its checkpoint
        [1, "Run._write_record", "before", 2],  # its files are there
        [0, "Run.commit", "after", 2],
        [0, "Model.save", "before", 1],
    ], marks=pytest.mark.slow),
], ids=["sums", "newton", "passes", "commits"])  # fmt: skip
def test_killed_training_resumes_to_same_bytes(store, model, solver, faults):
    words = ["--solver", solver]
    for fault in faults:
        done = fall(2, store, model, [*fault, "SIGKILL"], *words)
        assert said(done) == [], fault
        if fault[1] == "Run.note":  # this rank did not record the end
            model.unlink()
        else:
            assert_unfinished(model)
    assert resume(2, store, model, *words) == played(2, store, solver=solver)


@needs_mpi
@pytest.mark.slow
def test_suspended_rank_ends_others_by_timeout(store, model):
    done = fall(3, store, model, [1, "MpiComm.add_up", "before", 3, "SIGSTOP"],
                "--comm-timeout", "3s")  # fmt: skip
    # Not always 75: mpiexec may return the signal that it sent to another rank.
    assert done.returncode in (EXIT_TIMEOUT, 9)
    assert said(done)
    for text in said(done):
        assert text.startswith(("sbm: rank 0 of 3", "sbm: rank 2 of 3"))
        assert " 3 s (--comm-timeout)" in text
    assert_unfinished(model)
    assert resume(3, store, model) == played(3, store)


def commits(model, size):
    return [Run.read(folder)["commit"] for folder in runs_here(run_of(model))[size]]


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize("signals", [
    [("launcher", signal.SIGINT)],
    pytest.param([("launcher", signal.SIGTERM), (0, signal.SIGTERM), (1, signal.SIGINT)],
                 marks=pytest.mark.slow),
], ids=["one", "others"])  # fmt: skip
def test_signal_writes_checkpoints_and_ends_all_ranks(store, model, signals):
    told = []
    for whom, number in signals:
        # One waits for the signal, and the others for it.
        fault = [0, "Engine._load", "before", 2, "SIGSTOP"]
        with begin(2, store, model, fault) as process:
            wait_until((store.parent / "0.there").exists, process)
            pids = [int((store.parent / f"{rank}.pid").read_text()) for rank in range(2)]
            os.kill(process.pid if whom == "launcher" else pids[whom], number)
            time.sleep(0.2)
            os.kill(pids[0], signal.SIGCONT)
            done = end(process, store)
        assert done.returncode == 130
        assert len(said(done)) == 1
        assert_unfinished(model)
        assert len(set(commits(model, 2))) == 1
        told.append(commits(model, 2)[0])
    assert told == sorted(set(told))  # each has done something
    assert resume(2, store, model) == played(2, store)


# ------------------------------------------------------------------------------------- memory


@needs_mpi
@pytest.mark.slow
def test_each_process_keeps_to_its_memory(tmp_path, model, monkeypatch):
    monkeypatch.delenv("SBM_COMPILE_HERE", raising=False)  # what is measured must not compile
    size = ["--features", "2000", "--nnz", "20", "--values", "real", "--rows", "800000"]
    load_script("data.synthetic").main(["-o", str(tmp_path / "big.svm"), *size])
    sbm.split([tmp_path / "big.svm"], tmp_path / "big.sbm", block_size="10MB", dtype="float64")
    mem = 170_000_000
    assert sbm.info(tmp_path / "big.sbm")["memory_bytes"] > mem
    words = ("--mem", mem, "--max-passes", 2, "--checkpoint-every", 0, "--parts", "blocks")
    done = launch(2, "train", tmp_path / "big.sbm", "-o", model, "--json", *words)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["peak_rss_bytes"] <= mem


@needs_mpi
def test_plan_needs_the_memory_that_training_needs(store, model):
    plan, training = ["plan", store, "--launch", 2], ["train", store, "-o", model]
    errors = []
    for done in (
        finished([sys.executable, "-m", "sbm", *plan, "--mem", "60MB"], env=environment()),
        launch(2, *training, "--mem", "60MB"),
    ):
        assert done.returncode == 1
        errors.append(re.findall(r"use at least --mem (\d+)MB", done.stderr))
    assert errors[0][0] == errors[1][0]
