"""Rows of a stream as they arrive: parse text ahead, and collect rows into blocks in order."""

from __future__ import annotations

import base64
import contextlib
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.dataset.coding import CodedText, Labels
from sbm.dataset.newlabels import NewLabels
from sbm.errors import DataError
from sbm.inputs.formats import FORMATS, LIBSVM, read_pieces
from sbm.inputs.idtable import DIRECT_LIMIT, IdTable
from sbm.inputs.live import Patience, SourceProgress
from sbm.inputs.options import InputOptions
from sbm.inputs.parsing import ParsedText
from sbm.inputs.text import PIECE, Source, convert_sources
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.store.container import Buffers
from sbm.units import format_number

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
Record: TypeAlias = dict[str, Any]  # position in a source, as JSON


class _Positions:
    """The position in each source.

    Parameters
    ----------
    records : sequence of dict
        `records` of an earlier process.
    sources : sequence of Source
        A file with the path of a record is read from the recorded position. If several records have
        the same path, the last ones are used, in order. A pipe is always a new source.

    Attributes
    ----------
    records : list of dict
        One per source, including those of the earlier process.
    """

    def __init__(self, records: Sequence[Record], sources: Sequence[Source]) -> None:
        self.records = [dict(record) for record in records]
        self._numbers: dict[int, int] = {}  # number of a source's record, by id(source)
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
        """Record the position in a source."""
        number = self._numbers.setdefault(id(source), len(self.records))
        if number == len(self.records):
            self.records.append({"name": source.name, "path": source.path})
        tail = base64.b64encode(progress.tail).decode("ascii")
        self.records[number] = {**self.records[number], **asdict(progress), "tail": tail}


@dataclass(frozen=True)
class TextOptions:
    """How text is read."""

    dtype: str  # one of "float32", "float64"
    skip: bool  # whether to skip malformed lines
    parsers: int  # number of threads
    largest_line: int  # maximum bytes per line
    format: str = LIBSVM  # a key of `FORMATS`
    reading: InputOptions = field(default_factory=InputOptions)


@dataclass(frozen=True)
class Needs:
    """The sizes that determine the memory for rows."""

    # rows, nnz: number of rows and nonzeros
    rows: int = 0
    nnz: int = 0
    longest: int = 0  # most nonzeros in a row
    features: int = 0  # number of distinct ids
    largest_id: int = 0  # largest id that is small enough for a plain array
    hashed: bool = False  # whether there are larger ids, which are hashed
    labels: int = 0  # number of distinct classes
    has_values: bool = False  # whether there is a value other than 1


# Before there is a plan, any row fits.
ANY = Needs(features=1 << 31, largest_id=DIRECT_LIMIT, hashed=True, labels=1 << 31, has_values=True)


_NOTHING = np.empty(0, np.int64)
_NEW_IDS = 1 << 14  # most ids that get codes before the plan is checked


@dataclass
class _CodedPiece:
    """A number of parsed rows, and their position in the source."""

    y: npt.NDArray[Any]
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating] | None
    unknown: npt.NDArray[np.integer] = field(default_factory=_NOTHING.copy)  # as in `CodedText`
    unknown_ids: npt.NDArray[np.int64] = field(default_factory=_NOTHING.copy)
    coded: int = 0  # rows whose ids have codes
    n_features: int = 0  # ids known after these
    source: Source | None = None
    text: CodedText | None = None
    begin: SourceProgress = field(default_factory=SourceProgress)
    end: SourceProgress = field(default_factory=SourceProgress)  # same as begin after an error
    done: int = 0  # rows gathered so far

    @property
    def left(self) -> Arrays:
        """The rows that were not gathered, as arrays for a checkpoint."""
        indptr = self.indptr[self.done :]
        own = slice(int(indptr[0]), int(indptr[-1]))
        arrays = {"y": self.y[self.done :], "lengths": np.diff(indptr).astype(np.int32)}
        arrays["indices"] = self.indices[own]
        first = int(np.searchsorted(self.unknown, self.indptr[max(self.done, self.coded)]))
        last = int(np.searchsorted(self.unknown, own.stop))
        if first < last:
            arrays["unknown"] = (self.unknown[first:last] - own.start).astype(np.int32)
            arrays["unknown_ids"] = self.unknown_ids[first:last]
        return arrays if self.values is None else {**arrays, "values": self.values[own]}

    def code(self, ids: IdTable) -> int:
        """Give codes to ids of rows that were not gathered; return how many rows have codes.

        That is at least one more row than was gathered, and few new ids.
        """
        if self.coded <= self.done:
            begin = int(np.searchsorted(self.unknown, self.indptr[self.coded]))
            rows = len(self.y)
            if begin + _NEW_IDS < len(self.unknown):
                place = self.unknown[begin + _NEW_IDS]
                row = int(np.searchsorted(self.indptr, place, side="right")) - 1
                rows = min(rows, max(row, self.done + 1))
            end = int(np.searchsorted(self.unknown, self.indptr[rows]))
            if begin < end:
                self.indices[self.unknown[begin:end]] = ids.intern(self.unknown_ids[begin:end])
            self.coded = rows
        self.n_features = len(ids)
        return self.coded

    def row_of(self, nonzeros: npt.NDArray[np.bool_]) -> int:
        """Return the row of the first marked nonzero after `done`; if there is none, the last."""
        first = int(np.argmax(nonzeros)) if nonzeros.any() else len(nonzeros)
        place = int(self.indptr[self.done]) + first
        return int(np.searchsorted(self.indptr, place, side="right")) - 1


@dataclass(frozen=True)
class Reached:
    """The position of a stream."""

    needs: Needs  # sizes of the rows so far
    position: list[Record]  # position in each source
    pending: list[Arrays]  # rows that were read, but are not among the rows so far


@dataclass(frozen=True)
class NewRows:
    """Gathered rows, in the given buffer."""

    rows: Rows
    reached: Reached  # position after its last row
    wanted: Needs | None  # needs including the next row, if that does not fit the plan
    is_last: bool  # whether there are no more rows
    is_cut: bool  # whether the stream was stopped before the block was full


class Arrivals:
    """Gathers the rows of the sources into blocks.

    Only one thread may gather at a time; other threads may read the counts between two blocks.

    Parameters
    ----------
    labels : Labels, optional
        Class codes; None for targets.
    reached : Reached, optional
        Position of an earlier process.
    fixed : bool
        Whether only the classes in `labels` are allowed.
    new_labels : NewLabels, optional
        Refuses labels.
    unlabelled : bool
        Whether labels are ignored.

    Attributes
    ----------
    reached : Reached
        Position after the rows gathered so far.
    error : DataError or None
        The error in the input; all rows before it are gathered.
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
        new_labels: NewLabels | None = None,
        unlabelled: bool = False,
    ) -> None:
        self.sources, self.new_labels = sources, new_labels
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
        """Yield parsed pieces; some are empty."""
        while self._pending:
            rows = self._pending.popleft()
            indptr = np.concatenate([[0], np.cumsum(rows["lengths"], dtype=np.int64)])
            yield _CodedPiece(
                rows["y"], indptr, rows["indices"].copy(), rows.get("values"),
                rows.get("unknown", _NOTHING), rows.get("unknown_ids", _NOTHING),
            )  # fmt: skip

        def coded(parsed: ParsedText) -> CodedText:
            return CodedText.of(parsed, self.ids, self._buffers)

        options, kind = self._options, FORMATS[self._options.format]
        if kind.parser is None:
            pieces = self._convert_tables(coded)
        else:
            pieces = convert_sources(
                self.sources, self._pool, coded, ahead=options.parsers + 1, dtype=options.dtype,
                parse=kind.parser(options.reading), skip=options.skip,
                largest_line=options.largest_line, reasons=kind.reasons, patience=self.patience,
            )  # fmt: skip
        for source, text in pieces:
            if all(source is not one for one in self.sources):  # it replaced a file
                self.sources.append(source)
            y, refusal = self._encode(text, source)
            begin, end = source.before, source.done if refusal is None else source.before
            yield _CodedPiece(
                y, text.indptr[: len(y) + 1], text.indices, text.values, text.unknown,
                text.unknown_ids, source=source, text=text, begin=begin, end=end,
                done=min(begin.skip, len(y)),
            )  # fmt: skip
            if refusal is not None:
                raise refusal

    def _convert_tables(
        self, convert: Callable[[ParsedText], CodedText]
    ) -> Generator[tuple[Source, CodedText]]:
        """Yield the rows of tables; positions count rows, and rows before them are read again."""
        options = self._options
        for source in self.sources:
            left = source.done.rows + source.done.skip  # rows of an earlier process
            source.done = SourceProgress()
            pieces = read_pieces(source, options.dtype, options.largest_line)
            with contextlib.closing(pieces):
                for piece in pieces:
                    parsed, done = piece.parsed, source.done
                    if piece.problems and not options.skip:
                        raise DataError(piece.problems[0])
                    source.problems += piece.problems[: 20 - len(source.problems)]
                    n = len(parsed.labels)
                    old = min(left, n)
                    left -= old
                    source.before = replace(done, rows=done.rows + old)
                    source.done = SourceProgress(
                        piece.read,
                        done.lines + parsed.n_lines,
                        done.rows + n,
                        done.skipped + parsed.n_errors,
                    )
                    source.parsed = piece.read
                    if old < n:
                        yield source, convert(parsed.behind(old))
                    if self.patience.is_over():
                        return

    def _encode(self, text: CodedText, source: Source) -> tuple[npt.NDArray[Any], DataError | None]:
        """Convert labels to class codes or targets, up to the first invalid one.

        Returns them with the error, or None.
        """
        if text.weights is not None:
            return self._before_weights(text, source)
        if self._unlabelled:
            return np.zeros(len(text.labels), np.int32), None
        if self.labels is None:
            return text.labels, None
        if self.new_labels is not None:
            row = self.new_labels.look(source, text.labels, source.before.rows)
            if row is not None:
                return self.labels.encode(text.labels[:row]), self.new_labels.error(source)
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

    def _before_weights(
        self, text: CodedText, source: Source
    ) -> tuple[npt.NDArray[Any], DataError | None]:
        """Convert labels up to the first row with a weight, which streams do not have."""
        assert text.weights is not None
        row = int(np.argmax(text.weights != 1))
        codes, error = self._encode(replace(text, labels=text.labels[:row], weights=None), source)
        return codes, error or DataError(
            f"{source.shown}: row {source.before.rows + row + 1} has the importance "
            f"{format_number(float(text.weights[row]))}, but sbm stream has no weights of rows; "
            "use sbm split and sbm train instead"
        )

    def _grown(self, needs: Needs, piece: _CodedPiece, first: int, last: int) -> Needs:
        """Return the needs, extended by rows `first` to `last` of a piece."""
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
        """Return the first row that does not fit the plan, from the ungathered ones to `last`."""
        first = piece.done
        new = self.ids.keys[known : piece.n_features]
        plain = (new >= 0) & (new < DIRECT_LIMIT)
        unplanned = np.where(plain, new > planned.largest_id, not planned.hashed)
        unplanned[max(0, planned.features - known) :] = True
        own = slice(int(piece.indptr[first]), int(piece.indptr[last]))
        found = [last]
        if unplanned.any():  # codes are assigned to ids in order of appearance
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
    ) -> NewRows:
        """Gather rows until the buffer is full or the input ends.

        Parameters
        ----------
        into : Rows
            The buffer; nonzeros are written from the start of its arena.
        planned : Needs
            What rows may need: features, ids, labels, values other than 1.
        may_end : callable
            Returns whether the block may end early when no text arrives.
        """
        n, nnz, room = 0, 0, len(into.indices)
        needs, wanted = self.reached.needs, None
        while n < len(into) and (piece := self._next()) is not None:
            if piece.done == len(piece.y):
                self._put_away(piece)
                if not len(piece.y) and n and may_end():
                    break
                continue
            first, last = piece.done, min(piece.code(self.ids), piece.done + len(into) - n)
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
        return NewRows(into.part(0, n), self.reached, wanted, is_last, is_cut)

    def _next(self) -> _CodedPiece | None:
        """Return the current piece, or the next one; None at the end."""
        if self._piece is None:
            try:
                self._piece = next(self._pieces, None)
            except DataError as error:
                self.error = error
        return self._piece

    def _note(self, piece: _CodedPiece) -> None:
        """Record the position after the last gathered row."""
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
        """End reading; return the position after all text read, and the rows not gathered."""
        parts = []
        self.patience.gave_up = True
        while (piece := self._next()) is not None:
            parts.append(piece.left)
            piece.done = len(piece.y)
            self._note(piece)
            self._piece = None
        return list(self._positions.records), [part for part in parts if len(part["y"])]


def arrays_of(rows: Rows) -> Arrays:
    """Return contiguous rows as arrays for a checkpoint (views)."""
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
