"""Text that is not all there yet: pipes, growing files, and where to resume in them."""

import contextlib
import fcntl
import os
import select
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sbm.errors import DataError

__all__ = [
    "TAIL", "Interruptible", "LiveFile", "Patience", "Readable", "SourceProgress", "go_to",
    "is_pipe",
]  # fmt: skip

TAIL = 256  # bytes of text by which a place in it is known again
_NAP = 0.05  # seconds between two looks
_LONG = 0.2  # seconds after which it is said that nothing comes
_PIPE_BYTES = 1 << 20  # what a pipe is asked to hold, so that its two ends take turns less often


class Readable(Protocol):
    """What text is read from."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer; 0 is the end, None that there is nothing for now."""


@dataclass(frozen=True)
class SourceProgress:
    """How far a source has been read: a place between two lines, and rows taken behind it.

    Attributes
    ----------
    text, lines, rows, skipped : int
        Bytes, lines, rows and refused lines in front of the place.
    tail : bytes
        The last of these bytes, `TAIL` at most.
    skip : int
        Rows behind the place that are taken, too.
    """

    text: int = 0
    lines: int = 0
    rows: int = 0
    skipped: int = 0
    tail: bytes = b""
    skip: int = 0


@dataclass
class Patience:
    """How long to wait for text.

    Attributes
    ----------
    follow : bool
        Wait for more at the end of the last file.
    idle_timeout : float, optional
        Seconds without any text that are taken for the end; default: wait for ever.
    is_over : callable
        Whether to end now, whatever may come.
    gave_up : bool
        Whether it came to its end before the text did.
    """

    follow: bool = False
    idle_timeout: float | None = None
    is_over: Callable[[], bool] = lambda: False
    gave_up: bool = False
    _last: float = field(default_factory=time.monotonic, init=False)

    def came(self) -> None:
        """Note that there was some text."""
        self._last = time.monotonic()

    def ends(self, idle: bool = False) -> bool:
        """Whether to wait no longer; noted in `gave_up`.

        Parameters
        ----------
        idle : bool
            Whether there is nothing to read at the moment.
        """
        timeout = self.idle_timeout
        late = idle and timeout is not None and time.monotonic() - self._last >= timeout
        self.gave_up |= late or self.is_over()
        return self.gave_up


def is_pipe(file: Any) -> bool:
    """Whether a file gives its bytes once, and perhaps later."""
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (OSError, AttributeError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


class LiveFile:
    """A pipe, or a file that grows, read without being held up by it.

    Parameters
    ----------
    file : unbuffered binary file
    name : str
    patience : Patience
    follow : bool
        Wait for more at the end of a file. One that is renamed away or cut is at its end once it is
        read.

    Attributes
    ----------
    was_replaced : bool
        Whether another file is in its place.
    """

    def __init__(self, file: Any, name: str, patience: Patience, follow: bool = False) -> None:
        self._file, self._name, self._patience = file, name, patience
        self._follow = follow
        self._is_pipe = is_pipe(file)
        self._in_line = False  # whether a line has begun, and not ended
        self.was_replaced = False
        patience.came()
        if self._is_pipe:
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(file.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer with what is there; None after a while in which nothing came."""
        begin = time.monotonic()
        while not self._patience.ends():
            n = self._try(buffer)
            if n is not None:
                self._patience.came()
                self._in_line = n > 0 and buffer[n - 1] != ord("\n")
                return n
            if self._patience.ends(idle=True):
                break
            if time.monotonic() - begin > _LONG:
                return None
        return self._end_line(buffer) if self._is_pipe else 0

    def _end_line(self, buffer: memoryview) -> int:
        """Read a line that has begun to its end, for the next reader to find whole lines."""
        n = 0
        while self._in_line and n < len(buffer) and select.select([self._file], [], [], _LONG)[0]:
            if not self._file.readinto(buffer[n : n + 1]):
                break
            self._in_line = buffer[n] != ord("\n")
            n += 1
        return n

    def _try(self, buffer: memoryview) -> int | None:
        """Read once; None if there is nothing now, after a short wait."""
        if self._is_pipe:
            ready, _, _ = select.select([self._file], [], [], _NAP)
            return (self._file.readinto(buffer) or 0) if ready else None
        n = self._file.readinto(buffer)
        if n or not self._follow:
            return n or 0
        if self._is_replaced():
            n = self._file.readinto(buffer)  # what was written before it was renamed
            self.was_replaced = not n
            return n or 0
        time.sleep(_NAP)
        return None

    def _is_replaced(self) -> bool:
        here = os.fstat(self._file.fileno())
        try:
            there = os.stat(self._name)
        except OSError:  # for now there is none
            return False
        other = (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)
        return other or there.st_size < self._file.tell()


class Interruptible:
    """A stream of which no more is read once patience is at its end."""

    def __init__(self, stream: Readable, patience: Patience) -> None:
        self._stream, self._patience = stream, patience

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read on, or say that this is the end."""
        return 0 if self._patience.ends() else self._stream.readinto(buffer)


class _LineEnd:
    """A stream that must go on with a line end, as what came before was taken for a whole line."""

    def __init__(self, stream: Readable, name: str, line: int) -> None:
        self._stream, self._name, self._line = stream, name, line
        self._is_first = True

    def readinto(self, buffer: memoryview, /) -> int | None:
        n = self._stream.readinto(buffer)
        if n and self._is_first and buffer[0] not in b"\r\n":
            raise DataError(
                f"{self._name}:{self._line}: the line had no line end when it was learned, and has "
                "gone on since"
            )
        self._is_first = self._is_first and not n
        return n


def go_to(
    place: SourceProgress, stream: Readable, name: str, patience: Patience, file: Any = None
) -> Readable:
    """Pass over the text in front of a place, and return the stream, to be read on from there.

    If patience ends on the way, nothing more comes of the stream.

    Parameters
    ----------
    place : SourceProgress
    stream : Readable
        At its beginning.
    name : str
        For the error message.
    patience : Patience
    file : binary file, optional
        The same stream where it can be told to go to a position.

    Raises
    ------
    DataError
        It is another text, or its last line has grown since.
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
            f"{name} is not the text that was learned from before, its first {place.text} bytes "
            "differ; give the text that is new in a file of its own"
        )
    is_open = place.tail[-1:] not in (b"", b"\n")
    return _LineEnd(stream, name, place.lines) if is_open else stream
