"""The losses: what each one is called, what it means and what solves it, in one table.

A loss names the compiled kernels of its dual problem and the numbers those kernels need. Settings
and command line take its name from here, and help what it minimises. To add one, add a row and, for
a new dual, a file in ``solver/kernels/``; CONTRIBUTING.md has the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

__all__ = ["LOSSES", "MOST_RESTING", "Loss"]


@dataclass(frozen=True)
class Loss:
    """One row of the table.

    Attributes
    ----------
    name : str
        As scikit-learn calls it.
    problem : str
        What is minimised over w, for help.
    tasks : tuple of str
        What labels can be: ``classification``, ``regression``; the first one is the default. There
        are none where labels do not matter.
    kernel : str or None
        Module under ``sbm.solver.kernels`` for one variable a row, with ``solve``, ``certify`` and,
        of losses whose variables rest, ``screen``; None where two classes are treated as any other
        number of them.
    kind : int or None
        What ``sbm.solver.kernels.multiclass`` calls the problem of many classes; None where they
        are one problem of two classes each.
    of_margin : callable or None
        The loss of margins, an array of any shape, C left out; None where it is not one of margins.
    squared : bool
        Selects the constants U and D of the dual.
    rests : bool
        Whether variables come to rest at bounds: then rows can be left out and spills are small.
    liblinear : tuple of int
        LIBLINEAR's ``-s`` of the same problem.
    """

    name: str
    problem: str
    tasks: tuple[str, ...]
    kernel: str | None
    kind: int | None
    of_margin: Callable[[Floats], Floats] | None
    squared: bool
    rests: bool
    liblinear: tuple[int, ...]

    @property
    def joint(self) -> bool:
        """Whether all classes share one problem: a row's loss depends on all its scores."""
        return self.kernel is None

    @property
    def signed(self) -> bool:
        """Whether variables of a row of two classes, or with a target, may be negative."""
        return self.kernel == "svr"

    def resting_values(self, costs: list[float]) -> list[float]:
        """Values other than 0 at which an alpha comes to rest exactly, given the costs in use."""
        if self.squared or not self.rests:
            return []
        values = sorted({c for c in costs if c > 0})
        if self.signed:
            values = [x for c in values for x in (c, -c)]
        return values[:MOST_RESTING]

    def is_free(self, alpha: Floats, cost: Floats) -> npt.NDArray[np.bool_]:
        """Whether an alpha, shape (n,), lies strictly inside its bounds."""
        size = abs(alpha)
        free: npt.NDArray[np.bool_] = size > 0
        return free if self.squared else free & (size < cost)


MOST_RESTING = 200  # a byte tells them apart

# What kernels/multiclass.py calls its problems.
_ONE_VS_REST, _CRAMMER_SINGER, _WESTON_WATKINS = range(3)
_CLASSES, _TARGETS = ("classification",), ("regression",)


def _hinge(margin: Floats) -> Floats:
    return (1.0 - margin).clip(0.0)


def _squared_hinge(margin: Floats) -> Floats:
    return (1.0 - margin).clip(0.0) ** 2


def _log_loss(margin: Floats) -> Floats:
    import numpy as np

    losses: Floats = np.logaddexp(0.0, -margin)
    return losses


def _squared_error(margin: Floats) -> Floats:
    """Of targets ±1: (s - z)² = (1 - s z)², as s² = 1."""
    return (1.0 - margin) ** 2


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss(
            "hinge", "½|w|² + C Σ max(0, 1 - y w·x)", _CLASSES,
            "svc", _ONE_VS_REST, _hinge, squared=False, rests=True, liblinear=(3,),
        ),
        Loss(
            "squared_hinge", "½|w|² + C Σ max(0, 1 - y w·x)²", _CLASSES,
            "svc", _ONE_VS_REST, _squared_hinge, squared=True, rests=True, liblinear=(1, 2),
        ),
        Loss(
            "log_loss", "½|w|² + C Σ log(1 + exp(-y w·x))", _CLASSES,
            "logistic", None, _log_loss, squared=False, rests=False, liblinear=(0, 7),
        ),
        Loss(
            "crammer_singer", "½ Σ|w_c|² + C Σ max(0, max_c 1 - (w_y - w_c)·x)", _CLASSES,
            None, _CRAMMER_SINGER, None, squared=False, rests=True, liblinear=(4,),
        ),
        Loss(
            "weston_watkins", "½ Σ|w_c|² + C Σ Σ_c max(0, 1 - (w_y - w_c)·x)", _CLASSES,
            None, _WESTON_WATKINS, None, squared=False, rests=True, liblinear=(),
        ),
        Loss(
            "epsilon_insensitive", "½|w|² + C Σ max(0, |y - w·x| - ε)", _TARGETS,
            "svr", None, None, squared=False, rests=True, liblinear=(13,),
        ),
        Loss(
            "squared_epsilon_insensitive", "½|w|² + C Σ max(0, |y - w·x| - ε)²", _TARGETS,
            "svr", None, None, squared=True, rests=True, liblinear=(11, 12),
        ),
        Loss(
            "squared_error", "½|w|² + C Σ (y - w·x)²", _TARGETS + _CLASSES,
            "svr", None, _squared_error, squared=True, rests=False, liblinear=(),
        ),
        Loss(
            "one_class", "½|w|² - ν l ρ + Σ max(0, ρ - w·x)", (),
            "one_class", None, None, squared=False, rests=True, liblinear=(21,),
        ),
    )
}  # fmt: skip
