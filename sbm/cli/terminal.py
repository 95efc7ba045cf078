"""Progress on stderr: a bar on a terminal, a line now and then elsewhere, a table of passes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TextIO, cast

from sbm.engine.progress import Progress
from sbm.errors import SbmError
from sbm.settings import format_size

__all__ = [
    "INTERRUPTED", "Bars", "complain", "echo", "is_flushed", "stop_signals", "stoppable",
    "streams",
]  # fmt: skip


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


class _SafeStderr:
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


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """See to it that printing does no harm."""
    for number in range(3):  # else the next file that is opened would be our standard output
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  it lasts as long as we do
    sys.stderr = cast(TextIO, _SafeStderr(stderr))
    try:
        yield
    finally:
        sys.stderr = stderr


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


INTERRUPTED = 130  # exit code
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT_SECONDS = 1.0  # a signal sooner than this after the first one is the same one again


class _StopHandler:
    """Answers Ctrl-C, SIGTERM and the end of the terminal.

    Attributes
    ----------
    is_asked : bool
        Whether the command asks for `is_set` now and then; else it is interrupted.
    is_set : bool
        Whether a signal has come.
    """

    def __init__(self) -> None:
        self.is_asked = self.is_set = False
        self._interrupted: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        is_noted = self.is_asked and not (self.is_set and number == signal.SIGINT)
        self.is_set = True
        if is_noted:
            return
        if self._interrupted is None:
            self._interrupted = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - self._interrupted > _REPEAT_SECONDS:
            with contextlib.suppress(OSError):
                os.write(2, b"sbm: stopped at once; the same command starts again\n")
            os._exit(INTERRUPTED)


_handler = _StopHandler()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let a signal end the work, and another one, that comes while it ends, the process.

    What is ignored stays so: that is how nohup and the shells keep signals from us.
    """
    global _handler
    _handler = _StopHandler()
    numbers = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, _handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a question; a second Ctrl-C interrupts."""
    handler = _handler
    handler.is_asked = True
    try:
        yield lambda: handler.is_set
    finally:
        handler.is_asked = False


_EVERY = 10  # seconds from a line to the next where there is no terminal
_DOUBLINGS = (
    "        rows        loss  since last  accuracy  since last   features     cached  seconds   "
    "memory"
)
_PASSES = (
    "pass  seconds    load    wait   solve    Mrows/s  Mnnz/s            dual  est. gap   cached"
    "     free    hits   memory"
)


class Bars(Progress):
    """Shows what a program tells while it works.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    verbose : bool
        Show notes, too.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose
        self._bar: Any = None
        self._titled = False
        self._passes_left: float | None = None

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        """Begin a bar, where somebody looks."""
        self._what, self._total, self._unit = what, total, unit
        self._begin = self._last = time.monotonic()
        self._size, self._row_count = 0, 0
        if self.quiet or not sys.stderr.isatty():
            return
        from tqdm import tqdm

        if what.startswith("pass ") and self._passes_left:
            what += f", about {max(1, round(self._passes_left))} to go"
        self._bar = tqdm(
            desc=what, total=total, unit=unit, unit_scale=unit == "B", leave=False,
            dynamic_ncols=True, file=sys.stderr,
        )  # fmt: skip

    def advance(self, done: int, **numbers: Any) -> None:
        """Move the bar, or write a line if the last one is some time ago."""
        self._size, self._row_count = done, numbers.get("rows", 0)
        if self._bar is not None:
            if self._row_count:
                shown = f"{self._row_count / self._seconds():,.0f} rows/s"
                if "memory" in numbers:
                    shown += f", memory {format_size(numbers['memory'])}"
                self._bar.set_postfix_str(shown, refresh=False)
            self._bar.update(done - self._bar.n)
        elif not self.quiet and time.monotonic() - self._last > _EVERY:
            self._last = time.monotonic()
            complain(self._line())

    def _seconds(self) -> float:
        return max(time.monotonic() - self._begin, 1e-9)

    def _line(self) -> str:
        seconds = self._seconds()
        amount = format_size(self._size) if self._unit == "B" else f"{self._size} {self._unit}"
        text = f"{self._what}: {amount}"
        if self._total:
            left = seconds * (self._total / max(self._size, 1) - 1)
            text += f" of {format_size(self._total) if self._unit == 'B' else self._total}"
            text += f", {100 * self._size / self._total:.0f} %, about {left:.0f} s left"
        if self._unit == "B":
            text += f", {format_size(self._size / seconds)}/s"
        if self._row_count:
            text += f", {self._row_count / seconds:,.0f} rows/s"
        return text

    def finish(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, text: str) -> None:
        """Show what only some want to know."""
        if self.verbose:
            complain(text)

    def stage(self, text: str) -> None:
        """Show what one of several stages came to."""
        self._tell(text)

    def wait(self, why: str) -> None:
        """Show why nothing will be seen for a while."""
        self._tell(why)

    def doubling(self, record: dict[str, Any]) -> None:
        """Add a line to the table of a stream."""
        self._add_line(_DOUBLINGS, _doubling_line(record))

    def row(self, record: dict[str, Any]) -> None:
        """Add a line to the table of passes."""
        self._passes_left = record.get("passes_left")
        self._add_line(_PASSES, _pass_line(record))

    def _add_line(self, title: str, line: str) -> None:
        if not self._titled:
            self._titled = True
            self._tell(title)
        self._tell(line)

    def _tell(self, text: str) -> None:
        if not self.quiet:
            complain(text)


def _doubling_line(record: dict[str, Any]) -> str:
    def number(name: str, width: int, share: bool = False) -> str:
        value = record[name]
        if value is None:
            return f"{'-':>{width}}"
        return f"{100 * value:{width - 2}.2f} %" if share else f"{value:{width}.6f}"

    return (
        f"{record['rows']:12,} {number('loss', 11)} {number('last_loss', 11)} "
        f"{number('accuracy', 9, True)} {number('last_accuracy', 11, True)} "
        f"{record['features']:10,} {record['cached_rows']:10,} {record['elapsed']:8.2f} "
        f"{format_size(record['resident_bytes']):>8}"
    )


def _pass_line(record: dict[str, Any]) -> str:
    s, certificate = record["seconds"], record["certificate"]
    gap = record["estimated_relative_gap"]
    estimate = "-" if gap is None else f"{gap:.1e}"
    return (
        f"{record['pass']:4d} {record['elapsed']:8.2f} {s['load']:7.2f} {s['wait']:7.2f} "
        f"{s['solve']:7.2f} {record['rows_per_second'] / 1e6:10.2f} "
        f"{record['nnz_per_second'] / 1e6:7.1f} {record['dual']:15.8g} "
        f"{estimate:>9} {record['cached_rows']:8d} "
        f"{record['cached_free']:8d} {record['cache_hits']:7d} "
        f"{format_size(record['resident_bytes']):>8}"
        + (f"   certified gap {certificate['relative_gap']:.2e}" if certificate else "")
        + _test_figure(record.get("test"))
    )


def _test_figure(test: dict[str, Any] | None) -> str:
    """What a test text came to after a pass, behind its other figures."""
    if test is None or not test["rows"]:
        return ""
    if "mse" in test:
        return f"   test MSE {test['mse']:.6g}"
    return f"   test accuracy {100 * test['accuracy']:.4f} %"
