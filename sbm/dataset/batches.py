"""Reading of rows to predict, in batches, and conversion of decision values to output."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

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
from sbm.engine.prefetch import in_threads
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
from sbm.inputs.lines import number_lines, word_lines
from sbm.inputs.live import Patience
from sbm.inputs.nametable import LabelWords
from sbm.inputs.options import InputOptions, Naming
from sbm.inputs.parsing import SPARE, ParsedText
from sbm.inputs.text import PIECE, Source
from sbm.models.metrics import (
    BinaryMetrics,
    MultiMetrics,
    ProbabilityMetrics,
    RegressionMetrics,
)
from sbm.models.model import Model
from sbm.models.probabilities import has_probabilities, probabilities
from sbm.plain import dataclass
from sbm.rows import Arena
from sbm.store.blocks import MANIFEST, BlockStore, Chunk, telling_change
from sbm.store.container import Buffers

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]

_FEW = 64  # up to this many best columns are selected one by one; sorting is faster for more


@dataclass(frozen=True)
class Found:
    """What follows from the decision values of some rows."""

    scores: npt.NDArray[np.float64]  # shape (n_rows, n_outputs); empty if only `codes` matter
    # shape (n_rows, top), int32; positions of the best labels in those of the model, best first
    codes: npt.NDArray[np.int32] | None = None
    # shape (n_rows, n_labels); probabilities of the labels, in ascending order of these
    p: npt.NDArray[np.float64] | None = None


class Answers:
    """Predictions as text, and their metrics. Only `judge` changes anything."""

    def __init__(
        self, model: Model, metrics: BinaryMetrics | MultiMetrics | RegressionMetrics
    ) -> None:
        self.metrics, self.model = metrics, model
        self.words, self.between = model.label_texts(), _separator(model)

    def title(self) -> Iterator[str]:
        """Return text to write before that of the rows."""
        return iter(())

    def find(self, scores: npt.NDArray[np.float64], has_labels: bool) -> Found:
        """Return what follows from decision values.

        Parameters
        ----------
        scores : ndarray, shape (n, n_outputs), float64
        has_labels : bool
            Whether the rows may be judged.
        """
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Values that `find` returns for each row."""
        return 1

    def is_much(self, batch: Batch) -> bool:
        """Whether what `find` returns for a batch is too much to wait until it is written."""
        return len(batch) * self.width > 8 * SCORES

    def judge(self, y: npt.NDArray[np.float64], found: Found) -> None:
        """Update the metrics.

        Parameters
        ----------
        y : ndarray, shape (n,), float64
            Labels; nan for rows without one, which do not count in the metrics.
        found : Found
        """
        raise NotImplementedError

    def text(self, found: Found) -> Bytes:
        """Return the text of the rows."""
        raise NotImplementedError

    def columns(self, found: Found) -> dict[str, npt.NDArray[Any]]:
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


def _lines_of(numbers: npt.NDArray[np.float64], between: str = " ") -> Bytes:
    """Return a line for each row of a matrix."""
    n, width = numbers.shape
    lengths = np.full(n, width - 1, np.int32)
    text = number_lines(numbers[:, 0], lengths, None, numbers[:, 1:].ravel() + 0.0)
    if between != " ":
        text[text == ord(" ")] = ord(between)
    return text


class _Single(Answers):
    """Predictions from one decision value: its sign gives the label; for regression, itself."""

    def __init__(self, model: Model, decision: bool) -> None:
        self._judge = (
            RegressionMetrics()
            if not model.labels
            else BinaryMetrics(model.labels, threshold=model.threshold)
        )
        super().__init__(model, self._judge)
        self._labels = np.asarray(model.labels)
        self._as_it_is, self._threshold = decision or not model.labels, model.threshold

    def find(self, scores: npt.NDArray[np.float64], has_labels: bool) -> Found:
        if self._as_it_is:
            return Found(scores)
        return Found(scores, (scores > self._threshold).astype(np.int32))

    def judge(self, y: npt.NDArray[np.float64], found: Found) -> None:
        self._judge.add(*_labelled(y, found.scores[:, 0]))

    def columns(self, found: Found) -> dict[str, npt.NDArray[Any]]:
        if found.codes is None:
            return {"decision" if len(self._labels) else "prediction": found.scores[:, 0]}
        return {"prediction": _texts_of(self.model, self._labels[found.codes[:, 0]])}

    def text(self, found: Found) -> Bytes:
        if found.codes is None:
            return _lines_of(found.scores)
        return word_lines(found.codes, self.words)


class _Multi(Answers):
    """Predictions from several decision values: the label of the largest."""

    def __init__(self, model: Model, decision: bool, top: int) -> None:
        # Columns in ascending order of their labels, and the position of each in that order.
        self._order = np.argsort(model.labels)
        self._place = np.argsort(self._order).astype(np.int32)
        self._judge = MultiMetrics(sorted(model.labels), top)
        super().__init__(model, self._judge)
        self._decision, self._top = decision, top

    def find(self, scores: npt.NDArray[np.float64], has_labels: bool) -> Found:
        codes = _best(scores, self._top)
        return Found(scores if self._decision else scores[:0].copy(), codes)

    @property
    def width(self) -> int:
        return len(self.words) if self._decision else self._top

    def judge(self, y: npt.NDArray[np.float64], found: Found) -> None:
        assert found.codes is not None
        self._judge.add(*_labelled(y, self._place[found.codes]))

    def columns(self, found: Found) -> dict[str, npt.NDArray[Any]]:
        assert found.codes is not None
        if self._decision:
            return {f"decision_{self.words[k]}": found.scores[:, k] for k in self._order}
        labels = np.asarray(self.model.labels)
        names = [f"prediction_{k + 1}" for k in range(self._top)]
        names = ["prediction"] if self._top == 1 else names
        columns = zip(names, labels[found.codes].T, strict=True)
        return {name: _texts_of(self.model, some) for name, some in columns}

    def text(self, found: Found) -> Bytes:
        assert found.codes is not None
        if self._decision:
            return _lines_of(found.scores[:, self._order])
        return word_lines(found.codes, self.words, self.between)


class _Judged(Answers):
    """Predictions of a model that has probabilities, which are judged."""

    _is_written = False

    def __init__(self, model: Model, labels: Answers) -> None:
        super().__init__(model, labels.metrics)
        self._labels, self._order = labels, np.argsort(model.labels)
        self._quality = ProbabilityMetrics(sorted(model.labels))

    def title(self) -> Iterator[str]:
        return self._labels.title()

    def find(self, scores: npt.NDArray[np.float64], has_labels: bool) -> Found:
        found = self._labels.find(scores, has_labels)
        if not (has_labels or self._is_written):
            return found
        return replace(found, p=probabilities(self.model, scores)[:, self._order])

    @property
    def width(self) -> int:
        return len(self.words)

    def judge(self, y: npt.NDArray[np.float64], found: Found) -> None:
        if found.p is not None:
            self._quality.add(*_labelled(y, found.p))
        self._labels.judge(y, found)

    def columns(self, found: Found) -> dict[str, npt.NDArray[Any]]:
        return self._labels.columns(found)

    def text(self, found: Found) -> Bytes:
        return self._labels.text(found)

    def result(self) -> dict[str, Any]:
        return {**super().result(), **self._quality.result()}


class _Probability(_Judged):
    """The predicted label followed by the probabilities of all labels, as LIBLINEAR's ``-b 1``."""

    _is_written = True

    def title(self) -> Iterator[str]:
        yield self.between.join(["labels", *(self.words[k] for k in self._order)]) + "\n"

    def columns(self, found: Found) -> dict[str, npt.NDArray[Any]]:
        assert found.p is not None
        more = {
            f"probability_{self.words[k]}": p for k, p in zip(self._order, found.p.T, strict=True)
        }
        return {**self._labels.columns(found), **more}

    def text(self, found: Found) -> Bytes:
        assert found.p is not None
        labels = bytes(self._labels.text(found)).split(b"\n")[:-1]
        texts, between = bytes(_lines_of(found.p, self.between)).splitlines(), self.between.encode()
        lines = [b"%b%b%b\n" % (a, between, b) for a, b in zip(labels, texts, strict=True)]
        return np.frombuffer(b"".join(lines), np.uint8)


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


SCORES = 1 << 17  # decision values that are computed at a time, 1 MB


@dataclass(frozen=True)
class Batch:
    """Rows to predict."""

    y: npt.NDArray[np.float64]  # shape (n_rows,); nan if the row has no label
    # shape (n_rows,); row i has ``indices[begins[i] : ends[i]]``
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]  # shape (nnz,); -1 for unknown ids
    values: npt.NDArray[np.floating] | None  # shape (nnz,); None if every value is 1
    tags: npt.NDArray[np.object_] | None = None  # shape (n_rows,); as in `ParsedText`
    ids: npt.NDArray[np.int64] | None = None  # shape (nnz,), of text, ascending in each row

    def __len__(self) -> int:
        return len(self.y)

    def slices(self, n_outputs: int) -> Iterator[Batch]:
        """Cut the rows so that the decision values of each part fit in `SCORES`."""
        most = max(1, SCORES // n_outputs)
        for first in range(0, len(self), most):
            some = slice(first, first + most)
            y, begins, ends = self.y[some], self.begins[some], self.ends[some]
            tags = None if self.tags is None else self.tags[some]
            yield replace(self, y=y, begins=begins, ends=ends, tags=tags)

    def copy(self) -> Batch:
        """Return a copy without ids that shares no arrays."""
        values = None if self.values is None else self.values.copy()
        y, begins, ends = self.y.copy(), self.begins.copy(), self.ends.copy()
        return Batch(y, begins, ends, self.indices.copy(), values, self.tags)


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
    for source in sources:
        source.is_peeked = True
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
    work: Callable[[Batch], T],
    threads: int,
    progress: Progress,
    in_order: bool = False,
    words: LabelWords | None = None,
) -> Iterator[T]:
    """Yield the results of batches of rows of text or a store, in order.

    Parameters
    ----------
    sources : list of Source or None
        As returned by `sources_of`.
    table : IdTable
        Converts ids to indices.
    work : callable
        Called with each batch in a thread. Arrays of the batch are valid until it returns.
    threads : int
        Threads for parsing, decoding and `work`.
    in_order : bool
        Yield the rows of a store in the order of its text, which takes as much memory as a batch of
        its split, for each thread; else block by block.
    words : LabelWords, optional
        Gives the labels of a store that are words their numbers. Default: those of the store.

    Raises
    ------
    DataError
        Labels of the store are words, and others are numbers.
    StoreError
        The store has no record of the order of its text.
    """
    with ThreadPoolExecutor(threads, "sbm-parse") as pool:
        yield from (
            _store_batches(Path(data), table, work, pool, threads, progress, in_order, words)
            if sources is None
            else _text_batches(sources, table, work, pool, threads, progress)
        )


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
    sources: list[Source],
    table: IdTable,
    work: Callable[[Batch], T],
    pool: ThreadPoolExecutor,
    threads: int,
    progress: Progress,
) -> Iterator[T]:
    """Read rows of text, look up their ids, and work on them in the threads that parsed them."""
    known = all(s.size for s in sources)
    buffers = Buffers(PIECE + SPARE)

    def convert(parsed: ParsedText) -> tuple[int, T]:
        codes = table.find(parsed.ids, buffers)
        begins, ends = parsed.indptr[:-1], parsed.indptr[1:]
        batch = Batch(parsed.labels, begins, ends, codes, parsed.values, parsed.tags, parsed.ids)
        result = work(batch)
        buffers.give_back(codes)
        return len(batch), result

    progress.start("predict", sum(s.size for s in sources) if known else None)
    rows = 0
    pieces = convert_inputs(
        sources, pool, convert, ahead=threads + 1, dtype="float64",
        patience=None if all(s.comes_again for s in sources) else Patience(prompt=True),
    )  # fmt: skip
    for _, (n, result) in pieces:
        rows += n
        yield result
        progress.advance(sum(s.parsed for s in sources), rows=rows)
    progress.finish()


def _store_batches(
    folder: Path,
    table: IdTable,
    work: Callable[[Batch], T],
    pool: ThreadPoolExecutor,
    threads: int,
    progress: Progress,
    in_order: bool,
    words: LabelWords | None,
) -> Iterator[T]:
    """Decode a store a few chunks at a time, translate its indices, and work on its rows."""
    with telling_change(folder):
        store, done = BlockStore(folder), 0
        translate = table.find(store.read_feature_ids())
        numbers = None if words is None else _numbers_of(store, words)
        local = threading.local()

        def convert(read: _Read) -> tuple[int, T]:
            chunks, order = read
            n, nnz = sum(chunk.rows for chunk in chunks), sum(chunk.nnz for chunk in chunks)
            arena = getattr(local, "arena", None)
            if arena is None or len(arena.indices) < nnz:  # later batches have about as many
                arena = local.arena = Arena.of(nnz + nnz // 8, store.value_type)
            rows = store.read(chunks, arena.room(n, "float64"), 0)
            y, begins = np.asarray(rows.y, np.float64), rows.starts
            ends = begins + rows.lengths
            if numbers is not None:
                y = numbers[y.astype(np.int64)]
            if order is not None:
                y, begins, ends = y[order], begins[order], ends[order]
            indices = rows.indices[:nnz]
            np.take(translate, indices, out=indices, mode="clip")
            return n, work(Batch(y, begins, ends, indices, rows.values))

        progress.start("predict", store.n_rows, "rows")
        as_stored: Iterator[_Read] = (([c], None) for c in itertools.chain(*store.chunks))
        reads = text_order(store) if in_order else as_stored
        for n, result in in_threads(pool, convert, reads, ahead=threads):
            yield result
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
        dealt_rows = np.concatenate(list(dealt.values()))
        order = np.empty_like(dealt_rows)
        order[dealt_rows] = np.arange(len(dealt_rows))
        yield chunks, order
