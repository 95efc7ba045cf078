"""The certificate: how far a model can be from the optimum, measured at fixed W.

For any W and any feasible α the gap P(W) - F(α) is a sum of terms that are never negative, one a
row, plus ½|W - W(α)|²: no cancellation, and exact even if the running W has drifted from its α.
The terms are those of the worst decision values within rounding: where costs are large against the
objective, the last bits of a margin are what counts.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas
from sbm.errors import DataError
from sbm.rows import Rows
from sbm.solver.problem import TOO_LARGE, AnyProblem, squared_norm

__all__ = ["MOST_DRIFT", "Certificate", "Certifier", "GapWatch", "ray"]

# Above this the weights are not those of their alphas, rounding apart; see `Certificate.drift`.
MOST_DRIFT = 1e-9


@dataclass(frozen=True)
class Certificate:
    """What is proven of a model.

    Attributes
    ----------
    primal : float
        P(W), the objective of the model that is shipped.
    dual : float
        F(α), a lower bound of every model's objective.
    gap : float
        P(W) - F(α), so P(W) - P* <= gap; as large as it can be within the rounding of margins.
    relative_gap : float
        gap / max(|primal|, |dual|); 0 where both are 0. Of one class, whose optimum can be 0, the
        divisor is at least the problem's unit.
    drift : float
        |W - W(α)| by sqrt(2 P(W)) or |W|, whichever is larger: rounding of the running W; above
        1e-9 something is wrong. (|W| alone would be 0 where the optimum is W = 0.)
    n_support, n_free : int
        Rows with α > 0, and those of them inside their bounds; of one-vs-rest summed over classes.
    """

    primal: float
    dual: float
    gap: float
    relative_gap: float
    drift: float
    n_support: int
    n_free: int

    @classmethod
    def total(cls, parts: Sequence["Certificate"]) -> "Certificate":
        """Return that of several problems that share nothing: all of it adds up but the drift."""
        if len(parts) == 1:
            return parts[0]
        primal = math.fsum(part.primal for part in parts)
        dual = math.fsum(part.dual for part in parts)
        gap = math.fsum(part.gap for part in parts)
        scale = max(abs(primal), abs(dual))
        return cls(
            primal, dual, gap, gap / scale if scale > 0 else 0.0,
            drift=max(part.drift for part in parts),
            n_support=sum(part.n_support for part in parts),
            n_free=sum(part.n_free for part in parts),
        )  # fmt: skip

    def to_dict(self) -> dict[str, float | int]:
        """Plain names and numbers."""
        return asdict(self)


class Certifier:
    """Accumulates the certificate block by block; W and all alphas must stay as they are meanwhile.

    Parameters
    ----------
    problem : Problem, MultiProblem or OneClass
    W : ndarray, shape (n_weights, n_outputs), float64
    W_alpha : ndarray, like W
        Overwritten with the weights that belong to the alphas.

    Attributes
    ----------
    sums : list of ndarray
        What each block contributes.
    arrays : list of ndarray
        What all blocks add to. Where several hold blocks, every one of them gets the sums of all
        and these arrays added up, before it finishes.
    """

    def __init__(
        self, problem: AnyProblem, W: npt.NDArray[np.float64], W_alpha: npt.NDArray[np.float64]
    ) -> None:
        self._problem = problem
        self._W = W
        self.W_alpha = W_alpha
        W_alpha[:] = 0.0
        self.arrays = [W_alpha, *problem.start_certificate(W)]
        self.sums: list[npt.NDArray[np.float64]] = []

    def add(self, rows: Rows, alpha: Alphas) -> None:
        """Add a block, every row of the data exactly once over all calls."""
        self.sums.append(self._problem.certify(rows, alpha, self._W, self.W_alpha))

    def finish(self) -> Certificate:
        """Return the certificate; `W_alpha` then holds Σ α s x, to go on training with.

        Raises
        ------
        DataError
            A number is beyond the range of a float.
        """
        columns = list(zip(*self.sums, strict=True))
        if not all(math.isfinite(part) for column in columns for part in column):
            raise DataError(TOO_LARGE)
        sums = [math.fsum(column) for column in columns]
        primal, dual, gap = self._problem.bounds(sums, self._W, self.W_alpha)
        drift2 = squared_norm(self._W, self.W_alpha)
        unit = self._problem.unit
        scale = max(abs(primal), abs(dual), unit)
        # ½|W|² is a part of the primal value, but for one class it is not below it.
        size2 = max(2 * primal, squared_norm(self._W), 2 * unit)
        if not all(map(math.isfinite, (primal, dual, gap, drift2, scale, size2))):
            raise DataError(TOO_LARGE)
        return Certificate(
            primal=primal,
            dual=dual,
            gap=gap,
            relative_gap=gap / scale if scale > 0 else 0.0,
            drift=math.sqrt(drift2 / size2) if drift2 > 0 and size2 > 0 else 0.0,
            n_support=int(sums[3]),
            n_free=int(sums[4]),
        )


@dataclass
class GapWatch:
    """Decides when a certificate is worth its pass.

    The gap estimate of a pass sums each row's share at its visit, so it stands for the middle of
    the pass and lags behind. The ratio of the last certificate to its estimate corrects for that.

    Attributes
    ----------
    tol : float
        Relative gap to reach.
    previous : float
        Relative estimate of the last pass.
    ratio : float
        Of the last certificate to its estimate; 0 before there was one.
    since : int
        Passes since the last certificate.
    """

    tol: float
    previous: float = float("inf")
    ratio: float = 0.0
    since: int = 1

    def is_due(self, gap: float, dual: float) -> bool:
        """Whether the gap may be below the tolerance, given a pass's estimate and dual value."""
        relative = min(gap / max(abs(dual), 1e-300), 1e300) if gap > 0 else 0.0
        shrink = relative / self.previous if self.previous > 0 else 1.0
        ratio = self.ratio or min(1.0, max(0.1, shrink**0.5))
        self.previous, self.since = relative, self.since + 1
        # Right behind a certificate that fell short, only when there is no doubt.
        limit = self.tol if self.since > 1 else 0.5 * self.tol
        return relative * ratio <= limit

    def learn(self, certified: float) -> None:
        """Note what the certificate said of the last estimate."""
        self.ratio = min(certified / self.previous, 1e300) if self.previous > 0 else 0.0
        self.since = 0


def ray(dual_sum: float, W: npt.NDArray[np.float64], factor: float) -> float:
    """Return the best share of the way to alphas that are multiplied by a factor.

    F(θα) >= θ Σ d_i(α_i) - ½ θ² |W|², as d is concave and 0 at 0; this is largest at the share.

    Parameters
    ----------
    dual_sum : float
        Σ d_i at the alphas as they are.
    W : ndarray
        Weights that belong to them.
    factor : float
    """
    size = factor * squared_norm(W)
    return min(1.0, max(0.0, dual_sum / size)) if size > 0 and factor != 1 else 1.0
