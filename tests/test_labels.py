"""Labels: of a single class, of a later file, and the positive one of two."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import BlockStore, NewLabels, Source, read_manifest, write_manifest

import sbm
from sbm.errors import DataError, SettingsError

TIGHT = {"mem": "400MB", "tol": 1e-8, "max_passes": 500}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, labels, n=24, seed=0, table=False):
    """Write rows with these labels in turn, of which the first feature depends on the label."""
    random = np.random.default_rng(seed)
    lines = ["label,a,b"] if table else []
    for k in range(n):
        label, a, b = labels[k % len(labels)], *random.normal(size=2)
        a += 2 * (k % len(labels)) - 1
        lines.append(f"{label},{a:.3f},{b:.3f}" if table else f"{label} 1:{a:.3f} 2:{b:.3f}")
    Path(name).write_text("\n".join(lines) + "\n")
    return name


@pytest.fixture
def run(place, run):
    return run


def contents(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


# ------------------------------------------------------------------------------- one label

LOSSES = [
    {"loss": "hinge"}, {"loss": "log_loss"}, {"loss": "hinge", "solver": "newton"},
    {"loss": "squared_hinge", "penalty": "l1"}, {"loss": "hinge", "calibrate": True},
    {"loss": "squared_error", "task": "classification"}, {"loss": "hinge", "validate": 0.3},
]  # fmt: skip


@pytest.mark.parametrize("settings", LOSSES, ids=str)
@pytest.mark.parametrize("label", [1, -1, 0, 2.5])
def test_single_label_is_all_the_model_predicts(place, label, settings):
    write("t.svm", [label])
    Path("n.svm").write_text("1:-9 2:-9\n1:9 2:9\n7:1\n")
    model, report = sbm.train("t.svm", "t.model", {"mem": "400MB", **settings})
    assert model.labels == [label]
    assert report["only_label"] == f"{label:g}"
    assert sbm.predict(model, "t.svm")["accuracy"] == 1.0
    assert model.predict(np.array([[0, -9.0, -9.0]])).tolist() == [label]
    sbm.predict("t.model", "n.svm", "out")
    assert Path("out").read_text() == f"{label:g}\n" * 3
    if label != 2.5:
        sbm.export(model, "l.model")
        sbm.predict(sbm.Model.load("t.model"), "n.svm", "out")
        assert "nr_class 1\nlabel" in Path("l.model").read_text()
    if "calibrate" in settings or settings["loss"] == "log_loss":
        assert model.predict_proba(np.zeros((2, 3))).tolist() == [[1.0], [1.0]]
    with pytest.raises(SettingsError, match="only the label"):
        model.to_sklearn()


def test_single_word_reads_its_own_training_file(place, run):
    write("t.csv", ["yes"], table=True)
    code, out, _ = run("train t.csv -q")
    assert code == 0
    assert "only the label yes" in out
    write("n.csv", ["yes", "no"], table=True)
    assert sbm.predict("t.model", "t.csv")["accuracy"] == 1.0
    assert sbm.predict("t.model", "n.csv", "out")["accuracy"] == 0.5
    assert set(Path("out").read_text().split()) == {"yes"}
    sbm.predict("t.model", "n.csv", confusion=["c.tsv"])
    assert Path("c.tsv").read_text() == "true\\predicted\tyes\nyes\t12\nunknown\t12\n"
    assert [row["label"] for row in sbm.inspect("t.model")["classes"]] == ["yes"]
    for ending in ("json", "npz", "liblinear"):
        sbm.export("t.model", f"e.{ending}", format=ending)
    assert np.load("e.npz")["labels"].tolist() == ["yes"]


@pytest.mark.parametrize(
    "settings", [{"loss": "crammer_singer"}, {"loss": "weston_watkins"}, {"intercept": True}]
)
def test_losses_of_two_classes_refuse_one(place, settings):
    settings = {"loss": "log_loss", **settings}
    sbm.split(write("t.svm", [1, 2]), "t.sbm")
    sbm.split(write("u.svm", [2], seed=1), "t.sbm", append=True)
    sbm.expire("t.sbm", sources="t.svm")
    for data in (write("v.svm", [2]), "t.sbm"):
        with pytest.raises(DataError, match=r"label 2.*two classes"):
            sbm.train(data, "t.model", settings)


def test_estimators_refuse_one_class(place):
    sklearn = pytest.importorskip("sbm.sklearn")
    with pytest.raises(ValueError, match="two classes"):
        sklearn.SBMClassifier().fit(write("t.svm", [3]))
    with pytest.raises(ValueError, match="two classes"):
        sklearn.SBMClassifier().partial_fit(np.ones((4, 2)), np.ones(4), classes=[1])


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_stream_of_one_label_predicts_it(place, loss):
    model, _ = sbm.stream(write("t.svm", [-1]), "t.model", {"mem": "400MB", "loss": loss})
    assert model.labels == sbm.Model.load("t.model").labels == [-1.0]
    assert model.predict(np.array([[0, 9.0, 9.0], [0, -9.0, -9.0]])).tolist() == [-1, -1]
    both, _ = sbm.stream(write("u.svm", [1, -1], n=400), "t.model", resume=True)
    assert both.labels == [-1.0, 1.0]
    assert sbm.predict(both, "u.svm")["accuracy"] > 0.8


def test_tune_with_one_label(place):
    sbm.split(write("t.svm", [4]), "t.sbm")
    model, _ = sbm.tune("t.sbm", "t.model", Cs=[0.1, 1.0], settings={"mem": "400MB"})
    assert model.labels == [4.0]
    with pytest.raises(SettingsError, match="accuracy or macro_f1"):
        sbm.tune("t.sbm", "u.model", Cs=[0.1, 1.0], metric="auc")


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), [([5], [7]), ([7], [5]), ([-1], [1]), ([-3], [-5])])
@pytest.mark.parametrize("settings", LOSSES[:4] + LOSSES[5:6], ids=str)
def test_second_label_and_expire_start_warm(place, first, second, settings):
    settings = {**TIGHT, **settings}
    sbm.split(write("a.svm", first), "s.sbm")
    sbm.train("s.sbm", "s.model", settings)
    sbm.split(write("b.svm", second, seed=1), "s.sbm", append=True)
    both, report = sbm.train("s.sbm", "s.model", {**settings, "warm_start": True})
    assert report["converged"]
    assert both.labels == sorted(first + second)
    cold, _ = sbm.train("s.sbm", "c.model", settings)
    np.testing.assert_allclose(both.W, cold.W, atol=2e-3)
    sbm.expire("s.sbm", sources="a.svm")
    last, _ = sbm.train("s.sbm", "s.model", {**settings, "warm_start": True})
    assert last.labels == second
    assert sbm.predict(last, "b.svm")["accuracy"] == 1.0


@pytest.mark.parametrize("settings", [{"loss": "hinge"}, LOSSES[1], LOSSES[3]], ids=str)
def test_expired_classes_leave_one_and_come_back(place, settings):
    settings = {**TIGHT, **settings, "warm_start": True}
    sbm.split(write("a.svm", [1, 2, 3]), "s.sbm")
    sbm.split(write("b.svm", [2], seed=1), "s.sbm", append=True)
    sbm.train("s.sbm", "s.model", settings)
    manifest = read_manifest(Path("s.sbm"))
    manifest["generations"][0]["added"] = "2020-01-01T00:00:00+00:00"
    write_manifest(Path("s.sbm"), manifest)
    sbm.expire("s.sbm", before="2021-01-01")  # which keeps the labels
    model, _ = sbm.train("s.sbm", "s.model", settings)
    assert model.labels == [2.0]
    assert model.W.shape[1] == 1
    sbm.split(write("c.svm", [3, 1], seed=2), "s.sbm", append=True)
    assert sbm.train("s.sbm", "s.model", settings)[0].labels == [1, 2, 3]


# ------------------------------------------------------------------------- labels of later files


@pytest.mark.parametrize(
    ("old", "new", "label"),
    [
        ([0, 1], [1, -1], "-1"), ([-1, 1], [0, 1], "0"), ([1, 2], [0, 1], "0"),
        ([1, 2, 3], [3, 4], "4"), ([1, 2], [3], "3"), ([7], [0, 1], "0"),
    ],
)  # fmt: skip
def test_appended_file_with_new_label_is_refused(place, run, old, new, label):
    sbm.split(write("a.svm", old), "s.sbm")
    before = contents("s.sbm")
    code, _, error = run(["split", "--append", "s.sbm", write("b.svm", new, seed=1)])
    assert code == 1
    for word in ("b.svm", "s.sbm", "--new-labels", "sbm expire"):
        assert word in error
    assert f"label {label}," in error
    assert contents("s.sbm") == before
    assert run("split --append s.sbm b.svm --new-labels")[0] == 0
    assert set(BlockStore(Path("s.sbm")).labels) == {*old, *new}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([0, 1], [0]), ([0, 1], [1, 0]), ([1], [-1, 1]), ([1], [-1]), ([1, 2, 3], [2, 3]),
        ([0.5, 1.25, 2], [3, 4.5]), (list(range(24)), [99]),
    ],
)  # fmt: skip
def test_appended_file_with_fitting_labels_is_accepted(place, old, new):
    sbm.split(write("a.svm", old), "s.sbm")
    sbm.split(write("b.svm", new, seed=1), "s.sbm", append=True)
    assert set(BlockStore(Path("s.sbm")).labels) == {*old, *new}


def test_words_and_numbers_in_tables_are_two_codings(place):
    sbm.split(write("a.csv", ["yes", "no"], table=True), "s.sbm")
    with pytest.raises(DataError, match=r"b.csv: row 1 has the label 1, .* no, yes"):
        sbm.split(write("b.csv", [1, 0], table=True), "s.sbm", append=True)
    with pytest.raises(DataError, match=r"b.csv: row 1 has the label 1, "):
        sbm.train(["a.csv", "b.csv"], "m.model")
    assert not Path("m.model").exists()


def test_row_is_that_of_the_first_new_label(place):
    sbm.split(write("a.svm", [0, 1]), "s.sbm")
    Path("b.svm").write_text("1 1:1\n" * 40_000 + "-1 1:1\n")
    with pytest.raises(DataError, match="row 40001 has the label -1,"):
        sbm.split("b.svm", "s.sbm", append=True)


@pytest.mark.parametrize("command", ["split", "train", "stream"])
def test_two_codings_in_one_command_are_refused(run, command):
    inputs = [write("a.svm", [1, 0]), write("b.svm", [-1, 1], seed=1)]
    code, _, error = run([command, *inputs, "-o", "m"])
    assert code == 1
    assert "b.svm: row 1 has the label -1, " in error
    assert "--new-labels" in error
    assert Path("m").exists() == (command == "stream")  # which keeps what it learned
    assert run([command, *inputs, "-o", "n", "--new-labels"])[0] == 0


@pytest.mark.parametrize("command", ["split", "train", "stream"])
@pytest.mark.parametrize(
    "files", [[[1], [2], [3], [4]], [[1, 2, 3], [1, 4]], [[1], [1, 2]], [[0], [1], [1]]], ids=str
)
def test_files_of_many_classes_need_no_option(run, command, files):
    inputs = [write(f"{k}.svm", labels, seed=k) for k, labels in enumerate(files)]
    assert run([command, *inputs, "-o", "m"])[0] == 0


def test_targets_of_several_files_may_be_new(place):
    inputs = [write("a.svm", [1, 2]), write("b.svm", [3, 4], seed=1)]
    sbm.train(inputs, "m.model", {"loss": "squared_error"})
    sbm.stream(inputs, "n.model", {"loss": "epsilon_insensitive"})
    with pytest.raises(DataError):
        sbm.train(inputs, "k.model")


def test_resumed_stream_refuses_as_before(place):
    write("a.svm", [1, 0])
    sbm.stream("a.svm", "m.model", {"mem": "400MB"})
    write("b.svm", [1, -1], seed=1)
    with pytest.raises(DataError, match=r"b.svm: row 2 has the label -1,.* resume=True"):
        sbm.stream("b.svm", "m.model", resume=True)
    model, report = sbm.stream("b.svm", "m.model", resume=True, options={"new_labels": True})
    assert (report["rows"], model.labels) == (48, [-1, 0, 1])


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=4))
def test_refusal_does_not_depend_on_pieces(files):
    """It is the rule of docs/inputs.md, whatever the order of rows and however they are cut."""

    def is_refused(store, size):
        known = [0.0, 1.0] if store else []
        judge = NewLabels(known, store=store)
        for labels in files:
            source = Source("a.svm")
            for k in range(0, len(labels), size):
                if judge.look(source, np.array(labels[k : k + size], float)) is not None:
                    return True
        return False

    assert is_refused("", 1) == is_refused("", 6)
    assert is_refused("s.sbm", 1) == (not {*itertools.chain(*files)} <= {0, 1})
    expected, before, is_pair = False, set(), False
    for labels in map(set, files):
        is_pair = is_pair or len(labels) > 1
        expected |= len(before) == 2 and is_pair and not labels <= before
        before |= labels
    assert is_refused("", 2) == expected


def test_file_that_was_begun_before_a_resume_may_have_more_labels(place):
    """Labels are read ahead of the rows that a checkpoint counts."""
    path, labels = str(place / "a.svm"), np.array([3.0, 1.0, 2.0])
    write("a.svm", labels)
    write("b.svm", labels)
    for name, first, refused in (("a.svm", 0, None), ("a.svm", 2, None), ("b.svm", 0, 0)):
        judge = NewLabels(here=[1.0, 2.0], here_of=path, is_pair=False)
        assert judge.current == path
        assert judge.look(Source(name), labels, first) == refused


@pytest.mark.parametrize("settings", [{"loss": "hinge"}, {"loss": "log_loss", "penalty": "l1"}])
def test_wrong_append_is_taken_back(place, settings):
    sbm.split(write("a.csv", ["yes", "no"], table=True), "s.sbm")
    first, _ = sbm.train("s.sbm", "s.model", {**TIGHT, **settings})
    write("b.csv", [1, 0], seed=1, table=True)
    sbm.split("b.csv", "s.sbm", append=True, new_labels=True)
    sbm.split(write("c.csv", ["no"], n=3, seed=2, table=True), "s.sbm", append=True)
    warm = {**TIGHT, **settings, "warm_start": True}
    with pytest.raises(
        SettingsError, match=r"labels 1, 0, .* sbm.expire\(.s.sbm., sources=.b.csv.\)"
    ):
        sbm.train("s.sbm", "s.model", warm)
    report = sbm.expire("s.sbm", sources="b.csv")
    assert report["labels_dropped"] == ["1", "0"]
    assert sbm.check("s.sbm")["rows"] == 27
    model, _ = sbm.train("s.sbm", "s.model", warm)
    assert model.label_names == first.label_names
    with pytest.raises(DataError, match="new_labels=True"):
        sbm.split("b.csv", "s.sbm", append=True)


@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_run_with_dropped_labels_starts_from_zero(place, penalty):
    settings = {**TIGHT, "loss": "log_loss", "penalty": penalty}
    sbm.split(write("a.svm", [1, 2, 3]), "s.sbm")
    sbm.split(write("b.svm", [9], seed=1), "s.sbm", append=True, new_labels=True)
    sbm.train("s.sbm", "s.model", settings)
    sbm.expire("s.sbm", sources="b.svm")
    model, report = sbm.train("s.sbm", "s.model", {**settings, "warm_start": True})
    assert model.labels == [1, 2, 3]
    assert report["converged"]


@pytest.mark.process
def test_nightly_script_refuses_new_labels(place):
    script = Path(__file__).resolve().parent.parent / "scripts" / "nightly.sh"
    sbm_on_path = place / "sbm"
    sbm_on_path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sbm "$@"\n')
    sbm_on_path.chmod(0o755)

    def night(*words):
        command = ["sh", str(script), *words[:-1], "s.sbm", "s.model", words[-1]]
        environment = {**os.environ, "SBM": str(sbm_on_path)}
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert night(write("a.svm", [1])).returncode == 0
    assert sbm.Model.load("s.model").labels == [1.0]
    assert night(write("b.svm", [1, -1], seed=1)).returncode == 0
    before = Path("s.model").read_bytes()
    refused = night(write("c.svm", [1, 0], seed=2))
    assert refused.returncode == 1
    assert "c.svm: row 2 has the label 0" in refused.stderr
    assert Path("s.model").read_bytes() == before
    assert night(write("d.svm", [-1, 1], seed=3)).returncode == 0
    assert night("-n", "c.svm").returncode == 2  # the warm start has other classes


# ------------------------------------------------------------------------------ the positive label

BINARY = [*LOSSES[:-1], {"loss": "log_loss", "intercept": True}]


@pytest.mark.long
@pytest.mark.parametrize("settings", BINARY, ids=str)
@pytest.mark.parametrize("labels", [["high", "low"], [0, 1], [1, -1], ["fail", "pass"]], ids=str)
def test_positive_label_turns_decision_values(place, labels, settings):
    table = isinstance(labels[0], str)
    data = write("t.csv" if table else "t.svm", labels, n=200, table=table)
    texts = sorted(map(str, labels), key=lambda text: text if table else float(text))
    plain, _ = sbm.train(data, "a.model", {**TIGHT, **settings})
    model, _ = sbm.train(data, "b.model", {**TIGHT, **settings, "positive": texts[0]})
    assert (plain.label_texts(), model.label_texts()) == (texts, texts[::-1])
    np.testing.assert_allclose(model.W, -plain.W, atol=2e-3)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=2e-3)
    same, other = sbm.predict(plain, data), sbm.predict(model, data)
    assert other["accuracy"] == same["accuracy"]
    assert other["auc"] == pytest.approx(same["auc"], abs=1e-3)
    assert other["classes"][1]["f1"] == same["classes"][0]["f1"]
    assert str(sbm.inspect(model)["classes"][0]["label"]) == texts[0]
    assert sbm.inspect(plain, model)["classes"][0]["cosine"] == pytest.approx(1)
    if "calibrate" in settings or settings["loss"] == "log_loss":
        titles = []
        for name in ("a", "b"):
            sbm.predict(f"{name}.model", data, f"{name}.txt", probability=True)
            titles.append(Path(f"{name}.txt").read_text().split("\n")[0])
        assert titles[0] == titles[1] == f"labels {' '.join(texts)}"
    if not table:
        sbm.export(model, "l.model")
        assert sbm.predict("l.model", data)["accuracy"] == same["accuracy"]
        assert sbm.Model.load("l.model").labels == model.labels


@pytest.mark.parametrize("settings", [{}, {"penalty": "l1"}])
def test_warm_start_turns_with_the_positive_label(place, settings):
    settings = {**TIGHT, "loss": "squared_hinge", **settings}
    sbm.split(write("t.svm", [0, 1], n=200), "t.sbm")
    sbm.train("t.sbm", "t.model", settings)
    turned = {**settings, "positive": 0}
    model, report = sbm.train("t.sbm", "t.model", {**turned, "warm_start": True})
    assert (model.labels, report["passes"]) == ([1, 0], 0 if settings.get("penalty") != "l1" else 1)
    cold, _ = sbm.train("t.sbm", "c.model", turned)
    np.testing.assert_allclose(model.W, cold.W, atol=1e-3)


def test_threshold_and_confusion_are_those_of_the_positive_label(run):
    data = write("t.csv", ["low", "low", "low", "high"], n=400, table=True)
    options = ["--validate", "20%", "--threshold", "f1", "--positive", "high", "--metric", "f1"]
    assert "label high is predicted above" in run(["train", data, *options])[1]
    report = sbm.predict("t.model", data, confusion=["c.tsv"])
    (tn, fp), (fn, tp) = report["confusion"]
    assert report["labels"] == ["low", "high"]
    assert (tn + fp, fn + tp) == (300, 100)
    rows = Path("c.tsv").read_text().splitlines()
    assert rows == ["true\\predicted\tlow\thigh", f"low\t{tn}\t{fp}", f"high\t{fn}\t{tp}"]


def test_stream_and_tune_know_the_positive_label(place):
    data = write("t.svm", [1, 0], n=200)
    model, _ = sbm.stream(data, "s.model", {"mem": "400MB", "positive": 0})
    assert model.labels == [1, 0]
    assert sbm.predict(model, data)["accuracy"] > 0.8
    sbm.split(data, "t.sbm")
    tuned, _ = sbm.tune(
        "t.sbm", "t.model", Cs=[0.1, 1.0], metric="f1", settings={"mem": "400MB", "positive": "0"}
    )
    assert tuned.labels == [1, 0]


@pytest.mark.parametrize(
    ("labels", "settings", "words"),
    [
        ([0, 1], {"positive": 2}, "0 and 1"),
        ([0, 1], {"positive": "yes"}, "(0 and 1|are numbers)"),
        ([1, 2, 3], {"positive": 1}, "3 labels"),
        ([0, 1], {"positive": 1, "loss": "crammer_singer"}, "crammer_singer"),
        ([0, 1], {"positive": 1, "loss": "squared_error"}, "no classes"),
        ([0, 1], {"positive": 1, "loss": "one_class"}, "no classes"),
        ([0, 1], {"positive": [1]}, "a label is expected"),
    ],
)  # fmt: skip
def test_positive_label_that_does_not_fit_is_refused(place, labels, settings, words):
    data = write("t.svm", labels)
    with pytest.raises(SettingsError, match=f"positive .*{words}"):
        sbm.train(data, "t.model", settings)
    if settings.get("loss") in (None, "crammer_singer"):
        with pytest.raises(SettingsError, match=f"positive .*{words}"):
            sbm.stream(data, "s.model", settings)
