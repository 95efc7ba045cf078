"""The one binary container: named arrays and a little metadata, checked before use.

Layout, integers little-endian::

    8 bytes   magic
    4 bytes   format version
    4 bytes   length of the header
    4 bytes   CRC-32 of the header
    header    JSON: kind, meta, and for each array name, dtype, shape, codec, bytes and CRC-32
    payload   the arrays' bytes, one after the other

Codecs: ``raw``; ``zstd``, one frame; ``shuffle``, one frame of the bytes regrouped by significance.
Blocks, alphas, checkpoints and models are all such containers. There is no pickle anywhere.

The CRC-32 of the header stands for the whole content, as the header has those of the arrays: who
notes it elsewhere notices a file that was put in the place of another.

What a newer program adds and an older one may ignore, it adds as fields of the header, of its
entries or of meta, or as arrays. Fields are kept where a file is written anew; arrays are passed
over, as nobody knows what became of what they belong to. All else takes a new version.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sbm.errors import StoreError
from sbm.store.files import open_own, reading, write_atomically
from sbm.store.manifest import parse

__all__ = [
    "HEAD", "VERSION", "Buffers", "Container", "Pieces", "decode", "encode", "header_crc",
    "is_container", "read", "write",
]  # fmt: skip


class Buffers:
    """A heap of arrays of bytes that any thread takes from and gives back to.

    Parameters
    ----------
    size : int
        Bytes of an array; what is larger is made when asked for and not kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: deque[npt.NDArray[np.uint8]] = deque()

    def take(self, n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array of n elements, whatever they are."""
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
        """Take back what `take` returned, or a part of it; None is nothing."""
        for array in arrays:
            whole = array
            while whole is not None and isinstance(whole.base, np.ndarray):
                whole = whole.base
            if whole is not None and whole.nbytes == self._size and whole.dtype == np.uint8:
                self._free.append(whole)


MAGIC = b"\x89SBM\r\n\x1a\n"
VERSION = 1
_FIXED = struct.Struct("<8s3I")  # magic, version, length and CRC-32 of the header
HEAD = _FIXED.size  # bytes in front of the header
_DTYPES = frozenset(
    ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"]
)  # nothing that could hold objects
_LARGEST_HEADER = 1 << 24
_ENTRY = frozenset(["name", "dtype", "shape", "codec", "bytes", "crc32"])
# What an array may expand to where nobody says: ids 0, 1, 2, ... take a thousandth.
_SMALL = 1 << 24
_LARGEST_FACTOR = 1 << 12

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Container:
    """What was read.

    Attributes
    ----------
    arrays : dict of str to ndarray
    meta : dict
        The JSON metadata.
    header : dict
        As it stands in the file, with fields that this program does not know.
    """

    arrays: dict[str, Array]
    meta: dict[str, Any]
    header: dict[str, Any]


@dataclass(frozen=True)
class Pieces:
    """An array that is made piece by piece while it is written, never whole in memory.

    Attributes
    ----------
    dtype : str
    shape : tuple of int
    make : callable
        Yields the pieces in order; called twice, for the checksum and for the bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], Iterator[Array]]

    def buffers(self) -> Iterator[memoryview]:
        """Yield the bytes, piece by piece."""
        for piece in self.make():
            yield memoryview(np.ascontiguousarray(piece, self.dtype).reshape(-1).view(np.uint8))


_mine = threading.local()  # contexts of zstd, which serve one thread at a time


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """Return this thread's compressor of a level; a new one for each small array takes longer."""
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
    """Turn arrays into the buffers of a container.

    Parameters
    ----------
    kind : str
        What it is; readers refuse another kind.
    arrays : mapping of str to ndarray
        Integers, booleans or floats of any shape.
    meta : mapping, optional
        Anything JSON can hold.
    level : int or None
        Level of zstd; None stores the bytes as they are, without a copy.
    raw : collection of str
        Arrays to store as they are at any level.

    Returns
    -------
    list of bytes-like
        To be written one after the other.
    """
    return list(_lay_out(kind, arrays, meta or {}, level, raw, {}))


def header_crc(begin: bytes | memoryview) -> int:
    """CRC-32 of the header of a container that begins with these bytes."""
    return int.from_bytes(begin[HEAD - 4 : HEAD], "little")


def _lay_out(
    kind: str,
    arrays: Mapping[str, Array | Pieces],
    meta: Mapping[str, Any],
    level: int | None,
    raw: Collection[str],
    before: Mapping[str, Any],
) -> Iterator[bytes | memoryview]:
    """Return all buffers: one of what comes before the payload, and those of each array."""
    entries = {entry["name"]: entry for entry in before.get("arrays", ())}
    payload: list[Iterable[bytes | memoryview]] = []
    described = []
    for name, array in arrays.items():
        if isinstance(array, Pieces):
            dtype, codec, size, crc = np.dtype(array.dtype), "raw", 0, 0
            for buffer in array.buffers():
                size, crc = size + len(buffer), zlib.crc32(buffer, crc)
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
    content = {**before, "kind": kind, "meta": dict(meta), "arrays": described}
    header = json.dumps(content, separators=(",", ":")).encode()
    fixed = _FIXED.pack(MAGIC, VERSION, len(header), zlib.crc32(header))
    return itertools.chain([fixed + header], *payload)


# Reads the bytes of a container from one place to another, fewer at its end.
_Take = Callable[[int, int], bytes | memoryview]


def _header(take: _Take, size: int, kind: str, where: str, crc32: int | None) -> tuple[Any, int]:
    """Check everything in front of the payload; return the header and where the payload begins."""
    data = take(0, HEAD)
    if len(data) < HEAD or data[: len(MAGIC)] != MAGIC:
        raise StoreError(
            f"{where} is not an sbm file (or its first bytes are damaged); "
            "models are made by sbm train, stores by sbm split"
        )
    _, version, length, crc = _FIXED.unpack(data)
    if version != VERSION:
        raise StoreError(
            f"{where} has format version {version}, this program reads version {VERSION}; "
            "use the program that wrote it, or a newer one"
        )
    end = HEAD + length
    text = bytes(take(HEAD, end)) if length <= _LARGEST_HEADER and end <= size else b""
    if zlib.crc32(text) != crc:
        raise _damaged(where, "its header")
    if crc32 is not None and crc != crc32:
        raise StoreError(
            f"{where} holds something else than was written there; put the right file in its "
            "place or make it again"
        )
    header = None
    with contextlib.suppress(ValueError):
        header = parse(text)
    if not isinstance(header, dict) or not _is_header(header):
        raise _damaged(where, "its header")
    if header["kind"] != kind:
        raise StoreError(f"{where} holds {_named(header['kind'])}, a {kind} is expected")
    return header, end


def _is_header(header: dict[str, Any]) -> bool:
    """Whether this can describe a container."""
    entries = header.get("arrays")
    return (
        "kind" in header
        and isinstance(header.get("meta"), dict)
        and isinstance(entries, list)
        and all(map(_is_entry, entries))
        and len({entry["name"] for entry in entries}) == len(entries)
    )


def _named(kind: Any) -> str:
    """A kind in words, unless it is none."""
    is_word = isinstance(kind, str) and len(kind) < 20 and kind.isidentifier()
    return f"a {kind}" if is_word else "something else"


def _is_entry(entry: Any) -> bool:
    """Whether this can describe an array."""
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
    return StoreError(f"{where} is damaged ({part}); restore it from a copy or make it again")


def _size(entry: dict[str, Any]) -> int:
    """Bytes of an array in memory."""
    size: int = math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize
    return size


def _decode_array(data: bytes | memoryview, entry: dict[str, Any]) -> Array:
    """Check the bytes of an array, and undo its codec."""
    if zlib.crc32(data) != entry["crc32"]:
        raise ValueError("its checksum is another one")
    shape, dtype, size = entry["shape"], np.dtype(entry["dtype"]), _size(entry)
    if entry["codec"] == "raw":
        if len(data) != size:
            raise ValueError("its size is not that of its shape")
        # Kernels take arrays that lie where the processor wants them; a copy only of others.
        return np.require(np.frombuffer(data, dtype).reshape(shape), requirements="A")
    if zstandard.frame_content_size(data) != size:
        raise ValueError("its frame says another size than its shape")
    plain = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    if len(plain) != size:
        raise ValueError("its frame holds less than it says")
    flat = np.frombuffer(plain, np.uint8)
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
) -> Container:
    """Read a container of so many bytes; see `decode`."""
    header, end = _header(take, size, kind, where, crc32)
    arrays: dict[str, Array] = {}
    left = most_bytes
    for entry in header["arrays"]:
        name, begin, end = f"array {entry['name']!r}", end, end + entry["bytes"]
        if end > size:
            raise _damaged(where, name)
        if not wanted(entry["name"]):
            continue
        # Files get no more memory by saying so.
        plain = _size(entry)
        if left is None:
            is_allowed = plain <= max(_SMALL, entry["bytes"] * _LARGEST_FACTOR)
        else:
            left -= plain
            is_allowed = left >= 0
        if not is_allowed:
            raise _damaged(where, name)
        try:
            arrays[entry["name"]] = _decode_array(take(begin, end), entry)
        except (ValueError, zstandard.ZstdError) as error:
            raise _damaged(where, name) from error
        except MemoryError as error:
            raise StoreError(
                f"{where} holds {plain:,} bytes as {name}, which do not fit in memory; read it "
                "where there is more"
            ) from error
    if end != size:
        raise _damaged(where, "bytes behind its end")
    return Container(arrays, header["meta"], header)


def decode(
    data: bytes | memoryview,
    kind: str,
    where: str,
    wanted: Callable[[str], bool] = lambda name: True,
    *,
    crc32: int | None = None,
    most_bytes: int | None = None,
) -> Container:
    """Read a container from memory, checking every byte.

    Parameters
    ----------
    data : bytes-like
        Exactly one container.
    kind : str
        What it must be.
    where : str
        Names the place in error messages.
    wanted : callable
        Tells of the name of an array whether to read it; the others are not looked at.
    crc32 : int, optional
        What `header_crc` must be.
    most_bytes : int, optional
        Memory that the wanted arrays may take. Default: 16 MB an array, or 4096 times its bytes
        here.

    Returns
    -------
    Container

    Raises
    ------
    StoreError
        Not a container, another kind or version, truncated, damaged, or too large in memory.
    """
    view = memoryview(data)
    return _read(
        lambda begin, end: view[begin:end], len(view), kind, where, wanted, crc32, most_bytes
    )


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

    Arrays given as `Pieces` are stored as they are, whatever the level. Unknown fields of the
    header `before`, of the file that was read, are written again.
    """
    return write_atomically(path, _lay_out(kind, arrays, meta or {}, level, (), before or {}))


def is_container(path: Path) -> bool:
    """Whether a file begins like a container."""
    try:
        with open(path, "rb") as file:
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
    path : Path
    kind : str
    wanted : callable
        Tells of the name of an array whether to read it; the others take no memory.
    crc32, most_bytes : int, optional
    is_own : bool
        Whether it is a file of a store or run, which is no link; one that the user names may be.

    Returns
    -------
    Container
    """
    with reading(path), open_own(path) if is_own else open(path, "rb") as file:

        def take(begin: int, end: int) -> bytes:
            file.seek(begin)
            return file.read(end - begin)

        size = os.fstat(file.fileno()).st_size
        return _read(take, size, kind, str(path), wanted, crc32, most_bytes)
