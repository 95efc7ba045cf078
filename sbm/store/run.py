"""The run directory: the state of one training, saved in atomic checkpoints.

``MODEL.run/`` holds

* ``run.json``: settings, store, position, the names of the files of the last checkpoint, where the
  alphas of each part of the data are, the CRC-32 of their headers and that of the state, and a
  checksum of its own. It is replaced atomically; only files it names belong to the checkpoint;
* ``alpha-000012.sba``: alphas of some parts, each a sparse container; it is removed when all of
  them have been written again;
* ``evicted-00003.sbt``: alphas of rows of part 3 that left the cache since the part was last
  written, if memory cannot hold them; never part of a checkpoint;
* ``state-000012.sba``: W, and the rows and alphas of the cache;
* ``log.jsonl``: one line per pass.

Files written after a checkpoint have new names, so a crash leaves the last checkpoint intact. If a
training replaces an earlier one, the earlier files are removed after the first checkpoint.

In training with several processes, each run also keeps the checkpoint before the last one, because
a rank may be killed before it writes the last one.
"""

import contextlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists, join, no_alphas
from sbm.compiled.calls import load
from sbm.errors import StoreError
from sbm.fields import Table, fields_of_run, find_invalid, is_count, is_crc, is_text
from sbm.settings import SETTINGS_FIELDS
from sbm.store import container
from sbm.store.files import (
    beside,
    follow_no_link,
    lock,
    make_folder,
    open_own,
    reading,
    remove,
    sync,
    sync_folder,
    write_atomically,
    writing,
)
from sbm.store.records import encode_record, read_record

VERSION = 1
RECORD = "run.json"
LOG = "log.jsonl"

kernels = load("sbm.store.kernels.alphas")
# Of each checkpoint; programs add their own, see `fields_of_run`.
_FIELDS: dict[str, Table] = {
    "state": is_text(r"state-\d{6,}\.sba"), "state_crc32": is_crc,
    "files": [is_text(r"alpha-\d{6,}\.sba")], "alphas": {"*": [is_count]},
    "parts": is_count,
    "log_bytes": is_count, "settings?": SETTINGS_FIELDS,
    "commit?": is_count,
}  # fmt: skip

FREE = 255  # as in kernels/alphas.py: code of a variable that is not at a resting value


Packed: TypeAlias = dict[str, npt.NDArray[Any]]


class Place(NamedTuple):
    """Where the encoded alphas of a part are; `crc32` is that of their header."""

    file: str
    offset: int
    size: int
    crc32: int


class Run:
    """Alphas on disk, sparse, with atomic checkpoints.

    Parameters
    ----------
    part_rows : sequence of int
        Rows of each part of the data, for one learner after the other.
    lists_of : int, optional
        Number of outputs, if each row has a list of variables. Default: one variable per row.
    resting_values : sequence of float
        Values other than 0 that many alphas have exactly (their upper bounds).
    evicted_bytes : int
        Alphas of evicted rows stay in memory until their part is written next, up to this many
        bytes. Beyond that they are written to files.
    unwritten_bytes : int
        Packed alphas stay in memory up to this many bytes, or until the next checkpoint.
    is_one_of_many : bool
        Whether to keep two checkpoints.
    """

    def __init__(
        self,
        folder: Path,
        part_rows: Sequence[int],
        lists_of: int | None = None,
        resting_values: Sequence[float] = (),
        evicted_bytes: int = 4_000_000,
        unwritten_bytes: int = 4_000_000,
        is_one_of_many: bool = False,
    ) -> None:
        self.folder = folder
        self._is_one_of_many = is_one_of_many
        self._n_parts = len(part_rows)
        self._rows = [*part_rows, *part_rows]  # of now, and of the pass before
        self._lists_of = lists_of
        self._resting = [0.0, *resting_values]
        self._evicted_limit = evicted_bytes
        self._evicted: list[list[tuple[npt.NDArray[np.int32], Alphas]]] = [[] for _ in self._rows]
        self._evicted_bytes = 0
        self._evicted_files: list[list[int]] = [[] for _ in self._rows]  # sizes of their parts
        self._places: dict[int, Place] = {}  # by part, of alphas in a file; missing: all 0
        self._unwritten: dict[int, Packed] = {}  # by part
        self._unwritten_bytes = 0
        self._held: dict[int, Dense] = {}  # by part, in memory between checkpoints
        self._uses = Counter[str]()  # parts whose alphas are in a file
        self._unwritten_limit = unwritten_bytes
        self._committed: set[str] = set()
        self._serial = 0
        self._record: dict[str, Any] = {}
        self._is_logged = False  # whether the log is this run's
        # Several learners store alphas at the same time while others are read ahead.
        self._lock = threading.RLock()

    @staticmethod
    def locked(folder: Path, is_already: bool = False) -> contextlib.AbstractContextManager[None]:
        """Lock a run, unless the caller has done so.

        Raises `StoreError` if another process uses it.
        """
        if is_already:
            return contextlib.nullcontext()
        return lock(folder / "lock", f"the run {folder}")

    @classmethod
    @contextlib.contextmanager
    def create(
        cls, folder: Path, *arguments: Any, is_locked: bool = False, **options: Any
    ) -> Iterator["Run"]:
        """Start a new run and lock it.

        The last checkpoint of an earlier run stays until the first checkpoint of this one.

        Raises `StoreError` if another process uses the run, or the folder is not writable.
        """
        make_folder(folder)
        with cls.locked(folder, is_locked):
            run = cls(folder, *arguments, **options)
            with contextlib.suppress(StoreError):  # missing or damaged: nothing to keep
                run._committed = _files_of(cls.read(folder))
            run._tidy()
            try:
                yield run
            finally:  # what failed before its first checkpoint leaves nothing
                is_left = not is_locked and folder.is_dir()
                if is_left and [path.name for path in folder.iterdir()] == ["lock"]:
                    remove([folder])

    @classmethod
    @contextlib.contextmanager
    def resume(
        cls, folder: Path, *arguments: Any, is_locked: bool = False, **options: Any
    ) -> Iterator[tuple["Run", dict[str, Any]]]:
        """Resume from the last checkpoint and lock the run; also yield the checkpoint's record.

        Everything written after that checkpoint is removed, including lines of the log.

        Raises `StoreError` if there is no checkpoint, a file is missing or damaged, or another
        process uses the run.
        """
        cls.read(folder)  # create no lock file in a folder that is not a run
        with cls.locked(folder, is_locked):
            record = cls.read(folder)
            run = cls._of(record, folder, *arguments, **options)
            run._committed = _files_of(record)
            run._tidy()
            run._cut_log(record["log_bytes"])
            yield run, record

    @classmethod
    def reopen(
        cls,
        folder: Path,
        part_rows: Sequence[int],
        lists_of: int | None = None,
        record: dict[str, Any] | None = None,
    ) -> tuple["Run", dict[str, npt.NDArray[Any]]]:
        """Open the last checkpoint, or the one of `record`, for reading; also return its arrays.

        Raises `StoreError` if there is no checkpoint, or a file is missing or damaged.
        """
        run = cls._of(record or cls.read(folder), folder, part_rows, lists_of)
        return run, run.read_state()

    @classmethod
    def _of(cls, record: dict[str, Any], folder: Path, *arguments: Any, **options: Any) -> "Run":
        """Return the run described by the record of a checkpoint."""
        run = cls(folder, *arguments, **options)
        run._record = record
        for part, (file, *place) in record["alphas"].items():
            run._places[int(part)] = Place(record["files"][file], *place)
        run._uses.update(place.file for place in run._places.values())
        if run._places and record["parts"] != run._n_parts:
            raise StoreError(f"{folder / RECORD} has other blocks; use --fresh to start over")
        return run

    def _tidy(self) -> None:
        """Remove files that no checkpoint names, left by a process that was killed.

        Also set the serial number above that of all files present.
        """
        for path in self.folder.iterdir():
            match = _OURS.fullmatch(path.name)
            if match is not None and path.name not in self._committed:
                path.unlink(missing_ok=True)
            elif match is not None and match["serial"]:
                self._serial = max(self._serial, int(match["serial"]))

    def _cut_log(self, size: int) -> None:
        """Truncate the log to its size at the last checkpoint."""
        path = self.folder / LOG
        self._is_logged = True
        if not path.is_file() or path.is_symlink():
            return
        with writing(path):
            if 0 <= size < path.stat().st_size:
                os.truncate(path, size)

    # ------------------------------------------------------------------------------- alphas

    def load(self, part: int, out: Alphas | None = None) -> Alphas:
        """Read the alphas of a part, including evicted ones; those of cached rows are 0.

        Parameters
        ----------
        out : Alphas, optional
            Destination, with as many rows as the part.

        Raises
        ------
        StoreError
            If the file is missing or damaged.
        """
        alpha = no_alphas(self._rows[part], self._lists_of is not None) if out is None else out
        with self._lock:  # another thread may write it again, and remove the file
            place, packed = self._places.get(part), self._unwritten.get(part)
            held = self._held.get(part)
            data = b"" if place is None or held is not None else self._read_at(place)
        if held is not None:
            if not np.may_share_memory(alpha.values, held.values):
                alpha.values[:] = held.values
        elif place is not None:
            self._decode(data, place, alpha)
        elif packed is not None:
            self._unpack(packed, self._resting, alpha)
        else:
            alpha.clear()
        evicted = [*self._read_evicted(part), *self._evicted[part]]
        if evicted:  # all at once: a list that is put moves all others
            rows, values = zip(*evicted, strict=True)
            alpha.put(np.concatenate(rows), join(values))
        return alpha

    def before(self, part: int) -> int:
        """Return the number of a part's alphas at the end of the pass before, for a `PassLine`."""
        return self._n_parts + part

    def _read_at(self, place: Place) -> bytes:
        """Read the encoded alphas of a part."""
        path = self.folder / place.file
        with reading(path), open_own(path) as file:
            file.seek(place.offset)
            data = file.read(place.size)
        if len(data) < place.size:
            raise StoreError(f"{path} is shorter than its run states; train again")
        return data

    def _read(self, wanted: Callable[[str], bool]) -> container.Container:
        """Read the state of the checkpoint and check that it was not replaced."""
        path, crc32 = self.folder / str(self._record["state"]), self._record["state_crc32"]
        return container.read(path, "state", wanted, crc32=crc32)

    def _evicted_path(self, part: int) -> Path:
        return self.folder / f"evicted-{part:05d}.sbt"

    def _read_evicted(self, part: int) -> Iterator[tuple[npt.NDArray[np.int32], Alphas]]:
        """Yield rows and alphas from a part's file of evicted alphas, oldest first."""
        if not self._evicted_files[part]:
            return
        path = self._evicted_path(part)
        with reading(path):
            data = memoryview(path.read_bytes())
        position = 0
        for size in self._evicted_files[part]:
            arrays = container.decode(data[position : position + size], "evicted", str(path)).arrays
            alpha = arrays["alpha"]
            if self._lists_of is None:
                yield arrays["rows"], Dense(alpha)
            else:
                yield arrays["rows"], Lists(arrays["offsets"], arrays["outputs"], alpha)
            position += size

    def _write_evicted(self) -> None:
        """Append the evicted alphas in memory to the files of their parts."""
        for part, evicted in enumerate(self._evicted):
            if not evicted:
                continue
            rows, alphas = zip(*evicted, strict=True)
            alpha = join(alphas)
            arrays: dict[str, npt.NDArray[Any]] = {"rows": np.concatenate(rows)}
            arrays["alpha"] = alpha.values
            if isinstance(alpha, Lists):
                arrays |= {"offsets": alpha.offsets, "outputs": alpha.outputs}
            data = b"".join(container.encode("evicted", arrays))
            path = self._evicted_path(part)
            mode = "ab" if self._evicted_files[part] else "wb"
            with writing(path), open(path, mode, opener=follow_no_link) as file:
                file.write(data)
            self._evicted_files[part].append(len(data))
        self._evicted = [[] for _ in self._evicted]
        self._evicted_bytes = 0

    def _decode(self, data: bytes, place: Place, alpha: Alphas) -> None:
        """Copy encoded variables to `alpha`, and check that they were not replaced."""
        where = f"{self.folder / place.file} at byte {place.offset}"
        file, sound = container.decode(data, "alpha", where, crc32=place.crc32), False
        with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):
            sound = self._unpack(file.arrays, file.meta["resting"], alpha)
        if not sound:
            raise StoreError(f"{where} does not match its part; train again")

    def _unpack(self, arrays: Packed, resting: Sequence[float], alpha: Alphas) -> bool:
        """Copy packed variables to `alpha`; return whether they are valid."""
        sound = True
        if isinstance(alpha, Lists):
            assert self._lists_of is not None
            counts, outputs = arrays["counts"], arrays["outputs"].astype(np.int32)
            offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
            sound = bool(
                counts.ndim == outputs.ndim == 1
                and len(counts) == len(alpha)
                and offsets[-1] == len(outputs) == len(arrays["codes"])
                and (counts >= 0).all()
                and ((outputs >= 0) & (outputs < self._lists_of)).all()
            )
            alpha.set(offsets, outputs, np.empty(len(outputs)))
        codes, free = arrays["codes"], arrays["free"]
        values = np.array(resting, np.float64)
        return (
            sound
            and codes.shape == alpha.values.shape
            and codes.dtype == np.uint8
            and free.dtype == np.float64
            and free.ndim == values.ndim == 1
            and bool(kernels.unpack(codes, free, values, alpha.values))
        )

    def store(self, part: int, alpha: Alphas) -> int:
        """Replace the alphas of a part; `alpha` must include the evicted ones.

        Returns
        -------
        int
            Number of rows with a variable that is not at a resting value.

        Raises
        ------
        StoreError
            If the file cannot be written.
        """
        with self._lock:
            self._held.pop(part, None)
        return self._keep(part, alpha)

    def hold(self, part: int, alpha: Dense) -> int:
        """Replace the alphas of a part, which stay in the given array; checkpoints write them.

        Between checkpoints the caller may change the array, and then calls this again. It stays in
        use until `store` replaces the alphas. Returns the same as `store`.
        """
        with self._lock:
            self._forget(part)
            self._drop(part)
            self._held[part] = alpha
        return int(kernels.count_free(alpha.values, np.array(self._resting)))

    def _keep(self, part: int, alpha: Alphas) -> int:
        """Pack the alphas of a part for the next write; see `store`."""
        packed, free_rows = self._pack(alpha)
        with self._lock:
            self._evicted_bytes -= sum(r.nbytes + a.nbytes for r, a in self._evicted[part])
            self._evicted[part] = []
            if self._evicted_files[part]:
                self._evicted_files[part] = []
                self._evicted_path(part).unlink(missing_ok=True)
            self._forget(part)
            self._drop(part)
            self._unwritten[part] = packed
            self._unwritten_bytes += _size(packed)
            if self._unwritten_bytes > self._unwritten_limit:
                self._write()
        return free_rows

    def _pack(self, alpha: Alphas) -> tuple[Packed, int]:
        """Pack variables into small arrays; also count the rows with a variable not at rest."""
        values = alpha.values
        resting, codes = np.array(self._resting), np.empty(len(values), np.uint8)
        # `pack` also writes resting values, behind the free ones.
        free = np.empty(kernels.count_free(values, resting) + 1)
        n_free = kernels.pack(values, resting, codes, free)
        arrays: Packed = {"codes": codes, "free": free[:n_free]}
        if not isinstance(alpha, Lists):
            return arrays, int(n_free)
        assert self._lists_of is not None
        counts = alpha.counts
        arrays |= {
            "counts": counts.astype(np.min_scalar_type(int(counts.max(initial=0)))),
            "outputs": alpha.outputs.astype(np.min_scalar_type(self._lists_of - 1)),
        }
        rows = np.repeat(np.arange(len(counts)), counts)[codes == FREE]  # ascending
        return arrays, int(np.count_nonzero(np.diff(rows, prepend=-1)))

    def _drop(self, part: int) -> None:
        """Forget the packed alphas of a part."""
        self._unwritten_bytes -= _size(self._unwritten.pop(part, {}))

    def _forget(self, part: int) -> None:
        """Forget the place of a part's alphas, and remove the file if it has no others."""
        place = self._places.pop(part, None)
        if place is None:
            return
        self._uses[place.file] -= 1
        if not self._uses[place.file]:
            del self._uses[place.file]
            if place.file not in self._committed:
                (self.folder / place.file).unlink(missing_ok=True)

    def _write(self) -> None:
        """Write the packed alphas in memory to a file; the next checkpoint syncs it."""
        if not self._unwritten:
            return
        self._serial += 1
        name, offset = f"alpha-{self._serial:06d}.sba", 0
        path = self.folder / name
        with writing(path), open(path, "wb", opener=follow_no_link) as file:
            for part, packed in sorted(self._unwritten.items()):
                # Free variables are any numbers: to compress them takes long and saves little.
                meta = {"resting": self._resting}
                data = b"".join(container.encode("alpha", packed, meta, raw=["free"]))
                file.write(data)
                self._places[part] = Place(name, offset, len(data), container.header_crc(data))
                offset += len(data)
        self._uses[name] = len(self._unwritten)
        self._unwritten.clear()
        self._unwritten_bytes = 0

    def add_evicted(
        self, home: npt.NDArray[np.int32], row: npt.NDArray[np.int32], alpha: Alphas
    ) -> None:
        """Add alphas of rows that left the cache during the step of another part's part.

        Parameters
        ----------
        home, row : ndarray, shape (n,), int32
            Part of each row and its position there.
        """
        if len(home) == 0:
            return
        order = np.argsort(home, kind="stable")
        home, row, alpha = home[order], row[order], alpha.take(order)
        parts, begins = np.unique(home, return_index=True)
        with self._lock:
            for part, begin, end in zip(parts, begins, [*begins[1:], len(home)], strict=True):
                self._evicted[part].append((row[begin:end], alpha.part(begin, end - begin)))
            self._evicted_bytes += row.nbytes + alpha.nbytes
            if self._evicted_bytes > self._evicted_limit:
                self._write_evicted()

    def flush(self) -> None:
        """Encode the alphas that are held, and merge evicted ones into those of their parts."""
        for part, alpha in self._held.items():
            if part not in self._places and part not in self._unwritten:
                self._keep(part, alpha)
        for part, evicted in enumerate(self._evicted):
            if evicted or self._evicted_files[part]:
                self.store(part, self.load(part))

    # -------------------------------------------------------------------------- checkpoints

    def commit(self, position: Mapping[str, Any], state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write a checkpoint of W, the cache and all alphas atomically.

        Parameters
        ----------
        position : mapping
            Settings, store, pass and counters, as JSON types.
        state : mapping of str to ndarray
            W and the rows and alphas of the cache.

        Raises
        ------
        StoreError
            If a file cannot be written. The last checkpoint stays valid.
        """
        self.flush()
        self._write()
        self._serial += 1
        name = f"state-{self._serial:06d}.sba"
        crc32 = self._write_state(name, container.encode("state", state, level=None))
        files = sorted(self._uses)
        for file in files:
            if file not in self._committed:
                _sync(self.folder / file)
        numbers = {file: number for number, file in enumerate(files)}
        record = {
            **position, "state": name, "state_crc32": crc32, "files": files,
            "parts": self._n_parts,
            "alphas": {
                str(part): [numbers[place.file], *place[1:]]
                for part, place in sorted(self._places.items())
            },
        }  # fmt: skip
        if self._is_one_of_many:
            record["commit"] = self._record.get("commit", 0) + 1
            record["before"] = {k: v for k, v in self._record.items() if k != "before"} or None
        sync_folder(self.folder)  # a record that survives a power cut names files that do, too
        self._write_record(record)
        stale, self._committed = self._committed, _files_of(self._record)
        for old in stale - self._committed:
            (self.folder / old).unlink(missing_ok=True)

    def _write_state(self, name: str, buffers: Sequence[bytes | memoryview]) -> int:
        """Write a file that no record names yet, durably but for its name; return its CRC-32."""
        path = self.folder / name
        with writing(path), open(path, "wb", opener=follow_no_link) as file:
            try:
                for buffer in buffers:
                    file.write(buffer)
                file.flush()
                sync(file.fileno(), path)
            except BaseException:
                remove([path])
                raise
        return container.header_crc(buffers[0])

    def note(self, **facts: Any) -> None:
        """Add facts to the record of the last checkpoint.

        Raises `StoreError` if the record cannot be written.
        """
        self._write_record({**self._record, **facts})

    @classmethod
    def roll_back(cls, folder: Path) -> dict[str, Any]:
        """Go back to the checkpoint before the last one; return its record.

        Raises `StoreError` if there is no such checkpoint, or the record cannot be written.
        """
        before = cls.read(folder).get("before")
        if not isinstance(before, dict):
            raise StoreError(f"{folder} has no earlier checkpoint; use --fresh to start over")
        write_atomically(folder / RECORD, [encode_record("run", before)])
        return cls.read(folder)

    @classmethod
    def require_free(cls, folder: Path) -> None:
        """Check that no other process uses a run, which need not exist.

        Raises `StoreError` if it is in use.
        """
        if (folder / "lock").is_file():
            with cls.locked(folder):
                pass

    @classmethod
    def remove(cls, folder: Path) -> None:
        """Remove a run's files from its folder, the record first.

        Raises `StoreError` if another process uses the run, or a file cannot be removed.
        """
        with cls.locked(folder):
            for path in [folder / RECORD, *folder.iterdir()]:
                if path.name in (RECORD, LOG) or _OURS.fullmatch(path.name):
                    with writing(path):
                        path.unlink(missing_ok=True)

    def _write_record(self, record: dict[str, Any]) -> None:
        path = self.folder / LOG
        log_bytes = path.stat().st_size if self._is_logged and path.exists() else 0
        self._record = {"format": "sbm-run", "version": VERSION, **record, "log_bytes": log_bytes}
        write_atomically(self.folder / RECORD, [encode_record("run", self._record)])

    def state_names(self) -> list[str]:
        """Return the names of the arrays in the last checkpoint's state.

        Raises `StoreError` if the file is missing or damaged.
        """
        names: list[str] = []

        def note(name: str) -> bool:
            names.append(name)
            return False

        self._read(note)
        return names

    def read_state(self, names: Collection[str] | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return all or the named arrays of the last checkpoint; the others take no memory.

        Raises `StoreError` if the file is missing or damaged.
        """
        wanted = (lambda name: True) if names is None else frozenset(names).__contains__
        return self._read(wanted).arrays

    def continue_log(self) -> None:
        """Append to the log of an earlier run instead of replacing it."""
        self._is_logged = True

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to the log; the first line of a new run replaces an older log."""
        path = self.folder / LOG
        mode = "a" if self._is_logged else "w"
        with writing(path), open(path, mode, encoding="utf-8", opener=follow_no_link) as file:
            file.write(json.dumps(dict(record)) + "\n")
        self._is_logged = True

    @staticmethod
    def read(folder: Path) -> dict[str, Any]:
        """Return the record of a run's last checkpoint.

        Raises `StoreError` if the folder is not a run, has no checkpoint yet, or the record is
        damaged.
        """
        path = folder / RECORD
        try:
            record = read_record(path, "run")
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(
                f"{folder} is not a run or has no checkpoint (no {RECORD}); train the model again"
            ) from None
        except ValueError as error:
            raise StoreError(
                f"{path} is damaged ({error}); use --fresh to start over, or remove {folder}"
            ) from None
        if record.get("format") != "sbm-run" or record.get("version") != VERSION:
            raise StoreError(
                f"{path} has run version {record.get('version')}, but this sbm reads version "
                f"{VERSION}; use the version of sbm that wrote it, or a newer one"
            )
        if reason := _find_invalid(record):
            raise StoreError(
                f"{path} is invalid ({reason}); use --fresh to start over, or remove {folder}"
            )
        return record


# Files of a run; `serial` is the number of the write.
_OURS = re.compile(
    r"(alpha|state)-(?P<serial>\d{6,})\.sba(\.tmp)?|evicted-\d{5,}\.sbt|run\.json\.tmp"
)


_RANK = re.compile(r"rank-(?P<rank>\d+)-of-(?P<size>\d+)")


def runs_here(folder: Path) -> dict[int, list[Path]]:
    """Return the runs in a folder by number of processes, largest first.

    A run of one process is the folder itself. A run of several processes has a folder per rank;
    some of them may be on other machines.
    """
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("rank-*-of-*")):
        match = _RANK.fullmatch(path.name)
        if match and (path / RECORD).is_file():
            found.setdefault(int(match["size"]), []).append(path)
    if (folder / RECORD).is_file():
        found[1] = [folder]
    return dict(sorted(found.items(), reverse=True))


def _find_invalid(record: dict[str, Any]) -> str:
    """Return what is invalid in a record or the one before it, if kept; empty if nothing is."""
    reason = find_invalid(record, {**_FIELDS, **fields_of_run(record.get("kind"))})
    if not reason and not all(re.fullmatch(r"[0-9]{1,9}", part) for part in record["alphas"]):
        reason = "a part has no number"
    n = 0 if reason else len(record["files"])
    if not reason and not all(len(p) == 4 and p[0] < n for p in record["alphas"].values()):
        reason = "alphas are nowhere"
    before = record.get("before")
    if reason or before is None:
        return reason
    if not isinstance(before, dict) or "before" in before:
        return "the previous record is invalid"
    return _find_invalid(before)


def _files_of(record: dict[str, Any]) -> set[str]:
    """Return the names of the files of a checkpoint, and of the one before if it is kept."""
    before = record.get("before")
    mine = {record["state"], *record["files"]}
    return mine if before is None else mine | _files_of(before)


def _size(packed: Packed) -> int:
    return sum(array.nbytes for array in packed.values())


def _sync(path: Path) -> None:
    with writing(path), open(path, "rb") as file:
        sync(file.fileno(), path)


def run_folder(model: Path) -> Path:
    """Return the folder with the run of a model."""
    return beside(model, ".run")


def is_finished(record: Mapping[str, Any]) -> bool:
    """Return whether a run finished and its model was written; of turns, that of all classes."""
    return "report" in record and not record.get("turns_left")


def sources_at(position: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return name, rows and skipped lines of each source of a stream, up to a position."""
    return [
        {
            "name": record["name"],
            "rows": record["rows"] + record["skip"],
            "skipped": record["skipped"],
        }
        for record in position
    ]
