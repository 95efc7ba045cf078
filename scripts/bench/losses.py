"""Benchmarks of losses beside LIBLINEAR's solvers, of two classes and of several; test errors."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.commands import (
    BUDGET,
    solving_of,
    split,
    splitting_options,
    train,
    training_options,
    warm_training,
)
from scripts.bench.data import halves, labels_of
from scripts.bench.peers import Liblinear, iteration_in_memory
from scripts.bench.registry import QUICK, TRAINING, Option, Registry, benchmark, existing, one_of
from scripts.bench.tools import BenchError, Finished, Report, alternate, median, median_ratio, tell
from scripts.bench.weights import accuracy, objective, read_liblinear, read_ours

BENCHMARKS: Registry = {}
# Of each loss LIBLINEAR's solvers with the -e that each takes by itself.
FAMILY = {
    "log_loss": {7: 0.1, 0: 0.01},
    "squared_hinge": {1: 0.1},
    "epsilon_insensitive": {13: 0.1},
    "squared_epsilon_insensitive": {12: 0.1, 11: 1e-4},
}
SEVERAL = {"crammer_singer": 4, "weston_watkins": 4, "hinge": 3}  # LIBLINEAR's -s
READING_E = 1e9  # so that LIBLINEAR ends after one iteration
READING_SOLVER = 12  # any will do: all read alike, and this one takes any labels
ALIKE = 1e-6  # objectives that differ by less, relatively, are equal
TOLERANCES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 3e-7, 1e-7)
# Table C.1 of Alber et al. (2016), Weston-Watkins: test error in percent by set and C.
PAPER_ERRORS = {
    "letter": {0.1: 28.25, 1.0: 29.04, 10.0: 28.92},
    "news20": {0.1: 15.32, 1.0: 14.80, 10.0: 15.98},
}


def count_labels(text: Path) -> int:
    """Return how many labels a text has.

    Raises
    ------
    BenchError
        Fewer than three.
    """
    count = len(np.unique(labels_of(text)))
    if count < 3:
        raise BenchError(f"{text.name} has {count} different labels; at least three are required")
    return count


@dataclass
class _Ours:
    """Our trainings of one loss on a store; remembers what each tolerance gave."""

    store: Path
    folder: Path
    options: dict[str, Any]
    known: dict[float, dict[str, Any]] = field(default_factory=dict)

    def run(self, tol: float | None = None) -> tuple[Finished, float]:
        """Train; return the process and its seconds of solving."""
        tol = tol or self.options["tol"]
        model = self.model(tol)
        done = train(self.store, model, codes=BUDGET, **self.options | {"tol": tol})
        self.known[tol] = done.json()
        return done, solving_of(done, model)

    def model(self, tol: float | None = None) -> Path:
        """Return where the model of a tolerance is."""
        return self.folder / f"{self.options['loss']}-{tol or self.options['tol']:.3g}.model"

    def report(self, tol: float) -> dict[str, Any]:
        """Return what a tolerance gives; trains once."""
        if tol not in self.known:
            tell(f"sbm, {self.options['loss']} -C {self.options['C']:g} --tol {tol:.3g}")
            self.run(tol)
        return self.known[tol]

    def reach(self, primal: float) -> float:
        """Return the largest tolerance that gives this primal value, else the smallest tried."""
        found = (tol for tol in TOLERANCES if self.report(tol)["primal"] <= primal)
        return next(found, TOLERANCES[-1])

    def bound(self, tols: list[float]) -> float:
        """Return the largest certified dual; trains to a tenth of the least tolerance, too."""
        self.report(max(min(tols), TOLERANCES[-1]) / 10)
        return max(float(report["dual"]) for report in self.known.values())


@dataclass
class _Peer:
    """LIBLINEAR with one solver and C on one text; remembers the objectives."""

    text: Path
    model: Path
    program: Liblinear
    loss: str
    C: float
    known: dict[float, float] = field(default_factory=dict)

    def run(self, e: float) -> Finished:
        """Train from the text to a model file."""
        return self.program.run(self.text, self.model, e)

    def primal(self, e: float) -> float:
        """Return the objective at a tolerance, by our own evaluation; trains once."""
        if e not in self.known:
            tell(f"LIBLINEAR, {self.loss} -c {self.C:g} -e {e:g}")
            self.run(e)
            self.known[e] = objective(self.text, self.loss, self.C, read_liblinear(self.model))
        return self.known[e]

    def solving(self, runs: list[Finished], reading: float) -> list[float]:
        """Return seconds of solving: those that it prints, else all but those of reading."""
        known = [self.program.shares(one).get("train", one.seconds - reading) for one in runs]
        return [max(seconds, 1e-3) for seconds in known]


def _costs(
    splits: list[Finished], ours: list[tuple[Finished, float]], peer: list[Finished],
    peer_solving: list[float],
) -> dict[str, float]:  # fmt: skip
    """Cells of times and memory of runs that took turns."""
    splitting, peer_whole = [done.seconds for done in splits], [done.seconds for done in peer]
    training, solving = [done.seconds for done, _ in ours], [seconds for _, seconds in ours]
    whole = [sum(pair) for pair in zip(splitting, training, strict=True)]
    peak = max(done.peak_bytes for done in (*splits, *(done for done, _ in ours)))
    peer_peak = max(done.peak_bytes for done in peer)
    return {
        "split": median(splitting), "train": median(training), "peer_whole": median(peer_whole),
        "whole_ratio": median_ratio(whole, peer_whole),
        "solving": median(solving), "peer_solving": median(peer_solving),
        "solving_ratio": median_ratio(solving, peer_solving),
        "MB": peak / 1e6, "peer_MB": peer_peak / 1e6, "memory_ratio": peak / peer_peak,
    }  # fmt: skip


# ------------------------------------------------------------------------------------ two classes


@benchmark(
    BENCHMARKS, rows=2_500_000, quick=QUICK,
    options={**TRAINING, "C": 1.0, "losses": Option(one_of(FAMILY), "of sbm", list(FAMILY)),
             "liblinear_train": None, "also": []},
)  # fmt: skip
def family(args: argparse.Namespace, report: Report) -> None:
    """Losses beside LIBLINEAR's solvers.

    LIBLINEAR with its own -e for each solver. objective: computed by one function from the text and
    the weights in the model file; above: above the largest certified dual value, so at most that
    far from the optimum. epsilon is 0.1 for both; in regression the labels themselves are the
    targets.

    whole: of ours sbm split and sbm train, processes; of LIBLINEAR its one process. memory: peaks
    from outside, of ours the larger one of split and train.

    solving: of ours solving, certificates and waiting for rows after the first time, from its
    report and log; of LIBLINEAR the whole process less reading and writing (a process of one
    iteration, less that iteration in memory through the C library).
    """
    for text in (args.data, *map(existing, args.also)):
        report.rows += list(_family_on(args, text))
    for row in report.rows:
        name = f"{row['data']}: {row['loss']} of -s {row['peer_s']}"
        for what in ("whole", "solving", "memory"):
            report.ratios[f"{name}, {what}"] = row[f"{what}_ratio"]
        if row["peer_is"] != "equal":
            report.notes.append(
                f"{row['data']}: LIBLINEAR's objective of -s {row['peer_s']} is {row['peer_is']} "
                "than ours"
            )
    report.notes.append(f"LIBLINEAR: {Liblinear(args).what.split(',')[0]}")


def _family_on(args: argparse.Namespace, text: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table for one text."""
    two = len(np.unique(labels_of(text))) == 2
    losses = [name for name in args.losses if two or "epsilon" in name]
    if not losses:
        raise BenchError(f"{text.name} does not have two labels; only regression can be measured")
    store = args.folder / "family.sbm"
    begin = partial(split, text, store, **splitting_options(args))
    begin()  # compiles
    ours = {
        loss: _Ours(store, args.folder, training_options(args, loss=loss)) for loss in losses
    }  # fmt: skip
    for one in ours.values():
        warm_training(args, store, one.model(), **one.options)
    peers = {
        (loss, solver): _Peer(
            text, args.folder / f"peer-{solver}.model", Liblinear(args, solver=solver), loss, args.C
        )
        for loss in losses for solver in FAMILY[loss]
    }  # fmt: skip
    reader = _Peer(text, args.folder / "reading.model", Liblinear(args, solver=READING_SOLVER),
                   "", args.C)  # fmt: skip
    tasks: dict[str, Callable[[], Any]] = {
        "split": begin, "reading": partial(reader.run, READING_E),
        **{loss: one.run for loss, one in ours.items()},
        **{f"LIBLINEAR -s {s}": partial(one.run, FAMILY[loss][s])
           for (loss, s), one in peers.items()},
    }  # fmt: skip
    runs = alternate(tasks, args.runs)
    iteration = iteration_in_memory(text, args.C, READING_SOLVER, READING_E)
    reading = median([reader.program.reading(done, iteration) for done in runs["reading"]])
    for (loss, solver), peer in peers.items():
        facts, theirs = runs[loss][0][0].json(), runs[f"LIBLINEAR -s {solver}"]
        bound = max(done.json()["dual"] for done, _ in runs[loss])
        value = objective(text, loss, args.C, read_ours(ours[loss].model()))
        other = objective(text, loss, args.C, read_liblinear(peer.model))
        share = other / value - 1
        words = f"{abs(share):.1e} {'worse' if share > 0 else 'better'}"
        yield {
            "data": text.name, "loss": loss, "peer_s": solver, "peer_e": FAMILY[loss][solver],
            "passes": facts["passes"], "certified_gap": facts["relative_gap"],
            "converged": facts["converged"], "objective": f"{value:.10g}",
            "peer_objective": f"{other:.10g}", "peer_is": "equal" if abs(share) < ALIKE else words,
            # Stored values are rounded, so one may be below the bound.
            "above": max(value / bound - 1, 0.0), "peer_above": max(other / bound - 1, 0.0),
            **_costs(runs["split"], runs[loss], theirs, peer.solving(theirs, reading)),
        }  # fmt: skip


# ---------------------------------------------------------------------------------- several classes


@benchmark(
    BENCHMARKS, rows=500_000, classes=10, several=True,
    quick={"C": [0.1], "e": [0.1]},
    options={**TRAINING, "C": [0.1, 1.0], "mem": "2GB", "blocks": 1, "e": [0.1, 0.01, 0.001],
             "losses": Option(one_of(SEVERAL), "of sbm", list(SEVERAL)), "liblinear_train": None},
)  # fmt: skip
def multiclass(args: argparse.Namespace, report: Report) -> None:
    """Several classes to LIBLINEAR's objective.

    Ours is trained to the largest of some tolerances at which its certified primal is not above
    LIBLINEAR's, computed from text and model file. Weston-Watkins, which LIBLINEAR lacks, is to
    certify a gap as small as LIBLINEAR's distance from the optimum of Crammer and Singer. The aim
    is a solving ratio of at most 0.5.

    above: objective, computed from text and model by one function, above the largest certified dual
    value; of weston_watkins, peer above is that of crammer_singer.

    solving: LIBLINEAR's whole process less reading and writing (a process of one iteration, less
    that iteration in memory through the C library); ours solving, certificates and waiting for rows
    after the first time, from its report and its log. whole: LIBLINEAR's process; sbm split and sbm
    train as processes. memory: the peaks.
    """
    for text in args.data:
        count_labels(text)
        store = args.folder / "one.sbm"
        split(text, store, **splitting_options(args))  # compiles
        warm = args.folder / "one.model"
        warm_training(args, store, warm, **training_options(args, C=args.C[0]))
        for C in args.C:
            for solver in sorted({SEVERAL[loss] for loss in args.losses}):
                losses = [loss for loss in args.losses if SEVERAL[loss] == solver]
                report.rows += list(_several_on(args, text, store, C, solver, losses))
    for loss in args.losses:
        rows = [row for row in report.rows if row["loss"] == loss]
        for what in ("solving", "whole", "memory"):
            ratios = [row[f"{what}_ratio"] for row in rows]
            report.ratios[f"{loss}: {what}_of_liblinear, median"] = median(ratios)
            report.ratios[f"{loss}: {what}_of_liblinear, largest"] = max(ratios)
    report.notes.append(f"LIBLINEAR: {Liblinear(args, args.C[0]).what.split(',')[0]}")


def _several_on(
    args: argparse.Namespace, text: Path, store: Path, C: float, solver: int, losses: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one solver of LIBLINEAR: a row for each loss and tolerance."""
    loss = next(name for name, number in SEVERAL.items() if number == solver)
    program = Liblinear(args, C, solver=solver)
    peer = _Peer(text, args.folder / "peer.model", program, loss, C)
    ours = {
        name: _Ours(store, args.folder, training_options(args, C=C, loss=name))
        for name in {loss, *losses}
    }  # fmt: skip
    tols = {(loss, e): ours[loss].reach(peer.primal(e)) for e in args.e}
    best = ours[loss].bound(list(tols.values()))
    for e in args.e:  # only Weston-Watkins is another loss than LIBLINEAR's
        tols["weston_watkins", e] = max((peer.primal(e) - best) / peer.primal(e), TOLERANCES[-1])
    names = {(name, e): f"{name} {tols[name, e]:.3g}" for name in losses for e in args.e}
    tasks: dict[str, Callable[[], Any]] = {
        "split": partial(split, text, store, **splitting_options(args)),
        "reading": partial(peer.run, READING_E),
        **{f"LIBLINEAR {e:g}": partial(peer.run, e) for e in args.e},
        **{title: partial(ours[key[0]].run, tols[key]) for key, title in names.items()},
    }
    runs = alternate(tasks, args.runs)
    iteration = iteration_in_memory(text, C, solver, READING_E)
    reading = median([program.reading(done, iteration) for done in runs["reading"]])
    for (name, e), title in names.items():
        tol, one, theirs = tols[name, e], ours[name], runs[f"LIBLINEAR {e:g}"]
        bound = best if name == loss else one.bound([tols[name, other] for other in args.e])
        primal = objective(text, name, C, read_ours(one.model(tol)))
        yield {
            "data": text.name, "C": C, "loss": name, "peer_e": e,
            "peer_above": max(peer.primal(e) / best - 1, 0.0),  # rounding of stored values
            "tol": tol, "above": max(primal / bound - 1, 0.0),
            "reached": name != loss or one.report(tol)["primal"] <= peer.primal(e),
            "passes": one.report(tol)["passes"],
            **_costs(runs["split"], runs[title], theirs, peer.solving(theirs, reading)),
        }  # fmt: skip


@benchmark(
    BENCHMARKS, rows=500_000, classes=10, several=True,
    quick={"max_passes": 20, "C": [0.1]},
    options={**TRAINING, "C": [0.1, 1.0, 10.0], "mem": "2GB",
             "losses": Option(one_of(SEVERAL), "of sbm", list(SEVERAL))},
)  # fmt: skip
def multiclass_error(args: argparse.Namespace, report: Report) -> None:
    """Test error of the losses.

    The test half of NAME.svm is NAME.t.svm beside it; without it a random fifth of the rows is held
    out.

    paper: Alber et al. 2016, table C.1, Weston-Watkins; letter is the same data (values in [-1, 1],
    15,000 rows to train), news20 here has no test half and raw word counts.
    """
    for text in args.data:
        count_labels(text)
        train_text, test_text, held = halves(text, args.folder)
        store, model = args.folder / "error.sbm", args.folder / "error.model"
        split(train_text, store, **splitting_options(args))
        for loss in args.losses:
            for C in args.C:
                tell(f"{text.name}, {loss}, C = {C:g}")
                options = training_options(args, loss=loss, C=C)
                facts = train(store, model, codes=BUDGET, **options).json()
                paper = PAPER_ERRORS.get(text.stem, {}) if loss == "weston_watkins" else {}
                report.rows.append({
                    "data": text.name, "test": "held out" if held else test_text.name,
                    "loss": loss, "C": C,
                    "error_percent": 100 * (1 - accuracy(test_text, read_ours(model))),
                    "paper_percent": paper.get(C), "relative_gap": facts["relative_gap"],
                    "converged": facts["converged"], "passes": facts["passes"],
                    "seconds": facts["seconds"]["total"],
                })  # fmt: skip
    for loss in args.losses:
        rows = [row for row in report.rows if row["loss"] == loss]
        best = [min(r["error_percent"] for r in rows if r["data"] == t.name) for t in args.data]
        report.ratios[f"{loss}: best_error_percent, mean of the sets"] = float(np.mean(best))
