"""Metrics of models on rows that they did not learn from, to compare models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.problems import by_label, label_places, model_codes, model_labels
from sbm.errors import SettingsError
from sbm.models.metrics import BinaryMetrics, ProbabilityMetrics, RegressionMetrics
from sbm.models.probabilities import sigmoids
from sbm.plain import dataclass
from sbm.settings import Settings, nearest
from sbm.solver.problem import AnyProblem
from sbm.store.blocks import BlockStore

__all__ = [
    "METRICS",
    "Evaluation",
    "Metric",
    "base_rate",
    "check_metric",
    "choose_metric",
    "require_two_classes",
]


@dataclass(frozen=True)
class Metric:
    """A metric for comparing models.

    Attributes
    ----------
    name : str
        Its key in the report of `sbm.predict`; ``f1`` is that of the positive class.
    task : str
        ``binary``, ``multi``, ``classes`` (either of these) or ``regression``.
    sign : int
        1 if larger is better, -1 if smaller is better.
    """

    name: str
    task: str
    sign: int

    def of(self, result: Mapping[str, Any]) -> float | None:
        """Return the metric in the result of a class of `sbm.models.metrics`."""
        value = result["classes"][1]["f1"] if self.name == "f1" else result[self.name]
        return None if value is None else float(value)


_OF_PROBABILITIES = ("log_loss", "brier")
# The first one that fits is the default.
METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "classes", 1),
        Metric("macro_f1", "multi", 1),
        Metric("auc", "binary", 1),
        Metric("pr_auc", "binary", 1),
        Metric("f1", "binary", 1),
        Metric("log_loss", "classes", -1),
        Metric("brier", "binary", -1),
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
    if name in _OF_PROBABILITIES and problems[0].loss.name != "log_loss":
        raise SettingsError(
            f"metric {name} needs probabilities, which the loss {problems[0].loss.name} does not "
            "have; use --loss log_loss"
        )
    return METRICS[name]


def check_metric(settings: Settings) -> None:
    """Check that the metric is for the task, before the labels are known.

    Raises `SettingsError` if it is not.
    """
    is_regression = settings.problem == "regression"
    fits = [m.name for m in METRICS.values() if is_regression == (m.task == "regression")]
    if settings.metric is not None and settings.metric not in fits:
        what = "regression" if is_regression else "classification"
        raise SettingsError(
            f"metric {settings.metric} does not apply to {what}; use one of {', '.join(fits)}"
        )
    if settings.metric in _OF_PROBABILITIES and settings.loss != "log_loss":
        raise SettingsError(
            f"metric {settings.metric} needs probabilities, which the loss {settings.loss} does "
            "not have; use --loss log_loss"
        )


def require_two_classes(name: str, labels: Sequence[float]) -> None:
    """Check that there are two classes. Raises `SettingsError` if there are not."""
    if len(labels) != 2:
        raise SettingsError(
            f"{name} needs two classes, but the rows have {len(labels)}; leave it out"
        )


def base_rate(metric: Metric, store: BlockStore) -> float | None:
    """Return the metric of predicting the share of each label; None if it is of something else."""
    if metric.name not in _OF_PROBABILITIES:
        return None
    counts = [int(n) for n in store.manifest["labels"]["counts"] if n]
    share = [n / sum(counts) for n in counts]
    if metric.name == "log_loss":
        return -math.fsum(p * math.log(p) for p in share)
    return math.prod(share)


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
    """Evaluates a model on rows that it did not learn from.

    Parameters
    ----------
    metric : Metric
    problem : AnyProblem
        The first one of the model.
    store : BlockStore
        The training data.
    by_score : bool
        Whether to keep the decision values of two classes even if the metric does not need them.

    Attributes
    ----------
    rows : int
    by_score : bool
        Whether decision values are kept.
    binary : BinaryMetrics
        Of two classes, by position, if `by_score`.
    """

    def __init__(
        self, metric: Metric, problem: AnyProblem, store: BlockStore, by_score: bool = False
    ) -> None:
        self._metric, self._places = metric, label_places(problem, store)
        self._codes = model_codes(problem, store)
        is_binary = len(self._codes) == 2 and not problem.listed
        self.by_score = is_binary and (by_score or metric.task == "binary")
        self.clear()

    def clear(self, skip: int = 0) -> None:
        """Remove all rows, and skip the next `skip` rows."""
        self._skip, self.rows = skip, 0
        self._classes = _ClassCounts(len(self._codes))
        self.binary = BinaryMetrics([0.0, 1.0])
        self._probable = ProbabilityMetrics([float(k) for k in range(len(self._codes))])
        self._targets = RegressionMetrics()

    def add(self, y: npt.NDArray[Any], scores: Sequence[npt.NDArray[np.float64]]) -> None:
        """Add class codes or targets, and decision values of each learner."""
        if self._skip > 0:
            self._skip -= len(y)
            return
        self.rows += len(y)
        table = by_label(scores, self._codes)
        if self._metric.name in _OF_PROBABILITIES:
            p = sigmoids(table, len(self._codes))
            self._probable.add(self._places[y].astype(np.float64), p)
        if not self._codes:
            self._targets.add(y, table[:, 0])
        elif self.by_score:
            self.binary.add(self._places[y].astype(np.float64), table[:, 0])
        elif len(self._codes) == 2 and table.shape[1] == 1:
            self._classes.add(self._places[y], (table[:, 0] > 0).astype(np.int64))
        else:
            self._classes.add(self._places[y], np.argmax(table, axis=1))

    @property
    def base_rate(self) -> float | None:
        """The metric of predicting the share of each label; None if it is of no probabilities."""
        if self._metric.name not in _OF_PROBABILITIES:
            return None
        found = self._probable.result()[f"base_{self._metric.name}"]
        return None if found is None else float(found)

    @property
    def figure(self) -> float:
        """The metric; nan if it is undefined (no rows, or for auc only one class)."""
        result: dict[str, Any] = self._targets.result()
        if self._codes:
            result = self.binary.result() if self.by_score else dict(self._classes.result())
        if self._metric.name in _OF_PROBABILITIES:
            result = self._probable.result()
        found = self._metric.of(result)
        return math.nan if found is None else found
