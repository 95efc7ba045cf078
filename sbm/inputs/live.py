"""Reading pipes and growing files without blocking, and resuming at saved positions."""

import contextlib
import fcntl
import os
import select
import stat
import time
from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol

from sbm.errors import DataError
from sbm.plain import dataclass

TAIL = 256  # bytes before a saved position that must match on resume
_NAP = 0.05  # seconds between two polls
_LONG = 0.2  # seconds after which a read without data returns None
_SHORT = 0.005  # the same right after data, if `Patience.prompt`
_PIPE_BYTES = 1 << 20  # requested pipe size; a larger one means fewer context switches


class Readable(Protocol):
    """A stream of text."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer and return the bytes read: 0 at the end, None if no data is ready."""


@dataclass(frozen=True)
class SourceProgress:
    """How far a source has been read: a position between two lines."""

    # text, lines, rows, skipped: bytes, lines, rows and invalid lines before the position
    text: int = 0
    lines: int = 0
    rows: int = 0
    skipped: int = 0
    tail: bytes = b""  # the last of these bytes, at most `TAIL`
    skip: int = 0  # rows after the position that were taken already


@dataclass
class Patience:
    """How long to wait for text."""

    follow: bool = False  # wait for more text at the end of the last file
    # seconds without text after which to stop. Default: wait forever.
    idle_timeout: float | None = None
    is_over: Callable[[], bool] = lambda: False  # returns whether to stop now
    gave_up: bool = False  # whether waiting stopped before the end of the text
    # whether a reader waits for each row: after data, two reads without new data return None soon.
    # The first one ends a piece of text, and the second one the wait for more pieces.
    prompt: bool = False
    _last: float = field(default_factory=time.monotonic, init=False)

    def came(self) -> None:
        """Restart the idle timeout, after text came."""
        self._last = time.monotonic()

    def ends(self, idle: bool = False) -> bool:
        """Return whether to stop waiting, and set `gave_up` accordingly.

        Parameters
        ----------
        idle : bool
            Whether no data is ready.
        """
        timeout = self.idle_timeout
        late = idle and timeout is not None and time.monotonic() - self._last >= timeout
        self.gave_up |= late or self.is_over()
        return self.gave_up


def is_idle(file: Any, seconds: float = _SHORT) -> bool:
    """Whether a file is a pipe that has no data for some seconds, and is not at its end."""
    return is_pipe(file) and not select.select([file], [], [], seconds)[0]


def wait_for_data(file: Any, is_over: Callable[[], bool]) -> bool:
    """Wait until a file has data or ends; return whether it did before `is_over`."""
    while is_idle(file, _NAP):
        if is_over():
            return False
    return True


def is_pipe(file: Any) -> bool:
    """Whether a file is a pipe, socket or character device."""
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (OSError, AttributeError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


class LiveFile:
    """A pipe or a growing file, read without blocking.

    Parameters
    ----------
    follow : bool
        Wait for more text at the end of a file, unless it was renamed or truncated.

    Attributes
    ----------
    was_replaced : bool
        Whether another file has taken its place.
    """

    def __init__(self, file: Any, name: str, patience: Patience, follow: bool = False) -> None:
        self._file, self._name, self._patience = file, name, patience
        self._follow = follow
        self._is_pipe = is_pipe(file)
        self._in_line = False  # whether the last line read is incomplete
        self._n_idle = 2  # reads without data since the last data
        self.was_replaced = False
        patience.came()
        if self._is_pipe:
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(file.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer with the data that is ready; return None after a while without data."""
        begin, most = time.monotonic(), _LONG
        if self._patience.prompt and self._n_idle < 2:
            most = 0.0 if self._n_idle else _SHORT
        while not self._patience.ends():
            n = self._try(buffer, min(most, _NAP))
            if n is not None:
                self._n_idle = 0
                self._patience.came()
                self._in_line = n > 0 and buffer[n - 1] != ord("\n")
                return n
            if self._patience.ends(idle=True):
                break
            if time.monotonic() - begin >= most:
                self._n_idle += 1
                return None
        return self._end_line(buffer) if self._is_pipe else 0

    def _end_line(self, buffer: memoryview) -> int:
        """Read the rest of an incomplete line, so that the next reader starts at a line."""
        n = 0
        while self._in_line and n < len(buffer) and select.select([self._file], [], [], _LONG)[0]:
            if not self._file.readinto(buffer[n : n + 1]):
                break
            self._in_line = buffer[n] != ord("\n")
            n += 1
        return n

    def _try(self, buffer: memoryview, nap: float) -> int | None:
        """Read once; after a short wait, return None if no data is ready."""
        if self._is_pipe:
            ready, _, _ = select.select([self._file], [], [], nap)
            return (self._file.readinto(buffer) or 0) if ready else None
        n = self._file.readinto(buffer)
        if n or not self._follow:
            return n or 0
        if self._is_replaced():
            n = self._file.readinto(buffer)  # written just before it was renamed
            self.was_replaced = not n
            return n or 0
        time.sleep(_NAP)
        return None

    def _is_replaced(self) -> bool:
        here = os.fstat(self._file.fileno())
        try:
            there = os.stat(self._name)
        except OSError:  # no file with this name at the moment
            return False
        other = (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)
        return other or there.st_size < self._file.tell()


class Interruptible:
    """A stream that ends when patience ends."""

    def __init__(self, stream: Readable, patience: Patience) -> None:
        self._stream, self._patience = stream, patience

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer; return 0 once patience has ended."""
        if self._patience.ends():
            return 0
        try:
            return self._stream.readinto(buffer)
        except KeyboardInterrupt:  # of a remote file, which was waiting
            if self._patience.ends():
                return 0
            raise


class _LineEnd:
    """A stream that must begin with a line end, because the text before was read as a line."""

    def __init__(self, stream: Readable, name: str, line: int) -> None:
        self._stream, self._name, self._line = stream, name, line
        self._is_first = True

    def readinto(self, buffer: memoryview, /) -> int | None:
        n = self._stream.readinto(buffer)
        if n and self._is_first and buffer[0] not in b"\r\n":
            raise DataError(
                f"{self._name}:{self._line}: the line was learned without a line end and has grown "
                "since; start over without --resume"
            )
        self._is_first = self._is_first and not n
        return n


def go_to(
    place: SourceProgress, stream: Readable, name: str, patience: Patience, file: Any = None
) -> Readable:
    """Skip the text before a saved position and return the stream for reading from there.

    If patience ends meanwhile, the stream is at its end.

    Parameters
    ----------
    stream : Readable
        At its beginning.
    name : str
        For error messages.
    file : binary file, optional
        The same stream, if it is seekable.

    Raises
    ------
    DataError
        The text before the position differs, or its last line has grown since.
    """
    left = place.text
    if file is not None:
        file.seek(place.text - len(place.tail))
        left = len(place.tail)
    tail, room = b"", memoryview(bytearray(1 << 16))
    while left:
        n = stream.readinto(room[: min(left, len(room))])
        if n == 0:
            break
        left -= n or 0
        tail = (tail + bytes(room[: n or 0]))[-TAIL:]
    if left and patience.gave_up:
        return stream
    if left or tail[len(tail) - len(place.tail) :] != place.tail:
        raise DataError(
            f"{name} has changed: its first {place.text} bytes are not the ones learned before; "
            "put new text in a separate file"
        )
    is_open = place.tail[-1:] not in (b"", b"\n")
    return _LineEnd(stream, name, place.lines) if is_open else stream
