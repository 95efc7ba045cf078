"""Online learners of scripts/papers/learners.py against their formulas in dense arithmetic."""

import json

import numpy as np
import pytest
from helpers import load_script

import sbm

script = load_script("papers.learners")


def learn(name, X, labels, cost):
    """The formulas, one row after the other; u is s x."""
    w, precision, updates = np.zeros(8), np.ones(8), 0
    for t, (x, y) in enumerate(zip(X, labels, strict=True), 1):
        u = x if y == 1 else -x
        margin = w @ u
        moved = bool(u.any()) and (margin <= 0 if name == "perceptron" else margin < 1)
        updates += moved
        if name == "perceptron":
            w = w + moved * u
        elif name == "passive_aggressive":
            w = w + moved * min(cost, (1 - margin) / (u @ u)) * u
        elif name == "arow" and moved:
            beta = 1 / ((u**2 / precision).sum() + 1 / (2 * cost))
            w = w + (1 - margin) * beta * u / precision
            precision = precision + 2 * cost * u**2
        elif name == "pegasos":
            w = (1 - 1 / t) * w + moved * u / (cost * t)
            w *= min(1, 1 / (np.sqrt(cost) * max(np.linalg.norm(w), 1e-300)))
    return w, updates


def write(path, X, y):
    rows = [" ".join(f"{k + 1}:{v!r}" for k, v in enumerate(x) if v) for x in X.tolist()]
    path.write_text("".join(f"{label} {row}\n" for label, row in zip(y, rows, strict=True)))
    return path


@pytest.mark.parametrize("name", script.LEARNERS)
def test_learner_follows_its_formula(name, tmp_path):
    random = np.random.default_rng(1)
    X = random.normal(size=(60, 8)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.4] = 0
    y = random.integers(0, 2, 60)
    text, model = write(tmp_path / "t.svm", X, y), tmp_path / "t.model"
    for cost in (0.03, 0.4871, 99.0):
        w, updates = learn(name, np.vstack([X, X]), np.tile(y, 2), cost)
        report = script.learn_text(text, model, name, cost=cost, passes=2)
        assert (report["rows"], report["updates"]) == (60, updates)
        found = sbm.Model.load(model).weights_of(np.arange(1, 9))[:, 0]
        np.testing.assert_allclose(found, w, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", script.LEARNERS)
def test_several_classes_are_learned(name, tmp_path, capsys):
    random = np.random.default_rng(2)
    y = random.integers(0, 3, 600)
    X = random.normal(scale=0.2, size=(600, 5)).astype(np.float32).astype(float)
    X[np.arange(600), y] += 1
    text, model = write(tmp_path / "t.svm", X, y), tmp_path / "t.model"
    words = [str(text), "-o", str(model), "--learner", name, "--lambda", "0.01"]
    assert script.main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["labels"] == [0.0, 1.0, 2.0]
    assert report["accuracy"] > 0.9
    assert sbm.predict(model, text)["accuracy"] > 0.95
    assert script.main([*words, "--labels", "0,1"]) == 1
    assert "--labels" in capsys.readouterr().err
