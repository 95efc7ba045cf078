"""LIBSVM text from files, compressed files and pipes, in pieces that end at line ends."""

import bz2
import contextlib
import glob
import hashlib
import io
import lzma
import os
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import zstandard

from sbm.errors import DataError
from sbm.inputs.libsvm import REASONS, parse_text
from sbm.inputs.live import (
    TAIL,
    Interruptible,
    LiveFile,
    Patience,
    Readable,
    SourceProgress,
    go_to,
)
from sbm.inputs.parsing import SPARE, InputOptions, ParsedText, Room, TextParser
from sbm.store.container import Buffers

__all__ = [
    "PIECE", "Source", "convert_sources", "expand_inputs", "is_packed", "one_ahead",
    "parse_sources", "unpacked",
]  # fmt: skip

PIECE = 2 << 20  # bytes of text parsed at a time; results do not depend on it

T = TypeVar("T")
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass
class Source:
    """An input and what became of it.

    Attributes
    ----------
    name : str
        As given on the command line; ``-`` is standard input.
    size : int
        Bytes on disk, compressed or not; 0 when unknown.
    read, parsed : int
        Bytes read of them so far, and those behind the pieces that were yielded.
    done, before : SourceProgress
        Behind the piece that was yielded last, and in front of it. If `done` is set before reading,
        the text is read from there.
    sha256 : str
        Of the bytes on disk, once the end is reached.
    problems : list of str
        What the first of the refused lines were refused for.
    is_open : bool
        Whether its last line had no line end.
    was_replaced : bool
        Whether a file that was followed has been replaced by another one.
    chunks : iterable of (matrix, labels), or None
        Instead of bytes, rows in memory; see `sbm.inputs.matrices`.
    format : str
        A key of `FORMATS` (`sbm/inputs/formats.py`).
    options : InputOptions
        How it is read.
    """

    name: str
    size: int = 0
    read: int = 0
    parsed: int = 0
    done: SourceProgress = field(default_factory=SourceProgress)
    before: SourceProgress = field(default_factory=SourceProgress)
    sha256: str = ""
    problems: list[str] = field(default_factory=list)
    is_open: bool = False
    was_replaced: bool = False
    chunks: Iterable[Any] | None = None
    format: str = "libsvm"
    options: InputOptions = field(default_factory=InputOptions)

    @property
    def comes_again(self) -> bool:
        """Whether it can be read a second time."""
        if self.chunks is not None:
            return iter(self.chunks) is not self.chunks
        return self.name != "-" and os.path.isfile(self.name)

    def again(self) -> "Source":
        """The same, nothing of it read."""
        return Source(
            self.name, self.size, chunks=self.chunks, format=self.format, options=self.options
        )

    @property
    def shown(self) -> str:
        """What it is called in messages."""
        return "standard input" if self.name == "-" else self.name

    def at(self, line: int) -> str:
        """A line of it, as messages name it."""
        return f"{self.shown}, line {line}" if self.name == "-" else f"{self.name}:{line}"

    @property
    def path(self) -> str:
        """By which it is known again, wherever we are: its real path, ``-`` of standard input."""
        return "-" if self.name == "-" else os.path.realpath(self.name)

    def describe(self) -> dict[str, Any]:
        """What a manifest keeps."""
        return {
            "name": "-" if self.name == "-" else Path(self.name).name,
            "bytes": self.read,
            "sha256": self.sha256,
            "rows": self.done.rows,
            "skipped": self.done.skipped,
        }


def expand_inputs(inputs: Sequence[str | Path]) -> list[Source]:
    """Turn names and glob patterns into sources, in the order given.

    Raises
    ------
    DataError
        A file is missing, a pattern matches nothing, or an input is a folder.
    """
    sources = []
    for name in map(str, inputs):
        if name == "-":
            sources.append(Source("-"))
            continue
        names = [name] if os.path.exists(name) else sorted(glob.glob(name, recursive=True))
        if not names:
            raise DataError(
                f"{name} does not exist; give LIBSVM text files, globs, or - for a pipe"
            )
        for path in names:
            if os.path.isdir(path):
                raise DataError(f"{path} is a folder; give the LIBSVM text files in it")
            sources.append(Source(path, os.path.getsize(path)))
    return sources


class _Digested:
    """The bytes of a file as they lie on disk, counted and hashed on their way."""

    def __init__(self, file: io.RawIOBase | io.BufferedIOBase, source: Source) -> None:
        self._file = file
        self._source = source
        self._hash = hashlib.sha256()

    def readinto(self, buffer: Any) -> int:
        n = self._file.readinto(buffer) or 0
        self._hash.update(memoryview(buffer)[:n])
        self._source.read += n
        return int(n)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size) or b""
        self._hash.update(data)
        self._source.read += len(data)
        return data

    def readable(self) -> bool:
        return True

    def finish(self) -> None:
        room = memoryview(bytearray(1 << 20))
        while _fill(self._source, self, room):
            pass  # what a decompressor left over belongs to the digest
        self._source.sha256 = self._hash.hexdigest()


class _CountedFile:
    """The bytes of a live file, counted."""

    def __init__(self, file: LiveFile, source: Source) -> None:
        self._file, self._source = file, source

    def readinto(self, buffer: memoryview, /) -> int | None:
        n = self._file.readinto(buffer)
        self._source.read += n or 0
        self._source.was_replaced = self._file.was_replaced
        return n


class _Frames:
    """Decompressed bytes of frames that follow one another, a missing end noticed.

    The libraries' own readers of files miss a missing end (zstd), or take the file in bites so
    small that they mostly wait for the interpreter's lock (gzip).

    Parameters
    ----------
    file : _Digested
    begin : callable
        Makes the decompressor of the next frame.
    bite : int
        Packed bytes given to it at a time; what they become is in memory at once.
    padding : bytes
        May stand between frames.
    """

    def __init__(
        self, file: _Digested, begin: Callable[[], Any], bite: int, padding: bytes = b""
    ) -> None:
        self._file, self._begin, self._bite, self._padding = file, begin, bite, padding
        self._frame: Any = None  # the one that has begun and not ended
        self._packed = b""
        self._plain = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        while not self._plain:
            data = self._packed or self._file.read(self._bite)
            self._packed = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            if self._frame is None:
                if not (data := data.lstrip(self._padding) if self._padding else data):
                    continue
                self._frame = self._begin()
            self._plain = memoryview(self._frame.decompress(data))
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        n = min(len(buffer), len(self._plain))
        buffer[:n] = self._plain[:n]
        self._plain = self._plain[n:]
        return n


_GZIP = 31  # for zlib: a gzip header and checksum around the data

_OPENERS: dict[str, Callable[[Any], Readable]] = {
    ".gz": lambda file: _Frames(file, lambda: zlib.decompressobj(_GZIP), 1 << 16, b"\0"),
    ".bz2": lambda file: bz2.BZ2File(file),
    ".xz": lambda file: lzma.LZMAFile(file),  # noqa: SIM115  closed with what it reads
    ".zst": lambda file: _Frames(file, zstandard.ZstdDecompressor().decompressobj, 1 << 14),
}


def is_packed(name: str) -> bool:
    """Whether a file's name says that it is compressed."""
    return Path(name).suffix.lower() in _OPENERS


@dataclass
class _TextPiece:
    source: Source
    text: Bytes
    size: int
    read: int  # bytes on disk read when the piece was complete
    tail: bytes  # the last bytes of the text up to its end
    open_line: int = 0  # number of its last line if that has no line end


def _read_pieces(
    source: Source,
    buffers: Buffers,
    largest_line: int,
    patience: Patience | None,
    is_last: bool,
) -> Generator[_TextPiece]:
    """Yield the text of a source in pieces of whole lines; empty ones while nothing comes."""
    raw = _open(source.name, patience)
    try:
        opener = _OPENERS.get(Path(source.name).suffix.lower())
        digested = _Digested(raw, source)
        stream: Readable = opener(digested) if opener else digested
        if patience is not None:
            stream = _resumed(source, raw, stream if opener else None, patience, is_last)
        is_first = True
        for piece in _cut(source, stream, buffers, largest_line, patience):
            if is_first and piece.size and opener is None and source.done.text == 0:
                _refuse_compressed(source.shown, piece.text[: min(6, piece.size)].tobytes())
            is_first = is_first and not piece.size
            yield piece
        if patience is None:
            digested.finish()
    finally:
        if source.name != "-":
            raw.close()


@contextlib.contextmanager
def unpacked(source: Source) -> Iterator[io.RawIOBase]:
    """Open the bytes of a source, decompressed, to read them once from beginning to end.

    The source is told how many were read on the disk, and their digest at the end.

    Raises
    ------
    DataError
        While reading: the file is damaged.
    """
    raw = _open(source.name, None)
    try:
        opener = _OPENERS.get(Path(source.name).suffix.lower())
        digested = _Digested(raw, source)
        yield _Unpacked(source, opener(digested) if opener else digested, opener is not None)
        digested.finish()
    finally:
        if source.name != "-":
            raw.close()


class _Unpacked(io.RawIOBase):
    """Text as the library's own readers of lines want it."""

    def __init__(self, source: Source, stream: Readable, is_packed: bool) -> None:
        self._source, self._stream, self._is_known = source, stream, is_packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        n = _fill(self._source, self._stream, memoryview(buffer)) or 0
        if not self._is_known:
            _refuse_compressed(self._source.shown, bytes(memoryview(buffer)[: min(n, 6)]))
            self._is_known = True
        return n


def _open(name: str, patience: Patience | None) -> Any:
    """Open an input; with patience, without waiting for somebody to write to a named pipe."""
    if name == "-":
        if sys.stdin is None:
            raise DataError("standard input is closed; give files, or text through a pipe")
        return sys.stdin.buffer
    if patience is None:
        return open(name, "rb", buffering=0)
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb", 0)


def _resumed(
    source: Source, raw: Any, unpacked: Readable | None, patience: Patience, is_last: bool
) -> Readable:
    """Return the text of a source, from where it was left on."""
    file = getattr(raw, "raw", raw)  # standard input has a buffer in front
    live = LiveFile(file, source.name, patience, follow=patience.follow and is_last)
    stream = Interruptible(unpacked, patience) if unpacked else _CountedFile(live, source)
    if not source.done.text:
        return stream
    return go_to(source.done, stream, source.name, patience, None if unpacked else file)


_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def _refuse_compressed(shown: str, begin: bytes) -> None:
    """Notice compressed data under a name, or in a pipe, that does not say so."""
    for magic, kind in _MAGIC.items():
        if begin.startswith(magic):
            raise DataError(
                f"{shown}: found {kind} data; decompress it on its way (zcat, zstdcat) "
                "or give a file name that ends in .gz, .bz2, .xz or .zst"
            )


def _cut(
    source: Source,
    stream: Readable,
    buffers: Buffers,
    largest_line: int,
    patience: Patience | None,
) -> Iterator[_TextPiece]:
    capacity = PIECE
    text = buffers.take(capacity + SPARE, np.uint8)
    size, tail = 0, source.done.tail

    def piece(end: int) -> _TextPiece:
        nonlocal tail
        tail = (tail + text[max(0, end - TAIL) : end].tobytes())[-TAIL:]
        return _TextPiece(source, text, end, source.read, tail)

    while True:
        try:
            n = _fill(source, stream, memoryview(text)[size:capacity])
        except DataError:
            if patience is not None and (end := _last_newline(text, size)):
                yield piece(end)  # a file that breaks off still has what is in front of that
            raise
        size += n or 0
        if n == 0 and (patience is None or not patience.gave_up):
            if size:
                last = piece(size)
                is_whole = patience is None and source.comes_again  # many editors leave files so
                if not is_whole and text[size - 1] != ord("\n"):
                    last.open_line = 1 + int(np.count_nonzero(text[:size] == ord("\n")))
                yield last
            return
        if n and size < capacity:
            continue
        end = _last_newline(text, size)
        if end == 0 and size == capacity:  # a line longer than the buffer
            capacity *= 2
            if capacity > largest_line:
                raise DataError(
                    f"{source.at(source.done.lines + 1)} or later: found a line longer than "
                    f"{capacity // 2} bytes, more than --mem has room for; raise --mem"
                )
            longer = buffers.take(capacity + SPARE, np.uint8)
            longer[:size] = text[:size]
            text = longer
            continue
        if n == 0 and end < size and not source.comes_again:
            source.problems.append(f"{source.shown}: the last line, whose end did not come")
        capacity = PIECE
        while capacity <= size - end:
            capacity *= 2
        rest = buffers.take(capacity + SPARE, np.uint8)
        rest[: size - end] = text[end:size]
        yield piece(end)
        if n == 0:
            return
        text, size = rest, size - end


def _fill(source: Source, stream: Readable, room: memoryview) -> int | None:
    try:
        return stream.readinto(room)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, lzma.LZMAError) as error:
        raise DataError(
            f"{source.shown}: cannot be read behind byte {source.read} ({error}); {_advice(source)}"
        ) from error


def _advice(source: Source) -> str:
    """Say what may be wrong with an input that cannot be read."""
    ending = Path(source.name).suffix
    if is_packed(source.name) and os.path.isfile(source.name):
        with open(source.name, "rb") as file:
            begin = file.read(6)
        if not begin.startswith(tuple(_MAGIC)):
            return f"it is not compressed, whatever its name says; rename it without {ending}"
    return "the file is damaged or not what its name says"


def _last_newline(text: Bytes, size: int) -> int:
    """Position behind the last newline, 0 where there is none."""
    step = 1 << 16
    for end in range(size, 0, -step):
        begin = max(0, end - step)
        found = np.flatnonzero(text[begin:end] == 10)
        if len(found):
            return begin + int(found[-1]) + 1
    return 0


def one_ahead(pieces: Iterator[T]) -> Generator[T]:
    """Yield the same pieces, while the next one is read, hashed and decompressed in a thread.

    Close it where it is not read to its end. What an error keeps is freed when garbage is looked
    for, in any thread at any moment: the end of the reader would be waited for there, perhaps with
    a lock that it needs to end.
    """
    with ThreadPoolExecutor(1, "sbm-read") as reader:
        coming = reader.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = reader.submit(next, pieces, None)
            yield piece


class _Parser(Generic[T]):
    """Parses pieces of text in threads, each of which has its own room."""

    def __init__(
        self,
        buffers: Buffers,
        parse: TextParser,
        convert: Callable[[ParsedText], T],
        dtype: str,
        skip: bool,
    ) -> None:
        self._buffers, self._parse, self._convert = buffers, parse, convert
        self._dtype, self._skip = dtype, skip
        self._local = threading.local()

    def __call__(self, piece: _TextPiece) -> tuple[ParsedText, T]:
        """Return what was parsed, good for its counts and errors only, and what became of it."""
        room = getattr(self._local, "room", None)
        if room is None:
            room = self._local.room = Room(PIECE + 1, self._dtype)
        parsed = self._parse(piece.text, piece.size, dtype=self._dtype, skip=self._skip, room=room)
        converted = self._convert(parsed)
        self._buffers.give_back(piece.text)
        return parsed, converted


def convert_sources(
    sources: Sequence[Source],
    pool: ThreadPoolExecutor,
    convert: Callable[[ParsedText], T],
    *,
    ahead: int,
    parse: TextParser = parse_text,
    dtype: str = "float32",
    skip: bool = False,
    largest_line: int = 1 << 30,
    reasons: Sequence[str] = REASONS,
    patience: Patience | None = None,
) -> Generator[tuple[Source, T]]:
    """Parse sources in threads, convert the pieces there, and yield them in order.

    Parameters
    ----------
    sources : sequence of Source
        Their counters are kept up to date as pieces are yielded.
    pool : ThreadPoolExecutor
        Runs the parsing.
    convert : function
        Makes of a piece what is yielded; the arrays of the piece are good until it returns.
    ahead : int
        Pieces in flight.
    parse : TextParser
        Of the text's format.
    dtype : {"float32", "float64"}
        Type of the values.
    skip : bool
        Leave refused lines out and note them in the source, instead of raising.
    largest_line : int
        Most bytes of a line.
    reasons : sequence of str
        What lines are refused for, by the codes of `TextError`.
    patience : Patience, optional
        How long to wait for text that is not there yet: then a piece may be empty, which is said
        when there was nothing for a while. Sources are read from their places on, and a file that
        was replaced while it was followed is followed by a source of the same name.

    Raises
    ------
    DataError
        The first refused line, as ``file:line: found, expected``.
    """
    buffers = Buffers(PIECE + SPARE)
    task = _Parser(buffers, parse, convert, dtype, skip)
    flight: deque[tuple[_TextPiece, Future[tuple[ParsedText, T]]]] = deque()
    coming = deque(sources)
    while coming and not (patience is not None and patience.gave_up):
        source = coming.popleft()
        pieces = _read_pieces(source, buffers, largest_line, patience, is_last=not coming)
        if patience is not None or os.path.isfile(source.name):
            # A pipe that cannot be interrupted would keep the thread when we want to end.
            pieces = one_ahead(pieces)
        broken = None
        with _closed(pieces, patience):
            while True:
                try:
                    piece = next(pieces, None)
                except DataError as error:  # what is in front of that comes first
                    piece, broken = None, error
                if piece is None:
                    break
                flight.append((piece, pool.submit(task, piece)))
                while len(flight) > (ahead if piece.size else 0):
                    yield from _take(*flight.popleft(), skip, reasons)
            while flight:  # a source's counters are complete before the next one begins
                yield from _take(*flight.popleft(), skip, reasons)
        if broken is not None:
            raise broken
        if source.was_replaced:
            coming.append(Source(source.name))


@contextlib.contextmanager
def _closed(pieces: Generator[_TextPiece], patience: Patience | None) -> Iterator[None]:
    """Close pieces that are not all wanted; who waits for more of them gives up."""
    try:
        yield
    except BaseException:
        if patience is not None:
            patience.gave_up = True
        raise
    finally:
        pieces.close()


def _take(
    piece: _TextPiece,
    task: "Future[tuple[ParsedText, T]]",
    skip: bool,
    reasons: Sequence[str],
) -> Iterator[tuple[Source, T]]:
    """Yield what became of a piece. Rows in front of a refused line come before the refusal."""
    source, (parsed, converted) = piece.source, task.result()
    before = source.before = source.done
    refused = [
        f"{source.at(before.lines + error.line)}: {error.explain(reasons)}"
        + (_TORN if error.line == piece.open_line else "")
        for error in parsed.errors
    ]
    if refused and not skip:
        yield source, converted
        raise DataError(refused[0])
    source.problems += refused[: 20 - len(source.problems)]
    source.parsed = piece.read
    refused_lines = [error.line for error in parsed.errors]
    source.is_open = piece.open_line > 0 and piece.open_line not in refused_lines
    text, n_rows = before.text + piece.size, len(parsed.labels)
    source.done = SourceProgress(
        text, before.lines + parsed.n_lines, before.rows + n_rows, before.skipped + parsed.n_errors,
        piece.tail[-text:] if text < TAIL else piece.tail, max(0, before.skip - n_rows),
    )  # fmt: skip
    yield source, converted


_TORN = " (the last line has no line end: something stopped in its middle)"


def parse_sources(
    sources: Sequence[Source], pool: ThreadPoolExecutor, *, ahead: int, **options: Any
) -> Iterator[tuple[Source, ParsedText]]:
    """Yield the pieces as they were parsed; see `convert_sources`."""
    return convert_sources(sources, pool, ParsedText.copy, ahead=ahead, **options)
