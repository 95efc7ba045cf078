"""Second-order training: Newton's method, and an interior point method on the rows near a kink.

Both read all rows once per step, and have a d x d matrix, d being the number of weights.

Smooth losses. A pass at W sums gradient and Hessian. The next pass is at the Newton step; if that
did not decrease the objective enough, the one after it is at a shorter step.

If the matrix would be too large, conjugate gradients find the Newton step from products with it, as
in LIBLINEAR (Lin, Weng & Keerthi 2008; preconditioned as by Hsia, Chiang & Lin 2018). Each product
visits all rows, so they have to be in memory.

Hinge and epsilon-insensitive loss. They are linear except at kinks, so a row whose decision value
does not cross a kink on the way to the optimum matters only by its gradient. A pass at W collects
the rows nearest to their kink, and sums the gradients of the others. Then the problem of these
rows, the others being linear, is solved in memory (`sbm.solver.interior`). Its optimum is the next
W, and its value a lower bound of the objective. If too many of the other rows cross a kink, the
next problem keeps W nearby by the term ½ρ (w - W)'G(w - W), where G is the Gram matrix of a sample.
The dual variables of the last problem certify its optimum.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense
from sbm.distributed.comm import Comm, SerialComm
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.conjugate import Preconditioner, conjugate_gradients, inner, step_length
from sbm.solver.gap import SUPPORT, Certificate, Certifier
from sbm.solver.interior import Near, join, solve_near, vectors
from sbm.solver.problem import MultiProblem, Problem, Spread, decide
from sbm.solver.sums import (
    SLICES,
    Sums,
    copy_rows,
    dot,
    exponential,
    factorize,
    slices_of,
)

__all__ = [
    "MARGIN_ROW", "FullBatch", "Given", "HingeNewton", "SmoothNewton", "WideNewton",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Item = TypeVar("Item")

MARGIN_ROW = 260  # bytes of a row near a kink, besides its nonzeros
_ARMIJO = 1e-4
_LENGTHS = np.array([1 / 64, 1 / 16, 1 / 4])  # shares of a step, to choose from if it is too long
_STEPS = np.array([1.0, 0.9, 0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01, 0.0])
_SAMPLE_STEPS = 60
_EASY = 1.0  # cost times |x|² of a row at which Newton's method needs few steps
_HARDER, _GOOD = 10.0, 0.5  # factor of the costs after steps of at least this length
_SAMPLE = 5.0  # rows of the sample with curvature, per weight, at least
_PROXIMITY = 0.01  # first ρ
_LEAST_PROXIMITY = 1e-6  # smaller values count as 0
_FEW = 4  # rows near a kink, at least, per weight
_MOST = 1e300
# Conjugate gradients, as in LIBLINEAR: the step ends if an iteration gains less than this share of
# the mean gain.
_FORCING = 0.5
_CLOSE = 10.0  # gaps to reach that are left: the step must certify them


@dataclass(frozen=True)
class Side:
    """Rows as hinges: c max(0, b - s z). `epsilon_insensitive` has two sides per row."""

    s: Floats
    b: Floats

    @classmethod
    def of(cls, problem: Problem, rows: Rows) -> list[Side]:
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
        odds = exponential(np.clip(_signs(problem, rows) * z, -700.0, 700.0))
        alpha = c / (1.0 + odds)
        return alpha, alpha * (odds / (1.0 + odds))
    if not loss.squared:
        sides = [
            (side.s if loss.signed else 1.0, side.b - side.s * z > 0.0)
            for side in Side.of(problem, rows)
        ]
        alpha = np.zeros(len(rows))
        for s, active in sides:
            alpha += s * c * active
        return alpha, np.zeros(len(rows))
    if not loss.signed:
        h = 1.0 - _signs(problem, rows) * z
        return 2.0 * c * np.maximum(h, 0.0), 2.0 * c * (h > 0.0)
    target = _signs(problem, rows) if problem.classify else rows.y
    e = target - z
    excess = np.maximum(abs(e) - problem.epsilon, 0.0)
    is_outside = (excess > 0.0) | (not problem.epsilon)
    return 2.0 * c * np.copysign(excess, e), 2.0 * c * is_outside


def _in_turn(parts: list[list[Item]]) -> list[Item]:
    """Return what each slice has, in turn."""
    return [one for some in zip(*parts, strict=True) for one in some]


class Given(NamedTuple):
    """What every method is given.

    Attributes
    ----------
    problem : Problem or MultiProblem
    W : ndarray, shape (n_weights, n_outputs), float64
        The weights at which the next pass is; changed by `begin` and `move`.
    W_alpha : ndarray, like W
        Scratch; after `certificate`, Σ α s x.
    spread : callable
        Like the builtin `map`.
    comm : Comm
        Connects the ranks; each adds its own blocks.
    """

    problem: Problem | MultiProblem
    W: Floats
    W_alpha: Floats
    spread: Spread
    comm: Comm


class FullBatch(ABC):
    """A full-batch method for one problem: `start_pass`, `add` for each block, then `move`.

    Parameters
    ----------
    given : Given

    Attributes
    ----------
    base : ndarray, like W, or None
        The last accepted weights; `W` was found from them.
    visits : int
        Visits of each row to find `W`, besides that of the pass.
    name : str
        What reports call the method.
    """

    visits = 0
    name: ClassVar[str]
    beyond = 0.0  # tolerance of the number of support vectors

    def __init__(self, given: Given) -> None:
        problem, W, W_alpha, spread, comm = given
        self.problem: Problem | MultiProblem = problem
        self.W, self._W_alpha = W, W_alpha
        self.sums = Sums(len(W), problem.bias, spread, comm)
        self.base: Floats | None = None
        self.base_primal = _MOST
        self._shares = np.empty((0, 0, *W.shape))  # of W_alpha, by slice, during a pass
        self._certifier = Certifier(problem, W, W_alpha, self.beyond)

    def start_pass(self) -> None:
        """Prepare for a pass at `W`."""
        self._certifier = Certifier(self.problem, self.W, self._W_alpha, self.beyond)
        self._shares = np.zeros((SLICES, 1 + self.problem.intercept, *self.W.shape))

    def certify_slice(self, k: int, rows: Rows, alpha: Alphas) -> Floats:
        """Add the rows of a slice to the certificate; return their sums."""
        return self.problem.certify(rows, alpha, self.W, *self._shares[k])

    def certificate(self) -> Certificate:
        """Return the certificate of the pass."""
        for shares in self._shares:
            for array, share in zip(self._certifier.arrays, shares, strict=True):
                array += share
        self._shares = self._shares[:0].copy()
        self._certifier.add_up(self.sums.comm)
        # W is not a sum over alphas that rounding could have moved: all of |W - W(α)| is gap.
        return replace(self._certifier.finish(), drift=0.0)

    @property
    @abstractmethod
    def is_new(self) -> bool:
        """Whether to call `begin`."""

    def begin(self, rows: Rows | None, factor: float, tol: float) -> None:
        """Learn from a sample, 1 / factor of the rows; set `W` to about its optimum if it is 0.

        One rank has the sample; in the others, `rows` is None.
        """
        comm, self.sums.comm = self.sums.comm, SerialComm()
        if rows is not None:
            self._begin(rows, factor, tol)
        self.sums.comm = comm
        for array in self._learned():
            array *= rows is not None
            comm.add_up(array)

    @abstractmethod
    def _begin(self, rows: Rows, factor: float, tol: float) -> None:
        """Learn from a sample."""

    def _learned(self) -> list[Floats]:
        """Return what `begin` learns."""
        return [self.W]

    @abstractmethod
    def add(self, block: int, rows: Rows) -> list[Alphas]:
        """Add the rows of a block; return their alphas by slice."""

    @abstractmethod
    def move(self, certificate: Certificate, tol: float = 0.0) -> bool:
        """Set `W` for the next pass; return whether there is progress to be made."""

    @abstractmethod
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state, except W; each name begins with ``newton_``."""

    @abstractmethod
    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `arrays`."""


class SmoothNewton(FullBatch):
    """Newton's method for smooth losses.

    Parameters
    ----------
    given : Given
    searches : bool
        Whether to find the length of each step with the rows added, which must stay in memory.
    """

    name = "newton"

    problem: Problem

    def __init__(self, given: Given, searches: bool) -> None:
        super().__init__(given)
        self.ridge = self.problem.ridge(len(self.W))
        self._searches = searches
        self._rows: list[list[Rows]] = []  # by slice
        self._H, self._slopes = self._matrices(), np.zeros((SLICES, len(self.W)))
        self.curvature = 0.0  # of all rows of the pass
        self.slope = 0.0  # of the objective at `base`, along W - base
        self._along = list[Floats]()  # by slice: of the losses at `_LENGTHS` and 1
        self.share = np.ones(1)  # of the costs that steps count
        self._value = _MOST  # of the objective at `base`, at that share
        self._is_short = False  # whether less than `_GOOD` of the last step was good

    def _matrices(self) -> Floats:
        return np.zeros((SLICES, len(self.W), len(self.W)))

    @property
    def is_new(self) -> bool:
        """Whether to call `begin`."""
        return self.base is None and not self.W.any()

    def _begin(self, rows: Rows, factor: float, tol: float) -> None:
        whole, self.problem, most = self.problem, self.problem.with_costs(factor), 0.0
        searches, self._searches = self._searches, True
        self.share[0] = self._easy_share(rows)
        for _ in range(_SAMPLE_STEPS):
            self.start_pass()
            self.add(0, rows)
            most = most or self.curvature
            few = self.curvature * len(rows) < _SAMPLE * len(self.W) * most
            if self.base is not None and few and factor > 1.0:
                self.W[:] = self.base
                break  # of more rows, more have a loss: go on with all, at this share
            certificate, is_whole = self.certificate(), self.share[0] == 1.0
            if not self.move(certificate) or certificate.relative_gap <= tol:
                break
            if is_whole and len(self.W) * certificate.primal >= -self.slope * len(rows):
                break  # the optimum of a sample is no nearer than that to the optimum of all rows
        self.problem, self.base, self.base_primal, self._searches = whole, None, _MOST, searches

    def _learned(self) -> list[Floats]:
        return [self.W, self.share]

    def _easy_share(self, rows: Rows) -> float:
        """Return the share of the costs of a sample to begin with.

        If few rows have a loss, as when the classes are nearly separable, the Newton step at large
        costs is far too long. It is not from the optimum at a tenth of the costs.
        """
        costs, squares = self.problem.costs(rows.y, rows.weights) + 0.0, np.zeros(len(self.W))
        self.sums.add_squares(rows, costs, squares)
        return min(1.0, _EASY * np.count_nonzero(costs) / max(float(squares.sum()), 1e-300))

    def start_pass(self) -> None:
        """Prepare for a pass at `W`."""
        super().start_pass()
        self._H[:], self._slopes[:] = 0.0, 0.0
        self._rows = [[] for _ in range(SLICES)]
        self.curvature, self._along = 0.0, []

    def add(self, block: int, rows: Rows) -> list[Alphas]:
        """Add the rows of a block; return their alphas by slice."""

        def work(k: int) -> tuple[Floats, Floats, float, Floats]:
            part, along = parts[k], np.zeros(len(_LENGTHS) + 1)
            z = decide(part, self.W, self.problem.bias)[:, 0]
            alpha, curvature = respond(self.problem, part, z)
            self._add_curvature(k, part, curvature)
            if self._searches:
                self._rows[k].append(part)
            signs = self._signs(part)
            self.sums.add_rows(part, signs * alpha, self._slopes[k])
            if self.base is not None:
                # Newton's step moves the dual variables to Σ α s x = W, but for their bounds.
                before = decide(part, self.base, self.problem.bias)[:, 0]
                along[-1] = -dot(signs * alpha, z - before)
                if not self._searches:
                    along[:-1] = self._slopes_between(part, signs, before, z)
                alpha, slopes = respond(self.problem, part, before)
                alpha += slopes * signs * (before - z)
                self.problem.make_feasible(part, Dense(alpha))
            total = float(curvature.sum())
            return alpha, self.certify_slice(k, part, Dense(alpha)), total, along

        parts, alphas = slices_of(rows), list[Alphas]()
        for alpha, sums, curvature, along in self.sums.spread(work, range(SLICES)):
            alphas.append(Dense(alpha))
            self.curvature += curvature
            self._along.append(along)
            self._certifier.sums.append(sums)
        return alphas

    def _slopes_between(
        self, rows: Rows, signs: Floats | float, before: Floats, z: Floats
    ) -> list[float]:
        """Return the derivatives of the losses along a step, at `_LENGTHS` of it."""
        change, slopes = z - before, list[float]()
        for length in _LENGTHS:
            alpha, _ = respond(self.problem, rows, before + length * change)
            slopes.append(-dot(signs * alpha, change))
        return slopes

    def _shorter(self, way: Floats) -> float:
        """Return where along a step from the base the objective is least, about."""
        assert self.base is not None
        lengths = np.append(_LENGTHS, 1.0)
        own = self.share[0] * np.sum([np.zeros(len(lengths)), *self._along], axis=0)
        slopes = self.sums.comm.gather(list(own)).sum(axis=0)
        slopes += [dot(self.ridge * (self.base + t * way)[:, 0], way[:, 0]) for t in lengths]
        lengths, slopes = np.append(0.0, lengths), np.append(self.slope, slopes)
        k = int(np.argmax(slopes > 0.0))  # 0 if there is none, by rounding
        if k == 0:
            return float(_LENGTHS[0])
        share = slopes[k] / (slopes[k] - slopes[k - 1])  # of the way back to the one before
        return float(max(lengths[k] - share * (lengths[k] - lengths[k - 1]), 0.1 * _LENGTHS[0]))

    def _add_curvature(self, k: int, rows: Rows, curvature: Floats) -> None:
        self.sums.add_gram(k, rows, curvature, self._H[k])

    def _step(self, gradient: Floats, within: float) -> Floats:
        """Return the Newton step; `within` is the decrease of the objective that counts as 0."""
        self.visits = 0
        H = self.sums.add_up(self._H)
        H *= self.share[0]
        H.flat[:: len(H) + 1] += self.ridge
        return self.sums.solve(factorize(H), -gradient)

    def _slope(self, step: Floats) -> Callable[[float], float]:
        """Return the derivative of the objective along a step from `W`."""
        w, way, rows = self.W[:, 0], step[:, np.newaxis], _in_turn(self._rows)
        signs = [self._signs(one) for one in rows]

        def decide_both(one: Rows) -> tuple[Floats, Floats]:
            bias = self.problem.bias
            return decide(one, self.W, bias)[:, 0], decide(one, way, bias)[:, 0]

        both = list(self.sums.spread(decide_both, rows))

        def slope(length: float) -> float:
            def gain(k: int) -> float:
                z, change = both[k]
                alpha, _ = respond(self.problem, rows[k], z + length * change)
                return dot(signs[k] * alpha, change)

            own = -float(self.share[0]) * math.fsum(self.sums.spread(gain, range(len(rows))))
            return self.sums.total(own, dot(self.ridge * (w + length * step), step))

        return slope

    def _signs(self, rows: Rows) -> Floats | float:
        return 1.0 if self.problem.loss.signed else _signs(self.problem, rows)

    def move(self, certificate: Certificate, tol: float = 0.0) -> bool:
        """Set `W` for the next pass; return whether there is progress to be made."""
        is_worse = self.base is not None and self._value + _ARMIJO * self.slope < self._at(
            certificate.primal
        )
        if is_worse and not self._searches:
            assert self.base is not None
            way = self.W - self.base
            if float(abs(way).max()) <= 1e-14 * float(abs(self.W).max()):
                return False
            q = self._shorter(way)
            self.W[:] = self.base + q * way
            self.slope *= q
            self._is_short = self._is_short or q < _GOOD
            return True
        if self.base is not None and not self._is_short:
            self.share[0] = min(1.0, _HARDER * self.share[0])
        gradient = self.ridge * self.W[:, 0] - self.share[0] * self.sums.add_up(self._slopes)
        step, self._is_short = self._step(gradient, tol * certificate.primal), False
        if self._searches:
            self.visits += 2
            length = step_length(self._slope(step))
            step *= length
            self._is_short = length < _GOOD
        self.base, self.base_primal = self.W.copy(), certificate.primal
        self._value = self._at(certificate.primal)
        self.slope = dot(gradient, step)
        self.W[:, 0] += step
        return True

    def _at(self, primal: float) -> float:
        """Return the objective at the share of the costs, given that at all costs."""
        share = float(self.share[0])
        size = 0.5 * dot(self.ridge, np.square(self.W[:, 0]))
        return share * primal + (1.0 - share) * size

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state, except W."""
        numbers = [self.base_primal, self.slope, self._value, self.share[0], self._is_short]
        found = {"newton_numbers": np.array(numbers)}
        return found if self.base is None else {**found, "newton_base": self.base}

    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `arrays`."""
        numbers = arrays["newton_numbers"].tolist()
        self.base_primal, self.slope, self._value, self.share[0], self._is_short = numbers
        self.base = arrays.get("newton_base")


class WideNewton(SmoothNewton):
    """Newton's method without a matrix, for rows that stay in memory.

    Parameters
    ----------
    given : Given
    is_late : callable
        Called after each visit of all rows: whether to end the step. May raise an exception.
    """

    name = "conjugate gradients"
    is_new = False  # the optimum of a few rows is far from that of all

    def __init__(self, given: Given, is_late: Callable[[], bool]) -> None:
        super().__init__(given, searches=True)
        self._is_late = is_late
        self._inverse = Preconditioner(self.sums, self.ridge)
        self._curvatures: list[list[Floats]] = []

    def _matrices(self) -> Floats:
        return np.zeros((SLICES, len(self.W)))  # the diagonal

    def start_pass(self) -> None:
        """Prepare for a pass at `W`."""
        super().start_pass()
        self._curvatures = [[] for _ in range(SLICES)]

    def _add_curvature(self, k: int, rows: Rows, curvature: Floats) -> None:
        self.sums.add_squares(rows, curvature, self._H[k])
        self._curvatures[k].append(curvature)

    def _step(self, gradient: Floats, within: float) -> Floats:
        """Return about the Newton step.

        Far from the optimum, a rough one. Otherwise, half of the squared residual is part of the
        gap of the certificate.
        """
        rows, curvatures = _in_turn(self._rows), _in_turn(self._curvatures)
        self._inverse.set(rows, curvatures, self.sums.add_up(self._H))
        gained = Q = 0.0

        def product(way: Floats) -> Floats:
            along = self.sums.multiply(rows, curvatures, way, self._slopes)
            along += self.ridge * way
            return along

        def is_enough(number: int, step: Floats, r: Floats, size: float) -> bool:
            nonlocal gained, Q
            is_late = self._is_late()
            gained, Q = Q, -0.5 * (inner(step, r) - inner(step, gradient))
            self.visits = number
            is_rough = _CLOSE * within < -Q and number * (gained - Q) <= -_FORCING * Q
            return is_late or is_rough or 0.5 * inner(r, r) <= 0.1 * within or gained <= Q

        step = conjugate_gradients(product, self._inverse.times, gradient, is_enough)
        self._inverse.clear()
        return step


@dataclass
class _Crossed:
    """Rows that crossed their kink: whether any was not near it, and the farthest."""

    outside: int = 0
    farthest: float = 0.0


class HingeNewton(FullBatch):
    """The interior point method on the rows near a kink; see the module.

    Parameters
    ----------
    given : Given
    capacity : int
        Rows near a kink, in this rank.
    """

    problem: Problem
    name = "interior point"
    beyond = SUPPORT

    def __init__(self, given: Given, capacity: int) -> None:
        super().__init__(given)
        self.ridge = self.problem.ridge(len(self.W))
        self.capacity = capacity
        self.reach = _MOST  # distance from the kink up to which `alphas` has the rows
        self.limit = _MOST  # the same, of the rows being collected
        self.alphas: dict[tuple[int, int], Floats] = {}  # by block and slice
        self.rho, self.model, self.G = _PROXIMITY, 0.0, np.zeros((0, 0))
        self._near: dict[tuple[int, int], Near] = {}
        self._crossed = _Crossed()
        self._steps = np.zeros(len(_STEPS))
        self._fixed = np.zeros((SLICES, len(self.W)))
        self._constant = 0.0

    @property
    def is_new(self) -> bool:
        """Whether `begin` was not called yet."""
        return not self.G.size

    def _learned(self) -> list[Floats]:
        if not self.G.size:
            self.G = np.zeros((len(self.W), len(self.W)))
        return [self.W, self.G]

    def _begin(self, rows: Rows, factor: float, tol: float) -> None:
        problem, parts = self.problem.with_costs(factor), slices_of(rows)
        near = []
        for part in parts:
            c = problem.costs(part.y, part.weights).astype(np.float64)
            sides = [Near(part, side.s, side.b, c, side.b) for side in Side.of(problem, part)]
            near += sides if c.all() else [side.take(c > 0.0) for side in sides]
        c = np.concatenate([one.c for one in near])
        n_sides = len(near) // len(parts)
        self.G = self.sums.gram([one.rows for one in near], c) / n_sides
        if self.W.any():
            return
        size = sum(dot(one.c, np.maximum(one.b, 0.0)) for one in near)
        tol = max(tol, 0.1 * len(self.W) / len(rows)) * size
        v = np.zeros(len(self.W))
        w, _ = solve_near(self.sums, near, v, self.W[:, 0], tol, 0.0, self.G, self.ridge)
        self.W[:, 0] = w

    def start_pass(self) -> None:
        """Prepare for a pass at `W`."""
        super().start_pass()
        self._near, self._crossed, self._constant = {}, _Crossed(), 0.0
        self._steps[:] = 0.0
        self._fixed[:] = 0.0

    def add(self, block: int, rows: Rows) -> list[Alphas]:
        """Add the rows of a block; return their alphas by slice."""

        def work(k: int) -> tuple[Floats, Floats, list[Near], float, _Crossed, Floats]:
            return self._add_slice(k, parts[k], self.alphas.get((block, k), np.empty(0)))

        parts, alphas = slices_of(rows), list[Alphas]()
        for k, (alpha, sums, near, constant, crossed, steps) in enumerate(
            self.sums.spread(work, range(SLICES))
        ):
            alphas.append(Dense(alpha))
            self._certifier.sums.append(sums)
            self._certifier.count(parts[k], alphas[-1])
            self._near[block, k] = join(near)
            self._constant += constant
            self._steps += steps
            self._crossed.outside += crossed.outside
            self._crossed.farthest = max(self._crossed.farthest, crossed.farthest)
        if sum(len(one.h) for one in self._near.values()) > self.capacity:
            self._shrink()
        return alphas

    def _add_slice(
        self, k: int, rows: Rows, alphas: Floats
    ) -> tuple[Floats, Floats, list[Near], float, _Crossed, Floats]:
        """Evaluate a slice, and collect its rows near a kink."""
        problem, bias = self.problem, self.problem.bias
        z = decide(rows, self.W, bias)[:, 0]
        z_base = None if self.base is None else decide(rows, self.base, bias)[:, 0]
        c = problem.costs(rows.y, rows.weights).astype(np.float64)
        total, fixed = np.zeros(len(rows)), np.zeros(len(rows))
        near, constant, crossed, used = [], 0.0, _Crossed(), 0
        steps = np.zeros(len(_STEPS))
        for side in Side.of(problem, rows):
            h = side.b - side.s * z
            if z_base is None:
                alpha = c * (h > 0.0)
            else:
                before = side.b - side.s * z_base
                is_near = (abs(before) <= self.reach) & (c > 0.0)
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
                    steps[t] += dot(c, np.maximum(before + q * way, 0.0))
            total += alpha if not problem.loss.signed else side.s * alpha
            collected = (abs(h) <= self.limit) & (c > 0.0)
            chosen = np.flatnonzero(collected)
            near.append(
                Near(copy_rows(rows, chosen), side.s[chosen], side.b[chosen], c[chosen], h[chosen])
            )
            linear = np.where((h > 0.0) & ~collected, c, 0.0)
            fixed += side.s * linear
            constant += dot(linear, side.b)
        self.sums.add_rows(rows, fixed, self._fixed[k])
        return total, self.certify_slice(k, rows, Dense(total)), near, constant, crossed, steps

    def _shrink(self, limit: float | None = None) -> None:
        """Lower the limit, so that three quarters of the capacity are used; drop other rows."""
        if limit is None:
            sizes = abs(np.concatenate([np.empty(0), *(one.h for one in self._near.values())]))
            place = min(len(sizes) - 1, self.capacity * 3 // 4)
            limit = float(np.partition(sizes, place)[place])
        else:  # a few rows per weight are always near
            sizes = abs(np.concatenate([np.empty(0), *(one.h for one in self._near.values())]))
            place = min(len(sizes), _FEW * len(self.W)) - 1
            limit = max(limit, float(np.partition(sizes, place)[place])) if place >= 0 else limit
        self.limit = min(self.limit, limit)
        for (block, k), one in self._near.items():
            kept = abs(one.h) <= self.limit
            linear = np.where((one.h > 0.0) & ~kept, one.c, 0.0)
            self.sums.add_rows(one.rows, one.s * linear, self._fixed[k])
            self._constant += dot(linear, one.b)
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
        groups = [
            keys[len(keys) * k // SLICES : len(keys) * (k + 1) // SLICES] for k in range(SLICES)
        ]
        near = [join([self._near.pop(key) for key in group]) for group in groups if group]
        v = self.sums.add_up(self._fixed)
        w, alpha = solve_near(
            self.sums, near, v, self.base[:, 0], 0.1 * tol * P, self.rho, self.G, self.ridge
        )
        s, b, c = vectors(near)
        h = b - s * self.sums.times([one.rows for one in near], w)
        own = self._constant + dot(c, np.maximum(h, 0.0))
        self.model = self.sums.total(own, 0.5 * dot(self.ridge * w, w) - dot(v, w))
        parts = np.split(alpha, np.cumsum(lengths, dtype=np.intp))[:-1]
        self.alphas = dict(zip(keys, parts, strict=True))
        self.W[:, 0] = w
        self.reach, self._near = self.limit, {}
        self.limit = _MOST
        return True

    def _judge(self, P: float) -> bool:
        """Choose ρ; return whether `W` is accepted. If not, `W` is moved nearer to the base."""
        assert self.base is not None
        comm = self.sums.comm
        outside, farthest = comm.gather([self._crossed.outside, self._crossed.farthest]).T
        self._crossed = _Crossed(int(outside.sum()), float(farthest.max()))
        ratio, before = (
            (self.base_primal - P) / max(self.base_primal - self.model, 1e-300),
            self.rho,
        )
        if ratio > 0.95 or not self._crossed.outside:
            self.rho *= 0.01
        elif ratio > 0.6:
            self.rho *= 0.2
        elif ratio < 0.2:
            self.rho = max(8 * self.rho, 10 * _LEAST_PROXIMITY)
        if self.rho < _LEAST_PROXIMITY or abs(self.base_primal - P) <= 1e-5 * P:
            self.rho = 0.0
        if self.base_primal > P:
            if not self._crossed.outside and not before:
                self._shrink(4.0 * self._crossed.farthest)
            return True
        way = self.W - self.base
        steps = comm.gather(list(self._steps)).sum(axis=0)
        values = steps + [
            0.5 * dot(self.ridge, np.square(self.base + q * way)[:, 0]) for q in _STEPS
        ]
        q = float(_STEPS[int(np.argmin(values))])
        self.W[:] = self.base + q * way
        self.base, self._near, self.alphas = None, {}, {}
        self.limit = _MOST
        return False

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state, except W."""
        found: dict[str, npt.NDArray[Any]] = {
            "newton_numbers": np.array([self.base_primal, self.reach, self.rho, self.model]),
            "newton_gram": self.G,
        }
        if self.base is not None:
            near = [[*key, len(one)] for key, one in self.alphas.items()]
            found["newton_base"] = self.base
            found["newton_near"] = np.array(near, dtype=np.int64).reshape(-1, 3)
            found["newton_alphas"] = np.concatenate([np.empty(0), *self.alphas.values()])
        return found

    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `arrays`."""
        self.base_primal, self.reach, self.rho, self.model = arrays["newton_numbers"].tolist()
        self.G, self.base = arrays["newton_gram"], arrays.get("newton_base")
        first = 0
        for block, k, n in arrays.get("newton_near", np.empty((0, 3), np.int64)).tolist():
            self.alphas[block, k] = arrays["newton_alphas"][first : first + n]
            first += n
