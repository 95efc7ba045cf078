"""A file system that fails on demand; each call of a process is a numbered point.

`Layer.install` replaces the functions of Python through which files are opened, read, written,
synced, renamed, removed and locked. Each call on something below the folder is a *point*, and at
one of them there may be `Trouble`:

* ``before``, ``after``, ``mid``: the process is killed (SIGKILL) before the call, after it, or in
  the middle of a write, with half of the bytes written;
* ``power``: the machine loses power before the call. What was written to a file since it was last
  synced may be gone, in part or as zeros, and so may be each change of a name since its folder was
  synced, one without the other;
* ``fail``: the call fails with an error, this one alone or (``lasting``) from then on;
* ``short``: a write takes half of the bytes, as it may;
* ``gone``: the file was removed.

It is meant for a process that ends by itself or is killed; nothing takes the layer out again.
"""

import builtins
import contextlib
import errno
import fcntl
import io
import os
import random
import shutil
import signal
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import sbm.store.files

KILLS = ("before", "after", "mid", "power")

# Kinds of points that change what is on disk, or make it durable.
CHANGES = frozenset(
    ["create", "write", "truncate", "shorten", "sync", "sync folder", "close", "rename", "unlink",
     "mkdir", "rmdir"]
)  # fmt: skip
_BY_HANDLE = ("read", "write", "truncate", "sync", "sync folder", "close", "lock")
_FULL = frozenset(
    ["create", "write", "truncate", "sync", "sync folder", "close", "rename", "mkdir"]
)
# The kinds of points at which an error is one that happens.
_ERRORS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EIO: CHANGES | {"open", "read", "list", "lock", "stat"},
    errno.EROFS: CHANGES - {"write", "close", "sync", "sync folder"},
    errno.EACCES: CHANGES - {"write", "close", "sync", "sync folder"} | {"open", "list"},
}


@dataclass(frozen=True)
class Point:
    """A call."""

    kind: str  # one of `CHANGES`, or open, read, list, lock, stat
    name: str  # of what it was about, below the folder

    @property
    def changes(self) -> bool:
        """Whether the disk may be another one after it."""
        return self.kind in CHANGES


@dataclass(frozen=True)
class Trouble:
    """What goes wrong, and at which point."""

    at: int  # number of the point, from 0
    how: str  # ``before``, ``after``, ``mid``, ``power``, ``fail``, ``short`` or ``gone``
    error: int = 0  # of ``fail``: an error number
    lasting: bool = False  # of ``fail``: from then on
    seed: int = 0  # of ``power``: decides what survives

    def __str__(self) -> str:
        what = f" {errno.errorcode[self.error]}" if self.how == "fail" else ""
        return f"{self.how}{what}{' from then on' if self.lasting else ''} at point {self.at}"


def applies(how: str, error: int, kind: str) -> bool:
    """Whether some trouble makes sense at a kind of point."""
    if how == "fail":
        return kind in _ERRORS[error]
    if how in ("short", "mid"):
        return kind == "write"
    if how == "gone":
        return kind in ("open", "rename", "unlink")
    return kind in CHANGES


# ------------------------------------------------------------------------------ what is durable


@dataclass
class _Change:
    """A change of names that may not survive: how to take it back."""

    kind: str
    paths: list[str]  # of a rename: the old name and the new one
    saved: str | None = None  # where the content lies that the change removed

    @property
    def folders(self) -> set[str]:
        """Each of them, once synced, makes the change durable."""
        return {os.path.dirname(self.paths[-1])}


class _Disk:
    """What would be lost without power: bytes and names that are not synced."""

    def __init__(self, root: str, shadow: str) -> None:
        self._root, self._shadow = root, shadow
        self._changes: list[_Change] = []
        self._durable: dict[int, int] = {}  # bytes of a file, by inode, that are on the disk
        self._n_saved = 0

    def touch(self, path: str, truncated: bool) -> None:
        """Note that a file is open for writing."""
        with contextlib.suppress(OSError):
            found = _real_stat(path)
            if truncated:
                self._durable[found.st_ino] = 0
            else:
                self._durable.setdefault(found.st_ino, found.st_size)

    def sync(self, handle: int) -> None:
        found = _real_fstat(handle)
        self._durable[found.st_ino] = found.st_size

    def sync_folder(self, path: str) -> None:
        self._changes = [c for c in self._changes if path not in c.folders]

    def save(self, path: str) -> str | None:
        """Keep the file that is about to lose its name."""
        if not os.path.lexists(path) or _is_folder(path):
            return None
        with contextlib.suppress(FileExistsError):
            _real["mkdir"](self._shadow)
        self._n_saved += 1
        place = os.path.join(self._shadow, str(self._n_saved))
        os.link(path, place)
        return place

    def note(self, kind: str, paths: list[str], saved: str | None = None) -> None:
        self._changes.append(_Change(kind, paths, saved))
        if kind in ("rename", "swap"):
            self._translate(paths[0], paths[1], kind == "swap", self._changes[:-1])

    @staticmethod
    def _translate(old: str, new: str, both: bool, changes: list[_Change]) -> None:
        """Let changes below a folder follow it to its new name."""
        ways = [(old, new), (new, old)] if both else [(old, new)]
        for change in changes:
            for k, path in enumerate(change.paths):
                for a, b in ways:
                    if path.startswith(a + os.sep):
                        change.paths[k] = b + path[len(a) :]
                        break

    def lose(self, seed: int) -> None:
        """Leave on the disk what may be there when the power comes back."""
        choose = random.Random(seed)
        share = choose.choice([0.0, 0.5, 1.0])  # of the changes that are lost
        self._lose_bytes(choose, share)
        held: set[str] = set()
        changes = list(self._changes)
        while changes:
            change = changes.pop()
            if held.isdisjoint(change.paths) and choose.random() < share:
                self._take_back(change, changes)
            else:
                held.update(change.paths)

    def _lose_bytes(self, choose: random.Random, share: float) -> None:
        for folder, _, names in sorted(os.walk(self._root)):
            for name in sorted(names):
                path = os.path.join(folder, name)
                found = _real_stat(path)
                durable = self._durable.get(found.st_ino, found.st_size)
                if durable >= found.st_size or choose.random() >= share:
                    continue
                end = choose.choice([durable, choose.randint(durable, found.st_size)])
                with _real_open(path, "rb+") as file:
                    file.truncate(end)
                    if choose.random() < 0.3:  # the size is there, the bytes are not
                        file.truncate(found.st_size)

    def _take_back(self, change: _Change, before: list[_Change]) -> None:
        paths = change.paths
        with contextlib.suppress(OSError):
            if change.kind == "create":
                _real["unlink"](paths[0])
            elif change.kind == "mkdir":
                shutil.rmtree(paths[0])
            elif change.kind == "rmdir":
                _real["mkdir"](paths[0])
            elif change.kind == "unlink":
                if change.saved is not None:
                    _real["rename"](change.saved, paths[0])
            elif change.kind == "swap":
                between = paths[0] + ".between"
                for a, b in ((paths[0], between), (paths[1], paths[0]), (between, paths[1])):
                    _real["rename"](a, b)
                self._translate(paths[0], paths[1], True, before)
            elif change.kind == "rename":
                _real["rename"](paths[1], paths[0])
                self._translate(paths[1], paths[0], False, before)
                if change.saved is not None:
                    _real["rename"](change.saved, paths[1])


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(_real_stat(path).st_mode)


# ------------------------------------------------------------------------------------ the layer

_real_open, _real_stat, _real_fstat, _real_lock = io.open, os.stat, os.fstat, fcntl.flock
_real: dict[str, Callable[..., Any]] = {
    name: getattr(os, name)
    for name in ("open", "close", "dup", "fsync", "rename", "replace", "unlink", "remove", "mkdir",
                 "rmdir", "scandir", "listdir", "preadv", "stat",
                 "truncate")
}  # fmt: skip


@dataclass
class Layer:
    """Counts the calls of this process on what lies below a folder, and troubles one of them."""

    folder: Path
    trouble: Trouble | None = None  # default: the points are only counted
    points: list[Point] = field(default_factory=list)  # those there were

    def __post_init__(self) -> None:
        self._root = os.path.realpath(self.folder)
        self._lock = threading.RLock()
        self._paths: dict[int, str] = {}  # of open handles
        self._disk = _Disk(self._root, self._root + ".shadow")
        self._troubled = False

    # -------------------------------------------------------------------------------- the points

    def call(
        self, kind: str, path: str, do: Callable[[], Any], half: Callable[[], Any] | None = None
    ) -> Any:
        """Do what a call asks for, unless this is the point for something else."""
        if kind not in CHANGES:  # reads may go on side by side
            if self._is_trouble(kind, path):
                self._fail(kind, path)
            return do()
        with self._lock:  # nothing else changes while a kill is under way
            if not self._is_trouble(kind, path):
                return do()
            trouble = cast(Trouble, self.trouble)
            if trouble.how in KILLS:
                self._kill(trouble, do, half)
            if trouble.how == "short":
                return half() if half else do()
            if kind == "close":
                do()
            return self._fail(kind, path)

    def _is_trouble(self, kind: str, path: str) -> bool:
        """Count a point; tell whether it is the one.

        Threads change the numbers a little, so it is the first one of a fitting kind from there on.
        """
        with self._lock:
            number = len(self.points)
            self.points.append(Point(kind, os.path.relpath(path, self._root)))
            trouble = self.trouble
            if trouble is None or number < trouble.at or (self._troubled and not trouble.lasting):
                return False
            found = applies(trouble.how, trouble.error, kind)
            self._troubled = self._troubled or found
            return found

    def _kill(
        self, trouble: Trouble, do: Callable[[], Any], half: Callable[[], Any] | None
    ) -> NoReturn:
        if trouble.how == "power":
            self._disk.lose(trouble.seed)
        elif trouble.how == "after":
            do()
        elif trouble.how == "mid" and half:
            half()
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
        raise AssertionError("killed")

    def _fail(self, kind: str, path: str) -> NoReturn:
        """Fail as the system does: without a name where the call has a handle alone."""
        trouble = cast(Trouble, self.trouble)
        code = trouble.error
        if trouble.how == "gone":
            code = errno.ENOENT
            with contextlib.suppress(OSError):
                _real["unlink"](path)
        if kind in _BY_HANDLE:
            raise OSError(code, os.strerror(code))
        raise OSError(code, os.strerror(code), os.path.relpath(path, self._root))

    # ---------------------------------------------------------------------------------- the calls

    def _path(self, name: Any, dir_fd: int | None = None) -> str | None:
        """Return the full path of what is ours; None for all else."""
        if isinstance(name, int):
            return self._paths.get(name)
        try:
            text = os.fsdecode(os.fspath(name))
        except TypeError:
            return None
        if dir_fd is not None:
            folder = self._paths.get(dir_fd)
            if folder is None:
                return None
            text = os.path.join(folder, text)
        path = os.path.normpath(os.path.join(os.getcwd(), text))
        return path if path == self._root or path.startswith(self._root + os.sep) else None

    def install(self) -> None:
        """Put the layer between this process and its files."""
        builtins.open = io.open = self._open  # type: ignore[assignment]
        fcntl.flock = self._flock
        for name in _real:
            setattr(os, name, getattr(self, f"_os_{name}", None) or self._simple(name))
        files: Any = sbm.store.files
        files._swap = self._swap(files._swap)

    def _simple(self, name: str) -> Callable[..., Any]:
        """Return a wrapper of a function that takes one name."""
        do = _real[name]
        kind = {
            "scandir": "list", "listdir": "list", "preadv": "read", "remove": "unlink",
        }.get(name, name)  # fmt: skip

        def wrapped(path: Any = ".", *more: Any, **options: Any) -> Any:
            ours = self._path(path, options.get("dir_fd"))
            if ours is None:
                return do(path, *more, **options)
            if kind == "unlink":
                return self.call(kind, ours, lambda: self._remove(ours))
            done = self.call(kind, ours, lambda: do(path, *more, **options))
            if kind in ("mkdir", "rmdir"):
                self._disk.note(kind, [ours])
            return done

        return wrapped

    def _remove(self, path: str) -> None:
        saved = self._disk.save(path) if self.trouble and self.trouble.how == "power" else None
        _real["unlink"](path)
        self._disk.note("unlink", [path], saved)

    def _os_rename(self, a: Any, b: Any, **options: Any) -> None:
        old, new = self._path(a), self._path(b)
        if old is None or new is None:
            _real["rename"](a, b, **options)
            return

        def rename() -> None:
            power = self.trouble is not None and self.trouble.how == "power"
            saved = self._disk.save(new) if power else None
            _real["rename"](old, new)
            for handle, path in self._paths.items():
                if path == old or path.startswith(old + os.sep):
                    self._paths[handle] = new + path[len(old) :]
            self._disk.note("rename", [old, new], saved)

        self.call("rename", old, rename)

    _os_replace = _os_rename

    def _os_open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        ours = self._path(path, dir_fd)
        if ours is None:
            return int(_real["open"](path, flags, mode, dir_fd=dir_fd))
        return self._opened(
            ours, flags, lambda: int(_real["open"](path, flags, mode, dir_fd=dir_fd))
        )

    def _opened(self, path: str, flags: int, do: Callable[[], int]) -> int:
        """Open something; it is created, or changed by being opened, or neither."""
        nameless = flags & os.O_TMPFILE == os.O_TMPFILE
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        truncates = bool(flags & os.O_TRUNC)
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) and not nameless

        def opened() -> int:
            handle = do()
            self._paths[handle] = path
            if is_new:
                self._disk.note("create", [path])
            if writes:
                self._disk.touch(path, truncates or is_new)
            return handle

        kind = "create" if is_new or truncates or writes or nameless else "open"
        return int(self.call(kind, path, opened))

    def _os_close(self, handle: int) -> None:
        self._paths.pop(handle, None)
        _real["close"](handle)

    def _os_truncate(self, path: Any, size: int) -> None:
        ours = self._path(path)
        if ours is None:
            _real["truncate"](path, size)
            return

        def truncate() -> None:
            self._disk.touch(ours, False)
            _real["truncate"](path, size)

        self.call("shorten", ours, truncate)

    def _os_dup(self, handle: int) -> int:
        copy = int(_real["dup"](handle))
        if handle in self._paths:
            self._paths[copy] = self._paths[handle]
        return copy

    def _os_fsync(self, handle: Any) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        path = self._paths.get(number)
        if path is None:
            _real["fsync"](number)
        elif _is_folder(path):
            self.call("sync folder", path, lambda: self._disk.sync_folder(path))
        else:  # the bytes are where other processes see them, and no power is really lost
            self.call("sync", path, lambda: self._disk.sync(number))

    def _os_stat(self, path: Any, **options: Any) -> os.stat_result:
        ours = None if isinstance(path, int) else self._path(path, options.get("dir_fd"))
        if ours is None:
            return _real_stat(path, **options)
        result: os.stat_result = self.call("stat", ours, lambda: _real_stat(path, **options))
        return result

    def _flock(self, handle: Any, operation: int) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        path = self._paths.get(number)
        if path is None:
            _real_lock(number, operation)
        else:
            self.call("lock", path, lambda: _real_lock(number, operation))

    def _swap(self, do: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """Wrap a function that gives two folders each other's name."""

        def swapped(a: Any, b: Any) -> None:
            old, new = self._path(a), self._path(b)
            if old is None or new is None:
                do(a, b)
                return

            def both() -> None:
                do(old, new)
                self._disk.note("swap", [old, new])

            self.call("rename", old, both)

        return swapped

    def _open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[str, int], int] | None = None,
    ) -> IO[Any]:
        path = self._path(file)
        if path is None:
            return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = mode.replace("b", "").replace("t", "")
        raw: Any = _File(self, file, path, plain, closefd, opener)
        if buffering == 0:
            return cast(IO[Any], raw)
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        if "+" in mode:
            buffered: Any = io.BufferedRandom(raw, size)
        elif "r" in mode:
            buffered = io.BufferedReader(raw, size)
        else:
            buffered = io.BufferedWriter(raw, size)
        if "b" in mode:
            return cast(IO[Any], buffered)
        text = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text


class _File(io.FileIO):
    """A file, each read and write of which is a point."""

    def __init__(
        self,
        layer: Layer,
        file: Any,
        path: str,
        mode: str,
        closefd: bool,
        opener: Callable[[str, int], int] | None,
    ) -> None:
        self._layer, self._path = layer, path
        if isinstance(file, int):
            super().__init__(file, mode, closefd)
        else:
            way = opener or (lambda name, flags: os.open(name, flags, 0o666))
            super().__init__(os.fspath(file), mode, opener=way)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        write = super().write
        done = self._layer.call(
            "write", self._path, lambda: write(view), lambda: write(view[: (len(view) + 1) // 2])
        )
        return int(done)

    def readinto(self, buffer: Any) -> int:
        read = super().readinto
        return int(self._layer.call("read", self._path, lambda: read(buffer)))

    def read(self, size: int | None = -1) -> bytes:
        read = super().read
        return bytes(
            self._layer.call("read", self._path, lambda: read(-1 if size is None else size))
        )

    def readall(self) -> bytes:
        read = super().readall
        return bytes(self._layer.call("read", self._path, lambda: read()))

    def truncate(self, size: int | None = None) -> int:
        cut = super().truncate
        return int(self._layer.call("truncate", self._path, lambda: cut(size)))

    def close(self) -> None:
        if self.closed:
            return
        close, writes = super().close, self.writable()
        self._layer._paths.pop(self.fileno(), None)
        if writes:
            self._layer.call("close", self._path, close)
        else:
            close()
