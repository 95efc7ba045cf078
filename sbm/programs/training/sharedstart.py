"""The shared start of one-vs-rest: every class starts from the optimum of "all rows are negative".

Without this, each class must first push all rows to the negative side, which is the same work for
all of them, and with many small classes most of it. So the problem without positive rows is solved
once. A class starts from its variables, except those of its own rows, which are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sbm.alphas import Lists
from sbm.engine.certificate import visit_all
from sbm.engine.engine import Engine
from sbm.engine.learners import Learner, Visit
from sbm.engine.memory import MemoryPlan
from sbm.programs.training.warmstart import PreviousRun
from sbm.solver.gap import Certificate
from sbm.solver.problem import AnyProblem, MultiProblem
from sbm.solver.variables import admit_block
from sbm.store.blocks import BlockStore
from sbm.store.run import Run

__all__ = ["SharedStart"]


class SharedStart(PreviousRun):
    """The run of the problem without positive rows, as the start of some classes.

    Parameters
    ----------
    folder : Path
    store : BlockStore
    itself : mapping
        `identity` of the new training.
    problems : sequence of MultiProblem
        Groups of classes of one-vs-rest.
    """

    def __init__(
        self,
        folder: Path,
        store: BlockStore,
        itself: dict[str, Any],
        problems: Sequence[AnyProblem],
    ) -> None:
        super().__init__([folder], store, itself, problems)
        self._problems = [one for one in problems if isinstance(one, MultiProblem)]

    def _refuse_others(self, *_: Any) -> None:
        """Refuse nothing: its settings are derived from those of the training."""

    def new_parts(self, plan: MemoryPlan) -> list[int]:
        """Return no parts: it had all rows."""
        return []

    def hand_over(self, run: Run, plan: MemoryPlan, own: Sequence[int]) -> None:
        """Store its variables as those of each class."""
        for number, one in self._of_parts(plan, own, 0):
            assert isinstance(one, Lists)
            for k, problem in enumerate(self._problems):
                n = problem.n_outputs
                outputs = np.tile(np.arange(n, dtype=np.int32), len(one.values))
                lists = Lists(n * one.offsets, outputs, np.repeat(one.values, n))
                run.store(k * len(plan.parts) + number, lists)

    def start(self, engine: Engine, tol: float) -> Certificate | None:
        """Set W and variables of the learners; the own rows of a class get variables of 0."""
        shared = self._first.of("W", 0)
        for learner in engine.learners:
            learner.solver.W[:] = shared
            learner.solver.dual_sum = 0.0
        for visit in visit_all(engine, "shared start"):
            for learner in engine.learners:
                _release(visit, learner, engine)
        self._processes = []  # free their memory
        return None


def _release(visit: Visit, learner: Learner, engine: Engine) -> None:
    """Set the variables of the own rows of each class to 0, and move W."""
    problem, rows, solver = learner.solver.problem, visit.rows, learner.solver
    alpha = visit.own[learner.number].alpha
    assert isinstance(alpha, Lists)
    assert isinstance(problem, MultiProblem)
    places = np.repeat(np.arange(len(rows)), alpha.counts)
    is_own = alpha.outputs == rows.y[places] - problem.first
    for at in np.flatnonzero(is_own):
        i, k, change = places[at], alpha.outputs[at], alpha.values[at]
        own = slice(rows.starts[i], rows.starts[i] + rows.lengths[i])
        values = 1.0 if rows.values is None else rows.values[own]
        np.add.at(solver.W[:, k], rows.indices[own], change * values)
        if problem.bias > 0:
            solver.W[-1, k] += change * problem.bias
    places, outputs, kept = places[~is_own], alpha.outputs[~is_own], alpha.values[~is_own]
    ends = np.cumsum(np.bincount(places, minlength=len(rows)))
    alpha.set(np.concatenate([[0], ends]), outputs, kept)
    admit_block(solver.working.alpha, visit.block, alpha)
    solver.dual_sum += float(alpha.values.sum())
    if problem.loss.squared:
        weights = np.ones(len(rows)) if rows.weights is None else rows.weights
        each = alpha.values**2 / np.repeat(weights, alpha.counts)
        solver.dual_sum -= float(each.sum()) / (4 * problem.cost_rest)
    engine.store_alpha(learner.number, visit.block, alpha)
