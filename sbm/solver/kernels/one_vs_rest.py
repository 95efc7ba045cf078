"""One-vs-rest: one machine of two classes for each class, all of a row's solved in one visit.

For a row of class y the loss is ::

    φ_i = Σ_c C_ic max(0, 1 - s_ic z_c)^p      s_ic = +1 if c = y, else -1

and its variables, one a class, have 0 ≤ β_ic ≤ U_ic and w_c = Σ_i s_ic β_ic x_i, with U and D as in
svc.py. A visit solves for each of them with the others left alone (Hsieh et al. 2008, algorithm 1).

Of one row: z and β (width,) float64, one entry a class; `own` its class, -1 where that is none of
these; `cost` C_i of its own class and `cost_rest` of all others; `squared` for p = 2. `solve`
writes `new`; nothing else is changed.
"""

from numba import njit

from sbm.solver.kernels.classes import EVER, FAST, NEVER, TINY

__all__ = ["count_free", "judge", "missed", "solve", "values"]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _row_gap(h, alpha, cost, squared):
    """Share of one variable in P - F, h = 1 - margin, as terms that are never negative."""
    if squared:
        r = max(h, 0.0) - 0.5 * alpha / max(cost, TINY)
        return cost * r * r - alpha * min(h, 0.0)
    return (cost - alpha) * max(h, 0.0) - alpha * min(h, 0.0)


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def judge(own, z, beta, cost, cost_rest, squared):
    """Return (largest violation, share of the gap) of a row."""
    worst = 0.0
    gap = 0.0
    for k in range(len(z)):
        C = cost if k == own else cost_rest
        h = 1.0 - z[k] if k == own else 1.0 + z[k]
        upper = EVER if squared else C
        G = (0.5 * beta[k] / max(C, TINY) if squared else 0.0) - h
        PG = min(G, 0.0) if beta[k] <= 0.0 else (max(G, 0.0) if beta[k] >= upper else G)
        worst = max(worst, abs(PG) if C > 0.0 else 0.0)
        gap += _row_gap(h, beta[k], C, squared) if C > 0.0 else 0.0
    return worst, gap


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def solve(own, z, a, beta, cost, cost_rest, squared, new):
    """Write the exact step of every class, each with the others left alone; return the rank."""
    rank = NEVER
    for k in range(len(z)):
        C = cost if k == own else cost_rest
        h = 1.0 - z[k] if k == own else 1.0 + z[k]
        diagonal = 0.5 / max(C, TINY) if squared else 0.0
        upper = EVER if squared and C > 0.0 else C
        G = diagonal * beta[k] - h
        # A row of zeros has no curvature and G = -1: the step is up, as far as it goes.
        step = G / max(a + diagonal, TINY)
        new[k] = min(max(beta[k] - step, 0.0), upper)
        slack = -G if new[k] <= 0.0 else (G if new[k] >= upper else abs(G))
        rank = max(rank, slack if C > 0.0 else NEVER)
    return rank


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def missed(own, z, beta, cost, cost_rest, squared, error):
    """How much larger the share of a row in the gap may be, where every z has an error."""
    missed = 0.0
    for k in range(len(z)):
        C = cost if k == own else cost_rest
        h = 1.0 - z[k] if k == own else 1.0 + z[k]
        more = max(h + error, 0.0) - max(h, 0.0)
        if squared:
            r = abs(max(h, 0.0) - 0.5 * beta[k] / max(C, TINY))
            more = error if beta[k] > 0.0 else more
            one = C * more * (2.0 * r + more)
        else:
            one = (C - beta[k]) * more
        missed += one + beta[k] * error if C > 0.0 else 0.0
    return missed


@njit(nogil=True, error_model="numpy", forceinline=True)
def count_free(own, cost, beta, cost_rest, squared):
    """Variables of a row of one-vs-rest that lie inside their bounds."""
    n = 0
    for k in range(len(beta)):
        n += (beta[k] > 0.0) & (squared or beta[k] < (cost if k == own else cost_rest))
    return n


@njit(nogil=True, error_model="numpy", forceinline=True)
def values(own, cost, z, beta, n_outputs, cost_rest, squared):
    """Return (φ_i, d_i) of a row."""
    loss = 0.0
    dual = 0.0
    for k in range(n_outputs):
        C = cost if k == own else cost_rest
        h = max(1.0 - z[k] if k == own else 1.0 + z[k], 0.0)
        if C > 0.0:
            loss += C * h * h if squared else C * h
            dual += beta[k] - (0.25 * beta[k] * beta[k] / C if squared else 0.0)
    return loss, dual
