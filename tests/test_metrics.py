"""Metrics compared with scikit-learn: exact, in batches and by histogram."""

import json
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inside import BinaryMetrics, MultiMetrics, ProbabilityMetrics, RegressionMetrics, patch
from sklearn import metrics as reference

TWO, FIVE = (3.0, 7.0), (-2.5, 0.0, 1.0, 40.0, 1e6)
UNKNOWN = 0.5


def collect(metrics, *columns, batches=1):
    for part in zip(*(np.array_split(c, batches) for c in columns), strict=True):
        metrics.add(*part)
    found = metrics.result()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def check_classes(found, y, predicted, labels):
    """Compare with scikit-learn, which takes no labels like -2.5: codes stand for them."""
    known = [*labels, UNKNOWN]
    true, guess = ([known.index(v) for v in values.tolist()] for values in (y, predicted))
    n = len(labels)
    figures = reference.precision_recall_fscore_support(
        true, guess, labels=range(n), zero_division=0
    )
    for k, row in enumerate(found["classes"]):
        assert (row["label"], row["predicted"]) == (labels[k], guess.count(k))
        for name, values in zip(("precision", "recall", "f1", "support"), figures, strict=True):
            assert (row[name] or 0) == pytest.approx(values[k], abs=1e-15), name
        assert (row["precision"] is None) == (k not in guess)
        assert (row["recall"] is None) == (k not in true)
    assert found["rows"] == len(true)
    assert found["correct"] == sum(a == b for a, b in zip(true, guess, strict=True))
    assert found["accuracy"] == found["correct"] / len(true)
    assert found["unknown_labels"] == true.count(n)
    return true, guess


# -------------------------------------------------------------------------------------- two classes


def score(y, scores, labels=TWO, batches=1):
    return collect(BinaryMetrics(list(labels)), np.asarray(y), np.asarray(scores), batches=batches)


def make_scores(n, decimals=None, seed=0):
    random = np.random.default_rng(seed)
    y = random.choice([*TWO, UNKNOWN], n, p=[0.6, 0.3, 0.1])
    scores = random.standard_normal(n) + 0.8 * (y == TWO[1]) - 0.5
    return y, scores if decimals is None else np.round(scores, decimals)


@pytest.mark.parametrize(("n", "decimals"), [(7, None), (7, 0), (1000, None), (1000, 1)])
@pytest.mark.parametrize("batches", [1, 17])
def test_binary_metrics_match_sklearn(n, decimals, batches):
    y, scores = make_scores(n, decimals)
    found = score(y, scores, batches=batches)
    true, guess = check_classes(found, y, np.where(scores > 0, TWO[1], TWO[0]), TWO)
    matrix = reference.confusion_matrix(true, guess, labels=[0, 1, 2])
    assert found["confusion"] == matrix[:2, :2].tolist()
    known = y != UNKNOWN
    auc = reference.roc_auc_score(y[known] == TWO[1], scores[known])
    assert found["auc"] == pytest.approx(auc, abs=1e-12)
    assert found["auc_exact"] is True
    precision = reference.average_precision_score(y[known] == TWO[1], scores[known])
    assert found["pr_auc"] == pytest.approx(precision, abs=1e-12)


@given(hnp.arrays(np.int8, st.integers(0, 40), elements=st.integers(0, 2)), st.data())
def test_auc_is_the_share_of_ordered_pairs(codes, data):
    y = np.array([*TWO, UNKNOWN])[codes]
    levels = st.sampled_from([-2.0, -0.5, 0.0, 0.5, 3.0])
    scores = data.draw(hnp.arrays(np.float64, len(y), elements=levels))
    below = np.subtract.outer(scores[y == TWO[1]], scores[y == TWO[0]])
    expected = np.mean((np.sign(below) + 1) / 2) if below.size else None
    assert score(y, scores)["auc"] == (expected and pytest.approx(expected, abs=1e-12))


@pytest.mark.parametrize(("decimals", "scale"), [(None, 1.0), (2, 1e-20), (0, 1e20)])
def test_histogram_auc_is_close(monkeypatch, decimals, scale):
    y, scores = make_scores(5000, decimals, seed=2)
    exact = score(y, scores * scale)
    patch(monkeypatch, "_EXACT_ROWS", 600)
    found = score(y, scores * scale, batches=10)  # the first batch is still kept, then folded
    assert found["auc_exact"] is False
    assert found["auc"] == pytest.approx(exact["auc"], abs=1e-3)
    assert found["pr_auc"] == pytest.approx(exact["pr_auc"], abs=1e-3)
    some = {"auc": 0, "auc_exact": 0, "pr_auc": 0}
    assert {**found, **some} == {**exact, **some}


def test_histogram_orders_extreme_scores(monkeypatch):
    patch(monkeypatch, "_EXACT_ROWS", 0)
    y = np.repeat(TWO, 4)
    scores = [-1e300, -2.0, -1e-30, -0.0, 0.0, 1e-30, 2.0, 1e300]
    assert score(y, scores)["auc"] == (16 - 0.5) / 16  # -0.0 and 0.0 tie
    assert score(y[::-1], scores)["auc"] == 0.5 / 16
    close = 1 + np.arange(8) / 1000
    for scale in (1.0, 1e-9, 1e9):
        assert score(y, scale * close)["auc"] == score(y[::-1], -scale * close)["auc"] == 1.0


@pytest.mark.parametrize("limit", [100, 0])
def test_binary_metrics_without_rows_of_a_class(monkeypatch, limit):
    patch(monkeypatch, "_EXACT_ROWS", limit)
    for label in TWO:
        assert score(np.full(4, label), [-1.0, 2.0, -3.0, 4.0])["auc"] is None
    empty = score([], [])
    assert (empty["rows"], empty["auc"], empty["pr_auc"]) == (0, None, None)
    assert score([3.0, 7.0, 3.0], [0.0, 0.0, -0.0])["confusion"] == [[2, 0], [1, 0]]
    assert "auc" in BinaryMetrics([0.0, 1.0], auc=False).result()


def test_auc_memory_is_planned():
    n = 200_000
    y, scores = make_scores(n)
    tracemalloc.start()
    try:
        several = [BinaryMetrics(list(TWO)) for _ in range(3)]
        for one in several:
            one.add(y, scores)
        several[0].result()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.8 < peak / BinaryMetrics.bytes_for(n, 3) <= 1
    most = BinaryMetrics.bytes_for(10**9, 3)  # a histogram each, and one read out at a time
    assert most == BinaryMetrics.bytes_for(10**7, 3) == 3 * 16 * 2**20 + 58 * 10**6


# ---------------------------------------------------------------------------------- several classes

PAIR_COUNTERS = pytest.mark.parametrize("dense", [2000, 0], ids=["dense", "sparse"])


def score_multi(y, codes, labels=FIVE, batches=1):
    return collect(MultiMetrics(list(labels), codes.shape[1]), y, codes, batches=batches)


def rank(n, n_classes, top=1, seed=0):
    """True codes (of which some never occur), and predictions, the best first."""
    random = np.random.default_rng(seed)
    truth = random.choice(n_classes, n, p=random.dirichlet(np.full(n_classes, 0.5)))
    order = np.argsort(random.random((n, n_classes)), axis=1)
    right = random.random(n) < 0.6
    order[right] = (order[right] + (truth[right] - order[right, 0])[:, np.newaxis]) % n_classes
    return truth, order[:, :top].astype(np.int32)


def check_multi(found, y, predicted, labels):
    true, guess = check_classes(found, y, predicted, labels)
    seen = [k for k in range(len(labels)) if k in true or k in guess]
    for average in ("macro", "micro"):
        expected = reference.f1_score(true, guess, labels=seen, average=average, zero_division=0)
        assert found[f"{average}_f1"] == pytest.approx(expected, abs=1e-12), average
    triples = {}
    for pair in sorted(zip(true, guess, strict=True)):
        triples[pair] = triples.get(pair, 0) + 1
    names = [*labels, None]
    assert found["confusion"] == [[names[t], names[p], n] for (t, p), n in triples.items()]


@PAIR_COUNTERS
@pytest.mark.parametrize(("n", "n_classes"), [(1, 5), (1000, 5), (1000, 60)])
@pytest.mark.parametrize("batches", [1, 17])
def test_multi_metrics_match_sklearn(monkeypatch, dense, n, n_classes, batches):
    patch(monkeypatch, "_DENSE_CLASSES", dense)
    patch(monkeypatch, "_PENDING", 100)
    labels = FIVE if n_classes == 5 else tuple(map(float, range(n_classes)))
    truth, codes = rank(n, n_classes, 2)
    y = np.where(np.arange(n) % 9 == 5, UNKNOWN, np.array(labels)[truth])
    found = score_multi(y, codes, labels, batches)
    check_multi(found, y, np.array(labels)[codes[:, 0]], labels)
    hits = (np.array(labels)[codes] == y[:, np.newaxis]).any(axis=1)
    assert (found["top_n"], found["top_accuracy"]) == (2, hits.mean())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=60))
def test_multi_averages_match_sklearn_for_any_labels(pairs):
    y = np.array([*FIVE, UNKNOWN])[[t for t, _ in pairs]]
    codes = np.array([[p] for _, p in pairs], np.int32)
    check_multi(score_multi(y, codes), y, np.array(FIVE)[codes[:, 0]], FIVE)


@PAIR_COUNTERS
def test_multi_metrics_without_known_labels(monkeypatch, dense):
    patch(monkeypatch, "_DENSE_CLASSES", dense)
    found = score_multi(np.full(3, 9.5), np.zeros((3, 1), np.int32))
    assert (found["accuracy"], found["macro_f1"], found["micro_f1"]) == (0.0, 0.0, 0.0)
    assert found["confusion"] == [[None, -2.5, 3]]
    empty = MultiMetrics(list(FIVE)).result()
    names = ("accuracy", "macro_f1", "micro_f1", "top_accuracy")
    assert [empty[name] for name in names] == [None] * 4


def test_many_classes_use_memory_per_pair():
    n, rows = 30_000, 60_000
    labels = (np.arange(n) * 1.5).tolist()
    truth = np.arange(rows) * 7919 % n
    codes = np.where(truth % 3 == 0, truth, truth // 2).astype(np.int32)[:, np.newaxis]
    tracemalloc.start()
    try:
        collected = MultiMetrics(labels)
        for begin in range(0, rows, 10_000):
            part = slice(begin, begin + 10_000)
            collected.add(np.array(labels)[truth[part]], codes[part])
        found = collected.confusion()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 15e6  # an array of all pairs would take 7.2 GB
    assert found.correct == np.count_nonzero(codes[:, 0] == truth)


# --------------------------------------------------------------------------------------- regression


def judge(y, scores, batches=1):
    return collect(RegressionMetrics(), np.asarray(y), np.asarray(scores), batches=batches)


def exact_figures(y, scores):
    """Return the metrics in rational numbers; the correlation by LIBLINEAR's formula."""
    y, z = [Fraction(v) for v in y.tolist()], [Fraction(v) for v in scores.tolist()]
    n = len(y)
    squared = sum((a - b) ** 2 for a, b in zip(y, z, strict=True))
    of_y = n * sum(a * a for a in y) - sum(y) ** 2
    of_z = n * sum(a * a for a in z) - sum(z) ** 2
    both = n * sum(a * b for a, b in zip(y, z, strict=True)) - sum(y) * sum(z)
    return {
        "rows": n,
        "mse": float(squared / n),
        "mae": float(sum(abs(a - b) for a, b in zip(y, z, strict=True)) / n),
        "r2": float(1 - n * squared / of_y) if of_y else None,
        "squared_correlation": float(both**2 / (of_y * of_z)) if of_y * of_z else None,
    }


@pytest.mark.parametrize("batches", [1, 3, 40])
@pytest.mark.parametrize(
    ("shift", "scale"), [(0.0, 1.0), (1e9, 1e-3), (-1e12, 1.0), (1e-9, 1e-15), (1e6, 1e6)]
)
@pytest.mark.parametrize("far", [None, 0, 199])
def test_regression_metrics_avoid_cancellation(batches, shift, scale, far):
    random = np.random.default_rng(1)
    y = shift + scale * random.standard_normal(200)
    z = y + 0.5 * scale * random.standard_normal(200)
    if far is not None:
        y[far] = shift + 1e9 * scale
    assert judge(y, z, batches) == pytest.approx(exact_figures(y, z), rel=1e-11, abs=0)


NEAR = st.integers(-1000, 1000).map(lambda k: 1e6 + k / 8)


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 30), st.just(2)), elements=NEAR),
    st.integers(1, 9),
)
def test_regression_metrics_are_exact_or_undefined(pairs, batches):
    y, scores = pairs.T
    found = judge(y, scores, batches)
    for name, value in exact_figures(y, scores).items():
        assert found[name] == (value and pytest.approx(value, rel=1e-9, abs=1e-12)), name


def test_regression_metrics_of_extreme_values():
    none = dict.fromkeys(("mse", "mae", "r2", "squared_correlation"))
    assert judge([], []) == {"rows": 0, **none}
    y = np.random.default_rng(0).standard_normal(200)
    perfect = {"rows": 200, "mse": 0.0, "mae": 0.0, "r2": 1.0, "squared_correlation": 1.0}
    assert judge(y, y) == perfect
    for n in range(2, 200):  # rounding alone would exceed it now and then
        assert judge(y[:n], 0.1 * y[:n])["squared_correlation"] <= 1
    assert judge([1e300, -1e300], [0.0, 1.0]) == {"rows": 2, **none, "mae": 1e300}
    assert judge([1.0, 2.0], [np.nan, 1.0]) == {"rows": 2, **none}


# ------------------------------------------------------------------------------------ probabilities


def worth(y, p, labels, batches=1):
    return collect(ProbabilityMetrics(list(labels)), np.asarray(y), p, batches=batches)


@pytest.mark.parametrize("batches", [1, 7])
@pytest.mark.parametrize("labels", [TWO, FIVE])
def test_probability_metrics_match_sklearn(labels, batches):
    random = np.random.default_rng(0)
    truth = random.integers(0, len(labels), 300)
    p = random.dirichlet(np.ones(len(labels)), 300)
    found = worth(np.array(labels)[truth], p, labels, batches)
    expected = {"log_loss": reference.log_loss(truth, p, labels=range(len(labels)))}
    share = np.tile(np.bincount(truth, minlength=len(labels)) / len(truth), (len(truth), 1))
    expected["base_log_loss"] = reference.log_loss(truth, share, labels=range(len(labels)))
    if len(labels) == 2:
        expected["brier"] = reference.brier_score_loss(truth, p[:, 1])
        expected["base_brier"] = reference.brier_score_loss(truth, share[:, 1])
    assert found == pytest.approx(expected, rel=1e-12)


def test_probability_metrics_skip_unknown_labels():
    p = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])
    base = {"base_log_loss": 0.0, "base_brier": 0.0}
    expected = {"log_loss": -math.log(0.75), "brier": 0.25**2, **base}
    assert worth([7.0, 0.0, 9.0], p, TWO) == expected
    assert set(worth([0.0], p[:1], TWO).values()) == {None}
    expected = {"log_loss": -math.log(1e-15), "brier": 1.0, **base}
    assert worth([3.0], np.array([[0.0, 1.0]]), TWO) == expected
