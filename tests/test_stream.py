"""`sbm stream` end to end: the same bytes after any number of stops, saved state, and errors."""

import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
from helpers import full_weights
from inside import Model, Run, encode_record, patch
from inside import streaming_state_module as stream_job
from processes import started, wait_until
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

import sbm
from sbm.errors import SbmError

ROOT = Path(__file__).resolve().parent.parent
ONE, OTHER = Path("one.model"), Path("other.model")

# Settings, with text for them; each takes a different path through plans, classes and states.
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
    "bmd": {"classes": 3, "cache_frac": 0.0},
}
TEXT_OF = ("classes", "targets")


def rows_of(kind: str, n: int, **more: Any) -> list[bytes]:
    chosen = {name: KINDS[kind][name] for name in TEXT_OF if name in KINDS[kind]}
    return make_lines(n, **{**chosen, **more})


def settings_of(kind: str) -> dict[str, Any]:
    return {name: value for name, value in KINDS[kind].items() if name not in TEXT_OF}


LINES = make_lines(60)


def write(lines: Sequence[bytes], name: str = "d.svm") -> str:
    Path(name).write_bytes(b"".join(lines))
    return name


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small(monkeypatch):
    small_pieces(monkeypatch, 700)
    patch(monkeypatch, "JUDGED", 40)  # decision values at a time
    return small_plans(monkeypatch)


class Questions:
    """Counts the calls of `is_stopped`."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> bool:
        self.n += 1
        return False


def resume_often(inputs: Any, stops: Any, **settings: Any) -> int:
    """Stop at these calls, and resume each time; return the number of stops."""
    stopped, resume = 0, False
    for call in (*stops, 10**9):
        try:
            report = learn(inputs, OTHER, resume, stop_at(call), **{} if resume else settings)
        except KeyboardInterrupt:  # before there was any row
            assert not resume
            continue
        if not report["stopped"]:
            return stopped
        stopped += 1
        resume = True
    raise AssertionError("it should have ended")


def refusal(lines: Sequence[bytes] | None, facts: str, **options: Any) -> None:
    """Check that a stream of ``d.svm`` to `OTHER` fails with these facts."""
    name = None if lines is None else write(lines)
    with pytest.raises(SbmError, match=facts):
        learn(name, OTHER, **options)


def rows_kept() -> int:
    return kept(OTHER)["seen"]["rows"]


# ------------------------------------------------------------------------------- the same bytes


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_stops_and_kills_do_not_change_bytes(kind, small, monkeypatch):
    name = write([*rows_of(kind, 200, values=False), *rows_of(kind, 200, seed=1)])
    asked, chosen = Questions(), settings_of(kind)
    chosen["options"] = {**chosen.get("options", {}), "checkpoint_every": "50rows"}
    report = learn(name, ONE, stop=asked, **chosen)
    assert len(small) > 2, "the features should have outgrown some plans"
    assert kept(ONE)["progressive"]["all"]["rows"] == 400
    assert (small[0].value_type, small[-1].value_type) == ("ones", "float32")
    small_pieces(monkeypatch, 90)
    for share in (0.1, 0.7):
        stops = (int(share * asked.n), asked.n // 4, 7, asked.n // 3)
        assert resume_often(name, stops, threads=2, **chosen) > 0
        same(ONE, OTHER)
    learned = stream_job.Stream._learn
    for limit in (2, 6):
        calls = iter(range(limit))

        def learn_some(self, rows, block, calls=calls):
            if next(calls, None) is None:
                raise MemoryError
            learned(self, rows, block)

        with monkeypatch.context() as context:
            context.setattr(stream_job.Stream, "_learn", learn_some)
            with pytest.raises(MemoryError):
                learn(name, OTHER, **chosen)
        learn(None, OTHER, resume=True)
        same(ONE, OTHER)
    model = Model.load(ONE)
    assert model.info["stream"]["blocks"] == report["blocks"] > 3
    assert (model.converged, model.certificate) == (False, {})
    result = sbm.predict(str(ONE), name)
    assert result["rows"] == report["rows"] == 400
    if report["accuracy"] is not None and report["dual"] is not None:
        assert result["accuracy"] >= report["accuracy"]  # it has seen them
    assert sbm.info(str(ONE).replace("model", "model.run"))


@pytest.mark.long
def test_stop_at_any_time_does_not_change_bytes(small):
    name, asked = write(rows_of("one_vs_rest", 200)), Questions()
    learn([name, name], ONE, stop=asked, **settings_of("one_vs_rest"))
    stopped = 0
    for call in range(1, asked.n + 1, 3):
        stopped += resume_often([name, name], (call,), **settings_of("one_vs_rest"))
        same(ONE, OTHER)
    assert stopped > asked.n / 6
    assert [source["rows"] for source in kept(OTHER)["sources"]] == [200, 200]


def test_kill_during_replanning_does_not_change_bytes(small, monkeypatch):
    name, chosen = write(rows_of("one_vs_rest", 300)), settings_of("one_vs_rest")
    learn(name, ONE, **chosen)
    make = stream_job.Stream._make_room
    for limit in range(1, len(small)):
        calls = iter(range(limit))

        def make_some(self, *arguments, calls=calls):
            if next(calls, None) is None:
                raise MemoryError
            make(self, *arguments)

        with monkeypatch.context() as context:
            context.setattr(stream_job.Stream, "_make_room", make_some)
            with pytest.raises(MemoryError):
                learn(name, OTHER, **chosen)
        learn(name, OTHER, resume=True)
        same(ONE, OTHER)


def test_long_rows_and_large_ids_fit(small):
    def moved(line: bytes) -> bytes:
        return re.sub(rb" (\d+):", lambda m: b" %d:" % (2**63 - 400 + int(m[1])), line)

    long = b"1 " + b" ".join(b"%d:2" % k for k in range(1, 3001)) + b"\n"
    lines = [*LINES, long, *map(moved, rows_of("hinge", 140))]
    learn(write(lines), ONE)
    assert small[-1].size.block_nnz >= 3000
    resume_often("d.svm", (9, 8, 7))
    same(ONE, OTHER)
    ids = {int(i) for line in lines for i in re.findall(rb"(\d+):", line)}
    model = Model.load(OTHER)
    assert {*model.ids.tolist(), *model.zero_ids.tolist()} == ids
    assert kept(OTHER)["seen"]["hashed"]


def test_stream_of_no_good_row_leaves_no_file():
    refusal([b"x 1:1\n"], "numeric label")
    assert not Path("other.model.run").exists()


def test_stream_without_rows_keeps_earlier_model(small):
    learn(write(LINES), ONE)
    learn(write(rows_of("crammer_singer", 200)), OTHER, loss="crammer_singer")
    learn(write(LINES), OTHER)
    same(ONE, OTHER)
    for lines, facts in (([], "no rows"), ([b"# nothing\n"], "no rows"), ([b"1 5:"], ":1: .*'5:'")):
        refusal(lines, facts)
    refusal(LINES, "mem='54MB'", mem="54MB")
    same(ONE, OTHER)
    assert learn(None, OTHER, resume=True)["rows"] == 60
    same(ONE, OTHER)


# ------------------------------------------------------------------------- checkpoints and pipes


@pytest.mark.long
def test_waiting_stream_can_be_stopped_and_saved(monkeypatch):
    os.mkfifo("fifo")
    with pytest.raises(KeyboardInterrupt):
        learn("fifo", OTHER, stop=stop_at(10))
    assert not OTHER.exists()
    read, write_end = os.pipe()
    with open(write_end, "wb", 0) as pipe, stdin_of(monkeypatch, read):
        pipe.write(b"".join(LINES))  # and no end
        report = learn("-", OTHER, stop=OTHER.exists, options={"checkpoint_every": 0.1})
    assert (report["stopped"], report["rows"]) == (True, 60)


@pytest.mark.long
def test_failed_checkpoint_ends_waiting_stream(monkeypatch):
    def no_room(*arguments: Any) -> None:
        raise SbmError("no room")

    read, write_end = os.pipe()
    with open(write_end, "wb", 0) as pipe, stdin_of(monkeypatch, read):
        pipe.write(b"".join(LINES))
        patch(monkeypatch, "FIRST_BLOCK", 20)
        monkeypatch.setattr(Run, "commit", no_room)
        with pytest.raises(SbmError, match="no room"):
            learn("-", OTHER, options={"checkpoint_every": "20rows"})


@pytest.mark.long
def test_resume_reads_new_rows_from_pipe(monkeypatch):
    def learn_pipe(parts: Sequence[bytes], **more: Any) -> dict[str, Any]:
        read, write_end = os.pipe()
        with open(write_end, "wb", 0) as pipe, stdin_of(monkeypatch, read):
            pipe.write(b"".join(parts))
            return learn("-", OTHER, options={"idle_timeout": 0.3}, **more)

    report = learn_pipe([*LINES, b"1 3:1 5"])
    assert (report["rows"], report["problems"]) == (
        60,
        ["standard input: the last line is incomplete"],
    )
    assert learn_pipe(LINES, resume=True)["rows"] == 120  # the same text is new, too
    assert [source["rows"] for source in kept(OTHER)["sources"]] == [60, 60]


# -------------------------------------------------------------------------------- real processes


def start(line: str, **options: Any) -> AbstractContextManager[Popen[str]]:
    """Run a command line in a separate process."""
    arguments = [sys.executable, "-m", "sbm", *shlex.split(line)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return started(arguments, env=environment, **streams)


def shell(line: str, **options: Any) -> tuple[int, str, str]:
    """Run a command line to its end; return exit code, stdout and stderr."""
    with start(line, **options) as process:
        out, err = process.communicate()
    assert "Traceback" not in err
    return process.returncode, out, err


EVERY = "--checkpoint-every 500rows"


@pytest.fixture
def wait_for_rows():
    def wait(rows: int, process: Popen[str]) -> None:
        run = Path("other.model.run")
        wait_until(
            lambda: (run / "run.json").exists() and Run.read(run)["seen"]["rows"] >= rows, process
        )

    options = {"checkpoint_every": "500rows"}
    learn(write(make_lines(5000, classes=4)), ONE, mem="300MB", options=options)
    return wait


@pytest.mark.process
def test_terminated_process_resumes_with_rest_of_pipe(wait_for_rows):
    data = Path("d.svm").read_bytes()
    cut = data.index(b"\n", len(data) // 2) + 1
    read, write_end = os.pipe()
    with start(f"stream - -o other.model --mem 300MB {EVERY}", stdin=read) as process:
        with writer(os.dup(write_end), [data[:cut]]):
            wait_for_rows(2000, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 130
    assert "--resume other.model" in err
    with writer(write_end, [data[cut:]]):
        code, _, err = shell("stream - --resume other.model", stdin=read)
    os.close(read)
    assert code == 0, err
    one, other = kept(ONE), kept(OTHER)
    assert sum(source["rows"] for source in other["sources"]) == 5000
    # Each pipe is a source, which the model names.
    assert [name for name in other if other[name] != one[name]] == ["model", "sources"]
    assert Model.load(ONE).W.tobytes() == Model.load(OTHER).W.tobytes()


@pytest.mark.process
def test_running_stream_is_refused_and_killed_resumes(wait_for_rows):
    with start(f"stream d.svm -o other.model --mem 300MB {EVERY} --follow") as process:
        wait_for_rows(1000, process)
        for resume in (False, True):
            with pytest.raises(SbmError, match=r"other\.model\.run is in use"):
                learn("d.svm", OTHER, resume=resume)
        process.kill()
        process.communicate()
    assert Model.load(OTHER).info["rows"] >= 500
    learn(None, OTHER, resume=True, threads=1)
    same(ONE, OTHER)


@pytest.mark.slow
@pytest.mark.process
def test_memory_is_bounded_for_long_text(monkeypatch):
    monkeypatch.delenv("SBM_COMPILE_HERE")
    rows, random = [], np.random.default_rng(0)
    for _ in range(4000):
        ids = np.unique((20_000 * random.random(800) ** 3).astype(int))
        rows.append(b"%d" % (ids[0] % 2) + b"".join(b" 1%05d:1.5" % k for k in ids) + b"\n")
    with open("d.svm", "wb") as file:  # every part has features and a class of its own
        for k in range(9):
            part = b"".join(rows).replace(b" 1", b" %d" % (k + 1))
            file.write(part.replace(b"\n0 ", b"\n%d " % (k % 7)))
    assert Path("d.svm").stat().st_size > 190_000_000
    write([b"0 1:0.5\n", b"1 2:1\n", b"2 1:1\n"], "tiny.svm")
    for name in ("tiny", "d"):  # the first one compiles
        line = f"stream {name}.svm -o {name}.model --mem 190MB --loss crammer_singer --bias 1"
        code, out, err = shell(f"{line} --json")
        assert code == 0, err
    report = json.loads(out)
    assert report["rows"] == 36_000
    assert report["features"] > 100_000
    assert report["peak_rss_bytes"] <= 190_000_000


# ------------------------------------------------------------------------- text that is refused


def test_changed_incomplete_last_line_is_refused():
    report = learn(write([*LINES, b"1 5:0.1"]), OTHER)
    assert (report["rows"], report["open"]) == (61, ["d.svm"])
    refusal([*LINES, b"1 5:0.125\n"], r"d\.svm:61: .*61 rows .*resume=True", resume=True)
    learn(write([*LINES, b"1 5:0.1\n", LINES[0]]), OTHER, resume=True)
    assert rows_kept() == 62


def test_rows_before_incomplete_line_are_learned():
    refusal([*LINES, b"1 5:"], r"d\.svm:61: found '5:'.*no line end.*60 rows .*other\.model")
    assert Model.load(OTHER).info["rows"] == 60
    report = learn(write([*LINES, LINES[7]]), OTHER, resume=True)
    assert (report["rows"], report["open"]) == (61, [])
    report = learn(write([LINES[0], b"1 5:"]), OTHER, options={"on_error": "skip"})
    assert (report["skipped"], report["open"]) == (1, [])


def test_malformed_line_can_be_fixed_or_skipped(small):
    bad = [*LINES[:40], b"1 a:1\n", *LINES[40:]]
    for resume in (False, True):
        refusal(bad, r"d\.svm:41: found 'a:1'.* 40 rows .*resume=True", resume=resume)
        assert rows_kept() == 40
    learn(write([*LINES[:40], b"1 3:1\n", *LINES[40:]]), OTHER, resume=True)
    assert rows_kept() == 61
    learn(write(LINES), ONE)
    report = learn(write(bad, "bad.svm"), OTHER, options={"on_error": "skip"})
    assert report["skipped"] == 1
    assert [problem.split(": ")[0] for problem in report["problems"]] == ["bad.svm:41"]
    one, other = kept(ONE), kept(OTHER)
    assert sorted(name for name in one if one[name] != other[name]) == ["model", "sources"]


def test_changed_text_is_refused():
    learn(write(LINES), OTHER)
    size = sum(map(len, LINES))
    for lines in ([LINES[0], *LINES], LINES[:-1]):
        refusal(lines, rf"d\.svm has changed.* {size} bytes.* 60 rows", resume=True)
    report = learn(write([LINES[0], *LINES], "e.svm"), OTHER, resume=True)
    assert report["rows"] == 121


def test_rows_before_broken_compressed_text_are_learned():
    data = gzip.compress(b"".join(make_lines(3000)))
    name = write([data[: len(data) // 2]], "d.svm.gz")
    with pytest.raises(SbmError, match=r"d\.svm\.gz.*frame"):
        learn(name, OTHER)
    assert 1000 < rows_kept() < 2000
    write([data], name)
    assert learn(None, OTHER, resume=True)["rows"] == 3000


# ------------------------------------------------------------------------------ classes, settings


def test_given_classes_restrict_labels(small):
    chosen = {"classes": (1, -1)}
    lines = [*LINES, b"3 1:1\n"]
    refusal(lines, r"d\.svm: row 61 has the label 3, .*classes.* 60 rows", options=chosen)
    learn(write(LINES), OTHER, resume=True)
    learn(write(LINES), ONE, options=chosen)
    same(ONE, OTHER)
    learn(write(LINES), OTHER, options={"classes": (-1, 1, 3)}, loss="crammer_singer")
    assert Model.load(OTHER).labels == [-1, 1, 3]
    weights = {"class_weight": {1: 2.0}}
    refusal(lines, "label 3 .*class_weight.*classes; the 60 rows", **weights)
    learn(write(lines), OTHER, options={"classes": (-1, 1, 3)}, **weights)


def test_stream_waits_for_second_label_if_needed(small):
    one = [b"1 1:1 %d:2\n" % k for k in range(2, 60)]
    refusal(
        one, "all 58 rows have one label, but crammer_singer .*resume=True", loss="crammer_singer"
    )
    assert not OTHER.exists()
    learn(write([*one, *LINES]), OTHER, resume=True)
    assert Model.load(OTHER).labels == [-1, 1]
    learn(write(one), ONE)
    assert Model.load(ONE).labels == [1]


@pytest.mark.parametrize("loss", ["hinge", "crammer_singer", "weston_watkins", "log_loss"])
def test_late_classes_are_learned(loss, small):
    lines = [b"%d %d:1\n" % (k * 6 // 300, 1 + k * 6 // 300) for k in range(300)]
    learn(write(lines), OTHER, loss=loss, C=10.0)
    model = Model.load(OTHER)
    assert model.labels == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(full_weights(model, 6).argmax(axis=1), range(6))


def test_late_value_other_than_1_is_learned():
    # Each row has a feature of its own, so its weight is the variable times the value.
    lines = [b"%+d %d:1\n" % (1 - 2 * (k % 2), k + 1) for k in range(1500)]
    learn(write([*lines, b"1 7000:0.5\n"]), OTHER, mem="200MB")
    model = Model.load(OTHER)
    assert model.W[model.ids == 7000, 0] == pytest.approx(0.5)
    assert model.W[model.ids <= 1500, 0] == pytest.approx([1, -1] * 750)


@pytest.mark.parametrize(
    ("chosen", "facts"),
    [
        *(({name: value}, f"^{name} ") for name, value in (
            ("tol", 0.1), ("max_passes", 3), ("time_limit", 3), ("warm_start", "x"),
            ("calibrate", True), ("weights", "x"), ("rounds", "2,3"),
            ("class_weight", "balanced"),
        )),
        ({"class_weight": {7: 2.0}, "options": {"classes": (-1, 1)}}, "class_weight .* 7.*classes"),
        ({"options": {"clases": (1, 2)}}, "'clases'.*'classes'"),
        ({"options": {"on_error": "stop"}}, "'stop'.*fail, skip"),
        ({"options": {"classes": (1, 1)}}, "classes is 1,1"),
        ({"options": {"checkpoint_every": "0rows"}}, "'0rows'"),
        ({"options": {"checkpoint_every": "often"}}, "'often'"),
        ({"options": {"idle_timeout": "soon"}}, "'soon'"),
        ({"loss": "one_class", "bias": 1.0}, "bias .*one_class"),
        ({"loss": "epsilon_insensitive", "class_weight": {1: 2.0}}, "class_weight .*classes"),
    ],
)  # fmt: skip
def test_meaningless_settings_are_refused(chosen, facts):
    refusal(LINES, facts, **chosen)


def test_resumed_stream_keeps_its_settings(monkeypatch):
    learn(write(LINES), OTHER, cache_frac=0.5, C=0.5, policy="mixed")
    before = kept(OTHER)
    for given, facts in (
        ({"C": 2.0}, "C is 2.0, .* 0.5"), ({"loss": "log_loss"}, "loss is log_loss, .* hinge"),
        ({"bias": 1.0}, "bias is 1.0"), ({"rounds": 4}, "rounds is 4, .* 3"),
        ({"seed": 1}, "seed is 1"), ({"policy": "random"}, "policy is random, .* mixed"),
        ({"options": {"dtype": "float64"}}, "dtype is float64"),
        ({"options": {"classes": (1, -1)}}, r"classes is \[1.0, -1.0\]"),
    ):  # fmt: skip
        refusal(None, facts, resume=True, **given)
    assert kept(OTHER) == before
    options = {"on_error": "skip", "checkpoint_every": "5m"}
    learn(None, OTHER, resume=True, C=0.5, mem="500MB", threads=1, options=options)
    Path("folder").mkdir()
    monkeypatch.chdir("folder")  # a file is known by its real path
    assert learn("../d.svm", Path("..") / OTHER, resume=True)["rows"] == 60


def test_invalid_resume_is_refused():
    refusal(None, r"no stream .*other\.model .*other\.model\.run/run\.json", resume=True)
    learn(write(LINES), OTHER)
    sbm.split(["d.svm"], "d.sbm", blocks=2)
    with pytest.raises(SbmError, match=r"other\.model\.run .*sbm.stream"):
        sbm.train("d.sbm", "m.model", {"mem": "400MB", "warm_start": str(OTHER)})
    record = Run.read(Path("other.model.run"))
    del record["seen"]
    Path("other.model.run/run.json").write_bytes(encode_record("run", record))
    refusal(None, r"other\.model\.run.* \(seen is missing", resume=True)
    sbm.train("d.sbm", ONE, {"mem": "400MB"})
    with pytest.raises(SbmError, match=r"one\.model\.run .*sbm.train"):
        learn(None, ONE, resume=True)
    with pytest.raises(SbmError, match=r"d\.svm\.gz is compressed.*follow=True"):
        learn(write([gzip.compress(b"1 1:1\n")], "d.svm.gz"), ONE, options={"follow": True})


def test_stream_that_outgrows_memory_resumes_with_more():
    wide = [
        b"1 " + b" ".join(b"%d:1" % (10**7 + 2000 * k + j) for j in range(2000)) + b"\n"
        for k in range(300)
    ]
    refusal([*make_lines(3000), *wide], r"mem='140MB' .*mem='\d+MB' .*resume=True", mem="140MB")
    assert 3000 <= rows_kept() < 3300
    assert learn(None, OTHER, resume=True, mem="300MB")["rows"] == 3300


# ------------------------------------------------------------------------------- how good it is


def test_dual_value_bounds_the_optimum():
    name = write(rows_of("hinge", 200))
    sbm.split([name], "d.sbm", blocks=2)
    duals = {}
    for weight in (1.0, 4.0):
        chosen = {"mem": "400MB", "C": 0.2, "class_weight": {1: weight}}
        _, trained = sbm.train("d.sbm", "t.model", {**chosen, "tol": 1e-3, "max_passes": 5000})
        _, report = sbm.stream(name, "m.model", chosen)
        assert 0.5 * trained["primal"] < report["dual"] <= trained["primal"] * (1 + 1e-9)
        duals[weight] = report["dual"]
    assert duals[4.0] > duals[1.0] * 1.1


# ------------------------------------------------------------------------------ the command line


def test_command_reports_json_and_text(run):
    write([b"".join(make_lines(3000)).rstrip()])
    Path("m.toml").write_text("C = 0.5\nclass-weight = { 1 = 2.0 }\n")
    line = "stream d.svm -o m.model --config m.toml --classes=-1,1 --test d.svm"
    code, out, err = run(f"{line} --json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert set(report) == {
        "rows", "blocks", "features", "labels", "loss", "accuracy", "dual", "visits", "updates",
        "visits_cut_short", "text_bytes", "skipped", "problems", "open", "stopped",
        "polish_visits", "pending", "seconds", "peak_rss_bytes", "model", "test",
    }  # fmt: skip
    assert set(report["seconds"]) == {
        "total",
        "load",
        "wait",
        "predict",
        "learn",
        "polish",
        "write",
        "compile",
    }
    assert (report["rows"], report["labels"]) == (3000, [-1, 1])
    assert (report["open"], report["test"]["rows"]) == (["d.svm"], 3000)
    assert report["text_bytes"] == Path("d.svm").stat().st_size
    settings = Model.load("m.model").info["settings"]
    assert (settings["C"], settings["class_weight"]) == (0.5, {"1": 2.0})
    code, out, err = run(line)
    assert f"{100 * report['accuracy']:.4f} %" in out
    assert f"({report['polish_visits']:,} in the polish)" in out
    assert [line.split()[0] for line in err.splitlines()[1:4]] == ["1,024", "2,048", "3,000"]
    assert "last line of d.svm" in err
    write([b"1 1:1\n-1 2:1\nx 1:1\n"], "bad.svm")
    code, out, err = run("stream bad.svm -o bad.model --on-error skip --quiet")
    assert (code, out.splitlines()[-1]) == (0, "1 line skipped")
    assert "bad.svm:3: found 'x'" in err


# ---------------------------------------------------------------------------- Vowpal Wabbit's text


def test_vw_text_is_learned_like_its_ids(small):
    """The oracle is the same rows as LIBSVM text, whose ids are hashed by `sbm split`."""
    random = np.random.default_rng(0)
    lines = []
    for label, word, other in zip(
        random.choice([-1, 1], 400), random.integers(0, 30, 400), random.random(400), strict=True
    ):
        lines.append(b"%d |f w%d n:%.3f\n" % (label, word + 3 * label, other))
    write(lines, "d.vw")
    sbm.split("d.vw", "d.sbm", blocks=1, hash_bits=10, shuffle=False)
    sbm.cat("d.sbm", "d.svm")
    model, _ = sbm.stream("d.vw", "v.model", options={"hash_bits": 10})
    plain, _ = sbm.stream("d.svm", "p.model")
    assert full_weights(model, 1 << 10) == pytest.approx(full_weights(plain, 1 << 10), abs=1e-12)
    assert sbm.predict(model, "d.vw")["accuracy"] == sbm.predict(plain, "d.svm")["accuracy"]
    for part, resume in ((lines[:150], False), (lines[150:], True)):
        name = write(part, f"{resume}.vw")
        again, _ = sbm.stream(name, "r.model", resume=resume,
                              options=None if resume else {"hash_bits": 10})  # fmt: skip
    assert again.ids.tolist() == model.ids.tolist()
    with pytest.raises(SbmError, match="hash_bits is 9, but the stream was started with 10"):
        sbm.stream("d.vw", "v.model", resume=True, options={"hash_bits": 9})
    write([*lines[:20], b"1 2.5 |f w1\n"], "weighted.vw")
    with pytest.raises(SbmError, match=r"weighted\.vw: row 21 has the importance 2\.5.*20 rows"):
        sbm.stream("weighted.vw", "w.model")


@pytest.mark.parametrize(("inputs", "options", "facts"), [
    ("t.npz", {}, "t.npz is npz, which sbm.stream does not read"),
    (["t.vw", "t.svm"], {}, "t.vw is vw by its name, and t.svm libsvm"),
    ("t.vw", {"format": "libsvm"}, "t.vw is vw by its name, not libsvm"),
    ("t.svm", {"hash_bits": 3}, "hash_bits does not apply to libsvm"),
    ("t.svm", {"format": "words"}, "unknown format 'words'"),
], ids=str)  # fmt: skip
def test_other_formats_are_refused(inputs, options, facts):
    for name in ("t.npz", "t.vw", "t.svm"):
        write([b"1 |f a\n", b"-1 |f b\n"], name)
    with pytest.raises(SbmError, match=re.escape(facts)):
        sbm.stream(inputs, "m.model", options=options)
    assert not Path("m.model.run").exists()


def test_file_to_test_with_has_the_format_of_the_stream(run):
    write([b"1 |f a\n", b"-1 |f b\n"] * 9, "t.vw")
    write([b"1 1:1\n", b"-1 2:1\n"] * 9, "t.svm")
    for line, code in (
        ("stream t.vw -o v.model --hash-bits 9 -q --test t.vw", 0),
        ("stream --resume v.model -q --test t.vw", 0),
        ("stream t.svm -o s.model -q --test t.vw", 1),
        ("stream t.svm -o s.model -q", 0),
        ("stream --resume s.model -q --test t.vw", 1),
    ):
        found, out, err = run(line)
        assert found == code, line
        assert "accuracy" in out if code == 0 and "--test" in line else True
        assert code == 0 or "t.vw has feature names" in err
