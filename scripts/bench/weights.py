"""Linear models, ours and LIBLINEAR's, judged on text by one function."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.bench.data import Floats, Ints, parse

EPSILON = 0.1  # of regression; both programs' own


def find(known: npt.NDArray[Any], wanted: npt.NDArray[Any], missing: int) -> Ints:
    """Places of values in an increasing array; `missing` if they are not there."""
    if not len(known):
        return np.full(len(wanted), missing, np.int64)
    place = np.searchsorted(known, wanted).astype(np.int64)
    place[known[np.minimum(place, len(known) - 1)] != wanted] = missing
    return place


def matrices(text: Path, ids: Ints) -> Iterator[tuple[Floats, Any]]:
    """Yield labels and rows as a matrix, some at a time: a column for each of increasing ids.

    One more column is for all other ids.
    """
    import scipy.sparse

    for labels, indptr, found, values in parse(text):
        column = find(ids, found, len(ids))
        yield labels, scipy.sparse.csr_matrix(
            (values, column, indptr), (len(labels), len(ids) + 1)
        )  # fmt: skip


@dataclass(frozen=True)
class LinearModel:
    """Weights by feature id."""

    ids: Ints  # increasing
    # shape (n_features, n_outputs); a column a label; of two labels one, positive for the larger;
    # one for targets
    W: Floats
    labels: Floats  # increasing; none where labels are targets

    def decide(self, text: Path) -> Iterator[tuple[npt.NDArray[Any], Floats]]:
        """Yield targets or places of the labels (-1 for unknown ones), and w·x, of some rows."""
        extended = np.vstack([self.W, np.zeros((1, self.W.shape[1]))])
        for labels, X in matrices(text, self.ids):
            yield find(self.labels, labels, -1) if len(self.labels) else labels, X @ extended


def margins(own: Ints, scores: Floats) -> Floats:
    """S w·x of each row and output: s is 1 for the row's own label, else -1."""
    if scores.shape[1] == 1:
        return scores * np.where(own == 1, 1.0, -1.0)[:, None]
    signed = -scores
    signed[np.arange(len(own)), own] *= -1.0
    return signed


def _excess(own: Ints, scores: Floats) -> Floats:
    """max(0, 1 - (f_y - f_m)) for each other class m; 0 for y itself."""
    rows = np.arange(len(own))
    excess = 1.0 + scores - scores[rows, own][:, None]
    excess[rows, own] = 0.0
    return np.maximum(0.0, excess)


def _deviation(y: Floats, scores: Floats) -> Floats:
    return np.asarray(np.maximum(0.0, np.abs(y - scores[:, 0]) - EPSILON))


# Losses of all rows; those of margins are of two classes, or of one against the rest.
LOSSES: dict[str, Callable[[Any, Floats], Any]] = {
    "hinge": lambda own, f: np.maximum(0.0, 1.0 - margins(own, f)).sum(),
    "squared_hinge": lambda own, f: (np.maximum(0.0, 1.0 - margins(own, f)) ** 2).sum(),
    "log_loss": lambda own, f: np.logaddexp(0.0, -margins(own, f)).sum(),
    "crammer_singer": lambda own, f: _excess(own, f).max(axis=1).sum(),
    "weston_watkins": lambda own, f: _excess(own, f).sum(),
    "epsilon_insensitive": lambda y, f: _deviation(y, f).sum(),
    "squared_epsilon_insensitive": lambda y, f: (_deviation(y, f) ** 2).sum(),
}


def objective(text: Path, loss: str, C: float, model: LinearModel) -> float:
    """Primal value: ½ |W|² + C times the loss of all rows, in float64 from the text.

    Raises `BenchError` if the text has a label that the model does not know.
    """
    from scripts.bench.tools import BenchError

    total = 0.0
    for y, scores in model.decide(text):
        if len(model.labels) and (y < 0).any():
            raise BenchError(f"{text.name} has labels unknown to the model")
        total += float(LOSSES[loss](y, scores))
    return 0.5 * float(np.vdot(model.W, model.W)) + C * total


def accuracy(text: Path, model: LinearModel) -> float:
    """Share of the rows whose decision is that of their label."""
    right = []
    for own, scores in model.decide(text):
        best = scores.argmax(axis=1) if scores.shape[1] > 1 else scores[:, 0] > 0
        right.append(best == own)
    return float(np.concatenate(right).mean())


def read_ours(path: Path) -> LinearModel:
    """Read one of our models."""
    from sbm import Model

    model = Model.load(path)
    order = np.argsort(model.ids)
    return LinearModel(model.ids[order], model.W[order], np.array(model.labels, np.float64))


def read_liblinear(path: Path) -> LinearModel:
    """Read LIBLINEAR's text: a line a feature, a column a label, in order of the line ``label``."""
    head, _, tail = path.read_text("ascii").partition("\nw\n")
    named = [line.split()[1:] for line in head.splitlines() if line.startswith("label ")]
    labels = np.array(named[0] if named else [], np.float64)
    W = np.array(tail.split(), np.float64).reshape(len(tail.splitlines()), -1)
    ids = np.arange(1, len(W) + 1, dtype=np.int64)
    if len(labels) == 2:  # the first one is positive
        return LinearModel(ids, W if labels[0] > labels[1] else -W, np.sort(labels))
    order = np.argsort(labels) if len(labels) else slice(None)
    return LinearModel(ids, W[:, order], labels[order])
