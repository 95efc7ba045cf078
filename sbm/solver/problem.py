"""The optimization problem a solver works on: a loss with its numbers.

There are three kinds, with the same methods: `Problem` has one variable a row, `MultiProblem` a
list of them, one for each class that matters to the row, and `OneClass` one a row whose sum is
given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists
from sbm.compiled import load
from sbm.errors import DataError
from sbm.rows import Rows
from sbm.solver.variables import FEW, DenseSet, ListPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sbm.losses import Loss
    from sbm.solver.cache import WorkingSet

__all__ = [
    "TOO_LARGE",
    "AnyProblem",
    "MultiProblem",
    "OneClass",
    "Problem",
    "Rounds",
    "Spread",
    "decide",
    "mean_square",
    "rows_ahead",
    "squared_norm",
]

# Smaller weights come from the processor's caches; asking for them ahead costs more than it saves.
_PREFETCH_ABOVE = 1 << 24
_PREFETCH_ROWS = 3
_MEAN_OF = 10_000  # rows, about, whose mean |x|² stands for that of all
_EPSILON = 2.0**-52  # relative rounding error of a number

TOO_LARGE = (
    "the numbers of these rows grow beyond what a float64 holds, 1.8e308; make values and targets "
    "smaller (a common factor will do), or take a smaller C"
)

Weights: TypeAlias = npt.NDArray[np.float64]
Spread: TypeAlias = Callable[..., Iterable[Any]]


@dataclass
class Rounds:
    """How the rounds over a working set are to go, and the scratch for them.

    Attributes
    ----------
    block : int
        Rows of this block count towards the gap estimate.
    rounds, chunk : int
        Most rounds; rows that are visited together.
    inner_tol : float
        End after a first round whose largest violation is not above.
    state : ndarray, shape (1,), uint64
        Random generator of the kernels.
    active : ndarray, shape (n,), int32
    order : ndarray, shape (at least n / chunk,), int64
    sigma : float
        1 for a solver alone; σ' where what several make of the same weights is added up.
    spread : callable
        Like the builtin `map`; its calls may run in several threads.
    """

    block: int
    rounds: int
    chunk: int
    inner_tol: float
    state: npt.NDArray[np.uint64]
    active: npt.NDArray[np.int32]
    order: npt.NDArray[np.int64]
    sigma: float = 1.0
    spread: Spread = map


class _Separable:
    """What problems have in common whose rows share no constraint, and no number but W."""

    _x_sum: Weights | None = None  # Σ U x, for a certificate that needs it

    @property
    def unit(self) -> float:
        """Objective that is as good as 0."""
        return 0.0

    def start_certificate(self, W: Weights) -> list[Weights]:
        """Get ready for `certify`; return the arrays it adds to, beside what it returns."""
        return []

    def bounds(
        self, sums: Sequence[float], W: Weights, W_alpha: Weights
    ) -> tuple[float, float, float]:
        """Return primal, dual and their gap, given what `certify` summed up over all rows.

        The gap P(W) - F(α) is a sum of terms that are never negative, one a row, plus
        ½|W - W(α)|².
        """
        gap, loss, dual, _, _ = sums
        primal = 0.5 * squared_norm(W) + loss
        dual -= 0.5 * squared_norm(W_alpha)
        return primal, dual, gap + 0.5 * squared_norm(W, W_alpha)

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """What changes while it is solved, beside W and the variables."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Undo `state`."""

    def numbers(self) -> list[float]:
        """What several solvers add up, beside W and Σ d_i: nothing."""
        return []

    def add_up(self, before: Sequence[float], theirs: Weights, sigma: float) -> None:
        """Take over the sum of what several solvers made of their numbers."""


@dataclass(eq=False)
class Problem(_Separable):
    """One variable a row: two classes, or a target.

    Attributes
    ----------
    loss : Loss
    cost_positive, cost_negative : float
        C times class weight for the rows of the positive class and for all others; for targets,
        the first one is the cost of every row.
    positive : int
        Class code of the positive class.
    bias : float
        Value of the extra feature; 0 for none.
    epsilon : float
        Half the width of the tube inside which a target costs nothing.
    classify : bool
        Whether `y` holds class codes and not targets.
    """

    loss: Loss
    cost_positive: float
    cost_negative: float
    positive: int
    bias: float = 0.0
    epsilon: float = 0.0
    classify: bool = True

    n_outputs = 1
    listed = False

    def costs(
        self, y: npt.NDArray[np.generic], weights: Weights | None = None
    ) -> npt.NDArray[np.float64]:
        """Cost C_i of rows with class codes or targets `y`, shape (n,), float64."""
        positive = y == self.positive if self.classify else True
        costs = np.where(positive, self.cost_positive, self.cost_negative)
        return np.broadcast_to(costs, len(y)) * (1.0 if weights is None else weights)

    @property
    def resting_values(self) -> list[float]:
        """Values other than 0 at which variables come to rest exactly."""
        return self.loss.resting_values([self.cost_positive, self.cost_negative])

    @property
    def _kernels(self) -> Any:
        return load(f"sbm.solver.kernels.{self.loss.kernel}")

    def _extra(self, W: Weights) -> tuple[Weights, float, float]:
        """Weight of the extra feature, of shape (1,), its value, and its scale."""
        return W[-1:, 0] if self.bias > 0 else np.zeros(1), self.bias, 1.0

    def arguments(self, rows: Rows, alpha: npt.NDArray[np.float64], W: Weights) -> tuple[Any, ...]:
        """What all kernels of the loss are given, in front of what is their own."""
        y = rows.y if self.loss.tasks else None
        return (
            rows.starts, rows.lengths, y, rows.weights, rows.indices, rows.values, alpha, W[:, 0],
            *self._extra(W), self.positive, self.classify, self.cost_positive, self.cost_negative,
            self.loss.squared, self.epsilon, rows_ahead(W),
        )  # fmt: skip

    def solve(
        self, work: WorkingSet, W: Weights, how: Rounds, rise: float = 0.0
    ) -> npt.NDArray[np.float64]:
        """Visit a working set in rounds; change its variables and scores, and W.

        The rise of Σ d_i is added to `rise`.

        Returns
        -------
        ndarray, shape (5,), float64
            Rise of Σ d_i; gap of the block's rows at their first visit; visits; updates; rounds.

        Raises
        ------
        DataError
            A number is beyond the range of a float.
        """
        assert isinstance(work.alpha, DenseSet)
        n, stats = work.n, np.array([rise, 0.0, 0.0, 0.0, 0.0])
        self._kernels.solve(
            *self.arguments(work.rows, work.alpha.values[:n], W), work.home[:n], work.score[:n],
            how.sigma, how.rounds, how.chunk, how.inner_tol, how.block, how.state, how.active,
            how.order, stats,
        )  # fmt: skip
        return _finite(stats)

    def screen(self, rows: Rows, alpha: Alphas, W: Weights, moving: npt.NDArray[np.bool_]) -> None:
        """Mark the rows that a visit would change, at fixed W; marks in `moving` stay."""
        assert isinstance(alpha, Dense)
        self._kernels.screen(*self.arguments(rows, alpha.values, W), moving)

    def certify(
        self, rows: Rows, alpha: Alphas, W: Weights, W_alpha: Weights
    ) -> npt.NDArray[np.float64]:
        """Sum up what rows contribute to the certificate; add their share of W to `W_alpha`.

        Returns
        -------
        ndarray, shape (5,), float64
            Σ g_i, Σ φ_i, Σ d_i, support vectors, free support vectors.
        """
        assert isinstance(alpha, Dense)
        sums = np.zeros(5)
        arguments = self.arguments(rows, alpha.values, W)
        self._kernels.certify(*arguments, W_alpha[:, 0], self._x_sum, sums)
        return sums

    def make_feasible(self, rows: Rows, alpha: Alphas) -> None:
        """Move variables that lie outside their bounds to the nearest one, in place."""
        assert isinstance(alpha, Dense)
        upper = self.costs(rows.y, rows.weights)
        if self.loss.squared:
            upper = np.where(upper > 0, np.inf, 0.0)
        lower: Any = -upper if self.loss.signed else 0.0
        np.clip(alpha.values, lower, upper, out=alpha.values)

    def is_free(self, work: WorkingSet, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether variables of rows of a working set, shape (n,), lie inside their bounds."""
        assert isinstance(work.alpha, DenseSet)
        weights = None if work.weights is None else work.weights[rows]
        return self.loss.is_free(work.alpha.values[rows], self.costs(work.y[rows], weights))


class OneClass(Problem):
    """The one-class problem of Chou, Lin & Lin 2020: where most rows are, seen from the origin.

    Its dual has the constraint Σ α = N, which ties all rows together. The method of multipliers
    unties them: the offset ρ is one more weight, of a feature of value -1, and is moved against
    what Σ α is off by, after every block.

    Parameters
    ----------
    loss : Loss
    nu : float
        N is nu times the number of rows, or the sum of their weights.
    total : float
        Number of rows of the whole data, or the sum of their weights.
    """

    def __init__(self, loss: Loss, nu: float, total: float) -> None:
        super().__init__(loss, 1.0, 1.0, positive=-1, classify=False)
        self.nu, self.total = nu, total
        self._level = np.zeros(2)  # ρ, Σ α
        self._scale = 0.0  # mean |x|²; in this unit ρ moves
        self._visited = 0.0  # rows, by weight, since ρ was last moved

    @property
    def rho(self) -> float:
        """The offset: rows with w·x below it are outliers."""
        return float(self._level[0])

    def numbers(self) -> list[float]:
        """What several solvers add up, beside W and Σ d_i: ρ, Σ α and rows that were visited."""
        return [*map(float, self._level), self._visited]

    def add_up(self, before: Sequence[float], theirs: Weights, sigma: float) -> None:
        """Take over the sum of what several solvers made of their numbers.

        ρ is a weight like those in W.

        Parameters
        ----------
        before : sequence of float
            `numbers` of each of them when they began.
        theirs : ndarray, shape (n_solvers, 3), float64
            When they ended.
        sigma : float
            How many times as far as α each of them went with its weights.
        """
        rho, total, _ = before
        self._level[0] = rho + math.fsum(theirs[:, 0] - rho) / sigma
        self._level[1] = total + math.fsum(theirs[:, 1] - total)
        self._visited = math.fsum(theirs[:, 2])
        self._move_offset()

    def agree_on_scale(self, means: Sequence[float], rows: Sequence[float]) -> None:
        """Take the mean |x|² that solvers found, each in so many rows, as the unit of ρ."""
        self._scale = math.fsum(np.multiply(means, rows)) / max(1.0, math.fsum(rows)) or 1.0

    @property
    def unit(self) -> float:
        """Objective that is as good as 0: a thousandth of that of rows that share no feature.

        The optimum is w = 0 and exactly 0 where the origin is among the rows; no gap is small
        beside that.
        """
        return 0.5e-3 * self.nu**2 * self.total * self._scale

    def _extra(self, W: Weights) -> tuple[Weights, float, float]:
        """ρ, as the weight of a feature of value -1."""
        return self._level[:1], -1.0, self._scale

    def add_rows(self, rows: Rows, W: Weights) -> Dense:
        """Add rows that were unknown; return their variables, all ν, which keeps Σ α = N.

        W, changed in place, gets ν Σ x.
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
        """Let ρ be the best one for these rows at W: the ν-quantile of their decision values.

        On a stream there are no passes in which ρ would settle.
        """
        self._level[0] = np.quantile(decide(rows, W, 0.0), self.nu)

    def solve(
        self, work: WorkingSet, W: Weights, how: Rounds, rise: float = 0.0
    ) -> npt.NDArray[np.float64]:
        """Visit a working set in rounds, then move ρ; see `Problem.solve`."""
        rows = work.rows
        self._scale = self._scale or mean_square(rows.starts, rows.lengths, rows.values)
        stats = super().solve(work, W, how, self._level[1])
        self._level[1], stats[0] = stats[0], 0.0  # Σ α is all that visits add up; Σ d_i is 0
        mine = work.home[: work.n] == how.block
        weights = rows.weights
        share = float(np.count_nonzero(mine) if weights is None else weights[mine].sum())
        excess = self._level[1] - self.nu * self.total
        self._visited += share
        if how.sigma == 1.0:
            self._move_offset()
        stats[1] += abs(self.rho * excess) * share / self.total
        return _finite(stats)

    def _move_offset(self) -> None:
        """Move ρ against what Σ α is off by, as far as the rows that were visited go."""
        excess = self._level[1] - self.nu * self.total
        self._level[0] -= self._scale * self._visited / self.total * excess
        self._visited = 0.0

    def screen(self, rows: Rows, alpha: Alphas, W: Weights, moving: npt.NDArray[np.bool_]) -> None:
        """Mark every row: ρ moves with all of them, so none is at rest for sure."""
        moving[:] = True

    def start_certificate(self, W: Weights) -> list[Weights]:
        """Get ready for `certify`, which also sums up U x and, instead of d_i, α."""
        self._x_sum = np.zeros(len(W))
        return [self._x_sum]

    def bounds(
        self, sums: Sequence[float], W: Weights, W_alpha: Weights
    ) -> tuple[float, float, float]:
        """Return primal, dual and gap; the dual is that of the nearest feasible variables.

        Where Σ α is too large all are scaled down, else all are moved towards their upper bounds;
        W follows, as Σ U x is known.
        """
        missed, loss, alpha_sum, _, _ = sums
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
        # Unlike that of other losses this is a difference, of numbers that are rounded.
        return primal, dual, max(0.0, primal - dual) + missed + 4 * _EPSILON * size

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """What changes while it is solved, beside W and the variables."""
        return {"level": self._level, "scale": np.array([self._scale])}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Undo `state`."""
        self._level[:], self._scale = state["level"], float(state["scale"][0])


@dataclass(eq=False)
class MultiProblem(_Separable):
    """Many classes, a list of variables a row.

    Attributes
    ----------
    loss : Loss
        ``hinge`` and ``squared_hinge`` mean one class against all others, for each class.
    costs : ndarray, shape (n_classes,), float64
        C times class weight, by class code.
    cost_rest : float
        C: of one-vs-rest, for the rows of other classes.
    bias : float
        Value of the extra feature; 0 for none.
    first, n_outputs : int
        The classes that these weights are for: all but where one-vs-rest divides them.
    """

    loss: Loss
    costs: npt.NDArray[np.float64]
    cost_rest: float
    bias: float = 0.0
    first: int = 0
    n_outputs: int = 0

    listed = True
    classify = True

    def __post_init__(self) -> None:
        if not self.n_outputs:
            self.n_outputs = len(self.costs)

    def groups(self, n_groups: int) -> list[MultiProblem]:
        """Divide one-vs-rest into problems of about equally many classes each."""
        ends = [len(self.costs) * k // n_groups for k in range(n_groups + 1)]
        return [replace(self, first=a, n_outputs=b - a) for a, b in itertools.pairwise(ends)]

    @property
    def resting_values(self) -> list[float]:
        """Values other than 0 at which variables come to rest exactly."""
        return self.loss.resting_values([*map(float, self.costs), self.cost_rest])

    @property
    def _kernels(self) -> Any:
        return load("sbm.solver.kernels.multiclass")

    @property
    def _numbers(self) -> tuple[Any, ...]:
        return self.loss.kind, self.first, self.costs, self.cost_rest

    @property
    def _width(self) -> int:
        """Length of scratch with an entry a class: above their number, and a multiple of 16."""
        return (self.n_outputs // 16 + 1) * 16

    def solve(self, work: WorkingSet, W: Weights, how: Rounds) -> npt.NDArray[np.float64]:
        """Visit a working set in rounds; see `Problem.solve`.

        Returns
        -------
        ndarray, shape (6,), float64
            As of `Problem.solve`; visits that were cut short for want of room in the lists.
        """
        assert isinstance(work.alpha, ListPool)
        n, rows, pool, stats = work.n, work.rows, work.alpha, np.zeros(6)
        self._kernels.solve(
            rows.starts, rows.lengths, rows.y, rows.weights, work.home[:n], rows.indices,
            rows.values, pool.begin[:n], pool.count[:n],
            pool.outputs, pool.betas, pool.used, pool.held, pool.few[:n], pool.n_few[:n],
            work.score[:n], W, *self._numbers, self.bias, self.loss.squared, how.sigma,
            pool.held_limit, how.rounds, how.chunk, rows_ahead(W), how.inner_tol, how.block,
            how.state, how.active, how.order,
            np.empty((6, self._width)), np.empty((6, FEW)), np.empty(self._width, np.int32),
            np.empty(self.n_outputs, np.bool_), np.empty(FEW, np.bool_), stats,
        )  # fmt: skip
        return _finite(stats)

    def screen(self, rows: Rows, alpha: Alphas, W: Weights, moving: npt.NDArray[np.bool_]) -> None:
        """Mark the rows that a visit would change, at fixed W; marks in `moving` stay."""
        assert isinstance(alpha, Lists)
        self._kernels.screen(
            rows.starts, rows.lengths, rows.y, rows.weights, rows.indices, rows.values,
            alpha.offsets, alpha.outputs, alpha.values, W, *self._numbers, self.bias,
            self.loss.squared, rows_ahead(W), np.empty((2, self._width)), moving,
        )  # fmt: skip

    def certify(
        self, rows: Rows, alpha: Alphas, W: Weights, W_alpha: Weights
    ) -> npt.NDArray[np.float64]:
        """Sum up what rows contribute to the certificate; see `Problem.certify`."""
        assert isinstance(alpha, Lists)
        sums = np.zeros(5)
        self._kernels.certify(
            rows.starts, rows.lengths, rows.y, rows.weights, rows.indices, rows.values,
            alpha.offsets, alpha.outputs, alpha.values, W, W_alpha, *self._numbers, self.bias,
            self.loss.squared, rows_ahead(W), np.empty((4, self._width)),
            np.empty(self._width, np.int32), sums,
        )  # fmt: skip
        return sums

    def make_feasible(self, rows: Rows, alpha: Alphas) -> None:
        """Move variables that lie outside their bounds inside, in place."""
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
        """Whether rows of a working set, shape (n,), have a variable inside its bounds."""
        assert isinstance(work.alpha, ListPool)
        pool, free = work.alpha, np.empty(len(rows), np.bool_)
        self._kernels.mark_free(
            rows, work.y, work.weights, pool.begin, pool.count, pool.outputs, pool.betas,
            *self._numbers, self.loss.squared, np.empty(self._width), free,
        )  # fmt: skip
        return free


AnyProblem: TypeAlias = Problem | MultiProblem


def _finite(stats: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what a solve added up to, if all of it is a number."""
    if not np.isfinite(stats).all():
        raise DataError(TOO_LARGE)
    return stats


def mean_square(
    starts: npt.NDArray[np.int64],
    row_lengths: npt.NDArray[np.int32],
    values: npt.NDArray[Any] | None,
) -> float:
    """Mean |x|² of rows, evenly chosen, and 1 where all are 0."""
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


def rows_ahead(W: Weights) -> int:
    """How many rows ahead their weights are worth prefetching."""
    return _PREFETCH_ROWS if W.nbytes > _PREFETCH_ABOVE else 0


def squared_norm(W: Weights, minus: Weights | None = None) -> float:
    """Return |W|², or |W - minus|², in slices: no copy of W, and the same for any thread count.

    Parameters
    ----------
    W, minus : ndarray, shape (n_weights, n_outputs), float64
    """
    step = max(1, (1 << 16) // W.shape[1])
    parts = []
    with np.errstate(over="ignore", invalid="ignore"):  # who asks notices
        for k in range(0, len(W), step):
            part = W[k : k + step] if minus is None else W[k : k + step] - minus[k : k + step]
            parts.append(float(np.square(part).sum()))
    return math.fsum(parts) if all(map(math.isfinite, parts)) else math.inf
