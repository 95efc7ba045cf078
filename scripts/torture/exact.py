"""Primal and dual values without rounding: what a certificate says, recomputed as fractions.

A few rows only: every number is a fraction of whole numbers, exponentials and logarithms have 60
digits. Weights and variables come from a training, as they are; nothing else of it is used.
"""

from __future__ import annotations

import contextlib
import decimal
import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import numpy.typing as npt

from sbm.alphas import Lists
from sbm.programs.training.second_order import NewtonSteps
from sbm.rows import Rows
from sbm.solver.gap import Certificate, Certifier
from sbm.solver.newton import FullBatch
from sbm.solver.problem import AnyProblem, MultiProblem, OneClass, Problem

# Those whose losses are known here; None stands for those of all classes together.
KERNELS = ("svc", "svr", "logistic", "one_class", None)

ZERO, ONE, HALF = Fraction(0), Fraction(1), Fraction(1, 2)
_DIGITS = decimal.Context(prec=60, Emin=-(10**6), Emax=10**6)
_FAR = 10**5  # exp of less is 0

Row: TypeAlias = tuple[list[tuple[int, Fraction]], float, float]  # nonzeros, y, weight
Columns: TypeAlias = list[dict[int, Fraction]]  # weights of each output, by feature
Variables: TypeAlias = list[dict[int, Fraction]]  # of each row, by output


# --------------------------------------------------------------------- what a training certified


@dataclass
class Certified:
    """What one certificate was made of."""

    problem: AnyProblem
    W: npt.NDArray[np.float64]  # shape (n_weights, n_outputs)
    rows: list[Row] = field(default_factory=list)  # nonzeros by feature code
    alphas: Variables = field(default_factory=list)  # variables of each row, by output
    W_alpha: npt.NDArray[np.float64] | None = None  # as the training added it up
    rho: float = 0.0  # of one class
    certificate: Certificate | None = None


@contextlib.contextmanager
def watch_certificates() -> Iterator[list[Certified]]:
    """Yield a list that every certificate of a training in this process is added to.

    One that the training returns to is added once more.
    """
    found: list[Certified] = []
    known: dict[int, Certified] = {}
    begin, add, finish = Certifier.__init__, Certifier.add, Certifier.finish
    add_halves = Certifier.add_halves
    of_slice, settle, lock = FullBatch.certify_slice, NewtonSteps.settle, threading.Lock()

    def watched_begin(
        self: Certifier, problem: AnyProblem, W: Any, *more: Any, **options: Any
    ) -> None:
        begin(self, problem, W, *more, **options)
        known[id(self)] = Certified(problem, W.copy())

    def note(certifier: Certifier, rows: Rows, alpha: Any) -> None:
        with lock:  # Newton's method certifies slices in several threads
            known[id(certifier)].rows += _rows_of(rows)
            known[id(certifier)].alphas += _variables_of(alpha)

    def watched_add(self: Certifier, rows: Rows, alpha: Any) -> None:
        note(self, rows, alpha)
        add(self, rows, alpha)

    def watched_halves(self: Certifier, rows: Rows, alpha: Any, spread: Any) -> None:
        if len(self.arrays) == 1:  # otherwise it calls `add`
            note(self, rows, alpha)
        add_halves(self, rows, alpha, spread)

    def watched_slice(self: FullBatch, k: int, rows: Rows, alpha: Any) -> Any:
        note(self._certifier, rows, alpha)
        return of_slice(self, k, rows, alpha)

    def watched_finish(self: Certifier) -> Certificate:
        one = known.pop(id(self))
        one.certificate = finish(self)
        one.rho = one.problem.rho if isinstance(one.problem, OneClass) else 0.0
        one.W_alpha = self.W_alpha.copy()
        found.append(one)
        return one.certificate

    def watched_settle(self: NewtonSteps, k: int, last: Certificate) -> Certificate:
        chosen = settle(self, k, last)
        if chosen is not last:
            found.append(next(one for one in found[::-1] if _is_of(one, chosen)))
        return chosen

    with (
        mock.patch.object(Certifier, "__init__", watched_begin),
        mock.patch.object(Certifier, "add", watched_add),
        mock.patch.object(Certifier, "add_halves", watched_halves),
        mock.patch.object(Certifier, "finish", watched_finish),
        mock.patch.object(FullBatch, "certify_slice", watched_slice),
        mock.patch.object(NewtonSteps, "settle", watched_settle),
    ):
        yield found


def _is_of(one: Certified, certificate: Certificate) -> bool:
    """Whether a certificate was made of this; Newton's method sets the drift to 0."""
    assert one.certificate is not None
    return replace(one.certificate, drift=certificate.drift) == certificate


def _rows_of(rows: Rows) -> list[Row]:
    result = []
    for i in range(len(rows)):
        own = slice(int(rows.starts[i]), int(rows.starts[i]) + int(rows.lengths[i]))
        indices = rows.indices[own].tolist()
        values = [1.0] * len(indices) if rows.values is None else rows.values[own].tolist()
        weight = 1.0 if rows.weights is None else float(rows.weights[i])
        pairs = [(k, Fraction(v)) for k, v in zip(indices, values, strict=True)]
        result.append((pairs, rows.y[i].item(), weight))
    return result


def _variables_of(alpha: Any) -> Variables:
    if not isinstance(alpha, Lists):
        return [{0: Fraction(a)} if a else {} for a in alpha.values.tolist()]
    ends = alpha.offsets.tolist()
    outputs, values = alpha.outputs.tolist(), alpha.values.tolist()
    return [
        {outputs[q]: Fraction(values[q]) for q in range(a, b)} for a, b in itertools.pairwise(ends)
    ]


# ------------------------------------------------------------------------------- exact values


@dataclass(frozen=True)
class Bounds:
    """Objective at the weights, and at the variables: the first is never below the second."""

    primal: Fraction
    dual: Fraction
    # how far a variable lies outside its bounds, relative to them: 0 but for rounding
    outside: Fraction

    @property
    def gap(self) -> Fraction:
        """Never negative, if no variable is outside its bounds."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """As in a certificate."""
        scale = max(abs(self.primal), abs(self.dual))
        return float(self.gap / scale) if scale else 0.0


def exact_bounds(one: Certified, W: npt.NDArray[np.float64] | None = None) -> Bounds:
    """Return the exact primal value at W, by default that of the certificate, and dual value."""
    problem = one.problem
    weights = _columns(one.W if W is None else W)
    if isinstance(problem, OneClass):
        return _one_class_bounds(one, problem, weights)
    primal = HALF * sum((w * w for column in weights for w in column.values()), ZERO)
    dual = ZERO
    by_alpha: Columns = [{} for _ in weights]
    outside = ZERO
    for row, alpha in zip(one.rows, one.alphas, strict=True):
        pairs = _with_bias(row[0], problem.bias, len(one.W))
        z = [_dot(pairs, column) for column in weights]
        loss, d, moves, excess = _row(problem, row, z, alpha)
        primal, dual, outside = primal + loss, dual + d, max(outside, excess)
        for k, step in moves.items():
            for feature, value in pairs:
                by_alpha[k][feature] = by_alpha[k].get(feature, ZERO) + step * value
    dual -= HALF * sum((w * w for column in by_alpha for w in column.values()), ZERO)
    return Bounds(primal, dual, outside)


def _columns(W: npt.NDArray[np.float64]) -> Columns:
    return [
        {f: Fraction(w) for f, w in enumerate(column) if w} for column in W.T.tolist()
    ]  # fmt: skip


def _with_bias(
    pairs: list[tuple[int, Fraction]], bias: float, n_weights: int
) -> list[tuple[int, Fraction]]:
    return [*pairs, (n_weights - 1, Fraction(bias))] if bias > 0 else pairs


def _dot(pairs: list[tuple[int, Fraction]], w: Mapping[int, Fraction]) -> Fraction:
    return sum((v * w[f] for f, v in pairs if f in w), ZERO)


def _row(
    problem: AnyProblem, row: Row, z: list[Fraction], alpha: dict[int, Fraction]
) -> tuple[Fraction, Fraction, dict[int, Fraction], Fraction]:
    """Return (loss, d, what is added to each column of W in rows, how far outside its bounds)."""
    _, y, weight = row
    if isinstance(problem, Problem):
        own = problem.cost_positive
        if problem.classify and y != problem.positive:
            own = problem.cost_negative
        C, a = Fraction(own * weight), alpha.get(0, ZERO)
        if C == 0:
            return ZERO, ZERO, {}, abs(a)
        if problem.loss.kernel == "svr":
            target = Fraction(y)
            if problem.classify:
                target = ONE if y == problem.positive else -ONE
            return _regression(problem, C, target, z[0], a)
        s = ONE if y == problem.positive else -ONE
        if problem.loss.kernel == "logistic":
            loss, d = C * _log_loss(s * z[0]), C * _entropy(a / C)
            return loss, d, {0: s * a}, _beyond(a, C)
        assert problem.loss.kernel == "svc", f"{problem.loss.name} is not known in fractions"
        loss, d, excess = _hinge(C, s * z[0], a, problem.loss.squared)
        return loss, d, {0: s * a}, excess
    assert isinstance(problem, MultiProblem)
    C = Fraction(float(problem.costs[int(y)]) * weight)
    if not problem.loss.joint:
        return _one_vs_rest(problem, C, Fraction(problem.cost_rest * weight), int(y), z, alpha)
    return _joint(problem, C, int(y), z, alpha)


def _hinge(
    C: Fraction, margin: Fraction, a: Fraction, squared: bool
) -> tuple[Fraction, Fraction, Fraction]:
    h = max(1 - margin, ZERO)
    if squared:
        return C * h * h, a - a * a / (4 * C), max(-a, ZERO)
    return C * h, a, _beyond(a, C)


def _regression(
    problem: Problem, C: Fraction, target: Fraction, z: Fraction, a: Fraction
) -> tuple[Fraction, Fraction, dict[int, Fraction], Fraction]:
    epsilon = Fraction(problem.epsilon)
    h = max(abs(target - z) - epsilon, ZERO)
    d = target * a - epsilon * abs(a)
    if problem.loss.squared:
        return C * h * h, d - a * a / (4 * C), {0: a}, ZERO
    return C * h, d, {0: a}, _beyond(abs(a), C)


def _one_vs_rest(
    problem: MultiProblem,
    own: Fraction,
    rest: Fraction,
    y: int,
    z: list[Fraction],
    alpha: dict[int, Fraction],
) -> tuple[Fraction, Fraction, dict[int, Fraction], Fraction]:
    loss = d = excess = ZERO
    moves = {}
    for k in range(len(z)):
        is_own = k + problem.first == y
        C, s, a = (own, ONE, alpha.get(k, ZERO)) if is_own else (rest, -ONE, alpha.get(k, ZERO))
        if C == 0:
            excess = max(excess, abs(a))
            continue
        one = _hinge(C, s * z[k], a, problem.loss.squared)
        loss, d, excess = loss + one[0], d + one[1], max(excess, one[2])
        moves[k] = s * a
    return loss, d, moves, excess


def _joint(
    problem: MultiProblem, C: Fraction, y: int, z: list[Fraction], alpha: dict[int, Fraction]
) -> tuple[Fraction, Fraction, dict[int, Fraction], Fraction]:
    slack = [max(1 - z[y] + z[c], ZERO) for c in range(len(z)) if c != y]
    total = sum(alpha.values(), ZERO)
    moves = {c: -a for c, a in alpha.items()}
    assert y not in alpha
    moves[y] = total
    excess = max([*(-a for a in alpha.values()), ZERO])
    if problem.loss.name == "crammer_singer":
        excess = max(excess, _beyond(total, C))
        return C * max([*slack, ZERO]), total, moves, excess
    excess = max([excess, *(_beyond(a, C) for a in alpha.values())])
    return C * sum(slack, ZERO), total, moves, excess


def _beyond(a: Fraction, C: Fraction) -> Fraction:
    """How far a variable lies outside 0 to C, relative to C."""
    if C == 0:
        return abs(a)
    return max(-a, a - C, ZERO) / C


def _one_class_bounds(one: Certified, problem: OneClass, weights: Columns) -> Bounds:
    N, rho = Fraction(problem.nu * problem.total), Fraction(one.rho)
    primal = HALF * sum((w * w for w in weights[0].values()), ZERO) - N * rho
    total = upper = excess = ZERO
    for (pairs, _, weight), alpha in zip(one.rows, one.alphas, strict=True):
        v, a = Fraction(weight), alpha.get(0, ZERO)
        primal += v * max(rho - _dot(pairs, weights[0]), ZERO)
        total, upper, excess = total + a, upper + v, max(excess, _beyond(a, v))
    by_alpha: dict[int, Fraction] = {}
    for (pairs, _, weight), alpha in zip(one.rows, one.alphas, strict=True):
        a, v = alpha.get(0, ZERO), Fraction(weight)
        if total >= N:
            a *= N / total if total else ONE
        elif upper > total:
            a += (N - total) / (upper - total) * (v - a)
        for f, value in pairs:
            by_alpha[f] = by_alpha.get(f, ZERO) + a * value
    dual = -HALF * sum((w * w for w in by_alpha.values()), ZERO)
    return Bounds(primal, dual, excess)


def _log_loss(m: Fraction) -> Fraction:
    """log(1 + exp(-m))."""
    return max(-m, ZERO) + _log1p_exp(-abs(m))


def _log1p_exp(x: Fraction) -> Fraction:
    """log(1 + exp(x)) for x <= 0, to 60 digits of it."""
    if x < -_FAR:
        return ZERO
    power = _DIGITS.exp(_decimal(x))
    if power < decimal.Decimal("1e-40"):
        return Fraction(power)
    return Fraction(_DIGITS.ln(_DIGITS.add(1, power)))


def _entropy(p: Fraction) -> Fraction:
    """-p log p - (1 - p) log(1 - p)."""
    return -sum((q * Fraction(_DIGITS.ln(_decimal(q))) for q in (p, 1 - p) if q > 0), ZERO)


def _decimal(x: Fraction) -> decimal.Decimal:
    return _DIGITS.divide(decimal.Decimal(x.numerator), decimal.Decimal(x.denominator))
