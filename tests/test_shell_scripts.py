"""scripts/nightly.sh and slurm_train.sh: results and exit codes; the Kubernetes job's text."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from families import Case, assert_same_optimum
from helpers import SCRIPTS, fit, write_rows
from inside import Settings, read_manifest, write_manifest
from inside import train_command as train
from processes import finished

import sbm

ROOT = SCRIPTS.parent
CASE = Case("hinge", 2)
slow = pytest.mark.slow


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with programs that stand for sbm and Slurm, and a folder for texts."""
    python = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)}"
    programs = {
        "sbm": f'{python} -m sbm "$@"',
        # Of the words up to mpi4py's only the program is taken: one process, alone.
        "alone": 'python=$1; shift 3; exec "$python" "$@"',
        "lost": "exit 9",
        "lying": "exit 0",
        "scontrol": 'echo "$@" >> queue',
        "python": f'{python} "$@"',
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SBM", str(tmp_path / "bin" / "sbm"))
    monkeypatch.setenv("PYTHON", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.chdir(tmp_path)
    Path("new texts").mkdir()
    return tmp_path


# -------------------------------------------------------------------------------- nightly.sh

ARGUMENTS = ("a store.sbm", "a.model", "new texts")


def text(name, seed):
    return write_rows(Path("new texts", name), *CASE.rows(seed, n=40))


def night(*arguments):
    """Run the script; return exit code and errors."""
    done = finished(["sh", SCRIPTS / "nightly.sh", *arguments])
    assert "Traceback" not in done.stderr
    if done.returncode != 2:
        times = re.findall(r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ (\w+)", done.stdout, re.M)
        assert (times[0], times[-1]) == ("begin", "end")
        assert f"end: exit code {done.returncode}\n" in done.stdout
    return done.returncode, done.stderr


def sources():
    return [source["name"] for source in sbm.info("a store.sbm")["sources"]]


@slow
@pytest.mark.process
def test_nightly_adds_new_files_and_expires_old(here):
    text("1.svm", 1)
    text("2.svm", 2)
    Path("new texts/empty.svm").write_text("")
    assert night(*ARGUMENTS) == (0, "")
    record = Path("a.model.run/run.json").read_bytes()
    Path("new texts/again.svm").write_bytes(Path("new texts/1.svm").read_bytes())
    assert night(*ARGUMENTS)[0] == 0  # nothing to do
    assert (sources(), Path("a.model.run/run.json").read_bytes()) == (["1.svm", "2.svm"], record)
    manifest = read_manifest(Path("a store.sbm"))
    manifest["generations"][0]["added"] = "2020-01-01T00:00:00+00:00"
    write_manifest(Path("a store.sbm"), manifest)
    finished(["gzip", text("3.svm", 3)], check=True)
    for _ in range(2):
        assert night("-k", 30, "-t", "new texts/2.svm", "-o", "labels", *ARGUMENTS) == (0, "")
        assert sources() == ["2.svm", "3.svm.gz"]
    assert len(Path("labels").read_text().splitlines()) == 40
    sbm.split(["new texts/2.svm", "new texts/3.svm.gz"], "anew.sbm")
    model = sbm.Model.load("a.model")
    assert_same_optimum((model, model.certificate), fit(Path("anew.sbm"), "cold.model", C=0.1)[:2])


@slow
@pytest.mark.process
def test_nightly_without_time_or_data_keeps_model(here):
    text("1.svm", 1)
    Path("short.toml").write_text("C = 1\ntol = 1e-12\nmax-passes = 1\n")
    assert night("-c", "short.toml", *ARGUMENTS)[0] == 3
    before = Path("a.model").read_bytes()
    Path("new texts/2.svm").write_text("7 1:1\noops\n")
    code, err = night(*ARGUMENTS)
    assert (code, "new texts/2.svm:2" in err, "'oops'" in err) == (1, True, True)
    assert (sources(), Path("a.model").read_bytes()) == (["1.svm"], before)


@slow
@pytest.mark.process
def test_nightly_reads_tables(here):
    table = "id,bought,age\n" + "".join(f"{k},{'ny'[k % 2]},{k % 7}\n" for k in range(40))
    Path("new texts/1.csv").write_text(table)
    Path("new texts/notes.txt").write_text("not data\n")
    how = ("-r", "--label bought --exclude id", *ARGUMENTS)
    assert night(*how) == (0, "")
    Path("new texts/2.csv").write_text(table.replace(",3\n", ",4\n"))
    finished(["gzip", "new texts/2.csv"], check=True)
    for _ in range(2):
        assert night(*how) == (0, "")
        assert sources() == ["1.csv", "2.csv.gz"]
    assert sbm.info("a store.sbm")["features"] == 1
    assert sbm.Model.load("a.model").label_texts() == ["n", "y"]


@pytest.mark.process
@pytest.mark.parametrize(("arguments", "code"), [
    ((), 2), (("-k", "soon", *ARGUMENTS), 2), (("-k",), 2), (("a.sbm", "a.model", "nowhere"), 1),
])  # fmt: skip
def test_invalid_nightly_usage_changes_nothing(here, arguments, code):
    found, err = night(*arguments)
    assert (found, "nightly.sh" in err) == (code, True)
    assert not Path("a store.sbm").exists()


# ------------------------------------------------------------------------ Slurm, Kubernetes


@pytest.mark.process
@pytest.mark.parametrize(("launch", "options", "tries", "code", "status", "is_queued"), [
    ("lost", [], 0, 9, "requeued", True), ("lost", [], 3, 9, "failed", False),
    ("lying", [], 0, 1, "requeued", True),
    pytest.param("alone", [], 0, 0, "converged", False, marks=slow),
    pytest.param("alone", ["--max-passes", "1", "--tol", "1e-9"], 0, 3, "requeued", True,
                 marks=slow),
    pytest.param("alone", ["--rouns", "3"], 0, 2, "invalid usage", False, marks=slow),
])  # fmt: skip
def test_slurm_job_requeues_if_recoverable(here, launch, options, tries, code, status, is_queued):
    sbm.split(ROOT / "data" / "sample.svm", "s.sbm")
    done = finished(
        ["sh", SCRIPTS / "slurm_train.sh", "a model", "s.sbm", "-q", "--mem", "400MB", *options],
        env={**os.environ, "LAUNCH": launch, "SLURM_RESTART_COUNT": str(tries)},
    )
    assert done.returncode == code
    expected = f"{status}, exit code {code}, try {tries}, "
    assert Path("a model.status").read_text().startswith(expected)
    assert Path("queue").exists() == is_queued


def test_kubernetes_job_runs_a_valid_command():
    text = (ROOT / "configs" / "kubernetes.yaml").read_text()
    words = [word.strip('"') for word in re.findall(r"^ *- ([^:\n]+)$", text, re.MULTILINE)]
    given = words[words.index("train") + 1 : words.index("/usr/sbin/sshd")]
    options = train.make_context("train", given, help_option_names=["-h", "--help"]).params
    assert options["data"] == ("/data/big.{rank}.sbm",)
    (deadline,) = re.findall(r"activeDeadlineSeconds: (\d+)", text)
    limit = Settings(time_limit=options["time_limit"]).time_limit
    assert limit < int(words[words.index("timeout") + 1]) < int(deadline)
    assert re.findall(r"replicas: (\d+)", text) == ["1", words[words.index("-n") + 1]]
