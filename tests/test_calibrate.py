"""Probabilities of a training with --calibrate: near the truth, and nothing else changes."""

import numpy as np
import pytest
from families import Case, make_store
from helpers import fit, write_rows

import sbm
from sbm.errors import SettingsError
from sbm.jobs.training.calibration import Collector
from sbm.probabilities import probabilities

CLASSIFIERS = [
    Case("hinge", 2), Case("hinge", 3), Case("hinge", 3, {"caches": 3}, "-caches"),
    Case("squared_hinge", 2), Case("squared_hinge", 3),
    Case("crammer_singer", 3), Case("weston_watkins", 3),
    Case("weston_watkins", 3, {"schedule": "pairs"}, "-pairs"),
    Case("squared_error", 2, {"task": "classification"}),
    Case("squared_error", 3, {"task": "classification"}),
]  # fmt: skip


def truth(n, labels, seed=0, features=6):
    """Rows of a model of log odds, their labels, and the probabilities they were drawn with."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, features)).astype(np.float32).astype(float)
    W = np.random.default_rng(99).normal(size=(features, labels))
    z = X @ W
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (random.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(0, labels - 1)
    return X, y, p


def quality(model, folder, labels):
    """(log-loss of fresh rows, mean distance from the true probabilities)."""
    X, y, p = truth(4000, labels, seed=1)
    found = probabilities(model, scores(model, X))
    assert found.shape == p.shape
    np.testing.assert_allclose(found.sum(axis=1), 1)
    loss = -np.log(np.maximum(found[np.arange(len(y)), y], 1e-12)).mean()
    return loss, np.abs(found - p).mean()


def scores(model, X):
    W = np.zeros((X.shape[1], model.W.shape[1]))
    W[model.ids - 1] = model.W
    return X @ W + model.bias * model.bias_weights


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores of three thousand rows with two and with three labels."""
    folder = tmp_path_factory.mktemp("calibrate")
    for labels in (2, 3):
        X, y, _ = truth(3000, labels)
        make_store(folder, X, y, f"d{labels}", blocks=4)
    return folder


@pytest.mark.parametrize("case", CLASSIFIERS, ids=str)
def test_probabilities_are_near_the_truth_and_weights_are_the_same(stores, tmp_path, case):
    store = stores / f"d{case.labels}.sbm"
    options = {**case.at(0.1), "cache_frac": "auto" if case.labels == 2 else 0.5}
    plain, before, _ = fit(store, "plain.model", **options)
    model, report, _ = fit(store, "m.model", **options, calibrate=True)
    assert model.W.tobytes() == plain.W.tobytes()
    assert model.bias_weights.tobytes() == plain.bias_weights.tobytes()
    for name in ("primal", "dual", "gap", "passes", "updates", "visits", "rounds"):
        assert report[name] == before[name], name
    assert plain.info["calibration"] is None
    found = model.info["calibration"]
    joint = case.loss in ("crammer_singer", "weston_watkins")
    assert found["kind"] == ("softmax" if joint else "platt")
    assert 0.15 * 3000 < found["rows"] < 0.25 * 3000
    ours, distance = quality(model, tmp_path, case.labels)
    own, _, _ = fit(store, "log.model", loss="log_loss", C=0.1)
    theirs, _ = quality(own, tmp_path, case.labels)
    assert ours <= theirs + 0.04
    # one sigmoid a label, divided by their sum, is no more than near a softmax
    assert distance <= (0.03 if case.labels == 2 else 0.07)


def test_the_file_is_the_same_each_time_and_for_any_threads(stores):
    files = []
    for threads in (1, 2):
        fit(stores / "d3.sbm", loss="hinge", C=0.1, calibrate=True, threads=threads)
        files.append((stores / "m.model").read_bytes())
    assert files[0] == files[1]


def test_it_goes_with_bias_weights_and_a_warm_start(stores, tmp_path):
    v = stores / "v.txt"
    v.write_text("".join(f"{1 + k % 2}\n" for k in range(3000)))
    options = {"loss": "hinge", "C": 0.1, "bias": 1.0, "weights": str(v), "class_weight": {0: 1.5}}
    plain, _, _ = fit(stores / "d2.sbm", "plain.model", **options)
    start = str(stores / "plain.model")
    model, report, _ = fit(stores / "d2.sbm", **options, calibrate=True, warm_start=start)
    assert report["passes"] == 0
    np.testing.assert_allclose(model.W, plain.W, atol=1e-12)
    assert model.info["calibration"]["A"][0] < 0


def test_predict_gives_the_probabilities_of_the_file(stores, tmp_path):
    model, _, _ = fit(stores / "d2.sbm", C=0.1, calibrate=True)
    X, y, _ = truth(50, 2, seed=2)
    text = write_rows(tmp_path / "t.svm", X, y)
    out = tmp_path / "p.txt"
    sbm.predict(stores / "m.model", text, out, probability=True)
    lines = out.read_text().splitlines()
    found = np.array([[float(x) for x in line.split()[1:]] for line in lines[-50:]])
    np.testing.assert_allclose(found, probabilities(model, scores(model, X)), atol=1e-5)


def test_few_rows_are_no_error(tmp_path):
    """A fold may lack a label, or all rows."""
    for n in (2, 3, 6):
        X = np.eye(6)[:n] + 1
        store = make_store(tmp_path, X, np.arange(n) % 2, f"f{n}")
        for loss in ("hinge", "crammer_singer"):
            model, report, _ = fit(store, loss=loss, calibrate=True)
            assert report["converged"]
            p = probabilities(model, scores(model, X))
            assert np.isfinite(p).all()


def test_what_has_no_calibration_is_refused(stores):
    for options, sentence in (
        ({"loss": "log_loss"},
         "log_loss needs no --calibrate: its decision values are log odds; leave it out"),
        ({"loss": "epsilon_insensitive"},
         "calibrate is for classes, and epsilon_insensitive has none; leave it out"),
        ({"loss": "squared_error"},
         "calibrate is for classes, and squared_error has none; leave it out"),
        ({"loss": "one_class"}, "calibrate is for classes, and one_class has none; leave it out"),
    ):  # fmt: skip
        with pytest.raises(SettingsError) as error:
            fit(stores / "d2.sbm", "x.model", calibrate=True, **options)
        assert str(error.value) == sentence
    assert not (stores / "x.model.run").exists()


def test_no_more_decision_values_are_kept_than_there_is_room_for():
    judge = Collector([7.0, 3.0, 5.0], np.array([2, 0, 1]), 15)
    for k in range(4):
        judge.add(np.full(2, k % 3), [np.full((2, 3), float(k))])
    fitted = judge.calibrate(joint=False)
    assert fitted["rows"] == 5
    assert len(fitted["A"]) == 3


def test_rows_of_weight_0_are_not_calibrated_with(tmp_path):
    random = np.random.default_rng(1)
    X = random.normal(size=(600, 4))
    y = np.where(X[:, 0] + random.logistic(size=600) > 0, 1, -1)
    weights = (random.random(600) < 0.5).astype(float)
    y[weights == 0] *= -1  # what must not be heard
    write_rows(tmp_path / "a.svm", X, y)
    write_rows(tmp_path / "b.svm", X[weights > 0], y[weights > 0])
    np.savetxt(tmp_path / "w.txt", weights, "%g")
    for name in "ab":
        sbm.split([tmp_path / f"{name}.svm"], tmp_path / f"{name}.sbm", blocks=2)
    how = {"C": 0.1, "calibrate": True, "tol": 1e-8, "max_passes": 500}
    with_weights, _, _ = fit(tmp_path / "a.sbm", weights=str(tmp_path / "w.txt"), **how)
    without, _, _ = fit(tmp_path / "b.sbm", **how)
    ours, theirs = with_weights.info["calibration"], without.info["calibration"]
    assert ours["rows"] == theirs["rows"]
    assert ours["A"] == pytest.approx(theirs["A"], rel=1e-3)
    assert ours["B"] == pytest.approx(theirs["B"], abs=1e-3)


def test_the_only_label_there_is_is_the_likely_one(tmp_path):
    (tmp_path / "o.svm").write_text("".join(f"1 {k}:1 200:{k}\n" for k in range(1, 101)))
    sbm.split([tmp_path / "o.svm"], tmp_path / "o.sbm")
    fit(tmp_path / "o.sbm", calibrate=True, C=0.1)
    report = sbm.predict(
        tmp_path / "m.model", tmp_path / "o.svm", tmp_path / "o.txt", probability=True
    )
    assert report["log_loss"] < 0.2
