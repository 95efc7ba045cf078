"""The run directory: the state of one training, committed all or nothing.

``MODEL.run/`` holds

* ``run.json``: settings, store, position and the names of the files that belong to the last
  commit, with the CRC-32 of each file's header, and a checksum of its own; replaced atomically, it
  alone decides what counts;
* ``alpha-00003.000012.sba``: alphas of block 3 as of version 12, sparse;
* ``evicted-00003.sbt``: alphas of rows of block 3 that left the cache since it was last written,
  if there are too many for the memory; never part of a commit;
* ``state-000012.sba``: W, and the rows and alphas of the cache, as of a commit;
* ``log.jsonl``: one line a pass.

Files written since the last commit have new names, so a crash leaves the last commit whole, also
that of an earlier training which this one is about to replace: its files go after the first commit.

A run that is one of several, of processes that commit together, keeps the commit before the last
one, too: some of them may have been killed before they came to the last.
"""

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists, join, no_alphas
from sbm.compiled import load
from sbm.errors import StoreError
from sbm.store import container
from sbm.store.files import (
    follow_no_link,
    lock,
    make_folder,
    open_own,
    read_error,
    reading,
    sync_folder,
    write_atomically,
    write_error,
    writing,
)  # fmt: skip
from sbm.store.manifest import decode_record, encode_record

__all__ = ["Run", "runs_here"]

VERSION = 1
RECORD = "run.json"
LOG = "log.jsonl"

kernels = load("sbm.store.kernels.alphas")
FREE = 255  # of kernels/alphas.py: the code of a variable that is not at rest


class Run:
    """Alphas on disk, one sparse file a block, and all-or-nothing commits.

    Parameters
    ----------
    folder : Path
    block_rows : sequence of int
        Rows of each block.
    lists_of : int, optional
        Outputs that the variables of a row belong to, where it has a list of them; default: one
        variable a row.
    resting_values : sequence of float
        Values other than 0 that many alphas have exactly (their upper bounds).
    evicted_bytes : int
        Alphas of evicted rows are held back until their block is next written; above this many
        bytes they go to files.
    unwritten_bytes : int
        Encoded alphas are kept in memory up to this many bytes, or until the next commit.
    is_one_of_many : bool
        Whether to keep two commits.
    """

    def __init__(
        self,
        folder: Path,
        block_rows: Sequence[int],
        lists_of: int | None = None,
        resting_values: Sequence[float] = (),
        evicted_bytes: int = 4_000_000,
        unwritten_bytes: int = 4_000_000,
        is_one_of_many: bool = False,
    ) -> None:
        self.folder = folder
        self._is_one_of_many = is_one_of_many
        self._rows = list(block_rows)
        self._lists_of = lists_of
        self._resting = [0.0, *resting_values]
        self._evicted_limit = evicted_bytes
        self._evicted: list[list[tuple[npt.NDArray[np.int32], Alphas]]] = [[] for _ in block_rows]
        self._evicted_bytes = 0
        self._evicted_files: list[list[int]] = [[] for _ in block_rows]  # sizes of what is in them
        self._files: dict[int, str] = {}  # block -> file with its alphas; none means all 0
        self._unwritten: dict[int, bytes] = {}  # block -> what its file will hold
        self._unwritten_limit = unwritten_bytes
        self._committed: set[str] = set()
        self._serial = 0
        self._crcs: dict[str, int] = {}  # file -> CRC-32 of its header
        self._record: dict[str, Any] = {}
        self._is_logged = False  # whether the log is this run's
        # Several learners keep alphas at the same time, and others are read ahead meanwhile.
        self._lock = threading.RLock()

    @classmethod
    @contextlib.contextmanager
    def create(cls, folder: Path, *arguments: Any, **options: Any) -> Iterator["Run"]:
        """Start a run from nothing, under a lock.

        What an earlier one committed stays until the first commit of this one.

        Raises
        ------
        StoreError
            Another process trains this model, or the folder cannot be written.
        """
        make_folder(folder)
        with lock(folder / "lock", f"the run {folder}"):
            run = cls(folder, *arguments, **options)
            with contextlib.suppress(StoreError):  # damaged or none: there is nothing to keep
                run._committed = _files_of(cls.read(folder))
            run._tidy()
            yield run

    @classmethod
    @contextlib.contextmanager
    def resume(
        cls, folder: Path, *arguments: Any, **options: Any
    ) -> Iterator[tuple["Run", dict[str, Any]]]:
        """Go on from the last commit, under a lock; also give its record.

        What was written behind that commit goes, lines of the log included.

        Raises
        ------
        StoreError
            There is none, a file of it is missing or damaged, or another process is at work.
        """
        cls.read(folder)  # no lock file in a folder that is no run
        with lock(folder / "lock", f"the run {folder}"):
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
        block_rows: Sequence[int],
        lists_of: int | None = None,
        record: dict[str, Any] | None = None,
    ) -> tuple["Run", dict[str, npt.NDArray[Any]]]:
        """Return the run of the last commit, to read from, and the arrays of its state.

        With a record it is the run of that commit.

        Raises
        ------
        StoreError
            There is none, or a file of it is missing or damaged.
        """
        run = cls._of(record or cls.read(folder), folder, block_rows, lists_of)
        return run, run.read_state()

    @classmethod
    def _of(cls, record: dict[str, Any], folder: Path, *arguments: Any, **options: Any) -> "Run":
        """Return the run that a commit's record is of."""
        run = cls(folder, *arguments, **options)
        run._record = record
        run._files = {int(block): name for block, name in record["alphas"].items()}
        run._crcs = dict(record["crc32"])
        if any(block not in range(len(run._rows)) for block in run._files):
            raise StoreError(f"{folder / RECORD} is of other blocks; train again with --fresh")
        return run

    def _tidy(self) -> None:
        """Remove what no commit names: a process that wrote it was killed.

        New files get numbers that no file there has.
        """
        for path in self.folder.iterdir():
            match = _OURS.fullmatch(path.name)
            if match is not None and path.name not in self._committed:
                path.unlink(missing_ok=True)
            elif match is not None and match["serial"]:
                self._serial = max(self._serial, int(match["serial"]))

    def _cut_log(self, size: int) -> None:
        """Forget what was logged behind the last commit."""
        path = self.folder / LOG
        self._is_logged = True
        if not path.is_file() or path.is_symlink():
            return
        with writing(path):
            if 0 <= size < path.stat().st_size:
                os.truncate(path, size)

    # ------------------------------------------------------------------------------- alphas

    def load(self, block: int, out: Alphas | None = None) -> Alphas:
        """Alphas of a block, evicted ones included; rows that are cached elsewhere have 0.

        Parameters
        ----------
        block : int
        out : Alphas, optional
            Where to put them: of as many rows as the block.

        Returns
        -------
        Alphas

        Raises
        ------
        StoreError
            The file is missing or damaged.
        """
        alpha = no_alphas(self._rows[block], self._lists_of is not None) if out is None else out
        with self._lock:
            name, unwritten = self._files.get(block), self._unwritten.get(block)
        if name is None:
            alpha.clear()
        elif unwritten is not None:
            self._decode(container.decode(unwritten, "alpha", name), alpha, name)
        else:
            self._decode(self._read(name, "alpha"), alpha, name)
        for rows, values in [*self._read_evicted(block), *self._evicted[block]]:
            alpha.put(rows, values)
        return alpha

    def _read(
        self, name: str, kind: str, wanted: Callable[[str], bool] = lambda name: True
    ) -> container.Container:
        """Read a file of the commit, and no other one in its place."""
        return container.read(self.folder / name, kind, wanted, crc32=self._crcs[name])

    def _evicted_path(self, block: int) -> Path:
        return self.folder / f"evicted-{block:05d}.sbt"

    def _read_evicted(self, block: int) -> Iterator[tuple[npt.NDArray[np.int32], Alphas]]:
        """Yield rows and alphas of a block's file of evicted alphas, oldest first."""
        if not self._evicted_files[block]:
            return
        path = self._evicted_path(block)
        try:
            data = memoryview(path.read_bytes())
        except OSError as error:
            raise read_error(path, error) from error
        position = 0
        for size in self._evicted_files[block]:
            arrays = container.decode(data[position : position + size], "evicted", str(path)).arrays
            alpha = arrays["alpha"]
            if self._lists_of is None:
                yield arrays["rows"], Dense(alpha)
            else:
                yield arrays["rows"], Lists(arrays["offsets"], arrays["outputs"], alpha)
            position += size

    def _write_evicted(self) -> None:
        """Append the evicted alphas in memory to the files of their blocks."""
        for block, evicted in enumerate(self._evicted):
            if not evicted:
                continue
            rows, alphas = zip(*evicted, strict=True)
            alpha = join(alphas)
            arrays: dict[str, npt.NDArray[Any]] = {"rows": np.concatenate(rows)}
            arrays["alpha"] = alpha.values
            if isinstance(alpha, Lists):
                arrays |= {"offsets": alpha.offsets, "outputs": alpha.outputs}
            data = b"".join(container.encode("evicted", arrays))
            path = self._evicted_path(block)
            try:
                mode = "ab" if self._evicted_files[block] else "wb"
                with open(path, mode, opener=follow_no_link) as file:
                    file.write(data)
            except OSError as error:
                raise write_error(path, error) from error
            self._evicted_files[block].append(len(data))
        self._evicted = [[] for _ in self._evicted]
        self._evicted_bytes = 0

    def _decode(self, file: container.Container, alpha: Alphas, name: str) -> None:
        """Fill in the variables that a file holds; trust nothing."""
        sound = False
        with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):
            sound = self._is_decoded(file, alpha)
        if not sound:
            raise StoreError(f"{self.folder / name} does not belong to its block; train again")

    def _is_decoded(self, file: container.Container, alpha: Alphas) -> bool:
        """Fill in the variables that a file holds; tell whether it made sense."""
        arrays = file.arrays
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
        resting = np.array(file.meta["resting"], np.float64)
        return (
            sound
            and codes.shape == alpha.values.shape
            and codes.dtype == np.uint8
            and free.dtype == np.float64
            and free.ndim == resting.ndim == 1
            and bool(kernels.unpack(codes, free, resting, alpha.values))
        )

    def store(self, block: int, alpha: Alphas) -> int:
        """Replace the alphas of a block; evicted ones of the block are in `alpha` already.

        Returns
        -------
        int
            How many rows have one that is not at a resting value.

        Raises
        ------
        StoreError
            The file cannot be written.
        """
        arrays, free_rows = self._pack(alpha)
        buffers = container.encode("alpha", arrays, {"resting": self._resting})
        with self._lock:
            self._evicted_bytes -= sum(r.nbytes + a.nbytes for r, a in self._evicted[block])
            self._evicted[block] = []
            if self._evicted_files[block]:
                self._evicted_files[block] = []
                self._evicted_path(block).unlink(missing_ok=True)
            self._serial += 1
            name = f"alpha-{block:05d}.{self._serial:06d}.sba"
            self._crcs[name] = container.header_crc(buffers[0])
            old = self._files.get(block)
            if old is not None and old not in self._committed and block not in self._unwritten:
                (self.folder / old).unlink(missing_ok=True)
            self._files[block] = name
            self._unwritten[block] = b"".join(buffers)
            if sum(map(len, self._unwritten.values())) > self._unwritten_limit:
                self._write()
        return free_rows

    def _pack(self, alpha: Alphas) -> tuple[dict[str, npt.NDArray[Any]], int]:
        """Turn variables into small arrays; also count the rows with one that is not at rest."""
        values = alpha.values
        codes, free = np.empty(len(values), np.uint8), np.empty(len(values))
        n_free = kernels.pack(values, np.array(self._resting), codes, free)
        arrays: dict[str, npt.NDArray[Any]] = {"codes": codes, "free": free[:n_free]}
        if not isinstance(alpha, Lists):
            return arrays, int(n_free)
        assert self._lists_of is not None
        counts = alpha.counts.astype(np.int32)
        arrays |= {
            "counts": counts,
            "outputs": alpha.outputs.astype(np.uint16 if self._lists_of < 1 << 16 else np.int32),
        }
        rows = np.repeat(np.arange(len(counts)), counts)[codes == FREE]  # ascending
        return arrays, int(np.count_nonzero(np.diff(rows, prepend=-1)))

    def _write(self) -> None:
        """Write the encoded alphas that are still in memory; the next commit makes them durable."""
        for block, data in self._unwritten.items():
            path = self.folder / self._files[block]
            try:
                with open(path, "wb", opener=follow_no_link) as file:
                    file.write(data)
            except OSError as error:
                raise write_error(path, error) from error
        self._unwritten.clear()

    def add_evicted(
        self, home: npt.NDArray[np.int32], row: npt.NDArray[np.int32], alpha: Alphas
    ) -> None:
        """Take alphas of rows that left the cache while another block was at work.

        Parameters
        ----------
        home, row : ndarray, shape (n,), int32
            Block of each row and its number there.
        alpha : Alphas
        """
        if len(home) == 0:
            return
        order = np.argsort(home, kind="stable")
        home, row, alpha = home[order], row[order], alpha.take(order)
        blocks, begins = np.unique(home, return_index=True)
        with self._lock:
            for block, begin, end in zip(blocks, begins, [*begins[1:], len(home)], strict=True):
                self._evicted[block].append((row[begin:end], alpha.part(begin, end - begin)))
            self._evicted_bytes += row.nbytes + alpha.nbytes
            if self._evicted_bytes > self._evicted_limit:
                self._write_evicted()

    def flush(self) -> None:
        """Put all evicted alphas among those of their blocks."""
        for block, evicted in enumerate(self._evicted):
            if evicted or self._evicted_files[block]:
                self.store(block, self.load(block))

    # ------------------------------------------------------------------------------ commits

    def commit(self, position: Mapping[str, Any], state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Make W, cache and all alphas the state to come back to, all or nothing.

        Parameters
        ----------
        position : mapping
            JSON: settings, store, pass, counters.
        state : mapping of str to ndarray
            W and the rows and alphas of the cache.

        Raises
        ------
        StoreError
            Something cannot be written; the last commit stays.
        """
        self.flush()
        self._write()
        self._serial += 1
        name = f"state-{self._serial:06d}.sba"
        container.write(self.folder / name, "state", state, level=None)
        with reading(self.folder / name), open_own(self.folder / name) as written:
            self._crcs[name] = container.header_crc(written.read(container.HEAD))
        for file in self._files.values():
            if file not in self._committed:
                _sync(self.folder / file)
        files = {str(block): file for block, file in self._files.items()}
        now = {name, *files.values()}
        self._crcs = {file: crc for file, crc in self._crcs.items() if file in now}
        record = {**position, "state": name, "alphas": files, "crc32": self._crcs}
        if self._is_one_of_many:
            record["commit"] = self._record.get("commit", 0) + 1
            record["before"] = {k: v for k, v in self._record.items() if k != "before"} or None
        self._write_record(record)
        stale, self._committed = self._committed, _files_of(self._record)
        for old in stale - self._committed:
            (self.folder / old).unlink(missing_ok=True)

    def note(self, **facts: Any) -> None:
        """Add facts to the record of the last commit, which stays otherwise.

        Raises
        ------
        StoreError
            They cannot be written.
        """
        self._write_record({**self._record, **facts})

    @classmethod
    def roll_back(cls, folder: Path) -> dict[str, Any]:
        """Go back to the commit before the last one; return its record.

        Raises
        ------
        StoreError
            There is none, or it cannot be written.
        """
        before = cls.read(folder).get("before")
        if not isinstance(before, dict):
            raise StoreError(f"{folder} has no commit before the last one; start over with --fresh")
        write_atomically(folder / RECORD, [encode_record("run", before)])
        return cls.read(folder)

    @classmethod
    def remove(cls, folder: Path) -> None:
        """Remove a run's files from its folder, the record first.

        Raises
        ------
        StoreError
            Another process is at work on it, or a file cannot be removed.
        """
        with lock(folder / "lock", f"the run {folder}"):
            for path in [folder / RECORD, *folder.iterdir()]:
                if path.name in (RECORD, LOG) or _OURS.fullmatch(path.name):
                    with writing(path):
                        path.unlink(missing_ok=True)

    def _write_record(self, record: dict[str, Any]) -> None:
        path = self.folder / LOG
        log_bytes = path.stat().st_size if self._is_logged and path.exists() else 0
        self._record = {
            "format": "sbm-run", "version": VERSION, **record, "log_bytes": log_bytes
        }  # fmt: skip
        sync_folder(self.folder)
        write_atomically(self.folder / RECORD, [encode_record("run", self._record)])

    def state_names(self) -> list[str]:
        """Names of the arrays of the last commit.

        Raises
        ------
        StoreError
            They are missing or damaged.
        """
        names: list[str] = []

        def note(name: str) -> bool:
            names.append(name)
            return False

        self._read(str(self._record["state"]), "state", note)
        return names

    def read_state(self, names: Collection[str] | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return arrays of the last commit, all or those that are named; the others take no memory.

        Raises
        ------
        StoreError
            They are missing or damaged.
        """
        wanted = (lambda name: True) if names is None else names.__contains__
        return self._read(str(self._record["state"]), "state", wanted).arrays

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to the log; the first line of a new run takes an older log's place."""
        path = self.folder / LOG
        try:
            mode = "a" if self._is_logged else "w"
            with open(path, mode, encoding="utf-8", opener=follow_no_link) as file:
                file.write(json.dumps(dict(record)) + "\n")
        except OSError as error:
            raise write_error(path, error) from error
        self._is_logged = True

    @staticmethod
    def read(folder: Path) -> dict[str, Any]:
        """Return the last commit of a run, without the arrays.

        Raises
        ------
        StoreError
            No run, or no commit yet.
        """
        path = folder / RECORD
        try:
            with open_own(path) as file:
                data = file.read()
        except StoreError:
            raise
        except FileNotFoundError:
            raise StoreError(
                f"{folder} is not a run with a commit (it has no {RECORD}); train the model again"
            ) from None
        except OSError as error:
            raise read_error(path, error) from error
        try:
            record = decode_record("run", data)
        except ValueError as error:
            raise StoreError(
                f"{path} is damaged ({error}); start over with --fresh, or remove {folder}"
            ) from None
        if record.get("format") != "sbm-run" or record.get("version") != VERSION:
            raise StoreError(
                f"{path} has version {record.get('version')}, this program reads runs of version "
                f"{VERSION}; use the program that wrote it, or a newer one"
            )
        if not _is_sound(record):
            raise StoreError(f"{path} names files that a run cannot have; remove {folder}")
        return record


# Files of a run, with the number of the write.
_OURS = re.compile(
    r"(alpha-\d{5,}|state)(\.|-)(?P<serial>\d{6,})\.sba(\.tmp)?|evicted-\d{5,}\.sbt|run\.json\.tmp"
)
_NAMED = re.compile(r"(alpha-\d{5,}\.|state-)\d{6,}\.sba")


_RANK = re.compile(r"rank-(?P<rank>\d+)-of-(?P<size>\d+)")


def runs_here(folder: Path) -> dict[int, list[Path]]:
    """Return the runs that a folder holds, by number of processes; the one with most comes first.

    Of one process it is the folder itself, of several it has folders for each of them, of which not
    all need be here.
    """
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("rank-*-of-*")):
        match = _RANK.fullmatch(path.name)
        if match and (path / RECORD).is_file():
            found.setdefault(int(match["size"]), []).append(path)
    if (folder / RECORD).is_file():
        found[1] = [folder]
    return dict(sorted(found.items(), reverse=True))


def _is_sound(record: dict[str, Any]) -> bool:
    """Whether the files of a commit have names of their kind, in this folder, and checksums.

    So must those of the commit before, where it is kept; the length of the log is noted.
    """
    alphas, state, crcs = record.get("alphas"), record.get("state"), record.get("crc32")
    before = record.get("before")
    return (
        (before is None or (isinstance(before, dict) and "before" not in before))
        and (before is None or _is_sound(before))
        and isinstance(alphas, dict)
        and isinstance(crcs, dict)
        and all(type(crc) is int for crc in crcs.values())
        and type(record.get("log_bytes")) is int
        and isinstance(state, str)
        and all(re.fullmatch(r"\d{1,9}", block) for block in alphas)
        and all(isinstance(x, str) and _NAMED.fullmatch(x) for x in [state, *alphas.values()])
        and crcs.keys() >= {state, *alphas.values()}
    )


def _files_of(record: dict[str, Any]) -> set[str]:
    """Names of the files that belong to a commit, and to the one before where it is kept."""
    before = record.get("before")
    mine = {record["state"], *record["alphas"].values()}
    return mine if before is None else mine | _files_of(before)


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise write_error(path, error) from error
