"""Blocks of classes: what threads give to Weston-Watkins."""

import argparse
from functools import partial
from typing import Any

from scripts.bench.commands import BUDGET, split, splitting_options, train, training_options
from scripts.bench.data import count_labels
from scripts.bench.registry import TRAINING, Registry, benchmark
from scripts.bench.tools import Finished, Report, alternate, median, median_ratio, tell

BENCHMARKS: Registry = {}


@benchmark(
    BENCHMARKS, rows=1_000_000, classes=10, several=True,
    options={**TRAINING, "mem": "1GB", "class_blocks": 4, "threads": [1, 2]},
    quick={"max_passes": 3},
)  # fmt: skip
def class_blocks(args: argparse.Namespace, report: Report) -> None:
    """Weston-Watkins by blocks of classes on several threads.

    All to the same tolerance, or to the end of their passes; medians of the runs. Models have the
    same bytes for any number of threads. together: without --class-blocks. Speed-ups are of the
    seconds of solving; below 1 is a loss.
    """
    for text in args.data:
        store, model = args.folder / "blocks.sbm", args.folder / "blocks.model"
        facts = {"data": text.name, "classes": count_labels(text)}
        tell(f"splitting {text.name}")
        split(text, store, **splitting_options(args))
        whole = training_options(args, loss="weston_watkins")
        blocks = {**whole, "class_blocks": args.class_blocks}
        for options in (whole, blocks):  # compiles
            train(store, model, codes=BUDGET, **{**options, "max_passes": 1})
        tasks = {
            f"{name}, {threads} threads": partial(
                train, store, model, codes=BUDGET, threads=threads, **options
            )
            for name, options in (("together", whole), ("by blocks", blocks))
            for threads in args.threads
        }
        runs = alternate(tasks, args.runs)
        report.rows += [{**facts, "solved": name, **_row_of(found)} for name, found in runs.items()]
        solve = {name: [_seconds(done, "solve") for done in found] for name, found in runs.items()}
        first, last = f"{args.threads[0]} threads", f"{args.threads[-1]} threads"
        for name, before, after in (
            ("speed_up_of_threads_by_blocks", f"by blocks, {first}", f"by blocks, {last}"),
            ("speed_up_beside_together", f"together, {last}", f"by blocks, {last}"),
        ):
            report.ratios[f"{text.name}: {name}"] = median_ratio(solve[before], solve[after])


def _seconds(done: Finished, name: str) -> float:
    return float(done.json()["seconds"][name])


def _row_of(found: list[Finished]) -> dict[str, Any]:
    """Cells of one number of threads."""
    names = ("total", "solve", "wait", "certify")
    first = found[0].json()
    return {
        **{name: median([_seconds(done, name) for done in found]) for name in names},
        "cpu_seconds": median([done.cpu_seconds for done in found]),
        "passes": first["passes"], "relative_gap": first["relative_gap"],
        "primal": first["primal"],
        "peak_MB": median([done.json()["peak_rss_bytes"] for done in found]) / 1e6,
    }  # fmt: skip
