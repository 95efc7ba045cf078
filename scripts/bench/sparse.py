"""Benchmark of sparse models: optima, support and cost beside LIBLINEAR, and the path of C."""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import sbm
from sbm.engine.columns import ColumnPasses
from sbm.store.blocks import NONZERO_BYTES, BlockStore
from scripts.bench.data import halves
from scripts.bench.optima import write_text
from scripts.bench.peers import Liblinear
from scripts.bench.plot import Axes
from scripts.bench.registry import Option, Registry, benchmark
from scripts.bench.tools import BenchError, Report, run_process, sbm_command, sizes, tell
from scripts.bench.weights import (
    LinearModel,
    accuracy,
    objective,
    read_liblinear,
    read_ours,
)  # fmt: skip

BENCHMARKS: Registry = {}
SOLVERS = {6: "log_loss", 5: "squared_hinge"}
# Values of C; and LIBLINEAR's -e, which is larger where 1e-6 takes too long.
SETS: dict[str, tuple[tuple[float, ...], float]] = {
    "a9a": ((0.01, 0.1, 1.0, 10.0), 1e-6), "farm_ads": ((0.01, 0.1, 1.0, 10.0), 1e-6),
    "news20": ((0.001, 0.01, 0.1, 1.0), 1e-4), "trigrams": ((0.01, 0.1, 1.0, 10.0), 1e-4),
    "prep_small_binary": ((0.001, 0.01, 0.1, 1.0), 1e-4), "prep_medium_binary": ((0.1,), 1e-4),
}  # fmt: skip
TESTED = ("a9a", "prep_small_binary")  # with a file of test data
TRIGRAMS = "trigrams"
EXACT = 1e-6  # gap of the models whose weights are counted beside those of LIBLINEAR at this -e
QUARTER, MOST_PASSES = 0.25, 20  # columns in memory: share of the bytes of the decoded data
PATH_SET, PATH = "farm_ads", "0.01,0.03,0.1,0.3,1,3,10,30,100"
FOLDS = "metric of the folds over C"


@benchmark(
    BENCHMARKS, runs=0,
    options={
        "reference": None, "sets": [], "liblinear_train": None, "tol": 1e-3,
        "trigrams": Option(Path, "text of trigrams, of which a fifth is held out"),
        "resume": Option(bool, "skip what PREFIX.json of the same commit and settings has"),
    },
    axes=(
        Axes("C", "weights", "C", "weights not 0", x_log=True, table=FOLDS),
        Axes("C", "accuracy", "C", "accuracy", x_log=True, y_log=False, table=FOLDS),
        Axes("C", "gap", "C", "certified relative gap", x_log=True, table=FOLDS),
    ),
)  # fmt: skip
def sparse(args: argparse.Namespace, report: Report) -> None:
    """Sparse models beside LIBLINEAR's, both from text to model.

    above: objective of ours less LIBLINEAR's at -e, relative to it, both computed from the text.
    weights: that are not 0. exact weights: the same at --tol 1e-6. CPU: seconds of the whole
    process. in a quarter: passes (at most 20) and gap with columns in memory that take a quarter of
    the bytes of the decoded data. trigrams: made by scripts.data.trigrams.

    The path: sbm tune of farm_ads with l1 and with l2.
    """
    if args.reference is None:
        raise BenchError("give --reference FOLDER")
    if args.resume:
        report.resume(args.prefix, "tol")
    known = {(row["data"], row["loss"], row["C"]) for row in report.rows}
    run_process(sbm_command("precompile"))
    for name in args.sets or SETS:
        if name == TRIGRAMS and args.trigrams is None:
            report.notes.append("no --trigrams was given")
            continue
        values, e = SETS.get(name, SETS["a9a"])
        wanted = [(s, loss, C) for C in values for s, loss in SOLVERS.items()]
        wanted = [one for one in wanted if (name, *one[1:]) not in known]
        if not wanted:
            continue
        text, tests = _texts(args, name)
        for solver, loss, C in wanted:
            report.rows.append(_compare(args, text, tests, solver, loss, C, e))
            tell(str(report.rows[-1]))
            if args.prefix is not None:  # for --resume; the facts at the end are not known yet
                replace(report, machine=dict(report.machine)).write(args.prefix)
        if name == PATH_SET:
            report.tables[FOLDS] = [
                *_path(args.folder, text, "l1"),
                *_path(args.folder, text, "l2"),
            ]
        tests.unlink(missing_ok=True)


def _texts(args: argparse.Namespace, name: str) -> tuple[Path, Path]:
    """Return the text of a set and that of its test data, which need not be there."""
    texts = args.folder / f"{name}.svm", args.folder / f"{name}.t.svm"
    if name == TRIGRAMS:
        for found, wanted in zip(halves(args.trigrams, args.folder)[:2], texts, strict=True):
            shutil.copyfile(found, wanted)
        return texts
    write_text(args.reference, name, texts[0])
    if name in TESTED:
        stem, binary, _ = name.partition("_binary")
        write_text(args.reference, f"{stem}.t{binary}", texts[1])
    return texts


def _compare(
    args: argparse.Namespace, text: Path, tests: Path, solver: int, loss: str, C: float, e: float
) -> dict[str, Any]:
    """Train both programs, and compare their models."""
    ours, theirs = args.folder / "m.model", args.folder / "liblinear.model"
    words = ["-c", C, "--tol", args.tol, "-o", ours, "--fresh", "--json"]
    mine = run_process(sbm_command("train", text, "-s", str(solver), *words))
    peer = Liblinear(args, C, solver=solver).run(text, theirs, e)
    found = mine.json()
    models = read_ours(ours), read_liblinear(theirs)
    values = [_value(text, loss, C, model) for model in models]
    counts = [int(np.count_nonzero(model.W)) for model in models]
    shares: list[str] = []
    if tests.exists():
        run_process(sbm_command("train", text, "--loss", loss, *words))
        shares = [f"{accuracy(tests, model):.4f}" for model in (models[0], read_ours(ours))]
    exact = ""
    if e <= EXACT:
        words[words.index("--tol") + 1] = EXACT
        best = run_process(sbm_command("train", text, "-s", str(solver), *words))
        exact = best.json()["n_nonzero"]
    quarter = _in_a_quarter(args.folder, text, loss, C, args.tol)
    return {
        "data": text.stem, "loss": loss, "C": C, "above": f"{values[0] / values[1] - 1:.1e}",
        "e": f"{e:g}", "certified gap": f"{found['relative_gap']:.1e}", "passes": found["passes"],
        "weights": counts[0], "exact weights": exact, "of LIBLINEAR": counts[1],
        "CPU": mine.cpu_seconds, "CPU of LIBLINEAR": peer.cpu_seconds,
        "memory": sizes(mine.peak_bytes), "memory of LIBLINEAR": sizes(peer.peak_bytes),
        "passes in a quarter": quarter["passes"],
        "gap in a quarter": f"{quarter['relative_gap']:.1e}",
        "accuracy, with l2": ", ".join(shares),
    }  # fmt: skip


def _in_a_quarter(folder: Path, text: Path, loss: str, C: float, tol: float) -> dict[str, Any]:
    """Train with room for columns that takes a quarter of the decoded data."""
    store = folder / f"{text.stem}.sbm"
    if not store.exists():
        sbm.split([text], store)
    data = BlockStore(store)
    room = int(QUARTER * data.nnz * NONZERO_BYTES[data.value_type])
    settings = {"loss": loss, "penalty": "l1", "C": C, "tol": tol, "max_passes": MOST_PASSES}
    with mock.patch.object(ColumnPasses, "room", return_value=room):
        _, report = sbm.train(store, folder / "q.model", settings, resume=False)
    return report


def _value(text: Path, loss: str, C: float, model: LinearModel) -> float:
    """Objective with |w|₁."""
    squares = 0.5 * float(np.vdot(model.W, model.W))
    return objective(text, loss, C, model) - squares + float(np.abs(model.W).sum())


def _path(folder: Path, text: Path, penalty: str) -> list[dict[str, Any]]:
    """Tune with a penalty; return a row for each C."""
    store = folder / "path.sbm"
    sbm.split([text], store, force=True)
    settings = {"loss": "log_loss", "penalty": penalty}
    model, report = sbm.tune(store, folder / "path.model", settings, Cs=PATH, resume=False)
    every = report["settings"]
    return [
        {"data": text.stem, "method": penalty, "C": row["C"], "accuracy": row["mean"],
         "weights": row.get("n_nonzero", len(model.W)), "gap": row["relative_gap"],
         "passes": row["passes"]}
        for row in every if row["mean"] is not None and row["relative_gap"] is not None
    ]  # fmt: skip
