"""One-vs-rest with many classes, divided into groups that are solved side by side."""

import numpy as np
import pytest
from helpers import write_rows

import sbm

N_CLASSES = 150


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    random = np.random.default_rng(0)
    y = random.integers(0, N_CLASSES, 1200).astype(float)
    X = random.normal(size=(N_CLASSES, 12))[y.astype(int)] + 0.3 * random.normal(size=(1200, 12))
    folder = tmp_path_factory.mktemp("groups")
    write_rows(folder / "d.svm", X, y)
    sbm.split(folder / "d.svm", folder / "d.sbm", blocks=3)
    return folder / "d.sbm"


@pytest.mark.parametrize("parts", ["blocks", pytest.param("auto", marks=pytest.mark.slow)])
def test_groups_reach_the_optimum_of_one_problem(store, tmp_path, monkeypatch, parts):
    settings = {"loss": "hinge", "C": 0.5, "tol": 1e-3, "bias": 1.0, "parts": parts}
    settings["max_passes"] = 200
    one = tmp_path / "one.model"
    models = {}
    for threads in (1, 2):
        path = tmp_path / f"{threads}.model"
        _, report = sbm.train(store, path, {**settings, "threads": threads})
        models[threads] = path.read_bytes()
    assert models[1] == models[2]
    for name in ("_PAIR", "MANY"):
        monkeypatch.setattr(f"sbm.programs.training.ranks.{name}", 1000)
    _, alone = sbm.train(store, one, settings)
    assert report["converged"]
    assert alone["converged"]
    # Each certified dual bounds the optimum of the other from below, each primal from above.
    assert report["dual"] <= alone["primal"] * (1 + 1e-12)
    assert alone["dual"] <= report["primal"] * (1 + 1e-12)
    assert report["visits"] != alone["visits"]  # it was divided
