"""A trained model: weights by feature id, and its certificate."""

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SettingsError, StoreError, require_path
from sbm.keywords import with_keywords
from sbm.models.probabilities import probabilities
from sbm.models.weights import SparseWeights, WindowedWeights
from sbm.names import Names
from sbm.plain import dataclass
from sbm.rows import require_matrix
from sbm.store import container
from sbm.store.files import require_place
from sbm.units import count, format_number

_PART = 1 << 17  # weights handled at a time, 1 MB
_MOST_DENSE = 1 << 25  # weights; more of them stay sparse
_SHOWN, _SHOWN_CLASSES = 5, 10  # weights per class and classes in a notebook


# First words of other tools' files, and the function that reads them; see `sbm.models.liblinear`.
READERS: dict[bytes, Callable[[Path], "Model"]] = {}
# ``matrix``: the function that turns a data frame into a matrix; see `sbm.dataset.frames`.
FRAMES: dict[str, Callable[["Model", Any], Any]] = {}


def first_word(path: Path) -> bytes:
    """Return the first word of a file; empty for pipes, which can be read only once."""
    try:
        if not path.is_file():
            return b""
        with open(path, "rb") as file:
            return (file.read(1 << 12).split(maxsplit=1) or [b""])[0]
    except OSError:
        return b""


def parts(n: int, n_outputs: int) -> Iterator[slice]:
    """Cut `n` features into slices of a bounded number of weights."""
    step = max(1, _PART // max(1, n_outputs))
    for begin in range(0, n, step):
        yield slice(begin, min(begin + step, n))


def has_runs(W: npt.NDArray[np.float64]) -> bool:
    """Return whether `row_texts` is faster than to write every number."""
    return bool(8 * np.count_nonzero(W) < W.size)


def row_texts(
    W: npt.NDArray[np.float64], zero: str, write: Callable[[list[float]], list[str]]
) -> Iterator[str]:
    """Yield the numbers of each row as text; runs of zeros are copied, not written.

    Parameters
    ----------
    W : ndarray, shape (n, n_outputs), float64
    zero : str
        Text of a zero, with what follows each number.
    write : callable
        Returns the texts of other numbers.
    """
    is_other = np.ascontiguousarray(W).view(np.int64) != 0  # -0.0 has a sign
    rows, columns = np.nonzero(is_other)
    texts, n = write(W[is_other].tolist()), W.shape[1]
    ends = np.searchsorted(rows, np.arange(len(W) + 1)).tolist()
    is_first = np.diff(rows, prepend=-1) > 0
    before = np.where(is_first, -1, np.concatenate([[-1], columns[:-1]]))
    runs = ((columns - before - 1) * len(zero)).tolist()
    zeros, places = zero * n, columns.tolist()
    for a, b in itertools.pairwise(ends):
        pieces = [part for k in range(a, b) for part in (zeros[: runs[k]], texts[k])]
        last = places[b - 1] if b > a else -1
        yield "".join(pieces) + zeros[: (n - 1 - last) * len(zero)]


def check_output(path: Path) -> None:
    """Check that a model can be written to a path.

    Raises `StoreError` if the path is a folder or another file than an sbm file, or its folder does
    not exist.
    """
    require_place(path)
    if path.exists() and not container.is_container(path):
        raise StoreError(f"{path} exists and is not a model; choose another name with -o")


@dataclass
class Model:
    """A linear model.

    Attributes
    ----------
    ids : ndarray, shape (n_features,), int64
        Feature id of each row of `W`.
    W : ndarray or SparseWeights, shape (n_features, n_outputs), float64
        Binary models have one output, whose sign gives the class. Other classification models have
        one output per label; the largest gives the class, the first if several are equal.
        Regression models have one output, the prediction. Sparse if it was read from a file and
        would take more than 256 MB.
    labels : list of float
        Label of each output; for binary models [negative, positive]. Others are in ascending order,
        except in LIBLINEAR models. With a single label, no other is predicted. Empty for
        regression.
    bias : float
        Value of the extra feature; 0 for none.
    bias_weights : ndarray, shape (n_outputs,), float64
        Weights of the extra feature. Default: zeros.
    info : dict
        Loss, C, settings, certificate, whether training converged, sources; JSON types. Models of
        other tools have only a loss. Models that `sbm.export` pruned have no certificate.
    zero_ids : ndarray, shape (any,), int64
        Other features of the training data, with only zero weights.
    more : dict
        Fields of the file that this version does not know; `save` keeps them.
    names : Names or None
        Name of each feature of `ids`; None if the training data had none.
    zero_names : Names or None
        Name of each feature of `zero_ids`, if the training data was a table.
    label_names : list of str
        Name of each label, if the labels of the training data are words; else empty.
    """

    ids: npt.NDArray[np.int64]
    W: Any  # so that code for dense weights need not tell them apart
    labels: list[float]
    bias: float = 0.0
    bias_weights: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    info: dict[str, Any] = field(default_factory=dict)
    zero_ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    more: dict[str, Any] = field(default_factory=dict)
    names: Names | None = None
    label_names: list[str] = field(default_factory=list)
    zero_names: Names | None = None
    _header: dict[str, Any] = field(default_factory=dict, repr=False)  # of the file

    def __post_init__(self) -> None:
        if self.bias_weights.size == 0 and self.bias == 0:
            self.bias_weights = np.zeros(self.W.shape[1:])

    def __repr__(self) -> str:
        what = count(len(self.labels), "label") if self.labels else "targets"
        loss, gap = self.info.get("loss", "unknown"), self.certificate.get("relative_gap")
        proven = "" if gap is None else f", certified relative gap {gap:.2e}"
        return f"<Model of {what}: {loss}, {len(self.ids):,} features{proven}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the largest weights of the first classes."""
        from html import escape

        rows = []
        for output in range(min(self.W.shape[1], _SHOWN_CLASSES)):
            weights = [*self.top(_SHOWN), *self.top(-_SHOWN)] if self.W.shape[1] == 1 else []
            weights = weights or self.top(_SHOWN, self.classes_[output])
            cells = "".join(f"<td>{escape(str(name))}<br>{w:.4g}</td>" for name, w in weights)
            rows.append(f"<tr><th>{escape(self._output_name(output))}</th>{cells}</tr>")
        return f"{escape(repr(self))}<table>{''.join(rows)}</table>"

    def label_texts(self) -> list[str]:
        """Return the labels as text, in their order in `labels`."""
        return self.label_names or [format_number(label) for label in self.labels]

    def _output_name(self, output: int) -> str:
        """Return the label that a large decision value of an output stands for."""
        texts = self.label_texts()
        return texts[-1 if self.W.shape[1] == 1 else output] if texts else "prediction"

    def feature_name(self, row: int) -> str | int:
        """Return the name of a row of `W`, or its feature id if it has none."""
        return (self.names[row] if self.names is not None else "") or int(self.ids[row])

    def top(self, n: int = 10, label: Any = None) -> list[tuple[str | int, float]]:
        """Return the features with the largest weights.

        Parameters
        ----------
        n : int
            Number of features; if negative, those with the smallest weights. Weights of 0 are
            left out.
        label : number or str, optional
            Class, if the model has an output for each.

        Returns
        -------
        list of (str or int, float)
            Name (or id) and weight, the largest (or smallest) first.

        Raises
        ------
        SettingsError
            The model has no output for this label.
        """
        rows, w = self.ranked(*self.column(self._output_of(label)), n)
        return [(self.feature_name(row), float(x)) for row, x in zip(rows.tolist(), w, strict=True)]

    def column(self, output: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """Return the rows of `W` with a nonzero weight of an output, ascending, and the weights."""
        if isinstance(self.W, SparseWeights):
            return self.W.column(output)
        w = self.W[:, output]
        rows = np.flatnonzero(w)
        return rows, w[rows]

    def ranked(
        self, rows: npt.NDArray[np.intp], w: npt.NDArray[np.float64], n: int
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """Return those of some rows with the `n` largest weights above 0, and these.

        If `n` is negative, the smallest weights below 0 are chosen. Equal weights are in the order
        of ids.
        """
        signed = w if n >= 0 else -w
        most = min(abs(n), int(np.count_nonzero(signed > 0)))
        if not most:
            return rows[:0], w[:0]
        least = np.partition(signed, len(w) - most)[len(w) - most]
        some = np.flatnonzero(signed >= least)
        some = some[np.lexsort((self.ids[rows[some]], -signed[some]))][:most]
        return rows[some], w[some]

    def _output_of(self, label: Any) -> int:
        """Return the output of a label, or the only output."""
        classes: list[Any] = self.classes_.tolist()
        if self.W.shape[1] == 1 and label in (None, *classes[-1:]):
            return 0
        if self.W.shape[1] > 1 and label in classes:
            return classes.index(label)
        shown = ", ".join(map(str, classes[-1:] if self.W.shape[1] == 1 else classes[:20]))
        raise SettingsError(f"label is {label!r}; the model has weights for {shown or 'no label'}")

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """Labels as words or numbers, in the order of `labels`."""
        from sbm.models.fitted import whole_labels

        return np.array(self.label_names) if self.label_names else whole_labels(self.labels)

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        """Weights as in scikit-learn, shape (n_outputs, largest id + 1); see `to_sklearn`."""
        from sbm.models.fitted import coefficients

        return coefficients(self)[0]

    @property
    def intercept_(self) -> npt.NDArray[np.float64]:
        """Intercepts as in scikit-learn, shape (n_outputs,)."""
        from sbm.models.fitted import intercepts

        return intercepts(self)

    @property
    def threshold(self) -> float:
        """Decision value above which a model of two classes predicts the second label."""
        return float((self.info.get("validation") or {}).get("threshold") or 0.0)

    def without_threshold(self) -> "Model":
        """Return a model of the same labels with threshold 0, which is part of its bias."""
        if not self.threshold:
            return self
        bias_weights = self.bias * self.bias_weights - self.threshold
        validation = {**self.info["validation"], "threshold": None}
        info = {**self.info, "validation": validation}
        return replace(self, bias=1.0, bias_weights=bias_weights, info=info)

    @property
    def is_regression(self) -> bool:
        """Whether the decision value is the prediction."""
        return not self.labels

    @property
    def certificate(self) -> dict[str, Any]:
        """Primal, dual, gap, relative gap and drift; empty without a certificate."""
        return dict(self.info.get("certificate") or {})

    @property
    def converged(self) -> bool:
        """Whether the certified gap reached the tolerance."""
        return bool(self.info.get("converged", False))

    def compact(self) -> "Model":
        """Move features with only zero weights to `zero_ids`; return itself if there are none.

        Returns
        -------
        Model
        """
        used = self._used()
        if used.all():
            return self
        zero_ids = np.concatenate([self.zero_ids, self.ids[~used]])
        names = None if self.names is None else self.names.take(used)
        is_sparse = isinstance(self.W, SparseWeights)
        W = self.W.without_zeros() if is_sparse else self.W[used]
        return replace(
            self, ids=self.ids[used], W=W, zero_ids=zero_ids, names=names,
            zero_names=self._names_of_zeros(used),
        )  # fmt: skip

    def _names_of_zeros(self, used: npt.NDArray[np.bool_]) -> Names | None:
        """Return the names of `zero_ids` and of features that are not used; None without a table.

        Words of a table that the training knew are not new, even if their weights are 0.
        """
        record = self.info.get("names")
        if self.names is None or not isinstance(record, dict) or "columns" not in record:
            return None
        before = self.zero_names or Names.of([b""] * len(self.zero_ids))
        return before.join(self.names.take(~used))

    def _used(self) -> npt.NDArray[np.bool_]:
        """Return whether each feature has a nonzero weight, shape (n_features,)."""
        return np.asarray(self.W.any(axis=1))

    @property
    def n_nonzero(self) -> int:
        """Number of weights that are not 0."""
        if isinstance(self.W, np.ndarray):
            return int(np.count_nonzero(self.W))
        return int(self.W.n_nonzero)

    def weights_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the weights of features; 0 for unknown features.

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
        """Return the rows of `W` for given ids, and which of these ids the model has."""
        if not len(self.ids):
            return np.zeros(len(ids), np.intp), np.zeros(len(ids), np.bool_)
        order = np.argsort(self.ids)
        place = np.searchsorted(self.ids, ids, sorter=order)
        rows = order[np.minimum(place, len(order) - 1)]
        return rows, self.ids[rows] == ids

    def save(self, path: str | Path) -> int:
        """Write the model atomically; return its size in bytes.

        Features with only zero weights are stored as ids. Weights of several outputs are stored
        sparse if that is smaller.

        Raises
        ------
        StoreError
            If the file cannot be written.
        """
        used = self._used()

        def make_ids() -> Iterator[npt.NDArray[np.int64]]:
            for part in parts(len(used), 1):
                yield self.ids[part][used[part]]

        def make_zero_ids() -> Iterator[npt.NDArray[np.int64]]:
            yield self.zero_ids
            for part in parts(len(used), 1):
                yield self.ids[part][~used[part]]

        n_used = int(np.count_nonzero(used))
        n_zero = len(self.zero_ids) + len(used) - n_used
        arrays: dict[str, container.Pieces | npt.NDArray[Any]] = {
            "ids": container.Pieces("<i8", (n_used,), make_ids),
            **self._stored_weights(used, n_used),
            "bias_weights": self.bias_weights,
        }
        if n_zero:
            arrays["zero_ids"] = container.Pieces("<i8", (n_zero,), make_zero_ids)
        if self.names is not None:
            arrays |= self.names.take(used).arrays()
        if n_zero and (zeros := self._names_of_zeros(used)) is not None:
            arrays |= {f"zero_{name}": array for name, array in zeros.arrays().items()}
        meta = {**self.more, "labels": self.labels, "bias": self.bias, "info": self.info}
        if self.label_names:
            meta["label_names"] = self.label_names
        before = self._header
        return container.write(Path(path), "model", arrays, meta, level=None, before=before)

    def _stored_weights(
        self, used: npt.NDArray[np.bool_], n_used: int
    ) -> dict[str, container.Pieces]:
        """Return the arrays of the file that hold the nonzero weights."""
        outputs = self.W.shape[1]
        n_weights = self.n_nonzero
        kind = "|u1" if outputs < 1 << 8 else "<u2" if outputs < 1 << 16 else "<i4"
        size = np.dtype(kind).itemsize

        def rows() -> Iterator[npt.NDArray[np.float64]]:
            for part in parts(len(used), outputs):
                weights, mine = self.W[part], used[part]
                yield weights if mine.all() else weights[mine]

        if isinstance(self.W, SparseWeights | WindowedWeights):
            W, counts = self.W, self.W.counts[used]
            return {
                "counts": container.Pieces(kind, (n_used,), lambda: iter([counts])),
                "columns": container.Pieces(
                    kind, (n_weights,), lambda: (columns for columns, _ in W.windows())
                ),
                "values": container.Pieces(
                    "<f8", (n_weights,), lambda: (values for _, values in W.windows())
                ),
            }
        is_smaller = size * n_used + (size + 8) * n_weights < 8 * outputs * n_used
        if isinstance(self.W, np.ndarray) and not is_smaller:
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
    def load(cls, path: str | Path, most_dense: int | None = None) -> "Model":
        """Read a model of sbm or LIBLINEAR.

        Parameters
        ----------
        path : str or Path
        most_dense : int, optional
            If `W` was stored sparse and has more weights, it stays sparse and is read when it is
            first used. Default: 2^25, which take 256 MB.

        Raises
        ------
        SettingsError
            If `path` is not a path.
        StoreError
            If the file is not a model, is damaged, or has an unsupported version.
        """
        require_path(path, "the model")
        path = Path(path)
        if path.is_dir():
            raise StoreError(f"{path} is a folder; give the model file that sbm train wrote")
        if (read := READERS.get(first_word(path))) is not None:
            return read(path)
        if path.suffix in (".npz", ".json") and path.is_file() and not container.is_container(path):
            raise StoreError(
                f"{path} is an npz or json export, which sbm cannot read; give the model that was "
                "exported"
            )
        file = container.read(path, "model", _ARRAYS.__contains__, is_own=False)
        arrays: dict[str, Any] = file.arrays
        try:
            W: Any = arrays.get("W")
            if W is None:
                W = SparseWeights(path, arrays["counts"], len(arrays["bias_weights"]))
                if W.n_dense <= (_MOST_DENSE if most_dense is None else most_dense):
                    W = np.asarray(W)
            model = cls(
                arrays["ids"], W, file.meta["labels"], file.meta["bias"],
                arrays["bias_weights"], file.meta["info"],
                arrays.get("zero_ids", np.empty(0, np.int64)),
                {k: v for k, v in file.meta.items() if k not in _META},
                Names.from_arrays(arrays, len(arrays["ids"])), file.meta.get("label_names", []),
                Names.from_arrays(
                    {name.removeprefix("zero_"): array for name, array in arrays.items()
                     if name.startswith("zero_name")},
                    len(arrays.get("zero_ids", ())),
                ),
                file.header,
            )  # fmt: skip
            model._require_consistency()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StoreError(f"{path} is not a usable model ({error}); train it again") from error
        except MemoryError as error:
            raise StoreError(
                f"{path} has weights of {len(arrays['ids']):,} features and "
                f"{len(arrays['bias_weights']):,} outputs, which do not fit in memory; "
                "use a machine with more memory"
            ) from error
        return model

    def _require_consistency(self) -> None:
        """Reject inconsistent content, which could send a kernel out of bounds."""
        n, outputs = self.W.shape
        if self.ids.shape != (n,) or self.bias_weights.shape != (outputs,) or outputs < 1:
            raise ValueError("shapes of arrays do not match")
        if {self.ids.dtype, self.zero_ids.dtype} != {np.dtype(np.int64)} or {
            self.W.dtype,
            self.bias_weights.dtype,
        } != {np.dtype(np.float64)}:
            raise ValueError("arrays have wrong types")
        if (
            self.zero_ids.ndim != 1
            or min(self.ids.min(initial=0), self.zero_ids.min(initial=0)) < 0
        ):
            raise ValueError("a feature id is negative")
        numbers = [*self.labels, self.bias]
        if not all(map(_is_number, numbers)):
            raise ValueError("labels or bias are not numbers")
        if outputs != len(self.labels) and (outputs, len(self.labels)) not in ((1, 0), (1, 2)):
            raise ValueError(f"{outputs} columns of weights do not match {len(self.labels)} labels")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("duplicate label")
        words = self.label_names
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise TypeError("names of labels are not text")
        if words and not len(words) == len(set(words)) == len(self.labels):
            raise ValueError("names of labels do not match the labels")
        if not isinstance(self.info, dict):
            raise TypeError("info is not an object")
        sources = self.info.get("sources", [])
        if (
            not isinstance(self.info.get("loss", ""), str)
            or not isinstance(self.info.get("certificate") or {}, dict)
            or not isinstance(sources, list)
            or not all(map(_is_source, sources))
            or not isinstance(validation := self.info.get("validation") or {}, dict)
            or not _is_number(validation.get("threshold") or 0.0)
        ):
            raise ValueError("invalid info")

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Compute the decision values of rows.

        Products are summed in the order of a row's nonzeros, then the bias is added, as in
        ``sbm predict`` and LIBLINEAR.

        Parameters
        ----------
        X : matrix, sparse or dense, shape (n_rows, any); or a data frame
            Column k is feature id k. Unknown features are ignored. Use ``zero_based=True`` with
            scikit-learn's ``load_svmlight_file``. A data frame of pandas, polars or pyarrow has the
            columns of the training, in any order. A matrix without any feature of a model of such
            columns gives a warning.

        Returns
        -------
        ndarray, shape (n_rows,) for one output, else (n_rows, n_labels), float64
            Column k belongs to ``labels[k]``.

        Raises
        ------
        DataError
            If `X` is not a matrix of finite numbers, or its arrays do not fit together.
        """
        scores = np.concatenate(list(self._decide(X, 1 << 62)))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _decide(self, X: Any, most: int) -> Iterator[npt.NDArray[np.float64]]:
        """Yield the decision values of rows, shape (any, n_outputs), at most so many at a time."""
        ours = self._known(X)
        weights = self.W.to_csr() if isinstance(self.W, SparseWeights) else self.W
        step = max(1, min(most // self.W.shape[1], ours.shape[0]))
        for first in range(0, max(1, ours.shape[0]), step):
            products = ours[first : first + step] @ weights
            if isinstance(self.W, SparseWeights):
                products = products.toarray()
            yield np.asarray(products) + self.bias * self.bias_weights

    def _known(self, X: Any) -> Any:
        """Return the known features of rows as a CSR matrix, shape (n_rows, n_features)."""
        from scipy.sparse import csr_matrix

        is_frame = hasattr(X, "__arrow_c_stream__") and "names" in self.info
        if is_frame and "matrix" in FRAMES:
            X = FRAMES["matrix"](self, X)
        if not hasattr(X, "tocsr"):
            try:
                X = np.asarray(X)
            except ValueError as error:  # rows of different lengths
                raise DataError(f"X is not a matrix ({error})") from None
        if len(X.shape) != 2 or X.dtype.kind not in "biuf":
            raise DataError(
                f"X holds {X.dtype} and has shape {X.shape}; a matrix of numbers is expected "
                "(sbm.predict reads files)"
            )
        if hasattr(X, "tocsr"):
            require_matrix("X", X)
        X = csr_matrix(X)
        used = slice(0, X.nnz)
        if not np.isfinite(X.data[used]).all():
            place = int(np.argmin(np.isfinite(X.data[used])))
            row = int(np.searchsorted(X.indptr, place, side="right")) - 1
            raise DataError(
                f"X, row {row}: found {X.data[place]} as the value of feature {X.indices[place]}, "
                "but only finite numbers are allowed"
            )
        rows, known = self._find(X.indices[used])
        record = self.info.get("names")
        is_of_table = isinstance(record, dict) and "columns" in record
        if not is_frame and (is_of_table or (X.nnz and not known.any() and record is not None)):
            warnings.warn(
                "X has no column names, but the model was trained on "
                + ("a table" if is_of_table else "named features")
                + "; give a data frame with the columns of the training",
                stacklevel=3,
            )
        ends = np.concatenate([[0], np.cumsum(known)])[X.indptr]
        shape = X.shape[0], len(self.ids)
        return csr_matrix((X.data[used][known], rows[known], ends), shape=shape)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict the labels of rows, or the targets for regression.

        A binary decision value of exactly `threshold` means the negative label. With more than two
        classes, the label with the largest decision value is predicted, the first if several are
        equal. A model of one label predicts it for every row.

        Parameters
        ----------
        X : matrix, sparse or dense, shape (n_rows, any)
            As for `decision_function`.

        Returns
        -------
        ndarray, shape (n_rows,), float64; str if the labels are words

        Raises
        ------
        DataError
            If `X` is not a matrix of numbers.
        """
        labels: npt.NDArray[Any] = np.asarray(self.label_names or self.labels)
        if self.W.shape[1] == 1 or len(labels) == 1:
            scores = self.decision_function(X)
            if self.is_regression:
                return scores
            if len(labels) == 1:
                return np.repeat(labels, len(scores))
            return labels[(scores > self.threshold).astype(np.intp)]
        best = list[npt.NDArray[np.intp]]()
        # Decision values in memory take 64 MB.
        for some in self._decide(X, 1 << 23):
            some[np.isnan(some)] = -np.inf  # NaN is never the best, as in sbm predict
            best.append(np.argmax(some, axis=1))
        return labels[np.concatenate(best)]

    @with_keywords()
    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Compute the probabilities of the labels of rows.

        Requires a model of ``log_loss`` or one trained with ``calibrate``. ``docs/predict.md``
        describes the computation.

        Parameters
        ----------
        X : matrix, sparse or dense, shape (n_rows, any)
            As for `decision_function`.

        Returns
        -------
        ndarray, shape (n_rows, n_labels), float64
            Column k belongs to ``labels[k]``. Rows sum to 1.

        Raises
        ------
        DataError
            If `X` is not a matrix of numbers.
        SettingsError
            If the model has no probabilities.
        """
        return probabilities(self, self.decision_function(X))

    def to_sklearn(self, n_features: int | None = None) -> Any:
        """Return a fitted scikit-learn estimator that makes the same predictions.

        It is a `LinearSVC`, or a `LogisticRegression` for ``log_loss`` with two labels. Regression
        models give a `LinearSVR` (a `Ridge` for ``squared_error``), one-class models a
        `SGDOneClassSVM`. The estimator can be pickled and works without this package.

        Parameters
        ----------
        n_features : int, optional
            Number of columns of the matrices to predict; column k is feature id k. Default: one
            more than the largest id.

        Returns
        -------
        estimator

        Raises
        ------
        DataError
            If an id is not below `n_features`, or the weights do not fit in memory.
        SettingsError
            If scikit-learn is not installed.
        """
        from sbm.models.fitted import to_sklearn

        return to_sklearn(self, n_features)


# Arrays of a model file that are read at once.
_ARRAYS = frozenset([
    "ids", "W", "bias_weights", "counts", "zero_ids", "names", "name_ends", "zero_names",
    "zero_name_ends",
])  # fmt: skip
_META = frozenset(["labels", "label_names", "bias", "info"])


def _is_number(x: Any) -> bool:
    return type(x) in (int, float) and abs(x) <= sys.float_info.max


def _is_source(source: Any) -> bool:
    counts = [source.get(key, 0) for key in ("rows", "skipped", "bytes")]
    return isinstance(source["name"], str) and all(type(n) is int and n >= 0 for n in counts)
