"""Dual coordinate descent on blocks and cache: Algorithm 1 of Chang & Roth 2011."""

from __future__ import annotations

import copy
import itertools
import math
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sbm.engine.certificate import certify, certify_weights, replace_weights, visit_all
from sbm.engine.engine import FULL_PASS, Engine, Pauses
from sbm.engine.learners import Folds, Group, HeldOut, Judge, set_active
from sbm.engine.line import end_pass, move_on
from sbm.engine.pace import (
    LATE,
    LEAST_PASSES,
    PassCost,
    choose_blocks,
    choose_rounds,
    hurried_rounds,
    passes_left,
)
from sbm.engine.snapshot import restore, snapshot
from sbm.engine.sync import agree_on_unit
from sbm.errors import StoreError
from sbm.models.model import parts
from sbm.programs.training.job import StartPoint
from sbm.programs.training.newton import work_of
from sbm.programs.training.scales import units_of
from sbm.programs.training.training import Training, WholePasses
from sbm.programs.training.warmstart import PreviousRun
from sbm.solver.gap import MOST_DRIFT, Certificate
from sbm.solver.problem import OneClass
from sbm.solver.step import Totals

__all__ = ["Dual", "RowMethod"]

FOLDS = Folds(5, seed=0)  # of calibration: the second model never sees the first one
# Rounds of passes with a proximal term, their growth from pass to pass, and the most. Tables need 7
# to 50 passes, with two rounds many times more. Late passes must be more exact. Several ranks,
# whose steps are shorter, do as many rounds each.
_PROXIMAL_ROUNDS, _GROWTH, _MOST_ROUNDS = 5.0, 1.07, 40.0
# Rounds of a single part end at this share of the last pass's gap, if that is above the tolerance.
# They skip rows at rest. If those are to move again, more precise rounds are in vain: 0.001 took
# 5 to 15 % more visits. 0.03 took more passes.
STOP_SHARE = 0.01


class RowMethod(WholePasses):
    """A method whose learners visit rows, and which starts from variables of an earlier run.

    There is one learner, except for one-vs-rest with one variable per row: then each class has its
    own learner with weights, cache and variables, and all of them work on the loaded block.
    Calibration adds a second set of learners, which never see some of the rows and are not part of
    the model.

    Parameters
    ----------
    training : Training

    Attributes
    ----------
    engine : Engine
    learners, spare_learners : list of Learner
    """

    family: str
    restarts_passes, falls_late, is_worth_judging = False, False, True

    def __init__(self, training: Training) -> None:
        # A cycle would keep all arrays until the next garbage collection.
        self.training: Training = weakref.proxy(training)
        job, task = training.job, training.job.task
        n = len(training.problems)
        self.engine = Engine(
            job.store, task.visiting, task.problems, job.plan, training.run,
            job.options.progress, held_out=self.held_out(), weights=job.weights,
            read_rate=job.options.read_rate, comm=task.share.adding, own=job.own,
            pauses=Pauses(training.is_late, training.after_step, training.stop_if_asked),
            staying=job.staying,
        )  # fmt: skip
        self.seconds, self.reader = self.engine.seconds, self.engine.reader
        self.learners, self.spare_learners = self.engine.learners[:n], self.engine.learners[n:]
        self.solvers = [learner.solver for learner in self.learners]

    def held_out(self) -> HeldOut | None:
        """Return which rows the learners may not learn from; None if they may learn from all."""
        training, n = self.training, len(self.training.problems)
        if training.validation is not None:
            return training.validation.held_out(training.job.plan, n)
        others = training.task.others
        return HeldOut(FOLDS, [None] * n + [0] * len(others)) if others else None

    @property
    def weights(self) -> list[npt.NDArray[np.float64]]:
        """The weights of each problem."""
        return [solver.W for solver in self.solvers]

    @property
    def dual(self) -> float:
        """Current dual value F(α), up to the drift of W."""
        return math.fsum(solver.dual for solver in self.solvers)

    def at_work(self) -> AbstractContextManager[None]:
        """Run the threads inside this context."""
        return self.engine.at_work()

    def start(self, start: StartPoint) -> None:
        """Take W and alphas from an earlier run if there is one; certify and save them.

        A shared start is not certified.
        """
        if (earlier := start.earlier) is None:
            return
        training, state = self.training, self.training.state
        tol, plan, own = training.task.tol, training.job.plan, training.job.own
        state.is_warm = not earlier.is_rescaled
        set_active(self.spare_learners, False)
        earlier.hand_over(training.run, plan, own)
        certificate = earlier.start(self.engine, tol)
        set_active(self.spare_learners, True)
        if certificate is not None:
            self._start_at(certificate)
        state.only = self._new_parts(earlier)
        training.commit()

    def _start_at(self, certificate: Certificate) -> None:
        """Report and keep the weights of an earlier run."""
        training, state = self.training, self.training.state
        state.certificate = certificate
        if training.judge(certificate.gap):
            training.keep(certificate)
        training.options.progress.note(
            f"warm start: certified relative gap {certificate.relative_gap:.2e}"
        )
        state.is_done = certificate.relative_gap <= training.task.tol
        if not state.is_done:
            self.take_up(certificate)

    def take_up(self, certificate: Certificate) -> None:
        """Choose the first weights, given the certificate of those of an earlier run."""

    def _new_parts(self, earlier: PreviousRun) -> list[int] | None:
        """Return the parts with new rows for the first pass; None to visit all parts.

        The others are already optimal until the new rows change W.
        """
        plan = self.training.job.plan
        new = earlier.new_parts(plan)
        some = 0 < len(new) < len(plan.parts) and self.training.task.max_passes > 1
        some = some and self.engine.comm.size == 1
        return new if some else None

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint."""
        needs_rows = not self.training.state.is_done or bool(self.spare_learners)
        restore(self.engine, record["method"], self.training.run, needs_rows)

    def ready(self) -> None:
        """Give all ranks the same unit of the one-class offset."""
        problem, comm = self.training.problems[0], self.engine.comm
        if comm.size == 1 or not isinstance(problem, OneClass) or problem.unit != 0.0:
            return
        first = next(visit_all(self.engine, "measure"), None)
        agree_on_unit(comm, problem, None if first is None else first.rows)

    def read_held_out(self, judge: Judge) -> None:
        """Show the rows that no learner learns from to a judge."""
        group = Group(self.learners, judge)
        set_active(self.engine.learners, False)  # no alphas are needed
        try:
            for visit in visit_all(self.engine, "validate"):
                group.evaluate(visit.rows, visit.folds)
        finally:
            set_active(self.engine.learners, True)

    def prune(self, threshold: float) -> tuple[int, Certificate]:
        """Drop small weights; return their number and the certificate of those that are left."""
        dropped, n_features = 0, self.training.job.store.n_features
        for solver in self.solvers:
            W = solver.W[:n_features]  # without the bias
            for part in parts(*W.shape):
                some = W[part]
                small = (abs(some) <= threshold) & (some != 0)
                some[small] = 0.0
                dropped += int(np.count_nonzero(small))
        set_active(self.spare_learners, False)
        set_active(self.learners, True)  # unless a second model was trained
        return dropped, certify_weights(self.engine)

    def rounds(self) -> int:
        """Return the rounds of the next pass."""
        return 1

    def second(self, training: Training) -> Self:
        """Return the method of the second model, for its training."""
        second = copy.copy(self)
        second.training = weakref.proxy(training)
        second.learners, second.spare_learners = self.spare_learners, []
        second.solvers = [learner.solver for learner in second.learners]
        set_active(self.learners, False)
        self.engine.last_pass = training.task.max_passes
        return second

    def figures(self, done: Totals) -> dict[str, Any]:
        """Return the figures of the cache."""
        working = [solver.working for solver in self.solvers]
        ages = itertools.zip_longest(*(some.count_ages() for some in working), fillvalue=0)
        return {
            "cache_rows": sum(some.cache_rows for some in working),
            "cached_rows": sum(some.n_cached for some in working),
            "cached_free": sum(solver.count_free() for solver in self.solvers),
            "cached_zero": sum(some.count_zero() for some in working),
            "cached_ages": [sum(some) for some in ages],
        }

    def snapshot(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
        """Return the state of the learners."""
        place, arrays = snapshot(self.engine)
        return {"family": self.family, **place}, arrays


class Dual(RowMethod):
    """Selective block minimization: each block is solved together with the cache."""

    name = family = "dual"

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._pass_bytes = sum(c.size for part in training.job.plan.parts for c in part.chunks)

    def ready(self) -> None:
        """Measure the columns; give learners a proximal term if these are of different size."""
        super().ready()
        job, engine = self.training.job, self.engine
        if engine.reader.units is None and job.task.may_be_proximal and not job.plan.is_whole:
            parts = [job.plan.parts[part] for part in job.own]
            units = units_of(job.store, self.training.problems, parts, engine.comm)
            if units is not None:
                engine.use_units(units)
        suits = job.task.may_have_line and not job.plan.is_whole
        if suits and engine.reader.units is None and not self.training.state.is_warm:
            engine.use_lines()

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint, which may be inside a pass."""
        super().restore(record)
        if self.engine.now is not None:
            self._set_pace()

    def run_pass(self) -> Totals:
        """Run an outer iteration of Algorithm 1; one that was interrupted keeps its pace."""
        training, state, engine = self.training, self.training.state, self.engine
        if engine.now is None:
            training.begin_pass(self.rounds())
            self._set_pace()
            # After a move, the estimate of the gap may be far too large; not after each, it is not.
            if state.only is None and state.passes % FULL_PASS:
                move_on(engine)
        now = engine.now or engine.begin_pass(state.passes, state.only)
        groups = [Group([learner]) for learner in engine.active]
        for visit in engine.visits(now):
            for steps in engine.for_each(groups, visit.solve):
                visit.steps.update(steps)
        end_pass(engine, now)
        if state.only is None:  # a partial pass does not count the free rows of other blocks
            state.free_rows = sum(now.free[learner.number] for learner in self.learners)
        state.ended = done = Totals()
        for learner in self.learners:
            done.add(now.totals[learner.number])
        training.commit_if_due()
        return done

    def _set_pace(self) -> None:
        """Set rounds and cache size of the current pass; the cache size is the same for all."""
        state, free = self.training.state, dict[int, int]()
        if state.free_rows is not None:
            each = state.free_rows // len(self.learners)
            free = {learner.number: each for learner in self.engine.learners}
        stop, gaps = state.watch.stop, self.training.relative_gaps
        if gaps and self.engine.screens:
            stop = max(stop, STOP_SHARE * gaps[-1])
        self.engine.set_pace(state.rounds[-1], free, stop)

    def rounds(self) -> int:
        """Return the rounds of the next pass."""
        training, state = self.training, self.training.state
        job, setting, spent = training.job, training.job.task.rounds, training.spent()
        last = PassCost(self._pass_bytes, spent["disk"], spent["load"], spent["solve"])
        rounds = choose_rounds(
            setting, job.plan.n_blocks, state.rounds, last,
            training.problems[0].listed, state.is_warm, self.engine.comm.size,
            whole=self.engine.whole_work, screens=self.engine.screens,
            moves=self.engine.moves,
        )  # fmt: skip
        if setting == "auto" and self.engine.reader.units is not None:
            least = self.engine.comm.size * _PROXIMAL_ROUNDS * _GROWTH**state.passes
            rounds = max(rounds, int(min(_MOST_ROUNDS, least)))
        if setting != "auto" or job.comm.size > 1:
            return rounds
        if not self.engine.whole_work:
            return max(rounds, self._hurried())
        trial = work_of(job.task).trial_rounds(state.passes)
        return trial if trial < rounds and job.can_switch() else rounds

    def _hurried(self) -> int:
        """Return rounds with which `max_passes` are enough, if no other method helps."""
        training, state = self.training, self.training.state
        left = passes_left(training.relative_gaps, training.task.tol)
        free = (state.free_rows or 0) / len(self.learners)
        # With room in the cache for a third of the free rows, four times the rounds took twice the
        # visits to the same gap.
        is_enough = 2 * training.job.plan.cache_rows >= free
        if left is None or state.passes < LATE or not is_enough or training.job.can_switch():
            return 1
        return hurried_rounds(state.rounds[-1], left, training.task.max_passes - state.passes)

    def may_be_done(self, done: Totals) -> bool:
        """Whether the estimate of the gap is small enough for a certificate, which costs a read."""
        state = self.training.state
        if state.only is not None:  # a partial pass has no estimate
            return state.passes > 1  # the first partial pass visits only new blocks
        if state.passes == 1 and self.training.job.shared_start is not None:
            return False  # rows rested from its first round on, whatever the others changed
        is_due = state.watch.is_due(done.gap, self.dual, self.training.job.plan.is_whole)
        # If the offset of one class is a little too high, the estimate is far too large; a
        # certificate corrects the offset, and shows how much.
        is_unknown = isinstance(self.solvers[0].problem, OneClass) and not state.watch.ratio
        is_power = state.passes & (state.passes - 1) == 0
        return is_due or (is_unknown and is_power and state.passes >= 4)

    def certify(self, is_last: bool, is_best: bool) -> Certificate:
        """Evaluate primal and dual at fixed W and alphas.

        If more passes follow, the weights are replaced by weights computed from the alphas. After
        the last pass they stay as certified, because they become the model.
        """
        training, state, engine = self.training, self.training.state, self.engine
        if training.first is not None:  # a read only for probabilities; the estimate is enough
            assert state.ended is not None
            return Certificate.estimated(state.ended.gap, self.dual)
        set_active(self.spare_learners, False)
        certificate, by_learner = certify(engine)
        set_active(self.spare_learners, True)
        if certificate.drift > MOST_DRIFT and engine.reader.units is None:
            raise StoreError(
                f"the weights do not match the alphas (drift {certificate.drift:.1e}); "
                "this is a bug in sbm, please report it"
            )
        if is_best:
            training.keep(certificate)
        if certificate.relative_gap > training.task.tol and not is_last:
            replace_weights(engine, by_learner)
        if state.only is None:
            state.watch.learn(certificate.relative_gap)
        return certificate

    def move(self, certificate: Certificate | None) -> bool:
        """Go on: W moves with every visit of a row. A second model is done when it may be."""
        return self.training.first is None or certificate is None

    def next_parts(self, certificate: Certificate | None) -> list[int] | None:
        """Return the parts to visit in the next pass if some are enough, close to the optimum."""
        state, plan = self.training.state, self.training.job.plan
        number = state.passes + 1
        if certificate is None or not state.is_warm or number % FULL_PASS == 0:
            return None
        if self.engine.comm.size > 1:  # ranks differ in the work that is left
            return None
        if len(state.gaps) < 2 or state.gaps[-2] == 0:
            return None
        shrink = state.gaps[-1] / state.gaps[-2]
        n, blocks = len(plan.parts), plan.n_blocks
        some = choose_blocks(blocks, certificate.relative_gap, self.training.task.tol, shrink)
        if some >= blocks:
            return None
        return self.engine.shuffled(number, range(n))[: some * n // blocks]

    def carried(self) -> list[npt.NDArray[np.float64]] | None:
        """Return the columns of W if Newton's method is expected to be faster from here."""
        training, state, job = self.training, self.training.state, self.training.job
        left = passes_left(training.relative_gaps, training.task.tol)
        if left is None or state.passes < LEAST_PASSES or self.engine.now is not None:
            return None
        if job.task.share.is_by_class:  # each rank is at a pass of its own
            return None
        visits = state.totals.visits // state.passes
        is_enough = state.passes + left <= training.task.max_passes
        # Whatever it costs, after half of the passes another method is better than not to converge.
        pays = not is_enough and state.passes >= training.task.max_passes / 2
        pays = pays or work_of(job.task).newton_pays(left, visits, is_enough, state.passes)
        if not pays or not job.can_switch():
            return None
        # Weights far from the optimum are a worse start than those of a sample.
        keep = float(state.gaps[-1] <= 0.1 * abs(self.dual))
        return [keep * column for W in self.weights for column in W.T]

    def facts(self) -> dict[str, Any]:
        """Return which method it is."""
        return {"solver": self.name, "switched_after": None}

    def second(self, training: Training) -> Self:
        """Return the method of the second model, which may be inside a pass."""
        second = super().second(training)
        if self.engine.now is not None:
            second._set_pace()
        return second
