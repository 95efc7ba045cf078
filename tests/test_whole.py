"""Rows that fit in memory are one part: plain dual coordinate descent that ends at the gap."""

import numpy as np
import pytest
from families import Case, make_store
from inside import BlockStore, Shape, patch, plan_training

import sbm


@pytest.fixture(autouse=True)
def joined(monkeypatch):
    patch(monkeypatch, "MOST_WHOLE", 200_000_000)


CASES = [
    Case("hinge", 2, {"bias": 1.0}), Case("squared_hinge", 2), Case("log_loss", 2),
    Case("hinge", 3), Case("crammer_singer", 3), Case("weston_watkins", 3),
    Case("epsilon_insensitive", 0), Case("squared_error", 0),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_single_part_reaches_the_optimum_of_blocks(case, tmp_path):
    store = make_store(tmp_path, *case.rows(0, 300), blocks=6)
    chosen = {**case.at(1.0), "tol": 1e-6, "max_passes": 200, "solver": "dual"}
    by_blocks = sbm.train(store, tmp_path / "b.model", {**chosen, "parts": "blocks"})[1]
    whole = sbm.train(store, tmp_path / "w.model", chosen)[1]
    assert (by_blocks["blocks"], whole["blocks"], whole["decoded_share"]) == (6, 1, 1.0)
    assert whole["converged"]
    assert whole["primal"] == pytest.approx(by_blocks["primal"], rel=2e-6)
    assert whole["dual"] == pytest.approx(by_blocks["dual"], rel=2e-6)
    threads = {**chosen, "threads": 1}
    sbm.train(store, tmp_path / "t.model", threads)
    assert (tmp_path / "t.model").read_bytes() == (tmp_path / "w.model").read_bytes()


def test_rounds_end_at_the_tolerance(tmp_path):
    store = make_store(tmp_path, *CASES[0].rows(0, 300), blocks=6)
    visits = [
        sbm.train(store, tmp_path / "m.model", {"tol": tol}, resume=False)[1]["visits"]
        for tol in (0.1, 1e-2, 1e-4)
    ]
    assert 300 <= visits[0] < visits[1] < visits[2]
    report = sbm.train(store, tmp_path / "m.model", {"tol": 1e-4, "rounds": 2}, resume=False)[1]
    assert report["rounds"][0] == 2
    assert report["passes"] > 1


@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=str)
def test_stopped_training_resumes_to_the_same_bytes(case, tmp_path):
    store, path = make_store(tmp_path, *case.rows(0, 200), blocks=3), tmp_path / "m.model"
    chosen = {**case.at(10.0), "tol": 1e-9, "max_passes": 6, "rounds": 2, "checkpoint_every": 1e-9}
    sbm.train(store, tmp_path / "x.model", chosen)
    for most in (1, 3):
        calls = iter(range(most))
        with pytest.raises(KeyboardInterrupt):
            sbm.train(store, path, chosen, is_stopped=lambda calls=calls: next(calls, None) is None)
    assert sbm.train(store, path, chosen)[1]["resumed"]
    assert path.read_bytes() == (tmp_path / "x.model").read_bytes()


def test_early_passes_end_sooner_while_rows_rest(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    X = (random.random((2000, 200)) < 0.05) * random.random(200)
    y = np.sign(X @ random.normal(size=200) + 0.3 * random.normal(size=2000))
    store = make_store(tmp_path, X, y)

    def train():
        chosen = {"C": 10.0, "solver": "dual"}
        return sbm.train(store, tmp_path / "m.model", chosen, resume=False)[1]

    short = train()
    patch(monkeypatch, "STOP_SHARE", 0.0)
    long = train()
    assert short["converged"]
    assert short["dual"] == pytest.approx(long["dual"], rel=1e-3)
    assert short["visits"] < long["visits"]


def test_blocks_are_joined_only_where_that_is_possible(tmp_path, monkeypatch):
    store = BlockStore(make_store(tmp_path, *CASES[0].rows(0, 300), blocks=6))
    shape = Shape(n_weights=6, may_join=True)
    plan = plan_training(store, 2 * 10**9, 0.5, shape)
    assert (plan.is_whole, len(plan.parts), plan.block_rows, plan.cache_rows) == (True, 1, 300, 0)
    assert plan.staying([0]) == [0]
    assert plan_training(store, plan.total + 3_000_000, 0.5, shape).is_whole
    assert len(plan_training(store, plan.total, 0.5, shape).parts) == 6
    assert len(plan_training(store, 2 * 10**9, 0.5, shape, reserved=1_900_000_000).parts) == 6
    assert len(plan_training(store, 2 * 10**9, 0.5, Shape(n_weights=6)).parts) == 6
    patch(monkeypatch, "MOST_WHOLE", store.nnz * 2)
    assert plan_training(store, 2 * 10**9, 0.5, shape).is_whole
    assert not plan_training(store, 2 * 10**9, 0.5, Shape(6, (1, 1, 1), may_join=True)).is_whole
    reports = [
        sbm.train(store.folder, tmp_path / "m.model", {"tol": 0.01, **more}, resume=False)[1]
        for more in ({"calibrate": True}, {"loss": "one_class", "nu": 0.5, "task": "auto"})
    ]
    assert [report["blocks"] for report in reports] == [1, 6]
