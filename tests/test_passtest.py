"""What a training tells of itself after each pass beside the old figures: a test text, and ages."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import Passes, write_rows

import sbm
from sbm.errors import DataError, MemoryPlanError, SettingsError
from sbm.jobs.training.passtest import PassTest

N_ROWS, N_FEATURES = 240, 12
QUICK = {"max_passes": 5, "tol": 1e-12, "mem": "400MB"}


def _write(path: Path, labels, seed: int, n: int = N_ROWS) -> Path:
    random = np.random.default_rng(seed)
    X = np.float32(random.normal(size=(n, N_FEATURES)) * (random.random((n, N_FEATURES)) < 0.5))
    codes = (X[:, :3] + random.normal(size=(n, 3)) / 2)[:, : len(labels)].argmax(axis=1)
    return write_rows(path, X, np.asarray(labels)[codes])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Stores of two and of three labels, and test texts, one with a label and an id of its own."""
    folder = tmp_path_factory.mktemp("data")
    for name, labels in (("two", (-1, 1)), ("three", (2, 7, 5))):
        text = _write(folder / f"{name}.svm", labels, 1)
        sbm.split(text, folder / f"{name}.sbm", blocks=4)
        test = _write(folder / f"{name}-test.svm", labels, 2, 90)
        test.write_text(test.read_text() + "9 1:1 77:3\n")
    return folder


def _log(model: Path) -> list[dict]:
    lines = model.with_name(model.name + ".run").joinpath("log.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["event"] == "pass"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("two", {"loss": "hinge", "bias": 1.5}),
        ("two", {"loss": "squared_epsilon_insensitive"}),
        ("two", {"loss": "one_class", "nu": 0.3}),
        ("three", {"loss": "hinge"}),
        ("three", {"loss": "crammer_singer"}),
    ],
)
def test_after_the_last_pass_it_is_what_the_model_predicts(data, tmp_path, name, settings):
    test, chosen = data / f"{name}-test.svm", {**QUICK, **settings, "max_passes": 3}
    model, plain = tmp_path / "a.model", tmp_path / "b.model"
    sbm.train(data / f"{name}.sbm", model, chosen, test=test)
    sbm.train(data / f"{name}.sbm", plain, chosen)
    assert model.read_bytes() == plain.read_bytes()
    told = _log(model)[-1]["test"]
    expected = sbm.predict(model, test)
    assert told["rows"] == expected["rows"] == 91
    if "mse" in expected:
        assert told["mse"] == pytest.approx(expected["mse"], rel=1e-12)
    else:
        # Rows whose label the model does not know count here: nobody gets them right.
        assert told["accuracy"] * 91 == pytest.approx(expected["correct"])


def test_a_store_is_a_test_text_too(data, tmp_path):
    sbm.train(data / "two.sbm", tmp_path / "a.model", QUICK, test=data / "two.sbm", test_every=9)
    told = [one["test"] for one in _log(tmp_path / "a.model")]
    assert told[:-1] == [None] * (len(told) - 1)
    assert told[-1]["accuracy"] == sbm.predict(tmp_path / "a.model", data / "two.sbm")["accuracy"]


def test_it_is_looked_at_after_every_nth_pass_and_the_last_and_no_second_counts(
    data, tmp_path, monkeypatch
):
    judge, looks = PassTest.judge, []

    def slow(self, *arguments):
        looks.append(self)
        time.sleep(0.1)
        return judge(self, *arguments)

    monkeypatch.setattr(PassTest, "judge", slow)
    progress, begin = Passes(), time.perf_counter()
    _, report = sbm.train(
        data / "two.sbm", tmp_path / "a.model", {**QUICK, "time_limit": 1000}, progress=progress,
        test=data / "two-test.svm", test_every=2,
    )  # fmt: skip
    took = time.perf_counter() - begin
    assert [p["pass"] for p in progress.rows if p["test"]] == [2, 4, 5]
    assert len(looks) == 3
    assert took - report["seconds"]["total"] >= 0.3
    assert progress.rows[-1]["elapsed"] <= report["seconds"]["total"]
    assert all(p["test"]["seconds"] >= 0.1 for p in progress.rows if p["test"])


def test_a_training_that_is_gone_on_with_tells_the_same(data, tmp_path, monkeypatch):
    chosen = {**QUICK, "cache_frac": 0.3, "rounds": 2}
    test = {"test": data / "two-test.svm"}
    sbm.train(data / "two.sbm", tmp_path / "whole.model", chosen, **test)
    steps = iter(range(10))
    with pytest.raises(KeyboardInterrupt):
        sbm.train(
            data / "two.sbm", tmp_path / "cut.model", chosen, **test,
            is_stopped=lambda: next(steps, 99) >= 7,
        )  # fmt: skip
    # It may also be stopped while it looks: then it looks again.
    looks, judge = [], PassTest.judge

    def stopped(self, store, problems, weights, progress, after_batch):
        looks.append(1)
        if len(looks) == 1:
            raise KeyboardInterrupt
        return judge(self, store, problems, weights, progress, after_batch)

    monkeypatch.setattr(PassTest, "judge", stopped)
    with pytest.raises(KeyboardInterrupt):
        sbm.train(data / "two.sbm", tmp_path / "cut.model", chosen, **test)
    _, report = sbm.train(data / "two.sbm", tmp_path / "cut.model", chosen, **test)
    assert report["resumed"]
    assert (tmp_path / "cut.model").read_bytes() == (tmp_path / "whole.model").read_bytes()
    whole, cut = _log(tmp_path / "whole.model"), _log(tmp_path / "cut.model")
    for one in [*whole, *cut]:
        one["test"] = {k: v for k, v in one["test"].items() if k != "seconds"}
    names = ("pass", "dual", "cached_rows", "cached_ages", "cached_zero", "test")
    assert [[p[n] for n in names] for p in cut] == [[p[n] for n in names] for p in whole]


def test_ages_are_of_the_rows_that_are_cached(data, tmp_path):
    sbm.train(data / "two.sbm", tmp_path / "some.model", {**QUICK, "cache_frac": 0.3, "C": 0.1})
    for one in _log(tmp_path / "some.model"):
        assert sum(one["cached_ages"]) == one["cached_rows"] > 0
        assert len(one["cached_ages"]) <= one["pass"]
    # A cache with room for all rows: none of them leaves, and what is told of them is certified.
    sbm.train(
        data / "two.sbm", tmp_path / "all.model",
        {**QUICK, "cache_frac": 0.9, "screen": False, "policy": "random", "C": 0.1},
    )  # fmt: skip
    log = _log(tmp_path / "all.model")
    assert [one["cached_ages"] for one in log] == [[0] * k + [N_ROWS] for k in range(len(log))]
    assert log[-1]["cached_zero"] == N_ROWS - log[-1]["certificate"]["n_support"]
    assert log[-1]["cached_free"] == log[-1]["certificate"]["n_free"]
    assert log[-1]["bytes_read"] >= log[0]["bytes_read"] > 0


def test_ages_stop_at_the_oldest():
    from sbm.rows import Arena
    from sbm.solver.cache import WorkingSet
    from sbm.solver.variables import DenseSet

    working = WorkingSet(Arena.of(80, "float32"), DenseSet(3), 2, 10)
    working.age[:3], working.n_cached = (254, 0, 9), 2
    for _ in range(3):
        working.grow_older()
    assert working.age.tolist() == [255, 3, 9]  # the last one is of no cached row
    assert working.count_ages() == [0, 0, 1] + [0] * 251 + [1]


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"test_every": 0}, SettingsError, "test_every is 0; it must be at least 1"),
        (
            {"test": "-"}, SettingsError,
            (
                "the test text is standard input, which can be read only once; put it in a file, "
                "or leave out --test-every"
            ),
        ),
        ({"test": "nothing.svm"}, DataError, "nothing.svm does not exist; give"),
        (
            {"settings": {"loss": "weston_watkins", "class_blocks": 2}}, SettingsError,
            (
                "--test-every is for one process that has all weights, and --class-blocks "
                "divides them; leave it out, and predict with the model at the end"
            ),
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_at_is_refused_before_any_work(
    data, tmp_path, options, error, sentence
):
    chosen = {"test": data / "three-test.svm", **options}
    with pytest.raises(error) as caught:
        sbm.train(data / "three.sbm", tmp_path / "a.model", chosen.pop("settings", {}), **chosen)
    assert str(caught.value).startswith(sentence)
    assert not list(tmp_path.iterdir())


def test_memory_beside_the_training_is_asked_for_and_not_taken_from_it(data, tmp_path):
    test = data / "two-test.svm"
    with pytest.raises(MemoryPlanError) as caught:
        sbm.train(data / "two.sbm", tmp_path / "a.model", {"mem": "140MB"}, test=test)
    assert str(caught.value).startswith("--mem 140 MB is too little to train on ")
    assert str(caught.value).endswith("MB, or leave out --test-every")
    least = caught.value.least_bytes
    sbm.train(data / "two.sbm", tmp_path / "a.model", {**QUICK, "mem": least}, test=test)
    assert _log(tmp_path / "a.model")[-1]["test"]["rows"] == 91


def test_several_processes_are_refused(data):
    with pytest.raises(SettingsError) as caught:
        PassTest(data / "two-test.svm").refuse_in_many(sbm.Settings(), 2)
    assert str(caught.value) == (
        "--test-every is for one process that has all weights, and there are 2; leave it out, and "
        "predict with the model at the end"
    )


def test_the_command_line_says_what_is_missing(capsys):
    from sbm.cli import main

    with pytest.raises(SystemExit) as end:
        main(["train", "a.sbm", "--test-every", "2"])
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "sbm: --test-every needs a text to predict; give one with --test FILE\n"
    )
