"""Launching: the line that is run, and what stands against it."""

import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sbm.cli import main
from sbm.distributed import launch
from sbm.distributed.comm import _SIZES
from sbm.distributed.launch import launch_line
from sbm.errors import SettingsError

PYTHON = [sys.executable, "-m", "mpi4py", "-m", "sbm", "train"]


@pytest.fixture(autouse=True)
def _not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _SIZES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def mpiexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program of that name, the first to be found, that tells its arguments."""
    program = tmp_path / "bin" / "mpiexec"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 7\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(launch, "_find_launcher", lambda: str(program))
    return str(program)


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["big.{rank}.sbm", "--launch", "4", "-C", "1"], ["big.{rank}.sbm", "-C", "1"]),
        (["--launch=4", "-o", "a model.model"], ["-o", "a model.model"]),
        (["-w1", "2.5", "--launch", "4"], ["-w1", "2.5"]),
        (["--launch", "4", "--", "--launch"], ["--", "--launch"]),
        (["--launch", "2", "--launch", "4", "-q"], ["-q"]),
    ],
)
def test_the_line_is_the_command_without_the_option(
    mpiexec: str, typed: list[str], kept: list[str]
) -> None:
    assert launch_line(4, "train", typed) == [mpiexec, "-n", "4", *PYTHON, *kept]


def test_the_launcher_beside_python_comes_before_that_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("env", "system"):
        program = tmp_path / folder / "mpiexec"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path / "system"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "python"))
    assert launch._find_launcher() == str(tmp_path / "env" / "mpiexec")
    (tmp_path / "env" / "mpiexec").unlink()
    assert launch._find_launcher() == str(tmp_path / "system" / "mpiexec")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch._find_launcher() is None


def test_a_missing_launcher_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_find_launcher", lambda: None)
    with pytest.raises(SettingsError) as caught:
        launch_line(4, "train", [])
    assert str(caught.value) == (
        "--launch needs mpiexec, which is not there; install sbm[mpich], or load your site's MPI "
        "and install sbm[mpi]"
    )


def test_a_missing_mpi4py_is_told(mpiexec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="--launch needs mpi4py, which is not there"):
        launch_line(4, "train", [])


def test_no_processes_are_refused(mpiexec: str) -> None:
    with pytest.raises(SettingsError, match="launch is 0; it must be at least 1"):
        launch_line(0, "train", [])


@pytest.mark.parametrize("name", _SIZES)
def test_a_launched_process_launches_no_others(
    mpiexec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv(name, "3")
    with pytest.raises(SystemExit) as end:
        main(["train", "--launch", "2"])
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "sbm: --launch 2 in one of 3 processes that were launched already; leave it out there\n"
    )


@pytest.mark.parametrize("quiet", [[], ["-q"], ["--json"]])
def test_the_process_becomes_the_launcher(
    mpiexec: str, monkeypatch: pytest.MonkeyPatch, quiet: list[str]
) -> None:
    typed = ["no such store.sbm", "-o", "it's.model", "-w1", "2", *quiet]
    code = (
        "import sys; from sbm import cli; from sbm.distributed import launch; "
        f"launch._find_launcher = lambda: {mpiexec!r}; cli.main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", *typed, "--launch", "3"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    line = ["-n", "3", *PYTHON, *typed]
    assert done.returncode == 7
    assert done.stdout.splitlines() == line
    assert done.stderr == ("" if quiet else shlex.join([mpiexec, *line]) + "\n")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_the_launcher_ignores_no_signal_for_being_started_by_python() -> None:
    line = ["/bin/sh", "-c", "grep SigIgn /proc/self/status"]
    code = f"from sbm.distributed.launch import become; become({line!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        restore_signals=True,
    )  # fmt: skip
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & 1 << signal.SIGPIPE - 1
    assert not ignored & 1 << signal.SIGXFSZ - 1


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [("--rouns 3", "No such option"), ("--tol -1", "sbm: --tol is -1")],
)
def test_wrong_use_is_told_once_and_launches_nothing(
    mpiexec: str, capsys: pytest.CaptureFixture[str], typed: str, sentence: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "--launch", "2", *typed.split()])
    assert end.value.code == 2
    assert capsys.readouterr().err.count(sentence) == 1
