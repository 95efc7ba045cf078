"""Which rows a block consists of.

The data are divided into parts, once and for all: a row is always row i of part j, wherever it is.
A block, the unit of Algorithm 1, is some parts that are loaded together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sbm.plain import dataclass

__all__ = ["Block"]


@dataclass(frozen=True)
class Block:
    """The parts of a block.

    Attributes
    ----------
    parts : tuple of int
        Numbers of the parts, in the order of their rows.
    firsts : ndarray, shape (len(parts) + 1,), int64
        Position of the first row of each part in the block, then the number of all rows.
    at : ndarray, shape (n_parts,), int32
        The same for all parts of the data, by number; -1 for parts that are not in the block.
    """

    parts: tuple[int, ...]
    firsts: npt.NDArray[np.int64]
    at: npt.NDArray[np.int32]

    @classmethod
    def of(cls, parts: Sequence[int], rows: Sequence[int]) -> Block:
        """Return the block of some parts, given the rows of all parts of the data."""
        firsts = np.cumsum([0, *(rows[part] for part in parts)], dtype=np.int64)
        at = np.full(len(rows), -1, np.int32)
        at[list(parts)] = firsts[:-1]
        return cls(tuple(parts), firsts, at)

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def slices(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, first row and number of rows of each part."""
        firsts = self.firsts.tolist()
        for part, first, end in zip(self.parts, firsts[:-1], firsts[1:], strict=True):
            yield part, first, end - first

    def find(
        self, home: npt.NDArray[np.int32], row: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Find rows in the block.

        Parameters
        ----------
        home, row : ndarray, shape (n,), int32
            Part of each row, and its position there.

        Returns
        -------
        which : ndarray of int64
            Which of these rows are in the block.
        places : ndarray of int32
            Their positions in the block.
        """
        begins = self.at[home]
        which = np.flatnonzero(begins >= 0)
        return which, begins[which] + row[which]
