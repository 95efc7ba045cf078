"""Inputs: what of the arguments of a split is text, what chunks of rows, and what the store."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sbm.errors import DataError, SettingsError, StoreError
from sbm.inputs.formats import open_inputs
from sbm.inputs.matrices import chunk_source
from sbm.inputs.parsing import InputOptions
from sbm.inputs.text import Source
from sbm.store import blocks as store_files

__all__ = ["find_sources", "refuse_known_sources"]


def find_sources(
    inputs: str | Path | Iterable[str | Path] | Iterable[tuple[Any, Any]],
    store: str | Path | None,
    append: bool,
    options: InputOptions,
    name: str,
) -> tuple[list[Source], str | Path | None]:
    """Return what is to be read, and the store where it is named, perhaps among the inputs.

    Parameters
    ----------
    inputs, store, append, name
        As of `sbm.split`.
    options : InputOptions
        Names of features become the ids that they are in the store that is appended to.

    Raises
    ------
    DataError
        There is nothing to read.
    SettingsError, StoreError
        It is not clear to which store it goes.
    """
    names, chunks = _names_or_chunks(inputs)
    if chunks is not None:
        if store is None:
            raise SettingsError("chunks have no file name; name the store, as sbm.split(chunks, S)")
        return [chunk_source(chunks, name)], store
    if append and store is None:
        names, store = _find_store(names)
    if append and store is not None:
        names_before = store_files.names_of(store_files.read_manifest(Path(store)))
        if names_before is not None:
            options = options.following(names_before, str(store))
    sources = open_inputs(names, options)
    if not sources:
        raise DataError("no input; give LIBSVM text files, globs, or - for a pipe")
    if store is None and sources[0].name == "-":
        raise SettingsError("name the store with -o when reading standard input")
    return sources, store


def _names_or_chunks(
    inputs: str | Path | Iterable[str | Path] | Iterable[tuple[Any, Any]],
) -> tuple[list[str | Path], Iterable[tuple[Any, Any]] | None]:
    """Tell names of files from chunks of rows; an iterator is asked for no more than its first."""
    if isinstance(inputs, str | Path):
        return [inputs], None
    given: Iterable[Any] = inputs
    if isinstance(inputs, Sequence):
        first = list(inputs[:1])
    elif isinstance(inputs, Iterator):
        first = list(itertools.islice(inputs, 1))
        given = itertools.chain(first, inputs)
    else:
        return [], given
    if not first or isinstance(first[0], str | Path):
        return list(given), None
    return [], given


def _find_store(inputs: list[str | Path]) -> tuple[list[str | Path], Path | None]:
    """Return the inputs without the store among them, which is to be appended to, and that."""
    stores = [name for name in inputs if (Path(name) / store_files.MANIFEST).is_file()]
    missing = [n for n in inputs if Path(n).suffix == ".sbm" and not Path(n).exists()]
    if len(stores) > 1:
        names = ", ".join(map(str, stores))
        raise SettingsError(f"{names} are stores; append to one at a time, from its text")
    if missing and not stores:
        raise StoreError(
            f"{missing[0]} does not exist, and --append adds to a store; make it with sbm split, "
            f"the text and -o {missing[0]}"
        )
    texts = [name for name in inputs if name not in stores]
    if stores and not texts:
        raise DataError(f"no input to append to {stores[0]}; give LIBSVM text files, globs, or -")
    return texts, Path(stores[0]) if stores else None


def refuse_known_sources(
    sources: list[Source], manifest: dict[str, Any], target: Path, force: bool
) -> None:
    """Notice data that would be counted twice."""
    kept = store_files.kept_generations(manifest)
    known = {s["sha256"]: s["name"] for g in kept for s in g["sources"]}
    given: dict[str, str] = {}
    for source in sources:
        if source.done.rows == 0:
            continue
        if source.sha256 in given and not force:
            raise DataError(
                f"{source.name} is given twice (as {given[source.sha256]}, same SHA-256); nothing "
                "was written, use --force to count its rows twice"
            )
        if source.sha256 in known and not force:
            raise DataError(
                f"{source.name} is already in {target} (as {known[source.sha256]}, same SHA-256); "
                "nothing was added, use --force to count its rows twice"
            )
        given[source.sha256] = source.name
