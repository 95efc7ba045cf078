"""The schedule of Alber et al. (2016): pairs of classes that can be solved at the same time.

A step of a row in two classes reads and moves the weights of these two alone. In a round of a
1-factorisation, every class meets one other, so all meetings of a round are independent. After as
many rounds as there are classes, each class has met every other. Machines are simulated: the
result does not depend on their number, and their work is counted in multiply-adds.

Their problem is Weston-Watkins, where only rows of the two classes have a step. Crammer-Singer,
which they planned, needs one more: a row of a third class moves its variable from one class to the
other, as its variables have a common bound.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from scripts.bench.data import Floats, Ints, parse
from scripts.bench.tools import BenchError

MACHINES = (2, 4, 8, 16)
_MOST_BYTES = 2 << 30  # of weights and variables, which are dense here


def rounds_of(n_classes: int) -> list[npt.NDArray[np.int64]]:
    """Return the pairs of each round: all classes around one in the centre."""
    n = n_classes + n_classes % 2  # with an odd number, one rests in each round
    rounds = []
    for r in range(n - 1):
        partner = (2 * r - np.arange(n - 1)) % (n - 1)
        pairs = [(c, d) for c, d in enumerate(partner.tolist()) if c < d]
        rounds.append(np.array([p for p in [*pairs, (r, n - 1)] if max(p) < n_classes]))
    return rounds


@njit(cache=True, error_model="numpy")
def _step(joint, i, a, b, rows, squares, y, cost, W, alpha):  # type: ignore[no-untyped-def]
    """Move variable `a` of a row up and `b` down by the best step; return its multiply-adds."""
    begins, ids, values = rows
    begin, end = begins[i], begins[i + 1]
    gradient = 1.0 * (a == y[i]) - 1.0 * (b == y[i])
    for p in range(begin, end):
        gradient -= values[p] * (W[a, ids[p]] - W[b, ids[p]])
    if joint:  # at most C of the row's own class, at most 0 of others
        most = (cost if a == y[i] else 0.0) - alpha[a, i]
        least = alpha[b, i] - (cost if b == y[i] else 0.0)
    elif a == y[i]:  # the variable of the other class is from -C to 0
        least, most = alpha[b, i], alpha[b, i] + cost
    else:
        least, most = -cost - alpha[a, i], -alpha[a, i]
    step = gradient / (2.0 * squares[i]) if squares[i] > 0.0 else np.sign(gradient) * 1e300
    step = min(max(step, least), most)
    if abs(step) <= 1e-14 * cost:
        return 2 * (end - begin)
    alpha[a, i] += step
    alpha[b, i] -= step
    for p in range(begin, end):
        W[a, ids[p]] += step * values[p]
        W[b, ids[p]] -= step * values[p]
    return 4 * (end - begin)


@njit(cache=True, error_model="numpy")
def _meet(joint, pairs, first, rows, squares, y, cost, W, alpha, work):  # type: ignore[no-untyped-def]
    """Solve the meetings of a round; `work` receives the multiply-adds of each."""
    for p in range(len(pairs)):
        a, b = pairs[p]
        work[p] = 0
        for c in (a, b):
            for i in range(first[c], first[c + 1]):
                work[p] += _step(joint, i, a, b, rows, squares, y, cost, W, alpha)
        for i in range(len(y) if joint else 0):
            if y[i] != a and y[i] != b and (alpha[a, i] != 0.0 or alpha[b, i] != 0.0):
                work[p] += _step(joint, i, a, b, rows, squares, y, cost, W, alpha)


def _read(text: Path) -> tuple[Ints, Floats, tuple[Ints, Ints, Floats]]:
    """Return the first row of each class, squared norms, and the rows in order of their class."""
    parts = list(parse(text))
    labels = np.concatenate([part[0] for part in parts])
    lengths = np.concatenate([np.diff(part[1]) for part in parts])
    ids, values = (np.concatenate([part[k] for part in parts]) for k in (2, 3))
    order = np.argsort(labels, kind="stable")
    begins = np.concatenate([[0], np.cumsum(lengths)])
    places = np.concatenate([np.arange(begins[i], begins[i + 1]) for i in order])
    ends = np.concatenate([[0], np.cumsum(lengths[order])])
    first = np.concatenate([[0], np.cumsum(np.unique(labels, return_counts=True)[1])])
    ids = np.unique(ids[places], return_inverse=True)[1]
    values = values[places]
    squares = np.add.reduceat(np.append(values**2, 0.0), ends[:-1]) * (np.diff(ends) > 0)
    return first, squares, (ends, ids, values)


def by_pairs(text: Path, loss: str, cost: float, most: int, goal: float) -> dict[str, Any]:
    """Train by the schedule until the dual value is at `goal`, for at most so many iterations.

    Returns the dual value after each, the number of classes, and the speed-up by work of each
    number of machines.

    Raises `BenchError` if the text has too many classes for dense weights.
    """
    first, squares, rows = _read(text)
    n_classes, n, joint = len(first) - 1, len(squares), loss == "crammer_singer"
    n_features = int(rows[1].max()) + 1
    if 8 * n_classes * (n_features + n) > _MOST_BYTES:
        raise BenchError(f"{text.name} has too many classes and features for dense weights")
    y = np.repeat(np.arange(n_classes), np.diff(first))
    W, alpha = np.zeros((n_classes, n_features)), np.zeros((n_classes, n))
    total, longest = 0, dict.fromkeys(MACHINES, 0)
    duals: list[float] = []
    schedule = rounds_of(n_classes)
    while len(duals) < most and (not duals or duals[-1] < goal):
        for pairs in schedule:
            work = np.zeros(len(pairs), np.int64)
            _meet(joint, pairs, first, rows, squares, y, cost, W, alpha, work)
            total += int(work.sum())
            for machines in MACHINES:
                machine = np.arange(len(pairs)) * machines // len(pairs)
                longest[machines] += int(np.bincount(machine, work).max())
        own = alpha[y, np.arange(n)].sum()
        duals.append(float(own - 0.5 * (W**2).sum()))
    speed = {machines: total / max(1, longest[machines]) for machines in MACHINES}
    return {"duals": duals, "speed_up": speed, "classes": n_classes}
