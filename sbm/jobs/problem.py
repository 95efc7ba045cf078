"""From settings and a store to an optimization problem, and from weights to a model."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SettingsError
from sbm.settings import Settings, format_number, nearest
from sbm.solver.cache import POLICIES
from sbm.solver.losses import find_loss
from sbm.solver.problem import Problem
from sbm.store.blocks import BlockStore
from sbm.store.model import Model

__all__ = ["make_model", "make_problem"]


def make_problem(settings: Settings, store: BlockStore) -> Problem:
    """Turn settings and the labels of a store into an optimization problem.

    Raises
    ------
    DataError
        The store is empty or its labels are not two classes.
    SettingsError
        An unknown loss or policy, or a class weight for a label that does not exist.
    """
    loss = find_loss(settings.loss)
    if settings.policy not in POLICIES:
        raise SettingsError(
            f"unknown policy {settings.policy!r}, known are {', '.join(POLICIES)}"
            f"{nearest(settings.policy, POLICIES)}"
        )
    if store.n_rows == 0:
        raise DataError(f"{store.folder} holds no rows; nothing can be trained on it")
    labels = store.labels
    if labels is None or len(labels) > 2:
        kind = "real-valued labels" if labels is None else f"{len(labels)} different labels"
        shown = "" if labels is None else f" ({_shorten(labels)})"
        raise DataError(
            f"{store.folder} has {kind}{shown}, {settings.loss} needs two; make the labels binary, "
            "multi-class losses (crammer_singer, weston_watkins, one-vs-rest) and regression are "
            "planned, see the README"
        )
    for label in settings.class_weight:
        if label not in labels:
            raise SettingsError(
                f"class_weight names label {format_number(label)}, "
                f"the labels are {_shorten(labels)}"
            )
    # One class alone is a problem like any other: its rows are the positive ones if it is above 0.
    positive = int(np.argmax(labels)) if len(labels) == 2 else (0 if labels[0] > 0 else -1)
    weights = [settings.class_weight.get(label, 1.0) for label in labels]
    other = 1 - positive if len(labels) == 2 else 0
    return Problem(
        loss=loss,
        cost_positive=settings.C * (weights[positive] if positive >= 0 else 1.0),
        cost_negative=settings.C * weights[other],
        positive=positive,
        bias=settings.bias,
    )


def _shorten(labels: list[float]) -> str:
    shown = ", ".join(format_number(label) for label in sorted(labels)[:6])
    return shown + (", ..." if len(labels) > 6 else "")


def make_model(
    store: BlockStore, settings: Settings, W: npt.NDArray[np.float64], report: dict[str, Any]
) -> Model:
    """Put weights, ids and what is proven of them together; nothing that depends on the clock."""
    labels = store.labels or []
    if len(labels) == 1:  # one class alone: the other one has no name
        labels = [0.0, *labels] if labels[0] > 0 else [*labels, 1.0]
    proven = ("primal", "dual", "gap", "relative_gap", "drift", "n_support", "n_free")
    n = store.n_features
    chosen = settings.to_dict()
    del chosen["threads"]  # no result depends on it
    return Model(
        ids=store.read_feature_ids(),
        W=W[:n],
        labels=sorted(labels),
        bias=settings.bias,
        bias_weights=W[n] if settings.bias else np.zeros(W.shape[1]),
        info={
            "loss": settings.loss,
            "C": settings.C,
            "settings": chosen,
            "rounds": report["rounds"],
            "certificate": {name: report[name] for name in proven},
            "converged": report["converged"],
            "passes": report["passes"],
            "updates": report["updates"],
            "rows": store.n_rows,
            "sources": [s for g in store.manifest["generations"] for s in g["sources"]],
        },
    )
