"""Cat: write the rows of a store as text or as Arrow records, in the order of the sources."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.dataset.batches import text_order
from sbm.engine.kernels import LINES, STORE, prepare, types_of_dtype
from sbm.engine.machine import usable_threads
from sbm.engine.prefetch import in_threads
from sbm.engine.progress import Progress
from sbm.errors import SettingsError, refuse_endings, require_ending, require_path
from sbm.inputs.formats import ARROW, ENDINGS, format_of
from sbm.inputs.lines import number_lines
from sbm.inputs.packed import PACKED
from sbm.inputs.records import SparseRows, write_rows
from sbm.plain import dataclass
from sbm.programs.predict import opened
from sbm.rows import Arena, Rows
from sbm.settings import refuse_unknown
from sbm.store.blocks import BlockStore, Chunk, require_whole
from sbm.store.codec import gather_rows

_NNZ = 1 << 17  # nonzeros of rows that are formatted together

FORMATS = ("libsvm", *ARROW)


def cat(
    store: str | Path,
    output: str | Path = "-",
    *,
    format: str | None = None,  # noqa: A002  its name on the command line
    names: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the rows of a store in the order of its sources, without expired ones.

    Splitting the output again gives the same rows. Ids are in ascending order. LIBSVM text has no
    row weights and no words: a label that is a word is written as its number. Parquet and Feather
    files have both.

    Parameters
    ----------
    store : str or Path
    output : str or Path
        File to write; ``-`` is standard output.
    format : {"libsvm", "parquet", "feather"}, optional
        Text, or records of ``label``, ``indices``, ``values`` (unless all are 1) and ``weight`` (if
        rows have weights), which need pyarrow. Default: as the ending of `output` says, else text.
    names : str or Path, optional
        Also write the names of features to this file, for ``--feature-names``.
    progress : Progress, optional
        Receives the rows written.

    Returns
    -------
    dict
        ``store``, ``output``, ``rows``, ``nnz`` and ``left_out``: ``weights`` or ``words`` that the
        format cannot hold.

    Raises
    ------
    SettingsError
        The format is unknown.
    StoreError
        The store is damaged or a shard, or has no record of the order of its sources; or the output
        cannot be written. No incomplete file is left.
    """
    require_path(store, "the store")
    for path in (output, *([] if names is None else [names])):
        require_path(path, "the output")
        refuse_endings(path, PACKED, "choose a name without it")
    if format is None:
        require_ending(output, ENDINGS, "use .svm, .txt, .parquet or .feather, or give --format")
    wanted = format_of(str(output)).name
    format = (wanted if wanted in FORMATS else "libsvm") if format is None else format  # noqa: A001
    refuse_unknown("format", format, FORMATS)
    if wanted not in FORMATS or (format == "libsvm" and wanted != "libsvm"):
        raise SettingsError(
            f"{output} has the ending of {wanted}, but its format would be {format}; use another "
            f"ending{f', or --format {wanted}' if wanted in FORMATS else ''}"
        )
    opened_store = BlockStore(store)
    require_whole(opened_store)
    progress = Progress.of(progress)
    prepare(
        "reading",
        (*STORE, *LINES, "store.rows.gather_rows"),
        types_of_dtype(opened_store.manifest["dtype"]),
        progress,
    )
    threads = usable_threads(None)
    with opened(output) as file, ThreadPoolExecutor(threads, "sbm-cat") as pool:
        assert file is not None
        rows = _parts(opened_store, pool, progress)
        if format == "libsvm":
            is_single = opened_store.manifest["dtype"] == "float32"

            def format_lines(part: _Part) -> npt.NDArray[np.uint8]:
                some = part.rows()
                return number_lines(some.numbers, some.lengths, some.ids, some.values, is_single)

            file.writelines(in_threads(pool, format_lines, rows, threads + 1))
        else:
            some = in_threads(pool, _Part.rows, rows, threads + 1)
            write_rows(some, file, format, str(store), opened_store.value_type)
    if names is not None:
        with opened(names) as file:
            assert file is not None
            file.writelines(_names(opened_store))
    words = ["words"] if opened_store.label_names and format == "libsvm" else []
    weights = ["weights"] if opened_store.has_weights and format == "libsvm" else []
    return {
        "store": str(store), "output": str(output), "rows": opened_store.n_rows,
        "nnz": opened_store.nnz, "left_out": weights + words,
    }  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """Rows of a batch to write."""

    batch: Rows  # with ids, or positions in `ids`, as indices
    chosen: npt.NDArray[np.int64]  # which rows, in their order
    ids: npt.NDArray[np.int64] | None
    words: dict[float, str]

    def rows(self) -> SparseRows:
        """Return the rows, with ids in ascending order."""
        batch, chosen = self.batch, self.chosen
        lengths = batch.lengths[chosen]
        nnz = int(lengths.sum(dtype=np.int64))
        own = Arena.of(nnz, "ones" if batch.values is None else batch.values.dtype.name)
        given = batch.starts, batch.indices, batch.values
        gather_rows(*given, chosen, lengths, own.indices, own.values)
        y: npt.NDArray[Any] = np.asarray(batch.y[chosen], np.float64)
        ids = own.indices.astype(np.int64) if self.ids is None else self.ids[own.indices]
        return SparseRows(
            [self.words[label] for label in y.tolist()] if self.words else y,
            y, lengths, ids, own.values,
            None if batch.weights is None else batch.weights[chosen],
        )  # fmt: skip


def _parts(store: BlockStore, pool: Executor, progress: Progress) -> Iterator[_Part]:
    """Yield the rows of a store in the order of its sources, about `_NNZ` nonzeros at a time."""
    ids, done = store.read_feature_ids(), 0
    codes, sorted_ids = ids.astype(np.int32), None
    if ids.max(initial=0) > np.iinfo(np.int32).max:  # their ranks are sorted instead
        order_of_ids = np.argsort(ids)
        codes[order_of_ids] = np.arange(len(ids), dtype=np.int32)
        sorted_ids = ids[order_of_ids]
    words = dict(zip(store.labels or [], store.label_names, strict=False))

    def read(given: tuple[list[Chunk], npt.NDArray[np.int64]]) -> tuple[Rows, Any]:
        chunks, order = given
        n, nnz = sum(chunk.rows for chunk in chunks), sum(chunk.nnz for chunk in chunks)
        arena = Arena.of(nnz, store.value_type)
        rows = store.read(chunks, arena.room(n, "float64", store.has_weights), 0)
        np.take(codes, arena.indices, out=arena.indices, mode="clip")
        return rows, order

    progress.start("cat", store.n_rows, "rows")
    for rows, order in in_threads(pool, read, text_order(store), ahead=1):
        ends = np.cumsum(rows.lengths[order], dtype=np.int64)
        first, n = 0, len(rows)
        while first < n:
            begin = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, begin + _NNZ, side="right")))
            yield _Part(rows, order[first:last], sorted_ids, words)
            first = last
        done += n
        progress.advance(done, rows=done)
    progress.finish()


def _names(store: BlockStore) -> Iterator[bytes]:
    """Yield a line ``ID NAME`` for each feature with a name."""
    names = store.read_names()
    for identity, name in zip(store.read_feature_ids().tolist(), names or [], strict=False):
        if name:
            yield f"{identity} {' '.join(name.split())}\n".encode()
