"""How much of each source is in the blocks of a stream, so that another process goes on there."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

from sbm.store.live import Place
from sbm.store.text import Source

__all__ = ["Positions", "Record", "sources_at"]

Record: TypeAlias = dict[str, Any]


class Positions:
    """How far each source has come, as JSON holds it.

    Parameters
    ----------
    records : sequence of dict
        What `records` were when an earlier process ended.
    sources : sequence of Source
        Those of the same path as one of the records go on where that ended.

    Attributes
    ----------
    records : list of dict
        Of each source, those of the earlier process included.
    """

    def __init__(self, records: Sequence[Record], sources: Sequence[Source]) -> None:
        self.records = [dict(record) for record in records]
        self._numbers: dict[int, int] = {}  # of a source's record, by its identity
        # A file may be given more than once, and others may have been in its place: the last ones
        # count, in their order.
        known: dict[str, list[int]] = {}
        for k, record in enumerate(self.records):
            known.setdefault(record["path"], []).append(k)
        given = Counter(source.path for source in sources)
        known = {path: numbers[-given[path] :] for path, numbers in known.items() if given[path]}
        for source in sources:
            if numbers := known.get(source.path):
                self._go_on(source, numbers.pop(0))
            else:
                self.add(source, source.place)

    def __contains__(self, source: Source) -> bool:
        return id(source) in self._numbers

    def add(self, source: Source, place: Place) -> None:
        """Begin to note how far a source has come."""
        self._numbers[id(source)] = len(self.records)
        self.records.append(_record(source, place, 0))

    def _go_on(self, source: Source, number: int) -> None:
        """Let a source go on where that of a record ended."""
        record = self.records[number]
        self._numbers[id(source)] = number
        source.skip = record["skip"]
        text, lines, rows, skipped = (
            int(record[name]) for name in ("text", "lines", "rows", "skipped")
        )
        source.place = Place(text, lines, rows, skipped, _bytes(record["tail"]))
        source.earlier = record["earlier"]
        source.head, source.rest, source.carried = (
            _bytes(record[name]) for name in ("head", "rest", "carried")
        )

    def note(self, source: Source, place: Place, skip: int) -> None:
        """Note that a source has come to a place, and so many rows further."""
        number = self._numbers[id(source)]
        name = self.records[number]["name"]  # as it was given first
        self.records[number] = {**_record(source, place, skip), "name": name}

    def note_rest(self, source: Source) -> None:
        """Note what was read of a source and is no whole line yet."""
        number = self._numbers[id(source)]
        self.records[number] = {**self.records[number], "rest": _text(source.rest)}


def _record(source: Source, place: Place, skip: int) -> Record:
    """Return what to keep of a source to go on from a place, behind some rows, as JSON holds it."""
    return {
        "name": source.name, "path": source.path, "text": place.text, "lines": place.lines,
        "rows": place.rows, "skip": skip, "tail": _text(place.tail), "head": _text(source.head),
        "rest": _text(source.rest), "carried": _text(source.carried), "skipped": place.skipped,
        "earlier": source.earlier,
    }  # fmt: skip


def sources_at(position: Sequence[Record]) -> list[dict[str, Any]]:
    """Return name, rows and refused lines of each source up to a position."""
    return [
        {
            "name": record["name"],
            "rows": record["earlier"] + record["rows"] + record["skip"],
            "skipped": record["skipped"],
        }
        for record in position
    ]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
