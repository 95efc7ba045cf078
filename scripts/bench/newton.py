"""Benchmark of second-order training: passes, CPU time and memory of each solver and LIBLINEAR."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.commands import BUDGET, split, train
from scripts.bench.optima import read_optima, write_text
from scripts.bench.peers import Liblinear
from scripts.bench.registry import Registry, benchmark
from scripts.bench.tools import BenchError, Report, run_process, sbm_command, sizes, tell
from scripts.bench.weights import objective, read_liblinear, read_ours

BENCHMARKS: Registry = {}
LOSSES = {"squared_hinge": 2, "log_loss": 0, "hinge": 3}  # LIBLINEAR's -s
SETS = ["a9a", "phishing", "w8a", "letter", "pendigits", "income", "table"]
TARGETS = ("epsilon_insensitive", "squared_epsilon_insensitive", "squared_error")
JOINT = ("crammer_singer", "weston_watkins")
TABLES, MANY = ("abalone", "housing_scale"), ("letter", "pendigits", "pendigits_scale", "news20")
EVERY = ["heart_scale", "a9a", "phishing", "w8a", "farm_ads", "prep_small_binary",
         "prep_medium_binary", *TABLES, *MANY, "prep_small", "prep_medium"]  # fmt: skip
COSTS = [0.1, 1.0, 10.0, 100.0, 1000.0]
FIRM, FEATURES, AT_A_TIME = 1e-6, 30, 100_000


@benchmark(
    BENCHMARKS, runs=0,
    options={"reference": None, "sets": SETS, "losses": list(LOSSES), "costs": COSTS,
             "liblinear_train": None, "tol": 1e-3, "e": 1e-3, "rows": 200_000, "seconds": 30.0},
    quick={"sets": ["income"], "costs": [1.0], "seconds": 1.0},
)  # fmt: skip
def newton(args: argparse.Namespace, report: Report) -> None:
    """Second-order training beside dual coordinate descent and LIBLINEAR, from text to model.

    Seconds are CPU time of the whole process. dual, newton, auto: the solvers of sbm, to --tol;
    dual ends after --seconds. passes to 1e-6 are those of newton. above: primal of newton,
    less that of reference.json, relative to it. LIBLINEAR: -s 2, -s 0 and -s 3 with -e; its
    objective less that of newton, both computed from the text.

    income has an age, an income of about 50,000 and a city, not scaled; table has 30 real columns.
    """
    optima = {} if args.reference is None else read_optima(args.reference)
    run_process(sbm_command("precompile"))
    for name in args.sets:
        text = args.folder / f"{name}.svm"
        if name == "income":
            write_income(text)
        elif name == "table":
            write_table(text, args.rows)
        elif args.reference is None:
            raise BenchError("give --reference FOLDER")
        else:
            write_text(args.reference, name, text)
        for loss in args.losses:
            known = {one["C"]: one["primal"] for one in optima.get(name, {}).get(loss, [])}
            for C in args.costs:
                report.rows.append(_compare(args, text, loss, C, known.get(C)))
                tell(str(report.rows[-1]))
                if args.prefix is not None:
                    report.write(args.prefix)
        text.unlink()


@benchmark(
    BENCHMARKS, runs=0,
    options={"reference": None, "sets": EVERY, "losses": [], "seconds": 300.0,
             "costs": [0.01, 0.1, 1.0, 10.0, 100.0]},
    quick={"sets": ["income"], "costs": [1.0], "losses": ["hinge"]},
)  # fmt: skip
def defaults(args: argparse.Namespace, report: Report) -> None:
    """Trainings of every data set with default settings, over C.

    CPU seconds of each process, from a store; solver: n if it was Newton's method in the end;
    otherwise the gap that was reached after --seconds.
    """
    run_process(sbm_command("precompile"))
    for name in args.sets:
        text, store = args.folder / f"{name}.svm", args.folder / f"{name}.sbm"
        if name == "income":
            write_income(text)
        elif args.reference is None:
            raise BenchError("give --reference FOLDER")
        else:
            write_text(args.reference, name, text)
        split(text, store)
        text.unlink()
        more = JOINT if name in MANY else ()
        for loss in args.losses or (TARGETS if name in TABLES else (*LOSSES, *more)):
            row: dict[str, Any] = {"data": name, "loss": loss}
            for C in args.costs:
                options = {"loss": loss, "C": C, "time_limit": f"{args.seconds}s"}
                done = train(store, args.folder / "m.model", codes=BUDGET, **options)
                found = done.json()
                how = " n" if found["solver"] != "dual" else ""
                is_late = not found["converged"]
                cell = f"gap {found['relative_gap']:.1e}" if is_late else f"{done.cpu_seconds:.2f}"
                row[f"C = {C:g}"] = cell + how
            report.rows.append(row)
            tell(str(row))
            if args.prefix is not None:
                report.write(args.prefix)


@benchmark(
    BENCHMARKS, "newton-table", runs=0,
    options={"liblinear_train": None, "losses": ["squared_hinge", "log_loss"], "C": 1.0,
             "tol": 1e-3, "e": 1e-2, "rows": 10_000_000, "mem": "1GB", "keep": None},
    quick={"rows": 2000, "losses": ["log_loss"]},
)  # fmt: skip
def newton_table(args: argparse.Namespace, report: Report) -> None:
    """Text of 30 real columns to a model within a bound of memory, beside LIBLINEAR.

    above: LIBLINEAR's objective less ours, relative to it, both computed from the text.
    """
    text = (args.keep or args.folder) / "table.svm"
    ours, theirs = args.folder / "m.model", args.folder / "liblinear.model"
    if not text.exists():
        write_table(text, args.rows)
    for loss in args.losses:
        words = ("train", text, "--loss", loss, "-C", args.C, "--tol", args.tol, "-o", ours)
        done = run_process(sbm_command(*words, "--mem", args.mem, "--fresh", "--json"))
        peer = Liblinear(args, solver=LOSSES[loss]).run(text, theirs, args.e)
        value = objective(text, loss, args.C, read_ours(ours))
        above = objective(text, loss, args.C, read_liblinear(theirs)) / value - 1
        found = done.json()
        report.rows.append({
            "loss": loss, "passes": found["passes"], "gap": f"{found['relative_gap']:.1e}",
            "seconds": done.seconds, "CPU": done.cpu_seconds, "memory": sizes(done.peak_bytes),
            "LIBLINEAR's seconds": peer.seconds, "its CPU": peer.cpu_seconds,
            "its memory": sizes(peer.peak_bytes), "above": f"{above:.1e}",
            "time": done.seconds / peer.seconds, "CPU time": done.cpu_seconds / peer.cpu_seconds,
            "of its memory": done.peak_bytes / peer.peak_bytes,
        })  # fmt: skip
        tell(str(report.rows[-1]))
        if args.prefix is not None:
            report.write(args.prefix)


def _compare(
    args: argparse.Namespace, text: Path, loss: str, C: float, optimum: float | None
) -> dict[str, Any]:
    """Train all programs."""
    ours, theirs = args.folder / "m.model", args.folder / "liblinear.model"
    words = ["train", text, "--loss", loss, "-C", C, "-o", ours, "--fresh", "--json", "--solver"]
    row: dict[str, Any] = {"data": text.stem, "loss": loss, "C": C}
    limits = ["--time-limit", f"{args.seconds}s"]
    for solver in ("dual", "auto", "newton"):
        limit = limits if solver == "dual" else []
        command = sbm_command(*words, solver, "--tol", args.tol, *limit)
        done = run_process(command, codes=BUDGET)
        found = done.json()
        row[f"passes of {solver}"] = found["passes"] if found["converged"] else "not converged"
        row[f"seconds of {solver}"] = done.cpu_seconds
    row["memory of newton"] = sizes(done.peak_bytes)
    model = read_ours(ours)
    row["above"] = "" if optimum is None else f"{found['primal'] / optimum - 1:.1e}"
    firm = run_process(sbm_command(*words, "newton", "--tol", FIRM), codes=BUDGET)
    row["passes to 1e-6"] = firm.json()["passes"]
    peer = Liblinear(args, C, solver=LOSSES[loss]).run(text, theirs, args.e)
    value = objective(text, loss, C, model)
    more = objective(text, loss, C, read_liblinear(theirs)) / value - 1
    better = min(
        row[f"seconds of {solver}"]
        for solver in ("dual", "newton")
        if row[f"passes of {solver}"] != "not converged" or solver == "newton"
    )  # fmt: skip
    is_done = row["passes of auto"] != "not converged"
    return row | {
        "seconds of LIBLINEAR": peer.cpu_seconds, "memory of LIBLINEAR": sizes(peer.peak_bytes),
        "LIBLINEAR's objective above": f"{more:.1e}",
        "newton / LIBLINEAR": row["seconds of newton"] / peer.cpu_seconds,
        "auto / better": row["seconds of auto"] / better if is_done else "",
    }  # fmt: skip


def write_income(text: Path, n: int = 20_000) -> None:
    """Write rows of an age, an income that is not scaled, and a city."""
    random = np.random.default_rng(0)
    age, city = random.integers(18, 81, n), random.integers(0, 10, n)
    income = random.normal(50_000, 15_000, n).round(2)
    scores = (age - 45) / 20 + (income - 50_000) / 12_000 + (city - 4.5) / 7.5
    labels = np.where(scores + 0.8 * random.logistic(size=n) > 0, 1, -1)
    text.write_text(
        "".join(
            f"{y} 1:{a} 2:{i} {3 + c}:1\n"
            for y, a, i, c in zip(labels, age, income, city, strict=True)
        )
    )


def write_table(text: Path, n: int) -> None:
    """Write text of n rows of real columns and two classes."""
    random = np.random.default_rng(1)
    w = random.normal(size=FEATURES)
    line = "{:.0f} " + " ".join(f"{k + 1}:{{:.4g}}" for k in range(FEATURES)) + "\n"
    with text.open("w", encoding="ascii") as out:
        for first in range(0, n, AT_A_TIME):
            X = random.normal(size=(min(AT_A_TIME, n - first), FEATURES)).round(4)
            y = np.where(X @ w + 2 * random.logistic(size=len(X)) > 0, 1.0, -1.0)
            out.writelines(line.format(*row) for row in np.column_stack([y, X]))
