"""Table 2 and figures 1, 2 of Hsieh et al. (2008), figure 1 of Fan et al. (2008): DCD in memory."""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.data import Floats, hold_out, make_text, positive_label
from scripts.bench.plot import Axes
from scripts.bench.tools import Report, tell, timed
from scripts.bench.trajectory import Examiner, Look, watch
from scripts.papers.data import make_toy
from scripts.papers.tools import Claims, Curve, first_at, told, words
from scripts.papers.training import split_seconds, store_of

DCD, LIBLINEAR = "DCD 2008", "LIBLINEAR 2008"
HELD_OUT = 0.2
LOSSES = {"L1": ("hinge", 1), "L2": ("squared_hinge", 2)}  # our name, and the power
SOLVERS = {"L1": {"LIBLINEAR DCD": 3}, "L2": {"LIBLINEAR DCD": 1, "LIBLINEAR TRON": 2}}
CLOSE, CLOSER = 1e-2, 1e-3  # of the optimum: equation (20), and where shrinking shows
MANY = 100_000  # passes: no method needs as many
SHOWN = sorted({round(1.1**k) for k in range(130)})  # passes that are looked at
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

    def curves(
        self, kind: str, C: float, mark: float = CLOSER, with_peers: bool = True
    ) -> dict[str, Curve]:
        """Curves of every method at one loss and cost, each until it is near the optimum."""
        tell(f"{self.name}, {kind}, C = {C:g}")
        loss, power = LOSSES[kind]
        self._looks: dict[str, Look] = {
            "primal": partial(self._rows.primal, C=C, power=power),
            "accuracy": self._unseen.accuracy,
        }
        options = {"loss": loss, "C": C, "mem": self.args.mem}
        best = self._optimum(options)
        found = {
            name: self._ours({**options, "screen": screen}, mark)
            for name, screen in (("DCD", False), ("DCD-S", True))
        }
        if with_peers:
            for name, solver in SOLVERS[kind].items():
                found[name] = self._liblinear(solver, C, best["primal"])
            if kind == "L1":
                found["Pegasos"] = self._pegasos(C, best["primal"])
        best["primal"] = min([best["primal"], *(p["primal"] for c in found.values() for p in c)])
        return {name: [self._row(kind, name, row, best) for row in found[name]] for name in found}

    def _ours(self, options: dict[str, Any], mark: float) -> Curve:
        """Train until the certified gap is below half of a mark."""
        rounds = ",".join(map(str, np.diff(SHOWN, prepend=0)))  # of passes that grow longer
        plain = {"cache_frac": 0.0, "rounds": rounds, "solver": "dual"}
        some = {**options, **plain, "tol": mark / 2, "max_passes": self.args.max_passes}
        watch(self._store, self._model, {**some, "max_passes": 1}, {})  # compiles
        points = watch(self._store, self._model, some, self._looks)
        solved = np.cumsum([point["solve"] for point in points])
        visits = np.cumsum([point["visits"] for point in points])
        done = [*SHOWN, *[SHOWN[-1]] * len(points)][: len(points)]
        if not options["screen"]:  # the last pass ends early
            done = [round(n / self.shape["rows"]) for n in visits]
        return [
            {**point, "pass": done[k], "seconds": float(solved[k]), "visits": int(visits[k])}
            for k, point in enumerate(points)
        ]

    def _liblinear(self, solver: int, C: float, best: float) -> Curve:
        """LIBLINEAR at falling tolerances, a training each, until it is near the optimum."""
        from liblinear import liblinearutil as peer

        signs, X = self._rows.signed()
        problem = peer.problem(signs, X)
        points: Curve = []
        for e in self.args.e:
            parameter = peer.parameter(f"-q -s {solver} -c {C!r} -e {e!r}")
            trained: list[Any] = []
            seconds = timed(lambda: trained.append(peer.train(problem, parameter)))  # noqa: B023
            weights = np.ctypeslib.as_array(trained[0].w, shape=(X.shape[1],)).copy()
            W = (weights * trained[0].get_labels()[0])[:, None]
            points.append({"pass": None, "visits": None, "seconds": seconds, **self._seen(W)})
            if points[-1]["primal"] <= best * (1 + CLOSER):
                break
        return points

    def _pegasos(self, C: float, best: float) -> Curve:
        """Pegasos over the rows in memory, until it is near the optimum or took long enough."""
        from scripts.papers.learners import Learner

        signs, X = self._rows.signed()
        rows = (X.indptr.astype(np.int64), (signs > 0).astype(np.int64), X.indices, X.data)
        cost, columns = 1 / (C * self.shape["rows"]), X.shape[1]
        Learner("pegasos", cost, 2).learn(*rows, columns)  # compiles
        pegasos, points, seconds = Learner("pegasos", cost, 2), Curve(), 0.0
        for passes in range(1, MANY):
            seconds += timed(lambda: pegasos.learn(*rows, columns))
            if passes in SHOWN or seconds > self.args.budget:
                points.append({"pass": passes, "visits": None, "seconds": seconds,
                               **self._seen(pegasos.W)})  # fmt: skip
                if points[-1]["primal"] <= best * (1 + CLOSE) or seconds > self.args.budget:
                    break
        return points

    def _seen(self, W: Floats) -> dict[str, float]:
        return {name: look(W) for name, look in self._looks.items()}

    def _optimum(self, options: dict[str, Any]) -> dict[str, float]:
        """Primal value and accuracy of a training to a small gap."""
        some = {"tol": self.args.tol, "max_passes": self.args.max_passes, "rounds": "auto"}
        return dict(watch(self._store, self._model, options | some, self._looks)[-1])

    def _row(self, kind: str, name: str, row: dict[str, Any], best: dict[str, float]) -> Any:
        return {
            "data": f"{self.name}, {kind}", "method": name, "pass": row["pass"],
            "seconds": row["seconds"], "visits": row["visits"], "primal": row["primal"],
            "error": max(row["primal"] / best["primal"] - 1, 1e-9),
            "accuracy": row["accuracy"],
            "accuracy_difference": 100 * (best["accuracy"] - row["accuracy"]),
            "free_rows": row.get("free_rows"),
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
    said = {kind: told(curves, "error", CLOSE, "seconds") for kind, curves in by_loss.items()}
    tron, length = soon["L2"]["LIBLINEAR TRON"], bench.shape["nonzeros"] / bench.shape["rows"]
    last = {kind: by_loss[kind]["DCD"][-1] for kind in by_loss}
    hard = (
        f"rows of {length:.0f} nonzeros in {bench.shape['features']:,} features are nearly "
        f"parallel, so DCD takes {last['L1']['pass']:,} (L1) and {last['L2']['pass']:,} (L2) "
        f"passes to a gap of {CLOSER / 2:g}"
    )
    least = min(row["error"] for row in by_loss["L1"]["LIBLINEAR DCD"])
    claims.add(
        "DCD is faster than Pegasos to within 1 % of the optimum", data,
        "L1: ours and LIBLINEAR's sooner than Pegasos (paper: 5 to 20 times)",
        f"seconds: {said['L1']}", *(soon["L1"][name] < soon["L1"]["Pegasos"] for name in dual),
        why=f"LIBLINEAR's trainings end {least:.1%} above the optimum or more: {hard}",
    )  # fmt: skip
    here = f"seconds: {said['L2']}"
    if bench.has_few_features:
        claims.add(
            "with far fewer features than rows TRON is faster than DCD, L2", data,
            "TRON sooner than DCD, ours and LIBLINEAR's (paper, a9a: 0.1 and 0.4 s)", here,
            *(tron < soon["L2"][name] for name in dual), why="the text is small: DCD needs "
            f"{first_at(by_loss['L2']['DCD'], 'error', CLOSE, 'pass'):.0f} passes only",
        )  # fmt: skip
    else:
        claims.add(
            "DCD is faster than TRON to within 1 % of the optimum", data,
            "L2: ours and LIBLINEAR's sooner than TRON (paper: 6 to 40 times)", here,
            *(soon["L2"][name] < tron for name in dual), why=hard,
        )  # fmt: skip
    visits = {kind: _to(curves, CLOSER, "visits") for kind, curves in by_loss.items()}
    passes = {kind: _to(curves, CLOSER, "pass") for kind, curves in by_loss.items()}
    more = "; ".join(f"{kind} {words(found.items())}" for kind, found in passes.items())
    claims.add(
        "with shrinking DCD is faster still", data,
        f"fewer visits of rows to {CLOSER:g} (20) where rows at rest are left out, L1 and L2",
        "; ".join(
            f"{kind} {told(_ours_of(curves), 'error', CLOSER, 'visits')}"
            for kind, curves in by_loss.items()
        ),
        *(found["DCD-S"] < found["DCD"] for found in visits.values()), where="5, figure 1",
        why="a row that was left out may have to move again, but only a pass later, so more passes "
        f"are needed: {more}",
    )  # fmt: skip
    free = {kind: row["free_rows"] / bench.shape["rows"] for kind, row in last.items()}
    claims.add(
        "DCD converges faster for L2 than for L1", data, f"no more passes to {CLOSER:g} (20)",
        words((kind, found["DCD"]) for kind, found in passes.items()),
        bool(np.isfinite(passes["L2"]["DCD"]) and passes["L2"]["DCD"] <= passes["L1"]["DCD"]),
        where="5, figure 1",
        why="alphas inside their bounds are those that DCD still has to balance: "
        f"{free['L1']:.0%} of the rows with L1, {free['L2']:.0%} with L2, whose alphas have no "
        "upper bound",
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
        f"DCD is {NEAR} points below the optimum's accuracy before Pegasos (L1)"
        + (", TRON (L2)" if not bench.has_few_features else "; not of TRON with few features"),
        "seconds: " + "; ".join(
            f"{kind} {told(curves, 'accuracy_difference', NEAR, 'seconds')}"
            for kind, curves in by_loss.items()
        ),
        took["L1"]["DCD"] < took["L1"]["Pegasos"],
        bench.has_few_features or took["L2"]["DCD"] < took["L2"]["LIBLINEAR TRON"],
        where="5, figure 2",
        why=f"{bench.shape['rows']:,} rows for {bench.shape['features']:,} features: a few steps "
        "of the other method, each over all rows, are enough for accuracy",
    )  # fmt: skip
    default, pegasos = took["L1"]["LIBLINEAR DCD"], took["L1"]["Pegasos"]
    Claims(report, LIBLINEAR, "4, figure 1").add(
        "LIBLINEAR quickly has the accuracy of the optimum, before Pegasos", data,
        f"LIBLINEAR -s 3 within {NEAR} points of it, sooner than Pegasos",
        words([("LIBLINEAR", default), ("Pegasos", pegasos)]), default < np.inf, default < pegasos,
        why="LIBLINEAR is timed as whole trainings, of which the loosest takes "
        f"{by_loss['L1']['LIBLINEAR DCD'][0]['seconds']:.2g} s, and Pegasos by the pass, "
        f"{by_loss['L1']['Pegasos'][0]['seconds']:.2g} s",
    )  # fmt: skip


def _ours_of(curves: dict[str, Curve]) -> dict[str, Curve]:
    return {name: curves[name] for name in ("DCD", "DCD-S")}


def _judge_costs(bench: Bench, args: Namespace, report: Report) -> None:
    """Train at a large cost, too."""
    curves = {
        f"C {C:g}": bench.curves("L1", C, CLOSE, with_peers=False)["DCD"]
        for C in (args.C / 10, args.C, args.C * 10)
    }
    counts = [first_at(curve, "error", CLOSE, "pass") for curve in curves.values()]
    Claims(report, DCD, "5").add(
        "DCD is slower when C is large", bench.name,
        f"passes to {CLOSE:g} (20) never fall as C grows, and are more in the end",
        told(curves, "error", CLOSE, "pass"), counts[0] <= counts[1] <= counts[2],
        counts[0] < counts[2], why="the optimum is near the start at each of them",
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- command


SETTINGS = {
    "rows": 500_000, "C": 1.0, "max_passes": MANY, "mem": "4GB", "tol": 1e-5,
    "budget": 30.0,  # maximum seconds of Pegasos
    "e": [10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5],  # of LIBLINEAR
}  # fmt: skip
QUICK = {"rows": 500, "max_passes": 30, "tol": 1e-2, "budget": 0.1}
AXES = (
    Axes("seconds", "error", "seconds of solving", "primal above the optimum (20)", x_log=True),
    Axes("visits", "error", "visits of rows (ours)", "primal above the optimum (20)"),
    Axes("seconds", "accuracy_difference", "seconds of solving",
         "accuracy below the optimum's, points", x_log=True, least=0.01),
)  # fmt: skip


def dcd(args: Namespace, report: Report) -> None:
    """Dual coordinate descent in memory: Hsieh et al. 2008, table 2, figures 1 and 2.

    A store of one block that fits in memory, without a cache: that is dual coordinate descent, and
    a round, here called a pass, is an iteration. L1: hinge loss, L2: the squared one; no bias. Of
    every text the last fifth of the lines is held out. to 1 %: until the primal value is so near
    the optimum, equation (20).

    DCD: our kernel in memory, every row visited in every pass; DCD-S: rows at rest left out;
    seconds: of solving alone, decoding and screening are done behind it; LIBLINEAR: its DCD (-s 3,
    -s 1; with shrinking) and TRON (-s 2), seconds of its training by its library, rows in memory,
    one training for each tolerance.

    Pegasos: that of scripts.papers.learners, lambda 1/(C l), rows in memory, seconds of learning
    alone; it ends after `budget` seconds.

    Every method goes on until its primal value is within 0.001 of the optimum, Pegasos within 0.01.

    paper: seconds of Hsieh et al., table 2, where the text is of the same name.
    """
    report.tables["claims"] = []
    table: Curve = []
    report.tables["curves"] = table
    texts = [path for _, path in args.data]
    for number, text in enumerate(texts or [_make(args, report)]):
        folder = args.folder / str(number)
        folder.mkdir()
        bench = Bench(args, text, folder)
        by_loss = {kind: bench.curves(kind, args.C) for kind in LOSSES}
        for kind, curves in by_loss.items():
            table += [row for curve in curves.values() for row in curve]
            report.rows += _rows_of(bench, kind, curves)
        _judge(bench, by_loss, report)
        _judge_costs(bench, args, report)
    if texts:
        report.data["name"] = ", ".join(text.name for text in texts)


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
