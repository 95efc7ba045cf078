"""Support vector classification: hinge (L1-SVM) and squared hinge (L2-SVM) loss, in the dual.

For rows x_i with signs s_i = ±1 and costs C_i the primal problem is ::

    min_w  ½|w|² + Σ C_i max(0, 1 - s_i w·x_i)^p        p = 1 hinge, p = 2 squared hinge

and its dual, with w = Σ α_i s_i x_i, ::

    max_α  Σ α_i - ½ Σ D_i α_i² - ½|w|²   subject to   0 ≤ α_i ≤ U_i

    hinge:          U_i = C_i,  D_i = 0
    squared hinge:  U_i = ∞,    D_i = 1 / (2 C_i)

One visit of a row solves for its α exactly. The two losses differ in U and D only. A bias B > 0 is
an extra feature of value B, kept in the last entry of w and in no row.

Given: rows (as in common.py); class codes `y`, the rows of class `positive` have s = +1; `weight`
of each row, or one for all.
In place: alpha, w, score. Returned: nothing; totals are added to `stats` and `sums`.
Source: Hsieh et al. 2008, algorithm 1, equations 4 to 13.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import hinge_gap, hinge_gap_within, sign_and_cost, step_in_box
from sbm.solver.kernels.rounds import make_certify, make_screen, make_solve
from sbm.solver.kernels.tangents import make_search

__all__ = ["certify", "screen", "search", "solve"]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _read(i, y, weight, numbers):
    """Return (C, s, D, U) of a row."""
    positive, _, cost_positive, cost_negative, squared, _ = numbers
    s, C, inverse = sign_and_cost(i, y, weight, positive, cost_positive, cost_negative)
    return C, s, 0.5 * inverse if squared else 0.0, np.inf if squared else C


@njit(nogil=True, error_model="numpy", forceinline=True)
def _gap(z, alpha, row, numbers):
    C, s, _, _ = row
    return hinge_gap(1.0 - s * z, alpha, C, numbers[4])


@njit(nogil=True, error_model="numpy", forceinline=True)
def _visit(z, a, alpha, row, numbers):
    _, s, D, U = row
    new, violation, rank = step_in_box(D * alpha - (1.0 - s * z), alpha, U, a + D)
    return new, violation, rank, (new - alpha) * (1.0 - 0.5 * D * (new + alpha)), 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _at_rest(z, alpha, row, numbers):
    """Whether α is at a bound and its gradient pushes it against the bound.

    At a bound the gradient is -h, also of the squared hinge, whose only bound is 0.
    """
    _, s, _, U = row
    h = 1.0 - s * z
    return ((alpha <= 0.0) & (h <= 0.0)) | ((alpha >= U) & (h >= 0.0))


@njit(nogil=True, error_model="numpy", forceinline=True)
def _terms(z, error, alpha, row, numbers):
    C, s, _, _ = row
    squared = numbers[4]
    h = 1.0 - s * z
    gap = hinge_gap_within(h, error, alpha, C, squared)
    most = max(h + error, 0.0)
    h = max(h, 0.0)
    more = most - h
    if squared:
        return gap, C * h * h, C * more * (most + h), alpha - 0.25 * alpha * alpha / C, 0.0
    return gap, C * h, C * more, alpha, 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _expand(alpha, row, numbers):
    """Return slope and minus curvature of d_i."""
    D = row[2]
    return 1.0 - D * alpha, D


@njit(nogil=True, error_model="numpy", forceinline=True)
def _clip(far, alpha, row):
    return min(max(far, 0.0), row[3])


@njit(nogil=True, error_model="numpy", forceinline=True)
def _dual(alpha, row, numbers):
    return alpha * (1.0 - 0.5 * row[2] * alpha)


solve = make_solve(_read, _gap, _visit)
search = make_search(_read, _expand, _clip, _dual)
screen = make_screen(_read, _at_rest)
certify = make_certify(_read, _terms)
