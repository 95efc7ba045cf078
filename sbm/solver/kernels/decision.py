"""Decision values z = W'x of rows, and the best of them.

Products are summed in the order of the row's nonzeros, then the bias is added, for any number of
columns. So a decision value does not depend on the other columns. LIBLINEAR uses the same order, so
both choose the same of classes that differ only by rounding.

Given: begin and end of rows; W and the bias feature's share.
In place: the output, and scores that are NaN. Returned: the number of unknown features.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from sbm.solver.kernels.common import GOLDEN, mix

__all__ = ["assign", "best", "count_buckets", "decide", "decide_sparse", "hold_out", "judge"]


@njit(nogil=True, error_model="numpy")
def assign(starts, lengths, indices, bits, n_folds, seed, block, first, folds):
    """Write the fold of each row.

    Parameters
    ----------
    starts, lengths : (n,) int64, int32
    indices, bits : int32, uint32 or uint64 or None
        `bits` are the values as stored in memory; explicit zeros are ignored.
    n_folds, seed : int
    block, first : int
        Block of the rows and position of the first one there; hashed for rows without nonzeros.
    folds : (n,) uint8, filled in place
    """
    begin = mix(np.uint64(seed) + GOLDEN)
    sign = np.uint64(1) << np.uint64(63 if bits is None or bits.itemsize == 8 else 31)
    for i in range(len(starts)):
        h, empty = begin, True
        for p in range(np.uint64(starts[i]), np.uint64(starts[i]) + np.uint64(lengths[i])):
            if bits is not None and np.uint64(bits[p]) & ~sign == np.uint64(0):
                continue
            empty = False
            h = mix((h + GOLDEN) ^ np.uint64(indices[p]))
            if bits is not None:
                h = mix(h ^ np.uint64(bits[p]))
        if empty:
            h = mix(h ^ mix(np.uint64(block) * GOLDEN + np.uint64(first + i)))
        folds[i] = np.uint8((h >> np.uint64(33)) % np.uint64(n_folds))


@njit(nogil=True, error_model="numpy")
def hold_out(starts, lengths, indices, values, ids, below, folds):
    """Write 0 for the rows to hold out and 1 for the others.

    The result depends only on the ids and values of a row, whatever their order, and on values as
    float32. Rows without nonzeros are not held out.

    Parameters
    ----------
    starts, lengths : (n,) int64, int32
    indices, values : int32, float32 or float64 or None
    ids : (n_features,) int64
        Feature ids by index.
    below : uint64
        Rows whose hash is below this are held out.
    folds : (n,) uint8, filled in place
    """
    for i in range(len(starts)):
        h = np.uint64(0)
        for p in range(np.uint64(starts[i]), np.uint64(starts[i]) + np.uint64(lengths[i])):
            value = np.float32(1.0 if values is None else values[p])
            bits = np.uint64(value.view(np.uint32))
            if bits << np.uint64(33):  # not 0
                h += mix(mix(np.uint64(ids[np.uint64(indices[p])]) + GOLDEN) ^ bits)
        folds[i] = h == np.uint64(0) or mix(h) >= below


@njit(nogil=True, error_model="numpy")
def _decide_one(begins, ends, indices, values, w, bias, out):
    """Run `decide` for one column; the sum stays in a register."""
    unknown = 0
    for i in range(np.uint64(len(begins))):
        z = 0.0
        for p in range(np.uint64(begins[i]), np.uint64(ends[i])):
            index = indices[p]
            if index < 0:
                unknown += index == -1
                continue
            v = 1.0 if values is None else np.float64(values[p])
            z += v * w[np.uint64(index)]
        out[i] = z + bias
    return unknown


@njit(nogil=True, error_model="numpy")
def _decide_many(begins, ends, indices, values, W, bias, out):
    """Run `decide` for several columns.

    Two known nonzeros are taken at a time, so that sums are read and written half as often.
    """
    unknown = 0
    n_outputs = np.uint64(W.shape[1])
    for i in range(np.uint64(len(begins))):
        z = out[i]
        for k in range(n_outputs):
            z[k] = 0.0
        waiting = False
        first, v_first = np.uint64(0), 0.0
        for p in range(np.uint64(begins[i]), np.uint64(ends[i])):
            index = indices[p]
            if index < 0:
                unknown += index == -1
                continue
            v = 1.0 if values is None else np.float64(values[p])
            if waiting:
                w_first, w = W[first], W[np.uint64(index)]
                for k in range(n_outputs):
                    z[k] = (z[k] + v_first * w_first[k]) + v * w[k]
            else:
                first, v_first = np.uint64(index), v
            waiting = not waiting
        if waiting:
            w_first = W[first]
            for k in range(n_outputs):
                z[k] = (z[k] + v_first * w_first[k]) + bias[k]
        else:
            for k in range(n_outputs):
                z[k] += bias[k]
    return unknown


@njit(nogil=True, error_model="numpy")
def decide_sparse(begins, ends, indices, values, W_ends, columns, weights, bias, out):
    """Write the decision values of rows, with sparse W.

    Parameters
    ----------
    W_ends : (n_features + 1,) int64
    columns, weights : (n_nonzero,) integers, float64
        Feature f has ``columns[W_ends[f] : W_ends[f + 1]]``, and the same of `weights`.
    others : as in `decide`
    """
    unknown = 0
    for i in range(np.uint64(len(begins))):
        z = out[i]
        z[:] = 0.0
        for p in range(np.uint64(begins[i]), np.uint64(ends[i])):
            index = indices[p]
            if index < 0:
                unknown += index == -1
                continue
            v = 1.0 if values is None else np.float64(values[p])
            f = np.uint64(index)
            for q in range(np.uint64(W_ends[f]), np.uint64(W_ends[f + np.uint64(1)])):
                z[np.uint64(columns[q])] += v * weights[q]
        for k in range(np.uint64(len(z))):
            z[k] += bias[k]
    return unknown


@njit(nogil=True, error_model="numpy")
def decide(begins, ends, indices, values, W, bias, out):
    """Write the decision values of rows.

    Parameters
    ----------
    begins, ends : (n_rows,) int64
        Row i has ``indices[begins[i] : ends[i]]``.
    indices : (nnz,) int32
        Rows of W; negative for features the model does not know.
    values : (nnz,) float32 or float64, or None
    W : (n_features, n_outputs) float64
    bias : (n_outputs,) float64
        Value times weights of the extra feature, added last.
    out : (n_rows, n_outputs) float64, filled in place

    Returns
    -------
    int
        Nonzeros whose feature is unknown.
    """
    if W.shape[1] == 1:
        return _decide_one(begins, ends, indices, values, W[:, 0], bias[0], out[:, 0])
    return _decide_many(begins, ends, indices, values, W, bias, out)


@njit(nogil=True, error_model="numpy")
def best(scores, out):
    """Write the columns with the largest values of each row, best first.

    Of equal values the smaller column comes first. NaN (an overflow) is less than all others.

    Parameters
    ----------
    scores : (n_rows, n_outputs) float64
        NaN is replaced by -infinity.
    out : (n_rows, n_best) int32, filled in place
        ``1 <= n_best <= n_outputs``. Best columns are kept by insertion, so time
        grows with n_best if it is large.
    """
    n_best = out.shape[1]
    for i in range(len(scores)):
        z, columns = scores[i], out[i]
        filled = 0
        for k in range(len(z)):
            if z[k] != z[k]:
                z[k] = -np.inf
            if filled < n_best:
                filled += 1
            elif not z[k] > z[columns[n_best - 1]]:
                continue
            place = filled - 1
            while place > 0 and z[k] > z[columns[place - 1]]:
                columns[place] = columns[place - 1]
                place -= 1
            columns[place] = k


@njit(nogil=True, error_model="numpy")
def judge(y, z, negative, positive, threshold, counts, known, truth):
    """Count rows by true and predicted label.

    Parameters
    ----------
    y, z : (n,) float64
        Labels and decision values.
    negative, positive : float
        The two labels. Others are unknown.
    threshold : float
        Larger decision values are positive.
    counts : (3, 2) int64, in place
        True negative, positive or unknown; predicted negative or positive.
    known, truth : (n,) float64 and bool, filled in place
        Decision values of the rows with a known label, and whether it is the positive one.

    Returns
    -------
    int
        Rows with a known label.
    """
    n = 0
    for i in range(len(y)):
        is_positive = y[i] == positive
        is_known = is_positive | (y[i] == negative)
        counts[
            np.uint64(1 if is_positive else (0 if is_known else 2)), np.uint64(z[i] > threshold)
        ] += 1
        known[np.uint64(n)] = z[i]
        truth[np.uint64(n)] = is_positive
        n += is_known
    return n


@njit(nogil=True, error_model="numpy")
def count_buckets(z, truth, histogram):
    """Count decision values by the upper bits of their float32, whose order is theirs.

    Parameters
    ----------
    z, truth : (n,) float64 and bool
        Decision values, and whether the label is positive.
    histogram : (2, 2^20) int64, in place
    """
    for i in range(len(z)):
        # -0.0 becomes 0.0, and values beyond float32 infinite.
        single = np.float32(z[i]) + np.float32(0)
        bits = np.float32(single).view(np.uint32)
        top = np.uint32(1 << 31)
        key = ~bits if bits & top else bits | top
        histogram[np.uint64(truth[i]), np.uint64(key >> np.uint32(12))] += 1
