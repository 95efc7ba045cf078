"""Records: small JSON files with a checksum, of declared fields.

A record may come from an untrusted source, so all that its readers rely on is checked here: its
size, its checksum, and the type and range of each field of the tables below. What several fields
must have in common is checked by the reader.

In a table, a dict stands for an object: its keys are fields, optional if they end in ``?``; the key
``*`` stands for all others. A list stands for a list of such values, a tuple for alternatives, a
type for exactly this type, and None for null. A function returns whether a value is valid.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbm.errors import StoreError
from sbm.store.files import open_own, read_error

Table = Any  # see above

_KEPT_FILE = 1 << 16  # bytes of memory for the part of a record about one file in its folder
_LEAST = 32_000_000  # bytes of memory for the rest


# ------------------------------------------------------------------------------------ values


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _crc(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _number_or_inf(value: Any) -> bool:
    return _number(value) or (type(value) is float and math.isinf(value))


def _setting(value: Any) -> bool:
    """Whether this is not a number that is too large; `Settings` checks the rest."""
    if isinstance(value, dict):
        return all(map(_setting, value.values()))
    return type(value) is not int or abs(value) < 1 << 62


def _weight(value: Any) -> bool:
    return type(value) is float and 0 < value < math.inf


def _distinct_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_number, value)) and len(set(value)) == len(value)


def _moment(value: Any) -> bool:
    try:
        return datetime.datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _text(pattern: str) -> Callable[[Any], bool]:
    form = re.compile(pattern)
    return lambda value: isinstance(value, str) and form.fullmatch(value) is not None


_BLOCK_FILE = _text(r"block-[0-9]{6,9}\.sbb")
_STATE_FILE = _text(r"state-\d{6,}\.sba")
_SHA256 = _text(r"[0-9a-f]{64}|")

# ------------------------------------------------------------------------------------ tables

SHARD_FIELDS: Table = {"shard": _count, "of": _count}

_BLOCK: Table = {
    "file": _BLOCK_FILE, "rows": _count, "nnz": _count, "bytes": _count, "crc32": _crc,
}  # fmt: skip
_SOURCE: Table = {
    "name": str, "bytes": _count, "sha256": _SHA256, "rows": _count, "skipped": _count,
    "format?": str, "files?": _count,
}  # fmt: skip
_GENERATION: Table = {
    "features": _text(r"features-[0-9]{4,9}\.sba"), "index": _text(r"index-[0-9]{4,9}\.sba"),
    "features_crc32": _crc, "blocks": [_BLOCK_FILE], "rows": _count, "sources": [_SOURCE],
    "options": {"seed": _count, "shuffle": bool, "names?": (None, dict)},
    "deal?": {"first": _count, "blocks": _count, "batches": [_count]}, "added": _moment,
    "names_bytes?": _count, "weights?": {"total": _weight, "crc32": _crc},
    "left_out?": {"*": _count}, "expired?": {"at": str, "blocks": [_BLOCK]},
}  # fmt: skip
MANIFEST_FIELDS: Table = {
    "rows": _count, "nnz": _count, "features": _count,
    "value_type": _text("ones|float32|float64"), "dtype": _text("float32|float64"),
    "labels": (None, {"values": _distinct_numbers, "counts": [_count], "names?": [str]}),
    "class_values": (None, _distinct_numbers), "blocks": [_BLOCK], "generations": [_GENERATION],
}  # fmt: skip

_CERTIFICATE: Table = {
    "primal": _number, "dual": _number, "gap": _number, "relative_gap": _number,
    "drift": _number, "n_support?": _count, "n_free?": _count,
}  # fmt: skip
_TOTALS: Table = {
    "gain": _number, "gap": _number_or_inf, "visits": _count, "updates": _count,
    "rounds": _count, "starved": _count, "cached": _count, "rest": _count,
}  # fmt: skip
_SECONDS: Table = (lambda value: value == {}, {
    "compile": _number, "disk": _number, "load": _number, "wait": _number, "solve": _number,
    "certify": _number, "combine": _number, "write": _number,
})  # fmt: skip
_NEEDS: Table = {
    "rows": _count, "nnz": _count, "longest": _count, "features": _count, "largest_id": _count,
    "hashed": bool, "labels": _count, "has_values": bool,
}  # fmt: skip
_SETTINGS: Table = {"C?": _number, "loss?": str, "*": _setting}
_CHECKPOINT: Table = {
    "state": _STATE_FILE, "alphas": {"*": _text(r"alpha-\d{5,}\.\d{6,}\.sba")},
    "crc32": {"*": _crc}, "log_bytes": _count, "settings?": _SETTINGS,
    "commit?": _count,
}  # fmt: skip
_TRAINING: Table = {  # of `sbm train` and `sbm tune`
    "store?": str, "store_rows?": _count, "data?": _crc, "weights?": (None, _crc),
    "bound?": (None, _count), "own?": [_count], "classes?": [_count],
    "shape?": {
        "blocks": [[_count]], "files": [str], "parts": [[[_count]]], "outputs": [_count],
        "listed": bool,
    },
    "passes?": _count, "rounds?": [_count], "gaps?": [_number_or_inf], "only?": (None, [_count]),
    "free_rows?": (None, _count), "is_warm?": bool, "totals?": _TOTALS, "ended?": (None, _TOTALS),
    "watch?": {
        "tol": _number, "previous": _number_or_inf, "ratio": _number, "since": _count,
        "misses": _count,
    },
    "certificate?": (None, _CERTIFICATE), "cut_short?": _count, "is_done?": bool,
    "method?": {"family": str, "*": lambda value: True},
    "best?": (None, {"since": _count, "*": lambda value: True}),
    "calibrating?": _count, "is_calibrated?": bool,
    "seconds?": _SECONDS, "mark?": _SECONDS, "elapsed?": _number, "bytes_read?": _count,
    "report?": (None, dict),
}  # fmt: skip
_SUMS: Table = {"rows": _count, "correct": _count, "loss": _number}
_STREAM: Table = {
    "options": {"classes?": (None, [_number]), "*": lambda value: True}, "inputs": [str],
    "learner": {"rows": _count, "outputs": [_count], "listed": bool, "positive": (None, int)},
    "needs": _NEEDS, "seen": _NEEDS,
    "sources": [{
        "name": str, "path": str, "text": _count, "lines": _count, "rows": _count,
        "skipped": _count, "tail": str, "skip": _count,
    }],
    "progressive": {"all": _SUMS, "last": _SUMS, "mark": _count},
    "pending": _count, "left": _count, "labels": _distinct_numbers, "labels_of?": str,
    "totals": _TOTALS,
    "blocks": _count,
}  # fmt: skip
# By kind of run; "" stands for other kinds.
RUN_FIELDS: dict[str, Table] = {
    "": _CHECKPOINT,
    "train": {**_CHECKPOINT, **_TRAINING},
    "tune": {**_CHECKPOINT, **_TRAINING},
    "stream": {**_CHECKPOINT, **_STREAM, "settings": _SETTINGS},
}


def find_invalid(value: Any, table: Table, where: str = "") -> str:
    """Return the first field that a table does not allow, and its value; empty if there is none."""
    if isinstance(table, tuple):
        found = [find_invalid(value, one, where) for one in table]
        return "" if "" in found else found[-1]
    if isinstance(table, dict) and isinstance(value, dict):
        return _find_in_object(value, table, where)
    if isinstance(table, list) and isinstance(value, list):
        each = (find_invalid(one, table[0], f"{where}[{k}]") for k, one in enumerate(value))
        return next(filter(None, each), "")
    if isinstance(table, type) and type(value) is table:
        return ""
    if table is None and value is None:
        return ""
    if callable(table) and not isinstance(table, type) and table(value):
        return ""
    shown = repr(value)
    return f"{where or 'it'} is {shown if len(shown) <= 40 else shown[:37] + '...'}"


def _find_in_object(value: dict[str, Any], table: dict[str, Table], where: str) -> str:
    kinds = {name.removesuffix("?"): kind for name, kind in table.items() if name != "*"}
    before = f"{where}." if where else ""
    for name in table:
        if not name.endswith("?") and name != "*" and name not in value:
            return f"{before}{name} is missing"
    for name, one in value.items():
        kind = kinds.get(name, table.get("*"))
        if kind is None and name not in kinds:
            continue  # of a newer version
        if found := find_invalid(one, kind, f"{before}{name}"[:200]):
            return found
    return ""


# ------------------------------------------------------------------------------ reading, writing


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
