"""Standard output and standard error: results go to the one, all else to the other."""

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from sbm.errors import SbmError

__all__ = ["complain", "echo", "is_flushed", "streams"]

# Control characters of a name could move the cursor of a terminal, or worse.
_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(32), *range(128, 160)) if c != ord("\n")}


def echo(text: str) -> None:
    """Print a result on standard output.

    Raises
    ------
    SbmError
        It cannot be printed: nobody would notice that a result is missing.
    """
    try:
        if sys.stdout is None:
            raise SbmError("standard output is closed, so the result cannot be printed")
        print(text.translate(_CONTROLS), flush=True)
    except BrokenPipeError:
        raise  # whoever read it has gone
    except OSError as error:
        raise SbmError(f"cannot print the result: {error.strerror or error}") from error


def complain(text: str) -> None:
    """Tell something on stderr, which is not what anybody waits for: no error comes of it."""
    print(text.translate(_CONTROLS), file=sys.stderr, flush=True)


class _Steadfast:
    """Standard error that stops no work: what it does not take is not told."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _as_it_can(error: UnicodeError) -> tuple[bytes, int]:
    """Write the bytes of a file name as they are, and letters that a terminal lacks as escapes."""
    assert isinstance(error, UnicodeEncodeError)
    written = b""
    for letter in error.object[error.start : error.end]:
        if "\udc80" <= letter <= "\udcff":
            written += bytes([ord(letter) - 0xDC00])
        else:
            written += letter.encode("ascii", "backslashreplace")
    return written, error.end


codecs.register_error("sbm", _as_it_can)


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """See to it that printing does no harm."""
    for number in range(3):  # else the next file that is opened would be our standard output
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    ours = [s for s in (sys.stdout, sys.stderr) if isinstance(s, io.TextIOWrapper)]
    before = [(stream, stream.errors) for stream in ours]
    for stream in ours:
        stream.reconfigure(errors="sbm")
    stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  it lasts as long as we do
    sys.stderr = cast(TextIO, _Steadfast(stderr))
    try:
        yield
    finally:
        sys.stderr = stderr
        for stream, errors in before:
            with contextlib.suppress(OSError, ValueError):  # it flushes
                stream.reconfigure(errors=errors)


def is_flushed(stream: TextIO | None) -> bool:
    """Flush for the last time; where that fails, Python is not to try again."""
    if stream is None:
        return True
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
