"""The grid of a tuning: its models, their metric, and their comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from sbm.engine.learners import Group, Learner, set_active
from sbm.errors import DataError
from sbm.plain import dataclass
from sbm.programs.training.evaluation import Evaluation, Metric
from sbm.solver.gap import Certificate
from sbm.solver.problem import AnyProblem

__all__ = ["LOOSER", "Candidate", "Grid", "known_figures", "lag", "mean_figure"]

# Folds are trained to this multiple of the tolerance, which is enough to find the best C.
LOOSER = 10.0


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
    base_rate: float | None = None  # the metric of predicting the share of each label

    @property
    def every(self) -> list[AnyProblem]:
        """The problems of all learners."""
        return [problem for mine in self.problems for problem in mine]

    @property
    def held_out(self) -> list[int]:
        """The held-out fold of each learner."""
        return [k % self.n_folds for k, mine in enumerate(self.problems) for _ in mine]

    def report(self, table: list[dict[str, Any]], where: str) -> dict[str, Any]:
        """Return the report of `sbm.tune` about a table with a row for each C.

        Raises
        ------
        DataError
            The metric is undefined on all folds of the rows, which are `where`.
        """
        left = [row for row in table if row["status"] in ("converged", "not converged")]
        judged = [row for row in left if row["mean"] is not None]
        if not judged:
            raise DataError(
                f"{self.metric.name} is undefined on all {self.n_folds} folds of {where}: they "
                "have too few rows or only one label; use fewer folds or another metric"
            )
        best = max(judged, key=lambda row: self.metric.sign * row["mean"])
        return {
            "metric": self.metric.name, "base_rate": self.base_rate, "folds": self.n_folds,
            "best": best["C"], "settings": table,
        }  # fmt: skip


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
    ratio : float
        Certified gap over the estimated one, at least 1; 1 before the first certificate.
    certificate : Certificate or None
    """

    C: float
    group: Group
    evaluation: Evaluation
    metrics: list[float] = field(default_factory=list)
    gap: float = math.inf
    passes: int = 0
    ratio: float = 1.0
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
            "passes": self.passes, "ratio": self.ratio, "seconds": seconds,
            "certificate": self.certificate.to_dict() if self.certificate else None,
        }  # fmt: skip

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the state from a `record`."""
        self.set_active(record["is_active"])
        self.metrics, self.gap = list(record["metrics"]), float(record["gap"])
        self.passes, self.ratio = int(record["passes"]), float(record["ratio"])
        if record["certificate"] is not None:
            self.certificate = Certificate(**record["certificate"])
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
