"""One-class machine, in the dual: the plane farthest from the origin with most rows beyond it.

For rows x_i with weights v_i (1 unless given) and N = ν Σ v_i the primal problem is ::

    min_{w, ρ}  ½|w|² - N ρ + Σ v_i max(0, ρ - w·x_i)

and its dual, with w = Σ α_i x_i, ::

    max_α  -½|w|²   subject to   0 ≤ α_i ≤ v_i,   Σ α_i = N

The last condition couples all rows, including those not in memory, so it is handled by a
multiplier: in every visit ρ acts as the weight of an extra feature of value -1, with its own scale
μ ::

    α ← clip(α - (w·x - ρ) / (|x|² + μ), 0, v);   w += δx;   ρ -= μδ;   S += δ

and after a block or a pass the caller corrects it by ρ -= μ (S - N) or a share of that, S = Σ α_i
(the method of multipliers: Σ α_i = N only in the limit). There is no bias.

Given: rows (as in common.py); `weight` of each row, or one for all; `scale` μ; `bias` -1.
In place: alpha, w, score, ρ as `extra`. Returned: nothing. Totals are added to
`stats`, with S instead of Σ d_i, which is 0, and to `sums`, with S likewise and with a bound on the
rounding error of the loss instead of the gap.
Source: Schölkopf et al. 2001; linear: Chou, Lin & Lin 2020; the multiplier is ours.
"""

from numba import njit

from sbm.solver.kernels.common import hinge_gap, step_in_box, weight_of
from sbm.solver.kernels.rounds import make_certify, make_solve

__all__ = ["certify", "solve"]

# Curvature of a zero row if μ is 0: its step ends at a bound, or is 0.
_FLAT = 1e-300


@njit(nogil=True, error_model="numpy", forceinline=True)
def _read(i, y, weight, numbers):
    """Return (v, 1) of a row."""
    return weight_of(i, weight), 1.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _gap(z, alpha, row, numbers):
    return hinge_gap(-z, alpha, row[0], False)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _visit(z, a, alpha, row, numbers):
    new, violation, rank = step_in_box(z, alpha, row[0], max(a, _FLAT))
    return new, violation, rank, new - alpha, 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _terms(z, error, alpha, row, numbers):
    v = row[0]
    missed = v * min(error, max(error - z, 0.0))
    return missed, v * max(-z, 0.0), missed, alpha, 0.0


solve = make_solve(_read, _gap, _visit, late=True)
certify = make_certify(_read, _terms, late=True)
