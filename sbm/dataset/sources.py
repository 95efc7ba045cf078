"""Arguments of a split: finding the text or chunks to read, and the store."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SettingsError, StoreError, require_path
from sbm.inputs.columns.kinds import from_record
from sbm.inputs.formats import (
    is_frame,
    is_rows_of_frame,
    is_table,
    open_inputs,
    with_hash_bits,
)
from sbm.inputs.nametable import LabelWords
from sbm.inputs.options import InputOptions, Naming
from sbm.inputs.text import Source
from sbm.models.model import Model
from sbm.store import blocks as store_files


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
    if store is not None:
        require_path(store, "the store")
    frame = inputs if is_frame(inputs) else None
    names, chunks = ([], None) if frame is not None else _names_or_chunks(inputs)
    if chunks is not None and (frame := _rows_of_frame(chunks)) is not None:
        chunks = None
    if store is None and (frame is not None or chunks is not None):
        what, one = ("a table has", "table") if chunks is None else ("chunks have", "chunks")
        raise SettingsError(f"{what} no file name; name the store: sbm.split({one}, S)")
    if append and store is None:
        names, store = _find_store(names)
    before, asked_bits = None, options.hash_bits
    if append and store is not None:
        manifest = store_files.read_manifest(Path(store))
        options = replace(options, words=_words_of(manifest))
        before = naming_of(store_files.BlockStore(Path(store)))
        if before is not None and chunks is None:
            options = options.following(before, str(store), grows=True)
    if frame is not None:
        from sbm.inputs.arrow import frame_source

        sources = [frame_source(frame, name, with_hash_bits(options))]
    elif chunks is not None:
        from sbm.inputs.matrices import chunk_source

        sources = [chunk_source(chunks, name, options)]
    else:
        sources = open_inputs(names, options)
    _refuse_crosses(sources, options)
    if sources and all(map(is_table, sources)):
        if asked_bits is not None:
            raise SettingsError(
                f"hash_bits is {asked_bits}, but features of tables are not hashed; omit "
                "--hash-bits"
            )
        if options.names is None:
            raise SettingsError("the features of a table are its names; omit --no-names")
        if len(options.names):
            raise SettingsError("the features of a table have names; omit --feature-names")
    if append and store is not None and manifest["rows"]:
        _refuse_other_features(sources, before, str(store))
    if frame is not None or chunks is not None:
        return sources, store
    asked, dialect = options.table.asked, options.table.dialect.record()
    given = [option for _, _, option in asked.kinds]
    given += [name for name in ("label", "weight") if getattr(asked, name) is not None]
    given += [{"separator": "sep"}.get(name, name) for name in dialect]
    refuse_options_of_tables(given, sources)
    if not sources:
        raise DataError("no input; expected files, glob patterns, or - for standard input")
    if store is None and sources[0].name == "-":
        raise SettingsError("standard input has no file name; name the store with -o")
    return sources, store


def _refuse_crosses(sources: Sequence[Source], options: InputOptions) -> None:
    """Raise `SettingsError` if the inputs have no features that could be multiplied."""
    for source in sources:
        if options.quadratic and source.format != "vw":
            what = (
                "a table has columns, not namespaces: use --cross campaign:device"
                if is_table(source)
                else ("only Vowpal Wabbit's text has namespaces")
            )
            raise SettingsError(
                f"{options.quadratic[0]} is a pair of namespaces, but {source.shown} is "
                f"{source.format}; {what}"
            )
        if options.table.asked.crosses and not is_table(source):
            raise SettingsError(
                f"cross is {':'.join(options.table.asked.crosses[0])}, but {source.shown} is no "
                "table; omit --cross"
            )


def require_tags(tag: str | None, sources: Sequence[Source] | None, data: str | Path) -> None:
    """Check that rows have ids.

    Parameters
    ----------
    tag : str, optional
        As in `InputOptions`.
    sources : sequence of Source, optional
        None: a store.

    Raises
    ------
    SettingsError
        The rows of this format have none.
    """
    if tag is None:
        return
    kind = "a store" if sources is None else sources[0].format
    if kind == "vw" and tag != "tag":
        raise SettingsError(f"id is {tag}; ids of Vowpal Wabbit's text are its tags: use --id tag")
    if sources is None or not (kind == "vw" or is_table(sources[0])):
        raise SettingsError(
            f"id is {tag}, but {data} is {kind}; only tables and Vowpal Wabbit's text have ids of "
            "rows"
        )


def naming_of(store: store_files.BlockStore) -> Naming | None:
    """Return how the features of a store are named; None if they have only ids."""
    record = store_files.names_of(store.manifest)
    if record is None:
        return None
    if "columns" not in record:
        return Naming(record)
    return Naming(record, store.read_names(), store.read_feature_ids())


def numeric_features(store: store_files.BlockStore) -> npt.NDArray[np.bool_] | None:
    """Return which features of a store are columns of numbers; None if it is not of a table."""
    naming = naming_of(store)
    if naming is None or not naming.is_of_table or naming.names is None:
        return None
    wanted = {
        name if column.kind != "vector" else f"{name}[{k}]"
        for column in from_record(naming.record["columns"])
        if column.kind in ("number", "log1p", "date", "vector")
        for name in [column.name]
        for k in range(max(1, column.size))
    }
    return np.array([name in wanted for name in naming.names], np.bool_)


def naming_of_model(model: Model) -> Naming | None:
    """Return how the features of a model are named; None if they have only ids."""
    record = model.info.get("names")
    if record is None:
        return None
    names, ids = model.names, model.ids
    if names is not None and model.zero_names is not None:
        names, ids = names.join(model.zero_names), np.concatenate([ids, model.zero_ids])
    return Naming(record if isinstance(record, dict) else {}, names, ids)


def _refuse_other_features(sources: list[Source], before: Naming | None, store: str) -> None:
    """Raise `DataError` if a table is added to features of another kind, or the other way round."""
    for source in sources:
        if is_table(source) != (before is not None and before.is_of_table):
            here, there = ("a table", "no table")
            if not is_table(source):
                here, there = ("not a table", "a table")
            raise DataError(
                f"{source.shown} is {here}, but {store} has the features of {there}; make another "
                "store of it"
            )


def refuse_options_of_tables(given: Sequence[str], sources: Sequence[Source]) -> None:
    """Raise `SettingsError` if options of tables are given, but no table."""
    if given and sources and all(source.format in ("libsvm", "vw") for source in sources):
        name = "no-header" if given[0] == "header" else given[0]
        raise SettingsError(
            f"--{name} is for the columns of a table, but {sources[0].shown} is not a table; "
            "leave it out, or set --format"
        )


def _rows_of_frame(chunks: Iterable[Any]) -> Any:
    """Return an iterable that holds rows of a table, None if it holds other chunks."""
    if isinstance(chunks, Sequence):
        return chunks if chunks and is_rows_of_frame(chunks[0]) else None
    if isinstance(chunks, _Peeked):
        return chunks if is_rows_of_frame(chunks.first) else None
    is_iterator = isinstance(chunks, Iterator)
    first = None if is_iterator else next(iter(chunks), None)  # such as a data set of Hugging Face
    return chunks if is_rows_of_frame(first) else None


class _Peeked:
    """An iterator of which the first item is known."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self.first, self._all = first, itertools.chain([first], rest)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._all)


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
        given = _Peeked(first[0], inputs) if first else inputs
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


_MOST_LINES = 40  # columns shown


def columns_seen(sources: Sequence[Source]) -> list[str]:
    """Return a line for each column of tables whose kinds were inferred, once."""
    if not sources or not is_table(sources[0]):
        return []
    table = sources[0].options.table
    if table.whose or table.is_shown or not table.columns:
        return []
    table.is_shown = True
    lines = list(table.lines())
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"... and {more:,} more columns"] if more > 0 else lines


def table_notes(sources: Sequence[Source]) -> list[str]:
    """Return warnings about the columns and cells of tables that were read.

    Raises `DataError` with `strict`, if a column has nothing that is known.
    """
    if not sources or not is_table(sources[0]):
        return []
    table = sources[0].options.table
    return list(dict.fromkeys([*table.notes, *table.warnings()]))


def unknown_words(sources: Sequence[Source]) -> dict[str, dict[str, int]]:
    """Return for a report the number of unknown words of each column of a table."""
    if not sources or not is_table(sources[0]):
        return {}
    return {"unknown_words": sources[0].options.table.unknown_words()}


def refuse_skipped(sources: list[Source]) -> None:
    """Raise `DataError` if most rows of a source are invalid."""
    for source in sources:
        skipped, rows = source.done.skipped, source.done.rows
        if skipped > max(rows, 10):  # a few are skipped in any case
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
