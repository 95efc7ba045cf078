"""Files of machine code: where they are, and which of them are trusted.

Each kernel and combination of argument types has a file of its own in a cache folder, a shared
library followed by a checksum. A wheel has one library with all of them, in ``sbm/native``. Files
that another user could have written are ignored, as are damaged ones.
"""

import atexit
import contextlib
import functools
import os
import stat
import time
import zlib
from pathlib import Path

from sbm.compiled.processor import PACKAGE, machine

__all__ = [
    "COMPILE_HERE",
    "FOLDER",
    "NATIVE",
    "file_name",
    "folder",
    "keep",
    "places",
    "read",
    "unusable",
]

# Names the folder for machine code, instead of the default ones.
FOLDER = "SBM_CACHE_DIR"
# Set in the environment of a process that may compile.
COMPILE_HERE = "SBM_COMPILE_HERE"
# The libraries of a wheel, named after the level of processor that they are compiled for.
NATIVE = PACKAGE / "native"
SUFFIX = ".kernel"
_DAY = 86400.0
# Files that nothing has loaded for so long are deleted: of earlier versions, or other processors.
KEPT_DAYS = 60
# So many sources, compilers and processors are kept of each kernel: who edits kernels makes many.
KEPT_VERSIONS = 8


def _candidates() -> list[Path]:
    """Return possible folders for machine code: the user's cache, or next to the source."""
    if os.environ.get(FOLDER):
        return [Path(os.environ[FOLDER]).absolute()]
    caches = [os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")]
    user = [Path(cache, "sbm") for cache in caches if os.path.isabs(cache)]
    return [*user[:1], PACKAGE / "__pycache__"]


@functools.cache
def folder() -> Path:
    """Return the folder for machine code; a temporary one if no other is usable."""
    for place in _candidates():
        with contextlib.suppress(OSError):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.mkdir(mode=0o755, exist_ok=True)
        if _is_safe(place) and os.access(place, os.W_OK | os.X_OK):
            return place
    import shutil
    import tempfile

    try:
        passing = Path(tempfile.mkdtemp(prefix="sbm-"))
    except OSError:
        return _candidates()[-1]  # not writable: each process compiles again
    atexit.register(shutil.rmtree, passing, ignore_errors=True)
    return passing


def unusable() -> list[Path]:
    """Return the folders that cannot be used, if machine code is kept only temporarily."""
    return [] if folder() in _candidates() else _candidates()


def places() -> list[Path]:
    """Return the folders searched for machine code, the one written to first."""
    wanted = dict.fromkeys([folder(), *_candidates()])
    return [place for place in wanted if _is_safe(place)]


def _is_safe(file: Path | int) -> bool:
    """Whether a file or folder exists and no untrusted user can write to it."""
    try:
        return _is_ours(os.stat(file), PACKAGE.stat())
    except OSError:
        return False


def _is_ours(status: os.stat_result, package: os.stat_result) -> bool:
    """Whether only we, root, and users who can write our source can write to it."""
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) & ~package.st_mode
    if status.st_gid != package.st_gid:
        others |= status.st_mode & stat.S_IWGRP
    return status.st_uid in (os.geteuid(), 0, package.st_uid) and not others


def file_name(symbol: str) -> str:
    """Return the name of the file of a symbol, compiled for this machine."""
    return f"{symbol}.{machine()}{SUFFIX}"


def checksum(name: str, library: bytes) -> bytes:
    """Return what follows a library in its file; it includes the name, as files get renamed."""
    return zlib.crc32(library, zlib.crc32(name.encode())).to_bytes(4, "little")


def pack(name: str, library: bytes) -> bytes:
    """Return the content of the file with this name."""
    return library + checksum(name, library)


def unpack(name: str, data: bytes) -> bytes | None:
    """Return the library in a file's content; None if it is damaged, or of another file."""
    library = data[:-4]
    return library if data == pack(name, library) else None


def native(level: str) -> Path | None:
    """Return the path of a wheel's library for a level of processor, if it is sound and safe."""
    path = NATIVE / f"{level}{SUFFIX}"
    crc, last = zlib.crc32(path.name.encode()), b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if not _is_safe(file.fileno()) or not _is_safe(NATIVE):
            return None
        while piece := file.read(1 << 16):  # the whole would count as memory
            crc, last = zlib.crc32((last + piece)[:-4], crc), (last + piece)[-4:]
        return path if last == crc.to_bytes(4, "little") else None
    return None


def read(name: str) -> tuple[Path, bytes] | None:
    """Return path and library of a file, or None if no intact and safe one exists."""
    for place in places():
        path = place / name
        with contextlib.suppress(OSError), open(path, "rb") as file:
            status = os.fstat(file.fileno())
            library = unpack(name, file.read()) if _is_safe(file.fileno()) else None
            if library is not None:
                if status.st_mtime < time.time() - _DAY:
                    os.utime(path)
                return path, library
    return None


def keep(name: str, data: bytes) -> None:
    """Write a file if possible."""
    place = folder()
    partial = place / f"{name}.{os.getpid()}.{time.monotonic_ns()}"  # several may compile at once
    try:
        place.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb", opener=open_for_us) as file:
            file.write(data)
        partial.replace(place / name)
    except OSError:  # it is compiled again next time
        with contextlib.suppress(OSError):
            partial.unlink()


def delete_old() -> None:
    """Delete files that nothing has loaded for `KEPT_DAYS`, and all but `KEPT_VERSIONS` of each."""
    versions: dict[str, int] = {}
    oldest = time.time() - KEPT_DAYS * _DAY
    with contextlib.suppress(OSError):
        files = [(file.stat().st_mtime, file) for file in folder().glob(f"*{SUFFIX}*")]
        for used, file in sorted(files, reverse=True):
            kernel = file.name.rsplit(".", 3)[0] if file.name.endswith(SUFFIX) else file.name
            versions[kernel] = versions.get(kernel, 0) + 1
            if used < oldest or versions[kernel] > KEPT_VERSIONS:
                file.unlink(missing_ok=True)


def open_for_us(path: str, flags: int) -> int:
    """Open a file that others can never write, for any umask."""
    return os.open(path, flags, 0o644)
