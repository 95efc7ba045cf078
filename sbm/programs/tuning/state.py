"""A running tuning: its models, the decisions about them, and its checkpoints."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sbm.engine.certificate import certify_each
from sbm.engine.engine import Engine
from sbm.engine.learners import Group, Learner
from sbm.engine.pace import choose_rounds
from sbm.engine.snapshot import restore, snapshot
from sbm.errors import DataError, StoreError
from sbm.programs.training.evaluation import Evaluation
from sbm.programs.training.second_order import NewtonSteps
from sbm.programs.training.task import Task
from sbm.programs.training.training import CommitClock
from sbm.programs.tuning.grid import Candidate, Grid, known_figures, lag, mean_figure
from sbm.solver.gap import Certificate, ray
from sbm.solver.step import Totals
from sbm.store.blocks import BlockStore
from sbm.store.run import Run
from sbm.units import format_number

__all__ = ["LOOSER", "Tuning", "fork", "table_report"]

# Folds are trained to this multiple of the tolerance, which is enough to find the best C.
LOOSER = 10.0
# Metrics of models with a larger estimated relative gap are not used to drop them.
TRUST = 0.1
# A C is dropped if its metric is worse than the best one by more than ERRORS standard errors plus
# CHANGES times its change in the last pass.
ERRORS, CHANGES = 2.0, 4.0


class Tuning:
    """Trains the models of all C and folds, and decides which ones continue.

    Parameters
    ----------
    engine : Engine
        With a learner for each problem of the grid.
    task : Task
        That of all models together.
    grid : Grid
    run : Run
        Receives the checkpoints.
    itself : dict
        The identity of this tuning, stored in each checkpoint.
    """

    def __init__(
        self, engine: Engine, task: Task, grid: Grid, run: Run, itself: dict[str, Any]
    ) -> None:  # fmt: skip
        self.engine, self.grid, self._run, self._itself = engine, grid, run, itself
        self.settings, self.progress = engine.settings, engine.progress
        first, store = grid.problems[0][0], engine.store
        learners = iter(engine.learners)
        self.candidates = []
        for k, mine in enumerate(grid.problems):
            evaluation = Evaluation(grid.metric, first, store)
            group = Group(list(itertools.islice(learners, len(mine))), evaluation)
            self.candidates.append(Candidate(grid.Cs[k // grid.n_folds], group, evaluation))
        self.newton: NewtonSteps | None = None
        if task.method == "newton":
            self.newton = NewtonSteps(engine, task, LOOSER * self.settings.tol)
        self.passes = 0
        self.rounds: list[int] = []
        self.given_up: set[float] = set()
        self.waiting = grid.Cs[max(2, math.ceil(len(grid.Cs) / 2)) :]
        self._free: dict[int, int] = {}
        self._told: set[float] = set()  # values of C that were reported
        self._commits = CommitClock()
        for candidate in self.candidates:
            candidate.set_active(candidate.C not in self.waiting)

    def commit_if_due(self) -> None:
        """Write a checkpoint if the last one is old enough, as in a training; call it after passes.

        A checkpoint takes many writes that wait for the disk; passes over few rows are much faster.
        """
        if self._commits.elapsed() >= self._commits.interval:
            with self._commits.measure():
                self.commit()

    def commit(self) -> None:
        """Write a checkpoint; call it between two passes."""
        place, state = snapshot(self.engine)
        tuning = {
            "passes": self.passes,
            "rounds": self.rounds,
            "given_up": sorted(self.given_up),
            "waiting": self.waiting,
            "free": {str(k): n for k, n in self._free.items()},
            "bytes_read": self.engine.reader.bytes_read,
            "candidates": [candidate.record() for candidate in self.candidates],
        }
        if self.newton is not None:
            tuning["newton"] = self.newton.record()
            state |= self.newton.arrays()
        self._run.commit({**self._itself, "tuning": tuning, "engine": place}, state)

    def resume(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint.

        Raises
        ------
        StoreError
            The checkpoint is invalid.
        """
        try:
            tuning = record["tuning"]
            self.passes, self.rounds = tuning["passes"], tuning["rounds"]
            self.given_up, self.waiting = set(tuning["given_up"]), tuning["waiting"]
            self._free = {int(k): n for k, n in tuning["free"].items()}
            for candidate, one in zip(self.candidates, tuning["candidates"], strict=True):
                candidate.restore(one)
            self.engine.reader.bytes_read = tuning["bytes_read"]
            restore(self.engine, record["engine"], self._run)
            self._told = {c.C for c in self.candidates if c.passes and not c.is_active}
            if self.newton is not None:
                self.newton.restore(tuning["newton"])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StoreError(
                f"cannot resume {self._run.folder} ({error}); use --fresh to start over"
            ) from error
        self.progress.stage(
            f"resuming {self._run.folder} after {_passes(self.passes)}; --fresh starts over"
        )

    @property
    def active(self) -> list[Candidate]:
        """The models that take part in the next pass."""
        return [c for c in self.candidates if c.is_active]

    def run_pass(self) -> None:
        """Run a pass of the active models; pause those with a small enough gap."""
        self.passes += 1
        self.rounds.append(self._next_rounds())
        self.engine.set_pace(self.rounds[-1], self._free)
        active = self.active
        for candidate in active:
            # Do not evaluate at the poor weights of the first half of the first pass.
            fresh = candidate.passes == 0 and self.passes == 1 and self.newton is None
            n_rows = self.engine.store.n_rows
            candidate.evaluation.clear(n_rows // (2 * self.grid.n_folds) if fresh else 0)
        groups = [c.group for c in active]
        if self.newton is not None:
            found = self.newton.visit(groups, f"tune, pass {self.passes}")
            gaps = [self._move(self.newton, c, found) for c in active]
        else:
            totals, self._free = self.engine.run_pass(self.passes, groups, "tune, pass")
            gaps = [self._estimate(c, totals) for c in active]
        for candidate, gap in zip(active, gaps, strict=True):
            candidate.passes += 1
            candidate.metrics.append(self._figure(candidate))
            candidate.gap = gap
            if gap * candidate.ratio <= LOOSER * self.settings.tol:
                candidate.set_active(False)

    def _next_rounds(self) -> int:
        """Return the rounds of the next pass; ``auto`` is 1, enough for the looser tolerance."""
        if self.settings.rounds == "auto":
            return 1
        return choose_rounds(self.settings.rounds, len(self.engine.plan.parts), self.rounds)

    def go_up(self) -> None:
        """Start the next larger C if the largest so far is as good as the best.

        The largest C is compared regardless of its gap. If it is worse, it keeps training and is
        compared again after the next pass.
        """
        started = [C for C in self.grid.Cs if C not in self.waiting]
        top, best = started[-1], self._best()
        latest = self._latest()
        if not self.waiting or (best is not None and top not in latest):
            return
        if best is not None and best != top:
            behind, error = lag(latest[best], latest[top])
            if behind > error:
                return
        C = self.waiting.pop(0)
        for source, target in zip(self._of(top), self._of(C), strict=True):
            for a, b in zip(source.learners, target.learners, strict=True):
                if self.newton is not None:
                    b.solver.W[:] = a.solver.W
                else:
                    fork(self.engine, a, b, C / top)
            target.set_active(True)

    def _is_trusted(self, C: float) -> bool:
        """Return whether the models are close enough to their optimum to trust their metric."""
        return all(c.gap <= TRUST for c in self._of(C))

    def _latest(self) -> dict[float, list[float]]:
        """Return the last metric of each fold, by C, without dropped values of C."""
        left = [C for C in self.grid.Cs if C not in self.given_up]
        groups = {C: self._of(C) for C in left}
        return {C: [c.metrics[-1] for c in g] for C, g in groups.items() if g[0].metrics}

    def _best(self) -> float | None:
        """Return the C with the best mean so far; None while the metric is undefined."""
        means = {C: mean_figure(figures) for C, figures in self._latest().items()}
        best = max(means, key=lambda C: means[C])
        return best if math.isfinite(means[best]) else None

    def _estimate(self, candidate: Candidate, totals: Mapping[int, Totals]) -> float:
        """Return the relative gap of a candidate, estimated in the last pass."""
        gap, dual = candidate.group.estimate(totals)
        return gap / max(abs(dual), 1e-300)

    def _move(
        self, newton: NewtonSteps, candidate: Candidate, found: Mapping[int, Certificate]
    ) -> float:
        """Choose a candidate's next weights, unless its gap is small enough; return the gap."""
        gap = Certificate.total([found[x.number] for x in candidate.learners]).relative_gap
        if gap > LOOSER * self.settings.tol:
            with self.engine.seconds.measure("solve"):
                candidate.set_active(newton.move(candidate.learners, found))
        return gap

    def _figure(self, candidate: Candidate) -> float:
        return self.grid.metric.sign * candidate.evaluation.figure

    def _of(self, C: float) -> list[Candidate]:
        return [c for c in self.candidates if c.C == C]

    def give_up(self) -> None:
        """Drop values of C that are clearly worse than the best one and hardly change.

        If the dropped C is larger than the best one, all larger values are dropped, too.
        """
        latest, best = self._latest(), self._best()
        for C, mine in latest.items():
            if best is None or best == C or not self._is_trusted(C):
                continue
            group = self._of(C)
            late = [c.metrics[-2:] for c in group if len(c.metrics) > 1]
            changes = known_figures([now - before for before, now in late])
            if not changes:
                continue
            behind, error = lag(latest[best], mine)
            if behind > ERRORS * error + CHANGES * abs(statistics.fmean(changes)):
                self._drop(other for other in latest if other == C or other > C > best)

    def _drop(self, Cs: Iterable[float]) -> None:
        """Drop values of C whose models are still active."""
        for C in Cs:
            if any(c.is_active for c in self._of(C)):
                self.given_up.add(C)
                for candidate in self._of(C):
                    candidate.set_active(False)

    def judge(self) -> None:
        """Certify and evaluate, at fixed weights, all models that were not dropped.

        Those whose gap was estimated too low take part in further passes. Newton's method does not
        estimate gaps.
        """
        left = [c for c in self.candidates if c.metrics and c.C not in self.given_up]
        for candidate in left:
            candidate.evaluation.clear()
            candidate.set_active(True)
        groups = [c.group for c in left]
        if self.newton is not None:
            found = self.newton.visit(groups, "certify")
        else:
            found = {k: one for k, (one, _) in certify_each(self.engine, groups).items()}
        for candidate in left:
            parts = [found[x.number] for x in candidate.learners]
            candidate.certificate = Certificate.total(parts)
            candidate.metrics.append(self._figure(candidate))
            gap = candidate.certificate.relative_gap
            candidate.ratio = max(candidate.ratio, gap / candidate.gap if candidate.gap > 0 else 1)
            candidate.set_active(self.newton is None and gap > LOOSER * self.settings.tol)

    def tell(self, n_active: int) -> None:
        """Report the values of C that the last pass finished, and in detail the pass itself."""
        self.progress.note(
            f"tune, pass {self.passes}: {n_active} models, {len(self.active)} in the next"
        )
        for C, figures in self._latest().items():
            candidates = self._of(C)
            if C not in self._told and not any(c.is_active for c in candidates):
                known = known_figures([self.grid.metric.sign * figure for figure in figures])
                shown = format_number(round(statistics.fmean(known), 6)) if known else "undefined"
                n = max(candidate.passes for candidate in candidates)
                self._tell(C, f"{_passes(n)}, {self.grid.metric.name} {shown}")
        for C in sorted(self.given_up):
            if C not in self._told:
                self._tell(C, f"given up after {_passes(self._of(C)[0].passes)}")

    def _tell(self, C: float, text: str) -> None:
        self._told.add(C)
        self.progress.stage(f"tune, C = {format_number(C)}: {text}")

    def report(self) -> dict[str, Any]:
        """Return the table of values of C, and the best one; see `sbm.tune`.

        Raises
        ------
        DataError
            The metric is undefined on all folds.
        """
        grid = self.grid
        table = [self._row(C) for C in grid.Cs]
        return table_report(grid, table, self.engine.store) | {
            "passes": self.passes, "bytes_read": self.engine.reader.bytes_read,
        }  # fmt: skip

    def _row(self, C: float) -> dict[str, Any]:
        group = self._of(C)
        if not group[0].metrics:
            row = dict.fromkeys(("mean", "std", "folds", "relative_gap"))
            return {"C": C, **row, "passes": 0, "seconds": 0.0, "status": "not tried"}
        figures = [self.grid.metric.sign * c.metrics[-1] for c in group]
        known = known_figures(figures)
        gaps = [c.certificate.relative_gap for c in group if c.certificate is not None]
        status = "given up" if C in self.given_up else "not converged"
        if gaps and max(gaps) <= LOOSER * self.settings.tol:
            status = "converged"
        return {
            "C": C,
            "mean": statistics.fmean(known) if known else None,
            "std": statistics.stdev(known) if len(known) > 1 else None,
            "folds": [None if math.isnan(x) else x for x in figures],
            "passes": max(c.passes for c in group),
            "seconds": sum(c.seconds for c in group),
            "relative_gap": max(gaps) if gaps else None,
            "status": status,
        }


def table_report(grid: Grid, table: list[dict[str, Any]], store: BlockStore) -> dict[str, Any]:
    """Return the report of `sbm.tune` about a table with a row for each C."""
    left = [row for row in table if row["status"] in ("converged", "not converged")]
    judged = [row for row in left if row["mean"] is not None]
    if not judged:
        raise DataError(
            f"{grid.metric.name} is undefined on all {grid.n_folds} folds of {store.folder}: they "
            "have too few rows or only one label; use fewer folds or another metric"
        )
    best = max(judged, key=lambda row: grid.metric.sign * row["mean"])
    return {
        "metric": grid.metric.name, "folds": grid.n_folds, "best": best["C"], "settings": table,
    }  # fmt: skip


def fork(engine: Engine, source: Learner, target: Learner, factor: float) -> None:
    """Start a learner from the state of another one; call it between two passes.

    The target's cost is `factor` times the source's. For every loss, variables scaled by `factor`
    stay inside their bounds, and Σ d_i scales by `factor`. A smaller scale is used if the dual is
    higher there.
    """
    engine.stop_reading()
    share = ray(source.solver.dual_sum, source.solver.W, factor)
    for block in range(len(engine.plan.parts)):
        alpha = engine.run.load(engine.home(source.number, block))
        source.solver.working.alphas_of(block, alpha)
        target.solver.working.alpha.admit(block, alpha)
        engine.run.store(engine.home(target.number, block), alpha.times(share * factor))
    np.multiply(source.solver.W, share * factor, out=target.solver.W)
    target.solver.dual_sum = share * factor * source.solver.dual_sum


def _passes(n: int) -> str:
    return f"{n} pass" + ("es" if n != 1 else "")
