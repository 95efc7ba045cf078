"""Train: selective block minimization over a block store (Algorithm 1 of Chang & Roth 2011).

Pass after pass over all blocks (`sbm.jobs.engine`) until the free running estimate of the gap says
that it may be small enough; then a pass of its own certifies the model at fixed W.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import StoreError
from sbm.jobs.calibration import FOLDS, HELD_OUT_BYTES, Collector, held_out_problems
from sbm.jobs.engine import FULL_PASS, MOST_DRIFT, Engine, Group, Learner
from sbm.jobs.memory import MemoryPlan
from sbm.jobs.pace import choose_blocks, choose_cache_rows, choose_rounds
from sbm.jobs.problem import label_places, make_model, make_problems, model_labels
from sbm.jobs.process import peak_bytes, resident_bytes, return_freed_memory
from sbm.jobs.progress import Progress
from sbm.jobs.setup import (
    class_counts,
    find_store,
    open_run,
    place_of,
    plan_of,
    read_weights,
    run_folder,
    shape_of,
    time_left,
)  # fmt: skip
from sbm.jobs.warm import kernels_of, prepare
from sbm.jobs.warmstart import Earlier, find_run, last_run, shape_record
from sbm.settings import Settings
from sbm.solver.gap import Certificate, GapWatch
from sbm.solver.problem import AnyProblem
from sbm.solver.step import Totals
from sbm.store.blocks import BlockStore
from sbm.store.model import Model
from sbm.store.run import Run

if TYPE_CHECKING:
    from sbm.jobs.weights import RowWeights

__all__ = ["train"]

# A commit waits for this much time since the last one, and for this many times what that one took.
COMMIT_SECONDS = 1.0
COMMIT_SHARE = 20.0


def train(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    progress: Progress | None = None,
    read_rate: float | None = None,
) -> tuple[Model, dict[str, Any]]:
    """Train a model on a store.

    Parameters
    ----------
    store : str or Path, optional
        Default: the only ``*.sbm`` in the current folder.
    model : str or Path, optional
        Where the model goes. Default: the store's name with ``.model``, in the current folder. The
        state of the training is kept beside it in ``MODEL.run/``.
    settings : sbm.Settings or dict, optional
        Loss, cost, memory and the rest; ``help(sbm.Settings)`` lists the names.
    progress : Progress, optional
        Is told each block and each pass.
    read_rate : float, optional
        Read no more bytes a second than this, as from a slow disk; for benchmarks.

    Returns
    -------
    model : Model
        The certified one, as written.
    report : dict
        ``primal``, ``dual``, ``gap``, ``relative_gap``, ``drift``, ``converged``, ``passes``,
        ``rounds`` (of each pass),
        ``visits``, ``updates``, ``visits_cut_short`` (in the last pass), ``seconds`` (total, disk,
        load, wait, solve, certify, write),
        ``bytes_read``, ``peak_rss_bytes``, ``n_support``, ``n_free``, ``model``.

    Raises
    ------
    StoreError
        No store, damaged, or in use.
    DataError
        The labels do not fit the loss.
    SettingsError
        A setting that does not exist, is out of range, or means nothing for the loss.
    MemoryPlanError
        ``settings.mem`` is too small; says what would do.
    """
    begin = time.perf_counter()
    return_freed_memory()
    settings = Settings.of(settings)
    progress = progress or Progress()
    blocks = BlockStore(find_store(store))
    path = place_of(model, blocks)
    problems = make_problems(settings, blocks)
    spare = held_out_problems(settings, blocks)
    shape = shape_of(settings, blocks, [*problems, *spare], models=2 if spare else 1)
    if spare:
        shape = replace(shape, advice="no --calibrate")
    plan = plan_of(settings, blocks, shape)
    _say_plan(plan, progress)
    prepare(kernels_of(settings, problems), blocks.value_type, progress)
    # All that can be refused comes before the run of an earlier training is replaced.
    earlier = _find_earlier(settings, path, blocks, problems, progress)
    weights = read_weights(settings, blocks, [*problems, *spare], path.parent)
    counts = class_counts(settings, blocks, weights)
    if counts is not None:
        problems = make_problems(settings, blocks, counts)
        spare = held_out_problems(settings, blocks, counts)
    if earlier is not None:
        earlier.step_aside(run_folder(path))
    with blocks.in_use(), open_run(path, [*problems, *spare], plan) as run:
        training = _Training(
            blocks, settings, problems, spare, plan, run, progress, begin, read_rate, weights
        )
        certificate, converged, calibration = training.run(earlier)
        report = training.report(certificate, converged)
        W = [solver.W for solver in training.solvers]
        del training  # its memory goes to the writing of the model
        result = make_model(blocks, settings, problems, W, report)
        result.info["calibration"] = calibration
        result.save(path)
        report["model"] = str(path)
        report["seconds"]["total"] = time.perf_counter() - begin
        report["peak_rss_bytes"] = peak_bytes()
        run.log({"event": "end", **report})
    if earlier is not None:
        earlier.remove()
    return result, report


def _find_earlier(
    settings: Settings,
    path: Path,
    store: BlockStore,
    problems: Sequence[AnyProblem],
    progress: Progress,
) -> Earlier | None:
    """Return the run of an earlier training to start from, if one is asked for and there."""
    if settings.warm_start is None:
        return None
    if settings.warm_start is not True:
        folder = find_run(str(settings.warm_start))
    else:
        last = last_run(path)
        if last is None:
            progress.stage(f"{path} was not trained yet: starting from nothing")
            return None
        folder = last
    return Earlier(folder, store, settings, problems)


def _say_plan(plan: MemoryPlan, progress: Progress) -> None:
    progress.note(
        f"{len(plan.parts)} blocks, cache {plan.cache_rows} rows; memory: {plan.describe()}"
    )


@dataclass
class _Training:
    """The loop of one training and its bookkeeping.

    There is one learner, but for one-vs-rest in groups of classes, or with one variable a row:
    there every group or class has its own weights, cache and variables, and all of them work on the
    block that is loaded. To calibrate there is a second set, which never learns from some rows; it
    is no part of the model.
    """

    store: BlockStore
    settings: Settings
    problems: Sequence[AnyProblem]
    spare: Sequence[AnyProblem]
    plan: MemoryPlan
    run_files: Run
    progress: Progress
    begin: float
    read_rate: float | None
    weights: RowWeights | None = None
    totals: Totals = field(default_factory=Totals)
    passes: int = 0

    def __post_init__(self) -> None:
        n = len(self.problems)
        self.engine = Engine(
            self.store, self.settings, [*self.problems, *self.spare], self.plan, self.run_files,
            self.progress, folds=FOLDS if self.spare else None,
            held_out=[None] * n + [0] * len(self.spare), weights=self.weights,
            read_rate=self.read_rate, is_late=self._is_late,
        )  # fmt: skip
        self.learners, self.spare_learners = self.engine.learners[:n], self.engine.learners[n:]
        self.solvers = [learner.solver for learner in self.learners]
        self.seconds = self.engine.seconds
        self._cut_short = 0
        self.rounds: list[int] = []
        self._is_warm = False
        self._gaps: list[float] = []  # estimates of the whole passes
        self._pass_bytes = sum(c.size for part in self.plan.parts for c in part.chunks)
        self._free_rows: int | None = None
        self._committed, self._commit_after = self.begin, COMMIT_SECONDS
        self._mark = asdict(self.seconds)

    @property
    def dual(self) -> float:
        """F(α) at this moment, up to the drift of W."""
        return math.fsum(solver.dual for solver in self.solvers)

    def run(self, earlier: Earlier | None) -> tuple[Certificate, bool, dict[str, Any] | None]:
        """Train; return the certificate, whether it is good enough, and the calibration."""
        with self.engine.at_work():
            certificate = self._start_from(earlier) if earlier is not None else None
            if certificate is None or certificate.relative_gap > self.settings.tol:
                certificate = self._run_passes(self._new_blocks(earlier) if earlier else None)
            converged = certificate.relative_gap <= self.settings.tol
            return certificate, converged, self._calibrate() if self.spare else None

    def _start_from(self, earlier: Earlier) -> Certificate:
        """Take over W and alphas; all of it is looked at once, so it has a certificate."""
        self._is_warm = not earlier.is_rescaled
        self._set_active(self.spare_learners, False)
        earlier.hand_over(self.run_files, self.plan)
        certificate = earlier.start(self.engine)
        self._set_active(self.spare_learners, True)
        self.progress.note(f"warm start: certified relative gap {certificate.relative_gap:.2e}")
        if certificate.relative_gap <= self.settings.tol:
            self._commit(certificate)
        return certificate

    def _run_passes(self, first: list[int] | None = None) -> Certificate:
        """Pass after pass until the certified gap is small enough or a budget is used up.

        The first pass goes over some blocks only, where they are given.
        """
        watch, only = GapWatch(self.settings.tol), first
        while True:
            done, in_time = self._pass(only)
            last = not in_time or self.passes == self.settings.max_passes
            certificate = None
            if only is None:
                self._gaps.append(done.gap)
                due = watch.is_due(done.gap, max(abs(self.dual), self.problems[0].unit))
            else:  # of part of a pass there is no estimate
                due = only is not first
            if last or due:
                certificate = self._certify()
                if only is None:
                    watch.learn(certificate.relative_gap)
                last = last or certificate.relative_gap <= self.settings.tol
            self._report_pass(done, certificate, in_time and only is None)
            if last or time.perf_counter() - self._committed > self._commit_after:
                self._commit(certificate)
            if last:
                assert certificate is not None
                return certificate
            only = self._part_of_pass(certificate)

    def _new_blocks(self, earlier: Earlier) -> list[int] | None:
        """Return the blocks with rows that the earlier training had not, where others had them.

        They come first: before they have moved W there is nothing to do for the others.
        """
        new = earlier.new_parts(self.plan)
        some = 0 < len(new) < len(self.plan.parts) and self.settings.max_passes > 1
        return self.engine.shuffled(1, new) if some else None

    def _part_of_pass(self, certificate: Certificate | None) -> list[int] | None:
        """Return the blocks of the next pass, where a certificate says that some will do."""
        number, blocks = self.passes + 1, range(len(self.plan.parts))
        if certificate is None or not self._is_warm or number % FULL_PASS == 0:
            return None
        if len(self._gaps) < 2 or self._gaps[-2] == 0:
            return None
        shrink = self._gaps[-1] / self._gaps[-2]
        n = choose_blocks(len(blocks), certificate.relative_gap, self.settings.tol, shrink)
        return self.engine.shuffled(number, blocks)[:n] if n < len(blocks) else None

    def _pass(self, only: Sequence[int] | None = None) -> tuple[Totals, bool]:
        """One pass, over some blocks or all; also tells whether it ended within the time limit."""
        self._choose()
        self.passes += 1
        self._mark = asdict(self.seconds)
        totals, free = self.engine.run_pass(self.passes, only=only)
        if only is None:  # of the other blocks it is not known
            self._free_rows = sum(free[learner.number] for learner in self.learners)
        done = Totals()
        for learner in self.learners:
            done.add(totals[learner.number])
        self.totals.add(done)
        self._cut_short = done.starved
        return done, not self._is_late()

    def _calibrate(self) -> dict[str, Any]:
        """Fit probabilities to decision values of rows that the second set never saw."""
        self._set_active(self.learners, False)
        watch = GapWatch(self.settings.tol)
        for learner in self.spare_learners:  # after a warm start there may have been no pass yet
            learner.solver.rounds = self.rounds[-1] if self.rounds else self._rounds()
        self.engine.last_pass = self.passes + self.settings.max_passes
        for number in range(self.passes + 1, self.engine.last_pass + 1):
            totals, _ = self.engine.run_pass(number)
            gap = sum(one.gap for one in totals.values())
            dual = math.fsum(learner.solver.dual for learner in self.spare_learners)
            if watch.is_due(gap, dual) or self._is_late():
                break
        labels = model_labels(self.problems[0], self.store)
        places = label_places(self.problems[0], self.store)
        collector = Collector(labels, places, HELD_OUT_BYTES // 24)  # a copy is made of them
        group = Group(self.spare_learners, collector)
        for visit in self.engine.visit_all("calibrate"):
            group.be_judged(visit.rows, visit.folds)
        return collector.calibrate(self.problems[0].loss.joint)

    @staticmethod
    def _set_active(learners: Sequence[Learner], active: bool) -> None:
        for learner in learners:
            learner.is_active = active

    def _count_free(self) -> int:
        return sum(solver.count_free() for solver in self.solvers)

    def _choose(self) -> None:
        """Set rounds and cache size of the next pass."""
        rounds = self._rounds()
        self.rounds.append(rounds)
        plan, learners = self.plan, self.engine.learners
        for learner in learners:
            solver = learner.solver
            solver.rounds = rounds
            if self.settings.cache_frac == "auto":
                free = None if self._free_rows is None else self._free_rows // len(self.learners)
                solver.working.cache_rows = choose_cache_rows(
                    free, plan.part_rows, plan.cache_rows // len(learners)
                )

    def _rounds(self) -> int:
        spent = self._spent()
        return choose_rounds(
            self.settings.rounds, len(self.plan.parts), self.rounds, self._pass_bytes,
            spent["disk"], spent["load"], spent["solve"], self.problems[0].listed, self._is_warm,
        )  # fmt: skip

    def _spent(self) -> dict[str, float]:
        """Seconds since the last pass began, by purpose."""
        return {k: v - self._mark[k] for k, v in asdict(self.seconds).items()}

    def _is_late(self) -> bool:
        return time_left(self.settings, self.begin) < 0

    def _certify(self) -> Certificate:
        """Evaluate primal and dual at fixed W and alphas.

        Where there is still something to do, it goes on with weights rebuilt from the alphas.
        """
        self._set_active(self.spare_learners, False)
        found = self.engine.certify()
        self._set_active(self.spare_learners, True)
        certificate = Certificate.total([one for one, _ in found.values()])
        if certificate.drift > MOST_DRIFT:
            raise StoreError(
                f"the weights do not belong to their alphas (drift {certificate.drift:.1e}); "
                "this is a bug in sbm, please report it"
            )
        if certificate.relative_gap > self.settings.tol:
            self.engine.replace_weights(found)
        return certificate

    def _report_pass(self, done: Totals, certificate: Certificate | None, complete: bool) -> None:
        seconds = self._spent()
        busy = max(seconds["solve"], 1e-9)
        dual = self.dual
        record = {
            "pass": self.passes,
            "rounds": self.rounds[-1],
            "elapsed": time.perf_counter() - self.begin,
            "seconds": seconds,
            "rows_per_second": done.visits / busy,
            "nnz_per_second": done.visits / busy * self.store.nnz / self.store.n_rows,
            "dual": dual,
            # A pass that was cut short has not seen every row.
            "estimated_gap": done.gap if complete else None,
            "estimated_relative_gap": done.gap / max(abs(dual), 1e-300) if complete else None,
            "visits": done.visits,
            "updates": done.updates,
            "free_rows": self._free_rows,
            "cache_rows": sum(s.working.cache_rows for s in self.solvers),
            "cached_rows": sum(s.working.n_cached for s in self.solvers),
            "cached_free": self._count_free(),
            "cache_hits": done.cached,
            "rows_at_rest": done.rest,
            "visits_cut_short": done.starved,
            "resident_bytes": resident_bytes(),
            "certificate": certificate.to_dict() if certificate else None,
        }
        self.run_files.log({"event": "pass", **record})
        self.progress.row(record)

    def _commit(self, certificate: Certificate | None) -> None:
        """Make the end of this pass the state to come back to."""
        position = {
            "settings": self.settings.to_dict(),
            "store": str(self.store.folder),
            "store_rows": self.store.n_rows,
            "passes": self.passes,
            "rounds": self.rounds,
            "certificate": certificate.to_dict() if certificate else None,
            "totals": asdict(self.totals),
            "shape": shape_record(self.store, self.plan, self.problems),
        }
        begin = time.perf_counter()
        with self.seconds.measure("write"):
            self.run_files.commit(position, self._state())
        self._committed = time.perf_counter()
        self._commit_after = max(COMMIT_SECONDS, COMMIT_SHARE * (self._committed - begin))

    def _state(self) -> dict[str, npt.NDArray[np.generic]]:
        """What a commit keeps of all solvers."""
        return {
            name if k == 0 else f"{name}-{k}": array
            for k, solver in enumerate(self.solvers)
            for name, array in solver.state().items()
        }

    def report(self, certificate: Certificate, converged: bool) -> dict[str, Any]:
        """The figures of the training."""
        return {
            "primal": certificate.primal,
            "dual": certificate.dual,
            "gap": certificate.gap,
            "relative_gap": certificate.relative_gap,
            "converged": converged,
            "passes": self.passes,
            "rounds": self.rounds,
            "updates": self.totals.updates,
            "visits": self.totals.visits,
            "visits_cut_short": self._cut_short,
            "seconds": {"total": time.perf_counter() - self.begin, **asdict(self.seconds)},
            "bytes_read": self.engine.reader.bytes_read,
            "peak_rss_bytes": peak_bytes(),
            "n_support": certificate.n_support,
            "n_free": certificate.n_free,
            "drift": certificate.drift,
        }
