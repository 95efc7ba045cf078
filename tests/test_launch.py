"""`sbm train --launch N`: the command line that is run, and errors."""

import shlex
import signal
import sys

import pytest
from inside import _SIZES, launch_line, main, patch
from processes import finished

from sbm.errors import SettingsError

PYTHON = [sys.executable, "-m", "mpi4py", "-m", "sbm", "train"]


@pytest.fixture(autouse=True)
def not_launched(monkeypatch):
    for name in _SIZES:
        monkeypatch.delenv(name, raising=False)


def make_program(folder, text=None) -> str:
    folder.mkdir()
    program = folder / "mpiexec"
    program.write_text(
        text or '#!/bin/sh\nprintf "%s\\n" "$@"\ngrep SigIgn /proc/self/status\nexit 7\n'
    )
    program.chmod(0o700)
    return str(program)


@pytest.fixture
def mpiexec(tmp_path, monkeypatch) -> str:
    """A program that prints its arguments, in the place of the launcher."""
    program = make_program(tmp_path / "bin")
    patch(monkeypatch, "_find_launcher", lambda: program)
    return program


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["big.{rank}.sbm", "--launch", "4", "-C", "1"], ["big.{rank}.sbm", "-C", "1"]),
        (["--launch=4", "-o", "a model.model"], ["-o", "a model.model"]),
        (["--launch", "4", "--", "--launch"], ["--", "--launch"]),
        (["--launch", "2", "-w1", "2.5", "--launch", "4", "-q"], ["-w1", "2.5", "-q"]),
    ],
)
def test_launch_line_omits_launch_option(mpiexec, typed, kept):
    assert launch_line(4, "train", typed) == [mpiexec, "-n", "4", *PYTHON, *kept]


def test_launcher_next_to_python_is_preferred(tmp_path, monkeypatch):
    ours, system = make_program(tmp_path / "env"), make_program(tmp_path / "system")
    monkeypatch.setenv("PATH", str(tmp_path / "system"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "python"))
    assert launch_line(1, "train", [])[0] == ours
    (tmp_path / "env" / "mpiexec").unlink()
    assert launch_line(1, "train", [])[0] == system
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=r"needs mpiexec.*mpich"):
        launch_line(4, "train", [])


@pytest.mark.parametrize(("ranks", "warnings"), [(2, 0), (3, 1)])
def test_more_ranks_than_cores_get_a_warning(mpiexec, monkeypatch, capsys, ranks, warnings):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    patch(monkeypatch, "become", lambda _: sys.exit(0))
    with pytest.raises(SystemExit):
        main(["train", "a.svm", "--launch", str(ranks)])
    assert capsys.readouterr().err.count("more than the 2 cores") == warnings


@pytest.mark.parametrize(("user", "as_root"), [(0, ["--allow-run-as-root"]), (1000, [])])
def test_open_mpi_gets_more_ranks_than_cores(tmp_path, monkeypatch, user, as_root):
    text = '#!/bin/sh\n[ "$*" = --version ] && echo "mpiexec (Open MPI) 5.0.11"\n'
    program = make_program(tmp_path / "bin", text)
    patch(monkeypatch, "_find_launcher", lambda: program)
    monkeypatch.setattr("os.geteuid", lambda: user)
    options = ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", *as_root]
    assert launch_line(4, "train", ["a"]) == [program, *options, "-n", "4", *PYTHON, "a"]


def test_bad_launches_are_refused(mpiexec, monkeypatch):
    with pytest.raises(SettingsError, match=r"launch is 0"):
        launch_line(0, "train", [])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"needs mpi4py"):
        launch_line(4, "train", [])


@pytest.mark.parametrize("line", ["--rouns 3", "--tol -1", "--launch 0"])
def test_invalid_usage_launches_nothing(mpiexec, capsys, line):
    with pytest.raises(SystemExit) as end:
        main(["train", "--launch", "2", *line.split()])
    assert end.value.code == 2
    assert capsys.readouterr().err.count(line.split()[0]) == 1


@pytest.mark.parametrize("name", _SIZES)
def test_launched_process_launches_no_others(mpiexec, monkeypatch, capsys, name):
    monkeypatch.setenv(name, "3")
    for line in ("train --launch 2", "info a.sbm"):  # only train is shared by several
        with pytest.raises(SystemExit) as end:
            main(line.split())
        assert end.value.code == 2
        assert " 3 processes " in capsys.readouterr().err


@pytest.mark.process
def test_process_becomes_the_launcher(mpiexec):
    """It keeps the exit code, and restores the signals that Python ignores."""
    typed = ["no such store.sbm", "-o", "it's.model", "-w1", "2"]
    code = (
        "import sys; from sbm import cli; from sbm.distributed import launch; "
        f"launch._find_launcher = lambda: {mpiexec!r}; cli.main(sys.argv[1:])"
    )
    for quiet in ([], ["-q"]):
        words = [*typed, *quiet]
        done = finished([sys.executable, "-c", code, "train", *words, "--launch", "1"])
        line = ["-n", "1", *PYTHON, *words]
        assert done.returncode == 7
        *printed, ignored = done.stdout.splitlines()
        assert printed == line
        assert done.stderr == ("" if quiet else shlex.join([mpiexec, *line]) + "\n")
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            assert not int(ignored.split()[1], 16) & 1 << number - 1
