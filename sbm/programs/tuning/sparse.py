"""Cross-validation of sparse models: one walk from the smallest C to the largest.

The models of all folds are in memory, and every pass serves all of them. Each C starts from the
weights and the columns of the one before. A row's weight is 0 in the model that holds it out; its
margin is computed like the others, so models are evaluated without another read.

The walk writes a checkpoint after each C.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.clock import clock
from sbm.engine.columns import ColumnPasses
from sbm.engine.engine import y_dtype
from sbm.engine.learners import Folds, HeldOut
from sbm.engine.memory import MemoryPlan
from sbm.engine.progress import Progress
from sbm.errors import StoreError
from sbm.programs.training.columns import ColumnSteps, sparse_problems, total_certificate
from sbm.programs.training.evaluation import Evaluation
from sbm.programs.training.task import Task
from sbm.programs.tuning.grid import Grid, known_figures
from sbm.programs.tuning.state import LOOSER, table_report
from sbm.solver.l1 import SparseFit
from sbm.store.run import Run
from sbm.units import count, format_number

__all__ = ["SparseTuning"]


class SparseTuning:
    """Trains the models of all folds for one C after the other.

    Parameters
    ----------
    task, plan, grid, progress
        Those of the tuning.
    weights : RowWeights or None
    run : Run
        Receives the checkpoints.
    itself : dict
        The identity of this tuning, stored in each checkpoint.
    is_late : callable
        Whether the time limit is reached.
    """

    def __init__(
        self,
        task: Task,
        plan: MemoryPlan,
        grid: Grid,
        progress: Progress,
        weights: Any,
        run: Run,
        itself: dict[str, Any],
        is_late: Callable[[], bool],
    ) -> None:
        store, settings = task.store, task.settings
        self._grid, self._run, self._itself, self._store = grid, run, itself, store
        self._settings, self._progress, self._is_late = settings, progress, is_late
        n = grid.n_folds
        paths = [[p for mine in grid.problems[k : k + n] for p in mine]
                 for k in range(0, len(grid.problems), n)]  # fmt: skip
        self._paths = [sparse_problems(path, settings) for path in paths]
        held_out = HeldOut(Folds(n, settings.seed), grid.held_out[: len(paths[0])])
        staying = plan.staying(range(len(plan.parts)))
        self._reads = ColumnPasses(
            store, plan, settings, self._paths[0], progress, y_dtype(paths[0][0], store), staying,
            weights, held_out=held_out,
        )  # fmt: skip
        tol = LOOSER * settings.tol
        self._steps = ColumnSteps(self._reads, tol, progress, is_late, screens=False)
        self._tol, self._passes, self._table = tol, 0, list[dict[str, Any]]()

    def walk(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Train and evaluate the models of each C; return the report of `sbm.tune`."""
        if record is not None:
            self._resume(record)
        grid, done = self._grid, len(self._table)
        with self._reads.at_work():
            if done < len(grid.Cs):
                self._read()  # at the first C, from which `change_cost` goes on
            for C, problems in zip(grid.Cs[done:], self._paths[done:], strict=True):
                if self._is_late():
                    break
                for fit, problem in zip(self._reads.fits, problems, strict=True):
                    fit.change_cost(problem)
                self._reads.finish()
                self._table.append(self._solve(C))
                self._commit()
        missing = dict.fromkeys(("mean", "std", "folds", "relative_gap", "n_nonzero"))
        for C in grid.Cs[len(self._table) :]:
            self._table.append(
                {"C": C, **missing, "passes": 0, "seconds": 0.0, "status": "not tried"}
            )
        return table_report(grid, self._table, self._store) | {
            "passes": self._passes, "bytes_read": self._reads.reader.bytes_read,
        }  # fmt: skip

    def _read(self) -> None:
        """Run a pass."""
        self._passes += 1
        self._steps.read(f"tune, pass {self._passes}", lambda: None, self._passes, looks=True)

    def _solve(self, C: float) -> dict[str, Any]:
        """Train the models of one C; return its row of the table."""
        begin, passes, self._steps.solves = clock(), 0, 0
        gaps: list[float] = []
        while True:
            gaps.append(max(total_certificate(mine).relative_gap for mine in self._models()))
            if gaps[-1] <= self._tol or passes >= self._settings.max_passes or self._is_late():
                break
            self._steps.improve(gaps[-1], self._passes)
            self._read()
            passes += 1
        figures = [self._figure(k, mine) for k, mine in enumerate(self._models())]
        counts = [sum(int(np.count_nonzero(f.w)) for f in mine) for mine in self._models()]
        known = known_figures(figures)
        mean = statistics.fmean(known) if known else None
        self._progress.stage(
            f"tune, C = {format_number(C)}: {count(passes, 'pass')}, "
            f"{statistics.fmean(counts):,.0f} weights not 0"
        )
        return {
            "C": C, "mean": mean, "std": statistics.stdev(known) if len(known) > 1 else None,
            "folds": [x if x == x else None for x in figures],  # nan: undefined
            "passes": passes, "seconds": clock() - begin, "relative_gap": gaps[-1],
            "n_nonzero": statistics.fmean(counts),
            "status": "converged" if gaps[-1] <= self._tol else "not converged",
        }  # fmt: skip

    def _models(self) -> list[Sequence[SparseFit]]:
        """Return the fits of each fold."""
        fits = self._reads.fits
        each = len(fits) // self._grid.n_folds
        return [fits[k : k + each] for k in range(0, len(fits), each)]

    def _figure(self, fold: int, fits: Sequence[SparseFit]) -> float:
        """Evaluate a model on its held-out rows."""
        first = self._grid.problems[0][0]
        evaluation = Evaluation(self._grid.metric, first, self._store)
        rows = np.flatnonzero(self._reads.folds == fold)
        y = fits[0].labels.y[rows]
        evaluation.add(
            y.astype(np.int64) if first.classify else y, [fit.z[rows, None] for fit in fits]
        )
        return evaluation.figure

    def _commit(self) -> None:
        """Write a checkpoint."""
        arrays: dict[str, npt.NDArray[Any]] = {
            f"w-{k}": fit.w for k, fit in enumerate(self._reads.fits)
        }
        tuning = {"table": self._table, "bytes_read": self._reads.reader.bytes_read}
        self._run.commit({**self._itself, "tuning": tuning}, arrays)

    def _resume(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint."""
        try:
            tuning, arrays = record["tuning"], self._run.read_state()
            self._table = list(tuning["table"])
            self._reads.reader.bytes_read = tuning["bytes_read"]
            for k, fit in enumerate(self._reads.fits):
                fit.w[:] = arrays[f"w-{k}"]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StoreError(
                f"cannot resume {self._run.folder} ({error}); use --fresh to start over"
            ) from error
