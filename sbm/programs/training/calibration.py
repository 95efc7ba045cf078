"""Calibrate probabilities with a second model and held-out rows (Platt 1999).

Decision values of training rows are too optimistic to fit probabilities to. So a second model
learns from the same blocks, but without the rows of one fold. Probabilities are fitted to its
decision values of that fold.
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
    model_codes,
)
from sbm.models.probabilities import calibrate
from sbm.programs.training.dual import RowMethod
from sbm.programs.training.needs import HELD_OUT_BYTES
from sbm.programs.training.training import Training
from sbm.solver.gap import GapWatch

__all__ = ["Collector", "calibrate_beside"]


class Collector:
    """Collects decision values of held-out rows, up to a limit.

    It keeps the first rows. They are a random sample, unless the store was split without shuffling.

    Parameters
    ----------
    codes : list of int
        Class codes in the order of the model's labels.
    places : ndarray of int
        Position of each class code among these.
    room : int
        Maximum number of decision values.
    """

    def __init__(self, codes: list[int], places: npt.NDArray[np.intp], room: int) -> None:
        self._by, self._places, self._room = codes, places, room
        self._codes: list[npt.NDArray[np.intp]] = []
        self._scores: list[npt.NDArray[np.float64]] = []

    def add(self, y: npt.NDArray[Any], scores: Sequence[npt.NDArray[np.float64]]) -> None:
        """Add class codes, shape (n,), and decision values until the limit is reached."""
        table = by_label(scores, self._by)
        n = min(len(y), self._room // table.shape[1])
        self._room -= n * table.shape[1]
        self._codes.append(self._places[y[:n]])
        self._scores.append(table[:n].copy())

    def calibrate(self, joint: bool) -> dict[str, Any]:
        """Fit probabilities; see `sbm.models.probabilities.calibrate`."""
        n_outputs = len(self._by) if len(self._by) > 2 or joint else 1
        scores = np.concatenate([*self._scores, np.empty((0, n_outputs))])
        self._scores.clear()
        codes = np.concatenate([*self._codes, np.empty(0, np.intp)])
        return calibrate(scores, codes, joint=joint)


def calibrate_beside(training: Training) -> dict[str, Any]:
    """Finish training the second model, and fit probabilities on its held-out fold.

    Parameters
    ----------
    training : Training
        A training whose first model is finished.

    Returns
    -------
    dict
        The entry ``calibration`` of `Model.info`.
    """
    method = training.method
    assert isinstance(method, RowMethod)
    set_active(method.learners, False)
    _train_second(training, method)
    problem, store = training.problems[0], training.job.store
    room = HELD_OUT_BYTES // 24  # a copy is made of them
    collector = Collector(model_codes(problem, store), label_places(problem, store), room)
    group = Group(method.spare_learners, collector)
    for visit in visit_all(method.engine, "calibrate"):
        group.evaluate(visit.rows, visit.folds)
    return collector.calibrate(problem.loss.joint)


def _train_second(training: Training, method: RowMethod) -> None:
    """Run passes of only the second model until its estimated gap is small enough."""
    state, engine = training.state, method.engine
    for learner in method.spare_learners:  # a warm start may have needed no pass
        learner.solver.rounds = state.rounds[-1] if state.rounds else method.rounds()
    if not state.calibrating:
        state.watch = GapWatch(training.task.tol)
    engine.last_pass = state.passes + training.task.max_passes
    while not state.is_calibrated:
        if engine.now is None:
            state.calibrating += 1
        is_done = method.run_second_pass()
        is_late = training.is_late() or state.calibrating == training.task.max_passes
        state.is_calibrated = is_done or is_late
        training.commit_if_due(0.0 if state.is_calibrated else None)
