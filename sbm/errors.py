"""The exceptions that input, files and settings can cause.

A message says what was found, where it was found and what to do about it. The command line prints
it without a traceback.
"""

from os import PathLike
from typing import Any

__all__ = [
    "DataError", "MemoryPlanError", "SbmError", "SettingsError", "StoreError", "require_path",
]  # fmt: skip


class SbmError(Exception):
    """Base class of all errors that input, files or settings can cause."""


class DataError(SbmError, ValueError):
    """Text or arrays with invalid content (``file:line: found, expected``)."""


class SettingsError(SbmError, ValueError):
    """An invalid option or key of a configuration file."""


class StoreError(SbmError, OSError):
    """A store, run or model that is missing, damaged, locked or not writable."""


class MemoryPlanError(SbmError, MemoryError):
    """A memory bound that is too small; holds the smallest bound that would do.

    Attributes
    ----------
    least_bytes : int
        The smallest ``--mem`` in bytes that the plan accepts.
    """

    def __init__(self, message: str, least_bytes: int) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes


def require_path(value: Any, what: str, expected: str = "a path is expected") -> None:
    """Refuse what is no path, before anything is done with it.

    Raises
    ------
    SettingsError
        It is an array, a number or the like.
    """
    if not isinstance(value, str | PathLike):
        raise SettingsError(f"{what} is a {type(value).__name__}; {expected}")
