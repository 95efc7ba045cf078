"""Probabilities against LIBLINEAR, calibration against other optimizers, and extreme numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inside import Model, calibrate, cli, fit_platt, fit_softmax, patch, probabilities
from inside import models_probabilities_module as module
from liblinear import liblinearutil
from sklearn import metrics as reference

import sbm
from sbm.errors import SettingsError

LOG_LOSS = {"loss": "log_loss"}


def platt(A, B):
    return {"loss": "hinge", "calibration": {"kind": "platt", "A": A, "B": B, "rows": 9}}


def softmax(T):
    return {"loss": "crammer_singer", "calibration": {"kind": "softmax", "T": T, "rows": 9}}


def make_model(n_outputs=1, info=LOG_LOSS, labels=None):
    if labels is None:
        labels = [-1.0, 1.0] if n_outputs == 1 else [float(k) for k in range(n_outputs)]
    W = np.random.default_rng(0).standard_normal((5, n_outputs))
    return Model(np.arange(1, 6), W, labels, info=dict(info))


# ---------------------------------------------------------------------------------- Platt's sigmoid


def draw_scores(seed, n, shift=0.0, scale=1.0, positive=0.4):
    random = np.random.default_rng(seed)
    truth = random.random(n) < positive
    return shift + scale * (random.standard_normal(n) + 1.5 * truth), truth


def targets_of(positive):
    n_positive, n_negative = positive.sum(), (~positive).sum()
    return np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))


def platt_oracle(scores, positive):
    """Minimise the cross-entropy to Platt's targets by another method, from another start."""
    t = targets_of(positive)

    def look(x):
        v = x[0] * scores + x[1]
        loss = np.mean(t * np.logaddexp(0, v) + (1 - t) * np.logaddexp(0, -v))
        residual = t - scipy.special.expit(-v)
        return loss, np.array([np.mean(residual * scores), np.mean(residual)])

    options = {"gtol": 1e-11, "maxiter": 10_000}
    return scipy.optimize.minimize(look, [-0.1, 0.1], jac=True, options=options).x


SEPARABLE = np.array([-2.0, -1.0, 1.0, 2.0]), np.array([False, False, True, True])


@pytest.mark.parametrize(
    "case",
    [draw_scores(0, 1000), draw_scores(1, 30), draw_scores(3, 400, -7.0, 2.0), SEPARABLE,
     draw_scores(4, 3000, 0.0, 1.0, 0.01)],
    ids=len,
)  # fmt: skip
def test_sigmoid_matches_another_optimizer(case, monkeypatch):
    scores, positive = case
    A, B = fit_platt(scores, positive)
    np.testing.assert_allclose((A, B), platt_oracle(scores, positive), rtol=1e-5, atol=1e-6)
    assert A < 0
    for unit in (2.0**-1000, 2.0**70, 2.0**1000):
        assert fit_platt(scores * unit, positive) == (A / unit, B)
    moved = fit_platt(scores + 2.0**20, positive)
    np.testing.assert_allclose(moved, (A, B - A * 2.0**20), rtol=1e-7)
    patch(monkeypatch, "_PIECE", 7)
    np.testing.assert_allclose(fit_platt(scores, positive), (A, B), rtol=1e-9)


@pytest.mark.parametrize("value", [100.0, 1e5, 1e15])
@pytest.mark.parametrize(("truth", "share"), [(False, 0.001), (True, 0.4), (False, 0.4)])
def test_sigmoid_fit_survives_an_outlier(monkeypatch, value, truth, share):
    random, looks = np.random.default_rng(1), []
    newton = module._newton
    patch(
        monkeypatch,
        "_newton",
        lambda look, a, b: newton(lambda *x: looks.append(x) or look(*x), a, b),
    )
    scores, positive = random.standard_normal(1000), random.random(1000) < share
    scores[0], positive[0] = value, truth
    A, B = fit_platt(scores, positive)
    residual = targets_of(positive) - scipy.special.expit(-(A * scores + B))
    assert abs(np.mean(residual)) < 1e-12  # the gradient is 0
    assert abs(np.mean(residual * scores)) < 1e-12 * value
    assert len(looks) < 30  # rounding of the value costs no passes over the rows


def test_sigmoid_of_degenerate_rows():
    assert fit_platt(np.zeros(0), np.zeros(0, bool)) == (0.0, 0.0)
    A, B = fit_platt(np.array([0.0, 5e-324]), np.array([False, True]))
    assert (A, math.isfinite(B)) == (-np.finfo(np.float64).max, True)
    for n in (1, 3, 100):  # of one class alone: its target everywhere
        for truth, expected in ((True, (n + 1) / (n + 2)), (False, 1 / (n + 2))):
            A, B = fit_platt(np.linspace(-3, 3, n), np.full(n, truth))
            for f in (-5.0, 5.0):
                assert scipy.special.expit(-(A * f + B)) == pytest.approx(expected, rel=1e-9)
    positive = np.arange(10) < 3
    for value in (0.0, -3.7, 1e300, -5e-324):  # all equal: the mean target everywhere
        A, B = fit_platt(np.full(10, value), positive)
        assert A == 0
        assert scipy.special.expit(-B) == pytest.approx(targets_of(positive).mean(), rel=1e-9)


EXTREME = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e300, -1e300, 5e-324, np.inf, -np.inf, np.nan]), st.floats()
)


@given(st.data(), st.integers(0, 12))
def test_any_scores_give_a_finite_fit(data, n):
    scores = data.draw(hnp.arrays(np.float64, (n, 3), elements=EXTREME))
    codes = data.draw(hnp.arrays(np.int32, n, elements=st.integers(0, 2)))
    for k in range(3):
        assert np.isfinite(fit_platt(scores[:, k], codes == k)).all()
    assert 0 < fit_softmax(scores, codes) < np.inf


# -------------------------------------------------------------------------------------- temperature


def draw_rows(seed, n, n_labels, T):
    """Return decision values whose softmax at temperature T gives the label probabilities."""
    random = np.random.default_rng(seed)
    z = 3 * T * random.standard_normal((n, n_labels))
    p = scipy.special.softmax(z / T, axis=1)
    return z, (p.cumsum(axis=1) < random.random((n, 1))).sum(axis=1).astype(np.int32)


def temperature_oracle(z, codes):
    n, n_labels = z.shape
    t = np.full((n, n_labels), 1 / (n + 2) / (n_labels - 1))
    t[np.arange(n), codes] = (n + 1) / (n + 2)

    def look(log_T):
        return -np.mean((t * scipy.special.log_softmax(z / np.exp(log_T), axis=1)).sum(axis=1))

    options = {"xatol": 1e-10}
    return np.exp(scipy.optimize.minimize_scalar(look, bounds=(-15, 15), options=options).x)


@pytest.mark.parametrize(
    ("n", "n_labels", "T"), [(50, 2, 0.05), (2000, 3, 30.0), (50, 40, 1.0), (20_000, 4, 2.5)]
)
def test_temperature_matches_another_optimizer(n, n_labels, T, monkeypatch):
    z, codes = draw_rows(n, n, n_labels, T)
    found = fit_softmax(z, codes)
    assert found == pytest.approx(temperature_oracle(z, codes), rel=1e-6)
    assert n < 20_000 or found == pytest.approx(T, rel=0.05)  # what made the labels
    for unit in (2.0**-900, 2.0**900):
        assert fit_softmax(z * unit, codes) == found * unit
    shifted = z + 1024 * (np.arange(n) % 50)[:, np.newaxis]
    assert fit_softmax(shifted, codes) == pytest.approx(found, rel=1e-8)
    patch(monkeypatch, "_PIECE", n * n_labels // 7)
    assert fit_softmax(z, codes) == pytest.approx(found, rel=1e-9)


def test_temperature_of_degenerate_rows():
    eye, codes = np.eye(3), np.arange(3)
    all_right = scipy.special.softmax(10 * eye[0] / fit_softmax(10 * eye, codes))
    assert all_right[0] == pytest.approx(4 / 5, rel=1e-9)  # Platt's target of 3 rows
    wrong = scipy.special.softmax(eye / fit_softmax(eye, (codes + 1) % 3), axis=1)
    np.testing.assert_allclose(wrong, 1 / 3, rtol=1e-3)
    assert fit_softmax(np.zeros((0, 3)), codes[:0]) == 1.0
    assert fit_softmax(np.full((4, 3), 7.25), np.zeros(4, np.int32)) == 1.0


# -------------------------------------------------------------------------------------- calibration


def test_calibration_fits_each_output():
    scores, positive = draw_scores(0, 300)
    A, B = fit_platt(scores, positive)
    two = {"kind": "platt", "A": [A], "B": [B], "rows": 300}
    assert calibrate(scores, positive.astype(np.int32), joint=False) == two
    z, codes = draw_rows(0, 400, 3, T=1.0)
    fits = [fit_platt(z[100:, k], codes[100:] == k) for k in range(3)]
    several = {"kind": "platt", "A": [a for a, _ in fits], "B": [b for _, b in fits], "rows": 300}
    joint = {"kind": "softmax", "T": fit_softmax(z[100:], codes[100:]), "rows": 300}
    for unknown in (-1, 3):  # rows of labels that the model does not know are ignored
        codes[:100] = unknown
        assert calibrate(z, codes, joint=False) == several
        assert calibrate(z, codes, joint=True) == joint
    none = np.zeros(0, np.int32)
    assert calibrate(np.zeros((0, 1)), none, joint=False)["rows"] == 0
    assert calibrate(np.zeros((0, 3)), none, joint=True)["T"] == 1.0


# -------------------------------------------------------------------- probabilities from the values


def test_probabilities_match_the_sigmoid_formula():
    p = probabilities(make_model(1, platt([-2.0], [0.5])), np.array([0.75]))
    np.testing.assert_allclose(p, [[1 - 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-1))]])
    p = probabilities(make_model(2, platt([-1.0, -2.0], [0.0, 1.0])), np.array([[0.0, 1.0]]))
    odd = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(p, [[0.5 / (0.5 + odd), odd / (0.5 + odd)]])
    for n in (1, 3):
        z = np.random.default_rng(0).standard_normal((50, n)) * 5
        same = make_model(n, platt([-1.0] * n, [0.0] * n))
        assert probabilities(same, z).tolist() == probabilities(make_model(n), z).tolist()
    both = {**platt([-3.0], [0.25]), **LOG_LOSS}  # the calibration is used
    z = np.linspace(-2, 2, 9)
    expected = scipy.special.expit(3 * z - 0.25)
    np.testing.assert_allclose(probabilities(make_model(1, both), z)[:, 1], expected)


@pytest.mark.parametrize("T", [1e-3, 40.0])
def test_softmax_matches_scipy(T):
    z = np.random.default_rng(0).standard_normal((50, 4))
    expected = scipy.special.softmax(z / T, axis=1)
    np.testing.assert_allclose(probabilities(make_model(4, softmax(T)), z), expected, rtol=1e-9)


def test_probabilities_of_extreme_scores():
    z = np.array([[-1e300, -1e4, -2e3], [-800.0, -900.0, -1e3], [-1e9, 0.0, -1e9]])
    assert probabilities(make_model(3), z).tolist() == [[1 / 3] * 3, [1 / 3] * 3, [0, 1, 0]]
    p = probabilities(make_model(1), np.array([50.0, np.nan, -np.inf, np.inf]))
    assert p[0, 0] == pytest.approx(math.exp(-50), rel=1e-12, abs=0)  # not rounded away
    assert p[1:].tolist() == [[1, 0], [1, 0], [0, 1]]
    z = np.array([[np.nan, 1.0, np.inf], [np.nan, -np.inf, -np.inf]])
    p = probabilities(make_model(3, softmax(2.0)), z)
    assert p.tolist() == [[0, 0, 1], [1 / 3] * 3]
    assert np.isnan(z[:, 0]).all()  # the decision values stay as they are


FACTOR = st.floats(-1e300, 1e300)


@given(
    st.data(), st.integers(0, 5), st.integers(1, 4), st.sampled_from(["log", "platt", "softmax"])
)
def test_probabilities_sum_to_one_for_any_scores(data, n, n_outputs, kind):
    info = LOG_LOSS
    if kind == "softmax":
        n_outputs += 1
        info = softmax(data.draw(st.floats(5e-324, 1e308)))
    elif kind == "platt":
        several = st.lists(FACTOR, min_size=n_outputs, max_size=n_outputs)
        info = platt(data.draw(several), data.draw(several))
    z = data.draw(hnp.arrays(np.float64, (n, n_outputs), elements=EXTREME))
    p = probabilities(make_model(n_outputs, info), z)
    assert p.shape == (n, max(2, n_outputs))
    assert ((p >= 0) & (p <= 1)).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)


DAMAGED = [
    make_model(1, platt([1.0, 2.0], [1.0, 2.0])), make_model(3, platt([1.0] * 3, [1.0])),
    make_model(1, platt([np.nan], [1.0])), make_model(1, platt(["x"], [1.0])),
    make_model(1, platt(None, None)), make_model(1, softmax(1.0)), make_model(3, softmax(0.0)),
    make_model(3, softmax([1.0, 2.0])), make_model(3, softmax(np.inf)),
    make_model(1, {"calibration": {"kind": "isotonic"}}), make_model(1, {"calibration": {}}),
    make_model(1, {"calibration": "platt"}),
]  # fmt: skip
NONE = "hinge .*calibrate.*log_loss"


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        (make_model(1, {"loss": "hinge"}), NONE), (make_model(1, {}), "unknown .*calibrate"),
        (make_model(3, {"loss": "hinge", "calibration": None}), NONE),
        (make_model(1, {"loss": "one_class"}), "one_class"),
        (make_model(1, {"loss": "squared_error"}, []), "regression"),
        (make_model(1, LOG_LOSS, []), "regression"),
        *((model, f"{model.W.shape[1]} output.*calibrate") for model in DAMAGED),
    ],
)  # fmt: skip
def test_models_without_probabilities_are_refused(tmp_path, model, facts):
    with pytest.raises(SettingsError, match=facts):
        probabilities(model, np.zeros((2, model.W.shape[1])))
    with pytest.raises(SettingsError, match=facts):  # before the data are opened
        sbm.predict(model, tmp_path / "missing.svm", probability=True)


# ---------------------------------------------------------------------------- predict --probability


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("n_classes", [2, 3])
def test_predicted_probabilities_match_liblinear(here, n_classes):
    random = np.random.default_rng(5)
    y = random.integers(0, n_classes, 200)
    X = (random.standard_normal((200, 6)) + 0.7 * np.eye(6)[y]).astype(np.float32)
    labels = [-1, 2, 5][:n_classes]
    rows = [{k + 1: v for k, v in enumerate(row)} for row in X.tolist()]
    y = [labels[code] for code in y]
    theirs = liblinearutil.train(y, rows, "-s 0 -B 1 -q")
    predicted, _, p = liblinearutil.predict(y, rows, theirs, "-b 1 -q")
    p = np.array(p)[:, np.argsort(theirs.get_labels())]
    liblinearutil.save_model("m.txt", theirs)
    lines = (
        " ".join([str(label), *(f"{k}:{v!r}" for k, v in row.items())])
        for label, row in zip(y, rows, strict=True)
    )
    Path("t.svm").write_text("\n".join(lines) + "\n")
    sbm.split(["t.svm"], "t.sbm", blocks=3, shuffle=False)
    sbm.export("m.txt", "m.model", format="sbm")
    report = sbm.predict("m.model", "t.svm", "out.txt", probability=True)
    title, *lines = Path("out.txt").read_text().splitlines()
    assert title.split() == ["labels", *map(str, labels)]
    found = np.array([list(map(float, line.split(" "))) for line in lines])
    assert found[:, 0].tolist() == predicted
    np.testing.assert_allclose(found[:, 1:], p, rtol=1e-10)
    assert report["log_loss"] == pytest.approx(reference.log_loss(y, p, labels=labels), rel=1e-10)
    if n_classes == 2:
        assert report["brier"] == pytest.approx(
            reference.brier_score_loss(y, p[:, 1], pos_label=2), rel=1e-10
        )
    plain = sbm.predict("m.model", "t.svm", "out.txt")
    assert plain == {**report, "output": plain["output"]}
    of_store = sbm.predict("m.model", "t.sbm", "s.txt", probability=True)
    assert of_store["log_loss"] == pytest.approx(report["log_loss"], rel=1e-12)
    np.testing.assert_allclose(np.loadtxt("s.txt", skiprows=1), found, rtol=1e-9)


def test_label_follows_the_decision_value(here):
    model = Model(np.array([1]), np.array([[1.0]]), [3.0, 7.0], info=platt([-1.0], [2.0]))
    Path("t.svm").write_text("7 1:1\n3 1:-1\n5 1:9\n")
    report = sbm.predict(model, "t.svm", "out.txt", probability=True)
    title, first, second, _ = Path("out.txt").read_text().splitlines()
    assert title == "labels 3 7"
    p = probabilities(model, np.array([1.0, -1.0]))
    assert [float(word) for word in first.split()] == [7, *p[0]]  # read back exactly
    assert second.split()[0] == "3"
    assert (report["correct"], report["unknown_labels"]) == (2, 1)
    assert report["log_loss"] == pytest.approx(-np.log([p[0, 1], p[1, 0]]).mean())
    Path("t.svm").write_text("")
    report = sbm.predict(model, "t.svm", "out.txt", probability=True)
    assert Path("out.txt").read_text() == "labels 3 7\n"
    assert (report["log_loss"], report["brier"]) == (None, None)


def test_command_prints_log_loss_and_brier_score(here):
    Path("t.svm").write_text("1 1:0.5\n-1 1:2\n5 1:1\n")
    Model(np.array([1]), np.array([[1.0]]), [-1.0, 1.0], info=LOG_LOSS).save("m.model")
    make_model(1, {"loss": "hinge"}).save("hinge.model")

    def run(*words):
        return CliRunner().invoke(cli, ["predict", *words, "t.svm"])

    p, q = scipy.special.expit([-0.5, 2])
    loss, brier = -(math.log(1 - p) + math.log(1 - q)) / 2, (p**2 + q**2) / 2
    out = run("m.model", "--probability").stdout
    assert f"log-loss {loss:.6f}" in out
    assert f"Brier score {brier:.6f}" in out
    report = json.loads(run("m.model", "--probability", "--json").stdout)
    assert (report["log_loss"], report["brier"]) == (pytest.approx(loss), pytest.approx(brier))
    assert f"log-loss {loss:.6f} (base rate {math.log(2):.6f})" in run("m.model").stdout
    assert isinstance(run("hinge.model", "--probability").exception, SettingsError)
