"""Table 2 and figures 1, 2 of Hsieh et al. (2008), figure 1 of Fan et al. (2008): DCD in memory."""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.data import Floats, hold_out, labels_of, make_text, positive_label
from scripts.bench.learners import Learner
from scripts.bench.plot import Axes
from scripts.bench.registry import Option, Registry, benchmark, existing
from scripts.bench.tools import Report, tell, timed
from scripts.bench.trajectory import NEVER, Examiner, Look, watch
from scripts.papers.data import make_toy
from scripts.papers.tools import Claims, Curve, first_at, words
from scripts.papers.training import split_seconds, store_of

EXPERIMENTS: Registry = {}
DCD, LIBLINEAR = "DCD 2008", "LIBLINEAR 2008"
HELD_OUT = 0.2
LOSSES = {"L1": ("hinge", 1), "L2": ("squared_hinge", 2)}  # our name, and the power
SOLVERS = {"L1": {"LIBLINEAR DCD": 3}, "L2": {"LIBLINEAR DCD": 1, "LIBLINEAR TRON": 2}}
CLOSE, CLOSER = 1e-2, 1e-3  # of the optimum: equation (20), and where shrinking shows
NEAR = 0.5  # points below the accuracy of the optimum
FEW = 20  # rows a feature: from there on n << l

# Table 2 of Hsieh et al.: seconds to within 1 %, DCDL1, Pegasos, DCDL2, TRON.
PAPER = {
    "a9a": (0.2, 1.1, 0.4, 0.1),
    "real-sim": (0.2, 2.4, 0.1, 0.9),
    "news20.binary": (0.5, 10.3, 0.2, 5.2),
    "rcv1": (2.6, 21.9, 2.7, 18.6),
}
IN_PAPER = {("L1", "DCD"): 0, ("L1", "Pegasos"): 1, ("L2", "DCD"): 2, ("L2", "LIBLINEAR TRON"): 3}


class Bench:
    """One text, cut in two, and what is measured on it."""

    def __init__(self, args: Namespace, text: Path, folder: Path) -> None:
        positive_label(text)  # there are two
        self.args, self.name, self._folder = args, text.stem, folder
        self._train, self._test = hold_out(text, HELD_OUT, folder)
        self._store, self._model = folder / "one.sbm", folder / "one.model"
        split_seconds(self._train, self._store, 1, "auto")
        self._rows = Examiner(self._store, self._train)
        self._unseen = Examiner(self._store, self._test)
        store = store_of(self._store)
        self._ids = store.read_feature_ids()
        self.shape = {"rows": store.n_rows, "features": len(self._ids), "nonzeros": store.nnz}

    @property
    def has_few_features(self) -> bool:
        """Whether there are far more rows than features."""
        return bool(self.shape["rows"] > FEW * self.shape["features"])

    def curves(self, kind: str, C: float, with_peers: bool = True) -> dict[str, Curve]:
        """Curves of every method at one loss and cost."""
        tell(f"{self.name}, {kind}, C = {C:g}")
        loss, power = LOSSES[kind]
        self._looks: dict[str, Look] = {
            "primal": partial(self._rows.primal, C=C, power=power),
            "accuracy": self._unseen.accuracy,
        }
        options = {"loss": loss, "C": C, "mem": self.args.mem}
        found = {
            "DCD": self._ours({**options, "screen": False}),
            "DCD-S": self._ours({**options, "screen": True}),
        }
        if with_peers:
            for name, solver in SOLVERS[kind].items():
                found[name] = self._liblinear(solver, C)
            if kind == "L1":
                found["Pegasos"] = self._pegasos(C)
        best = self._optimum(options)
        return {name: [self._row(kind, name, row, best) for row in found[name]] for name in found}

    def _ours(self, options: dict[str, Any]) -> Curve:
        plain = {"cache_frac": 0.0, "policy": "none", "rounds": 1, "tol": NEVER}
        some = {**options, **plain, "max_passes": self.args.max_passes}
        watch(self._store, self._model, {**some, "max_passes": 1}, {})  # compiles
        points = watch(self._store, self._model, some, self._looks)
        solved = np.cumsum([point["solve"] for point in points])
        visits = np.cumsum([point["visits"] for point in points])
        return [
            {**point, "pass": k + 1, "seconds": float(solved[k]), "visits": int(visits[k])}
            for k, point in enumerate(points)
        ]

    def _liblinear(self, solver: int, C: float) -> Curve:
        """LIBLINEAR at falling tolerances; a training each."""
        from liblinear import liblinearutil as peer

        signs, X = self._rows.signed()
        problem, points = peer.problem(signs, X), []
        for e in self.args.e:
            parameter = peer.parameter(f"-q -s {solver} -c {C!r} -e {e!r}")
            trained: list[Any] = []
            seconds = timed(lambda: trained.append(peer.train(problem, parameter)))  # noqa: B023
            weights = np.ctypeslib.as_array(trained[0].w, shape=(X.shape[1],)).copy()
            W = (weights * trained[0].get_labels()[0])[:, None]
            points.append({"pass": None, "visits": None, "seconds": seconds, **self._seen(W)})
        return points

    def _pegasos(self, C: float) -> Curve:
        from sbm import Model

        points = []
        pegasos = Learner("pegasos", {"lambda": 1 / (C * self.shape["rows"])})
        labels = sorted(set(labels_of(self._train).tolist()))
        pegasos.run(self._test, self._model, labels)  # compiles
        for passes in self.args.online_passes:
            facts = pegasos.run(self._train, self._model, labels, passes).json()
            W = Model.load(self._model).weights_of(self._ids)
            seconds = facts["seconds"]["learn"]
            points.append({"pass": passes, "visits": None, "seconds": seconds, **self._seen(W)})
        return points

    def _seen(self, W: Floats) -> dict[str, float]:
        return {name: look(W) for name, look in self._looks.items()}

    def _optimum(self, options: dict[str, Any]) -> dict[str, float]:
        """Primal value and accuracy of a training to a small gap."""
        some = {"tol": self.args.tol, "max_passes": self.args.most_passes, "rounds": "auto"}
        return watch(self._store, self._model, options | some, self._looks)[-1]

    def _row(self, kind: str, name: str, row: dict[str, Any], best: dict[str, float]) -> Any:
        return {
            "data": f"{self.name}, {kind}", "method": name, "pass": row["pass"],
            "seconds": row["seconds"], "visits": row["visits"], "primal": row["primal"],
            "error": max(row["primal"] / best["primal"] - 1, 1e-9),
            "accuracy": row["accuracy"],
            "accuracy_difference": 100 * (best["accuracy"] - row["accuracy"]),
        }  # fmt: skip


# ------------------------------------------------------------------------------------------ claims


def _to(curves: dict[str, Curve], level: float, along: str) -> dict[str, float]:
    """Where each method is first so close to the optimum."""
    return {
        name: first_at(curve, "error", level, along)
        for name, curve in curves.items()
        if curve[0][along] is not None
    }


def _judge(bench: Bench, by_loss: dict[str, dict[str, Curve]], report: Report) -> None:
    """Judge what the papers say of each text."""
    claims = Claims(report, DCD, "5, table 2")
    soon = {kind: _to(curves, CLOSE, "seconds") for kind, curves in by_loss.items()}
    dual, data = ("DCD", "LIBLINEAR DCD"), bench.name
    said = "; ".join(f"{kind} {words(found.items())}" for kind, found in soon.items())
    tron = soon["L2"]["LIBLINEAR TRON"]
    claims.add(
        "DCD is faster than Pegasos to within 1 % of the optimum", data,
        "L1: ours and LIBLINEAR's sooner than Pegasos (paper: 5 to 20 times)", f"seconds: {said}",
        *(soon["L1"][name] < soon["L1"]["Pegasos"] for name in dual),
    )  # fmt: skip
    here = f"seconds: {words(soon['L2'].items())}"
    if bench.has_few_features:
        claims.add(
            "with far fewer features than rows TRON is faster than DCD, L2", data,
            "TRON sooner than DCD, ours and LIBLINEAR's (paper, a9a: 0.1 and 0.4 s)", here,
            *(tron < soon["L2"][name] for name in dual),
        )  # fmt: skip
    else:
        claims.add(
            "DCD is faster than TRON to within 1 % of the optimum", data,
            "L2: ours and LIBLINEAR's sooner than TRON (paper: 6 to 40 times)", here,
            *(soon["L2"][name] < tron for name in dual),
        )  # fmt: skip
    visits = {kind: _to(curves, CLOSER, "visits") for kind, curves in by_loss.items()}
    claims.add(
        "with shrinking DCD is faster still", data,
        f"fewer visits of rows to {CLOSER:g} (20) where rows at rest are left out, L1 and L2",
        "; ".join(f"{kind} {words(found.items())}" for kind, found in visits.items()),
        *(found["DCD-S"] < found["DCD"] for found in visits.values()), where="5, figure 1",
    )  # fmt: skip
    passes = {kind: _to(curves, CLOSER, "pass")["DCD"] for kind, curves in by_loss.items()}
    claims.add(
        "DCD converges faster for L2 than for L1", data, f"no more passes to {CLOSER:g} (20)",
        words(passes.items()),
        bool(np.isfinite(passes["L2"]) and passes["L2"] <= passes["L1"]), where="5, figure 1",
    )  # fmt: skip
    took = {
        kind: {
            name: first_at(curve, "accuracy_difference", NEAR, "seconds")
            for name, curve in curves.items()
        }
        for kind, curves in by_loss.items()
    }
    claims.add(
        "DCD reaches a reasonable test accuracy sooner", data,
        f"DCD is {NEAR} points below the optimum's accuracy before Pegasos (L1), TRON (L2)",
        "seconds: " + "; ".join(f"{kind} {words(one.items())}" for kind, one in took.items()),
        took["L1"]["DCD"] < took["L1"]["Pegasos"],
        took["L2"]["DCD"] < took["L2"]["LIBLINEAR TRON"], where="5, figure 2",
    )  # fmt: skip
    default, pegasos = took["L1"]["LIBLINEAR DCD"], took["L1"]["Pegasos"]
    Claims(report, LIBLINEAR, "4, figure 1").add(
        "LIBLINEAR quickly has the accuracy of the optimum, before Pegasos", data,
        f"LIBLINEAR -s 3 within {NEAR} points of it, sooner than Pegasos",
        words([("LIBLINEAR", default), ("Pegasos", pegasos)]), default < np.inf, default < pegasos,
    )  # fmt: skip


def _judge_costs(bench: Bench, args: Namespace, report: Report) -> None:
    """Train at a large cost, too."""
    passes = {}
    for C in (args.C / 10, args.C, args.C * 10):
        curves = bench.curves("L1", C, with_peers=False)
        passes[f"C {C:g}"] = _to(curves, CLOSE, "pass")["DCD"]
    counts = list(passes.values())
    Claims(report, DCD, "5").add(
        "DCD is slower when C is large", bench.name,
        f"passes to {CLOSE:g} (20) never fall as C grows, and are more in the end",
        words(passes.items()), counts[0] <= counts[1] <= counts[2], counts[0] < counts[2],
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- command


@benchmark(
    EXPERIMENTS, runs=0,
    options={
        "data": Option(Path, "LIBSVM text with two labels; default: generated", [], repeated=True),
        "rows": 500_000, "C": 1.0, "max_passes": 30, "mem": "4GB", "tol": 1e-6,
        "most_passes": Option(int, "to the optimum", 1000), "online_passes": [1, 5, 20],
        "e": [10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001],
    },
    quick={"rows": 500, "max_passes": 3, "tol": 1e-2, "e": [1.0, 0.1], "online_passes": [1]},
    axes=(
        Axes("seconds", "error", "seconds of solving", "primal above the optimum (20)", x_log=True),
        Axes("visits", "error", "visits of rows (ours)", "primal above the optimum (20)"),
        Axes("seconds", "accuracy_difference", "seconds of solving",
             "accuracy below the optimum's, points", x_log=True, least=0.01),
    ),
)  # fmt: skip
def dcd(args: Namespace, report: Report) -> None:
    """Dual coordinate descent in memory: Hsieh et al. 2008, table 2, figures 1 and 2.

    A store of one block that fits in memory, no cache, one round: that is dual coordinate descent,
    a pass an iteration. L1: hinge loss, L2: the squared one; no bias. Of every text the last fifth
    of the lines is held out. to 1 %: until the primal value is so near the optimum, equation (20).

    DCD: our kernel in memory, every row visited in every pass; DCD-S: rows at rest left out;
    seconds: of solving alone, decoding and screening are done behind it; LIBLINEAR: its DCD (-s 3,
    -s 1; with shrinking) and TRON (-s 2), seconds of its training by its library, rows in memory,
    one training for each tolerance.

    Pegasos: that of scripts.papers.learners, lambda 1/(C l), seconds of learning alone.

    paper: seconds of Hsieh et al., table 2, where the text is of the same name.
    """
    report.tables["claims"] = []
    table: Curve = []
    report.tables["curves"] = table
    for number, text in enumerate(args.data or [_make(args, report)]):
        folder = args.folder / str(number)
        folder.mkdir()
        bench = Bench(args, existing(text), folder)
        by_loss = {kind: bench.curves(kind, args.C) for kind in LOSSES}
        for kind, curves in by_loss.items():
            table += [row for curve in curves.values() for row in curve]
            report.rows += _rows_of(bench, kind, curves)
        _judge(bench, by_loss, report)
        _judge_costs(bench, args, report)
    if args.data:
        report.data["name"] = ", ".join(text.name for text in args.data)


def _rows_of(bench: Bench, kind: str, curves: dict[str, Curve]) -> list[dict[str, Any]]:
    """Table 2 of the paper: a row a solver."""
    seconds = _to(curves, CLOSE, "seconds")
    paper = PAPER.get(bench.name)
    rows = []
    for name, curve in curves.items():
        place = IN_PAPER.get((kind, name))
        passes = first_at(curve, "error", CLOSE, "pass") if name.startswith("DCD") else None
        rows.append({
            "data": bench.name, **bench.shape, "loss": kind, "solver": name,
            "seconds_to_1_%": seconds[name] if np.isfinite(seconds[name]) else None,
            "passes_to_1_%": passes if passes is not None and np.isfinite(passes) else None,
            "least_error": min(row["error"] for row in curve),
            "accuracy": 100 * curve[-1]["accuracy"],
            "paper_seconds": paper[place] if paper and place is not None else None,
        })  # fmt: skip
    return rows


def _make(args: Namespace, report: Report) -> Path:
    """Make a text."""
    text: Path = args.folder / "synthetic.svm"
    if args.quick:
        report.data["name"] = f"a toy of {args.rows} rows"
        return make_toy(text, args.rows, 2, real=True)
    shape = ("--rows", args.rows, "--features", args.rows // 4, "--nnz", 20)
    report.data["name"] = make_text(text, *shape, "--power", 0.8)
    return text
