"""Probabilities of labels, from the decision values of a model."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError

__all__ = ["Scored", "check_probabilities", "finite", "probabilities"]

_Floats = npt.NDArray[np.float64]

_LARGEST = float(np.finfo(np.float64).max)


class Scored(Protocol):
    """What must be known of a model to tell probabilities; see `sbm.Model`."""

    @property
    def labels(self) -> list[float]:
        """Ascending; none of a model of numbers."""

    @property
    def W(self) -> _Floats:
        """Shape (n_features, n_outputs)."""

    @property
    def info(self) -> dict[str, Any]:
        """``loss``, and ``calibration`` where there is one."""


def check_probabilities(model: Scored) -> None:
    """Refuse a model that `probabilities` can say nothing of.

    Raises
    ------
    SettingsError
        It predicts numbers, has neither a log-loss nor a calibration, or one that is damaged.
    """
    if not model.labels:
        raise SettingsError(
            "this model predicts a number, not a label, so it has no probabilities; "
            "leave out --probability"
        )
    loss = model.info.get("loss", "unknown")
    if model.info.get("calibration") is not None:
        _calibration(model)
    elif loss == "one_class":
        raise SettingsError(
            "this model has no probabilities: its loss is one_class, which has seen no rows of the "
            "other label; leave out --probability"
        )
    elif loss != "log_loss":
        raise SettingsError(
            f"this model has no probabilities: its loss is {loss} and it was trained without "
            "--calibrate; train it with --calibrate, or with --loss log_loss"
        )


def _calibration(model: Scored) -> tuple[str, _Floats]:
    """Kind and parameters: (A, B) a row, shape (2, n_outputs), or T alone."""
    given = model.info["calibration"]
    outputs = model.W.shape[1]
    try:
        kind = given["kind"]
        names = {"platt": ("A", "B"), "softmax": ("T",)}[kind]
        values = np.array([given[name] for name in names], np.float64)
        sound = bool(np.isfinite(values).all())
        if kind == "platt":
            sound &= values.shape == (2, outputs)
        else:
            sound &= values.shape == (1,) and values[0] > 0 and outputs > 1
    except (KeyError, TypeError, ValueError, OverflowError):
        sound = False
    if not sound:
        raise SettingsError(
            f"the calibration of this model is no calibration of {outputs} "
            f"output{'' if outputs == 1 else 's'}; train it again with --calibrate"
        )
    return kind, values


def probabilities(model: Scored, scores: _Floats) -> _Floats:
    """Probabilities of the labels, given decision values.

    A calibrated model: Platt's sigmoid, or the softmax. Else, of the log-loss: the sigmoid of the
    decision value. Of several labels one against the rest each sigmoid is divided by their sum, as
    LIBLINEAR's ``-b 1`` does; where all of them are 0, labels are equally likely.

    Parameters
    ----------
    model : Model, or what has its labels, weights and description
    scores : ndarray, shape (n,) or (n, n_outputs), float64
        As `Model.decision_function` returns them. One that is not a number counts as the least.

    Returns
    -------
    ndarray, shape (n, n_labels), float64
        Column k belongs to ``model.labels[k]``; rows sum to 1.

    Raises
    ------
    SettingsError
        As `check_probabilities`.
    """
    check_probabilities(model)
    z = finite(scores).reshape(len(scores), model.W.shape[1])
    if model.info.get("calibration") is not None:
        kind, values = _calibration(model)
        if kind == "softmax":
            return _softmax(z, float(values[0]))
        with np.errstate(over="ignore"):  # an infinite one is certain
            z = -(values[0] * z + values[1])
    p = _sigmoid(z)
    if p.shape[1] == 1:
        return np.hstack([_sigmoid(-z), p])  # not 1 - p, which would round a small one to 0
    total = p.sum(axis=1, keepdims=True)
    p /= np.where(total > 0, total, 1)
    p[total[:, 0] == 0] = 1 / p.shape[1]
    return p


def finite(scores: _Floats) -> _Floats:
    """Return a copy: the largest finite value for infinite ones, the least for no number."""
    return np.nan_to_num(scores, nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)


def _sigmoid(z: _Floats) -> _Floats:
    e = np.exp(-np.abs(z))
    p: _Floats = np.where(z >= 0, 1.0, e) / (1 + e)
    return p


def _softmax(z: _Floats, T: float) -> _Floats:
    with np.errstate(over="ignore"):  # minus infinity is a probability of 0
        p: _Floats = np.exp((z - z.max(axis=1, keepdims=True)) / T)
    p /= p.sum(axis=1, keepdims=True)
    return p
