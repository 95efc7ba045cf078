"""The confusion matrix as a table and as a picture."""

import csv
import os
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as reference

import sbm
from sbm.errors import SettingsError, StoreError
from sbm.jobs.judging.metrics import BinaryMetrics, Confusion, MultiMetrics
from sbm.jobs.reporting import confusion as module
from sbm.jobs.reporting.confusion import check_confusion, write_confusion
from sbm.store.model import Model

LABELS = [-2.5, 0.0, 1.0, 40.0, 1e6]
NO_PNG = (
    "drawing c.png needs matplotlib, which is not installed; install it "
    "(pip install matplotlib), or choose a name that ends in .tsv for a table"
)


def _collect(n=300, labels=LABELS, seed=0, unknown=0) -> tuple[Confusion, np.ndarray, np.ndarray]:
    """A confusion, and the true and predicted labels it was made of."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, len(labels), n)
    codes = np.where(random.random(n) < 0.5, truth, random.integers(0, len(labels), n))
    y = np.array(labels)[truth]
    y[:unknown] = 0.125
    collected = MultiMetrics(labels)
    collected.add(y, codes.astype(np.int32)[:, np.newaxis])
    return collected.confusion(), y, np.array(labels)[codes]


def _read(path: str) -> list[list[str]]:
    return list(csv.reader(Path(path).read_text("ascii").splitlines(), delimiter="\t"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---------------------------------------------------------------------------------------- table


@pytest.mark.parametrize("labels", [LABELS, [3.0, 7.0], list(map(float, range(70)))])
def test_the_table_is_the_matrix_of_scikit_learn(labels):
    confusion, y, predicted = _collect(2000, labels)
    write_confusion(confusion, "c.tsv")
    head, *rows = _read("c.tsv")
    names = [f"{label:.10g}" for label in labels]
    assert head == ["true\\predicted", *names]
    assert [row[0] for row in rows] == names
    whole = [(2 * np.asarray(x)).astype(int) for x in (y, predicted, labels)]
    expected = reference.confusion_matrix(*whole[:2], labels=whole[2])  # takes no half labels
    assert [list(map(int, row[1:])) for row in rows] == expected.tolist()


def test_classes_that_do_not_occur_have_no_place_and_unknown_labels_have_one():
    collected = MultiMetrics(LABELS)
    codes = np.array([[0], [3], [3], [0], [0]], np.int32)
    collected.add(np.array([-2.5, -2.5, 40.0, 9.0, 8.0]), codes)
    write_confusion(collected.confusion(), "c.tsv")
    assert Path("c.tsv").read_text() == (
        "true\\predicted\t-2.5\t40\n-2.5\t1\t1\n40\t0\t1\nunknown\t2\t0\n"
    )


def test_a_class_that_was_predicted_only_has_a_row_of_zeros():
    collected = BinaryMetrics([-1.0, 1.0])
    collected.add(np.array([-1.0, -1.0]), np.array([-1.0, 1.0]))
    write_confusion(collected.confusion(), "c.tsv")
    assert Path("c.tsv").read_text() == "true\\predicted\t-1\t1\n-1\t1\t1\n1\t0\t0\n"


def test_the_table_of_no_rows_is_its_head():
    write_confusion(MultiMetrics(LABELS).confusion(), "c.tsv")
    assert Path("c.tsv").read_text() == "true\\predicted\n"


# -------------------------------------------------------------------------------------- picture


def _size(path: str) -> tuple[int, int]:
    data = Path(path).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig

    def spy(self, *arguments, **options):
        figures.append(self)
        return save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", spy)
    return figures


@pytest.mark.parametrize("n_classes", [2, 5, 20, 21, 60, 61])
def test_names_and_counts_stand_where_there_is_room(drawn, n_classes):
    labels = [float(k) for k in range(n_classes)]
    confusion, y, predicted = _collect(20 * n_classes**2, labels)
    write_confusion(confusion, "c.png")
    axes = drawn[0].axes[0]
    expected = reference.confusion_matrix(y, predicted)
    shares = expected / expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(axes.images[0].get_array(), shares, rtol=1e-12)
    names = [f"{label:g}" for label in labels] if n_classes <= 60 else []
    for axis in (axes.xaxis, axes.yaxis):
        assert [text.get_text() for text in axis.get_ticklabels()] == names
    counts = [f"{count:,}" for count in expected.ravel() if count]
    assert [text.get_text() for text in axes.texts] == (counts if n_classes <= 20 else [])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted label", "true label")
    right = int((y == predicted).sum())
    assert axes.get_title() == (
        f"accuracy {100 * right / len(y):.2f} % ({right:,} of {len(y):,} rows), {n_classes} classes"
    )
    width, height = _size("c.png")
    assert 400 < height < width < 2500


def test_unknown_labels_are_counted_in_the_title_and_not_drawn(drawn):
    confusion, y, predicted = _collect(unknown=12)
    write_confusion(confusion, "c.png")
    axes = drawn[0].axes[0]
    right = int((y == predicted).sum())
    assert axes.get_title() == (
        f"accuracy {100 * right / 300:.2f} % ({right} of 300 rows), 5 classes\n"
        "rows of labels that the model does not know, not shown: 12"
    )
    assert axes.images[0].get_array().shape == (5, 5)


def test_neighbours_share_a_cell_where_there_are_more_classes_than_dots(drawn, monkeypatch):
    monkeypatch.setattr(module, "_CELLS", 30)
    labels = [float(k) for k in range(70)]
    confusion, y, predicted = _collect(70 * 500, labels)
    write_confusion(confusion, "c.png")
    axes = drawn[0].axes[0]
    expected = reference.confusion_matrix(y // 3, predicted // 3)  # 24 rows, the last of one label
    shares = expected / expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(axes.images[0].get_array(), shares, rtol=1e-12)
    assert axes.get_xlabel() == "predicted label (3 labels a cell)"


def test_a_class_without_rows_is_grey_and_not_white(drawn):
    collected = MultiMetrics(LABELS)
    collected.add(np.array([0.0, 0.0]), np.array([[1], [2]], np.int32))
    write_confusion(collected.confusion(), "c.png")
    assert drawn[0].axes[0].images[0].get_array().mask.tolist() == [[False, False], [True, True]]
    bar = drawn[0].axes[0].images[0].colorbar
    assert bar.ax.get_ylabel() == "share of the rows with this true label, grey: no rows"


@pytest.mark.parametrize("y", [[], [0.125]], ids=["no rows", "unknown labels only"])
def test_a_picture_of_nothing_is_a_picture(drawn, y):
    collected = MultiMetrics(LABELS)
    collected.add(np.array(y), np.zeros((len(y), 1), np.int32))
    write_confusion(collected.confusion(), "c.png")
    assert min(_size("c.png")) > 200
    assert (drawn[0].axes[0].get_title() == "no rows") == (not y)


# --------------------------------------------------------------------------- where it goes wrong


@pytest.mark.parametrize("name", ["c.txt", "c", "c.tsv.gz", "tsv", ".png"])
def test_another_ending_is_refused(name):
    message = (
        f"the confusion matrix cannot be written as {name}; "
        "choose a name that ends in .tsv (a table) or .png (a picture)"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        check_confusion(["good.tsv", name])


def test_endings_in_capitals_are_endings():
    write_confusion(_collect()[0], "C.TSV")
    assert Path("C.TSV").read_text().startswith("true\\predicted\t")


def test_a_picture_without_matplotlib_is_refused_and_a_table_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    check_confusion(["c.tsv"])
    with pytest.raises(SettingsError, match=f"^{re.escape(NO_PNG)}$"):
        check_confusion(["c.tsv", "c.png"])


@pytest.mark.parametrize("ending", ["tsv", "png"])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(ending):
    Path(f"folder.{ending}").mkdir()
    message = f"folder.{ending} is a folder; give a file name with --confusion"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        check_confusion([f"folder.{ending}"])
    message = "none is no folder; make it, or choose another place with --confusion"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        check_confusion([f"none/c.{ending}"])


def test_a_disk_that_fails_is_a_sentence_and_leaves_the_old_table(monkeypatch):
    Path("c.tsv").write_text("old\n")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    message = (
        "cannot write c.tsv: No space left on device; "
        "free space or choose another place with --confusion"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        write_confusion(_collect()[0], "c.tsv")
    assert os.listdir() == ["c.tsv"]
    assert Path("c.tsv").read_text() == "old\n"


# ---------------------------------------------------------------------------------- with predict


TEXT = "1 1:1\n2 2:1\n3 1:1\n9 2:1\n"


def _model() -> Model:
    return Model(np.array([1, 2]), np.array([[1.0, 0, 0], [0, 1, 0]]), [1.0, 2.0, 3.0])


def test_predict_writes_every_confusion_it_is_asked_for():
    pytest.importorskip("matplotlib")
    Path("t.svm").write_text(TEXT)
    sbm.predict(_model(), "t.svm", confusion=["a.tsv", Path("b.tsv"), "c.png"])
    assert Path("a.tsv").read_text() == (
        "true\\predicted\t1\t2\t3\n1\t1\t0\t0\n2\t0\t1\t0\n3\t1\t0\t0\nunknown\t0\t1\t0\n"
    )
    assert Path("b.tsv").read_bytes() == Path("a.tsv").read_bytes()
    assert sorted(os.listdir()) == ["a.tsv", "b.tsv", "c.png", "t.svm"]


def test_predict_writes_the_confusion_of_a_store_and_of_two_classes():
    Path("t.svm").write_text(TEXT)
    sbm.split(["t.svm"], "t.sbm", blocks=2)
    sbm.predict(_model(), "t.svm", confusion=["a.tsv"])
    sbm.predict(_model(), "t.sbm", confusion=["b.tsv"])
    assert Path("b.tsv").read_bytes() == Path("a.tsv").read_bytes()
    two = Model(np.array([1, 2]), np.array([[1.0], [-1.0]]), [1.0, 2.0])
    sbm.predict(two, "t.sbm", confusion=["c.tsv"])
    assert Path("c.tsv").read_text() == "true\\predicted\t1\t2\n1\t0\t1\n2\t1\t0\nunknown\t1\t1\n"


@pytest.mark.parametrize("missing", ["c.png", "none/c.tsv", "c.txt"])
def test_predict_refuses_a_confusion_before_it_reads_a_row(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    Path("t.svm").write_text("spam\n")  # reading it would be a DataError
    with pytest.raises((SettingsError, StoreError), match=r"matplotlib|folder|ends in"):
        sbm.predict(_model(), "t.svm", "out.txt", confusion=["a.tsv", missing])
    assert os.listdir() == ["t.svm"]


def test_a_confusion_does_not_replace_an_input_or_the_predictions():
    Path("t.tsv").write_text(TEXT)
    message = "the output t.tsv would replace an input; choose another name"
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        sbm.predict(_model(), "t.tsv", confusion=["t.tsv"])
    message = "predictions and the confusion matrix cannot both go to out.tsv; choose another name"
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        sbm.predict(_model(), "t.tsv", "out.tsv", confusion=["./out.tsv"])
    assert os.listdir() == ["t.tsv"]


def test_text_that_does_not_parse_leaves_no_confusion():
    Path("t.svm").write_text(TEXT + "spam\n")
    with pytest.raises(sbm.SbmError, match=r"^t\.svm:5: "):
        sbm.predict(_model(), "t.svm", confusion=["c.tsv"])
    assert os.listdir() == ["t.svm"]
