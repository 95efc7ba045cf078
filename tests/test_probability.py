"""Probabilities against LIBLINEAR, calibration against other optimizers, and extreme numbers."""

import json
import math
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from liblinear import liblinearutil
from sklearn import metrics as reference
from sklearn.calibration import _sigmoid_calibration

import sbm
from sbm.cli import main
from sbm.errors import SettingsError
from sbm.jobs.judging import probability as module
from sbm.jobs.judging.probability import calibrate, fit_platt, fit_softmax
from sbm.probabilities import probabilities
from sbm.store.model import Model

LOG_LOSS = {"loss": "log_loss"}


def _platt(A, B):
    return {"loss": "hinge", "calibration": {"kind": "platt", "A": A, "B": B, "rows": 9}}


def _softmax(T):
    return {"loss": "crammer_singer", "calibration": {"kind": "softmax", "T": T, "rows": 9}}


def _model(n_outputs=1, info=LOG_LOSS, n_features=5, seed=0, labels=None):
    random = np.random.default_rng(seed)
    if labels is None:
        labels = [-1.0, 1.0] if n_outputs == 1 else [float(k) for k in range(n_outputs)]
    W = random.standard_normal((n_features, n_outputs))
    return Model(np.arange(1, n_features + 1), W, labels, info=dict(info))


# ------------------------------------------------------------------------------- Platt's sigmoid


def _overlapping(seed, n, shift=0.0, scale=1.0, positive=0.4):
    random = np.random.default_rng(seed)
    truth = random.random(n) < positive
    return shift + scale * (random.standard_normal(n) + 1.5 * truth), truth


def _platt_oracle(scores, positive):
    """Minimise the cross-entropy to Platt's targets by another method, from another place."""
    n_positive, n_negative = positive.sum(), (~positive).sum()
    t = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))

    def look(x):
        v = x[0] * scores + x[1]
        p = scipy.special.expit(-v)
        loss = np.mean(t * np.logaddexp(0, v) + (1 - t) * np.logaddexp(0, -v))
        return loss, np.array([np.mean((t - p) * scores), np.mean(t - p)])

    def curvature(x):
        w = scipy.special.expit(x[0] * scores + x[1])
        w = w * (1 - w)
        return np.array(
            [[np.mean(w * scores**2), np.mean(w * scores)], [np.mean(w * scores), np.mean(w)]]
        )

    found = scipy.optimize.minimize(
        look, [-0.1, 0.1], jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-13}
    )
    return found.x


@pytest.mark.parametrize(
    "case",
    [(0, 1000), (1, 30), (2, 5000, 3.0), (3, 400, -7.0, 2.0), (4, 3000, 0.0, 1.0, 0.01),
     (5, 500, 0.0, 20.0)],
)  # fmt: skip
def test_the_sigmoid_is_that_of_another_optimizer(case):
    scores, positive = _overlapping(*case)
    found = fit_platt(scores, positive)
    np.testing.assert_allclose(found, _platt_oracle(scores, positive), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(  # its own stopping rule is coarser
        found, _sigmoid_calibration(scores, positive.astype(float)), rtol=2e-3, atol=2e-3
    )
    assert found[0] < 0


def test_separable_decision_values_do_not_make_the_sigmoid_a_step():
    scores, positive = np.array([-2.0, -1.0, 1.0, 2.0]), np.array([False, False, True, True])
    found = fit_platt(scores, positive)
    np.testing.assert_allclose(found, _platt_oracle(scores, positive), rtol=1e-6, atol=1e-9)
    p = 1 / (1 + np.exp(found[0] * scores + found[1]))
    assert (abs(p - [0.25, 0.25, 0.75, 0.75]) < 0.15).all()


@pytest.mark.parametrize("unit", [2.0**-1000, 2.0**-40, 2.0**70, 2.0**1000])
def test_the_sigmoid_follows_the_scale_of_the_decision_values(unit):
    scores, positive = _overlapping(0, 500)
    A, B = fit_platt(scores, positive)
    assert fit_platt(scores * unit, positive) == (A / unit, B)


def test_the_sigmoid_follows_a_shift_of_the_decision_values():
    scores, positive = _overlapping(0, 500)
    A, B = fit_platt(scores, positive)
    moved = fit_platt(scores + 2.0**20, positive)
    np.testing.assert_allclose(moved, (A, B - A * 2.0**20), rtol=1e-8)


@pytest.mark.parametrize("value", [100.0, 1e5, 1e9, 1e15])
@pytest.mark.parametrize("truth", [False, True])
@pytest.mark.parametrize("share", [0.001, 0.4])
def test_one_decision_value_that_dwarfs_the_others_does_not_stop_the_fit(value, truth, share):
    random = np.random.default_rng(1)
    scores, positive = random.standard_normal(1000), random.random(1000) < share
    scores[0], positive[0] = value, truth
    found = fit_platt(scores, positive)
    p = scipy.special.expit(-(found[0] * scores + found[1]))
    n_positive, n_negative = positive.sum(), (~positive).sum()
    t = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    assert abs(np.mean(t - p)) < 1e-12  # the gradient is 0
    assert abs(np.mean((t - p) * scores)) < 1e-12 * value


def test_rounding_of_the_value_costs_no_looks_at_the_decision_values(monkeypatch):
    random = np.random.default_rng(0)
    looks = []
    newton = module._newton
    monkeypatch.setattr(
        module, "_newton", lambda look, a, b: newton(lambda *x: looks.append(x) or look(*x), a, b)
    )
    for value in (1e3, 1e4, 1e5, 1e6):
        scores, positive = random.standard_normal(1000), random.random(1000) < 0.01
        scores[:5], positive[:5] = value, False
        before = len(looks)
        fit_platt(scores, positive)
        assert len(looks) - before < 11


def test_a_slope_beyond_the_range_of_a_float_is_the_steepest_there_is():
    A, B = fit_platt(np.array([0.0, 5e-324]), np.array([False, True]))
    assert (A, math.isfinite(B)) == (-np.finfo(np.float64).max, True)


def test_pieces_change_nothing_but_rounding(monkeypatch):
    scores, positive = _overlapping(0, 1000)
    several = np.stack([scores, -scores, 0 * scores], axis=1)
    codes = positive.astype(np.int32)
    A, B = fit_platt(scores, positive)
    T = fit_softmax(several, codes)
    monkeypatch.setattr(module, "_PIECE", 7)
    np.testing.assert_allclose(fit_platt(scores, positive), (A, B), rtol=1e-9)
    assert fit_softmax(several, codes) == pytest.approx(T, rel=1e-9)


def _share(A, B, f):
    return 1 / (1 + math.exp(A * f + B))


def test_without_rows_the_sigmoid_is_a_half():
    assert fit_platt(np.zeros(0), np.zeros(0, bool)) == (0.0, 0.0)


@pytest.mark.parametrize("n", [1, 3, 100])
@pytest.mark.parametrize("truth", [True, False])
def test_one_class_alone_gives_its_target_everywhere(n, truth):
    scores = np.linspace(-3, 3, n)
    A, B = fit_platt(scores, np.full(n, truth))
    expected = (n + 1) / (n + 2) if truth else 1 / (n + 2)
    for f in (-5.0, 0.0, 5.0):
        assert _share(A, B, f) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e9, 1e300, -5e-324])
def test_equal_decision_values_give_the_mean_target_everywhere(value):
    positive = np.arange(10) < 3
    A, B = fit_platt(np.full(10, value), positive)
    assert A == 0
    expected = (3 * (3 + 1) / (3 + 2) + 7 * 1 / (7 + 2)) / 10
    assert _share(A, B, 12.0) == pytest.approx(expected, rel=1e-9)


EXTREME = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e300, -1e300, 5e-324, np.inf, -np.inf, np.nan]), st.floats()
)


@settings(deadline=None)
@given(st.data(), st.integers(0, 12))
def test_a_fit_is_finite_whatever_the_decision_values(data, n):
    scores = data.draw(hnp.arrays(np.float64, (n, 3), elements=EXTREME))
    codes = data.draw(hnp.arrays(np.int32, n, elements=st.integers(0, 2)))
    for k in range(3):
        assert np.isfinite(fit_platt(scores[:, k], codes == k)).all()
    T = fit_softmax(scores, codes)
    assert 0 < T < np.inf


# ----------------------------------------------------------------------------------- temperatures


def _competing(seed, n, n_labels, T, scale=1.0):
    """Decision values whose softmax at temperature T is right."""
    random = np.random.default_rng(seed)
    z = 3 * T * random.standard_normal((n, n_labels))
    p = scipy.special.softmax(z / T, axis=1)
    codes = (p.cumsum(axis=1) < random.random((n, 1))).sum(axis=1)
    return z * scale, codes.astype(np.int32)


def _temperature_oracle(z, codes):
    n, n_labels = z.shape
    t = np.full((n, n_labels), 1 / (n + 2) / (n_labels - 1))
    t[np.arange(n), codes] = (n + 1) / (n + 2)

    def look(log_T):
        return -np.mean((t * scipy.special.log_softmax(z / np.exp(log_T), axis=1)).sum(axis=1))

    found = scipy.optimize.minimize_scalar(
        look, bounds=(-15, 15), method="bounded", options={"xatol": 1e-10}
    )
    return np.exp(found.x)


@pytest.mark.parametrize("n_labels", [2, 3, 40])
@pytest.mark.parametrize("T", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("n", [50, 2000])
def test_the_temperature_is_that_of_another_optimizer(n_labels, T, n):
    z, codes = _competing(n, n, n_labels, T)
    assert fit_softmax(z, codes) == pytest.approx(_temperature_oracle(z, codes), rel=1e-6)


def test_the_temperature_that_made_the_labels_is_found():
    z, codes = _competing(0, 100_000, 4, T=2.5)
    assert fit_softmax(z, codes) == pytest.approx(2.5, rel=0.02)


@pytest.mark.parametrize("unit", [2.0**-900, 2.0**30, 2.0**900])
def test_the_temperature_follows_the_scale_of_the_decision_values(unit):
    z, codes = _competing(1, 300, 3, T=1.0)
    assert fit_softmax(z * unit, codes) == fit_softmax(z, codes) * unit


def test_a_common_shift_of_a_row_changes_no_temperature():
    z, codes = _competing(1, 300, 3, T=1.0)
    moved = z + 1024 * np.arange(300)[:, np.newaxis]
    assert fit_softmax(moved, codes) == pytest.approx(fit_softmax(z, codes), rel=1e-8)


def test_rows_that_are_all_right_leave_a_doubt():
    z = 10.0 * np.eye(3)[np.arange(30) % 3]
    T = fit_softmax(z, np.arange(30) % 3)
    p = scipy.special.softmax(z[0] / T)
    assert p[0] == pytest.approx(31 / 32, rel=1e-9)  # Platt's target


@pytest.mark.parametrize("n_labels", [2, 5])
def test_decision_values_that_say_the_contrary_make_labels_equally_likely(n_labels):
    z, codes = np.eye(n_labels), (np.arange(n_labels) + 1) % n_labels
    p = scipy.special.softmax(z / fit_softmax(z, codes), axis=1)
    np.testing.assert_allclose(p, 1 / n_labels, rtol=1e-3)


def test_without_rows_or_differences_the_temperature_is_one():
    assert fit_softmax(np.zeros((0, 3)), np.zeros(0, np.int32)) == 1.0
    assert fit_softmax(np.full((4, 3), 7.25), np.zeros(4, np.int32)) == 1.0


# ------------------------------------------------------------------------------------ calibration


def test_two_labels_are_calibrated_by_one_sigmoid_of_the_larger():
    scores, positive = _overlapping(0, 300)
    codes = positive.astype(np.int32)
    A, B = fit_platt(scores, positive)
    expected = {"kind": "platt", "A": [A], "B": [B], "rows": 300}
    assert calibrate(scores, codes, joint=False) == expected
    assert calibrate(scores[:, np.newaxis], codes, joint=False) == expected
    assert json.loads(json.dumps(expected)) == expected


def test_one_against_the_rest_is_calibrated_by_a_sigmoid_a_label():
    z, codes = _competing(0, 400, 3, T=1.0)
    found = calibrate(z, codes, joint=False)
    fits = [fit_platt(z[:, k], codes == k) for k in range(3)]
    assert (found["kind"], found["rows"]) == ("platt", 400)
    assert list(zip(found["A"], found["B"], strict=True)) == fits


@pytest.mark.parametrize("n_labels", [2, 3])
def test_competing_labels_are_calibrated_by_a_temperature(n_labels):
    z, codes = _competing(0, 400, n_labels, T=1.0)
    expected = {"kind": "softmax", "T": fit_softmax(z, codes), "rows": 400}
    assert calibrate(z, codes, joint=True) == expected


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("strange", [-1, 3])
def test_rows_of_labels_that_the_model_does_not_know_are_left_out(joint, strange):
    z, codes = _competing(0, 400, 3, T=1.0)
    expected = calibrate(z[100:], codes[100:], joint=joint)
    codes[:100] = strange
    assert calibrate(z, codes, joint=joint) == expected


def test_no_rows_at_all_give_a_calibration():
    none = np.zeros(0, np.int32)
    assert calibrate(np.zeros((0, 1)), none, joint=False) == {
        "kind": "platt", "A": [0.0], "B": [0.0], "rows": 0,
    }  # fmt: skip
    assert calibrate(np.zeros((0, 3)), none, joint=True) == {
        "kind": "softmax", "T": 1.0, "rows": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("n_outputs", "joint"), [(1, False), (4, False), (4, True), (2, True)])
def test_a_calibrated_model_has_less_log_loss_on_other_rows(n_outputs, joint):
    n_labels = max(2, n_outputs)
    z, codes = _competing(3, 4000, n_labels, T=0.1)  # so sure as values of this size do not seem
    scores = z[:, 1:] - z[:, :1] if n_outputs == 1 else z
    model = _model(n_outputs)
    uniform = math.log(n_labels)
    raw = reference.log_loss(codes[2000:], probabilities(model, scores[2000:]))
    model.info = {
        "loss": "hinge", "calibration": calibrate(scores[:2000], codes[:2000], joint=joint)
    }  # fmt: skip
    fitted = reference.log_loss(codes[2000:], probabilities(model, scores[2000:]))
    assert fitted < 0.8 * raw < uniform


# ------------------------------------------------------------------ probabilities from the values


@pytest.fixture(scope="module")
def logistic():
    """LIBLINEAR's models of the logistic loss as ours, rows, and its probabilities in our order."""
    random = np.random.default_rng(5)
    made = {}
    for n_classes in (2, 3):
        y = random.integers(0, n_classes, 200)
        X = random.standard_normal((200, 6)) + 0.7 * np.eye(6)[y]
        labels = np.array([-1.0, 2.0, 5.0])[:n_classes]
        rows = [{k + 1: v for k, v in enumerate(row)} for row in X.tolist()]
        problem = liblinearutil.problem(labels[y].tolist(), rows)
        theirs = liblinearutil.train(problem, "-s 0 -B 1 -q")
        predicted, _, p = liblinearutil.predict(labels[y].tolist(), rows, theirs, "-b 1 -q")
        order = np.argsort(theirs.get_labels())
        which = [0] if n_classes == 2 else order
        decoded = [theirs.get_decfun(int(k)) for k in which]
        W, bias = np.array([w for w, _ in decoded]).T, np.array([b for _, b in decoded])
        if n_classes == 2 and theirs.get_labels()[0] == -1:  # theirs is positive for the first
            W, bias = -W, -bias
        model = Model(np.arange(1, 7), W, labels.tolist(), 1.0, bias, LOG_LOSS)
        lines = [
            " ".join([f"{labels[c]:g}", *(f"{k}:{v!r}" for k, v in row.items())])
            for c, row in zip(y, rows, strict=True)
        ]
        text = "\n".join(lines) + "\n"
        made[n_classes] = (model, X, labels[y], text, predicted, np.array(p)[:, order])
    return made


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_probabilities_of_the_log_loss_are_those_of_liblinear(logistic, n_classes):
    model, X, _, _, predicted, expected = logistic[n_classes]
    scores = X @ model.W + model.bias_weights
    found = probabilities(model, scores)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert np.array(model.labels)[found.argmax(axis=1)].tolist() == predicted
    if n_classes == 2:
        assert probabilities(model, scores[:, 0]).tolist() == found.tolist()


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_a_sigmoid_that_says_nothing_new_gives_the_probabilities_of_the_log_loss(n_outputs):
    z = np.random.default_rng(0).standard_normal((50, n_outputs)) * 5
    plain = probabilities(_model(n_outputs), z)
    same = _model(n_outputs, _platt([-1.0] * n_outputs, [0.0] * n_outputs))
    assert probabilities(same, z).tolist() == plain.tolist()


def test_the_sigmoid_of_a_calibration_is_platts():
    p = probabilities(_model(1, _platt([-2.0], [0.5])), np.array([0.75]))
    np.testing.assert_allclose(p, [[1 - 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-1))]])
    p = probabilities(_model(2, _platt([-1.0, -2.0], [0.0, 1.0])), np.array([[0.0, 1.0]]))
    odd = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(p, [[0.5 / (0.5 + odd), odd / (0.5 + odd)]])


def test_a_calibration_goes_before_the_log_loss():
    info = {**_platt([-3.0], [0.25]), "loss": "log_loss"}
    z = np.linspace(-2, 2, 9)
    expected = probabilities(_model(1, _platt([-3.0], [0.25])), z)
    assert probabilities(_model(1, info), z).tolist() == expected.tolist()


@pytest.mark.parametrize("T", [1e-3, 1.0, 40.0])
def test_the_softmax_is_that_of_scipy(T):
    z = np.random.default_rng(0).standard_normal((50, 4))
    expected = scipy.special.softmax(z / T, axis=1)
    np.testing.assert_allclose(probabilities(_model(4, _softmax(T)), z), expected, rtol=1e-9)


def test_labels_are_equally_likely_where_every_sigmoid_is_zero():
    z = np.array([[-1e300, -1e4, -2e3], [-800.0, -900.0, -1e3], [-1e9, 0.0, -1e9]])
    p = probabilities(_model(3), z)
    assert p.tolist() == [[1 / 3] * 3, [1 / 3] * 3, [0, 1, 0]]


def test_a_small_probability_of_the_smaller_label_is_not_rounded_away():
    p = probabilities(_model(1), np.array([50.0]))
    assert p[0, 0] == pytest.approx(math.exp(-50), rel=1e-12, abs=0)
    assert p[0, 1] == 1.0


def test_a_decision_value_that_is_no_number_is_the_least():
    z = np.array([[np.nan, 1.0, np.inf], [np.nan, -np.inf, -np.inf]])
    assert probabilities(_model(3, _softmax(2.0)), z).tolist() == [[0, 0, 1], [1 / 3] * 3]
    assert probabilities(_model(1), np.array([np.nan, -np.inf, np.inf])).tolist() == [
        [1, 0], [1, 0], [0, 1],
    ]  # fmt: skip


FACTOR = st.floats(-1e300, 1e300)


@settings(deadline=None)
@given(st.data(), st.integers(1, 4), st.sampled_from(["log_loss", "platt", "softmax"]))
def test_probabilities_are_shares_of_one_whatever_the_decision_values(data, n_outputs, kind):
    if kind == "softmax":
        n_outputs += 1
        info = _softmax(data.draw(st.floats(5e-324, 1e308)))
    elif kind == "platt":
        several = st.lists(FACTOR, min_size=n_outputs, max_size=n_outputs)
        info = _platt(data.draw(several), data.draw(several))
    else:
        info = LOG_LOSS
    z = data.draw(hnp.arrays(np.float64, (5, n_outputs), elements=EXTREME))
    p = probabilities(_model(n_outputs, info), z)
    assert p.shape == (5, max(2, n_outputs))
    assert ((p >= 0) & (p <= 1)).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)


def test_no_rows_have_no_probabilities_but_a_shape():
    for n_outputs, info in (
        (1, LOG_LOSS),
        (3, LOG_LOSS),
        (3, _softmax(1.0)),
        (1, _platt([1], [1])),
    ):
        p = probabilities(_model(n_outputs, info), np.zeros((0, n_outputs)))
        assert p.shape == (0, max(2, n_outputs))


def test_the_decision_values_stay_as_they_are():
    z = np.array([[np.nan, 1.0, 2.0]])
    for info in (LOG_LOSS, _softmax(1.0), _platt([1.0] * 3, [1.0] * 3)):
        probabilities(_model(3, info), z)
    assert np.isnan(z[0, 0])
    assert z[0, 1:].tolist() == [1, 2]


UNCALIBRATED = (
    "this model has no probabilities: its loss is {} and it was trained without --calibrate; "
    "train it with --calibrate, or with --loss log_loss"
)
NO_LABELS = (
    "this model predicts a number, not a label, so it has no probabilities; leave out --probability"
)
ONE_CLASS = (
    "this model has no probabilities: its loss is one_class, which has seen no rows of the other "
    "label; leave out --probability"
)
DAMAGED = "the calibration of this model is no calibration of {}; train it again with --calibrate"


def _without_labels(loss):
    return _model(1, {"loss": loss}, labels=[])


REFUSED = [
    (_model(1, {"loss": "hinge"}), UNCALIBRATED.format("hinge")),
    (_model(1, {"loss": "hinge", "calibration": None}), UNCALIBRATED.format("hinge")),
    (_model(3, {"loss": "crammer_singer"}), UNCALIBRATED.format("crammer_singer")),
    (_model(1, {}), UNCALIBRATED.format("unknown")),
    (_model(1, {"loss": "one_class"}), ONE_CLASS),
    (_without_labels("squared_error"), NO_LABELS),
    (_without_labels("log_loss"), NO_LABELS),
    (_model(1, _platt([1.0, 2.0], [1.0, 2.0])), DAMAGED.format("1 output")),
    (_model(3, _platt([1.0] * 3, [1.0])), DAMAGED.format("3 outputs")),
    (_model(1, _platt([np.nan], [1.0])), DAMAGED.format("1 output")),
    (_model(1, _platt(["x"], [1.0])), DAMAGED.format("1 output")),
    (_model(1, _platt(None, None)), DAMAGED.format("1 output")),
    (_model(1, _softmax(1.0)), DAMAGED.format("1 output")),
    (_model(3, _softmax(0.0)), DAMAGED.format("3 outputs")),
    (_model(3, _softmax([1.0, 2.0])), DAMAGED.format("3 outputs")),
    (_model(3, _softmax(np.inf)), DAMAGED.format("3 outputs")),
    (_model(1, {"calibration": {"kind": "isotonic"}}), DAMAGED.format("1 output")),
    (_model(1, {"calibration": {}}), DAMAGED.format("1 output")),
    (_model(1, {"calibration": "platt"}), DAMAGED.format("1 output")),
]


@pytest.mark.parametrize(("model", "message"), REFUSED)
def test_a_model_without_probabilities_says_why(tmp_path, model, message):
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        probabilities(model, np.zeros((2, model.W.shape[1])))
    (tmp_path / "t.svm").write_text("spam\n")  # is not even looked at
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        sbm.predict(model, tmp_path / "t.svm", tmp_path / "out.txt", probability=True)
    assert os.listdir(tmp_path) == ["t.svm"]


# -------------------------------------------------------------------------- predict --probability


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("n_classes", [2, 3])
def test_each_line_holds_a_label_and_the_probabilities_that_liblinear_gives(
    here, logistic, n_classes
):
    model, _, y, text, predicted, expected = logistic[n_classes]
    Path("t.svm").write_text(text)
    report = sbm.predict(model, "t.svm", "out.txt", probability=True)
    title, *lines = Path("out.txt").read_text().splitlines()
    assert title == ("labels -1 2" if n_classes == 2 else "labels -1 2 5")
    words = [line.split(" ") for line in lines]
    assert [row[0] for row in words] == [f"{label:g}" for label in predicted]
    found = np.array([[float(word) for word in row[1:]] for row in words])
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    loss = reference.log_loss(y, expected, labels=model.labels)
    assert report["log_loss"] == pytest.approx(loss, rel=1e-10)
    if n_classes == 2:
        brier = reference.brier_score_loss(y, expected[:, 1], pos_label=2.0)
        assert report["brier"] == pytest.approx(brier, rel=1e-10)
    else:
        assert "brier" not in report
    plain = sbm.predict(model, "t.svm")
    assert {k: report[k] for k in plain} == {**plain, "output": "out.txt"}
    assert "log_loss" not in plain


def test_the_label_is_that_of_the_decision_value_whatever_the_probability(here):
    model = Model(np.array([1]), np.array([[1.0]]), [3.0, 7.0], info=_platt([-1.0], [2.0]))
    Path("t.svm").write_text("7 1:1\n3 1:-1\n")
    report = sbm.predict(model, "t.svm", "out.txt", probability=True)
    p = 1 / (1 + math.exp(1))
    title, first, second = Path("out.txt").read_text().splitlines()
    assert title == "labels 3 7"
    assert [float(word) for word in first.split()] == pytest.approx([7, 1 - p, p])
    assert second.split()[0] == "3"
    assert report["accuracy"] == 1.0


def test_probabilities_are_written_so_that_they_read_back_the_same(here):
    model = Model(np.array([1]), np.array([[1.0, -2.0, 0.3]]), [1.0, 2.5, 4.0], info=_softmax(0.7))
    Path("t.svm").write_text("".join(f"1 1:{k / 10}\n" for k in range(-50, 50)))
    sbm.predict(model, "t.svm", "out.txt", probability=True)
    title, *lines = Path("out.txt").read_text().splitlines()
    assert title == "labels 1 2.5 4"
    found = [[float(word) for word in line.split(" ")[1:]] for line in lines]
    z = np.arange(-50, 50)[:, np.newaxis] / 10 * model.W
    assert found == probabilities(model, z).tolist()


def test_unknown_labels_are_left_out_of_the_log_loss(here):
    model = Model(np.array([1]), np.array([[1.0]]), [-1.0, 1.0], info=LOG_LOSS)
    Path("t.svm").write_text("1 1:0.5\n-1 1:2\n")
    expected = sbm.predict(model, "t.svm", probability=True)
    Path("t.svm").write_text("1 1:0.5\n5 1:9\n-1 1:2\n0 1:9\n")
    found = sbm.predict(model, "t.svm", probability=True)
    assert found["unknown_labels"] == 2
    assert (found["log_loss"], found["brier"]) == (expected["log_loss"], expected["brier"])
    Path("t.svm").write_text("5 1:9\n")
    found = sbm.predict(model, "t.svm", probability=True)
    assert (found["log_loss"], found["brier"]) == (None, None)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_without_rows_there_are_the_labels_alone(here, n_outputs):
    Path("t.svm").write_text("")
    report = sbm.predict(_model(n_outputs), "t.svm", "out.txt", probability=True)
    assert Path("out.txt").read_text() == f"labels {'-1 1' if n_outputs == 1 else '0 1 2'}\n"
    assert report["log_loss"] is None
    assert report.get("brier") is None


def test_a_store_gives_the_probabilities_of_its_text(here):
    random = np.random.default_rng(0)
    rows = [f"{k % 3} {k % 5 + 1}:{random.integers(-9, 9)}\n" for k in range(60)]
    Path("t.svm").write_text("".join(rows))
    sbm.split(["t.svm"], "t.sbm", blocks=3, shuffle=False)
    model = _model(3)
    from_text = sbm.predict(model, "t.svm", "a.txt", probability=True)
    from_store = sbm.predict(model, "t.sbm", "b.txt", probability=True)
    assert from_store["log_loss"] == pytest.approx(from_text["log_loss"], rel=1e-12)
    title, *lines = Path("a.txt").read_text().splitlines()
    assert Path("b.txt").read_text().splitlines() == [
        title, *lines[0::3], *lines[1::3], *lines[2::3],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"decision": True},
            (
                "probabilities and decision values cannot be written together; "
                "leave out --probability or --decision"
            ),
        ),
        (
            {"top": 2},
            (
                "top is 2, but probabilities are written for all labels, in the order of the "
                "labels; leave out --top or --probability"
            ),
        ),
    ],
)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_probabilities_go_with_nothing_else(here, options, message, n_outputs):
    Path("t.svm").write_text("spam\n")
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        sbm.predict(_model(n_outputs), "t.svm", "out.txt", probability=True, **options)
    assert os.listdir(here) == ["t.svm"]


# --------------------------------------------------------------------------------- command line


@pytest.fixture
def run(here, capfd):
    handler = signal.getsignal(signal.SIGTERM)

    def call(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(line.split())
        return end.value.code, *capfd.readouterr()

    yield call
    signal.signal(signal.SIGTERM, handler)


def test_the_command_says_what_the_probabilities_are_worth(run):
    Path("t.svm").write_text("1 1:0.5\n-1 1:2\n5 1:1\n")
    Model(np.array([1]), np.array([[1.0]]), [-1.0, 1.0], info=LOG_LOSS).save("m.model")
    code, out, err = run("predict m.model t.svm --probability -o out.txt")
    assert (code, err) == (0, "")
    p, q = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(2))
    loss, brier = -(math.log(p) + math.log(q)) / 2, ((1 - p) ** 2 + (1 - q) ** 2) / 2
    assert out.splitlines()[5:] == [
        f"log-loss {loss:.6f}, Brier score {brier:.6f}",
        "labels that the model does not know: 1 row",
    ]
    assert Path("out.txt").read_text().splitlines()[0] == "labels -1 1"
    report = json.loads(run("predict m.model t.svm --probability --json")[1])
    assert report["log_loss"] == pytest.approx(loss)
    assert report["brier"] == pytest.approx(brier)
    assert "log-loss" not in run("predict m.model t.svm")[1]


def test_the_command_says_the_log_loss_of_several_labels(run):
    Path("t.svm").write_text("0 1:1\n2 2:1\n")
    model = _model(3)
    model.save("m.model")
    expected = sbm.predict(model, "t.svm", probability=True)["log_loss"]
    out = run("predict m.model t.svm --probability")[1]
    assert f"\nlog-loss {expected:.6f}\n" in out


def test_a_command_that_asks_too_much_is_one_sentence(run):
    Path("t.svm").write_text("1 1:1\n")
    _model(1, {"loss": "hinge"}).save("m.model")
    line = "predict m.model t.svm --probability"
    assert run(line) == (2, "", f"sbm: {UNCALIBRATED.format('hinge')}\n")
