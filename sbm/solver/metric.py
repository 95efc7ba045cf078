"""A unit for the weight of each feature, so that columns of any size are learned at the same pace.

The income of a person in a table of ones makes coordinate descent crawl: its column has all the
length of the rows. In units of m_j the weights are v_j = m_j w_j, for rows with values x_ij / m_j;
`sbm.solver.accelerated` and `sbm.solver.proximal` keep the problem as it is by a proximal term.
m_j is about the root mean square of the values of column j where they are not 0, divided by the
median of all columns, but not below 1. Units are powers of two, so that values are divided in place
and multiplied again without rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from sbm.distributed.comm import Comm
from sbm.rows import Rows

__all__ = ["ColumnSizes", "Metric", "multiply"]

Floats = npt.NDArray[np.float64]

_PIECE = 1 << 18  # nonzeros at a time
# Where the square of a row's length, in the mean, falls by less, large columns do not slow down
# coordinate descent: in text some words are always larger than others.
_LEAST = 100.0
_LARGEST = 1e150  # whose square is a number


class ColumnSizes:
    """Sums over the columns of rows.

    Parameters
    ----------
    n_weights : int
        Features, and the extra one.

    Attributes
    ----------
    squares, counts : ndarray, shape (n_weights,), float64
        Sum of squares, and number of values that are not 0.
    least : float
        The smallest absolute value that is not 0.
    n_rows : int
    """

    def __init__(self, n_weights: int) -> None:
        self.squares, self.counts = np.zeros(n_weights), np.zeros(n_weights)
        self.least, self.n_rows = np.inf, 0

    def add(self, rows: Rows) -> None:
        """Add rows with values whose nonzeros follow each other in memory."""
        assert rows.values is not None
        self.n_rows += len(rows)
        for part in _pieces(rows):
            values = np.minimum(np.abs(rows.values[part].astype(np.float64)), _LARGEST)
            indices = rows.indices[part].astype(np.int64)  # the type that `add.at` is fast with
            some = values > 0.0
            self.least = min(self.least, values[some].min(initial=np.inf))
            np.add.at(self.squares, indices, values * values)
            np.add.at(self.counts, indices, some.astype(np.float64))

    def of_all(self, comm: Comm) -> "ColumnSizes":
        """Return the sums over the rows of all ranks."""
        if comm.size == 1:
            return self
        total, numbers = ColumnSizes(len(self.counts)), comm.gather([self.least, self.n_rows])
        total.least, total.n_rows = float(numbers[:, 0].min()), int(numbers[:, 1].sum())
        for name in ("squares", "counts"):
            array = getattr(self, name).copy()
            comm.add_up(array)
            setattr(total, name, array)
        return total

    def exponents(self, dtype: npt.DTypeLike) -> npt.NDArray[np.int64]:
        """Return log2 m_j of each weight, for values of this type."""
        exponents, occurs = np.zeros(len(self.counts), np.int64), self.counts > 0
        if not occurs.any():
            return exponents
        # Squares of the smallest values are 0.
        sizes = np.maximum(np.sqrt(self.squares[occurs] / self.counts[occurs]), self.least)
        # The power of two that is not above: logarithms are rounded as the processor does.
        exponents[occurs] = np.frexp(np.maximum(sizes / np.median(sizes), 1.0))[1] - 1
        # The smallest value must stay a normal number.
        limit = np.frexp(self.least)[1] - np.frexp(np.finfo(dtype).tiny)[1] - 1
        return np.clip(exponents, 0, max(0, int(limit)))


class Metric:
    """Units of the weights.

    Parameters
    ----------
    sizes : ColumnSizes
    dtype : dtype
        Type of the values.

    Attributes
    ----------
    units : ndarray, shape (n_weights, 1), float64
        m_j, powers of two.
    mean_square : float
        Mean |x|² of the rows in these units.
    is_needed : bool
        Whether some columns are so large that their units pay.
    """

    def __init__(self, sizes: ColumnSizes, dtype: npt.DTypeLike) -> None:
        self.units: Floats = np.ldexp(1.0, sizes.exponents(dtype))[:, np.newaxis]
        scaled = float((sizes.squares / (self.units * self.units)[:, 0]).sum())
        self.mean_square = scaled / max(1, sizes.n_rows)
        self.is_needed = float(sizes.squares.sum()) > _LEAST * scaled

    @classmethod
    def of(cls, rows: Rows, n_weights: int) -> "Metric":
        """Return the units for rows; all are 1 if others lie between them in memory."""
        sizes, dtype = ColumnSizes(n_weights), np.dtype("float32")
        if rows.values is not None and len(rows) and rows.nnz == _span(rows)[1] - _span(rows)[0]:
            sizes.add(rows)
            dtype = rows.values.dtype
        return cls(sizes, dtype)

    @contextmanager
    def applied(self, rows: Rows) -> Iterator[None]:
        """Divide the values of rows by the units, and multiply them again in the end."""
        part = slice(*_span(rows))
        assert rows.values is not None
        multiply(rows.indices[part], rows.values[part], 1.0 / self.units[:, 0])
        try:
            yield
        finally:
            multiply(rows.indices[part], rows.values[part], self.units[:, 0])


def multiply(
    indices: npt.NDArray[np.int32], values: npt.NDArray[np.floating], factors: Floats
) -> None:
    """Multiply values in place, each by the factor of its feature."""
    few = factors.astype(values.dtype)
    for first in range(0, len(values), _PIECE):
        part = slice(first, first + _PIECE)
        values[part] *= few[indices[part]]


def _span(rows: Rows) -> tuple[int, int]:
    """Return where the nonzeros of rows begin and end."""
    return int(rows.starts.min()), int((rows.starts + rows.lengths).max())


def _pieces(rows: Rows) -> Iterator[slice]:
    """Yield the places of the nonzeros of rows, some at a time."""
    begin, end = _span(rows)
    for first in range(begin, end, _PIECE):
        yield slice(first, min(first + _PIECE, end))
