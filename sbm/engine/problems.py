"""Create optimization problems from settings and labels, and a model from weights."""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SettingsError
from sbm.losses import LOSSES, Loss
from sbm.models.model import Model
from sbm.models.weights import WindowedWeights
from sbm.settings import Settings, match_weights, nearest
from sbm.solver.gap import proven
from sbm.solver.problem import TOO_LARGE, AnyProblem, MultiProblem, OneClass, Problem
from sbm.store.blocks import BlockStore, kept_generations, names_of
from sbm.units import format_label, format_number, list_some

__all__ = [
    "Labelled",
    "assemble_model",
    "by_label",
    "is_mirrored",
    "label_places",
    "label_warning",
    "make_model",
    "make_problems",
    "model_codes",
    "model_labels",
]


class Labelled(Protocol):
    """What a problem needs to know about the rows of a store or stream."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def labels(self) -> list[float] | None:
        """Label of each class code; None for real-valued labels."""

    @property
    def label_counts(self) -> list[int]:
        """Number of rows of each class code."""

    @property
    def label_names(self) -> list[str]:
        """Word of each class code; empty if labels are numbers."""


def make_problems(
    settings: Settings, rows: Labelled, counts: Sequence[float] | None = None
) -> list[AnyProblem]:
    """Create the optimization problems for settings and labels.

    There is one problem, except for one-vs-rest with more than two classes and losses of one
    variable per row: then each class is a problem of its own.

    Parameters
    ----------
    settings : Settings
    rows : Labelled
    counts : sequence of float, optional
        Sum of row weights per class code. Default: the number of rows.

    Returns
    -------
    list[AnyProblem]

    Raises
    ------
    DataError
        There are no rows, or their labels do not fit the loss.
    SettingsError
        A class weight for an unknown label, an option of another loss, or a cost out of range.
    """
    loss = LOSSES[settings.loss]
    if rows.n_rows == 0:
        raise DataError(f"{rows.name} has no rows; training needs at least one")
    task = settings.problem
    if task == "classification":
        return _classify(settings, loss, rows, counts)
    settings.refuse_conflicts()
    if loss.name == "one_class":
        return [_one_class(settings, loss, rows)]
    if rows.label_names:
        raise DataError(
            f"labels of {rows.name} are words such as {rows.label_names[0]}, but {loss.name} needs "
            "numbers; use a loss for classification"
        )
    C, epsilon = settings.C, 0.0 if loss.name == "squared_error" else settings.epsilon
    _check_costs([C])
    bias, intercept = settings.bias_value, settings.intercept
    return [Problem(loss, C, C, -1, bias, epsilon, classify=False, intercept=intercept)]


def label_warning(settings: Settings, rows: Labelled) -> str | None:
    """Return a warning if labels do not look like classes; otherwise None."""
    labels = rows.labels
    task = settings.problem
    if task != "classification" or not labels:
        return None
    if len(only := _codes_with_rows(rows)) == 1:
        return (
            f"all rows of {rows.name} have the label {label_texts(rows)[only[0]]}; "
            "the model predicts no other"
        )
    odd = [label for label in labels if not float(label).is_integer()]
    if len(labels) > 20 and 2 * len(labels) > rows.n_rows and not rows.label_names:
        odd = odd or labels
    if odd and len(labels) > 2:
        return (
            f"labels of {rows.name} such as {format_number(odd[0])} are treated as "
            f"{len(labels):,} classes; for regression, use --loss epsilon_insensitive"
        )
    return None


def _classify(
    settings: Settings, loss: Loss, rows: Labelled, counts: Sequence[float] | None
) -> list[AnyProblem]:
    """Create the problems for classification."""
    labels = rows.labels
    texts = label_texts(rows)
    if labels is None:
        raise DataError(
            f"{rows.name} has real-valued labels, but {settings.loss} needs classes; "
            "use --loss epsilon_insensitive or another regression loss"
        )
    present = _codes_with_rows(rows)
    if len(present) == 1 and (loss.joint or settings.intercept):
        raise DataError(
            f"all rows of {rows.name} have the label {texts[present[0]]}; "
            f"{settings.loss if loss.joint else 'intercept'} needs at least two classes"
        )
    settings.refuse_conflicts()
    if settings.positive is not None and len(labels) > 2 and len(present) > 1:
        raise SettingsError(
            f"positive names one of two classes, but {rows.name} has {len(labels):,} labels; leave "
            "it out"
        )
    weights = _class_weights(settings, rows, labels, counts)
    _check_costs([settings.C, *(settings.C * weight for weight in weights)])
    is_listed = loss.kind is not None and settings.method == "dual"
    if loss.joint or (len(labels) > 2 and is_listed and len(present) > 1):
        costs = settings.C * np.array(weights)
        return [MultiProblem(loss, costs, settings.C, settings.bias)]

    def one(positive: int, weight: float, other: float) -> Problem:
        C = settings.C
        bias, intercept = settings.bias_value, settings.intercept
        return Problem(loss, C * weight, C * other, positive, bias, intercept=intercept)

    if len(labels) > 2 and len(present) > 1:
        return [one(k, weight, 1.0) for k, weight in enumerate(weights)]
    if len(labels) == 2:
        positive = _positive_code(settings, rows, labels)
        return [one(positive, weights[positive], weights[1 - positive])]
    # A single class is also a valid problem. Its rows are positive if the label is above 0, as they
    # will be if a label on the other side of 0 is added.
    code = present[0]
    return [one(code if labels[code] > 0 else -1, weights[code], weights[code])]


def _class_weights(
    settings: Settings, rows: Labelled, labels: list[float], counts: Sequence[float] | None
) -> list[float]:
    """Return a factor of C for each class code."""
    chosen = settings.class_weight
    if isinstance(chosen, str):  # balanced: every class has the same share of the total cost
        counts = counts or rows.label_counts
        return [sum(counts) / (len(labels) * n) if n else 1.0 for n in counts]
    texts = label_texts(rows)
    weights, unknown = match_weights(chosen, texts)
    if unknown:
        shown = [text for _, text in sorted(zip(labels, texts, strict=True))]
        raise SettingsError(
            f"class_weight names label {format_label(unknown[0])}, but the labels are "
            f"{list_some(shown)}"
        )
    return [1.0 if weight is None else weight for weight in weights]


def _positive_code(settings: Settings, rows: Labelled, labels: list[float]) -> int:
    """Return the class code of the positive one of two labels.

    Raises `SettingsError` if the setting names another label.
    """
    texts, positive = label_texts(rows), settings.positive
    if positive is None:
        return int(np.argmax(labels))
    with contextlib.suppress(ValueError):
        positive = positive if positive in texts else format_number(float(positive) + 0.0)
    if positive not in texts:
        first, second = (text for _, text in sorted(zip(labels, texts, strict=True)))
        raise SettingsError(
            f"positive is {settings.positive}, but the labels are {first} and {second}"
            f"{nearest(positive, texts)}"
        )
    return texts.index(positive)


def _codes_with_rows(rows: Labelled) -> list[int]:
    """Return the class codes that have rows; all of them if their rows are not counted."""
    n = len(rows.labels or [])
    return [k for k, rows_of in enumerate(rows.label_counts) if rows_of] or list(range(n))


def label_texts(rows: Labelled) -> list[str]:
    """Return the label of each class code as text."""
    return rows.label_names or [format_number(label) for label in rows.labels or []]


def _one_class(settings: Settings, loss: Loss, rows: Labelled) -> OneClass:
    return OneClass(loss, settings.nu, float(rows.n_rows))


# Within these bounds, squares of costs and their products stay in the range of a float.
LEAST_COST, MOST_COST = 1e-40, 1e40


def _check_costs(costs: Sequence[float]) -> None:
    """Check that the squares of costs stay in the range of a float; a cost of 0 is valid.

    Raises
    ------
    SettingsError
        C, or C times a class weight, is too small or too large.
    """
    for cost in costs:
        if cost != 0 and not LEAST_COST <= cost <= MOST_COST:
            raise SettingsError(
                f"C times class weight is {format_number(cost)}; it must be between "
                f"{LEAST_COST:g} and {MOST_COST:g}. Scale the feature values instead"
            )


def make_model(
    store: BlockStore,
    settings: Settings,
    problems: Sequence[AnyProblem],
    weights: Sequence[npt.NDArray[np.float64]] | WindowedWeights,
    report: dict[str, Any],
    classes: slice = slice(None),
    in_place: bool = False,
) -> Model:
    """Create the model of a training; its content does not depend on timing.

    Parameters
    ----------
    store : BlockStore
    settings : Settings
    problems : sequence of Problem, MultiProblem or OneClass
    weights : sequence of ndarray, shape (n_weights, n_outputs of the problem), float64
        One array per problem, for the rows as the store scales them; or the weights by class.
    report : dict
        Report of the training.
    classes : slice
        Class codes of the model.
    in_place : bool
        Whether the columns of a single array of weights are sorted in place.

    Returns
    -------
    Model
    """
    facts = {
        "rounds": report["rounds"],
        "certificate": proven(report),
        "converged": report["converged"],
        "passes": report["passes"],
        "updates": report["updates"],
        "rows": store.n_rows,
        "sources": [s for g in kept_generations(store.manifest) for s in g["sources"]],
    }
    if settings.scale != "none":  # the problem that is certified
        facts["certificate"]["scale"] = settings.scale
    if store.scale_rounding is not None:
        facts["certificate"]["scale_rounding"] = store.scale_rounding
    facts |= {
        k: report[k]
        for k in ("solver", "switched_after", "validation")
        if report.get(k) is not None
    }
    if settings.prune is not None:
        facts["pruned"] = settings.prune
    if (names := names_of(store.manifest)) is not None:
        facts["names"] = names
    if isinstance(weights, WindowedWeights):
        weights = weights.arranged(model_codes(problems[0], store), store.scales)
    else:
        weights = [store.unscaled(W) for W in weights]
        if store.scales is not None and not all(np.isfinite(W).all() for W in weights):
            raise DataError(TOO_LARGE)
    ids = store.read_feature_ids()
    model = assemble_model(ids, store, settings, problems, weights, facts, classes, in_place)
    model.names = store.read_names()
    return model


def assemble_model(
    ids: npt.NDArray[np.int64],
    rows: Labelled,
    settings: Settings,
    problems: Sequence[AnyProblem],
    weights: Sequence[npt.NDArray[np.float64]] | WindowedWeights,
    facts: dict[str, Any],
    classes: slice = slice(None),
    in_place: bool = False,
) -> Model:
    """Create a model from weights, feature ids and labels.

    A one-class model stores its offset as a bias weight; a regression model has no labels.

    Parameters
    ----------
    ids : ndarray, shape (n_features,), int64
    rows : Labelled
        The rows of the training.
    settings, problems
        Those of the training.
    weights : sequence of ndarray, shape (n_weights, n_outputs of the problem), float64
        W of each problem, including the row of the bias feature; or weights by class, arranged.
    facts : dict
        Further entries of `Model.info`.
    classes : slice
        Class codes of the weights.
    in_place : bool
        See `make_model`.

    Returns
    -------
    Model
    """
    problem, known = problems[0], range(len(rows.labels or []))[classes]
    codes = [code for code in model_codes(problem, rows) if code in known]
    n, bias = len(ids), settings.bias_value
    W: Any
    if isinstance(weights, WindowedWeights):
        W, bias_weights = weights.first(n), weights.row(n) if bias else np.zeros(len(codes))
    else:
        W = by_label(weights, [code - known.start for code in codes], in_place)
        bias_weights = W[n] if bias else np.zeros(W.shape[1])
        W = W[:n]
    if len(codes) == 1 and isinstance(problem, Problem) and problem.positive != codes[0]:
        W, bias_weights = 0.0 - W, 0.0 - bias_weights  # a large value stands for the only label
    if isinstance(problem, OneClass):
        bias, bias_weights = 1.0, np.array([-problem.rho])
    chosen = settings.to_dict()
    # No result depends on them, or `facts` has them.
    for name in ("threads", "checkpoint_every", "validate", "metric", "threshold"):
        del chosen[name]
    return Model(
        ids=ids,
        W=W,
        labels=_labels_of(problem, rows, codes),
        bias=bias,
        bias_weights=bias_weights,
        info={"loss": settings.loss, "C": settings.C, "settings": chosen, **facts},
        label_names=[rows.label_names[code] for code in codes] if rows.label_names else [],
    )


def _labels_of(problem: AnyProblem, rows: Labelled, codes: Sequence[int]) -> list[float]:
    if isinstance(problem, OneClass):
        return [-1.0, 1.0]
    return [(rows.labels or [])[code] for code in codes]


def model_codes(problem: AnyProblem, rows: Labelled) -> list[int]:
    """Return the class codes in the order of the model's labels; none for targets.

    If all rows have the same label, the model has no other. A model of two labels with one decision
    value has the negative and then the positive one; others are in ascending order.
    """
    if not problem.classify:
        return []
    labels, present = rows.labels or [], _codes_with_rows(rows)
    if len(present) == 1:
        return present
    if len(labels) == 2 and isinstance(problem, Problem):
        return [1 - problem.positive, problem.positive]
    return sorted(range(len(labels)), key=labels.__getitem__)


def model_labels(problem: AnyProblem, rows: Labelled) -> list[float]:
    """Return the labels of the model in its order; none for targets."""
    return _labels_of(problem, rows, model_codes(problem, rows))


def is_mirrored(positive: int | None, problem: AnyProblem) -> bool:
    """Return whether the two classes of a problem are swapped, given the positive code before.

    A single class is code 0.
    """
    if positive is None or not problem.classify or not isinstance(problem, Problem):
        return False
    return (positive == 0) != (problem.positive == 0)


def label_places(problem: AnyProblem, rows: Labelled) -> npt.NDArray[np.intp]:
    """Return the position of each class code among the model's labels, shape (n,)."""
    codes = model_codes(problem, rows)
    places = np.zeros(len(rows.labels or []), np.intp)
    places[codes] = np.arange(len(codes))
    return places


def by_label(
    weights: Sequence[npt.NDArray[np.float64]], codes: Sequence[int], in_place: bool = False
) -> npt.NDArray[np.float64]:
    """Sort the columns of several arrays by label.

    Parameters
    ----------
    weights : sequence of ndarray, shape (n, any), float64
        Weights or decision values of each problem, by class code.
    codes : sequence of int
        Class codes in the order of the model's labels; see `model_codes`.
    in_place : bool
        Whether a single array is sorted in place.

    Returns
    -------
    ndarray, shape (n, n_labels), float64
        A single array in this order, or of one column, is returned unchanged.
    """
    is_sorted = weights[0].shape[1] == 1 or list(codes) == list(range(len(codes)))
    if len(weights) == 1 and is_sorted:
        return weights[0]
    if in_place and len(weights) == 1:
        for part in np.array_split(weights[0], 1 + len(weights[0]) // 16384):
            part[:] = part[:, codes]
        return weights[0]
    place = np.empty(len(codes), np.intp)  # class code -> column
    place[list(codes)] = np.arange(len(codes))
    W = np.empty((len(weights[0]), len(codes)))
    first = 0
    for part in weights:
        W[:, place[first : first + part.shape[1]]] = part
        first += part.shape[1]
    return W
