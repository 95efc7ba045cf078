"""Labelled sparse rows in memory, in slices of shared arrays."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.plain import dataclass

SPARE = 16  # nonzeros that kernels may overwrite after the cache, and read after the arena's end

_FEW = 1 << 16  # rows that are looked at together, so that what is computed of them is small

_ONE = np.ones(1)


def few_at_a_time(n: int) -> Iterator[slice]:
    """Yield slices of n rows, for what takes memory for each row that is not planned."""
    return (slice(first, min(n, first + _FEW)) for first in range(0, n, _FEW))


def factors_of(weights: npt.NDArray[np.float64] | None) -> npt.NDArray[np.float64]:
    """Return weights of rows as kernels take them: an array of one 1 if every weight is 1."""
    return _ONE if weights is None else weights


@dataclass
class Rows:
    """Labelled sparse rows; a block, the cache and the working set are all `Rows`.

    Row i has ``indices[starts[i] : starts[i] + lengths[i]]``. `indices` and `values` may be shared
    with other rows, so a row can be dropped or moved by changing only its start.
    """

    starts: npt.NDArray[np.int64]  # shape (n_rows,)
    lengths: npt.NDArray[np.int32]  # shape (n_rows,)
    # feature indices (codes, not ids), strictly increasing within a row
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating] | None  # None if every value is 1
    # shape (n_rows,); class codes, or real-valued targets
    y: npt.NDArray[np.int32] | npt.NDArray[np.float64]
    # shape (n_rows,); factor of each row's cost; None if every factor is 1
    weights: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def factors(self) -> npt.NDArray[np.float64]:
        """The weights as kernels take them; see `factors_of`."""
        return factors_of(self.weights)

    def part(self, first: int, n_rows: int) -> "Rows":
        """Return `n_rows` rows starting at `first`, as views."""
        return self._chosen(slice(first, first + n_rows))

    def take(self, rows: npt.NDArray[np.integer]) -> "Rows":
        """Return the given rows in order; nonzeros are shared, other arrays are copies."""
        return self._chosen(rows)

    def copy_from(self, others: "Rows") -> None:
        """Become as many other rows of the same arena; nonzeros are shared."""
        self.starts[:], self.lengths[:], self.y[:] = others.starts, others.lengths, others.y
        if self.weights is not None:
            self.weights[:] = others.factors

    def _chosen(self, own: slice | npt.NDArray[np.integer]) -> "Rows":
        weights = None if self.weights is None else self.weights[own]
        starts, lengths, y = self.starts[own], self.lengths[own], self.y[own]
        return Rows(starts, lengths, self.indices, self.values, y, weights)

    @property
    def nnz(self) -> int:
        """Number of nonzeros of these rows."""
        return int(self.lengths.sum(dtype=np.int64))


@dataclass
class Arena:
    """One pair of arrays with the nonzeros of several sets of rows.

    In training the cache is at the front, followed by `SPARE` entries, the block buffers and
    `SPARE` more entries. So kernels use one pair of arrays, and merging a block with the cache
    copies no nonzeros (SBM 2011, section 5.1).
    """

    indices: npt.NDArray[np.int32]  # shape (capacity,)
    values: npt.NDArray[np.floating] | None  # shape (capacity,)

    @classmethod
    def of(cls, capacity: int, value_type: str) -> "Arena":
        """Return an arena for `capacity` nonzeros of ``ones``, ``float32`` or ``float64``."""
        values = None if value_type == "ones" else np.empty(capacity, value_type)
        return cls(np.empty(capacity, np.int32), values)

    def part(self, first: int, capacity: int) -> "Arena":
        """Return `capacity` nonzeros starting at `first`, as views."""
        own = slice(first, first + capacity)
        return Arena(self.indices[own], None if self.values is None else self.values[own])

    def room(self, n_rows: int, y_dtype: npt.DTypeLike = "int32", weighted: bool = False) -> Rows:
        """Return uninitialized `Rows` for `n_rows` rows with nonzeros in this arena."""
        starts, lengths = np.empty(n_rows, np.int64), np.empty(n_rows, np.int32)
        y, weights = np.empty(n_rows, y_dtype), np.empty(n_rows) if weighted else None
        return Rows(starts, lengths, self.indices, self.values, y, weights)


_AT_A_TIME = 1 << 20  # entries checked at a time


def require_rows(
    place: Callable[[int], str], n_rows: int, indptr: Any, n_ids: int, n_values: int
) -> None:
    """Check that arrays of sparse rows fit together. Kernels rely on it and check no bounds.

    Parameters
    ----------
    place : callable
        ``place(k)`` names row k in messages.
    indptr : ndarray, shape (n_rows + 1,), integers
        Must ascend from 0 to at most `n_ids` and `n_values`.
    n_ids, n_values : int
        Lengths of the arrays of ids and values.

    Raises
    ------
    DataError
        The arrays do not fit together.
    """
    if indptr.shape != (n_rows + 1,) or indptr.dtype.kind not in "iu":
        raise DataError(
            f"{place(0)}: indptr has shape {indptr.shape} and dtype {indptr.dtype}; expected "
            f"{n_rows + 1} integers"
        )
    if indptr[0] != 0:
        raise DataError(f"{place(0)}: indptr begins with {indptr[0]}; expected 0")
    n_stored = min(n_ids, n_values)
    for first in range(0, n_rows, _AT_A_TIME):
        ends = indptr[first : first + _AT_A_TIME + 1]
        wrong = (ends[1:] < ends[:-1]) | (ends[1:] > n_stored)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"{place(first + row)}: indptr goes from {ends[row]} to {ends[row + 1]}, but must "
                f"ascend up to the {n_stored} nonzeros"
            )


def require_matrix(place: str, X: Any) -> None:
    """Check a sparse matrix of scipy. Its conversions and products check no bounds.

    Parameters
    ----------
    place : str
        What messages call the matrix.
    X : scipy.sparse matrix or array

    Raises
    ------
    DataError
        Arrays of the matrix do not fit together, or an index lies outside its shape.
    """
    kind, shape = getattr(X, "format", ""), X.shape
    if kind in ("csr", "csc", "bsr"):
        indptr, indices = np.asarray(X.indptr), np.asarray(X.indices)
        _require(place, kind, np.ndim(X.data) == 1 + 2 * (kind == "bsr") and indices.ndim == 1)
        n, width = shape if kind != "csc" else shape[::-1]
        step, across = getattr(X, "blocksize", (1, 1))
        require_rows(
            lambda row: f"{place}, {'column' if kind == 'csc' else 'row'} {step * row}",
            n // step, indptr, len(indices), len(X.data),
        )  # fmt: skip
        _require_indices(place, kind, indices[: indptr[-1]], width // across)
    elif kind == "coo":
        _require(place, kind, {np.shape(part) for part in X.coords} == {(len(X.data),)})
        for part, width in zip(X.coords, shape, strict=True):
            _require_indices(place, kind, np.asarray(part), width)
    elif kind == "dia":
        _require(place, kind, X.data.ndim == 2 and np.shape(X.offsets) == X.data.shape[:1])
    elif kind == "lil":
        _require(place, kind, [*map(len, X.rows)] == [*map(len, X.data)])
        _require(place, kind, len(X.rows) == shape[0])
        columns = np.array([k for row in X.rows for k in row], np.int64)
        _require_indices(place, kind, columns, shape[1])


def _require(place: str, kind: str, is_sound: bool) -> None:
    if not is_sound:
        raise DataError(f"{place}: the arrays of the {kind} matrix do not fit together")


def _require_indices(place: str, kind: str, indices: npt.NDArray[Any], width: int) -> None:
    _require(place, kind, indices.dtype.kind in "iu")
    if not len(indices):
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= width:
        raise DataError(
            f"{place}: found index {low if low < 0 else high}; expected 0 to {width - 1}"
        )
