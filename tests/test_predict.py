"""Prediction from text and stores, and the model file."""

import bz2
import gzip
import io
import lzma
import os
import re
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import zstandard
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sbm
from sbm.cli import cli, show
from sbm.compiled import load
from sbm.errors import DataError, SbmError, SettingsError, StoreError
from sbm.jobs import predict as predict_module
from sbm.jobs.judging import answers, batches
from sbm.jobs.progress import Progress
from sbm.settings import format_number
from sbm.store import arrays as container
from sbm.store import text as text_module
from sbm.store.model import Model

decision_kernels = load("sbm.solver.kernels.decision")

N_FEATURES = 60  # ids 0 to 59 in the data, of which a model knows some


def _data(seed=0, n=200, ones=False, labels=(-1.0, 1.0)):
    """Random rows as CSR by feature id, labels, and LIBSVM text; a tenth of the rows is empty."""
    random = np.random.default_rng(seed)
    dense = random.integers(-40, 40, (n, N_FEATURES)) / 16  # exact in float32
    dense[random.random(dense.shape) < 0.8] = 0
    dense[::10] = 0
    if ones:
        dense = (dense != 0).astype(float)
    X = scipy.sparse.csr_matrix(dense)
    y = random.choice(labels, n)
    lines = []
    for i in range(n):
        row = slice(X.indptr[i], X.indptr[i + 1])
        pairs = zip(X.indices[row].tolist(), X.data[row].tolist(), strict=True)
        lines.append(" ".join([f"{y[i]:g}", *(f"{k}:{v!r}" for k, v in pairs)]))
    return X, y, "\n".join(lines) + "\n"


def _model(seed=1, labels=(-1.0, 1.0), bias=0.0, known=N_FEATURES):
    random = np.random.default_rng(seed)
    ids = random.permutation(N_FEATURES)[:known].astype(np.int64)
    return Model(
        ids, random.standard_normal((known, 1)), list(labels), bias, random.standard_normal(1) + 1
    )


def _by_hand(model: Model, text: str) -> list[float]:
    """Decision values of text, one multiplication after the other and the bias last."""
    weights = dict(zip(model.ids.tolist(), model.W[:, 0].tolist(), strict=True))
    scores = []
    for line in text.splitlines():
        z = 0.0
        for pair in line.split()[1:]:
            identity, value = pair.split(":")
            z += float(value) * weights[int(identity)] if int(identity) in weights else 0.0
        scores.append(z + model.bias * float(model.bias_weights[0]))
    return scores


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ------------------------------------------------------------------------------- what it writes


@pytest.mark.parametrize("labels", [(-1.0, 1.0), (0.0, 1.0), (1.0, 2.0), (3.0, 7.0), (-2.5, 0.5)])
@pytest.mark.parametrize("ones", [False, True])
def test_labels_are_the_signs_of_the_decision_values(here, labels, ones):
    X, y, text = _data(labels=labels, ones=ones)
    model = _model(labels=labels)
    Path("t.svm").write_text(text)
    report = sbm.predict(model, "t.svm", "out.txt")
    expected = np.where(model.decision_function(X) > 0, labels[1], labels[0])
    lines = Path("out.txt").read_text().splitlines()
    assert lines == [f"{label:g}" for label in expected]  # whole labels without a point
    assert report["accuracy"] == np.mean(expected == y)
    assert report["rows"] == len(y)
    assert report["output"] == "out.txt"
    np.testing.assert_array_equal(model.predict(X), expected)


@pytest.mark.parametrize("bias", [0.0, 1.0, 0.37])
def test_decision_values_are_written_exactly(here, bias):
    X, _, text = _data()
    model = _model(bias=bias, known=40)
    Path("t.svm").write_text(text)
    sbm.predict(model, "t.svm", "out.txt", decision=True)
    lines = Path("out.txt").read_text().splitlines()
    assert [float(line) for line in lines] == _by_hand(model, text)
    assert all(len(line) <= len(repr(float(line))) for line in lines)
    assert [float(line) for line in lines] == model.decision_function(X).tolist()


def test_the_bias_moves_every_decision_value(here):
    X = _data()[0]
    model = _model(bias=2.0)
    plain = Model(model.ids, model.W, model.labels)
    moved = model.decision_function(X) - plain.decision_function(X)
    np.testing.assert_allclose(moved, 2.0 * model.bias_weights[0], rtol=1e-9)
    Path("t.svm").write_text("1\n")  # nothing but the bias
    sbm.predict(model, "t.svm", "out.txt", decision=True)
    assert float(Path("out.txt").read_text()) == 2.0 * model.bias_weights[0]


def test_a_decision_value_of_exactly_zero_is_negative(here):
    model = Model(np.array([1, 2]), np.array([[1.0], [-1.0]]), [3.0, 7.0])
    Path("t.svm").write_text("3 1:1 2:1\n3\n7 9:5\n7 1:1\n")
    report = sbm.predict(model, "t.svm", "out.txt")
    assert Path("out.txt").read_text() == "3\n3\n3\n7\n"
    assert report["confusion"] == [[2, 0], [1, 1]]
    assert model.predict(scipy.sparse.csr_matrix((2, 5))).tolist() == [3.0, 3.0]


def test_nothing_is_written_without_an_output(here):
    Path("t.svm").write_text(_data()[2])
    assert sbm.predict(_model(), "t.svm")["output"] is None
    assert os.listdir(here) == ["t.svm"]


# --------------------------------------------------------------------------------- what it reads


@pytest.mark.parametrize("ones", [False, True])
def test_a_store_gives_the_figures_of_its_text(here, ones):
    _, _, text = _data(n=300, ones=ones)
    Path("t.svm").write_text(text)
    sbm.split(["t.svm"], "t.sbm", blocks=3)
    model = _model(known=45, bias=1.0)
    from_text, from_store = sbm.predict(model, "t.svm"), sbm.predict(model, "t.sbm")
    assert from_store == from_text
    assert from_text["unknown_nonzeros"] > 0


def test_the_lines_for_a_store_are_block_by_block(here):
    _, _, text = _data(n=90)
    Path("t.svm").write_text(text)
    sbm.split(["t.svm"], "t.sbm", blocks=3, shuffle=False)  # row i goes to block i mod 3
    model = _model()
    sbm.predict(model, "t.sbm", "out.txt", decision=True)
    scores = _by_hand(model, text)
    expected = scores[0::3] + scores[1::3] + scores[2::3]
    found = [float(line) for line in Path("out.txt").read_text().splitlines()]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        ("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress),
        ("zst", lambda data: zstandard.ZstdCompressor().compress(data)),
    ],
)  # fmt: skip
def test_compressed_text_gives_the_same(here, ending, pack):
    _, _, text = _data()
    Path("t.svm").write_text(text)
    Path(f"t.svm.{ending}").write_bytes(pack(text.encode()))
    plain = sbm.predict(_model(), "t.svm", "a.txt", decision=True)
    packed = sbm.predict(_model(), f"t.svm.{ending}", "b.txt", decision=True)
    assert Path("a.txt").read_bytes() == Path("b.txt").read_bytes()
    assert {**packed, "output": "a.txt"} == plain


def test_standard_input_is_read_once(here, monkeypatch):
    _, _, text = _data()
    Path("t.svm").write_text(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert sbm.predict(_model(), "-") == sbm.predict(_model(), "t.svm")


@pytest.mark.parametrize("threads", [1, 4])
def test_the_order_of_the_input_is_kept_whatever_the_pieces(here, monkeypatch, threads):
    _, _, text = _data(n=2000)
    model = _model(bias=1.0)
    Path("t.svm").write_text(text)
    monkeypatch.setattr(text_module, "PIECE", 1000)
    report = sbm.predict(model, "t.svm", "out.txt", decision=True, threads=threads)
    lines = Path("out.txt").read_text().splitlines()
    assert [float(line) for line in lines] == _by_hand(model, text)
    assert report["rows"] == 2000


@pytest.mark.parametrize("threads", [0, -1])
def test_fewer_than_one_thread_is_refused(here, threads):
    Path("t.svm").write_text("1 1:1\n")
    with pytest.raises(SettingsError, match=f"^threads is {threads}; it must be at least 1$"):
        sbm.predict(_model(), "t.svm", threads=threads)


@pytest.mark.parametrize("content", ["", "\n\n", "# a comment only\n"])
def test_input_without_rows_gives_no_figures_and_an_empty_output(here, content):
    Path("t.svm").write_text(content)
    report = sbm.predict(_model(), "t.svm", "out.txt")
    assert (report["rows"], report["accuracy"], report["auc"]) == (0, None, None)
    assert Path("out.txt").read_bytes() == b""


def test_ids_that_the_model_does_not_know_are_ignored_and_counted(here):
    X, _, text = _data()
    model = _model(known=20)
    Path("t.svm").write_text(text)
    report = sbm.predict(model, "t.svm", "out.txt", decision=True)
    unknown = ~np.isin(X.indices, model.ids)
    assert report["unknown_nonzeros"] == np.count_nonzero(unknown) > 0
    known = X.copy()
    known.data[unknown] = 0
    scores = [float(line) for line in Path("out.txt").read_text().splitlines()]
    np.testing.assert_allclose(scores, model.decision_function(known), rtol=1e-12, atol=1e-15)


def test_labels_that_the_model_does_not_know_are_counted_as_wrong(here):
    model = Model(np.array([1]), np.array([[1.0]]), [-1.0, 1.0])
    Path("t.svm").write_text("1 1:1\n-1 1:-1\n0 1:1\n2 1:1\n1.5 1:-1\n")
    report = sbm.predict(model, "t.svm")
    assert (report["unknown_labels"], report["correct"], report["accuracy"]) == (3, 2, 0.4)


LARGEST = 2**63 - 1


def test_ids_up_to_the_largest_are_found(here):
    ids = np.array([0, 1, 2**31, 2**32 + 5, 2**62, LARGEST], np.int64)
    model = Model(ids, np.array([[1.0], [2], [4], [8], [16], [32]]), [-1.0, 1.0])
    Path("t.svm").write_text(
        f"1 0:1 {2**32 + 5}:1 {LARGEST}:1\n1 {2**31}:1 {2**31 + 1}:1 {LARGEST - 1}:1\n"
    )
    report = sbm.predict(model, "t.svm", "out.txt", decision=True)
    assert Path("out.txt").read_text() == "41\n4\n"
    assert report["unknown_nonzeros"] == 2


# --------------------------------------------------------------------------- where it goes wrong


def test_a_missing_output_folder_is_said_in_a_sentence(here):
    Path("t.svm").write_text("1 1:1\n")
    message = "nowhere is no folder; make it, or choose another place with -o"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        sbm.predict(_model(), "t.svm", "nowhere/out.txt")


def test_a_folder_as_output_is_refused_and_left_alone(here):
    Path("t.svm").write_text("1 1:1\n")
    Path("folder").mkdir()
    with pytest.raises(StoreError, match=r"^cannot write folder: Is a directory; "):
        sbm.predict(_model(), "t.svm", "folder")
    assert sorted(os.listdir(here)) == ["folder", "t.svm"]


def test_text_that_does_not_parse_leaves_no_output(here):
    Path("t.svm").write_text("1 1:1\n1 2:1\nspam\n")
    message = "t.svm:3: found 'spam' where a numeric label is expected"
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        sbm.predict(_model(), "t.svm", "out.txt")
    assert os.listdir(here) == ["t.svm"]


def test_an_output_of_before_stays_when_the_text_does_not_parse(here, monkeypatch):
    monkeypatch.setattr(text_module, "PIECE", 64)  # the error comes after lines were written
    Path("t.svm").write_text("1 1:1\n" * 100 + "spam\n")
    Path("out.txt").write_text("old\n")
    with pytest.raises(DataError, match=r"^t\.svm:101: "):
        sbm.predict(_model(), "t.svm", "out.txt")
    assert Path("out.txt").read_text() == "old\n"
    assert sorted(os.listdir(here)) == ["out.txt", "t.svm"]


def test_an_interruption_leaves_no_output(here):
    class Interrupted(Progress):
        def advance(self, done, **numbers):
            raise KeyboardInterrupt

    Path("t.svm").write_text("1 1:1\n")
    with pytest.raises(KeyboardInterrupt):
        sbm.predict(_model(), "t.svm", "out.txt", progress=Interrupted())
    assert os.listdir(here) == ["t.svm"]


def test_a_full_disk_leaves_no_output(here):
    Path("t.svm").write_text(_data(n=3000)[2])
    model = _model(known=5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StoreError, match=r"^cannot write out\.txt: File too large; free space"):
            sbm.predict(model, "t.svm", "out.txt", decision=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(here) == ["t.svm"]


def test_an_output_that_is_no_regular_file_is_written_to_and_not_replaced(here):
    Path("t.svm").write_text("1 1:1\n")
    model = Model(np.array([1]), np.array([[1.0]]), [-1.0, 1.0])
    os.mkfifo("pipe")  # as /dev/stdout is one
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        sbm.predict(model, "t.svm", "pipe")
        assert Path("pipe").is_fifo()
        assert os.read(reader, 100) == b"1\n"
    finally:
        os.close(reader)


# -------------------------------------------------------------------------------- in Python: CSR


@pytest.mark.parametrize("bias", [0.0, 0.5])
@pytest.mark.parametrize("width", [3, N_FEATURES, N_FEATURES + 7])
def test_decision_values_of_csr_by_feature_id(width, bias):
    X = _data()[0]
    X.resize(X.shape[0], width)
    model = _model(known=40, bias=bias)
    dense = np.zeros(max(width, N_FEATURES))
    dense[model.ids] = model.W[:, 0]
    expected = X.toarray() @ dense[:width] + bias * model.bias_weights[0]
    for matrix in (X, scipy.sparse.csr_array(X)):
        found = model.decision_function(matrix)
        assert found.shape == (X.shape[0],)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_csr_may_have_the_largest_ids():
    model = Model(np.array([LARGEST - 1, 5, 2**40]), np.array([[1.0], [2], [4]]), [-1.0, 1.0])
    indices = np.array([5, 2**40, 2**40 + 1, LARGEST - 1], np.int64)
    X = scipy.sparse.csr_array((np.ones(4), indices, np.array([0, 2, 4])), shape=(2, LARGEST))
    assert model.decision_function(X).tolist() == [6.0, 1.0]


@pytest.mark.parametrize("kind", ["csc_matrix", "coo_array", "ndarray", "list"])
def test_anything_but_csr_is_refused(kind):
    rows = [[1.0, 0.0]]
    X = getattr(scipy.sparse, kind)(rows) if kind[0] == "c" else rows
    X = np.array(rows) if kind == "ndarray" else X
    expected = rf"^X is a {type(X).__name__}; a scipy\.sparse CSR matrix is expected$"
    with pytest.raises(DataError, match=expected):
        _model().decision_function(X)


# ------------------------------------------------------------------------------ several classes

MULTI_LABELS = (-3.5, 0.0, 2.0, 7.0, 1e6)


def _multi_model(seed=1, labels=MULTI_LABELS, bias=0.0, known=N_FEATURES):
    random = np.random.default_rng(seed)
    ids = random.permutation(N_FEATURES)[:known].astype(np.int64)
    W = random.integers(-3, 4, (known, len(labels))) / 4  # few values: many ties
    bias_weights = random.integers(-3, 4, len(labels)) / 4
    bias_weights[-2:] = 1  # the last two are the best of empty rows, and tie
    return Model(ids, W, list(labels), bias, bias_weights)


def _multi_by_hand(model: Model, text: str) -> list[list[float]]:
    columns = [
        Model(model.ids, model.W[:, [k]], [0.0, 1.0], model.bias, model.bias_weights[[k]])
        for k in range(len(model.labels))
    ]
    return [list(row) for row in zip(*(_by_hand(c, text) for c in columns), strict=True)]


def _ranked(scores: list[float], labels) -> list[float]:
    """Labels, best first; of equal ones the smaller first."""
    order = sorted(range(len(labels)), key=lambda k: (-scores[k], labels[k]))
    return [labels[k] for k in order]


def _words(numbers) -> str:
    return " ".join(f"{x:.10g}" for x in numbers)


@pytest.mark.parametrize("labels", [MULTI_LABELS, (1.0, 2.0, 3.0), (4.0, 9.0)])
@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_the_largest_decision_value_tells_the_class_and_of_equal_ones_the_first(
    here, labels, ones, bias
):
    X, y, text = _data(labels=labels, ones=ones)
    model = _multi_model(labels=labels, bias=bias, known=50)
    Path("t.svm").write_text(text)
    report = sbm.predict(model, "t.svm", "out.txt")
    scores = _multi_by_hand(model, text)
    assert any(sorted(row)[-1] == sorted(row)[-2] for row in scores)  # there are ties
    expected = [_ranked(row, labels)[0] for row in scores]
    assert Path("out.txt").read_text().splitlines() == [_words([label]) for label in expected]
    assert report["accuracy"] == np.mean(np.array(expected) == y)
    assert report["labels"] == list(labels)
    weighted = model.ids[model.W.any(axis=1)]
    assert report["unknown_nonzeros"] == np.count_nonzero(~np.isin(X.indices, weighted))
    assert model.predict(X).tolist() == expected


@pytest.mark.parametrize("few", [0, 64], ids=["sorted", "picked"])
@pytest.mark.parametrize("top", [1, 2, 3, 5])
def test_top_writes_the_best_labels_in_order(here, monkeypatch, top, few):
    monkeypatch.setattr(answers, "_FEW", few)
    _, y, text = _data(labels=MULTI_LABELS)
    model = _multi_model()
    Path("t.svm").write_text(text)
    report = sbm.predict(model, "t.svm", "out.txt", top=top)
    expected = [_ranked(row, MULTI_LABELS)[:top] for row in _multi_by_hand(model, text)]
    assert Path("out.txt").read_text().splitlines() == list(map(_words, expected))
    assert report["top_n"] == top
    hits = [label in row for label, row in zip(y.tolist(), expected, strict=True)]
    assert report["top_accuracy"] == np.mean(hits)
    assert report["accuracy"] == np.mean([row[0] for row in expected] == y)


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("bias", [0.0, 0.37])
def test_decision_values_of_all_labels_are_written_exactly_and_in_their_order(here, ones, bias):
    X, _, text = _data(labels=MULTI_LABELS, ones=ones)
    random = np.random.default_rng(3)
    model = _multi_model(bias=bias, known=40)
    model.W[:], model.bias_weights[:] = random.standard_normal((40, 5)), random.standard_normal(5)
    Path("t.svm").write_text(text)
    sbm.predict(model, "t.svm", "out.txt", decision=True)
    lines = Path("out.txt").read_text().splitlines()
    found = [[float(word) for word in line.split(" ")] for line in lines]
    assert found == _multi_by_hand(model, text)
    scores = model.decision_function(X)
    assert scores.shape == (200, 5)
    assert found == scores.tolist()


@pytest.mark.parametrize(("decision", "top"), [(False, 1), (False, 3), (True, 1)])
@pytest.mark.parametrize("most", [1, 5, 33])
def test_decision_values_in_slices_change_nothing(here, monkeypatch, decision, top, most):
    _, _, text = _data(labels=MULTI_LABELS)
    model = _multi_model(known=30, bias=1.0)
    Path("t.svm").write_text(text)
    whole = sbm.predict(model, "t.svm", "out.txt", decision=decision, top=top)
    lines = Path("out.txt").read_bytes()
    sizes = []
    decide = predict_module._decide

    def spy(*arguments):
        scores, missed = decide(*arguments)
        sizes.append(scores.size)
        return scores, missed

    monkeypatch.setattr(predict_module, "_decide", spy)
    monkeypatch.setattr(batches, "SCORES", most)
    assert sbm.predict(model, "t.svm", "out.txt", decision=decision, top=top) == whole
    assert Path("out.txt").read_bytes() == lines
    assert max(sizes) == max(5, most // 5 * 5)  # one row is the least


def test_a_store_gives_the_multi_class_figures_of_its_text(here):
    _, _, text = _data(n=300, labels=MULTI_LABELS)
    Path("t.svm").write_text(text)
    sbm.split(["t.svm"], "t.sbm", blocks=3, shuffle=False)
    model = _multi_model(known=45, bias=1.0)
    from_text = sbm.predict(model, "t.svm", "a.txt", top=2)
    from_store = sbm.predict(model, "t.sbm", "b.txt", top=2)
    assert {**from_store, "output": "a.txt"} == from_text
    lines = Path("a.txt").read_text().splitlines()
    assert Path("b.txt").read_text().splitlines() == lines[0::3] + lines[1::3] + lines[2::3]


def test_a_multi_class_model_file_predicts_like_the_model(here):
    Path("t.svm").write_text(_data(labels=MULTI_LABELS)[2])
    model = _multi_model(bias=1.0)
    model.save("m.model")
    assert sbm.predict("m.model", "t.svm", top=3) == sbm.predict(model, "t.svm", top=3)


def test_weights_in_columns_predict_like_weights_in_rows(here):
    Path("t.svm").write_text(_data(labels=MULTI_LABELS)[2])
    model = _multi_model()
    turned = Model(model.ids, np.asfortranarray(model.W), model.labels)
    assert sbm.predict(turned, "t.svm") == sbm.predict(model, "t.svm")


def test_weights_of_the_bias_are_zeros_for_all_labels_by_default(here):
    model = Model(np.array([1]), np.array([[0.0, 1.0, 2.0]]), [1.0, 2.0, 3.0])
    assert model.bias_weights.tolist() == [0.0, 0.0, 0.0]
    Path("t.svm").write_text("3 1:1\n1 1:-1\n1\n")
    sbm.predict(model, "t.svm", "out.txt", decision=True)
    assert Path("out.txt").read_text() == "0 1 2\n0 -1 -2\n0 0 0\n"


def test_a_decision_value_that_overflows_to_no_number_is_never_the_best(here):
    W = np.array([[1e308, -1e308, 1.0], [-1e308, 1e308, 1.0]])
    model = Model(np.array([1, 2]), W, [1.0, 2.0, 3.0])
    Path("t.svm").write_text("3 1:1e10 2:1e10\n")  # infinity minus infinity, twice
    sbm.predict(model, "t.svm", "out.txt", top=3)
    assert Path("out.txt").read_text() == "3 1 2\n"
    X = scipy.sparse.csr_matrix([[0.0, 1e10, 1e10]])
    with np.errstate(all="ignore"):
        assert model.predict(X).tolist() == [3.0]


@settings(deadline=None)
@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(0, 4), st.integers(1, 70)),
        elements=st.one_of(st.sampled_from([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan]), st.floats()),
    ),
    st.data(),
)  # fmt: skip
def test_the_best_columns_are_those_of_a_stable_sort(scores, data):
    n_best = data.draw(st.integers(1, scores.shape[1]))
    out = np.empty((len(scores), n_best), np.int32)
    expected = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), axis=1, kind="stable")
    decision_kernels.best(scores.copy(), out)
    assert out.tolist() == expected[:, :n_best].tolist()


@settings(deadline=None)
@given(st.integers(1, 9), st.lists(st.lists(st.integers(-1, 5), max_size=7)), st.integers(0, 2**32))
def test_nonzeros_are_summed_in_order_and_the_bias_last(n_outputs, rows, seed):
    random = np.random.default_rng(seed)
    indices = np.array([index for row in rows for index in row], np.int32)
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    values = random.standard_normal(len(indices))
    W, bias = random.standard_normal((6, n_outputs)), random.standard_normal(n_outputs)
    out = np.empty((len(rows), n_outputs))
    unknown = decision_kernels.decide(indptr[:-1], indptr[1:], indices, values, W, bias, out)
    assert unknown == np.count_nonzero(indices < 0)
    for i, row in enumerate(rows):
        z = np.zeros(n_outputs)
        for index, v in zip(row, values[indptr[i] :], strict=False):
            z += v * W[index] * (index >= 0)
        assert out[i].tolist() == (z + bias).tolist()
    for k in range(n_outputs):
        column, w = np.empty((len(rows), 1)), np.ascontiguousarray(W[:, [k]])
        assert unknown == decision_kernels.decide(
            indptr[:-1], indptr[1:], indices, values, w, bias[[k]], column
        )
        assert column[:, 0].tolist() == out[:, k].tolist()


UNRANKED = (
    "top is 2, but the model tells two classes apart by one decision value, which ranks nothing; "
    "leave out --top"
)
ALL_VALUES = (
    "top is 2, but decision values are written for all labels, in the order of the labels; "
    "leave out --top or --decision"
)


@pytest.mark.parametrize(
    ("multi", "options", "message"),
    [
        (True, {"top": 0}, "top is 0; it must be at least 1"),
        (True, {"top": -2}, "top is -2; it must be at least 1"),
        (False, {"top": 0}, "top is 0; it must be at least 1"),
        (True, {"top": 6}, "top is 6; the model has 5 classes, so it must be at most that"),
        (False, {"top": 2}, UNRANKED),
        (True, {"top": 2, "decision": True}, ALL_VALUES),
    ],
)
def test_a_number_of_labels_that_has_no_meaning_is_refused(here, multi, options, message):
    Path("t.svm").write_text("spam\n")  # is not even looked at
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        sbm.predict(_multi_model() if multi else _model(), "t.svm", "out.txt", **options)
    assert os.listdir(here) == ["t.svm"]


def test_two_classes_with_two_columns_are_a_multi_class_model(here):
    model = Model(np.array([1]), np.array([[-1.0, 1.0]]), [3.0, 7.0])
    Path("t.svm").write_text("3 1:-1\n7 1:1\n7\n")
    report = sbm.predict(model, "t.svm", "out.txt", top=2)
    assert Path("out.txt").read_text() == "3 7\n7 3\n3 7\n"
    assert report["confusion"] == [[3.0, 3.0, 1], [7.0, 3.0, 1], [7.0, 7.0, 1]]
    assert (report["accuracy"], report["top_accuracy"]) == (2 / 3, 1.0)


@pytest.mark.parametrize("content", ["", "# a comment only\n"])
def test_a_multi_class_model_has_no_figures_without_rows(here, content):
    Path("t.svm").write_text(content)
    report = sbm.predict(_multi_model(), "t.svm", "out.txt")
    figures = ("accuracy", "macro_f1", "micro_f1", "top_accuracy")
    assert [report[name] for name in figures] == [None] * 4
    assert Path("out.txt").read_bytes() == b""


# ------------------------------------------------------------------------------------- regression


def _regression(bias=0.0):
    model = _model(bias=bias)
    return Model(model.ids, model.W, [], model.bias, model.bias_weights, {"loss": "squared_error"})


def _with_targets(text, seed=2):
    """Real numbers in the place of the labels."""
    y = np.random.default_rng(seed).standard_normal(text.count("\n"))
    lines = [
        " ".join([repr(t), *line.split()[1:]])
        for t, line in zip(y.tolist(), text.splitlines(), strict=True)
    ]
    return y, "\n".join(lines) + "\n"


@pytest.mark.parametrize("decision", [False, True])
@pytest.mark.parametrize("bias", [0.0, 0.37])
def test_a_regression_model_predicts_its_decision_values(here, decision, bias):
    y, text = _with_targets(_data()[2])
    model = _regression(bias)
    Path("t.svm").write_text(text)
    report = sbm.predict(model, "t.svm", "out.txt", decision=decision)
    expected = np.array(_by_hand(model, text))
    lines = Path("out.txt").read_text().splitlines()
    assert lines == [format_number(z) for z in expected.tolist()]
    figures = {
        "rows",
        "mse",
        "mae",
        "r2",
        "squared_correlation",
        "nnz",
        "unknown_nonzeros",
        "output",
    }
    assert set(report) == figures
    assert report["rows"] == len(y)
    assert report["mse"] == pytest.approx(np.mean((y - expected) ** 2), rel=1e-12)
    assert report["mae"] == pytest.approx(np.mean(abs(y - expected)), rel=1e-12)
    r2 = 1 - np.sum((y - expected) ** 2) / np.sum((y - y.mean()) ** 2)
    assert report["r2"] == pytest.approx(r2, rel=1e-9)
    correlation = np.corrcoef(y, expected)[0, 1] ** 2
    assert report["squared_correlation"] == pytest.approx(correlation, rel=1e-9)


def _assert_equal_up_to_rounding(found, expected):
    assert found["output"] == expected["output"]
    figures = {k: v for k, v in expected.items() if k != "output"}
    assert {k: v for k, v in found.items() if k != "output"} == pytest.approx(figures, rel=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_of_text_change_no_figure_of_a_regression(here, monkeypatch, threads):
    Path("t.svm").write_text(_with_targets(_data(n=1000)[2])[1])
    whole = sbm.predict(_regression(), "t.svm", "out.txt")
    lines = Path("out.txt").read_bytes()
    monkeypatch.setattr(text_module, "PIECE", 1000)
    found = sbm.predict(_regression(), "t.svm", "out.txt", threads=threads)
    _assert_equal_up_to_rounding(found, whole)
    assert Path("out.txt").read_bytes() == lines


def test_a_store_of_targets_gives_the_figures_of_its_text(here):
    Path("t.svm").write_text(_with_targets(_data(n=300)[2])[1])
    sbm.split(["t.svm"], "t.sbm", blocks=3)
    from_text, from_store = (sbm.predict(_regression(1.0), data) for data in ("t.svm", "t.sbm"))
    _assert_equal_up_to_rounding(from_store, from_text)


def test_a_regression_without_rows_has_no_figures(here):
    Path("t.svm").write_text("")
    report = sbm.predict(_regression(), "t.svm", "out.txt")
    assert [report[k] for k in ("rows", "mse", "r2")] == [0, None, None]
    assert Path("out.txt").read_bytes() == b""


NO_LABEL = "this model predicts a number, not a label"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 2}, f"top is 2, but {NO_LABEL}; leave out --top"),
        ({"top": 2, "decision": True}, f"top is 2, but {NO_LABEL}; leave out --top"),
        ({"top": 0}, "top is 0; it must be at least 1"),
        (
            {"confusion": ["c.tsv"]},
            f"{NO_LABEL}, so there is no confusion matrix; leave out --confusion",
        ),
        ({"probability": True}, f"{NO_LABEL}, so it has no probabilities; leave out --probability"),
    ],
)
def test_what_takes_labels_is_refused_of_a_regression_model(here, options, message):
    Path("t.svm").write_text("spam\n")
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        sbm.predict(_regression(), "t.svm", "out.txt", **options)
    assert os.listdir(here) == ["t.svm"]


def test_the_command_line_says_how_good_a_regression_is(here, monkeypatch):
    model = Model(np.array([1]), np.array([[2.0]]), [])
    monkeypatch.setattr(Model, "load", lambda path: model)
    Path("t.svm").write_text("1 1:1\n2 1:1\n4.5 1:2 9:1\n")

    def lines():
        result = CliRunner().invoke(cli, ["predict", "r.model", "t.svm", "-o", "out.txt"])
        assert result.exit_code == 0
        return result.output.splitlines()

    assert lines() == [
        "MSE 0.416667, MAE 0.5, R2 0.807692, squared correlation 0.923077 (3 rows)",
        "1 nonzero of 4 (25 %) ignored: the model has no weight for their ids",
    ]
    assert Path("out.txt").read_text() == "2\n2\n4\n"
    Path("t.svm").write_text("1 1:1\n")
    assert lines() == ["MSE 1, MAE 1, R2 -, squared correlation - (1 row)"]
    Path("t.svm").write_text("")
    assert lines() == ["no rows"]


def test_the_test_file_of_a_training_is_named_in_what_is_said_of_a_regression(here):
    Path("t.svm").write_text("1 1:1\n2 1:1\n")
    report = sbm.predict(Model(np.array([1]), np.array([[1.0]]), []), "t.svm")
    expected = "test MSE 0.5, MAE 0.5, R2 -1, squared correlation - (2 rows)"
    assert list(show.quality(report, "test ")) == [expected]


def test_real_valued_labels_are_unknown_to_a_model_of_classes(here):
    Path("t.svm").write_text("0.25 1:1\n-1.5 1:-1\n1 1:1\n")
    model = Model(np.array([1]), np.array([[1.0]]), [-1.0, 1.0])
    report = sbm.predict(model, "t.svm")
    assert (report["unknown_labels"], report["correct"]) == (2, 1)


# ------------------------------------------------------------------------------------ model files

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
@given(
    st.lists(st.integers(0, LARGEST), unique=True, max_size=20),
    st.integers(1, 3),
    FINITE,
    st.data(),
)
def test_a_model_survives_its_file(tmp_path, ids, outputs, bias, data):
    n_labels = max(2, outputs)
    labels = data.draw(st.lists(FINITE, min_size=n_labels, max_size=n_labels, unique=True))
    labels.sort()
    W = data.draw(hnp.arrays(np.float64, (len(ids), outputs), elements=FINITE))
    weights = data.draw(hnp.arrays(np.float64, outputs, elements=FINITE))
    info = {"loss": "hinge", "C": 0.1, "converged": True, "certificate": {"primal": 1 / 3}}
    model = Model(np.array(ids, np.int64), W, list(labels), bias, weights, info)
    path = tmp_path / "m.model"
    size = model.save(path)
    loaded = Model.load(path)
    assert size == path.stat().st_size
    used = W.any(axis=1)
    assert loaded.ids.tolist() == np.array(ids, np.int64)[used].tolist()
    assert loaded.W.dtype == np.float64
    np.testing.assert_array_equal(loaded.W, W[used])
    assert loaded.bias_weights.tobytes() == weights.tobytes()
    assert (loaded.labels, loaded.bias, loaded.info) == (list(labels), bias, info)
    assert (loaded.converged, loaded.certificate) == (True, {"primal": 1 / 3})
    loaded.save(tmp_path / "again.model")
    assert (tmp_path / "again.model").read_bytes() == path.read_bytes()


def test_a_model_file_predicts_like_the_model(here):
    Path("t.svm").write_text(_data()[2])
    model = _model(bias=1.0)
    model.save("m.model")
    assert sbm.predict("m.model", "t.svm") == sbm.predict(model, "t.svm")
    assert sbm.predict(Path("m.model"), Path("t.svm")) == sbm.predict(model, "t.svm")


def test_every_damaged_byte_of_a_model_is_noticed(tmp_path):
    path = tmp_path / "m.model"
    _model(known=2).save(path)
    data = path.read_bytes()
    for position in range(len(data)):
        for bit in (0x01, 0x80):
            damaged = bytearray(data)
            damaged[position] ^= bit
            path.write_bytes(damaged)
            with pytest.raises(StoreError, match=f"^{path} (is|has|holds)"):
                Model.load(path)
    path.write_bytes(data)
    Model.load(path)


def test_every_truncated_or_longer_model_is_refused(tmp_path):
    path = tmp_path / "m.model"
    _model(known=2).save(path)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(StoreError, match=f"^{path} is "):
            Model.load(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(StoreError, match=rf"^{path} is damaged \(bytes behind its end\)"):
        Model.load(path)


GOOD = {"ids": np.array([1, 2]), "W": np.ones((2, 1)), "bias_weights": np.zeros(1)}
META = {"labels": [-1.0, 1.0], "bias": 0.0, "info": {}}
WIDE = {"ids": np.array([1, 2]), "W": np.ones((2, 3)), "bias_weights": np.zeros(3)}


@pytest.mark.parametrize(
    ("arrays", "meta"),
    [
        ({**GOOD, "W": np.ones((1, 1))}, META),
        ({**GOOD, "W": np.ones(2)}, META),
        ({**GOOD, "W": np.ones((2, 0))}, META),
        ({**GOOD, "W": np.ones((2, 1), np.int64)}, META),
        ({**GOOD, "ids": np.array([1.0, 2.0])}, META),
        ({**GOOD, "ids": np.array([[1, 2]])}, META),
        ({**GOOD, "bias_weights": np.zeros(3)}, META),
        ({name: GOOD[name] for name in ("ids", "bias_weights")}, META),
        (GOOD, {}),
        (WIDE, {**META, "labels": []}),
        (GOOD, {**META, "labels": [1.0]}),
        (GOOD, {**META, "labels": [1.0, 1.0]}),
        (GOOD, {**META, "bias": "much"}),
        (GOOD, {**META, "labels": [1.0, 2.0, 3.0]}),
        (WIDE, META),
        (WIDE, {**META, "labels": [1.0, 2.0, 3.0, 4.0]}),
        (WIDE, {**META, "labels": [1.0, 2.0, 2.0]}),
    ],
    ids=["W-short", "W-flat", "no-output", "W-integer", "ids-real", "ids-2d", "bias-long", "no-W",
         "no-meta", "regression-wide", "one-label", "label-twice", "bias-text", "column-short",
         "column-over", "columns-short", "labels-twice"],
)  # fmt: skip
def test_a_model_whose_parts_contradict_each_other_is_refused(tmp_path, arrays, meta):
    path = tmp_path / "m.model"
    container.write(path, "model", arrays, meta, level=None)
    with pytest.raises(StoreError, match=str(path)):
        Model.load(path)


def test_the_parts_that_the_refusals_start_from_are_good(tmp_path):
    container.write(tmp_path / "m.model", "model", GOOD, META, level=None)
    assert Model.load(tmp_path / "m.model").ids.tolist() == [1, 2]
    for labels in ([1.0, 2.0, 3.0], [-7.5, 0.0, 1e9], [3.0, 1.0, 2.0]):
        container.write(tmp_path / "w.model", "model", WIDE, {**META, "labels": labels}, level=None)
        assert Model.load(tmp_path / "w.model").labels == labels


def test_columns_that_do_not_belong_to_the_labels_are_counted_in_the_refusal(tmp_path):
    path = tmp_path / "m.model"
    container.write(path, "model", WIDE, META, level=None)
    message = (
        f"{path} is not a model that can be used (3 columns of weights do not belong to 2 labels); "
        "train it again"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        Model.load(path)


def test_another_kind_of_file_is_no_model(tmp_path):
    path = tmp_path / "x"
    container.write(path, "alpha", {})
    with pytest.raises(StoreError, match=f"^{path} holds a alpha, a model is expected$"):
        Model.load(path)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match=rf"^{path} is not an sbm file \(or its first bytes are "):
        Model.load(path)
    with pytest.raises(SbmError, match=f"^{tmp_path / 'none'} does not exist; see"):
        Model.load(tmp_path / "none")
    shutil.copy(__file__, path)
    with pytest.raises(StoreError, match=f"^{path} is not an sbm file"):
        Model.load(path)
