"""Inputs on other machines, ``https://``, ``s3://`` and so on, through fsspec.

A file is read in large ranges, one of them ahead. A range that fails is read again, so a dropped
connection costs only the rest of the range. Everything runs in threads that can be given up at any
time, and that do not keep the process alive.

fsspec reads the body of an HTTP answer as a whole before it looks at the status. `_WebFile` uses
fsspec's session instead, judges an answer by its status and headers, and reads no more than that.
Files of other services are read by fsspec's own functions.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import io
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from sbm.errors import DataError
from sbm.inputs.urls import RANGE, SCHEME, Terms, current_terms, without_query
from sbm.units import count, first_line

_LISTING = 4 * RANGE  # most bytes that fsspec reads as a whole, such as a list of files
_TRIES = 6  # of a range
_FEW = 3  # of a connection to a server that has not answered yet
_WAIT = 0.5  # seconds before the second try; twice as long before each further one
_NAP = 0.1  # seconds between two looks whether to stop
_WEB = ("http", "https")
# What servers call the bytes of the file as they are: codings of signatures or characters.
_PLAIN = ("", "identity", "none", "binary", "utf-8", "aws-chunked")
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # statuses of errors that may go away
_GONE = (404, 410)
_FINAL = (
    FileNotFoundError, IsADirectoryError, PermissionError, NotImplementedError, ImportError,
    ValueError,
)  # fmt: skip
# What changes with the content of a file, in `info` of fsspec, without signs and in lower case.
_MARKS = (
    "etag", "lastmodified", "mtime", "modified", "modify", "updated", "created", "generation",
    "versionid", "md5hash", "contentmd5", "md5", "crc32c", "checksum",
)  # fmt: skip

T = TypeVar("T")
Version = dict[str, Any]  # the length of a file in bytes, None if unknown, and marks of its content


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    try:
        import fsspec
    except ImportError:
        raise DataError(
            f"reading {url} needs fsspec, which is not installed; run pip install fsspec aiohttp"
        ) from None
    url = re.sub(SCHEME, lambda match: match[0].lower(), url, count=1)
    schemes = [part.partition("://")[0] for part in url.split("::")]
    # fsspec's own loop resolves names in threads that would keep the process alive.
    options = {"get_client": _client, "loop": _loop()}
    try:
        if schemes[0] in _WEB and url.startswith("[", len(f"{schemes[0]}://")):
            return fsspec.filesystem(schemes[0], **options), url  # no chain, but an IPv6 address
        web = {scheme: options for scheme in schemes if scheme in _WEB}
        fs, path = fsspec.core.url_to_fs(url, **web)
    except (ValueError, ImportError, OSError) as error:
        raise DataError(f"cannot read {url}: {first_line(error)}") from error
    return fs, str(path)


async def _client(**options: Any) -> Any:
    """Return a session for fsspec that decompresses nothing and reads bodies up to a bound."""
    import aiohttp

    class Answer(aiohttp.ClientResponse):
        async def read(self) -> bytes:
            body = bytearray()
            while data := await self.content.read(1 << 16):
                body += data
                if len(body) > _LISTING:
                    raise DataError(f"{self.url}: the answer is longer than {_LISTING:,} bytes")
            self._body = bytes(body)
            return self._body

    headers = {**(options.get("headers") or {}), "Accept-Encoding": "identity"}
    options |= {"headers": headers, "auto_decompress": False, "response_class": Answer}
    return aiohttp.ClientSession(**options)


# --------------------------------------------------------------------------------------- waiting


def _run(what: Coroutine[Any, Any, T], terms: Terms) -> T:
    """Run a coroutine in the loop and return its result."""
    return _result(_started(what), terms.is_stopped)


def _started(what: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    return asyncio.run_coroutine_threadsafe(what, _loop())


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that runs in a thread, and calls functions in others."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_Daemons())
    threading.Thread(target=loop.run_forever, name="sbm-remote", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=_loop.cache_clear)


class _Daemons(concurrent.futures.ThreadPoolExecutor):
    """Makes each call in a thread of its own, for which the process does not wait when it ends."""

    def submit(
        self, function: Callable[..., T], /, *arguments: Any, **named: Any
    ) -> concurrent.futures.Future[T]:
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()

        def call() -> None:
            try:
                done.set_result(function(*arguments, **named))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=call, name="sbm-remote-call", daemon=True).start()
        return done


def _result(future: concurrent.futures.Future[T], is_stopped: Callable[[], bool]) -> T:
    """Wait for a result; cancel it if interrupted, or if `is_stopped` returns true."""
    try:
        while not concurrent.futures.wait([future], _NAP).done:
            if is_stopped():
                raise KeyboardInterrupt
    except BaseException:
        future.cancel()
        raise
    return future.result()


async def _insist(
    url: str, terms: Terms, call: Callable[[], Awaitable[T]], is_first: bool = True
) -> T:
    """Call until it succeeds.

    Parameters
    ----------
    is_first : bool
        Whether the server has not answered yet. An address is then given up sooner.

    Raises
    ------
    DataError
        It failed too often, with an error that remains, or no data came for too long.
    """
    attempt, wait = 1, _WAIT
    while True:
        try:
            return await call()
        except DataError:
            raise
        except TimeoutError as error:
            raise DataError(
                f"cannot read {url}: the server sent nothing for {terms.timeout:g} s "
                "(--remote-timeout); try again later, or wait longer"
            ) from error
        except Exception as caught:  # each file system has errors of its own
            what, tries, reason = _diagnose(caught, is_first)
            if attempt >= tries:
                often = {
                    _FEW: f" (after {tries} tries); check the address and the network",
                    _TRIES: f" (after {tries} tries); try again later",
                }.get(tries, "")
                raise DataError(f"cannot read {url}: {what}{often}") from reason
            terms.note(f"{url}: {what}; trying again in {wait:g} s")
        await asyncio.sleep(wait)
        attempt, wait = attempt + 1, 2 * wait


def _diagnose(caught: Exception, is_first: bool) -> tuple[str, int, BaseException]:
    """Return what went wrong, how often to try, and the cause."""
    error = _reason(caught)
    if isinstance(error, FileNotFoundError):
        return "not found", 1, error
    what = first_line(error)
    with contextlib.suppress(ImportError):
        import aiohttp

        if isinstance(error, aiohttp.TooManyRedirects):
            return "too many redirects", 1, error
        if isinstance(error, getattr(aiohttp, "NonHttpUrlClientError", ())):
            return f"redirected to {what}", 1, error
        if isinstance(error, aiohttp.InvalidURL):
            return "the URL is invalid", 1, error
        if isinstance(error, aiohttp.ClientResponseError):  # no HTTP, or headers without end
            what = first_line(error.message)
            return f"the answer is not valid HTTP ({what})", 1, error
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = getattr(error.certificate_error, "verify_message", what)
            what = f"its certificate is not trusted ({why}); SSL_CERT_FILE names others to trust"
            return what, 1, error
        if isinstance(error, aiohttp.ClientSSLError):
            why = getattr(error.os_error, "reason", what)
            return f"no secure connection to {error.host}:{error.port} ({why})", 1, error
        if isinstance(error, aiohttp.ClientConnectorError):
            number = error.os_error.errno or 0
            why = os.strerror(number) if number > 0 else error.os_error.strerror or what
            what = f"cannot connect to {error.host}:{error.port} ({why})"
            return what, _FEW if is_first else _TRIES, error
    if isinstance(error, OSError):
        what = error.strerror or what
    return what, 1 if isinstance(error, _FINAL) else _TRIES, error


def _reason(error: Exception) -> BaseException:
    """Return what went wrong: fsspec says that a URL is missing if it cannot be reached, too."""
    cause = error.__cause__
    is_hidden = isinstance(error, FileNotFoundError) and cause is not None
    if not is_hidden or isinstance(cause, LookupError | FileNotFoundError):
        return error
    return error if getattr(cause, "status", None) in _GONE else cause or error


# ----------------------------------------------------------------------------------------- files


class _WebFile:
    """A file of an HTTP server.

    Attributes
    ----------
    version : dict
        Empty until the server has answered.
    """

    def __init__(self, fs: Any, path: str, url: str, timeout: float) -> None:
        self._fs, self._path, self._url, self._timeout = fs, path, url, timeout
        self._whole: Any = None  # the answer of a server without ranges
        self._part = bytearray()  # of the range that is read
        self.version: Version = {}

    async def look(self) -> None:
        """Ask for the version. Raises `DataError` if it is not that of before."""
        if (answer := await self._look()) is not None:
            answer.close()

    async def _look(self) -> Any:
        """Ask for the first byte; return the answer if it has the whole file instead."""
        answer, n = await self._ask(0, 1)
        if answer.status == 200:
            return answer
        if answer.status == 206:
            await self._read_range(answer, bytearray(), n)  # so that the connection stays open
        else:
            answer.close()
        return None

    async def read(self, begin: int) -> bytes | bytearray:
        """Return the bytes from `begin` on, up to `RANGE`; none at the end of the file.

        If it fails, what came is kept for the next call.
        """
        if not self.version:
            self._whole = await self._look()
        part, size = self._part, self.version["length"]
        if self._whole is None and begin < size:
            answer, n = await self._ask(begin + len(part), min(begin + RANGE, size))
            if answer.status == 200:
                self._whole = answer
            else:
                await self._read_range(answer, part, len(part) + n)
        if self._whole is not None:
            await self._read_on(self._whole, begin, part)
        self._part = bytearray()
        return part

    async def _read_range(self, answer: Any, part: bytearray, size: int) -> None:
        """Read until a part has `size` bytes, which must be the end of the body."""
        try:
            await self._fill(answer, part, size)
            if len(part) < size:
                raise OSError("the connection was closed too early")
            async with asyncio.timeout(self._timeout):
                if await answer.content.read(1):
                    raise DataError(f"{self._url}: the server sends more than its headers say")
        finally:
            answer.release()  # closes the connection unless the body was read to its end

    async def _read_on(self, answer: Any, begin: int, part: bytearray) -> None:
        """Read on in the only answer of a server without ranges."""
        import aiohttp

        size, why = self.version["length"], "the file ended"
        try:
            await self._fill(answer, part, RANGE)
            if len(part) == RANGE or size in (None, begin + len(part)):
                return
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            is_end = isinstance(error, aiohttp.ClientPayloadError)
            why = "the connection was closed" if is_end else first_line(error)
        raise DataError(
            f"cannot read {self._url}: it broke off after {begin + len(part):,} bytes ({why}), and "
            "the server cannot continue there, because it does not support ranges; run the "
            "command again, or download the file first"
        )

    async def _fill(self, answer: Any, part: bytearray, size: int) -> None:
        """Read until a part has `size` bytes, or the body ends."""
        while len(part) < size:
            async with asyncio.timeout(self._timeout):
                data = await answer.content.read(size - len(part))
            if not data:
                return
            part += data

    async def _ask(self, begin: int, end: int) -> tuple[Any, int]:
        """Ask for a range; return the answer, whose body is unread, and the bytes in it."""
        import aiohttp

        own = self._fs.kwargs
        headers = {**own.get("headers", {}), "Range": f"bytes={begin}-{end - 1}"}
        options = {**own, "headers": headers, "timeout": aiohttp.ClientTimeout(total=None)}
        async with asyncio.timeout(self._timeout):
            session = await self._fs.set_session()
            answer = await session.get(self._fs.encode_url(self._path), **options)
        try:
            n, version = self._judge(answer, begin, end)
            _refuse_change(self._url, self.version, version)
        except BaseException:
            answer.close()
            raise
        self.version = version
        return answer, n

    def _judge(self, answer: Any, begin: int, end: int) -> tuple[int, Version]:
        """Return the bytes in the body and the version of the file, by status and headers.

        Raises
        ------
        DataError
            The body is not what was asked for.
        OSError
            The server has an error that may go away.
        """
        status, headers = answer.status, answer.headers
        what = f"the server answers {status} {answer.reason or ''}".strip()[:80]
        if status in _GONE:
            raise FileNotFoundError(self._url)
        if status in _PASSING:
            raise OSError(what)
        if status not in (200, 206, 416):
            advice = "; check the address and your rights to it" if status in (401, 403) else ""
            raise DataError(f"cannot read {self._url}: {what}{advice}")
        coding = headers.get("Content-Encoding", "").strip().lower()[:40]
        if status != 416 and not all(part.strip() in _PLAIN for part in coding.split(",")):
            raise self._encoded(coding)
        sent = answer.content_length
        marks = {name: headers.get(name) for name in ("ETag", "Last-Modified")}
        if status == 200:
            if begin:
                raise DataError(
                    f"{self._url}: the server was asked for bytes {begin}-{end - 1} and sends the "
                    "whole file; download it first"
                )
            if sent is None and "chunked" not in headers.get("Transfer-Encoding", "").lower():
                raise self._unknown()
            return sent or 0, {"length": sent, **marks}
        text = headers.get("Content-Range", "").strip()
        if status == 416:
            total = re.fullmatch(r"bytes \*/(\d+)", text, re.I)
            length = int(total[1]) if total else 0
            if length > begin or (begin and not total):
                raise DataError(
                    f"cannot read {self._url}: {what} to bytes {begin}-{end - 1}; run the command "
                    "again, or download the file first"
                )
            return 0, {"length": length, **marks}
        if not (match := re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", text, re.I)):
            raise DataError(
                f"{self._url}: the server sends a part of the file without saying which "
                f"(Content-Range: {text[:80]!r}); download it first"
            )
        first, last = int(match[1]), int(match[2])
        if match[3] == "*":
            raise self._unknown()
        total_bytes = int(match[3])
        if first != begin or not first <= last < min(end, total_bytes):
            raise DataError(
                f"{self._url}: the server was asked for bytes {begin}-{end - 1} and sends "
                f"{text[:80]}; download the file first"
            )
        n = last - first + 1
        if sent not in (None, n):
            raise DataError(
                f"{self._url}: the server was asked for {count(n, 'byte')} and sends {sent:,}; "
                "download the file first"
            )
        return n, {"length": total_bytes, **marks}

    def _encoded(self, coding: str) -> DataError:
        """Return the error about a body that is compressed on the way."""
        advice = f"save it with curl --compressed -O {self._url}"
        if without_query(self._url).endswith(".gz") and "gzip" in coding:
            advice = f"save the .gz file with curl -O {self._url}"
        return DataError(
            f"{self._url}: the server sends it with Content-Encoding: {coding}, so its length is "
            f"unknown; {advice} and read that, or have the server send the file as it is"
        )

    def _unknown(self) -> DataError:
        return DataError(
            f"{self._url}: the server does not state the length of the file; download it first"
        )

    def close(self) -> None:
        """Close the connection; call in the loop."""
        if self._whole is not None:
            self._whole.close()


class _ServiceFile:
    """A file that functions of fsspec read.

    Attributes
    ----------
    version : dict
        Empty until the service has answered.
    """

    def __init__(self, fs: Any, path: str, url: str, timeout: float) -> None:
        self._fs, self._path, self._url, self._timeout = fs, path, url, timeout
        self.version: Version = {}

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        async with asyncio.timeout(self._timeout):
            return await asyncio.to_thread(function, *arguments)

    async def look(self) -> None:
        """Ask for the version. Raises `DataError` if it is not that of before."""
        self._fs.invalidate_cache()
        info = await self._call(self._fs.info, self._path)
        if info.get("size") is None:
            raise DataError(
                f"{self._url}: the service does not state the length of the file; download it first"
            )
        marks = {key: str(info[key]) for key in info if _plain(key) in _MARKS}
        version = {"length": int(info["size"]), **marks}
        _refuse_change(self._url, self.version, version)
        self.version = version

    async def read(self, begin: int) -> bytes:
        """Return the bytes from `begin` on, up to `RANGE`; none at the end of the file."""
        if not self.version:
            await self.look()
        end = min(begin + RANGE, self.version["length"])
        if begin == end:
            return b""
        try:
            data = await self._call(self._fs.cat_file, self._path, begin, end)
        except Exception as error:
            if not isinstance(error, TimeoutError):
                await self.look()  # it may fail because the file has changed
            raise
        if len(data) != end - begin:
            await self.look()
            if len(data) > end - begin:
                raise DataError(f"{self._url}: the service does not support ranges; download it")
            raise OSError(f"found {len(data)} of {end - begin} bytes")
        return bytes(data)

    def close(self) -> None:
        """Do nothing."""


def _plain(key: object) -> str:
    return re.sub("[^a-z0-9]", "", str(key).lower())


def _refuse_change(url: str, before: Version, now: Version) -> None:
    """Raise `DataError` if the version of a file has changed."""
    for name, old in before.items():
        new = now.get(name)
        if new != old and (name != "length" or None not in (old, new)):
            was, is_now = (count(x, "byte") if isinstance(x, int) else x or "-" for x in (old, new))
            raise DataError(
                f"{url} changed while it was read: its {name} was {was} and now is {is_now}; run "
                "the command again when the file is complete"
            )


def _open(url: str, terms: Terms) -> _WebFile | _ServiceFile:
    fs, path = _file_system(url)
    kind = _WebFile if url.partition("://")[0].lower() in _WEB else _ServiceFile
    return kind(fs, path, url, terms.timeout)


def find_remote(url: str) -> list[str]:
    """Return the URLs that a URL or glob stands for.

    Raises `DataError` if a glob matches nothing.
    """
    fs, path = _file_system(url)
    if "*" not in without_query(path):
        return [url]
    terms = current_terms()

    async def look() -> list[str]:
        async with asyncio.timeout(terms.timeout):
            return sorted(await asyncio.to_thread(fs.glob, path))

    paths = _run(_insist(url, terms, look), terms)
    if not paths:
        raise DataError(f"{url} matches no files")
    return [str(fs.unstrip_protocol(found)) for found in paths]


def remote_size(url: str) -> int:
    """Return the bytes of a remote file, 0 if unknown.

    Raises `DataError` if it is missing, or cannot be read.
    """
    terms = current_terms()
    file = _open(url, terms)
    _run(_insist(url, terms, file.look), terms)
    return int(file.version["length"] or 0)


class RemoteFile(io.RawIOBase):
    """A remote file that is read once, from begin to end, as `remote_terms` said.

    Parameters
    ----------
    url : str
    is_over : callable
        Called while waiting; if true, `KeyboardInterrupt` is raised.
    terms : Terms, optional
        Default: those of now.

    Raises
    ------
    DataError
        While reading: the file cannot be read, or has changed.
    KeyboardInterrupt
        While reading: it was stopped.
    """

    def __init__(
        self, url: str, is_over: Callable[[], bool] = lambda: False, terms: Terms | None = None
    ) -> None:
        self._url, self._is_over = url, is_over
        self._terms = terms or current_terms()
        self._file = _open(url, self._terms)
        self._begin, self._is_end = 0, False  # of the next range, and whether there is none
        self._range = memoryview(b"")
        self._coming: concurrent.futures.Future[bytes | bytearray] | None = _started(self._next())

    async def _next(self) -> bytes | bytearray:
        """Return the next range; at the end, nothing if the file has not changed meanwhile."""
        file = self._file
        size = file.version.get("length")
        if self._is_end or self._begin == size:
            if any(mark is not None for mark in file.version.values()):
                await _insist(self._url, self._terms, file.look, is_first=False)
            return b""
        data = await _insist(
            self._url, self._terms, lambda: file.read(self._begin), is_first=not file.version
        )
        self._begin += len(data)
        self._is_end = file.version["length"] is None and len(data) < RANGE
        return data or await self._next()

    def readable(self) -> bool:  # noqa: D102  as of the base class
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: D102
        if not self._range:
            if self._coming is None:
                return 0
            self._range = memoryview(_result(self._coming, self._is_stopped))
            self._coming = _started(self._next()) if self._range else None
        n = min(len(buffer), len(self._range))
        buffer[:n] = self._range[:n]
        self._range = self._range[n:]
        return n

    def _is_stopped(self) -> bool:
        return self._is_over() or self._terms.is_stopped()

    def close(self) -> None:  # noqa: D102
        if not self.closed:
            if self._coming is not None:
                self._coming.cancel()
            _loop().call_soon_threadsafe(self._file.close)
        super().close()


def fetch(url: str, ending: str, size: int) -> Any:
    """Copy a remote file to a temporary file, which exists as long as the object returned.

    Parameters
    ----------
    size : int
        Bytes of the file, 0 if unknown.

    Raises
    ------
    DataError
        The file cannot be read, or does not fit.
    """
    place = "the temporary folder"
    try:
        place = tempfile.gettempdir()
        free = shutil.disk_usage(place).free
        if size > free:
            raise OSError(errno.ENOSPC, f"only {free:,} bytes are free")
        with contextlib.ExitStack() as until:
            copy = tempfile.NamedTemporaryFile(prefix="sbm-", suffix=ending)  # noqa: SIM115
            until.callback(copy.close)
            with RemoteFile(url) as file:
                shutil.copyfileobj(file, copy, RANGE)
            copy.flush()
            until.pop_all()
        return copy
    except OSError as error:
        needed = f", {size:,} bytes," if size else ""
        raise DataError(
            f"cannot copy {url}{needed} to {place} ({error.strerror or error}); set TMPDIR to a "
            "folder with more room, or download the file first"
        ) from error
