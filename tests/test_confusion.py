"""The confusion matrix as a table and as a picture."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from inside import BinaryMetrics, Model, MultiMetrics, check_confusion, patch, write_confusion
from sklearn import metrics as reference

import sbm
from sbm.errors import SettingsError, StoreError

LABELS = [-2.5, 0.0, 1.0, 40.0, 1e6]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def confusion_of(y, codes, labels=LABELS):
    collected = MultiMetrics(list(labels))
    collected.add(np.array(y, float), np.array(codes, np.int32).reshape(-1, 1))
    return collected.confusion()


def draw_codes(n, n_classes, seed=0):
    """True and predicted codes; half are correct."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, n_classes, n)
    return truth, np.where(random.random(n) < 0.5, truth, random.integers(0, n_classes, n))


@pytest.mark.parametrize("labels", [LABELS, [float(k) for k in range(70)]])
def test_table_matches_sklearn(labels):
    truth, codes = draw_codes(2000, len(labels))
    write_confusion(confusion_of(np.array(labels)[truth], codes, labels), "C.TSV")
    head, *rows = csv.reader(Path("C.TSV").read_text("ascii").splitlines(), delimiter="\t")
    names = [f"{label:.10g}" for label in labels]
    assert head == ["true\\predicted", *names]
    assert [row[0] for row in rows] == names
    expected = reference.confusion_matrix(truth, codes).tolist()
    assert [list(map(int, row[1:])) for row in rows] == expected


def test_table_has_only_classes_that_occur():
    binary = BinaryMetrics([-1.0, 1.0])
    binary.add(np.array([-1.0, -1.0]), np.array([-1.0, 1.0]))
    for confusion, table in (
        (confusion_of([-2.5, -2.5, 40, 9, 8], [0, 3, 3, 0, 0]),
         "\t-2.5\t40\n-2.5\t1\t1\n40\t0\t1\nunknown\t2\t0\n"),
        (binary.confusion(), "\t-1\t1\n-1\t1\t1\n1\t0\t0\n"),
        (confusion_of([], []), "\n"),
    ):  # fmt: skip
        write_confusion(confusion, "c.tsv")
        assert Path("c.tsv").read_text() == "true\\predicted" + table


# ------------------------------------------------------------------------------------------ picture


@pytest.fixture
def axes_of(monkeypatch):
    """Draw a confusion and return the axes; the file must be a PNG."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **b: figures.append(self) or save(self, *a, **b)
    )

    def draw(confusion):
        write_confusion(confusion, "c.png")
        data = Path("c.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = (int.from_bytes(data[k : k + 4], "big") for k in (16, 20))
        assert 200 < height <= width < 2500
        return figures[-1].axes[0]

    return draw


@pytest.mark.long
@pytest.mark.parametrize(("n", "cells"), [(2, 1000), (20, 1000), (21, 1000), (61, 1000), (70, 30)])
def test_picture_shows_shares_names_and_counts(axes_of, monkeypatch, n, cells):
    patch(monkeypatch, "picture._CELLS", cells)
    truth, codes = draw_codes(10 * n**2, n)
    axes = axes_of(confusion_of(truth, codes, [float(k) for k in range(n)]))
    share = -(-n // cells)  # classes that share a cell
    expected = reference.confusion_matrix(truth // share, codes // share)
    shares = expected / expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(axes.images[0].get_array(), shares, rtol=1e-12)
    names = [str(k) for k in range(n)] if n <= 60 else []
    for axis in (axes.xaxis, axes.yaxis):
        assert [text.get_text() for text in axis.get_ticklabels()] == names
    counts = [f"{count:,}" for count in expected.ravel() if count] if n <= 20 else []
    assert [text.get_text() for text in axes.texts] == counts
    assert all(int(text.get_text().replace(",", "")) == expected[text.get_position()[::-1]]
               for text in axes.texts)  # fmt: skip
    right = int((truth == codes).sum())
    for fact in (f"{100 * right / len(truth):.2f} %", f"{right:,} of {len(truth):,}", f"{n} cl"):
        assert fact in axes.get_title()
    assert "predicted" in axes.get_xlabel()
    assert "true" in axes.get_ylabel()
    assert ("3 labels" in axes.get_xlabel()) == (share == 3)


def test_picture_of_missing_and_unknown_labels(axes_of):
    axes = axes_of(confusion_of([0.0, 0.0, 0.125, 0.125], [1, 2, 0, 1]))
    image = axes.images[0]
    assert image.get_array().mask.tolist() == [[True] * 3, [False] * 3, [True] * 3]
    assert "grey" in image.colorbar.ax.get_ylabel()
    _, rows, unknown = axes.get_title().splitlines()
    assert "1 of 4 rows" in rows
    assert "2 rows with unknown labels" in unknown
    full = axes_of(confusion_of([0.0, 1.0], [1, 2]))
    assert "grey" not in full.images[0].colorbar.ax.get_ylabel()
    assert "unknown" not in full.get_title()
    assert axes_of(confusion_of([], [])).get_title() == "no rows"


# ----------------------------------------------------------------------------------------- refusals


def test_invalid_outputs_are_rejected(monkeypatch):
    Path("folder.png").mkdir()
    for name, error, fact in (
        ("c.txt", SettingsError, ".tsv"), ("c.tsv.gz", SettingsError, ".png"),
        (".png", SettingsError, ".tsv"), ("folder.png", StoreError, "--confusion"),
        ("none/c.tsv", StoreError, "--confusion"),
    ):  # fmt: skip
        with pytest.raises(error, match=f"{name.split('/')[0]}.*{fact}"):
            check_confusion(["good.tsv", name])
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    check_confusion(["c.tsv"])
    with pytest.raises(SettingsError, match=r"c\.png .*matplotlib"):
        check_confusion(["c.tsv", "c.png"])


# ------------------------------------------------------------------------------------- with predict


def test_predict_writes_confusions():
    Path("t.svm").write_text("1 1:1\n2 2:1\n3 1:1\n9 2:1\n")
    sbm.split(["t.svm"], "t.sbm", blocks=2)
    several = Model(np.array([1, 2]), np.array([[1.0, 0, 0], [0, 1, 0]]), [1.0, 2.0, 3.0])
    two = Model(np.array([1, 2]), np.array([[1.0], [-1.0]]), [1.0, 2.0])
    for data in ("t.svm", "t.sbm"):
        sbm.predict(several, data, confusion=["a.tsv", Path("b.tsv")])
        assert Path("a.tsv").read_text() == (
            "true\\predicted\t1\t2\t3\n1\t1\t0\t0\n2\t0\t1\t0\n3\t1\t0\t0\nunknown\t0\t1\t0\n"
        )
        assert Path("b.tsv").read_bytes() == Path("a.tsv").read_bytes()
        sbm.predict(two, data, confusion=["a.tsv"])
        table = "true\\predicted\t1\t2\n1\t0\t1\n2\t1\t0\nunknown\t1\t1\n"
        assert Path("a.tsv").read_text() == table
