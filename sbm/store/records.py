"""Records: small JSON files with a checksum.

A record may come from an untrusted source: its size and checksum are checked here, and its fields
by the tables of those who read it (`sbm.fields`).
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from sbm.errors import StoreError
from sbm.store.files import open_own, read_error

_KEPT_FILE = 1 << 16  # bytes of memory for the part of a record about one file in its folder
_LEAST = 32_000_000  # bytes of memory for the rest


def checksum(content: Any) -> int:
    """Return the CRC-32 of JSON content, independent of its layout."""
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def encode_record(name: str, content: dict[str, Any]) -> bytes:
    """Return a record (JSON with a checksum) as bytes."""
    return json.dumps({"crc32": checksum(content), name: content}, indent=1).encode()


def read_record(path: Path, name: str) -> dict[str, Any]:
    """Read a record and check its size and checksum; use `find_invalid` for its fields.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        There is no such file.
    StoreError
        It cannot be read, or is too large.
    ValueError
        It is not a JSON object, has a duplicate key, or its checksum does not match.
    """
    try:
        with open_own(path) as file:
            room = _LEAST + _KEPT_FILE * len(os.listdir(path.parent))
            size = os.fstat(file.fileno()).st_size
            data = file.read() if 2 * size <= room else b""
    except (StoreError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise read_error(path, error) from error
    if 2 * size > room or _memory(data) > room:
        raise StoreError(
            f"{path} has {size:,} bytes, too many for this folder, so it is damaged; restore it "
            "from a copy or create it again"
        )
    return decode_record(name, data)


def decode_record(name: str, data: bytes) -> dict[str, Any]:
    """Decode a record and check its checksum.

    Raises `ValueError` if it is not a JSON object, has a duplicate key, or its checksum does not
    match.
    """
    outer = parse(data)
    try:
        content = outer[name]
        if set(outer) != {"crc32", name} or checksum(content) != outer["crc32"]:
            raise ValueError("checksum mismatch")
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def _memory(data: bytes) -> int:
    """Return the memory that decoding takes, at most, roughly: the text, lists, dicts, values."""
    return 2 * len(data) + 64 * data.count(b"[") + 240 * data.count(b"{") + 40 * data.count(b",")


def parse(data: bytes) -> Any:
    """Decode untrusted JSON.

    Raises `ValueError` if it is not JSON, an object has a duplicate key, or it is nested too
    deeply.
    """
    try:
        return json.loads(data, object_pairs_hook=_no_key_twice)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate key")
    return found
