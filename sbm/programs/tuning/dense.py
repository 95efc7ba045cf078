"""Cross-validation of models with a variable per row: one model for each C and fold.

All models learn from each loaded block. After each pass, small gaps pause a model, clearly worse
values of C are dropped, and the next larger C starts if the largest so far is as good as the best.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.certificate import certify_each
from sbm.engine.engine import Engine, Pauses
from sbm.engine.learners import Folds, Group, HeldOut, Learner
from sbm.engine.pace import choose_rounds
from sbm.programs.training.dual import RowMethod
from sbm.programs.training.evaluation import Evaluation
from sbm.programs.training.second_order import NewtonSteps
from sbm.programs.training.training import Training
from sbm.programs.tuning.grid import Candidate, Grid, known_figures, lag, mean_figure
from sbm.solver.block import Block
from sbm.solver.gap import Certificate, ray
from sbm.solver.step import Totals
from sbm.units import count, format_number

__all__ = ["CrossValidation", "fork"]

# Metrics of models with a larger estimated relative gap are not used to drop them.
TRUST = 0.1
# A C is dropped if its metric is worse than the best one by more than ERRORS standard errors plus
# CHANGES times its change in the last pass.
ERRORS, CHANGES = 2.0, 4.0


class CrossValidation(RowMethod):
    """Trains the models of all C and folds, and decides which ones continue.

    Parameters
    ----------
    training : Training
    grid : Grid
        Its problems are those of the training.
    """

    name = family = "cross-validation"

    def __init__(self, training: Training, grid: Grid) -> None:
        self.grid = grid
        super().__init__(training)
        # A pass cannot be resumed from its middle: rows were evaluated already.
        self.engine.pauses = Pauses(training.is_late, after_look=training.stop_if_asked)
        self.progress, task = training.options.progress, training.task
        first, learners = grid.problems[0][0], iter(self.engine.learners)
        self.candidates = []
        for k, problems in enumerate(grid.problems):
            evaluation = Evaluation(grid.metric, first, task.store)
            group = Group(list(itertools.islice(learners, len(problems))), evaluation)
            self.candidates.append(Candidate(grid.Cs[k // grid.n_folds], group, evaluation))
        self.newton: NewtonSteps | None = None
        if task.method == "newton":
            self.newton = NewtonSteps(self.engine, task, task.tol)
        self.given_up: set[float] = set()
        self.waiting = grid.Cs[max(2, math.ceil(len(grid.Cs) / 2)) :]
        self._free: dict[int, int] = {}
        self._told: set[float] = set()  # values of C that were reported
        for candidate in self.candidates:
            candidate.set_active(candidate.C not in self.waiting)

    def held_out(self) -> HeldOut:
        """Return the held-out fold of each learner."""
        return HeldOut(
            Folds(self.grid.n_folds, self.training.task.visiting.seed), self.grid.held_out
        )

    def snapshot(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
        """Return the state of the learners and of the decisions about them."""
        place, arrays = super().snapshot()
        place |= {
            "given_up": sorted(self.given_up),
            "waiting": self.waiting,
            "free": {str(k): n for k, n in self._free.items()},
            "candidates": [candidate.record() for candidate in self.candidates],
        }
        if self.newton is not None:
            place |= self.newton.record()
            arrays |= self.newton.arrays()
        return place, arrays

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the last checkpoint."""
        super().restore(record)
        method = record["method"]
        self.given_up, self.waiting = set(method["given_up"]), method["waiting"]
        self._free = {int(k): n for k, n in method["free"].items()}
        for candidate, one in zip(self.candidates, method["candidates"], strict=True):
            candidate.restore(one)
        self._told = {c.C for c in self.candidates if c.passes and not c.is_active}
        if self.newton is not None:
            self.newton.restore(method)

    @property
    def active(self) -> list[Candidate]:
        """The models that take part in the next pass."""
        return [c for c in self.candidates if c.is_active]

    def run_pass(self) -> Totals:
        """Run a pass of the active models, evaluate them, and decide which ones continue."""
        training, active = self.training, self.active
        training.begin_pass(self._next_rounds())
        number, n_rows = training.state.passes, training.task.store.n_rows
        self.engine.set_pace(training.state.rounds[-1], self._free, training.task.tol)
        for candidate in active:
            # Do not evaluate at the poor weights of the first half of the first pass.
            fresh = number == 1 and self.newton is None and not self.engine.plan.is_whole
            candidate.evaluation.clear(n_rows // (2 * self.grid.n_folds) if fresh else 0)
        groups, done = [c.group for c in active], Totals()
        if self.newton is not None:
            found = self.newton.visit(groups, f"tune, pass {number}")
            gaps = [self._move(self.newton, c, found) for c in active]
        else:
            now = self.engine.begin_pass(number)
            for visit in self.engine.visits(now, "tune, pass"):
                for steps in self.engine.for_each(groups, visit.solve):
                    visit.steps.update(steps)
            self._free = now.free
            gaps = [self._estimate(c, now.totals) for c in active]
            for some in now.totals.values():
                done.add(some)
        for candidate, gap in zip(active, gaps, strict=True):
            candidate.passes += 1
            candidate.metrics.append(self._figure(candidate))
            candidate.gap = gap
            if gap * candidate.ratio <= training.task.tol:
                candidate.set_active(False)
        if number > 1:
            self.give_up()
        if number > 1 or not self.active:
            self.go_up()
        self._tell_pass(len(active))
        return done

    def may_be_done(self, done: Totals) -> bool:
        """Whether no model takes part in the next pass."""
        return not self.active

    def move(self, certificate: Certificate | None) -> bool:
        """Return whether a model takes part in the next pass."""
        return bool(self.active)

    def _next_rounds(self) -> int:
        """Return the rounds of the next pass.

        ``auto`` is 1, enough for the looser tolerance, or 4 if one part has all rows: then they end
        at the tolerance, and there is no cache that visits rows again.
        """
        engine, rounds = self.engine, self.training.task.rounds
        if rounds == "auto" and not engine.plan.is_whole:
            return 1
        before, whole = self.training.state.rounds, engine.whole_work
        chosen = choose_rounds(rounds, engine.plan.n_blocks, before, whole=whole)
        return min(chosen, 4) if rounds == "auto" else chosen

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
        if gap > self.training.task.tol:
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

    def certify(self, is_last: bool, is_best: bool) -> Certificate:
        """Certify and evaluate, at fixed weights, all models that were not dropped.

        Those whose gap was estimated too low take part in further passes. Newton's method does not
        estimate gaps.

        Returns
        -------
        Certificate
            The one with the largest relative gap.
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
        certificates = []
        for candidate in left:
            parts = [found[x.number] for x in candidate.learners]
            candidate.certificate = Certificate.total(parts)
            candidate.metrics.append(self._figure(candidate))
            gap = candidate.certificate.relative_gap
            candidate.ratio = max(candidate.ratio, gap / candidate.gap if candidate.gap > 0 else 1)
            candidate.set_active(self.newton is None and gap > self.training.task.tol)
            certificates.append(candidate.certificate)
        return max(certificates, key=lambda one: one.relative_gap)

    def tell(self, record: dict[str, Any]) -> None:
        """Report nothing more: passes report the values of C that they finish."""

    def _tell_pass(self, n_active: int) -> None:
        """Report the values of C that the last pass finished, and in detail the pass itself."""
        number, n_next = self.training.state.passes, len(self.active)
        self.progress.note(f"tune, pass {number}: {n_active} models, {n_next} in the next")
        for C, figures in self._latest().items():
            candidates = self._of(C)
            if C not in self._told and not any(c.is_active for c in candidates):
                known = known_figures([self.grid.metric.sign * figure for figure in figures])
                shown = format_number(round(statistics.fmean(known), 6)) if known else "undefined"
                n = max(candidate.passes for candidate in candidates)
                self._tell(C, f"{count(n, 'pass')}, {self.grid.metric.name} {shown}")
        for C in sorted(self.given_up):
            if C not in self._told:
                self._tell(C, f"given up after {count(self._of(C)[0].passes, 'pass')}")

    def _tell(self, C: float, text: str) -> None:
        self._told.add(C)
        self.progress.stage(f"tune, C = {format_number(C)}: {text}")

    def facts(self) -> dict[str, Any]:
        """Return the table of values of C, and the best one; see `sbm.tune`.

        Raises
        ------
        DataError
            The metric is undefined on all folds.
        """
        return self.grid.report(
            [self._row(C) for C in self.grid.Cs], str(self.training.task.store.folder)
        )

    def _row(self, C: float) -> dict[str, Any]:
        group = self._of(C)
        if not group[0].metrics:
            row = dict.fromkeys(("mean", "std", "folds", "relative_gap"))
            return {"C": C, **row, "passes": 0, "seconds": 0.0, "status": "not tried"}
        figures = [self.grid.metric.sign * c.metrics[-1] for c in group]
        known = known_figures(figures)
        gaps = [c.certificate.relative_gap for c in group if c.certificate is not None]
        status = "given up" if C in self.given_up else "not converged"
        if gaps and max(gaps) <= self.training.task.tol:
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


def fork(engine: Engine, source: Learner, target: Learner, factor: float) -> None:
    """Start a learner from the state of another one; call it between two passes.

    The target's cost is `factor` times the source's. For every loss, variables scaled by `factor`
    stay inside their bounds, and Σ d_i scales by `factor`. A smaller scale is used if the dual is
    higher there.
    """
    engine.stop_reading()
    weights = source.solver.weights_of_alphas()
    share = ray(source.solver.dual_sum, weights, factor)
    rows = engine.plan.rows_of_parts
    for part in range(len(rows)):
        alpha = engine.run.load(engine.home(source.number, part))
        source.solver.working.alphas_of(Block.of([part], rows), alpha)
        target.solver.working.alpha.admit(part, alpha)
        engine.run.store(engine.home(target.number, part), alpha.times(share * factor))
    np.multiply(weights, share * factor, out=target.solver.W)
    target.solver.dual_sum = share * factor * source.solver.dual_sum
