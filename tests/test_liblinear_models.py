"""Reading and writing LIBLINEAR models: equal predictions, and invalid files."""

import itertools
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from helpers import fit, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inside import Model, patch, read_model, write_model

import sbm
from sbm.errors import StoreError

peer = pytest.importorskip("liblinear.liblinearutil")

N_FEATURES, ROWS = 12, 80


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_text(labels, n=ROWS) -> None:
    """Write ``t.svm``: random sparse rows, a tenth of them empty, noisy labels, unknown ids."""
    random = np.random.default_rng(0)
    X = random.integers(-20, 20, (n, N_FEATURES)) / 8
    X[random.random(X.shape) < 0.6] = 0
    X[::10] = 0
    X[:, 4] = 0  # a feature that no row has
    scores = X @ random.standard_normal((N_FEATURES, len(labels)))
    scores += random.standard_normal(scores.shape)
    write_rows(Path("t.svm"), X, np.array(labels, float)[scores.argmax(axis=1)])
    with open("t.svm", "a") as file:
        file.write(f"{labels[0]:g} 3:1 {N_FEATURES + 1}:50 {N_FEATURES + 30}:9\n")


def train_there(options: str, rows=ROWS) -> None:
    y, x = peer.svm_read_problem("t.svm")
    assert peer.save_model("m.txt", peer.train(y[:rows], x[:rows], options + " -q")) is None


def predict_there(options="-q"):
    """Return LIBLINEAR's labels, and decision values or probabilities by ascending label."""
    y, x = peer.svm_read_problem("t.svm")
    model = peer.load_model("m.txt")
    labels, _, values = peer.predict(y, x, model, options)
    values = np.array(values)
    if "-b" in options or values.shape[1] > 2:
        values = values[:, np.argsort(model.get_labels())]
    return labels, values[:, :1] if values.shape[1] == 2 and "-b" not in options else values


def predict_here(model, **options) -> np.ndarray:
    sbm.predict(model, "t.svm", "ours.txt", **options)
    return np.loadtxt("ours.txt", ndmin=2)


def read_matrix():
    y, x = peer.svm_read_problem("t.svm", return_scipy=True)
    return scipy.sparse.csr_matrix((x.data, x.indices + 1, x.indptr), (len(y), x.shape[1] + 1))


# ------------------------------------------------------------------------- trained there, read here

THEIRS = [
    ("-s 0 -B 1", (1, -1)), ("-s 1 -B 1", (7, 2)), ("-s 2 -B 0.3", (0, 1)), ("-s 3", (1, -1)),
    ("-s 3", (-1, 1)), ("-s 4", (3, 9)), ("-s 4 -B 1", (9, 3)), ("-s 5 -B 1", (2, 7)),
    ("-s 6", (1, -1)), ("-s 7 -B 1", (7, 2)), ("-s 0 -B 1", (3, 1, 2)), ("-s 1", (10, -4, 0, 7)),
    ("-s 3 -B 1", (1, 2, 3)), ("-s 4", (10, -4, 0, 7)), ("-s 4 -B 0.7", (3, 1, 2)),
    ("-s 6", (10, -4, 0, 7)), ("-s 7", (3, 1, 2)), ("-s 11 -B 1", (0.5, -1.25, 3)),
    ("-s 12", (0.5, -1.25, 3)), ("-s 13 -B 1", (0.5, -1.25, 3)), ("-s 21 -n 0.3", (1, -1)),
]  # fmt: skip


LOSSES = {
    **dict.fromkeys((0, 6, 7), "log_loss"), **dict.fromkeys((1, 2, 5), "squared_hinge"),
    3: "hinge", 4: "crammer_singer", 11: "squared_epsilon_insensitive",
    12: "squared_epsilon_insensitive", 13: "epsilon_insensitive", 21: "one_class",
}  # fmt: skip


@pytest.mark.parametrize(("options", "labels"), THEIRS)
def test_liblinear_models_predict_like_liblinear(here, options, labels):
    write_text(labels)
    train_there(options)
    solver = int(options.split()[1])
    expected, values = predict_there()
    model = read_model("m.txt")
    assert model.info["loss"] == LOSSES[solver]
    regression = solver in (11, 12, 13)
    assert model.is_regression == regression
    if regression:
        np.testing.assert_allclose(predict_here("m.txt")[:, 0], expected, rtol=1e-12, atol=1e-14)
    else:
        assert set(expected) == set(labels)
        assert predict_here("m.txt")[:, 0].tolist() == expected
        assert model.predict(read_matrix()).tolist() == expected
    found = predict_here("m.txt", decision=True)
    np.testing.assert_allclose(found, values, rtol=1e-12, atol=1e-14)
    if solver in (0, 6, 7):
        _, p = predict_there("-b 1 -q")
        sbm.predict("m.txt", "t.svm", "ours.txt", probability=True)
        ours = np.loadtxt("ours.txt", skiprows=1)[:, 1:]
        np.testing.assert_allclose(ours, p, rtol=1e-12, atol=1e-14)
    write_model(model, "again.txt")  # as it was, but for the solver of a loss
    theirs, again = (Path(name).read_text().split("\n", 1)[1] for name in ("m.txt", "again.txt"))
    if solver == 4 and len(labels) == 2:  # the second column is the first one's negative
        theirs, again = (re.sub(r"(?m)^(\S+) \S+ $", r"\1", text) for text in (theirs, again))
    assert again == theirs


def same_to_the_last_bit(*ours) -> float:
    """Compare with LIBLINEAR on ``m.txt``; return the share of rows with margins below 1e-12."""
    expected, values = predict_there()
    for model in ("m.txt", *ours):
        assert predict_here(model)[:, 0].tolist() == expected
        assert predict_here(model, decision=True).tolist() == values.tolist()
    model, X = read_model("m.txt"), read_matrix()
    assert model.predict(X).tolist() == expected
    best = np.sort(values, axis=1)
    return float(np.mean(best[:, -1] - best[:, -2] < 1e-12))


def write_ties() -> None:
    """Write ``t.svm``: every row with each of four labels, so that classes tie but for rounding."""
    X = np.repeat(np.random.default_rng(3).integers(0, 9, (60, 3)) / 10, 4, axis=0)
    write_rows(Path("t.svm"), X, np.tile([4, 1, 3, 2], 60))


@pytest.mark.parametrize("solver", [1, 3, 4])
def test_ties_of_liblinear_models_match_liblinear(here, solver):
    write_ties()
    train_there(f"-s {solver} -c 1 -B 1 -e 1e-9", rows=240)
    ties = same_to_the_last_bit()
    assert solver != 3 or ties > 0.5


@pytest.mark.parametrize("loss", ["hinge", "weston_watkins"])
def test_ties_of_written_models_match_liblinear(here, loss):
    write_ties()
    sbm.split(["t.svm"], "t.sbm", blocks=2)
    fit(here / "t.sbm", loss=loss, bias=1.0, C=1.0, tol=1e-6, max_passes=200)
    sbm.export("m.model", "m.txt")
    ties = same_to_the_last_bit("m.model")
    assert loss != "hinge" or ties > 0.5


def test_bias_is_added_last_like_liblinear(here):
    """0.1 + 0.2 + 0.3 is more than 0.3 + 0.2 + 0.1, but as much as 0.1 + 0.3 + 0.2."""
    W = np.array([[0.3, 0.1, 0.2], [0.2, 0.2, 0.1]])
    bias_weights = np.array([0.1, 0.3, 0.3])
    model = Model(np.array([1, 2]), W, [1.0, 2.0, 3.0], 1.0, bias_weights, {"loss": "hinge"})
    write_model(model, "m.txt")
    Path("t.svm").write_text("1 1:1 2:1\n2 2:1\n3 1:1\n1\n")
    assert predict_there()[0][0] == 2
    same_to_the_last_bit(model)


# ---------------------------------------------------------------------------- made here, read there


def random_model(labels, outputs, bias, loss) -> Model:
    """Few values, so that there are ties, and no weight for some features."""
    random = np.random.default_rng(7)
    ids = random.permutation(np.arange(1, N_FEATURES + 9))[: N_FEATURES + 2].astype(np.int64)
    W = random.integers(-2, 3, (len(ids), outputs)) / 4
    W[::5] = 0
    bias_weights = random.integers(-2, 3, outputs) / 4 if bias else np.zeros(outputs)
    return Model(ids, W, [float(k) for k in labels], bias, bias_weights, {"loss": loss})


@pytest.mark.parametrize(
    ("loss", "labels", "outputs", "bias", "solver"),
    [
        ("hinge", (-1, 1), 1, 0.0, "L2R_L1LOSS_SVC_DUAL"),
        ("hinge", (5, -2, 0), 3, 0.5, "L2R_L1LOSS_SVC_DUAL"),
        ("squared_hinge", (9, 4), 1, -2.0, "L2R_L2LOSS_SVC_DUAL"),
        ("squared_hinge", (1, 2, 3), 3, -2.0, "L2R_L2LOSS_SVC_DUAL"),
        ("log_loss", (3, 7), 2, 0.5, "L2R_LR"), ("log_loss", (1, 2, 3), 3, 0.0, "L2R_LR"),
        ("crammer_singer", (3, 7), 2, -2.0, "MCSVM_CS"),
        ("crammer_singer", (9, 4), 1, 0.5, "MCSVM_CS"),
        ("weston_watkins", (5, -2, 0), 3, 0.0, "MCSVM_CS"),
        ("squared_error", (-1, 1), 1, 0.5, "L2R_L2LOSS_SVC"),
        ("epsilon_insensitive", (), 1, 1.0, "L2R_L1LOSS_SVR_DUAL"),
        ("squared_epsilon_insensitive", (), 1, -0.5, "L2R_L2LOSS_SVR_DUAL"),
        ("squared_error", (), 1, 0.0, "L2R_L2LOSS_SVR"),
        ("one_class", (-1, 1), 1, 0.0, "ONECLASS_SVM"),
        ("one_class", (-1, 1), 1, 2.0, "ONECLASS_SVM"),
    ],
)  # fmt: skip
def test_written_models_predict_the_same_in_liblinear(here, loss, labels, outputs, bias, solver):
    model = random_model(labels, outputs, bias, loss)
    write_model(model, "m.txt")
    assert Path("m.txt").read_text().startswith(f"solver_type {solver}\n")
    write_text(labels or (1,), 200)
    expected, _ = predict_there()
    X = read_matrix()
    assert model.predict(X).tolist() == expected
    assert read_model("m.txt").predict(X).tolist() == expected
    if labels:
        assert set(expected) == set(labels)
        assert predict_here(model)[:, 0].tolist() == expected
        scores = np.sort(model.decision_function(X).reshape(len(expected), -1), axis=1)
        scores[:, 0] -= scores[:, -1] if outputs > 1 else 0
        assert model.bias or (scores[:, 0] == 0).any()  # there are ties


FINITE = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_models_round_trip(here, data):
    n_labels = data.draw(st.sampled_from([0, 2, 3, 5]))
    whole = st.integers(-(2**31) + 1, 2**31 - 1)
    labels = data.draw(st.lists(whole, min_size=n_labels, max_size=n_labels, unique=True))
    outputs = n_labels if n_labels > 2 else 1
    ids = data.draw(st.lists(st.integers(1, 3000), unique=True, max_size=12))
    W = data.draw(hnp.arrays(np.float64, (len(ids), outputs), elements=FINITE))
    bias = data.draw(st.just(0.0) | FINITE.map(abs))
    weights = data.draw(hnp.arrays(np.float64, outputs, elements=FINITE)) * bool(bias)
    loss = "log_loss" if labels else "squared_error"
    labels = [float(x) for x in labels]
    model = Model(np.array(ids, np.int64), W, labels, bias, weights, {"loss": loss})
    with pytest.MonkeyPatch.context() as context:  # pieces of a few lines
        patch(context, "_TEXT_BYTES", data.draw(st.sampled_from([8, 1 << 14])))
        patch(context, "_READ", data.draw(st.sampled_from([1, 7, 1 << 14])))
        assert write_model(model, "m.txt") == Path("m.txt").stat().st_size
        found = read_model("m.txt")
    order = np.argsort(model.ids)
    assert found.ids.tolist() == model.ids[order].tolist()
    np.testing.assert_array_equal(found.W, model.W[order])
    assert (found.labels, found.bias) == (labels, bias)
    assert found.bias_weights.tolist() == weights.tolist()


def test_text_of_tiny_models(here):
    info = {"loss": "hinge"}
    model = Model(np.array([0, 3, 2**62]), np.array([[0.0], [1.0], [0.0]]), [0.0, 1.0], info=info)
    write_model(model, "m.txt")  # ids without a weight do not matter
    assert Path("m.txt").read_text() == (
        "solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel 1 0\nnr_feature 3\nbias -1\nw\n"
        "0 \n0 \n1 \n"
    )
    write_model(Model(np.array([2]), np.zeros((1, 1)), [4.0, 6.0], 1.0, np.ones(1), info), "m.txt")
    assert Path("m.txt").read_text().endswith("nr_feature 1\nbias 1\nw\n0 \n1 \n")
    write_model(random_model((-1, 1), 1, 2.0, "one_class"), "m.txt")
    assert re.search("(?m)^bias -1\nrho -?(0|1|0.5)$", Path("m.txt").read_text())


def tiny(ids, labels, loss="hinge", outputs=1):
    return Model(np.array(ids), np.ones((len(ids), outputs)), labels, info={"loss": loss})


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        (tiny([0, 1], [-1.0, 1.0]), "id 0.* 1;"),
        (tiny([1, 2**31], [-1.0, 1.0]), "id 2147483648.* 2147483646;"),
        (tiny([1, 2**30], [0.0, 1.0, 2.0], outputs=3), "id 1073741824 in 3 .* 715827881;"),
        (tiny([1, 2**30], [0.0, 1.0], "crammer_singer"), "id 1073741824 in 2 .* 1073741822;"),
        (tiny([1, 2_000_000_000], [0.0, 1.0]), "id 2000000000.* 2,000,000,000 lines"),
        (tiny([1], [-1.0, 2.5]), "label 2.5.* 2147483647;"),
        (tiny([1], [-1.0, 2.0**31]), "label 2147483648.* 2147483647;"),
        (tiny([1], [0.0, 1.0], "one_class"), "'one_class' .*0, 1.* -1 and 1;"),
        (tiny([1], [0.0, 1.0], None), "loss None.*hinge, squared_hinge"),
        (tiny([1], []), "loss 'hinge'.*regression.*epsilon_insensitive"),
    ],
)  # fmt: skip
def test_models_that_liblinear_lacks_are_refused(here, model, facts):
    with pytest.raises(StoreError, match=f"^m has .*{facts}.*--format npz"):
        write_model(model, "m.txt", "m")
    assert list(here.iterdir()) == []


# ------------------------------------------------------------------------------------ hostile files

GOOD = """\
solver_type L2R_L2LOSS_SVC_DUAL
nr_class 3
label 3 1 2
nr_feature 2
bias 1
w
0.5 -1 2e-3
0 0 0
1 2 3
"""


def test_model_text_is_read(here):
    head, weights = GOOD.split("w\n")
    lines = head.splitlines()
    orders = itertools.permutations(lines)
    turned = ["\n".join(order) + "\nw\n" + weights for order in orders]
    others = [
        GOOD.rstrip(), " ".join(GOOD.split()), "\n\n" + GOOD.replace("\n", "\n\n"),
        GOOD.replace("\n", "\r\n"), "\t".join(GOOD.split()) + "\n \n", " " * 2000 + GOOD,
        "\n".join(GOOD.split()), GOOD.replace("w\n", "w "), GOOD + "\n" * 100_000,
    ]  # fmt: skip
    for text in (GOOD, *turned, *others):
        Path("m.txt").write_text(text)
        model = read_model("m.txt")
        assert (model.ids.tolist(), model.W.tolist()) == ([1], [[0.5, -1, 0.002]])
        assert (model.labels, model.bias) == ([3, 1, 2], 1.0)
        assert model.bias_weights.tolist() == [1, 2, 3]
        facts = sbm.info("m.txt")
        assert (facts["kind"], facts["loss"], facts["features"]) == ("model", "squared_hinge", 1)
    with pytest.raises(StoreError, match=r"none\.txt does not exist"):
        read_model("none.txt")


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        ("L2R_L2LOSS_SVC_DUAL", "L3R", ":1: .*'L3R'.*L2R_LR, "),
        ("solver_type L2R_L2LOSS_SVC_DUAL", "solver_type", ":2: .*'nr_class'.*a solver"),
        ("nr_class 3", "nr_class many", ":2: .*'many'"), ("nr_class 3", "nr_class -3", "'-3'"),
        ("nr_class 3", "nr_class 4", ":6: .*3 labels.* 4 "),
        ("nr_class 3\n", "", ":5: .*nr_class"),
        ("nr_class 3\nlabel 3 1 2", "nr_class 1\nlabel 3", ":8: .* 3 weights"),
        ("nr_class 3\nlabel 3 1 2", "nr_class 0\nlabel", "no label.*at least one"),
        ("label 3 1 2\n", "", ":5: .*0 labels.* 3 "), ("label 3 1 2", "label 3 1.5 2", "'1.5'"),
        ("label 3 1 2", "label 3 2147483648 2", ":3: .*'2147483648'.*32"),
        ("label 3 1 2", "label 3 1 3", ":6: .*label 3 twice"),
        ("nr_feature 2", "nr_feature 1e3", ":4: .*'1e3'"),
        ("nr_feature 2", "nr_feature 2 2", ":4: .*'2'.*nr_feature"),
        ("nr_feature 2", "nr_feature 2147483647", " 9 .*6,442,450,944;"),
        ("nr_feature 2", "nr_feature 1", ":9: .* 6 "), ("bias 1", "bias nan", ":5: .*'nan'"),
        ("bias 1", "bias 1e999", ":5: .*'1e999'"), ("bias 1", "bias 1\nbias 1", ":6: .*bias"),
        ("bias 1", "colour 1", ":5: .*'colour'.*rho"), ("bias 1", "", ":9: .* 6 "),
        ("w\n", "w 3\n", ":9: .* 9 "), ("w\n", "w" * 100_000, ":5: .*400 bytes"),
        ("w\n0.5 -1 2e-3\n0 0 0\n1 2 3\n", "", "ends before the weights"),
        ("0 0 0", "0 0", "with 8 .* 9;"), ("0 0 0", "", "with 6 .* 9;"),
        ("0 0 0", "0 nan 0", ":8: .*'nan'"),
        ("0 0 0", "0 1e400 0", ":8: .*'1e400'"), ("0 0 0", "0 1_0 0", ":8: .*'1_0'"),
        ("0 0 0", "0 0x1 0", ":8: .*'0x1'"), ("0 0 0", "0 \x00 0", r":8: .*'\\x00'"),
        ("0 0 0", "0 " + "1" * 3000 + " 0", ":8: .*'1111"),
        ("0 0 0\n", "", "with 6 .* 9;"), ("1 2 3\n", "1 2", "with 8 .* 9;"),
        ("L2R_L2LOSS_SVC_DUAL", "L2R_L2LOSS_SVR", ":6: .*nr_class 3.*nr_class 2"),
        ("L2R_L2LOSS_SVC_DUAL", "ONECLASS_SVM", ":6: .*nr_class 3|rho"),
    ],
)  # fmt: skip
def test_damaged_text_is_refused_with_its_line(here, old, new, facts):
    assert old in GOOD
    Path("m.txt").write_text(GOOD.replace(old, new, 1))
    tracemalloc.start()
    with pytest.raises(StoreError, match=rf"^m\.txt.*{facts}[^\n]*$"):
        sbm.predict("m.txt", "t.svm")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # whatever sizes the header names


@pytest.mark.parametrize("solver", ["L2R_LR", "L2R_L2LOSS_SVC", "MCSVM_CS"])
@pytest.mark.parametrize("bias", [-1, 1])
def test_model_of_one_class_predicts_its_label(here, solver, bias):
    weights = "0.5 \n-2 \n" + "3 \n" * (bias > 0)
    head = f"solver_type {solver}\nnr_class 1\nlabel -7\nnr_feature 2\nbias {bias}\nw\n"
    Path("m.txt").write_text(head + weights)
    Path("t.svm").write_text("1 1:9\n-7 2:9\n-7\n")
    report = sbm.predict("m.txt", "t.svm", "out.txt")
    assert Path("out.txt").read_text() == "-7\n" * 3
    assert report["accuracy"] == 2 / 3
    sbm.export("m.txt", "again.txt", format="liblinear")
    assert read_model("again.txt").labels == [-7.0]


@pytest.mark.parametrize("part", [1, 8, 1 << 14])
@pytest.mark.parametrize(
    ("line", "facts"),
    [("1\n\n3", ":39: .* 31 "), ("", " ends with 30 .* 31"), ("x", ":36: .*'x'"),
     ("1_0", ":36: .*'1_0'"), ("1e400", ":36: .*'1e400'")],
)  # fmt: skip
def test_damaged_single_column_is_refused_with_its_line(here, monkeypatch, line, facts, part):
    patch(monkeypatch, "_READ", part)  # whole, and in pieces of a few lines
    head = "solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 31\nbias -1\nw\n"
    Path("m.txt").write_text(head + "1 \n" * 29 + f"{line}\n 2.5e0\n")
    with pytest.raises(StoreError, match=rf"^m\.txt{facts}"):
        read_model("m.txt")
    Path("m.txt").write_text(head + "1 \n" * 29 + "\t-3 \r\n 2.5e0\n")
    assert read_model("m.txt").W[:, 0].tolist() == [1.0] * 29 + [-3.0, 2.5]


def test_any_text_is_read_or_refused(here):
    random = np.random.default_rng(0)
    data, refusals = GOOD.encode(), set()
    for _ in range(200):
        bad = bytearray(data)
        for place in random.integers(12, len(bad), random.integers(1, 4)):
            bad[place] = random.integers(256)
        Path("m.txt").write_bytes(bad[: random.integers(12, len(bad) + 1)])
        try:
            assert np.isfinite(read_model("m.txt").W).all()
        except StoreError as error:
            refusals.add(str(error))
    assert len(refusals) > 50
    assert not any("\n" in text for text in refusals)


@pytest.mark.parametrize("labels", [[-1.0, 1.0], [1.0, 2.0, 3.0]])
def test_largest_id_of_liblinear_is_exact(here, labels):
    """Ids up to the largest int, less the number of columns, are only refused for their lines."""
    columns = 1 if len(labels) == 2 else len(labels)
    last = (2**31 - 1) // columns - 1
    for largest, fact in ((last, f"{last:,} lines"), (last + 1, f"largest id is {last}")):
        Path("a.svm").write_text("".join(f"{label} {largest}:{label}\n" for label in labels))
        sbm.train("a.svm", "m.model")
        with pytest.raises(StoreError, match=fact):
            sbm.export("m.model", "m.txt", format="liblinear")
