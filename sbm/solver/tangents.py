"""The method of parallel tangents: rounds of coordinate descent with searches along lines.

A round of coordinate descent from x_k ends at y. The next point x_{k+1} is the best one on the
line through x_{k-1} and y, and the next round begins there. So successive points do not undo each
other's steps, as those of coordinate descent do if C is large. All of it happens within a step, and
nothing is kept for the next one.

Source: Shah, Buehler & Kempthorne 1964.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ParallelTangents"]

Array = npt.NDArray[np.float64]

# Rounds of a step before the first point. Earlier, so many variables come to their bounds that most
# searches fail.
FIRST = 8


class ParallelTangents:
    """The last two points between which searches go.

    Parameters
    ----------
    alpha : ndarray, shape (n,), float64
        Variables of the rows that are visited.
    w : ndarray, shape (n_weights,), float64
        Their weights, the sum of those of all rows.
    """

    def __init__(self, alpha: Array, w: Array) -> None:
        self._point = alpha, w
        self._before = alpha.copy(), w.copy()
        self._last = alpha.copy(), w.copy()
        self._least = len(alpha) + len(w)  # nonzeros whose visits take longer than a search
        self._visited, self._wait = 0.0, 1

    def end_round(self, nonzeros: float, search: Callable[..., int], arguments: Any) -> float:
        """Search after a round, if enough was visited since; return the rise of Σ d_i.

        After a search that failed, twice as much as before must be.

        Parameters
        ----------
        nonzeros : float
            How many were visited in the round.
        search : Kernel
            See `sbm.solver.kernels.tangents`.
        arguments : tuple
            The first arguments of `search`.
        """
        self._visited += nonzeros
        if self._visited < self._wait * self._least:
            return 0.0
        self._visited = 0.0
        rise = np.zeros(1)
        if search(*arguments, *self._before, rise):
            self._before, self._last = self._last, self._before
            self._wait = 1
        else:  # begin again from here
            self._keep(self._before)
            self._wait = 2 * self._wait
        self._keep(self._last)
        return float(rise[0])

    def _keep(self, copy: tuple[Array, Array]) -> None:
        for into, values in zip(copy, self._point, strict=True):
            np.copyto(into, values)
