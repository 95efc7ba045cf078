"""Sizes of pages of Parquet files and of record batches of Arrow files, before they are decoded.

A file of some kilobytes may expand to gigabytes. So the sizes that the format states are read
first, from headers of pages in Thrift's compact protocol and record batches as flatbuffers.

Source: the specifications of Apache Parquet (PageHeader) and Arrow (Message, RecordBatch).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD, _LARGEST_HEAD = 1 << 10, 1 << 24  # bytes of a page header that are read first, and at most
_DICTIONARY = 2  # type of a page
_DEEPEST = 16  # structs in a header


class Page(NamedTuple):
    """A page of a column of a Parquet file."""

    is_dictionary: bool
    size: int  # bytes, uncompressed
    stored: int  # bytes in the file
    values: int  # number of values


class _ShortError(Exception):
    """The header goes on behind the bytes that were read."""


class _Thrift:
    """Reader of a struct in Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise _ShortError
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 70:
                return value

    def _int(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the numbers and structs of a struct by field."""
        found: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self._int()
            found[field] = self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._int()
        if kind == 12:
            return self.struct(depth + 1)
        if kind in (7, 8):
            size = 8 if kind == 7 else self._varint()
            self.at += size
            return None
        if kind in (9, 10):
            head = self._byte()
            n = head >> 4 if head >> 4 < 15 else self._varint()
            for _ in range(n):
                self._value(head & 15 if head & 15 > 2 else 3, depth + 1)
            return None
        raise ValueError(f"type {kind} of a field")


def pages_of(file: IO[bytes], column: Any) -> Iterator[Page]:
    """Yield the pages of a column of a row group.

    Parameters
    ----------
    file : binary file
    column : pyarrow.parquet.ColumnChunkMetaData

    Raises
    ------
    ValueError
        A header is damaged.
    """
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end = min(at + column.total_compressed_size, os.fstat(file.fileno()).st_size)
    values = 0
    while at < end and values < column.num_values:
        size = _HEAD
        while True:
            file.seek(at)
            reader = _Thrift(file.read(size))
            try:
                header = reader.struct()
                break
            except _ShortError:
                size *= 8
                if size > _LARGEST_HEAD:
                    raise ValueError("the header of a page is too long") from None
        stored = header.get(3, -1)
        whole = header.get(2, -1)
        if not (isinstance(stored, int) and isinstance(whole, int) and min(stored, whole) >= 0):
            raise ValueError("a page has no size")
        inside = header.get(5) or header.get(8) or header.get(7) or {}
        n = inside.get(1, 0) if isinstance(inside, dict) else 0
        is_dictionary = header.get(1) == _DICTIONARY
        yield Page(is_dictionary, whole, stored, n)
        values += 0 if is_dictionary else max(1, n)
        at += reader.at + stored


def batch_sizes(file: pa.NativeFile) -> Iterator[tuple[bool, int]]:
    """Yield what record batches of an Arrow file take in memory: if a dictionary, and bytes.

    Parameters
    ----------
    file : pyarrow.NativeFile
        A memory map, at the first message.

    Raises
    ------
    ValueError
        A message is damaged.
    """
    import pyarrow as pa

    messages = pa.ipc.MessageReader.open_stream(file)
    while True:
        try:
            message = messages.read_next_message()
        except (StopIteration, EOFError):
            return
        except pa.ArrowException as error:
            raise ValueError("a message is damaged") from error
        if message.body is None:
            continue
        try:
            yield _batch_size(message.metadata.to_pybytes(), message.body)
        except (struct.error, IndexError, pa.ArrowException) as error:
            raise ValueError("a message is damaged") from error


def _batch_size(metadata: bytes, body: pa.Buffer) -> tuple[bool, int]:
    """Return the bytes of a message, with those of its buffers when they are decompressed."""
    (root,) = struct.unpack_from("<I", metadata)
    header = _table(metadata, root, 2)
    if not header:
        return False, int(body.size)
    is_dictionary = struct.unpack_from("<B", metadata, _field(metadata, root, 1))[0] == 2
    if is_dictionary:
        header = _table(metadata, header, 1)
    if not _field(metadata, header, 3):  # not compressed
        return is_dictionary, int(body.size)
    total, vector = int(body.size), _table(metadata, header, 2)
    (n,) = struct.unpack_from("<I", metadata, vector)
    for k in range(n):
        at, size = struct.unpack_from("<qq", metadata, vector + 4 + 16 * k)
        if size > 0:
            (whole,) = struct.unpack("<q", body.slice(at, 8).to_pybytes())
            total += max(0, whole)
    return is_dictionary, total


def _field(data: bytes, table: int, k: int) -> int:
    """Return the place of a field of a table, 0 if it is missing."""
    (back,) = struct.unpack_from("<i", data, table)
    places = table - back
    (size,) = struct.unpack_from("<H", data, places)
    if 4 + 2 * k >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, places + 4 + 2 * k)
    return table + offset if offset else 0


def _table(data: bytes, table: int, k: int) -> int:
    """Return the place that a field of a table points to, 0 if it is missing."""
    place = _field(data, table, k)
    return place + struct.unpack_from("<I", data, place)[0] if place else 0
