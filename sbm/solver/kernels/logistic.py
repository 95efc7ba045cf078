"""Logistic regression, in the dual.

For rows x_i with signs s_i = ±1, margins m_i = s_i w·x_i and costs C_i the primal problem is ::

    min_w  ½|w|² + Σ C_i log(1 + exp(-m_i))

and its dual, with w = Σ α_i s_i x_i and p_i = α_i / C_i, ::

    max_α  Σ C_i H(p_i) - ½|w|²   subject to   0 ≤ α_i ≤ C_i,   H(p) = -p log p - (1-p) log(1-p)

At the optimum p_i = 1 / (1 + exp(m_i)). No α is at a bound, so every round visits every row.
A visit solves for α in t = log(p / (1-p)), the root of ::

    t + m + A (C sigmoid(t) - α) = 0        A = |x|²

The fast method is two steps of a fourth-order method from the current α. They suffice for 90 % of
the visits in the second pass and for nearly all later ones; a check at the end shows if they did.
The slow method is Newton's method on t ≤ 0, where the function is convex, after exchanging α and
C - α if the root is above 0. After the first step it converges from one side without line search.

A bias B > 0 is one more feature of value B, kept in the last entry of w and in no row.

Given: rows (as in common.py); class codes `y`, the rows of class `positive` have s = +1; `weight`
of each row, or one for all.
In place: alpha, w, score. Returned: nothing; totals are added to `stats` and `sums`.
Source: Yu, Huang & Lin 2011 (LIBLINEAR's equations 5 and 6); the visit is ours.
"""

import math

import numpy as np
from numba import njit

from sbm.solver.kernels.common import exp, log1p, log_ratio, rounding, sign_and_cost
from sbm.solver.kernels.rounds import make_certify, make_solve
from sbm.solver.kernels.tangents import make_search

__all__ = ["bend", "certify", "search", "solve"]

_FUSED = {"contract"}  # allow fused multiply-add
_MOST_STEPS = 100  # of the slow method; at most 20 have been observed
# Newton's error after a step is at most twice the square of that step, and the next visit of the
# row begins with another one.
_LAST_STEP = 1e-5
# The second step of the fast method leaves at most a fiftieth of the fourth power of this.
_SMALL = 0.02
_LEAST = 1e-300  # smaller values count as 0 in logarithms
# The first step is rounded to a table of exp, which is faster than any formula; the second step
# corrects the rounding.
_PER_UNIT = 64
_REACH = 512
_EXP = np.array([math.exp(k / _PER_UNIT) for k in range(-_REACH, _REACH + 1)])


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def _values(m, alpha, cost, error):
    """Return (g, φ, d, error of g) of a row whose margin has a given error.

    g is C times the divergence of p from the probability given by the margin.
    """
    rest = cost - alpha
    flip = alpha > rest
    low = rest if flip else alpha
    high = alpha if flip else rest
    m = -m if flip else m
    t = log_ratio(max(low, _LEAST), high)
    odds = exp(-abs(m))
    loss = log1p(odds)
    entropy = log1p(low / high)
    p = low / cost
    below = max(-m, 0.0)
    size = loss + below + entropy + p * (abs(t) + abs(m))
    slope = abs(p - (odds if m > 0.0 else 1.0) / (1.0 + odds))
    g = loss + below - entropy + p * (t + m)
    missed = error * (slope + error) + rounding(4, size + p)
    loss += max(m if flip else -m, 0.0)
    return cost * max(g, 0.0), cost * loss, cost * (entropy - p * t), cost * missed


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def _householder(g, c, p, q):
    """Step from t towards the root, g being the value there and 1 + c the slope, c = A C p q.

    Householder's third method: it leaves the fourth power of a distance.
    """
    slope = 1.0 + c
    square = slope * slope
    bend = g * (c * (q - p))
    return -g * (square - 0.5 * bend) / (slope * (square - bend) + g * g * (c * (1 / 6 - p * q)))


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def _round(t):
    """Return (t rounded to the table, exp of it)."""
    k = min(max(np.int64(np.rint(t * _PER_UNIT)), -_REACH), _REACH)
    return k * (1.0 / _PER_UNIT), _EXP[np.uint64(k + _REACH)]


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def _short_visit(m, old, A, C, inverse):
    """Return (new α, rise of C H, violation) of a visit by the fast method; NaN for α if it fails.

    But for rows that never moved this is one stretch of arithmetic without a branch.
    """
    x = old
    y = C - old
    before = C  # of the rise log((x + y) / before) of log(1 + exp(t)), or of -t at the upper end
    g = m
    if (x < _LEAST) | (y < _LEAST):
        # Start at Newton's first step from t = 0, or at -m if that is farther from 0.
        side = 1.0 if x < _LEAST else -1.0
        t = min(-side * m, (-side * m - 0.5 * A * C) / (1.0 + 0.25 * A * C))
        t, odds = _round(side * t)
        before = 1.0 + odds
        x = C * odds / before
        y = C / before
        before = y if side > 0.0 else x
        g += A * (x - old)
    else:
        t = log_ratio(x, y)
    g += t
    p = x * inverse
    q = y * inverse
    d, ratio = _round(_householder(g, A * p * y, p, q))
    u = x * ratio
    whole = y + u
    h = 1.0 / whole
    p = u * h
    q = y * h
    s = p * q
    c = A * C * s
    g = t + d + m + A * (C * p - old)
    e = _householder(g, c, p, q)
    # e is so small that sigmoid and its integral are given by their series around t + d.
    k3 = q - p
    k4 = 1.0 - 6.0 * s
    k5 = k3 * (1.0 - 12.0 * s)
    k6 = 1.0 - 30.0 * s * (1.0 - 4.0 * s)
    e2 = e * e
    rise = (1 + e * k3 / 2) + e2 * ((k4 / 6 + e * k5 / 24) + e2 * (k6 / 120))
    new = min(max(C * (p + s * e * rise), 0.0), C)
    step = new - old
    t += d
    area = p * e + s * e2 * ((1 / 2 + e * k3 / 6) + e2 * (k4 / 24 + e * k5 / 120))
    gain = C * (log_ratio(whole, before) + area) - old * (d + e)
    gain -= (t + e) * step
    new = new if abs(g) <= _SMALL * (1.0 + c) else np.nan
    return new, gain, abs(step) * (inverse + A * s)


@njit(nogil=True, error_model="numpy")
def _long_visit(m, old, A, C):
    """Do the same by the slow method, which never fails."""
    flip = m + A * (0.5 * C - old) < 0.0
    m = -m if flip else m
    other = C - old
    alpha = old
    old, other = (other, old) if flip else (old, other)
    odds_before = min(old, other) / max(old, other)
    before = 0.0  # H = log(1 + odds) - log(odds) odds / (1 + odds), its first part taken below
    t = min(0.0, A * old - m)
    z = -1.0
    if odds_before > 0.0:
        t = log_ratio(max(min(old, other), _LEAST), max(old, other))
        before = -t * odds_before / (1.0 + odds_before)
        t = t if old < other else 0.0
        z = old if old < other else 0.5 * C
    for _ in range(_MOST_STEPS):
        if z < 0.0:
            odds = exp(t)
            z = C * odds / (1.0 + odds)
        # z (1 - z / C) is the slope of C sigmoid.
        following = min(0.0, t - (t + m + A * (z - old)) / (1.0 + A * z * (1.0 - z / C)))
        change = abs(following - t)
        t = following
        z = -1.0
        if change <= _LAST_STEP:
            break
    odds = exp(t)
    rise = C * (log_ratio(1.0 + odds, 1.0 + odds_before) - t * odds / (1.0 + odds) - before)
    p = odds / (1.0 + odds)
    new = C / (1.0 + odds) if flip else C * p
    return new, rise, abs(new - alpha) * (1.0 / C + A * p * (1.0 - p))


@njit(nogil=True, error_model="numpy", forceinline=True)
def _read(i, y, weight, numbers):
    """Return (C, s, 1 / C) of a row."""
    positive, _, cost_positive, cost_negative, _, _ = numbers
    s, C, inverse = sign_and_cost(i, y, weight, positive, cost_positive, cost_negative)
    return C, s, inverse


@njit(nogil=True, error_model="numpy", forceinline=True)
def _gap(z, alpha, row, numbers):
    C, s, _ = row
    return _values(s * z, alpha, C, 0.0)[0]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _visit(z, a, alpha, row, numbers):
    """Visit a row; its violation is a difference of probabilities, its score p (1 - p).

    The score measures how strongly α responds to the margin.
    """
    C, s, inverse = row
    m = s * z
    new, rise, violation = _short_visit(m, alpha, a, C, inverse)
    if not new >= 0.0:
        new, rise, violation = _long_visit(m, alpha, a, C)
    p = new * inverse
    return new, violation, p * (1.0 - p), rise, 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _terms(z, error, alpha, row, numbers):
    C, s, _ = row
    gap, loss, dual, missed = _values(s * z, alpha, C, error)
    return gap + missed, loss, C * error, dual, 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _expand(alpha, row, numbers):
    """Return slope and minus curvature of d_i."""
    rest = row[0] - alpha
    if min(alpha, rest) < _LEAST:
        return 0.0, np.inf
    return -log_ratio(alpha, rest), row[0] / (alpha * rest)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _clip(far, alpha, row):
    """Return the point on the way from α that is at most nine tenths of the way to a bound."""
    return min(max(far, 0.1 * alpha), alpha + 0.9 * (row[0] - alpha))


@njit(nogil=True, error_model="numpy", forceinline=True)
def _dual(alpha, row, numbers):
    return _values(0.0, alpha, row[0], 0.0)[2]


solve = make_solve(_read, _gap, _visit, late=True, rests=False)
search = make_search(_read, _expand, _clip, _dual)


@njit(nogil=True, error_model="numpy")
def bend(alpha, way, cost, sums):
    """Add the sums of `sbm.solver.passline.Bend`, where -h is the entropy of α / C, times C.

    Parameters
    ----------
    alpha, way : (n,) float64
        Variables, and the line α + t way. Those at or beyond a bound add nothing.
    cost : float
        C, of all rows.
    sums : (3,) float64, added to in place
        Value, slope and curvature.
    """
    for i in range(len(alpha)):
        a = alpha[i]
        rest = cost - a
        if (a > 0.0) & (rest > 0.0):
            sums[0] -= _values(0.0, a, cost, 0.0)[2]
            sums[1] += log_ratio(a, rest) * way[i]
            sums[2] += cost / (a * rest) * way[i] * way[i]


certify = make_certify(_read, _terms)
