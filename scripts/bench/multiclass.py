"""Benchmark of several classes beside LIBLINEAR."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.data import labels_of
from scripts.bench.evaluate import read_liblinear_classifier, read_our_classifier, total_objective
from scripts.bench.ours import (
    BUDGET,
    solving_of,
    split,
    splitting_options,
    train,
    training_options,
    warm_training,
)
from scripts.bench.peers import Liblinear, iteration_in_memory
from scripts.bench.tools import BenchError, Finished, Report, alternate, median, median_ratio, tell

TOLERANCES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 3e-7, 1e-7)
SOLVERS = {"crammer_singer": 4, "weston_watkins": 4, "hinge": 3}  # LIBLINEAR's -s
READING_E = 1e9  # so that LIBLINEAR ends after one iteration


def count_labels(text: Path) -> int:
    """How many labels a text has.

    Raises
    ------
    BenchError
        Fewer than three.
    """
    count = len(np.unique(labels_of(text)))
    if count < 3:
        raise BenchError(f"{text.name} has {count} different labels, at least three are needed")
    return count


# ------------------------------------------------------------------------------- beside LIBLINEAR


@dataclass
class _Peer:
    """LIBLINEAR with one solver and C on one text."""

    text: Path
    model: Path
    program: Liblinear
    loss: str
    C: float
    primals: dict[float, float] = field(default_factory=dict)

    def run(self, e: float) -> Finished:
        """Train from the text to a model file."""
        return self.program.run(self.text, self.model, e)

    def primal(self, e: float) -> float:
        """Objective at a tolerance, by our own evaluation; trains once."""
        if e not in self.primals:
            tell(f"LIBLINEAR, {self.loss} -c {self.C:g} -e {e:g}")
            self.run(e)
            found = read_liblinear_classifier(self.model)
            self.primals[e] = total_objective(self.text, self.loss, self.C, found)
        return self.primals[e]


@dataclass
class _Ours:
    """Ours with one loss and C on a store; remembers what each tolerance gave."""

    store: Path
    folder: Path
    options: dict[str, Any]
    known: dict[float, dict[str, Any]] = field(default_factory=dict)

    def run(self, tol: float) -> tuple[Finished, dict[str, float]]:
        """Train to a tolerance; return the process, and its seconds of solving apart."""
        model = self.model(tol)
        done = train(self.store, model, codes=BUDGET, **self.options | {"tol": tol})
        return done, {"solving": solving_of(done, model)}

    def model(self, tol: float) -> Path:
        """Where the model of a tolerance is."""
        return self.folder / f"{self.options['loss']}-{tol:.3g}.model"

    def report(self, tol: float) -> dict[str, Any]:
        """What a tolerance gives; trains once."""
        if tol not in self.known:
            tell(f"sbm, {self.options['loss']} -C {self.options['C']:g} --tol {tol:.3g}")
            self.known[tol] = self.run(tol)[0].json()
        return self.known[tol]

    def reach(self, primal: float) -> float:
        """The largest tolerance that gives at most this primal value, else the smallest tried."""
        for tol in TOLERANCES:
            if self.report(tol)["primal"] <= primal:
                return tol
        return TOLERANCES[-1]

    @property
    def best_dual(self) -> float:
        """The largest dual value that is certified."""
        return max(float(report["dual"]) for report in self.known.values())


def bench_multiclass(args: argparse.Namespace, report: Report) -> None:
    """Time training to at most LIBLINEAR's objective, whole processes, taking turns.

    Ours is ``sbm train`` on a store of ``--blocks`` (one, unless given), to the largest of some
    tolerances at which its certified primal is not above LIBLINEAR's, which is computed from text
    and model file. For Weston-Watkins, which LIBLINEAR lacks, the relative gap is to be at most
    LIBLINEAR's relative distance from the optimum of Crammer and Singer (from the largest dual
    value that ours certifies at a tenth of the tolerance).
    """
    for text in args.data:
        count_labels(text)
        report.rows += list(_compare_on(args, text))
    for loss in args.losses:
        rows = [row for row in report.rows if row["loss"] == loss]
        for what in ("solving", "whole", "memory"):
            ratios = [row[f"{what}_ratio"] for row in rows]
            report.ratios[f"{loss}: {what}_of_liblinear, median"] = median(ratios)
            report.ratios[f"{loss}: {what}_of_liblinear, largest"] = max(ratios)
    report.notes = [
        f"LIBLINEAR: {Liblinear(args, args.C[0]).what.split(',')[0]}",
        (
            "solving: LIBLINEAR's whole process less reading and writing (a process of one "
            "iteration, less that iteration in memory through the C library); ours solving, "
            "certificates and waiting for rows after the first time, from its report and its log"
        ),
        "whole: LIBLINEAR's process; sbm split and sbm train as processes; memory: the peaks",
        (
            "above: objective, computed from text and model by one function, above the largest "
            "certified dual value; of weston_watkins, peer above is that of crammer_singer, and "
            "ours is to certify a gap as small"
        ),
        "the aim is a solving ratio of at most 0.5",
    ]


def _compare_on(args: argparse.Namespace, text: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table for one text."""
    store = args.folder / "one.sbm"
    split(text, store, **splitting_options(args))  # compiles
    splits = [split(text, store, **splitting_options(args)) for _ in range(args.runs)]
    first = sorted(splits, key=lambda done: done.seconds)[len(splits) // 2]
    warm_training(args, store, args.folder / "one.model", **training_options(args, C=args.C[0]))
    for C in args.C:
        for solver in sorted({SOLVERS[loss] for loss in args.losses}):
            losses = [loss for loss in args.losses if SOLVERS[loss] == solver]
            yield from _compare(args, text, store, first, C, solver, losses)


def _compare(
    args: argparse.Namespace,
    text: Path,
    store: Path,
    first: Finished,
    C: float,
    solver: int,
    losses: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one solver of LIBLINEAR: a row for each of ours and each tolerance."""
    loss = next(name for name, number in SOLVERS.items() if number == solver)
    program = Liblinear(args, C, solver=solver)
    peer = _Peer(text, args.folder / "peer.model", program, loss, C)
    ours = {
        name: _Ours(store, args.folder, training_options(args, C=C, loss=name))
        for name in {loss, *losses}
    }
    tols = {(loss, e): ours[loss].reach(peer.primal(e)) for e in args.e}
    best = _bound(ours[loss], [tols[loss, e] for e in args.e])
    for e in args.e:  # only Weston-Watkins is another loss than LIBLINEAR's
        tols["weston_watkins", e] = max((peer.primal(e) - best) / peer.primal(e), TOLERANCES[-1])
    tasks: dict[str, Callable[[], Any]] = {"reading": partial(peer.run, READING_E)}
    tasks |= {f"LIBLINEAR {e:g}": partial(peer.run, e) for e in args.e}
    tasks |= {
        f"{name} {tols[name, e]:.3g}": partial(ours[name].run, tols[name, e])
        for name in losses
        for e in args.e
    }
    runs = alternate(tasks, args.runs)
    writing = median([done.seconds for done in runs["reading"]])
    reading = max(writing - iteration_in_memory(text, C, solver, READING_E), 1e-9)
    for name in losses:
        bound = best if name == loss else _bound(ours[name], [tols[name, e] for e in args.e])
        for e in args.e:
            tol = tols[name, e]
            row = _Row(runs[f"LIBLINEAR {e:g}"], reading, runs[f"{name} {tol:.3g}"], first)
            primal = total_objective(text, name, C, read_our_classifier(ours[name].model(tol)))
            peer_above = max(peer.primal(e) / best - 1, 0.0)  # rounding of stored values
            reached = name != loss or ours[name].report(tol)["primal"] <= peer.primal(e)
            yield {
                "data": text.name, "C": C, "loss": name, "peer_e": e, "peer_above": peer_above,
                "tol": tol, "above": max(primal / bound - 1, 0.0), "reached": reached,
                **row.described(),
            }  # fmt: skip


def _bound(ours: _Ours, tols: Sequence[float]) -> float:
    """The largest certified dual value, of a training to a tenth of the smallest tolerance too."""
    ours.report(max(min(tols) / 10, TOLERANCES[-1] / 10))
    return ours.best_dual


@dataclass(frozen=True)
class _Row:
    """Runs of LIBLINEAR and ours that took turns."""

    peer: list[Finished]
    reading: float
    ours: list[tuple[Finished, dict[str, float]]]
    split: Finished

    def described(self) -> dict[str, Any]:
        """Cells of the table."""
        peer = [done.seconds for done in self.peer]
        peer_solving = [max(seconds - self.reading, 1e-3) for seconds in peer]
        solving = [shares["solving"] for _, shares in self.ours]
        train_seconds = [done.seconds for done, _ in self.ours]
        whole = [self.split.seconds + seconds for seconds in train_seconds]
        peak = max(self.split.peak_bytes, *(done.peak_bytes for done, _ in self.ours))
        peer_peak = max(done.peak_bytes for done in self.peer)
        return {
            "passes": self.ours[0][0].json()["passes"],
            "peer_solving": median(peer_solving), "solving": median(solving),
            "solving_ratio": median_ratio(solving, peer_solving),
            "peer_whole": median(peer), "split": self.split.seconds,
            "train": median(train_seconds), "whole_ratio": median_ratio(whole, peer),
            "peer_MB": peer_peak / 1e6, "MB": peak / 1e6, "memory_ratio": peak / peer_peak,
        }  # fmt: skip
