"""Shards of scipy.sparse with labels: NumPy's zip archives, read as streams.

A shard is what ``scipy.sparse.save_npz`` writes of a CSR matrix: members ``data``, ``indices``,
``indptr`` and ``shape``. Labels are a further member ``y`` or ``labels`` (``numpy.savez`` writes
all of them), or the file ``NAME.y.npy`` or ``NAME.labels.npy`` beside ``NAME.npz``. All members
are read side by side, a piece at a time: memory does not depend on the size of a shard.
"""

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.matrices import Batch, digested, piece_nnz
from sbm.inputs.text import Source

__all__ = ["read_npz"]

_LABELS = ("y", "labels")
_MOST_HEADER = 10_000  # characters of an array's header
_DAMAGED = (
    OSError, EOFError, ValueError, RuntimeError, KeyError, struct.error, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn errors of a damaged file into one sentence."""
    try:
        yield
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(
            f"{name} cannot be read ({error}); it is damaged, or not what scipy.sparse and "
            "NumPy write"
        ) from error


class _Column:
    """A one-dimensional array of numbers in a file, read from its beginning to its end."""

    def __init__(self, file: IO[bytes], path: Path, name: str, kinds: str) -> None:
        self.path, self.name = path, name
        self._file = file
        version = np.lib.format.read_magic(file)
        header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if header is None:
            raise ValueError(f"{name} has version {version} of NumPy's format")
        shape, _, self._dtype = header(file, max_header_size=_MOST_HEADER)
        if len(shape) != 1 or self._dtype.kind not in kinds:
            raise ValueError(f"{name} is an array of {self._dtype} and shape {shape}")
        self.left = int(shape[0])

    def __getitem__(self, part: slice, /) -> npt.NDArray[Any]:
        """Return a slice that begins where the one before ended."""
        with _explained(str(self.path)):
            return self.take(part.stop - part.start)

    def take(self, n: int) -> npt.NDArray[Any]:
        """Return the next n numbers."""
        if n > self.left:
            raise ValueError(f"{self.name} has too few numbers")
        size = n * self._dtype.itemsize
        data = self._file.read(size)  # a member gives all that is asked for
        if len(data) != size:
            raise EOFError(f"{self.name} ends too early")
        self.left -= n
        if self.left == 0 and self._file.read(1):  # this compares checksums, too
            raise ValueError(f"{self.name} is longer than it says")
        return np.frombuffer(data, self._dtype)


def read_npz(source: Source, dtype: str, largest_row: int) -> Generator[Batch]:
    """Read a shard in batches of bounded size.

    Parameters
    ----------
    source : Source
        Gets the digest of the shard (with that of its file of labels).
    dtype, largest_row
        As of `read_rows`.

    Yields
    ------
    Batch

    Raises
    ------
    DataError
        The file is damaged, no CSR matrix, or has no labels.
    """
    path = Path(source.name)
    beside = [Path(f"{path.with_suffix('')}.{name}.npy") for name in _LABELS]
    companion = next((p for p in beside if p.is_file()), None)
    files = [path] if companion is None else [path, companion]
    with _explained(source.name), digested(source, files), contextlib.ExitStack() as stack:
        may_lack = source.options.labels is not True
        labels, indptr, ids, values = _columns(stack, path, companion, beside, may_lack)
        n_rows = indptr.left - 1
        ends = indptr.take(1).astype(np.int64)
        if ends[0] != 0 or ids.left != values.left:
            raise ValueError("indptr, indices and data do not belong together")
        step = 1 + piece_nnz() * n_rows // (n_rows + ids.left + 1)  # rows of about a piece
        while indptr.left:
            n = min(indptr.left, step)
            ends = np.concatenate([ends[-1:], indptr.take(n).astype(np.int64)])
            if np.diff(ends).min() < 0:
                raise ValueError("indptr decreases")
            # Compressed members have no position of use; what they hold is in proportion.
            y = np.full(n, np.nan) if labels is None else labels.take(n)
            yield Batch(y, ends, ids, values, size=source.size * n // n_rows)
        if ids.left:
            raise ValueError(f"indptr ends in front of the last {ids.left} nonzeros")


def _columns(
    stack: contextlib.ExitStack,
    path: Path,
    companion: Path | None,
    beside: list[Path],
    may_lack: bool,
) -> tuple[_Column | None, _Column, _Column, _Column]:
    """Open labels, ends of rows, ids and values; None for labels that rows `may_lack`."""
    archive = stack.enter_context(zipfile.ZipFile(path))
    members = {name.removesuffix(".npy") for name in archive.namelist()}
    missing = [name for name in ("data", "indices", "indptr") if name not in members]
    if "format" in members:
        with archive.open("format.npy") as file:
            kind = file.read(_MOST_HEADER)[-3:]
        if kind != b"csr":
            raise DataError(
                f"{path} holds a matrix of format {kind.decode('ascii', 'replace')}; save it as "
                "CSR, with scipy.sparse.save_npz(path, X.tocsr())"
            )
    if missing:
        raise DataError(
            f"{path} has no array {missing[0]}; a shard has data, indices and indptr of a CSR "
            "matrix, as scipy.sparse.save_npz writes them"
        )
    inside = next((name for name in _LABELS if name in members), None)
    if inside is None and companion is None and not may_lack:
        raise DataError(
            f"{path} has no labels; add an array y to it, with numpy.savez, or write the file "
            f"{beside[0]}, with numpy.save"
        )

    def member(name: str, kinds: str) -> _Column:
        return _Column(stack.enter_context(archive.open(f"{name}.npy")), path, name, kinds)

    y = None
    if inside is not None:
        y = member(inside, "biuf")
    elif companion is not None:
        y = _Column(stack.enter_context(companion.open("rb")), path, companion.name, "biuf")
    indptr = member("indptr", "iu")
    if y is not None and y.left != indptr.left - 1:
        raise DataError(
            f"{path} has {y.left} labels, but {indptr.left - 1} rows; give a label for each"
        )
    return y, indptr, member("indices", "iu"), member("data", "biuf")
