"""Rounds over a working set by several workers, which may run in threads of their own.

In a round each worker visits a share of the rows, in an order of its own, and moves its own view of
W. Then the changes of all workers are added up. A round of many nonzeros has several such sums.

Damping. If all workers push a weight in the same direction, the sum goes too far. So each worker moves
its view by σ times its change, as in CoCoA+ (Ma et al. 2015; Smith et al. 2018), but with a factor σ
for each bucket of weights. Features are numbered in the order in which they first occur, so that
frequent ones have small numbers: a bucket has the weights from 2^b to 2^(b + 1). σ is a moving average
of |Σ_t d_t|² / Σ_t |d_t|² over the last sums: 1 if the changes d_t of the workers are independent, and
the number of workers if they are equal.

Guard. With σ equal to the number of workers, a sum never decreases F. If it decreases with less, the
averages start again from there, and σ is kept larger than they suggest from then on.

The result depends on the number of workers, but not on the threads that run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.solver.cache import WorkingSet
from sbm.solver.problem import Damping, Problem, Rounds

__all__ = ["Workers"]

Floats = npt.NDArray[np.float64]

BUCKETS, EXTRA = 32, 31  # as in kernels/common.py
RATE, SPARE = 0.3, 1.05  # of the moving averages; safety factor on σ
MORE_SPARE = 1.1  # factor on it after a decrease of F
# Nonzeros that a worker visits between two sums: at least so many, and so many per weight.
LEAST_NNZ, PER_WEIGHT = 200_000, 4


class Workers:
    """Runs the rounds of one learner in several workers.

    Parameters
    ----------
    n : int
        Number of workers.
    problem : Problem
    W : ndarray, shape (n_weights, 1), float64

    Attributes
    ----------
    dual_sum : float
        Σ d_i(α_i), for `solve`, which updates it.
    """

    def __init__(self, n: int, problem: Problem, W: Floats) -> None:
        self._n, self._problem, self._W = n, problem, W
        self._views = np.empty((n, len(W)))
        self._damping = np.full(BUCKETS, float(n))
        # Moving averages of |Σ_t d_t|² and Σ_t |d_t|², by bucket.
        self._averages = np.zeros((2, BUCKETS))
        self._spare = SPARE
        self._common = load("sbm.solver.kernels.common")
        self.dual_sum = 0.0

    def solve(self, work: WorkingSet, how: Rounds) -> Floats:
        """Visit a working set in rounds; see `Problem.solve`."""
        n, each = self._n, work.rows.nnz / max(1, work.n)
        work.rest[: work.n] = 0
        self._views[:] = self._W[:, 0]
        parts = [replace(how, limits=np.array([np.inf, 0.0])) for _ in range(n)]
        total, gap, dual = np.zeros(5), 0.0, -np.inf
        for turn in range(how.rounds):
            places = self._list_rows(work, how)
            nnz = sum(map(len, places)) * each / n
            n_sums = max(1, int(nnz / max(LEAST_NNZ, PER_WEIGHT * len(self._W))))
            worst, gap, updates = 0.0, 0.0, 0.0
            for k in range(n_sums):

                def visit(t: int, turn: int = turn, k: int = k, n_sums: int = n_sums) -> Floats:
                    mine = places[t]
                    mine = mine[len(mine) * k // n_sums : len(mine) * (k + 1) // n_sums]
                    part = replace(
                        parts[t], turn=turn, awake=mine, given=len(mine), damping=self._how_to()
                    )
                    return self._problem.solve(work, self._views[t, :, np.newaxis], part)

                stats = np.sum(list(how.spread(visit, range(n))), axis=0)
                worst = max(worst, *(float(part.limits[1]) for part in parts))
                self.dual_sum += float(stats[0])
                total[:1], total[2:4] = total[:1] + stats[:1], total[2:4] + stats[2:4]
                gap, updates = gap + float(stats[1]), updates + float(stats[3])
                before, dual = dual, self._add_up(how)
                self._learn(dual < before)
            total[1] = gap if how.stop > 0.0 else total[1] + gap
            total[4] = turn + 1
            is_solved = how.stop > 0.0 and gap <= how.stop * abs(dual)
            if worst == 0.0 or (turn == 0 and worst <= how.inner_tol) or is_solved:
                break
            for part in parts:
                part.limits[0] = worst
        return total

    def _list_rows(self, work: WorkingSet, how: Rounds) -> list[npt.NDArray[np.int32]]:
        """Return the rows that each worker visits in the next round, in order."""
        size = int(self._common.chunk_size(work.n, how.chunk))
        chunks = -(-work.n // size)
        state = self._common.permute(how.order, chunks, how.state[0])
        how.state[0] = int(state) % (1 << 64)  # kernels return it as int64
        ends = [chunks * t // self._n for t in range(self._n + 1)]

        def work_on(t: int) -> npt.NDArray[np.int32]:
            mine, seed = how.order[ends[t] : ends[t + 1]], how.state + np.uint64(2 * t)
            awake = how.awake[size * ends[t] : size * ends[t + 1]]
            n = self._common.list_awake(mine, len(mine), size, seed, work.rest[: work.n], awake)
            return awake[:n]

        return list(how.spread(work_on, range(self._n)))

    def _how_to(self) -> Damping:
        return Damping(self._damping, float(self._damping[EXTRA]), None, None)

    def _add_up(self, how: Rounds) -> float:
        """Add up the changes of all workers, and learn from them; return the dual value."""
        n, size = self._n, len(self._W)
        ends, sums = [size * t // n for t in range(n + 1)], np.zeros((n, 3, BUCKETS))
        kernels, has_extra = load("sbm.solver.kernels.workers"), self._problem.bias > 0

        def work_on(t: int) -> None:
            kernels.add_up(
                ends[t], ends[t + 1], has_extra, self._damping, self._W[:, 0], self._views, sums[t]
            )

        list(how.spread(work_on, range(n)))
        self._squares = sums.sum(axis=0)
        return self.dual_sum - 0.5 * float(self._squares[2].sum())

    def _learn(self, has_decreased: bool) -> None:
        """Update σ after a sum."""
        if has_decreased:
            self._averages[:] = 0.0
            self._damping[:] = self._n
            self._spare = min(float(self._n), self._spare * MORE_SPARE)
            return
        load("sbm.solver.kernels.changes").learn(
            self._averages, self._squares[0], self._squares[1], 0, BUCKETS, RATE, self._spare,
            self._damping, float(self._n),
        )  # fmt: skip

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what was learned, as arrays."""
        return {
            "averages": self._averages, "damping": self._damping, "spare": np.array([self._spare])
        }  # fmt: skip

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`."""
        self._averages[:], self._damping[:] = state["averages"], state["damping"]
        self._spare = float(state["spare"][0])
