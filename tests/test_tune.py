"""Tuning end to end: its table against models trained one by one, its ladder, its refusals."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import started, wait_until
from test_engine import made
from test_folds import slow_fold

import sbm
from sbm.cli import cli
from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.jobs.judging.metrics import MultiMetrics
from sbm.jobs.tuning import exam
from sbm.jobs.tuning.state import Tuning
from sbm.settings import parse_grid

ROOT = Path(__file__).resolve().parent.parent
N_FOLDS = 3


def folds_of(X, n=N_FOLDS, seed=0):
    """Fold of each row, of data whose first row has every feature."""
    return np.array([slow_fold([(int(k), x[k]) for k in np.flatnonzero(x)], n, seed) for x in X])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Stores named after their number of classes, 0 for targets, with 4 blocks; -1: one block."""
    folder = tmp_path_factory.mktemp("data")
    for classes in (0, 2, 3):
        text = write_rows(folder / f"{classes}.svm", *made(classes=classes))
        sbm.split([text], folder / f"{classes}.sbm", blocks=4)
        sbm.split([text], folder / f"{classes}-1.sbm", blocks=1)
    return folder


def tune(store, tmp_path, Cs=(0.01, 0.1, 1.0), folds=N_FOLDS, metric=None, **options):
    chosen = sbm.Settings(**{"mem": "400MB", **options})
    return sbm.tune(store, tmp_path / "m.model", chosen, Cs=Cs, folds=folds, metric=metric)


def try_everything(monkeypatch):
    """Give nothing up, and let nothing wait."""

    def start(self, *arguments):
        original(self, *arguments)
        self.waiting = []
        for candidate in self.candidates:
            for learner in candidate.learners:
                learner.is_active = True

    original = Tuning.__init__
    monkeypatch.setattr(Tuning, "__init__", start)
    monkeypatch.setattr(Tuning, "give_up", lambda self: None)


@pytest.fixture
def whole_grid(monkeypatch):
    try_everything(monkeypatch)


@pytest.fixture
def tunings(monkeypatch):
    """The loops of all tunings, as they are at the end."""
    seen = []
    original = Tuning.report

    def report(self):
        seen.append(self)
        return original(self)

    monkeypatch.setattr(Tuning, "report", report)
    return seen


# --------------------------------------------------------------------- against separate models

TABLES = [
    (2, "hinge", "accuracy"), (2, "squared_hinge", "auc"), (2, "log_loss", "auc"),
    (2, "crammer_singer", "accuracy"), (3, "hinge", "macro_f1"), (3, "log_loss", "accuracy"),
    (3, "crammer_singer", "macro_f1"), (0, "epsilon_insensitive", "mse"),
    (0, "epsilon_insensitive", "mae"), (0, "epsilon_insensitive", "r2"),
    (0, "squared_error", "mse"),
]  # fmt: skip


@pytest.mark.parametrize(("classes", "loss", "metric"), TABLES)
def test_the_table_is_that_of_models_trained_on_the_other_folds(
    classes, loss, metric, data, tmp_path, whole_grid, tunings
):
    Cs = (0.02, 0.2) if classes else (0.005, 0.02)
    how = {"loss": loss, "max_passes": 3000, "rounds": 8}
    _, report = tune(data / f"{classes}.sbm", tmp_path, Cs, metric=metric, tol=1e-8, **how)
    X, y = made(classes=classes)
    folds = folds_of(X)
    sign = -1 if metric in ("mse", "mae") else 1
    for row in report["settings"]:
        assert row["status"] == "converged"
        assert row["mean"] == pytest.approx(np.mean(row["folds"]), rel=1e-12)
        assert row["std"] == pytest.approx(np.std(row["folds"], ddof=1), rel=1e-12)
        assert 0 <= row["relative_gap"] <= 1e-6
    best = max(report["settings"], key=lambda row: sign * row["mean"])
    assert report["best"] == best["C"]
    assert (report["metric"], report["folds"]) == (metric, N_FOLDS)
    for f in range(N_FOLDS):
        rest, held = tmp_path / "rest.svm", tmp_path / "held.svm"
        write_rows(rest, X[folds != f], y[folds != f])
        write_rows(held, X[folds == f], y[folds == f])
        sbm.split([rest], tmp_path / "rest.sbm", blocks=3, force=True)
        for k, C in enumerate(Cs):
            alone = sbm.Settings(C=C, tol=1e-7, **how)
            model, theirs = sbm.train(tmp_path / "rest.sbm", tmp_path / "alone.model", alone)
            expected = sbm.predict(model, held)[metric]
            assert report["settings"][k]["folds"][f] == pytest.approx(expected, rel=2e-3)
            if metric in ("accuracy", "macro_f1"):
                assert report["settings"][k]["folds"][f] == pytest.approx(expected, rel=1e-12)
            (ours,) = [c for c in tunings[0].candidates if (c.C, c.learners[0].held_out) == (C, f)]
            assert ours.certificate.primal == pytest.approx(theirs["primal"], rel=3e-6)
            if classes != 3 or loss != "log_loss":  # there every class has weights of its own
                W = np.zeros((X.shape[1], model.W.shape[1]))
                W[model.ids - 1] = model.W
                w = ours.learners[0].solver.W
                if W.shape[1] > 1:  # columns by class code, which is the order of appearance
                    order = np.argsort([*dict.fromkeys(y.tolist())])
                    w = w[:, order]
                np.testing.assert_allclose(w, W, atol=5e-3 * np.abs(W).max())


@pytest.mark.parametrize(("classes", "metric"), [(0, "mse"), (2, "auc"), (3, "macro_f1")])
def test_one_block_is_enough(classes, metric, data, tmp_path):
    loss = "hinge" if classes else "epsilon_insensitive"
    _, report = tune(data / f"{classes}-1.sbm", tmp_path, metric=metric, loss=loss, max_passes=9)
    assert all(math.isfinite(row["mean"]) for row in report["settings"] if row["passes"])


def test_rows_of_one_label_alone_count_as_what_predict_says(tmp_path, whole_grid):
    X, _ = made()
    X += 0.3 * (X != 0)
    for label in (1, -1):
        text = write_rows(tmp_path / "one.svm", X, [label] * len(X))
        sbm.split([text], tmp_path / "one.sbm", blocks=3, force=True)
        model, report = tune(tmp_path / "one.sbm", tmp_path, [0.1])
        found = sbm.predict(model, text)["accuracy"]
        assert report["settings"][0]["mean"] == pytest.approx(found, abs=0.1)
        assert abs(found - 0.5) > 0.15
    with pytest.raises(DataError, match=r"^auc has no meaning on any of the 3 folds of "):
        tune(tmp_path / "one.sbm", tmp_path, [0.1], metric="auc")
    assert not (tmp_path / "m.model.tune.run").exists()


def test_counts_of_classes_give_the_figures_of_all_pairs():
    random = np.random.default_rng(0)
    for n in (2, 3, 50):
        ours, theirs = exam._ClassCounts(n), MultiMetrics([float(k) for k in range(n)])
        assert ours.result() == {"accuracy": None, "macro_f1": None}
        for _ in range(3):
            true, guess = random.integers(0, n, (2, 20))
            ours.add(true, guess)
            theirs.add(true.astype(float), guess.astype(np.int32)[:, np.newaxis])
        for name, value in ours.result().items():
            assert value == pytest.approx(theirs.result()[name], rel=1e-12)


def test_folds_without_rows_are_left_out(tmp_path):
    X, y = made(n=12)
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", blocks=2)
    _, report = tune(tmp_path / "d.sbm", tmp_path, [0.1, 1.0], folds=30)
    json.dumps(report, allow_nan=False)
    figures = report["settings"][0]["folds"]
    held = set(folds_of(X, 30).tolist())
    assert [x is not None for x in figures] == [f in held for f in range(30)]
    assert report["settings"][0]["mean"] == pytest.approx(
        np.mean([x for x in figures if x is not None])
    )


# ---------------------------------------------------------------------------------- the ladder


def noisy(n=1200, features=60):
    """Labels that are best told with small weights."""
    random = np.random.default_rng(5)
    X = random.normal(size=(n, features)).round(3)
    return X, np.where(X @ random.normal(size=features) + 12 * random.normal(size=n) > 0, 1, -1)


def clean(n=1200, features=20):
    """Labels that need large weights."""
    random = np.random.default_rng(6)
    X = random.normal(size=(n, features)).round(3) / 64
    return X, np.where(X @ random.normal(size=features) > 0, 1, -1)


GRID = [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]


def test_larger_values_are_not_tried_where_the_best_lies_below(tmp_path):
    sbm.split([write_rows(tmp_path / "d.svm", *noisy())], tmp_path / "d.sbm", blocks=6)
    _, report = tune(tmp_path / "d.sbm", tmp_path, GRID, metric="auc", max_passes=20)
    status = [row["status"] for row in report["settings"]]
    assert report["best"] <= 0.01
    assert status[-2:] == ["not tried"] * 2
    for row in report["settings"]:
        if row["status"] == "not tried":
            assert (row["passes"], row["seconds"], row["mean"], row["folds"]) == (0, 0, None, None)


def test_larger_values_are_tried_where_the_best_is_near_the_top(tmp_path):
    sbm.split([write_rows(tmp_path / "d.svm", *clean())], tmp_path / "d.sbm", blocks=6)
    _, report = tune(tmp_path / "d.sbm", tmp_path, GRID, max_passes=40)
    assert "not tried" not in [row["status"] for row in report["settings"]]
    assert report["best"] >= 10


def test_larger_values_are_tried_even_if_all_smaller_ones_rest_at_once(tmp_path):
    sbm.split([write_rows(tmp_path / "d.svm", *clean())], tmp_path / "d.sbm", blocks=6)
    _, report = tune(tmp_path / "d.sbm", tmp_path, GRID, tol=0.2, max_passes=40)
    assert [row["passes"] for row in report["settings"][:4]] == [1] * 4
    assert report["settings"][4]["passes"] > 0


def everything(store, tmp_path, monkeypatch, **options):
    """Report of a tuning, and that of one that gives nothing up."""
    _, ours = tune(store, tmp_path, **options)
    with monkeypatch.context() as patch:
        try_everything(patch)
        _, whole = tune(store, tmp_path, **options)
    return ours, whole


def check_same_best(ours, whole):
    sign = -1 if ours["metric"] in ("mse", "mae") else 1
    best = next(row for row in whole["settings"] if row["C"] == whole["best"])
    assert ours["best"] == whole["best"]
    for mine, theirs in zip(ours["settings"], whole["settings"], strict=True):
        assert theirs["status"] != "given up"
        if mine["status"] in ("given up", "not tried"):
            assert sign * theirs["mean"] < sign * best["mean"]


@pytest.mark.parametrize(("rows", "metric"), [(noisy, "auc"), (clean, "accuracy")])
def test_the_best_is_that_of_the_whole_grid(rows, metric, tmp_path, monkeypatch):
    sbm.split([write_rows(tmp_path / "d.svm", *rows())], tmp_path / "d.sbm", blocks=6)
    how = {"Cs": GRID[:6], "metric": metric, "max_passes": 60}
    check_same_best(*everything(tmp_path / "d.sbm", tmp_path, monkeypatch, **how))


@pytest.mark.parametrize(
    ("name", "loss"), [("heart_scale", "squared_hinge"), ("abalone", "epsilon_insensitive")]
)
def test_the_best_is_that_of_the_whole_grid_on_real_sets(
    name, loss, text_of, tmp_path, monkeypatch
):
    sbm.split([text_of(name)], tmp_path / "d.sbm", blocks=5)
    how = {"Cs": GRID[1:6], "loss": loss, "max_passes": 60, "folds": 5}
    check_same_best(*everything(tmp_path / "d.sbm", tmp_path, monkeypatch, **how))


# ------------------------------------------------------------------------- model and report


def test_the_model_is_that_of_train_with_the_best_value(data, tmp_path):
    model, report = tune(data / "2.sbm", tmp_path, C=77.0, seed=3, bias=1.0)
    expected = sbm.Settings(C=report["best"], mem="400MB", seed=3, bias=1.0)
    sbm.train(data / "2.sbm", tmp_path / "own.model", expected)
    assert (tmp_path / "m.model").read_bytes() == (tmp_path / "own.model").read_bytes()
    assert model.info["C"] == report["best"]
    assert sorted(os.listdir(tmp_path)) == [
        "m.model", "m.model.run", "own.model", "own.model.run",
    ]  # fmt: skip


def without_seconds(value):
    """Leave out of a report what the clock and the machine say."""
    if isinstance(value, dict):
        noise = ("seconds", "peak_rss_bytes", "model")
        return {k: without_seconds(v) for k, v in value.items() if k not in noise}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


def test_two_runs_and_any_number_of_threads_say_the_same(data, tmp_path):
    for name, loss in (("2", "hinge"), ("3", "log_loss")):
        found = []
        for k, t in enumerate((1, 2, 2)):
            folder = tmp_path / f"{name}-{k}"
            folder.mkdir()
            report = tune(data / f"{name}.sbm", folder, threads=t, loss=loss)[1]
            report["train"]["model"] = ""
            found.append(without_seconds(report))
        assert found[0] == found[1] == found[2]
        assert found[0]["bytes_read"] > 0


@pytest.mark.parametrize("budget", [{"max_passes": 1}, {"time_limit": 0}])
def test_a_budget_that_is_used_up_leaves_a_whole_report(budget, data, tmp_path):
    _, report = tune(data / "2.sbm", tmp_path, GRID, tol=1e-9, **budget)
    json.dumps(report, allow_nan=False)
    assert [row["status"] for row in report["settings"][4:]] == ["not tried"] * 4
    for row in report["settings"][:4]:
        assert row["status"] == ("converged" if row["relative_gap"] <= 1e-8 else "not converged")
        assert len(row["folds"]) == N_FOLDS
        assert row["relative_gap"] >= 0
        assert row["passes"] == 1
    assert report["passes"] == 1


# ----------------------------------------------------------------------------------- the grid


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.01:100:x10", [0.01, 0.1, 1, 10, 100]), ("0.1:10:x10", [0.1, 1, 10]),
        ("0.1,1,10", [0.1, 1, 10]), ("5", [5]), ("0.3:0.3:x2", [0.3]), ("1:9.99:x10", [1]),
        ("1e-3:0.1:x10", [0.001, 0.01, 0.1]), ("0.1:0.9:x3", [0.1, 0.3, 0.9]),
        ("10, 1", [10, 1]), ("1:1e9:x1000", [1, 1e3, 1e6, 1e9]),
    ],
)  # fmt: skip
def test_grids_are_read_exactly(text, numbers):
    assert parse_grid(text) == numbers


@pytest.mark.parametrize(
    "text",
    ["", "a", "1,", "1,,2", "1:10", "1:10:10", "1:10:x1", "1:10:x0.5", "10:1:x10", "0:1:x10",
     "-1:1:x10", "1:inf:x10", "nan:1:x2", "1:10:xx2", "1:10:x2:3", "1:1e300:x1.01", "1:10:x"],
)  # fmt: skip
def test_what_is_no_grid_is_refused(text):
    expected = (
        f"{text!r} is no list of numbers; write it as 0.01:100:x10 (from, to, factor) or 0.1,1"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(expected)}$"):
        parse_grid(text)


@settings(deadline=None)
@given(
    st.integers(-40, 40), st.integers(1, 9), st.sampled_from([1.5, 2.0, 3.0, 10.0]),
    st.integers(0, 20),
)  # fmt: skip
def test_a_grid_goes_from_its_first_to_its_last_number(power, digit, factor, n):
    first = digit * 10.0**power
    numbers = parse_grid(f"{first!r}:{first * factor**n!r}:x{factor!r}")
    assert len(numbers) == n + 1
    expected = [first * factor**k for k in range(n + 1)]
    np.testing.assert_allclose(numbers, expected, rtol=1e-11)


# ---------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"folds": 1}, "folds is 1; it must be from 2 to 255"),
        ({"folds": 256}, "folds is 256; it must be from 2 to 255"),
        ({"Cs": []}, "there is no C to try; give some as 0.01:100:x10 or 0.1,1,10"),
        ({"Cs": [1.0, -1.0]}, "C is -1; it must be a finite number above 0"),
        ({"Cs": [math.nan]}, "C is nan; it must be a finite number above 0"),
        (
            {"metric": "acuracy"},
            (
                "unknown metric 'acuracy', known are accuracy, macro_f1, auc, mse, mae, r2; "
                "did you mean 'accuracy'?"
            ),
        ),
        ({"metric": "mse"}, "metric mse is not for these labels; use accuracy or auc"),
        ({"metric": "macro_f1"}, "metric macro_f1 is not for these labels; use accuracy or auc"),
        ({"loss": "one_class"},
         "sbm tune does not take loss one_class, which has no C; leave it out"),
        ({"caches": 2}, "sbm tune does not take caches; leave it out"),
        ({"class_blocks": 2}, "sbm tune does not take class_blocks; leave it out"),
        ({"warm_start": "a.model"},
         "warm_start belongs to sbm train; tune first, then train with it"),
        ({"calibrate": True}, "calibrate belongs to sbm train; tune first, then train with it"),
        ({"weights": "-"},
         "sbm tune reads weights twice, but a pipe only once; give a file"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(options, sentence, data, tmp_path):
    with pytest.raises(SettingsError, match=f"^{re.escape(sentence)}$"):
        tune(data / "2.sbm", tmp_path, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "loss", "metric", "known"),
    [
        ("3", "hinge", "auc", "accuracy or macro_f1"),
        ("0", "squared_error", "accuracy", "mse or mae or r2"),
    ],
)
def test_metrics_of_other_labels_are_refused(name, loss, metric, known, data, tmp_path):
    expected = f"metric {metric} is not for these labels; use {known}"
    with pytest.raises(SettingsError, match=f"^{expected}$"):
        tune(data / f"{name}.sbm", tmp_path, loss=loss, metric=metric)


def test_pictures_that_cannot_be_drawn_are_refused_first(data, tmp_path, monkeypatch):
    def draw(name):
        sbm.tune(data / "2.sbm", tmp_path / "m.model", Cs=[1.0], picture=tmp_path / name)

    path = tmp_path / "p.svg"
    expected = f"the metric cannot be drawn as {path}; choose a name that ends in .png"
    with pytest.raises(SettingsError, match=f"^{re.escape(expected)}$"):
        draw("p.svg")
    with pytest.raises(StoreError, match=r"choose another place with --png$"):
        draw("no/p.png")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    expected = (
        f"drawing {tmp_path / 'p.png'} needs matplotlib, which is not installed; install it "
        "(pip install matplotlib), or leave out --png"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(expected)}$"):
        draw("p.png")
    assert os.listdir(tmp_path) == []


def test_too_little_memory_is_refused_in_terms_of_models(data, tmp_path):
    with pytest.raises(MemoryPlanError) as caught:
        tune(data / "2.sbm", tmp_path, GRID, folds=5, mem="100MB")
    found = re.fullmatch(
        r"--mem 100 MB is too little to train 40 models on .*, which needs .*; the least that "
        r"works is --mem (\d+MB), or fewer values of C or fewer folds",
        str(caught.value),
    )
    assert found, str(caught.value)
    tune(data / "2.sbm", tmp_path, GRID, folds=5, mem=found[1], max_passes=1)


def test_where_weights_are_too_much_their_number_is_explained(tmp_path):
    lines = [
        f"{1 + k % 3} " + " ".join(f"{200 * k + j}:1" for j in range(1, 121)) + "\n"
        for k in range(1000)
    ]
    (tmp_path / "w.svm").write_text("".join(lines))
    sbm.split([tmp_path / "w.svm"], tmp_path / "w.sbm", blocks=2)
    with pytest.raises(MemoryPlanError) as caught:
        tune(tmp_path / "w.sbm", tmp_path, GRID, folds=5, mem="200MB")
    assert str(caught.value).endswith(
        ", or fewer values of C or fewer folds, or fewer features: weights are 120,000 features x "
        "3 classes x 40 models x 8 bytes, 2 times, and sbm split --min-count N leaves out features "
        "that N rows do not have"
    )


def test_with_many_models_blocks_are_cut(tmp_path, tunings):
    random = np.random.default_rng(0)
    rows = [f"{k % 2} {random.integers(1, 9)}:1\n" for k in range(300_000)]
    (tmp_path / "d.svm").write_text("".join(rows))
    sbm.split([tmp_path / "d.svm"], tmp_path / "d.sbm", blocks=1)
    with pytest.raises(MemoryPlanError) as caught:
        tune(tmp_path / "d.sbm", tmp_path, GRID, folds=5, mem="1MB")
    mem = caught.value.least_bytes + 20_000_000
    _, report = tune(tmp_path / "d.sbm", tmp_path, GRID, folds=5, mem=mem, max_passes=1)
    plan = tunings[0].engine.plan
    assert len(plan.parts) > 1
    assert plan.total <= mem
    assert report["settings"][0]["passes"] == 1


def test_all_scores_that_an_area_takes_are_planned_for(data, tmp_path, tunings):
    for metric in ("accuracy", "auc"):
        tune(data / "2.sbm", tmp_path, metric=metric, max_passes=1)
    plain, area = (tuning.engine.plan.total for tuning in tunings)
    assert area >= plain + 9 * 3 * 240


# -------------------------------------------------------------------------- the command line


def call(*arguments):
    return CliRunner().invoke(cli, ["tune", *map(str, arguments)])


def strict(text):
    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_the_table_and_the_object_say_the_same(data, tmp_path):
    pytest.importorskip("matplotlib")
    common = (data / "2.sbm", "--C", "1e-4:1:x10", "--folds", 3, "-o", tmp_path / "m.model")
    plain = call(*common, "-q")
    assert plain.exit_code == 0, plain.output
    done = call(*common, "--json", "--png", tmp_path / "p.png")
    assert done.exit_code == 0, done.output
    report = strict(done.stdout)
    header, *lines = plain.stdout.splitlines()
    assert header.split() == ["C", "accuracy", "std", "passes", "seconds", "worst", "gap"]
    assert len(lines) >= len(report["settings"]) + 3
    for line, row in zip(lines, report["settings"], strict=False):
        words = line.split()
        assert float(words[0]) == row["C"]
        if row["mean"] is None:
            assert words[1:] == ["-", "not", "tried"]
            continue
        assert words[1:3] == [f"{row['mean']:.6f}", f"{row['std']:.6f}"]
        assert int(words[3]) == row["passes"]
        assert (words[-1] == "*") == (row["C"] == report["best"])
    assert f"best C is {report['best']:g}, trained on all rows:" in plain.stdout
    image = (tmp_path / "p.png").read_bytes()
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(image[k : k + 4], "big") for k in (16, 20))
    assert width > 600
    assert height > 300
    assert sorted(os.listdir(tmp_path)) == ["m.model", "m.model.run", "p.png"]


def test_the_exit_code_says_when_the_last_training_did_not_converge(data, tmp_path):
    store, model = data / "2.sbm", tmp_path / "m.model"
    done = call(store, "--C", "1", "--max-passes", 1, "--tol", "1e-9", "-o", model, "--json")
    assert done.exit_code == 3
    assert strict(done.stdout)["train"]["converged"] is False
    assert "raise --max-passes" in done.stderr
    assert model.exists()


def test_what_there_is_to_go_on_from_is_all_that_is_left_after_an_error(
    data, tmp_path, monkeypatch
):
    for error in (OSError("no room"), KeyboardInterrupt()):

        def fail(self, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(Tuning, "give_up", fail)
            with pytest.raises(type(error)):
                tune(data / "2.sbm", tmp_path)
        assert os.listdir(tmp_path) == ["m.model.tune.run"]


def test_what_there_is_to_go_on_from_is_all_that_is_left_after_ctrl_c(data, tmp_path):
    arguments = ["tune", data / "2.sbm", "--C", "1,1e4,1e5", "--tol", "1e-12", "--max-passes"]
    command = [sys.executable, "-m", "sbm", *map(str, arguments), "100000", "-o", "m.model"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with started(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_until((tmp_path / "m.model.tune.run").exists, process)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert b"sbm: stopped" in err
    assert os.listdir(tmp_path) == ["m.model.tune.run"]


def test_help_names_every_metric():
    text = CliRunner().invoke(cli, ["tune", "--help"], terminal_width=100).output
    *names, last = exam.METRICS
    assert f"{', '.join(names)} or {last}." in text


@pytest.mark.parametrize("words", ["0.1:1:x10", 0.1, [0.1, 1]])
def test_values_of_C_come_in_words_and_numbers(words, data, tmp_path):
    _, report = sbm.tune(data / "2.sbm", tmp_path / "m.model", {"tol": 1e-2}, Cs=words, folds=2)
    assert [row["C"] for row in report["settings"]][:1] == [0.1]


def test_what_is_no_number_of_folds_or_no_C_is_refused(data, tmp_path):
    for options, sentence in (
        ({"Cs": [1], "folds": "5"}, "folds is 5; it must be from 2 to 255"),
        ({"Cs": ["one"]}, "C is 'one'; a number is expected"),
    ):
        with pytest.raises(SettingsError) as error:
            sbm.tune(data / "2.sbm", tmp_path / "m.model", **options)
        assert str(error.value) == sentence
