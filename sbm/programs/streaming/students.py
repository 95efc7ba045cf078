"""What learns a stream: made for the rows, features and classes that are known by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sbm.engine.kernels import kernels_of
from sbm.engine.memory import Shape
from sbm.engine.problems import make_problems
from sbm.losses import LOSSES
from sbm.programs.streaming.plan import StreamPlan
from sbm.rows import SPARE, Arena, Rows
from sbm.settings import Settings
from sbm.solver.onepass import OnePass, caches_nnz
from sbm.solver.problem import AnyProblem, MultiProblem, OneClass

__all__ = ["Seen", "learner_kernels", "learner_shape", "make_learner", "problems_of"]


@dataclass(frozen=True)
class Seen:
    """The rows of a stream so far, as `make_problems` wants to know them."""

    n_rows: int
    labels: list[float] | None
    name: str = "the stream"
    label_counts: list[int] = field(default_factory=list)


def problems_of(settings: Settings, labels: list[float] | None) -> list[AnyProblem]:
    """Make the problems of the classes known so far; class weights of later labels wait."""
    weights = {} if isinstance(settings.class_weight, str) else dict(settings.class_weight)
    if labels is not None:
        weights = {label: weight for label, weight in weights.items() if label in labels}
    settings = replace(settings, class_weight=weights)
    loss = LOSSES[settings.loss]
    if loss.joint and labels is not None and len(labels) == 1:  # for now
        cost = settings.C * weights.get(labels[0], 1.0)
        return [MultiProblem(loss, np.array([cost]), settings.C, settings.bias)]
    return make_problems(settings, Seen(1, labels))


def learner_shape(problems: list[AnyProblem]) -> Shape:
    """Return what decides the memory beside the rows."""
    copies = 1 + (sum(p.n_outputs for p in problems) > 1)  # columns are sorted for the model
    if isinstance(problems[0], OneClass):
        copies = 3
    row_bytes = 0 if problems[0].classify else 4
    listed = problems[0].listed
    return Shape(0, [p.n_outputs for p in problems], listed, copies=copies, row_bytes=row_bytes)


def learner_kernels(settings: Settings, problems: list[AnyProblem]) -> str:
    """Name the kernels, for `sbm.engine.kernels.prepare`."""
    return f"stream-{kernels_of(settings, problems)}"


def make_learner(
    settings: Settings,
    problems: list[AnyProblem],
    plan: StreamPlan,
    y_dtype: str,
    spread: Callable[..., Iterable[Any]],
) -> tuple[OnePass, list[Rows]]:
    """Set room aside, and make what learns in it; also return two rooms for blocks.

    Parameters
    ----------
    settings, problems, plan
        Of the stream.
    y_dtype : str
        int32 for class codes, float64 for targets.
    spread : callable
        A ``map`` that may work in threads.
    """
    size = plan.size
    arena = Arena.of(caches_nnz(size, len(problems)) + 2 * size.block_nnz + SPARE, plan.value_type)
    slots = [arena.room(size.block_rows, y_dtype) for _ in range(2)]
    learner = OnePass(
        problems, arena, size, y_dtype, rounds=int(settings.rounds), policy=settings.policy,
        seed=settings.seed, spread=spread,
    )  # fmt: skip
    return learner, slots
