"""Reading text from files, compressed files and pipes, in pieces of whole lines."""

from __future__ import annotations

import bisect
import contextlib
import glob
import hashlib
import io
import os
import re
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

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
    is_idle,
    is_pipe,
    wait_for_data,
)
from sbm.inputs.options import InputOptions
from sbm.inputs.packed import MAGIC, USUAL, Unpacked, WindowError, errors, is_packed
from sbm.inputs.parsing import SPARE, ParsedText, Room, TextParser
from sbm.inputs.urls import Terms, current_terms, is_remote, without_query
from sbm.plain import dataclass
from sbm.store.container import Buffers
from sbm.store.manifest import MANIFEST
from sbm.units import format_size

PIECE = 2 << 20  # bytes of text that there is room for; results do not depend on it
_SHARE = 4  # a piece is this part of it, to stay in the cache of a core with its rows
_LOOKED = 32 << 20  # bytes of text that may be parsed twice to find a value that float32 changes
LARGEST_LINE = 64 << 20  # bytes, without a bound on the memory

T = TypeVar("T")
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass
class Source:
    """An input and the progress of reading it."""

    name: str  # as given on the command line; ``-`` is standard input
    size: int = 0  # bytes on disk, compressed or not; 0 if unknown
    # read, parsed: bytes on disk read so far, and those covered by the pieces yielded
    read: int = 0
    parsed: int = 0
    # done, before: positions after and before the piece yielded last. If `done` is set before
    # reading, reading starts there.
    done: SourceProgress = field(default_factory=SourceProgress)
    before: SourceProgress = field(default_factory=SourceProgress)
    sha256: str = ""  # digest of the bytes on disk, set when the end is reached
    problems: list[str] = field(default_factory=list)  # messages about the first invalid lines
    # message about a line that is blank or only a comment, and may be a row without features
    unclear: str = ""
    has_bare_rows: bool = False  # whether there are rows without a label
    changed: str = ""  # message about the first whole number that the type of the values changes
    is_open: bool = False  # whether the last line has no line end
    was_replaced: bool = False  # whether a followed file has been replaced by another one
    # rows in memory, instead of a file; see `sbm.inputs.matrices`
    chunks: Iterable[Any] | None = None
    format: str = "libsvm"  # a key of `FORMATS` (`sbm/inputs/formats.py`)
    options: InputOptions = field(default_factory=InputOptions)
    is_sparse: bool = False  # whether a file of records holds lists of feature ids
    reader_bytes: int = 0  # bytes that its reader holds in memory, besides those of the format
    had_library: bool | None = None  # whether the library of its format was loaded at the begin
    copy: Any = None  # local copy of a remote file
    terms: Terms = field(default_factory=current_terms)  # how to read a remote file
    is_over: bool = False  # whether to stop waiting for a server or a pipe
    window: int = USUAL  # bytes that a decompressor may take for its window
    most_rows: int = 0  # rows of a file that are decoded at a time; 0 if there is no bound
    is_peeked: bool = False  # whether its rows are not kept, so that it needs no digest
    # names of further files that are read as one text with the first, separated by zeros
    more: bytes = b""
    title: str = ""  # name in the manifest, if not that of the file
    now: str = ""  # the one of these files that is read
    # lines up to the end of each of these files
    ends: array[int] = field(default_factory=lambda: array("q"))

    @property
    def files(self) -> list[str]:
        """Names of all its files."""
        return [self.name, *map(os.fsdecode, self.more.split(b"\0"))] if self.more else [self.name]

    @property
    def comes_again(self) -> bool:
        """Whether it can be read a second time."""
        if self.chunks is not None:
            is_iterator = hasattr(self.chunks, "__next__") or hasattr(
                self.chunks, "read_next_batch"
            )
            return not is_iterator
        return self.name != "-" and (is_remote(self.name) or os.path.isfile(self.name))

    def again(self) -> Source:
        """Return an unread copy."""
        return Source(
            self.name, self.size, chunks=self.chunks, format=self.format, options=self.options,
            is_sparse=self.is_sparse, reader_bytes=self.reader_bytes, copy=self.copy,
            most_rows=self.most_rows, had_library=self.had_library,
            window=self.window, more=self.more, title=self.title, terms=self.terms,
        )  # fmt: skip

    @property
    def file(self) -> str:
        """Name of the local file."""
        return self.name if self.copy is None else str(self.copy.name)

    @property
    def shown(self) -> str:
        """Name for messages."""
        return "standard input" if self.name == "-" else self.now or self.name

    def at(self, line: int) -> str:
        """Return the position of a line, for messages."""
        if self.more:
            number = bisect.bisect_left(self.ends, line)
            before = self.ends[number - 1] if number else 0
            return f"{self.files[number]}:{line - before}"
        return f"{self.shown}, line {line}" if self.name == "-" else f"{self.name}:{line}"

    @property
    def path(self) -> str:
        """Absolute path without links; ``-`` for standard input."""
        as_it_is = self.name == "-" or is_remote(self.name)
        return self.name if as_it_is else os.path.realpath(self.name)

    def describe(self) -> dict[str, Any]:
        """Return the entry for the manifest."""
        return {
            "name": "-" if self.name == "-" else self.title or Path(without_query(self.name)).name,
            "bytes": self.read,
            "sha256": self.sha256,
            "rows": self.done.rows,
            "skipped": self.done.skipped,
            **({} if self.format == "libsvm" else {"format": self.format}),
            **({"files": len(self.files)} if self.more else {}),
        }


def expand_inputs(inputs: Sequence[str | Path]) -> list[Source]:
    """Turn names and glob patterns into sources, in the order given; see `expand_names`."""
    names = expand_names(inputs)
    return [Source(name, size_of(name)) for name in names]


def size_of(name: str) -> int:
    """Return the bytes of a file, local or not; 0 for standard input."""
    if is_remote(name):
        from sbm.inputs.remote import remote_size

        return remote_size(name)
    return 0 if name == "-" else os.path.getsize(name)


def expand_names(inputs: Sequence[str | Path]) -> list[str]:
    """Turn names and glob patterns into names of files, in the order given.

    A folder stands for the Parquet and Feather files in it.

    Raises `DataError` if a file is missing, or a pattern or folder has no files.
    """
    found = []
    for name in map(str, inputs):
        if is_remote(name):
            from sbm.inputs.remote import find_remote

            found += find_remote(name)
            continue
        is_there = name == "-" or os.path.exists(name)
        names = [name] if is_there else sorted(glob.iglob(name, recursive=True))
        if not names:
            expected = "files, glob patterns, or - for standard input"
            if re.match(r"[a-z][a-z0-9+.-]+:/[^/]", name, re.IGNORECASE):
                expected = "a file; give a URL as a string, with two slashes, not as a Path"
            raise DataError(f"{name} does not exist; expected {expected}")
        for path in names:
            found += _files_in(path) if os.path.isdir(path) else [path]
    return found


_TABLES = (".parquet", ".pq", ".feather", ".arrow", ".ipc")  # files that come in folders


def _files_in(folder: str) -> list[str]:
    """Return the tables in a folder and its subfolders, in the order of their names.

    Raises `DataError` if there are none.
    """
    names = sorted(glob.glob(os.path.join(glob.escape(folder), "**", "*"), recursive=True))
    files = [name for name in names if name.endswith(_TABLES) and os.path.isfile(name)]
    if os.path.exists(os.path.join(folder, MANIFEST)):
        raise DataError(f"{folder} is a store; sbm cat {folder} writes its rows as text")
    if not files:
        raise DataError(
            f"{folder} is a folder without Parquet or Feather files; give the files in it, as in "
            f"{folder}/*"
        )
    return files


class _Digested:
    """A file that counts and hashes the bytes read from it."""

    def __init__(self, file: io.RawIOBase | io.BufferedIOBase, source: Source) -> None:
        self._file = file
        self._source = source
        self._hash = None if source.is_peeked else hashlib.sha256()

    def readinto(self, buffer: Any) -> int:
        n = self._file.readinto(buffer) or 0
        if self._hash is not None:
            self._hash.update(memoryview(buffer)[:n])
        self._source.read += n
        return int(n)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size) or b""
        if self._hash is not None:
            self._hash.update(data)
        self._source.read += len(data)
        return data

    def go_to(self, file: io.RawIOBase | io.BufferedIOBase) -> None:
        """Continue with another file."""
        self._file = file

    def finish(self) -> None:
        """Give the source the digest of all its bytes, unless it needs none."""
        if self._hash is None:
            return
        room = memoryview(bytearray(1 << 20))
        while _fill(self._source, self, room):
            pass  # bytes that the decompressor did not read belong to the digest, too
        self._source.sha256 = self._hash.hexdigest()


class _Files:
    """The text of all files of a source; each is made to end with a line end."""

    def __init__(self, source: Source) -> None:
        self._source, self._names = source, iter(source.files)
        self._file: Any = io.BytesIO()
        self.digested = _Digested(self._file, source)
        self._stream: Readable | None = None
        self._lines, self._is_first, self._in_line = 0, True, False

    def readinto(self, buffer: memoryview, /) -> int:
        while self._stream is not None or self._open_next():
            assert self._stream is not None
            if n := self._stream.readinto(buffer) or 0:
                text = np.frombuffer(buffer, np.uint8, n)
                if self._is_first:
                    _check_begin(self._source, text)
                self._is_first, self._in_line = False, bool(text[-1] != ord("\n"))
                self._lines += int(np.count_nonzero(text == ord("\n")))
                return n
            self._stream = None
            self._lines += self._in_line
            self._source.ends.append(self._lines)
            if self._in_line:
                self._in_line, buffer[0] = False, ord("\n")
                return 1
        return 0

    def _open_next(self) -> bool:
        """Open the next file; return whether there is one."""
        self.close()
        self._source.now = next(self._names, "")
        if self._source.now:
            self._file = io.FileIO(self._source.now)
            self.digested.go_to(self._file)
            self._stream, self._is_first = _unpack(self.digested, self._source), True
        return self._stream is not None

    def close(self) -> None:
        self._file.close()
        self.digested.go_to(io.BytesIO())


class _CountedFile:
    """A live file that counts the bytes read from it."""

    def __init__(self, file: LiveFile, source: Source) -> None:
        self._file, self._source = file, source

    def readinto(self, buffer: memoryview, /) -> int | None:
        n = self._file.readinto(buffer)
        self._source.read += n or 0
        self._source.was_replaced = self._file.was_replaced
        return n


@dataclass
class _TextPiece:
    source: Source
    text: Bytes
    size: int
    read: int  # bytes on disk read when the piece was complete
    tail: bytes  # last bytes of the text up to the end of the piece
    open_line: int = 0  # number of the last line if it has no line end


def _read_pieces(
    source: Source,
    buffers: Buffers,
    largest_line: int | None,
    patience: Patience | None,
    is_last: bool,
) -> Generator[_TextPiece]:
    """Yield the text of a source in pieces of whole lines; empty pieces while it is idle."""
    raw = _Files(source) if source.more else _open(source, patience)
    try:
        stream: Readable
        if isinstance(raw, _Files):
            stream, digested = raw, raw.digested
        else:
            digested = _Digested(raw, source)
            stream = _unpack(digested, source)
        if patience is not None:
            is_plain_file = not (is_packed(source.name) or is_remote(source.name))
            stream = _resumed(source, raw, None if is_plain_file else stream, patience, is_last)
        is_first = source.done.text == 0 and not source.more
        for piece in _cut(source, stream, buffers, largest_line, patience):
            if is_first and piece.size:
                _check_begin(source, piece.text[: piece.size])
                is_first = False
            yield piece
        if patience is None:
            digested.finish()
    finally:
        if source.name != "-":
            raw.close()


@contextlib.contextmanager
def unpacked(source: Source) -> Iterator[_Unpacked]:
    """Open a source for one sequential read of its decompressed bytes.

    The source receives the bytes read on disk and, at the end, their digest.

    Raises
    ------
    DataError
        The file is damaged; raised while reading.
    """
    raw = _open(source, None)
    try:
        digested = _Digested(raw, source)
        yield _Unpacked(source, _unpack(digested, source), is_packed(source.name), raw)
        if not source.is_over:
            digested.finish()
    finally:
        if source.name != "-":
            raw.close()


def _unpack(digested: _Digested, source: Source) -> Readable:
    """Return the stream of a source's text, which may be compressed."""
    name = source.now or source.name
    return Unpacked(digested.read, name, source.window) if is_packed(name) else digested


def _check_begin(source: Source, text: Bytes) -> None:
    """Refuse compressed data without its ending, and blank out a byte order mark."""
    if not is_packed(source.now or source.name):
        _refuse_compressed(source.shown, text[:6].tobytes())
    if text[: len(_BOM)].tobytes() == _BOM:
        text[: len(_BOM)] = ord(" ")


class _Unpacked(io.RawIOBase):
    """The stream of a source as a raw file of the io module."""

    def __init__(self, source: Source, stream: Readable, is_packed: bool, raw: Any) -> None:
        self._source, self._stream, self._is_known = source, stream, is_packed
        self._raw, self.n_lines = raw, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not is_packed(self._source.name) and not wait_for_data(self._raw, self._is_over):
            return 0
        n = _fill(self._source, self._stream, memoryview(buffer)) or 0
        if not self._is_known:
            _refuse_compressed(self._source.shown, bytes(memoryview(buffer)[: min(n, 6)]))
            self._is_known = True
        if self.is_pipe:
            text = np.frombuffer(buffer, np.uint8, n)
            self.n_lines += int(np.count_nonzero(text == ord("\n")))
        return n

    def _is_over(self) -> bool:
        return self._source.is_over

    @property
    def is_pipe(self) -> bool:
        """Whether text comes from a pipe, which may be idle."""
        return bool(is_pipe(self._raw))

    def is_idle(self, n_lines: int) -> bool:
        """Whether this is a pipe, all its `n_lines` lines were taken, and no data is ready."""
        return n_lines >= self.n_lines and is_idle(self._raw)


def _open(source: Source, patience: Patience | None) -> Any:
    """Open an input; with patience, do not wait for a writer of a named pipe."""
    name = source.name
    if name == "-":
        if sys.stdin is None:
            raise DataError("standard input is closed; give file names, or pipe text into it")
        return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)  # which waits for no full buffer
    if is_remote(name):
        from sbm.inputs.remote import RemoteFile

        return RemoteFile(
            name, lambda: source.is_over or (patience is not None and patience.ends()), source.terms
        )
    if patience is None:
        return open(name, "rb", buffering=0)
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb", 0)


def _resumed(
    source: Source, raw: Any, unpacked: Readable | None, patience: Patience, is_last: bool
) -> Readable:
    """Return the text of a source from the saved position on."""
    live = LiveFile(raw, source.name, patience, follow=patience.follow and is_last)
    stream = Interruptible(unpacked, patience) if unpacked else _CountedFile(live, source)
    if not source.done.text:
        return stream
    return go_to(source.done, stream, source.name, patience, None if unpacked else raw)


_BOM = b"\xef\xbb\xbf"  # of UTF-8


def _refuse_compressed(shown: str, begin: bytes) -> None:
    """Raise `DataError` if text begins like compressed data."""
    for magic, kind in MAGIC.items():
        if begin.startswith(magic):
            raise DataError(
                f"{shown}: found {kind} data; decompress it first (zcat, zstdcat), or use a "
                "file name that ends in .gz, .bz2, .xz or .zst"
            )


def _cut(
    source: Source,
    stream: Readable,
    buffers: Buffers,
    largest_line: int | None,
    patience: Patience | None,
) -> Iterator[_TextPiece]:
    capacity = usual = max(1, PIECE // _SHARE)
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
                yield piece(end)  # rows before the damage are still learned
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
            if capacity > (largest_line or LARGEST_LINE):
                reason = "does not fit in --mem; raise --mem"
                if largest_line is None:
                    reason = "is the longest that can be read here; use a store (sbm split --mem)"
                raise DataError(
                    f"{source.at(source.done.lines + 1)} or later: found a line longer than "
                    f"{capacity // 2} bytes, which {reason}"
                )
            longer = buffers.take(capacity + SPARE, np.uint8)
            longer[:size] = text[:size]
            text = longer
            continue
        if n == 0 and end < size and not source.comes_again:
            source.problems.append(f"{source.shown}: the last line is incomplete")
        capacity = usual
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
    except WindowError as error:
        raise DataError(
            f"{source.shown}: decompressing it takes a window of {format_size(error.size)}, more "
            "than memory was planned for; decompress it first (zstdcat --long=31, xzcat)"
        ) from error
    except errors() as error:
        raise DataError(f"{source.shown}: {_reason(source, error)}") from error


def _reason(source: Source, error: Exception) -> str:
    """Return why an input cannot be read, as far as is known."""
    name = source.now or source.name
    ending = Path(name).suffix
    if is_packed(name) and os.path.isfile(name):
        with open(name, "rb") as file:
            begin = file.read(6)
        if not begin.startswith(tuple(MAGIC)):
            return f"the file is not compressed; rename it without {ending}"
    return (
        f"cannot read after byte {source.read} ({error}); the file is damaged, or its name has the "
        "wrong ending"
    )


def _last_newline(text: Bytes, size: int) -> int:
    """Return the position after the last newline, or 0 if there is none."""
    step = 1 << 16
    for end in range(size, 0, -step):
        begin = max(0, end - step)
        found = np.flatnonzero(text[begin:end] == 10)
        if len(found):
            return begin + int(found[-1]) + 1
    return 0


def one_ahead(pieces: Iterator[T], source: Source) -> Generator[T]:
    """Yield the same pieces of a source, prepared one ahead in a thread.

    Close the generator if it is not exhausted. Otherwise the garbage collector closes it, at any
    time and in any thread, and waits there for the reader, which may deadlock.
    """
    with ThreadPoolExecutor(1, "sbm-read") as reader:
        try:
            coming = reader.submit(next, pieces, None)
            while (piece := coming.result()) is not None:
                coming = reader.submit(next, pieces, None)
                yield piece
        finally:
            source.is_over = True


class _Parser(Generic[T]):
    """Parses pieces of text in threads; each thread has its own arrays."""

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
        """Return the parsed rows, of which only counts and errors stay valid, and the result."""
        room = getattr(self._local, "room", None)
        if room is None:
            room = self._local.room = Room(PIECE + 1, self._dtype)
        source = piece.source
        parsed = self._parse(
            piece.text, piece.size, dtype=self._dtype, skip=self._skip, room=room,
            look=not source.changed and source.done.text < _LOOKED,
        )  # fmt: skip
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
    largest_line: int | None = None,
    reasons: Sequence[str] = REASONS,
    patience: Patience | None = None,
) -> Generator[tuple[Source, T]]:
    """Parse sources in threads, convert the pieces there, and yield them in order.

    Parameters
    ----------
    sources : sequence of Source
        Their counters are updated as pieces are yielded.
    pool : ThreadPoolExecutor
        Threads for parsing.
    convert : callable
        Converts a parsed piece to what is yielded. The arrays of the piece are valid until it
        returns.
    ahead : int
        Half the number of pieces in flight.
    parse : TextParser
        Parser of the format.
    dtype : {"float32", "float64"}
        Type of the values.
    skip : bool
        Skip invalid lines and note them in the source, instead of raising.
    largest_line : int, optional
        Maximum length of a line in bytes that fits in ``--mem``. Default: `LARGEST_LINE`.
    reasons : sequence of str
        Error messages by the codes of `TextError`.
    patience : Patience, optional
        How long to wait for more text. Sources are then read from their saved positions, empty
        pieces mean that no text came for a while, and a followed file that is replaced continues
        as a new source of the same name.

    Raises
    ------
    DataError
        A line is invalid (``file:line: found, expected``), or a source cannot be read.
    """
    buffers = Buffers(PIECE + SPARE)
    task = _Parser(buffers, parse, convert, dtype, skip)
    flight: deque[tuple[_TextPiece, Future[tuple[ParsedText, T]]]] = deque()
    coming = deque(sources)
    while coming and not (patience is not None and patience.gave_up):
        source = coming.popleft()
        pieces = _read_pieces(source, buffers, largest_line, patience, is_last=not coming)
        if patience is not None or source.comes_again:
            # Not for pipes: a thread blocked in a read cannot be stopped.
            pieces = one_ahead(pieces, source)
        broken = None
        with _closed(pieces, patience):
            while True:
                try:
                    piece = next(pieces, None)
                except DataError as error:  # raised after the pieces before it
                    piece, broken = None, error
                if piece is None:
                    break
                flight.append((piece, pool.submit(task, piece)))
                while len(flight) > (2 * ahead if piece.size else 0):
                    yield from _take(*flight.popleft(), skip, reasons)
            while flight:  # complete a source's counters before the next one
                yield from _take(*flight.popleft(), skip, reasons)
            if source.unclear and not source.done.rows:  # there is nothing but blank lines
                broken = broken or DataError(source.unclear)
        if broken is not None:
            raise broken
        if source.was_replaced:
            coming.append(Source(source.name))


@contextlib.contextmanager
def _closed(pieces: Generator[_TextPiece], patience: Patience | None) -> Iterator[None]:
    """Close the generator of pieces at the end; after an error, stop waiting for text."""
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
    task: Future[tuple[ParsedText, T]],
    skip: bool,
    reasons: Sequence[str],
) -> Iterator[tuple[Source, T]]:
    """Update the counters and yield the result of a piece, then raise if a line is invalid."""
    source, (parsed, converted) = piece.source, task.result()
    before = source.before = source.done
    _note_lines(source, parsed)
    refused = [
        f"{source.at(before.lines + error.line)}: {error.explain(reasons)}"
        + (f". {error.hint}" if error.hint else "")
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


def _note_lines(source: Source, parsed: ParsedText) -> None:
    """Refuse lines that may or may not be rows without features, among rows without labels.

    Raises
    ------
    DataError
        The text has such a line and a row without a label.
    """
    notes, before = parsed.notes, source.done
    if not source.changed and parsed.changed:
        source.changed = f"{source.at(before.lines + notes.changed)}: {parsed.changed}"
    may_lack = source.options.labels is not True
    comment = (before.rows and notes.comment) or notes.later_comment
    found = {notes.blank: "a blank line", comment: "a line with only a comment"}
    lines = sorted(filter(None, found))
    if may_lack and lines and not source.unclear:
        leave = "" if found[lines[0]] == "a blank line" else "leave it blank and "
        source.unclear = (
            f"{source.at(before.lines + lines[0])}: found {found[lines[0]]} where rows have no "
            f"labels, so it may be a row without features. Remove it, or {leave}use --no-labels "
            "to read it as a row"
        )
    source.has_bare_rows |= notes.bare > 0
    if source.unclear and source.has_bare_rows:
        raise DataError(source.unclear)


_TORN = " (the last line has no line end, so the text may be truncated)"
