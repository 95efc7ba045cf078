"""Benchmark of trainings that converge slowly, and of what helps."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.bench.commands import BUDGET, metric_of, split, train
from scripts.bench.data import cut, end_of_line, make_text
from scripts.bench.newton import write_income
from scripts.bench.optima import write_text
from scripts.bench.registry import Registry, benchmark
from scripts.bench.tools import BenchError, Report, tell

BENCHMARKS: Registry = {}
LOSSES = ("squared_hinge", "log_loss", "hinge")
SOLVERS = ("dual", "newton", "auto")
MANY = 20_000  # passes: no training needs as many
SHAPE = ("--rows", 110_000, "--features", 20_000, "--nnz", 15, "--noise", 0)
# What is tried on synthetic rows of which many have a free alpha.
REMEDIES: dict[str, dict[str, Any]] = {
    "defaults: all rows in memory": {},
    "`--parts blocks`: 12 blocks, `--cache-frac 0.5`": {"parts": "blocks"},
    "`--parts blocks --cache-frac auto`": {"parts": "blocks", "cache_frac": "auto"},
    "`-C 0.1`": {"C": 0.1},
}


@benchmark(
    BENCHMARKS, runs=0,
    options={"reference": None, "costs": [0.1, 1.0, 10.0, 100.0]}, quick={"costs": [1.0]},
)  # fmt: skip
def converge(args: argparse.Namespace, report: Report) -> None:
    """Trainings that converge slowly, and what helps.

    To a certified gap of 1e-3. a9a, farm_ads: coordinate descent and Newton's method over C, from a
    store, CPU seconds of the process. income: age, an income of about 50,000 and a city, as they
    are and scaled, coordinate descent, at most 50 passes. synthetic: the first 100,000 rows, C = 1
    and hinge loss unless it says otherwise.
    """
    if args.quick == (args.reference is not None):
        raise BenchError("either --reference FOLDER or --quick is needed")
    for rows, found in (
        (report.tables.setdefault("income, --solver dual", []), _scaling(args)),
        (report.tables.setdefault("synthetic", []), _remedies(args)),
        (report.rows, _solvers(args)),
    ):
        for row in found:
            rows.append(row)
            if args.prefix is not None:
                replace(report, machine=dict(report.machine)).write(args.prefix)


def _store(args: argparse.Namespace, text: Path) -> Path:
    store = text.with_suffix(".sbm")
    split(text, store)
    return store


def _solvers(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare solvers over C."""
    plans = {"a9a": (LOSSES, SOLVERS[:2]), "farm_ads": (LOSSES[:2], SOLVERS)}
    for name, (losses, solvers) in plans.items():
        text = args.folder / f"{name}.svm"
        if args.quick:
            make_text(text, "--rows", 500, "--features", 50, "--nnz", 10)
        else:
            write_text(args.reference, name, text)
        store = _store(args, text)
        for loss in losses:
            for solver in solvers:
                for C in args.costs:
                    tell(f"{name}, {loss}, {solver}, C = {C:g}")
                    options = {"loss": loss, "solver": solver, "C": C, "max_passes": MANY}
                    done = train(store, args.folder / "m.model", codes=BUDGET, **options)
                    facts = done.json()
                    yield {
                        "data": name, "loss": loss, "solver": solver, "C": C,
                        "passes": facts["passes"], "relative_gap": facts["relative_gap"],
                        "CPU_seconds": done.cpu_seconds,
                    }  # fmt: skip


def _scaling(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    text, model = args.folder / "income.svm", args.folder / "m.model"
    write_income(text, 5000)
    store = _store(args, text)
    for scale in ("none", "maxabs", "std"):
        options = {"scale": scale, "solver": "dual"}
        facts = train(store, model, codes=BUDGET, **options).json()
        yield {
            "scale": scale, "passes": facts["passes"], "relative_gap": facts["relative_gap"],
            "accuracy_percent": 100 * metric_of(model, text),
        }  # fmt: skip


def _remedies(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    text = args.folder / "synthetic.svm"
    make_text(text, *(SHAPE if not args.quick else ("--rows", 1100, "--features", 200)))
    lines, end = end_of_line(text, 10 / 11)
    store = _store(args, cut(text, 0, end, args.folder / "first.svm"))
    for what, options in REMEDIES.items():
        tell(f"synthetic, {lines} rows: {what}")
        facts = train(store, args.folder / "m.model", codes=BUDGET, **options).json()
        yield {
            "what": what, "passes": facts["passes"], "converged": facts["converged"],
            "relative_gap": facts["relative_gap"], "million_updates": facts["updates"] / 1e6,
        }  # fmt: skip
