"""A unit for the weight of each feature, so that columns of any size are learned at the same pace.

The income of a person in a table of ones makes coordinate descent crawl: its column has all the
length of the rows. In units of m_j the weights are v_j = m_j w_j, for rows with values x_ij / m_j;
`sbm.solver.accelerated` keeps the problem as it is by its proximal term. m_j is about the root mean
square of the values of column j where they are not 0, divided by the median of all columns, but not
below 1. Units are powers of two, so that values are divided in place and multiplied again without
rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from sbm.rows import Rows

__all__ = ["Metric"]

Floats = npt.NDArray[np.float64]

_PIECE = 1 << 18  # nonzeros at a time
# Where the square of a row's length, in the mean, falls by less, large columns do not slow down
# coordinate descent: in text some words are always larger than others.
_LEAST = 100.0
_LARGEST = 1e150  # whose square is a number


class Metric:
    """Units of the weights for some rows.

    Parameters
    ----------
    rows : Rows
        If others lie between them in memory, all units are 1.
    n_weights : int
        Features, and the extra one.

    Attributes
    ----------
    units : ndarray, shape (n_weights, 1), float64
        m_j, powers of two.
    is_needed : bool
        Whether some columns are so large that their units pay.
    """

    def __init__(self, rows: Rows, n_weights: int) -> None:
        exponents, squares = np.zeros(n_weights, np.int64), np.zeros(n_weights)
        if rows.values is not None and len(rows) and rows.nnz == _span(rows)[1] - _span(rows)[0]:
            exponents, squares = _exponents(rows, n_weights)
        self.units: Floats = np.ldexp(1.0, exponents)[:, np.newaxis]
        scaled = squares / (self.units * self.units)[:, 0]
        self.is_needed = float(squares.sum()) > _LEAST * float(scaled.sum())

    @contextmanager
    def applied(self, rows: Rows) -> Iterator[None]:
        """Divide the values of rows by the units, and multiply them again in the end."""
        self._multiply(rows, 1.0 / self.units[:, 0])
        try:
            yield
        finally:
            self._multiply(rows, self.units[:, 0])

    @staticmethod
    def _multiply(rows: Rows, factors: Floats) -> None:
        assert rows.values is not None
        few = factors.astype(rows.values.dtype)
        for part in _pieces(rows):
            rows.values[part] *= few[rows.indices[part]]


def _span(rows: Rows) -> tuple[int, int]:
    """Return where the nonzeros of rows begin and end."""
    return int(rows.starts.min()), int((rows.starts + rows.lengths).max())


def _pieces(rows: Rows) -> Iterator[slice]:
    """Yield the places of the nonzeros of rows, some at a time."""
    begin, end = _span(rows)
    for first in range(begin, end, _PIECE):
        yield slice(first, min(first + _PIECE, end))


def _exponents(rows: Rows, n_weights: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return log2 m_j of each weight, and the sum of squares of its column."""
    assert rows.values is not None
    squares, counts = np.zeros(n_weights), np.zeros(n_weights)
    least = np.inf
    for part in _pieces(rows):
        values = np.minimum(np.abs(rows.values[part].astype(np.float64)), _LARGEST)
        indices = rows.indices[part].astype(np.int64)  # the type that `add.at` is fast with
        some = values > 0.0
        least = min(least, values[some].min(initial=np.inf))
        np.add.at(squares, indices, values * values)
        np.add.at(counts, indices, some.astype(np.float64))
    occurs = counts > 0
    if not occurs.any():
        return np.zeros(n_weights, np.int64), squares
    sizes = np.sqrt(squares[occurs] / counts[occurs])
    exponents = np.zeros(n_weights, np.int64)
    # The power of two that is not above: logarithms are rounded as the processor does.
    exponents[occurs] = np.frexp(np.maximum(sizes / np.median(sizes), 1.0))[1] - 1
    # The smallest value must stay a normal number.
    limit = np.frexp(least)[1] - np.frexp(np.finfo(rows.values.dtype).tiny)[1] - 1
    return np.clip(exponents, 0, max(0, int(limit))), squares
