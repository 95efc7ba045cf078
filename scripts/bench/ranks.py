"""Benchmark of processes that train one model over MPI: passes, work, bytes and time."""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.data import make_text
from scripts.bench.newton import write_table
from scripts.bench.optima import write_text
from scripts.bench.registry import Option, Registry, benchmark
from scripts.bench.tools import (
    BenchError,
    Report,
    median,
    run_process,
    sbm_command,
    script_command,
    tell,
)  # fmt: skip

BENCHMARKS: Registry = {}
BLOCKS = 16
FEW, MANY, MOST = (1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8, 16)
TOL, TOL_OF_CLASSES = 1e-3, 1e-2
MOST_PASSES = 1000


@dataclass(frozen=True)
class Problem:
    """What is solved, on which text, by how many processes."""

    data: str  # name of a text; ``_binary`` at its end: label 1 against the rest
    loss: str
    C: float
    sizes: tuple[int, ...] = MOST
    rows: int = 0  # at most so many, from the beginning; 0: all
    tol: float = TOL
    solver: str = "dual"

    @property
    def title(self) -> str:
        """In words."""
        rows = f", first {self.rows:,} rows" if self.rows else ""
        solver = "" if self.solver == "dual" else f", {self.solver}"
        return f"{self.data}{rows}, {self.loss}, C {self.C:g}{solver}"

    @property
    def settings(self) -> dict[str, Any]:
        """For `sbm.train`."""
        return {
            "loss": self.loss, "C": self.C, "tol": self.tol, "max_passes": MOST_PASSES,
            "threads": 1, "solver": self.solver,
        }  # fmt: skip


class Bench:
    """Makes stores and runs trainings.

    Parameters
    ----------
    data : Path or None
        Folder of texts; None: synthetic.
    texts : dict of str to Path
        Other texts, by name.
    folder : Path
        For stores and models.
    """

    def __init__(self, data: Path | None, texts: dict[str, Path], folder: Path) -> None:
        self._data, self._texts, self._folder = data, texts, folder

    def run(self, problem: Problem, size: int) -> list[dict[str, Any]]:
        """Return what each process of a training found."""
        tell(f"{problem.title}, {size} processes")
        return self._start(size, {"store": str(self.store(problem)), "settings": problem.settings})

    def _start(self, size: int, task: dict[str, Any]) -> list[dict[str, Any]]:
        """Run the worker; return what each process found."""
        launcher = Path(sys.executable).with_name("mpiexec")
        program = str(launcher) if launcher.exists() else shutil.which("mpiexec")
        if program is None:
            raise BenchError("mpiexec not found; run: pip install mpi4py mpich")
        with tempfile.TemporaryDirectory(dir=self._folder) as out:
            worker = script_command("bench.ranks_worker", json.dumps({**task, "out": out}))
            python = [worker[0], "-m", "mpi4py", *worker[1:]]
            done = run_process([program, "-n", str(size), *python])
            found = [json.loads(Path(out, f"{k}.json").read_text()) for k in range(size)]
        return [{**one, "seconds": done.seconds} for one in found]

    def store(self, problem: Problem) -> Path:
        """Return the store of a problem, made once."""
        name = f"{problem.data}-{problem.rows}"
        store, text = self._folder / f"{name}.sbm", self._folder / f"{name}.svm"
        if not store.exists():
            self._write_text(problem, text)
            run_process(sbm_command("split", text, "-o", store, "--blocks", BLOCKS, "--quiet"))
            text.unlink()
        return store

    def _write_text(self, problem: Problem, text: Path) -> None:
        if problem.data in self._texts:
            shutil.copyfile(self._texts[problem.data], text)
            return
        if self._data is None:
            classes = () if problem.loss == "hinge" else ("--classes", 4)
            make_text(text, "--rows", 2000, "--features", 500, "--nnz", 8, *classes)
            return
        if problem.data == "table":
            write_table(text, problem.rows)
            return
        write_text(self._data, problem.data, text, problem.rows)


# -------------------------------------------------------------------------------------- tables


def add_rows(problem: Problem, bench: Bench, report: Report, prefix: Path | None) -> None:
    """Add the lines of a problem to the table of counts."""
    alone: dict[str, Any] = {}
    for size in problem.sizes:
        found = bench.run(problem, size)
        mine = found[0]["report"]
        alone = alone or mine
        busiest = sum(map(max, zip(*(one["visits"] for one in found), strict=True)))
        report.rows.append({
            "problem": problem.title, "tol": problem.tol, "processes": size,
            "passes": mine["passes"], "million visits": _short(mine["visits"]),
            "work of the busiest": round(busiest * size / alone["visits"], 2),
            "MB sent": _short(max(one["sent"] for one in found)),
            "certified_gap": f"{mine['relative_gap']:.1e}",
            "ok": mine["dual"] <= alone["primal"] * (1 + 1e-6)
            and mine["primal"] >= alone["dual"] * (1 - 1e-6)
            and mine["relative_gap"] <= problem.tol,
        })  # fmt: skip
        if prefix is not None:
            report.write(prefix)  # each time: all of them take long


def _short(count: float) -> float:
    """Return millions with three digits."""
    return float(f"{count / 1e6:.3g}")


def add_times(problem: Problem, bench: Bench, report: Report, runs: int) -> None:
    """Add the times of one and two processes, in alternating runs."""
    found: dict[int, list[list[dict[str, Any]]]] = {1: [], 2: []}
    for _ in range(runs):
        for size, some in found.items():
            some.append(bench.run(problem, size))
    for size, some in found.items():
        report.tables.setdefault("time", []).append({
            "problem": problem.title, "processes": size,
            "seconds": median([one[0]["seconds"] for one in some]),
            "seconds of solving": median([one[0]["report"]["seconds"]["solve"] for one in some]),
            "CPU seconds of the busiest": median([max(o["cpu"] for o in one) for one in some]),
        })  # fmt: skip


# -------------------------------------------------------------------------------------- the report


def _problems(quick: bool) -> list[Problem]:
    few = FEW[:2]
    if quick:
        return [Problem("two", "hinge", 0.1, few), Problem("four", "crammer_singer", 0.1, few)]
    return [
        Problem("prep_medium_binary", "hinge", 0.1, FEW),
        Problem("prep_small_binary", "hinge", 0.1, MOST, 100_000),
        Problem("prep_small_binary", "hinge", 1, MANY, 100_000),
        *(Problem("a9a", "hinge", C, MANY) for C in (0.1, 1)),
        Problem("news20", "crammer_singer", 0.1, FEW, tol=TOL_OF_CLASSES),
        Problem("news20", "weston_watkins", 0.01, FEW, tol=TOL_OF_CLASSES),
        *(Problem("trigrams", "hinge", C, FEW) for C in (0.1, 1)),
        Problem("prep_small_binary", "hinge", 0.1, MANY),
        Problem("prep_small_binary", "hinge", 1, FEW),
        Problem("prep_medium_binary", "hinge", 1, FEW),
    ]  # fmt: skip


def _timed(quick: bool) -> list[Problem]:
    """Return what is timed: sums of many weights, of few, and none."""
    if quick:
        return [Problem("two", "hinge", 0.1)]
    return [
        Problem("prep_medium_binary", "hinge", 0.1),
        Problem("prep_medium", "hinge", 0.1),
        Problem("table", "squared_hinge", 1, rows=2_000_000, solver="newton"),
    ]


@benchmark(
    BENCHMARKS, runs=3, quick={},
    options={"reference": None, "trigrams": Option(Path, "text of trigrams")},
)  # fmt: skip
def ranks(args: argparse.Namespace, report: Report) -> None:
    """Processes that train one model over MPI: passes, work, bytes and time.

    Processes of this machine stand for machines. They were more than cores, so only the table of
    one and two processes has times. Each process has its rows in memory.

    work of the busiest: visits of the process that visits most, added up over the sums of all
    weights, times the processes, against the visits of one process: 1 for a perfect division.

    MB sent: by the process that sends most, with certificates. seconds: from start to end of all
    processes.
    """
    if args.quick == (args.reference is not None):
        raise BenchError("either --reference FOLDER or --quick is needed")
    texts = {} if args.trigrams is None else {"trigrams": args.trigrams}
    bench = Bench(args.reference, texts, args.folder)
    problems = [one for one in _problems(args.quick) if one.data != "trigrams" or one.data in texts]
    for problem in _timed(args.quick):
        add_times(problem, bench, report, args.runs)
    for problem in problems:
        add_rows(problem, bench, report, args.prefix)
