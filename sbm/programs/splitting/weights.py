"""Weights of rows: a number a line, in the order of the text that a store was made from.

A store holds its rows in another order, dealt at random. The deal is seeded, so it can be made
again: weights are dealt as the rows were and kept in one file in the order of the store, where each
chunk of rows finds its own.
"""

import itertools
import os
import weakref
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SbmError, StoreError
from sbm.inputs.text import expand_inputs, parse_sources
from sbm.programs.splitting.deal import Deal
from sbm.store.blocks import BlockStore, Chunk, kept_generations
from sbm.store.files import write_error
from sbm.units import format_number

__all__ = ["RowWeights"]

Floats = npt.NDArray[np.float64]

_NO_WEIGHT = "found {token} where a weight, a number that is not negative, is expected"
_NOT_FINITE = "found {token}, but a weight is a finite number that is not negative"
_BEHIND = "found {token} behind a weight; one number a line is expected"
_FEATURES = "found features, as a data file has them; one number a line is expected, a row's weight"
# What a line is refused for, in the order of the codes of `TextError`.
_REASONS = (
    "", _NO_WEIGHT, _NOT_FINITE, _BEHIND, _FEATURES, _BEHIND, _FEATURES, _NOT_FINITE, _FEATURES,
)  # fmt: skip


class RowWeights:
    """Factors of the costs of a store's rows, in a file.

    Parameters
    ----------
    store : BlockStore
    source : str or Path
        Text with a weight a line, for each row of the text of the store, in its order, without
        sources that were expired; plain, .gz, .bz2, .xz or .zst.
    folder : Path
        Where there is room for a file without a name, 8 bytes a row; it is gone with the process.

    Attributes
    ----------
    total : float
        Sum of all weights.
    checksum : int
        CRC-32 of the weights, in the order of the text.

    Raises
    ------
    DataError
        A line is no weight, there are more or fewer than rows, or all are 0.
    StoreError
        The store does not know how its rows were dealt, or the file cannot be written.
    """

    def __init__(self, store: BlockStore, source: str | Path, folder: Path) -> None:
        self._place: dict[tuple[int, int], int] = {}  # of a chunk's first row
        first = 0
        begins = []
        for block, chunks in enumerate(store.chunks):
            begins.append(first)
            for chunk in chunks:
                self._place[block, chunk.offset] = first
                first += chunk.rows
        self.total, self.checksum = 0.0, 0
        try:
            with TemporaryFile(dir=folder) as file:
                self._fill(file, store, str(source), begins)
                file.flush()
                self._handle = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._handle)
        except SbmError:  # some are OSErrors, too
            raise
        except OSError as error:
            raise write_error(folder.resolve(), error) from error
        if self.total == 0:
            raise DataError(f"{source}: all weights are 0; give at least one row a weight above 0")

    def _fill(self, file: IO[bytes], store: BlockStore, source: str, begins: list[int]) -> None:
        """Deal the weights as the rows were dealt."""
        weights = _WeightText(source)
        blocks = {entry["file"]: k for k, entry in enumerate(store.manifest["blocks"])}
        ends = list(begins)
        for generation in kept_generations(store.manifest):
            if "deal" not in generation:
                raise StoreError(
                    f"{store.folder} does not note where each row went; make the store with sbm "
                    "split to use weights"
                )
            if any(name not in blocks for name in generation["blocks"]):
                raise StoreError(f"{store.folder} has lost blocks; weights cannot be told apart")
            for rows in _replay(generation, weights, store.n_rows):
                self.total += float(sum(part.sum() for part in rows.values()))
                for name, part in rows.items():
                    block = blocks[name]
                    file.seek(8 * ends[block])
                    file.write(part.tobytes())
                    ends[block] += len(part)
        weights.refuse_more(store.n_rows)
        self.checksum = weights.checksum

    def read(self, chunk: Chunk, out: Floats) -> None:
        """Write the weights of a chunk's rows to `out`, shape (at least n_rows,).

        Raises
        ------
        StoreError
            The disk fails.
        """
        place, view = 8 * self._place[chunk.block, chunk.offset], memoryview(out[: chunk.rows])
        try:  # in several threads: pread moves no position
            n = os.preadv(self._handle, [view.cast("B")], place)
        except OSError as error:
            raise StoreError(f"cannot read the weights of rows: {error.strerror}") from error
        if n != 8 * chunk.rows:
            raise StoreError("the weights of rows were cut off; train again")

    def class_totals(self, store: BlockStore) -> list[float]:
        """Return the sum of the weights of each class's rows, by class code; reads the store."""
        totals = np.zeros(len(store.labels or []))
        for chunk in itertools.chain(*store.chunks):
            weights = np.empty(chunk.rows)
            self.read(chunk, weights)
            totals += np.bincount(store.read_codes(chunk), weights, len(totals))
        return [float(total) for total in totals]


class _WeightText:
    """The weights of a text, in pieces of any length."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._pieces = self._parse()
        self._rest = np.empty(0)
        self._read = 0
        self.checksum = 0

    def _parse(self) -> Iterator[Floats]:
        """Yield weights as they come; a line with a number alone is LIBSVM text, too."""
        with ThreadPoolExecutor(1, "sbm-parse") as pool:
            sources = expand_inputs([self._source])
            for source, parsed in parse_sources(
                sources, pool, ahead=2, dtype="float64", reasons=_REASONS
            ):
                weights: Floats = parsed.labels
                features = np.diff(parsed.indptr)
                bad = np.flatnonzero((weights < 0) | (features > 0))
                if len(bad):
                    k = int(bad[0])
                    place = f"{source.shown}: weight {self._read + k + 1}"
                    if source.done.lines == source.done.rows:  # no remarks and empty lines so far
                        place = source.at(source.done.rows - len(weights) + k + 1)
                    reason = _FEATURES if features[k] else _NO_WEIGHT
                    token = format_number(float(weights[k]))
                    raise DataError(f"{place}: {reason.format(token=token)}")
                self._read += len(weights)
                self.checksum = zlib.crc32(weights.tobytes(), self.checksum)
                yield weights.copy()

    def take(self, n: int, n_rows: int) -> Floats:
        """Return the next `n` weights; `n_rows` are wanted in all."""
        parts, missing = [], n
        while missing:
            if len(self._rest) == 0:
                piece = next(self._pieces, None)
                if piece is None:
                    raise DataError(
                        f"{self._source} has {self._read:,} weights, the store has {n_rows:,} "
                        "rows; give one weight a row"
                    )
                self._rest = piece
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return np.concatenate([*parts, np.empty(0)])

    def refuse_more(self, n_rows: int) -> None:
        """Notice weights behind the last row."""
        more = len(self._rest) + sum(len(piece) for piece in self._pieces)
        if more:
            raise DataError(
                f"{self._source} has {n_rows + more:,} weights, the store has {n_rows:,} rows; "
                "give one weight a row"
            )


def _replay(
    generation: dict[str, Any], weights: _WeightText, n_rows: int
) -> Iterator[dict[str, Floats]]:
    """Yield what each block file got of each batch, in the order in which it was written."""
    record, options = generation["deal"], generation["options"]
    deal = Deal(options["seed"], record["first"], record["blocks"], options["shuffle"])
    with_rows = _blocks_with_rows(record["batches"], deal)
    names = dict(zip(with_rows, generation["blocks"], strict=True))
    deal = Deal(options["seed"], record["first"], record["blocks"], options["shuffle"])
    for n in record["batches"]:
        mine = weights.take(n, n_rows)
        dealt = deal.next(n)
        yield {names[k]: mine[rows] for k, rows in enumerate(dealt) if len(rows)}


def _blocks_with_rows(batches: list[int], deal: Deal) -> list[int]:
    """Return the blocks that got a row; the others were never written."""
    got: set[int] = set()
    for n in batches:
        got |= {k for k, rows in enumerate(deal.next(n)) if len(rows)}
        if len(got) == deal.n_blocks:
            break
    return sorted(got)
