"""Signals, full and closed streams, odd names, locales and clocks: what a job meets at night."""

import datetime
import json
import os
import pty
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
from processes import finished, started, wait_until

import sbm
from sbm.cli import main
from sbm.jobs.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
TEXT = "".join(f"{s}1 {k}:1 {k % 7 + 9}:0.5\n" for k in range(1, 9) for s in "+-") * 3
MORE = "".join(f"{s}1 {k}:2 {k % 5 + 9}:1\n" for k in range(1, 9) for s in "-+")


def lay_out(folder: Path) -> None:
    """Text, a store of two sources, a model of it and a stream."""
    (folder / "a.svm").write_text(TEXT)
    (folder / "b.svm").write_text(MORE)
    store, quiet = folder / "a.sbm", Progress()
    sbm.split(folder / "a.svm", store, blocks=3, progress=quiet)
    sbm.split(folder / "b.svm", store, append=True)
    sbm.train(store, folder / "a.model")


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    lay_out(folder)
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(here, capfdbinary) -> Callable[[str], tuple[int, str, str]]:
    """Run a line in this process; exit code, stdout, stderr."""

    def call(line: str | list[str]) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        before = [signal.getsignal(number) for number in SIGNALS]
        with pytest.raises(SystemExit) as end:  # anything else would be a traceback
            main(shlex.split(line) if isinstance(line, str) else line)
        assert [signal.getsignal(number) for number in SIGNALS] == before
        out, err = (os.fsdecode(text) for text in capfdbinary.readouterr())
        assert "Traceback" not in out + err
        return end.value.code, out, err.lstrip("\n")  # a line ends before it is said

    return call


def shell(script: str, **environment: str) -> tuple[int, bytes, bytes]:
    """Run a script of bash, where `sbm` is ours, in a session of its own."""
    program = f'sbm() {{ {shlex.quote(sys.executable)} -m sbm "$@"; }}\n'
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = finished(["bash", "-c", program + script], env=env, text=False)
    assert b"Traceback" not in done.stdout + done.stderr, done.stderr.decode()
    assert b"ignored" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout, done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ----------------------------------------------------------------------------------- signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LINES = {
    "split": "split a.svm b.svm -o x.sbm --blocks 3 -q",
    "split --force": "split b.svm -o a.sbm --force -q",
    "append": "split --append a.sbm a.svm --force -q",
    "train": "train a.sbm -o x.model -C 3 -q",
    "tune": "tune a.sbm --C 0.1,1 --folds 2 -o x.model -q",
    "stream": "stream a.svm b.svm -o x.model -q",
    "predict": "predict a.model a.svm -o x.txt -q",
    "info": "info a.sbm -q",
    "check": "check a.sbm -q",
    "export": "export a.model -o x.txt -q",
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
def test_a_signal_at_any_moment_stops_a_command_and_leaves_nothing_half_written(
    name, made, here, run, moments
):
    line = LINES[name]
    before, rows = contents(here), [sbm.info("a.sbm")["rows"]]
    code, printed, _ = moments.watch(lambda: run(line))
    assert code == 0
    rows.append(sbm.info("a.sbm")["rows"])
    n, after = moments.count, contents(here)
    assert n > 2
    chosen = random.Random(name)
    stopped = 0
    for k in sorted(chosen.sample(range(1, n + 1), min(n, 12))):
        shutil.rmtree(here)
        shutil.copytree(made, here)
        os.chdir(here)
        number = chosen.choice(SIGNALS)
        code, out, err = moments.watch(
            lambda: run(line), k, lambda number=number: os.kill(os.getpid(), number)
        )
        now = contents(here)
        case = f"{number.name} at {k} of {n}: exit code {code}, {sorted(now)}, {err}"
        assert not [p for p in now if p.endswith((".tmp", ".partial")) or ".old-" in p], case
        assert code in (0, 130), case
        if code == 130:
            stopped += 1
            assert err.startswith("sbm: stopped"), case
            assert err.count("\n") == 1, case
            assert sbm.check("a.sbm")["rows"] in rows, case
            # What was there is whole, in its old or its new state; what is new is a run at most.
            for path, data in before.items():
                if ".run/" not in path and not path.endswith("manifest.json"):  # it has the time
                    assert now.get(path) in (data, after.get(path)), f"{case}: {path}"
        # The same command comes to the same end.
        if name == "append" and sbm.info("a.sbm")["rows"] != sbm.info(made / "a.sbm")["rows"]:
            continue  # it was too late to stop it
        if name == "expire" and "a.svm" not in [s["name"] for s in sbm.info("a.sbm")["sources"]]:
            continue
        if name == "split" and Path("x.sbm").exists():
            continue
        again, out, err = run(line)
        assert (again, out.count("\n")) == (0, printed.count("\n")), f"{case}, then {err}"
        assert sbm.check("a.sbm")["rows"] > 0
    assert stopped > 0


def test_a_second_signal_while_the_first_one_is_answered_changes_nothing(here, run, moments):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)

    sent = []

    def on_every_event():
        moments.when = moments.count + 1
        if Path("x.sbm.partial/block-000000.sbb").exists() or sent:
            sent.append(1)
            twice()

    code, out, err = moments.watch(lambda: run(LINES["split"]), 1, on_every_event)
    assert len(sent) > 2
    assert (code, out, err.count("\n")) == (130, "", 1)
    assert sorted(os.listdir()) == ["a.model", "a.model.run", "a.sbm", "a.svm", "b.svm"]


def test_a_signal_that_python_swallows_is_not_lost(here, run, monkeypatch):
    class Tidy:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)  # the exception is "ignored in __del__"

    def slow(*arguments, **options):
        Tidy()
        time.sleep(30)
        raise AssertionError("it went on")

    monkeypatch.setattr("sbm.jobs.info.info", slow)
    assert run("info a.sbm")[::2] == (130, STOPPED)


def test_what_a_signal_leaves_half_made_is_not_heard(here, run, monkeypatch):
    class HalfMade:
        def __init__(self):
            os.kill(os.getpid(), signal.SIGINT)
            self.handle = 1  # not reached

        def __del__(self):
            self.handle += 1

    monkeypatch.setattr("sbm.jobs.info.info", lambda *arguments, **options: HalfMade())
    assert run("info a.sbm")[::2] == (130, STOPPED)


STOPPED = "sbm: stopped; nothing half-written was left, and the same command starts again\n"


def start(line: str, folder: Path, **options):
    usual = {
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
    }  # fmt: skip
    command = [sys.executable, "-m", "sbm", *shlex.split(line)]
    return started(command, cwd=folder, **usual | options)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_that_waits_for_its_input_stops_at_a_signal_to_its_group(here, number):
    with start("split - -o x.sbm", here) as process:
        wait_until((here / "x.sbm.partial" / "lock").exists, process)
        os.killpg(process.pid, number)
        out, err = process.communicate()
    assert (process.returncode, out, err.decode().lstrip()) == (130, b"", STOPPED)
    assert not list(here.glob("x.*"))


def test_signals_that_are_ignored_stay_so_as_nohup_and_shells_want_it(here):
    def ignore() -> None:
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    for line, begun in (
        ("split - -o x.sbm", "x.sbm.partial"),
        ("stream - -o x.model", "x.model.run"),
    ):
        with start(line, here, preexec_fn=ignore) as process:
            wait_until((here / begun / "lock").exists, process)
            for number in (signal.SIGHUP, signal.SIGINT):
                os.killpg(process.pid, number)
            out, err = process.communicate(TEXT.encode())
        assert process.returncode == 0, err
        assert out.startswith(line.split()[-1].encode() + b": 48 rows")


def test_a_command_that_is_put_to_sleep_goes_on_when_it_is_woken(here):
    with start("split - -o x.sbm -q", here) as process:
        wait_until((here / "x.sbm.partial" / "lock").exists, process)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(TEXT.encode())
    assert process.returncode == 0
    assert out.startswith(b"x.sbm: 48 rows")


def test_a_signal_while_kernels_are_compiled_leaves_no_child_and_no_file(here, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "SBM_COMPILE_HERE"}
    scratch, code = tmp_path / "scratch", tmp_path / "code"
    scratch.mkdir()
    environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(scratch), "SBM_CACHE_DIR": str(code)}
    with start("predict a.model a.svm", here, env=environment) as process:
        wait_until(lambda: list(scratch.glob("*/t.svm")), process)  # the child is at work
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert err.decode().endswith(STOPPED)
    assert list(scratch.iterdir()) == []


# ----------------------------------------------------------------------- full and closed streams

FULL = "cannot print the result: No space left on device"
CLOSED = "standard output is closed, so the result cannot be printed"


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        # What is told on the way is not the result.
        ("train a.sbm -o x.model -C 2 2>/dev/full", 0, "x.model: primal", ""),
        ("train a.sbm -o x.model -C 2 2>&-", 0, "x.model: primal", ""),
        ("stream a.svm -o x.model 2>/dev/full", 0, "x.model: 48 rows", ""),
        ("split a.svm -o x.model 2>&-", 0, "x.model: 48 rows", ""),
        ("predict a.model a.svm -o - 2>/dev/full", 0, "1\n", ""),
        ("predict a.model a.svm -o - 2>&-", 0, "1\n", ""),
        ("nonsense 2>/dev/full", 2, "", ""),
        ("info nothing 2>&-", 1, "", ""),
        # A result that cannot be printed is an error; the work was done.
        ("train a.sbm -o x.model -C 2 -q >/dev/full", 1, "", FULL),
        ("train a.sbm -o x.model -C 2 -q --json >&-", 1, "", CLOSED),
        ("stream a.svm -o x.model -q >/dev/full", 1, "", FULL),
        ("info a.sbm >/dev/full", 1, "", FULL),
        ("info a.sbm --json >&-", 1, "", CLOSED),
        ("predict a.model a.svm -q >/dev/full", 1, "", FULL),
        ("predict a.model a.svm -o - >/dev/full", 1, "",
         "cannot print the predictions: No space left on device"),
        ("predict a.model a.svm -o - >&-", 1, "",
         "standard output is closed; give -o a file name"),
        ("info a.sbm >&- 2>&- <&-", 1, "", ""),
        ("split - -o x.model <&-", 1, "",
         "standard input is closed; give files, or text through a pipe"),
        # Whoever read it has gone.
        ("train a.sbm -o x.model -C 2 2>&1 | true", 1, "", ""),
        ("predict a.model a.svm -o - 2>/dev/null | true", 1, "", ""),
        ("info a.sbm --json | true", 1, "", ""),
    ],
)  # fmt: skip
def test_streams_that_are_full_or_closed(here, line, code, out, err):
    piped = " | true" in line
    script = f"sbm {line}" + ("; exit ${PIPESTATUS[0]}" if piped else "")
    if piped:  # `true` ends before the first letter comes
        script = script.replace("sbm", "{ sleep 0.1; sbm", 1).replace(" | true", "; } | true", 1)
    got, printed, told = shell(script)
    assert (got, told.decode()) == (code, err and f"sbm: {err}\n")
    assert printed.decode().startswith(out) if out else printed == b""
    if "-o x.model" in line and "<&-" not in line:
        kept = Path("x.model")
        assert kept.is_dir() or sbm.Model.load(kept).labels == [1, -1] or kept.stat().st_size


def test_files_are_never_opened_in_the_place_of_a_closed_stream(here):
    """What a library prints then would land in the middle of a store."""
    code, _, _ = shell("sbm split a.svm -o x.sbm >&- 2>&- <&-")
    assert code == 1
    assert sbm.check("x.sbm")["rows"] == 48


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (24, 80)])
@pytest.mark.parametrize("terminal", [{"TERM": "dumb"}, {"COLUMNS": "0", "NO_COLOR": "1"}])
def test_terminals_of_any_size_show_a_bar_and_do_no_harm(here, size, terminal):
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k != "TERM"} | terminal
    environment["PYTHONPATH"] = str(ROOT)
    with start("split a.svm -o x.sbm", here, env=environment, stderr=theirs) as process:
        out, _ = process.communicate()
    os.close(theirs)
    assert process.returncode == 0
    assert out.startswith(b"x.sbm: 48 rows")
    os.close(ours)


# ----------------------------------------------------------------------------- names and locales

NAMES = [
    b"\xff\xfe", b"new\nline", b" blanks ", b"-dash", b"q\"uo'te", b"[x]", b"*", "é😀".encode(),
    b"esc\x1b[31m", b"%s{}", b"~", b"$HOME", b"back\\slash", b"#hash", b"a,b=c",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_any_name_does_for_any_file(here, run, name):
    name = os.fsdecode(name)
    Path(f"{name}.svm").write_text(TEXT)
    Path(f"{name}2.svm").write_text(MORE)
    store, model = f"{name}.sbm", f"{name}.model"
    lines = [
        ["split", "--json", "--", f"{name}.svm"],
        ["split", "--append", "--json", "-o", store, "--", f"{name}2.svm"],
        ["train", "--json", "--test", f"{name}.svm", "--", store],
        ["info", "--json", "--", store],
        ["info", "--json", "--", model],
        ["info", "--json", "--", f"{model}.run"],
        ["check", "--json", "--", store],
        ["predict", "--json", "-o", f"{name}.txt", "--", model, f"{name}.svm"],
        ["export", "--json", "--format", "json", "-o", f"{name}.json", "--", model],
        ["expire", "--json", "--source", f"{name}2.svm", "--", store],
        ["stream", "--json", "-o", f"{name}.s.model", "--", f"{name}.svm"],
        ["stream", "--json", "--resume", f"{name}.s.model", "--", f"{name}2.svm"],
        ["tune", "--json", "--C", "0.1,1", "--folds", "2", "-o", f"{name}.t.model", "--", store],
    ]
    reports = []
    for line in lines:
        code, out, err = run(line)
        assert (code, err) == (0, ""), line
        reports.append(json.loads(out))
    assert reports[0]["store"] == store
    assert [source["name"] for source in reports[3]["sources"]] == [f"{name}.svm", f"{name}2.svm"]
    assert reports[9]["sources"][0]["name"] == f"{name}2.svm"
    assert reports[2]["model"] == model
    assert len(Path(f"{name}.txt").read_text().splitlines()) == 48
    left = {os.fsencode(p) for p in os.listdir() if p.startswith(name)}
    ends = (".svm", "2.svm", ".sbm", ".model", ".model.run", ".txt", ".json", ".s.model",
            ".s.model.run", ".t.model", ".t.model.run")  # fmt: skip
    assert left == {os.fsencode(name + end) for end in ends}
    code, out, err = run(["info", "--", store])
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    code, out, err = run(["info", "--", f"{name}.nothing"])
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "\x1b" not in err


LOCALES = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
    "utf-8": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"},
    "latin-1": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "latin-1"},
    "turkish": {"LC_ALL": "tr_TR.UTF-8"},
}


@pytest.mark.parametrize("name", LOCALES)
def test_locales_change_nothing_but_how_a_name_is_shown(here, name):
    odd = "é\udcff".encode("utf-8", "surrogateescape")
    for old, new in ((b"a.svm", odd + b".svm"), (b"a.sbm", odd + b".sbm")):
        os.rename(old, new)
    script = (
        "sbm split $'\\u00e9'*.svm -o x.sbm -q && sbm info *'.sbm' && "
        "sbm predict --json a.model $'\\xc3\\xa9\\xff.svm' && sbm info $'\\xc3\\xa9\\xff'"
    )
    script = script.replace("$'\\u00e9'*", "$'\\xc3\\xa9'*").replace("*'.sbm'", "x.sbm")
    code, out, err = shell(script, **LOCALES[name])
    lines = out.splitlines()
    assert code == 1
    shown = (
        err.splitlines(keepends=True)[-1]
        .removeprefix(b"sbm: ")
        .removesuffix(b" does not exist; give a store, a run or a model\n")
    )
    assert shown == (b"\xe9\xff" if name == "latin-1" else odd)
    assert json.loads(lines[-1])["rows"] == 48
    assert lines[0].startswith(b"x.sbm: 48 rows")
    assert b": " + shown + b".svm: " in out


# ------------------------------------------------------------------------------------ no place


def test_a_current_folder_that_is_gone_is_no_trouble_for_full_names(here, made):
    script = (
        "mkdir gone && cd gone && rmdir ../gone\n"
        "sbm info $H/a.sbm -q && sbm predict $H/a.model $H/a.svm -q && "
        "sbm train $H/a.sbm -o $H/x.model -q && sbm split $H/a.svm -o $H/x.sbm -q\n"
    )
    code, _, err = shell(script, H=str(here))
    assert (code, err) == (0, b"")
    assert sbm.check("x.sbm")["rows"] == 48
    code, _, err = shell("mkdir gone && cd gone && rmdir ../gone; sbm train -q")
    assert code == 1
    assert err == b"sbm: no *.sbm store in this folder; make one with sbm split, or name it\n"


def test_home_and_temporary_folder_may_be_missing(here):
    lines = "sbm info a.sbm -q && sbm predict a.model a.svm -q && sbm split a.svm -o x.sbm -q"
    for environment in (
        {"HOME": "", "TMPDIR": "/nowhere"},
        {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/x", "TMPDIR": "/dev/null"},
    ):
        shutil.rmtree("x.sbm", ignore_errors=True)
        code, _, err = shell(lines, **environment)
        assert (code, err) == (0, b"")


# ------------------------------------------------------------------------------------- clocks

YEAR = 365.25 * 86_400


@pytest.mark.parametrize("mode", ["back", "forth", "zero"])
def test_clocks_that_jump_change_no_result(here, run, monkeypatch, mode):
    calls = iter(range(10**9))
    wall = time.time

    def jumping() -> float:
        return {"back": wall() - YEAR * next(calls), "forth": wall() + YEAR * (next(calls) % 50),
                "zero": 0.0}[mode]  # fmt: skip

    class Now(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(max(jumping(), 0.0), tz)

    sbm.train("a.sbm", "y.model", {"C": 3.0})
    os.utime("a.svm", (0, 0))
    os.utime("b.svm", (4e9, 4e9))
    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(datetime, "datetime", Now)
    for line in (
        "split a.svm -o x.sbm -q", "split --append x.sbm b.svm -q", LINES["train"], LINES["stream"],
        "expire x.sbm --before 100000-01-01 --dry-run", "expire x.sbm --before 30d --if-any -q",
        "info x.sbm", "info x.model.run", "check x.sbm", "expire a.sbm --source a.svm -q",
    ):  # fmt: skip
        line = line.replace("-o x.model", f"-o {line.split()[0]}.model")
        line = line.replace("info x.model.run", "info train.model.run")
        code, _, err = run(line)
        is_old = mode == "forth" and "30d" in line  # all of it, seen from the future
        assert code == (2 if "100000" in line else int(is_old)), err
    expected = sbm.Model.load("y.model").W
    assert (expected == sbm.Model.load("train.model").W).all()
    log = [json.loads(text) for text in Path("train.model.run/log.jsonl").read_text().splitlines()]
    assert all(0 <= record.get("elapsed", 0) < 60 for record in log)


def test_a_source_is_as_old_as_the_wall_clock_says(here, run):
    """Added in the future, seen from now: it does not expire."""
    code, _, err = run("expire a.sbm --before 30d")
    assert code == 1
    assert err.startswith("sbm: a.sbm has no source that was added before 30d; the oldest, a.svm, ")
