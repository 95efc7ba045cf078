"""A proximal term between the passes of block minimization.

In the problem ½ |W|² + Σ losses + ½ Σ K_j (W_j - Y_j)², a pass finds better W, and then Y moves,
extrapolated as in `sbm.solver.accelerated`; in the end W = Y, which is the optimum without the
term. With 1 + K_j = u_j², units u_j of the weights make it an ordinary problem of block
minimization: for V_j = u_j W_j and rows with values x_ij / u_j, V = θ Y' + Σ α s x / u, where
θ_j = 1 - 1 / u_j² and Y'_j = u_j Y_j. The dual variables and their bounds stay as they are, and so
do the rows' shares of the duality gap; W differs from the weights Σ α s x of the dual variables
while it is on its way.

The units are those of `sbm.solver.metric`, times a power of two if C is large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Lists
from sbm.plain import dataclass
from sbm.solver.metric import Metric
from sbm.solver.problem import AnyProblem, MultiProblem

__all__ = ["Extrapolation", "ListedTerm", "Proximal", "too_hard", "units_for"]

Floats = npt.NDArray[np.float64]

# Mean C |x|² with which a few rounds are enough, of a loss of one variable a row and of a joint
# loss; the root of C |x|² is, too, if that is more.
_EASY = {False: 300.0, True: 100.0}


def too_hard(problem: AnyProblem, square: float) -> float:
    """Return how many times C |x|² is what a few rounds are enough for, given the mean |x|²."""
    size = problem.largest_cost * square
    if problem.loss.kernel == "logistic":
        size *= 0.25  # its curvature, at most
    return size / max(_EASY[problem.loss.joint], math.sqrt(size))


def units_for(metric: Metric, problems: Sequence[AnyProblem]) -> Floats | None:
    """Return the units of all problems, shape (n_weights, 1); None if none are needed."""
    if not metric.is_needed:
        return None
    hard = max(too_hard(problem, metric.mean_square) for problem in problems)
    units = metric.units * 2.0 ** max(0, round(0.5 * math.log2(max(1.0, hard))))
    if problems[0].bias > 0.0:  # its value is not in the rows
        units[-1] = 1.0
    return units


class Extrapolation:
    """Where the centre of a proximal term goes: the accelerated proximal point method.

    Y is extrapolated from the last two W (Lin, Mairal & Harchaoui 2015), which starts again when W
    turns back (O'Donoghue & Candès 2015).

    Parameters
    ----------
    W : ndarray
        Only its shape is used.

    Attributes
    ----------
    centre, before : ndarray, like W
        Y, and W before the last steps.
    momentum : int
        Steps since the last restart; -1 before the first step.
    """

    def __init__(self, W: Floats) -> None:
        self.centre, self.before, self.momentum = np.zeros_like(W), np.zeros_like(W), -1

    def move(self, W: Floats, pull: Floats) -> None:
        """Move Y, and W with it by `pull`, θ."""
        way = W - self.before
        if float((way * (self.centre - W)).sum()) > 0.0:
            self.momentum = 0
        centre = W + self.momentum / (self.momentum + 3.0) * way
        self.momentum += 1
        self.before[:] = W
        W += pull * (centre - self.centre)
        self.centre[:] = centre


class Proximal:
    """The term of one problem.

    Parameters
    ----------
    units : ndarray, shape (n_weights, 1), float64
        u_j, powers of two.
    W : ndarray, shape (n_weights, n_outputs), float64
        Before the first pass: Σ α s x.

    Attributes
    ----------
    is_inside : bool
        Whether W is in these units, as during a pass.
    """

    def __init__(self, units: Floats, W: Floats) -> None:
        self.units, self.is_inside = units, False
        self._pull = 1.0 - 1.0 / (units * units)
        self._way = Extrapolation(W)

    def enter(self, W: Floats) -> None:
        """Begin a pass: change W to these units, and move Y."""
        if self.is_inside:  # the pass was interrupted
            return
        W *= self.units
        if self._way.momentum < 0:
            self._way.momentum = 0
            self._way.centre[:] = self._way.before[:] = W
        self._way.move(W, self._pull)
        self.is_inside = True

    def leave(self, W: Floats) -> None:
        """End a pass."""
        W /= self.units
        self.is_inside = False

    def weights_of_alphas(self, W: Floats) -> Floats:
        """Return Σ α s x, between two passes."""
        if self._way.momentum < 0:
            return W.copy()
        squares = self.units * self.units
        return W * squares - self._pull * self.units * self._way.centre

    def replace(self, W: Floats, W_alpha: Floats) -> None:
        """Set W between two passes, given Σ α s x."""
        if self._way.momentum < 0:
            W[:] = W_alpha
        else:
            W[:] = (self._pull * self._way.centre + W_alpha / self.units) / self.units

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the state as arrays."""
        way = self._way
        return {
            "prox_numbers": np.array([way.momentum, self.is_inside], np.int64),
            "prox_units": np.frexp(self.units[:, 0])[1].astype(np.int16),
            "prox_centre": way.centre, "prox_before": way.before,
        }  # fmt: skip

    @classmethod
    def restored(cls, state: Mapping[str, npt.NDArray[Any]], W: Floats) -> Proximal:
        """Return the result of `state`."""
        units = np.ldexp(0.5, state["prox_units"].astype(np.int64))[:, np.newaxis]
        made = cls(units, W)
        made._way.momentum, is_inside = state["prox_numbers"].tolist()
        made._way.centre[:], made._way.before[:] = state["prox_centre"], state["prox_before"]
        made.is_inside = bool(is_inside)
        return made


# Rounds of a step of a `ListedTerm`, and their growth from pass to pass: errors of steps add up.
_ROUNDS, _GROWTH = 20.0, 1.1


@dataclass
class ListedTerm:
    """The term ½κ|W - Y|² of a joint loss with lists of classes, for rows that stay in memory.

    As in `sbm.solver.accelerated`, W = θY + Σ α x with costs C / (1 + κ), and (1 + κ) α are the
    dual variables of the problem itself. W and Y are sums of the same rows for the same classes as
    Σ α x: so Y is kept as its coefficients, one for each listed class.

    Attributes
    ----------
    scale : float
        1 + κ, a power of two: variables are multiplied and divided without rounding.
    centre, before : ndarray, shape (n,), float64
        Coefficients of Y, and of W before the last step.
    momentum : int
        Steps since the last restart.
    rounds : float
        Most rounds of a step.
    primal : float
        The last certified value, infinity at the start. The momentum ends where it rises.
    """

    scale: float
    centre: Floats
    before: Floats
    momentum: int = 0
    rounds: float = _ROUNDS
    primal: float = math.inf

    @classmethod
    def of(cls, problem: MultiProblem, squares: Floats, lists: Lists) -> ListedTerm | None:
        """Return the term for rows with these squared norms, or None if none is needed."""
        hard = too_hard(problem, float(squares.mean()) if len(squares) else 0.0)
        if not 1.0 < hard < math.inf:
            return None
        zeros = np.zeros((2, len(lists.values)))
        return cls(2.0 ** math.ceil(math.log2(hard)), *zeros)

    @property
    def pull(self) -> float:
        """θ."""
        return 1.0 - 1.0 / self.scale

    def weights(self, alpha: Floats) -> Floats:
        """Return the coefficients of W."""
        return self.pull * self.centre + alpha

    def uses(self, alpha: Floats) -> npt.NDArray[np.bool_]:
        """Return which listed classes have a coefficient."""
        used: npt.NDArray[np.bool_] = (alpha != 0.0) | (self.centre != 0.0) | (self.before != 0.0)
        return used

    def begin_pass(self, primal: float) -> None:
        """End the momentum if the certified value has risen, and allow more rounds."""
        if primal > self.primal:
            self.momentum = 0
        self.primal = primal
        self.rounds *= _GROWTH

    def move(self, alpha: Floats) -> Floats:
        """Extrapolate Y; return the coefficients that W changes by."""
        now = self.weights(alpha)
        centre = now + self.momentum / (self.momentum + 3.0) * (now - self.before)
        change: Floats = self.pull * (centre - self.centre)
        self.centre, self.before, self.momentum = centre, now, self.momentum + 1
        return change

    def follow(self, old: Lists, new: Lists) -> None:
        """Keep the coefficients in the places of new lists."""
        n = 1 + max(int(one.outputs.max(initial=0)) for one in (old, new))
        keys = [np.repeat(np.arange(len(one)), one.counts) * n + one.outputs for one in (old, new)]
        stays = self.uses(np.zeros(len(self.centre)))
        places = np.searchsorted(keys[1], keys[0][stays])
        for name in ("centre", "before"):
            values = np.zeros(len(keys[1]))
            values[places] = getattr(self, name)[stays]
            setattr(self, name, values)
