"""Progressive loss: equal to the formulas of the losses, and reported when rows double."""

import json
from types import SimpleNamespace
from typing import Any

import families
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    FIRST_MARK,
    LOSSES,
    MultiProblem,
    OneClass,
    Progressive,
    Settings,
    make_problems,
    row_losses,
)

TABLE = np.random.default_rng(3).normal(scale=1.5, size=(40, 3))
TABLE[0] = 0.0  # before anything is learned
TABLE[1] = 1.0
LABELS = [[-1.0, 1.0], [1.0, -1.0], [3.0], [-3.0], [4.0, 2.0, 9.0]]


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("loss", [*families.OF_MARGIN, "crammer_singer", "weston_watkins"])
def test_classification_rows_cost_their_loss(loss, labels):
    if LOSSES[loss].joint and len(labels) == 1:  # costs nothing until labels differ
        problems = [MultiProblem(LOSSES[loss], np.array([1.0]), 1.0)]
        correct, losses = row_losses(LOSSES[loss], problems, np.zeros(40, np.int32), TABLE[:, :1])
        assert correct.all()
        assert not losses.any()
        return
    more = {"task": "classification"} if loss == "squared_error" else {}
    seen = SimpleNamespace(name="rows", n_rows=1, labels=labels, label_counts=[], label_names=None)
    problems = make_problems(Settings(loss=loss, **more), seen)
    codes = np.arange(40, dtype=np.int32) % len(labels)
    is_single = len(labels) < 3 and not LOSSES[loss].joint
    z = TABLE[:, : 1 if is_single else len(labels)]
    correct, losses = row_losses(LOSSES[loss], problems, codes, z)
    y = np.array(labels)[codes]
    if is_single:  # the positive class is the larger of two, or the sign of one
        y, columns = np.where(y > 0, 1.0, -1.0), [-1.0, 1.0]
        np.testing.assert_array_equal(correct, (z[:, 0] > 0) == (y > 0))
    else:
        columns = labels
        np.testing.assert_array_equal(correct, z.argmax(axis=1) == codes)
    np.testing.assert_allclose(losses, families.row_losses(loss, z, y, columns), rtol=1e-12)


@pytest.mark.parametrize(
    "loss", ["epsilon_insensitive", "squared_epsilon_insensitive", "squared_error"]
)
def test_regression_rows_cost_their_loss(loss):
    more = {} if loss == "squared_error" else {"epsilon": 0.25}
    seen = SimpleNamespace(name="rows", n_rows=1, labels=None, label_counts=[], label_names=None)
    y, z = np.linspace(-2, 2, 40), TABLE[:, :1]
    correct, losses = row_losses(
        LOSSES[loss], make_problems(Settings(loss=loss, **more), seen), y, z
    )
    assert not correct.any()
    np.testing.assert_allclose(losses, families.row_losses(loss, z, y, [], 0.25), rtol=1e-12)


def test_one_class_rows_cost_distance_to_level():
    problem = OneClass(LOSSES["one_class"], 0.5, 1.0)
    problem.restore({"level": np.array([0.3, 2.0]), "scale": np.array([1.0])})
    z = TABLE[:, :1]
    inside, losses = row_losses(problem.loss, [problem], np.zeros(40, np.int32), z)
    np.testing.assert_array_equal(inside, z[:, 0] >= 0.3)
    np.testing.assert_allclose(losses, np.maximum(0, 0.3 - z[:, 0]))


@given(parts=st.lists(st.integers(0, 3000), max_size=8), stop=st.integers(0, 8))
def test_figures_are_reported_when_rows_double(parts, stop):
    n, told, first = sum(parts), list[dict[str, Any]](), 0
    random = np.random.default_rng(n)
    correct, losses = random.random(n) < 0.7, random.integers(0, 64, n) / 16
    progressive = Progressive(told.append)
    for k, size in enumerate(parts):
        if k == stop:  # another process resumes
            progressive = Progressive(told.append, json.loads(json.dumps(progressive.state())))
        progressive.add(correct[first : first + size], losses[first : first + size])
        first += size
    assert progressive.all.means() == ((losses.mean(), correct.mean()) if n else (None, None))
    progressive.tell()
    marks = [FIRST_MARK * 2**k for k in range(20) if FIRST_MARK * 2**k <= n]
    expected = [
        {"rows": end, "loss": losses[:end].mean(), "accuracy": correct[:end].mean(),
         "last_loss": losses[begin:end].mean() if end > begin else None,
         "last_accuracy": correct[begin:end].mean() if end > begin else None}
        for begin, end in zip([0, *marks], [*marks, n], strict=True) if end
    ]  # fmt: skip
    assert told[: len(expected)] == expected
