"""Encode rows as bytes and decode them: lengths and index gaps as symbols and bits.

Indices increase within a row, so a row is stored as its first index and the gaps between the
others. Each number becomes a one-byte symbol and some nearly random bits (see
`sbm.store.kernels.rows`). zstd compresses the symbols; the bits are stored raw.
"""

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.store.container import Buffers

__all__ = ["RAW", "decode_rows", "encode_rows", "gather_rows"]

kernels = load("sbm.store.kernels.rows")

RAW = frozenset(["lengths_bits", "gaps_bits"])  # arrays that do not compress
_SHORTEST = 8  # bytes of an empty stream of bits

Bytes = npt.NDArray[np.uint8]


def _room(n: int, buffers: Buffers) -> tuple[Bytes, Bytes]:
    """Return buffers for the symbols and the bits of n numbers."""
    return buffers.take(n, np.uint8), buffers.take(4 * n + 2 * _SHORTEST, np.uint8)


def gather_rows(
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.floating] | None,
    rows: npt.NDArray[np.int64],
    out_lengths: npt.NDArray[np.int32],
    out_indices: npt.NDArray[np.int32],
    out_values: npt.NDArray[np.floating] | None,
) -> None:
    """Copy the chosen rows one after the other in the given order, each sorted by index.

    Parameters
    ----------
    starts, lengths : ndarray, shape (n_rows,), int64 and int32
    indices : ndarray, int32
        Distinct within a row, in any order.
    values : ndarray, float32 or float64, or None
        None if all are 1.
    rows : ndarray, shape (n_chosen,), int64
    out_lengths : ndarray, shape (n_chosen,), int32, filled in place
    out_indices : ndarray, shape (nnz,), int32, filled in place
        `nnz` is the sum of the lengths of the chosen rows.
    out_values : ndarray, shape (nnz,), type of `values`, filled in place, or None
        None only if `values` is None.
    """
    longest = int(lengths[rows].max(initial=0))
    words, counts = np.empty(2 * longest, np.uint64), np.empty(256, np.int64)
    into = None if values is None else out_values
    kernels.gather_rows(
        starts, lengths, indices, values, rows, out_lengths, out_indices, into, words, counts
    )
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
        Source of the returned arrays, except `values`.

    Returns
    -------
    dict of str to ndarray
        ``lengths``, ``lengths_bits``, ``gaps``, ``gaps_bits``, all uint8, and ``values`` unless
        all are 1.
    """
    symbols, bits = _room(len(lengths), buffers)
    used = kernels.encode_numbers(lengths, symbols, bits)
    arrays: dict[str, npt.NDArray[np.generic]] = {"lengths": symbols, "lengths_bits": bits[:used]}
    symbols, bits = _room(len(indices), buffers)
    used = kernels.encode_rows(lengths, indices, symbols, bits)
    arrays |= {"gaps": symbols, "gaps_bits": bits[:used]}
    if values is not None and not (values == 1).all():
        arrays["values"] = values
    return arrays


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
    stored = arrays.get("values")
    if stored is not None and (
        values is None or stored.dtype != values.dtype or stored.shape != values.shape
    ):
        raise ValueError("wrong type or number of values")
    if stored is not None and not np.isfinite(stored).all():
        raise ValueError("a value is not finite")
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
    if values is not None:
        values[:] = arrays.get("values", 1.0)
