"""The three data sets of the SBM paper: given as text, or replaced by a similar generated text.

`prep`      which of ten prepositions stood here: made from any prose (``data.prep``)
`webspam`   trigrams of characters in rows of unit length, few free support vectors: which of some
            folders is a passage from (``data.trigrams``); by default the documentation inside
            installed packages
`kddcup10`  many rows, few nonzeros, many free support vectors: synthetic (``data.synthetic``)
"""

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scripts.bench.data import hold_out, labels_of
from scripts.bench.tools import BenchError, Report, run_process, script_command, tell

HELD_OUT = 0.1
TOY, TOY_BLOCKS = 60, 4  # features and blocks of a toy
# Which of these is a passage from: the first one, or another?
PACKAGES = ("scipy", "numpy", "sklearn", "pandas", "matplotlib")


@dataclass(frozen=True)
class Problem:
    """A data set and how it is trained on."""

    name: str  # of the paper's data set
    text: Path
    test: Path
    loss: str
    C: float
    blocks: int  # of BMD
    tol: float  # gap of a training to the optimum
    made: str = ""  # what it was made by; nothing if it was given

    @property
    def title(self) -> str:
        """Name for tables."""
        return f"{self.name}-like" if self.made else self.name


@dataclass(frozen=True)
class DataSet:
    """One of the paper's."""

    # ``make(args, text, test)`` writes a text like it; what was asked of the maker
    make: Callable[[argparse.Namespace, Path, Path], str]
    loss: str
    cost: float  # C in the paper
    # C for the text that is made: as many of its rows have a free alpha then as in the paper
    made_cost: float
    blocks: int
    tol: float  # gap of a training to the optimum that does not take too long


def _make(name: str, text: Path, *options: str | float | Path) -> str:
    """Run a maker; return what was asked for, without places."""
    run_process(script_command(name, "-o", text, *options))
    said = [str(word) for word in options if not isinstance(word, Path)]
    return " ".join([name, *said])


def _make_prep(args: argparse.Namespace, text: Path, test: Path) -> str:
    given = ("--classes", "ten", "--max-rows", args.rows)
    return _make("data.prep", text, *given, "--test-out", test)


def _make_webspam(args: argparse.Namespace, text: Path, test: Path) -> str:
    found = filter(None, map(importlib.util.find_spec, PACKAGES))
    folders = [Path(str(spec.origin)).parent for spec in found]
    given = ("--classes", "first", "--values", "tfidf", "--min-count", 2)
    names = ", ".join(folder.name for folder in folders)
    return f"{_make('data.trigrams', text, *given, '--test-out', test, *folders)} of {names}"


def _make_kddcup10(args: argparse.Namespace, text: Path, test: Path) -> str:
    whole = text.with_name("whole.svm")
    shape = ("--rows", args.rows, "--features", args.rows // 2, "--nnz", 20, "--power", 0.6)
    asked = _make("data.synthetic", whole, *shape, "--noise", 0.05, "--values", "real")
    for made, wanted in zip(hold_out(whole, HELD_OUT, text.parent), (text, test), strict=True):
        made.rename(wanted)
    whole.unlink()
    return asked


DATA_SETS = {
    "webspam": DataSet(_make_webspam, "hinge", 64.0, 0.1, 12, 1e-6),
    "kddcup10": DataSet(_make_kddcup10, "hinge", 0.1, 0.1, 12, 1e-5),
    "prep": DataSet(_make_prep, "crammer_singer", 0.1, 0.1, 15, 1e-4),
}


def make_toy(path: Path, rows: int, classes: int, real: bool) -> Path:
    """Write a few rows whose labels a linear model can nearly learn, faster than the makers do."""
    truth = np.random.default_rng(classes).standard_normal((TOY, classes))
    rng = np.random.default_rng(rows)
    lines = []
    for _ in range(rows):
        ids = np.sort(rng.choice(TOY, 12, replace=False))
        values = rng.random(12) if real else np.ones(12)
        label = int((values @ truth[ids]).argmax()) + 1
        label = label if rng.random() > 0.05 else int(rng.integers(classes)) + 1
        name = f"{label}" if classes > 2 else f"{2 * label - 3:+d}"
        lines.append(" ".join([name, *map("{}:{:.4g}".format, ids + 1, values)]) + "\n")
    path.write_text("".join(lines))
    return path


def problems(args: argparse.Namespace, report: Report, C: float = 0.0) -> Iterator[Problem]:
    """Give the data sets one after the other, and say in the report what they are.

    C is used instead of the paper's if it is not 0. Raises `BenchError` if there is no such set, or
    it has not as many labels as the loss needs.
    """
    texts, tests = dict(args.data), dict(args.test)
    for name in args.sets:
        if name not in DATA_SETS:
            raise BenchError(f"{name}: not one of {', '.join(DATA_SETS)}")
        folder = args.folder / name
        folder.mkdir()
        problem = _given(name, texts, tests, folder) or _made(name, args, folder)
        problem = replace(problem, C=C or problem.C)
        labels = labels_of(problem.text)
        wants_two = problem.loss == "hinge"
        if (len(np.unique(labels)) == 2) != wants_two:
            raise BenchError(f"{problem.text.name} has not {'two' if wants_two else 'many'} labels")
        report.data[name] = problem.made or problem.text.name
        report.data[f"{name}_rows"] = len(labels)
        yield problem


def _given(
    name: str, texts: dict[str, Path], tests: dict[str, Path], folder: Path
) -> Problem | None:
    kind, text = DATA_SETS[name], texts.get(name)
    if text is None:
        return None
    train, test = (text, tests[name]) if name in tests else hold_out(text, HELD_OUT, folder)
    return Problem(name, train, test, kind.loss, kind.cost, kind.blocks, kind.tol)


def _made(name: str, args: argparse.Namespace, folder: Path) -> Problem:
    """Make a text like one of the paper's, or find the one that was made and kept."""
    kind = DATA_SETS[name]
    if args.keep:
        folder = args.keep / name
        folder.mkdir(parents=True, exist_ok=True)
    text, test, note = (folder / file for file in ("data.svm", "data.t.svm", "made.txt"))
    if not note.is_file():
        tell(f"making a text like {name}")
        note.write_text(_make_toys(args, kind, text, test) or kind.make(args, text, test), "utf-8")
    asked = note.read_text("utf-8").strip()
    blocks = TOY_BLOCKS if args.quick else kind.blocks
    return Problem(name, text, test, kind.loss, kind.made_cost, blocks, kind.tol, asked)


def _make_toys(args: argparse.Namespace, kind: DataSet, text: Path, test: Path) -> str:
    """Make small ones, if they are wanted."""
    if not args.quick:
        return ""
    classes, real = (2, True) if kind.loss == "hinge" else (4, False)
    for path, rows in ((text, args.rows), (test, args.rows // 4)):
        make_toy(path, rows, classes, real)
    return f"a toy of {args.rows} rows"
