"""Input formats: the table of formats and the functions that read any of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sbm.errors import DataError
from sbm.inputs.libsvm import REASONS, parse_text
from sbm.inputs.live import Patience
from sbm.inputs.options import InputOptions
from sbm.inputs.packed import is_packed, window_of
from sbm.inputs.parsing import HASH_BITS, ParsedText, TextParser
from sbm.inputs.text import LARGEST_LINE, Source, convert_sources, expand_names, one_ahead, size_of
from sbm.inputs.urls import MEMORY as REMOTE_MEMORY
from sbm.inputs.urls import is_remote, without_query
from sbm.inputs.vw import REASONS as VW_REASONS
from sbm.inputs.vw import vw_parser
from sbm.plain import dataclass
from sbm.settings import refuse_unknown
from sbm.store.container import is_container

if TYPE_CHECKING:
    from sbm.inputs.matrices import Batch, RowPiece

T = TypeVar("T")
_BYTES_A_NONZERO = 8  # of a line of text, roughly
_LARGEST_ROW = LARGEST_LINE // _BYTES_A_NONZERO
MOST_SOURCES = 256  # with more text files, several make one source
ARROW = ("parquet", "feather")
_ARROW_LIBRARY = 45_000_000  # bytes of pyarrow, as soon as it is imported
_ARROW_MEMORY = _ARROW_LIBRARY + 26_000_000  # also of the cells that are converted at a time


@dataclass(frozen=True)
class Format:
    """An input format. Either `parser` or `read` is set."""

    name: str
    endings: tuple[str, ...]  # file name endings, without that of a compression
    # ``parser(options)`` returns a `TextParser`, for text that can be cut at line ends
    parser: Callable[[InputOptions], TextParser] | None = None
    # ``read(source, dtype, largest_row)`` yields the rows of a source as `Batch`
    read: Callable[[Source, str, int], Generator[Batch]] | None = None
    reasons: tuple[str, ...] = REASONS  # error messages of the parser, by code
    # ``opener(source, largest_row)`` opens a table, which `read` then reads, too
    opener: Callable[[Source, int], Any] | None = None
    has_names: bool = False  # whether features have names
    has_words: bool = True  # whether labels may be words
    # whether it is read sequentially, so that pipes and compressed files work
    is_stream: bool = True
    memory: int = 0  # bytes that the library for this format needs


def _libsvm_parser(options: InputOptions) -> TextParser:
    return partial(parse_text, labels=options.labels, targets=options.targets)


def _later(place: str, **options: Any) -> Callable[..., Any]:
    """Return a function of this package that is imported when it is called."""
    module, _, name = place.rpartition(".")

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"sbm.inputs.{module}"), name)(*arguments, **options)

    return call


def _table(name: str, *endings: str, opener: Callable[..., Any], **options: Any) -> Format:
    """Return a format of tables."""
    read = _later("tables.read_table", opener=opener)
    return Format(
        name, endings, read=read, opener=opener, has_names=True, memory=_ARROW_MEMORY, **options
    )


LIBSVM = "libsvm"
_open_csv = _later("delimited.open_delimited", separator=",")
_open_tsv = _later("delimited.open_delimited", separator="\t")
_open_arrow = _later("arrow.open_arrow")
FORMATS = {
    row.name: row
    for row in (
        Format(LIBSVM, (".svm", ".libsvm", ".txt"), parser=_libsvm_parser, has_words=False),
        Format(
            "vw", (".vw",), parser=vw_parser, reasons=VW_REASONS, has_names=True, has_words=False
        ),
        _table("csv", ".csv", opener=_open_csv),
        _table("tsv", ".tsv", opener=_open_tsv),
        Format("npz", (".npz",), read=_later("npz.read_npz"), is_stream=False),
        _table("parquet", ".parquet", ".pq", opener=_open_arrow, is_stream=False),
        _table("feather", ".feather", ".arrow", ".ipc", opener=_open_arrow, is_stream=False),
    )
}
ENDINGS = tuple(ending for row in FORMATS.values() for ending in row.endings)
# Rows in memory.
_IN_MEMORY = {
    "chunks": Format("chunks", (), read=_later("matrices.read_chunks")),
    "frame": _table("frame", opener=_open_arrow),
}


def read_frame(source: Source, dtype: str, largest_row: int) -> Generator[Batch]:
    """Yield the rows of a data frame; see `sbm.inputs.tables.read_table`."""
    read = _IN_MEMORY["frame"].read
    assert read is not None
    return read(source, dtype, largest_row)


def is_frame(data: Any) -> bool:
    """Whether this is a table of pandas, polars, pyarrow or another library.

    Also a data set of pyarrow, a lazy frame of polars, or a dict of columns.
    """
    ways = ("__arrow_c_stream__", "scanner", "to_reader", "collect_batches")
    return isinstance(data, dict) or any(hasattr(data, way) for way in ways)


def is_rows_of_frame(first: Any) -> bool:
    """Whether the first item of an iterable shows that it has rows of a table."""
    return is_frame(first) or hasattr(first, "__arrow_c_array__")


def plain_name(name: str) -> str:
    """Return a file name without the ending of its compression."""
    name = without_query(name)
    return name[: -len(Path(name).suffix)] if is_packed(name) else name


def format_of(name: str) -> Format:
    """Return the format for a file name; LIBSVM text if the ending is unknown."""
    plain = plain_name(name).lower()
    return next((f for f in FORMATS.values() if plain.endswith(f.endings)), FORMATS[LIBSVM])


def names_format(name: str) -> bool:
    """Return whether the ending of a file name is that of its format."""
    return plain_name(name).lower().endswith(format_of(name).endings)


def open_inputs(names: Sequence[str | Path], options: InputOptions) -> list[Source]:
    """Turn names and globs into sources with their formats; see `expand_inputs`.

    Raises
    ------
    DataError
        A file is missing, or the format does not support pipes or compressed files.
    SettingsError
        The format is unknown.
    """
    options = with_hash_bits(options)
    if options.format is not None:
        refuse_unknown("format", options.format, FORMATS)
    sources = _group(expand_names(names), options.format)
    _title(sources, names)
    for source in sources:
        kind = FORMATS[source.format]
        source.options = options
        if is_container(Path(source.name)):
            raise DataError(f"{source.name} is not a store or text, but another file of sbm")
        if kind.is_stream:
            continue
        if not source.comes_again:
            raise DataError(
                f"{source.shown}: cannot read {kind.name} from a pipe; write it to a file first"
            )
        if is_packed(source.name):
            raise DataError(
                f"{source.name} is compressed, which {kind.name} does not support; decompress it"
            )
        if kind.name in ARROW:
            if is_remote(source.name):
                from sbm.inputs.remote import fetch

                source.copy = fetch(source.name, f".{kind.name}", source.size)
            from sbm.inputs.arrow import find_layout

            find_layout(source)
        elif is_remote(source.name):
            raise DataError(f"{source.name}: {kind.name} files are read locally; download it first")
    return sources


def check_names(sources: Sequence[Source], largest_row: int | None = None) -> None:
    """Check the names of the columns of tables; this needs no compiled code.

    Raises
    ------
    DataError
        As `Columns.check_names`; or a table and features of another kind are read together.
    """
    tables = [source for source in sources if is_table(source)]
    others = [source for source in sources if not is_table(source)]
    if tables and others:
        raise DataError(
            f"{tables[0].name} is a table with its own features, so {others[0].name} cannot be "
            "added to it; use one kind of input"
        )
    if not tables:
        return
    from sbm.inputs.tables import check_names as check

    columns = tables[0].options.table.names_only()
    for source in filter(_is_at_hand, tables):
        opener = _kind(source).opener
        assert opener is not None
        check(source.again(), opener, largest_row or _LARGEST_ROW, columns)


def check_headers(sources: Sequence[Source], largest_row: int | None = None) -> None:
    """Find the columns of tables, and check those of all files, before rows are read.

    Raises
    ------
    DataError
        As `Columns.fit`.
    """
    fit_headers([s for s in sources if is_table(s) and _is_at_hand(s)], largest_row)


def _is_at_hand(source: Source) -> bool:
    """Whether a source may be opened more than once."""
    return source.comes_again and not (is_remote(source.name) and source.copy is None)


def fit_headers(tables: Sequence[Source], largest_row: int | None = None) -> None:
    """Find the columns of tables, or compare them with those known; see `check_headers`.

    The first rows, of which kinds are inferred, may be those of several files.
    """
    from sbm.inputs.tables import fit_columns

    pairs: list[tuple[Source, Any]] = []
    for source in tables:
        opener = _kind(source).opener
        assert opener is not None
        pairs.append((source.again() if source.comes_again else source, opener))
    following = [pair for pair in pairs[1:] if _is_at_hand(pair[0])]
    for k, (source, opener) in enumerate(pairs):
        fit_columns(source, opener, largest_row or _LARGEST_ROW, [] if k else following)


def is_table(source: Source) -> bool:
    """Whether a source is a table whose columns become features."""
    return _kind(source).opener is not None and not source.is_sparse


def with_hash_bits(options: InputOptions) -> InputOptions:
    """Return options with the default number of bits, unless it is set."""
    return options if options.hash_bits is not None else replace(options, hash_bits=HASH_BITS)


def _group(names: list[str], name_of_format: str | None) -> list[Source]:
    """Return a source for each file, or for several text files each if there are very many."""
    sources, size = [], -(-len(names) // MOST_SOURCES)

    def kind(name: str) -> tuple[str, bool]:
        found = format_of(name) if name_of_format is None else FORMATS[name_of_format]
        return found.name, size > 1 and found.parser is not None and os.path.isfile(name)

    for (chosen, is_grouped), files in itertools.groupby(names, kind):
        while some := list(itertools.islice(files, size if is_grouped else 1)):
            more = b"\0".join(map(os.fsencode, some[1:]))
            source = Source(some[0], sum(map(size_of, some)), format=chosen, more=more)
            source.reader_bytes = REMOTE_MEMORY * is_remote(source.name)
            sources.append(source)
    return sources


def _title(sources: Sequence[Source], given: Sequence[str | Path]) -> None:
    """Set the titles of files in folders, which may have the same name.

    A title is the path from the given folder on, with that folder's name; or, of files of the same
    name, from the folder that all of them are in.
    """
    folders = [Path(name) for name in given if os.path.isdir(name)]
    local = [s for s in sources if s.comes_again and s.chunks is None and not is_remote(s.name)]
    for source in local:
        path = Path(source.name)
        folder = next((folder for folder in folders if folder in path.parents), None)
        if folder is not None:
            source.title = str(Path(folder.resolve().name, path.relative_to(folder)))
    titles = Counter(source.title or Path(source.name).name for source in local)
    same = [s for s in local if titles[s.title or Path(s.name).name] > 1]
    paths = {os.path.abspath(source.name) for source in same}
    if len(paths) > 1:
        above = os.path.commonpath([os.path.dirname(path) for path in paths])
        for source in same:
            source.title = os.path.relpath(os.path.abspath(source.name), above)


def names_record(sources: Sequence[Source]) -> dict[str, Any] | None:
    """Return the options that determine names and ids of features; None without names."""
    named = [s for s in sources if _kind(s).has_names and not s.is_sparse]
    if not named:
        return None
    options = named[0].options
    if is_table(named[0]):
        return options.table.record()
    more = {"quadratic": [*options.quadratic]} if options.quadratic else {}
    return {"hash_bits": options.hash_bits, **more}


def reader_memory(sources: Sequence[Source]) -> int:
    """Return the bytes that readers need beyond those for text: libraries, and large windows.

    Decompressors may then take that much.
    """
    window = max((window_of(name) for source in sources for name in source.files), default=0)
    names = sum(len(source.more) + 16 * len(source.files) for source in sources if source.more)
    for source in sources:
        source.window = max(source.window, window)
    most = max((_kind(s).memory + s.reader_bytes for s in sources), default=0)
    for source in sources:  # later calls must count what the first one did
        if source.had_library is None:
            source.had_library = "pyarrow" in sys.modules
    has_loaded = any(_kind(s).memory for s in sources) and all(s.had_library for s in sources)
    return window + names + most - _ARROW_LIBRARY * has_loaded


def _kind(source: Source) -> Format:
    return FORMATS.get(source.format) or _IN_MEMORY[source.format]


def convert_inputs(
    sources: Sequence[Source],
    pool: ThreadPoolExecutor,
    convert: Callable[[ParsedText], T],
    *,
    ahead: int,
    dtype: str = "float32",
    skip: bool = False,
    largest_line: int | None = None,
    patience: Patience | None = None,
) -> Generator[tuple[Source, T]]:
    """Read sources of any format, convert their pieces in threads, and yield them in order.

    Parameters and errors are as in `convert_sources`. With `patience`, each piece is yielded at
    once.
    """
    for _, group in itertools.groupby(sources, lambda source: source.format):
        texts = list(group)
        kind = _kind(texts[0])
        if not kind.has_words:
            texts[0].options.words.expect_numbers(texts[0].shown)
        if kind.parser is not None:
            yield from convert_sources(
                texts, pool, convert, ahead=ahead, parse=kind.parser(texts[0].options), dtype=dtype,
                skip=skip, largest_line=largest_line, reasons=kind.reasons, patience=patience,
            )  # fmt: skip
            continue
        from sbm.inputs.matrices import convert_pieces

        for source in texts:
            pieces = read_pieces(source, dtype, largest_line)
            most = ahead if patience is None else 0
            with contextlib.closing(pieces):
                yield from convert_pieces(source, pieces, pool, convert, ahead=most, skip=skip)


def read_pieces(source: Source, dtype: str, largest_line: int | None) -> Generator[RowPiece]:
    """Yield checked rows of a source that is not text of lines.

    Parameters
    ----------
    dtype, largest_line
        As in `convert_sources`.
    """
    from sbm.inputs.matrices import read_rows

    read = _kind(source).read
    assert read is not None
    largest_row = (largest_line or LARGEST_LINE) // _BYTES_A_NONZERO
    pieces = read_rows(read, source, dtype=dtype, largest_row=largest_row)
    # An iterator of chunks may require this thread.
    return one_ahead(pieces, source) if source.chunks is None else pieces
