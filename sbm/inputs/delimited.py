"""Tables of delimited text: CSV and TSV, whose cells are found by a compiled kernel.

`pyarrow.csv` takes four times as long to find them, because it copies each cell to a column. Here
numbers and words are read where they lie in the text.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.errors import DataError
from sbm.inputs.columns.cells import Text, require_pyarrow
from sbm.inputs.columns.kinds import Dialect, nameless
from sbm.inputs.tables import HEAD_BYTES, TableRows
from sbm.inputs.text import PIECE, Source, unpacked
from sbm.plain import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

kernels = load("sbm.inputs.kernels.cells")
_BOMS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_SPARE = 65  # bytes behind the text, for the last line end, and that the kernel reads
_NEWLINE = ord("\n")
_MOST_CELLS = 1 << 20  # of a piece
_MORE = 1.1  # room for records, times as many as there are if they are as long as those before


@dataclass(frozen=True)
class _Piece:
    """Whole records of a text; an invalid one has empty cells."""

    text: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.int32]  # shape (n_columns, most); of each cell
    ends: npt.NDArray[np.int32]  # shape (n_columns, most)
    found: npt.NDArray[np.int64]  # shape (n_records,); cells of each record; see `find_cells`
    lines: npt.NDArray[np.int64]  # shape (n_records,); number of the first line of each, from 1

    def column(self, k: int) -> Text:
        """Return the cells of a column."""
        n = len(self.found)
        return Text(self.text, self.begins[k, :n], self.ends[k, :n])


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
        self._record = 0.0  # bytes of a record; 0 before there is one
        self._free_texts: list[npt.NDArray[np.uint8]] = []
        self._free_places: list[Any] = []
        self._begin(dialect)
        self.names: list[str] = []
        first = self._first()
        if first is None:
            return
        if dialect.header:
            self.names = self._read_names(first)
            self._drop(first.end, first.n_lines)
        else:
            self.names = [str(k + 1) for k in range(len(first.cells))]
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

    def _read_names(self, first: _First) -> list[str]:
        text = b"".join(first.cells)
        if re.search(rb"[\x01-\x08]", text) and not _is_utf8(text):
            raise DataError(f"{self.place}: found no text; this looks like a binary file")
        if b"\0" in text:
            raise DataError(
                f"{self.place}: found no text; this looks like a binary file, or UTF-16, which "
                "--encoding utf-16-le reads"
            )
        if not _is_utf8(text):
            raise DataError(
                f"{self.place}: found names that are not UTF-8; give the encoding, such as "
                "--encoding latin-1"
            )
        if b"\r" in text and not first.n_lines:
            raise DataError(
                f"{self.place}: found lines that end with a carriage return alone; convert them, "
                "as with tr '\\r' '\\n'"
            )
        names = [cell.decode("utf-8", "surrogateescape").strip(" ") for cell in first.cells]
        return [name or nameless(k) for k, name in enumerate(names)]

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

    def _newlines(self, end: int | None = None, text: npt.NDArray[np.uint8] | None = None) -> int:
        part = (self._text if text is None else text)[: self._size if end is None else end]
        return int(np.count_nonzero(part == _NEWLINE))

    def _cut(self) -> _Piece | None:
        """Take the next records; None at the end."""
        while True:
            self._fill()
            if self._is_over and self._size and self._text[self._size - 1] != _NEWLINE:
                self._text[self._size] = _NEWLINE
                self._size += 1
            width = len(self.names)
            record = self._record or self._size / (1 + self._newlines())
            most = 1 + int(_MORE * self._size / max(1.0, record))
            most = max(1, min(most, _MOST_CELLS // max(1, width)))
            begins, ends = self._room(width, most), self._room(width, most)
            stops, found, lines = (np.empty(most, np.int64) for _ in range(3))
            separator, quote = ord(self._separator), ord(self._quote)
            n, n_lines, n_doubled = kernels.find_cells(
                self._text, self._size, separator, quote, width, begins, ends, stops, found, lines
            )
            if n:
                break
            if self._is_over:
                if self._text[: self._size].tobytes().strip(b"\r\n"):
                    raise DataError(f"{self._source.name}:{self._line}: {_NOT_CLOSED}")
                return None
            if self._size == len(self._text) - _SPARE:
                self._grow()
            self._fill(is_short=True)
        end = int(stops[n - 1])
        self._record = end / n
        if n_doubled:
            kernels.join_quotes(self._text, quote, begins, ends, n)
        piece = _Piece(self._text, begins, ends, found[:n], lines[:n] + self._line)
        size = len(self._text)  # the piece keeps this one
        free = [text for text in self._free_texts if len(text) == size]
        self._text = free[0] if free else np.empty(size, np.uint8)
        self._free_texts = free[1:]
        self._drop(end, n_lines, piece.text)
        return piece

    def _room(self, width: int, most: int) -> npt.NDArray[np.int32]:
        """Return an array for a place of each cell."""
        room = np.empty(0, np.int32)
        while self._free_places and len(room) < width * most:
            room = self._free_places.pop()
        if len(room) < width * most:
            room = np.empty(int(_MORE * width * most) + 1, np.int32)
        return room[: width * most].reshape(width, most)

    def _take_back(self, piece: _Piece) -> None:
        """Use the arrays of a piece again, because new ones cost as much as reading them."""
        self._free_texts.append(piece.text)
        self._free_places += [piece.begins.base, piece.ends.base]

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

    def _first(self) -> _First | None:
        """Find the first record, without a compiled lexer; None if there is none."""
        while True:
            text = self._text[: self._size].tobytes()
            begin = len(text) - len(text.lstrip(b"\r\n"))
            end, cells = _split_record(text, begin, ord(self._separator), ord(self._quote))
            if end or self._is_over:
                break
            if self._size == len(self._text) - _SPARE:
                self._grow()
            self._fill(is_short=True)
        if not end and begin == len(text):
            return None
        line = self._line + text.count(b"\n", 0, begin)
        self.place = f"{self._source.name}:{line}"
        if cells is None:
            raise DataError(f"{self.place}: {_QUOTES if end else _NOT_CLOSED}")
        end = end or len(text)
        return _First(cells, end, text.count(b"\n", 0, end))

    def _drop(self, end: int, n_lines: int, text: npt.NDArray[np.uint8] | None = None) -> None:
        """Remove the text up to `end`, of which the rest is in the buffer or in `text`."""
        self._taken += self._newlines(end, text) if self._pipe.is_pipe else 0
        rest = self._size - end
        self._text[:rest] = (self._text if text is None else text)[end : self._size].copy()
        self._size, self._line = rest, self._line + n_lines

    def _pieces(self) -> Iterator[_Piece]:
        while self._kept:
            yield self._kept.popleft()
        while (piece := self._cut()) is not None:
            yield piece

    # ------------------------------------------------------------------------------------- rows

    def head(self, n: int) -> Mapping[str, pa.Array]:
        import pyarrow as pa

        found = size = 0
        while found < n and size < HEAD_BYTES and (piece := self._cut()) is not None:
            self._kept.append(piece)
            found, size = found + len(piece.found), size + len(piece.text)
        parts: list[list[pa.Array]] = [[pa.nulls(0, pa.string())] for _ in self.names]
        for piece in self._kept:
            good = np.flatnonzero(piece.found == len(self.names))[:n]
            n -= len(good)
            for k, some in enumerate(parts):
                some.append(piece.column(k).take(good).as_arrow())
        return dict(zip(self.names, map(pa.concat_arrays, parts), strict=True))

    def rows(self, names: Sequence[str], most: int) -> Iterator[TableRows]:
        """Yield the rows of some columns; see `Table`."""
        place = {name: k for k, name in enumerate(self.names)}
        source, width = self._source.name, len(self.names)
        given: deque[_Piece] = deque()
        for piece in self._pieces():
            given.append(piece)
            columns = {name: piece.column(place[name]) for name in names}
            refused: dict[int, str] = {}
            for row in np.flatnonzero(piece.found != width).tolist():
                found = int(piece.found[row])
                wrong = f"found {found} cells, but the header has {width} columns"
                refused[row] = _QUOTES if found < 0 else wrong
            for first in range(0, len(piece.found), most):
                n = min(most, len(piece.found) - first)
                cells = {name: column.slice(first, n) for name, column in columns.items()}
                here = {k - first: why for k, why in refused.items() if first <= k < first + n}
                at_line = partial(_at, source, piece.lines[first : first + n])
                yield TableRows(cells, n, place=at_line, refused=here)
            # Rows of the last piece, and of one ahead of it, may not have been converted.
            if len(given) > 2:
                self._take_back(given.popleft())


class _First(NamedTuple):
    """The first record of a text."""

    cells: list[bytes]
    end: int
    n_lines: int  # line ends up to its end


def _split_record(
    text: bytes, begin: int, separator: int, quote: int
) -> tuple[int, list[bytes] | None]:
    """Return the end of a record, 0 if it is not complete, and its cells; see `find_cells`.

    There are no cells if text follows a closing quote, or a quote is not closed.
    """
    cells, is_wrong, is_quoted, at_begin, is_closed = [bytearray()], False, False, True, False
    end = 0
    for k in range(begin, len(text)):
        byte = text[k]
        if is_quoted:
            is_quoted, is_closed = byte != quote, byte == quote
            if is_quoted:
                cells[-1].append(byte)
        elif byte == _NEWLINE:
            end = k + 1
            break
        elif byte == separator:
            cells.append(bytearray())
            at_begin, is_closed = True, False
        elif byte == quote and (at_begin or is_closed):
            if is_closed:
                cells[-1].append(quote)
            is_quoted, at_begin, is_closed = True, False, False
        else:
            is_wrong |= is_closed and byte != ord("\r")
            at_begin = False
            if not is_closed:
                cells[-1].append(byte)
    if not is_closed and cells[-1][-1:] == b"\r":
        del cells[-1][-1]
    return end, None if is_wrong or is_quoted else [bytes(cell) for cell in cells]


_PLAIN = "; if quotes are plain text, use --quote with a character that does not occur"
_NOT_CLOSED = f"found a quote in this row that is never closed; close it{_PLAIN}"
_QUOTES = (
    "found text behind a closing quote; close each quote before the separator, and double quotes "
    f"inside a quoted cell{_PLAIN}"
)


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
