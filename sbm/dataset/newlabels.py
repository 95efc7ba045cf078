"""New labels in later files, which are often another coding of the same classes.

A store has its labels. A file to append that brings others is refused: it has 0 and 1 where the
store has -1 and 1, say. Of several files that are read together, the first ones may have only some
of many classes, and each may have a class of its own. So these are refused only if the files before
have exactly two labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.text import Source
from sbm.units import format_number, list_some

# Up to _FEW whole numbers are classes, and more than _MANY are targets. In between, they are
# targets if they have fewer than two rows each on average.
_FEW, _MANY = 20, 1000


def look_like_targets(labels: Sequence[float], counts: Sequence[int]) -> bool:
    """Return whether labels with these row counts look like targets, not classes."""
    n = len(labels)
    is_whole = all(float(label).is_integer() for label in labels)
    return not is_whole or n > _MANY or (n > _FEW and 2 * n > sum(counts))


class NewLabels:
    """Refuses labels of a file that files before do not have.

    Parameters
    ----------
    known : iterable of float
        Labels before the first source.
    store : str
        Name of the store that has these labels, to which sources are appended; empty if there is
        none.
    here : iterable of float
        Labels of the first source that were read earlier.
    here_of : str
        Path of the source that has these.
    is_pair : bool
        Whether a source before has two labels or more.
    text : callable
        Returns a label as text.

    Attributes
    ----------
    is_pair : bool
        Whether one of the sources before the current one has two labels or more.
    """

    def __init__(
        self,
        known: Iterable[float] = (),
        *,
        store: str = "",
        here: Iterable[float] = (),
        here_of: str = "",
        is_pair: bool = False,
        text: Callable[[float], str] = format_number,
    ) -> None:
        self._before, self._here, self.is_pair = set(known), set(here), is_pair
        self._store, self._text, self._here_of = store, text, here_of
        self._source: Source | None = None
        self._rows = 0  # of the current source
        self._first: tuple[int, float] | None = None  # row and label that is new in it

    @property
    def n_before(self) -> int:
        """Number of labels of the sources before the current one."""
        return len(self._before)

    @property
    def current(self) -> str:
        """Path of the current source."""
        return self._here_of if self._source is None else self._source.path

    def look(self, source: Source, labels: npt.NDArray[np.float64], first: int = 0) -> int | None:
        """Return the first of some rows at which a source is refused; None if it is not.

        Parameters
        ----------
        source : Source
            Rows of a source come together.
        labels : ndarray, shape (n,), float64
            Labels of its next rows.
        first : int
            Number of its rows that were read earlier.
        """
        if source is not self._source:
            goes_on = first > 0 or (source.path == self._here_of and source.comes_again)
            if self._source is not None or not goes_on:
                self._begin_next()
            self._source, self._rows = source, first
        begin, self._rows = self._rows, self._rows + len(labels)
        values, rows = np.unique(labels + 0.0, return_index=True)
        for row, label in sorted(zip(rows.tolist(), values.tolist(), strict=True)):
            if label in self._here:
                continue
            self._here.add(label)
            if self._first is None and label not in self._before:
                self._first = begin + row, label
            if self._is_refused():
                return int(row)
        return None

    def _begin_next(self) -> None:
        self.is_pair = self.is_pair or len(self._here) > 1
        self._before |= self._here
        self._here, self._first = set(), None

    def _is_refused(self) -> bool:
        before, here = self._before, self._here
        if here <= before or not before or not all(label.is_integer() for label in before):
            return False
        if self._store:  # a store of one label may get a second one
            return len(before | here) > 2
        return len(before) == 2 and (self.is_pair or len(here) > 1)

    def error(self, source: Source) -> DataError:
        """Return the error after `look` has refused a source."""
        row, new = self._first or (0, next(iter(self._here - self._before)))
        texts = [self._text(label) for label in sorted(self._before)]
        known = list_some(texts)
        found = f"{source.shown}: row {row + 1} has the label {self._text(new)}, but the labels of"
        if self._store:
            return DataError(
                f"{found} {self._store} are {known}; nothing was added. If the label is right, use "
                "--new-labels. If an earlier file is wrong, drop it with sbm expire "
                f"{self._store} --source FILE"
            )
        return DataError(
            f"{found} the files before are {known}. Give the classes the same labels in all files, "
            "or use --new-labels if there are more classes"
        )
