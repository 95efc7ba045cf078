"""Benchmark of `sbm plan`: what it foresees against what then happens."""

import argparse
from pathlib import Path
from typing import Any

from scripts.bench.ours import BUDGET, split_to, train, training_options, warm_up
from scripts.bench.ours import plan as run_plan
from scripts.bench.registry import QUICK, TRAINING, Registry, benchmark
from scripts.bench.tools import Report, median, tell

BENCHMARKS: Registry = {}
TARGET = 2.0  # the time foreseen is to be within this factor of the time it takes


@benchmark(
    BENCHMARKS, rows=2_500_000, several=True, quick={**QUICK, "C": [0.1], "seconds": 0.5},
    options={**TRAINING, "C": [0.1], "losses": ["hinge"], "mem": "2GB", "max_passes": 200,
             "seconds": 5.0},
)  # fmt: skip
def plan(args: argparse.Namespace, report: Report) -> None:
    """What a training takes, foreseen and taken.

    foreseen: seconds in all and passes that sbm plan says are likely, with their widest range.
    taken: of sbm train, the whole process, and passes; medians of alternating runs. foreseen of
    taken: of neighbouring runs, the median.
    """
    warm_up(args, args.data[0])
    model = args.folder / "plan.model"
    for text in args.data:
        store = split_to(args, text)
        for loss in args.losses:
            for C in args.C:
                tell(f"{text.name}, {loss}, C = {C:g}")
                options = training_options(args, loss=loss, C=C)
                row = _compare(args, store, model, options)
                report.rows.append({"data": text.name, "loss": loss, "C": C, **row})
    factors = [max(row["foreseen_of_taken"], 1 / row["foreseen_of_taken"]) for row in report.rows]
    report.ratios["largest_factor_between_foreseen_and_taken"] = max(factors)
    within = sum(factor <= TARGET for factor in factors)
    report.notes.append(f"within a factor of {TARGET:g}: {within} of {len(factors)}")


def _compare(
    args: argparse.Namespace, store: Path, model: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """Plan and train in turn; cells of one training."""
    plans, trained = [], []
    for _ in range(args.runs):
        plans.append(run_plan(store, **options, seconds=args.seconds))
        trained.append(train(store, model, codes=BUDGET, **options))
    facts = trained[0].json()
    taken = [done.seconds for done in trained]
    pairs = zip(plans, taken, strict=True)
    return {
        "foreseen_seconds": median([p["seconds"][1] for p in plans]),
        "least": min(p["seconds"][0] for p in plans), "most": max(p["seconds"][2] for p in plans),
        "taken_seconds": median(taken),
        "foreseen_of_taken": median([p["seconds"][1] / seconds for p, seconds in pairs]),
        "foreseen_passes": median([p["passes"][1] for p in plans]), "passes": facts["passes"],
        "relative_gap": facts["relative_gap"], "was_measured": plans[0]["is_measured"],
    }  # fmt: skip
