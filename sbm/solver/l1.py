"""Sparse models: the problem, one model in training, and its steps on columns in memory.

See `sbm.solver.kernels.l1` for the mathematics. As in `sbm.solver.problem`, arrays come in and
arrays go out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.errors import DataError
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.problem import TOO_LARGE, Problem, Spread
from sbm.solver.sums import factorize, product, solve

__all__ = [
    "MOST_GRAM", "Columns", "Labels", "Scratch", "SparseFit", "SparseProblem", "Work",
    "choose_features",
]  # fmt: skip

Floats = npt.NDArray[np.float64]

_KINDS = {"log_loss": 0, "squared_hinge": 1, "squared_error": 2}  # as in kernels/l1.py
_TARGETS = -2
# Largest change of a weight in a Newton step, for log_loss with its varying curvature; and of a
# margin, if the column's values are below 1.
_BOX = 2.0
_LEAST_CURVATURE = 1e-12
_SHORT = 0.75  # share of the rows up to which a Newton step leaves the others out of its columns
_INNER = 0.1  # share of the violations that a Newton step leaves
_SWEEPS = 5  # over all columns, before conjugate gradients
_MOST_FLAT = 3
_ALTERNATIONS = 4  # of sweeps and conjugate gradients, in a Newton step
_CONJUGATE = 15  # steps of conjugate gradients; twice as many after they paid, half if they did not
_MOST_PATIENCE = 2  # Newton steps without, if they did not pay; they pay late, near the optimum
_SHORT_SWEEPS = 200  # over the columns that move most, after each of these
_SHARE, _ROOM = 0.9, 0.25  # of the decrease that these made, and of the nonzeros visited
# Columns whose matrix is formed, if sweeps were not enough; its turns, sweeps in each, and how much
# further it goes; and what its diagonal gets, of its mean.
MOST_GRAM, _TURNS, _TURN_SWEEPS, _FURTHER, _RIDGE = 500, 10, 30, 0.1, 1e-10
_GRAM_SHARE = 1.0  # of the nonzeros of its products that sweeps miss before
_NEAR = 0.9  # share of its bound that makes a feature worth a visit


def _dot(a: Floats, b: Floats) -> float:
    """Return a · b, independent of the number of threads."""
    return float(np.einsum("i,i->", a, b))


@dataclass(frozen=True)
class Labels:
    """Labels of all rows in the order of the store, as float64, and row weights; empty if all 1."""

    y: Floats
    weights: Floats

    def part(self, first: int, n_rows: int) -> Labels:
        """Return the labels of `n_rows` rows starting at `first`, as views."""
        return Labels(self.y[first : first + n_rows], self.weights[first : first + n_rows])


@dataclass(frozen=True)
class SparseProblem:
    """Minimise l1 |w|₁ + l2/2 |w|² + Σ C_i loss_i.

    Attributes
    ----------
    kind, positive : int
        As in `sbm.solver.kernels.l1`.
    cost, other : float
        C times class weight, of the positive class or targets, and of all other rows.
    l1, l2, bias : float
    intercept : bool
        Whether the last weight has no penalty.
    """

    kind: int
    positive: int
    cost: float
    other: float
    l1: float
    l2: float
    bias: float
    intercept: bool = False

    @classmethod
    def of(cls, problem: Problem, l1_ratio: float) -> SparseProblem:
        """Return the sparse version of a problem."""
        return cls(
            _KINDS[problem.loss.name], problem.positive if problem.classify else _TARGETS,
            problem.cost_positive, problem.cost_negative, l1_ratio, 1.0 - l1_ratio, problem.bias,
            problem.intercept,
        )  # fmt: skip

    def of_rows(self, labels: Labels) -> tuple[Any, ...]:
        """Return the arguments of kernels that describe rows."""
        return labels.y, labels.weights, self.kind, self.positive, self.cost, self.other

    def penalized(self, w: Floats) -> Floats:
        """Return the weights without the intercept, which is last, as a view."""
        return w[:-1] if self.intercept else w

    def penalty(self, w: Floats) -> float:
        """Return l1 |w|₁ + l2/2 |w|²."""
        w = self.penalized(w)
        return float(self.l1 * np.abs(w).sum() + 0.5 * self.l2 * _dot(w, w))

    def violations(self, w: Floats, g: Floats) -> Floats:
        """Return how far each weight is from its optimality condition; g as in the kernels."""
        G = g - self.l2 * w
        found = np.where(
            w == 0, np.maximum(np.abs(G) - self.l1, 0.0), np.abs(G - np.copysign(self.l1, w))
        )
        if self.intercept:
            found[-1] = abs(g[-1])
        return found

    def lower_bound(
        self,
        z: Floats,
        labels: Labels,
        g: Floats,
        sums: tuple[float, float],
        shift: float = 0.0,
        sides: tuple[float, float] = (1.0, 1.0),
        least: float = -math.inf,
    ) -> tuple[float, float]:
        """Return the best dual value of s θ over some s, and this s.

        Parameters
        ----------
        z : ndarray, shape (n_rows,), float64
        labels : Labels
        g : ndarray, float64
            Σ θ_i x_i for all features.
        sums : tuple of float
            The losses, and Σ θ_i z_i.
        shift : float
            Added to the dual value, times s.
        sides : tuple of float
            θ is that of z times the first one where it is above 0, times the second one elsewhere.
        least : float
            The result may be too small if it is less than this, which saves time.
        """
        losses, linear = sums
        is_plain, a, b = sides == (1.0, 1.0), 2 * losses + linear, losses
        found = np.zeros(2)
        if not is_plain and self.kind != 0:
            self._kernels.dual(z, *self.of_rows(labels), 1.0, *sides, found)
            a, b = map(float, found)

        def value(s: float) -> tuple[float, float]:
            if self.kind != 0:
                rows = a * s - b * s * s
            elif is_plain and s == 1.0:
                rows = losses + linear
            else:
                self._kernels.dual(z, *self.of_rows(labels), s, *sides, found)
                rows = float(found[0])
            rows += s * shift
            if self.l2 > 0:
                beyond = np.maximum(np.abs(s * g) - self.l1, 0.0)
                rows -= _dot(beyond, beyond) / (2 * self.l2)
            return rows, s

        most = max(float(g.max(initial=0.0)), -float(g.min(initial=0.0)))
        feasible = self.l1 / most if most > 0 else math.inf
        if self.kind != 0 and not self.l2 > 0:
            return value(max(0.0, min(feasible, 0.5 * (a + shift) / b if b > 0 else 0.0)))
        s = min(1.0, feasible)
        best = value(1.0) if self.l2 > 0 else (-math.inf, 0.0)
        # Concave in s, and so below its tangent at 1.
        if is_plain and losses + s * (linear + shift) < max(best[0], least):
            return best
        return max(best, value(s))

    @property
    def _kernels(self) -> Any:
        return load("sbm.solver.kernels.l1")


@dataclass
class Columns:
    """Columns of chosen features in memory.

    Attributes
    ----------
    features : ndarray, shape (m,), int32
        In ascending order. The bias feature has no nonzeros here.
    starts : ndarray, shape (m + 1,), int64
    rows : ndarray, shape (nnz,), int32; or uint8
        As in `sbm.solver.kernels.l1`.
    values : ndarray, shape (nnz,), or None
    dense : int
        Column of the bias feature, or -1.
    scales : ndarray, shape (m,), float32
        1 over the root mean square of the nonzeros of each column.
    places : ndarray, shape (m,), int64, or None
        Where the bytes of each column begin; None if `rows` are numbers.
    """

    features: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32] | npt.NDArray[np.uint8]
    values: npt.NDArray[np.floating] | None
    dense: int
    scales: npt.NDArray[np.float32]
    places: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The leading arguments of the kernels of columns, without the value of the bias."""
        return self.starts, self.rows, self.places, self.values, self.dense


@dataclass
class Scratch:
    """Arrays of one solve, in the notation of `sbm.solver.kernels.l1`.

    Those in the innermost loops are float32: all sums are exact to the size of a Newton step.

    Attributes
    ----------
    theta : ndarray, shape (n_rows,), float64
    model : ndarray, shape (2 n_rows,), float32
        -H X d and H, alternately.
    step : ndarray, shape (n_rows,), float64
        X d.
    numbers : ndarray, shape (n_rows,), int32
        Of the rows that a Newton step depends on.
    short_model : ndarray, shape (2 n_most,), float32
        As `model`, of these rows, if they are at most `n_most`.
    short_rows, short_values : ndarray, shape (room,)
        The nonzeros of these rows, as those of `Columns`.
    """

    theta: Floats
    model: npt.NDArray[np.float32]
    step: Floats
    numbers: npt.NDArray[np.int32]
    short_model: npt.NDArray[np.float32]
    short_rows: npt.NDArray[np.int32]
    short_values: npt.NDArray[np.floating] | None

    @classmethod
    def of(cls, n_rows: int, room: int = 0, value_type: str | None = None) -> Scratch:
        """Return arrays for so many rows; `value_type` is None if all values are 1."""
        some = n_rows if room > 0 else 0
        most = int(_SHORT * some)
        return cls(
            np.empty(n_rows), np.empty(2 * n_rows, np.float32), np.empty(n_rows),
            np.empty(some, np.int32), np.empty(2 * most, np.float32), np.empty(room, np.int32),
            None if value_type is None else np.empty(room, value_type),
        )  # fmt: skip


@dataclass
class Work:
    """Counts of work: sweeps, visits of columns that changed a weight, nonzeros, Newton steps."""

    sweeps: int = 0
    updates: int = 0
    nonzeros: int = 0
    steps: int = 0

    def add(self, other: Work) -> None:
        """Add the counts of another."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class SparseFit:
    """A model in training: weights, margins and slopes of all rows.

    Attributes
    ----------
    problem : SparseProblem
    labels : Labels
    w : ndarray, shape (n_weights,), float64
    g : ndarray, shape (n_weights,), float64
        Σ θ_i x_i. Exact after `finish`; after `improve` only for the columns in memory.
    z : ndarray, shape (n_rows,), float64
        Margins.
    rising : ndarray, like `g`
        The share of rows with θ_i > 0 in g; with an intercept only, otherwise `g` itself.
    bound : float
        The best lower bound on the objective so far.
    primal : float
        The objective at the last pass.
    scales : tuple of float
        The dual point of the last pass is θ times the first one where it is above 0, times the
        second one elsewhere.
    gap : float
        Of the last pass.
    """

    problem: SparseProblem
    labels: Labels
    w: Floats
    g: Floats
    z: Floats
    bound: float = -math.inf
    primal: float = math.inf
    scales: tuple[float, float] = (0.0, 0.0)
    gap: float = math.inf

    def __post_init__(self) -> None:
        self.rising = np.zeros_like(self.g) if self.problem.intercept else self.g

    # ------------------------------------------------------------------------ a pass over rows

    def begin(self) -> None:
        """Prepare for a pass over all rows."""
        self.g[:] = self.rising[:] = 0.0

    def add(self, rows: Rows, first: int) -> None:
        """Visit a block, whose first row has this number."""
        n, problem = len(rows), self.problem
        load("sbm.solver.kernels.l1").visit(
            rows.starts, rows.lengths, rows.indices, rows.values, problem.bias,
            *problem.of_rows(self.labels.part(first, n)), self.w, self.z[first : first + n], self.g,
            self.rising,
        )  # fmt: skip

    def linearize(
        self, scratch: Scratch, spread: Spread, length: float = 0.0
    ) -> tuple[float, float]:
        """Write θ and H at the margins z + length * step.

        Returns
        -------
        tuple of float
            The losses, and Σ θ_i times the margin.
        """
        sums, middle = np.zeros((2, 2)), len(self.z) // 2
        rows = self.z, scratch.step, length, *self.problem.of_rows(self.labels)
        linearize = load("sbm.solver.kernels.l1").linearize

        def work(part: tuple[int, int, int]) -> None:
            linearize(*rows, scratch.theta, scratch.model, *part[1:], sums[part[0]])

        list(spread(work, [(0, 0, middle), (1, middle, len(self.z))]))
        losses, linear = sums[0] + sums[1]
        return float(losses), float(linear)

    def finish(self, scratch: Scratch, spread: Spread = map) -> None:
        """Compute the objective and lower bounds after a pass."""
        problem, sums = self.problem, self.linearize(scratch, spread)
        self.primal = sums[0] + problem.penalty(self.w)
        g, sides = self._balance()
        bound, s = problem.lower_bound(self.z, self.labels, g, sums, sides=sides)
        self.gap, self.scales = max(0.0, self.primal - bound), (s * sides[0], s * sides[1])
        if not math.isfinite(self.primal) or math.isnan(bound):
            raise DataError(TOO_LARGE)
        # Both are sums of many terms; a bound above the objective is rounding.
        self.bound = min(max(self.bound, bound), self.primal)

    def _balance(self) -> tuple[Floats, tuple[float, float]]:
        """Complete g; return g and `sides` of `lower_bound`, for Σ θ_i = 0 if required."""
        if not self.problem.intercept:
            return self.g, (1.0, 1.0)
        rises, falls = float(self.rising[-1]), -float(self.g[-1])
        up = min(1.0, falls / rises) if rises > 0 else 1.0
        down = min(1.0, rises / falls) if falls > 0 else 1.0
        g = up * self.rising + down * self.g
        self.g += self.rising
        return g, (up, down)

    def reach(self, counts: npt.NDArray[np.int64], squares: Floats) -> Floats:
        """Return the most that |x_j·θ| can be at the optimum, after `finish`.

        The dual is strongly concave, so its optimum is in a ball around a point whose gap is known
        (gap-safe screening; Ndiaye, Fercoq, Gramfort and Salmon 2017). The slopes of log_loss are
        also between 0 and C t, and half of that at w = 0.

        Parameters
        ----------
        counts, squares : ndarray, shape (n_weights,)
            Number of nonzeros and sum of squares of each feature.
        """
        problem, (up, down) = self.problem, self.scales
        most = max(problem.cost, problem.other) * float(self.labels.weights.max(initial=1.0))
        found = np.abs(down * self.g + (up - down) * self.rising)
        if problem.kind != 0:
            found += np.sqrt(4.0 * most * self.gap * squares)
            return found
        found += np.sqrt(0.5 * most * self.gap * squares)
        if not self.w.any():
            np.minimum(found, np.abs(self.g) + 0.5 * most * np.sqrt(counts * squares), out=found)
        return found

    def change_cost(self, problem: SparseProblem) -> None:
        """Continue with the same problem at another C; call `finish` next."""
        factor = problem.cost / self.problem.cost
        if self.problem.intercept:  # as before `finish`
            self.g -= self.rising
            self.rising *= factor
        self.g *= factor
        self.problem, self.bound = problem, -math.inf

    # ------------------------------------------------------------------------ steps in memory

    def improve(
        self,
        columns: Columns,
        scratch: Scratch,
        target: float,
        is_over: Callable[[], bool] = lambda: False,
        spread: Spread = map,
    ) -> tuple[Work, npt.NDArray[np.float32]]:
        """Take Newton steps in the columns' weights until the gap of their problem is small enough.

        The other weights are fixed.

        Parameters
        ----------
        columns : Columns
        scratch : Scratch
        target : float
            Relative gap to reach.
        is_over : callable
            Called after each sweep; ends the steps if true.
        spread : callable
            As ``map``; may use threads.

        Returns
        -------
        work : Work
        gains : ndarray, shape (m,), float32
            Decrease of the model that each column made in the last Newton step.
        """
        work = Work()
        newton = _Newton(self, columns, scratch, is_over, work, spread)
        while work.steps < 1000 and not is_over():
            if newton.is_within(target) or not newton.step():
                break
        newton.store()
        return work, newton.gains


class _Newton:
    """Newton steps in the weights of some columns."""

    def __init__(
        self,
        fit: SparseFit,
        columns: Columns,
        scratch: Scratch,
        is_over: Callable[[], bool],
        work: Work,
        spread: Spread,
    ) -> None:
        m, starts = len(columns), columns.starts
        self._fit, self._columns, self._scratch = fit, columns, scratch
        self._is_over, self._work, self._spread = is_over, work, spread
        self._kernels = load("sbm.solver.kernels.l1")
        self._w = fit.w[columns.features]
        self._d, self._g, self._h = np.zeros(m), np.empty(m), np.empty(m)
        self.gains, self._gain = np.zeros(m, np.float32), np.zeros(m, np.float32)
        self._near = np.empty(0, np.int32)  # columns of this Newton step
        self._active, self._few = np.empty(m, np.int32), np.empty(m, np.int32)
        self._sums, self._grades = np.zeros(3), np.zeros((2, 64))
        self._is_differentiated = False
        # The columns and -H X d and H of a Newton step, without rows that do not matter to it.
        self._short, self._model = (*columns.arrays, fit.problem.bias), scratch.model
        self._short_starts = np.empty(m + 1 if len(scratch.short_rows) else 0, np.int64)
        middle = int(np.searchsorted(starts, starts[-1] // 2))
        self._halves = (0, middle), (middle, m)
        self._penalty = fit.problem.l2, fit.problem.l1
        self._free = columns.dense if fit.problem.intercept else -1
        self._box = _BOX * np.maximum(columns.scales, 1)
        if fit.problem.kind != 0:
            self._box[:] = math.inf
        self._flat = 0  # steps in a row that changed the objective by less than its rounding
        self._gained = 0.0  # decrease of the model since the last sweep over all columns
        self._usual = 0.0  # that, for each nonzero
        self._wait = self._patience = 0  # Newton steps without conjugate gradients
        self._most = _CONJUGATE
        self._missed = 0  # nonzeros visited by sweeps that were not enough
        self._center()
        self._losses, self._linear = fit.linearize(scratch, spread)

    def _center(self) -> None:
        """Set the intercept to its optimum, the other weights fixed."""
        fit = self._fit
        if fit.problem.intercept:
            self._kernels.center(fit.z, *fit.problem.of_rows(fit.labels), self._sums)
            fit.z += self._sums[0]
            self._w[-1] += self._sums[0]

    def _differentiate(self) -> None:
        """Compute g at the current weights."""
        if self._is_differentiated:
            return
        place = (*self._columns.arrays, self._fit.problem.bias, self._scratch.theta)

        def differentiate(part: tuple[int, int]) -> None:
            self._kernels.differentiate(*place, self._g, *part)

        list(self._spread(differentiate, self._halves))
        self._work.nonzeros += int(self._columns.starts[-1])
        self._is_differentiated = True

    def is_within(self, target: float) -> bool:
        """Return whether the relative gap in these weights, the others fixed, is at most that."""
        self._differentiate()
        fit = self._fit
        others = self._linear - _dot(self._g, self._w)  # Σ θ_i times the margin of the others
        primal = self._losses + fit.problem.penalty(self._w)
        least = primal * (1.0 - target)
        bound, _ = fit.problem.lower_bound(
            fit.z, fit.labels, self._g, (self._losses, self._linear), shift=-others, least=least
        )
        return bound >= least

    def step(self) -> bool:
        """Take a Newton step, after `is_within`; return False if nothing is left to gain."""
        n = self._kernels.near(
            self._g, self._w, self._free, *self._penalty, _NEAR, self._active, self._sums
        )
        total = float(self._sums[0])
        if total == 0:
            return False
        problem, self._near = self._fit.problem, self._active[:n].copy()
        self._shorten()
        self._work.nonzeros += self._kernels.curvatures(
            *self._short, self._near, self._model[1:], problem.l2 + _LEAST_CURVATURE, self._h
        )
        self._minimise(_INNER * total)
        return self._search()

    def _shorten(self) -> None:
        """Leave rows without curvature out of the near columns, if they are many."""
        columns, scratch, bias = self._columns, self._scratch, self._fit.problem.bias
        self._short, self._model = (*columns.arrays, bias), scratch.model
        if not len(self._short_starts):
            return
        n = self._kernels.number_curved(scratch.model, scratch.numbers, scratch.short_model)
        if n > 0 and self._kernels.shorten(
            columns.starts, columns.rows, columns.values, self._near, scratch.numbers,
            self._short_starts, scratch.short_rows, scratch.short_values,
        ):  # fmt: skip
            rest = None, scratch.short_values, columns.dense, bias
            self._short = (self._short_starts, scratch.short_rows, *rest)
            self._model = scratch.short_model[: 2 * n]

    def _minimise(self, tol: float) -> None:
        """Minimise the quadratic model over the near columns.

        Sweeps alternate with conjugate gradients for as long as these pay.
        """
        self._d[:] = 0.0
        self.gains[:] = 0.0
        if self._matrix_pays():
            self._solve(_FURTHER * tol)
            return
        self._model[::2] = 0.0
        for _ in range(_ALTERNATIONS):
            start = self._work.nonzeros
            if self._is_swept(tol):
                return
            self._missed += self._work.nonzeros - start
            if self._matrix_pays():
                self._solve(_FURTHER * tol)
                return
            if self._wait > 0:
                self._wait -= 1
                return
            begun = self._work.nonzeros
            if self._conjugate() < self._usual * (self._work.nonzeros - begun):
                self._wait = self._patience = min(_MOST_PATIENCE, 2 * self._patience + 1)
                self._most = max(_CONJUGATE, self._most // 2)
                return
            self._patience, self._most = 0, min(4 * _CONJUGATE, 2 * self._most)

    def _is_swept(self, tol: float) -> bool:
        """Sweep over the near columns; return whether that is enough, or the time is up.

        Columns that made most of the decrease are visited again before the next sweep, for about
        the same number of nonzeros.
        """
        m = n = len(self._near)
        active, few = self._active, self._few
        active[:n] = self._near
        limit = math.inf
        for _ in range(_SWEEPS):
            if self._is_over():
                return True
            was_full = m == n
            begun, self._gained = self._work.nonzeros, 0.0
            m, violation, worst, visited = self._sweep(active, m, limit)
            limit = worst
            if violation <= tol:
                if was_full:
                    return True
                active[:n] = self._near  # visit also those that were dropped
                m, limit = n, math.inf
                continue
            some = self._kernels.movers(
                self._short[0], active, m, self._gain, _SHARE, _ROOM * visited,
                self._grades, few,
            )  # fmt: skip
            if not 0 < some < m:
                continue
            again = short = 0
            least = (1 - _SHARE) * sum(map(float, self._gain[few[:some]]))
            while again < visited and short < _SHORT_SWEEPS:
                _, _, _, nonzeros = self._sweep(few, some, math.inf)
                again, short = again + nonzeros, short + 1
                if self._sums[2] < least:
                    break
        self._usual = self._gained / max(1, self._work.nonzeros - begun)
        return False

    def _matrix_pays(self) -> bool:
        """Return whether X'HX of the near columns costs no more than the sweeps that missed."""
        pays = _GRAM_SHARE * self._gram_nonzeros() <= self._missed
        return self._missed > 0 and len(self._near) <= MOST_GRAM and pays

    def _gram_nonzeros(self) -> int:
        some, starts = self._near, self._short[0]
        return len(some) * int((starts[some + 1] - starts[some]).sum()) // 2

    def _solve(self, tol: float) -> None:
        """Minimise the model of few columns by means of its matrix, from d = 0."""
        problem, some = self._fit.problem, self._near
        penalized = some != self._free
        l1, l2 = problem.l1 * penalized, problem.l2 * penalized
        G, g, w, box = self._gram(), self._g[some], self._w[some], self._box[some]
        d, r, left = np.zeros_like(w), g.copy(), np.empty(1)
        for _ in range(_TURNS):
            most = _TURN_SWEEPS * len(some)
            self._work.updates += self._kernels.descend(G, r, w, d, box, l1, l2, tol, most, left)
            if left[0] <= tol or self._is_over():
                break
            u = w + d
            mine = np.flatnonzero(u)
            step, signs = np.zeros_like(u), np.sign(u)
            slope = (r - l2 * u - l1 * signs)[mine]
            A = G[np.ix_(mine, mine)]
            A[np.diag_indices_from(A)] += l2[mine] + _RIDGE * A.diagonal().mean()
            step[mine] = solve(factorize(A), slope)
            # On the way, a weight that changes its sign makes the descent less steep.
            with np.errstate(divide="ignore", invalid="ignore"):
                turns = np.where(signs * step < 0, np.abs(u) / np.abs(step), math.inf)
                ends = (box - np.copysign(d, d * step)) / np.abs(step)
            order = np.argsort(turns)
            falls = 2.0 * np.cumsum(np.r_[0.0, (l1 * np.abs(step))[order]])
            first, size = _dot(slope, step[mine]), _dot(step[mine], product(A, step[mine]))
            flat = np.maximum(np.r_[0.0, turns[order]], (first - falls) / size).min()
            length = min(float(flat), float(ends.min(initial=math.inf)))
            d = np.where(turns == length, -w, d + length * step)
            r = g - product(G, d)
        self._d[some] = d
        self.gains[some] = 0.5 * G.diagonal() * d**2

    def _gram(self) -> Floats:
        """Return X'HX of the near columns."""
        scratch, n, rows = self._scratch, len(self._near), len(self._model) // 2
        G = np.empty((n, n))

        def work(part: int) -> None:
            column = (scratch.step, scratch.theta)[part][:rows]
            self._kernels.gram(*self._short, self._near, self._model[1:], part, 2, column, G)

        list(self._spread(work, range(2)))
        self._work.nonzeros += self._gram_nonzeros()
        G[np.diag_indices(n)] += _LEAST_CURVATURE
        return G

    def _conjugate(self) -> float:
        """Move the weights that are not 0 by conjugate gradients; return the model's decrease.

        Signs are kept: weights that would change theirs become 0. Where coordinate descent crawls,
        because columns are alike, this takes long steps; elsewhere it wastes time, and the caller
        waits longer and longer before it tries again.
        """
        problem, kernels = self._fit.problem, self._kernels
        some = self._near[self._w[self._near] + self._d[self._near] != 0]
        some = some[some != self._free]  # the intercept stays as it is
        place = (*self._short, some)
        u, h, step = self._w[some] + self._d[some], self._h[some], np.zeros(len(some))
        signs, r, q = np.sign(u), np.empty(len(some)), np.empty(len(some))
        H, Xp = self._model[1::2], self._scratch.step[: len(self._model) // 2]
        kernels.products(*place, self._model, 2, r)
        r += self._g[some]
        r -= problem.l1 * signs + problem.l2 * u
        slope, p = r.copy(), r / h
        size = first = _dot(r, p)
        starts = self._short[0]
        nonzeros = int((starts[some + 1] - starts[some]).sum())
        for _ in range(self._most):
            kernels.multiply(*place, p, Xp)
            Xp *= H
            kernels.products(*place, Xp, 1, q)
            self._work.nonzeros += 2 * nonzeros
            q += problem.l2 * p
            curve = _dot(p, q)
            if not curve > 0:
                break
            step += size / curve * p
            r -= size / curve * q
            before, size = size, _dot(r, r / h)
            if size <= 0.01 * first:
                break
            p = r / h + size / before * p
        was = self._w[some]
        for length in (1.0, 0.25, 0.06):
            new = u + length * step
            new[np.sign(new) != signs] = 0.0
            new = np.clip(new, was - self._box[some], was + self._box[some])
            kernels.multiply(*place, new - u, Xp)
            self._work.nonzeros += nonzeros
            change = H * Xp
            curve = _dot(Xp, change) + problem.l2 * _dot(new - u, new - u)
            decrease = _dot(slope, new - u) - 0.5 * curve
            if decrease > 0:
                self._d[some] = np.where(new == 0, -was, new - was)
                self._model[::2] -= change
                return decrease
        return 0.0

    def _sweep(
        self, active: npt.NDArray[np.int32], m: int, limit: float
    ) -> tuple[int, float, float, int]:
        """Visit columns once; return how many may still move, violations, and nonzeros."""
        kept, moved, visited = self._kernels.sweep(
            *self._short, self._free, self._model, self._g, self._w, self._d, self._h,
            *self._penalty, self._box, active, m, limit, self._gain, self.gains, self._sums,
        )  # fmt: skip
        self._gained += float(self._sums[2])
        self._work.sweeps += 1
        self._work.updates += moved
        self._work.nonzeros += visited
        return kept, float(self._sums[0]), float(self._sums[1]), visited

    def _search(self) -> bool:
        """Choose the length of the step and take it; return False if nothing is left to gain."""
        fit, scratch, problem = self._fit, self._scratch, self._fit.problem
        w, d = self._w, self._d
        place = (*self._columns.arrays, problem.bias, self._near)
        self._kernels.multiply(*place, d[self._near], scratch.step)
        before = self._losses + problem.penalty(w)
        old, step = problem.penalized(w), problem.penalized(d)
        slope = problem.l2 * _dot(old, step) - _dot(self._g, d)
        slope += problem.l1 * float(np.abs(old + step).sum() - np.abs(old).sum())
        length = 1.0
        while length > 1e-6:
            now = w + length * d
            self._losses, self._linear = fit.linearize(scratch, self._spread, length)
            after = self._losses + problem.penalty(now)
            if after - before <= 0.01 * length * slope + 1e-13 * abs(before):
                break
            length *= 0.5
        else:
            self._losses, self._linear = fit.linearize(scratch, self._spread)
            return False
        self._w = now
        scratch.step *= length
        fit.z += scratch.step
        self._work.steps += 1
        self._is_differentiated = False
        if problem.intercept:
            self._center()
            self._losses, self._linear = fit.linearize(scratch, self._spread)
        self._flat = 0 if after < before else self._flat + 1
        return self._flat < _MOST_FLAT

    def store(self) -> None:
        """Write weights and slopes of the columns back."""
        self._fit.w[self._columns.features] = self._w
        self._differentiate()
        self._fit.g[self._columns.features] = self._g


def choose_features(
    fits: list[SparseFit],
    sizes: npt.NDArray[np.int64],
    squares: Floats,
    room: int,
    cached: npt.NDArray[np.int32],
    gains: Floats,
    seen: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """Choose the features whose columns are collected in the next pass, in ascending order.

    Those with a weight or beyond their bound are chosen, and then those closest to their bound, as
    many as fit. If even the first do not fit, half of the room goes to the columns in memory that
    decreased the objective most per byte in the last pass, and half to the features that promise
    the largest decrease per byte, or were not in memory for longest. An intercept is always chosen.

    Parameters
    ----------
    fits : list of SparseFit
    sizes : ndarray, shape (n_weights,), int64
        Bytes of the column of each feature; 0 if its weight is 0 at the optimum.
    squares : ndarray, shape (n_weights,), float64
        Sum of squares of each feature.
    room : int
        Bytes.
    cached : ndarray, int32
        Features in memory.
    gains : ndarray, like `cached`, float64
        Decrease of the objective by each of them.
    seen : ndarray, shape (n_weights,), int32
        The last pass in which each feature was in memory.
    """
    nearness, promise = np.zeros(len(sizes)), np.zeros(len(sizes))
    needed = np.zeros(len(sizes), bool)
    for fit in fits:
        problem = fit.problem
        violations = problem.violations(fit.w, fit.g)
        steepest = max(problem.cost, problem.other) * (0.25 if problem.kind == 0 else 2.0)
        promise += violations**2 / (2 * (steepest * squares + problem.l2 + _LEAST_CURVATURE))
        needed |= (fit.w != 0) | (violations > 0)
        np.maximum(nearness, np.abs(fit.g) / max(problem.l1, _LEAST_CURVATURE), out=nearness)
    if fits[0].problem.intercept:
        needed[-1], promise[-1] = True, math.inf
    needed &= sizes > 0
    if sizes[needed].sum() <= room:
        order = np.lexsort((-nearness, ~needed))
        return _fitting(order[sizes[order] > 0], sizes, room)
    some = cached[np.argsort(-gains / np.maximum(sizes[cached], 1), kind="stable")]
    kept = _fitting(some[gains[np.searchsorted(cached, some)] > 0], sizes, room // 2)
    needed[kept] = False
    others = np.flatnonzero(needed)
    order = others[np.lexsort((seen[others], -promise[others] / sizes[others]))]
    rest = _fitting(order, sizes, room - int(sizes[kept].sum()))
    return np.union1d(kept, rest).astype(np.int32)


def _fitting(
    order: npt.NDArray[np.integer], sizes: npt.NDArray[np.int64], room: int
) -> npt.NDArray[np.int32]:
    """Return the first features of `order` that fit, sorted."""
    n = int(np.searchsorted(np.cumsum(sizes[order]), room, side="right"))
    return np.sort(order[:n]).astype(np.int32)
