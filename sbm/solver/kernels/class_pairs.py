"""Weston-Watkins multi-class SVM, in the dual, one pair of classes at a time.

For rows x_i with classes y_i and costs C_i the primal problem is ::

    min_W  ½|W|² + Σ_i C_i Σ_{c ≠ y_i} max(0, 1 - z_iy + z_ic)      z_ic = w_c·x_i

and its dual, with w_c = Σ_i u_ic x_i, u_ic = -β_ic for c ≠ y_i, u_iy = Σ_c β_ic, is ::

    max_β  Σ β_ic - ½|W|²   subject to   0 ≤ β_ic ≤ C_i,  β_iy = 0

One visit of β_ic solves for it exactly. Both w_y and w_c move, so the curvature is 2|x|² ::

    g = z_iy - z_ic - 1;   β_ic ← clip(β_ic - g / (2|x|²), 0, C_i);   w_y += δx;   w_c -= δx

It touches two classes only: pairs of classes that share none own what they change, and are solved
at the same time with the result of one after the other. Within a pair {a, b}
this is a binary SVM for v = w_a - w_b, the rows of a with s = +1, those of b with s = -1:
g = s v·x - 1; w_a += sδx; w_b -= sδx.

A bias B > 0 is one more feature of value B, kept in the last entry of every w_c and in no row.

Given: rows (as in sparse.py) in class order; pairs of classes; `weight` of each row, None when all
are 1.
In place: beta, W. Returned: nothing; what visits add up to is written to `stats`.
Source: Alber, Zimmert, Dogan & Kloft 2016, algorithms 1 and 2 (their equation 3 has the wrong
sign).
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import (
    GOLDEN,
    hinge_gap_within,
    mix,
    permute,
    prefetch,
    rounding,
    step_in_box,
)

__all__ = ["certify", "divide", "norms", "solve"]

SUPPORT, FREE = 1, 2  # marks of rows, beside each other


@njit(nogil=True, error_model="numpy")
def _prefetch_weights(W, a, b, indices, begin, length):
    """Ask for the weights of two classes at the features of one row."""
    width = np.int64(W.shape[1])
    for p in range(begin, begin + length):
        feature = np.int64(indices[p])
        prefetch(W, np.int64(a) * width + feature)
        prefetch(W, np.int64(b) * width + feature)


@njit(nogil=True, error_model="numpy")
def _prefetch_rows(begin, end, rows, starts, indices, values, beta, other):
    """Ask for β and the first nonzeros of some rows.

    In class order rows are far from each other in memory; the processor does not guess where.
    """
    width = np.int64(beta.shape[1])
    for t in range(begin, end):
        prefetch(beta, np.int64(rows[t]) * width + np.int64(other))
        prefetch(indices, np.int64(starts[t]))
        if values is not None:
            prefetch(values, np.int64(starts[t]))


@njit(nogil=True, error_model="numpy")
def _bounds(k, chunk, chunks_a, begin_a, end_a, begin_b, end_b):
    """First row of chunk k of a pair, the row behind its last, and whether they are of class a."""
    if k < chunks_a:
        begin = begin_a + k * chunk
        return np.uint64(begin), np.uint64(min(begin + chunk, end_a)), True
    begin = begin_b + (k - chunks_a) * chunk
    return np.uint64(begin), np.uint64(min(begin + chunk, end_b)), False


@njit(nogil=True, error_model="numpy")
def _dot(indices, values, begin, end, W, a, b, z):
    """Return z + (w_a - w_b)·x for one row."""
    if values is None:
        for p in range(begin, end):
            feature = np.uint32(indices[p])
            z += W[a, feature] - W[b, feature]
    else:
        for p in range(begin, end):
            feature = np.uint32(indices[p])
            z += np.float64(values[p]) * (W[a, feature] - W[b, feature])
    return z


@njit(nogil=True, error_model="numpy")
def _add(indices, values, begin, end, W, a, b, step):
    """Add step times one row to w_a and take it from w_b."""
    for p in range(begin, end):
        feature = np.uint32(indices[p])
        change = step if values is None else step * np.float64(values[p])
        W[a, feature] += change
        W[b, feature] -= change


@njit(nogil=True, error_model="numpy")
def norms(starts, lengths, values, bias, out):
    """Write |x|² of every row, the bias feature included.

    Parameters
    ----------
    starts, lengths : (n,) int64, int32
    values : float32 or float64 or None
    bias : float
    out : (n,) float64, filled in place
    """
    for i in range(len(starts)):
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        a = bias * bias
        if values is None:
            a += np.float64(lengths[i])
        else:
            for p in range(begin, end):
                v = np.float64(values[p])
                a += v * v
        out[i] = a


@njit(nogil=True, error_model="numpy")
def divide(loads, by_load, totals, part):
    """Divide pairs among tasks: the heaviest first, each to the task that has least so far.

    Parameters
    ----------
    loads, by_load : (n_pairs,) int64
        Work of each pair; pairs by falling work.
    totals : (tasks,) int64, in place
        Zero; the work of each task comes back.
    part : (n_pairs,) int32, filled in place
        Task of each pair.
    """
    for k in range(len(by_load)):
        pair = np.uint64(by_load[k])
        least = 0
        for task in range(1, len(totals)):
            if totals[task] < totals[least]:
                least = task
        totals[least] += loads[pair]
        part[pair] = least


@njit(nogil=True, error_model="numpy")
def _solve_pair(
    a, b, first, rows, starts, lengths, norms, weight, indices, values, beta, column, W,
    place, costs, bias, chunk, least_chunks, ahead, is_first, seed, order, stats,
):  # fmt: skip
    """Visit the rows of class a against b and those of b against a; fill stats[:5]."""
    at_a, at_b = np.uint64(place[a]), np.uint64(place[b])
    column_a, column_b = np.uint64(column[a]), np.uint64(column[b])
    begin_a, begin_b = first[a], first[b]
    end_a = first[a + np.uint64(1)] if costs[a] > 0.0 else begin_a
    end_b = first[b + np.uint64(1)] if costs[b] > 0.0 else begin_b
    visits = end_a - begin_a + end_b - begin_b
    chunk = max(1, min(chunk, visits // least_chunks))
    chunks_a = (end_a - begin_a + chunk - 1) // chunk
    chunks = chunks_a + (end_b - begin_b + chunk - 1) // chunk
    # A seed of the pair's own, never 0.
    pair = a * np.uint64(len(costs)) + b
    permute(order, chunks, mix(seed + (pair + np.uint64(1)) * GOLDEN) | np.uint64(1))
    bias_at = np.uint64(W.shape[1] - 1)
    bias_a = W[at_a, bias_at] if bias > 0.0 else 0.0  # at hand: cheaper than a branch a visit
    bias_b = W[at_b, bias_at] if bias > 0.0 else 0.0
    gain = 0.0
    gap = 0.0
    updates = 0
    worst = 0.0
    for k in range(chunks):
        t0, last, of_a = _bounds(order[k], chunk, chunks_a, begin_a, end_a, begin_b, end_b)
        next_t0, next_last = last, last
        if k + 1 < chunks:
            next_t0, next_last, next_of_a = _bounds(
                order[k + 1], chunk, chunks_a, begin_a, end_a, begin_b, end_b
            )
            next_other = column_b if next_of_a else column_a
            _prefetch_rows(next_t0, next_last, rows, starts, indices, values, beta, next_other)
        s = 1.0 if of_a else -1.0
        cost = costs[a] if of_a else costs[b]
        other = column_b if of_a else column_a
        for t in range(t0, last):
            if ahead > 0:  # in this chunk or, because chunks may be short, the next
                q = t + np.uint64(ahead)
                inside = q < last
                q = q if inside else next_t0 + (q - last)
                if inside or q < next_last:
                    _prefetch_weights(
                        W, at_a, at_b, indices, np.uint64(starts[q]), np.uint64(lengths[q])
                    )
            C = cost
            if weight is not None:
                C *= weight[t]
                if C == 0.0:
                    continue
            i = np.uint64(rows[t])
            begin = np.uint64(starts[t])
            end = begin + np.uint64(lengths[t])
            old = beta[i, other]
            z = _dot(indices, values, begin, end, W, at_a, at_b, bias * (bias_a - bias_b))
            G = s * z - 1.0
            if is_first:
                # The product is 0, but no number where |x|² is infinite: that is noticed then.
                gap += (C - old) * max(-G, 0.0) + old * max(G, 0.0) + 0.0 * norms[t]
            new, violation, _ = step_in_box(G, old, C, 2.0 * norms[t])
            worst = max(worst, violation)
            change = new - old
            if change != 0.0:
                updates += 1
                gain += change
                beta[i, other] = new
                step = s * change
                _add(indices, values, begin, end, W, at_a, at_b, step)
                bias_a += step * bias
                bias_b -= step * bias
    if bias > 0.0:
        W[at_a, bias_at] = bias_a
        W[at_b, bias_at] = bias_b
    stats[0] = gain
    stats[1] = gap
    stats[2] = visits
    stats[3] = updates
    stats[4] = worst


@njit(nogil=True, error_model="numpy")
def solve(
    pairs, mine, first, rows, starts, lengths, norms, weight, indices, values, beta, column, W,
    place, costs, bias, chunk, least_chunks, ahead, is_first, seed, order, stats,
):  # fmt: skip
    """Visit some of the class pairs of a match day once.

    Every pair visits its rows in chunks of consecutive ones, chunks of both classes in one random
    order, which depends on `seed` and the pair alone: who else is at work, and when, changes
    nothing.

    Parameters
    ----------
    pairs : (n_pairs, 2) int32
        Of the day: no class twice.
    mine : (m,) int64
        Those to visit.
    first : (n_classes + 1,) int64
        The rows of class c are first[c] to first[c + 1] of what follows; those of classes with
        cost 0 are never visited.
    rows : (n,) int32
        The row of `beta` they have.
    starts, lengths : (n,) int64, int32
    norms : (n,) float64
        |x|², the bias feature included.
    weight : (n,) float64, or None for ones
        Multiplies the cost of each row.
    indices, values : int32, float32 or float64 or None
    beta : (at least n, n_columns) float64, in place
    column : (n_classes,) int32
        Column of `beta` of the variables against each class.
    W : (n_rows, n_features + (bias > 0)) float64, in place
        By classes, so that no two threads write to the same place in memory.
    place : (n_classes,) int32
        Row of `W` of each class.
    costs : (n_classes,) float64
        C_i of the rows of each class.
    bias : float
    chunk, least_chunks : int
        Rows to a chunk; less where a pair had fewer chunks than that.
    ahead : int
        Rows to prefetch ahead, 0 for none.
    is_first : bool
        Whether the gap is estimated: terms count at the first visit of a variable.
    seed : uint64
    order : (at least the rows of these pairs,) int32
        Scratch.
    stats : (n_pairs, 5) float64, filled in place for these pairs
        Change of Σ β; gap, 0 unless `is_first`; visits; updates; largest violation.
    """
    for k in range(len(mine)):
        pair = np.uint64(mine[k])
        _solve_pair(
            np.uint64(pairs[pair, 0]), np.uint64(pairs[pair, 1]), first, rows, starts, lengths,
            norms, weight, indices, values, beta, column, W, place, costs, bias, chunk,
            least_chunks, ahead, is_first, seed, order, stats[pair],
        )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def _dot_within(indices, values, begin, end, W, a, b, z):
    """Return z + (w_a - w_b)·x for one row, and a bound of its rounding error."""
    size = abs(z)
    for p in range(begin, end):
        feature = np.uint32(indices[p])
        product = W[a, feature] - W[b, feature]
        if values is not None:
            product *= np.float64(values[p])
        z += product
        size += abs(product)
    return z, rounding(end - begin + np.uint64(2), size)  # a difference is rounded, too


@njit(nogil=True, error_model="numpy")
def _certify_side(
    own, other, first, rows, starts, lengths, weight, indices, values, beta, column, W, W_alpha,
    place, costs, bias, marks, stats,
):  # fmt: skip
    """Add the rows of one class, against another one, to a certificate."""
    at_own, at_other = np.uint64(place[own]), np.uint64(place[other])
    bias_at = np.uint64(W.shape[1] - 1)
    offset = bias * (W[at_own, bias_at] - W[at_other, bias_at]) if bias > 0.0 else 0.0
    for t in range(first[own], first[own + np.uint64(1)]):
        C = costs[own] if weight is None else costs[own] * weight[t]
        if C == 0.0:
            continue
        i = np.uint64(rows[t])
        begin = np.uint64(starts[t])
        end = begin + np.uint64(lengths[t])
        z, error = _dot_within(indices, values, begin, end, W, at_own, at_other, offset)
        old = beta[i, np.uint64(column[other])]
        stats[0] += hinge_gap_within(1.0 - z, error, old, C, False)
        stats[1] += C * max(0.0, 1.0 - z)
        stats[2] += old
        if old > 0.0:
            marks[i] |= SUPPORT if old >= C else SUPPORT | FREE
            _add(indices, values, begin, end, W_alpha, at_own, at_other, old)
            if bias > 0.0:
                W_alpha[at_own, bias_at] += old * bias
                W_alpha[at_other, bias_at] -= old * bias


@njit(nogil=True, error_model="numpy")
def certify(
    pairs, mine, first, rows, starts, lengths, weight, indices, values, beta, column, W, W_alpha,
    place, costs, bias, marks, stats,
):  # fmt: skip
    """Add some class pairs of a match day to the certificate, at fixed W and variables.

    The gap of Weston-Watkins is a sum over rows and other classes, so every pair adds its own.

    Parameters
    ----------
    W_alpha : like W, added to in place
        The weights that belong to the variables, rebuilt from scratch over all pairs and rows.
    marks : (at least n,) uint8, in place
        SUPPORT is set where a variable is above 0, FREE where one is inside its bounds.
    stats : (n_pairs, 3) float64, filled in place for these pairs
        Σ g_i (the gap at drift 0, whatever W'x_i was rounded by), Σ φ_i, Σ d_i.
    others : as in `solve`; nothing of these is changed
    """
    for k in range(len(mine)):
        pair = np.uint64(mine[k])
        a, b = np.uint64(pairs[pair, 0]), np.uint64(pairs[pair, 1])
        stats[pair] = 0.0
        for side in range(2):
            _certify_side(
                b if side else a, a if side else b, first, rows, starts, lengths, weight, indices,
                values, beta, column, W, W_alpha, place, costs, bias, marks, stats[pair],
            )  # fmt: skip
