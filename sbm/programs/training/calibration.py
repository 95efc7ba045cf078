"""What a training needs to calibrate probabilities: a second model, and rows it never sees.

Decision values of rows that were trained on are too good to fit probabilities to. So a second model
learns beside the first one, from the same blocks, but not from the rows of one fold; its decision
values of these rows are what the probabilities of the first one are fitted to (Platt 1999).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.certificate import visit_all
from sbm.engine.learners import Group, set_active
from sbm.engine.problems import (
    by_label,
    label_places,
    model_labels,
)  # fmt: skip
from sbm.models.probabilities import calibrate
from sbm.programs.training.setup import HELD_OUT_BYTES
from sbm.programs.training.training import Training
from sbm.solver.gap import GapWatch

__all__ = ["Collector", "calibrate_beside"]


class Collector:
    """Keeps decision values of held-out rows, the first ones that there is room for.

    Rows lie in random order in a store, unless it was split without shuffling, so the first ones
    are as good as any.

    Parameters
    ----------
    labels : list of float
        Of the model, by class code.
    places : ndarray of int
        Position of each class code among the labels in ascending order.
    room : int
        Most decision values.
    """

    def __init__(self, labels: list[float], places: npt.NDArray[np.intp], room: int) -> None:
        self._labels, self._places, self._room = labels, places, room
        self._codes: list[npt.NDArray[np.intp]] = []
        self._scores: list[npt.NDArray[np.float64]] = []

    def add(self, y: npt.NDArray[Any], scores: Sequence[npt.NDArray[np.float64]]) -> None:
        """Keep rows while there is room."""
        table = by_label(scores, self._labels)
        n = min(len(y), self._room // table.shape[1])
        self._room -= n * table.shape[1]
        self._codes.append(self._places[y[:n]])
        self._scores.append(table[:n].copy())

    def calibrate(self, joint: bool) -> dict[str, Any]:
        """Fit probabilities; see `sbm.models.probabilities.calibrate`."""
        n_outputs = len(self._labels) if len(self._labels) > 2 or joint else 1
        scores = np.concatenate([*self._scores, np.empty((0, n_outputs))])
        self._scores.clear()
        codes = np.concatenate([*self._codes, np.empty(0, np.intp)])
        return calibrate(scores, codes, joint=joint)


def calibrate_beside(training: Training) -> dict[str, Any]:
    """Train the second model to its end, and fit probabilities to what it says of its own fold.

    Parameters
    ----------
    training : Training
        The first model of which is done.

    Returns
    -------
    dict
        What a model says of its probabilities.
    """
    set_active(training.learners, False)
    _train_second(training, Group(training.spare_learners))
    problem, store = training.problems[0], training.job.store
    room = HELD_OUT_BYTES // 24  # a copy is made of them
    collector = Collector(model_labels(problem, store), label_places(problem, store), room)
    group = Group(training.spare_learners, collector)
    for visit in visit_all(training.engine, "calibrate"):
        group.evaluate(visit.rows, visit.folds)
    return collector.calibrate(problem.loss.joint)


def _train_second(training: Training, second: Group) -> None:
    """Go on with passes over the second model alone, until its gap is estimated to be small."""
    state, engine, settings = training.state, training.engine, training.settings
    for learner in second.learners:  # after a warm start there may have been no pass yet
        learner.solver.rounds = state.rounds[-1] if state.rounds else training.rounds()
    if not state.calibrating:
        state.watch = GapWatch(settings.tol)
    engine.last_pass = state.passes + settings.max_passes
    while not state.is_calibrated:
        if engine.now is None:
            state.calibrating += 1
        totals, _ = engine.run_pass(state.passes + state.calibrating)
        is_late = training.is_late() or state.calibrating == settings.max_passes
        state.is_calibrated = state.watch.is_due(*second.estimate(totals)) or is_late
        training.commit_if_due(0.0 if state.is_calibrated else None)
