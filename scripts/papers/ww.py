"""Table C.1 and table 2 of Alber et al. (2016): Weston-Watkins."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.commands import remove
from scripts.bench.data import Floats, count_labels, halves, labels_of, parse
from scripts.bench.tools import Report, tell
from scripts.bench.weights import accuracy, read_ours
from scripts.papers.data import make_toy
from scripts.papers.schedule import MACHINES, by_pairs
from scripts.papers.tools import Claims, words
from scripts.papers.training import split_seconds

Rows = list[dict[str, Any]]

PAPER = "WW 2016"
WW = "WW by rows"
SOLVERS: dict[str, dict[str, Any]] = {
    WW: {"loss": "weston_watkins"},
    "CS": {"loss": "crammer_singer"},
    "OVR": {"loss": "hinge"},
}
# Table C.1 of Alber et al. (2016), Weston-Watkins: test error in percent by set and C.
PAPER_ERRORS = {
    "letter": {0.1: 28.25, 1.0: 29.04, 10.0: 28.92},
    "news20": {0.1: 15.32, 1.0: 14.80, 10.0: 15.98},
}
# Table C.1: share of the weights that are not 0, in percent, by Shark's solver.
PAPER_SPARSITY = {
    "letter": {0.1: 100.0, 1.0: 100.0, 10.0: 100.0},
    "news20": {0.1: 49.72, 1.0: 42.70, 10.0: 43.47},
}
NEAR = 1.0  # points of test error, of other data or halves
NEAR_LINEAR = 0.8  # of the number of machines
NEAR_OPTIMUM = 0.01  # of the certified optimum, after the passes of the schedule


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
            found_model = read_ours(model)
            paper = PAPER_ERRORS.get(text.stem, {}) if name == WW else {}
            sparsity = PAPER_SPARSITY.get(text.stem, {}) if name == WW else {}
            rows.append({
                "data": text.stem, "test": "held out" if held else test_text.name,
                "solver": name, "C": C,
                "error_percent": 100 * (1 - accuracy(test_text, found_model)),
                "not_0_percent": 100 * float(np.count_nonzero(found_model.W) / found_model.W.size),
                "paper_error": paper.get(C), "paper_not_0": sparsity.get(C),
                "relative_gap": found["relative_gap"], "passes": found["passes"],
                "primal": found["primal"],
                "seconds": found["seconds"]["total"],
            })  # fmt: skip
    return rows


def _train(args: Namespace, store: Path, model: Path, options: dict[str, Any]) -> dict[str, Any]:
    import sbm

    remove(model, model.with_name(model.name + ".run"))
    common = {"mem": args.mem, "tol": args.tol, "max_passes": args.max_passes}
    return sbm.train(store, model, sbm.Settings(**common, **options))[1]


# ------------------------------------------------------------------------------------------ claims


def _judge(rows: list[dict[str, Any]], claims: Claims, labels: Floats) -> None:
    """Judge what table C.1 and table 2 say, of one text with these labels to test."""

    def by_cost(solver: str, cell: str) -> dict[float, Any]:
        return {row["C"]: row[cell] for row in rows if row["solver"] == solver}

    data, one_row = rows[0]["data"], 100 / len(labels)
    errors = {name: by_cost(name, "error_percent") for name in SOLVERS}
    full = {name: by_cost(name, "not_0_percent") for name in SOLVERS}
    paper = {C: value for C, value in by_cost(WW, "paper_error").items() if value}
    if paper:
        claims.add(
            "test errors of Weston-Watkins", data,
            f"within {NEAR} points of {_list(paper.values())} at C = {_list(paper)}",
            _list(errors[WW][C] for C in paper),
            *(abs(errors[WW][C] - paper[C]) <= NEAR for C in paper), where="C, table C.1",
            why="other rows are tested: the paper's test half is not at hand, so a fifth of the "
            "training half is held out, and the models learn from the rest",
        )  # fmt: skip
    best = {name: min(errors[name].values()) for name in SOLVERS}
    claims.add(
        "Crammer-Singer and Weston-Watkins predict better than OVR", data,
        "the best error over C is lower, of each (paper: of all four sets of LSHTC)",
        words(best.items()), best["CS"] < best["OVR"], best[WW] < best["OVR"],
        why=f"with {len(set(labels))} classes, not thousands, all three are within "
        f"{max(best.values()) - min(best.values()):.2g} points; one test row is {one_row:.2g}",
    )  # fmt: skip
    claims.add(
        "Crammer-Singer predicts as well as Weston-Watkins or slightly better", data,
        "the best error of CS over C is at most 0.5 points above that of WW",
        words((name, best[name]) for name in (WW, "CS")), best["CS"] <= best[WW] + 0.5,
        why=f"one test row is {one_row:.2g} points",
    )  # fmt: skip
    if min(max(full[name].values()) for name in SOLVERS) < 99:  # a dense text has no sparse models
        least = {name: min(full[name].values()) for name in SOLVERS}
        claims.add(
            "models of CS and WW are sparser than those of OVR", data,
            "fewer weights that are not 0, each at its sparsest C",
            f"percent: {words(least.items())}",
            least["CS"] < least["OVR"], least[WW] < least["OVR"],
            why=f"with {len(set(labels))} classes, a weight is 0 only if no support vector of any "
            "class has the feature; OVR has fewer support vectors for each",
        )  # fmt: skip


def _judge_schedule(args: Namespace, text: Path, rows: Rows, claims: Claims) -> Rows:
    """Run the schedule at the middle cost, and judge its optimum and its speed-up by counts."""
    C, found = args.C[len(args.C) // 2], []
    for name in (WW, "CS"):
        loss = SOLVERS[name]["loss"]
        tell(f"{text.name}, {loss} by pairs of classes, C = {C:g}")
        (row,) = (row for row in rows if row["solver"] == name and row["C"] == C)
        goal, train_text = (1 - NEAR_OPTIMUM) * row["primal"], halves(text, args.folder)[0]
        one = by_pairs(train_text, loss, C, args.iterations, goal)
        dual, speed = one["duals"][-1], one["speed_up"]
        away = (row["primal"] - dual) / row["primal"]
        pairs = one["classes"] // 2
        found.append({
            "data": text.stem, "loss": loss, "C": C, "iterations": len(one["duals"]),
            "classes": one["classes"], "dual": dual, "primal_by_rows": row["primal"],
            "below_primal": away, **{f"speed_up_{P}": speed[P] for P in MACHINES},
        })  # fmt: skip
        claims.add(
            "the solver by pairs is exact", f"{text.stem}, {loss}",
            f"in {args.iterations} iterations its dual value comes to {NEAR_OPTIMUM:.0%} below the "
            "certified objective of the solver by rows, and not above it",
            f"{away:.2g} below after {len(one['duals'])}",
            away <= NEAR_OPTIMUM, away >= -1e-9, where="4, C, table C.1",
            why=f"{args.iterations} iterations are too few at C = {C:g}",
        )  # fmt: skip
        claims.add(
            "near linear speed-up up to 8 machines, less beyond", f"{text.stem}, {loss}",
            f"by multiply-adds of the busiest machine: at least {NEAR_LINEAR:g} P at P = 2, 4, 8, "
            "and a smaller share of P at 16",
            words((f"P = {P}", speed[P]) for P in MACHINES),
            all(speed[P] >= NEAR_LINEAR * P for P in MACHINES[:3]),
            speed[16] / 16 < speed[8] / 8, where="4.2, figure 2",
            why=f"a round has {pairs} meetings, of different sizes, for all machines",
        )  # fmt: skip
    return found


def _list(values: Any) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


# ----------------------------------------------------------------------------------------- command


SETTINGS = {
    "C": [0.1, 1.0, 10.0], "blocks": 4, "mem": "2GB", "tol": 1e-3, "max_passes": 3000,
    "iterations": 100,
}  # fmt: skip
QUICK = {"C": [0.1, 1.0], "tol": 1e-2, "max_passes": 20, "mem": "1GB"}


def ww(args: Namespace, report: Report) -> None:
    """Weston-Watkins: Alber et al. 2016, tables C.1 and 2, figure 2.

    Test error and sparsity over C of Weston-Watkins by rows, of Crammer-Singer and of one against
    the rest. The test half of NAME.svm is NAME.t.svm beside it, or a random fifth of the rows.

    paper: Alber et al. 2016, table C.1; letter is the same data, news20 is the paper's training
    half, of which a fifth is held out here, with rows of length 1.

    not 0: share of the weights; of a sparse text the less the better.

    schedule: their solver, pairs of classes in the rounds of a 1-factorisation, and its form for
    Crammer-Singer; speed-up by multiply-adds of the busiest of P machines.
    """
    claims = Claims(report, PAPER, "4.3, table 2")
    for text in list(_texts(args, report)):
        count_labels(text)
        rows = _table(args, text)
        report.rows += rows
        _judge(rows, claims, labels_of(halves(text, args.folder)[1]))
        report.tables.setdefault("schedule", []).extend(_judge_schedule(args, text, rows, claims))


def _texts(args: Namespace, report: Report) -> Iterator[Path]:
    """Yield every text, brought to unit length where that is asked for."""
    given = [path for _, path in (*args.data, *args.unit)]
    report.data["name"] = ", ".join(path.name for path in given) or "a toy"
    if args.unit:
        report.data["of_unit_length"] = ", ".join(path.name for _, path in args.unit)
    for number, path in enumerate(given):
        is_unit = number >= len(args.data)
        yield unit_length(path, args.folder / path.name) if is_unit else path
    if not given:
        yield make_toy(args.folder / "toy.svm", 400, 4, real=True)
