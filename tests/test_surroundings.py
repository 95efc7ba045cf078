"""Signals, full and closed streams, odd names, encodings and clocks."""

import contextlib
import datetime
import io
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from inside import main
from processes import finished, started, wait_until

import sbm

ROOT = Path(__file__).resolve().parent.parent
TEXT = "".join(f"{s}1 {k}:1 {k % 7 + 9}:0.5\n" for k in range(1, 9) for s in "+-") * 3
MORE = "".join(f"{s}1 {k}:2 {k % 5 + 9}:1\n" for k in range(1, 9) for s in "-+")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOMENTS = 12 if "SBM_LONG_TESTS" in os.environ else 6  # a signal is sent at, of each command


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Text, a store of two sources and a model of it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "a.svm").write_text(TEXT)
    (folder / "b.svm").write_text(MORE)
    sbm.split(folder / "a.svm", folder / "a.sbm", blocks=3)
    sbm.split(folder / "b.svm", folder / "a.sbm", append=True)
    sbm.train(folder / "a.sbm", folder / "a.model")
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def call(line: str | list[str]) -> int:
    """Run a line in this process; exit code."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(SystemExit) as end:  # anything else would be a traceback
        main(shlex.split(line) if isinstance(line, str) else line)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    return end.value.code


@pytest.fixture
def run(here, capfdbinary) -> Callable[[str | list[str]], tuple[int, str, str]]:
    """Run a line in this process; exit code, stdout, stderr."""

    def run_line(line: str | list[str]) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = call(line)
        out, err = (os.fsdecode(text) for text in capfdbinary.readouterr())
        assert "Traceback" not in out + err
        assert "ignored" not in err
        return code, out, err.lstrip("\n")  # click ends a line first

    return run_line


def start(line: str, folder: Path, **options):
    usual = {
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
    }  # fmt: skip
    command = [sys.executable, "-m", "sbm", *shlex.split(line)]
    return started(command, cwd=folder, **usual | options)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# -------------------------------------------------------------------------------------- signals

LINES = {
    "split": "split a.svm b.svm -o x.sbm --blocks 3 -q",
    "append": "split --append a.sbm a.svm --force -q",
    "train": "train a.sbm -o x.model -C 3 -q",
    "tune": "tune a.sbm --C 0.1,1 --folds 2 -o x.model -q",
    "stream": "stream a.svm b.svm -o x.model -q",
    "predict": "predict a.model a.svm -o x.txt -q",
    "expire": "expire a.sbm --source a.svm -q",
}


class Moments:
    """Calls a function when the main thread opens, renames, removes or makes its n-th file."""

    EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock")

    def __init__(self) -> None:
        self.count, self.when, self.what = 0, -1, lambda: None
        self.active = False
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.active or event not in self.EVENTS:
            return
        if threading.current_thread() is not threading.main_thread():
            return
        if event == "open" and not isinstance(arguments[0], str):
            return
        self.count += 1
        if self.count == self.when:
            self.what()

    def watch(self, job: Callable, when: int = -1, what: Callable[[], None] = lambda: None):
        self.count, self.when, self.what, self.active = 0, when, what, True
        try:
            return job()
        finally:
            self.active = False


@pytest.fixture(scope="session")
def moments() -> Moments:
    return Moments()  # audit hooks cannot be removed, so there is one


@pytest.mark.parametrize("name", LINES)
def test_signal_at_any_moment_leaves_no_partial_files(name, made, here, run, moments):
    line, before, rows = LINES[name], contents(here), [sbm.info("a.sbm")["rows"]]
    assert moments.watch(lambda: run(line))[0] == 0
    rows.append(sbm.info("a.sbm")["rows"])
    n, after, chosen, stopped = moments.count, contents(here), random.Random(name), 0
    for k in sorted(chosen.sample(range(1, n + 1), min(n, MOMENTS))):
        shutil.rmtree(here)
        shutil.copytree(made, here)
        os.chdir(here)
        number = chosen.choice(SIGNALS)
        code, _, err = moments.watch(
            lambda: run(line), k, lambda number=number: os.kill(os.getpid(), number)
        )
        now = contents(here)
        case = f"{number.name} at {k} of {n}: exit code {code}, {sorted(now)}, {err}"
        assert not [p for p in now if p.endswith((".tmp", ".partial")) or ".old-" in p], case
        assert code in (0, 130), case
        assert err.startswith("sbm: stopped") == (code == 130), case
        if code == 130:
            stopped += 1
            assert err.count("\n") == 1, case
            assert sbm.check("a.sbm")["rows"] in rows, case
            # Old files are complete, in their old or new state; the only new one may be a run.
            for path, data in before.items():
                if ".run/" not in path and not path.endswith("manifest.json"):  # it has the time
                    assert now.get(path) in (data, after.get(path)), f"{case}: {path}"
        # The same command gives the same result, unless it was too late to stop it.
        is_done = name in ("append", "expire") and sbm.info("a.sbm")["rows"] == rows[1]
        if not (is_done or (name == "split" and Path("x.sbm").exists())):
            assert run(line)[0] == 0, case
        assert sbm.check("a.sbm")["rows"] == rows[1]
    assert stopped > 0


def test_second_signal_during_cleanup_changes_nothing(here, run, moments):
    sent = []

    def on_every_event():
        moments.when = moments.count + 1
        if Path("x.sbm.partial/block-000000.sbb").exists() or sent:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    code, out, err = moments.watch(lambda: run(LINES["split"]), 1, on_every_event)
    assert len(sent) > 2
    assert (code, out, err.count("\n")) == (130, "", 1)
    assert sorted(os.listdir()) == ["a.model", "a.model.run", "a.sbm", "a.svm", "b.svm"]


@pytest.mark.process
@pytest.mark.parametrize("line", ["split - -o x.sbm", "train - -o x.model"])
def test_process_ends_at_once_while_it_waits_for_text(here, line):
    with start(line, here) as process:
        wait_until(lambda: list(here.glob("x.*.partial/lock")), process)
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert err.splitlines()[-1].startswith(b"sbm: stopped")
    assert not list(here.glob("x.*"))


@pytest.mark.process
def test_signals_that_a_shell_ignores_stay_ignored(here):
    def ignore() -> None:
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    with start("stream - -o x.model", here, preexec_fn=ignore) as process:
        wait_until((here / "x.model.run" / "lock").exists, process)
        for number in (signal.SIGHUP, signal.SIGINT):
            os.killpg(process.pid, number)
        out, err = process.communicate(TEXT.encode())
    assert process.returncode == 0, err
    assert out.startswith(b"x.model: 48 rows")


@pytest.mark.process
def test_named_pipe_is_read_once(here):
    os.mkfifo(here / "x.svm")
    with start("train x.svm -o x.model", here) as process:
        (here / "x.svm").write_text(TEXT)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.startswith(b"x.model: primal")


# -------------------------------------------------------------------------------------- streams


@contextlib.contextmanager
def stream_in_the_state(what: str):
    """Standard output or standard error as a shell may give it."""
    if what == "closed":
        yield None
        return
    if what == "full":
        handle = os.open("/dev/full", os.O_WRONLY)
    else:  # the reader closed the pipe
        reading, handle = os.pipe()
        os.close(reading)
    stream = io.TextIOWrapper(io.FileIO(handle, "w"), write_through=True)
    yield stream
    with contextlib.suppress(OSError):
        stream.close()


@pytest.mark.parametrize(
    ("name", "state", "line", "code", "facts"),
    [
        # Progress is not part of the result.
        ("stderr", "full", "train a.sbm -o x.model -C 2", 0, "x.model: primal"),
        ("stderr", "full", "stream a.svm -o x.model", 0, "x.model: 48 rows"),
        ("stderr", "full", "nonsense", 2, ""),
        # A result that cannot be printed is an error; the work was done.
        ("stdout", "full", "train a.sbm -o x.model -C 2 -q", 1, "output: No space left"),
        ("stdout", "closed", "train a.sbm -o x.model -C 2 -q --json", 1, "standard output is"),
        ("stdout", "full", "info a.sbm --json", 1, "output: No space left"),
        ("stdout", "gone", "info a.sbm", 1, ""),
        ("stdout", "full", "predict a.model a.svm -o -", 1, "standard output: No space left"),
        ("stdout", "closed", "predict a.model a.svm -o -", 1, "standard output is closed"),
        ("stdout", "gone", "predict a.model a.svm -o -", 1, ""),
    ],
)  # fmt: skip
def test_full_and_closed_streams(here, monkeypatch, name, state, line, code, facts):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), write_through=True))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), write_through=True))
    other = sys.stderr if name == "stdout" else sys.stdout
    with stream_in_the_state(state) as stream:
        monkeypatch.setattr(sys, name, stream)
        found = call(line)
    printed = other.buffer.getvalue().decode()
    assert found == code
    if name == "stdout":
        assert printed.startswith("sbm: ") and printed.count("\n") == 1 if facts else not printed
    assert facts in printed
    if "-o x.model" in line:
        assert sbm.Model.load("x.model").labels == [-1, 1]


@pytest.mark.process
def test_closed_streams_are_not_reused_for_files(here):
    """What a library prints then would land in the middle of a store."""
    line = f"{shlex.quote(sys.executable)} -m sbm"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for script, code, out in (
        (f"{line} split a.svm -o x.sbm >&- 2>&- <&-", 1, ""),
        (f"{line} predict a.model a.svm -o - 2>&- | head -n 1", 0, "1\n"),
        (f"{{ sleep 0.1; {line} info a.sbm --json; }} | true; exit ${{PIPESTATUS[0]}}", 1, ""),
    ):
        done = finished(["bash", "-c", script], env=environment)
        assert (done.returncode, done.stdout, done.stderr) == (code, out, "")
    assert sbm.check("x.sbm")["rows"] == 48


# -------------------------------------------------------------------------- names and encodings


@pytest.mark.parametrize(
    "name", [b"-\xff\"uo'te\nline\x1b[31m %s{}", b"[x]*", "~é😀, #$H\\".encode()]
)
def test_unusual_file_names_work(here, run, name):
    name = os.fsdecode(name)
    Path(f"{name}.svm").write_text(TEXT)
    Path(f"{name}2.svm").write_text(MORE)
    store, model = f"{name}.sbm", f"{name}.model"
    reports = []
    for line in (
        ["split", "--json", "--", f"{name}.svm"],
        ["split", "--append", "--json", "-o", store, "--", f"{name}2.svm"],
        ["info", "--json", "--", store],
        ["train", "--json", "--test", f"{name}.svm", "--", store],
        ["predict", "--json", "-o", f"{name}.txt", "--", model, f"{name}.svm"],
        ["export", "--json", "--format", "json", "-o", f"{name}.json", "--", model],
        ["expire", "--json", "--source", f"{name}2.svm", "--", store],
        ["stream", "--json", "-o", f"{name}.s.model", "--", f"{name}.svm"],
        ["stream", "--json", "--resume", f"{name}.s.model", "--", f"{name}2.svm"],
    ):
        code, out, err = run(line)
        assert (code, err) == (0, ""), line
        reports.append(json.loads(out))
    assert (reports[0]["store"], reports[3]["model"]) == (store, model)
    assert [source["name"] for source in reports[2]["sources"]] == [f"{name}.svm", f"{name}2.svm"]
    left = {p.removeprefix(name) for p in os.listdir() if p.startswith(name)}
    assert left == {".svm", "2.svm", ".sbm", ".model", ".model.run", ".txt", ".json", ".s.model",
                    ".s.model.run"}  # fmt: skip
    for path, code in ((store, 0), (f"{name}.nothing", 1)):
        found, out, err = run(["info", "--", path])
        assert (found, err.count("\n")) == (code, code)
        assert "\x1b" not in out + err


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", b"\\xe9\\udcff\\u20ac"), ("utf-8", b"\xc3\xa9\\udcff\xe2\x82\xac"),
     ("latin-1", b"\xe9\\udcff\\u20ac")],
)  # fmt: skip
def test_encodings_change_only_how_names_are_shown(here, monkeypatch, encoding, shown):
    name = "é\udcff€.svm"
    os.rename("a.svm", name)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(io.BytesIO(), encoding))
    out, err = sys.stdout, sys.stderr
    assert call(["split", name, "-o", "x.sbm", "-q"]) == 0
    assert call(["info", "x.sbm"]) == 0
    assert call(["info", f"{name}0"]) == 1
    assert b" " + shown + b".svm: " in out.buffer.getvalue()
    assert err.buffer.getvalue().startswith(b"sbm: " + shown + b".svm0 does not exist")


def test_missing_current_folder_is_handled(here, run):
    (here / "gone").mkdir()
    os.chdir("gone")
    (here / "gone").rmdir()
    for line in ("train {}/a.sbm -o {}/x.model -q", "split {}/a.svm -o {}/x.sbm -q"):
        code, _, err = run(line.replace("{}", str(here)))
        assert (code, err) == (0, "")
    code, _, err = run("train -q")
    assert (code, err.count("\n")) == (1, 1)


# --------------------------------------------------------------------------------------- clocks


def test_jumping_clock_changes_no_result(here, run, monkeypatch):
    calls, wall = iter(range(10**9)), time.time

    def jumping() -> float:
        return wall() + 365.25 * 86_400 * (next(calls) % 50)

    class Now(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(jumping(), tz)

    sbm.train("a.sbm", "y.model", {"C": 3.0})
    os.utime("a.svm", (0, 0))
    os.utime("b.svm", (4e9, 4e9))
    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(datetime, "datetime", Now)
    for line in ("split a.svm -o x.sbm -q", "split --append x.sbm b.svm -q", LINES["train"],
                 "info x.model.run", "info x.sbm", "check x.sbm"):  # fmt: skip
        code, _, err = run(line)
        assert code == 0, err
    assert (sbm.Model.load("y.model").W == sbm.Model.load("x.model").W).all()
    log = [json.loads(text) for text in Path("x.model.run/log.jsonl").read_text().splitlines()]
    assert all(0 <= record.get("elapsed", 0) < 60 for record in log)


# ---------------------------------------------------------------------------------- other systems

# What macOS lacks is gone.
ELSEWHERE = """
import builtins, ctypes, fcntl, os
for name in ("sched_getaffinity", "posix_fadvise", "preadv"):
    delattr(os, name)
for name in ("F_SETPIPE_SZ", "F_GETPIPE_SZ"):
    delattr(fcntl, name)
sysconf, opened, low, library = os.sysconf, builtins.open, os.open, ctypes.CDLL
def unknown(name):
    if name == "SC_AVPHYS_PAGES":
        raise ValueError("unrecognized configuration name")
    return sysconf(name)
def no_proc(name, *more, open=opened, **options):
    if str(name).startswith(("/proc", "/sys")) and str(name) != "/proc/cpuinfo":
        raise FileNotFoundError(name)
    return open(name, *more, **options)
class Library:
    def __getattr__(self, name):
        if name in ("mallopt", "renameat2"):
            raise AttributeError(name)
        return getattr(library(None), name)
def other_libraries(name=None, *more, **options):
    return Library() if name is None else library(name, *more, **options)
os.sysconf, builtins.open, ctypes.CDLL = unknown, no_proc, other_libraries
os.open = lambda *a, **o: no_proc(*a, open=low, **o)
import sbm
sbm.split("a.svm", "other.sbm", blocks=2)
sbm.split("a.svm", "other.sbm", blocks=2, force=True)
sbm.train("other.sbm", "other.model", {"weights": "weights.txt"})
print(sbm.predict("other.model", "a.svm")["rows"], sbm.plan("other.sbm")["rows"])
"""


@pytest.mark.process
def test_commands_run_without_functions_of_linux(here):
    (here / "weights.txt").write_text("1\n" * TEXT.count("\n"))
    done = finished([sys.executable, "-c", ELSEWHERE], cwd=here)
    assert done.stderr == ""
    n = str(TEXT.count("\n"))
    assert done.stdout.split() == [n, n]


@pytest.mark.process
def test_windows_is_refused_with_message():
    code = "import sys; sys.platform = 'win32'; import sbm"
    done = finished([sys.executable, "-c", code], cwd=ROOT)
    assert done.stderr.splitlines()[-1].startswith("ImportError: sbm runs on")
    assert "WSL 2" in done.stderr
