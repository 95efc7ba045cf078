"""Logistic regression, in the dual.

For rows x_i with signs s_i = ±1, margins m_i = s_i w·x_i and costs C_i the primal problem is ::

    min_w  ½|w|² + Σ C_i log(1 + exp(-m_i))

and its dual, with w = Σ α_i s_i x_i and p_i = α_i / C_i, ::

    max_α  Σ C_i H(p_i) - ½|w|²   subject to   0 ≤ α_i ≤ C_i,   H(p) = -p log p - (1-p) log(1-p)

(Yu, Huang & Lin 2011; LIBLINEAR's equations 5 and 6.) At the optimum p_i = 1 / (1 + exp(m_i)): no α
sits at a bound, so every round visits every row. A visit solves for α by Newton's method in
t = log(p / (1-p)): the root of ::

    t + m + A (C sigmoid(t) - α) = 0        A = |x|²

is sought on t ≤ 0, where this is convex, after exchanging α and C - α if it lies above 0. Steps
come from one side after the first, need no line search and are 1 or 2 once training is under way.
A bias B > 0 is one more feature of value B, kept in the last entry of w and in no row.

Positions that come from memory are made unsigned before they are used; sparse.py says why.

Given: rows as (starts, lengths, indices, values), `values` None when all are 1; class codes `y`,
the rows of class `positive` have s = +1; their `weight`, None when all are 1. In place: alpha, w,
score.
"""

import math

import numpy as np
from numba import njit

from sbm.solver.kernels.sparse import add, dot, prefetch_weights, shuffle

__all__ = ["certify", "solve"]

_MOST_STEPS = 100  # of one visit; 20 are the most that were ever seen
# Newton's error after a step is at most twice the square of that step, and the next visit of the
# row begins with another one.
_LAST_STEP = 1e-5
# Violations below this share of the probability are rounding.
_ROUNDING = 1e-14


@njit(nogil=True, error_model="numpy")
def _entropy(alpha, cost):
    """H of alpha / cost; 0 at both ends."""
    rest = cost - alpha
    odds = min(alpha, rest) / max(alpha, rest)
    return 0.0 if odds <= 0.0 else math.log1p(odds) - math.log(odds) * odds / (1.0 + odds)


@njit(nogil=True, error_model="numpy")
def _row_gap(m, p, cost):
    """Share of one row in P - F: C times the divergence of p from what its margin says."""
    rest = math.log1p(math.exp(-abs(m)))
    up = rest + max(m, 0.0)  # log(1 + exp(m))
    down = rest + max(-m, 0.0)
    g = p * up + (1.0 - p) * down
    if p > 0.0:
        g += p * math.log(p)
    if p < 1.0:
        g += (1.0 - p) * math.log1p(-p)
    return cost * max(g, 0.0)


@njit(nogil=True, error_model="numpy")
def _step(m, old, A, C):
    """Return (new α, rise of H) of one visit."""
    flip = m + A * (0.5 * C - old) < 0.0
    m = -m if flip else m
    other = C - old
    old, other = (other, old) if flip else (old, other)
    odds_before = min(old, other) / max(old, other)
    before = 0.0  # H = log(1 + odds) - log(odds) odds / (1 + odds), its first part taken below
    t = min(0.0, A * old - m)
    z = -1.0
    if odds_before > 0.0:
        t = math.log(odds_before)
        before = -t * odds_before / (1.0 + odds_before)
        t = t if old < other else 0.0
        z = old if old < other else 0.5 * C
    for _ in range(_MOST_STEPS):
        if z < 0.0:
            odds = math.exp(t)
            z = C * odds / (1.0 + odds)
        # z (1 - z / C) is the slope of C sigmoid.
        following = min(0.0, t - (t + m + A * (z - old)) / (1.0 + A * z * (1.0 - z / C)))
        change = abs(following - t)
        t = following
        z = -1.0
        if change <= _LAST_STEP:
            break
    odds = math.exp(t)
    rise = math.log1p((odds - odds_before) / (1.0 + odds_before))
    rise += -t * odds / (1.0 + odds) - before
    return (C / (1.0 + odds) if flip else C * odds / (1.0 + odds)), rise


@njit(nogil=True, error_model="numpy")
def solve(
    starts, lengths, y, weight, home, indices, values, alpha, score, w,
    positive, cost_positive, cost_negative, bias, sigma,
    rounds, chunk, ahead, inner_tol, block, state, active, order, stats,
):  # fmt: skip
    """Run bounded rounds of dual coordinate descent over a working set.

    Chunks and the order of visits are those of svc.py; every round visits every row.

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
    for r in range(rounds):
        chunks = (n + chunk - 1) // chunk
        for k in range(chunks):
            order[k] = k
        shuffle(order, chunks, state)
        worst = 0.0
        for k in range(chunks):
            last = min(n, (order[k] + 1) * chunk)
            for t in range(order[k] * chunk, last):
                if ahead > 0 and t + ahead < last:
                    q = np.uint64(t + ahead)
                    prefetch_weights(w, indices, np.uint64(starts[q]), np.uint64(lengths[q]))
                i = np.uint64(t)
                is_positive = y[i] == positive
                s = 1.0 if is_positive else -1.0
                C = cost_positive if is_positive else cost_negative
                if weight is not None:
                    C *= weight[i]
                if C == 0.0:
                    score[i] = -np.inf
                    continue
                begin = np.uint64(starts[i])
                end = begin + np.uint64(lengths[i])
                z, a = dot(indices, values, begin, end, w, bias * w_bias, bias * bias)
                old = alpha[i]
                p = old / C
                m = s * z
                if r == 0 and home[i] == block:
                    gap += _row_gap(m, p, C)
                e = math.exp(-abs(m))
                wanted = (e if m > 0.0 else 1.0) / (1.0 + e)
                violation = abs(p - wanted)
                worst = max(worst, violation)
                if violation > _ROUNDING * wanted:
                    new, rise = _step(m, old, sigma * a, C)
                    step = new - old
                    if step != 0.0:
                        gain += C * rise
                        updates += 1
                        p = new / C
                        alpha[i] = new
                        add(indices, values, begin, end, w, sigma * step * s)
                        w_bias += sigma * step * s * bias
                score[i] = p * (1.0 - p)
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
    starts ... bias, ahead
        As in `solve`; nothing of these is changed.
    w_alpha : like w, added to in place
        Σ α_i s_i x_i, rebuilt from scratch over all blocks.
    sums : (5,) float64, added to in place
        Σ g_i (the gap at drift 0), Σ φ_i (the primal's loss), Σ d_i (the dual without -½|w|²),
        support vectors, free support vectors.
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
        if ahead > 0 and i + np.uint64(ahead) < n:
            q = i + np.uint64(ahead)
            prefetch_weights(w, indices, np.uint64(starts[q]), np.uint64(lengths[q]))
        s = 1.0 if y[i] == positive else -1.0
        C = cost_positive if s > 0.0 else cost_negative
        if weight is not None:
            C *= weight[i]
        if C == 0.0:
            continue
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        z, _ = dot(indices, values, begin, end, w, z_bias, 0.0)
        value = alpha[i]
        m = s * z
        gap += _row_gap(m, value / C, C)
        loss += C * (math.log1p(math.exp(-abs(m))) + max(-m, 0.0))
        dual += C * _entropy(value, C)
        if value > 0.0:
            support += 1
            free += value < C
            add(indices, values, begin, end, w_alpha, value * s)
            w_alpha_bias += value * s * bias
    if bias > 0.0:
        w_alpha[len(w) - 1] += w_alpha_bias
    sums[0] += gap
    sums[1] += loss
    sums[2] += dual
    sums[3] += support
    sums[4] += free
