"""The optimization problem a solver works on: a loss with its numbers."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sbm.solver.losses import Loss

__all__ = ["Problem", "squared_norm"]

# Smaller weights come from the processor's caches; asking for them ahead costs more than it saves.
_PREFETCH_ABOVE = 1 << 24
_PREFETCH_ROWS = 3


@dataclass(frozen=True)
class Problem:
    """Loss, costs and bias.

    Attributes
    ----------
    loss : Loss
    cost_positive, cost_negative : float
        C times class weight for the rows of the positive class and for all others.
    positive : int
        Class code of the positive class.
    bias : float
        Value of the extra feature; 0 for none.
    """

    loss: Loss
    cost_positive: float
    cost_negative: float
    positive: int
    bias: float = 0.0

    def costs(self, y: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """Cost C_i of rows with class codes `y`, shape (n,), float64."""
        return np.where(y == self.positive, self.cost_positive, self.cost_negative)

    @property
    def resting_values(self) -> list[float]:
        """Values other than 0 at which alphas come to rest exactly."""
        return self.loss.resting_values([self.cost_positive, self.cost_negative])

    def ahead(self, W: npt.NDArray[np.float64]) -> int:
        """How many rows ahead their weights are worth prefetching."""
        return _PREFETCH_ROWS if W.nbytes > _PREFETCH_ABOVE else 0


def squared_norm(W: npt.NDArray[np.float64], minus: npt.NDArray[np.float64] | None = None) -> float:
    """Return |W|², or |W - minus|², in slices: no copy of W, and the same for any thread count.

    Parameters
    ----------
    W, minus : ndarray, shape (n_weights, n_outputs), float64
    """
    step = 1 << 16
    parts = []
    for k in range(0, len(W), step):
        part = W[k : k + step] if minus is None else W[k : k + step] - minus[k : k + step]
        parts.append(float(np.square(part).sum()))
    return math.fsum(parts)
