"""Table C.1, table 2 and figure 2 of Alber et al. (2016): Weston-Watkins, by pairs of classes.

    python -m scripts.papers.ww --data letter.svm --unit news20.svm -o results/paper-ww

Test error and sparsity of Weston-Watkins over C by two solvers: by rows (ours, for Shark's) and by
pairs of classes (`--class-blocks`, the paper's); and of Crammer-Singer and one against the rest.
Then the speed-up of several threads that divide the classes among themselves. The test half of
``NAME.svm`` is ``NAME.t.svm`` beside it, or a random fifth of the rows. Rows of a text given by
`--unit` are brought to length 1 first.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.blocks import bench_class_blocks
from scripts.bench.classes import PAPER_ERRORS, halves
from scripts.bench.data import parse
from scripts.bench.evaluate import error_rate, read_our_classifier
from scripts.bench.multiclass import count_labels
from scripts.bench.ours import remove
from scripts.bench.tools import BenchError, Report, tell
from scripts.papers.data import make_toy
from scripts.papers.tools import Axes, Claim, Curve, Experiment, judge, run, words
from scripts.papers.training import split_seconds

PAPER = "WW 2016"
SOLVERS: dict[str, dict[str, Any]] = {
    "WW by rows": {"loss": "weston_watkins"},
    "WW by pairs": {"loss": "weston_watkins", "class_blocks": 1024},  # a class each
    "CS": {"loss": "crammer_singer"},
    "OVR": {"loss": "hinge"},
}
WW = ("WW by rows", "WW by pairs")
# Table C.1: share of the weights that are not 0, in percent, by the paper's solver and by Shark's.
PAPER_SPARSITY = {
    "letter": {0.1: (100.0, 100.0), 1.0: (100.0, 100.0), 10.0: (100.0, 100.0)},
    "news20": {0.1: (51.16, 49.72), 1.0: (44.74, 42.70), 10.0: (45.97, 43.47)},
}
SAME, NEAR = 0.15, 1.0  # points of test error: of two solvers; of other data or halves
SPARSER = 3.0  # points between the paper's two solvers


def unit_length(text: Path, out: Path) -> Path:
    """Bring every row of a text to length 1."""
    with out.open("w", encoding="ascii") as file:
        for labels, indptr, ids, values in parse(text):
            for k, label in enumerate(labels):
                row = slice(int(indptr[k]), int(indptr[k + 1]))
                length = float(np.sqrt((values[row] ** 2).sum())) or 1.0
                pairs = zip(ids[row].tolist(), (values[row] / length).tolist(), strict=True)
                file.write(f"{label:g} {' '.join(f'{i}:{v:.7g}' for i, v in pairs)}\n")
    return out


def _table(args: Namespace, text: Path) -> list[dict[str, Any]]:
    """Table C.1 of one text: a row a solver and cost."""
    train_text, test_text, held = halves(text, args.folder)
    store, model = args.folder / "ww.sbm", args.folder / "ww.model"
    split_seconds(train_text, store, args.blocks, "auto")
    rows = []
    for name, options in SOLVERS.items():
        for C in args.C:
            tell(f"{text.name}, {name}, C = {C:g}")
            found = _train(args, store, model, {**options, "C": C})
            classifier = read_our_classifier(model)
            paper = PAPER_ERRORS.get(text.stem, {}) if name in WW else {}
            sparse = (
                PAPER_SPARSITY.get(text.stem, {}).get(C, (None, None)) if paper else (None,) * 2
            )
            rows.append({
                "data": text.stem, "test": "held out" if held else test_text.name,
                "solver": name, "C": C, "error_percent": 100 * error_rate(test_text, classifier),
                "not_0_percent": 100 * float(np.count_nonzero(classifier.W) / classifier.W.size),
                "paper_error": paper.get(C), "paper_not_0": sparse[name == "WW by rows"],
                "relative_gap": found["relative_gap"], "passes": found["passes"],
                "seconds": found["seconds"]["total"],
            })  # fmt: skip
    return rows


def _train(args: Namespace, store: Path, model: Path, options: dict[str, Any]) -> dict[str, Any]:
    import sbm

    remove(model, model.with_name(model.name + ".run"))
    common = {"mem": args.mem, "tol": args.tol, "max_passes": args.max_passes}
    return sbm.train(store, model, sbm.Settings(**common, **options))[1]


# ------------------------------------------------------------------------------------------ claims


def _by(rows: list[dict[str, Any]], solver: str, cell: str) -> dict[float, Any]:
    """A cell of a solver's rows by C."""
    return {row["C"]: row[cell] for row in rows if row["solver"] == solver}


def _claims_of(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    """What table C.1 and table 2 say, of one text."""
    data = rows[0]["data"]
    errors = {name: _by(rows, name, "error_percent") for name in SOLVERS}
    full = {name: _by(rows, name, "not_0_percent") for name in SOLVERS}
    here = {name: list(found.values()) for name, found in errors.items()}
    costs = list(errors["OVR"])
    apart = [abs(errors[WW[0]][C] - errors[WW[1]][C]) for C in costs]
    spread = [abs(full[WW[0]][C] - full[WW[1]][C]) for C in costs]
    yield Claim(
        PAPER, "4, C, table C.1", "the solver by pairs is exact: errors as the other solver's",
        data, f"by rows and by pairs at most {SAME} points apart (paper: 0.07) at each C; models "
        f"as sparse within {SPARSER} points (paper: 2.5)",
        f"errors by rows {_list(here[WW[0]])}, by pairs {_list(here[WW[1]])}; sparsity at most "
        f"{max(spread):.2g} apart",
        judge(*(value <= SAME for value in apart), max(spread) <= SPARSER),
    )  # fmt: skip
    paper = {C: value for C, value in _by(rows, WW[0], "paper_error").items() if value}
    if paper:
        yield Claim(
            PAPER, "C, table C.1", "test errors of Weston-Watkins", data,
            f"within {NEAR} points of {_list(paper.values())} at C = {_list(paper)}",
            f"{_list(errors[WW[0]][C] for C in paper)}",
            judge(*(abs(errors[WW[0]][C] - paper[C]) <= NEAR for C in paper)),
        )  # fmt: skip
    best = {name: min(here[name]) for name in ("WW by rows", "CS", "OVR")}
    yield Claim(
        PAPER, "4.3, table 2", "Crammer-Singer and Weston-Watkins predict better than OVR", data,
        "the best error over C is lower, of each (paper: of all four sets of LSHTC)",
        words(best.items()),
        judge(best["CS"] < best["OVR"], best["WW by rows"] < best["OVR"]),
    )  # fmt: skip
    yield Claim(
        PAPER, "4.3, table 2",
        "Crammer-Singer predicts as well as Weston-Watkins or slightly better", data,
        "the best error of CS over C is at most 0.5 points above that of WW",
        words((name, best[name]) for name in ("WW by rows", "CS")),
        judge(best["CS"] <= best["WW by rows"] + 0.5),
    )  # fmt: skip
    dense = {name: max(full[name].values()) for name in ("WW by rows", "CS", "OVR")}
    if min(dense.values()) < 99:  # a dense text has no sparse models
        least = {name: min(full[name].values()) for name in dense}
        yield Claim(
            PAPER, "4.3, table 2", "models of CS and WW are sparser than those of OVR", data,
            "fewer weights that are not 0, each at its sparsest C",
            f"percent: {words(least.items())}",
            judge(least["CS"] < least["OVR"], least["WW by rows"] < least["OVR"]),
        )  # fmt: skip


def _list(values: Any) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _speed_up(args: Namespace, text: Path, report: Report) -> list[Claim]:
    """Figure 2: the same training on more and more threads."""
    inner = Report("class-blocks", "")
    some = Namespace(**vars(args))
    some.data, some.C, some.tol, some.max_passes = [text], 1.0, 1e-9, args.speed_passes
    some.rounds, some.split_mem = "auto", None
    bench_class_blocks(some, inner)
    report.tables["threads that divide the classes (figure 2)"] = inner.rows
    rows = inner.rows[-len(args.threads) :]
    curve = [
        {
            "data": text.stem, "method": "sbm", "threads": threads,
            "speed_up": rows[0]["total"] / row["total"],
        }
        for threads, row in zip(args.threads, rows, strict=True)
    ]  # fmt: skip
    linear = [{**row, "method": "linear", "speed_up": row["threads"]} for row in curve]
    report.tables["curves"] = [*curve, *linear]
    if len(curve) < 2:
        return []
    steps = [(b["threads"] / a["threads"], b["speed_up"] / a["speed_up"])
             for a, b in pairwise(curve)]  # fmt: skip
    return [
        Claim(
            PAPER, "4.2, figure 2", "near linear speed-up, up to 8 machines", text.stem,
            "at least 0.8 of the linear one for each step of threads, and more than 1.2 times",
            words((f"{row['threads']} threads", row["speed_up"]) for row in curve),
            judge(*(got >= 0.8 * asked for asked, got in steps), *(got > 1.2 for _, got in steps)),
        )
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------- command


def measure(args: Namespace, report: Report) -> list[Claim]:
    """Fill the tables of every text."""
    texts = list(_texts(args, report))
    claims: list[Claim] = []
    curves: Curve = []
    for text in texts:
        count_labels(text)
        rows = _table(args, text)
        report.rows += rows
        claims += _claims_of(rows)
    if not args.no_speed_up:
        claims += _speed_up(args, texts[-1], report)
        curves = report.tables["curves"]
    report.tables["curves"] = curves
    report.notes = [
        (
            "paper: Alber et al. 2016, table C.1; letter is the same data, news20 is the paper's "
            "training half, of which a fifth is held out here, with rows of length 1"
        ),
        "not 0: share of the weights; of a sparse text the less the better",
        "speed-up: threads of one process, of the last text, C = 1",
    ]
    return claims


def _texts(args: Namespace, report: Report) -> Iterator[Path]:
    """Give every text, brought to unit length where that is asked for."""
    for path in (*args.data, *args.unit):
        if not path.is_file():
            raise BenchError(f"{path}: no such file")
    report.data["name"] = ", ".join(path.name for path in (*args.data, *args.unit))
    if args.unit:
        report.data["of_unit_length"] = ", ".join(path.name for path in args.unit)
    yield from args.data
    for path in args.unit:
        yield unit_length(path, args.folder / path.name)
    if not args.data and not args.unit:
        report.data["name"] = "a toy"
        yield make_toy(args.folder / "toy.svm", 400, 4, real=True)


def _options(parser: ArgumentParser) -> None:
    for name, what in (("--data", ""), ("--unit", ", whose rows are brought to length 1")):
        parser.add_argument(
            name, type=Path, action="append", default=[], metavar="TEXT",
            help=f"LIBSVM text of several labels{what}; may be repeated; default: a toy",
        )  # fmt: skip
    parser.add_argument(
        "-C", dest="C", type=float, nargs="+", default=[0.1, 1.0, 10.0], metavar="C",
        help="default: 0.1 1 10, as in the paper",
    )  # fmt: skip
    parser.add_argument("--blocks", type=int, default=4, metavar="M", help="of a store")
    parser.add_argument("--mem", default="2GB", metavar="SIZE")
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--max-passes", type=int, default=200, metavar="N")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="of the speed-up")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="T")
    parser.add_argument("--class-blocks", type=int, default=4, metavar="N", help="of the speed-up")
    parser.add_argument("--speed-passes", type=int, default=10, metavar="N", help="of the speed-up")
    parser.add_argument("--no-speed-up", action="store_true")


PAPER_WW = Experiment(
    "paper-ww",
    "Weston-Watkins by pairs of classes: Alber et al. 2016, tables C.1 and 2, figure 2",
    measure,
    (_options,),
    (Axes("threads", "speed_up", "threads", "times as fast as the first", y_log=False),),
    {"C": [0.1, 1.0], "tol": 1e-2, "max_passes": 20, "no_speed_up": True, "mem": "1GB"},
)

if __name__ == "__main__":
    sys.exit(run(PAPER_WW, __doc__ or ""))
