"""The optimization problem a solver works on: a loss with its numbers."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sbm.solver.losses import Loss

__all__ = ["Problem"]

# Weights that fit the second-level cache need no prefetching.
_PREFETCH_ABOVE = 1 << 20
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
