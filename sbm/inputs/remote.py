"""Inputs on other machines, ``https://``, ``s3://`` and so on, through fsspec.

A file is read in large ranges, one of them ahead. A range that fails is read again, so a dropped
connection costs only the range.
"""

from __future__ import annotations

import io
import re
import shutil
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sbm.errors import DataError

RANGE = 4 << 20  # bytes read at a time
MEMORY = 60_000_000 + 2 * RANGE  # bytes that fsspec and two ranges take
_TRIES = 6  # of a range
_WAIT = 0.5  # seconds before the second try; twice as long before each further one
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FINAL = (FileNotFoundError, PermissionError, NotImplementedError, ImportError)  # no use to retry


def is_remote(name: str) -> bool:
    """Whether the name of an input is a URL."""
    return _URL.match(name) is not None


def without_query(name: str) -> str:
    """Return a file name, or a URL without what follows its path."""
    return name.partition("?")[0] if is_remote(name) else name


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    try:
        import fsspec
    except ImportError:
        raise DataError(
            f"reading {url} needs fsspec, which is not installed; run pip install fsspec aiohttp"
        ) from None
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError, OSError) as error:
        raise DataError(f"cannot read {url}: {_first_line(error)}") from error
    return fs, str(path)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _insist(url: str, call: Any, *arguments: Any) -> Any:
    """Call a function of fsspec until it succeeds.

    Raises `DataError` if it failed too often, or the file is missing.
    """
    wait = _WAIT
    for attempt in range(1, _TRIES + 1):
        try:
            return call(*arguments)
        except DataError:
            raise
        except Exception as caught:  # each file system has errors of its own
            error = _reason(caught)
            if isinstance(error, _FINAL) or attempt == _TRIES:
                what = "not found" if isinstance(error, FileNotFoundError) else _first_line(error)
                tries = "" if isinstance(error, _FINAL) else f" (after {_TRIES} tries)"
                raise DataError(f"cannot read {url}: {what}{tries}") from error
            time.sleep(wait)
            wait *= 2
    raise AssertionError


def _reason(error: Exception) -> BaseException:
    """Return what went wrong: fsspec says that a URL is missing if it cannot be reached, too."""
    cause = error.__cause__
    is_hidden = isinstance(error, FileNotFoundError) and cause is not None
    if not is_hidden or isinstance(cause, LookupError | FileNotFoundError):
        return error
    return error if getattr(cause, "status", None) in (404, 410) else cause or error


def find_remote(url: str) -> list[str]:
    """Return the URLs that a URL or glob stands for.

    Raises `DataError` if a glob matches nothing.
    """
    fs, path = _file_system(url)
    if "*" not in path:
        return [url]
    paths = sorted(_insist(url, fs.glob, path))
    if not paths:
        raise DataError(f"{url} matches no files")
    return [str(fs.unstrip_protocol(one)) for one in paths]


def remote_size(url: str) -> int:
    """Return the bytes of a remote file.

    Raises `DataError` if it is missing, or its size is unknown.
    """
    return _size(*_file_system(url), url)


def _size(fs: Any, path: str, url: str) -> int:
    size = _insist(url, fs.info, path).get("size")
    if size is None:
        raise DataError(
            f"{url}: the server does not state the length of the file; download it first"
        )
    return int(size)


class RemoteFile(io.RawIOBase):
    """A remote file that is read once, from begin to end.

    Raises
    ------
    DataError
        While reading: the file cannot be read, or its length has changed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs, self._path = _file_system(url)
        self._size = _size(self._fs, self._path, url)
        self._begin = 0  # of the next range
        self._range = memoryview(b"")
        self._pool = ThreadPoolExecutor(1, "sbm-remote")
        self._coming: Future[bytes] | None = self._ask()

    def _ask(self) -> Future[bytes] | None:
        """Start reading the next range, if there is one."""
        begin, end = self._begin, min(self._begin + RANGE, self._size)
        self._begin = end
        return self._pool.submit(self._read_range, begin, end) if begin < end else None

    def _read_range(self, begin: int, end: int) -> bytes:
        def read() -> bytes:
            data = self._fs.cat_file(self._path, start=begin, end=end)
            if len(data) == end - begin:
                return bytes(data)
            self._refuse_change()
            if len(data) > end - begin:
                raise DataError(
                    f"{self._url}: the server does not support ranges; download the file first"
                )
            raise OSError(f"found {len(data)} of {end - begin} bytes")

        try:
            data: bytes = _insist(self._url, read)
        except DataError:
            self._refuse_change()
            raise
        return data

    def _refuse_change(self) -> None:
        """Raise `DataError` if the file no longer has the length it had at first."""
        self._fs.invalidate_cache()
        now = _size(self._fs, self._path, self._url)
        if now != self._size:
            raise DataError(
                f"{self._url} changed while it was read: it had {self._size:,} bytes and now has "
                f"{now:,}; read it again when it is complete"
            )

    def readable(self) -> bool:  # noqa: D102  as of the base class
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: D102
        if not self._range:
            if self._coming is None:
                return 0
            self._range = memoryview(self._coming.result())
            self._coming = self._ask()
            if self._coming is None:
                self._refuse_change()
        n = min(len(buffer), len(self._range))
        buffer[:n] = self._range[:n]
        self._range = self._range[n:]
        return n

    def close(self) -> None:  # noqa: D102
        self._pool.shutdown(wait=True, cancel_futures=True)
        super().close()


def fetch(url: str, ending: str) -> Any:
    """Copy a remote file to a temporary file, which exists as long as the object returned.

    Raises `DataError` if the file cannot be read.
    """
    copy = tempfile.NamedTemporaryFile(prefix="sbm-", suffix=ending)  # noqa: SIM115  kept open
    with RemoteFile(url) as file:
        shutil.copyfileobj(io.BufferedReader(file, RANGE), copy, RANGE)
    copy.flush()
    return copy
