"""Reader of .npz files: sparse CSR matrices with labels, read as streams.

The file is a CSR matrix written by ``scipy.sparse.save_npz``, with members ``data``, ``indices``,
``indptr`` and ``shape``. Labels, numbers or words, are another member ``y`` or ``labels``
(``numpy.savez`` can write all of them), or the file ``NAME.y.npy`` or ``NAME.labels.npy`` next to
``NAME.npz``; their shape is (n_rows,) or (n_rows, 1). All members
are read in parallel, one piece at a time, so memory does not depend on the file size.
"""

import contextlib
import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.matrices import Batch, digested, piece_nnz, read_labels
from sbm.inputs.text import PIECE, Source
from sbm.units import first_line

_LABELS = ("y", "labels")
_OF_LABELS = "biufU"  # kinds of numpy types that are labels
_MOST_HEADER = 10_000  # most characters of an array header
_DAMAGED = (
    OSError, EOFError, ValueError, RuntimeError, KeyError, struct.error, zipfile.BadZipFile,
    zlib.error, SystemError,  # the last one: a string that is not Unicode
)  # fmt: skip


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn the errors that a damaged file causes into a `DataError`."""
    try:
        yield
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(
            f"cannot read {name} ({first_line(error)}); the file is damaged or was not written by "
            "scipy.sparse or NumPy"
        ) from error


def _parsed(name: str, read: Callable[..., Any], file: IO[bytes], **options: Any) -> Any:
    """Call a function of NumPy that reads a header.

    Raises `ValueError` if it is invalid. NumPy reads headers as Python text, with errors of any
    kind: SyntaxError, tokenize.TokenError and others.
    """
    try:
        return read(file, **options)
    except Exception as error:
        raise ValueError(f"the header of {name} is invalid: {error}") from error


class _Column:
    """A one-dimensional array in a file, or a matrix of one column, read sequentially."""

    def __init__(self, file: IO[bytes], path: Path, name: str, kinds: str) -> None:
        self.path, self.name = path, name
        self._file = file
        version = np.lib.format.read_magic(file)
        header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if header is None:
            raise ValueError(f"{name} has unknown NumPy format version {version}")
        shape, _, self._dtype = _parsed(name, header, file, max_header_size=_MOST_HEADER)
        if "U" in kinds:
            self._check_labels(shape, kinds)
        elif len(shape) != 1 or shape[0] < 0 or self._dtype.kind not in kinds:
            raise ValueError(f"{name} has unexpected dtype {self._dtype} or shape {shape}")
        self.left = int(shape[0])

    def _check_labels(self, shape: tuple[int, ...], kinds: str) -> None:
        """Raise `DataError` if the array is not one label per row."""
        if not (len(shape) == 1 or shape[1:] == (1,)) or shape[0] < 0:
            raise DataError(
                f"{self.path}: {self.name} has shape {shape}; expected one label per row (several, "
                "multi-label, need a file for each column)"
            )
        if self._dtype.kind not in kinds or not self.itemsize:
            raise DataError(
                f"{self.path}: {self.name} has dtype {self._dtype}; expected numbers or strings, "
                "such as y.astype(str)"
            )

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self._dtype.itemsize)

    def part(self, n: int) -> "_Part":
        """Return the next n numbers, to be read in slices."""
        if n > self.left:
            raise ValueError(f"{self.name} is too short")
        return _Part(self, n)

    def take(self, n: int) -> npt.NDArray[Any]:
        """Return the next n numbers."""
        if n > self.left:
            raise ValueError(f"{self.name} is too short")
        size = n * self._dtype.itemsize
        data = self._file.read(size)  # reads of an archive member are complete
        if len(data) != size:
            raise EOFError(f"{self.name} is truncated")
        self.left -= n
        if self.left == 0 and self._file.read(1):  # also verifies the checksum
            raise ValueError(f"{self.name} is longer than its header says")
        return np.frombuffer(data, self._dtype)


class _Part:
    """Consecutive numbers of a column."""

    def __init__(self, column: _Column, n: int) -> None:
        self._column, self._n = column, n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, part: slice, /) -> npt.NDArray[Any]:
        """Return a slice, which must begin where the previous one ended."""
        with _explained(str(self._column.path)):
            return self._column.take(part.stop - part.start)


def read_npz(source: Source, dtype: str, largest_row: int) -> Generator[Batch]:
    """Read a .npz file in batches of bounded size.

    Parameters
    ----------
    source : Source
        Receives the digest of the file, including its label file.
    dtype, largest_row
        As in `read_rows`.

    Raises
    ------
    DataError
        The file is damaged, is not a CSR matrix, or has no labels.
    """
    path = Path(source.name)
    beside = [Path(f"{path.with_suffix('')}.{name}.npy") for name in _LABELS]
    companion = next((p for p in beside if p.is_file()), None)
    files = [path] if companion is None else [path, companion]
    with _explained(source.name), digested(source, files), contextlib.ExitStack() as stack:
        may_lack = source.options.labels is not True
        labels, indptr, ids, values = _columns(stack, path, companion, beside, may_lack)
        labels = None if source.options.labels is False else labels
        n_rows = indptr.left - 1
        ends = indptr.take(1).astype(np.int64)
        if ends[0] != 0 or ids.left != values.left:
            raise ValueError("indptr, indices and data do not match")
        step = 1 + piece_nnz() * n_rows // (n_rows + ids.left + 1)  # about one piece
        if labels is not None:
            step = min(step, 1 + PIECE // labels.itemsize)
        while indptr.left:
            n = min(indptr.left, step)
            ends = np.concatenate([ends[-1:], indptr.take(n).astype(np.int64)])
            nnz = max(0, int(ends[-1]) - int(ends[0]))  # `read_rows` checks `ends`
            # Positions in compressed members are not meaningful, so estimate the bytes read.
            y = np.full(n, np.nan)
            if labels is not None:
                y = read_labels(labels.take(n), n, source.name, source.options.words, labels.name)
            part = ids.part(nnz), values.part(nnz)
            yield Batch(y, ends - ends[0], *part, size=source.size * n // n_rows)
        if ids.left:
            raise ValueError(f"indptr ends before the last {ids.left} nonzeros")


def _columns(
    stack: contextlib.ExitStack,
    path: Path,
    companion: Path | None,
    beside: list[Path],
    may_lack: bool,
) -> tuple[_Column | None, _Column, _Column, _Column]:
    """Open labels, indptr, ids and values; labels are None if missing and rows `may_lack` them."""
    archive = stack.enter_context(zipfile.ZipFile(path))
    members = {name.removesuffix(".npy") for name in archive.namelist()}
    missing = [name for name in ("data", "indices", "indptr") if name not in members]
    if "format" in members:
        with archive.open("format.npy") as file:
            # bytes, or a string as SciPy wrote before 1.0 and np.savez does
            content = io.BytesIO(file.read(_MOST_HEADER))
            name = _parsed("format", np.lib.format.read_array, content).item()
        kind = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
        if kind != "csr":
            raise DataError(
                f"{path} holds a matrix in {kind} format; save it as CSR, with "
                "scipy.sparse.save_npz(path, X.tocsr())"
            )
    if missing:
        raise DataError(
            f"{path} has no array {missing[0]}; expected a CSR matrix (data, indices, indptr) "
            "written by scipy.sparse.save_npz"
        )
    inside = next((name for name in _LABELS if name in members), None)
    if inside is None and companion is None and not may_lack:
        raise DataError(
            f"{path} has no labels; add an array y with numpy.savez, or write {beside[0]} with "
            "numpy.save"
        )

    def member(name: str, kinds: str) -> _Column:
        method = archive.getinfo(f"{name}.npy").compress_type
        if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # those of NumPy
            raise ValueError(f"{name} has unknown compression {method}")
        return _Column(stack.enter_context(archive.open(f"{name}.npy")), path, name, kinds)

    y = None
    if inside is not None:
        y = member(inside, _OF_LABELS)
    elif companion is not None:
        y = _Column(stack.enter_context(companion.open("rb")), path, companion.name, _OF_LABELS)
    indptr = member("indptr", "iu")
    if y is not None and y.left != indptr.left - 1:
        raise DataError(
            f"{path} has {y.left} labels, but {indptr.left - 1} rows; expected one label per row"
        )
    return y, indptr, member("indices", "iu"), member("data", "biuf")
