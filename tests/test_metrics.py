"""Quality figures against scikit-learn, exact, in batches and by histogram."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as reference

from sbm.jobs import metrics as module
from sbm.jobs.metrics import BinaryMetrics


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
