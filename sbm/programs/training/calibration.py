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

from sbm.engine.problems import by_label, label_places, model_codes
from sbm.models.probabilities import calibrate
from sbm.programs.training.fit import fit
from sbm.programs.training.needs import HELD_OUT_BYTES
from sbm.programs.training.training import Training

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
    second = training.second()
    fit(second)
    problem, store = training.problems[0], training.job.store
    room = HELD_OUT_BYTES // 24  # a copy is made of them
    collector = Collector(model_codes(problem, store), label_places(problem, store), room)
    second.method.read_held_out(collector)
    return collector.calibrate(problem.loss.joint)
