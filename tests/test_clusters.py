"""scripts/slurm_train.sh with stand-ins for Slurm, and the text of configs/kubernetes.yaml."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sbm.cli.training import train
from sbm.jobs.split import split
from sbm.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "slurm_train.sh"
KUBERNETES = ROOT / "configs" / "kubernetes.yaml"


def test_the_script_is_of_plain_shell() -> None:
    done = subprocess.run(["sh", "-n", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_directives_come_before_any_command() -> None:
    lines = SCRIPT.read_text().splitlines()
    directives = [k for k, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert len(directives) == 5
    assert all(line.startswith("#") for line in lines[: directives[-1]])


def test_the_limits_leave_time_to_end() -> None:
    text = SCRIPT.read_text()
    (limit,), (outer,) = (re.findall(rf"\{{{name}:-(\d+)\}}", text) for name in ("LIMIT", "OUTER"))
    (hours,) = re.findall(r"^#SBATCH --time=(\d+):00:00$", text, re.MULTILINE)
    assert int(limit) < int(outer) < 3600 * int(hours)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store, and programs that stand for those of Slurm."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    python = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)}"
    programs = {
        # Of the words up to mpi4py's only the program is taken: one process, alone.
        "alone": 'python=$1; shift 3; exec "$python" "$@"',
        "lost": "exit 9",
        "lying": "exit 0",
        "scontrol": f'echo "$@" >> {shlex.quote(str(tmp_path))}/queue',
        "python": f'{python} "$@"',
    }
    for name, text in programs.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("PYTHON", str(bin_ / "python"))
    monkeypatch.chdir(tmp_path)
    split(ROOT / "data" / "sample.svm", "s.sbm")
    return tmp_path


def run(launch: str, *options: str, tries: int = 0) -> tuple[int, str, list[str]]:
    """Run the script; exit code, status, and what was put into the queue."""
    done = subprocess.run(
        ["sh", str(SCRIPT), "a model", "s.sbm", "-q", "--mem", "400MB", *options],
        env={**os.environ, "LAUNCH": launch, "SLURM_RESTART_COUNT": str(tries)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    status, queue = Path("a model.status"), Path("queue")
    told = status.read_text().rpartition(", ")[0] if status.exists() else done.stderr
    return done.returncode, told, queue.read_text().splitlines() if queue.exists() else []


def test_a_training_that_converged_is_done(here: Path) -> None:
    assert run("alone") == (0, "converged, exit code 0, try 0", [])
    assert run("alone", tries=3) == (0, "converged, exit code 0, try 3", [])  # nothing left to do


def test_a_failure_is_put_into_the_queue_again_a_few_times(here: Path) -> None:
    queued = ["requeue 17"]
    assert run("lost") == (9, "to be gone on with, exit code 9, try 0", queued)
    assert run("lost", tries=3) == (9, "failed, exit code 9, try 3", queued)


def test_the_launcher_is_not_believed(here: Path) -> None:
    assert run("lying")[:2] == (1, "to be gone on with, exit code 1, try 0")


def test_a_budget_that_is_used_up_is_gone_on_with(here: Path) -> None:
    code, told, queue = run("alone", "--max-passes", "1", "--tol", "1e-9")
    assert (code, told) == (3, "to be gone on with, exit code 3, try 0")
    assert queue == ["requeue 17"]
    assert Path("a model").exists()


def test_wrong_use_is_not_tried_again(here: Path) -> None:
    assert run("alone", "--rouns", "3") == (2, "wrong use, exit code 2, try 0", [])
    done = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[:14]) == (2, "usage: sbatch ")


# ------------------------------------------------------------------------------------ Kubernetes

# A key and a value, an item, or both; values without anything that YAML would read otherwise.
PLAIN = re.compile(r'( *)(- )?(?:(\w+):)?(?: ?("[^"]*"|[\w./{}-][\w./{}:-]*))?')


def _lines() -> list[tuple[int, bool, str | None, str | None]]:
    """Indent, whether it is an item, key and value of each line."""
    found = []
    for line in KUBERNETES.read_text().splitlines():
        if line.startswith("#"):
            continue
        match = PLAIN.fullmatch(line)
        assert match, line
        indent, item, key, value = match.groups()
        found.append((len(indent), item is not None, key, value))
    return found


def test_the_example_is_the_simplest_yaml() -> None:
    before, holds = 0, False
    for indent, item, key, value in _lines():
        assert indent % 2 == 0
        assert indent <= before + 2 * holds  # deeper only below a key that has no value itself
        assert key or (item and value)
        # What stands behind "- " is two deeper.
        before, holds = indent + 2 * (item and key is not None), key is not None and value is None
    facts = {key: value for _, _, key, value in _lines() if value is not None}
    assert facts["apiVersion"] == "kubeflow.org/v2beta1"
    assert facts["kind"] == "MPIJob"
    assert "UNTESTED" in KUBERNETES.read_text()


def test_the_example_runs_a_command_that_there_is() -> None:
    words = [value.strip('"') for _, item, key, value in _lines() if item and not key and value]
    at = words.index("mpi4py")
    assert words[words.index("mpiexec") :][:3] == ["mpiexec", "-n", "4"]
    assert words[at : at + 4] == ["mpi4py", "-m", "sbm", "train"]
    end = words.index("/usr/sbin/sshd")
    given = train.make_context("train", words[at + 4 : end]).params
    assert (str(given["store"]), given["time_limit"]) == ("/data/big.{rank}.sbm", "11h")
    replicas = [value for _, _, key, value in _lines() if key == "replicas"]
    assert replicas == ["1", words[words.index("-n") + 1]]
    deadline = next(v for _, _, key, v in _lines() if key == "activeDeadlineSeconds")
    limit = Settings(time_limit="11h").time_limit
    assert limit is not None
    assert limit < int(words[words.index("timeout") + 1]) < int(str(deadline))
