"""The online learners that a stream of rows can be compared with: what each does, in one table.

They see each row once, in the order in which it comes, and keep weights but no rows. To add one,
add a row here and a kernel of its name to ``kernels/online.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.errors import DataError, SettingsError
from sbm.settings import format_number
from sbm.solver.onepass import GrowingWeights, two_codes
from sbm.solver.problem import TOO_LARGE, squared_norm
from sbm.solver.step import Totals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sbm.rows import Rows

__all__ = ["ONLINE", "Online", "OnlineLearner", "OnlinePass"]

# What is multiplied with such numbers stays in the range of a float.
LEAST, MOST = 1e-40, 1e40


@dataclass(frozen=True)
class OnlineLearner:
    """One row of the table.

    Attributes
    ----------
    name : str
        Of the kernel in ``sbm.solver.kernels.online``, too.
    source : str
        The paper, and where in it.
    formula : str
        What a row of margin m does, for help and reports. Of two classes m = s w·x and u = s x; of
        many, u is x at the weights of the row's class and -x at those of the highest-scoring wrong
        one, and m = W·u.
    n_arrays : int
        Arrays like W that it keeps, W first; all are zeros at the start.
    uses_C : bool
        Whether C is a number of it.
    """

    name: str
    source: str
    formula: str
    n_arrays: int
    uses_C: bool  # noqa: N815  the papers' name


class Online:
    """One pass of an online learner over rows in the order in which they come.

    Parameters
    ----------
    learner : OnlineLearner
    C : float
        Of passive_aggressive the longest step, of arow 1 / (2r).
    decay : float
        Of pegasos, λ.
    bias : float
        Value of the extra feature; 0 for none.

    Attributes
    ----------
    counters : ndarray, shape (4,), float64
        What it knows beside its arrays, zeros at the start: of pegasos t and |W|².

    Raises
    ------
    SettingsError
        A number that the learner uses is not above 0.
    """

    def __init__(self, learner: OnlineLearner, *, C: float, decay: float, bias: float) -> None:
        self.learner, self.C, self.decay, self.bias = learner, float(C), float(decay), float(bias)
        self.counters = np.zeros(4)
        for name, used in (("C", learner.uses_C), ("decay", learner.name == "pegasos")):
            value = getattr(self, name)
            if used and not 0 < value < np.inf:
                raise SettingsError(
                    f"{name} of {learner.name} is {format_number(value)}; "
                    "it must be a finite number above 0"
                )
            if used and not LEAST <= value <= MOST:
                raise SettingsError(
                    f"{name} of {learner.name} is {format_number(value)}; it must lie between "
                    f"{LEAST:g} and {MOST:g}, scale the values of the rows instead"
                )

    def learn(
        self, rows: Rows, arrays: Sequence[npt.NDArray[np.float64]], positive: int
    ) -> tuple[int, int]:
        """Learn from rows; afterwards W, the first array, is the one to predict with.

        Parameters
        ----------
        rows : Rows
            Classified, without weights.
        arrays : sequence of ndarray, shape (n_weights, n_outputs), float64
            Changed in place. With a bias the last row of each is that of the extra feature. Rows of
            zeros for new features may be put in front of it between calls.
        positive : int
            Where n_outputs is 1, the class code of the rows with s = +1; all others have s = -1.

        Returns
        -------
        visits, updates : int
            Rows that were seen; those of them that moved W (pegasos: besides shrinking it).
        """
        assert len(arrays) == self.learner.n_arrays
        assert rows.weights is None
        kernel = getattr(load("sbm.solver.kernels.online"), self.learner.name)
        updates = kernel(
            rows.starts, rows.lengths, rows.y, rows.indices, rows.values, *arrays, positive,
            self.bias, *self._numbers, np.empty(arrays[0].shape[1]),
        )  # fmt: skip
        return len(rows), updates

    @property
    def _numbers(self) -> tuple[Any, ...]:
        """What the kernel asks for beside the bias."""
        if self.learner.name == "pegasos":
            return (self.decay, self.counters)
        return (self.C,) if self.learner.uses_C else ()


class OnlinePass:
    """Weights of an online learner, with the methods of `sbm.solver.onepass.OnePass`.

    Parameters
    ----------
    learner : OnlineLearner
    C, decay, bias : float
        See `Online`.
    positive : int
        Class code of the rows with s = +1, of two classes.
    n_outputs : int
        1 for two classes, else their number.
    features : int
        Room.
    """

    dual = None
    n_cached = 0

    def __init__(
        self,
        learner: OnlineLearner,
        *,
        C: float,
        decay: float,
        bias: float,
        positive: int,
        n_outputs: int,
        features: int,
    ) -> None:
        self._online = Online(learner, C=C, decay=decay, bias=bias)
        self._positive, self._n_outputs = positive, n_outputs
        self.n_rows = 0
        self._arrays = [
            GrowingWeights(features, n_outputs, bias > 0) for _ in range(learner.n_arrays)
        ]

    @property
    def weights(self) -> list[npt.NDArray[np.float64]]:
        """W alone, shape (n_features + (bias > 0), n_outputs)."""
        return [self._arrays[0].values]

    def grow(self, n_features: int) -> None:
        """Give weights to features that are new."""
        for array in self._arrays:
            array.grow(n_features)

    def learn(self, rows: Rows) -> Totals:
        """Learn from rows in their order.

        Raises
        ------
        DataError
            Weights have grown beyond the range of a float.
        """
        self.n_rows += len(rows)
        arrays = [array.values for array in self._arrays]
        visits, updates = self._online.learn(rows, arrays, self._positive)
        if not all(math.isfinite(squared_norm(array)) for array in arrays):
            raise DataError(TOO_LARGE)
        return Totals(visits=visits, updates=updates, rounds=1)

    def polish(self, rounds: int) -> Totals:
        """Do nothing: no rows are kept."""
        return Totals()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All there is to go on from, as arrays."""
        arrays: dict[str, npt.NDArray[Any]] = {"counters": self._online.counters}
        return arrays | {f"array-{k}": array.values for k, array in enumerate(self._arrays)}

    def describe(self) -> dict[str, Any]:
        """What `restore` must know beside the arrays; as JSON holds it."""
        return {"rows": self.n_rows, "outputs": self._n_outputs, "positive": self._positive}

    def restore(self, state: Mapping[str, npt.NDArray[Any]], before: Mapping[str, Any]) -> None:
        """Take over a state, perhaps one of fewer classes."""
        self.n_rows = int(before["rows"])
        self._online.counters[:] = state["counters"]
        positive = int(before["positive"])
        for k, array in enumerate(self._arrays):
            old = state[f"array-{k}"]
            values = array.grow(len(old) - (self._online.bias > 0))
            is_weights = k == 0  # the others have no sign
            if before["outputs"] == self._n_outputs > 1:
                values[:] = old
            elif before["outputs"] > 1:
                values[:, : old.shape[1]] = old
            elif self._n_outputs == 1:
                swapped = is_weights and (positive == 0) != (self._positive == 0)
                values[:] = -old if swapped else old
            else:
                self._divide(values, old[:, 0], positive, is_weights)

    def _divide(
        self,
        values: npt.NDArray[np.float64],
        old: npt.NDArray[np.float64],
        positive: int,
        is_weights: bool,
    ) -> None:
        """Give both of two classes, codes 0 and 1, a column: the difference stays what it was."""
        own, other = two_codes(positive)
        values[:, own] = 0.5 * old if is_weights else old
        values[:, other] = -0.5 * old if is_weights else old
        if is_weights and self._online.learner.name == "pegasos":
            self._online.counters[1] *= 0.5  # |W|²


ONLINE: dict[str, OnlineLearner] = {
    learner.name: learner
    for learner in (
        OnlineLearner(
            "perceptron",
            "Rosenblatt 1958; many classes: Crammer & Singer 2003, max-score update",
            "m ≤ 0: W += u",
            n_arrays=1, uses_C=False,
        ),
        OnlineLearner(
            "passive_aggressive",
            "Crammer, Dekel, Keshet, Shalev-Shwartz & Singer 2006, PA-I",
            "m < 1: W += min(C, (1 - m) / |u|²) u",
            n_arrays=1, uses_C=True,
        ),
        OnlineLearner(
            "arow",
            "Crammer, Kulesza & Dredze 2009, figure 1, diagonal Σ",
            "m < 1: W += (1 - m) / (u·Σu + r) Σu, 1/Σ += u²/r, r = 1/(2C)",
            n_arrays=2, uses_C=True,
        ),
        OnlineLearner(
            "pegasos",
            "Shalev-Shwartz, Singer, Srebro & Cotter 2011, figure 1, with the projection",
            "W *= 1 - 1/t, m < 1: W += u / (λt), then |W|² ≤ 1/λ by scaling",
            n_arrays=1, uses_C=False,
        ),
    )
}  # fmt: skip
