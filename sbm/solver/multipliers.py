"""The method of multipliers for losses with kinks, on rows that stay in memory.

For the hinge and the epsilon-insensitive loss, φ_i(z) = max_α (α e_i(z) - ε |α|) over the bounds of
α. A step subtracts (α - α_i)² / 2σ_i from that, where α_i are the variables of the last step: then
the loss has a derivative, and Newton's method finds the optimal W. The variables there are the next
α_i, and Σ α s x = W, so they are feasible and certify W (the augmented Lagrangian method in the
dual, whose problems a semismooth Newton method solves: Li, Sun & Toh 2018). σ grows from step to
step.

Only rows whose variables are inside their bounds have curvature, so a product with the Hessian
visits few of them. Columns of very different size cost little: the method of conjugate gradients,
which finds the Newton steps, is preconditioned (`sbm.solver.conjugate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.conjugate import Preconditioner, conjugate_gradients, inner, step_length
from sbm.solver.gap import Certificate
from sbm.solver.newton import FullBatch, Given
from sbm.solver.problem import Problem, decide
from sbm.solver.sums import SLICES, dot, slices_of

__all__ = ["Multipliers"]

Floats = npt.NDArray[np.float64]

_WIDTH = 0.5  # of the first step: σ times the mean loss, per cost; then most rows have curvature
_GROWTH = 4.0  # of σ
_EXACT = 0.1  # what |W - Σ α s x|² may add to the gap of a step, as a share of the rest
_MOST_STEPS = 100  # Newton steps of a pass
_MOST_PRODUCTS = 200  # of a Newton step
_FORCING = 0.1  # residual at which a Newton step ends, as a share of the first
_SHORT = 1 / 64  # of a Newton step: after less, all rows count as having curvature
_REDUCED = 0.01  # the same, of the residual that is not preconditioned


@dataclass
class _Slice:
    """Some rows, and their variables divided by their costs."""

    rows: Rows
    costs: Floats
    target: Floats  # of the decision value times `sign`
    sign: Floats
    epsilon: float  # 0 for the hinge
    lower: float
    before: Floats  # after the last step
    now: Floats
    z: Floats
    way: Floats  # change of z by a Newton step
    curvature: Floats

    @classmethod
    def of(cls, problem: Problem, rows: Rows, before: Floats, W: Floats) -> _Slice:
        costs = problem.costs(rows.y, rows.weights) + 0.0
        sign, target = np.ones(len(rows)), np.ones(len(rows))
        if problem.loss.signed:
            target, epsilon, lower = rows.y.astype(np.float64), problem.epsilon, -1.0
        else:
            sign[rows.y != problem.positive], epsilon, lower = -1.0, 0.0, 0.0
        z = decide(rows, W, problem.bias)[:, 0]
        return cls(rows, costs, target, sign, epsilon, lower, before, before, z, z, z)

    def errors(self, length: float = 0.0) -> Floats:
        """Return target - sign z, at a share of the Newton step."""
        z = self.z if length == 0.0 else self.z + length * self.way
        return self.target - self.sign * z

    def loss(self, errors: Floats) -> Floats:
        """Return the loss of each row, per cost."""
        size = abs(errors) - self.epsilon if self.lower < 0.0 else errors
        return np.maximum(size, 0.0)

    def respond(self, errors: Floats, sigma: float) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the best variables given errors, and whether each is inside its bounds."""
        best = self.before + sigma * errors
        if self.epsilon > 0.0:
            best = np.copysign(np.maximum(abs(best) - sigma * self.epsilon, 0.0), best)
        inside = (best > self.lower) & (best < 1.0)
        if self.epsilon > 0.0:
            inside &= best != 0.0
        return np.clip(best, self.lower, 1.0), inside

    def slope(self, length: float, sigma: float) -> float:
        """Return the derivative of the losses along the Newton step."""
        alpha, _ = self.respond(self.errors(length), sigma)
        return -dot(self.costs * alpha * self.sign, self.way)


class Multipliers(FullBatch):
    """The method of multipliers; see the module.

    Parameters
    ----------
    given : Given
    is_late : callable
        Called after each visit of all rows; returns whether to end the pass, and may raise an
        exception.
    """

    name = "method of multipliers"
    is_new = False
    problem: Problem

    def __init__(self, given: Given, is_late: Callable[[], bool]) -> None:
        super().__init__(given)
        self.ridge = self.problem.ridge(len(self.W))
        self._is_late, self.sigma = is_late, 0.0
        self._rows: list[Rows] = []  # by slice, and so are all of the following
        self._alphas: list[Floats] = []  # at W, divided by the costs
        self._before: list[Floats] = []  # those of the last step that was solved
        self._slices: list[_Slice] = []
        self._is_short = False  # whether the last Newton step was far too long
        self._inverse = Preconditioner(self.sums, self.ridge)
        self._diagonals, self._products = np.zeros((2, 0, 0))  # shape (SLICES, n_weights) in `move`

    def _begin(self, rows: Rows, factor: float, tol: float) -> None:
        """Learn nothing: the optimum of a few rows is far from that of all."""

    def add(self, block: int, rows: Rows) -> list[Alphas]:
        """Add the rows, which are those of a single block; return their alphas by slice."""

        def work(k: int) -> tuple[Alphas, Floats]:
            part = self._rows[k]
            alpha = Dense(self.problem.costs(part.y, part.weights) * self._alphas[k])
            return alpha, self.certify_slice(k, part, alpha)

        self._rows = slices_of(rows)
        if not self._alphas:
            self._alphas = self._before = [np.zeros(len(part)) for part in self._rows]
        done = list(self.sums.spread(work, range(SLICES)))
        self._certifier.sums += [sums for _, sums in done]
        return [alpha for alpha, _ in done]

    def move(self, certificate: Certificate, tol: float = 0.0) -> bool:
        """Set `W` for the next pass; return whether there is progress to be made."""

        def enter(k: int) -> _Slice:
            return _Slice.of(self.problem, self._rows[k], self._before[k], self.W)

        self.visits, self._slices = 1, list(self.sums.spread(enter, range(SLICES)))
        self._is_short = False
        self._diagonals, self._products = np.zeros((2, SLICES, len(self.W)))
        self.sigma = self.sigma or self._first_sigma()
        is_solved = is_late = False
        for _ in range(_MOST_STEPS):
            gradient, gap = self._respond()
            most = _EXACT * max(gap, tol * certificate.primal)
            is_solved = 0.5 * inner(gradient, gradient) <= most
            if is_solved or is_late:
                break
            is_late = self._step(gradient, most)
        self._inverse.clear()
        self._diagonals, self._products = np.zeros((2, 0, 0))
        self._alphas, self._slices = [one.now for one in self._slices], []
        if is_solved:
            self._before = self._alphas
            self.sigma *= _GROWTH
        return True

    def _first_sigma(self) -> float:
        """Return σ with which most rows have curvature at the first W."""
        losses = [one.loss(one.errors())[one.costs > 0.0] for one in self._slices]
        lost = self.sums.total(math.fsum(float(some.sum()) for some in losses))
        n = self.sums.total(sum(int((some > 0.0).sum()) for some in losses))
        return _WIDTH * n / lost if lost > 0.0 else 1.0

    def _respond(self) -> tuple[Floats, float]:
        """Set variables and curvature at W; return the gradient, and the rows' share of the gap."""

        def work(k: int) -> float:
            one, errors = self._slices[k], self._slices[k].errors()
            one.now, inside = one.respond(errors, self.sigma)
            one.curvature = self.sigma * one.costs * (inside | self._is_short)
            self._products[k] = self._diagonals[k] = 0.0
            self.sums.add_rows(one.rows, one.costs * one.now * one.sign, self._products[k])
            self.sums.add_squares(one.rows, one.curvature, self._diagonals[k])
            dual = one.now * errors - one.epsilon * abs(one.now)
            return dot(one.costs, one.loss(errors) - dual)

        gap = math.fsum(self.sums.spread(work, range(SLICES)))
        self.visits += 1
        return self.ridge * self.W[:, 0] - self.sums.add_up(self._products), self.sums.total(gap)

    def _step(self, gradient: Floats, most: float) -> bool:
        """Take a Newton step; return whether the time is up.

        Parameters
        ----------
        gradient : ndarray, shape (n_weights,), float64
        most : float
            What half of the squared gradient may be in the end.
        """
        step, is_late = self._conjugate(gradient, most)
        way = step[:, np.newaxis]

        def decide_along(one: _Slice) -> None:
            one.way = decide(one.rows, way, self.problem.bias)[:, 0]

        list(self.sums.spread(decide_along, self._slices))

        def slope(length: float) -> float:
            own = self.sums.spread(lambda one: one.slope(length, self.sigma), self._slices)
            common = dot(self.ridge * (self.W[:, 0] + length * step), step)
            return self.sums.total(math.fsum(own), common)

        length = step_length(slope)
        self._is_short = length < _SHORT
        self.W[:, 0] += length * step
        for one in self._slices:
            one.z += length * one.way
        self.visits += 1
        return is_late

    def _conjugate(self, gradient: Floats, most: float) -> tuple[Floats, bool]:
        """Return about the Newton step, and whether the time is up."""
        rows = [one.rows for one in self._slices]
        curvatures = [one.curvature for one in self._slices]
        self._inverse.set(rows, curvatures, self.sums.add_up(self._diagonals))
        small = max(0.6 * most, _REDUCED**2 * inner(gradient, gradient))
        is_late, first = False, 0.0

        def product(way: Floats) -> Floats:
            nonlocal is_late
            along = self.sums.multiply(rows, curvatures, way, self._products)
            is_late = self._is_late()
            along += self.ridge * way
            return along

        def is_enough(number: int, step: Floats, r: Floats, size: float) -> bool:
            nonlocal first
            first = first or size
            self.visits += 1
            is_small = size <= _FORCING**2 * first and inner(r, r) <= small
            return is_small or is_late or number >= _MOST_PRODUCTS

        return conjugate_gradients(product, self._inverse.times, gradient, is_enough), is_late

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state, except W."""
        sizes = np.array([len(some) for some in self._alphas], np.int64)
        return {
            "newton_numbers": np.array([self.sigma]),
            "newton_sizes": sizes,
            "newton_alphas": np.concatenate([np.empty(0), *self._alphas]),
            "newton_before": np.concatenate([np.empty(0), *self._before]),
        }

    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `arrays`."""
        (self.sigma,) = arrays["newton_numbers"].tolist()
        sizes = arrays["newton_sizes"]
        self._alphas, self._before = (
            np.split(arrays[name], np.cumsum(sizes))[: len(sizes)]
            for name in ("newton_alphas", "newton_before")
        )
