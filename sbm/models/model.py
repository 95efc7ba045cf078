"""A trained model: weights by feature id, and what is proven of them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, StoreError
from sbm.models.probabilities import probabilities
from sbm.store import container

if TYPE_CHECKING:
    import scipy.sparse

__all__ = ["Model", "check_output", "parts"]

_PART = 1 << 17  # weights handled at a time, 1 MB


def parts(n: int, n_outputs: int) -> Iterator[slice]:
    """Cut `n` features into slices of a bounded number of weights."""
    step = max(1, _PART // max(1, n_outputs))
    for begin in range(0, n, step):
        yield slice(begin, min(begin + step, n))


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
        Binary models have one output, whose sign gives the class. Other classification models have
        one output per label, of which the largest gives the class; of equal ones, the first.
        Regression models have one output, the prediction.
    labels : list of float
        Label of each output; for binary models [negative, positive]. In ascending order, except in
        models that LIBLINEAR trained. Empty for regression.
    bias : float
        Value of the extra feature; 0 for none.
    bias_weights : ndarray, shape (n_outputs,), float64
        Weights of the extra feature. Default: zeros.
    info : dict
        Loss, C, settings, certificate, whether training converged, sources; JSON types. Models of
        other tools have only a loss. Pruned models have no certificate.
    more : dict
        Other fields of the file, unknown to this version; `save` keeps them.
    """

    ids: npt.NDArray[np.int64]
    W: npt.NDArray[np.float64]
    labels: list[float]
    bias: float = 0.0
    bias_weights: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    info: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    _header: dict[str, Any] = field(default_factory=dict, repr=False)  # of the file

    def __post_init__(self) -> None:
        if self.bias_weights.size == 0 and self.bias == 0:
            self.bias_weights = np.zeros(self.W.shape[1:])

    def __repr__(self) -> str:
        what = f"{len(self.labels)} labels" if self.labels else "targets"
        loss, gap = self.info.get("loss", "unknown"), self.certificate.get("relative_gap")
        proven = "" if gap is None else f", certified relative gap {gap:.2e}"
        return f"<Model of {what}: {loss}, {len(self.ids):,} features{proven}>"

    @property
    def is_regression(self) -> bool:
        """Whether the decision value is the prediction."""
        return not self.labels

    @property
    def certificate(self) -> dict[str, Any]:
        """Primal, dual, gap, relative gap and drift; empty if nothing is certified."""
        return dict(self.info.get("certificate") or {})

    @property
    def converged(self) -> bool:
        """Whether the certified gap reached the tolerance."""
        return bool(self.info.get("converged", False))

    def compact(self) -> "Model":
        """Drop features whose weights are all 0; return the model itself if there are none.

        Returns
        -------
        Model
        """
        used = self._used()
        if used.all():
            return self
        return replace(self, ids=self.ids[used], W=self.W[used])

    def _used(self) -> npt.NDArray[np.bool_]:
        """Whether each feature has a weight other than 0."""
        return np.asarray(self.W.any(axis=1))

    def weights_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the weights of features; those of unknown features are 0.

        Parameters
        ----------
        ids : ndarray, shape (n,), int64

        Returns
        -------
        ndarray, shape (n, n_outputs), float64
        """
        rows, known = self._find(ids)
        weights = np.zeros((len(ids), self.W.shape[1]))
        weights[known] = self.W[rows[known]]
        return weights

    def _find(
        self, ids: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Rows of `W` of given ids, and which of these ids the model knows."""
        if not len(self.ids):
            return np.zeros(len(ids), np.intp), np.zeros(len(ids), np.bool_)
        order = np.argsort(self.ids)
        place = np.searchsorted(self.ids, ids, sorter=order)
        rows = order[np.minimum(place, len(order) - 1)]
        return rows, self.ids[rows] == ids

    def save(self, path: str | Path) -> int:
        """Write the model atomically; return its size in bytes.

        Features whose weights are all 0 are left out. The weights of several outputs are stored
        as a list of the nonzero ones if that is smaller.

        Raises
        ------
        StoreError
            The file cannot be written.
        """
        used = self._used()

        def make_ids() -> Iterator[npt.NDArray[np.int64]]:
            for part in parts(len(used), 1):
                yield self.ids[part][used[part]]

        n_used = int(np.count_nonzero(used))
        arrays: dict[str, container.Pieces | npt.NDArray[np.float64]] = {
            "ids": container.Pieces("<i8", (n_used,), make_ids),
            **self._stored_weights(used, n_used),
            "bias_weights": self.bias_weights,
        }
        meta = {**self.more, "labels": self.labels, "bias": self.bias, "info": self.info}
        before = self._header
        return container.write(Path(path), "model", arrays, meta, level=None, before=before)

    def _stored_weights(
        self, used: npt.NDArray[np.bool_], n_used: int
    ) -> dict[str, container.Pieces]:
        """Arrays of a file that hold the weights of the features in use."""
        outputs = self.W.shape[1]
        n_weights = int(np.count_nonzero(self.W))
        kind = _column_type(outputs)
        size = np.dtype(kind).itemsize

        def rows() -> Iterator[npt.NDArray[np.float64]]:
            for part in parts(len(used), outputs):
                yield self.W[part][used[part]]

        if size * n_used + (size + 8) * n_weights >= 8 * outputs * n_used:
            return {"W": container.Pieces("<f8", (n_used, outputs), rows)}
        return {
            "counts": container.Pieces(
                kind, (n_used,), lambda: (np.count_nonzero(some, axis=1) for some in rows())
            ),
            "columns": container.Pieces(
                kind, (n_weights,), lambda: (some.nonzero()[1] for some in rows())
            ),
            "values": container.Pieces(
                "<f8", (n_weights,), lambda: (some[some != 0] for some in rows())
            ),
        }

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        """Read a model.

        Raises
        ------
        StoreError
            The file is not a model, is damaged, or has another version.
        """
        path = Path(path)
        if path.is_dir():
            raise StoreError(f"{path} is a folder; give the model file that sbm train wrote")
        file = container.read(path, "model", _ARRAYS.__contains__, is_own=False)
        arrays: dict[str, Any] = file.arrays
        try:
            W = arrays["W"] if "W" in arrays else _spread(arrays)
            model = cls(
                arrays["ids"], W, file.meta["labels"], file.meta["bias"],
                arrays["bias_weights"], file.meta["info"],
                {k: v for k, v in file.meta.items() if k not in ("labels", "bias", "info")},
                file.header,
            )  # fmt: skip
            model._require_consistency()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StoreError(
                f"{path} is not a model that can be used ({error}); train it again"
            ) from error
        except MemoryError as error:
            raise StoreError(
                f"{path} holds weights of {len(arrays['ids']):,} features and "
                f"{len(arrays['bias_weights']):,} outputs, which do not fit in memory; "
                "predict where there is more"
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
        if self.ids.min(initial=0) < 0:
            raise ValueError("a feature id is negative")
        numbers = [*self.labels, self.bias]
        if len(self.labels) == 1 or not all(map(_is_number, numbers)):
            raise ValueError("its labels or bias are not numbers")
        if outputs != len(self.labels) and (outputs, len(self.labels)) not in ((1, 0), (1, 2)):
            raise ValueError(
                f"{outputs} columns of weights do not belong to {len(self.labels)} labels"
            )
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("a label stands in it twice")
        if not isinstance(self.info, dict):
            raise TypeError("its description is missing")
        sources = self.info.get("sources", [])
        if (
            not isinstance(self.info.get("loss", ""), str)
            or not isinstance(self.info.get("certificate") or {}, dict)
            or not isinstance(sources, list)
            or not all(map(_is_source, sources))
        ):
            raise ValueError("its description is none")

    def decision_function(self, X: "scipy.sparse.csr_matrix") -> npt.NDArray[np.float64]:
        """Compute the decision values of rows.

        Products are summed in the order of a row's nonzeros and then the bias, as ``sbm predict``
        and LIBLINEAR do.

        Parameters
        ----------
        X : scipy.sparse CSR matrix or array, shape (n_rows, any)
            Column k is feature id k. Columns that the model does not know count as 0.
            scikit-learn's ``load_svmlight_file`` needs ``zero_based=True`` for that.

        Returns
        -------
        ndarray, shape (n_rows,) for one output, else (n_rows, n_labels), float64
            Column k belongs to ``labels[k]``.

        Raises
        ------
        DataError
            `X` is not a CSR matrix.
        """
        if getattr(X, "format", None) != "csr":
            raise DataError(f"X is a {type(X).__name__}; a scipy.sparse CSR matrix is expected")
        from scipy.sparse import csr_matrix

        rows, known = self._find(X.indices)
        ends = np.concatenate([[0], np.cumsum(known)])[X.indptr]
        ours = csr_matrix((X.data[known], rows[known], ends), shape=(X.shape[0], len(self.ids)))
        scores = np.asarray(ours @ self.W) + self.bias * self.bias_weights
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: "scipy.sparse.csr_matrix") -> npt.NDArray[np.float64]:
        """Predict the labels of rows, or numbers for regression.

        A binary decision value of exactly 0 counts as negative. With more than two classes, the
        label with the largest decision value is predicted; of equal ones, the first.

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
        if self.is_regression:
            return scores
        labels: npt.NDArray[np.float64] = np.asarray(self.labels)
        if scores.ndim == 1:
            return labels[(scores > 0).astype(np.intp)]
        scores[np.isnan(scores)] = -np.inf  # an overflow is never the best, as in sbm predict
        best: npt.NDArray[np.intp] = np.argmax(scores, axis=1)
        return labels[best]

    def predict_proba(self, X: "scipy.sparse.csr_matrix") -> npt.NDArray[np.float64]:
        """Compute the probabilities of the labels of rows.

        Models of ``log_loss`` and models trained with ``calibrate`` have them; ``docs/predict.md``
        describes how they are computed.

        Parameters
        ----------
        X : scipy.sparse CSR matrix or array, shape (n_rows, any)
            As for `decision_function`.

        Returns
        -------
        ndarray, shape (n_rows, n_labels), float64
            Column k belongs to ``labels[k]``. Rows sum to 1.

        Raises
        ------
        DataError
            `X` is not a CSR matrix.
        SettingsError
            The model has no probabilities.
        """
        return probabilities(self, self.decision_function(X))

    def to_sklearn(self, n_features: int | None = None) -> Any:
        """Return a fitted estimator of scikit-learn that predicts the same.

        It is a `LinearSVC`; for ``log_loss`` with two labels a `LogisticRegression`, for regression
        a `LinearSVR` (for ``squared_error`` a `Ridge`), for one class a `SGDOneClassSVM`. It can be
        pickled, and works without this package.

        Parameters
        ----------
        n_features : int, optional
            Columns of the matrices to predict: column k is feature id k. Default: one more than
            the largest id.

        Raises
        ------
        DataError
            An id has no column, or the weights of all columns do not fit in memory.
        SettingsError
            scikit-learn is not installed.
        """
        from sbm.models.fitted import to_sklearn

        return to_sklearn(self, n_features)


# Arrays of a file, whichever form the weights have; the others are passed over.
_ARRAYS = frozenset(["ids", "W", "bias_weights", "counts", "columns", "values"])


def _is_number(x: Any) -> bool:
    return type(x) in (int, float) and abs(x) <= sys.float_info.max


def _is_source(source: Any) -> bool:
    counts = [source.get(key, 0) for key in ("rows", "skipped", "bytes")]
    return isinstance(source["name"], str) and all(type(n) is int and n >= 0 for n in counts)


def _column_type(n_outputs: int) -> str:
    """The smallest type that holds a number of columns."""
    return "|u1" if n_outputs < 1 << 8 else "<u2" if n_outputs < 1 << 16 else "<i4"


def _spread(arrays: dict[str, Any]) -> npt.NDArray[np.float64]:
    """Make the array of all weights from a list of those that are not 0."""
    counts, columns, values = (arrays[name] for name in ("counts", "columns", "values"))
    n, outputs = len(arrays["ids"]), len(arrays["bias_weights"])
    if counts.shape != (n,) or columns.shape != values.shape or values.ndim != 1:
        raise ValueError("its arrays have shapes that do not belong together")
    if not {counts.dtype.kind, columns.dtype.kind} <= {"u", "i"} or values.dtype != np.float64:
        raise ValueError("its arrays have the wrong types")
    ends = np.zeros(n + 1, np.int64)
    np.cumsum(counts, dtype=np.int64, out=ends[1:])
    # None is longer than all together, so that no sum of them wraps around.
    if ((counts < 0) | (counts > len(values))).any() or ends[n] != len(values):
        raise ValueError("its weights are not as many as it counts")
    if ((columns < 0) | (columns >= outputs)).any():
        raise ValueError("a weight belongs to no column")
    W = np.zeros((n, outputs))
    for part in parts(n, outputs):
        rows = np.repeat(np.arange(part.start, part.stop), counts[part])
        some = slice(ends[part.start], ends[part.stop])
        W[rows, columns[some]] = values[some]
    return W
