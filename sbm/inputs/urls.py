"""URLs as names of inputs, and how long to wait for their servers; `sbm.inputs.remote` reads them.

Every command imports this module. That one imports asyncio, which only remote inputs need.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from sbm.plain import dataclass
from sbm.settings import SETTINGS

RANGE = 4 << 20  # bytes read at a time
MEMORY = 60_000_000 + 2 * RANGE  # bytes that fsspec and two ranges take
SCHEME = r"(?i)[a-z][a-z0-9+.-]+://"  # begin of a URL


@dataclass(frozen=True)
class Terms:
    """How long to wait for a server."""

    timeout: float = 60.0  # seconds without data
    note: Callable[[str], None] = lambda _: None  # receives a line about each further try
    is_stopped: Callable[[], bool] = lambda: False


_terms: ContextVar[Terms] = ContextVar("sbm-remote", default=Terms())  # noqa: B039  frozen


@contextlib.contextmanager
def remote_terms(
    timeout: float | str | None,
    note: Callable[[str], None],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Set how the remote inputs that are opened inside are read.

    Parameters
    ----------
    timeout : float, str or None
        The setting `remote_timeout`; None is its default.
    note : callable
        Receives a line about each failure that is followed by another try.
    is_stopped : callable
        Called while waiting; if true, `KeyboardInterrupt` is raised there.

    Raises
    ------
    SettingsError
        The time is invalid.
    """
    row = SETTINGS["remote_timeout"]
    seconds = row.rule.check("remote_timeout", row.default if timeout is None else timeout)
    before = _terms.set(Terms(seconds, note, is_stopped))
    try:
        yield
    finally:
        _terms.reset(before)


def current_terms() -> Terms:
    """Return the terms set by `remote_terms`, for a file that another thread opens."""
    return _terms.get()


def is_remote(name: str) -> bool:
    """Whether the name of an input is a URL."""
    return re.match(SCHEME, name) is not None


def without_query(name: str) -> str:
    """Return a file name, or a URL without what follows its path."""
    return name.partition("?")[0] if is_remote(name) else name
