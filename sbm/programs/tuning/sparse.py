"""Cross-validation of sparse models: one walk from the smallest C to the largest.

The models of all folds are in memory, and every pass serves all of them. Each C starts from the
weights and the columns of the one before. A row's weight is 0 in the model that holds it out; its
margin is computed like the others, so models are evaluated without another read.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.learners import Folds, HeldOut
from sbm.programs.training.columns import Columns, sparse_problems, total_certificate
from sbm.programs.training.evaluation import Evaluation
from sbm.programs.training.training import Training
from sbm.programs.tuning.grid import Grid, known_figures
from sbm.solver.gap import Certificate
from sbm.solver.l1 import SparseFit
from sbm.solver.step import Totals
from sbm.units import count, format_number

__all__ = ["SparseCrossValidation"]


class SparseCrossValidation(Columns):
    """Trains the models of all folds for one C after the other.

    Parameters
    ----------
    training : Training
    grid : Grid
        The problems of its first C are those of the training.
    """

    name = family = "sparse cross-validation"

    def __init__(self, training: Training, grid: Grid) -> None:
        self.grid, n = grid, grid.n_folds
        paths = [
            [problem for some in grid.problems[k : k + n] for problem in some]
            for k in range(0, len(grid.problems), n)
        ]
        super().__init__(training)
        self._paths = [sparse_problems(path, training.task.l1_ratio) for path in paths]
        # The rows of finished values of C; passes and start of the current one.
        self._table: list[dict[str, Any]] = []
        self._passes, self._begin = -1, 0.0

    def held_out(self) -> HeldOut:
        """Return the held-out fold of each model."""
        grid = self.grid
        n = len(self.training.problems)
        return HeldOut(Folds(grid.n_folds, self.training.task.visiting.seed), grid.held_out[:n])

    @property
    def models(self) -> list[Sequence[SparseFit]]:
        """The fits of each fold."""
        each = len(self.fits) // self.grid.n_folds
        return [self.fits[k : k + each] for k in range(0, len(self.fits), each)]

    def worst(self) -> Certificate:
        """Return the certificate of the fold with the largest relative gap."""
        certificates = [total_certificate(fits) for fits in self.models]
        return max(certificates, key=lambda one: one.relative_gap)

    @property
    def is_over(self) -> bool:
        """Whether each C is finished, or the time is up."""
        return len(self._table) == len(self.grid.Cs) or self.training.is_late()

    def run_pass(self) -> Totals:
        """Read all rows; go on to the next C from weights whose gap is small enough."""
        done, training = super().run_pass(), self.training
        self._passes += 1
        while len(self._table) < len(self.grid.Cs):
            is_due = self._passes >= training.task.visiting.max_passes or training.is_late()
            if self.worst().relative_gap > training.task.tol and not is_due:
                break
            self._table.append(self._row())
            if self.is_over:
                break
            self._begin, self._passes, self.steps.solves = training.elapsed(), 0, 0
            self._change_cost()
            self.reads.finish()
            self._certificate = total_certificate(self.fits)
        return done

    def _change_cost(self) -> None:
        """Continue with the problems of the current C."""
        for fit, problem in zip(self.fits, self._paths[len(self._table)], strict=True):
            fit.change_cost(problem)

    def _row(self) -> dict[str, Any]:
        """Evaluate the models of the current C; return its row of the table."""
        grid, gap = self.grid, self.worst().relative_gap
        C = grid.Cs[len(self._table)]
        figures = [self._figure(k, fits) for k, fits in enumerate(self.models)]
        counts = [sum(int(np.count_nonzero(fit.w)) for fit in fits) for fits in self.models]
        known = known_figures(figures)
        self.training.options.progress.stage(
            f"tune, C = {format_number(C)}: {count(self._passes, 'pass')}, "
            f"{statistics.fmean(counts):,.0f} weights not 0"
        )
        return {
            "C": C,
            "mean": statistics.fmean(known) if known else None,
            "std": statistics.stdev(known) if len(known) > 1 else None,
            "folds": [x if x == x else None for x in figures],  # nan: undefined
            "passes": self._passes,
            "seconds": self.training.elapsed() - self._begin,
            "relative_gap": gap,
            "n_nonzero": statistics.fmean(counts),
            "status": "converged" if gap <= self.training.task.tol else "not converged",
        }

    def _figure(self, fold: int, fits: Sequence[SparseFit]) -> float:
        """Evaluate a model on its held-out rows."""
        first, store = self.grid.problems[0][0], self.training.task.store
        evaluation = Evaluation(self.grid.metric, first, store)
        rows = np.flatnonzero(self.reads.folds == fold)
        y = fits[0].labels.y[rows]
        evaluation.add(
            y.astype(np.int64) if first.classify else y, [fit.z[rows, None] for fit in fits]
        )
        return evaluation.figure

    def may_be_done(self, done: Totals) -> bool:
        """Whether there is no C left to train."""
        return self.is_over

    def certify(self, is_last: bool, is_best: bool) -> Certificate:
        """Return the certificate of the fold with the largest relative gap."""
        return self.worst()

    def move(self, certificate: Certificate | None) -> bool:
        """Take Newton steps in the columns, unless there is no C left to train."""
        if self.is_over:
            return False
        number = self.training.state.passes
        self._take_work(self.steps.improve(self.worst().relative_gap, number))
        return True

    def tell(self, record: dict[str, Any]) -> None:
        """Report nothing more: each C is reported when it is finished."""

    def facts(self) -> dict[str, Any]:
        """Return the table of values of C, and the best one; see `sbm.tune`."""
        grid, names = self.grid, ("mean", "std", "folds", "relative_gap", "n_nonzero")
        missing = {**dict.fromkeys(names), "passes": 0, "seconds": 0.0, "status": "not tried"}
        rest = [{"C": C, **missing} for C in grid.Cs[len(self._table) :]]
        return grid.report([*self._table, *rest], str(self.training.task.store.folder))

    def snapshot(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
        """Return the state of the models, and the finished rows of the table."""
        record, arrays = super().snapshot()
        begin = self.training.elapsed() - self._begin
        return record | {"table": self._table, "passes": self._passes, "seconds": begin}, arrays

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint."""
        super().restore(record)
        method = record["method"]
        self._table, self._passes = list(method["table"]), method["passes"]
        self._begin = self.training.elapsed() - method["seconds"]
        if len(self._table) < len(self.grid.Cs):
            for fit, problem in zip(self.fits, self._paths[len(self._table)], strict=True):
                fit.problem = problem
