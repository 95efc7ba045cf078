"""Read rows: parse, code, deal to blocks; into a store, or into memory as far as they fit.

Text is parsed in threads, and ids become indices in order of first appearance. Rows are collected
in a batch. A full batch is permuted and dealt, one chunk to each block, while the next one fills.
Memory is two batches, for any number of blocks.

The text is read once. To drop rare features (`min_count`) it is read twice, first to count. The
store is then the same as that of a text without these features.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.dataset.coding import (
    Counted,
    Labels,
    count_features,
    names_of_features,
    read_sources,
    refuse_changed_sources,
    refuse_once_only,
    require_second_reading,
)
from sbm.dataset.deal import Dealer
from sbm.dataset.destination import new_store, scratch
from sbm.dataset.newlabels import NewLabels, look_like_targets
from sbm.dataset.options import ReadOptions, SplitOptions
from sbm.dataset.sources import (
    columns_seen,
    find_sources,
    refuse_known_sources,
    refuse_skipped,
    table_notes,
)
from sbm.engine import kernels
from sbm.engine.machine import (
    interpreter_bytes,
    return_freed_memory,
    system_limit,
    usable_threads,
    within_limit,
)
from sbm.engine.progress import Progress
from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.inputs.formats import (
    FORMATS,
    check_headers,
    check_names,
    is_table,
    names_format,
    names_record,
    plain_name,
    reader_memory,
)
from sbm.inputs.idtable import IdTable
from sbm.inputs.nametable import LabelWords
from sbm.inputs.text import PIECE, Source, expand_names
from sbm.inputs.urls import is_remote
from sbm.losses import LOSSES
from sbm.plain import dataclass
from sbm.settings import Settings
from sbm.store import blocks as store_files
from sbm.store.blocks import BlockStore, BlockWriter, RowsInMemory
from sbm.store.decoded import DecodedChunks
from sbm.store.manifest import origins

# Rows in memory are hardly larger than this times their file, even if that is compressed; for
# fewer bytes, kernels that encode rows for the disk are not compiled ahead.
_EXPANSION = 16


def default_store(first_input: str) -> Path:
    """Return the default store for an input: ``big.sbm`` for ``data/big.svm.zst``."""
    name = Path(plain_name(first_input)).name
    for ending in (ending for row in FORMATS.values() for ending in row.endings):
        name = name.removesuffix(ending)
    return Path(f"{name}.sbm")


def default_model(inputs: Any) -> str:
    """Return the default model for inputs: ``big.model`` for ``data/big.svm.zst``.

    A pattern stands for its first file.

    Raises
    ------
    SettingsError
        The input has no name.
    DataError
        A pattern has no files.
    """
    first = [inputs] if isinstance(inputs, str | Path) else inputs
    name = first[0] if isinstance(first, list | tuple) and first else None
    if not isinstance(name, str | Path) or str(name) == "-":
        raise SettingsError("the input has no file name; give the model a name (-o)")
    file = str(name)
    if "*" in file or not (is_remote(file) or os.path.exists(file)):
        file = expand_names([file])[0]
    return default_store(file).with_suffix(".model").name


@contextlib.contextmanager
def read_rows(
    inputs: Any,
    model: Path,
    reading: ReadOptions,
    settings: Settings,
    progress: Progress,
    is_stopped: Callable[[], bool],
    rank: int = 0,
    look: Callable[[Sequence[Source]], None] = lambda _: None,
    keep_store: str | Path | None = None,
) -> Iterator[tuple[BlockStore, dict[str, Any]]]:
    """Read text or matrices for a training, into memory as far as it fits.

    The rows are dealt to the same blocks as by `split`. Blocks that do not fit are written to a
    folder next to the model, which is removed at the end. A store to keep is in place as soon as
    the text is read; one with the same rows, from an earlier call, stays.

    Parameters
    ----------
    inputs
        As in `split`.
    settings : Settings
        `mem`, `threads` and `seed` apply.
    is_stopped : callable
        Called after each piece of text; if true, `KeyboardInterrupt` is raised.
    rank : int
        Number of this process, if several read the same text.
    look : callable
        Called with the sources before they are read; may raise.
    keep_store : str, Path or None
        Store to write besides.

    Yields
    ------
    store : BlockStore
        Valid inside the context.
    report : dict
        As of `split`.

    Raises
    ------
    SbmError
        As for `split`.
    """
    loss, task = LOSSES[settings.loss], settings.problem
    are_targets, mem, limit = task != "classification", settings.mem_bytes, system_limit()
    how = reading.input_options(mem, are_targets)
    if task == "regression":
        advice = "use a loss for classification"
        how = replace(how, words=LabelWords({}, f"targets of {loss.name}", advice))
    sources, _ = find_sources(inputs, model, False, how, reading.name)
    asked = reading.options(settings.seed, usable_threads(settings.threads), are_targets)
    room = (mem - interpreter_bytes()) // 4 if keep_store is None else None
    options = prepare(sources, asked, mem, progress, room)
    look(sources)
    if limit is not None:  # a split uses only a part of `mem`, but rows may fill it
        mem = min(mem, limit.size)
        options = replace(options, mem=min(options.mem, mem))
    keep = None if keep_store is None else Path(keep_store)
    is_kept = keep is not None and not (keep / store_files.MANIFEST).is_file()
    with contextlib.ExitStack() as until:
        if keep is not None and is_kept:
            place = new_store(keep, False, "name another with --keep-store")
        else:
            beside = f"{model.name}.rows" + (f"-{rank}" if rank else "")
            place = scratch(model.with_name(beside))
        folder = until.enter_context(place)
        while True:
            try:
                decoded = DecodedChunks((mem - interpreter_bytes()) // 4, options.dtype)
                manifest = empty_manifest(options)
                filling = Filling(
                    folder, keep or _name_of(inputs, sources), sources, options, False, progress,
                    decoded, is_kept, is_stopped,
                )  # fmt: skip
                report, writer = filling.fill(manifest)
                break
            except DataError as error:
                if any(source.done.rows for source in sources):
                    raise
                found = sources[0]
                if reading.format or found.format != "libsvm" or names_format(found.name):
                    raise
                raise DataError(
                    f"{error} (it is not a store, so it was read as libsvm; --format reads "
                    "another format)"
                ) from None
            except MemoryPlanError:
                raise
            except MemoryError:
                sources, options = with_less(sources, options, progress)
            del decoded, filling
            gc.collect()  # errors of threads refer to them: free them before the next try
            store_files.remove_leftovers(folder)
        if keep is not None and is_kept:
            until.close()  # puts the store in place
            folder = keep
        elif keep is not None:
            kept = store_files.read_manifest(keep)
            if origins(kept) != origins(manifest):
                raise StoreError(
                    f"{keep} exists and has other rows, or rows dealt to blocks differently; name "
                    "another with --keep-store"
                )
            report["bytes"] = sum(block["bytes"] for block in kept["blocks"])
        rows = RowsInMemory(report["store"], manifest, decoded, writer, reader_memory(sources))
        yield BlockStore(folder, rows, settings.scale), report


def _name_of(inputs: Any, sources: list[Source]) -> str | Path:
    """Return what rows are called in messages: the folder they are from, or the first file."""
    given = inputs[0] if isinstance(inputs, list | tuple) and len(inputs) == 1 else inputs
    if isinstance(given, str | Path) and os.path.isdir(given):
        return Path(given) if Path(given).name else Path(given).resolve()
    return sources[0].shown


def prepare(
    sources: list[Source], asked: SplitOptions, mem: int, progress: Progress,
    room: int | None = None,
) -> SplitOptions:  # fmt: skip
    """Plan the memory, check that the sources come again if needed, and compile the kernels.

    `room` is the number of bytes in memory for rows, None if all of them are written to disk.
    """
    reserved = reader_memory(sources)
    options = within_limit(
        lambda bound: asked.within(bound, reserved), mem, system_limit(), progress.note
    )
    if options.min_count > 1:
        refuse_once_only(sources)
    return_freed_memory()
    largest_row = max(PIECE, (options.mem - interpreter_bytes()) // 12) // 8
    check_names(sources, largest_row)
    if any(map(is_table, sources)):
        kernels.prepare("reading tables", kernels.TABLES, {}, progress)
        check_headers(sources, largest_row)
    for line in columns_seen(sources):
        progress.stage(line)
    wanted: tuple[str, ...] = kernels.READ_TEXT
    if names_record(sources) is not None:
        wanted += kernels.NAMES
    size = sum(source.size if source.size else math.inf for source in sources)
    if room is None or _EXPANSION * size > room:
        wanted += kernels.STORE
    kernels.prepare("reading", wanted, kernels.types_of_dtype(options.dtype), progress)
    return options


def with_less(
    sources: list[Source], options: SplitOptions, progress: Progress
) -> tuple[list[Source], SplitOptions]:
    """Return unread sources, and options with less memory, for another try."""
    require_second_reading(sources, options)
    options = options.with_less(progress)
    return [source.again() for source in sources], options


@dataclass(frozen=True)
class _Dealt:
    """Result of dealing: the blocks on disk and their manifest entries."""

    dealer: Dealer
    blocks: list[dict[str, Any]]
    index: npt.NDArray[np.int64]
    counted: Counted | None

    @property
    def left_out(self) -> dict[str, int]:
        """Number of rare features dropped, and of their nonzeros."""
        if self.counted is None:
            return {"features": 0, "nnz": 0}
        return {"features": self.counted.n_rare, "nnz": self.counted.nnz - self.dealer.nnz}


@dataclass(frozen=True)
class Filling:
    """A split in progress."""

    folder: Path
    target: Path | str  # final name of the store, or of the first input of a training
    sources: list[Source]
    options: SplitOptions
    force: bool
    progress: Progress
    decoded: DecodedChunks | None = None
    is_kept: bool = True
    is_stopped: Callable[[], bool] = lambda: False

    def fill(self, manifest: dict[str, Any]) -> tuple[dict[str, Any], BlockWriter]:
        """Read the sources and write blocks, ids, index and finally the manifest.

        Parameters
        ----------
        manifest : dict, changed in place

        Returns
        -------
        report : dict
            As of `split`.
        writer : BlockWriter
        """
        options, generation = self.options, len(manifest["generations"])
        if generation and manifest["dtype"] != options.dtype:
            raise SettingsError(
                f"{self.target} holds {manifest['dtype']} values; use --dtype {manifest['dtype']}"
            )
        ids = IdTable(BlockStore(self.folder).read_feature_ids() if generation else None)
        known = len(ids)
        before = manifest["labels"] or {"values": None, "counts": []}
        labels = Labels(before["values"], before["counts"])
        dealt = self._deal(manifest, ids, labels)
        new, table = ids.keys[known:], names_of_features(self.sources)
        names = table.of(new) if table is not None and len(table) else None
        files = store_files.write_generation(self.folder, generation, new, dealt.index, names)
        entry = {**files, "new_features": len(ids) - known, **self._entry(dealt)}
        words = self.sources[0].options.words
        _add_generation(manifest, entry, dealt, ids, labels, words)
        if self.is_kept:
            store_files.write_manifest(self.folder, manifest)
        report = _report(self.target, manifest, dealt.blocks, self.sources)
        assert dealt.dealer.writer is not None
        pairs = [] if table is None else table.collisions
        report["collisions"] = [[name.decode("utf-8", "replace") for name in p] for p in pairs]
        report["left_out"] = dealt.left_out
        return report, dealt.dealer.writer

    def _deal(self, manifest: dict[str, Any], ids: IdTable, labels: Labels) -> _Dealt:
        """Read all rows and write them in blocks."""
        options, sources, progress = self.options, self.sources, self.progress
        # Separate pools: in a shared one, pieces of text would wait for the encoding of a whole
        # batch, and the main thread would wait for them.
        with (
            ThreadPoolExecutor(options.threads, "sbm-parse") as pool,
            ThreadPoolExecutor(options.threads, "sbm-write") as writers,
        ):
            counted = None
            if options.min_count > 1:
                counted = count_features(sources, ids, options, pool, progress)
            blocks = [(b["rows"], b["nnz"]) for b in manifest["blocks"]]
            largest = max(blocks, key=lambda block: block[1], default=None)
            first = store_files.next_block(manifest)
            dealer = Dealer(
                self.folder, first, options, ids, labels, writers, largest, self.decoded,
                self.is_kept, names_of_features(sources),
            )  # fmt: skip
            read_sources(
                "split" if self.decoded is None else "read", sources, dealer, options, pool,
                progress, only_known=counted is not None, is_stopped=self.is_stopped,
                new_labels=self._new_labels(manifest),
            )  # fmt: skip
            if counted is not None:
                refuse_changed_sources(sources, counted)
            refuse_known_sources(sources, manifest, self.target, self.force)
            refuse_skipped(sources)
            for line in columns_seen(sources):  # of a pipe
                progress.stage(line)
            for note in table_notes(sources):
                progress.stage(f"warning: {note}")
            if changed := next((s.changed for s in sources if s.changed), ""):
                progress.stage(changed)
            return _Dealt(dealer, *dealer.finish(), counted)

    def _new_labels(self, manifest: dict[str, Any]) -> NewLabels | None:
        """Return what refuses new labels; None if there is nothing to compare with."""
        labels, words = manifest["labels"], self.sources[0].options.words
        store = str(self.target) if manifest["rows"] else ""
        if self.options.new_labels or labels is None or not (store or len(self.sources) > 1):
            return None
        if look_like_targets(labels["values"], labels["counts"]):
            return None
        return NewLabels(labels["values"], store=store, text=words.text)

    def _entry(self, dealt: _Dealt) -> dict[str, Any]:
        """Return the manifest entry of this generation, without its files."""
        options: dict[str, Any] = {
            "seed": self.options.seed, "shuffle": self.options.shuffle, "level": self.options.level
        }  # fmt: skip
        if (names := names_record(self.sources)) is not None:
            options["names"] = names
        entry = {
            "blocks": [b["file"] for b in dealt.blocks],
            "rows": dealt.dealer.n_rows,
            "sources": [s.describe() for s in self.sources],
            "options": options,
            "deal": dealt.dealer.record(),
            **dealt.dealer.weight.record(),
            "added": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        if dealt.counted is not None:
            options["min_count"] = self.options.min_count
            entry["left_out"] = dealt.left_out
        return entry


def _add_generation(
    manifest: dict[str, Any], entry: dict[str, Any], dealt: _Dealt, ids: IdTable, labels: Labels,
    words: LabelWords,
) -> None:  # fmt: skip
    """Add a written generation to the manifest."""
    before = (manifest["labels"] or {}).get("names", [])
    dealer, described = dealt.dealer, labels.describe(words, before)
    manifest["generations"].append(entry)
    manifest["blocks"] += dealt.blocks
    manifest["rows"] += dealer.n_rows
    manifest["nnz"] += dealer.nnz
    manifest["features"] = len(ids)
    manifest["labels"] = None if described is None else {**(manifest["labels"] or {}), **described}
    if labels.real and manifest["class_values"] is None:
        # Chunks written while the labels still looked like classes hold codes.
        manifest["class_values"] = labels.values
    if dealer.has_values:
        manifest["value_type"] = manifest["dtype"]


def empty_manifest(options: SplitOptions) -> dict[str, Any]:
    """Return the manifest of a store without rows."""
    return {
        "format": store_files.FORMAT, "version": store_files.VERSION, "rows": 0, "features": 0,
        "nnz": 0, "value_type": "ones", "dtype": options.dtype,
        "labels": {"values": [], "counts": []}, "class_values": None, "blocks": [],
        "generations": [],
    }  # fmt: skip


def _report(
    target: Path | str,
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
        "text_bytes": sum(s.done.text for s in sources),
        "skipped": sum(s.done.skipped for s in sources),
        "problems": [p for s in sources for p in s.problems],
        "open": [s.shown for s in sources if s.is_open],
        "value_type": manifest["value_type"],
        "labels": manifest["labels"],
    }
