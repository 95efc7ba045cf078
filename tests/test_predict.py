"""Prediction from text and stores against plain Python, and the model file."""

import gzip
import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inside import Model, Names, Progress, cli, engine_prefetch_module, format_number, load, patch
from inside import store_blocks_module as blocks

import sbm
from sbm.errors import DataError, SbmError, SettingsError, StoreError

N_FEATURES = 60
LARGEST = 2**63 - 1
FIVE = (-3.5, 0.0, 2.0, 7.0, 1e6)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_rows(labels, ones=False, n=200):
    """Random rows as CSR by feature id, labels or targets, and LIBSVM text; some are empty."""
    random = np.random.default_rng(0)
    dense = random.integers(-40, 40, (n, N_FEATURES)) / 16
    dense[random.random(dense.shape) < 0.8] = 0
    dense[::10] = 0
    dense = (dense != 0).astype(float) if ones else dense
    y = random.choice(labels, n) if labels else random.standard_normal(n)
    lines = []
    for label, row in zip(y.tolist(), dense.tolist(), strict=True):
        lines.append(" ".join([repr(label), *(f"{k}:{v}" for k, v in enumerate(row) if v)]))
    return scipy.sparse.csr_matrix(dense), y, "\n".join(lines) + "\n"


def make_model(labels=(-1.0, 1.0), outputs=1, bias=0.0, ties=False, known=45):
    random = np.random.default_rng(1)
    ids = random.permutation(N_FEATURES)[:known].astype(np.int64)
    W, bias_weights = random.standard_normal((known, outputs)), random.standard_normal(outputs)
    if ties:
        W, bias_weights = random.integers(-1, 2, (known, outputs)) / 4, np.ones(outputs)
    return Model(ids, W, list(labels), bias, bias_weights, {"loss": "hinge"})


def scores_of(model, text):
    """Decision values in the order of the file: products one by one, the bias last."""
    weights = dict(zip(model.ids.tolist(), model.W.tolist(), strict=True))
    table = []
    for line in text.splitlines():
        z = [0.0] * model.W.shape[1]
        for pair in line.split()[1:]:
            identity, value = pair.split(":")
            w = weights.get(int(identity), [0.0] * len(z))
            z = [a + float(value) * b for a, b in zip(z, w, strict=True)]
        bias = [model.bias * b for b in model.bias_weights.tolist()]
        table.append([a + b for a, b in zip(z, bias, strict=True)])
    return table


def best_labels(model, scores):
    """Labels of a row, best first; the first column if values are equal."""
    if len(scores) == 1:
        return [model.labels[int(scores[0] > 0)]]
    return [model.labels[k] for k in sorted(range(len(scores)), key=lambda k: -scores[k])]


def words(numbers):
    return " ".join(map(format_number, numbers))


def lines_of(path):
    return Path(path).read_text().splitlines()


# ----------------------------------------------------------------------------- against plain Python

MODELS = [
    ((-1.0, 1.0), 1, {"bias": 0.37}), ((3.0, 7.0), 1, {}), ((-2.5, 0.5), 2, {"ties": True}),
    (FIVE, 5, {"ties": True, "bias": 1.0}), (FIVE, 5, {"bias": 0.37}),
    ((5.0, -1.0, 3.0), 3, {"ties": True}), ((), 1, {"bias": 0.37}),
]  # fmt: skip


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize(("labels", "outputs", "options"), MODELS)
def test_predictions_match_plain_python(here, labels, outputs, options, ones):
    X, y, text = make_rows(labels, ones)
    model = make_model(labels, outputs, **options)
    Path("t.svm").write_text(text)
    sbm.split(["t.svm"], "t.sbm", blocks=3)
    scores = scores_of(model, text)
    assert model.decision_function(X).tolist() == (np.array(scores).squeeze().tolist())
    order = np.argsort(model.labels) if outputs > 1 else [0]
    values = [words(row[k] for k in order) for row in scores]
    predicted = np.array([best_labels(model, row)[0] if labels else row[0] for row in scores])
    assert model.predict(X).tolist() == predicted.tolist()
    answers = [words([x]) for x in predicted.tolist()]
    for decision, expected in ((True, values), (False, answers)):
        report = sbm.predict(model, "t.svm", "out.txt", decision=decision)
        assert lines_of("out.txt") == expected
        of_store = sbm.predict(model, "t.sbm", "out.txt", decision=decision)
        expected = np.array([list(map(float, line.split())) for line in expected])
        np.testing.assert_allclose(np.loadtxt("out.txt", ndmin=2), expected, rtol=1e-12, atol=1e-14)
        if labels:
            assert of_store == report
            assert report["labels"] == sorted(labels)
            assert report["accuracy"] == np.mean(predicted == y)
        else:
            assert of_store["r2"] == pytest.approx(report["r2"], rel=1e-12)
            assert report["mse"] == pytest.approx(np.mean((y - predicted) ** 2), rel=1e-12)
    assert (report["rows"], report["nnz"]) == (200, X.nnz)
    assert report["unknown_nonzeros"] == np.count_nonzero(~np.isin(X.indices, model.ids)) > 0


def test_store_is_predicted_in_text_order(here, monkeypatch):
    patch(monkeypatch, "LARGEST_BATCH", 64 * 30)  # batches of 30 rows
    patch(monkeypatch, "CHUNK_ROWS", 4)
    texts = [make_rows((-1.0, 1.0), n=n)[2] for n in (100, 7, 65)]
    for k, text in enumerate(texts):
        Path(f"{k}.svm").write_text(text)
        sbm.split(f"{k}.svm", "t.sbm", blocks=(5, 9, 3)[k], append=k > 0)
    assert len(blocks.read_manifest(Path("t.sbm"))["generations"][0]["deal"]["batches"]) > 3
    for kept in (texts, texts[::2]):
        Path("t.svm").write_text("".join(kept))
        for name in ("t.svm", "t.sbm"):
            sbm.predict(make_model(), name, f"{name}.out", decision=True)
        np.testing.assert_allclose(np.loadtxt("t.sbm.out"), np.loadtxt("t.svm.out"), rtol=1e-6)
        if kept is texts:
            sbm.expire("t.sbm", sources=["1.svm"])
    manifest = blocks.read_manifest(Path("t.sbm"))
    del manifest["generations"][0]["deal"]
    blocks.write_manifest(Path("t.sbm"), manifest)
    sbm.predict(make_model(), "t.sbm")
    with pytest.raises(StoreError, match="order"):
        sbm.predict(make_model(), "t.sbm", "out.txt")


@pytest.mark.parametrize("top", [1, 3, 64, 65, 70])
def test_top_labels_are_ranked(here, top):
    labels = tuple(float(k) for k in range(70))
    _, y, text = make_rows(labels)
    model = make_model(labels, 70, ties=True)
    Path("t.svm").write_text(text)
    report = sbm.predict(model, "t.svm", "out.txt", top=top)
    expected = [best_labels(model, row)[:top] for row in scores_of(model, text)]
    assert lines_of("out.txt") == list(map(words, expected))
    hits = [label in row for label, row in zip(y.tolist(), expected, strict=True)]
    assert (report["top_n"], report["top_accuracy"]) == (top, np.mean(hits))


@pytest.mark.parametrize(
    ("labels", "outputs", "options"),
    [((-1.0, 1.0), 1, {}), (FIVE, 5, {"top": 3}), (FIVE, 5, {"decision": True}), ((), 1, {})],
)
def test_output_does_not_depend_on_pieces_or_threads(here, monkeypatch, labels, outputs, options):
    text = make_rows(labels, n=1000)[2].encode()
    Path("t.svm").write_bytes(text)
    model = make_model(labels, outputs)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    whole = sbm.predict(model, "-", "out.txt", threads=1, **options)
    expected = Path("out.txt").read_bytes()
    model.save("m.model")
    patch(monkeypatch, "text.PIECE", 1000)
    for most in (3, 33):
        patch(monkeypatch, "SCORES", most)
        report = sbm.predict("m.model", "t.svm", "out.txt", threads=3, **options)
        assert Path("out.txt").read_bytes() == expected
        if labels:
            assert report == whole
        else:
            assert report["mse"] == pytest.approx(whole["mse"], rel=1e-12)


def test_results_of_threads_come_in_order_until_one_fails():
    is_later_done, taken, found = Event(), [], []

    def divide(k):
        if k == 2:
            assert is_later_done.wait(60)  # the next one ends first
        elif k == 1:
            is_later_done.set()
        return 6 // k

    def items():
        for k in (2, 1, 3, 0, 1, 1, 1, 1):
            taken.append(k)
            yield k

    with ThreadPoolExecutor(2) as pool:
        results = engine_prefetch_module.in_threads(pool, divide, items(), ahead=1)
        with pytest.raises(ZeroDivisionError):
            found.extend(results)
    assert found == [3, 6, 2]
    assert len(taken) == 5  # one ahead of the one that failed


def test_zero_decision_value_is_negative(here):
    model = Model(np.array([1, 2]), np.array([[1.0], [-1.0]]), [3.0, 7.0])
    Path("t.svm").write_text("3 1:1 2:1\n3\n7 9:5\n7 1:1\n")
    report = sbm.predict(model, "t.svm", "out.txt")
    assert Path("out.txt").read_text() == "3\n3\n3\n7\n"
    assert report["confusion"] == [[2, 0], [1, 1]]
    assert model.predict(scipy.sparse.csr_matrix((2, 5))).tolist() == [3.0, 3.0]


def test_nan_decision_value_is_never_best(here):
    W = np.array([[1e308, -1e308, 1.0], [-1e308, 1e308, 1.0]])
    model = Model(np.array([1, 2]), W, [1.0, 2.0, 3.0])
    Path("t.svm").write_text("3 1:1e10 2:1e10\n")  # infinity minus infinity, twice
    sbm.predict(model, "t.svm", "out.txt", top=3)
    assert Path("out.txt").read_text() == "3 1 2\n"
    with np.errstate(all="ignore"):
        assert model.predict(scipy.sparse.csr_matrix([[0.0, 1e10, 1e10]])).tolist() == [3.0]


SCORES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan]), st.floats())


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(0, 4), st.integers(1, 70)), elements=SCORES),
    st.data(),
)
def test_best_columns_match_stable_sort(scores, data):
    n_best = data.draw(st.integers(1, scores.shape[1]))
    out = np.empty((len(scores), n_best), np.int32)
    expected = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), axis=1, kind="stable")
    load("sbm.solver.kernels.decision").best(scores.copy(), out)
    assert out.tolist() == expected[:, :n_best].tolist()


def test_unknown_labels_count_as_wrong(here):
    model = Model(np.array([1]), np.array([[1.0]]), [-1.0, 1.0])
    Path("t.svm").write_text("1 1:1\n-1 1:-1\n0 1:1\n2 1:1\n1.5 1:-1\n")
    report = sbm.predict(model, "t.svm")
    assert (report["unknown_labels"], report["correct"], report["accuracy"]) == (3, 2, 0.4)


def test_largest_ids_are_found(here):
    ids = np.array([0, 1, 2**31, 2**32 + 5, 2**62, LARGEST - 1], np.int64)
    model = Model(ids, np.array([[1.0], [2], [4], [8], [16], [32]]), [-1.0, 1.0])
    Path("t.svm").write_text(
        f"1 0:1 {2**32 + 5}:1 {LARGEST - 1}:1\n1 {2**31}:1 {2**31 + 1}:1 {LARGEST}:1\n"
    )
    report = sbm.predict(model, "t.svm", "out.txt", decision=True)
    assert Path("out.txt").read_text() == "41\n4\n"
    assert report["unknown_nonzeros"] == 2
    indices, starts = np.array([0, 2**32 + 5, LARGEST - 1, 2**31, 3]), np.array([0, 3, 5])
    X = scipy.sparse.csr_array((np.ones(5), indices, starts), shape=(2, LARGEST))
    assert model.decision_function(X).tolist() == [41.0, 4.0]
    for wrong in ([[1.0, 2.0], [1.0]], X.astype(complex), scipy.sparse.coo_array(np.ones(3)), "a"):
        with pytest.raises(DataError, match="matrix"):
            model.decision_function(wrong)


@pytest.mark.parametrize(
    ("known", "text", "is_shifted"),
    [
        ((1, 5), "1 0:1 4:1\n", True), ((1, 9), "1 0:1 4:1\n", True), ((0, 4), "1 1:1 5:1\n", True),
        ((1, 5), "1 1:1 5:1\n", False), ((1, 5), "1 0:1 5:1\n", False),
        ((0, 4), "1 1:1 4:1\n", False), ((0, 4), "1\n", False),
    ],
)  # fmt: skip
def test_ids_shifted_by_one_are_reported(here, known, text, is_shifted):
    Path("t.svm").write_text(text)
    model = Model(np.array([3]), np.ones((1, 1)), [-1.0, 1.0], zero_ids=np.array(known))
    model.save("m.model")
    output = CliRunner().invoke(cli, ["predict", "m.model", "t.svm"]).output
    assert ("warning: " in output and "shifted" in output) == is_shifted


def numbered_rows(kind, rows, first, seed):
    """LIBSVM text whose ids begin with `first`."""
    random, lines = np.random.default_rng(seed), []
    for _ in range(rows):
        ids = {int(3000 * u**3) for u in random.random(12)}
        if kind == "constant":
            ids.add(0)
        elif kind == "dense":
            ids = range(30)
        elif kind == "sparse":
            ids = set(random.choice([3, 90, 91, 700, 2500], 4, p=[0.5, 0.2, 0.1, 0.1, 0.1]))
        lines.append("1 " if random.random() < 0.5 else "-1 ")
        lines[-1] += " ".join(f"{k + first}:1" for k in sorted(ids))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("kind", ["constant", "skewed", "dense", "sparse"])
@pytest.mark.parametrize("first", [0, 1])
def test_shifted_ids_of_few_rows_are_noticed(here, kind, first):
    Path("t.svm").write_text(numbered_rows(kind, 400, first, 1))
    model, _ = sbm.train("t.svm", "t.model", {"C": 0.01, "tol": 0.1})
    n = 400 if kind == "skewed" else 20
    for seed in range(2, 12):
        Path("n.svm").write_text(numbered_rows(kind, n, first, seed))
        assert sbm.predict(model, "n.svm")["warnings"] == []
        Path("n.svm").write_text(numbered_rows(kind, n, 1 - first, seed))
        [warning] = sbm.predict(model, "n.svm")["warnings"]
        assert "shifted by one" in warning
        if kind == "constant":  # a feature that is missing is no shift
            text = numbered_rows(kind, n, first, seed).replace(f" {first}:1", "")
            Path("n.svm").write_text(text)
            assert sbm.predict(model, "n.svm")["warnings"] == []
    model.info["frequencies"] = {"rows": -1, "counts": [["x"]]}  # a damaged model
    assert sbm.predict(model, "t.svm")["warnings"] == []


@pytest.mark.parametrize(("labels", "outputs"), [((-1.0, 1.0), 1), (FIVE, 5), ((), 1)])
@pytest.mark.parametrize("text", ["", "# a comment only\n"])
def test_no_rows_give_no_metrics(here, labels, outputs, text):
    Path("t.svm").write_text(text)
    report = sbm.predict(make_model(labels, outputs), "t.svm", "out.txt")
    figures = ("accuracy", "auc", "macro_f1", "micro_f1", "top_accuracy", "mse", "r2")
    assert {report.get(name) for name in figures} == {None}
    assert report["rows"] == 0
    assert Path("out.txt").read_bytes() == b""


# ------------------------------------------------------------------------------------------ outputs


def test_failure_keeps_the_old_output(here, monkeypatch):
    patch(monkeypatch, "text.PIECE", 64)  # the error comes after lines were written
    Path("t.svm").write_text("1 1:1\n" * 100 + "spam\n")
    Path("out.txt").write_text("old\n")
    with pytest.raises(DataError, match=r"^t\.svm:101: .*'spam'"):
        sbm.predict(make_model(), "t.svm", "out.txt", confusion=["c.tsv"])

    class Interrupted(Progress):
        def advance(self, done, **numbers):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sbm.predict(make_model(), "t.svm", "out.txt", progress=Interrupted())
    assert Path("out.txt").read_text() == "old\n"
    assert sorted(os.listdir()) == ["out.txt", "t.svm"]


def test_pipe_and_stdout_are_written_in_place(here, capfd, monkeypatch):
    Path("t.svm").write_text("1 1:1\n")
    model = Model(np.array([1]), np.array([[1.0]]), [-1.0, 1.0])
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        sbm.predict(model, "t.svm", "pipe")
        assert Path("pipe").is_fifo()
        assert os.read(reader, 100) == b"1\n"
    finally:
        os.close(reader)
    assert sbm.predict(model, "t.svm", "-")["output"] == "-"
    assert capfd.readouterr().out == "1\n"
    with monkeypatch.context() as context:
        context.setattr(sys, "stdout", None)
        with pytest.raises(StoreError, match="standard output"):
            sbm.predict(model, "t.svm", "-")


TWO, MULTI, TARGETS = make_model(), make_model(FIVE, 5), make_model((), 1)


@pytest.mark.parametrize(
    ("model", "options", "facts"),
    [
        (MULTI, {"top": 0}, "top is 0.* 1$"), (TWO, {"top": -2}, "top is -2.* 1$"),
        (TARGETS, {"top": 0}, "top is 0"), (MULTI, {"top": 6}, "top is 6.* 5$"),
        (TWO, {"top": 2}, "top is 2.*omit top$"), (TARGETS, {"top": 2}, "top is 2.*regression"),
        (MULTI, {"top": 2, "decision": True}, "top is 2.*omit top or decision=True"),
        (TWO, {"top": 2, "probability": True}, "top is 2.*omit top or probability=True"),
        (TWO, {"decision": True, "probability": True}, "probability=True or decision=True"),
        (TARGETS, {"confusion": ["c.tsv"]}, "regression.*omit confusion"),
        (TARGETS, {"probability": True}, "regression.*probability=True"),
        (MULTI, {"threads": 0}, "threads is 0.* 1$"), (TWO, {"threads": -1}, "threads is -1"),
        (TWO, {"output": "no/out"}, "^no .*output="),
        (TWO, {"output": "folder"}, "folder.*directory"),
        (TWO, {"output": "t.svm"}, "output t.svm .*input"),
        (TWO, {"output": "link"}, "output link .*input"),
        (TWO, {"output": "same.tsv", "confusion": ["./same.tsv"]}, "both.* same.tsv"),
        (TWO, {"confusion": ["link.tsv"]}, "output link.tsv .*input"),
        (TWO, {"confusion": ["a.tsv", "c.txt"]}, r"c\.txt.*\.tsv .*\.png"),
        (TWO, {"confusion": ["no/c.tsv"]}, "^no .*confusion$"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_before_reading(here, model, options, facts):
    Path("t.svm").write_text("spam\n")
    os.link("t.svm", "link")
    os.link("t.svm", "link.tsv")
    Path("folder").mkdir()
    with pytest.raises((SettingsError, StoreError), match=f"(?i){facts}"):
        sbm.predict(model, "t.svm", **{"output": "out.txt", **options})
    assert sorted(os.listdir()) == ["folder", "link", "link.tsv", "t.svm"]


@pytest.mark.parametrize("kind", ["csr_array", "csc_matrix", "coo_array", "array", "list"])
def test_matrices_of_any_type_are_predicted(kind):
    X = make_rows((), n=20)[0]
    expected = TWO.decision_function(X)
    X = X.toarray() if kind in ("array", "list") else getattr(scipy.sparse, kind)(X)
    X = X.tolist() if kind == "list" else X
    assert TWO.decision_function(X).tolist() == expected.tolist()
    for bad in ([1.0, 2.0], [["a"]], "t.svm", None):
        with pytest.raises(DataError, match="matrix of numbers"):
            TWO.predict(bad)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array, scipy.sparse.coo_matrix])
def test_matrix_values_are_finite(kind, bad):
    X = np.ones((4, 5))
    X[2, 3] = bad
    with pytest.raises(DataError, match=rf"row 2: found {bad} as the value of feature 3"):
        TWO.predict(kind(X))


def test_arguments_of_wrong_types_are_refused(here):
    Path("t.svm").write_text("1 1:1\n")
    X = np.eye(2)
    for call, facts in (
        (lambda: sbm.predict(TWO, X), r"ndarray.*Model\.predict\(X\)"),
        (lambda: sbm.predict(TWO, None), "NoneType"),
        (lambda: sbm.predict(3, "t.svm"), "model.*int"),
        (lambda: sbm.predict(TWO, "t.svm", X), "output.*ndarray"),
        (lambda: sbm.predict(TWO, "t.svm", confusion=[3]), "output.*int"),
        (lambda: Model.load(X), "model.*ndarray"), (lambda: sbm.export(3), "model.*int"),
        (lambda: sbm.export(TWO, X), "output.*ndarray"), (lambda: sbm.info(X), "ndarray"),
        (lambda: sbm.check(None), "store.*NoneType"), (lambda: sbm.split(3, "a.sbm"), "int.*X, y"),
        (lambda: sbm.split(X, "a.sbm"), r"ndarray.*\(X, y\)"),
        (lambda: sbm.split("t.svm", X), "store.*ndarray"),
    ):  # fmt: skip
        with pytest.raises(SbmError, match=facts):
            call()


def test_pair_of_matrix_and_labels_is_split(here):
    X, y, text = make_rows((-1.0, 1.0))
    Path("t.svm").write_text(text)
    for k, pair in enumerate(((X, y), (X.toarray(), y), [X, y])):
        assert sbm.split(pair, f"{k}.sbm")["rows"] == len(y)
        assert sbm.predict(TWO, f"{k}.sbm", "a") | {"output": ""} == (
            sbm.predict(TWO, "t.svm", "b") | {"output": ""}
        )
        assert lines_of("a") == lines_of("b")


def test_liblinear_models_are_loaded(here):
    model = Model(np.array([1, 3]), np.array([[1.0], [-2.0]]), [-1.0, 1.0], info={"loss": "hinge"})
    sbm.export(model, "m.txt")
    X = make_rows(())[0]
    assert Model.load("m.txt").predict(X).tolist() == model.predict(X).tolist()


# -------------------------------------------------------------------------------------- model files


def test_damaged_model_files_are_refused(tmp_path):
    path = tmp_path / "m.model"
    make_model(known=2).save(path)
    data = path.read_bytes()
    flips = [data[:k] + bytes([data[k] ^ 0x40]) + data[k + 1 :] for k in range(len(data))]
    for bad in (*flips, *(data[:k] for k in range(len(data))), data + b"\0"):
        path.write_bytes(bad)
        with pytest.raises(StoreError, match=f"^{path} "):
            Model.load(path)


# --------------------------------------------------------------------------- rows without labels


def write_unlabelled(kind, with_some):
    """Three rows of features 1 and 2; the first has a label if `with_some`."""
    name = f"u.{kind}"
    if kind == "svm":
        Path(name).write_text(("1 " if with_some else "") + "1:1\nqid:3 2:1\n1:1 2:1\n")
    elif kind == "vw":
        Path(name).write_text(("1 " if with_some else "") + "| 1:1\n| 2:1\n 'tag| 1:1 2:1\n")
    elif kind in ("csv", "tsv"):
        rows = ["1,2", "1,", ",1", "1,1"]
        if with_some:
            rows = ["1,2,label", "1,,1", ",1, ? ", "1,1,"]
        Path(name).write_text("\n".join(rows).replace(",", "," if kind == "csv" else "\t") + "\n")
    elif kind == "npz":
        more = {"y": np.array([1, np.nan, np.nan])} if with_some else {}
        np.savez(name, data=np.ones(4), indices=[1, 2, 1, 2], indptr=[0, 1, 2, 4], **more)
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {"indices": [[1], [2], [1, 2]], "values": [[1.0], [1.0], [1.0, 1.0]]}
        if with_some:
            columns["label"] = [1, None, None]
        pq.write_table(pa.table(columns), name)
    return name


@pytest.mark.parametrize("kind", ["svm", "vw", "csv", "tsv", "npz", "parquet"])
def test_rows_without_labels_are_predicted(here, kind):
    columns = [{"name": name, "kind": "number"} for name in ("1", "2")]
    table = {"names": {"label": "label", "columns": columns}}
    info = {"vw": {"names": {"hash_bits": 22}}, "csv": table, "tsv": table}.get(kind, {})
    names = Names.of([b"1", b"2"]) if info is table else None
    ids, weights = np.array([1, 2]), np.array([[1.0], [-2]])
    model = Model(ids, weights, [-1.0, 1.0], info=info, names=names)
    for with_some in (False, True):
        name = write_unlabelled(kind, with_some)
        report = sbm.predict(model, name, "out.txt")
        assert lines_of("out.txt") == ["1", "-1", "-1"]
        assert (report["rows"], report["unlabelled_rows"]) == (3, 3 - with_some)
        assert report.get("accuracy") == (1.0 if with_some else None)
        assert sbm.predict(model, name, labels=False)["unlabelled_rows"] == 3
        with pytest.raises(DataError, match="label"):
            sbm.predict(model, name, labels=True)
        with pytest.raises(DataError, match="label"):
            sbm.split(name)


def test_ignored_labels_need_not_be_numbers(here):
    Path("t.svm").write_text("yes 1:1\n-inf 1:-1\n1 1:1\n")
    Path("t.vw").write_text("what is 1 this| 1:1\n| 1:-1\n1| 1:1\n")
    Path("t.csv").write_text("label,1\nyes,1\n-inf,-1\n1,1\n")
    vw = {"names": {"hash_bits": 22}}
    table = {"names": {"label": "label", "columns": [{"name": "1", "kind": "number"}]}}
    for name, more in (("t.svm", {}), ("t.vw", vw), ("t.csv", table)):
        names = Names.of([b"1"]) if more is table else None
        ids, weights = np.array([1]), np.array([[1.0]])
        Model(ids, weights, [-1.0, 1.0], info=more, names=names).save("m.model")
        result = CliRunner().invoke(cli, ["predict", "m.model", name, "--no-labels", "-o", "o"])
        assert (result.exit_code, lines_of("o")) == (0, ["1", "-1", "1"])
        assert "accuracy" not in result.output
        assert "3 rows" in result.output
        with pytest.raises(DataError):
            sbm.predict("m.model", name)
        with pytest.raises(SettingsError, match="labels=False"):
            sbm.predict("m.model", name, labels=False, confusion=["c.tsv"])


BARE = [  # text without labels, rows, and the line that is refused unless labels are ignored
    ("3:1\n\n5:1\n", 3, 2), ("\n3:1\n", 2, 1), ("3:1\n\n", 2, 2), ("\n \t\n\r\n", 3, 1),
    ("3:1\r\n\r\n\r\n5:1", 4, 2), ("3:1\n  ", 2, 2), ("qid:1 3:1\n\n", 2, 2), ("\n", 1, 1),
    ("# by me\n3: 1\n\n", 2, 3), ("3:1\n" * 40 + "\n" + "5:1\n" * 40, 81, 41),
    ("\n" + "3:1\n" * 40, 41, 1), ("3:1\n5:1\n", 2, 0), ("# by me\n3:1 # mine\n", 1, 0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rows", "refused"), BARE)
@pytest.mark.parametrize("ending", ["", ".gz", "-"])
@pytest.mark.parametrize("piece", [8, 1 << 20])
def test_rows_without_labels_and_features(
    here, monkeypatch, text, rows, refused, ending, piece
):  # fmt: skip
    patch(monkeypatch, "text.PIECE", piece)
    name, model = "-" if ending == "-" else f"t.svm{ending}", make_model()
    if ending == ".gz":
        Path(name).write_bytes(gzip.compress(text.encode()))
    elif not ending:
        Path(name).write_text(text, newline="")

    def predict(**options):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return sbm.predict(model, name, "out.txt", **options)

    if refused:
        with pytest.raises(DataError, match=rf"[: ]{refused}: found a blank line.*labels=False"):
            predict()
        assert not Path("out.txt").exists()
    else:
        assert predict()["rows"] == rows
    report = predict(labels=False, decision=True)
    assert report["rows"] == report["unlabelled_rows"] == rows
    assert len(Path("out.txt").read_text().splitlines()) == rows


@pytest.mark.parametrize("labels", [None, False])
def test_comment_may_be_a_row_without_features(here, labels):
    Path("t.svm").write_text("3:1\n4:1\n  # mine\n")
    with pytest.raises(DataError, match=r"t\.svm:3: found a line with only a comment"):
        sbm.predict(make_model(), "t.svm", labels=labels)
    Path("t.svm").write_text("# top\n1 3:1\n\n# mine\n-1\n")
    assert sbm.predict(make_model(), "t.svm", labels=labels)["rows"] == 2 + (labels is False)


def test_labelled_rows_among_blank_lines(here):
    Path("t.svm").write_text("\n1 3:1\n\n# two\n-1\n\n")
    assert sbm.predict(make_model(), "t.svm")["rows"] == 2
    assert sbm.predict(make_model(), "t.svm", labels=True)["rows"] == 2
    Path("t.svm").write_text("\n1 3:1\n\n4:1\n")
    with pytest.raises(DataError, match=r"t\.svm:1: found a blank line"):
        sbm.predict(make_model(), "t.svm")


@pytest.mark.parametrize(
    ("text", "refused"), [("| 1\n\n", 2), ("\n'tag | 1\r\n", 1), ("\r\n \n", 1)]
)
def test_vw_rows_without_labels_and_features(here, text, refused):
    info = {"names": {"hash_bits": 22, "label": None, "text": []}}
    model = Model(np.array([1]), np.array([[1.0]]), [-1.0, 1.0], info=info)
    Path("t.vw").write_text(text, newline="")
    with pytest.raises(DataError, match=rf"t\.vw:{refused}: found a blank line.*labels=False"):
        sbm.predict(model, "t.vw")
    assert sbm.predict(model, "t.vw", labels=False)["rows"] == 2
    Path("t.vw").write_text("1 | 1\n\n-1 |\n")
    assert sbm.predict(model, "t.vw")["rows"] == 2
