"""Weights by class, in memory for the nonzero ones only.

Features have ranks: 0 is the most frequent one. Of class c, the weights of ranks below H are
``head[c]``, and those of other ranks are in a hash table of ``lines[c]`` cache lines. A line has
five float64 and their five int32 ranks (-1: empty), in 64 bytes; its places are filled in order,
and a rank that finds its line full is in the next line that is not. A table that is too full is
copied to a larger one behind all others; `squeeze` moves the tables in use to the front.

The tables T = (begin, lines, used, head, cells, ranks, top): `begin`, `lines` and `used` (K,) int64
are the first line, the lines and the weights of each table; `cells` float64 and `ranks` int32 are
the same memory, eight and sixteen numbers a line; top (2,) int64 has the lines in use and the most
of them. Functions change what they name, and return counts.

A row is given as ranks and values, of which those from `mid` on are not in the head.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import prefetch

__all__ = ["add", "count", "dot", "lay_out", "look_ahead", "norms", "squeeze", "take"]

_HASH = np.uint64(2654435769)  # 2^32 divided by the golden ratio
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE, _TWO = np.uint64(1), np.uint64(2)
_EIGHT, _TEN = np.uint64(8), np.uint64(10)
# A table is at most three quarters full, so that most ranks are in their own line, and a larger one
# begins half full.
_FULL, _OF_FULL = 4, 15  # weights x 4 <= lines x 15
_HALF_FULL = 2.5  # weights a line
_LEAST = 2  # lines


@njit(nogil=True, error_model="numpy", forceinline=True)
def _line(rank, lines):
    """Return the line of a rank in a table."""
    mixed = (np.uint64(np.uint32(rank)) * _HASH) & _LOW
    return (mixed * lines) >> _HALF


@njit(nogil=True, error_model="numpy", forceinline=True)
def _find(cells, ranks, at, lines, rank):
    """Return (place in cells, 1) of a rank; or the place where it would be, and 0."""
    line = _line(rank, lines)
    while True:
        q = _EIGHT * (at + line)
        for k in range(5):
            other = ranks[_TWO * q + _TEN + np.uint64(k)]
            if other == rank:
                return q + np.uint64(k), 1
            if other < 0:
                return q + np.uint64(k), 0
        line += _ONE
        if line == lines:
            line = np.uint64(0)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _weight(cells, ranks, at, lines, rank):
    """Return the weight of a rank, 0 if it is not there; without branches but the last one."""
    line = _line(rank, lines)
    while True:
        q = _EIGHT * (at + line)
        weight = 0.0
        is_found = False
        for k in range(5):
            same = ranks[_TWO * q + _TEN + np.uint64(k)] == rank
            weight += cells[q + np.uint64(k)] if same else 0.0
            is_found |= same
        if is_found or ranks[_TWO * q + np.uint64(14)] < 0:
            return weight
        line += _ONE
        if line == lines:
            line = np.uint64(0)


@njit(nogil=True, error_model="numpy", forceinline=True)
def dot(T, c, ranks, values, first, mid, end):
    """Return the product of a row and the weights of class c."""
    begin, lines, _used, head, cells, cell_ranks, _top = T
    z = 0.0
    for p in range(first, mid):
        z += values[p] * head[c, np.uint32(ranks[p])]
    n = np.uint64(lines[c])
    if n > np.uint64(0):
        at = np.uint64(begin[c])
        for p in range(mid, end):
            z += values[p] * _weight(cells, cell_ranks, at, n, ranks[p])
    return z


@njit(nogil=True, error_model="numpy", forceinline=True)
def look_ahead(T, c, ranks, first, mid, end):
    """Prefetch the weights of class c for a row."""
    begin, lines, _used, head, cells, _cell_ranks, _top = T
    width = np.int64(head.shape[1])
    for p in range(first, mid):
        prefetch(head, np.int64(c) * width + np.int64(ranks[p]))
    n = np.uint64(lines[c])
    if n > np.uint64(0):
        at = np.uint64(begin[c])
        for p in range(mid, end):
            prefetch(cells, np.int64(_EIGHT * (at + _line(ranks[p], n))))


@njit(nogil=True, error_model="numpy", forceinline=True)
def _clear(cells, ranks, at, n):
    for q in range(8 * at, 8 * (at + n)):
        cells[q] = 0.0
    for line in range(at, at + n):
        for k in range(5):
            ranks[16 * line + 10 + k] = -1


@njit(nogil=True, error_model="numpy")
def _grow(T, c, weights):
    """Give class c a table for so many weights; return whether there is room."""
    begin, lines, _used, _head, cells, ranks, top = T
    n = max(_LEAST, np.int64(weights / _HALF_FULL) + 1)
    if top[0] + n > top[1]:
        return False
    at = top[0]
    top[0] += n
    _clear(cells, ranks, at, n)
    for line in range(begin[c], begin[c] + lines[c]):
        for k in range(5):
            rank = ranks[16 * line + 10 + k]
            if rank >= 0:
                q, _ = _find(cells, ranks, np.uint64(at), np.uint64(n), rank)
                cells[q] = cells[8 * line + k]
                here = q >> np.uint64(3)
                ranks[np.uint64(16) * here + _TEN + (q & np.uint64(7))] = rank
    begin[c] = at
    lines[c] = n
    return True


@njit(nogil=True, error_model="numpy", forceinline=True)
def add(T, c, ranks, values, first, mid, end, step):
    """Add a multiple of a row to the weights of class c; return False if there is no room for it.

    Then nothing was added.
    """
    begin, lines, used, head, cells, cell_ranks, _top = T
    most = used[c] + (end - mid)
    if _FULL * most > _OF_FULL * lines[c]:
        if lines[c] > 0:  # count those that are really new
            most = used[c]
            for p in range(mid, end):
                _, there = _find(
                    cells, cell_ranks, np.uint64(begin[c]), np.uint64(lines[c]), ranks[p]
                )
                most += 1 - there
        if _FULL * most > _OF_FULL * lines[c] and not _grow(T, c, most):
            return False
    for p in range(first, mid):
        head[c, np.uint32(ranks[p])] += step * values[p]
    if mid == end:
        return True
    at, n, new = np.uint64(begin[c]), np.uint64(lines[c]), 0
    for p in range(mid, end):
        q, there = _find(cells, cell_ranks, at, n, ranks[p])
        if there == 0:
            here = q >> np.uint64(3)
            cell_ranks[np.uint64(16) * here + _TEN + (q & np.uint64(7))] = ranks[p]
            new += 1
        cells[q] += step * values[p]
    used[c] += new
    return True


@njit(nogil=True, error_model="numpy")
def lay_out(begin, lines, used, head, cells, cell_ranks, top):
    """Make all weights 0, in tables whose sizes are those of the weights before."""
    T = (begin, lines, used, head, cells, cell_ranks, top)
    top[0] = 0
    for c in range(len(begin)):
        weights = used[c]
        begin[c] = 0
        lines[c] = 0
        used[c] = 0
        for h in range(head.shape[1]):
            head[c, h] = 0.0
        if weights > 0:
            n = weights * _FULL // _OF_FULL + 1
            if top[0] + n <= top[1]:
                begin[c] = top[0]
                lines[c] = n
                _clear(cells, cell_ranks, top[0], n)
                top[0] += n
    return T[6][0]


@njit(nogil=True, error_model="numpy")
def squeeze(order, begin, lines, cells, top):
    """Move the tables in use to the front; `order` has the classes by the begin of their tables."""
    to = 0
    for c in order:
        if lines[c] == 0:
            continue
        source = 8 * begin[c]
        if begin[c] > to:
            for q in range(8 * lines[c]):  # bytes of ranks are in cells, too
                cells[8 * to + q] = cells[source + q]
        begin[c] = to
        to += lines[c]
    top[0] = to


@njit(nogil=True, error_model="numpy")
def norms(begin, lines, head, cells, cell_ranks, out):
    """Write the squared norm of the weights of each class."""
    for c in range(len(begin)):
        sum_ = 0.0
        for h in range(head.shape[1]):
            sum_ += head[c, h] * head[c, h]
        for line in range(begin[c], begin[c] + lines[c]):
            for k in range(5):
                w = cells[8 * line + k] if cell_ranks[16 * line + 10 + k] >= 0 else 0.0
                sum_ += w * w
        out[c] = sum_


@njit(nogil=True, error_model="numpy")
def count(begin, lines, head, cells, cell_ranks, feature_of, counts):
    """Add the number of nonzero weights of each feature to `counts`."""
    for c in range(len(begin)):
        for h in range(head.shape[1]):
            counts[feature_of[h]] += head[c, h] != 0.0
        for line in range(begin[c], begin[c] + lines[c]):
            for k in range(5):
                rank = cell_ranks[16 * line + 10 + k]
                if rank >= 0 and cells[8 * line + k] != 0.0:
                    counts[feature_of[rank]] += 1


@njit(nogil=True, error_model="numpy")
def take(
    order,
    columns,
    begin,
    lines,
    head,
    cells,
    cell_ranks,
    feature_of,
    first,
    end,
    ends,
    outs,
    values,
):
    """Write the nonzero weights of features from `first` to `end`, feature by feature.

    Parameters
    ----------
    order : (K,) int64
        Classes, in the order of their columns.
    columns : (K,) int32
        The column of each class.
    ends : (end - first,) int64
        Where to write the next weight of each feature, changed in place.
    outs, values : (any,) int32, float64
        Columns and weights, written.
    """
    for c in order:
        for h in range(head.shape[1]):
            f = feature_of[h]
            if first <= f < end and head[c, h] != 0.0:
                outs[ends[f - first]] = columns[c]
                values[ends[f - first]] = head[c, h]
                ends[f - first] += 1
        for line in range(begin[c], begin[c] + lines[c]):
            for k in range(5):
                rank = cell_ranks[16 * line + 10 + k]
                if rank >= 0 and cells[8 * line + k] != 0.0:
                    f = feature_of[rank]
                    if first <= f < end:
                        outs[ends[f - first]] = columns[c]
                        values[ends[f - first]] = cells[8 * line + k]
                        ends[f - first] += 1
