"""The optimization problem a solver works on: a loss with its numbers.

There are two kinds, with the same methods: `Problem` has one variable a row, `MultiProblem` a list
of them, one for each class that matters to the row.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists
from sbm.compiled import load
from sbm.rows import Rows
from sbm.solver.losses import Loss
from sbm.solver.pairs import solve_pairs
from sbm.solver.variables import FEW, DenseSet, ListPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sbm.solver.cache import WorkingSet

__all__ = ["AnyProblem", "MultiProblem", "Problem", "Sweeps", "rows_ahead", "squared_norm"]

# Smaller weights come from the processor's caches; asking for them ahead costs more than it saves.
_PREFETCH_ABOVE = 1 << 24
_PREFETCH_ROWS = 3

Weights: TypeAlias = npt.NDArray[np.float64]


@dataclass
class Sweeps:
    """How a working set is to be swept, and the scratch for it.

    Attributes
    ----------
    block : int
        Rows of this block count towards the gap estimate.
    rounds, chunk : int
        Most sweeps; rows that are visited together.
    inner_tol : float
        End after a first sweep whose largest violation is not above.
    state : ndarray, shape (1,), uint64
        Random generator of the kernels.
    active : ndarray, shape (n,), int32
    order : ndarray, shape (at least n / chunk,), int64
    spread : callable
        Like ``map``: calls a function for many arguments, perhaps in threads.
    tasks : int
        Into how many parts it is worth dividing what can be done at the same time.
    count_active : bool
        Score rows of many classes by the number of their variables that are not shrunk.
    """

    block: int
    rounds: int
    chunk: int
    inner_tol: float
    state: npt.NDArray[np.uint64]
    active: npt.NDArray[np.int32]
    order: npt.NDArray[np.int64]
    spread: Callable[..., Iterable[Any]] = map
    tasks: int = 1
    count_active: bool = False


@dataclass(frozen=True)
class Problem:
    """Two classes, one variable a row.

    Attributes
    ----------
    loss : Loss
    cost_positive, cost_negative : float
        C times class weight for the rows of the positive class and for all others.
    positive : int
        Class code of the positive class.
    bias : float
        Value of the extra feature; 0 for none.
    """

    loss: Loss
    cost_positive: float
    cost_negative: float
    positive: int
    bias: float = 0.0

    n_outputs = 1
    listed = False

    def costs(self, y: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """Cost C_i of rows with class codes `y`, shape (n,), float64."""
        return np.where(y == self.positive, self.cost_positive, self.cost_negative)

    @property
    def resting_values(self) -> list[float]:
        """Values other than 0 at which variables come to rest exactly."""
        return self.loss.resting_values([self.cost_positive, self.cost_negative])

    @property
    def _kernels(self) -> Any:
        return load(f"sbm.solver.kernels.{self.loss.kernel}")

    @property
    def _numbers(self) -> tuple[Any, ...]:
        return (
            self.positive, self.cost_positive, self.cost_negative, self.bias, self.loss.squared
        )  # fmt: skip

    def solve(self, work: WorkingSet, W: Weights, how: Sweeps) -> npt.NDArray[np.float64]:
        """Sweep over a working set; change its variables and scores, and W.

        Returns
        -------
        ndarray, shape (5,), float64
            Rise of Σ d_i; gap of the block's rows at their first visit; visits; updates; sweeps.
        """
        assert isinstance(work.alpha, DenseSet)
        n, stats = work.n, np.zeros(5)
        self._kernels.solve(
            work.starts[:n], work.lengths[:n], work.y[:n], work.home[:n], work.arena.indices,
            work.arena.values, work.alpha.values[:n], work.score[:n], W[:, 0], *self._numbers, 1.0,
            how.rounds, how.chunk, rows_ahead(W), how.inner_tol, how.block, how.state, how.active,
            how.order, stats,
        )  # fmt: skip
        return stats

    def screen(self, rows: Rows, alpha: Alphas, W: Weights, moving: npt.NDArray[np.bool_]) -> None:
        """Mark the rows that a visit would change, at fixed W; marks in `moving` stay."""
        assert isinstance(alpha, Dense)
        self._kernels.screen(
            rows.starts, rows.lengths, rows.y, rows.indices, rows.values, alpha.values, W[:, 0],
            *self._numbers, rows_ahead(W), moving,
        )  # fmt: skip

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
        self._kernels.certify(
            rows.starts, rows.lengths, rows.y, rows.indices, rows.values, alpha.values, W[:, 0],
            W_alpha[:, 0], *self._numbers, rows_ahead(W), sums,
        )  # fmt: skip
        return sums

    def is_free(self, work: WorkingSet, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether variables of rows of a working set, shape (n,), lie inside their bounds."""
        assert isinstance(work.alpha, DenseSet)
        return self.loss.is_free(work.alpha.values[rows], self.costs(work.y[rows]))


@dataclass(frozen=True, eq=False)
class MultiProblem:
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
    schedule : {"sample", "pairs"}
        What a visit solves for: all variables of a row, or (Weston-Watkins) those of one class
        after the other, in an order that lets threads work on pairs of classes.
    """

    loss: Loss
    costs: npt.NDArray[np.float64]
    cost_rest: float
    bias: float = 0.0
    first: int = 0
    n_outputs: int = 0
    schedule: str = "sample"

    listed = True

    def __post_init__(self) -> None:
        if not self.n_outputs:
            object.__setattr__(self, "n_outputs", len(self.costs))

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

    def solve(self, work: WorkingSet, W: Weights, how: Sweeps) -> npt.NDArray[np.float64]:
        """Sweep over a working set; see `Problem.solve`.

        Returns
        -------
        ndarray, shape (6,), float64
            As of `Problem.solve`; visits that were cut short for want of room in the lists.
        """
        assert isinstance(work.alpha, ListPool)
        if self.schedule == "pairs":
            return self._solve_pairs(work, work.alpha, W, how)
        n, pool, stats = work.n, work.alpha, np.zeros(6)
        self._kernels.solve(
            work.starts[:n], work.lengths[:n], work.y[:n], work.home[:n], work.arena.indices,
            work.arena.values, pool.begin[:n], pool.count[:n], pool.outputs, pool.betas, pool.used,
            pool.held, pool.few[:n], pool.n_few[:n], work.score[:n], W, *self._numbers,
            self.bias, self.loss.squared, 1.0, pool.held_limit, how.rounds, how.chunk,
            rows_ahead(W), how.inner_tol, how.block, how.count_active, how.state, how.active,
            how.order, np.empty((6, self._width)), np.empty((6, FEW)),
            np.empty(self._width, np.int32), np.empty(self.n_outputs, np.bool_),
            np.empty(FEW, np.bool_), stats,
        )  # fmt: skip
        return stats

    def _solve_pairs(
        self, work: WorkingSet, pool: ListPool, W: Weights, how: Sweeps
    ) -> npt.NDArray[np.float64]:
        """Sweep by pairs of classes, which needs weights by classes and all variables of a row."""
        n = work.n
        rows = Rows(
            work.starts[:n], work.lengths[:n], work.arena.indices, work.arena.values, work.y[:n]
        )
        beta = pool.spread(n, self.n_outputs)
        by_class = np.ascontiguousarray(W.T)
        totals = solve_pairs(
            rows, work.home[:n], beta, work.score[:n], by_class, self.costs, rounds=how.rounds,
            inner_tol=how.inner_tol, block=how.block, state=how.state, bias=self.bias,
            spread=how.spread, tasks=how.tasks,
        )  # fmt: skip
        W[:] = by_class.T
        pool.gather(beta, work.home[:n])
        return np.array(
            [totals.gain, totals.gap, totals.visits, totals.updates, totals.sweeps, 0.0]
        )

    def screen(self, rows: Rows, alpha: Alphas, W: Weights, moving: npt.NDArray[np.bool_]) -> None:
        """Mark the rows that a visit would change, at fixed W; marks in `moving` stay."""
        assert isinstance(alpha, Lists)
        self._kernels.screen(
            rows.starts, rows.lengths, rows.y, rows.indices, rows.values, alpha.offsets,
            alpha.outputs, alpha.values, W, *self._numbers, self.bias, self.loss.squared,
            rows_ahead(W), np.empty((2, self._width)), moving,
        )  # fmt: skip

    def certify(
        self, rows: Rows, alpha: Alphas, W: Weights, W_alpha: Weights
    ) -> npt.NDArray[np.float64]:
        """Sum up what rows contribute to the certificate; see `Problem.certify`."""
        assert isinstance(alpha, Lists)
        sums = np.zeros(5)
        self._kernels.certify(
            rows.starts, rows.lengths, rows.y, rows.indices, rows.values, alpha.offsets,
            alpha.outputs, alpha.values, W, W_alpha, *self._numbers, self.bias, self.loss.squared,
            rows_ahead(W), np.empty((4, self._width)), np.empty(self._width, np.int32), sums,
        )  # fmt: skip
        return sums

    def is_free(self, work: WorkingSet, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether rows of a working set, shape (n,), have a variable inside its bounds."""
        assert isinstance(work.alpha, ListPool)
        pool, free = work.alpha, np.empty(len(rows), np.bool_)
        self._kernels.mark_free(
            rows, work.y, pool.begin, pool.count, pool.outputs, pool.betas, *self._numbers,
            self.loss.squared, np.empty(self._width), free,
        )  # fmt: skip
        return free


AnyProblem: TypeAlias = Problem | MultiProblem


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
    for k in range(0, len(W), step):
        part = W[k : k + step] if minus is None else W[k : k + step] - minus[k : k + step]
        parts.append(float(np.square(part).sum()))
    return math.fsum(parts)
