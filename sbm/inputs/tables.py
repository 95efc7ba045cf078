"""Reader of tables: rows of any tabular format, by the column model.

A format opens a source as a `Table`, an iterator of record batches. Everything else is here, once:
labels, weights, partitions in paths, and the conversion of columns to features.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.columns.arrays import joined, string
from sbm.inputs.columns.cells import (
    Cells,
    Text,
    decoded,
    dictionary_of,
    is_number,
    is_string,
    numbers_of,
    plain_numbers,
    shown,
    simplified,
    words_of,
)
from sbm.inputs.columns.convert import Converter, Ready
from sbm.inputs.columns.infer import SAMPLE
from sbm.inputs.columns.kinds import MISSING, no_column
from sbm.inputs.columns.state import Columns
from sbm.inputs.matrices import Batch
from sbm.inputs.options import InputOptions
from sbm.inputs.parsing import FIRST_ROUNDED, LARGEST_VALUE, ROUNDED_LABEL, is_rounded
from sbm.inputs.text import Source
from sbm.plain import dataclass
from sbm.units import shorten

if TYPE_CHECKING:
    import pyarrow as pa

NO_LABEL = ("", "?")  # label cells of rows without a label
_NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.ASCII | re.IGNORECASE)
_CELLS = 1 << 19  # cells converted at a time
HEAD_BYTES = 1 << 24  # of the first rows
_SAMPLED_CELLS = 1 << 20  # most cells that kinds are inferred from
_COLUMN_SHARE = 64  # a column takes as much memory as so many nonzeros
_PARTITION = re.compile(r"([^=/]+)=([^/]*)")
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_FLAGS = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class TableRows:
    """Consecutive rows of a table."""

    cells: Mapping[str, Any]  # by column: `Cells`, or what `Converter.prepare` makes of them
    n: int  # number of rows
    size: int = 0  # bytes of the source that they take; 0 if the reader counts them itself
    place: Callable[[int], str] | None = None  # as in `Batch`
    refused: dict[int, str] = field(default_factory=dict)  # messages about invalid rows


class Table(Protocol):
    """A table that is open for reading."""

    names: list[str]  # of its columns
    place: str  # of its header, for messages
    is_sparse: bool  # whether it holds lists of feature ids; see `sbm.inputs.records`

    def head(self, n: int) -> Mapping[str, pa.Array]:
        """Return the first `n` cells of each column; they are read again by `rows`."""
        ...

    def rows(self, names: Sequence[str], most: int) -> Iterator[TableRows]:
        """Yield the rows of some columns, at most about `most` at a time."""
        ...


Opener = Callable[[Source, int], AbstractContextManager[Table]]


def partitions(name: str) -> dict[str, str | None]:
    """Return the columns that the folders of a path stand for, as in ``day=2026-11-01/x.csv``."""
    found = {}
    for part in PurePosixPath(name).parts[:-1]:
        if match := _PARTITION.fullmatch(part):
            value = unquote(match[2])
            found[unquote(match[1])] = None if value == _NO_PARTITION else value
    return found


class _Partitioned:
    """A table with the columns that its path stands for."""

    def __init__(self, table: Table, more: Mapping[str, str | None]) -> None:
        self._table = table
        self._more = {k: v for k, v in more.items() if k not in table.names}
        self.names, self.place = [*table.names, *self._more], table.place
        self.is_sparse = False

    def _column(self, name: str, n: int) -> pa.Array:
        import pyarrow as pa

        value = self._more[name]
        return (
            pa.nulls(n, pa.string()) if value is None else pa.repeat(string(value, pa.string()), n)
        )

    def head(self, n: int) -> Mapping[str, pa.Array]:
        found = self._table.head(n)
        rows = len(next(iter(found.values()))) if found else 0
        return {**found, **{name: self._column(name, rows) for name in self._more}}

    def rows(self, names: Sequence[str], most: int) -> Iterator[TableRows]:
        own = [name for name in names if name not in self._more]
        for some in self._table.rows(own, most):
            more = {name: self._column(name, some.n) for name in names if name in self._more}
            yield replace(some, cells={**some.cells, **more})


@contextlib.contextmanager
def _opened(source: Source, opener: Opener, largest_row: int) -> Iterator[Table]:
    with opener(source, largest_row) as table:
        more = {} if source.chunks is not None else partitions(source.name)
        yield _Partitioned(table, more) if more and not table.is_sparse else table


def _refuse_many(table: Table, largest_row: int) -> None:
    """Raise `DataError` if there are more columns than fit in memory."""
    if len(table.names) * _COLUMN_SHARE > largest_row:
        raise DataError(
            f"{table.place}: found {len(table.names):,} columns, which do not fit in --mem; raise "
            "--mem"
        )


def _fit(
    table: Table,
    source: Source,
    largest_row: int,
    following: Sequence[tuple[Source, Opener]] = (),
) -> None:
    def head() -> Mapping[str, pa.Array]:
        n = max(1, min(SAMPLE, _SAMPLED_CELLS // len(table.names)))
        parts = [table.head(n)]
        for one, opener in following:
            n -= len(next(iter(parts[-1].values()), ()))
            if n <= 0 or sum(c.nbytes for part in parts for c in part.values()) > HEAD_BYTES:
                break
            with _peeked(one.again(), opener, largest_row) as other:
                parts += [] if other is None else [other.head(n)]
        return {name: joined([p[name] for p in parts if name in p]) for name in parts[0]}

    options = source.options
    options.table.fit(table.names, head, table.place, options.labels is True)


@contextlib.contextmanager
def _peeked(source: Source, opener: Opener, largest_row: int) -> Iterator[Table | None]:
    """Open a source as a table whose columns have names; None if it has none."""
    source.is_peeked = True
    with _opened(source, opener, largest_row) as table:
        has_columns = bool(table.names) and not table.is_sparse
        if has_columns:
            _refuse_many(table, largest_row)
        yield table if has_columns else None


def fit_columns(
    source: Source,
    opener: Opener,
    largest_row: int,
    following: Sequence[tuple[Source, Opener]] = (),
) -> None:
    """Compare the columns of a source with those known, or infer them.

    The source must be one that is not read afterwards. If it has few rows, kinds are inferred from
    those `following`, too.

    Raises `DataError` as `Columns.fit`.
    """
    with _peeked(source, opener, largest_row) as table:
        if table is not None:
            _fit(table, source, largest_row, following)


def check_names(source: Source, opener: Opener, largest_row: int, columns: Columns) -> None:
    """Compare the names of the columns of a source with those of others.

    The source must be one that is not read afterwards.

    Raises `DataError` as `Columns.check_names`.
    """
    with _peeked(source, opener, largest_row) as table:
        if table is not None:
            columns.check_names(table.names, table.place, source.options.labels is True)


def read_table(source: Source, dtype: str, largest_row: int, *, opener: Opener) -> Generator[Batch]:
    """Read a table in batches.

    Parameters
    ----------
    source : Source
        ``source.options.table`` has the columns, or receives them.
    dtype, largest_row
        As in `sbm.inputs.matrices.read_rows`.
    opener : callable
        Opens the source.

    Raises
    ------
    DataError
        The table is damaged, or does not fit the columns.
    """
    options, limit = source.options, LARGEST_VALUE[dtype]
    state = options.table
    with contextlib.ExitStack() as until:
        table = until.enter_context(_opened(source, opener, largest_row))
        if table.is_sparse:
            from sbm.inputs.records import read_records

            yield from read_records(table, source)
            return
        if not table.names:
            return
        _refuse_many(table, largest_row)
        _fit(table, source, largest_row)
        converter = state.converter
        here = set(table.names)
        wanted = [column.name for column in converter.columns if column.name in here]
        label = state.label if state.label in here and options.labels is not False else None
        weight = state.weight if state.weight in here else None
        tag = options.tag
        if tag is not None and tag not in here:
            raise DataError(f"{table.place}: found {no_column(tag, table.names, 'id')}")
        roles = [name for name in (label, weight, tag) if name is not None]
        most = max(1, _CELLS // max(1, converter.n_slots + len(roles)))
        is_sorted = not any(c.kind in ("words", "ids") for c in converter.columns)
        # Values are as they are for the digest, and for the sums of equal words of a list.
        value_type = dtype if is_sorted and source.chunks is None else "float64"
        names = list(dict.fromkeys([*roles, *wanted]))
        rows = _prepared(table.rows(names, most), converter)
        if source.chunks is None and source.comes_again:
            rows = until.enter_context(contextlib.closing(_one_ahead(rows)))
        for some in rows:
            refused = dict(some.refused)
            labels, weights = np.full(some.n, np.nan), None
            if label is not None and label in some.cells:
                labels = _labels(some.cells[label], options, refused)
            if weight is not None and weight in some.cells:
                weights = _weights(some.cells[weight], refused)
            rows_of = converter.convert(
                some.cells, some.n, limit, value_type, dtype != "float32", refused
            )
            tags = None if tag is None else _tags(some.cells[tag])
            yield Batch(
                labels, rows_of.indptr, rows_of.ids, rows_of.values, refused, some.size, some.place,
                weights=weights, tags=tags, is_sorted=is_sorted, changed=rows_of.changed,
                name_of=lambda feature: state.words.of(np.array([feature]))[0],
            )  # fmt: skip


def _prepared(rows: Iterator[TableRows], converter: Converter) -> Iterator[TableRows]:
    for some in rows:
        yield replace(some, cells=converter.prepare(some.cells))


def _one_ahead(rows: Iterator[TableRows]) -> Generator[TableRows]:
    """Yield the same rows, read one ahead in a thread."""
    with ThreadPoolExecutor(1, "sbm-table") as pool:
        coming = pool.submit(next, rows, None)
        while (some := coming.result()) is not None:
            coming = pool.submit(next, rows, None)
            yield some


def _tags(cells: Any) -> npt.NDArray[np.object_]:
    """Return cells as texts."""
    if isinstance(cells, Ready):
        cells = cells.cells
    if not isinstance(cells, Text) and not is_string(cells.type):
        import pyarrow as pa

        cells = cells.cast(pa.string())
    return np.array(decoded(cells), object)


def _weights(cells: Cells, refused: dict[int, str]) -> npt.NDArray[np.float64]:
    column = simplified(cells)
    weights, _ = numbers_of(column)
    for row in np.flatnonzero(~((weights >= 0) & (weights < np.inf))).tolist():
        refused.setdefault(
            row,
            f"found {shorten(shown(column, row))!r} as the weight, where a number of at least 0 is "
            "expected",
        )
    return weights


def _labels(
    cells: Cells, options: InputOptions, refused: dict[int, str]
) -> npt.NDArray[np.float64]:
    """Return labels as numbers, and refuse the rows with an invalid label."""
    words, column = options.words, simplified(cells)
    name = options.table.label or ""
    if words.are_words is None:
        words.are_words = _are_words(column, options.table.asked.kind_of(name))
    if words.are_words:
        if isinstance(column, Text):
            codes, table = dictionary_of(column)
        else:
            codes, table = words_of(column, "words" if _is_text(column) else "flags")
        texts = [" ".join(word.split()) for word in decoded(table)]
        numbers = [
            np.nan if text in NO_LABEL or text == MISSING else words.number(text) for text in texts
        ]
        labels = np.array([*numbers, np.nan])[codes]
    elif _is_text(column):
        labels = _number_labels(column)
    else:
        labels, _ = numbers_of(column)
    if not words.are_words and not options.targets:
        for row in np.flatnonzero(np.abs(labels) >= FIRST_ROUNDED).tolist():
            if is_rounded(text := shown(cells, row), labels[row]):
                refused.setdefault(row, ROUNDED_LABEL.format(token=repr(text)))
    allowed = () if options.labels else NO_LABEL
    for row in np.flatnonzero(~np.isfinite(labels)).tolist():
        cell = shown(column, row)
        cell = "" if cell == "nan" and not _is_text(column) and is_number(column.type) else cell
        if cell.strip() in allowed:
            continue
        expected = "where a label is expected"
        if not words.are_words:
            expected = "where a numeric label is expected"
            if _NOT_FINITE.fullmatch(cell) or np.isinf(labels[row]):
                expected = "as the label, but only finite numbers are allowed"
            elif cell.strip() not in NO_LABEL:
                expected += f", as {words.whose} are numbers; {words.advice}"
        refused.setdefault(row, f"found {shorten(cell, 40)!r} {expected}")
    return labels


def _is_text(column: Cells) -> bool:
    return isinstance(column, Text) or is_string(column.type)


def _are_words(column: Cells, kind: str | None) -> bool | None:
    """Return whether labels are words, as the first one says; None if there is no label."""
    if kind == "category":
        return True
    if not _is_text(column):
        return None if column.null_count == len(column) else False
    codes, words = words_of(column, "words")
    texts = decoded(words)
    for code in codes.tolist():
        text = texts[code].strip()
        if text not in NO_LABEL and text != MISSING:
            is_flag = text.lower() in _FLAGS
            return not (is_flag or _is_number(text) or _NOT_FINITE.fullmatch(text))
    return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", text, re.ASCII) is not None


def _number_labels(column: Cells) -> npt.NDArray[np.float64]:
    """Return labels that are text as numbers; true is 1, false is 0."""
    if isinstance(column, Text):
        return plain_numbers(column, _numbers_of_labels)
    codes, words = words_of(column, "words")
    return np.append(_numbers_of_labels(words), np.nan)[codes]


def _numbers_of_labels(words: pa.Array) -> npt.NDArray[np.float64]:
    numbers = []
    for text in decoded(words):
        plain = text.strip()
        flag = _FLAGS.get(plain.lower())
        is_infinite = _NOT_FINITE.fullmatch(plain) and plain.lower().lstrip("+-")[:1] != "n"
        is_one = _is_number(plain) or is_infinite
        numbers.append(flag if flag is not None else float(plain) if is_one else np.nan)
    return np.array(numbers, np.float64)
