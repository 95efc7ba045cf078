"""What a training needs to calibrate probabilities: a second model, and rows it never sees.

Decision values of rows that were trained on are too good to fit probabilities to. So a second model
learns beside the first one, from the same blocks, but not from the rows of one fold; its decision
values of these rows are what the probabilities of the first one are fitted to (Platt 1999).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError
from sbm.jobs.engine import Folds
from sbm.jobs.problem import choose_task, make_problems
from sbm.settings import Settings
from sbm.solver.losses import find_loss
from sbm.solver.problem import AnyProblem
from sbm.store.blocks import BlockStore

__all__ = ["FOLDS", "HELD_OUT_BYTES", "Collector", "held_out_problems"]

FOLDS = Folds(5, seed=0)
HELD_OUT_BYTES = 16_000_000  # of decision values; more rows than fit would change little


def held_out_problems(settings: Settings, store: BlockStore) -> list[AnyProblem]:
    """Make the problems of the second model; none unless it is asked for.

    Raises
    ------
    SettingsError
        The loss has probabilities of its own, or can have none.
    """
    if not settings.calibrate:
        return []
    loss = find_loss(settings.loss)
    if loss.name == "log_loss":
        raise SettingsError(
            "log_loss needs no --calibrate: its decision values are log odds; leave it out"
        )
    if choose_task(settings, loss) != "classification":
        raise SettingsError(f"calibrate is for classes, and {loss.name} has none; leave it out")
    return make_problems(settings, store)


class Collector:
    """Keeps decision values of held-out rows, the first ones that there is room for.

    Rows lie in random order in a store, so the first ones are as good as any.

    Parameters
    ----------
    room : int
        Most decision values.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._y: list[npt.NDArray[Any]] = []
        self._scores: list[npt.NDArray[np.float64]] = []

    def add(self, y: npt.NDArray[Any], scores: npt.NDArray[np.float64]) -> None:
        """Keep rows while there is room."""
        n = min(len(y), self._room // scores.shape[1])
        self._room -= n * scores.shape[1]
        self._y.append(y[:n].copy())
        self._scores.append(scores[:n].copy())

    @property
    def y(self) -> npt.NDArray[Any]:
        """Class codes, shape (n_rows,)."""
        return np.concatenate(self._y)

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """Decision values, shape (n_rows, n_outputs)."""
        return np.concatenate(self._scores)
