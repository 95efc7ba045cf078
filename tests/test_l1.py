"""Sparse models: optima, certificates, little memory, resuming, and what is refused."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from families import LABELS, make_store, row_losses
from helpers import full_weights, store_rows
from inside import (
    BlockStore,
    MemoryPlan,
    Progress,
    Run,
    SparseNewton,
    cli,
    first_charts,
    load,
    patch,
    path_charts,
    read_options,
    read_run,
)
from inside import engine_columns_module as columns
from inside import store_blocks_module as blocks
from inside import training_columns_module as l1
from inside import tuning_sparse_module as sparse
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.svm import LinearSVC

import sbm
from sbm.sklearn import SBMClassifier, SBMRegressor

Array = np.ndarray[Any, Any]
CASES = [
    (loss, labels, penalty)
    for loss, labels in (
        ("log_loss", 2), ("log_loss", 3), ("squared_hinge", 2), ("squared_hinge", 3),
        ("squared_error", 0),
    )
    for penalty in ("l1", "elasticnet")
]  # fmt: skip


def rows(labels: int, n: int = 150, features: int = 40, seed: int = 0) -> tuple[Array, Array]:
    """Return sparse rows whose labels or targets depend on a few features."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, features)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.6] = 0
    X[:, -8:] *= random.random((n, 8)) < 0.1  # rare features
    scores = X[:, :5] @ random.normal(size=(5, max(1, labels))) + 0.3
    scores += 0.3 * random.normal(size=scores.shape)
    if labels == 0:
        return X, np.round(scores[:, 0], 3)
    return X, np.array(LABELS[:labels])[
        scores.argmax(axis=1) if labels > 2 else (scores[:, 0] > 0) * 1
    ]


def primal(model: sbm.Model, X: Array, y: Array, weights: Array | None = None) -> float:
    """The objective by definition."""
    chosen = model.info["settings"]
    r = {"l1": 1.0, "elasticnet": chosen["l1_ratio"]}[chosen["penalty"]]
    W, b = full_weights(model, X.shape[1]), model.bias_weights
    value = 1.0 if chosen["intercept"] else chosen["bias"]
    each = row_losses(chosen["loss"], X @ W + value * b, y, model.labels)
    both = W if chosen["intercept"] else np.vstack([W, b[None, :]])
    penalty = r * np.abs(both).sum() + 0.5 * (1 - r) * (both**2).sum()
    return float(penalty + chosen["C"] * (each if weights is None else weights * each).sum())


def train(store: Path, **settings: Any) -> tuple[sbm.Model, dict[str, Any]]:
    """Train a model next to the store."""
    return sbm.train(store, store.with_suffix(".model"), settings, resume=False)


@pytest.mark.parametrize(("loss", "labels", "penalty"), CASES)
@pytest.mark.parametrize("bias", [{"bias": 0.0}, {"bias": 2.0}, {"intercept": True}])
def test_certificate_bounds_the_optimum(
    tmp_path: Path, loss: str, labels: int, penalty: str, bias: dict[str, Any]
) -> None:
    """The primal is the objective by definition, and the dual a bound on a better model's."""
    X, y = rows(labels)
    store = make_store(tmp_path, X, y, blocks=3)
    common = {"loss": loss, "penalty": penalty, "C": 0.5, **bias}
    model, rough = train(store, **common, tol=0.05)
    assert rough["primal"] == pytest.approx(primal(model, X, y), rel=1e-9)
    assert rough["relative_gap"] <= 0.05
    best, fine = train(store, **common, tol=1e-8)
    assert fine["converged"]
    assert primal(best, X, y) == pytest.approx(fine["primal"], rel=1e-9)
    for report in (rough, fine):
        assert report["dual"] <= fine["primal"] <= report["primal"] * (1 + 1e-12)
    assert fine["n_nonzero"] == np.count_nonzero(best.W) + np.count_nonzero(best.bias_weights)
    assert best.certificate["gap"] == fine["gap"]


@pytest.mark.parametrize(("loss", "labels"), [(loss, n) for loss, n, r in CASES if r == "l1"])
@pytest.mark.parametrize("bias", [{"bias": 2.0}, {"intercept": True}])
def test_screened_features_are_0_at_the_optimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, labels: int, bias: dict[str, Any]
) -> None:
    """The bound of a gradient is one for the optimum, after every pass."""
    found: list[tuple[Array, Array]] = []
    screen = l1.ColumnSteps._screen

    def watched(steps: l1.ColumnSteps) -> None:
        screen(steps)
        fits = steps.reads.fits
        found.append((steps.reach.copy(), np.max([np.abs(fit.g) for fit in fits], axis=0)))

    monkeypatch.setattr(l1.ColumnSteps, "_screen", watched)
    patch(monkeypatch, "_WITHIN", 1e5)  # several passes
    patch(monkeypatch, "_SHRINK", 0.01)
    store = make_store(tmp_path, *rows(labels), blocks=3)
    _, report = train(store, loss=loss, penalty="l1", C=0.2, tol=1e-9, **bias)
    assert report["converged"]
    assert len(found) > 3
    last = found[-1][1]
    for reach, _ in found:
        assert (reach >= last - 1e-4).all()
    assert all((a >= b).all() for (a, _), (b, _) in pairwise(found))
    assert (found[-1][0] < 1).sum() > 5


def test_optima_are_those_of_scikit_learn(tmp_path: Path) -> None:
    """The weights are those of LIBLINEAR, saga and coordinate descent."""
    X, y = rows(2)
    store = make_store(tmp_path, X, y)
    exact = {"penalty": "l1", "tol": 1e-10}
    options = {"fit_intercept": False, "tol": 1e-6, "max_iter": 100000, "C": 0.5}
    pairs = [
        ({**exact, "loss": "log_loss"},
         LogisticRegression(l1_ratio=1, solver="liblinear", **options)),
        ({**exact, "loss": "squared_hinge"}, LinearSVC(penalty="l1", dual=False, **options)),
        ({**exact, "loss": "log_loss", "penalty": "elasticnet", "l1_ratio": 0.3},
         LogisticRegression(solver="saga", l1_ratio=0.3, **options)),
    ]  # fmt: skip
    for settings, other in pairs:
        model, report = train(store, C=0.5, **settings)
        theirs = other.fit(X, y).coef_[0]
        ours = full_weights(model, X.shape[1])[:, 0]
        np.testing.assert_allclose(ours, theirs, atol=2e-4)
        assert report["n_nonzero"] < X.shape[1] - 5
    other = LogisticRegression(solver="saga", l1_ratio=1, C=0.5, tol=1e-10, max_iter=100000)
    model, _ = train(store, C=0.5, loss="log_loss", intercept=True, **exact)
    theirs = other.fit(X, y)
    np.testing.assert_allclose(full_weights(model, X.shape[1])[:, 0], theirs.coef_[0], atol=1e-6)
    np.testing.assert_allclose(model.bias_weights, theirs.intercept_, atol=1e-6)
    X, y = rows(0)
    store, n = make_store(tmp_path, X, y, "r"), len(X)
    for settings, other in (
        ({"penalty": "l1"}, Lasso(alpha=1 / (2 * n * 0.1), fit_intercept=False, tol=1e-12)),
        ({"penalty": "elasticnet", "l1_ratio": 0.4},
         ElasticNet(alpha=1 / (2 * n * 0.1), l1_ratio=0.4, fit_intercept=False, tol=1e-12)),
    ):  # fmt: skip
        model, _ = train(store, loss="squared_error", C=0.1, tol=1e-10, **settings)
        ours = full_weights(model, X.shape[1])[:, 0]
        np.testing.assert_allclose(ours, other.fit(X, y).coef_, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"loss": "squared_hinge"}, {"loss": "log_loss", "intercept": True},
     {"loss": "log_loss", "penalty": "elasticnet", "l1_ratio": 0.5}],
)  # fmt: skip
def test_products_of_columns_save_visits_where_columns_are_alike(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows(2, n=400)
    X[:, 5:] = (X[:, :1] + 0.02 * X[:, 5:]).astype(np.float32)
    store = make_store(tmp_path, X, y)
    given = {"penalty": "l1", "C": 30.0, "tol": 1e-6, **settings}
    model, report = train(store, **given)
    patch(monkeypatch, "MOST_GRAM", 0)
    slow, other = train(store, **given)
    assert report["converged"]
    assert report["visits"] < other["visits"]
    assert primal(model, X, y) == pytest.approx(report["primal"], rel=1e-9)
    assert primal(model, X, y) <= primal(slow, X, y) * (1 + 1e-6)


@pytest.mark.parametrize(("bias", "ones"), [({"bias": 1.0}, True), ({"intercept": True}, False)])
def test_rows_beyond_their_margin_save_visits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bias: dict[str, Any], ones: bool
) -> None:
    X, _ = rows(2, n=600)
    X = np.where(X > 0, 1.0, 0.0) if ones else X
    y = np.array(LABELS)[(X[:, :5].sum(axis=1) > 0.5).astype(int)]
    store = make_store(tmp_path, X, y)
    given = {"penalty": "l1", "loss": "squared_hinge", "C": 10.0, "tol": 1e-6, **bias}
    model, report = train(store, **given)
    patch(monkeypatch, "_short_nonzeros", lambda store: 0)
    _, other = train(store, **given)
    assert report["converged"]
    assert report["visits"] < 0.9 * other["visits"]
    assert primal(model, X, y) == pytest.approx(report["primal"], rel=1e-9)
    assert report["primal"] == pytest.approx(other["primal"], rel=1e-6)
    # Copies that do not fit are not used.
    patch(monkeypatch, "_short_nonzeros", lambda store: 50)
    _, little = train(store, **given)
    assert little["visits"] == other["visits"]


def test_conjugate_steps_grow_while_they_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, n, words = np.random.default_rng(4), 300, 200
    topics = random.dirichlet(np.full(words, 0.05), 12)
    mix = random.dirichlet(np.full(12, 0.3), n)
    X = random.poisson((mix @ topics) * random.lognormal(5, 1, (n, 1))).astype(np.float32)
    share = mix[:, :4].sum(axis=1)
    store = make_store(tmp_path, X, (share > np.median(share)).astype(float))
    conjugate, most = SparseNewton._conjugate, list[int]()

    def noted(self: SparseNewton) -> float:
        most.append(self._most)
        return conjugate(self)

    monkeypatch.setattr(SparseNewton, "_conjugate", noted)
    patch(monkeypatch, "MOST_GRAM", 0)
    _, report = train(store, tol=1e-3, penalty="l1", loss="squared_hinge")
    assert report["converged"]
    assert {*most} == {15, 30, 60}
    assert all(b in (2 * a, a // 2) or a == b in (15, 60) for a, b in pairwise(most))
    assert any(b < a for a, b in pairwise(most))


def test_estimators_take_the_penalty(tmp_path: Path) -> None:
    X, y = rows(3)
    model, _ = train(make_store(tmp_path, X, y), loss="log_loss", penalty="l1", bias=1.0, tol=1e-8)
    options = {"penalty": "l1", "tol": 1e-8}
    found = SBMClassifier("log_loss", **options).fit(X, y, sample_weight=np.ones(len(y)))
    np.testing.assert_allclose(found.coef_.T, full_weights(model, X.shape[1]), atol=1e-4)
    lasso = SBMRegressor("squared_error", C=0.05, **options).fit(*rows(0))
    assert 0 < np.count_nonzero(lasso.coef_) < 20
    with pytest.raises(AttributeError, match="partial_fit"):
        SBMRegressor("squared_error", **options).partial_fit(*rows(0))


def test_weights_and_class_weights_multiply_the_cost(tmp_path: Path) -> None:
    X, y = rows(2)
    store = make_store(tmp_path, X, y, blocks=3)
    weights = np.random.default_rng(1).integers(0, 3, len(y))
    (tmp_path / "w.txt").write_text("".join(f"{w}\n" for w in weights))
    model, report = train(
        store, loss="log_loss", penalty="l1", tol=1e-9, weights=str(tmp_path / "w.txt"),
        class_weight={LABELS[0]: 2.0},
    )  # fmt: skip
    both = weights * np.where(y == LABELS[0], 2.0, 1.0)
    assert report["primal"] == pytest.approx(primal(model, X, y, both), rel=1e-9)
    assert report["converged"]


QUARTER = 250_000  # bytes, of the columns of this store


def wide(tmp_path: Path) -> Path:
    """Return a store with many more features than fit a small room for columns."""
    random = np.random.default_rng(3)
    X = (random.random((400, 3000)) < 0.05) * random.normal(size=(400, 3000)).round(2)
    y = np.where(X[:, :40] @ random.normal(size=40) > 0, 1.0, -1.0)
    return make_store(tmp_path, X, y, blocks=4)


@pytest.mark.parametrize("intercept", [False, True])
def test_features_take_turns_if_memory_is_small(tmp_path: Path, intercept: bool) -> None:
    store = wide(tmp_path)
    settings = {"loss": "log_loss", "penalty": "l1", "C": 3.0, "tol": 1e-4}
    settings |= {"intercept": intercept}
    with pytest.raises(sbm.MemoryPlanError) as refusal:
        train(store, **settings, mem="10MB")
    assert "margins" in str(refusal.value)
    _, all_at_once = train(store, **settings)
    model, in_turns = train(store, **settings, mem=refusal.value.least_bytes + QUARTER)
    assert in_turns["converged"]
    assert in_turns["passes"] > all_at_once["passes"] == 3
    assert in_turns["primal"] == pytest.approx(all_at_once["primal"], rel=2e-4)
    assert in_turns["dual"] <= all_at_once["primal"]
    assert in_turns["n_nonzero"] == len(model.compact().ids) + intercept
    # Columns come first; blocks stay decoded in what they leave.
    assert (all_at_once["decoded_share"], in_turns["decoded_share"]) == (1, 0)
    assert in_turns["bytes_read"] == in_turns["passes"] * all_at_once["bytes_read"]


@pytest.mark.parametrize("stay", [0, 2, 4])
def test_text_gives_the_model_of_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stay: int
) -> None:
    """Also if only the first blocks stay decoded, and the others are read in each pass."""
    store, path = wide(tmp_path), tmp_path / "t.model"
    train(store, loss="log_loss", penalty="l1", C=3.0)
    read: list[int] = []
    decode = blocks.decode_rows
    patch(monkeypatch, "decode_rows", lambda *a: (read.append(1), decode(*a)))
    monkeypatch.setattr(MemoryPlan, "staying", lambda self, own, reserved=0: list(own)[:stay])
    words = ["--loss", "log_loss", "--penalty", "l1", "-C", "3", "--blocks", "4", "-o", str(path)]
    done = CliRunner().invoke(cli, ["train", str(store.with_suffix(".svm")), *words])
    assert done.exit_code == 0, done.output
    assert f"{25 * stay} % of the rows stayed in memory" in done.output
    assert path.read_bytes() == store.with_suffix(".model").read_bytes()
    # One chunk a block, three passes; and one for the frequencies of features.
    assert len(read) == 3 * (4 - stay) + (stay == 0)


@pytest.mark.parametrize("small", [False, True])
def test_resume_and_threads_give_the_same_bytes(tmp_path: Path, small: bool) -> None:
    store = wide(tmp_path)
    settings = {"loss": "log_loss", "penalty": "l1", "C": 3.0, "tol": 1e-3, "threads": 1}
    settings |= {"intercept": small}
    if small:
        with pytest.raises(sbm.MemoryPlanError) as refusal:
            train(store, **settings, mem="10MB")
        settings["mem"] = refusal.value.least_bytes + QUARTER
    train(store, **settings)
    whole = store.with_suffix(".model").read_bytes()
    train(store, **(settings | {"threads": 3}))
    assert store.with_suffix(".model").read_bytes() == whole
    for most in (2, 5, 9, 14, 40):
        path = tmp_path / f"{most}.model"
        calls = []

        def is_stopped(most: int = most, calls: list[int] = calls) -> bool:
            calls.append(1)
            return len(calls) == most

        try:
            sbm.train(store, path, settings, is_stopped=is_stopped)
        except KeyboardInterrupt:
            sbm.train(store, path, settings)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("values", [None, np.array([2.0, -3.0], np.float32)])
def test_packed_columns_have_the_same_rows(values: Array | None) -> None:
    numbers = [[0, 1, 128, 16_511, 16_512, 2_200_000], [3, 130, 2_113_666]]
    kernels, indices = load("sbm.solver.kernels.l1"), np.arange(2, dtype=np.int32)
    sizes, last = columns.FeatureSizes.of(2), np.zeros(2, np.int32)
    found = sorted((row, j) for j, rows in enumerate(numbers) for row in rows)
    blocks = [
        (np.array([j]), np.ones(1, np.int32), indices, values, row) for row, j in found
    ]  # fmt: skip
    for *rows, row in blocks:
        kernels.count(*rows, 0.0, row, sizes.counts, sizes.squares, sizes.packed, last)
    assert sizes.packed.tolist() == [1 + 1 + 1 + 2 + 1 + 4, 1 + 1 + 4]
    starts = np.concatenate([[0], np.cumsum(sizes.counts)])
    places = np.array([0, sizes.packed[0]])
    packed, last[:] = np.empty(sizes.packed.sum(), np.uint8), 0
    kept = None if values is None else np.empty(starts[-1], np.float32)
    ends, at = starts[:-1].copy(), places.copy()
    for *rows, row in blocks:
        kernels.collect(*rows, row, indices, ends, at, last, packed, kept)
    assert (ends.tolist(), at.tolist()) == (starts[1:].tolist(), sizes.packed.cumsum().tolist())
    out = np.empty(max(map(max, numbers)) + 1)
    kernels.multiply(
        starts, packed, places, kept, -1, 0.0, indices, np.array([5.0, 7.0]), out
    )  # fmt: skip
    each = np.array([5.0, 7.0]) * (1 if values is None else values)
    expected = {row: each[j] for row, j in found}
    assert {int(i): out[i] for i in np.flatnonzero(out)} == expected


@pytest.mark.parametrize("call", [2, 4])
def test_memory_error_continues_with_fewer_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The state of the last checkpoint is kept, although its columns no longer fit."""
    patch(monkeypatch, "_CLOSE", 0)
    store, read, calls = wide(tmp_path), columns.ColumnPasses.read, []

    def fail_once(self: columns.ColumnPasses, what: str, *args: Any, **options: Any) -> int:
        calls.append(what)
        if len(calls) == call:
            raise MemoryError
        return read(self, what, *args, **options)

    settings = {"loss": "log_loss", "penalty": "l1", "C": 3.0, "tol": 1e-4}
    with pytest.raises(sbm.MemoryPlanError) as refusal:
        train(store, **settings, mem="10MB")
    settings["mem"] = refusal.value.least_bytes + QUARTER
    _, whole = train(store, **settings)
    monkeypatch.setattr(columns.ColumnPasses, "read", fail_once)
    _, report = train(store, **settings)
    assert calls[call - 1] == calls[call] == f"pass {call}"
    assert report["converged"]
    assert report["primal"] == pytest.approx(whole["primal"], rel=2e-4)
    assert Run.read(store.with_suffix(".model.run"))["bound"] < settings["mem"]


def test_plan_is_that_of_the_training(tmp_path: Path) -> None:
    store = wide(tmp_path)
    with pytest.raises(sbm.MemoryPlanError) as refusal:
        train(store, loss="log_loss", penalty="l1", mem="10MB")
    for mem, penalty in ((10**9, "elasticnet"), (refusal.value.least_bytes + QUARTER, "l1")):
        settings = {"loss": "log_loss", "penalty": penalty, "C": 3.0, "mem": mem}
        plan, (_, report) = sbm.plan(store, settings), train(store, **settings)
        assert plan["memory"]["columns"] > 0
        assert plan["decoded_share"] == report["decoded_share"]
    with pytest.raises(sbm.SettingsError, match=r"^cache_frac"):
        sbm.plan(store, {**settings, "cache_frac": 0.1})


def test_charts_show_the_weights_that_are_not_0(tmp_path: Path) -> None:
    _, report = train(wide(tmp_path), loss="log_loss", penalty="l1", C=3.0)
    run = read_run(tmp_path / "d.model")
    chart = next(c for c in first_charts([run]) if c.name.startswith("weights"))
    (line,) = chart.series
    assert [y for _, y in line.points] == [0, *[report["n_nonzero"]] * 2]
    rows = [
        {"C": C, "mean": 0.5, "folds": [0.5], "status": "converged", **more}
        for C, more in ((0.1, {"n_nonzero": 0.0, "relative_gap": 0.0}),
                        (1.0, {"n_nonzero": 7.5, "relative_gap": 1e-4}))
    ]  # fmt: skip
    drawn = {chart.name: chart.series[0].points for chart in path_charts(rows)}
    assert drawn == {"n_nonzero": [(1.0, 7.5)], "relative_gap": [(1.0, 1e-4)]}
    assert list(path_charts([{k: v for k, v in rows[1].items() if k != "n_nonzero"}])) == []


def test_max_passes_can_be_raised(tmp_path: Path) -> None:
    X, y = rows(2)
    store, settings = make_store(tmp_path, X, y), {"loss": "log_loss", "penalty": "l1"}
    path = tmp_path / "m.model"
    _, report = sbm.train(store, path, {**settings, "max_passes": 2})
    assert not report["converged"]
    assert report["n_nonzero"] == 0
    _, report = sbm.train(store, path, {**settings, "max_passes": 9})
    assert report["converged"]


def test_warm_start_uses_the_weights(tmp_path: Path) -> None:
    X, y = rows(2)
    store = make_store(tmp_path, X, y, blocks=2)
    path = tmp_path / "m.model"
    settings = {"loss": "log_loss", "penalty": "l1", "intercept": True}
    _, cold = sbm.train(store, path, settings)
    more, labels = rows(2, n=60, features=44, seed=5)
    make_store(tmp_path, more, labels, "e")
    sbm.split([tmp_path / "e.svm"], store, append=True)
    model, warm = sbm.train(store, path, {**settings, "warm_start": True, "tol": 1e-9})
    assert warm["converged"]
    X = np.vstack([np.pad(X, ((0, 0), (0, 4))), more])
    assert warm["primal"] == pytest.approx(primal(model, X, np.append(y, labels)), rel=1e-9)
    _, again = sbm.train(store, path, {**settings, "warm_start": True})
    assert again["passes"] == 1
    assert cold["passes"] == 3
    make_store(tmp_path, more, np.where(np.arange(60) % 3, labels, 9.0), "f")
    sbm.split([tmp_path / "f.svm"], store, append=True, new_labels=True)
    with pytest.raises(sbm.SettingsError, match=r"without the label 9, .* f.svm"):
        sbm.train(store, path, {**settings, "warm_start": True})
    other = make_store(tmp_path, more, labels, force=True)
    with pytest.raises(sbm.StoreError, match="other data"):
        sbm.train(other, path, {**settings, "C": 2.0, "warm_start": True})


@pytest.mark.parametrize("intercept", [False, True])
def test_small_C_reports_the_least_that_gives_weights(tmp_path: Path, intercept: bool) -> None:
    X, y = rows(2)
    store = make_store(tmp_path, X, y)
    said: list[str] = []

    class Notes(Progress):
        def stage(self, text: str) -> None:
            said.append(text)

    settings = {"loss": "log_loss", "penalty": "l1", "C": 1e-4, "intercept": intercept}
    _, report = sbm.train(store, tmp_path / "m.model", settings, progress=Notes())
    assert report["n_nonzero"] == intercept
    assert report["relative_gap"] < 1e-12
    least = float(said[-1].split()[-1])
    is_positive = y == max(y)
    errors = is_positive - (is_positive.mean() if intercept else 0.5)
    assert least == pytest.approx(1 / np.abs(X.T @ errors).max(), rel=1e-5)
    for factor, nonzero in ((0.999, False), (1.01, True)):
        _, report = train(store, **{**settings, "C": factor * least, "tol": 1e-9})
        assert (report["n_nonzero"] > intercept) == nonzero


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "hinge", "penalty": "l1"}, "penalty hinge log_loss"),
        ({"l1_ratio": 0.2, "penalty": "l1"}, "l1_ratio elasticnet"),
        ({"l1_ratio": 1.5, "penalty": "elasticnet"}, "l1_ratio 1.5"),
        ({"penalty": "l3"}, "penalty l3 elasticnet"),
        ({"penalty": "l1", "loss": "squared_hinge", "calibrate": True}, "calibrate l1"),
    ],
)  # fmt: skip
def test_settings_that_do_not_apply_are_refused(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    X, y = rows(2)
    store = make_store(tmp_path, X, y)
    with pytest.raises(sbm.SettingsError) as refusal:
        train(store, **{"loss": "log_loss", **settings})
    assert all(word in str(refusal.value) for word in words.split())


@pytest.mark.parametrize(
    ("loss", "labels", "penalty", "bias"),
    [
        ("log_loss", 2, "l1", {"bias": 1.0}),
        ("squared_hinge", 3, "elasticnet", {"bias": 1.0}),
        ("log_loss", 2, "elasticnet", {"intercept": True}),
    ],
)
def test_tune_walks_the_path(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loss: str,
    labels: int,
    penalty: str,
    bias: dict[str, Any],
) -> None:
    """Every fold's model is that of its other rows, whatever the weights it started from."""
    X, y = rows(labels, n=300)
    store, Cs, n = make_store(tmp_path, X, y, blocks=3), [0.03, 0.3, 3.0], 3
    settings = {"loss": loss, "penalty": penalty, "tol": 1e-8, **bias}
    made: list[sparse.SparseCrossValidation] = []
    facts = sparse.SparseCrossValidation.facts
    monkeypatch.setattr(
        sparse.SparseCrossValidation, "facts", lambda x: (made.append(x), facts(x))[1]
    )
    _, report = sbm.tune(store, tmp_path / "t.model", settings, Cs=Cs, folds=n)
    assert [row["status"] for row in report["settings"]] == ["converged"] * 3
    if labels == 2:
        assert report["passes"] == 5  # count, collect, and one for each C
    counts = [row["n_nonzero"] for row in report["settings"]]
    assert counts == sorted(counts)
    stored = [row for block in store_rows(store) for row in block]
    known = sorted({label for label, _ in stored}, key=BlockStore(store).labels.index)
    for fold, mine in enumerate(made[0].models):
        out = made[0].reads.folds == fold
        learned = [row for row, is_out in zip(stored, out, strict=True) if not is_out]
        part = np.zeros((len(learned), X.shape[1]))
        for i, (_, pairs) in enumerate(learned):
            for j, value in pairs:
                part[i, j - 1] = value
        other = make_store(tmp_path, part, np.array([label for label, _ in learned]), f"f{fold}")
        _, alone = train(other, **settings, C=Cs[-1])
        assert sum(fit.primal for fit in mine) == pytest.approx(alone["primal"], rel=1e-6)
        Z = np.stack([fit.z for fit in mine], axis=1)[out]
        found = Z.argmax(axis=1)
        if labels == 2:
            found = np.where(Z[:, 0] > 0, mine[0].problem.positive, 1 - mine[0].problem.positive)
        right = np.array(known)[found] == [row[0] for row, k in zip(stored, out, strict=True) if k]
        assert report["settings"][-1]["folds"][fold] == pytest.approx(right.mean())


def test_interrupted_tuning_resumes_at_any_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, settings = wide(tmp_path), {"loss": "log_loss", "penalty": "l1"}
    options = {"Cs": [0.1, 1.0, 10.0], "folds": 3}
    patch(monkeypatch, "_WITHIN", 1e5)  # several passes
    patch(monkeypatch, "_SHRINK", 0.01)
    _, whole = sbm.tune(store, tmp_path / "w.model", settings, **options)
    assert whole["passes"] > 5
    read, calls = columns.ColumnPasses.read, []

    def stop(self: columns.ColumnPasses, what: str, *more: Any, **how: Any) -> None:
        calls.append(what)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        read(self, what, *more, **how)

    monkeypatch.setattr(columns.ColumnPasses, "read", stop)
    for stop_at in range(2, whole["passes"] + 1):
        calls.clear()
        path = tmp_path / f"{stop_at}.model"
        with pytest.raises(KeyboardInterrupt):
            sbm.tune(store, path, settings, **options)
        _, report = sbm.tune(store, path, settings, **options)
        assert calls[stop_at - 1] == calls[stop_at] == f"pass {stop_at}"
        for name in ("folds", "passes", "relative_gap", "n_nonzero", "status"):
            assert [row[name] for row in report["settings"]] == [
                row[name] for row in whole["settings"]
            ], name
        assert path.read_bytes() == (tmp_path / "w.model").read_bytes()


def test_liblinear_numbers_choose_the_penalty() -> None:
    assert read_options({"-s": 6}, {}) == {"loss": "log_loss", "penalty": "l1"}
    assert read_options({"-s": 5, "-e": 0.01}, {}) == {
        "loss": "squared_hinge", "penalty": "l1", "tol": 1e-3
    }  # fmt: skip


def test_time_limit_ends_with_a_certified_model(tmp_path: Path) -> None:
    store = wide(tmp_path)
    model, report = train(store, loss="log_loss", penalty="l1", C=3.0, tol=1e-12, time_limit=1e-6)
    assert report["passes"] == 1
    assert not report["converged"]
    assert model.certificate["primal"] == pytest.approx(3.0 * 400 * np.log(2))
