"""Sums of the changes that several workers made to their own copies of W; see `sbm.solver.workers`.

Given W, before the changes d_t of all workers, and views W + σ d_t, with a factor σ for each bucket of
weights, W and all views become W + Σ d_t.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import EXTRA, bucket_of

__all__ = ["add_up"]


@njit(nogil=True, error_model="numpy")
def add_up(first, last, has_extra, damping, w, views, sums):
    """Add up the changes of the weights from `first` to `last`.

    Parameters
    ----------
    first, last : int
    has_extra : bool
        Whether the last weight of all is that of the extra feature.
    damping : (n_buckets,) float64
        σ by bucket.
    w : (n_weights,) float64, in place
    views : (n_workers, n_weights) float64, in place
    sums : (3, n_buckets) float64, added to in place
        |Σ d_t|², Σ |d_t|² and |w|² after the sum, by bucket.
    """
    workers = np.uint64(len(views))
    for j in range(np.uint64(first), np.uint64(last)):
        bucket = EXTRA if has_extra and j + np.uint64(1) == len(w) else bucket_of(j, None)
        before = w[j]
        total = 0.0
        square = 0.0
        for t in range(workers):
            change = views[t, j] - before
            total += change
            square += change * change
        if square > 0.0:
            inverse = 1.0 / damping[bucket]
            total *= inverse
            sums[0, bucket] += total * total
            sums[1, bucket] += square * inverse * inverse
            w[j] = before + total
            for t in range(workers):
                views[t, j] = before + total
        sums[2, bucket] += w[j] * w[j]
