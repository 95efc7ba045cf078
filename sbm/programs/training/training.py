"""A running training: its state, its checkpoints, and what is judged, logged and reported.

What it does with the rows is its method's; the loop over passes is `sbm.programs.training.fit`.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, field, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from sbm.compiled.clock import clock, seconds_left
from sbm.engine.learners import Judge, Seconds
from sbm.engine.machine import peak_bytes, resident_bytes
from sbm.engine.pace import foresee_passes, is_falling
from sbm.engine.reader import BlockReader
from sbm.errors import StoreError
from sbm.models.weights import WindowedWeights
from sbm.plain import dataclass
from sbm.programs.training.job import Carried, Job, StartPoint
from sbm.programs.training.ranks import any_of, forget_others
from sbm.programs.training.state import TrainingState
from sbm.solver.gap import Certificate, GapWatch, relative
from sbm.solver.step import Totals
from sbm.store.run import Run, run_folder
from sbm.units import count

__all__ = ["NO_CACHE", "CommitClock", "Method", "Training", "WholePasses", "final_report"]

_MOST = 1e300  # JSON has no infinity


class Method(Protocol):
    """What a training does with the rows of a pass, and how it certifies its weights.

    Attributes
    ----------
    seconds : Seconds
    reader : BlockReader
    restarts_passes : bool
        Whether a pass that was interrupted starts anew, so that each one ends with a checkpoint.
    falls_late : bool
        Whether its gaps may fall late, and then fast.
    """

    seconds: Seconds
    reader: BlockReader
    restarts_passes: bool
    falls_late: bool

    @property
    def name(self) -> str:
        """What log and report call it."""

    @property
    def weights(self) -> Any:
        """Its weights now, each of shape (n_weights, n_outputs of the problem); or by class."""

    @property
    def dual(self) -> float:
        """The dual value now, up to rounding: a lower bound on the objective."""

    @property
    def is_worth_judging(self) -> bool:
        """Whether the weights of this pass can be better than those before it."""

    def at_work(self) -> AbstractContextManager[None]:
        """Run its threads inside this context."""

    def start(self, start: StartPoint) -> None:
        """Start from zero, or from an earlier model."""

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the checkpoint with this record."""

    def ready(self) -> None:
        """Prepare for the first pass of this process, if there is one."""

    def run_pass(self) -> Totals:
        """Read all rows once, or those that are enough."""

    def measure(self) -> None:
        """Visit all rows once, for `sbm plan`."""

    def may_be_done(self, done: Totals) -> bool:
        """Whether the last pass may have reached the tolerance, so that a certificate is due."""

    def certify(self, is_last: bool, is_best: bool) -> Certificate:
        """Certify the weights; the best ones so far are kept with their certificate."""

    def move(self, certificate: Certificate | None) -> bool:
        """Choose the weights of the next pass; return False if no pass would improve them."""

    def next_parts(self, certificate: Certificate | None) -> list[int] | None:
        """Return the parts to visit in the next pass if some are enough; None for all."""

    def carried(self) -> list[npt.NDArray[np.float64]] | None:
        """Return the columns of W for another method if that is expected to be faster."""

    def read_held_out(self, judge: Judge) -> None:
        """Show the rows that no model learns from to a judge."""

    def second(self, training: Training) -> Self:
        """Return the method of the second model, whose learners it has, for its training."""

    def figures(self, done: Totals) -> dict[str, Any]:
        """Return its own figures of a pass, for the log."""

    def tell(self, record: dict[str, Any]) -> None:
        """Report a pass, given its line of the log, to the person who waits."""

    def prune(self, threshold: float) -> tuple[int, Certificate]:
        """Drop small weights; return their number and the certificate of those that are left."""

    def facts(self) -> dict[str, Any]:
        """Return its own entries of the report."""

    def snapshot(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
        """Return its state for a checkpoint: as JSON, with its ``family``, and arrays by name."""


class WholePasses:
    """What most methods share: a pass visits all parts, and no other method takes over."""

    training: Training

    def prune(self, threshold: float) -> tuple[int, Certificate]:
        """Do nothing: settings refuse it."""
        raise AssertionError

    def measure(self) -> None:
        """Run a pass."""
        self.training.method.run_pass()

    def next_parts(self, certificate: Certificate | None) -> list[int] | None:
        """Visit all parts in the next pass."""
        return None

    def carried(self) -> list[npt.NDArray[np.float64]] | None:
        """Go on with this method."""
        return None

    def read_held_out(self, judge: Judge) -> None:
        """Refuse: with such rows, the task has another method."""
        raise NotImplementedError

    def second(self, training: Training) -> Self:
        """Refuse: there is no second model."""
        raise NotImplementedError

    def tell(self, record: dict[str, Any]) -> None:
        """Show the figures of the pass in a table."""
        self.training.options.progress.row(record)


# The figures of a cache of rows, of methods that have none.
NO_CACHE: dict[str, Any] = {
    **dict.fromkeys(("cache_rows", "cached_rows", "cached_free", "cached_zero"), 0),
    "cached_ages": [],
}


def final_report(training: Training, left: tuple[int, Certificate] | None = None) -> dict[str, Any]:
    """Return the report of a finished training, of which `Method.prune` left this.

    See `sbm.train`.
    """
    state, certificate, method = training.state, training.state.certificate, training.method
    assert certificate is not None
    plan = training.job.plan
    tol, validation = training.task.tol, None
    if training.validation is not None:
        ended_by = "tol" if certificate.relative_gap <= tol else "limit"
        validation = training.validation.report(ended_by)
        certificate = training.validation.certificate
    found = certificate.to_dict()
    return {
        **(found if left is None else found | _pruned(found, *left)),
        "converged": certificate.relative_gap <= tol,
        "validation": validation,
        "passes": state.passes,
        "rounds": state.rounds,
        "updates": state.totals.updates,
        "visits": state.totals.visits,
        "visits_cut_short": state.cut_short,
        "seconds": {"total": training.elapsed(), **asdict(training.seconds)},
        "bytes_read": method.reader.bytes_read,
        "peak_rss_bytes": peak_bytes(),
        **method.facts(),
        "blocks": len(plan.blocks(training.job.own)),
        "decoded_share": plan.share_of(training.job.staying, training.job.own),
        "passes_left": training.passes_left(),
        "is_falling": is_falling(training.relative_gaps, tol, method.falls_late),
    }


def _pruned(report: Mapping[str, Any], dropped: int, left: Certificate) -> dict[str, Any]:
    """Return what changes in a report if weights were dropped, and these are left.

    The lower bound on the objective stays, and the gap grows by what the objective does.
    """
    gap = max(0.0, report["gap"] + left.most - report["primal"])
    return {
        "dropped": dropped,
        "added": left.primal - report["primal"],
        "primal": left.primal,
        "gap": gap,
        "relative_gap": relative(gap, left.primal, report["dual"]),
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


@dataclass
class Training:
    """A running training: its state, and what all methods share.

    Attributes
    ----------
    job : Job
    run : Run
        Receives the checkpoints.
    make : callable
        ``make(training)`` returns the method.
    state : TrainingState
    method : Method
    validation : Validation or None
    seconds : Seconds
    begin : float
        Start of this process, by `sbm.compiled.clock.clock`, moved by the time that is not counted.
    first : Training or None
        If this is the training of the second model: that of the first one, which is finished.
    """

    job: Job
    run: Run
    make: Callable[[Training], Method]
    state: TrainingState = field(default_factory=TrainingState)
    first: Training | None = None

    def __post_init__(self) -> None:
        job = self.job
        self.task, self.options, self.begin = job.task, job.options, job.begin
        self.settings, self.problems = job.task.settings, job.task.share.problems
        self.validation = job.validation
        self._commits, self._n_commits = CommitClock(), 0
        self.method = self.make(self)
        self.seconds = self.method.seconds
        self.seconds.compile = job.compile_seconds
        self.state.watch.tol = self.task.tol
        self.state.mark = asdict(self.seconds)

    @property
    def weights(self) -> list[npt.NDArray[np.float64]] | WindowedWeights:
        """The weights of the model."""
        return self.validation.weights if self.validation else self.method.weights

    def relative(self, gap: float) -> float:
        """Return a gap relative to the dual value now."""
        return gap / self._size()

    def _size(self) -> float:
        """Return the absolute dual value now, which takes a look at all weights, above 0."""
        return max(abs(self.method.dual), 1e-300)

    @property
    def relative_gaps(self) -> list[float]:
        """Estimated gap after each whole pass of this method, relative to the dual value now."""
        state = self.state
        # All passes of a second method are whole.
        n = len(state.gaps) if state.switched_after is None else state.passes - state.switched_after
        gaps, size = state.gaps[len(state.gaps) - n :], self._size()
        return [gap / size for gap in gaps]

    def passes_left(self) -> float | None:
        """Estimate the number of passes to the tolerance, if the last gaps show a trend."""
        return foresee_passes(self.relative_gaps, self.task.tol)

    def start(self, start: StartPoint) -> None:
        """Resume, warm-start, or start from zero."""
        if self.validation is not None and start.carried is None:
            self.validation.start(self.method.weights)
        if start.record is not None:
            self._resume(start.record)
        elif start.carried is not None:
            self._go_on(start.carried)
        else:
            self.method.start(start)
        if not self.state.is_done:
            self.method.ready()

    def _resume(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint of this run."""
        try:
            self.state = state = TrainingState.of(record)
            self._take_seconds()
            self.seconds.compile += self.job.compile_seconds
            self.method.restore(record)
            if self.validation is not None and state.best is not None:
                self.validation.restore(state.best, self.run)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StoreError(
                f"cannot resume {self.run.folder} ({error}); use --fresh to start over"
            ) from error
        self.options.progress.stage(
            f"resuming {self.run.folder} after {count(state.passes, 'pass')}; --fresh starts over"
        )

    def _go_on(self, carried: Carried) -> None:
        """Go on from the state and the weights of another method."""
        self.state = state = carried.state
        state.switched_after = state.passes
        self._take_seconds()
        columns = iter(carried.columns)
        for W in self.method.weights:
            W.T[:] = [next(columns) for _ in range(W.shape[1])]
        self.options.progress.stage(
            f"after pass {state.passes}: Newton's method; its first gaps may be larger"
        )
        self.commit()

    def hand_over(self, columns: list[npt.NDArray[np.float64]]) -> Carried:
        """Return the state and the columns of W, from which another method goes on."""
        state = self.state
        self.job.begin, state.seconds = self.begin, asdict(self.seconds)
        state.bytes_read = self.method.reader.bytes_read
        return Carried(state, columns)

    def _take_seconds(self) -> None:
        """Count the seconds and bytes of the state as those of this process."""
        for name, value in self.state.seconds.items():
            setattr(self.seconds, name, value)
        self.method.reader.disk_before = self.seconds.disk
        self.method.reader.bytes_read = self.state.bytes_read

    def second(self) -> Training:
        """Return the training of the second model, after the passes that trained both.

        It has a state of its own, as of both until now, and the checkpoints of the first one.
        """
        first, second = self.state, copy.copy(self)
        if first.second is None:
            first.second = TrainingState(
                first.passes,
                list(first.rounds),
                free_rows=first.free_rows,
                is_warm=first.is_warm,
                watch=GapWatch(self.task.tol),
                mark=asdict(self.seconds),
            )
        second.first, second.state, second.validation = self, first.second, None
        second.task = replace(self.task, max_passes=first.passes + self.task.max_passes)
        second.method = self.method.second(second)
        return second

    # ------------------------------------------------------------------------------- a pass

    def begin_pass(self, rounds: int) -> None:
        """Count a pass of this many rounds."""
        self.state.rounds.append(rounds)
        self.state.passes += 1
        self.state.mark = asdict(self.seconds)

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
        with self.seconds.measure("certify"):
            return self.validation.judge(
                self.state.passes, self.problems, self.method.weights, self.relative(gap),
                self.method.read_held_out, self.job.store.unscaled, self.stop_if_asked,
            )  # fmt: skip

    def keep(self, certificate: Certificate) -> None:
        """Keep the weights, which were judged to be the best."""
        assert self.validation is not None
        self.validation.keep(self.method.weights, certificate)

    @property
    def is_over(self) -> bool:
        """Whether the validation ends the training."""
        return self.validation is not None and self.validation.is_over

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
        state = self.state
        state.totals.add(done)
        state.cut_short = done.starved
        if state.only is None:  # a partial pass has no estimate
            state.gaps.append(min(done.gap, _MOST))
        self._log(done, certificate, is_whole=not is_late and state.only is None)
        state.only = None if is_last else self.method.next_parts(certificate)
        state.ended, state.is_done = None, is_last
        if is_last:
            self.commit()
        else:
            self.commit_if_due(0.0 if self.method.restarts_passes else None)

    def _log(self, done: Totals, certificate: Certificate | None, is_whole: bool) -> None:
        """Log the figures of a pass; there is no estimate of the gap unless it was whole."""
        state, store, method = self.state, self.job.store, self.method
        seconds = self.spent()
        per_second = done.visits / max(seconds["solve"], 1e-9)
        record = {
            "pass": state.passes,
            "solver": method.name,
            "rounds": state.rounds[-1],
            "elapsed": self.elapsed(),
            "seconds": seconds,
            "rows_per_second": per_second,
            "nnz_per_second": per_second * store.nnz / store.n_rows,
            "dual": method.dual,
            "estimated_gap": done.gap if is_whole else None,
            "estimated_relative_gap": min(self.relative(done.gap), _MOST) if is_whole else None,
            "tol": self.task.tol,
            "passes_left": self.passes_left(),
            "visits": done.visits,
            "updates": done.updates,
            "free_rows": state.free_rows,
            "cache_hits": done.cached,
            "rows_at_rest": done.rest,
            "visits_cut_short": done.starved,
            "bytes_read": method.reader.bytes_read,
            "resident_bytes": resident_bytes(),
            **method.figures(done),
            "certificate": certificate.to_dict() if certificate else None,
            "validation": None if self.validation is None else self.validation.figures(),
        }
        if self.first is not None:
            self.run.log({"event": "pass of the second model", **record})
            return
        self.run.log({"event": "pass", **record})
        self.method.tell(record)

    # ------------------------------------------------------------------- checkpoints and end

    def commit(self) -> None:
        """Write a checkpoint; call it between two steps."""
        if self.first is not None:  # whose state has this one
            self.first.commit()
            return
        with self._commits.measure(), self.seconds.measure("write"):
            method, arrays = self.method.snapshot()
            if self.validation is not None:
                self.state.best = self.validation.record()
                arrays |= self.validation.arrays()
            self.state.seconds = asdict(self.seconds)
            self.state.bytes_read = self.method.reader.bytes_read
            now = replace(self.state, elapsed=self.elapsed())
            self.run.commit({**self.job.itself, **now.record(), "method": method}, arrays)
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

    def after_step(self) -> None:
        """Write a checkpoint during a pass if it is due."""
        self.commit_if_due(math.inf)  # only `checkpoint_every` counts

    def stop_if_asked(self) -> None:
        """Stop if asked to, during a read that changes nothing; no checkpoint is needed.

        Ranks that sync cannot stop here, because each has read a different number of blocks.
        """
        if self.job.task.share.adding.size == 1 and self._any(self.options.is_stopped())[0]:
            raise KeyboardInterrupt

    def is_late(self) -> bool:
        """Return whether the time limit is reached, in any of the ranks that sync."""
        late = seconds_left(self.settings.time_limit, self.begin) < 0
        return late if self.job.task.share.is_by_class else self._any(late)[0]

    def _any(self, asked: bool, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set in any rank.

        If ranks have separate classes, only `asked` is combined. This call also keeps the
        communication timeout from expiring.
        """
        if not self.job.task.share.is_by_class:
            return any_of(self.job.comm, asked, *flags)
        return [any_of(self.job.comm, asked, True)[0], *flags]

    def wait_for_all(self) -> None:
        """Wait until all ranks have finished, if they have separate classes."""
        is_one_at_work = self.job.task.share.is_by_class
        while is_one_at_work:
            asked, is_one_at_work = any_of(self.job.comm, self.options.is_stopped(), False)
            if asked:
                raise KeyboardInterrupt

    def elapsed(self) -> float:
        """Return the elapsed seconds, including those before a resume."""
        return self.state.elapsed + clock() - self.begin
