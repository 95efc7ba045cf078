"""Encode rows as bytes and decode them: lengths and index gaps as symbols and bits.

Indices increase within a row, so a row is stored as its first index and the gaps between the
others. Each number becomes a one-byte symbol and some nearly random bits (see
`sbm.store.kernels.rows`). zstd compresses the symbols; the bits are stored raw.

Values are stored as one-byte codes and a table if at most 256 are distinct, else as their bytes in
the order of significance (see `sbm.store.kernels.values`). zstd compresses both.
"""

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.store.container import Buffers

kernels = load("sbm.store.kernels.rows")
value_kernels = load("sbm.store.kernels.values")

RAW = frozenset(["lengths_bits", "gaps_bits"])  # arrays that do not compress
_SHORTEST = 8  # bytes of an empty stream of bits
LARGEST_TABLE = 256  # distinct values of a chunk
SLOTS = 1024
_EXPONENTS = {4: 0x7F800000, 8: 0x7FF << 52}  # the exponent bits of float32 and float64

Bytes = npt.NDArray[np.uint8]


def _room(n: int, buffers: Buffers) -> tuple[Bytes, Bytes]:
    """Return buffers for the symbols and the bits of n numbers."""
    return buffers.take(n, np.uint8), buffers.take(4 * n + 2 * _SHORTEST, np.uint8)


def gather_rows(
    starts: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.floating] | None,
    rows: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    out_indices: npt.NDArray[np.int32],
    out_values: npt.NDArray[np.floating] | None,
) -> None:
    """Copy the chosen rows one after the other in the given order, each sorted by index.

    Parameters
    ----------
    starts : ndarray, shape (n_rows,), int64
    indices : ndarray, int32
        Distinct within a row, in any order.
    values : ndarray, float32 or float64, or None
        None if all are 1.
    rows, lengths : ndarray, shape (n_chosen,), int64, int32
        Which rows, and the nonzeros of each.
    out_indices : ndarray, shape (nnz,), int32, filled in place
        `nnz` is the sum of the lengths of the chosen rows.
    out_values : ndarray, shape (nnz,), type of `values`, filled in place, or None
        None only if `values` is None.
    """
    longest = int(lengths.max(initial=0))
    words, counts = np.empty(2 * longest, np.uint64), np.empty(256, np.int64)
    into = None if values is None else out_values
    kernels.gather_rows(starts, indices, values, rows, lengths, out_indices, into, words, counts)
    if values is None and out_values is not None:
        out_values[:] = 1


def encode_rows(
    lengths: npt.NDArray[np.int32],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.floating] | None,
    buffers: Buffers,
) -> dict[str, npt.NDArray[np.generic]]:
    """Encode rows that `gather_rows` has put one after the other.

    Parameters
    ----------
    lengths : ndarray, shape (n_rows,), int32
    indices : ndarray, shape (nnz,), int32
        Increasing within a row.
    values : ndarray, shape (nnz,), float32 or float64, or None
        None if all are 1.
    buffers : Buffers
        Source of the returned arrays.

    Returns
    -------
    dict of str to ndarray
        ``lengths``, ``lengths_bits``, ``gaps``, ``gaps_bits``, all uint8. Unless all values are 1,
        also ``values``, uint8, of shape (nnz,) with ``table``, else (bytes of a value, nnz).
    """
    symbols, bits = _room(len(lengths), buffers)
    used = kernels.encode_numbers(lengths, symbols, bits)
    arrays: dict[str, npt.NDArray[np.generic]] = {"lengths": symbols, "lengths_bits": bits[:used]}
    symbols, bits = _room(len(indices), buffers)
    used = kernels.encode_rows(lengths, indices, symbols, bits)
    arrays |= {"gaps": symbols, "gaps_bits": bits[:used]}
    return arrays if values is None else arrays | _encode_values(values, buffers)


def _words(values: npt.NDArray[np.floating]) -> npt.NDArray[np.unsignedinteger]:
    """Return values as unsigned integers with the same bits."""
    return values.view(f"u{values.itemsize}")


def _encode_values(
    values: npt.NDArray[np.floating], buffers: Buffers
) -> dict[str, npt.NDArray[np.generic]]:
    words, n = _words(values), len(values)
    table, slots = np.empty(LARGEST_TABLE, words.dtype), np.empty(SLOTS, np.int32)
    codes = buffers.take(n, np.uint8)
    n_distinct = value_kernels.find_codes(words, table, slots, codes)
    distinct = table[:n_distinct].view(values.dtype)
    if n_distinct <= LARGEST_TABLE and not (distinct == 1).all():
        return {"values": codes, "table": distinct}
    buffers.give_back(codes)
    if n_distinct <= 1:
        return {}
    planes = buffers.take(words.nbytes, np.uint8).reshape(-1, n)
    value_kernels.split_planes(words, planes)
    return {"values": planes}


def _decode_values(
    arrays: dict[str, npt.NDArray[np.generic]], values: npt.NDArray[np.floating]
) -> None:
    stored, distinct, words = arrays["values"], arrays.get("table"), _words(values)
    shape = values.shape if distinct is not None else (words.itemsize, len(values))
    if stored.dtype != np.uint8 or stored.shape != shape:
        raise ValueError("wrong type or number of values")
    if distinct is None:
        valid = value_kernels.join_planes(stored, _EXPONENTS[words.itemsize], words)
    else:
        n = distinct.size
        if distinct.dtype != values.dtype or distinct.ndim != 1 or n > LARGEST_TABLE:
            raise ValueError("invalid table of values")
        table = np.zeros(LARGEST_TABLE, values.dtype)
        table[:n] = distinct
        valid = value_kernels.look_up(stored, _words(table), n, words) and np.isfinite(table).all()
    if not valid:
        raise ValueError("a value is not finite or unknown")


def decode_rows(
    arrays: dict[str, npt.NDArray[np.generic]],
    n_features: int,
    lengths: npt.NDArray[np.int32],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.floating] | None,
) -> None:
    """Decode the result of `encode_rows` into the given arrays.

    Parameters
    ----------
    arrays : dict of str to ndarray
        Result of `encode_rows`.
    n_features : int
        Upper bound of the indices, exclusive.
    lengths : ndarray, shape (n_rows,), int32, filled in place
    indices : ndarray, shape (nnz,), int32, filled in place
    values : ndarray, shape (nnz,), float32 or float64, filled in place, or None
        None if all values in the store are 1.

    Raises
    ------
    KeyError
        If an array is missing.
    ValueError
        If the arrays are inconsistent or an index is out of range.
    """
    for name, n in (("lengths", len(lengths)), ("gaps", len(indices))):
        symbols, bits = arrays[name], arrays[name + "_bits"]
        if symbols.dtype != np.uint8 or symbols.shape != (n,):
            raise ValueError(f"wrong number of symbols in the {name}")
        if bits.dtype != np.uint8 or bits.ndim != 1 or len(bits) < _SHORTEST:
            raise ValueError(f"invalid bits of the {name}")
    valid = kernels.decode_numbers(
        arrays["lengths"], arrays["lengths_bits"], len(indices) + 1, lengths
    ) and kernels.decode_rows(arrays["gaps"], arrays["gaps_bits"], lengths, n_features, indices)
    if not valid:
        raise ValueError("the gaps give invalid rows or unknown features")
    if "values" in arrays:
        if values is None:
            raise ValueError("found values, expected ones")
        _decode_values(arrays, values)
    elif values is not None:
        values[:] = 1.0
