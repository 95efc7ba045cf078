"""Reading of rows to predict, in batches, and conversion of decision values to output."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.dataset.options import ReadOptions
from sbm.engine.kernels import (
    IDS,
    NAMES,
    READ_TEXT,
    STORE,
    TABLES,
    prepare,
    types_of_dtype,
)
from sbm.engine.progress import Progress
from sbm.errors import DataError
from sbm.inputs.formats import (
    check_headers,
    check_names,
    convert_inputs,
    is_table,
    names_record,
    open_inputs,
)
from sbm.inputs.idtable import IdTable
from sbm.inputs.lines import number_lines
from sbm.inputs.live import Patience
from sbm.inputs.nametable import LabelWords
from sbm.inputs.options import InputOptions, Naming
from sbm.inputs.parsing import ParsedText
from sbm.inputs.text import Source
from sbm.models.metrics import (
    BinaryMetrics,
    MultiMetrics,
    ProbabilityMetrics,
    RegressionMetrics,
)
from sbm.models.model import Model
from sbm.models.probabilities import has_probabilities, probabilities
from sbm.rows import Arena
from sbm.store.blocks import MANIFEST, BlockStore, Chunk, telling_change

_FEW = 64  # up to this many best columns are selected one by one; sorting is faster for more


class Answers:
    """Predictions as text, and their metrics."""

    def __init__(self, metrics: BinaryMetrics | MultiMetrics | RegressionMetrics) -> None:
        self.metrics = metrics

    def title(self) -> Iterator[str]:
        """Return text to write before that of the rows."""
        return iter(())

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        """Update the metrics and return the text of the rows.

        Parameters
        ----------
        y : ndarray, shape (n,), float64
            Labels; nan for rows without one, which do not count in the metrics.
        scores : ndarray, shape (n, n_outputs), float64
            Decision values.

        Returns
        -------
        iterator of str
            The text is generated only when iterated.
        """
        raise NotImplementedError

    def columns(self, scores: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
        """Return what the text of the rows says as columns: words, or numbers."""
        raise NotImplementedError

    def result(self) -> dict[str, Any]:
        """Return all metrics."""
        return self.metrics.result()


def _labelled(
    y: npt.NDArray[np.float64], found: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
    """Return the rows that have a label."""
    known = ~np.isnan(y)
    return (y, found) if known.all() else (y[known], found[known])


def answers_of(model: Model, decision: bool, top: int, probability: bool) -> Answers:
    """Return the `Answers` for a model and the options of `predict`."""
    single = model.W.shape[1] == 1 and len(model.labels) != 1
    answers = _Single(model, decision) if single else _Multi(model, decision, top)
    if probability:
        return _Probability(model, answers)
    is_quick = len(model.labels) <= _FEW and has_probabilities(model)
    return _Judged(model, answers) if is_quick else answers


def _texts_of(model: Model, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return labels as they are told: words, or numbers, whole ones as integers."""
    if model.label_names:
        known = dict(zip(model.labels, model.label_names, strict=True))
        return np.array([known[label] for label in labels.tolist()], object)
    whole = labels.astype(np.int64)
    return whole if bool((whole == labels).all()) else labels


def _lines_of(numbers: npt.NDArray[np.float64], between: str = " ") -> str:
    """Return a line for each row of a matrix."""
    n, width = numbers.shape
    lengths = np.full(n, width - 1, np.int32)
    text = number_lines(numbers[:, 0], lengths, None, numbers[:, 1:].ravel() + 0.0)
    return text.tobytes().decode().replace(" ", between)


def _lines_from(words: Sequence[str], codes: npt.NDArray[np.integer]) -> str:
    """Return a line for each code, with the word that it stands for."""
    lines = np.array([f"{word}\n".encode() for word in words])
    # Words are padded with zeros, which none has.
    text: npt.NDArray[np.uint8] = lines[codes].view(np.uint8)
    return bytes(text[text != 0]).decode()


class _Single(Answers):
    """Predictions from one decision value: its sign gives the label; for regression, itself."""

    def __init__(self, model: Model, decision: bool) -> None:
        self._judge = (
            RegressionMetrics()
            if not model.labels
            else BinaryMetrics(model.labels, threshold=model.threshold)
        )
        super().__init__(self._judge)
        self._model = model
        self._labels, self._words = np.asarray(model.labels), model.label_texts()
        self._as_it_is, self._threshold = decision or not model.labels, model.threshold

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        z = scores[:, 0]
        self._judge.add(*_labelled(y, z))
        return self._text(z)

    def columns(self, scores: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
        z = scores[:, 0]
        if self._as_it_is:
            return {"decision" if len(self._labels) else "prediction": z}
        labels = self._labels[(z > self._threshold).astype(np.intp)]
        return {"prediction": _texts_of(self._model, labels)}

    def _text(self, z: npt.NDArray[np.float64]) -> Iterator[str]:
        if self._as_it_is:
            yield _lines_of(z[:, None])
        elif len(z):
            yield _lines_from(self._words, (z > self._threshold).astype(np.intp))


class _Multi(Answers):
    """Predictions from several decision values: the label of the largest."""

    def __init__(self, model: Model, decision: bool, top: int) -> None:
        # Columns in ascending order of their labels, and the position of each in that order.
        self._order = np.argsort(model.labels)
        self._place = np.argsort(self._order).astype(np.int32)
        self._judge = MultiMetrics(sorted(model.labels), top)
        super().__init__(self._judge)
        self._words, self._between = np.array(model.label_texts()), _separator(model)
        self._decision, self._top, self._model = decision, top, model

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        codes = _best(scores, self._top)
        self._judge.add(*_labelled(y, self._place[codes]))
        return self._text(codes, scores)

    def columns(self, scores: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
        if self._decision:
            return {f"decision_{self._words[k]}": scores[:, k] for k in self._order}
        codes, labels = _best(scores, self._top), np.asarray(self._model.labels)
        names = [f"prediction_{k + 1}" for k in range(self._top)]
        names = ["prediction"] if self._top == 1 else names
        columns = zip(names, labels[codes].T, strict=True)
        return {name: _texts_of(self._model, some) for name, some in columns}

    def _text(self, codes: npt.NDArray[np.int32], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        if self._decision:
            yield _lines_of(scores[:, self._order])
        elif self._top == 1:
            yield _lines_from(self._words.tolist(), codes[:, 0])
        else:
            for row in codes:
                yield self._between.join(self._words[row].tolist()) + "\n"


class _Judged(Answers):
    """Predictions of a model that has probabilities, which are judged."""

    def __init__(self, model: Model, labels: Answers) -> None:
        super().__init__(labels.metrics)
        self._model, self._labels = model, labels
        self._order = np.argsort(model.labels)
        self._quality = ProbabilityMetrics(sorted(model.labels))

    def title(self) -> Iterator[str]:
        return self._labels.title()

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        if not np.isnan(y).all():
            p = probabilities(self._model, scores)[:, self._order]
            self._quality.add(*_labelled(y, p))
        return self._labels.add(y, scores)

    def columns(self, scores: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
        return self._labels.columns(scores)

    def result(self) -> dict[str, Any]:
        return {**super().result(), **self._quality.result()}


class _Probability(_Judged):
    """The predicted label followed by the probabilities of all labels, as LIBLINEAR's ``-b 1``."""

    def __init__(self, model: Model, labels: Answers) -> None:
        super().__init__(model, labels)
        self._between = _separator(model)

    def title(self) -> Iterator[str]:
        texts = self._model.label_texts()
        yield self._between.join(["labels", *(texts[k] for k in self._order)]) + "\n"

    def add(self, y: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> Iterator[str]:
        labels = self._labels.add(y, scores)
        p = probabilities(self._model, scores)[:, self._order]
        self._quality.add(*_labelled(y, p))
        return self._text(labels, p)

    def columns(self, scores: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
        p, texts = probabilities(self._model, scores), self._model.label_texts()
        more = {f"probability_{texts[k]}": p[:, k] for k in self._order}
        return {**self._labels.columns(scores), **more}

    def _text(self, labels: Iterator[str], p: npt.NDArray[np.float64]) -> Iterator[str]:
        texts = _lines_of(p, self._between).splitlines()
        for label, text in zip("".join(labels).split("\n")[:-1], texts, strict=True):
            yield f"{label}{self._between}{text}\n"


def _separator(model: Model) -> str:
    """Return what separates the values of a line: a blank, or a tab if labels have blanks."""
    return "\t" if any(" " in text for text in model.label_texts()) else " "


def _best(scores: npt.NDArray[np.float64], top: int) -> npt.NDArray[np.int32]:
    """Return the columns with the largest values per row, best first; the first one if equal."""
    if top <= _FEW:
        codes = np.empty((len(scores), top), np.int32)
        load("sbm.solver.kernels.decision").best(scores, codes)
        return codes
    scores[np.isnan(scores)] = -np.inf  # as in the kernel
    return np.argsort(-scores, axis=1, kind="stable")[:, :top].astype(np.int32)


SCORES = 1 << 20  # most decision values in memory, 8 MB

# Labels, begins and ends of rows, indices, values and tags of a batch of rows.
_Batch = tuple[
    npt.NDArray[np.float64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    npt.NDArray[np.floating] | None,
    npt.NDArray[np.object_] | None,
]


def require_input(data: str | Path) -> None:
    """Raise `DataError` if the input of `predict` is missing."""
    if not _is_store(data):
        open_inputs([data], InputOptions())


def check_input(
    data: str | Path,
    names: Naming | None,
    words: LabelWords,
    progress: Progress,
    how: ReadOptions,
) -> None:
    """Read the first rows of an input of `predict`, which must have labels, before a training.

    Parameters
    ----------
    data : str or Path
    names : Naming or None
        How features are named.
    words : LabelWords
        How labels become numbers.
    progress : Progress
        Receives the wait for compiled kernels.
    how : ReadOptions
        How the input is written.

    Raises
    ------
    DataError, SettingsError
        The input is missing, or its first rows do not fit.
    """
    sources = sources_of(data, names, how, words=words)
    if sources is None:
        _numbers_of(BlockStore(Path(data)), words)
        return
    prepare_batches(data, sources, "reading", (), progress)
    some = [source for source in sources[:1] if source.comes_again]
    with ThreadPoolExecutor(1, "sbm-parse") as pool:
        pieces = convert_inputs(some, pool, ParsedText.copy, ahead=0, dtype="float64")
        with contextlib.closing(pieces):
            for _ in itertools.islice(pieces, 2):  # an error follows the rows before it
                pass


def sources_of(
    data: str | Path,
    names: Naming | None,
    how: ReadOptions,
    labels: bool | None = True,
    words: LabelWords | None = None,
    targets: bool = False,
    tag: str | None = None,
) -> list[Source] | None:
    """Return the sources of the input of `predict`, or None if it is a store.

    Parameters
    ----------
    names : Naming or None
        How the model names its features.
    how : ReadOptions
        How `data` is written; of them, only those in `OF_FILES`.
    labels, targets, tag
        As in `InputOptions`.
    words : LabelWords, optional
        Labels of the model.

    Raises
    ------
    DataError
        The file is missing, or has feature names but the model has none.
    SettingsError
        The options do not match.
    """
    if _is_store(data):
        return None
    options = replace(
        how.input_options(targets=targets), labels=labels, words=words or LabelWords({}), tag=tag,
        names=None,
    )  # fmt: skip
    if names is not None:
        options = options.following(names, "the model")
    sources = open_inputs([data], options)
    if names is None and names_record(sources) is not None:
        raise DataError(
            f"{data} has feature names, but the model was trained on numeric ids; train a model "
            "on data with feature names"
        )
    if names is not None and names.is_of_table and sources[0].format == "vw":
        raise DataError(
            f"{data} has names of Vowpal Wabbit's text, but the model was trained on a table"
        )
    if names is not None and is_table(sources[0]) and not names.is_of_table:
        raise DataError(
            f"{data} is a table, but the model was trained on Vowpal Wabbit's text; train a model "
            "on a table"
        )
    check_names(sources)
    if is_table(sources[0]):
        prepare("reading tables", TABLES, {}, Progress())
        check_headers(sources)
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
    in_order: bool = False,
    words: LabelWords | None = None,
) -> Iterator[_Batch]:
    """Yield labels, begins, ends, indices, values and tags of batches of rows of text or a store.

    Parameters
    ----------
    sources : list of Source or None
        As returned by `sources_of`.
    table : IdTable
        Converts ids to indices; unknown ids become -1.
    n_outputs : int
        Decision values per row; a batch has at most `SCORES` of them.
    threads : int
        Threads for parsing.
    in_order : bool
        Yield the rows of a store in the order of its text, which takes as much memory as a batch of
        its split; else block by block.
    words : LabelWords, optional
        Gives the labels of a store that are words their numbers. Default: those of the store.

    Raises
    ------
    DataError
        Labels of the store are words, and others are numbers.
    StoreError
        The store has no record of the order of its text.
    """
    batches = (
        _store_batches(Path(data), table, progress, in_order, words)
        if sources is None
        else _text_batches(sources, table, threads, progress)
    )
    return _slices(batches, n_outputs)


def _slices(batches: Iterable[_Batch], n_outputs: int) -> Iterator[_Batch]:
    """Cut batches so that the decision values of each fit in `SCORES`."""
    most = max(1, SCORES // n_outputs)
    for y, begins, ends, indices, values, tags in batches:
        for first in range(0, len(y), most):
            some = slice(first, first + most)
            named = None if tags is None else tags[some]
            yield y[some], begins[some], ends[some], indices, values, named


def prepare_batches(
    data: str | Path,
    sources: list[Source] | None,
    what: str,
    kernels: tuple[str, ...],
    progress: Progress,
) -> None:
    """Compile the kernels that `read_batches` calls, and others that are called for its rows.

    Parameters
    ----------
    data, sources
        As for `read_batches`.
    what : str
        As for `sbm.engine.kernels.prepare`.
    kernels : tuple of str
        The others.
    progress : Progress
    """
    reading: tuple[str, ...]
    if sources is None:
        reading, dtype = STORE + IDS, BlockStore(Path(data)).manifest["dtype"]
    else:
        reading, dtype = READ_TEXT, "float64"
        if names_record(sources):
            reading += TABLES if is_table(sources[0]) else NAMES
    prepare(what, reading + kernels, types_of_dtype(dtype), progress)


def _text_batches(
    sources: list[Source], table: IdTable, threads: int, progress: Progress
) -> Iterator[_Batch]:
    """Read rows of text and look up their ids."""
    known = all(s.size for s in sources)
    progress.start("predict", sum(s.size for s in sources) if known else None)
    with ThreadPoolExecutor(threads, "sbm-parse") as pool:
        rows = 0
        pieces = convert_inputs(
            sources, pool, ParsedText.copy, ahead=threads + 1, dtype="float64",
            patience=None if all(s.comes_again for s in sources) else Patience(prompt=True),
        )  # fmt: skip
        for _, parsed in pieces:
            rows += len(parsed.labels)
            begins, ends = parsed.indptr[:-1], parsed.indptr[1:]
            indices = table.find(parsed.ids)
            yield parsed.labels, begins, ends, indices, parsed.values, parsed.tags
            progress.advance(sum(s.parsed for s in sources), rows=rows)
    progress.finish()


def _store_batches(
    folder: Path, table: IdTable, progress: Progress, in_order: bool, words: LabelWords | None
) -> Iterator[_Batch]:
    """Decode a store a few chunks at a time and translate its feature indices."""
    with telling_change(folder):
        store, done = BlockStore(folder), 0
        translate = table.find(store.read_feature_ids())
        numbers = None if words is None else _numbers_of(store, words)
        progress.start("predict", store.n_rows, "rows")
        as_stored: Iterator[_Read] = (([c], None) for c in itertools.chain(*store.chunks))
        for chunks, order in text_order(store) if in_order else as_stored:
            n, nnz = sum(chunk.rows for chunk in chunks), sum(chunk.nnz for chunk in chunks)
            rows = store.read(chunks, Arena.of(nnz, store.value_type).room(n, "float64"), 0)
            y, begins = np.asarray(rows.y, np.float64), rows.starts
            ends = begins + rows.lengths
            if numbers is not None:
                y = numbers[y.astype(np.int64)]
            if order is not None:
                y, begins, ends = y[order], begins[order], ends[order]
            yield y, begins, ends, translate[rows.indices[:nnz]], rows.values, None
            done += n
            progress.advance(done, rows=done)
        progress.finish()


def _numbers_of(store: BlockStore, words: LabelWords) -> npt.NDArray[np.float64] | None:
    """Return the number of each word of a store; None if its labels are numbers."""
    names: list[str] = (store.manifest["labels"] or {}).get("names", [])
    if names and not words.are_words:
        raise DataError(
            f"{store.folder}: labels are words such as {names[0]}, but {words.whose} are numbers; "
            f"{words.advice}"
        )
    return words.encode(names) if names else None


# Chunks that are read together, and the order of their rows (None: as stored).
_Read = tuple[list[Chunk], npt.NDArray[np.int64] | None]


def text_order(store: BlockStore) -> Iterator[tuple[list[Chunk], npt.NDArray[np.int64]]]:
    """Yield the chunks of each dealt batch (one or more per block) and the order of its rows."""
    from sbm.dataset.deal import replay

    coming = [iter(chunks) for chunks in store.chunks]
    for _, dealt in replay(store):
        chunks: list[Chunk] = []
        for block, rows in dealt.items():
            missing = len(rows)
            while missing > 0:
                chunks.append(next(coming[block]))
                missing -= chunks[-1].rows
        yield chunks, np.argsort(np.concatenate(list(dealt.values())))
