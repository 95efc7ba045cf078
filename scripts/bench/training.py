"""Benchmarks of training: size of the data, overlap, rounds, cache, threads, screening."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.data import cut, end_of_line
from scripts.bench.ours import (
    BUDGET,
    passes_of,
    split,
    split_to,
    splitting_options,
    train,
    train_throttled,
    training_options,
    warm_up,
)
from scripts.bench.plot import Axes
from scripts.bench.registry import QUICK, TRAINING, Registry, benchmark, existing
from scripts.bench.tools import (
    Finished,
    Report,
    alternate,
    costs,
    median,
    median_ratio,
    medians,
    ratio,
    shares,
    tell,
)

BENCHMARKS: Registry = {}
ROWS = 2_500_000
NEVER = 1e-15  # a tolerance that is not reached
MANY_CORES = 8


@benchmark(
    BENCHMARKS, options={**TRAINING, "mem": "300MB", "parts": [8, 4, 2, 1]}, rows=4_000_000,
    quick={"parts": [4, 1]},
    axes=(
        Axes("rows", "us_per_row", "rows", "microseconds a row", y_log=False),
        Axes("rows", "peak_MB", "rows", "peak memory, MB", y_log=False),
    ),
)  # fmt: skip
def scaling(args: argparse.Namespace, report: Report) -> None:
    """Time per row and memory when the data grows.

    Beginnings of one text, the same --mem and blocks throughout; peaks of whole processes, from
    outside.

    pass: mean of the first three in the log, without the certificate; the first one includes
    opening the store. split: as it reports, without the start of Python. The aim is a ratio of at
    most 1.15.
    """
    warm_up(args)

    def measure(text: Path) -> dict[str, float]:
        store, model = args.folder / "part.sbm", args.folder / "part.model"
        made = split(text, store, **splitting_options(args))
        done = train(store, model, codes=BUDGET, **training_options(args, tol=NEVER, max_passes=3))
        walls = [seconds["wall"] for seconds in passes_of(model)]
        return {
            "split_seconds": made.json()["seconds"], "split_peak_MB": made.peak_bytes / 1e6,
            "pass_seconds": sum(walls) / len(walls), "train_peak_MB": done.peak_bytes / 1e6,
        }  # fmt: skip

    tasks, sizes = {}, {}
    for part in sorted(args.parts, reverse=True):
        text = args.folder / f"part{part}.svm"
        sizes[str(part)], end = end_of_line(args.data, 1 / part)
        cut(args.data, 0, end, text)
        tasks[str(part)] = partial(measure, text)
    for part, found in alternate(tasks, args.runs).items():
        row, rows = medians(found), sizes[part]
        each = {f"{k}_us_per_row": row[f"{k}_seconds"] / rows * 1e6 for k in ("split", "pass")}
        report.rows.append({"rows": rows, **each, **row})
    names = ("split_us_per_row", "pass_us_per_row", "split_peak_MB", "train_peak_MB")
    for name in names:
        values = [row[name] for row in report.rows]
        report.ratios[f"{name}: largest_of_smallest"] = max(values) / min(values)
        kind, _, quantity = name.partition("_")
        report.tables.setdefault("curves", []).extend(
            {"method": kind, "rows": row["rows"], quantity: row[name]} for row in report.rows
        )


@benchmark(BENCHMARKS, options={**TRAINING, "bmd_max_passes": 100}, quick=QUICK, rows=ROWS)
def overlap(args: argparse.Namespace, report: Report) -> None:
    """Loading behind solving.

    From the log of sbm train: wall time of each pass, the certificate left out, beside loading (in
    a thread) and solving (in the main one). wall of larger: wall time of the passes over Σ
    max(load, solve); sum of larger: what it would be if nothing overlapped; the first pass includes
    opening the store.

    equal memory: passes to the tolerance with the cache, and without one (block minimization), once
    each. The store is one block, so what is loaded at a time is what --mem allows: larger parts
    without a cache. If that did not converge, the ratio of passes is at most the one given.
    """
    warm_up(args)
    store, model = split_to(args, args.data), args.folder / "overlap.model"

    def log() -> list[dict[str, float]]:
        train(store, model, **training_options(args))
        return passes_of(model)

    log()  # fills the page cache
    runs = alternate({"train": log}, args.runs)["train"]
    for k, passes in enumerate(zip(*runs, strict=False), 1):
        excess = median([_excess([one]) for one in passes])
        report.rows.append({"pass": k, **medians(passes), "wall_of_larger": excess})
    report.ratios = {
        "wall_of_larger": median([_excess(run) for run in runs]),
        "sum_of_larger": median([_excess(run, "load", "solve") for run in runs]),
    }
    store, table = split_to(args, args.data, blocks=1), []
    for frac, limit in ((args.cache_frac, args.max_passes), (0.0, args.bmd_max_passes)):
        tell(f"equal memory, --cache-frac {frac}")
        options = training_options(args, cache_frac=frac, max_passes=limit)
        done = train(store, model, "-v", codes=BUDGET, **options)
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
    options={**TRAINING, "rounds": [1, 2, 3, 5, 10, "auto"], "read_rates": [None, 1e8]},
)  # fmt: skip
def rounds(args: argparse.Namespace, report: Report) -> None:
    """Rounds over a working set.

    Each training to the tolerance is a process; its time is what it reports, without the start of
    Python. throttled: bytes of the store a second, inside the program, files in the page cache.
    """
    warm_up(args)
    store, model = split_to(args, args.data), args.folder / "rounds.model"
    for rate in args.read_rates:
        speed = "not throttled" if rate is None else f"{rate / 1e6:g} MB/s"
        tell(f"reading: {speed}")

        def once(choice: Any, rate: float | None = rate) -> dict[str, Any]:
            options = training_options(args, rounds=choice)
            return train_throttled(store, model, rate, **options)

        _try_choices(report, {"reading": speed}, "rounds", args.rounds, once, args.runs)


@benchmark(
    BENCHMARKS, rows=ROWS, quick={**QUICK, "cache_frac": [0.0, 0.5, "auto"]},
    options={**TRAINING, "cache_frac": [0.0, 0.25, 0.5, 0.75, "auto"], "also": []},
)  # fmt: skip
def cache(args: argparse.Namespace, report: Report) -> None:
    """Size of the cache.

    The same --mem and blocks throughout. The time of a training to the tolerance is what it
    reports, without the start of Python.
    """
    for text in (args.data, *map(existing, args.also)):
        warm_up(args, text)
        store, model = split_to(args, text), args.folder / "cache.model"

        def once(choice: Any, store: Path = store, model: Path = model) -> dict[str, Any]:
            options = training_options(args, cache_frac=choice)
            return train(store, model, codes=BUDGET, **options).json()

        _try_choices(report, {"data": text.name}, "cache_frac", args.cache_frac, once, args.runs)


def _try_choices(
    report: Report, where: dict[str, str], name: str, choices: list[Any],
    once: Callable[[Any], dict[str, Any]], n_runs: int,
) -> None:  # fmt: skip
    """Train with each choice in turn: a row each, and ``auto`` beside the best fixed one."""
    (place,) = where.values()
    tasks = {str(choice): partial(once, choice) for choice in choices}
    runs = alternate(tasks, n_runs)
    taken = {name: [one["seconds"]["total"] for one in found] for name, found in runs.items()}
    for choice, found in runs.items():
        report.rows.append({
            **where, name: choice, "seconds": median(taken[choice]), "passes": found[0]["passes"],
            "converged": all(one["converged"] for one in found),
            "relative_gap": found[0]["relative_gap"],
            **medians([one["seconds"] for one in found], "load", "wait", "solve", "certify"),
            "MB_read": found[0]["bytes_read"] / 1e6,
        })  # fmt: skip
    fixed = [
        choice for choice, found in runs.items()
        if choice != "auto" and all(one["converged"] for one in found)
    ]  # fmt: skip
    if fixed and "auto" in runs:
        fastest = min(fixed, key=lambda choice: median(taken[choice]))
        fewest = min(runs[choice][0]["passes"] for choice in fixed)
        seconds = median_ratio(taken["auto"], taken[fastest])
        report.ratios[f"{place}: auto_of_best_fixed_seconds"] = seconds
        report.ratios[f"{place}: auto_of_best_fixed_passes"] = runs["auto"][0]["passes"] / fewest


# --------------------------------------------------------------------------------------- threads


@benchmark(BENCHMARKS, options=TRAINING, quick=QUICK, rows=ROWS)
def threads(args: argparse.Namespace, report: Report) -> None:
    """One thread and two.

    seconds: whole processes; cores busy: user and system time over wall time.

    Extrapolated, not measured: what eight cores would give by Amdahl's law. The parallel share p
    follows from T2 = T1 (1 - p + p/2), and T8 = T1 (1 - p + p/8); memory and disk are taken to keep
    up.

    sbm split reads, parses, deals and writes in threads of their own even with --threads 1, which
    is why two gain so little: its share says little about eight.
    """
    warm_up(args)
    store, model = split_to(args, args.data), args.folder / "threads.model"
    commands = {
        "split": partial(split, args.data, args.folder / "copy.sbm", **splitting_options(args)),
        "train": partial(train, store, model, **training_options(args)),
    }
    numbers = (1, 2)
    runs = alternate(
        {f"{what} {n}": partial(run, threads=n) for what, run in commands.items() for n in numbers},
        args.runs,
    )
    table = report.tables["Amdahl's law, extrapolated"] = []
    for what in commands:
        one, two = found = [runs[f"{what} {n}"] for n in numbers]
        report.rows += [_threads_row(what, n, mine) for n, mine in zip(numbers, found, strict=True)]
        taken = ratio(two, one)
        parallel = min(1.0, max(0.0, 2 * (1 - taken)))
        many = 1 - parallel + parallel / MANY_CORES
        table.append({
            "what": what, "parallel_share": parallel, f"speed_up_with_{MANY_CORES}": 1 / many,
            f"seconds_with_{MANY_CORES}": costs(one)["seconds"] * many,
        })  # fmt: skip
        report.ratios[f"{what}: 2_threads_of_1"] = taken
        report.ratios[f"{what}: {MANY_CORES}_threads_of_1, extrapolated"] = many


def _threads_row(what: str, n: int, runs: list[Finished]) -> dict[str, Any]:
    parts = {}
    if what == "train":
        spent = [done.json()["seconds"] for done in runs]
        parts = medians(spent, "load", "wait", "solve", "certify", "write")
    busy = median([done.cpu_seconds / done.seconds for done in runs])
    return {
        "what": what, "threads": n, **costs(runs), "cores_busy": busy, "of_these": shares(parts)
    }  # fmt: skip


# ------------------------------------------------------------------------------------- screening


@benchmark(
    BENCHMARKS, options={**TRAINING, "gaps": [1e-2, 1e-3, 1e-4, 1e-5, 1e-6]}, rows=ROWS,
    quick={**QUICK, "gaps": [1e-2]},
)  # fmt: skip
def screening(args: argparse.Namespace, report: Report) -> None:
    """Rows that need no visit.

    A training with and one without the screening of the next block take turns.

    gap-safe rules: the optimal weights lie within sqrt(2 gap) of the model's, so a row's alpha is 0
    or C in every optimum if its margin differs from 1 by more than that times its norm. A chunk of
    the store need not be decoded any more if all of its rows are fixed.
    """
    warm_up(args)
    store, model = split_to(args, args.data), args.folder / "screening.model"
    flags: dict[str, tuple[str, ...]] = {"screened": (), "all rows visited": ("--no-screen",)}
    options = training_options(args)
    tasks = {name: partial(train, store, model, *words, **options) for name, words in flags.items()}
    runs = alternate(tasks, args.runs)
    for name, found in runs.items():
        facts = [run.json() for run in found]
        report.rows.append({
            "what": name, "passes": facts[0]["passes"], "visits_1e6": facts[0]["visits"] / 1e6,
            "updates_1e6": facts[0]["updates"] / 1e6, "seconds": costs(found)["seconds"],
            "solve_seconds": median([f["seconds"]["solve"] for f in facts]),
        })  # fmt: skip
    screened, plain = report.rows
    report.ratios = {
        "visits: screened_of_all": screened["visits_1e6"] / plain["visits_1e6"],
        "seconds: screened_of_all": ratio(runs["screened"], runs["all rows visited"]),
    }
    for tol in args.gaps:
        train(store, model, **training_options(args, tol=tol))
        rows, chunks = _safe_shares(store, model)
        report.notes.append(
            f"relative gap {tol:g}: gap-safe rules fix {rows:.1%} of the rows for good, and all "
            f"rows of {chunks:.1%} of the chunks"
        )


def _safe_shares(store: Path, model: Path) -> tuple[float, float]:
    """Share of rows whose alpha the gap fixes, and of chunks where it fixes all of them."""
    from sbm import Model
    from sbm.rows import Arena
    from sbm.store.blocks import BlockStore

    blocks, trained = BlockStore(store), Model.load(model)
    positive = list(blocks.labels or []).index(trained.labels[1])
    radius = (2 * trained.info["certificate"]["gap"]) ** 0.5
    weights = trained.weights_of(blocks.read_feature_ids())[:, 0]
    rows = full = 0
    chunks = [chunk for block in blocks.chunks for chunk in block]
    for chunk in chunks:
        arena = Arena.of(chunk.nnz, blocks.value_type)
        held = blocks.read([chunk], arena.room(chunk.rows), 0)
        values = np.ones(chunk.nnz) if held.values is None else held.values.astype(np.float64)
        sign = np.where(held.y == positive, 1.0, -1.0)
        products = np.array([values * weights[held.indices], values * values])
        filled = held.lengths > 0
        margin, square = np.zeros((2, chunk.rows))
        margin[filled], square[filled] = np.add.reduceat(products, held.starts[filled], axis=1)
        fixed = np.abs(sign * margin - 1) > radius * np.sqrt(square)
        rows += int(np.count_nonzero(fixed))
        full += bool(fixed.all())
    return rows / blocks.n_rows, full / len(chunks)
