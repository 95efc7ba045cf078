"""Sorting in place, of the ids of a row and its values along with them."""

from __future__ import annotations

from numba import njit

__all__ = ["heap_sort", "insertion_sort", "sort_and_add", "sort_rows"]


SHORT = 48  # rows up to here are sorted by insertion, which is faster then


@njit(nogil=True, error_model="numpy")
def sort_and_add(ids, values, start, end):
    """Sort a row by id and add up the values of equal ones; returns where it ends."""
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
    """Sort rows that begin at 0 by id, adding up the values of equal ids.

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
    """Sort keys[low:high] in place, values along with them; fast where they are few."""
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
    if values is None:  # then numba leaves out what follows
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
    """Sort keys[low:high] in place and move the values along; no memory, n log n always."""
    size = high - low
    for root in range(size // 2 - 1, -1, -1):
        _sift_down(keys, values, has_values, low, size, root)
    for end in range(size - 1, 0, -1):
        _swap(keys, values, has_values, low, low + end)
        _sift_down(keys, values, has_values, low, end, 0)
