"""Crammer and Singer's machine of many classes: the largest of a row's losses counts.

For a row of class y, with l_c = 1 - z_y + z_c for c ≠ y, the loss is φ_i = C_i max(0, max_c l_c),
and its variables, one for each c ≠ y, have ::

    β_ic ≥ 0,   Σ_c β_ic ≤ C_i,   w_c = Σ_{y_i = c} x_i Σ_d β_id - Σ_{y_i ≠ c} β_ic x_i

A visit solves for all of them exactly, by finding the level γ above which a variable rises over 0:
the root of a decreasing, piecewise linear function, by Newton's method in a few sweeps over the
classes (Keerthi et al. 2008; LIBLINEAR's appendix E, algorithm 2, sorts instead).

Of one row: losses l and β (width,) float64, one entry a class, l_y so small that it never counts;
C its cost. `solve` writes `new`; nothing but it and scratch is changed.
"""

from numba import njit

from sbm.solver.kernels.classes import EVER, FAST, FULL, NEVER, TINY

__all__ = ["is_free", "judge", "missed", "rank", "solve", "values"]

_LOW = -1e90  # below any loss, and finite divided by the smallest norm


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def judge(loss, beta, C):
    """Return (largest violation, share of the gap) of a row; for a cost of 0 both are 0."""
    if C == 0.0:
        return 0.0, 0.0
    gap = 0.0
    most = 0.0
    least = EVER
    sum_ = 0.0
    for k in range(len(loss)):
        most = max(most, loss[k])
        least = min(least, loss[k] if beta[k] > 0.0 else EVER)
        sum_ += beta[k]
    for k in range(len(loss)):
        gap += beta[k] * (most - loss[k])
    least = min(least, 0.0) if sum_ < C * FULL else least  # what is left of C has loss 0
    return max(most - least, 0.0), gap + max(C - sum_, 0.0) * most


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def _find_level(v, top, guess, C):
    """Return the root γ of  Σ max(v_c - γ, 0) = min(top + γ, C).

    The v_c and γ are relative to the largest of them, which is `top`: that may be far above C, and
    then nothing would be left of C.

    Newton's method on a convex, piecewise linear function: after one step from anywhere it comes
    from below and ends exactly, once the same variables are above the level again.
    """
    level = guess
    for step in range(len(v) + 2):  # each but the first leaves out a variable
        above = 0
        sum_ = 0.0
        for k in range(len(v)):
            inside = v[k] > level
            above += inside
            sum_ += v[k] if inside else 0.0
        following = (sum_ - top) / (above + 1)
        if top + following > C:
            following = (sum_ - C) / above
        if step > 0 and following <= level:
            break
        level = following
    return level


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def solve(own, loss, a, beta, C, may_shut, shut, new, v):
    """Write the exact minimiser over all variables of a row whose class is not shut."""
    sum_ = 0.0
    for k in range(len(loss)):
        sum_ += beta[k]
    if a < TINY:
        left = 1
        for k in range(len(shut)):
            takes = k != own and not shut[k] and left > 0
            new[k] = C if takes else 0.0
            left -= takes
        return
    scale = 1.0 / a
    most = NEVER
    for k in range(len(loss)):
        v[k] = loss[k] + a * beta[k]
    if may_shut:
        for k in range(len(shut)):
            v[k] = NEVER if shut[k] else v[k]
    for k in range(len(loss)):
        most = max(most, v[k])
    for k in range(len(loss)):
        v[k] = (v[k] - most) * scale
    top = max(most, _LOW) * scale + sum_
    level = _find_level(v, top, sum_ - top, C)
    total = 0.0
    for k in range(len(loss)):
        new[k] = max(v[k] - level, 0.0)
        total += new[k]
    if total > C * FULL:  # what the variables lack to C is rounding
        for k in range(len(loss)):
            new[k] *= C / total


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def rank(loss, new, C, violation):
    """Score of a row for the cache: gradients from before its step, variables from after it.

    The variables and what is left of C are a point of a simplex. In a corner of it the row is at
    rest by the distance to the runner-up; elsewhere it moves by its violation.
    """
    runner_up = NEVER
    sum_ = 0.0
    positive = 0
    corner = 0.0
    for k in range(len(loss)):
        rises = new[k] > 0.0
        sum_ += new[k]
        positive += rises
        corner = loss[k] if rises else corner
        runner_up = max(runner_up, NEVER if rises else loss[k])
    left = sum_ < C * FULL
    if positive + left != 1:
        return violation
    return max(runner_up, 0.0) - corner if positive == 1 else runner_up


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def missed(loss, beta, C, error):
    """How much larger the share of a row in the gap may be, where every loss has an error."""
    most = NEVER
    sum_ = 0.0
    for k in range(len(loss)):
        most = max(most, loss[k])
        sum_ += beta[k]
    more = max(most + error, 0.0) - max(most, 0.0)
    return max(C - sum_, 0.0) * more + 2.0 * error * sum_


@njit(nogil=True, error_model="numpy", forceinline=True)
def is_free(beta, C):
    """Whether a variable of a row, or their sum, lies inside its bounds."""
    positive = 0
    sum_ = 0.0
    for k in range(len(beta)):
        positive += beta[k] > 0.0
        sum_ += beta[k]
    return positive > 1 or (positive == 1 and sum_ < C * FULL)


@njit(nogil=True, error_model="numpy", forceinline=True)
def values(own, loss, beta, C, n_outputs):
    """Return (φ_i, d_i) of a row."""
    most = 0.0
    dual = 0.0
    for k in range(n_outputs):
        if k != own:
            most = max(most, loss[k])
            dual += beta[k]
    return C * most, dual
