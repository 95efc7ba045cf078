"""Predict: labels and metrics for text or a store of any size, at bounded memory."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.errors import SettingsError
from sbm.jobs.metrics import BinaryMetrics
from sbm.jobs.process import return_freed_memory
from sbm.jobs.progress import Progress
from sbm.rows import Arena
from sbm.settings import format_number
from sbm.store.blocks import MANIFEST, BlockStore
from sbm.store.files import write_error
from sbm.store.idtable import IdTable
from sbm.store.model import Model
from sbm.store.text import expand_inputs, parse_sources

__all__ = ["check_input", "predict"]

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
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Predict the labels of LIBSVM text or of a store.

    Parameters
    ----------
    model : str, Path or Model
    data : str or Path
        Text (plain, .gz, .bz2, .xz, .zst, or ``-``) or a store.
    output : str or Path, optional
        One label a line goes there, in the order of the input (a store's rows: block by block).
    decision : bool
        Write decision values instead of labels.
    threads : int, optional
        For parsing; default: the cores this process may use.
    progress : Progress, optional

    Returns
    -------
    dict
        ``rows``, ``accuracy``, ``auc``, ``confusion``, ``classes`` (precision, recall, F1,
        support), ``unknown_nonzeros``, ``output``.

    Raises
    ------
    DataError
        The text is not LIBSVM text.
    StoreError
        The model or store cannot be read, or the output cannot be written.
    """
    if threads is not None and threads < 1:
        raise SettingsError(f"threads is {threads}; it must be at least 1")
    return_freed_memory()
    for path in (data, model):
        if output is not None and isinstance(path, str | Path) and _same_file(path, output):
            raise SettingsError(f"the output {output} would replace an input; choose another name")
    model = model if isinstance(model, Model) else Model.load(model)
    progress = progress or Progress()
    metrics = BinaryMetrics(model.labels)
    labels = np.asarray(model.labels)
    unknown = 0
    table = IdTable(model.ids)
    batches = (
        _store_batches(Path(data), table, progress)
        if _is_store(data)
        else _text_batches(str(data), table, threads or len(os.sched_getaffinity(0)), progress)
    )
    with _Output(output) as out:
        for y, indptr, indices, values in batches:
            scores, missed = _decide(model, indptr, indices, values)
            unknown += missed
            positive = scores[:, 0] > 0
            metrics.add(y, scores[:, 0])
            out.write(scores[:, 0] if decision else labels[positive.astype(np.intp)])
    return {
        **metrics.result(),
        "unknown_nonzeros": unknown,
        "output": None if output is None else str(output),
    }


def _same_file(a: str | Path, b: str | Path) -> bool:
    return os.path.isfile(a) and os.path.isfile(b) and os.path.samefile(a, b)


def check_input(data: str | Path) -> None:
    """Raise `DataError` where `predict` would not find its input."""
    if not _is_store(data):
        expand_inputs([data])


def _is_store(data: str | Path) -> bool:
    return os.path.isdir(data) and os.path.exists(Path(data) / MANIFEST)


def _decide(
    model: Model,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.floating] | None,
) -> tuple[npt.NDArray[np.float64], int]:
    scores = np.empty((len(indptr) - 1, model.W.shape[1]))
    start = model.bias * model.bias_weights
    kernels = load("sbm.solver.kernels.decision")
    unknown = kernels.decide(indptr, indices, values, np.ascontiguousarray(model.W), start, scores)
    return scores, int(unknown)


def _text_batches(name: str, table: IdTable, threads: int, progress: Progress) -> Iterator[_Batch]:
    """Parse text and look its ids up."""
    sources = expand_inputs([name])
    known = all(s.size for s in sources)
    progress.start("predict", sum(s.size for s in sources) if known else None)
    with ThreadPoolExecutor(threads, "sbm-parse") as pool:
        rows = 0
        for _, parsed in parse_sources(sources, pool, ahead=threads + 1, dtype="float64"):
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


class _Output(contextlib.AbstractContextManager["_Output"]):
    """One number a line, written under a temporary name until complete.

    A pipe or device is written to as it is.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = None if path is None else Path(path)
        self._file: TextIO | None = None

    def __enter__(self) -> "_Output":
        if self._path is not None:
            with self._errors():
                self._file = open(self._temporary, "w", encoding="ascii")
        return self

    @property
    def _temporary(self) -> Path:
        assert self._path is not None
        if self._path.exists() and not self._path.is_file():
            return self._path
        return self._path.with_name(self._path.name + ".tmp")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            assert self._path is not None
            raise write_error(self._path, error) from error

    def write(self, numbers: npt.NDArray[np.float64]) -> None:
        """Append numbers; whole ones without a decimal point, as in the input."""
        if self._file is None:
            return
        values, codes = np.unique(numbers, return_inverse=True)
        words = np.array([format_number(v) for v in values.tolist()] or [""])
        text = "\n".join(words[codes].tolist())
        with self._errors():
            self._file.write(text + "\n" if len(numbers) else "")

    def __exit__(self, kind: object, *details: object) -> None:
        if self._file is None:
            return
        assert self._path is not None
        temporary = self._temporary
        complete = False
        try:
            with self._errors():
                self._file.close()
                if temporary != self._path and kind is None:
                    os.replace(temporary, self._path)
            complete = kind is None
        finally:
            if temporary != self._path and not complete:
                temporary.unlink(missing_ok=True)
