"""One inner iteration of selective block minimization: merge, solve, select, hand back.

Algorithm 1 of Chang & Roth, KDD 2011, steps (b) to (d). Loading blocks and keeping alphas that are
not in memory is the caller's work.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas
from sbm.rows import Rows
from sbm.solver.cache import POLICIES, Evicted, WorkingSet
from sbm.solver.problem import AnyProblem, Rounds, Spread, squared_norm

__all__ = ["Screen", "Solver", "Step", "Totals"]

# Rows that are visited together, in storage order: long enough that the memory system keeps up,
# short enough that a fresh order of chunks converges like a fresh order of rows.
CHUNK = 64
# Where there would be fewer chunks than this, chunks get shorter, down to single rows.
LEAST_CHUNKS = 2048
INNER_TOL = 1e-12


@dataclass
class Totals:
    """What the visits of a pass, or of a training, added up to.

    Attributes
    ----------
    gain : float
        Rise of Σ d_i.
    gap : float
        Σ g_i of every block row at its first visit in its own block's step: during a pass an
        estimate, for free, of the gap at its middle.
    visits, updates, rounds : int
    starved : int
        Visits that were cut short because the lists of variables had no room.
    cached : int
        Rows of blocks that the cache held already.
    rest : int
        Rows of blocks that were at rest and not visited.
    """

    gain: float = 0.0
    gap: float = 0.0
    visits: int = 0
    updates: int = 0
    rounds: int = 0
    starved: int = 0
    cached: int = 0
    rest: int = 0

    def add(self, other: "Totals") -> None:
        """Add another one to this."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class Step:
    """What one step hands back.

    Attributes
    ----------
    alpha : Alphas
        Of the block's rows, 0 for those that are cached now.
    evicted : Evicted
        Rows of other blocks that left the cache.
    totals : Totals
    """

    alpha: Alphas
    evicted: Evicted
    totals: Totals = field(default_factory=Totals)


@dataclass(frozen=True)
class Screen:
    """Which rows of a block to come need a visit, judged at fixed W.

    Attributes
    ----------
    problem : Problem or MultiProblem
    W : ndarray, shape (n_weights, n_outputs), float64
    moving : ndarray, shape (n_block,), bool
    """

    problem: AnyProblem
    W: npt.NDArray[np.float64]
    moving: npt.NDArray[np.bool_]

    def add(self, first: int, rows: Rows, alpha: Alphas) -> None:
        """Judge some rows of the block; those that are marked as moving stay so.

        Parameters
        ----------
        first : int
            Number of the first of them in the block.
        rows : Rows
        alpha : Alphas
            Their spilled ones.
        """
        self.problem.screen(rows, alpha, self.W, self.moving[first : first + len(rows)])


class Solver:
    """W, cache and random state, and the one verb `step`.

    Parameters
    ----------
    problem : Problem or MultiProblem
    W : ndarray, shape (n_weights, n_outputs), float64
        Changed in place; zero, or Σ α s x of the alphas it starts from.
    working : WorkingSet
        Its cache may hold rows already.
    rounds : int
        Most rounds a step.
    policy : str
        A key of `POLICIES`.
    seed : int
    spread : callable
        As of `Rounds`.

    Attributes
    ----------
    dual_sum : float
        Σ d_i(α_i) over all rows; the dual value is ``dual_sum - ½|W|²`` at any moment.
    sigma : float
        1 alone; σ' where the steps of several solvers are added up: `W` then goes σ' times as far
        as the alphas do.
    W_seen : ndarray, like W
        W as of the last `look_ahead`; free for other uses between passes.
    """

    def __init__(
        self,
        problem: AnyProblem,
        W: npt.NDArray[np.float64],
        working: WorkingSet,
        *,
        rounds: int,
        policy: str = "gradient",
        seed: int = 0,
        spread: Spread = map,
    ) -> None:
        self.problem = problem
        self.W = W
        self.working = working
        self.rounds = rounds
        self.sigma = 1.0
        self.spread = spread
        self.W_seen = np.empty_like(W)
        self.dual_sum = 0.0
        if policy == "gradient" and not problem.loss.rests:
            policy = "mixed"
        self._rank = POLICIES[policy]
        self._random = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        first = self._random.integers(1, 2**63, dtype=np.uint64)
        self._state = np.array([first], np.uint64)  # of the kernels' generator, never 0
        capacity = len(working.starts)
        self._active = np.empty(capacity, np.int32)
        self._order = np.empty(max(2 * LEAST_CHUNKS + 1, capacity // CHUNK + 1), np.int64)

    @property
    def dual(self) -> float:
        """F(α) at this moment, up to the drift of W."""
        return self.dual_sum - 0.5 * squared_norm(self.W)

    def look_ahead(self, block: int, n_rows: int) -> "Screen":
        """Note what is needed to screen a block while the one before it is at work.

        Call it before the step of the block before; screen in any thread meanwhile.

        Parameters
        ----------
        block, n_rows : int

        Returns
        -------
        Screen
        """
        np.copyto(self.W_seen, self.W)
        moving = np.zeros(n_rows, np.bool_)
        # They may leave the cache meanwhile, and what is said of them here would be of old alphas.
        self.working.mark_cached(block, moving)
        return Screen(self.problem, self.W_seen, moving)

    def step(
        self,
        block: int,
        rows: Rows,
        alpha: Alphas,
        moving: npt.NDArray[np.bool_] | None = None,
    ) -> Step:
        """Merge a block with the cache, solve, select the next cache.

        Parameters
        ----------
        block : int
            Its number; cached rows remember it as their home.
        rows : Rows
            In the arena of the working set.
        alpha : Alphas
            Spilled ones; consumed: the result is written over it.
        moving : ndarray, shape (n_rows,), bool, optional
            Rows of the block to visit, changed in place. Default: all. The others must have been
            at rest at weights not older than the last step: their share of the gap was 0 then.

        Returns
        -------
        Step
        """
        if moving is None:
            moving = np.ones(len(rows), np.bool_)
        working = self.working
        cached = working.merge(block, rows, alpha, moving)
        n = working.n
        chunk = _chunk(n)
        order = self._order[: -(-n // chunk)]
        how = Rounds(
            block, self.rounds, chunk, INNER_TOL, self._state, self._active[:n], order,
            self.sigma, self.spread,
        )  # fmt: skip
        stats = self.problem.solve(working, self.W, how)
        self.dual_sum += float(stats[0])
        totals = Totals(float(stats[0]), float(stats[1]), *(int(s) for s in stats[2:]))
        totals.cached = cached
        totals.rest = len(rows) - int(np.count_nonzero(moving)) - cached
        share = working.cache_rows / max(1, n)
        rank = self._rank(working.score[:n], self._random, share)
        keep = working.select(rank, self._is_free)
        evicted = working.compact(keep, block, alpha)
        return Step(alpha, evicted, totals)

    def count_free(self) -> int:
        """Cached rows whose alphas lie inside their bounds."""
        return int(np.count_nonzero(self._is_free(np.arange(self.working.n_cached))))

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """W, cache and random state as arrays: with the spilled alphas, all there is to keep."""
        random = np.frombuffer(json.dumps(self._random.bit_generator.state).encode(), np.uint8)
        return {
            **self.working.state(), **self.problem.state(), "W": self.W, "random": self._state,
            "policy_random": random, "dual_sum": np.array([self.dual_sum]),
        }  # fmt: skip

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` said, W and the cache left out.

        Raises
        ------
        KeyError, ValueError, TypeError
            It is no such state.
        """
        self._state[:] = state["random"]
        text = state["policy_random"].tobytes().decode("ascii")
        self._random.bit_generator.state = json.loads(text)
        self.dual_sum = float(state["dual_sum"][0])
        self.problem.restore(state)

    def _is_free(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self.problem.is_free(self.working, rows)


def _chunk(n: int) -> int:
    """Rows to a chunk of the two-level permutation."""
    return max(1, min(CHUNK, n // LEAST_CHUNKS))
