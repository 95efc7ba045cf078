"""Sparse weights of many outputs, as model files store them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import StoreError
from sbm.plain import dataclass
from sbm.store import container

__all__ = ["JoinedWeights", "SparseWeights", "WindowedWeights", "by_feature", "window_bytes"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_WINDOW = 1 << 18  # weights read from several files at a time
_LEAST, _MOST = 1 << 18, 1 << 21  # nonzero weights in memory at a time; the latter take 24 MB
_BYTES = 28  # most bytes of each while they are sorted


def window_bytes(n_stored: int) -> int:
    """Return the bytes to read weights with, which are few beside those of so many in memory."""
    return _BYTES * min(n_stored // 16, _MOST)


def by_feature(
    of: npt.NDArray[np.int32], outputs: npt.NDArray[np.int32], values: Floats
) -> tuple[npt.NDArray[np.int32], Floats]:
    """Return outputs and weights of nonzeros by feature, `of`, then by output."""
    keys = of.astype(np.int64) << 32 | outputs
    order = np.argsort(keys, kind="stable")  # merges what is sorted
    return outputs[order], values[order]


class SparseWeights:
    """Weights in a model file, read when they are first used.

    Indexing with rows, or with all rows and one output, returns a dense array.

    Parameters
    ----------
    path : Path
        The model file.
    counts : ndarray, shape (n_features,), integers
        Number of nonzero weights of each feature.
    n_outputs : int
    """

    dtype = np.dtype(np.float64)

    def __init__(self, path: Path, counts: npt.NDArray[np.integer], n_outputs: int) -> None:
        if counts.ndim != 1 or counts.dtype.kind not in "ui":
            raise ValueError("weight counts are invalid")
        if ((counts < 0) | (counts > n_outputs)).any():  # so their sums cannot overflow
            raise ValueError("weight counts are invalid")
        self._path = path
        self.shape = len(counts), n_outputs
        self.ends = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, dtype=np.int64, out=self.ends[1:])

    @classmethod
    def of(
        cls, counts: Ints, n_outputs: int, columns: npt.NDArray[np.integer], values: Floats
    ) -> SparseWeights:
        """Return weights in memory: the number of each feature's nonzeros, and their entries."""
        made = cls(Path(), counts, n_outputs)
        made.__dict__["entries"] = columns, values  # where cached_property keeps them
        return made

    def where(self, keep: npt.NDArray[np.bool_]) -> SparseWeights:
        """Return those of the nonzeros for which `keep`, shape (n_nonzero,), is true."""
        columns, values = self.entries
        before = np.concatenate([[0], np.cumsum(keep)])
        counts = np.diff(before[self.ends])
        return SparseWeights.of(counts, self.shape[1], columns[keep], values[keep])

    def without_zeros(self) -> SparseWeights:
        """Return the weights of features that have nonzeros."""
        counts = self.counts
        return SparseWeights.of(counts[counts > 0], self.shape[1], *self.entries)

    @property
    def counts(self) -> Ints:
        """Number of nonzero weights of each feature, shape (n_features,)."""
        return np.diff(self.ends)

    @property
    def n_dense(self) -> int:
        """Number of weights, including those that are 0."""
        return self.shape[0] * self.shape[1]

    @property
    def n_nonzero(self) -> int:
        """Number of weights that are not 0."""
        return int(self.ends[-1])

    @cached_property
    def entries(self) -> tuple[npt.NDArray[np.integer], Floats]:
        """Output and weight of each nonzero, feature after feature.

        Raises
        ------
        StoreError
            The file cannot be read, is damaged, or was replaced.
        """
        wanted = {"columns", "values"}.__contains__
        arrays = container.read(self._path, "model", wanted, is_own=False).arrays
        columns, values = arrays.get("columns"), arrays.get("values")
        if columns is None or values is None or columns.shape != (self.n_nonzero,):
            raise StoreError(f"{self._path} is not a usable model (weight count does not match)")
        if columns.dtype.kind not in "ui" or values.dtype != np.float64:
            raise StoreError(f"{self._path} is not a usable model (arrays have wrong types)")
        if values.shape != columns.shape or not self._fit(columns):
            raise StoreError(f"{self._path} is not a usable model (a column is out of range)")
        return columns, values

    def _fit(self, columns: npt.NDArray[np.integer]) -> bool:
        return not len(columns) or (columns.min() >= 0 and columns.max() < self.shape[1])

    def any(self, axis: int) -> npt.NDArray[np.bool_]:
        """Return whether each feature has a nonzero weight, shape (n_features,)."""
        return np.diff(self.ends) > 0

    def windows(self) -> Iterator[tuple[npt.NDArray[np.integer], Floats]]:
        """Yield outputs and weights of all nonzeros, some features at a time."""
        columns, values = self.entries
        for k in range(0, len(values), _MOST):
            yield columns[k : k + _MOST], values[k : k + _MOST]

    def to_csr(self) -> Any:
        """Return a `scipy.sparse.csr_matrix`."""
        from scipy.sparse import csr_matrix

        columns, values = self.entries
        return csr_matrix((values, columns.astype(np.int32), self.ends), shape=self.shape)

    @cached_property
    def _by_output(self) -> tuple[Ints, npt.NDArray[np.int32], Floats]:
        """Ends of outputs, and the features and weights of each, ascending."""
        columns, values = self.entries
        ends = np.zeros(self.shape[1] + 1, np.int64)
        np.cumsum(np.bincount(columns, minlength=self.shape[1]), out=ends[1:])
        order = np.argsort(columns, kind="stable")
        features = np.repeat(np.arange(self.shape[0], dtype=np.int32), self.counts)
        return ends, features[order], values[order]

    def column(self, output: int) -> tuple[npt.NDArray[np.intp], Floats]:
        """Return features with a nonzero weight of an output, ascending, and the weights."""
        ends, features, values = self._by_output
        own = slice(ends[output], ends[output + 1])
        return features[own].astype(np.intp), values[own]

    def __getitem__(self, key: Any) -> Floats:
        if isinstance(key, tuple):  # all rows, one output
            features, weights = self.column(key[1])
            column = np.zeros(self.shape[0])
            column[features] = weights
            return column
        columns, values = self.entries
        rows = np.arange(self.shape[0])[key]
        counts = self.ends[rows + 1] - self.ends[rows]
        of_row = np.repeat(np.arange(len(rows)), counts)
        first = np.repeat(self.ends[rows] - (np.cumsum(counts) - counts), counts)
        places = first + np.arange(len(of_row))
        part = np.zeros((len(rows), self.shape[1]))
        part[of_row, columns[places]] = values[places]
        return part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return self[:]


@dataclass(frozen=True)
class WindowedWeights:
    """Weights of a training that holds them by class, which are made some features at a time.

    Attributes
    ----------
    counts : ndarray, shape (n_features,), int64
        Number of nonzero weights of each feature.
    n_outputs : int
    read : callable
        ``read(first, end, columns)`` returns columns and weights of features from `first` to `end`,
        feature after feature, given the column of each class, shape (n_outputs,), int32.
    is_sorted : bool
        Whether the columns of each feature are then ascending.
    room : int
        Bytes of memory for weights that are read: each reading looks at all of them.
    columns : ndarray, shape (n_outputs,), int32, or None
        The column of each class. Default: its code.
    scales : ndarray, shape (n_features,), float64, or None
        What the weights of each feature are divided by.
    """

    counts: Ints
    n_outputs: int
    read: Callable[[int, int, npt.NDArray[np.int32]], tuple[npt.NDArray[np.int32], Floats]]
    is_sorted: bool
    room: int = 0
    columns: npt.NDArray[np.int32] | None = None
    scales: Floats | None = None

    dtype = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of features and outputs."""
        return len(self.counts), self.n_outputs

    @property
    def n_nonzero(self) -> int:
        """Number of weights that are not 0."""
        return int(self.counts.sum())

    def arranged(self, codes: Sequence[int], scales: Floats | None) -> WindowedWeights:
        """Return the weights of classes in the order of `codes`, divided by scales of features."""
        columns = np.empty(self.n_outputs, np.int32)
        columns[list(codes)] = np.arange(self.n_outputs, dtype=np.int32)
        if scales is not None:
            scales = np.append(scales, np.ones(len(self.counts) - len(scales)))
        return replace(self, columns=columns, scales=scales)

    def first(self, n: int) -> WindowedWeights:
        """Return the weights of the first features."""
        return replace(self, counts=self.counts[:n])

    def any(self, axis: int) -> npt.NDArray[np.bool_]:
        """Return whether each feature has a nonzero weight, shape (n_features,)."""
        return self.counts > 0

    def _read(self, first: int, end: int) -> tuple[npt.NDArray[np.int32], Floats]:
        columns = self.columns
        if columns is None:
            columns = np.arange(self.n_outputs, dtype=np.int32)
        outs, values = self.read(first, end, columns)
        if not self.is_sorted or self.scales is not None:
            of = np.repeat(np.arange(first, end, dtype=np.int32), self.counts[first:end])
        if not self.is_sorted:
            outs, values = by_feature(of, outs, values)
        if self.scales is not None:
            values = values / self.scales[of]
        return outs, values

    def windows(self) -> Iterator[tuple[npt.NDArray[np.integer], Floats]]:
        """Yield outputs and weights of all nonzeros, some features at a time."""
        ends = np.cumsum(self.counts)
        size = max(_LEAST, self.room // _BYTES)
        if self.n_nonzero <= size:
            yield self._all
            return
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(ends, before + size, side="right")))
            yield self._read(first, end)
            first = end

    @cached_property
    def _all(self) -> tuple[npt.NDArray[np.int32], Floats]:
        """All weights; they are asked for several times while a model is written."""
        return self._read(0, len(self.counts))

    def row(self, feature: int) -> Floats:
        """Return the weights of a feature, shape (n_outputs,)."""
        found = np.zeros(self.n_outputs)
        columns, values = self._read(feature, feature + 1)
        found[columns] = values
        return found


class JoinedWeights:
    """Weights in several model files, each with some of the labels, read in ranges of features.

    Parameters
    ----------
    paths : sequence of Path
        Model files, with the settings of one training.
    ids : ndarray, shape (n_features,), int64
        Feature ids; each model has some of them, in this order.

    Attributes
    ----------
    labels, label_names, bias, bias_weights, info
        As of a `Model`, in ascending order of the labels; `info` is that of the first file.
    """

    def __init__(self, paths: Sequence[Path], ids: Ints) -> None:
        self._parts = [_Part(path, ids) for path in paths]
        metas = [part.meta for part in self._parts]
        labels = np.array([label for meta in metas for label in meta["labels"]])
        order = np.argsort(labels)
        words = [word for meta in metas for word in meta.get("label_names", [])]
        self.labels: list[float] = labels[order].tolist()
        self.label_names = [words[k] for k in order] if words else []
        self.bias, self.info = metas[0]["bias"], metas[0]["info"]
        self.bias_weights = np.concatenate([part.bias_weights for part in self._parts])[order]
        self.shape = len(ids), len(labels)
        ends = np.cumsum([0, *(len(meta["labels"]) for meta in metas)])
        places = np.argsort(order)
        self._columns = [places[a:b] for a, b in itertools.pairwise(ends)]
        self._first, self._window = 0, np.empty((0, self.shape[1]))

    @property
    def n_nonzero(self) -> int:
        """Number of weights that are not 0."""
        return sum(part.n_nonzero for part in self._parts)

    def any(self, axis: int) -> npt.NDArray[np.bool_]:
        """Return whether each feature has a nonzero weight, shape (n_features,)."""
        used = np.zeros(self.shape[0], np.bool_)
        for part in self._parts:
            used[part.features] = True
        return used

    def __getitem__(self, features: slice) -> Floats:
        end = self._first + len(self._window)
        if not self._first <= features.start <= features.stop <= end:
            n = max(features.stop - features.start, _WINDOW // self.shape[1])
            self._first = features.start
            self._window = self._read(features.start, min(features.start + n, self.shape[0]))
        return self._window[features.start - self._first : features.stop - self._first]

    def _read(self, begin: int, end: int) -> Floats:
        dense = np.zeros((end - begin, self.shape[1]))
        for part, columns in zip(self._parts, self._columns, strict=True):
            a, b = np.searchsorted(part.features, [begin, end])
            dense[np.ix_(part.features[a:b] - begin, columns)] = part.read(a, b)
        return dense


class _Part:
    """A model file of `JoinedWeights`."""

    def __init__(self, path: Path, ids: Ints) -> None:
        content, self._read = container.open_ranges(path, "model")
        shapes = {entry["name"]: entry["shape"] for entry in content.header["arrays"]}
        self.meta = content.meta
        n, self._outputs = shapes["ids"][0], shapes["bias_weights"][0]
        self.features = np.flatnonzero(np.isin(ids, self._read("ids", 0, n)))
        self.bias_weights = self._read("bias_weights", 0, self._outputs)
        self._ends = None
        if "counts" in shapes:
            self._ends = np.concatenate([[0], np.cumsum(self._read("counts", 0, n), dtype=int)])
        step = max(1, _WINDOW // self._outputs)
        self.n_nonzero = sum(
            int(np.count_nonzero(self.read(k, min(k + step, n)))) for k in range(0, n, step)
        )

    def read(self, begin: int, end: int) -> Floats:
        """Return dense weights of some of the features."""
        n = self._outputs
        if self._ends is None:
            return self._read("W", begin * n, end * n).reshape(-1, n)
        dense = np.zeros((end - begin, n))
        first, last = self._ends[begin], self._ends[end]
        rows = np.repeat(np.arange(end - begin), np.diff(self._ends[begin : end + 1]))
        dense[rows, self._read("columns", first, last)] = self._read("values", first, last)
        return dense
