"""What a tuning tries: models of every C and fold, and how far one is behind another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sbm.jobs.engine.learners import Group, Learner, set_active
from sbm.jobs.tuning.exam import Exam, Metric
from sbm.solver.gap import Certificate
from sbm.solver.problem import AnyProblem

__all__ = ["Candidate", "Grid", "known_figures", "lag", "mean_figure"]


@dataclass(frozen=True)
class Grid:
    """Every C with every fold, by C first.

    Attributes
    ----------
    Cs : list of float
        Ascending.
    n_folds : int
    metric : Metric
    problems : list of list of Problem or MultiProblem
        Of each model.
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
        """The fold that each learner does without."""
        return [k % self.n_folds for k, mine in enumerate(self.problems) for _ in mine]


@dataclass
class Candidate:
    """A model of one C and one fold.

    Attributes
    ----------
    C : float
    group : Group
        Its learners.
    exam : Exam
        The rows that it is judged by.
    metrics : list of float
        Of each pass.
    gap : float
        Relative, estimated in the last pass.
    passes : int
    certificate : Certificate or None
    """

    C: float
    group: Group
    exam: Exam
    metrics: list[float] = field(default_factory=list)
    gap: float = math.inf
    passes: int = 0
    certificate: Certificate | None = None

    @property
    def learners(self) -> Sequence[Learner]:
        """One, or one a class."""
        return self.group.learners

    def record(self) -> dict[str, Any]:
        """What it came to by the end of a pass, as JSON; `restore` undoes it."""
        seconds = [learner.seconds for learner in self.learners]
        return {
            "is_active": self.is_active, "metrics": self.metrics, "gap": self.gap,
            "passes": self.passes, "seconds": seconds,
        }  # fmt: skip

    def restore(self, record: Mapping[str, Any]) -> None:
        """Undo `record`."""
        self.set_active(record["is_active"])
        self.metrics, self.gap = list(record["metrics"]), float(record["gap"])
        self.passes = int(record["passes"])
        for learner, seconds in zip(self.learners, record["seconds"], strict=True):
            learner.seconds = float(seconds)

    def set_active(self, active: bool) -> None:
        """Take part in the passes to come, or not."""
        set_active(self.learners, active)

    @property
    def is_active(self) -> bool:
        """Whether it takes part in the passes to come."""
        return self.learners[0].is_active

    @property
    def seconds(self) -> float:
        """Time of a thread that it took."""
        return sum(learner.seconds for learner in self.learners)


def known_figures(figures: Sequence[float]) -> list[float]:
    """Return those that have a meaning."""
    return [x for x in figures if not math.isnan(x)]


def mean_figure(figures: Sequence[float]) -> float:
    """Return the mean of those that have a meaning; -inf where none has."""
    known = known_figures(figures)
    return statistics.fmean(known) if known else -math.inf


def lag(best: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return how much others are behind the best, fold by fold: the mean and its error."""
    behind = known_figures([b - other for b, other in zip(best, others, strict=True)])
    if len(behind) < 2:
        return 0.0, math.inf
    return statistics.fmean(behind), statistics.stdev(behind) / math.sqrt(len(behind))
