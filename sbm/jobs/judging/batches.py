"""Rows to predict, some at a time: of text, of a file of another format, of a store."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError
from sbm.jobs.progress import Progress
from sbm.rows import Arena
from sbm.store.blocks import MANIFEST, BlockStore
from sbm.store.formats import convert_inputs, names_record, open_inputs
from sbm.store.idtable import IdTable
from sbm.store.inputs import InputOptions
from sbm.store.parsing import ParsedText
from sbm.store.text import Source

__all__ = ["SCORES", "check_input", "read_batches", "sources_of"]

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
