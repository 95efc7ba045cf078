"""Weston-Watkins SVM by pairs of classes, as many pairs at a time as there are threads.

A visit of β_ic needs the weights of two classes only, y_i and c (Alber, Zimmert, Dogan & Kloft
2016). A round is therefore a football league: on a match day every class meets one other, the pairs
of a day share nothing and are solved side by side, and after all days every pair has met once. The
threads are the caller's; whatever their number, the result is that of one pair after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.rows import Rows

__all__ = [
    "CHUNK", "Fixtures", "PairProblem", "PairRounds", "PairTotals", "certify_pairs", "count_days",
    "pairs_between", "pairs_of", "solve_pairs",
]  # fmt: skip

Spread = Callable[..., Iterable[Any]]
Pairs = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Part = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]

# As in `sbm.solver.step`: rows of a pair that are visited together, and the number of chunks below
# which chunks get shorter.
CHUNK = 64
LEAST_CHUNKS = 2048
# Worth it from 1 MB of weights a class on; below it costs 5 %.
AHEAD = 3
# What a visit costs beside its nonzeros, in nonzeros.
VISIT = 16
# A third of a millisecond in the same measure: to start and await a thread takes about as long.
LEAST_PART = 100_000

kernels = load("sbm.solver.kernels.class_pairs")


@dataclass
class PairTotals:
    """What the visits of one call added up to.

    Attributes
    ----------
    gain : float
        Rise of Σ d_i = Σ β_ic.
    gap : float
        Σ g_i, every term at the first visit of its β.
    visits : int
        Visits of single β_ic.
    updates : int
        Visits that changed one.
    """

    gain: float = 0.0
    gap: float = 0.0
    visits: int = 0
    updates: int = 0


def count_days(n_classes: int) -> int:
    """Match days of a league of `n_classes`: one less, or as many if that number is odd."""
    return n_classes - 1 + n_classes % 2


def pairs_of(n_classes: int, day: int) -> npt.NDArray[np.int32]:
    """Return the pairs of classes that meet on a day (the 1-factorisation of a complete graph).

    Every pair meets on exactly one day. No class meets two others on a day; one is idle if their
    number is odd.

    Parameters
    ----------
    n_classes : int
        At least 1.
    day : int
        From 0 to ``count_days(n_classes) - 1``.

    Returns
    -------
    ndarray, shape (n_classes // 2, 2), int32
        The smaller class first.
    """
    # All but one of an even number sit around a table, and meet whom they mirror in the line
    # through `day`; who sits on that line meets the one that is left, or nobody.
    seats = count_days(n_classes)
    seat = np.arange(seats)
    partner = (2 * day - seat) % seats
    if n_classes % 2 == 0:
        partner[day] = n_classes - 1
    first = np.flatnonzero(seat < partner)
    return np.stack([first, partner[first]], axis=1).astype(np.int32)


def pairs_between(n: int, m: int, day: int) -> npt.NDArray[np.int32]:
    """Return the pairs that meet on a day where two sets of classes meet each other.

    Every class of the one meets every class of the other on one of ``max(n, m)`` days.

    Parameters
    ----------
    n, m : int
        Classes 0 to n - 1 meet classes n to n + m - 1.
    day : int
        From 0 to ``max(n, m) - 1``.

    Returns
    -------
    ndarray, shape (min(n, m), 2), int32
    """
    first = np.arange(n)
    second = (first + day) % max(n, m, 1)
    met = second < m
    return np.stack([first[met], n + second[met]], axis=1).astype(np.int32)


@dataclass(frozen=True)
class Fixtures:
    """Who meets whom in a round, and where a class has its weights and variables.

    Attributes
    ----------
    n_days : int
    pairs_on : callable
        ``pairs_on(day)``: pairs that share no class, shape (n_pairs, 2), int32.
    place, column : ndarray, shape (n_classes,), int32
        Row of W of each class; column of β of the variables against it. Classes that do not meet
        may share a column, as no row has variables against both.
    """

    n_days: int
    pairs_on: Callable[[int], npt.NDArray[np.int32]]
    place: npt.NDArray[np.int32]
    column: npt.NDArray[np.int32]

    @classmethod
    def within(cls, place: npt.NDArray[np.int32]) -> Fixtures:
        """Let all classes meet each other, those at these rows of W."""
        n = len(place)
        columns = np.arange(n, dtype=np.int32)
        return cls(count_days(n), lambda day: pairs_of(n, day), place, columns)

    @classmethod
    def between(cls, these: npt.NDArray[np.int32], those: npt.NDArray[np.int32]) -> Fixtures:
        """Let two sets of classes, at these and those rows of W, meet each other."""
        n, m = len(these), len(those)
        place = np.concatenate([these, those])
        columns = np.concatenate([np.arange(n), np.arange(m)]).astype(np.int32)
        return cls(max(n, m), lambda day: pairs_between(n, m, day), place, columns)


@dataclass(frozen=True)
class PairProblem:
    """Rows, their variables and weights, and who meets whom.

    Attributes
    ----------
    rows : Rows
        The n rows of the working set, y int32 class codes; their weights multiply their costs.
    beta : ndarray, shape (n, n_classes), float64, C-contiguous
        β_ic; β_iy is 0 and stays so.
    W : ndarray, shape (n_classes, n_weights), float64, C-contiguous
        Weights by classes: the transpose of what the rest of the solver calls W. The last column
        is the bias feature's, if there is one.
    costs : ndarray, shape (n_classes,), float64
        C_i of the rows of each class; those with cost 0 are never visited.
    bias : float
        Value of the extra feature; 0 for none.
    fixtures : Fixtures, optional
        Default: all classes meet each other, and have their places in W and β by number.
    """

    rows: Rows
    beta: Floats
    W: Floats
    costs: Floats
    bias: float = 0.0
    fixtures: Fixtures | None = None


@dataclass(frozen=True)
class PairRounds:
    """How the rounds over all pairs are to go.

    Attributes
    ----------
    rounds : int
        Most of them.
    state : ndarray, shape (1,), uint64, changed in place
        Random generator; any number will do.
    chunk : int
        Most rows visited together, in storage order.
    ahead : int
        Rows to prefetch ahead, 0 for none.
    spread : callable
        Like the builtin `map`: given a function and a list of arguments, an iterator of results;
        the calls may run at the same time.
    tasks : int
        Most parts that the pairs of a day are divided into; fewer where there is little work.
    """

    rounds: int
    state: npt.NDArray[np.uint64]
    chunk: int = CHUNK
    ahead: int = AHEAD
    spread: Spread = map
    tasks: int = 1


def solve_pairs(problem: PairProblem, how: PairRounds) -> PairTotals:
    """Visit all β of a working set, in several rounds at most; change β and W in place.

    A round takes the match days in a fresh random order, and ends one before the next begins.
    Nothing that comes out depends on `how.spread` and `how.tasks`.

    Parameters
    ----------
    problem : PairProblem
    how : PairRounds

    Returns
    -------
    PairTotals
    """
    league = _League(problem, how.chunk, how.ahead)
    totals = PairTotals()
    for number in range(how.rounds):
        random = np.random.default_rng(int(how.state[0]))
        seed, how.state[0] = random.integers(2**64, size=2, dtype=np.uint64)
        days = random.permutation(league.n_days)
        worst = league.play_all(days, seed, number == 0, how.spread, how.tasks, totals)
        if worst == 0.0:
            break
    return totals


def certify_pairs(
    problem: PairProblem,
    W_alpha: Floats,
    marks: npt.NDArray[np.uint8],
    *,
    spread: Spread = map,
    tasks: int = 1,
) -> Floats:
    """Sum up what the pairs of classes contribute to the certificate at fixed W and β.

    Nothing that comes out depends on `spread` and `tasks`.

    Parameters
    ----------
    problem : PairProblem
    W_alpha : ndarray, like W, added to in place
        The weights that belong to β.
    marks : ndarray, shape (n,), uint8, in place
        1 is set where a variable of the row is above 0, and 2 where one is inside its bounds.
    spread, tasks : callable, int
        As of `PairRounds`.

    Returns
    -------
    ndarray, shape (3,), float64
        Σ g_i, Σ φ_i, Σ d_i.
    """
    return _League(problem).certify(W_alpha, marks, spread, tasks)


class _League:
    """The rows of a working set in class order, and the rounds over them.

    What a visit reads of its row beside nonzeros and β lies in class order too: a pair reads it
    from front to back.
    """

    def __init__(self, problem: PairProblem, chunk: int = CHUNK, ahead: int = AHEAD) -> None:
        rows, costs, bias = problem.rows, problem.costs, float(problem.bias)
        n, n_classes = len(rows), len(costs)
        # Of small integers numpy's stable sort is a counting sort.
        codes = rows.y.astype(np.min_scalar_type(max(0, n_classes - 1)))
        self.order = np.argsort(codes, kind="stable").astype(np.int32)
        self.first = np.zeros(n_classes + 1, np.int64)
        np.cumsum(np.bincount(codes, minlength=n_classes), out=self.first[1:])
        lengths = rows.lengths[self.order]
        norms = np.empty(n)
        starts = rows.starts[self.order]
        kernels.norms(starts, lengths, rows.values, bias, norms)
        weight = None if rows.weights is None else rows.weights[self.order]
        self._rows = (starts, lengths, norms, weight)
        fixtures = problem.fixtures or Fixtures.within(np.arange(n_classes, dtype=np.int32))
        self._fixtures, self.n_days = fixtures, fixtures.n_days
        self._nonzeros = rows.indices, rows.values
        self._problem = problem.beta, fixtures.column, problem.W, fixtures.place, costs, bias
        self._tuning = chunk, LEAST_CHUNKS, ahead
        self._visited = np.where(costs > 0, np.diff(self.first), 0)
        nonzeros = np.bincount(codes, weights=rows.lengths, minlength=n_classes).astype(np.int64)
        self._loads = np.where(costs > 0, nonzeros + VISIT * self._visited, 0)
        self._scratch = np.empty(n, np.int32)

    def play_all(
        self,
        days: npt.NDArray[np.int64],
        seed: np.uint64,
        is_first: bool,
        spread: Spread,
        tasks: int,
        totals: PairTotals,
    ) -> float:
        """Let every pair of classes meet once; add to the totals, return the largest violation."""
        worst = 0.0
        for pairs in self._pairs_with_rows(days):
            stats = np.empty((len(pairs), 5))
            self._play(pairs, np.uint64(seed), is_first, spread, tasks, stats)
            gain, gap, visits, updates, _ = stats.sum(axis=0)  # in the order of the pairs
            worst = max(worst, float(stats[:, 4].max()))
            totals.gain += float(gain)
            totals.gap += float(gap)
            totals.visits += int(visits)
            totals.updates += int(updates)
        return worst

    def certify(
        self,
        W_alpha: npt.NDArray[np.float64],
        marks: npt.NDArray[np.uint8],
        spread: Spread,
        tasks: int,
    ) -> npt.NDArray[np.float64]:
        """Let every pair of classes meet once, and change nothing; see `certify_pairs`."""
        sums = np.zeros(3)
        beta, column, W, place, costs, bias = self._problem
        starts, lengths, _, weight = self._rows
        for pairs in self._pairs_with_rows(range(self.n_days)):
            stats = np.empty((len(pairs), 3))

            def look(part: Part, pairs: Pairs = pairs, stats: Floats = stats) -> None:
                kernels.certify(
                    pairs, part[0], self.first, self.order, starts, lengths, weight,
                    *self._nonzeros, beta, column, W, W_alpha, place, costs, bias, marks, stats,
                )  # fmt: skip

            self._share_out(look, pairs, spread, tasks)
            sums += stats.sum(axis=0)
        return sums

    def _pairs_with_rows(self, days: Iterable[int]) -> Iterator[Pairs]:
        """Yield the pairs of each day; few classes may have rows here."""
        for day in days:
            pairs = self._fixtures.pairs_on(int(day))
            pairs = pairs[self._loads[pairs].sum(axis=1) > 0]
            if len(pairs) > 0:
                yield pairs

    def _play(
        self,
        pairs: Pairs,
        seed: np.uint64,
        is_first: bool,
        spread: Spread,
        tasks: int,
        stats: Floats,
    ) -> None:
        """Solve the pairs of a day."""

        def play(part: Part) -> None:
            mine, scratch = part
            kernels.solve(
                pairs, mine, self.first, self.order, *self._rows, *self._nonzeros,
                *self._problem, *self._tuning, is_first, seed, scratch, stats,
            )  # fmt: skip

        self._share_out(play, pairs, spread, tasks)

    def _share_out(
        self, work: Callable[[Part], None], pairs: Pairs, spread: Spread, tasks: int
    ) -> None:
        """Work on the pairs of a day, in parts, with scratch for the rows of each."""
        parts = []
        begin = 0
        for mine in self._divide(pairs, tasks):
            end = begin + int(self._visited[pairs[mine]].sum())
            parts.append((mine, self._scratch[begin:end]))
            begin = end
        for _ in (spread if len(parts) > 1 else map)(work, parts):
            pass

    def _divide(self, pairs: npt.NDArray[np.int32], tasks: int) -> list[npt.NDArray[np.int64]]:
        """Divide the pairs of a day into at most `tasks` parts of about the same work."""
        loads = self._loads[pairs].sum(axis=1)
        n_parts = min(tasks, len(pairs), int(loads.sum()) // LEAST_PART)
        if n_parts < 2:
            return [np.arange(len(pairs))]
        part = np.empty(len(pairs), np.int32)
        by_load = np.argsort(-loads, kind="stable")
        kernels.divide(loads, by_load, np.zeros(n_parts, np.int64), part)
        return [np.flatnonzero(part == k) for k in range(n_parts)]
