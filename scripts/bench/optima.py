"""Benchmark of certified primals on reference sets, beside the trusted optima."""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

import sbm
from sbm.engine.progress import Progress
from scripts.bench.registry import Option, Registry, benchmark, one_of
from scripts.bench.tools import BenchError, Report, median, tell

BENCHMARKS: Registry = {}
CLASSIC = ("hinge", "squared_hinge")
GRIDS: dict[str, dict[str, Any]] = {
    "two": {
        "sets": ("a9a", "w8a", "phishing", "farm_ads", "prep_small_binary"), "losses": CLASSIC,
        "C": (0.1, 1.0), "blocks": (1, 3, 12), "cache_frac": (0.0, 0.33, 0.5),
        "rounds": (1, 3, 10), "tol": 1e-4,
    },
    "many": {
        "sets": ("letter", "pendigits_scale", "news20", "prep_small"),
        "losses": (*CLASSIC, "crammer_singer", "weston_watkins"), "C": (0.01, 0.1, 1.0),
        "blocks": (1, 12), "cache_frac": (0.5,), "rounds": ("auto",), "tol": 5e-5,
    },
    "family": {
        "sets": ("heart_scale", "phishing", "a9a", "w8a", "farm_ads", "abalone", "housing_scale",
                 "prep_small_binary"),
        "losses": ("log_loss", "epsilon_insensitive", "squared_epsilon_insensitive"),
        "C": (0.1, 1.0), "blocks": (1, 3, 12), "cache_frac": (0.33, 0.5), "rounds": (1, 3, 10),
        "tol": 1e-4,
    },
}  # fmt: skip
WITHIN = 1e-4
# Values are stored as float32: the problem solved differs from the text's by about 1e-7.
ROUNDING = 1e-6


@benchmark(
    BENCHMARKS, runs=0,
    options={"reference": None, "sets": [], "losses": [], "cache_fracs": [],
             "kind": Option(one_of(GRIDS), f"of {', '.join(GRIDS)}", "two")},
)  # fmt: skip
def optima(args: argparse.Namespace, report: Report) -> None:
    """Certified primal against the trusted optimum.

    passed: certified primal within 1e-4 of the optimum, the dual value after every pass below it
    (weak duality), weights equal to the sum over their alphas to 1e-9. If an optimum is only known
    to lie between two values, the certified primal must not be below the lower one, nor 1e-4 above
    the upper one.
    """
    if args.reference is None:
        raise BenchError("give --reference FOLDER")
    given = {"sets": args.sets, "losses": args.losses, "cache_frac": args.cache_fracs}
    grid = GRIDS[args.kind] | {name: values for name, values in given.items() if values}
    report.settings |= {name: ", ".join(map(str, grid[name]))
                        for name in ("blocks", "cache_frac", "rounds")}  # fmt: skip
    report.settings["tol"] = grid["tol"]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in _outcomes(args, grid):
        tell(", ".join(f"{name} {value}" for name, value in one.items()))
        found.setdefault((one["data"], one["loss"]), []).append(one)
        report.rows = [_row(mine) for mine in found.values()]
        if args.prefix is not None:
            report.write(args.prefix)  # each time: the whole grid takes hours


def _outcomes(args: argparse.Namespace, grid: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the outcome of every point of the grid whose optimum is known."""
    optima = read_optima(args.reference)
    for name in grid["sets"]:
        text, store = args.folder / f"{name}.svm", args.folder / f"{name}.sbm"
        write_text(args.reference, name, text)
        for blocks in grid["blocks"]:
            sbm.split([text], store, blocks=blocks, force=True)
            parts = (grid[key] for key in ("losses", "C", "cache_frac", "rounds"))
            for loss, C, frac, rounds in itertools.product(*parts):
                records = {record["C"]: record for record in optima[name].get(loss, [])}
                record = records.get(C, {"relative_gap": 1.0})
                if record["relative_gap"] <= WITHIN:
                    settings = {"loss": loss, "C": C, "cache_frac": frac, "rounds": rounds,
                                "tol": grid["tol"], "max_passes": 100_000,
                            "parts": "blocks", "solver": "dual"}  # fmt: skip
                    outcome = _train(store, args.folder / "m.model", record, settings)
                    yield {"data": name, "blocks": blocks, **settings, **outcome}
        text.unlink()


def _train(
    store: Path, model: Path, record: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """Train one point of the grid."""
    duals: list[float] = []

    class Duals(Progress):
        """Remembers the dual value after each pass."""

        def row(self, record: dict[str, Any]) -> None:
            duals.append(record["dual"])

    begin, optimum = time.perf_counter(), record["primal"]
    _, report = sbm.train(store, model, sbm.Settings(**settings), progress=Duals())
    excess = (report["primal"] - optimum) / optimum
    dual_excess = (max([*duals, report["dual"]]) - optimum) / optimum
    known = max(0.0, record["relative_gap"])
    return {
        "primal_excess": excess, "passes": report["passes"],
        "seconds": time.perf_counter() - begin,
        "passed": -ROUNDING - known <= excess <= WITHIN and dual_excess <= ROUNDING
        and report["drift"] <= 1e-9,
    }  # fmt: skip


def _row(mine: list[dict[str, Any]]) -> dict[str, Any]:
    """Cells of one data set and loss."""
    passed, seconds = sum(one["passed"] for one in mine), [one["seconds"] for one in mine]
    return {
        "data": mine[0]["data"], "loss": mine[0]["loss"],
        "C": ", ".join(f"{C:g}" for C in sorted({one["C"] for one in mine})),
        "passed, of those run": f"{passed} of {len(mine)}",
        "worst primal excess": f"{max(one['primal_excess'] for one in mine):.1e}",
        "median passes": f"{median([one['passes'] for one in mine]):g}",
        "most passes": max(one["passes"] for one in mine),
        "seconds a training": f"{min(seconds):.2g} to {max(seconds):.2g}",
        "ok": passed == len(mine),
    }  # fmt: skip


def read_optima(folder: Path) -> dict[str, Any]:
    """Read ``reference.json``: data set -> problem -> records."""
    content = json.loads((folder / "reference.json").read_text("utf-8"))
    optima: dict[str, Any] = content.get("reference", content)
    return optima


def write_text(folder: Path, name: str, target: Path, rows: int = 0) -> None:
    """Unpack a data set, or so many of its rows; ``*_binary`` is label 1 against the rest."""
    stem = name.removesuffix("_binary")
    with (
        zstandard.open(folder / f"{stem}.svm.zst", "rt", encoding="ascii") as lines,
        target.open("w") as out,
    ):
        for line in itertools.islice(lines, rows or None):
            if stem != name:
                label, _, features = line.partition(" ")
                line = f"{'+1' if label.strip() == '1' else '-1'} {features.strip()}\n"
            out.write(line)
