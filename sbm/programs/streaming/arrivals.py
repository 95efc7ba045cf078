"""Rows of a stream as they arrive: text is parsed ahead, rows gather in blocks in their order."""

from __future__ import annotations

import base64
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.idtable import DIRECT_LIMIT, IdTable
from sbm.inputs.live import Patience, Place
from sbm.inputs.parsing import ParsedText
from sbm.inputs.text import PIECE, Source, convert_sources
from sbm.programs.splitting.reading import CodedText, Labels
from sbm.rows import Rows
from sbm.settings import format_number
from sbm.store.container import Buffers

__all__ = [
    "Arrays", "Arrivals", "Block", "Limits", "Needs", "Positions", "Record", "TextOptions",
    "arrays_of", "sources_at",
]  # fmt: skip


Record: TypeAlias = dict[str, Any]


class Positions:
    """How far each source has come, as JSON holds it.

    Parameters
    ----------
    records : sequence of dict
        What `records` were when an earlier process ended.
    sources : sequence of Source
        Those of the same path as one of the records go on where that ended.

    Attributes
    ----------
    records : list of dict
        Of each source, those of the earlier process included.
    """

    def __init__(self, records: Sequence[Record], sources: Sequence[Source]) -> None:
        self.records = [dict(record) for record in records]
        self._numbers: dict[int, int] = {}  # of a source's record, by its identity
        # A file may be given more than once, and others may have been in its place: the last ones
        # count, in their order.
        known: dict[str, list[int]] = {}
        for k, record in enumerate(self.records):
            known.setdefault(record["path"], []).append(k)
        given = Counter(source.path for source in sources)
        known = {path: numbers[-given[path] :] for path, numbers in known.items() if given[path]}
        for source in sources:
            if numbers := known.get(source.path):
                self._go_on(source, numbers.pop(0))
            else:
                self.add(source, source.place)

    def __contains__(self, source: Source) -> bool:
        return id(source) in self._numbers

    def add(self, source: Source, place: Place) -> None:
        """Begin to note how far a source has come."""
        self._numbers[id(source)] = len(self.records)
        self.records.append(_record(source, place, 0))

    def _go_on(self, source: Source, number: int) -> None:
        """Let a source go on where that of a record ended."""
        record = self.records[number]
        self._numbers[id(source)] = number
        source.skip = record["skip"]
        text, lines, rows, skipped = (
            int(record[name]) for name in ("text", "lines", "rows", "skipped")
        )
        source.place = Place(text, lines, rows, skipped, _bytes(record["tail"]))
        source.earlier = record["earlier"]
        source.head, source.rest, source.carried = (
            _bytes(record[name]) for name in ("head", "rest", "carried")
        )

    def note(self, source: Source, place: Place, skip: int) -> None:
        """Note that a source has come to a place, and so many rows further."""
        number = self._numbers[id(source)]
        name = self.records[number]["name"]  # as it was given first
        self.records[number] = {**_record(source, place, skip), "name": name}

    def note_rest(self, source: Source) -> None:
        """Note what was read of a source and is no whole line yet."""
        number = self._numbers[id(source)]
        self.records[number] = {**self.records[number], "rest": _text(source.rest)}


def _record(source: Source, place: Place, skip: int) -> Record:
    """Return what to keep of a source to go on from a place, behind some rows, as JSON holds it."""
    return {
        "name": source.name, "path": source.path, "text": place.text, "lines": place.lines,
        "rows": place.rows, "skip": skip, "tail": _text(place.tail), "head": _text(source.head),
        "rest": _text(source.rest), "carried": _text(source.carried), "skipped": place.skipped,
        "earlier": source.earlier,
    }  # fmt: skip


def sources_at(position: Sequence[Record]) -> list[dict[str, Any]]:
    """Return name, rows and refused lines of each source up to a position."""
    return [
        {
            "name": record["name"],
            "rows": record["earlier"] + record["rows"] + record["skip"],
            "skipped": record["skipped"],
        }
        for record in position
    ]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


Arrays: TypeAlias = dict[str, npt.NDArray[Any]]


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
    """What some first rows ask of the memory; it depends on these rows alone.

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
    begin: Place = field(default_factory=Place)
    end: Place | None = None  # None where the line behind its last row was refused
    done: int = 0  # rows that were gathered

    @property
    def left(self) -> Arrays:
        """The rows that were not gathered, as arrays to keep."""
        indptr = self.indptr[self.done :]
        own = slice(int(indptr[0]), int(indptr[-1]))
        arrays = {"y": self.y[self.done :], "lengths": np.diff(indptr).astype(np.int32)}
        arrays["indices"] = self.indices[own]
        return arrays if self.values is None else {**arrays, "values": self.values[own]}


@dataclass(frozen=True)
class Limits:
    """How large the next block may be, and what else there is room for.

    Attributes
    ----------
    rows, nnz : int
    planned : Needs
        What rows may need: features, ids, labels, values other than 1.
    may_end : callable
        Whether the block may end early where nothing comes for a while.
    """

    rows: int
    nnz: int
    planned: Needs
    may_end: Callable[[], bool]


@dataclass(frozen=True)
class Block:
    """Rows that were gathered, in the room given for them.

    Attributes
    ----------
    rows : Rows
    needs : Needs
        Of the rows in this block and those before it.
    position : list of dict
        Of each source how much of it is in this block and those before it.
    pending : list of dict of str to ndarray
        Rows that an earlier process left and that are in no block yet.
    is_last : bool
        Whether there are no more, or none that fit the plan.
    is_cut : bool
        Whether we were told to stop before it was full.
    """

    rows: Rows
    needs: Needs
    position: list[Record] = field(default_factory=list)
    pending: list[Arrays] = field(default_factory=list)
    is_last: bool = False
    is_cut: bool = False


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
    fixed : bool
        Whether there may be no other classes than `labels` knows.
    unlabelled : bool
        Whether labels do not matter.
    position : sequence of dict
        What `Block.position` said when an earlier process ended.
    pending : sequence of dict of str to ndarray
        The rows it left.
    needs : Needs, optional
        Of the rows gathered before.

    Attributes
    ----------
    needs : Needs
        Of the rows gathered so far.
    wanted : Needs
        Where the plan is outgrown, of the next row, too.
    error : DataError or None
        What was refused; all rows in front of it are gathered.
    is_outgrown : bool
        Whether the next rows do not fit what is planned; set it to False to go on.
    is_over : bool
        Whether there are no more rows.
    """

    def __init__(
        self,
        sources: list[Source],
        ids: IdTable,
        labels: Labels | None,
        options: TextOptions,
        patience: Patience,
        *,
        fixed: bool = False,
        unlabelled: bool = False,
        position: Sequence[Record] = (),
        pending: Sequence[Arrays] = (),
        needs: Needs | None = None,
    ) -> None:
        self.sources = sources
        self.ids, self.labels, self.patience = ids, labels, patience
        self._n_fixed = len(labels.values) if labels and fixed else None
        self._unlabelled, self._options = unlabelled, options
        self._positions = Positions(position, sources)
        self._buffers = Buffers(PIECE)
        self.needs = self.wanted = needs or Needs(labels=self._n_fixed or 0)
        self.error: DataError | None = None
        self.is_outgrown = self.is_over = False
        self._pool = ThreadPoolExecutor(options.parsers, "sbm-parse")
        self._pending = deque(pending)
        self._pieces = self._read()
        self._piece: _CodedPiece | None = None
        self._ahead: deque[_CodedPiece] = deque()

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
            if source not in self._positions:  # the file that replaced one that was followed
                self.sources.append(source)
                self._positions.add(source, Place())
            text.complete(self.ids)
            y, refusal = self._encode(text, source)
            end = source.place if refusal is None and source.place.rows == source.rows else None
            piece = _CodedPiece(
                y, text.indptr[: len(y) + 1], text.indices, text.values, len(self.ids), source,
                text, source.before, end,
            )  # fmt: skip
            piece.done = min(source.skip, len(y))
            source.skip -= piece.done
            yield piece
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
                f"{source.shown} has more than 65,536 different labels, which are no classes; "
                "use --loss epsilon_insensitive or another loss for regression"
            )
        if self._n_fixed is not None and len(self.labels.values) > self._n_fixed:
            row = int(np.argmax(codes >= self._n_fixed))
            return codes[:row], DataError(
                f"{source.shown}: row {source.before.rows + row + 1} has the label "
                f"{format_number(text.labels[row])}, which --classes does not name"
            )
        return codes, None

    def _next(self) -> _CodedPiece | None:
        """Return the next piece, None at the end."""
        if self._ahead:
            return self._ahead.popleft()
        try:
            piece = next(self._pieces, None)
        except DataError as error:
            self.error, piece = error, None
        self.is_over = piece is None
        return piece

    def peek(self, n_rows: int, may_end: Callable[[], bool] = lambda: False) -> Needs | None:
        """Wait for so many rows, or the end; return what they need, None if there are none.

        Parameters
        ----------
        n_rows : int
        may_end : callable
            Whether fewer rows are enough where nothing comes for a while.
        """
        needs = self.needs
        coming: list[_CodedPiece] = []
        left = n_rows
        while left and (piece := self._next()) is not None:
            if piece.end == piece.begin:  # nothing came
                self._give_back(piece)
                if left < n_rows and may_end():
                    break
                continue
            coming.append(piece)
            last = min(len(piece.y), piece.done + left)
            left -= last - piece.done
            needs = self._grown(needs, piece, piece.done, last)
        self._ahead.extend(coming)
        self.is_over = False  # it is noticed again
        return needs if left < n_rows else None

    def _grown(self, needs: Needs, piece: _CodedPiece, first: int, last: int) -> Needs:
        """Return the needs with those of some rows of a piece added."""
        if first == last:
            return needs
        own = slice(int(piece.indptr[first]), int(piece.indptr[last]))
        features = max(needs.features, int(piece.indices[own].max(initial=-1)) + 1)
        new = self.ids.keys[needs.features : features]
        plain = (new >= 0) & (new < DIRECT_LIMIT)
        values = None if piece.values is None or needs.has_values else piece.values[own]
        return Needs(
            rows=needs.rows + last - first,
            nnz=needs.nnz + own.stop - own.start,
            longest=max(needs.longest, int(np.diff(piece.indptr[first : last + 1]).max())),
            features=features,
            largest_id=max(needs.largest_id, int(new[plain].max(initial=0))),
            hashed=needs.hashed or not plain.all(),
            labels=max(needs.labels, self._labels_in(piece, first, last)),
            has_values=needs.has_values or (values is not None and bool((values != 1).any())),
        )

    def _labels_in(self, piece: _CodedPiece, first: int, last: int) -> int:
        return int(piece.y[first:last].max()) + 1 if self.labels is not None else 0

    def _fitting(self, piece: _CodedPiece, limits: Limits, last: int) -> int:
        """Return the first row, from those not gathered up to `last`, that was not planned for."""
        planned, first = limits.planned, piece.done
        indptr = piece.indptr[first : last + 1]
        own = slice(int(indptr[0]), int(indptr[-1]))
        refused = [np.flatnonzero(np.diff(indptr) > limits.nnz)]
        if self.labels is not None:
            refused.append(np.flatnonzero(piece.y[first:last] >= planned.labels))

        def rows_of(nonzeros: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
            some = np.flatnonzero(nonzeros)[:1] + own.start
            return np.searchsorted(indptr, some, side="right") - 1

        if piece.values is not None and not planned.has_values:
            refused.append(rows_of(piece.values[own] != 1))
        known = self.needs.features
        new = self.ids.keys[known : piece.n_features]
        plain = (new >= 0) & (new < DIRECT_LIMIT)
        unplanned = np.where(plain, new > planned.largest_id, not planned.hashed)
        unplanned[max(0, planned.features - known) :] = True
        if unplanned.any():  # the codes of ids are given out in the order of their appearance
            refused.append(rows_of(piece.indices[own] >= known + int(np.argmax(unplanned))))
        return first + min((int(rows[0]) for rows in refused if len(rows)), default=last - first)

    # -------------------------------------------------------------------------------- blocks

    def gather(self, into: Rows, offset: int, limits: Limits) -> Block:
        """Gather rows until a limit is reached, the plan is outgrown or there are no more.

        Parameters
        ----------
        into : Rows
            Room for as many rows as the limits say.
        offset : int
            Where their nonzeros go.
        limits : Limits

        Returns
        -------
        Block
        """
        n, begin, end = 0, offset, offset + limits.nnz
        needs = self.needs
        while not (self.is_outgrown or self.is_over) and n < limits.rows:
            piece = self._piece = self._piece or self._next()
            if piece is None:
                break
            if piece.done == len(piece.y):
                is_pause = not len(piece.y)
                self._put_away(piece)
                if is_pause and n and limits.may_end():
                    break
                continue
            last = min(len(piece.y), piece.done + limits.rows - n)
            fitting = self._fitting(piece, limits, last)
            taken = _take(piece, into, n, offset, fitting - piece.done, end - offset)
            self.needs = needs = self._grown(needs, piece, piece.done, piece.done + taken)
            if taken == 0:
                if fitting == piece.done:
                    self.is_outgrown = True
                    self.wanted = self._grown(needs, piece, piece.done, piece.done + 1)
                break
            offset += int(piece.indptr[piece.done + taken] - piece.indptr[piece.done])
            n, piece.done = n + taken, piece.done + taken
            self._note(piece)
        assert offset - begin <= limits.nnz
        mine = [self._piece, *self._ahead] if self._piece else self._ahead
        left = [p.left for p in mine if p.source is None and p.done < len(p.y)]
        return Block(
            into.part(0, n), needs, list(self._positions.records), [*left, *self._pending],
            is_last=self.is_over or self.is_outgrown,
            is_cut=self.patience.is_over() and n < limits.rows,
        )  # fmt: skip

    def _note(self, piece: _CodedPiece) -> None:
        """Note where the row behind the last gathered one is."""
        if piece.source is None:
            return
        place, skip = piece.begin, piece.done
        if piece.done == len(piece.y) and piece.end is not None:
            place, skip = piece.end, 0
        self._positions.note(piece.source, place, skip)

    def _put_away(self, piece: _CodedPiece) -> None:
        self._note(piece)
        self._give_back(piece)
        self._piece = None

    def _give_back(self, piece: _CodedPiece) -> None:
        if piece.text is not None:
            piece.text.give_back(self._buffers)

    def remaining(self) -> tuple[list[Record], list[Arrays]]:
        """End reading; return the rows that were read and not gathered, and the position behind."""
        parts = []
        self.patience.gave_up = True
        while True:
            piece = self._piece
            if piece is not None:
                parts.append(piece.left)
                piece.done = len(piece.y)
                self._note(piece)
            self._piece = None if self.is_over else self._next()
            if self._piece is None:
                break
        for source in self.sources:
            self._positions.note_rest(source)
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
