"""A clock that excludes the time for compiling kernels."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["clock", "compile_seconds", "seconds_left", "stopped_clock"]

_lock = threading.Lock()
_compilers = 0  # running now
_since = 0.0  # when the first of them started
_lost = 0.0  # seconds of finished compilations


def compile_seconds() -> float:
    """Return the seconds that this process has spent waiting for kernels to compile."""
    with _lock:
        return _lost + (time.perf_counter() - _since if _compilers else 0.0)


def clock() -> float:
    """Return `time.perf_counter` minus `compile_seconds`."""
    with _lock:
        return (_since if _compilers else time.perf_counter()) - _lost


def seconds_left(limit: float | str | None, begin: float) -> float:
    """Return the seconds left of a limit that is counted from `begin`; infinity without one."""
    return math.inf if limit is None else float(limit) - (clock() - begin)


@contextmanager
def stopped_clock() -> Iterator[None]:
    """Stop `clock` inside the context; several threads may enter at the same time."""
    global _compilers, _since, _lost
    with _lock:
        if not _compilers:
            _since = time.perf_counter()
        _compilers += 1
    try:
        yield
    finally:
        with _lock:
            _compilers -= 1
            if not _compilers:
                _lost += time.perf_counter() - _since
