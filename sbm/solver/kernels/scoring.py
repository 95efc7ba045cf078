"""Losses of all classes for all rows, in tiles of classes, and classes with the largest losses.

A tile has the weights of `WIDTH` classes by feature, in float32: those of the first ranks dense, in
``tile`` (n, WIDTH), the others in lists, entries ends[r] to ends[r + 1] of `places` and `weights`
for rank n + r. Weights are multiplied by a power of two, and so are rows, which keeps both in the
range of a float32.

So losses are approximate, l_c = 1 - z_y + z_c within the row's `error`; what is near 0 or near the
largest one is computed again from the tables, and the bounds on the other losses are certain.
Lists of classes are as in `batches`.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.classes import FAST
from sbm.solver.kernels.tables import cell, key_after, n_weights, rank_of

__all__ = ["fill_tile", "prepare", "score"]

WIDTH = 128  # classes of a tile
_NEVER = np.float32(-1e30)
_UNIT = 2.0**-24  # relative rounding error of a float32


@njit(nogil=True, error_model="numpy")
def prepare(
    starts, lengths, indices, values, rank, bias, n_dense, largest, squares, sizes, ends, mids,
    ranks, parts, errors,
):  # fmt: skip
    """Write rows as `score` takes them: the ranks of the dense part of a tile first.

    Parameters
    ----------
    starts, lengths, indices, values : rows
    rank : (n_weights,) int32
        Rank of each feature; the last one is that of the bias, if `bias` is not 0.
    largest : float
        Largest norm of the weights of a class.
    squares, sizes : (n,) float64
        The squared norm of each row, and a power of two near the norm.
    ends, mids : (n + 1,) and (n,) int64
        Row i has entries ends[i] to ends[i + 1], from mids[i] on outside the dense part. Written.
    ranks, parts : int32, float32
        Written; parts are values divided by the size of the row.
    errors : (n,) float64
        The error of the losses of each row, written.
    """
    position = 0
    for i in range(len(starts)):
        ends[i] = position
        begin, end = starts[i], starts[i] + np.int64(lengths[i])
        norm, size = np.sqrt(squares[i]), sizes[i]
        for is_rest in range(2):
            if is_rest == 1:
                mids[i] = position
            for p in range(begin, end + (bias > 0.0)):
                r = rank[np.uint32(indices[p])] if p < end else rank[len(rank) - 1]
                if (r >= n_dense) == (is_rest == 1):
                    v = bias
                    if p < end:
                        v = 1.0 if values is None else np.float64(values[p])
                    ranks[position] = r
                    parts[position] = np.float32(v / size)
                    position += 1
        # Of values, weights, products and their sum, and of the loss; and less than the smallest
        # number for each product.
        n = position - ends[i]
        errors[i] = 1.01 * ((n + 12) * _UNIT * norm * largest + 4 * _UNIT)
        errors[i] += n * 1e-37 * size * largest
    ends[len(starts)] = position


@njit(nogil=True, error_model="numpy")
def fill_tile(
    begin, lines, head, cells, tags, top, first, last, scale, tile, ends, places, weights
):
    """Write the weights of some classes as a tile; return the room that its lists need.

    If there is less of it, the lists are not written.

    Parameters
    ----------
    begin, lines, head, cells, tags, top : tables
    first, last : int
        The classes, at most `WIDTH`.
    scale : float
        Factor of the weights.
    tile : (n, WIDTH) float32
    ends : (n_ranks - n + 1,) int64
    places, weights : (any,) uint8, float32
    """
    n_dense, bits = tile.shape[0], np.uint64(top[2])
    for r in range(n_dense):
        for k in range(tile.shape[1]):
            tile[r, k] = 0.0
    ends[:] = 0
    for c in range(first, last):
        for r in range(head.shape[1]):
            if r < n_dense:
                tile[r, c - first] = np.float32(head[c, r] * scale)
            else:
                ends[r - n_dense + 1] += head[c, r] != 0.0
        for i in range(lines[c]):
            line = begin[c] + i
            after = key_after(np.uint64(i), np.uint64(lines[c]), bits)
            for k in range(n_weights(tags, line)):
                r = rank_of(cells, tags, line, k, after, top)
                if r >= n_dense:
                    ends[r - n_dense + 1] += 1
                else:
                    tile[r, c - first] = np.float32(cells[cell(cells, line, k)] * scale)
    for r in range(1, len(ends)):
        ends[r] += ends[r - 1]
    needed = ends[len(ends) - 1]
    if needed > len(places):
        return needed
    for c in range(first, last):
        for r in range(n_dense, head.shape[1]):
            if head[c, r] != 0.0:
                q = ends[r - n_dense]
                places[q] = c - first
                weights[q] = np.float32(head[c, r] * scale)
                ends[r - n_dense] = q + 1
        for i in range(lines[c]):
            line = begin[c] + i
            after = key_after(np.uint64(i), np.uint64(lines[c]), bits)
            for k in range(n_weights(tags, line)):
                r = rank_of(cells, tags, line, k, after, top)
                if r >= n_dense:
                    q = ends[r - n_dense]
                    places[q] = c - first
                    weights[q] = np.float32(cells[cell(cells, line, k)] * scale)
                    ends[r - n_dense] = q + 1
    for r in range(len(ends) - 1, 0, -1):
        ends[r] = ends[r - 1]
    ends[0] = 0
    return needed


@njit(nogil=True, error_model="numpy", fastmath=FAST)
def score(
    some, offset, first, last, own, classes_of, y, scale, tile, tile_ends, places, weights,
    sizes, ends, mids, ranks, parts, errors, z_own, signs, least,
    offsets, listed, losses, cursor, best, best_losses, counts, bounds, z,
):  # fmt: skip
    """Compute the losses of some rows for the classes of a tile.

    Parameters
    ----------
    some : (n_some,) int32
        Rows to visit; all others are left alone.
    offset : int
        Position in `best` of the first of them; the others follow.
    first, last : int
        The classes of the tile, as numbers of this owner.
    own : (K,) int32
        Number of each class for this owner; -1 for those of others.
    classes_of : (n_own,) int32
        Classes of this owner, ascending.
    y : (n,) int32
        Classes of rows.
    scale : float
        Factor of the weights of the tile.
    tile, tile_ends, places, weights : a tile
    sizes, ends, mids, ranks, parts, errors : as of `prepare`
    z_own : (n,) float64
        Decision value of each row's class; its loss is 1 at the start, when there are no losses.
    signs : (n,) float32
        -1 for rows of which losses of classes that are not listed should be positive: all their
        losses are multiplied by it. 1 for others.
    least : float
        A class that is not listed must have a larger loss to be found, up to the error.
    offsets, listed : (n + 1,) int64, (any,) int32
        Classes of each row's list, ascending.
    losses : (any,) float32
        Losses of listed classes, written.
    cursor : (n,) int64
        Position in each row's list, changed in place.
    best, best_losses : (any, m) int32, float32
        Classes with the largest losses that are not listed, the largest first, then by class;
        changed in place.
    counts : (n,) int32
        Number of classes found, raised.
    bounds : (n,) float64
        Raised by the sum of bounds of their losses, in whole errors: the order does not matter.
    z : (WIDTH,) float32
        Scratch.
    """
    n_dense, width, m = tile.shape[0], last - first, best.shape[1]
    for t in range(len(some)):
        i, b = some[t], offset + t
        for k in range(WIDTH):
            z[k] = np.float32(0.0)
        p, mid, end = ends[i], mids[i], ends[i + 1]
        while p + 3 < mid:
            a, e = tile[np.uint32(ranks[p])], tile[np.uint32(ranks[p + 1])]
            c, d = tile[np.uint32(ranks[p + 2])], tile[np.uint32(ranks[p + 3])]
            va, vb, vc, vd = parts[p], parts[p + 1], parts[p + 2], parts[p + 3]
            for k in range(WIDTH):
                z[k] += va * a[k] + vb * e[k] + vc * c[k] + vd * d[k]
            p += 4
        while p < mid:
            a, va = tile[np.uint32(ranks[p])], parts[p]
            for k in range(WIDTH):
                z[k] += va * a[k]
            p += 1
        while p < end:
            v, r = parts[p], np.uint64(np.uint32(ranks[p]) - np.uint32(n_dense))
            for q in range(tile_ends[r], tile_ends[r + np.uint64(1)]):
                z[places[q]] += v * weights[q]
            p += 1
        factor = signs[i] * np.float32(sizes[i] / scale)
        shift = signs[i] * np.float32(1.0 - z_own[i])
        for k in range(WIDTH):
            z[k] = z[k] * factor + shift
        o = own[y[i]]
        if first <= o < last:
            z[o - first] = _NEVER
        q, stop = cursor[i], offsets[i + 1]
        while q < stop:
            o = own[listed[q]]
            if o >= last:
                break
            if o >= 0:
                losses[q] = z[o - first]
                z[o - first] = _NEVER
            q += 1
        cursor[i] = q
        most = _NEVER
        error = errors[i]
        floor = np.float32(least - error)
        found = 0
        for k in range(width):
            most = max(most, z[k])
            found += z[k] > floor
        if found == 0:
            continue
        counts[i] += found
        for k in range(width):
            if z[k] > floor:
                bounds[i] += np.int64(max(np.float64(z[k]) / error + 2.0, 0.0))
        if most < best_losses[b, m - 1]:
            continue
        for k in range(width):
            if not z[k] > floor:
                continue
            c = classes_of[first + k]
            at = m
            while at > 0 and (
                best_losses[b, at - 1] < z[k]
                or (best_losses[b, at - 1] == z[k] and best[b, at - 1] > c)
            ):
                if at < m:
                    best_losses[b, at] = best_losses[b, at - 1]
                    best[b, at] = best[b, at - 1]
                at -= 1
            if at < m:
                best_losses[b, at] = z[k]
                best[b, at] = c
