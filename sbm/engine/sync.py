"""Syncs: combine the steps of several ranks, each on its own blocks, into one step.

Every rank holds the same W. During a stretch each rank takes one or more steps
(`sbm.solver.step`) on its own copy of W. A sync then adds up all changes of W. If the sum goes too
far, W and all changed alphas move back by the same share. So after every sync W matches the alphas
of all ranks, and F has not decreased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Lists, blend, join, no_alphas
from sbm.distributed.comm import Comm
from sbm.rows import Rows
from sbm.settings import Settings
from sbm.solver.cache import Evicted
from sbm.solver.problem import OneClass, mean_square, squared_norm
from sbm.solver.step import Solver
from sbm.solver.variables import ListPool
from sbm.store.run import Run

__all__ = ["Adding", "Combiner", "agree_on_unit", "inner"]


Weights = npt.NDArray[np.float64]

# Number of past sums that σ' is chosen from, and the safety factor on top.
_REMEMBERED, _SPARE = 5, 1.05


@dataclass
class Adding:
    """The step size of each solver (σ') and of their sum (η).

    Attributes
    ----------
    rule : str or float
        ``safe``: σ' is n; ``adaptive``: σ' is estimated from the last sums; or σ' itself.
    n : int
        Number of solvers.
    sigma : float
        σ' until the next sum, from 1 to n.
    overlaps : list of float
        |ΔW|² / Σ |ΔW_p|² of the last sums: 1 if solvers share no feature, n if all their changes
        are equal.
    """

    rule: str | float
    n: int
    sigma: float = 1.0
    overlaps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sigma = float(self.n) if isinstance(self.rule, str) else min(self.rule, float(self.n))

    def share(self, gain: float, cross: float, size: float) -> float:
        """Return η, the share of the sum to apply.

        Parameters
        ----------
        gain : float
            Increase of Σ d_i over all solvers.
        cross : float
            <W, ΔW>.
        size : float
            |ΔW|².
        """
        if size == 0.0 or self.sigma == self.n:
            return 1.0
        return min(1.0, max(0.0, (gain - cross) / size))

    def learn(self, size: float, sizes: Sequence[float]) -> None:
        """Choose the next σ', given |ΔW|² and each |ΔW_p|²."""
        if self.rule != "adaptive" or sum(sizes) == 0.0:
            return
        self.overlaps = [*self.overlaps, size / sum(sizes)][-_REMEMBERED:]
        self.sigma = min(float(self.n), max(1.0, _SPARE * max(self.overlaps)))

    def reset_sigma(self) -> None:
        """Set σ' to n, so that the next sum is applied in full."""
        self.sigma = float(self.n)

    def record(self) -> dict[str, Any]:
        """Return the state as JSON, for `restore`."""
        return {"sigma": self.sigma, "overlaps": self.overlaps}

    def restore(self, record: dict[str, Any]) -> None:
        """Restore the state that `record` returned."""
        self.sigma, self.overlaps = float(record["sigma"]), list(map(float, record["overlaps"]))


def inner(W: Weights, V: Weights) -> float:
    """Return <W, V>, summed in slices: without copies, and independent of the thread count."""
    flat, other, step = W.reshape(-1), V.reshape(-1), 1 << 16
    return float(
        sum(
            float(np.multiply(flat[k : k + step], other[k : k + step]).sum())
            for k in range(0, len(flat), step)
        )
    )


Int32s = npt.NDArray[np.int32]


@dataclass
class _Before:
    """The state at the start of a stretch.

    Attributes
    ----------
    dual_sum : float
    numbers : list of float
        Numbers of the problem.
    cached : Evicted
        Home block, row number and alpha of each cached row.
    blocks : dict of int to Alphas
        Alphas of the visited blocks, except those of cached rows.
    """

    dual_sum: float
    numbers: list[float]
    cached: Evicted
    blocks: dict[int, Alphas] = field(default_factory=dict)


@dataclass
class _Mixed:
    """Alphas between the start of a stretch and its end.

    Attributes
    ----------
    blocks : dict of int to Alphas
        All rows of the visited blocks, including cached ones.
    cached : Alphas
        The cached rows, in the order of the cache.
    gone : Evicted
        Rows of other blocks that left the cache during the stretch.
    growth : ndarray, shape (n_blocks,), int64
        How many more variables these lists have than the current ones, per block.
    """

    blocks: dict[int, Alphas]
    cached: Alphas
    gone: Evicted
    growth: npt.NDArray[np.int64]


class Combiner:
    """Runs the stretches and syncs of one learner.

    Parameters
    ----------
    comm : Comm
    solver : Solver
        Its W and cache are changed in place.
    settings : Settings
    run : Run
        Stores the alphas of the blocks.
    base : int
        Number under which the run stores the alphas of block 0.

    Attributes
    ----------
    adding : Adding
    """

    def __init__(self, comm: Comm, solver: Solver, settings: Settings, run: Run, base: int) -> None:
        self._comm, self._solver, self._run, self._base = comm, solver, run, base
        # One-class has a constraint over all rows, for which a partial step is not defined.
        rule = "safe" if isinstance(solver.problem, OneClass) else settings.sigma
        self.adding = Adding(rule, comm.size)
        self._W = np.empty_like(solver.W)

    def begin(self) -> None:
        """Save weights and alphas at the start of a stretch; W is equal in all ranks."""
        solver, working = self._solver, self._solver.working
        np.copyto(self._W, solver.W)
        n = working.n_cached
        cached = Evicted(
            working.home[:n].copy(), working.row[:n].copy(), working.alpha.take(np.arange(n))
        )
        self._before = _Before(solver.dual_sum, solver.problem.numbers(), cached)
        solver.sigma = self.adding.sigma

    def visit(self, block: int, alpha: Alphas) -> None:
        """Save the alphas of a block that is about to be visited."""
        self._before.blocks[block] = alpha.take(np.arange(len(alpha)))

    def combine(self) -> Evicted | None:
        """Add up the changes of all ranks.

        The run must already hold all alphas that the steps returned.

        Returns
        -------
        Evicted or None
            The alphas that left the cache; None if no alpha was changed by the sync.
        """
        solver, adding, before = self._solver, self.adding, self._before
        W = solver.W
        np.subtract(W, self._W, out=W)
        W /= solver.sigma
        mine = [solver.dual_sum - before.dual_sum, squared_norm(W), *solver.problem.numbers()]
        theirs = self._comm.gather(mine)
        self._comm.add_up(W)
        size, gain = squared_norm(W), math.fsum(theirs[:, 0])
        share = adding.share(gain, inner(self._W, W), size)
        adding.learn(size, theirs[:, 1].tolist())
        mixed = None
        if share < 1.0:
            mixed = self._mix(share)
            if not self._comm.gather([self._fits(mixed)]).all():
                share, mixed = 0.0, self._mix(0.0)
                adding.reset_sigma()
        W *= share
        W += self._W
        solver.dual_sum = before.dual_sum + share * gain
        solver.problem.add_up(before.numbers, theirs[:, 2:], solver.sigma)
        return None if mixed is None else self._put(mixed)

    # -------------------------------------------------------------------------- partial steps

    def _mix(self, share: float) -> _Mixed:
        """Return the new values of all alphas that the stretch may have changed."""
        before, working = self._before, self._solver.working
        cached, blocks = before.cached, {}
        visited = np.isin(cached.home, list(before.blocks))
        for block, old in before.blocks.items():
            mine = np.flatnonzero(cached.home == block)
            old.put(cached.row[mine], cached.alpha.take(mine))
            now = self._run.load(self._base + block)
            working.alphas_of(block, now)
            blocks[block] = blend(old, now, share)
        places = np.flatnonzero(~visited)
        home, row = cached.home[places], cached.row[places]
        at = self._cached_at(home, row)
        now = self._now(home, row, at)
        others = blend(cached.alpha.take(places), now, share)
        gone = np.flatnonzero(at < 0)
        return _Mixed(
            blocks,
            self._of_cache(blocks, others, at),
            Evicted(home[gone], row[gone], others.take(gone)),
            _growth(home, now, others),
        )

    def _now(self, home: Int32s, row: Int32s, places: npt.NDArray[np.int64]) -> Alphas:
        """Return the alphas of rows that were cached, from blocks that were not visited.

        `places` are their current positions in the cache, -1 for rows that left it.
        """
        working, listed = self._solver.working, self._solver.problem.listed
        alpha = no_alphas(len(home), listed)
        still = np.flatnonzero(places >= 0)
        alpha.put(still, working.alpha.take(places[still]))
        for block in np.unique(home[places < 0]).tolist():
            gone = np.flatnonzero((home == block) & (places < 0))
            alpha.put(gone, self._run.load(self._base + block).take(row[gone]))
        return alpha

    def _cached_at(self, home: Int32s, row: Int32s) -> npt.NDArray[np.int64]:
        """Return the positions of rows in the cache, -1 for rows that are not cached."""
        working, n = self._solver.working, self._solver.working.n_cached
        keys = _keys(working.home[:n], working.row[:n])
        order = np.argsort(keys)
        found = np.searchsorted(keys, wanted := _keys(home, row), sorter=order)
        places = np.append(order, -1)[found]
        places[np.append(keys, -1)[places] != wanted] = -1
        return places

    def _fits(self, mixed: _Mixed) -> bool:
        """Return whether the merged lists fit into the list pool."""
        pool = self._solver.working.alpha
        if not isinstance(pool, ListPool):
            return True
        held = pool.held.copy()
        held[: len(mixed.growth)] += mixed.growth
        for block, alpha in mixed.blocks.items():
            held[block] = len(alpha.values)
        cached = mixed.cached
        assert isinstance(cached, Lists)
        room = len(cached.values) + len(cached)
        return room <= pool.cache_limit and bool((held <= pool.held_limit).all())

    def _of_cache(
        self, blocks: dict[int, Alphas], others: Alphas, at: npt.NDArray[np.int64]
    ) -> Alphas:
        """Return the new alphas of the cached rows, in the order of the cache."""
        working, n = self._solver.working, self._solver.working.n_cached
        home, row = working.home[:n], working.row[:n]
        parts, places = [no_alphas(0, self._solver.problem.listed)], [np.empty(0, np.int64)]
        for block, alpha in blocks.items():
            mine = np.flatnonzero(home == block)
            parts.append(alpha.take(row[mine]))
            places.append(mine)
        parts.append(others.take(np.flatnonzero(at >= 0)))
        places.append(at[at >= 0])
        return join(parts).take(np.argsort(np.concatenate(places)))

    def _put(self, mixed: _Mixed) -> Evicted:
        """Store the alphas; return those of other blocks that are no longer cached."""
        working, gone = self._solver.working, mixed.gone
        pool = working.alpha
        if isinstance(pool, ListPool):
            pool.held[: len(mixed.growth)] += mixed.growth
        pool.fill(mixed.cached)
        n = working.n_cached
        for block, alpha in mixed.blocks.items():
            pool.admit(block, alpha)
            rows = working.row[:n][working.home[:n] == block]
            alpha.put(rows, no_alphas(len(rows), self._solver.problem.listed))
            self._run.store(self._base + block, alpha)
        self._run.add_evicted(gone.home + self._base, gone.row, gone.alpha)
        return gone


def _growth(home: Int32s, now: Alphas, then: Alphas) -> npt.NDArray[np.int64]:
    """Return how many variables lists grow by, per block; empty unless alphas are lists."""
    if not (isinstance(now, Lists) and isinstance(then, Lists)):
        return np.empty(0, np.int64)
    return np.bincount(home, then.counts - now.counts).astype(np.int64)


def _keys(home: Int32s, row: Int32s) -> npt.NDArray[np.int64]:
    """Return a unique key for each (block, row)."""
    return (home.astype(np.int64) << 32) | row


def agree_on_unit(comm: Comm, problem: OneClass, rows: Rows | None) -> None:
    """Set the offset unit of a one-class problem to the same value in all ranks.

    It is computed from the first block of each rank.
    """
    n = 0 if rows is None else len(rows)
    mean = mean_square(rows.starts, rows.lengths, rows.values) if rows is not None and n else 0.0
    means, counts = comm.gather([mean, n]).T
    problem.agree_on_scale(means.tolist(), counts.tolist())
