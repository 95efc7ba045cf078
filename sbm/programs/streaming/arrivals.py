"""Rows of a stream as they arrive: text is parsed ahead, rows gather in blocks in their order."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.idtable import DIRECT_LIMIT, IdTable
from sbm.inputs.live import Patience, SourceProgress
from sbm.inputs.parsing import ParsedText
from sbm.inputs.text import PIECE, Source, convert_sources
from sbm.programs.splitting.reading import CodedText, Labels
from sbm.rows import Rows
from sbm.settings import format_number
from sbm.store.container import Buffers

__all__ = [
    "ANY", "Arrays", "Arrivals", "Block", "Needs", "Reached", "Record", "TextOptions", "arrays_of",
    "sources_at",
]  # fmt: skip


Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
Record: TypeAlias = dict[str, Any]  # how far a source has come, as JSON holds it


class _Positions:
    """How far each source has come.

    Parameters
    ----------
    records : sequence of dict
        What `records` were when an earlier process ended.
    sources : sequence of Source
        A file of the same path as one of the records is read from where that ended; if there are
        several, the last ones count, in their order. A pipe brings what is new.

    Attributes
    ----------
    records : list of dict
        Of each source, those of the earlier process included.
    """

    def __init__(self, records: Sequence[Record], sources: Sequence[Source]) -> None:
        self.records = [dict(record) for record in records]
        self._numbers: dict[int, int] = {}  # of a source's record, by its identity
        left = dict(enumerate(self.records))
        for source in reversed(sources):
            known = [k for k, record in left.items() if record["path"] == source.path]
            if known and source.comes_again:
                record = left.pop(known[-1])
                self._numbers[id(source)] = known[-1]
                kept = {name: record[name] for name in asdict(SourceProgress())}
                source.done = SourceProgress(**{**kept, "tail": base64.b64decode(kept["tail"])})
        for source in sources:
            self.note(source, source.done)

    def note(self, source: Source, progress: SourceProgress) -> None:
        """Note how far a source has come."""
        number = self._numbers.setdefault(id(source), len(self.records))
        if number == len(self.records):
            self.records.append({"name": source.name, "path": source.path})
        tail = base64.b64encode(progress.tail).decode("ascii")
        self.records[number] = {**self.records[number], **asdict(progress), "tail": tail}


def sources_at(position: Sequence[Record]) -> list[dict[str, Any]]:
    """Return name, rows and refused lines of each source up to a position."""
    return [
        {
            "name": record["name"],
            "rows": record["rows"] + record["skip"],
            "skipped": record["skipped"],
        }
        for record in position
    ]


@dataclass(frozen=True)
class TextOptions:
    """How text is read.

    Attributes
    ----------
    dtype : {"float32", "float64"}
    skip : bool
        Leave refused lines out.
    parsers : int
        Threads.
    largest_line : int
        Most bytes of a line.
    """

    dtype: str
    skip: bool
    parsers: int
    largest_line: int


@dataclass(frozen=True)
class Needs:
    """What rows ask of the memory; it depends on these rows alone.

    Attributes
    ----------
    rows, nnz : int
    longest : int
        Most nonzeros of a row.
    features : int
        Distinct ids.
    largest_id : int
        The largest of those that are looked up in a plain array.
    hashed : bool
        Whether there are others.
    labels : int
        Distinct classes.
    has_values : bool
        Whether there is a value other than 1.
    """

    rows: int = 0
    nnz: int = 0
    longest: int = 0
    features: int = 0
    largest_id: int = 0
    hashed: bool = False
    labels: int = 0
    has_values: bool = False


# Before there is a plan, any row fits.
ANY = Needs(features=1 << 31, largest_id=DIRECT_LIMIT, hashed=True, labels=1 << 31, has_values=True)


@dataclass
class _CodedPiece:
    """Some rows that were parsed, and where they lie."""

    y: npt.NDArray[Any]
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating] | None
    n_features: int  # ids known behind it
    source: Source | None = None
    text: CodedText | None = None
    begin: SourceProgress = field(default_factory=SourceProgress)
    end: SourceProgress = field(default_factory=SourceProgress)  # as begin, if a row was refused
    done: int = 0  # rows that were gathered

    @property
    def left(self) -> Arrays:
        """The rows that were not gathered, as arrays to keep."""
        indptr = self.indptr[self.done :]
        own = slice(int(indptr[0]), int(indptr[-1]))
        arrays = {"y": self.y[self.done :], "lengths": np.diff(indptr).astype(np.int32)}
        arrays["indices"] = self.indices[own]
        return arrays if self.values is None else {**arrays, "values": self.values[own]}

    def row_of(self, nonzeros: npt.NDArray[np.bool_]) -> int:
        """Return the row of the first chosen nonzero behind `done`; if none is, the last row."""
        first = int(np.argmax(nonzeros)) if nonzeros.any() else len(nonzeros)
        place = int(self.indptr[self.done]) + first
        return int(np.searchsorted(self.indptr, place, side="right")) - 1


@dataclass(frozen=True)
class Reached:
    """How far a stream has come.

    Attributes
    ----------
    needs : Needs
        Of the rows so far.
    position : list of dict
        Of each source.
    pending : list of dict of str to ndarray
        Rows that were read before and are not among the rows so far.
    """

    needs: Needs
    position: list[Record]
    pending: list[Arrays]


@dataclass(frozen=True)
class Block:
    """Rows that were gathered, in the room given for them.

    Attributes
    ----------
    rows : Rows
    reached : Reached
        Behind its last row.
    wanted : Needs, optional
        Of the next row, too, if that was not planned for.
    is_last : bool
        Whether there are no more.
    is_cut : bool
        Whether we were told to stop before it was full.
    """

    rows: Rows
    reached: Reached
    wanted: Needs | None
    is_last: bool
    is_cut: bool


class Arrivals:
    """The rows of some sources, gathered in blocks.

    One thread at a time gathers; what it counts is good for others between two blocks.

    Parameters
    ----------
    sources : list of Source
    ids : IdTable
    labels : Labels, optional
        Codes of classes; None where targets are learned.
    options : TextOptions
    patience : Patience
    reached : Reached, optional
        Where an earlier process ended.
    fixed : bool
        Whether there may be no other classes than `labels` knows.
    unlabelled : bool
        Whether labels do not matter.

    Attributes
    ----------
    reached : Reached
        Behind the rows gathered so far.
    error : DataError or None
        What was refused; all rows in front of it are gathered.
    """

    def __init__(
        self,
        sources: list[Source],
        ids: IdTable,
        labels: Labels | None,
        options: TextOptions,
        patience: Patience,
        reached: Reached | None = None,
        *,
        fixed: bool = False,
        unlabelled: bool = False,
    ) -> None:
        self.sources = sources
        self.ids, self.labels, self.patience = ids, labels, patience
        self._n_fixed = len(labels.values) if labels and fixed else None
        self._unlabelled, self._options = unlabelled, options
        reached = reached or Reached(Needs(labels=self._n_fixed or 0), [], [])
        self._positions = _Positions(reached.position, sources)
        self._pending = deque(reached.pending)
        self.reached = reached
        self._buffers = Buffers(PIECE)
        self.error: DataError | None = None
        self._pool = ThreadPoolExecutor(options.parsers, "sbm-parse")
        self._pieces = self._read()
        self._piece: _CodedPiece | None = None

    def close(self) -> None:
        """End the threads."""
        self._pieces.close()
        self._pool.shutdown()

    # -------------------------------------------------------------------------------- pieces

    def _read(self) -> Generator[_CodedPiece]:
        """Yield what is parsed, piece by piece; some are empty."""
        while self._pending:
            rows = self._pending.popleft()
            indptr = np.concatenate([[0], np.cumsum(rows["lengths"], dtype=np.int64)])
            yield _CodedPiece(rows["y"], indptr, rows["indices"], rows.get("values"), len(self.ids))

        def coded(parsed: ParsedText) -> CodedText:
            return CodedText.of(parsed, self.ids, self._buffers)

        options = self._options
        pieces = convert_sources(
            self.sources, self._pool, coded, ahead=options.parsers + 1, dtype=options.dtype,
            skip=options.skip, largest_line=options.largest_line, patience=self.patience,
        )  # fmt: skip
        for source, text in pieces:
            if all(source is not one for one in self.sources):  # it replaced a file
                self.sources.append(source)
            text.complete(self.ids)
            y, refusal = self._encode(text, source)
            begin, end = source.before, source.done if refusal is None else source.before
            yield _CodedPiece(
                y, text.indptr[: len(y) + 1], text.indices, text.values, len(self.ids), source,
                text, begin, end, min(begin.skip, len(y)),
            )  # fmt: skip
            if refusal is not None:
                raise refusal

    def _encode(self, text: CodedText, source: Source) -> tuple[npt.NDArray[Any], DataError | None]:
        """Turn labels into class codes or targets, up to the first one that is refused."""
        if self._unlabelled:
            return np.zeros(len(text.labels), np.int32), None
        if self.labels is None:
            return text.labels, None
        codes = self.labels.encode(text.labels)
        if self.labels.real:
            return codes[:0], DataError(
                f"{source.shown} has more than 65,536 different labels, too many for classes; "
                "use --loss epsilon_insensitive or another regression loss"
            )
        if self._n_fixed is not None and len(self.labels.values) > self._n_fixed:
            row = int(np.argmax(codes >= self._n_fixed))
            return codes[:row], DataError(
                f"{source.shown}: row {source.before.rows + row + 1} has the label "
                f"{format_number(text.labels[row])}, which is not in --classes"
            )
        return codes, None

    def _grown(self, needs: Needs, piece: _CodedPiece, first: int, last: int) -> Needs:
        """Return the needs with those of some rows of a piece added."""
        if first == last:
            return needs
        own = slice(int(piece.indptr[first]), int(piece.indptr[last]))
        features = max(needs.features, int(piece.indices[own].max(initial=-1)) + 1)
        new = self.ids.keys[needs.features : features]
        plain = (new >= 0) & (new < DIRECT_LIMIT)
        values = None if piece.values is None or needs.has_values else piece.values[own]
        labels = needs.labels
        if self.labels is not None:
            labels = max(labels, int(piece.y[first:last].max()) + 1)
        return Needs(
            rows=needs.rows + last - first,
            nnz=needs.nnz + own.stop - own.start,
            longest=max(needs.longest, int(np.diff(piece.indptr[first : last + 1]).max())),
            features=features,
            largest_id=max(needs.largest_id, int(new[plain].max(initial=0))),
            hashed=needs.hashed or not plain.all(),
            labels=labels,
            has_values=needs.has_values or (values is not None and bool((values != 1).any())),
        )

    def _fitting(self, piece: _CodedPiece, last: int, known: int, planned: Needs, nnz: int) -> int:
        """Return the first row, from those not gathered up to `last`, that was not planned for."""
        first = piece.done
        new = self.ids.keys[known : piece.n_features]
        plain = (new >= 0) & (new < DIRECT_LIMIT)
        unplanned = np.where(plain, new > planned.largest_id, not planned.hashed)
        unplanned[max(0, planned.features - known) :] = True
        own = slice(int(piece.indptr[first]), int(piece.indptr[last]))
        found = [last]
        if unplanned.any():  # the codes of ids are given out in the order of their appearance
            found.append(piece.row_of(piece.indices[own] >= known + int(np.argmax(unplanned))))
        if piece.values is not None and not planned.has_values:
            found.append(piece.row_of(piece.values[own] != 1))
        refused = np.diff(piece.indptr[first : last + 1]) > nnz
        if self.labels is not None:
            refused |= piece.y[first:last] >= planned.labels
        if refused.any():
            found.append(first + int(np.argmax(refused)))
        return min(found)

    # -------------------------------------------------------------------------------- blocks

    def gather(
        self, into: Rows, planned: Needs = ANY, may_end: Callable[[], bool] = lambda: False
    ) -> Block:
        """Gather rows until there is no more room, or there are no more rows.

        Parameters
        ----------
        into : Rows
            Room, from the first nonzero of its arena on.
        planned : Needs
            What rows may need: features, ids, labels, values other than 1.
        may_end : callable
            Whether the block may end early if nothing comes for a while.
        """
        n, nnz, room = 0, 0, len(into.indices)
        needs, wanted = self.reached.needs, None
        while n < len(into) and (piece := self._next()) is not None:
            if piece.done == len(piece.y):
                self._put_away(piece)
                if not len(piece.y) and n and may_end():
                    break
                continue
            first, last = piece.done, min(len(piece.y), piece.done + len(into) - n)
            fitting = self._fitting(piece, last, needs.features, planned, room)
            piece.done += _take(piece, into, n, nnz, fitting - first, room - nnz)
            needs = self._grown(needs, piece, first, piece.done)
            n += piece.done - first
            nnz += int(piece.indptr[piece.done] - piece.indptr[first])
            self._note(piece)
            if piece.done < last:
                if piece.done == fitting:
                    wanted = self._grown(needs, piece, fitting, fitting + 1)
                break
        left = [self._piece.left] if self._piece and self._piece.source is None else []
        left = [part for part in (*left, *self._pending) if len(part["y"])]
        self.reached = Reached(needs, list(self._positions.records), left)
        is_last = piece is None
        is_cut = self.patience.is_over() and n < len(into)
        return Block(into.part(0, n), self.reached, wanted, is_last, is_cut)

    def _next(self) -> _CodedPiece | None:
        """Return the piece that is at hand, or the next one; None at the end."""
        if self._piece is None:
            try:
                self._piece = next(self._pieces, None)
            except DataError as error:
                self.error = error
        return self._piece

    def _note(self, piece: _CodedPiece) -> None:
        """Note where the row behind the last gathered one is."""
        if piece.source is None:
            return
        if piece.done == len(piece.y) and piece.end != piece.begin:
            self._positions.note(piece.source, piece.end)
        else:
            self._positions.note(piece.source, replace(piece.begin, skip=piece.done))

    def _put_away(self, piece: _CodedPiece) -> None:
        self._note(piece)
        if piece.text is not None:
            piece.text.give_back(self._buffers)
        self._piece = None

    def remaining(self) -> tuple[list[Record], list[Arrays]]:
        """End reading; return the position behind all that was read, and the rows not gathered."""
        parts = []
        self.patience.gave_up = True
        while (piece := self._next()) is not None:
            parts.append(piece.left)
            piece.done = len(piece.y)
            self._note(piece)
            self._piece = None
        return list(self._positions.records), [part for part in parts if len(part["y"])]


def arrays_of(rows: Rows) -> Arrays:
    """Return rows that lie one behind the other as arrays to keep, views."""
    begin = int(rows.starts[0]) if len(rows) else 0
    own = slice(begin, begin + rows.nnz)
    arrays: Arrays = {"y": rows.y, "lengths": rows.lengths, "indices": rows.indices[own]}
    return arrays if rows.values is None else {**arrays, "values": rows.values[own]}


def _take(piece: _CodedPiece, into: Rows, n: int, offset: int, rows: int, nnz: int) -> int:
    """Append as many rows of a piece as fit; return their number."""
    first, indptr = piece.done, piece.indptr
    last = int(np.searchsorted(indptr, indptr[first] + nnz, side="right")) - 1
    last = min(last, first + rows, len(piece.y))
    taken = last - first
    if taken <= 0:
        return 0
    own, new = slice(int(indptr[first]), int(indptr[last])), slice(n, n + taken)
    to = slice(offset, offset + own.stop - own.start)
    into.starts[new] = indptr[first:last] + (offset - own.start)
    into.lengths[new] = np.diff(indptr[first : last + 1])
    into.y[new] = piece.y[first:last]
    into.indices[to] = piece.indices[own]
    if into.values is not None:
        into.values[to] = 1 if piece.values is None else piece.values[own]
    return taken
