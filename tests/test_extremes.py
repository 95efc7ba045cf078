"""Numbers at the edge: true certificates, finite results, refusals."""

import json
from fractions import Fraction

import numba
import numpy as np
import pytest
from families import CASES, make_store
from helpers import fit
from inside import LOSSES, PLAIN
from inside import kernels_classes_module as classes

import sbm
from sbm.errors import DataError, SettingsError
from scripts.torture import numbers as torture_numbers
from scripts.torture.exact import KERNELS, exact_bounds, watch_certificates
from scripts.torture.numbers import COMMANDS, KINDS, PROBLEMS


@pytest.mark.slow
def test_grid_of_extremes_is_certified_or_refused(tmp_path):
    cases = 5 * len(PROBLEMS)
    tally = torture_numbers.run(cases, 2, tmp_path, lambda text: None)
    assert tally.failures == []
    assert tally.tried == cases
    figures = tally.figures
    assert set(figures["rows"]) == set(KINDS)
    assert set(figures["commands"]) == set(COMMANDS)
    assert len(figures["losses"]) == len({(loss, labels) for loss, labels, _ in PROBLEMS})
    assert min(figures["outcomes"][kind] for kind in ("certified", "short", "refused")) > 1


# In the last three, W(α) is a sum of terms much larger than itself.
@pytest.mark.parametrize(
    ("seed", "number"), [(3, 0), (3, 17), (3, 34), (3, 51), (0, 27), (0, 71), (0, 251)]
)
def test_a_few_extremes_are_certified_or_refused(seed, number, tmp_path):
    tally = torture_numbers.run(1000, seed, tmp_path, lambda text: None, only=number)
    assert tally.failures == []
    assert tally.tried == 1


# ------------------------------------------------------------------------ certificates are true


def separable(path, scale=1.0):
    """Two rows; their margins at the optimum are 1 but for rounding."""
    X = scale * np.array([[0.1, 0.7, 0.3], [-0.3, -0.1, -0.9]])
    return make_store(path, X.astype(np.float32).astype(float), np.array([7.0, -3.0]))


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "crammer_singer", "weston_watkins"])
@pytest.mark.parametrize(("scale", "tol"), [(1.0, 1e-12), (1e30, 1e-3)])
def test_converged_holds_in_exact_arithmetic(tmp_path, loss, scale, tol):
    """If the last bit of a margin costs more than the objective, nothing is converged."""
    store = separable(tmp_path, scale)
    with watch_certificates() as found:
        _, report, _ = fit(store, loss=loss, C=1e10, tol=tol, max_passes=40, solver="dual")
    bounds = exact_bounds(found[-1])
    assert 0 <= bounds.gap <= Fraction(report["gap"])
    assert bounds.relative_gap <= tol or not report["converged"]
    if scale == 1e30 and loss == "hinge":
        assert not report["converged"]


@pytest.mark.parametrize(
    "case", [case for case in CASES if LOSSES[case.loss].kernel in KERNELS], ids=str
)
def test_rounding_barely_increases_gap(tmp_path, case):
    X, y = case.rows(n=60)
    store = make_store(tmp_path, X, y, blocks=2)
    with watch_certificates() as found:
        _, report, _ = fit(store, **case.at(0.3), tol=1e-6, max_passes=3)
    bounds = [exact_bounds(one) for one in torture_numbers.last_of_each(found)]
    gap = float(sum(one.gap for one in bounds))
    scale = max(abs(report["primal"]), abs(report["dual"]))
    assert gap * (1 - 1e-9) <= report["gap"] + 1e-15 * scale
    assert report["gap"] - gap <= 1e-12 * scale


@pytest.mark.parametrize("C", [1e6, 1e10, 1e14])
def test_gap_includes_rounding_of_a_sum_whose_terms_cancel(tmp_path, C):
    case = next(c for c in CASES if str(c) == "squared_error-0")
    X, y = case.rows(n=60)
    store = make_store(tmp_path, X, y, blocks=2)
    with watch_certificates() as found:
        fit(store, **case.at(C), solver="newton", tol=1e-12, max_passes=8)
    for one in found:
        assert 0 <= exact_bounds(one).gap <= Fraction(one.certificate.gap) * Fraction(1 + 1e-9)


def test_gap_is_at_most_the_objective(tmp_path):
    """Without variables the dual is 0; rounding takes those of Newton's method far below it."""
    case = next(c for c in CASES if str(c) == "squared_error-0")
    X, y = case.rows(n=30)
    store = make_store(tmp_path, X * 1e30, y, blocks=2)
    _, report, _ = fit(store, **case.at(1.0), solver="newton", tol=1e-12, max_passes=6)
    assert report["dual"] == 0.0
    assert report["gap"] == pytest.approx(report["primal"], rel=1e-9)  # rounding of margins


@pytest.mark.parametrize("scale", [1e-9, 1e-14, 1e-20])
def test_crammer_singer_moves_rows_of_any_norm(tmp_path, scale):
    """The rest of C must not be lost in rounding next to 1 / |x|²."""
    case = next(c for c in CASES if str(c) == "crammer_singer-3")
    X, y = case.rows(n=60)
    store = make_store(tmp_path, X * scale, y, blocks=2)
    _, report, _ = fit(store, loss="crammer_singer", C=1.0, tol=1e-6)
    assert report["converged"]
    assert report["dual"] == pytest.approx(60.0, rel=1e-2)


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "options", [{"C": 1e-41}, {"C": 1e41, "loss": "crammer_singer"}, {"C": 1e300},
                {"C": 1e10, "class_weight": {7: 1e35}}], ids=str,
)  # fmt: skip
def test_costs_that_cannot_be_squared_are_refused(tmp_path, options):
    C = options["C"] * options.get("class_weight", {7: 1.0})[7]
    with pytest.raises(SettingsError) as error:
        fit(separable(tmp_path), **options)
    assert all(fact in str(error.value) for fact in (repr(C), "1e-40", "1e+40"))
    assert not (tmp_path / "m.model.run").exists()


@pytest.mark.parametrize(
    "case", [c for c in CASES if str(c) in ("hinge-2", "log_loss-2", "squared_error-0")], ids=str
)
def test_values_whose_squares_overflow_are_refused(tmp_path, case):
    X, y = case.rows(n=30)
    store = make_store(tmp_path, X * 1e200, y, blocks=2, dtype="float64")
    with pytest.raises(DataError, match=r"float64.*1\.8e308"):
        fit(store, **case.at(1.0))
    assert not (tmp_path / "m.model").exists()


# ------------------------------------------------------------------------------ imbalance, drift


@pytest.mark.parametrize("class_weight", [{}, "balanced"], ids=["plain", "balanced"])
@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
def test_one_row_among_thousands_is_certified(tmp_path, loss, class_weight):
    text = tmp_path / "d.svm"
    random = np.random.default_rng(0)
    text.write_text("".join(
        f"{'+1' if row == 1_000 else '-1'} " + " ".join(f"{k}:1" for k in sorted({*x})) + "\n"
        for row, x in enumerate(random.integers(1, 200, (2_000, 4)).tolist())
    ))  # fmt: skip
    sbm.split([text], tmp_path / "d.sbm", blocks=4)
    _, report, _ = fit(tmp_path / "d.sbm", loss=loss, class_weight=class_weight, max_passes=60)
    assert report["converged"]
    assert report["primal"] >= report["dual"] > 0
    assert report["drift"] <= 1e-9
    json.dumps(report, allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("C", [1e-10, 1e10])
@pytest.mark.parametrize("factors", [[1.0], [1e9, 1.0, 1.0], [1e30, 1e-30]], ids=str)
@pytest.mark.parametrize("loss", ["hinge-2", "log_loss-2", "crammer_singer-3", "squared_error-0"])
def test_weights_barely_drift_in_many_passes(tmp_path, loss, factors, C):
    """No certificate comes before the last pass, so W is the sum of all its rounded changes."""
    case = next(case for case in CASES if str(case) == loss)
    X, y = case.rows(n=30)
    store = make_store(tmp_path, X * np.resize(factors, X.shape[1]), y, blocks=6)
    options = {"tol": 1e-300, "max_passes": 15, "parts": "blocks", "solver": "dual"}
    _, report, _ = fit(store, **case.at(C), **options)
    assert report["drift"] <= 1e-9


@pytest.mark.parametrize("n_classes", [3, 8, 9, 16, 19])
def test_row_rounding_is_bounded_over_all_classes(n_classes, monkeypatch):
    # As plain Python: compiled kernels have no wrappers that Python could call.
    for name in ("_size1", "_size8", "rounding"):
        monkeypatch.setattr(classes, name, getattr(classes, name).py_func)
    for name in ("zeros8", "add_sizes8", "largest8"):
        monkeypatch.setattr(classes, name, PLAIN[name])
    random = np.random.default_rng(n_classes)
    W = random.normal(size=(12, n_classes))
    indices = np.arange(1, 12, 2, dtype=np.int32)
    values = random.normal(size=len(indices)).astype(np.float32)
    for bias in (0.0, 2.0):
        size = (abs(values.astype(float))[:, None] * abs(W[indices])).sum(axis=0).max()
        size += bias * abs(W[-1]).max()
        bound = classes.decision_error.py_func(indices, values, 0, len(indices), W, bias)
        assert bound == pytest.approx((len(indices) + 4) * 2.0**-53 * size, abs=0)


@pytest.mark.parametrize("n_classes", [2, 3, 7, 8, 9, 19])
def test_decision_values_of_any_number_of_classes(n_classes):
    random = np.random.default_rng(n_classes)
    W = random.normal(size=(12, n_classes))
    indices = np.array([0, 4, 11], np.int32)  # the last row of W, too
    values = random.normal(size=3).astype(np.float32)
    z = np.zeros((n_classes // 8 + 1) * 8)
    numba.njit(classes.decide.py_func)(indices, values, 0, 3, W, 0.0, z)
    assert z[:n_classes] == pytest.approx(values.astype(float) @ W[indices], rel=1e-14)
    assert n_classes >= 8 or (z[n_classes:] < -1e299).all()
