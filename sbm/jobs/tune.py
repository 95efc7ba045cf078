"""Tune: cross-validation of many values of C while the data streams by once for all of them.

Every value of C and every fold is a model of its own, and all of them learn from each block that is
loaded. A fold is a hash of a row's content, so a row that is held out from a model never reaches
it, wherever it lies and whatever it is equal to. In the first pass a model starts each block from
the alphas of the next smaller C; a model whose gap is small enough rests; a C that others have left
behind is given up. At the end all that are left are certified and judged at fixed weights, and the
best C is trained on all rows.
"""

import math
import os
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError
from sbm.jobs.engine import Engine, Folds, Learner, Visit
from sbm.jobs.memory import plan_training
from sbm.jobs.metrics import BinaryMetrics, MultiMetrics, RegressionMetrics
from sbm.jobs.pace import choose_rounds
from sbm.jobs.problem import by_label, make_problems, model_labels
from sbm.jobs.process import peak_bytes, return_freed_memory
from sbm.jobs.progress import Progress
from sbm.jobs.train import find_store, open_run, read_weights, shape_of, train
from sbm.jobs.tunepicture import check_metric_picture, draw_metric
from sbm.jobs.warm import kernels_of, prepare
from sbm.settings import Settings, format_number, nearest
from sbm.solver.gap import Certificate, GapWatch
from sbm.solver.problem import AnyProblem
from sbm.solver.step import Step, Totals
from sbm.store.blocks import BlockStore
from sbm.store.model import Model, check_output

__all__ = ["METRICS", "Metric", "tune"]

# Folds are trained to this many times the tolerance: what C is best shows long before that.
LOOSER = 10.0
# A C is given up if its metric is worse than the best one by so many standard errors, and by so
# many times what it changed by in the last pass.
ERRORS, CHANGES = 2.0, 4.0


@dataclass(frozen=True)
class Metric:
    """What models are compared by.

    Attributes
    ----------
    name : str
        A key of what the metrics of predictions report.
    task : str
        ``binary``, ``multi`` or ``regression``: what it is for; ``classes`` is either of the first
        two.
    sign : int
        1 where more is better, -1 where less is.
    """

    name: str
    task: str
    sign: int


# The first one that fits is the default.
METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "classes", 1),
        Metric("macro_f1", "multi", 1),
        Metric("auc", "binary", 1),
        Metric("mse", "regression", -1),
        Metric("mae", "regression", -1),
        Metric("r2", "regression", 1),
    )
}


def tune(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | None = None,
    *,
    Cs: Sequence[float],
    folds: int = 5,
    metric: str | None = None,
    picture: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[Model, dict[str, Any]]:
    """Find the best C by cross-validation, and train on all rows with it.

    Parameters
    ----------
    store : str or Path, optional
        Default: the only ``*.sbm`` in the current folder.
    model : str or Path, optional
        Where the model goes; as for `sbm.train`.
    settings : Settings, optional
        Of all trainings; `C` does not matter. Folds are trained to ten times `tol`.
    Cs : sequence of float
        Values to try.
    folds : int
        Number of folds, from 2 to 255.
    metric : str, optional
        A key of `METRICS`. Default: ``accuracy``, of targets ``mse``.
    picture : str or Path, optional
        File for a picture (.png, needs matplotlib) of the metric over C.
    progress : Progress, optional

    Returns
    -------
    model : Model
        Of the best C, trained on all rows.
    report : dict
        ``metric``, ``folds``, ``best`` (C), ``settings`` (a dict for each C: ``C``, ``mean``,
        ``std``, ``folds``, ``passes``, ``seconds`` of solving, ``relative_gap`` (the worst of the
        folds), ``status``: ``converged``, ``given up`` or ``budget``), ``passes``, ``bytes_read``,
        ``seconds`` (tune, train, total), ``peak_rss_bytes``, ``train`` (the report of the
        training).

    Raises
    ------
    SettingsError
        Values, folds or a metric that do not go together.
    StoreError, DataError, MemoryPlanError
        As of `sbm.train`.
    """
    begin = time.perf_counter()
    return_freed_memory()
    settings, progress = settings or Settings(), progress or Progress()
    values = _check(Cs, folds, settings)
    if picture is not None:
        check_metric_picture(picture)
    blocks = BlockStore(find_store(store))
    path = Path(model) if model is not None else Path(f"{blocks.folder.resolve().stem}.model")
    check_output(path)
    problems = [make_problems(replace(settings, C=C), blocks) for C in values for _ in range(folds)]
    chosen = choose_metric(metric, problems[0], blocks)
    every = [problem for mine in problems for problem in mine]
    shape = shape_of(settings, blocks, every, folds=True)
    threads = settings.threads or len(os.sched_getaffinity(0))
    scratch = 3 * 8 * shape.n_weights * max(shape.outputs)  # of handing alphas on
    shape = replace(shape, more_bytes=shape.more_bytes + threads * scratch)
    frac = 0.0 if settings.policy == "none" else settings.cache_frac
    plan = plan_training(blocks, settings.mem_bytes, frac, shape)
    progress.note(f"{len(every)} models, {len(plan.parts)} blocks; memory: {plan.describe()}")
    prepare(kernels_of(settings, every), blocks.value_type, progress)
    beside = path.with_name(path.name + ".tune")
    with blocks.in_use(), open_run(beside, every, plan) as run:
        weights = read_weights(settings, blocks, every, run)
        engine = Engine(
            blocks, settings, every, plan, run, progress,
            folds=Folds(folds, settings.seed),
            held_out=[f for _ in values for f in range(folds) for _ in problems[0]],
            weights=weights, is_late=lambda: _is_late(settings, begin),
        )  # fmt: skip
        tuning = _Tuning(engine, settings, blocks, problems, values, folds, chosen, progress, begin)
        report = tuning.run()
        shutil.rmtree(run.folder, ignore_errors=True)
    del tuning, engine
    report["seconds"] = {"tune": time.perf_counter() - begin}
    if picture is not None:
        draw_metric(report, picture)
    best = replace(settings, C=report["best"])
    result, report["train"] = train(blocks.folder, path, best, progress=progress)
    report["seconds"] |= {
        "train": report["train"]["seconds"]["total"], "total": time.perf_counter() - begin
    }  # fmt: skip
    report["peak_rss_bytes"] = peak_bytes()
    return result, report


def _check(Cs: Sequence[float], folds: int, settings: Settings) -> list[float]:
    """Return the values of C in ascending order."""
    values = sorted({float(C) for C in Cs})
    if not values:
        raise SettingsError("there is no C to try; give some as 0.01:100:x10 or 0.1,1,10")
    for C in values:
        replace(settings, C=C)
    if not 2 <= folds <= 255:
        raise SettingsError(f"folds is {folds}; it must be from 2 to 255")
    for name in ("warm_start", "calibrate"):
        if getattr(settings, name):
            raise SettingsError(f"{name} belongs to sbm train; tune first, then train with it")
    if settings.caches != 1 or settings.loss == "one_class":
        what = "caches" if settings.caches != 1 else "loss one_class, which has no C"
        raise SettingsError(f"sbm tune does not take {what}; leave it out")
    return values


def choose_metric(name: str | None, problems: Sequence[AnyProblem], store: BlockStore) -> Metric:
    """Return the metric that is meant.

    Raises
    ------
    SettingsError
        There is none of that name, or it is not for these labels.
    """
    labels = model_labels(problems[0], store)
    task = "binary" if len(labels) == 2 and not problems[0].listed else "multi"
    task = task if labels else "regression"
    fits = [m for m in METRICS.values() if m.task == task or (m.task == "classes" and labels)]
    if name is None:
        return fits[0]
    if name not in METRICS:
        known = ", ".join(METRICS)
        raise SettingsError(f"unknown metric {name!r}, known are {known}{nearest(name, METRICS)}")
    if METRICS[name] not in fits:
        known = " or ".join(m.name for m in fits)
        raise SettingsError(f"metric {name} is not for these labels; use {known}")
    return METRICS[name]


def _is_late(settings: Settings, begin: float) -> bool:
    limit = settings.time_limit
    return limit is not None and time.perf_counter() - begin > float(limit)


class _Exam:
    """Judges a model by its held-out rows; the columns of its learners come one by one."""

    def __init__(self, labels: list[float], n_parts: int, with_auc: bool) -> None:
        self._labels = labels  # by class code
        self._sorted = np.asarray(sorted(labels))
        self._n_parts, self._with_auc = n_parts, with_auc
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._parts: list[npt.NDArray[np.float64]] = []
        self._binary = BinaryMetrics(self._sorted.tolist(), auc=self._with_auc)
        self._multi = MultiMetrics(self._sorted.tolist())
        self._targets = RegressionMetrics()

    def add(self, y: npt.NDArray[Any], scores: npt.NDArray[np.float64]) -> None:
        """Take the columns of the next learner; when all are there, rows count."""
        self._parts.append(scores)
        if len(self._parts) < self._n_parts:
            return
        scores, self._parts = by_label(self._parts, self._labels), []
        if not self._labels:
            self._targets.add(y, scores[:, 0])
            return
        truth = np.asarray(self._labels)[y]
        if scores.shape[1] == 1:
            self._binary.add(truth, scores[:, 0])
        else:
            self._multi.add(truth, np.argmax(scores, axis=1).astype(np.int32)[:, np.newaxis])

    def result(self) -> dict[str, Any]:
        """All figures of the rows so far."""
        results = [m.result() for m in (self._binary, self._multi, self._targets)]
        return max(results, key=lambda result: int(result["rows"]))


@dataclass
class _Candidate:
    """A model of one C and one fold."""

    C: float
    fold: int
    learners: list[Learner]
    exam: _Exam
    watch: GapWatch
    metrics: list[float] = field(default_factory=list)  # of each pass
    passes: int = 0
    is_done: bool = False
    certificate: Certificate | None = None

    def rest(self) -> None:
        """Take no part in the passes to come."""
        for learner in self.learners:
            learner.is_active = False

    @property
    def is_active(self) -> bool:
        return self.learners[0].is_active

    @property
    def seconds(self) -> float:
        return sum(learner.seconds for learner in self.learners)


class _Tuning:
    """The loop of a tuning and its bookkeeping."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        store: BlockStore,
        problems: Sequence[Sequence[AnyProblem]],
        Cs: Sequence[float],
        n_folds: int,
        metric: Metric,
        progress: Progress,
        begin: float,
    ) -> None:
        self.engine, self.settings, self.store = engine, settings, store
        self.Cs, self.n_folds, self.metric = Cs, n_folds, metric
        self.progress, self.begin = progress, begin
        labels = model_labels(problems[0][0], store)
        n = len(problems[0])
        self.candidates = []
        for k, mine in enumerate(problems):
            learners = engine.learners[k * n : (k + 1) * n]
            exam = _Exam(labels, n, metric.name == "auc")
            watch = GapWatch(LOOSER * settings.tol)
            C, fold = Cs[k // n_folds], k % n_folds
            self.candidates.append(_Candidate(C, fold, learners, exam, watch))
            assert len(mine) == n
        self.passes = 0
        self.rounds: list[int] = []
        self.given_up: set[float] = set()

    def run(self) -> dict[str, Any]:
        """Train, give up, rest; then judge what is left."""
        with self.engine.at_work():
            while self._active() and self.passes < self.settings.max_passes:
                self._pass()
                if self.engine.is_late():
                    break
            self._judge()
        return self._report()

    def _active(self) -> list[_Candidate]:
        return [c for c in self.candidates if c.is_active]

    def _pass(self) -> None:
        """One pass of all candidates that are still in it."""
        self.passes += 1
        self._set_rounds()
        active = self._active()
        chains, hand_on = [c.learners for c in active], None
        if self.passes == 1:
            chains, hand_on = self._fold_chains(), self._hand_on
        for candidate in active:
            candidate.exam.clear()
            for learner in candidate.learners:
                learner.judge = candidate.exam if self.passes > 1 else None
        totals, _ = self.engine.run_pass(self.passes, chains, hand_on)
        for candidate in active:
            candidate.passes = self.passes
            self._look_at(candidate, [totals[x.number] for x in candidate.learners])
        if self.passes > 2:
            self._give_up()
        self._tell(active)

    def _set_rounds(self) -> None:
        n_blocks = len(self.engine.plan.parts)
        listed = self.candidates[0].learners[0].solver.problem.listed
        rounds = choose_rounds(self.settings.rounds, n_blocks, self.rounds, listed=listed)
        self.rounds.append(rounds)
        for learner in self.engine.learners:
            learner.solver.rounds = rounds

    def _fold_chains(self) -> list[list[Learner]]:
        """Return the learners of each fold, small C first."""
        return [
            [x for c in self.candidates if c.fold == fold for x in c.learners]
            for fold in range(self.n_folds)
        ]

    def _hand_on(self, visit: Visit, steps: dict[int, Step], learner: Learner) -> None:
        """Let a model start this block from the alphas of the next smaller C."""
        a_value = self.n_folds * len(self.candidates[0].learners)  # learners of one value of C
        k = learner.number // a_value
        if k == 0:
            return
        smaller = self.engine.learners[learner.number - a_value]
        alpha = steps[smaller.number].alpha.take(np.arange(len(visit.rows)))
        smaller.solver.working.alphas_of(visit.block, alpha)
        start = alpha.times(self.Cs[k] / self.Cs[k - 1])
        learner.solver.adopt(visit.block, visit.rows, start, visit.alpha[learner.number])

    def _look_at(self, candidate: _Candidate, totals: Sequence[Totals]) -> None:
        """Note how far a candidate is; let it rest when that is far enough."""
        if self.passes > 1:
            candidate.metrics.append(self._figure(candidate))
        gap = sum(one.gap for one in totals)
        dual = math.fsum(learner.solver.dual for learner in candidate.learners)
        if candidate.watch.is_due(gap, dual):
            candidate.is_done = True
            candidate.rest()

    def _figure(self, candidate: _Candidate) -> float:
        found = candidate.exam.result()[self.metric.name]
        return math.nan if found is None else self.metric.sign * float(found)

    def _of(self, C: float) -> list[_Candidate]:
        return [c for c in self.candidates if c.C == C]

    def _give_up(self) -> None:
        """Drop values of C that are clearly worse than the best one, and not about to catch up."""
        latest = {
            C: [c.metrics[-1] for c in self._of(C)] for C in self.Cs if C not in self.given_up
        }
        best = max(latest, key=lambda C: statistics.fmean(latest[C]))
        for C, mine in latest.items():
            group = self._of(C)
            if best == C or not any(c.is_active for c in group):
                continue
            behind = [b - m for b, m in zip(latest[best], mine, strict=True)]
            error = statistics.stdev(behind) / math.sqrt(len(behind))
            change = abs(
                statistics.fmean(
                    [
                        m - c.metrics[-2]
                        for m, c in zip(mine, group, strict=True)
                        if len(c.metrics) > 1
                    ]
                    or [0.0]
                )
            )
            if statistics.fmean(behind) > ERRORS * error + CHANGES * change:
                self.given_up.add(C)
                for candidate in group:
                    candidate.rest()

    def _judge(self) -> None:
        """Certify and judge, at fixed weights, everything that was not given up."""
        left = [c for c in self.candidates if c.C not in self.given_up]
        for candidate in left:
            candidate.exam.clear()
            for learner in candidate.learners:
                learner.is_active, learner.judge = True, candidate.exam
        found = self.engine.certify([c.learners for c in left])
        for candidate in left:
            parts = [found[x.number][0] for x in candidate.learners]
            candidate.certificate = Certificate.total(parts)
            candidate.metrics.append(self._figure(candidate))

    def _tell(self, active: Sequence[_Candidate]) -> None:
        left = len(self._active())
        self.progress.note(
            f"pass {self.passes}: {len(active)} models, {left} go on"
            + "".join(f", C = {format_number(C)} given up" for C in sorted(self.given_up))
        )

    def _report(self) -> dict[str, Any]:
        table = [self._row(C) for C in self.Cs]
        judged = [row for row in table if row["status"] != "given up"]
        sign = self.metric.sign
        best = max(judged, key=lambda row: sign * row["mean"])
        return {
            "metric": self.metric.name,
            "folds": self.n_folds,
            "best": best["C"],
            "settings": table,
            "passes": self.passes,
            "bytes_read": self.engine.reader.bytes_read,
        }

    def _row(self, C: float) -> dict[str, Any]:
        group = self._of(C)
        figures = [self.metric.sign * c.metrics[-1] for c in group]
        gaps = [c.certificate.relative_gap for c in group if c.certificate is not None]
        status = "given up" if C in self.given_up else "budget"
        if gaps and all(c.is_done for c in group):
            status = "converged"
        return {
            "C": C,
            "mean": statistics.fmean(figures),
            "std": statistics.stdev(figures),
            "folds": figures,
            "passes": max(c.passes for c in group),
            "seconds": sum(c.seconds for c in group),
            "relative_gap": max(gaps) if gaps else None,
            "status": status,
        }
