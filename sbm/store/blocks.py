"""The block store: a manifest and block files of independently compressed chunks of rows.

A store ``NAME.sbm/`` holds

* ``manifest.json``: description of the store; written last, so a folder without it is incomplete;
* ``block-000012.sbb``: chunks of rows, concatenated, each a container;
* ``index-0000.sba``: position of each chunk (block, offset, bytes, rows, nnz) and the CRC-32 of its
  header;
* ``features-0000.sba``: the feature ids in order of their indices.

The manifest has a checksum of its own, and one for each block and each file of ids. They detect
files from another store or with other rows.

Each run of ``split`` or ``split --append`` adds a generation: new blocks, one index file and one
file with the new ids. ``expire`` removes the block files of whole generations. Their entries stay
in the manifest, marked as expired, and their index and ids stay too, so feature indices and block
names are never reused.

`split --shards` deals the block files of a store to several folders (`sbm.store.shards`).
"""

import contextlib
import copy
import itertools
import math
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import StoreError
from sbm.names import Names
from sbm.plain import dataclass
from sbm.rows import SPARE, Arena, Rows
from sbm.store import container
from sbm.store.codec import RAW, decode_rows, encode_rows, gather_rows
from sbm.store.container import Buffers
from sbm.store.decoded import DecodedChunk, DecodedChunks
from sbm.store.files import (
    lock,
    open_own,
    read_error,
    reading,
    remove,
    sync,
    write_atomically,
    writing,
)
from sbm.store.manifest import (
    FORMAT,
    MANIFEST,
    MOST_NNZ_A_BYTE,
    NONZERO_BYTES,
    VERSION,
    block_name,
    features_name,
    index_name,
    kept_generations,
    names_of,
    next_block,
    read_manifest,
    write_manifest,
)
from sbm.store.shards import read_shard

__all__ = [
    "FORMAT", "MANIFEST", "NONZERO_BYTES", "VERSION", "BlockStore", "BlockWriter", "Chunk",
    "RowsInMemory", "kept_generations", "names_of", "next_block", "read_manifest",
    "require_whole", "telling_change", "write_generation", "write_manifest",
]  # fmt: skip

CHUNK_NNZ = 1 << 18  # about half a megabyte compressed
CHUNK_ROWS = 1 << 16
_BUFFER = 8 * CHUNK_NNZ + 64  # bytes; untouched pages take no memory
_AT_ONCE = 1 << 16  # nonzeros that are scaled at a time
_POSITION = 700  # bytes of the positions of a chunk in lists, while text is trained on
# Limits of any store, so that a small forged file cannot claim a large amount of memory.
_MOST_ROWS, _MOST_NNZ = CHUNK_ROWS, CHUNK_NNZ  # per chunk; a single row may be longer
_CHUNK_ARRAYS = frozenset(
    [
        "lengths",
        "lengths_bits",
        "gaps",
        "gaps_bits",
        "values",
        "table",
        "labels",
        "codes",
        "weights",
    ]
)


# ---------------------------------------------------------------------------------- writing


class BlockWriter:
    """Cuts the rows of blocks into chunks, and encodes these to files or keeps them decoded.

    Parameters
    ----------
    folder : Path
        Folder of the block files.
    first, n_blocks : int
        Number of the first block, and number of blocks.
    level : int
        zstd compression level.
    decoded : DecodedChunks, optional
        Holds the chunks of all blocks that are not spilled. Default: all chunks are on disk only.
    is_kept : bool
        With `decoded`: whether its chunks are also on disk.

    Attributes
    ----------
    n_blocks : int
        Number of blocks that rows are dealt to.
    n_held : int
        The first blocks, up to this number, are kept decoded.
    is_kept : bool
    """

    def __init__(
        self,
        folder: Path,
        first: int,
        n_blocks: int,
        level: int,
        decoded: DecodedChunks | None = None,
        is_kept: bool = True,
    ) -> None:
        self._folder = folder
        self._first = first
        self._level = level
        self._decoded = decoded
        self.is_kept = is_kept
        self.n_held = n_blocks if decoded is not None else 0
        # Offset, bytes, rows, nnz and CRC-32 of the header of each chunk.
        self._chunks: list[list[tuple[int, int, int, int, int]]] = [[] for _ in range(n_blocks)]
        self.n_blocks = n_blocks
        self._sizes = [0] * n_blocks
        self._pending: list[Future[None]] = []
        self._buffers = Buffers(_BUFFER)

    def add(
        self, rows: Rows, deal: Sequence[npt.NDArray[np.int64]], pool: ThreadPoolExecutor
    ) -> None:
        """Start writing chunks of each block; the rows must not change until `wait`.

        Parameters
        ----------
        rows : Rows
            Indices within a row in any order.
        deal : sequence of ndarray of int64, one for each block
            Rows of the block, in order.
        pool : ThreadPoolExecutor
            Each block is written in one task at a time.
        """
        self.wait()
        if self._decoded is not None and rows.values is not None:
            self._decoded.have_values()
        tasks = max(1, min(self.n_blocks, 16))
        for task in range(tasks):
            blocks = range(task, self.n_blocks, tasks)
            self._pending.append(pool.submit(self._write, rows, deal, blocks))

    def wait(self) -> None:
        """Wait until all added rows are written."""
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()

    def _write(self, rows: Rows, deal: Sequence[npt.NDArray[np.int64]], blocks: range) -> None:
        for block in blocks:
            for chosen, lengths in _cut(deal[block], rows.lengths):
                number, labels = len(self._chunks[block]), _labels_to_store(rows.y[chosen])
                if rows.weights is not None:
                    labels["weights"] = rows.weights[chosen]
                chunk = None
                if self._decoded is not None and block < self.n_held:
                    chunk = self._decoded.gather(block, number, rows, chosen, lengths, labels)
                is_held = chunk is not None
                chunk = chunk or self._gather(rows, chosen, lengths, labels)
                size = (len(chosen), len(chunk.indices))
                place = (0, 0, 0)
                if self.is_kept or not is_held:
                    place = self._encode(block, chunk)
                self._chunks[block].append((*place[:2], *size, place[2]))
                if not is_held:
                    self._buffers.give_back(chunk.indices, chunk.values)

    def _gather(
        self,
        rows: Rows,
        chosen: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        labels: dict[str, npt.NDArray[Any]],
    ) -> DecodedChunk:
        """Copy rows to buffers, each sorted by index."""
        nnz = int(lengths.sum(dtype=np.int64))
        indices = self._buffers.take(nnz, np.int32)
        values = None if rows.values is None else self._buffers.take(nnz, rows.values.dtype)
        gather_rows(rows.starts, rows.indices, rows.values, chosen, lengths, indices, values)
        return DecodedChunk(0, lengths, labels, indices, values)

    def _encode(self, block: int, chunk: DecodedChunk) -> tuple[int, int, int]:
        """Append a chunk to its block's file; return offset, bytes and CRC-32 of the header."""
        arrays = encode_rows(chunk.lengths, chunk.indices, chunk.values, self._buffers)
        data = container.encode("chunk", {**arrays, **chunk.labels}, level=self._level, raw=RAW)
        offset, size = self._sizes[block], self._append(block, data)
        self._sizes[block] += size
        self._buffers.give_back(*arrays.values())
        return offset, size, container.header_crc(data[0])

    def spill(self, block: int, numbers: Iterable[int] | None = None) -> None:
        """Write decoded chunks of a block to its file, and remove them from memory.

        Parameters
        ----------
        numbers : iterable of int, optional
            Numbers of the chunks. Default: all, also those that are added later.
        """
        assert self._decoded is not None
        self.wait()
        if numbers is None:
            self.n_held = min(self.n_held, block)
        for number in self._decoded.numbers(block) if numbers is None else numbers:
            chunk = self._decoded.get(block, number)
            assert chunk is not None
            _, size, n_rows, nnz, _ = self._chunks[block][number]
            if not size:
                offset, size, crc32 = self._encode(block, chunk)
                self._chunks[block][number] = (offset, size, n_rows, nnz, crc32)
            else:
                self._decoded.scaled.discard((block, number))  # the file has the values as read
            self._decoded.drop(block, number)

    def _append(self, block: int, data: Sequence[bytes | memoryview]) -> int:
        path = self._folder / block_name(self._first + block)
        mode = "ab" if self._sizes[block] else "wb"  # replaces one left by a killed process
        with writing(path), open(path, mode) as file:
            return sum(map(file.write, data))

    def finish(self) -> tuple[list[dict[str, Any]], npt.NDArray[np.int64]]:
        """Sync the block files; return their manifest entries and the chunk index.

        Returns
        -------
        blocks : list of dict
            File, rows, nnz, bytes and CRC-32 of each block with rows. Blocks are numbered from
            `first` without gaps.
        index : ndarray, shape (n_chunks, 6), int64
            See `index`.
        """
        self.wait()
        written = [k for k, chunks in enumerate(self._chunks) if chunks]
        for number, k in enumerate(written):
            if self._sizes[k]:
                self._close(self._first + k, self._first + number)
        if self._decoded is not None:
            self._decoded.renumber({k: number for number, k in enumerate(written)})
        self._chunks = [self._chunks[k] for k in written]
        self._buffers = Buffers(_BUFFER)  # frees those used so far
        self._sizes = [self._sizes[k] for k in written]
        self.n_held = sum(k < self.n_held for k in written)
        blocks = [
            {
                "file": block_name(self._first + number),
                "rows": sum(c[2] for c in chunks),
                "nnz": sum(c[3] for c in chunks),
                "bytes": self._sizes[number] * self.is_kept,
                "crc32": _crc_of([c[4] * self.is_kept for c in chunks]),
            }
            for number, chunks in enumerate(self._chunks)
        ]
        return blocks, self.index()

    def index(self) -> npt.NDArray[np.int64]:
        """Return the chunk index, shape (n_chunks, 6), int64.

        Its columns are block, offset, bytes, rows, nnz, and CRC-32 of the header. Offset, bytes and
        CRC-32 of chunks that are only in memory are 0.
        """
        rows = [
            (self._first + number, *c) for number, some in enumerate(self._chunks) for c in some
        ]
        return np.array(rows, np.int64).reshape(-1, 6)

    def _close(self, block: int, number: int) -> None:
        """Sync the file of a block, and give it another number."""
        path = self._folder / block_name(block)
        if number != block:
            with writing(path):
                path = path.rename(self._folder / block_name(number))
        if self.is_kept:
            with writing(path), open(path, "rb+") as file:
                sync(file.fileno(), path)


def _crc_of(chunks: Sequence[int]) -> int:
    """Return the CRC-32 of a block, computed from those of its chunks' headers."""
    return zlib.crc32(np.array(chunks, "<u4").tobytes())


def write_generation(
    folder: Path,
    generation: int,
    ids: npt.NDArray[np.int64],
    index: npt.NDArray[np.int64],
    names: Names | None = None,
) -> dict[str, Any]:
    """Write the new feature ids and the chunk index of a generation; return manifest fields.

    Parameters
    ----------
    generation : int
        Number of the generation.
    ids : ndarray, shape (n_new,), int64
    index : ndarray, shape (n_chunks, 6), int64
        See `BlockWriter.finish`.
    names : Names, optional
        Names of these features.
    """
    files = {"features": features_name(generation), "index": index_name(generation)}
    data = container.encode("features", {"ids": ids, **({} if names is None else names.arrays())})
    write_atomically(folder / files["features"], data)
    table: dict[str, npt.NDArray[Any]]
    table = {"chunks": index[:, :5], "crc32": index[:, 5].astype(np.uint32)}
    container.write(folder / files["index"], "index", table)
    entry = {**files, "features_crc32": container.header_crc(data[0])}
    return entry if names is None else {**entry, "names_bytes": names.nbytes}


def _cut(
    chosen: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
    """Cut rows into chunks far smaller than any memory bound, of at least one row each.

    Yields the rows of each chunk, and a copy of their lengths.
    """
    chosen = np.ascontiguousarray(chosen)  # one layout: one compiled version
    sizes = lengths[chosen]
    ends = np.cumsum(sizes, dtype=np.int64)
    begin = 0
    while begin < len(chosen):
        before = ends[begin - 1] if begin else 0
        end = int(np.searchsorted(ends, before + CHUNK_NNZ, side="right"))
        end = min(max(end, begin + 1), begin + CHUNK_ROWS)
        yield chosen[begin:end], sizes[begin:end].copy()
        begin = end


def _labels_to_store(y: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return targets, or class codes in as few bytes as a chunk needs."""
    if y.dtype == np.float64:
        return {"labels": y}
    wide = int(y.max(initial=0)) > 255
    return {"codes": y.astype(np.uint16 if wide else np.uint8)}


# ---------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Chunk:
    """Position and size of a chunk."""

    block: int
    # offset, size: in bytes, in the block's file
    offset: int
    size: int
    rows: int
    nnz: int
    crc32: int  # CRC-32 of the chunk's header
    number: int = 0  # position in the block


@dataclass
class RowsInMemory:
    """The rows of a text, decoded in memory or in the block files of a folder."""

    name: str  # of the text, in messages
    manifest: dict[str, Any]
    decoded: DecodedChunks
    writer: BlockWriter  # has the positions of all chunks, and can spill more of them
    reader_bytes: int = 0  # memory of libraries that read the text, which stay loaded

    @property
    def table_bytes(self) -> int:
        """Memory of lengths, labels and positions of all chunks."""
        return self.decoded.table_bytes + _POSITION * len(self.writer.index())

    def chunks(self) -> list[list[Chunk]]:
        """Return the chunks of each block."""
        found: list[list[Chunk]] = [[] for _ in self.manifest["blocks"]]
        for block, offset, size, rows, nnz, crc32 in self.writer.index().tolist():
            mine = found[block]
            mine.append(Chunk(block, offset, size, rows, nnz, crc32, len(mine)))
        return found


class BlockStore:
    """A finished store, read-only.

    Parameters
    ----------
    memory : RowsInMemory, optional
        Rows of a text: the folder then has only the block files that did not fit in memory.
    scaling : {"none", "maxabs", "std"}
        How `scales` are found.

    Attributes
    ----------
    folder : Path
    memory : RowsInMemory or None
    manifest : dict
    chunks : list of list of Chunk
        The chunks of each block, in file order.
    shard : Shard or None
        The shard in this folder; None for a whole store.
    read_seconds : float
        Total time spent reading chunks, without decoding.
    scaling : str
    scales : ndarray, shape (n_features,), float64, or None
        What `read` divides the values of each feature by; None for 1. See `scaled`.

    Raises
    ------
    StoreError
        If the folder is not a store, or is damaged.
    """

    def __init__(
        self, folder: str | Path, memory: RowsInMemory | None = None, scaling: str = "none"
    ) -> None:
        self.folder = Path(folder)
        self.memory = memory
        self.manifest = read_manifest(self.folder) if memory is None else memory.manifest
        self.chunks = self._read_index() if memory is None else memory.chunks()
        self.shard = read_shard(self.folder) if memory is None else None
        self.read_seconds = 0.0
        self.scaling = scaling
        self.scales: npt.NDArray[np.float64] | None = None
        self._buffers = Buffers(_BUFFER)

    def _read_index(self) -> list[list[Chunk]]:
        blocks = self.manifest["blocks"]
        chunks: list[list[Chunk]] = [[] for _ in blocks]
        number = {entry["file"]: k for k, entry in enumerate(blocks)}
        for generation in self.manifest["generations"]:
            path = self.folder / generation["index"]
            arrays = container.read(path, "index", {"chunks", "crc32"}.__contains__).arrays
            for (file_number, offset, size, rows, nnz), crc32 in _rows_of_index(arrays, path):
                block = number.get(block_name(file_number))
                if block is not None:  # the index still has the chunks of expired blocks
                    mine = chunks[block]
                    mine.append(Chunk(block, offset, size, rows, nnz, crc32, len(mine)))
        for entry, some in zip(blocks, chunks, strict=True):
            if not _belong_together(entry, some):
                raise StoreError(
                    f"{self.folder}: the index of {entry['file']} does not match the manifest; "
                    "split the data again"
                )
        return chunks

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.manifest["rows"])

    @property
    def n_features(self) -> int:
        """Number of distinct feature ids."""
        return int(self.manifest["features"])

    @property
    def nnz(self) -> int:
        """Number of nonzeros."""
        return int(self.manifest["nnz"])

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.manifest["blocks"])

    @property
    def blocks_here(self) -> list[int]:
        """Blocks whose file is in this folder; all of them in a whole store."""
        if self.memory is not None:
            return list(range(self.n_blocks))
        with reading(self.folder):
            names = set(os.listdir(self.folder))
        return [k for k, entry in enumerate(self.manifest["blocks"]) if entry["file"] in names]

    @property
    def expired_blocks(self) -> list[dict[str, Any]]:
        """Manifest entries of expired blocks."""
        gone = [g["expired"] for g in self.manifest["generations"] if "expired" in g]
        return [entry for expired in gone for entry in expired["blocks"]]

    @property
    def blocks_of_generations(self) -> list[int]:
        """Number of blocks of each generation that is not expired."""
        return [len(g["blocks"]) for g in kept_generations(self.manifest)]

    @property
    def value_type(self) -> str:
        """``ones``, ``float32`` or ``float64``; scaled values are not ones."""
        is_ones = self.manifest["value_type"] == "ones" and self.scaling != "std"
        return "ones" if is_ones else str(self.manifest["dtype"])

    @property
    def labels(self) -> list[float] | None:
        """Label of each class code, or None for real-valued labels."""
        labels = self.manifest["labels"]
        return None if labels is None else list(labels["values"])

    @property
    def label_counts(self) -> list[int]:
        """Number of rows of each class code; empty for real-valued labels."""
        labels = self.manifest["labels"]
        return [] if labels is None else list(labels["counts"])

    @property
    def name(self) -> str:
        """Name of the store, or the text, in messages."""
        return str(self.folder) if self.memory is None else self.memory.name

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the store against ``split --force`` and ``expire``; appending stays possible.

        Raises `StoreError` if one of them is running, or has changed the store since it was opened.
        """
        if self.memory is not None and not self.memory.writer.is_kept:
            yield
            return
        with lock(self.folder, f"the store {self.folder}", shared=True):
            mine = self.manifest["generations"]
            if read_manifest(self.folder)["generations"][: len(mine)] != mine:
                raise StoreError(
                    f"the store {self.folder} was changed in the meantime; run the command again"
                )
            yield

    def read_feature_ids(self) -> npt.NDArray[np.int64]:
        """Read the feature id of each index, shape (n_features,), int64.

        Raises `StoreError` if a file is missing or damaged.
        """
        parts: list[npt.NDArray[np.int64]] = []
        for generation in self.manifest["generations"]:
            path = self.folder / generation["features"]
            crc32 = generation["features_crc32"]
            file = container.read(path, "features", "ids".__eq__, crc32=crc32)
            new = file.arrays.get("ids", np.empty(0))
            if new.dtype != np.int64 or new.ndim != 1 or new.min(initial=0) < 0:
                raise StoreError(f"{path} has invalid feature ids; split the data again")
            parts.append(new)
            if sum(map(len, parts)) > self.n_features:
                raise StoreError(
                    f"{path} has more ids than the manifest states; split the data again"
                )
        if sum(map(len, parts)) != self.n_features:
            raise StoreError(
                f"{self.folder} has fewer feature ids than its manifest states; split the data "
                "again"
            )
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.int64)])

    @property
    def names_bytes(self) -> int:
        """Memory of the names of features."""
        return sum(g.get("names_bytes", 0) for g in self.manifest["generations"])

    def read_names(self) -> Names | None:
        """Read the name of each feature index; None if no feature has one.

        Raises `StoreError` if a file is missing or damaged.
        """
        if not self.names_bytes:
            return None
        found: Names | None = None
        for generation in self.manifest["generations"]:
            path = self.folder / generation["features"]
            crc32 = generation["features_crc32"]
            wanted = frozenset(["ids", "names", "name_ends"])
            arrays = container.read(path, "features", wanted.__contains__, crc32=crc32).arrays
            n = len(arrays["ids"])
            try:
                some = Names.from_arrays(arrays, n) or Names.of([b""] * n)
            except ValueError as error:
                raise StoreError(f"{path}: {error}; split the data again") from error
            found = some if found is None else found.join(some)
        return found

    @property
    def label_names(self) -> list[str]:
        """Word of each class code; empty if labels are numbers."""
        entry = self.manifest["labels"] or {}
        names = entry.get("names", [])
        return [names[int(value)] for value in entry["values"]] if names else []

    def read(self, chunks: Sequence[Chunk], into: Rows, offset: int) -> Rows:
        """Decode chunks into given arrays.

        Parameters
        ----------
        into : Rows
            Arrays large enough for the rows.
        offset : int
            Position in `indices` and `values` of the first nonzero.

        Returns
        -------
        Rows
            Views of `into`; `starts` are positions in ``into.indices``.

        Raises
        ------
        StoreError
            If a file is missing or damaged. The content of `into` is then undefined.
        """
        n, position = 0, offset
        labels = self.labels or self.manifest["class_values"]
        for chunk in chunks:
            rows = slice(n, n + chunk.rows)
            nonzeros = slice(position, position + chunk.nnz)
            values = None if into.values is None else into.values[nonzeros]
            if (ready := self._in_memory(chunk)) is not None:
                into.lengths[rows] = ready.lengths
                into.y[rows] = _labels_of(ready.labels, chunk.rows, into.y.dtype, labels)
                if into.weights is not None:
                    into.weights[rows] = _weights_of(ready.labels, chunk.rows)
                indices = into.indices[nonzeros]
                if indices.ctypes.data != ready.indices.ctypes.data:  # not where it belongs
                    indices[:] = ready.indices
                    if values is not None:
                        values[:] = 1 if ready.values is None else ready.values
            else:
                with self._arrays(chunk, _CHUNK_ARRAYS.__contains__) as arrays:
                    decode_rows(
                        arrays, self.n_features, into.lengths[rows], into.indices[nonzeros], values
                    )
                    into.y[rows] = _labels_of(arrays, chunk.rows, into.y.dtype, labels)
                    if into.weights is not None:
                        into.weights[rows] = _weights_of(arrays, chunk.rows)
            if self.scales is not None:
                self._scale(chunk, into.indices[nonzeros], values)
            n += chunk.rows
            position += chunk.nnz
        lengths = into.lengths[:n]
        np.cumsum(lengths[:-1], dtype=np.int64, out=into.starts[1:n])
        into.starts[:1] = 0
        into.starts[:n] += offset
        weights = None if into.weights is None else into.weights[:n]
        return Rows(into.starts[:n], lengths, into.indices, into.values, into.y[:n], weights)

    def _scale(
        self,
        chunk: Chunk,
        indices: npt.NDArray[np.int32],
        values: npt.NDArray[np.floating] | None,
    ) -> None:
        """Scale the values of a chunk in place, unless those in memory or on disk are scaled."""
        assert self.scales is not None
        assert values is not None
        key, scaled = (chunk.block, chunk.number), set[tuple[int, int]]()
        if self.memory is not None:
            scaled = self.memory.decoded.scaled
        if key in scaled:
            return
        for k in range(0, len(values), _AT_ONCE):
            some = values[k : k + _AT_ONCE]
            np.divide(some, self.scales[indices[k : k + _AT_ONCE]], out=some, casting="same_kind")
        if (ready := self._in_memory(chunk)) is not None:
            assert ready.values is not None
            if ready.values.ctypes.data == values.ctypes.data:
                scaled.add(key)

    @property
    def scale_rounding(self) -> float | None:
        """The most that rounding changes a scaled value, relative to it; None without scales.

        Solvers and certificates see the values that `read` returns: quotients in the value type.
        """
        return None if self.scales is None else 0.5 * float(np.finfo(self.value_type).eps)

    def scaled(self, scales: npt.NDArray[np.float64]) -> "BlockStore":
        """Return this store with other `scales`."""
        store = copy.copy(self)
        store.scales = scales
        return store

    def unscaled(self, W: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the weights, shape (n_weights, n), of rows that are not scaled."""
        if self.scales is None:
            return W
        plain = W.copy()
        plain[: len(self.scales)] /= self.scales[:, np.newaxis]
        return plain

    def read_codes(self, chunk: Chunk) -> npt.NDArray[np.integer]:
        """Read the class codes of a chunk, shape (n_rows,), uint8 or uint16.

        Raises `StoreError` if the file is missing or damaged, or has real-valued labels.
        """
        if (ready := self._in_memory(chunk)) is not None:
            return _codes_of(ready.labels, chunk.rows, self.labels)
        with self._arrays(chunk, "codes".__eq__) as arrays:
            return _codes_of(arrays, chunk.rows, self.labels).copy()

    def read_weights(self, chunk: Chunk) -> npt.NDArray[np.float64]:
        """Read the weights of a chunk's rows, shape (n_rows,).

        Raises `StoreError` if the file is missing or damaged.
        """
        if (ready := self._in_memory(chunk)) is not None:
            return _weights_of(ready.labels, chunk.rows)
        with self._arrays(chunk, "weights".__eq__) as arrays:
            return _weights_of(arrays, chunk.rows).copy()

    @property
    def has_weights(self) -> bool:
        """Whether rows have weights other than 1."""
        return any("weights" in g for g in kept_generations(self.manifest))

    def _in_memory(self, chunk: Chunk) -> DecodedChunk | None:
        """Return a chunk if it is in memory."""
        if self.memory is None:
            return None
        return self.memory.decoded.get(chunk.block, chunk.number)

    def bytes_on_disk(self, chunk: Chunk) -> int:
        """Return the bytes to read for a chunk; 0 if it is in memory."""
        if self._in_memory(chunk) is not None:
            return 0
        return self.chunks[chunk.block][chunk.number].size  # it may have been spilled since

    def arena(
        self, staying: Mapping[int, Sequence[Chunk]], more: int
    ) -> tuple[Arena, dict[int, list[int]], int]:
        """Return an arena for chunks that stay decoded; rows in memory are already there.

        Parameters
        ----------
        staying : dict of int to sequence of Chunk
            The chunks of each part that stays decoded. Others that are in memory are spilled.
        more : int
            Room for nonzeros behind those of these chunks.

        Returns
        -------
        arena : Arena
        offsets : dict of int to list of int
            By part: the position of each chunk's nonzeros.
        used : int
            Where the room for others begins.
        """
        nnz = [chunk.nnz for chunks in staying.values() for chunk in chunks]
        decoded = self._keep(staying, sum(nnz) + more)
        if decoded is None:
            ends = itertools.accumulate(nnz, initial=0)
            offsets = {k: [next(ends) for _ in chunks] for k, chunks in staying.items()}
            return Arena.of(sum(nnz) + more + SPARE, self.value_type), offsets, sum(nnz)
        offsets = {
            k: [decoded.place_of(chunk.block, chunk.number, chunk.nnz) for chunk in chunks]
            for k, chunks in staying.items()
        }
        return decoded.arena(), offsets, decoded.used

    def _keep(self, staying: Mapping[int, Sequence[Chunk]], nnz: int) -> DecodedChunks | None:
        """Spill rows in memory, except chunks that stay if there is room for `nnz` nonzeros.

        Returns None if no rows are in memory.
        """
        if self.memory is None:
            return None
        decoded, kept = self.memory.decoded, set()
        if has_room := decoded.capacity >= nnz:
            kept = {(chunk.block, chunk.number) for chunks in staying.values() for chunk in chunks}
        for block in range(self.n_blocks):
            numbers = decoded.numbers(block)
            self.memory.writer.spill(block, [k for k in numbers if (block, k) not in kept])
        self.chunks = self.memory.chunks()
        if not has_room:
            decoded.release()
            return None
        decoded.close_up()
        if self.scales is not None:
            decoded.have_values()
        return decoded

    @contextlib.contextmanager
    def _arrays(
        self, chunk: Chunk, wanted: Callable[[str], bool]
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Provide the stored arrays of a chunk, whose memory is then used again.

        Errors that using them raises are reported as damage.
        """
        if self.memory is not None:  # it may have been spilled since
            chunk = self.chunks[chunk.block][chunk.number]
        data = self._buffers.take(chunk.size, np.uint8)
        where = self._read_bytes(chunk, data)
        most = 16 * (chunk.rows + chunk.nnz) + 64  # for arrays of any types
        arrays = container.decode(
            memoryview(data), "chunk", where, wanted, crc32=chunk.crc32, most_bytes=most,
            buffers=self._buffers,
        ).arrays  # fmt: skip
        try:
            yield arrays
        except (ValueError, KeyError, IndexError) as error:
            raise StoreError(f"{where} is damaged ({error}); split the data again") from error
        self._buffers.give_back(data, *arrays.values())

    def _read_bytes(self, chunk: Chunk, data: npt.NDArray[np.uint8]) -> str:
        """Read a chunk into an array of its size; return its location for error messages."""
        path = self.folder / block_name_of(self.manifest, chunk.block)
        where = f"{path} at byte {chunk.offset}"
        begin = time.perf_counter()
        try:
            with open_own(path) as file:
                file.seek(chunk.offset)
                size = file.readinto(data)
        except StoreError:
            raise
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self.is_elsewhere(chunk.block):
                raise self._not_here(chunk.block) from None
            raise read_error(path, error) from error
        self.read_seconds += time.perf_counter() - begin
        if size != chunk.size:
            raise StoreError(f"{path} is shorter than the index states; split the data again")
        return where

    def read_cold(self, chunks: Iterable[Chunk], seconds: float) -> float:
        """Read chunks from disk until `seconds` have passed; return bytes per second.

        Chunks that are in memory are left out; infinity if all are.

        Each chunk is first dropped from the page cache, if the system supports that.

        Parameters
        ----------
        chunks : iterable of Chunk
            At least one.
        """
        size, begin = 0, time.perf_counter()
        for chunk in chunks:
            if self._in_memory(chunk) is not None:
                continue
            _forget(self.folder / block_name_of(self.manifest, chunk.block), chunk)
            self._read_bytes(chunk, np.empty(chunk.size, np.uint8))
            size += chunk.size
            if time.perf_counter() - begin > seconds:
                break
        return size / (time.perf_counter() - begin) if size else math.inf

    def is_elsewhere(self, block: int) -> bool:
        """Whether a block belongs to another shard."""
        return self.shard is not None and not self.shard.holds(block)

    def _not_here(self, block: int) -> StoreError:
        assert self.shard is not None
        return StoreError(
            f"{self.folder / block_name_of(self.manifest, block)} not found: {self.folder} is "
            f"{self.shard} of a store, and the file is in shard {block % self.shard.of}; use that "
            "shard, or copy the block files of all shards into one folder"
        )


def require_whole(store: BlockStore) -> None:
    """Check that all blocks of a store are in its folder.

    Raises `StoreError` if blocks are in other shards.
    """
    here = len(store.blocks_here)
    if store.shard is None or here == store.n_blocks:
        return
    raise StoreError(
        f"{store.folder} is {store.shard} of a store, with {here} of its {store.n_blocks} blocks; "
        f"train on all shards with sbm train --launch {store.shard.of} and {{rank}} in place of "
        "the shard's number, or copy the block files of all shards into one folder"
    )


def block_name_of(manifest: dict[str, Any], block: int) -> str:
    """Return the file name of a block in a manifest."""
    return str(manifest["blocks"][block]["file"])


def _rows_of_index(
    arrays: dict[str, npt.NDArray[Any]], path: Path
) -> Iterator[tuple[list[int], int]]:
    """Yield block, offset, bytes, rows and nnz of each chunk, and its CRC-32."""
    table, crcs = arrays.get("chunks"), arrays.get("crc32")
    if (
        table is None
        or crcs is None
        or table.dtype != np.int64
        or table.ndim != 2
        or table.shape[1] != 5
        or table.min(initial=0) < 0
        or crcs.dtype != np.uint32
        or crcs.shape != table.shape[:1]
    ):
        raise StoreError(f"{path} is not a valid index; split the data again")
    return zip(table.tolist(), crcs.tolist(), strict=True)


def _belong_together(entry: dict[str, Any], chunks: Sequence[Chunk]) -> bool:
    """Whether chunks are contiguous, within the limits and match the manifest entry."""
    ends = itertools.accumulate((chunk.size for chunk in chunks), initial=0)
    return (
        all(chunk.offset == end for chunk, end in zip(chunks, ends, strict=False))
        and all(0 < chunk.rows <= _MOST_ROWS for chunk in chunks)
        and all(chunk.nnz <= _MOST_NNZ or chunk.rows == 1 for chunk in chunks)
        and all(chunk.nnz <= chunk.size * MOST_NNZ_A_BYTE for chunk in chunks)
        and all(
            sum(getattr(chunk, name) for chunk in chunks) == entry[key]
            for name, key in (("rows", "rows"), ("nnz", "nnz"), ("size", "bytes"))
        )
        and _crc_of([chunk.crc32 for chunk in chunks]) == entry["crc32"]
    )


def _forget(path: Path, chunk: Chunk) -> None:
    """Drop a chunk from the page cache, if the system supports that."""
    if hasattr(os, "posix_fadvise"):
        with open_own(path) as file:
            os.posix_fadvise(file.fileno(), chunk.offset, chunk.size, os.POSIX_FADV_DONTNEED)


def _codes_of(
    arrays: Mapping[str, npt.NDArray[Any]], n_rows: int, labels: list[float] | None
) -> npt.NDArray[Any]:
    """Return the class codes of a chunk, checked."""
    codes: npt.NDArray[Any] = arrays["codes"]
    if codes.dtype not in (np.uint8, np.uint16) or codes.shape != (n_rows,):
        raise ValueError("invalid class codes")
    if labels is not None and codes.max(initial=0) >= len(labels):
        raise ValueError("class code without a label")
    return codes


def _weights_of(arrays: Mapping[str, npt.NDArray[Any]], n_rows: int) -> npt.NDArray[np.float64]:
    """Return the weights of a chunk, checked; 1 for a chunk without weights."""
    weights: npt.NDArray[np.float64] | None = arrays.get("weights")
    if weights is None:
        return np.ones(n_rows)
    if weights.shape != (n_rows,) or weights.dtype != np.float64:
        raise ValueError("row weights do not match")
    if not ((weights >= 0) & (weights < np.inf)).all():
        raise ValueError("invalid row weight")
    return weights


def _labels_of(
    arrays: Mapping[str, npt.NDArray[Any]],
    n_rows: int,
    dtype: np.dtype[Any],
    labels: list[float] | None,
) -> npt.NDArray[Any]:
    """Return the labels of a chunk: class codes, or float64 targets if `dtype` is float64."""
    if "labels" in arrays:
        if dtype != np.float64:
            raise ValueError("found real-valued labels, expected class codes")
        targets: npt.NDArray[Any] = arrays["labels"]
        if targets.dtype != np.float64 or targets.shape != (n_rows,):
            raise ValueError("invalid labels")
        if not np.isfinite(targets).all():
            raise ValueError("a label is not finite")
        return targets
    codes = _codes_of(arrays, n_rows, labels)
    if dtype == np.float64:
        if labels is None:
            raise ValueError("class codes without labels")
        return np.take(np.array(labels, np.float64), codes)
    return codes


_OURS = re.compile(
    r"(block-\d+\.sbb|(features|index)-\d+\.sba|(manifest|shard)\.json)(\.tmp)?|lock"
)


def foreign_files(folder: Path) -> list[str]:
    """Return the names in a folder that store files do not have."""
    with reading(folder):
        return sorted(p.name for p in folder.iterdir() if not _OURS.fullmatch(p.name))


def holds_only_ours(folder: Path) -> bool:
    """Whether this is a folder with only files with the names of store files."""
    return folder.is_dir() and not foreign_files(folder)


@contextlib.contextmanager
def telling_change(folder: Path) -> Iterator[None]:
    """Report what looks like damage as a change, if a store was expired or replaced meanwhile.

    Raises `StoreError`, also if the folder is not a store.
    """
    before = read_manifest(folder)
    try:
        yield
    except StoreError as error:
        now = None
        with contextlib.suppress(StoreError):
            now = read_manifest(folder)
        if now == before:
            raise
        raise StoreError(
            f"the store {folder} was changed in the meantime; run the command again"
        ) from error


def remove_leftovers(folder: Path, manifest: dict[str, Any] | None = None) -> set[str]:
    """Remove store files that the manifest does not name, left by a process that was killed.

    Returns the names of the removed files.
    """
    named = {"lock"}
    if manifest is not None:
        named |= {MANIFEST, *(b["file"] for b in manifest["blocks"])}
        named |= {g[key] for g in manifest["generations"] for key in ("features", "index")}
    with reading(folder):
        paths = [p for p in folder.iterdir() if p.name not in named and _OURS.fullmatch(p.name)]
    remove(paths)
    return {path.name for path in paths}
