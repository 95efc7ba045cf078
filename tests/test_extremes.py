"""Numbers at the edge: true certificates, finite results, refusals that say what to do."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from families import CASES, make_store
from helpers import fit, write_rows

import sbm
from sbm.errors import DataError, SettingsError
from sbm.losses import LOSSES
from scripts import bench_drift, torture_numbers
from scripts.exact import KERNELS, exact_bounds, watch_certificates
from scripts.torture_numbers import COMMANDS, KINDS, ONLINE, PROBLEMS

TOO_LARGE = (
    "the numbers of these rows grow beyond what a float64 holds, 1.8e308; make values and targets "
    "smaller (a common factor will do), or take a smaller C"
)

# ------------------------------------------------------------------------------- the grid


def test_a_grid_of_extremes_is_certified_truly_or_refused_clearly(tmp_path):
    cases = 5 * len(PROBLEMS)  # of this seed they have every learner
    tally = torture_numbers.run(cases, 2, tmp_path, lambda text: None)
    assert tally.failures == []
    assert tally.tried == cases
    figures = tally.figures
    assert set(figures["rows"]) == set(KINDS)
    assert set(figures["commands"]) == set(COMMANDS)
    assert set(figures["learners"]) >= {"sbm", *ONLINE}
    assert len(figures["losses"]) == len({(loss, labels) for loss, labels, _ in PROBLEMS})
    assert figures["outcomes"]["certified"] > 10
    assert figures["outcomes"]["short"] > 3
    assert figures["outcomes"]["refused"] > 1


def test_a_case_follows_from_its_seed_and_number_alone(tmp_path):
    first, again = torture_numbers.draw(3, 17), torture_numbers.draw(3, 17)
    assert first == again
    np.testing.assert_array_equal(first.rows()[0], again.rows()[0])
    alone = torture_numbers.run(1000, 3, tmp_path, lambda text: None, only=17)
    assert alone.tried == 1
    assert alone.failures == []


def test_a_wrong_certificate_is_a_failure_that_names_its_case(tmp_path, monkeypatch):
    """The torture run can fail."""
    exact = torture_numbers.exact_bounds

    def off(*arguments):
        found = exact(*arguments)
        return type(found)(found.primal * 2, found.dual, found.outside)

    monkeypatch.setattr(torture_numbers, "exact_bounds", off)
    tally = torture_numbers.run(1, 0, tmp_path, lambda text: None, only=0)
    assert len(tally.failures) == 1
    assert tally.failures[0].startswith("seed 0, case 0: train sbm (plain) loss=hinge")


# ------------------------------------------------------------------------ certificates are true


def separable(path, scale=1.0):
    """Two rows; their margins at the optimum are 1 but for rounding."""
    X = scale * np.array([[0.1, 0.7, 0.3], [-0.3, -0.1, -0.9]])
    path.mkdir()
    return make_store(path, X.astype(np.float32).astype(float), np.array([7.0, -3.0]))


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "crammer_singer", "weston_watkins"])
@pytest.mark.parametrize(("scale", "C", "tol"), [(1.0, 1e10, 1e-12), (1e30, 1e10, 1e-3)])
def test_converged_is_true_without_rounding(tmp_path, loss, scale, C, tol):
    """Where the last bit of a margin costs more than the objective, nothing is converged."""
    store = separable(tmp_path / "d", scale)
    with watch_certificates() as found:
        _, report, _ = fit(store, loss=loss, C=C, tol=tol, max_passes=40)
    bounds = exact_bounds(found[-1])
    assert 0 <= bounds.gap <= Fraction(report["gap"])
    assert bounds.relative_gap <= tol or not report["converged"]
    if scale == 1e30 and loss == "hinge":
        assert not report["converged"]


@pytest.mark.parametrize("scale", [1e-4, 1e-9, 1e-12, 1e-14, 1e-20])
def test_crammer_singer_moves_rows_of_any_norm(tmp_path, scale):
    """What is left of C must not vanish beside 1 / |x|²."""
    case = next(c for c in CASES if str(c) == "crammer_singer-3")
    X, y = case.rows(n=60)
    text = write_rows(tmp_path / "d.svm", X * scale, y)
    sbm.split([text], tmp_path / "d.sbm", blocks=2)
    _, report, _ = fit(tmp_path / "d.sbm", loss="crammer_singer", C=1.0, tol=1e-6)
    assert report["converged"]
    assert report["dual"] == pytest.approx(60.0, rel=1e-2)


@pytest.mark.parametrize(
    "case", [case for case in CASES if LOSSES[case.loss].kernel in KERNELS], ids=str
)
def test_the_gap_is_hardly_larger_for_rounding(tmp_path, case):
    X, y = case.rows(n=60)
    with watch_certificates() as found:
        _, report, _ = fit(
            make_store(tmp_path, X, y, blocks=2), **case.at(0.3), tol=1e-6, max_passes=3
        )
    bounds = [exact_bounds(one) for one in torture_numbers.last_of_each(found)]
    gap = float(sum(one.gap for one in bounds))
    scale = max(abs(report["primal"]), abs(report["dual"]))
    assert gap * (1 - 1e-9) <= report["gap"] + 1e-15 * scale
    assert report["gap"] - gap <= 1e-12 * scale


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("C", [1e-300, 1e-41, 1e41, 1e300])
@pytest.mark.parametrize("loss", ["hinge", "crammer_singer", "squared_error"])
def test_costs_that_cannot_be_squared_are_refused(tmp_path, C, loss):
    store = separable(tmp_path / "d")
    with pytest.raises(SettingsError) as error:
        fit(store, loss=loss, C=C)
    assert str(error.value) == (
        f"C, times class weights, is {C!r}; it must lie between 1e-40 and 1e+40, scale the values "
        "of the rows instead"
    )
    assert not (store.parent / "m.model.run").exists()


def test_class_weights_count_as_costs_and_0_is_none(tmp_path):
    store = separable(tmp_path / "d")
    with pytest.raises(SettingsError, match=r"^C, times class weights, is 1e\+45; it must lie"):
        fit(store, C=1e10, class_weight={7: 1e35})
    _, report, _ = fit(store, C=1e10, class_weight={7: 0.0}, max_passes=2)
    assert math.isfinite(report["primal"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_whose_squares_overflow_are_refused_at_the_first_step(tmp_path, case):
    X, y = case.rows(n=30)
    store = make_store(tmp_path, X * 1e200, y, blocks=2, dtype="float64")
    with pytest.raises(DataError) as error:
        fit(store, **case.at(1.0))
    assert str(error.value) == TOO_LARGE
    assert not (tmp_path / "m.model").exists()


@pytest.mark.parametrize("learner", ["sbm", *ONLINE])
def test_a_stream_refuses_them_too(tmp_path, learner):
    X = 1e200 * np.array([[1.0, 2.0], [-1.0, 1.0], [2.0, -1.0], [-1.0, -2.0]])
    text = write_rows(tmp_path / "d.svm", X, [1, -1, 1, -1])
    options = {"learner": learner, "dtype": "float64"}
    if learner in ("passive_aggressive", "pegasos"):  # they do not move, which is finite
        model, _ = sbm.stream(text, tmp_path / "m.model", options=options)
        assert np.isfinite(model.W).all()
        return
    with pytest.raises(DataError, match="beyond what a float64 holds"):
        sbm.stream(text, tmp_path / "m.model", options=options)


def test_values_beyond_float32_are_refused_by_split_and_kept_as_float64(tmp_path):
    text = tmp_path / "d.svm"
    text.write_text("1 1:1e39\n-1 1:-1e39\n")
    with pytest.raises(DataError, match=r"d\.svm:1: found '1e39', too large for the value type"):
        sbm.split([text], tmp_path / "d.sbm")
    sbm.split([text], tmp_path / "d.sbm", dtype="float64")
    model, report, _ = fit(tmp_path / "d.sbm", max_passes=2)
    assert np.isfinite(model.W).all()
    assert math.isfinite(report["primal"])


# ------------------------------------------------------------------------------ imbalance, drift


@pytest.mark.parametrize("class_weight", [{}, "balanced"], ids=["plain", "balanced"])
def test_one_row_among_thousands_is_certified(tmp_path, class_weight):
    text = tmp_path / "d.svm"
    text.write_text("".join(torture_numbers.large_lines(3_000)))
    sbm.split([text], tmp_path / "d.sbm", blocks=4)
    for loss in ("hinge", "squared_hinge", "log_loss", "crammer_singer"):
        _, report, _ = fit(
            tmp_path / "d.sbm", loss=loss, class_weight=class_weight,
            max_passes=10 if loss == "crammer_singer" and class_weight else 60,
        )  # fmt: skip
        # One row of cost 1500 against many: the primal value of Crammer-Singer takes 300 passes.
        assert report["converged"] or (loss == "crammer_singer" and class_weight), loss
        assert report["primal"] >= report["dual"] > 0
        assert report["drift"] <= 1e-9, loss
        json.dumps(report, allow_nan=False)


def test_weights_hardly_drift_in_many_passes(tmp_path):
    losses = [("hinge", 2), ("log_loss", 2), ("crammer_singer", 4), ("squared_error", 0)]
    found = list(bench_drift.measure(30, (15,), tmp_path, costs=(1e-10, 1e10), losses=losses))
    assert len(found) == len(losses) * len(bench_drift.SCALES) * 2
    assert max(one.drift for one in found) <= 1e-9
    assert any(one.drift > 0 for one in found)
    assert bench_drift.report_of(found, 30).ratios["worst_drift"] <= 1e-9
