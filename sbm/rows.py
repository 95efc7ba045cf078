"""Labelled sparse rows in memory, in slices of shared arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SPARE = 16  # nonzeros that kernels may overwrite after the cache, and read after the arena's end


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

    def part(self, first: int, n_rows: int) -> "Rows":
        """Return `n_rows` rows starting at `first`, as views."""
        return self._chosen(slice(first, first + n_rows))

    def take(self, rows: npt.NDArray[np.integer]) -> "Rows":
        """Return the given rows in order; nonzeros are shared, other arrays are copies."""
        return self._chosen(rows)

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
