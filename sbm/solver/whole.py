"""The working set of a part that has all rows: these rows and variables, where they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense
from sbm.rows import Arena, Rows
from sbm.solver.block import Block
from sbm.solver.cache import Evicted, WorkingSet
from sbm.solver.variables import DenseSet

__all__ = ["WholeSet"]


class WholeSet(WorkingSet):
    """The rows of the only part, each with one variable. It has no cache.

    If most rows are visited, they stay where they are, and the others rest during the step. Few
    rows are copied: visits and rounds take less time if they are next to each other.

    Parameters
    ----------
    arena : Arena
    n_rows : int
    y_dtype, weighted
        As in `WorkingSet`.

    Attributes
    ----------
    alpha : DenseSet
        During a step, the variables of the rows that are visited.
    every : Dense
        The variables of all rows, at any other time.
    """

    def __init__(
        self, arena: Arena, n_rows: int, y_dtype: npt.DTypeLike, weighted: bool = False
    ) -> None:
        super().__init__(arena, DenseSet(0), 0, 0, y_dtype, weighted=weighted)
        self.alpha: DenseSet
        self.every, self._places = Dense(np.empty(n_rows)), np.empty(0, np.int64)
        self.score, self.rest = np.empty(n_rows, np.float32), np.zeros(n_rows, np.uint8)
        self.home = np.zeros(n_rows, np.int32)  # never written, so it takes no memory

    def merge(self, block: Block, rows: Rows, alpha: Alphas, moving: npt.NDArray[np.bool_]) -> int:
        """Take the rows of the part, whose variables are `every`; return 0."""
        is_most = 2 * np.count_nonzero(moving) > len(rows)
        self._places = np.empty(0, np.int64) if is_most else np.flatnonzero(moving)
        chosen = rows if is_most else rows.take(self._places)
        self.n = len(chosen)
        self.starts, self.lengths, self.y = chosen.starts, chosen.lengths, chosen.y
        self.weights = chosen.weights
        if is_most:
            self.alpha.values = self.every.values
            np.subtract(moving.view(np.uint8), 1, out=self.rest[: self.n])  # 0, or OUT
        else:
            self.alpha.values = self.every.values[self._places]
            self.rest[: self.n] = 0
        return 0

    def wake(self) -> None:
        """Leave rows at rest that were screened."""

    def select(
        self,
        rank: npt.NDArray[np.float32],
        is_free: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]],
    ) -> npt.NDArray[np.bool_]:
        """Return nothing: there is no cache."""
        return self._keep

    def compact(self, keep: npt.NDArray[np.bool_], block: Block, alpha: Alphas) -> Evicted:
        """Let the rows go; their variables stay in `every`."""
        if self.alpha.values is not self.every.values:
            self.every.values[self._places] = self.alpha.values
        self.alpha, self._places = DenseSet(0), np.empty(0, np.int64)
        self.n = 0
        none = np.empty(0, np.int32)
        return Evicted(none, none, Dense(np.empty(0)))
