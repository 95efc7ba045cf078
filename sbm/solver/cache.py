"""The cache Ω and the working set.

After a step, a policy ranks the rows of the working set; the best ones that fit stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sbm.plain import dataclass

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sbm.alphas import Alphas
    from sbm.rows import Arena, Rows
    from sbm.solver.block import Block
    from sbm.solver.variables import DenseSet, ListPool

    Ranks = npt.NDArray[np.float32]
    Ranking = Callable[[Ranks, np.random.Generator, float], Ranks]

__all__ = ["POLICIES", "Evicted", "WorkingSet"]


@dataclass(frozen=True)
class Evicted:
    """Rows of other blocks that left the cache with a nonzero alpha.

    Attributes
    ----------
    home : ndarray, shape (n,), int32
        Part of the data that each row belongs to.
    row : ndarray, shape (n,), int32
        Position of each row in its part.
    alpha : Alphas
    """

    home: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    alpha: Alphas

    def and_also(self, others: Evicted) -> Evicted:
        """Return these rows and others."""
        import numpy as np

        from sbm.alphas import join

        return Evicted(
            np.concatenate([self.home, others.home]), np.concatenate([self.row, others.row]),
            join([self.alpha, others.alpha]),
        )  # fmt: skip


class WorkingSet:
    """Cached rows, followed by the rows of the current block.

    The alpha of a row is either here or in the spill of its part, never in both.

    Parameters
    ----------
    arena : Arena
        `cache_nnz` + `SPARE` nonzeros starting at `base` belong to the cache, unless all blocks
        stay decoded.
    alpha : DenseSet or ListPool
        Variables, with room for the rows of the cache and of the largest block.
    cache_rows, cache_nnz : int
        Capacity of the cache; 0 for no cache.
    y_dtype : dtype
        int32 for class codes, float64 for targets.
    base : int
        First nonzero of the cache.
    weighted : bool
        Whether rows have weights.
    decoded : int
        Nonzeros at the front of the arena of blocks that stay decoded; cached rows of these blocks
        are not copied.
    keeps_rest : bool
        Whether `rest` is kept between steps.

    Attributes
    ----------
    n_cached, n : int
        Number of rows in the cache, and in the whole working set.
    starts, lengths, y, score, home, row : ndarray, shape (capacity,)
        One entry per row; `home` is its part of the data and `row` its position there.
    age : ndarray, shape (capacity,), uint8
        Passes since the row was merged, at most 255; for reports only.
    weights : ndarray, shape (capacity,) or longer, float64, or None
    rest : ndarray, shape (capacity,), uint8
        Turns that each row is left alone; see `sbm.solver.kernels.common`.
    """

    def __init__(
        self,
        arena: Arena,
        alpha: DenseSet | ListPool,
        cache_rows: int,
        cache_nnz: int,
        y_dtype: npt.DTypeLike = "int32",
        base: int = 0,
        weighted: bool = False,
        decoded: int = 0,
        keeps_rest: bool = False,
    ) -> None:
        import numpy as np

        from sbm.compiled.calls import load

        self._kernels = load("sbm.solver.kernels.working_set")
        capacity = alpha.capacity
        self.arena = arena
        self.alpha = alpha
        self.cache_rows = cache_rows
        self.cache_nnz = cache_nnz
        self.base = base
        self.decoded = decoded
        self.starts = np.empty(capacity, np.int64)
        self.lengths = np.empty(capacity, np.int32)
        self.y = np.empty(capacity, y_dtype)
        # Kernels take an array of one element for the weight of all rows.
        self.weights = np.empty(max(2, capacity)) if weighted else None
        self.score = np.empty(capacity, np.float32)
        self.home = np.empty(capacity, np.int32)
        self.row = np.empty(capacity, np.int32)
        self.age = np.empty(capacity, np.uint8)
        self.rest = np.zeros(capacity, np.uint8)
        self._keeps_rest = keeps_rest
        self._keep = np.empty(capacity, np.bool_)
        self._histogram = np.empty((2, 65536), np.int64)
        self.n_cached = 0
        self.n = 0

    @property
    def rows(self) -> Rows:
        """The rows of the working set, as views."""
        from sbm.rows import Rows

        n, arena = self.n, self.arena
        weights = None if self.weights is None else self.weights[:n]
        return Rows(
            self.starts[:n], self.lengths[:n], arena.indices, arena.values, self.y[:n], weights
        )

    @property
    def factors(self) -> npt.NDArray[np.float64]:
        """The weights as kernels take them; see `sbm.rows.factors_of`."""
        from sbm.rows import factors_of

        return factors_of(self.weights)

    def merge(
        self,
        block: Block,
        rows: Rows,
        alpha: Alphas,
        moving: npt.NDArray[np.bool_],
    ) -> int:
        """Append rows of a block to the cache; return how many of the block's rows are cached.

        Rows already in the cache are not appended; their cached copy and alpha are used.

        Parameters
        ----------
        block : Block
        rows : Rows
            In the same arena.
        alpha : Alphas
            Spilled alphas of the block.
        moving : ndarray, shape (n_rows,), bool, changed in place
            The rows to append.
        """
        import numpy as np

        self.n, cached = self._kernels.merge(
            block.at, np.array(block.parts, np.int64), block.firsts,
            rows.starts, rows.lengths, rows.y, rows.factors, moving, self.n_cached,
            self.starts, self.lengths, self.y, self.factors, self.home, self.row,
        )  # fmt: skip
        new = slice(self.n_cached, self.n)
        self.alpha.append(self.n_cached, block.at[self.home[new]] + self.row[new], alpha)
        self.age[self.n_cached : self.n] = 0
        self.rest[self.n_cached : self.n] = 0
        return int(cached)

    def wake(self) -> None:
        """Let all rows be visited in the first round of a step."""
        self.rest[: self.n] = 0

    def select(
        self,
        rank: npt.NDArray[np.float32],
        is_free: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]],
    ) -> npt.NDArray[np.bool_]:
        """Choose the rows to keep: the best ranks that fit in the cache.

        Parameters
        ----------
        rank : ndarray, shape (n,), float32
            Larger is better; -inf is never chosen.
        is_free : callable
            Returns which of the given rows have an alpha inside its bounds. Among rows of equal
            rank these come first, then rows with the smaller number.

        Returns
        -------
        ndarray, shape (n,), bool
            A view that the next call overwrites.
        """
        import numpy as np

        keep = self._keep[: self.n]
        if self.cache_rows == 0:
            keep[:] = False
            return keep
        bits = (rank + np.float32(0)).view(np.uint32)  # -0.0 and 0.0 are one rank
        lengths = self.lengths[: self.n]
        key, n_rows, nnz = self._kernels.find_threshold(
            bits, lengths, self.cache_rows, self.cache_nnz, *self._histogram
        )
        ties = np.empty(self._kernels.mark(bits, key, keep), np.int64)
        if len(ties) == 0 or key <= _KEY_OF_MINUS_INF:
            return self._limit_variables(keep, rank)
        self._kernels.list_ties(bits, key, ties)
        order = np.lexsort((self.row[ties], self.home[ties], ~is_free(ties)))
        ties = ties[order]
        fits = np.arange(1, len(ties) + 1) + n_rows <= self.cache_rows
        fits &= np.cumsum(lengths[ties], dtype=np.int64) + nnz <= self.cache_nnz
        keep[ties[fits]] = True
        return self._limit_variables(keep, rank)

    def _limit_variables(
        self, keep: npt.NDArray[np.bool_], rank: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.bool_]:
        """Drop the worst of the chosen rows if their variables exceed the limit of the cache."""
        import numpy as np

        sizes, limit = self.alpha.sizes(self.n), self.alpha.cache_limit
        if sizes is None or int(sizes[keep].sum()) <= limit:
            return keep
        chosen = np.flatnonzero(keep)
        best_first = chosen[np.argsort(-rank[chosen], kind="stable")]
        keep[best_first[np.cumsum(sizes[best_first]) > limit]] = False
        return keep

    def compact(self, keep: npt.NDArray[np.bool_], block: Block, alpha: Alphas) -> Evicted:
        """Keep the chosen rows as the new cache and return the alphas of the others.

        Parameters
        ----------
        keep : ndarray, shape (n,), bool
        block : Block
        alpha : Alphas, changed in place
            Alphas of the block: updated for rows that leave the working set, 0 for rows in the
            new cache, unchanged for rows that were not in the working set.

        Returns
        -------
        Evicted
        """
        n, home, row = self.n, self.home[: self.n], self.row[: self.n]
        evicted = Evicted(*self.alpha.spill(keep, home, row, block, alpha))
        for array in (self.age, self.rest):
            kept = array[:n][keep]
            array[: len(kept)] = kept
        self.n_cached = self._kernels.compact(
            keep, n, self.decoded, self.base, self.starts, self.lengths, self.y, self.factors,
            self.score, self.home, self.row, self.arena.indices, self.arena.values,
        )  # fmt: skip
        self.n = self.n_cached
        return evicted

    def grow_older(self) -> None:
        """Increase the age of all cached rows by one pass."""
        age = self.age[: self.n_cached]
        age += age < _OLDEST

    def count_ages(self) -> list[int]:
        """Return the number of cached rows from the last pass, the one before it, and so on."""
        import numpy as np

        return list(map(int, np.bincount(self.age[: self.n_cached])[1:]))

    def count_zero(self) -> int:
        """Return the number of cached rows whose variables are all 0."""
        return self.alpha.count_zero(self.n_cached)

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the cached rows' numbers and variables as arrays to store; views."""
        n = self.n_cached
        rest = {"rest": self.rest[:n]} if self._keeps_rest else {}
        return {name: getattr(self, name)[:n] for name in _KEPT} | rest | self.alpha.state(n)

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`; `refill` then copies the rows themselves.

        Raises
        ------
        ValueError
            If the rows do not fit.
        """
        n, lengths = len(state["home"]), state["lengths"]
        nnz = int(lengths.sum(dtype="int64"))
        if n > self.alpha.capacity or nnz > self.cache_nnz or lengths.min(initial=0) < 0:
            raise ValueError(f"no room for {n} cached rows with {nnz} nonzeros")
        for name in _KEPT:
            getattr(self, name)[:n] = state[name]
        if self._keeps_rest:
            self.rest[:n] = state["rest"]
        self.starts[:n] = self.base + lengths.cumsum(dtype="int64") - lengths
        self.alpha.restore(state, n)
        self.n_cached = self.n = n

    def refill(self, block: Block, rows: Rows) -> int:
        """Copy the cached rows of a block into the cache; return their number.

        Parameters
        ----------
        block : Block
        rows : Rows
            All rows of the block, in the arena of the working set.
        """
        return int(
            self._kernels.refill(
                block.at, self.n_cached, self.decoded, rows.starts, rows.lengths, rows.y,
                rows.factors, self.starts, self.lengths, self.y, self.factors, self.home, self.row,
                self.arena.indices, self.arena.values,
            )
        )  # fmt: skip

    def mark_cached(self, block: Block, marks: npt.NDArray[np.bool_]) -> None:
        """Set the entries of a block's cached rows in `marks`, shape (n_block,)."""
        _, places = block.find(self.home[: self.n_cached], self.row[: self.n_cached])
        marks[places] = True

    def alphas_of(self, block: Block, alpha: Alphas) -> None:
        """Copy the alphas of a block's cached rows into `alpha`, those of the block."""
        which, places = block.find(self.home[: self.n_cached], self.row[: self.n_cached])
        alpha.put(places, self.alpha.take(which))


_KEPT = ("home", "row", "lengths", "score", "age")  # arrays of a state
_KEY_OF_MINUS_INF = 0x007FFFFF
_OLDEST = 255


def _gradient(score: Ranks, random: np.random.Generator, share: float) -> Ranks:
    """Rank by the projected-gradient score of the last visit (SBM 2011, section 2.2)."""
    return score


def _random(score: Ranks, random: np.random.Generator, share: float) -> Ranks:
    """Rank at random (SBM-rand in the paper)."""
    return random.random(len(score), dtype="float32")


def _mixed(score: Ranks, random: np.random.Generator, share: float) -> Ranks:
    """Rank by the score, but fill half of the cache with random rows.

    For losses whose variables never rest, every row must be visited now and then.
    """
    chosen = random.random(len(score), dtype="float32") < 0.5 * share
    ranks = score.copy()
    ranks[chosen & (score > float("-inf"))] = float("inf")
    return ranks


# Arguments: scores, random generator, and the share of the rows that fits in the cache.
POLICIES: dict[str, Ranking] = {
    "gradient": _gradient, "mixed": _mixed, "random": _random
}  # fmt: skip
