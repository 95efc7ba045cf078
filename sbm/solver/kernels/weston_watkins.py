"""Weston and Watkins' machine of many classes: all of a row's losses count.

For a row of class y, with l_c = 1 - z_y + z_c for c ≠ y, the loss is φ_i = C_i Σ_c max(0, l_c), and
its variables, one for each c ≠ y, have ::

    0 ≤ β_ic ≤ C_i,   w_c = Σ_{y_i = c} x_i Σ_d β_id - Σ_{y_i ≠ c} β_ic x_i

A visit solves for all of them exactly, by finding their sum, the level γ: the root of a decreasing,
piecewise linear function, in a few sweeps over the classes (Keerthi et al. 2008 with an upper bound
for every variable, as Wang & Scott 2021; the root by Bitran & Hax 1981). class_pairs.py solves the
same problem one pair of classes at a time.

Of one row: losses l and β (width,) float64, one entry a class, l_y so small that it never counts;
C its cost. `solve` writes `new`; nothing but it and scratch is changed.
"""

from numba import njit

from sbm.solver.kernels.classes import FAST, NEVER, TINY

__all__ = ["is_free", "judge", "missed", "rank", "solve", "values"]


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def judge(loss, beta, C):
    """Return (largest violation, share of the gap) of a row; for a cost of 0 both are 0."""
    if C == 0.0:
        return 0.0, 0.0
    worst = 0.0
    gap = 0.0
    for k in range(len(loss)):
        up = max(loss[k], 0.0)
        down = -min(loss[k], 0.0)
        worst = max(worst, up if beta[k] < C else 0.0)
        worst = max(worst, down if beta[k] > 0.0 else 0.0)
        gap += (C - beta[k]) * up + beta[k] * down
    return worst, gap


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def _find_level(v, keys, C):
    """Return the root γ of  Σ min(max(v_c - γ, 0), C) = γ.

    Variables are fixed at a bound, those at one side at a time, until the level of the others
    violates none of their bounds (Bitran & Hax 1981, for a resource of variable size).
    """
    n = 0
    for k in range(len(v)):
        keys[n] = v[k]
        n += v[k] > 0.0
    full = 0
    while True:
        sum_ = 0.0
        for j in range(n):
            sum_ += keys[j]
        level = (C * full + sum_) / (1 + n)
        below = 0.0
        above = 0.0
        for j in range(n):
            below += max(level - keys[j], 0.0)
            above += max(keys[j] - level - C, 0.0)
        if below == above:  # mostly both are 0
            return level
        m = 0
        for j in range(n):
            key = keys[j]
            keys[m] = key
            stays = key > level if below > above else key - level < C
            m += stays
        if m == n:
            return level
        full += 0 if below > above else n - m
        n = m


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def solve(own, loss, a, beta, C, may_shut, shut, new, v, keys):
    """Write the exact minimiser over all variables of a row whose class is not shut."""
    sum_ = 0.0
    for k in range(len(loss)):
        sum_ += beta[k]
    if a < TINY:
        for k in range(len(shut)):
            new[k] = C if k != own and not shut[k] else 0.0
        return
    scale = 1.0 / a
    for k in range(len(loss)):
        v[k] = loss[k] * scale + (beta[k] + sum_)
    if may_shut:
        for k in range(len(shut)):
            v[k] = NEVER if shut[k] else v[k]
    level = _find_level(v, keys, C)
    for k in range(len(loss)):
        new[k] = min(max(v[k] - level, 0.0), C)


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def rank(loss, new, C):
    """Score of a row for the cache: gradients from before its step, variables from after it."""
    most = NEVER
    for k in range(len(loss)):
        slack = loss[k] if new[k] <= 0.0 else (-loss[k] if new[k] >= C else abs(loss[k]))
        most = max(most, slack)
    return most


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def missed(loss, beta, C, error):
    """How much larger the share of a row in the gap may be, where every loss has an error."""
    total = 0.0
    for k in range(len(loss)):
        more = max(loss[k] + error, 0.0) - max(loss[k], 0.0)
        total += (C - beta[k]) * more + beta[k] * error
    return total


@njit(nogil=True, error_model="numpy", forceinline=True)
def is_free(beta, C):
    """Whether a variable of a row lies inside its bounds."""
    n_free = 0
    for k in range(len(beta)):
        n_free += (beta[k] > 0.0) & (beta[k] < C)
    return n_free > 0


@njit(nogil=True, error_model="numpy", forceinline=True)
def values(own, loss, beta, C, n_outputs):
    """Return (φ_i, d_i) of a row."""
    total = 0.0
    dual = 0.0
    for k in range(n_outputs):
        if k != own:
            total += C * max(loss[k], 0.0)
            dual += beta[k]
    return total, dual
