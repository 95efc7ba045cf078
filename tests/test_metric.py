"""Columns of very different size: their units, and trainings that would not converge without."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from families import make_store
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    LOSSES,
    Metric,
    Preconditioner,
    Problem,
    Rows,
    Sums,
    TrainOptions,
    patch,
    train_ranks,
    units_for,
)
from sklearn.linear_model import LogisticRegression
from threads import in_threads

import sbm
from sbm import Settings
from sbm.errors import SbmError


def mixed(n: int = 1500, cities: int = 400, seed: int = 0) -> tuple[Any, Any]:
    """Rows of an income, an age and a city."""
    random = np.random.default_rng(seed)
    X = np.zeros((n, 2 + cities))
    X[:, 0] = np.maximum(1.0, random.normal(55_000, 20_000, n)).round()
    X[:, 1] = random.integers(18, 80, n)
    city = random.integers(0, cities, n)
    X[np.arange(n), 2 + city] = 1.0
    z = X[:, 0] / 20_000 - 2.75 + (city % 7 - 3) * 0.5 + random.normal(0, 1, n)
    return X, z


def rows_of(X: np.ndarray[Any, Any], dtype: str = "float32") -> Rows:
    n, d = X.shape
    starts = np.arange(n, dtype=np.int64) * d
    lengths, indices = np.full(n, d, np.int32), np.tile(np.arange(d, dtype=np.int32), n)
    return Rows(starts, lengths, indices, X.astype(dtype).ravel(), np.zeros(n, np.int32))


@given(
    st.lists(st.integers(-44, 37), min_size=1, max_size=6), st.sampled_from(["float32", "float64"]),
    st.integers(0, 99),
)  # fmt: skip
def test_units_are_undone_without_rounding(powers: list[int], dtype: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    with np.errstate(over="ignore", under="ignore"):
        X = random.normal(size=(5, len(powers))) * 10.0 ** np.array(powers)
        rows = rows_of(X * (random.random(X.shape) < 0.8), dtype)
    assert rows.values is not None
    before = rows.values.copy()
    metric = Metric.of(rows, len(powers) + 1)
    assert (metric.units >= 1).all()
    assert (np.frexp(metric.units)[0] == 0.5).all()  # powers of two
    with metric.applied(rows):
        assert np.isfinite(rows.values).all()
    assert rows.values.tobytes() == before.tobytes()


def test_units_make_columns_equally_large() -> None:
    rows = rows_of(np.abs(np.random.default_rng(0).normal(1, 0.1, (50, 4))) * [1, 1, 3e4, 1e-3])
    metric = Metric.of(rows, 5)
    assert metric.units[:, 0].tolist() == [1, 1, 2**14, 1, 1]
    assert metric.is_needed
    assert not Metric.of(rows.take(np.array([1, 7])), 5).is_needed  # others lie between
    assert not Metric.of(rows_of(np.ones((3, 2))), 2).is_needed
    assert not Metric.of(replace(rows, values=None), 5).is_needed


@pytest.mark.filterwarnings("error")
def test_columns_whose_squares_are_zero_have_units() -> None:
    tiny = np.array([[1e-200, 1e-190], [1e-200, 1e-195]])
    rows = replace(rows_of(tiny), values=np.append(tiny.ravel(), np.zeros(8)))
    assert (Metric.of(rows, 2).units == 1.0).all()


@pytest.mark.parametrize("C", [1.0, 100.0])
@pytest.mark.parametrize(
    "loss", ["hinge", "squared_hinge", "log_loss", "epsilon_insensitive", "weston_watkins"]
)
def test_mixed_tables_converge(loss: str, C: float, tmp_path: Path, monkeypatch: Any) -> None:
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    X, z = mixed()
    y = z if loss.startswith("epsilon") else (z > 0) + (z > 1) * (loss == "weston_watkins")
    store = make_store(tmp_path, X, y, dtype="float64")
    settings = {"loss": loss, "C": C, "max_passes": 40, "solver": "newton"}
    _, report = sbm.train(store, tmp_path / "m.model", settings)
    assert report["converged"]
    methods = {"squared_hinge": "conjugate gradients", "weston_watkins": "accelerated"}
    methods["log_loss"] = methods["squared_hinge"]
    assert report["solver"] == methods.get(loss, "method of multipliers")
    dual = report["dual"] * (1 - 1e-14)  # rounding
    assert dual <= report["primal"] <= dual + 1e-3 * report["primal"]
    if loss == "log_loss":
        oracle = LogisticRegression(C=C, fit_intercept=False, solver="newton-cholesky", tol=1e-9)
        w = oracle.fit(X, y > 0).coef_[0]
        s = np.where(y > 0, 1.0, -1.0)
        best = 0.5 * w @ w + C * np.logaddexp(0, -s * (X @ w)).sum()
        assert best * (1 - 1e-9) <= report["primal"] <= best * (1 + 2e-3)


@pytest.mark.parametrize("loss", ["hinge", "epsilon_insensitive"])
def test_multipliers_reach_the_optimum(loss: str, tmp_path: Path, monkeypatch: Any) -> None:
    """With a bias, rows of different weight and of no weight, beside an interior point method."""
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    X, z = mixed(600, 40)
    is_regression = loss.startswith("epsilon")
    store = make_store(tmp_path, X, z if is_regression else z > 0, dtype="float64")
    weights = tmp_path / "weights.txt"
    weights.write_text("".join(f"{k % 4}\n" for k in range(len(X))))
    settings = {"loss": loss, "bias": 1.0, "weights": str(weights), "solver": "newton"}
    settings |= {"epsilon": 0.2} if is_regression else {"class_weight": {1.0: 3.0}}
    settings |= {"C": 0.5, "tol": 1e-6, "max_passes": 100}
    _, peer = sbm.train(store, tmp_path / "i.model", settings)
    patch(monkeypatch, "MOST_FEATURES", 3)
    _, report = sbm.train(store, tmp_path / "m.model", settings)
    assert (peer["solver"], report["solver"]) == ("interior point", "method of multipliers")
    assert report["converged"]
    assert report["primal"] == pytest.approx(peer["primal"], rel=2e-6)


def test_numbers_beyond_rounding_end_without_a_traceback(tmp_path: Path, monkeypatch: Any) -> None:
    for name, value in (("MOST_WHOLE", 10**9), ("MOST_FEATURES", 3)):
        patch(monkeypatch, name, value)
    X, z = mixed(300, 40)
    X[:, 0] *= 1e25
    settings = {"solver": "newton", "max_passes": 5}
    model, report = sbm.train(make_store(tmp_path, X, z > 0), tmp_path / "m.model", settings)
    assert np.isfinite(model.W).all()
    assert 0 < report["relative_gap"] <= 1 + 1e-9


def test_frequent_columns_are_solved_exactly() -> None:
    """And the others, which few rows have, by the diagonal."""
    random = np.random.default_rng(0)
    X = np.abs(random.normal(5, 1, (400, 5)))
    X[3:, 3] = 0.0
    r, ridge, b = random.random(400), np.array([1.0, 1, 1, 1, 2]), random.normal(size=5)
    S = scipy.sparse.csr_array(X)
    rows = Rows(
        S.indptr[:-1].astype(np.int64), np.diff(S.indptr).astype(np.int32),
        S.indices.astype(np.int32), S.data, np.zeros(400, np.int32),
    )  # fmt: skip
    sums, diagonal = Sums(5, 0.0, map), np.zeros(5)
    sums.add_squares(rows, r, diagonal)
    assert diagonal == pytest.approx(r @ X**2)
    inverse = Preconditioner(sums, ridge)
    inverse.set([rows.part(0, 100), rows.part(100, 300)], [r[:100], r[100:]], diagonal)
    matrix = np.diag(ridge) + (X.T * r) @ X
    matrix[3, [0, 1, 2, 4]] = matrix[[0, 1, 2, 4], 3] = 0.0
    assert inverse.times(b, np.empty(5)) == pytest.approx(np.linalg.solve(matrix, b), rel=1e-9)


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_a_large_cost_has_larger_units_except_of_the_bias(bias: float) -> None:
    rows = rows_of(np.abs(np.random.default_rng(0).normal(1, 0.1, (50, 4))) * [1, 1, 3e4, 1])
    metric = Metric.of(rows, 4 + (bias > 0))
    for cost, factor in ((1.0, 1.0), (1e4, 16.0)):
        units = units_for(metric, [Problem(LOSSES["hinge"], cost, cost, 1, bias)])
        assert units is not None
        assert units[:4, 0].tolist() == [factor, factor, factor * 2**14, factor]
        assert units[4:, 0].tolist() == [1.0] * (bias > 0)


BLOCKS = {"parts": "drawn", "solver": "dual", "max_passes": 50}


@pytest.fixture
def parts(monkeypatch: Any) -> None:
    """Small parts, from which blocks are drawn."""
    patch(monkeypatch, "CHUNK_NNZ", 150)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    "more", [{}, {"bias": 1.0}, pytest.param({"C": 10.0}, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(
    "loss", ["hinge", "squared_hinge", "log_loss", "epsilon_insensitive", "crammer_singer"]
)
def test_mixed_tables_converge_over_blocks(loss: str, more: Any, tmp_path: Path) -> None:
    X, z = mixed()
    y = z if loss.startswith("epsilon") else (z > 0) + (z > 1) * (loss == "crammer_singer")
    store = make_store(tmp_path, X, y, blocks=6)
    settings = {"loss": loss, **BLOCKS, **more}
    _, report = sbm.train(store, tmp_path / "m.model", settings)
    assert report["converged"]
    assert report["blocks"] > 3
    assert report["dual"] <= report["primal"] <= report["dual"] + 1e-3 * report["primal"]


def test_mixed_tables_converge_in_ranks(tmp_path: Path, monkeypatch: Any) -> None:
    patch(monkeypatch, "CHUNK_NNZ", 1500)
    X, z = mixed(4000, 1200)
    store, path = make_store(tmp_path, X, z > 0, blocks=6), tmp_path / "m.model"
    settings = Settings(loss="log_loss", **BLOCKS)
    found = in_threads(2, lambda comm: train_ranks(comm, store, path, settings, TrainOptions()))
    assert found[0][1]["converged"]
    _, peer = sbm.train(store, tmp_path / "n.model", settings)
    assert found[0][1]["primal"] == pytest.approx(peer["primal"], rel=2e-3)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("more", [{}, {"bias": 1.0, "C": 2000.0, "max_passes": 4}], ids=str)
def test_certificate_is_of_the_weights_in_the_model(more: Any, tmp_path: Path) -> None:
    X, z = mixed()
    store = make_store(tmp_path, X, z > 0, blocks=6)
    settings = {**BLOCKS, **more}
    model, report = sbm.train(store, tmp_path / "m.model", settings)
    scores = model.decision_function(scipy.sparse.csr_array(np.pad(X, ((0, 0), (1, 0)))))
    norm = float((model.W**2).sum() + (model.bias_weights**2).sum())
    losses = np.maximum(0, 1 - np.where(z > 0, scores, -scores)).sum()
    primal = 0.5 * norm + settings.get("C", 1.0) * losses
    assert report["primal"] == pytest.approx(primal, rel=1e-6)
    assert report["dual"] <= report["primal"]


@pytest.mark.usefixtures("parts")
def test_rows_in_memory_are_left_as_they_were(tmp_path: Path) -> None:
    X, z = mixed(400)
    rows = scipy.sparse.csr_matrix(X)
    store = make_store(tmp_path, X, z > 0, blocks=4)
    settings = {"loss": "hinge", **BLOCKS}
    for data in (store, [(rows, (z > 0).astype(int))]):
        one, other = (
            sbm.train(data, tmp_path / "m.model", settings, resume=False)[0] for _ in range(2)
        )
        assert one.W.tobytes() == other.W.tobytes()


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("stop", [3, 17, 40])
def test_interrupted_blocks_go_on_to_the_same_bytes(
    stop: int, tmp_path: Path, monkeypatch: Any
) -> None:
    for name, value in (("COMMIT_SECONDS", 0.0), ("COMMIT_SHARE", 0.0)):
        patch(monkeypatch, name, value)
    X, z = mixed(600)
    store, path, calls = make_store(tmp_path, X, z > 0, blocks=4), tmp_path / "m.model", [0]
    settings = {**BLOCKS, "checkpoint_every": 0, "tol": 1e-4}
    sbm.train(store, path, settings)
    whole = path.read_bytes()

    def is_stopped() -> bool:
        calls[0] += 1
        return calls[0] > stop

    with pytest.raises(KeyboardInterrupt):
        sbm.train(store, path, settings, resume=False, is_stopped=is_stopped)
    assert sbm.train(store, path, settings)[1]["resumed"]
    assert path.read_bytes() == whole
    # From another C, alphas and weights are taken over.
    warm = {**settings, "C": 3.0, "warm_start": True}
    _, report = sbm.train(store, path, warm)
    assert report["converged"]
    other = sbm.train(store, tmp_path / "n.model", {**settings, "C": 3.0})[1]
    assert report["primal"] == pytest.approx(other["primal"], rel=3e-4)


def test_auto_finds_the_method_for_mixed_tables(tmp_path: Path, monkeypatch: Any) -> None:
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    X, z = mixed()
    store = make_store(tmp_path, X, z > 0, dtype="float64")
    _, report = sbm.train(store, tmp_path / "m.model", {"max_passes": 20})
    assert report["converged"]


def test_interrupted_training_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: Any) -> None:
    for name, value in (("MOST_WHOLE", 10**9), ("COMMIT_SECONDS", 0.0), ("COMMIT_SHARE", 0.0)):
        patch(monkeypatch, name, value)
    X, z = mixed()
    store, path, calls = make_store(tmp_path, X, z > 0), tmp_path / "m.model", [0]
    settings = {"solver": "newton", "C": 10.0, "checkpoint_every": 0, "tol": 1e-5}
    sbm.train(store, path, settings)
    whole = path.read_bytes()

    def is_stopped() -> bool:
        calls[0] += 1
        return calls[0] > 150

    with pytest.raises((KeyboardInterrupt, SbmError)):
        sbm.train(store, path, settings, resume=False, is_stopped=is_stopped)
    assert path.read_bytes() == whole
    assert sbm.train(store, path, settings)[1]["resumed"]
    assert path.read_bytes() == whole
