"""Benchmarks of training: overlap, rounds, cache, threads, screening."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench import commands, tools
from scripts.bench.registry import QUICK, TRAINING, Registry, benchmark, existing

BENCHMARKS: Registry = {}
ROWS = 2_500_000
# Blocks that mostly do not stay in memory.
BLOCKS = {**TRAINING, "parts": "blocks", "mem": "220MB"}


@benchmark(BENCHMARKS, options={**BLOCKS, "bmd_max_passes": 100}, quick=QUICK, rows=ROWS)
def overlap(args: argparse.Namespace, report: tools.Report) -> None:
    """Loading behind solving.

    From the log of sbm train: wall time of each pass, the certificate left out, beside loading (in
    a thread) and solving (in the main one). wall of larger: wall time of the passes over Σ
    max(load, solve); sum of larger: what it would be if nothing overlapped; the first pass includes
    opening the store.

    equal memory: passes to the tolerance with the cache, and without one (block minimization), once
    each. The store is one block, so what is loaded at a time is what --mem allows: larger parts
    without a cache. If that did not converge, the ratio of passes is at most the one given.
    """
    commands.warm_up(args)
    store, model = commands.split_to(args, args.data), args.folder / "overlap.model"

    def log() -> list[dict[str, float]]:
        commands.train(store, model, **commands.training_options(args))
        return commands.passes_of(model)

    log()  # fills the page cache
    runs = tools.alternate({"train": log}, args.runs)["train"]
    for k, passes in enumerate(zip(*runs, strict=False), 1):
        excess = tools.median([_excess([one]) for one in passes])
        report.rows.append({"pass": k, **tools.medians(passes), "wall_of_larger": excess})
    report.ratios = {
        "wall_of_larger": tools.median([_excess(run) for run in runs]),
        "sum_of_larger": tools.median([_excess(run, "load", "solve") for run in runs]),
    }
    store, table = commands.split_to(args, args.data, blocks=1), []
    for frac, limit in ((args.cache_frac, args.max_passes), (0.0, args.bmd_max_passes)):
        tools.tell(f"equal memory, --cache-frac {frac}")
        options = commands.training_options(args, cache_frac=frac, max_passes=limit)
        done = commands.train(store, model, "-v", codes=commands.BUDGET, **options)
        facts = done.json()
        table.append({
            "cache_frac": frac, "plan": done.stderr.partition(";")[0].splitlines()[-1],
            **{k: facts[k] for k in ("passes", "converged", "relative_gap")},
            "seconds": facts["seconds"]["total"], "peak_MB": done.peak_bytes / 1e6,
        })  # fmt: skip
    report.tables[f"equal memory, --mem {args.mem}, a store of one block"] = table
    report.ratios["passes_with_cache_of_without"] = table[0]["passes"] / table[1]["passes"]


def _excess(passes: list[dict[str, float]], *parts: str) -> float:
    """Time of some passes (or the sum of some parts) over Σ max(load, solve)."""
    spent = sum(p[part] for p in passes for part in parts or ("wall",))
    return spent / sum(max(p["load"], p["solve"]) for p in passes)


# ------------------------------------------------------------------------------- rounds and cache


@benchmark(
    BENCHMARKS, rows=ROWS, quick={**QUICK, "rounds": [2, "auto"]},
    options={**BLOCKS, "rounds": [1, 2, 3, 5, 10, "auto"], "read_rates": [None, 1e8]},
)  # fmt: skip
def rounds(args: argparse.Namespace, report: tools.Report) -> None:
    """Rounds over a working set.

    Each training to the tolerance is a process; its time is what it reports, without the start of
    Python. throttled: bytes of the store a second, inside the program, files in the page cache.
    """
    commands.warm_up(args)
    store, model = commands.split_to(args, args.data), args.folder / "rounds.model"
    for rate in args.read_rates:
        speed = "not throttled" if rate is None else f"{rate / 1e6:g} MB/s"
        tools.tell(f"reading: {speed}")

        def once(choice: Any, rate: float | None = rate) -> dict[str, Any]:
            options = commands.training_options(args, rounds=choice)
            return commands.train_throttled(store, model, rate, **options)

        _try_choices(report, {"reading": speed}, "rounds", args.rounds, once, args.runs)


@benchmark(
    BENCHMARKS, rows=ROWS, quick={**QUICK, "cache_frac": [0.0, 0.5, "auto"]},
    options={**BLOCKS, "cache_frac": [0.0, 0.25, 0.5, 0.75, "auto"], "also": []},
)  # fmt: skip
def cache(args: argparse.Namespace, report: tools.Report) -> None:
    """Size of the cache.

    The same --mem and blocks throughout. The time of a training to the tolerance is what it
    reports, without the start of Python.
    """
    for text in (args.data, *map(existing, args.also)):
        commands.warm_up(args, text)
        store, model = commands.split_to(args, text), args.folder / "cache.model"

        def once(choice: Any, store: Path = store, model: Path = model) -> dict[str, Any]:
            options = commands.training_options(args, cache_frac=choice)
            return commands.train(store, model, codes=commands.BUDGET, **options).json()

        _try_choices(report, {"data": text.name}, "cache_frac", args.cache_frac, once, args.runs)


def _try_choices(
    report: tools.Report, where: dict[str, str], name: str, choices: list[Any],
    once: Callable[[Any], dict[str, Any]], n_runs: int,
) -> None:  # fmt: skip
    """Train with each choice in turn: a row each, and ``auto`` beside the best fixed one."""
    (place,) = where.values()
    tasks = {str(choice): partial(once, choice) for choice in choices}
    runs = tools.alternate(tasks, n_runs)
    taken = {name: [one["seconds"]["total"] for one in found] for name, found in runs.items()}
    for choice, found in runs.items():
        report.rows.append({
            **where, name: choice, "seconds": tools.median(taken[choice]),
            "passes": found[0]["passes"],
            "converged": all(one["converged"] for one in found),
            "relative_gap": found[0]["relative_gap"],
            **tools.medians([one["seconds"] for one in found], "load", "wait", "solve", "certify"),
            "MB_read": found[0]["bytes_read"] / 1e6,
        })  # fmt: skip
    fixed = [
        choice for choice, found in runs.items()
        if choice != "auto" and all(one["converged"] for one in found)
    ]  # fmt: skip
    if fixed and "auto" in runs:
        fastest = min(fixed, key=lambda choice: tools.median(taken[choice]))
        fewest = min(runs[choice][0]["passes"] for choice in fixed)
        seconds = tools.median_ratio(taken["auto"], taken[fastest])
        report.ratios[f"{place}: auto_of_best_fixed_seconds"] = seconds
        report.ratios[f"{place}: auto_of_best_fixed_passes"] = runs["auto"][0]["passes"] / fewest


# --------------------------------------------------------------------------------------- threads


@benchmark(BENCHMARKS, options=BLOCKS, quick=QUICK, rows=ROWS)
def threads(args: argparse.Namespace, report: tools.Report) -> None:
    """One thread and two.

    seconds: whole processes; cores busy: user and system time over wall time.

    sbm split reads, parses, deals and writes in threads of their own even with --threads 1, which
    is why two gain so little.
    """
    commands.warm_up(args)
    store, model = commands.split_to(args, args.data), args.folder / "threads.model"
    both = {
        "split": partial(
            commands.split, args.data, args.folder / "copy.sbm", **commands.splitting_options(args)
        ),
        "train": partial(commands.train, store, model, **commands.training_options(args)),
    }
    numbers = (1, 2)
    runs = tools.alternate(
        {f"{what} {n}": partial(run, threads=n) for what, run in both.items() for n in numbers},
        args.runs,
    )
    for what in both:
        one, two = found = [runs[f"{what} {n}"] for n in numbers]
        report.rows += [_threads_row(what, n, mine) for n, mine in zip(numbers, found, strict=True)]
        report.ratios[f"{what}: 2_threads_of_1"] = tools.ratio(two, one)


def _threads_row(what: str, n: int, runs: list[tools.Finished]) -> dict[str, Any]:
    parts = {}
    if what == "train":
        spent = [done.json()["seconds"] for done in runs]
        parts = tools.medians(spent, "load", "wait", "solve", "certify", "write")
    busy = tools.median([done.cpu_seconds / done.seconds for done in runs])
    return {
        "what": what, "threads": n, **tools.costs(runs), "cores_busy": busy,
        "of_these": tools.shares(parts),
    }  # fmt: skip


# ------------------------------------------------------------------------------------- screening


@benchmark(BENCHMARKS, options=BLOCKS, quick=QUICK, rows=ROWS)
def screening(args: argparse.Namespace, report: tools.Report) -> None:
    """Rows that need no visit.

    A training with and one without the screening of the next block take turns.
    """
    commands.warm_up(args)
    store, model = commands.split_to(args, args.data), args.folder / "screening.model"
    flags: dict[str, tuple[str, ...]] = {"screened": (), "all rows visited": ("--no-screen",)}
    options = commands.training_options(args)
    tasks = {
        name: partial(commands.train, store, model, *words, **options)
        for name, words in flags.items()
    }
    runs = tools.alternate(tasks, args.runs)
    for name, found in runs.items():
        facts = [run.json() for run in found]
        report.rows.append({
            "what": name, "passes": facts[0]["passes"], "visits_1e6": facts[0]["visits"] / 1e6,
            "updates_1e6": facts[0]["updates"] / 1e6, "seconds": tools.costs(found)["seconds"],
            "solve_seconds": tools.median([f["seconds"]["solve"] for f in facts]),
        })  # fmt: skip
    screened, plain = report.rows
    report.ratios = {
        "visits: screened_of_all": screened["visits_1e6"] / plain["visits_1e6"],
        "seconds: screened_of_all": tools.ratio(runs["screened"], runs["all rows visited"]),
    }
