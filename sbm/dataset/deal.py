"""Dealing: collect parsed rows in a batch, and distribute full batches to the blocks at random."""

import math
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.dataset.coding import CodedText, Labels, add_names
from sbm.dataset.options import (
    SplitOptions,
    batch_bytes,
    check_ids,
    room_for_rows,
)
from sbm.engine.memory import AUTO_BLOCKS
from sbm.errors import DataError, SettingsError, StoreError
from sbm.inputs.columns.words import WordTable
from sbm.inputs.idtable import IdTable
from sbm.inputs.nametable import NameTable
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.store.blocks import CHUNK_NNZ, CHUNK_ROWS, BlockStore, BlockWriter, kept_generations
from sbm.store.decoded import DecodedChunks

# Chosen so that a block, the next block and the cache fit in the default --mem of training.
BLOCK_BYTES = 400_000_000
SMALL_BLOCK = 50_000


@dataclass
class _Batch:
    """Rows collected for the next deal."""

    rows: Rows  # with class codes, as far as labels are not real
    labels: npt.NDArray[np.float64]
    n: int = 0
    nnz: int = 0
    has_values: bool = False

    @classmethod
    def of(cls, n_rows: int, nnz: int, dtype: str) -> "_Batch":
        labels, codes = np.empty(n_rows), np.empty(n_rows, np.int32)
        starts, lengths = np.empty(n_rows, np.int64), np.empty(n_rows, np.int32)
        indices, values = np.empty(nnz, np.int32), np.empty(nnz, dtype)
        return cls(Rows(starts, lengths, indices, values, codes), labels)

    def append(
        self,
        labels: npt.NDArray[np.float64],
        y: npt.NDArray[Any],
        indptr: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int32],
        values: npt.NDArray[np.floating] | None,
        weights: npt.NDArray[np.float64] | None,
    ) -> None:
        new = slice(self.n, self.n + len(labels))
        added = slice(self.nnz, self.nnz + len(indices))
        self.labels[new] = labels
        if y is not labels:
            self.rows.y[new] = y
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
        if weights is not None and self.rows.weights is None:
            self.rows.weights = np.ones(len(self.rows))
        if self.rows.weights is not None:
            self.rows.weights[new] = 1 if weights is None else weights
        self.n, self.nnz = new.stop, added.stop

    def taken(self, are_real: bool) -> Rows:
        """Return the rows, with class codes or, if these are real, labels."""
        n, rows = self.n, self.rows
        values = rows.values if self.has_values else None
        weights = None if rows.weights is None else rows.weights[:n]
        y = (self.labels if are_real else rows.y)[:n]
        return Rows(rows.starts[:n], rows.lengths[:n], rows.indices, values, y, weights)

    def clear(self) -> None:
        self.n = self.nnz = 0
        self.has_values = False


@dataclass
class WeightTotal:
    """Sum and checksum of the weights of rows, in the order of the text."""

    total: float = 0.0
    crc32: int = 0
    is_given: bool = False
    _rows: int = 0

    def add(self, weights: npt.NDArray[np.float64] | None, n_rows: int) -> None:
        """Add the weights of rows; None for 1."""
        if weights is not None and not self.is_given:
            self.is_given, self.total = True, float(self._rows)
        self._rows += n_rows
        if self.is_given:
            mine = np.ones(n_rows) if weights is None else weights
            self.total += float(mine.sum())
            self.crc32 = zlib.crc32(mine.tobytes(), self.crc32)

    def record(self) -> dict[str, Any]:
        """Return the entry for the manifest; empty if every weight is 1."""
        if self.is_given and self.total == 0:
            raise DataError("all weights of rows are 0; at least one must be above 0")
        return {"weights": {"total": self.total, "crc32": self.crc32}} if self.is_given else {}


class Deal:
    """Assignment of rows to blocks, batch by batch, reproducible from its parameters.

    Parameters
    ----------
    shuffle : bool
        Deal a random permutation of each batch in equal parts; else deal row by row, in turn.
    """

    def __init__(self, seed: int, first_block: int, n_blocks: int, shuffle: bool) -> None:
        self.n_blocks = n_blocks
        self._shuffle = shuffle
        self._random = np.random.default_rng([seed, first_block, 2])
        self._dealt, self._orders = 0, [np.empty(0, np.int64)] * 2

    def next(self, n: int) -> list[npt.NDArray[np.int64]]:
        """Return for each block its rows of the next batch, which has `n` rows, in their order.

        They are valid until the call after the next: faults of new pages would take longer.
        """
        m = self.n_blocks
        self._orders.reverse()
        if len(self._orders[0]) < n:
            self._orders[0] = np.empty(n, np.int64)
        order = self._orders[0][:n]
        order.fill(1)
        np.cumsum(order, out=order)
        order -= 1
        if self._shuffle:
            self._random.shuffle(order)
            turn = self._random.permutation(m)  # the first ones get one row more
        else:
            turn = (np.arange(m) - self._dealt) % m
        self._dealt += n
        return [order[turn[block] :: m] for block in range(m)]


def replay(store: BlockStore) -> Iterator[tuple[int, dict[int, npt.NDArray[np.int64]]]]:
    """Reconstruct the deal of a store, to find the position of each row of the text.

    Yields
    ------
    int, dict of int to ndarray of int64
        For each batch in the order of the text, without expired sources: its number of rows, and
        for each block the rows of the batch that it holds, in the order of the block.

    Raises
    ------
    StoreError
        The store has no record of the deal.
    """
    blocks = {entry["file"]: k for k, entry in enumerate(store.manifest["blocks"])}
    for generation in kept_generations(store.manifest):
        if "deal" not in generation or any(name not in blocks for name in generation["blocks"]):
            raise StoreError(
                f"{store.name} has no record of the order of its text; rebuild it with sbm split"
            )
        record, options = generation["deal"], generation["options"]

        def again(record: Any = record, options: Any = options) -> Deal:
            return Deal(options["seed"], record["first"], record["blocks"], options["shuffle"])

        with_rows = _blocks_with_rows(record["batches"], again())
        number = {k: blocks[name] for k, name in zip(with_rows, generation["blocks"], strict=True)}
        deal = again()
        for n in record["batches"]:
            yield n, {number[k]: rows for k, rows in enumerate(deal.next(n)) if len(rows)}


def _blocks_with_rows(batches: list[int], deal: Deal) -> list[int]:
    """Return the blocks with rows; the others were not written."""
    got: set[int] = set()
    for n in batches:
        got |= {k for k, rows in enumerate(deal.next(n)) if len(rows)}
        if len(got) == deal.n_blocks:
            break
    return sorted(got)


class Dealer:
    """Collects parsed text in batches and deals each batch to the blocks.

    Parameters
    ----------
    largest : tuple of int, optional
        Rows and nonzeros of the largest block of the store; by default, new blocks get about this
        size.
    decoded, is_kept
        As in `BlockWriter`.
    names : NameTable, optional
        Receives the names of features.

    Attributes
    ----------
    writer : BlockWriter
        Set when the first rows arrive.
    weight : WeightTotal
    """

    def __init__(
        self,
        folder: Path,
        first_block: int,
        options: SplitOptions,
        ids: IdTable,
        labels: Labels,
        pool: ThreadPoolExecutor,
        largest: tuple[int, int] | None = None,
        decoded: DecodedChunks | None = None,
        is_kept: bool = True,
        names: NameTable | WordTable | None = None,
    ) -> None:
        self.names, self.weight = names, WeightTotal()
        self._decoded, self._is_kept = decoded, is_kept
        self._folder, self._first, self._options = folder, first_block, options
        self._largest = largest
        self.ids, self.labels = ids, labels
        self._pool = pool
        self._dtype = options.dtype
        self._batches = list[_Batch]()
        self.writer: BlockWriter | None = None
        self._deals: Deal | None = None
        self.batches: list[int] = []
        self.n_rows = 0
        self.nnz = 0
        self.has_values = False

    def add(self, text: CodedText, text_share: float) -> None:
        """Add a piece of text; `text_share` is the fraction of the input read so far."""
        text.complete(self.ids)
        add_names(self.names, text)
        check_ids(self.ids, self._options, names=self.names)
        self.weight.add(text.weights, len(text.labels))
        self.n_rows += len(text.labels)
        self.nnz += len(text.indices)
        self.has_values |= text.values is not None
        if self.writer is None:
            self._open(text_share)
        self._gather(text)

    def _make_batches(self, n_blocks: int) -> None:
        """Make two batches that are dealt as about one chunk for each block, if memory allows.

        Larger ones would not stay in the processor's cache until they are dealt. A block gets an
        equal number of rows, so its nonzeros may be some more.
        """
        size, width = batch_bytes(self._options.mem), 4 + np.dtype(self._dtype).itemsize
        self._capacity = min(size // width, n_blocks * CHUNK_NNZ * 7 // 8)
        self._row_capacity = min(size // 64, n_blocks * CHUNK_ROWS * 7 // 8)
        self._batches = [self._new_batch() for _ in range(2)]

    def _new_batch(self) -> _Batch:
        return _Batch.of(self._row_capacity, self._capacity, self._dtype)

    def _gather(self, text: CodedText) -> None:
        """Append rows to the batch; deal the batch when it is full."""
        row, indptr = 0, text.indptr
        while row < len(text.labels):
            batch = self._batches[0]
            room = indptr[row] + len(batch.rows.indices) - batch.nnz
            last = int(np.searchsorted(indptr, room, side="right")) - 1
            last = min(last, row + len(batch.rows) - batch.n)
            if last <= row:
                if batch.n:
                    self._deal()
                else:  # a row that is larger than a batch gets its own batch
                    length = int(indptr[row + 1] - indptr[row])
                    self._batches[0] = _Batch.of(1, length, self._dtype)
                continue
            part = slice(indptr[row], indptr[last])
            values = None if text.values is None else text.values[part]
            weights = None if text.weights is None else text.weights[row:last]
            labels = text.labels[row:last]
            y, ends = self.labels.encode(labels), indptr[row : last + 1]
            batch.append(labels, y, ends, text.indices[part], values, weights)
            row = last

    def _open(self, text_share: float) -> None:
        """Choose the number of blocks, extrapolating from the first piece."""
        width = 4 + (np.dtype(self._dtype).itemsize if self.has_values else 0)

        def size(rows: int, nnz: int) -> int:
            return nnz * width + rows * 40

        so_far = size(self.n_rows, self.nnz)
        options = self._options
        estimate = so_far / text_share if text_share > 0 else None
        if options.blocks is not None:
            n = options.blocks
        elif options.block_size is not None:
            if estimate is None:
                raise SettingsError(
                    "--block-size needs an input of known size; use --blocks when reading a pipe"
                )
            n = math.ceil(estimate / options.block_size)
        elif estimate is None:
            n = AUTO_BLOCKS
        else:
            most = max(1, round(estimate / SMALL_BLOCK))
            n = min(most, max(AUTO_BLOCKS, math.ceil(estimate / BLOCK_BYTES)))
            if self._largest is not None:
                n = min(n, round(estimate / size(*self._largest)))
        n = max(options.shards or 1, n)  # at least one per shard
        self.writer = BlockWriter(
            self._folder, self._first, n, options.level, self._decoded, self._is_kept
        )
        self._deals = Deal(options.seed, self._first, n, options.shuffle)
        self._make_batches(n)

    def _deal(self) -> None:
        """Deal the batch."""
        assert self.writer is not None
        assert self._deals is not None
        batch = self._batches[0]
        self._make_room(batch)
        self.writer.add(batch.taken(self.labels.real), self._deals.next(batch.n), self._pool)
        self.batches.append(batch.n)
        self._batches.reverse()
        self._batches[0].clear()
        if len(self._batches[0].rows) < self._row_capacity:  # it was for one long row
            self._batches[0] = self._new_batch()

    def _make_room(self, batch: _Batch) -> None:
        """Spill blocks, the last ones first, until the batch fits in memory."""
        assert self.writer is not None
        decoded, values = self._decoded, batch.has_values
        if decoded is None:
            return
        self.writer.wait()  # for the rows before
        room = room_for_rows(self.ids, self._options, self.names)
        room = min(room, decoded.capacity * decoded.width(values))
        coming = batch.nnz * decoded.width(values) + 12 * batch.n
        coming += 0 if batch.rows.weights is None else 8 * batch.n
        held = self.writer.n_held
        while held and decoded.nbytes(values) + coming * held // self.writer.n_blocks > room:
            held -= 1
            self.writer.spill(held)
        if held and not decoded.has_room(batch.nnz):
            decoded.close_up()

    def record(self) -> dict[str, Any]:
        """Return what reproduces the deal, together with the options."""
        assert self.writer is not None
        return {"first": self._first, "blocks": self.writer.n_blocks, "batches": self.batches}

    def finish(self) -> tuple[list[dict[str, Any]], npt.NDArray[np.int64]]:
        """Deal the remaining rows and close the blocks; see `BlockWriter.finish`."""
        if self.writer is None:
            raise DataError("the input has no rows; expected at least one")
        if self._batches[0].n:
            self._deal()
        return self.writer.finish()
