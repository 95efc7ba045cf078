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
        SBMClassifier(**SINGLE),
        SBMClassifier("log_loss", tol=0.1, rounds=2, **SINGLE),
        SBMRegressor(**SINGLE),
        SBMOneClass(**SINGLE),
    ],
    expected_failed_checks=lambda _: INEXACT_CHECKS,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_checks_it(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "estimator",
    [
        SBMClassifier("squared_hinge", C=0.01, tol=1e-15, max_iter=30, rounds=10, **SINGLE),
        SBMRegressor("squared_error", C=0.01, tol=1e-15, max_iter=30, **SINGLE),
        SBMOneClass(tol=1e-12, max_iter=300, **SINGLE),
    ],
)
@pytest.mark.parametrize("check", sorted(INEXACT_CHECKS))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_is_inexact_passes_at_a_small_tolerance(estimator, check):
    getattr(estimator_checks, check)(type(estimator).__name__, estimator)
