"""Reader of Arrow's formats: Parquet and Feather files, and data frames in memory.

A table has a column of labels and a column for each feature, as in `sbm.inputs.columns`; or list
columns ``indices`` and ``values`` of feature ids and values.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.columns import Cells, Columns, no_column
from sbm.inputs.matrices import Batch, digested, piece_nnz
from sbm.inputs.parsing import LARGEST_VALUE, InputOptions, as_floats
from sbm.inputs.text import Source
from sbm.plain import dataclass
from sbm.units import first_line, shorten

if TYPE_CHECKING:
    import pyarrow as pa

_READ = 1 << 16  # bytes per read of a column
_PAGE = 1 << 20  # largest page that writers make by default
_MOST_ROWS = 1 << 14  # most rows decoded at a time
_LISTS = 1 << 10  # rows with lists decoded at a time, if their lengths are unknown
_MOST_KINDS = 3  # of cells named in a message
_CELL = 16  # bytes of a cell of a data frame, for progress


@dataclass(frozen=True)
class SparseRows:
    """Rows to write."""

    labels: Any
    numbers: npt.NDArray[np.float64]  # shape (n_rows,); the labels as numbers
    lengths: npt.NDArray[np.int32]  # shape (n_rows,); nonzeros of each row
    ids: npt.NDArray[np.int64]  # shape (nnz,)
    values: npt.NDArray[Any] | None  # shape (nnz,); None if every value is 1
    weights: npt.NDArray[np.float64] | None  # shape (n_rows,)


def _require_pyarrow(what: str) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise DataError(
            f"{what} needs pyarrow, which is not installed; run pip install pyarrow"
        ) from None


def frame_source(frame: Any, name: str, options: InputOptions) -> Source:
    """Return a source of the rows of a data frame.

    Parameters
    ----------
    frame : object with ``__arrow_c_stream__``
    name : str
        Name in the manifest.
    """
    shape = getattr(frame, "shape", (0, 0))
    size = _CELL * int(shape[0]) * int(shape[1])
    return Source(name, size, chunks=frame, format="frame", options=options)


def read_arrow(source: Source, dtype: str, largest_row: int) -> Generator[Batch]:
    """Read a Parquet or Feather file, or a data frame, in batches.

    Parameters
    ----------
    source : Source
        A table with a column for each feature; see `Columns.of`. Or a file with the columns
        ``label`` (numbers or words), ``indices`` (lists of integers: feature ids), ``values``
        (lists of numbers of the same length; without this column, all are 1) and, with the option
        `weight`, weights; other columns are then ignored. The source receives the digest of a file.
    dtype, largest_row
        As in `read_rows`.

    Raises
    ------
    DataError
        pyarrow is not installed, the file is damaged, a column is missing, or has an invalid type.
    """
    _require_pyarrow(f"reading {source.name}")
    with _noting_damage(source):
        if source.chunks is not None:
            yield from _read(source, _Frame(_stream_of(source.chunks, source.name)), dtype)
            return
        with _opened(source) as file, digested(source, [Path(source.file)]):
            yield from _read(source, file, dtype)


def _is_sparse(schema: pa.Schema) -> bool:
    return "indices" in schema.names and _is_list_of(_is_integer)(schema.field("indices").type)


def find_layout(source: Source) -> None:
    """Set `is_sparse` of a source that is a file.

    Raises `DataError` if pyarrow is not installed, or the file is damaged.
    """
    _require_pyarrow(f"reading {source.name}")
    with _noting_damage(source), _opened(source) as file:
        source.is_sparse = _is_sparse(file.schema)
        source.header = [] if source.is_sparse else list(file.schema.names)
        source.reader_bytes += file.page_bytes(source.size)


@contextlib.contextmanager
def _noting_damage(source: Source) -> Iterator[None]:
    """Turn errors of pyarrow into `DataError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last from names
        what = first_line(error)
        if source.chunks is not None:
            raise DataError(f"{source.name}: cannot read the data frame ({what})") from error
        raise DataError(
            f"cannot read {source.name} ({what}); it is damaged or not a {source.format} file"
        ) from error


def _stream_of(frame: Any, name: str) -> pa.RecordBatchReader:
    """Return the record batches of a data frame.

    Raises `DataError` if the library that holds it cannot convert a column.
    """
    import pyarrow as pa

    # The sizes of buffers, which `_validate` compares, do not pass through ``__arrow_c_stream__``.
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return frame.to_reader()
    try:
        return pa.RecordBatchReader.from_stream(frame)
    except Exception as error:  # of any library
        sentence = _unfit_column(frame) or " ".join(map(str, error.args)) or type(error).__name__
        raise DataError(f"{name}: {' '.join(sentence.split())}") from error


def _unfit_column(frame: Any) -> str:
    """Return what is wrong with the first column of a pandas frame that has no type of Arrow."""
    import pyarrow as pa

    names = list(getattr(frame, "columns", []))
    for name in names:
        shown = shorten(str(name))
        if names.count(name) > 1:
            return f"found column {shown} twice; names must be unique"
        if hasattr(frame[name], "sparse"):
            return f"column {shown} is sparse; convert it with .sparse.to_dense()"
        try:
            pa.array(frame[name], from_pandas=True)
        except Exception as error:
            kinds = Counter(type(cell).__name__ for cell in frame[name] if cell is not None)
            held = [kind for kind, _ in kinds.most_common(_MOST_KINDS)]
            why = f" ({shorten(str(error.args[0]), 120)})" if len(held) == 1 and error.args else ""
            return (
                f"column {shown} holds {' and '.join(held)}{why}; convert it to numbers or to "
                "strings, or drop it"
            )
    return ""


def _validate(batch: pa.RecordBatch, name: str, first: int) -> None:
    """Check offsets, codes, lengths and UTF-8, which pyarrow does not check when it reads.

    Parameters
    ----------
    name : str
        The source.
    first : int
        Number of the first row.

    Raises
    ------
    DataError
        A column is damaged.
    """
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        what = first_line(error)
        for k, column in enumerate(batch.schema.names):
            what = what.replace(f"In column {k}: Invalid: ", f"column {column}: ", 1)
        raise DataError(
            f"{name}, rows {first} to {first + batch.num_rows - 1}: the data is damaged ({what}); "
            "write it again"
        ) from error


class _Frame:
    """A stream of record batches.

    Attributes
    ----------
    schema : pyarrow.Schema
    """

    def __init__(self, batches: Any) -> None:
        self.schema = batches.schema
        self._batches = batches

    def share(self, batch: pa.RecordBatch, size: int) -> int:
        """Return the bytes of a source of `size` bytes that a batch takes."""
        n_rows: int = batch.num_rows
        return _CELL * n_rows * len(self.schema.names)

    def batches(self, columns: list[str], most: int, name: str) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the rows of source `name`, valid, at most `most` rows at a time."""
        row = 1
        for batch in self._stored(columns, most):
            _validate(batch, name, row)
            row += batch.num_rows
            for first in range(0, batch.num_rows, most):
                yield batch.slice(first, most)

    def _stored(self, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the rows as they are stored."""
        for batch in self._batches:
            yield batch.select(columns)

    def rows_of_lists(self) -> int:
        """Estimate how many rows with lists make a piece."""
        return _LISTS

    def page_bytes(self, size: int) -> int:
        """Estimate the bytes of the file, of `size` bytes, that are in memory at a time."""
        return 0


class _FeatherFile(_Frame):
    """A Feather file, whose record batches are read one at a time."""

    def _stored(self, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        for k in range(self._batches.num_record_batches):
            yield self._batches.get_batch(k).select(columns)

    def page_bytes(self, size: int) -> int:
        n_batches: int = self._batches.num_record_batches
        return 4 * size // max(1, n_batches)  # it may be compressed

    def share(self, batch: pa.RecordBatch, size: int) -> int:
        n_rows: int = batch.num_rows
        return size * n_rows // self._n_rows

    @cached_property
    def _n_rows(self) -> int:
        """Number of rows, if all batches are as large as the first."""
        n_batches: int = self._batches.num_record_batches
        return max(1, n_batches * len(self._batches.get_batch(0)))


class _ParquetFile(_Frame):
    """A Parquet file, whose pages are read one at a time.

    `pyarrow.dataset` would decode whole row groups, which need not fit in memory: of a group of 193
    MB, it takes 641 MB, and this 106 MB.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.schema = file.schema_arrow

    def _stored(self, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        yield from self._batches.iter_batches(most, columns=columns, use_threads=False)

    def share(self, batch: pa.RecordBatch, size: int) -> int:
        n_rows: int = batch.num_rows
        in_all: int = self._batches.metadata.num_rows
        return size * n_rows // max(1, in_all)

    def _groups(self) -> Iterator[Any]:
        """Yield the metadata of each row group."""
        for k in range(self._batches.num_row_groups):
            # Begin to read the group, without a row. If the metadata of a column is damaged, this
            # raises an error, while `RowGroupMetaData.column` would abort the process.
            next(self._batches.reader.iter_batches(0, [k], use_threads=False), None)
            yield self._batches.metadata.row_group(k)

    def rows_of_lists(self) -> int:
        nnz = [
            group.column(k).num_values / max(1, group.num_rows)
            for group in self._groups()
            for k in range(group.num_columns)
            if group.column(k).path_in_schema.startswith("indices.")
        ]
        return max(1, min(_MOST_ROWS, int(piece_nnz() / max([1.0, *nnz]))))

    def page_bytes(self, size: int) -> int:
        pages = (
            sum(_page_of(group.column(k)) for k in range(group.num_columns))
            for group in self._groups()
        )
        return max(pages, default=0)


def _page_of(column: Any) -> int:
    """Estimate the bytes of a page of a column, and of its dictionary."""
    most = _PAGE * (2 if column.has_dictionary_page else 1) + _READ
    return min(most, int(column.total_uncompressed_size))


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[_Frame]:
    """Open a file for reading in pieces."""
    import pyarrow as pa

    if source.format == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(source.file, buffer_size=_READ, pre_buffer=False) as file:
            yield _ParquetFile(file)
    else:
        with pa.OSFile(source.file) as file, pa.ipc.open_file(file) as reader:
            yield _FeatherFile(reader)


def _read(source: Source, data: _Frame, dtype: str) -> Generator[Batch]:
    """Yield the rows of a table."""
    schema = data.schema
    source.is_sparse = _is_sparse(schema)
    if source.is_sparse:
        names = _sparse_columns(schema, source)
        for batch in data.batches(names, data.rows_of_lists(), source.name):
            yield _sparse_batch(batch, source.options, data.share(batch, source.size))
        return
    columns = Columns.of(schema.names, source.options, source.name)
    source.columns = columns.features
    source.categorical = _check_types(schema, columns, source)
    chosen = [k for k in range(len(schema.names)) if k not in columns.ignored]
    most = max(1, min(_MOST_ROWS, piece_nnz() // max(1, len(chosen))))
    for batch in data.batches([schema.names[k] for k in chosen], most, source.name):
        cells = ((k, _cells(batch.column(schema.names[k]), k in columns.text)) for k in chosen)
        size = data.share(batch, source.size)
        yield columns.batch(batch.num_rows, cells, {}, LARGEST_VALUE[dtype], size=size)


def _check_types(schema: pa.Schema, columns: Columns, source: Source) -> list[str]:
    """Check the types of the columns and return those that hold words.

    Raises `DataError` if a type is neither numbers nor words, or differs from that in the sources
    before.
    """
    options, words = source.options, []
    for k, name in enumerate(schema.names):
        if k in columns.ignored:
            continue
        kind = schema.field(name).type
        if not (_is_number(kind) or _is_word(kind)):
            is_feature = k not in (columns.label, columns.weight)
            advice = f"--exclude {name} leaves it out" if is_feature else "convert it"
            raise DataError(
                f"{source.name}: column {name} has type {kind}; expected numbers, strings or "
                f"booleans ({advice})"
            )
        is_word = k in columns.text or _is_word(kind)
        if k == columns.label:
            if options.labels is True or options.words.are_words is None:
                _note_labels(source, name, kind, is_word)
        elif k == columns.weight and is_word:
            raise DataError(
                f"{source.name}: weights in column {name} have type {kind}; expected numbers"
            )
        elif k != columns.weight:
            before = options.kinds[name]
            options.kinds[name] = is_word
            if before not in (None, is_word):
                held = "words" if before else "numbers"
                raise DataError(
                    f"{source.name}: column {name} has type {kind}, but held {held} in earlier "
                    "data; convert it, or name it with --categorical or --exclude for all files"
                )
            words += [name] if is_word else []
    return words


def _cells(column: pa.Array, is_text: bool) -> Cells:
    """Convert a column of a batch."""
    import pyarrow as pa

    def text(row: int) -> str:
        value = column[row].as_py()
        return "" if value is None else str(value)

    if not is_text and not _is_word(column.type):
        return Cells(as_floats(_numbers(column), copy=False), text)
    if pa.types.is_dictionary(column.type) and _is_word(column.type):
        encoded = column
    else:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        encoded = column.cast(pa.large_string()).dictionary_encode()
    codes = encoded.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    used = np.unique(codes[codes >= 0])
    words = encoded.dictionary
    if pa.types.is_string_view(words.type):
        words = words.cast(pa.large_string())
    found = words.take(pa.array(used)).to_pylist()
    kept = [k for k, word in enumerate(found) if word is not None and word.strip()]
    place = np.full(len(encoded.dictionary) + 1, -1)
    place[used[kept]] = np.arange(len(kept))
    return Cells(None, text, [found[k].encode() for k in kept], place[codes])


def _sparse_columns(schema: pa.Schema, source: Source) -> list[str]:
    """Check the types of list columns and of the labels, and return the names of those to read."""
    options = source.options
    label, may_lack = options.label or "label", options.labels is not True
    wanted = [("indices", _is_list_of(_is_integer), "lists of numbers")]
    if label in schema.names or not may_lack:
        wanted.insert(
            0, (label, lambda kind: _is_number(kind) or _is_word(kind), "numbers or strings")
        )
    if "values" in schema.names:
        wanted.append(("values", _is_list_of(_is_number), "lists of numbers"))
    if options.weight is not None and (options.weight in schema.names or not may_lack):
        wanted.append((options.weight, _is_number, "numbers"))
    for column, is_fit, what in wanted:
        if schema.names.count(column) != 1:
            if column in schema.names:
                raise DataError(f"{source.name}: found column {column} twice; names must be unique")
            option = "--weight" if column == options.weight else "--label"
            raise DataError(
                f"{source.name}: found {no_column(column, schema.names, option)}; rows of "
                "indices and values also need a label"
            )
        kind = schema.field(column).type
        if not is_fit(kind):
            raise DataError(f"{source.name}: column {column} has type {kind}; expected {what}")
    if label in schema.names:
        kind = schema.field(label).type
        _note_labels(source, label, kind, _is_word(kind))
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


def _is_integer(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind))


def _is_word(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    if kinds.is_dictionary(kind):
        kind = kind.value_type
    return any(
        is_it(kind) for is_it in (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
    )


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    if kinds.is_dictionary(kind):
        kind = kind.value_type
    numbers = (
        kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal, kinds.is_null
    )  # fmt: skip
    return any(is_it(kind) for is_it in numbers)


def _is_list_of(is_fit: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    import pyarrow.types as kinds

    def is_list(kind: pa.DataType) -> bool:
        lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
        return any(test(kind) for test in lists) and is_fit(kind.value_type)

    return is_list


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
        lists = [column.filter(pa.array(good)) for column in lists]
    ids, *values = [_numbers(column.flatten()) for column in lists]
    labels, weights = np.full(batch.num_rows, np.nan), None
    if y is not None and options.words.are_words:
        cells = _cells(y, True)
        table = [options.words.number(word.decode()) for word in cells.words]
        labels = np.array([*table, np.nan])[cells.codes]
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
    lengths = [pc.list_value_length(c).fill_null(0).to_numpy(zero_copy_only=False) for c in lists]
    for row in np.flatnonzero(lengths[0] != lengths[-1]).tolist():
        refused[row] = f"found {lengths[0][row]} indices but {lengths[1][row]} values"
    for column, n_listed, what in zip(lists, lengths, ("indices", "values"), strict=False):
        # A list that is null may still cover values; `flatten` leaves them out.
        listed = column.flatten()
        if listed.null_count:
            rows = np.repeat(np.arange(len(column)), n_listed)
            nulls = listed.is_null().to_numpy(zero_copy_only=False)
            refused |= dict.fromkeys(rows[nulls].tolist(), f"found a null in the {what}")
        missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        refused |= dict.fromkeys(missing.tolist(), f"found null instead of a list of {what}")
    if label is not None:
        missing = np.flatnonzero(label.is_null().to_numpy(zero_copy_only=False))
        refused |= dict.fromkeys(missing.tolist(), "found a null as the label")
    counts = lengths[0].astype(np.int64)
    counts[list(refused)] = 0
    return counts, refused


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Convert a column to numbers; null becomes nan."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kinds.is_boolean(column.type):
        column = column.cast("int8")
    if kinds.is_decimal(column.type) or kinds.is_null(column.type):
        column = column.cast("float64")
    return np.asarray(column.to_numpy(zero_copy_only=False))


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
    _require_pyarrow(f"writing {name} as {kind}")
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
