"""Tune: cross-validation of many values of C while the data streams by once for all of them.

Every value of C and every fold is a model of its own, and all of them learn from each block that is
loaded. A fold is a hash of a row's content, so a row that is held out from a model never reaches
it, wherever it lies and whatever it is equal to. Small values of C go first; larger ones follow one
by one, from the alphas of the largest so far, and only when that one is as good as the best. A
model whose gap is small enough rests, a C that others have left behind is given up. At the end all
that are left are certified and judged at fixed weights, and the best C is trained on all rows.

The end of every pass is committed to ``MODEL.tune.run/``, and the same command goes on from there.
"""

import itertools
import math
import shutil
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sbm.errors import DataError, SettingsError, StoreError
from sbm.jobs.judging.metrics import BinaryMetrics
from sbm.jobs.machine.kernels import kernels_of, prepare
from sbm.jobs.machine.process import peak_bytes, return_freed_memory
from sbm.jobs.progress import Progress
from sbm.jobs.reporting.tunepicture import check_metric_picture, draw_metric
from sbm.jobs.train import train
from sbm.jobs.training.engine import Engine, Folds, Group, Learner
from sbm.jobs.training.exam import Exam, Metric, choose_metric
from sbm.jobs.training.pace import choose_cache_rows, choose_rounds
from sbm.jobs.training.problem import label_places, make_problems, model_labels
from sbm.jobs.training.resume import identity, is_finished, refuse_unfinished, same_run
from sbm.jobs.training.setup import (
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
from sbm.jobs.training.warmstart import shape_record
from sbm.settings import Settings, format_number, parse_grid
from sbm.solver.gap import Certificate
from sbm.solver.problem import AnyProblem
from sbm.solver.step import Totals
from sbm.store.blocks import BlockStore, require_whole
from sbm.store.model import Model
from sbm.store.run import Run

__all__ = ["tune"]

# Folds are trained to this many times the tolerance: what C is best shows long before that.
LOOSER = 10.0
# Metrics of models whose estimated relative gap is larger than this say little.
TRUST = 0.1
# A C is given up if its metric is worse than the best one by so many standard errors, and by so
# many times what it changed by in the last pass.
ERRORS, CHANGES = 2.0, 4.0


def tune(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    Cs: Sequence[float] | float | str,
    folds: int = 5,
    metric: str | None = None,
    picture: str | Path | None = None,
    resume: bool | None = None,
    progress: Progress | None = None,
) -> tuple[Model, dict[str, Any]]:
    """Find the best C by cross-validation, and train on all rows with it.

    Parameters
    ----------
    store : str or Path, optional
        Default: the only ``*.sbm`` in the current folder.
    model : str or Path, optional
        Where the model goes; as for `sbm.train`.
    settings : sbm.Settings or dict, optional
        Of all trainings; `C` does not matter. Folds are trained to ten times `tol`.
    Cs : sequence of float, float or str
        Values to try; in words as for the command line, ``"0.01:100:x10"``.
    folds : int
        Number of folds, from 2 to 255.
    metric : str, optional
        A key of `sbm.jobs.training.exam.METRICS`. Default: ``accuracy``, of targets ``mse``.
    picture : str or Path, optional
        File for a picture (.png, needs matplotlib) of the metric over C.
    resume : bool, optional
        False: begin anew. Default: go on with what the same call began.
    progress : Progress, optional

    Returns
    -------
    model : Model
        Of the best C, trained on all rows.
    report : dict
        ``metric``, ``folds``, ``best`` (C), ``settings`` (a dict for each C: ``C``, ``mean``,
        ``std``, ``folds``, ``passes``, ``seconds`` of solving, ``relative_gap`` (the worst of the
        folds), ``status``: ``converged``, ``given up``, ``not tried`` or ``not converged``),
        ``passes``,
        ``bytes_read``,
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
    settings, progress = Settings.of(settings), progress or Progress()
    final, settings = settings, replace(settings, screen=False)  # few passes, so it would not pay
    values = _check(Cs, folds, settings)
    if picture is not None:
        check_metric_picture(picture)
    blocks = BlockStore(find_store(store))
    require_whole(blocks)
    path = place_of(model, blocks)
    weights = read_weights(settings, blocks, [], path.parent)
    counts = class_counts(settings, blocks, weights)
    problems = [
        make_problems(replace(settings, C=C), blocks, counts) for C in values for _ in range(folds)
    ]
    chosen = choose_metric(metric, problems[0], blocks)
    every = [problem for mine in problems for problem in mine]
    shape = shape_of(settings, blocks, every, models=len(problems))
    exams = 0
    if chosen.name == "auc":  # of every model all decision values
        exams = BinaryMetrics.bytes_for(blocks.n_rows // folds, len(problems))
    advice = "fewer values of C or fewer folds"
    shape = replace(shape, more_bytes=shape.more_bytes + exams, advice=advice)
    plan = plan_of(settings, blocks, shape, progress=progress)
    progress.note(f"{len(every)} models, {len(plan.parts)} blocks; memory: {plan.describe()}")
    prepare(kernels_of(settings, every), blocks.value_type, progress)
    beside = path.with_name(path.name + ".tune")
    itself = identity(settings, blocks, weights) | {
        "kind": "tune", "Cs": values, "folds": folds, "metric": chosen.name,
        "shape": shape_record(blocks, plan, every),
    }  # fmt: skip
    record = same_run(run_folder(beside), itself) if resume is not False else None
    if resume is not False and not (record and is_finished(record)):
        refuse_unfinished(run_folder(path))
    if record is not None and is_finished(record):
        report = record["report"]
    else:
        with blocks.in_use(), open_run(run_folder(beside), every, plan, record) as run:
            engine = Engine(
                blocks, settings, every, plan, run, progress,
                folds=Folds(folds, settings.seed),
                held_out=[f for _ in values for f in range(folds) for _ in problems[0]],
                weights=weights, is_late=lambda: time_left(settings, begin) < 0,
            )  # fmt: skip
            tuning = _Tuning(
                engine, settings, blocks, problems, values, folds, chosen, progress, run, itself
            )
            try:
                report = tuning.run(record)
            except DataError:  # nobody could go on from there
                shutil.rmtree(run.folder, ignore_errors=True)
                raise
            report["seconds"] = {"tune": time.perf_counter() - begin}
            run.note(report=report)
            del tuning, engine  # its memory goes to the training
    if picture is not None:
        draw_metric(report, picture)
    limit = settings.time_limit  # of all; the last training gets a moment at least
    limit = None if limit is None else max(0.001, time_left(settings, begin))
    best = replace(final, C=report["best"], time_limit=limit)
    result, report["train"] = train(blocks.folder, path, best, resume=resume, progress=progress)
    shutil.rmtree(run_folder(beside), ignore_errors=True)
    report["seconds"] |= {
        "train": report["train"]["seconds"]["total"], "total": time.perf_counter() - begin
    }  # fmt: skip
    report["peak_rss_bytes"] = peak_bytes()
    return result, report


def _check(Cs: Sequence[float] | float | str, folds: int, settings: Settings) -> list[float]:
    """Return the values of C in ascending order."""
    if isinstance(Cs, str):
        Cs = parse_grid(Cs)
    values = sorted({*([Cs] if isinstance(Cs, int | float) else Cs)})
    if not values:
        raise SettingsError("there is no C to try; give some as 0.01:100:x10 or 0.1,1,10")
    values = [replace(settings, C=C).C for C in values]
    if not isinstance(folds, int) or not 2 <= folds <= 255:
        raise SettingsError(f"folds is {folds}; it must be from 2 to 255")
    for name in ("warm_start", "calibrate"):
        if getattr(settings, name):
            raise SettingsError(f"{name} belongs to sbm train; tune first, then train with it")
    for what, is_given in (
        ("caches", settings.caches != 1),
        ("class_blocks", settings.class_blocks is not None),
        ("loss one_class, which has no C", settings.loss == "one_class"),
    ):
        if is_given:
            raise SettingsError(f"sbm tune does not take {what}; leave it out")
    if settings.weights == "-":
        raise SettingsError("sbm tune reads weights twice, but a pipe only once; give a file")
    return values


def _passes(n: int) -> str:
    return f"{n} pass" + ("es" if n != 1 else "")


def _known(figures: Sequence[float]) -> list[float]:
    """Return those that have a meaning."""
    return [x for x in figures if not math.isnan(x)]


def _mean(figures: Sequence[float]) -> float:
    """Return the mean of those that have a meaning; -inf where none has."""
    known = _known(figures)
    return statistics.fmean(known) if known else -math.inf


def _lag(best: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return how much others are behind the best, fold by fold: the mean and its error."""
    behind = _known([b - other for b, other in zip(best, others, strict=True)])
    if len(behind) < 2:
        return 0.0, math.inf
    return statistics.fmean(behind), statistics.stdev(behind) / math.sqrt(len(behind))


@dataclass
class _Candidate:
    """A model of one C and one fold."""

    C: float
    group: Group
    exam: Exam
    metrics: list[float] = field(default_factory=list)  # of each pass
    gap: float = math.inf  # relative, estimated in the last pass
    passes: int = 0
    certificate: Certificate | None = None

    @property
    def learners(self) -> Sequence[Learner]:
        return self.group.learners

    def record(self) -> dict[str, Any]:
        """What it came to by the end of a pass, as JSON; `restore` undoes it."""
        seconds = [learner.seconds for learner in self.learners]
        return {
            "is_active": self.is_active, "metrics": self.metrics, "gap": self.gap,
            "passes": self.passes, "seconds": seconds,
        }  # fmt: skip

    def restore(self, record: Mapping[str, Any]) -> None:
        """Undo `record`."""
        self.set_active(record["is_active"])
        self.metrics, self.gap = list(record["metrics"]), float(record["gap"])
        self.passes = int(record["passes"])
        for learner, seconds in zip(self.learners, record["seconds"], strict=True):
            learner.seconds = float(seconds)

    def set_active(self, active: bool) -> None:
        """Take part in the passes to come, or not."""
        for learner in self.learners:
            learner.is_active = active

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
        run: Run,
        itself: dict[str, Any],
    ) -> None:
        self.engine, self.settings, self.store = engine, settings, store
        self.Cs, self.n_folds, self.metric = Cs, n_folds, metric
        self.progress, self._run, self._itself = progress, run, itself
        labels, places = model_labels(problems[0][0], store), label_places(problems[0][0], store)
        learners = iter(engine.learners)
        self.candidates = []
        for k, mine in enumerate(problems):
            exam = Exam(metric, labels, places)
            group = Group(list(itertools.islice(learners, len(mine))), exam)
            self.candidates.append(_Candidate(Cs[k // n_folds], group, exam))
        self.passes = 0
        self.rounds: list[int] = []
        self.given_up: set[float] = set()
        self.waiting = list(self.Cs[max(2, math.ceil(len(self.Cs) / 2)) :])
        self._free: dict[int, int] = {}
        for candidate in self.candidates:
            candidate.set_active(candidate.C not in self.waiting)

    def run(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Train, give up, rest; then judge what is left.

        Parameters
        ----------
        record : mapping or None
            Of the commit to go on from.
        """
        with self.engine.at_work():
            if record is not None:
                self._go_on(record)
            while self._active() and self.passes < self.settings.max_passes:
                self._pass()
                if self.engine.is_late():
                    break
                self._commit()
            self._judge()
        return self._report()

    def _commit(self) -> None:
        """Make the end of this pass what there is to go on from."""
        place = self.engine.place()
        tuning = {
            "passes": self.passes,
            "rounds": self.rounds,
            "given_up": sorted(self.given_up),
            "waiting": self.waiting,
            "free": {str(k): n for k, n in self._free.items()},
            "bytes_read": self.engine.reader.bytes_read,
            "candidates": [candidate.record() for candidate in self.candidates],
        }
        state = self.engine.state()
        self._run.commit({**self._itself, "tuning": tuning, "engine": place}, state)

    def _go_on(self, record: Mapping[str, Any]) -> None:
        """Take over what the last commit says."""
        try:
            tuning = record["tuning"]
            self.passes, self.rounds = tuning["passes"], tuning["rounds"]
            self.given_up, self.waiting = set(tuning["given_up"]), tuning["waiting"]
            self._free = {int(k): n for k, n in tuning["free"].items()}
            for candidate, one in zip(self.candidates, tuning["candidates"], strict=True):
                candidate.restore(one)
            self.engine.reader.bytes_read = tuning["bytes_read"]
            self.engine.restore(record["engine"], self._run)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StoreError(
                f"{self._run.folder} cannot be gone on with ({error}); start over with --fresh"
            ) from error
        self.progress.stage(
            f"going on with {self._run.folder}, after {_passes(self.passes)}; --fresh starts over"
        )

    def _active(self) -> list[_Candidate]:
        return [c for c in self.candidates if c.is_active]

    def _pass(self) -> None:
        """One pass of all candidates that are in it."""
        self.passes += 1
        self._set_rounds()
        active = self._active()
        for candidate in active:
            # Weights of the first half of the first pass would say little.
            fresh = candidate.passes == 0 and self.passes == 1
            candidate.exam.clear(self.store.n_rows // (2 * self.n_folds) if fresh else 0)
        totals, self._free = self.engine.run_pass(
            self.passes, [c.group for c in active], "tune, pass"
        )
        for candidate in active:
            candidate.passes += 1
            candidate.metrics.append(self._figure(candidate))
            self._look_at(candidate, [totals[x.number] for x in candidate.learners])
        if self.passes > 1:
            self._give_up()
        if self.passes > 1 or not self._active():
            self._start_next()
        self._tell(active)

    def _set_rounds(self) -> None:
        """One round a step is enough for the tolerance of folds, and best where it is loose."""
        n_blocks = len(self.engine.plan.parts)
        rounds = 1
        if self.settings.rounds != "auto":
            rounds = choose_rounds(self.settings.rounds, n_blocks, self.rounds)
        self.rounds.append(rounds)
        plan, n = self.engine.plan, len(self.engine.learners)
        for learner in self.engine.learners:
            learner.solver.rounds = rounds
            if self.settings.cache_frac == "auto":
                free = self._free.get(learner.number)
                cache_rows = choose_cache_rows(free, plan.part_rows, plan.cache_rows // n)
                learner.solver.working.cache_rows = cache_rows

    def _start_next(self) -> None:
        """Go up to the next value of C if the largest so far is as good as the best.

        That is judged whatever its gap: one that is behind but far from its optimum trains on, and
        is judged again.
        """
        started = [C for C in self.Cs if C not in self.waiting]
        top, best = started[-1], self._best()
        latest = self._latest()
        if not self.waiting or (best is not None and top not in latest):
            return
        if best is not None and best != top:
            behind, error = _lag(latest[best], latest[top])
            if behind > error:
                return
        C = self.waiting.pop(0)
        for source, target in zip(self._of(top), self._of(C), strict=True):
            for a, b in zip(source.learners, target.learners, strict=True):
                self.engine.fork(a, b, C / top)
            target.set_active(True)

    def _is_trusted(self, C: float) -> bool:
        """Whether models are near enough to their optimum for their metric to say something."""
        return all(c.gap <= TRUST for c in self._of(C))

    def _latest(self) -> dict[float, list[float]]:
        """Return the metric of each fold, by C, of those that are judged."""
        left = [C for C in self.Cs if C not in self.given_up]
        groups = {C: self._of(C) for C in left}
        return {C: [c.metrics[-1] for c in g] for C, g in groups.items() if g[0].metrics}

    def _best(self) -> float | None:
        """Return the C with the best mean so far; None as long as the metric has no meaning."""
        means = {C: _mean(figures) for C, figures in self._latest().items()}
        best = max(means, key=lambda C: means[C])
        return best if math.isfinite(means[best]) else None

    def _look_at(self, candidate: _Candidate, totals: Sequence[Totals]) -> None:
        """Let a candidate rest when it is far enough."""
        gap = sum(one.gap for one in totals)
        dual = math.fsum(learner.solver.dual for learner in candidate.learners)
        candidate.gap = gap / max(abs(dual), 1e-300)
        if candidate.gap <= LOOSER * self.settings.tol:
            candidate.set_active(False)

    def _figure(self, candidate: _Candidate) -> float:
        return self.metric.sign * candidate.exam.figure

    def _of(self, C: float) -> list[_Candidate]:
        return [c for c in self.candidates if c.C == C]

    def _give_up(self) -> None:
        """Drop values of C that are clearly worse than the best one, and not about to catch up.

        With one that is larger than the best go all that are larger still.
        """
        latest, best = self._latest(), self._best()
        for C, mine in latest.items():
            if best is None or best == C or not self._is_trusted(C):
                continue
            group = self._of(C)
            changes = _known([c.metrics[-1] - c.metrics[-2] for c in group if len(c.metrics) > 1])
            if not changes:
                continue
            behind, error = _lag(latest[best], mine)
            if behind > ERRORS * error + CHANGES * abs(statistics.fmean(changes)):
                self._drop(other for other in latest if other == C or other > C > best)

    def _drop(self, Cs: Iterable[float]) -> None:
        """Give up values of C whose models are still in training."""
        for C in Cs:
            if any(c.is_active for c in self._of(C)):
                self.given_up.add(C)
                for candidate in self._of(C):
                    candidate.set_active(False)

    def _judge(self) -> None:
        """Certify and judge, at fixed weights, everything that was not given up."""
        left = [c for c in self.candidates if c.metrics and c.C not in self.given_up]
        for candidate in left:
            candidate.exam.clear()
            candidate.set_active(True)
        found = self.engine.certify([c.group for c in left])
        for candidate in left:
            parts = [found[x.number][0] for x in candidate.learners]
            candidate.certificate = Certificate.total(parts)
            candidate.metrics.append(self._figure(candidate))

    def _tell(self, active: Sequence[_Candidate]) -> None:
        given_up = ", ".join(map(format_number, sorted(self.given_up)))
        self.progress.stage(
            f"tune, pass {self.passes}: {len(active)} models, {len(self._active())} in the next"
            + (f"; C = {given_up} given up" if given_up else "")
        )

    def _report(self) -> dict[str, Any]:
        table = [self._row(C) for C in self.Cs]
        left = [row for row in table if row["status"] in ("converged", "not converged")]
        judged = [row for row in left if row["mean"] is not None]
        if not judged:
            raise DataError(
                f"{self.metric.name} has no meaning on any of the {self.n_folds} folds of "
                f"{self.store.folder}: they hold too few rows, or rows of one label alone; "
                "use fewer folds or another metric"
            )
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
        if not group[0].metrics:
            row = dict.fromkeys(("mean", "std", "folds", "relative_gap"))
            return {"C": C, **row, "passes": 0, "seconds": 0.0, "status": "not tried"}
        figures = [self.metric.sign * c.metrics[-1] for c in group]
        known = _known(figures)
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
