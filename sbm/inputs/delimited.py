"""Tables of delimited text: CSV and TSV, cut into pieces of whole records and read by pyarrow."""

from __future__ import annotations

import codecs
import contextlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.errors import DataError
from sbm.inputs.columns.cells import require_pyarrow
from sbm.inputs.columns.kinds import Dialect
from sbm.inputs.tables import TableRows
from sbm.inputs.text import PIECE, Source, unpacked
from sbm.plain import dataclass
from sbm.units import first_line

if TYPE_CHECKING:
    import pyarrow as pa

kernels = load("sbm.inputs.kernels.words")
_BOMS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_HEAD_BYTES = 1 << 24  # of the first rows
_SPARE = 1  # bytes behind the text, for the last line end
_NEWLINE = ord("\n")
_COLUMN = re.compile(r"column #(\d+)")


@dataclass(frozen=True)
class _Piece:
    """Whole records of a text."""

    text: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]  # shape (n_records,)
    cells: npt.NDArray[np.int64]  # shape (n_records,); see `find_records`
    lines: npt.NDArray[np.int64]  # shape (n_records,); number of the first line of each, from 1


class _Recoded:
    """A stream of text in another encoding as UTF-8."""

    def __init__(self, stream: Any, encoding: str, begin: bytes, name: str) -> None:
        self._stream, self._name = stream, name
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._encoding, self._is_over = encoding, False
        self._left = self._decode(begin)

    def _decode(self, data: bytes, final: bool = False) -> bytes:
        try:
            return self._decoder.decode(data, final).encode()
        except UnicodeError as error:
            raise DataError(
                f"{self._name}: the text is not {self._encoding} ({error}); give another --encoding"
            ) from error

    def readinto(self, buffer: memoryview) -> int:
        room = bytearray(max(1, len(buffer) // 3))
        while not self._left and not self._is_over:
            n = self._stream.readinto(room) or 0
            self._is_over = n == 0
            self._left = self._decode(bytes(room[:n]), self._is_over)
        part, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


class _Delimited:
    """A table of delimited text that is read once, from the begin to the end."""

    is_sparse = False

    def __init__(self, source: Source, stream: Any, separator: str, largest: int) -> None:
        dialect: Dialect = source.options.table.dialect
        self._source, self._stream, self._pipe = source, stream, stream
        self._separator, self._quote = dialect.separator or separator, dialect.quote
        self._largest, self.place = largest, f"{source.name}:1"
        self._text = np.empty(PIECE + _SPARE, np.uint8)
        self._size, self._line, self._is_over, self._taken = 0, 1, False, 0
        self._kept: deque[_Piece] = deque()
        self._dirty: set[str] = set()  # columns that hold more than plain numbers
        self._begin(dialect)
        self._is_first = True
        first = self._first()
        self.names: list[str] = []
        if first is None:
            return
        width = int(first.cells[0])
        if dialect.header:
            self.names = self._read_names(first, width)
        else:
            self.names = [str(k + 1) for k in range(width)]
            self._kept.append(first)
        if len(self.names) == 1 and dialect.separator is None:
            self._refuse_other_separator(self.names[0])

    def _begin(self, dialect: Dialect) -> None:
        """Read the first bytes, and find the encoding."""
        self._fill()
        begin = self._text[: self._size].tobytes()
        bom = next((mark for mark in _BOMS if begin.startswith(mark)), b"")
        encoding = dialect.encoding or _BOMS.get(bom, "utf-8")
        rest = begin[len(bom) :]
        if codecs.lookup(encoding).name == "utf-8":
            self._text[: len(rest)] = np.frombuffer(rest, np.uint8)
            self._size = len(rest)
            return
        self._stream = _Recoded(self._stream, encoding, rest, self._source.name)
        self._size, self._is_over = 0, False

    def _read_names(self, piece: _Piece, width: int) -> list[str]:
        text = piece.text.tobytes()
        if re.search(rb"[\x00-\x08]", text) and not _is_utf8(text):
            raise DataError(f"{self.place}: found no text; this looks like a binary file")
        if width < 0:
            raise DataError(f"{self.place}: {_QUOTES}")
        table = self._parse(text, width, list(range(width)), frozenset())
        names = [column.chunk(0).view("binary")[0].as_py() or b"" for column in table.columns]
        return [name.decode("utf-8", "surrogateescape") for name in names]

    def _refuse_other_separator(self, name: str) -> None:
        other = next((c for c in ";\t|," if c in name), None)
        if other is not None:
            way = "--format tsv" if other == "\t" else f"--sep '{other}'"
            raise DataError(f"{self.place}: found columns separated by {other!r}; use {way}")

    # ----------------------------------------------------------------------------------- pieces

    def _fill(self, is_short: bool = False) -> None:
        """Read until the buffer is full, or a pipe has nothing more for now.

        If the buffer `is_short` of a record, wait for more.
        """
        while not self._is_over and self._size < len(self._text) - _SPARE:
            if self._size and not is_short and self._is_idle():
                break
            is_short = False
            view = memoryview(self._text)[self._size : len(self._text) - _SPARE]
            n = self._stream.readinto(view) or 0
            self._size += n
            self._is_over = n == 0

    def _is_idle(self) -> bool:
        """Whether all text of a pipe is in the buffer for now."""
        if not self._pipe.is_pipe:
            return False
        return bool(self._pipe.is_idle(self._taken + self._newlines()))

    def _newlines(self, end: int | None = None) -> int:
        part = self._text[: self._size if end is None else end]
        return int(np.count_nonzero(part == _NEWLINE))

    def _cut(self) -> _Piece | None:
        """Take the next records; None at the end."""
        while True:
            self._fill()
            if self._is_over and self._size and self._text[self._size - 1] != _NEWLINE:
                self._text[self._size] = _NEWLINE
                self._size += 1
            room = self._newlines()
            ends, cells, lines = (np.empty(max(1, room), np.int64) for _ in range(3))
            n, n_lines = kernels.find_records(
                self._text, self._size, ord(self._separator), ord(self._quote), ends, cells, lines
            )
            if n:
                break
            if self._is_over:
                if self._text[: self._size].tobytes().strip(b"\r\n"):
                    raise DataError(f"{self._source.name}:{self._line}: {_QUOTES}")
                return None
            if self._size == len(self._text) - _SPARE:
                self._grow()
            self._fill(is_short=True)
        end = int(ends[n - 1])
        piece = _Piece(self._text[:end].copy(), ends[:n], cells[:n], lines[:n] + self._line)
        self._drop(end, n_lines)
        return piece

    def _grow(self) -> None:
        size = 2 * len(self._text)
        if size > self._largest:
            raise DataError(
                f"{self._source.name}:{self._line}: found a line longer than {len(self._text)} "
                "bytes, which does not fit in --mem. If a quote is not closed, correct it; else "
                "raise --mem"
            )
        text = np.empty(size + _SPARE, np.uint8)
        text[: self._size] = self._text[: self._size]
        self._text = text

    def _first(self) -> _Piece | None:
        """Take the first record, without a compiled lexer; None if there is none."""
        while True:
            text = self._text[: self._size].tobytes()
            begin = len(text) - len(text.lstrip(b"\r\n"))
            end, cells = _end_of_record(text, begin, ord(self._separator), ord(self._quote))
            if end or self._is_over:
                break
            if self._size == len(self._text) - _SPARE:
                self._grow()
            self._fill(is_short=True)
        if not end and begin == len(text):
            return None
        self._line += text.count(b"\n", 0, begin)
        piece = _Piece(
            np.frombuffer(text[begin : end or len(text)], np.uint8), np.array([end - begin]),
            np.array([cells]), np.array([self._line]),
        )  # fmt: skip
        if not end and cells < 0:
            raise DataError(f"{self._source.name}:{self._line}: {_QUOTES}")
        self._drop(end or len(text), text.count(b"\n", begin, end or len(text)))
        return piece

    def _drop(self, end: int, n_lines: int) -> None:
        """Remove text up to `end` from the buffer."""
        self._taken += self._newlines(end) if self._pipe.is_pipe else 0
        rest = self._size - end
        self._text[:rest] = self._text[end : self._size].copy()
        self._size, self._line = rest, self._line + n_lines

    def _pieces(self) -> Iterator[_Piece]:
        while self._kept:
            yield self._kept.popleft()
        while (piece := self._cut()) is not None:
            yield piece

    # ------------------------------------------------------------------------------------- rows

    def head(self, n: int) -> Mapping[str, pa.Array]:
        import pyarrow as pa

        found = sum(len(piece.ends) for piece in self._kept)
        size = sum(len(piece.text) for piece in self._kept)
        while found < n and size < _HEAD_BYTES and (piece := self._cut()) is not None:
            self._kept.append(piece)
            found, size = found + len(piece.ends), size + len(piece.text)
        every = list(range(len(self.names)))
        tables = []
        left = n
        for piece in self._kept:
            text, *_ = self._good(piece)
            rows = self._parse(text, len(self.names), every, frozenset()).slice(0, left)
            tables.append(rows)
            left -= rows.num_rows
        if not tables:
            return {name: pa.array([], pa.string()) for name in self.names}
        table = pa.concat_tables(tables).combine_chunks()
        columns = (table.column(k) for k in every)
        return {
            name: column.chunk(0) if column.num_chunks else pa.array([], pa.string())
            for name, column in zip(self.names, columns, strict=True)
        }

    def _good(self, piece: _Piece) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the text of the valid records, and the positions of valid and invalid ones."""
        is_good = piece.cells == len(self.names)
        good, bad = np.flatnonzero(is_good), np.flatnonzero(~is_good)
        if not len(bad):
            return piece.text, good, bad
        begins = np.append(0, piece.ends[:-1])
        parts = [piece.text[begins[k] : piece.ends[k]].tobytes() for k in good.tolist()]
        return b"".join(parts), good, bad

    def rows(self, names: Sequence[str], numeric: frozenset[str], most: int) -> Iterator[TableRows]:
        """Yield the rows of some columns; see `Table`."""
        import pyarrow as pa

        place = {name: k for k, name in enumerate(self.names)}
        chosen = [place[name] for name in names]
        source, width = self._source.name, len(self.names)
        for piece in self._pieces():
            text, good, bad = self._good(piece)
            table = self._parse(text, width, chosen, numeric - self._dirty)
            if chosen and table.num_rows != len(good):
                raise DataError(
                    f"{source}:{piece.lines[0]} or later: found {table.num_rows} records in "
                    f"{len(good)} lines; {_QUOTES}"
                )
            refused: dict[int, str] = {}
            if len(bad):
                at = np.full(len(piece.cells), -1)
                at[good] = np.arange(len(good))
                table = table.take(pa.array(at, mask=at < 0))
                for row in bad.tolist():
                    found = int(piece.cells[row])
                    wrong = f"found {found} cells, but the header has {width} columns"
                    refused[row] = _QUOTES if found < 0 else wrong
            for first in range(0, len(piece.cells), most):
                some = table.slice(first, most).combine_chunks()
                n = min(most, len(piece.cells) - first)
                cells = {
                    name: some.column(k).chunk(0) if n and some.num_rows else pa.nulls(n)
                    for k, name in enumerate(names)
                }
                here = {k - first: why for k, why in refused.items() if first <= k < first + most}
                at_line = partial(_at, source, piece.lines[first : first + most])
                yield TableRows(cells, n, place=at_line, refused=here)

    def _parse(
        self, text: Any, width: int, chosen: Sequence[int], numeric: frozenset[str]
    ) -> pa.Table:
        """Return the columns `chosen` of some records."""
        import pyarrow as pa
        import pyarrow.csv as pc

        names = [str(k) for k in range(width)]
        wanted = [names[k] for k in chosen]
        kinds = {
            names[k]: pa.float64() if numeric and self.names[k] in numeric else pa.string()
            for k in chosen
        }
        size = len(text)
        if not chosen or not size:
            return pa.table({name: pa.array([], pa.string()) for name in wanted})
        while True:
            try:
                return pc.read_csv(
                    pa.py_buffer(text),
                    pc.ReadOptions(column_names=names, use_threads=False, block_size=size + 1),
                    pc.ParseOptions(
                        delimiter=self._separator, quote_char=self._quote, newlines_in_values=True
                    ),
                    pc.ConvertOptions(
                        check_utf8=False, column_types=kinds, include_columns=wanted,
                        strings_can_be_null=True, quoted_strings_can_be_null=True, null_values=[""],
                    ),
                )  # fmt: skip
            except pa.ArrowInvalid as error:
                found = _COLUMN.search(str(error))
                if found is None or kinds.get(found[1]) != pa.float64():
                    raise DataError(f"{self._source.name}: {first_line(error)}") from error
                kinds[found[1]] = pa.string()
                self._dirty.add(self.names[int(found[1])])


def _end_of_record(text: bytes, begin: int, separator: int, quote: int) -> tuple[int, int]:
    """Return the end of a record, 0 if it is not complete, and its cells; see `find_records`.

    The cells are -1 if text follows a closing quote, or a quote is not closed.
    """
    cells, is_wrong, is_quoted, at_begin = 1, False, False, True
    closed = False
    for k in range(begin, len(text)):
        byte = text[k]
        if is_quoted:
            is_quoted, closed = byte != quote, byte == quote
        elif byte == _NEWLINE:
            return k + 1, -1 if is_wrong else cells
        elif byte == separator:
            cells, at_begin, closed = cells + 1, True, False
        elif byte == quote and (at_begin or closed):
            is_quoted, at_begin, closed = True, False, False
        else:
            is_wrong |= closed and byte != ord("\r")
            at_begin = False
    return 0, -1 if is_wrong or is_quoted else cells


_QUOTES = "quotes must enclose a whole cell and be doubled inside it"


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _at(name: str, lines: npt.NDArray[np.int64], row: int) -> str:
    return f"{name}:{lines[row]}"


@contextlib.contextmanager
def open_delimited(source: Source, largest_row: int, *, separator: str) -> Iterator[_Delimited]:
    """Open a table of delimited text.

    Parameters
    ----------
    separator : str
        That of the format; the dialect may have another one.

    Raises
    ------
    DataError
        pyarrow is not installed, or the text is invalid.
    """
    require_pyarrow(f"reading {source.name}")
    with unpacked(source) as stream:
        yield _Delimited(source, stream, separator, 8 * largest_row)
