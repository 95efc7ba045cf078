"""`sbm stream` end to end: the same bytes however often it stops, and what it keeps and refuses."""

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from streams import (
    kept,
    learn,
    make_lines,
    same,
    small_pieces,
    small_plans,
    stdin_of,
    stop_at,
    writer,
)  # fmt: skip

from sbm.jobs import stream as stream_job
from sbm.store.model import Model

ROOT = Path(__file__).resolve().parent.parent

# What is learned, with text for it; each has a way of its own through plans, classes and states.
KINDS: dict[str, dict[str, Any]] = {
    "hinge": {},
    "squared_hinge": {"loss": "squared_hinge", "bias": 1.0},
    "one_vs_rest": {"classes": 5, "bias": 1.0},
    "crammer_singer": {"classes": 5, "loss": "crammer_singer"},
    "weston_watkins": {"classes": 4, "loss": "weston_watkins", "policy": "random"},
    "log_loss": {"classes": 4, "loss": "log_loss"},
    "squared_error": {"classes": 3, "loss": "squared_error", "task": "classification"},
    "regression": {"targets": True, "loss": "epsilon_insensitive", "bias": 1.0},
    "one_class": {"loss": "one_class", "nu": 0.3},
    "bmd": {"classes": 3, "options": {"learner": "bmd"}},
    "arow": {"classes": 4, "options": {"learner": "arow"}, "bias": 1.0},
    "pegasos": {"classes": 3, "options": {"learner": "pegasos"}},
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
TEXT_OF = ("classes", "targets", "values")


def text_of(kind: str, n: int = 420, **more: Any) -> list[bytes]:
    chosen = {name: KINDS[kind][name] for name in TEXT_OF if name in KINDS[kind]}
    return make_lines(n, **{**chosen, **more})


def settings_of(kind: str) -> dict[str, Any]:
    return {name: value for name, value in KINDS[kind].items() if name not in TEXT_OF}


@pytest.fixture
def small(monkeypatch):
    small_pieces(monkeypatch, 700)
    return small_plans(monkeypatch)


def go_on(inputs: Any, model: Path, stops: Any, **settings: Any) -> int:
    """Stop as often as told, go on as often; return how often it really stopped."""
    stopped, resume = 0, False
    for call in (*stops, 10**9):
        try:
            report = learn(inputs, model, resume, stop_at(call), **{} if resume else settings)
        except KeyboardInterrupt:  # before there was any row
            assert not resume
            continue
        if not report["stopped"]:
            return stopped
        stopped += 1
        resume = True
    raise AssertionError("it should have come to its end")


# ------------------------------------------------------------------------------- the same bytes


class Questions:
    """Counts how often a stream asks whether to stop."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> bool:
        self.n += 1
        return False


@EVERY_KIND
def test_a_stream_that_stops_and_goes_on_is_as_one_that_never_stopped(kind, small, tmp_path):
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(text_of(kind)))
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    asked = Questions()
    learn(path, one, stop=asked, **settings_of(kind))
    assert len(small) > 2, "the features should have outgrown some plans"
    for share in (0.05, 0.3, 0.55, 0.9):
        stops = (int(share * asked.n), asked.n // 4, 7, asked.n // 3)
        assert go_on(path, other, stops, **settings_of(kind)) > 0
        same(one, other)


def test_wherever_it_stops_the_result_is_the_same(small, tmp_path):
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(text_of("one_vs_rest", 300)))
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    asked = Questions()
    learn(path, one, stop=asked, **settings_of("one_vs_rest"))
    stopped = 0
    for call in range(1, asked.n + 1):
        stopped += go_on(path, other, (call,), **settings_of("one_vs_rest"))
        same(one, other)
    assert stopped > asked.n / 2


@EVERY_KIND
def test_a_stream_that_dies_goes_on_from_its_last_commit(kind, small, tmp_path, monkeypatch):
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(text_of(kind)))
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    chosen = settings_of(kind)
    often = {**chosen.pop("options", {}), "checkpoint_every": "50rows"}
    learn(path, one, options=often, **chosen)
    learned = stream_job._Stream._learn
    for limit in (2, 4, 6, 9):
        calls = iter(range(limit))

        def learn_some(self, block, calls=calls):
            if next(calls, None) is None:
                raise MemoryError
            learned(self, block)

        with monkeypatch.context() as patch:
            patch.setattr(stream_job._Stream, "_learn", learn_some)
            with pytest.raises(MemoryError):
                learn(path, other, options=often, **chosen)
        learn(path, other, resume=True, options={"checkpoint_every": "50rows"})
        same(one, other)


def test_a_stream_that_dies_while_it_makes_room_goes_on(small, tmp_path, monkeypatch):
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(text_of("one_vs_rest")))
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    learn(path, one, **settings_of("one_vs_rest"))
    make = stream_job._Stream._make_student
    for limit in range(1, len(small)):
        calls = iter(range(limit))

        def make_some(self, *arguments, calls=calls):
            if next(calls, None) is None:
                raise MemoryError
            make(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(stream_job._Stream, "_make_student", make_some)
            with pytest.raises(MemoryError):
                learn(path, other, **settings_of("one_vs_rest"))
        learn(path, other, resume=True)
        same(one, other)


@pytest.mark.parametrize("kind", ["hinge", "crammer_singer", "log_loss", "one_class", "arow"])
def test_threads_and_the_size_of_pieces_do_not_matter(kind, small, tmp_path, monkeypatch):
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(text_of(kind)))
    names = []
    for threads, piece in ((1, 700), (2, 90), (3, 1 << 20)):
        small_pieces(monkeypatch, piece)
        names.append(tmp_path / f"{threads}.model")
        learn(path, names[-1], threads=threads, **settings_of(kind))
    same(names[0], names[1])
    same(names[0], names[2])


# ------------------------------------------------------------------------------------------ pipes


def chunks(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut bytes in parts of these sizes, over and over."""
    parts, begin = [], 0
    for size in itertools.cycle(sizes):
        if begin >= len(data):
            return parts
        parts.append(data[begin : begin + size])
        begin += size
    raise AssertionError


@pytest.mark.parametrize("kind", ["hinge", "one_vs_rest", "arow"])
def test_a_pipe_that_is_read_on_after_a_stop_gives_the_same_bytes(
    kind, small, tmp_path, monkeypatch
):
    data = b"".join(text_of(kind, 300))
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    read, write = os.pipe()
    with writer(write, [data]), stdin_of(monkeypatch, read):
        learn("-", one, **settings_of(kind))
    stopped = 0
    for first in (5, 11, 23):
        read, write = os.pipe()
        with writer(write, chunks(data, (701, 1, 64, 333))), stdin_of(monkeypatch, read):
            stopped += go_on("-", other, (first, 9, 3, 1, 11), **settings_of(kind))
        same(one, other)
    assert stopped


def test_a_pipe_that_begins_again_is_known_again(small, tmp_path, monkeypatch):
    data = b"".join(text_of("one_vs_rest", 300))
    one, other = tmp_path / "one.model", tmp_path / "other.model"

    def learn_pipe(model, stop=None, resume=False, **settings):
        read, write = os.pipe()
        with writer(write, chunks(data, (701, 64))), stdin_of(monkeypatch, read):
            return learn("-", model, resume, stop, **settings)

    learn_pipe(one, **settings_of("one_vs_rest"))
    stopped = 0
    for first, second in itertools.product((8, 20), (1, 3, 6, 12)):
        stopped += learn_pipe(other, stop_at(first), **settings_of("one_vs_rest"))["stopped"]
        learn_pipe(other, stop_at(second), resume=True)
        learn_pipe(other, resume=True)
        same(one, other)
    assert stopped


def test_nobody_writes_to_a_pipe_and_the_stream_can_still_be_stopped(small, tmp_path):
    fifo = tmp_path / "d.svm"
    os.mkfifo(fifo)
    with pytest.raises(KeyboardInterrupt):
        learn(fifo, tmp_path / "m.model", stop=stop_at(10))
    assert not (tmp_path / "m.model").exists()


# -------------------------------------------------------------------------------- real processes


@contextlib.contextmanager
def start(line: str, folder: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a line in a process that does not outlive the test."""
    arguments = [sys.executable, "-m", "sbm", *shlex.split(line)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    with subprocess.Popen(arguments, cwd=folder, env=environment, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def shell(line: str, folder: Path, **options: Any) -> tuple[int, str, str]:
    """Run a line in a process of its own; exit code, stdout, stderr."""
    with start(line, folder, **options) as process:
        out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    return process.returncode, out, err


def wait_for_rows(model: Path, rows: int, process: subprocess.Popen[str]) -> None:
    """Wait until a process has committed so many rows."""
    deadline = time.monotonic() + 100
    record = model.with_name(model.name + ".run") / "run.json"
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        if record.exists() and json.loads(record.read_text())["seen"]["rows"] >= rows:
            return
        time.sleep(0.01)
    raise AssertionError("nothing was committed")


STOPPED = "sbm: stopped; all is kept, go on with sbm stream --resume other.model\n"


@pytest.fixture(scope="module")
def long_run(tmp_path_factory) -> Path:
    """A folder with d.svm, and one.model that was learned from it by a process."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "d.svm").write_bytes(b"".join(make_lines(5000, classes=4)))
    code, _, err = shell("stream d.svm -o one.model --mem 300MB --checkpoint-every 500rows", folder)
    assert code == 0, err
    return folder


def test_a_process_that_is_terminated_goes_on_where_it_was(long_run):
    options = "-o other.model --mem 300MB --checkpoint-every 500rows"
    with start(f"stream d.svm {options} --follow", long_run) as process:
        wait_for_rows(long_run / "other.model", 1000, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert err.endswith(STOPPED)
    code, _, err = shell(
        "stream --resume other.model --checkpoint-every 500rows --threads 1", long_run
    )
    assert code == 0, err
    same(long_run / "one.model", long_run / "other.model")


def test_a_process_that_is_killed_goes_on_from_its_last_commit(long_run):
    options = "-o killed.model --mem 300MB --checkpoint-every 500rows"
    with start(f"stream d.svm {options} --follow", long_run) as process:
        wait_for_rows(long_run / "killed.model", 1000, process)
        process.kill()
        process.communicate(timeout=100)
    assert Model.load(long_run / "killed.model").info["rows"] >= 500
    code, _, err = shell("stream --resume killed.model --checkpoint-every 500rows", long_run)
    assert code == 0, err
    same(long_run / "one.model", long_run / "killed.model")


def test_a_process_goes_on_with_what_is_left_in_a_pipe(long_run):
    data = (long_run / "d.svm").read_bytes()
    cut = data.index(b":", len(data) // 2) + 2  # in the middle of a number
    options = "-o piped.model --mem 300MB --checkpoint-every 500rows"
    read, write = os.pipe()
    with start(f"stream - {options}", long_run, stdin=read) as process:
        with writer(os.dup(write), [data[:cut]]):
            wait_for_rows(long_run / "piped.model", 2000, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert err.endswith(STOPPED.replace("other", "piped"))
    with writer(write, [data[cut:]]):
        code, _, err = shell(
            "stream - --resume piped.model --checkpoint-every 500rows", long_run, stdin=read
        )
    os.close(read)
    assert code == 0, err
    one, other = (kept(long_run / f"{name}.model") for name in ("one", "piped"))
    [source] = other.pop("sources")
    assert source == {"name": "-", "rows": 5000, "skipped": 0}
    differ = sorted(name for name in other if other[name] != one[name])
    assert differ == ["model"]  # it knows the names of its sources
    models = [Model.load(long_run / f"{name}.model") for name in ("one", "piped")]
    assert models[0].W.tobytes() == models[1].W.tobytes()


def test_a_stream_keeps_others_from_its_model_while_it_runs(long_run):
    with start("stream d.svm -o busy.model --follow --checkpoint-every 500rows", long_run) as other:
        wait_for_rows(long_run / "busy.model", 1000, other)
        for line in ("stream d.svm -o busy.model", "stream --resume busy.model"):
            code, _, err = shell(line, long_run)
            assert code == 1
            assert err == (
                "sbm: the run busy.model.run is in use by another sbm process; wait for it to end "
                "or stop it\n"
            )
        other.send_signal(signal.SIGINT)
        other.communicate(timeout=100)
    assert other.returncode == 130
