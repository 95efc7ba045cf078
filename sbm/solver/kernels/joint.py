"""Multiclass losses that depend on all scores: Crammer-Singer and Weston-Watkins.

For a row of class y, with l_c = 1 - z_y + z_c for c ≠ y, the losses are ::

    Crammer-Singer   φ_i = C_i max(0, max_c l_c)
    Weston-Watkins   φ_i = C_i Σ_c max(0, l_c)

and the variables of the row, one for each c ≠ y, have β_ic ≥ 0 and ::

    Crammer-Singer   Σ_c β_ic ≤ C_i
    Weston-Watkins   β_ic ≤ C_i

with w_c = Σ_{y_i = c} x_i Σ_d β_id - Σ_{y_i ≠ c} β_ic x_i. A visit solves for all variables of a
row exactly, by finding the level γ = Σ_c β_c, the root of a decreasing, piecewise linear function,
in a few passes over the classes.

Given, for one row: losses l and β (width,) float64, one entry per class, with l_y so small that it
never matters; its cost C; `kind`, one of the constants. `solve` changes only `new` and scratch.
Source: Keerthi et al. 2008 (LIBLINEAR's appendix E, algorithm 2, sorts instead); with an upper
bound for every variable Wang & Scott 2021.
"""

from numba import njit

from sbm.solver.kernels.classes import EVER, FAST, FULL, NEVER, TINY

__all__ = [
    "CRAMMER_SINGER", "WESTON_WATKINS", "is_free", "judge", "missed", "rank", "solve", "values",
]  # fmt: skip

CRAMMER_SINGER = 1
WESTON_WATKINS = 2

_LOW = -1e90  # below any loss, and finite divided by the smallest norm


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def judge(loss, beta, C, kind):
    """Return (largest violation, share of the gap) of a row; for a cost of 0 both are 0."""
    if C == 0.0:
        return 0.0, 0.0
    worst = 0.0
    gap = 0.0
    if kind == WESTON_WATKINS:
        for k in range(len(loss)):
            up = max(loss[k], 0.0)
            down = -min(loss[k], 0.0)
            worst = max(worst, up if beta[k] < C else 0.0)
            worst = max(worst, down if beta[k] > 0.0 else 0.0)
            gap += (C - beta[k]) * up + beta[k] * down
        return worst, gap
    most = 0.0
    least = EVER
    sum_ = 0.0
    for k in range(len(loss)):
        most = max(most, loss[k])
        least = min(least, loss[k] if beta[k] > 0.0 else EVER)
        sum_ += beta[k]
    for k in range(len(loss)):
        gap += beta[k] * (most - loss[k])
    least = min(least, 0.0) if sum_ < C * FULL else least  # the rest of C has loss 0
    return max(most - least, 0.0), gap + max(C - sum_, 0.0) * most


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def _find_simplex_level(v, top, guess, C):
    """Return the root γ of  Σ max(v_c - γ, 0) = min(top + γ, C).

    The v_c and γ are relative to the largest of them, `top`, because `top` may be far above C and C
    would be lost in rounding.

    Newton's method on a convex, piecewise linear function: after the first step it approaches from
    below, and it ends exactly when the set of variables above the level repeats. The result equals
    that of LIBLINEAR's algorithm 2, which sorts.
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
def _find_box_level(v, guess, C):
    """Return the root γ of  Σ min(max(v_c - γ, 0), C) = γ.

    Newton's method on a decreasing, piecewise linear function, between bounds of the root: it ends
    exactly when the sets of variables at a bound repeat.
    """
    level = guess
    low = -1.0
    high = EVER
    while True:
        inside = 0
        full = 0
        sum_ = 0.0
        for k in range(len(v)):
            excess = v[k] - level
            is_inside = (excess > 0.0) & (excess < C)
            inside += is_inside
            full += excess >= C
            sum_ += v[k] if is_inside else 0.0
        following = (sum_ + C * full) / (1 + inside)
        if following > level:
            low = level
        elif following < level:
            high = level
        else:
            return level
        if following <= low or following >= high:
            following = 0.5 * (low + high)
            if following <= low or following >= high:
                return level
        level = following


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def solve(own, loss, a, beta, C, kind, may_shut, shut, new, v):
    """Write the exact minimiser over all variables of a row whose class is not excluded."""
    sum_ = 0.0
    for k in range(len(loss)):
        sum_ += beta[k]
    if a < TINY:
        left = 1 if kind == CRAMMER_SINGER else len(shut)
        for k in range(len(shut)):
            takes = k != own and not shut[k] and left > 0
            new[k] = C if takes else 0.0
            left -= takes
        return
    scale = 1.0 / a
    if kind == WESTON_WATKINS:
        for k in range(len(loss)):
            v[k] = loss[k] * scale + (beta[k] + sum_)
        if may_shut:
            for k in range(len(shut)):
                v[k] = NEVER if shut[k] else v[k]
        level = _find_box_level(v, sum_, C)
        for k in range(len(loss)):
            new[k] = min(max(v[k] - level, 0.0), C)
        return
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
    level = _find_simplex_level(v, top, sum_ - top, C)
    total = 0.0
    for k in range(len(loss)):
        new[k] = max(v[k] - level, 0.0)
        total += new[k]
    if total > C * FULL:  # what the variables lack to C is rounding
        for k in range(len(loss)):
            new[k] *= C / total


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def rank(loss, new, C, kind, violation):
    """Return a row's score for the cache, from gradients before and variables after its step."""
    rank = NEVER
    if kind == WESTON_WATKINS:
        for k in range(len(loss)):
            slack = loss[k] if new[k] <= 0.0 else (-loss[k] if new[k] >= C else abs(loss[k]))
            rank = max(rank, slack)
        return rank
    # The variables and the rest of C are a point of a simplex. In a corner the row is at rest, by
    # the distance to the runner-up; elsewhere the rank is its violation.
    sum_ = 0.0
    positive = 0
    corner = 0.0
    for k in range(len(loss)):
        rises = new[k] > 0.0
        sum_ += new[k]
        positive += rises
        corner = loss[k] if rises else corner
        rank = max(rank, NEVER if rises else loss[k])
    left = sum_ < C * FULL
    if positive + left != 1:
        return violation
    return max(rank, 0.0) - corner if positive == 1 else rank


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def missed(loss, beta, C, kind, error):
    """Return how much larger a row's share of the gap may be if each loss has an error."""
    missed = 0.0
    if kind == WESTON_WATKINS:
        for k in range(len(loss)):
            more = max(loss[k] + error, 0.0) - max(loss[k], 0.0)
            missed += (C - beta[k]) * more + beta[k] * error
        return missed
    most = NEVER
    sum_ = 0.0
    for k in range(len(loss)):
        most = max(most, loss[k])
        sum_ += beta[k]
    more = max(most + error, 0.0) - max(most, 0.0)
    return max(C - sum_, 0.0) * more + 2.0 * error * sum_


@njit(nogil=True, error_model="numpy", forceinline=True)
def is_free(beta, C, kind):
    """Whether a variable of a row (for Crammer-Singer their sum) is inside its bounds."""
    positive = 0
    inside = 0
    sum_ = 0.0
    for k in range(len(beta)):
        positive += beta[k] > 0.0
        inside += (beta[k] > 0.0) & (beta[k] < C)
        sum_ += beta[k]
    if kind == WESTON_WATKINS:
        return inside > 0
    return positive > 1 or (positive == 1 and sum_ < C * FULL)


@njit(nogil=True, error_model="numpy", forceinline=True)
def values(own, loss, beta, C, n_outputs, kind):
    """Return (φ_i, d_i) of a row."""
    most = 0.0
    total = 0.0
    dual = 0.0
    for k in range(n_outputs):
        if k != own:
            most = max(most, loss[k])
            total += C * max(loss[k], 0.0)
            dual += beta[k]
    return total if kind == WESTON_WATKINS else C * most, dual
