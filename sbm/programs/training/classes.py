"""Train Crammer-Singer and Weston-Watkins of thousands of classes: visits in lists, then scoring.

A pass visits the rows in rounds, each with the classes of its list. Then the weights are computed
from the variables again, all classes are scored, which certifies the weights, and the lists get the
classes that were missing. Each pass ends with a checkpoint, which has the lists; the weights follow
from them. See `sbm.engine.byclass`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.byclass import ClassPasses
from sbm.models.weights import WindowedWeights
from sbm.programs.training.job import StartPoint
from sbm.programs.training.training import NO_CACHE, Training, WholePasses
from sbm.solver.gap import Certificate
from sbm.solver.problem import MultiProblem
from sbm.solver.proximal import ListedTerm
from sbm.solver.step import Totals

__all__ = ["Classes"]


class Classes(WholePasses):
    """Dual coordinate ascent with the weights by class; see the top of this file.

    Parameters
    ----------
    training : Training

    Attributes
    ----------
    passes : ClassPasses
    """

    name, family = "dual", "classes"
    restarts_passes, falls_late, is_worth_judging = True, False, True

    def __init__(self, training: Training) -> None:
        # A cycle would keep all arrays until the next garbage collection.
        self.training: Training = weakref.proxy(training)
        job, (problem,) = training.job, training.problems
        assert isinstance(problem, MultiProblem)
        options = job.task.visiting
        self.passes = ClassPasses(
            job.store, job.plan, problem, training.run, job.options.progress, job.comm,
            job.staying, training.stop_if_asked, seed=options.seed, threads=options.threads,
            weights=job.weights,
            read_rate=job.options.read_rate,
        )  # fmt: skip
        self.seconds, self.reader = self.passes.seconds, self.passes.reader
        self._certificate: Certificate | None = None

    @property
    def weights(self) -> WindowedWeights:
        """The weights of the classes of this process."""
        return self.passes.weights()

    @property
    def dual(self) -> float:
        """The dual value that was certified last."""
        return 0.0 if self._certificate is None else self._certificate.dual

    def at_work(self) -> AbstractContextManager[None]:
        """Run the threads inside this context."""
        return self.passes.at_work()

    def start(self, start: StartPoint) -> None:
        """Start from zero: earlier runs are not used."""

    def ready(self) -> None:
        """Make the first lists, unless a checkpoint has them."""
        if self.training.state.passes == 0:
            self.passes.look()
            self.passes.begin()

    def run_pass(self) -> Totals:
        """Visit all rows in rounds."""
        training, state, before = self.training, self.training.state, self._certificate
        training.begin_pass(1)
        done = self.passes.visit(
            state.passes, 0.0 if before is None else before.primal, training.task.tol,
            training.is_late,
        )  # fmt: skip
        state.rounds[-1] = done.rounds
        return done

    def measure(self) -> None:
        """Read all rows; the time of visits depends on the classes of the rows that are near."""
        self.passes.count()

    def may_be_done(self, done: Totals) -> bool:
        """Every pass is certified, which finds the classes for the next one."""
        return True

    def certify(self, is_last: bool, is_best: bool) -> Certificate:
        """Certify the weights of the variables."""
        self._certificate = self.passes.certify(self.training.task.tol)
        return self._certificate

    def move(self, certificate: Certificate | None) -> bool:
        """Go on: weights move with every visit of a row."""
        return True

    def figures(self, done: Totals) -> dict[str, Any]:
        """Return the figures of lists and weights; those of a cache of rows are 0."""
        return {
            "listed_classes": self.passes.listed,
            "missing_classes": self.passes.missing,
            "weights_bytes": sum(tables.nbytes for tables in self.passes.by_class.tables),
            **NO_CACHE,
        }

    def facts(self) -> dict[str, Any]:
        """Return which method it is."""
        return {"solver": self.name, "switched_after": None}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
        """Store the lists in the run; weights follow from them, and from the proximal term."""
        passes, term = self.passes, self.passes.term
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        passes.store_lists()
        record: dict[str, Any] = {"family": self.family, "batch": passes.by_class.batch}
        record["is_double"] = passes.by_class.is_double, passes.is_double
        if term is not None:
            arrays = {"term_centre": term.centre, "term_before": term.before}
            primal = term.primal if math.isfinite(term.primal) else None
            record["term"] = [term.scale, term.momentum, term.rounds, primal]
        return record, arrays

    def restore(self, record: Mapping[str, Any]) -> None:
        """Compute the weights from the lists of the last checkpoint."""
        self.passes.look()
        method, term = record["method"], None
        self.passes.by_class.batch = method["batch"]
        is_double, self.passes.is_double = method["is_double"]
        if "term" in method:
            scale, momentum, rounds, primal = method["term"]
            arrays = self.training.run.read_state()
            term = ListedTerm(
                scale, arrays["term_centre"].copy(), arrays["term_before"].copy(), momentum, rounds,
                math.inf if primal is None else primal,
            )  # fmt: skip
        self.passes.restore(term, is_double)
        self._certificate = self.training.state.certificate
