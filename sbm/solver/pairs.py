"""Weston-Watkins SVM by pairs of classes, as many pairs at a time as there are threads.

A visit of β_ic needs the weights of two classes only, y_i and c (Alber, Zimmert, Dogan & Kloft
2016). A sweep is therefore a football league: on a match day every class meets one other, the pairs
of a day share nothing and are solved side by side, and after all days every pair has met once. The
threads are the caller's; whatever their number, the result is that of one pair after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.rows import Rows

__all__ = ["CHUNK", "PairTotals", "count_days", "pairs_of", "solve_pairs"]

Spread = Callable[..., Iterable[Any]]

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
        Σ g_i of the block's rows, every term at the first visit of its β.
    visits : int
        In rows: a row that met every other class once was visited once.
    pair_visits : int
        Visits of single β_ic.
    updates : int
        Visits that changed one.
    sweeps : int
    violation : float
        Largest projected gradient that the last sweep met.
    """

    gain: float = 0.0
    gap: float = 0.0
    visits: int = 0
    pair_visits: int = 0
    updates: int = 0
    sweeps: int = 0
    violation: float = 0.0


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


def solve_pairs(
    rows: Rows,
    home: npt.NDArray[np.int32],
    beta: npt.NDArray[np.float64],
    score: npt.NDArray[np.float32],
    W: npt.NDArray[np.float64],
    costs: npt.NDArray[np.float64],
    *,
    rounds: int,
    inner_tol: float,
    block: int,
    state: npt.NDArray[np.uint64],
    bias: float = 0.0,
    sigma: float = 1.0,
    chunk: int = CHUNK,
    ahead: int = AHEAD,
    spread: Spread = map,
    tasks: int = 1,
    weight: npt.NDArray[np.float64] | None = None,
) -> PairTotals:
    """Run bounded sweeps over all β of a working set.

    A sweep takes the match days in a fresh random order, and ends one before the next begins.
    Nothing that comes out depends on `spread` and `tasks`.

    Parameters
    ----------
    rows : Rows
        The n rows of the working set, y int32 class codes.
    home : ndarray, shape (n,), int32
    beta : ndarray, shape (n, n_classes), float64, C-contiguous, in place
        β_ic; β_iy is 0 and stays so.
    score : ndarray, shape (n,), float32, in place
        Cache score: the largest of the scores of the row's β, each at its last visit; -inf for
        rows with cost 0.
    W : ndarray, shape (n_classes, n_weights), float64, C-contiguous, in place
        Weights by classes: the transpose of what the rest of the solver calls W. The last column
        is the bias feature's, if there is one.
    costs : ndarray, shape (n_classes,), float64
        C_i of the rows of each class; those with cost 0 are never visited.
    rounds : int
        Most sweeps.
    inner_tol : float
        End after a first sweep whose largest violation is not above.
    block : int
        Rows with home == block count towards the gap estimate.
    state : ndarray, shape (1,), uint64, in place
        Random generator; any number will do.
    bias : float
        Value of the extra feature; 0 for none.
    sigma : float
        1 on one machine; scales curvature and step of W when several are added up.
    chunk : int
        Most rows visited together, in storage order.
    ahead : int
        Rows to prefetch ahead, 0 for none.
    spread : callable
        Like the builtin `map`: given a function and a list of arguments, an iterator of results;
        the calls may run at the same time.
    tasks : int
        Most parts that the pairs of a day are divided into; fewer where there is little work.
    weight : ndarray, shape (n,), float64, or None for ones
        Multiplies the cost of each row.

    Returns
    -------
    PairTotals
    """
    tuning = chunk, LEAST_CHUNKS, ahead
    league = _League(rows, weight, home == block, beta, W, costs, float(bias), float(sigma), tuning)
    totals = PairTotals()
    for sweep in range(rounds):
        random = np.random.default_rng(int(state[0]))
        seed, state[0] = random.integers(2**64, size=2, dtype=np.uint64)
        league.sweep(random.permutation(count_days(len(costs))), seed, spread, tasks, totals)
        if totals.violation == 0.0 or (sweep == 0 and totals.violation <= inner_tol):
            break
        league.counted[:] = False  # what is left of the gap is not met for the first time
    totals.visits = totals.pair_visits // max(1, len(costs) - 1)
    if totals.sweeps > 0:
        score[league.order] = league.score
    return totals


class _League:
    """The rows of a working set in class order, and the sweeps over them.

    What a visit reads of its row beside nonzeros and β lies in class order too: a pair reads it
    from front to back.
    """

    def __init__(
        self,
        rows: Rows,
        weight: npt.NDArray[np.float64] | None,
        counted: npt.NDArray[np.bool_],
        beta: npt.NDArray[np.float64],
        W: npt.NDArray[np.float64],
        costs: npt.NDArray[np.float64],
        bias: float,
        sigma: float,
        tuning: tuple[int, int, int],
    ) -> None:
        n, n_classes = len(rows), len(costs)
        # Of small integers numpy's stable sort is a counting sort.
        codes = rows.y.astype(np.min_scalar_type(max(0, n_classes - 1)))
        self.order = np.argsort(codes, kind="stable").astype(np.int32)
        self.first = np.zeros(n_classes + 1, np.int64)
        np.cumsum(np.bincount(codes, minlength=n_classes), out=self.first[1:])
        self.counted = counted[self.order]
        self.score = np.empty(n, np.float32)
        lengths = rows.lengths[self.order]
        norms = np.empty(n)
        starts = rows.starts[self.order]
        kernels.norms(starts, lengths, rows.values, bias, norms)
        sorted_weight = None if weight is None else weight[self.order]
        self._rows = (starts, lengths, norms, sorted_weight)
        self._problem = (
            self.score, rows.indices, rows.values, beta, W, costs, bias, sigma, *tuning,
        )  # fmt: skip
        self._visited = np.where(costs > 0, np.diff(self.first), 0)
        nonzeros = np.bincount(codes, weights=rows.lengths, minlength=n_classes).astype(np.int64)
        self._loads = np.where(costs > 0, nonzeros + VISIT * self._visited, 0)
        self._scratch = np.empty(n, np.int32)

    def sweep(
        self,
        days: npt.NDArray[np.int64],
        seed: np.uint64,
        spread: Spread,
        tasks: int,
        totals: PairTotals,
    ) -> None:
        """Let every pair of classes meet once; add to the totals."""
        self.score[:] = -np.inf
        worst = 0.0
        for day in days:
            pairs = pairs_of(len(self._loads), int(day))
            pairs = pairs[self._loads[pairs].sum(axis=1) > 0]  # few classes may have rows here
            if len(pairs) == 0:
                continue
            stats = np.empty((len(pairs), 5))
            self._play(pairs, np.uint64(seed), spread, tasks, stats)
            gain, gap, visits, updates, _ = stats.sum(axis=0)  # in the order of the pairs
            worst = max(worst, stats[:, 4].max())
            totals.gain += float(gain)
            totals.gap += float(gap)
            totals.pair_visits += int(visits)
            totals.updates += int(updates)
        totals.sweeps += 1
        totals.violation = float(worst)

    def _play(
        self,
        pairs: npt.NDArray[np.int32],
        seed: np.uint64,
        spread: Spread,
        tasks: int,
        stats: npt.NDArray[np.float64],
    ) -> None:
        """Solve the pairs of a day, in parts; return when all are done."""

        def play(part: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]) -> None:
            mine, scratch = part
            kernels.solve(
                pairs, mine, self.first, self.order, *self._rows, self.counted, *self._problem,
                seed, scratch, stats,
            )  # fmt: skip

        parts = []
        begin = 0
        for mine in self._divide(pairs, tasks):
            end = begin + int(self._visited[pairs[mine]].sum())
            parts.append((mine, self._scratch[begin:end]))
            begin = end
        for _ in (spread if len(parts) > 1 else map)(play, parts):
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
