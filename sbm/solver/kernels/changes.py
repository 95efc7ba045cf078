"""Changes of W that several processes or workers add up; see sync.py and workers.py.

Each process moves its own copy of W by `damping` times its change, by bucket of weights, so that
its change since the last sum is (W - base) / damping. The code of a weight is the number of its
bucket, plus `_LISTED` while a list has it. The frequent weights have the buckets from `frequent` on
and are never listed.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import EXTRA, bucket_of

__all__ = [
    "add_up", "apply", "count", "learn", "list_changed", "receive", "receive_frequent", "settle",
    "settle_all", "take", "take_all", "take_frequent",
]  # fmt: skip

_LISTED = np.uint8(128)
_BUCKET = np.uint8(127)
_REASSOCIATED = {"reassoc", "contract"}


@njit(nogil=True, error_model="numpy")
def count(starts, lengths, indices, counts):
    """Add the number of rows with each feature to `counts`, (n_weights, 1) float64."""
    for i in range(len(starts)):
        for p in range(starts[i], starts[i] + lengths[i]):
            counts[np.uint32(indices[p]), 0] += 1.0


@njit(nogil=True, error_model="numpy")
def list_changed(updated, starts, lengths, indices, code, frequent, listed, n):
    """Append the weights of updated rows that are not yet in `listed`, a list of n.

    Returns its new length; -1 if they do not fit.
    """
    for i in updated:
        begin = np.uint64(starts[np.uint32(i)])
        for p in range(begin, begin + np.uint64(lengths[np.uint32(i)])):
            j = np.uint32(indices[p])
            if code[j] < frequent:  # buckets of others are above, as are codes of listed ones
                if n == len(listed):
                    return -1
                code[j] |= _LISTED
                listed[n] = j
                n += 1
    return n


@njit(nogil=True, error_model="numpy")
def take_frequent(places, W, base, damping, code, changes):
    """Write this process's changes of the frequent weights, then Σ change² by bucket."""
    outputs = W.shape[1]
    n = len(places)
    changes[n * outputs :] = 0.0
    for k in range(n):
        j = np.uint32(places[k])
        bucket = code[j] & _BUCKET
        for c in range(outputs):
            change = (W[j, c] - base[j, c]) / damping[bucket]
            changes[k * outputs + c] = change
            changes[n * outputs + bucket] += change * change


@njit(nogil=True, error_model="numpy")
def learn(averages, squares, own, first, last, rate, spare, damping, most):
    """Update the damping of the buckets from `first` to `last`.

    Parameters
    ----------
    averages : (2, n_buckets) float64, in place
        Moving averages of |Σ_p d_p|² and Σ_p |d_p|².
    squares, own : (n_buckets,) float64
        Both, of the last sum.
    first, last : int
    rate, spare : float
        Rate of the averages; safety factor.
    damping : (n_buckets,) float64, in place
    most : float
        The number of processes.
    """
    for b in range(np.uint64(first), np.uint64(last)):
        averages[0, b] += rate * (squares[b] - averages[0, b])
        averages[1, b] += rate * (own[b] - averages[1, b])
        if averages[1, b] > 0.0:
            damping[b] = min(most, max(1.0, spare * averages[0, b] / averages[1, b]))


@njit(nogil=True, error_model="numpy")
def receive_frequent(places, W, base, code, changes, squares):
    """Add the sum of all processes' changes to W and base; add its squares by bucket."""
    outputs = W.shape[1]
    for k in range(len(places)):
        j = np.uint32(places[k])
        for c in range(outputs):
            change = changes[k * outputs + c]
            squares[code[j] & _BUCKET] += change * change
            base[j, c] += change
            W[j, c] = base[j, c]


@njit(nogil=True, error_model="numpy")
def take(places, W, base, damping, code, changes):
    """Write this process's listed changes, undo them in W, and unmark them."""
    for k in range(len(places)):
        j = places[k]
        bucket = code[np.uint32(j)] & _BUCKET
        code[np.uint32(j)] = bucket
        for c in range(W.shape[1]):
            changes[k, c] = (W[np.uint32(j), c] - base[np.uint32(j), c]) / damping[bucket]
            W[np.uint32(j), c] = base[np.uint32(j), c]


@njit(nogil=True, error_model="numpy")
def receive(places, changes, W, code, union, n, own):
    """Add a process's changes to W, and Σ change² by bucket to `own`.

    Weights that are not yet in `union`, a list of n, are appended; returns its new length.
    """
    for k in range(len(places)):
        j = np.uint32(places[k])
        bucket = code[j] & _BUCKET
        if code[j] < _LISTED:
            code[j] = bucket | _LISTED
            union[n] = places[k]
            n += 1
        for c in range(W.shape[1]):
            own[bucket] += changes[k, c] * changes[k, c]
            W[j, c] += changes[k, c]
    return n


@njit(nogil=True, error_model="numpy")
def settle(union, n, W, base, code, squares):
    """Add squares of the sums by bucket; return nothing. `squares[-2:]`: <base, sum>, |sum|²."""
    cross = 0.0
    size = 0.0
    for k in range(n):
        j = np.uint32(union[k])
        code[j] &= _BUCKET
        for c in range(W.shape[1]):
            change = W[j, c] - base[j, c]
            squares[code[j]] += change * change
            cross += base[j, c] * change
            size += change * change
    squares[len(squares) - 2] = cross
    squares[len(squares) - 1] = size


@njit(nogil=True, error_model="numpy")
def apply(union, n, W, base, share):
    """Move W back to this share of the sum, and set base to W."""
    for k in range(n):
        j = np.uint32(union[k])
        for c in range(W.shape[1]):
            if share < 1.0:
                W[j, c] = base[j, c] + share * (W[j, c] - base[j, c])
            base[j, c] = W[j, c]


@njit(nogil=True, error_model="numpy")
def take_all(W, base, damping, code, frequent, own):
    """Replace W by this process's changes of all weights but the frequent ones, and unmark all.

    Adds Σ change² by bucket to `own`.
    """
    for j in range(np.uint64(len(W))):
        bucket = code[j] & _BUCKET
        is_frequent = bucket >= frequent
        code[j] = bucket
        for c in range(W.shape[1]):
            change = 0.0 if is_frequent else (W[j, c] - base[j, c]) / damping[bucket]
            own[bucket] += change * change
            W[j, c] = change


@njit(nogil=True, error_model="numpy")
def settle_all(W, base, code, squares):
    """Do the same as `settle` for all weights; W is the sum of the changes, and then added."""
    cross = 0.0
    size = 0.0
    for j in range(np.uint64(len(W))):
        bucket = code[j] & _BUCKET
        for c in range(W.shape[1]):
            change = W[j, c]
            squares[bucket] += change * change
            cross += base[j, c] * change
            size += change * change
            W[j, c] = base[j, c] + change
    squares[len(squares) - 2] = cross
    squares[len(squares) - 1] = size


@njit(nogil=True, error_model="numpy", fastmath=_REASSOCIATED)
def _add_up(first, last, inverse, w, views, scratch, sums, bucket):
    """Add up the workers' changes of some weights of one bucket; `scratch` has room for them."""
    n = np.uint64(last - first)
    total = scratch[0]
    square = scratch[1]
    start = np.uint64(first)
    for i in range(n):
        total[i] = 0.0
        square[i] = 0.0
    for t in range(np.uint64(len(views))):
        for i in range(n):
            change = views[t, start + i] - w[start + i]
            total[i] += change
            square[i] += change * change
    a = 0.0
    b = 0.0
    c = 0.0
    for i in range(n):
        change = total[i] * inverse
        a += change * change
        b += square[i]
        new = w[start + i] + change
        c += new * new
        w[start + i] = new
    for t in range(np.uint64(len(views))):
        for i in range(n):
            views[t, start + i] = w[start + i]
    sums[0, bucket] += a
    sums[1, bucket] += b * inverse * inverse
    sums[2, bucket] += c


@njit(nogil=True, error_model="numpy")
def add_up(first, last, has_extra, damping, w, views, scratch, sums):
    """Add up the changes that several workers made to their views of W.

    Given W, before the changes d_t, and views W + σ d_t, W and all views become W + Σ d_t.

    Parameters
    ----------
    first, last : int
        The weights to add up.
    has_extra : bool
        Whether the last weight of all is that of the extra feature.
    damping : (n_buckets,) float64
        σ by bucket.
    w : (n_weights,) float64, in place
    views : (n_workers, n_weights) float64, in place
    scratch : (2, size) float64
    sums : (3, n_buckets) float64, added to in place
        |Σ d_t|², Σ |d_t|² and |w|² after the sum, by bucket.
    """
    j = first
    end = min(last, len(w) - has_extra)
    while j < end:
        bucket = bucket_of(j, None)
        k = min(end, (np.int64(2) << np.int64(bucket)) - 1, j + scratch.shape[1])
        _add_up(j, k, 1.0 / damping[bucket], w, views, scratch, sums, bucket)
        j = k
    if j < last:
        _add_up(j, last, 1.0 / damping[EXTRA], w, views, scratch, sums, EXTRA)
