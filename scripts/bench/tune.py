"""Benchmark of tuning: all values of C on one stream, beside one training and many alone."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench.commands import (
    BUDGET,
    metric_of,
    remove,
    split,
    split_to,
    splitting_options,
    train,
    training_options,
    warm_training,
)
from scripts.bench.commands import (
    tune as run_tune,
)
from scripts.bench.plot import Axes
from scripts.bench.registry import QUICK, TRAINING, Registry, benchmark
from scripts.bench.tools import Finished, Report, alternate, costs, median, median_ratio, tell

BENCHMARKS: Registry = {}
# What tuning may cost, as so many times one training.
TARGETS = {"time": 10, "CPU time": 10, "bytes read": 2}
VALUES = "values of C, all folds on one stream"


@benchmark(
    BENCHMARKS, rows=2_500_000, needs_test=True,
    options={**TRAINING, "mem": "2GB", "max_passes": 50, "grid": "0.001:10000:x10", "folds": 5,
             "loss": "hinge", "alone": False},
    quick={**QUICK, "grid": "0.01,1", "folds": 2, "alone": True},
    axes=(Axes("C", "mean", "C", "metric of the folds", x_log=True, y_log=False, table=VALUES),),
)  # fmt: skip
def tune(args: argparse.Namespace, report: Report) -> None:
    """Cross-validation on one stream.

    one training: sbm train to --tol, process; tune: sbm tune, process, its folds to ten times
    --tol; the seconds of its two parts are those that it reports, without the start of Python, and
    its CPU seconds are those of the process. The test metric is of models on all rows, of -C and
    the best C.

    The targets: at most 10 times the time and CPU time of one training, 2 times its bytes.

    alone: each model of each fold by itself, sbm train to the tolerance of tune's folds, processes
    one after the other, measured once; the splits do not count. A fold is one line of --folds in
    turn, of tune a hash of the row. folds of alone: without the final training, which the CPU time
    of tune includes.
    """
    store, model = split_to(args, args.data), args.folder / "tune.model"
    alone = args.folder / "alone.model"
    one = training_options(args, loss=args.loss)
    many = {**one, "C": args.grid, "folds": args.folds}
    warm_training(args, store, alone, **one)
    run_tune(store, model, codes=BUDGET, **many | {"C": args.C, "folds": 2, "max_passes": 1})
    tasks = {
        "one": partial(train, store, alone, codes=BUDGET, **one),
        "tune": partial(run_tune, store, model, codes=BUDGET, **many),
    }
    runs = alternate(tasks, args.runs)
    found = runs["tune"][-1].json()
    metric, values = found["metric"], found["settings"]
    figures = [metric_of(path, args.test, metric) for path in (alone, model)]
    report.rows = _rows(args, runs["one"], runs["tune"], f"test_{metric}", figures)
    report.tables[VALUES] = [
        {"C": f"{row['C']:g}", "metric": metric, "mean": row["mean"], "std": row["std"],
         "passes": row["passes"], "seconds_of_solving": row["seconds"],
         "relative_gap": row["relative_gap"], "status": row["status"],
         "best": row["C"] == found["best"]}
        for row in values
    ]  # fmt: skip
    report.tables["tune of one training"] = list(_compare(runs["one"], runs["tune"], report.ratios))
    report.notes.append(f"best C: {found['best']:g}")
    if args.alone:
        remove(store)
        tried = [row["C"] for row in values if row["status"] != "not tried"]
        _train_alone(args, tried, runs["tune"], report)


def _bytes_of(done: Finished) -> float:
    """Bytes read, by a training or by both parts of a tuning."""
    facts = done.json()
    return float(facts["bytes_read"] + facts.get("train", {"bytes_read": 0})["bytes_read"])


def _rows(
    args: argparse.Namespace, trained: list[Finished], tuned: list[Finished], metric: str,
    figures: list[float],
) -> list[dict[str, Any]]:  # fmt: skip
    """The table: one training, and a tuning whole and in parts."""
    single, whole = trained[-1].json(), tuned[-1].json()
    spent = [done.json()["seconds"] for done in tuned]
    last = whole["train"]
    empty = dict.fromkeys(("what", "seconds", "cpu_seconds", "MB_read", "passes", "peak_MB"))

    def row(what: str, size: float, passes: int, figure: Any, **more: Any) -> dict[str, Any]:
        cells = {"what": what, "MB_read": size / 1e6, "passes": passes, metric: figure}
        return empty | cells | more

    count = f"{len(whole['settings'])} values, {args.folds} folds"
    passes = whole["passes"] + last["passes"]
    return [
        row(f"one training, C {args.C:g}", single["bytes_read"], single["passes"], figures[0],
            **costs(trained)),
        row(f"tune: {count}", whole["bytes_read"], whole["passes"], None,
            seconds=median([one["tune"] for one in spent])),
        row(f"tune: training of the best C, {whole['best']:g}", last["bytes_read"], last["passes"],
            figures[1], seconds=median([one["train"] for one in spent])),
        row("tune, together", _bytes_of(tuned[-1]), passes, figures[1], **costs(tuned)),
    ]  # fmt: skip


def _without_final(done: Finished) -> tuple[float, float]:
    """Seconds and bytes of a tuning without its final training."""
    facts = done.json()
    return done.seconds - float(facts["seconds"]["train"]), float(facts["bytes_read"])


def _compare(
    trained: list[Finished], tuned: list[Finished], ratios: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """Yield a tuning's costs as so many times those of one training; add them to the ratios."""

    def cells(done: Finished) -> tuple[float, ...]:
        return done.seconds, done.cpu_seconds, _bytes_of(done)

    below = list(zip(*map(cells, trained), strict=True))
    above = list(zip(*map(cells, tuned), strict=True))
    seconds, size = zip(*map(_without_final, tuned), strict=True)
    parts: list[Sequence[float] | None] = [seconds, None, size]
    for (name, target), one, whole, part in zip(TARGETS.items(), below, above, parts, strict=True):
        ratio = median_ratio(whole, one)
        ratios[f"{name}: tune_of_one_training"] = ratio
        yield {
            "of": name, "together": ratio,
            "without_the_final_training": median_ratio(part, one) if part else None,
            "target": target, "met": ratio <= target,
        }  # fmt: skip


def _train_alone(
    args: argparse.Namespace, values: list[float], tuned: list[Finished], report: Report
) -> None:
    """Train each value on each fold by itself, once; compare the sums with a tuning."""
    from sbm.programs.tuning.grid import LOOSER

    done: dict[float, list[Finished]] = {C: [] for C in values}
    model = args.folder / "fold.model"
    for fold in range(args.folds):
        text = _without_a_fold(args.data, args.folds, fold, args.folder / "fold.svm")
        store = args.folder / "fold.sbm"
        split(text, store, **splitting_options(args))
        for C in values:
            options = training_options(args, C=C, loss=args.loss, tol=LOOSER * args.tol)
            done[C].append(train(store, model, codes=BUDGET, **options))
            tell(f"alone: fold {fold + 1} of {args.folds}, C {C:g}")
    report.tables["each model alone, sums over the folds"] = [
        {"C": f"{C:g}", **_sums(mine)} for C, mine in done.items()
    ]
    every = [one for mine in done.values() for one in mine]
    total = _sums(every)
    empty = dict.fromkeys(report.rows[0]) | {"what": f"{len(every)} models alone"}
    report.rows.append(empty | {k: v for k, v in total.items() if k in empty})
    seconds, size = (median(list(part)) for part in zip(*map(_without_final, tuned), strict=True))
    report.ratios |= {
        "time: folds_of_alone": seconds / total["seconds"],
        "CPU time: tune_of_alone": costs(tuned)["cpu_seconds"] / total["cpu_seconds"],
        "bytes read: folds_of_alone": size / 1e6 / total["MB_read"],
    }
    report.notes.append(
        f"alone: {total['short_of_the_tolerance']} of {len(every)} used up their {args.max_passes} "
        "passes"
    )


def _without_a_fold(text: Path, folds: int, fold: int, out: Path) -> Path:
    """Copy all lines of a text but every `folds`-th one, from line `fold` on."""
    with text.open("rb") as lines, out.open("wb") as target:
        target.writelines(line for k, line in enumerate(lines) if k % folds != fold)
    return out


def _sums(done: list[Finished]) -> dict[str, float]:
    facts = [one.json() for one in done]
    return {
        "seconds": sum(one.seconds for one in done),
        "cpu_seconds": sum(one.cpu_seconds for one in done),
        "MB_read": sum(_bytes_of(one) for one in done) / 1e6,
        "passes": sum(one["passes"] for one in facts),
        "peak_MB": max(one.peak_bytes for one in done) / 1e6,
        "short_of_the_tolerance": sum(not one["converged"] for one in facts),
    }
