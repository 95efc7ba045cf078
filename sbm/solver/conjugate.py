"""Conjugate gradients for Newton steps, preconditioned exactly in frequent columns.

The matrix is ridge + Σ r_i x_i x_i', and a product with it visits all rows that have curvature.
Columns that most rows have are correlated, if only because their values are positive: they are what
many iterations are needed for. The preconditioner is the matrix itself in the most frequent
columns, and its diagonal in all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sbm.rows import Rows
from sbm.solver.sums import SLICES, Sums, factorize, solve

__all__ = ["Preconditioner", "conjugate_gradients", "inner", "preconditioner_bytes", "step_length"]

Floats = npt.NDArray[np.float64]

_MOST = 256  # frequent columns
_FREQUENT = 0.01  # least share of the rows that have such a column
# Line search: share of the first slope that counts as 0, longest step, and slopes to look at.
_FLAT, _LONGEST, _TRIALS = 0.1, 64.0, 60


def inner(a: Floats, b: Floats) -> float:
    """Return a·b without a copy, and without a BLAS."""
    return float(np.einsum("i,i->", a, b))


def step_length(slope: Callable[[float], float]) -> float:
    """Return about the minimum of a convex function along a step, given its derivative.

    The result is 1, a whole step, if that is good enough, and 0 if the function does not fall.
    """
    at_low = slope(0.0)
    if not at_low < 0.0:  # no way down, as far as rounding shows
        return 0.0
    low, high, at_high, least = 0.0, 1.0, slope(1.0), _FLAT * abs(at_low)
    while at_high < -least and high < _LONGEST:
        low, at_low, high = high, at_high, 2.0 * high
        at_high = slope(high)
    length, at = high, at_high
    for trial in range(_TRIALS):
        if abs(at) <= least or at_high < 0.0:
            break
        # The first of these shares is good for small steps, the other one if that is not.
        share = at_low / (at_low - at_high) if trial % 2 == 0 else 0.5
        length = low + share * (high - low)
        at = slope(length)
        if at < 0.0:
            low, at_low = length, at
        else:
            high, at_high = length, at
    return length


def conjugate_gradients(
    product: Callable[[Floats], Floats],
    inverse: Callable[[Floats, Floats], Floats],
    gradient: Floats,
    is_enough: Callable[[int, Floats, Floats, float], bool],
) -> Floats:
    """Return about the step to where the gradient is 0.

    Parameters
    ----------
    product : callable
        Returns the product of the matrix with a vector, which may be overwritten later.
    inverse : callable
        ``inverse(r, out)`` is about the solution for a right side, in `out`.
    gradient : ndarray, shape (n_weights,), float64
    is_enough : callable
        ``is_enough(number, step, r, size)`` returns whether to end after an iteration, given its
        number, the step, the residual, and the product of that with its preconditioned one.
    """
    step, r = np.zeros(len(gradient)), -gradient
    z = inverse(r, np.empty(len(r)))
    way, size = z.copy(), inner(r, z)
    for number in range(1, 1 + len(step) * (size > 0.0)):  # at the optimum, there is no step
        along = product(way)
        curvature = inner(way, along)
        if not curvature > 0.0:  # as small as rounding
            break
        length = size / curvature
        step += np.multiply(way, length, out=z)  # new arrays would take longer
        along *= length
        r -= along
        inverse(r, z)
        before, size = size, inner(r, z)
        if not size > 0.0 or is_enough(number, step, r, size):
            break
        way *= size / before
        way += z
    return step


def preconditioner_bytes() -> int:
    """Return the bytes of the matrices of a preconditioner."""
    return 8 * _MOST * _MOST * (SLICES + 2)


class Preconditioner:
    """About the inverse of ridge + Σ r_i x_i x_i'.

    Parameters
    ----------
    sums : Sums
    ridge : ndarray, shape (n_weights,), float64
    """

    def __init__(self, sums: Sums, ridge: Floats) -> None:
        self._sums, self._ridge = sums, ridge
        self._columns: npt.NDArray[np.intp] | None = None
        self._place = np.empty(0, np.int32)
        self._scale, self._factor = ridge, (np.empty((0, 0)), np.empty(0))

    def choose(self, pieces: Sequence[Rows]) -> None:
        """Choose the frequent columns, given all rows."""
        if self._columns is not None:
            return
        sums, counts = self._sums, np.zeros((SLICES, len(self._ridge)))

        def count(k: int) -> None:
            for rows in pieces[k::SLICES]:
                sums.add_squares(replace(rows, values=None), np.ones(len(rows)), counts[k])

        list(sums.spread(count, range(SLICES)))
        total, n = sums.add_up(counts), sums.total(sum(map(len, pieces)))
        best = np.argsort(-total, kind="stable")[:_MOST]
        self._columns = np.sort(best[total[best] >= max(1.0, _FREQUENT * n)])
        self._place = np.full(len(total), -1, np.int32)
        self._place[self._columns] = np.arange(len(self._columns))

    def set(self, pieces: Sequence[Rows], r: Sequence[Floats], diagonal: Floats) -> None:
        """Set the rows and their curvature; `diagonal` is Σ r_i x_i²."""
        self.choose(pieces)
        assert self._columns is not None
        n, sums = len(self._columns), self._sums
        self._scale = 1.0 / (self._ridge + diagonal)
        if not n:
            return
        H = np.zeros((SLICES, n, n))

        def add(k: int) -> None:
            for rows, mine in list(zip(pieces, r, strict=True))[k::SLICES]:
                sums.add_gram_of(rows, mine, self._place, H[k])

        list(sums.spread(add, range(SLICES)))
        matrix = sums.add_up(H)
        matrix.flat[:: n + 1] += self._ridge[self._columns]
        self._factor = factorize(matrix)

    def clear(self) -> None:
        """Free the memory of `set`."""
        self._scale, self._factor = self._ridge, (np.empty((0, 0)), np.empty(0))

    def times(self, b: Floats, out: Floats) -> Floats:
        """Return about the solution of (ridge + Σ r_i x_i x_i') z = b, in `out`."""
        assert self._columns is not None
        np.multiply(self._scale, b, out=out)
        if len(self._columns):
            out[self._columns] = solve(self._factor, b[self._columns])
        return out
