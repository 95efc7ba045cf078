"""`sbm stream` end to end: the same bytes however often it stops, and what it keeps and refuses."""

import contextlib
import gzip
import itertools
import json
import lzma
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from helpers import full_weights
from streams import (
    chunks,
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

import sbm
from sbm.errors import DataError, SbmError, StoreError
from sbm.jobs.dealing import coding
from sbm.jobs.streaming import state as stream_job
from sbm.jobs.streaming.options import LEARNERS
from sbm.store.model import Model
from sbm.store.records import encode_record
from sbm.store.run import Run

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


def rows_of(kind: str, n: int = 420, **more: Any) -> list[bytes]:
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
    path.write_bytes(b"".join(rows_of(kind)))
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    asked = Questions()
    learn(path, one, stop=asked, **settings_of(kind))
    assert len(small) > 2, "the features should have outgrown some plans"
    for share in (0.05, 0.3, 0.55, 0.9):
        stops = (int(share * asked.n), asked.n // 4, 7, asked.n // 3)
        assert go_on(path, other, stops, **settings_of(kind)) > 0
        same(one, other)


@pytest.mark.parametrize(("kind", "n"), [("one_vs_rest", 300), ("hinge", 200)])
def test_wherever_it_stops_the_result_is_the_same(kind, n, small, tmp_path):
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(rows_of(kind, n)))
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    asked = Questions()
    learn(path, one, stop=asked, **settings_of(kind))
    stopped = 0
    for call in range(1, asked.n + 1):
        stopped += go_on(path, other, (call,), **settings_of(kind))
        same(one, other)
    assert stopped > asked.n / 2


@EVERY_KIND
def test_a_stream_that_dies_goes_on_from_its_last_commit(kind, small, tmp_path, monkeypatch):
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(rows_of(kind)))
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    chosen = settings_of(kind)
    often = {**chosen.pop("options", {}), "checkpoint_every": "50rows"}
    learn(path, one, options=often, **chosen)
    learned = stream_job.Stream.learn
    for limit in (2, 4, 6, 9):
        calls = iter(range(limit))

        def learn_some(self, block, calls=calls):
            if next(calls, None) is None:
                raise MemoryError
            learned(self, block)

        with monkeypatch.context() as patch:
            patch.setattr(stream_job.Stream, "learn", learn_some)
            with pytest.raises(MemoryError):
                learn(path, other, options=often, **chosen)
        learn(path, other, resume=True, options={"checkpoint_every": "50rows"})
        same(one, other)


def test_a_stream_that_dies_while_it_makes_room_goes_on(small, tmp_path, monkeypatch):
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(rows_of("one_vs_rest")))
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    learn(path, one, **settings_of("one_vs_rest"))
    make = stream_job.Stream.make_student
    for limit in range(1, len(small)):
        calls = iter(range(limit))

        def make_some(self, *arguments, calls=calls):
            if next(calls, None) is None:
                raise MemoryError
            make(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(stream_job.Stream, "make_student", make_some)
            with pytest.raises(MemoryError):
                learn(path, other, **settings_of("one_vs_rest"))
        learn(path, other, resume=True)
        same(one, other)


@pytest.mark.parametrize("kind", ["hinge", "crammer_singer", "log_loss", "one_class", "arow"])
def test_threads_and_the_size_of_pieces_do_not_matter(kind, small, tmp_path, monkeypatch):
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(rows_of(kind)))
    names = []
    for threads, piece in ((1, 700), (2, 90), (3, 1 << 20)):
        small_pieces(monkeypatch, piece)
        names.append(tmp_path / f"{threads}.model")
        learn(path, names[-1], threads=threads, **settings_of(kind))
    same(names[0], names[1])
    same(names[0], names[2])


# ------------------------------------------------------------------------------------------ pipes


@pytest.mark.parametrize("kind", ["hinge", "one_vs_rest", "arow"])
def test_a_pipe_that_is_read_on_after_a_stop_gives_the_same_bytes(
    kind, small, tmp_path, monkeypatch
):
    data = b"".join(rows_of(kind, 300))
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
    data = b"".join(rows_of("one_vs_rest", 300))
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
    run = model.with_name(model.name + ".run")
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        if (run / "run.json").exists() and Run.read(run)["seen"]["rows"] >= rows:
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


# ------------------------------------------------------------------------- text that is not whole


def refusal(*arguments: Any, **settings: Any) -> str:
    with pytest.raises(SbmError) as caught:
        learn(*arguments, **settings)
    return str(caught.value)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


LINES = make_lines(60)
KEPT = (
    "; the {} rows in front of it are learned and kept in m.model, mend the text and go on with "
    "--resume"
)


def write(lines: Sequence[bytes], name: str = "d.svm") -> str:
    Path(name).write_bytes(b"".join(lines))
    return name


@pytest.mark.parametrize("content", [[], [b"# nothing\n", b"\n"]])
def test_a_stream_without_rows_is_refused(content, here):
    assert refusal(write(content), Path("m.model")) == (
        "the input holds no rows; nothing was learned and no model written"
    )
    assert not Path("m.model").exists()


def test_a_whole_last_line_without_a_line_end_is_taken_and_named(here):
    report = learn(write([*LINES[:-1], LINES[-1].rstrip()]), Path("m.model"))
    assert report["rows"] == 60
    assert report["open"] == ["d.svm"]
    learn(write(LINES), Path("m.model"), resume=True)  # it has its line end by now
    learn(write([*LINES, LINES[0]]), Path("m.model"), resume=True)
    assert kept(Path("m.model"))["seen"]["rows"] == 61


def test_a_last_line_that_was_learned_and_went_on_is_refused(here):
    learn(write([*LINES, b"1 5:0.1"]), Path("m.model"))
    expected = (
        "d.svm:61: the line had no line end when it was learned, and has gone on since"
        + KEPT.format(61)
    )
    assert refusal(write([*LINES, b"1 5:0.125\n"]), Path("m.model"), resume=True) == expected


@pytest.mark.parametrize(
    ("torn", "found"),
    [
        (b"1 5:", "found '' where a decimal number is expected"),
        (b"1 5", "found '5' without a value, a feature is written as id:value"),
        (b"1 5:1e", "found '1e' where a decimal number is expected"),
        (b"-", "found '-' where a numeric label is expected"),
    ],
)
def test_what_is_in_front_of_a_torn_last_line_is_learned(torn, found, here):
    learn(write([*LINES, LINES[7]]), Path("one.model"))
    sentence = refusal(write([*LINES, torn]), Path("m.model"))
    assert sentence == (
        f"d.svm:61: {found} (the last line has no line end: something stopped in its middle)"
        + KEPT.format(60)
    )
    assert Model.load(Path("m.model")).info["rows"] == 60
    report = learn(write([*LINES, LINES[7]]), Path("m.model"), resume=True)
    assert report["rows"] == 61
    assert report["open"] == []


def test_a_torn_line_that_is_the_first_leaves_nothing(here):
    assert refusal(write([b"1 5:"]), Path("m.model")) == (
        "d.svm:1: found '' where a decimal number is expected (the last line has no line end: "
        "something stopped in its middle)"
    )
    assert not Path("m.model").exists()
    assert refusal(write(LINES), Path("m.model"), resume=True) == (
        "m.model is no stream to go on with (there is no m.model.run/run.json); name the model of "
        "one, or begin without --resume"
    )


def test_a_stream_ends_at_a_refused_line_and_goes_on_once_it_is_mended(small, here):
    bad = write([*LINES[:40], b"1 a:1\n", *LINES[40:]])
    sentence = refusal(bad, Path("m.model"))
    assert sentence == (
        "d.svm:41: found 'a:1' where a feature written as id:value is expected" + KEPT.format(40)
    )
    assert kept(Path("m.model"))["seen"]["rows"] == 40
    assert refusal(bad, Path("m.model"), resume=True) == sentence
    learn(write([*LINES[:40], b"1 3:1\n", *LINES[40:]]), Path("m.model"), resume=True)
    assert kept(Path("m.model"))["seen"]["rows"] == 61


def test_a_pipe_that_ends_in_the_middle_of_a_number_goes_on_with_the_whole_line(here, monkeypatch):
    def learn_pipe(lines, **more):
        read, write = os.pipe()
        with writer(write, lines), stdin_of(monkeypatch, read):
            return learn("-", Path("m.model"), **more)

    with pytest.raises(DataError, match="found '' where a decimal number is expected"):
        learn_pipe([*LINES, b"1 5:"])
    report = learn_pipe([b"1 5:2\n", LINES[0]], resume=True)
    assert report["rows"] == 62


def test_refused_lines_are_skipped_on_request(small, here):
    learn(write(LINES), Path("one.model"))
    bad = write([*LINES[:40], b"1 a:1\n", b"x\n", *LINES[40:]], "bad.svm")
    report = learn(bad, Path("m.model"), options={"on_error": "skip"})
    assert report["skipped"] == 2
    assert report["problems"] == [
        "bad.svm:41: found 'a:1' where a feature written as id:value is expected",
        "bad.svm:42: found 'x' where a numeric label is expected",
    ]
    one, other = kept(Path("one.model")), kept(Path("m.model"))
    assert sorted(name for name in one if one[name] != other[name]) == ["model", "sources"]
    assert other["sources"] == [{"name": "bad.svm", "rows": 60, "skipped": 2}]


def test_another_text_is_refused(here):
    learn(write(LINES), Path("m.model"))
    size = sum(map(len, LINES))
    expected = (
        f"d.svm is not the text that was learned from before, its first {size} bytes differ; give "
        "the text that is new in a file of its own" + KEPT.format(60)
    )
    assert refusal(write([LINES[0], *LINES]), Path("m.model"), resume=True) == expected
    assert refusal(write(LINES[:-1]), Path("m.model"), resume=True) == expected
    report = learn(write([LINES[0], *LINES], "e.svm"), Path("m.model"), resume=True)
    assert report["rows"] == 121


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_compressed_text_goes_on_where_it_was(ending, small, here):
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}[ending]
    name = write([pack(b"".join(rows_of("one_vs_rest")))], f"d.svm{ending}")
    learn(name, Path("one.model"), **settings_of("one_vs_rest"))
    for stops in ((12, 9), (20, 5, 7)):
        go_on(name, Path("m.model"), stops, **settings_of("one_vs_rest"))
        same(Path("one.model"), Path("m.model"))


# ------------------------------------------------------------------------ labels, values, features


def test_other_labels_than_those_named_are_refused(small, here):
    name = write([*LINES, b"3 1:1\n"])
    chosen = {"classes": (1, -1)}
    assert refusal(name, Path("m.model"), options=chosen) == (
        "d.svm: row 61 has the label 3, which --classes does not name" + KEPT.format(60)
    )
    learn(write(LINES), Path("m.model"), resume=True)
    learn(write(LINES), Path("one.model"), options=chosen)
    same(Path("one.model"), Path("m.model"))


def test_named_classes_need_not_come(here):
    learn(write(LINES), Path("m.model"), options={"classes": (-1, 1, 3)}, loss="crammer_singer")
    model = Model.load(Path("m.model"))
    assert model.labels == [-1, 1, 3]
    assert model.W.shape == (len(model.ids), 3)


def test_one_label_waits_for_another_where_the_loss_tells_labels_apart(small, here):
    one = [b"1 1:1 %d:2\n" % k for k in range(2, 60)]
    assert refusal(write(one), Path("m.model"), loss="crammer_singer") == (
        "all 58 rows have one label, crammer_singer needs at least two classes; they are kept, go "
        "on with --resume"
    )
    assert not Path("m.model").exists()
    learn(write([*one, *LINES]), Path("m.model"), resume=True)
    assert Model.load(Path("m.model")).labels == [-1, 1]
    learn(write(one), Path("n.model"))
    assert Model.load(Path("n.model")).labels == [0, 1]


def test_many_labels_are_refused_where_classes_are_learned(here, monkeypatch):
    monkeypatch.setattr(coding, "MOST_LABELS", 30)
    lines = [b"%d.5 1:1\n" % k for k in range(31)]
    assert refusal(write(lines), Path("m.model")) == (
        "d.svm has more than 65,536 different labels, which are no classes; use --loss "
        "epsilon_insensitive or another loss for regression"
    )
    learn(write(lines), Path("m.model"), loss="epsilon_insensitive")
    learn(write(lines[1:]), Path("m.model"))


@EVERY_KIND
def test_values_may_come_late(kind, small, here):
    lines = [*rows_of(kind, 200, values=False), *rows_of(kind, 200, seed=1)]
    report = learn(write(lines), Path("one.model"), **settings_of(kind))
    assert report["rows"] == 400
    assert next(plan.value_type for plan in small) == "ones"
    assert small[-1].value_type == "float32"
    assert go_on("d.svm", Path("m.model"), (20, 15, 11), **settings_of(kind))
    same(Path("one.model"), Path("m.model"))


def test_a_value_that_comes_late_is_learned_as_it_is(here):
    # Each row has a feature of its own, so its weight is the variable times the value.
    lines = [b"%+d %d:1\n" % (1 - 2 * (k % 2), k + 1) for k in range(1500)]
    learn(write([*lines, b"1 7000:0.5\n"]), Path("m.model"), mem="200MB")
    model = Model.load(Path("m.model"))
    assert model.W[model.ids == 7000, 0] == pytest.approx(0.5)
    assert model.W[model.ids <= 1500, 0] == pytest.approx([1, -1] * 750)


def test_a_row_longer_than_any_before_makes_room_for_itself(small, here):
    long = b"1 " + b" ".join(b"%d:2" % k for k in range(1, 3001)) + b"\n"
    lines = [*LINES, long, *LINES]
    learn(write(lines), Path("one.model"))
    assert small[-1].size.block_nnz >= 3000
    assert Model.load(Path("one.model")).info["rows"] == 121
    go_on("d.svm", Path("m.model"), (9, 8, 7))
    same(Path("one.model"), Path("m.model"))


def test_ids_of_63_bits_are_features_like_others(small, here):
    def moved(line: bytes) -> bytes:
        label, *pairs = line.split()
        split = [pair.split(b":") for pair in pairs]
        return label + b"".join(b" %d:%b" % (2**63 - 400 + int(i), v) for i, v in split) + b"\n"

    lines = [*LINES, *map(moved, rows_of("hinge", 200)[60:])]
    learn(write(lines), Path("one.model"))
    go_on("d.svm", Path("m.model"), (9, 8, 7))
    same(Path("one.model"), Path("m.model"))
    ids = Model.load(Path("m.model")).ids
    assert (ids > 2**62).any()
    assert {*ids.tolist()} <= {int(p.split(b":")[0]) for x in lines for p in x.split()[1:]}
    assert kept(Path("m.model"))["seen"]["hashed"]


def test_a_label_behind_two_with_weights_of_their_own_is_refused(small, here):
    name = write([*LINES, b"3 1:1\n"])
    expected = (
        "label 3 came after two others, which had weights of their own; with --class-weight name "
        "all labels by --classes; the 60 rows in front of it are learned and kept"
    )
    assert refusal(name, Path("m.model"), class_weight={1: 2.0}) == expected
    chosen = {"classes": (-1, 1, 3)}
    learn(name, Path("m.model"), class_weight={1: 2.0}, options=chosen)


def test_classes_may_come_in_any_plan_and_are_told_apart(small, here):
    lines = [b"%d %d:1\n" % (k * 6 // 300, 1 + k * 6 // 300) for k in range(300)]
    for loss in ("hinge", "crammer_singer", "weston_watkins", "log_loss"):
        learn(write(lines), Path("m.model"), loss=loss, C=10.0)
        model = Model.load(Path("m.model"))
        assert model.labels == [0, 1, 2, 3, 4, 5]
        np.testing.assert_array_equal(full_weights(model, 6).argmax(axis=1), range(6))


# ---------------------------------------------------------------------------- settings and options

FOREIGN = {
    "tol": 0.1, "max_passes": 3, "time_limit": 3, "warm_start": "x", "calibrate": True,
    "schedule": "pairs", "caches": 2, "class_blocks": 2, "weights": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_settings_of_training_are_refused(name, here):
    assert refusal(write(LINES), Path("m.model"), **{name: FOREIGN[name]}) == (
        f"{name} is of no use for a stream, which comes once; leave it out"
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"class_weight": "balanced"},
            ("class_weight balanced needs the number of rows of each class, which a stream does "
            "not tell ahead; give numbers"),
        ),
        ({"rounds": "2,3"}, "rounds is 2,3; a stream takes one number"),
        (
            {"class_weight": {7: 2.0}, "options": {"classes": (-1, 1)}},
            "class_weight names label 7, which --classes does not name",
        ),
        (
            {"options": {"learner": "arow"}, "loss": "log_loss"},
            "loss is log_loss, but arow has a loss of its own; leave it out",
        ),
        (
            {"options": {"learner": "arrow"}},
            f"unknown learner 'arrow', known are {', '.join(LEARNERS)}; did you mean 'arow'?",
        ),
        ({"options": {"clases": (1, 2)}}, "options: unknown key 'clases'; did you mean 'classes'?"),
        (
            {"options": {"on_error": "stop"}},
            "unknown on-error 'stop', known are fail, skip; did you mean 'skip'?",
        ),
        (
            {"options": {"classes": (1, 1)}},
            "classes is 1,1; two or more different labels are expected",
        ),
        (
            {"options": {"checkpoint_every": "0rows"}},
            "checkpoint-every is '0rows'; write it as 60s or 100000rows",
        ),
        (
            {"options": {"checkpoint_every": "often"}},
            "'often' is not a time; write it as 90s, 5m or 1.5h",
        ),
        (
            {"options": {"idle_timeout": "soon"}},
            "'soon' is not a time; write it as 90s, 5m or 1.5h",
        ),
        (
            {"loss": "one_class", "bias": 1.0},
            "one_class has an offset of its own; leave out bias",
        ),
        (
            {"loss": "epsilon_insensitive", "class_weight": {1: 2.0}},
            "class_weight needs classes, and epsilon_insensitive has none; leave it out",
        ),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_in_a_sentence(settings, sentence, here):
    assert refusal(write(LINES), Path("m.model"), **settings) == sentence


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"C": 2.0}, "C is 2.0, but the stream began with 1.0"),
        ({"loss": "log_loss"}, "loss is log_loss, but the stream began with hinge"),
        ({"bias": 1.0}, "bias is 1.0, but the stream began with 0.0"),
        ({"rounds": 4}, "rounds is 4, but the stream began with 3"),
        ({"seed": 1}, "seed is 1, but the stream began with 0"),
        ({"cache_frac": 0.1}, "cache_frac is 0.1, but the stream began with 0.5"),
        ({"options": {"learner": "arow"}}, "learner is arow, but the stream began with sbm"),
        ({"options": {"dtype": "float64"}}, "dtype is float64, but the stream began with float32"),
        (
            {"options": {"classes": (1, -1)}},
            "classes is [1.0, -1.0], but the stream began with None",
        ),
    ],
)
def test_a_stream_keeps_its_settings(given, sentence, here):
    learn(write(LINES), Path("m.model"), cache_frac=0.5)
    before = kept(Path("m.model"))
    assert refusal(None, Path("m.model"), resume=True, **given) == (
        f"{sentence} and keeps it; leave it out, or begin anew without --resume"
    )
    assert kept(Path("m.model")) == before


def test_what_is_the_same_and_what_is_free_may_be_given_again(here):
    learn(write(LINES), Path("m.model"), C=0.5, loss="squared_hinge", options={"learner": "bmd"})
    report = learn(
        None, Path("m.model"), resume=True, C=0.5, loss="squared_hinge", mem="500MB", threads=1,
        options={"learner": "bmd", "on_error": "skip", "checkpoint_every": "5m"},
    )  # fmt: skip
    assert report["rows"] == 60


def test_a_file_is_known_by_its_path_wherever_we_are(here, monkeypatch):
    name = write(LINES)
    learn(name, Path("one.model"))
    learn(name, Path("m.model"))
    Path("other").mkdir()
    monkeypatch.chdir("other")
    for again in (None, "../d.svm", str(here / "d.svm")):
        assert learn(again, Path("../m.model"), resume=True)["rows"] == 60
        assert Path("../m.model").read_bytes() == Path("../one.model").read_bytes()


def test_a_compressed_file_is_not_followed(here):
    Path("d.svm.gz").write_bytes(gzip.compress(b"".join(LINES)))
    assert refusal("d.svm.gz", Path("m.model"), options={"follow": True}) == (
        "d.svm.gz is compressed, and such a file cannot be followed; leave out --follow, or "
        "decompress it on its way (zcat, zstdcat) and give - for the pipe"
    )


def test_a_record_that_lacks_something_is_refused(here):
    learn(write(LINES), Path("m.model"))
    record = Run.read(Path("m.model.run"))
    del record["progressive"], record["seen"]
    Path("m.model.run/run.json").write_bytes(encode_record("run", record))
    assert refusal(None, Path("m.model"), resume=True) == (
        "m.model.run cannot be gone on with ('seen'); begin anew without --resume"
    )


def test_nothing_to_go_on_from(here):
    assert refusal(None, Path("m.model"), resume=True) == (
        "m.model is no stream to go on with (there is no m.model.run/run.json); name the model of "
        "one, or begin without --resume"
    )
    sbm.split([write(LINES)], "d.sbm", blocks=2)
    sbm.train("d.sbm", "m.model", {"mem": "400MB"})
    assert refusal(None, Path("m.model"), resume=True) == (
        "m.model.run is of sbm train, not of a stream; sbm train --warm-start goes on with it"
    )
    learn(write(LINES), Path("s.model"))
    with pytest.raises(StoreError) as refused:
        sbm.train("d.sbm", "s.model", {"mem": "400MB", "warm_start": "s.model"})
    assert str(refused.value) == (
        "s.model.run is of sbm stream, which forgets the alphas of its rows; leave out "
        "--warm-start, or give the model another name with -o"
    )


def test_too_little_memory_is_said_and_the_stream_goes_on_with_more(here):
    lines = make_lines(3000)
    wide = [
        b"1 " + b" ".join(b"%d:1" % (10**7 + 2000 * k + j) for j in range(2000)) + b"\n"
        for k in range(300)
    ]
    sentence = refusal(write([*lines, *wide]), Path("m.model"), mem="140MB")
    assert re.fullmatch(
        r"--mem 140 MB is too little for m\.model, which needs interpreter 92 MB, .*; "
        r"--mem \d+MB has room for twice as many features; the [0-9,]+ rows in front of it are "
        r"learned and kept, go on with --resume",
        sentence,
    )
    rows = kept(Path("m.model"))["seen"]["rows"]
    assert 3000 <= rows < 3300
    report = learn(None, Path("m.model"), resume=True, mem="300MB")
    assert report["rows"] == 3300


# ------------------------------------------------------------------------------ what comes of it


@EVERY_KIND
def test_the_model_serves_like_any_other(kind, small, here):
    name = write(rows_of(kind))
    model, report = sbm.stream(name, "m.model", {"mem": "400MB", **flat(kind)}, **more(kind))
    loaded = Model.load(Path("m.model"))
    assert loaded.W.tobytes() == model.compact().W.tobytes()
    assert loaded.info["stream"]["blocks"] == report["blocks"] > 3
    assert not loaded.converged
    assert loaded.certificate == {}
    result = sbm.predict("m.model", name)
    assert result["rows"] == 420
    if report["accuracy"] is not None and report["dual"] is not None and kind != "one_class":
        assert result["accuracy"] >= report["accuracy"]  # it has seen them
    assert sbm.info("m.model")
    assert sbm.info("m.model.run")


def flat(kind: str) -> dict[str, Any]:
    return {name: value for name, value in settings_of(kind).items() if name != "options"}


def more(kind: str) -> dict[str, Any]:
    return {"options": KINDS[kind].get("options")}


def test_a_finished_stream_with_nothing_new_stays_as_it_is(small, here):
    learn(write(LINES), Path("m.model"))
    before = kept(Path("m.model"))
    report = learn(None, Path("m.model"), resume=True)
    assert report["rows"] == 60
    assert kept(Path("m.model")) == before


def test_a_stream_begins_anew_without_resume(small, here):
    learn(write(rows_of("crammer_singer")), Path("m.model"), loss="crammer_singer")
    learn(write(LINES), Path("m.model"))
    learn(write(LINES), Path("one.model"))
    same(Path("one.model"), Path("m.model"))


def test_a_growing_file_is_followed_until_it_is_idle(small, here):
    lines = rows_of("one_vs_rest", 300)
    learn(write(lines), Path("one.model"), **settings_of("one_vs_rest"))
    write(lines[:50])

    def append() -> None:
        with open("d.svm", "ab", 0) as file:
            for part in chunks(b"".join(lines[50:]), (777, 40)):
                file.write(part)

    def is_whole() -> bool:  # asked often; what was appended is there before it is idle
        if not thread.is_alive() and not thread.ident:
            thread.start()
        return False

    thread = threading.Thread(target=append)
    report = learn(
        "d.svm", Path("m.model"), stop=is_whole, **settings_of("one_vs_rest"),
        options={"follow": True, "idle_timeout": 1},
    )  # fmt: skip
    thread.join(30)
    assert not report["stopped"]
    assert report["rows"] == 300
    same(Path("one.model"), Path("m.model"))


# ------------------------------------------------------------------------------- how good it is


def test_the_dual_value_bounds_the_optimum_and_costs_count(small, here):
    name = write(rows_of("hinge"))
    sbm.split([name], "d.sbm", blocks=2)
    duals = {}
    for weight in (1.0, 4.0):
        chosen = {"mem": "400MB", "C": 0.2, "class_weight": {1: weight}}
        _, trained = sbm.train("d.sbm", "t.model", {**chosen, "tol": 1e-6, "max_passes": 5000})
        model, report = sbm.stream(name, "m.model", chosen)
        assert 0.5 * trained["primal"] < report["dual"] <= trained["primal"] * (1 + 1e-9)
        duals[weight] = report["dual"]
        w = full_weights(model, 200)[:, 0]
        primal = 0.5 * w @ w
        for line in rows_of("hinge"):
            label, *pairs = line.split()
            z = sum(w[int(i) - 1] * float(v) for i, v in (p.split(b":") for p in pairs))
            primal += 0.2 * (weight if label == b"1" else 1) * max(0, 1 - int(label) * z)
        assert primal >= trained["dual"] * (1 - 1e-9)
    assert duals[4.0] > duals[1.0] * 1.1


def test_one_pass_over_real_text_comes_near_the_optimum(text_of, reference, here):
    [optimum] = [r for r in reference["prep_small_binary"]["hinge"] if r["C"] == 0.1]
    model, report = sbm.stream(
        str(text_of("prep_small_binary")), "m.model", {"C": 0.1, "mem": "200MB"}
    )
    assert optimum["primal"] * 0.98 < report["dual"] <= optimum["primal"]
    quality = sbm.predict(model, text_of("prep_small.t_binary"))
    assert 100 * quality["accuracy"] > optimum["test_accuracy"] - 0.1
    assert 0.9 < report["accuracy"] < optimum["train_accuracy"] / 100


# ---------------------------------------------------------------------------------------- memory

CHUNK_ROWS = 4000


def write_long(path: Path, chunks: int, nonzeros: int, classes: int) -> int:
    """Write text whose every part has features of its own, and perhaps a class; its bytes."""
    random = np.random.default_rng(0)
    size = 0
    with open(path, "wb") as file:
        rows = []
        for _ in range(CHUNK_ROWS):
            ids = np.unique((20_000 * random.random(nonzeros) ** 3).astype(int))
            rows.append(b"%d" % (ids[0] % 2) + b"".join(b" 1%05d:1.5" % k for k in ids) + b"\n")
        part = b"".join(rows)
        for k in range(chunks):
            mine = part.replace(b" 1", b" %d" % (k + 1))
            if classes > 2:
                mine = mine.replace(b"\n0 ", b"\n%d " % (k % classes))
            size += file.write(mine)
    return size


@pytest.mark.parametrize(
    ("options", "classes"),
    [("--learner arow", 2), ("--loss crammer_singer --bias 1", 7)],
)
def test_memory_stays_within_bounds_however_long_the_text_is(options, classes, here, monkeypatch):
    monkeypatch.delenv("SBM_COMPILE_HERE")
    size = write_long(Path("d.svm"), 9, 800, classes)
    assert size > 190_000_000
    for line in ("stream tiny.svm -o tiny.model", "stream d.svm -o m.model --mem 190MB"):
        write([b"0 1:0.5\n", b"1 2:1\n", *([b"2 1:1\n"] if classes > 2 else [])], "tiny.svm")
        code, out, err = shell(f"{line} {options} --json", here)  # the first one compiles
        assert code == 0, err
    report = json.loads(out)
    assert report["rows"] == 9 * CHUNK_ROWS
    assert report["features"] > 100_000
    assert report["text_bytes"] == size
    assert report["peak_rss_bytes"] <= 190_000_000


# ------------------------------------------------------------------------------ the command line


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> tuple[Path, dict[str, Any], str]:
    folder = tmp_path_factory.mktemp("said")
    (folder / "d.svm").write_bytes(b"".join(make_lines(3000)).rstrip())
    (folder / "m.toml").write_text("C = 0.5\nclass-weight = { 1 = 2.0 }\n")
    line = "stream d.svm -o m.model --config m.toml --classes=-1,1 --test d.svm --json"
    code, out, err = shell(line, folder)
    assert code == 0, err
    assert err == ""
    return folder, json.loads(out), out


def test_json_has_the_keys_that_are_promised(said):
    folder, report, out = said
    assert set(report) == {
        "rows", "blocks", "features", "labels", "loss", "accuracy", "dual", "visits", "updates",
        "visits_cut_short", "text_bytes", "skipped", "problems", "open", "learner", "stopped",
        "pending", "seconds", "peak_rss_bytes", "model", "test",
    }  # fmt: skip
    assert set(report["seconds"]) == {"total", "load", "wait", "predict", "learn", "write"}
    assert out.count("\n") == 1
    assert (report["rows"], report["labels"], report["learner"]) == (3000, [-1, 1], "sbm")
    assert report["open"] == ["d.svm"]
    assert report["text_bytes"] == (folder / "d.svm").stat().st_size
    assert report["test"]["rows"] == 3000
    settings = Model.load(folder / "m.model").info["settings"]
    assert (settings["C"], settings["class_weight"]) == (0.5, {"1": 2.0})


def test_words_on_the_terminal(said):
    folder, report, _ = said
    code, out, err = shell("stream d.svm -o n.model --config m.toml --classes=-1,1", folder)
    assert code == 0
    assert out.startswith(
        f"n.model: 3,000 rows in {report['blocks']} blocks, {report['features']:,} features, "
        f"progressive loss {report['loss']:.6f}, accuracy {100 * report['accuracy']:.4f} %\n"
        f"optimum of all rows at least {report['dual']:.8g}, {report['updates']:,} updates, peak "
    )
    lines = err.splitlines()
    assert lines[0].split()[:4] == ["rows", "loss", "since", "last"]
    assert [line.split()[0] for line in lines[1:4]] == ["1,024", "2,048", "3,000"]
    assert lines[4:] == ["sbm: the last line of d.svm has no line end; it was taken as it stands"]


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        ("stream d.svm", 2, "name the model with -o"),
        (
            "stream -o n.model", 2, "no input; give LIBSVM text files, globs, or - for a pipe",
        ),
        (
            "stream nix.svm -o n.model", 1,
            "nix.svm does not exist; give LIBSVM text files, globs, or - for a pipe",
        ),
        (
            "stream --resume m.model -o n.model", 2,
            "--resume m.model goes on in that model; leave out -o",
        ),
        (
            "stream d.svm -o n.model --classes a,b", 2,
            "'a,b' is no list of numbers; write it as 0.01:100:x10 (from, to, factor) or 0.1,1",
        ),
    ],
)  # fmt: skip
def test_lines_that_cannot_be_followed(line, code, sentence, said):
    assert shell(line, said[0]) == (code, "", f"sbm: {sentence}\n")


def test_a_skipped_line_is_named(said):
    folder, _, _ = said
    (folder / "bad.svm").write_bytes(b"1 1:1\n-1 2:1\nx 1:1\n")
    code, out, err = shell("stream bad.svm -o bad.model --on-error skip --quiet", folder)
    assert code == 0
    assert out.endswith("\n1 line skipped\n")
    assert err == "skipped bad.svm:3: found 'x' where a numeric label is expected\n"


def test_the_model_can_be_exported(said):
    folder, _, _ = said
    code, _, err = shell("export m.model -o m.liblinear", folder)
    assert code == 0, err
    assert (folder / "m.liblinear").read_text().startswith("solver_type ")


def test_what_cannot_be_kept_ends_a_stream_that_waits_for_text(here, monkeypatch):
    read, write_end = os.pipe()
    with open(write_end, "wb", 0) as pipe, stdin_of(monkeypatch, read):
        pipe.write(b"".join(LINES))
        monkeypatch.setattr(stream_job, "FIRST_BLOCK", 20)
        monkeypatch.setattr(sbm.store.run.Run, "commit", no_room)
        with pytest.raises(SbmError, match=r"^no room$"):
            learn("-", Path("m.model"), options={"checkpoint_every": "20rows"})


def no_room(*arguments: Any) -> None:
    raise SbmError("no room")


def test_a_stream_that_never_began_leaves_the_earlier_one(here):
    learn(write(LINES), Path("m.model"))
    before = kept(Path("m.model"))
    for text in ([], [b"1 5:"]):
        refusal(write(text, "e.svm"), Path("m.model"))
    refusal("missing.svm", Path("m.model"))
    refusal("d.svm", Path("m.model"), mem="100MB")
    assert kept(Path("m.model")) == before
    assert learn(None, Path("m.model"), resume=True)["rows"] == 60


def test_a_line_that_a_pipe_began_is_kept_where_no_rows_came_before_it(here, monkeypatch):
    def learn_pipe(parts: Sequence[bytes], **more: Any) -> dict[str, Any]:
        read, write_end = os.pipe()
        with open(write_end, "wb", 0) as pipe, stdin_of(monkeypatch, read):
            for part in parts:
                pipe.write(part)
            return learn("-", Path("m.model"), options={"idle_timeout": 0.6}, **more)

    monkeypatch.setattr(stream_job, "FIRST_BLOCK", 60)  # all rows are in full blocks
    assert learn_pipe([*LINES, b"1 3:1 5"])["rows"] == 60
    assert learn_pipe([b"7:1\n", LINES[0]], resume=True)["rows"] == 62
    assert 57 in Model.load(Path("m.model")).ids


def test_a_checkpoint_is_due_before_the_first_block_is_full(here, monkeypatch):
    read, write_end = os.pipe()

    def is_saved() -> bool:
        return Path("m.model").exists()

    with open(write_end, "wb", 0) as pipe, stdin_of(monkeypatch, read):
        pipe.write(b"".join(LINES))  # and no end
        report = learn("-", Path("m.model"), stop=is_saved, options={"checkpoint_every": 0.1})
    assert report["stopped"]
    assert report["rows"] == 60


def test_a_file_that_is_given_twice_goes_on_in_the_right_place(small, here):
    name = write(make_lines(200))
    asked = Questions()
    learn([name, name], Path("one.model"), stop=asked)
    for share in (0.3, 0.5, 0.7):
        assert go_on([name, name], Path("m.model"), (int(share * asked.n),)) == 1
        same(Path("one.model"), Path("m.model"))
    assert [source["rows"] for source in kept(Path("m.model"))["sources"]] == [200, 200]


def test_what_is_in_front_of_the_place_where_compressed_text_breaks_off_is_learned(here):
    lines = make_lines(3000)
    learn(write([gzip.compress(b"".join(lines))], "d.svm.gz"), Path("one.model"))
    whole = Path("d.svm.gz").read_bytes()
    sentence = refusal(write([whole[: len(whole) // 2]], "d.svm.gz"), Path("m.model"))
    assert "it ends in the middle of a frame" in sentence
    assert 1000 < kept(Path("m.model"))["seen"]["rows"] < 2000
    write([whole], "d.svm.gz")
    assert learn(None, Path("m.model"), resume=True)["rows"] == 3000


def test_a_torn_line_that_is_skipped_is_not_said_to_be_taken(here):
    report = learn(write([LINES[0], b"1 5:"]), Path("m.model"), options={"on_error": "skip"})
    assert report["skipped"] == 1
    assert report["open"] == []


def test_one_row_in_front_of_a_refused_line_is_one(here):
    assert refusal(write([LINES[0], b"1 5:x\n"]), Path("m.model")).endswith(
        "; the row in front of it is learned and kept in m.model, mend the text and go on with "
        "--resume"
    )


def test_closed_standard_input_is_refused(here, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert refusal("-", Path("m.model")) == (
        "standard input is closed; give files, or text through a pipe"
    )


def test_checkpoints_are_as_before_where_a_stream_goes_on(small, here):
    name = write(make_lines(200))
    asked = Questions()
    learn(name, Path("one.model"), stop=asked, options={"checkpoint_every": "21rows"})
    learn(name, Path("other.model"))
    assert kept(Path("one.model"))["blocks"] > kept(Path("other.model"))["blocks"]
    options = {"checkpoint_every": "21rows"}
    learn(name, Path("m.model"), stop=stop_at(asked.n // 2), options=options)
    learn(None, Path("m.model"), resume=True)
    same(Path("one.model"), Path("m.model"))
