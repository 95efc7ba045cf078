"""In-place sorting of the ids of a row together with its values."""

from __future__ import annotations

import numpy as np
from numba import njit

SHORT = 48  # longest row sorted by insertion, which is faster for short rows


@njit(nogil=True, error_model="numpy")
def sort_and_add(ids, values, start, end):
    """Sort a row by id and sum the values of equal ids; return the end of the row."""
    if end - start <= SHORT:
        insertion_sort(ids, values, start, end)
    else:
        for k in range(start + 1, end):
            if ids[k] < ids[k - 1]:
                heap_sort(ids, values, True, start, end)
                break
    n = start
    for k in range(start, end):
        if n > start and ids[n - 1] == ids[k]:
            values[n - 1] += values[k]
        else:
            ids[n] = ids[k]
            values[n] = values[k]
            n += 1
    return n


@njit(nogil=True, error_model="numpy")
def sort_rows(indptr, ids, values):
    """Sort rows that begin at 0 by id, and sum the values of equal ids.

    Parameters
    ----------
    indptr : (n_rows + 1,) int64, in place
    ids, values : (nnz,) int64, float64, in place

    Returns
    -------
    int
        How many nonzeros are left, at the front of `ids` and `values`.
    """
    n = indptr[0]
    begin = indptr[0]
    for row in range(1, len(indptr)):
        end = indptr[row]
        behind = sort_and_add(ids, values, begin, end)
        if n == begin:
            n = behind
        else:
            for k in range(begin, behind):
                ids[n] = ids[k]
                values[n] = values[k]
                n += 1
        begin = end
        indptr[row] = n
    return n


@njit(nogil=True, error_model="numpy")
def insertion_sort(keys, values, low, high):
    """Sort keys[low:high] and their values in place; fast for short ranges."""
    for k in range(low + 1, high):
        key, x = keys[k], values[k]
        p = k
        while p > low and keys[p - 1] > key:
            keys[p], values[p] = keys[p - 1], values[p - 1]
            p -= 1
        keys[p], values[p] = key, x


@njit(nogil=True, error_model="numpy")
def _swap(keys, values, has_values, i, j):
    keys[i], keys[j] = keys[j], keys[i]
    if values is None:  # resolved at compile time
        return
    if has_values:
        values[i], values[j] = values[j], values[i]


@njit(nogil=True, error_model="numpy")
def _sift_down(keys, values, has_values, low, size, root):
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        if child + 1 < size and keys[low + child] < keys[low + child + 1]:
            child += 1
        if keys[low + root] >= keys[low + child]:
            return
        _swap(keys, values, has_values, low + root, low + child)
        root = child


@njit(nogil=True, error_model="numpy")
def heap_sort(keys, values, has_values, low, high):
    """Sort keys[low:high] and their values in place by heapsort: O(n log n), no memory."""
    size = high - low
    for root in range(size // 2 - 1, -1, -1):
        _sift_down(keys, values, has_values, low, size, root)
    for end in range(size - 1, 0, -1):
        _swap(keys, values, has_values, low, low + end)
        _sift_down(keys, values, has_values, low, end, 0)


@njit(nogil=True, error_model="numpy")
def radix_sort(words, n, low, width, counts):
    """Sort words[:n] by their bits from `low`, `width` of them; return where they are: 0 or n.

    Parameters
    ----------
    words : (at least 2 n,) uint64, in place
        Overwritten up to 2 n.
    counts : (256,) int64
        Scratch.
    """
    n_passes = max(1, (width + 7) >> 3)
    step = -(-width // n_passes)
    mask, n_digits = np.uint64((1 << step) - 1), 1 << step
    source, target = np.uint64(0), np.uint64(n)
    for shift in range(low, low + width, step):
        counts[:n_digits] = 0
        for k in range(n):
            counts[(words[source + np.uint64(k)] >> np.uint64(shift)) & mask] += 1
        place = np.int64(target)
        for digit in range(n_digits):
            count = counts[np.uint64(digit)]
            counts[np.uint64(digit)] = place
            place += count
        for k in range(n):
            word = words[source + np.uint64(k)]
            digit = (word >> np.uint64(shift)) & mask
            words[np.uint64(counts[digit])] = word
            counts[digit] += 1
        source, target = target, source
    return source
