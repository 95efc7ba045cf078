"""Learners: models in training, the rows that each may see, and who is shown the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas
from sbm.compiled import load
from sbm.engine.clock import clock
from sbm.rows import Rows
from sbm.solver.cache import Evicted
from sbm.solver.problem import decide
from sbm.solver.step import Screen, Solver, Totals

__all__ = [
    "BlockAlphas",
    "Folds",
    "Group",
    "HeldOut",
    "Judge",
    "Learner",
    "LoadedBlock",
    "NextBlock",
    "Pass",
    "Seconds",
    "set_active",
]  # fmt: skip


@dataclass
class Seconds:
    """Where the time went, in seconds. Loading overlaps with solving; waiting does not.

    Attributes
    ----------
    compile, disk, load, wait, solve, certify, combine, write : float
        Compiling is no part of the total.
    """

    compile: float = 0.0
    disk: float = 0.0
    load: float = 0.0
    wait: float = 0.0
    solve: float = 0.0
    certify: float = 0.0
    combine: float = 0.0
    write: float = 0.0

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent inside to one of the entries."""
        begin = clock()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + clock() - begin)


@dataclass(frozen=True)
class BlockAlphas:
    """What is known of the next block for one learner before the block is loaded.

    `marks` are those of the rows to visit, where these were found before a commit.
    """

    alpha: Alphas
    screen: Screen | None = None
    marks: npt.NDArray[np.bool_] | None = None

    def moving(self, block: int, evicted: Evicted | None) -> npt.NDArray[np.bool_] | None:
        """Which rows to visit, None for all; rows evicted since are taken over and visited."""
        late: npt.NDArray[np.int32] | slice = slice(0)
        if evicted is not None:
            mine = np.flatnonzero(evicted.home == block)
            late = evicted.row[mine]
            self.alpha.put(late, evicted.alpha.take(mine))
        if self.screen is None:
            return self.marks
        self.screen.moving[late] = True
        return self.screen.moving


@dataclass(frozen=True)
class LoadedBlock:
    """A loaded block.

    Attributes
    ----------
    block : int
    rows : Rows
    folds : ndarray, shape (n_rows,), uint8, or None
    alpha : dict of int to Alphas
        By number of the learner; those of its cached rows are in its cache.
    """

    block: int
    rows: Rows
    folds: npt.NDArray[np.uint8] | None
    alpha: dict[int, Alphas]


@dataclass(frozen=True)
class NextBlock:
    """The next block before it is loaded: folds of its rows, and what each learner knows."""

    block: int
    folds: npt.NDArray[np.uint8] | None
    own: dict[int, BlockAlphas]

    def visit(self, rows: Rows) -> LoadedBlock:
        """Return the block as it was loaded."""
        return LoadedBlock(
            self.block, rows, self.folds, {k: own.alpha for k, own in self.own.items()}
        )


@dataclass
class Pass:
    """An outer iteration at work.

    Attributes
    ----------
    number : int
        From 1.
    order : list of int
        Its blocks; all of them but where it is a part of a pass.
    is_part : bool
    done : int
        How many blocks are done.
    stretches : int
        How many stretches are done: alone each is a block; of several processes each ends with a
        sync, when they add up what they did.
    totals : dict of int to Totals
        Of each learner.
    free : Counter
        Rows with a variable inside its bounds that are not cached, of each learner.
    """

    number: int
    order: list[int]
    is_part: bool
    done: int = 0
    stretches: int = 0
    totals: dict[int, Totals] = field(default_factory=dict)
    free: Counter[int] = field(default_factory=Counter)

    def record(self) -> dict[str, Any]:
        """All of it as JSON; `of` undoes it."""
        totals = {k: asdict(one) for k, one in self.totals.items()}
        return {**vars(self), "totals": totals, "free": dict(self.free)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Pass:
        """Undo `record`."""
        totals = {int(k): Totals(**one) for k, one in record["totals"].items()}
        free = Counter({int(k): int(n) for k, n in record["free"].items()})
        return cls(**{**record, "totals": totals, "free": free})


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
        load("sbm.solver.kernels.decision").assign(
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

    def estimate(self, totals: Mapping[int, Totals]) -> tuple[float, float]:
        """Return the running estimate of the gap in a pass, and the dual value after it."""
        gap = sum(totals[learner.number].gap for learner in self.learners)
        return gap, math.fsum(learner.solver.dual for learner in self.learners)

    def evaluate(self, rows: Rows, folds: npt.NDArray[np.uint8] | None) -> None:
        """Show the judge decision values at the weights as they are, a few rows at a time.

        Rows of weight 0 are not there for it either.
        """
        if self.judge is None or folds is None:
            return
        begin, first = clock(), self.learners[0]
        held_out = folds == first.held_out
        if rows.weights is not None:
            held_out &= rows.weights > 0
        places = np.flatnonzero(held_out)
        n = max(1, JUDGED // sum(learner.solver.problem.n_outputs for learner in self.learners))
        for k in range(0, len(places), n):
            theirs = rows.take(places[k : k + n])
            scores = [decide(theirs, x.solver.W, x.solver.problem.bias) for x in self.learners]
            self.judge.add(theirs.y, scores)
        first.seconds += clock() - begin


def set_active(learners: Sequence[Learner], active: bool) -> None:
    """Let learners take part in the passes to come, or not."""
    for learner in learners:
        learner.is_active = active
