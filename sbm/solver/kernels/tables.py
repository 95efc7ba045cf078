"""Weights by class, in memory for the nonzero ones only.

Features have ranks: 0 is the most frequent one. Of class c, the weights of ranks below H are
``head[c]``, and those of other ranks are in a hash table of ``lines[c]`` cache lines. A line has
ten float32 or six float64, their tags, the number of its weights, and whether it was full when
another weight came, in 64 bytes; that weight is in one of the next lines. A table that is too full
is copied to a larger one behind all others, without weights that are exactly 0; `squeeze` moves
the tables in use to the front. The sums over a row do not depend on where its weights are.

Ranks are mixed to keys of B bits by an odd factor. The line of a key is its share of all keys, and
its tag the low 15 bits, and 1: a weight is never so far from its line that this is ambiguous.

The tables T = (begin, lines, used, head, cells, tags, top): `begin`, `lines` and `used` (K,) int64
are the first line, the lines and the weights of each table; `cells`, float32 or float64, and `tags`
uint64 are the same memory, 16 or 8 numbers a line; top (7,) int64 has the lines in use and the most
of them; B, the factor, and its inverse; whether tables are packed, as memory is short; and 1 more
than the nonzeros done of an addition that found no room, or 0. Functions change what they name, and
return counts.

A row is given as ranks and values, of which those from `mid` on are not in the head.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import equal_parts, prefetch, trailing_zeros

__all__ = [
    "add",
    "add_up",
    "cell",
    "count",
    "dot",
    "key_after",
    "lay_out",
    "look_ahead",
    "n_weights",
    "norms",
    "rank_of",
    "squeeze",
    "take",
]

_LIVE, _MOST, _BITS, _FACTOR, _INVERSE, _PACKED, _DONE = range(7)  # of top
_ZERO, _ONE, _FOUR, _SEVEN, _EIGHT = (np.uint64(k) for k in (0, 1, 4, 7, 8))
_LOW, _IS_TAG = np.uint64(0x7FFF), np.uint64(0x8000)
_ARE_TAGS = np.uint64(0x3FFF)  # of the 16 parts of four words
_ADD_ONE, _COUNT, _OVER = np.uint64(1 << 32), np.uint64(32), np.uint64(1 << 48)
_IN_LINE, _NOWHERE = np.uint64(15), np.uint64(16)
# The part of a line that has weights, on average, in tables as they grow and when they are new, and
# the same if memory is short.
_FULL, _FRESH = 0.75, 0.5
_PACKED_FULL, _PACKED_FRESH = 0.97, 0.9
_LEAST = 2  # lines
_UNIT = 2.0**31


@njit(nogil=True, error_model="numpy", forceinline=True)
def _most(cells):
    """Return the most weights of a line."""
    return 10 if cells.dtype == np.dtype(np.float32) else 6


@njit(nogil=True, error_model="numpy", forceinline=True)
def cell(cells, line, k):
    """Return the place of weight k of a line; both are int64."""
    return (16 if cells.dtype == np.dtype(np.float32) else 8) * line + k


@njit(nogil=True, error_model="numpy", forceinline=True)
def n_weights(tags, line):
    """Return the number of weights of a line."""
    return np.int64((tags[8 * line + 7] >> _COUNT) & _IN_LINE)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _reach(lines, bits):
    """Return how many lines, from its own, a weight may be in."""
    if bits <= np.uint64(15):
        return lines
    return (_LOW * lines) >> bits


@njit(nogil=True, error_model="numpy", forceinline=True)
def _least(bits):
    """Return the fewest lines of a table."""
    return max(_LEAST, (1 << bits) // 0x7FFF + 1)


@njit(nogil=True, error_model="numpy", forceinline=True)
def key_after(line, lines, bits):
    """Return the first key whose line is behind `line`."""
    return (((line + _ONE) << bits) + lines - _ONE) // lines


@njit(nogil=True, error_model="numpy", forceinline=True)
def _tag_word(cells):
    """Return the first of the words of a line that have tags: four each, the last one two."""
    return np.uint64(5) if cells.dtype == np.dtype(np.float32) else np.uint64(6)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _key(cells, tags, line, k, after, bits):
    """Return the key of weight k in a line of the tables, given the key after it."""
    word = np.uint64(tags[8 * line + np.int64(_tag_word(cells)) + (k >> 2)])
    last = after - _ONE
    key = last - ((last - (word >> np.uint64(16 * (k & 3)))) & _LOW)
    return key & ((_ONE << bits) - _ONE)


@njit(nogil=True, error_model="numpy", forceinline=True)
def rank_of(cells, tags, line, k, after, top):
    """Return the rank of weight k in a line of the tables, given the key after it."""
    bits = np.uint64(top[_BITS])
    key = _key(cells, tags, line, k, after, bits)
    return np.int64((key * np.uint64(top[_INVERSE])) & ((_ONE << bits) - _ONE))


@njit(nogil=True, error_model="numpy", forceinline=True)
def _place(cells, tags, word, tag):
    """Return which weight of a line has a tag, or 16; `word` is the first word of the line."""
    first = _FOUR * (_tag_word(cells) - _FOUR)
    bits = (equal_parts(tags, np.int64(word + _FOUR), tag) & _ARE_TAGS) >> first
    if bits == _ZERO:
        return _NOWHERE
    return trailing_zeros(bits)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _find(cells, tags, at, lines, line, reach, tag):
    """Return the place in cells of a tag and True, or False if it is not there."""
    left = reach
    while left > _ZERO:
        word = _EIGHT * (at + line)
        place = _place(cells, tags, word, tag)
        if place < _NOWHERE:
            return np.uint64(cell(cells, np.int64(at + line), np.int64(place))), True
        if tags[word + _SEVEN] < _OVER:
            break
        line += _ONE
        if line == lines:
            line = _ZERO
        left -= _ONE
    return _ZERO, False


@njit(nogil=True, error_model="numpy", forceinline=True)
def _insert(cells, tags, at, lines, line, reach, tag):
    """Return the place in cells for a new tag and True, or False if there is none."""
    left = reach
    while left > _ZERO:
        word = _EIGHT * (at + line)
        facts = word + _SEVEN
        n = (tags[facts] >> _COUNT) & _IN_LINE
        if n < np.uint64(_most(cells)):
            place = word + _tag_word(cells) + (n >> np.uint64(2))
            tags[place] |= tag << (np.uint64(16) * (n & np.uint64(3)))
            tags[facts] += _ADD_ONE
            return np.uint64(cell(cells, np.int64(at + line), np.int64(n))), True
        tags[facts] |= _OVER
        line += _ONE
        if line == lines:
            line = _ZERO
        left -= _ONE
    return _ZERO, False


@njit(nogil=True, error_model="numpy", forceinline=True)
def dot(T, c, ranks, values, first, mid, end):
    """Return the product of a row and the weights of class c."""
    begin, lines, _used, head, cells, tags, top = T
    z = 0.0
    for p in range(first, mid):
        z += values[p] * head[c, np.uint32(ranks[p])]
    n = np.uint64(lines[c])
    if n > _ZERO:
        at, bits, factor = np.uint64(begin[c]), np.uint64(top[_BITS]), np.uint64(top[_FACTOR])
        reach, mask = _reach(n, bits), (_ONE << bits) - _ONE
        for p in range(mid, end):
            key = (np.uint64(np.uint32(ranks[p])) * factor) & mask
            tag = (key & _LOW) | _IS_TAG
            q, is_there = _find(cells, tags, at, n, (key * n) >> bits, reach, tag)
            z += values[p] * (np.float64(cells[q]) if is_there else 0.0)
    return z


@njit(nogil=True, error_model="numpy", forceinline=True)
def look_ahead(T, c, ranks, first, mid, end):
    """Prefetch the weights of class c for a row."""
    begin, lines, _used, head, _cells, tags, top = T
    width = np.int64(head.shape[1])
    for p in range(first, mid):
        prefetch(head, np.int64(c) * width + np.int64(ranks[p]))
    n = np.uint64(lines[c])
    if n > _ZERO:
        at, bits, factor = np.uint64(begin[c]), np.uint64(top[_BITS]), np.uint64(top[_FACTOR])
        mask = (_ONE << bits) - _ONE
        for p in range(mid, end):
            key = (np.uint64(np.uint32(ranks[p])) * factor) & mask
            prefetch(tags, np.int64(_EIGHT * (at + ((key * n) >> bits))))


@njit(nogil=True, error_model="numpy", forceinline=True)
def _clear(tags, at, n):
    for q in range(8 * at, 8 * (at + n)):
        tags[q] = _ZERO  # bytes of weights are in tags, too


@njit(nogil=True, error_model="numpy", forceinline=True)
def _n_nonzero(cells, at, n):
    """Return how many weights of a table are not 0."""
    live = 0
    for line in range(at, at + n):
        for k in range(_most(cells)):
            live += cells[cell(cells, line, k)] != 0.0
    return live


@njit(nogil=True, error_model="numpy")
def _copy(from_cells, from_tags, source, lines, cells, tags, at, n, bits):
    """Copy the nonzero weights of a table to another one; return whether they fit."""
    _clear(tags, at, n)
    u_at, u_n, u_lines = np.uint64(at), np.uint64(n), np.uint64(lines)
    u_bits = np.uint64(bits)
    reach = _reach(u_n, u_bits)
    for line in range(lines):
        after = key_after(np.uint64(line), u_lines, u_bits)
        for k in range(_most(cells)):
            weight = from_cells[cell(cells, source + line, k)]
            if weight != 0.0:
                key = _key(cells, from_tags, source + line, k, after, u_bits)
                tag = (key & _LOW) | _IS_TAG
                q, fits = _insert(cells, tags, u_at, u_n, (key * u_n) >> u_bits, reach, tag)
                if not fits:
                    return False
                cells[q] = weight
    return True


@njit(nogil=True, error_model="numpy")
def _grow(T, c, more):
    """Give class c a table for so many weights more; return whether there is room."""
    begin, lines, used, _head, cells, tags, top = T
    live = _n_nonzero(cells, begin[c], lines[c])
    fresh = (_PACKED_FRESH if top[_PACKED] else _FRESH) * _most(cells)
    n = max(_least(top[_BITS]), np.int64((live + more) / fresh) + 1)
    if used[c] == live and n <= lines[c]:  # a weight would be too far away
        n = lines[c] + lines[c] // 4 + 1
    while True:
        if top[_LIVE] + n > top[_MOST]:
            return False
        at = top[_LIVE]
        if _copy(cells, tags, begin[c], lines[c], cells, tags, at, n, top[_BITS]):
            break
        n += n // 4 + 1
    top[_LIVE] += n
    begin[c] = at
    lines[c] = n
    used[c] = live
    return True


@njit(nogil=True, error_model="numpy", forceinline=True)
def add(T, c, ranks, values, first, mid, end, step):
    """Add a multiple of a row to the weights of class c; return False if there is no room for it.

    Then the next call must be with the same arguments, and continues.
    """
    begin, lines, used, head, cells, tags, top = T
    p = mid
    if top[_DONE] > 0:
        p += top[_DONE] - 1
        top[_DONE] = 0
    else:
        for h in range(first, mid):
            head[c, np.uint32(ranks[h])] += step * values[h]
    bits, factor = np.uint64(top[_BITS]), np.uint64(top[_FACTOR])
    mask = (_ONE << bits) - _ONE
    at, n = np.uint64(begin[c]), np.uint64(lines[c])
    reach = _reach(n, bits)
    while p < end:
        key = (np.uint64(np.uint32(ranks[p])) * factor) & mask
        line, tag = (key * n) >> bits, (key & _LOW) | _IS_TAG
        q, is_there = _find(cells, tags, at, n, line, reach, tag)
        if not is_there:
            full = _PACKED_FULL if top[_PACKED] else _FULL
            if used[c] < full * _most(cells) * lines[c]:
                q, is_there = _insert(cells, tags, at, n, line, reach, tag)
            if not is_there:
                if not _grow(T, c, end - p):
                    top[_DONE] = p - mid + 1
                    return False
                at, n = np.uint64(begin[c]), np.uint64(lines[c])
                reach = _reach(n, bits)
                continue
            used[c] += 1
        cells[q] += step * values[p]
        p += 1
    return True


@njit(nogil=True, error_model="numpy")
def lay_out(begin, lines, used, head, cells, tags, top):
    """Make all weights 0, in tables whose sizes are those of the weights before.

    They are packed if memory is too short for others.
    """
    top[_LIVE] = top[_DONE] = 0
    least, total, full = _least(top[_BITS]), 0, _FULL * _most(cells)
    for c in range(len(begin)):
        if used[c] > 0:
            total += max(least, np.int64(used[c] / full) + 1)
    top[_PACKED] = total > top[_MOST]
    if top[_PACKED]:
        full = _PACKED_FRESH * _most(cells)
    for c in range(len(begin)):
        weights = used[c]
        begin[c] = 0
        lines[c] = 0
        used[c] = 0
        for h in range(head.shape[1]):
            head[c, h] = 0.0
        if weights > 0:
            n = max(least, np.int64(weights / full) + 1)
            if top[_LIVE] + n <= top[_MOST]:
                begin[c] = top[_LIVE]
                lines[c] = n
                _clear(tags, top[_LIVE], n)
                top[_LIVE] += n
    return top[_LIVE]


@njit(nogil=True, error_model="numpy")
def squeeze(order, begin, lines, used, cells, tags, top, spare, spare_tags):
    """Move the tables in use to the front; `order` has the classes by the begin of their tables.

    If memory is short, they are copied to tables with as few lines as possible.

    Parameters
    ----------
    spare, spare_tags : as cells and tags
        Scratch, of the size of the largest table; the same memory.
    """
    to = 0
    for c in order:
        n, at = lines[c], begin[c]
        if n == 0:
            continue
        size = n
        if top[_PACKED]:
            live = _n_nonzero(cells, at, n)
            size = max(_least(top[_BITS]), np.int64(live / (_PACKED_FRESH * _most(cells))) + 1)
        if size < n:
            for q in range(8 * n):
                spare_tags[q] = tags[8 * at + q]
            while size < n and not _copy(
                spare, spare_tags, 0, n, cells, tags, to, size, top[_BITS]
            ):
                size += size // 16 + 1
            if size < n:
                used[c] = live
            else:
                size = n
                for q in range(8 * n):
                    tags[8 * to + q] = spare_tags[q]
        elif at > to:
            size = n
            for q in range(8 * n):
                tags[8 * to + q] = tags[8 * at + q]
        else:
            size = n
        begin[c] = to
        lines[c] = size
        to += size
    top[_LIVE] = to


@njit(nogil=True, error_model="numpy")
def norms(begin, lines, head, cells, out):
    """Write the squared norm of the weights of each class, for any order of its table.

    Squares are added as integers of two words, in units of the largest one.
    """
    for c in range(len(begin)):
        most = 0.0
        for h in range(head.shape[1]):
            most = max(most, abs(head[c, h]))
        for line in range(begin[c], begin[c] + lines[c]):
            for k in range(_most(cells)):
                most = max(most, np.float64(abs(cells[cell(cells, line, k)])))
        high = 0
        low = 0
        if 0.0 < most < np.inf:
            for h in range(head.shape[1]):
                part = head[c, h] / most
                units = part * part * _UNIT
                whole = np.int64(units)
                high += whole
                low += np.int64((units - whole) * _UNIT)
            for line in range(begin[c], begin[c] + lines[c]):
                for k in range(_most(cells)):
                    part = cells[cell(cells, line, k)] / most
                    units = part * part * _UNIT
                    whole = np.int64(units)
                    high += whole
                    low += np.int64((units - whole) * _UNIT)
        size = high / _UNIT + low / (_UNIT * _UNIT)
        out[c] = size * most * most if most < np.inf else np.inf


@njit(nogil=True, error_model="numpy", forceinline=True)
def _add_units(weight, unit, sums, rank):
    units = weight / unit * _UNIT
    whole = np.trunc(units)
    sums[0, rank] += whole
    sums[1, rank] += np.trunc((units - whole) * _UNIT)


@njit(nogil=True, error_model="numpy")
def add_up(begin, lines, head, cells, tags, top, unit, sums):
    """Add the weights of all classes to `sums`, for any order of them.

    Parameters
    ----------
    unit : float
        A power of two that no weight exceeds.
    sums : (2, n_weights) float64
        Integers in two words, in units of 2^-31 and 2^-62 of it: sums of them are exact.
    """
    bits = np.uint64(top[_BITS])
    for c in range(len(begin)):
        for h in range(head.shape[1]):
            _add_units(np.float64(head[c, h]), unit, sums, h)
        for i in range(lines[c]):
            line = begin[c] + i
            after = key_after(np.uint64(i), np.uint64(lines[c]), bits)
            for k in range(_most(cells)):
                weight = np.float64(cells[cell(cells, line, k)])
                if weight != 0.0:
                    rank = rank_of(cells, tags, line, k, after, top)
                    _add_units(weight, unit, sums, rank)


@njit(nogil=True, error_model="numpy")
def count(begin, lines, head, cells, tags, top, feature_of, counts):
    """Add the number of nonzero weights of each feature to `counts`."""
    bits = np.uint64(top[_BITS])
    for c in range(len(begin)):
        for h in range(head.shape[1]):
            counts[feature_of[h]] += head[c, h] != 0.0
        for i in range(lines[c]):
            line = begin[c] + i
            after = key_after(np.uint64(i), np.uint64(lines[c]), bits)
            for k in range(_most(cells)):
                if cells[cell(cells, line, k)] != 0.0:
                    counts[feature_of[rank_of(cells, tags, line, k, after, top)]] += 1


@njit(nogil=True, error_model="numpy")
def take(
    order,
    columns,
    begin,
    lines,
    head,
    cells,
    tags,
    top,
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
    bits = np.uint64(top[_BITS])
    for c in order:
        for h in range(head.shape[1]):
            f = feature_of[h]
            if first <= f < end and head[c, h] != 0.0:
                outs[ends[f - first]] = columns[c]
                values[ends[f - first]] = head[c, h]
                ends[f - first] += 1
        for i in range(lines[c]):
            line = begin[c] + i
            after = key_after(np.uint64(i), np.uint64(lines[c]), bits)
            for k in range(_most(cells)):
                weight = cells[cell(cells, line, k)]
                if weight != 0.0:
                    f = feature_of[rank_of(cells, tags, line, k, after, top)]
                    if first <= f < end:
                        outs[ends[f - first]] = columns[c]
                        values[ends[f - first]] = weight
                        ends[f - first] += 1
