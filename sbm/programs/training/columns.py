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
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.columns import ColumnPasses, FeatureSizes
from sbm.engine.engine import y_dtype
from sbm.engine.learners import HeldOut
from sbm.engine.problems import is_mirrored
from sbm.engine.progress import Progress
from sbm.programs.training.job import StartPoint
from sbm.programs.training.training import NO_CACHE, Training, WholePasses
from sbm.programs.training.warmstart import (
    earlier_blocks,
    find_run,
    last_run,
    lost_classes,
    refuse_other_classes,
    refuse_other_problem,
)
from sbm.solver.gap import Certificate, relative
from sbm.solver.l1 import Scratch, SparseFit, SparseProblem, Work, choose_features
from sbm.solver.problem import AnyProblem, Problem
from sbm.solver.step import Totals
from sbm.solver.sums import AT_ONCE
from sbm.store.run import Run
from sbm.units import format_number

__all__ = ["ColumnSteps", "Columns", "sparse_problems", "total_certificate"]

# Newton steps end at this share of the tolerance if all columns are in memory, which then shrinks;
# otherwise at this share of the last gap, and not below this share of the tolerance.
_WITHIN, _SHRINK, _OF_GAP, _LEAST = 0.5, 0.3, 0.001, 0.1
_FIRST = 0.1
_STUCK = 5  # passes


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
        self.reads, self._tol, self._progress, self._screens = reads, tol, progress, screens
        self._stop, self._sweeps = is_over, 0
        n = len(reads.fits[0].w)
        self.sizes, self.seen = FeatureSizes.of(n), np.zeros(n, np.int32)
        self.reach = np.full(n, np.inf)
        self.chosen, self.solves = np.empty(0, np.int32), 0

    @property
    def is_in_memory(self) -> bool:
        """Whether the chosen columns are in memory."""
        return np.array_equal(self.reads.columns.features, self.chosen)

    def look(self, what: str, after_block: Callable[[], None], number: int) -> bool:
        """Run a pass from its number; return False if there is nothing to certify.

        With weights of 0, the second pass would find the slopes of the first one.
        """
        looks = number != 2 or any(fit.w.any() for fit in self.reads.fits)
        self.read(what, after_block, number, looks)
        return looks

    def read(self, what: str, after_block: Callable[[], None], number: int, looks: bool) -> None:
        """Run a pass, the first of which counts."""
        self.reads.read(
            what, after_block, looks=looks, sizes=self.sizes, counts=not self.sizes.counts.any(),
            collect=None if self.is_in_memory else self.chosen,
        )  # fmt: skip
        if looks and self._screens:
            self._screen()

    def _screen(self) -> None:
        """Find features whose weights are 0 at the optimum, at the slopes of the last pass."""
        sizes, fits = self.sizes, self.reads.fits
        found = np.zeros(len(self.reach))
        for fit in fits:
            np.maximum(found, fit.reach(sizes.counts, sizes.squares), out=found)
        if fits[0].problem.intercept:
            found[-1] = np.inf
        np.minimum(self.reach, found, out=self.reach)

    def _column_sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of the columns of features whose weights may differ from 0."""
        fits = self.reads.fits
        # Less of the bound of a gradient may be rounding.
        is_out = self.reach < (1 - 1e-9) * fits[0].problem.l1
        for fit in fits:
            is_out &= fit.w == 0
        return np.where(is_out, 0, self.reads.column_sizes(self.sizes))

    def improve(self, relative_gap: float, number: int) -> Work:
        """Take Newton steps in the columns in memory, and choose those of the next pass."""
        reads, columns = self.reads, self.reads.columns
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
    share = min(relative(gap, primal, bound), 1e300)
    return Certificate(primal, bound, gap, share, 0.0)


def sparse_problems(problems: Sequence[AnyProblem], ratio: float) -> list[SparseProblem]:
    """Return the sparse versions of problems; `ratio` is the share of |W| in the penalty."""
    found = []
    for problem in problems:
        assert isinstance(problem, Problem)
        found.append(SparseProblem.of(problem, ratio))
    return found


def _is_over(training: Training) -> bool:
    """Return whether the time limit is reached; stop if asked. Called after each sweep."""
    training.stop_if_asked()
    return training.is_late()


class Columns(WholePasses):
    """Sparse models: a pass finds the slopes of all features, then the chosen columns are solved.

    Parameters
    ----------
    training : Training

    Attributes
    ----------
    fits : list of SparseFit
        One per problem.
    """

    name = family = "columns"
    restarts_passes, falls_late = True, False

    def __init__(self, training: Training) -> None:
        # A cycle would keep all arrays until the next garbage collection.
        self.training: Training = weakref.proxy(training)
        job, task = training.job, training.job.task
        self.reads = ColumnPasses(
            job.store, job.plan, task.visiting.threads,
            sparse_problems(training.problems, task.l1_ratio),
            job.options.progress, y_dtype(training.problems[0], job.store), job.staying,
            job.weights, job.options.read_rate, self.held_out(),
        )  # fmt: skip
        self.fits, self.seconds, self.reader = (
            self.reads.fits, self.reads.seconds, self.reads.reader,
        )  # fmt: skip
        self.steps = ColumnSteps(
            self.reads,
            training.task.tol,
            job.options.progress,
            partial(_is_over, self.training),
            screens=training.task.models == 1,
        )
        # Of the last pass: its certificate, its totals, and the steps after it.
        self._certificate: Certificate | None = None
        self._pass, self._work = Totals(), Work()

    def held_out(self) -> HeldOut | None:
        """Return which rows the models may not learn from: none."""
        return None

    @property
    def weights(self) -> list[npt.NDArray[np.float64]]:
        """The weights of each problem."""
        return [fit.w[:, None] for fit in self.fits]

    @property
    def dual(self) -> float:
        """The lower bound on the objective that the last pass certified."""
        return 0.0 if self._certificate is None else self._certificate.dual

    @property
    def is_worth_judging(self) -> bool:
        """Whether weights may differ from 0, or are those of the optimum."""
        tol, certificate = self.training.task.tol, self._certificate
        is_at_optimum = certificate is not None and certificate.relative_gap <= tol
        return self.training.state.passes > 2 or is_at_optimum

    def at_work(self) -> AbstractContextManager[None]:
        """Run the threads inside this context."""
        return self.reads.at_work()

    def start(self, start: StartPoint) -> None:
        """Start from zero, or from the weights of an earlier run."""
        if (run := self.training.settings.warm_start) is not None:
            self._start_warm(run)

    def ready(self) -> None:
        """Do nothing: there is nothing to agree on."""

    # --------------------------------------------------------------------------------- a pass

    def run_pass(self) -> Totals:
        """Read all rows at fixed weights, which certifies them, and collect columns."""
        training, number = self.training, self.training.state.passes + 1
        training.begin_pass(0)
        if self.steps.look(f"pass {number}", training.stop_if_asked, number):
            self._certificate = total_certificate(self.fits)
        assert self._certificate is not None
        self._pass, self._work = Totals(gap=self._certificate.gap), Work()
        return self._pass

    def may_be_done(self, done: Totals) -> bool:
        """Every pass certifies its weights."""
        return True

    def certify(self, is_last: bool, is_best: bool) -> Certificate:
        """Return the certificate of the pass."""
        certificate = self._certificate
        assert certificate is not None
        if is_best:
            self.training.keep(certificate)
        if is_last or certificate.relative_gap <= self.training.task.tol:
            self._say_least_cost()
        return certificate

    def _say_least_cost(self) -> None:
        """If all weights are 0 at the optimum, report the smallest C at which they are not."""
        penalized, l1 = self.fits[0].problem.penalized, self.fits[0].problem.l1
        most = max(float(np.abs(penalized(fit.g)).max(initial=0.0)) for fit in self.fits)
        if 0 < most <= l1 and not any(penalized(fit.w).any() for fit in self.fits):
            C = self.training.settings.C
            self.training.options.progress.stage(
                f"all weights are 0 at -C {format_number(C)}; "
                f"the first weight differs from 0 above -C {C * l1 / most:.6g}"
            )

    def move(self, certificate: Certificate | None) -> bool:
        """Take Newton steps in the columns; return False at the limit of the precision."""
        assert certificate is not None
        state = self.training.state
        self._take_work(self.steps.improve(certificate.relative_gap, state.passes))
        # The same columns, and no smaller gap than some passes ago.
        before = state.gaps[1 - _STUCK] if state.passes > _STUCK + 2 else math.inf
        return not self.steps.is_in_memory or before > certificate.gap

    def _take_work(self, work: Work) -> None:
        """Count the work of steps after a pass."""
        self._work, self.training.state.rounds[-1] = work, work.sweeps
        self._pass.updates, self._pass.visits = work.updates, work.nonzeros

    # -------------------------------------------------------------------- checkpoints and end

    def figures(self, done: Totals) -> dict[str, Any]:
        """Return the figures of the columns; those of a cache of rows are 0."""
        columns, seconds = self.reads.columns, self.training.spent()
        return {
            "rows_per_second": 0.0,
            "nnz_per_second": self._work.nonzeros / max(seconds["solve"], 1e-9),
            "newton_steps": self._work.steps,
            "nonzero_weights": sum(int(np.count_nonzero(fit.w)) for fit in self.fits),
            "columns": len(columns), "column_nnz": int(columns.starts[-1]),
            **NO_CACHE,
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """Return how sparse the model is."""
        return {
            "n_nonzero": sum(int(np.count_nonzero(W)) for W in self._of_model()),
            "n_weights": sum(len(fit.w) for fit in self.fits),
        }

    def _of_model(self) -> list[npt.NDArray[np.float64]]:
        weights = self.training.weights
        assert isinstance(weights, list)
        return weights

    def snapshot(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
        """Return weights, slopes and bounds, and what is known of the features."""
        steps = self.steps
        arrays: dict[str, npt.NDArray[Any]] = {
            **asdict(steps.sizes),
            "seen": steps.seen, "chosen": steps.chosen, "reach": steps.reach,
            "bounds": np.array([[fit.primal, fit.bound] for fit in self.fits]),
        }  # fmt: skip
        for k, fit in enumerate(self.fits):
            arrays |= {f"w-{k}": fit.w, f"g-{k}": fit.g}
        return {"family": self.family, "solves": steps.solves}, arrays

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint."""
        training, steps = self.training, self.steps
        arrays = training.run.read_state()
        steps.seen, steps.reach = arrays["seen"].copy(), arrays["reach"].copy()
        if record["shape"] == training.job.itself["shape"]:  # the same order of rows
            names = [one.name for one in fields(FeatureSizes)]
            steps.sizes = FeatureSizes(*(arrays[name].copy() for name in names))
            steps.chosen = arrays["chosen"].copy()
        steps.solves = record["method"]["solves"]
        for k, fit in enumerate(self.fits):
            fit.w[:], fit.g[:] = arrays[f"w-{k}"], arrays[f"g-{k}"]
            fit.primal, fit.bound = arrays["bounds"][k].tolist()
        self._certificate = total_certificate(self.fits)

    def _start_warm(self, run: str | Path | bool) -> None:
        """Start from the weights of an earlier run of sparse models on this store.

        Rows and features may have been added since; the weights of new features are 0.
        """
        job = self.training.job
        stage = job.options.progress.stage
        folders = last_run(job.path) if run is True else find_run(str(run))
        if not folders:
            stage(f"{job.path} has no earlier run; starting from zero")
            return
        if note := lost_classes(folders[0], job.store, job.itself, len(self.fits)):
            stage(note)
            return
        record = Run.read(folders[0])
        refuse_other_problem(folders[0], record.get("settings", {}), job.itself["settings"], True)
        shape = record["shape"]
        earlier_blocks(folders[0], shape["blocks"], shape["files"], job.store)
        earlier = Run.reopen(folders[0], [], record=record)[0].read_state()
        n, before = job.store.n_features, [w for w in earlier if w.startswith("w-")]
        if len(before) != len(self.fits) and len(before) < 2:  # two classes have one model
            refuse_other_classes(folders[0], record, job.store, len(before), len(self.fits))
        sign = -1.0 if is_mirrored(record.get("positive"), job.task.share.every[0]) else 1.0
        for k, fit in enumerate(self.fits[: len(before)]):
            w = earlier[f"w-{k}"]
            old = min(n, len(w) - (len(fit.w) - n))  # without that of the bias
            fit.w[:old] = sign * w[:old]
            fit.w[n:] = sign * w[old:]
