"""Training goes on where it was stopped, killed or lost, and comes to the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from families import CASES, Case, make_store
from helpers import Passes, write_rows
from processes import finished, started

import sbm
from sbm.errors import MemoryPlanError, SettingsError, StoreError
from sbm.jobs import train as module
from sbm.jobs.engine.engine import Engine
from sbm.jobs.machine import limits
from sbm.jobs.progress import Progress
from sbm.jobs.training import state
from sbm.store.blocks import BlockStore
from sbm.store.run import Run

EVERY = pytest.mark.parametrize(
    "case",
    [
        *CASES,
        Case("hinge", 2, {"cache_frac": "auto"}, "-auto"),
        Case("hinge", 2, {"policy": "none", "cache_frac": 0.0}, "-none"),
        Case("hinge", 2, {"policy": "random", "threads": 1}, "-random"),
        Case("hinge", 2, {"screen": False, "bias": 1.0}, "-noscreen"),
        Case("hinge", 2, {"calibrate": True}, "-calibrate"),
        Case("weston_watkins", 3, {"calibrate": True, "policy": "active"}, "-calibrate"),
    ],
    ids=str,
)


class LostError(Exception):
    """The process is gone."""


class After(Progress):
    """Stops, or loses the process, after so many blocks."""

    def __init__(self, n: int, lost: bool = False) -> None:
        self.left, self.lost = n, lost

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        self.is_pass = "pass" in what

    def advance(self, done: int, **numbers: object) -> None:
        self.left -= self.is_pass
        if self.lost and self.left == 0:
            raise LostError

    def is_stopped(self) -> bool:
        return not self.lost and self.left <= 0


def options_of(case, **more):
    return {"tol": 1e-7, "max_passes": 6, "mem": "400MB", **case.at(1.0), **more}


def make(folder, case, n_blocks=5, n=100):
    return make_store(folder, *case.rows(0, n), blocks=n_blocks)


def whole(store, options, name="whole.model"):
    sbm.train(store, store.parent / name, options)
    return (store.parent / name).read_bytes()


@EVERY
def test_stopped_anywhere_it_comes_to_the_same_bytes(tmp_path, case):
    store, options = make(tmp_path, case), options_of(case)
    expected = whole(store, options)
    for stop in (4, 11, 18):
        path = tmp_path / f"stop{stop}.model"
        part = After(stop)
        with pytest.raises(KeyboardInterrupt):
            sbm.train(store, path, options, is_stopped=part.is_stopped, progress=part)
        assert not path.exists()
        report = sbm.train(store, path, options)[1]
        assert report["resumed"]
        assert not report["was_finished"]
        assert path.read_bytes() == expected


@pytest.mark.parametrize("case", [Case("hinge", 2), Case("weston_watkins", 3)], ids=str)
def test_stopped_after_every_single_block_it_comes_to_the_same_bytes(tmp_path, case):
    store, options, path = make(tmp_path, case), options_of(case), tmp_path / "m.model"
    expected = whole(store, options)
    stops = 0
    while not path.exists():
        part = After(1)
        try:
            sbm.train(store, path, options, is_stopped=part.is_stopped, progress=part)
        except KeyboardInterrupt:
            stops += 1
    assert stops >= 6 * 5
    assert path.read_bytes() == expected


@EVERY
def test_lost_without_warning_it_goes_on_from_the_last_commit(tmp_path, case):
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case, checkpoint_every=1e-9)
    expected = whole(store, options)
    lost = 0
    for blocks in (9, 12):
        try:
            sbm.train(store, path, options, progress=After(blocks, lost=True))
        except LostError:
            lost += 1
    assert lost == 2
    assert not path.exists()
    assert sbm.train(store, path, options)[1]["resumed"]
    assert path.read_bytes() == expected


@pytest.mark.parametrize(
    "case",
    [Case("hinge", 2), Case("hinge", 3), Case("hinge", 2, {"threads": 1}, "-one_thread"),
     Case("log_loss", 2), Case("weston_watkins", 3)],
    ids=str,
)  # fmt: skip
def test_a_block_that_cannot_be_read_once_is_not_in_a_commit(tmp_path, monkeypatch, case):
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case, checkpoint_every=1e-9, max_passes=3)
    expected = whole(store, options)
    read, left = BlockStore.read, [0]

    def read_or_fail(*arguments, **more):
        left[0] -= 1
        if left[0] == 0:
            raise StoreError("block is not there for once")
        return read(*arguments, **more)

    monkeypatch.setattr(BlockStore, "read", read_or_fail)
    for fails_at in (4, 9, 14, 18):  # the last one is of the certificate
        left[0] = fails_at
        with pytest.raises(StoreError, match="not there for once"):
            sbm.train(store, path, options, resume=False)
        sbm.train(store, path, options)
        assert path.read_bytes() == expected, fails_at


def test_without_checkpoints_inside_it_goes_on_from_the_end_of_a_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "COMMIT_SECONDS", 0)
    monkeypatch.setattr(state, "COMMIT_SHARE", 0)
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case, checkpoint_every=0)
    expected = whole(store, options)
    with pytest.raises(LostError):
        sbm.train(store, path, options, progress=After(14, lost=True))
    passes = Passes()
    sbm.train(store, path, options, progress=passes)
    # The second one was over, but not reported yet.
    assert [row["pass"] for row in passes.rows] == [2, 3, 4, 5, 6]
    assert path.read_bytes() == expected


@pytest.mark.parametrize("change", ["threads", "mem"])
def test_what_no_result_depends_on_may_change_and_the_rest_may_not(tmp_path, change):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case, threads=2)
    expected = whole(store, options)
    stop(store, path, options)
    if change == "threads":
        sbm.train(store, path, {**options, "threads": 1, "checkpoint_every": 0})
        assert path.read_bytes() == expected
    else:
        with pytest.raises(SettingsError, match=r"--mem 400000000 \(now 500000000\)"):
            sbm.train(store, path, {**options, "mem": "500MB"})


def stop(store, path, options, blocks=7):
    part = After(blocks)
    with pytest.raises(KeyboardInterrupt):
        sbm.train(store, path, options, is_stopped=part.is_stopped, progress=part)


def test_weights_of_rows_are_part_of_what_is_gone_on_with(tmp_path):
    case = Case("hinge", 2)
    store, path, weights = make(tmp_path, case), tmp_path / "m.model", tmp_path / "w"
    np.savetxt(weights, np.arange(1, 101) / 50)
    options = options_of(case, weights=str(weights))
    expected = whole(store, options)
    stop(store, path, options)
    text = weights.read_text()
    weights.write_text("2.5\n" + text.partition("\n")[2])
    with pytest.raises(SettingsError) as error:
        sbm.train(store, path, options)
    assert str(error.value) == (
        f"{path}.run holds an unfinished training with other weights of rows; start over with "
        "--fresh"
    )
    weights.write_text(text)
    assert sbm.train(store, path, options)[1]["resumed"]
    assert path.read_bytes() == expected


def test_a_warm_start_is_gone_on_with_although_what_it_began_from_is_gone(tmp_path):
    case = Case("hinge", 2)
    store = make(tmp_path, case)
    sbm.train(store, tmp_path / "a.model", options_of(case, tol=1e-2))
    options = {**options_of(case), "C": 3.0, "warm_start": str(tmp_path / "a.model")}
    expected, path = whole(store, options), tmp_path / "m.model"
    stop(store, path, options, 14)
    (tmp_path / "a.model").unlink()
    for file in (tmp_path / "a.model.run").iterdir():
        file.unlink()
    assert sbm.train(store, path, options)[1]["resumed"]
    assert path.read_bytes() == expected


def test_a_warm_start_onto_its_own_name_begins_from_the_old_run_until_it_commits(tmp_path):
    case = Case("hinge", 2)
    X, y = case.rows(0, 150)
    store = make_store(tmp_path, X, y, blocks=5)
    new = write_rows(tmp_path / "new.svm", *case.rows(1, 30))
    options = options_of(case, warm_start=True)
    models = []
    for name in ("a.model", "b.model"):
        sbm.train(store, tmp_path / name, options)
    sbm.split(new, store, append=True)
    for name, blocks in (("a.model", ()), ("b.model", (1, 3, 9, 12))):
        for n in blocks:
            with pytest.raises(LostError):
                sbm.train(store, tmp_path / name, options, progress=After(n, lost=True))
        sbm.train(store, tmp_path / name, options)
        models.append((tmp_path / name).read_bytes())
    assert models[0] == models[1]


# ------------------------------------------------------------------------- finished trainings


def test_the_same_command_on_a_finished_training_does_nothing(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case, tol=1e-2, max_passes=50)
    model, first = sbm.train(store, path, options)
    before = {p: p.read_bytes() for p in (tmp_path / "m.model.run").iterdir()}
    for block in store.glob("block-*"):
        block.unlink()  # nothing is read
    again, report = sbm.train(store, path, {**options, "threads": 1, "warm_start": True})
    assert report == {**first, "was_finished": True}
    assert np.array_equal(again.W, model.W)
    assert {p: p.read_bytes() for p in (tmp_path / "m.model.run").iterdir()} == before


@pytest.mark.parametrize("what", ["missing", "another"])
@pytest.mark.parametrize("calibrate", [False, True])
def test_a_model_that_is_gone_is_written_again(tmp_path, what, calibrate):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case, calibrate=calibrate)
    expected = whole(store, options, "m.model")
    path.unlink()
    if what == "another":
        sbm.train(store, tmp_path / "other.model", {**options, "C": 2.0})
        (tmp_path / "other.model").rename(path)
    passes = Passes()
    report = sbm.train(store, path, options, progress=passes)[1]
    assert path.read_bytes() == expected
    assert passes.rows == []
    assert not report["was_finished"]
    assert sbm.train(store, path, options)[1]["was_finished"]


def test_a_finished_training_gives_way_to_other_settings_and_to_fresh(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case)
    expected = whole(store, options, "m.model")
    assert not sbm.train(store, path, {**options, "C": 2.0})[1]["resumed"]
    assert sbm.Model.load(path).info["C"] == 2.0
    passes = Passes()
    report = sbm.train(store, path, options, resume=False, progress=passes)[1]
    assert len(passes.rows) == 6
    assert (report["resumed"], report["was_finished"]) == (False, False)
    assert path.read_bytes() == expected


def test_a_budget_that_was_used_up_can_be_raised(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case, max_passes=3)
    sbm.train(store, path, options)
    assert sbm.train(store, path, options)[1]["was_finished"]
    passes = Passes()
    report = sbm.train(store, path, {**options, "max_passes": 5}, progress=passes)[1]
    assert [row["pass"] for row in passes.rows] == [4, 5]
    assert report["passes"] == 5
    report = sbm.train(store, path, {**options, "max_passes": 50, "time_limit": 1e-9})[1]
    assert (report["passes"], report["converged"]) == (6, False)  # time left after each
    report = sbm.train(store, path, {**options, "max_passes": 500, "tol": 1e-7})[1]
    assert report["converged"]
    assert report["passes"] > 6


# ------------------------------------------------------------------------------ what is refused


def refused(kind, store, path, options, **more):
    before = {p: p.read_bytes() for p in Path(f"{path}.run").iterdir()}
    with pytest.raises(kind) as error:
        sbm.train(store, path, options, **more)
    assert {p: p.read_bytes() for p in Path(f"{path}.run").iterdir()} == before
    return str(error.value)


def test_an_unfinished_training_is_not_replaced_by_one_with_other_settings(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case)
    expected = whole(store, options)
    stop(store, path, options)
    others = {**options, "C": 2.0, "cache_frac": 0.25}
    assert refused(SettingsError, store, path, others) == (
        f"{path}.run holds an unfinished training with other settings: -C 1.0 (now 2.0), "
        "--cache-frac 0.5 (now 0.25); give the same ones again to go on with it, or start over "
        "with --fresh"
    )
    assert sbm.train(store, path, options)[1]["resumed"]
    assert path.read_bytes() == expected
    stop(store, path, others)
    assert not sbm.train(store, path, options, resume=False)[1]["resumed"]
    assert path.read_bytes() == expected


def test_an_unfinished_training_is_not_gone_on_with_on_other_data(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case)
    stop(store, path, options)
    text = (tmp_path / "d.svm").read_text()
    first = text.split()[1]
    (tmp_path / "d.svm").write_text(text.replace(first, first.split(":")[0] + ":0.25", 1))
    sbm.split(tmp_path / "d.svm", store, blocks=5, force=True)
    assert refused(StoreError, store, path, options) == (
        f"{path}.run holds an unfinished training of other data than {store} has now; start over "
        "with --fresh, or go on from its alphas with --warm-start"
    )
    assert "other data" in refused(StoreError, store, path, options, resume=True)


def test_an_unfinished_night_is_the_start_of_the_next_one(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case, tol=1e-3, max_passes=50, warm_start=True)
    stop(store, path, {**options, "tol": 1e-9})
    sbm.split(write_rows(tmp_path / "new.svm", *case.rows(1, 30)), store, append=True)
    report = sbm.train(store, path, options)[1]
    assert report["converged"]
    assert not report["resumed"]


def test_there_must_be_something_to_go_on_with_where_that_is_asked_for(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    with pytest.raises(StoreError) as error:
        sbm.train(store, path, options_of(case), resume=True)
    assert str(error.value) == f"{path}.run holds nothing to go on with; leave out --resume"
    assert not Path(f"{path}.run").exists()


def test_a_stream_is_not_replaced_unasked(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    sbm.stream(tmp_path / "d.svm", path)
    assert refused(StoreError, store, path, options_of(case)) == (
        f"{path}.run is of sbm stream, and would be lost; give the model another name with -o, "
        "or replace it with --fresh"
    )
    assert not sbm.train(store, path, options_of(case), resume=False)[1]["resumed"]


def test_an_unfinished_training_is_not_replaced_by_a_stream(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    part = After(7)
    with pytest.raises(KeyboardInterrupt):
        sbm.train(store, path, options_of(case), is_stopped=part.is_stopped, progress=part)
    with pytest.raises(SettingsError) as refused:
        sbm.stream(tmp_path / "d.svm", path)
    assert str(refused.value) == (
        f"{path}.run holds an unfinished training, which would be lost; give the model another "
        "name with -o, or remove that folder"
    )
    assert sbm.train(store, path, options_of(case))[1]["resumed"]
    assert sbm.stream(tmp_path / "d.svm", path)[1]["rows"] == 100  # what is finished gives way


def test_a_damaged_run_is_refused_and_can_be_started_over(tmp_path):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case)
    expected = whole(store, options)
    stop(store, path, options)
    record = Path(f"{path}.run/run.json")
    record.write_bytes(record.read_bytes().replace(b'"passes": 2', b'"passes": 3'))
    assert refused(StoreError, store, path, options) == (
        f"{record} is damaged (its checksum is another one); start over with --fresh, or remove "
        f"{path}.run"
    )
    sbm.train(store, path, options, resume=False)
    assert path.read_bytes() == expected


@pytest.mark.parametrize(
    "lie",
    [
        {"passes": "many"}, {"rounds": None}, {"engine": {}}, {"totals": {"x": 1}},
        {"engine": {"last_block": 0, "pass": None, "coming": 99}},
        {"watch": None}, {"seconds": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_that_makes_no_sense_is_refused_in_a_sentence(tmp_path, lie):
    case = Case("hinge", 2)
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case)
    stop(store, path, options)
    with Run.take_up(Path(f"{path}.run"), [20] * 5) as (run, _):
        run.note(**lie)
    with pytest.raises(StoreError) as error:
        sbm.train(store, path, options)
    assert str(error.value).startswith(f"{path}.run cannot be gone on with (")
    assert str(error.value).endswith("); start over with --fresh")


# ----------------------------------------------------------------------------- on the command line


def command(folder, *arguments):
    return [sys.executable, "-m", "sbm", "train", "d.sbm", "-C", "1", "--tol", "1e-9", *arguments]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_commits_and_the_same_command_goes_on(tmp_path, number):
    case = Case("log_loss", 2)
    store = make(tmp_path, case, n=400)
    line = command(tmp_path, "--loss", "log_loss", "--max-passes", "40", "-q")
    expected = finished([*line, "-o", "whole.model"], cwd=tmp_path)
    assert expected.returncode in (0, 3), expected.stderr
    hold = (
        "import signal, sys, os, sbm.jobs.training.state as t\n"
        "old = t.Training._after_stretch\n"
        "def after(self):\n"
        f"    if self.ledger.passes == 3: os.kill(os.getpid(), {int(number)})\n"
        "    old(self)\n"
        "t.Training._after_stretch = after\n"
        f"import sbm.cli; sbm.cli.main({line[3:]!r})\n"
    )
    done = finished([sys.executable, "-c", hold], cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr.lstrip() == (
        "sbm: stopped; what was committed is kept, and the same command goes on from there\n"
    )
    assert not (tmp_path / "d.model").exists()
    assert Run.read(tmp_path / "d.model.run")["passes"] == 3
    again = finished([x for x in line if x != "-q"], cwd=tmp_path)
    assert again.returncode == expected.returncode
    assert again.stderr.startswith(
        "going on with d.model.run, after 3 passes; --fresh starts over\n"
    )
    assert (tmp_path / "d.model").read_bytes() == (tmp_path / "whole.model").read_bytes()
    assert store.is_dir()


def test_killed_at_any_time_the_same_command_goes_on(tmp_path):
    make(tmp_path, Case("hinge", 2), n=600)
    line = command(tmp_path, "--max-passes", "30", "--checkpoint-every", "0.001s", "-q")
    begin = time.monotonic()
    finished([*line, "-o", "whole.model"], cwd=tmp_path)
    usual = time.monotonic() - begin
    random = np.random.default_rng(0)
    for _ in range(4):
        with started(line, cwd=tmp_path, stdout=subprocess.DEVNULL):
            time.sleep(usual * (0.5 + 0.5 * random.random()))
    finished(line, cwd=tmp_path)
    assert (tmp_path / "d.model").read_bytes() == (tmp_path / "whole.model").read_bytes()
    named = Run.read(tmp_path / "d.model.run")
    files = {"lock", "log.jsonl", "run.json", named["state"], *named["alphas"].values()}
    assert set(os.listdir(tmp_path / "d.model.run")) == files


def test_a_finished_training_says_so(tmp_path):
    make(tmp_path, Case("hinge", 2))
    line = [*command(tmp_path)[:-2], "--tol", "1e-2"]
    first = finished(line, cwd=tmp_path, check=True)
    again = finished(line, cwd=tmp_path, check=True)
    assert again.stderr == (
        "d.model is trained already, with these settings on this store; --fresh trains it again\n"
    )
    assert again.stdout == first.stdout
    line.append("--json")
    told = finished(line, cwd=tmp_path, check=True)
    assert json.loads(told.stdout)["was_finished"] is True
    fresh = finished([*line, "--fresh"], cwd=tmp_path, check=True)
    assert json.loads(fresh.stdout)["was_finished"] is False


# ----------------------------------------------------------------------------------------- tune


def tuned(folder, name, progress=None, **options):
    """Tune; the model's bytes, and what was found on the way."""
    settings = options_of(Case("hinge", 2), tol=1e-6, max_passes=12)
    path = folder / name
    report = sbm.tune(
        folder / "d.sbm", path, settings, Cs=[0.01, 0.1, 1.0, 10.0], folds=3, progress=progress,
        **options,
    )[1]  # fmt: skip
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in report["settings"]]
    return path.read_bytes(), [report["best"], report["passes"], rows]


@pytest.mark.parametrize("blocks", [12, 17, 28])
def test_a_tuning_that_was_lost_goes_on_from_the_end_of_a_pass(tmp_path, blocks):
    make(tmp_path, Case("hinge", 2), n=200)
    expected = tuned(tmp_path, "whole.model")
    with pytest.raises(LostError):
        tuned(tmp_path, "m.model", After(blocks, lost=True))
    seen = Starts()
    assert tuned(tmp_path, "m.model", seen) == expected
    assert seen.names[:2] == ["read the cache", f"tune, pass {blocks // 5 + 1}"]
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith("m.")} == {
        "m.model", "m.model.run"
    }  # fmt: skip


class Starts(Progress):
    """Keeps what is begun."""

    def __init__(self) -> None:
        self.names = []

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        self.names.append(what)


def test_a_tuning_that_was_lost_in_its_last_training_goes_on_there(tmp_path, monkeypatch):
    make(tmp_path, Case("hinge", 2), n=200)
    expected = tuned(tmp_path, "whole.model")

    class InTraining(After):
        def start(self, what, total, unit="B"):
            self.is_pass = what.startswith("pass")

    monkeypatch.setattr(state, "COMMIT_SECONDS", 0)
    monkeypatch.setattr(state, "COMMIT_SHARE", 0)
    with pytest.raises(LostError):
        tuned(tmp_path, "m.model", InTraining(13, lost=True))
    seen = Starts()
    assert tuned(tmp_path, "m.model", seen) == expected
    assert not [name for name in seen.names if name.startswith("tune")]
    assert "pass 1" not in seen.names
    assert not (tmp_path / "m.model.tune.run").exists()


def test_a_tuning_with_other_values_begins_anew(tmp_path):
    make(tmp_path, Case("hinge", 2), n=200)
    expected = tuned(tmp_path, "whole.model")
    with pytest.raises(LostError):
        sbm.tune(
            tmp_path / "d.sbm", tmp_path / "m.model", options_of(Case("hinge", 2)), Cs=[1.0, 2.0],
            folds=3, progress=After(12, lost=True),
        )  # fmt: skip
    assert (tmp_path / "m.model.tune.run" / "run.json").exists()
    assert tuned(tmp_path, "m.model") == expected


def test_a_tuning_does_not_replace_an_unfinished_training_unasked(tmp_path):
    store = make(tmp_path, Case("hinge", 2), n=200)
    stop(store, tmp_path / "m.model", options_of(Case("hinge", 2)))
    with pytest.raises(StoreError) as error:
        tuned(tmp_path, "m.model")
    assert str(error.value) == (
        f"{tmp_path / 'm.model.run'} holds an unfinished training, which would be lost; give the "
        "model another name with -o, or replace it with --fresh"
    )
    assert tuned(tmp_path, "m.model", resume=False) == tuned(tmp_path, "whole.model")


# ------------------------------------------------------------------------------- out of memory


class Stages(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said = []

    def stage(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def wide(tmp_path, monkeypatch):
    """A store that there is a smaller plan for."""
    monkeypatch.setattr(limits, "_CLOSE", 0)
    case = Case("hinge", 2)
    return make(tmp_path, case, n_blocks=3, n=6000), options_of(case, tol=1e-4, max_passes=60)


def once(monkeypatch, owner, name, n, error=MemoryError):
    """Let the n-th call fail."""
    calls, old = [], getattr(owner, name)

    def fail(*arguments, **options):
        calls.append(name)
        if len(calls) == n:
            raise error
        return old(*arguments, **options)

    monkeypatch.setattr(owner, name, fail)
    return calls


@pytest.mark.parametrize(
    ("owner", "name", "n"),
    [(Engine, "__init__", 1), (Engine, "_step", 1), (Engine, "_step", 8), (Engine, "certify", 1)],
)
def test_where_memory_runs_out_it_goes_on_with_a_smaller_plan(
    tmp_path, monkeypatch, wide, owner, name, n
):
    store, options = wide
    reference = sbm.train(store, tmp_path / "whole.model", options)[1]
    calls = once(monkeypatch, owner, name, n)
    progress = Stages()
    report = sbm.train(store, tmp_path / "m.model", options, progress=progress)[1]
    assert len(calls) > n
    assert len(progress.said) == 1
    assert progress.said[0].startswith("a plan for ")
    assert "was not enough; going on with smaller blocks, planned for " in progress.said[0]
    assert report["converged"]
    assert abs(report["primal"] - reference["primal"]) <= 2e-4 * reference["primal"]
    assert sbm.train(store, tmp_path / "m.model", options)[1]["primal"] == report["primal"]


def test_more_memory_in_use_than_planned_is_noticed_and_nothing_is_lost(
    tmp_path, monkeypatch, wide
):
    store, options = wide
    large = iter([False] * 7 + [True] + [False] * 1000)
    monkeypatch.setattr(module.Job, "is_too_large", lambda job: next(large))
    seen = Passes()
    report = sbm.train(store, tmp_path / "m.model", options, progress=seen)[1]
    assert report["converged"]
    numbers = [row["pass"] for row in seen.rows]
    again = numbers.index(1, 1)
    assert again >= 2
    assert numbers == [*range(1, again + 1), *range(1, len(numbers) - again + 1)]
    assert seen.rows[again]["dual"] > seen.rows[again - 1]["dual"]  # it began with those alphas


def test_a_smaller_plan_is_remembered_by_what_goes_on(tmp_path, monkeypatch, wide):
    store, options = wide
    options = {**options, "checkpoint_every": 1e-9}
    with monkeypatch.context() as patch:
        once(patch, Engine, "__init__", 1)
        with pytest.raises(LostError):
            sbm.train(store, tmp_path / "m.model", options, progress=After(8, lost=True))
    bound = Run.read(tmp_path / "m.model.run")["bound"]
    assert bound < 400_000_000
    assert sbm.train(store, tmp_path / "m.model", options)[1]["resumed"]
    assert Run.read(tmp_path / "m.model.run")["bound"] == bound
    with monkeypatch.context() as patch:
        once(patch, Engine, "__init__", 1)
        sbm.train(store, tmp_path / "whole.model", options)
    assert (tmp_path / "m.model").read_bytes() == (tmp_path / "whole.model").read_bytes()


def test_where_there_is_no_smaller_plan_that_is_said(tmp_path, monkeypatch):
    case = Case("hinge", 2)
    store = make(tmp_path, case)
    once(monkeypatch, Engine, "__init__", 1)
    with pytest.raises(MemoryPlanError) as error:
        sbm.train(store, tmp_path / "m.model", options_of(case))
    assert str(error.value) == (
        f"memory ran out while training on {store}, with --mem 112 MB, and there is no plan that "
        "needs less; end other programs, or raise the limit on this one"
    )
