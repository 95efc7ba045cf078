"""Accelerated coordinate descent for rows that stay in memory.

A step adds the term ½κ|W - Y|², with which a few rounds are enough. Between steps, Y is
extrapolated from the last two W (`sbm.solver.proximal`).

With the term, the optimum is W = θY + Σ α s x, where θ = κ / (1 + κ), and α has the costs
C / (1 + κ): the kernels of coordinate descent find it. In the end W = Y, and (1 + κ) α are the dual
variables of the problem itself.

If columns are of very different size, the term is ½ Σ K_j (W_j - Y_j)² with 1 + K_j = (1 + κ) m_j²
(`sbm.solver.metric`). In units of m_j, V = m W and x / m, all of the above holds with
θ_j = K_j / (1 + K_j).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists, cut, no_alphas
from sbm.rows import Rows
from sbm.solver.gap import Certificate
from sbm.solver.metric import Metric
from sbm.solver.newton import FullBatch, Given
from sbm.solver.problem import AnyProblem, Rounds, mean_square, room_for_order
from sbm.solver.proximal import Extrapolation, too_hard
from sbm.solver.step import INNER_TOL, chunk_of
from sbm.solver.sums import slices_of
from sbm.solver.variables import ListPool

__all__ = ["Accelerated"]

Floats = npt.NDArray[np.float64]

_STEPS = 5  # of a pass
_VISITS = 200_000_000  # nonzeros times outputs, between two pauses
# Rounds of a step, and their growth from pass to pass: errors of the steps add up.
_ROUNDS, _GROWTH = 20.0, 1.25


class _Visits:
    """Rounds over rows that are visited together."""

    def __init__(self, rows: Rows, alpha: Alphas, random: npt.NDArray[np.uint64], K: int) -> None:
        self.n, self.rows, self.alpha = len(rows), rows, _changeable(alpha, K)
        n, chunk = self.n, chunk_of(rows.lengths)
        self.home, self.score = np.zeros(n, np.int32), np.empty(n, np.float32)
        self.rest = np.zeros(n, np.uint8)
        order = np.empty(room_for_order(n, chunk), np.int32)
        self.how = Rounds(self.home[:1], 1, chunk, INNER_TOL, random, np.empty(n, np.int32), order)

    def run(self, problem: AnyProblem, W: Floats, rounds: int) -> None:
        """Do some rounds."""
        problem.solve(self, W, replace(self.how, rounds=rounds))

    def alphas(self) -> Alphas:
        """Return the variables."""
        return self.alpha.copy(self.n) if isinstance(self.alpha, ListPool) else self.alpha


def _changeable(alpha: Alphas, n_outputs: int) -> Dense | ListPool:
    """Return variables that `solve` can change."""
    if isinstance(alpha, Dense):
        return alpha
    pool = ListPool(len(alpha), 0, n_outputs, [len(alpha)], n_outputs)
    pool.fill(alpha)
    pool.held[0] = len(alpha.values)
    return pool


class Accelerated(FullBatch):
    """Accelerated coordinate descent; see the module.

    Parameters
    ----------
    given : Given
    is_late : callable
        Called after some rounds; returns whether to end the pass, and may raise an exception.
    """

    name = "accelerated"
    is_new = False

    def __init__(self, given: Given, is_late: Callable[[], bool]) -> None:
        super().__init__(given)
        self._is_late = is_late
        self._rows: Rows | None = None
        self._alpha: Alphas | None = None
        self._random = np.array([1], np.uint64)  # state of the kernels' generator
        self.metric: Metric | None = None
        self.kappa, self.rounds = 0.0, _ROUNDS
        self._way = Extrapolation(self.W)

    def _begin(self, rows: Rows, factor: float, tol: float) -> None:
        """Learn nothing: the optimum of a few rows is far from that of all."""

    def add(self, block: int, rows: Rows) -> list[Alphas]:
        """Add the rows, which are those of a single block; return their alphas by slice."""
        self._rows = rows
        alpha = no_alphas(len(rows), self.problem.listed) if self._alpha is None else self._alpha
        self._alpha = alpha

        def work(k: int) -> tuple[Alphas, Floats]:
            part, mine = parts[k], pieces[k].times(1.0 + self.kappa)
            self.problem.make_feasible(part, mine)  # rounding
            return mine, self.certify_slice(k, part, mine)

        parts = slices_of(rows)
        pieces = cut(alpha, [len(part) for part in parts])
        found = list(self.sums.spread(work, range(len(parts))))
        self._certifier.sums += [sums for _, sums in found]
        return [mine for mine, _ in found]

    def move(self, certificate: Certificate, tol: float = 0.0) -> bool:
        """Set `W` for the next pass; return whether there is progress to be made.

        With a `metric`, it must be applied to the rows.
        """
        assert self._rows is not None
        assert self._alpha is not None
        units = 1.0 if self.metric is None else self.metric.units
        self.W *= units  # now V
        try:
            if self._way.momentum < 0:
                self._start(self._rows)
            problem = self.problem.with_costs(1.0 / (1.0 + self.kappa))
            visits = _Visits(self._rows, self._alpha, self._random, self.W.shape[1])
            self.visits = 0
            for _ in range(_STEPS if self._pull.any() else 1):
                self._way.move(self.W, self._pull)
                if self._descend(visits, problem):
                    break
            self._alpha = visits.alphas()
        finally:
            self.W /= units
        self.rounds *= _GROWTH
        return True

    @property
    def _pull(self) -> Floats:
        """θ, shape (n_weights, 1) or (1, 1)."""
        units = np.ones((1, 1)) if self.metric is None else self.metric.units
        return 1.0 - 1.0 / ((1.0 + self.kappa) * units * units)

    def _descend(self, visits: _Visits, problem: AnyProblem) -> bool:
        """Do the rounds of a step; return whether the time is up."""
        visits.rest[:] = 0
        # Rounds that follow each other without a pause leave out rows that are at rest.
        nnz = visits.rows.nnz * self.W.shape[1]
        together = max(1, _VISITS // max(1, nnz))
        left = int(self.rounds)
        while left > 0:
            visits.run(problem, self.W, min(together, left))
            self.visits += min(together, left)
            left -= together
            if self._is_late():
                return True
        return False

    def _start(self, rows: Rows) -> None:
        """Choose κ; with all α at 0, W = θY."""
        square = mean_square(rows.starts, rows.lengths, rows.values)
        self.kappa = max(0.0, too_hard(self.problem, square) - 1.0)
        self._way.momentum = 0
        self._way.centre[:] = self.W
        self.W *= self._pull
        self._way.before[:] = self.W

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state, except W."""
        return {
            "newton_numbers": np.array([self.kappa, self._way.momentum, self.rounds]),
            "newton_centre": self._way.centre, "newton_before": self._way.before,
            "newton_random": self._random,
            **self._alpha_arrays(),
        }  # fmt: skip

    def _alpha_arrays(self) -> dict[str, npt.NDArray[Any]]:
        if (alpha := self._alpha) is None:  # before the first pass
            return {}
        if isinstance(alpha, Dense):
            return {"newton_alphas": alpha.values}
        return {
            "newton_offsets": alpha.offsets, "newton_outputs": alpha.outputs,
            "newton_alphas": alpha.values,
        }  # fmt: skip

    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `arrays`."""
        self.kappa, momentum, self.rounds = arrays["newton_numbers"].tolist()
        self._way.momentum = int(momentum)
        self._way.centre[:] = arrays["newton_centre"]
        self._way.before[:] = arrays["newton_before"]
        self._random[:] = arrays["newton_random"]
        if "newton_offsets" in arrays:
            offsets, outputs = arrays["newton_offsets"], arrays["newton_outputs"]
            self._alpha = Lists(offsets, outputs, arrays["newton_alphas"])
        elif "newton_alphas" in arrays:
            self._alpha = Dense(arrays["newton_alphas"])
