"""Arrays of NumPy from arrays of Arrow, and back.

pyarrow's own ways (`to_numpy`, `pyarrow.array`, `pyarrow.scalar`) import pandas if it is installed,
which takes 0.4 s and 42 MB. Here buffers are shared instead.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

_SIZES = {8: "1", 16: "2", 32: "4", 64: "8"}


def _bits(buffer: Any, first: int, n: int) -> npt.NDArray[np.bool_]:
    """Return bits of a bitmap."""
    packed = np.frombuffer(buffer, np.uint8)[first // 8 : (first + n + 7) // 8]
    found = np.unpackbits(packed, bitorder="little")[first % 8 : first % 8 + n]
    return found.view(np.bool_)


def valid_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which cells of an array are not null."""
    import pyarrow.compute as pc

    if not column.null_count:
        return np.ones(len(column), np.bool_)
    return values_of(pc.is_valid(column))


def values_of(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array of numbers, booleans or times, any value for null."""
    import pyarrow.types as kinds

    kind, n, first = column.type, len(column), column.offset
    data = column.buffers()[1]
    is_empty = data is None or not n
    if kinds.is_boolean(kind):
        return np.zeros(n, np.bool_) if is_empty else _bits(data, first, n)
    letter = "f" if kinds.is_floating(kind) else "u" if kinds.is_unsigned_integer(kind) else "i"
    if is_empty:
        return np.zeros(n, letter + _SIZES[kind.bit_width])
    return np.frombuffer(data, letter + _SIZES[kind.bit_width])[first : first + n]


def floats_of(column: pa.Array) -> npt.NDArray[Any]:
    """Return numbers, as floats with nan for null if there are nulls."""
    values = values_of(column)
    if not column.null_count:
        return values
    with np.errstate(all="ignore"):
        return np.where(valid_of(column), values.astype(np.float64), np.nan)


def integers_of(column: pa.Array, null: int = 0) -> npt.NDArray[np.int64]:
    """Return integers or times, and `null` for null."""
    values = values_of(column).astype(np.int64, copy=False)
    return np.where(valid_of(column), values, null) if column.null_count else values


def strings(words: Iterable[str | None], kind: pa.DataType) -> pa.Array:
    """Return words as an array of a type of strings."""
    import pyarrow as pa

    parts = [None if word is None else word.encode("utf-8", "surrogateescape") for word in words]
    offsets = np.cumsum([0, *(len(part or b"") for part in parts)], dtype=np.int64)
    valid = np.packbits([part is not None for part in parts], bitorder="little")
    text = b"".join(part or b"" for part in parts)
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_string(), len(parts), buffers).cast(kind)


@functools.cache
def known_words(words: tuple[str, ...], kind: pa.DataType) -> pa.Array:
    """Return words that a reader knows as an array of a type of strings."""
    return strings(words, kind)


def string(word: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a word as a scalar of a type of strings."""
    return strings([word], kind)[0]


def nothing(kind: pa.DataType) -> pa.Scalar:
    """Return null as a scalar."""
    import pyarrow as pa

    return pa.nulls(1, kind)[0]


def array_of(values: npt.NDArray[Any]) -> pa.Array:
    """Return booleans, floats or integers as an array of Arrow."""
    import pyarrow as pa

    if values.dtype.kind == "f":
        floats = pa.py_buffer(np.ascontiguousarray(values, np.float64))
        return pa.Array.from_buffers(pa.float64(), len(values), [None, floats])

    if values.dtype == np.bool_:
        packed = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])
    data = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(values), [None, data])


def joined(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the cells of several arrays; of a type that holds all, or else as strings."""
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    plain = [p.dictionary_decode() if pa.types.is_dictionary(p.type) else p for p in parts]
    try:
        tables = [pa.table([part], ["cells"]) for part in plain]
        found = pa.concat_tables(tables, promote_options="permissive").column(0)
        return pa.concat_arrays(found.chunks) if found.num_chunks else plain[0]
    except pa.ArrowException:
        pass
    try:
        return pa.concat_arrays([part.cast(pa.large_string()) for part in plain])
    except pa.ArrowException:  # of a list and something else, for example
        return plain[0]
