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

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sbm.errors import StoreError
from sbm.store.files import write_atomically

__all__ = ["VERSION", "Container", "decode", "encode", "read", "write"]

MAGIC = b"\x89SBM\r\n\x1a\n"
VERSION = 1
_FIXED = len(MAGIC) + 12
_DTYPES = frozenset(
    ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"]
)  # nothing that could hold objects
_LARGEST_HEADER = 1 << 24

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


def _encode_array(array: Array, codec: str, level: int) -> bytes | memoryview:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if codec == "raw":
        return memoryview(flat)
    if codec == "shuffle":
        flat = np.ascontiguousarray(flat.reshape(-1, array.dtype.itemsize).T)
    return zstandard.ZstdCompressor(level=level, write_checksum=False).compress(memoryview(flat))


def encode(
    kind: str,
    arrays: Mapping[str, Array],
    meta: Mapping[str, Any] | None = None,
    *,
    level: int | None = 1,
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

    Returns
    -------
    list of bytes-like
        To be written one after the other.
    """
    payload: list[bytes | memoryview] = []
    described = []
    for name, array in arrays.items():
        codec = "raw" if level is None else "zstd" if array.dtype.itemsize == 1 else "shuffle"
        data = _encode_array(array, codec, level or 1)
        payload.append(data)
        described.append({
            "name": name,
            "dtype": array.dtype.newbyteorder("<").str,
            "shape": list(array.shape),
            "codec": codec,
            "bytes": len(data),
            "crc32": zlib.crc32(data),
        })  # fmt: skip
    content = {"kind": kind, "meta": dict(meta or {}), "arrays": described}
    header = json.dumps(content, separators=(",", ":")).encode()
    fixed = b"".join(
        [MAGIC, *(n.to_bytes(4, "little") for n in (VERSION, len(header), zlib.crc32(header)))]
    )
    return [fixed, header, *payload]


def _header(data: memoryview, kind: str, where: str) -> tuple[dict[str, Any], int]:
    """Check everything in front of the payload; return the header and where the payload begins."""
    if len(data) < _FIXED or data[: len(MAGIC)] != MAGIC:
        raise StoreError(f"{where} is not an sbm file (or its first bytes are damaged)")
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
    header = json.loads(bytes(data[_FIXED:end]))
    if header.get("kind") != kind:
        raise StoreError(f"{where} holds a {header.get('kind')}, a {kind} is expected")
    return header, end


def _damaged(where: str, part: str) -> StoreError:
    return StoreError(f"{where} is damaged ({part}); restore it from a copy or make it again")


def _decode_array(data: memoryview, entry: dict[str, Any], where: str) -> npt.NDArray[Any]:
    name = f"array {entry['name']!r}"
    shape = [int(n) for n in entry["shape"]]
    if entry["dtype"] not in _DTYPES or min(shape, default=0) < 0:
        raise _damaged(where, name)
    dtype = np.dtype(entry["dtype"])
    size = math.prod(shape) * dtype.itemsize
    if zlib.crc32(data) != entry["crc32"]:
        raise _damaged(where, name)
    if entry["codec"] == "raw":
        if len(data) != size:
            raise _damaged(where, name)
        return np.frombuffer(data, dtype).reshape(shape)
    try:
        if zstandard.frame_content_size(data) != size:  # before any memory is set aside
            raise _damaged(where, name)
        plain = zstandard.ZstdDecompressor().decompress(data) if size else b""
    except zstandard.ZstdError as error:
        raise _damaged(where, name) from error
    flat = np.frombuffer(plain, np.uint8)
    if entry["codec"] == "shuffle":
        flat = np.ascontiguousarray(flat.reshape(dtype.itemsize, -1).T).reshape(-1)
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
        end = position + int(entry["bytes"])
        if entry["bytes"] < 0 or end > len(view):
            raise _damaged(where, f"array {entry['name']!r}")
        arrays[entry["name"]] = _decode_array(view[position:end], entry, where)
        position = end
    if position != len(view):
        raise _damaged(where, "bytes behind its end")
    return Container(arrays, header["meta"])


def write(
    path: Path,
    kind: str,
    arrays: Mapping[str, Array],
    meta: Mapping[str, Any] | None = None,
    *,
    level: int | None = 1,
) -> int:
    """Write a container atomically and return its size in bytes; see `encode`."""
    return write_atomically(path, encode(kind, arrays, meta, level=level))


def read(path: Path, kind: str) -> Container:
    """Read a file that holds one container; see `decode`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    return decode(data, kind, str(path))
