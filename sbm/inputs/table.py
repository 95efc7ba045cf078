"""Reader of CSV and TSV tables with a header; columns are features.

A cell that is a finite decimal number is the value of the feature named after the column. Any other
cell is a word: feature ``column=word`` with value 1. In categorical columns every cell is a word.
Empty cells and zeros are not features. The meaning of a cell depends only on the cell itself and
its column.

Ids are hashed as Vowpal Wabbit hashes ``| age:33 colour=red``; see `sbm.inputs.vw`.
"""

import csv
import io
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from sbm.errors import DataError
from sbm.inputs.columns import NO_LABEL, NOT_FINITE, Cells, Columns, as_bytes
from sbm.inputs.matrices import Batch, refuse_long_row
from sbm.inputs.parsing import LARGEST_VALUE
from sbm.inputs.text import LARGEST_LINE, PIECE, Source, unpacked

_CELLS = 1 << 16  # cells per piece
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_LIKE_NUMBERS = re.compile(r"[0-9+\-.eE]+")  # all characters of a column of numbers

_Record = tuple[int, list[str]]  # number of its first line, and its cells

_CONTROL, _NOT_UTF8 = re.compile("[\x00-\x08]"), re.compile("[\udc80-\udcff]")


def read_table(
    source: Source, dtype: str, largest_row: int, *, delimiter: str = ","
) -> Generator[Batch]:
    """Read a table in batches.

    Parameters
    ----------
    source : Source
        Its options name the columns; see `Columns.of`. The source receives its columns.
    dtype, largest_row
        As in `read_rows`.
    delimiter : str
        Separator of cells, which may be quoted as in CSV.

    Raises
    ------
    DataError
        The header is invalid, a line is too long, or quotes do not match.
    """
    with unpacked(source) as stream:
        lines = _TextLines(io.BufferedReader(stream), source.name, 8 * largest_row)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        records = _records(reader, source.name)
        names = _take_header(records, source)
        if not names:
            return
        columns = Columns.of(names, source.options, f"{source.name}:1")
        source.columns = columns.features
        refuse_long_row(f"{source.name}:1", len(names), largest_row)
        while some := _take_records(records, lines, len(names), stream.is_idle):
            yield _batch(columns, some, source.name, LARGEST_VALUE[dtype])


def read_header(source: Source, *, delimiter: str = ",") -> list[str]:
    """Return the names of the columns of a table, as `read_table` reads them; none if it is empty.

    Raises `DataError` if the header is invalid.
    """
    with unpacked(source) as stream:
        lines = _TextLines(io.BufferedReader(stream), source.name, LARGEST_LINE)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        return _take_header(_records(reader, source.name), source)


def _take_header(records: Iterator[_Record], source: Source) -> list[str]:
    names = next(records, (1, []))[1]
    if _CONTROL.search(title := "".join(names)) and _NOT_UTF8.search(title):
        raise DataError(f"{source.name}:1: found no text; this looks like a binary file")
    if len(names) == 1 and (other := next((c for c in ";\t" if c in names[0]), None)):
        raise DataError(
            f"{source.name}:1: found columns separated by {other!r}; "
            + ("use --format tsv" if other == "\t" else "separate them with commas")
        )
    return names


class _TextLines:
    """Iterator over lines of limited length that counts characters."""

    def __init__(self, stream: io.BufferedReader, name: str, largest: int) -> None:
        # Bytes that are not valid UTF-8 are kept: words are compared, not displayed.
        self._text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
        self._name, self._largest = name, largest
        self.n_characters = self.n_lines = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(self._largest)
        if not line:
            raise StopIteration
        if len(line) == self._largest:
            raise DataError(
                f"{self._name}: found a line longer than {self._largest} characters, which does "
                "not fit in --mem; raise --mem"
            )
        self.n_characters += len(line)
        self.n_lines += line.endswith("\n")
        return line


def _records(reader: Any, name: str) -> Iterator[_Record]:
    """Yield non-empty records with the number of their first line."""
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{name}:{line}: {error}; quotes must enclose a whole cell and be doubled inside it"
            ) from None
        if cells:
            yield line, cells


def _take_records(
    records: Iterator[_Record], lines: _TextLines, width: int, is_idle: Callable[[int], bool]
) -> list[_Record]:
    """Return the next records, about one piece of them, or those that a pipe has sent so far."""
    some: list[_Record] = []
    begin = lines.n_characters
    for record in records:
        some.append(record)
        is_full = len(some) * width >= _CELLS or lines.n_characters - begin >= PIECE // 4
        if is_full or is_idle(lines.n_lines):
            break
    return some


def _batch(columns: Columns, records: list[_Record], name: str, limit: float) -> Batch:
    """Convert records to rows; numbers above `limit` are invalid."""
    width = len(columns.names)
    refused: dict[int, str] = {}
    for row, (_, cells) in enumerate(records):
        if len(cells) != width:
            refused[row] = f"found {len(cells)} cells, but the header has {width} columns"
    nothing = [""] * width
    cells_of = zip(
        *(nothing if row in refused else r[1] for row, r in enumerate(records)), strict=True
    )

    def read() -> Iterator[tuple[int, Cells]]:
        for k, column in enumerate(cells_of):
            if k == columns.label and columns.options.words.are_words is None:
                columns.options.words.are_words = k in columns.text or _begins_with_word(column)
            if k == columns.label and not columns.options.words.are_words:
                yield k, _read(column, False)
            elif k not in columns.ignored:
                yield k, _read(column, k in columns.text or k == columns.label)

    return columns.batch(
        len(records), read(), refused, limit, place=lambda row: f"{name}:{records[row][0]}"
    )


def _begins_with_word(column: Sequence[str]) -> bool | None:
    """Whether the first label is a word; None if there is no label."""
    first = next((cell for cell in column if cell.strip() not in NO_LABEL), None)
    return None if first is None else not (_NUMBER.fullmatch(first) or NOT_FINITE.fullmatch(first))


def _read(column: Sequence[str], is_text: bool) -> Cells:
    """Parse each distinct cell of a column once."""
    if not is_text and _LIKE_NUMBERS.fullmatch("".join(column)):
        try:
            return Cells(np.array(list(map(float, column))), column.__getitem__)
        except ValueError:
            pass  # for example an empty cell or a date
    place = {cell: i for i, cell in enumerate(dict.fromkeys(column))}
    code = np.fromiter(map(place.__getitem__, column), np.int64, len(column))
    numbers = np.full(len(place), np.nan)
    words: list[bytes] = []
    word = np.full(len(place), -1)  # index into words
    for cell, i in place.items():
        if not is_text and _NUMBER.fullmatch(cell):
            numbers[i] = float(cell)
        elif cell and not cell.isspace():
            word[i] = len(words)
            words.append(as_bytes(cell))
    return Cells(numbers[code], column.__getitem__, words, word[code])
