"""A clock that stands still while kernels are compiled, so that no time or speed includes that."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["clock", "compile_seconds", "stopped_clock"]

_lock = threading.Lock()
_compilers = 0  # at work
_since = 0.0  # the first of them began
_lost = 0.0  # to those before


def compile_seconds() -> float:
    """Return the seconds that this process has waited for its kernels to be compiled."""
    with _lock:
        return _lost + (time.perf_counter() - _since if _compilers else 0.0)


def clock() -> float:
    """Return seconds as `time.perf_counter` does, less `compile_seconds`."""
    with _lock:
        return (_since if _compilers else time.perf_counter()) - _lost


@contextmanager
def stopped_clock() -> Iterator[None]:
    """Let `clock` stand still meanwhile; several threads may be here at a time."""
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
