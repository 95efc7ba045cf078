"""Rows of stores of version 1: lengths and index gaps as byte planes, read and no longer written.

A stream of numbers was stored as `width` planes of bytes, low bytes first; a number that did not
fit was written as all ones and appended to a short list of exceptions.
"""

import numpy as np
import numpy.typing as npt

from sbm.compiled import load

__all__ = ["decode_rows", "join_planes"]

kernels = load("sbm.store.kernels.planes")

Bytes = npt.NDArray[np.uint8]
UInts = npt.NDArray[np.uint32]


def join_planes(planes: Bytes, exceptions: UInts, out: npt.NDArray[np.integer]) -> None:
    """Rebuild numbers in `out`, shape (n,), from planes, shape (width, n), and exceptions.

    Raises
    ------
    ValueError
        The exceptions do not belong to the planes.
    """
    if planes.shape[1] != len(out) or kernels.join(planes, exceptions, out) != len(exceptions):
        raise ValueError("the exceptions of the byte planes do not match")


def decode_rows(
    arrays: dict[str, npt.NDArray[np.generic]],
    n_features: int,
    lengths: npt.NDArray[np.int32],
    indices: npt.NDArray[np.int32],
) -> None:
    """Decode lengths and indices; see `sbm.store.codec.decode_rows`."""
    for name in ("lengths", "gaps"):
        planes, exceptions = arrays[name], arrays[name + "_more"]
        if planes.dtype != np.uint8 or planes.ndim != 2 or not 1 <= len(planes) <= 4:
            raise ValueError(f"the {name} are no byte planes")
        if exceptions.dtype != np.uint32 or exceptions.ndim != 1:
            raise ValueError(f"the exceptions of the {name} are no numbers")
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
