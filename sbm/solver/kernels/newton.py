"""Sums over rows for second-order methods, and a Cholesky factorization.

For rows x_i, with the extra feature of value `bias` last if bias > 0, these are ::

    add_rows    out += Σ r_i x_i
    gram        H   += Σ r_i x_i x_i'
    multiply    out += Σ r_i x_i x_i'v, without H
    add_squares out += Σ r_i x_i², by weight
    gram_of     H   += Σ r_i x_i x_i', of some weights

H has the lower triangle only. Sparse rows are added by pairs of nonzeros. Rows that fill a good
part of H are spread out, and eight of them added at a time, which reads and writes H an eighth as
often.

Given: rows (as in common.py); `r` (n,) float64. In place: out, H, scratch; `solve` overwrites its
right side. Returned: nothing, except by `factorize`.
"""

import math

import numpy as np
from numba import njit

from sbm.solver.kernels.common import add, dot

__all__ = ["add_rows", "add_squares", "factorize", "gram", "gram_of", "multiply", "solve"]

_TOGETHER = 8  # rows that are added to H at a time
_FILLED = 0.3  # share of nonzeros above which rows are spread out
_REORDERED = {"contract", "reassoc"}


@njit(nogil=True, error_model="numpy")
def add_rows(starts, lengths, indices, values, bias, r, out):
    """Add Σ r_i x_i to `out`, shape (n_weights,)."""
    extra = 0.0
    for i in range(np.uint64(len(starts))):
        if r[i] != 0.0:
            begin = np.uint64(starts[i])
            add(indices, values, begin, begin + np.uint64(lengths[i]), out, r[i])
            extra += r[i]
    if bias > 0.0:
        out[len(out) - 1] += bias * extra


@njit(nogil=True, error_model="numpy")
def multiply(starts, lengths, indices, values, bias, r, v, out):
    """Add Σ r_i x_i x_i'v to `out`, shape (n_weights,)."""
    extra = 0.0
    for i in range(np.uint64(len(starts))):
        if r[i] != 0.0:
            begin = np.uint64(starts[i])
            end = begin + np.uint64(lengths[i])
            z = bias * v[len(v) - 1] if bias > 0.0 else 0.0
            z, _ = dot(indices, values, begin, end, v, z, 0.0)
            add(indices, values, begin, end, out, r[i] * z)
            extra += r[i] * z
    if bias > 0.0:
        out[len(out) - 1] += bias * extra


@njit(nogil=True, error_model="numpy")
def add_squares(starts, lengths, indices, values, bias, r, out):
    """Add Σ r_i x_i², by weight, to `out`, shape (n_weights,)."""
    for i in range(np.uint64(len(starts))):
        if r[i] == 0.0:
            continue
        begin = np.uint64(starts[i])
        for p in range(begin, begin + np.uint64(lengths[i])):
            x = 1.0 if values is None else np.float64(values[p])
            out[np.uint32(indices[p])] += r[i] * x * x
        if bias > 0.0:
            out[len(out) - 1] += r[i] * bias * bias


@njit(nogil=True, error_model="numpy")
def _add_pairs(indices, values, begin, end, bias, r, H):
    """Add one row by pairs of nonzeros."""
    for p in range(begin, end):
        a = r if values is None else r * np.float64(values[p])
        of_row = H[np.uint32(indices[p])]
        if values is None:
            for q in range(begin, p + np.uint64(1)):
                of_row[np.uint32(indices[q])] += a
        else:
            for q in range(begin, p + np.uint64(1)):
                of_row[np.uint32(indices[q])] += a * np.float64(values[q])
    if bias > 0.0:
        last = H[len(H) - 1]
        for p in range(begin, end):
            last[np.uint32(indices[p])] += r * bias * (1.0 if values is None else values[p])
        last[len(H) - 1] += r * bias * bias


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _add_dense(dense, weight, H):
    """Add eight dense rows, and clear them."""
    d = len(H)
    for i in range(d):
        a0, a1 = weight[0] * dense[0, i], weight[1] * dense[1, i]
        a2, a3 = weight[2] * dense[2, i], weight[3] * dense[3, i]
        a4, a5 = weight[4] * dense[4, i], weight[5] * dense[5, i]
        a6, a7 = weight[6] * dense[6, i], weight[7] * dense[7, i]
        of_row = H[i]
        for j in range(i + 1):
            of_row[j] += (
                (a0 * dense[0, j] + a1 * dense[1, j]) + (a2 * dense[2, j] + a3 * dense[3, j])
            ) + ((a4 * dense[4, j] + a5 * dense[5, j]) + (a6 * dense[6, j] + a7 * dense[7, j]))
    dense[:] = 0.0
    weight[:] = 0.0


@njit(nogil=True, error_model="numpy")
def gram(starts, lengths, indices, values, bias, r, H, dense, weight):
    """Add Σ r_i x_i x_i' to the lower triangle of H.

    Parameters
    ----------
    starts ... values
        The rows.
    bias : float
    r : (n,) float64
    H : (d, d) float64, added to in place
    dense, weight : (8, d), (8,) float64
        Scratch, all 0 before and after.
    """
    d = len(H)
    held = 0
    for i in range(np.uint64(len(starts))):
        if r[i] == 0.0:
            continue
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        if lengths[i] < _FILLED * d:
            _add_pairs(indices, values, begin, end, bias, r[i], H)
            continue
        for p in range(begin, end):
            dense[held, np.uint32(indices[p])] = 1.0 if values is None else np.float64(values[p])
        if bias > 0.0:
            dense[held, d - 1] = bias
        weight[held] = r[i]
        held += 1
        if held == _TOGETHER:
            _add_dense(dense, weight, H)
            held = 0
    if held > 0:
        _add_dense(dense, weight, H)


@njit(nogil=True, error_model="numpy")
def gram_of(starts, lengths, indices, values, bias, r, place, H, own, x):
    """Add Σ r_i x_i x_i', of the weights that have a place, to the lower triangle of H.

    Parameters
    ----------
    starts ... values
        The rows.
    bias : float
    r : (n,) float64
    place : (n_weights,) int32
        Of each weight in H, in increasing order, or -1.
    H : (k, k) float64, added to in place
    own, x : (k,) int32, float64
        Scratch.
    """
    last = place[len(place) - 1]
    for i in range(np.uint64(len(starts))):
        if r[i] == 0.0:
            continue
        begin = np.uint64(starts[i])
        n = 0
        for p in range(begin, begin + np.uint64(lengths[i])):
            k = place[np.uint32(indices[p])]
            if k >= 0:
                own[n] = k
                x[n] = 1.0 if values is None else np.float64(values[p])
                n += 1
        if bias > 0.0 and last >= 0:
            own[n] = last
            x[n] = bias
            n += 1
        for p in range(n):
            of_row = H[own[p]]
            a = r[i] * x[p]
            for q in range(p + 1):
                of_row[own[q]] += a * x[q]


@njit(nogil=True, error_model="numpy", fastmath=_REORDERED)
def _dot(a, b, n):
    total = 0.0
    for k in range(n):
        total += a[k] * b[k]
    return total


@njit(nogil=True, error_model="numpy")
def factorize(H):
    """Replace the lower triangle of H by its Cholesky factor; return 1, or 0 if H is indefinite."""
    for i in range(len(H)):
        row = H[i]
        for j in range(i):
            row[j] = (row[j] - _dot(row, H[j], j)) / H[j, j]
        square = row[i] - _dot(row, row, i)
        if not square > 0.0:
            return 0
        row[i] = math.sqrt(square)
    return 1


@njit(nogil=True, error_model="numpy")
def solve(L, x):
    """Solve L L' x = b in place, given the result of `factorize`."""
    n = len(L)
    for i in range(n):
        x[i] = (x[i] - _dot(L[i], x, i)) / L[i, i]
    for k in range(n):
        i = n - 1 - k
        x[i] /= L[i, i]
        for j in range(i):
            x[j] -= L[i, j] * x[i]
