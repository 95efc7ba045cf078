"""Compiled loops of the spill: packing alphas to one byte each, and unpacking.

Most alphas rest at one of a few values (0, or an upper bound); the others are free. A resting alpha
is stored as the index of its value in a short table, a free one as the code FREE with its value in
a list.

Given: alphas or their codes. In place: the other ones. Returned: the number of free alphas, or
whether the codes are valid.
"""

import numpy as np
from numba import njit

FREE = 255


@njit(nogil=True, error_model="numpy")
def pack(alpha, resting, codes, free):
    """Write the code of each alpha, and a list of the free alphas.

    Parameters
    ----------
    alpha : (n,) float64
    resting : (r,) float64
        At most `FREE` values, the most frequent first.
    codes : (n,) uint8, filled in place
    free : (n_free + 1,) float64, filled in place
        See `count_free`.

    Returns
    -------
    int
        Number of free alphas.
    """
    n_free = 0
    for i in range(len(alpha)):
        code = FREE
        for k in range(len(resting) - 1, -1, -1):
            if alpha[i] == resting[k]:
                code = k
        codes[i] = code
        free[n_free] = alpha[i]
        n_free += code == FREE
    return n_free


@njit(nogil=True, error_model="numpy")
def count_free(alpha, resting):
    """Return how many alphas are not at a resting value.

    Parameters
    ----------
    alpha : (n,) float64
    resting : (r,) float64
    """
    n_free = 0
    for i in range(len(alpha)):
        free = True
        for k in range(len(resting)):
            free &= alpha[i] != resting[k]
        n_free += free
    return n_free


@njit(nogil=True, error_model="numpy")
def unpack(codes, free, resting, alpha):
    """Unpack the result of `pack`.

    Parameters
    ----------
    codes : (n,) uint8
    free : (n_free,) float64
    resting : (r,) float64
    alpha : (n,) float64, filled in place

    Returns
    -------
    bool
        Whether the codes belong to the table and to the list.
    """
    n_free = 0
    sound = True
    for i in range(len(codes)):
        code = np.int64(codes[i])
        if code == FREE and n_free < len(free):
            alpha[i] = free[n_free]
            n_free += 1
        elif code < len(resting):
            alpha[i] = resting[code]
        else:
            sound = False
    return sound and n_free == len(free)
