"""Weston-Watkins by blocks of classes, solved by several threads.

With all other variables fixed, the rows of two blocks of classes and their variables for these
classes form a smaller Weston-Watkins problem. It reads and changes only the columns of W of its
classes. Pairs of blocks are solved in the rounds of a round-robin schedule. The pairs of a round
share no class and no row, so they are solved in parallel. The result equals that of solving them
one after another, for any number of threads.

Source: Alber, Zimmert, Dogan & Kloft 2016, who solve for one variable at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sbm.alphas import Lists, join
from sbm.compiled import load
from sbm.solver.cache import WorkingSet
from sbm.solver.problem import MultiProblem, Rounds, Weights, room_for_order
from sbm.solver.variables import ListPool

__all__ = ["LEAST_BLOCKS", "ClassBlocks", "deal_classes", "round_robin"]

# Two pairs that share no class.
LEAST_BLOCKS = 4

Integers = npt.NDArray[np.int64]


def deal_classes(rows: Sequence[int], n_blocks: int) -> list[Integers]:
    """Deal classes to blocks with about equal numbers of classes and rows.

    Parameters
    ----------
    rows : sequence of int
        Number of rows of each class.
    n_blocks : int
        Number of blocks, reduced to the number of classes if that is smaller.

    Returns
    -------
    list of ndarray of int64
        Classes of each block, in ascending order.
    """
    by_rows = np.argsort(-np.asarray(rows), kind="stable")
    n = min(n_blocks, len(by_rows))
    return [np.sort(by_rows[k::n]) for k in range(n)]


def round_robin(n: int) -> list[list[tuple[int, int]]]:
    """Return the rounds of a round-robin schedule (the 1-factorisation of a complete graph).

    Every pair of numbers below `n` is in exactly one round, and every number in at most one pair
    of a round. If `n` is odd, one number per round has no pair.
    """
    circle = [*range(n), *[-1] * (n % 2)]  # the number paired with -1 has no pair
    half, rounds = len(circle) // 2, []
    for _ in range(len(circle) - 1):
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


@dataclass(eq=False)
class ClassBlocks(MultiProblem):
    """Weston-Watkins by blocks of classes.

    Attributes
    ----------
    blocks : sequence of ndarray of int64
        Classes of each block. With fewer than `LEAST_BLOCKS` all classes are solved together.
    """

    blocks: Sequence[Integers] = ()

    def solve(self, work: WorkingSet, W: Weights, how: Rounds) -> npt.NDArray[np.float64]:
        """Visit a working set by pairs of blocks; see `MultiProblem.solve`.

        Several processes visit all classes of a row together.
        """
        n = len(self.blocks)
        if n < LEAST_BLOCKS or how.damping is not None:
            return super().solve(work, W, how)
        random = np.random.default_rng(int(how.state[0]))
        how.state[0] = random.integers(1, 2**63, dtype=np.uint64)
        # A sweep visits a row in n - 1 pairs, each with a share 2 / n of the classes. More rounds
        # per pair would be wasted, as the next pair undoes part of them.
        sweeps = max(1, round(how.rounds * n / (2 * (n - 1))))
        how = replace(how, rounds=1)
        step, schedule, stats = _Step(self, work, W, how), round_robin(n), np.zeros(6)
        for sweep in range(sweeps):
            updates = stats[3]
            for k in random.permutation(len(schedule)):
                seeds = random.integers(1, 2**63, (len(schedule[k]), 1), dtype=np.uint64)
                found = step.solve(schedule[k], seeds)
                found[:, 1] *= sweep == 0  # the gap is measured at the first visit
                stats += found.sum(axis=0)
            stats[4] = sweep + 1
            if stats[3] == updates:
                break
        step.finish()
        # Variables for the classes of the row's own block were counted n - 1 times.
        size = len(self.costs) / n
        stats[1] *= (n * size - 1) / ((n - 1) * (2 * size - 1))
        return stats


class _Step:
    """The working set of a step, with the variables of each block's rows.

    Lists in a pool cannot grow in several threads at once, so each pair has its own pool with a
    share of the room and of the limits.
    """

    def __init__(self, problem: ClassBlocks, work: WorkingSet, W: Weights, how: Rounds) -> None:
        assert isinstance(work.alpha, ListPool)
        self.problem, self.work, self.W, self.how = problem, work, W, how
        self.pool = work.alpha
        block_of = np.empty(len(problem.costs), np.int64)
        for k, classes in enumerate(problem.blocks):
            block_of[classes] = k
        theirs = block_of[work.y[: work.n]]
        self.rows = [np.flatnonzero(theirs == k) for k in range(len(problem.blocks))]
        self.lists = [self.pool.take(rows) for rows in self.rows]
        self.score = np.full(work.n, -np.inf, np.float32)
        self.weights = np.empty(W.size)  # copies of columns of W for the pairs of a round

    def solve(self, pairs: Sequence[tuple[int, int]], seeds: npt.NDArray[np.uint64]) -> Weights:
        """Solve pairs that share no block; return the statistics of each, shape (n_pairs, 6)."""
        pool = self.pool
        self.held = pool.held_limit - (pool.held_limit - pool.held) // len(pairs)
        taken = self.work.n + sum(int(one.counts.sum()) for one in self.lists)
        self.free = (len(pool.outputs) - taken) // len(pairs)
        classes = [
            np.sort(np.concatenate([self.problem.blocks[k] for k in pair])) for pair in pairs
        ]
        ends = len(self.W) * np.cumsum([len(some) for some in classes])
        weights = np.split(self.weights[: ends[-1]], ends[:-1])
        found = list(self.how.spread(self._solve_pair, pairs, classes, weights, seeds))
        pool.held += sum(grown for _, grown in found)
        return np.array([stats for stats, _ in found])

    def finish(self) -> None:
        """Copy variables and scores back to the working set."""
        order = np.argsort(np.concatenate(self.rows))
        self.pool.fill(self._lists_of(range(len(self.lists))).take(order))
        self.work.score[: self.work.n] = self.score

    def _solve_pair(
        self,
        pair: tuple[int, int],
        classes: Integers,
        weights: Weights,
        seed: npt.NDArray[np.uint64],
    ) -> tuple[Weights, Integers]:
        """Solve for the classes of a pair; return statistics and the growth of lists by home."""
        problem, kernels = self.problem, load("sbm.solver.kernels.classes")
        rows = np.concatenate([self.rows[k] for k in pair])
        n, m = len(rows), len(classes)
        if n == 0:
            return np.zeros(6), np.zeros_like(self.held)
        place = np.full(len(problem.costs), -1, np.int32)
        place[classes] = np.arange(m)
        lists = self._lists_of(pair)
        of_row = np.repeat(np.arange(n), lists.counts)
        inside = place[lists.outputs] >= 0
        outside = ~inside
        pool = self._pool(
            _lists(n, of_row[inside], place[lists.outputs[inside]], lists.values[inside]), m
        )
        part = self._part(rows, place, pool)
        W = weights.reshape(len(self.W), m)
        kernels.take_columns(self.W, classes, W)
        alone = MultiProblem(problem.loss, problem.costs[classes], problem.cost_rest, problem.bias)
        awake, order = np.empty(n, np.int32), np.empty(room_for_order(n, self.how.chunk), np.int32)
        stats = alone.solve(part, W, replace(self.how, state=seed, awake=awake, order=order))
        kernels.put_columns(W, classes, self.W)
        self.score[rows] = np.maximum(self.score[rows], part.score)
        found = pool.take(np.arange(n))
        of_row = np.concatenate([of_row[outside], np.repeat(np.arange(n), found.counts)])
        outputs = np.concatenate([lists.outputs[outside], classes.astype(np.int32)[found.outputs]])
        values = np.concatenate([lists.values[outside], found.values])
        by_row = np.lexsort((outputs, of_row))
        lists = _lists(n, of_row[by_row], outputs[by_row], values[by_row])
        n_first = len(self.rows[pair[0]])
        self.lists[pair[0]] = lists.part(0, n_first)
        self.lists[pair[1]] = lists.part(n_first, n - n_first)
        return stats, pool.held - self.held

    def _lists_of(self, blocks: Sequence[int]) -> Lists:
        """Join the variables of the rows of some blocks."""
        lists = join([self.lists[k] for k in blocks])
        assert isinstance(lists, Lists)
        return lists

    def _pool(self, lists: Lists, n_classes: int) -> ListPool:
        """Return a pool with a pair's lists and its share of the room."""
        pool = ListPool(len(lists), 0, 0, len(self.held), n_classes)
        room = len(lists) + len(lists.values) + self.free
        pool.outputs, pool.betas = np.empty(room, np.int32), np.empty(room)
        pool.held[:], pool.held_limit = self.held, self.pool.held_limit
        pool.fill(lists)
        return pool

    def _part(self, rows: Integers, place: npt.NDArray[np.int32], pool: ListPool) -> WorkingSet:
        """Return some rows as a separate working set, with classes renumbered by `place`."""
        work = self.work
        part = WorkingSet(work.arena, pool, 0, 0, weighted=work.weights is not None)
        part.n = len(rows)
        part.starts[:], part.lengths[:] = work.starts[rows], work.lengths[rows]
        part.home[:], part.y[:] = work.home[rows], place[work.y[rows]]
        if part.weights is not None and work.weights is not None:
            part.weights[:] = work.weights[rows]
        return part


def _lists(
    n: int, of_row: Integers, outputs: npt.NDArray[np.int32], values: npt.NDArray[np.float64]
) -> Lists:
    """Return lists of variables, given the row of each in ascending order."""
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(of_row, minlength=n), out=offsets[1:])
    return Lists(offsets, outputs, values)
