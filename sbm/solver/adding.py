"""Adding up what several solvers did alone, each from the same weights (CoCoA+, Ma et al. 2015).

Solver p leaves its rows with alphas that are δ_p further, whose weights are ΔW_p, and has itself
looked at W + σ'ΔW_p. The sum of all steps, ΔW = Σ ΔW_p, raises F by at least ::

    η num - ½ η² |ΔW|²      num = Σ_p Σ_i (d_i(α_i + δ_i) - d_i(α_i)) - <W, ΔW>

along the way, as every d_i is concave; so the best share of the way is η = num / |ΔW|², at most 1,
for every loss. With σ' equal to the number of solvers η is 1 (|ΔW|² is at most that many times
Σ |ΔW_p|²); a smaller σ' lets each go further, and η mends what was too far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Adding", "inner"]

Weights = npt.NDArray[np.float64]

# Sums that σ' is chosen by, and how much more than they have shown to do.
_REMEMBERED, _SPARE = 5, 1.05


@dataclass
class Adding:
    """How far each solver goes, and how far all of them together.

    Attributes
    ----------
    rule : str or float
        ``safe``: σ' is n; ``adaptive``: as the last sums have shown to do; or σ' itself.
    n : int
        How many solvers there are.
    sigma : float
        σ' until the next sum, from 1 to n.
    overlaps : list of float
        |ΔW|² / Σ |ΔW_p|² of the last sums: 1 where solvers share no feature, n where all of them
        want the same.
    """

    rule: str | float
    n: int
    sigma: float = 1.0
    overlaps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sigma = float(self.n) if isinstance(self.rule, str) else min(self.rule, float(self.n))

    def share(self, gain: float, cross: float, size: float) -> float:
        """Return η.

        Parameters
        ----------
        gain : float
            Rise of Σ d_i, of all solvers together.
        cross : float
            <W, ΔW>.
        size : float
            |ΔW|².
        """
        if size == 0.0 or self.sigma == self.n:
            return 1.0
        return min(1.0, max(0.0, (gain - cross) / size))

    def learn(self, size: float, sizes: Sequence[float]) -> None:
        """Choose the next σ', given |ΔW|² and each |ΔW_p|²."""
        if self.rule != "adaptive" or sum(sizes) == 0.0:
            return
        self.overlaps = [*self.overlaps, size / sum(sizes)][-_REMEMBERED:]
        self.sigma = min(float(self.n), max(1.0, _SPARE * max(self.overlaps)))

    def be_safe(self) -> None:
        """Let the next sum be one that needs no share."""
        self.sigma = float(self.n)

    def record(self) -> dict[str, Any]:
        """What changes, as JSON; `restore` undoes it."""
        return {"sigma": self.sigma, "overlaps": self.overlaps}

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what `record` said."""
        self.sigma, self.overlaps = float(record["sigma"]), list(map(float, record["overlaps"]))


def inner(W: Weights, V: Weights) -> float:
    """Return <W, V>, in slices: no copy of W, and the same for any thread count."""
    flat, other, step = W.reshape(-1), V.reshape(-1), 1 << 16
    return float(
        sum(
            float(np.multiply(flat[k : k + step], other[k : k + step]).sum())
            for k in range(0, len(flat), step)
        )
    )
