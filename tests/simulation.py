"""The solver on blocks in memory, with all variables accessible to tests."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from helpers import plain
from inside import ROWS_SPARE as SPARE
from inside import (
    Alphas,
    AnyProblem,
    Arena,
    Block,
    Certificate,
    Certifier,
    DenseSet,
    ListPool,
    Rows,
    Screen,
    Solver,
    Step,
    WorkingSet,
    join,
    no_alphas,
)

Array = npt.NDArray[Any]

N_FEATURES = 8
Parts = int | Sequence[int]  # a block of one part, or of some


def parts_of(block: Parts) -> Sequence[int]:
    return [int(block)] if isinstance(block, int | np.integer) else block


def make_blocks(
    seed: int,
    n_blocks: int,
    rows_each: int,
    values: bool = True,
    empty_rows: bool = True,
    classes: int = 2,
) -> tuple[Array, Array, list[Array]]:
    """Random rows, dense and sparse: X, y codes and the row numbers of each block."""
    random = np.random.default_rng(seed)
    n = n_blocks * rows_each
    X = random.normal(size=(n, N_FEATURES)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.5] = 0
    if not values:
        X = (X != 0).astype(float)
    if empty_rows:
        X[:: rows_each + 1] = 0
    y = (random.random(n) < 0.4).astype(np.int32)
    if classes > 2:
        y = random.integers(0, classes, n).astype(np.int32)
    return X, y, np.array_split(random.permutation(n), n_blocks)


class Simulation:
    """Blocks in memory, the solver under test, and the alphas of every home.

    `row_variables` is the capacity of lists per row; by default it is never exceeded.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        blocks: Sequence[Array],
        problem: AnyProblem,
        cache_rows: int,
        cache_nnz: int,
        policy: str,
        rounds: int,
        values: bool = True,
        seed: int = 0,
        row_variables: int | None = None,
        weights: Array | None = None,
        together: int = 1,
    ) -> None:
        self.together = together  # most parts of a block
        self.X, self.y, self.blocks, self.problem = X, y, blocks, problem
        self.row_weights = weights
        self.y_dtype = np.dtype(np.int32 if problem.classify else np.float64)
        self.block_rows = together * max(len(b) for b in blocks)
        self.block_nnz = self.block_rows * X.shape[1]
        self.offset = cache_nnz + SPARE
        nonzeros = cache_nnz + self.block_nnz + 2 * SPARE
        arena = Arena.of(nonzeros, "float32" if values else "ones")
        variables = row_variables or problem.n_outputs
        alpha = (
            ListPool(self.block_rows, cache_rows, variables, [len(b) for b in blocks])
            if problem.listed
            else DenseSet(cache_rows + self.block_rows)
        )
        self.working = WorkingSet(
            arena, alpha, cache_rows, cache_nnz, self.y_dtype, weighted=weights is not None
        )
        W = np.zeros((X.shape[1] + (problem.bias > 0), problem.n_outputs))
        self.solver = Solver(problem, W, self.working, rounds=rounds, policy=policy, seed=seed)
        self.spill = [no_alphas(len(b), problem.listed) for b in blocks]

    def rows_of(self, block: Parts) -> Array:
        """Return the numbers of the rows of a block."""
        return np.concatenate([self.blocks[part] for part in parts_of(block)])

    def load(self, block: Parts) -> Rows:
        """Put the rows of a block into the arena."""
        numbers = self.rows_of(block)
        arena, position = self.working.arena, self.offset
        starts, lengths = [], []
        for row in numbers:
            (indices,) = np.nonzero(self.X[row])
            starts.append(position)
            lengths.append(len(indices))
            arena.indices[position : position + len(indices)] = indices
            if arena.values is not None:
                arena.values[position : position + len(indices)] = self.X[row, indices]
            position += len(indices)
        return Rows(
            np.array(starts, np.int64), np.array(lengths, np.int32), arena.indices, arena.values,
            self.y[numbers].astype(self.y_dtype),
            None if self.row_weights is None else self.row_weights[numbers],
        )  # fmt: skip

    def of(self, block: Parts) -> Block:
        """Return the block of some parts, or of one."""
        return Block.of(parts_of(block), [len(rows) for rows in self.blocks])

    def step(self, block: Parts, moving: Array | None = None) -> Step:
        """Take one step; alphas that leave the cache return to their home, which must be empty."""
        rows, members = self.load(block), self.of(block)
        own = self.alpha_of(block)
        result = self.solver.step(members, rows, own, moving)
        for part, first, n in members.slices():
            self.spill[part] = result.alpha.take(np.arange(first, first + n))
        evicted = result.evicted
        for home in np.unique(evicted.home):
            mine = np.flatnonzero(evicted.home == home)
            there = self.spill[home].take(evicted.row[mine])
            assert not any(plain(there)), "an alpha would have two homes"
            self.spill[home].put(evicted.row[mine], evicted.alpha.take(mine))
        return result

    def screened_steps(self, order: Sequence[Parts]) -> Iterator[tuple[Parts, Step]]:
        """Step over blocks, each screened at the weights before the previous step."""
        coming = None
        for block, following in zip(order, [*order[1:], None], strict=True):
            screen = coming or self.screen(block)
            coming = None if following is None else self.screen(following)
            result = self.step(block, screen.moving)
            if coming is not None:
                _, late = self.of(following).find(result.evicted.home, result.evicted.row)
                coming.moving[late] = True
            yield block, result

    def steps(self, order: Sequence[Parts], screened: bool) -> Iterator[tuple[Parts, Step]]:
        """Step over blocks, screened or not."""
        return self.screened_steps(order) if screened else ((b, self.step(b)) for b in order)

    def screen(self, block: Parts) -> Screen:
        """Screen a block chunk by chunk at the current weights."""
        rows = self.load(block)
        screen, alpha = self.solver.look_ahead(self.of(block)), self.alpha_of(block)
        for first in range(0, len(rows), 4):
            n = min(4, len(rows) - first)
            screen.add(first, rows.part(first, n), alpha.part(first, n))
        return screen

    def alpha_of(self, block: Parts) -> Alphas:
        """Return a copy of the spilled alphas of a block."""
        return join([self.spill[part] for part in parts_of(block)])

    def certify(self) -> tuple[Certificate, Array]:
        """The certificate at the present weights, and the weights that belong to the alphas."""
        certifier = Certifier(self.problem, self.solver.W, np.full_like(self.solver.W, 7.0))
        for block, rows in enumerate(self.blocks):
            alpha = self.spill[block].take(np.arange(len(rows)))
            self.working.alphas_of(self.of(block), alpha)
            certifier.add(self.load(block), alpha)
        return certifier.finish(), certifier.W_alpha

    def alphas(self) -> list[Any]:
        """Plain alphas in row order; fails where a cached row has a second, nonzero home."""
        alpha: list[Any] = [None] * len(self.X)
        for block, rows in enumerate(self.blocks):
            for row, mine in zip(rows, plain(self.spill[block]), strict=True):
                alpha[row] = mine
        n = self.working.n_cached
        cached = plain(self.working.alpha.take(np.arange(n)))
        for home, row, mine in zip(self.working.home, self.working.row, cached, strict=False):
            place = self.blocks[home][row]
            assert not alpha[place], "a cached row has a second home"
            alpha[place] = mine
        return alpha

    def design(self) -> Array:
        """The rows, with the feature of the bias."""
        bias = self.problem.bias
        return np.hstack([self.X, np.full((len(self.X), 1), bias)]) if bias else self.X
