"""Rows to bytes and back: lengths and index gaps as byte planes.

Indices increase within a row, so a row is stored as its first index and the gaps behind it. A
stream of such numbers becomes `width` planes of bytes, low bytes first; a number that does not fit
is written as all ones and appended to a short list of exceptions. The planes of high bytes are
nearly constant and compress to nothing, the planes of low bytes are nearly random and cost a copy.
"""

import numpy as np
import numpy.typing as npt

from sbm.compiled import load

__all__ = ["decode_rows", "encode_rows", "join_planes", "split_planes"]

kernels = load("sbm.store.kernels.planes")

Bytes = npt.NDArray[np.uint8]
UInts = npt.NDArray[np.uint32]


def split_planes(numbers: UInts) -> tuple[Bytes, UInts]:
    """Store numbers in as few bytes as pays.

    Parameters
    ----------
    numbers : ndarray, shape (n,), uint32

    Returns
    -------
    planes : ndarray, shape (width, n), uint8, width 1 to 4
    exceptions : ndarray, uint32
    """
    wide = [*kernels.count_wide(numbers), 0]
    # The largest uint32 is its own escape at width 4; it needs an exception like any other.
    wide[3] = int(np.count_nonzero(numbers == 0xFFFFFFFF)) if wide[2] else 0
    costs = [len(numbers) * (w + 1) + 4 * wide[w] for w in range(4)]
    width = costs.index(min(costs)) + 1
    planes = np.empty((width, len(numbers)), np.uint8)
    exceptions = np.empty(wide[width - 1], np.uint32)
    kernels.fill_planes(numbers, planes, exceptions)
    return planes, exceptions


def join_planes(planes: Bytes, exceptions: UInts, out: npt.NDArray[np.integer]) -> None:
    """Undo `split_planes` into `out`, shape (n,).

    Raises
    ------
    ValueError
        The exceptions do not belong to the planes.
    """
    if planes.shape[1] != len(out) or kernels.join(planes, exceptions, out) != len(exceptions):
        raise ValueError("the exceptions of the byte planes do not match")


def encode_rows(
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.floating] | None,
    rows: npt.NDArray[np.int64],
) -> dict[str, npt.NDArray[np.generic]]:
    """Encode the chosen rows, in the order given.

    Parameters
    ----------
    starts, lengths : ndarray, shape (n_rows,), int64 and int32
    indices : ndarray, int32
        Strictly increasing within a row.
    values : ndarray, float32 or float64, or None
        None when all are 1.
    rows : ndarray, shape (n_chosen,), int64

    Returns
    -------
    dict of str to ndarray
        ``lengths``, ``lengths_more``, ``gaps``, ``gaps_more`` and, unless all are 1, ``values``.
    """
    nnz = int(lengths[rows].sum(dtype=np.int64))
    row_lengths = np.empty(len(rows), np.uint32)
    gaps = np.empty(nnz, np.uint32)
    kernels.gather(starts, lengths, indices, rows, row_lengths, gaps)
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    arrays["lengths"], arrays["lengths_more"] = split_planes(row_lengths)
    arrays["gaps"], arrays["gaps_more"] = split_planes(gaps)
    if values is not None:
        chosen = np.empty(nnz, values.dtype)
        if not kernels.gather_values(starts, lengths, values, rows, chosen):
            arrays["values"] = chosen
    return arrays


def decode_rows(
    arrays: dict[str, npt.NDArray[np.generic]],
    n_features: int,
    lengths: npt.NDArray[np.int32],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.floating] | None,
) -> None:
    """Undo `encode_rows` into the given arrays.

    Parameters
    ----------
    arrays : dict of str to ndarray
        What `encode_rows` returned.
    n_features : int
        Every index must be below.
    lengths : ndarray, shape (n_rows,), int32, filled in place
    indices : ndarray, shape (nnz,), int32, filled in place
    values : ndarray, shape (nnz,), float32 or float64, filled in place, or None
        None when the whole store holds only values of 1.

    Raises
    ------
    ValueError
        The arrays contradict each other or name a feature that does not exist.
    """
    for name in ("lengths", "gaps"):
        planes, exceptions = arrays[name], arrays[name + "_more"]
        if planes.dtype != np.uint8 or planes.ndim != 2 or not 1 <= len(planes) <= 4:
            raise ValueError(f"the {name} are no byte planes")
        if exceptions.dtype != np.uint32 or exceptions.ndim != 1:
            raise ValueError(f"the exceptions of the {name} are no numbers")
    stored = arrays.get("values")
    if stored is not None and (
        values is None or stored.dtype != values.dtype or stored.shape != values.shape
    ):
        raise ValueError("the values are not those of the rows")
    join_planes(arrays["lengths"], arrays["lengths_more"], lengths)  # type: ignore[arg-type]
    planes, exceptions = arrays["gaps"], arrays["gaps_more"]
    if planes.shape[1] != len(indices):
        raise ValueError("the number of indices is not what the header says")
    if planes.shape[0] == 2:
        used = kernels.ungap_2(planes, exceptions, lengths, n_features, indices)
        valid = used == len(exceptions)
    else:
        join_planes(planes, exceptions, indices)  # type: ignore[arg-type]
        valid = kernels.ungap(lengths, n_features, indices)
    if not valid:
        raise ValueError("the gaps do not make rows of known features")
    if values is not None:
        values[:] = arrays.get("values", 1.0)
