"""Inspect: the largest weights of a model, changes between two, and accessors for notebooks."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from inside import Model, Names, cli

import sbm
from sbm.errors import SettingsError

WORDS = ["age", "colour=red", "", "größe", "zip=1"]
W = np.array([[3.0, 0, -1], [-2, 0, 0], [0.5, 1, 0], [0, 2, 0], [0.5, 0, 4]])


def three_classes() -> Model:
    names = Names.of([word.encode() for word in WORDS])
    labels = [0.0, 1.0, 2.0]
    return Model(
        np.array([7, 3, 11, 5, 2]), W.copy(), labels, 1.0, np.array([0.5, 0.0, -1.0]),
        {"loss": "hinge"}, np.array([99]), names=names, label_names=["cat", "dog", "ox"],
    )  # fmt: skip


def test_top_weights_have_names_in_order(tmp_path):
    three_classes().save(tmp_path / "m.model")
    model = Model.load(tmp_path / "m.model")
    assert model.top(2, "cat") == [("age", 3.0), ("zip=1", 0.5)]  # equal weights: smaller id
    assert model.top(3, "cat")[2] == (11, 0.5)  # a feature without a name
    assert model.top(-5, "cat") == [("colour=red", -2.0)]
    assert model.top(9, "dog") == [("größe", 2.0), (11, 1.0)]
    with pytest.raises(SettingsError, match=r"label is 'pig'.*cat, dog, ox"):
        model.top(1, "pig")
    assert model.classes_.tolist() == ["cat", "dog", "ox"]
    np.testing.assert_array_equal(model.coef_[:, [7, 3, 11, 5, 2]], W.T)
    np.testing.assert_array_equal(model.intercept_, [0.5, 0.0, -1.0])
    shown = model._repr_html_()
    assert "größe" in shown
    assert "<th>ox</th>" in shown
    model.label_names[0] = "<b>"
    assert "<b>" not in model._repr_html_()


def test_zero_features_lose_their_names_only(tmp_path):
    model = three_classes()
    model.W[1] = 0
    model.save(tmp_path / "m.model")
    loaded = Model.load(tmp_path / "m.model")
    assert list(loaded.names) == list(model.compact().names) == [WORDS[k] for k in (0, 2, 3, 4)]


def test_report_counts_all_weights(tmp_path):
    report = sbm.inspect(three_classes(), top=1)
    assert (report["features"], report["weights"], report["nonzero_weights"]) == (6, 18, 8)
    assert report["nonzero_share"] == 8 / 18
    cat, dog, ox = report["classes"]
    assert cat["bottom"] == [{"id": 3, "name": "colour=red", "weight": -2.0}]
    assert dog["l1_norm"] == 3
    assert dog["l2_norm"] == pytest.approx(np.sqrt(5))
    assert (ox["label"], ox["intercept"], ox["largest_weight"]) == ("ox", -1.0, 4.0)
    assert ox["top"] == [{"id": 2, "name": "zip=1", "weight": 4.0}]


def test_changes_between_models(tmp_path):
    before, after = three_classes(), three_classes()
    after.W[0, 0], after.W[3] = 5.0, 0.0
    after.labels, after.label_names = [0.0, 1.0, 3.0], ["cat", "dog", "cow"]
    before.save(tmp_path / "a.model")
    after.save(tmp_path / "b.model")
    files = [str(tmp_path / "a.model"), str(tmp_path / "b.model")]
    report = sbm.inspect(*files, top=2)
    assert (report["labels_added"], report["labels_removed"]) == (["cow"], ["ox"])
    assert (report["features_added"], report["features_removed"]) == (0, 1)
    cat, dog = report["classes"]
    assert cat["changes"] == [{"id": 7, "name": "age", "before": 3.0, "after": 5.0}]
    assert dog["changes"] == [{"id": 5, "name": "größe", "before": 2.0, "after": 0.0}]
    assert cat["cosine"] == pytest.approx(
        W[:, 0] @ after.W[:, 0] / np.linalg.norm(W[:, 0]) / np.linalg.norm(after.W[:, 0])
    )
    result = CliRunner().invoke(cli, ["inspect", *files, "--json", "--top", "2"])
    assert json.loads(result.output) == report
    lines = CliRunner().invoke(cli, ["inspect", *files, "--tsv"]).output.splitlines()
    assert lines[1].split("\t") == ["cat", "7", "age", "3.0", "5.0"]


def test_binary_model_shows_both_ends():
    model = Model(np.arange(3), np.array([[1.0], [-2], [0]]), [-1.0, 1.0], info={"loss": "hinge"})
    assert (model.top(5), model.top(-5, 1)) == ([(0, 1.0)], [(1, -2.0)])
    output = CliRunner().invoke(cli, ["inspect", "missing.model"])
    assert output.exit_code == 1
    with pytest.raises(SettingsError, match="top is 0"):
        sbm.inspect(model, top=0)
