"""Several processes as users start them: the same bytes, one voice, every way to end early."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import ranks
from families import Case, make_store
from launching import MPI4PY, MPIEXEC, RANKS, ROOT, all_gone, environment, needs_mpi, pids_of
from processes import finished, started, wait_until
from threads import in_threads

import sbm
from sbm.cli import main
from sbm.distributed import comm
from sbm.distributed.comm import EXIT_TIMEOUT
from sbm.store.run import Run, runs_here

FAULTY = ROOT / "tests" / "faulty_ranks.py"
OPTIONS = {"C": 0.1, "tol": 1e-4, "max_passes": 300, "mem": "400MB", "threads": 1}
WORDS = shlex.split("-C 0.1 --tol 1e-4 --max-passes 300 --mem 400MB --threads 1")
# Commits at the end of every round.
OFTEN = ["--checkpoint-every", "0.001s"]


def line_of(size, *words):
    """The line that starts so many processes."""
    return [str(word) for word in (MPIEXEC, "-n", size, *MPI4PY, *words)]


def launch(size, *words, **options):
    """Run a command of sbm in so many processes."""
    return finished(line_of(size, "-m", "sbm", *words), env=environment(), **options)


def said(done):
    """What sbm itself has said on stderr; a launcher may add to it."""
    return [text for text in done.stderr.splitlines() if text.startswith(("sbm:", "Error:"))]


def a_store(folder, case=None, n_blocks=5):
    return make_store(folder, *(case or Case("hinge", 2)).rows(1), blocks=n_blocks)


def played(size, store, name="played.model", **more):
    """The bytes that so many processes write, played by threads."""
    path = store.parent / name
    in_threads(size, lambda comm: sbm.train(store, path, OPTIONS | more, comm=comm))
    return path.read_bytes()


@pytest.fixture
def store(tmp_path):
    return a_store(tmp_path)


@pytest.fixture
def model(tmp_path):
    return tmp_path / "m.model"


# ------------------------------------------------------------------------------------ one voice


@needs_mpi
@pytest.mark.parametrize("size", [2, 4])
def test_processes_write_what_threads_write_however_sums_are_sent(tmp_path, size):
    for case in (Case("hinge", 2), Case("weston_watkins", 3), Case("hinge", 3),
                 Case("one_class", 1, {"nu": 0.2})):  # fmt: skip
        store = make_store(tmp_path, *case.rows(1), name=str(case), blocks=5)
        settings = {**OPTIONS, **case.at(0.1), "tol": 1e-3}
        if case.loss == "one_class":
            del settings["C"]
        store.with_suffix(".json").write_text(json.dumps(settings))
    line = line_of(size, RANKS, "train_all", tmp_path)
    done = finished(line, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    in_threads(size, lambda comm: ranks.train_each(comm, tmp_path, "threads"))
    for store in tmp_path.glob("*.sbm"):
        expected = store.with_suffix(".threads.model").read_bytes()
        for name in ("mpi", "pairs", "all"):
            assert store.with_suffix(f".{name}.model").read_bytes() == expected, (store, name)


@needs_mpi
def test_one_process_of_a_launcher_writes_what_a_program_alone_writes(store, model):
    sbm.train(store, store.with_name("alone.model"), OPTIONS)
    done = launch(1, "train", "-q", store, "-o", model, *WORDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert model.read_bytes() == store.with_name("alone.model").read_bytes()


@needs_mpi
def test_launch_does_the_same_and_one_process_speaks(store, model):
    words = ["train", str(store), "-o", str(model), *WORDS]
    done = finished([sys.executable, "-m", "sbm", *words, "--launch", "2"], env=environment())
    assert done.returncode == 0
    assert model.read_bytes() == played(2, store)
    lines = done.stderr.splitlines()
    assert lines[0] == shlex.join(line_of(2, "-m", "sbm", *words))
    assert sum(text.startswith("pass ") for text in lines) == 1
    passes = [int(text.split()[0]) for text in lines if text.split()[0].isdecimal()]
    assert passes == [*range(1, len(passes) + 1)]
    assert [text.split(":")[0] for text in done.stdout.splitlines()[:1]] == [str(model)]
    assert len(done.stdout.splitlines()) == 3


@needs_mpi
def test_json_is_one_object(store, model):
    done = launch(2, "train", store, "-o", model, *WORDS, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert (report["processes"], report["converged"], report["model"]) == (2, True, str(model))


@needs_mpi
def test_a_budget_that_is_used_up_is_told_once(store, model):
    done = launch(2, "train", "-q", store, "-o", model, *WORDS, "--max-passes", "1")
    assert done.returncode == 3
    (sentence,) = said(done)
    assert sentence.startswith("sbm: not converged: relative gap ")
    assert sentence.endswith(" is above --tol 0.0001; raise --max-passes")
    assert len(done.stdout.splitlines()) == 3
    assert json.loads(status_of(model).read_text())["state"] == "finished"


def status_of(model):
    return model.with_name(model.name + ".run") / "status.json"


@needs_mpi
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--tol", "-1"], 2, "sbm: --tol is -1; it must be a finite number above 0"),
        (["--rouns", "3"], 2, "Error: No such option"),
        (["--calibrate"], 2, "sbm: --calibrate is for one process, and there are 2; train without"),
        (["--mem", "100MB"], 1, "sbm: --mem"),
    ],
)  # fmt: skip
def test_an_error_of_all_is_told_once(store, model, words, code, sentence):
    done = launch(2, "train", store, "-o", model, *WORDS, *words)
    assert done.returncode == code
    (text,) = said(done)
    assert text.startswith(sentence)
    assert not model.exists()


@needs_mpi
def test_a_missing_store_is_told_once(tmp_path, model):
    done = launch(2, "train", tmp_path / "no.sbm", "-o", model)
    assert done.returncode == 1
    (sentence,) = said(done)
    assert sentence == f"sbm: {tmp_path / 'no.sbm'} does not exist; make a store with sbm split"


@needs_mpi
def test_damage_that_one_process_reads_ends_all(store, model, tmp_path):
    own = json.loads(json.dumps(in_threads(2, lambda comm: dealt_to(comm, store))))[1]
    path = store / f"block-{own[0]:06d}.sbb"
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    done = launch(2, "train", "-q", store, "-o", model, *WORDS)
    assert done.returncode == 1
    (sentence,) = said(done)
    assert sentence.startswith(f"sbm: process 1: {path}")
    assert not model.exists()
    assert json.loads(status_of(model).read_text())["state"] == "running"


def dealt_to(comm, store):
    """The blocks of a process; training writes them down."""
    path = store.with_name("dealt.model")
    sbm.train(store, path, OPTIONS, comm=comm)
    return Run.read(path.with_name("dealt.model.run") / f"rank-{comm.rank}-of-{comm.size}")["own"]


# -------------------------------------------------------------------------- started by mistake


@needs_mpi
def test_processes_that_mpi4py_did_not_start_are_refused(store, model):
    line = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "sbm", "train", str(store)]
    done = finished(line, env=environment())
    assert done.returncode == 2
    sentence = (
        "sbm: 2 processes were started, but not through mpi4py, so that none knows the others; "
        "start them with mpiexec -n 2 python -m mpi4py -m sbm train ..."
    )
    assert set(said(done)) == {sentence}
    assert not model.exists()


COMMANDS = {
    "split": ["a.svm"], "stream": ["a.svm"], "tune": ["a.sbm", "-C", "1"],
    "predict": ["a.model", "a.svm"],
    "expire": ["a.sbm"], "info": ["a.sbm"], "check": ["a.sbm"], "export": ["a.model"],
    "plan": ["a.sbm"], "report": ["a.model"],
}  # fmt: skip


def test_the_commands_of_one_process_are_all_but_train():
    assert {*COMMANDS, "train"} == set(sbm.cli.cli.commands)


@pytest.mark.parametrize("name", ["PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_one_process_is_not_done_by_several(monkeypatch, capsys, command, name):
    for other in comm._SIZES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "3")
    with pytest.raises(SystemExit) as end:
        main([command, *COMMANDS[command]])
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"sbm: 3 processes were started, and each of them would do all of sbm {command}; "
        "only sbm train is shared by several, start this one alone\n"
    )
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert not end.value.code


@needs_mpi
def test_that_is_told_once(store):
    done = launch(2, "info", store)
    assert done.returncode == 2
    assert len(said(done)) == 1


# -------------------------------------------------------------------------------- ended early


def begin(size, store, model, trouble=None, *words):
    """Start a training that meets trouble, see `faulty_ranks`."""
    for path in (*store.parent.glob("*.pid"), *store.parent.glob("*.there")):
        path.unlink()
    words = ["train", "-q", store, "-o", model, *WORDS, *OFTEN, *words]
    return started(
        line_of(size, FAULTY, store.parent, json.dumps(trouble), *words),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def end(process, store):
    """Wait until all is over; return the exit code and what was said."""
    out, err = process.communicate()
    assert len(pids_of(store.parent)) > 0
    assert all_gone(pids_of(store.parent))
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def fall(size, store, model, trouble, *words):
    """Have a training come to its trouble; whether there is a model is the trouble's affair."""
    with begin(size, store, model, trouble, *words) as process:
        done = end(process, store)
    assert (store.parent / f"{trouble[0]}.there").exists(), f"{trouble} has not come: {done}"
    assert done.returncode != 0
    return done


def goes_on(size, store, model):
    """Let the same command come to its end; return the bytes."""
    with begin(size, store, model) as process:
        done = end(process, store)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(status_of(model).read_text())["state"] == "finished"
    return model.read_bytes()


def assert_unfinished(model):
    assert not model.exists()
    assert json.loads(status_of(model).read_text())["state"] == "running"


@needs_mpi
def test_killed_in_passes_and_exchanges_it_goes_on_to_the_same_bytes(store, model):
    for trouble in (
        [1, "Engine._visit_next", "before", 2, "SIGKILL"],
        [1, "MpiComm.add_up", "after", 3, "SIGKILL"],
        [0, "MpiComm._wait", "before", 31, "SIGKILL"],  # its messages are on their way
        [0, "Engine.certify", "after", 1, "SIGKILL"],
    ):
        done = fall(2, store, model, trouble)
        assert said(done) == [], trouble
        assert_unfinished(model)
    assert goes_on(2, store, model) == played(2, store)


@needs_mpi
def test_killed_around_commits_it_goes_on_to_the_same_bytes(store, model):
    for trouble in (
        [1, "Run.commit", "before", 1, "SIGKILL"],  # and another one has committed
        [0, "Run.commit", "before", 3, "SIGKILL"],
        [1, "Run._write_record", "before", 2, "SIGKILL"],  # its files are there
        [0, "Run.commit", "after", 2, "SIGKILL"],
        [0, "Model.save", "before", 1, "SIGKILL"],
    ):
        fall(2, store, model, trouble)
        assert_unfinished(model)
    expected = played(2, store)
    # With a model, which not all of them know to be finished.
    for trouble in (
        [0, "Run.note", "before", 1, "SIGKILL"],
        [1, "Run.note", "before", 1, "SIGKILL"],
    ):
        fall(2, store, model, trouble)
        assert model.read_bytes() == expected
        model.unlink()
    assert goes_on(2, store, model) == expected


@needs_mpi
def test_a_process_that_stands_still_meets_the_deadline(store, model):
    done = fall(3, store, model, [1, "MpiComm.add_up", "before", 3, "SIGSTOP"],
                "--comm-timeout", "3s")  # fmt: skip
    # Not always 75: where mpiexec hears of all of them at once it is the signal it sent to one.
    assert done.returncode in (EXIT_TIMEOUT, 9)
    assert said(done)
    assert set(said(done)) <= {
        f"sbm: process {rank} of 3 heard nothing of the others for 3 s (--comm-timeout): one of "
        "them, or the network, stands still; all end, the same command goes on from the last commit"
        for rank in (0, 2)
    }
    assert_unfinished(model)
    assert goes_on(3, store, model) == played(3, store)


def commits(model, size):
    folder = status_of(model).parent
    return [Run.read(folder / f"rank-{rank}-of-{size}")["commit"] for rank in range(size)]


@needs_mpi
def test_told_to_stop_all_commit_together_and_end(store, model):
    """By Ctrl-C or SIGTERM, to the launcher, which passes it on, or to any of the processes."""
    told = []
    for whom, number in (
        ("launcher", signal.SIGINT), ("launcher", signal.SIGTERM), (0, signal.SIGTERM),
        (1, signal.SIGINT),
    ):  # fmt: skip
        # One waits for the signal, and the others for it.
        trouble = [0, "Engine._visit_next", "before", 2, "SIGSTOP"]
        with begin(2, store, model, trouble) as process:
            wait_until((store.parent / "0.there").exists, process)
            pids = [int((store.parent / f"{rank}.pid").read_text()) for rank in range(2)]
            os.kill(process.pid if whom == "launcher" else pids[whom], number)
            time.sleep(0.2)
            os.kill(pids[0], signal.SIGCONT)
            done = end(process, store)
        assert done.returncode == 130
        assert said(done) == [
            "sbm: stopped; what was committed is kept, and the same command goes on from there"
        ]
        assert_unfinished(model)
        assert len(set(commits(model, 2))) == 1
        told.append(commits(model, 2)[0])
    assert told == sorted(set(told))  # each has done something
    assert goes_on(2, store, model) == played(2, store)


@needs_mpi
def test_another_number_of_processes_goes_on_and_loses_nothing_if_it_is_killed(store, model):
    run, kept = status_of(model).parent, store.with_name("kept.model.run")
    fall(2, store, model, [0, "Run.commit", "before", 5, "SIGKILL"])
    shutil.copytree(run, kept)
    fall(3, store, model, [2, "Run.commit", "before", 1, "SIGKILL"])  # the others may have
    assert 2 in runs_here(run)
    data = goes_on(3, store, model)
    assert list(runs_here(run)) == [3]
    assert data == played(3, store, "kept.model")
    assert data != played(3, store, "new.model")


# ------------------------------------------------------------------------------------- memory


@needs_mpi
def test_each_process_keeps_to_its_bound(tmp_path, model, monkeypatch):
    monkeypatch.delenv("SBM_COMPILE_HERE", raising=False)  # what is measured must not compile
    rng = np.random.default_rng(0)
    rows = "".join(
        f"{1 - 2 * (k % 2)} " + " ".join(f"{i}:{v:.1f}" for i, v in zip(
            np.sort(rng.choice(2000, 20, False)) + 1, rng.random(20), strict=True)) + "\n"
        for k in range(5000)
    )  # fmt: skip
    (tmp_path / "big.svm").write_text(rows * 130)
    sbm.split([tmp_path / "big.svm"], tmp_path / "big.sbm", block_size="10MB", dtype="float64")
    mem = 150_000_000
    assert sbm.info(tmp_path / "big.sbm")["memory_bytes"] > mem
    words = ("--mem", mem, "--max-passes", 2, "--checkpoint-every", 0)
    with begin(2, tmp_path / "big.sbm", model, None, *words) as process:
        done = end(process, tmp_path / "big.sbm")
    assert done.returncode == 3, done.stderr
    peaks = [int((tmp_path / f"{rank}.peak").read_text()) for rank in range(2)]
    assert max(peaks) <= mem
