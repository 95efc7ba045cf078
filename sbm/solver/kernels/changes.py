"""Changes of W that several processes add up; see sync.py.

Each process moves its own copy of W by `damping` times its change, by bucket of weights, so that
its change since the last sum is (W - base) / damping. The code of a weight is the number of its
bucket, plus `_LISTED` while a list has it. The frequent weights have the buckets from `frequent` on
and are never listed.
"""

import numpy as np
from numba import njit

__all__ = [
    "apply", "count", "learn", "list_changed", "receive", "receive_frequent", "settle",
    "settle_all", "take", "take_all", "take_frequent",
]  # fmt: skip

_LISTED = np.uint8(128)
_BUCKET = np.uint8(127)


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
