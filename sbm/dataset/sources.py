"""Arguments of a split: finding the text or chunks to read, and the store."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbm.errors import DataError, SettingsError, StoreError, require_path
from sbm.inputs.formats import LIBSVM, is_frame, open_inputs, with_hash_bits
from sbm.inputs.nametable import LabelWords
from sbm.inputs.parsing import InputOptions
from sbm.inputs.text import Source
from sbm.store import blocks as store_files

_OF_TABLES = ("label", "categorical", "weight", "exclude")  # options


def find_sources(
    inputs: str | Path | Iterable[str | Path] | Iterable[tuple[Any, Any]],
    store: str | Path | None,
    append: bool,
    options: InputOptions,
    name: str,
) -> tuple[list[Source], str | Path | None]:
    """Return the sources to read, and the store if it is named, possibly among the inputs.

    Parameters
    ----------
    inputs, store, append, name
        As in `sbm.split`.
    options : InputOptions
        With `append`, completed from the store so that feature names get the same ids.

    Raises
    ------
    DataError
        There is no input.
    SettingsError, StoreError
        The store is missing or ambiguous.
    """
    asked = options
    if store is not None:
        require_path(store, "the store")
    is_table = is_frame(inputs)
    names, chunks = ([], None) if is_table else _names_or_chunks(inputs)
    if store is None and (is_table or chunks is not None):
        what, one = ("a table has", "table") if is_table else ("chunks have", "chunks")
        raise SettingsError(f"{what} no file name; name the store: sbm.split({one}, S)")
    if append and store is None:
        names, store = _find_store(names)
    if append and store is not None:
        manifest = store_files.read_manifest(Path(store))
        options = replace(options, words=_words_of(manifest))
        names_before = store_files.names_of(manifest)
        if names_before is not None and chunks is None:
            options = options.following(names_before, str(store))
    if is_table:
        from sbm.inputs.arrow import frame_source

        return [frame_source(inputs, name, with_hash_bits(options))], store
    if chunks is not None:
        from sbm.inputs.matrices import chunk_source

        return [chunk_source(chunks, name, options)], store
    sources = open_inputs(names, options)
    given = [name for name in _OF_TABLES if getattr(asked, name)]
    if given and sources and all(source.format == LIBSVM for source in sources):
        raise SettingsError(
            f"{given[0]} names a column of a table, but {sources[0].shown} is not a table; leave "
            "it out, or set --format"
        )
    if not sources:
        raise DataError("no input; expected files, glob patterns, or - for standard input")
    if store is None and sources[0].name == "-":
        raise SettingsError("standard input has no file name; name the store with -o")
    return sources, store


def _words_of(manifest: dict[str, Any]) -> LabelWords:
    """Return how labels of a store became numbers."""
    if not manifest["rows"]:
        return LabelWords()
    names = (manifest["labels"] or {}).get("names", [])
    known = {name: float(k) for k, name in enumerate(names)}
    return LabelWords(known, "labels of the store", "convert them")


def _names_or_chunks(
    inputs: str | Path | Iterable[str | Path] | Iterable[tuple[Any, Any]],
) -> tuple[list[str | Path], Iterable[tuple[Any, Any]] | None]:
    """Return file names or chunks, whichever `inputs` holds; reads one item of an iterator."""
    if isinstance(inputs, str | Path):
        return [inputs], None
    if isinstance(inputs, tuple | list) and len(inputs) == 2 and hasattr(inputs[0], "shape"):
        X, y = inputs
        return [], [(X, y)]
    if hasattr(inputs, "shape") or not isinstance(inputs, Iterable):
        raise DataError(
            f"inputs is a {type(inputs).__name__}; expected file names, a data frame, or arrays: "
            "sbm.split((X, y), STORE)"
        )
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
    """Separate the store to append to from the other inputs."""
    stores = [name for name in inputs if (Path(name) / store_files.MANIFEST).is_file()]
    missing = [n for n in inputs if Path(n).suffix == ".sbm" and not Path(n).exists()]
    if len(stores) > 1:
        names = ", ".join(map(str, stores))
        raise SettingsError(f"{names} are stores; append text files to one store at a time")
    if missing and not stores:
        raise StoreError(
            f"{missing[0]} does not exist, but --append needs an existing store; create it with "
            f"sbm split -o {missing[0]}"
        )
    texts = [name for name in inputs if name not in stores]
    if stores and not texts:
        raise DataError(f"no input to append to {stores[0]}; expected files, glob patterns, or -")
    return texts, Path(stores[0]) if stores else None


def other_columns(sources: list[Source], those: str = "training") -> list[str]:
    """Warn if the columns of a table differ from those of a store or a training."""
    warnings = []
    for source in sources:
        known, found = source.options.usual or source.options.columns, source.columns
        if not known or not found:
            continue
        from sbm.inputs.columns import different_columns

        if differ := different_columns(known, found):
            warnings.append(f"columns differ from those of {those}: {differ}")
    return warnings


_FEW_SKIPPED = 10  # invalid rows of a source that may be skipped in any case


def refuse_skipped(sources: list[Source]) -> None:
    """Raise `DataError` if most rows of a source are invalid."""
    for source in sources:
        skipped, rows = source.done.skipped, source.done.rows
        if skipped > max(rows, _FEW_SKIPPED):
            raise DataError(
                f"{source.shown}: {skipped:,} of {skipped + rows:,} rows are invalid; --on-error "
                f"skip is for a few. The first: {source.problems[0]}"
            )


def refuse_known_sources(
    sources: list[Source], manifest: dict[str, Any], target: Path | str, force: bool
) -> None:
    """Raise `DataError` if a source occurs twice or is already in the store."""
    kept = store_files.kept_generations(manifest)
    known = {s["sha256"]: s["name"] for g in kept for s in g["sources"]}
    given: dict[str, str] = {}
    for source in sources:
        if source.done.rows == 0:
            continue
        if source.sha256 in given and not force:
            raise DataError(
                f"{source.name} is the same file as {given[source.sha256]} (same SHA-256); nothing "
                "was written. Use --force to count its rows twice"
            )
        if source.sha256 in known and not force:
            raise DataError(
                f"{source.name} is already in {target} as {known[source.sha256]} (same SHA-256); "
                "nothing was added. Use --force to count its rows twice"
            )
        given[source.sha256] = source.name
