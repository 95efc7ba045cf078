"""Selective block minimization on a stream: every block comes once (SBM 2011, section 4).

A block of new rows is merged with the cache and solved, as in training. Rows that do not stay in
the cache are discarded. Their alphas remain in W, fixed and feasible. So F(α) is known at any time
and is a lower bound of the optimum over all rows so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists, no_alphas
from sbm.plain import dataclass
from sbm.rows import SPARE, Arena, Rows
from sbm.solver.block import Block
from sbm.solver.cache import WorkingSet
from sbm.solver.problem import AnyProblem, MultiProblem, OneClass, Problem
from sbm.solver.step import Solver, Totals
from sbm.solver.variables import DenseSet, ListPool

__all__ = ["FEW_ROWS", "GrowingWeights", "OnePass", "Size", "State", "caches_nnz"]

State: TypeAlias = dict[str, npt.NDArray[Any]]

_EARLIER, _BLOCK = 0, 1  # parts of the cached rows and of those of the current block
_ROWS_AT_A_TIME = 1 << 14  # rows copied at a time, to bound memory
FEW_ROWS = 1 << 16  # these take little time, however often they are visited
_POLISH_ROUNDS = 3  # at a time; later ones skip rows at rest
_LITTLE = 0.01  # gain of these, relative to the dual value


@dataclass(frozen=True)
class Size:
    """Capacities of a `OnePass`.

    Attributes
    ----------
    block_rows, block_nnz : int
        Size of the largest block.
    cache_rows, cache_nnz : int
        Total size of the caches of all problems.
    features : int
    row_variables : int
        Average number of variables per row that lists have room for.
    """

    block_rows: int
    block_nnz: int
    cache_rows: int
    cache_nnz: int
    features: int
    row_variables: int = 0


def caches_nnz(size: Size, n_problems: int) -> int:
    """Return the nonzeros of the arena used by the caches; block buffers follow them."""
    return size.cache_nnz + n_problems * SPARE


class GrowingWeights:
    """Weights of the features seen so far; new features start at 0.

    The system allocates memory of a zero array only when it is written, so unused room is free.

    Parameters
    ----------
    features, n_outputs : int
        Capacity.
    with_bias : bool
        Whether the last row is the weight of the extra feature.
    """

    def __init__(self, features: int, n_outputs: int, with_bias: bool) -> None:
        self._all = np.zeros((features + with_bias, n_outputs))
        self._bias = int(with_bias)
        self._n = 0

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The weights, shape (n_features + with_bias, n_outputs): a view, valid until `grow`."""
        return self._all[: self._n + self._bias]

    def grow(self, n: int) -> npt.NDArray[np.float64]:
        """Grow to `n` features; return `values`."""
        if self._bias and n != self._n:
            self._all[n] = self._all[self._n]
            self._all[self._n] = 0.0
        self._n = n
        return self.values


class OnePass:
    """Training on a stream: W, cache and random state of each problem.

    There is one problem, except for losses with one variable per row and more than two classes.
    Then each class has its own problem and cache.

    Parameters
    ----------
    problems : sequence of Problem, MultiProblem or OneClass
    arena : Arena
        The first `caches_nnz` nonzeros are used by the caches.
    size : Size
    y_dtype : dtype
        int32 for class codes, float64 for targets.
    rounds : int
    policy : str
    seed : int
    spread : callable
        Like the builtin `map`; may use threads, without effect on results.
    weighted : bool
        Whether rows have weights.
    """

    def __init__(
        self,
        problems: Sequence[AnyProblem],
        arena: Arena,
        size: Size,
        y_dtype: npt.DTypeLike,
        *,
        rounds: int,
        policy: str,
        seed: int,
        spread: Callable[..., Iterable[Any]] = map,
        weighted: bool = False,
    ) -> None:
        self.problems = problems
        self._arena, self._size, self._weighted = arena, size, weighted
        self._spread, self._rounds = spread, rounds
        self.n_rows = 0
        for problem in problems:
            if isinstance(problem, OneClass):
                problem.total = 0.0  # rows are counted as they arrive
        self._weights = [GrowingWeights(size.features, p.n_outputs, p.bias > 0) for p in problems]
        self._solvers = [
            Solver(
                problem, self._weights[k].values, self._working_set(k, y_dtype), rounds=rounds,
                policy=policy, seed=seed + k,
            )
            for k, problem in enumerate(problems)
        ]  # fmt: skip

    def _working_set(self, k: int, y_dtype: npt.DTypeLike) -> WorkingSet:
        size, problem, n = self._size, self.problems[k], len(self.problems)
        rows, nnz = size.cache_rows // n, size.cache_nnz // n
        alpha: DenseSet | ListPool = DenseSet(size.block_rows + rows)
        if problem.listed:
            variables = min(size.row_variables, problem.n_outputs)
            alpha = ListPool(
                size.block_rows, rows, variables, [size.block_rows] * 2, problem.n_outputs
            )
        base = k * (nnz + SPARE)
        return WorkingSet(self._arena, alpha, rows, nnz, y_dtype, base, self._weighted)

    @property
    def weights(self) -> list[npt.NDArray[np.float64]]:
        """W of each problem, shape (n_features + (bias > 0), n_outputs)."""
        return [solver.W for solver in self._solvers]

    @property
    def dual(self) -> float | None:
        """F(α), a lower bound of the objective over all rows so far.

        None for one class, whose alphas are feasible only in the limit.
        """
        if isinstance(self.problems[0], OneClass):
            return None
        return sum(solver.dual for solver in self._solvers)

    @property
    def n_cached(self) -> int:
        """Number of rows in the caches."""
        return sum(solver.working.n_cached for solver in self._solvers)

    def grow(self, n_features: int) -> None:
        """Add weights for new features."""
        for solver, weights in zip(self._solvers, self._weights, strict=True):
            solver.W = weights.grow(n_features)

    def learn(self, rows: Rows, *, is_polished: bool = False) -> Totals:
        """Merge a block with the cache, solve, select the next cache and discard other rows.

        All rows are visited. Rows at rest are not skipped, because they could not move later: they
        are discarded after the step.

        Parameters
        ----------
        rows : Rows
            In the arena, after the caches; at most `Size.block_rows`.
        is_polished : bool
            Whether `polish` follows the last block. Then a block needs one round as long as every
            row stays in the cache, to be visited again.

        Returns
        -------
        Totals
        """
        self.n_rows += len(rows)
        stays = FEW_ROWS < self.n_rows <= self._solvers[0].working.cache_rows
        rounds = 1 if is_polished and stays else self._rounds
        return self._on_each(lambda solver: _learn(solver, rows, rounds))

    def polish(self, visits: int) -> Totals:
        """Solve for the cached rows again, with all other alphas fixed.

        Ends when `_POLISH_ROUNDS` raise the dual value by less than `_LITTLE` of it, or if more of
        them could take more than `visits` visits in total. Does nothing for one class: its offset
        needs a whole block, and cached rows are not a representative sample.
        """
        if isinstance(self.problems[0], OneClass):
            return Totals()
        nothing = self._arena.room(0, self._solvers[0].working.y.dtype, self._weighted)
        most = visits // len(self._solvers)

        def polish(solver: Solver) -> Totals:
            totals, gains = Totals(), True
            while gains and 0 < solver.working.n_cached * _POLISH_ROUNDS <= most - totals.visits:
                before = solver.dual
                totals.add(_learn(solver, nothing, _POLISH_ROUNDS))
                gains = solver.dual - before > _LITTLE * solver.dual
            return totals

        return self._on_each(polish)

    def _on_each(self, work: Callable[[Solver], Totals]) -> Totals:
        """Return the sum of the results of `work` for each solver."""
        totals = Totals()
        for one in self._spread(work, self._solvers):
            totals.add(one)
        return totals

    # --------------------------------------------------------------------------------- state

    def state(self) -> State:
        """Return the complete state as arrays; views."""
        return {
            f"{name}-{k}": array
            for k, solver in enumerate(self._solvers)
            for name, array in _state_of(solver).items()
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]], before: Mapping[str, Any]) -> None:
        """Restore a state, possibly with fewer classes or another size.

        If the cache does not fit, its best rows are kept.

        Parameters
        ----------
        state : mapping of str to ndarray
        before : mapping
            Result of `describe` for that state.
        """
        self.n_rows = int(before["rows"])
        parts = [
            {name.removesuffix(f"-{k}"): a for name, a in state.items() if name.endswith(f"-{k}")}
            for k in range(len(before["outputs"]))
        ]
        for solver, weights, part in zip(
            self._solvers, self._weights, _widen(parts, before, self.problems), strict=True
        ):
            solver.W = weights.grow(len(parts[0]["W"]) - (solver.problem.bias > 0))
            if part is not None:
                solver.W[:] = part["W"]
                solver.restore(part)
                _fill(solver.working, part)
            if isinstance(solver.problem, OneClass):
                solver.problem.total = float(self.n_rows)

    def describe(self) -> dict[str, Any]:
        """Return what `restore` needs besides the arrays, as JSON types."""
        first = self.problems[0]
        return {
            "rows": self.n_rows,
            "outputs": [p.n_outputs for p in self.problems],
            "listed": first.listed,
            "positive": first.positive if isinstance(first, Problem) else None,
        }


def _learn(solver: Solver, rows: Rows, rounds: int) -> Totals:
    problem = solver.problem
    solver.rounds = rounds
    if isinstance(problem, OneClass):
        alpha: Alphas = problem.add_rows(rows, solver.W)
    else:
        alpha = no_alphas(len(rows), problem.listed)
    totals = solver.step(Block.of([_BLOCK], [0, len(rows)]), rows, alpha).totals
    if isinstance(problem, OneClass) and len(rows):
        problem.set_offset_quantile(rows, solver.W)
    _settle(solver.working)
    return totals


def _settle(working: WorkingSet) -> None:
    """Detach the cached rows from their block; they are discarded when they leave the cache."""
    working.home[: working.n_cached] = _EARLIER
    pool = working.alpha
    if isinstance(pool, ListPool):
        # Limits are per part. The limit of cached rows depends on their number, not the block's.
        block_rows = pool.capacity - working.cache_rows
        more = (working.cache_rows - block_rows) * (pool.held_limit // max(1, block_rows))
        pool.held[_EARLIER] = int(pool.count[: working.n_cached].sum(dtype=np.int64)) - more
        pool.held[_BLOCK] = 0


def _state_of(solver: Solver) -> State:
    """Return the state of a solver, including the rows of its cache."""
    work, n = solver.working, solver.working.n_cached
    state = solver.state()
    for name in ("home", "held", "age"):  # constant: there is one home and one pass
        state.pop(name, None)
    nnz = int(work.lengths[:n].sum(dtype=np.int64))
    own = slice(work.base, work.base + nnz)
    state |= {"lengths": work.lengths[:n], "y": work.y[:n], "indices": work.arena.indices[own]}
    if work.arena.values is not None:
        state["values"] = work.arena.values[own]
    if work.weights is not None:
        state["weights"] = work.weights[:n]
    return state


def _fill(working: WorkingSet, state: Mapping[str, npt.NDArray[Any]]) -> None:
    """Fill the cache with the rows of a state; the best ones if there are too many."""
    lengths, values = state["lengths"], working.arena.values
    alpha: Alphas = Dense(state["alpha"])
    if "alpha_offsets" in state:
        alpha = Lists(state["alpha_offsets"], state["alpha_outputs"], state["alpha"])
    kept = _that_fit(working, lengths, alpha, state["score"])
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    to = working.base
    for first in range(0, len(kept), _ROWS_AT_A_TIME):
        some = kept[first : first + _ROWS_AT_A_TIME]
        ends = np.cumsum(lengths[some], dtype=np.int64)
        from_ = np.repeat(begins[some] - ends + lengths[some], lengths[some])
        from_ += np.arange(len(from_))
        own = slice(to, to + len(from_))
        working.arena.indices[own] = state["indices"][from_]
        if values is not None:
            values[own] = state["values"][from_] if "values" in state else 1
        to = own.stop
    n = len(kept)
    working.lengths[:n] = lengths[kept]
    working.starts[:n] = working.base + np.cumsum(lengths[kept], dtype=np.int64) - lengths[kept]
    for name in ("y", "score", "row"):
        getattr(working, name)[:n] = state[name][kept]
    if working.weights is not None:
        working.weights[:n] = state["weights"][kept] if "weights" in state else 1
    working.n_cached = working.n = n
    working.alpha.fill(alpha.take(kept))
    _settle(working)


def _that_fit(
    working: WorkingSet,
    lengths: npt.NDArray[np.int32],
    alpha: Alphas,
    score: npt.NDArray[np.float32],
) -> npt.NDArray[np.intp]:
    """Return the positions of the best rows that fit, in ascending order."""
    best = np.argsort(-score, kind="stable")
    fits = np.cumsum(lengths[best], dtype=np.int64) <= working.cache_nnz
    if isinstance(alpha, Lists):
        fits &= np.cumsum(alpha.counts[best] + 1) <= working.alpha.cache_limit
    fits[working.cache_rows :] = False
    return np.sort(best[fits])


# --------------------------------------------------------------------------- late classes


def _widen(
    parts: Sequence[State], before: Mapping[str, Any], problems: Sequence[AnyProblem]
) -> list[State | None]:
    """Convert states with fewer classes to states of these problems; None for new problems.

    Class codes are assigned in order of appearance, so known classes keep theirs. Weights and
    variables of a new class are 0, which is feasible and keeps W = W(α).
    """
    first, positive = problems[0], before["positive"]
    if positive is None or len(parts) > 1:
        grown = [_pad(part, p.n_outputs) for part, p in zip(parts, problems, strict=False)]
        return [*grown, *[None] * (len(problems) - len(parts))]
    if not isinstance(first, Problem) or len(problems) > 1:
        return _one_against_rest(parts[0], positive, problems)
    same = (positive == 0) == (first.positive == 0)
    return [parts[0] if same else _mirrored(parts[0], first)]


def _pad(part: State, n_outputs: int) -> State:
    """Add columns of zeros."""
    W = part["W"]
    if W.shape[1] == n_outputs:
        return part
    wider = np.zeros((len(W), n_outputs))
    wider[:, : W.shape[1]] = W
    return {**part, "W": wider}


def _mirrored(part: State, problem: Problem) -> State:
    """Swap the two classes, which negates w and signed variables."""
    alpha = -part["alpha"] if problem.loss.signed else part["alpha"]
    return {**part, "W": -part["W"], "alpha": alpha}


def _two_codes(positive: int) -> tuple[int, int]:
    """Return the class codes of w and of -w in a problem of two classes.

    If `positive` is negative, only one class (code 0) is known, and the class of w is yet to come.
    """
    return (positive, 1 - positive) if positive >= 0 else (1, 0)


def _one_against_rest(
    part: State, positive: int, problems: Sequence[AnyProblem]
) -> list[State | None]:
    """Convert a problem of two classes, codes 0 and 1, to two one-vs-rest problems.

    The second is the mirror of the first. If there was only one class, the negative one, the
    mirror is its one-vs-rest problem.
    """
    own, other = _two_codes(positive)
    multi = problems[0]
    if isinstance(multi, Problem):
        states: list[State | None] = [None] * len(problems)
        states[own], states[other] = part, _mirrored(part, multi)
        return states
    assert isinstance(multi, MultiProblem)
    w, alpha = part["W"][:, 0], part["alpha"]
    W = np.zeros((len(w), multi.n_outputs))
    W[:, own], W[:, other] = w, -w
    held = np.flatnonzero(alpha)
    offsets = np.concatenate([[0], np.cumsum(2 * (alpha != 0))])
    lists = {
        "alpha_offsets": offsets,
        "alpha_outputs": np.tile(np.array([0, 1], np.int32), len(held)),
        "alpha": np.repeat(alpha[held], 2),
    }
    return [{**part, "W": W, **lists, "dual_sum": 2 * part["dual_sum"]}]
