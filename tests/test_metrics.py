"""Quality figures against scikit-learn, exact, in batches and by histogram."""

import json
import math
import tracemalloc
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as reference

from sbm.jobs.judging import metrics as module
from sbm.jobs.judging.metrics import (
    BinaryMetrics,
    MultiMetrics,
    ProbabilityMetrics,
    RegressionMetrics,
)


def _figures(y, scores, labels=(-1.0, 1.0), batches=1):
    collected = BinaryMetrics(list(labels))
    for part in zip(np.array_split(y, batches), np.array_split(scores, batches), strict=True):
        collected.add(*part)
    return collected.result()


def _random(seed, n, labels=(-1.0, 1.0), decimals=None, unknown=0.0):
    random = np.random.default_rng(seed)
    y = random.choice(labels, n, p=[0.7, 0.3])
    scores = random.standard_normal(n) + 0.8 * (y == labels[1]) - 0.5
    if decimals is not None:
        scores = np.round(scores, decimals)  # many ties
    y[random.random(n) < unknown] = 99.0
    return y, scores


@pytest.mark.parametrize("labels", [(-1.0, 1.0), (0.0, 1.0), (1.0, 2.0), (3.0, 7.0)])
@pytest.mark.parametrize("decimals", [None, 1, 0])
@pytest.mark.parametrize("n", [7, 1000])
def test_every_figure_is_that_of_scikit_learn(labels, decimals, n):
    y, scores = _random(n, n, labels, decimals)
    found = _figures(y, scores, labels)
    predicted = np.where(scores > 0, labels[1], labels[0])
    precision, recall, f1, support = reference.precision_recall_fscore_support(
        y, predicted, labels=labels, zero_division=0
    )
    assert found["rows"] == n
    assert found["correct"] == int((y == predicted).sum())
    assert found["accuracy"] == reference.accuracy_score(y, predicted)
    assert found["auc"] == pytest.approx(reference.roc_auc_score(y == labels[1], scores), abs=1e-12)
    assert found["auc_exact"] is True
    assert found["confusion"] == reference.confusion_matrix(y, predicted, labels=labels).tolist()
    assert found["labels"] == list(labels)
    for k, row in enumerate(found["classes"]):
        assert (row["label"], row["support"]) == (labels[k], support[k])
        assert row["predicted"] == int((predicted == labels[k]).sum())
        for name, value in (("precision", precision), ("recall", recall), ("f1", f1)):
            assert (row[name] or 0) == pytest.approx(value[k], abs=1e-15), name


@pytest.mark.parametrize("batches", [2, 3, 17])
def test_batches_give_what_one_go_gives(batches):
    y, scores = _random(1, 500, decimals=1, unknown=0.1)
    assert _figures(y, scores, batches=batches) == _figures(y, scores)


@pytest.mark.parametrize("decimals", [None, 2, 0])
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
def test_a_histogram_comes_within_a_thousandth_of_the_exact_auc(monkeypatch, decimals, scale):
    y, scores = _random(2, 5000, decimals=decimals)
    scores = scores * scale
    exact = _figures(y, scores)
    monkeypatch.setattr(module, "_EXACT_ROWS", 600)
    found = _figures(y, scores, batches=10)  # the first batch is still kept, then folded
    assert found["auc_exact"] is False
    assert found["auc"] == pytest.approx(exact["auc"], abs=1e-3)
    assert found["auc"] == pytest.approx(reference.roc_auc_score(y == 1, scores), abs=1e-3)
    same = {"confusion", "accuracy", "classes", "rows", "correct"}
    assert {k: found[k] for k in same} == {k: exact[k] for k in same}


def test_a_histogram_orders_negative_zero_and_positive_scores(monkeypatch):
    monkeypatch.setattr(module, "_EXACT_ROWS", 0)
    scores = np.array([-1e30, -2.0, -1e-30, -0.0, 0.0, 1e-30, 2.0, 1e30])
    y = np.array([-1.0, -1, -1, -1, 1, 1, 1, 1])
    assert _figures(y, scores)["auc"] == (16 - 0.5) / 16  # -0.0 and 0.0 tie
    assert _figures(-y, scores)["auc"] == 0.5 / 16


@pytest.mark.parametrize("scale", [1.0, -1.0, 1e-9, 1e9])
def test_a_histogram_tells_scores_apart_that_differ_by_a_thousandth(monkeypatch, scale):
    monkeypatch.setattr(module, "_EXACT_ROWS", 0)
    scores = scale * (1 + np.arange(20) / 1000)
    y = np.where(np.arange(20) < 10, -1.0, 1.0) * np.sign(scale)
    assert _figures(y, scores)["auc"] == 1.0


def test_a_histogram_takes_scores_beyond_float32(monkeypatch):
    monkeypatch.setattr(module, "_EXACT_ROWS", 0)
    found = _figures(np.array([-1.0, -1, 1, 1]), np.array([-1e300, -1.0, 1.0, 1e300]))
    assert found["auc"] == 1.0


@settings(deadline=None)
@given(
    hnp.arrays(np.int8, st.integers(0, 40), elements=st.integers(0, 2)),
    st.randoms(use_true_random=False),
)
def test_the_auc_is_the_share_of_pairs_in_order(codes, random):
    y = np.array([-1.0, 1.0, 5.0])[codes]
    scores = np.array([random.choice([-2.0, -0.5, 0.0, 0.5, 3.0]) for _ in codes])
    pairs = [
        1.0 if p > n else 0.5 if p == n else 0.0 for p in scores[y == 1] for n in scores[y == -1]
    ]
    expected = pytest.approx(np.mean(pairs), abs=1e-12) if pairs else None
    assert _figures(y, scores)["auc"] == expected


@pytest.mark.parametrize("limit", [100, 0])
@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_one_class_alone_has_no_auc(monkeypatch, label, limit):
    monkeypatch.setattr(module, "_EXACT_ROWS", limit)
    found = _figures(np.full(4, label), np.array([-1.0, 2.0, -3.0, 4.0]))
    assert found["auc"] is None
    assert found["accuracy"] == 0.5
    absent = found["classes"][0 if label == 1 else 1]
    assert (absent["support"], absent["recall"], absent["precision"]) == (0, None, 0.0)


def test_no_rows_have_no_figures():
    found = BinaryMetrics([-1.0, 1.0]).result()
    assert (found["rows"], found["accuracy"], found["auc"]) == (0, None, None)
    assert found["confusion"] == [[0, 0], [0, 0]]
    for row in found["classes"]:
        assert (row["precision"], row["recall"], row["f1"]) == (None, None, None)


def test_a_label_the_model_does_not_know_counts_as_wrong():
    y = np.array([-1.0, 1.0, 5.0, 5.0])
    scores = np.array([-1.0, 1.0, 1.0, -1.0])
    found = _figures(y, scores)
    assert (found["unknown_labels"], found["correct"], found["accuracy"]) == (2, 2, 0.5)
    assert found["auc"] == 1.0  # of the rows whose label is known
    assert [row["precision"] for row in found["classes"]] == [0.5, 0.5]
    assert [row["recall"] for row in found["classes"]] == [1.0, 1.0]


def test_a_score_of_exactly_zero_is_negative():
    found = _figures(np.array([-1.0, 1.0, -1.0]), np.array([0.0, 0.0, -0.0]))
    assert found["confusion"] == [[2, 0], [1, 0]]


def test_the_figures_are_plain_json():
    y, scores = _random(3, 50, unknown=0.1)
    assert json.loads(json.dumps(_figures(y, scores), allow_nan=False))["rows"] == 50


def test_the_confusion_of_two_classes_has_the_pairs_that_occur():
    collected = BinaryMetrics([-1.0, 1.0])
    collected.add(np.array([-1.0, 1.0, 1.0, 5.0, 5.0]), np.array([-1.0, 1.0, 2.0, 1.0, 1.0]))
    found = collected.confusion()
    assert found.triples() == [[-1.0, -1.0, 1], [1.0, 1.0, 2], [None, 1.0, 2]]
    assert (found.rows, found.correct) == (5, 3)


# ------------------------------------------------------------------------------ several classes

LABELS = (-2.5, 0.0, 1.0, 40.0, 1e6)
EVERY_COUNTER = pytest.mark.parametrize("dense", [2000, 0], ids=["dense", "sparse"])


def _ranks(seed, n, n_classes, top=1):
    """True codes and predictions, best first; some classes never occur, others always fail."""
    random = np.random.default_rng(seed)
    shares = random.dirichlet(np.full(n_classes, 0.5))
    truth = random.choice(n_classes, n, p=shares)
    order = np.argsort(random.random((n, n_classes)), axis=1)
    right = random.random(n) < 0.6
    order[right] = (order[right] + (truth[right] - order[right, 0])[:, np.newaxis]) % n_classes
    return truth, order[:, :top].astype(np.int32)


def _multi(y, codes, labels=LABELS, batches=1):
    collected = MultiMetrics(list(labels), codes.shape[1])
    for part in zip(np.array_split(y, batches), np.array_split(codes, batches), strict=True):
        collected.add(*part)
    return collected.result()


def _whole(labels):
    """Halves as whole numbers: scikit-learn takes no other labels."""
    return np.round(2 * np.asarray(labels)).astype(np.int64)


def _check_against_reference(found, y, predicted, labels):
    """Every figure, of classes of the model that occur or were predicted."""
    assert [row["label"] for row in found["classes"]] == list(labels)
    y, predicted, labels = _whole(y), _whole(predicted), _whole(labels)
    seen = [label for label in labels if label in y or label in predicted]
    options = {"labels": seen, "zero_division": 0}
    for average in ("macro", "micro"):
        expected = reference.f1_score(y, predicted, average=average, **options)
        assert found[f"{average}_f1"] == pytest.approx(expected, abs=1e-12), average
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(y, predicted), abs=1e-15)
    figures = reference.precision_recall_fscore_support(
        y, predicted, labels=labels, zero_division=0
    )
    for k, row in enumerate(found["classes"]):
        for name, values in zip(("precision", "recall", "f1", "support"), figures, strict=True):
            assert (row[name] or 0) == pytest.approx(values[k], abs=1e-15), name
        assert row["predicted"] == np.count_nonzero(predicted == labels[k])


@EVERY_COUNTER
@pytest.mark.parametrize("labels", [LABELS, (3.0, 7.0), tuple(map(float, range(60)))])
@pytest.mark.parametrize("n", [1, 9, 1000])
def test_every_multi_class_figure_is_that_of_scikit_learn(monkeypatch, dense, labels, n):
    monkeypatch.setattr(module, "_DENSE_CLASSES", dense)
    truth, codes = _ranks(n, n, len(labels))
    y, predicted = np.array(labels)[truth], np.array(labels)[codes[:, 0]]
    found = _multi(y, codes, labels)
    _check_against_reference(found, y, predicted, labels)
    assert (found["rows"], found["correct"]) == (n, int((y == predicted).sum()))
    assert found["macro_f1"] == pytest.approx(  # as it is without a word about labels
        reference.f1_score(_whole(y), _whole(predicted), average="macro", zero_division=0),
        abs=1e-12,
    )
    assert found["micro_f1"] == pytest.approx(found["accuracy"], abs=1e-15)
    assert found["unknown_labels"] == 0
    matrix = reference.confusion_matrix(_whole(y), _whole(predicted), labels=_whole(labels))
    triples = [
        [labels[t], labels[p], matrix[t, p]] for t, p in zip(*np.nonzero(matrix), strict=True)
    ]
    assert found["confusion"] == triples


@EVERY_COUNTER
def test_labels_the_model_does_not_know_are_wrong_but_no_class_of_the_averages(monkeypatch, dense):
    monkeypatch.setattr(module, "_DENSE_CLASSES", dense)
    truth, codes = _ranks(5, 400, len(LABELS))
    y, predicted = np.array(LABELS)[truth], np.array(LABELS)[codes[:, 0]]
    unknown = np.arange(400) % 7 == 0
    y[unknown] = np.resize([-1e9, 0.5, 1e9], unknown.sum())  # below, between and above the known
    found = _multi(y, codes)
    _check_against_reference(found, y, predicted, LABELS)
    assert found["unknown_labels"] == unknown.sum()
    assert sum(count for true, _, count in found["confusion"] if true is None) == unknown.sum()
    assert sum(count for _, _, count in found["confusion"]) == 400
    assert found["accuracy"] < found["micro_f1"]


@EVERY_COUNTER
def test_rows_of_unknown_labels_alone_have_figures(monkeypatch, dense):
    monkeypatch.setattr(module, "_DENSE_CLASSES", dense)
    found = _multi(np.full(3, 9.5), np.zeros((3, 1), np.int32))
    assert (found["accuracy"], found["macro_f1"], found["micro_f1"]) == (0.0, 0.0, 0.0)
    assert found["confusion"] == [[None, -2.5, 3]]


def test_classes_that_neither_occur_nor_are_predicted_are_not_averaged():
    codes = np.array([[0], [1], [1]], np.int32)
    found = _multi(np.array([-2.5, 0.0, -2.5]), codes)
    assert found["macro_f1"] == pytest.approx(2 / 3)  # 2/3 and 2/3
    assert [row["f1"] for row in found["classes"][2:]] == [None] * 3
    codes[2] = 2  # label 1 is predicted but never true: a zero that counts
    assert _multi(np.array([-2.5, 0.0, -2.5]), codes)["macro_f1"] == pytest.approx(5 / 9)


@pytest.mark.parametrize("top", [1, 2, 4])
def test_the_top_accuracy_is_that_of_scikit_learn(top):
    truth, codes = _ranks(8, 500, len(LABELS), top)
    found = _multi(np.array(LABELS)[truth], codes)
    scores = np.zeros((500, len(LABELS)))
    np.put_along_axis(scores, codes, np.arange(top, 0, -1), axis=1)
    expected = reference.top_k_accuracy_score(truth, scores, k=top, labels=range(len(LABELS)))
    assert found["top_n"] == top
    assert found["top_accuracy"] == pytest.approx(expected, abs=1e-15)
    assert found["accuracy"] == np.mean(codes[:, 0] == truth)


@EVERY_COUNTER
@pytest.mark.parametrize("batches", [2, 17])
@pytest.mark.parametrize("pending", [1, 100])
def test_multi_class_batches_give_what_one_go_gives(monkeypatch, dense, batches, pending):
    truth, codes = _ranks(1, 500, len(LABELS), 2)
    y = np.array([*LABELS, 7.0])[np.where(np.arange(500) % 9 == 0, 5, truth)]
    expected = _multi(y, codes)
    monkeypatch.setattr(module, "_DENSE_CLASSES", dense)
    monkeypatch.setattr(module, "_PENDING", pending)
    assert _multi(y, codes, batches=batches) == expected


def test_thirty_thousand_classes_take_memory_by_the_pairs_that_occur():
    n = 30_000
    labels = (np.arange(n) * 1.5).tolist()
    truth = np.arange(200_000) * 7919 % n
    codes = np.where(truth % 3 == 0, truth, truth // 2).astype(np.int32)[:, np.newaxis]
    tracemalloc.start()
    try:
        collected = MultiMetrics(labels)
        for begin in range(0, len(truth), 10_000):
            part = slice(begin, begin + 10_000)
            collected.add(np.array(labels)[truth[part]], codes[part])
        found = collected.confusion()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30e6  # an array of all pairs would take 7.2 GB
    assert len(found.counts) == n
    assert found.correct == np.count_nonzero(codes[:, 0] == truth)
    assert (np.diff(found.true * n + found.predicted) > 0).all()


def test_no_rows_of_several_classes_have_no_figures():
    found = MultiMetrics(list(LABELS)).result()
    names = ("accuracy", "macro_f1", "micro_f1", "top_accuracy")
    assert [found[name] for name in names] == [None] * 4
    assert (found["rows"], found["confusion"], found["unknown_labels"]) == (0, [], 0)
    assert {row["f1"] for row in found["classes"]} == {None}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=60))
def test_the_averages_are_those_of_scikit_learn_whatever_occurs(pairs):
    y = np.array([*LABELS, 0.5])[[t for t, _ in pairs]]
    codes = np.array([[p] for _, p in pairs], np.int32)
    found = _multi(y, codes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels without rows
        _check_against_reference(found, y, np.array(LABELS)[codes[:, 0]], LABELS)


def test_the_multi_class_figures_are_plain_json():
    truth, codes = _ranks(3, 50, len(LABELS), 2)
    y = np.array([*LABELS, 7.0])[np.where(np.arange(50) % 9 == 0, 5, truth)]
    found = _multi(y, codes)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


# ------------------------------------------------------------------------------------ regression

FIGURES = ("mse", "mae", "r2", "squared_correlation")


def _regression(y, scores, batches=1):
    collected = RegressionMetrics()
    for part in zip(np.array_split(y, batches), np.array_split(scores, batches), strict=True):
        collected.add(*part)
    return collected.result()


def _targets(seed, n, shift=0.0, scale=1.0):
    random = np.random.default_rng(seed)
    y = shift + scale * random.standard_normal(n)
    return y, y + 0.5 * scale * random.standard_normal(n)


def _exactly(y, scores):
    """The figures in rational numbers, the correlation by LIBLINEAR's formula."""
    y, z = [Fraction(v) for v in y.tolist()], [Fraction(v) for v in scores.tolist()]
    n = len(y)
    squared = sum((a - b) ** 2 for a, b in zip(y, z, strict=True))
    sum_y, sum_z = sum(y), sum(z)
    of_y = n * sum(a * a for a in y) - sum_y**2
    of_z = n * sum(a * a for a in z) - sum_z**2
    both = n * sum(a * b for a, b in zip(y, z, strict=True)) - sum_y * sum_z
    return {
        "rows": n,
        "mse": float(squared / n),
        "mae": float(sum(abs(a - b) for a, b in zip(y, z, strict=True)) / n),
        "r2": float(1 - n * squared / of_y),
        "squared_correlation": float(both**2 / (of_y * of_z)),
    }


@pytest.mark.parametrize("batches", [1, 2, 17])
@pytest.mark.parametrize(("n", "shift", "scale"), [(2, 0, 1), (50, 3, 1), (1000, -70, 1e-3)])
def test_the_errors_of_numbers_are_those_of_scikit_learn(batches, n, shift, scale):
    y, scores = _targets(n, n, shift, scale)
    found = _regression(y, scores, batches)
    assert found["rows"] == n
    assert found["mse"] == pytest.approx(reference.mean_squared_error(y, scores), rel=1e-12)
    assert found["mae"] == pytest.approx(reference.mean_absolute_error(y, scores), rel=1e-12)
    assert found["r2"] == pytest.approx(reference.r2_score(y, scores), rel=1e-9)
    correlation = np.corrcoef(y, scores)[0, 1] ** 2
    assert found["squared_correlation"] == pytest.approx(correlation, rel=1e-9)


@pytest.mark.parametrize("batches", [1, 3, 40])
@pytest.mark.parametrize(
    ("shift", "scale"), [(0.0, 1.0), (1e9, 1e-3), (-1e12, 1.0), (1e-9, 1e-15), (1e6, 1e6)]
)
def test_nothing_cancels_where_targets_are_large_and_vary_little(batches, shift, scale):
    y, scores = _targets(1, 400, shift, scale)
    assert _regression(y, scores, batches) == pytest.approx(_exactly(y, scores), rel=1e-11, abs=0)


@pytest.mark.parametrize("batches", [1, 40])
@pytest.mark.parametrize("where", [0, 399])
def test_a_target_far_from_the_others_does_no_harm(batches, where):
    y, scores = _targets(2, 400)
    y[where] = 1e9
    assert _regression(y, scores, batches) == pytest.approx(_exactly(y, scores), rel=1e-11, abs=0)


@settings(deadline=None)
@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 30), st.just(2)),
               elements=st.integers(-1000, 1000).map(lambda k: 1e6 + k / 8)),
    st.integers(1, 9),
)  # fmt: skip
def test_the_figures_of_numbers_are_exact_up_to_rounding(pairs, batches):
    y, scores = pairs.T
    found = _regression(y, scores, batches)
    defined = {"r2": len(set(y.tolist())) > 1}
    defined["squared_correlation"] = defined["r2"] and len(set(scores.tolist())) > 1
    assert {name: found[name] is not None for name in defined} == defined
    if all(defined.values()):
        assert found == pytest.approx(_exactly(y, scores), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("batches", [1, 3])
def test_equal_targets_have_errors_but_nothing_to_explain(batches):
    found = _regression(np.full(7, 0.1), np.linspace(0, 1, 7), batches)
    assert found["mse"] == pytest.approx(np.mean((0.1 - np.linspace(0, 1, 7)) ** 2))
    assert (found["r2"], found["squared_correlation"]) == (None, None)


@pytest.mark.parametrize("batches", [1, 3])
def test_equal_predictions_explain_nothing_and_have_no_correlation(batches):
    y = np.array([0.0, 0.1, 0.2, 0.3])
    found = _regression(y, np.full(4, 0.15), batches)
    assert found["r2"] == pytest.approx(0, abs=1e-12)
    assert found["squared_correlation"] is None


def test_perfect_predictions_have_no_errors():
    y = np.random.default_rng(0).standard_normal(100)
    expected = {"rows": 100, "mse": 0.0, "mae": 0.0, "r2": 1.0, "squared_correlation": 1.0}
    assert _regression(y, y) == expected
    turned = _regression(y, -3 * y + 5, 7)
    assert 1 - 1e-12 < turned["squared_correlation"] <= 1
    assert turned["r2"] < 0
    for n in range(2, 200):  # rounding alone would exceed it now and then
        assert _regression(y[:n], 0.1 * y[:n])["squared_correlation"] <= 1


def test_a_row_alone_and_no_rows_have_few_figures():
    empty = RegressionMetrics()
    empty.add(np.zeros(0), np.zeros(0))
    assert empty.result() == {"rows": 0, **dict.fromkeys(FIGURES)}
    assert _regression(np.array([3.0]), np.array([1.0])) == {
        "rows": 1, "mse": 4.0, "mae": 2.0, "r2": None, "squared_correlation": None,
    }  # fmt: skip


def test_figures_beyond_the_range_of_a_float_are_none():
    found = _regression(np.array([1e300, -1e300]), np.array([0.0, 1.0]))
    assert found == {"rows": 2, "mae": 1e300, **dict.fromkeys(("mse", "r2", FIGURES[3]))}
    found = _regression(np.array([1.0, 2.0]), np.array([np.nan, 1.0]))
    assert found == {"rows": 2, **dict.fromkeys(FIGURES)}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


# --------------------------------------------------------------------------------- probabilities


def _probable(y, p, labels, batches=1):
    collected = ProbabilityMetrics(list(labels))
    for part in zip(np.array_split(y, batches), np.array_split(p, batches), strict=True):
        collected.add(*part)
    return collected.result()


@pytest.mark.parametrize("batches", [1, 7])
@pytest.mark.parametrize("labels", [(-1.0, 1.0), (3.0, 7.0), LABELS])
def test_the_worth_of_probabilities_is_that_of_scikit_learn(labels, batches):
    random = np.random.default_rng(0)
    truth = random.integers(0, len(labels), 300)
    p = random.dirichlet(np.ones(len(labels)), 300)
    y = np.array(labels)[truth]
    found = _probable(y, p, labels, batches)
    expected = reference.log_loss(truth, p, labels=range(len(labels)))
    assert found["log_loss"] == pytest.approx(expected, rel=1e-12)
    assert ("brier" in found) == (len(labels) == 2)
    if "brier" in found:
        expected = reference.brier_score_loss(truth, p[:, 1])
        assert found["brier"] == pytest.approx(expected, rel=1e-12)


def test_rows_of_unknown_labels_have_no_log_loss():
    p = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])
    found = _probable(np.array([1.0, 0.0, 9.0]), p, (-1.0, 1.0))
    assert found == {"log_loss": -math.log(0.75), "brier": 0.25**2}
    assert _probable(np.array([0.0]), p[:1], (-1.0, 1.0)) == {"log_loss": None, "brier": None}
    assert _probable(np.zeros(0), np.zeros((0, 5)), LABELS) == {"log_loss": None}


def test_an_impossible_label_costs_as_much_as_a_very_improbable_one():
    found = _probable(np.array([-1.0]), np.array([[0.0, 1.0]]), (-1.0, 1.0))
    assert found == {"log_loss": -math.log(1e-15), "brier": 1.0}
