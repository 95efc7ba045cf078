"""Label probabilities from decision values, and their calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError

_Floats = npt.NDArray[np.float64]
_Look = Callable[[float, float], tuple[float, ...]]

_PIECE = 1 << 15  # decision values processed at a time; they fit in the processor's cache
_ITERATIONS = 100
_LARGEST = float(np.finfo(np.float64).max)
_SMALLEST = float(np.finfo(np.float64).tiny)


def calibrate(scores: _Floats, codes: npt.NDArray[np.integer], *, joint: bool) -> dict[str, Any]:
    """Fit probabilities to decision values of held-out rows.

    Needs a few hundred kilobytes of memory, plus a copy of the decision values if rows are
    excluded.

    Parameters
    ----------
    scores : ndarray, shape (n,) or (n, n_outputs), float64
        Decision values. With a single output, values above 0 mean the second label.
    codes : ndarray, shape (n,), integer
        Positions of the true labels in the labels of the model. Rows with other codes
        (-1, or the number of labels) are excluded.
    joint : bool
        Whether all labels share one loss (``crammer_singer``, ``weston_watkins``).

    Returns
    -------
    dict
        For ``model.info["calibration"]``: ``{"kind": "platt", "A": [..], "B": [..], "rows": n}``
        with one entry per output, or ``{"kind": "softmax", "T": t, "rows": n}`` for joint losses.
    """
    if scores.ndim == 1:
        scores = scores[:, np.newaxis]
    n_outputs = scores.shape[1]
    known = (codes >= 0) & (codes < max(2, n_outputs))
    if not known.all():
        scores, codes = scores[known], codes[known]
    if joint:
        return {"kind": "softmax", "T": fit_softmax(scores, codes), "rows": len(codes)}
    positive = [1] if n_outputs == 1 else range(n_outputs)
    fitted = [fit_platt(scores[:, k], codes == code) for k, code in enumerate(positive)]
    return {
        "kind": "platt",
        "A": [a for a, _ in fitted],
        "B": [b for _, b in fitted],
        "rows": len(codes),
    }


def fit_platt(scores: _Floats, positive: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Fit ``p = 1 / (1 + exp(A f + B))`` to decision values f.

    Maximum-likelihood fit to Platt's targets, (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), by Newton's
    method with step halving. Decision values are centred and scaled internally, so nothing
    overflows; if all are equal, A is 0.

    Parameters
    ----------
    scores : ndarray, shape (n,), float64
        Decision values of held-out rows.
    positive : ndarray, shape (n,), bool

    Returns
    -------
    tuple of float
        A and B, always finite. A is below 0 if the decision values are informative.
    """
    n = len(scores)
    n_positive = int(np.count_nonzero(positive))
    n_negative = n - n_positive
    high, low = (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2)
    start = math.log((n_negative + 1) / (n_positive + 1))
    if n == 0:
        return 0.0, start
    unit, centre, width = _spread(scores)

    def look(a: float, b: float) -> tuple[float, ...]:
        """Return the mean loss, its two first and its three second derivatives."""
        sums = np.zeros(6)
        for piece in _pieces(n, 1):
            u = (finite(scores[piece]) / unit - centre) / width
            t = np.where(positive[piece], high, low)
            v = a * u + b
            e = np.exp(-np.abs(v))
            loss = np.where(v >= 0, t, t - 1) * v + np.log1p(e)
            residual = t - np.where(v >= 0, e, 1.0) / (1 + e)
            weight = e / (1 + e) ** 2
            columns = (loss, residual * u, residual, weight * u * u, weight * u, weight)
            sums += [column.sum() for column in columns]
        return tuple((sums / n).tolist())

    with np.errstate(over="ignore", invalid="ignore"):
        a, b = _newton(look, 0.0, start)
    return _clip(a / width / unit), _clip(b - a * centre / width)


def _newton(look: _Look, a: float, b: float) -> tuple[float, float]:
    """Minimise a convex function of two numbers."""
    value, g_a, g_b, h_aa, h_ab, h_bb = look(a, b)
    for _ in range(_ITERATIONS):
        # The ridge is relative to the diagonal: the same steps whatever the scale of a and b.
        h_aa, h_bb = h_aa * (1 + 1e-12), h_bb * (1 + 1e-12)
        determinant = h_aa * h_bb - h_ab * h_ab
        if determinant > 0:
            d_a = (h_ab * g_b - h_bb * g_a) / determinant
            d_b = (h_ab * g_a - h_aa * g_b) / determinant
        else:
            d_a, d_b = 0.0, -g_b / h_bb if h_bb > 0 else 0.0
        slope = d_a * g_a + d_b * g_b
        if not (math.isfinite(d_a) and math.isfinite(d_b) and slope < 0):
            break
        step = 1.0
        while step >= 1e-10:
            found = look(a + step * d_a, b + step * d_b)
            # Near the optimum the decrease is smaller than the rounding error of the value.
            if found[0] <= value + 1e-4 * step * slope + 1e-14 * value:
                break
            step /= 2
        else:
            break
        a, b = a + step * d_a, b + step * d_b
        value, g_a, g_b, h_aa, h_ab, h_bb = found
        if slope > -1e-18:
            break
    return a, b


def fit_softmax(scores: _Floats, codes: npt.NDArray[np.integer]) -> float:
    """Fit the temperature T of ``softmax(z / T)`` to decision values z.

    Minimises the log-loss at targets like Platt's: (n + 1) / (n + 2) for the true label of each of
    n rows, the remainder shared by the other labels. So probabilities are not all 0 or 1 if every
    row is predicted correctly. If decision values are uninformative, T is so large that all labels
    are about equally likely.

    Parameters
    ----------
    scores : ndarray, shape (n, n_labels), float64
        Decision values of held-out rows.
    codes : ndarray, shape (n,), integer
        Columns of the true labels.

    Returns
    -------
    float
        Always finite and above 0.
    """
    n, n_labels = scores.shape

    def gaps() -> Iterator[tuple[_Floats, npt.NDArray[np.integer]]]:
        """Yield each row's largest decision value minus its decision values, in pieces."""
        for piece in _pieces(n, n_labels):
            z = finite(scores[piece]) / 2  # so that no difference overflows
            yield z.max(axis=1, keepdims=True) - z, codes[piece]

    width = max((float(gap.max()) for gap, _ in gaps()), default=0.0)
    if width == 0:
        return 1.0
    other = 1 / (n + 2) / (n_labels - 1)
    true = (n + 1) / (n + 2) - other  # beyond what every label has

    def look(beta: float) -> tuple[float, float]:
        """Return the mean first and second derivative by the inverse temperature."""
        slope = curvature = 0.0
        for gap, code in gaps():
            u = gap / width
            p = np.exp(-beta * u)
            p /= p.sum(axis=1, keepdims=True)
            mean = (p * u).sum(axis=1)
            wanted = true * u[np.arange(len(u)), code] + other * u.sum(axis=1)
            slope += float((wanted - mean).sum())
            curvature += float((p * (u - mean[:, np.newaxis]) ** 2).sum())
        return slope / n, curvature / n

    beta = _increasing_root(look, 1e-4, 1e30)
    return min(max(2 * (width / beta), _SMALLEST), _LARGEST)


def _increasing_root(
    look: Callable[[float], tuple[float, float]], low: float, high: float
) -> float:
    """Return the root of an increasing function with derivative, or the nearer end of the range."""
    x = 1.0
    for _ in range(_ITERATIONS):
        value, slope = look(x)
        low, high = (x, high) if value < 0 else (low, x)
        newton = x - value / slope if slope > 0 else math.nan
        last, x = x, newton if low <= newton <= high else math.sqrt(low) * math.sqrt(high)
        if abs(x - last) <= 1e-13 * x:
            break
    return x


def _pieces(n: int, n_columns: int) -> Iterator[slice]:
    step = max(1, _PIECE // n_columns)
    for begin in range(0, n, step):
        yield slice(begin, begin + step)


def _spread(scores: _Floats) -> tuple[float, float, float]:
    """Return unit, centre and width: ``(f / unit - centre) / width`` is between -1 and 1.

    The unit is a power of two, so dividing by it is exact. The width of equal values is 1.
    """
    largest = 0.0
    for piece in _pieces(len(scores), 1):
        largest = max(largest, float(np.abs(finite(scores[piece])).max()))
    unit = math.ldexp(1.0, max(math.frexp(largest)[1] - 1, -1022))
    low, high, total = math.inf, -math.inf, 0.0
    for piece in _pieces(len(scores), 1):
        u = finite(scores[piece]) / unit
        low, high, total = min(low, float(u.min())), max(high, float(u.max())), total + u.sum()
    centre = min(max(float(total) / len(scores), low), high)
    return unit, centre, max(high - centre, centre - low) or 1.0


def _clip(x: float) -> float:
    return min(max(x, -_LARGEST), _LARGEST)


class Scored(Protocol):
    """Attributes of a model needed for probabilities; see `sbm.Model`."""

    @property
    def labels(self) -> list[float]:
        """Ascending; empty for regression."""

    @property
    def W(self) -> _Floats:
        """Shape (n_features, n_outputs)."""

    @property
    def info(self) -> dict[str, Any]:
        """Has ``loss``, and ``calibration`` if the model is calibrated."""


def check_probabilities(model: Scored) -> None:
    """Check that a model has probabilities.

    Raises `SettingsError` if it is a regression model, or has neither ``log_loss`` nor a valid
    calibration.
    """
    if not model.labels:
        raise SettingsError(
            "this is a regression model, which has no probabilities; leave out --probability"
        )
    loss = model.info.get("loss", "unknown")
    if model.info.get("calibration") is not None:
        _calibration(model)
    elif loss == "one_class":
        raise SettingsError(
            "this model has no probabilities: its loss is one_class, which is trained on one "
            "label only; leave out --probability"
        )
    elif loss != "log_loss":
        raise SettingsError(
            f"this model has no probabilities: its loss is {loss} and it was trained without "
            "--calibrate; train it with --calibrate or --loss log_loss"
        )


def has_probabilities(model: Scored) -> bool:
    """Return whether a model has probabilities."""
    try:
        check_probabilities(model)
    except SettingsError:
        return False
    return True


def _calibration(model: Scored) -> tuple[str, _Floats]:
    """Return kind and parameters: rows A and B, shape (2, n_outputs), or T, shape (1,)."""
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
            f"the calibration of this model is invalid for {outputs} "
            f"output{'' if outputs == 1 else 's'}; train it again with --calibrate"
        )
    return kind, values


def probabilities(model: Scored, scores: _Floats) -> _Floats:
    """Return the probabilities of the labels, given decision values.

    Calibrated models use Platt's sigmoid or the softmax; others (``log_loss``) the sigmoid of the
    decision value. With several labels, one against the rest, the sigmoids are divided by their
    sum, as in LIBLINEAR's ``-b 1``; if all are 0, the labels are equally likely. The probability of
    a single label is 1.

    Parameters
    ----------
    scores : ndarray, shape (n,) or (n, n_outputs), float64
        As returned by `Model.decision_function`. NaN counts as the lowest value.

    Returns
    -------
    ndarray, shape (n, n_labels), float64
        Column k belongs to ``model.labels[k]``; rows sum to 1.

    Raises
    ------
    SettingsError
        As for `check_probabilities`.
    """
    check_probabilities(model)
    z = finite(scores).reshape(len(scores), model.W.shape[1])
    if model.info.get("calibration") is not None:
        kind, values = _calibration(model)
        if kind == "softmax":
            return _softmax(z, float(values[0]))
        with np.errstate(over="ignore"):  # infinity is a probability of 0 or 1
            z = -(values[0] * z + values[1])
    return sigmoids(z, len(model.labels))


def sigmoids(scores: _Floats, n_labels: int) -> _Floats:
    """Return the probabilities of labels whose decision values are log odds, rows sum to 1.

    Parameters
    ----------
    scores : ndarray, shape (n, n_outputs), float64
    n_labels : int
        With two labels, there may be one output, of the second one.
    """
    z = finite(scores)
    p = _sigmoid(z)
    if n_labels == 1:
        return np.ones_like(p)
    if p.shape[1] == 1:
        return np.hstack([_sigmoid(-z), p])  # not 1 - p, which rounds small values to 0
    total = p.sum(axis=1, keepdims=True)
    p /= np.where(total > 0, total, 1)
    p[total[:, 0] == 0] = 1 / p.shape[1]
    return p


def finite(scores: _Floats) -> _Floats:
    """Return a copy with infinities clipped to finite values and NaN set to the lowest."""
    return np.nan_to_num(scores, nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)


def _sigmoid(z: _Floats) -> _Floats:
    e = np.exp(-np.abs(z))
    p: _Floats = np.where(z >= 0, 1.0, e) / (1 + e)
    return p


def _softmax(z: _Floats, T: float) -> _Floats:
    with np.errstate(over="ignore"):  # -inf is a probability of 0
        p: _Floats = np.exp((z - z.max(axis=1, keepdims=True)) / T)
    p /= p.sum(axis=1, keepdims=True)
    return p
