"""CrossValidation end to end: its table against separate trainings, the order of C, and errors."""

import json
import math
import os
import re

import numpy as np
import pytest
from click.testing import CliRunner
from families import make_store
from helpers import Passes, write_rows
from inside import CrossValidation, Folds, Progress, Rows, Training, cli, parse_grid, patch

import sbm
from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError

N_FOLDS = 3


def make_rows(classes=2, n=240, features=8):
    """Return rows with labels 1, 2, ..., or with targets if there are no classes."""
    random = np.random.default_rng(0)
    X = random.normal(size=(n, features)).astype(np.float32).astype(float)
    X[1:][random.random(X[1:].shape) < 0.3] = 0  # the first row numbers the features
    scores = X @ random.normal(size=(features, max(1, classes)))
    scores += 0.5 * random.normal(size=scores.shape)
    return X, 1.0 + np.argmax(scores, axis=1) if classes else scores[:, 0].round(4)


def folds_of(X, n=N_FOLDS):
    """Fold of each row; the first row must have every feature."""
    lengths = (X != 0).sum(axis=1).astype(np.int32)
    rows = Rows(
        np.cumsum(lengths, dtype=np.int64) - lengths, lengths, np.nonzero(X)[1].astype(np.int32),
        X[X != 0].astype(np.float32), np.zeros(len(X), np.int32),
    )  # fmt: skip
    out = np.empty(len(X), np.uint8)
    Folds(n, 0).assign(0, 0, rows, out)
    return out


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Stores by number of classes, 0 for targets, and by number of blocks."""
    folder = tmp_path_factory.mktemp("data")
    for classes in (0, 2, 3):
        text = write_rows(folder / f"{classes}.svm", *make_rows(classes))
        for blocks in (1, 4):
            sbm.split([text], folder / f"{classes}-{blocks}.sbm", blocks=blocks)
    return folder


def tune(store, tmp_path, Cs=(0.01, 0.1, 1.0), folds=N_FOLDS, metric=None, **options):
    chosen = sbm.Settings(**{"mem": "400MB", **options})
    return sbm.tune(store, tmp_path / "m.model", chosen, Cs=Cs, folds=folds, metric=metric)


def try_everything(monkeypatch):
    """Make a tuning start with all values of C and drop none."""

    def start(self, *arguments):
        original(self, *arguments)
        self.waiting = []
        for candidate in self.candidates:
            candidate.set_active(True)

    original = CrossValidation.__init__
    monkeypatch.setattr(CrossValidation, "__init__", start)
    monkeypatch.setattr(CrossValidation, "give_up", lambda self: None)


# -------------------------------------------------------------------------- against separate models


@pytest.mark.long
@pytest.mark.parametrize(
    ("classes", "blocks", "loss", "metric"),
    [
        (2, 4, "hinge", None), (2, 1, "squared_hinge", "auc"), (3, 4, "log_loss", "macro_f1"),
        (3, 1, "hinge", None), (2, 4, "crammer_singer", "accuracy"),
        (0, 4, "epsilon_insensitive", None), (0, 1, "squared_error", "r2"),
        (0, 4, "squared_error", "mae"),
    ],
)  # fmt: skip
def test_table_matches_separate_models(classes, blocks, loss, metric, data, tmp_path, monkeypatch):
    try_everything(monkeypatch)
    Cs = (0.02, 0.2) if classes else (0.005, 0.02)
    how = {"loss": loss, "max_passes": 1000, "rounds": 8}
    store = data / f"{classes}-{blocks}.sbm"
    _, report = tune(store, tmp_path, Cs, metric=metric, tol=1e-7, **how)
    metric = metric or ("accuracy" if classes else "mse")
    assert (report["metric"], report["folds"]) == (metric, N_FOLDS)
    for row in report["settings"]:
        assert row["status"] == ("converged" if row["relative_gap"] <= 1e-6 else "not converged")
        assert row["mean"] == pytest.approx(np.mean(row["folds"]), rel=1e-12)
        assert row["std"] == pytest.approx(np.std(row["folds"], ddof=1), rel=1e-12)
        assert 0 <= row["relative_gap"] <= 3e-6
        assert row["passes"] <= report["passes"]
        assert row["seconds"] > 0
    sign = -1 if metric in ("mse", "mae") else 1
    best = max(report["settings"], key=lambda row: sign * row["mean"])
    assert report["best"] == best["C"]
    check_folds(report, classes, how, tmp_path)


def check_folds(report, classes, how, tmp_path):
    """Compare the metric of each fold with that of a model of the other rows."""
    X, y = make_rows(classes)
    folds, metric = folds_of(X), report["metric"]
    for f in range(N_FOLDS):
        rest = write_rows(tmp_path / "rest.svm", X[folds != f], y[folds != f])
        held = write_rows(tmp_path / "held.svm", X[folds == f], y[folds == f])
        sbm.split([rest], tmp_path / "rest.sbm", blocks=1, force=True)
        for row in report["settings"]:
            alone = sbm.Settings(C=row["C"], tol=1e-6, **how)
            model, _ = sbm.train(tmp_path / "rest.sbm", tmp_path / "alone.model", alone)
            expected = sbm.predict(model, held)[metric]
            exact = metric in ("accuracy", "macro_f1")
            assert row["folds"][f] == pytest.approx(expected, rel=1e-12 if exact else 2e-3)


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_intercept_of_folds_is_not_regularized(loss, data, tmp_path, monkeypatch):
    try_everything(monkeypatch)
    how = {"loss": loss, "intercept": True}
    _, report = tune(data / "3-4.sbm", tmp_path, (0.02, 0.2), tol=1e-10, **how)
    assert {row["status"] for row in report["settings"]} == {"converged"}
    check_folds(report, 3, how, tmp_path)


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_newton_folds_resume_to_the_same_model(loss, data, tmp_path, monkeypatch):
    found, calls = [], []

    def stop(self):
        calls.append(self.training.state.passes)
        if calls[-1] == 3 and calls.count(3) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(CrossValidation, "give_up", stop)
    patch(monkeypatch, "COMMIT_SECONDS", 0.0)
    patch(monkeypatch, "COMMIT_SHARE", 0.0)
    for threads in (1, 2):
        how = {"loss": loss, "solver": "newton", "tol": 1e-6, "threads": threads, "folds": 3}
        place = tmp_path / str(threads)
        place.mkdir()
        if threads == 1:
            with pytest.raises(KeyboardInterrupt):
                tune(data / "3-4.sbm", place, (0.1, 1), **how)
        model, report = tune(data / "3-4.sbm", place, (0.1, 1), **how)
        found.append((model.W.tobytes(), without_seconds(report["settings"])))
    assert found[0] == found[1]
    assert calls.count(3) > 1


def test_folds_converge_with_columns_of_different_size(tmp_path):
    X, y = make_rows()
    X[:, 1] *= 1e5
    text = write_rows(tmp_path / "rows.svm", X, y)
    _, report = tune([text], tmp_path, folds=2, rounds=1)
    assert {row["status"] for row in report["settings"]} <= {"converged", "not tried"}


def test_newton_folds_keep_their_matrix(data, tmp_path, monkeypatch):
    """Products would need the rows of every fold in memory."""
    found = []
    for most in (5000, 3):
        patch(monkeypatch, "MOST_FEATURES", most)
        how = {"loss": "log_loss", "solver": "newton", "tol": 1e-6}
        report = tune(data / "2-4.sbm", tmp_path, (0.1, 1), folds=3, **how)[1]
        found.append(without_seconds(report["settings"]))
    assert found[0] == found[1]


def test_single_label_has_accuracy_but_no_auc(tmp_path, monkeypatch):
    try_everything(monkeypatch)
    X = make_rows()[0]
    X += 0.3 * (X != 0)
    for label in (1, -1):
        text = write_rows(tmp_path / "one.svm", X, [label] * len(X))
        sbm.split([text], tmp_path / "one.sbm", blocks=3, force=True)
        model, report = tune(tmp_path / "one.sbm", tmp_path, [0.1])
        assert sbm.predict(model, text)["accuracy"] == report["settings"][0]["mean"] == 1.0
    with pytest.raises(SettingsError, match=r"auc .* accuracy or macro_f1"):
        tune(tmp_path / "one.sbm", tmp_path, [0.1], metric="auc")
    assert not (tmp_path / "m.model.tune.run").exists()


def test_folds_without_rows_are_left_out(tmp_path):
    X, y = make_rows(n=12)
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", blocks=2)
    _, report = tune(tmp_path / "d.sbm", tmp_path, [0.1], folds=20)
    json.dumps(report, allow_nan=False)
    (row,) = report["settings"]
    held = set(folds_of(X, 20).tolist())
    assert [x is not None for x in row["folds"]] == [f in held for f in range(20)]
    assert row["mean"] == pytest.approx(np.mean([x for x in row["folds"] if x is not None]))


# --------------------------------------------------------------------------------------- the ladder


@pytest.fixture(scope="module")
def ladder(tmp_path_factory):
    """Labels that are best predicted with small weights, and labels that need large ones."""
    folder, random = tmp_path_factory.mktemp("ladder"), np.random.default_rng(5)
    X = random.normal(size=(600, 30)).round(3)
    noise = 9 * random.normal(size=600)
    noisy = np.where(X @ random.normal(size=30) + noise > 0, 1, -1)
    clean = np.where(X @ random.normal(size=30) > 0, 1, -1)
    for name, rows, labels in (("noisy", X, noisy), ("clean", X / 64, clean)):
        text = write_rows(folder / f"{name}.svm", rows, labels)
        sbm.split([text], folder / f"{name}.sbm", blocks=3)
    return folder


GRID = [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]


@pytest.mark.long
def test_folds_continue_until_their_certificate_is_small(tmp_path):
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 6))
    y = np.sign(X[:, 0] + 0.5 * random.normal(size=300))
    sbm.split((X, y), tmp_path / "d.sbm")
    how = {"solver": "dual", "max_passes": 500}
    _, report = tune(tmp_path / "d.sbm", tmp_path, [1.0], folds=5, **how)
    (row,) = report["settings"]
    assert row["relative_gap"] <= 1e-2  # the estimate is below it after fewer passes
    assert (row["status"], row["passes"] < 500) == ("converged", True)


@pytest.mark.long
def test_larger_values_are_skipped_after_best(ladder, tmp_path):
    _, report = tune(ladder / "noisy.sbm", tmp_path, GRID, metric="auc", max_passes=20)
    assert report["best"] <= 0.01
    assert [row["status"] for row in report["settings"]][-2:] == ["not tried"] * 2
    for row in report["settings"][-2:]:
        assert (row["passes"], row["seconds"], row["mean"], row["folds"]) == (0, 0, None, None)
    _, report = tune(ladder / "clean.sbm", tmp_path, GRID, max_passes=40)
    assert "not tried" not in [row["status"] for row in report["settings"]]
    assert report["best"] >= 10
    _, report = tune(ladder / "clean.sbm", tmp_path, GRID, tol=0.2, max_passes=40)
    assert [row["passes"] for row in report["settings"][:4]] == [1] * 4  # all rest at once
    assert report["settings"][4]["passes"] > 0


@pytest.mark.long
@pytest.mark.parametrize(("name", "metric"), [("noisy", "auc"), ("clean", "accuracy")])
def test_best_value_matches_whole_grid(name, metric, ladder, tmp_path, monkeypatch):
    how = {"Cs": GRID[:6], "metric": metric, "max_passes": 40, "cache_frac": 0.0}
    _, ours = tune(ladder / f"{name}.sbm", tmp_path, **how)
    try_everything(monkeypatch)
    _, whole = tune(ladder / f"{name}.sbm", tmp_path, **how)
    best = max(row["mean"] for row in whole["settings"])
    assert ours["best"] == whole["best"]
    for mine, theirs in zip(ours["settings"], whole["settings"], strict=True):
        assert theirs["status"] in ("converged", "not converged")
        if mine["status"] in ("given up", "not tried"):
            assert theirs["mean"] < best
    if name == "noisy":
        assert "given up" in [row["status"] for row in ours["settings"]]


@pytest.mark.long
def test_folds_in_memory_need_fewer_passes(ladder, tmp_path, monkeypatch):
    found, stops = [], iter([2])

    def stop(self):
        original(self)
        if self.training.state.passes == next(stops, None):
            raise KeyboardInterrupt

    original = CrossValidation.give_up
    patch(monkeypatch, "COMMIT_SECONDS", 0.0)
    patch(monkeypatch, "COMMIT_SHARE", 0.0)
    for most in (0, 10**9, 10**9):
        patch(monkeypatch, "MOST_WHOLE", most)
        place = tmp_path / str(len(found))
        place.mkdir()
        if len(found) == 2:
            monkeypatch.setattr(CrossValidation, "give_up", stop)
            with pytest.raises(KeyboardInterrupt):
                tune(ladder / "noisy.sbm", place, GRID[:6], metric="auc")
        model, report = tune(ladder / "noisy.sbm", place, GRID[:6], metric="auc")
        found.append((model.W.tobytes(), without_seconds(report["settings"])))
    blocks, whole, resumed = found
    assert resumed == whole
    pairs = list(zip(whole[1], blocks[1], strict=True))[:4]
    assert all(mine["passes"] < theirs["passes"] for mine, theirs in pairs)
    assert max(mine["relative_gap"] for mine, _ in pairs) <= 1e-2


# --------------------------------------------------------------------------------- model and report


def test_model_matches_train_with_best_value(data, tmp_path):
    model, report = tune(data / "2-4.sbm", tmp_path, C=77.0, seed=3, bias=1.0)
    expected = sbm.Settings(C=report["best"], mem="400MB", seed=3, bias=1.0)
    sbm.train(data / "2-4.sbm", tmp_path / "own.model", expected)
    assert (tmp_path / "m.model").read_bytes() == (tmp_path / "own.model").read_bytes()
    assert model.info["C"] == report["best"]
    assert sorted(os.listdir(tmp_path)) == [
        "m.model", "m.model.run", "own.model", "own.model.run",
    ]  # fmt: skip


def without_seconds(value):
    """Remove the entries that depend on timing and the machine."""
    if isinstance(value, dict):
        noise = ("seconds", "peak_rss_bytes", "model")
        return {k: without_seconds(v) for k, v in value.items() if k not in noise}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "more", [{}, {"penalty": "l1", "loss": "log_loss"}, {"weights": "column"}], ids=str
)
def test_text_and_tables_are_read_as_for_train(tmp_path, monkeypatch, more):
    """Interrupted or not: the same table and model as of a store."""
    more, (X, y) = dict(more), make_rows(n=300)
    lines = [f"{('no', 'yes')[int(b)]},{a[0]:.3f},{a[1]:.3f},{1 + i % 3}\n"
             for i, (a, b) in enumerate(zip(X, y == y[0], strict=True))]  # fmt: skip
    (tmp_path / "t.csv").write_text("bought,age,size,times\n" + "".join(lines))
    how = {"label": "bought", "blocks": 4, "exclude": ["times"]}
    if more.pop("weights", None):
        how = {**how, "weight": "times", "exclude": []}
    chosen, Cs = {"mem": "400MB", "parts": "auto", **more}, {"Cs": (0.1, 1.0), "folds": 3}
    sbm.split(tmp_path / "t.csv", tmp_path / "s.sbm", **how)
    _, whole = sbm.tune(tmp_path / "s.sbm", tmp_path / "s.model", chosen, **Cs)
    patch(monkeypatch, "COMMIT_SECONDS", 0.0)
    patch(monkeypatch, "COMMIT_SHARE", 0.0)
    commit, calls = Training.commit, []

    def stop(training):
        commit(training)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Training, "commit", stop)
    with pytest.raises(KeyboardInterrupt):
        sbm.tune(tmp_path / "t.csv", tmp_path / "t.model", chosen, **Cs, **how)
    monkeypatch.setattr(Training, "commit", commit)
    _, report = sbm.tune(tmp_path / "t.csv", tmp_path / "t.model", chosen, **Cs, **how)
    assert report["read"]["rows"] == 300
    for name in ("folds", "passes", "relative_gap", "status"):
        assert [row[name] for row in report["settings"]] == [
            row[name] for row in whole["settings"]
        ], name
    assert (tmp_path / "t.model").read_bytes() == (tmp_path / "s.model").read_bytes()
    assert set(os.listdir(tmp_path)) == {
        "t.csv", "s.sbm", "s.model", "s.model.run", "t.model", "t.model.run",
    }  # fmt: skip


def test_unknown_options_of_reading_are_refused(data, tmp_path):
    for function, more in ((sbm.tune, {"Cs": 1.0}), (sbm.train, {}), (sbm.plan, {})):
        with pytest.raises(TypeError, match=r"unknown argument 'lable'.*label"):
            function(data / "2-4.sbm", **more, lable="y")
        with pytest.raises(SettingsError, match="is a store; label, exclude"):
            function(data / "2-4.sbm", **more, label="y", exclude=["a"])


@pytest.mark.long
def test_report_does_not_depend_on_threads(data, tmp_path):
    for name, loss in (("2-4", "hinge"), ("3-4", "log_loss")):
        found = []
        for threads in (1, 2):
            (tmp_path / f"{name}-{threads}").mkdir()
            how = {"threads": threads, "loss": loss, "max_passes": 3, "folds": 2}
            _, report = tune(data / f"{name}.sbm", tmp_path / f"{name}-{threads}", (0.1, 1), **how)
            found.append(without_seconds(report))
        assert found[0] == found[1]
        assert found[0]["bytes_read"] > 0


@pytest.mark.parametrize("budget", [{"max_passes": 1}, {"time_limit": 0}])
def test_small_budget_gives_complete_report(budget, data, tmp_path):
    _, report = tune(data / "2-4.sbm", tmp_path, GRID, tol=1e-9, **budget)
    json.dumps(report, allow_nan=False)
    assert [row["status"] for row in report["settings"][4:]] == ["not tried"] * 4
    for row in report["settings"][:4]:
        assert row["status"] == ("converged" if row["relative_gap"] <= 1e-8 else "not converged")
        assert (row["passes"], len(row["folds"])) == (1, N_FOLDS)
    assert report["passes"] == 1


def test_error_leaves_only_the_run_to_resume(data, tmp_path, monkeypatch):
    for error in (OSError("no room"), KeyboardInterrupt()):

        def fail(self, error=error):
            raise error

        monkeypatch.setattr(CrossValidation, "give_up", fail)
        with pytest.raises(type(error)):
            tune(data / "2-4.sbm", tmp_path)
        assert os.listdir(tmp_path) == ["m.model.tune.run"]


def test_short_passes_have_no_checkpoints(data, tmp_path, monkeypatch):
    commits, commit = [], Training.commit
    monkeypatch.setattr(
        Training, "commit", lambda self: commits.append(self.job.path.suffix) or commit(self)
    )
    for seconds in (1e9, 0.0):
        patch(monkeypatch, "COMMIT_SECONDS", seconds)
        patch(monkeypatch, "COMMIT_SHARE", 0.0)
        commits.clear()
        report = tune(data / "2-4.sbm", tmp_path, (0.01, 0.1))[1]
        assert commits.count(".tune") == (1 if seconds else report["passes"])


def test_progress_has_a_line_for_each_value(data, tmp_path):
    progress = Passes()
    Cs = (0.001, 0.01, 0.1, 1.0, 10.0)
    report = sbm.tune(data / "2-4.sbm", tmp_path / "m.model", Cs=Cs, folds=3, progress=progress)[1]
    lines = [text for text in progress.stages if text.startswith("tune")]
    assert len(lines) == len({text.split(":")[0] for text in lines}) <= len(Cs)
    tried = [row["C"] for row in report["settings"] if row["status"] in ("converged", "given up")]
    for C in tried:
        (line,) = [text for text in lines if text.startswith(f"tune, C = {C:g}: ")]
        assert "pass" in line


# ----------------------------------------------------------------------------------------- the grid


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.01:100:x10", [0.01, 0.1, 1, 10, 100]), ("0.1,1,10", [0.1, 1, 10]), ("5", [5]),
        ("0.3:0.3:x2", [0.3]), ("1:9.99:x10", [1]), ("0.1:0.9:x3", [0.1, 0.3, 0.9]),
        ("10, 1", [10, 1]), ("1:1e9:x1000", [1, 1e3, 1e6, 1e9]),
    ],
)  # fmt: skip
def test_grids_are_read_exactly(text, numbers):
    assert parse_grid(text) == numbers


@pytest.mark.parametrize(
    "text",
    ["", "a", "1,", "1:10", "1:10:10", "1:10:x1", "1:10:x0.5", "10:1:x10", "0:1:x10", "-1:1:x10",
     "1:inf:x10", "nan:1:x2", "1:10:xx2", "1:10:x2:3", "1:1e300:x1.01", "1:10:x"],
)  # fmt: skip
def test_bad_grids_are_refused(text):
    with pytest.raises(SettingsError, match=f"^{text!r} .*:x10"):
        parse_grid(text)


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("store", "options", "facts"),
    [
        ("2-4", {"folds": 1}, "folds is 1.* 2 .* 255"), ("2-4", {"folds": 256}, "folds is 256"),
        ("2-4", {"folds": "5"}, "folds is 5"), ("2-4", {"Cs": []}, "no values"),
        ("2-4", {"Cs": [1.0, -1.0]}, "C is -1"), ("2-4", {"Cs": [math.nan]}, "C is nan"),
        ("2-4", {"Cs": ["one"]}, "C is 'one'"),
        ("2-4", {"metric": "acuracy"}, "'acuracy'.* mse.*'accuracy'"),
        ("2-4", {"metric": "mse"}, "metric mse .*accuracy or auc"),
        ("2-4", {"metric": "macro_f1"}, "metric macro_f1 .*accuracy or auc"),
        ("3-4", {"metric": "auc"}, "metric auc .*accuracy or macro_f1"),
        ("0-4", {"metric": "accuracy", "loss": "squared_error"}, "accuracy .*mse or mae or r2"),
        ("2-4", {"loss": "one_class"}, "one_class"),
        ("2-4", {"warm_start": "a.model"}, "warm_start"), ("2-4", {"calibrate": True}, "calibrate"),
        ("2-4", {"weights": "-"}, "weights"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(store, options, facts, data, tmp_path):
    with pytest.raises(SettingsError, match=facts):
        tune(data / f"{store}.sbm", tmp_path, **options)
    assert os.listdir(tmp_path) == []


def test_bad_pictures_are_refused_first(data, tmp_path, monkeypatch):
    def draw(name):
        sbm.tune(data / "2-4.sbm", tmp_path / "m.model", Cs=[1.0], picture=tmp_path / name)

    with pytest.raises(SettingsError, match=r"p\.svg.*\.png$"):
        draw("p.svg")
    with pytest.raises(StoreError, match=r" png$"):
        draw("no/p.png")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"p\.png .*matplotlib.* png$"):
        draw("p.png")
    assert os.listdir(tmp_path) == []


def test_memory_is_planned_for_all_models(data, tmp_path):
    least = {}
    for metric, Cs in (("accuracy", GRID), ("auc", GRID), ("auc", GRID[:4])):
        with pytest.raises(MemoryPlanError, match=f"{5 * len(Cs)} models.* C .*folds") as caught:
            tune(data / "2-4.sbm", tmp_path, Cs, folds=5, metric=metric, mem="1MB")
        least[metric, len(Cs)] = caught.value.least_bytes
    assert least["auc", 8] >= least["accuracy", 8] + 9 * 8 * 240  # scores of all held-out rows
    assert least["auc", 8] > least["auc", 4]
    tune(data / "2-4.sbm", tmp_path, GRID, folds=5, mem=least["accuracy", 8], max_passes=1)


def test_blocks_are_cut_for_many_models(tmp_path, monkeypatch):
    n = 150_000
    sbm.split([(np.ones((n, 1)), np.arange(n) % 2)], tmp_path / "d.sbm", blocks=1)
    with pytest.raises(MemoryPlanError) as caught:
        tune(tmp_path / "d.sbm", tmp_path, GRID, folds=5, mem="1MB")
    mem = caught.value.least_bytes
    notes = []
    monkeypatch.setattr(Progress, "note", lambda self, text: notes.append(text))
    _, report = tune(tmp_path / "d.sbm", tmp_path, GRID, folds=5, mem=mem, max_passes=1)
    assert report["settings"][0]["passes"] == 1
    models, blocks = (int(n) for n in re.match(r"(\d+) models, (\d+) blocks", notes[0]).groups())
    assert models == 40
    assert blocks > 1


# -------------------------------------------------------------------------------------- the command


def call(*arguments):
    return CliRunner().invoke(cli, ["tune", *map(str, arguments)])


@pytest.mark.long
def test_command_prints_the_table(data, tmp_path):
    pytest.importorskip("matplotlib")
    common = (data / "2-4.sbm", "--C", "1e-4:1:x10", "--folds", 3, "-o", tmp_path / "m.model")
    plain = call(*common, "-q")
    assert plain.exit_code == 0, plain.output
    done = call(*common, "--json", "--png", tmp_path / "p.png")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    header, *lines = plain.stdout.splitlines()
    assert header.split()[:4] == ["C", "accuracy", "std", "passes"]
    for line, row in zip(lines, report["settings"], strict=False):
        words = line.split()
        assert float(words[0]) == row["C"]
        if row["mean"] is None:
            assert words[1:] == ["-", "not", "tried"]
            continue
        assert words[1:3] == [f"{row['mean']:.6f}", f"{row['std']:.6f}"]
        assert int(words[3]) == row["passes"]
        assert (words[-1] == "*") == (row["C"] == report["best"])
    assert f"C is {report['best']:g}" in plain.stdout
    image = (tmp_path / "p.png").read_bytes()
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    assert sorted(os.listdir(tmp_path)) == ["m.model", "m.model.run", "p.png"]


def test_tune_that_fails_leaves_nothing(tmp_path):
    values = [(1e200, 1e250, -1e150)[k % 3] for k in range(60)]
    X = np.stack([np.array(values), np.arange(60) % 7 - 3.0], axis=1)
    store = make_store(tmp_path, X, np.arange(60) % 2 * 2.0 - 1, blocks=3, dtype="float64")
    settings = {"loss": "log_loss", "solver": "newton"}
    with pytest.raises(DataError, match="exceeds the range"):
        sbm.tune(store, tmp_path / "m.model", settings, Cs=[1.0, 10.0], folds=3)
    assert not list(tmp_path.glob("m.model*"))
