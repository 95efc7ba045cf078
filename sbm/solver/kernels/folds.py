"""Folds for cross-validation: every row's is a hash of its content.

So a fold does not depend on blocks, order or threads, and equal rows are in the same one: what is
held out was never seen in training, not even in a copy. It does depend on the numbers that the
store gave to features, in the order in which its text had them.
"""

import numpy as np
from numba import njit

__all__ = ["assign"]


@njit(nogil=True, error_model="numpy")
def _mix(x):
    """Finalizer of the splitmix64 generator: every bit of x changes half of the result's."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, error_model="numpy")
def assign(starts, lengths, indices, bits, n_folds, seed, block, first, folds):
    """Write the fold of each row.

    Parameters
    ----------
    starts, lengths : (n,) int64, int32
    indices, bits : int32, uint32 or uint64 or None
        `bits` are the values as they lie in memory; zeros that were written out do not count.
    n_folds, seed : int
    block, first : int
        Block of the rows and number of the first one there: of rows without a nonzero, which have
        no content, these are hashed.
    folds : (n,) uint8, filled in place
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    begin = _mix(np.uint64(seed) + golden)
    sign = np.uint64(1) << np.uint64(63 if bits is None or bits.itemsize == 8 else 31)
    for i in range(len(starts)):
        h, empty = begin, True
        for p in range(np.uint64(starts[i]), np.uint64(starts[i]) + np.uint64(lengths[i])):
            if bits is not None and np.uint64(bits[p]) & ~sign == np.uint64(0):
                continue
            empty = False
            h = _mix((h + golden) ^ np.uint64(indices[p]))
            if bits is not None:
                h = _mix(h ^ np.uint64(bits[p]))
        if empty:
            h = _mix(h ^ _mix(np.uint64(block) * golden + np.uint64(first + i)))
        folds[i] = np.uint8((h >> np.uint64(33)) % np.uint64(n_folds))
