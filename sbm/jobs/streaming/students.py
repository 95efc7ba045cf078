"""What learns a stream: made for the rows, features and classes that are known by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.jobs.machine.kernels import kernels_of
from sbm.jobs.machine.memory import Shape
from sbm.jobs.streaming.options import StreamOptions
from sbm.jobs.streaming.plan import StreamPlan
from sbm.jobs.training.problem import make_problems
from sbm.losses import LOSSES
from sbm.rows import SPARE, Arena, Rows
from sbm.settings import Settings
from sbm.solver.onepass import OnePass, caches_nnz
from sbm.solver.online import ONLINE, OnlinePass
from sbm.solver.problem import AnyProblem, MultiProblem, OneClass, Problem
from sbm.solver.step import Totals

__all__ = [
    "Seen", "Student", "make_student", "problems_of", "shape_of_student", "student_kernels",
]  # fmt: skip


class Student(Protocol):
    """What learns blocks as they come; `OnePass` and `OnlinePass` do."""

    n_rows: int

    @property
    def weights(self) -> list[npt.NDArray[np.float64]]:
        """W of each problem."""

    @property
    def dual(self) -> float | None:
        """A lower bound of the optimum of all rows so far, if there is one."""

    @property
    def n_cached(self) -> int:
        """Rows it keeps."""

    def grow(self, n_features: int) -> None:
        """Give weights to features that are new."""

    def learn(self, rows: Rows) -> Totals:
        """Learn from a block."""

    def polish(self, rounds: int) -> Totals:
        """Solve once more for the rows it keeps."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All there is to go on from."""

    def describe(self) -> dict[str, Any]:
        """What `restore` must know beside that."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]], before: Mapping[str, Any]) -> None:
        """Take over a state, perhaps one of fewer classes or of another size."""


@dataclass(frozen=True)
class Seen:
    """The rows of a stream so far, as `make_problems` wants to know them."""

    n_rows: int
    labels: list[float] | None
    name: str = "the stream"
    label_counts: list[int] = field(default_factory=list)


def problems_of(
    settings: Settings, options: StreamOptions, labels: list[float] | None
) -> list[AnyProblem]:
    """Make the problems of the classes known so far; for online learners those they are told by.

    Class weights of labels that have not come yet wait.
    """
    if options.learner in ONLINE:
        many = labels is not None and len(labels) > 2
        settings = replace(settings, loss="crammer_singer" if many else "hinge")
    weights = {} if isinstance(settings.class_weight, str) else dict(settings.class_weight)
    if labels is not None:
        weights = {label: weight for label, weight in weights.items() if label in labels}
    settings = replace(settings, class_weight=weights)
    loss = LOSSES[settings.loss]
    if loss.joint and labels is not None and len(labels) == 1:  # for now
        cost = settings.C * weights.get(labels[0], 1.0)
        return [MultiProblem(loss, np.array([cost]), settings.C, settings.bias)]
    return make_problems(settings, Seen(1, labels))


def shape_of_student(problems: list[AnyProblem], options: StreamOptions) -> Shape:
    """Return what decides the memory beside the rows."""
    copies = 1 + (sum(p.n_outputs for p in problems) > 1)  # columns are sorted for the model
    if isinstance(problems[0], OneClass):
        copies = 3
    if options.learner in ONLINE:
        copies += ONLINE[options.learner].n_arrays - 1
    row_bytes = 0 if problems[0].classify else 4
    listed = problems[0].listed
    return Shape(0, [p.n_outputs for p in problems], listed, copies=copies, row_bytes=row_bytes)


def student_kernels(settings: Settings, options: StreamOptions, problems: list[AnyProblem]) -> str:
    """Name the kernels, for `sbm.jobs.machine.kernels.prepare`."""
    kind = "online" if options.learner in ONLINE else kernels_of(settings, problems)
    return f"stream-{kind}"


def make_student(
    settings: Settings,
    options: StreamOptions,
    problems: list[AnyProblem],
    plan: StreamPlan,
    y_dtype: str,
    spread: Callable[..., Iterable[Any]],
) -> tuple[Student, list[Rows]]:
    """Set room aside, and make what learns in it; also return two rooms for blocks.

    Parameters
    ----------
    settings, options, problems, plan
        Of the stream.
    y_dtype : str
        int32 for class codes, float64 for targets.
    spread : callable
        A ``map`` that may work in threads.
    """
    size = plan.size
    arena = Arena.of(caches_nnz(size, len(problems)) + 2 * size.block_nnz + SPARE, plan.value_type)
    slots = [arena.room(size.block_rows, y_dtype) for _ in range(2)]
    if options.learner not in ONLINE:
        return OnePass(
            problems, arena, size, y_dtype, rounds=int(settings.rounds), policy=settings.policy,
            seed=settings.seed, spread=spread,
        ), slots  # fmt: skip
    first = problems[0]
    return OnlinePass(
        ONLINE[options.learner], C=settings.C, decay=options.decay, bias=settings.bias,
        positive=first.positive if isinstance(first, Problem) else 0, n_outputs=first.n_outputs,
        features=size.features,
    ), slots  # fmt: skip
