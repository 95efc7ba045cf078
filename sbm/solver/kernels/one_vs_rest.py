"""One-vs-rest: a binary machine for each class; a visit solves all of a row.

For a row of class y the loss is ::

    φ_i = Σ_c C_ic max(0, 1 - s_ic z_c)^p      s_ic = +1 if c = y, else -1

and its variables, one per class, have 0 ≤ β_ic ≤ U_ic and w_c = Σ_i s_ic β_ic x_i. U and D are as
in svc.py. A visit solves for each variable with the others fixed (Hsieh et al. 2008, algorithm 1).

Given, for one row: z and β (width,) float64, one entry per class; `own`, its class, or -1 if it is
outside this range; `cost`, C_i of its own class; `cost_rest`, of all others; `squared` for p = 2.
`solve` changes only `new`.
"""

from numba import njit

from sbm.solver.kernels.classes import EVER, FAST, NEVER, TINY

__all__ = ["count_free", "judge", "missed", "solve", "values"]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _row_gap(h, alpha, cost, squared):
    """Return the share of a variable in P - F, h = 1 - margin, as a sum of nonnegative terms."""
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
    """Write the exact step of every class, with the others fixed; return the rank."""
    rank = NEVER
    for k in range(len(z)):
        C = cost if k == own else cost_rest
        h = 1.0 - z[k] if k == own else 1.0 + z[k]
        diagonal = 0.5 / max(C, TINY) if squared else 0.0
        upper = EVER if squared and C > 0.0 else C
        G = diagonal * beta[k] - h
        # A zero row has no curvature and G = -1: the step goes up to the bound.
        step = G / max(a + diagonal, TINY)
        new[k] = min(max(beta[k] - step, 0.0), upper)
        slack = -G if new[k] <= 0.0 else (G if new[k] >= upper else abs(G))
        rank = max(rank, slack if C > 0.0 else NEVER)
    return rank


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def missed(own, z, beta, cost, cost_rest, squared, error):
    """Return how much larger a row's share of the gap may be if every z has an error."""
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
    """Count the variables of a one-vs-rest row that are inside their bounds."""
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
