"""Reader of Parquet files: a column of labels, and list columns of feature ids and values."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.matrices import Batch, digested, piece_nnz
from sbm.inputs.text import Source

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["read_parquet"]

_READ = 1 << 20  # bytes per read
_MOST_ROWS = 1 << 14  # most rows decoded at a time


def read_parquet(source: Source, dtype: str, largest_row: int) -> Generator[Batch]:
    """Read a Parquet file in batches.

    Parameters
    ----------
    source : Source
        A file with the columns ``label`` (numbers), ``indices`` (lists of integers: feature ids)
        and ``values`` (lists of numbers of the same length; without this column, all are 1). Other
        columns are ignored. The option `label` of the source names another label column. The
        source receives the digest of the file.
    dtype, largest_row
        As in `read_rows`.

    Yields
    ------
    Batch

    Raises
    ------
    DataError
        pyarrow is not installed, the file is damaged, or a column is missing.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(
            f"reading {source.name} needs pyarrow, which is not installed; run pip install pyarrow"
        ) from None
    label = source.options.label or "label"
    try:
        with (
            digested(source, [Path(source.name)]),
            pq.ParquetFile(source.name, buffer_size=_READ, pre_buffer=False) as file,
        ):
            may_lack = source.options.labels is not True
            names = _columns(file.schema_arrow, label, source.name, may_lack)
            n_rows = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(_batch_rows(file), columns=names, use_threads=False):
                size = source.size * batch.num_rows // n_rows
                yield _batch(batch, label if label in names else None, size, may_lack)
    except (pa.ArrowException, OSError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"cannot read {source.name} ({what}); it is damaged or not a Parquet file"
        ) from error


def _columns(schema: "pa.Schema", label: str, name: str, may_lack: bool) -> list[str]:
    """Check the types of the columns and return the names of those to read."""
    import pyarrow.types as kinds

    wanted = [("indices", _is_list_of(kinds.is_integer))]
    if label in schema.names or not may_lack:
        wanted.insert(0, (label, _is_number))
    if "values" in schema.names:
        wanted.append(("values", _is_list_of(_is_number)))
    for column, is_fit in wanted:
        if schema.names.count(column) != 1:
            raise DataError(
                f"{name} has no column {column}, only {', '.join(schema.names)[:200]}; expected "
                "label (or the column that --label names), indices and, optionally, values"
            )
        kind = schema.field(column).type
        if not is_fit(kind):
            what = "numbers" if column == label else "lists of numbers"
            raise DataError(f"{name}: column {column} has type {kind}; expected {what}")
    return [column for column, _ in wanted]


def _is_number(kind: "pa.DataType") -> bool:
    import pyarrow.types as kinds

    if kinds.is_dictionary(kind):
        kind = kind.value_type
    return any(is_it(kind) for is_it in (kinds.is_integer, kinds.is_floating, kinds.is_boolean))


def _is_list_of(is_fit: "Callable[[pa.DataType], bool]") -> "Callable[[pa.DataType], bool]":
    import pyarrow.types as kinds

    def is_list(kind: "pa.DataType") -> bool:
        lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
        return any(test(kind) for test in lists) and is_fit(kind.value_type)

    return is_list


def _batch_rows(file: "pq.ParquetFile") -> int:
    """Estimate from the file's metadata how many rows make a piece."""
    nnz = [
        group.column(k).num_values / max(1, group.num_rows)
        for group in map(file.metadata.row_group, range(file.num_row_groups))
        for k in range(group.num_columns)
        if group.column(k).path_in_schema.startswith("indices.")
    ]
    return max(1, min(_MOST_ROWS, int(piece_nnz() / max([1.0, *nnz]))))


def _batch(batch: "pa.RecordBatch", label: str | None, size: int, may_lack: bool) -> Batch:
    """Convert a batch of records; invalid rows have no nonzeros."""
    lists = [batch.column(c) for c in ("indices", "values") if c in batch.schema.names]
    y = None if label is None else batch.column(label)
    lengths, refused = _lengths(None if may_lack else y, lists)
    good = np.ones(batch.num_rows, np.bool_)
    good[list(refused)] = False
    ids, *values = [_flat(column, good) for column in lists]
    labels = np.full(batch.num_rows, np.nan) if y is None else _numbers(y)
    return Batch(
        labels, np.concatenate([[0], np.cumsum(lengths)]), ids,
        values[0] if values else np.ones(len(ids)), refused, size,
    )  # fmt: skip


def _lengths(
    label: "pa.Array | None", lists: "list[pa.Array]"
) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    """Return the number of nonzeros of each row, and messages for the invalid rows, which get 0."""
    import pyarrow.compute as pc

    refused: dict[int, str] = {}
    lengths = [pc.list_value_length(c).fill_null(0).to_numpy(zero_copy_only=False) for c in lists]
    for row in np.flatnonzero(lengths[0] != lengths[-1]).tolist():
        refused[row] = f"found {lengths[0][row]} indices but {lengths[1][row]} values"
    for column, what in zip(lists, ("indices", "values"), strict=False):
        if column.flatten().null_count:
            rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
            nulls = column.flatten().is_null().to_numpy(zero_copy_only=False)
            refused |= dict.fromkeys(rows[nulls].tolist(), f"found a null in the {what}")
        missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        refused |= dict.fromkeys(missing.tolist(), f"found null instead of a list of {what}")
    if label is not None:
        missing = np.flatnonzero(label.is_null().to_numpy(zero_copy_only=False))
        refused |= dict.fromkeys(missing.tolist(), "found a null as the label")
    counts = lengths[0].astype(np.int64)
    counts[list(refused)] = 0
    return counts, refused


def _flat(column: "pa.Array", good: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Concatenate the lists of the good rows."""
    import pyarrow as pa

    return _numbers((column if good.all() else column.filter(pa.array(good))).flatten())


def _numbers(column: "pa.Array") -> npt.NDArray[Any]:
    """Convert a column to numbers; null becomes nan."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kinds.is_boolean(column.type):
        column = column.cast("int8")
    return np.asarray(column.to_numpy(zero_copy_only=False))
