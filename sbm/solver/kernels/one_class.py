"""One-class machine: how far from the origin a plane can be with most rows beyond it, in the dual.

For rows x_i with weights v_i (1 unless given) and N = ν Σ v_i the primal problem is ::

    min_{w, ρ}  ½|w|² - N ρ + Σ v_i max(0, ρ - w·x_i)

and its dual, with w = Σ α_i x_i, ::

    max_α  -½|w|²   subject to   0 ≤ α_i ≤ v_i,   Σ α_i = N

The last condition couples all rows, those that are not in memory too, so it is left to a
multiplier: ρ takes part in every visit like the weight of one more feature of value -1, on a scale
μ of its own ::

    α ← clip(α - (w·x - ρ) / (|x|² + μ), 0, v);   w += δx;   ρ -= μδ;   S += δ

and after a block or a pass the caller corrects it by ρ -= μ (S - N) or a share of that, S = Σ α_i
(the method of multipliers: Σ α_i is N in the limit only). There is no bias.

Given: rows (as in common.py); `weight` of each row, None when all are 1; `scale` μ; `bias` -1.
In place: alpha, w, score, ρ as `extra`. Returned: nothing. What visits add up to is added to
`stats`, with S in the place of Σ d_i, which is 0; what rows add up to is added to `sums`, with S
likewise and with what rounding may have done to the loss in the place of the gap.
Source: Schölkopf et al. 2001; linear: Chou, Lin & Lin 2020; the multiplier is ours.
"""

from numba import njit

from sbm.solver.kernels.common import hinge_gap, step_in_box
from sbm.solver.kernels.rounds import make_certify, make_solve

__all__ = ["certify", "solve"]

# Curvature of a row of zeros where μ is 0: its step ends at a bound, or does not begin.
_FLAT = 1e-300


@njit(nogil=True, error_model="numpy", forceinline=True)
def _read(i, y, weight, numbers):
    """Return (v, 1) of a row."""
    return (1.0 if weight is None else weight[i]), 1.0


@njit(inline="always")
def _gap(z, alpha, row, numbers):
    return hinge_gap(-z, alpha, row[0], False)


@njit(inline="always")
def _visit(z, a, alpha, row, numbers):
    new, violation, rank = step_in_box(z, alpha, row[0], max(a, _FLAT))
    return new, violation, rank, new - alpha, 0.0


@njit(inline="always")
def _terms(z, error, alpha, row, numbers):
    v = row[0]
    return v * min(error, max(error - z, 0.0)), v * max(-z, 0.0), alpha, 0.0


solve = make_solve(_read, _gap, _visit, late=True)
certify = make_certify(_read, _terms, late=True)
