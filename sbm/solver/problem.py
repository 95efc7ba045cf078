"""The optimization problem of a solver: a loss with its parameters.

There are three kinds with the same methods. `Problem` has one variable per row, `MultiProblem` a
list of variables per row, and `OneClass` one variable per row with a fixed sum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists
from sbm.compiled.calls import load
from sbm.errors import DataError
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.tangents import FIRST, ParallelTangents
from sbm.solver.variables import FEW, DenseSet, ListPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sbm.distributed.comm import Comm
    from sbm.losses import Loss
    from sbm.solver.cache import WorkingSet

__all__ = [
    "EPSILON",
    "TOO_LARGE",
    "AnyProblem",
    "Damping",
    "MultiProblem",
    "OneClass",
    "Problem",
    "Rounds",
    "Spread",
    "VisitedRows",
    "decide",
    "mean_square",
    "room_for_order",
    "rows_ahead",
    "squared_norm",
]

# Smaller weights fit in the processor's caches; prefetching them costs more than it saves.
_PREFETCH_ABOVE = 1 << 22
_PREFETCH_ROWS = 3
_SINGLE = 8192  # as in kernels/common.py
_MEAN_OF = 10_000  # approximate number of rows sampled for the mean |x|²
EPSILON = 2.0**-52  # relative rounding error of a number
# One class: outliers whose decision values are kept to certify an exact offset. For more, the error
# of an offset that is not exact is small beside its share of the objective.
FEW_OUTLIERS = 4096
_BELOW = 2.0**-40  # of an offset: more than the rounding of a decision value

TOO_LARGE = (
    "computation exceeds the range of a float64 (1.8e308); scale values and targets down, or use "
    "a smaller C"
)

Weights: TypeAlias = npt.NDArray[np.float64]
Spread: TypeAlias = Callable[..., Iterable[Any]]


class VisitedRows(Protocol):
    """Rows that `solve` visits, as those of a `WorkingSet`.

    Attributes
    ----------
    n : int
        Number of rows; the arrays may be longer.
    rows : Rows
    alpha : Dense, DenseSet or ListPool
        Variables; `Dense` and `DenseSet` for one variable per row.
    home : ndarray, shape (n,), int32
        The part of the data that each row belongs to.
    score : ndarray, shape (n,), float32
        Receives the scores of a cache.
    rest : ndarray, shape (n,), uint8
        Turns that each row is left alone; see `sbm.solver.kernels.common`.
    """

    n: int
    home: npt.NDArray[np.int32]
    score: npt.NDArray[np.float32]
    rest: npt.NDArray[np.uint8]

    @property
    def rows(self) -> Rows:
        """The rows."""

    @property
    def alpha(self) -> Dense | DenseSet | ListPool:
        """The variables."""


@dataclass(frozen=True)
class Damping:
    """How a rank moves its copy of W if the changes of several ranks are added up.

    Attributes
    ----------
    factors : ndarray, shape (n_buckets,), float64
        Factor of curvature and step, by bucket of weights.
    extra : float
        That of the extra feature.
    code : ndarray, shape (n_weights,), uint8
        Bucket of each weight.
    worsts : ndarray, shape (3,), float64
        Violation above which rows at rest stay so; sum or maximum of violations of this round, and
        what to divide it by for the next.
    """

    factors: npt.NDArray[np.float64]
    extra: float
    code: npt.NDArray[np.uint8]
    worsts: npt.NDArray[np.float64]


@dataclass
class Rounds:
    """Parameters and scratch arrays of the rounds over a working set.

    Attributes
    ----------
    at : ndarray, shape (n_parts,), int32
        Rows of the parts with an entry of at least 0 count towards the gap estimate.
    rounds, chunk : int
        Maximum rounds; most rows visited together, a power of 2.
    inner_tol : float
        Stop after the first round if its largest violation is not above.
    state : ndarray, shape (1,), uint64
        State of the kernels' random generator.
    awake : ndarray, shape (n,), int32
        Scratch; with `damping`, begins with the updated rows at the end.
    order : ndarray, shape (room_for_order(n, chunk),), int32
        Scratch.
    spread : callable
        Like the builtin `map`; calls may run in several threads.
    stop, dual_sum : float
        If `stop` is above 0: end after a round with a gap of at most this share of the dual value;
        `dual_sum` is Σ d_i before.
    damping : Damping or None
        If the changes of several ranks are added up.
    turn : int
        Number of the first round.
    searches : bool
        Whether rounds alternate with searches along lines; see `sbm.solver.tangents`.
    """

    at: npt.NDArray[np.int32]
    rounds: int
    chunk: int
    inner_tol: float
    state: npt.NDArray[np.uint64]
    awake: npt.NDArray[np.int32]
    order: npt.NDArray[np.int32]
    spread: Spread = map
    stop: float = 0.0
    dual_sum: float = 0.0
    damping: Damping | None = None
    turn: int = 0
    searches: bool = False

    @property
    def damped(self) -> tuple[Any, ...]:
        """Arguments of kernels, in the order of `Damping`."""
        how = self.damping
        if how is None:
            return None, 1.0, None, np.array([np.inf, 0.0, 1.0])
        return how.factors, how.extra, how.code, how.worsts


class _Separable:
    """Base of problems whose rows share no constraint and no state except W."""

    admits_zeros = True  # whether α = 0 is feasible
    _x_sum: Weights | None = None  # Σ U x, if the certificate needs it

    @property
    def unit(self) -> float:
        """Objective value below which rounding errors of W need not be small relative to it."""
        return 0.0

    def start_certificate(self, W: Weights) -> list[Weights]:
        """Prepare for `certify`; return the additional arrays it adds to."""
        return []

    def bounds(
        self, sums: Sequence[float], W: Weights, W_alpha: Weights
    ) -> tuple[float, float, float]:
        """Return primal, dual and gap, given the sums of `certify` over all rows.

        The gap P(W) - F(α) is a sum of nonnegative terms, one per row, plus ½|W - W(α)|².
        """
        gap, loss, dual, *_ = sums
        primal = 0.5 * squared_norm(W) + loss
        dual -= 0.5 * squared_norm(W_alpha)
        return primal, dual, gap + 0.5 * squared_norm(W, W_alpha)

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the state that solving changes, except W and the variables."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`."""

    def gather(self, comm: Comm) -> None:
        """Collect what certificates of all ranks need besides sums: nothing."""

    def numbers(self) -> list[float]:
        """Return the numbers that several solvers sum, besides W and Σ d_i: none."""
        return []

    def add_up(self, before: Sequence[float], theirs: Weights, sigma: float) -> None:
        """Combine the changes that several solvers made to their `numbers`."""


@dataclass(eq=False)
class Problem(_Separable):
    """One variable per row, for two classes or targets.

    Attributes
    ----------
    loss : Loss
    cost_positive, cost_negative : float
        C times class weight, for rows of the positive class and for all others. With targets,
        `cost_positive` applies to every row.
    positive : int
        Class code of the positive class.
    bias : float
        Value of the extra feature; 0 for none.
    epsilon : float
        Half the width of the tube without loss around a target.
    classify : bool
        Whether `y` has class codes instead of targets.
    intercept : bool
        Whether the weight of the extra feature, whose value is 1, is not regularised.
    """

    loss: Loss
    cost_positive: float
    cost_negative: float
    positive: int
    bias: float = 0.0
    epsilon: float = 0.0
    classify: bool = True
    intercept: bool = False

    n_outputs = 1
    listed = False

    @property
    def searches(self) -> bool:
        """Whether rounds may alternate with searches along lines; see `sbm.solver.tangents`."""
        return not self.intercept

    def with_costs(self, factor: float) -> Problem:
        """Return the problem with all costs times a factor."""
        positive, negative = factor * self.cost_positive, factor * self.cost_negative
        return replace(self, cost_positive=positive, cost_negative=negative)

    @property
    def largest_cost(self) -> float:
        """The largest cost of a row of weight 1."""
        return max(self.cost_positive, self.cost_negative)

    def ridge(self, n_weights: int) -> Weights:
        """Return the factor of each weight in the penalty, shape (n_weights,): 1, or 0."""
        factors = np.ones(n_weights)
        factors[n_weights - self.intercept :] = 0.0
        return factors

    def start_certificate(self, W: Weights) -> list[Weights]:
        """Prepare for `certify`; an intercept needs the sum Σ α s x of rows with α s > 0."""
        if not self.intercept:
            return []
        self._rising = np.zeros_like(W)
        return [self._rising]

    def bounds(
        self, sums: Sequence[float], W: Weights, W_alpha: Weights
    ) -> tuple[float, float, float]:
        """Return primal, dual and gap.

        With an intercept, feasible variables have Σ α s = 0. The larger one of both sides of this
        sum is scaled down; d is concave and 0 at 0, so that d(θα) >= θ d(α). In `W_alpha`, the
        intercept becomes that of W.
        """
        if not self.intercept:
            return super().bounds(sums, W, W_alpha)
        gap, loss, dual, *_, rising = sums
        rises, falls = float(self._rising[-1, 0]), -float(W_alpha[-1, 0])
        up = min(1.0, falls / rises) if rises > 0 else 1.0
        down = min(1.0, rises / falls) if falls > 0 else 1.0
        feasible = up * self._rising[:-1] + down * W_alpha[:-1]
        W_alpha += self._rising
        W_alpha[-1] = W[-1]
        bound = up * rising + down * (dual - rising) - 0.5 * squared_norm(feasible)
        lost = dual - 0.5 * squared_norm(W_alpha[:-1]) - bound
        gap += 0.5 * squared_norm(W, W_alpha) - float(W[-1, 0]) * (rises - falls) + lost
        return 0.5 * squared_norm(W[:-1]) + loss, bound, max(0.0, gap)

    def costs(
        self, y: npt.NDArray[np.generic], weights: Weights | None = None
    ) -> npt.NDArray[np.float64]:
        """Return the cost C_i of rows with class codes or targets `y`, shape (n,), float64."""
        positive = y == self.positive if self.classify else True
        costs = np.where(positive, self.cost_positive, self.cost_negative)
        return np.broadcast_to(costs, len(y)) * (1.0 if weights is None else weights)

    @property
    def resting_values(self) -> list[float]:
        """Values other than 0 at which variables rest exactly."""
        return self.loss.resting_values([self.cost_positive, self.cost_negative])

    @property
    def _kernels(self) -> Any:
        return load(f"sbm.solver.kernels.{self.loss.kernel}")

    def _extra(self, W: Weights) -> tuple[Weights, float, float]:
        """Return the extra feature's weight, shape (1,), its value, and its scale."""
        return W[-1:, 0] if self.bias > 0 else np.zeros(1), self.bias, 1.0

    def arguments(self, rows: Rows, alpha: npt.NDArray[np.float64], W: Weights) -> tuple[Any, ...]:
        """Return the common leading arguments of all kernels of the loss."""
        y = rows.y if self.loss.tasks else None
        return (
            rows.starts, rows.lengths, y, rows.factors, rows.indices, rows.values, alpha, W[:, 0],
            *self._extra(W), self.positive, self.classify, self.cost_positive, self.cost_negative,
            self.loss.squared, self.epsilon, rows_ahead(W),
        )  # fmt: skip

    def solve(
        self, work: VisitedRows, W: Weights, how: Rounds, rise: float = 0.0
    ) -> npt.NDArray[np.float64]:
        """Visit rows in rounds; change their variables and scores, and W.

        The rise of Σ d_i is added to `rise`. From round `FIRST` on there are searches along lines
        between rounds, if there are to be any.

        Returns
        -------
        ndarray, shape (5,), float64
            Increase of Σ d_i; gap of the block's rows at their first visit; visits; updates;
            rounds.

        Raises
        ------
        DataError
            If a number overflows.
        """
        assert isinstance(work.alpha, DenseSet | Dense)
        n, stats, damped = work.n, np.array([rise, 0.0, 0.0, 0.0, 0.0]), how.damped
        alpha = work.alpha.values[:n]
        arguments = self.arguments(work.rows, alpha, W)

        def visit(first: int, end: int) -> int:
            ended: int = self._kernels.solve(
                *arguments, work.home[:n], work.score[:n], work.rest[:n], *damped, first, end,
                how.chunk, how.inner_tol, how.stop, how.dual_sum, how.at, how.state, how.awake,
                how.order, stats,
            )  # fmt: skip
            return ended

        has_ended = visit(how.turn, min(FIRST, how.rounds) if how.searches else how.rounds)
        if not how.searches or has_ended or how.rounds <= FIRST:
            return _finite(stats)
        tangents = ParallelTangents(alpha, W[:, 0])
        mean = float(work.rows.lengths.mean())
        for r in range(FIRST, how.rounds):
            before = stats[2]
            if how.stop > 0.0:
                stats[1] = 0.0  # the gap of the last round counts
            if visit(r, r + 1):
                break
            if r + 1 < how.rounds:
                nonzeros = mean * (stats[2] - before)
                stats[0] += tangents.end_round(nonzeros, self._kernels.search, arguments)
        return _finite(stats)

    def screen(self, rows: Rows, alpha: Alphas, W: Weights, moving: npt.NDArray[np.bool_]) -> None:
        """Mark in `moving` the rows that a visit at fixed W would change; keep existing marks."""
        assert isinstance(alpha, Dense)
        self._kernels.screen(*self.arguments(rows, alpha.values, W), moving)

    def certify(
        self,
        rows: Rows,
        alpha: Alphas,
        W: Weights,
        W_alpha: Weights,
        rising: Weights | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return the sums that rows add to the certificate; add their share of W to `W_alpha`.

        With an intercept, the share of rows with α s > 0 is added to `rising`. Default: the array
        of `start_certificate`.

        Returns
        -------
        ndarray, shape (7,) or (8,), float64
            Σ g_i, Σ φ_i, Σ d_i, support vectors, free support vectors, Σ |α| |x|, how much larger
            Σ φ_i may be because of rounding; with an intercept, also Σ d_i of rows with α s > 0.
        """
        assert isinstance(alpha, Dense)
        if not self.intercept:
            return self._certify(rows, alpha, W, W_alpha)
        rises = alpha.values > 0 if self.loss.signed else rows.y == self.positive
        up, down = np.flatnonzero(rises), np.flatnonzero(~rises)
        rising = self._rising if rising is None else rising
        sums = self._certify(rows.take(up), alpha.take(up), W, rising)
        rest = self._certify(rows.take(down), alpha.take(down), W, W_alpha)
        return np.append(sums + rest, sums[2])

    def _certify(
        self, rows: Rows, alpha: Dense, W: Weights, W_alpha: Weights
    ) -> npt.NDArray[np.float64]:
        sums = np.zeros(7)
        arguments = self.arguments(rows, alpha.values, W)
        self._kernels.certify(*arguments, W_alpha[:, 0], self._x_sum, sums)
        return sums

    def make_feasible(self, rows: Rows, alpha: Alphas) -> None:
        """Clip variables to their bounds, in place."""
        assert isinstance(alpha, Dense)
        upper = self.costs(rows.y, rows.weights)
        if self.loss.squared:
            upper = np.where(upper > 0, np.inf, 0.0)
        lower: Any = -upper if self.loss.signed else 0.0
        np.clip(alpha.values, lower, upper, out=alpha.values)

    def is_free(self, work: WorkingSet, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return whether variables of rows of a working set, shape (n,), are inside bounds."""
        assert isinstance(work.alpha, DenseSet)
        weights = None if work.weights is None else work.weights[rows]
        return self.loss.is_free(work.alpha.values[rows], self.costs(work.y[rows], weights))


class OneClass(Problem):
    """The one-class problem of Chou, Lin & Lin 2020.

    Its dual has the constraint Σ α = N, which couples all rows. The method of multipliers decouples
    them: the offset ρ is the weight of a feature of value -1, and after every block it is moved to
    reduce the error of Σ α.

    Parameters
    ----------
    loss : Loss
    nu : float
        N is nu times the number of rows, or the sum of their weights.
    total : float
        Number of rows of the data, or the sum of their weights.
    """

    admits_zeros = False
    searches = False  # ρ moves, too

    def __init__(self, loss: Loss, nu: float, total: float) -> None:
        super().__init__(loss, 1.0, 1.0, positive=-1, classify=False)
        self.nu, self.total = nu, total
        self._level = np.zeros(2)  # ρ, Σ α
        self._scale = 0.0  # mean |x|², the unit of steps of ρ
        self._visited = 0.0  # weight of the rows visited since the last step of ρ
        self._lowest = np.empty((2, 0))  # decision values and weights of rows below ρ

    @property
    def rho(self) -> float:
        """The offset ρ: rows with w·x below it are outliers."""
        return float(self._level[0])

    def numbers(self) -> list[float]:
        """Return the numbers that several solvers sum: ρ, Σ α and the weight of visited rows."""
        return [*map(float, self._level), self._visited]

    def add_up(self, before: Sequence[float], theirs: Weights, sigma: float) -> None:
        """Combine the changes that several solvers made to their `numbers`.

        ρ is treated like a weight in W.

        Parameters
        ----------
        before : sequence of float
            `numbers` of every solver before the steps.
        theirs : ndarray, shape (n_solvers, 3), float64
            `numbers` of each solver after its steps.
        sigma : float
            Factor between the step of each solver's weights and that of its α.
        """
        rho, total, _ = before
        self._level[0] = rho + math.fsum(theirs[:, 0] - rho) / sigma
        self._level[1] = total + math.fsum(theirs[:, 1] - total)
        self._visited = math.fsum(theirs[:, 2])
        self._move_offset()

    def agree_on_scale(self, means: Sequence[float], rows: Sequence[float]) -> None:
        """Set the unit of ρ to the mean |x|² over all solvers' rows."""
        self._scale = math.fsum(np.multiply(means, rows)) / max(1.0, math.fsum(rows)) or 1.0

    @property
    def unit(self) -> float:
        """A thousandth of the objective value of rows that share no feature; see `_Separable.unit`.

        If the origin is among the rows, the optimum is w = 0 and exactly 0.
        """
        return 0.5e-3 * self.nu**2 * self.total * self._scale

    def _extra(self, W: Weights) -> tuple[Weights, float, float]:
        """Return ρ as the weight of a feature of value -1."""
        return self._level[:1], -1.0, self._scale

    def add_rows(self, rows: Rows, W: Weights) -> Dense:
        """Add new rows; return their variables, all ν, which keeps Σ α = N.

        Adds ν Σ x to W, in place.
        """
        alpha, share = Dense(np.full(len(rows), self.nu)), np.zeros_like(W)
        self.total += len(rows)
        self._level[1] += self.nu * len(rows)
        self.start_certificate(W)
        self.certify(rows, alpha, W, share)
        self._x_sum = None
        W += share
        return alpha

    def set_offset_quantile(self, rows: Rows, W: Weights) -> None:
        """Set ρ to its optimum for these rows at W: the ν-quantile of their decision values.

        Used on streams, which have no passes in which ρ could converge.
        """
        self._level[0] = np.quantile(decide(rows, W, 0.0), self.nu)

    def solve(
        self, work: VisitedRows, W: Weights, how: Rounds, rise: float = 0.0
    ) -> npt.NDArray[np.float64]:
        """Visit a working set in rounds, then move ρ; see `Problem.solve`."""
        rows = work.rows
        self._scale = self._scale or mean_square(rows.starts, rows.lengths, rows.values)
        stats = super().solve(work, W, how, self._level[1])
        self._level[1], stats[0] = stats[0], 0.0  # Σ α is all that visits add up; Σ d_i is 0
        mine = how.at[work.home[: work.n]] >= 0
        weights = rows.weights
        share = float(np.count_nonzero(mine) if weights is None else weights[mine].sum())
        if how.damping is not None:
            share *= len(how.awake) / max(1, work.n) * (how.turn == 0)
        excess = self._level[1] - self.nu * self.total
        self._visited += share
        if how.damping is None:
            self._move_offset()
        stats[1] += abs(self.rho * excess) * share / self.total
        return _finite(stats)

    def _move_offset(self) -> None:
        """Move ρ against the error of Σ α, in proportion to the rows visited."""
        excess = self._level[1] - self.nu * self.total
        self._level[0] -= self._scale * self._visited / self.total * excess
        self._visited = 0.0

    def screen(self, rows: Rows, alpha: Alphas, W: Weights, moving: npt.NDArray[np.bool_]) -> None:
        """Mark every row: ρ depends on all rows, so none is surely at rest."""
        moving[:] = True

    def start_certificate(self, W: Weights) -> list[Weights]:
        """Prepare for `certify`, which also sums U x, and α instead of d_i."""
        self._x_sum, self._lowest = np.zeros(len(W)), np.empty((2, 0))
        return [self._x_sum]

    def _certify(
        self, rows: Rows, alpha: Dense, W: Weights, W_alpha: Weights
    ) -> npt.NDArray[np.float64]:
        """Add rows to a certificate; also collect those that ρ may have to be lowered for.

        If N is a few rows, the loss of a row counts so much more than ρ that ρ has to be exact:
        at most N of the weight is below it.
        """
        if self.nu * self.total <= FEW_OUTLIERS:
            z = decide(rows, W, 0.0)[:, 0]
            below = z < self.rho
            weights = np.ones(len(z)) if rows.weights is None else rows.weights
            self._collect(np.array([z[below], weights[below]]))
        return super()._certify(rows, alpha, W, W_alpha)

    def _collect(self, more: Weights) -> None:
        """Add decision values and weights, and keep the lowest ones, up to a weight of N."""
        both = np.concatenate([self._lowest, more[:, more[1] > 0.0]], axis=1)
        both = both[:, np.argsort(both[0], kind="stable")]
        end = int(np.searchsorted(np.cumsum(both[1]), self.nu * self.total)) + 1
        self._lowest = both[:, :end].copy()

    def gather(self, comm: Comm) -> None:
        """Collect the lowest decision values of all ranks."""
        every, self._lowest = comm.share(self._lowest.tolist()), np.empty((2, 0))
        for theirs in every:
            self._collect(np.array(theirs).reshape(2, -1))

    def _lower_offset(self, loss: float) -> float:
        """Lower ρ to its optimum for the rows that were collected; return the loss there."""
        z, weights = self._lowest
        if weights.sum() < self.nu * self.total or not len(z):
            return loss
        # A little lower, so that no rounding makes an outlier of the row at the offset.
        self._level[0] = z[-1] - _BELOW * abs(z[-1])
        return math.fsum(weights * np.maximum(self._level[0] - z, 0.0))

    def bounds(
        self, sums: Sequence[float], W: Weights, W_alpha: Weights
    ) -> tuple[float, float, float]:
        """Return primal, dual and gap; the dual is that of nearby feasible variables.

        If Σ α is too large, all variables are scaled down; otherwise all are moved towards their
        upper bounds. W follows from Σ U x.
        """
        missed, loss, alpha_sum, *_ = sums
        loss = self._lower_offset(loss)
        n = self.nu * self.total
        self._level[1] = alpha_sum
        size = 0.5 * squared_norm(W) + abs(n * self.rho) + loss
        primal = 0.5 * squared_norm(W) - n * self.rho + loss
        if alpha_sum >= n:
            norm = squared_norm(W_alpha) * (n / alpha_sum) ** 2
        else:
            assert self._x_sum is not None
            t = (n - alpha_sum) / (self.total - alpha_sum)
            norm = squared_norm((1 - t) * W_alpha, -t * self._x_sum[:, np.newaxis])
        self._x_sum = None
        dual = -0.5 * norm
        # Unlike for other losses, the gap is a difference of rounded numbers.
        return primal, dual, max(0.0, primal - dual) + missed + 4 * EPSILON * size

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the state that solving changes, except W and the variables."""
        return {"level": self._level, "scale": np.array([self._scale])}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`."""
        self._level[:], self._scale = state["level"], float(state["scale"][0])


@dataclass(eq=False)
class MultiProblem(_Separable):
    """Many classes, with a list of variables per row.

    Attributes
    ----------
    loss : Loss
        ``hinge`` and ``squared_hinge`` mean one-vs-rest.
    costs : ndarray, shape (n_classes,), float64
        C times class weight, by class code.
    cost_rest : float
        C, the cost of rows of other classes in one-vs-rest.
    bias : float
        Value of the extra feature; 0 for none.
    first, n_outputs : int
        Range of classes in this problem: all of them unless `groups` divided them.
    """

    loss: Loss
    costs: npt.NDArray[np.float64]
    cost_rest: float
    bias: float = 0.0
    first: int = 0
    n_outputs: int = 0

    listed = True
    searches = False
    classify = True
    intercept = False

    def __post_init__(self) -> None:
        if not self.n_outputs:
            self.n_outputs = len(self.costs)

    def with_costs(self, factor: float) -> MultiProblem:
        """Return the problem with all costs times a factor."""
        return replace(self, costs=factor * self.costs, cost_rest=factor * self.cost_rest)

    @property
    def largest_cost(self) -> float:
        """The largest cost of a row of weight 1; twice that, as a step moves two classes."""
        return 2.0 * float(self.costs.max())

    def groups(self, n_groups: int) -> list[MultiProblem]:
        """Divide one-vs-rest into problems with about equal numbers of classes."""
        ends = [self.first + self.n_outputs * k // n_groups for k in range(n_groups + 1)]
        return [replace(self, first=a, n_outputs=b - a) for a, b in itertools.pairwise(ends)]

    @property
    def resting_values(self) -> list[float]:
        """Values other than 0 at which variables rest exactly."""
        return self.loss.resting_values([*map(float, self.costs), self.cost_rest])

    @property
    def _kernels(self) -> Any:
        return load("sbm.solver.kernels.multiclass")

    @property
    def _numbers(self) -> tuple[Any, ...]:
        kind = self.loss.kind if self.loss.joint else None  # another type, other code
        return kind, self.first, self.costs, self.cost_rest

    @property
    def _width(self) -> int:
        """Length of scratch with an entry per class: above their number, a multiple of 8."""
        return (self.n_outputs // 8 + 1) * 8

    def solve(self, work: VisitedRows, W: Weights, how: Rounds) -> npt.NDArray[np.float64]:
        """Visit a working set in rounds; see `Problem.solve`.

        Returns
        -------
        ndarray, shape (6,), float64
            As for `Problem.solve`, then the number of visits cut short because lists were full.
        """
        assert isinstance(work.alpha, ListPool)
        n, rows, pool, stats = work.n, work.rows, work.alpha, np.zeros(6)
        self._kernels.solve(
            rows.starts, rows.lengths, rows.y, rows.factors, work.home[:n], rows.indices,
            rows.values, pool.begin[:n], pool.count[:n],
            pool.outputs, pool.betas, pool.used, pool.held, pool.few[:n], pool.n_few[:n],
            work.score[:n], W, *self._numbers, self.bias, self.loss.squared, work.rest[:n],
            *how.damped, how.turn, pool.held_limit, how.rounds, how.chunk, rows_ahead(W),
            how.inner_tol, how.stop, how.dual_sum, how.at, how.state, how.awake, how.order,
            np.empty((5, self._width)), np.empty((5, FEW)), np.empty(self._width, np.int32),
            np.empty(self.n_outputs, np.bool_), np.empty(FEW, np.bool_), stats,
        )  # fmt: skip
        return _finite(stats)

    def screen(self, rows: Rows, alpha: Alphas, W: Weights, moving: npt.NDArray[np.bool_]) -> None:
        """Mark in `moving` the rows that a visit at fixed W would change; keep existing marks."""
        assert isinstance(alpha, Lists)
        self._kernels.screen(
            rows.starts, rows.lengths, rows.y, rows.factors, rows.indices, rows.values,
            alpha.offsets, alpha.outputs, alpha.values, W, *self._numbers, self.bias,
            self.loss.squared, rows_ahead(W), np.empty((2, self._width)), moving,
        )  # fmt: skip

    def certify(
        self, rows: Rows, alpha: Alphas, W: Weights, W_alpha: Weights
    ) -> npt.NDArray[np.float64]:
        """Return the sums that rows add to the certificate; see `Problem.certify`."""
        assert isinstance(alpha, Lists)
        sums = np.zeros(7)
        self._kernels.certify(
            rows.starts, rows.lengths, rows.y, rows.factors, rows.indices, rows.values,
            alpha.offsets, alpha.outputs, alpha.values, W, W_alpha, *self._numbers, self.bias,
            self.loss.squared, rows_ahead(W), np.empty((4, self._width)),
            np.empty(self._width, np.int32), sums,
        )  # fmt: skip
        return sums

    def make_feasible(self, rows: Rows, alpha: Alphas) -> None:
        """Make variables feasible, in place."""
        assert isinstance(alpha, Lists)
        counts = alpha.counts
        of_row = np.repeat(np.arange(len(rows)), counts)
        own = slice(alpha.offsets[0], alpha.offsets[-1])
        outputs, values = alpha.outputs[own], np.maximum(alpha.values[own], 0.0)
        upper = self.costs[rows.y] if rows.weights is None else self.costs[rows.y] * rows.weights
        if self.loss.name == "crammer_singer":
            sums = np.bincount(of_row, values, len(rows))
            shrink = np.minimum(1.0, np.divide(upper, sums, out=np.ones(len(rows)), where=sums > 0))
            values *= shrink[of_row]
        else:
            limits = upper[of_row]
            if not self.loss.joint:
                rest = self.cost_rest * (1.0 if rows.weights is None else rows.weights[of_row])
                limits = np.where(outputs + self.first == rows.y[of_row], limits, rest)
            if self.loss.squared:
                limits = np.where(limits > 0, np.inf, 0.0)
            values = np.minimum(values, limits)
        kept = values > 0
        offsets = np.concatenate([[0], np.cumsum(np.bincount(of_row[kept], minlength=len(rows)))])
        alpha.set(offsets, outputs[kept], values[kept])

    def is_free(self, work: WorkingSet, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return whether rows of a working set, shape (n,), have a variable inside its bounds."""
        assert isinstance(work.alpha, ListPool)
        pool, free = work.alpha, np.empty(len(rows), np.bool_)
        self._kernels.mark_free(
            rows, work.y, work.factors, pool.begin, pool.count, pool.outputs, pool.betas,
            *self._numbers, self.loss.squared, np.empty(self._width), free,
        )  # fmt: skip
        return free


AnyProblem: TypeAlias = Problem | MultiProblem


def _finite(stats: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the statistics of a solve; raise `DataError` if one is not finite."""
    if not np.isfinite(stats).all():
        raise DataError(TOO_LARGE)
    return stats


def mean_square(
    starts: npt.NDArray[np.int64],
    row_lengths: npt.NDArray[np.int32],
    values: npt.NDArray[Any] | None,
) -> float:
    """Return the mean |x|² of evenly sampled rows, or 1 if all are 0."""
    n = len(starts)
    chosen = np.arange(0, n, max(1, n // _MEAN_OF))
    lengths = row_lengths[chosen].astype(np.int64)
    total = float(lengths.sum())
    if values is not None:
        with np.errstate(over="ignore"):
            parts = [
                float(np.square(values[a : a + k].astype(np.float64)).sum())
                for a, k in zip(starts[chosen].tolist(), lengths.tolist(), strict=True)
            ]
        total = sum(parts) if math.inf in parts else math.fsum(parts)
    if not math.isfinite(total):
        raise DataError(TOO_LARGE)
    return total / max(1, len(chosen)) or 1.0


def decide(rows: Rows, W: Weights, bias: float) -> npt.NDArray[np.float64]:
    """Return decision values, shape (n_rows, n_outputs)."""
    scores = np.empty((len(rows), W.shape[1]))
    share = bias * W[-1] if bias > 0 else np.zeros(W.shape[1])
    load("sbm.solver.kernels.decision").decide(
        rows.starts, rows.starts + rows.lengths, rows.indices, rows.values, W, share, scores
    )
    return scores


def room_for_order(n: int, chunk: int) -> int:
    """Return the size of `Rounds.order` for a working set of n rows."""
    return max(min(n, _SINGLE), -(-n // chunk))


def rows_ahead(W: Weights) -> int:
    """Return how many rows ahead to prefetch weights."""
    return _PREFETCH_ROWS if W.nbytes > _PREFETCH_ABOVE else 0


def squared_norm(W: Weights, minus: Weights | None = None) -> float:
    """Return |W|² or |W - minus|², without a copy of W and independent of the thread count.

    Parameters
    ----------
    W, minus : ndarray, shape (n_weights, n_outputs), float64
    """
    step = max(1, (1 << 16) // W.shape[1])
    parts, room = [], np.empty((min(step, len(W)), W.shape[1]))  # new memory costs more than sums
    with np.errstate(over="ignore", invalid="ignore"):  # callers check the result
        for k in range(0, len(W), step):
            part, square = W[k : k + step], room[: len(W) - k]
            if minus is not None:
                part = np.subtract(part, minus[k : k + step], out=square)
            parts.append(float(np.square(part, out=square).sum()))
    return math.fsum(parts) if all(map(math.isfinite, parts)) else math.inf
