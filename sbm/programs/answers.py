"""Rows to predict, some at a time: of text, of a file of another format, of a store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.engine.progress import Progress
from sbm.errors import SettingsError
from sbm.inputs.formats import convert_inputs, names_record, open_inputs
from sbm.inputs.idtable import IdTable
from sbm.inputs.parsing import InputOptions, ParsedText
from sbm.inputs.text import Source
from sbm.models.metrics import (
    BinaryMetrics,
    MultiMetrics,
    ProbabilityMetrics,
    RegressionMetrics,
)
from sbm.models.model import Model
from sbm.models.probabilities import probabilities
from sbm.rows import Arena
from sbm.store.blocks import MANIFEST, BlockStore
from sbm.units import format_number

__all__ = ["SCORES", "Answers", "answers_of", "check_input", "read_batches", "sources_of"]


_FEW = 64  # up to so many best columns are picked one by one; sorting them all is faster for more


class Answers:
    """What is said of rows, and how good it is."""

    def __init__(self, metrics: BinaryMetrics | MultiMetrics | RegressionMetrics) -> None:
        self.metrics = metrics

    def title(self) -> Iterator[str]:
        """Text before that of the rows."""
        return iter(())

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        """Count rows; return their text, which is made only if it is read."""
        raise NotImplementedError

    def result(self) -> dict[str, Any]:
        """All figures."""
        return self.metrics.result()


def answers_of(model: Model, decision: bool, top: int, probability: bool) -> Answers:
    """Choose what a model's decision values are turned into."""
    single = model.W.shape[1] == 1
    answers = _Single(model, decision) if single else _Multi(model, decision, top)
    return _Probability(model, answers) if probability else answers


class _Single(Answers):
    """What one decision value says: its sign the label, or (of regression) itself the target."""

    def __init__(self, model: Model, decision: bool) -> None:
        self._judge = BinaryMetrics(model.labels) if model.labels else RegressionMetrics()
        super().__init__(self._judge)
        self._labels = np.asarray(model.labels)
        self._as_it_is = decision or not model.labels

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        z = scores[:, 0]
        self._judge.add(y, z)
        return self._text(z)

    def _text(self, z: npt.NDArray[np.float64]) -> Iterator[str]:
        numbers = z if self._as_it_is else self._labels[(z > 0).astype(np.intp)]
        values, codes = np.unique(numbers, return_inverse=True)
        words = np.array([format_number(v) for v in values.tolist()] or [""])
        yield "\n".join(words[codes].tolist()) + "\n"


class _Multi(Answers):
    """What is said of rows by the largest of several decision values."""

    def __init__(self, model: Model, decision: bool, top: int) -> None:
        # Columns in ascending order of their labels, and the place of each column in that order.
        self._order = np.argsort(model.labels)
        self._place = np.argsort(self._order).astype(np.int32)
        self._judge = MultiMetrics(sorted(model.labels), top)
        super().__init__(self._judge)
        self._words = np.array([format_number(label) for label in model.labels])
        self._decision, self._top = decision, top

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        codes = _best(scores, self._top)
        self._judge.add(y, self._place[codes])
        return self._text(codes, scores)

    def _text(self, codes: npt.NDArray[np.int32], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        if self._decision:
            for row in scores[:, self._order]:
                yield " ".join(map(format_number, row.tolist())) + "\n"
        elif self._top == 1:
            yield "\n".join(self._words[codes[:, 0]].tolist()) + "\n"
        else:
            for row in codes:
                yield " ".join(self._words[row].tolist()) + "\n"


class _Probability(Answers):
    """The probabilities of all labels behind the predicted one, as LIBLINEAR's ``-b 1``."""

    def __init__(self, model: Model, labels: Answers) -> None:
        super().__init__(labels.metrics)
        self._model, self._labels = model, labels
        self._order = np.argsort(model.labels)
        self._quality = ProbabilityMetrics(sorted(model.labels))

    def title(self) -> Iterator[str]:
        yield " ".join(["labels", *map(format_number, sorted(self._model.labels))]) + "\n"

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        labels = self._labels.add(y, scores)
        p = probabilities(self._model, scores)[:, self._order]
        self._quality.add(y, p)
        return self._text(labels, p)

    def _text(self, labels: Iterator[str], p: npt.NDArray[np.float64]) -> Iterator[str]:
        for label, row in zip("".join(labels).splitlines(), p, strict=True):
            yield " ".join([label, *map(format_number, row.tolist())]) + "\n"

    def result(self) -> dict[str, Any]:
        return {**super().result(), **self._quality.result()}


def _best(scores: npt.NDArray[np.float64], top: int) -> npt.NDArray[np.int32]:
    """Columns with the largest values of each row, best first; of equal ones the first."""
    if top <= _FEW:
        codes = np.empty((len(scores), top), np.int32)
        load("sbm.solver.kernels.decision").best(scores, codes)
        return codes
    scores[np.isnan(scores)] = -np.inf  # as the kernel has it
    return np.argsort(-scores, axis=1, kind="stable")[:, :top].astype(np.int32)


SCORES = 1 << 20  # most decision values in memory at a time, 8 MB

# Labels, row ends, indices and values of one batch of rows.
_Batch = tuple[
    npt.NDArray[np.float64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    npt.NDArray[np.floating] | None,
]


def check_input(data: str | Path) -> None:
    """Raise `DataError` where `predict` would not find its input."""
    if not _is_store(data):
        open_inputs([data], InputOptions())


def sources_of(data: str | Path, names: object, kind: str | None = None) -> list[Source] | None:
    """Open what is to be predicted, with names hashed as they were for the model; None: a store.

    Parameters
    ----------
    data : str or Path
    names : dict or None
        What makes the same ids of the same names again, of the model or of its store.
    kind : str, optional
        Format of `data`. Default: by its name.

    Returns
    -------
    list[Source] | None

    Raises
    ------
    DataError
        There is no such file.
    SettingsError
        It has names and the model knows none, or they would become other ids.
    """
    if _is_store(data):
        return None
    options = InputOptions(format=kind)
    if names is not None:
        options = options.following(names if isinstance(names, dict) else {}, "the model")
    sources = open_inputs([data], options)
    if names is None and names_record(sources) is not None:
        raise SettingsError(
            f"{data} has features with names, but the model was trained on ids without names; "
            "train it on a store that was split from such text"
        )
    return sources


def _is_store(data: str | Path) -> bool:
    return os.path.isdir(data) and os.path.exists(Path(data) / MANIFEST)


def read_batches(
    data: str | Path,
    sources: list[Source] | None,
    table: IdTable,
    n_outputs: int,
    threads: int,
    progress: Progress,
) -> Iterator[_Batch]:
    """Yield labels, row ends, indices and values of some rows of text or of a store at a time.

    Parameters
    ----------
    data : str or Path
    sources : list of Source or None
        What `sources_of` said of it.
    table : IdTable
        Codes of its ids are the indices; those that it does not know become -1.
    n_outputs : int
        Decision values of a row; those of a batch are `SCORES` at most.
    threads : int
        For parsing.
    progress : Progress
    """
    batches = (
        _store_batches(Path(data), table, progress)
        if sources is None
        else _text_batches(sources, table, threads, progress)
    )
    return _slices(batches, n_outputs)


def _slices(batches: Iterable[_Batch], n_outputs: int) -> Iterator[_Batch]:
    """Cut batches so that the decision values of each fit in `SCORES`."""
    most = max(1, SCORES // n_outputs)
    for y, indptr, indices, values in batches:
        for begin in range(0, len(y), most):
            end = min(begin + most, len(y))
            yield y[begin:end], indptr[begin : end + 1], indices, values


def _text_batches(
    sources: list[Source], table: IdTable, threads: int, progress: Progress
) -> Iterator[_Batch]:
    """Read rows and look their ids up."""
    known = all(s.size for s in sources)
    progress.start("predict", sum(s.size for s in sources) if known else None)
    with ThreadPoolExecutor(threads, "sbm-parse") as pool:
        rows = 0
        pieces = convert_inputs(sources, pool, ParsedText.copy, ahead=threads + 1, dtype="float64")
        for _, parsed in pieces:
            rows += len(parsed.labels)
            yield parsed.labels, parsed.indptr, table.find(parsed.ids), parsed.values
            progress.advance(sum(s.parsed for s in sources), rows=rows)
    progress.finish()


def _store_batches(folder: Path, table: IdTable, progress: Progress) -> Iterator[_Batch]:
    """Decode a store chunk by chunk and translate its feature indices."""
    store = BlockStore(folder)
    translate = table.find(store.read_feature_ids())
    chunks = [chunk for block in store.chunks for chunk in block]
    progress.start("predict", store.n_rows, "rows")
    done = 0
    for chunk in chunks:
        room = Arena.of(chunk.nnz, store.value_type).room(chunk.rows, "float64")
        rows = store.read([chunk], room, 0)
        indptr = np.append(rows.starts, chunk.nnz)
        yield np.asarray(rows.y, np.float64), indptr, translate[rows.indices], rows.values
        done += chunk.rows
        progress.advance(done, rows=done)
    progress.finish()
