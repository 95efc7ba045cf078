"""Training with every loss end to end: its optimum, agreement with peers, and invariances."""

import ctypes
import json
import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from families import CASES, N_FEATURES, Case, assert_same_optimum, make_store, row_losses
from helpers import fit, full_weights
from inside import LOSSES
from processes import finished
from sklearn.svm import OneClassSVM

import sbm
from sbm.errors import DataError, SettingsError

EVERY = pytest.mark.parametrize("case", CASES, ids=str)


def test_every_loss_is_among_the_cases():
    assert {case.loss for case in CASES} == set(LOSSES)


# ---------------------------------------------------------------------------------- pruning

PRUNABLE = [case for case in CASES if not LOSSES[case.loss].joint and case.loss != "one_class"]


@pytest.mark.parametrize("case", PRUNABLE, ids=str)
@pytest.mark.parametrize("blocks", [1, 3])
def test_pruned_weights_are_certified(case, blocks, tmp_path):
    X, y = case.rows()
    store = make_store(tmp_path, X, y, blocks=blocks)
    options = {**case.at(0.3), "bias": 1.0, "calibrate": case.loss == "hinge"}
    plain, before, _ = fit(store, tmp_path / "plain.model", **options)
    threshold = float(np.median(np.abs(plain.W)))
    model, report, _ = fit(store, tmp_path / "m.model", **options, prune=threshold)
    n = X.shape[1]
    whole = full_weights(plain, n)
    kept = np.where(np.abs(whole) > threshold, whole, 0.0)
    np.testing.assert_array_equal(full_weights(model, n), kept)
    np.testing.assert_array_equal(model.bias_weights, plain.bias_weights)
    assert report["dropped"] == np.count_nonzero(whole) - np.count_nonzero(kept) > 0
    assert report["primal"] == pytest.approx(case.primal(X, y, model), rel=1e-9)
    assert report["added"] == pytest.approx(report["primal"] - before["primal"])
    assert report["dual"] == before["dual"]
    assert report["gap"] >= report["primal"] - report["dual"]
    assert report["gap"] == pytest.approx(before["gap"] + report["added"], rel=1e-6)
    assert report["converged"] == before["converged"]
    assert (model.info["pruned"], model.certificate["gap"]) == (threshold, report["gap"])


# ------------------------------------------------------------------------------- the optimum

# Some of a cache and none, one and many blocks.
REFERENCES = [
    ("heart_scale", "log_loss", 4, 0.5, 0.1),
    ("housing_scale", "epsilon_insensitive", 3, 0.5, 1.0),
    ("housing_scale", "squared_epsilon_insensitive", 3, 0.0, 0.1),
    ("pendigits_scale", "hinge", 12, 0.5, 0.1),
    ("pendigits_scale", "crammer_singer", 1, 0.5, 0.1),
    ("phishing", "hinge", 12, 0.33, 0.1),
    ("pendigits_scale", "weston_watkins", 12, 0.5, 0.01),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in (
        ("a9a", "log_loss", 6, 0.5, 0.1),
        ("farm_ads", "log_loss", 3, 0.5, 0.1),
        ("farm_ads", "hinge", 3, 0.5, 0.1),
        ("a9a", "hinge", 12, 0.5, 1.0),
        ("w8a", "squared_hinge", 3, 0.33, 1.0),
        ("abalone", "squared_epsilon_insensitive", 4, 0.5, 0.1),
        ("letter", "squared_hinge", 12, 0.5, 0.1),
        ("letter", "crammer_singer", 12, 0.5, 0.1),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("name", "loss", "n_blocks", "frac", "C"), REFERENCES)
def test_reference_optimum_is_certified(
    name, loss, n_blocks, frac, C, text_of, reference, tmp_path
):
    sbm.split([text_of(name)], tmp_path / "d.sbm", blocks=n_blocks)
    (optimum,) = (r["primal"] for r in reference[name][loss] if r["C"] == C)
    _, report, passes = fit(
        tmp_path / "d.sbm", loss=loss, C=C, cache_frac=frac, rounds=20, tol=5e-5, max_passes=5000
    )
    assert report["converged"]
    assert report["relative_gap"] <= 5e-5
    assert -1e-6 <= report["primal"] / optimum - 1 <= 1e-4
    assert max(p["dual"] for p in passes) <= optimum * (1 + 1e-6)
    assert report["drift"] <= 1e-9


@pytest.mark.long
@EVERY
def test_any_blocks_cache_and_seed_reach_optimum(tmp_path, case):
    X, y = case.rows(1)
    options = {**case.at(0.1), "bias": 0.0 if case.loss == "one_class" else 1.5}
    order = np.argsort(y, kind="stable")  # without dealing some blocks would lack classes
    stores = [
        make_store(tmp_path, X, y, "a", blocks=1),
        make_store(tmp_path, X[order], y[order], "b", blocks=5, seed=5),
    ]
    fitted = []
    for store, how in (
        (stores[0], {"cache_frac": 0.5}),
        (stores[1], {"cache_frac": 0.0, "screen": False}),
        (stores[1], {"policy": "random", "seed": 3}),
    ):
        model, report, _ = fit(store, **options, **how, tol=1e-5, max_passes=20000, rounds=5)
        assert report["converged"], how
        assert report["primal"] == pytest.approx(case.primal(X, y, model), rel=1e-9)
        gap = report["primal"] - report["dual"]
        assert report["gap"] == pytest.approx(gap, rel=1e-5, abs=1e-12)
        assert -1e-12 <= gap <= 1.001e-5 * max(abs(report["primal"]), abs(report["dual"]))
        assert report["drift"] <= 1e-9
        loss = LOSSES[case.loss]
        assert ("n_support" in report, "n_free" in report) == (loss.rests, loss.bounded)
        assert 0 < report.get("n_support", 1) <= len(X) * max(1, case.labels)
        assert report.get("n_free", 0) <= report.get("n_support", 0)
        fitted.append((model, report))
    for other in fitted[1:]:
        assert_same_optimum(fitted[0], other)


@EVERY
def test_bytes_do_not_depend_on_threads(tmp_path, case):
    X, y = case.rows(3, n=200)
    store = make_store(tmp_path, X, y, blocks=4)
    models = []
    for threads in (1, 2):
        fit(store, **case.at(0.5), tol=1e-4, max_passes=20, threads=threads)
        models.append((tmp_path / "m.model").read_bytes())
    assert models[0] == models[1]


def test_screening_keeps_optimum_and_saves_visits(tmp_path):
    X, y = Case("epsilon_insensitive", 0).rows(4, n=600, noise=0.1)
    store = make_store(tmp_path, X, y, blocks=6)
    options = {"loss": "epsilon_insensitive", "C": 0.1, "epsilon": 0.2, "tol": 1e-4, "rounds": 2}
    *screened, passes = fit(store, max_passes=300, **options)
    *whole, every = fit(store, screen=False, max_passes=300, **options)
    assert screened[1]["converged"]
    assert_same_optimum(tuple(screened), tuple(whole))
    assert max(p["rows_at_rest"] for p in passes) > 300
    assert all(p["rows_at_rest"] == 0 for p in every)


def test_integer_labels_are_ridge_regression_targets(tmp_path):
    """The store keeps such labels as classes."""
    X, _ = Case("squared_error", 0).rows()
    y = np.round(X[:, 0] + 2 * X[:, 1]).clip(-3, 3)
    store = make_store(tmp_path, X, y, blocks=3)
    model, _, _ = fit(store, loss="squared_error", C=2.0, tol=1e-10, max_passes=1000)
    assert model.labels == []
    expected = np.linalg.solve(X.T @ X + np.eye(N_FEATURES) / 4, X.T @ y)
    np.testing.assert_allclose(full_weights(model, N_FEATURES)[:, 0], expected, atol=1e-4)


# ---------------------------------------------------------------------------------- options


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores of one, two and three labels."""
    folder = tmp_path_factory.mktemp("stores")
    X, y = Case("hinge", 3).rows()
    labels = {1: np.full(len(y), 4.0), 2: np.where(y == 7, 7.0, -3.0), 3: y}
    return {k: make_store(folder, X, mine, f"s{k}", blocks=3) for k, mine in labels.items()}


@pytest.mark.parametrize(
    ("labels", "options", "facts"),
    [
        (2, {"loss": "hinge", "task": "regression"}, "regression.*hinge.*classification"),
        (2, {"loss": "epsilon_insensitive", "task": "classification"}, "epsilon_.*regression"),
        (2, {"loss": "one_class", "task": "classification"}, "one_class.*without labels"),
        (2, {"loss": "epsilon_insensitive", "class_weight": {7: 2}}, "class_weight.*epsilon_"),
        (2, {"loss": "one_class", "bias": 1.0}, "bias.*one_class"),
        (2, {"loss": "squared_error", "epsilon": 0.2}, "epsilon.*0.2.*squared_error"),
        (2, {"loss": "hinge", "nu": 0.25}, "nu 0.25 .*hinge.*one_class"),
        (2, {"loss": "one_class", "C": 2.0}, "C .*2.*one_class.*nu"),
        (1, {"loss": "crammer_singer"}, r"s1\.sbm.* 4.*two classes"),
        (2, {"loss": "hinge", "C": 1e-200}, "C.*1e-200"),
        (2, {"loss": "epsilon_insensitive", "task": "regression", "C": 1e200}, r"C.*1e\+200"),
    ],
)  # fmt: skip
def test_incompatible_options_are_refused(stores, labels, options, facts):
    with pytest.raises((SettingsError, DataError), match=facts):
        fit(stores[labels], "refused.model", **options)
    assert not (stores[labels].parent / "refused.model.run").exists()


WEIGHTED = [case for case in CASES if str(case) in (
    "hinge-2", "log_loss-3", "crammer_singer-3", "weston_watkins-3")]  # fmt: skip


@pytest.mark.parametrize("case", WEIGHTED, ids=str)
def test_balanced_equals_weights_given_by_hand(tmp_path, case):
    X, y = case.rows(5)
    rare = (y != 7) | (np.arange(len(y)) % 4 == 0)
    X, y = X[rare], y[rare]
    labels, counts = np.unique(y, return_counts=True)
    assert len(set(counts)) > 1
    store = make_store(tmp_path, X, y, blocks=3)
    by_hand = {k: len(y) / (len(labels) * n) for k, n in zip(labels, counts, strict=True)}
    options = {**case.at(0.2), "tol": 1e-5, "max_passes": 500}
    balanced, ours, _ = fit(store, class_weight="balanced", **options)
    given, theirs, _ = fit(store, class_weight=by_hand, **options)
    np.testing.assert_array_equal(balanced.W, given.W)
    assert ours["primal"] == theirs["primal"]
    if case.loss != "log_loss":  # of one-vs-rest only a class's own rows are weighted
        v = np.array([by_hand[label] for label in y])
        assert ours["primal"] == pytest.approx(case.primal(X, y, balanced, v), rel=1e-9)


# ----------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("loss", ["hinge", "crammer_singer"])
def test_labels_ascend_and_columns_follow_them(tmp_path, loss):
    y = np.random.default_rng(3).integers(0, 4, 300)
    labels = np.array([1e6, -3.0, 0.5, 2.0])[y]
    labels[17] = 77  # a class of one row is a class
    X = np.eye(4)[y] + 0.1 * np.random.default_rng(4).normal(size=(300, 4))
    model, _, _ = fit(make_store(tmp_path, X, labels, blocks=3), loss=loss, C=10.0, max_passes=30)
    assert model.labels == [-3, 0.5, 2, 77, 1e6]
    best = (X @ full_weights(model, 4)).argmax(axis=1)
    accuracy = (np.array(model.labels)[best] == labels).mean()
    assert accuracy > 0.98
    assert sbm.predict(model, tmp_path / "d.svm")["accuracy"] == accuracy


@pytest.mark.process
def test_300_classes_train_within_the_memory(tmp_path):
    random = np.random.default_rng(5)
    y = np.arange(3000) % 300
    X = (random.random((3000, 60)) < 0.1) * np.float32(1)
    X[np.arange(3000), y % 60] = 2
    X[np.arange(3000), (y // 5 + 7) % 60] = 3
    store = make_store(tmp_path, X, y, blocks=6)
    line = f"train {store} -o m.model --mem 150MB --loss weston_watkins -C 0.1 --tol 1e-2 --json"
    environment = {k: v for k, v in os.environ.items() if k != "SBM_COMPILE_HERE"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-m", "sbm", *shlex.split(line)]
    done = finished(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["converged"]
    assert 0 <= report["gap"] <= 1e-2 * report["primal"]
    assert report["peak_rss_bytes"] <= 150_000_000
    assert len(sbm.Model.load(tmp_path / "m.model").labels) == 300


# ------------------------------------------------------------------------------- one class


@pytest.mark.parametrize("nu", [0.05, 0.5])
def test_one_class_is_certified_with_default_settings(nu, text_of, tmp_path):
    sbm.split([text_of("heart_scale")], tmp_path / "d.sbm", blocks=6)
    _, report, _ = fit(tmp_path / "d.sbm", loss="one_class", nu=nu)
    assert report["converged"]
    assert report["dual"] <= report["primal"] < 0
    assert report["relative_gap"] <= 1e-3


@pytest.mark.parametrize("nu", [1e-6, 4e-3, 0.2])  # less than a row, 1.2 rows, 60
def test_one_class_reaches_the_optimum_of_scikit_learn(nu, tmp_path):
    X, y = Case("one_class", 1).rows(6, n=300)
    peer = OneClassSVM(kernel="linear", nu=nu, tol=1e-9).fit(X)
    _, report, _ = fit(make_store(tmp_path, X, y, blocks=4), loss="one_class", nu=nu)
    assert report["converged"]
    best = -0.5 * np.square(peer.coef_).sum()
    # Its bounds may be off by a rounding of its optimum.
    assert report["dual"] <= best * (1 - 1e-5)
    assert report["primal"] >= best * (1 + 1e-5)
    assert report["primal"] <= best * (1 - 1.1e-3)


def test_rows_around_the_origin_have_optimum_0(tmp_path):
    X = np.vstack([np.eye(3), -np.eye(3)] * 20)
    model, report, _ = fit(make_store(tmp_path, X, np.ones(len(X))), loss="one_class", nu=0.5)
    assert 0 <= report["gap"] <= 1e-3
    assert np.abs(model.W).max() < 0.1
    largest = max(abs(report["primal"]), abs(report["dual"]))
    assert report["relative_gap"] == (report["gap"] / largest if largest else 0.0)
    assert report["converged"] == (report["relative_gap"] <= 1e-3)


@EVERY
def test_relative_gap_is_of_the_larger_bound(case, tmp_path):
    """Also if the optimum is 0: rows around the origin, or targets within epsilon."""
    X, y = case.rows(3, n=40)
    if case.labels == 0:
        y[:] = 0.0
    if case.loss == "one_class":
        X = np.vstack([X, -X]) * np.logspace(0, 4, 2 * len(X))[:, None]
        y = np.ones(len(X))
    _, report, _ = fit(make_store(tmp_path, X, y), **case.at(1.0), max_passes=3)
    largest = max(abs(report["primal"]), abs(report["dual"]))
    expected = report["gap"] / largest if largest else 0.0
    assert report["relative_gap"] == pytest.approx(expected, rel=1e-12)
    assert report["converged"] == (expected <= 1e-3)
    if case.labels == 0:
        assert report["primal"] == report["dual"] == expected == 0.0


@pytest.mark.parametrize("nu", [0.03, 0.5])
def test_liblinear_finds_the_same_outliers(tmp_path, nu):
    peer = pytest.importorskip("liblinear.liblinearutil")
    X, y = Case("one_class", 1).rows(6, n=300)
    theirs = peer.train(y, X, f"-s 21 -n {nu} -e 1e-8 -q")
    w, rho = np.array(theirs.get_decfun()[0])[: X.shape[1]], theirs.rho
    store = make_store(tmp_path, X, y, blocks=4)
    model, report, _ = fit(store, loss="one_class", nu=nu, tol=1e-7, max_passes=2000)
    assert report["converged"]
    primal = 0.5 * w @ w - nu * len(X) * rho + np.maximum(0, rho - X @ w).sum()
    assert primal == pytest.approx(report["dual"], rel=1e-5)
    ours = full_weights(model, X.shape[1])[:, 0]
    np.testing.assert_allclose(ours, w, atol=np.sqrt(2 * report["gap"]) + 1e-4 * abs(w).max())
    labels, _, values = peer.predict(y, X, theirs, "-q")
    decision = X @ ours + model.bias_weights[0]
    clear = np.abs(np.array(values)[:, 0]) > 1e-3 * abs(rho)
    assert (np.where(decision > 0, 1, -1)[clear] == np.array(labels)[clear]).all()


# -------------------------------------------------------------------------------- LIBLINEAR

# (-s, case, options of LIBLINEAR and the same in our words)
PEERS = [
    (7, Case("log_loss", 2), "-c 0.5 -w7 3 -w-3 0.5", {"C": 0.5, "class_weight": {7: 3, -3: 0.5}}),
    (7, Case("log_loss", 3), "-c 0.3 -B 1 -w2 4", {"C": 0.3, "bias": 1.0, "class_weight": {2: 4}}),
    (2, Case("squared_hinge", 3), "-c 0.3 -w2 4", {"C": 0.3, "class_weight": {2: 4}}),
    (3, Case("hinge", 2), "-c 0.1 -B 2 -w7 3 -w-3 0.5",
     {"C": 0.1, "bias": 2.0, "class_weight": {7: 3, -3: 0.5}}),
    (4, Case("crammer_singer", 3), "-c 0.2 -w2 3 -w7 0.5",
     {"C": 0.2, "class_weight": {2: 3, 7: 0.5}}),
    (11, Case("squared_epsilon_insensitive", 0), "-c 0.5 -p 0.3 -B 1",
     {"C": 0.5, "epsilon": 0.3, "bias": 1.0}),
    (13, Case("epsilon_insensitive", 0), "-c 0.1 -p 0.2 -B 1",
     {"C": 0.1, "epsilon": 0.2, "bias": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("s", "case", "options", "ours"), PEERS, ids=str)
def test_liblinear_finds_the_same_model(tmp_path, s, case, options, ours):
    peer = pytest.importorskip("liblinear.liblinearutil")
    X, y = case.rows(7)
    ctypes.CDLL(None).srand(1)  # it may stop far away, by its random numbers
    theirs = peer.train(y, X, f"-s {s} {options} -e 1e-9 -q")
    store = make_store(tmp_path, X, y, blocks=3)
    model, report, _ = fit(store, **case.options, **ours, tol=1e-8, max_passes=20000)
    assert report["converged"]
    labels = theirs.get_labels() if case.labels else []
    columns = [labels.index(label) for label in model.labels] if case.labels > 2 else [0]
    found = [theirs.get_decfun(k) for k in columns]
    W, b = np.array([w for w, _ in found]).T, np.array([b for _, b in found])
    if case.labels == 2 and labels[0] != model.labels[1]:
        W, b = -W, -b
    bias, weight = ours.get("bias", 0.0), ours.get("class_weight", {})
    v = np.array([weight.get(label, 1.0) for label in y])
    if case.labels == 3 and case.loss != "crammer_singer":  # other classes have weight 1
        each = np.zeros(len(y))
        for k, label in enumerate(model.labels):
            z, own = X @ W[:, k] + b[k], np.where(y == label, 1.0, -1.0)
            each += np.where(own > 0, v, 1) * row_losses(case.loss, z[:, None], own, [-1.0, 1.0])
    else:
        each = v * row_losses(case.loss, X @ W + b, y, model.labels, ours.get("epsilon", 0.1))
    extra = (b / bias) ** 2 if bias else np.zeros(1)
    primal = 0.5 * (W**2).sum() + 0.5 * extra.sum() + ours["C"] * each.sum()
    assert report["dual"] <= primal * (1 + 1e-9)
    assert primal <= report["primal"] * (1 + 1e-6)
    distance = np.sqrt(2 * report["gap"]) + np.sqrt(2 * max(0, primal - report["dual"])) + 1e-7
    assert np.linalg.norm(full_weights(model, X.shape[1]) - W) <= distance
    assert np.linalg.norm(bias * model.bias_weights - b) <= max(1, bias) * distance


# ------------------------------------------------------------------------------ sample weights


@EVERY
def test_row_weight_equals_repeated_rows(tmp_path, case):
    bias = 0.0 if case.loss == "one_class" else 1.0
    X, y = case.rows(11, n=90)
    v = np.random.default_rng(11).integers(0, 4, len(y))
    (tmp_path / "v.txt").write_text("".join(f"{x}\n" for x in v))
    options = {**case.at(0.2), "bias": bias, "tol": 1e-6, "max_passes": 20000}
    store = make_store(tmp_path, X, y, blocks=3)
    weighted, ours, _ = fit(store, weights=str(tmp_path / "v.txt"), **options)
    repeated = make_store(tmp_path, np.repeat(X, v, axis=0), np.repeat(y, v), "r", blocks=4)
    plain, theirs, _ = fit(repeated, **options)
    assert ours["converged"]
    assert theirs["converged"]
    assert ours["primal"] == pytest.approx(case.primal(X, y, weighted, v), rel=1e-9)
    assert_same_optimum((weighted, ours), (plain, theirs))
    assert ours["primal"] == pytest.approx(theirs["primal"], rel=2e-6)
