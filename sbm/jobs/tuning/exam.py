"""What models of a tuning are compared by, and what compares them: held-out rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError
from sbm.jobs.judging.metrics import BinaryMetrics, RegressionMetrics
from sbm.jobs.training.problem import by_label, model_labels
from sbm.settings import nearest
from sbm.solver.problem import AnyProblem
from sbm.store.blocks import BlockStore

__all__ = ["METRICS", "Exam", "Metric", "choose_metric"]


@dataclass(frozen=True)
class Metric:
    """What models are compared by.

    Attributes
    ----------
    name : str
        A key of what the metrics of predictions report.
    task : str
        ``binary``, ``multi`` or ``regression``: what it is for; ``classes`` is either of the first
        two.
    sign : int
        1 where more is better, -1 where less is.
    """

    name: str
    task: str
    sign: int


# The first one that fits is the default.
METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "classes", 1),
        Metric("macro_f1", "multi", 1),
        Metric("auc", "binary", 1),
        Metric("mse", "regression", -1),
        Metric("mae", "regression", -1),
        Metric("r2", "regression", 1),
    )
}


def choose_metric(name: str | None, problems: Sequence[AnyProblem], store: BlockStore) -> Metric:
    """Return the metric that is meant.

    Raises
    ------
    SettingsError
        There is none of that name, or it is not for these labels.
    """
    labels = model_labels(problems[0], store)
    task = "binary" if len(labels) == 2 and not problems[0].listed else "multi"
    task = task if labels else "regression"
    fits = [m for m in METRICS.values() if m.task == task or (m.task == "classes" and labels)]
    if name is None:
        return fits[0]
    if name not in METRICS:
        known = ", ".join(METRICS)
        raise SettingsError(f"unknown metric {name!r}, known are {known}{nearest(name, METRICS)}")
    if METRICS[name] not in fits:
        known = " or ".join(m.name for m in fits)
        raise SettingsError(f"metric {name} is not for these labels; use {known}")
    return METRICS[name]


class _ClassCounts:
    """Rows by class: all that accuracy and F1 take, however many classes there are.

    Figures are those of `MultiMetrics`.
    """

    def __init__(self, n_labels: int) -> None:
        self._counts = np.zeros((3, n_labels), np.int64)  # hits, true, predicted

    def add(self, true: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64]) -> None:
        """Take rows, as positions among the labels."""
        for counts, codes in zip(
            self._counts, (true[true == predicted], true, predicted), strict=True
        ):
            counts += np.bincount(codes, minlength=len(counts))

    def result(self) -> dict[str, float | None]:
        """The figures; None without rows."""
        hits, true, predicted = self._counts
        rows, both = int(true.sum()), true + predicted
        if not rows:
            return {"accuracy": None, "macro_f1": None}
        f1 = 2 * hits[both > 0] / both[both > 0]
        return {"accuracy": int(hits.sum()) / rows, "macro_f1": math.fsum(f1) / len(f1)}


class Exam:
    """Judges a model by its held-out rows.

    Parameters
    ----------
    metric : Metric
    labels : list of float
        Of the model, by class code; none for targets.
    places : ndarray of int
        Position of each class code among the labels in ascending order.
    """

    def __init__(self, metric: Metric, labels: list[float], places: npt.NDArray[np.intp]) -> None:
        self._metric, self._labels, self._places = metric, labels, places
        self._skip = 0
        self.clear()

    def clear(self, skip: int = 0) -> None:
        """Forget all rows, and skip so many of those to come."""
        self._skip = skip
        self._classes = _ClassCounts(len(self._labels))
        self._binary = BinaryMetrics([0.0, 1.0])
        self._targets = RegressionMetrics()

    def add(self, y: npt.NDArray[Any], scores: Sequence[npt.NDArray[np.float64]]) -> None:
        """Take class codes or targets, and decision values of each learner."""
        if self._skip > 0:
            self._skip -= len(y)
            return
        table = by_label(scores, self._labels)
        if not self._labels:
            self._targets.add(y, table[:, 0])
        elif self._metric.name == "auc":
            self._binary.add(self._places[y].astype(np.float64), table[:, 0])
        elif table.shape[1] == 1:
            self._classes.add(self._places[y], (table[:, 0] > 0).astype(np.int64))
        else:
            self._classes.add(self._places[y], np.argmax(table, axis=1))

    @property
    def figure(self) -> float:
        """The metric; nan where it has no meaning: no rows, or of one class alone."""
        result: dict[str, Any] = self._targets.result()
        if self._labels:
            auc = self._metric.name == "auc"
            result = self._binary.result() if auc else dict(self._classes.result())
        found = result[self._metric.name]
        return math.nan if found is None else float(found)
