"""Second-order training: optimum, certificate, resume, switching, refusals."""

import json
import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from families import CASES, Case, assert_same_optimum, make_store
from helpers import Passes, full_weights
from inside import (
    MARGIN_ROW,
    Rows,
    Run,
    TrainOptions,
    Work,
    exponential,
    load,
    near_capacity,
    patch,
    run_folder,
    train_ranks,
)
from processes import finished
from sklearn.linear_model import LogisticRegression
from threads import in_threads

import sbm

SMOOTH = ("squared_hinge", "log_loss", "squared_error", "squared_epsilon_insensitive")
SOLVED = [case for case in CASES if case.loss in (*SMOOTH, "hinge", "epsilon_insensitive")]
JOINT = [case for case in CASES if case.loss in ("crammer_singer", "weston_watkins")]
TUBES = ("epsilon_insensitive", "squared_epsilon_insensitive")
FIRM = {"solver": "newton", "tol": 1e-7, "max_passes": 35}


@pytest.mark.parametrize("C", [pytest.param(0.1, marks=pytest.mark.slow), 10.0])
@pytest.mark.parametrize("case", SOLVED, ids=str)
def test_newton_reaches_the_optimum_of_coordinate_descent(
    case: Case, C: float, tmp_path: Path
) -> None:
    X, y = case.rows(n=400, noise=2.0)
    store = make_store(tmp_path, X, y, blocks=4)
    settings = {**case.at(C), "bias": 1.0}
    model, report = sbm.train(store, tmp_path / "n.model", {**settings, **FIRM})
    assert report["converged"]
    assert case.primal(X, y, model) == pytest.approx(report["primal"], rel=1e-9)
    peer = {**settings, "solver": "dual", "max_passes": 300}
    assert_same_optimum(sbm.train(store, tmp_path / "d.model", peer), (model, report))
    assert report["drift"] == 0
    assert report["primal"] - report["dual"] <= report["gap"] * (1 + 1e-9) + 1e-12 * report["dual"]


@pytest.mark.parametrize("scale", [0.0, 2.0])
@pytest.mark.parametrize(
    "case", [Case("squared_hinge", 2), Case("squared_epsilon_insensitive", 0)], ids=str
)
def test_few_rows_with_a_loss_at_large_costs(
    case: Case, scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch, "MOST_WHOLE", 10**9)  # rows in memory
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 8))
    z = X @ random.normal(size=8) + 0.01 * random.normal(size=300)
    X *= np.exp(scale * random.normal(size=8))
    X = X.astype(np.float32).astype(float)
    y = np.where(z > 0, 7.0, 3.0) if case.labels else z
    store = make_store(tmp_path, X, y, blocks=1)
    for C in (1e4, 1e6):
        settings = {**case.at(C), "epsilon": 0.5 if case.loss in TUBES else 0.1}
        model, report = sbm.train(
            store, tmp_path / "n.model", {**settings, "solver": "newton"}, resume=False
        )
        assert report["converged"]
        # A dual value is a bound whatever the weights are.
        primal = Case(case.loss, case.labels, settings).primal(X, y, model)
        assert 1 - 1e-9 <= primal / report["dual"] <= 1.0011


def test_steps_that_are_too_long_are_shortened(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 4)) * np.exp(2 * random.normal(size=(200, 1)))
    y = np.where(X.sum(axis=1) + random.normal(size=200) > 0, 1.0, -1.0)
    store = make_store(tmp_path, X, y, blocks=4)
    settings = {"loss": "squared_hinge", "C": 10.0, "parts": "blocks", **FIRM}
    _, report = sbm.train(store, tmp_path / "a.model", settings)
    assert (report["converged"], report["passes"] <= 12) == (True, True)


def test_weights_are_those_of_scikit_learn(tmp_path: Path) -> None:
    X, y = Case("log_loss", 2).rows(n=400, noise=2.0)
    settings = {"loss": "log_loss", "C": 30.0, "solver": "newton", "tol": 1e-10}
    model, _ = sbm.train(make_store(tmp_path, X, y, blocks=4), tmp_path / "n.model", settings)
    peer = LogisticRegression(C=30.0, solver="newton-cholesky", fit_intercept=False, tol=1e-10)
    ours = full_weights(model, X.shape[1])[:, 0]
    np.testing.assert_allclose(ours, peer.fit(X, y).coef_[0], rtol=1e-4)


def test_newton_uses_row_and_class_weights(tmp_path: Path) -> None:
    case = Case("hinge", 2)
    X, y = case.rows(n=300, noise=1.0)
    weight = np.random.default_rng(1).integers(0, 4, len(y)).astype(float)
    store, weights = make_store(tmp_path, X, y, blocks=3), tmp_path / "w.txt"
    np.savetxt(weights, weight)
    model, report = sbm.train(
        store, tmp_path / "n.model", {"weights": weights, "class_weight": {7.0: 3.0}, **FIRM}
    )
    assert report["converged"]
    total = np.where(y == 7.0, 3.0, 1.0) * weight
    assert case.primal(X, y, model, total) == pytest.approx(report["primal"], rel=1e-9)


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
@pytest.mark.parametrize("labels", [2, 3])
def test_resume_and_threads_reproduce_bytes(loss: str, labels: int, tmp_path: Path) -> None:
    X, y = Case(loss, labels).rows(n=400, noise=2.0)
    store, path = make_store(tmp_path, X, y, blocks=4), tmp_path / "m.model"
    settings = {"loss": loss, "C": 10.0, "threads": 3, **FIRM}
    sbm.train(store, path, settings)
    whole, calls, stops = path.read_bytes(), [0, 0], 0

    def is_stopped() -> bool:
        calls[0] += 1
        return calls[0] > calls[1]

    while True:
        calls[:] = 0, 9 + 4 * stops
        try:
            sbm.train(
                store, path, {**settings, "threads": 1}, is_stopped=is_stopped,
                resume=None if stops else False,
            )  # fmt: skip
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops
    # The number of threads is a setting of the run, but not of the model.
    assert path.read_bytes() == whole


def test_record_of_a_checkpoint_does_not_grow_with_classes(tmp_path: Path) -> None:
    sizes = []
    for labels in (3, 20):
        X = np.random.default_rng(0).normal(size=(400, 5))
        y = np.arange(400.0) % labels
        store, path = make_store(tmp_path, X, y, blocks=4, name=f"d{labels}"), tmp_path / "m.model"
        sbm.train(store, path, {**FIRM, "tol": 1e-12, "max_passes": 3}, resume=False)
        sizes.append(len(json.dumps(Run.read(run_folder(path))["method"])))
    assert sizes[1] <= sizes[0] + 10 * 17  # the numbers of those to evaluate once more


def income_table(n: int = 3000) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    age, income = random.integers(18, 81, n), np.round(random.normal(50_000, 15_000, n))
    city = np.eye(5)[random.integers(0, 5, n)]
    scores = (age - 49) / 18 + (income - 50_000) / 15_000 + city @ [0.5, -0.5, 0, 1, -1]
    labels = np.where(scores + 0.5 * random.normal(size=n) > 0, 1.0, -1.0)
    return np.column_stack([age, income, city]), labels


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
def test_auto_switches_on_unscaled_data(loss: str, tmp_path: Path) -> None:
    X, y = income_table()
    store, path = make_store(tmp_path, X, y), tmp_path / "m.model"
    begin = time.perf_counter()
    progress = Passes()
    model, report = sbm.train(store, path, {"loss": loss, "bias": 1.0}, progress=progress)
    assert report["converged"]
    switched = report["switched_after"]
    assert any(text.startswith(f"after pass {switched}: Newton") for text in progress.stages)
    assert progress.rows[switched]["passes_left"] in (None, 0.0)  # nothing of the other solver
    log = (tmp_path / "m.model.run" / "log.jsonl").read_text().splitlines()
    passes = [json.loads(line) for line in log[:-1]]
    assert [one["pass"] for one in passes] == list(range(1, report["passes"] + 1))
    name = "interior point" if loss == "hinge" else "newton"
    assert {one["solver"] for one in passes} == {"dual", name}
    assert [one["solver"] for one in passes].index(name) == report["switched_after"]
    assert model.info["switched_after"] == report["switched_after"]
    assert passes[-1]["bytes_read"] == report["bytes_read"]
    assert [one["elapsed"] for one in passes] == sorted(one["elapsed"] for one in passes)
    assert report["seconds"]["total"] <= time.perf_counter() - begin
    found = X @ full_weights(model, 7)[:, 0] + model.bias * model.bias_weights[0]
    assert np.mean((found > 0) == (y > 0)) > 0.87
    assert sbm.train(store, path, {"loss": loss, "bias": 1.0})[1]["was_finished"]


@pytest.mark.parametrize("loss", ["hinge", "epsilon_insensitive", "squared_hinge"])
@pytest.mark.parametrize("C", [0.01, 1.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_support_vectors_are_those_of_coordinate_descent(
    loss: str, C: float, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 5))
    z = X @ random.normal(size=5) + 0.3 * random.normal(size=400)
    y = z if loss == "epsilon_insensitive" else np.where(z > 0.0, 1.0, -1.0)
    store, path = make_store(tmp_path, X, y, blocks=2), tmp_path / "m.model"
    settings = {"loss": loss, "C": C, "tol": 1e-6, "max_passes": 5000, "rounds": 50}
    found = []
    for more in ({"solver": "dual"}, {"solver": "newton"}, {"solver": "dual", "warm_start": True}):
        resume = None if "warm_start" in more else False
        model, report = sbm.train(store, path, settings | more, resume=resume)
        assert report["converged"]
        found.append([report["n_support"], report.get("n_free", 0)])
        names = {name for name in report if name in ("n_support", "n_free")}
        assert names == {name for name in model.certificate if name.startswith("n_")}
    np.testing.assert_allclose(found, [found[0]] * 3, atol=2)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_auto_starts_with_newton_if_that_is_cheap(loss: str, tmp_path: Path) -> None:
    X, y = income_table(12_000)
    store = make_store(tmp_path, X, y)
    _, report = sbm.train(store, tmp_path / "m.model", {"loss": loss})
    assert report["solver"] == ("interior point" if loss == "hinge" else "newton")
    assert (report["switched_after"] is None) == (loss == "squared_hinge")


def test_first_passes_are_short_if_auto_may_switch(tmp_path: Path, monkeypatch: Any) -> None:
    patch(monkeypatch, "MOST_WHOLE", 10**9)  # all rows are one part
    X, y = income_table()
    store, rounds = make_store(tmp_path, X, y), {}
    for solver in ("auto", "dual"):
        _, report = sbm.train(
            store, tmp_path / f"{solver}.model", {"solver": solver, "max_passes": 3}, resume=False
        )
        rounds[solver] = report["rounds"][1]  # the first pass is short, anyway
    assert rounds["auto"] < rounds["dual"]


def test_auto_compares_expected_work() -> None:
    a9a = {"rows": 32_561, "nnz": 451_592, "weights": 123, "problems": 1, "sample": 16_000}
    assert Work(**a9a).newton_pays(100, 65_000)
    assert Work(**a9a, near=20_000).newton_pays(1000, 65_000)
    assert not Work(**a9a).newton_pays(2, 65_000)
    assert not Work(**a9a | {"weights": 5000}).newton_pays(100, 65_000)
    # Visits are of 32 classes at a time, however many there are.
    many = {"rows": 3_000, "nnz": 60_000, "weights": 20, "problems": 3_000, "together": 32}
    assert not Work(**many, sample=2_100, near=3_000).newton_pays(1, 1_600_000, done=3)
    joint = Work(30_000, 900_000, 20_000, 100, 0, together=100, products=250, joint=True)
    assert not joint.newton_pays(1000, 130_000, done=3)  # gaps may still fall at once
    assert joint.newton_pays(1000, 130_000, done=20)


def test_newton_refuses_what_it_lacks(tmp_path: Path) -> None:
    X, y = Case("hinge", 3).rows()
    store, joint = make_store(tmp_path, X, y), {"loss": "crammer_singer"}
    for setting, facts in (
        (
            {"solver": "newton", "calibrate": True, **joint},
            "crammer_singer.* and calibrate.*solver='dual'",
        ),
        ({"solver": "newton", "validate": 0.2, **joint}, "crammer_singer and a share of the rows"),
        ({"intercept": True, **joint}, "intercept does not apply to .*crammer_singer"),
        ({"intercept": True, "solver": "dual"}, "solver dual.*intercept.*newton"),
        ({"intercept": True, "bias": 2.0}, "bias 2 .*intercept"),
    ):
        with pytest.raises(sbm.SettingsError, match=facts):
            sbm.train(store, tmp_path / "m.model", setting)
    with pytest.raises(sbm.SettingsError, match="tune does not support solver newton with loss"):
        sbm.tune(store, Cs=[1.0], settings={"solver": "newton", **joint})
    settings = {"solver": "newton", **joint}
    with pytest.raises(sbm.SettingsError, match="crammer_singer needs a single process"):
        in_threads(2, lambda comm: train_ranks(comm, store, tmp_path / "r.model", settings))


@pytest.mark.parametrize("case", SOLVED, ids=str)
def test_intercept_is_not_regularized(case: Case, tmp_path: Path) -> None:
    X, y = case.rows(n=300, noise=2.0)
    store = make_store(tmp_path, X, y, blocks=3)
    far, near = {**case.at(2.0), **FIRM, "bias": 1e4}, {**case.at(2.0), **FIRM, "intercept": True}
    _, most = sbm.train(store, tmp_path / "w.model", far)
    model, report = sbm.train(store, tmp_path / "m.model", near)
    assert report["converged"]
    # A feature of a large value is an intercept that costs nearly nothing.
    assert report["primal"] == pytest.approx(most["primal"], rel=3e-6)
    assert case.primal(X, y, model) == pytest.approx(report["primal"], rel=1e-9)
    warm = sbm.train(store, tmp_path / "v.model", {**near, "warm_start": tmp_path / "m.model"})
    assert warm[1]["converged"]


def test_intercept_alone_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, "_LEAST_NEAR", 100)
    random = np.random.default_rng(0)
    X, y = random.normal(size=(4000, 4)), np.where(random.random(4000) < 0.1, 1.0, -1.0)
    store = make_store(tmp_path, X, y, blocks=4)
    _, report = sbm.train(store, tmp_path / "m.model", {"intercept": True, "C": 1.0})
    assert report["converged"]  # at weights of about 0, where all negative rows are at their kink
    assert report["primal"] == pytest.approx(2 * (y > 0).sum(), rel=1e-2)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_newton_calibrates_like_dual(loss: str, tmp_path: Path) -> None:
    X, y = Case(loss, 2).rows(n=900, noise=1.0)
    store, found = make_store(tmp_path, X, y, blocks=4), {}
    for solver in ("dual", "newton"):
        settings = {"loss": loss, "C": 0.1, "calibrate": True, "solver": solver, "tol": 1e-5}
        model, _ = sbm.train(store, tmp_path / f"{solver}.model", settings)
        found[solver] = model.info["calibration"]
    assert found["newton"]["rows"] == found["dual"]["rows"]
    assert found["newton"]["A"] == pytest.approx(found["dual"]["A"], rel=0.02)


def test_plan_includes_the_hessian(tmp_path: Path) -> None:
    X, y = Case("hinge", 2).rows()
    store = make_store(tmp_path, np.hstack([X] * 400), y)
    with pytest.raises(sbm.MemoryPlanError, match="hessian 3"):
        sbm.train(store, None, {"solver": "newton", "intercept": True, "mem": "200MB"})
    with pytest.MonkeyPatch.context() as context:
        patch(context, "MOST_FEATURES", 100)
        with pytest.raises(sbm.MemoryPlanError, match="bias=1 instead of intercept=True"):
            sbm.train(store, None, {"intercept": True, "mem": "200MB"})


@pytest.mark.parametrize("values", [None, "float32"])
@pytest.mark.parametrize("filled", [0.1, 0.9])
def test_gram_and_solve_match_numpy(values: str | None, filled: float) -> None:
    kernels, random = load("sbm.solver.kernels.newton"), np.random.default_rng(0)
    X = np.round(random.normal(size=(45, 12)), 1) if values else np.ones((45, 12))
    X[random.random(X.shape) > filled] = 0
    lengths = (X != 0).sum(axis=1).astype(np.int32)
    rows = Rows(
        np.cumsum(lengths) - lengths, lengths, np.nonzero(X)[1].astype(np.int32),
        X[X != 0].astype(values) if values else None, np.zeros(45),
    )  # fmt: skip
    r, H, bias = random.random(45), np.zeros((13, 13)), 0.5
    given = rows.starts, rows.lengths, rows.indices, rows.values, bias, r
    kernels.gram(*given, H, np.zeros((8, 13)), np.zeros(8))
    Z = np.column_stack([X.astype(values or float).astype(float), np.full(45, bias)])
    expected = (Z.T * r) @ Z
    np.testing.assert_allclose(H, np.tril(expected), rtol=1e-12, atol=1e-12)
    sums = np.zeros(13)
    kernels.add_rows(*given, sums)
    np.testing.assert_allclose(sums, Z.T @ r, rtol=1e-12, atol=1e-12)
    H.flat[::14] += 1.0
    x, b = np.ones(13), np.linalg.solve(expected + np.eye(13), np.ones(13))
    assert kernels.factorize(H)
    kernels.solve(H, x)
    np.testing.assert_allclose(x, b, rtol=1e-9)
    assert not kernels.factorize(-np.eye(2))


def test_exponential_is_exact_to_a_rounding() -> None:
    x = np.r_[np.linspace(-700, 700, 20_001), np.linspace(-1, 1, 2001), 1e-300, 0.0]
    expected = np.array([math.exp(one) for one in x])
    np.testing.assert_allclose(exponential(x), expected, rtol=3 * np.finfo(float).eps)


@pytest.mark.process
def test_bytes_do_not_depend_on_instructions_that_libraries_choose(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(3000, 60)) + 2.0 * random.normal(size=(3000, 1))  # alike columns
    z = X @ random.normal(size=60) + random.normal(size=3000)
    store = make_store(tmp_path, X, np.where(z > 0, 1.0, -1.0), "c", blocks=3)
    targets = make_store(tmp_path, X, z, "r", blocks=3)
    script = """
import hashlib, sys, sbm
for k, (loss, more) in enumerate([("hinge", {}), ("log_loss", {}), ("epsilon_insensitive", {}),
                                  ("log_loss", {"penalty": "l1", "solver": "dual", "C": 0.1})]):
    store = sys.argv[1 + (loss == "epsilon_insensitive")]
    settings = {"loss": loss, "solver": "newton", "tol": 1e-6, "max_passes": 20, **more}
    model, _ = sbm.train(store, f"{sys.argv[3]}-{k}.model", settings)
    print(loss, hashlib.sha256(model.W.tobytes()).hexdigest())
"""
    dispatched = " ".join(getattr(np, "_core", np.core)._multiarray_umath.__cpu_dispatch__)
    others = [{"OPENBLAS_CORETYPE": "Prescott"}, {"NPY_DISABLE_CPU_FEATURES": dispatched}]
    found = [
        finished(
            [sys.executable, "-W", "ignore", "-c", script, store, targets, tmp_path / str(k)],
            env={**os.environ, **more},
            check=True,
        ).stdout
        for k, more in enumerate([{}, *others])
    ]
    assert found[0]
    assert found == [found[0]] * 3


# ------------------------------------------------------------------------------ many features


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count as too many features for a matrix what is not."""
    patch(monkeypatch, "MOST_FEATURES", 3)


@pytest.mark.parametrize("C", [pytest.param(0.1, marks=pytest.mark.slow), 100.0])
@pytest.mark.parametrize("case", SOLVED, ids=str)
def test_products_reach_the_optimum_of_matrices(
    case: Case, C: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = case.rows(n=400, noise=2.0)
    store = make_store(tmp_path, X, y, blocks=4)
    settings = {**case.at(C), "bias": 1.0, **FIRM}
    peer = sbm.train(store, tmp_path / "m.model", settings)
    patch(monkeypatch, "MOST_FEATURES", 3)
    model, report = sbm.train(store, tmp_path / "p.model", settings)
    assert report["converged"]
    assert case.primal(X, y, model) == pytest.approx(report["primal"], rel=1e-9)
    assert sum(report["rounds"]) > report["passes"]  # products
    assert_same_optimum(peer, (model, report))


@pytest.mark.parametrize("C", [0.1, pytest.param(10.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", JOINT, ids=str)
def test_joint_losses_reach_the_optimum(case: Case, C: float, tmp_path: Path) -> None:
    X, y = case.rows(n=200, noise=2.0)
    store = make_store(tmp_path, X, y, blocks=4)
    settings = {**case.at(C), "bias": 1.0}
    firm = {**settings, **FIRM, "tol": 1e-5, "max_passes": 60, "parts": "blocks"}
    found = sbm.train(store, tmp_path / "n.model", firm)
    assert found[1]["converged"]
    assert found[1]["solver"] == "accelerated"
    assert case.primal(X, y, found[0]) == pytest.approx(found[1]["primal"], rel=1e-9)
    peer = {**settings, "solver": "dual", "tol": 1e-5, "max_passes": 300}
    assert_same_optimum(sbm.train(store, tmp_path / "d.model", peer), found)


def test_joint_losses_of_unscaled_data_converge(tmp_path: Path) -> None:
    X, y = income_table(1000)
    X[:, :2] /= 10.0, 10_000.0
    y += (X[:, 0] > 5) * (X[:, 1] > 5)
    store = make_store(tmp_path, X, y)
    _, report = sbm.train(store, tmp_path / "m.model", {"loss": "crammer_singer", "C": 100.0})
    assert report["converged"]
    assert report["solver"] == "accelerated"
    assert report["switched_after"] >= 3


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("loss", ["log_loss", "squared_hinge", "hinge"])
def test_auto_switches_without_a_matrix(loss: str, tmp_path: Path, monkeypatch: Any) -> None:
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    X, y = income_table()
    store, settings = make_store(tmp_path, X, y), {"loss": loss, "max_passes": 12}
    _, report = sbm.train(store, tmp_path / "m.model", settings)
    method = "method of multipliers" if loss == "hinge" else "conjugate gradients"
    assert report["solver"] == method


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("loss", "ranks", "stop"),
    [
        ("log_loss", 1, 15), ("log_loss", 2, 4), ("hinge", 1, 15), ("weston_watkins", 1, 15),
        ("epsilon_insensitive", 1, 12),
    ],
)  # fmt: skip
def test_products_resume_to_the_same_bytes(
    loss: str, ranks: int, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch, "COMMIT_SECONDS", 0.0)
    patch(monkeypatch, "COMMIT_SHARE", 0.0)
    X, y = Case(loss, 3 if loss == "weston_watkins" else 2).rows(n=400, noise=2.0)
    if loss == "epsilon_insensitive":  # with columns of different size, another method
        X *= 10.0 ** (np.arange(X.shape[1]) % 5)
    store, path = make_store(tmp_path, X, y, blocks=4), tmp_path / "m.model"
    settings = {"loss": loss, "C": 10.0, "checkpoint_every": 0, **FIRM}

    def train(**more: Any) -> list[Any]:
        options = TrainOptions(**more)
        return in_threads(ranks, lambda comm: train_ranks(comm, store, path, settings, options))

    train()
    whole, calls = path.read_bytes(), [0]

    def is_stopped() -> bool:
        calls[0] += 1
        return calls[0] > stop

    with pytest.raises(KeyboardInterrupt):
        train(is_stopped=is_stopped, resume=False)
    settings["threads"] = 1
    assert train()[0][1]["resumed"]
    assert path.read_bytes() == whole


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_time_limit_ends_a_pass_of_many_products(
    loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = Case(loss, 2).rows(n=400, noise=2.0)
    store, calls = make_store(tmp_path, X, y), [0]

    def is_late(self: Any) -> bool:
        calls[0] += 1
        return calls[0] > 3

    monkeypatch.setattr("sbm.programs.training.training.Training.is_late", is_late)
    settings = {"loss": loss, "C": 1000.0, "solver": "newton", "tol": 1e-9, "bias": 0.0}
    with_products = {"intercept": loss == "log_loss"}  # which takes conjugate gradients
    _, report = sbm.train(store, tmp_path / "m.model", {**settings, **with_products})
    assert not report["converged"]
    assert 0 < report["relative_gap"] < 1
    if loss == "hinge":
        assert report["rounds"] == [61, 1]  # three steps of 20 rounds, not five
    else:
        assert report["rounds"] == [4, 4, 1]  # the second step ends with its first product


def test_products_need_the_memory_that_the_error_names(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(20_000, 40))
    store = make_store(tmp_path, X, np.sign(X[:, 0] + 0.1), blocks=12)
    settings = {"loss": "log_loss", "solver": "newton", "max_passes": 2, "bias": 0.0}
    with pytest.MonkeyPatch.context() as context:
        patch(context, "MOST_FEATURES", 3)
        with pytest.raises(sbm.MemoryPlanError, match="or solver='dual'") as error:
            sbm.train(store, tmp_path / "m.model", {**settings, "mem": "72MB"})
        sbm.train(store, tmp_path / "m.model", {**settings, "mem": error.value.least_bytes})


def test_rows_near_a_kink_have_the_memory_that_is_left() -> None:
    """Without most of it, a million rows of 30 numbers did not converge in 150 MB."""
    store: Any = SimpleNamespace(n_rows=10**6, nnz=3 * 10**7, n_features=30, value_type="float32")
    plan: Any = SimpleNamespace(left=52_000_000, block_rows=83_336)
    capacity = near_capacity(store, plan, 1, intercept=False)
    assert 0.7 * plan.left < capacity * (MARGIN_ROW + 30 * 8) <= plan.left


def test_conjugate_gradients_end_where_the_gradient_is_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch, "MOST_FEATURES", 0)
    rows = [f"{s}1 {k}:1 {k + 7}:1\n" for k in range(1, 20) for s in "+-"]
    (tmp_path / "a.svm").write_text("".join(rows))
    sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", blocks=2)
    settings = {"loss": "log_loss", "solver": "newton", "intercept": True, "tol": 1e-18}
    model, _ = sbm.train(tmp_path / "a.sbm", tmp_path / "a.model", {**settings, "max_passes": 3})
    assert not model.W.any()
