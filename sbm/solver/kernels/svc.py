"""Support vector classification: hinge (L1-SVM) and squared hinge (L2-SVM) loss, in the dual.

For rows x_i with signs s_i = ±1 and costs C_i the primal problem is ::

    min_w  ½|w|² + Σ C_i max(0, 1 - s_i w·x_i)^p        p = 1 hinge, p = 2 squared hinge

and its dual, with w = Σ α_i s_i x_i, ::

    max_α  Σ α_i - ½ Σ D_i α_i² - ½|w|²   subject to   0 ≤ α_i ≤ U_i

    hinge:          U_i = C_i,  D_i = 0
    squared hinge:  U_i = ∞,    D_i = 1 / (2 C_i)

One visit of a row solves for its α exactly. The two losses differ in U and D only. A bias B > 0 is
one more feature of value B, kept in the last entry of w and in no row.

Given: rows (as in sparse.py); class codes `y`, the rows of class `positive` have s = +1; `weight`
of each row, None when all are 1.
In place: alpha, w, score. Returned: nothing; what visits add up to is added to `stats` and `sums`.
Source: Hsieh et al. 2008, algorithm 1, equations 4 to 13.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import (
    add,
    add_sums,
    dot,
    dot_within,
    hinge_gap,
    hinge_gap_within,
    is_last,
    new_order,
    prefetch_ahead,
    prefetch_row,
    rows_left,
    sign_and_cost,
    step_in_box,
)

__all__ = ["certify", "screen", "solve"]


@njit(nogil=True, error_model="numpy")
def solve(
    starts, lengths, y, weight, home, indices, values, alpha, score, w,
    positive, cost_positive, cost_negative, bias, squared, sigma,
    rounds, chunk, ahead, inner_tol, block, state, active, order, stats,
):  # fmt: skip
    """Run bounded rounds of dual coordinate descent over a working set.

    Rounds, chunks and the order of visits are those of visits.py. The first round visits every row
    (Theorem 1 of SBM 2011 needs that); later ones leave out rows that sit at a bound and
    were pushed against it by more than the largest violation of the round before.

    A visit takes about as long as a handful of branches that the processor guesses wrong, so it
    chooses by arithmetic wherever it can and branches only to change w.

    Parameters
    ----------
    starts, lengths, y : (n,) int64, int32, int32
    weight : (n,) float64, or None for ones
        Multiplies the cost of each row.
    home : (n,) int32
    indices, values : int32, float32 or float64 or None
    alpha : (n,) float64, in place
    score : (n,) float32, in place
        Cache score of each row's last visit (SBM 2011, section 2.2, second form).
    w : (n_features + (bias > 0),) float64, in place
    positive : int
        Class code with s = +1.
    cost_positive, cost_negative : float
        C_i of rows with s = +1 and s = -1 and weight 1; rows with cost 0 are never visited.
    bias : float
        Value of the extra feature; 0 for none.
    squared : bool
        Squared hinge instead of hinge.
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
    w_bias = w[len(w) - 1] if bias > 0.0 else 0.0  # at hand: a branch a visit costs a quarter more
    gain = 0.0
    gap = 0.0
    updates = 0
    visits = 0
    limit = np.inf
    diagonal_positive = 0.5 / cost_positive if squared else 0.0
    diagonal_negative = 0.5 / cost_negative if squared else 0.0
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
                s, C = sign_and_cost(i, y, weight, positive, cost_positive, cost_negative)
                if C == 0.0:
                    score[i] = -np.inf
                    continue
                diagonal = diagonal_positive if s > 0.0 else diagonal_negative
                if weight is not None:
                    diagonal /= weight[i]
                upper = np.inf if squared else C
                begin = np.uint64(starts[i])
                end = begin + np.uint64(lengths[i])
                z, a = dot(indices, values, begin, end, w, bias * w_bias, bias * bias)
                old = alpha[i]
                h = 1.0 - s * z
                if r == 0 and home[i] == block:
                    # The product is 0, but no number where |x|² is infinite: that is noticed then.
                    gap += hinge_gap(h, old, C, squared) + 0.0 * a
                G = diagonal * old - h
                new, violation, rank = step_in_box(G, old, upper, sigma * a + diagonal)
                worst = max(worst, violation)
                score[i] = rank
                step = new - old
                if step != 0.0:
                    updates += 1
                    gain += step * (1.0 - 0.5 * diagonal * (new + old))
                    alpha[i] = new
                    add(indices, values, begin, end, w, sigma * step * s)
                    w_bias += sigma * step * s * bias
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
    positive, cost_positive, cost_negative, bias, squared, ahead, moving,
):  # fmt: skip
    """Mark the rows whose alpha a visit would change, at fixed w.

    A row at rest has an alpha at a bound and a gradient that pushes against it. (Gradients at
    fixed w, in parallel, then serial updates where needed: Chiang, Lee & Lin, KDD 2016.)

    Parameters
    ----------
    starts ... squared, ahead
        As in `solve`; nothing of these is changed.
    moving : (n,) bool, in place
        Rows that are marked already stay so.
    """
    n = np.uint64(len(starts))
    z_bias = bias * w[len(w) - 1] if bias > 0.0 else 0.0
    for i in range(n):
        prefetch_ahead(w, indices, starts, lengths, i, n, ahead)
        s, C = sign_and_cost(i, y, weight, positive, cost_positive, cost_negative)
        upper = np.inf if squared else C
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        z, _ = dot(indices, values, begin, end, w, z_bias, 0.0)
        old = alpha[i]
        h = 1.0 - s * z
        # At a bound the gradient is -h, also of the squared hinge, whose only bound is 0.
        at_rest = ((old <= 0.0) & (h <= 0.0)) | ((old >= upper) & (h >= 0.0))
        moving[i] |= (not at_rest) & (C > 0.0)


@njit(nogil=True, error_model="numpy")
def certify(
    starts, lengths, y, weight, indices, values, alpha, w, w_alpha,
    positive, cost_positive, cost_negative, bias, squared, ahead, sums,
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
        h = 1.0 - s * z
        gap += hinge_gap_within(h, error, value, C, squared)
        h = max(h, 0.0)
        if squared:
            loss += C * h * h
            dual += value - 0.25 * value * value / C
        else:
            loss += C * h
            dual += value
        if value > 0.0:
            support += 1
            free += squared or value < C
            add(indices, values, begin, end, w_alpha, value * s)
            w_alpha_bias += value * s * bias
    if bias > 0.0:
        w_alpha[len(w) - 1] += w_alpha_bias
    add_sums(sums, gap, loss, dual, support, free)
