"""Encode rows as bytes and decode them: lengths and index gaps as symbols and bits.

Indices increase within a row, so a row is stored as its first index and the gaps between the
others. Each number becomes a one-byte symbol and some nearly random bits (see
`sbm.store.kernels.rows`). zstd compresses the symbols; the bits are stored raw.
"""

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.store.container import Buffers

__all__ = ["RAW", "decode_rows", "encode_rows"]

kernels = load("sbm.store.kernels.rows")

RAW = frozenset(["lengths_bits", "gaps_bits"])  # arrays that do not compress
_SHORTEST = 8  # bytes of an empty stream of bits

Bytes = npt.NDArray[np.uint8]


def _room(n: int, buffers: Buffers) -> tuple[Bytes, Bytes]:
    """Return buffers for the symbols and the bits of n numbers."""
    return buffers.take(n, np.uint8), buffers.take(4 * n + 2 * _SHORTEST, np.uint8)


def encode_rows(
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.floating] | None,
    rows: npt.NDArray[np.int64],
    buffers: Buffers,
) -> dict[str, npt.NDArray[np.generic]]:
    """Encode the chosen rows in the given order, each sorted by index.

    Parameters
    ----------
    starts, lengths : ndarray, shape (n_rows,), int64 and int32
    indices : ndarray, int32
        Distinct within a row, in any order.
    values : ndarray, float32 or float64, or None
        None if all are 1.
    rows : ndarray, shape (n_chosen,), int64
    buffers : Buffers
        Source of the returned arrays.

    Returns
    -------
    dict of str to ndarray
        ``lengths``, ``lengths_bits``, ``gaps``, ``gaps_bits``, all uint8, and ``values`` unless
        all are 1.
    """
    row_lengths = lengths[rows]
    nnz = int(row_lengths.sum(dtype=np.int64))
    symbols, bits = _room(len(rows), buffers)
    used = kernels.encode_numbers(row_lengths, symbols, bits)
    arrays: dict[str, npt.NDArray[np.generic]] = {"lengths": symbols, "lengths_bits": bits[:used]}
    ordered = np.empty(int(row_lengths.max(initial=0)), np.int32)
    chosen = None if values is None else buffers.take(nnz, values.dtype)
    symbols, bits = _room(nnz, buffers)
    used = kernels.encode_rows(
        starts, lengths, indices, values, rows, ordered, symbols, bits, chosen
    )
    arrays |= {"gaps": symbols, "gaps_bits": bits[:used]}
    if chosen is not None and not (chosen == 1).all():
        arrays["values"] = chosen
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
