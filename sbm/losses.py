"""The losses: name, formula and solver of each, in one table.

A loss names the compiled kernels of its dual problem and the numbers they need. Settings, command
line and help take their names and formulas from here. To add a loss, add a row and, for a new
dual, a file in ``solver/kernels/``; CONTRIBUTING.md has the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbm.plain import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """One row of the table."""

    name: str  # the name, as in scikit-learn
    problem: str  # the objective minimised over w, for help
    # possible tasks, ``classification`` or ``regression``, the default first. Empty if the loss
    # ignores labels.
    tasks: tuple[str, ...]
    # module under ``sbm.solver.kernels`` for one variable per row, with ``solve``, ``certify`` and,
    # if variables rest, ``screen``. None if two classes are solved like any other number.
    kernel: str | None
    # number of the multiclass problem in ``sbm.solver.kernels.multiclass``; None if each class is a
    # separate binary problem
    kind: int | None
    # loss of an array of margins, without C; None if it is not a function of margins
    of_margin: Callable[[Floats], Floats] | None
    squared: bool  # selects the constants U and D of the dual
    rests: bool  # whether variables rest at bounds. Then rows can be skipped and spills are small.
    liblinear: tuple[int, ...]  # LIBLINEAR's ``-s`` for the same problem

    @property
    def joint(self) -> bool:
        """Whether all classes share one problem: the loss of a row depends on all its scores."""
        return self.kernel is None

    @property
    def has_few(self) -> bool:
        """Whether few variables of a row are not 0: those of classes with the largest loss."""
        return self.kind == _CRAMMER_SINGER

    @property
    def signed(self) -> bool:
        """Whether variables may be negative, with two classes or targets."""
        return self.kernel == "svr"

    @property
    def bounded(self) -> bool:
        """Whether variables rest at an upper bound, too, so that some are free."""
        return self.rests and not self.squared

    def resting_values(self, costs: list[float]) -> list[float]:
        """Return the values other than 0 at which alphas rest exactly, given the costs."""
        if self.squared or not self.rests:
            return []
        values = sorted({c for c in costs if c > 0})
        if self.signed:
            values = [x for c in values for x in (c, -c)]
        return values[:MOST_RESTING]

    def is_free(self, alpha: Floats, cost: Floats, within: float = 0.0) -> npt.NDArray[np.bool_]:
        """Return whether each alpha, shape (n,), is inside its bounds, by more than `within` C."""
        size = abs(alpha)
        free: npt.NDArray[np.bool_] = size > within * cost
        return free if self.squared else free & (size < (1.0 - within) * cost)


MOST_RESTING = 200  # their codes must fit in a byte

# Numbers of the problems in kernels/multiclass.py.
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
    """Return the squared error for targets s = ±1: (s - z)² = (1 - s z)², as s² = 1."""
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
            "crammer_singer", "½ Σ|w_c|² + C Σ max(0, max_c≠y 1 - (w_y-w_c)·x)", _CLASSES,
            None, _CRAMMER_SINGER, None, squared=False, rests=True, liblinear=(4,),
        ),
        Loss(
            "weston_watkins", "½ Σ|w_c|² + C Σ Σ_c≠y max(0, 1 - (w_y-w_c)·x)", _CLASSES,
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
