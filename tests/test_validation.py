"""Validation: rows held out, the best pass and its certificate, early stopping, threshold."""

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner
from families import CASES, Case, make_store
from helpers import Passes, write_rows
from inside import (
    BinaryMetrics,
    Evaluation,
    Model,
    Rows,
    Run,
    TrainOptions,
    cli,
    hold_out,
    train_ranks,
)
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

import sbm
from sbm.errors import DataError, MemoryPlanError, SettingsError
from sbm.sklearn import SBMClassifier

SHARE = 0.3
NOISY = Case("hinge", 2)
JUDGED = [case for case in CASES if case.loss != "one_class"]
# Few rounds on small blocks: scores rise and fall.
SLOW = {"C": 10.0, "rounds": 1, "cache_frac": 0.0, "parts": "blocks", "solver": "dual"}


def held_out(X: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that a share holds out."""
    csr = scipy.sparse.csr_matrix(X)
    rows = Rows(
        csr.indptr[:-1].astype(np.int64), np.diff(csr.indptr).astype(np.int32),
        csr.indices, csr.data, np.zeros(len(X), np.int32),
    )  # fmt: skip
    return hold_out(rows, np.arange(1, X.shape[1] + 1), SHARE) == 0


def score_of(model: Model, X: np.ndarray, y: np.ndarray) -> float:
    """Return the accuracy or the mean squared error."""
    found = model.predict(scipy.sparse.csr_matrix(np.hstack([np.zeros((len(X), 1)), X])))
    return float(np.mean(found == y) if model.labels else np.mean((found - y) ** 2))


# ---------------------------------------------------------------------- rows that are held out


@pytest.mark.parametrize("solver", ["dual", "dual, whole", "newton"])
@pytest.mark.parametrize("case", JUDGED, ids=str)
def test_model_is_the_optimum_of_the_other_rows(case: Case, solver: str, tmp_path: Path) -> None:
    if solver == "newton" and case.loss in ("crammer_singer", "weston_watkins"):
        pytest.skip("no Newton's method")
    X, y = case.rows(n=300)
    parts = "auto" if solver == "dual, whole" else "blocks"
    settings = {**case.options, "parts": parts, "solver": solver.partition(",")[0], "tol": 1e-5}
    settings |= {"bias": 1.0, "max_passes": 200}
    store, out = make_store(tmp_path, X, y, blocks=4), held_out(X)
    progress = Passes()
    model, report = sbm.train(
        store, tmp_path / "m.model", {**settings, "validate": SHARE}, progress=progress
    )
    found, scores = report["validation"], [one["validation"]["score"] for one in progress.rows]
    assert found["rows"] == out.sum()
    assert score_of(model, X[out], y[out]) == pytest.approx(found["score"], rel=1e-12)
    assert found["score"] == (max if model.labels else min)(scores) == scores[found["pass"] - 1]
    # The certificate is that of this model: its primal, and a bound on the optimum.
    assert case.primal(X[~out], y[~out], model) == pytest.approx(report["primal"], rel=1e-9)
    store = make_store(tmp_path, X[~out], y[~out], name="rest")
    _, best = sbm.train(store, tmp_path / "rest.model", settings)
    assert report["dual"] <= best["primal"] * (1 + 1e-9)
    assert report["primal"] >= best["dual"] * (1 - 1e-9)
    assert report["gap"] >= (report["primal"] - report["dual"]) * (1 - 1e-9)


def test_share_does_not_depend_on_order_blocks_or_scale(tmp_path: Path) -> None:
    X, y = NOISY.rows(n=400)
    X[:9], order = 0, np.random.default_rng(1).permutation(400)
    out = held_out(X)
    assert not out[:9].any()
    assert 0.2 < out.mean() < 0.4
    assert (held_out(X[order]) == out[order]).all()
    assert (held_out(np.vstack([X, X]))[400:] == out).all()
    rows = set()
    for number, (options, scale) in enumerate(
        itertools.product([{"blocks": 2}, {"blocks": 7, "dtype": "float64"}], ["none", "std"])
    ):
        mine = order if number % 2 else np.arange(400)
        store = make_store(tmp_path, X[mine], y[mine], name=f"s{number}", **options)
        # A constant score: the labels of the rows held out.
        settings = {"C": 1e-9, "validate": SHARE, "scale": scale, "max_passes": 1}
        _, report = sbm.train(store, tmp_path / "m.model", settings, resume=False)
        rows.add(report["validation"]["rows"])
    assert rows == {int(out.sum())}


# -------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("case", "metric", "settings"),
    [
        (NOISY, "auc", {}), (NOISY, "pr_auc", {"scale": "std"}), (NOISY, "f1", {"bias": 1.0}),
        (Case("log_loss", 2), "accuracy", {"penalty": "l1"}),
        (Case("hinge", 3), "macro_f1", {}), (Case("crammer_singer", 3), None, {"bias": 1.0}),
        (Case("squared_error", 0), "mae", {"solver": "newton", "intercept": True}),
        (Case("epsilon_insensitive", 0), "r2", {}),
    ],
)  # fmt: skip
def test_score_of_a_file_is_that_of_predict(
    tmp_path: Path, case: Case, metric: str | None, settings: dict[str, Any]
) -> None:
    X, y = case.rows(n=300, noise=2.0)
    store, text = make_store(tmp_path, X[:200], y[:200], blocks=3), tmp_path / "v.svm"
    write_rows(text, X[200:], y[200:])
    chosen = {**case.options, **settings, "tol": 1e-6, "metric": metric}
    for path in (text, make_store(tmp_path, X[200:], y[200:], name="v")):
        progress = Passes()
        model, report = sbm.train(
            store, tmp_path / "m.model", {**chosen, "validate": path}, progress=progress
        )
        found, result = report["validation"], sbm.predict(model, path)
        value = result["classes"][1]["f1"] if metric == "f1" else result[metric or "accuracy"]
        assert found["score"] == pytest.approx(value, rel=1e-9)
        assert (found["rows"], found["data"]) == (100, str(path))
        judged = [one["validation"]["score"] for one in progress.rows if one["validation"]]
        assert found["score"] == (min if metric == "mae" else max)(judged)
    assert json.loads(json.dumps(model.info["validation"])) == found
    assert Model.load(tmp_path / "m.model").info["validation"] == found


# ----------------------------------------------------------------------------- early stopping


@pytest.fixture
def noisy(tmp_path: Path) -> Path:
    X, y = NOISY.rows(n=240, noise=4.0)
    return make_store(tmp_path, X, y, blocks=4)


def test_training_stops_three_passes_after_the_best(noisy: Path, tmp_path: Path) -> None:
    progress, settings = Passes(), {**SLOW, "C": 1.0, "tol": 1e-9, "validate": "30%"}
    model, report = sbm.train(noisy, tmp_path / "m.model", settings, progress=progress)
    found, scores = report["validation"], [one["validation"]["score"] for one in progress.rows]
    assert found["ended_by"] == "validation"
    assert not report["converged"]
    assert found["score"] == max(scores)
    assert found["pass"] == max(k for k, s in enumerate(scores, 1) if s == max(scores))
    gaps = [one["estimated_relative_gap"] for one in progress.rows]
    best = scores.index(max(scores)) + 1
    assert sum(gap <= 0.1 for gap in gaps[best:]) == 3
    assert model.certificate["relative_gap"] == report["relative_gap"] > 1e-9
    _, again = sbm.train(noisy, tmp_path / "m.model", {**settings, "max_passes": 99})
    assert again["was_finished"]
    (tmp_path / "m.model").unlink()
    sbm.train(noisy, tmp_path / "m.model", settings)
    assert np.array_equal(Model.load(tmp_path / "m.model").W, model.W)
    page = tmp_path / "r.html"
    sbm.report(tmp_path / "m.model", page)
    html = page.read_text()
    for fact in ("stopped early", "ROC curve", "Precision and recall", "Validation accuracy"):
        assert fact in html


def test_exit_code_tells_limits_from_early_stops(noisy: Path, tmp_path: Path) -> None:
    line = f"train {noisy} -o {tmp_path}/m.model --rounds 1 --cache-frac 0 --parts blocks --json "
    line += "--solver dual --validate 0.3 --tol 1e-9 --threshold f1 "
    for more, code in (("--max-passes 2", 3), ("--fresh", 0)):
        result = CliRunner().invoke(cli, (line + more).split())
        assert result.exit_code == code, result.output
    ended = json.loads(result.stdout)["validation"]
    assert ended["ended_by"] == "validation"
    result = CliRunner().invoke(cli, ["train", *line.replace("--json", "").split()[1:]])
    assert f"those of pass {ended['pass']}" in result.output
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "m.model")]).output
    assert f"is predicted above {ended['threshold']:.6g}" in shown


@pytest.mark.parametrize(
    "settings",
    [
        SLOW,
        {"loss": "log_loss", "solver": "newton", "C": 9.0},
        {"loss": "log_loss", "penalty": "l1"},
    ],
)
def test_stopped_training_resumes_to_same_bytes(
    noisy: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    where: Any = noisy if "penalty" in settings else SHARE
    chosen = {**settings, "tol": 1e-7, "validate": where, "threshold": "f1", "max_passes": 12}
    whole, cut = tmp_path / "whole.model", tmp_path / "cut.model"
    sbm.train(noisy, whole, chosen)
    resumed = 0
    for k in range(400):
        calls = itertools.count()
        try:
            _, report = sbm.train(
                noisy, cut, {**chosen, "checkpoint_every": 0.001},
                is_stopped=lambda calls=calls, k=k: next(calls) >= 3 + 5 * k,
            )  # fmt: skip
            break
        except KeyboardInterrupt:
            resumed += 1
    assert resumed > 2
    assert report["resumed"]
    assert cut.read_bytes() == whole.read_bytes()


def test_best_pass_survives_a_change_of_solver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = NOISY.rows(n=240)
    store = make_store(tmp_path, X * 10.0 ** np.arange(X.shape[1]), y)
    first, _ = sbm.train(store, tmp_path / "first.model", {"validate": SHARE, "max_passes": 1})
    falling = itertools.count(0.0, -1.0)
    monkeypatch.setattr(Evaluation, "figure", property(lambda found: next(falling)))
    model, report = sbm.train(store, tmp_path / "m.model", {"validate": SHARE})
    assert 1 <= report["switched_after"] < report["passes"]
    assert report["validation"]["pass"] == 1
    np.testing.assert_array_equal(model.W, first.W)


def test_warm_start_is_judged_first(noisy: Path, tmp_path: Path) -> None:
    sbm.train(noisy, tmp_path / "a.model", {"tol": 1e-6, "solver": "dual"})
    settings = {"validate": SHARE, "warm_start": tmp_path / "a.model", "solver": "dual"}
    model, report = sbm.train(noisy, tmp_path / "b.model", settings)
    X, y = NOISY.rows(n=240, noise=4.0)
    out = held_out(X)
    assert score_of(model, X[out], y[out]) == pytest.approx(report["validation"]["score"])
    assert NOISY.primal(X[~out], y[~out], model) == pytest.approx(report["primal"], rel=1e-9)
    # The other way round: an optimum of all rows, which needs no pass.
    same = {"validate": noisy, "warm_start": tmp_path / "a.model", "solver": "dual"}
    _, report = sbm.train(noisy, tmp_path / "c.model", same)
    assert (report["passes"], report["validation"]["pass"]) == (0, 0)
    assert report["relative_gap"] <= 1e-3


def test_estimator_stops_early(tmp_path: Path) -> None:
    X, y = NOISY.rows(n=240, noise=4.0)
    options = {"validation_fraction": SHARE, "tol": 1e-9, "solver": "dual", "C": 1.0, "rounds": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not a limit
        ours = SBMClassifier(early_stopping=True, fit_intercept=False, **options).fit(X, y)
    assert ours.model_.info["validation"]["ended_by"] == "validation"
    assert ours.model_.info["validation"]["share"] == SHARE
    assert 0 < ours.model_.info["validation"]["rows"] < 240


# ---------------------------------------------------------------------------------- threshold


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_threshold_is_the_best_of_all(scale: float) -> None:
    random = np.random.default_rng(3)
    y = (random.random(200) < 0.2).astype(float)
    z = np.round(scale * (y + random.normal(size=200)) - 2, 1)
    judge = BinaryMetrics([0.0, 1.0])
    judge.add(y, z)
    thresholds = [z.min() - 1, *np.unique(z)]
    f1 = [f1_score(y, z > t, zero_division=0) for t in thresholds]
    cost = [2 * (z > t)[y == 0].sum() + 7 * (z <= t)[y == 1].sum() for t in thresholds]
    t = judge.choose_threshold()
    assert f1_score(y, z > t, zero_division=0) == pytest.approx(max(f1))
    t = judge.choose_threshold((2.0, 7.0))
    assert 2 * (z > t)[y == 0].sum() + 7 * (z <= t)[y == 1].sum() == min(cost)
    curves = judge.curves()
    if not scale:
        return
    for name, area in (("roc", roc_auc_score(y, z)), ("pr", average_precision_score(y, z))):
        (x, height) = np.array(curves[name]).T
        assert x[-1] == 1
        assert np.trapezoid(height, x) == pytest.approx(area, abs=0.06)
    judge._fold()  # the histogram of more than a million rows
    t = judge.choose_threshold()
    assert f1_score(y, z > t, zero_division=0) == pytest.approx(max(f1))


def test_every_prediction_uses_the_threshold(tmp_path: Path) -> None:
    X, y = NOISY.rows(n=300, noise=3.0)
    store = make_store(tmp_path, X, y)
    settings = {"validate": SHARE, "threshold": "cost:1,20", "bias": 1.0}
    model, report = sbm.train(store, tmp_path / "m.model", settings)
    t = report["validation"]["threshold"]
    matrix = scipy.sparse.csr_matrix(np.hstack([np.zeros((len(X), 1)), X]))
    expected = np.array(model.labels)[(model.decision_function(matrix) > t).astype(int)]
    assert not np.array_equal(
        expected, np.array(model.labels)[(model.decision_function(matrix) > 0) * 1]
    )
    assert np.array_equal(model.predict(matrix), expected)
    assert model.threshold == sbm.inspect(model)["threshold"] == t < 0
    text = write_rows(tmp_path / "all.svm", X, y)
    told = sbm.predict(tmp_path / "m.model", text, tmp_path / "labels.txt")
    assert np.array_equal(np.loadtxt(tmp_path / "labels.txt"), expected)
    assert told["correct"] == (expected == y).sum()
    assert np.array_equal(model.to_sklearn(matrix.shape[1]).predict(matrix), expected)
    sbm.export(model, tmp_path / "m.txt")
    assert np.array_equal(Model.load(tmp_path / "m.txt").predict(matrix), expected)


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("settings", "error", "facts"),
    [
        ({"validate": 1.5}, SettingsError, r"validate is 1.5; .*between 0 and 1"),
        ({"validate": "100%"}, SettingsError, "validate is 100%"),
        ({"validate": "none.svm"}, DataError, r"none\.svm does not exist"),
        ({"validate": "-"}, SettingsError, "standard input"),
        ({"validate": "empty.svm"}, DataError, r"empty\.svm"),
        ({"validate": "new.svm"}, DataError, r"new\.svm has label 9"),
        ({"validate": "one.svm", "metric": "auc"}, DataError, "auc is undefined on one.svm"),
        ({"validate": 1e-9}, DataError, "undefined on the rows held out: there are no rows"),
        ({"validate": 0.1, "metric": "mse"}, SettingsError, "metric mse does not apply"),
        ({"validate": 0.1, "metric": "acuracy"}, SettingsError, "did you mean 'accuracy'"),
        ({"validate": 0.1, "threshold": "cost:1"}, SettingsError, "threshold is 'cost:1'"),
        ({"validate": 0.1, "threshold": "f1", "loss": "crammer_singer"}, SettingsError,
         "threshold .*crammer_singer"),
        ({"threshold": "f1"}, SettingsError, "threshold .*validate="),
        ({"validate": 0.1, "calibrate": True}, SettingsError, "validate .*calibrate"),
        ({"validate": 0.1, "loss": "one_class"}, SettingsError, "one_class"),
        ({"validate": 0.1, "loss": "log_loss", "penalty": "l1"}, SettingsError, "l1.*FILE"),
        ({"validate": "v.svm", "mem": "118MB"}, MemoryPlanError, "mem='118MB' .*no validate"),
    ],
)  # fmt: skip
def test_impossible_validations_are_refused(
    noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any],
    error: type[Exception], facts: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    X, y = NOISY.rows(n=9)
    for name, labels in (("v", y), ("new", [9, *y[1:]]), ("one", [y[0]] * 9)):
        write_rows(Path(f"{name}.svm"), X, labels)
    Path("empty.svm").write_text("")
    with pytest.raises(error, match=facts) as caught:
        sbm.train(noisy, "m.model", settings)
    assert "\n" not in str(caught.value)
    assert not Path("m.model").exists()
    if isinstance(caught.value, MemoryPlanError):
        _, report = sbm.train(noisy, "m.model", {**settings, "mem": caught.value.least_bytes})
        assert report["validation"]["rows"] == 9


def test_several_ranks_are_refused(noisy: Path) -> None:
    class Two:
        rank, size = 0, 2

    with pytest.raises(SettingsError, match=r"validate .* 2 processes"):
        train_ranks(Two(), noisy, None, {"validate": 0.1, "threads": 1}, TrainOptions())  # type: ignore[arg-type]


def test_checkpoint_has_the_best_weights(noisy: Path, tmp_path: Path) -> None:
    model, report = sbm.train(noisy, tmp_path / "m.model", {**SLOW, "validate": SHARE})
    run = Run.read(tmp_path / "m.model.run")
    assert run["best"]["pass"] == report["validation"]["pass"]
    assert run["best"]["certificate"]["primal"] == model.certificate["primal"]


def test_rows_without_features_are_not_held_out():
    X = np.zeros((50, 3))
    X[::2, 0] = np.arange(25) + 1
    out = held_out(X)
    assert 0 < out[::2].sum() < 25
    assert not out[1::2].any()


def test_columns_that_a_validation_table_lacks_are_named_once(tmp_path: Path) -> None:
    train, other = tmp_path / "a.csv", tmp_path / "b.csv"
    rows = [(k % 7, k % 3, int(k % 7 > 3)) for k in range(60)]
    train.write_text("size,age,label\n" + "".join(f"{s},{a},{y}\n" for s, a, y in rows))
    other.write_text("size,label\n" + "".join(f"{s},{y}\n" for s, _, y in rows))
    progress, settings = Passes(), {**SLOW, "tol": 1e-12, "max_passes": 2, "validate": str(other)}
    sbm.train(train, tmp_path / "m.model", settings, progress=progress)
    (note,) = [text for text in progress.stages if text.startswith(f"{other}: ")]
    assert "age" in note
