"""Quality of predictions, collected batch by batch."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BinaryMetrics"]

_EXACT_ROWS = 1_000_000  # decision values kept for an exact AUC: 9 bytes each, 45 to sort them
_BUCKETS = 1 << 20


class BinaryMetrics:
    """Accuracy, confusion counts, precision, recall, F1 and AUC of two classes.

    The AUC is exact up to 1 million rows; beyond, decision values are counted in 2^20 buckets of
    relative width 2^-11, and ties within a bucket count half.

    Parameters
    ----------
    labels : list of float
        Negative label, positive label.
    """

    def __init__(self, labels: list[float]) -> None:
        self.labels = labels
        self._counts = np.zeros((3, 2), np.int64)  # true negative/positive/other x predicted
        self._scores: list[npt.NDArray[np.float64]] = []
        self._truth: list[npt.NDArray[np.bool_]] = []
        self._kept = 0
        self._histogram: npt.NDArray[np.int64] | None = None

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> None:
        """Add rows.

        Parameters
        ----------
        y : ndarray, shape (n,), float64
            True labels; ones that the model does not know count as wrong.
        scores : ndarray, shape (n,), float64
            Decision values; above 0 is positive.
        """
        truth = np.where(y == self.labels[1], 1, np.where(y == self.labels[0], 0, 2))
        self._counts += np.bincount(truth * 2 + (scores > 0), minlength=6).reshape(3, 2)
        known = truth < 2
        self._scores.append(scores[known])
        self._truth.append(truth[known] == 1)
        self._kept += int(np.count_nonzero(known))
        if self._histogram is not None or self._kept > _EXACT_ROWS:
            self._fold()

    def _fold(self) -> None:
        """Turn kept decision values into counts."""
        if self._histogram is None:
            self._histogram = np.zeros((2, _BUCKETS), np.int64)
        with np.errstate(over="ignore"):  # beyond float32 they share the last bucket
            scores = np.concatenate(self._scores).astype(np.float32)
        truth = np.concatenate(self._truth)
        bits = (scores + np.float32(0)).view(np.int32)
        keys = np.where(bits < 0, ~bits.view(np.uint32), bits.view(np.uint32) | np.uint32(1 << 31))
        for positive in (False, True):
            self._histogram[int(positive)] += np.bincount(
                keys[truth == positive] >> np.uint32(12), minlength=_BUCKETS
            )
        self._scores, self._truth, self._kept = [], [], 0

    def _auc(self) -> float | None:
        """Probability that a positive row scores above a negative one, ties half."""
        if self._histogram is None:
            scores = np.concatenate([*self._scores, np.empty(0)])
            truth = np.concatenate([*self._truth, np.empty(0, np.bool_)])
            values, where = np.unique(scores, return_inverse=True)
            negative = np.bincount(where[~truth], minlength=len(values))
            positive = np.bincount(where[truth], minlength=len(values))
        else:
            negative, positive = self._histogram
        pairs = float(negative.sum()) * float(positive.sum())
        if pairs == 0:
            return None
        below = np.cumsum(negative) - negative
        return float((positive * (below + 0.5 * negative)).sum() / pairs)

    def result(self) -> dict[str, Any]:
        """All figures; those without a meaning (no rows, one class) are None."""
        counts = self._counts
        rows = int(counts.sum())
        right = int(counts[0, 0] + counts[1, 1])
        return {
            "rows": rows,
            "correct": right,
            "accuracy": right / rows if rows else None,
            "auc": self._auc(),
            "auc_exact": self._histogram is None,
            "labels": self.labels,
            "confusion": counts[:2].tolist(),
            "unknown_labels": int(counts[2].sum()),
            "classes": [self._class(k) for k in (0, 1)],
        }

    def _class(self, k: int) -> dict[str, Any]:
        counts = self._counts
        hits, predicted, support = int(counts[k, k]), int(counts[:, k].sum()), int(counts[k].sum())
        precision = hits / predicted if predicted else None
        recall = hits / support if support else None
        both = predicted + support
        return {
            "label": self.labels[k],
            "support": support,
            "predicted": predicted,
            "precision": precision,
            "recall": recall,
            "f1": 2 * hits / both if both else None,
        }
