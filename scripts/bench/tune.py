"""Benchmark of tuning: all values of C on one stream, beside one training and many alone."""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench.ours import (
    BUDGET,
    remove,
    split,
    splitting_options,
    train,
    training_options,
    tune,
    warm_training,
)
from scripts.bench.tools import (
    Finished,
    Report,
    alternate,
    median,
    median_ratio,
    run_process,
    sbm_command,
    tell,
)

# What tuning may cost, as so many times one training.
TARGETS = {"seconds": 10, "cpu_seconds": 10, "bytes_read": 2}
WORDS = {"seconds": "time", "cpu_seconds": "CPU time", "bytes_read": "bytes read"}


def without_a_fold(text: Path, folds: int, fold: int, out: Path) -> Path:
    """Copy all lines of a text but every `folds`-th one, from line `fold` on."""
    with text.open("rb") as lines, out.open("wb") as target:
        target.writelines(line for k, line in enumerate(lines) if k % folds != fold)
    return out


def bench_tune(args: argparse.Namespace, report: Report) -> None:
    """Time one training and ``sbm tune``, whole processes on one store, taking turns.

    With ``--alone`` each model of each fold is trained by itself, too, once, for the values of C
    that the tuning tried.
    """
    tell("splitting")
    store, model = args.folder / "tune.sbm", args.folder / "tune.model"
    split(args.data, store, **splitting_options(args))
    alone = args.folder / "alone.model"
    one = training_options(args, loss=args.loss)
    many = {**one, "C": args.grid, "folds": args.folds}
    warm_training(args, store, alone, **one)
    tune(store, model, codes=BUDGET, **many | {"C": args.C, "folds": 2, "max_passes": 1})
    tasks = {
        "one": partial(train, store, alone, codes=BUDGET, **one),
        "tune": partial(tune, store, model, codes=BUDGET, **many),
    }
    runs = alternate(tasks, args.runs)
    found = runs["tune"][-1].json()
    metric = found["metric"]
    accuracies = [_figure(path, args.test, metric) for path in (alone, model)]
    report.rows = _describe(args, runs["one"], runs["tune"], f"test_{metric}", accuracies)
    report.tables["values of C, all folds on one stream"] = [
        {"C": f"{row['C']:g}", metric: row["mean"], "std": row["std"], "passes": row["passes"],
         "seconds_of_solving": row["seconds"], "relative_gap": row["relative_gap"],
         "status": row["status"] + ", the best" * (row["C"] == found["best"])}
        for row in found["settings"]
    ]  # fmt: skip
    report.tables["tune of one training"] = list(_compare(runs["one"], runs["tune"], report.ratios))
    report.notes = [
        f"best C: {found['best']:g}; {_left_out(found['settings'])}",
        (
            "one training: sbm train to --tol, process; tune: sbm tune, process, its folds to ten "
            "times --tol; the seconds of its two parts are those that it reports, without the "
            "start of Python, and its CPU seconds are those of the process"
        ),
        "the targets: at most 10 times the time and CPU time of one training, 2 times its bytes",
        f"test {metric}: of the model on all rows, of C {args.C:g} and of the best C",
    ]
    if args.alone:
        remove(store)
        values = [row["C"] for row in found["settings"] if row["status"] != "not tried"]
        _train_alone(args, values, runs["tune"], report)


def _figure(model: Path, test: Path, metric: str) -> float:
    """A metric of predictions, by ``sbm predict``."""
    return float(run_process(sbm_command("predict", model, test, "--json")).json()[metric])


def _left_out(settings: list[dict[str, Any]]) -> str:
    """Which values were given up, not tried, or not trained to the tolerance."""
    names = {
        "given up": "given up",
        "not tried": "not tried",
        "not converged": "short of the tolerance",
    }
    parts = []
    for status, words in names.items():
        values = [f"{row['C']:g}" for row in settings if row["status"] == status]
        parts.append(f"{words}: {', '.join(values) or 'none'}")
    return "; ".join(parts)


def _bytes_of(done: Finished) -> float:
    """Bytes read, by a training or by both parts of a tuning."""
    facts = done.json()
    return float(facts["bytes_read"] + facts.get("train", {"bytes_read": 0})["bytes_read"])


def _costs(done: Finished) -> dict[str, float]:
    """What a process costs."""
    return {
        "seconds": done.seconds, "cpu_seconds": done.cpu_seconds, "bytes_read": _bytes_of(done)
    }  # fmt: skip


def _costs_of_folds(done: Finished) -> dict[str, float]:
    """What a tuning costs without its final training, as far as that is known."""
    facts = done.json()
    final = float(facts["seconds"]["train"])
    return {"seconds": done.seconds - final, "bytes_read": float(facts["bytes_read"])}


def _describe(
    args: argparse.Namespace,
    trained: list[Finished],
    tuned: list[Finished],
    metric: str,
    figures: list[float],
) -> list[dict[str, Any]]:
    """The table: one training, and a tuning whole and in parts."""
    single, whole = trained[-1].json(), tuned[-1].json()
    reports = [done.json() for done in tuned]
    folds = median([facts["seconds"]["tune"] for facts in reports])
    final = median([facts["seconds"]["train"] for facts in reports])
    last = whole["train"]

    def row(what: str, seconds: float, size: float, passes: int, figure: Any, **more: Any) -> Any:
        cells = {"what": what, "seconds": seconds, "cpu_seconds": None, "MB_read": size / 1e6}
        return cells | {"passes": passes, "peak_MB": None, metric: figure} | more

    def outside(done: list[Finished]) -> dict[str, float]:
        return {
            "seconds": median([run.seconds for run in done]),
            "cpu_seconds": median([run.cpu_seconds for run in done]),
            "peak_MB": median([run.peak_bytes for run in done]) / 1e6,
        }

    count = f"{len(whole['settings'])} values, {args.folds} folds"
    best = f"the best C, {whole['best']:g}"
    size = _bytes_of(tuned[-1])
    return [
        row(f"one training, C {args.C:g}", 0.0, single["bytes_read"], single["passes"], figures[0])
        | outside(trained),
        row(f"tune: {count}", folds, whole["bytes_read"], whole["passes"], None),
        row(f"tune: training of {best}", final, last["bytes_read"], last["passes"], figures[1]),
        row("tune, together", 0.0, size, whole["passes"] + last["passes"], figures[1])
        | outside(tuned),
    ]


def _compare(
    trained: list[Finished], tuned: list[Finished], ratios: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """Yield a tuning's costs as so many times those of one training; add them to the ratios."""
    below, above = [_costs(done) for done in trained], [_costs(done) for done in tuned]
    folds = [_costs_of_folds(done) for done in tuned]
    for name, target in TARGETS.items():
        one = [cost[name] for cost in below]
        ratio = median_ratio([cost[name] for cost in above], one)
        ratios[f"{WORDS[name]}: tune_of_one_training"] = ratio
        parts = [cost[name] for cost in folds if name in cost]
        yield {
            "of": WORDS[name], "together": ratio,
            "without_the_final_training": median_ratio(parts, one) if parts else None,
            "target": target, "met": ratio <= target,
        }  # fmt: skip


# ---------------------------------------------------------------------------------- models alone


def _train_alone(
    args: argparse.Namespace, values: list[float], tuned: list[Finished], report: Report
) -> None:
    """Train each value on each fold by itself, once; compare the sums with a tuning."""
    done: dict[float, list[Finished]] = {C: [] for C in values}
    for fold, C, finished in _alone(args, values):
        tell(f"alone: fold {fold + 1} of {args.folds}, C {C:g}, {finished.seconds:.1f} s")
        done[C].append(finished)
    report.tables["each model alone, sums over the folds"] = [
        {"C": f"{C:g}", **_sums(mine),
         "passes": max(one.json()["passes"] for one in mine),
         "converged": all(one.json()["converged"] for one in mine)}
        for C, mine in done.items()
    ]  # fmt: skip
    every = [one for mine in done.values() for one in mine]
    total = _sums(every)
    report.rows.append(
        dict.fromkeys(report.rows[0])
        | {"what": f"{len(every)} models alone", **total}
        | {"passes": sum(one.json()["passes"] for one in every)}
        | {"peak_MB": max(one.peak_bytes for one in every) / 1e6}
    )
    folds = [_costs_of_folds(one) for one in tuned]
    seconds, size = (median([cost[name] for cost in folds]) for name in ("seconds", "bytes_read"))
    cpu = median([one.cpu_seconds for one in tuned])
    report.ratios |= {
        "time: folds_of_alone": seconds / total["seconds"],
        "CPU time: tune_of_alone": cpu / total["cpu_seconds"],
        "bytes read: folds_of_alone": size / 1e6 / total["MB_read"],
    }
    short = sum(not one.json()["converged"] for one in every)
    report.notes.append(
        f"alone: sbm train to {_looser() * args.tol:g}, the tolerance of tune's folds, as "
        f"processes, one after the other, measured once; the splits do not count; {short} of "
        f"{len(every)} used up their {args.max_passes} passes; values that tune did not try are "
        "left out; a fold is one line of "
        f"{args.folds} in turn, of tune a hash of the row; folds of alone: without the final "
        "training, which the CPU time of tune includes"
    )


def _alone(args: argparse.Namespace, values: list[float]) -> Iterator[tuple[int, float, Finished]]:
    """Yield fold, C and the process of each model."""
    store, model = args.folder / "fold.sbm", args.folder / "fold.model"
    for fold in range(args.folds):
        text = without_a_fold(args.data, args.folds, fold, args.folder / "fold.svm")
        split(text, store, **splitting_options(args))
        remove(text)
        for C in values:
            options = training_options(args, C=C, loss=args.loss, tol=_looser() * args.tol)
            yield fold, C, train(store, model, codes=BUDGET, **options)


def _looser() -> float:
    """How many times the tolerance folds are trained to."""
    from sbm.programs.tuning.state import LOOSER

    return float(LOOSER)


def _sums(done: list[Finished]) -> dict[str, float]:
    costs = [_costs(one) for one in done]
    return {
        "seconds": sum(cost["seconds"] for cost in costs),
        "cpu_seconds": sum(cost["cpu_seconds"] for cost in costs),
        "MB_read": sum(cost["bytes_read"] for cost in costs) / 1e6,
    }
