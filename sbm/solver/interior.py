"""An interior point method for the rows near a kink of the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.problem import TOO_LARGE
from sbm.solver.sums import Sums, copy_rows, dot, factorize, product

__all__ = ["Near", "join", "solve_near", "vectors"]

Floats = npt.NDArray[np.float64]

_MOST_STEPS = 60  # 30 have been observed
_TO_BOUNDARY = 0.995


@dataclass
class Near:
    """Rows near a kink, from one slice of a block: c max(0, b - s z)."""

    rows: Rows
    s: Floats
    b: Floats
    c: Floats
    h: Floats

    def take(self, kept: npt.NDArray[np.bool_]) -> Near:
        """Return a copy of some rows."""
        chosen = np.flatnonzero(kept)
        return Near(
            copy_rows(self.rows, chosen), self.s[kept], self.b[kept], self.c[kept], self.h[kept]
        )


def join(near: list[Near]) -> Near:
    """Return several sets of rows with nonzeros of their own as one."""
    if len(near) == 1:
        return near[0]
    rows = [one.rows for one in near]
    ends = np.cumsum([len(one.indices) for one in rows])
    starts = [one.starts + end - len(one.indices) for one, end in zip(rows, ends, strict=True)]
    values = None if rows[0].values is None else np.concatenate([one.values for one in rows])
    joined = Rows(
        np.concatenate(starts), np.concatenate([one.lengths for one in rows]),
        np.concatenate([one.indices for one in rows]), values, rows[0].y,
    )  # fmt: skip
    return Near(joined, *(np.concatenate([getattr(one, name) for one in near]) for name in "sbch"))


def vectors(near: Sequence[Near]) -> tuple[Floats, Floats, Floats]:
    """Return s, b and c of all rows."""
    none = np.empty(0)
    s, b, c = (np.concatenate([none, *(getattr(one, name) for one in near)]) for name in "sbc")
    return s, b, c


def solve_near(
    sums: Sums,
    near: Sequence[Near],
    v: Floats,
    start: Floats,
    tol: float,
    rho: float,
    G: Floats,
    ridge: Floats,
) -> tuple[Floats, Floats]:
    """Minimise ½w'Rw - v·w + ½ρ (w - start)'G(w - start) + Σ c max(0, b - s w·x).

    Mehrotra's predictor and corrector. The constraint t - ξ = s w·x - b, t and ξ ≥ 0, has the
    variables 0 ≤ α ≤ c; on the central path α t = (c - α) ξ = μ.

    Parameters
    ----------
    sums : Sums
    near : sequence of Near
    v, start : ndarray, shape (n_weights,), float64
    tol : float
        Gap to reach.
    rho : float
    G : ndarray, shape (n_weights, n_weights), float64
        Its lower triangle counts.
    ridge : ndarray, shape (n_weights,), float64
        The diagonal of R: 1, or 0 for an intercept.

    Returns
    -------
    w : ndarray, shape (n_weights,), float64
    alpha : ndarray, shape (n,), float64
        Of all rows of this rank, in order.
    """
    pieces = [one.rows for one in near]
    s, b, c = vectors(near)
    n, w = sums.total(len(b)), start.copy()
    alpha, rest = 0.5 * c, 0.5 * c
    if n == 0 and rho == 0.0:
        return np.where(ridge > 0.0, v, start), alpha
    Q = rho * G if rho else np.zeros((len(w), len(w)))
    Q.flat[:: len(w) + 1] += ridge
    # An intercept has no curvature of its own: its part of r becomes 0 with the other equations.
    Q_factor = factorize(Q + np.diag(1.0 - ridge))
    h = b - s * sums.times(pieces, w)
    t = np.maximum(-h, 0.0) + 0.5
    xi = t + h
    for _ in range(_MOST_STEPS):
        r = ridge * w - v - sums.transposed(pieces, s * alpha)
        if rho:
            r += rho * _symmetric(G, w - start)
        gap = dot(rest, np.maximum(h, 0.0)) - dot(alpha, np.minimum(h, 0.0))
        own = 0.5 * dot(r, sums.solve(Q_factor, r)) + dot(1.0 - ridge, abs(r))
        gap = sums.total(gap, own)
        if gap <= tol:
            break
        if n == 0:
            w -= sums.solve(Q_factor, r)
            break
        mu = sums.total(dot(alpha, t) + dot(rest, xi)) / (2 * n)
        D = 1.0 / (t / alpha + xi / rest)
        M = sums.gram(pieces, D)
        M += Q
        if not math.isfinite(mu) or not np.isfinite(M).all():
            raise DataError(TOO_LARGE)
        system = _System(sums, pieces, factorize(M), r, s, D, (alpha, rest, t, xi), h)
        step = system.direction(-alpha * t, -rest * xi)
        length = system.longest(step)
        after = dot(alpha + length * step.alpha, t + length * step.t)
        after += dot(rest - length * step.alpha, xi + length * step.xi)
        centre = mu * (sums.total(after) / (2 * n * mu)) ** 3
        step = system.direction(
            centre - alpha * t - step.alpha * step.t, centre - rest * xi + step.alpha * step.xi
        )
        length = min(1.0, _TO_BOUNDARY * system.longest(step))
        w += length * step.w
        alpha += length * step.alpha
        rest -= length * step.alpha
        t += length * step.t
        xi += length * step.xi
        least = min(one.min(initial=1.0) for one in (alpha, rest, t, xi))
        if sums.least(least) <= 0.0:  # rounding leaves nothing to gain
            break
        h = b - s * sums.times(pieces, w)
    return w, np.clip(alpha, 0.0, c)


def _symmetric(G: Floats, x: Floats) -> Floats:
    """Return the product of a symmetric matrix, given its lower triangle, with a vector."""
    return product(G, x) + product(G.T, x) - np.diag(G) * x


@dataclass
class _Step:
    """A step of the interior point method."""

    w: Floats
    alpha: Floats
    t: Floats
    xi: Floats


@dataclass
class _System:
    """The linear equations of one iteration of the interior point method."""

    sums: Sums
    pieces: list[Rows]
    factor: tuple[Floats, Floats]
    r: Floats
    s: Floats
    D: Floats
    values: tuple[Floats, Floats, Floats, Floats]
    h: Floats

    def direction(self, r1: Floats, r2: Floats) -> _Step:
        """Return the step that changes α t by r1, and (c - α) ξ by r2, to first order."""
        alpha, rest, t, xi = self.values
        q = r1 / alpha - r2 / rest + (t - xi + self.h)
        w = self.sums.transposed(self.pieces, self.s * (self.D * q)) - self.r
        w = self.sums.solve(self.factor, w)
        da = self.D * (q - self.s * self.sums.times(self.pieces, w))
        return _Step(w, da, (r1 - t * da) / alpha, (r2 + xi * da) / rest)

    def longest(self, step: _Step) -> float:
        """Return the longest step length, at most 1, that keeps all values at least 0."""
        longest = 1.0
        steps = (step.alpha, -step.alpha, step.t, step.xi)
        for value, change in zip(self.values, steps, strict=True):
            falls = change < 0
            longest = min(longest, float((-value[falls] / change[falls]).min(initial=1.0)))
        return self.sums.least(longest)
