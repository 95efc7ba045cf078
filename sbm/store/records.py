"""Records: JSON objects with a checksum of their content, for what people may want to read.

A record is ``{"crc32": ..., NAME: content}``; the checksum is that of the content without any
layout, so that a record may be indented.
"""

import json
import zlib
from typing import Any

__all__ = ["checksum", "decode_record", "encode_record", "parse"]


def checksum(content: Any) -> int:
    """CRC-32 of JSON content, whatever its layout."""
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def encode_record(name: str, content: dict[str, Any]) -> bytes:
    """Write a record as text."""
    return json.dumps({"crc32": checksum(content), name: content}, indent=1).encode()


def decode_record(name: str, data: bytes) -> dict[str, Any]:
    """Read a record, trusting nothing.

    Raises
    ------
    ValueError
        It is no JSON, a key stands in it twice, the checksum is another one, or it is no object.
    """
    outer = parse(data)
    try:
        content = outer[name]
        if set(outer) != {"crc32", name} or checksum(content) != outer["crc32"]:
            raise ValueError("its checksum is another one")
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    return content


def parse(data: bytes) -> Any:
    """Read JSON that nobody vouches for.

    Raises
    ------
    ValueError
        It is none, a key stands in an object twice, or it is nested too deeply.
    """
    try:
        return json.loads(data, object_pairs_hook=_no_key_twice)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands in it twice")
    return found
