"""Scaling of features while training: the scales, the optimum, and plain models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import threads
from families import Case, make_store
from helpers import full_weights, write_rows
from inside import BlockStore, TrainOptions, scale_features, train_ranks

import sbm

N_ROWS, FEATURES = 400, 7


def table(seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return sparse rows whose features differ in size; one is constant and one has no zeros."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(N_ROWS, FEATURES)) * (random.random((N_ROWS, FEATURES)) < 0.6)
    X[:, 1] = 3.0
    X[:, 2] = random.uniform(1e4, 1e5, N_ROWS)
    X[:, 3] *= 1e-3
    X = X.astype(np.float32).astype(float)
    y = np.where(X[:, 0] + 1e3 * X[:, 3] + random.normal(size=N_ROWS) > 0, 1.0, -1.0)
    return X, y


def scales_of(X: np.ndarray[Any, Any], how: str) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = abs(X).max(axis=0) if how == "maxabs" else X.std(axis=0)
    return np.where(found > 0, found, 1.0)


@pytest.mark.parametrize("how", ["maxabs", "std"])
@pytest.mark.parametrize(
    "more",
    [
        {"solver": "dual"}, {"solver": "newton"}, {"loss": "log_loss", "penalty": "l1"},
        {"loss": "log_loss", "intercept": True}, {"loss": "crammer_singer"},
    ],
    ids=str,
)  # fmt: skip
def test_scaling_equals_scaled_data(how: str, more: dict[str, Any], tmp_path: Path) -> None:
    X, y = table()
    scales = scales_of(X, how)
    chosen = {"tol": 1e-5, "max_passes": 2000, "bias": 0 if "intercept" in more else 1.0, **more}
    store = make_store(tmp_path, X, y, "a", blocks=3)
    model, report = sbm.train(store, tmp_path / "a.model", {**chosen, "scale": how})
    other = make_store(tmp_path, X / scales, y, "b", blocks=3)
    theirs, expected = sbm.train(other, tmp_path / "b.model", chosen)
    assert report["converged"]
    assert (report["scale"], model.info["certificate"]["scale"]) == (how, how)
    assert report["primal"] == pytest.approx(expected["primal"], rel=3e-5)
    ours = X @ full_weights(model, FEATURES) + model.bias * model.bias_weights
    scores = X / scales @ full_weights(theirs, FEATURES) + theirs.bias * theirs.bias_weights
    assert np.mean((ours > 0) == (scores > 0)) > 0.98


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_certificate_is_of_rounded_values(dtype: str, tmp_path: Path) -> None:
    X, y = table()
    X[:, 2] += X[:, 0]  # rounded to float32 before it is scaled
    store, C = make_store(tmp_path, X, y, dtype=dtype), 1e4
    stored = X.astype(dtype).astype(float)
    model, report = sbm.train(
        store, tmp_path / "m.model", {"scale": "std", "C": C, "solver": "newton", "tol": 1e-9}
    )
    scales = scales_of(stored, "std")
    w = full_weights(model, FEATURES)[:, 0] * scales

    def primal(rows: np.ndarray[Any, Any]) -> float:
        return float(0.5 * w @ w + C * np.maximum(0.0, 1.0 - y * (rows @ w)).sum())

    exact, rounded = stored / scales, (stored / scales).astype(dtype).astype(float)
    assert report["primal"] == pytest.approx(primal(rounded), rel=1e-10)
    assert abs(report["primal"] / primal(exact) - 1.0) < 30 * report["scale_rounding"]
    assert report["scale_rounding"] == 0.5 * np.finfo(dtype).eps
    assert model.certificate["scale_rounding"] == report["scale_rounding"]


@pytest.mark.parametrize("ones", [False, True])
def test_text_in_memory_equals_store(ones: bool, tmp_path: Path) -> None:
    X, y = table()
    X = (X != 0).astype(float) if ones else X
    text = write_rows(tmp_path / "t.svm", X, y)
    sbm.split(text, tmp_path / "t.sbm", blocks=3)
    # Newton's method follows the dual solver on the same rows, which must be scaled only once.
    settings = {"scale": "std", "tol": 1e-8, "C": 100.0, "loss": "squared_hinge", "bias": 1.0}
    found = []
    for data in (tmp_path / "t.sbm", text):
        how = {"blocks": 3} if data is text else {}
        model, report = sbm.train(data, tmp_path / "m.model", settings, resume=False, **how)
        assert report["solver"] == "newton"
        found.append(model.W.tobytes())
    assert found[0] == found[1]


def test_ranks_find_the_same_scales(tmp_path: Path) -> None:
    X, y = table()
    store = make_store(tmp_path, X, y, blocks=4)
    path, options = tmp_path / "r.model", TrainOptions(resume=False)
    for how in ("maxabs", "std"):
        settings = {"scale": how, "solver": "newton", "loss": "squared_hinge", "tol": 1e-9}
        model, _ = sbm.train(store, tmp_path / "m.model", settings, resume=False)

        def one(comm: Any, chosen: dict[str, Any] = settings) -> Any:
            return train_ranks(comm, store, path, chosen, options)

        theirs = threads.in_threads(2, one)[0][0]
        np.testing.assert_allclose(theirs.W, model.W, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [24, 49, 12_345])
def test_constant_columns_have_scale_one(rows: int, dtype: str, tmp_path: Path) -> None:
    random, eps = np.random.default_rng(rows), float(np.finfo(dtype).eps)
    sizes = [0.05, 0.09, 0.23, 0.3047170797544314, -98.6, 2026.0, 1.0, 1e-30, -7e30, 1 / 3]
    near = np.outer(1 + eps * random.integers(0, 2, rows), sizes)  # the last bit differs
    some = np.full((rows, 1), 0.23) * (random.random((rows, 1)) < 0.5)
    real = 0.3 * (1 + 100 * eps * random.integers(0, 2, (rows, 1)))
    X = np.hstack([np.tile(sizes, (rows, 1)), near, some, real]).astype(dtype).astype(float)
    path = make_store(tmp_path, X, np.where(random.random(rows) < 0.5, 1.0, -1.0), blocks=3,
                      dtype=dtype)  # fmt: skip

    def scales(comm: Any = None) -> Any:
        store = scale_features(BlockStore(path, scaling="std"), comm)
        assert store.scales is not None
        return store.scales[np.argsort(store.read_feature_ids())]

    for found in (scales(), *threads.in_threads(3, scales)):
        assert (found[:-2] == 1.0).all()
        centred = X[:, -2:] - X[0, -2:]
        np.testing.assert_allclose(found[-2:], centred.std(axis=0), rtol=1e-2)


def test_resume_and_changed_scale(tmp_path: Path) -> None:
    X, y = table()
    store, path = make_store(tmp_path, X, y, blocks=4), tmp_path / "m.model"
    settings = {"scale": "std", "parts": "blocks", "tol": 1e-7, "solver": "dual", "max_passes": 6}
    sbm.train(store, path, settings)
    whole, calls = path.read_bytes(), [0]

    def is_stopped() -> bool:
        calls[0] += 1
        return calls[0] > 9

    with pytest.raises(KeyboardInterrupt):
        sbm.train(store, path, settings, is_stopped=is_stopped, resume=False)
    with pytest.raises(sbm.SettingsError, match=r"scale='std' .now none"):
        sbm.train(store, path, {**settings, "scale": "none"})
    sbm.train(store, path, settings)
    assert path.read_bytes() == whole


def test_tune_scales_folds_and_model(tmp_path: Path) -> None:
    X, y = table()
    store = make_store(tmp_path, X, y, blocks=2)
    chosen = {"scale": "std", "intercept": True}
    model, report = sbm.tune(store, tmp_path / "m.model", chosen, Cs=[0.01, 1.0], folds=3)
    assert model.info["settings"]["scale"] == "std"
    assert max(row["mean"] for row in report["settings"] if row["mean"]) > 0.7


def test_stream_refuses_scaling(tmp_path: Path) -> None:
    X, y = Case("hinge", 2).rows()
    text = write_rows(tmp_path / "t.svm", X, y)
    for setting in ({"scale": "std"}, {"intercept": True}):
        with pytest.raises(sbm.SettingsError, match=r"does not apply to sbm.stream"):
            sbm.stream([text], tmp_path / "s.model", setting)
