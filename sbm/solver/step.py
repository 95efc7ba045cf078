"""One inner iteration of selective block minimization: merge, solve, select.

Algorithm 1 of Chang & Roth, KDD 2011, steps (b) to (d). The caller loads blocks and stores spilled
alphas.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense
from sbm.plain import dataclass
from sbm.rows import Rows, few_at_a_time
from sbm.solver.block import Block
from sbm.solver.cache import POLICIES, Evicted, WorkingSet
from sbm.solver.passline import PassLine
from sbm.solver.problem import AnyProblem, Problem, Rounds, Spread, room_for_order, squared_norm
from sbm.solver.proximal import Proximal

__all__ = ["Screen", "Solver", "Step", "Totals", "chunk_of"]

# Rows and nonzeros visited together, in storage order, at most. More are read faster, but converge
# slower: if rows of 50 nonzeros share features, chunks of 64 need four times the visits of 8.
CHUNK = 64
CHUNK_NNZ = 640
INNER_TOL = 1e-12
# Screening runs beside the solver, so it pays if it saves this many visits of each row.
LEAST_SAVING = 0.25
SCREEN_AGAIN = 8  # blocks, if it did not pay; the rows that come to rest increase over the passes


@dataclass
class Totals:
    """Statistics of a step, a pass or a training.

    Attributes
    ----------
    gain : float
        Increase of Σ d_i.
    gap : float
        Σ g_i of every block row at its first visit in its own block's step. Over a pass this
        estimates the gap at the middle of the pass.
    visits, updates, rounds : int
    starved : int
        Visits cut short because the lists of variables were full.
    cached : int
        Block rows that were already in the cache.
    rest : int
        Block rows that were at rest and not visited.
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
        """Add other statistics, in place."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class Step:
    """Result of a step.

    Attributes
    ----------
    alpha : Alphas
        Alphas of the block's rows; 0 for rows that are now cached.
    evicted : Evicted
        Rows of other blocks that left the cache.
    totals : Totals
    """

    alpha: Alphas
    evicted: Evicted
    totals: Totals = field(default_factory=Totals)


class Together(Protocol):
    """Rounds over the working sets of several ranks; see `sbm.engine.sync.Combiner`."""

    dual_sum: float

    def solve(self, work: WorkingSet, how: Rounds) -> npt.NDArray[np.float64]:
        """Visit the rows of all ranks in rounds; return the statistics of this rank."""

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what was learned, as arrays."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`."""


@dataclass(frozen=True)
class Screen:
    """Finds the rows of a coming block that need a visit, at fixed W.

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
        """Screen some rows of the block; existing marks in `moving` are kept.

        Parameters
        ----------
        first : int
            Position of the first row in the block.
        rows : Rows
        alpha : Alphas
            Spilled alphas of these rows.
        """
        self.problem.screen(rows, alpha, self.W, self.moving[first : first + len(rows)])


class Solver:
    """W, cache and random state of a solver; `step` processes one block.

    Parameters
    ----------
    problem : Problem or MultiProblem
    W : ndarray, shape (n_weights, n_outputs), float64
        Changed in place. Initially zero, or Σ α s x of the initial alphas.
    working : WorkingSet
        The cache may already have rows.
    rounds : int
        Maximum rounds per step.
    policy : str
        A key of `POLICIES`.
    seed : int
    spread : callable
        See `Rounds`.

    Attributes
    ----------
    dual_sum : float
        Σ d_i(α_i) over all rows. The dual value is ``dual_sum - ½|W|²`` at any time.
    together : Together or None
        Makes the rounds together with other ranks.
    stop : float
        If above 0, the rounds of a step end when the gap is at most this share of the dual value,
        and the gap in `Totals` is that of the last round.
    proximal : Proximal or None
        Keeps W near a centre; during a pass, W and the rows are then in its units.
    line : PassLine or None
        Moves W and all alphas between passes; in a pass, those of each block are clipped first.
    W_seen : ndarray, like W
        W at the last `look_ahead`; free for other uses between passes. Empty if `is_lean`.
    is_lean : bool
        Whether W is the only array of its size, so that blocks are screened by `screen`.
    searches : bool
        Whether rounds alternate with searches along lines; see `sbm.solver.tangents`.
    rest_share : float
        Share of the rows of the last screened block that were at rest.
    unscreened : int
        Steps since that block.
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
        is_lean: bool = False,
        searches: bool = False,
    ) -> None:
        self.problem = problem
        self.W = W
        self.working = working
        self.rounds = rounds
        self.together: Together | None = None
        self.proximal: Proximal | None = None
        self.line: PassLine | None = None
        self.stop = 0.0
        self.spread = spread
        self.is_lean = is_lean
        self.searches = searches and not is_lean and problem.searches
        self.W_seen = np.empty((0 if is_lean else len(W), W.shape[1]))
        self.dual_sum = 0.0
        self.rest_share, self.unscreened = 1.0, 0
        if policy == "gradient" and not problem.loss.rests:
            policy = "mixed"
        self._rank = POLICIES[policy]
        self._random = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        first = self._random.integers(1, 2**63, dtype=np.uint64)
        self._state = np.array([first], np.uint64)  # of the kernels' random generator, never 0
        capacity = len(working.rest)
        self._awake = np.empty(capacity + CHUNK, np.int32)

    @property
    def dual(self) -> float:
        """The current dual value F(α), up to the drift of W; with a proximal term, after a pass."""
        return self.dual_sum - 0.5 * squared_norm(self.weights_of_alphas())

    def weights_of_alphas(self) -> npt.NDArray[np.float64]:
        """Return Σ α s x, up to the drift of W; with a proximal term, after a pass."""
        return self.W if self.proximal is None else self.proximal.weights_of_alphas(self.W)

    def begin_pass(self) -> None:
        """Change W to the units of the proximal term, if there is one."""
        if self.proximal is not None:
            self.proximal.enter(self.W)

    def end_pass(self) -> float:
        """Undo `begin_pass`; return what the distance of W and Σ α s x adds to the gap."""
        if self.proximal is None:
            return 0.0
        self.proximal.leave(self.W)
        return 0.5 * squared_norm(self.W, self.weights_of_alphas())

    def replace_weights(self, W_alpha: npt.NDArray[np.float64]) -> None:
        """Replace W by the weights that belong to Σ α s x, between two passes."""
        if self.proximal is None:
            self.W[:] = W_alpha
        else:
            self.proximal.replace(self.W, W_alpha)

    @property
    def pays_screening(self) -> bool:
        """Whether to screen the next block.

        Looking at a row costs as much as one of its visits. Where few rows come to rest, as with
        many classes, only every `SCREEN_AGAIN`-th block is screened, to see whether more do.
        """
        if self.proximal is not None:  # its passes have so many rounds that it always pays
            return True
        if self.dual_sum <= 0.0:  # nothing rests before the first step
            return False
        saves = self.rest_share * self.rounds
        return saves >= LEAST_SAVING or self.unscreened >= SCREEN_AGAIN - 1

    def note_screen(self, moving: npt.NDArray[np.bool_] | None) -> None:
        """Note which rows of a block will be visited, by its screen; None if there was none."""
        if moving is None:
            self.unscreened += 1
        elif self.dual_sum > 0.0:
            visited = np.count_nonzero(moving) / max(1, len(moving))
            self.rest_share, self.unscreened = 1.0 - visited, 0

    def use_line(self) -> PassLine:
        """Let W move along a line between passes, if it does not yet; return the line."""
        assert isinstance(self.problem, Problem)
        self.line = self.line or PassLine(self.problem, self.W)
        return self.line

    def look_ahead(self, block: Block) -> "Screen":
        """Prepare to screen the next block during the step of the current one.

        Call this before that step; use the result in any thread during it.

        Parameters
        ----------
        block : Block

        Returns
        -------
        Screen
        """
        np.copyto(self.W_seen, self.W)
        moving = np.zeros(len(block), np.bool_)
        # Cached rows may leave the cache during the step, so their spilled alphas are outdated.
        self.working.mark_cached(block, moving)
        return Screen(self.problem, self.W_seen, moving)

    def screen(self, block: Block, rows: Rows, alpha: Alphas) -> npt.NDArray[np.bool_]:
        """Return which rows of a loaded block to visit, at the current W."""
        moving = np.zeros(len(block), np.bool_)
        self.working.mark_cached(block, moving)
        screen, piece = Screen(self.problem, self.W, moving), CHUNK * CHUNK

        def look(first: int) -> None:
            n = min(piece, len(rows) - first)
            screen.add(first, rows.part(first, n), alpha.part(first, n))

        list(self.spread(look, range(0, len(rows), piece)))
        return moving

    def step(
        self,
        block: Block,
        rows: Rows,
        alpha: Alphas,
        moving: npt.NDArray[np.bool_] | None = None,
    ) -> Step:
        """Merge a block with the cache, solve, and select the next cache.

        Parameters
        ----------
        block : Block
        rows : Rows
            In the arena of the working set.
        alpha : Alphas
            Spilled alphas; overwritten with the result.
        moving : ndarray, shape (n_rows,), bool, optional
            Rows of the block to visit, changed in place. Default: all. The others must have been
            at rest (with a gap of 0) at weights not older than the last step.

        Returns
        -------
        Step
        """
        if moving is None:
            moving = np.ones(len(rows), np.bool_)
        if self.line is not None and self.line.is_open:
            assert isinstance(alpha, Dense)
            self.dual_sum += self.line.clip(rows, alpha, moving)
        working = self.working
        cached = working.merge(block, rows, alpha, moving)
        n = working.n
        chunk = chunk_of(working.lengths[:n])
        order = np.empty(room_for_order(n, chunk), np.int32)
        how = Rounds(
            block.at, self.rounds, chunk, INNER_TOL, self._state, self._awake[: n + chunk], order,
            self.spread, self.stop, self.dual_sum, searches=self.searches,
        )  # fmt: skip
        if self.together is None:
            working.wake()
            stats = self.problem.solve(working, self.W, how)
            self.dual_sum += float(stats[0])
        else:
            self.together.dual_sum = self.dual_sum
            stats = self.together.solve(working, how)
            self.dual_sum = self.together.dual_sum
        totals = Totals(float(stats[0]), float(stats[1]), *(int(s) for s in stats[2:]))
        totals.cached = cached
        totals.rest = len(rows) - int(np.count_nonzero(moving)) - cached
        rank = working.score[:n]
        if working.cache_rows:
            rank = self._rank(rank, self._random, working.cache_rows / max(1, n))
        keep = working.select(rank, self._is_free)
        evicted = working.compact(keep, block, alpha)
        return Step(alpha, evicted, totals)

    def count_free(self) -> int:
        """Return the number of cached rows with alphas inside their bounds."""
        parts = (np.arange(some.start, some.stop) for some in few_at_a_time(self.working.n_cached))
        return sum(int(np.count_nonzero(self._is_free(some))) for some in parts)

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return W, cache and random state as arrays: all state except the spilled alphas."""
        random = np.frombuffer(json.dumps(self._random.bit_generator.state).encode(), np.uint8)
        learned = {} if self.together is None else self.together.state()
        for kept in (self.proximal, self.line):
            if kept is not None:
                learned = learned | kept.state()
        return {
            **self.working.state(), **self.problem.state(), **learned, "W": self.W,
            "random": self._state, "policy_random": random,
            "dual_sum": np.array([self.dual_sum]),
            "screening": np.array([self.rest_share, self.unscreened]),
        }  # fmt: skip

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`, except W and the cache.

        Raises
        ------
        KeyError, ValueError, TypeError
            If the state is invalid.
        """
        self._state[:] = state["random"]
        text = state["policy_random"].tobytes().decode("ascii")
        self._random.bit_generator.state = json.loads(text)
        self.dual_sum = float(state["dual_sum"][0])
        self.rest_share, self.unscreened = float(state["screening"][0]), int(state["screening"][1])
        self.problem.restore(state)
        if self.together is not None:
            self.together.restore(state)
        if "prox_units" in state:
            self.proximal = Proximal.restored(state, self.W)
        if "line" in state:
            self.use_line().restore(state)

    def _is_free(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self.problem.is_free(self.working, rows)


def chunk_of(lengths: npt.NDArray[np.int32]) -> int:
    """Return the most rows per chunk, a power of 2, given the nonzeros of each row."""
    mean = float(lengths.mean()) if len(lengths) else 0.0
    return int(2 ** (math.frexp(min(CHUNK, max(1.0, CHUNK_NNZ / max(1.0, mean))))[1] - 1))
