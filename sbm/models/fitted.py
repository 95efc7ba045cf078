"""Conversion of a model to a fitted scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SettingsError


def to_sklearn(model: Any, n_features: int | None = None) -> Any:
    """Convert a model to a fitted estimator; see `sbm.Model.to_sklearn`."""
    try:
        from sklearn.linear_model import LogisticRegression, Ridge, SGDOneClassSVM
        from sklearn.svm import LinearSVC, LinearSVR
    except ImportError as error:
        raise SettingsError(
            "to_sklearn needs scikit-learn; run: pip install scikit-learn"
        ) from error
    model = model.without_threshold()
    loss, info = model.info.get("loss", ""), model.info.get("settings", {})
    C = float(info.get("C", 1.0))
    if len(model.labels) == 1:
        raise SettingsError(
            f"the model predicts only the label {model.label_texts()[0]}, but classifiers of "
            "scikit-learn need two or more; use the model's own predict"
        )
    coef, intercept = coefficients(model, n_features)
    if loss == "one_class":
        estimator: Any = SGDOneClassSVM(nu=float(info.get("nu", 0.5)))
        estimator.coef_, estimator.offset_ = coef[0], -intercept
    elif model.is_regression:
        squared = loss == "squared_error"
        tube = {"C": C, "epsilon": float(info.get("epsilon", 0.0))}
        estimator = Ridge(alpha=1 / (2 * C)) if squared else LinearSVR(**tube)
        estimator.coef_, estimator.intercept_ = coef[0], float(intercept[0])
    else:
        odds = loss == "log_loss" and len(model.labels) == 2
        estimator = LogisticRegression(C=C) if odds else LinearSVC(C=C)
        estimator.classes_ = model.classes_[np.argsort(model.labels)]
        estimator.coef_, estimator.intercept_ = coef, intercept
    estimator.n_features_in_ = coef.shape[1]
    return estimator


def coefficients(
    model: Any, n_features: int | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return weights in scikit-learn's layout: one row per output, one column per feature id.

    Parameters
    ----------
    n_features : int, optional
        Default: one more than the largest id.

    Returns
    -------
    coef : ndarray, shape (n_outputs, n_features), float64
        In ascending order of the labels. Two labels have one row; above 0 means the larger label.
    intercept : ndarray, shape (n_outputs,), float64

    Raises
    ------
    DataError
        If an id is not below `n_features`, or the weights do not fit in memory.
    """
    W = _by_label(model, _dense(model, n_features))
    return np.ascontiguousarray(W.T), intercepts(model)


def intercepts(model: Any) -> npt.NDArray[np.float64]:
    """Return the intercepts in scikit-learn's layout, shape (n_outputs,)."""
    first: npt.NDArray[np.float64] = _by_label(model, model.bias * model.bias_weights[np.newaxis])[
        0
    ]
    return first


def _by_label(model: Any, W: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return columns in ascending order of the labels; a single one for two labels."""
    order = np.argsort(model.labels)  # LIBLINEAR models may have another order
    if W.shape[1] > 1:
        W = W[:, order]
    elif len(order) == 2 and order[0] == 1:
        W = -W
    return W[:, 1:] - W[:, :1] if len(order) == W.shape[1] == 2 else W


def _dense(model: Any, n_features: int | None) -> npt.NDArray[np.float64]:
    """Return the weights of every id below `n_features`, shape (n_features, n_outputs)."""
    largest = int(model.ids.max(initial=-1))
    n = largest + 1 if n_features is None else n_features
    if largest >= n:
        raise DataError(
            f"the model has weights of feature id {largest}, but n_features is {n}; "
            f"use n_features={largest + 1} or more"
        )
    try:
        W = np.zeros((n, model.W.shape[1]))
    except (MemoryError, ValueError) as error:
        raise DataError(
            f"the largest feature id is {largest}, and weights of that many columns do not fit "
            "in memory; use the model's own decision_function"
        ) from error
    W[model.ids] = model.W
    return W


def whole_labels(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return labels as int64 if all are whole numbers."""
    labels = np.asarray(labels, np.float64)
    are_whole = (labels == np.floor(labels)) & (abs(labels) < 1 << 53)
    return labels.astype(np.int64) if are_whole.all() else labels
