"""Split: LIBSVM text, or matrices, to a block store, rows dealt to blocks at random.

Text is parsed in threads, ids become indices in order of first appearance, rows gather in a batch;
a full batch is permuted and dealt, one chunk to each block, while the next one fills. Memory is two
batches, whatever the number of blocks.

The text is read once. To leave out rare features it is read twice, first to count: then the second
reading knows all ids to keep, and nothing behind the parser differs from a split of a text without
the others.
"""

import contextlib
import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.jobs.dealing.count import FeatureCounter
from sbm.jobs.dealing.deal import (
    CodedText,
    Dealer,
    Labels,
    SplitOptions,
    least_to_split,
    limit_threads,
)
from sbm.jobs.dealing.destination import appended, new_shards, new_store
from sbm.jobs.machine.kernels import prepare
from sbm.jobs.machine.limits import less, system_limit, within_limit
from sbm.jobs.machine.memory import INTERPRETER
from sbm.jobs.machine.process import return_freed_memory, usable_threads
from sbm.jobs.progress import Progress
from sbm.settings import format_size, parse_size
from sbm.store import blocks as store_files
from sbm.store.buffers import Buffers
from sbm.store.chunks import chunk_source
from sbm.store.formats import (
    FORMATS,
    convert_inputs,
    names_record,
    open_inputs,
    plain_name,
    reader_memory,
)
from sbm.store.idtable import IdTable
from sbm.store.inputs import InputOptions
from sbm.store.parsing import ParsedText
from sbm.store.shards import shard_path
from sbm.store.text import PIECE, Source

__all__ = ["default_store", "split"]

LEAST_BLOCK = 100_000  # bytes
MOST_SHARDS = 256  # each is locked, and a process has about a thousand files


def default_store(first_input: str) -> Path:
    """``big.svm.zst`` -> ``big.sbm``, in the current folder."""
    name = Path(first_input).name
    name = plain_name(name)
    for ending in (ending for row in FORMATS.values() for ending in row.endings):
        name = name.removesuffix(ending)
    return Path(f"{name}.sbm")


def split(
    inputs: str | Path | Iterable[str | Path] | Iterable[tuple[Any, Any]],
    store: str | Path | None = None,
    *,
    blocks: int | None = None,
    block_size: int | str | None = None,
    shards: int | None = None,
    dtype: str = "auto",
    seed: int = 0,
    shuffle: bool = True,
    level: int = 1,
    threads: int | None = None,
    mem: int | str = 1_000_000_000,
    append: bool = False,
    force: bool = False,
    on_error: str = "fail",
    min_count: int = 1,
    name: str = "arrays",
    format: str | None = None,  # noqa: A002  its name on the command line
    hash_bits: int | None = None,
    label: str | None = None,
    text: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make a block store from LIBSVM text, or from matrices.

    Parameters
    ----------
    inputs : str, Path or iterable of these, or of (X, y)
        Files or globs, plain or .gz, .bz2, .xz, .zst; ``-`` is standard input. Read once, twice
        with `min_count`. With `append` and without `store` one of them may be the store.

        Or chunks of rows: X is a scipy.sparse matrix or array, or a dense matrix, shape (n_rows,
        any), y has n_rows numbers. Column k is feature id k, as for `Model.decision_function`. An
        iterator is read once; `min_count` needs what can be iterated over again, as a list.
    store : str or Path, optional
        Default: the first input's name with ``.sbm``. Chunks have none.
    blocks : int, optional
        Number of blocks.
    block_size : int or str, optional
        Instead of `blocks`: bytes of a block in memory.
    shards : int, optional
        Make so many folders ``big.0.sbm``, ``big.1.sbm`` and so on instead of one, each with all of
        the store but the blocks of the others.
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
        Bound of the process's peak resident memory; the chunks of the caller come on top.
    append : bool
        Add new blocks to an existing store.
    force : bool
        Replace an existing store; with `append`, take a source a second time.
    on_error : {"fail", "skip"}
        What to do with a line that is not LIBSVM text, or a row with numbers that are not finite.
    min_count : int
        Leave out features that fewer rows have; rows that lose all of theirs stay, empty. With
        `append` only the new rows count, and features of the store stay.
    name : str
        What the store calls chunks, which have no file name.
    format : str, optional
        A key of `sbm.store.formats.FORMATS`; default: what each file name tells, LIBSVM text where
        it tells nothing.
    hash_bits : int, optional
        Of formats whose features have names: ids are so many bits of their hashes. Default: 22,
        with `append` that of the store.
    label : str, optional
        Column of the labels in a table.
    text : sequence of str, optional
        Columns of a table whose cells are words, even if they look like numbers.
    progress : Progress, optional
        Is told the bytes read.

    Returns
    -------
    dict
        ``store`` (of shards: ``big.{rank}.sbm``), ``rows``, ``features``, ``nnz``, ``blocks``,
        ``bytes``, ``text_bytes``, ``skipped``, ``problems``, ``value_type``, ``labels``,
        ``left_out`` (``features`` and ``nnz`` that `min_count` left out).

    Raises
    ------
    DataError
        The input is not what it should be.
    StoreError
        The store exists, or cannot be written; no half store is left.
    MemoryPlanError
        `mem` is too small.
    """
    names, chunks = _names_or_chunks(inputs)
    asked = InputOptions(format, hash_bits, label, None if text is None else tuple(text))
    if chunks is not None:
        if store is None:
            raise SettingsError("chunks have no file name; name the store, as sbm.split(chunks, S)")
        sources = [chunk_source(chunks, name)]
    else:
        if append and store is None:
            names, store = _find_store(names)
        if append and store is not None:
            names_before = store_files.names_of(store_files.read_manifest(Path(store)))
            if names_before is not None:
                asked = asked.following(names_before, str(store))
        sources = open_inputs(names, asked)
    if not sources:
        raise DataError("no input; give LIBSVM text files, globs, or - for a pipe")
    if store is None and sources[0].name == "-":
        raise SettingsError("name the store with -o when reading standard input")
    target = Path(store) if store is not None else default_store(sources[0].name)
    if append and dtype == "auto":
        dtype = store_files.read_manifest(target)["dtype"]
    _check_shards(shards, blocks, append)
    progress = progress or Progress()
    reserved = reader_memory(sources)
    options = within_limit(
        lambda bound: _check_options(
            blocks, block_size, dtype, seed, shuffle, level, threads, bound, on_error, min_count,
            reserved,
        ),
        parse_size(mem), system_limit(), progress.note,
    )  # fmt: skip
    options = replace(options, least_blocks=shards or 1)  # each holds one at least
    if min_count > 1:
        _refuse_pipes(sources)
    return_freed_memory()
    prepare("split", options.dtype, progress)
    if names_record(sources) is not None:
        prepare("names", "float64", progress)
    while True:
        try:
            with _destination(target, append, shards, force) as (folder, manifest):
                named = target if shards is None else shard_path(target, "{rank}")
                return _fill_store(folder, named, manifest, sources, options, force, progress)
        except MemoryError as error:
            if isinstance(error, MemoryPlanError):
                raise
            _require_second_reading(sources, options)
            options = _with_less(options, progress)
            sources = [source.again() for source in sources]


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


def _require_second_reading(sources: list[Source], options: SplitOptions) -> None:
    """Notice that memory ran out when something was gone that is read only once."""
    for source in sources:
        if source.read and not source.comes_again:
            raise MemoryPlanError(
                f"memory ran out while reading {source.name}, with --mem "
                f"{format_size(options.mem)}, and it cannot be read again; give less --mem than "
                "that, or raise the limit on this process",
                options.mem,
            )


def _with_less(options: SplitOptions, progress: Progress) -> SplitOptions:
    """Return the options of another try, after memory ran out."""
    mem = less(options.total, least_to_split(), "splitting")
    progress.note(
        f"memory ran out, with --mem {format_size(options.mem)}; beginning anew as with "
        f"{format_size(mem)}"
    )
    return replace(options, mem=mem, threads=limit_threads(mem, options.threads))


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


def _check_options(
    blocks: int | None,
    block_size: int | str | None,
    dtype: str,
    seed: int,
    shuffle: bool,
    level: int,
    threads: int | None,
    bound: int,
    on_error: str,
    min_count: int,
    reserved: int,
) -> SplitOptions:
    if blocks is not None and block_size is not None:
        raise SettingsError("give --blocks or --block-size, not both")
    if block_size is not None and parse_size(block_size) < LEAST_BLOCK:
        raise SettingsError(f"block_size is {block_size}; it must be at least 100kB")
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
    if not 1 <= min_count < 1 << 31:
        raise SettingsError(f"min_count is {min_count}; it must be from 1 to {(1 << 31) - 1}")
    return SplitOptions(
        blocks=blocks,
        block_size=None if block_size is None else parse_size(block_size),
        dtype="float32" if dtype == "auto" else dtype,
        seed=seed,
        shuffle=shuffle,
        level=level,
        threads=limit_threads(bound, usable_threads(threads), reserved),
        mem=bound - reserved,
        skip=on_error == "skip",
        min_count=min_count,
    )


def _check_shards(shards: int | None, blocks: int | None, append: bool) -> None:
    if shards is None:
        return
    if append:
        raise SettingsError("--shards makes a store anew; give --append or --shards, not both")
    if not 1 <= shards <= MOST_SHARDS:
        raise SettingsError(f"shards is {shards}; it must be from 1 to {MOST_SHARDS}")
    if blocks is not None and blocks < shards:
        raise SettingsError(
            f"blocks is {blocks}, and each of {shards} shards needs one; give --blocks {shards} "
            "or more"
        )


def _refuse_pipes(sources: list[Source]) -> None:
    for source in sources:
        if source.chunks is not None and not source.comes_again:
            raise SettingsError(
                "an iterator of chunks can be read only once, and min_count reads twice; give a "
                "list, or an object whose __iter__ begins anew"
            )
        if not source.comes_again:
            raise SettingsError(
                f"{source.name} can be read only once, and --min-count reads twice; "
                "write the text to a file first"
            )


@contextlib.contextmanager
def _destination(
    target: Path, append: bool, shards: int | None, force: bool
) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Give the folder to write to, and the manifest of what is there already."""
    if append:
        with appended(target) as manifest:
            yield target, manifest
        return
    new = new_store(target, force) if shards is None else new_shards(target, shards, force)
    with new as folder:
        yield folder, None


def _fill_store(
    folder: Path,
    target: Path,
    manifest: dict[str, Any] | None,
    sources: list[Source],
    options: SplitOptions,
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
    table = Labels(
        None if labels is None else labels["values"], [] if labels is None else labels["counts"]
    )
    first = store_files.next_block(manifest)
    # Pools of their own: in one, pieces of text would wait for a whole batch to be encoded, and the
    # main thread for them.
    with (
        ThreadPoolExecutor(max(1, options.threads - 1), "sbm-parse") as pool,  # we read and deal
        ThreadPoolExecutor(options.threads, "sbm-write") as writers,
    ):
        counted = None
        if options.min_count > 1:
            counted = _count(sources, ids, options, pool, progress)
        blocks = [(b["rows"], b["nnz"]) for b in manifest["blocks"]]
        largest = max(blocks, key=lambda block: block[1], default=None)
        dealer = Dealer(folder, first, options, ids, table, writers, largest)
        _read("split", sources, dealer, options, pool, progress, only_known=counted is not None)
        if counted is not None:
            _refuse_changed_sources(sources, counted)
        _refuse_known_sources(sources, manifest, target, force)
        new_blocks, index = dealer.finish()
    files = store_files.write_generation(folder, generation, ids.keys[known:], index)
    entry: dict[str, Any] = {
        **files, "new_features": len(ids) - known,
        "blocks": [b["file"] for b in new_blocks], "rows": dealer.n_rows,
        "sources": [s.describe() for s in sources],
        "options": {"seed": options.seed, "shuffle": options.shuffle, "level": options.level},
        "deal": dealer.record(),
        "added": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    if (names := names_record(sources)) is not None:
        entry["options"]["names"] = names
    left_out = {"features": 0, "nnz": 0}
    if counted is not None:
        left_out = {"features": counted.n_rare, "nnz": counted.nnz - dealer.nnz}
        entry["options"]["min_count"] = options.min_count
        entry["left_out"] = left_out
    manifest["generations"].append(entry)
    manifest["version"] = store_files.VERSION  # what was appended is of today's
    manifest["blocks"] += new_blocks
    manifest["rows"] += dealer.n_rows
    manifest["nnz"] += dealer.nnz
    manifest["features"] = len(ids)
    described = table.describe()
    manifest["labels"] = None if described is None else {**(labels or {}), **described}
    if table.real and manifest["class_values"] is None:
        # Chunks that were written while the labels still looked like classes hold codes.
        manifest["class_values"] = table.values
    if dealer.has_values:
        manifest["value_type"] = options.dtype
    store_files.write_manifest(folder, manifest)
    return _report(target, manifest, new_blocks, sources) | {"left_out": left_out}


def _empty_manifest(options: SplitOptions) -> dict[str, Any]:
    return {
        "format": store_files.FORMAT, "version": store_files.VERSION, "rows": 0, "features": 0,
        "nnz": 0, "value_type": "ones", "dtype": options.dtype,
        "labels": {"values": [], "counts": []}, "class_values": None, "blocks": [],
        "generations": [],
    }  # fmt: skip


def _known_ids(folder: Path) -> npt.NDArray[np.int64]:
    return store_files.BlockStore(folder).read_feature_ids()


@dataclass(frozen=True)
class _Counted:
    """What the first of two readings found.

    Attributes
    ----------
    sources : list of Source
        The sources as they were then.
    n_rare : int
        Features to leave out.
    nnz : int
        Nonzeros, those of rare features included.
    """

    sources: list[Source]
    n_rare: int
    nnz: int


def _count(
    sources: list[Source],
    ids: IdTable,
    options: SplitOptions,
    pool: ThreadPoolExecutor,
    progress: Progress,
) -> _Counted:
    """Read the sources a first time, and put the ids that are to be kept into the table."""
    again = [source.again() for source in sources]  # what the second reading counts is kept
    counter = FeatureCounter(ids, options)
    _read("count", again, counter, options, pool, progress)
    return _Counted(again, counter.forget_rare(), counter.nnz)


def _refuse_changed_sources(sources: list[Source], counted: _Counted) -> None:
    """Notice text that is not the text that was counted."""
    for before, source in zip(counted.sources, sources, strict=True):
        if before.sha256 != source.sha256:
            raise DataError(
                f"{source.name} changed between the two readings that --min-count takes; "
                "split it again when it is complete"
            )


class _Taker(Protocol):
    """A dealer, or what counts before it."""

    ids: IdTable
    n_rows: int

    def add(self, text: CodedText, text_share: float) -> None: ...


def _read(
    what: str,
    sources: list[Source],
    taker: _Taker,
    options: SplitOptions,
    pool: ThreadPoolExecutor,
    progress: Progress,
    only_known: bool = False,
) -> None:
    """Parse everything and hand it over, without the features that are in no table if so wanted."""
    known = all(s.size for s in sources)
    total = sum(s.size for s in sources)
    progress.start(what, total if known else None)
    buffers = Buffers(PIECE)

    def coded(parsed: ParsedText) -> CodedText:
        text = CodedText.of(parsed, taker.ids, buffers)
        return text.without_unknown(taker.ids, buffers) if only_known else text

    pieces = convert_inputs(
        sources, pool, coded, ahead=options.threads + 1, dtype=options.dtype, skip=options.skip,
        largest_line=max(PIECE, (options.mem - INTERPRETER) // 12),
    )  # fmt: skip
    for _, text in pieces:
        done = sum(s.parsed for s in sources)
        if len(text.labels):
            taker.add(text, done / total if known else 0.0)
        text.give_back(buffers)
        progress.advance(done, rows=taker.n_rows)
    progress.finish()


def _refuse_known_sources(
    sources: list[Source], manifest: dict[str, Any], target: Path, force: bool
) -> None:
    """Notice data that would be counted twice."""
    kept = store_files.kept_generations(manifest)
    known = {s["sha256"]: s["name"] for g in kept for s in g["sources"]}
    given: dict[str, str] = {}
    for source in sources:
        if source.rows == 0:
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


def _report(
    target: Path,
    manifest: dict[str, Any],
    new_blocks: list[dict[str, Any]],
    sources: list[Source],
) -> dict[str, Any]:
    return {
        "store": str(target),
        "rows": sum(b["rows"] for b in new_blocks),
        "rows_in_all": manifest["rows"],
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
