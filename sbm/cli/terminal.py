"""Output streams, signals and progress: a bar on a terminal, occasional lines elsewhere."""

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

from sbm.engine.progress import Progress, pass_line, pass_title, score_text
from sbm.errors import SbmError
from sbm.units import CONTROLS, format_size

_CONTROLS = {c: shown for c, shown in CONTROLS.items() if c != ord("\t")}


def echo(text: str) -> None:
    """Print a result on standard output. Raises `SbmError` if it cannot be printed."""
    try:
        if sys.stdout is None:
            raise SbmError("standard output is closed, so the result cannot be printed")
        print(text.translate(_CONTROLS), flush=True)
    except BrokenPipeError:
        raise  # the reader closed the pipe
    except OSError as error:
        raise SbmError(f"cannot write to standard output: {error.strerror or error}") from error


def complain(text: str) -> None:
    """Print a message on stderr, ignoring failures to write."""
    print(text.translate(_CONTROLS), file=sys.stderr, flush=True)


class _SafeStderr:
    """Standard error that ignores failures to write."""

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
    """Make printing safe: closed streams, unprintable characters and failing writes to stderr."""
    for number in range(3):  # else a file opened later would get the number of a closed stream
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  stays open to the end
    sys.stderr = cast(TextIO, _SafeStderr(stderr))
    try:
        yield
    finally:
        sys.stderr = stderr


def is_flushed(stream: TextIO | None) -> bool:
    """Flush a stream for the last time; if that fails, discard what is left."""
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


class _StopHandler:
    """Handler of Ctrl-C, SIGTERM and SIGHUP.

    Attributes
    ----------
    is_asked : bool
        Whether the command polls `is_set`; else it is interrupted.
    is_set : bool
        Whether a signal was received.
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
        # A second signal within a second counts as the first one.
        if time.monotonic() - self._interrupted > 1.0:
            with contextlib.suppress(OSError):
                os.write(2, b"sbm: stopped immediately; run the same command again\n")
            os._exit(INTERRUPTED)


_handler = _StopHandler()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let a signal stop the command; a second one, during cleanup, ends the process.

    Ignored signals stay ignored, because nohup and shells rely on that.
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
    """Yield a function that returns whether to stop; a second Ctrl-C interrupts."""
    handler = _handler
    handler.is_asked = True
    try:
        yield lambda: handler.is_set
    finally:
        handler.is_asked = False


@contextlib.contextmanager
def stopped_at_once() -> Iterator[None]:
    """Let a signal interrupt in spite of `stop_signals`."""
    handler = _handler
    handler.is_asked = False
    try:
        if handler.is_set:  # before this began
            raise KeyboardInterrupt
        yield
    finally:
        handler.is_asked = True


_EVERY = 10  # seconds between two lines if stderr is not a terminal
_WAY = 0.1  # share of the work between two such lines
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_COUNT = "{desc}: {n_fmt} {unit} [{elapsed}{postfix}]"  # if the total is unknown
_DOUBLINGS = "        rows  seconds        loss  since last  accuracy  since last   memory"
_MORE_OF_DOUBLINGS = "   features     cached"
_MORE_OF_PASSES = (
    "    load    wait   solve    Mrows/s  Mnnz/s            dual   cached     free    hits"
)


class Bars(Progress):
    """Shows the progress of a program on stderr.

    On a terminal, shows a bar and a table of passes in 80 columns. Elsewhere, prints a line every
    10 s at most, and a pass when it comes another tenth of the way to the tolerance.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    verbose : bool
        Also show notes, every pass and all columns.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose
        self._bar: Any = None
        self._titled = False
        self._waited = 0.0  # seconds of waiting when last shown
        self._waiting = 0  # characters of that on the terminal
        self._first_gap = self._last_gap = 0.0  # gaps of the lines shown

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        """Start a bar, or the lines that replace it."""
        self.finish()
        self._what, self._total, self._unit = what, total, unit
        self._begin = self._last = time.monotonic()
        self._size = self._shown = self._row_count = 0
        if self.quiet or not sys.stderr.isatty():
            return
        from tqdm import tqdm

        form = None if unit == "B" else _COUNT if total is None else _BAR
        self._bar = tqdm(
            desc=what, total=total, unit=unit, unit_scale=unit == "B", leave=False,
            dynamic_ncols=True, bar_format=form, file=sys.stderr,
        )  # fmt: skip

    def advance(self, done: int, **numbers: Any) -> None:
        """Move the bar, or print a line if one is due."""
        self._size, self._row_count = done, numbers.get("rows", 0)
        if self._bar is not None:
            if self._row_count:
                shown = f"{self._row_count / self._seconds():,.0f} rows/s"
                if "memory" in numbers:
                    shown += f", {format_size(numbers['memory'])}"
                self._bar.set_postfix_str(shown, refresh=False)
            self._bar.update(done - self._bar.n)
        elif not self.quiet and self._is_line_due(done):
            self._last, self._shown = time.monotonic(), done
            complain(self._line())

    def _is_line_due(self, done: int) -> bool:
        is_late = time.monotonic() - self._last > _EVERY
        return is_late and (self._total is None or done - self._shown >= _WAY * self._total)

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
        self._clear()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, text: str) -> None:
        """Show a detail if verbose, also next to JSON."""
        if self.verbose:
            self._print(text)

    def stage(self, text: str) -> None:
        """Show the result of one of several stages."""
        self._tell(text)

    def wait(self, why: str, seconds: float, is_over: bool = False) -> None:
        """Show the reason and duration of a wait; on a terminal, in one line that is updated."""
        text = f"{why}: {seconds:.0f} s"
        if self.quiet:
            return
        if is_over:
            self._waited = 0.0
            self._tell(f"{text}, done")
        elif sys.stderr.isatty():
            self._clear()
            self._waiting = len(text)
            sys.stderr.write(f"{text}\r")
            sys.stderr.flush()
        elif not self._waited or seconds - self._waited > _EVERY:
            self._waited = seconds
            self._tell(text)

    def doubling(self, record: dict[str, Any]) -> None:
        """Add a line to the table of a stream."""
        title, line = _DOUBLINGS, _doubling_line(record)
        if self.verbose:
            title += _MORE_OF_DOUBLINGS
            line += f" {record['features']:10,} {record['cached_rows']:10,}"
        self._add_line(title, line)

    def row(self, record: dict[str, Any]) -> None:
        """Add a line to the table of passes; outside a terminal, only if it is a milestone."""
        if not (self.verbose or sys.stderr.isatty() or self._is_milestone(record)):
            return
        title, line = pass_title(record), pass_line(record)
        if self.verbose:
            title, line = title + _MORE_OF_PASSES, line + _more_of_pass(record)
        self._add_line(title, line + score_text(record.get("validation")))

    def _is_milestone(self, record: dict[str, Any]) -> bool:
        """Whether a pass came a tenth nearer to the tolerance, or was certified or judged."""
        gap = record["estimated_relative_gap"] or 0.0
        if self._first_gap and not record["certificate"] and not record.get("validation"):
            tenth = (record["tol"] / self._first_gap) ** _WAY  # gaps shrink by a factor each pass
            if gap > self._last_gap * min(tenth, 1.0) or gap == 0.0:
                return False
        self._first_gap, self._last_gap = self._first_gap or gap, gap or self._last_gap
        return True

    def _add_line(self, title: str, line: str) -> None:
        if not self._titled:
            self._titled = True
            self._tell(title)
        self._tell(line)

    def _tell(self, text: str) -> None:
        """Print a line above the bar, unless quiet."""
        if not self.quiet:
            self._print(text)

    def _print(self, text: str) -> None:
        self._clear()
        complain(text)
        if self._bar is not None:
            self._bar.refresh()

    def _clear(self) -> None:
        if self._bar is not None:
            self._bar.clear()
        if self._waiting:
            sys.stderr.write(f"{'':{self._waiting}}\r")
            self._waiting = 0


def _doubling_line(record: dict[str, Any]) -> str:
    def number(name: str, width: int, share: bool = False) -> str:
        value = record[name]
        if value is None:
            return f"{'-':>{width}}"
        return f"{100 * value:{width - 2}.2f} %" if share else f"{value:{width}.6f}"

    return (
        f"{record['rows']:12,} {record['elapsed']:8.2f} "
        f"{number('loss', 11)} {number('last_loss', 11)} "
        f"{number('accuracy', 9, True)} {number('last_accuracy', 11, True)} "
        f"{format_size(record['resident_bytes']):>8}"
    )


def _more_of_pass(record: dict[str, Any]) -> str:
    s = record["seconds"]
    return (
        f" {s['load']:7.2f} {s['wait']:7.2f} {s['solve']:7.2f} "
        f"{record['rows_per_second'] / 1e6:10.2f} {record['nnz_per_second'] / 1e6:7.1f} "
        f"{record['dual']:15.8g} {record['cached_rows']:8d} {record['cached_free']:8d} "
        f"{record['cache_hits']:7d}"
    )
