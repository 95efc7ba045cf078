"""Benchmarks of sbm and its peers in alternating runs, one subcommand per question.

    python -m scripts.bench parse --data big.svm -o results/parse
    python -m scripts.bench grid --quick

Every number is a median over ``--runs`` runs, in which the contestants alternate; ratios are
medians of the ratios of neighbouring runs. Data is LIBSVM text with two labels. By default
``scripts.data.synthetic`` makes it, and it is removed at the end. Some benchmarks take several
texts (repeat ``--data``). If accuracy is measured, the last tenth of the lines is held out unless
``--test`` names a text. The report goes to stdout as Markdown, and with ``-o`` to PREFIX.md,
PREFIX.json and, if there is a picture, PREFIX.png. ``--quick`` uses a toy size, which only shows
that everything still runs.

    python -m scripts.bench all --reference ../shared/data --keep MADE -o scripts/results/all

makes all of ``scripts/results`` again; the same command resumes.

To add a benchmark, write a function that takes the arguments and fills a `Report`, and decorate it
with `benchmark` of `scripts.bench.registry`.
"""

import sys

from scripts.bench import (
    charts,
    converge,
    drift,
    everything,
    grid,
    kernel,
    memory,
    newton,
    nightly,
    optima,
    ranks,
    scaling,
    sparse,
    stream,
    text,
    training,
    tune,
)
from scripts.bench.registry import Registry, main

MODULES = (
    grid, text, kernel, stream, training, tune, nightly, memory, drift,
    optima, ranks, sparse, newton, converge, scaling, charts, everything,
)  # fmt: skip
BENCHMARKS: Registry = {
    name: one for module in MODULES for name, one in module.BENCHMARKS.items()
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCHMARKS, "scripts.bench"))
