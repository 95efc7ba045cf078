"""Folds for cross-validation: every row's is a hash of its content.

So a fold does not depend on blocks, order or threads, and equal rows are in the same one: what is
held out was never seen in training, not even in a copy. It does depend on the numbers that the
store gave to features, in the order in which its text had them.

Given: rows (as in sparse.py), values as bits. In place: folds. Returned: nothing.
Source: the finisher of splitmix64 (Steele, Lea & Flood 2014), over the words of a row.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.visits import GOLDEN, mix

__all__ = ["assign"]


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
