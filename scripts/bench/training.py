"""Benchmarks of training: size of the data, overlap, rounds, cache, threads."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.data import cut, end_of_line
from scripts.bench.ours import (
    BUDGET,
    passes_of,
    split,
    splitting_options,
    train,
    train_throttled,
    training_options,
    warm_up,
)
from scripts.bench.tools import BenchError, Finished, Report, alternate, median, median_ratio, tell

SCALING_PASSES = 3
NEVER = 1e-15  # a tolerance that is not reached
MANY_CORES = 8


def _store(args: argparse.Namespace, text: Path | None = None, **changes: Any) -> Path:
    """Split a text to a store that stays for all runs."""
    tell("splitting")
    store: Path = args.folder / "store.sbm"
    split(text or args.data, store, **splitting_options(args, **changes))
    return store


# --------------------------------------------------------------------------------------- scaling


def bench_scaling(args: argparse.Namespace, report: Report) -> None:
    """Split and train on ever longer beginnings of a text, within the same memory.

    Time of a split is what it reports (without the start of Python); time of a pass is the mean of
    the first three in the log, without the certificate. Peaks are of whole processes, from outside.
    """
    warm_up(args)
    tasks, rows = {}, {}
    for part in sorted(args.parts, reverse=True):
        text = args.folder / f"part{part}.svm"
        rows[part], end = end_of_line(args.data, 1 / part)
        cut(args.data, 0, end, text)
        tasks[str(part)] = partial(_measure_size, args, text)
    runs = alternate(tasks, args.runs)
    for part, number in rows.items():
        found = runs[str(part)]
        row = {name: median([run[name] for run in found]) for name in found[0]}
        report.rows.append({
            "rows": number,
            "split_us_per_row": row["split_seconds"] / number * 1e6,
            "pass_us_per_row": row["pass_seconds"] / number * 1e6,
            "split_peak_MB": row["split_peak_bytes"] / 1e6,
            "train_peak_MB": row["train_peak_bytes"] / 1e6,
            "split_seconds": row["split_seconds"],
            "pass_seconds": row["pass_seconds"],
        })  # fmt: skip
    for name in ("split_us_per_row", "pass_us_per_row", "split_peak_MB", "train_peak_MB"):
        values = [row[name] for row in report.rows]
        report.ratios[f"{name}: largest_of_smallest"] = max(values) / min(values)
    report.notes = [
        f"beginnings of one text; --mem {args.mem} and {args.blocks} blocks throughout",
        "a pass: mean of the first three, the first one includes opening the store",
        "split: as it reports, without the start of Python; the aim is a ratio of at most 1.15",
    ]


def _measure_size(args: argparse.Namespace, text: Path) -> dict[str, float]:
    store, model = args.folder / "part.sbm", args.folder / "part.model"
    made = split(text, store, **splitting_options(args))
    options = training_options(args, tol=NEVER, max_passes=SCALING_PASSES)
    done = train(store, model, codes=BUDGET, **options)
    walls = [seconds["wall"] for seconds in passes_of(model)]
    return {
        "split_seconds": made.json()["seconds"], "split_peak_bytes": made.peak_bytes,
        "pass_seconds": sum(walls) / len(walls), "train_peak_bytes": done.peak_bytes,
    }  # fmt: skip


# --------------------------------------------------------------------------------------- overlap


def bench_overlap(args: argparse.Namespace, report: Report) -> None:
    """Compare each pass's wall time with the larger one of loading and solving.

    From the log of ``sbm train``, see `passes_of`. Loading happens in a thread, solving in the
    main one.

    Then, what the cache is good for at equal memory: passes to the tolerance with the cache, and
    without one (block minimization), which leaves more room for blocks. For that the store is one
    block, so that what is loaded at a time is what the memory allows. Once each; exact counts.
    """
    warm_up(args)
    store, model = _store(args), args.folder / "overlap.model"

    def log() -> list[dict[str, float]]:
        train(store, model, **training_options(args))
        return passes_of(model)

    log()  # fills the page cache
    runs = alternate({"train": log}, args.runs)["train"]
    for k in range(min(map(len, runs))):
        row = {name: median([run[k][name] for run in runs]) for name in runs[0][k]}
        row["wall_of_larger"] = median([_excess([run[k]]) for run in runs])
        report.rows.append({"pass": k + 1, **row})
    report.ratios = {
        "wall_of_larger": median([_excess(run) for run in runs]),
        "sum_of_larger": median([_excess(run, "load", "solve") for run in runs]),
    }
    report.notes = [
        (
            "wall of larger: wall time of the passes over Σ max(load, solve); sum of larger: what "
            "it would be if nothing overlapped; the first pass includes opening the store"
        )
    ]
    _compare_with_plain_blocks(args, report)


def _compare_with_plain_blocks(args: argparse.Namespace, report: Report) -> None:
    store, model = _store(args, blocks=1), args.folder / "plain.model"
    table = []
    for frac, limit in ((args.cache_frac, args.max_passes), (0.0, args.bmd_max_passes)):
        tell(f"equal memory, --cache-frac {frac}")
        options = training_options(args, cache_frac=frac, max_passes=limit)
        done = train(store, model, "-v", codes=BUDGET, **options)
        facts = done.json()
        table.append({
            "cache_frac": frac, "plan": done.stderr.partition(";")[0].splitlines()[-1],
            "passes": facts["passes"], "converged": facts["converged"],
            "relative_gap": facts["relative_gap"], "seconds": facts["seconds"]["total"],
            "peak_MB": done.peak_bytes / 1e6,
        })  # fmt: skip
    cached, plain = table
    report.tables[f"equal memory, --mem {args.mem}, a store of one block"] = table
    report.ratios["passes_with_cache_of_without"] = cached["passes"] / plain["passes"]
    report.notes.append(
        "equal memory: the same --mem; without a cache larger parts of the data are loaded at a "
        "time; where that did not converge, the ratio of passes is at most the one given"
    )


def _excess(passes: list[dict[str, float]], *parts: str) -> float:
    """Time of some passes (or the sum of some parts) over Σ max(load, solve)."""
    spent = sum(p[part] for p in passes for part in parts or ("wall",))
    return spent / sum(max(p["load"], p["solve"]) for p in passes)


# ------------------------------------------------------------------------------- rounds and cache


def bench_rounds(args: argparse.Namespace, report: Report) -> None:
    """Train to the tolerance with each number of rounds, at each speed of reading.

    Each training is a process of its own; its time is what it reports (without the start of Python
    and the imports). Reading is throttled inside the program, ``TrainOptions(read_rate=...)``.
    """
    warm_up(args)
    store, model = _store(args), args.folder / "rounds.model"
    for rate in args.read_rates:
        options = {rounds: training_options(args, rounds=rounds) for rounds in args.rounds}
        tasks = {
            f"--rounds {rounds}": partial(train_throttled, store, model, rate, **changed)
            for rounds, changed in options.items()
        }
        speed = "not throttled" if rate is None else f"{rate / 1e6:g} MB/s"
        tell(f"reading: {speed}")
        runs = list(alternate(tasks, args.runs).values())
        rows = _describe_choices("rounds", args.rounds, runs)
        report.rows += [{"reading": speed, **row} for row in rows]
        _compare_auto(report, speed, args.rounds, runs)
    report.notes = ["throttled: bytes of the store a second, with files in the page cache"]


def bench_cache(args: argparse.Namespace, report: Report) -> None:
    """Train to the tolerance with each share of the cache, within the same memory.

    The time of a training is what it reports (without the start of Python and the imports).
    """
    for text in (args.data, *args.also):
        if not text.is_file():
            raise BenchError(f"{text}: no such file")
        warm_up(args, text)
        store, model = _store(args, text), args.folder / "cache.model"
        options = {frac: training_options(args, cache_frac=frac) for frac in args.cache_frac}
        tasks = {
            f"{text.name}, --cache-frac {frac}": partial(_train_report, store, model, **changed)
            for frac, changed in options.items()
        }
        runs = list(alternate(tasks, args.runs).values())
        rows = _describe_choices("cache_frac", args.cache_frac, runs)
        report.rows += [{"data": text.name, **row} for row in rows]
        _compare_auto(report, text.name, args.cache_frac, runs)
    report.notes = [f"--mem {args.mem} throughout; text split into {args.blocks} blocks"]


def _train_report(store: Path, model: Path, **options: Any) -> dict[str, Any]:
    """Train; passes may be used up."""
    return train(store, model, codes=BUDGET, **options).json()


def _describe_choices(
    name: str, choices: list[Any], runs: list[list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """A row of the table for each choice, from the reports of its trainings."""
    rows = []
    for choice, found in zip(choices, runs, strict=True):
        parts = ("load", "wait", "solve", "certify")
        rows.append({
            name: choice, "seconds": median(_seconds(found)), "passes": found[0]["passes"],
            "converged": all(report["converged"] for report in found),
            "relative_gap": found[0]["relative_gap"],
            **{k: median([report["seconds"][k] for report in found]) for k in parts},
            "MB_read": found[0]["bytes_read"] / 1e6,
        })  # fmt: skip
    return rows


def _compare_auto(
    report: Report, where: str, choices: list[Any], runs: list[list[dict[str, Any]]]
) -> None:
    """Ratios of what ``auto`` takes and what the best fixed choice takes that converged."""
    found = dict(zip(choices, runs, strict=True))
    auto = found.pop("auto", [])
    fixed = [taken for taken in found.values() if all(r["converged"] for r in taken)]
    if auto and fixed:
        fastest = min(fixed, key=lambda taken: median(_seconds(taken)))
        fewest = min(taken[0]["passes"] for taken in fixed)
        ratio = median_ratio(_seconds(auto), _seconds(fastest))
        report.ratios[f"{where}: auto_of_best_fixed_seconds"] = ratio
        report.ratios[f"{where}: auto_of_best_fixed_passes"] = auto[0]["passes"] / fewest


def _seconds(reports: list[dict[str, Any]]) -> list[float]:
    return [report["seconds"]["total"] for report in reports]


# --------------------------------------------------------------------------------------- threads


def bench_threads(args: argparse.Namespace, report: Report) -> None:
    """Time ``sbm split`` and ``sbm train`` as whole processes with one and with two threads.

    From the two, by Amdahl's law, what eight cores would give: the parallel share p follows from
    T2 = T1 (1 - p + p/2), and T8 = T1 (1 - p + p/8). That is an extrapolation, not a measurement:
    memory and disk are taken to keep up.
    """
    warm_up(args)
    store, model = _store(args), args.folder / "threads.model"
    options, tasks = splitting_options(args), {}
    for threads in (1, 2):
        copy = args.folder / "threads.sbm"
        tasks[f"split, {threads}"] = partial(split, args.data, copy, **options, threads=threads)
        trained = partial(train, store, model, **training_options(args), threads=threads)
        tasks[f"train, {threads}"] = trained
    runs = alternate(tasks, args.runs)
    for what in ("split", "train"):
        one, two = (runs[f"{what}, {threads}"] for threads in (1, 2))
        report.rows += [_describe_threads(what, 1, one), _describe_threads(what, 2, two)]
        _extrapolate(report, what, one, two)
    report.notes = [
        "seconds: whole processes; cores busy: user and system time over wall time",
        (
            "extrapolated, not measured: Amdahl's law with the parallel share that one and two "
            "threads show; memory and disk are taken to keep up"
        ),
        (
            "sbm split reads, parses, deals and writes in threads of their own even with --threads "
            "1, which is why two gain so little: its share says little about eight"
        ),
    ]


def _describe_threads(what: str, threads: int, runs: list[Finished]) -> dict[str, Any]:
    parts = {}
    if what == "train":
        names = ("load", "wait", "solve", "certify", "write")
        reports = [done.json() for done in runs]
        parts = {k: median([report["seconds"][k] for report in reports]) for k in names}
    return {
        "what": what, "threads": threads, "seconds": median([done.seconds for done in runs]),
        "cpu_seconds": median([done.cpu_seconds for done in runs]),
        "cores_busy": median([done.cpu_seconds / done.seconds for done in runs]),
        "of_these": ", ".join(f"{k} {v:.2f}" for k, v in parts.items()),
    }  # fmt: skip


def _extrapolate(report: Report, what: str, one: list[Finished], two: list[Finished]) -> None:
    ratio = median_ratio([done.seconds for done in two], [done.seconds for done in one])
    share = parallel_share(ratio)
    many = 1 - share + share / MANY_CORES
    report.tables.setdefault("Amdahl's law, extrapolated", []).append({
        "what": what, "parallel_share": share, f"speed_up_with_{MANY_CORES}": 1 / many,
        f"seconds_with_{MANY_CORES}": median([done.seconds for done in one]) * many,
    })  # fmt: skip
    report.ratios[f"{what}: 2_threads_of_1"] = ratio
    report.ratios[f"{what}: {MANY_CORES}_threads_of_1, extrapolated"] = many


def parallel_share(ratio: float) -> float:
    """Share of the work that two threads divide, from their time over that of one."""
    return min(1.0, max(0.0, 2 * (1 - ratio)))


# ------------------------------------------------------------------------------------- screening


def bench_screening(args: argparse.Namespace, report: Report) -> None:
    """What screening saves, and what rules that are safe for good could save.

    A training with and one without the screening of the next block take turns. Then models are
    trained to ever smaller gaps, and for each the rows are counted whose alpha the gap proves to be
    0 or C in every optimum: the optimal weights lie within sqrt(2 gap) of the model's, so a row is
    fixed when its margin differs from 1 by more than that times its norm. A chunk of the store need
    not be decoded any more when all of its rows are fixed.
    """
    warm_up(args)
    store, model = _store(args), args.folder / "screening.model"
    flags = {"screened": (), "all rows visited": ("--no-screen",)}
    options = training_options(args)
    tasks = {name: partial(train, store, model, *words, **options) for name, words in flags.items()}
    runs = alternate(tasks, args.runs)
    for name, found in runs.items():
        facts = [run.json() for run in found]
        report.rows.append({
            "what": name,
            "passes": facts[0]["passes"],
            "visits_1e6": facts[0]["visits"] / 1e6,
            "updates_1e6": facts[0]["updates"] / 1e6,
            "seconds": median([run.seconds for run in found]),
            "solve_seconds": median([f["seconds"]["solve"] for f in facts]),
        })  # fmt: skip
    screened, plain = report.rows
    report.ratios = {
        "visits: screened_of_all": screened["visits_1e6"] / plain["visits_1e6"],
        "seconds: screened_of_all": median_ratio(
            *([run.seconds for run in runs[name]] for name in flags)
        ),
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
