"""Exceptions caused by input, files and settings.

Messages state what is wrong, where, and what to do. The command line prints them without a
traceback.
"""

from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import Any


class SbmError(Exception):
    """Base class of all errors caused by input, files or settings."""


class DataError(SbmError, ValueError):
    """Text or arrays with invalid content (``file:line: found, expected``)."""


class SettingsError(SbmError, ValueError):
    """An invalid option or key of a configuration file."""


class StoreError(SbmError, OSError):
    """A store, run or model that is missing, damaged, locked or not writable."""


class MemoryPlanError(SbmError, MemoryError):
    """A memory limit that is too small.

    Attributes
    ----------
    least_bytes : int
        The smallest sufficient ``--mem``, in bytes.
    """

    def __init__(self, message: str, least_bytes: int) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes


def require_number(name: str, value: int, least: int, most: int | None = None) -> None:
    """Check that an option is in its range. Raises `SettingsError` if it is not."""
    if value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        raise SettingsError(f"{name} is {value}; it must be {bound}")


def require_path(value: Any, what: str, expected: str = "a path is expected") -> None:
    """Check that an argument is a path. Raises `SettingsError` if it is not a string or path."""
    if not isinstance(value, str | PathLike):
        raise SettingsError(f"{what} is a {type(value).__name__}; {expected}")


def require_ending(path: str | PathLike[str], endings: Collection[str], otherwise: str) -> None:
    """Check that a file name has one of these endings, or none; else raise `SettingsError`."""
    if Path(path).suffix and not str(path).lower().endswith(tuple(endings)):
        raise SettingsError(f"{path} has the ending of no format; {otherwise}")


def refuse_endings(path: str | PathLike[str], endings: Collection[str], otherwise: str) -> None:
    """Raise `SettingsError` if an output has an ending of what is not written."""
    if Path(path).suffix.lower() in endings:
        raise SettingsError(f"{path} would not be what its ending says; {otherwise}")
