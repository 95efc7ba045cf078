"""Benchmark of processes that train one model over MPI: passes, work, bytes, and the optimum."""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.data import make_text
from scripts.bench.optima import read_optima, write_text
from scripts.bench.registry import Registry, benchmark
from scripts.bench.tools import BenchError, Report, run_process, sbm_command, script_command, tell

BENCHMARKS: Registry = {}
BLOCKS = 16
SIZES = (1, 2, 4, 8, 16)
TOL, OPTIMUM_TOL = 1e-3, 1e-6
MOST_PASSES = 1000


@dataclass(frozen=True)
class Problem:
    """What is solved, on which text."""

    data: str  # name of a text; ``_binary`` at its end: label 1 against the rest
    loss: str
    C: float
    rows: int = 0  # at most so many, from the beginning; 0: all

    @property
    def title(self) -> str:
        """In words."""
        rows = f", first {self.rows:,} rows" if self.rows else ""
        return f"{self.data}{rows}, {self.loss}, C {self.C:g}"


@dataclass(frozen=True)
class Training:
    """One training by some processes; `parts` as of ``sbm train``."""

    problem: Problem
    size: int
    parts: str = "auto"
    tol: float = TOL

    @property
    def settings(self) -> dict[str, Any]:
        """For `sbm.train`."""
        return {
            "loss": self.problem.loss, "C": self.problem.C, "parts": self.parts, "tol": self.tol,
            "max_passes": MOST_PASSES, "threads": 1,
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
        self._found: dict[Training, list[dict[str, Any]]] = {}

    def run(self, training: Training) -> list[dict[str, Any]]:
        """Return what each process of a training found, now or before."""
        if training not in self._found:
            tell(f"{training.problem.title}, {training.size} processes, {training.parts}")
            task = {"store": str(self._store(training.problem)), "settings": training.settings}
            self._found[training] = self._start(training.size, task)
        return self._found[training]

    def optimum(self, problem: Problem) -> tuple[float, float]:
        """Return dual and primal that the optimum is between."""
        records = self._optima.get(problem.data, {}).get(problem.loss, [])
        known = [r for r in records if r["C"] == problem.C and not problem.rows]
        found = known or [self.run(Training(problem, 1, tol=OPTIMUM_TOL))[0]["report"]]
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


# -------------------------------------------------------------------------------------- tables


def row_of(training: Training, bench: Bench) -> dict[str, Any]:
    """Return a line of the table of trainings."""
    found, alone = bench.run(training), bench.run(Training(training.problem, 1, training.parts))
    report, single = found[0]["report"], alone[0]["report"]
    busiest = sum(map(max, zip(*(one["visits"] for one in found), strict=True)))
    dual, primal = bench.optimum(training.problem)
    return {
        "problem": training.problem.title, "parts": training.parts, "processes": training.size,
        "passes": report["passes"], "million visits": float(f"{report['visits'] / 1e6:.3g}"),
        "million updates": float(f"{report['updates'] / 1e6:.3g}"),
        "work of the busiest": round(busiest * training.size / single["visits"], 2),
        "MB sent": float(f"{max(one['sent'] for one in found) / 1e6:.3g}"),
        "certified_gap": f"{report['relative_gap']:.1e}", "optimum": _between(dual, primal),
        "ok": report["dual"] <= primal * (1 + 1e-6) and report["primal"] >= dual * (1 - 1e-6)
        and report["relative_gap"] <= training.tol,
    }  # fmt: skip


def _between(dual: float, primal: float) -> str:
    low, high = f"{dual:.7g}", f"{primal:.7g}"
    return low if low == high else f"{low} to {high}"


# -------------------------------------------------------------------------------------- the report


def _problems(quick: bool) -> list[Problem]:
    if quick:
        return [Problem("two", "hinge", 0.1), Problem("four", "crammer_singer", 0.1)]
    return [
        Problem("prep_small_binary", "hinge", 0.1, 100_000),
        Problem("prep_small_binary", "hinge", 0.1), Problem("prep_small_binary", "hinge", 1),
        Problem("prep_medium_binary", "hinge", 0.1), Problem("prep_medium_binary", "hinge", 1),
        Problem("a9a", "hinge", 0.1), Problem("a9a", "hinge", 1),
        Problem("news20", "crammer_singer", 0.1), Problem("news20", "weston_watkins", 0.01),
    ]  # fmt: skip


@benchmark(BENCHMARKS, runs=0, quick={}, options={"reference": None})
def ranks(args: argparse.Namespace, report: Report) -> None:
    """Processes that train one model over MPI: passes, work and bytes, and the optimum.

    Processes of this machine stand for machines. No time is told: processes were more than cores.

    parts: auto, each process has its rows in memory; blocks, 16 blocks for any number of
    processes, as on machines of equal memory.

    work of the busiest: visits of the process that visits most, added up over the sums of all
    weights, times the processes, against the visits of one process: 1 for a perfect division.

    MB sent: by the process that sends most, with certificates.

    optimum: reference.json where all rows are taken, else one process to a gap of 1e-6.
    """
    if args.quick == (args.reference is not None):
        raise BenchError("either --reference FOLDER or --quick is needed")
    bench = Bench(args.reference, args.folder)
    sizes = SIZES[:2] if args.quick else SIZES

    for problem in _problems(args.quick):
        for parts in ("auto", "blocks"):
            for size in sizes:
                report.rows.append(row_of(Training(problem, size, parts), bench))
                if args.prefix is not None:
                    report.write(args.prefix)  # each time: all of them take hours
