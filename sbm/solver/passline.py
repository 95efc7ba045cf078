"""Parallel tangents over passes: W and all alphas go on along the line through two passes.

Where a part of the rows is in memory at a time, passes take the place of the rounds of
`sbm.solver.tangents`. After each pass, α becomes α + t (α - α'), with α' at the end of the pass
before, and W likewise. t makes the dual value largest if each d_i is replaced by its expansion to
second order and there are no bounds.

The rows are not in memory then. So alphas may go beyond their bounds; when their block is loaded
next, they are clipped, and W follows. After each pass, all of them have been.

Every ``d_i(α)`` is ``a_i α - h(α)``. With equal costs, h is the same for all rows, and so the sums
need only the alphas: Σ a_i α_i is known from the dual values of the two passes. If the loss is not
squared, h does not depend on the costs either, except for that of logistic regression.

Source: Shah, Buehler & Kempthorne 1964.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Dense
from sbm.compiled.calls import load
from sbm.plain import dataclass
from sbm.rows import Rows, few_at_a_time
from sbm.solver.problem import AnyProblem, Problem, squared_norm

__all__ = ["Bend", "PassLine", "Reach", "fits_line"]

Array = npt.NDArray[np.float64]

# Largest share of a move that may be outside the bounds, which the best length does not know. On
# sparse rows 30 % of it are outside at most, on dense ones up to 98 %; then shorter moves help.
_MOST_OUTSIDE, _LENGTHS = 0.4, np.array([4.0, 2.0, 1.0, 0.5, 0.25])
# Passes before the first move. Easy problems are solved by then; others need hardly more passes.
_FIRST = 3


@dataclass
class Bend:
    """Sums over rows of h, where ``d_i(α) = a_i α - h(α)``.

    Attributes
    ----------
    value : float
        Σ h(α); of alphas outside their bounds if h is defined there, otherwise of the bounds.
    slope, curvature : float
        First and second derivative of Σ h along a line, at α.
    """

    value: float = 0.0
    slope: float = 0.0
    curvature: float = 0.0

    def add(self, problem: Problem, alpha: Array, way: Array) -> None:
        """Add rows with these alphas, shape (n,), along the line α + t way."""
        cost = problem.largest_cost
        if problem.loss.kernel == "logistic":
            sums = np.array([self.value, self.slope, self.curvature])
            load("sbm.solver.kernels.logistic").bend(alpha, way, cost, sums)
            self.value, self.slope, self.curvature = sums.tolist()
            return
        for some in few_at_a_time(len(alpha)):
            a, u = alpha[some], way[some]
            if problem.epsilon:
                self.value += problem.epsilon * float(abs(a).sum())
                self.slope += problem.epsilon * float((np.sign(a) * u).sum())
            if problem.loss.squared:
                D = 0.5 / cost
                self.value += 0.5 * D * float((a * a).sum())
                self.slope += D * float((a * u).sum())
                self.curvature += D * float((u * u).sum())


def fits_line(problem: AnyProblem, has_weights: bool) -> bool:
    """Return whether `PassLine` suits a problem, and rows with or without weights.

    The bounds of rows with weights are not known where only alphas are read.
    """
    if not isinstance(problem, Problem) or not problem.searches or has_weights:
        return False
    return problem.cost_positive == problem.cost_negative or problem.loss.bounded


class Reach:
    """How far a line goes before too much of a move is outside the bounds of the alphas.

    Parameters
    ----------
    problem : Problem
    """

    def __init__(self, problem: Problem) -> None:
        self._upper = math.inf if problem.loss.squared else problem.largest_cost
        self._lower = -self._upper if problem.loss.signed else 0.0
        self._length, self._outside = 0.0, np.zeros(len(_LENGTHS))

    def add(self, alpha: Array, way: Array) -> None:
        """Add rows with these alphas, shape (n,), along the line α + t way."""
        for some in few_at_a_time(len(alpha)):
            moved = np.flatnonzero(way[some])
            a, u = alpha[some][moved], way[some][moved]
            self._length += float(abs(u).sum())
            for k, t in enumerate(_LENGTHS):
                far = a + t * u
                self._outside[k] += float(abs(far - far.clip(self._lower, self._upper)).sum())

    @property
    def most(self) -> float:
        """The length that is reached, 0 if there is none."""
        is_reached = self._outside <= _MOST_OUTSIDE * _LENGTHS * self._length
        return float(max(_LENGTHS[is_reached], default=0.0))


class PassLine:
    """The line through the ends of the last two passes of a solver.

    Parameters
    ----------
    problem : Problem
    W : ndarray, shape (n_weights, 1), float64
        Moved in place.

    Attributes
    ----------
    before : ndarray, like W
        W at the end of the pass before.
    is_open : bool
        Whether alphas may be outside their bounds: not all blocks were loaded since the last move.
    left : int
        How many passes end without a move from now on. The last of them notes where it ended.
    """

    def __init__(self, problem: Problem, W: Array) -> None:
        self.problem, self.W, self.before = problem, W, np.zeros_like(W)
        self.is_open, self.left = False, _FIRST
        self._linear = self._rise = 0.0  # Σ a_i α_i where a pass ended, and since the one before
        self._dual = math.nan  # dual value before the last move, until its pass has ended
        self._wait = 1  # passes without a move after the last failure

    @property
    def bends(self) -> bool:
        """Whether `Bend` has anything to add up."""
        problem = self.problem
        return problem.loss.squared or problem.epsilon > 0 or not problem.loss.rests

    def refuse(self) -> float:
        """Let twice as many passes as last time end without a move, this one included; return 0."""
        self._wait *= 2
        self.left, self._dual = self._wait - 1, math.nan
        return 0.0

    def length(self, dual_sum: float, bend: Bend, reach: Reach) -> float:
        """Return t at the end of a pass, or 0 to stay.

        Parameters
        ----------
        dual_sum : float
            Σ d_i(α_i).
        bend : Bend
            At the alphas, towards α - α'.
        reach : Reach
        """
        square = squared_norm(self.W)
        dual, linear = dual_sum - 0.5 * square, dual_sum + bend.value
        self._rise, self._linear = linear - self._linear, linear
        if dual <= self._dual:  # the last move was a loss
            return self.refuse()
        if not math.isnan(self._dual):
            self._dual, self._wait = math.nan, 1
        if self.left:
            self.left -= 1
            return 0.0
        # |W|², |W'|² and |W - W'|² give the product of W and W - W'.
        way = squared_norm(self.W, self.before)
        product = 0.5 * (square + way - squared_norm(self.before))
        slope, curvature = self._rise - bend.slope - product, bend.curvature + way
        t = slope / curvature if curvature > 0.0 else 0.0
        if not t > 0.0:  # it may be nan
            return 0.0
        t = min(t, reach.most)
        if t == 0.0:
            return self.refuse()
        self._dual = dual
        return t

    def move(self, t: float) -> None:
        """Note W and move it, unless t is 0."""
        if t == 0.0:
            self.before[:] = self.W
            return
        self.is_open = True
        np.subtract(self.W, self.before, out=self.before)
        self.before *= t
        self.W += self.before
        np.subtract(self.W, self.before, out=self.before)

    def dual_sum(self, t: float, bend: Bend) -> float:
        """Return Σ d_i(α_i) after a move."""
        return self._linear + t * self._rise - bend.value

    def clip(self, rows: Rows, alpha: Dense, moving: npt.NDArray[np.bool_] | None = None) -> float:
        """Clip the alphas of some rows, in place; W follows. Return the rise of Σ d_i.

        Parameters
        ----------
        rows : Rows
        alpha : Dense, changed in place
        moving : ndarray, shape (n_rows,), bool, changed in place, optional
            Marks the rows that are clipped.
        """
        rise = 0.0
        for some in few_at_a_time(len(alpha)):
            first, n = some.start, some.stop - some.start
            marks = None if moving is None else moving[some]
            rise += self._clip(rows.part(first, n), alpha.part(first, n), marks)
        return rise

    def _clip(self, rows: Rows, alpha: Dense, moving: npt.NDArray[np.bool_] | None) -> float:
        """Clip the alphas of a piece."""
        problem, far = self.problem, alpha.values.copy()
        problem.make_feasible(rows, alpha)
        changed = np.flatnonzero(alpha.values != far)
        if not len(changed):
            return 0.0
        if moving is not None:
            moving[changed] = True
        some, new, far = rows.take(changed), alpha.values[changed], far[changed]
        step = Dense(new - far)
        problem.certify(some, step, self.W, self.W)  # adds the steps; its sums mean nothing
        if problem.loss.kernel == "logistic":
            return 0.0  # `Bend` has counted the bounds
        slopes = np.ones(len(new)) if problem.classify else some.y
        bends = Bend(), Bend()
        for bend, values in zip(bends, (new, far), strict=True):
            bend.add(problem, values, np.zeros_like(values))
        return float((slopes * step.values).sum()) - bends[0].value + bends[1].value

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything but W as arrays."""
        numbers = self.is_open, self.left, self._wait, self._linear, self._dual
        return {"line": np.array(numbers, np.float64), "line_before": self.before}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`."""
        is_open, left, wait, self._linear, self._dual = state["line"].tolist()
        self.is_open, self.left, self._wait = bool(is_open), int(left), int(wait)
        self.before[:] = state["line_before"]
