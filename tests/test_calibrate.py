"""Probabilities with --calibrate are close to the truth, and nothing else changes."""

import numpy as np
import pytest
from families import Case, make_store
from helpers import fit, full_weights, write_rows
from inside import Collector, probabilities

import sbm
from sbm.errors import SettingsError

N_ROWS, FEATURES = 2000, 6
CLASSIFIERS = [
    Case("hinge", 2), Case("hinge", 3), Case("squared_hinge", 3), Case("crammer_singer", 3),
    Case("weston_watkins", 3), Case("squared_error", 2, {"task": "classification"}),
]  # fmt: skip


def truth(n, labels, seed=0):
    """Rows of a model of log odds, their labels, and the probabilities they were drawn with."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, FEATURES)).astype(np.float32).astype(float)
    z = X @ np.random.default_rng(99).normal(size=(FEATURES, labels))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (random.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(0, labels - 1)
    return X, y, p


def found_for(model, X):
    scores = X @ full_weights(model, X.shape[1]) + model.bias * model.bias_weights
    return probabilities(model, scores)


def quality(model, labels):
    """Return the log-loss of new rows, and the mean distance from the true probabilities."""
    X, y, p = truth(4000, labels, seed=1)
    found = found_for(model, X)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    loss = -np.log(np.maximum(found[np.arange(len(y)), y], 1e-12)).mean()
    return loss, np.abs(found - p).mean()


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    for labels in (2, 3):
        X, y, _ = truth(N_ROWS, labels)
        store = make_store(folder, X, y, f"d{labels}", blocks=4)
        fit(store, f"log{labels}.model", loss="log_loss", C=0.1)
    return folder


@pytest.mark.parametrize("case", CLASSIFIERS, ids=str)
def test_probabilities_are_near_the_truth(stores, tmp_path, case):
    store = stores / f"d{case.labels}.sbm"
    options = {**case.at(0.1), "cache_frac": "auto" if case.labels == 2 else 0.5}
    plain, before, _ = fit(store, tmp_path / "plain.model", **options)
    model, report, _ = fit(store, tmp_path / "m.model", **options, calibrate=True, threads=1)
    assert model.W.tobytes() == plain.W.tobytes()
    for name in ("primal", "dual", "gap", "passes", "updates", "visits", "rounds"):
        assert report[name] == before[name], name
    assert plain.info["calibration"] is None
    fitted, joint = model.info["calibration"], case.loss in ("crammer_singer", "weston_watkins")
    assert fitted["kind"] == ("softmax" if joint else "platt")
    assert 0.15 * N_ROWS < fitted["rows"] < 0.25 * N_ROWS
    ours, distance = quality(model, case.labels)
    theirs, _ = quality(sbm.Model.load(stores / f"log{case.labels}.model"), case.labels)
    assert ours <= theirs + 0.04
    # One sigmoid per label, normalized, only approximates a softmax.
    assert distance <= (0.03 if case.labels == 2 else 0.07)
    fit(store, tmp_path / "again.model", **options, calibrate=True, threads=2)
    assert (tmp_path / "again.model").read_bytes() == (tmp_path / "m.model").read_bytes()


def test_calibration_works_with_other_options(stores, tmp_path):
    v = tmp_path / "v.txt"
    v.write_text("".join(f"{1 + k % 2}\n" for k in range(N_ROWS)))
    options = {"loss": "hinge", "C": 0.1, "bias": 1.0, "weights": str(v), "class_weight": {0: 1.5}}
    plain, _, _ = fit(stores / "d2.sbm", tmp_path / "plain.model", **options)
    start = str(tmp_path / "plain.model")
    model, report, _ = fit(
        stores / "d2.sbm", tmp_path / "m.model", **options, calibrate=True, warm_start=start
    )
    assert report["passes"] == 0
    np.testing.assert_allclose(model.W, plain.W, atol=1e-12)
    assert model.info["calibration"]["A"][0] < 0
    start = str(tmp_path / "m.model")
    again, report, _ = fit(stores / "d2.sbm", tmp_path / "n.model", **options, warm_start=start)
    assert report["passes"] == 0
    np.testing.assert_allclose(again.W, plain.W, atol=1e-12)
    X, y, _ = truth(50, 2, seed=2)
    text, out = write_rows(tmp_path / "t.svm", X, y), tmp_path / "p.txt"
    sbm.predict(tmp_path / "m.model", text, out, probability=True)
    lines = out.read_text().splitlines()[-50:]
    found = np.array([[float(x) for x in line.split()[1:]] for line in lines])
    np.testing.assert_allclose(found, found_for(model, X), atol=1e-5)


@pytest.mark.parametrize("loss", ["hinge", "crammer_singer"])
@pytest.mark.parametrize("n", [2, 3, 6])
def test_few_rows_are_accepted(tmp_path, n, loss):
    """A fold may lack a label, or all rows."""
    X = np.eye(6)[:n] + 1
    model, report, _ = fit(make_store(tmp_path, X, np.arange(n) % 2), loss=loss, calibrate=True)
    assert report["converged"]
    assert np.isfinite(found_for(model, X)).all()


def test_single_label_gets_high_probability(tmp_path):
    text = tmp_path / "o.svm"
    text.write_text("".join(f"1 {k}:1 200:{k}\n" for k in range(1, 101)))
    sbm.split([text], tmp_path / "o.sbm")
    fit(tmp_path / "o.sbm", calibrate=True, C=0.1)
    report = sbm.predict(tmp_path / "m.model", text, tmp_path / "o.txt", probability=True)
    assert report["log_loss"] < 0.2


@pytest.mark.parametrize("loss", ["log_loss", "epsilon_insensitive", "squared_error", "one_class"])
def test_losses_without_calibration_are_refused(stores, tmp_path, loss):
    with pytest.raises(SettingsError, match=rf"(?=.*{loss}).*calibrate"):
        fit(stores / "d2.sbm", tmp_path / "x.model", calibrate=True, loss=loss)
    assert not (tmp_path / "x.model.run").exists()


def test_number_of_kept_decision_values_is_limited():
    judge = Collector([1, 2, 0], np.array([2, 0, 1]), 15)
    for k in range(4):
        judge.add(np.full(2, k % 3), [np.full((2, 3), float(k))])
    fitted = judge.calibrate(joint=False)
    assert fitted["rows"] == 5
    assert len(fitted["A"]) == 3


def test_calibration_ignores_rows_of_weight_0(tmp_path):
    random = np.random.default_rng(1)
    X = random.normal(size=(600, 4))
    y = np.where(X[:, 0] + random.logistic(size=600) > 0, 1, -1)
    weights = (random.random(600) < 0.5).astype(float)
    np.savetxt(tmp_path / "w.txt", weights, "%g")
    y[weights == 0] *= -1  # what must not be learned
    how = {"C": 0.1, "calibrate": True, "tol": 1e-8, "max_passes": 500}
    store = make_store(tmp_path, X, y, "a", blocks=2)
    ours = fit(store, weights=str(tmp_path / "w.txt"), **how)[0].info["calibration"]
    store = make_store(tmp_path, X[weights > 0], y[weights > 0], "b", blocks=2)
    theirs = fit(store, **how)[0].info["calibration"]
    assert ours["rows"] == theirs["rows"]
    assert ours["A"] == pytest.approx(theirs["A"], rel=1e-3)
    assert ours["B"] == pytest.approx(theirs["B"], abs=1e-3)
