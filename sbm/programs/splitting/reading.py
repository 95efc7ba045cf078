"""Reading: sources parsed in threads and handed on, once or twice."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.engine.memory import INTERPRETER
from sbm.engine.progress import Progress
from sbm.errors import DataError, MemoryPlanError, SettingsError
from sbm.inputs.formats import convert_inputs
from sbm.inputs.idtable import IdTable, count_codes, drop_unknown
from sbm.inputs.parsing import ParsedText
from sbm.inputs.text import PIECE, Source
from sbm.programs.splitting.options import SplitOptions, check_ids
from sbm.store.container import Buffers
from sbm.units import format_size

__all__ = [
    "CodedText", "Counted", "Labels", "count_features", "read_sources",
    "refuse_changed_sources", "refuse_once_only", "require_second_reading",
]  # fmt: skip


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
    """Read the sources a first time, and put the ids that are to be kept into the table.

    Parameters
    ----------
    sources, options, pool, progress
        Of the split.
    ids : IdTable
        Gets the ids.

    Returns
    -------
    Counted
    """
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


MOST_LABELS = 65536  # more distinct labels than this are real numbers, not classes


@dataclass(frozen=True)
class CodedText:
    """The rows of a piece of text, with codes for the ids that were known.

    Attributes
    ----------
    labels : ndarray, shape (n_rows,), float64
    indptr : ndarray, shape (n_rows + 1,), int64
    indices : ndarray, shape (nnz,), int32
    values : ndarray, shape (nnz,), float32 or float64, or None
        None when every value is 1.
    unknown : ndarray, shape (n_unknown,), int32
        Where `indices` lacks a code, in order.
    unknown_ids : ndarray, shape (n_unknown,), int64
    """

    labels: npt.NDArray[np.float64]
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating] | None
    unknown: npt.NDArray[np.int32]
    unknown_ids: npt.NDArray[np.int64]

    @classmethod
    def of(cls, parsed: ParsedText, ids: IdTable, buffers: Buffers) -> CodedText:
        """Look ids up, in any thread; nothing of `parsed` is kept."""

        def kept(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            copy = buffers.take(len(array), array.dtype)
            copy[:] = array
            return copy

        indices = buffers.take(len(parsed.ids), np.int32)
        unknown = ids.look_up(parsed.ids, indices)
        values = None if parsed.values is None else kept(parsed.values)
        return cls(
            kept(parsed.labels), kept(parsed.indptr), indices, values, unknown, parsed.ids[unknown]
        )

    def give_back(self, buffers: Buffers) -> None:
        """Let the arrays be used again."""
        buffers.give_back(self.labels, self.indptr, self.indices, self.values)

    def complete(self, ids: IdTable) -> None:
        """Give codes to the ids that had none, piece after piece in the order of the text."""
        if len(self.unknown):
            self.indices[self.unknown] = ids.intern(self.unknown_ids)

    def without_unknown(self, ids: IdTable, buffers: Buffers) -> CodedText:
        """Leave out what is not in `ids`, which nobody adds to any more; in any thread.

        The arrays of this one are used up. Values are looked at anew: where those that were not 1
        are all left out, a store of ones needs to keep none (1.00000001, which float32 rounds to
        1, is no reason either, though it is one for the parser).
        """
        if len(self.unknown):  # large ids among them may be known
            self.indices[self.unknown] = ids.find(self.unknown_ids)
        nnz, ones = drop_unknown(self.indptr, self.indices, self.values)
        if ones:
            buffers.give_back(self.values)
        values = None if ones or self.values is None else self.values[:nnz]
        nothing = slice(0)
        return replace(
            self, indices=self.indices[:nnz], values=values, unknown=self.unknown[nothing],
            unknown_ids=self.unknown_ids[nothing],
        )  # fmt: skip


class Labels:
    """Class codes in order of first appearance, until there are too many to be classes."""

    def __init__(self, values: Sequence[float] | None, counts: Sequence[int]) -> None:
        self.real = values is None
        known = np.array(values or [], np.float64)
        self._table = IdTable(known.view(np.int64))
        self._counts = np.zeros(MOST_LABELS + 1, np.int64)
        self._counts[: len(counts)] = counts

    def encode(self, labels: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Codes, shape (n,), int32; the labels themselves once they are real-valued."""
        if self.real:
            return labels
        plain = labels + 0.0  # -0.0 and 0.0 are one label
        codes = self._table.intern(plain.view(np.int64))
        if len(self._table) > MOST_LABELS:
            self.real = True
            return labels
        self._counts[: len(self._table)] += np.bincount(codes, minlength=len(self._table))
        return codes

    @property
    def values(self) -> list[float]:
        """Label of each code."""
        return list(self._table.keys[:MOST_LABELS].view(np.float64).tolist())

    def describe(self) -> dict[str, Any] | None:
        """What the manifest keeps; None for real-valued labels."""
        if self.real:
            return None
        return {"values": self.values, "counts": self._counts[: len(self._table)].tolist()}


class Taker(Protocol):
    """A dealer, or what counts before it."""

    ids: IdTable
    n_rows: int

    def add(self, text: CodedText, text_share: float) -> None: ...


def read_sources(
    what: str,
    sources: list[Source],
    taker: Taker,
    options: SplitOptions,
    pool: ThreadPoolExecutor,
    progress: Progress,
    only_known: bool = False,
) -> None:
    """Parse everything and hand it over.

    Parameters
    ----------
    what : str
        What progress calls it.
    sources, options, pool, progress
        Of the split.
    taker : Taker
        Is given the pieces, in order.
    only_known : bool
        Leave out the features that are in no table.
    """
    known = all(s.size for s in sources)
    total = sum(s.size for s in sources)
    progress.start(what, total if known else None)
    buffers = Buffers(PIECE)

    def coded(parsed: ParsedText) -> CodedText:
        text = CodedText.of(parsed, taker.ids, buffers)
        return text.without_unknown(taker.ids, buffers) if only_known else text

    pieces = convert_inputs(
        sources, pool, coded, ahead=options.threads + 1, dtype=options.dtype, skip=options.skip,
        largest_line=max(PIECE, (options.mem - INTERPRETER) // 12),
    )  # fmt: skip
    with contextlib.closing(pieces):
        for _, text in pieces:
            done = sum(s.parsed for s in sources)
            if len(text.labels):
                taker.add(text, done / total if known else 0.0)
            text.give_back(buffers)
            progress.advance(done, rows=taker.n_rows)
    progress.finish()


def refuse_once_only(sources: list[Source]) -> None:
    """Notice what cannot be read twice, before the first reading.

    Raises
    ------
    SettingsError
        There is something.
    """
    for source in sources:
        if source.chunks is not None and not source.comes_again:
            raise SettingsError(
                "an iterator of chunks can be read only once, and min_count reads twice; give a "
                "list, or an object whose __iter__ begins anew"
            )
        if not source.comes_again:
            raise SettingsError(
                f"{source.shown} can be read only once, and --min-count reads twice; "
                "write the text to a file first"
            )


def require_second_reading(sources: list[Source], options: SplitOptions) -> None:
    """Notice that memory ran out when something was gone that is read only once."""
    for source in sources:
        if source.read and not source.comes_again:
            raise MemoryPlanError(
                f"memory ran out while reading {source.name}, with --mem "
                f"{format_size(options.mem)}, and it cannot be read again; give less --mem than "
                "that, or raise the limit on this process",
                options.mem,
            )
