"""Predict: labels, numbers, probabilities and metrics, at bounded memory."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.engine.kernels import prepare
from sbm.engine.machine import return_freed_memory, usable_threads
from sbm.engine.progress import Progress
from sbm.errors import SettingsError, StoreError
from sbm.inputs.formats import names_record
from sbm.inputs.idtable import IdTable
from sbm.models.liblinear import load_model
from sbm.models.metrics import RegressionMetrics
from sbm.models.model import Model
from sbm.models.probabilities import check_probabilities
from sbm.programs.answers import answers_of, read_batches, sources_of
from sbm.programs.reporting.picture import check_confusion, write_confusion
from sbm.store.files import open_atomically, writing

__all__ = ["is_same_file", "predict"]


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
    """Predict labels, or numbers for regression, of a file or a store.

    Parameters
    ----------
    model : str, Path or Model
    data : str or Path
        Text (plain, .gz, .bz2, .xz, .zst, or ``-``), a file of another format, or a store. Feature
        names become ids as they did in the model's store.
    output : str or Path, optional
        File for one label or number per line, in the order of the input (for a store, block by
        block). ``-`` is standard output.
    decision : bool
        Write decision values instead of labels. Models of more than two classes give one for each
        label, in ascending order of the labels, separated by blanks.
    top : int
        Labels per line, best first, separated by blanks. Of equal decision values the smaller label
        comes first.
    probability : bool
        Append the probabilities of all labels to each label, in ascending order of the labels,
        which the first line names (``labels -1 1``). The label is still that of the decision
        values.
    confusion : sequence of str or Path
        Files for the confusion matrix: a table (.tsv) or a picture (.png, needs matplotlib).
    format : str, optional
        Format of `data`, as for `sbm.split`.
    threads : int, optional
        Threads for parsing. Default: the cores this process may use.
    progress : Progress, optional
        Receives the bytes read.

    Returns
    -------
    dict
        ``rows``, ``accuracy``, ``auc``, ``confusion``, ``classes`` (precision, recall, F1,
        support), ``nnz``, ``unknown_nonzeros``, ``output``. For more than two classes there are
        ``macro_f1``, ``micro_f1``, ``top_n`` and ``top_accuracy`` instead of ``auc``, and
        ``confusion`` is a list of ``[true, predicted, rows]``; see
        `sbm.models.metrics.MultiMetrics`. With `probability` there is ``log_loss`` and, for two
        labels, ``brier``. For regression there are ``rows``, ``mse``, ``mae``, ``r2``,
        ``squared_correlation`` and the last three of the first list.

    Raises
    ------
    DataError
        The data is invalid.
    SettingsError
        Options that do not go together or do not fit the model, such as `probability` for a model
        without probabilities.
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
    answers = answers_of(model, decision, top, probability)
    weights = np.ascontiguousarray(model.W)
    nnz = unknown = 0
    table = IdTable(model.ids)
    batches = read_batches(
        data, sources, table, weights.shape[1], usable_threads(threads), progress
    )
    with _opened(output) as file:
        _write(answers.title(), file)
        for y, indptr, indices, values in batches:
            scores, missed = _decide(model, weights, indptr, indices, values)
            nnz, unknown = nnz + int(indptr[-1] - indptr[0]), unknown + missed
            _write(answers.add(y, scores), file)
    for path in confusion:
        assert not isinstance(answers.metrics, RegressionMetrics)  # it was refused
        write_confusion(answers.metrics.confusion(), path)
    return {
        **answers.result(),
        "nnz": nnz,
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
