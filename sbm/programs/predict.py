"""Predict: labels, numbers, probabilities and metrics, in bounded memory."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Unpack

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.dataset.batches import (
    Batch,
    Found,
    answers_of,
    prepare_batches,
    read_batches,
    sources_of,
)
from sbm.dataset.options import ReadKeywords, ReadOptions
from sbm.dataset.sources import (
    naming_of_model,
    refuse_options_of_tables,
    require_tags,
    table_notes,
    unknown_words,
)
from sbm.engine.kernels import PREDICT, PREDICT_SPARSE
from sbm.engine.machine import return_freed_memory, usable_threads
from sbm.engine.progress import Progress
from sbm.errors import (
    DataError,
    SettingsError,
    StoreError,
    refuse_endings,
    require_number,
    require_path,
)
from sbm.inputs.formats import is_table
from sbm.inputs.idtable import IdTable
from sbm.inputs.nametable import LabelWords
from sbm.inputs.options import Naming
from sbm.inputs.packed import PACKED
from sbm.inputs.parsing import LARGEST_ID
from sbm.inputs.text import Source
from sbm.inputs.urls import remote_terms
from sbm.models.liblinear import load_model
from sbm.models.metrics import Confusion, RegressionMetrics
from sbm.models.model import Model
from sbm.models.probabilities import check_probabilities
from sbm.models.weights import SparseWeights
from sbm.plain import dataclass
from sbm.programs.frequencies import FrequencyCheck
from sbm.programs.predictions import PredictionFile
from sbm.settings import option_name
from sbm.store.container import Buffers
from sbm.store.files import open_atomically, writing
from sbm.units import list_some

# Endings of other formats, which predictions do not have.
_NOT_WRITTEN = (*PACKED, ".arrow", ".feather", ".ipc", ".json", ".jsonl", ".npz")
LARGEST_WINDOW = 128 << 20  # bytes for decompression: zstd --long, xz -9


def predict(
    model: str | Path | Model,
    data: str | Path,
    output: str | Path | None = None,
    *,
    decision: bool = False,
    top: int = 1,
    probability: bool = False,
    confusion: Sequence[str | Path] = (),
    id: str | None = None,  # noqa: A002  their names on the command line
    labels: bool | None = None,
    threads: int | None = None,
    remote_timeout: float | str | None = None,
    progress: Progress | None = None,
    **reading: Unpack[ReadKeywords],
) -> dict[str, Any]:
    """Predict labels, or numbers for regression, for a file or a store.

    Predictions are written to a file; for arrays use `Model.predict`.

    Parameters
    ----------
    model : str, Path or Model
    data : str or Path
        Text (plain, .gz, .bz2, .xz, .zst, or ``-``), a file of another format, or a store. Feature
        names become ids as they did in the model's store.
    output : str or Path, optional
        File for one label or number per line, in the order of the input. The rows of a store have
        the order of its text, without expired sources. ``-`` is standard output. A name that ends
        in ``.csv``, ``.tsv`` or ``.parquet`` gets a table of this format.
    decision : bool
        Write decision values instead of labels. With more than two classes there is one for each
        label, in ascending order of the labels, separated by spaces.
    top : int
        Labels per line, best first, separated by spaces. If decision values are equal, the smaller
        label comes first.
    probability : bool
        Append the probabilities of all labels to each label, in ascending order of the labels,
        which the first line lists (``labels -1 1``). The predicted label still follows from the
        decision values.
    confusion : sequence of str or Path
        Files for the confusion matrix: a table (.tsv) or a picture (.png, needs matplotlib).
    id : str, optional
        Column whose cells are written beside the predictions; ``tag`` for the tags of Vowpal
        Wabbit's text.
    labels : bool, optional
        True: every row needs a label. False: labels are ignored, and a blank line of text is a row
        without features. Default: rows may lack labels (no label column, an empty cell or ``?`` in
        it, a line that begins with its features); metrics are computed from the other rows.
    threads : int, optional
        Threads for parsing. Default: the cores this process may use.
    remote_timeout : float or str, optional
        Maximum time to wait for data from the server of a remote input. Default: 60s.
    progress : Progress, optional
        Receives the bytes read.
    **reading
        How `data` is written: ``format``, ``label``, ``header``, ``sep``, ``quote``, ``decimal``,
        ``encoding`` and ``strict`` of `sbm.ReadOptions`. Default: as the training data. The model
        has fixed the other options.

    Returns
    -------
    dict
        ``rows``, ``unlabelled_rows``, ``accuracy``, ``auc``, ``pr_auc``, ``confusion``, ``classes``
        (precision, recall, F1, support), ``nnz``, ``unknown_nonzeros``, ``warnings`` (messages
        about likely errors in the input), ``output``. For more than two classes there are
        ``macro_f1``, ``micro_f1``, ``top_n`` and ``top_accuracy`` instead of ``auc`` and
        ``pr_auc``, and ``confusion`` is a list of ``[true, predicted, rows]``; see
        `sbm.models.metrics.MultiMetrics`. A model with probabilities of up to 64 labels (with
        `probability`, of any number) also has ``log_loss`` and, for two labels, ``brier``, and
        ``base_log_loss`` and ``base_brier`` of predicting the share of each label. For a table
        there is ``unknown_words``: by column, the number of cells with a word that the model does
        not know. For regression there are ``rows``, ``unlabelled_rows``, ``mse``, ``mae``, ``r2``,
        ``squared_correlation`` and the last four of the first list. If no row has a label, there
        are only ``rows``, ``unlabelled_rows`` and these four.

    Raises
    ------
    DataError
        The data is invalid.
    SettingsError
        Options that cannot be combined or do not fit the model, such as `probability` for a model
        without probabilities.
    StoreError
        The model or store cannot be read, or an output cannot be written.
    """
    if threads is not None:
        require_number("threads", threads, 1)
    require_path(
        data, "the input", "a file or a store is expected; for arrays use Model.predict(X)"
    )
    for path in (*confusion, *([] if output is None else [output])):
        require_path(path, "the output")
    return_freed_memory()
    _check_outputs([model, data], output, confusion)
    model = load_model(model)
    _check_top(model, top, decision, probability)
    _check_kinds(model, decision, probability, bool(confusion), labels)
    how, progress = ReadOptions.of(reading).only_of_files("the model"), Progress.of(progress)
    numbers = dict(zip(model.label_names, model.labels, strict=False))
    words = LabelWords(
        numbers, "labels of the model", "convert them, or add --no-labels", may_be_numbers=True
    )
    naming = naming_of_model(model)
    with remote_terms(remote_timeout, progress.stage):
        sources = sources_of(data, naming, how, labels, words, targets=not model.labels, tag=id)
    given = [name for name in how.given() if name != "strict"]
    if sources is None and given:
        raise SettingsError(f"{data} is a store; {option_name(given[0])} applies to text")
    refuse_options_of_tables([name for name in given if name != "format"], sources or [])
    require_tags(id, sources, data)
    if sources is not None:
        for source in sources:
            source.window = LARGEST_WINDOW
    kernels = PREDICT_SPARSE if isinstance(model.W, SparseWeights) else PREDICT
    prepare_batches(data, sources, "predicting", kernels, progress)
    answers = answers_of(model, decision, top, probability)
    weights = model.W if isinstance(model.W, SparseWeights) else np.ascontiguousarray(model.W)
    rows = unlabelled = nnz = unknown = 0
    table, seen = _Features(model), _SeenIds(model, is_text=sources is not None)
    with opened(output) as file:
        written = PredictionFile(output, file, answers, id)
        written.start()

        def answer(batch: Batch) -> _Answered:
            if labels is False:
                batch = replace(batch, y=np.full(len(batch), np.nan))
            scores, missed = _decide(model, weights, batch)
            n_labelled = len(batch) - int(np.count_nonzero(np.isnan(batch.y)))
            found = answers.find(scores, has_labels=n_labelled > 0)
            lines = written.format(found, batch.tags)
            nnz = int((batch.ends - batch.begins).sum())
            return _Answered(batch.y.copy(), found, lines, batch.tags, n_labelled, nnz, missed)

        def work(batch: Batch) -> tuple[_Ids, Iterable[_Answered]]:
            ids, width = seen.look(batch), weights.shape[1]
            if answers.is_much(batch):
                return ids, map(answer, batch.copy().slices(width))
            return ids, [answer(part) for part in batch.slices(width)]

        batches = read_batches(
            data, sources, table, work, usable_threads(threads), progress,
            in_order=output is not None, words=None if labels is False else words,
        )  # fmt: skip
        for ids, parts in batches:
            seen.add(ids)
            for part in parts:
                rows, unlabelled = rows + len(part.y), unlabelled + len(part.y) - part.n_labelled
                nnz, unknown = nnz + part.nnz, unknown + part.unknown
                answers.judge(part.y, part.found)
                written.add(part.found, part.lines, part.tags)
        written.finish()
        notes = table_notes(sources or [])
    has_labels = unlabelled < rows or rows == 0
    if confusion and not has_labels:
        raise DataError(f"{data} has no labels; omit --confusion")
    for path in confusion:
        assert not isinstance(answers.metrics, RegressionMetrics)  # rejected above
        from sbm.programs.reporting.picture import write_confusion

        write_confusion(_with_texts(answers.metrics.confusion(), model), path)
    return {
        **(_with_words(answers.result(), model) if has_labels else {}),
        "rows": rows,
        "unlabelled_rows": unlabelled,
        "nnz": nnz,
        "unknown_nonzeros": unknown,
        "warnings": _shifted(model, seen)
        + notes
        + _ids_for_names(naming, sources)
        + _new_words(words)
        + _strange(model, nnz, unknown)
        + _worse_than_base(answers.result() if has_labels else {}),
        "output": None if output is None else str(output),
        **unknown_words(sources or []),
    }


def _with_texts(confusion: Confusion, model: Model) -> Confusion:
    """Return counts with the labels as text."""
    texts = dict(zip(model.labels, model.label_texts(), strict=True))
    return replace(confusion, labels=[texts[float(label)] for label in confusion.labels])


def _with_words(result: dict[str, Any], model: Model) -> dict[str, Any]:
    """Replace the numbers of labels by words, if the model has words."""
    if not model.label_names:
        return result
    words: dict[Any, Any] = dict(zip(model.labels, model.label_names, strict=True))
    words[None] = None
    result["labels"] = [words[label] for label in result["labels"]]
    for row in result["classes"]:
        row["label"] = words[row["label"]]
    if "macro_f1" in result:
        result["confusion"] = [[words[t], words[p], n] for t, p, n in result["confusion"]]
    return result


def _new_words(words: LabelWords) -> list[str]:
    """Warn about labels that the model does not know."""
    new = words.new
    if not new:
        return []
    return [f"labels not in the model: {list_some(new)}; their rows count as wrong"]


def _ids_for_names(naming: Naming | None, sources: Sequence[Source] | None) -> list[str]:
    """Warn if the model has features of a table, and the input has ids of features."""
    if naming is None or not naming.is_of_table or not sources or is_table(sources[0]):
        return []
    has = "the model was trained on a table, but the input has ids of features, not columns"
    return [f"{has}; they must be the ids that sbm cat writes"]


def _strange(model: Model, nnz: int, unknown: int) -> list[str]:
    """Warn if the model knows no feature of the input."""
    if not nnz or unknown < nnz:
        return []
    kind = "names" if model.info.get("names") is not None else "ids"
    known = f"the model knows no feature of the input (it has feature {kind})"
    return [f"{known}; check the input and its format"]


def _worse_than_base(result: Mapping[str, Any]) -> list[str]:
    """Warn if the probabilities are worse than the share of each label."""
    loss, base = result.get("log_loss"), result.get("base_log_loss")
    if loss is None or not base or loss <= base:
        return []
    what = f"log-loss {loss:.6f}, base rate {base:.6f}"
    return [f"the probabilities are worse than predicting the share of each label ({what})"]


@dataclass(frozen=True)
class _Answered:
    """Predictions of some rows."""

    y: npt.NDArray[np.float64]
    found: Found
    lines: npt.NDArray[np.uint8] | bytes | None
    tags: npt.NDArray[np.object_] | None
    n_labelled: int
    nnz: int
    unknown: int  # nonzeros whose feature the model does not know


class _Features(IdTable):
    """Codes of a model's features, which are rows of its weights."""

    def __init__(self, model: Model) -> None:
        super().__init__(np.concatenate([model.ids, model.zero_ids]))
        self._n_used = len(model.ids)

    def find(
        self, keys: npt.NDArray[np.int64], buffers: Buffers | None = None
    ) -> npt.NDArray[np.int32]:
        codes = super().find(keys, buffers)
        if self._n_used < len(self):  # only -1 counts as unknown; these weights are 0
            codes[codes >= self._n_used] = -2
        return codes


@dataclass(frozen=True)
class _Ids:
    """What the ids of some rows of text say."""

    smallest: int = LARGEST_ID
    largest: int = -1
    rows: int = 0
    nnz: int = 0
    counts: npt.NDArray[np.int64] | None = None  # as `FrequencyCheck.count` returns them


class _SeenIds:
    """The ids of the input, to notice that they are shifted against those of the model.

    Attributes
    ----------
    smallest, largest : int
    check : FrequencyCheck
    """

    def __init__(self, model: Model, is_text: bool) -> None:
        self.smallest, self.largest = LARGEST_ID, -1
        self.check = FrequencyCheck(model.info.get("frequencies") if is_text else None)

    def look(self, batch: Batch) -> _Ids:
        """Look at a batch, in any thread."""
        if batch.ids is None:
            return _Ids()
        used, ids = batch.ends > batch.begins, batch.ids
        # The check may end before the batch is added, but it does not begin again.
        counts = self.check.count(ids) if self.check.is_open else None
        low = int(ids[batch.begins[used]].min(initial=LARGEST_ID))
        high = int(ids[batch.ends[used] - 1].max(initial=-1))
        return _Ids(low, high, len(batch), len(ids), counts)

    def add(self, ids: _Ids) -> None:
        """Add a batch, in the order of the input."""
        self.smallest = min(self.smallest, ids.smallest)
        self.largest = max(self.largest, ids.largest)
        if self.check.is_open and ids.counts is not None:
            self.check.add(ids.counts, ids.rows, ids.nnz)


def _shifted(model: Model, seen: _SeenIds) -> list[str]:
    """Warn if the ids of the input look shifted by one against those of the model."""
    known = np.concatenate([model.ids, model.zero_ids])
    if model.info.get("names") is not None or not len(known):
        return []
    low, high = int(known.min()), int(known.max())
    least, most = seen.smallest, seen.largest
    if warning := seen.check.warning():
        return [warning]
    is_less = (low, least) == (1, 0) and most < high
    if not is_less and not least - low == most - high == 1:
        return []
    ids = f"ids {least} to {most}, the model {low} to {high}"
    return [f"the input has feature {ids}; they look shifted by one"]


def _check_outputs(
    inputs: Sequence[Any], output: str | Path | None, confusion: Sequence[str | Path]
) -> None:
    """Reject outputs that would replace an input or each other, or cannot be written."""
    if confusion:
        from sbm.programs.reporting.picture import check_confusion

        check_confusion(confusion)
    if output is not None:
        refuse_endings(output, _NOT_WRITTEN, "use .txt, .csv, .tsv or .parquet")
    outputs = [*confusion] if output is None or _is_stdout(output) else [output, *confusion]
    for path in inputs:
        for out in outputs:
            if isinstance(path, str | Path) and is_same_file(path, out):
                raise SettingsError(f"the output {out} would replace an input; choose another name")
    if output is not None and any(Path(output).resolve() == Path(c).resolve() for c in confusion):
        raise SettingsError(
            f"predictions and the confusion matrix cannot both go to {output}; choose another name"
        )


def _check_kinds(
    model: Model, decision: bool, probability: bool, confusion: bool, labels: bool | None
) -> None:
    """Reject outputs that the model cannot have.

    Raises
    ------
    SettingsError
    """
    if probability and decision:
        raise SettingsError(
            "probabilities and decision values cannot be written together; "
            "omit --probability or --decision"
        )
    if probability:
        check_probabilities(model)
    if confusion and not model.labels:
        raise SettingsError("a regression model has no confusion matrix; omit --confusion")
    if confusion and labels is False:
        raise SettingsError("a confusion matrix needs labels; omit --confusion or --no-labels")


def _check_top(model: Model, top: int, decision: bool, probability: bool) -> None:
    """Reject a number of labels per line that does not fit the model or the other options."""
    require_number("top", top, 1)
    if top > 1 and not model.labels:
        raise SettingsError(f"top is {top}, but a regression model predicts no labels; omit --top")
    if top > 1 and decision:
        raise SettingsError(
            f"top is {top}, but decision values are always written for all labels; omit --top or "
            "--decision"
        )
    if top > 1 and probability:
        raise SettingsError(
            f"top is {top}, but probabilities are always written for all labels; omit --top or "
            "--probability"
        )
    if top > 1 and len(model.labels) == 2 and model.W.shape[1] == 1:
        raise SettingsError(
            f"top is {top}, but a model of two classes cannot rank labels; omit --top"
        )
    if model.labels and top > len(model.labels):
        raise SettingsError(
            f"top is {top}; it must be at most the number of classes, {len(model.labels)}"
        )


def _is_stdout(path: str | Path) -> bool:
    return str(path) == "-"


def is_same_file(a: str | Path, b: str | Path) -> bool:
    """Whether two paths are the same existing file."""
    return os.path.isfile(a) and os.path.isfile(b) and os.path.samefile(a, b)


def _decide(
    model: Model,
    weights: npt.NDArray[np.float64] | SparseWeights,
    batch: Batch,
) -> tuple[npt.NDArray[np.float64], int]:
    scores = np.empty((len(batch), weights.shape[1]))
    rows = batch.begins, batch.ends, batch.indices, batch.values
    share = np.zeros(weights.shape[1]) + model.bias * model.bias_weights
    kernels = load("sbm.solver.kernels.decision")
    if isinstance(weights, SparseWeights):
        entries = weights.ends, *weights.entries
        unknown = kernels.decide_sparse(*rows, *entries, share, scores)
    else:
        unknown = kernels.decide(*rows, weights, share, scores)
    return scores, int(unknown)


@contextlib.contextmanager
def opened(path: str | Path | None) -> Iterator[IO[bytes] | None]:
    """Open the output, if any. A regular file appears only when it is complete.

    Pipes and devices are written to directly; ``-`` is standard output.
    """
    if path is None:
        yield None
    elif _is_stdout(path):
        if sys.stdout is None:
            raise StoreError("standard output is closed; give a file name with -o")
        try:
            sys.stdout.flush()
            with open(sys.stdout.fileno(), "wb", closefd=False) as file:
                yield file
        except BrokenPipeError:
            raise  # the reader closed the pipe
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(
                f"cannot write to standard output: {error.strerror or error}; give a file name "
                "with -o"
            ) from error
    elif os.path.exists(path) and not os.path.isfile(path):
        with writing(Path(path)), open(path, "wb") as file:
            yield file
    else:
        with open_atomically(Path(path)) as file:
            yield file
