"""The grid of a tuning: its models, their metric, and their comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.learners import Group, Learner, set_active
from sbm.engine.problems import by_label, model_labels
from sbm.errors import SettingsError
from sbm.models.metrics import BinaryMetrics, RegressionMetrics
from sbm.settings import nearest
from sbm.solver.gap import Certificate
from sbm.solver.problem import AnyProblem
from sbm.store.blocks import BlockStore

__all__ = [
    "METRICS", "Candidate", "Evaluation", "Grid", "Metric", "choose_metric", "known_figures", "lag",
    "mean_figure",
]  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """A metric for comparing models.

    Attributes
    ----------
    name : str
        Its key in the report of `sbm.predict`.
    task : str
        ``binary``, ``multi``, ``classes`` (either of these) or ``regression``.
    sign : int
        1 if larger is better, -1 if smaller is better.
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
    """Return the metric with this name, or the default for the labels if `name` is None.

    Raises
    ------
    SettingsError
        The name is unknown, or the metric does not apply to the labels.
    """
    labels = model_labels(problems[0], store)
    task = "binary" if len(labels) == 2 and not problems[0].listed else "multi"
    task = task if labels else "regression"
    fits = [m for m in METRICS.values() if m.task == task or (m.task == "classes" and labels)]
    if name is None:
        return fits[0]
    if name not in METRICS:
        known = ", ".join(METRICS)
        raise SettingsError(f"unknown metric {name!r}; use one of {known}{nearest(name, METRICS)}")
    if METRICS[name] not in fits:
        known = " or ".join(m.name for m in fits)
        raise SettingsError(f"metric {name} does not apply to these labels; use {known}")
    return METRICS[name]


class _ClassCounts:
    """Row counts by class, for accuracy and F1 with any number of classes.

    The figures are the same as those of `MultiMetrics`.
    """

    def __init__(self, n_labels: int) -> None:
        self._counts = np.zeros((3, n_labels), np.int64)  # hits, true, predicted

    def add(self, true: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64]) -> None:
        """Add rows, given as positions among the labels."""
        for counts, codes in zip(
            self._counts, (true[true == predicted], true, predicted), strict=True
        ):
            counts += np.bincount(codes, minlength=len(counts))

    def result(self) -> dict[str, float | None]:
        """Return the figures; None if there are no rows."""
        hits, true, predicted = self._counts
        rows, both = int(true.sum()), true + predicted
        if not rows:
            return {"accuracy": None, "macro_f1": None}
        f1 = 2 * hits[both > 0] / both[both > 0]
        return {"accuracy": int(hits.sum()) / rows, "macro_f1": math.fsum(f1) / len(f1)}


class Evaluation:
    """Evaluates a model on its held-out rows.

    Parameters
    ----------
    metric : Metric
    labels : list of float
        Labels of the model, by class code; empty for targets.
    places : ndarray of int
        Position of each class code among the sorted labels.
    """

    def __init__(self, metric: Metric, labels: list[float], places: npt.NDArray[np.intp]) -> None:
        self._metric, self._labels, self._places = metric, labels, places
        self._skip = 0
        self.clear()

    def clear(self, skip: int = 0) -> None:
        """Remove all rows, and skip the next `skip` rows."""
        self._skip = skip
        self._classes = _ClassCounts(len(self._labels))
        self._binary = BinaryMetrics([0.0, 1.0])
        self._targets = RegressionMetrics()

    def add(self, y: npt.NDArray[Any], scores: Sequence[npt.NDArray[np.float64]]) -> None:
        """Add class codes or targets, and decision values of each learner."""
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
        """The metric; nan if it is undefined (no rows, or for auc only one class)."""
        result: dict[str, Any] = self._targets.result()
        if self._labels:
            auc = self._metric.name == "auc"
            result = self._binary.result() if auc else dict(self._classes.result())
        found = result[self._metric.name]
        return math.nan if found is None else float(found)


@dataclass(frozen=True)
class Grid:
    """All models: each C with each fold, ordered by C.

    Attributes
    ----------
    Cs : list of float
        In ascending order.
    n_folds : int
    metric : Metric
    problems : list of list of Problem or MultiProblem
        The problems of each model.
    """

    Cs: list[float]
    n_folds: int
    metric: Metric
    problems: list[list[AnyProblem]]

    @property
    def every(self) -> list[AnyProblem]:
        """The problems of all learners."""
        return [problem for mine in self.problems for problem in mine]

    @property
    def held_out(self) -> list[int]:
        """The held-out fold of each learner."""
        return [k % self.n_folds for k, mine in enumerate(self.problems) for _ in mine]


@dataclass
class Candidate:
    """A model of one C and one fold.

    Attributes
    ----------
    C : float
    group : Group
        Its learners.
    evaluation : Evaluation
        Evaluates its held-out rows.
    metrics : list of float
        The metric after each pass.
    gap : float
        Relative gap, estimated in the last pass.
    passes : int
    certificate : Certificate or None
    """

    C: float
    group: Group
    evaluation: Evaluation
    metrics: list[float] = field(default_factory=list)
    gap: float = math.inf
    passes: int = 0
    certificate: Certificate | None = None

    @property
    def learners(self) -> Sequence[Learner]:
        """One learner, or one per class."""
        return self.group.learners

    def record(self) -> dict[str, Any]:
        """Return the state at the end of a pass as JSON, for `restore`."""
        seconds = [learner.seconds for learner in self.learners]
        return {
            "is_active": self.is_active, "metrics": self.metrics, "gap": self.gap,
            "passes": self.passes, "seconds": seconds,
        }  # fmt: skip

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the state from a `record`."""
        self.set_active(record["is_active"])
        self.metrics, self.gap = list(record["metrics"]), float(record["gap"])
        self.passes = int(record["passes"])
        for learner, seconds in zip(self.learners, record["seconds"], strict=True):
            learner.seconds = float(seconds)

    def set_active(self, active: bool) -> None:
        """Set whether it takes part in the following passes."""
        set_active(self.learners, active)

    @property
    def is_active(self) -> bool:
        """Whether it takes part in the following passes."""
        return self.learners[0].is_active

    @property
    def seconds(self) -> float:
        """Thread time of its learners, in seconds."""
        return sum(learner.seconds for learner in self.learners)


def known_figures(figures: Sequence[float]) -> list[float]:
    """Return the figures that are not nan."""
    return [x for x in figures if not math.isnan(x)]


def mean_figure(figures: Sequence[float]) -> float:
    """Return the mean of the figures that are not nan; -inf if there are none."""
    known = known_figures(figures)
    return statistics.fmean(known) if known else -math.inf


def lag(best: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return the mean difference to the best over folds, and its standard error."""
    behind = known_figures([b - other for b, other in zip(best, others, strict=True)])
    if len(behind) < 2:
        return 0.0, math.inf
    return statistics.fmean(behind), statistics.stdev(behind) / math.sqrt(len(behind))
