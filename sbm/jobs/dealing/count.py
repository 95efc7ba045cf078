"""Counting: how many rows of a text have each feature, before any of them is dealt."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sbm.errors import DataError
from sbm.jobs.dealing.coding import CodedText
from sbm.jobs.dealing.options import SplitOptions, check_ids
from sbm.jobs.dealing.reading import read_sources
from sbm.jobs.progress import Progress
from sbm.store.idtable import IdTable, count_codes
from sbm.store.text import Source

__all__ = ["Counted", "count_features", "refuse_changed_sources"]


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


@dataclass(frozen=True)
class Counted:
    """What the first of two readings found.

    Attributes
    ----------
    sources : list of Source
        The sources as they were then.
    n_rare : int
        Features to leave out.
    nnz : int
        Nonzeros, those of rare features included.
    """

    sources: list[Source]
    n_rare: int
    nnz: int


def count_features(
    sources: list[Source],
    ids: IdTable,
    options: SplitOptions,
    pool: ThreadPoolExecutor,
    progress: Progress,
) -> Counted:
    """Read the sources a first time, and put the ids that are to be kept into the table."""
    again = [source.again() for source in sources]  # what the second reading counts is kept
    counter = FeatureCounter(ids, options)
    read_sources("count", again, counter, options, pool, progress)
    return Counted(again, counter.forget_rare(), counter.nnz)


def refuse_changed_sources(sources: list[Source], counted: Counted) -> None:
    """Notice text that is not the text that was counted."""
    for before, source in zip(counted.sources, sources, strict=True):
        if before.sha256 != source.sha256:
            raise DataError(
                f"{source.name} changed between the two readings that --min-count takes; "
                "split it again when it is complete"
            )
