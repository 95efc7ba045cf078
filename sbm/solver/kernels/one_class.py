"""One-class machine: how far from the origin a plane can be with most rows beyond it, in the dual.

For rows x_i with weights v_i (1 unless given) and N = ν Σ v_i the primal problem is ::

    min_{w, ρ}  ½|w|² - N ρ + Σ v_i max(0, ρ - w·x_i)

and its dual, with w = Σ α_i x_i, ::

    max_α  -½|w|²   subject to   0 ≤ α_i ≤ v_i,   Σ α_i = N

The last condition couples all rows, those
that are not in memory too, so it is left to a multiplier: ρ takes part in every visit like the
weight of one more feature of value -1, on a scale μ of its own ::

    α ← clip(α - (w·x - ρ) / (|x|² + μ), 0, v);   w += δx;   ρ -= μδ;   S += δ

and after a block or a pass the caller corrects it by ρ -= μ (S - N) or a share of that, S = Σ α_i
(the method of multipliers: Σ α_i is N in the limit only). There is no bias.

Given: rows (as in sparse.py); `weight` of each row, None when all are 1.
In place: alpha, w, score, level. Returned: nothing; what visits add up to is added to `stats` and
`sums`.
Source: Schölkopf et al. 2001; linear: Chou, Lin & Lin 2020; the multiplier is ours.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import (
    add,
    dot,
    dot_within,
    hinge_gap,
    is_last,
    new_order,
    prefetch_ahead,
    prefetch_row,
    rows_left,
    step_in_box,
)

__all__ = ["certify", "solve"]

# Curvature of a row of zeros where μ is 0: its step ends at a bound, or does not begin.
_FLAT = 1e-300


@njit(nogil=True, error_model="numpy")
def solve(
    starts, lengths, weight, home, indices, values, alpha, score, w, level, scale, sigma,
    rounds, chunk, ahead, inner_tol, block, state, active, order, stats,
):  # fmt: skip
    """Run bounded rounds of dual coordinate descent over a working set.

    Rounds, chunks and the order of visits are those of visits.py; what later rounds leave out is
    as in svc.py.

    Parameters
    ----------
    starts, lengths : (n,) int64, int32
    weight : (n,) float64, or None for ones
        Upper bound of each α; rows of weight 0 are never visited.
    home : (n,) int32
    indices, values : int32, float32 or float64 or None
    alpha : (n,) float64, in place
    score : (n,) float32, in place
        Cache score of each row's last visit, as in svc.py.
    w : (n_features,) float64, in place
    level : (2,) float64, in place
        ρ and S.
    scale : float
        μ; about the mean of |x|².
    sigma : float
        1 on one machine; scales curvature and steps of w and ρ when several are added up.
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
        Change of Σ d_i, which is 0; gap of the block's rows at their first visit, which misses
        ρ (S - N) once for all rows; visits; updates; rounds.
    """
    n = len(starts)
    m = n
    rho = level[0]
    total = level[1]
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
                upper = 1.0
                if weight is not None:
                    upper = weight[i]
                    if upper == 0.0:
                        score[i] = -np.inf
                        continue
                begin = np.uint64(starts[i])
                end = begin + np.uint64(lengths[i])
                z, a = dot(indices, values, begin, end, w, 0.0, scale)
                old = alpha[i]
                G = z - rho
                if r == 0 and home[i] == block:
                    # The product is 0, but no number where |x|² is infinite: that is noticed then.
                    gap += hinge_gap(-G, old, upper, False) + 0.0 * a
                new, violation, rank = step_in_box(G, old, upper, max(sigma * a, _FLAT))
                worst = max(worst, violation)
                score[i] = rank
                step = new - old
                if step != 0.0:
                    updates += 1
                    alpha[i] = new
                    add(indices, values, begin, end, w, sigma * step)
                    rho -= sigma * scale * step
                    total += step
                elif rank < -limit and violation == 0.0:
                    active[t] = -1
                    dropped += 1
        visits += m
        stats[4] += 1
        if is_last(r, rounds, worst, inner_tol):
            break
        limit = worst
        m = rows_left(active, m, r, dropped)
    level[0] = rho
    level[1] = total
    stats[1] += gap
    stats[2] += visits
    stats[3] += updates


@njit(nogil=True, error_model="numpy")
def certify(
    starts, lengths, weight, indices, values, alpha, w, w_alpha, x_sum, rho, ahead, sums
):  # fmt: skip
    """Add the rows of one block to what a certificate is made of, at fixed w, ρ and alpha.

    Where Σ α_i is not N, the caller scales α down, or mixes it with the α that is v_i everywhere,
    whose weights are `x_sum`.

    Parameters
    ----------
    starts ... w, ahead
        As in `solve`; nothing of these is changed.
    w_alpha : like w, added to in place
        Σ α_i x_i, rebuilt from scratch over all blocks.
    x_sum : like w, added to in place
        Σ v_i x_i.
    rho : float
    sums : (6,) float64, added to in place
        Σ v_i max(0, ρ - z_i) (the primal's loss), Σ α_i, Σ v_i, support vectors, free support
        vectors, a bound of what rounding of z_i has done to the loss.
    """
    n = np.uint64(len(starts))
    loss = 0.0
    total = 0.0
    weights = 0.0
    support = 0
    free = 0
    missed = 0.0
    for i in range(n):
        prefetch_ahead(w, indices, starts, lengths, i, n, ahead)
        upper = 1.0
        if weight is not None:
            upper = weight[i]
            if upper == 0.0:
                continue
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        z, error = dot_within(indices, values, begin, end, w, 0.0)
        value = alpha[i]
        loss += upper * max(rho - z, 0.0)
        missed += upper * min(error, max(rho - z + error, 0.0))
        total += value
        weights += upper
        add(indices, values, begin, end, x_sum, upper)
        if value > 0.0:
            support += 1
            free += value < upper
            add(indices, values, begin, end, w_alpha, value)
    sums[0] += loss
    sums[1] += total
    sums[2] += weights
    sums[3] += support
    sums[4] += free
    sums[5] += missed
