"""Counting: how many rows of a text have each feature, before any of them is dealt."""

import numpy as np

from sbm.jobs.dealing.deal import CodedText, SplitOptions, check_ids
from sbm.store.idtable import IdTable, count_codes

__all__ = ["FeatureCounter"]


class FeatureCounter:
    """Takes the text that a dealer will take, but keeps no row of it.

    Parameters
    ----------
    ids : IdTable
        Holds the ids of the store that is appended to; they stay, however few new rows have them.
    options : SplitOptions

    Attributes
    ----------
    ids : IdTable
    n_rows, nnz : int
        Counted so far.
    """

    def __init__(self, ids: IdTable, options: SplitOptions) -> None:
        self.ids = ids
        self._n_known = len(ids)
        self._options = options
        self._counts = np.zeros(max(1024, len(ids)), np.int32)
        self.n_rows = 0
        self.nnz = 0

    def add(self, text: CodedText, text_share: float) -> None:
        """Count a piece of text; an id is at most once in a row, so its nonzeros are its rows."""
        text.complete(self.ids)
        if len(self.ids) > len(self._counts):
            counts = np.zeros(2 * len(self.ids), np.int32)
            counts[: len(self._counts)] = self._counts
            self._counts = counts
        check_ids(self.ids, self._options, self._counts.nbytes)
        count_codes(text.indices, self._counts, self._options.min_count)
        self.n_rows += len(text.labels)
        self.nnz += len(text.indices)

    def forget_rare(self) -> int:
        """Leave the ids that are to be kept in the table; return how many others there were.

        They keep their order, which is that in which a text without the others brings them.
        """
        frequent = self._counts[: len(self.ids)] >= self._options.min_count
        frequent[: self._n_known] = True
        self.ids.keep(frequent)
        return int(np.count_nonzero(~frequent))
