"""The picture of docs/reports.md: charts of several trainings."""

import argparse
from typing import Any

from scripts.bench.commands import BUDGET, split, train
from scripts.bench.data import hold_out
from scripts.bench.registry import Registry, benchmark
from scripts.bench.tools import Report, run_process, sbm_command

BENCHMARKS: Registry = {}
RUNS: dict[str, dict[str, Any]] = {
    "C0.01": {"C": 0.01}, "C0.1": {"C": 0.1}, "C1": {"C": 1},
    "no-cache": {"C": 0.1, "policy": "none", "cache_frac": 0},
}  # fmt: skip


@benchmark(BENCHMARKS, name="report", runs=0, rows=30_000, options={"max_passes": 30})
def report_(args: argparse.Namespace, report: Report) -> None:
    """Four trainings in one picture, as sbm report draws them.

    Coordinate descent, 12 blocks, three values of C, and one without a cache. The last tenth of
    the lines is held out to judge the weights after each pass.
    """
    text, test = hold_out(args.data, 0.1, args.folder)
    store = args.folder / "store.sbm"
    split(text, store)
    models = []
    for name, options in RUNS.items():
        models.append(args.folder / f"{name}.model")
        common = {"solver": "dual", "parts": "blocks", "validate": test}
        some = {**common, "max_passes": args.max_passes, **options}
        facts = train(store, models[-1], codes=BUDGET, **some).json()
        report.rows.append({
            "model": name, "passes": facts["passes"], "relative_gap": facts["relative_gap"],
            "accuracy": facts["validation"]["score"],
        })  # fmt: skip
    picture = (args.prefix or args.folder / "report").with_suffix(".png").resolve()
    page = args.folder / "page.html"
    run_process(sbm_command("report", *models, "-o", page, "--png", picture))
