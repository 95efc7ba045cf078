"""The compiled bookkeeping of a working set: merge a block, choose the cache, compact it.

The arrays of a working set have the cached rows first, then the rows of the block. The nonzeros are
in one arena: the cache at the front, the block in a buffer after it. A row has an entry in each of
the (capacity,) arrays starts int64, lengths int32, y int32 or float64, weight float64, score
float32, home (its part of the data) int32 and row (its position there) int32. `at` (n_parts,) int32
has the position of each part's first row in the block, -1 for parts that are not in it. If `weight`
or `b_weight` has one element, it is that of all rows; such a `weight` is left alone.

Given and in place: those arrays and the arena, as documented for each kernel. Returned: counts.
Source: SBM 2011, algorithm 1 (steps b and d) and section 5.1; the threshold is a radix select.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import weight_of

__all__ = ["compact", "find_threshold", "list_ties", "mark", "merge", "refill", "spill"]

# Nonzeros moved at a time (sbm.rows.SPARE is the room for overwriting after the end). Positions
# are unsigned because numba checks signed ones for negative values.
_RUN = np.uint64(16)

_SIGN = np.uint32(0x80000000)
_LOWEST = np.uint32(0x007FFFFF)  # the key of -inf
_MANY = 1 << 13  # rows


@njit(nogil=True, error_model="numpy")
def _sort_key(bits):
    """Map the bits of a float32 to a uint32 of the same order."""
    return ~bits if bits & _SIGN else bits | _SIGN


@njit(nogil=True, error_model="numpy")
def _count(bits, lengths, begin, known, digit, rows, nonzeros):
    """Count the next digit of all sort keys with a given prefix; -inf is not counted."""
    rows[:] = 0
    nonzeros[:] = 0
    last = np.uint64(len(rows) - 1)
    for i in range(len(bits)):
        key = _sort_key(bits[i])
        if key > _LOWEST and np.uint64(key) >> known == begin:
            bucket = np.uint64(key) >> digit & last
            rows[bucket] += 1
            nonzeros[bucket] += lengths[i]


@njit(nogil=True, error_model="numpy")
def _walk(rows, nonzeros, max_rows, max_nnz, n_rows, nnz):
    """Sum buckets from the top while they fit; return (first that does not fit, rows, nnz)."""
    for bucket in range(len(rows) - 1, -1, -1):
        if n_rows + rows[bucket] > max_rows or nnz + nonzeros[bucket] > max_nnz:
            return bucket, n_rows, nnz
        n_rows += rows[bucket]
        nnz += nonzeros[bucket]
    return -1, n_rows, nnz


@njit(nogil=True, error_model="numpy")
def find_threshold(bits, lengths, max_rows, max_nnz, rows, nonzeros):
    """Find the lowest score whose rows fit, digit by digit of its sort key.

    Parameters
    ----------
    bits : (n,) uint32
        Scores, float32 seen as bits. Larger is better; -inf is never chosen.
    lengths : (n,) int32
        Nonzeros of each row.
    max_rows, max_nnz : int
        Capacity.
    rows, nonzeros : (65536,) int64
        Scratch.

    Returns
    -------
    key : int
        Sort key: all rows with a larger key fit, those with exactly this key only in part.
    n_rows, nnz : int
        What the rows with a larger key take.
    """
    # With few rows, clearing a histogram of all digits would take longer than filling it.
    width, buckets = (np.uint64(16), 65536) if len(bits) >= _MANY else (np.uint64(8), 256)
    rows, nonzeros = rows[:buckets], nonzeros[:buckets]
    key, known, n_rows, nnz = np.uint64(0), np.uint64(32), 0, 0
    while known > 0:
        digit = known - width
        _count(bits, lengths, key, known, digit, rows, nonzeros)
        bucket, n_rows, nnz = _walk(rows, nonzeros, max_rows, max_nnz, n_rows, nnz)
        if bucket < 0:  # all fit, which the first digit tells
            return np.int64(_LOWEST), n_rows, nnz
        key, known = key << width | np.uint64(bucket), digit
    return np.int64(key), n_rows, nnz


@njit(nogil=True, error_model="numpy")
def mark(bits, key, keep):
    """Set keep where the sort key is above `key`; return how many rows have exactly `key`."""
    ties = 0
    for i in range(len(bits)):
        mine = np.int64(_sort_key(bits[i]))
        keep[i] = mine > key
        ties += mine == key
    return ties


@njit(nogil=True, error_model="numpy")
def list_ties(bits, key, out):
    """Write the positions of rows whose sort key equals `key`."""
    k = 0
    for i in range(len(bits)):
        if np.int64(_sort_key(bits[i])) == key:
            out[k] = i
            k += 1


@njit(nogil=True, error_model="numpy")
def merge(
    at, parts, firsts, b_starts, b_lengths, b_y, b_weight, moving, n_cached,
    starts, lengths, y, weight, home, row,
):  # fmt: skip
    """Append the moving rows of a block that are not in the cache.

    Returns (rows of the working set, rows of the block that the cache holds).

    Parameters
    ----------
    at, parts, firsts : (n_parts,) int32, (m,) int64, (m + 1,) int64
        The parts of the block, and the first row of each, then the number of all rows.
    b_starts, b_lengths, b_y, b_weight : (n_block,) int64, int32, int32 or float64, float64
    moving : (n_block,) bool, in place
        Rows to take; those that the cache holds are unmarked: its copy and its alpha win.
    n_cached : int
        Rows of the cache at the front of the arrays that follow.
    starts, lengths, y, weight, home, row : arrays of the working set, in place
    """
    cached = 0
    for i in range(n_cached):
        first = at[np.uint32(home[i])]
        if first >= 0:
            moving[np.uint32(first + row[i])] = False
            cached += 1
    n = n_cached
    for k in range(len(parts)):
        for j in range(firsts[k], firsts[k + 1]):
            if not moving[j]:
                continue
            starts[n] = b_starts[j]
            lengths[n] = b_lengths[j]
            y[n] = b_y[j]
            if len(weight) > 1:
                weight[n] = weight_of(np.uint64(j), b_weight)
            home[n] = parts[k]
            row[n] = j - firsts[k]
            n += 1
    return n, cached


@njit(nogil=True, error_model="numpy")
def spill(keep, home, row, at, alpha, b_alpha, evicted_home, evicted_row, evicted_alpha):
    """Move the variables of the kept rows to the front and hand back the others.

    Returns how many rows of other blocks leave with a variable that is not 0.

    Parameters
    ----------
    keep, home, row : (n,) bool, int32, int32
    at : (n_parts,) int32
    alpha : (n,) float64, in place
    b_alpha : (n_block,) float64, in place
        The entries of the block's rows in the working set are replaced: by 0 for those that stay
        in the cache, by their variable for those that go home.
    evicted_home, evicted_row, evicted_alpha : (n,) int32, int32, float64, filled in place
        Those rows of other blocks.
    """
    kept = 0
    evicted = 0
    for i in range(len(keep)):
        first = at[np.uint32(home[i])]
        if first >= 0:
            b_alpha[np.uint32(first + row[i])] = 0.0 if keep[i] else alpha[i]
        elif not keep[i] and alpha[i] != 0.0:
            evicted_home[evicted] = home[i]
            evicted_row[evicted] = row[i]
            evicted_alpha[evicted] = alpha[i]
            evicted += 1
        if keep[i]:
            alpha[kept] = alpha[i]
            kept += 1
    return evicted


@njit(nogil=True, error_model="numpy")
def _move(array, begin, to, length):
    """Move array[begin : begin + length] down to `to`; up to _RUN - 1 elements behind it change."""
    if begin - to >= _RUN:  # whole runs are a few instructions each, whatever the length
        q = np.uint64(0)
        while q < length:
            for p in range(_RUN):
                array[to + q + p] = array[begin + q + p]
            q += _RUN
    elif begin != to:
        for p in range(length):
            array[to + p] = array[begin + p]


@njit(nogil=True, error_model="numpy")
def compact(keep, n, decoded, base, starts, lengths, y, weight, score, home, row, indices, values):
    """Move the kept rows to the front of the cache's room, in order of address; count them.

    No second copy of the working set is needed, because every kept row moves to a lower address
    or stays (SBM 2011, section 5.1). Rows of blocks that stay decoded do not move.

    Parameters
    ----------
    keep : (n,) bool
    n : int
    decoded : int
        Nonzeros at the front of the arena of blocks that stay decoded.
    base : int
        First nonzero of the cache.
    starts, lengths, y, weight, score, home, row : arrays of the working set, in place
    indices, values : the arena, in place

    Returns
    -------
    int
    """
    kept = 0
    to = np.int64(base)
    for i in range(n):
        if keep[i]:
            length = lengths[i]
            begin = starts[i]
            if begin >= decoded:
                _move(indices, np.uint64(begin), np.uint64(to), np.uint64(length))
                if values is not None:
                    _move(values, np.uint64(begin), np.uint64(to), np.uint64(length))
                begin = to
                to += length
            starts[kept] = begin
            lengths[kept] = length
            y[kept] = y[i]
            if len(weight) > 1:
                weight[kept] = weight[i]
            score[kept] = score[i]
            home[kept] = home[i]
            row[kept] = row[i]
            kept += 1
    return kept


@njit(nogil=True, error_model="numpy")
def refill(
    at, n_cached, decoded, b_starts, b_lengths, b_y, b_weight,
    starts, lengths, y, weight, home, row, indices, values,
):  # fmt: skip
    """Copy the cached rows of a block to their places in the cache; return how many match.

    Rows of a block that stays decoded are not copied; only their starts are set. Rows whose number
    or length does not match a row of the block are skipped: then the cache is from another store.

    Parameters
    ----------
    at : (n_parts,) int32
    n_cached, decoded : int
        See `compact`.
    b_starts, b_lengths, b_y, b_weight : (n_block,) int64, int32, int32 or float64, float64
    starts, lengths, y, weight, home, row : arrays of the working set; starts, y, weight in place
    indices, values : the arena, in place
    """
    done = 0
    for i in range(n_cached):
        if home[i] < 0 or home[i] >= len(at) or at[home[i]] < 0:
            continue
        j = at[home[i]] + row[i]
        if row[i] < 0 or j >= len(b_starts) or lengths[i] != b_lengths[j]:
            continue
        if b_starts[j] < decoded:
            starts[i] = b_starts[j]
        else:
            begin, to = np.uint64(b_starts[j]), np.uint64(starts[i])
            for p in range(np.uint64(lengths[i])):
                indices[to + p] = indices[begin + p]
                if values is not None:
                    values[to + p] = values[begin + p]
        y[i] = b_y[j]
        if len(weight) > 1:
            weight[i] = weight_of(np.uint64(j), b_weight)
        done += 1
    return done
