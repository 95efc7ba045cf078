"""Split: LIBSVM text to a block store, read once, rows dealt to blocks at random.

Text is parsed in threads, ids become indices in order of first appearance, rows gather in a batch;
a full batch is permuted and dealt, one chunk to each block, while the next one fills. Memory is two
batches, whatever the number of blocks.
"""

import contextlib
import datetime
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.jobs.memory import INTERPRETER
from sbm.jobs.progress import Progress
from sbm.jobs.warm import prepare
from sbm.rows import Rows
from sbm.settings import format_size, parse_size
from sbm.store import arrays as container
from sbm.store import blocks as store_files
from sbm.store.files import lock, write_error
from sbm.store.idtable import IdTable, sort_rows
from sbm.store.libsvm import ParsedText
from sbm.store.text import PIECE, Source, expand_inputs, parse_sources

__all__ = ["default_store", "split"]

# A block is meant to fit the default --mem of training beside its cache and the next block.
BLOCK_BYTES = 400_000_000
AUTO_BLOCKS = 12
SMALL_BLOCK = 50_000
LARGEST_BATCH = 64_000_000  # bytes of rows; more does not compress better
MOST_LABELS = 65536  # more distinct labels than this are real numbers, not classes
PIECE_FACTOR = 5  # bytes held for each byte of text being parsed


def default_store(first_input: str) -> Path:
    """``big.svm.zst`` -> ``big.sbm``, in the current folder."""
    name = Path(first_input).name
    for ending in (".gz", ".bz2", ".xz", ".zst", ".svm", ".libsvm", ".txt"):
        name = name.removesuffix(ending)
    return Path(f"{name}.sbm")


@dataclass
class _Batch:
    """Rows that are gathered before they are dealt."""

    rows: Rows
    labels: npt.NDArray[np.float64]
    n: int = 0
    nnz: int = 0
    has_values: bool = False

    @classmethod
    def of(cls, n_rows: int, nnz: int, dtype: str) -> "_Batch":
        labels = np.empty(n_rows)
        starts, lengths = np.empty(n_rows, np.int64), np.empty(n_rows, np.int32)
        indices, values = np.empty(nnz, np.int32), np.empty(nnz, dtype)
        return cls(Rows(starts, lengths, indices, values, labels), labels)

    def append(
        self,
        labels: npt.NDArray[np.float64],
        indptr: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int32],
        values: npt.NDArray[np.floating] | None,
    ) -> None:
        new = slice(self.n, self.n + len(labels))
        added = slice(self.nnz, self.nnz + len(indices))
        self.labels[new] = labels
        self.rows.starts[new] = indptr[:-1] - indptr[0] + self.nnz
        self.rows.lengths[new] = np.diff(indptr)
        self.rows.indices[added] = indices
        assert self.rows.values is not None
        if values is not None:
            if not self.has_values:
                self.rows.values[: self.nnz] = 1
                self.has_values = True
            self.rows.values[added] = values
        elif self.has_values:
            self.rows.values[added] = 1
        self.n, self.nnz = new.stop, added.stop

    def taken(self, y: npt.NDArray[Any]) -> Rows:
        """The rows gathered, with codes or targets for their labels."""
        n, rows = self.n, self.rows
        values = rows.values if self.has_values else None
        return Rows(rows.starts[:n], rows.lengths[:n], rows.indices, values, y)

    def clear(self) -> None:
        self.n = self.nnz = 0
        self.has_values = False


class _Labels:
    """Class codes in order of first appearance, until there are too many to be classes."""

    def __init__(self, values: Sequence[float] | None, counts: Sequence[int]) -> None:
        self.real = values is None
        known = np.array(values or [], np.float64)
        self._table = IdTable(known.view(np.int64))
        self._counts = np.zeros(MOST_LABELS + 1, np.int64)
        self._counts[: len(counts)] = counts

    def encode(self, labels: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Codes, shape (n,), int32; the labels themselves once they are real-valued."""
        if self.real:
            return labels
        plain = labels + 0.0  # -0.0 and 0.0 are one label
        codes = self._table.intern(plain.view(np.int64))
        if len(self._table) > MOST_LABELS:
            self.real = True
            return labels
        self._counts[: len(self._table)] += np.bincount(codes, minlength=len(self._table))
        return codes

    @property
    def values(self) -> list[float]:
        """Label of each code."""
        return list(self._table.keys[:MOST_LABELS].view(np.float64).tolist())

    def describe(self) -> dict[str, Any] | None:
        """What the manifest keeps; None for real-valued labels."""
        if self.real:
            return None
        return {"values": self.values, "counts": self._counts[: len(self._table)].tolist()}


@dataclass(frozen=True)
class _Options:
    blocks: int | None
    block_size: int | None
    dtype: str
    seed: int
    shuffle: bool
    level: int
    threads: int
    mem: int
    skip: bool


class _Dealer:
    """Gathers parsed text in batches and deals each batch to the blocks."""

    def __init__(
        self,
        folder: Path,
        first_block: int,
        options: _Options,
        ids: IdTable,
        labels: _Labels,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._folder, self._first, self._options = folder, first_block, options
        self.ids, self.labels = ids, labels
        self._pool = pool
        self._random = np.random.default_rng([options.seed, first_block, 2])
        width = 4 + np.dtype(options.dtype).itemsize
        room = options.mem - INTERPRETER - (options.threads + 2) * PIECE * PIECE_FACTOR
        bytes_each = min(LARGEST_BATCH, room // 3)
        if bytes_each < 2_000_000:
            least = INTERPRETER + (options.threads + 2) * PIECE * PIECE_FACTOR + 6_000_000
            raise MemoryPlanError(
                f"--mem {format_size(options.mem)} is too little to split with "
                f"{options.threads} threads; the least is {format_size(least)}",
                least,
            )
        self._room = room - 2 * bytes_each
        self._capacity = bytes_each // width
        self._row_capacity = bytes_each // 64
        self._dtype = options.dtype
        self._batches = [self._new_batch() for _ in range(2)]
        self._writer: store_files.BlockWriter | None = None
        self._dealt = 0
        self.n_rows = 0
        self.nnz = 0
        self.has_values = False

    def add(self, parsed: ParsedText, text_share: float) -> None:
        """Take a piece of text; `text_share` is the part of the whole input read so far."""
        indices = self.ids.intern(parsed.ids)
        sort_rows(parsed.indptr, indices, parsed.values)
        if self.ids.nbytes > self._room:
            raise MemoryPlanError(
                f"{len(self.ids)} distinct features need {format_size(self.ids.nbytes)} for their "
                f"ids alone, --mem {format_size(self._options.mem)} leaves "
                f"{format_size(self._room)}; raise --mem",
                self._options.mem + self.ids.nbytes,
            )
        self.n_rows += len(parsed.labels)
        self.nnz += len(indices)
        self.has_values |= parsed.values is not None
        if self._writer is None:
            self._open(text_share)
        self._gather(parsed, indices)

    def _new_batch(self) -> _Batch:
        return _Batch.of(self._row_capacity, self._capacity, self._dtype)

    def _gather(self, parsed: ParsedText, indices: npt.NDArray[np.int32]) -> None:
        """Append rows, dealing whenever the batch is full."""
        row, indptr = 0, parsed.indptr
        while row < len(parsed.labels):
            batch = self._batches[0]
            room = indptr[row] + len(batch.rows.indices) - batch.nnz
            last = int(np.searchsorted(indptr, room, side="right")) - 1
            last = min(last, row + len(batch.rows) - batch.n)
            if last <= row:
                if batch.n:
                    self._deal()
                else:  # a row larger than a batch gets a batch of its own
                    length = int(indptr[row + 1] - indptr[row])
                    self._batches[0] = _Batch.of(1, length, self._dtype)
                continue
            part = slice(indptr[row], indptr[last])
            values = None if parsed.values is None else parsed.values[part]
            batch.append(parsed.labels[row:last], indptr[row : last + 1], indices[part], values)
            row = last

    def _open(self, text_share: float) -> None:
        """Decide the number of blocks, from what the first piece says about the whole."""
        width = 4 + (np.dtype(self._dtype).itemsize if self.has_values else 0)
        so_far = self.nnz * width + self.n_rows * 40
        options = self._options
        estimate = so_far / text_share if text_share > 0 else None
        if options.blocks is not None:
            n = options.blocks
        elif options.block_size is not None:
            if estimate is None:
                raise SettingsError(
                    "--block-size needs an input of known size; give --blocks when reading a pipe"
                )
            n = math.ceil(estimate / options.block_size)
        elif estimate is None:
            n = AUTO_BLOCKS
        else:
            most = max(1, round(estimate / SMALL_BLOCK))
            n = min(most, max(AUTO_BLOCKS, math.ceil(estimate / BLOCK_BYTES)))
        self._writer = store_files.BlockWriter(
            self._folder, self._first, max(1, n), options.level, self._pool
        )

    def _deal(self) -> None:
        """Deal the batch: a seeded permutation cut in equal parts, or in turn without shuffling."""
        assert self._writer is not None
        batch, m = self._batches[0], self._writer.n_blocks
        if self._options.shuffle:
            order = self._random.permutation(batch.n)
            turn = self._random.permutation(m)  # who gets a row more
        else:
            order = np.arange(batch.n)
            turn = (np.arange(m) - self._dealt) % m
        deal = [order[turn[block] :: m] for block in range(m)]
        y = self.labels.encode(batch.labels[: batch.n])
        self._writer.add(batch.taken(y), deal)
        self._dealt += batch.n
        self._batches.reverse()
        self._batches[0].clear()
        if len(self._batches[0].rows) < self._row_capacity:  # was made for one long row
            self._batches[0] = self._new_batch()

    def finish(self) -> tuple[list[dict[str, Any]], npt.NDArray[np.int64]]:
        """Deal the rest; see `BlockWriter.finish`."""
        if self._writer is None:
            raise DataError("the input holds no rows; give LIBSVM text with at least one row")
        if self._batches[0].n:
            self._deal()
        return self._writer.finish()


def split(
    inputs: Sequence[str | Path],
    store: str | Path | None = None,
    *,
    blocks: int | None = None,
    block_size: int | str | None = None,
    dtype: str = "auto",
    seed: int = 0,
    shuffle: bool = True,
    level: int = 1,
    threads: int | None = None,
    mem: int | str = 1_000_000_000,
    append: bool = False,
    force: bool = False,
    on_error: str = "fail",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make a block store from LIBSVM text.

    Parameters
    ----------
    inputs : sequence of str or Path
        Files or globs, plain or .gz, .bz2, .xz, .zst; ``-`` is standard input. Read once.
    store : str or Path, optional
        Default: the first input's name with ``.sbm``.
    blocks : int, optional
        Number of blocks.
    block_size : int or str, optional
        Instead of `blocks`: bytes of a block in memory.
    dtype : {"auto", "float32", "float64"}
        Type of stored values. ``auto`` is float32; values that are all 1 take no space anyway.
    seed : int
        Of the dealing of rows to blocks.
    shuffle : bool
        Deal at random; else in turn, in the order of the input.
    level : int
        Level of zstd, 1 to 19.
    threads : int, optional
        Default: the cores this process may use.
    mem : int or str
        Bound of the process's peak resident memory.
    append : bool
        Add new blocks to an existing store.
    force : bool
        Replace an existing store; with `append`, take a source a second time.
    on_error : {"fail", "skip"}
        What to do with a line that is not LIBSVM text.
    progress : Progress, optional
        Is told the bytes read.

    Returns
    -------
    dict
        ``store``, ``rows``, ``features``, ``nnz``, ``blocks``, ``bytes``, ``text_bytes``,
        ``skipped``, ``problems``, ``value_type``, ``labels``.

    Raises
    ------
    DataError
        The input is not what it should be.
    StoreError
        The store exists, or cannot be written; no half store is left.
    MemoryPlanError
        `mem` is too small.
    """
    options = _check_options(
        blocks, block_size, dtype, seed, shuffle, level, threads, mem, on_error
    )
    sources = expand_inputs(inputs)
    if not sources:
        raise DataError("no input; give LIBSVM text files, globs, or - for a pipe")
    target = Path(store) if store is not None else default_store(sources[0].name)
    if store is None and sources[0].name == "-":
        raise SettingsError("name the store with -o when reading standard input")
    progress = progress or Progress()
    prepare("split", options.dtype, progress)
    with _destination(target, append, force) as (folder, manifest):
        return _fill_store(folder, target, manifest, sources, options, force, progress)


def _check_options(
    blocks: int | None,
    block_size: int | str | None,
    dtype: str,
    seed: int,
    shuffle: bool,
    level: int,
    threads: int | None,
    mem: int | str,
    on_error: str,
) -> _Options:
    if blocks is not None and block_size is not None:
        raise SettingsError("give --blocks or --block-size, not both")
    if blocks is not None and not 1 <= blocks <= 999_999:
        raise SettingsError(f"blocks is {blocks}; it must be from 1 to 999999")
    if dtype not in ("auto", "float32", "float64"):
        raise SettingsError(f"dtype is {dtype!r}; it must be auto, float32 or float64")
    if not 1 <= level <= 19:
        raise SettingsError(f"level is {level}; it must be from 1 to 19")
    if threads is not None and threads < 1:
        raise SettingsError(f"threads is {threads}; it must be at least 1")
    if on_error not in ("fail", "skip"):
        raise SettingsError(f"on_error is {on_error!r}; it must be fail or skip")
    if seed < 0:
        raise SettingsError(f"seed is {seed}; it must be at least 0")
    return _Options(
        blocks=blocks,
        block_size=None if block_size is None else parse_size(block_size),
        dtype="float32" if dtype == "auto" else dtype,
        seed=seed,
        shuffle=shuffle,
        level=level,
        threads=threads or len(os.sched_getaffinity(0)),
        mem=parse_size(mem),
        skip=on_error == "skip",
    )


@contextlib.contextmanager
def _destination(
    target: Path, append: bool, force: bool
) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Give a folder to write to; on success it becomes the store, on failure nothing is left."""
    if append:
        manifest = store_files.read_manifest(target)
        before = set(target.iterdir())
        with lock(target / "lock", f"the store {target}"):
            try:
                yield target, store_files.read_manifest(target)
            except BaseException:
                if store_files.read_manifest(target) == manifest:
                    keep = before | {target / "lock"}
                    store_files.remove_quietly([p for p in target.iterdir() if p not in keep])
                raise
        return
    if target.exists() and not force:
        raise StoreError(
            f"{target} exists; add to it with --append, replace it with --force, "
            "or name another with -o"
        )
    if target.exists() and not (target / store_files.MANIFEST).exists():
        raise StoreError(f"{target} exists and is not a store; --force does not replace it")
    partial = target.with_name(target.name + ".partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(partial, error) from error
    with lock(partial / "lock", f"the store {target}"):
        store_files.remove_quietly([p for p in partial.iterdir() if p.name != "lock"])
        try:
            yield partial, None
        except BaseException:
            store_files.remove_quietly([partial])
            raise
        store_files.finish_folder(partial, target)


def _fill_store(
    folder: Path,
    target: Path,
    manifest: dict[str, Any] | None,
    sources: list[Source],
    options: _Options,
    force: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Read the sources, write blocks, ids, index and, last, the manifest."""
    manifest = manifest or _empty_manifest(options)
    generation = len(manifest["generations"])
    if generation and manifest["dtype"] != options.dtype:
        raise SettingsError(
            f"{target} holds {manifest['dtype']} values; append with --dtype {manifest['dtype']}"
        )
    ids = IdTable(_known_ids(folder) if generation else None)
    known = len(ids)
    labels = manifest["labels"]
    table = _Labels(
        None if labels is None else labels["values"], [] if labels is None else labels["counts"]
    )
    first = 1 + max((_number(b["file"]) for b in manifest["blocks"]), default=-1)
    with ThreadPoolExecutor(options.threads, "sbm-split") as pool:
        dealer = _Dealer(folder, first, options, ids, table, pool)
        _read(sources, dealer, options, pool, progress)
        _refuse_known_sources(sources, manifest, target, force)
        new_blocks, index = dealer.finish()
    files = (store_files.features_name(generation), store_files.index_name(generation))
    container.write(folder / files[0], "features", {"ids": ids.keys[known:]})
    container.write(folder / files[1], "index", {"chunks": index})
    manifest["generations"].append({
        "features": files[0], "index": files[1], "new_features": len(ids) - known,
        "blocks": [b["file"] for b in new_blocks], "rows": dealer.n_rows,
        "sources": [s.describe() for s in sources],
        "options": {"seed": options.seed, "shuffle": options.shuffle, "level": options.level},
        "added": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    })  # fmt: skip
    manifest["blocks"] += new_blocks
    manifest["rows"] += dealer.n_rows
    manifest["nnz"] += dealer.nnz
    manifest["features"] = len(ids)
    manifest["labels"] = table.describe()
    if table.real and manifest["class_values"] is None:
        # Chunks that were written while the labels still looked like classes hold codes.
        manifest["class_values"] = table.values
    if dealer.has_values:
        manifest["value_type"] = options.dtype
    store_files.write_manifest(folder, manifest)
    return _report(target, manifest, new_blocks, sources)


def _empty_manifest(options: _Options) -> dict[str, Any]:
    return {
        "format": store_files.FORMAT, "version": store_files.VERSION, "rows": 0, "features": 0,
        "nnz": 0, "value_type": "ones", "dtype": options.dtype,
        "labels": {"values": [], "counts": []}, "class_values": None, "blocks": [],
        "generations": [],
    }  # fmt: skip


def _known_ids(folder: Path) -> npt.NDArray[np.int64]:
    return store_files.BlockStore(folder).read_feature_ids()


def _number(file: str) -> int:
    return int(file.removeprefix("block-").removesuffix(".sbb"))


def _read(
    sources: list[Source],
    dealer: _Dealer,
    options: _Options,
    pool: ThreadPoolExecutor,
    progress: Progress,
) -> None:
    """Parse everything and hand it to the dealer."""
    known = all(s.size for s in sources)
    total = sum(s.size for s in sources)
    progress.start("split", total if known else None)
    pieces = parse_sources(
        sources, pool, ahead=options.threads + 1, dtype=options.dtype, skip=options.skip,
        largest_line=max(PIECE, (options.mem - INTERPRETER) // 12),
    )  # fmt: skip
    for _, parsed in pieces:
        done = sum(s.parsed for s in sources)
        if len(parsed.labels):
            dealer.add(parsed, done / total if known else 0.0)
        progress.advance(done, rows=dealer.n_rows)
    progress.finish()


def _refuse_known_sources(
    sources: list[Source], manifest: dict[str, Any], target: Path, force: bool
) -> None:
    """Notice data that would be counted twice."""
    known = {s["sha256"]: s["name"] for g in manifest["generations"] for s in g["sources"]}
    for source in sources:
        if source.sha256 in known and not force:
            raise DataError(
                f"{source.name} is already in {target} (as {known[source.sha256]}, same SHA-256); "
                "nothing was added, use --force to count its rows twice"
            )
        known[source.sha256] = source.name


def _report(
    target: Path,
    manifest: dict[str, Any],
    new_blocks: list[dict[str, Any]],
    sources: list[Source],
) -> dict[str, Any]:
    return {
        "store": str(target),
        "rows": sum(b["rows"] for b in new_blocks),
        "features": manifest["features"],
        "nnz": sum(b["nnz"] for b in new_blocks),
        "blocks": len(new_blocks),
        "bytes": sum(b["bytes"] for b in new_blocks),
        "text_bytes": sum(s.text for s in sources),
        "skipped": sum(s.skipped for s in sources),
        "problems": [p for s in sources for p in s.problems],
        "value_type": manifest["value_type"],
        "labels": manifest["labels"],
    }
