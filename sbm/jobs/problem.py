"""From settings and a store to an optimization problem, and from weights to a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SettingsError
from sbm.settings import Settings, format_number, nearest
from sbm.solver.cache import POLICIES
from sbm.solver.losses import Loss, find_loss
from sbm.solver.problem import AnyProblem, MultiProblem, Problem
from sbm.store.blocks import BlockStore
from sbm.store.model import Model

__all__ = ["make_model", "make_problems"]


def make_problems(settings: Settings, store: BlockStore) -> list[AnyProblem]:
    """Turn settings and the labels of a store into optimization problems.

    There is one, but where one-vs-rest divides the classes into groups that share nothing.

    Raises
    ------
    DataError
        The store is empty or its labels do not fit the loss.
    SettingsError
        An unknown loss or policy, a class weight for a label that does not exist, or an option
        that belongs to another loss.
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
    if labels is None:
        raise DataError(
            f"{store.folder} has real-valued labels, {settings.loss} needs classes; "
            "regression is planned, see the README"
        )
    for label in settings.class_weight:
        if label not in labels:
            raise SettingsError(
                f"class_weight names label {format_number(label)}, "
                f"the labels are {_shorten(labels)}"
            )
    if loss.joint and len(labels) < 2:
        raise DataError(
            f"all rows of {store.folder} have the label {format_number(labels[0])}, "
            f"{settings.loss} needs at least two classes"
        )
    _check_multiclass(settings, loss, len(labels))
    weights = [settings.class_weight.get(label, 1.0) for label in labels]
    if loss.joint or len(labels) > 2:
        costs = settings.C * np.array(weights)
        problem = MultiProblem(loss, costs, settings.C, settings.bias, schedule=settings.schedule)
        return list(problem.groups(min(settings.caches, len(labels))))
    # One class alone is a problem like any other: its rows are the positive ones if it is above 0.
    positive = int(np.argmax(labels)) if len(labels) == 2 else (0 if labels[0] > 0 else -1)
    other = 1 - positive if len(labels) == 2 else 0
    return [
        Problem(
            loss=loss,
            cost_positive=settings.C * (weights[positive] if positive >= 0 else 1.0),
            cost_negative=settings.C * weights[other],
            positive=positive,
            bias=settings.bias,
        )
    ]


def _check_multiclass(settings: Settings, loss: Loss, n_labels: int) -> None:
    """Refuse options that mean nothing for this loss and these labels."""
    if settings.schedule != "sample" and loss.name != "weston_watkins":
        raise SettingsError(
            f"schedule is {settings.schedule!r}, which belongs to weston_watkins; "
            f"{loss.name} visits sample by sample"
        )
    many = loss.joint or n_labels > 2
    if settings.policy == "active" and (not many or settings.schedule == "pairs"):
        raise SettingsError(
            "policy active counts the variables of a row, which takes more than two classes or "
            "crammer_singer or weston_watkins, and schedule sample; use policy gradient"
        )
    if settings.caches != 1 and (loss.joint or n_labels < 3):
        raise SettingsError(
            f"caches is {settings.caches}; only one-vs-rest, hinge or squared_hinge with more than "
            "two labels, can have more than one"
        )


def _shorten(labels: list[float]) -> str:
    shown = ", ".join(format_number(label) for label in sorted(labels)[:6])
    return shown + (", ..." if len(labels) > 6 else "")


def make_model(
    store: BlockStore,
    settings: Settings,
    weights: Sequence[npt.NDArray[np.float64]],
    report: dict[str, Any],
) -> Model:
    """Put weights, ids and what is proven of them together; nothing that depends on the clock.

    Parameters
    ----------
    weights : sequence of ndarray, shape (n_weights, n_outputs of the problem), float64
        Of each problem; consumed, where it is a list.
    """
    labels = store.labels or []
    if len(labels) == 1:  # one class alone: the other one has no name
        labels = [0.0, *labels] if labels[0] > 0 else [*labels, 1.0]
    W = _by_label(weights, labels)
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


def _by_label(
    weights: Sequence[npt.NDArray[np.float64]], labels: list[float]
) -> npt.NDArray[np.float64]:
    """Return one array with a column a label, in increasing order; that of two classes as it is."""
    if weights[0].shape[1] == 1 and len(weights) == 1:
        return weights[0]
    place = np.empty(len(labels), np.intp)  # class code -> column
    place[np.argsort(labels)] = np.arange(len(labels))
    W = np.empty((len(weights[0]), len(labels)))
    first = 0
    for part in weights:
        W[:, place[first : first + part.shape[1]]] = part
        first += part.shape[1]
    return W
