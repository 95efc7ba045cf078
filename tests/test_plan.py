"""The plan of a training compared with the training itself."""

import json
import math
import time

import numpy as np
import pytest
from families import Case, make_store
from hypothesis import given
from hypothesis import strategies as st
from test_memory_plan import store_of
from threads import in_threads

import sbm
from sbm.engine import memory as memory_plan
from sbm.engine.exchange import Exchange
from sbm.engine.memory import Shape, plan_training
from sbm.errors import MemoryPlanError, SettingsError, StoreError
from sbm.programs import plan as job
from sbm.programs.train import train_ranks
from sbm.store.blocks import BlockStore

CASES = [
    Case("epsilon_insensitive", 0),
    Case("hinge", 2, {"cache_frac": "auto", "rounds": "2,1"}),
    Case("weston_watkins", 3, {"C": 0.1, "policy": "mixed"}),
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for case in CASES:
        make_store(folder, *case.rows(), str(case.labels), blocks=4)
    return folder


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trial_on_all_rows_predicts_passes(stores, tmp_path, case, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = {path: path.stat().st_mtime_ns for path in sorted(stores.rglob("*"))}
    chosen = {"mem": "400MB", "solver": "dual", **case.options}
    store = stores / f"{case.labels}.sbm"
    plan = sbm.plan(store, chosen, seconds=60)
    assert {path: path.stat().st_mtime_ns for path in sorted(stores.rglob("*"))} == before
    assert list((tmp_path / "tmp").iterdir()) == []
    _, report = sbm.train(store, tmp_path / "m.model", chosen)
    assert plan["is_measured"]
    assert plan["passes"] == [report["passes"]] * 3
    assert report["passes"] > 1
    data = BlockStore(store)
    assert (plan["rows"], plan["features"], plan["nnz"]) == (120, 6, data.nnz)
    assert plan["blocks"] == 4
    assert plan["block_rows"] == 30
    assert plan["bytes_a_pass"] == sum(c.size for chunks in data.chunks for c in chunks)
    pass_record = json.loads((tmp_path / "m.model.run/log.jsonl").read_text().splitlines()[0])
    assert plan["cache_rows"] >= pass_record["cached_rows"] > 0
    memory = dict(plan["memory"])
    assert memory.pop("total") == sum(memory.values()) <= 400_000_000
    (trial,) = plan["trials"]
    assert trial["visits_nnz"] == pytest.approx(report["visits"] / data.n_rows * data.nnz)


@pytest.mark.long
def test_time_is_predicted_within_a_factor_of_two(stores, tmp_path, monkeypatch):
    original = BlockStore._read_bytes

    def slow(self, *args):  # so that other load on the machine hardly matters
        time.sleep(0.1)
        return original(self, *args)

    monkeypatch.setattr(BlockStore, "_read_bytes", slow)
    chosen = {"mem": "400MB", "rounds": 1, "tol": 0.02}
    plan = sbm.plan(stores / "2.sbm", chosen, seconds=60)
    _, report = sbm.train(stores / "2.sbm", tmp_path / "m.model", chosen)
    assert plan["seconds"][1] / 2 < report["seconds"]["total"] < plan["seconds"][1] * 2
    assert plan["seconds"][0] < report["seconds"]["total"] < plan["seconds"][2]
    short = sbm.plan(stores / "2.sbm", {"mem": "400MB", "tol": 1e-9}, seconds=1e-9)
    assert not short["is_measured"]
    assert short["passes"][0] < short["passes"][1] < short["passes"][2] <= 50
    assert 0 < short["seconds"][0] < short["seconds"][1] < short["seconds"][2]


def trial(nnz, passes, seconds=1.0, is_done=True):
    spent = dict.fromkeys(("disk", "load", "wait", "solve", "certify"), seconds)
    return job.Trial(nnz, passes, seconds, 0.0, seconds, spent, nnz, nnz, is_done)


def forecast(trials, nnz, size=10**6, disk=1e9, **chosen):
    return job._forecast(trials, nnz, size, size, disk, sbm.Settings(**chosen))


def test_forecast_extrapolates_trials(monkeypatch):
    # Passes grow by the same number each time the rows quadruple.
    whole = forecast([trial(100, 3.0), trial(400, 5.0)], 1600)
    assert whole["passes"] == [round(7 / 1.4), 7, math.ceil(7 * 1.4)]
    assert whole["seconds_a_pass"] == pytest.approx([4 / 1.3, 4, 4 * 1.3])
    # Seven passes and a certificate of four seconds each, and the start.
    expected = [(5 * 4 + 4.3) / 1.3, 32.3, (10 * 4 + 2 * 4.3) * 1.3]
    assert whole["seconds"] == pytest.approx(expected)
    assert whole["solve_nnz_per_second"] == whole["decode_nnz_per_second"] == 400
    assert forecast([trial(400, 5.0), trial(1600, 5.0)], 1600)["passes"] == [5, 5, 5]
    assert forecast([trial(100, 4.0)], 1600)["passes"][1] == 5
    # Passes are limited by max_passes.
    assert forecast([trial(100, 30.0, is_done=False)], 100, max_passes=40)["passes"] == [21, 30, 40]
    assert forecast([trial(100, 5.0, is_done=False)], 100)["passes"] == [4, 5, 30]
    assert job._passes_in_all([0.5], 1e-3, 1.5) == 4.0
    assert job._passes_in_all([0.5], 1e-3, 3.0) == 6.0
    assert job._passes_in_all([0.5, 0.05], 0.0005, 2.0) == pytest.approx(4.0)
    # A store that does not fit in the page cache is read in every pass.
    monkeypatch.setattr(job, "free_bytes", lambda: 500)
    small = forecast([trial(100, 4.0)], 100, size=400, disk=100)
    large = forecast([trial(100, 4.0)], 100, size=600, disk=100)
    assert small["seconds"][1] == pytest.approx(4.0 + 3 * 1.0 + 1.0 + 0.3)  # the first one is cold
    assert large["seconds"][1] == pytest.approx(6.0 + 3 * 6.0 + 6.0 + 0.3)
    assert large["seconds_a_pass"] == pytest.approx([1 / 1.3, 6.0, 6.0 * 1.3])


@given(
    blocks=st.integers(1, 9), chunks=st.integers(1, 9), share=st.floats(1e-3, 1.0),
    first=st.integers(1, 10**6), cache_frac=st.sampled_from([0.0, 0.5, "auto"]),
)  # fmt: skip
def test_trials_grow_to_all_rows(blocks, chunks, share, first, cache_frac):
    store = store_of(blocks, chunks, 5000, 50_000, "float32", uneven=True)
    memory = plan_training(store, 2 * 10**9, cache_frac, Shape(1000))
    thin = job._thinned(memory, share)
    for part, whole in zip(thin.parts, memory.parts, strict=True):
        assert part.chunks == whole.chunks[:: min(len(whole.chunks), round(1 / share))]
        assert part.rows == sum(chunk.rows for chunk in part.chunks)
    assert thin.part_nnz == max(part.nnz for part in thin.parts)
    assert thin.part_rows == max(part.rows for part in thin.parts)
    kept = sum(p.nnz for p in thin.parts) / store.nnz
    assert thin.cache_rows == math.ceil(kept * memory.cache_rows)
    assert thin.cache_nnz == math.ceil(kept * memory.cache_nnz)
    sizes = [sum(p.nnz for p in m.parts) for m in job._thinned_plans(memory, first)]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == store.nnz


@pytest.mark.parametrize(
    ("name", "chosen", "more", "error", "facts"),
    [
        ("3", {"mem": "10MB"}, {}, MemoryPlanError, r"mem='10MB' is too small .*3\.sbm"),
        ("2", {"calibrate": True}, {}, SettingsError, "calibrate"),
        ("2", {"weights": "w"}, {}, SettingsError, "weights"),
        ("2", {}, {"seconds": 0}, SettingsError, "seconds is 0"),
        ("2", {}, {"processes": 0}, SettingsError, "processes is 0"),
        ("2", {"mem": "100MB"}, {"processes": 2}, MemoryPlanError, "use at least mem="),
        ("2", {"penalty": "l1"}, {"processes": 2}, SettingsError, "single process"),
        ("s.0", {}, {}, StoreError, "shard"),
    ],
)
def test_unplannable_settings_are_refused(stores, name, chosen, more, error, facts):
    if name == "s.0":
        sbm.split([stores / "2.svm"], stores / "s.sbm", shards=2, blocks=4)
    with pytest.raises(error, match=facts):
        sbm.plan(stores / f"{name}.sbm", chosen, **more)


# ------------------------------------------------------------------------------ several processes


@pytest.fixture(scope="module")
def wide_stores(tmp_path_factory):
    """2,000 rows of 12 nonzeros, of 3,000 features whose frequency falls; two classes, and four."""
    folder = tmp_path_factory.mktemp("w")
    random = np.random.default_rng(0)
    X = np.zeros((2000, 3000))
    X[np.arange(2000)[:, None], (3000 * random.random((2000, 12)) ** 3).astype(int)] = 1
    labels = {
        "wide": X @ random.normal(size=3000) > 0,
        "many": (X @ random.normal(size=(3000, 4))).argmax(1),
    }
    return {
        name: make_store(folder, X, y.astype(float), name, blocks=6) for name, y in labels.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("wide", {"C": 0.1}),
        ("wide", {"C": 1.0, "loss": "squared_hinge"}),
        ("wide", {"C": 0.1, "parts": "blocks"}),
        ("many", {"C": 0.1, "loss": "weston_watkins"}),
        ("many", {"C": 0.1, "loss": "crammer_singer", "parts": "blocks"}),
    ],
    ids=str,
)
def test_bytes_of_ranks_are_within_range(wide_stores, tmp_path, monkeypatch, name, chosen, size):
    monkeypatch.setattr(memory_plan, "MOST_WHOLE", 10**9)
    store, chosen = (
        wide_stores[name],
        {"mem": "400MB", "solver": "dual", "threads": 1, "parts": "auto", **chosen},
    )
    plan = sbm.plan(store, chosen, seconds=60, processes=size)
    found = in_threads(size, lambda comm: train_ranks(comm, store, tmp_path / "m.model", chosen))
    reports = [report for _, report in found]
    sent = max(report["bytes_sent"] for report in reports)
    assert plan["processes"] == size
    assert plan["bytes_sent"][0] <= sent <= plan["bytes_sent"][2]
    assert plan["bytes_sent"][0] <= plan["bytes_sent"][1] <= plan["bytes_sent"][2]
    assert not plan["is_measured"]


def test_ranks_divide_memory_and_classes(stores, wide_stores, monkeypatch):
    monkeypatch.setattr(memory_plan, "MOST_WHOLE", 10**9)
    wide_store = wide_stores["wide"]
    alone, both = (
        sbm.plan(wide_store, {"parts": "auto"}, processes=n, seconds=1e-9) for n in (1, 2)
    )
    assert alone["sums"] == [0, 0] < both["sums"]
    assert alone["bytes_sent"] == [0.0] * 3
    assert both["block_nnz"] < 0.6 * alone["block_nnz"]
    assert both["memory"]["blocks"] < 0.6 * alone["memory"]["blocks"]
    assert both["memory"]["weights"] > alone["memory"]["weights"]
    with pytest.raises(MemoryPlanError) as refused:
        sbm.plan(wide_store, {"mem": "100MB"}, processes=2, seconds=1e-9)
    smallest = refused.value.least_bytes
    assert sbm.plan(wide_store, {"mem": smallest}, processes=2, seconds=1e-9)["processes"] == 2
    # One-vs-rest: each process trains classes of its own, and sends their weights at the end.
    by_class = sbm.plan(stores / "3.sbm", {"solver": "dual"}, processes=3, seconds=1e-9)
    assert by_class["sums"] == [0, 0]
    assert by_class["bytes_sent"] == [8.0 * 6] * 3


def test_more_ranks_are_foreseen_to_send_more():
    small, large = (Exchange(n, 100_000, 1, 10_000_000 // n) for n in (2, 8))
    sent = [small.bytes_sent(changed) for changed in (100, 50_000, math.inf)]
    assert sent == sorted(set(sent))
    assert sent[0] < large.bytes_sent(100)
    assert small.sums == large.sums == (64, 2)
    assert small.seconds(1.0, sent[0], 1e-5, 1e9) < small.seconds(2.0, sent[0], 1e-4, 1e8)
