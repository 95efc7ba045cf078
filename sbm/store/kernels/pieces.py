"""Compiled ordering of the nonzeros of rows."""

from numba import njit

from sbm.store.kernels.text import _heap_sort

__all__ = ["sort_rows"]


SHORT = 48  # rows up to here are sorted by insertion, which is faster then


@njit(nogil=True, error_model="numpy")
def _insertion_sort(ids, values, start, end):
    for k in range(start + 1, end):
        key, x = ids[k], values[k]
        p = k
        while p > start and ids[p - 1] > key:
            ids[p], values[p] = ids[p - 1], values[p - 1]
            p -= 1
        ids[p], values[p] = key, x


@njit(nogil=True, error_model="numpy")
def _sort_and_add(ids, values, start, end):
    """Sort a row by id and add up the values of equal ones; returns where it ends."""
    if end - start <= SHORT:
        _insertion_sort(ids, values, start, end)
    else:
        for k in range(start + 1, end):
            if ids[k] < ids[k - 1]:
                _heap_sort(ids, values, True, start, end)
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
    """Sort rows that begin at 0 by id, adding up the values of equal ids, in place.

    Returns how many nonzeros are left, at the front of `ids` and `values`.
    """
    n = indptr[0]
    begin = indptr[0]
    for row in range(1, len(indptr)):
        end = indptr[row]
        behind = _sort_and_add(ids, values, begin, end)
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
