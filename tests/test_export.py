"""Exports: every format reads back, pruning tells what it costs, and what is refused."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import fit, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sbm
from sbm.cli import cli, main
from sbm.errors import DataError, SettingsError, StoreError
from sbm.jobs.export import FORMATS
from sbm.store import model as model_module
from sbm.store.model import Model

ROOT = Path(__file__).resolve().parent.parent
INFO = {
    "loss": "hinge", "C": 0.5, "converged": True,
    "certificate": {"primal": 1.5, "dual": 1.25, "gap": 0.25},
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(here, capfd):
    """Run a line in this process; exit code, stdout, stderr."""
    handler = signal.getsignal(signal.SIGTERM)

    def call(line: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:  # anything else would be a traceback
            main(shlex.split(line.removeprefix("sbm ")))
        out, err = capfd.readouterr()
        return end.value.code, out, err

    yield call
    signal.signal(signal.SIGTERM, handler)


def _model() -> Model:
    W = np.array([[1.0], [-0.25], [0.01], [0.0], [-0.5]])
    return Model(np.array([1, 2, 3, 4, 5]), W, [-1.0, 1.0], 1.0, np.array([0.001]), dict(INFO))


# By hand: 0.001 + w.x of the lines is 0.011, -0.489, 0.501, -0.749; without weights up to 0.1 the
# first is 0.001, and without those up to 0.25 the last is -0.499.
TEXT = "1 3:1\n-1 5:1\n1 1:1 5:1\n-1 2:1 5:1\n"


# ----------------------------------------------------------------------------- round trips


def _read_npz(path: str) -> Model:
    with np.load(path, allow_pickle=False) as file:
        return Model(
            file["ids"], file["W"], file["labels"].tolist(), float(file["bias"]),
            file["bias_weights"], {"loss": str(file["loss"])},
        )  # fmt: skip


def _read_json(path: str) -> Model:
    content = json.loads(Path(path).read_text())
    weights = content["weights"]
    outputs = len(content["bias_weights"])
    return Model(
        np.array([int(i) for i in weights], np.int64),
        np.array(list(weights.values()), np.float64).reshape(len(weights), outputs),
        content["labels"], content["bias"], np.array(content["bias_weights"]), content["info"],
    )  # fmt: skip


READERS = {"npz": _read_npz, "json": _read_json, "sbm": Model.load}
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(st.data(), st.sampled_from(sorted(READERS)))
def test_random_models_survive_every_format(here, data, form):
    n_labels = data.draw(st.sampled_from([0, 2, 3, 5]))
    labels = data.draw(st.lists(FINITE, min_size=n_labels, max_size=n_labels, unique=True))
    outputs = n_labels if n_labels > 2 else data.draw(st.sampled_from([1, n_labels or 1]))
    ids = data.draw(st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=12))
    W = data.draw(hnp.arrays(np.float64, (len(ids), outputs), elements=FINITE))
    bias, weights = data.draw(FINITE), data.draw(hnp.arrays(np.float64, outputs, elements=FINITE))
    model = Model(np.array(ids, np.int64), W, labels, bias, weights, dict(INFO))
    part = data.draw(st.sampled_from([1, 10, 1 << 17]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "_PART", part)
        report = sbm.export(model, "out", format=form)
    found = READERS[form]("out")
    used = W.any(axis=1)
    assert found.ids.tolist() == model.ids[used].tolist()
    np.testing.assert_array_equal(found.W, W[used])
    assert (found.labels, found.bias) == (labels, bias)
    assert found.bias_weights.tolist() == weights.tolist()
    assert found.info["loss"] == "hinge"
    assert report == {
        "model": None, "output": "out", "format": form, "bytes": os.path.getsize("out"),
        "features": int(used.sum()), "weights": np.count_nonzero(W),
    }  # fmt: skip
    os.remove("out")


def test_the_formats_of_the_command_are_the_table():
    option = next(p for p in cli.commands["export"].params if p.name == "format")
    assert list(option.type.choices) == list(FORMATS)


def test_json_is_a_line_a_feature_and_says_what_is_certified(here):
    sbm.export(_model(), "m.json", format="json")
    lines = Path("m.json").read_text().splitlines()
    assert lines[1:] == ['"1": 1.0,', '"2": -0.25,', '"3": 0.01,', '"5": -0.5', "}}"]
    content = json.loads("".join(lines))
    assert (content["format"], content["loss"], content["info"]) == ("sbm model", "hinge", INFO)


def test_an_npz_file_of_a_regression_model_has_no_labels(here):
    sbm.export(Model(np.array([3]), np.ones((1, 1)), []), "m.npz", format="npz")
    with np.load("m.npz", allow_pickle=False) as file:
        assert sorted(file) == ["W", "bias", "bias_weights", "ids", "labels", "loss"]
        assert file["labels"].shape == (0,)


@pytest.mark.parametrize("form", list(FORMATS))
def test_models_of_liblinear_are_written_in_every_format(here, form):
    model = _model()
    sbm.export(model, "m.txt")
    sbm.export("m.txt", "out", format=form)
    found = (sbm.interop.liblinear.read_model if form == "liblinear" else READERS[form])("out")
    assert found.info["loss"] == "hinge"
    np.testing.assert_array_equal(found.weights_of(model.ids), model.W)
    Path("t.svm").write_text(TEXT)
    if form in ("liblinear", "sbm"):
        assert sbm.predict("out", "t.svm") == sbm.predict(model, "t.svm")


def test_a_trained_model_is_exported_and_predicts_the_same(here):
    random = np.random.default_rng(0)
    X = random.integers(-4, 5, (60, 8)) / 4
    write_rows(Path("t.svm"), X, np.where(X[:, 0] + X[:, 1] > 0, 1, -1))
    sbm.split(["t.svm"], "t.sbm", blocks=2)
    model, _, _ = fit(here / "t.sbm", bias=1.0)
    for form in ("liblinear", "sbm"):
        sbm.export("m.model", "again", format=form)
        assert sbm.predict("again", "t.svm") == sbm.predict(model, "t.svm")
        os.remove("again")


# --------------------------------------------------------------------------------- pruning


@pytest.mark.parametrize(
    ("threshold", "ids", "dropped", "after"),
    [
        (0.0, [1, 2, 3, 5], 0, 1.0), (0.01, [1, 2, 5], 1, 1.0), (0.25, [1, 5], 2, 1.0),
        (0.5, [1], 3, 0.5), (7.0, [], 4, 0.5),
    ],
)  # fmt: skip
def test_small_weights_are_dropped_and_the_accuracy_is_told(here, threshold, ids, dropped, after):
    Path("t.svm").write_text(TEXT)
    model = _model()
    report = sbm.export(model, "p.model", format="sbm", prune=threshold, test="t.svm")
    found = Model.load("p.model")
    assert found.ids.tolist() == ids
    np.testing.assert_array_equal(found.W, model.weights_of(np.array(ids, np.int64)))
    assert (found.bias, found.bias_weights.tolist()) == (1.0, [0.001])  # less than the threshold
    assert report == {
        "model": None, "output": "p.model", "format": "sbm", "pruned": threshold,
        "dropped": dropped, "test": "t.svm", "measure": "accuracy", "before": 1.0, "after": after,
        "change": after - 1.0, "bytes": os.path.getsize("p.model"), "features": len(ids),
        "weights": len(ids),
    }  # fmt: skip
    assert sbm.predict("p.model", "t.svm")["accuracy"] == after
    assert model.W.tolist() == _model().W.tolist()  # it was not touched


def test_nothing_is_certified_of_a_pruned_model_and_info_says_so(here):
    _model().save("m.model")
    sbm.export("m.model", "p.model", format="sbm", prune=0.25)
    facts = sbm.info("p.model")
    assert facts["pruned"] == 0.25
    assert (facts["loss"], facts["C"], facts["features"]) == ("hinge", 0.5, 2)
    assert not {"certificate", "converged"} & set(facts)
    pruned = Model.load("p.model")
    assert (pruned.certificate, pruned.converged) == ({}, False)
    sbm.export("p.model", "q.model", format="sbm", prune=0.5)
    assert sbm.info("q.model")["pruned"] == 0.5
    sbm.export("p.model", "r.model", format="sbm")
    assert sbm.info("r.model")["pruned"] == 0.25


def test_a_model_that_lost_nothing_keeps_its_certificate(here):
    sbm.export(_model(), "p.model", format="sbm", prune=0.001)
    assert Model.load("p.model").info == INFO


def test_of_several_columns_each_weight_is_looked_at(here):
    W = np.array([[1.0, 0.1, -0.1], [0.05, -0.05, 0.0]])
    model = Model(np.array([1, 2]), W, [1.0, 2.0, 3.0], info={"loss": "hinge"})
    report = sbm.export(model, "p.npz", format="npz", prune=0.1)
    assert (report["dropped"], report["features"], report["weights"]) == (4, 1, 1)
    with np.load("p.npz") as file:
        assert file["W"].tolist() == [[1.0, 0.0, 0.0]]


def test_a_store_may_be_the_test(here):
    Path("t.svm").write_text(TEXT)
    sbm.split(["t.svm"], "t.sbm", blocks=1)
    report = sbm.export(_model(), "p.model", format="sbm", prune=0.5, test="t.sbm")
    assert (report["before"], report["after"], report["change"]) == (1.0, 0.5, -0.5)


def test_of_a_regression_model_the_error_is_told(run):
    model = Model(np.array([1, 2]), np.array([[2.0], [0.5]]), [], info={"loss": "squared_error"})
    model.save("m.model")
    Path("t.svm").write_text("2 1:1\n3 1:1 2:2\n")
    report = sbm.export("m.model", "p.model", format="sbm", prune=0.5, test="t.svm")
    assert (report["measure"], report["before"], report["after"], report["change"]) == (
        "mse", 0.0, 0.5, 0.5,
    )  # fmt: skip
    _, out, _ = run("sbm export m.model --prune 0.5 --test t.svm -q")
    assert out.splitlines()[1:] == [
        "1 weight between -0.5 and 0.5 dropped",
        "mean squared error 0 before, 0.5 after: +0.5",
    ]


def test_a_test_without_rows_shows_nothing(here):
    Path("t.svm").write_text("\n")
    report = sbm.export(_model(), "p.model", format="sbm", prune=0.5, test="t.svm")
    assert (report["before"], report["after"], report["change"]) == (None, None, None)


# ------------------------------------------------------------------------------ the command


def test_the_command_tells_what_it_wrote(run):
    _model().save("big.model")
    assert run("sbm export big.model") == (
        0, "big.liblinear.model: 4 weights of 4 features, 108 B\n", "",
    )  # fmt: skip
    assert Path("big.liblinear.model").read_text() == (
        "solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel 1 -1\nnr_feature 5\nbias 1\nw\n"
        "1 \n-0.25 \n0.01 \n0 \n-0.5 \n0.001 \n"
    )
    for form, name in (("npz", "big.npz"), ("json", "big.json"), ("sbm", "big.sbm.model")):
        code, out, err = run(f"sbm export big.model --format {form}")
        assert (code, err) == (0, "")
        assert out.startswith(f"{name}: 4 weights of 4 features, ")
    code, out, _ = run("sbm export big.model -o x.txt --json")
    assert json.loads(out) == {
        "model": "big.model", "output": "x.txt", "format": "liblinear", "bytes": 108,
        "features": 4, "weights": 4,
    }  # fmt: skip


def test_the_command_tells_what_pruning_costs(run):
    _model().save("big.model")
    Path("t.svm").write_text(TEXT)
    code, out, err = run("sbm export big.model --prune 0.25 -q")
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == [
        "2 weights between -0.25 and 0.25 dropped",
        "what that does to predictions was not looked at; --test FILE shows it",
    ]
    code, out, _ = run("sbm export big.model --prune 0.5 --test t.svm -q")
    assert out.splitlines()[1:] == [
        "3 weights between -0.5 and 0.5 dropped",
        "accuracy 100.0000 % before, 50.0000 % after: -50.0000 points",
    ]
    Path("none.svm").write_text("")
    code, out, _ = run("sbm export big.model --prune 0.5 --test none.svm -q")
    assert out.splitlines()[2:] == ["none.svm holds no rows to show what that does"]
    code, out, _ = run("sbm export big.model --prune 0.5 --format sbm -o p.model -q")
    code, out, _ = run("sbm info p.model")
    assert re.search(r"(?m)^ +pruned: 0\.5$", out)
    assert "certificate" not in out


def test_liblinear_and_its_predictions_are_not_imported_for_our_own_models(here):
    _model().save("big.model")
    Path("t.svm").write_text(TEXT)
    code = (
        "import sys, sbm; sbm.predict('big.model', 't.svm'); sbm.info('big.model')\n"
        "print([m for m in sys.modules if m.startswith('sbm.interop.liblinear')])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "[]\n"


# -------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "liblineer"}, ("unknown format 'liblineer', known are liblinear, npz, json, "
         "sbm; did you mean 'liblinear'?")),
        ({"prune": -1.0}, "prune is -1.0; it must be 0 or a positive number"),
        ({"prune": float("nan")}, "prune is nan; it must be 0 or a positive number"),
        ({"prune": float("inf")}, "prune is inf; it must be 0 or a positive number"),
        ({"test": "t.svm"}, ("test shows what pruning changes, but nothing is pruned; add --prune, "
         "or leave out --test")),
        ({"prune": 1.0, "test": "-"}, ("test is -, but it is predicted twice; give a file or a "
         "store")),
        ({"output": "m.model"}, ("the output m.model would replace an input; choose another name "
         "with -o")),
        ({"output": "link", "format": "sbm"}, ("the output link would replace an input; choose "
         "another name with -o")),
        ({"output": "t.svm", "prune": 1.0, "test": "t.svm"}, ("the output t.svm would replace an "
         "input; choose another name with -o")),
    ],
)  # fmt: skip
def test_options_that_have_no_meaning_are_refused(here, options, message):
    _model().save("m.model")
    Path("t.svm").write_text(TEXT)
    os.link("m.model", "link")
    before = {path: path.read_bytes() for path in here.iterdir()}
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        sbm.export("m.model", **{"output": "out", **options})
    assert {path: path.read_bytes() for path in here.iterdir()} == before


def test_a_model_in_memory_needs_a_name(here):
    message = "a model in memory has no name to derive the output's from; give one"
    with pytest.raises(SettingsError, match=f"^{message}$"):
        sbm.export(_model())


def test_a_test_that_is_missing_is_noticed_before_anything_is_written(here):
    with pytest.raises(DataError, match=r"none\.svm"):
        sbm.export(_model(), "out", prune=1.0, test="none.svm")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("form", list(FORMATS))
def test_a_file_of_the_same_kind_is_replaced_and_no_other(here, form):
    for other in FORMATS:
        sbm.export(_model(), other, format=other)
    Path("text").write_text("1 1:1\n")
    Path("empty").write_text("")
    for other in [*FORMATS, "text", "empty"]:
        before = Path(other).read_bytes()
        if other == form:
            sbm.export(_model(), other, format=form, prune=0.5)
            assert Path(other).read_bytes() != before
            continue
        message = f"{other} exists and is no {form} model; choose another name with -o"
        with pytest.raises(StoreError, match=f"^{message}$"):
            sbm.export(_model(), other, format=form)
        assert Path(other).read_bytes() == before


@pytest.mark.parametrize("form", list(FORMATS))
def test_places_that_cannot_be_written_are_refused(here, form):
    Path("folder").mkdir()
    with pytest.raises(StoreError, match=r"^folder is a folder; give a file name with -o$"):
        sbm.export(_model(), "folder", format=form)
    message = "none is no folder; make it, or choose another place with -o"
    with pytest.raises(StoreError, match=f"^{message}$"):
        sbm.export(_model(), "none/m", format=form)
    os.mkfifo("pipe")
    with pytest.raises(StoreError, match=rf"^pipe exists and is no {form} model; "):
        sbm.export(_model(), "pipe", format=form)


@pytest.mark.parametrize("form", list(FORMATS))
def test_a_full_disk_leaves_nothing_behind(here, form):
    import resource

    W = np.random.default_rng(0).standard_normal((2000, 1))
    model = Model(np.arange(1, 2001), W, [0.0, 1.0], info={"loss": "hinge"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StoreError, match=r"^cannot write out: File too large; free space"):
            sbm.export(model, "out", format=form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("form", list(FORMATS))
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_no_numbers_are_not_written(here, form, value):
    model = _model()
    model.W[4] = value
    message = (
        f"the model has the weight {value} for feature id 5; train it again, on smaller values"
    )
    with pytest.raises(StoreError, match=f"^{message}$"):
        sbm.export(model, "out", format=form)
    model = _model()
    model.bias_weights[0] = value
    message = "the model has a bias that is no finite number; train it again"
    with pytest.raises(StoreError, match=f"^{message}$"):
        sbm.export(model, "out", format=form)
    assert list(here.iterdir()) == []


def test_what_liblinear_cannot_hold_is_said_with_the_name_of_the_model(run):
    Model(np.array([0]), np.ones((1, 1)), [0.0, 1.0], info=dict(INFO)).save("m.model")
    assert run("sbm export m.model") == (
        1, "",
        ("sbm: m.model has a weight for feature id 0, where LIBLINEAR's ids begin with 1; choose "
        "--format npz or json, or train on ids from 1 on\n"),
    )  # fmt: skip
