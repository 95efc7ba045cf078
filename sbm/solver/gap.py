"""The certificate: a bound on a model's distance from the optimum, computed at fixed W.

For any W and any feasible α, the gap P(W) - F(α) is a sum of nonnegative terms, one per row, plus
½|W - W(α)|². So there is no cancellation, and the gap is exact even if the running W has drifted
from its α. Each term is an upper bound within the rounding error of the decision value, and the
last one within that of W(α), which matters if costs are large compared with the objective.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense
from sbm.distributed.comm import Comm
from sbm.errors import DataError
from sbm.fields import Table, is_count, is_number
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.problem import (
    EPSILON,
    TOO_LARGE,
    AnyProblem,
    Problem,
    Spread,
    squared_norm,
)

__all__ = [
    "MOST_DRIFT", "SUPPORT", "Certificate", "Certifier", "GapWatch", "proven", "ray", "relative",
]  # fmt: skip

# A larger drift cannot be explained by rounding; see `Certificate.drift`.
MOST_DRIFT = 1e-9
_MOST = 1e300  # JSON has no infinity
# Coordinate descent leaves α exactly at its bounds, 0 and C. An interior point method does not: a
# row is counted as a support vector if α > SUPPORT C, and as free if also α < (1 - SUPPORT) C.
SUPPORT = 1e-3


def relative(gap: float, primal: float, dual: float) -> float:
    """Return a gap relative to the larger of the two bounds; 0 if both are 0.

    If the optimum is 0, this is about 1 unless it was found exactly.
    """
    scale = max(abs(primal), abs(dual))
    return gap / scale if scale > 0 else 0.0


@dataclass(frozen=True)
class Certificate:
    """Certified bounds on the objective of a model.

    Attributes
    ----------
    primal : float
        P(W), the objective of the model.
    dual : float
        F(α), but for rounding: a lower bound on the objective of any model.
    gap : float
        Upper bound of P(W) - F(α), including rounding errors of margins and of W(α);
        P(W) - P* <= gap.
    relative_gap : float
        gap / max(|primal|, |dual|); 0 if both are 0. See `relative`.
    drift : float
        |W - W(α)| / max(sqrt(2 P(W)), |W|), the rounding error of the running W. Values above
        1e-9 indicate a bug. (|W| alone would be 0 if the optimum is W = 0.)
    n_support, n_free : int or None
        Number of rows with α > 0, and of those with α inside its bounds; summed over classes for
        one-vs-rest. After an interior point method, beyond the tolerance `SUPPORT`. None if no α
        rests at 0, and if no α has an upper bound.
    most : float
        Upper bound of the gap for α = 0: P(W), including rounding errors of margins; 1e300 if these
        variables are not feasible.
    """

    primal: float
    dual: float
    gap: float
    relative_gap: float
    drift: float
    n_support: int | None = None
    n_free: int | None = None
    most: float = _MOST

    @classmethod
    def total(cls, parts: Sequence["Certificate"]) -> "Certificate":
        """Return the sum of certificates of independent problems, with the largest drift."""
        if len(parts) == 1:
            return parts[0]
        primal = math.fsum(part.primal for part in parts)
        dual = math.fsum(part.dual for part in parts)
        gap = math.fsum(part.gap for part in parts)
        return cls(
            primal, dual, gap, relative(gap, primal, dual),
            drift=max(part.drift for part in parts),
            n_support=_total([part.n_support for part in parts]),
            n_free=_total([part.n_free for part in parts]),
            most=min(math.fsum(part.most for part in parts), _MOST),
        )  # fmt: skip

    @classmethod
    def estimated(cls, gap: float, dual: float) -> "Certificate":
        """Return what a running estimate of the gap would certify."""
        return cls(dual + gap, dual, gap, relative(gap, dual + gap, dual), drift=0.0)

    @classmethod
    def of(cls, numbers: npt.NDArray[np.float64]) -> "Certificate":
        """Return the certificate with these attributes, in their order."""
        primal, dual, gap, relative_gap, drift, *counts, most = numbers.tolist()
        n_support, n_free = (None if math.isnan(n) else int(n) for n in counts)
        return cls(primal, dual, gap, relative_gap, drift, n_support, n_free, most)

    def numbers(self) -> npt.NDArray[np.float64]:
        """Return the attributes in their order, for `of`."""
        return np.array(astuple(self), np.float64)  # None becomes nan

    def or_zeros(self) -> "Certificate":
        """Return this, or the certificate of α = 0 if its gap is no larger.

        Rounding can take F(α) far below 0, which is F(0).
        """
        if self.gap < self.most:
            return self
        return replace(
            self, dual=0.0, gap=self.most, relative_gap=relative(self.most, self.primal, 0.0)
        )

    def to_dict(self) -> dict[str, float | int]:
        """Return names and values as JSON types, but `most`, which is for `or_zeros` only.

        Counts that the loss does not have are left out.
        """
        return proven(asdict(self))


def _total(counts: Sequence[int | None]) -> int | None:
    """Return the sum of counts; None if one is None."""
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None


_PROVEN = ("primal", "dual", "gap", "relative_gap", "drift", "n_support", "n_free")


def proven(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a certificate that a report has."""
    return {name: report[name] for name in _PROVEN if report.get(name) is not None}


class Certifier:
    """Accumulates the certificate block by block; W and all alphas must not change meanwhile.

    Parameters
    ----------
    problem : Problem, MultiProblem or OneClass
    W : ndarray, shape (n_weights, n_outputs), float64
    W_alpha : ndarray, like W, or None
        Overwritten with the weights W(α) of the alphas. None if W is W(α).
    beyond : float
        Tolerance of the counts, such as `SUPPORT`; 0 for alphas that rest exactly at bounds.

    Attributes
    ----------
    sums : list of ndarray
        Contribution of each block.
    arrays : list of ndarray
        Arrays that all blocks add to.
    """

    def __init__(
        self,
        problem: AnyProblem,
        W: npt.NDArray[np.float64],
        W_alpha: npt.NDArray[np.float64] | None,
        beyond: float = 0.0,
    ) -> None:
        self._problem = problem
        self._beyond, self._counts = beyond, np.zeros(2)
        self._W = W
        self.W_alpha = W if W_alpha is None else W_alpha
        self._into = np.empty((0, W.shape[1])) if W_alpha is None else W_alpha
        self._into[:] = 0.0
        self.arrays = [self._into, *problem.start_certificate(W)]
        self.sums: list[npt.NDArray[np.float64]] = []

    def add(self, rows: Rows, alpha: Alphas) -> None:
        """Add a block; over all calls, every row of the data must be added exactly once."""
        self.sums.append(self._problem.certify(rows, alpha, self._W, self._into))
        self.count(rows, alpha)

    def add_halves(self, rows: Rows, alpha: Alphas, spread: Spread) -> None:
        """Add a block as two halves at the same time; see `add`.

        Parameters
        ----------
        spread : callable
            Like the builtin `map`; calls may run in several threads.
        """
        if len(self.arrays) > 1:  # all rows add to them
            self.add(rows, alpha)
            return
        half, room = len(rows) // 2, np.zeros_like(self.W_alpha)
        tasks = [(0, half, self.W_alpha), (half, len(rows) - half, room)]

        def certify(task: tuple[int, int, npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
            first, n, W_alpha = task
            mine, theirs = rows.part(first, n), alpha.part(first, n)
            return self._problem.certify(mine, theirs, self._W, W_alpha)

        self.sums += spread(certify, tasks)
        self.W_alpha += room
        self.count(rows, alpha)

    def count(self, rows: Rows, alpha: Alphas) -> None:
        """Count support vectors of a block beyond the tolerance, if there is one."""
        if self._beyond and isinstance(alpha, Dense) and isinstance(self._problem, Problem):
            loss, cost = self._problem.loss, self._problem.costs(rows.y, rows.weights)
            free = loss.is_free(alpha.values, cost, self._beyond)
            support = free if loss.squared else abs(alpha.values) > self._beyond * cost
            self._counts += np.count_nonzero(support), np.count_nonzero(free)

    def add_up(self, comm: Comm) -> None:
        """Add the sums of all ranks, each of which has its own rows."""
        theirs = comm.share([one.tolist() for one in self.sums])
        self.sums = [np.array(one) for one in itertools.chain(*theirs)]
        for array in self.arrays:
            comm.add_up(array)
        self._problem.gather(comm)
        self._counts = comm.gather(self._counts.tolist()).sum(axis=0)

    def finish(self) -> Certificate:
        """Return the certificate; `W_alpha` then is Σ α s x, for use in further training.

        Raises
        ------
        DataError
            If a number overflows.
        """
        columns = list(zip(*self.sums, strict=True))
        if not all(math.isfinite(part) for column in columns for part in column):
            raise DataError(TOO_LARGE)
        sums = [math.fsum(column) for column in columns]
        primal, dual, gap = self._problem.bounds(sums, self._W, self.W_alpha)
        drift2 = squared_norm(self._W, self.W_alpha)
        error = (sums[3] + 4.0) * 0.5 * EPSILON * sums[5]  # of W(α), at most
        gap += error * (math.sqrt(drift2) + 0.5 * error)
        unit = self._problem.unit
        # ½|W|² is a part of the primal value, but for one class it can exceed it.
        size2 = max(2 * primal, squared_norm(self._W), 2 * unit)
        if not all(map(math.isfinite, (primal, dual, gap, drift2, size2))):
            raise DataError(TOO_LARGE)
        # With the rounding of the losses, and of a sum of squares.
        most = primal + sums[6] + self._W.size * EPSILON * size2
        loss, counts = self._problem.loss, sums[3:5]
        if self._beyond and not self._problem.listed:
            counts = self._counts.tolist()
        return Certificate(
            primal=primal,
            dual=dual,
            gap=gap,
            relative_gap=relative(gap, primal, dual),
            drift=math.sqrt(drift2 / size2) if drift2 > 0 and size2 > 0 else 0.0,
            n_support=int(counts[0]) if loss.rests else None,
            n_free=int(counts[1]) if loss.bounded else None,
            most=min(most, _MOST) if self._problem.admits_zeros else _MOST,
        )


# Of the report, and of the record of a run.
CERTIFICATE_FIELDS: Table = {
    "primal": is_number, "dual": is_number, "gap": is_number, "relative_gap": is_number,
    "drift": is_number, "n_support?": is_count, "n_free?": is_count,
}  # fmt: skip


@dataclass
class GapWatch:
    """Decides when to compute a certificate, which costs a pass.

    The gap estimate of a pass sums each row's share at its visit, so it corresponds to the middle
    of the pass. The ratio of the last certificate to its estimate corrects for that lag.

    Attributes
    ----------
    tol : float
        Relative gap to reach.
    previous : float
        Relative estimate of the last pass; the largest, before the first pass.
    ratio : float
        Ratio of the last certificate to its estimate; 0 before the first certificate.
    since : int
        Passes since the last certificate.
    misses : int
        Certificates above the tolerance.
    """

    tol: float
    previous: float = _MOST
    ratio: float = 0.0
    since: int = 1
    misses: int = 0

    @property
    def stop(self) -> float:
        """Relative gap at which the rounds over a single part end."""
        return self.tol * 0.8**self.misses

    def is_due(self, gap: float, dual: float, is_whole: bool = False) -> bool:
        """Return whether the gap may be below `tol`, given the estimate and dual of a pass.

        If one part has all rows (`is_whole`), the estimate is the gap at which its rounds ended.
        """
        if is_whole:
            return gap <= self.stop * abs(dual) * (1 + 1e-9)
        relative = min(gap / max(abs(dual), 1e-300), _MOST) if gap > 0 else 0.0
        shrink = relative / self.previous if self.previous > 0 else 1.0
        ratio = self.ratio or min(1.0, max(0.1, shrink**0.5))
        self.previous, self.since = relative, self.since + 1
        # Directly after a certificate above the tolerance, require a clear margin.
        limit = self.tol if self.since > 1 else 0.5 * self.tol
        return relative * ratio <= limit

    def learn(self, certified: float) -> None:
        """Compare a certified relative gap with the last estimate."""
        self.misses += certified > self.tol
        self.ratio = min(certified / self.previous, _MOST) if 0 < self.previous < _MOST else 0.0
        self.since = 0


def ray(dual_sum: float, W: npt.NDArray[np.float64], factor: float) -> float:
    """Return the best step length θ, at most 1, towards alphas multiplied by a factor.

    F(θα) >= θ Σ d_i(α_i) - ½ θ² |W|², as d is concave and 0 at 0. The result maximises this bound.

    Parameters
    ----------
    dual_sum : float
        Σ d_i at the current alphas.
    W : ndarray
        Weights of the current alphas.
    factor : float
    """
    size = factor * squared_norm(W)
    return min(1.0, max(0.0, dual_sum / size)) if size > 0 and factor != 1 else 1.0
