"""scikit-learn's own checks of the estimators, and its tools around them."""

import copy
import pickle

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsOneClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.utils import estimator_checks

import sbm
from sbm.sklearn import SBMClassifier, SBMOneClass, SBMRegressor

# Stored as float32 the checks run kernels that other tests need, too.
SINGLE = {"dtype": "float32"}
INEXACT = (
    "a sample weight and copies of a row are one problem, whose optimum is found within tol; at a "
    "tol that is small enough the check passes"
)
INEXACT_CHECKS = dict.fromkeys(
    (
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    ),
    INEXACT,
)


@estimator_checks.parametrize_with_checks(
    [
        SBMClassifier(tol=0.01, **SINGLE),
        SBMRegressor(tol=0.1, **SINGLE),
        SBMOneClass(tol=0.01, **SINGLE),
    ],
    expected_failed_checks=lambda _: INEXACT_CHECKS,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_checks_it(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_classifiers_train,  # shape, sum, order of probabilities
        estimator_checks.check_estimators_pickle,
        estimator_checks.check_methods_subset_invariance,
    ],
)
@pytest.mark.parametrize(
    "estimator",
    [
        SBMClassifier("log_loss", tol=0.1, **SINGLE),
        SBMClassifier("crammer_singer", tol=0.1, probability=True, **SINGLE),
    ],
    ids=str,
)
def test_scikit_learn_checks_what_has_probabilities(estimator, check):
    check(type(estimator).__name__, estimator)


@pytest.mark.parametrize(
    "estimator",
    [
        SBMClassifier("squared_hinge", C=0.01, tol=1e-15, max_iter=20, rounds=10, **SINGLE),
        SBMRegressor("squared_error", C=0.01, tol=1e-15, max_iter=20, **SINGLE),
        SBMOneClass(tol=1e-12, max_iter=300, **SINGLE),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_is_inexact_passes_at_a_small_tolerance(estimator):
    check = estimator_checks.check_sample_weight_equivalence_on_dense_data
    check(type(estimator).__name__, estimator)


# ------------------------------------------------------------------------------- tools around them


def rows(n=90, labels=("often", "never", "at times"), seed=0):
    """Rows whose values are the same in float32, and labels."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 5)).astype(np.float32).astype(float)
    scores = X @ random.normal(size=(5, len(labels))) + 0.3 * random.normal(size=(n, len(labels)))
    return X, np.array(labels)[scores.argmax(axis=1)]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_grid_is_searched_in_a_pipeline(n_jobs):
    X, y = rows()  # the second time in processes
    model = make_pipeline(MaxAbsScaler(), SBMClassifier(random_state=0, **SINGLE))
    grid = {"sbmclassifier__C": np.logspace(-2, 1, 2), "sbmclassifier__loss": ["squared_hinge"]}
    found = GridSearchCV(model, grid, cv=3, n_jobs=n_jobs).fit(X, y)
    assert found.best_params_["sbmclassifier__C"] == 10
    assert found.score(X, y) == (found.predict(X) == y).mean() > 0.8
    assert set(found.classes_) == set(y)


def test_folds_are_scored():
    X, y = rows()
    scores = cross_val_score(SBMClassifier(random_state=0, **SINGLE), X, y, cv=3)
    assert scores.mean() > 0.7


def test_other_estimators_are_made_of_it():
    X, y = rows()
    pairs = OneVsOneClassifier(SBMClassifier(random_state=0, **SINGLE)).fit(X, y)
    assert len(pairs.estimators_) == 3
    assert pairs.score(X, y) > 0.8


@pytest.mark.parametrize("estimator", [SBMClassifier("log_loss"), SBMRegressor(), SBMOneClass()])
def test_a_fitted_one_is_pickled_copied_and_cloned(estimator, tmp_path):
    X, labels = rows()
    y = X[:, 0] if isinstance(estimator, SBMRegressor) else labels == "never"
    estimator.set_params(random_state=3, tol=0.01, **SINGLE).fit(X, y)
    joblib.dump(estimator, tmp_path / "e.joblib")
    for other in (
        pickle.loads(pickle.dumps(estimator)), copy.deepcopy(estimator),
        joblib.load(tmp_path / "e.joblib"),
    ):  # fmt: skip
        assert other.predict(X).tolist() == estimator.predict(X).tolist()
        assert other.model_.certificate == estimator.model_.certificate
    again = clone(estimator)
    assert not hasattr(again, "coef_")
    assert again.fit(X, y).coef_.tolist() == estimator.coef_.tolist()


def test_nothing_but_the_model_file_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    X, y = rows()
    fitted = SBMClassifier(**SINGLE).fit(X, y, 1 + np.arange(len(y)) % 3)
    assert list(tmp_path.iterdir()) == []
    fitted.model_.save(tmp_path / "m.model")
    assert (tmp_path / "m.model").read_bytes()[:1] != b"\x80"  # of a pickle


def test_what_is_not_converged_says_so():
    X, y = rows()
    with pytest.warns(
        ConvergenceWarning, match=r"^the relative gap is .* after 1 passes, above tol"
    ):
        fitted = SBMClassifier(max_iter=1, rounds=1, tol=1e-9, **SINGLE).fit(X, y)
    assert fitted.n_iter_ == 1
    assert fitted.dual_gap_ > 1e-9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_names_of_columns_are_kept(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = rows()
    frame = pandas.DataFrame(X, columns=list("abcde"))
    fitted = SBMClassifier(**SINGLE).fit(frame, y)
    assert fitted.feature_names_in_.tolist() == list("abcde")
    assert fitted.n_features_in_ == 5
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[list("edcba")])
    sbm.split([(X, np.arange(len(X)) % 2)], tmp_path / "d.sbm")
    assert not hasattr(fitted.fit(tmp_path / "d.sbm"), "feature_names_in_")


def test_what_is_not_fitted_predicts_nothing():
    for estimator in (SBMClassifier("log_loss"), SBMRegressor(), SBMOneClass()):
        with pytest.raises(NotFittedError):
            estimator.predict(np.ones((1, 5)))


def test_probabilities_are_there_where_they_exist():
    X, y = rows()
    assert not hasattr(SBMClassifier(), "predict_proba")
    for estimator in (
        SBMClassifier("log_loss", **SINGLE),
        SBMClassifier(probability=True, **SINGLE),
    ):
        p = estimator.fit(X, y).predict_proba(X)
        assert p.shape == (len(y), 3)
        np.testing.assert_allclose(p.sum(axis=1), 1)
        np.testing.assert_allclose(np.exp(estimator.predict_log_proba(X)), p)


def test_scaling_inside_a_pipeline_gives_other_columns_and_the_same_labels():
    X, y = rows()
    plain = SBMClassifier(**SINGLE).fit(X, y).score(X, y)
    scaled = make_pipeline(StandardScaler(), SBMClassifier(**SINGLE))
    assert abs(scaled.fit(1000 * X, y).score(1000 * X, y) - plain) < 0.05
