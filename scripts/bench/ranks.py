"""Several processes that train one model over MPI: rounds, passes and bytes, and the optimum."""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.cost_model import chosen_bytes, dense_bytes
from scripts.bench.data import make_text
from scripts.bench.optima import read_optima, write_text
from scripts.bench.ranks_worker import AVERAGE
from scripts.bench.registry import Registry, benchmark
from scripts.bench.tools import BenchError, Report, run_process, sbm_command, script_command, tell

BENCHMARKS: Registry = {}
BLOCKS = 16
SIZES = (1, 2, 4, 8)
RULES = ("adaptive", "safe", 1.0, AVERAGE)
SYNCS = (2, 4)
TARGETS = (1e-2, 1e-3)
TOL, OPTIMUM_TOL = TARGETS[-1], 1e-6
MOST_PASSES = 1000  # of a training that is to reach the optimum
WIRE_NUMBERS = 700_000  # more than are added up at a time
WIRE_SHARES = (1.0, 0.25, 0.03)


@dataclass(frozen=True)
class Problem:
    """What is solved, on which text.

    Attributes
    ----------
    data : str
        Name of a text; ``_binary`` at its end: label 1 against the rest.
    rows : int
        At most so many, from the beginning; 0: all.
    rules, syncs : tuple
        What the rounds are measured with; the latter with the first rule.
    """

    data: str
    loss: str
    C: float
    rows: int = 0
    rules: tuple[str | float, ...] = ()
    syncs: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """In words."""
        rows = f", first {self.rows:,} rows" if self.rows else ""
        return f"{self.data}{rows}, {self.loss}, C {self.C:g}"


@dataclass(frozen=True)
class Training:
    """One training by some processes.

    Attributes
    ----------
    watched : bool
        Whether rounds are noted, and each pass is certified.
    """

    problem: Problem
    size: int
    sigma: str | float = "adaptive"
    sync_every: int = 1
    watched: bool = False
    tol: float = TOL
    max_passes: int = MOST_PASSES

    @property
    def settings(self) -> dict[str, Any]:
        """For `sbm.train`; where the optimum is all that counts, steps are as by default."""
        return {
            "loss": self.problem.loss, "C": self.problem.C, "sigma": self.sigma,
            "sync_every": self.sync_every, "tol": self.tol, "max_passes": self.max_passes,
            "rounds": 1 if self.watched else "auto", "threads": 1,
        }  # fmt: skip


class Bench:
    """Makes stores, runs trainings, and knows the optima.

    Parameters
    ----------
    data : Path or None
        Folder of texts; None: synthetic.
    folder : Path
        For stores and models.
    """

    def __init__(self, data: Path | None, folder: Path) -> None:
        self._data, self._folder = data, folder
        self._optima = read_optima(data) if data else {}
        self._found: dict[Training, dict[str, Any]] = {}

    def run(self, training: Training) -> dict[str, Any]:
        """Return what a training found, now or before: report, passes, rounds of all processes."""
        if training not in self._found:
            tell(f"{training.problem.title}, {training.size} processes, {_rule(training)}")
            task = {
                "store": str(self._store(training.problem)), "settings": training.settings,
                "watched": training.watched,
            }  # fmt: skip
            self._found[training] = _merge(self._start(training.size, task))
        return self._found[training]

    def add_up(self, size: int, share: float) -> dict[str, Any]:
        """Return what the first process sends to add up an array."""
        return self._start(size, {"n": WIRE_NUMBERS, "share": share})[0]

    def optimum(self, problem: Problem) -> tuple[float, float]:
        """Return dual and primal that the optimum is between."""
        records = self._optima.get(problem.data, {}).get(problem.loss, [])
        known = [r for r in records if r["C"] == problem.C and not problem.rows]
        found = known or [self.run(Training(problem, 1, tol=OPTIMUM_TOL))["report"]]
        return found[0]["dual"], found[0]["primal"]

    def _start(self, size: int, task: dict[str, Any]) -> list[dict[str, Any]]:
        """Run the worker; return what each process found."""
        launcher = Path(sys.executable).with_name("mpiexec")
        program = str(launcher) if launcher.exists() else shutil.which("mpiexec")
        if program is None:
            raise BenchError("mpiexec not found; run: pip install mpi4py mpich")
        with tempfile.TemporaryDirectory(dir=self._folder) as out:
            worker = script_command("bench.ranks_worker", json.dumps({**task, "out": out}))
            python = [worker[0], "-m", "mpi4py", *worker[1:]]
            run_process([program, "-n", str(size), *python])
            return [json.loads(Path(out, f"{k}.json").read_text()) for k in range(size)]

    def _store(self, problem: Problem) -> Path:
        name = f"{problem.data}-{problem.rows}"
        store, text = self._folder / f"{name}.sbm", self._folder / f"{name}.svm"
        if not store.exists():
            self._write_text(problem, text)
            run_process(sbm_command("split", text, "-o", store, "--blocks", BLOCKS, "--quiet"))
            text.unlink()
        return store

    def _write_text(self, problem: Problem, text: Path) -> None:
        if self._data is None:
            classes = () if problem.loss == "hinge" else ("--classes", 4)
            make_text(text, "--rows", 2000, "--features", 500, "--nnz", 8, *classes)
            return
        write_text(self._data, problem.data, text, problem.rows)


def _merge(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the outcome of all processes: visits are theirs together, bytes the most of one."""
    rounds = [
        {
            **same[0],
            "sent": max(one["sent"] for one in same),
            "visits": sum(one["visits"] for one in same),
            "updates": sum(one["updates"] for one in same),
        }
        for same in zip(*(one["rounds"] for one in found), strict=True)
    ]
    return {**found[0], "rounds": rounds}


# -------------------------------------------------------------------------------------- tables


def rounds_row(training: Training, found: dict[str, Any], optimum: float) -> dict[str, Any]:
    """Return a line of a table of rounds; what a training did not come to is above its limit."""
    rounds, passes = found["rounds"], found["passes"]
    a_pass = len(rounds) // len(passes)
    near = [_first(r["dual"] >= optimum * (1 - target) for r in rounds) for target in TARGETS]
    gaps = [_first(p["gap"] <= target for p in passes) for target in TARGETS]
    row: dict[str, Any] = {
        "processes": training.size, "sigma": _rule(training), "sync_every": training.sync_every,
        "rounds_a_pass": a_pass,
    }  # fmt: skip
    for target, k in zip(TARGETS, near, strict=True):
        row[f"rounds, dual {target:g}"] = k or f"> {len(rounds)}"
    for target, k in zip(TARGETS, gaps, strict=True):
        row[f"passes, gap {target:g}"] = k or f"> {len(passes)}"
    last = gaps[-1]
    ends = {"dual": near[-1], "gap": None if last is None else last * a_pass}
    for what, end in ends.items():
        for name, key in (("MB sent", "sent"), ("million updates", "updates")):
            done = float(f"{sum(r[key] for r in rounds[:end]) / 1e6:.3g}")
            above = "" if end or not done else "> "
            row[f"{name}, {what} {TARGETS[-1]:g}"] = f"{above}{done:g}"
    return row


def _rule(training: Training) -> str:
    if training.size == 1:
        return "alone"
    names: dict[str | float, str] = {1.0: "1, with the share", AVERAGE: "1, averaged"}
    return names.get(training.sigma, str(training.sigma))


def _first(flags: Iterable[bool]) -> int | None:
    """Return the number, from 1, of the first that holds."""
    return next((k for k, holds in enumerate(flags, 1) if holds), None)


def optimum_row(training: Training, bench: Bench) -> dict[str, Any]:
    """Return a line of the table of optima."""
    report = bench.run(training)["report"]
    dual, primal = bench.optimum(training.problem)
    return {
        "problem": training.problem.title, "processes": training.size, "passes": report["passes"],
        "primal": f"{report['primal']:.7g}", "dual": f"{report['dual']:.7g}",
        "certified_gap": f"{report['relative_gap']:.1e}", "optimum": _between(dual, primal),
        "primal_above": f"{report['primal'] / dual - 1:.1e}",
        "dual_below": f"{1 - report['dual'] / primal:.1e}",
        "ok": report["dual"] <= primal * (1 + 1e-6) and report["primal"] >= dual * (1 - 1e-6)
        and report["relative_gap"] <= training.tol,
    }  # fmt: skip


def _between(dual: float, primal: float) -> str:
    low, high = f"{dual:.7g}", f"{primal:.7g}"
    return low if low == high else f"{low} to {high}"


def wire_row(bench: Bench, size: int, share: float) -> dict[str, Any]:
    """Return a line of the table of bytes: sent, and by the formula."""
    found = bench.add_up(size, share)
    formula = chosen_bytes(WIRE_NUMBERS, size, found["changed"], found["union"])
    return {
        "processes": size, "numbers": WIRE_NUMBERS, "changed": round(found["changed"], 3),
        "union": round(found["union"], 3), "bytes_sent": found["sent"],
        "formula": round(formula), "sent_of_formula": round(found["sent"] / formula, 4),
        "sent_of_dense": round(found["sent"] / dense_bytes(WIRE_NUMBERS, size), 4),
    }  # fmt: skip


# -------------------------------------------------------------------------------------- the report


def _plan(args: argparse.Namespace) -> tuple[list[Problem], list[Problem], tuple[int, ...]]:
    """Problems with a table of rounds each, those whose optimum is looked at, and processes."""
    if args.quick:
        two = Problem("two", "hinge", 0.1, 0, RULES, SYNCS[:1])
        return [two], [two, Problem("four", "squared_hinge", 0.1)], SIZES[:2]
    rows = args.rows
    watched = [
        Problem("prep_small_binary", "hinge", 0.1, rows, RULES, SYNCS),
        Problem("a9a", "hinge", 0.1, 0, RULES, SYNCS),
        Problem("news20", "crammer_singer", 0.1, 0, RULES),
        Problem("news20", "weston_watkins", 0.01, 0, ("adaptive", 1.0)),
    ]
    optima = [
        Problem("prep_small_binary", "hinge", 0.1, rows),
        Problem("prep_small", "crammer_singer", 0.1, rows),
        Problem("news20", "crammer_singer", 0.1),
        Problem("news20", "weston_watkins", 0.01),
        Problem("news20", "squared_hinge", 0.1),
    ]
    return watched, optima, SIZES


@benchmark(
    BENCHMARKS, runs=0, quick={"max_passes": 3},
    options={"reference": None, "rows": 0, "max_passes": 40},
)  # fmt: skip
def ranks(args: argparse.Namespace, report: Report) -> None:
    """Processes that add up over MPI: do they reach the optimum, in how many rounds.

    Processes of this machine stand for machines. All data are 16 blocks for any number of
    processes, so each process holds one block and a cache as large as that, as on machines of equal
    memory. No time is told: processes were more than cores.

    rounds: how often processes added up; of one process: blocks. A round of P processes goes over P
    blocks of 16, at the same time.

    dual: within so much of the optimum, relative; looked at after every round.

    gap: certified, after every pass; a training by default certifies where its running estimate
    says that it may.

    MB sent: by the process that sends most, in rounds, without certificates; updates are those of
    all processes.

    Every step visits its rows once, as by default where there are several processes; one process
    alone does 2 or 3 rounds by default with 16 blocks.

    1, with the share: sigma' is 1, and the sum goes back where it is too far; 1, averaged: every
    process goes as far as alone, and a P-th of the sum is taken, the usual baseline.

    If a number begins with >, it was not reached in the passes allowed.

    squared_hinge of several classes is one-vs-rest: processes divide the classes, and add nothing
    up.

    optimum: reference.json where all rows are taken, else one process to a gap of 1e-6.

    formula: what scripts/bench/cost_model.py says of the shares of numbers that are not 0, in one
    process (changed) and in the sum (union).
    """
    if args.quick == (args.reference is not None):
        raise BenchError("either --reference FOLDER or --quick is needed")
    watched, optima, sizes = _plan(args)
    bench = Bench(args.reference, args.folder)

    def keep(table: list[dict[str, Any]], row: dict[str, Any]) -> None:
        table.append(row)
        if args.prefix is not None:
            report.write(args.prefix)  # each time: all of them take hours

    for problem in watched:
        table: list[dict[str, Any]] = []
        report.tables[problem.title] = table
        for training in _trainings(problem, sizes, args.max_passes):
            optimum = bench.optimum(problem)[0]
            keep(table, rounds_row(training, bench.run(training), optimum))
    wire: list[dict[str, Any]] = []
    report.tables["Bytes that a process sends to add up an array, and by the formula"] = wire
    for size in sizes[1:]:
        for share in WIRE_SHARES:
            keep(wire, wire_row(bench, size, share))
    for problem in optima:
        for size in sizes[:3]:
            keep(report.rows, optimum_row(Training(problem, size), bench))


def _trainings(problem: Problem, sizes: Sequence[int], max_passes: int) -> list[Training]:
    """Return the trainings of a table of rounds."""
    chosen: list[tuple[int, str | float, int]] = [(1, "adaptive", 1)]
    for size in sizes[1:]:
        chosen += [(size, rule, 1) for rule in problem.rules]
        chosen += [(size, problem.rules[0], n) for n in problem.syncs if size * n <= BLOCKS]
    return [Training(problem, *one, True, TOL, max_passes) for one in chosen]
