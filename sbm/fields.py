"""Fields of records: which values are valid, declared beside the class that reads them.

A record may come from an untrusted source, so all that its readers rely on is checked: the type and
range of each field. What several fields must have in common is checked by the reader.

In a table, a dict stands for an object: its keys are fields, optional if they end in ``?``; the key
``*`` stands for all others. A list stands for a list of such values, a tuple for alternatives, a
type for exactly this type, and None for null. A function returns whether a value is valid.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = [
    "Table",
    "fields_of",
    "fields_of_run",
    "find_invalid",
    "is_count",
    "is_crc",
    "is_distinct_numbers",
    "is_moment",
    "is_number",
    "is_number_or_inf",
    "is_text",
    "is_weight",
]

Table = Any  # see above

# By kind of run: the table of what its program adds to a checkpoint, imported when it is read.
_RUNS = {
    "train": "sbm.programs.training.state.RUN_FIELDS",
    "tune": "sbm.programs.training.state.RUN_FIELDS",
    "stream": "sbm.programs.streaming.state.RUN_FIELDS",
}


def fields_of_run(kind: Any) -> dict[str, Table]:
    """Return the table of a kind of run; empty if it is unknown."""
    module, _, name = _RUNS.get(str(kind), "").rpartition(".")
    return dict(getattr(import_module(module), name)) if module else {}


def fields_of(kind: type, **others: Table) -> dict[str, Table]:
    """Return the table of a dataclass, by the types of its fields.

    `others` are fields whose type does not say which values are valid.
    """
    found: dict[str, Table] = {}
    for field in dataclasses.fields(kind):
        of = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        found[field.name] = others[field.name] if field.name in others else _BY_TYPE[of]
    return found


# ------------------------------------------------------------------------------------ values


def is_count(value: Any) -> bool:
    """Return whether this is a number of things."""
    return type(value) is int and 0 <= value < 1 << 62


def is_crc(value: Any) -> bool:
    """Return whether this is a CRC-32."""
    return type(value) is int and 0 <= value < 1 << 32


def is_number(value: Any) -> bool:
    """Return whether this is a finite number."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def is_number_or_inf(value: Any) -> bool:
    """Return whether this is a number, possibly infinite."""
    return is_number(value) or (type(value) is float and math.isinf(value))


def is_weight(value: Any) -> bool:
    """Return whether this is the weight of rows."""
    return type(value) is float and 0 < value < math.inf


def is_distinct_numbers(value: Any) -> bool:
    """Return whether this is a list of different numbers."""
    return isinstance(value, list) and all(map(is_number, value)) and len(set(value)) == len(value)


def is_moment(value: Any) -> bool:
    """Return whether this is a date and time with its zone."""
    try:
        return datetime.datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def is_text(pattern: str) -> Callable[[Any], bool]:
    """Return the function that says whether a value is a text of this pattern."""
    form = re.compile(pattern)
    return lambda value: isinstance(value, str) and form.fullmatch(value) is not None


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


_BY_TYPE: dict[str, Table] = {
    "int": is_count, "float": is_number, "bool": bool, "str": str, "list[int]": [is_count],
    "int | None": (None, is_count), "list[int] | None": (None, [is_count]),
}  # fmt: skip
