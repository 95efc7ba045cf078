"""Train sparse models: the passes of `--penalty l1` and `--penalty elasticnet`.

The mirror of selective block minimization: the margins of all rows and the columns of the features
that matter are in memory. A pass over the blocks of rows computes the slopes of all features, which
certify the model, and collects the columns chosen last. Between two passes, Newton steps improve
the weights of these columns (`sbm.solver.l1`).

The first pass counts the nonzeros of each feature, the second collects the first columns. If all
columns fit, a third pass certifies the model. Each pass ends with a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.clock import clock
from sbm.engine.columns import AT_ONCE, ColumnPasses, FeatureSizes
from sbm.engine.engine import y_dtype
from sbm.engine.machine import peak_bytes, resident_bytes
from sbm.engine.pace import foresee_passes, is_falling
from sbm.engine.problems import is_mirrored
from sbm.engine.progress import Progress
from sbm.errors import SettingsError, StoreError
from sbm.programs.training.job import TrainingPlan
from sbm.programs.training.setup import time_left
from sbm.programs.training.warmstart import (
    earlier_blocks,
    find_run,
    last_run,
    lost_classes,
    refuse_other_classes,
)
from sbm.settings import Settings, option_name
from sbm.solver.gap import Certificate, relative
from sbm.solver.l1 import Scratch, SparseFit, SparseProblem, Work, choose_features
from sbm.solver.problem import AnyProblem, Problem
from sbm.store.run import Run
from sbm.units import count, format_number

__all__ = [
    "ColumnSteps", "refuse_for_sparse", "sparse_problems", "total_certificate", "train_sparse",
]  # fmt: skip

# Settings of the cache of rows, and of trainings that sparse models do not have.
_OF_ROWS = ("cache_frac", "parts", "rounds", "policy", "screen", "calibrate")
# Newton steps end at this share of the tolerance if all columns are in memory, which then shrinks;
# otherwise at this share of the last gap, and not below this share of the tolerance.
_WITHIN, _SHRINK, _OF_GAP, _LEAST = 0.5, 0.3, 0.001, 0.1
_FIRST = 0.1
_SURE = 1 - 1e-9  # of the bound of a gradient: less is not rounding
_STUCK = 5  # passes
_MOST_GAP = 1e300  # JSON has no infinity


def refuse_for_sparse(settings: Settings, processes: int) -> None:
    """Check for options that sparse models do not support.

    Raises
    ------
    SettingsError
        Such an option was given.
    """
    if processes > 1:
        raise SettingsError(
            f"penalty {settings.penalty} needs a single process, but there are {processes}; "
            "train without --launch"
        )
    for name in _OF_ROWS:
        if getattr(settings, name) != getattr(Settings, name):
            raise SettingsError(
                f"{option_name(name)} does not apply to penalty {settings.penalty}; leave it out"
            )


def train_sparse(
    job: TrainingPlan, run: Run, record: Mapping[str, Any] | None
) -> tuple[list[npt.NDArray[np.float64]], dict[str, Any]]:
    """Train from zero, or from a checkpoint of this run.

    Returns
    -------
    weights : list of ndarray, shape (n_weights, 1), float64
        One per problem.
    report : dict
        See `sbm.train`.
    """
    training = _SparseTraining(job, run)
    report = job.share.total(training.run_passes(record))
    return training.weights, report


@dataclass
class SparseState:
    """The progress of a training, without arrays.

    Attributes
    ----------
    passes : int
    rounds : list of int
        Sweeps over columns after each pass.
    gaps : list of float
        Relative gap certified by each pass.
    updates, visits : int
        Changes of weights; visits of nonzeros of columns.
    solves : int
        Number of times that Newton steps were taken with all columns in memory.
    certificate : Certificate or None
    best : dict or None
        State of the validation, without arrays.
    is_done : bool
    seconds : dict of str to float
    elapsed : float
    bytes_read : int
    """

    passes: int = 0
    rounds: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    updates: int = 0
    visits: int = 0
    solves: int = 0
    certificate: Certificate | None = None
    best: dict[str, Any] | None = None
    is_done: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    elapsed: float = 0.0
    bytes_read: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> SparseState:
        """Create a state from a checkpoint."""
        state = cls(**{one.name: record[one.name] for one in fields(cls)})
        if record["certificate"] is not None:
            state.certificate = Certificate(**record["certificate"])
        return state


class ColumnSteps:
    """The features in memory: which they are, and the steps in their weights between two passes.

    Parameters
    ----------
    reads : ColumnPasses
    tol : float
        Relative gap to reach.
    progress : Progress
    is_over : callable
        Called after each sweep; ends the steps if true.
    screens : bool
        Whether features whose weights are certainly 0 are left out. They may differ from 0 at
        another C.

    Attributes
    ----------
    sizes : FeatureSizes
        Counted in the first pass.
    seen : ndarray, shape (n_weights,), int32
        The last pass in which each feature was in memory.
    reach : ndarray, shape (n_weights,), float64
        The most that the gradient of each feature can be at the optimum; see `SparseFit.reach`.
    chosen : ndarray, int32
        Features whose columns the next pass collects.
    solves : int
        Number of times that steps were taken with all columns in memory.
    """

    def __init__(
        self,
        reads: ColumnPasses,
        tol: float,
        progress: Progress,
        is_over: Callable[[], bool],
        screens: bool = True,
    ) -> None:
        self._reads, self._tol, self._progress, self._screens = reads, tol, progress, screens
        self._stop, self._sweeps = is_over, 0
        n = len(reads.fits[0].w)
        self.sizes, self.seen = FeatureSizes.of(n), np.zeros(n, np.int32)
        self.reach = np.full(n, np.inf)
        self.chosen, self.solves = np.empty(0, np.int32), 0

    @property
    def is_in_memory(self) -> bool:
        """Whether the chosen columns are in memory."""
        return np.array_equal(self._reads.columns.features, self.chosen)

    def look(self, what: str, after_block: Callable[[], None], number: int) -> bool:
        """Run a pass from its number; return False if there is nothing to certify.

        With weights of 0, the second pass would find the slopes of the first one.
        """
        looks = number != 2 or any(fit.w.any() for fit in self._reads.fits)
        self.read(what, after_block, number, looks)
        return looks

    def read(self, what: str, after_block: Callable[[], None], number: int, looks: bool) -> None:
        """Run a pass, the first of which counts."""
        self._reads.read(
            what, after_block, looks=looks, sizes=self.sizes, counts=not self.sizes.counts.any(),
            collect=None if self.is_in_memory else self.chosen,
        )  # fmt: skip
        if looks and self._screens:
            self._screen()

    def _screen(self) -> None:
        """Find features whose weights are 0 at the optimum, at the slopes of the last pass."""
        sizes, fits = self.sizes, self._reads.fits
        found = np.zeros(len(self.reach))
        for fit in fits:
            np.maximum(found, fit.reach(sizes.counts, sizes.squares), out=found)
        if fits[0].problem.intercept:
            found[-1] = np.inf
        np.minimum(self.reach, found, out=self.reach)

    def _column_sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of the columns of features whose weights may differ from 0."""
        fits = self._reads.fits
        is_out = self.reach < _SURE * fits[0].problem.l1
        for fit in fits:
            is_out &= fit.w == 0
        return np.where(is_out, 0, self._reads.column_sizes(self.sizes))

    def improve(self, relative_gap: float, number: int) -> Work:
        """Take Newton steps in the columns in memory, and choose those of the next pass."""
        reads, columns = self._reads, self._reads.columns
        sizes = self._column_sizes()
        work, gains = Work(), np.zeros(len(columns))
        outside = sizes.copy()
        outside[columns.features] = 0
        if len(columns):
            within = max(_OF_GAP * relative_gap, _LEAST * self._tol)
            if not outside.any():
                within = self._tol * _WITHIN * _SHRINK**self.solves
                if self.solves == 0 and len(reads.fits) > AT_ONCE:  # a start for every class
                    within = max(within, _FIRST)
                self.solves += 1

            def improve(fit: SparseFit, scratch: Scratch) -> tuple[Work, Any]:
                return fit.improve(columns, scratch, within, self._is_over, spread=reads.spread())

            self._sweeps = 0
            self._progress.start(f"solve {number}", None, "sweeps")
            with reads.seconds.measure("solve"):
                for mine, gain in reads.for_each_fit(improve):
                    work.add(mine)
                    gains += gain
            self._progress.finish()
            self.seen[columns.features] = number
        if len(columns) and not outside.any():
            self.chosen = columns.features
        elif sizes.sum() <= reads.room():
            self.chosen = np.flatnonzero(sizes).astype(np.int32)
        else:
            self.chosen = choose_features(
                reads.fits, sizes, self.sizes.squares, reads.room(), columns.features, gains,
                self.seen,
            )  # fmt: skip
        return work

    def _is_over(self) -> bool:
        self._sweeps += 1
        self._progress.advance(self._sweeps)
        return self._stop()


def total_certificate(fits: Sequence[SparseFit]) -> Certificate:
    """Return the certificate of models together."""
    primal, bound = math.fsum(fit.primal for fit in fits), math.fsum(fit.bound for fit in fits)
    gap = max(0.0, primal - bound)
    share = min(relative(gap, primal, bound), _MOST_GAP)
    return Certificate(primal, bound, gap, share, 0.0)


def sparse_problems(problems: Sequence[AnyProblem], settings: Settings) -> list[SparseProblem]:
    """Return the sparse versions of problems."""
    ratio = settings.l1_ratio if settings.penalty == "elasticnet" else 1.0
    found = []
    for problem in problems:
        assert isinstance(problem, Problem)
        found.append(SparseProblem.of(problem, ratio))
    return found


class _SparseTraining:
    """A running training of sparse models.

    Parameters
    ----------
    job : TrainingPlan
    run : Run
        Receives the checkpoints.
    """

    def __init__(self, job: TrainingPlan, run: Run) -> None:
        self._job, self._run, self._settings = job, run, job.settings
        self._options, self._begin = job.options, job.begin
        problems = sparse_problems(job.share.problems, job.settings)
        self._staying = job.plan.staying(job.own, job.reserved)
        self._reads = ColumnPasses(
            job.store, job.plan, job.settings, problems, job.options.progress,
            y_dtype(job.share.problems[0], job.store), self._staying, job.weights,
            job.options.read_rate,
        )  # fmt: skip
        self.fits = self._reads.fits
        self._steps = ColumnSteps(
            self._reads, self._settings.tol, job.options.progress, self._is_over
        )
        self._state = SparseState()
        if job.validation is not None:
            job.validation.start([fit.w[:, None] for fit in self.fits])

    def run_passes(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Train from zero or from a checkpoint of this run; return the report."""
        if record is not None:
            self._resume(record)
        elif self._settings.warm_start is not None:
            self._start_warm(self._settings.warm_start)
        state = self._state
        with self._reads.at_work():
            while not state.is_done:
                self._pass()
        return self._report()

    # --------------------------------------------------------------------------------- a pass

    def _pass(self) -> None:
        """Read all rows, certify the model, and improve it unless this is the last pass."""
        state, settings = self._state, self._settings
        state.passes += 1
        if self._steps.look(f"pass {state.passes}", self._stop_if_asked, state.passes):
            state.certificate = total_certificate(self.fits)
        certificate = state.certificate
        assert certificate is not None
        state.gaps.append(certificate.relative_gap)
        is_late = time_left(settings, self._begin) < 0
        is_last = certificate.relative_gap <= settings.tol or is_late
        is_last = is_last or state.passes >= settings.max_passes
        if is_last:
            self._say_least_cost()
        validation = self._job.validation
        if validation is not None and (is_last or state.passes > 2):  # before, all may be 0
            weights = [fit.w[:, None] for fit in self.fits]
            problems = self._job.share.problems
            if validation.judge(
                state.passes, problems, weights, certificate.relative_gap,
                after_batch=self._stop_if_asked,
            ):  # fmt: skip
                validation.keep(weights, certificate)
            is_last = is_last or validation.is_over
        work = Work()
        if not is_last:
            work = self._steps.improve(certificate.relative_gap, state.passes)
        state.rounds.append(work.sweeps)
        state.updates += work.updates
        state.visits += work.nonzeros
        # The limit of the precision: the same columns, and no smaller gap.
        is_stuck = self._steps.is_in_memory and state.gaps[-_STUCK:][0] <= certificate.relative_gap
        is_stuck = is_stuck and state.passes > _STUCK + 2
        state.is_done = is_last or is_stuck
        self._log(work)
        self._commit()
        if not state.is_done and self._job.is_too_large():
            raise MemoryError

    def _say_least_cost(self) -> None:
        """If all weights are 0 at the optimum, report the smallest C at which they are not."""
        penalized, l1 = self.fits[0].problem.penalized, self.fits[0].problem.l1
        most = max(float(np.abs(penalized(fit.g)).max(initial=0.0)) for fit in self.fits)
        if 0 < most <= l1 and not any(penalized(fit.w).any() for fit in self.fits):
            least = self._settings.C * l1 / most
            self._options.progress.stage(
                f"all weights are 0 at -C {format_number(self._settings.C)}; "
                f"the first weight differs from 0 above -C {least:.6g}"
            )

    def _is_over(self) -> bool:
        """Return whether the time limit is reached; stop if asked. Called after each sweep."""
        self._stop_if_asked()
        return time_left(self._settings, self._begin) < 0

    def _stop_if_asked(self) -> None:
        """Stop if asked to; the checkpoint of the last pass is the one to resume from."""
        if self._options.is_stopped():
            raise KeyboardInterrupt

    # -------------------------------------------------------------------- checkpoints and end

    def _commit(self) -> None:
        """Write a checkpoint."""
        state = self._state
        with self._reads.seconds.measure("write"):
            arrays: dict[str, npt.NDArray[Any]] = {
                **asdict(self._steps.sizes),
                "seen": self._steps.seen, "chosen": self._steps.chosen, "reach": self._steps.reach,
                "bounds": np.array([fit.bound for fit in self.fits]),
            }  # fmt: skip
            for k, fit in enumerate(self.fits):
                arrays |= {f"w-{k}": fit.w, f"g-{k}": fit.g}
            if self._job.validation is not None:
                state.best = self._job.validation.record()
                arrays |= self._job.validation.arrays()
            state.bytes_read, state.solves = self._reads.reader.bytes_read, self._steps.solves
            state.seconds = asdict(self._reads.seconds)
            certificate = state.certificate.to_dict() if state.certificate else None
            record = asdict(state) | {"certificate": certificate, "elapsed": self._elapsed()}
            self._run.commit({**self._job.itself, **record}, arrays)

    def _resume(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint."""
        try:
            self._state = state = SparseState.of(record)
            arrays = self._run.read_state()
            steps, validation = self._steps, self._job.validation
            if validation is not None and state.best is not None:
                validation.restore(state.best, self._run)
            steps.seen, steps.reach = arrays["seen"].copy(), arrays["reach"].copy()
            if record["shape"] == self._job.itself["shape"]:  # the same order of rows
                names = [one.name for one in fields(FeatureSizes)]
                steps.sizes = FeatureSizes(*(arrays[name].copy() for name in names))
                steps.chosen = arrays["chosen"].copy()
            steps.solves = state.solves
            for k, fit in enumerate(self.fits):
                fit.w[:], fit.g[:] = arrays[f"w-{k}"], arrays[f"g-{k}"]
                fit.bound = float(arrays["bounds"][k])
            for name, value in state.seconds.items():
                setattr(self._reads.seconds, name, value)
            self._reads.reader.bytes_read = state.bytes_read
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StoreError(
                f"cannot resume {self._run.folder} ({error}); use --fresh to start over"
            ) from error
        if state.passes == 1:  # the second pass does not compute them
            assert state.certificate is not None
            for fit in self.fits:
                fit.primal = state.certificate.primal / len(self.fits)
        self._options.progress.stage(
            f"resuming {self._run.folder} after {count(state.passes, 'pass')}; --fresh starts over"
        )

    def _start_warm(self, run: str | Path | bool) -> None:
        """Start from the weights of an earlier run of sparse models on this store.

        Rows and features may have been added since; the weights of new features are 0.
        """
        folders = last_run(self._job.path) if run is True else find_run(str(run))
        if not folders:
            self._options.progress.stage(f"{self._job.path} has no earlier run; starting from zero")
            return
        if note := lost_classes(folders[0], self._job.store, self._settings, len(self.fits)):
            self._options.progress.stage(note)
            return
        record = Run.read(folders[0])
        was, chosen = record.get("settings", {}), self._settings
        for name in ("penalty", "loss", "task", "bias", "intercept"):
            if was.get(name) != getattr(chosen, name):
                raise SettingsError(
                    f"{folders[0]} was trained with {name} {was.get(name)}, but {name} is now "
                    f"{getattr(chosen, name)}; leave out --warm-start"
                )
        shape = record["shape"]
        earlier_blocks(folders[0], shape["blocks"], shape["files"], self._job.store)
        earlier = Run.reopen(folders[0], [], record=record)[0].read_state()
        n, before = self._job.store.n_features, [w for w in earlier if w.startswith("w-")]
        if len(before) != len(self.fits) and len(before) < 2:  # two classes have one model
            refuse_other_classes(folders[0], record, self._job.store, len(before), len(self.fits))
        sign = -1.0 if is_mirrored(record.get("positive"), self._job.share.every[0]) else 1.0
        for k, fit in enumerate(self.fits[: len(before)]):
            w = earlier[f"w-{k}"]
            old = min(n, len(w) - (len(fit.w) - n))  # without that of the bias
            fit.w[:old] = sign * w[:old]
            fit.w[n:] = sign * w[old:]

    def _elapsed(self) -> float:
        return self._state.elapsed + clock() - self._begin

    def _log(self, work: Work) -> None:
        """Log the figures of a pass; those of alphas and of the cache of rows are 0."""
        state, certificate = self._state, self._state.certificate
        assert certificate is not None
        validation = self._job.validation
        seconds = asdict(self._reads.seconds)
        solve = max(seconds["solve"], 1e-9)
        record = {
            "pass": state.passes, "rounds": state.rounds[-1], "elapsed": self._elapsed(),
            "seconds": seconds, "rows_per_second": 0.0, "nnz_per_second": state.visits / solve,
            "dual": certificate.dual, "estimated_gap": certificate.gap,
            "estimated_relative_gap": certificate.relative_gap, "tol": self._settings.tol,
            "passes_left": foresee_passes(state.gaps, self._settings.tol), "visits": work.nonzeros,
            "updates": work.updates, "newton_steps": work.steps,
            "nonzero_weights": sum(int(np.count_nonzero(fit.w)) for fit in self.fits),
            "columns": len(self._reads.columns),
            "column_nnz": int(self._reads.columns.starts[-1]), "free_rows": None,
            "bytes_read": self._reads.reader.bytes_read, "resident_bytes": resident_bytes(),
            "certificate": certificate.to_dict(),
            "validation": None if validation is None else validation.figures(),
            **dict.fromkeys(("cache_rows", "cached_rows", "cached_free", "cached_zero",
                             "cache_hits", "rows_at_rest", "visits_cut_short"), 0),
            "cached_ages": [],
        }  # fmt: skip
        self._run.log({"event": "pass", **record})
        self._options.progress.row(record)

    @property
    def weights(self) -> list[npt.NDArray[np.float64]]:
        """The weights of the model."""
        validation = self._job.validation
        return validation.weights if validation else [fit.w[:, None] for fit in self.fits]

    def _report(self) -> dict[str, Any]:
        """Return the report of the finished training; see `sbm.train`."""
        state, certificate = self._state, self._state.certificate
        assert certificate is not None
        tol, found = self._settings.tol, None
        if (validation := self._job.validation) is not None:
            found = validation.report("tol" if certificate.relative_gap <= tol else "limit")
            certificate = validation.certificate
        seconds = asdict(self._reads.seconds)
        seconds["compile"] += self._job.compile_seconds
        return {
            **certificate.to_dict(),
            "converged": certificate.relative_gap <= tol, "validation": found,
            "passes": state.passes, "rounds": state.rounds, "updates": state.updates,
            "visits": state.visits, "visits_cut_short": 0,
            "seconds": {"total": self._elapsed(), **seconds},
            "bytes_read": self._reads.reader.bytes_read, "peak_rss_bytes": peak_bytes(),
            "n_nonzero": sum(int(np.count_nonzero(W)) for W in self.weights),
            "n_weights": sum(len(fit.w) for fit in self.fits),
            "blocks": len(self._job.plan.parts), "decoded_blocks": len(self._staying),
            "passes_left": foresee_passes(state.gaps, tol),
            "is_falling": is_falling(state.gaps, tol),
        }  # fmt: skip
