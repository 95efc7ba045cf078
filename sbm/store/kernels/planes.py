"""Compiled loops of the codec: rows to gaps to byte planes, and back."""

import numpy as np
from numba import njit

__all__ = ["count_wide", "fill_planes", "gather", "gather_values", "join", "ungap", "ungap_2"]


@njit(nogil=True, error_model="numpy")
def gather(starts, lengths, indices, rows, out_lengths, out_gaps):
    """Write the lengths and the gaps of the chosen rows, in the order of `rows`."""
    k = 0
    for i in range(len(rows)):
        row = rows[i]
        begin = starts[row]
        out_lengths[i] = lengths[row]
        previous = -1
        for p in range(begin, begin + lengths[row]):
            index = indices[p]
            out_gaps[k] = index - previous - 1
            previous = index
            k += 1


@njit(nogil=True, error_model="numpy")
def gather_values(starts, lengths, values, rows, out):
    """Copy the values of the chosen rows; return whether all of them are 1."""
    k = 0
    ones = True
    for i in range(len(rows)):
        begin = starts[rows[i]]
        for p in range(begin, begin + lengths[rows[i]]):
            out[k] = values[p]
            ones = ones and values[p] == 1
            k += 1
    return ones


@njit(nogil=True, error_model="numpy")
def count_wide(numbers):
    """How many numbers do not fit in 1, 2 or 3 bytes (all ones is the escape)."""
    c1 = c2 = c3 = 0
    for x in numbers:
        c1 += x >= 0xFF
        c2 += x >= 0xFFFF
        c3 += x >= 0xFFFFFF
    return c1, c2, c3


@njit(nogil=True, error_model="numpy")
def fill_planes(numbers, planes, exceptions):
    """Spread numbers over planes of bytes; those that do not fit go to `exceptions`."""
    width = planes.shape[0]
    escape = np.uint32((1 << (8 * width)) - 1)
    e = 0
    for i in range(len(numbers)):
        x = np.uint32(numbers[i])
        if x >= escape:
            exceptions[e] = x
            e += 1
            x = escape
        for b in range(width):
            planes[b, i] = (x >> np.uint32(8 * b)) & np.uint32(0xFF)


@njit(nogil=True, error_model="numpy")
def join(planes, exceptions, out):
    """Rebuild the numbers in `out`; return how many exceptions were used, -1 if too few."""
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

    Returns the count of exceptions used, -1 where the numbers do not make valid rows.
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
    """Turn the gaps in `out` into indices in place; return whether the rows are valid."""
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
