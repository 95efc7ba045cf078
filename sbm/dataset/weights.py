"""Row weights: those in a store, or a text file with one number per line.

The file is in the order of the store's text. A store holds its rows in a random order. The deal is
seeded and can be reconstructed, so weights are dealt like the rows and kept in a temporary file in
the order of the store.
"""

import itertools
import os
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import numpy.typing as npt

from sbm.dataset.deal import replay
from sbm.errors import DataError, SbmError, StoreError
from sbm.inputs.parsing import ParsedText
from sbm.inputs.text import convert_sources, expand_inputs
from sbm.store.blocks import BlockStore, Chunk, kept_generations
from sbm.store.files import write_error
from sbm.store.records import checksum
from sbm.units import format_number

Floats = npt.NDArray[np.float64]

_NO_WEIGHT = "found {token} where a weight (a number of at least 0) is expected"
_NOT_FINITE = "found {token}, but a weight must be a finite number of at least 0"
_BEHIND = "found {token} after a weight; expected one number per line"
_ALL_ZERO = "all weights are 0; at least one must be above 0"
_FEATURES = "found features, as in a data file; expected one number per line, the row's weight"
# Error messages, indexed by the codes of `TextError`.
_REASONS = (
    "", _NO_WEIGHT, _NOT_FINITE, _BEHIND, _FEATURES, _BEHIND, _FEATURES, _NOT_FINITE, _FEATURES,
    _FEATURES,
)  # fmt: skip


class StoredWeights:
    """Factors of the costs of a store's rows, which the store holds.

    Attributes
    ----------
    total : float
        Sum of all weights.
    checksum : int
        CRC-32 of the checksums of the weights.
    """

    def __init__(self, store: BlockStore) -> None:
        kept = kept_generations(store.manifest)
        self.total = float(sum(g.get("weights", {}).get("total", g["rows"]) for g in kept))
        self.checksum = checksum([g.get("weights") for g in kept])

    def read(self, chunk: Chunk, out: Floats) -> None:
        """Leave `out` as it is: `BlockStore.read` has written the weights."""

    def class_totals(self, store: BlockStore) -> list[float]:
        """Return the total weight of each class, by class code. Reads the whole store."""
        return _class_totals(store, store.read_weights)


class RowWeights:
    """Factors of the costs of a store's rows, held in a temporary file.

    Parameters
    ----------
    source : str or Path
        Text with one weight per line for each row of the store, in the order of its text, without
        expired sources; plain, .gz, .bz2, .xz or .zst.
    folder : Path
        Folder for the temporary file, 8 bytes per row. The file has no name and is removed when
        the process ends.

    Attributes
    ----------
    total : float
        Sum of all weights.
    checksum : int
        CRC-32 of the weights, in the order of the text.

    Raises
    ------
    DataError
        A weight is invalid, their number differs from the number of rows, or all are 0.
    StoreError
        The store has no record of the order of its text, or the file cannot be written.
    """

    def __init__(self, store: BlockStore, source: str | Path, folder: Path) -> None:
        self._place: dict[tuple[int, int], int] = {}  # position of a chunk's first row
        first = 0
        begins = []
        for block, chunks in enumerate(store.chunks):
            begins.append(first)
            for chunk in chunks:
                self._place[block, chunk.number] = first
                first += chunk.rows
        self.total, self.checksum = 0.0, 0
        try:
            with TemporaryFile(dir=folder) as file:
                self._fill(file, store, str(source), begins)
                file.flush()
                self._handle = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._handle)
        except SbmError:  # some are also OSErrors
            raise
        except OSError as error:
            if error.filename == str(source):
                raise
            raise write_error(folder.resolve(), error) from error
        if self.total == 0:
            raise DataError(f"{source}: {_ALL_ZERO}")

    def _fill(self, file: IO[bytes], store: BlockStore, source: str, begins: list[int]) -> None:
        """Deal the weights as the rows were dealt."""
        weights = _WeightText(source)
        ends = list(begins)
        for n, dealt in replay(store):
            mine = weights.take(n, store.n_rows)
            parts = {block: mine[rows] for block, rows in dealt.items()}
            self.total += float(sum(part.sum() for part in parts.values()))
            for block, part in parts.items():
                file.seek(8 * ends[block])
                file.write(part.tobytes())
                ends[block] += len(part)
        weights.refuse_more(store.n_rows)
        self.checksum = weights.checksum

    def read(self, chunk: Chunk, out: Floats) -> None:
        """Write the weights of a chunk's rows to `out`, shape (at least n_rows,).

        Raises `StoreError` if the temporary file cannot be read.
        """
        place = 8 * self._place[chunk.block, chunk.number]
        try:  # pread, because several threads read
            data = os.pread(self._handle, 8 * chunk.rows, place)
        except OSError as error:
            raise StoreError(f"cannot read the row weights: {error.strerror}") from error
        if len(data) != 8 * chunk.rows:
            raise StoreError("the file of row weights is truncated; train again")
        out[: chunk.rows] = np.frombuffer(data)

    def class_totals(self, store: BlockStore) -> list[float]:
        """Return the total weight of each class, by class code. Reads the whole store."""

        def read(chunk: Chunk) -> Floats:
            weights = np.empty(chunk.rows)
            self.read(chunk, weights)
            return weights

        return _class_totals(store, read)


AnyWeights = RowWeights | StoredWeights


def check_weights(source: str) -> None:
    """Read a text of weights without keeping them.

    Raises
    ------
    DataError
        A weight is invalid, or all are 0.
    """
    totals = [float(piece.sum()) for piece in _WeightText(source).pieces]
    if totals and not any(totals):
        raise DataError(f"{source}: {_ALL_ZERO}")


def _class_totals(store: BlockStore, read: Callable[[Chunk], Floats]) -> list[float]:
    totals = np.zeros(len(store.labels or []))
    for chunk in itertools.chain(*store.chunks):
        totals += np.bincount(store.read_codes(chunk), read(chunk), len(totals))
    return [float(total) for total in totals]


class _WeightText:
    """A text of weights, read in pieces of any length."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.pieces = self._parse()
        self._rest = np.empty(0)
        self._read = 0
        self.checksum = 0

    def _parse(self) -> Iterator[Floats]:
        """Yield the weights of each piece, parsed as LIBSVM text without features."""
        with ThreadPoolExecutor(1, "sbm-parse") as pool:
            sources = expand_inputs([self._source])
            for source, parsed in convert_sources(
                sources, pool, ParsedText.copy, ahead=2, dtype="float64", reasons=_REASONS
            ):
                weights: Floats = parsed.labels
                features = np.diff(parsed.indptr)
                bad = np.flatnonzero((weights < 0) | (features > 0))
                if len(bad):
                    k = int(bad[0])
                    place = f"{source.shown}: weight {self._read + k + 1}"
                    if source.done.lines == source.done.rows:  # no comment or empty line so far
                        place = source.at(source.done.rows - len(weights) + k + 1)
                    reason = _FEATURES if features[k] else _NO_WEIGHT
                    token = format_number(float(weights[k]))
                    raise DataError(f"{place}: {reason.format(token=token)}")
                self._read += len(weights)
                self.checksum = zlib.crc32(weights.tobytes(), self.checksum)
                yield weights

    def take(self, n: int, n_rows: int) -> Floats:
        """Return the next `n` of `n_rows` weights."""
        parts, missing = [], n
        while missing:
            if len(self._rest) == 0:
                piece = next(self.pieces, None)
                if piece is None:
                    raise DataError(
                        f"{self._source} has {self._read:,} weights, but the store has {n_rows:,} "
                        "rows; expected one weight per row"
                    )
                self._rest = piece
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return np.concatenate([*parts, np.empty(0)])

    def refuse_more(self, n_rows: int) -> None:
        """Raise `DataError` if there are weights left after the last row."""
        more = len(self._rest) + sum(len(piece) for piece in self.pieces)
        if more:
            raise DataError(
                f"{self._source} has {n_rows + more:,} weights, but the store has {n_rows:,} rows; "
                "expected one weight per row"
            )
