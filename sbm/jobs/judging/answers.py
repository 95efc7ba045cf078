"""What is said of rows: labels, numbers, decision values, probabilities; and how good that is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.jobs.judging.metrics import (
    BinaryMetrics,
    MultiMetrics,
    ProbabilityMetrics,
    RegressionMetrics,
)
from sbm.probabilities import probabilities
from sbm.settings import format_number
from sbm.store.model import Model

__all__ = ["Answers", "answers_of"]

_FEW = 64  # up to so many best columns are picked one by one; sorting them all is faster for more


class Answers:
    """What is said of rows, and how good it is."""

    def __init__(self, metrics: BinaryMetrics | MultiMetrics | RegressionMetrics) -> None:
        self.metrics = metrics

    def title(self) -> Iterator[str]:
        """Text before that of the rows."""
        return iter(())

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        """Count rows; return their text, which is made only if it is read."""
        raise NotImplementedError

    def result(self) -> dict[str, Any]:
        """All figures."""
        return self.metrics.result()


def answers_of(model: Model, decision: bool, top: int, probability: bool) -> Answers:
    """Choose what a model's decision values are turned into."""
    single = model.W.shape[1] == 1
    answers = _Single(model, decision) if single else _Multi(model, decision, top)
    return _Probability(model, answers) if probability else answers


class _Single(Answers):
    """What one decision value says: its sign the label, or (of regression) itself the target."""

    def __init__(self, model: Model, decision: bool) -> None:
        self._judge = BinaryMetrics(model.labels) if model.labels else RegressionMetrics()
        super().__init__(self._judge)
        self._labels = np.asarray(model.labels)
        self._as_it_is = decision or not model.labels

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        z = scores[:, 0]
        self._judge.add(y, z)
        return self._text(z)

    def _text(self, z: npt.NDArray[np.float64]) -> Iterator[str]:
        numbers = z if self._as_it_is else self._labels[(z > 0).astype(np.intp)]
        values, codes = np.unique(numbers, return_inverse=True)
        words = np.array([format_number(v) for v in values.tolist()] or [""])
        yield "\n".join(words[codes].tolist()) + "\n"


class _Multi(Answers):
    """What is said of rows by the largest of several decision values."""

    def __init__(self, model: Model, decision: bool, top: int) -> None:
        # Columns in ascending order of their labels, and the place of each column in that order.
        self._order = np.argsort(model.labels)
        self._place = np.argsort(self._order).astype(np.int32)
        self._judge = MultiMetrics(sorted(model.labels), top)
        super().__init__(self._judge)
        self._words = np.array([format_number(label) for label in model.labels])
        self._decision, self._top = decision, top

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        codes = _best(scores, self._top)
        self._judge.add(y, self._place[codes])
        return self._text(codes, scores)

    def _text(self, codes: npt.NDArray[np.int32], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        if self._decision:
            for row in scores[:, self._order]:
                yield " ".join(map(format_number, row.tolist())) + "\n"
        elif self._top == 1:
            yield "\n".join(self._words[codes[:, 0]].tolist()) + "\n"
        else:
            for row in codes:
                yield " ".join(self._words[row].tolist()) + "\n"


class _Probability(Answers):
    """The probabilities of all labels behind the predicted one, as LIBLINEAR's ``-b 1``."""

    def __init__(self, model: Model, labels: Answers) -> None:
        super().__init__(labels.metrics)
        self._model, self._labels = model, labels
        self._order = np.argsort(model.labels)
        self._quality = ProbabilityMetrics(sorted(model.labels))

    def title(self) -> Iterator[str]:
        yield " ".join(["labels", *map(format_number, sorted(self._model.labels))]) + "\n"

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        labels = self._labels.add(y, scores)
        p = probabilities(self._model, scores)[:, self._order]
        self._quality.add(y, p)
        return self._text(labels, p)

    def _text(self, labels: Iterator[str], p: npt.NDArray[np.float64]) -> Iterator[str]:
        for label, row in zip("".join(labels).splitlines(), p, strict=True):
            yield " ".join([label, *map(format_number, row.tolist())]) + "\n"

    def result(self) -> dict[str, Any]:
        return {**super().result(), **self._quality.result()}


def _best(scores: npt.NDArray[np.float64], top: int) -> npt.NDArray[np.int32]:
    """Columns with the largest values of each row, best first; of equal ones the first."""
    if top <= _FEW:
        codes = np.empty((len(scores), top), np.int32)
        load("sbm.solver.kernels.decision").best(scores, codes)
        return codes
    scores[np.isnan(scores)] = -np.inf  # as the kernel has it
    return np.argsort(-scores, axis=1, kind="stable")[:, :top].astype(np.int32)
