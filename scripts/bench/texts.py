"""The data of the results: one row each, made once, at its size or at a toy size."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard

from scripts.bench.data import make_text
from scripts.bench.tools import ROOT, BenchError, run_process, script_command, tell
from scripts.data.people import Row, labelled, person, write_table

QUICK_ROWS = 600


@dataclass(frozen=True)
class Data:
    """A text: one of these makes it."""

    what: str  # for the pages
    rows: int = 0  # at most so many; 0: all
    shape: str = ""  # options of ``scripts.data.synthetic``
    reference: str = ""  # set of ``--reference``; ``_binary`` at its end: label 1 against the rest
    make: Callable[[Path, int], None] | None = None


def unpack_reference(folder: Path | None, name: str, out: Path, rows: int) -> None:
    """Unpack a set, or so many of its rows."""
    stem = name.removesuffix("_binary")
    packed = folder / f"{stem}.svm.zst" if folder else None
    if packed is None or not packed.is_file():
        raise BenchError(f"the set {stem} is missing; give --reference FOLDER")
    with zstandard.open(packed, "rt", encoding="ascii") as lines, out.open("w") as target:
        for line in itertools.islice(lines, rows or None):
            if stem != name:
                label, _, features = line.partition(" ")
                line = f"{'+1' if label.strip() == '1' else '-1'} {features.strip()}\n"
            target.write(line)


def _income(out: Path, rows: int) -> None:
    """Write an age, an income that is not scaled, and a city."""
    draw = np.random.default_rng(0)
    age, city = draw.integers(18, 81, rows), draw.integers(0, 10, rows)
    income = draw.normal(50_000, 15_000, rows).round(2)
    scores = (age - 45) / 20 + (income - 50_000) / 12_000 + (city - 4.5) / 7.5
    labels = np.where(scores + 0.8 * draw.logistic(size=rows) > 0, 1, -1)
    found = zip(labels, age, income, city, strict=True)
    out.write_text("".join(f"{y} 1:{a} 2:{i} {3 + c}:1\n" for y, a, i, c in found))


def _table(out: Path, rows: int) -> None:
    """Write 30 real columns of two classes."""
    draw = np.random.default_rng(1)
    X = draw.normal(size=(rows, 30)).round(4)
    y = np.where(X @ draw.normal(size=30) + 2 * draw.logistic(size=rows) > 0, 1.0, -1.0)
    line = "{:.0f} " + " ".join(f"{k + 1}:{{:.4g}}" for k in range(30)) + "\n"
    with out.open("w", encoding="ascii") as target:
        target.writelines(line.format(*row) for row in np.column_stack([y, X]))


def _trigrams(out: Path, rows: int) -> None:
    """Write trigrams of the sources of numpy: rows of unit length."""
    words = ("-o", out, "--values", "tfidf", "--classes", "first")
    run_process(script_command("data.trigrams", Path(str(np.__file__)).parent, *words))
    lines = out.read_bytes().splitlines(keepends=True)[: rows or None]
    out.write_bytes(b"".join(lines))


# ------------------------------------------------------------------------------ tables of people


def _clicks(draw: random.Random) -> Row:
    """Clicks on advertisements: numbers of all sizes, and words, some of them rare."""
    ad, keyword = (int(draw.paretovariate(a)) % n for a, n in ((0.6, 50_000), (0.7, 20_000)))
    row = {
        "hour": draw.randrange(24), "position": draw.randrange(1, 9),
        "budget": draw.choice([100, 1000, 10_000, 100_000]),
        "income": int(draw.gauss(55_000, 20_000)), "age": draw.choice(["", *range(18, 80)]),
        "ad": f"a{ad}", "keyword": f"k{keyword}", "campaign": f"c{draw.randrange(300)}",
        "device": draw.choice(["mobile", "desktop", "tablet"]),
    }  # fmt: skip
    score = 0.6 * (row["device"] == "mobile") - 0.25 * row["position"] - 0.6
    return labelled(draw, row, score + 0.8 * math.sin(ad) + 0.5 * math.cos(keyword))


def _clicks_table(out: Path, rows: int) -> None:
    write_table(out, rows, _clicks, random.Random(0))


def _people_table(out: Path, rows: int) -> None:
    write_table(out, rows, person, random.Random(0))


def _mixed(out: Path, rows: int) -> None:
    """Write the clicks as LIBSVM text: numbers as they are, and a feature for each word."""
    draw, ids = random.Random(0), dict[str, int]()
    with out.open("w", encoding="ascii") as target:
        for _ in range(rows):
            row = _clicks(draw)
            label = "+1" if row.pop("label") == "yes" else "-1"
            pairs = {}
            for name, value in row.items():
                word = isinstance(value, str)
                if value != "":
                    key = ids.setdefault(f"{name}={value}" if word else name, len(ids) + 1)
                    pairs[key] = 1 if word else value
            target.write(f"{label} {' '.join(f'{k}:{pairs[k]}' for k in sorted(pairs))}\n")


ONES = "--features 200000 --nnz 10 --power 0.8"
DATA = {
    "ones": Data("300,000 short rows of ones", 300_000, ONES),
    "reals": Data("long rows of reals", 20_000,
                  "--features 30000 --nnz 300 --power 0.5 --values real"),
    "digits": Data("digits, 10 classes", 40_000,
                   "--features 780 --nnz 150 --values real --classes 10 --own 0.6"),
    "mixed": Data("numbers and words of a table", 40_000, make=_mixed),
    "classes": Data("100 classes", 30_000,
                    "--features 20000 --nnz 30 --classes 100 --own 0.5"),
    "ill": Data("columns of very different size", 20_000, make=_income),
    "tiny": Data("40 rows: the start-up"),
    "remedies": Data("synthetic rows, half of them free", 40_000,
                     "--features 8000 --nnz 15 --noise 0"),
    "columns": Data("30 real columns", 200_000, make=_table),
    "clicks.csv": Data("clicks: 5 columns of numbers, 4 of words", 60_000, make=_clicks_table),
    "numbers.csv": Data("5 columns of numbers", 60_000, make=_people_table),
    "trigrams": Data("trigrams of source text", 20_000, make=_trigrams),
} | {
    name: Data(what, reference=reference)
    for name, what, reference in (
        ("text", "1,039,571 rows of real text", "prep_small_binary"),
        ("text.t", "the test rows of `text`", "prep_small.t_binary"),
        ("ten", "the same rows, 10 classes", "prep_small"),
        ("ten.t", "the test rows of `ten`", "prep_small.t"),
        ("medium", "2,631,191 rows of real text", "prep_medium_binary"),
        ("medium.t", "the test rows of `medium`", "prep_medium.t_binary"),
        ("a9a", "a9a", "a9a"), ("a9a.t", "its test rows", "a9a.t"),
        ("farm_ads", "farm_ads", "farm_ads"), ("news20", "news20", "news20"),
        ("letter", "letter", "letter"), ("letter.t", "its test rows", "letter.t"),
        ("pendigits", "pendigits", "pendigits_scale"),
        ("pendigits.t", "its test rows", "pendigits_scale.t"),
        ("phishing", "phishing", "phishing"), ("abalone", "abalone", "abalone"),
        ("housing", "housing", "housing_scale"),
    )
}  # fmt: skip
# What stands for a set at toy size, where no reference is needed.
TOY = "--features 300 --nnz 10 --power 0.5"
MANY = ("ten", "ten.t", "news20", "letter", "letter.t", "pendigits", "pendigits.t")


def text_of(name: str, folder: Path, reference: Path | None = None, quick: bool = False) -> Path:
    """Return the text of a name, made once in a folder. Raises `BenchError` if it cannot be."""
    one = DATA[name]
    out = folder / (name if name.endswith(".csv") else f"{name}.svm")
    if out.exists():
        return out
    tell(f"making {out.name}")
    folder.mkdir(parents=True, exist_ok=True)
    half, rows = out.with_suffix(".part"), min(one.rows, QUICK_ROWS) if quick else one.rows
    if name == "tiny":
        half.write_bytes((ROOT / "data/sample.svm").read_bytes())
    elif quick and (one.reference or name == "trigrams"):
        shape = TOY + (" --classes 4" if name in MANY else "")
        make_text(half, "--rows", QUICK_ROWS, *shape.split())
    elif one.reference:
        unpack_reference(reference, one.reference, half, rows)
    elif one.make is not None:
        one.make(half, rows)
    else:
        run_process(
            script_command("data.synthetic", "-o", half, "--rows", rows, *one.shape.split())
        )
    half.rename(out)
    return out
