"""Frequencies of features in training rows, to notice at prediction that ids are shifted by one.

LIBSVM text may number features from 0 or from 1. The smallest and largest id of a small sparse text
show nothing, but a feature that most training rows had and that is missing does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.rows import Arena
from sbm.store.blocks import BlockStore

__all__ = ["FrequencyCheck", "frequencies_of"]

_MOST = 8  # features in a record
_SAMPLE = 1 << 20  # nonzeros of an input that are counted

Ints = npt.NDArray[np.int64]


def frequencies_of(store: BlockStore) -> dict[str, Any] | None:
    """Return how many rows of the first chunk have some features and their neighbours.

    Returns
    -------
    dict or None
        ``rows``, and ``counts``: lists of an id and the rows with the id before it, itself and the
        one after it, for the features that differ most from a neighbour. None if there are none.
    """
    here = store.blocks_here
    chunk = next(iter(store.chunks[here[0]]), None) if here else None
    if chunk is None or chunk.rows < 20 or not chunk.nnz:
        return None
    y_dtype = "float64" if store.labels is None else "int32"
    rows = store.read([chunk], Arena.of(chunk.nnz, store.value_type).room(chunk.rows, y_dtype), 0)
    codes, counts = np.unique(rows.indices[: chunk.nnz], return_counts=True)
    ids = store.read_feature_ids()[codes]
    order = np.argsort(ids)
    ids, counts = ids[order], counts[order]
    is_next = np.diff(ids) == 1
    before = np.concatenate([[0], np.where(is_next, counts[:-1], 0)])
    after = np.concatenate([np.where(is_next, counts[1:], 0), [0]])
    step = np.maximum(np.abs(counts - before), np.abs(counts - after))
    some = np.argsort(-step, kind="stable")[:_MOST]
    # A feature must differ from its neighbour by so much of the rows.
    some = some[step[some] >= 0.1 * chunk.rows]
    table = np.stack([ids, before, counts, after], axis=1)[some]
    return {"rows": chunk.rows, "counts": table.tolist()} if len(some) else None


class FrequencyCheck:
    """Compares the frequencies of features in the first rows of an input with those of training.

    Parameters
    ----------
    record : mapping or None
        As returned by `frequencies_of`; None disables the check.

    Attributes
    ----------
    rows : int
        Rows of the input that were counted.
    """

    def __init__(self, record: Mapping[str, Any] | None) -> None:
        n, table = 1, np.empty((0, 4), np.int64)
        if record is not None:
            # Models come from anywhere; one that is not as written has no such record.
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                n = max(1, int(record["rows"]))
                table = np.array(record["counts"], np.int64).reshape(-1, 4)[:_MOST]
        self._ids, self._known = table[:, 0], table[:, 1:] / n
        self._least = 0.5 / (n + 1)
        self._counts = np.zeros(self._known.shape, np.int64)
        self._nnz = 0
        self.rows = 0

    @property
    def is_open(self) -> bool:
        """Whether more rows should be counted."""
        return len(self._ids) > 0 and self._nnz < _SAMPLE

    def count(self, keys: Ints) -> Ints:
        """Count the ids of some rows, in any thread."""
        near = [[identity + j for j in (-1, 0, 1)] for identity in self._ids.tolist()]
        return np.array([[np.count_nonzero(keys == key) for key in some] for some in near])

    def add(self, counts: Ints, rows: int, nnz: int) -> None:
        """Add what `count` returned for rows with `nnz` ids."""
        self._counts += counts
        self.rows, self._nnz = self.rows + rows, self._nnz + nnz

    def warning(self) -> str | None:
        """Return a warning if a shift by one explains the frequencies and the ids do not."""
        if not self.rows:
            return None
        plain = self._likelihood(self._known)
        nothing = np.zeros((len(self._ids), 1))
        for by in (1, -1):
            moved = np.hstack([nothing, self._known[:, :-1]])
            where = slice(1, 3)  # the feature, and the neighbour that would be it
            if by < 0:
                moved, where = np.hstack([self._known[:, 1:], nothing]), slice(0, 2)
            gains = (self._likelihood(moved) - plain)[:, where]
            ids = (self._ids[:, np.newaxis] + np.arange(-1, 2))[:, where]
            once = np.unique(ids, return_index=True)[1]  # neighbours may be features themselves
            k = int(np.argmax(gains.sum(axis=1)))
            seen = self._counts[k] / self.rows
            is_found = 2 * seen[1 + by] > self._known[k, 1]  # else the feature is only missing
            # A shift is reported if the logarithm of its likelihood ratio is larger.
            if is_found and gains.ravel()[once].sum() > 20.0:
                return (
                    f"feature {self._ids[k]} is in {self._known[k, 1]:.0%} of the training rows, "
                    f"but in {seen[1]:.0%} of the input, where feature {self._ids[k] + by} is in "
                    f"{seen[1 + by]:.0%}; the ids look shifted by one"
                )
        return None

    def _likelihood(self, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the logarithm of the likelihood of each count, given the share of rows."""
        p = np.clip(shares, self._least, 1 - self._least)
        return np.asarray(self._counts * np.log(p) + (self.rows - self._counts) * np.log(1 - p))
