"""Test data predicted after passes, and the ages of cached rows."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import Passes, write_rows
from sbm.programs.training.passtest import PassTest

import sbm
from sbm.errors import DataError, MemoryPlanError, SettingsError
from sbm.rows import Arena
from sbm.solver.cache import WorkingSet
from sbm.solver.variables import DenseSet

N_ROWS, N_FEATURES = 240, 12
QUICK = {"max_passes": 5, "tol": 1e-12, "mem": "400MB"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Stores of two and of three labels, and test texts, one with a new label and a new id."""
    folder = tmp_path_factory.mktemp("data")
    for name, labels in (("two", (-1, 1)), ("three", (2, 7, 5))):
        for seed, n, suffix in ((1, N_ROWS, ""), (2, 90, "-test")):
            random = np.random.default_rng(seed)
            X = random.normal(size=(n, N_FEATURES)) * (random.random((n, N_FEATURES)) < 0.5)
            codes = (X[:, :3] + random.normal(size=(n, 3)) / 2)[:, : len(labels)].argmax(axis=1)
            text = write_rows(
                folder / f"{name}{suffix}.svm", np.float32(X), np.array(labels)[codes]
            )
        text.write_text(text.read_text() + "9 1:1 77:3\n")
        sbm.split(folder / f"{name}.svm", folder / f"{name}.sbm", blocks=4)
    return folder


def log_of(model: Path) -> list[dict]:
    lines = model.with_name(model.name + ".run").joinpath("log.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["event"] == "pass"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("two", {"loss": "hinge", "bias": 1.5}),
        ("two", {"loss": "squared_epsilon_insensitive"}),
        ("two", {"loss": "one_class", "nu": 0.3}),
        ("three", {"loss": "hinge"}),
        ("three", {"loss": "crammer_singer", "bias": 1.0}),
    ],
)
def test_last_pass_agrees_with_predict(data, tmp_path, name, settings):
    chosen = {**QUICK, **settings, "max_passes": 3}
    model, plain = tmp_path / "a.model", tmp_path / "b.model"
    sbm.train(data / f"{name}.sbm", plain, chosen)
    # A store can be test data, too.
    for test in (data / f"{name}-test.svm", data / f"{name}.sbm"):
        sbm.train(data / f"{name}.sbm", model, chosen, resume=False, test=test)
        assert model.read_bytes() == plain.read_bytes()
        told, expected = log_of(model)[-1]["test"], sbm.predict(model, test)
        assert told["rows"] == expected["rows"]
        if "mse" in expected:
            assert told["mse"] == pytest.approx(expected["mse"], rel=1e-12)
        else:  # rows whose label the model does not know count here, as errors
            assert told["accuracy"] * told["rows"] == pytest.approx(expected["correct"])


def test_every_nth_pass_is_tested_untimed(data, tmp_path, monkeypatch):
    judge = PassTest.judge

    def slow(self, *arguments):
        time.sleep(0.05)
        return judge(self, *arguments)

    monkeypatch.setattr(PassTest, "judge", slow)
    progress, begin = Passes(), time.perf_counter()
    _, report = sbm.train(
        data / "two.sbm", tmp_path / "a.model", {**QUICK, "time_limit": 1000}, progress=progress,
        test=data / "two-test.svm", test_every=2,
    )  # fmt: skip
    took = time.perf_counter() - begin
    assert [p["pass"] for p in progress.rows if p["test"]] == [2, 4, 5]
    assert took - report["seconds"]["total"] >= 0.15
    assert progress.rows[-1]["elapsed"] <= report["seconds"]["total"]
    assert all(p["test"]["seconds"] >= 0.05 for p in progress.rows if p["test"])


def test_resumed_training_tests_the_same(data, tmp_path, monkeypatch):
    chosen, test = {**QUICK, "cache_frac": 0.3, "rounds": 2}, {"test": data / "two-test.svm"}
    whole, cut = tmp_path / "whole.model", tmp_path / "cut.model"
    sbm.train(data / "two.sbm", whole, chosen, **test)
    steps = iter(range(10))
    with pytest.raises(KeyboardInterrupt):
        sbm.train(data / "two.sbm", cut, chosen, **test, is_stopped=lambda: next(steps, 99) >= 7)
    looks, judge = [], PassTest.judge

    def stopped(self, *arguments):  # while it looks: then it looks again
        looks.append(1)
        if len(looks) == 1:
            raise KeyboardInterrupt
        return judge(self, *arguments)

    monkeypatch.setattr(PassTest, "judge", stopped)
    with pytest.raises(KeyboardInterrupt):
        sbm.train(data / "two.sbm", cut, chosen, **test)
    _, report = sbm.train(data / "two.sbm", cut, chosen, **test)
    assert report["resumed"]
    assert cut.read_bytes() == whole.read_bytes()
    names = ("pass", "dual", "cached_rows", "cached_ages", "cached_zero")
    first, second = log_of(whole), log_of(cut)
    assert [[p[n] for n in names] for p in second] == [[p[n] for n in names] for p in first]
    assert [p["test"]["accuracy"] for p in second] == [p["test"]["accuracy"] for p in first]


def test_ages_are_of_cached_rows(data, tmp_path):
    sbm.train(
        data / "two.sbm",
        tmp_path / "some.model",
        {**QUICK, "cache_frac": 0.3, "C": 0.1, "solver": "dual"},
    )
    for one in log_of(tmp_path / "some.model"):
        assert sum(one["cached_ages"]) == one["cached_rows"] > 0
        assert len(one["cached_ages"]) <= one["pass"]
    # In a cache with room for all rows they stay, and are what is certified.
    chosen = {**QUICK, "cache_frac": 0.9, "screen": False, "policy": "random", "C": 0.1}
    chosen["solver"] = "dual"
    sbm.train(data / "two.sbm", tmp_path / "all.model", chosen)
    log = log_of(tmp_path / "all.model")
    assert [one["cached_ages"] for one in log] == [[0] * k + [N_ROWS] for k in range(len(log))]
    assert log[-1]["cached_zero"] == N_ROWS - log[-1]["certificate"]["n_support"]
    assert log[-1]["cached_free"] == log[-1]["certificate"]["n_free"]
    assert log[-1]["bytes_read"] >= log[0]["bytes_read"] > 0
    working = WorkingSet(Arena.of(80, "float32"), DenseSet(3), 2, 10)
    working.age[:3], working.n_cached = (254, 0, 9), 2
    for _ in range(3):
        working.grow_older()
    assert working.age.tolist() == [255, 3, 9]  # the last one is of no cached row
    assert working.count_ages() == [0, 0, 1] + [0] * 251 + [1]


@pytest.mark.parametrize(
    ("options", "error", "facts"),
    [
        ({"test_every": 0}, SettingsError, "test_every is 0"),
        ({"test": "-"}, SettingsError, "standard input.*--test-every"),
        ({"test": "nothing.svm"}, DataError, r"nothing\.svm does not exist"),
        ({"settings": {"mem": "140MB"}}, MemoryPlanError, "--mem 140 MB .*leave out --test-every"),
    ],
)  # fmt: skip
def test_impossible_tests_are_refused_first(data, tmp_path, options, error, facts):
    chosen = {"test": data / "three-test.svm", "settings": {}, **options}
    settings = chosen.pop("settings")
    with pytest.raises(error, match=facts) as caught:
        sbm.train(data / "three.sbm", tmp_path / "a.model", settings, **chosen)
    assert not list(tmp_path.iterdir())
    if error is MemoryPlanError:
        least = {**QUICK, "mem": caught.value.least_bytes}
        sbm.train(data / "three.sbm", tmp_path / "a.model", least, **chosen)
        assert log_of(tmp_path / "a.model")[-1]["test"]["rows"] == 91
    with pytest.raises(SettingsError, match=r"--test-every .*there are 2"):
        PassTest(data / "two-test.svm").refuse_in_many(2)
