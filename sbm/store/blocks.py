"""The block store: a manifest and block files of independently compressed chunks of rows.

A store ``NAME.sbm/`` holds

* ``manifest.json``: what is in it; written last, so a folder without one is no store;
* ``block-000012.sbb``: chunks of rows, each a container of its own, one behind the other;
* ``index-0000.sba``: where each chunk lies (block, offset, bytes, rows, nnz);
* ``features-0000.sba``: the feature ids in the order in which their indices were given out.

Each run of ``split`` or ``split --append`` adds a generation: new blocks, one index file and one
file with the ids that were new. ``expire`` removes the block files of whole generations; their
entries stay, marked, and so do index and ids: no index of a feature and no name of a block is ever
given to another one.
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import StoreError
from sbm.rows import Rows
from sbm.store import arrays as container
from sbm.store.buffers import Buffers
from sbm.store.codec import RAW, decode_rows, encode_rows
from sbm.store.files import lock, sync_folder, write_atomically, write_error

__all__ = [
    "BlockStore", "BlockWriter", "Chunk", "kept_generations", "next_block", "read_manifest",
    "write_manifest",
]  # fmt: skip

FORMAT = "sbm-store"
VERSION = 2  # written; 1 kept rows as planes of bytes, and is read for ever
MANIFEST = "manifest.json"
# Bytes of a nonzero in memory, index included.
NONZERO_BYTES = {"ones": 4, "float32": 8, "float64": 12}
CHUNK_NNZ = 1 << 18  # about half a megabyte compressed
CHUNK_ROWS = 1 << 16
_BUFFER = 8 * CHUNK_NNZ + 64  # bytes; what is not touched takes no memory


def block_name(block: int) -> str:
    """File name of a block."""
    return f"block-{block:06d}.sbb"


def features_name(generation: int) -> str:
    """File name of the feature ids that a generation brought."""
    return f"features-{generation:04d}.sba"


def index_name(generation: int) -> str:
    """File name of a generation's chunk index."""
    return f"index-{generation:04d}.sba"


# ------------------------------------------------------------------------------- the manifest


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest atomically, with its own checksum."""
    outer = {"crc32": _checksum(manifest), "manifest": manifest}
    write_atomically(folder / MANIFEST, [json.dumps(outer, indent=1).encode()])


def _checksum(manifest: dict[str, Any]) -> int:
    """CRC-32 of the content, whatever its layout."""
    return zlib.crc32(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the manifest of a store.

    Raises
    ------
    StoreError
        There is none, it is damaged, or of another version.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{folder} is not a store (it has no {MANIFEST}); make one with sbm split"
        ) from None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    try:
        outer = json.loads(data)
        manifest: dict[str, Any] = outer["manifest"]
        if set(outer) != {"crc32", "manifest"} or _checksum(manifest) != outer["crc32"]:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreError(f"{path} is damaged; split the data again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StoreError(f"{path} is not the manifest of a store")
    if manifest.get("version") not in (1, VERSION):
        raise StoreError(
            f"{folder} has store version {manifest.get('version')}, this program reads versions "
            f"1 and {VERSION}; use the program that wrote it, or a newer one"
        )
    if not _is_sound(manifest):
        raise StoreError(f"{path} contradicts itself; split the data again")
    return manifest


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_sound(manifest: dict[str, Any]) -> bool:
    """Whether everything that a reader relies on is there and adds up."""
    try:
        blocks, labels = manifest["blocks"], manifest["labels"]
        return (
            all(_is_count(manifest[key]) for key in ("rows", "nnz"))
            and _is_count(manifest["features"])
            and manifest["features"] < 1 << 31
            and manifest["value_type"] in NONZERO_BYTES
            and manifest["dtype"] in ("float32", "float64")
            and isinstance(manifest["class_values"], list | None)
            and all(_is_count(b[key]) for b in blocks for key in ("rows", "nnz", "bytes"))
            and manifest["rows"] == sum(b["rows"] for b in blocks)
            and manifest["nnz"] == sum(b["nnz"] for b in blocks)
            and all("file" in b for b in blocks)
            and all("features" in g and "index" in g for g in manifest["generations"])
            and all(
                {"at", "blocks"} <= set(g.get("expired", {"at": "", "blocks": []}))
                for g in manifest["generations"]
            )
            and (labels is None or len(labels["values"]) == len(labels["counts"]))
        )
    except (KeyError, TypeError):
        return False


def kept_generations(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Entries of the generations whose blocks were not expired."""
    return [g for g in manifest["generations"] if "expired" not in g]


def next_block(manifest: dict[str, Any]) -> int:
    """Number of the next block to be written, above those of all there ever were."""
    names = {b["file"] for b in manifest["blocks"]}
    names.update(*(g.get("blocks", []) for g in manifest["generations"]))
    return 1 + max((_block_number(name) for name in names), default=-1)


def _block_number(file: str) -> int:
    return int(file.removeprefix("block-").removesuffix(".sbb"))


# ---------------------------------------------------------------------------------- writing


class BlockWriter:
    """Encodes rows into chunks and appends them to block files, in threads.

    Parameters
    ----------
    folder : Path
        Where the block files go.
    first, n_blocks : int
        Number of the first block and how many there are.
    level : int
        Level of zstd.
    pool : ThreadPoolExecutor
        Runs the encoding; files are written there too, each file by one task at a time.
    """

    def __init__(
        self, folder: Path, first: int, n_blocks: int, level: int, pool: ThreadPoolExecutor
    ) -> None:
        self._folder = folder
        self._first = first
        self._level = level
        self._pool = pool
        self._chunks: list[list[tuple[int, int, int, int]]] = [[] for _ in range(n_blocks)]
        self._sizes = [0] * n_blocks
        self._pending: list[Future[None]] = []
        self._buffers = Buffers(_BUFFER)

    @property
    def n_blocks(self) -> int:
        """Blocks that rows are dealt to."""
        return len(self._chunks)

    def add(self, rows: Rows, deal: Sequence[npt.NDArray[np.int64]]) -> None:
        """Start writing one chunk a block; the rows must stay as they are until `wait`.

        Parameters
        ----------
        rows : Rows
            Indices within a row in any order.
        deal : sequence of ndarray of int64, one for each block
            Which rows go to the block, in which order.
        """
        self.wait()
        tasks = max(1, min(self.n_blocks, 16))
        for task in range(tasks):
            blocks = range(task, self.n_blocks, tasks)
            self._pending.append(self._pool.submit(self._write, rows, deal, blocks))

    def wait(self) -> None:
        """Wait until what was added is on its way to the disk."""
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()

    def _write(self, rows: Rows, deal: Sequence[npt.NDArray[np.int64]], blocks: range) -> None:
        for block in blocks:
            if len(deal[block]) == 0:
                continue
            for chosen in _cut(deal[block], rows.lengths):
                arrays = _arrays_of(rows, chosen, self._buffers)
                data = container.encode("chunk", arrays, level=self._level, raw=RAW)
                size = self._append(block, data)
                nnz = len(arrays["gaps"])
                self._chunks[block].append((self._sizes[block], size, len(chosen), nnz))
                self._sizes[block] += size
                self._buffers.give_back(*arrays.values())

    def _append(self, block: int, data: Sequence[bytes | memoryview]) -> int:
        path = self._folder / block_name(self._first + block)
        try:
            # A file that is there already was left behind by a process that was killed.
            with open(path, "ab" if self._chunks[block] else "wb") as file:
                return sum(map(file.write, data))
        except OSError as error:
            raise write_error(path, error) from error

    def finish(self) -> tuple[list[dict[str, Any]], npt.NDArray[np.int64]]:
        """Make the block files durable; return their manifest entries and the chunk index.

        Returns
        -------
        blocks : list of dict
            File, rows, nnz and bytes of each block that got rows; blocks are numbered from
            `first` without holes.
        index : ndarray, shape (n_chunks, 5), int64
            Block, offset, bytes, rows, nnz of each chunk.
        """
        self.wait()
        blocks: list[dict[str, Any]] = []
        index: list[tuple[int, ...]] = []
        for written, chunks in enumerate(self._chunks):
            if not chunks:
                continue
            number = self._first + len(blocks)
            path = self._folder / block_name(self._first + written)
            try:
                if number != self._first + written:
                    path = path.rename(self._folder / block_name(number))
                with open(path, "rb+") as file:
                    os.fsync(file.fileno())
            except OSError as error:
                raise write_error(path, error) from error
            index += [(number, *chunk) for chunk in chunks]
            blocks.append({
                "file": path.name,
                "rows": sum(c[2] for c in chunks),
                "nnz": sum(c[3] for c in chunks),
                "bytes": self._sizes[written],
            })  # fmt: skip
        return blocks, np.array(index, np.int64).reshape(-1, 5)


def _cut(
    chosen: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]
) -> Iterator[npt.NDArray[np.int64]]:
    """Cut rows into chunks that are small beside any memory bound, at least one row each."""
    chosen = np.ascontiguousarray(chosen)  # one layout, one compiled version
    ends = np.cumsum(lengths[chosen], dtype=np.int64)
    begin = 0
    while begin < len(chosen):
        before = ends[begin - 1] if begin else 0
        end = int(np.searchsorted(ends, before + CHUNK_NNZ, side="right"))
        end = min(max(end, begin + 1), begin + CHUNK_ROWS)
        yield chosen[begin:end]
        begin = end


def _arrays_of(
    rows: Rows, chosen: npt.NDArray[np.int64], buffers: Buffers
) -> dict[str, npt.NDArray[Any]]:
    """What a chunk holds of some rows."""
    arrays = encode_rows(rows.starts, rows.lengths, rows.indices, rows.values, chosen, buffers)
    y = rows.y[chosen]
    if y.dtype == np.float64:
        arrays["labels"] = y
    else:
        wide = int(y.max(initial=0)) > 255
        arrays["codes"] = y.astype(np.uint16 if wide else np.uint8)
    return arrays


# ---------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Chunk:
    """Where a chunk lies and how much it holds (offset and size in bytes)."""

    block: int
    offset: int
    size: int
    rows: int
    nnz: int


class BlockStore:
    """A finished store, read-only.

    Parameters
    ----------
    folder : str or Path

    Attributes
    ----------
    folder : Path
    manifest : dict
    chunks : list of list of Chunk
        The chunks of each block, in file order.
    read_seconds : float
        Time spent so far waiting for the bytes of chunks, decoding left out.

    Raises
    ------
    StoreError
        Not a store, or damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.chunks = self._read_index()
        self.read_seconds = 0.0

    def _read_index(self) -> list[list[Chunk]]:
        blocks = self.manifest["blocks"]
        chunks: list[list[Chunk]] = [[] for _ in blocks]
        number = {_safe_name(b["file"], self.folder): k for k, b in enumerate(blocks)}
        for generation in self.manifest["generations"]:
            name = _safe_name(generation["index"], self.folder)
            table = container.read(self.folder / name, "index").arrays.get("chunks")
            if (
                table is None
                or table.dtype != np.int64
                or table.ndim != 2
                or table.shape[1] != 5
                or table.min(initial=0) < 0
            ):
                raise StoreError(f"{self.folder / name} is no index; split the data again")
            for file_number, *rest in table.tolist():
                block = number.get(block_name(file_number))
                if block is not None:  # those of expired blocks stay in the index
                    chunks[block].append(Chunk(block, *rest))
        for block, entry in enumerate(blocks):
            total = [sum(getattr(c, k) for c in chunks[block]) for k in ("rows", "nnz", "size")]
            if total != [entry["rows"], entry["nnz"], entry["bytes"]]:
                raise StoreError(
                    f"{self.folder}: the index of {entry['file']} does not match the manifest; "
                    "split the data again"
                )
        return chunks

    @property
    def n_rows(self) -> int:
        """Rows of all blocks."""
        return int(self.manifest["rows"])

    @property
    def n_features(self) -> int:
        """Distinct feature ids."""
        return int(self.manifest["features"])

    @property
    def nnz(self) -> int:
        """Nonzeros of all blocks."""
        return int(self.manifest["nnz"])

    @property
    def n_blocks(self) -> int:
        """Blocks with rows."""
        return len(self.manifest["blocks"])

    @property
    def expired_blocks(self) -> list[dict[str, Any]]:
        """Entries of blocks that the store once had."""
        gone = [g["expired"] for g in self.manifest["generations"] if "expired" in g]
        return [entry for expired in gone for entry in expired["blocks"]]

    @property
    def blocks_of_generations(self) -> list[int]:
        """How many blocks each run of split brought, but for those that were expired."""
        return [len(g.get("blocks", [])) for g in kept_generations(self.manifest)]

    @property
    def value_type(self) -> str:
        """``ones``, ``float32`` or ``float64``."""
        return str(self.manifest["value_type"])

    @property
    def labels(self) -> list[float] | None:
        """Label of each class code, or None for real-valued labels."""
        labels = self.manifest["labels"]
        return None if labels is None else list(labels["values"])

    @property
    def label_counts(self) -> list[int]:
        """Rows of each class code; none of real-valued labels."""
        labels = self.manifest["labels"]
        return [] if labels is None else list(labels["counts"])

    @property
    def name(self) -> str:
        """What to call it in a sentence."""
        return str(self.folder)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep ``split --force`` from replacing the store meanwhile."""
        with lock(self.folder, f"the store {self.folder}", shared=True):
            yield

    def read_feature_ids(self) -> npt.NDArray[np.int64]:
        """Feature id of each index, shape (n_features,), int64.

        Raises
        ------
        StoreError
            A file is missing or damaged.
        """
        ids = np.empty(self.n_features, np.int64)
        position = 0
        for generation in self.manifest["generations"]:
            path = self.folder / _safe_name(generation["features"], self.folder)
            new = container.read(path, "features").arrays["ids"]
            if position + len(new) > len(ids):
                raise StoreError(f"{path} holds more ids than the manifest says")
            ids[position : position + len(new)] = new
            position += len(new)
        if position != len(ids):
            raise StoreError(f"{self.folder} holds fewer feature ids than its manifest says")
        return ids

    def read(self, chunks: Sequence[Chunk], into: Rows, offset: int) -> Rows:
        """Decode chunks into given arrays.

        Parameters
        ----------
        chunks : sequence of Chunk
        into : Rows
            Arrays large enough for the rows; `indices` and `values` are written from `offset` on.
        offset : int
            Where the nonzeros go.

        Returns
        -------
        Rows
            Views of `into`, with `starts` counted from the beginning of ``into.indices``.

        Raises
        ------
        StoreError
            A file is missing or damaged; nothing of it has been used.
        """
        n, position = 0, offset
        labels = self.labels or self.manifest["class_values"]
        for chunk in chunks:
            data, where = self._read_bytes(chunk)
            arrays = container.decode(data, "chunk", where).arrays
            rows = slice(n, n + chunk.rows)
            nonzeros = slice(position, position + chunk.nnz)
            values = None if into.values is None else into.values[nonzeros]
            try:
                decode_rows(
                    arrays, self.n_features, into.lengths[rows], into.indices[nonzeros], values
                )
                y = _labels_of(arrays, into.y.dtype, labels)
                if y.shape != (chunk.rows,):
                    raise ValueError("not one label a row")
                into.y[rows] = y
            except (ValueError, KeyError, IndexError) as error:
                raise StoreError(f"{where} is damaged ({error}); split the data again") from error
            n += chunk.rows
            position += chunk.nnz
        lengths = into.lengths[:n]
        np.cumsum(lengths[:-1], dtype=np.int64, out=into.starts[1:n])
        into.starts[:1] = 0
        into.starts[:n] += offset
        weights = None if into.weights is None else into.weights[:n]
        return Rows(into.starts[:n], lengths, into.indices, into.values, into.y[:n], weights)

    def read_codes(self, chunk: Chunk) -> npt.NDArray[np.integer]:
        """Class codes of a chunk's rows, shape (n_rows,).

        Raises
        ------
        StoreError
            A file is missing or damaged, or holds targets.
        """
        data, where = self._read_bytes(chunk)
        codes = container.decode(data, "chunk", where).arrays.get("codes")
        if codes is None or codes.shape != (chunk.rows,):
            raise StoreError(f"{where} is damaged (no class codes); split the data again")
        return codes

    def _read_bytes(self, chunk: Chunk) -> tuple[bytes, str]:
        path = self.folder / block_name_of(self.manifest, chunk.block)
        where = f"{path} at byte {chunk.offset}"
        begin = time.perf_counter()
        try:
            with open(path, "rb") as file:
                file.seek(chunk.offset)
                data = file.read(chunk.size)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        self.read_seconds += time.perf_counter() - begin
        if len(data) != chunk.size:
            raise StoreError(f"{path} is shorter than the index says; split the data again")
        return data, where


def block_name_of(manifest: dict[str, Any], block: int) -> str:
    """File name of a block of a manifest."""
    return str(manifest["blocks"][block]["file"])


def _safe_name(name: str, folder: Path) -> str:
    """Refuse names that could point outside the store."""
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
        raise StoreError(f"{folder}: the manifest names {name!r}, which is no file of the store")
    return name


def _labels_of(
    arrays: dict[str, npt.NDArray[Any]], dtype: np.dtype[Any], labels: list[float] | None
) -> npt.NDArray[Any]:
    """Class codes or real targets of a chunk, as the reader wants them."""
    if "labels" in arrays:
        if dtype != np.float64:
            raise ValueError("real-valued labels where class codes are expected")
        targets: npt.NDArray[Any] = arrays["labels"]
        if targets.dtype != np.float64:
            raise ValueError("labels that are no numbers")
        return targets
    codes: npt.NDArray[Any] = arrays["codes"]
    if codes.dtype not in (np.uint8, np.uint16):
        raise ValueError("class codes that are none")
    if labels is not None and codes.max(initial=0) >= len(labels):
        raise ValueError("a class code without a label")
    if dtype == np.float64:
        codes = np.asarray(labels)[codes]
    return codes


def remove_quietly(paths: Sequence[Path]) -> None:
    """Remove files and folders that a failed or finished job leaves behind."""
    for path in paths:
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


_OURS = re.compile(r"(block-\d+\.sbb|(features|index)-\d+\.sba|manifest\.json)(\.tmp)?|lock")


def holds_only_ours(folder: Path) -> bool:
    """Whether a folder holds nothing but files that a store could hold."""
    return folder.is_dir() and all(_OURS.fullmatch(p.name) for p in folder.iterdir())


def remove_leftovers(folder: Path, manifest: dict[str, Any] | None = None) -> None:
    """Remove files of a store that no manifest names: a job that wrote them was killed."""
    named = {"lock"}
    if manifest is not None:
        named |= {MANIFEST, *(b["file"] for b in manifest["blocks"])}
        named |= {g[key] for g in manifest["generations"] for key in ("features", "index")}
    paths = [p for p in folder.iterdir() if p.name not in named and _OURS.fullmatch(p.name)]
    remove_quietly(paths)


def finish_folder(partial: Path, final: Path) -> None:
    """Give a complete store its name, replacing an older one.

    Raises
    ------
    StoreError
        The names cannot be changed.
    """
    try:
        aside = None
        if final.exists():
            aside = Path(tempfile.mkdtemp(prefix=f"{final.name}.old-", dir=final.parent))
            final.rename(aside / final.name)
        partial.rename(final)
        sync_folder(final.parent)
    except OSError as error:
        raise write_error(final, error) from error
    if aside is not None:
        remove_quietly([aside])
