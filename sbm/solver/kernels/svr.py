"""Regression: absolute and squared ε-insensitive loss, and squared error, in the dual.

For rows x_i with targets t_i and costs C_i the primal problem is ::

    min_w  ½|w|² + Σ C_i max(0, |t_i - w·x_i| - ε)^p        p = 1 absolute, p = 2 squared

and its dual, with w = Σ α_i x_i, ::

    max_α  Σ t_i α_i - ε Σ |α_i| - ½ Σ D_i α_i² - ½|w|²   subject to   |α_i| ≤ U_i

    absolute:  U_i = C_i,  D_i = 0
    squared:   U_i = ∞,    D_i = 1 / (2 C_i)

One visit of a row solves for its α exactly: a soft threshold, then the bounds. Squared error is the
squared loss with ε = 0: no α rests, so later rounds skip no rows. Regularised least squares
classification is squared error with targets ±1. A bias B > 0 is an extra feature of value B, kept
in the last entry of w and in no row.

Given: rows (as in common.py); `y`: targets, or with `classify` class codes: `positive` has the
target +1, all others -1; `weight` of each row, or one for all.
In place: alpha, w, score. Returned: nothing; totals are added to `stats` and `sums`.
Source: Ho & Lin 2012 (LIBLINEAR's equations 9 and 10), with one variable of either sign instead of
two; for least squares classification Hsieh et al. 2008, section 6.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import hinge_gap, rounding, weight_of
from sbm.solver.kernels.rounds import make_certify, make_screen, make_solve
from sbm.solver.kernels.tangents import make_search

__all__ = ["certify", "screen", "search", "solve"]

# Curvature of a zero row: its step ends at a bound, or is 0.
_FLAT = 1e-300


@njit(nogil=True, error_model="numpy")
def _target(y, positive, classify):
    """Return (t, whether cost_positive applies) of a row."""
    if classify:
        return (1.0, True) if y == positive else (-1.0, False)
    return np.float64(y), True


@njit(nogil=True, error_model="numpy")
def _slack(alpha, G, upper, epsilon):
    """Return the gradient along |α|, negative if it pushes α against a bound; else its size."""
    along = (G if alpha > 0.0 else -G) + epsilon
    return abs(G) - epsilon if alpha == 0.0 else (along if abs(alpha) >= upper else abs(along))


@njit(nogil=True, error_model="numpy")
def _row_gap(e, alpha, cost, squared, epsilon):
    """Return the share of a row in P - F, e = t - z, as a sum of nonnegative terms."""
    if alpha * e >= 0.0:
        return hinge_gap(abs(e) - epsilon, abs(alpha), cost, squared)
    # α has the wrong sign: all of the loss, and the cost of |α|.
    h = max(abs(e) - epsilon, 0.0)
    loss = cost * h * h if squared else cost * h
    return loss + hinge_gap(-abs(e) - epsilon, abs(alpha), cost, squared)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _read(i, y, weight, numbers):
    """Return (C, 1, t, D, U) of a row."""
    positive, classify, cost_positive, cost_negative, squared, _ = numbers
    target, is_positive = _target(y[i], positive, classify)
    C = (cost_positive if is_positive else cost_negative) * weight_of(i, weight)
    return C, 1.0, target, 0.5 / C if squared else 0.0, np.inf if squared else C


@njit(nogil=True, error_model="numpy", forceinline=True)
def _gap(z, alpha, row, numbers):
    C, _, target, _, _ = row
    return _row_gap(target - z, alpha, C, numbers[4], numbers[5])


@njit(nogil=True, error_model="numpy", forceinline=True)
def _visit(z, a, alpha, row, numbers):
    _, _, target, D, U = row
    epsilon = numbers[5]
    G = D * alpha - (target - z)
    violation = max(_slack(alpha, G, U, epsilon), 0.0)
    H = max(a + D, _FLAT)
    # Optimum for positive and for negative α; at most one of them is nonzero.
    new = max(alpha - (G + epsilon) / H, 0.0) + min(alpha - (G - epsilon) / H, 0.0)
    new = min(max(new, -U), U)
    rise = (new - alpha) * (target - 0.5 * D * (new + alpha))
    return new, violation, _slack(new, G, U, epsilon), rise, epsilon * (abs(new) - abs(alpha))


@njit(nogil=True, error_model="numpy", forceinline=True)
def _at_rest(z, alpha, row, numbers):
    """Whether α is 0 and the row inside the tube, or its gradient pushes α against a bound.

    At a bound the gradient is -e, also of the squared loss, whose only bound is 0.
    """
    _, _, target, _, U = row
    epsilon = numbers[5]
    e = target - z
    in_tube = (alpha == 0.0) & (abs(e) <= epsilon)
    return in_tube | ((alpha >= U) & (e >= epsilon)) | ((alpha <= -U) & (e <= -epsilon))


@njit(nogil=True, error_model="numpy", forceinline=True)
def _terms(z, error, alpha, row, numbers):
    C, _, target, _, _ = row
    squared, epsilon = numbers[4], numbers[5]
    e = target - z
    # The gap is convex in e, which is rounded, too.
    error += rounding(0, abs(target) + epsilon)
    above = _row_gap(e + error, alpha, C, squared, epsilon)
    gap = max(above, _row_gap(e - error, alpha, C, squared, epsilon))
    most = max(abs(e) + error - epsilon, 0.0)
    h = max(abs(e) - epsilon, 0.0)
    more = most - h
    rise = target * alpha - epsilon * abs(alpha)
    if squared:
        return gap, C * h * h, C * more * (most + h), rise, 0.25 * alpha * alpha / C
    return gap, C * h, C * more, rise, 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _expand(alpha, row, numbers):
    """Return slope and minus curvature of d_i, of the side of 0 that α is on."""
    _, _, target, D, _ = row
    epsilon = numbers[5] if alpha > 0.0 else (-numbers[5] if alpha < 0.0 else 0.0)
    return target - epsilon - D * alpha, D


@njit(nogil=True, error_model="numpy", forceinline=True)
def _clip(far, alpha, row):
    return min(max(far, -row[4]), row[4])


@njit(nogil=True, error_model="numpy", forceinline=True)
def _dual(alpha, row, numbers):
    _, _, target, D, _ = row
    return alpha * (target - 0.5 * D * alpha) - numbers[5] * abs(alpha)


solve = make_solve(_read, _gap, _visit)
search = make_search(_read, _expand, _clip, _dual)
screen = make_screen(_read, _at_rest)
certify = make_certify(_read, _terms)
