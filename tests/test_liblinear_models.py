"""Models of LIBLINEAR, both ways: the same labels on the same file, and refusals."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from helpers import fit, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sbm
from sbm.errors import StoreError
from sbm.interop import liblinear as interop
from sbm.interop.liblinear import read_model, write_model
from sbm.store.model import Model

peer = pytest.importorskip("liblinear.liblinearutil")

N_FEATURES = 12
ROWS = 80


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _rows(seed=0, labels=(1, -1), n=ROWS):
    """Random sparse rows, a tenth of them empty, and noisy labels."""
    random = np.random.default_rng(seed)
    X = random.integers(-20, 20, (n, N_FEATURES)) / 8
    X[random.random(X.shape) < 0.6] = 0
    X[::10] = 0
    X[:, 4] = 0  # a feature that no row has
    scores = X @ random.standard_normal((N_FEATURES, len(labels))) + random.standard_normal(
        (n, len(labels))
    )
    return X, np.array(labels, float)[scores.argmax(axis=1)]


def _their_labels(model: str, text: str) -> tuple[list[float], list[list[float]]]:
    """Labels and decision values by LIBLINEAR's library."""
    y, x = peer.svm_read_problem(text)
    labels, _, values = peer.predict(y, x, peer.load_model(model), "-q")
    return labels, values


def _our_numbers(model, text: str, **options) -> list[list[float]]:
    sbm.predict(model, text, "ours.txt", **options)
    return _numbers("ours.txt")


def _numbers(path: str) -> list[list[float]]:
    return [[float(word) for word in line.split()] for line in Path(path).read_text().splitlines()]


def _train_there(options: str, labels, seed=0) -> None:
    """Write ``t.svm`` and the model that LIBLINEAR trains on it, ``m.txt``."""
    X, y = _rows(seed, labels)
    write_rows(Path("t.svm"), X, y)
    with open("t.svm", "a") as file:
        file.write(f"{labels[0]} 3:1 {N_FEATURES + 1}:50 {N_FEATURES + 7}:9\n")  # unknown ids
    y, x = peer.svm_read_problem("t.svm")
    model = peer.train(y[:ROWS], x[:ROWS], options + " -q")
    assert peer.save_model("m.txt", model) is None


# ------------------------------------------------------------------------- trained there, read here

TWO = [(1, -1), (-1, 1), (2, 7), (7, 2), (0, 1)]
MANY = [(3, 1, 2), (1, 2, 3), (10, -4, 0, 7)]


@pytest.mark.parametrize("labels", TWO)
@pytest.mark.parametrize(
    ("solver", "bias"),
    [(0, ""), (1, " -B 1"), (2, " -B 0.3"), (3, ""), (3, " -B 0"), (5, " -B 1"), (6, ""), (7, "")],
)
def test_two_classes_of_liblinear_are_predicted_as_there(here, labels, solver, bias):
    _train_there(f"-s {solver}{bias}", labels)
    expected, values = _their_labels("m.txt", "t.svm")
    assert set(expected) == set(labels)
    assert _our_numbers("m.txt", "t.svm") == [[label] for label in expected]
    found = _our_numbers("m.txt", "t.svm", decision=True)
    np.testing.assert_allclose(found, values, rtol=1e-12, atol=1e-14)


def _sorted_columns(values, order):
    return np.array(values)[:, np.argsort(order)]


@pytest.mark.parametrize("labels", MANY)
@pytest.mark.parametrize(
    ("solver", "bias"), [(0, " -B 1"), (1, ""), (3, " -B 1"), (4, ""), (4, " -B 1"), (6, "")]
)
def test_many_classes_of_liblinear_are_predicted_as_there(here, labels, solver, bias):
    _train_there(f"-s {solver}{bias}", labels)
    expected, values = _their_labels("m.txt", "t.svm")
    order = peer.load_model("m.txt").get_labels()
    assert set(expected) == set(labels)
    assert _our_numbers("m.txt", "t.svm") == [[label] for label in expected]
    found = _our_numbers("m.txt", "t.svm", decision=True)
    np.testing.assert_allclose(found, _sorted_columns(values, order), rtol=1e-12, atol=1e-14)


def test_without_a_bias_an_empty_row_has_the_label_that_liblinear_saw_first(here):
    _train_there("-s 1", (3, 1, 2))
    first = peer.load_model("m.txt").get_labels()[0]
    assert first != 1  # or the smallest label would win anyway
    Path("empty.svm").write_text("1\n2 99:1\n")
    assert _their_labels("m.txt", "empty.svm")[0] == [first, first]
    assert _our_numbers("m.txt", "empty.svm") == [[first], [first]]


@pytest.mark.parametrize("labels", TWO)
@pytest.mark.parametrize("bias", ["", " -B 1"])
def test_crammer_singer_of_two_classes_is_decided_by_the_first_column(here, labels, bias):
    _train_there(f"-s 4{bias}", labels)
    assert len(Path("m.txt").read_text().splitlines()[-1].split()) == 2
    expected, values = _their_labels("m.txt", "t.svm")
    assert _our_numbers("m.txt", "t.svm") == [[label] for label in expected]
    found = _our_numbers("m.txt", "t.svm", decision=True)
    np.testing.assert_allclose(found, np.array(values)[:, :1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("solver", "loss"),
    [
        (11, "squared_epsilon_insensitive"),
        (12, "squared_epsilon_insensitive"),
        (13, "epsilon_insensitive"),
    ],
)
@pytest.mark.parametrize("bias", ["", " -B 1"])
def test_regression_of_liblinear_is_predicted_as_there(here, solver, loss, bias):
    _train_there(f"-s {solver}{bias}", (0.5, -1.25, 3))
    expected, _ = _their_labels("m.txt", "t.svm")
    model = read_model("m.txt")
    assert model.is_regression
    assert model.info["loss"] == loss
    np.testing.assert_allclose(model.predict(_matrix("t.svm")), expected, rtol=1e-12, atol=1e-14)
    found = np.array(_our_numbers("m.txt", "t.svm"))[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("labels", [*TWO, *MANY])
@pytest.mark.parametrize("solver", [0, 6, 7])
def test_probabilities_of_liblinear_are_those_it_gives(here, labels, solver):
    _train_there(f"-s {solver} -B 1", labels)
    model = peer.load_model("m.txt")
    y, x = peer.svm_read_problem("t.svm")
    expected, _, theirs = peer.predict(y, x, model, "-b 1 -q")
    report = sbm.predict("m.txt", "t.svm", "ours.txt", probability=True)
    title, *lines = Path("ours.txt").read_text().splitlines()
    assert title == " ".join(["labels", *map(str, sorted(labels))])
    ours = np.array([[float(word) for word in line.split()] for line in lines])
    assert ours[:, 0].tolist() == expected
    theirs = _sorted_columns(theirs, model.get_labels())
    np.testing.assert_allclose(ours[:, 1:], theirs, rtol=1e-12, atol=1e-14)
    shares = theirs[np.arange(len(y)), np.searchsorted(np.sort(labels), y)]
    assert report["log_loss"] == pytest.approx(-np.log(shares).mean(), rel=1e-9)


def test_one_class_of_liblinear_is_predicted_as_there(here):
    _train_there("-s 21 -n 0.3", (1, -1))
    expected, values = _their_labels("m.txt", "t.svm")
    assert set(expected) == {-1, 1}
    assert _our_numbers("m.txt", "t.svm") == [[label] for label in expected]
    found = _our_numbers("m.txt", "t.svm", decision=True)
    np.testing.assert_allclose(found, values, rtol=1e-12, atol=1e-14)


def _matrix(text: str):
    y, x = peer.svm_read_problem(text, return_scipy=True)
    return scipy.sparse.csr_matrix((x.data, x.indices + 1, x.indptr), (len(y), x.shape[1] + 1))


def test_what_was_read_is_written_back_as_it_was(here):
    for options, labels in [
        ("-s 3", (1, -1)), ("-s 3 -B 1", (2, 7)), ("-s 0", (-1, 1)), ("-s 1 -B 0.7", (3, 1, 2)),
        ("-s 4", (10, -4, 0, 7)), ("-s 13 -B 1", (0.5, 2)), ("-s 12", (0.5, 2)),
        ("-s 21", (1, -1)), ("-s 4", (3, 9)),
    ]:  # fmt: skip
        _train_there(options, labels)
        write_model(read_model("m.txt"), "again.txt")
        theirs, ours = Path("m.txt").read_text(), Path("again.txt").read_text()
        if options == "-s 4" and len(labels) == 2:  # the second column is the first one's negative
            theirs, ours = (re.sub(r"(?m)^(\S+) \S+ $", r"\1", text) for text in (theirs, ours))
        assert ours == theirs, options


LOSSES = ["hinge", "squared_hinge", "crammer_singer", "weston_watkins"]

# ------------------------------------------------------------------------- equal decision values


def _write_ties() -> None:
    """``t.svm``: every row with each of four labels, so that nothing tells the classes apart."""
    X = np.repeat(np.random.default_rng(3).integers(0, 9, (60, 3)) / 10, 4, axis=0)
    write_rows(Path("t.svm"), X, np.tile([4, 1, 3, 2], 60))


def _same_to_the_last_bit(theirs: str, *ours) -> float:
    """Check labels and decision values; return the share of rows decided by less than 1e-12."""
    expected, values = _their_labels(theirs, "t.svm")
    values = _sorted_columns(values, peer.load_model(theirs).get_labels())
    for model in ours:
        assert _our_numbers(model, "t.svm") == [[label] for label in expected]
        assert _our_numbers(model, "t.svm", decision=True) == values.tolist()
    model, X = read_model(theirs), _matrix("t.svm")
    assert model.predict(X).tolist() == expected
    assert _sorted_columns(model.decision_function(X), model.labels).tolist() == values.tolist()
    best = np.sort(values, axis=1)
    return float(np.mean(best[:, -1] - best[:, -2] < 1e-12))


@pytest.mark.parametrize("solver", [1, 3, 4])
def test_classes_equal_but_for_rounding_are_told_apart_as_there(here, solver):
    _write_ties()
    y, x = peer.svm_read_problem("t.svm")
    peer.save_model("m.txt", peer.train(y, x, f"-s {solver} -c 1 -B 1 -e 1e-9 -q"))
    ties = _same_to_the_last_bit("m.txt", "m.txt")
    assert solver != 3 or ties > 0.5


@pytest.mark.parametrize("loss", LOSSES)
def test_classes_equal_but_for_rounding_are_told_apart_there_as_here(here, loss):
    _write_ties()
    sbm.split(["t.svm"], "t.sbm", blocks=2)
    fit(here / "t.sbm", loss=loss, bias=1.0, C=1.0, tol=1e-9, max_passes=200)
    sbm.export("m.model", "m.txt")
    ties = _same_to_the_last_bit("m.txt", "m.txt", "m.model")
    assert loss != "hinge" or ties > 0.5


def test_the_bias_is_added_last_here_as_there(here):
    """0.1 + 0.2 + 0.3 is more than 0.3 + 0.2 + 0.1, but as much as 0.1 + 0.3 + 0.2."""
    W = np.array([[0.3, 0.1, 0.2], [0.2, 0.2, 0.1]])
    bias_weights = np.array([0.1, 0.3, 0.3])
    model = Model(np.array([1, 2]), W, [1.0, 2.0, 3.0], 1.0, bias_weights, {"loss": "hinge"})
    write_model(model, "m.txt")
    Path("t.svm").write_text("1 1:1 2:1\n2 2:1\n3 1:1\n1\n")
    assert _their_labels("m.txt", "t.svm")[0][0] == 2
    _same_to_the_last_bit("m.txt", "m.txt", model)


def test_many_ties_of_a_reference_set_are_told_apart_there_as_here(here, text_of):
    Path("t.svm").write_bytes(text_of("letter").read_bytes())
    sbm.split(["t.svm"], "t.sbm")
    fit(here / "t.sbm", loss="hinge", bias=1.0, C=0.1, tol=1e-4)
    sbm.export("m.model", "m.txt")
    assert _same_to_the_last_bit("m.txt", "m.txt", "m.model") > 0.02


# ------------------------------------------------------------------------- made here, read there


def _write_random_text(path: str, labels=(1,), seed=5) -> None:
    X, _ = _rows(seed, (1, -1), 200)
    write_rows(Path(path), X, np.resize(labels, 200))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("labels", [(1, -1), (2, 7), (3, 1, 2), (10, -4, 0, 7)])
@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_models_trained_here_are_predicted_there_as_here(here, loss, labels, bias):
    X, y = _rows(1, labels)
    write_rows(Path("t.svm"), X, y)
    sbm.split(["t.svm"], "t.sbm", blocks=2)
    fit(here / "t.sbm", loss=loss, bias=bias, C=0.1, max_passes=3)
    report = sbm.export("m.model", "m.txt")
    assert report["format"] == "liblinear"
    expected, values = _their_labels("m.txt", "t.svm")
    assert _our_numbers("m.model", "t.svm") == [[label] for label in expected]
    assert _our_numbers("m.txt", "t.svm") == [[label] for label in expected]
    ours = np.array(_our_numbers("m.model", "t.svm", decision=True))
    if len(labels) > 2:
        values = _sorted_columns(values, peer.load_model("m.txt").get_labels())
    elif ours.shape[1] == 2:
        ours = (ours[:, 1:] - ours[:, :1]) / 2
    np.testing.assert_allclose(ours, np.array(values)[:, : ours.shape[1]], rtol=1e-12, atol=1e-13)


SOLVERS = {
    "hinge": "L2R_L1LOSS_SVC_DUAL",
    "squared_hinge": "L2R_L2LOSS_SVC_DUAL",
    "log_loss": "L2R_LR",
    "crammer_singer": "MCSVM_CS",
    "weston_watkins": "MCSVM_CS",
    "squared_error": "L2R_L2LOSS_SVC",
}


@pytest.mark.parametrize(("loss", "solver"), SOLVERS.items())
@pytest.mark.parametrize(
    ("labels", "outputs"),
    [
        ([-1.0, 1.0], 1),
        ([9.0, 4.0], 1),
        ([3.0, 7.0], 2),
        ([1.0, 2.0, 3.0], 3),
        ([5.0, -2.0, 0.0], 3),
    ],
)
@pytest.mark.parametrize("bias", [0.0, 0.5, -2.0])
def test_models_of_any_loss_are_predicted_there_as_here(here, loss, solver, labels, outputs, bias):
    _check_there(_random_model(labels, outputs, bias, loss), solver)


def _random_model(labels, outputs, bias, loss) -> Model:
    """Few values, so that there are ties, and no weight for some features."""
    random = np.random.default_rng(7)
    ids = random.permutation(np.arange(1, N_FEATURES + 9))[: N_FEATURES + 2].astype(np.int64)
    W = random.integers(-2, 3, (len(ids), outputs)) / 4
    W[::5] = 0
    bias_weights = random.integers(-2, 3, outputs) / 4 if bias else np.zeros(outputs)
    return Model(ids, W, labels, bias, bias_weights, {"loss": loss})


def _check_there(model: Model, solver: str) -> None:
    write_model(model, "m.txt")
    assert Path("m.txt").read_text().startswith(f"solver_type {solver}\n")
    _write_random_text("t.svm", model.labels or (1,))
    expected, _ = _their_labels("m.txt", "t.svm")
    X = _matrix("t.svm")
    assert model.predict(X).tolist() == expected
    again = read_model("m.txt")
    assert again.predict(X).tolist() == expected
    if not model.is_regression:
        assert len(set(expected)) == len(model.labels)
        assert _our_numbers(model, "t.svm") == [[label] for label in expected]
        scores = model.decision_function(X)
        if scores.ndim > 1:
            best = np.sort(scores, axis=1)
            assert (best[:, -1] == best[:, -2]).any()  # there are ties
        else:
            assert model.bias or (scores == 0).any()


@pytest.mark.parametrize(
    ("loss", "solver"),
    [
        ("epsilon_insensitive", "L2R_L1LOSS_SVR_DUAL"),
        ("squared_epsilon_insensitive", "L2R_L2LOSS_SVR_DUAL"),
        ("squared_error", "L2R_L2LOSS_SVR"),
    ],
)
@pytest.mark.parametrize("bias", [0.0, 1.0, -0.5])
def test_regression_models_are_predicted_there_as_here(here, loss, solver, bias):
    _check_there(_random_model([], 1, bias, loss), solver)


@pytest.mark.parametrize("bias", [0.0, 1.0, 2.0])
def test_one_class_models_are_predicted_there_as_here(here, bias):
    model = _random_model([-1.0, 1.0], 1, bias, "one_class")
    _check_there(model, "ONECLASS_SVM")
    text = Path("m.txt").read_text()
    share = bias * float(model.bias_weights[0])
    assert float(re.search("(?m)^rho (.*)$", text)[1]) == -share
    assert "bias -1\n" in text
    assert "label" not in text


def test_the_program_of_liblinear_reads_what_is_written(here):
    """The program, because the library above is of another version."""
    for labels, outputs, loss in (([9.0, 4.0], 1, "hinge"), ([5.0, -2.0, 0.0], 3, "log_loss")):
        model = _random_model(labels, outputs, 1.0, loss)
        write_model(model, "m.txt")
        _write_random_text("t.svm", labels)
        command = ["liblinear-predict", "t.svm", "m.txt", "theirs.txt"]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip("liblinear-predict is not installed")
        assert _numbers("theirs.txt") == _our_numbers(model, "t.svm")


def test_numbers_are_read_back_exactly_and_probabilities_can_be_asked_for(here):
    X, y = _rows(2, (1, -1))
    write_rows(Path("t.svm"), X, y)
    model = _random_model([-1.0, 1.0], 1, 1.0, "log_loss")
    model.W[:] = (
        np.random.default_rng(0).standard_normal(model.W.shape)
        * 10.0 ** np.arange(-13, 1)[:, np.newaxis]
    )
    write_model(model, "m.txt")
    loaded = read_model("m.txt")
    np.testing.assert_array_equal(loaded.weights_of(model.ids), model.W)
    assert loaded.bias_weights.tolist() == model.bias_weights.tolist()
    y, x = peer.svm_read_problem("t.svm")
    probabilities = peer.predict(y, x, peer.load_model("m.txt"), "-b 1 -q")[2]
    z = model.decision_function(_matrix("t.svm"))
    np.testing.assert_allclose(np.array(probabilities)[:, 0], 1 / (1 + np.exp(-z)), rtol=1e-12)


FINITE = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != 0)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(st.data())
def test_random_models_survive_the_text(here, data):
    n_labels = data.draw(st.sampled_from([0, 2, 3, 5]))
    labels = data.draw(
        st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=n_labels, max_size=n_labels,
                 unique=True)
    )  # fmt: skip
    outputs = n_labels if n_labels > 2 else 1
    ids = data.draw(st.lists(st.integers(1, 3000), unique=True, max_size=12))
    W = data.draw(hnp.arrays(np.float64, (len(ids), outputs), elements=FINITE))
    bias = data.draw(st.one_of(st.just(0.0), FINITE.map(abs)))
    weights = data.draw(hnp.arrays(np.float64, outputs, elements=FINITE))
    loss = "squared_error" if not labels else data.draw(st.sampled_from(["hinge", "log_loss"]))
    model = Model(
        np.array(ids, np.int64), W, [float(x) for x in labels], bias,
        weights if bias else np.zeros(outputs), {"loss": loss},
    )  # fmt: skip
    size = write_model(model, "m.txt")
    assert size == Path("m.txt").stat().st_size
    found = read_model("m.txt")
    order = np.argsort(model.ids)
    assert found.ids.tolist() == model.ids[order].tolist()
    np.testing.assert_array_equal(found.W, model.W[order])
    assert (found.labels, found.bias) == (model.labels, model.bias)
    assert found.bias_weights.tolist() == model.bias_weights.tolist()


def test_the_text_does_not_depend_on_how_it_is_cut(here, monkeypatch):
    model = _random_model([3.0, 1.0, 2.0], 3, 1.0, "hinge")
    model.ids[3] = 500  # a gap
    write_model(model, "m.txt")
    monkeypatch.setattr(interop, "_TEXT_BYTES", 1 << 14)  # pieces of 2 lines
    write_model(model, "n.txt")
    assert Path("m.txt").read_bytes() == Path("n.txt").read_bytes()
    found = read_model("m.txt")
    assert found.ids.tolist() == np.sort(model.compact().ids).tolist()
    np.testing.assert_array_equal(found.weights_of(model.ids), model.W)


# -------------------------------------------------------------------- what cannot be written there

LINEAR = {"loss": "hinge"}


OTHERS = "; choose --format npz or json"
TOO_LARGE = ", where LIBLINEAR knows whole numbers up to 2147483647 only" + OTHERS


def _tiny(ids, labels, loss="hinge", outputs=1):
    return Model(np.array(ids), np.ones((len(ids), outputs)), labels, info={"loss": loss})


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (_tiny([0, 1], [-1.0, 1.0]),
         (f"a weight for feature id 0, where LIBLINEAR's ids begin with 1{OTHERS}, or train on ids "
         f"from 1 on")),
        (_tiny([1, 2**31], [-1.0, 1.0]),
         f"a weight for feature id 2147483648, where LIBLINEAR reaches 2147483646 only{OTHERS}"),
        (_tiny([1, 2**30], [0.0, 1.0, 2.0], outputs=3),
         (f"a weight for feature id 1073741824 in 3 columns, where LIBLINEAR reaches 715827881 only"
         f"{OTHERS}")),
        (_tiny([1, 2**30], [0.0, 1.0], "crammer_singer"),
         ("a weight for feature id 1073741824 in 2 columns, where LIBLINEAR reaches 1073741822 "
         f"only{OTHERS}")),
        (_tiny([1, 2_000_000_000], [0.0, 1.0]),
         (f"a weight for feature id 2000000000, so LIBLINEAR's text would have 2,000,000,000 lines "
         f"for 2 features with weights{OTHERS}")),
        (_tiny([1], [-1.0, 2.5]), f"the label 2.5{TOO_LARGE}"),
        (_tiny([1], [-1.0, 1e10]), f"the label 10000000000{TOO_LARGE}"),
        (_tiny([1], [0.0, 1.0], "one_class"),
         f"the loss 'one_class' and the labels 0, 1, where LIBLINEAR knows -1 and 1 only{OTHERS}"),
        (_tiny([1], [0.0, 1.0], None),
         (f"the loss None, for which LIBLINEAR has no classes (it has hinge, squared_hinge, "
         f"log_loss, crammer_singer, weston_watkins, squared_error, one_class){OTHERS}")),
        (_tiny([1], []),
         (f"the loss 'hinge', for which LIBLINEAR has no regression (it has epsilon_insensitive, "
         f"squared_epsilon_insensitive, squared_error){OTHERS}")),
    ],
    ids=["id-0", "id-large", "id-columns", "id-mirrored", "lines", "label-real", "label-large",
         "one-class", "no-loss", "mixed"],
)  # fmt: skip
def test_what_liblinear_cannot_hold_is_refused_in_a_sentence(here, model, found):
    with pytest.raises(StoreError, match=f"^{re.escape('m has ' + found)}$"):
        write_model(model, "m.txt", "m")
    assert list(here.iterdir()) == []


def test_an_id_without_weight_may_be_anything(here):
    model = Model(np.array([0, 3, 2**62]), np.array([[0.0], [1.0], [0.0]]), [0.0, 1.0], info=LINEAR)
    write_model(model, "m.txt")
    assert Path("m.txt").read_text() == (
        "solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel 1 0\nnr_feature 3\nbias -1\nw\n"
        "0 \n0 \n1 \n"
    )


def test_a_model_without_weights_is_one_line_of_nothing(here):
    model = Model(np.array([2]), np.zeros((1, 1)), [4.0, 6.0], 1.0, np.array([0.5]), LINEAR)
    write_model(model, "m.txt")
    assert Path("m.txt").read_text().endswith("nr_feature 1\nbias 1\nw\n0 \n0.5 \n")
    Path("t.svm").write_text("6 1:1 2:5\n")
    assert _their_labels("m.txt", "t.svm")[0] == [6]
    assert _our_numbers("m.txt", "t.svm") == [[6]]


# ------------------------------------------------------------------------------- hostile files

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
AGAIN = "save the model with LIBLINEAR again"
FIELDS = "solver_type, nr_class, label, nr_feature, bias, rho or w"


def test_the_text_that_the_refusals_start_from_is_good(here):
    Path("m.txt").write_text(GOOD)
    model = read_model("m.txt")
    assert model.ids.tolist() == [1]
    assert model.W.tolist() == [[0.5, -1, 0.002]]
    assert (model.labels, model.bias, model.bias_weights.tolist()) == ([3, 1, 2], 1.0, [1, 2, 3])
    assert model.info == {"loss": "squared_hinge", "solver_type": "L2R_L2LOSS_SVC_DUAL"}


def test_lines_of_the_header_may_be_in_any_order_and_blank_ones_below_the_weights(here):
    head, weights = GOOD.split("w\n")
    lines = head.splitlines()
    Path("m.txt").write_text("\n".join(lines[:1] + lines[:0:-1]) + "\nw\n" + weights + "\n \n")
    assert read_model("m.txt").labels == [3, 1, 2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("L2R_L2LOSS_SVC_DUAL", "L3R", "m.txt:1: found 'L3R' where a solver of LIBLINEAR (L2R"),
        ("solver_type L2R_L2LOSS_SVC_DUAL", "solver_type",
         "m.txt:1: found 0 words behind solver_type where a solver of LIBLINEAR (L2R"),
        ("nr_class 3", "nr_class many", "m.txt:2: found 'many' where a number of classes is exp"),
        ("nr_class 3", "nr_class -3", "m.txt:2: found '-3' where a number of classes is expected;"),
        ("nr_class 3", "nr_class 4",
         "m.txt:6: found 3 labels above the weights where one for each of 4 classes is expected; "),
        ("nr_class 3\n", "", "m.txt:5: found the weights, but no line nr_class above them; "),
        ("nr_class 3\nlabel 3 1 2", "nr_class 1\nlabel 3",
         "m.txt knows only the label 3, so there is nothing to predict; train it on two or more "),
        ("nr_class 3\nlabel 3 1 2", "nr_class 0\nlabel",
         "m.txt knows no label, so there is nothing to predict; train it on two or more classes"),
        ("label 3 1 2\n", "",
         "m.txt:5: found 0 labels above the weights where one for each of 3 classes is expected; "),
        ("label 3 1 2", "label 3 1.5 2",
         "m.txt:3: found '1.5' where a whole number of 32 bits is expected; "),
        ("label 3 1 2", "label 3 99999999999 2",
         "m.txt:3: found '99999999999' where a whole number of 32 bits is expected; "),
        ("label 3 1 2", "label 3 1 3", "m.txt:6: found label 3 twice above the weights; "),
        ("nr_feature 2", "nr_feature 1e3",
         "m.txt:4: found '1e3' where a number of features is expected; "),
        ("nr_feature 2", "nr_feature 2 2",
         "m.txt:4: found 2 words behind nr_feature where a number of features is expected; "),
        ("nr_feature 2", "nr_feature 2147483647",
         "m.txt ends after line 9, where 2,147,483,648 lines of weights are expected and 3 are "),
        ("nr_feature 2", "nr_feature 1",
         "m.txt:9: found a line behind the 2 of the weights; "),
        ("bias 1", "bias nan", "m.txt:5: found 'nan' where a finite number is expected; "),
        ("bias 1", "bias 1e999", "m.txt:5: found '1e999' where a finite number is expected; "),
        ("bias 1", "bias 1\nbias 1", "m.txt:6: found bias a second time; "),
        ("bias 1", "colour 1", f"m.txt:5: found 'colour' where one of {FIELDS} is expected; "),
        ("bias 1", "", f"m.txt:5: found '' where one of {FIELDS} is expected; "),
        ("w\n", "w 3\n", f"m.txt:6: found 'w' where one of {FIELDS} is expected; "),
        ("w\n0.5 -1 2e-3\n0 0 0\n1 2 3\n", "", "m.txt ends after line 5, before its weights; "),
        ("0 0 0", "0 0", "m.txt:8: found 2 words where a line of 3 weights is expected; "),
        ("0 0 0\n", "0 0\n0\n", "m.txt:8: found 2 words where a line of 3 weights is expected; "),
        ("0 0 0", "", "m.txt:8: found 0 words where a line of 3 weights is expected; "),
        ("0 0 0", "0 nan 0", "m.txt:8: found 'nan' where a finite number is expected; "),
        ("0 0 0", "0 -inf 0", "m.txt:8: found '-inf' where a finite number is expected; "),
        ("0 0 0", "0 1e400 0", "m.txt:8: found '1e400' where a finite number is expected; "),
        ("0 0 0", "0 1_0 0", "m.txt:8: found '1_0' where a finite number is expected; "),
        ("0 0 0", "0 0x1 0", "m.txt:8: found '0x1' where a finite number is expected; "),
        ("0 0 0", "0 \x00 0", r"m.txt:8: found '\x00' where a finite number is expected; "),
        ("0 0 0", "0 " + "1" * 3000 + " 0", "m.txt:8: found a line of more than 1,600 bytes; "),
        ("0 0 0\n", "", "m.txt ends after line 8, where 3 lines of weights are expected and 2 "),
        ("1 2 3\n", "1 2 3", "m.txt:9: found a line that breaks off; "),
        ("L2R_L2LOSS_SVC_DUAL", "L2R_L2LOSS_SVR",
         "m.txt:6: found nr_class 3 above the weights where nr_class 2 of L2R_L2LOSS_SVR is"),
        ("L2R_L2LOSS_SVC_DUAL", "ONECLASS_SVM",
         "m.txt:6: found the weights, but no line rho above them; "),
    ],
)  # fmt: skip
def test_text_that_is_no_model_is_refused_with_its_place(here, old, new, message):
    assert old in GOOD
    Path("m.txt").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(StoreError, match=f"^{re.escape(message)}[^\n]*$") as refused:
        sbm.predict("m.txt", "t.svm")
    assert str(refused.value).endswith((AGAIN, "train it on two or more classes"))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("1 2", "2 words where a line of 1 weights"), ("", "0 words where a line of 1 weights"),
        ("x", "'x' where a finite number"), ("1_0", "'1_0' where a finite number"),
        ("nan", "'nan' where a finite number"), ("1e400", "'1e400' where a finite number"),
    ],
)  # fmt: skip
def test_a_bad_line_of_a_single_column_is_refused_with_its_place(here, line, found):
    head = "solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 3\nbias -1\nw\n"
    Path("m.txt").write_text(f"{head}1 \n{line}\n 2.5e0\n")
    with pytest.raises(StoreError, match=rf"^m\.txt:8: found {found} is expected; {AGAIN}$"):
        read_model("m.txt")
    Path("m.txt").write_text(f"{head}1 \n\t-3 \r\n 2.5e0\n")
    assert read_model("m.txt").W.tolist() == [[1.0], [-3.0], [2.5]]


def test_the_place_is_right_in_later_pieces(here, monkeypatch):
    monkeypatch.setattr(interop, "_TEXT_BYTES", 1 << 14)  # pieces of 2 lines
    head = GOOD.split("0.5")[0].replace("nr_feature 2", "nr_feature 11")
    Path("m.txt").write_text(head + "1 2 3\n" * 8 + "1 2 x\n" + "1 2 3\n" * 3)
    with pytest.raises(StoreError, match=r"^m\.txt:15: found 'x' where"):
        read_model("m.txt")
    Path("m.txt").write_text(head + "1 2 3\n" * 12)
    assert read_model("m.txt").ids.tolist() == list(range(1, 12))


def test_a_header_does_not_make_the_reader_set_memory_aside(here):
    import tracemalloc

    Path("m.txt").write_text(GOOD.replace("nr_feature 2", "nr_feature 2147483647"))
    tracemalloc.start()
    with pytest.raises(StoreError, match=r"^m\.txt ends after line 9"):
        read_model("m.txt")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_any_text_is_read_or_refused(here):
    random = np.random.default_rng(0)
    data, refusals = GOOD.encode(), set()
    for _ in range(400):
        bad = bytearray(data)
        for place in random.integers(12, len(bad), random.integers(1, 4)):
            bad[place] = random.integers(256)
        Path("m.txt").write_bytes(bad[: random.integers(12, len(bad) + 1)])
        try:
            model = read_model("m.txt")
        except StoreError as error:
            refusals.add(str(error))
        else:
            assert np.isfinite(model.W).all()
            model._require_consistency()
    assert len(refusals) > 50
    assert not any("\n" in text for text in refusals)


def test_a_missing_file_is_a_sentence(here):
    with pytest.raises(StoreError, match=r"^m\.txt does not exist; see that the name is right, or"):
        read_model("m.txt")


def test_info_of_the_text(here):
    Path("m.txt").write_text(GOOD)
    facts = sbm.info("m.txt")
    assert facts == {
        "kind": "model", "path": "m.txt", "bytes": len(GOOD), "features": 1, "nonzero_weights": 3,
        "outputs": 3, "labels": [3.0, 1.0, 2.0], "bias": 1.0, "loss": "squared_hinge",
        "solver_type": "L2R_L2LOSS_SVC_DUAL",
    }  # fmt: skip
