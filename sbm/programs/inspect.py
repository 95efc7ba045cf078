"""Inspect: the weights of a model in words, and what changed between two models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import require_number, require_path
from sbm.models.liblinear import load_model
from sbm.models.model import Model

Floats = npt.NDArray[np.float64]


def inspect(
    model: str | Path | Model, newer: str | Path | Model | None = None, *, top: int = 10
) -> dict[str, Any]:
    """Describe the weights of a model, or the changes from one model to another.

    Parameters
    ----------
    model : str, Path or Model
        A model of sbm or LIBLINEAR.
    newer : str, Path or Model, optional
        Model to compare with.
    top : int
        Number of largest and of smallest weights, or of changes, per class.

    Returns
    -------
    dict
        ``model``, ``loss``, ``labels``, ``features`` (of the training data), ``weights`` (of all
        features and outputs), ``nonzero_weights``, ``nonzero_share``, ``scale`` (how features were
        scaled while training), ``threshold`` (of two classes) and ``classes``: for each output its
        ``label``, ``intercept``, ``nonzero_weights``, ``l1_norm``, ``l2_norm``, ``largest_weight``,
        and the lists ``top`` and ``bottom`` of features with ``id``, ``name`` (or None) and
        ``weight``.

        With `newer`, instead: ``models`` (both names), ``labels_added``, ``labels_removed``,
        ``features_added``, ``features_removed`` (features with nonzero weights) and ``classes``:
        for each label of both its ``label``, ``cosine`` (None if a model has no weights),
        ``l2_change``, ``intercepts`` and the list ``changes`` of features with ``id``, ``name``,
        ``before`` and ``after``, the largest change first.

    Raises
    ------
    SettingsError
        `top` is below 1.
    StoreError
        A model cannot be read.
    """
    require_number("top", top, 1)
    first, name = _opened(model)
    if newer is None:
        return _describe(first, name, top)
    second, newer_name = _opened(newer)
    return _compare(first, second, top) | {"models": [name, newer_name]}


def _opened(model: str | Path | Model) -> tuple[Model, str | None]:
    if not isinstance(model, Model):
        require_path(model, "the model")
    return load_model(model), None if isinstance(model, Model) else str(model)


def _describe(model: Model, name: str | None, top: int) -> dict[str, Any]:
    n_features, n_outputs = len(model.ids) + len(model.zero_ids), model.W.shape[1]
    nonzero, labels = model.n_nonzero, _labels(model)
    return {
        "model": name,
        "loss": model.info.get("loss"),
        "labels": model.classes_.tolist(),
        "features": n_features,
        "weights": n_features * n_outputs,
        "nonzero_weights": nonzero,
        "nonzero_share": nonzero / max(1, n_features * n_outputs),
        "threshold": model.threshold if len(model.labels) == 2 else None,
        "scale": model.info.get("settings", {}).get("scale", "none"),
        "classes": [
            {"label": label, **_describe_output(model, output, top)}
            for output, label in enumerate(labels)
        ],
    }


def _describe_output(model: Model, output: int, top: int) -> dict[str, Any]:
    rows, w = model.column(output)
    ends = [model.ranked(rows, w, n) for n in (top, -top)]
    largest, smallest = (
        [
            {**_feature(model, row), "weight": x}
            for row, x in zip(end[0].tolist(), end[1].tolist(), strict=True)
        ]
        for end in ends
    )
    return {
        "intercept": float(model.bias * model.bias_weights[output]),
        "nonzero_weights": len(w),
        "l1_norm": float(np.abs(w).sum()),
        "l2_norm": float(np.sqrt(w @ w)),
        "largest_weight": float(np.abs(w).max(initial=0.0)),
        "top": largest,
        "bottom": smallest,
    }


def _labels(model: Model) -> list[Any]:
    """Return the label that a large decision value of each output stands for; None for numbers."""
    classes: list[Any] = model.classes_.tolist()
    if not classes:
        return [None]
    return classes[-1:] if model.W.shape[1] == 1 else classes


def _feature(model: Model, row: int) -> dict[str, Any]:
    named = model.feature_name(row)
    return {"id": int(model.ids[row]), "name": named if isinstance(named, str) else None}


def _mirrored(model: Model) -> Model:
    """Return the same model of two labels with the other one as the positive label."""
    W, bias_weights = 0.0 - np.asarray(model.W), 0.0 - model.bias_weights
    labels, names = model.labels[::-1], model.label_names[::-1]
    return replace(model, W=W, bias_weights=bias_weights, labels=labels, label_names=names)


def _compare(before: Model, after: Model, top: int) -> dict[str, Any]:
    if before.W.shape[1] == 1 and before.classes_.tolist()[::-1] == after.classes_.tolist():
        before = _mirrored(before) if len(before.labels) == 2 else before
    ours, theirs = before.classes_.tolist(), after.classes_.tolist()
    outputs = {label: k for k, label in enumerate(_labels(after))}
    pairs = [(k, label, outputs.get(label)) for k, label in enumerate(_labels(before))]
    ids = np.union1d(before.ids, after.ids)
    places = [np.searchsorted(ids, model.ids) for model in (before, after)]
    was, now = np.zeros((2, len(ids)), np.bool_)
    was[places[0]], now[places[1]] = before.W.any(axis=1), after.W.any(axis=1)
    models = (after, before)

    def weights(model: Model, place: npt.NDArray[np.intp], output: int) -> Floats:
        rows, some = model.column(output)
        w = np.zeros(len(ids))
        w[place[rows]] = some
        return w

    return {
        "labels_added": [label for label in theirs if label not in ours],
        "labels_removed": [label for label in ours if label not in theirs],
        "features_added": int(np.count_nonzero(now & ~was)),
        "features_removed": int(np.count_nonzero(was & ~now)),
        "classes": [
            {
                "label": label,
                "intercepts": [
                    float(m.bias * m.bias_weights[j]) for m, j in ((before, k), (after, other))
                ],
                **_changes(
                    ids,
                    weights(before, places[0], k),
                    weights(after, places[1], other),
                    models,
                    top,
                ),
            }
            for k, label, other in pairs
            if other is not None
        ],
    }


def _changes(
    ids: npt.NDArray[np.int64], w: Floats, v: Floats, models: tuple[Model, Model], top: int
) -> dict[str, Any]:
    change = np.abs(v - w)
    length = float(np.sqrt((w @ w) * (v @ v)))
    order = np.argsort(-change, kind="stable")[:top]
    return {
        "cosine": float(w @ v) / length if length else None,
        "l2_change": float(np.sqrt(change @ change)),
        "changes": [
            {
                "id": int(ids[k]), "name": _name_in(models, int(ids[k])),
                "before": float(w[k]), "after": float(v[k]),
            }
            for k in order[change[order] > 0].tolist()
        ],
    }  # fmt: skip


def _name_in(models: tuple[Model, Model], identity: int) -> str | None:
    for model in models:
        rows = np.flatnonzero(model.ids == identity)
        if len(rows) and isinstance(name := model.feature_name(int(rows[0])), str):
            return name
    return None
