"""Dual variables of the rows of a block: one per row, or a short list per row."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sbm.plain import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


@dataclass
class Dense:
    """One variable per row.

    Attributes
    ----------
    values : ndarray, shape (n_rows,), float64
    """

    values: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.values.nbytes

    def part(self, first: int, n_rows: int) -> Dense:
        """Return the variables of `n_rows` rows starting at `first`, as a view."""
        return Dense(self.values[first : first + n_rows])

    def take(self, rows: npt.NDArray[np.integer]) -> Dense:
        """Return a copy of the variables of the given rows, in order."""
        return Dense(self.values[rows])

    def put(self, rows: npt.NDArray[np.integer], others: Alphas) -> None:
        """Replace the variables of the given rows."""
        assert isinstance(others, Dense)
        self.values[rows] = others.values

    def times(self, factor: float) -> Dense:
        """Return a copy multiplied by a factor."""
        return Dense(self.values * factor)

    def clear(self) -> None:
        """Set all variables to 0."""
        self.values[:] = 0.0


@dataclass
class Lists:
    """A list of (output, variable) per row, of the nonzero variables, sorted by output.

    Attributes
    ----------
    offsets : ndarray, shape (n_rows + 1,), int64
        Row i has ``outputs[offsets[i] : offsets[i + 1]]``. `outputs` and `values` may have more
        rows.
    outputs : ndarray, shape (n,), int32
    values : ndarray, shape (n,), float64
    """

    offsets: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.int32]
    values: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.offsets.nbytes + 12 * int(self.offsets[-1] - self.offsets[0])

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Length of each list, shape (n_rows,)."""
        return np.diff(self.offsets)

    def part(self, first: int, n_rows: int) -> Lists:
        """Return the lists of `n_rows` rows starting at `first`, as views."""
        return Lists(self.offsets[first : first + n_rows + 1], self.outputs, self.values)

    def take(self, rows: npt.NDArray[np.integer]) -> Lists:
        """Return a copy of the lists of the given rows, in order."""
        counts = self.counts[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        where = np.repeat(self.offsets[rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        return Lists(offsets, self.outputs[where], self.values[where])

    def put(self, rows: npt.NDArray[np.integer], others: Alphas) -> None:
        """Replace the lists of the given rows; allocates new arrays.

        If a row is given twice, the last list counts.
        """
        assert isinstance(others, Lists)
        if len(rows) == 0:
            return
        sources = np.arange(len(self))
        sources[rows] = np.arange(len(self), len(self) + len(others))
        every = join([self, others])
        assert isinstance(every, Lists)
        mixed = every.take(sources)
        self.set(mixed.offsets, mixed.outputs, mixed.values)

    def times(self, factor: float) -> Lists:
        """Return a copy multiplied by a factor; offsets and outputs are shared."""
        return Lists(self.offsets, self.outputs, self.values * factor)

    def set(
        self,
        offsets: npt.NDArray[np.int64],
        outputs: npt.NDArray[np.int32],
        values: npt.NDArray[np.float64],
    ) -> None:
        """Replace all lists."""
        self.offsets, self.outputs, self.values = offsets, outputs, values

    def clear(self) -> None:
        """Make all lists empty."""
        self.set(np.zeros_like(self.offsets), np.empty(0, np.int32), np.empty(0))


Alphas: TypeAlias = Dense | Lists


def join(parts: Sequence[Alphas]) -> Alphas:
    """Concatenate the variables of several sets of rows; return a copy."""
    dense = [part.values for part in parts if isinstance(part, Dense)]
    if len(dense) == len(parts):
        return Dense(np.concatenate(dense))
    lists = [part for part in parts if isinstance(part, Lists)]
    own = [slice(part.offsets[0], part.offsets[-1]) for part in lists]
    offsets = np.cumsum(np.concatenate([[0], *(part.counts for part in lists)]))
    return Lists(
        offsets,
        np.concatenate([part.outputs[s] for part, s in zip(lists, own, strict=True)]),
        np.concatenate([part.values[s] for part, s in zip(lists, own, strict=True)]),
    )


def cut(alpha: Alphas, sizes: Sequence[int]) -> list[Alphas]:
    """Undo `join`, given the number of rows of each part; return views."""
    firsts = itertools.accumulate(sizes[:-1], initial=0)
    parts = [alpha.part(first, size) for first, size in zip(firsts, sizes, strict=True)]
    for part in parts:
        if isinstance(part, Lists):
            outputs, values = _own(part)
            part.set(part.offsets - part.offsets[0], outputs, values)
    return parts


def blend(old: Alphas, new: Alphas, share: float) -> Alphas:
    """Return ``old + share (new - old)``, each variable between the two.

    Parameters
    ----------
    old, new : Alphas
        Of the same rows.
    share : float
        From 0 to 1.
    """
    if isinstance(old, Dense):
        assert isinstance(new, Dense)
        return Dense(_between(old.values, new.values, share))
    assert isinstance(new, Lists)
    n = 1 + max(int(one.outputs.max(initial=0)) for one in (old, new))
    keys = [np.repeat(np.arange(len(one)), one.counts) * n + _own(one)[0] for one in (old, new)]
    both = np.union1d(*keys)
    values = np.zeros((2, len(both)))
    for row, key, one in zip(values, keys, (old, new), strict=True):
        row[np.searchsorted(both, key)] = _own(one)[1]
    mixed = _between(values[0], values[1], share)
    both, mixed = both[mixed != 0], mixed[mixed != 0]
    offsets = np.searchsorted(both, np.arange(len(old) + 1, dtype=np.int64) * n)
    return Lists(offsets, (both % n).astype(np.int32), mixed)


def _own(lists: Lists) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Return outputs and values of these lists; the arrays may have more."""
    own = slice(lists.offsets[0], lists.offsets[-1])
    return lists.outputs[own], lists.values[own]


def _between(
    old: npt.NDArray[np.float64], new: npt.NDArray[np.float64], share: float
) -> npt.NDArray[np.float64]:
    """Interpolate, clipped to the two ends, so that rounding never crosses a bound."""
    mixed: npt.NDArray[np.float64] = old + share * (new - old)
    return np.clip(mixed, np.minimum(old, new), np.maximum(old, new))


def no_alphas(n_rows: int, listed: bool) -> Alphas:
    """Return variables that are all 0: lists, or one variable per row."""
    if not listed:
        return Dense(np.zeros(n_rows))
    return Lists(np.zeros(n_rows + 1, np.int64), np.empty(0, np.int32), np.empty(0))
