"""Regression: absolute and squared ε-insensitive loss, and squared error, in the dual.

For rows x_i with targets t_i and costs C_i the primal problem is ::

    min_w  ½|w|² + Σ C_i max(0, |t_i - w·x_i| - ε)^p        p = 1 absolute, p = 2 squared

and its dual, with w = Σ α_i x_i, ::

    max_α  Σ t_i α_i - ε Σ |α_i| - ½ Σ D_i α_i² - ½|w|²   subject to   |α_i| ≤ U_i

    absolute:  U_i = C_i,  D_i = 0
    squared:   U_i = ∞,    D_i = 1 / (2 C_i)

One visit of a row solves for its α exactly: a soft threshold, then the bounds. Squared error is the
squared loss with ε = 0: no α rests, none is left out of later rounds. Regularised least squares
classification is squared error with targets ±1. A bias B > 0 is one more feature of value B, kept
in the last entry of w and in no row.

Given: rows (as in sparse.py); `y`: targets, or with `classify` class codes, of which `positive` has
the target +1 and all others -1; `weight` of each row, None when all are 1.
In place: alpha, w, score. Returned: nothing; what visits add up to is added to `stats` and `sums`.
Source: Ho & Lin 2012 (LIBLINEAR's equations 9 and 10), with one variable of either sign instead of
two; of least squares classification Hsieh et al. 2008, section 6.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import (
    add,
    add_sums,
    dot,
    dot_within,
    hinge_gap,
    is_last,
    new_order,
    prefetch_ahead,
    prefetch_row,
    rounding,
    rows_left,
)

__all__ = ["certify", "screen", "solve"]

# Curvature of a row of zeros: its step ends at a bound, or does not begin.
_FLAT = 1e-300


@njit(nogil=True, error_model="numpy")
def _target(y, positive, classify):
    """Return (t, whether cost_positive applies) of a row."""
    if classify:
        return (1.0, True) if y == positive else (-1.0, False)
    return np.float64(y), True


@njit(nogil=True, error_model="numpy")
def _slack(alpha, G, upper, epsilon):
    """Gradient along |α|: at a bound it pushes against it where negative; else its size."""
    along = (G if alpha > 0.0 else -G) + epsilon
    return abs(G) - epsilon if alpha == 0.0 else (along if abs(alpha) >= upper else abs(along))


@njit(nogil=True, error_model="numpy")
def _row_gap(e, alpha, cost, squared, epsilon):
    """Share of one row in P - F, e = t - z, as a sum of terms that are never negative."""
    if alpha * e >= 0.0:
        return hinge_gap(abs(e) - epsilon, abs(alpha), cost, squared)
    # α pulls away from the target: all of the loss, and what |α| costs.
    h = max(abs(e) - epsilon, 0.0)
    loss = cost * h * h if squared else cost * h
    return loss + hinge_gap(-abs(e) - epsilon, abs(alpha), cost, squared)


@njit(nogil=True, error_model="numpy")
def solve(
    starts, lengths, y, weight, home, indices, values, alpha, score, w,
    positive, classify, cost_positive, cost_negative, bias, squared, epsilon, sigma,
    rounds, chunk, ahead, inner_tol, block, state, active, order, stats,
):  # fmt: skip
    """Run bounded rounds of dual coordinate descent over a working set.

    Rounds, chunks and the order of visits are those of visits.py. Later rounds leave out rows
    at a bound (0 is one here) that were pushed against it by more than the largest violation of
    the round before.

    Parameters
    ----------
    starts, lengths : (n,) int64, int32
    y : (n,) float64 or int32
        Targets, or class codes.
    weight : (n,) float64, or None for ones
        Multiplies the cost of each row.
    home : (n,) int32
    indices, values : int32, float32 or float64 or None
    alpha : (n,) float64, in place
    score : (n,) float32, in place
        Cache score of each row's last visit: the gradient along |α|, its size inside the bounds.
    w : (n_features + (bias > 0),) float64, in place
    positive : int
        Class code with the target +1; of no meaning without `classify`.
    classify : bool
        `y` holds class codes.
    cost_positive, cost_negative : float
        C_i of rows of weight 1; the second of those with the target -1 in class codes. Rows with
        cost 0 are never visited.
    bias : float
        Value of the extra feature; 0 for none.
    squared : bool
        Squared loss instead of absolute.
    epsilon : float
        Half the width of the tube in which rows have no loss.
    sigma : float
        1 on one machine; scales curvature and step of w when several are added up.
    rounds, chunk, ahead : int
        Most rounds; rows to a chunk; rows to prefetch ahead, 0 for none.
    inner_tol : float
        End after a full first round whose largest violation is not above.
    block : int
        Rows with home == block count towards the gap estimate.
    state : (1,) uint64, in place
        Random generator.
    active, order : (n,) int32, (at least n / chunk,) int64
        Scratch.
    stats : (5,) float64, added to in place
        Change of Σ d_i; gap of the block's rows at their first visit; visits; updates; rounds.
    """
    n = len(starts)
    m = n
    w_bias = w[len(w) - 1] if bias > 0.0 else 0.0
    gain = 0.0
    gap = 0.0
    updates = 0
    visits = 0
    limit = np.inf
    for r in range(rounds):
        chunks = new_order(order, m, chunk, state)
        worst = 0.0
        dropped = 0
        for k in range(chunks):
            last = min(m, (order[k] + 1) * chunk)
            for t in range(order[k] * chunk, last):
                if ahead > 0 and t + ahead < last:
                    coming = active[t + ahead] if r > 0 else t + ahead
                    prefetch_row(w, indices, starts, lengths, coming)
                i = np.uint64(active[t] if r > 0 else t)
                target, is_positive = _target(y[i], positive, classify)
                C = cost_positive if is_positive else cost_negative
                if weight is not None:
                    C *= weight[i]
                if C == 0.0:
                    score[i] = -np.inf
                    continue
                diagonal = 0.5 / C if squared else 0.0
                upper = np.inf if squared else C
                begin = np.uint64(starts[i])
                end = begin + np.uint64(lengths[i])
                z, a = dot(indices, values, begin, end, w, bias * w_bias, bias * bias)
                old = alpha[i]
                e = target - z
                if r == 0 and home[i] == block:
                    # The product is 0, but no number where |x|² is infinite: that is noticed then.
                    gap += _row_gap(e, old, C, squared, epsilon) + 0.0 * a
                G = diagonal * old - e
                violation = max(_slack(old, G, upper, epsilon), 0.0)
                worst = max(worst, violation)
                H = max(sigma * a + diagonal, _FLAT)
                # Where a positive α would lie, and a negative one: at most one of them is there.
                new = max(old - (G + epsilon) / H, 0.0) + min(old - (G - epsilon) / H, 0.0)
                new = min(max(new, -upper), upper)
                rank = _slack(new, G, upper, epsilon)
                score[i] = rank
                step = new - old
                if step != 0.0:
                    updates += 1
                    gain += step * (target - 0.5 * diagonal * (new + old))
                    gain -= epsilon * (abs(new) - abs(old))
                    alpha[i] = new
                    add(indices, values, begin, end, w, sigma * step)
                    w_bias += sigma * step * bias
                elif rank < -limit and violation == 0.0:
                    active[t] = -1
                    dropped += 1
        visits += m
        stats[4] += 1
        if is_last(r, rounds, worst, inner_tol):
            break
        limit = worst
        m = rows_left(active, m, r, dropped)
    if bias > 0.0:
        w[len(w) - 1] = w_bias
    stats[0] += gain
    stats[1] += gap
    stats[2] += visits
    stats[3] += updates


@njit(nogil=True, error_model="numpy")
def screen(
    starts, lengths, y, weight, indices, values, alpha, w,
    positive, classify, cost_positive, cost_negative, bias, squared, epsilon, ahead, moving,
):  # fmt: skip
    """Mark the rows whose alpha a visit would change, at fixed w.

    A row at rest lies in the tube with α = 0, or has an α at a bound and a gradient that pushes
    against it.

    Parameters
    ----------
    starts ... epsilon, ahead
        As in `solve`; nothing of these is changed.
    moving : (n,) bool, in place
        Rows that are marked already stay so.
    """
    n = np.uint64(len(starts))
    z_bias = bias * w[len(w) - 1] if bias > 0.0 else 0.0
    for i in range(n):
        prefetch_ahead(w, indices, starts, lengths, i, n, ahead)
        target, is_positive = _target(y[i], positive, classify)
        C = cost_positive if is_positive else cost_negative
        if weight is not None:
            C *= weight[i]
        upper = np.inf if squared else C
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        z, _ = dot(indices, values, begin, end, w, z_bias, 0.0)
        old = alpha[i]
        e = target - z
        # At a bound the gradient is -e, also of the squared loss, whose only bound is 0.
        in_tube = (old == 0.0) & (abs(e) <= epsilon)
        at_bound = ((old >= upper) & (e >= epsilon)) | ((old <= -upper) & (e <= -epsilon))
        moving[i] |= (not (in_tube | at_bound)) & (C > 0.0)


@njit(nogil=True, error_model="numpy")
def certify(
    starts, lengths, y, weight, indices, values, alpha, w, w_alpha,
    positive, classify, cost_positive, cost_negative, bias, squared, epsilon, ahead, sums,
):  # fmt: skip
    """Add the rows of one block to the certificate at fixed w and alpha.

    Parameters
    ----------
    starts ... w, positive ... ahead
        As in `solve`; nothing of these is changed.
    w_alpha : like w, added to in place
        Σ α_i x_i, rebuilt from scratch over all blocks.
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
        target, is_positive = _target(y[i], positive, classify)
        C = cost_positive if is_positive else cost_negative
        if weight is not None:
            C *= weight[i]
        if C == 0.0:
            continue
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        z, error = dot_within(indices, values, begin, end, w, z_bias)
        value = alpha[i]
        e = target - z
        # It is convex in e, which is rounded, too.
        error += rounding(0, abs(target) + epsilon)
        above = _row_gap(e + error, value, C, squared, epsilon)
        gap += max(above, _row_gap(e - error, value, C, squared, epsilon))
        h = max(abs(e) - epsilon, 0.0)
        loss += C * h * h if squared else C * h
        dual += target * value - epsilon * abs(value)
        if squared:
            dual -= 0.25 * value * value / C
        if value != 0.0:
            support += 1
            free += squared or abs(value) < C
            add(indices, values, begin, end, w_alpha, value)
            w_alpha_bias += value * bias
    if bias > 0.0:
        w_alpha[len(w) - 1] += w_alpha_bias
    add_sums(sums, gap, loss, dual, support, free)
