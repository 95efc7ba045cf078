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
"""

import itertools
import json
import math
import os
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sbm.errors import StoreError
from sbm.store.files import write_atomically

__all__ = ["VERSION", "Container", "Pieces", "decode", "encode", "is_container", "read", "write"]

MAGIC = b"\x89SBM\r\n\x1a\n"
VERSION = 1
_FIXED = len(MAGIC) + 12
_DTYPES = frozenset(
    ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"]
)  # nothing that could hold objects
_LARGEST_HEADER = 1 << 24
_ENTRY = {"name", "dtype", "shape", "codec", "bytes", "crc32"}
_LARGEST_FACTOR = 1 << 17  # zstd: a block of 4 bytes holds 128 kB at most

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Container:
    """What was read.

    Attributes
    ----------
    arrays : dict of str to ndarray
    meta : dict
        The JSON metadata.
    """

    arrays: dict[str, Array]
    meta: dict[str, Any]


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


def _lay_out(
    kind: str,
    arrays: Mapping[str, Array | Pieces],
    meta: Mapping[str, Any],
    level: int | None,
    raw: Collection[str],
) -> tuple[bytes, list[Iterable[bytes | memoryview]]]:
    """Return all that comes before the payload, and the buffers of each array."""
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
            "name": name,
            "dtype": dtype.newbyteorder("<").str,
            "shape": list(array.shape),
            "codec": codec,
            "bytes": size,
            "crc32": crc,
        })  # fmt: skip
    content = {"kind": kind, "meta": dict(meta), "arrays": described}
    header = json.dumps(content, separators=(",", ":")).encode()
    fixed = b"".join(
        [MAGIC, *(n.to_bytes(4, "little") for n in (VERSION, len(header), zlib.crc32(header)))]
    )
    return fixed + header, payload


def _header(data: memoryview, kind: str, where: str) -> tuple[dict[str, Any], int]:
    """Check everything in front of the payload; return the header and where the payload begins."""
    if len(data) < _FIXED or data[: len(MAGIC)] != MAGIC:
        raise StoreError(
            f"{where} is not an sbm file (or its first bytes are damaged); "
            "models are made by sbm train, stores by sbm split"
        )
    version, length, crc = (
        int.from_bytes(data[k : k + 4], "little") for k in range(len(MAGIC), _FIXED, 4)
    )
    if version != VERSION:
        raise StoreError(
            f"{where} has format version {version}, this program reads version {VERSION}; "
            "use the program that wrote it, or a newer one"
        )
    end = _FIXED + length
    if length > _LARGEST_HEADER or end > len(data) or zlib.crc32(data[_FIXED:end]) != crc:
        raise _damaged(where, "its header")
    try:
        header = json.loads(bytes(data[_FIXED:end]))
    except (ValueError, RecursionError) as error:
        raise _damaged(where, "its header") from error
    if not isinstance(header, dict) or set(header) != {"kind", "meta", "arrays"}:
        raise _damaged(where, "its header")
    if header["kind"] != kind:
        raise StoreError(f"{where} holds a {header['kind']}, a {kind} is expected")
    entries = header["arrays"]
    if not isinstance(header["meta"], dict) or not isinstance(entries, list):
        raise _damaged(where, "its header")
    if not all(map(_is_entry, entries)) or len({e["name"] for e in entries}) < len(entries):
        raise _damaged(where, "its header")
    return header, end


def _is_entry(entry: Any) -> bool:
    """Whether this can describe an array."""
    if not isinstance(entry, dict) or set(entry) != _ENTRY:
        return False
    shape, numbers = entry["shape"], [entry["bytes"], entry["crc32"]]
    if not isinstance(shape, list) or len(shape) > 32:
        return False
    return (
        isinstance(entry["name"], str)
        and isinstance(entry["dtype"], str)
        and entry["dtype"] in _DTYPES
        and entry["codec"] in ("raw", "zstd", "shuffle")
        and all(type(n) is int and 0 <= n < 1 << 62 for n in [*shape, *numbers])
    )


def _damaged(where: str, part: str) -> StoreError:
    return StoreError(f"{where} is damaged ({part}); restore it from a copy or make it again")


def _decode_array(data: memoryview, entry: dict[str, Any], where: str) -> npt.NDArray[Any]:
    name = f"array {entry['name']!r}"
    shape = entry["shape"]
    dtype = np.dtype(entry["dtype"])
    size = math.prod(shape) * dtype.itemsize
    if zlib.crc32(data) != entry["crc32"]:
        raise _damaged(where, name)
    if entry["codec"] == "raw":
        if len(data) != size:
            raise _damaged(where, name)
        return np.frombuffer(data, dtype).reshape(shape)
    try:
        # before any memory is set aside
        if zstandard.frame_content_size(data) != size or size > len(data) * _LARGEST_FACTOR:
            raise _damaged(where, name)
        plain = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _damaged(where, name) from error
    flat = np.frombuffer(plain, np.uint8)
    if entry["codec"] == "shuffle":
        planes = flat.reshape(dtype.itemsize, -1)
        joined = np.empty(planes.shape[::-1], np.uint8)
        for place, plane in enumerate(planes):  # three times as fast as a transposed copy
            joined[:, place] = plane
        flat = joined.reshape(-1)
    array: Array = flat.view(dtype).reshape(shape)
    return array


def decode(data: bytes | memoryview, kind: str, where: str) -> Container:
    """Read a container from memory, checking every byte.

    Parameters
    ----------
    data : bytes-like
        Exactly one container.
    kind : str
        What it must be.
    where : str
        Names the place in error messages.

    Raises
    ------
    StoreError
        Not a container, another kind or version, truncated or damaged.
    """
    view = memoryview(data)
    header, position = _header(view, kind, where)
    arrays: dict[str, Array] = {}
    for entry in header["arrays"]:
        end = position + entry["bytes"]
        if end > len(view):
            raise _damaged(where, f"array {entry['name']!r}")
        arrays[entry["name"]] = _decode_array(view[position:end], entry, where)
        position = end
    if position != len(view):
        raise _damaged(where, "bytes behind its end")
    return Container(arrays, header["meta"])


def write(
    path: Path,
    kind: str,
    arrays: Mapping[str, Array | Pieces],
    meta: Mapping[str, Any] | None = None,
    *,
    level: int | None = 1,
) -> int:
    """Write a container atomically and return its size in bytes; see `encode`.

    Arrays given as `Pieces` are stored as they are, whatever the level.
    """
    head, payload = _lay_out(kind, arrays, meta or {}, level, ())
    return write_atomically(path, itertools.chain([head], *payload))


def is_container(path: Path) -> bool:
    """Whether a file begins like a container."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read(path: Path, kind: str, wanted: Callable[[str], bool] = lambda name: True) -> Container:
    """Read a file that holds one container; see `decode`.

    Parameters
    ----------
    path : Path
    kind : str
    wanted : callable
        Tells of the name of an array whether to read it; the others take no memory.
    """
    where, arrays = str(path), {}
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = file.read(_FIXED)
            length = int.from_bytes(begin[_FIXED - 8 : _FIXED - 4], "little")
            begin += file.read(min(length, _LARGEST_HEADER))
            header, position = _header(memoryview(begin), kind, where)
            for entry in header["arrays"]:
                position += entry["bytes"]
                if position > size:
                    raise _damaged(where, f"array {entry['name']!r}")
                if not wanted(entry["name"]):
                    file.seek(position)
                    continue
                data = file.read(entry["bytes"])
                arrays[entry["name"]] = _decode_array(memoryview(data), entry, where)
            if size != position:
                raise _damaged(where, "bytes behind its end")
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    return Container(arrays, header["meta"])
