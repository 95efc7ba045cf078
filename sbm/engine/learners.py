"""Learners: models in training, the rows each one learns from, and judges for the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas
from sbm.compiled.calls import load
from sbm.compiled.clock import clock
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.block import Block
from sbm.solver.cache import Evicted
from sbm.solver.problem import decide
from sbm.solver.step import Screen, Solver, Step, Totals

__all__ = [
    "BlockAlphas",
    "Folds",
    "GivenFolds",
    "Group",
    "HeldOut",
    "Judge",
    "Learner",
    "NextBlock",
    "Pass",
    "Seconds",
    "Visit",
    "set_active",
]


@dataclass
class Seconds:
    """Time by activity, in seconds. Loading overlaps with solving; waiting does not.

    Attributes
    ----------
    compile, disk, load, wait, solve, certify, combine, write : float
        `compile` is not part of the total.
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
    """The state of one learner for the next block, before the block is loaded.

    `marks` are the rows to visit if they were restored from a snapshot.
    """

    alpha: Alphas
    screen: Screen | None = None
    marks: npt.NDArray[np.bool_] | None = None

    def moving(self, block: Block, evicted: Evicted | None) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the rows to visit, None for all.

        Rows that were evicted since the block was read get their alphas and are visited.
        """
        late: npt.NDArray[np.int32] | slice = slice(0)
        if evicted is not None:
            mine, late = block.find(evicted.home, evicted.row)
            self.alpha.put(late, evicted.alpha.take(mine))
        if self.screen is None:
            return self.marks
        self.screen.moving[late] = True
        return self.screen.moving


@dataclass(frozen=True)
class NextBlock:
    """The next block before it is loaded: the folds of its rows, and the learners' states."""

    block: Block
    folds: npt.NDArray[np.uint8] | None
    own: dict[int, BlockAlphas]


@dataclass(frozen=True)
class Visit:
    """A loaded block, and what the learners do with it.

    Attributes
    ----------
    block : Block
    rows : Rows
    folds : ndarray, shape (n_rows,), uint8, or None
    own : dict of int to BlockAlphas
        By learner number; the alphas of cached rows are in the learner's cache.
    evicted : mapping of int to Evicted
        By learner number: rows that left the cache in the step before.
    is_full : bool
        Whether to visit the rows at rest, too.
    is_whole : bool
        Whether the block has all rows, where they stay. Then models are evaluated after the step.
    steps : dict of int to Step
        By learner number: what was done with the block.
    """

    block: Block
    rows: Rows
    folds: npt.NDArray[np.uint8] | None
    own: Mapping[int, BlockAlphas]
    evicted: Mapping[int, Evicted] = field(default_factory=dict)
    is_full: bool = True
    is_whole: bool = False
    steps: dict[int, Step] = field(default_factory=dict)

    def solve(self, group: Group) -> dict[int, Step]:
        """Merge the block with the cache of each learner, solve, and select the next cache."""
        if not self.is_whole:
            group.evaluate(self.rows, self.folds)
        steps = {}
        for learner in group.learners:
            begin, own = clock(), self.own[learner.number]
            moving = own.moving(self.block, self.evicted.get(learner.number))
            if learner.solver.is_lean and not self.is_full and learner.solver.pays_screening:
                moving = learner.solver.screen(self.block, self.rows, own.alpha)
            learner.solver.note_screen(moving)
            if self.is_full:
                moving = None
            mine = learner.its_own(self.folds)
            if mine is not None:
                moving = mine if moving is None else moving & mine
            step = learner.solver.step(self.block, self.rows, own.alpha, moving)
            steps[learner.number] = step
            learner.seconds += clock() - begin
        if self.is_whole:
            group.evaluate(self.rows, self.folds)
        return steps


@dataclass
class Pass:
    """The state of an outer iteration.

    Attributes
    ----------
    number : int
        From 1.
    order : list of list of int
        The parts of each of its blocks, in order.
    is_part : bool
        Whether `order` contains only some of the parts.
    done : int
        Number of blocks done.
    steps : int
        Number of steps done; more than blocks if other ranks have more of them.
    totals : dict of int to Totals
        By learner number.
    free : Counter
        By learner number: uncached rows with a variable inside its bounds.
    """

    number: int
    order: list[list[int]]
    is_part: bool
    done: int = 0
    steps: int = 0
    totals: dict[int, Totals] = field(default_factory=dict)
    free: Counter[int] = field(default_factory=Counter)

    def record(self) -> dict[str, Any]:
        """Return the state as JSON, for `of`."""
        totals = {k: asdict(one) for k, one in self.totals.items()}
        return {**vars(self), "totals": totals, "free": dict(self.free)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Pass:
        """Create a pass from a `record`."""
        totals = {int(k): Totals(**one) for k, one in record["totals"].items()}
        free = Counter({int(k): int(n) for k, n in record["free"].items()})
        return cls(**{**record, "totals": totals, "free": free})


JUDGED = 1 << 16  # decision values per batch


@dataclass(frozen=True)
class Folds:
    """Assigns rows to folds by their content, so that equal rows are in the same fold.

    Attributes
    ----------
    n : int
        From 2 to 255.
    seed : int
    """

    n: int
    seed: int

    def assign(self, part: int, first: int, rows: Rows, out: npt.NDArray[np.uint8]) -> None:
        """Write the fold of each row.

        Parameters
        ----------
        part, first : int
            Part of the data, and number of the first row there; they decide the fold of rows
            without nonzeros.
        rows : Rows
        out : ndarray, shape (n_rows,), uint8
        """
        bits = None
        if rows.values is not None:
            bits = rows.values.view(f"uint{8 * rows.values.itemsize}")
        load("sbm.solver.kernels.decision").assign(
            rows.starts, rows.lengths, rows.indices, bits, self.n, self.seed, part, first, out
        )


@dataclass(frozen=True)
class GivenFolds:
    """Folds that are known before.

    Attributes
    ----------
    folds : sequence of ndarray, shape (n_rows,), uint8
        By part.
    """

    folds: Sequence[npt.NDArray[np.uint8]]

    def assign(self, part: int, first: int, rows: Rows, out: npt.NDArray[np.uint8]) -> None:
        """Write the fold of each row; see `Folds.assign`."""
        out[:] = self.folds[part][first : first + len(out)]


@dataclass(frozen=True)
class HeldOut:
    """Which rows are held out from which learners.

    Attributes
    ----------
    folds : Folds or GivenFolds
    by_learner : sequence of int or None
        By learner number: the fold that it never learns from.
    """

    folds: Folds | GivenFolds
    by_learner: Sequence[int | None]


class Judge(Protocol):
    """Receives decision values of rows that a model never learns from."""

    def add(self, y: npt.NDArray[Any], scores: Sequence[npt.NDArray[np.float64]]) -> None:
        """Add class codes or targets, shape (n,), and each learner's decision values, (n, any)."""


@dataclass
class Learner:
    """A model in training.

    Attributes
    ----------
    number : int
        Decides where the run stores its alphas.
    solver : Solver
    held_out : int or None
        The fold that it never learns from.
    is_active : bool
        Whether it takes part in the following passes.
    seconds : float
        Thread time of its steps and evaluations, in seconds.
    """

    number: int
    solver: Solver
    held_out: int | None = None
    is_active: bool = True
    seconds: float = 0.0

    def its_own(self, folds: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the rows it may learn from; None if these are all rows."""
        if folds is None or self.held_out is None:
            return None
        marks: npt.NDArray[np.bool_] = folds != self.held_out
        return marks


@dataclass(frozen=True)
class Group:
    """Learners of one model, which work on a block one after the other.

    Attributes
    ----------
    learners : sequence of Learner
        All with the same held-out fold.
    judge : Judge or None
        Receives decision values of that fold.
    """

    learners: Sequence[Learner]
    judge: Judge | None = None

    def estimate(self, totals: Mapping[int, Totals]) -> tuple[float, float]:
        """Return the running estimate of the gap in a pass, and the dual value at its end."""
        gap = sum(totals[learner.number].gap for learner in self.learners)
        return gap, math.fsum(learner.solver.dual for learner in self.learners)

    def evaluate(self, rows: Rows, folds: npt.NDArray[np.uint8] | None) -> None:
        """Pass decision values of held-out rows at the current weights to the judge, in batches.

        Rows of weight 0 are skipped.
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
    """Set whether learners take part in the following passes."""
    for learner in learners:
        learner.is_active = active
