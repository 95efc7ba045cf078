"""Models of several classes, ours and LIBLINEAR's, judged on text by one function."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scripts.bench.data import Floats, parse
from scripts.bench.tools import BenchError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Classifier:
    """A column of weights for each of at least three labels.

    Attributes
    ----------
    ids : ndarray of int64
        Feature ids, increasing.
    W : ndarray of float64, shape (n_features, n_labels)
    labels : ndarray of float64
        Increasing.
    """

    ids: Ints
    W: Floats
    labels: Floats

    def decide(self, text: Path) -> Iterator[tuple[Ints, Floats]]:
        """Yield columns of the labels (-1 for unknown ones) and w·x of some rows at a time."""
        import scipy.sparse

        extended = np.vstack([self.W, np.zeros((1, len(self.labels)))])  # for unknown ids
        for labels, indptr, ids, values in parse(text):
            column = _find(self.ids, ids, len(self.ids))
            X = scipy.sparse.csr_matrix((values, column, indptr), (len(labels), len(extended)))
            yield _find(self.labels, labels, -1), X @ extended


def _find(known: npt.NDArray[np.generic], wanted: npt.NDArray[np.generic], missing: int) -> Ints:
    """Places of values in an increasing array; `missing` where they are not there."""
    place = np.searchsorted(known, wanted).astype(np.int64)
    place[known[np.minimum(place, len(known) - 1)] != wanted] = missing
    return place


# -------------------------------------------------------------------------------------- objectives


def _one_vs_rest(own: Ints, scores: Floats) -> float:
    """Σ max(0, 1 - s f) over rows and classes."""
    signed = scores.copy()
    rows = np.arange(len(own))
    signed[rows, own] *= -1.0
    return float(np.maximum(0.0, 1.0 + signed).sum())


def _excess(own: Ints, scores: Floats) -> Floats:
    """1 - (f_y - f_m) for each other class m; 0 for y itself."""
    rows = np.arange(len(own))
    excess = 1.0 + scores - scores[rows, own][:, None]
    excess[rows, own] = 0.0
    return excess


def _crammer_singer(own: Ints, scores: Floats) -> float:
    """Σ max(0, max over m of 1 - (f_y - f_m)) over rows."""
    return float(_excess(own, scores).max(axis=1).sum())


def _weston_watkins(own: Ints, scores: Floats) -> float:
    """Σ max(0, 1 - (f_y - f_m)) over rows and other classes."""
    return float(np.maximum(0.0, _excess(own, scores)).sum())


LOSSES: dict[str, Callable[[Ints, Floats], float]] = {
    "crammer_singer": _crammer_singer,
    "weston_watkins": _weston_watkins,
    "hinge": _one_vs_rest,
}


def total_objective(text: Path, loss: str, C: float, model: Classifier) -> float:
    """Primal value: ½ Σ |w_m|² + C times the loss of all rows, in float64 from the text.

    Raises
    ------
    BenchError
        The text has a label that the model does not know.
    """
    sum_ = 0.0
    for own, scores in model.decide(text):
        if (own < 0).any():
            raise BenchError(f"{text.name} has labels that the model does not know")
        sum_ += LOSSES[loss](own, scores)
    return 0.5 * float(np.vdot(model.W, model.W)) + C * sum_


def error_rate(text: Path, model: Classifier) -> float:
    """Share of the rows whose largest decision value is not that of their label."""
    wrong = [own != scores.argmax(axis=1) for own, scores in model.decide(text)]
    return float(np.concatenate(wrong).mean())


# ------------------------------------------------------------------------------------------ models


def read_our_classifier(path: Path) -> Classifier:
    """One of our models."""
    from sbm import Model

    model = Model.load(path)
    order = np.argsort(model.ids)
    return Classifier(model.ids[order], model.W[order], np.array(model.labels))


def read_liblinear_classifier(path: Path) -> Classifier:
    """LIBLINEAR's text: a line a feature, a column a label, in order of the line ``label``."""
    head, _, tail = path.read_text("ascii").partition("\nw\n")
    names = next(line.split()[1:] for line in head.splitlines() if line.startswith("label "))
    labels = np.array(names, np.float64)
    W = np.array(tail.split(), np.float64).reshape(-1, len(labels))
    order = np.argsort(labels)
    return Classifier(np.arange(1, len(W) + 1, dtype=np.int64), W[:, order], labels[order])
