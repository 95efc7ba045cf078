"""Logistic regression, in the dual.

For rows x_i with signs s_i = ±1, margins m_i = s_i w·x_i and costs C_i the primal problem is ::

    min_w  ½|w|² + Σ C_i log(1 + exp(-m_i))

and its dual, with w = Σ α_i s_i x_i and p_i = α_i / C_i, ::

    max_α  Σ C_i H(p_i) - ½|w|²   subject to   0 ≤ α_i ≤ C_i,   H(p) = -p log p - (1-p) log(1-p)

At the optimum p_i = 1 / (1 + exp(m_i)): no α
sits at a bound, so every round visits every row. A visit solves for α in t = log(p / (1-p)), where
it is the root of ::

    t + m + A (C sigmoid(t) - α) = 0        A = |x|²

The short way is two steps of a method of fourth order from the present α. They are enough for nine
visits in ten of the second pass and for nearly all of later ones; whether they were is seen at the
end. The long way is Newton's method on t ≤ 0, where this is convex, after exchanging α and C - α if
the root lies above 0: steps come from one side after the first and need no line search.

A bias B > 0 is one more feature of value B, kept in the last entry of w and in no row.

Given: rows (as in sparse.py); class codes `y`, the rows of class `positive` have s = +1; `weight`
of each row, None when all are 1.
In place: alpha, w, score. Returned: nothing; what visits add up to is added to `stats` and `sums`.
Source: Yu, Huang & Lin 2011 (LIBLINEAR's equations 5 and 6); the visit is ours.
"""

import math

import numpy as np
from numba import njit

from sbm.solver.kernels.common import (
    add,
    add_sums,
    dot,
    dot_within,
    exp,
    log1p,
    log_ratio,
    new_order,
    prefetch_ahead,
    prefetch_row,
    rounding,
    sign_and_cost,
)

__all__ = ["certify", "solve"]

_FUSED = {"contract"}  # a product and a sum in one instruction where the processor can
_MOST_STEPS = 100  # of the long way; 20 are the most that were ever seen
# Newton's error after a step is at most twice the square of that step, and the next visit of the
# row begins with another one.
_LAST_STEP = 1e-5
# The second step of the short way leaves at most a fiftieth of the fourth power of this.
_SMALL = 0.02
_LEAST = 1e-300  # what is below counts as 0 in logarithms
# The first one is rounded to what a table of exp has: that is faster than any formula, and the
# second one makes up for it.
_PER_UNIT = 64
_REACH = 512
_EXP = np.array([math.exp(k / _PER_UNIT) for k in range(-_REACH, _REACH + 1)])


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def _values(m, alpha, cost, error):
    """Return (g, φ, d, what g may be more) of a row whose margin is known to within an error.

    g is C times the divergence of p from what its margin says.
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
    """Return (t as the table has it, exp of that)."""
    k = min(max(np.int64(np.rint(t * _PER_UNIT)), -_REACH), _REACH)
    return k * (1.0 / _PER_UNIT), _EXP[np.uint64(k + _REACH)]


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def _visit(m, old, A, C, inverse):
    """Return (new α, rise of C H, violation) of a visit by the short way; NaN for α if it fails.

    But for rows that never moved this is one stretch of arithmetic without a branch.
    """
    x = old
    y = C - old
    before = C  # of the rise log((x + y) / before) of log(1 + exp(t)), or of -t at the upper end
    g = m
    if (x < _LEAST) | (y < _LEAST):
        # From where Newton's method gets from t = 0, or from -m where that is farther from 0.
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
    """The same by the long way, whatever the numbers."""
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


@njit(nogil=True, error_model="numpy")
def solve(
    starts, lengths, y, weight, home, indices, values, alpha, score, w,
    positive, cost_positive, cost_negative, bias, sigma,
    rounds, chunk, ahead, inner_tol, block, state, active, order, stats,
):  # fmt: skip
    """Run bounded rounds of dual coordinate descent over a working set.

    Chunks and the order of visits are those of visits.py; every round visits every row.

    Parameters
    ----------
    starts, lengths, y : (n,) int64, int32, int32
    weight : (n,) float64, or None for ones
        Multiplies the cost of each row.
    home : (n,) int32
    indices, values : int32, float32 or float64 or None
    alpha : (n,) float64, in place
        From 0 to the cost, both included.
    score : (n,) float32, in place
        Cache score of each row's last visit: p (1 - p), how much α answers to the margin.
    w : (n_features + (bias > 0),) float64, in place
    positive : int
        Class code with s = +1.
    cost_positive, cost_negative : float
        C_i of rows with s = +1 and s = -1 and weight 1; rows with cost 0 are never visited.
    bias : float
        Value of the extra feature; 0 for none.
    sigma : float
        1 on one machine; scales curvature and step of w when several are added up.
    rounds, chunk, ahead : int
        Most rounds; rows to a chunk; rows to prefetch ahead, 0 for none.
    inner_tol : float
        End after a full first round whose largest violation is not above. Violations are
        differences of probabilities.
    block : int
        Rows with home == block count towards the gap estimate.
    state : (1,) uint64, in place
        Random generator.
    active : any
        Not used.
    order : (at least n / chunk,) int64
        Scratch.
    stats : (5,) float64, added to in place
        Change of Σ d_i; gap of the block's rows at their first visit; visits; updates; rounds.
    """
    n = len(starts)
    w_bias = w[len(w) - 1] if bias > 0.0 else 0.0
    gain = 0.0
    gap = 0.0
    updates = 0
    visits = 0
    inverse_positive = 1.0 / cost_positive
    inverse_negative = 1.0 / cost_negative
    for r in range(rounds):
        chunks = new_order(order, n, chunk, state)
        worst = 0.0
        for k in range(chunks):
            last = min(n, (order[k] + 1) * chunk)
            for t in range(order[k] * chunk, last):
                if ahead > 0 and t + ahead < last:
                    prefetch_row(w, indices, starts, lengths, t + ahead)
                i = np.uint64(t)
                s, C = sign_and_cost(i, y, weight, positive, cost_positive, cost_negative)
                if C == 0.0:
                    score[i] = -np.inf
                    continue
                inverse = inverse_positive if s > 0.0 else inverse_negative
                if weight is not None:
                    inverse /= weight[i]
                begin = np.uint64(starts[i])
                end = begin + np.uint64(lengths[i])
                z, a = dot(indices, values, begin, end, w, 0.0, bias * bias)
                old = alpha[i]
                m = s * (z + bias * w_bias)
                if r == 0 and home[i] == block:
                    # The product is 0, but no number where |x|² is infinite: that is noticed then.
                    gap += _values(m, old, C, 0.0)[0] + 0.0 * a
                new, rise, violation = _visit(m, old, sigma * a, C, inverse)
                if not new >= 0.0:
                    new, rise, violation = _long_visit(m, old, sigma * a, C)
                worst = max(worst, violation)
                p = new * inverse
                score[i] = p * (1.0 - p)
                step = new - old
                if step != 0.0:
                    updates += 1
                    gain += rise
                    alpha[i] = new
                    add(indices, values, begin, end, w, sigma * step * s)
                    w_bias += sigma * step * s * bias
        visits += n
        stats[4] += 1
        if worst == 0.0 or (r == 0 and worst <= inner_tol):
            break
    if bias > 0.0:
        w[len(w) - 1] = w_bias
    stats[0] += gain
    stats[1] += gap
    stats[2] += visits
    stats[3] += updates


@njit(nogil=True, error_model="numpy")
def certify(
    starts, lengths, y, weight, indices, values, alpha, w, w_alpha,
    positive, cost_positive, cost_negative, bias, ahead, sums,
):  # fmt: skip
    """Add the rows of one block to the certificate at fixed w and alpha.

    Parameters
    ----------
    starts ... w, positive ... ahead
        As in `solve`; nothing of these is changed.
    w_alpha : like w, added to in place
        Σ α_i s_i x_i, rebuilt from scratch over all blocks.
    sums : (5,) float64, added to in place
        Σ g_i (the gap at drift 0, whatever w·x_i was rounded by), Σ φ_i (the primal's loss),
        Σ d_i (the dual without -½|w|²), support vectors, free support vectors.
    """
    n = np.uint64(len(starts))
    z_bias = bias * w[len(w) - 1] if bias > 0.0 else 0.0
    w_alpha_bias = 0.0
    gap = 0.0
    loss = 0.0
    dual = 0.0
    support = 0
    free = 0
    for i in range(n):
        prefetch_ahead(w, indices, starts, lengths, i, n, ahead)
        s, C = sign_and_cost(i, y, weight, positive, cost_positive, cost_negative)
        if C == 0.0:
            continue
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        z, error = dot_within(indices, values, begin, end, w, z_bias)
        value = alpha[i]
        m = s * z
        row_gap, row_loss, row_dual, missed = _values(m, value, C, error)
        gap += row_gap + missed
        loss += row_loss
        dual += row_dual
        if value > 0.0:
            support += 1
            free += value < C
            add(indices, values, begin, end, w_alpha, value * s)
            w_alpha_bias += value * s * bias
    if bias > 0.0:
        w_alpha[len(w) - 1] += w_alpha_bias
    add_sums(sums, gap, loss, dual, support, free)
