"""Predict: labels, numbers, probabilities and metrics, at bounded memory."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.errors import SettingsError, StoreError
from sbm.jobs.confusion import check_confusion, write_confusion
from sbm.jobs.metrics import (
    BinaryMetrics,
    MultiMetrics,
    ProbabilityMetrics,
    RegressionMetrics,
)
from sbm.jobs.models import load_model
from sbm.jobs.process import return_freed_memory, usable_threads
from sbm.jobs.progress import Progress
from sbm.jobs.warm import prepare
from sbm.probabilities import check_probabilities, probabilities
from sbm.rows import Arena
from sbm.settings import format_number
from sbm.store.blocks import MANIFEST, BlockStore
from sbm.store.files import open_atomically, writing
from sbm.store.formats import convert_inputs, names_record, open_inputs
from sbm.store.idtable import IdTable
from sbm.store.inputs import InputOptions
from sbm.store.libsvm import ParsedText
from sbm.store.model import Model
from sbm.store.text import Source

__all__ = ["SCORES", "check_input", "is_same_file", "predict", "read_batches", "sources_of"]

SCORES = 1 << 20  # most decision values in memory at a time, 8 MB
_FEW = 64  # up to so many best columns are picked one by one; sorting them all is faster for more

# Labels, row ends, indices and values of one batch of rows.
_Batch = tuple[
    npt.NDArray[np.float64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    npt.NDArray[np.floating] | None,
]


def predict(
    model: str | Path | Model,
    data: str | Path,
    output: str | Path | None = None,
    *,
    decision: bool = False,
    top: int = 1,
    probability: bool = False,
    confusion: Sequence[str | Path] = (),
    format: str | None = None,  # noqa: A002  its name on the command line
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Predict the labels, or of a regression model the targets, of LIBSVM text or of a store.

    Parameters
    ----------
    model : str, Path or Model
    data : str or Path
        Text (plain, .gz, .bz2, .xz, .zst, or ``-``), a file of another format, or a store. Names
        of features become ids as they did when the model's store was split.
    output : str or Path, optional
        One label (or number) a line goes there, in the order of the input (a store's rows: block by
        block). ``-`` is standard output.
    decision : bool
        Write decision values instead of labels; a multi-class model gives one for each of its
        labels, in ascending order of the labels, separated by blanks.
    top : int
        Labels a line, the best first, separated by blanks; of equal decision values the smaller
        label comes first.
    probability : bool
        Write behind each label the probabilities of all labels, in ascending order of the labels,
        which the first line names (``labels -1 1``). The label remains that of the decision values.
    confusion : sequence of str or Path
        Files for the confusion matrix: a table (.tsv) or a picture (.png, needs matplotlib).
    format : str, optional
        Of `data`, as for `sbm.split`.
    threads : int, optional
        For parsing; default: the cores this process may use.
    progress : Progress, optional

    Returns
    -------
    dict
        ``rows``, ``accuracy``, ``auc``, ``confusion``, ``classes`` (precision, recall, F1,
        support), ``unknown_nonzeros``, ``output``. A multi-class model has ``macro_f1``,
        ``micro_f1``, ``top_n`` and ``top_accuracy`` in the place of ``auc``, and its ``confusion``
        is a list of ``[true, predicted, rows]``; see `sbm.jobs.metrics.MultiMetrics`. With
        `probability` there are ``log_loss`` and, of two labels, ``brier``. A regression model has
        ``rows``, ``mse``, ``mae``, ``r2`` and ``squared_correlation`` instead of all but the last
        two.

    Raises
    ------
    DataError
        The text is not LIBSVM text.
    SettingsError
        Options that have no meaning, or not for this model, as `probability` for one that has none.
    StoreError
        The model or store cannot be read, or an output cannot be written.
    """
    if threads is not None and threads < 1:
        raise SettingsError(f"threads is {threads}; it must be at least 1")
    return_freed_memory()
    _check_outputs([model, data], output, confusion)
    model = load_model(model)
    _check_top(model, top, decision, probability)
    if probability and decision:
        raise SettingsError(
            "probabilities and decision values cannot be written together; "
            "leave out --probability or --decision"
        )
    if probability:
        check_probabilities(model)
    if confusion and not model.labels:
        raise SettingsError(
            "this model predicts a number, not a label, so there is no confusion matrix; "
            "leave out --confusion"
        )
    progress = progress or Progress()
    sources = sources_of(data, model.info.get("names"), format)
    if sources is not None:
        prepare("predict", "float64", progress)
        if names_record(sources):
            prepare("names", "float64", progress)
    answers = _answers(model, decision, top, probability)
    weights = np.ascontiguousarray(model.W)
    unknown = 0
    table = IdTable(model.ids)
    batches = read_batches(
        data, sources, table, weights.shape[1], usable_threads(threads), progress
    )
    with _opened(output) as file:
        _write(answers.title(), file)
        for y, indptr, indices, values in batches:
            scores, missed = _decide(model, weights, indptr, indices, values)
            unknown += missed
            _write(answers.add(y, scores), file)
    for path in confusion:
        assert not isinstance(answers.metrics, RegressionMetrics)  # it was refused
        write_confusion(answers.metrics.confusion(), path)
    return {
        **answers.result(),
        "unknown_nonzeros": unknown,
        "output": None if output is None else str(output),
    }


def _check_outputs(
    inputs: Sequence[Any], output: str | Path | None, confusion: Sequence[str | Path]
) -> None:
    """Refuse outputs that would replace an input or each other, or cannot be made."""
    check_confusion(confusion)
    outputs = [*confusion] if output is None or _is_stdout(output) else [output, *confusion]
    for path in inputs:
        for out in outputs:
            if isinstance(path, str | Path) and is_same_file(path, out):
                raise SettingsError(f"the output {out} would replace an input; choose another name")
    if output is not None and any(Path(output).resolve() == Path(c).resolve() for c in confusion):
        raise SettingsError(
            f"predictions and the confusion matrix cannot both go to {output}; choose another name"
        )


def _check_top(model: Model, top: int, decision: bool, probability: bool) -> None:
    """Refuse a number of labels a line that the model cannot give."""
    if top < 1:
        raise SettingsError(f"top is {top}; it must be at least 1")
    if top > 1 and not model.labels:
        raise SettingsError(
            f"top is {top}, but this model predicts a number, not a label; leave out --top"
        )
    if top > 1 and decision:
        raise SettingsError(
            f"top is {top}, but decision values are written for all labels, in the order of the "
            "labels; leave out --top or --decision"
        )
    if top > 1 and probability:
        raise SettingsError(
            f"top is {top}, but probabilities are written for all labels, in the order of the "
            "labels; leave out --top or --probability"
        )
    if top > 1 and model.W.shape[1] == 1:
        raise SettingsError(
            f"top is {top}, but the model tells two classes apart by one decision value, which "
            "ranks nothing; leave out --top"
        )
    if model.labels and top > len(model.labels):
        raise SettingsError(
            f"top is {top}; the model has {len(model.labels)} classes, so it must be at most that"
        )


def _is_stdout(path: str | Path) -> bool:
    return str(path) == "-"


def is_same_file(a: str | Path, b: str | Path) -> bool:
    """Whether two names are of one file."""
    return os.path.isfile(a) and os.path.isfile(b) and os.path.samefile(a, b)


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


def _decide(
    model: Model,
    weights: npt.NDArray[np.float64],
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.floating] | None,
) -> tuple[npt.NDArray[np.float64], int]:
    scores = np.empty((len(indptr) - 1, weights.shape[1]))
    share = np.zeros(weights.shape[1]) + model.bias * model.bias_weights
    kernels = load("sbm.solver.kernels.decision")
    unknown = kernels.decide(indptr[:-1], indptr[1:], indices, values, weights, share, scores)
    return scores, int(unknown)


class _Answers:
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


def _answers(model: Model, decision: bool, top: int, probability: bool) -> _Answers:
    single = model.W.shape[1] == 1
    answers = _Single(model, decision) if single else _Multi(model, decision, top)
    return _Probability(model, answers) if probability else answers


class _Single(_Answers):
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


class _Multi(_Answers):
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


class _Probability(_Answers):
    """The probabilities of all labels behind the predicted one, as LIBLINEAR's ``-b 1``."""

    def __init__(self, model: Model, labels: _Answers) -> None:
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


@contextlib.contextmanager
def _opened(path: str | Path | None) -> Iterator[IO[bytes] | None]:
    """Open a file that is there when it is complete, if there is to be one.

    A pipe or device is written to as it is; ``-`` is standard output.
    """
    if path is None:
        yield None
    elif _is_stdout(path):
        if sys.stdout is None:
            raise StoreError("standard output is closed; give -o a file name")
        try:
            sys.stdout.flush()
            with open(sys.stdout.fileno(), "wb", closefd=False) as file:
                yield file
        except BrokenPipeError:
            raise  # whoever read it has gone
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"cannot print the predictions: {error.strerror}") from error
    elif os.path.exists(path) and not os.path.isfile(path):
        with writing(Path(path)), open(path, "wb") as file:
            yield file
    else:
        with open_atomically(Path(path)) as file:
            yield file


def _write(pieces: Iterable[str], file: IO[bytes] | None) -> None:
    """Append text; without a file, the pieces are not even made."""
    if file is not None:
        file.writelines(piece.encode("ascii") for piece in pieces)
