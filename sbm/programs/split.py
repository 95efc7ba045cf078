"""Split: make a block store from text or matrices, with rows dealt to blocks at random."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Unpack

from sbm.dataset.destination import appended, new_shards, new_store
from sbm.dataset.fill import Filling, default_store, empty_manifest, prepare, with_less
from sbm.dataset.options import ReadKeywords, ReadOptions, SplitOptions
from sbm.dataset.sources import (
    find_sources,
)
from sbm.engine.machine import usable_threads
from sbm.engine.progress import Progress
from sbm.errors import MemoryPlanError, SettingsError
from sbm.inputs.urls import remote_terms
from sbm.store import blocks as store_files
from sbm.store.shards import shard_path
from sbm.units import parse_size


def split(
    inputs: str | Path | Iterable[str | Path] | Iterable[tuple[Any, Any]],
    store: str | Path | None = None,
    *,
    block_size: int | str | None = None,
    shards: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    level: int = 1,
    threads: int | None = None,
    mem: int | str = 1_000_000_000,
    append: bool = False,
    force: bool = False,
    remote_timeout: float | str | None = None,
    progress: Progress | None = None,
    **reading: Unpack[ReadKeywords],
) -> dict[str, Any]:
    """Make a block store from text or matrices.

    Parameters
    ----------
    inputs : str, Path or iterable of these; (X, y) or iterable of these
        Files or globs, plain or .gz, .bz2, .xz, .zst; ``-`` is standard input. They are read once,
        or twice with `min_count`. With `append` and without `store`, one of them is the store.

        Or a pair (X, y), or chunks of rows, which are such pairs: X is a matrix, sparse or dense,
        shape (n_rows, any); y has n_rows numbers. Column k is feature id k, as for
        `Model.decision_function`. An iterator is read once; `min_count` needs an object that can be
        iterated twice, such as a list.
    store : str or Path, optional
        Store to write. Default: the first input's name with ``.sbm``; required for chunks.
    block_size : int or str, optional
        Memory of a block when loaded, in bytes; an alternative to `blocks`.
    shards : int, optional
        Write this many folders ``big.0.sbm``, ``big.1.sbm`` and so on. Each has everything but the
        blocks of the others.
    seed : int
        Seed for dealing rows to blocks.
    shuffle : bool
        Deal rows at random; else in turn, in the order of the input.
    level : int
        Compression level of zstd, 1 to 19.
    threads : int, optional
        Default: the cores this process may use.
    mem : int or str
        Bound of the process's peak resident memory, without the chunks of the caller.
    append : bool
        Add new blocks to an existing store.
    force : bool
        Replace an existing store; with `append`, accept a source that is already there.
    remote_timeout : float or str, optional
        Maximum time to wait for data from the server of a remote input. Default: 60s.
    progress : Progress, optional
        Receives the bytes read.
    **reading
        How to read the inputs; ``help(sbm.ReadOptions)`` lists the names.

    Returns
    -------
    dict
        ``store`` (for shards ``big.{rank}.sbm``), ``rows``, ``features``, ``nnz``, ``blocks``,
        ``bytes``, ``text_bytes``, ``skipped``, ``problems``, ``open`` (pipes whose last line has no
        line end), ``value_type``, ``labels``, ``left_out`` (``features`` and ``nnz`` dropped by
        `min_count`), ``collisions`` (examples of two names that have the same id).

    Raises
    ------
    DataError
        The input is invalid.
    StoreError
        The store exists or cannot be written. No incomplete store is left.
    MemoryPlanError
        `mem` is too small.
    """
    how, progress, mem = ReadOptions.of(reading), Progress.of(progress), parse_size(mem)
    with remote_terms(remote_timeout, progress.stage):
        sources, store = find_sources(inputs, store, append, how.input_options(mem), how.name)
    target = Path(store) if store is not None else default_store(sources[0].name)
    if append and shards is not None:
        raise SettingsError("--append cannot be used with --shards, which writes a new store")
    dtype = how.dtype
    if dtype == "auto":
        dtype = store_files.read_manifest(target)["dtype"] if append else "float32"
    asked = SplitOptions(
        how.blocks, None if block_size is None else parse_size(block_size), dtype, seed, shuffle,
        level, usable_threads(None) if threads is None else threads, how.on_error, how.min_count,
        shards, new_labels=how.new_labels,
    )  # fmt: skip
    options = prepare(sources, asked, mem, progress)
    while True:
        try:
            with _destination(target, append, shards, force) as (folder, manifest):
                named = target if shards is None else shard_path(target, "{rank}")
                filling = Filling(folder, named, sources, options, force, progress)
                return filling.fill(manifest or empty_manifest(options))[0]
        except MemoryPlanError:
            raise
        except MemoryError:
            sources, options = with_less(sources, options, progress)


@contextlib.contextmanager
def _destination(
    target: Path, append: bool, shards: int | None, force: bool
) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Provide the folder to write to, and with `append` the manifest of the store."""
    if append:
        with appended(target) as manifest:
            yield target, manifest
        return
    new = new_store(target, force) if shards is None else new_shards(target, shards, force)
    with new as folder:
        yield folder, None
