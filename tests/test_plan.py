"""What a training will take: the plan against the training that follows it."""

import json
import math
import re
import time

import pytest
from click.testing import CliRunner
from helpers import write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import made
from test_memory_plan import store_of

import sbm
from sbm.cli import cli
from sbm.errors import MemoryPlanError, SettingsError, StoreError
from sbm.jobs import plan as job
from sbm.jobs.machine.memory import Shape, plan_training
from sbm.store.blocks import BlockStore


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores named after their number of classes, 0 for targets."""
    folder = tmp_path_factory.mktemp("stores")
    for classes in (0, 2, 3):
        text = write_rows(folder / f"{classes}.svm", *made(classes=classes))
        sbm.split([text], folder / f"{classes}.sbm", blocks=4)
    return folder


SETTINGS = {
    0: {"loss": "epsilon_insensitive"},
    2: {"cache_frac": "auto", "rounds": "2,1"},
    3: {"loss": "weston_watkins", "C": 0.1, "policy": "mixed"},
}


# ------------------------------------------------------------------------ the training that follows


@pytest.mark.parametrize("classes", SETTINGS)
def test_a_trial_on_all_rows_takes_the_passes_that_training_takes(stores, tmp_path, classes):
    chosen = {"mem": "400MB", **SETTINGS[classes]}
    store = stores / f"{classes}.sbm"
    plan = sbm.plan(store, chosen, seconds=60)
    _, report = sbm.train(store, tmp_path / "m.model", chosen)
    assert plan["is_measured"]
    assert plan["passes"] == [report["passes"]] * 3
    assert report["passes"] > 1
    pass_record = json.loads((tmp_path / "m.model.run/log.jsonl").read_text().splitlines()[0])
    assert plan["cache_rows"] >= pass_record["cached_rows"] > 0
    assert plan["memory"]["total"] <= 400_000_000
    assert plan["blocks"] == 4


def test_time_is_foreseen_within_a_factor_of_two_where_the_disk_takes_it(
    stores, tmp_path, monkeypatch
):
    """So that it hardly matters what else the machine does: each chunk takes a while to read."""
    original = BlockStore._read_bytes

    def slow(self, chunk):
        time.sleep(0.04)
        return original(self, chunk)

    monkeypatch.setattr(BlockStore, "_read_bytes", slow)
    chosen = {"mem": "400MB", "rounds": 1, "tol": 0.02}
    plan = sbm.plan(stores / "2.sbm", chosen, seconds=60)
    _, report = sbm.train(stores / "2.sbm", tmp_path / "m.model", chosen)
    assert plan["seconds"][1] / 2 < report["seconds"]["total"] < plan["seconds"][1] * 2
    assert plan["seconds"][0] < report["seconds"]["total"] < plan["seconds"][2]


# ------------------------------------------------------------------------------ what is foreseen


def trial(nnz, passes, seconds=1.0, is_done=True):
    spent = dict.fromkeys(("disk", "load", "wait", "solve", "certify"), seconds)
    return job.Trial(nnz, passes, seconds, seconds, spent, nnz, nnz, is_done)


def forecast(trials, nnz, size=10**6, disk=1e9, **chosen):
    return job._forecast(trials, nnz, size, disk, sbm.Settings(**chosen))


def test_four_times_as_many_rows_take_as_many_passes_more_as_before():
    whole = forecast([trial(100, 3.0), trial(400, 5.0)], 1600)
    assert whole["passes"] == [round(7 / 1.4), 7, math.ceil(7 * 1.4)]
    assert whole["seconds_a_pass"] == pytest.approx([4 / 1.3, 4, 4 * 1.3])
    # Seven passes and a certificate of four seconds, and the start.
    assert whole["seconds"][1] == pytest.approx(32.3)
    assert forecast([trial(400, 5.0), trial(1600, 5.0)], 1600)["passes"] == [5, 5, 5]


def test_what_the_system_cannot_keep_is_read_in_every_pass(monkeypatch):
    monkeypatch.setattr(job, "_free_memory", lambda: 500)
    small = forecast([trial(100, 4.0)], 100, size=400, disk=100)
    large = forecast([trial(100, 4.0)], 100, size=600, disk=100)
    assert small["seconds"][1] == pytest.approx(4.0 + 3 * 1.0 + 1.0 + 0.3)  # the first one is cold
    assert large["seconds"][1] == pytest.approx(6.0 + 3 * 6.0 + 6.0 + 0.3)
    assert large["seconds_a_pass"][1] == 6.0


def test_there_are_no_more_passes_than_may_be():
    whole = forecast([trial(100, 30.0, is_done=False)], 100, max_passes=40)
    assert whole["passes"] == [21, 30, 40]
    few = forecast([trial(100, 5.0, is_done=False)], 100)  # of a trial that was cut short
    assert few["passes"] == [4, 5, 30]


def test_where_no_shrinking_was_seen_there_are_some_passes():
    assert job._passes_in_all([0.5], 1e-3, 1.5) == 4.0
    assert job._passes_in_all([0.5, 0.05], 0.0005, 2.0) == pytest.approx(4.0)


@settings(max_examples=40, deadline=None)
@given(
    blocks=st.integers(1, 9), chunks=st.integers(1, 9), share=st.floats(1e-3, 1.0),
    first=st.integers(1, 10**6), cache_frac=st.sampled_from([0.0, 0.5, "auto"]),
)  # fmt: skip
def test_trials_are_on_more_and_more_of_each_block_and_at_last_on_all(
    blocks, chunks, share, first, cache_frac
):
    store = store_of(blocks, chunks, 5000, 50_000, "float32", uneven=True)
    memory = plan_training(store, 2 * 10**9, cache_frac, Shape(1000))
    thin = job._thinned(memory, share)
    for part, whole in zip(thin.parts, memory.parts, strict=True):
        assert part.chunks
        assert set(part.chunks) <= set(whole.chunks)
        assert part.rows == sum(chunk.rows for chunk in part.chunks)
    assert thin.part_nnz == max(part.nnz for part in thin.parts)
    kept = sum(p.nnz for p in thin.parts) / store.nnz
    assert thin.cache_rows == math.ceil(kept * memory.cache_rows)
    sizes = [sum(p.nnz for p in m.parts) for m in job._thinned_plans(memory, store.nnz, first)]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == store.nnz


# ----------------------------------------------------------------------------- around the command


def test_a_trial_that_is_cut_short_still_tells_something(stores, monkeypatch):
    plan = sbm.plan(stores / "2.sbm", {"mem": "400MB", "tol": 1e-9}, seconds=1e-9)
    assert not plan["is_measured"]
    assert plan["passes"][0] < plan["passes"][1] < plan["passes"][2] <= 50
    assert 0 < plan["seconds"][0] < plan["seconds"][1] < plan["seconds"][2]


def test_nothing_is_left_behind_and_the_store_is_as_it_was(stores, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = {path: path.stat().st_mtime_ns for path in sorted(stores.rglob("*"))}
    sbm.plan(stores / "3.sbm", {"mem": "400MB"})
    assert {path: path.stat().st_mtime_ns for path in sorted(stores.rglob("*"))} == before
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_a_line_a_figure(stores):
    done = CliRunner().invoke(cli, ["plan", str(stores / "2.sbm"), "--mem", "400MB", "-q"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    names = ["memory", "blocks", "cache", "reading", "solving", "a pass", "passes", "in all"]
    assert [line[:8].strip() for line in lines[1:]] == names
    assert re.fullmatch(r"  in all  about \S+ \(\S+ to \S+\) s", lines[-1])
    done = CliRunner().invoke(cli, ["plan", str(stores / "2.sbm"), "--json", "--mem", "400MB"])
    plan = json.loads(done.stdout)
    assert plan["blocks"] == 4
    assert plan["trials"][-1]["nnz"] == plan["nnz"]


def test_long_times_are_shown_in_minutes_and_hours():
    from sbm.cli.show import _in_time

    assert _in_time([100.0, 180.0, 200.0]) == "about 180 (100 to 200) s"
    assert _in_time([60.0, 240.0, 600.0]) == "about 4 (1 to 10) min"
    assert _in_time([3600.0, 14400.0, 36000.0]) == "about 4 (1 to 10) h"


@pytest.mark.parametrize(
    ("chosen", "error", "sentence"),
    [
        ({"mem": "10MB"}, MemoryPlanError, r"--mem 10 MB is too little to train on .*"),
        ({"calibrate": True}, SettingsError,
         "calibrate is set, and what it takes is not foreseen; plan without it"),
        ({"class_blocks": 2, "loss": "weston_watkins"}, SettingsError,
         "class_blocks is set, and what it takes is not foreseen; plan without it"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused(stores, chosen, error, sentence):
    with pytest.raises(error, match=f"^{sentence}$"):
        sbm.plan(stores / "3.sbm", chosen)


def test_seconds_must_be_some(stores):
    with pytest.raises(SettingsError, match=r"^seconds is 0; it must be above 0$"):
        sbm.plan(stores / "2.sbm", seconds=0)


def test_a_shard_is_not_planned_for(stores, tmp_path):
    sbm.split([stores / "2.svm"], tmp_path / "s.sbm", shards=2, blocks=4)
    with pytest.raises(StoreError, match=r"part"):
        sbm.plan(tmp_path / "s.0.sbm")
