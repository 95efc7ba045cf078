"""Passes of a second-order training; see `sbm.solver.newton`."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, join, no_alphas
from sbm.compiled.clock import clock
from sbm.engine.certificate import certify, visit_all
from sbm.engine.engine import Engine
from sbm.engine.learners import Group, Learner, Visit
from sbm.engine.snapshot import NEWTON, bare_name, named, number_in
from sbm.programs.training.dual import RowMethod
from sbm.programs.training.needs import (
    MOST_PIECES,
    accelerates,
    has_multipliers,
    is_wide,
    near_capacity,
    near_piece,
    piece_rows,
    sample_rows,
)
from sbm.programs.training.ranks import any_of
from sbm.programs.training.task import Task, is_smooth
from sbm.programs.training.training import Training
from sbm.rows import Rows
from sbm.solver.accelerated import Accelerated
from sbm.solver.gap import Certificate
from sbm.solver.metric import Metric
from sbm.solver.multipliers import Multipliers
from sbm.solver.newton import FullBatch, Given, HingeNewton, SmoothNewton, WideNewton
from sbm.solver.problem import OneClass, squared_norm
from sbm.solver.step import Totals
from sbm.solver.sums import AT_ONCE

__all__ = ["NewtonSteps", "SecondOrder"]


def _its_rows(visit: Visit, learner: Learner, size: int) -> Rows:
    """Return those of the first rows of a block that a learner may learn from."""
    rows, mine = visit.rows.part(0, size), learner.its_own(visit.folds)
    return rows if mine is None else rows.take(np.flatnonzero(mine[:size]))


class NewtonSteps:
    """The second-order methods of all learners of an engine.

    Parameters
    ----------
    engine : Engine
    task : Task
    tol : float
        Relative gap at which a learner is done.
    searches : bool
        Whether to find step lengths in memory, for smooth losses. All rows must stay there, and be
        those of every learner.

    Attributes
    ----------
    methods : list of FullBatch
        One per learner.
    """

    def __init__(self, engine: Engine, task: Task, tol: float, *, searches: bool = False) -> None:
        self._engine, self._tol, self.methods = engine, tol, list[FullBatch]()
        self._accelerates = is_wide(task) and accelerates(task)
        self._rows: Rows | None = None  # all of them, if they are in memory
        self._metric: Metric | None = None
        for learner in engine.learners:
            solver, problem = learner.solver, learner.solver.problem
            assert not isinstance(problem, OneClass)
            given = Given(problem, solver.W, solver.W_seen, engine.team.map, engine.comm)
            if self._accelerates and has_multipliers(task):
                self.methods.append(Multipliers(given, self._is_late))
            elif self._accelerates:
                self.methods.append(Accelerated(given, self._is_late))
            elif is_wide(task):
                self.methods.append(WideNewton(given, self._is_late))
            elif is_smooth(problem.loss):
                self.methods.append(SmoothNewton(given, searches))
            else:
                capacity = near_capacity(
                    engine.store, engine.plan, len(engine.learners), problem.intercept
                )
                self.methods.append(HingeNewton(given, capacity))
        # Whether a pass stores alphas, and the learners whose last pass did not.
        self.is_stored, self.lost = False, set[int]()
        # By learner: the certificate at its base, and the last one of those that converged.
        self.best: dict[int, Certificate] = {}
        self._certified: dict[int, Certificate] = {}  # of the pass
        self.done: dict[int, Certificate] = {}

    def _is_late(self) -> bool:
        """Stop if asked to; return whether the time is up."""
        self._engine.pauses.after_look()
        return self._engine.pauses.is_late()

    def visit(self, groups: Sequence[Group], what: str) -> dict[int, Certificate]:
        """Read all rows for groups of learners, and evaluate them; return the certificates."""
        active = [one for group in groups for one in group.learners]
        self.visit_all(active, what, groups)
        return self.certificates(active)

    def visit_all(self, active: list[Learner], what: str, groups: Sequence[Group] = ()) -> None:
        """Add all rows to the sums of the active learners; groups evaluate those held out."""
        engine = self._engine
        if not self._accelerates:
            for learner in active:
                self.methods[learner.number].start_pass()
        visits = visit_all(engine, what)
        first = list(itertools.islice(visits, 1))  # empty in a rank without blocks
        with engine.seconds.measure("solve"):
            self._begin(first, active)
        for visit in itertools.chain(first, visits):
            with engine.seconds.measure("solve"):
                for group in groups:
                    group.evaluate(visit.rows, visit.folds)
                for learner in active:
                    begin = clock()
                    self._visit(visit, learner)
                    learner.seconds += clock() - begin

    def _begin(self, first: list[Visit], active: list[Learner]) -> None:
        """Start from about the optimum of some rows of the first block, in one of the ranks."""
        store, comm = self._engine.store, self._engine.comm
        new = [one for one in active if self.methods[one.number].is_new]
        if not new:
            return
        smooth = is_smooth(new[0].solver.problem.loss)
        size = min(len(first[0].rows), sample_rows(store, smooth)) if first else 0
        sizes = comm.gather([size])[:, 0]
        rank = int(np.argmax(sizes > 0))
        for learner in new:
            method = self.methods[learner.number]
            rows = _its_rows(first[0], learner, size) if comm.rank == rank else None
            method.begin(rows, store.n_rows / sizes[rank], self._tol)
            method.start_pass()

    def _visit(self, visit: Visit, learner: Learner) -> None:
        """Add a block to the sums of a learner, and store its alphas."""
        k, engine = learner.number, self._engine
        its_own, alphas = _its_rows(visit, learner, len(visit.rows)), list[Alphas]()
        # Rows visited piece after piece need several times as many rounds.
        size = max(1, len(its_own)) if self._accelerates else piece_rows(engine.store)
        if isinstance(self.methods[k], HingeNewton):
            size = near_piece(engine.plan)
        self._rows = its_own
        if self._accelerates:  # all rows are here: the memory of a pass is one learner's at a time
            self.methods[k].start_pass()
        for number, first in enumerate(range(0, len(its_own), size)):
            rows = its_own.part(first, min(size, len(its_own) - first))
            alphas += self.methods[k].add(visit.block.parts[0] * MOST_PIECES + number, rows)
        if self._accelerates:
            self._certified[k] = self.methods[k].certificate()
        if self.is_stored:
            listed = learner.solver.problem.listed
            stored = join([no_alphas(0, listed), *alphas])
            if (mine := learner.its_own(visit.folds)) is not None:
                every = no_alphas(len(visit.rows), listed)
                every.put(np.flatnonzero(mine[: len(every)]), stored)
                stored = every
            engine.store_alpha(k, visit.block, stored)

    def move(self, active: Sequence[Learner], found: Mapping[int, Certificate]) -> bool:
        """Choose the weights of the next pass; return whether there are any."""
        tol, moving = self._tol, list[int]()
        for learner in active:
            k = learner.number
            method, certificate = self.methods[k], found[k]
            if certificate.relative_gap <= 0.9 * tol and len(self.methods) > 1:
                self.done[k] = certificate
                continue
            accepted = method.base is None or certificate.primal < method.base_primal
            if accepted:
                self.best[k] = certificate
            moving.append(k)
        # The other methods use all threads for each learner.
        is_alone = self._accelerates and isinstance(self.methods[0], Accelerated)
        spread, n = (self._engine.team.map, AT_ONCE) if is_alone else (map, 1)
        moved = list[bool]()
        with self._in_units():
            for first in range(0, len(moving), n):
                some = moving[first : first + n]
                moved += spread(lambda k: self.methods[k].move(found[k], tol), some)
        return any(moved)

    @contextmanager
    def _in_units(self) -> Iterator[None]:
        """Give accelerated descent rows whose columns are about equally large."""
        rows = self._rows
        if rows is None or not isinstance(self.methods[0], Accelerated):
            yield
            return
        if self._metric is None:
            self._metric = Metric.of(rows, len(self.methods[0].W))
        if not self._metric.is_needed:
            yield
            return
        for method in self.methods:
            assert isinstance(method, Accelerated)
            method.metric = self._metric
        with self._metric.applied(rows):
            yield

    def certificates(self, active: Sequence[Learner]) -> dict[int, Certificate]:
        """Return the certificates of learners, by number, after a visit of all rows."""
        if self._accelerates:
            return {one.number: self._certified.pop(one.number) for one in active}
        return {one.number: self.methods[one.number].certificate() for one in active}

    def note_stored(self, active: list[Learner]) -> None:
        """Note whose alphas of its last pass were not stored."""
        numbers = {one.number for one in active}
        self.lost = self.lost - numbers if self.is_stored else self.lost | numbers

    def settle(self, k: int, certificate: Certificate) -> Certificate:
        """Return to the base if the last weights are not better; return the certificate."""
        method, best = self.methods[k], self.best.get(k)
        if k in self.done or best is None or method.base is None or best.gap > certificate.gap:
            return certificate
        method.W[:] = method.base
        method.base = None
        return best

    def record(self) -> dict[str, Any]:
        """Return what of the state is JSON. With many classes, all else would be too much of it."""
        return {"lost": sorted(self.lost)}

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays of the state, by name, except W."""
        found: dict[str, npt.NDArray[np.generic]] = {
            named(name, k): array
            for k, method in enumerate(self.methods)
            for name, array in method.arrays().items()
        }
        for name, certificates in (("newton_best", self.best), ("newton_done", self.done)):
            found |= {named(name, k): one.numbers() for k, one in certificates.items()}
        return found

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the state of the last checkpoint."""
        run = self._engine.run
        names = [name for name in run.state_names() if name.startswith(NEWTON)]
        arrays: dict[int, dict[str, npt.NDArray[Any]]] = defaultdict(dict)
        for name, array in run.read_state(names).items():
            arrays[number_in(name)][bare_name(name)] = array
        for k, method in enumerate(self.methods):
            method.restore(arrays[k])
        self.lost = set(record["lost"])
        self.best, self.done = (
            {k: Certificate.of(own[name]) for k, own in arrays.items() if name in own}
            for name in ("newton_best", "newton_done")
        )


class SecondOrder(RowMethod):
    """Newton's method, interior points and others: all rows add to sums, then W moves.

    Parameters
    ----------
    training : Training
    """

    family, falls_late = "newton", True

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        engine, task = self.engine, training.job.task
        is_in_memory = not any_of(engine.comm, not engine.plan.is_whole)[0]
        searches = task.shares_rows and is_in_memory
        self.steps = NewtonSteps(engine, task, training.task.tol, searches=searches)
        # Of the last pass: its learners, their certificates, and its totals.
        self._active, self._certificates = list[Learner](), dict[int, Certificate]()
        self._pass = Totals()

    @property
    def name(self) -> str:
        """The method of its learners."""
        return self.steps.methods[0].name

    def take_up(self, certificate: Certificate) -> None:
        """Start from zeros, whose dual is 0, if that is not much worse than an earlier model."""
        if certificate.relative_gap > 0.9:
            for W in self.weights:
                W[:] = 0.0

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint."""
        super().restore(record)
        self.steps.restore(record["method"])

    def run_pass(self) -> Totals:
        """Add all rows to the sums, which certify the weights."""
        training, state, steps = self.training, self.training.state, self.steps
        training.begin_pass(1)
        gap = 1.0 if state.certificate is None else state.certificate.relative_gap
        is_kept = training.first is None  # alphas of a second model are not
        # Below this gap, the next pass may be the last one.
        steps.is_stored = is_kept and (len(self.learners) == 1 or gap < 0.5)
        self._active = [one for one in self.learners if one.number not in steps.done]
        try:
            steps.visit_all(self._active, f"pass {state.passes}")
        except KeyboardInterrupt:
            # The first block may have set the weights, which is as if the pass had not begun.
            state.passes -= 1
            state.rounds.pop()
            training.commit()
            raise
        self._certificates = steps.certificates(self._active)
        steps.note_stored(self._active)
        rows = training.job.store.n_rows * len(self._active)
        gap = self._total(self._latest()).gap
        self._pass = Totals(gap=gap, visits=rows, updates=rows, rounds=1)
        return self._pass

    def _latest(self) -> dict[int, Certificate]:
        """Return the last certificate of each learner."""
        latest = self._certificates | self.steps.done
        return {learner.number: latest[learner.number] for learner in self.learners}

    def _total(self, certificates: Mapping[int, Certificate]) -> Certificate:
        return Certificate.total([certificates[k] for k in sorted(certificates)])

    def measure(self) -> None:
        """Read all rows and compute their decision values."""
        certify(self.engine)

    def may_be_done(self, done: Totals) -> bool:
        """Every pass certifies its weights."""
        return True

    def certify(self, is_last: bool, is_best: bool) -> Certificate:
        """Certify the weights of the pass; of the last ones, store alphas that are not yet."""
        training, steps, tol = self.training, self.steps, self.training.task.tol
        certificates = self._latest()
        certificate = self._total(certificates).or_zeros()
        if is_best:
            training.keep(certificate)
        is_last = is_last or certificate.relative_gap <= tol
        missing = [one for one in self.learners if one.number in steps.lost]
        if is_last and missing and training.first is None:
            steps.is_stored = True
            steps.visit_all(missing, "store")
        if is_last and certificate.relative_gap > tol:
            certificates = {k: steps.settle(k, one) for k, one in certificates.items()}
            certificate = self._total(certificates).or_zeros()
            self._pass.gap = self._total(certificates).gap
        for k, one in certificates.items():
            solver = self.engine.learners[k].solver
            solver.dual_sum = one.dual + 0.5 * squared_norm(solver.W)
        return certificate

    def move(self, certificate: Certificate | None) -> bool:
        """Take a step with each learner; return whether there is one."""
        with self.seconds.measure("solve"):
            moves = self.steps.move(self._active, self._certificates)
        if moves:
            visits = [self.steps.methods[one.number].visits for one in self._active]
            self.training.state.rounds[-1] += max(visits)
        return moves

    def facts(self) -> dict[str, Any]:
        """Return which method it is."""
        return {"solver": self.name, "switched_after": self.training.state.switched_after}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
        """Return the state of the learners and of their steps."""
        place, arrays = super().snapshot()
        return place | self.steps.record(), arrays | self.steps.arrays()
