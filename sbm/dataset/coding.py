"""Reading the sources of a split, once or twice, with parsing in threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.dataset.newlabels import NewLabels
from sbm.dataset.options import SplitOptions, check_ids
from sbm.engine.machine import interpreter_bytes
from sbm.engine.progress import Progress
from sbm.errors import DataError, MemoryPlanError, SettingsError
from sbm.inputs.columns.words import WordTable
from sbm.inputs.formats import convert_inputs, is_table
from sbm.inputs.idtable import IdTable
from sbm.inputs.nametable import LabelWords, NameTable, NewNames
from sbm.inputs.parsing import ParsedText
from sbm.inputs.text import PIECE, Source
from sbm.plain import dataclass
from sbm.store.container import Buffers
from sbm.units import count, format_size

kernels = load("sbm.inputs.kernels.ids")


class FeatureCounter:
    """Counts the rows of each feature, without keeping rows.

    Parameters
    ----------
    ids : IdTable
        With `append`, the ids of the store, which are kept however few new rows have them.
    names : NameTable or WordTable, optional
        Receives the names of features.

    Attributes
    ----------
    ids : IdTable
    n_rows, nnz : int
        Totals so far.
    """

    def __init__(
        self, ids: IdTable, options: SplitOptions, names: NameTable | WordTable | None = None
    ) -> None:
        self.ids, self._names = ids, names
        self._n_known = len(ids)
        self._options = options
        self._counts = np.zeros(max(1024, len(ids)), np.int32)
        self.n_rows = 0
        self.nnz = 0

    def add(self, text: CodedText, text_share: float) -> None:
        """Count a piece of text. An id occurs at most once per row."""
        text.complete(self.ids)
        if len(self.ids) > len(self._counts):
            counts = np.zeros(2 * len(self.ids), np.int32)
            counts[: len(self._counts)] = self._counts
            self._counts = counts
        add_names(self._names, text)
        check_ids(self.ids, self._options, self._counts.nbytes, self._names)
        kernels.count(text.indices, self._counts, self._options.min_count)
        self.n_rows += len(text.labels)
        self.nnz += len(text.indices)

    def forget_rare(self) -> int:
        """Remove rare ids from the table and return their number.

        The other ids keep their order, as if the text did not contain the rare ones.
        """
        frequent = self._counts[: len(self.ids)] >= self._options.min_count
        frequent[: self._n_known] = True
        rare = self.ids.keys[~frequent]
        self.ids.keep(frequent)
        if isinstance(self._names, WordTable):
            self.ids.intern(self._names.forget(rare))
        return len(rare)


@dataclass(frozen=True)
class Counted:
    """Result of the first of two readings."""

    sources: list[Source]  # the sources at that time
    n_rare: int  # number of rare features, which are dropped
    nnz: int  # nonzeros, including those of rare features


def count_features(
    sources: list[Source],
    ids: IdTable,
    options: SplitOptions,
    pool: ThreadPoolExecutor,
    progress: Progress,
) -> Counted:
    """Read the sources a first time to find the ids to keep.

    Parameters
    ----------
    sources, options, pool, progress
        As in `read_sources`.
    ids : IdTable
        Receives the ids to keep.
    """
    again = [source.again() for source in sources]  # the counters are for the second reading
    counter = FeatureCounter(ids, options, names_of_features(sources))
    read_sources("count", again, counter, options, pool, progress)
    n_rare = counter.forget_rare()
    if n_rare and not len(ids):
        rare = count(n_rare, "feature")
        progress.stage(f"warning: --min-count {options.min_count} drops all of {rare}")
    return Counted(again, n_rare, counter.nnz)


def refuse_changed_sources(sources: list[Source], counted: Counted) -> None:
    """Raise `DataError` if a source changed after it was counted."""
    for before, source in zip(counted.sources, sources, strict=True):
        if before.sha256 != source.sha256:
            raise DataError(
                f"{source.name} changed between the two readings that --min-count needs; "
                "run the command again when it is complete"
            )


MOST_LABELS = 65536  # with more distinct labels, they are real numbers, not classes


@dataclass(frozen=True)
class CodedText:
    """The rows of a piece of text, with codes for the known ids.

    Attributes
    ----------
    names, weights
        As in `ParsedText`.
    """

    labels: npt.NDArray[np.float64]  # shape (n_rows,)
    indptr: npt.NDArray[np.int64]  # shape (n_rows + 1,)
    indices: npt.NDArray[np.int32]  # shape (nnz,)
    values: npt.NDArray[np.floating] | None  # shape (nnz,); None when every value is 1
    # shape (n_unknown,); positions in `indices` without a code, in order
    unknown: npt.NDArray[np.int32]
    unknown_ids: npt.NDArray[np.int64]  # shape (n_unknown,)
    names: NewNames | None = None
    weights: npt.NDArray[np.float64] | None = None

    @classmethod
    def of(cls, parsed: ParsedText, ids: IdTable, buffers: Buffers) -> CodedText:
        """Look up the ids and copy the rows; may run in any thread."""

        def kept(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            copy = buffers.take(len(array), array.dtype)
            copy[:] = array
            return copy

        indices = buffers.take(len(parsed.ids), np.int32)
        places = buffers.take(len(parsed.ids), np.int32)
        unknown = ids.look_up(parsed.ids, indices, places)
        buffers.give_back(places)
        values = None if parsed.values is None else kept(parsed.values)
        weights = None if parsed.weights is None else kept(parsed.weights)
        return cls(
            kept(parsed.labels), kept(parsed.indptr), indices, values, unknown,
            parsed.ids[unknown], parsed.names, weights,
        )  # fmt: skip

    def give_back(self, buffers: Buffers) -> None:
        """Return the arrays to the buffers."""
        buffers.give_back(self.labels, self.indptr, self.indices, self.values, self.weights)

    def complete(self, ids: IdTable) -> None:
        """Assign codes to the unknown ids. Call for each piece in the order of the text."""
        if len(self.unknown):
            self.indices[self.unknown] = ids.intern(self.unknown_ids)

    def without_unknown(self, ids: IdTable, buffers: Buffers) -> CodedText:
        """Drop the nonzeros whose id is not in `ids`, which must not change; may run in any thread.

        Reuses the arrays of this object. If all remaining values are 1 (as float32, which the
        parser does not check), the result has no values.
        """
        if len(self.unknown):  # `look_up` does not find large ids
            self.indices[self.unknown] = ids.find(self.unknown_ids)
        nnz, ones = kernels.drop_unknown(self.indptr, self.indices, self.values)
        if ones:
            buffers.give_back(self.values)
        values = None if ones or self.values is None else self.values[:nnz]
        nothing = slice(0)
        return replace(
            self, indices=self.indices[:nnz], values=values, unknown=self.unknown[nothing],
            unknown_ids=self.unknown_ids[nothing],
        )  # fmt: skip


def add_names(names: NameTable | WordTable | None, text: CodedText) -> None:
    """Add the names of new features to a table. Call in the order of the text."""
    if isinstance(names, NameTable) and text.names is not None:
        names.add(*text.names)


def names_of_features(sources: Sequence[Source]) -> NameTable | WordTable | None:
    """Return the table that receives the names of features; None if they are not kept."""
    options = sources[0].options
    return options.table.words if is_table(sources[0]) else options.names


class Labels:
    """Class codes in order of first appearance; real-valued after `MOST_LABELS` distinct labels."""

    def __init__(self, values: Sequence[float] | None, counts: Sequence[int]) -> None:
        self.real = values is None
        known = np.array(values or [], np.float64)
        self._table = IdTable(known.view(np.int64))
        self._counts = np.zeros(MOST_LABELS + 1, np.int64)
        self._counts[: len(counts)] = counts

    def encode(self, labels: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Return codes, shape (n,), int32; or the labels themselves if they are real-valued."""
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

    def describe(
        self, words: LabelWords | None = None, before: Sequence[str] = ()
    ) -> dict[str, Any] | None:
        """Return the entry for the manifest; None for real-valued labels.

        Parameters
        ----------
        words : LabelWords, optional
            How labels became numbers. Words in `before` keep their numbers; the others get the
            next ones in alphabetical order.
        before : sequence of str
            Words of the store.

        Raises
        ------
        DataError
            There are too many words.
        """
        if self.real:
            if words is not None and words.numbers:
                raise DataError(
                    f"found more than {MOST_LABELS} distinct labels that are words; choose another "
                    "column with --label"
                )
            return None
        entry = {"values": self.values, "counts": self._counts[: len(self._table)].tolist()}
        if words is None or not words.numbers:
            return entry
        names = [*before, *sorted({*words.numbers} - {*before})]
        final = {words.numbers[name]: float(k) for k, name in enumerate(names)}
        return {**entry, "values": [final[v] for v in self.values], "names": names}


class Taker(Protocol):
    """A `Dealer` or a `FeatureCounter`."""

    ids: IdTable
    n_rows: int

    def add(self, text: CodedText, text_share: float) -> None:
        """Add a piece of text; `text_share` is the fraction of the input read so far."""


def read_sources(
    what: str,
    sources: list[Source],
    taker: Taker,
    options: SplitOptions,
    pool: ThreadPoolExecutor,
    progress: Progress,
    only_known: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    new_labels: NewLabels | None = None,
) -> None:
    """Parse all sources and pass the pieces to a taker.

    Parameters
    ----------
    what : str
        Name of the step for `progress`.
    taker : Taker
        Receives the pieces, in order.
    pool : ThreadPoolExecutor
        Threads for parsing.
    progress : Progress
        Receives the bytes read.
    only_known : bool
        Drop features that are not in the table of the taker.
    is_stopped : callable
        Called after each piece.
    new_labels : NewLabels, optional
        Refuses labels.

    Raises
    ------
    DataError
        A label is refused, or the input is invalid.
    KeyboardInterrupt
        `is_stopped` returned true.
    """
    sources[0].options.table.restart()
    known = all(s.size for s in sources)
    total = sum(s.size for s in sources)
    progress.start(what, total if known else None)
    buffers = Buffers(PIECE)

    def coded(parsed: ParsedText) -> CodedText:
        text = CodedText.of(parsed, taker.ids, buffers)
        return text.without_unknown(taker.ids, buffers) if only_known else text

    pieces = convert_inputs(
        sources, pool, coded, ahead=options.threads + 1, dtype=options.dtype, skip=options.skip,
        largest_line=max(PIECE, (options.mem - interpreter_bytes()) // 12),
    )  # fmt: skip
    with contextlib.closing(pieces):
        for source, text in pieces:
            if new_labels is not None and new_labels.look(source, text.labels) is not None:
                raise new_labels.error(source)
            done = sum(s.parsed for s in sources)
            if len(text.labels):
                taker.add(text, done / total if known else 0.0)
            text.give_back(buffers)
            progress.advance(done, rows=taker.n_rows)
            if is_stopped():
                raise KeyboardInterrupt
    progress.finish()


def refuse_once_only(sources: list[Source]) -> None:
    """Check that all sources can be read twice.

    Raises
    ------
    SettingsError
        A source can be read only once.
    """
    for source in sources:
        if source.chunks is not None and not source.comes_again:
            raise SettingsError(
                "an iterator of chunks can be read only once, but min_count reads twice; pass a "
                "list, or an object whose __iter__ starts over"
            )
        if not source.comes_again:
            raise SettingsError(
                f"{source.shown} can be read only once, but --min-count reads twice; "
                "write the text to a file first"
            )


def require_second_reading(sources: list[Source], options: SplitOptions) -> None:
    """Raise `MemoryPlanError` if a source that cannot be read again has been read."""
    for source in sources:
        if source.read and not source.comes_again:
            raise MemoryPlanError(
                f"out of memory with --mem {format_size(options.mem)} while reading {source.name}, "
                "which cannot be read again; lower --mem, or raise the memory limit of this "
                "process",
                options.mem,
            )
