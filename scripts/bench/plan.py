"""Benchmark of `sbm plan`: what it foresees against what then happens."""

import argparse
from pathlib import Path
from typing import Any

from scripts.bench.ours import (
    BUDGET,
    plan,
    split,
    splitting_options,
    train,
    training_options,
    warm_up,
)
from scripts.bench.tools import Report, median, tell

TARGET = 2.0  # the time foreseen is to be within this factor of the time it takes


def bench_plan(args: argparse.Namespace, report: Report) -> None:
    """Plan and train in turn, for each text, loss and cost."""
    warm_up(args, args.data[0])
    store, model = args.folder / "plan.sbm", args.folder / "plan.model"
    for text in args.data:
        split(text, store, **splitting_options(args))
        for loss in args.losses:
            for C in args.C:
                tell(f"{text.name}, {loss}, C = {C:g}")
                options = training_options(args, loss=loss, C=C)
                runs = [_plan_and_train(args, store, model, options) for _ in range(args.runs)]
                report.rows.append({"data": text.name, "loss": loss, "C": C, **_row_of(runs)})
    factors = [max(row["foreseen_of_taken"], 1 / row["foreseen_of_taken"]) for row in report.rows]
    report.ratios["largest_factor_between_foreseen_and_taken"] = max(factors)
    within = sum(factor <= TARGET for factor in factors)
    report.notes = [
        f"within a factor of {TARGET:g}: {within} of {len(factors)}",
        "foreseen: seconds in all and passes that sbm plan says are likely, with their range",
        "taken: of sbm train, the whole process, and passes; medians of alternating runs",
        "foreseen of taken: of neighbouring runs, the median",
    ]


def _plan_and_train(
    args: argparse.Namespace, store: Path, model: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """Return what was foreseen, and what it took."""
    foreseen = plan(store, **options, seconds=args.seconds).json()
    trained = train(store, model, codes=BUDGET, **options)
    return {"plan": foreseen, "train": trained.json(), "seconds": trained.seconds}


def _row_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Cells of one training: medians, and the widest range."""
    plans, trained = [run["plan"] for run in runs], [run["train"] for run in runs]
    taken = [run["seconds"] for run in runs]
    return {
        "foreseen_seconds": median([p["seconds"][1] for p in plans]),
        "least": min(p["seconds"][0] for p in plans),
        "most": max(p["seconds"][2] for p in plans),
        "taken_seconds": median(taken),
        "foreseen_of_taken": median(
            [p["seconds"][1] / t for p, t in zip(plans, taken, strict=True)]
        ),
        "foreseen_passes": median([p["passes"][1] for p in plans]),
        "passes": trained[0]["passes"],
        "relative_gap": trained[0]["relative_gap"],
        "was_measured": plans[0]["is_measured"],
    }
