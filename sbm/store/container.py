"""The binary container format: named arrays and metadata, checked before use.

Layout, integers little-endian::

    8 bytes   magic
    4 bytes   format version
    4 bytes   length of the header
    4 bytes   CRC-32 of the header
    header    JSON: kind, meta, and for each array name, dtype, shape, codec, bytes and CRC-32
    payload   the arrays' bytes, one after the other

Codecs: ``raw``; ``zstd``, one frame; ``shuffle``, one frame of the bytes regrouped by significance.
Blocks, alphas, checkpoints and models are all containers. No pickle is used.

The CRC-32 of the header covers the whole content, because the header has the CRC-32 of each array.
A copy of it stored elsewhere detects a file that was replaced.

A newer version may add fields to the header, its entries or meta, and may add arrays, if older
versions can ignore them. Unknown fields are kept when a file is rewritten; unknown arrays are
dropped, as they may no longer match. Any other change needs a new format version.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sbm.errors import StoreError
from sbm.plain import dataclass
from sbm.store.files import open_atomically, open_own, reading
from sbm.store.records import parse

__all__ = [
    "HEAD", "VERSION", "Buffers", "Container", "Pieces", "decode", "encode", "header_crc",
    "is_container", "open_ranges", "read", "write",
]  # fmt: skip


class Buffers:
    """A thread-safe pool of byte arrays.

    Parameters
    ----------
    size : int
        Bytes of each array. Larger arrays are allocated on request and not kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: deque[npt.NDArray[np.uint8]] = deque()

    def take(self, n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an uninitialized array of n elements."""
        dtype = np.dtype(dtype)
        size = n * dtype.itemsize
        if size > self._size:
            return np.empty(n, dtype)
        try:
            whole = self._free.pop()
        except IndexError:
            whole = np.empty(self._size, np.uint8)
        return whole[:size].view(dtype)

    def give_back(self, *arrays: npt.NDArray[Any] | None) -> None:
        """Return arrays from `take`, or views of them, to the pool; None is ignored."""
        for array in arrays:
            whole = array
            while whole is not None and isinstance(whole.base, np.ndarray):
                whole = whole.base
            if whole is not None and whole.nbytes == self._size and whole.dtype == np.uint8:
                self._free.append(whole)


MAGIC = b"\x89SBM\r\n\x1a\n"
VERSION = 1
_FIXED = struct.Struct("<8s3I")  # magic, version, length and CRC-32 of the header
HEAD = _FIXED.size  # bytes before the header
_DTYPES = frozenset(
    ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"]
)  # no type that can hold objects
_LARGEST_HEADER = 1 << 24
_ENTRY = frozenset(["name", "dtype", "shape", "codec", "bytes", "crc32"])
# Default limits on the decoded size of an array; ids 0, 1, 2, ... compress to a thousandth.
_SMALL = 1 << 24
_LARGEST_FACTOR = 1 << 12
_LARGEST_WINDOW = 1 << 24  # bytes of memory to decompress a truncated frame

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Container:
    """Content of a container."""

    arrays: dict[str, Array]
    meta: dict[str, Any]  # the JSON metadata
    header: dict[str, Any]  # the header in the file, including unknown fields


@dataclass(frozen=True)
class Pieces:
    """An array generated in pieces while it is written, to save memory."""

    dtype: str
    shape: tuple[int, ...]
    # yields the pieces in order
    make: Callable[[], Iterator[Array]]

    def buffers(self) -> Iterator[memoryview]:
        """Yield the bytes, piece by piece."""
        for piece in self.make():
            yield memoryview(np.ascontiguousarray(piece, self.dtype).reshape(-1).view(np.uint8))


_mine = threading.local()  # zstd contexts, which are not thread-safe


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """Return this thread's compressor for a level; creating one per array would be slow."""
    made: dict[int, zstandard.ZstdCompressor] = _mine.__dict__.setdefault("compressors", {})
    if level not in made:
        made[level] = zstandard.ZstdCompressor(level=level, write_checksum=False)
    return made[level]


def _encode_array(array: Array, codec: str, level: int) -> bytes | memoryview:
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if codec == "raw":
        return memoryview(flat)
    if codec == "shuffle":
        flat = np.ascontiguousarray(flat.reshape(-1, array.dtype.itemsize).T)
    return _compressor(level).compress(memoryview(flat))


def encode(
    kind: str,
    arrays: Mapping[str, Array],
    meta: Mapping[str, Any] | None = None,
    *,
    level: int | None = 1,
    raw: Collection[str] = (),
) -> list[bytes | memoryview]:
    """Encode arrays as a container.

    Parameters
    ----------
    kind : str
        Kind of content; readers reject other kinds.
    arrays : mapping of str to ndarray
        Integers, booleans or floats of any shape.
    meta : mapping, optional
        Metadata, as JSON types.
    level : int or None
        zstd compression level; None stores the bytes uncompressed, without a copy.
    raw : collection of str
        Arrays to store uncompressed at any level.

    Returns
    -------
    list of bytes-like
        The container, in consecutive pieces.
    """
    content, payload = _lay_out(kind, arrays, meta or {}, level, raw, {})
    return [_head(content), *itertools.chain.from_iterable(payload)]


def header_crc(begin: bytes | memoryview) -> int:
    """Return the header's CRC-32 of a container that begins with these bytes."""
    return int.from_bytes(begin[HEAD - 4 : HEAD], "little")


def _lay_out(
    kind: str,
    arrays: Mapping[str, Array | Pieces],
    meta: Mapping[str, Any],
    level: int | None,
    raw: Collection[str],
    before: Mapping[str, Any],
) -> tuple[dict[str, Any], list[Iterable[bytes | memoryview]]]:
    """Return the content of the header, and the buffers of each array.

    The checksum of an array that is generated is not known yet; the one given is the longest.
    """
    entries = {entry["name"]: entry for entry in before.get("arrays", ())}
    payload: list[Iterable[bytes | memoryview]] = []
    described = []
    for name, array in arrays.items():
        if isinstance(array, Pieces):
            dtype, codec, crc = np.dtype(array.dtype), "raw", (1 << 32) - 1
            size = math.prod(array.shape) * dtype.itemsize
            payload.append(array.buffers())
        else:
            dtype, codec = array.dtype, "zstd" if array.dtype.itemsize == 1 else "shuffle"
            if level is None or name in raw:
                codec = "raw"
            data = _encode_array(array, codec, level or 1)
            size, crc = len(data), zlib.crc32(data)
            payload.append([data])
        described.append({
            **entries.get(name, {}),
            "name": name,
            "dtype": dtype.newbyteorder("<").str,
            "shape": list(array.shape),
            "codec": codec,
            "bytes": size,
            "crc32": crc,
        })  # fmt: skip
    return {**before, "kind": kind, "meta": dict(meta), "arrays": described}, payload


def _head(content: Mapping[str, Any], size: int = 0) -> bytes:
    """Return everything before the payload; blanks make it as long as `size`."""
    header = json.dumps(content, separators=(",", ":")).encode().ljust(size - HEAD)
    return _FIXED.pack(MAGIC, VERSION, len(header), zlib.crc32(header)) + header


# Reads the bytes of a container from a begin to an end position; fewer at the end of the file.
_Take = Callable[[int, int], bytes | memoryview]


def _header(take: _Take, size: int, kind: str, where: str, crc32: int | None) -> tuple[Any, int]:
    """Check everything before the payload; return the header and the payload's position."""
    data = take(0, HEAD)
    if len(data) < HEAD or data[: len(MAGIC)] != MAGIC:
        raise StoreError(
            f"{where} is not an sbm file, or is damaged; "
            "sbm train writes models, sbm split writes stores"
        )
    _, version, length, crc = _FIXED.unpack(data)
    if version != VERSION:
        raise StoreError(
            f"{where} has format version {version}, but this sbm reads version {VERSION}; "
            "use the version of sbm that wrote it, or a newer one"
        )
    end = HEAD + length
    text = bytes(take(HEAD, end)) if length <= _LARGEST_HEADER and end <= size else b""
    if zlib.crc32(text) != crc:
        raise _damaged(where, "invalid header")
    if crc32 is not None and crc != crc32:
        raise StoreError(
            f"{where}: checksum mismatch (intact, but not the file that belongs here); restore "
            "this file or create it again"
        )
    header = None
    with contextlib.suppress(ValueError):
        header = parse(text)
    if not isinstance(header, dict) or not _is_header(header):
        raise _damaged(where, "invalid header")
    if header["kind"] != kind:
        raise StoreError(
            f"{where} holds {_named(header['kind'])}; expected {kind} data. Check the file name"
        )
    return header, end


def _is_header(header: dict[str, Any]) -> bool:
    """Whether this is a valid header."""
    entries = header.get("arrays")
    return (
        "kind" in header
        and isinstance(header.get("meta"), dict)
        and isinstance(entries, list)
        and all(map(_is_entry, entries))
        and len({entry["name"] for entry in entries}) == len(entries)
    )


def _named(kind: Any) -> str:
    """Return a kind for a message, or ``something else`` if it is not a word."""
    is_word = isinstance(kind, str) and len(kind) < 20 and kind.isidentifier()
    return f"{kind} data" if is_word else "something else"


def _is_entry(entry: Any) -> bool:
    """Whether this is a valid entry of an array."""
    if not isinstance(entry, dict) or not set(entry) >= _ENTRY:
        return False
    shape, words = entry["shape"], [entry[key] for key in ("name", "dtype", "codec")]
    if not isinstance(shape, list) or len(shape) > 32:
        return False
    numbers = [*shape, entry["bytes"], entry["crc32"]]
    return (
        all(isinstance(word, str) for word in words)
        and entry["dtype"] in _DTYPES
        and entry["codec"] in ("raw", "zstd", "shuffle")
        and all(type(n) is int and 0 <= n < 1 << 62 for n in numbers)
    )


def _damaged(where: str, part: str) -> StoreError:
    return StoreError(f"{where} is damaged ({part}); restore it from a copy or create it again")


def _size(entry: dict[str, Any]) -> int:
    """Return the size of an array in memory, in bytes."""
    size: int = math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize
    return size


def _unpack(data: bytes | memoryview, plain: Array) -> None:
    """Decompress one frame of exactly as many bytes as an array has."""
    if zstandard.frame_content_size(data) != len(plain):
        raise ValueError("frame size does not match the shape")
    if "decompressor" not in _mine.__dict__:
        _mine.decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    with _mine.decompressor.stream_reader(data, read_across_frames=True) as reader:
        if reader.readinto(plain) != len(plain):
            raise ValueError("frame is truncated")
        if reader.read(1):
            raise ValueError("more than one frame")


def _decode_array(
    data: bytes | memoryview, entry: dict[str, Any], buffers: Buffers | None
) -> Array:
    """Check the bytes of an array and decode them."""
    if zlib.crc32(data) != entry["crc32"]:
        raise ValueError("checksum mismatch")
    shape, dtype, size = entry["shape"], np.dtype(entry["dtype"]), _size(entry)
    if entry["codec"] == "raw":
        if len(data) != size:
            raise ValueError("size does not match the shape")
        # Kernels need aligned arrays; only others are copied.
        return np.require(np.frombuffer(data, dtype).reshape(shape), requirements="A")
    flat = np.empty(size, np.uint8) if buffers is None else buffers.take(size, np.uint8)
    _unpack(data, flat)
    if entry["codec"] == "shuffle":
        planes = flat.reshape(dtype.itemsize, -1)
        joined = np.empty(planes.shape[::-1], np.uint8)
        for place, plane in enumerate(planes):  # three times as fast as a transposed copy
            joined[:, place] = plane
        flat = joined.reshape(-1)
    array: Array = flat.view(dtype).reshape(shape)
    return array


def _read(
    take: _Take,
    size: int,
    kind: str,
    where: str,
    wanted: Callable[[str], bool],
    crc32: int | None,
    most_bytes: int | None,
    buffers: Buffers | None = None,
) -> Container:
    """Read a container of `size` bytes; see `decode`."""
    header, end = _header(take, size, kind, where, crc32)
    arrays: dict[str, Array] = {}
    left = most_bytes
    for entry in header["arrays"]:
        name, begin, end = f"array {entry['name']!r}", end, end + entry["bytes"]
        if end > size:
            raise _damaged(where, name)
        if not wanted(entry["name"]):
            continue
        # A file cannot claim more memory than this.
        plain = _size(entry)
        if left is None:
            is_allowed = plain <= max(_SMALL, entry["bytes"] * _LARGEST_FACTOR)
        else:
            left -= plain
            is_allowed = left >= 0
        if not is_allowed:
            raise _damaged(where, name)
        try:
            arrays[entry["name"]] = _decode_array(take(begin, end), entry, buffers)
        except (ValueError, zstandard.ZstdError) as error:
            raise _damaged(where, name) from error
        except MemoryError as error:
            raise StoreError(
                f"{where}: {name} needs {plain:,} bytes, which do not fit in memory; use a machine "
                "with more memory"
            ) from error
    if end != size:
        raise _damaged(where, "extra bytes at the end")
    return Container(arrays, header["meta"], header)


def decode(
    data: bytes | memoryview,
    kind: str,
    where: str,
    wanted: Callable[[str], bool] = lambda name: True,
    *,
    crc32: int | None = None,
    most_bytes: int | None = None,
    buffers: Buffers | None = None,
) -> Container:
    """Decode a container in memory and check every byte.

    Parameters
    ----------
    data : bytes-like
        Exactly one container.
    kind : str
        Expected kind.
    where : str
        Location, for error messages.
    wanted : callable
        Returns whether to read the array with a given name; others are skipped.
    crc32 : int, optional
        Expected `header_crc`.
    most_bytes : int, optional
        Memory limit for the wanted arrays. Default: for each array 16 MB, or 4096 times its
        encoded size if that is more.
    buffers : Buffers, optional
        Source of decompressed arrays; others are views of `data`.

    Raises
    ------
    StoreError
        If it is not a container, has another kind or version, is damaged, or exceeds the memory
        limit.
    """
    view = memoryview(data)
    return _read(
        lambda begin, end: view[begin:end], len(view), kind, where, wanted, crc32, most_bytes,
        buffers,
    )  # fmt: skip


def write(
    path: Path,
    kind: str,
    arrays: Mapping[str, Array | Pieces],
    meta: Mapping[str, Any] | None = None,
    *,
    level: int | None = 1,
    before: Mapping[str, Any] | None = None,
) -> int:
    """Write a container atomically and return its size in bytes; see `encode`.

    Arrays given as `Pieces` are stored uncompressed. `before` is the header of the file that was
    read; its unknown fields are kept.
    """
    content, payload = _lay_out(kind, arrays, meta or {}, level, (), before or {})
    with open_atomically(path) as file:
        begin = size = file.write(_head(content))
        for entry, buffers in zip(content["arrays"], payload, strict=True):
            first, crc, is_generated = size, 0, isinstance(arrays[entry["name"]], Pieces)
            for buffer in buffers:
                size += file.write(buffer)
                crc = zlib.crc32(buffer, crc) if is_generated else crc
            entry["crc32"] = crc if is_generated else entry["crc32"]
            assert size == first + entry["bytes"]
        file.seek(0)
        file.write(_head(content, begin))  # now with the checksums of what was generated
    return size


def is_container(path: Path) -> bool:
    """Whether a file starts with the magic bytes of a container; a pipe is read only once."""
    if not path.is_file():
        return False
    try:
        with open_own(path, follow=True) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read(
    path: Path,
    kind: str,
    wanted: Callable[[str], bool] = lambda name: True,
    *,
    crc32: int | None = None,
    most_bytes: int | None = None,
    is_own: bool = True,
) -> Container:
    """Read a file that holds one container; see `decode`.

    Parameters
    ----------
    wanted : callable
        Returns whether to read the array with a given name; others take no memory.
    crc32, most_bytes : int, optional
        See `decode`.
    is_own : bool
        Whether the file belongs to a store or run and must not be a symbolic link.

    Raises
    ------
    StoreError
        If the file cannot be read, or as for `decode`.
    """
    with reading(path), open_own(path, follow=not is_own) as file:

        def take(begin: int, end: int) -> bytes:
            file.seek(begin)
            return file.read(end - begin)

        size = os.fstat(file.fileno()).st_size
        return _read(take, size, kind, str(path), wanted, crc32, most_bytes)


def open_ranges(path: Path, kind: str) -> tuple[Container, Callable[[str, int, int], Array]]:
    """Open a file to read uncompressed arrays in ranges; every byte is checked.

    Returns
    -------
    content : Container
        Without arrays.
    read : callable
        ``read(name, begin, end)`` returns elements of an array, in the order of its bytes.

    Raises
    ------
    StoreError
        If the file cannot be read, or as for `decode`.
    """
    with reading(path), open_own(path) as file:

        def take(begin: int, end: int) -> bytes:
            file.seek(begin)
            return file.read(end - begin)

        size = os.fstat(file.fileno()).st_size
        header, end = _header(take, size, kind, str(path), None)
        places: dict[str, tuple[int, np.dtype[Any]]] = {}
        for entry in header["arrays"]:
            begin, end = end, end + entry["bytes"]
            crc = 0
            for at in range(begin, end, _SMALL):
                crc = zlib.crc32(take(at, min(end, at + _SMALL)), crc)
            if end > size or crc != entry["crc32"] or entry["codec"] != "raw":
                raise _damaged(str(path), f"array {entry['name']!r}")
            places[entry["name"]] = begin, np.dtype(entry["dtype"])

    def read_range(name: str, begin: int, end: int) -> Array:
        first, dtype = places[name]
        with reading(path), open_own(path) as file:
            file.seek(first + begin * dtype.itemsize)
            return np.frombuffer(file.read((end - begin) * dtype.itemsize), dtype)

    return Container({}, header["meta"], header), read_range
