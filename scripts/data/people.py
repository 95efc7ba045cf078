"""Make the table of the README: people.csv, and new.csv to predict.

python -m scripts.data.people [FOLDER]
"""

import csv
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS = {"people.csv": 53_999, "new.csv": 6_001}

Row = dict[str, Any]


def person(draw: random.Random) -> Row:
    """Draw numbers of different size, and no words."""
    row = {
        "age": draw.randrange(18, 81), "income": int(draw.gauss(55_000, 20_000)),
        "children": min(9, int(draw.expovariate(0.8))), "km": round(draw.lognormvariate(2, 1), 2),
        "rate": round(draw.random() / 100, 6),
    }  # fmt: skip
    score = (row["age"] - 49) / 18 + (row["income"] - 55_000) / 20_000
    score += 0.3 * math.log(1 + row["km"]) - 0.7 * row["children"] + 200 * row["rate"] - 1
    return labelled(draw, row, 1.5 * score)


def labelled(draw: random.Random, row: Row, score: float) -> Row:
    """Put a label that is drawn by a score before the other columns."""
    return {"label": "yes" if draw.random() < 1 / (1 + math.exp(-score)) else "no", **row}


def write_table(
    out: Path, rows: int, make: Callable[[random.Random], Row], draw: random.Random
) -> None:
    """Write rows as CSV, with a title line."""
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(make(random.Random(0))))
        writer.writeheader()
        writer.writerows(make(draw) for _ in range(rows))


if __name__ == "__main__":
    drawn = random.Random(0)
    for name, rows in ROWS.items():
        write_table(Path(*sys.argv[1:2], name), rows, person, drawn)
