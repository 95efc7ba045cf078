"""Lists of the nonzero variables of each row, all in one pool of bounded size.

The list of row i is outputs[begin[i] : begin[i] + count[i]] and the same of betas. Each list
is preceded by its row (in outputs) and its room (in betas). A list that outgrows its room moves to
the end of the pool; when the pool is full, unused room is removed. `held` counts the variables of
each part of the data, in memory and on disk, and is kept below a limit, so the lists of a block are
bounded wherever they are.

The pool: begin (n,) int64, count (n,) int32, outputs (room,) int32, betas (room,) float64, and used
(1,) int64, the used length of the last two. All are changed in place; functions return counts.
"""

import numpy as np
from numba import njit

__all__ = [
    "append",
    "copy_lists",
    "count_spilled",
    "keep_lists",
    "make_room",
    "read",
    "read_few",
    "spill",
    "squeeze",
    "write",
]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _move_list(i, number, to, begin, count, outputs, betas):
    """Move the list of row i to an earlier position, without spare room; return the next one."""
    source = begin[i]
    n = np.int64(count[i])
    outputs[to] = number
    betas[to] = np.float64(n)
    for q in range(n):
        outputs[to + 1 + q] = outputs[source + q]
        betas[to + 1 + q] = betas[source + q]
    begin[i] = to + 1
    return to + 1 + n


@njit(nogil=True, error_model="numpy")
def squeeze(begin, count, outputs, betas, used):
    """Move the lists in use to the front of the pool."""
    to = 0
    position = 0
    while position < used[0]:
        i = np.uint64(outputs[position])
        following = position + 1 + np.int64(betas[position])
        if begin[i] == position + 1:
            to = _move_list(i, outputs[position], to, begin, count, outputs, betas)
        position = following
    used[0] = to


@njit(nogil=True, error_model="numpy")
def count_spilled(keep, home, row, at, count, offsets, origin, new_offsets, sizes):
    """Count the variables of a block's lists, and of lists that leave for other blocks.

    Parameters
    ----------
    keep, home, row : (n,) bool, int32, int32
        Rows of the pool that stay in it; the part of each row and its position there.
    at : (n_parts,) int32
        First row of each part in the block, -1 for parts of other blocks.
    count : (n,) int32
    offsets : (n_block + 1,) int64
        Lists that the block has now.
    origin : (n_block,) int32, filled in place
        Row of the pool, -1 if it has none.
    new_offsets : (n_block + 1,) int64, filled in place
        Lists that the block will have; those that stay in the pool are empty.
    sizes : (2,) int64, filled in place
        Nonempty lists that leave for other blocks, and their variables.
    """
    n_block = len(origin)
    origin[:] = -1
    sizes[:] = 0
    for i in range(len(keep)):
        first = np.int64(at[np.uint32(home[i])])
        if first >= 0:
            origin[np.uint64(first + row[i])] = np.int32(i)
        elif not keep[i] and count[i] > 0:
            sizes[0] += 1
            sizes[1] += count[i]
    new_offsets[0] = 0
    for j in range(n_block):
        i = np.int64(origin[j])
        n = offsets[j + 1] - offsets[j]
        if i >= 0:
            n = np.int64(0) if keep[np.uint64(i)] else np.int64(count[np.uint64(i)])
        new_offsets[j + 1] = new_offsets[j] + n


@njit(nogil=True, error_model="numpy")
def spill(
    keep, home, row, at, begin, count, outputs, betas, offsets, l_outputs, l_betas, origin,
    new_offsets, new_outputs, new_betas, left_home, left_row, left_offsets, left_outputs,
    left_betas,
):  # fmt: skip
    """Copy the lists that `count_spilled` counted.

    Parameters
    ----------
    keep, home, row, at, begin, count, outputs, betas, offsets, origin, new_offsets
        As there; nothing of these is changed.
    l_outputs, l_betas : int32, float64
        Lists that the block has now.
    new_outputs, new_betas : int32, float64, filled in place
        Lists that the block will have.
    left_home, left_row, left_offsets, left_outputs, left_betas : filled in place
        Rows and lists that leave for other blocks, int32, int32, int64, int32, float64.
    """
    for j in range(len(origin)):
        to = new_offsets[j]
        n = new_offsets[j + 1] - to
        if origin[j] >= 0:
            source = begin[np.uint32(origin[j])]
            for q in range(n):
                new_outputs[to + q] = outputs[source + q]
                new_betas[to + q] = betas[source + q]
        else:
            source = offsets[j]
            for q in range(n):
                new_outputs[to + q] = l_outputs[source + q]
                new_betas[to + q] = l_betas[source + q]
    k = 0
    left_offsets[0] = 0
    for i in range(len(keep)):
        if keep[i] or count[i] == 0 or at[np.uint32(home[i])] >= 0:
            continue
        left_home[k] = home[i]
        left_row[k] = row[i]
        to = left_offsets[k]
        for q in range(count[i]):
            left_outputs[to + q] = outputs[begin[i] + q]
            left_betas[to + q] = betas[begin[i] + q]
        k += 1
        left_offsets[k] = to + count[i]


@njit(nogil=True, error_model="numpy")
def keep_lists(keep, numbers, begin, count, outputs, betas, used):
    """Remove the lists of the other rows, and number the kept ones anew.

    Parameters
    ----------
    keep : (n,) bool
    numbers : (n,) int32
        How many of the rows up to each one are kept.
    begin, count, outputs, betas, used : the pool, in place
        Its first n rows have lists before, the first ``numbers[-1]`` afterwards.
    """
    to = 0
    position = 0
    while position < used[0]:
        i = np.uint64(outputs[position])
        following = position + 1 + np.int64(betas[position])
        if keep[i] and begin[i] == position + 1:
            number = numbers[i] - np.int32(1)
            to = _move_list(i, number, to, begin, count, outputs, betas)
        position = following
    used[0] = to
    kept = 0
    for j in range(len(keep)):
        begin[kept] = begin[j]
        count[kept] = count[j]
        kept += keep[j]


@njit(nogil=True, error_model="numpy", forceinline=True)
def make_room(i, wanted, begin, outputs, betas, used):
    """Give row i room for `wanted` variables if possible; return its room.

    The variables in its list are lost if it moves: the caller has a copy.
    """
    room = np.int64(betas[begin[i] - 1])
    free = len(outputs) - used[0] - 1
    if wanted <= room or free <= room:
        return room
    room = min(wanted + 1, free)
    outputs[used[0]] = np.int32(i)
    betas[used[0]] = np.float64(room)
    begin[i] = used[0] + 1
    used[0] += 1 + room
    return room


@njit(nogil=True, error_model="numpy", forceinline=True)
def read(first, n, outputs, betas, beta):
    """Scatter the list of n variables at `first` to beta, one entry per class."""
    beta[:] = 0.0
    for q in range(first, first + n):
        beta[np.uint32(outputs[q])] = betas[q]


@njit(nogil=True, error_model="numpy", forceinline=True)
def read_few(i, begin, count, outputs, betas, few, m, label, beta):
    """Scatter the list of row i to its few classes; return the position of its class, or -1."""
    beta[:] = 0.0
    own = -1
    q = begin[i]
    end = q + count[i]
    for j in range(m):
        if few[j] == label:
            own = j
        if q < end and outputs[q] == few[j]:
            beta[j] = betas[q]
            q += 1
    return own


@njit(nogil=True, error_model="numpy", forceinline=True)
def write(i, begin, count, outputs, betas, beta, n_outputs, columns, values):
    """Write the list of row i from beta; there must be room."""
    n = _pick(beta, n_outputs, columns, values)
    for j in range(n):
        outputs[begin[i] + j] = columns[j]
        betas[begin[i] + j] = values[j]
    count[i] = n


@njit(nogil=True, error_model="numpy", forceinline=True)
def _pick(beta, n_outputs, columns, values):
    """Gather the nonzero entries without branches; return their number."""
    n = 0
    for k in range(n_outputs):
        columns[n] = k
        values[n] = beta[k]
        n += beta[k] != 0.0
    return n


@njit(nogil=True, error_model="numpy")
def append(first, rows, offsets, l_outputs, l_betas, begin, count, outputs, betas, used):
    """Append the lists of rows of a block for working rows from `first`; return their number.

    Parameters
    ----------
    first : int
    rows : (n,) int32
        Numbers of the rows in the block.
    offsets, l_outputs, l_betas : (n_block + 1,) int64, int32, float64
        Lists of the block.
    begin, count, outputs, betas, used : the pool, in place
    """
    for t in range(len(rows)):
        source = offsets[np.uint32(rows[t])]
        n = offsets[np.uint32(rows[t]) + np.uint32(1)] - source
        if used[0] + 1 + n > len(outputs):
            return t
        outputs[used[0]] = np.int32(first + t)
        betas[used[0]] = np.float64(n)
        begin[first + t] = used[0] + 1
        count[first + t] = n
        for q in range(n):
            outputs[used[0] + 1 + q] = l_outputs[source + q]
            betas[used[0] + 1 + q] = l_betas[source + q]
        used[0] += 1 + n
    return len(rows)


@njit(nogil=True, error_model="numpy")
def copy_lists(begins, counts, outputs, betas, to_begins, to_outputs, to_betas):
    """Copy lists between arbitrary positions of two pairs of arrays.

    Parameters
    ----------
    begins, counts, to_begins : (n,) int64
    outputs, betas : (any,) int32, float64
    to_outputs, to_betas : (any,) int32, float64, filled in place
    """
    for i in range(len(begins)):
        for q in range(counts[i]):
            to_outputs[to_begins[i] + q] = outputs[begins[i] + q]
            to_betas[to_begins[i] + q] = betas[begins[i] + q]
