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

import itertools
import json
import math
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sbm.errors import StoreError
from sbm.store.files import open_own, read_error, write_atomically
from sbm.store.manifest import parse

__all__ = [
    "HEAD", "VERSION", "Buffers", "Container", "Pieces", "Unknown", "decode", "encode",
    "header_crc", "is_container", "read", "write",
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
HEAD = len(MAGIC) + 12  # bytes in front of the header
_DTYPES = frozenset(
    ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"]
)  # nothing that could hold objects
_LARGEST_HEADER = 1 << 24
_HEADER = frozenset(["kind", "meta", "arrays"])
_ENTRY = frozenset(["name", "dtype", "shape", "codec", "bytes", "crc32"])
# What an array may expand to where nobody says: ids 0, 1, 2, ... take a thousandth.
_SMALL = 1 << 24
_LARGEST_FACTOR = 1 << 12

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Unknown:
    """Fields of a header that this program does not know.

    Attributes
    ----------
    header : dict
        Beside kind, meta and arrays.
    entries : dict of str to dict
        Of the entries of arrays, by their names.
    """

    header: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Container:
    """What was read.

    Attributes
    ----------
    arrays : dict of str to ndarray
    meta : dict
        The JSON metadata.
    unknown : Unknown
    """

    arrays: dict[str, Array]
    meta: dict[str, Any]
    unknown: Unknown = field(default_factory=Unknown)


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
    head, payload = _lay_out(kind, arrays, meta or {}, level, raw)
    return [head, *itertools.chain.from_iterable(payload)]


def header_crc(begin: bytes | memoryview) -> int:
    """CRC-32 of the header of a container that begins with these bytes."""
    return int.from_bytes(begin[HEAD - 4 : HEAD], "little")


def _lay_out(
    kind: str,
    arrays: Mapping[str, Array | Pieces],
    meta: Mapping[str, Any],
    level: int | None,
    raw: Collection[str],
    unknown: Unknown | None = None,
) -> tuple[bytes, list[Iterable[bytes | memoryview]]]:
    """Return all that comes before the payload, and the buffers of each array."""
    unknown = unknown or Unknown()
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
            **unknown.entries.get(name, {}),
            "name": name,
            "dtype": dtype.newbyteorder("<").str,
            "shape": list(array.shape),
            "codec": codec,
            "bytes": size,
            "crc32": crc,
        })  # fmt: skip
    content = {**unknown.header, "kind": kind, "meta": dict(meta), "arrays": described}
    header = json.dumps(content, separators=(",", ":")).encode()
    fixed = b"".join(
        [MAGIC, *(n.to_bytes(4, "little") for n in (VERSION, len(header), zlib.crc32(header)))]
    )
    return fixed + header, payload


def _header(
    data: memoryview, kind: str, where: str, crc32: int | None
) -> tuple[dict[str, Any], int]:
    """Check everything in front of the payload; return the header and where the payload begins."""
    if len(data) < HEAD or data[: len(MAGIC)] != MAGIC:
        raise StoreError(
            f"{where} is not an sbm file (or its first bytes are damaged); "
            "models are made by sbm train, stores by sbm split"
        )
    version, length, crc = (
        int.from_bytes(data[k : k + 4], "little") for k in range(len(MAGIC), HEAD, 4)
    )
    if version != VERSION:
        raise StoreError(
            f"{where} has format version {version}, this program reads version {VERSION}; "
            "use the program that wrote it, or a newer one"
        )
    end = HEAD + length
    if length > _LARGEST_HEADER or end > len(data) or zlib.crc32(data[HEAD:end]) != crc:
        raise _damaged(where, "its header")
    if crc32 is not None and crc != crc32:
        raise StoreError(
            f"{where} holds something else than was written there; put the right file in its "
            "place or make it again"
        )
    try:
        header = parse(bytes(data[HEAD:end]))
    except ValueError as error:
        raise _damaged(where, "its header") from error
    if not isinstance(header, dict) or not set(header) >= _HEADER:
        raise _damaged(where, "its header")
    if header["kind"] != kind:
        raise StoreError(f"{where} holds {_named(header['kind'])}, a {kind} is expected")
    entries = header["arrays"]
    if not isinstance(header["meta"], dict) or not isinstance(entries, list):
        raise _damaged(where, "its header")
    if not all(map(_is_entry, entries)) or len({e["name"] for e in entries}) < len(entries):
        raise _damaged(where, "its header")
    return header, end


def _named(kind: Any) -> str:
    """A kind in words, unless it is none."""
    is_word = isinstance(kind, str) and len(kind) < 20 and kind.isidentifier()
    return f"a {kind}" if is_word else "something else"


def _is_entry(entry: Any) -> bool:
    """Whether this can describe an array."""
    if not isinstance(entry, dict) or not set(entry) >= _ENTRY:
        return False
    shape, numbers = entry["shape"], [entry["bytes"], entry["crc32"]]
    if not isinstance(shape, list) or len(shape) > 32:
        return False
    return (
        all(isinstance(entry[key], str) for key in ("name", "dtype", "codec"))
        and entry["dtype"] in _DTYPES
        and entry["codec"] in ("raw", "zstd", "shuffle")
        and all(type(n) is int and 0 <= n < 1 << 62 for n in [*shape, *numbers])
    )


def _damaged(where: str, part: str) -> StoreError:
    return StoreError(f"{where} is damaged ({part}); restore it from a copy or make it again")


def _unknown(header: dict[str, Any]) -> Unknown:
    entries = {
        entry["name"]: {key: value for key, value in entry.items() if key not in _ENTRY}
        for entry in header["arrays"]
        if set(entry) > _ENTRY
    }
    return Unknown({k: value for k, value in header.items() if k not in _HEADER}, entries)


class _Allowance:
    """How many bytes arrays may take in memory; files do not get more by saying so."""

    def __init__(self, bytes_: int | None) -> None:
        self._left = bytes_

    def spend(self, entry: dict[str, Any]) -> bool:
        """Whether an array is within bounds, before any memory is set aside."""
        size, stored = _size(entry), int(entry["bytes"])
        if self._left is None:
            return size <= max(_SMALL, stored * _LARGEST_FACTOR)
        self._left -= size
        return self._left >= 0


def _size(entry: dict[str, Any]) -> int:
    """Bytes of an array in memory."""
    size: int = math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize
    return size


def _decode_array(
    data: memoryview, entry: dict[str, Any], where: str, allowance: _Allowance
) -> npt.NDArray[Any]:
    name = f"array {entry['name']!r}"
    if zlib.crc32(data) != entry["crc32"] or not allowance.spend(entry):
        raise _damaged(where, name)
    try:
        return _plain_array(data, entry)
    except (ValueError, zstandard.ZstdError) as error:
        raise _damaged(where, name) from error
    except MemoryError as error:
        raise StoreError(
            f"{where} holds {_size(entry):,} bytes as {name}, which do not fit in memory; read it "
            "where there is more"
        ) from error


def _plain_array(data: memoryview, entry: dict[str, Any]) -> npt.NDArray[Any]:
    """Undo the codec of an array."""
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
    header, position = _header(view, kind, where, crc32)
    arrays: dict[str, Array] = {}
    allowance = _Allowance(most_bytes)
    for entry in header["arrays"]:
        end = position + entry["bytes"]
        if end > len(view):
            raise _damaged(where, f"array {entry['name']!r}")
        if wanted(entry["name"]):
            array = _decode_array(view[position:end], entry, where, allowance)
            arrays[entry["name"]] = array
        position = end
    if position != len(view):
        raise _damaged(where, "bytes behind its end")
    return Container(arrays, header["meta"], _unknown(header))


def write(
    path: Path,
    kind: str,
    arrays: Mapping[str, Array | Pieces],
    meta: Mapping[str, Any] | None = None,
    *,
    level: int | None = 1,
    unknown: Unknown | None = None,
) -> int:
    """Write a container atomically and return its size in bytes; see `encode`.

    Arrays given as `Pieces` are stored as they are, whatever the level. Fields of a header that was
    read and is `unknown` are written again.
    """
    head, payload = _lay_out(kind, arrays, meta or {}, level, (), unknown)
    return write_atomically(path, itertools.chain([head], *payload))


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
    where, arrays = str(path), {}
    allowance = _Allowance(most_bytes)
    try:
        with open_own(path) if is_own else open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = file.read(HEAD)
            length = int.from_bytes(begin[HEAD - 8 : HEAD - 4], "little")
            begin += file.read(min(length, _LARGEST_HEADER))
            header, position = _header(memoryview(begin), kind, where, crc32)
            for entry in header["arrays"]:
                position += entry["bytes"]
                if position > size:
                    raise _damaged(where, f"array {entry['name']!r}")
                if not wanted(entry["name"]):
                    file.seek(position)
                    continue
                data = file.read(entry["bytes"])
                arrays[entry["name"]] = _decode_array(memoryview(data), entry, where, allowance)
            if size != position:
                raise _damaged(where, "bytes behind its end")
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise read_error(path, error) from error
    return Container(arrays, header["meta"], _unknown(header))
