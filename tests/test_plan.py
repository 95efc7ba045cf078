"""The plan of a training compared with the training itself."""

import json

import pytest
from families import Case, make_store
from hypothesis import given
from hypothesis import strategies as st
from inside import BlockStore, Shape, patch, plan_training
from inside import programs_plan_module as job
from test_memory_plan import store_of
from test_newton import income_table

import sbm
from sbm.errors import MemoryPlanError, SettingsError, StoreError

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
def test_plan_is_that_of_the_training(stores, tmp_path, case, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = {path: path.stat().st_mtime_ns for path in sorted(stores.rglob("*"))}
    chosen = {"mem": "400MB", "solver": "dual", "parts": "blocks", **case.options}
    store = stores / f"{case.labels}.sbm"
    plan = sbm.plan(store, chosen)
    assert {path: path.stat().st_mtime_ns for path in sorted(stores.rglob("*"))} == before
    assert list((tmp_path / "tmp").iterdir()) == []
    _, report = sbm.train(store, tmp_path / "m.model", chosen)
    data = BlockStore(store)
    assert (plan["rows"], plan["features"], plan["nnz"]) == (120, 6, data.nnz)
    assert (plan["blocks"], plan["block_rows"]) == (4, 30)
    assert plan["decoded_share"] == report["decoded_share"]
    assert plan["bytes_a_pass"] == sum(c.size for chunks in data.chunks for c in chunks)
    log = (tmp_path / "m.model.run/log.jsonl").read_text().splitlines()
    first = json.loads(log[0])
    assert plan["cache_rows"] >= first["cached_rows"] > 0
    assert (plan["rounds"], plan["solver"]) == (first["rounds"], "dual")
    assert min(plan["decode_nnz_per_second"], plan["solve_nnz_per_second"]) > 0
    assert plan["seconds_a_round"] == pytest.approx(data.nnz / plan["solve_nnz_per_second"])
    memory = dict(plan["memory"])
    assert memory.pop("total") == sum(memory.values()) <= 400_000_000


def test_solver_is_that_of_the_first_pass(stores, tmp_path):
    store = make_store(tmp_path, *income_table(500))
    for settings, solver in [
        ({}, "dual"),
        ({"solver": "newton"}, "newton"),
        ({"intercept": True, "loss": "log_loss"}, "newton"),
        ({"penalty": "l1", "loss": "log_loss"}, None),
    ]:
        plan = sbm.plan(store, settings)
        assert plan["solver"] == solver
        assert (plan["seconds_a_round"] is None) == (solver == "newton")
        assert plan["decode_nnz_per_second"] > 0


@given(
    blocks=st.integers(1, 9), chunks=st.integers(1, 9), nnz=st.integers(1, 10**6),
    cache_frac=st.sampled_from([0.0, 0.5, "auto"]),
)  # fmt: skip
def test_sample_has_chunks_of_each_block(blocks, chunks, nnz, cache_frac):
    store = store_of(blocks, chunks, 5000, 50_000, "float32", uneven=True)
    memory = plan_training(store, 2 * 10**9, cache_frac, Shape(1000))
    sample = job._thinned(memory, nnz)
    for part, whole in zip(sample.parts, memory.parts, strict=True):
        assert part.chunks
        assert set(map(id, part.chunks)) <= set(map(id, whole.chunks))
    size = sum(part.nnz for part in sample.parts)
    assert size == store.nnz or size < store.nnz
    assert (nnz < store.nnz) or size == store.nnz
    assert sample.cache_rows <= memory.cache_rows
    assert (sample.cache_nnz > 0) == (memory.cache_nnz > 0)


@pytest.mark.parametrize(
    ("name", "chosen", "more", "error", "facts"),
    [
        ("3", {"mem": "10MB"}, {}, MemoryPlanError, r"mem='10MB' is too small .*3\.sbm"),
        ("2", {"calibrate": True}, {}, SettingsError, "calibrate"),
        ("2", {"weights": "w"}, {}, SettingsError, "weights"),
        ("2", {}, {"processes": 0}, SettingsError, "processes is 0"),
        ("2", {"mem": "100MB"}, {"processes": 2}, MemoryPlanError, "use at least mem="),
        (
            "2",
            {"penalty": "l1", "loss": "log_loss"},
            {"processes": 2},
            SettingsError,
            "2 processes",
        ),
        ("s.0", {}, {}, StoreError, "shard"),
    ],
)
def test_unplannable_settings_are_refused(stores, name, chosen, more, error, facts):
    if name == "s.0":
        sbm.split([stores / "2.svm"], stores / "s.sbm", shards=2, blocks=4)
    with pytest.raises(error, match=facts):
        sbm.plan(stores / f"{name}.sbm", chosen, **more)


def test_ranks_divide_memory(stores, monkeypatch):
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    alone, both = (sbm.plan(stores / "2.sbm", {"parts": "auto"}, processes=n) for n in (1, 2))
    assert both["processes"] == 2
    assert both["block_nnz"] < 0.6 * alone["block_nnz"]
    assert both["memory"]["blocks"] < 0.6 * alone["memory"]["blocks"]
    assert both["bytes_a_pass"] < 0.6 * alone["bytes_a_pass"]
    with pytest.raises(MemoryPlanError) as refused:
        sbm.plan(stores / "2.sbm", {"mem": "100MB"}, processes=2)
    smallest = refused.value.least_bytes
    assert sbm.plan(stores / "2.sbm", {"mem": smallest}, processes=2)["processes"] == 2
