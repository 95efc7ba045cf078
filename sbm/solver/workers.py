"""Rounds over a working set by several workers, each in a thread of its own.

In a round each worker visits a share of the rows, in random order, and moves its own view of W.
Then the changes of all workers are added up; a long round has several such sums, and more of the
frequent weights, which carry most of the interference.

Damping. If all workers push a weight in the same direction, the sum goes too far. So each worker
moves its view by σ times its change, as in CoCoA+ (Ma et al. 2015; Smith et al. 2018), but with a
factor σ for each bucket of weights. Features are numbered in the order in which they first occur,
so frequent ones have small numbers: a bucket has the weights from 2^b - 1 to 2^(b + 1) - 2. σ is a
moving average of |Σ_t d_t|² / Σ_t |d_t|² over the last sums: 1 if the changes d_t of the workers
are independent, and the number of workers if they are equal.

Guard. With σ equal to the number of workers, a sum never decreases F. If F decreases at a smaller
σ, the averages start again from there, and a larger safety factor applies from then on.

The result depends on the number of workers, but not on how many of them run at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.solver.cache import WorkingSet
from sbm.solver.problem import Damping, Problem, Rounds

__all__ = ["Workers"]

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]

BUCKETS, EXTRA = 32, 31  # as in kernels/common.py
RATE, SPARE = 0.3, 1.05  # of the moving averages; safety factor on σ
MORE_SPARE = 1.1  # factor on it after a decrease of F
FREQUENT = 4096  # weights
# Nonzeros that a worker visits between two sums: at least so many, and so many per weight.
LEAST_NNZ, PER_WEIGHT = 50_000, 1
_SEGMENT = 1024  # weights that are added up together


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
        self._spare = np.array([SPARE])
        self._common = load("sbm.solver.kernels.common")
        self._kernels = load("sbm.solver.kernels.changes")
        self.dual_sum = 0.0

    def solve(self, work: WorkingSet, how: Rounds) -> Floats:
        """Visit a working set in rounds; see `Problem.solve`."""
        n, each = self._n, work.rows.nnz / max(1, work.n)
        work.rest[: work.n] = 0
        self._views[:] = self._W[:, 0]
        worsts = np.full((n, 3), np.inf)  # of each worker, as in `Damping`
        total, dual = np.zeros(5), -np.inf
        for turn in range(how.rounds):
            places = self._list_rows(work, how)
            nnz = sum(map(len, places)) * each / n
            n_full = max(1, int(nnz / max(LEAST_NNZ, PER_WEIGHT * len(self._W))))
            every = max(1, int(nnz / n_full / LEAST_NNZ))
            n_sums = n_full * every
            found, worsts[:, 1] = np.zeros(5), 0.0
            for k in range(n_sums):
                some = [
                    mine[len(mine) * k // n_sums : len(mine) * (k + 1) // n_sums] for mine in places
                ]
                stats = self._visit(work, replace(how, turn=turn), some, worsts)
                found += stats
                self.dual_sum += float(stats[0])
                if (k + 1) % every:
                    self._add_up(how, FREQUENT)
                    self._learn(False)
                else:
                    norm = self._add_up(how, len(self._W))
                    before, dual = dual, self.dual_sum - 0.5 * norm
                    self._learn(dual < before)
            if how.stop > 0.0:
                total[1] = 0.0  # only the gap of the last round counts
            total += found
            worst = float(worsts[:, 1].max())
            is_solved = how.stop > 0.0 and found[1] <= how.stop * abs(dual)
            if worst == 0.0 or (turn == 0 and worst <= how.inner_tol) or is_solved:
                break
            worsts[:, 0] = worst
        total[4] = turn + 1
        return total

    def _list_rows(self, work: WorkingSet, how: Rounds) -> list[Places]:
        """Return the rows that each worker visits in the next round, in order."""
        rest = work.rest[: work.n]
        size = int(self._common.chunk_size(work.n, how.chunk))
        chunks = -(-work.n // size)
        state = self._common.permute(how.order, chunks, how.state[0])
        how.state[0] = int(state) % (1 << 64)  # kernels return it as int64
        ends = [chunks * t // self._n for t in range(self._n + 1)]

        def listed(t: int) -> Places:
            mine, own_state = how.order[ends[t] : ends[t + 1]], how.state + np.uint64(2 * t)
            awake = how.awake[size * ends[t] : size * ends[t + 1]]
            return awake[: self._common.list_awake(mine, len(mine), size, own_state, rest, awake)]

        return list(how.spread(listed, range(self._n)))

    def _visit(
        self, work: WorkingSet, how: Rounds, places: Sequence[Places], worsts: Floats
    ) -> Floats:
        """Let each worker visit some rows; return the sum of their statistics."""
        extra = float(self._damping[EXTRA])

        def visit(t: int) -> Floats:
            damping = Damping(self._damping, extra, None, worsts[t])
            mine = replace(how, awake=places[t], damping=damping)
            return self._problem.solve(work, self._views[t, :, np.newaxis], mine)

        total: Floats = np.sum(list(how.spread(visit, range(self._n))), axis=0)
        return total

    def _add_up(self, how: Rounds, size: int) -> float:
        """Add up the workers' changes of the first weights; return their squared norm."""
        size = min(size, len(self._W))
        n = self._n if size > FREQUENT else 1
        ends, sums = [size * t // n for t in range(n + 1)], np.zeros((n, 3, BUCKETS))
        scratch = np.empty((n, 2, _SEGMENT))

        def add_up(t: int) -> None:
            self._kernels.add_up(
                ends[t], ends[t + 1], self._problem.bias > 0, self._damping, self._W[:, 0],
                self._views, scratch[t], sums[t],
            )  # fmt: skip

        list(how.spread(add_up, range(n)))
        self._squares = sums.sum(axis=0)
        return float(self._squares[2].sum())

    def _learn(self, has_decreased: bool) -> None:
        """Update σ after a sum."""
        if has_decreased:
            self._averages[:] = 0.0
            self._damping[:] = self._n
            self._spare[:] = np.minimum(self._n, self._spare * MORE_SPARE)
            return
        self._kernels.learn(
            self._averages, self._squares[0], self._squares[1], 0, BUCKETS, RATE,
            float(self._spare[0]), self._damping, float(self._n),
        )  # fmt: skip

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what was learned, as arrays."""
        return {"averages": self._averages, "damping": self._damping, "spare": self._spare}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`."""
        if "spare" in state:  # not if fewer threads began the training
            self._averages[:], self._damping[:] = state["averages"], state["damping"]
            self._spare[:] = state["spare"]
