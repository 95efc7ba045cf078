"""A model as an estimator of scikit-learn itself: the same numbers in its attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SettingsError

if TYPE_CHECKING:
    from sbm.store.model import Model

__all__ = ["dense_weights", "to_sklearn", "whole_labels"]


def to_sklearn(model: Model, n_features: int | None = None) -> Any:
    """Turn a model into a fitted estimator; see `sbm.Model.to_sklearn`."""
    try:
        from sklearn.linear_model import LogisticRegression, Ridge, SGDOneClassSVM
        from sklearn.svm import LinearSVC, LinearSVR
    except ImportError as error:
        raise SettingsError(
            "to_sklearn needs scikit-learn, which is not installed; pip install 'sbm[sklearn]'"
        ) from error
    loss, info = model.info.get("loss", ""), model.info.get("settings", {})
    C = float(info.get("C", 1.0))
    W, intercept = dense_weights(model, n_features)
    if loss == "one_class":
        estimator: Any = SGDOneClassSVM(nu=float(info.get("nu", 0.5)))
        estimator.coef_, estimator.offset_ = W[:, 0].copy(), -intercept
    elif model.is_regression:
        squared = loss == "squared_error"
        tube = {"C": C, "epsilon": float(info.get("epsilon", 0.0))}
        estimator = Ridge(alpha=1 / (2 * C)) if squared else LinearSVR(**tube)
        estimator.coef_, estimator.intercept_ = W[:, 0].copy(), float(intercept[0])
    else:
        odds = loss == "log_loss" and len(model.labels) == 2
        estimator = LogisticRegression(C=C) if odds else LinearSVC(C=C)
        order = np.argsort(model.labels)  # models of LIBLINEAR may have another one
        estimator.classes_ = whole_labels(np.asarray(model.labels)[order])
        if W.shape[1] == 1 and order[0] == 1:
            W, intercept = -W, -intercept
        elif W.shape[1] > 1:
            W, intercept = W[:, order], intercept[order]
        if len(model.labels) == 2 and W.shape[1] == 2:  # there one column tells two labels apart
            W, intercept = W[:, 1:] - W[:, :1], intercept[1:] - intercept[:1]
        estimator.coef_, estimator.intercept_ = np.ascontiguousarray(W.T), intercept
    estimator.n_features_in_ = len(W)
    return estimator


def dense_weights(
    model: Model, n_features: int | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the weights of every id below `n_features`, and what the bias adds.

    Returns
    -------
    W : ndarray, shape (n_features, n_outputs), float64
        Row k belongs to feature id k.
    intercept : ndarray, shape (n_outputs,), float64

    Raises
    ------
    DataError
        An id has no row, or there is no memory for all.
    """
    largest = int(model.ids.max(initial=-1))
    n = largest + 1 if n_features is None else n_features
    if largest >= n:
        raise DataError(
            f"the model has weights of feature id {largest}, which {n} columns do not hold; "
            f"give n_features={largest + 1} or more"
        )
    try:
        W = np.zeros((n, model.W.shape[1]))
    except (MemoryError, ValueError) as error:
        raise DataError(
            f"feature ids of this model reach {largest}, and weights of so many columns do not fit "
            "in memory; take decision_function of the model itself"
        ) from error
    W[model.ids] = model.W
    return W, np.asarray(model.bias * model.bias_weights)


def whole_labels(labels: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Labels as whole numbers where all are."""
    are_whole = (labels == np.floor(labels)) & (abs(labels) < 1 << 53)
    return labels.astype(np.int64) if are_whole.all() else labels
