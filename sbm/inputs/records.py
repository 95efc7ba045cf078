"""Rows as records with lists of feature ids and values, in files of Arrow's formats.

The column ``label`` holds numbers or words, ``indices`` lists of integers, ``values`` lists of
numbers of the same length; without this column, all are 1. Other columns are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.columns.arrays import array_of, floats_of, integers_of, strings, valid_of
from sbm.inputs.columns.cells import (
    is_list,
    is_number,
    is_string,
    require_pyarrow,
    simplified,
    words_of,
)
from sbm.inputs.columns.kinds import MISSING, no_column
from sbm.inputs.matrices import Batch
from sbm.inputs.options import InputOptions
from sbm.inputs.parsing import as_floats
from sbm.inputs.text import Source
from sbm.plain import dataclass

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SparseRows:
    """Rows to write."""

    labels: Any
    numbers: npt.NDArray[np.float64]  # shape (n_rows,); the labels as numbers
    lengths: npt.NDArray[np.int32]  # shape (n_rows,); nonzeros of each row
    ids: npt.NDArray[np.int64]  # shape (nnz,)
    values: npt.NDArray[Any] | None  # shape (nnz,); None if every value is 1
    weights: npt.NDArray[np.float64] | None  # shape (n_rows,)


def is_sparse(schema: pa.Schema) -> bool:
    """Return whether a table holds lists of feature ids."""
    return "indices" in schema.names and _is_list_of(_is_integer)(schema.field("indices").type)


def read_records(table: Any, source: Source) -> Generator[Batch]:
    """Yield the rows of a table of records.

    Parameters
    ----------
    table : sbm.inputs.arrow.ArrowTable
    source : Source
    """
    source.is_sparse = True
    names = _sparse_columns(table.schema, source)
    for batch in table.batches(names, table.rows_of_lists()):
        yield _sparse_batch(batch, source.options, table.share(batch))


def _sparse_columns(schema: pa.Schema, source: Source) -> list[str]:
    """Check the types of list columns and of the labels, and return the names of those to read."""
    options = source.options
    label, may_lack = options.label or "label", options.labels is not True
    wanted = [("indices", _is_list_of(_is_integer), "lists of numbers")]
    if label in schema.names or not may_lack:
        wanted.insert(
            0, (label, lambda kind: _is_number(kind) or is_string(kind), "numbers or strings")
        )
    if "values" in schema.names:
        wanted.append(("values", _is_list_of(_is_number), "lists of numbers"))
    if options.weight is not None and (options.weight in schema.names or not may_lack):
        wanted.append((options.weight, _is_number, "numbers"))
    for column, is_fit, what in wanted:
        if schema.names.count(column) != 1:
            if column in schema.names:
                raise DataError(f"{source.name}: found column {column} twice; names must be unique")
            option = "weight" if column == options.weight else "label"
            raise DataError(
                f"{source.name}: found {no_column(column, schema.names, option)}; rows of "
                "indices and values also need a label"
            )
        kind = schema.field(column).type
        if not is_fit(kind):
            raise DataError(f"{source.name}: column {column} has type {kind}; expected {what}")
    if label in schema.names:
        kind = schema.field(label).type
        _note_labels(source, label, kind, is_string(kind))
    return [column for column, _, _ in wanted]


def _note_labels(source: Source, column: str, kind: pa.DataType, are_words: bool) -> None:
    """Note whether labels are words; raise `DataError` if they were otherwise before."""
    words = source.options.words
    if words.are_words not in (None, are_words):
        raise DataError(
            f"{source.name}: labels in column {column} have type {kind}, but {words.whose} are "
            f"{'words' if words.are_words else 'numbers'}; {words.advice}"
        )
    words.are_words = are_words


def _sparse_batch(batch: pa.RecordBatch, options: InputOptions, size: int) -> Batch:
    """Convert a batch of records; invalid rows have no nonzeros."""
    import pyarrow as pa

    lists = [batch.column(c) for c in ("indices", "values") if c in batch.schema.names]
    label = options.label or "label"
    y = batch.column(label) if label in batch.schema.names else None
    lengths, refused = _lengths(None if options.labels is not True else y, lists)
    good = np.ones(batch.num_rows, np.bool_)
    good[list(refused)] = False
    if refused:
        lists = [column.filter(array_of(good)) for column in lists]
    ids, *values = [_numbers(column.flatten()) for column in lists]
    labels, weights = np.full(batch.num_rows, np.nan), None
    if y is not None and options.words.are_words:
        codes, found = words_of(simplified(y), "words")
        table = [
            np.nan if word == MISSING else options.words.number(word) for word in found.to_pylist()
        ]
        labels = np.array([*table, np.nan])[codes]
    elif y is not None and pa.types.is_decimal(y.type):
        labels = np.array([np.nan if x is None else x for x in y.to_pylist()], object)
    elif y is not None:
        labels = _numbers(y)
    if options.weight is not None and options.weight in batch.schema.names:
        weights = as_floats(_numbers(batch.column(options.weight)))
        for row in np.flatnonzero(~((weights >= 0) & (weights < np.inf))).tolist():
            refused.setdefault(row, f"found {weights[row]} as the weight; expected at least 0")
    return Batch(
        labels, np.concatenate([[0], np.cumsum(lengths)]), ids,
        values[0] if values else np.ones(len(ids)), refused, size, weights=weights,
    )  # fmt: skip


def _lengths(
    label: pa.Array | None, lists: list[pa.Array]
) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    """Return the number of nonzeros of each row, and messages for the invalid rows, which get 0."""
    import pyarrow.compute as pc

    refused: dict[int, str] = {}
    lengths = [integers_of(pc.list_value_length(c)) for c in lists]
    for row in np.flatnonzero(lengths[0] != lengths[-1]).tolist():
        refused[row] = f"found {lengths[0][row]} indices but {lengths[1][row]} values"
    for column, n_listed, what in zip(lists, lengths, ("indices", "values"), strict=False):
        # A list that is null may still cover values; `flatten` leaves them out.
        listed = column.flatten()
        if listed.null_count:
            rows = np.repeat(np.arange(len(column)), n_listed)
            nulls = ~valid_of(listed)
            refused |= dict.fromkeys(rows[nulls].tolist(), f"found a null in the {what}")
        missing = np.flatnonzero(~valid_of(column))
        refused |= dict.fromkeys(missing.tolist(), f"found null instead of a list of {what}")
    if label is not None:
        missing = np.flatnonzero(~valid_of(label))
        refused |= dict.fromkeys(missing.tolist(), "found a null as the label")
    counts = lengths[0].astype(np.int64)
    counts[list(refused)] = 0
    return counts, refused


def _is_integer(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind))


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    if kinds.is_dictionary(kind):
        kind = kind.value_type
    others = (kinds.is_boolean, kinds.is_decimal, kinds.is_null)
    return is_number(kind) or any(is_it(kind) for is_it in others)


def _is_list_of(is_fit: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: is_list(kind) and is_fit(kind.value_type)


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Convert a column to numbers; null becomes nan."""
    import pyarrow.types as kinds

    column = simplified(column)
    if kinds.is_boolean(column.type):
        column = column.cast("int8")
    if kinds.is_null(column.type):
        column = column.cast("float64")
    return floats_of(column)


def write_rows(
    rows: Iterable[SparseRows], file: IO[bytes], kind: str, name: str, value_type: str
) -> None:
    """Write rows as records of ``label``, ``indices``, ``values`` and ``weight``.

    Parameters
    ----------
    kind : {"parquet", "feather"}
    name : str
        What is written, for messages.
    value_type : {"ones", "float32", "float64"}

    Raises
    ------
    DataError
        pyarrow is not installed.
    """
    require_pyarrow(f"writing {name} as {kind}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None
    for some in rows:
        ends = pa.array(np.concatenate([[0], np.cumsum(some.lengths)]).astype(np.int32))
        columns = {
            "label": pa.array(some.labels),
            "indices": pa.ListArray.from_arrays(ends, pa.array(some.ids)),
        }
        if some.values is not None:
            values = pa.array(some.values, pa.float32() if value_type == "float32" else None)
            columns["values"] = pa.ListArray.from_arrays(ends, values)
        if some.weights is not None:
            columns["weight"] = pa.array(some.weights)
        batch = pa.table(columns)
        if writer is None and kind == "parquet":
            writer = pq.ParquetWriter(file, batch.schema)
        elif writer is None:
            writer = pa.ipc.new_file(file, batch.schema)
        writer.write_table(batch)
    if writer is not None:
        writer.close()


class ParquetWriter:
    """Writes columns of words and numbers as Parquet.

    Parameters
    ----------
    file : binary file
    name : str
        For messages.

    Raises
    ------
    DataError
        pyarrow is not installed.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        require_pyarrow(f"writing {name}")
        self._file, self._writer = file, cast(Any, None)

    def add(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write rows; each call has the same columns."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = [
            strings(some.tolist(), pa.string()) if some.dtype == object else array_of(some)
            for some in columns.values()
        ]
        table = pa.Table.from_arrays(arrays, names=list(columns))
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        """Write the end of the file."""
        if self._writer is not None:
            self._writer.close()
