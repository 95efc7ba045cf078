"""The rows of a training: a store, or text and matrices that are read into memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path
from typing import Any

from sbm.compiled.clock import clock
from sbm.dataset.options import ReadOptions
from sbm.dataset.places import find_store, place_of
from sbm.distributed.comm import Comm, SerialComm
from sbm.distributed.names import RANK, common_name, own_name
from sbm.engine.progress import Progress
from sbm.errors import SettingsError
from sbm.inputs.text import Source
from sbm.inputs.urls import is_remote, without_query
from sbm.plain import dataclass
from sbm.settings import OF_FILES, Settings, option_name
from sbm.store.blocks import MANIFEST, BlockStore, require_whole
from sbm.units import count

__all__ = ["Reader", "open_rows"]


def store_named(data: Any) -> Path | None:
    """Return the path of the store in the argument `data` of `sbm.train`; None if it is not one.

    Raises
    ------
    SettingsError
        A store is given together with other inputs.
    """
    if data is None:
        return find_store(None)
    names = [data] if isinstance(data, str | Path) else data
    if not isinstance(names, list | tuple) or not all(isinstance(x, str | Path) for x in names):
        return None
    for name in map(str, names):
        if is_remote(name) and without_query(name).endswith(".sbm"):
            raise SettingsError(f"{name} is a store by its name, but stores are read locally")
    paths = [Path(name) for name in names if not is_remote(str(name))]
    stores = [p for p in paths if (p / MANIFEST).exists() or p.suffix == ".sbm" or RANK in p.name]
    if stores and len(names) > 1:
        raise SettingsError(
            f"{stores[0]} is a store, and other data are given; give one store, or only text files"
        )
    return stores[0] if stores else None


@dataclass(frozen=True)
class Reader:
    """How a function reads its rows, and what may end that.

    Attributes
    ----------
    options : ReadOptions
    keep_store : str, Path or None
        Store to write besides.
    comm : Comm
        Connects the ranks that read the same rows.
    progress : Progress
    is_stopped : callable
        Called after each piece of text; if true, `KeyboardInterrupt` is raised.
    while_reading : callable
        Returns the context in which text is read. A signal may raise `KeyboardInterrupt` there, as
        a pipe can block, and there is nothing to save yet.
    before : callable
        ``before(model, sources)`` is called before text is read; may raise.
    has_others : bool
        Whether `options` also say how another file is written, which is predicted.
    """

    options: ReadOptions = field(default_factory=ReadOptions)
    keep_store: str | Path | None = None
    comm: Comm = field(default_factory=SerialComm)
    progress: Progress = field(default_factory=Progress)
    is_stopped: Callable[[], bool] = lambda: False
    while_reading: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    before: Callable[[Path, Sequence[Source]], None] = lambda *_: None
    has_others: bool = False


@contextlib.contextmanager
def open_rows(
    data: Any, model: str | Path | None, settings: Settings, reader: Reader
) -> Iterator[tuple[BlockStore, Path, dict[str, Any] | None]]:
    """Open a store, or read text or matrices.

    Yields
    ------
    store : BlockStore
        Valid inside the context.
    path : Path
        Path of the model.
    report : dict or None
        As of `sbm.split`, if text was read, with ``seconds``.

    Raises
    ------
    SbmError
        As for `sbm.train`.
    """
    if isinstance(data, BlockStore):  # already open
        store = data
        if data.scaling != settings.scale:
            store = BlockStore(data.folder, data.memory, settings.scale)
        yield store, place_of(model, data), None
        return
    given, comm, progress = store_named(data), reader.comm, reader.progress
    if given is not None:
        others = OF_FILES if reader.has_others or isinstance(settings.validate, str) else ()
        names = [n for n in reader.options.given() if n not in others]
        names += ["keep_store"] if reader.keep_store is not None else []
        if names:
            shown = ", ".join(map(option_name, names))
            raise SettingsError(f"{given} is a store; {shown} applies to text, and to sbm split")
        store = BlockStore(own_name(given, comm), scaling=settings.scale)
        if comm.size == 1:
            require_whole(store)
        yield store, place_of(model or _common_model(data), store), None
        return
    from sbm.dataset.fill import default_model, read_rows  # not needed for a store

    if reader.keep_store is not None and comm.size > 1:
        raise SettingsError(
            f"--keep-store needs a single process, but there are {comm.size}; "
            "use sbm split --shards first"
        )
    path, begin = place_of(model or default_model(data), None), clock()
    rows = read_rows(
        data, path, reader.options, settings, progress, reader.is_stopped, comm.rank,
        lambda sources: reader.before(path, sources), reader.keep_store,
    )  # fmt: skip
    with contextlib.ExitStack() as until:
        with reader.while_reading():
            store, report = until.enter_context(rows)
        report["seconds"] = clock() - begin
        progress.stage(
            f"{_names_of(report['store'], store)}: {count(report['rows'], 'row')}, "
            f"{count(report['features'], 'feature')}, {count(report['nnz'], 'nonzero')} read in "
            f"{report['seconds']:.1f} s"
        )
        yield store, path, report


def _names_of(first: str, store: BlockStore) -> str:
    """Return the folder or the files that were read, only the first file if they are many."""
    _, *others = [source["name"] for source in store.manifest["generations"][-1]["sources"]]
    if not others or os.path.isdir(first):
        return first
    if len(others) > 3:
        return f"{first} and {len(others):,} more inputs"
    return " and ".join([", ".join([first, *others[:-1]]), *others[-1:]])


def _common_model(data: Any) -> Path | None:
    """Return the name of the model if the name of the store has the number of the rank."""
    name = data[0] if isinstance(data, list | tuple) else data
    return None if name is None else common_name(name, ".model")
