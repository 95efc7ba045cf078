"""Changing files so that a reader sees the old bytes or the new ones, never a mixture.

All that changes files goes through these few verbs. What they made is durable when they return, and
what the system says of a failure becomes one sentence.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from sbm.errors import StoreError

__all__ = [
    "aside", "copy", "file_checksum", "follow_no_link", "lock", "make_folder", "move",
    "open_atomically", "open_own", "put_in_place", "read_error", "reading", "remove",
    "sync_folder", "write_atomically", "write_error", "writing",
]  # fmt: skip

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PIECE = 1 << 20  # bytes read at a time
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)  # a call that there is not


# --------------------------------------------------------------------------- what went wrong


def write_error(path: Path, error: OSError) -> StoreError:
    """Say in one sentence why a file could not be written."""
    if error.errno == errno.ENOENT and not path.parent.is_dir():
        return StoreError(f"{path.parent} is no folder; make it, or choose another place with -o")
    if error.errno == errno.ENOENT:
        return StoreError(
            f"cannot write {path}: it was removed meanwhile, or this file system takes no files; "
            "run the same command again, or choose another place with -o"
        )
    full = error.errno in _FULL
    advice = "free space or choose another place" if full else "choose another place"
    return StoreError(f"cannot write {path}: {error.strerror or error}; {advice} with -o")


def read_error(path: Path, error: OSError) -> StoreError:
    """Say in one sentence why a file could not be read."""
    if error.errno == errno.ENOENT:
        return StoreError(f"{path} does not exist; check the name, or restore the file")
    return StoreError(
        f"cannot read {path}: {error.strerror or error}; see that you may read it and that "
        "the disk is sound"
    )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `StoreError` where `path` cannot be written; errors of other files pass."""
    try:
        yield
    except OSError as error:
        if _is_of(error, path):
            raise write_error(path, error) from error
        raise


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise `StoreError` where `path` cannot be read; errors of other files pass."""
    try:
        yield
    except OSError as error:
        if _is_of(error, path):
            raise read_error(path, error) from error
        raise


def _is_of(error: OSError, path: Path) -> bool:
    """Whether an error may be of this file: most calls on a handle do not tell."""
    if isinstance(error, StoreError):
        return False
    names = {str(name) for name in (error.filename, error.filename2) if name is not None}
    return not names or bool(names & {str(path), f"{path}.tmp", str(path.parent)})


# ----------------------------------------------------------------------------------- files


def file_checksum(path: Path) -> int:
    """CRC-32 of the bytes of a file.

    Raises
    ------
    StoreError
        It cannot be read.
    """
    crc = 0
    with reading(path), open(path, "rb") as file:
        while piece := file.read(_PIECE):
            crc = zlib.crc32(piece, crc)
    return crc


def copy(path: Path, folder: Path) -> None:
    """Copy a file into a folder, atomically; it keeps its name.

    Raises
    ------
    StoreError
        It cannot be read or written.
    """
    write_atomically(folder / path.name, _pieces(path))


def _pieces(path: Path) -> Iterator[bytes]:
    with reading(path), open_own(path) as file:
        while piece := file.read(_PIECE):
            yield piece


def move(paths: Iterable[Path], folder: Path) -> None:
    """Move files into a folder of the same file system, and make their names there durable.

    Raises
    ------
    StoreError
        The system cannot.
    """
    for path in paths:
        with writing(folder / path.name):
            os.rename(path, folder / path.name)
    sync_folder(folder)


def _temporary(path: Path) -> Path:
    return Path(f"{path}.tmp")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable.

    Raises
    ------
    StoreError
        The system cannot.
    """
    with writing(folder):
        _sync(folder)


def _sync(folder: Path) -> None:
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
    temporary = _temporary(path)
    with writing(path):
        try:
            with open(temporary, "wb", opener=follow_no_link) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync(path.parent)


def open_own(path: Path) -> IO[bytes]:
    """Open a file of a store or run to read; it must lie there itself.

    Such a folder may come from a stranger, so no link in it leads anywhere, and nothing is opened
    that would block or never end.

    Raises
    ------
    StoreError
        A link, a folder, a pipe or a device.
    OSError
        It cannot be opened.
    """
    try:
        return open(path, "rb", opener=_open_plain)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _no_plain_file(path) from None
        raise


def follow_no_link(name: str, flags: int) -> int:
    """Open a file to write as `open` does (its ``opener``), but never where a link leads to."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def _open_plain(name: str, flags: int) -> int:
    handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_plain_file(Path(name))
    return handle


def _no_plain_file(path: Path) -> StoreError:
    return StoreError(f"{path} is a link or no file at all; put a copy of the file there")


# --------------------------------------------------------------------------------- folders


def make_folder(path: Path) -> None:
    """Make a folder, and those it lies in, unless they are there.

    Raises
    ------
    StoreError
        It cannot be made.
    """
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for folder in reversed(missing):
        with writing(folder):
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)
    with writing(path):
        path.mkdir(exist_ok=True)  # what is there may be a file


def remove(paths: Sequence[Path]) -> None:
    """Remove files and folders that nobody needs any more; what resists is left."""
    for path in paths:
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def put_in_place(new: Path, final: Path) -> None:
    """Give a complete folder its name; an older one has the name of the new one then.

    There is no moment without a folder of that name where the system can exchange two; where it
    cannot, a crash may leave the older one `aside`.

    Raises
    ------
    StoreError
        The names cannot be changed; they are as they were.
    """
    with writing(final):
        change = _swap if final.exists() else os.rename
        try:
            change(new, final)
        except OSError as error:
            if change is os.rename or error.errno not in _UNKNOWN:
                raise
            change = _swap_slowly
            change(new, final)
        try:
            _sync(final.parent)
        except OSError:
            with contextlib.suppress(OSError):  # who removes the new one now removes no old one
                if change is os.rename:
                    os.rename(final, new)
                else:
                    change(new, final)
            raise


def aside(final: Path) -> Path:
    """Where a crash in `put_in_place` may leave the older folder."""
    return Path(f"{final}.replaced")


def _swap(a: Path, b: Path) -> None:
    """Exchange the names of two folders at once, where the system can."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(b))
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if function(here, os.fsencode(a), here, os.fsencode(b), exchange) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(b))


def _swap_slowly(a: Path, b: Path) -> None:
    """Exchange the names of two folders, one after the other."""
    between = aside(b)
    os.rename(b, between)
    try:
        os.rename(a, b)
    except OSError:
        os.rename(between, b)
        raise
    os.rename(between, a)


# ----------------------------------------------------------------------------------- locks


@contextlib.contextmanager
def lock(path: Path, what: str, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock, exclusive or shared, that the system drops with the process.

    The path is a folder, or a file that is made if need be.

    Raises
    ------
    StoreError
        Somebody else holds it.
    """
    with writing(path):
        flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        handle = os.open(path, flags, 0o666)
    try:
        try:
            with writing(path):
                kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except StoreError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            raise StoreError(
                f"{what} is in use by another sbm process; wait for it to end or stop it"
            ) from None
        yield
    finally:
        os.close(handle)
