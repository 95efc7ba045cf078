"""File operations: atomic, durable writes, locks and readable errors.

All code that changes files uses these functions. A reader sees either the old bytes or the new
ones. Changes are durable when a function returns. `OSError` becomes a `StoreError` with advice.
"""

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO

from sbm.errors import StoreError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PIECE = 1 << 20  # bytes read at a time
_temporary_folders: set[Path] = set()  # of `unsynced`, in use
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)  # unsupported system call


# --------------------------------------------------------------------------------- errors


def write_error(path: Path, error: OSError) -> StoreError:
    """Return the error to raise if a file cannot be written."""
    if error.errno == errno.ENOENT and not path.parent.is_dir():
        return StoreError(f"{path.parent} is not a folder; create it or choose another with -o")
    if error.errno == errno.ENOENT:
        return StoreError(
            f"cannot write {path}: it was removed in the meantime, or the file system accepts no "
            "files; run the same command again or choose another location with -o"
        )
    full = error.errno in _FULL
    advice = "free space or choose another location" if full else "choose another location"
    return StoreError(f"cannot write {path}: {error.strerror or error}; {advice} with -o")


def read_error(path: Path, error: OSError) -> StoreError:
    """Return the error to raise if a file cannot be read."""
    if error.errno == errno.ENOENT:
        return StoreError(f"{path} does not exist; check the name or restore the file")
    return StoreError(
        f"cannot read {path}: {error.strerror or error}; check its permissions and the disk"
    )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` from writing `path` into a `StoreError`; re-raise those of other files."""
    try:
        yield
    except OSError as error:
        if _is_of(error, path):
            raise write_error(path, error) from error
        raise


def require_place(path: Path, option: str = "-o") -> None:
    """Raise `StoreError` if a file cannot be written here: its folder is missing or read-only."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder; give a file name with {option}")
    if not path.parent.is_dir():
        raise StoreError(
            f"{path.parent} is not a folder; create it, or choose another place with {option}"
        )
    if not os.access(path.parent, os.W_OK):
        raise StoreError(
            f"cannot write to {path.parent}; check its permissions, or choose another place with "
            f"{option}"
        )


def beside(path: Path, ending: str, without: str = "") -> Path:
    """Return the path next to another, whose name has another ending.

    Raises `StoreError` if the path has no name, such as ``.`` or ``/``.
    """
    if not path.name:
        raise StoreError(f"{path} is a folder without a name; give the name of a file")
    return path.with_name(path.name.removesuffix(without) + ending)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an `OSError` from reading `path` into a `StoreError`; re-raise those of other files."""
    try:
        yield
    except OSError as error:
        if _is_of(error, path):
            raise read_error(path, error) from error
        raise


def _is_of(error: OSError, path: Path) -> bool:
    """Whether an error may concern this file; errors from open handles carry no file name."""
    if isinstance(error, StoreError):
        return False
    names = {str(name) for name in (error.filename, error.filename2) if name is not None}
    ours = {str(path), str(path.parent)}
    return not names or bool(names & ours) or any(_is_temporary(name, path) for name in names)


# ----------------------------------------------------------------------------------- files


def file_checksum(path: Path) -> int:
    """Return the CRC-32 of a file's content. Raises `StoreError` if the file cannot be read."""
    crc = 0
    with reading(path), open(path, "rb") as file:
        while piece := file.read(_PIECE):
            crc = zlib.crc32(piece, crc)
    return crc


def copy(path: Path, folder: Path) -> None:
    """Copy a file into a folder atomically, under the same name.

    Raises `StoreError` if the file cannot be read or written.
    """
    write_atomically(folder / path.name, _pieces(path))


def _pieces(path: Path) -> Iterator[bytes]:
    with reading(path), open_own(path) as file:
        while piece := file.read(_PIECE):
            yield piece


def move(paths: Iterable[Path], folder: Path) -> None:
    """Move files into a folder on the same file system, durably.

    Raises `StoreError` if a file cannot be moved.
    """
    for path in paths:
        with writing(folder / path.name):
            os.rename(path, folder / path.name)
    sync_folder(folder)


# Temporary names end in ``.tmp``; while two processes write one file, also in ``.2.tmp``.
_TEMPORARY = re.compile(r"(\.[0-9]+)?\.tmp")


def _is_temporary(name: str, path: Path) -> bool:
    return name.startswith(str(path)) and bool(_TEMPORARY.fullmatch(name, len(str(path))))


def _create_temporary(path: Path) -> tuple[Path, int]:
    """Create a file that no other process writes to, with a temporary name for `path`.

    Its writer holds a lock on it. So a file that can be locked is left from a process that was
    killed, and is removed.
    """
    names = (
        Path(f"{path}{'' if number == 1 else f'.{number}'}.tmp") for number in itertools.count(1)
    )
    # More names are only there after processes were killed.
    some = list(itertools.islice(names, 8))
    for temporary in some:
        _remove_abandoned(temporary)
    for temporary in itertools.chain(some, names):
        handle = -1
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            if _is_ours(handle):
                return temporary, handle
        except FileExistsError:
            continue
        except BaseException:  # a signal, maybe after the file was created
            if handle >= 0:
                os.close(handle)
            _remove_abandoned(temporary)
            raise
        os.close(handle)  # taken for abandoned before it was locked
    raise AssertionError


def _is_ours(handle: int) -> bool:
    """Lock a new file; return whether it is still there."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(handle).st_nlink > 0
    except BlockingIOError:
        return False
    except OSError:  # without locks, nothing is taken for abandoned
        return True


def _remove_abandoned(temporary: Path) -> None:
    """Remove a temporary file whose writer has ended."""
    try:
        handle = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.lstat(temporary)):
            temporary.unlink()
    except OSError:
        pass  # it is being written
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed names in a folder durable.

    Raises `StoreError` if the folder cannot be synced.
    """
    with writing(folder):
        _sync(folder)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        sync(handle, folder)
    finally:
        os.close(handle)


def sync(handle: int, path: Path) -> None:
    """Make an open file or folder durable, unless it is in a temporary folder."""
    if _temporary_folders.isdisjoint([path, *path.parents]):
        os.fsync(handle)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder in ``TMPDIR`` that is removed at the end; its files are not synced."""
    import tempfile

    with (
        tempfile.TemporaryDirectory(prefix="sbm-", ignore_cleanup_errors=True) as name,
        unsynced(Path(name)),
    ):
        yield Path(name)


@contextlib.contextmanager
def unsynced(folder: Path) -> Iterator[None]:
    """Do not sync a folder and its files, because no later process reads them."""
    _temporary_folders.add(folder)
    try:
        yield
    finally:
        _temporary_folders.discard(folder)


def write_atomically(path: Path, buffers: Iterable[bytes | memoryview]) -> int:
    """Write a file under a temporary name, sync it and rename it.

    Parameters
    ----------
    buffers : iterable of bytes-like
        Written one after the other.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    StoreError
        If the disk is full or the folder is not writable. No partial file is left.
    """
    with open_atomically(path) as file:
        return sum(file.write(buffer) for buffer in buffers)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for atomic writing: like `write_atomically`, but yields a file object.

    If several processes write the same file, the one that finishes last replaces it.
    """
    with writing(path):
        temporary, handle = _create_temporary(path)
        try:
            with open(handle, "wb", closefd=False) as file:
                yield file
                file.flush()
                sync(handle, path)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(handle)  # which releases the lock: until now the name is ours
        _sync(path.parent)


def open_own(path: Path, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading.

    Stores and runs may come from untrusted sources, so symbolic links are not followed unless
    `follow`, and pipes and devices are not opened.

    Raises
    ------
    StoreError
        If the path is a link, a folder, a pipe or a device.
    OSError
        If the file cannot be opened.
    """
    try:
        return open(path, "rb", opener=_open_plain if follow else _open_own)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _no_plain_file(path) from None
        raise


def follow_no_link(name: str, flags: int) -> int:
    """Open a regular file to write, and no link; an ``opener`` for `open`."""
    try:
        return _open_own(name, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe without a reader
            raise _no_plain_file(Path(name)) from None
        raise


def _open_own(name: str, flags: int) -> int:
    return _open_plain(name, flags | os.O_NOFOLLOW)


def _open_plain(name: str, flags: int) -> int:
    handle = os.open(name, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_plain_file(Path(name))
    return handle


def _no_plain_file(path: Path) -> StoreError:
    return StoreError(f"{path} is not a regular file; replace it with a copy of the file")


# --------------------------------------------------------------------------------- folders


def make_folder(path: Path) -> None:
    """Create a folder and its parents if they do not exist.

    Raises `StoreError` if the folder cannot be created.
    """
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for folder in reversed(missing):
        with writing(folder):
            folder.mkdir(exist_ok=True)
            if folder not in _temporary_folders:
                _sync(folder.parent)
    with writing(path):
        path.mkdir(exist_ok=True)  # fails if the path is a file


def remove(paths: Sequence[Path]) -> None:
    """Remove files and folders, ignoring errors."""
    for path in paths:
        with contextlib.suppress(OSError):
            if not path.is_dir():
                path.unlink()
            elif not path.is_symlink():  # shutil takes longer to import than this takes
                remove(list(path.iterdir()))
                path.rmdir()


def put_in_place(new: Path, final: Path) -> None:
    """Rename a complete folder to its final name; an older folder there gets the name `new`.

    The exchange is atomic if the system supports it. Otherwise a crash may leave the older folder
    under the name `aside` returns.

    Raises
    ------
    StoreError
        If the folders cannot be renamed. Their names are unchanged.
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
            with contextlib.suppress(OSError):  # so that the caller's cleanup removes the new one
                if change is os.rename:
                    os.rename(final, new)
                else:
                    change(new, final)
            raise


def aside(final: Path) -> Path:
    """Return the path where a crash in `put_in_place` may leave the older folder."""
    return Path(f"{final}.replaced")


def _swap(a: Path, b: Path) -> None:
    """Exchange the names of two folders atomically, if the system supports it."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(b))
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if function(here, os.fsencode(a), here, os.fsencode(b), exchange) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(b))


def _swap_slowly(a: Path, b: Path) -> None:
    """Exchange the names of two folders with three renames."""
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
    """Hold an exclusive or shared lock; the system releases it when the process ends.

    Parameters
    ----------
    path : Path
        A folder, or a file, which is created if missing.
    what : str
        Name of the locked thing in the error message.
    shared : bool
        Whether other shared locks are allowed.

    Raises
    ------
    StoreError
        If another process holds the lock.
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
                f"{what} is in use by another sbm process; wait for it to finish or stop it"
            ) from None
        yield
    finally:
        os.close(handle)
