"""What rows cost before they are learned, by the formulas of the losses, and when it is told."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from families import OF_MARGIN
from hypothesis import given, settings
from hypothesis import strategies as st

from sbm.jobs.streaming.progressive import FIRST_MARK, Progressive, row_losses
from sbm.jobs.training.problem import make_problems
from sbm.losses import LOSSES
from sbm.settings import Settings
from sbm.solver.problem import MultiProblem, OneClass

OF_TARGET = {
    "epsilon_insensitive": lambda off: max(0.0, off - 0.25),
    "squared_epsilon_insensitive": lambda off: max(0.0, off - 0.25) ** 2,
    "squared_error": lambda off: off**2,
}
JOINT = {"crammer_singer": max, "weston_watkins": sum}


def problems_of(loss: str, labels: list[float] | None, **chosen: Any) -> list[Any]:
    seen = SimpleNamespace(name="rows", n_rows=1, labels=labels, label_counts=[])
    return make_problems(Settings(loss=loss, **chosen), seen)


def table_of(n_columns: int, n: int = 40) -> Any:
    table = np.random.default_rng(n_columns).normal(scale=1.5, size=(n, n_columns))
    table[0] = 0.0  # before anything is learned
    table[1] = 1.0
    return table


def test_every_loss_is_tested():
    assert {*OF_MARGIN, *OF_TARGET, *JOINT, "one_class"} == {*LOSSES}


@pytest.mark.parametrize("loss", OF_MARGIN)
@pytest.mark.parametrize("labels", [[-1.0, 1.0], [1.0, -1.0], [3.0], [-3.0]])
def test_rows_of_two_classes(loss, labels):
    more = {"task": "classification"} if loss == "squared_error" else {}
    problems = problems_of(loss, labels, **more)
    table = table_of(1)
    y = np.arange(40, dtype=np.int32) % len(labels)
    correct, losses = row_losses(LOSSES[loss], problems, y, table)
    for k in range(40):
        sign = 1 if labels[y[k]] > 0 else -1
        margin = sign * table[k, 0]
        assert losses[k] == pytest.approx(OF_MARGIN[loss](margin), rel=1e-12)
        assert correct[k] == ((table[k, 0] > 0) == (sign > 0))


@pytest.mark.parametrize("loss", OF_MARGIN)
def test_rows_of_many_classes_one_against_the_rest(loss):
    more = {"task": "classification"} if loss == "squared_error" else {}
    problems = problems_of(loss, [4.0, 2.0, 9.0], **more)
    table = table_of(3)
    y = np.arange(40, dtype=np.int32) % 3
    correct, losses = row_losses(LOSSES[loss], problems, y, table)
    for k in range(40):
        margins = [table[k, c] * (1 if c == y[k] else -1) for c in range(3)]
        assert losses[k] == pytest.approx(sum(map(OF_MARGIN[loss], margins)), rel=1e-12)
        assert correct[k] == (int(table[k].argmax()) == y[k])


@pytest.mark.parametrize("loss", JOINT)
@pytest.mark.parametrize("classes", [2, 5])
def test_rows_of_losses_of_all_classes_together(loss, classes):
    problems = problems_of(loss, [float(k) for k in range(classes)])
    table = table_of(classes)
    y = np.arange(40, dtype=np.int32) % classes
    correct, losses = row_losses(LOSSES[loss], problems, y, table)
    for k in range(40):
        others = [max(0, 1 - table[k, y[k]] + table[k, c]) for c in range(classes) if c != y[k]]
        assert losses[k] == pytest.approx(JOINT[loss](others), rel=1e-12)
        assert correct[k] == (int(table[k].argmax()) == y[k])


@pytest.mark.parametrize("loss", JOINT)
def test_one_label_so_far_costs_nothing_where_labels_are_told_apart(loss):
    problems = [MultiProblem(LOSSES[loss], np.array([1.0]), 1.0)]
    correct, losses = row_losses(problems[0].loss, problems, np.zeros(40, np.int32), table_of(1))
    assert correct.all()
    assert (losses == 0).all()


@pytest.mark.parametrize("loss", OF_TARGET)
def test_rows_with_targets(loss):
    more = {} if loss == "squared_error" else {"epsilon": 0.25}
    problems = problems_of(loss, None, **more)
    table = table_of(1)
    y = np.linspace(-2, 2, 40)
    correct, losses = row_losses(LOSSES[loss], problems, y, table)
    assert not correct.any()
    for k in range(40):
        assert losses[k] == pytest.approx(OF_TARGET[loss](abs(y[k] - table[k, 0])), rel=1e-12)


def test_rows_of_one_class():
    problem = OneClass(LOSSES["one_class"], 0.5, 1.0)
    problem.restore({"level": np.array([0.3, 2.0]), "scale": np.array([1.0])})
    table = table_of(1)
    inside, losses = row_losses(problem.loss, [problem], np.zeros(40, np.int32), table)
    np.testing.assert_array_equal(inside, table[:, 0] >= 0.3)
    np.testing.assert_allclose(losses, np.maximum(0, 0.3 - table[:, 0]))


# --------------------------------------------------------------------------------- what is told


@given(parts=st.lists(st.integers(0, 3000), max_size=8), stop=st.integers(0, 8))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_rows_are_told_of_whenever_they_have_doubled_however_they_come(parts, stop):
    n = sum(parts)
    random = np.random.default_rng(n)
    correct, losses = random.random(n) < 0.7, random.integers(0, 64, n) / 16
    told: list[dict[str, Any]] = []
    progressive, first = Progressive(told.append), 0
    for k, size in enumerate(parts):
        if k == stop:  # another process goes on
            progressive = Progressive(told.append, json.loads(json.dumps(progressive.state())))
        progressive.add(correct[first : first + size], losses[first : first + size])
        first += size
    marks = [FIRST_MARK * 2**k for k in range(20) if FIRST_MARK * 2**k <= n]
    assert [record["rows"] for record in told] == marks
    for begin, end, record in zip([0, *marks], marks, told, strict=False):
        assert record["loss"] == losses[:end].mean()
        assert record["accuracy"] == correct[:end].mean()
        assert record["last_loss"] == losses[begin:end].mean()
        assert record["last_accuracy"] == correct[begin:end].mean()
    assert progressive.all.rows == n
    assert progressive.all.means() == ((losses.mean(), correct.mean()) if n else (None, None))
    progressive.tell()
    rest = slice(marks[-1] if marks else 0, n)
    expected = losses[rest].mean() if len(losses[rest]) else None
    assert told[-1]["last_loss"] == expected
