"""The run directory: the state of one training, committed all or nothing.

``MODEL.run/`` holds

* ``run.json``: settings, store, position and the names of the files that belong to the last
  commit; replaced atomically, it alone decides what counts;
* ``alpha-00003.000012.sba``: alphas of block 3 as of version 12, sparse;
* ``stray-00003.sbt``: alphas of block 3's rows that left the cache since block 3 was last written,
  where they are too many for the memory; never part of a commit;
* ``state-000012.sba``: W, and the rows and alphas of the cache, as of a commit;
* ``log.jsonl``: one line a pass.

Files written since the last commit are new files, so a crash leaves the last commit whole.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists, join, no_alphas
from sbm.compiled import load
from sbm.errors import StoreError
from sbm.store import arrays as container
from sbm.store.files import lock, sync_folder, write_atomically, write_error

__all__ = ["Run"]

VERSION = 1

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
    stray_bytes : int
        Alphas of evicted rows are held back until their block is next written; above this many
        bytes they go to files.
    unwritten_bytes : int
        Encoded alphas are kept in memory up to this many bytes, or until the next commit.
    """

    def __init__(
        self,
        folder: Path,
        block_rows: Sequence[int],
        lists_of: int | None = None,
        resting_values: Sequence[float] = (),
        stray_bytes: int = 4_000_000,
        unwritten_bytes: int = 4_000_000,
    ) -> None:
        self.folder = folder
        self._rows = list(block_rows)
        self._lists_of = lists_of
        self._resting = [0.0, *resting_values]
        self._stray_limit = stray_bytes
        self._strays: list[list[tuple[npt.NDArray[np.int32], Alphas]]] = [[] for _ in block_rows]
        self._stray_bytes = 0
        self._stray_files: list[list[int]] = [[] for _ in block_rows]  # sizes of what is in them
        self._files: dict[int, str] = {}  # block -> file with its alphas; none means all 0
        self._unwritten: dict[int, bytes] = {}  # block -> what its file will hold
        self._unwritten_limit = unwritten_bytes
        self._committed: set[str] = set()
        self._serial = 0

    @classmethod
    @contextlib.contextmanager
    def create(
        cls, folder: Path, *arguments: Any, clear: bool = True, **options: Any
    ) -> Iterator["Run"]:
        """Start a run from nothing, replacing what an earlier one left, under a lock.

        With `clear` False what it left stays until `clear` is called, before anything is written.

        Raises
        ------
        StoreError
            Another process trains this model, or the folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder, error) from error
        with lock(folder / "lock", f"the run {folder}"):
            run = cls(folder, *arguments, **options)
            if clear:
                run.clear()
            yield run

    @classmethod
    @contextlib.contextmanager
    def take_up(
        cls, folder: Path, *arguments: Any, **options: Any
    ) -> Iterator[tuple["Run", dict[str, Any], dict[str, npt.NDArray[Any]]]]:
        """Go on from the last commit, under a lock; also give its record and the state's arrays.

        Raises
        ------
        StoreError
            There is none, a file of it is missing or damaged, or another process is at work.
        """
        cls.read(folder)  # no lock file in a folder that is no run
        with lock(folder / "lock", f"the run {folder}"):
            record = cls.read(folder)
            run, state = cls._of(record, folder, *arguments, **options)
            run._committed = {str(record["state"]), *run._files.values()}
            run._serial = int(str(record["state"]).removeprefix("state-").removesuffix(".sba"))
            yield run, record, state

    @classmethod
    def reopen(
        cls, folder: Path, block_rows: Sequence[int], lists_of: int | None = None
    ) -> tuple["Run", dict[str, npt.NDArray[Any]]]:
        """Return the run of the last commit, to read from, and the arrays of its state.

        Raises
        ------
        StoreError
            There is none, or a file of it is missing or damaged.
        """
        return cls._of(cls.read(folder), folder, block_rows, lists_of)

    @classmethod
    def _of(
        cls, record: Mapping[str, Any], folder: Path, *arguments: Any, **options: Any
    ) -> tuple["Run", dict[str, npt.NDArray[Any]]]:
        """Return the run that a commit's record is of, and the arrays of its state."""
        run = cls(folder, *arguments, **options)
        try:
            run._files = {int(block): str(name) for block, name in record["alphas"].items()}
            state = container.read(folder / str(record["state"]), "state").arrays
        except (KeyError, ValueError, AttributeError) as error:
            raise StoreError(f"{folder / 'run.json'} is damaged ({error}); train again") from error
        return run, state

    def clear(self) -> None:
        """Remove what an earlier run left."""
        # run.json first: without it the rest is nothing.
        names = ["run.json", *(p.name for p in self.folder.glob("*.sb[at]")), "log.jsonl"]
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    # ------------------------------------------------------------------------------- alphas

    def load(self, block: int, out: Alphas | None = None) -> Alphas:
        """Alphas of a block, strays included; rows that are cached elsewhere have 0.

        Parameters
        ----------
        block : int
        out : Alphas, optional
            Where to put them: of as many rows as the block.

        Raises
        ------
        StoreError
            The file is missing or damaged.
        """
        alpha = no_alphas(self._rows[block], self._lists_of is not None) if out is None else out
        name = self._files.get(block)
        if name is None:
            alpha.clear()
        elif block in self._unwritten:
            file = container.decode(self._unwritten[block], "alpha", name)
            self._decode(file, alpha, name)
        else:
            self._decode(container.read(self.folder / name, "alpha"), alpha, name)
        for rows, values in [*self._read_strays(block), *self._strays[block]]:
            alpha.put(rows, values)
        return alpha

    def _stray_path(self, block: int) -> Path:
        return self.folder / f"stray-{block:05d}.sbt"

    def _read_strays(self, block: int) -> Iterator[tuple[npt.NDArray[np.int32], Alphas]]:
        """Yield rows and alphas of a block's stray file, oldest first."""
        if not self._stray_files[block]:
            return
        path = self._stray_path(block)
        try:
            data = memoryview(path.read_bytes())
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        position = 0
        for size in self._stray_files[block]:
            arrays = container.decode(data[position : position + size], "strays", str(path)).arrays
            alpha = arrays["alpha"]
            if self._lists_of is None:
                yield arrays["rows"], Dense(alpha)
            else:
                yield arrays["rows"], Lists(arrays["offsets"], arrays["outputs"], alpha)
            position += size

    def _write_strays(self) -> None:
        """Append the strays in memory to the files of their blocks."""
        for block, strays in enumerate(self._strays):
            if not strays:
                continue
            rows, alphas = zip(*strays, strict=True)
            alpha = join(alphas)
            arrays: dict[str, npt.NDArray[Any]] = {"rows": np.concatenate(rows)}
            arrays["alpha"] = alpha.values
            if isinstance(alpha, Lists):
                arrays |= {"offsets": alpha.offsets, "outputs": alpha.outputs}
            data = b"".join(container.encode("strays", arrays))
            path = self._stray_path(block)
            try:
                with open(path, "ab" if self._stray_files[block] else "wb") as file:
                    file.write(data)
            except OSError as error:
                raise write_error(path, error) from error
            self._stray_files[block].append(len(data))
        self._strays = [[] for _ in self._strays]
        self._stray_bytes = 0

    def _decode(self, file: container.Container, alpha: Alphas, name: str) -> None:
        """Fill in the variables that a file holds; trust nothing."""
        arrays = file.arrays
        sound = True
        if isinstance(alpha, Lists):
            assert self._lists_of is not None
            counts, outputs = arrays["counts"], arrays["outputs"].astype(np.int32)
            offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
            sound = bool(
                len(counts) == len(alpha)
                and offsets[-1] == len(outputs) == len(arrays["codes"])
                and (counts >= 0).all()
                and ((outputs >= 0) & (outputs < self._lists_of)).all()
            )
            alpha.set(offsets, outputs, np.empty(len(outputs)))
        codes, free = arrays["codes"], arrays["free"]
        resting = np.array(file.meta["resting"], np.float64)
        if (
            not sound
            or codes.shape != alpha.values.shape
            or codes.dtype != np.uint8
            or free.dtype != np.float64
            or not kernels.unpack(codes, free, resting, alpha.values)
        ):
            raise StoreError(f"{self.folder / name} does not belong to its block; train again")

    def store(self, block: int, alpha: Alphas) -> int:
        """Replace the alphas of a block; strays of the block are in `alpha` already.

        Returns
        -------
        int
            How many rows have one that is not at a resting value.

        Raises
        ------
        StoreError
            The file cannot be written.
        """
        self._stray_bytes -= sum(r.nbytes + a.nbytes for r, a in self._strays[block])
        self._strays[block] = []
        if self._stray_files[block]:
            self._stray_files[block] = []
            self._stray_path(block).unlink(missing_ok=True)
        self._serial += 1
        name = f"alpha-{block:05d}.{self._serial:06d}.sba"
        arrays, free_rows = self._pack(alpha)
        buffers = container.encode("alpha", arrays, {"resting": self._resting})
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
        rows = np.repeat(np.arange(len(counts)), counts)[codes == FREE]
        return arrays, len(np.unique(rows))

    def _write(self) -> None:
        """Write the encoded alphas that are still in memory; the next commit makes them durable."""
        for block, data in self._unwritten.items():
            path = self.folder / self._files[block]
            try:
                path.write_bytes(data)
            except OSError as error:
                raise write_error(path, error) from error
        self._unwritten.clear()

    def add_strays(
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
        for block, begin, end in zip(blocks, begins, [*begins[1:], len(home)], strict=True):
            self._strays[block].append((row[begin:end], alpha.part(begin, end - begin)))
        self._stray_bytes += row.nbytes + alpha.nbytes
        if self._stray_bytes > self._stray_limit:
            self._write_strays()

    def flush(self) -> None:
        """Put all strays into the alphas of their blocks."""
        for block, strays in enumerate(self._strays):
            if strays or self._stray_files[block]:
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
        for file in self._files.values():
            if file not in self._committed:
                _sync(self.folder / file)
        files = {str(block): file for block, file in self._files.items()}
        record = {
            "format": "sbm-run", "version": VERSION, **position, "state": name, "alphas": files
        }  # fmt: skip
        sync_folder(self.folder)
        write_atomically(self.folder / "run.json", [json.dumps(record, indent=1).encode()])
        stale = self._committed - {name, *self._files.values()}
        self._committed = {name, *self._files.values()}
        for old in stale:
            (self.folder / old).unlink(missing_ok=True)

    def read_state(self, wanted: Callable[[str], bool]) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the last commit whose names are wanted.

        Raises
        ------
        StoreError
            They are missing or damaged.
        """
        name = str(self.read(self.folder)["state"])
        return container.read(self.folder / name, "state", wanted).arrays

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to the log."""
        path = self.folder / "log.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(dict(record)) + "\n")
        except OSError as error:
            raise write_error(path, error) from error

    @staticmethod
    def read(folder: Path) -> dict[str, Any]:
        """Return the last commit of a run, without the arrays.

        Raises
        ------
        StoreError
            No run, or no commit yet.
        """
        path = folder / "run.json"
        try:
            record: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise StoreError(f"{folder} is not a run with a commit (it has no run.json)") from None
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read {path}: {error}") from error
        if not isinstance(record, dict):
            raise StoreError(f"{path} is damaged; train again with the same command")
        if record.get("format") != "sbm-run" or record.get("version") != VERSION:
            raise StoreError(f"{path} is not a run of version {VERSION}")
        return record


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise write_error(path, error) from error
