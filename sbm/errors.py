"""The exceptions that input, files and settings can cause.

A message says what was found, where it was found and what to do about it. The command line prints
it without a traceback.
"""

__all__ = ["DataError", "MemoryPlanError", "SbmError", "SettingsError", "StoreError"]


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
