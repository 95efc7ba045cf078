"""Tables of Arrow: Parquet, Feather and Arrow stream files, and data frames in memory.

A table has columns as in `sbm.inputs.columns`; or list columns ``indices`` and ``values``, as in
`sbm.inputs.records`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbm.errors import DataError
from sbm.inputs.columns.cells import require_pyarrow
from sbm.inputs.matrices import digested
from sbm.inputs.options import InputOptions
from sbm.inputs.pages import Page, batch_sizes, pages_of
from sbm.inputs.records import is_sparse
from sbm.inputs.tables import HEAD_BYTES, TableRows
from sbm.inputs.text import Source
from sbm.units import first_line, shorten

if TYPE_CHECKING:
    import pyarrow as pa

_READ = 1 << 16  # bytes per read of a column
_ROW_BYTES = 1 << 23  # bytes of rows decoded at a time
_LISTED = 20  # bytes of an item of a list that is decoded
_COPIES = 4  # of the words of a dictionary page, while it is decoded
_WORD = 48  # bytes of a copy of a word, besides its text: its hash and its place
_MOST_ROWS = 1 << 14  # most rows with lists decoded at a time
_LISTS = 1 << 10  # rows with lists decoded at a time, if their lengths are unknown
_CELL = 16  # bytes of a cell of a data frame, for progress


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
    """Return the record batches of a data frame, a data set, or an iterable of batches.

    Raises `DataError` if the library that holds it cannot convert a column.
    """
    import pyarrow as pa

    # The sizes of buffers, which `_validate` compares, do not pass through ``__arrow_c_stream__``.
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    try:
        if isinstance(frame, pa.Table):
            return frame.to_reader()
        if isinstance(frame, pa.RecordBatchReader):
            return frame
        if hasattr(frame, "scanner"):  # a pyarrow.dataset
            return frame.scanner(use_threads=False).to_reader()
        if hasattr(frame, "to_reader"):  # a scanner
            return frame.to_reader()
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(frame)
        if hasattr(frame, "collect_batches"):  # a LazyFrame of polars
            return _stream_of_batches(frame.collect_batches())
        if isinstance(frame, Mapping):
            return pa.table(dict(frame)).to_reader()
        return _stream_of_batches(frame)
    except DataError:
        raise
    except Exception as error:  # of any library
        sentence = _unfit_column(frame) or " ".join(map(str, error.args)) or type(error).__name__
        raise DataError(f"{name}: {' '.join(sentence.split())}") from error


_DICTS = 1 << 12  # dicts made a batch at a time


def _stream_of_batches(batches: Iterable[Any]) -> pa.RecordBatchReader:
    """Return the rows of batches, tables or dicts, which have the columns of the first."""
    import pyarrow as pa

    def tables() -> Iterator[pa.Table]:
        rows = iter(batches)
        for one in rows:
            if isinstance(one, Mapping):
                for some in _chunked(itertools.chain([one], rows)):
                    yield pa.Table.from_pylist(some)
            elif isinstance(one, pa.RecordBatch):
                yield pa.Table.from_batches([one])
            elif hasattr(one, "__arrow_c_stream__"):
                yield pa.table(one)
            else:
                yield pa.Table.from_batches([pa.record_batch(one)])

    parts = tables()
    first = next(parts, None)
    if first is None:
        return pa.table({}).to_reader()
    schema = first.schema

    def stream() -> Iterator[pa.RecordBatch]:
        for table in itertools.chain([first], parts):
            names = [name for name in schema.names if name in table.column_names]
            missing = [name for name in schema.names if name not in names]
            table = table.select(names)
            for name in missing:
                table = table.append_column(name, pa.nulls(len(table), schema.field(name).type))
            yield from table.select(schema.names).cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, stream())


def _chunked(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while some := list(itertools.islice(rows, _DICTS)):
        yield some


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
            held = [kind for kind, _ in kinds.most_common(3)]
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


class ArrowTable:
    """A stream of record batches.

    Attributes
    ----------
    names : list of str
        Columns; fields of structs are columns ``struct.field``.
    place : str
        For messages.
    schema : pyarrow.Schema
    is_sparse : bool
        Whether it holds lists of feature ids.
    """

    def __init__(self, source: Source, batches: Any, schema: pa.Schema) -> None:
        self.schema, self.place, self.is_sparse = schema, source.name, is_sparse(schema)
        self._batches, self._source = batches, source
        self._kept: list[pa.RecordBatch] = []
        self._paths = dict(_leaves(schema))
        twice = [name for name, n in Counter(schema.names).items() if n > 1]
        hidden = _index_columns(schema) - _named(source.options)
        self.names = [*twice, *(name for name in self._paths if name not in hidden)]

    def share(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of the source that a batch takes."""
        n_rows: int = batch.num_rows
        return _CELL * n_rows * len(self.schema.names)

    def head(self, n: int) -> Mapping[str, pa.Array]:
        """Return the first `n` cells of each column; see `Table`."""
        import pyarrow as pa

        batches = self._first(n)
        table = pa.Table.from_batches(batches, self.schema).slice(0, n)
        rows = table.combine_chunks().to_batches()
        if not rows:
            return {name: pa.nulls(0) for name in self.names}
        return {name: self._column(rows[0], name) for name in self.names}

    def _first(self, n: int) -> list[pa.RecordBatch]:
        """Return batches with the first `n` rows, which are read again by `_stored`."""
        self._kept = []
        for batch in self._batches:
            _validate(batch, self.place, 1 + sum(map(len, self._kept)))
            self._kept.append(batch)
            if _is_enough(self._kept, n):
                break
        return self._kept

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        import pyarrow.compute as pc

        root, *path = self._paths[name]
        column = batch.column(batch.schema.names.index(root))
        return pc.struct_field(column, path) if path else column

    def rows(self, names: Sequence[str], most: int) -> Iterator[TableRows]:
        """Yield the rows of some columns; see `Table`."""
        roots = list(dict.fromkeys(str(self._paths[name][0]) for name in names))
        for batch in self.batches(roots, most):
            cells = {name: self._column(batch, name) for name in names}
            yield TableRows(cells, batch.num_rows, self.share(batch))

    def batches(self, columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows, valid, at most `most` rows at a time."""
        row = 1
        for batch in self._stored(list(columns), most):
            _validate(batch, self.place, row)
            row += batch.num_rows
            for first in range(0, batch.num_rows, most):
                yield batch.slice(first, most)

    def _stored(self, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the rows as they are stored."""
        while self._kept:
            yield self._kept.pop(0).select(columns)
        for batch in self._batches:
            yield batch.select(columns)

    def rows_of_lists(self) -> int:
        """Estimate how many rows with lists make a piece."""
        return _LISTS

    def bounds(self) -> tuple[int, int]:
        """Return the bytes of a file that are in memory at a time, and the rows (0: no bound)."""
        return 0, 0


def _is_enough(batches: Sequence[pa.RecordBatch], n: int) -> bool:
    """Return whether batches have `n` rows, or so many bytes that fewer have to do."""
    return sum(map(len, batches)) >= n or sum(b.nbytes for b in batches) > HEAD_BYTES


def _leaves(schema: Iterable[pa.Field]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the names of columns, and the name of the field and the positions inside it."""
    import pyarrow.types as kinds

    def below(field: pa.Field, name: str, path: list[Any]) -> Iterator[tuple[str, list[Any]]]:
        if not kinds.is_struct(field.type):
            yield name, path
            return
        for k in range(field.type.num_fields):
            inner = field.type.field(k)
            yield from below(inner, f"{name}.{inner.name}", [*path, k])

    for field in schema:
        yield from below(field, field.name, [field.name])


def _index_columns(schema: pa.Schema) -> set[str]:
    """Return the columns that are the index of a pandas frame, as its metadata say."""
    try:
        facts = json.loads((schema.metadata or {})[b"pandas"])
        return {name for name in facts["index_columns"] if isinstance(name, str)}
    except (KeyError, ValueError, TypeError, RecursionError):
        return set()


def _named(options: InputOptions) -> set[str]:
    """Return the columns that options name, or that earlier data have."""
    state = options.table
    if state is None:
        return set()
    names = {name for name, kind, _ in state.asked.kinds if kind != "ignored"}
    known = {column.name for column in state.columns if column.is_read}
    return names | known | {name for name in (state.label, state.weight) if name is not None}


class _FeatherFile(ArrowTable):
    """A Feather file, whose record batches are read one at a time."""

    def _first(self, n: int) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        for k in range(self._batches.num_record_batches):
            found.append(self._batches.get_batch(k))
            _validate(found[-1], self.place, 1 + sum(map(len, found[:-1])))
            if _is_enough(found, n):
                break
        return found

    def _stored(self, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        for k in range(self._batches.num_record_batches):
            yield self._batches.get_batch(k).select(columns)

    def bounds(self) -> tuple[int, int]:
        return _largest_batch(self._source, 8), 0

    def share(self, batch: pa.RecordBatch) -> int:
        n_rows: int = batch.num_rows
        return self._source.size * n_rows // self._n_rows

    @cached_property
    def _n_rows(self) -> int:
        """Number of rows, if all batches are as large as the first."""
        n_batches: int = self._batches.num_record_batches
        return max(1, n_batches * len(self._batches.get_batch(0)))


class _ParquetFile(ArrowTable):
    """A Parquet file, whose pages are read one at a time.

    `pyarrow.dataset` would decode whole row groups, which need not fit in memory: of a group of 193
    MB, it takes 641 MB, and this 106 MB.
    """

    def _first(self, n: int) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        n_read = min(n, self._source.most_rows or n)
        for batch in self._batches.iter_batches(n_read, use_threads=False):
            found.append(batch)
            if _is_enough(found, n):
                break
        for batch in found:
            _validate(batch, self.place, 1)
        return found

    def _stored(self, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        most = min(most, self._source.most_rows or most)
        yield from self._batches.iter_batches(most, columns=columns, use_threads=False)

    def share(self, batch: pa.RecordBatch) -> int:
        n_rows: int = batch.num_rows
        in_all: int = self._batches.metadata.num_rows
        return self._source.size * n_rows // max(1, in_all)

    def _groups(self) -> Iterator[Any]:
        """Yield the metadata of each row group."""
        for k in range(self._batches.num_row_groups):
            # Begin to read the group, without a row. If the metadata of a column is damaged, this
            # raises an error, while `RowGroupMetaData.column` would abort the process.
            next(self._batches.reader.iter_batches(0, [k], use_threads=False), None)
            yield self._batches.metadata.row_group(k)

    def rows_of_lists(self) -> int:
        from sbm.inputs.matrices import piece_nnz

        nnz = [
            group.column(k).num_values / max(1, group.num_rows)
            for group in self._groups()
            for k in range(group.num_columns)
            if group.column(k).path_in_schema.startswith("indices.")
        ]
        return max(1, min(_MOST_ROWS, int(piece_nnz() / max([1.0, *nnz]))))

    def bounds(self) -> tuple[int, int]:
        most, row = 0, 0.0
        with open(self._source.file, "rb") as file:
            for group in self._groups():
                columns = [group.column(k) for k in range(group.num_columns)]
                try:
                    pages = [list(pages_of(file, column)) for column in columns]
                except (ValueError, OverflowError) as error:
                    raise _damaged(self._source, error) from error
                for k, some in enumerate(pages):
                    if self._batches.schema.column(k).max_repetition_level:  # a row may have all
                        longest = max((page.values for page in some), default=0)
                        most = max(most, _LISTED * longest)
                are_words = [column.physical_type == "BYTE_ARRAY" for column in columns]
                most = max(most, sum(map(_page_bytes, pages, are_words)))
                cells = sum(page.size for some in pages for page in some if not page.is_dictionary)
                row = max(row, cells / max(1, group.num_rows))
        return most, max(1, int(_ROW_BYTES / max(row, 1.0)))


def _page_bytes(pages: Sequence[Page], are_words: bool) -> int:
    """Return the bytes that the pages of a column need: a page, compressed too, and words."""
    more = _WORD * are_words
    words = sum(page.size + more * page.values for page in pages if page.is_dictionary)
    data = [page.size + page.stored for page in pages if not page.is_dictionary]
    return _COPIES * words + max(data, default=0) + _READ


def _largest_batch(source: Source, begin: int) -> int:
    """Return the bytes that the record batches of a file need, one at a time."""
    import pyarrow as pa

    words, most = 0, 0
    with pa.memory_map(source.file) as file:
        file.seek(begin)
        try:
            for is_dictionary, size in batch_sizes(file):
                words += size if is_dictionary else 0
                most = max(most, size)
        except ValueError as error:
            raise _damaged(source, error) from error
    return 2 * most + words


def _damaged(source: Source, error: Exception) -> DataError:
    return DataError(
        f"cannot read {source.name} ({first_line(error)}); it is damaged or not a {source.format} "
        "file"
    )


class _StreamFile(ArrowTable):
    """An Arrow stream file."""

    def bounds(self) -> tuple[int, int]:
        return _largest_batch(self._source, 0), 0


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[ArrowTable]:
    """Open a file for reading in pieces."""
    import pyarrow as pa

    if source.format == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(source.file, buffer_size=_READ, pre_buffer=False) as file:
            columns = (file.schema.column(k) for k in range(len(file.schema)))
            words = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
            options = {"read_dictionary": words, "buffer_size": _READ, "pre_buffer": False}
            with pq.ParquetFile(source.file, **options) as coded:
                yield _ParquetFile(source, coded, coded.schema_arrow)
    elif _is_stream(source.file):
        with pa.OSFile(source.file) as file, pa.ipc.open_stream(file) as reader:
            yield _StreamFile(source, reader, reader.schema)
    else:
        with pa.OSFile(source.file) as file, pa.ipc.open_file(file) as reader:
            yield _FeatherFile(source, reader, reader.schema)


def _is_stream(name: str) -> bool:
    """Return whether a file begins like a stream of Arrow, which has no directory."""
    with open(name, "rb") as file:
        return file.read(4) == b"\xff\xff\xff\xff"


@contextlib.contextmanager
def open_arrow(source: Source, largest_row: int) -> Iterator[ArrowTable]:
    """Open a Parquet, Feather or Arrow stream file, or a data frame.

    Parameters
    ----------
    source : Source
        Receives the digest of a file.

    Raises
    ------
    DataError
        pyarrow is not installed, or the file is damaged; also raised while reading.
    """
    require_pyarrow(f"reading {source.name}")
    with _noting_damage(source):
        if source.chunks is not None:
            reader = _stream_of(source.chunks, source.name)
            yield ArrowTable(source, reader, reader.schema)
            return
        with _opened(source) as file:
            if source.is_peeked:  # only its columns are looked at
                yield file
                return
            with digested(source, [Path(source.file)]):
                yield file


def find_layout(source: Source) -> None:
    """Set `is_sparse` of a source that is a file.

    Raises `DataError` if pyarrow is not installed, or the file is damaged.
    """
    require_pyarrow(f"reading {source.name}")
    with _noting_damage(source), _opened(source) as file:
        source.is_sparse = file.is_sparse
        size, source.most_rows = file.bounds()
        source.reader_bytes += size
