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
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.matrices import (
    LARGEST_ROW,
    RowPiece,
    checked_rows,
    cut_rows,
    digested,
    piece_nnz,
    refuse_long_row,
)
from sbm.inputs.parsing import InputOptions
from sbm.inputs.text import Source

__all__ = ["read_npz"]

_LABELS = ("y", "labels")
_MOST_HEADER = 10_000  # characters of an array's header
_DAMAGED = (
    OSError, EOFError, ValueError, RuntimeError, KeyError, struct.error, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Piece = tuple[int, _Floats, _Ints, _Ints, _Floats]


class _Column:
    """A one-dimensional array of numbers in a file, read from its beginning to its end."""

    def __init__(self, file: IO[bytes], name: str, kinds: str) -> None:
        self.name = name
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


def read_npz(
    source: Source,
    options: InputOptions,
    *,
    dtype: str = "float32",
    largest_row: int = LARGEST_ROW,
) -> Iterator[RowPiece]:
    """Read a shard in pieces of bounded size.

    Parameters
    ----------
    source : Source
        Is told the bytes read, and the digest of the shard (with that of its file of labels).
    options : InputOptions
        Say nothing that matters here.
    dtype : {"float32", "float64"}
        Type of the values.
    largest_row : int
        Most nonzeros of a row.

    Yields
    ------
    RowPiece

    Raises
    ------
    DataError
        The file is damaged, no CSR matrix, or has no labels.
    """
    path = Path(source.name)
    beside = [Path(f"{path.with_suffix('')}.{name}.npy") for name in _LABELS]
    companion = next((p for p in beside if p.is_file()), None)
    files = [path] if companion is None else [path, companion]
    try:
        with digested(source, files), contextlib.ExitStack() as stack:
            columns = _columns(stack, path, companion, beside)
            rows = columns["y"].left
            pieces = _pieces(columns, source.name, largest_row)
            for begin, labels, indptr, ids, values in pieces:
                # Compressed members have no position of use; what they hold is in proportion.
                source.read = source.size - source.size * columns["y"].left // rows
                yield checked_rows(
                    labels, indptr, ids, values, dtype=dtype,
                    place=partial(_place, source.name, begin), read=source.read,
                )  # fmt: skip
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(
            f"{source.name} cannot be read ({error}); it is damaged, or not what scipy.sparse and "
            "NumPy write"
        ) from error
    source.read = source.size


def _place(name: str, begin: int, row: int) -> str:
    return f"{name}, row {begin + row + 1}"


def _columns(
    stack: contextlib.ExitStack, path: Path, companion: Path | None, beside: list[Path]
) -> dict[str, _Column]:
    """Open the members of a shard, and its labels."""
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
    if inside is None and companion is None:
        raise DataError(
            f"{path} has no labels; add an array y to it, with numpy.savez, or write the file "
            f"{beside[0]}, with numpy.save"
        )

    def member(name: str, kinds: str) -> _Column:
        return _Column(stack.enter_context(archive.open(f"{name}.npy")), name, kinds)

    if inside is not None:
        y = member(inside, "biuf")
    else:
        assert companion is not None
        y = _Column(stack.enter_context(companion.open("rb")), companion.name, "biuf")
    columns = {
        "indptr": member("indptr", "iu"), "indices": member("indices", "iu"),
        "data": member("data", "biuf"), "y": y,
    }  # fmt: skip
    n_rows = columns["indptr"].left - 1
    if y.left != n_rows:
        raise DataError(f"{path} has {y.left} labels, but {n_rows} rows; give a label for each")
    return columns


def _pieces(columns: dict[str, _Column], name: str, largest_row: int) -> Iterator[_Piece]:
    """Yield first row, labels, ends of rows, ids and values of pieces."""
    indptr, indices, data = (columns[key] for key in ("indptr", "indices", "data"))
    ends = indptr.take(1).astype(np.int64)
    if ends[0] != 0 or indices.left != data.left:
        raise ValueError("indptr, indices and data do not belong together")
    row = 0
    while indptr.left:
        more = indptr.take(min(indptr.left, piece_nnz())).astype(np.int64)
        ends = np.concatenate([ends[-1:], more])
        lengths = np.diff(ends)
        if lengths.min() < 0:
            raise ValueError("indptr decreases")
        longest = int(lengths.argmax())
        refuse_long_row(_place(name, row, longest), int(lengths[longest]), largest_row)
        for begin, end in cut_rows(ends):
            labels = columns["y"].take(end - begin).astype(np.float64)
            nnz = int(ends[end] - ends[begin])
            ids, values = indices.take(nnz).astype(np.int64), data.take(nnz).astype(np.float64)
            yield row + begin, labels, ends[begin : end + 1] - ends[begin], ids, values
        row += len(more)
    if indices.left:
        raise ValueError(f"indptr ends in front of the last {indices.left} nonzeros")
