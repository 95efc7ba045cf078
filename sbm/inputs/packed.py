"""Decompression of inputs in bounded memory.

A read expands to at most `MOST` bytes, however well the input is compressed, and the window of a
decompressor is limited to what the memory plan has for it.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sbm.inputs.urls import without_query

MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

MOST = 1 << 17  # bytes that a call of a decompressor returns, at most; as a block of zstd has
USUAL = 8 << 20  # bytes for a window in any plan: gzip, bzip2, zstd up to level 19, xz up to 6
_BITE = 1 << 16  # compressed bytes read at a time
_HEAD = 1 << 12  # bytes of a file that include the header of its first frame
_SKIPPED = b"\x2a\x4d\x18"  # ends the magic number of frames of zstd without content
# Sizes of the dictionary in .xz, with the rest that its decompressor needs.
_XZ = [(size << 19) + (1 << 20) for k in range(1, 13) for size in (1 << k, 3 << (k - 1))]

Read = Callable[[int], bytes]


def errors() -> tuple[type[Exception], ...]:
    """Return the exceptions for damaged input."""
    from lzma import LZMAError

    from zstandard import ZstdError

    return OSError, EOFError, zlib.error, _gzip_library().error, ZstdError, LZMAError


class WindowError(Exception):
    """Input that needs a larger window than planned.

    Attributes
    ----------
    size : int
        Bytes that the decompressor needs.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"the window takes {size} bytes")
        self.size = size


def is_packed(name: str) -> bool:
    """Whether a file name has the ending of a compression format."""
    return _ending(name) in _OPENERS


def _ending(name: str) -> str:
    """Return the ending of a file name or URL."""
    return Path(without_query(name)).suffix.lower()


def window_of(name: str) -> int:
    """Return the bytes for the window of a file, judging by its first frame; 0 up to `USUAL`."""
    kind = _ending(name)
    if kind not in _OPENERS or not os.path.isfile(name):
        return 0
    try:
        with open(name, "rb") as file:
            next(_OPENERS[kind](file.read, USUAL), b"")
    except WindowError as error:
        return error.size
    except errors():  # reported when it is read
        pass
    return 0


class Unpacked:
    """A stream of the decompressed bytes of a compressed one.

    Parameters
    ----------
    read : callable
        Reads up to a number of compressed bytes.
    name : str
        The ending is the compression.
    window : int
        Maximum bytes for the window.
    """

    def __init__(self, read: Read, name: str, window: int) -> None:
        self._pieces = _OPENERS[_ending(name)](read, max(window, USUAL))
        self._left = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        """Fill the buffer and return the bytes read: 0 at the end.

        Raises
        ------
        WindowError
            A frame needs a larger window.
        One of `errors`
            The input is damaged or truncated.
        """
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        n = min(len(buffer), len(self._left))
        buffer[:n] = self._left[:n]
        self._left = self._left[n:]
        return n


def _frames(read: Read, begin: Callable[[], Any], padding: bytes = b"") -> Iterator[bytes]:
    """Yield the decompressed bytes of consecutive frames, in pieces of at most `MOST`.

    Parameters
    ----------
    begin : callable
        Returns the decompressor of the next frame, as of zlib, bz2 or lzma.
    padding : bytes
        Bytes allowed between frames.
    """
    data = read(_BITE)
    while data:
        if not (data := data.lstrip(padding)):
            data = read(_BITE)
            continue
        frame = begin()
        while not frame.eof:
            plain = frame.decompress(data, MOST)
            yield plain
            data = getattr(frame, "unconsumed_tail", b"")  # zlib returns what it did not read
            if not plain and not data and not frame.eof and not (data := read(_BITE)):
                raise EOFError("truncated inside a frame")
        data = frame.unused_data or read(_BITE)


def _gzip_library() -> Any:
    """Return what decompresses gzip: isal, which takes a third of the time, or else zlib."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def _gzip(read: Read, window: int) -> Iterator[bytes]:
    begin = _gzip_library().decompressobj
    # gzip is read with 16 added to the logarithm of its window, 15.
    return _frames(read, lambda: begin(16 + 15), b"\0")


def _bz2(read: Read, window: int) -> Iterator[bytes]:
    from bz2 import BZ2Decompressor

    return _frames(read, BZ2Decompressor)


def _xz(read: Read, window: int) -> Iterator[bytes]:
    import lzma

    data = read(_HEAD)

    def again(size: int) -> bytes:
        nonlocal data
        part, data = data or read(size), b""
        return part

    def begin() -> Any:
        return lzma.LZMADecompressor(memlimit=window + (1 << 20))

    head = data
    try:
        yield from _frames(again, begin, b"\0")
    except lzma.LZMAError as error:
        if "limit" not in str(error):
            raise
        raise WindowError(
            next((n for n in _XZ if n > window and _fits(head, n)), 1 << 32)
        ) from error


def _fits(head: bytes, limit: int) -> bool:
    """Whether the begin of a .xz file can be decompressed with a limit of memory."""
    import lzma

    try:
        lzma.LZMADecompressor(memlimit=limit).decompress(head, 1)
    except lzma.LZMAError:
        return False
    return True


def _zstd(read: Read, window: int) -> Iterator[bytes]:
    """Yield the decompressed bytes of each block of consecutive frames of zstd.

    The library decompresses all that it is given, which can be 30,000 times as much, and does not
    detect truncation.
    """
    import zstandard

    data = b""

    def take(size: int) -> bytes:
        nonlocal data
        while len(data) < size:
            if not (more := read(_BITE)):
                raise EOFError("truncated inside a frame")
            data += more
        part, data = data[:size], data[size:]
        return part

    while data or (data := read(_BITE)):
        head = take(5)
        if head[1:4] == _SKIPPED:
            left = int.from_bytes(head[4:] + take(3), "little")
            while left:
                left -= len(take(min(left, _BITE)))
            continue
        head += take(zstandard.frame_header_size(head) - len(head))
        facts = zstandard.get_frame_parameters(head)
        if facts.window_size > window:
            raise WindowError(facts.window_size)
        frame = zstandard.ZstdDecompressor(max_window_size=window).decompressobj()
        yield frame.decompress(head)
        is_last = 0
        while not is_last:
            begin = take(3)
            number = int.from_bytes(begin, "little")
            is_last, is_repeated = number & 1, number >> 1 & 3 == 1
            yield frame.decompress(begin + take(1 if is_repeated else number >> 3))
        if facts.has_checksum:
            yield frame.decompress(take(4))
        if not frame.eof:
            raise EOFError("truncated inside a frame")


_OPENERS: dict[str, Callable[[Read, int], Iterator[bytes]]] = {
    ".gz": _gzip,
    ".bz2": _bz2,
    ".xz": _xz,
    ".zst": _zstd,
}
PACKED = tuple(_OPENERS)  # endings of compressed files
