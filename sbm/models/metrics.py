"""Metrics of predictions, accumulated batch by batch.

All classes have the same use: ``add`` rows, then read ``result``. `BinaryMetrics` and
`MultiMetrics` also have ``confusion``. Memory does not grow with the number of rows.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.plain import dataclass

_EXACT_ROWS = 1_000_000  # decision values kept for an exact AUC: 9 bytes each, 58 to sort them
_LEAST = 1e-15  # smaller probabilities count as this, so that the log-loss is finite
_BUCKETS = 1 << 20
_DENSE_CLASSES = 2000  # most classes whose pairs are counted in an array, of up to 32 MB
_PENDING = 1 << 20  # pairs of classes kept before they are merged into the counts

_kernels = load("sbm.solver.kernels.decision")


@dataclass(frozen=True)
class Confusion:
    """Sparse confusion matrix: row counts by true and predicted label."""

    labels: Sequence[float | str]  # labels of the model, ascending
    # true, predicted: shape (n_pairs,); positions in `labels`, in ascending order of true, then
    # predicted. In `true`, ``len(labels)`` stands for all labels that the model does not know.
    true: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]  # shape (n_pairs,); rows of each pair, above 0

    @property
    def rows(self) -> int:
        """Total number of rows."""
        return int(self.counts.sum())

    @property
    def correct(self) -> int:
        """Number of rows predicted correctly."""
        return int(self.counts[self.true == self.predicted].sum())

    def triples(self) -> list[list[Any]]:
        """Return ``[true label, predicted label, rows]`` per pair; unknown true labels are None."""
        names = [*self.labels, None]
        pairs = zip(self.true.tolist(), self.predicted.tolist(), self.counts.tolist(), strict=True)
        return [[names[t], names[p], n] for t, p, n in pairs]


class BinaryMetrics:
    """Accuracy, confusion counts, precision, recall, F1 and AUC of two classes.

    The AUC is exact up to 1 million rows. Beyond that, decision values are counted in 2^20 buckets
    of relative width 2^-11, and ties within a bucket count half.

    Parameters
    ----------
    labels : list of float
        Negative label, positive label.
    auc : bool
        Whether to compute the AUC.
    threshold : float
        Larger decision values are positive.
    """

    def __init__(self, labels: list[float], auc: bool = True, threshold: float = 0.0) -> None:
        self.labels, self.threshold = labels, threshold
        self._with_auc = auc
        self._counts = np.zeros((3, 2), np.int64)  # true negative/positive/other x predicted
        self._scores: list[npt.NDArray[np.float64]] = []
        self._truth: list[npt.NDArray[np.bool_]] = []
        self._kept = 0
        self._histogram: npt.NDArray[np.int64] | None = None

    @staticmethod
    def bytes_for(rows: int, n: int) -> int:
        """Return the memory for the AUC of `rows` rows in each of `n` objects, read one by one."""
        kept = min(rows, _EXACT_ROWS)
        counts = 16 * _BUCKETS if rows > _EXACT_ROWS else 0
        return n * max(9 * kept, counts) + 58 * kept

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> None:
        """Add rows.

        Parameters
        ----------
        y : ndarray, shape (n,), float64
            True labels; unknown labels count as wrong.
        scores : ndarray, shape (n,), float64
            Decision values.
        """
        y, scores = np.ascontiguousarray(y, np.float64), np.ascontiguousarray(scores)
        known, truth = np.empty(len(y)), np.empty(len(y), np.bool_)
        given = (y, scores, *self.labels, self.threshold)
        n = _kernels.judge(*given, self._counts, known, truth)
        if not self._with_auc:
            return
        if n < len(y):
            known, truth = known[:n].copy(), truth[:n].copy()
        self._scores.append(known)
        self._truth.append(truth)
        self._kept += n
        if self._histogram is not None or self._kept > _EXACT_ROWS:
            self._fold()

    def _fold(self) -> None:
        """Count the kept decision values in the histogram."""
        if self._histogram is None:
            self._histogram = np.zeros((2, _BUCKETS), np.int64)
        for scores, truth in zip(self._scores, self._truth, strict=True):
            _kernels.count_buckets(scores, truth, self._histogram)
        self._scores, self._truth, self._kept = [], [], 0

    def by_score(
        self,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the decision values, ascending, and the negative and positive rows of each."""
        if self._histogram is not None:
            used = np.flatnonzero(self._histogram.any(axis=0))
            return _largest_in(used), self._histogram[0, used], self._histogram[1, used]
        scores = np.concatenate([*self._scores, np.empty(0)])
        truth = np.concatenate([*self._truth, np.empty(0, np.bool_)])
        values, where = np.unique(scores, return_inverse=True)
        negative = np.bincount(where[~truth], minlength=len(values))
        return values, negative, np.bincount(where[truth], minlength=len(values))

    def choose_threshold(self, costs: tuple[float, float] | None = None) -> float:
        """Return the threshold with the largest F1, or with the smallest cost of wrong rows.

        Of equally good thresholds, the one nearest to 0 is chosen.

        Parameters
        ----------
        costs : (float, float), optional
            Of a false positive and of a false negative. Default: the F1 of the positive class.
        """
        values, negative, positive = self.by_score()
        least = 2 * min(float(values[0]), 0.0) - 1
        thresholds = np.concatenate([[least], values])  # larger values are positive
        missed = np.concatenate([[0], np.cumsum(positive)])
        false = negative.sum() - np.concatenate([[0], np.cumsum(negative)])
        hits = missed[-1] - missed
        if costs is None:
            merit = 2 * hits / np.maximum(2 * hits + false + missed, 1)
        else:
            merit = -(costs[0] * false + costs[1] * missed)
        best = thresholds[merit == merit.max()]
        return float(best[np.argmin(np.abs(best))])

    def curves(self) -> dict[str, list[list[float]]]:
        """Return about 100 points of each curve.

        Returns
        -------
        dict
            ``roc``: pairs of false and true positive rate; ``pr``: pairs of recall and precision.
            Empty lists with a single class.
        """
        _, negative, positive = self.by_score()
        hits, false = np.cumsum(positive[::-1]), np.cumsum(negative[::-1])
        if not len(hits) or not hits[-1] or not false[-1]:
            return {"roc": [], "pr": []}
        recall, fall_out = hits / hits[-1], false / false[-1]
        some = np.unique(np.searchsorted(recall + fall_out, np.linspace(0, 2, 101)[:-1]))
        some = np.append(some, len(hits) - 1)
        precision = hits / (hits + false)
        roc, pr = np.stack([fall_out, recall], 1)[some], np.stack([recall, precision], 1)[some]
        return {"roc": [[0.0, 0.0], *roc.tolist()], "pr": pr.tolist()}

    @staticmethod
    def _pr_auc(negative: npt.NDArray[np.int64], positive: npt.NDArray[np.int64]) -> float | None:
        """Return the average precision: the mean precision over the positive rows."""
        hits, chosen = np.cumsum(positive[::-1]), np.cumsum((positive + negative)[::-1])
        if not len(hits) or not hits[-1]:
            return None
        return float((positive[::-1] * hits / np.maximum(chosen, 1)).sum() / hits[-1])

    @staticmethod
    def _auc(negative: npt.NDArray[np.int64], positive: npt.NDArray[np.int64]) -> float | None:
        """Return the probability that a positive row scores above a negative one; ties are half."""
        pairs = float(negative.sum()) * float(positive.sum())
        if pairs == 0:
            return None
        below = np.cumsum(negative) - negative
        return float((positive * (below + 0.5 * negative)).sum() / pairs)

    def confusion(self) -> Confusion:
        """Return the row counts by true and predicted label."""
        true, predicted = np.nonzero(self._counts)
        return Confusion(self.labels, true, predicted, self._counts[true, predicted])

    def result(self) -> dict[str, Any]:
        """Return all metrics; undefined ones (no rows, one class) are None."""
        counts = self._counts
        rows = int(counts.sum())
        right = int(counts[0, 0] + counts[1, 1])
        _, *by_score = self.by_score()
        return {
            "rows": rows,
            "correct": right,
            "accuracy": right / rows if rows else None,
            "auc": self._auc(*by_score),
            "pr_auc": self._pr_auc(*by_score),
            "auc_exact": self._histogram is None,
            "labels": self.labels,
            "confusion": counts[:2].tolist(),
            "unknown_labels": int(counts[2].sum()),
            "classes": [self._class(k) for k in (0, 1)],
        }

    def _class(self, k: int) -> dict[str, Any]:
        counts = self._counts
        return _class_figures(
            self.labels[k], int(counts[k, k]), int(counts[:, k].sum()), int(counts[k].sum())
        )


def _largest_in(buckets: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Return the largest decision value of each bucket of a histogram."""
    keys = (buckets.astype(np.uint32) << np.uint32(12)) | np.uint32((1 << 12) - 1)
    bits = np.where(keys >= np.uint32(1 << 31), keys & np.uint32((1 << 31) - 1), ~keys)
    with np.errstate(invalid="ignore"):  # NaN in buckets that no number is in
        return bits.view(np.float32).astype(np.float64)


def _class_figures(label: float, hits: int, predicted: int, support: int) -> dict[str, Any]:
    both = predicted + support
    return {
        "label": label,
        "support": support,
        "predicted": predicted,
        "precision": hits / predicted if predicted else None,
        "recall": hits / support if support else None,
        "f1": 2 * hits / both if both else None,
    }


class _DensePairs:
    """Counts of (true, predicted) in an array."""

    def __init__(self, n_true: int, n_predicted: int) -> None:
        self._counts = np.zeros((n_true, n_predicted), np.int64)

    def add(self, true: npt.NDArray[np.int64], predicted: npt.NDArray[np.int32]) -> None:
        np.add.at(self._counts, (true, predicted), 1)

    def items(self) -> tuple[npt.NDArray[np.int64], ...]:
        true, predicted = np.nonzero(self._counts)
        return true, predicted, self._counts[true, predicted]


class _SparsePairs:
    """Sorted counts of the pairs that occur, 16 bytes each."""

    def __init__(self, n_predicted: int) -> None:
        self._n_predicted = n_predicted
        self._keys, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._pending: list[npt.NDArray[np.int64]] = []
        self._n_pending = 0

    def add(self, true: npt.NDArray[np.int64], predicted: npt.NDArray[np.int32]) -> None:
        self._pending.append(true * self._n_predicted + predicted)
        self._n_pending += len(true)
        if self._n_pending >= _PENDING:
            self._fold()

    def _fold(self) -> None:
        """Merge the pending pairs into the counts."""
        new, n_new = np.unique(
            np.concatenate([*self._pending, np.empty(0, np.int64)]), return_counts=True
        )
        keys = np.union1d(self._keys, new)
        counts = np.zeros(len(keys), np.int64)
        counts[np.searchsorted(keys, self._keys)] = self._counts
        counts[np.searchsorted(keys, new)] += n_new
        self._keys, self._counts = keys, counts
        self._pending, self._n_pending = [], 0

    def items(self) -> tuple[npt.NDArray[np.int64], ...]:
        self._fold()
        return self._keys // self._n_predicted, self._keys % self._n_predicted, self._counts


class MultiMetrics:
    """Accuracy, F1, top-N accuracy and confusion counts of any number of classes.

    Averages equal those of scikit-learn with ``zero_division=0`` and ``labels=`` set to the model's
    labels that occur or were predicted. Macro F1 is the mean F1 of these classes. Micro F1 is
    computed from the sums of their counts; it equals the accuracy if the model knows every label.
    A row with an unknown label is wrong and lowers the precision of the predicted class, but adds
    no class to the averages.

    Counts of pairs are an array up to 2,000 classes; beyond that only pairs that occur are kept.

    Parameters
    ----------
    labels : list of float
        Ascending.
    top_n : int
        Number of best predictions considered for the top-N accuracy.
    """

    def __init__(self, labels: list[float], top_n: int = 1) -> None:
        self.labels = labels
        self.top_n = top_n
        self._sorted = np.asarray(labels, np.float64)
        n = len(labels)
        self._pairs = _DensePairs(n + 1, n) if n <= _DENSE_CLASSES else _SparsePairs(n)
        self._top_hits = 0

    def add(self, y: npt.NDArray[np.float64], codes: npt.NDArray[np.int32]) -> None:
        """Add rows.

        Parameters
        ----------
        y : ndarray, shape (n,), float64
            True labels; unknown labels count as wrong.
        codes : ndarray, shape (n, top_n), int32
            Positions in `labels`, best first; the first is the prediction.
        """
        truth = _codes(self._sorted, y)
        self._pairs.add(truth, codes[:, 0])
        self._top_hits += int(np.count_nonzero(codes == truth[:, np.newaxis]))

    def confusion(self) -> Confusion:
        """Return the row counts by true and predicted label."""
        return Confusion(self.labels, *self._pairs.items())

    def result(self) -> dict[str, Any]:
        """Return all metrics; undefined ones (no rows, no such class) are None.

        ``confusion`` is a list of ``[true, predicted, rows]`` in ascending order, of pairs that
        occur. The true label is None for all labels that the model does not know.
        """
        found = self.confusion()
        rows, right, n = found.rows, found.correct, len(self.labels)
        right_pair = found.true == found.predicted
        hits = _sums(found.true[right_pair], found.counts[right_pair], n)
        predicted = _sums(found.predicted, found.counts, n)
        *support, unknown = _sums(found.true, found.counts, n + 1)
        figures = list(map(_class_figures, self.labels, hits, predicted, support))
        f1 = [row["f1"] for row in figures if row["f1"] is not None]
        return {
            "rows": rows,
            "correct": right,
            "accuracy": right / rows if rows else None,
            "macro_f1": sum(f1) / len(f1) if f1 else None,
            "micro_f1": 2 * right / (2 * rows - unknown) if rows else None,
            "top_n": self.top_n,
            "top_accuracy": self._top_hits / rows if rows else None,
            "labels": self.labels,
            "confusion": found.triples(),
            "unknown_labels": unknown,
            "classes": figures,
        }


def _sums(codes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], n: int) -> list[int]:
    """Return the sum of the counts of each code, exactly."""
    sums = np.zeros(n, np.int64)
    np.add.at(sums, codes, counts)
    return sums.tolist()


def _codes(labels: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return positions in ascending labels; ``len(labels)`` for unknown labels."""
    place = np.searchsorted(labels, y)
    return np.where(labels[np.minimum(place, len(labels) - 1)] == y, place, len(labels))


class ProbabilityMetrics:
    """Log-loss of predicted probabilities; with two classes also the Brier score.

    Rows with an unknown label are ignored.

    Parameters
    ----------
    labels : list of float
        Ascending.
    """

    def __init__(self, labels: list[float]) -> None:
        self._labels = np.asarray(labels, np.float64)
        self._counts = np.zeros(len(labels), np.int64)  # rows of each label
        self._log_loss = self._brier = 0.0

    def add(self, y: npt.NDArray[np.float64], p: npt.NDArray[np.float64]) -> None:
        """Add rows.

        Parameters
        ----------
        y : ndarray, shape (n,), float64
            True labels.
        p : ndarray, shape (n, n_labels), float64
            Probabilities of the labels.
        """
        truth = _codes(self._labels, y)
        known = np.flatnonzero(truth < len(self._labels))
        truth = truth[known]
        self._counts += np.bincount(truth, minlength=len(self._counts))
        self._log_loss -= float(np.log(np.maximum(p[known, truth], _LEAST)).sum())
        if len(self._labels) == 2:  # probability of the other label: 1 - p of the true one
            self._brier += float((p[known, 1 - truth] ** 2).sum())

    def result(self) -> dict[str, Any]:
        """Return ``log_loss``: the mean of -log of the true label's probability, at least 1e-15.

        With two classes also ``brier``, the mean squared error of the probability.
        ``base_log_loss`` and ``base_brier`` are those of the share of each label among the rows,
        for every row. All are None without rows with known labels.
        """
        rows = int(self._counts.sum())
        found = {"log_loss": self._log_loss / rows if rows else None}
        share = self._counts / max(1, rows)
        entropy = max(0.0, -math.fsum((share * np.log(np.maximum(share, _LEAST))).tolist()))
        found["base_log_loss"] = entropy if rows else None
        if len(self._labels) == 2:
            found["brier"] = self._brier / rows if rows else None
            found["base_brier"] = float(share[0] * share[1]) if rows else None
        return found


class RegressionMetrics:
    """Errors of regression predictions, R² and squared correlation.

    To avoid cancellation with large values that vary little, targets and predictions are taken
    relative to the first row, and batches are merged by their means (Chan, Golub and LeVeque).
    """

    def __init__(self) -> None:
        self._rows = 0
        self._squared = self._absolute = 0.0  # sums over the errors
        # For targets and predictions: the origin subtracted, the mean of the differences, and the
        # sums of squares and products about that mean.
        self._origin = np.zeros((2, 1))
        self._mean = np.zeros(2)
        self._moments = np.zeros((2, 2))

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> None:
        """Add rows.

        Parameters
        ----------
        y : ndarray, shape (n,), float64
            Targets.
        scores : ndarray, shape (n,), float64
            Predictions.
        """
        n = len(y)
        if n == 0:
            return
        with np.errstate(over="ignore", invalid="ignore"):  # `result` gives None on overflow
            error = np.abs(y - scores)
            self._absolute += float(error.sum())
            self._squared += float((error * error).sum())
            pair = np.stack([y, scores])
            if self._rows == 0:
                self._origin = pair[:, :1].copy()
            pair -= self._origin
            mean = pair.mean(axis=1)
            pair -= mean[:, np.newaxis]
            between = mean - self._mean
            rows = self._rows + n
            self._moments += np.outer(between, between) * (self._rows * n / rows)
            self._moments += [[(a * b).sum() for a in pair] for b in pair]
            self._mean += between * (n / rows)
            self._rows = rows

    def result(self) -> dict[str, Any]:
        """Return all metrics, defined as in scikit-learn and LIBLINEAR (``squared_correlation``).

        Undefined metrics (no rows, targets or predictions all equal) and overflows are None.
        """
        rows = self._rows
        (of_y, both), (_, of_scores) = self._moments.tolist()
        mse = mae = r2 = correlation = math.nan
        if rows:
            mse, mae = self._squared / rows, self._absolute / rows
        if of_y > 0:
            r2 = 1 - self._squared / of_y
        if of_y > 0 and of_scores > 0:
            correlation = min(both / of_y * (both / of_scores), 1.0)
        figures = {"mse": mse, "mae": mae, "r2": r2, "squared_correlation": correlation}
        return {
            "rows": rows,
            **{name: x if math.isfinite(x) else None for name, x in figures.items()},
        }
