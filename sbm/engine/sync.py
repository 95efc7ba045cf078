"""Sums of the changes of several ranks, each of which solves on its own rows.

Every rank holds the same W. In a round over its working set, a rank moves its own copy of W, and
the changes of all ranks are added up several times: the most frequent weights, which carry most of
the interference, `SUMS` times, all weights `FULL_SUMS` times.

Damping. If all ranks push a weight in the same direction, the sum goes too far. So each rank
moves its own copy of W by σ times its change, as in CoCoA+ (Ma et al. 2015; Smith et al. 2018), but
with a factor σ for each bucket of weights of similar frequency. σ is a moving average of
|Σ_p d_p|² / Σ_p |d_p|² over the last sums: 1 if the changes d_p of the ranks are independent, and
the number of ranks if they are equal.

Guard. F along the sum is at least a parabola. If its maximum is at less than `LEAST_SHARE` of the
sum, W and the alphas changed since the last sum of all weights move back to it. So F never
decreases, and W matches the alphas of all ranks after each sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import blend
from sbm.compiled.calls import load
from sbm.distributed.comm import Comm
from sbm.rows import Rows
from sbm.solver.cache import WorkingSet
from sbm.solver.problem import AnyProblem, Damping, OneClass, Rounds, mean_square, squared_norm

__all__ = [
    "BUCKETS", "DENSE", "MOST_LISTED", "Combiner", "agree_on_unit", "frequent_of", "shared_bytes",
    "sums_of",
]  # fmt: skip

Floats = npt.NDArray[np.float64]

SUMS, FULL_SUMS = 64, 2  # per round over a large working set
LEAST_NNZ = 1024  # nonzeros of the largest rank between two sums
FREQUENT = 4096  # weights that are added up more often
LEAST_SHARE = 0.5
OUT = 255  # a row that is left alone until the last round, as in kernels/common.py
RATE, SPARE = 0.3, 1.05  # of the moving averages; safety factor on σ
# Buckets of weights: by the logarithm of their frequency, then the same for the frequent ones.
BUCKETS, HALF = 64, 32
# Changed weights are listed if the updated rows of a rank have at most that many nonzeros per
# weight, divided by the number of ranks.
DENSE = 0.5
# Most listed changes of all ranks together; more are added up with all weights.
MOST_LISTED = 1 << 19


def shared_bytes(n_weights: int, outputs: int) -> int:
    """Return the bytes of a combiner, besides a copy of W."""
    listed = MOST_LISTED * (8 + 4) * 2 + MOST_LISTED * 4  # sent and received; the union
    return n_weights + listed + 3 * 8 * (frequent_of(outputs) * outputs + BUCKETS)


def sums_of(nnz: int) -> tuple[int, int]:
    """Return the sums of a round over so many nonzeros, and of how many one is of all weights."""
    n = max(1, min(SUMS, nnz // LEAST_NNZ))
    return n, -(-n // FULL_SUMS)


def frequent_of(outputs: int) -> int:
    """Return how many features are frequent: they have `FREQUENT` weights in all."""
    return max(1, FREQUENT // outputs)


class Combiner:
    """Runs the rounds of one learner together with other ranks.

    Parameters
    ----------
    comm : Comm
    problem : Problem, MultiProblem or OneClass
    W : ndarray, shape (n_weights, n_outputs), float64
        Equal in all ranks between two calls of `solve`.

    Attributes
    ----------
    dual_sum : float
        Σ d_i(α_i) over the rows of all ranks, for `solve`, which updates it.
    """

    def __init__(self, comm: Comm, problem: AnyProblem, W: Floats) -> None:
        self._comm, self._problem, self._W = comm, problem, W
        self._kernels = load("sbm.solver.kernels.changes")
        self._common = load("sbm.solver.kernels.common")
        self._base = np.empty_like(W)
        n, outputs = W.shape
        self._code = np.zeros(n, np.uint8)
        most = min(n, MOST_LISTED // (comm.size * outputs))
        self._listed = np.empty(most, np.int32)
        self._updated: list[npt.NDArray[np.int32]] = []  # rows updated since the last sum
        self._union = np.empty(min(n, comm.size * most), np.int32)
        self._frequent = np.empty(0, np.int32)
        # Moving averages of |Σ_p d_p|² and Σ_p |d_p|², by bucket.
        self._averages = np.zeros((2, BUCKETS))
        self._damping = np.full(BUCKETS, float(comm.size))
        self._is_known = False  # the frequency of features
        self.dual_sum = 0.0

    # ------------------------------------------------------------------------------ a step

    def solve(self, work: WorkingSet, how: Rounds) -> Floats:
        """Visit the rows of all ranks in rounds; all ranks must call this together.

        Parameters
        ----------
        work : WorkingSet
        how : Rounds

        Returns
        -------
        ndarray
            The statistics of this rank, as of `Problem.solve`.
        """
        if not self._is_known:
            self._learn_frequencies(work.rows)
        np.copyto(self._base, self._W)
        nnz = int(self._comm.gather([work.rows.nnz]).max())
        n_sums, every = sums_of(nnz)
        total = since = np.zeros(0)
        rest = work.rest[: work.n]
        rest[rest == OUT] = 0
        self._worsts = np.array([np.inf, 0.0, 1.0])
        for turn in range(how.rounds):
            gap, updates = 0.0, 0.0
            places = self._common.begin_round(how.order, how.chunk, how.state, rest, how.awake)
            ends = [places * k // n_sums for k in range(n_sums + 1)]
            for k in range(n_sums):
                if k % every == 0:
                    self._begin(work)
                awake = how.awake[ends[k] : ends[k + 1]]
                part = replace(how, turn=turn, awake=awake, damping=self._how_to())
                stats = self._problem.solve(work, self._W, part)
                self._updated.append(awake[: int(stats[3])])
                since = since + stats if k % every else stats
                self._add_frequent()
                if (k + 1) % every == 0 or k + 1 == n_sums:
                    theirs = self._add_all(work, since)
                    gap, updates = gap + theirs[0], updates + theirs[1]
                    total = total + since if len(total) else since
            worst = self._worsts[1] / max(1.0, self._worsts[2])
            self._worsts[:] = self._comm.gather([worst]).max(), 0.0, 0.0
            if updates == 0.0:
                break
            if how.stop > 0.0 and gap <= how.stop * abs(
                self.dual_sum - 0.5 * squared_norm(self._W)
            ):
                break
        total[4] = turn + 1
        if how.stop > 0.0:
            total[1] = gap / self._comm.size  # all ranks' gaps are added up at the end of the pass
        return total

    def _how_to(self) -> Damping:
        extra = float(self._damping[self._code[-1]]) if self._problem.bias > 0 else 1.0
        if isinstance(self._problem, OneClass):
            extra = float(self._comm.size)
        return Damping(self._damping, extra, self._code, self._worsts)

    def _learn_frequencies(self, rows: Rows) -> None:
        """Put the weights into buckets by the number of rows with each feature.

        The rows are those of the first step of all ranks, which are a sample of the data.
        """
        counts = self._base
        counts[:] = 0.0
        self._kernels.count(rows.starts, rows.lengths, rows.indices, counts)
        self._comm.add_up(counts)
        column = counts[:, 0]
        if self._problem.bias > 0:
            column[-1] = column.max(initial=0.0) + 1.0
        np.clip(np.frexp(column)[1], 0, HALF - 1, out=self._code, casting="unsafe")
        n = min(frequent_of(self._W.shape[1]), len(column))
        often = np.sort(np.argsort(-column, kind="stable")[:n])
        self._mark_frequent(often[column[often] > 0])

    def _mark_frequent(self, places: npt.NDArray[np.int64]) -> None:
        self._frequent = places.astype(np.int32)
        self._code[places] |= HALF
        self._changes = np.empty(len(places) * self._W.shape[1] + BUCKETS)
        self._is_known = True

    # ------------------------------------------------------------------------------- sums

    def _begin(self, work: WorkingSet) -> None:
        """Save what a partial step returns to."""
        self._before = work.alpha.copy(work.n)
        self._numbers = self._problem.numbers()
        self._start = self._W[self._frequent]

    def _add_frequent(self) -> None:
        """Add up the changes of the frequent weights."""
        if not len(self._frequent):
            return
        of_frequent = self._frequent, self._W, self._base
        self._kernels.take_frequent(*of_frequent, self._damping, self._code, self._changes)
        self._comm.add_up(self._changes)
        squares = np.zeros(BUCKETS)
        self._kernels.receive_frequent(*of_frequent, self._code, self._changes, squares)
        self._learn(squares, self._changes[-BUCKETS:], slice(HALF, BUCKETS))

    def _add_all(self, work: WorkingSet, stats: Floats) -> Floats:
        """Add up the changes of all other weights; return the ranks' gap and updates."""
        comm, W, base = self._comm, self._W, self._base
        n = self._list_changed(work.rows)
        numbers = self._problem.numbers()
        theirs = comm.gather([n, stats[0], stats[1], stats[3], *numbers])
        sizes = theirs[:, 0].astype(np.int64)
        squares = np.zeros(BUCKETS + 2)
        if sizes.min() >= 0:
            own = np.zeros(BUCKETS)
            n_union = self._exchange(sizes, own)
            self._kernels.settle(self._union, n_union, W, base, self._code, squares)
        else:
            own, n_union = self._exchange_all(squares), -1
        self._learn(squares[:BUCKETS], own, slice(0, HALF))
        moved = W[self._frequent] - self._start
        cross = squares[-2] + float(np.sum(self._start * moved))
        size, gain = squares[-1] + float(np.sum(moved * moved)), math.fsum(theirs[:, 1])
        share = self._share(gain, cross, size)
        if share < 1.0:
            share = self._move_back(work, share)
            W[self._frequent] = base[self._frequent] = self._start + share * moved
        if n_union >= 0:
            self._kernels.apply(self._union, n_union, W, base, share)
        else:
            if share < 1.0:
                W -= base
                W *= share
                W += base
            np.copyto(base, W)
        self.dual_sum += share * gain
        self._problem.add_up(self._numbers, theirs[:, 4:], float(comm.size))
        total: Floats = theirs[:, 2:4].sum(axis=0)
        return total

    def _list_changed(self, rows: Rows) -> int:
        """List the weights of updated rows, but frequent ones; return their number, or -1."""
        updated, n = self._updated, 0
        self._updated = []
        nnz = sum(int(rows.lengths[some].sum()) for some in updated)
        if nnz > DENSE * len(self._W) / self._comm.size:
            return -1
        for some in updated:
            n = self._kernels.list_changed(
                some, rows.starts, rows.lengths, rows.indices, self._code, HALF, self._listed, n
            )
            if n < 0:
                break
        return n

    def _exchange(self, sizes: npt.NDArray[np.int64], own: Floats) -> int:
        """Add up the listed changes; return the number of weights changed by any rank."""
        comm, W = self._comm, self._W
        n, outputs = int(sizes[comm.rank]), W.shape[1]
        places, changes = self._listed[:n], np.empty((n, outputs))
        self._kernels.take(places, W, self._base, self._damping, self._code, changes)
        all_places = comm.collect(places, sizes)
        all_changes = comm.collect(changes.reshape(-1), sizes * outputs)
        n_union = 0
        for where, what in zip(all_places, all_changes, strict=True):  # in the order of the ranks
            n_union = self._kernels.receive(
                where, what.reshape(-1, outputs), W, self._code, self._union, n_union, own
            )
        return n_union

    def _exchange_all(self, squares: Floats) -> Floats:
        """Add up the changes of all weights; return Σ_p |d_p|² by bucket."""
        mine = np.zeros(BUCKETS)
        self._kernels.take_all(self._W, self._base, self._damping, self._code, HALF, mine)
        self._comm.add_up(self._W)
        self._kernels.settle_all(self._W, self._base, self._code, squares)
        own: Floats = self._comm.gather(mine.tolist()).sum(axis=0)
        return own

    # -------------------------------------------------------------------- damping and guard

    def _learn(self, squares: Floats, own: Floats, buckets: slice) -> None:
        """Update σ, given |Σ_p d_p|² and Σ_p |d_p|² of the last sum, by bucket."""
        if isinstance(self._problem, OneClass):
            return  # its constraint couples all rows, so that a partial step is not defined
        self._kernels.learn(
            self._averages, squares, own, buckets.start, buckets.stop, RATE, SPARE, self._damping,
            float(self._comm.size),
        )  # fmt: skip

    def _share(self, gain: float, cross: float, size: float) -> float:
        """Return the share of the sum to apply.

        Parameters
        ----------
        gain : float
            Increase of Σ d_i over all ranks.
        cross, size : float
            <W, ΔW> and |ΔW|², W before the sum.
        """
        if size == 0.0 or isinstance(self._problem, OneClass):
            return 1.0
        best = (gain - cross) / size
        return 1.0 if best >= LEAST_SHARE else max(0.0, best)

    def _move_back(self, work: WorkingSet, share: float) -> float:
        """Move the alphas back to a share of their change; return the share that is possible."""
        before, pool, home = self._before, work.alpha, work.home[: work.n]
        mixed = blend(before, pool.take(np.arange(work.n)), share)
        if not self._comm.gather([pool.fits(home, mixed)]).all():
            share, mixed = 0.0, before
        pool.replace(home, mixed)
        return share

    # ------------------------------------------------------------------------------ state

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what was learned, as arrays; nothing before the first step."""
        if not self._is_known:
            return {}
        return {"code": self._code, "averages": self._averages, "damping": self._damping}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`."""
        if "code" in state:
            self._code[:] = state["code"]
            self._mark_frequent(np.flatnonzero(self._code >= HALF))
            self._averages[:], self._damping[:] = state["averages"], state["damping"]


def agree_on_unit(comm: Comm, problem: OneClass, rows: Rows | None) -> None:
    """Set the offset unit of a one-class problem to the same value in all ranks.

    It is computed from the first block of each rank.
    """
    n = 0 if rows is None else len(rows)
    mean = mean_square(rows.starts, rows.lengths, rows.values) if rows is not None and n else 0.0
    means, counts = comm.gather([mean, n]).T
    problem.agree_on_scale(means.tolist(), counts.tolist())
