"""Ctrl-C, SIGTERM and the end of a terminal: what they end, and when."""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["INTERRUPTED", "stop_signals", "stoppable"]

INTERRUPTED = 130  # exit code
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INSISTS = 1.0  # seconds from a signal to one that means it: before, it is the same one again


class _Stopped(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or the end of the terminal."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let a signal end the work, and another one, that comes while it ends, the process.

    What is ignored stays so: that is how nohup and the shells keep signals from us.
    """
    first: list[float] = []

    def stop(number: int, frame: object) -> None:
        now = time.monotonic()
        if not first:
            first.append(now)
            raise _Stopped
        if now - first[0] > _INSISTS:
            with contextlib.suppress(OSError):
                os.write(2, b"sbm: stopped at once; the same command starts again\n")
            os._exit(INTERRUPTED)

    def try_again(lost: Any) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            if not first:  # what a signal left half made complains as it goes
                sys.__unraisablehook__(lost)
            return
        # Python swallows what is raised where it tidies up, and would here: a moment later, then.
        first.clear()
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    before = _handled((*_STOPS, signal.SIGALRM), stop)
    hook, sys.unraisablehook = sys.unraisablehook, try_again
    try:
        yield
    except KeyboardInterrupt as stopped:
        traceback.clear_frames(stopped.__traceback__)  # and goes now, while that is not heard
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        _restore(before)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a question; a second Ctrl-C ends at once."""
    stopped = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        if stopped.is_set() and number == signal.SIGINT and callable(handler):
            handler(number, frame)
        stopped.set()

    before = _handled(_STOPS, note)
    try:
        yield stopped.is_set
    finally:
        _restore(before)


def _handled(
    numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]
) -> dict[signal.Signals, Any]:
    """Handle signals, but those that are ignored; return what handled them before."""
    return {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    }


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
