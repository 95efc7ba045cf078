"""The order of visits: two-level permutation, shrinking, and when rounds end.

A round visits chunks of consecutive rows in a fresh random order, rows inside a chunk in storage
order: as good as a fresh order of rows, as rows are dealt to blocks at random, and several times
faster, as the way to memory is known ahead. Later rounds leave out rows at rest (shrinking, Hsieh
et al. 2008, section 3.2). `docs/how-it-works.md` says more.
"""

import numpy as np
from numba import njit

__all__ = ["GOLDEN", "is_last", "mix", "new_order", "permute", "rows_left"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # what splitmix64 counts by


@njit(nogil=True, error_model="numpy")
def mix(x):
    """Finisher of the splitmix64 generator: every bit of x changes half of the result's."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, error_model="numpy")
def permute(order, n, x):
    """Write a random permutation to order[:n]; x, not 0, seeds xorshift64; return its next x."""
    for k in range(n):
        order[k] = k
    for i in range(n - 1, 0, -1):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
        j = np.int64((x >> np.uint64(33)) % np.uint64(i + 1))
        order[i], order[j] = order[j], order[i]
    return x


@njit(nogil=True, error_model="numpy")
def new_order(order, m, chunk, state):
    """Put the chunks of m rows in a fresh random order; return how many there are."""
    chunks = (m + chunk - 1) // chunk
    state[0] = permute(order, chunks, state[0])
    return chunks


@njit(nogil=True, error_model="numpy")
def _close_ranks(active, m):
    """Move the rows of active[:m] that are still active to its front; return their number."""
    kept = 0
    for t in range(m):
        if active[t] >= 0:
            active[kept] = active[t]
            kept += 1
    return kept


@njit(nogil=True, error_model="numpy")
def rows_left(active, m, r, dropped):
    """Bring the rows of the round behind round r to the front of `active`; return their number."""
    if r == 0:
        for t in range(m):
            active[t] = t
    elif dropped > 0:
        m = _close_ranks(active, m)
    return m


@njit(nogil=True, error_model="numpy")
def is_last(r, rounds, worst, inner_tol):
    """Whether round r, with this largest violation, is the last one."""
    return r + 1 == rounds or worst == 0.0 or (r == 0 and worst <= inner_tol)
