"""A running training: its engine, state, checkpoints and certificates."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.engine.certificate import certify, replace_weights, visit_all
from sbm.engine.clock import clock
from sbm.engine.engine import FULL_PASS, Engine, Pauses
from sbm.engine.learners import HeldOut, set_active
from sbm.engine.machine import peak_bytes, resident_bytes
from sbm.engine.pace import (
    LEAST_PASSES,
    PassCost,
    choose_blocks,
    choose_rounds,
    foresee_passes,
    is_falling,
    passes_left,
)
from sbm.engine.snapshot import restore, snapshot
from sbm.engine.sync import agree_on_unit
from sbm.errors import StoreError
from sbm.programs.training.job import Carried, StartPoint, TrainingPlan
from sbm.programs.training.newton import work_of
from sbm.programs.training.ranks import any_of, forget_others
from sbm.programs.training.setup import FOLDS, time_left
from sbm.programs.training.state import TrainingState
from sbm.programs.training.warmstart import PreviousRun
from sbm.solver.gap import MOST_DRIFT, Certificate
from sbm.solver.problem import OneClass
from sbm.solver.step import Totals
from sbm.store.run import Run, run_folder
from sbm.units import count

__all__ = ["CommitClock", "Training", "final_report", "pass_record"]


_NEAR = 0.1  # relative gap of weights that Newton's method starts from
_LEAST = 1e-300  # smallest divisor
_MOST = 1e300  # JSON has no infinity


def pass_record(training: Training, done: Totals, is_whole: bool) -> dict[str, Any]:
    """Return the figures of a finished pass.

    Parameters
    ----------
    training : Training
    done : Totals
        Totals of the pass.
    is_whole : bool
        Whether all rows were visited; otherwise there is no estimate of the gap.

    Returns
    -------
    dict
        The line for the log, without certificate and validation.
    """
    state, store, solvers = training.state, training.job.store, training.solvers
    seconds, dual = training.spent(), training.dual
    scale = max(abs(dual), _LEAST)
    per_second = done.visits / max(seconds["solve"], 1e-9)
    return {
        "pass": state.passes,
        "solver": training.solver_name,
        "rounds": state.rounds[-1],
        "elapsed": training.elapsed(),
        "seconds": seconds,
        "rows_per_second": per_second,
        "nnz_per_second": per_second * store.nnz / store.n_rows,
        "dual": dual,
        "estimated_gap": done.gap if is_whole else None,
        "estimated_relative_gap": min(done.gap / scale, _MOST) if is_whole else None,
        "tol": training.settings.tol,
        "passes_left": training.passes_left(),
        "visits": done.visits,
        "updates": done.updates,
        "free_rows": state.free_rows,
        "cache_rows": sum(s.working.cache_rows for s in solvers),
        "cached_rows": sum(s.working.n_cached for s in solvers),
        "cached_free": sum(s.count_free() for s in solvers),
        "cached_zero": sum(s.working.count_zero() for s in solvers),
        "cached_ages": _count_ages(training),
        "cache_hits": done.cached,
        "rows_at_rest": done.rest,
        "visits_cut_short": done.starved,
        "bytes_read": training.engine.reader.bytes_read,
        "resident_bytes": resident_bytes(),
    }


def _count_ages(training: Training) -> list[int]:
    """Return the number of cached rows by age: entered in the last pass, in the one before, ..."""
    counts = [solver.working.count_ages() for solver in training.solvers]
    return [sum(some) for some in itertools.zip_longest(*counts, fillvalue=0)]


def final_report(training: Training) -> dict[str, Any]:
    """Return the report of a finished training; see `sbm.train`."""
    state, certificate = training.state, training.state.certificate
    assert certificate is not None
    tol, validation = training.settings.tol, None
    if training.validation is not None:
        ended_by = "tol" if certificate.relative_gap <= tol else "limit"
        validation = training.validation.report(ended_by)
        certificate = training.validation.certificate
    return {
        **certificate.to_dict(),
        "converged": certificate.relative_gap <= tol,
        "validation": validation,
        "passes": state.passes,
        "solver": training.solver_name,
        "switched_after": state.switched_after,
        "rounds": state.rounds,
        "updates": state.totals.updates,
        "visits": state.totals.visits,
        "visits_cut_short": state.cut_short,
        "seconds": {"total": training.elapsed(), **asdict(training.seconds)},
        "bytes_read": training.engine.reader.bytes_read,
        "peak_rss_bytes": peak_bytes(),
        "blocks": len(training.job.own),
        "decoded_blocks": len(training.engine.staying),
        "passes_left": training.passes_left(),
        "is_falling": is_falling(training.relative_gaps, tol, training.extra is not None),
    }


# Minimum time between checkpoints at the end of passes: in seconds, and as a multiple of the time
# that the last checkpoint took. More frequent checkpoints would slow down short passes.
COMMIT_SECONDS = 1.0
COMMIT_SHARE = 20.0


class CommitClock:
    """Measures the time since the last checkpoint.

    Attributes
    ----------
    interval : float
        Seconds between checkpoints at the end of passes.
    """

    def __init__(self) -> None:
        self._last, self.interval = time.monotonic(), COMMIT_SECONDS

    def elapsed(self) -> float:
        """Return the seconds since the last checkpoint."""
        return time.monotonic() - self._last

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Measure a checkpoint, which is written inside."""
        begin = time.monotonic()
        yield
        self._last = time.monotonic()
        self.interval = max(COMMIT_SECONDS, COMMIT_SHARE * (self._last - begin))


class Extra(Protocol):
    """State of another solver, which checkpoints include."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def record(self) -> dict[str, Any]:
        """Return its scalars, as JSON."""

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return its arrays by name."""

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the state of the last checkpoint."""


@dataclass
class Training:
    """A running training: runs passes, logs them, and writes checkpoints.

    There is one learner, except for one-vs-rest with one variable per row: then each class has its
    own learner with weights, cache and variables, and all of them work on the loaded block.
    Calibration adds a second set of learners, which never see some of the rows and are not part of
    the model.

    Attributes
    ----------
    job : TrainingPlan
    run : Run
        Receives the checkpoints.
    state : TrainingState
    engine : Engine
    extra : Extra or None
        The second-order method, if there is one.
    validation : Validation or None
    learners, spare_learners : list of Learner
    seconds : Seconds
    begin : float
        Start of this process, by `sbm.engine.clock.clock`, moved by the time that is not counted.
    """

    job: TrainingPlan
    run: Run
    state: TrainingState = field(default_factory=TrainingState)

    def __post_init__(self) -> None:
        job, self.problems = self.job, self.job.share.problems
        self.settings, self.options, self.begin = job.settings, job.options, job.begin
        n, self.validation = len(self.problems), job.validation
        held_out = HeldOut(FOLDS, [None] * n + [0] * len(job.spare)) if job.spare else None
        if self.validation is not None:
            held_out = self.validation.held_out(job.plan, n)
        self.engine = Engine(
            job.store, job.settings, [*self.problems, *job.spare], job.plan, self.run,
            self.options.progress, held_out=held_out, weights=job.weights,
            read_rate=self.options.read_rate, comm=job.share.adding, own=job.own,
            pauses=Pauses(self.is_late, self._after_step, self._stop_if_asked),
            staying=job.plan.staying(job.own, job.reserved),
        )  # fmt: skip
        self.learners, self.spare_learners = self.engine.learners[:n], self.engine.learners[n:]
        self.solvers = [learner.solver for learner in self.learners]
        self.seconds = self.engine.seconds
        self.seconds.compile = job.compile_seconds
        self._pass_bytes = sum(c.size for part in job.plan.parts for c in part.chunks)
        self._commits = CommitClock()
        self._n_commits = 0
        self.extra: Extra | None = None
        self.state.watch.tol = self.settings.tol
        self.state.mark = asdict(self.seconds)

    @property
    def weights(self) -> list[npt.NDArray[np.float64]]:
        """The weights of the model."""
        return self.validation.weights if self.validation else [s.W for s in self.solvers]

    @property
    def dual(self) -> float:
        """Current dual value F(α), up to the drift of W."""
        return math.fsum(solver.dual for solver in self.solvers)

    @property
    def relative_gaps(self) -> list[float]:
        """Estimated gap after each whole pass of this solver, relative to the dual value now."""
        scale, state = max(abs(self.dual), _LEAST), self.state
        # All passes of a second solver are whole.
        n = len(state.gaps) if state.switched_after is None else state.passes - state.switched_after
        return [gap / scale for gap in state.gaps[len(state.gaps) - n :]]

    @property
    def solver_name(self) -> str:
        """The method of the passes: "dual", "newton", "interior point" and others."""
        return "dual" if self.extra is None else self.extra.name

    def passes_left(self) -> float | None:
        """Estimate the number of passes to the tolerance, if the last gaps show a trend."""
        return foresee_passes(self.relative_gaps, self.settings.tol)

    # -------------------------------------------------------------------------------- start

    def start(self, start: StartPoint) -> None:
        """Resume, warm-start, or start from zero."""
        if self.validation is not None and start.carried is None:
            self.validation.start([solver.W for solver in self.solvers])
        if start.record is not None:
            self._resume(start.record)
        elif start.earlier is not None:
            self._start_from(start.earlier)
        elif start.carried is not None:
            self.state = start.carried.state
            self.state.switched_after = self.state.passes
            self.engine.disk_before = self.state.seconds["disk"]
            self.engine.reader.bytes_read = self.state.bytes_read
            for name, value in self.state.seconds.items():
                setattr(self.seconds, name, value)
            columns = iter(start.carried.columns)
            for solver in self.solvers:
                solver.W.T[:] = list(itertools.islice(columns, solver.W.shape[1]))
            self.options.progress.stage(
                f"after pass {self.state.passes}: Newton's method; its first gaps may be larger"
            )
            self.commit()
        if not self.state.is_done:
            self._agree_on_unit()

    def _agree_on_unit(self) -> None:
        """Give all ranks the same unit of the one-class offset."""
        problem, comm = self.problems[0], self.job.share.adding
        if comm.size == 1 or not isinstance(problem, OneClass) or problem.unit != 0.0:
            return
        first = next(visit_all(self.engine, "measure"), None)
        agree_on_unit(comm, problem, None if first is None else first.rows)

    def _resume(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint of this run."""
        try:
            self.state = state = TrainingState.of(record)
            for name, value in state.seconds.items():
                setattr(self.seconds, name, value)
            self.seconds.compile += self.job.compile_seconds
            self.engine.disk_before = self.seconds.disk
            self.engine.reader.bytes_read = state.bytes_read
            needs_rows = not state.is_done or bool(self.job.spare)
            restore(self.engine, record["engine"], self.run, needs_rows)
            if self.validation is not None and state.best is not None:
                self.validation.restore(state.best, self.run)
            if self.extra is not None and state.newton is not None:
                self.extra.restore(state.newton)
            if self.engine.now is not None:
                self._set_pace()
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StoreError(
                f"cannot resume {self.run.folder} ({error}); use --fresh to start over"
            ) from error
        self.options.progress.stage(
            f"resuming {self.run.folder} after {count(state.passes, 'pass')}; --fresh starts over"
        )

    def _start_from(self, earlier: PreviousRun) -> None:
        """Take W and alphas from an earlier run, certify them, and write a checkpoint."""
        state = self.state
        state.is_warm = not earlier.is_rescaled
        set_active(self.spare_learners, False)
        earlier.hand_over(self.run, self.job.plan, self.job.own)
        state.certificate = certificate = earlier.start(self.engine, self.settings.tol)
        set_active(self.spare_learners, True)
        if self.judge(certificate.gap):
            self.keep(certificate)
        self.options.progress.note(
            f"warm start: certified relative gap {certificate.relative_gap:.2e}"
        )
        state.is_done = certificate.relative_gap <= self.settings.tol
        if self.extra is not None and certificate.dual < 0 and not state.is_done:
            for solver in self.solvers:  # zeros, whose dual is 0, are a better start
                solver.W[:] = 0.0
        state.only = self._new_blocks(earlier)
        self.commit()

    def _new_blocks(self, earlier: PreviousRun) -> list[int] | None:
        """Return the blocks with new rows for the first pass; None to visit all blocks.

        The other blocks are already optimal until the new rows change W.
        """
        plan = self.job.plan
        new = earlier.new_parts(plan)
        some = 0 < len(new) < len(plan.parts) and self.settings.max_passes > 1
        some = some and self.job.share.adding.size == 1
        return self.engine.shuffled(1, new) if some else None

    # ------------------------------------------------------------------------------- a pass

    def begin_pass(self) -> None:
        """Choose the rounds and cache sizes of a pass; a resumed pass keeps its own."""
        state = self.state
        if self.engine.now is None:
            state.rounds.append(self.rounds())
            self._set_pace()
            state.passes += 1
            state.mark = asdict(self.seconds)

    def add(self, totals: Mapping[int, Totals], free: Mapping[int, int]) -> Totals:
        """Add up the results of `Engine.run_pass`, and write a checkpoint if it is due."""
        state = self.state
        if state.only is None:  # a partial pass does not count the free rows of other blocks
            state.free_rows = sum(free[learner.number] for learner in self.learners)
        done = Totals()
        for learner in self.learners:
            done.add(totals[learner.number])
        state.totals.add(done)
        state.cut_short, state.ended = done.starved, done
        self.commit_if_due()
        return done

    def end_pass(
        self, done: Totals, certificate: Certificate | None, is_late: bool, is_last: bool
    ) -> None:
        """Log the figures of a pass, and choose the blocks of the next one.

        Parameters
        ----------
        done : Totals
        certificate : Certificate or None
            None if the model was not certified after this pass.
        is_late : bool
            Whether the time limit cut the pass short.
        is_last : bool
        """
        state, validation = self.state, self.validation
        is_whole = not is_late and state.only is None
        record = pass_record(self, done, is_whole)
        record |= {
            "certificate": certificate.to_dict() if certificate else None,
            "validation": None if validation is None else validation.figures(),
        }
        self.run.log({"event": "pass", **record})
        self.options.progress.row(record)
        state.only = None if is_last else self._part_of_pass(certificate)
        state.ended, state.is_done = None, is_last
        if is_last:
            self.commit()

    def carried(self) -> Carried | None:
        """Return what Newton's method starts from, if it is expected to be faster."""
        state, job, store = self.state, self.job, self.job.store
        left = passes_left(self.relative_gaps, self.settings.tol)
        if state.is_done or self.extra is not None or left is None or state.passes < LEAST_PASSES:
            return None
        if job.share.is_by_class:  # each rank is at a pass of its own
            return None
        visits = state.totals.visits // state.passes
        is_enough = state.passes + left <= self.settings.max_passes
        pays = work_of(store, self.problems).newton_pays(left, visits, is_enough, state.passes)
        if not pays or not job.can_switch():
            return None
        job.begin, state.seconds = self.begin, asdict(self.seconds)
        state.bytes_read = self.engine.reader.bytes_read
        # Weights far from the optimum are a worse start than those of a sample.
        keep = float(state.gaps[-1] <= _NEAR * abs(self.dual))
        columns = [keep * column for solver in self.solvers for column in solver.W.T]
        return Carried(state, columns)

    def _part_of_pass(self, certificate: Certificate | None) -> list[int] | None:
        """Return the blocks of the next pass if some are enough; None for all blocks."""
        state, blocks = self.state, range(len(self.job.plan.parts))
        number = state.passes + 1
        if certificate is None or not state.is_warm or number % FULL_PASS == 0:
            return None
        if self.job.share.adding.size > 1:  # ranks differ in the work that is left
            return None
        if len(state.gaps) < 2 or state.gaps[-2] == 0:
            return None
        shrink = state.gaps[-1] / state.gaps[-2]
        n = choose_blocks(len(blocks), certificate.relative_gap, self.settings.tol, shrink)
        return self.engine.shuffled(number, blocks)[:n] if n < len(blocks) else None

    def _set_pace(self) -> None:
        """Set rounds and cache size of the current pass; the cache size is the same for all."""
        free = {}
        if self.state.free_rows is not None:
            each = self.state.free_rows // len(self.learners)
            free = {learner.number: each for learner in self.engine.learners}
        self.engine.set_pace(self.state.rounds[-1], free, self.state.watch.stop)

    def rounds(self) -> int:
        """Return the rounds of the next pass."""
        spent, state = self.spent(), self.state
        last = PassCost(self._pass_bytes, spent["disk"], spent["load"], spent["solve"])
        rounds = choose_rounds(
            self.settings.rounds, len(self.job.plan.parts), state.rounds, last,
            self.problems[0].listed, state.is_warm, self.job.share.adding.size,
            whole=self.engine.whole_work,
        )  # fmt: skip
        if self.settings.rounds != "auto" or not self.engine.whole_work or self.job.comm.size > 1:
            return rounds
        trial = work_of(self.job.store, self.problems).trial_rounds(state.passes)
        return trial if trial < rounds and self.job.can_switch() else rounds

    def spent(self) -> dict[str, float]:
        """Return the seconds since the start of the last pass, by activity."""
        return {k: v - self.state.mark[k] for k, v in asdict(self.seconds).items()}

    def judge(self, gap: float) -> bool:
        """Judge the weights on the validation data, if any; return whether they are the best.

        Parameters
        ----------
        gap : float
            Of these weights, possibly estimated.
        """
        if self.validation is None:
            return False
        weights = [solver.W for solver in self.solvers]
        relative = gap / max(abs(self.dual), _LEAST)
        with self.seconds.measure("certify"):
            return self.validation.judge(
                self.state.passes, self.problems, weights, relative, self.engine,
                self._stop_if_asked,
            )  # fmt: skip

    def keep(self, certificate: Certificate) -> None:
        """Keep the weights, which were judged to be the best."""
        assert self.validation is not None
        self.validation.keep([solver.W for solver in self.solvers], certificate)

    @property
    def is_over(self) -> bool:
        """Whether the validation ends the training."""
        return self.validation is not None and self.validation.is_over

    # -------------------------------------------------------------------------- certificates

    def is_certificate_due(self, done: Totals) -> bool:
        """Return whether the last pass may have reached the tolerance."""
        state = self.state
        if state.only is not None:  # a partial pass has no estimate
            return state.passes > 1  # the first partial pass visits only new blocks
        state.gaps.append(done.gap)
        return state.watch.is_due(done.gap, self.dual, self.job.plan.is_whole)

    def certify(self, is_last: bool, is_best: bool = False) -> Certificate:
        """Evaluate primal and dual at fixed W and alphas.

        If more passes follow, the weights are replaced by weights computed from the alphas. After
        the last pass they stay as certified, because they become the model.
        """
        set_active(self.spare_learners, False)
        certificate, found = certify(self.engine)
        set_active(self.spare_learners, True)
        if certificate.drift > MOST_DRIFT:
            raise StoreError(
                f"the weights do not match the alphas (drift {certificate.drift:.1e}); "
                "this is a bug in sbm, please report it"
            )
        if is_best:
            self.keep(certificate)
        if certificate.relative_gap > self.settings.tol and not is_last:
            replace_weights(self.engine, found)
        self.state.certificate = certificate
        if self.state.only is None:
            self.state.watch.learn(certificate.relative_gap)
        return certificate

    # ------------------------------------------------------------------- checkpoints and end

    def commit(self) -> None:
        """Write a checkpoint; call it between two steps."""
        with self._commits.measure(), self.seconds.measure("write"):
            place, arrays = snapshot(self.engine)
            if self.extra is not None:
                self.state.newton = self.extra.record()
                arrays |= self.extra.arrays()
            if self.validation is not None:
                self.state.best = self.validation.record()
                arrays |= self.validation.arrays()
            self.state.seconds = asdict(self.seconds)
            self.state.bytes_read = self.engine.reader.bytes_read
            now = replace(self.state, elapsed=self.elapsed())
            self.run.commit({**self.job.itself, **now.record(), "engine": place}, arrays)
            if self._n_commits > 0:  # at a second checkpoint all ranks have written the first
                forget_others(run_folder(self.job.path), self.job.comm.size)
            self._n_commits += 1

    def commit_if_due(self, after: float | None = None) -> None:
        """Write a checkpoint if the last one is old enough, or if the training must stop.

        Parameters
        ----------
        after : float, optional
            Seconds since the last checkpoint. Default: the interval used after passes.

        Raises
        ------
        KeyboardInterrupt
            The training was asked to stop.
        MemoryError
            Memory use exceeds the plan.
        """
        after = self._commits.interval if after is None else after
        every = float(self.settings.checkpoint_every) or math.inf
        is_due = self._commits.elapsed() >= min(after, every)
        asked, is_due, is_too_large = self._any(
            self.options.is_stopped(), is_due, self.job.is_too_large()
        )
        if asked or is_due or is_too_large:
            self.commit()
        if asked:
            self.job.comm.barrier()  # wait until all ranks have written their checkpoint
            raise KeyboardInterrupt
        if is_too_large:
            self.job.may_plan_with_less = True  # all ranks raise this error
            raise MemoryError

    def _after_step(self) -> None:
        """Write a checkpoint during a pass if it is due."""
        self.commit_if_due(math.inf)  # only `checkpoint_every` counts

    def _stop_if_asked(self) -> None:
        """Stop if asked to, during a read that changes nothing; no checkpoint is needed.

        Ranks that sync cannot stop here, because each has read a different number of blocks.
        """
        if self.job.share.adding.size == 1 and self._any(self.options.is_stopped())[0]:
            raise KeyboardInterrupt

    def is_late(self) -> bool:
        """Return whether the time limit is reached, in any of the ranks that sync."""
        late = time_left(self.settings, self.begin) < 0
        return late if self.job.share.is_by_class else self._any(late)[0]

    def _any(self, asked: bool, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set in any rank.

        If ranks have separate classes, only `asked` is combined. This call also keeps the
        communication timeout from expiring.
        """
        if not self.job.share.is_by_class:
            return any_of(self.job.comm, asked, *flags)
        return [any_of(self.job.comm, asked, True)[0], *flags]

    def wait_for_all(self) -> None:
        """Wait until all ranks have finished, if they have separate classes."""
        is_one_at_work = self.job.share.is_by_class
        while is_one_at_work:
            asked, is_one_at_work = any_of(self.job.comm, self.options.is_stopped(), False)
            if asked:
                raise KeyboardInterrupt

    def elapsed(self) -> float:
        """Return the elapsed seconds, including those before a resume."""
        return self.state.elapsed + clock() - self.begin
