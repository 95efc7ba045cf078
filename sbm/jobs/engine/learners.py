"""Learners: models in training, the rows that each may see, and who is shown the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.rows import Rows
from sbm.solver.problem import decide
from sbm.solver.step import Solver

__all__ = ["Folds", "Group", "HeldOut", "Judge", "Learner", "set_active"]

JUDGED = 1 << 16  # decision values that are judged at a time


@dataclass(frozen=True)
class Folds:
    """A division of rows by their content, so that equal rows are in one fold.

    Attributes
    ----------
    n : int
        From 2 to 255.
    seed : int
    """

    n: int
    seed: int

    def assign(self, block: int, first: int, rows: Rows, out: npt.NDArray[np.uint8]) -> None:
        """Write the fold of each row, shape (n_rows,).

        Parameters
        ----------
        block, first : int
            Where the rows are; rows without a nonzero are divided by that.
        rows : Rows
        out : ndarray, shape (n_rows,), uint8
        """
        bits = None
        if rows.values is not None:
            bits = rows.values.view(f"uint{8 * rows.values.itemsize}")
        load("sbm.solver.kernels.folds").assign(
            rows.starts, rows.lengths, rows.indices, bits, self.n, self.seed, block, first, out
        )


@dataclass(frozen=True)
class HeldOut:
    """Which rows learners do without.

    Attributes
    ----------
    folds : Folds
    by_learner : sequence of int or None
        The fold that each learner, by number, never learns from.
    """

    folds: Folds
    by_learner: Sequence[int | None]


class Judge(Protocol):
    """Is shown decision values of rows that a model never learns from."""

    def add(self, y: npt.NDArray[Any], scores: Sequence[npt.NDArray[np.float64]]) -> None:
        """Take class codes or targets, shape (n,), and each learner's decision values, (n, any)."""


@dataclass
class Learner:
    """A model in training.

    Attributes
    ----------
    number : int
        Decides where the run keeps its alphas.
    solver : Solver
    held_out : int or None
        The fold whose rows it never learns from.
    is_active : bool
        Whether it takes part in the passes to come.
    seconds : float
        Time of a thread that its steps, and being judged, took.
    """

    number: int
    solver: Solver
    held_out: int | None = None
    is_active: bool = True
    seconds: float = 0.0

    def its_own(self, folds: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.bool_] | None:
        """Return a mark for each row it may learn from; None where these are all."""
        if folds is None or self.held_out is None:
            return None
        marks: npt.NDArray[np.bool_] = folds != self.held_out
        return marks


@dataclass(frozen=True)
class Group:
    """Learners of one model, which work on a block one behind the other.

    Attributes
    ----------
    learners : sequence of Learner
        Held out from all of them is the same fold.
    judge : Judge or None
        Is shown decision values of that fold.
    """

    learners: Sequence[Learner]
    judge: Judge | None = None

    def be_judged(self, rows: Rows, folds: npt.NDArray[np.uint8] | None) -> None:
        """Show the judge decision values at the weights as they are, a few rows at a time.

        Rows of weight 0 are not there for it either.
        """
        if self.judge is None or folds is None:
            return
        begin, first = time.perf_counter(), self.learners[0]
        held_out = folds == first.held_out
        if rows.weights is not None:
            held_out &= rows.weights > 0
        places = np.flatnonzero(held_out)
        n = max(1, JUDGED // sum(learner.solver.problem.n_outputs for learner in self.learners))
        for k in range(0, len(places), n):
            theirs = rows.take(places[k : k + n])
            scores = [decide(theirs, x.solver.W, x.solver.problem.bias) for x in self.learners]
            self.judge.add(theirs.y, scores)
        first.seconds += time.perf_counter() - begin


def set_active(learners: Sequence[Learner], active: bool) -> None:
    """Let learners take part in the passes to come, or not."""
    for learner in learners:
        learner.is_active = active
