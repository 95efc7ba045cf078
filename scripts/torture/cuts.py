"""A text cut at every byte: in pieces, compressed, in a pipe that falls silent or comes again.

Whatever way it comes, the rows, what is refused and where must be those of the slow parser.
"""

import bz2
import contextlib
import gzip
import lzma
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import zstandard

from sbm.errors import DataError
from sbm.inputs import live, text
from sbm.inputs.live import Patience
from sbm.inputs.parsing import ParsedText
from sbm.inputs.text import Source, convert_sources
from tests.slow_parser import Row, slow_parse

WAYS = ("pieces", "compressed", "silent pipe")

_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress,
}  # fmt: skip
_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # taken for compressed data
_TORN = " (the last line has no line end: something stopped in its middle)"

# Rows as text, and the refusal or (problems, lines, rows, skipped).
Outcome = tuple[str, Any]
# The way, its details, what must come of it, and how to do it.
Reading = tuple[str, str, Outcome, Callable[[], Outcome]]


class Cutter:
    """Reads texts in all ways.

    Parameters
    ----------
    folder : Path
        For files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pools = [ThreadPoolExecutor(threads) for threads in (1, 2)]

    def check(self, data: bytes, skip: bool, count: Callable[[str], None]) -> list[str]:
        """Read a text in all ways; return what went wrong, the first of each way.

        Parameters
        ----------
        data : bytes
            A short text: it is read some four times for each byte.
        skip : bool
            Pass over refused lines.
        count : callable
            Is told the way of each reading, one of `WAYS`.
        """
        failures: dict[str, str] = {}
        if data.startswith(_MAGIC):
            return []
        for way, details, expected, read in self._readings(data, skip):
            count(way)
            try:
                got: Any = read()
            except Exception as error:  # whatever it is, it is found
                got = repr(error)
            if got != expected:
                message = f"{data!r} in {details}, skip={skip}: expected {expected}, got {got}"
                failures.setdefault(way, message)
        return list(failures.values())

    def _readings(self, data: bytes, skip: bool) -> Iterator[Reading]:
        path = self._folder / "cut.svm"
        path.write_bytes(data)
        expected = _expected(data, str(path), skip)
        for size in range(1, len(data) + 2):
            read = partial(self._read, Source(str(path)), skip, size)
            yield "pieces", f"pieces of {size} bytes", expected, read
        for ending, compress in _COMPRESS.items():
            path = self._folder / f"cut.svm{ending}"
            half = len(data) // 2
            path.write_bytes(compress(data[:half]) + compress(data[half:]))
            expected = _expected(data, str(path), skip)
            for size in (1, 5, 17, len(data) + 1):
                read = partial(self._read, Source(str(path)), skip, size)
                yield "compressed", f"{ending}, in pieces of {size} bytes", expected, read
        for cut in range(len(data) + 1):
            expected = _expected(data, "-", skip, is_live=True)
            read = partial(self._read_silent, data, cut, skip)
            yield "silent pipe", f"a pipe that is silent behind byte {cut}", expected, read

    def _read(
        self,
        source: Source,
        skip: bool,
        size: int,
        patience: Patience | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Read a source in pieces of `size` bytes; call `between` on the way."""
        rows: list[Row] = []
        with _changed(text, PIECE=size):
            try:
                for _, part in convert_sources(
                    [source], self._pools[size % 2], _plain, ahead=size % 3, skip=skip,
                    patience=patience,
                ):  # fmt: skip
                    rows += part
                    between()
            except DataError as error:
                return repr(rows), str(error)
        return repr(rows), (
            source.problems,
            source.done.lines,
            source.done.rows,
            source.done.skipped,
        )

    def _read_silent(self, data: bytes, cut: int, skip: bool) -> Outcome:
        """Read a pipe that says nothing for a while in the middle of its text."""
        source = Source("-")
        with _pipe(data[:cut]) as end:

            def go_on() -> None:
                if source.read == cut and not end.closed:
                    end.write(data[cut:])
                    end.close()

            return self._read(source, skip, 1 + cut % 97, Patience(), go_on)


def _expected(data: bytes, name: str, skip: bool, is_live: bool = False) -> Outcome:
    """What the slow parser says of a text."""
    rows, refused = slow_parse(data)
    is_open = data != b"" and not data.endswith(b"\n")
    n_lines = data.count(b"\n") + is_open
    problems = [
        f"{Source(name).at(line)}: {message}"
        + (_TORN if is_live and is_open and line == n_lines else "")
        for line, message in refused
    ]
    if refused and not skip:
        lines = data.split(b"\n")[: refused[0][0] - 1]
        return repr(slow_parse(b"\n".join(lines))[0]), problems[0]
    return repr(rows), (problems[:20], n_lines, len(rows), len(refused))


def _plain(parsed: ParsedText) -> list[Row]:
    """Rows as plain Python."""
    ends, ids = parsed.indptr.tolist(), parsed.ids.tolist()
    values = [1.0] * len(ids) if parsed.values is None else parsed.values.tolist()
    pairs = list(zip(ids, values, strict=True))
    return [(y, tuple(pairs[ends[k] : ends[k + 1]])) for k, y in enumerate(parsed.labels.tolist())]


@contextlib.contextmanager
def _pipe(data: bytes) -> Iterator[Any]:
    """Have standard input be a pipe with this in it; yield the end to write more to."""
    read, write = os.pipe()
    with os.fdopen(write, "wb", 0) as end, os.fdopen(read, "rb") as file:
        end.write(data)
        with (
            _changed(sys, stdin=SimpleNamespace(buffer=file)),
            _changed(live, _NAP=0.0, _LONG=0.0),  # silence is noticed at once
        ):
            yield end


@contextlib.contextmanager
def _changed(thing: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(thing, name) for name in values}
    try:
        for name, value in values.items():
            setattr(thing, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)
