"""The solver on blocks in memory, with all variables accessible to tests."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from helpers import plain
from inside import ROWS_SPARE as SPARE
from inside import (
    AnyProblem,
    Arena,
    Certificate,
    Certifier,
    DenseSet,
    ListPool,
    Rows,
    Screen,
    Solver,
    Step,
    WorkingSet,
    no_alphas,
)

Array = npt.NDArray[Any]

N_FEATURES = 8


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
    ) -> None:
        self.X, self.y, self.blocks, self.problem = X, y, blocks, problem
        self.row_weights = weights
        self.y_dtype = np.dtype(np.int32 if problem.classify else np.float64)
        self.block_rows = max(len(b) for b in blocks)
        self.block_nnz = self.block_rows * X.shape[1]
        self.offset = cache_nnz + SPARE
        nonzeros = cache_nnz + self.block_nnz + 2 * SPARE
        arena = Arena.of(nonzeros, "float32" if values else "ones")
        variables = row_variables or problem.n_outputs
        alpha = (
            ListPool(self.block_rows, cache_rows, variables, len(blocks))
            if problem.listed
            else DenseSet(cache_rows + self.block_rows)
        )
        self.working = WorkingSet(
            arena, alpha, cache_rows, cache_nnz, self.y_dtype, weighted=weights is not None
        )
        W = np.zeros((X.shape[1] + (problem.bias > 0), problem.n_outputs))
        self.solver = Solver(problem, W, self.working, rounds=rounds, policy=policy, seed=seed)
        self.spill = [no_alphas(len(b), problem.listed) for b in blocks]

    def load(self, block: int) -> Rows:
        """Put the rows of a block into the arena."""
        arena, position = self.working.arena, self.offset
        starts, lengths = [], []
        for row in self.blocks[block]:
            (indices,) = np.nonzero(self.X[row])
            starts.append(position)
            lengths.append(len(indices))
            arena.indices[position : position + len(indices)] = indices
            if arena.values is not None:
                arena.values[position : position + len(indices)] = self.X[row, indices]
            position += len(indices)
        return Rows(
            np.array(starts, np.int64), np.array(lengths, np.int32), arena.indices, arena.values,
            self.y[self.blocks[block]].astype(self.y_dtype),
            None if self.row_weights is None else self.row_weights[self.blocks[block]],
        )  # fmt: skip

    def step(self, block: int, moving: Array | None = None) -> Step:
        """Take one step; alphas that leave the cache return to their home, which must be empty."""
        rows = self.load(block)
        own = self.spill[block].take(np.arange(len(rows)))
        result = self.solver.step(block, rows, own, moving)
        self.spill[block] = result.alpha
        evicted = result.evicted
        for home in np.unique(evicted.home):
            mine = np.flatnonzero(evicted.home == home)
            there = self.spill[home].take(evicted.row[mine])
            assert not any(plain(there)), "an alpha would have two homes"
            self.spill[home].put(evicted.row[mine], evicted.alpha.take(mine))
        return result

    def screened_steps(self, order: Sequence[int]) -> Iterator[tuple[int, Step]]:
        """Step over blocks, each screened at the weights before the previous step."""
        coming = None
        for block, following in zip(order, [*order[1:], None], strict=True):
            screen = coming or self.screen(block)
            coming = None if following is None else self.screen(following)
            result = self.step(block, screen.moving)
            if coming is not None:
                late = result.evicted.home == following
                coming.moving[result.evicted.row[late]] = True
            yield block, result

    def steps(self, order: Sequence[int], screened: bool) -> Iterator[tuple[int, Step]]:
        """Step over blocks, screened or not."""
        return self.screened_steps(order) if screened else ((b, self.step(b)) for b in order)

    def screen(self, block: int) -> Screen:
        """Screen a block chunk by chunk at the current weights."""
        rows = self.load(block)
        screen = self.solver.look_ahead(block, len(rows))
        for first in range(0, len(rows), 4):
            n = min(4, len(rows) - first)
            screen.add(first, rows.part(first, n), self.spill[block].part(first, n))
        return screen

    def certify(self) -> tuple[Certificate, Array]:
        """The certificate at the present weights, and the weights that belong to the alphas."""
        certifier = Certifier(self.problem, self.solver.W, np.full_like(self.solver.W, 7.0))
        for block, rows in enumerate(self.blocks):
            alpha = self.spill[block].take(np.arange(len(rows)))
            self.working.alphas_of(block, alpha)
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
