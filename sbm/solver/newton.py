"""Second-order training: Newton's method, and an interior point method on the rows near a kink.

Both need a d x d matrix, d being the number of weights, and read all rows once per step.

Smooth losses. A pass at W sums gradient and Hessian. The next pass is at the Newton step; if that
did not decrease the objective enough, the one after it is at a shorter step.

Hinge and epsilon-insensitive loss. They are linear except at kinks, so a row whose decision value
does not cross a kink on the way to the optimum matters only by its gradient. A pass at W collects the
rows nearest to their kink, and sums the gradients of the others. Then the problem of these rows, the
others being linear, is solved in memory by a primal-dual interior point method (Mehrotra 1992). The
result is a lower bound of the objective, and its optimum is the next W. If too many of the other rows
cross a kink, the next problem keeps W nearby by the term ½ρ (w - W)'G(w - W), where G is the Gram
matrix of a sample. The dual variables of the last problem, without that term, certify W.

All sums are over fixed slices of the rows, added up in a fixed order, so no result depends on the
number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Dense
from sbm.compiled import load
from sbm.errors import DataError
from sbm.rows import Rows
from sbm.solver.gap import Certificate, Certifier
from sbm.solver.problem import TOO_LARGE, Problem, Spread, decide

__all__ = ["MARGIN_ROW", "SLICES", "HingeNewton", "Newton", "SmoothNewton", "hessian_bytes"]

Floats = npt.NDArray[np.float64]

SLICES = 4  # of the rows of a block
MARGIN_ROW = 220  # bytes of a row near a kink, besides its nonzeros
_TOGETHER = 8
_PARALLEL = 50_000  # rows times weights to add a row to
_RIDGES = (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6)
_ARMIJO = 1e-4
_STEPS = np.array([1.0, 0.9, 0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01, 0.0])
_MOST_STEPS = 60  # of the interior point method; 30 have been observed
_TO_BOUNDARY = 0.995
_SAMPLE_STEPS = 20
_SAMPLE = 5.0  # rows of the sample with curvature, per weight, at least
_PROXIMITY = 0.01  # first ρ
_LEAST_PROXIMITY = 1e-6  # smaller values count as 0
_FEW = 4  # rows near a kink, at least, per weight
_MOST = 1e300


def hessian_bytes(n_weights: int, n_problems: int, smooth: bool) -> int:
    """Return the bytes of the matrices of a training."""
    matrices = SLICES * n_problems + 3 if smooth else SLICES + n_problems + 3
    return 8 * n_weights * (n_weights * matrices + SLICES * (_TOGETHER + 2))


class Sums:
    """Products of rows with vectors, over slices that may be summed in parallel.

    Parameters
    ----------
    n_weights : int
    bias : float
    spread : callable
        Like the builtin `map`.
    """

    def __init__(self, n_weights: int, bias: float, spread: Spread) -> None:
        self._kernels = load("sbm.solver.kernels.newton")
        self.n_weights, self.bias, self.spread = n_weights, bias, spread
        self._dense = np.zeros((SLICES, _TOGETHER, n_weights))
        self._weight = np.zeros((SLICES, _TOGETHER))

    def add_rows(self, rows: Rows, r: Floats, out: Floats) -> None:
        """Add Σ r_i x_i to `out`, shape (n_weights,)."""
        self._kernels.add_rows(
            rows.starts, rows.lengths, rows.indices, rows.values, self.bias, r, out
        )

    def add_gram(self, k: int, rows: Rows, r: Floats, H: Floats) -> None:
        """Add Σ r_i x_i x_i' to the lower triangle of H, with the k-th scratch."""
        self._kernels.gram(
            rows.starts, rows.lengths, rows.indices, rows.values, self.bias, r, H,
            self._dense[k], self._weight[k],
        )  # fmt: skip

    def times(self, pieces: Sequence[Rows], w: Floats) -> Floats:
        """Return the decision values of all rows of the pieces."""
        W = w[:, np.newaxis]
        groups = [pieces[len(pieces) * k // SLICES : len(pieces) * (k + 1) // SLICES]
                  for k in range(SLICES)]

        def work(group: Sequence[Rows]) -> list[Floats]:
            return [decide(rows, W, self.bias)[:, 0] for rows in group]

        found = self._spread(pieces, 1)(work, groups)
        return np.concatenate([np.empty(0), *(z for one in found for z in one)])

    def transposed(self, pieces: Sequence[Rows], r: Floats) -> Floats:
        """Return Σ r_i x_i over all rows of the pieces."""
        parts, outs = _cut(pieces, r), np.zeros((SLICES, self.n_weights))

        def work(k: int) -> None:
            for rows, mine in list(zip(pieces, parts, strict=True))[k::SLICES]:
                self.add_rows(rows, mine, outs[k])

        list(self._spread(pieces, 1)(work, range(SLICES)))
        total: Floats = outs.sum(axis=0)
        return total

    def gram(self, pieces: Sequence[Rows], r: Floats) -> Floats:
        """Return the lower triangle of Σ r_i x_i x_i' over all rows of the pieces."""
        parts, outs = _cut(pieces, r), np.zeros((SLICES, self.n_weights, self.n_weights))

        def work(k: int) -> None:
            for rows, mine in list(zip(pieces, parts, strict=True))[k::SLICES]:
                self.add_gram(k, rows, mine, outs[k])

        list(self._spread(pieces, self.n_weights)(work, range(SLICES)))
        for part in outs[1:]:
            outs[0] += part
        return outs[0]

    def _spread(self, pieces: Sequence[Rows], work: int) -> Spread:
        """Return how to call functions: in parallel if it takes longer than starting them."""
        return self.spread if work * sum(map(len, pieces)) > _PARALLEL else map

    def factorize(self, H: Floats) -> tuple[Floats, Floats]:
        """Return the Cholesky factor of H, scaled to a diagonal of 1, and the scale.

        A multiple of the identity is added if rounding made H indefinite.
        """
        diagonal = np.diag(H)
        if not np.isfinite(diagonal).all():
            raise DataError(TOO_LARGE)
        scale = 1.0 / np.sqrt(np.maximum(diagonal, 1e-300))
        for ridge in _RIDGES:
            L = H * scale
            L *= scale[:, np.newaxis]
            L.flat[:: len(L) + 1] += ridge
            if self._kernels.factorize(L):
                return L, scale
        raise DataError(TOO_LARGE)

    def solve(self, factor: tuple[Floats, Floats], b: Floats) -> Floats:
        """Solve a system, given the result of `factorize`."""
        L, scale = factor
        x: Floats = b * scale
        self._kernels.solve(L, x)
        x *= scale
        return x


def _cut(pieces: Sequence[Rows], r: Floats) -> list[Floats]:
    """Cut a vector into those of the pieces."""
    return np.split(r, np.cumsum([len(rows) for rows in pieces])[:-1])


def slices_of(rows: Rows) -> list[Rows]:
    """Cut rows into slices."""
    ends = [len(rows) * k // SLICES for k in range(SLICES + 1)]
    return [rows.part(ends[k], ends[k + 1] - ends[k]) for k in range(SLICES)]


def _copy(rows: Rows, chosen: npt.NDArray[np.intp]) -> Rows:
    """Return a copy of some rows, with nonzeros of their own."""
    lengths = rows.lengths[chosen]
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    where = np.repeat(rows.starts[chosen] - starts, lengths)
    where += np.arange(len(where))
    values = None if rows.values is None else rows.values[where]
    return Rows(starts, lengths, rows.indices[where], values, rows.y[:0])


@dataclass(frozen=True)
class _Side:
    """Rows as hinges: c max(0, b - s z). `epsilon_insensitive` has two sides per row."""

    s: Floats
    b: Floats

    @classmethod
    def of(cls, problem: Problem, rows: Rows) -> list[_Side]:
        if problem.loss.signed:
            y, one = rows.y.astype(np.float64), np.ones(len(rows))
            return [cls(one, y - problem.epsilon), cls(-one, -y - problem.epsilon)]
        return [cls(_signs(problem, rows), np.ones(len(rows)))]


def _signs(problem: Problem, rows: Rows) -> Floats:
    return np.where(rows.y == problem.positive, 1.0, -1.0)


def respond(problem: Problem, rows: Rows, z: Floats) -> tuple[Floats, Floats]:
    """Return the optimal dual variable of each row at fixed z, and its derivative by -z.

    The derivative of a loss that is not smooth is 0.

    Parameters
    ----------
    problem : Problem
    rows : Rows
    z : ndarray, shape (n,), float64
    """
    c, loss = problem.costs(rows.y, rows.weights), problem.loss
    if loss.kernel == "logistic":
        odds = np.exp(np.clip(_signs(problem, rows) * z, -700.0, 700.0))
        alpha = c / (1.0 + odds)
        return alpha, alpha * (odds / (1.0 + odds))
    if not loss.squared:
        sides = [(side.s if loss.signed else 1.0, side.b - side.s * z > 0.0)
                 for side in _Side.of(problem, rows)]
        return sum(s * c * active for s, active in sides), np.zeros(len(rows))
    if not loss.signed:
        h = 1.0 - _signs(problem, rows) * z
        return 2.0 * c * np.maximum(h, 0.0), 2.0 * c * (h > 0.0)
    target = _signs(problem, rows) if problem.classify else rows.y
    e = target - z
    excess = np.maximum(abs(e) - problem.epsilon, 0.0)
    is_outside = (excess > 0.0) | (not problem.epsilon)
    return 2.0 * c * np.copysign(excess, e), 2.0 * c * is_outside


@dataclass
class _Result:
    """The sums of one slice."""

    sums: Floats
    more: Any = None


class Newton:
    """Second-order training of one problem: a pass is `start_pass`, `add` for each block, `finish`.

    Parameters
    ----------
    problem : Problem
    W : ndarray, shape (n_weights, 1), float64
        The weights at which the next pass is; changed by `begin` and `move`.
    W_alpha : ndarray, like W
        Scratch; after `finish`, Σ α s x.
    spread : callable
        Like the builtin `map`.

    Attributes
    ----------
    base : ndarray, like W, or None
        The last accepted weights; `W` was found from them.
    """

    def __init__(self, problem: Problem, W: Floats, W_alpha: Floats, spread: Spread) -> None:
        self.problem, self.W, self._W_alpha = problem, W, W_alpha
        self.sums = Sums(len(W), problem.bias, spread)
        self.base: Floats | None = None
        self.base_primal = _MOST
        self._results: list[_Result] = []
        self._shares = np.zeros((SLICES, *W.shape))
        self._certifier = Certifier(problem, W, W_alpha)

    def start_pass(self) -> None:
        """Prepare for a pass at `W`."""
        self._certifier = Certifier(self.problem, self.W, self._W_alpha)
        self._shares[:] = 0.0

    def certify_slice(self, k: int, rows: Rows, alpha: Floats) -> Floats:
        """Add the rows of a slice to the certificate; return their sums."""
        return self.problem.certify(rows, Dense(alpha), self.W, self._shares[k])

    def respond(self, rows: Rows) -> Floats:
        """Return dual variables of rows at `W`."""
        return respond(self.problem, rows, decide(rows, self.W, self.problem.bias)[:, 0])[0]

    def certificate(self) -> Certificate:
        """Return the certificate of the pass."""
        for share in self._shares:
            self._certifier.W_alpha += share
        # W is not a sum over alphas that rounding could have moved: all of |W - W(α)| is gap.
        return replace(self._certifier.finish(), drift=0.0)

    def with_costs(self, factor: float) -> Problem:
        """Return the problem with all costs times a factor."""
        p = self.problem
        return replace(
            p, cost_positive=factor * p.cost_positive, cost_negative=factor * p.cost_negative
        )


class SmoothNewton(Newton):
    """Newton's method for smooth losses."""

    def __init__(self, problem: Problem, W: Floats, W_alpha: Floats, spread: Spread) -> None:
        super().__init__(problem, W, W_alpha, spread)
        d = len(W)
        self._H, self._slopes = np.zeros((SLICES, d, d)), np.zeros((SLICES, d))
        self.curvature = 0.0  # of all rows of the pass
        self.slope = 0.0  # of the objective at `base`, along W - base

    @property
    def is_new(self) -> bool:
        """Whether to call `begin`."""
        return self.base is None and not self.W.any()

    def begin(self, rows: Rows, factor: float, tol: float) -> None:
        """Set `W` to about the optimum of a sample, 1 / factor of the rows."""
        whole, self.problem, most = self.problem, self.with_costs(factor), 0.0
        for _ in range(_SAMPLE_STEPS):
            self.start_pass()
            self.add(0, rows)
            most = most or self.curvature
            if self.base is not None and self.curvature * len(rows) < _SAMPLE * len(self.W) * most:
                self.W[:] = self.base
                break
            certificate = self.certificate()
            if not self.move(certificate) or certificate.relative_gap <= tol:
                break
            if -self.slope * len(rows) <= len(self.W) * certificate.primal:
                break  # the optimum of a sample is no nearer than that to the optimum of all rows
        self.problem, self.base, self.base_primal = whole, None, _MOST

    def start_pass(self) -> None:
        super().start_pass()
        self._H[:], self._slopes[:] = 0.0, 0.0
        self.curvature = 0.0

    def add(self, block: int, rows: Rows) -> list[Floats]:
        """Add the rows of a block; return their alphas by slice."""

        def work(k: int) -> tuple[Floats, Floats, float]:
            part = parts[k]
            z = decide(part, self.W, self.problem.bias)[:, 0]
            alpha, curvature = respond(self.problem, part, z)
            self.sums.add_gram(k, part, curvature, self._H[k])
            signs = self._signs(part)
            self.sums.add_rows(part, signs * alpha, self._slopes[k])
            if self.base is not None:
                # Newton's step moves the dual variables to Σ α s x = W, but for their bounds.
                before = decide(part, self.base, self.problem.bias)[:, 0]
                alpha, slopes = respond(self.problem, part, before)
                alpha += slopes * signs * (before - z)
                self.problem.make_feasible(part, Dense(alpha))
            return alpha, self.certify_slice(k, part, alpha), float(curvature.sum())

        parts, alphas = slices_of(rows), []
        for alpha, sums, curvature in self.sums.spread(work, range(SLICES)):
            alphas.append(alpha)
            self.curvature += curvature
            self._certifier.sums.append(sums)
        return alphas

    def _signs(self, rows: Rows) -> Floats | float:
        return 1.0 if self.problem.loss.signed else _signs(self.problem, rows)

    def move(self, certificate: Certificate, tol: float = 0.0) -> bool:
        """Set `W` for the next pass; return whether there is progress to be made."""
        P, gradient = certificate.primal, self.W[:, 0] - self._slopes.sum(axis=0)
        if self.base is not None and P > self.base_primal + _ARMIJO * self.slope:
            way = self.W - self.base
            # The minimum of the parabola through both values and the slope at the base.
            rise = P - self.base_primal - self.slope
            q = min(0.5, max(0.05, -0.5 * self.slope / rise))
            if float(abs(way).max()) <= 1e-14 * float(abs(self.W).max()):
                return False
            self.W[:] = self.base + q * way
            self.slope *= q
            return True
        H = self._H[0]
        for part in self._H[1:]:
            H += part
        H.flat[:: len(H) + 1] += 1.0
        step = self.sums.solve(self.sums.factorize(H), -gradient)
        self.base, self.base_primal = self.W.copy(), P
        self.slope = _dot(gradient, step)
        self.W[:, 0] += step
        return True

    def record(self) -> dict[str, Any]:
        """Return the scalars of the state, as JSON."""
        return {"primal": self.base_primal, "slope": self.slope}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the state, except W."""
        return {} if self.base is None else {"newton_base": self.base}

    def restore(self, record: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore the state."""
        self.base_primal, self.slope = float(record["primal"]), float(record["slope"])
        self.base = arrays.get("newton_base")


@dataclass
class _Near:
    """Rows near a kink, from one slice of a block: c max(0, b - s z)."""

    rows: Rows
    s: Floats
    b: Floats
    c: Floats
    h: Floats

    def take(self, kept: npt.NDArray[np.bool_]) -> _Near:
        """Return a copy of some rows."""
        chosen = np.flatnonzero(kept)
        return _Near(
            _copy(self.rows, chosen), self.s[kept], self.b[kept], self.c[kept], self.h[kept]
        )


@dataclass
class _Crossed:
    """Rows that crossed their kink: whether any was not near it, and the farthest."""

    outside: int = 0
    farthest: float = 0.0


class HingeNewton(Newton):
    """The interior point method on the rows near a kink; see the module.

    Parameters
    ----------
    problem, W, W_alpha, spread
        As for `Newton`.
    capacity : int
        Rows near a kink.
    """

    def __init__(
        self, problem: Problem, W: Floats, W_alpha: Floats, spread: Spread, capacity: int
    ) -> None:
        super().__init__(problem, W, W_alpha, spread)
        self.capacity = capacity
        self.reach = _MOST  # distance from the kink up to which `alphas` has the rows
        self.limit = _MOST  # the same, of the rows being collected
        self.alphas: dict[tuple[int, int], Floats] = {}  # by block and slice
        self.rho, self.model, self.G = _PROXIMITY, 0.0, np.zeros((0, 0))
        self._near: dict[tuple[int, int], _Near] = {}
        self._crossed = _Crossed()
        self._steps = np.zeros(len(_STEPS))
        self._fixed = np.zeros((SLICES, len(W)))
        self._constant = 0.0

    @property
    def is_new(self) -> bool:
        """Whether `begin` was not called yet."""
        return not self.G.size

    def begin(self, rows: Rows, factor: float, tol: float) -> None:
        """Learn from a sample, 1 / factor of the rows; set `W` to about its optimum if it is 0."""
        problem, parts = self.with_costs(factor), slices_of(rows)
        near = []
        for part in parts:
            c = problem.costs(part.y, part.weights).astype(np.float64)
            near += [_Near(part, side.s, side.b, c, side.b) for side in _Side.of(problem, part)]
        c = np.concatenate([one.c for one in near])
        n_sides = len(near) // len(parts)
        self.G = self.sums.gram([one.rows for one in near], c) / n_sides
        if self.W.any():
            return
        size = sum(_dot(one.c, np.maximum(one.b, 0.0)) for one in near)
        tol = max(tol, 0.1 * len(self.W) / len(rows)) * size
        w, _ = self._interior(near, np.zeros(len(self.W)), self.W[:, 0], tol, 0.0)
        self.W[:, 0] = w

    def start_pass(self) -> None:
        super().start_pass()
        self._near, self._crossed, self._constant = {}, _Crossed(), 0.0
        self._steps[:] = 0.0
        self._fixed[:] = 0.0

    def add(self, block: int, rows: Rows) -> list[Floats]:
        """Add the rows of a block; return their alphas by slice."""

        def work(k: int) -> tuple[Floats, Floats, list[_Near], float, _Crossed, Floats]:
            return self._add_slice(k, parts[k], self.alphas.get((block, k), np.empty(0)))

        parts, alphas = slices_of(rows), []
        for k, (alpha, sums, near, constant, crossed, steps) in enumerate(
            self.sums.spread(work, range(SLICES))
        ):
            alphas.append(alpha)
            self._certifier.sums.append(sums)
            self._near[block, k] = _join(near)
            self._constant += constant
            self._steps += steps
            self._crossed.outside += crossed.outside
            self._crossed.farthest = max(self._crossed.farthest, crossed.farthest)
        if sum(len(one.h) for one in self._near.values()) > self.capacity:
            self._shrink()
        return alphas

    def _add_slice(
        self, k: int, rows: Rows, alphas: Floats
    ) -> tuple[Floats, Floats, list[_Near], float, _Crossed, Floats]:
        """Evaluate a slice, and collect its rows near a kink."""
        problem, bias = self.problem, self.problem.bias
        z = decide(rows, self.W, bias)[:, 0]
        z_base = None if self.base is None else decide(rows, self.base, bias)[:, 0]
        c = problem.costs(rows.y, rows.weights).astype(np.float64)
        total, fixed = np.zeros(len(rows)), np.zeros(len(rows))
        near, constant, crossed, used = [], 0.0, _Crossed(), 0
        steps = np.zeros(len(_STEPS))
        for side in _Side.of(problem, rows):
            h = side.b - side.s * z
            if z_base is None:
                alpha = c * (h > 0.0)
            else:
                before = side.b - side.s * z_base
                is_near = abs(before) <= self.reach
                n = int(np.count_nonzero(is_near))
                alpha = c * (before > 0.0)
                if len(alphas):
                    alpha[is_near] = alphas[used : used + n]
                used += n
                over = ((before > 0.0) != (h > 0.0)) & (c > 0.0)
                size = abs(before[over])
                crossed.outside += int(np.count_nonzero(size > self.reach))
                crossed.farthest = max(crossed.farthest, float(size.max(initial=0.0)))
                way = h - before
                for t, q in enumerate(_STEPS):
                    steps[t] += _dot(c, np.maximum(before + q * way, 0.0))
            total += alpha if not problem.loss.signed else side.s * alpha
            collected = (abs(h) <= self.limit) & (c > 0.0)
            chosen = np.flatnonzero(collected)
            near.append(
                _Near(_copy(rows, chosen), side.s[chosen], side.b[chosen], c[chosen], h[chosen])
            )
            linear = np.where((h > 0.0) & ~collected, c, 0.0)
            fixed += side.s * linear
            constant += _dot(linear, side.b)
        self.sums.add_rows(rows, fixed, self._fixed[k])
        return total, self.certify_slice(k, rows, total), near, constant, crossed, steps

    def _shrink(self, limit: float | None = None) -> None:
        """Lower the limit, so that three quarters of the capacity are used; drop other rows."""
        if limit is None:
            sizes = np.concatenate([abs(one.h) for one in self._near.values()])
            place = min(len(sizes) - 1, self.capacity * 3 // 4)
            limit = float(np.partition(sizes, place)[place])
        else:  # a few rows per weight are always near
            sizes = np.concatenate([abs(one.h) for one in self._near.values()])
            place = min(len(sizes), _FEW * len(self.W)) - 1
            limit = max(limit, float(np.partition(sizes, place)[place])) if place >= 0 else limit
        self.limit = min(self.limit, limit)
        for (block, k), one in self._near.items():
            kept = abs(one.h) <= self.limit
            linear = np.where((one.h > 0.0) & ~kept, one.c, 0.0)
            self.sums.add_rows(one.rows, one.s * linear, self._fixed[k])
            self._constant += _dot(linear, one.b)
            if not kept.all():
                self._near[block, k] = one.take(kept)

    def move(self, certificate: Certificate, tol: float = 0.0) -> bool:
        """Set `W` for the next pass; return whether there is progress to be made."""
        P = certificate.primal
        if self.base is not None and not self._judge(P):
            return True
        self.base, self.base_primal = self.W.copy(), P
        keys = sorted(self._near)
        lengths = [len(self._near[key].h) for key in keys]
        groups = [keys[len(keys) * k // SLICES : len(keys) * (k + 1) // SLICES]
                  for k in range(SLICES)]
        near = [_join([self._near.pop(key) for key in group]) for group in groups if group]
        v = self._fixed.sum(axis=0)
        w, alpha = self._interior(near, v, self.base[:, 0], 0.1 * tol * P, self.rho)
        s, b, c = _vectors(near)
        h = b - s * self.sums.times([one.rows for one in near], w)
        self.model = (
            0.5 * _dot(w, w) - _dot(v, w) + self._constant + _dot(c, np.maximum(h, 0.0))
        )
        self.alphas = dict(zip(keys, np.split(alpha, np.cumsum(lengths)[:-1]), strict=True))
        self.W[:, 0] = w
        self.reach, self._near = self.limit, {}
        self.limit = _MOST
        return True

    def _judge(self, P: float) -> bool:
        """Choose ρ; return whether `W` is accepted. If not, `W` is moved nearer to the base."""
        assert self.base is not None
        ratio, before = (self.base_primal - P) / max(self.base_primal - self.model, 1e-300), self.rho
        if ratio > 0.95 or not self._crossed.outside:
            self.rho *= 0.01
        elif ratio > 0.6:
            self.rho *= 0.2
        elif ratio < 0.2:
            self.rho = max(8 * self.rho, 10 * _LEAST_PROXIMITY)
        if self.rho < _LEAST_PROXIMITY or abs(self.base_primal - P) <= 1e-5 * P:
            self.rho = 0.0
        if P < self.base_primal:
            if not self._crossed.outside and not before:
                self._shrink(4.0 * self._crossed.farthest)
            return True
        way = self.W - self.base
        values = self._steps + [
            0.5 * float(np.square(self.base + q * way).sum()) for q in _STEPS
        ]
        q = float(_STEPS[int(np.argmin(values))])
        self.W[:] = self.base + q * way
        self.base, self._near, self.alphas = None, {}, {}
        self.limit = _MOST
        return False

    def _interior(
        self, near: list[_Near], v: Floats, start: Floats, tol: float, rho: float
    ) -> tuple[Floats, Floats]:
        """Minimise ½|w|² - v·w + ½ρ (w - start)'G(w - start) + Σ c max(0, b - s w·x).

        Mehrotra's predictor and corrector. The constraint t - ξ = s w·x - b, t and ξ ≥ 0, has the
        variables 0 ≤ α ≤ c; on the central path α t = (c - α) ξ = μ.

        Returns
        -------
        w, alpha : ndarray
        """
        pieces = [one.rows for one in near]
        s, b, c = _vectors(near)
        n, sums, w = len(b), self.sums, start.copy()
        alpha, rest = 0.5 * c, 0.5 * c
        if n == 0 and rho == 0.0:
            return v.copy(), alpha
        Q = rho * self.G if rho else np.zeros((len(w), len(w)))
        Q.flat[:: len(w) + 1] += 1.0
        Q_factor = sums.factorize(Q)
        h = b - s * sums.times(pieces, w)
        t = np.maximum(-h, 0.0) + 0.5
        xi = t + h
        for _ in range(_MOST_STEPS):
            r = w - v - sums.transposed(pieces, s * alpha)
            if rho:
                r += rho * _symmetric(self.G, w - start)
            gap = _dot(rest, np.maximum(h, 0.0)) - _dot(alpha, np.minimum(h, 0.0))
            gap += 0.5 * _dot(r, sums.solve(Q_factor, r))
            if gap <= tol:
                break
            if n == 0:
                w -= sums.solve(Q_factor, r)
                break
            mu = (_dot(alpha, t) + _dot(rest, xi)) / (2 * n)
            D = 1.0 / (t / alpha + xi / rest)
            M = sums.gram(pieces, D)
            M += Q
            if not math.isfinite(mu) or not np.isfinite(M).all():
                raise DataError(TOO_LARGE)
            system = _System(sums, pieces, sums.factorize(M), r, s, D, (alpha, rest, t, xi), h)
            step = system.direction(-alpha * t, -rest * xi)
            length = system.longest(step)
            after = _dot(alpha + length * step.alpha, t + length * step.t)
            after += _dot(rest - length * step.alpha, xi + length * step.xi)
            centre = mu * (after / (2 * n * mu)) ** 3
            step = system.direction(
                centre - alpha * t - step.alpha * step.t, centre - rest * xi + step.alpha * step.xi
            )
            length = min(1.0, _TO_BOUNDARY * system.longest(step))
            w += length * step.w
            alpha += length * step.alpha
            rest -= length * step.alpha
            t += length * step.t
            xi += length * step.xi
            if min(map(np.min, (alpha, rest, t, xi))) <= 0.0:  # rounding leaves nothing to gain
                break
            h = b - s * sums.times(pieces, w)
        return w, np.clip(alpha, 0.0, c)

    def record(self) -> dict[str, Any]:
        """Return the scalars of the state, as JSON."""
        return {
            "primal": self.base_primal, "reach": self.reach, "rho": self.rho, "model": self.model,
            "near": [[*key, len(one)] for key, one in self.alphas.items()],
        }  # fmt: skip

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the state, except W."""
        found: dict[str, npt.NDArray[Any]] = {"newton_gram": self.G}
        if self.base is not None:
            found["newton_base"] = self.base
            found["newton_alphas"] = np.concatenate([np.empty(0), *self.alphas.values()])
        return found

    def restore(self, record: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore the state."""
        self.base_primal, self.reach = float(record["primal"]), float(record["reach"])
        self.rho, self.model = float(record["rho"]), float(record["model"])
        self.G, self.base = arrays["newton_gram"], arrays.get("newton_base")
        first = 0
        for block, k, n in record["near"]:
            self.alphas[block, k] = arrays["newton_alphas"][first : first + n]
            first += n


def _join(near: list[_Near]) -> _Near:
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
    return _Near(
        joined, *(np.concatenate([getattr(one, name) for one in near]) for name in "sbch")
    )


def _vectors(near: list[_Near]) -> tuple[Floats, Floats, Floats]:
    """Return s, b and c of all rows."""
    s, b, c = (np.concatenate([getattr(one, name) for one in near]) for name in "sbc")
    return s, b, c


def _dot(a: Floats, b: Floats) -> float:
    """Return a·b; unlike that of a BLAS, the result does not depend on its threads."""
    return float((a * b).sum())


def _symmetric(G: Floats, x: Floats) -> Floats:
    """Return the product of a symmetric matrix, given its lower triangle, with a vector."""
    product: Floats = G @ x + G.T @ x - np.diag(G) * x
    return product


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
        return longest
