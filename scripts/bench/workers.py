"""Threads that solve: what several workers cost in passes and visits."""

import argparse

from scripts.bench.commands import BUDGET, split, splitting_options, train, training_options
from scripts.bench.registry import TRAINING, Registry, benchmark
from scripts.bench.tools import Report, tell

BENCHMARKS: Registry = {}


@benchmark(
    BENCHMARKS, rows=2_000_000, several=True,
    options={**TRAINING, "mem": "2GB", "threads": [1, 3, 4, 8]}, quick={"max_passes": 2},
)  # fmt: skip
def workers(args: argparse.Namespace, report: Report) -> None:
    """Passes and visits by number of threads that solve.

    Counts, so the cores of the machine do not matter. share: visits of one thread beside those of a
    training on one. Its inverse bounds the speed-up of solving.
    """
    for text in args.data:
        store, model = args.folder / "workers.sbm", args.folder / "workers.model"
        tell(f"splitting {text.name}")
        split(text, store, **splitting_options(args))
        alone = 0
        for threads in args.threads:
            options = training_options(args)
            done = train(store, model, codes=BUDGET, threads=threads, **options).json()
            alone = alone or done["visits"]
            report.rows.append({
                "data": text.name, "threads": threads, "passes": done["passes"],
                "visits": done["visits"], "share": done["visits"] / threads / alone,
                "updates": done["updates"], "relative_gap": done["relative_gap"],
                "cpu_solve": done["seconds"]["solve"],
            })  # fmt: skip
