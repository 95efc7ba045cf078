"""Exports: every format round-trips, pruning reports its cost, invalid outputs are rejected."""

import json
import os
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inside import EXPORT_FORMATS as FORMATS
from inside import Model, patch, read_model

import sbm
from sbm.errors import DataError, SettingsError, StoreError

INFO = {
    "loss": "hinge", "C": 0.5, "converged": True, "settings": {"tol": 0.1},
    "certificate": {"primal": 1 / 3, "dual": 0.25, "gap": 0.25},
}  # fmt: skip
# By hand: 0.001 + w.x of the lines is 0.011, -0.489, 0.501, -0.749; without weights up to 0.1 the
# first is 0.001, and without those up to 0.25 the last is -0.499.
TEXT = "1 3:1\n-1 5:1\n1 1:1 5:1\n-1 2:1 5:1\n"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(here, run):
    return run


def make_model() -> Model:
    W = np.array([[1.0], [-0.25], [0.01], [0.0], [-0.5]])
    return Model(np.array([1, 2, 3, 4, 5]), W, [-1.0, 1.0], 1.0, np.array([0.001]), dict(INFO))


# -------------------------------------------------------------------------------------- round trips


def read_npz(path: str) -> Model:
    with np.load(path, allow_pickle=False) as file:
        return Model(
            file["ids"], file["W"], file["labels"].tolist(), float(file["bias"]),
            file["bias_weights"], {"loss": str(file["loss"])},
        )  # fmt: skip


def read_json(path: str) -> Model:
    content = json.loads(Path(path).read_text())
    weights, outputs = content["weights"], len(content["bias_weights"])
    return Model(
        np.array([int(i) for i in weights], np.int64),
        np.array(list(weights.values()), np.float64).reshape(len(weights), outputs),
        content["labels"], content["bias"], np.array(content["bias_weights"]), content["info"],
    )  # fmt: skip


READERS = {"npz": read_npz, "json": read_json, "sbm": Model.load, "liblinear": read_model}
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(["npz", "json", "sbm"]))
def test_models_round_trip_in_every_format(here, data, form):
    n_labels = data.draw(st.sampled_from([0, 2, 3, 5]))
    labels = data.draw(st.lists(FINITE, min_size=n_labels, max_size=n_labels, unique=True))
    outputs = n_labels if n_labels > 2 else data.draw(st.sampled_from([1, n_labels or 1]))
    ids = data.draw(st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=12))
    elements = st.sampled_from([0.0, 0.0, 1.0]) | FINITE
    W = data.draw(hnp.arrays(np.float64, (len(ids), outputs), elements=elements))
    bias, weights = data.draw(FINITE), data.draw(hnp.arrays(np.float64, outputs, elements=FINITE))
    model = Model(np.array(ids, np.int64), W, labels, bias, weights, dict(INFO))
    with pytest.MonkeyPatch.context() as context:
        patch(context, "_PART", data.draw(st.sampled_from([1, 10, 1 << 17])))
        report = sbm.export(model, "out", format=form)
    found = READERS[form]("out")
    used = W.any(axis=1)
    assert found.ids.tolist() == model.ids[used].tolist()
    np.testing.assert_array_equal(found.W, W[used])
    assert (found.labels, found.bias) == (labels, bias)
    assert found.bias_weights.tolist() == weights.tolist()
    assert found.info == (INFO if form != "npz" else {"loss": "hinge"})
    assert (report["format"], report["bytes"]) == (form, os.path.getsize("out"))
    assert (report["features"], report["weights"]) == (used.sum(), np.count_nonzero(W))
    if form == "sbm":
        found.save("again")
        assert Path("again").read_bytes() == Path("out").read_bytes()
    os.remove("out")


# ------------------------------------------------------------------------------------------ pruning


@pytest.mark.parametrize(
    ("threshold", "ids", "dropped", "after"),
    [
        (0.0, [1, 2, 3, 5], 0, 1.0), (0.01, [1, 2, 5], 1, 1.0), (0.25, [1, 5], 2, 1.0),
        (0.5, [1], 3, 0.5), (7.0, [], 4, 0.5),
    ],
)  # fmt: skip
def test_small_weights_are_dropped(here, threshold, ids, dropped, after):
    Path("t.svm").write_text(TEXT)
    sbm.split(["t.svm"], "t.sbm", blocks=1)
    model = make_model()
    for test in ("t.svm", "t.sbm"):
        report = sbm.export(model, "p.model", format="sbm", prune=threshold, test=test)
        assert report == {
            "model": None, "output": "p.model", "format": "sbm", "pruned": threshold,
            "dropped": dropped, "test": test, "measure": "accuracy", "before": 1.0,
            "after": after, "change": after - 1.0, "bytes": os.path.getsize("p.model"),
            "features": len(ids), "weights": len(ids),
        }  # fmt: skip
    found = Model.load("p.model")
    assert found.ids.tolist() == ids
    np.testing.assert_array_equal(found.W, model.weights_of(np.array(ids, np.int64)))
    assert (found.bias, found.bias_weights.tolist()) == (
        1.0,
        [0.001],
    )  # below the threshold, but kept
    assert model.W.tolist() == make_model().W.tolist()  # unchanged
    if not dropped:
        assert found.info == INFO
        return
    facts = sbm.info("p.model")  # the certificate is gone
    assert not {"certificate", "converged"} & set(facts)
    assert (facts["loss"], facts["C"], facts["pruned"]) == ("hinge", 0.5, threshold)
    sbm.export("p.model", "r.model", format="sbm")
    assert sbm.info("r.model")["pruned"] == threshold


def test_columns_are_pruned_independently(here):
    W = np.array([[1.0, 0.1, -0.1], [0.05, -0.05, 0.0]])
    model = Model(np.array([1, 2]), W, [1.0, 2.0, 3.0], info={"loss": "hinge"})
    report = sbm.export(model, "p.npz", format="npz", prune=0.1)
    assert (report["dropped"], report["features"], report["weights"]) == (4, 1, 1)
    assert read_npz("p.npz").W.tolist() == [[1.0, 0.0, 0.0]]


def test_pruned_regression_reports_mse(here):
    model = Model(np.array([1, 2]), np.array([[2.0], [0.5]]), [], info={"loss": "squared_error"})
    for text, expected in (("2 1:1\n3 1:1 2:2\n", (0.0, 0.5, 0.5)), ("\n", (None,) * 3)):
        Path("t.svm").write_text(text)
        report = sbm.export(model, "p.model", format="sbm", prune=0.5, test="t.svm")
        assert (report["before"], report["after"], report["change"]) == expected
        assert report["measure"] == "mse"


# -------------------------------------------------------------------------------------- the command


def test_command_writes_every_format(run):
    make_model().save("big.model")
    endings = {"liblinear": ".liblinear.model", "npz": ".npz", "json": ".json", "sbm": ".sbm.model"}
    for form, ending in endings.items():
        code, out, err = run(f"export big.model --format {form}")
        assert (code, err) == (0, "")
        assert out.startswith(f"big{ending}: 4 weights of 4 features, ")
        np.testing.assert_array_equal(READERS[form](f"big{ending}").ids, [1, 2, 3, 5])
    report = json.loads(run("export big.model -o x.txt --json")[1])
    assert (report["model"], report["output"], report["bytes"]) == ("big.model", "x.txt", 108)


def test_command_reports_cost_of_pruning(run):
    make_model().save("big.model")
    Path("t.svm").write_text(TEXT)
    Path("none.svm").write_text("")
    for options, facts in (
        ("--prune 0.25", ["^2 .*-0.25 and 0.25", "--test"]),
        ("--prune 0.5 --test t.svm", ["^3 .*0.5", r"100\.0+ % before, 50\.0+ % after: -50\.0+"]),
        ("--prune 0.5 --test none.svm", ["^3 .*0.5", r"^none\.svm .*no rows"]),
    ):
        code, out, err = run(f"export big.model {options} -q")
        assert (code, err) == (0, "")
        for line, fact in zip(out.splitlines()[1:], facts, strict=True):
            assert re.search(fact, line), line


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"format": "liblineer"}, "'liblineer'.* sbm.*'liblinear'"),
        ({"prune": -1.0}, "prune is -1"), ({"prune": float("nan")}, "prune is nan"),
        ({"prune": float("inf")}, "prune is inf"), ({"test": "t.svm"}, "prune.*omit test"),
        ({"prune": 1.0, "test": "-"}, "test is -"),
        ({"prune": 1.0, "test": "none.svm"}, r"none\.svm"),
        ({"output": "m.model"}, r"output m\.model .*input.*output="),
        ({"output": "link", "format": "sbm"}, "output link .*input"),
        ({"output": "t.txt", "prune": 1.0, "test": "t.txt"}, r"output t\.txt .*input"),
        ({"output": "a.foo"}, r"a\.foo .*give format"),
        ({"output": "folder"}, "^folder .*output="), ({"output": "none/m"}, "^none .*output="),
        ({"output": "folder/m", "format": "npz", "prune": 0.5, "test": "bad.svm"}, r"bad\.svm:1"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(here, options, facts):
    make_model().save("m.model")
    Path("t.svm").write_text(TEXT)
    Path("t.txt").write_text(TEXT)
    Path("bad.svm").write_text("spam\n")
    Path("folder").mkdir()
    os.link("m.model", "link")
    before = {path: path.is_dir() or path.read_bytes() for path in here.rglob("*")}
    with pytest.raises((DataError, SettingsError, StoreError), match=facts):
        sbm.export("m.model", **{"output": "out", **options})
    assert {path: path.is_dir() or path.read_bytes() for path in here.rglob("*")} == before


def test_model_in_memory_needs_an_output_name(here):
    with pytest.raises(SettingsError, match="in memory"):
        sbm.export(make_model())


@pytest.mark.parametrize("form", list(FORMATS))
def test_only_exports_of_the_same_format_are_replaced(here, form):
    for other in FORMATS:
        sbm.export(make_model(), other, format=other)
    Path("text").write_text("1 1:1\n")
    Path("empty").write_text("")
    for other in [*FORMATS, "text", "empty"]:
        before = Path(other).read_bytes()
        if other == form:
            sbm.export(make_model(), other, format=form, prune=0.5)
            assert Path(other).read_bytes() != before
            continue
        with pytest.raises(StoreError, match=f"^{other} .*{form}.*output="):
            sbm.export(make_model(), other, format=form)
        assert Path(other).read_bytes() == before
    os.mkfifo("pipe")
    with pytest.raises(StoreError, match=f"^pipe .*{form}"):
        sbm.export(make_model(), "pipe", format=form)


@pytest.mark.parametrize("form", list(FORMATS))
def test_failed_export_leaves_no_file(here, form):
    W = np.random.default_rng(0).standard_normal((2000, 1))
    large = Model(np.arange(1, 2001), W, [0.0, 1.0], info={"loss": "hinge"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StoreError, match="out: File too large"):
            sbm.export(large, "out", format=form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    model = make_model()
    for array, place, fact in (
        (model.W, 4, "weight nan .* 5;"), (model.W, 0, "weight nan .* 1;"),
        (model.bias_weights, 0, "bias"),
    ):  # fmt: skip
        array[place] = np.nan
        with pytest.raises(StoreError, match=fact):
            sbm.export(model, "out", format=form)
        array[place] = 1.0
    model.bias = float("-inf")
    with pytest.raises(StoreError, match="bias"):
        sbm.export(model, "out", format=form)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("ending", ["npz", "json", "sbm.model", "liblinear.model", "txt"])
def test_ending_of_the_output_is_the_format(here, ending):
    report = sbm.export(make_model(), f"a.{ending}")
    expected = ending.partition(".")[0] if ending != "txt" else "liblinear"
    assert report["format"] == expected
    sbm.export(make_model(), "b", format=expected)
    assert Path(f"a.{ending}").read_bytes() == Path("b").read_bytes()


def test_rows_of_mostly_zeros_are_written_number_by_number(here):
    """Runs of zeros are copied; -0.0 and zeros at both ends of a row are among the numbers."""
    W = np.where(np.random.default_rng(0).random((30, 40)) < 0.05, 1 / 3, 0.0)
    W[0], W[1, 0], W[1, -1], W[3, 5] = 0.0, 1e-300, -2.5, -0.0
    W[3, [0, 1, 38, 39]] = 0.1
    model = Model(np.arange(1, 31), W, [float(k) for k in range(40)], 0.0, np.zeros(40), {})
    model.info["loss"] = "crammer_singer"
    sbm.export(model, format="liblinear", output="m.txt")
    lines = Path("m.txt").read_text().split("\nw\n")[1].splitlines()
    assert lines == ["".join(f"{w:.17g} " for w in row) for row in W.tolist()]
    sbm.export(model, format="json", output="m.json")
    text = Path("m.json").read_text()
    assert f'"4": {W[3].tolist()},\n' in text
    found = json.loads(text)["weights"]  # without features whose weights are all 0
    assert repr(list(found.values())) == repr([row for row in W.tolist() if any(row)])
