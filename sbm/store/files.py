"""Writing files so that a reader sees the old bytes or the new ones, never a mixture."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from sbm.errors import StoreError

__all__ = ["lock", "open_atomically", "sync_folder", "write_atomically"]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, buffers: Iterable[bytes | memoryview]) -> int:
    """Write a file under a temporary name, make it durable and rename it.

    Parameters
    ----------
    path : Path
    buffers : iterable of bytes-like
        Written one after the other.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    StoreError
        The disk is full or the folder cannot be written; nothing is left behind.
    """
    with open_atomically(path) as file:
        return sum(file.write(buffer) for buffer in buffers)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write under a temporary name; `write_atomically` for those who need a file."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise write_error(path, error) from error
        raise


def write_error(path: Path, error: OSError) -> StoreError:
    """Say in one sentence why a file could not be written."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "free space or choose another place" if full else "choose another place"
    return StoreError(f"cannot write {path}: {reason}; {advice} with -o")


@contextlib.contextmanager
def lock(path: Path, what: str, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock, exclusive or shared, that the system drops with the process.

    The path is a folder, or a file that is made if need be.

    Raises
    ------
    StoreError
        Somebody else holds it.
    """
    try:
        flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        raise write_error(path, error) from error
    try:
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{what} is in use by another sbm process; wait for it to end or stop it"
            ) from None
        yield
    finally:
        os.close(handle)
