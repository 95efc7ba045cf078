"""Numbers at the edge: a true certificate and finite results, or one clear sentence.

Every problem is trained on rows that nobody should train on (values of 1e±30 and of the ends of
the range of a float, columns and rows that are equal, empty or alone) at costs, weights and
tolerances that nobody should choose. What comes out is judged by fractions of whole numbers
(`exact.py`): the objective at the weights, the dual value at the variables, the bounds.
A case is drawn from the seed and its number alone.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sbm
from sbm.errors import DataError, SbmError, SettingsError
from sbm.store.blocks import BlockStore
from scripts.torture.exact import Bounds, Certified, exact_bounds, watch_certificates
from scripts.torture.tally import Tally, Tell, WrongError

Array = npt.NDArray[Any]
Random = np.random.Generator

PASSES = 6  # enough for half of the cases; the others must say so
ROUNDING = 1e-9  # of what is added up, relative to the objective
LABELS = [7.0, -3.0, 2.0]


@dataclass(frozen=True)
class Kind:
    """Rows to train on: what is done with plain ones, and how values are stored."""

    change: Callable[[Array, Array, Random], tuple[Array, Array]]
    dtype: str = "float32"


def _times(*factors: float, dtype: str = "float32") -> Kind:
    """Columns get these factors, in turn."""
    return Kind(lambda X, y, r: (X * np.resize(np.array(factors), X.shape[1]), y), dtype)


def _values(change: Callable[[Array, Random], Array]) -> Kind:
    return Kind(lambda X, y, r: (change(X, r), y))


def _rare(X: Array, y: Array, random: Random) -> tuple[Array, Array]:
    """One row of its label against all others."""
    others = y[y != y[0]]
    if len(others):
        y[1:] = np.where(y[1:] == y[0], others[0], y[1:])
    return X, y


def _by_rows(X: Array, *factors: float) -> Array:
    return X * np.resize(np.array(factors), len(X))[:, np.newaxis]


KINDS: dict[str, Kind] = {
    "plain": _times(1.0),
    "ones": _values(lambda X, r: (X != 0).astype(float)),
    "1e30": _times(1e30),
    "1e-30": _times(1e-30),
    "1e±30 by columns": _times(1e30, 1e-30, 1.0),
    "1e±30 by rows": _values(lambda X, r: _by_rows(X, 1e-30, 1e30)),
    "a power of ten": _values(lambda X, r: X * 10.0 ** r.integers(-36, 37)),
    "1e9 beside 1": _times(1e9, 1.0, 1.0),
    "end of float32": _values(lambda X, r: X / max(abs(X).max(), 1e-300) * 3.4e38),
    "beyond float32": _times(1e39),
    "subnormal float32": _times(1e-42),
    "subnormal float64": _times(1e-320, dtype="float64"),
    "1e100": _times(1e100, dtype="float64"),
    "1e-100": _times(1e-100, dtype="float64"),
    "1e200, squares overflow": _times(1e200, dtype="float64"),
    "1e-200, squares vanish": _times(1e-200, dtype="float64"),
    "1e±300 by columns": _times(1e300, 1e-300, 1.0, 1e150, 1e-150, dtype="float64"),
    "a third empty": _values(lambda X, r: _by_rows(X, 0.0, 1.0, 1.0)),
    "all empty": _values(lambda X, r: 0 * X),
    "duplicates": Kind(lambda X, y, r: (np.repeat(X[:4], 10, axis=0), np.repeat(y[:4], 10))),
    "equal rows": _values(lambda X, r: 0 * X + X[abs(X).sum(axis=1).argmax()]),
    "equal columns": _values(lambda X, r: np.repeat(X[:, :1], X.shape[1], axis=1)),
    "one label": Kind(lambda X, y, r: (X, np.full(len(y), y[0]))),
    "one against all": Kind(_rare),
    "one row": Kind(lambda X, y, r: (X[:1], y[:1])),
    "targets of 1e30": Kind(lambda X, y, r: (X, y * 1e30)),
    "targets of 1e-30": Kind(lambda X, y, r: (X, y * 1e-30)),
    "targets of 1e200": Kind(lambda X, y, r: (X, y * 1e200)),
    "1e30 and targets of 1e30": Kind(lambda X, y, r: (1e30 * X, 1e30 * y)),
}

# (loss, labels: 0 for targets and 1 where none matter, settings)
PROBLEMS: list[tuple[str, int, dict[str, Any]]] = [
    ("hinge", 2, {}), ("hinge", 3, {}),
    ("squared_hinge", 2, {}), ("squared_hinge", 3, {}),
    ("log_loss", 2, {}), ("log_loss", 3, {}),
    ("crammer_singer", 2, {}), ("crammer_singer", 3, {}),
    ("weston_watkins", 3, {}),
    ("epsilon_insensitive", 0, {}), ("squared_epsilon_insensitive", 0, {}),
    ("squared_error", 0, {}),
    ("squared_error", 2, {"task": "classification"}),
    ("squared_error", 3, {"task": "classification"}),
    ("one_class", 1, {}),
]  # fmt: skip

COMMANDS = [
    "train", "train", "train", "stream", "train", "train", "stream", "train", "train", "train",
    "tune",
]  # fmt: skip
COSTS = [1e-10, 1e-5, 1.0, 1e5, 1e10]
REFUSED_COSTS = [1e-300, 1e-50, 1e50, 1e300]


@dataclass(frozen=True)
class Case:
    """One training of a grid of extremes; all of it follows from the seed and the number."""

    seed: int
    number: int
    command: str
    loss: str
    labels: int
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    row_weights: bool = False

    def __str__(self) -> str:
        chosen = " ".join(f"{k}={v}" for k, v in self.settings.items())
        return (
            f"seed {self.seed}, case {self.number}: {self.command} "
            f"({self.kind}) {chosen}{' with row weights' if self.row_weights else ''}"
        )

    def rows(self) -> tuple[Array, Array]:
        """Values, features as columns, and labels or targets."""
        random = np.random.default_rng([self.seed, self.number, 1])
        n, d = int(random.integers(18, 30)), 5
        X = np.round(random.normal(size=(n, d)), 3)
        X[random.random(X.shape) < 0.3] = 0
        scores = X @ random.normal(size=(d, max(1, self.labels)))
        scores += 0.5 * random.normal(size=scores.shape)
        if self.labels == 0:
            y = np.round(scores[:, 0], 3)
        elif self.labels == 1:
            X[:, 0], y = 2 + abs(X[:, 0]), np.ones(n)
        else:
            y = np.array(LABELS[: self.labels])[scores.argmax(axis=1)]
        return KINDS[self.kind].change(X, y, random)


def draw(seed: int, number: int) -> Case:
    """Return the case of a number: problems and kinds in turn, the rest at random."""
    random = np.random.default_rng([seed, number, 0])
    kinds, n = list(KINDS), len(PROBLEMS)
    loss, labels, settings = PROBLEMS[number % n]
    kind = kinds[(number // n + number + seed) % len(kinds)]
    command = COMMANDS[number % len(COMMANDS)]
    if command == "tune" and loss == "one_class":  # it has no C
        command = "train"
    settings = {"loss": loss, **settings, **_options(loss, labels, random)}
    weighted = command == "train" and random.random() < 0.2
    return Case(seed, number, command, loss, labels, kind, settings, weighted)


def _options(loss: str, labels: int, random: Random) -> dict[str, Any]:
    """Draw a cost and a few of the other numbers."""

    def pick(values: list[Any]) -> Any:
        return values[int(random.integers(len(values)))]

    chosen: dict[str, Any] = {}
    if loss != "one_class":
        chosen["C"] = pick(REFUSED_COSTS if random.random() < 0.05 else COSTS)
        if random.random() < 0.3:
            chosen["bias"] = pick([1e-6, 1.0, 1e6])
    else:
        chosen["nu"] = pick([1e-6, 0.3, 1.0])
    if labels >= 2 and random.random() < 0.2:
        chosen["class_weight"] = {LABELS[0]: pick([1e-8, 1e8])}
    if loss.endswith("epsilon_insensitive") and random.random() < 0.5:
        chosen["epsilon"] = pick([0.0, 1e-30, 1e30])
    if random.random() < 0.3:
        chosen["tol"] = pick([1e-12, 1e-8, 0.5])
    if random.random() < 0.2:
        chosen["cache_frac"] = pick([0.0, 0.9])
    if random.random() < 0.2:
        chosen["rounds"] = pick([1, 10])
    return chosen


# ------------------------------------------------------------------------------- one case


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise WrongError(what)


def run_case(case: Case, folder: Path) -> str:
    """Run a case in an empty folder; return how it ended: certified, short, refused or done.

    Raises whatever must not happen.
    """
    text = folder / "d.svm"
    X, y = case.rows()
    _write(text, X, y)
    settings: dict[str, Any] = {"mem": "300MB", "max_passes": PASSES, **case.settings}
    if case.row_weights:
        random = np.random.default_rng([case.seed, case.number, 2])
        weights = random.choice([0.0, 1e-12, 1.0, 1e12], len(y), p=[0.2, 0.2, 0.4, 0.2])
        weights[0] = 1.0
        (folder / "weights").write_text("".join(f"{float(w)!r}\n" for w in weights))
        settings["weights"] = str(folder / "weights")
    old = folder / "m.model"
    old.write_bytes(_some_model())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return _COMMANDS[case.command](case, folder, settings)
        except SbmError as error:
            _check_refusal(error, case)
            if case.command in ("train", "tune"):  # a stream keeps what came before
                _require(old.read_bytes() == _some_model(), "a refusal changed the old model")
            return "refused"


def _write(path: Path, X: Array, y: Array) -> None:
    with open(path, "w", encoding="ascii") as file:
        for x, label in zip(X.tolist(), y.tolist(), strict=True):
            pairs = "".join(f" {k}:{v!r}" for k, v in enumerate(x, 1) if v)
            file.write(f"{label!r}{pairs}\n")


_MODEL: list[bytes] = []


def _some_model() -> bytes:
    """A model that was there before."""
    if not _MODEL:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.model"
            sbm.Model(np.array([1]), np.ones((1, 1)), [-1.0, 1.0], 0.0, np.zeros(1), {}).save(path)
            _MODEL.append(path.read_bytes())
    return _MODEL[0]


def _check_refusal(error: SbmError, case: Case) -> None:
    """Only what cannot be done may be refused, in one sentence that says what to do."""
    said = str(error)
    _require("\n" not in said and len(said) > 20, f"no sentence: {said!r}")
    _require("bug" not in said, f"a valid input is reported as a bug: {said}")
    kind, there = case.kind, set(case.rows()[1].tolist())
    C = case.settings.get("C", 1.0)
    weights = [1.0, *case.settings.get("class_weight", {}).values()]
    reasons = {
        "holds up to 3.4e38": kind == "beyond float32",
        "exceeds the range of a float64": any(word in kind for word in ("e100", "e200", "e±300")),
        "must be between 1e-40 and 1e+40": any(not 1e-40 <= C * w <= 1e40 for w in weights),
        "needs at least two classes": len(there) < 2,
        "class_weight names label": LABELS[0] not in there,
        "needs classes": "targets" in kind and case.labels >= 2,
        "one label": len(there) < 2,
        "came after two others": case.command != "train" and "class_weight" in case.settings,
    }
    _require(
        any(words in said and holds for words, holds in reasons.items()),
        f"refused without need: {type(error).__name__}: {said}",
    )
    _require(isinstance(error, DataError | SettingsError), f"{type(error).__name__}: {said}")


def _train(case: Case, folder: Path, settings: dict[str, Any]) -> str:
    store, path = folder / "d.sbm", folder / "m.model"
    sbm.split([folder / "d.svm"], store, blocks=3, dtype=KINDS[case.kind].dtype)
    with watch_certificates() as found:
        model, report = sbm.train(store, path, settings)
    _check_finite(model, report)
    last = last_of_each(found)
    tol = float(settings.get("tol", 1e-3))
    _check_certificate(case, report, last, model, tol)
    _check_rows(store, folder / "d.svm", KINDS[case.kind].dtype, last[0])
    for line in (path.with_name("m.model.run") / "log.jsonl").read_text().splitlines():
        _strict(line)
    _strict((path.with_name("m.model.run") / "run.json").read_text())
    _check_use(case, folder, model)
    return "certified" if report["converged"] else "short"


def last_of_each(found: list[Certified]) -> list[Certified]:
    """Return the last certificate of each problem: one a class in one-vs-rest."""
    keys = [(getattr(x.problem, "positive", 0), getattr(x.problem, "first", 0)) for x in found]
    return list(dict(zip(keys, found, strict=True)).values())


def _check_finite(model: sbm.Model, report: dict[str, Any]) -> None:
    _strict(json.dumps(report))
    _require(bool(np.isfinite(model.W).all()), "a weight is not finite")
    _require(bool(np.isfinite(model.bias_weights).all()), "a bias is not finite")
    _strict(json.dumps(model.info))


def _strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise WrongError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def _check_certificate(
    case: Case, report: dict[str, Any], found: list[Certified], model: sbm.Model, tol: float
) -> None:
    """Compare what is certified with exact values."""
    bounds = [exact_bounds(one) for one in found]
    total = Bounds(
        sum((b.primal for b in bounds), Fraction(0)), sum((b.dual for b in bounds), Fraction(0)),
        max(b.outside for b in bounds),
    )  # fmt: skip
    primal, dual = Fraction(report["primal"]), Fraction(report["dual"])
    if dual == 0 and case.loss != "one_class":  # that of other variables, all 0
        total = replace(total, dual=dual)
    gap, scale = Fraction(report["gap"]), max(abs(total.primal), abs(total.dual))
    unit = Fraction(found[0].problem.unit)
    room = Fraction(ROUNDING) * max(scale, unit)
    _require(total.outside <= 1e-12, f"a variable is {float(total.outside):.1e} outside its bounds")
    rounding = gap - (primal - dual)  # what the gap has for the rounding of W(α)
    _require(abs(dual - total.dual) <= room + rounding, _differ("dual", dual, total.dual))
    _require(abs(primal - total.primal) <= room + gap, _differ("primal", primal, total.primal))
    _require(total.gap <= gap * Fraction(1 + ROUNDING) + Fraction(1e-15) * scale,
             _differ("gap", gap, total.gap))  # fmt: skip
    if report["converged"]:
        limit = Fraction(tol) * Fraction(1 + 1e-6) * max(scale, unit)
        _require(total.gap <= limit, f"converged at {float(total.gap):.3e}, tol {tol:g}")
    _require(report["drift"] <= ROUNDING, f"drift {report['drift']:.1e}")
    shipped = _primal_of_model(found, model)
    if shipped is not None:
        _require(shipped <= total.dual + gap * Fraction(1 + 1e-6) + room,
                 _differ("primal of the model", total.primal, shipped))  # fmt: skip


def _differ(name: str, said: Fraction, true: Fraction) -> str:
    return f"{name} is {float(said)!r}, exactly it is {float(true)!r}"


def _primal_of_model(found: list[Certified], model: sbm.Model) -> Fraction | None:
    """Objective of the weights in the model; of one problem with all features."""
    one = found[0]
    if len(found) > 1 or one.W.shape[1] > 1 or len(model.ids) + (model.bias > 0) < len(one.W):
        return None
    W = model.W if one.problem.bias == 0 else np.vstack([model.W, model.bias_weights])
    if len(W) != len(one.W):
        return None
    is_single = len(model.labels) == 1 and getattr(one.problem, "positive", 0) < 0
    return exact_bounds(one, -W if is_single else W).primal  # the model is of its only label


def _check_rows(store: Path, text: Path, dtype: str, one: Certified) -> None:
    """All rows of the text were certified, each once."""
    ids = BlockStore(store).read_feature_ids().tolist()
    seen = Counter(frozenset((ids[f], v) for f, v in pairs if v) for pairs, _, _ in one.rows)
    wanted: Counter[Any] = Counter()
    for line in text.read_text().splitlines():
        pairs = [word.split(":") for word in line.split()[1:]]
        kept = [(int(k), Fraction(float(np.dtype(dtype).type(float(v))))) for k, v in pairs]
        wanted[frozenset((k, v) for k, v in kept if v)] += 1
    _require(seen == wanted, "the certified rows differ from those of the text")


def _check_use(case: Case, folder: Path, model: sbm.Model) -> None:
    """Predict, look at probabilities, export and read again."""
    text, out = folder / "d.svm", folder / "out.txt"
    report = sbm.predict(model, text, out, decision=True)
    _strict(json.dumps(report))
    rows = len(text.read_text().splitlines())
    lines = out.read_text().splitlines()
    _require(len(lines) == rows == report["rows"], "predictions are missing")
    numbers = [float(word) for line in lines for word in line.split()]
    _require(all(map(math.isfinite, numbers)), "a decision value is not finite")
    if case.loss == "log_loss":
        report = sbm.predict(model, text, out, probability=True)
        _strict(json.dumps(report))
        for line in out.read_text().splitlines()[1:]:
            shares = [float(word) for word in line.split()[1:]]
            _require(abs(sum(shares) - 1) <= 1e-9, f"probabilities {shares}")
    try:
        written = sbm.export(folder / "m.model", folder / "m.txt", format="liblinear")
    except SbmError as error:
        _require("abel" in str(error) or "LIBLINEAR" in str(error), f"export: {error}")
        return
    _strict(json.dumps(written, default=str))
    again = sbm.predict(folder / "m.txt", text, folder / "again.txt", decision=True)
    _strict(json.dumps(again))
    if len(model.labels) == model.W.shape[1] == 2:
        return  # LIBLINEAR decides by the first of two columns alone
    sbm.predict(model, text, out, decision=True)
    same = (folder / "again.txt").read_bytes() == out.read_bytes()
    _require(same, "weights differ after export and import")


def _stream(case: Case, folder: Path, settings: dict[str, Any]) -> str:
    del settings["max_passes"]
    path, text = folder / "m.model", folder / "d.svm"
    settings.pop("tol", None)
    options = {"dtype": KINDS[case.kind].dtype}
    model, report = sbm.stream(text, path, settings, options=options)
    _check_finite(model, report)
    if report["dual"] is not None:
        sbm.split([text], folder / "d.sbm", blocks=1, dtype=KINDS[case.kind].dtype)
        with watch_certificates() as found:
            sbm.train(folder / "d.sbm", folder / "t.model", {**settings, "max_passes": 3})
        least = sum((exact_bounds(one).primal for one in last_of_each(found)), Fraction(0))
        room = Fraction(ROUNDING) * abs(least)
        _require(Fraction(report["dual"]) <= least + room,
                 _differ("dual", Fraction(report["dual"]), least))  # fmt: skip
    return "done"


def _tune(case: Case, folder: Path, settings: dict[str, Any]) -> str:
    settings.pop("C", None)
    sbm.split([folder / "d.svm"], folder / "d.sbm", blocks=2, dtype=KINDS[case.kind].dtype)
    costs = [1e-10, 1.0, 1e10]
    model, report = sbm.tune(folder / "d.sbm", folder / "m.model", settings, Cs=costs, folds=2)
    _check_finite(model, report)
    return "done"


_COMMANDS = {"train": _train, "stream": _stream, "tune": _tune}


# ------------------------------------------------------------------------------ the section


def run(cases: int, seed: int, folder: Path, tell: Tell, only: int | None = None) -> Tally:
    """Run so many cases, or one of them alone."""
    tally, place = Tally("numbers"), folder / "numbers"

    def attempt(number: int) -> list[str]:
        case = draw(seed, number)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        tally.count("commands", case.command)
        tally.count("losses", f"{case.loss}, {case.labels} labels")
        tally.count("rows", case.kind)
        try:
            tally.count("outcomes", run_case(case, place))
        except Exception:
            tell(str(case))
            tally.count("outcomes", "failed")
            raise
        return []

    numbers = range(cases) if only is None else [only]
    tally.try_each(numbers, attempt, tell, f"seed {seed}, case {{}}")
    shutil.rmtree(place, ignore_errors=True)
    return tally
