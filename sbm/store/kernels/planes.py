"""Compiled reading of byte planes, the codec of version 1: planes to gaps to indices.

A number is split into its bytes, and plane b holds byte b of every number; one that is too large is
all ones there and stands among the exceptions.

Given: planes and exceptions. In place: numbers or indices. Returned: whether they make rows, or how
many exceptions were used.
"""

import numpy as np
from numba import njit

__all__ = ["join", "ungap", "ungap_2"]


@njit(nogil=True, error_model="numpy")
def join(planes, exceptions, out):
    """Rebuild the numbers in `out`.

    Parameters
    ----------
    planes : (width, n) uint8
    exceptions : (n_exceptions,) uint32
    out : (n,) int32, filled in place

    Returns
    -------
    int
        How many exceptions were used, -1 if there are too few.
    """
    width, n = planes.shape
    escape = np.int64((1 << (8 * width)) - 1)
    e = 0
    for i in range(n):
        x = np.int64(planes[0, i])
        for b in range(1, width):
            x |= np.int64(planes[b, i]) << (8 * b)
        if x == escape:
            if e >= len(exceptions):
                return -1
            x = np.int64(exceptions[e])
            e += 1
        out[i] = x
    return e


@njit(nogil=True, error_model="numpy")
def ungap_2(planes, exceptions, lengths, n_features, out):
    """Two planes, the usual case, in one go: numbers to gaps to indices.

    Parameters
    ----------
    planes : (2, n) uint8
    exceptions : (n_exceptions,) uint32
    lengths : (n_rows,) int32
    n_features : int
        Every index must be below.
    out : (n,) int32, filled in place

    Returns
    -------
    int
        How many exceptions were used, -1 where the numbers do not make valid rows.
    """
    low, high = planes[0], planes[1]
    n = len(low)
    k = 0
    e = 0
    for i in range(len(lengths)):
        index = np.int64(-1)
        end = k + lengths[i]
        if end > n or lengths[i] < 0:
            return -1
        while k < end:
            gap = np.int64(low[k]) | (np.int64(high[k]) << 8)
            if gap == 0xFFFF:
                if e >= len(exceptions):
                    return -1
                gap = np.int64(exceptions[e])
                e += 1
            index += gap + 1
            out[k] = index
            k += 1
        if index >= n_features:
            return -1
    return e if k == n else -1


@njit(nogil=True, error_model="numpy")
def ungap(lengths, n_features, out):
    """Turn gaps into indices.

    Parameters
    ----------
    lengths : (n_rows,) int32
    n_features : int
        Every index must be below.
    out : (nnz,) int32, in place

    Returns
    -------
    bool
        Whether the rows are valid.
    """
    k = 0
    for i in range(len(lengths)):
        index = np.int64(-1)
        end = k + lengths[i]
        if end > len(out) or lengths[i] < 0:
            return False
        while k < end:
            index += np.int64(np.uint32(out[k])) + 1
            out[k] = index
            k += 1
        if index >= n_features:
            return False
    return k == len(out)
