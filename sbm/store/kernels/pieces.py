"""Compiled ordering of the nonzeros of rows.

Given: rows in any order of ids. In place: the same, sorted, equal ids added up. Returned: how many
nonzeros are left.
Source: insertion sort for short rows, heap sort for long ones (Williams 1964).
"""

from numba import njit

from sbm.store.kernels.sorting import heap_sort, insertion_sort

__all__ = ["sort_and_add", "sort_rows"]

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
