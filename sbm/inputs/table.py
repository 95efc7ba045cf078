"""Reader of CSV and TSV tables with a header; columns are features.

A cell that is a finite decimal number is the value of the feature named after the column. Any other
cell is a word: feature ``column=word`` with value 1. In text columns every cell is a word. Empty
cells and zeros are not features. The meaning of a cell depends only on the cell itself and its
column.

Ids are hashed as Vowpal Wabbit hashes ``| age:33 colour=red``; see `sbm.inputs.vw`.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.matrices import Batch, refuse_long_row
from sbm.inputs.parsing import LARGEST_VALUE, InputOptions
from sbm.inputs.text import PIECE, Source, unpacked
from sbm.inputs.vw import hash_names

__all__ = ["read_table"]

_LABELS = ("label", "y", "target")  # default names of the label column
_NO_LABEL = ("", "?")  # label cells of rows without a label
_CELLS = 1 << 16  # cells per piece
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_LIKE_NUMBERS = re.compile(r"[0-9+\-.eE]+")  # all characters of a column of numbers
_NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.ASCII | re.IGNORECASE)

_NONE = np.empty(0, np.int64)
_Floats = npt.NDArray[np.float64]
_Record = tuple[int, list[str]]  # number of its first line, and its cells


def read_table(
    source: Source, dtype: str, largest_row: int, *, delimiter: str = ","
) -> Generator[Batch]:
    """Read a table in batches.

    Parameters
    ----------
    source : Source
        Options used: `label`, the column of numeric labels (default: the one named label, y or
        target); `text`, columns of words; `hash_bits`. The source receives its columns.
    dtype, largest_row
        As in `read_rows`.
    delimiter : str
        Separator of cells, which may be quoted as in CSV.

    Yields
    ------
    Batch

    Raises
    ------
    DataError
        The header is invalid, a line is too long, or quotes do not match.
    """
    with unpacked(source) as stream:
        lines = _TextLines(io.BufferedReader(stream), source.name, 8 * largest_row)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        records = _records(reader, source.name)
        names = next(records, (1, []))[1]
        columns = _Columns.of(names, source.options, source.name)
        source.columns = [name for k, name in enumerate(names) if k != columns.label]
        refuse_long_row(f"{source.name}:1", len(names), largest_row)
        while some := _take_records(records, lines, len(names)):
            yield columns.batch(some, LARGEST_VALUE[dtype])


class _TextLines:
    """Iterator over lines of limited length that counts characters."""

    def __init__(self, stream: io.BufferedReader, name: str, largest: int) -> None:
        # Bytes that are not valid UTF-8 are kept: words are compared, not displayed.
        self._text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
        self._name, self._largest = name, largest
        self.n_characters = 0

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


def _take_records(records: Iterator[_Record], lines: _TextLines, width: int) -> list[_Record]:
    """Return the next records, about one piece of them."""
    some: list[_Record] = []
    begin = lines.n_characters
    for record in records:
        some.append(record)
        if len(some) * width >= _CELLS or lines.n_characters - begin >= PIECE // 4:
            break
    return some


@dataclass(frozen=True)
class _Columns:
    """The columns of a table."""

    source: str
    names: list[str]
    label: int  # -1 if there is no label column
    labels: bool | None  # as in `InputOptions`
    text: frozenset[int]
    ids: npt.NDArray[np.int64]
    hash_bits: int

    @classmethod
    def of(cls, names: list[str], options: InputOptions, source: str) -> "_Columns":
        """Check the header and find the label column and the text columns."""
        assert options.hash_bits is not None
        if len(names) == 1 and (other := next((c for c in ";\t" if c in names[0]), None)):
            raise DataError(
                f"{source}:1: found columns separated by {other!r}; "
                + ("use --format tsv" if other == "\t" else "separate them with commas")
            )
        twice = [name for name, n in Counter(names).items() if n > 1]
        if twice:
            raise DataError(f"{source}:1: found column {twice[0]} twice; names must be unique")
        if "" in names:
            raise DataError(
                f"{source}:1: found a column without a name; add one (with pandas, write "
                "to_csv(index=False))"
            )
        given = _LABELS if options.label is None else (options.label,)
        found = [name for name in given if name in names and name not in options.columns]
        if len(found) > 1 or (not found and options.labels is True):
            what = " and ".join(found) or f"no {' or '.join(given)}"
            raise DataError(
                f"{source}:1: found {what} among the columns {_some(names)}; choose the label "
                "column with --label"
            )
        missing = [name for name in options.text or () if name not in names]
        if missing and options.labels is True:
            raise DataError(
                f"{source}:1: column {missing[0]} of --text not found; columns are {_some(names)}"
            )
        text = frozenset(names.index(name) for name in options.text or () if name in names)
        ids = hash_names([_bytes(name) for name in names], options.hash_bits)
        label = names.index(found[0]) if found else -1
        return cls(source, names, label, options.labels, text, ids, options.hash_bits)

    def batch(self, records: list[_Record], limit: float) -> Batch:
        """Convert records to rows; numbers above `limit` are invalid."""
        n, width = len(records), len(self.names)
        refused: dict[int, str] = {}
        for row, (_, cells) in enumerate(records):
            if len(cells) != width:
                refused[row] = f"found {len(cells)} cells, but the header has {width} columns"
        nothing = [""] * width
        cells_of = zip(
            *(nothing if row in refused else r[1] for row, r in enumerate(records)), strict=True
        )
        rows: list[npt.NDArray[np.int64]] = [_NONE]
        ids: list[npt.NDArray[np.int64]] = [_NONE]
        values: list[_Floats] = [np.empty(0)]
        labels = np.full(n, np.nan)
        for k, column in enumerate(cells_of):
            if k == self.label and self.labels is False:
                continue
            numbers, words, word_ids = self._read(k, column)
            if k == self.label:
                labels = numbers
                _refuse_labels(column, numbers, refused, () if self.labels else _NO_LABEL)
                continue
            for row in np.flatnonzero(np.abs(numbers) > limit).tolist():
                refused.setdefault(row, self._too_large(k, column[row]))
            here = np.flatnonzero((numbers != 0) & ~np.isnan(numbers))
            rows += [here, words]
            ids += [np.full(len(here), self.ids[k]), word_ids]
            values += [numbers[here], np.ones(len(words))]
        row_of = np.concatenate(rows)
        order = np.argsort(row_of, kind="stable")
        return Batch(
            labels,
            np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=n))]),
            np.concatenate(ids)[order], np.concatenate(values)[order], refused,
            place=lambda row: f"{self.source}:{records[row][0]}",
        )  # fmt: skip

    def _read(
        self, k: int, column: Sequence[str]
    ) -> tuple[_Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the numbers of a column (nan for other cells), the rows with words and their ids.

        Each distinct cell is parsed once.
        """
        if k not in self.text and _LIKE_NUMBERS.fullmatch("".join(column)):
            try:
                return np.array(list(map(float, column))), _NONE, _NONE
            except ValueError:
                pass  # for example an empty cell or a date
        place = {cell: i for i, cell in enumerate(dict.fromkeys(column))}
        code = np.fromiter(map(place.__getitem__, column), np.int64, len(column))
        numbers = np.full(len(place), np.nan)
        names: list[bytes] = []
        name = _bytes(self.names[k]) + b"="
        word = np.full(len(place), -1)  # index into names
        for cell, i in place.items():
            if k not in self.text and _NUMBER.fullmatch(cell):
                numbers[i] = float(cell)
            elif cell and not cell.isspace():
                word[i] = len(names)
                names.append(name + _bytes(cell))
        words = word[code]
        rows = np.flatnonzero(words >= 0)
        return numbers[code], rows, hash_names(names, self.hash_bits)[words[rows]]

    def _too_large(self, column: int, cell: str) -> str:
        return (
            f"found {cell.strip()} in column {self.names[column]}, too large for the value type "
            "(limit: float64 1.79e308, float32 3.4e38; see --dtype)"
        )


def _refuse_labels(
    column: Sequence[str], numbers: _Floats, refused: dict[int, str], allowed: Sequence[str]
) -> None:
    """Add the rows with an invalid label to `refused`; words in `allowed` mean no label."""
    for row in np.flatnonzero(~np.isfinite(numbers)).tolist():
        if column[row].strip() in allowed:
            continue
        cell = column[row] if len(column[row]) <= 40 else column[row][:37] + "..."
        expected = "where a numeric label is expected"
        if _NOT_FINITE.fullmatch(cell) or np.isinf(numbers[row]):
            expected = "as the label, but only finite numbers are allowed"
        refused.setdefault(row, f"found {cell!r} {expected}")


def _some(names: list[str]) -> str:
    shown = ", ".join(names)
    return shown if len(shown) <= 200 else shown[:197] + "..."


def _bytes(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")
