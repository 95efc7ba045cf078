"""Benchmarks: one subcommand a question, ours beside the peers, in alternating runs.

    python -m scripts.bench parse --data big.svm -o results/parse
    python -m scripts.bench text-to-gap --quick

Every number is a median over ``--runs`` runs, in which the contestants take turns; ratios are
medians of the ratios of neighbouring runs. Data is LIBSVM text with two labels, by default made
by ``scripts.data.synthetic`` and thrown away; where accuracy is measured, the last tenth of its
lines is held out unless ``--test`` names a text. Of several classes the text has ten, and some take
several texts, ``--data`` again and again. The report goes to stdout as Markdown, and with ``-o``
to PREFIX.md, PREFIX.json and, where there is a picture, PREFIX.png. ``--quick`` is a toy size that
only shows that everything still runs.

To add a benchmark, write a function that takes the arguments and fills a `Report`, and put the
decorator `benchmark` of `scripts.bench.registry` in front of it.
"""

import sys

from scripts.bench import (
    blocks,
    drift,
    kernel,
    losses,
    memory,
    models,
    nightly,
    optima,
    plan,
    ranks,
    stream,
    text,
    training,
    tune,
)
from scripts.bench.registry import Registry, main

MODULES = (
    text, kernel, models, stream, training, losses, tune, plan, nightly, blocks, memory, drift,
    optima, ranks,
)  # fmt: skip
BENCHMARKS: Registry = {
    name: one for module in MODULES for name, one in module.BENCHMARKS.items()
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCHMARKS, "scripts.bench"))
