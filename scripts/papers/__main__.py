"""Experiments of the papers: each measures, draws, and judges the claims of a paper by rules.

    python -m scripts.papers figure2 -o results/paper-figure2
    python -m scripts.papers figure2 --sets webspam --data webspam=data/public/webspam.svm

To add an experiment, write a function that takes the arguments, fills a `Report` and adds `Claims`,
and decorate it with `benchmark` of `scripts.bench.registry`.
"""

import sys

from scripts.bench.registry import Registry, main
from scripts.papers import dcd, figure2, figure3, figure5, table2, ww

MODULES = (figure2, figure3, figure5, table2, dcd, ww)
EXPERIMENTS: Registry = {
    name: one for module in MODULES for name, one in module.EXPERIMENTS.items()
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(EXPERIMENTS, "scripts.papers"))
