"""The losses: what each one means, in one table.

A loss names the compiled kernels of its dual problem and the numbers those kernels need. To add
one, add a row here and, for a new dual, a file under ``kernels/``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbm.errors import SettingsError
from sbm.settings import nearest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["LOSSES", "Loss", "find_loss"]


@dataclass(frozen=True)
class Loss:
    """One row of the table.

    Attributes
    ----------
    name : str
        As scikit-learn calls it.
    formula : str
        The loss of a row, for help and reports.
    task : str
        ``classification``.
    kernel : str or None
        Module under ``sbm.solver.kernels`` for two classes, with ``solve``, ``screen`` and
        ``certify``; None where two classes are treated as any other number of them.
    kind : int
        What ``sbm.solver.kernels.multiclass`` calls the problem of many classes.
    squared : bool
        Selects the constants U and D of the dual.
    liblinear : int or None
        LIBLINEAR's ``-s`` of the same problem.
    """

    name: str
    formula: str
    task: str
    kernel: str | None
    kind: int
    squared: bool
    liblinear: int | None

    @property
    def joint(self) -> bool:
        """Whether all classes share one problem: a row's loss depends on all its scores."""
        return self.kernel is None

    def resting_values(self, costs: list[float]) -> list[float]:
        """Values other than 0 at which an alpha comes to rest exactly, given the costs in use."""
        return [] if self.squared else sorted({c for c in costs if c > 0})[:_MOST_RESTING]

    def is_free(
        self, alpha: npt.NDArray[np.float64], cost: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        """Whether an alpha, shape (n,), lies strictly inside its bounds."""
        free: npt.NDArray[np.bool_] = alpha > 0
        return free if self.squared else free & (alpha < cost)


_MOST_RESTING = 200  # a byte tells them apart

# What kernels/multiclass.py calls its problems.
_ONE_VS_REST, _CRAMMER_SINGER, _WESTON_WATKINS = range(3)

LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss(
            "hinge", "max(0, 1 - m)", "classification",
            "svc", _ONE_VS_REST, squared=False, liblinear=3,
        ),
        Loss(
            "squared_hinge", "max(0, 1 - m)²", "classification",
            "svc", _ONE_VS_REST, squared=True, liblinear=1,
        ),
        Loss(
            "crammer_singer", "max(0, max_c 1 - z_y + z_c)", "classification",
            None, _CRAMMER_SINGER, squared=False, liblinear=4,
        ),
        Loss(
            "weston_watkins", "Σ_c max(0, 1 - z_y + z_c)", "classification",
            None, _WESTON_WATKINS, squared=False, liblinear=None,
        ),
    )
}  # fmt: skip


def find_loss(name: str) -> Loss:
    """Return the loss of a name.

    Raises
    ------
    SettingsError
        There is none; the nearest known name is suggested.
    """
    if name not in LOSSES:
        known = ", ".join(LOSSES)
        raise SettingsError(f"unknown loss {name!r}, known are {known}{nearest(name, LOSSES)}")
    return LOSSES[name]
