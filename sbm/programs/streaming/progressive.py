"""Progressive validation: each row is predicted before it is learned (Blum et al., COLT 1999).

The running mean of the loss estimates the quality on future rows without a test set. It is reported
each time the number of rows has doubled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.losses import Loss
from sbm.plain import dataclass
from sbm.solver.problem import TOO_LARGE, AnyProblem, OneClass, Problem

Floats: TypeAlias = npt.NDArray[np.float64]

FIRST_MARK = 1024  # rows


@dataclass
class Sums:
    """Sums over rows."""

    # rows, correct: number of rows, and of correct predictions (one-class: rows inside)
    rows: int = 0
    correct: int = 0
    loss: float = 0.0  # sum of losses, without C

    def add(self, correct: npt.NDArray[np.bool_], losses: Floats) -> None:
        """Add rows. Raises `DataError` if the sum of losses exceeds the range of a float."""
        self.rows += len(losses)
        self.correct += int(np.count_nonzero(correct))
        with np.errstate(over="ignore"):
            self.loss += float(losses.sum())
        if not math.isfinite(self.loss):
            raise DataError(TOO_LARGE)

    def means(self) -> tuple[float | None, float | None]:
        """Return mean loss and share of correct rows; None if there are no rows."""
        return (self.loss / self.rows, self.correct / self.rows) if self.rows else (None, None)


class Progressive:
    """Running loss and accuracy, reported each time the number of rows has doubled.

    Parameters
    ----------
    tell : callable
        Receives a record: rows, loss, accuracy, and loss and accuracy since the last record.
    state : dict, optional
        A result of `state`, to resume from.
    """

    def __init__(
        self, tell: Callable[[dict[str, Any]], None], state: dict[str, Any] | None = None
    ) -> None:
        self._tell = tell
        state = state or {}
        self.all = Sums(**state.get("all", {}))
        self._last = Sums(**state.get("last", {}))
        self._mark = int(state.get("mark", FIRST_MARK))

    def state(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON."""
        return {"all": asdict(self.all), "last": asdict(self._last), "mark": self._mark}

    def add(self, correct: npt.NDArray[np.bool_], losses: Floats) -> None:
        """Add rows, in order."""
        begin = 0
        while begin < len(losses):
            end = min(len(losses), begin + self._mark - self.all.rows)
            for sums in (self.all, self._last):
                sums.add(correct[begin:end], losses[begin:end])
            begin = end
            if self.all.rows == self._mark:
                self._mark *= 2
                self.tell()

    def tell(self) -> None:
        """Report the figures so far."""
        loss, accuracy = self.all.means()
        last_loss, last_accuracy = self._last.means()
        self._last = Sums()
        self._tell({
            "rows": self.all.rows, "loss": loss, "accuracy": accuracy,
            "last_loss": last_loss, "last_accuracy": last_accuracy,
        })  # fmt: skip


def row_losses(
    loss: Loss, problems: Sequence[AnyProblem], y: npt.NDArray[Any], table: Floats
) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Return which rows are predicted correctly, and the loss of each, without C.

    Parameters
    ----------
    y : ndarray, shape (n,), int32 or float64
        Class codes or targets.
    table : ndarray, shape (n, n_outputs of all problems), float64
        Decision values, by class code.

    Returns
    -------
    correct : ndarray, shape (n,), bool
        All false for targets.
    losses : ndarray, shape (n,), float64
        Infinite if a loss exceeds the range of a float.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _row_losses(loss, problems, y, table)


def _row_losses(
    loss: Loss, problems: Sequence[AnyProblem], y: npt.NDArray[Any], table: Floats
) -> tuple[npt.NDArray[np.bool_], Floats]:
    first = problems[0]
    if isinstance(first, OneClass):
        inside = table[:, 0] >= first.rho
        return inside, np.maximum(0.0, first.rho - table[:, 0])
    if not first.classify:
        assert isinstance(first, Problem)
        off = np.abs(y - table[:, 0])
        losses = np.maximum(0.0, off - first.epsilon)
        return np.zeros(len(y), np.bool_), losses**2 if loss.squared else losses
    if isinstance(first, Problem) and table.shape[1] == 1:
        signs = np.where(y == first.positive, 1.0, -1.0)
        assert loss.of_margin is not None
        return (table[:, 0] > 0) == (signs > 0), loss.of_margin(signs * table[:, 0])
    places = np.arange(len(y))
    correct = np.argmax(table, axis=1) == y
    if loss.joint:
        slack = np.maximum(0.0, 1.0 - table[places, y][:, np.newaxis] + table)
        slack[places, y] = 0.0
        worst: Floats = slack.max(axis=1) if loss.name == "crammer_singer" else slack.sum(axis=1)
        return correct, worst
    signs = np.full(table.shape, -1.0)
    signs[places, y] = 1.0
    assert loss.of_margin is not None
    return correct, loss.of_margin(signs * table).sum(axis=1)
