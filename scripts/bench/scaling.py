"""Benchmark of --scale: predictions of rows that were held out."""

import argparse
import csv
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.commands import BUDGET, split, train
from scripts.bench.optima import write_text
from scripts.bench.registry import Registry, benchmark
from scripts.bench.tools import BenchError, Report, run_process, sbm_command, tell

BENCHMARKS: Registry = {}
SCALES = ("none", "maxabs", "std")
TRAIN, TEST = 40_000, 20_000  # rows that are made
Row = dict[str, Any]


def _clicks(draw: random.Random) -> Row:
    """Clicks on advertisements: numbers of all sizes, and words, some of them rare."""
    ad, keyword = (int(draw.paretovariate(a)) % n for a, n in ((0.6, 50_000), (0.7, 20_000)))
    row = {
        "hour": draw.randrange(24), "position": draw.randrange(1, 9),
        "budget": draw.choice([100, 1000, 10_000, 100_000]),
        "bid": round(draw.lognormvariate(0, 1), 2), "income": int(draw.gauss(55_000, 20_000)),
        "age": draw.choice(["", *range(18, 80)]), "quality": draw.choice(["", *range(1, 11)]),
        "ad": f"a{ad}", "keyword": f"k{keyword}", "campaign": f"c{draw.randrange(300)}",
        "device": draw.choice(["mobile", "desktop", "tablet"]),
        "country": draw.choice(["US", "DE", "FR", "GB", "NA"]),
    }  # fmt: skip
    score = 0.6 * (row["device"] == "mobile") - 0.25 * row["position"] - 1.0
    score += 0.8 * math.sin(ad) + 0.5 * math.cos(keyword) + 0.15 * (row["quality"] or 0)
    return _labelled(draw, row, score)


def _counts(draw: random.Random) -> Row:
    """Rows in the form of Criteo's: 13 counts, some of them huge, and 26 columns of words."""
    counts: list[Any] = [
        "" if draw.random() < 0.2 else int(draw.paretovariate(0.5)) - 1 for _ in range(13)
    ]
    codes = [int(draw.paretovariate(0.5 + 0.05 * k)) % (3 * 10 ** (1 + k % 5)) for k in range(26)]
    score = 0.2 * math.log1p(counts[0] or 0) + 0.3 * (codes[0] % 7 + codes[5] % 5) - 2.7
    row = {f"I{k}": count for k, count in enumerate(counts)}
    return _labelled(draw, row | {f"C{k}": f"w{code}" for k, code in enumerate(codes)}, score)


def _city(draw: random.Random) -> Row:
    """An income and one of 8,000 cities."""
    income, city = max(0, int(draw.gauss(55_000, 20_000))), draw.randrange(8000)
    score = income / 20_000 - 2.75 + 0.5 * (city % 7 - 3)
    return _labelled(draw, {"income": income, "city": f"c{city}"}, 1.7 * score)


def _numbers(draw: random.Random) -> Row:
    """Numbers of different size, and no words."""
    row = {
        "age": draw.randrange(18, 81), "income": int(draw.gauss(55_000, 20_000)),
        "children": min(9, int(draw.expovariate(0.8))), "km": round(draw.lognormvariate(2, 1), 2),
        "rate": round(draw.random() / 100, 6),
    }  # fmt: skip
    score = (row["age"] - 49) / 18 + (row["income"] - 55_000) / 20_000
    score += 0.3 * math.log(1 + row["km"]) - 0.7 * row["children"] + 200 * row["rate"] - 1
    return _labelled(draw, row, 1.5 * score)


TABLES: dict[str, Callable[[random.Random], Row]] = {
    "clicks: 7 columns of numbers, 5 of words": _clicks,
    "13 counts and 26 columns of words": _counts,
    "income, and one of 8,000 cities": _city,
    "5 columns of numbers": _numbers,
}
ABALONE = "abalone, more than 9 rings: 8 numbers"


@benchmark(
    BENCHMARKS, runs=0,
    options={"reference": None, "costs": [1.0, 0.1, 0.01]}, quick={"costs": [1.0]},
)  # fmt: skip
def scaling(args: argparse.Namespace, report: Report) -> None:
    """Predictions of rows that were held out, by --scale.

    --loss log_loss --intercept, to a certified gap of 1e-3. AUC and log loss of rows that were not
    trained on. The tables are made (scripts/bench/scaling.py): 40,000 rows to train on, and 20,000
    others; abalone: 70 % of the rows, and the others.
    """
    if args.quick == (args.reference is not None):
        raise BenchError("either --reference FOLDER or --quick is needed")
    for row in _rows(args):
        report.rows.append(row)
        if args.prefix is not None:
            replace(report, machine=dict(report.machine)).write(args.prefix)


def _rows(args: argparse.Namespace) -> Iterator[Row]:
    for name, make in TABLES.items():
        texts, shrink = [], 40 if args.quick else 1
        for seed, n in enumerate((TRAIN, TEST)):
            texts.append(args.folder / f"{seed}.csv")
            _write(texts[-1], make, seed, n // shrink)
        yield from _compared(args, name, *texts, label="label")
    if not args.quick:
        yield from _compared(args, ABALONE, *_abalone(args))


def _compared(
    args: argparse.Namespace, name: str, text: Path, test: Path, **options: Any
) -> Iterator[Row]:
    store, model = args.folder / "scaling.sbm", args.folder / "m.model"
    split(text, store, **options)
    for C in args.costs:
        for scale in SCALES:
            tell(f"{name}, C = {C:g}, {scale}")
            facts = train(
                store, model, "--intercept", codes=BUDGET, loss="log_loss", C=C, scale=scale
            ).json()
            line = sbm_command("predict", model, test, "--probability", "--json")
            found = run_process(line).json()
            yield {
                "data": name, "scale": scale, "C": C, "auc": found["auc"],
                "log_loss": found["log_loss"], "passes": facts["passes"],
                "relative_gap": facts["relative_gap"],
            }  # fmt: skip


def _labelled(draw: random.Random, row: Row, score: float) -> Row:
    return {"label": "yes" if draw.random() < 1 / (1 + math.exp(-score)) else "no", **row}


def _write(text: Path, make: Callable[[random.Random], Row], seed: int, n: int) -> None:
    draw = random.Random(seed)
    with text.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(make(random.Random(0))))
        writer.writeheader()
        writer.writerows(make(draw) for _ in range(n))


def _abalone(args: argparse.Namespace) -> list[Path]:
    text = args.folder / "abalone.svm"
    write_text(args.reference, "abalone", text)
    lines = [line.split(" ", 1) for line in text.read_text("ascii").splitlines()]
    order = np.random.default_rng(0).permutation(len(lines))
    parts = np.split(order, [len(lines) * 7 // 10])
    paths = [args.folder / f"abalone-{k}.svm" for k in range(2)]
    for path, part in zip(paths, parts, strict=True):
        rows = (lines[k] for k in part)
        path.write_text("".join(f"{'1' if float(y) > 9 else '-1'} {x}\n" for y, x in rows))
    return paths
