"""Benchmarks of several classes: what a class costs, and how good the losses are."""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.data import make_text
from scripts.bench.evaluate import error_rate, read_our_classifier
from scripts.bench.multiclass import count_labels
from scripts.bench.ours import (
    BUDGET,
    log_of,
    passes_of,
    remove,
    split,
    splitting_options,
    train,
    training_options,
    warm_training,
)
from scripts.bench.tools import BenchError, Finished, Report, alternate, median, tell

NEVER = 1e-15  # a tolerance that is not reached
HELD_OUT = 5  # one row of so many

# Table C.1 of Alber et al. (2016), Weston-Watkins: test error in percent by set and C.
PAPER_ERRORS = {
    "letter": {0.1: 28.25, 1.0: 29.04, 10.0: 28.92},
    "news20": {0.1: 15.32, 1.0: 14.80, 10.0: 15.98},
}


# ------------------------------------------------------------------------------ number of classes


def bench_classes(args: argparse.Namespace, report: Report) -> None:
    """Train for a few passes on texts that differ in their number of classes only.

    Seconds of a pass are the mean of the log's, the certificate left out; the peaks are of whole
    processes, from outside. Equal rows and nonzeros throughout, so the work of all classes grows
    with their number, while that of the variables that are not 0 may not.
    """
    tasks, sizes = {}, dict[str, dict[str, int]]()
    for name, text in _texts(args, report):
        classes = count_labels(text)
        store = args.folder / f"{len(sizes)}.sbm"
        tell(f"splitting {name}")
        facts = split(text, store, **splitting_options(args)).json()
        sizes[name] = {"classes": classes, "rows": facts["rows"], "features": facts["features"]}
        model = args.folder / "classes.model"
        for loss in args.losses:
            options = training_options(args, loss=loss, tol=NEVER, max_passes=args.passes)
            if len(sizes) == 1:  # compiled code does not depend on the number of classes
                warm_training(args, store, model, **options)
            tasks[f"{name}, {loss}"] = partial(_measure, store, model, options)
        if args.folder in text.parents:
            remove(text)
    runs = alternate(tasks, args.runs)
    for key, found in runs.items():
        name, loss = key.rsplit(", ", 1)
        report.rows.append({"data": name, **sizes[name], "loss": loss, **_row_of(found)})
    _compare_ends(args, report)
    report.notes = [
        f"{args.passes} passes at --mem {args.mem}; a pass: their mean, the first one included",
        (
            "support rows: rows with a variable above 0; free rows: with one inside its bounds; "
            "cut short: visits of the last pass without room for all variables of a row"
        ),
    ]


def _texts(args: argparse.Namespace, report: Report) -> Iterator[tuple[str, Path]]:
    """Make the texts, one at a time; then those that were given."""
    for classes in args.classes:
        name, text = f"{classes} classes", args.folder / f"{classes}.svm"
        tell(f"making {name}")
        shape = ("--rows", args.made_rows, "--features", args.features, "--nnz", args.nnz)
        asked = make_text(text, *shape, "--classes", classes)
        report.data["name"] = asked.replace(f"--classes {classes}", "--classes K")
        yield name, text
    for text in args.also:
        if not text.is_file():
            raise BenchError(f"{text}: no such file")
        report.data["also"] = ", ".join(path.name for path in args.also)
        yield text.name, text


def _measure(store: Path, model: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Train; return the process with what its log says."""
    done = train(store, model, codes=BUDGET, **options)
    walls = [seconds["wall"] for seconds in passes_of(model)]
    last = [event for event in log_of(model) if event["event"] == "pass"][-1]
    return {"done": done, "wall": sum(walls) / len(walls), "last": last}


def _row_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Cells of one number of classes and loss."""
    done: list[Finished] = [run["done"] for run in found]
    facts, last = done[0].json(), found[0]["last"]
    return {
        "seconds_a_pass": median([run["wall"] for run in found]),
        "seconds": median([run.seconds for run in done]),
        "relative_gap": facts["relative_gap"],
        "peak_MB": median([run.peak_bytes for run in done]) / 1e6,
        "visits_1e6": facts["visits"] / 1e6, "updates_1e6": facts["updates"] / 1e6,
        "support_rows": facts["n_support"], "free_rows": last["free_rows"],
        "cut_short": last["visits_cut_short"],
    }  # fmt: skip


def _compare_ends(args: argparse.Namespace, report: Report) -> None:
    """Ratios of the most classes that were made and of the fewest."""
    for loss in args.losses:
        made = [row for row in report.rows if row["loss"] == loss][: len(args.classes)]
        few, many = (pick(made, key=lambda row: row["classes"]) for pick in (min, max))
        for name in ("seconds_a_pass", "peak_MB"):
            report.ratios[f"{loss}: {name}, most_classes_of_fewest"] = many[name] / few[name]


# --------------------------------------------------------------------------------------- test error


def bench_multiclass_error(args: argparse.Namespace, report: Report) -> None:
    """Test error of the losses over C, beside the figures of a paper where the data is the same.

    The test half of ``NAME.svm`` is ``NAME.t.svm`` beside it; where there is none, a random fifth
    of the rows is held out.
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
                error = 100 * error_rate(test_text, read_our_classifier(model))
                paper = PAPER_ERRORS.get(text.stem, {}) if loss == "weston_watkins" else {}
                report.rows.append({
                    "data": text.name, "test": "held out" if held else test_text.name,
                    "loss": loss, "C": C, "error_percent": error, "paper_percent": paper.get(C),
                    "relative_gap": facts["relative_gap"], "converged": facts["converged"],
                    "passes": facts["passes"], "seconds": facts["seconds"]["total"],
                })  # fmt: skip
    for loss in args.losses:
        rows = [row for row in report.rows if row["loss"] == loss]
        best = [min(r["error_percent"] for r in rows if r["data"] == t.name) for t in args.data]
        report.ratios[f"{loss}: best_error_percent, mean of the sets"] = float(np.mean(best))
    report.notes = [
        f"held out: a random row of {HELD_OUT}, where there is no NAME.t.svm beside NAME.svm",
        (
            "paper: Alber et al. 2016, table C.1, Weston-Watkins; letter is the same data (values "
            "in [-1, 1], 15,000 rows to train), news20 here has no test half and raw word counts"
        ),
    ]


def halves(text: Path, folder: Path) -> tuple[Path, Path, bool]:
    """Texts to train on and to test on, and whether the latter is held out."""
    beside = text.with_name(f"{text.stem}.t{text.suffix}")
    if beside.is_file():
        return text, beside, False
    lines = text.read_bytes().splitlines(keepends=True)
    chosen = np.random.default_rng(0).random(len(lines)) < 1 / HELD_OUT
    halves = folder / f"train-{text.name}", folder / f"test-{text.name}"
    for out, mine in zip(halves, (~chosen, chosen), strict=True):
        out.write_bytes(b"".join(lines[k] for k in np.flatnonzero(mine)))
    return *halves, True
