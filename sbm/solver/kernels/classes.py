"""Code shared by the problems of many classes: a row times the weights of all classes, and bounds.

Rows are given as in common.py. W (n_features + (bias > 0), K) float64 has a column per class; its
last row has the weights of the bias feature, which is not stored in rows. `decide` writes scratch,
`move` changes W; other functions change nothing.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import prefetch, rounding
from sbm.solver.kernels.vectors import add8, add_few, add_sizes8, largest8, store8, zeros8

__all__ = [
    "EVER", "FAST", "FULL", "NEVER", "TINY", "count_nonzero", "decide", "decide_few",
    "decision_error", "move", "move_damped", "prefetch_weights", "squared_norm",
]  # fmt: skip

# Sums over the classes of a row may be computed in any order, so they are vectorized. No value of
# a row is NaN.
FAST = {"reassoc", "nsz", "nnan", "contract"}

# A row with a smaller squared norm than this moves no weight; no cost is as small.
TINY = 1e-200
# Below any loss and above any variable, but not so that a multiple of 0 would be no number.
NEVER = -1e300
EVER = 1e300
# Sums of variables that are to be C differ from it by rounding.
FULL = 1.0 - 1e-12


@njit(nogil=True, error_model="numpy", forceinline=True)
def prefetch_weights(W, indices, begin, length):
    """Prefetch the weights of one row: a cache line has those of 8 classes."""
    outputs = np.int64(W.shape[1])
    last = min(outputs, 32) - 1
    for p in range(begin, begin + length):
        first = np.int64(indices[p]) * outputs
        for k in range(0, last, 8):
            prefetch(W, first + k)
        prefetch(W, first + last)  # a row of W may begin anywhere in a line


@njit(nogil=True, error_model="numpy", forceinline=True)
def _dot8(indices, values, begin, end, W, k, z):
    """Write z[k : k + 8]; eight sums stay in a register over all nonzeros."""
    outputs = np.uint64(W.shape[1])
    sums = zeros8()
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        sums = add8(sums, v, W, np.uint64(np.uint32(indices[p])) * outputs + k)
    store8(sums, z, k)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _dot16(indices, values, begin, end, W, k, m, z):
    """Write z[k : k + 8] and z[m : m + 8]."""
    outputs = np.uint64(W.shape[1])
    sums = zeros8()
    others = zeros8()
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        first = np.uint64(np.uint32(indices[p])) * outputs
        sums = add8(sums, v, W, first + k)
        others = add8(others, v, W, first + m)
    store8(sums, z, k)
    store8(others, z, m)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _dot_few(indices, values, begin, end, W, z):
    """Write z of fewer than 8 classes, and `NEVER` up to 8."""
    outputs = np.uint64(W.shape[1])
    sums = zeros8()
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        sums = add_few(sums, v, W, np.uint64(np.uint32(indices[p])) * outputs, outputs)
    store8(sums, z, np.uint64(0))
    for k in range(outputs, np.uint64(8)):
        z[k] = NEVER


@njit(nogil=True, error_model="numpy", forceinline=True)
def decide(indices, values, begin, end, W, bias, z):
    """Write z = W'x of one row; if there are fewer than 8 classes, `NEVER` for others up to 8.

    Blocks of classes may overlap, as values are not added to.
    """
    outputs = np.uint64(W.shape[1])
    k = np.uint64(0)
    if outputs >= np.uint64(8):
        last = outputs - np.uint64(8)
        while k + np.uint64(8) < outputs:
            _dot16(indices, values, begin, end, W, k, min(k + np.uint64(8), last), z)
            k += np.uint64(16)
        if k < outputs:
            _dot8(indices, values, begin, end, W, last, z)
    else:
        _dot_few(indices, values, begin, end, W, z)
    if bias > 0.0:
        for c in range(outputs):
            z[c] += bias * W[W.shape[0] - 1, c]


@njit(nogil=True, error_model="numpy", forceinline=True)
def decide_few(indices, values, begin, end, W, bias, few, m, z):
    """Write z of a few classes of one row."""
    z[:] = NEVER
    for j in range(m):
        z[j] = bias * W[W.shape[0] - 1, np.uint32(few[j])] if bias > 0.0 else 0.0
    for p in range(begin, end):
        f = np.uint32(indices[p])
        v = 1.0 if values is None else np.float64(values[p])
        for j in range(m):
            z[j] += v * W[f, np.uint32(few[j])]


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def squared_norm(values, begin, end):
    """Return |x|² of one row."""
    if values is None:
        return np.float64(end - begin)
    a = 0.0
    for p in range(begin, end):
        v = np.float64(values[p])
        a += v * v
    return a


@njit(nogil=True, error_model="numpy", forceinline=True)
def move(indices, values, begin, end, W, bias, columns, steps, n_steps):
    """Add steps[j] times one row to column columns[j] of W, for j below n_steps."""
    for p in range(begin, end):
        f = np.uint32(indices[p])
        v = 1.0 if values is None else np.float64(values[p])
        for j in range(n_steps):
            W[f, np.uint32(columns[j])] += v * steps[j]
    if bias > 0.0:
        for j in range(n_steps):
            W[W.shape[0] - 1, np.uint32(columns[j])] += bias * steps[j]


@njit(nogil=True, error_model="numpy", forceinline=True)
def move_damped(
    indices, values, begin, end, W, bias, columns, steps, n_steps,
    damping, damping_extra, code,
):  # fmt: skip
    """Do the same, each row of W times its damping."""
    for p in range(begin, end):
        f = np.uint32(indices[p])
        v = 1.0 if values is None else np.float64(values[p])
        v *= damping[code[f]]
        for j in range(n_steps):
            W[f, np.uint32(columns[j])] += v * steps[j]
    if bias > 0.0:
        for j in range(n_steps):
            W[W.shape[0] - 1, np.uint32(columns[j])] += damping_extra * bias * steps[j]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _size8(indices, values, begin, end, W, k):
    """Return the largest Σ |x_f W_fc| of the eight classes c starting at k."""
    outputs = np.uint64(W.shape[1])
    sums = zeros8()
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        sums = add_sizes8(sums, v, W, np.uint64(np.uint32(indices[p])) * outputs + k)
    return largest8(sums)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _size1(indices, values, begin, end, W, k):
    """Return Σ |x_f W_fk|."""
    sum_ = 0.0
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        sum_ += abs(v * W[np.uint32(indices[p]), k])
    return sum_


@njit(nogil=True, error_model="numpy", forceinline=True)
def decision_error(indices, values, begin, end, W, bias):
    """Return a bound on the rounding error of every z of one row."""
    outputs = np.uint64(W.shape[1])
    size = 0.0
    k = np.uint64(0)
    while k + np.uint64(8) <= outputs:
        size = max(size, _size8(indices, values, begin, end, W, k))
        k += np.uint64(8)
    if outputs > np.uint64(8) and k < outputs:  # as of `decide`, blocks may overlap
        size = max(size, _size8(indices, values, begin, end, W, outputs - np.uint64(8)))
        k = outputs
    while k < outputs:
        size = max(size, _size1(indices, values, begin, end, W, k))
        k += np.uint64(1)
    if bias > 0.0:
        last = 0.0
        for c in range(outputs):
            last = max(last, abs(W[W.shape[0] - 1, c]))
        size += bias * last
    return rounding(end - begin, size)


@njit(nogil=True, error_model="numpy", forceinline=True)
def count_nonzero(beta, n_outputs):
    """Return how many of the first variables are nonzero."""
    n = 0
    for k in range(n_outputs):
        n += beta[k] != 0.0
    return n
