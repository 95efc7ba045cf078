"""A trained model: weights by feature id, and what is proven of them."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, StoreError
from sbm.store import arrays as container

if TYPE_CHECKING:
    import scipy.sparse

__all__ = ["Model", "check_output"]


def check_output(path: Path) -> None:
    """Refuse a place for a model that cannot be written or holds something else.

    Raises
    ------
    StoreError
        A folder, a file that is no sbm file, or a folder that does not exist.
    """
    if path.is_dir():
        raise StoreError(f"{path} is a folder; give a file name for the model with -o")
    if path.exists() and not container.is_container(path):
        raise StoreError(f"{path} exists and is no model; choose another name with -o")
    if not path.parent.is_dir():
        raise StoreError(f"{path.parent} is no folder; make it, or choose another place with -o")


@dataclass
class Model:
    """A linear model.

    Attributes
    ----------
    ids : ndarray, shape (n_features,), int64
        Feature id of each row of `W`.
    W : ndarray, shape (n_features, n_outputs), float64
        Binary models have one output; its sign tells the class. Multi-class models (of two classes,
        too) have one for each label; the largest tells the class.
    labels : list of float
        In ascending order, column k of `W` belongs to the k-th; binary: [negative, positive].
    bias : float
        Value of the extra feature; 0 for none.
    bias_weights : ndarray, shape (n_outputs,), float64
        Weights of the extra feature; default: zeros.
    info : dict
        Loss, C, settings, certificate, whether training converged, sources; as JSON holds them.
    """

    ids: npt.NDArray[np.int64]
    W: npt.NDArray[np.float64]
    labels: list[float]
    bias: float = 0.0
    bias_weights: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bias_weights.size == 0 and self.bias == 0:
            self.bias_weights = np.zeros(self.W.shape[1:])

    @property
    def certificate(self) -> dict[str, Any]:
        """Primal, dual, gap, relative gap and drift."""
        return dict(self.info["certificate"])

    @property
    def converged(self) -> bool:
        """Whether the certified gap reached the tolerance."""
        return bool(self.info["converged"])

    def save(self, path: str | Path) -> int:
        """Write the model atomically; return its size in bytes.

        Raises
        ------
        StoreError
            The file cannot be written.
        """
        arrays = {"ids": self.ids, "W": self.W, "bias_weights": self.bias_weights}
        meta = {"labels": self.labels, "bias": self.bias, "info": self.info}
        return container.write(Path(path), "model", arrays, meta, level=None)

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        """Read a model.

        Raises
        ------
        StoreError
            No model, damaged, or of another version.
        """
        path = Path(path)
        if path.is_dir():
            raise StoreError(f"{path} is a folder; give the model file that sbm train wrote")
        file = container.read(path, "model")
        arrays: dict[str, Any] = file.arrays
        try:
            model = cls(
                arrays["ids"], arrays["W"], file.meta["labels"], file.meta["bias"],
                arrays["bias_weights"], file.meta["info"],
            )  # fmt: skip
            model._require_consistency()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{path} is not a model that can be used ({error}); train it again"
            ) from error
        return model

    def _require_consistency(self) -> None:
        """Refuse arrays that would send a kernel out of bounds, whoever wrote them."""
        n, outputs = self.W.shape
        if self.ids.shape != (n,) or self.bias_weights.shape != (outputs,) or outputs < 1:
            raise ValueError("its arrays have shapes that do not belong together")
        if self.ids.dtype != np.int64 or {self.W.dtype, self.bias_weights.dtype} != {
            np.dtype(np.float64)
        }:
            raise ValueError("its arrays have the wrong types")
        numbers = [*self.labels, self.bias]
        if len(self.labels) < 2 or not all(type(x) in (int, float) for x in numbers):
            raise ValueError("its labels or bias are not numbers")
        if outputs != len(self.labels) and (outputs, len(self.labels)) != (1, 2):
            raise ValueError(
                f"{outputs} columns of weights do not belong to {len(self.labels)} labels"
            )
        if outputs > 1 and not all(a < b for a, b in itertools.pairwise(self.labels)):
            raise ValueError("its labels are not in ascending order")
        if not isinstance(self.info, dict):
            raise TypeError("its description is missing")

    def decision_function(self, X: "scipy.sparse.csr_matrix") -> npt.NDArray[np.float64]:
        """Decision values of rows given by original feature ids.

        Parameters
        ----------
        X : scipy.sparse CSR matrix or array, shape (n_rows, any)
            Column k is feature id k; columns the model does not know count as 0.

        Returns
        -------
        ndarray, shape (n_rows,) for a binary model, else (n_rows, n_labels), float64
            Column k belongs to ``labels[k]``.

        Raises
        ------
        DataError
            `X` is not a CSR matrix.
        """
        if getattr(X, "format", None) != "csr":
            raise DataError(f"X is a {type(X).__name__}; a scipy.sparse CSR matrix is expected")
        from scipy.sparse import csr_matrix

        order = np.argsort(self.ids)
        place = np.searchsorted(self.ids, X.indices, sorter=order)
        rows = order[np.minimum(place, len(order) - 1)]
        known = self.ids[rows] == X.indices
        ends = np.concatenate([[0], np.cumsum(known)])[X.indptr]
        ours = csr_matrix((X.data[known], rows[known], ends), shape=(X.shape[0], len(self.ids)))
        scores = np.asarray(ours @ self.W) + self.bias * self.bias_weights
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: "scipy.sparse.csr_matrix") -> npt.NDArray[np.float64]:
        """Labels of rows given by original feature ids.

        Binary: a decision value of exactly 0 counts as negative. Multi-class: the label with the
        largest decision value, of equal ones the smallest label.

        Parameters
        ----------
        X : scipy.sparse CSR matrix or array, shape (n_rows, any)
            As for `decision_function`.

        Returns
        -------
        ndarray, shape (n_rows,), float64

        Raises
        ------
        DataError
            `X` is not a CSR matrix.
        """
        scores = self.decision_function(X)
        labels: npt.NDArray[np.float64] = np.asarray(self.labels)
        if scores.ndim == 1:
            return labels[(scores > 0).astype(np.intp)]
        scores[np.isnan(scores)] = -np.inf  # an overflow is never the best, as in sbm predict
        best: npt.NDArray[np.intp] = np.argmax(scores, axis=1)
        return labels[best]
