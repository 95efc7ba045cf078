"""Rows that are in memory already: chunks ``(X, y)`` of matrices and labels.

Column k of a matrix is feature id k, as for `sbm.Model.decision_function`; nothing is added to it
or taken from it. Chunks and rows are numbered from 0 in what is said of them, as Python does.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.errors import DataError
from sbm.inputs.parsing import LARGEST_VALUE, ParsedText
from sbm.inputs.text import PIECE, Source
from sbm.settings import format_number

__all__ = [
    "LARGEST_ROW", "Digest", "RowPiece", "checked_rows", "chunk_source", "convert_pieces",
    "csr_pieces", "cut_rows", "digested", "piece_nnz", "read_chunks", "refuse_long_row",
]  # fmt: skip


LARGEST_ROW = 1 << 26  # nonzeros, where memory has no bound
_NONZERO = 16  # bytes of an id and a value, or of a row's end and its label
_READ = 1 << 20  # bytes hashed at a time
MOST_PROBLEMS = 20  # refused rows of a piece that are described

kernels = load("sbm.store.kernels.sorting")

T = TypeVar("T")
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowPiece:
    """Some rows of a source, in its order.

    Attributes
    ----------
    parsed : ParsedText
        The rows that are taken; `n_lines` counts the others, too, `n_errors` them alone.
    problems : list of str
        What is wrong with the first ones of those, with their place.
    read : int
        Bytes read of the source when the piece was complete.
    """

    parsed: ParsedText
    problems: list[str]
    read: int


class Digest:
    """SHA-256 of rows, the same whatever pieces they come in."""

    def __init__(self) -> None:
        self._hashes = [hashlib.sha256() for _ in range(4)]

    def add(self, labels: Floats, indptr: Ints, ids: Ints, values: Floats) -> None:
        """Take rows; their arrays are those of `checked_rows`."""
        arrays = (labels + 0.0, np.diff(indptr), ids, values + 0.0)
        for part, array in zip(self._hashes, arrays, strict=True):
            part.update(array)

    def hexdigest(self) -> str:
        """Digest of all rows so far."""
        return hashlib.sha256(b"".join(part.digest() for part in self._hashes)).hexdigest()


@contextlib.contextmanager
def digested(source: Source, paths: Sequence[Path]) -> Iterator[None]:
    """Take the digest of files in a thread, while they are read out of order.

    Parameters
    ----------
    source : Source
        Has the digest afterwards.
    paths : sequence of Path
        One behind the other.

    Yields
    ------
    None
    """
    is_over = threading.Event()
    with ThreadPoolExecutor(1, "sbm-digest") as pool:
        digest = pool.submit(_digest, paths, is_over)
        try:
            yield
            source.sha256 = digest.result()
        finally:
            is_over.set()


def _digest(paths: Sequence[Path], is_over: threading.Event) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while (data := file.read(_READ)) and not is_over.is_set():
                digest.update(data)
    return digest.hexdigest()


def piece_nnz() -> int:
    """Nonzeros and rows of a piece, together, which take the memory of a piece of text."""
    return PIECE // _NONZERO


def cut_rows(indptr: npt.NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Yield first row, and row behind the last, of pieces; a longer row is alone in its piece.

    Parameters
    ----------
    indptr : ndarray, shape (n_rows + 1,), integers that do not decrease
    """
    most, n = piece_nnz(), len(indptr) - 1
    begin = 0
    while begin < n:
        end = min(begin + most, n)
        ends = indptr[begin + 1 : end + 1]
        fits = int(np.searchsorted(ends, indptr[begin] + most, side="right"))
        end = begin + max(1, fits)
        yield begin, end
        begin = end


def refuse_long_row(place: str, nnz: int, largest: int) -> None:
    """Notice a row that there is no room for.

    Raises
    ------
    DataError
        It has more than `largest` nonzeros.
    """
    if nnz > largest:
        raise DataError(
            f"{place}: found a row of {nnz} nonzeros, more than --mem has room for; raise --mem"
        )


def checked_rows(
    labels: Floats,
    indptr: Ints,
    ids: Ints,
    values: Floats,
    *,
    dtype: str,
    place: Callable[[int], str],
    read: int,
    digest: Digest | None = None,
    refused: Mapping[int, str] = MappingProxyType({}),
) -> RowPiece:
    """Bring rows into the form that the parser of text gives them, and leave out wrong ones.

    Ids are sorted within a row, and the values of one that comes again are added up. Zeros that are
    there stay, as they do in text.

    Parameters
    ----------
    labels : ndarray, shape (n_rows,), float64
    indptr : ndarray, shape (n_rows + 1,), int64, changed in place
        Begins with 0.
    ids : ndarray, shape (nnz,), int64, changed in place
        In any order; negative ones stand for ids that are too large, too.
    values : ndarray, shape (nnz,), float64, changed in place
    dtype : {"float32", "float64"}
        Type of the values returned.
    place : function
        Says where the k-th of these rows comes from.
    read : int
        Bytes read of the source so far.
    digest : Digest, optional
        Takes the rows, wrong ones included.
    refused : mapping of int to str
        What was found wrong already, by row.

    Returns
    -------
    RowPiece
    """
    nnz = kernels.sort_rows(indptr, ids, values)
    ids, values = ids[:nnz], values[:nnz]
    if digest is not None:
        digest.add(labels, indptr, ids, values)
    limit = LARGEST_VALUE[dtype]
    bad_labels = np.flatnonzero(~np.isfinite(labels))
    bad_values = np.flatnonzero((ids < 0) | ~(np.abs(values) <= limit))
    rows_of_values = np.searchsorted(indptr, bad_values, side="right") - 1
    n_rows = len(labels)
    wrong = np.zeros(n_rows, np.bool_)
    wrong[bad_labels] = wrong[rows_of_values] = wrong[list(refused)] = True
    problems = []
    for row in np.flatnonzero(wrong)[:MOST_PROBLEMS].tolist():
        if row in refused:
            found = refused[row]
        elif not np.isfinite(labels[row]):
            found = f"found {labels[row]} as the label, but only finite numbers are allowed"
        else:
            k = int(bad_values[np.searchsorted(rows_of_values, row)])
            found = _describe(int(ids[k]), float(values[k]))
        problems.append(f"{place(row)}: {found}")
    n_wrong = int(np.count_nonzero(wrong))
    if n_wrong:
        kept = ~wrong
        lengths = np.diff(indptr)
        nonzeros = np.repeat(kept, lengths)
        labels, ids, values = labels[kept], ids[nonzeros], values[nonzeros]
        indptr = np.concatenate([[0], np.cumsum(lengths[kept])])
    ones = bool((values == 1).all())
    parsed = ParsedText(
        labels, indptr, ids, None if ones else values.astype(dtype, copy=False), n_rows, [], n_wrong
    )
    return RowPiece(parsed, problems, read)


def _describe(identity: int, value: float) -> str:
    if identity < 0:
        return (
            "found a feature id that is negative or larger than 9223372036854775807; ids are "
            "numbers between"
        )
    found = f"found {format_number(value)} as the value of feature {identity}"
    if not np.isfinite(value):
        return f"{found}, but only finite numbers are allowed"
    return (
        f"{found}, too large for the value type (float64 reaches 1.79e308, float32 3.4e38; "
        "see --dtype)"
    )


def convert_pieces(
    source: Source,
    pieces: Iterable[RowPiece],
    pool: ThreadPoolExecutor,
    convert: Callable[[ParsedText], T],
    *,
    ahead: int,
    skip: bool,
) -> Iterator[tuple[Source, T]]:
    """Convert pieces of rows in threads, and yield them in order; see `convert_sources`.

    Raises
    ------
    DataError
        The first refused row, unless refused rows are left out.
    """
    flight: deque[tuple[RowPiece, Future[T]]] = deque()
    for piece in pieces:
        flight.append((piece, pool.submit(convert, piece.parsed)))
        while len(flight) > ahead:
            yield source, _taken(source, *flight.popleft(), skip)
    while flight:
        yield source, _taken(source, *flight.popleft(), skip)


def _taken(source: Source, piece: RowPiece, task: Future[Any], skip: bool) -> Any:
    """Count a piece, and return what became of it."""
    converted = task.result()
    if piece.problems and not skip:
        raise DataError(piece.problems[0])
    source.problems += piece.problems[: 20 - len(source.problems)]
    source.rows += len(piece.parsed.labels)
    source.lines += piece.parsed.n_lines
    source.skipped += piece.parsed.n_errors
    source.parsed = source.text = piece.read
    return converted


_NUMBERS = "biuf"  # kinds of numpy types that are real numbers


def chunk_source(chunks: Iterable[tuple[Any, Any]], name: str) -> Source:
    """Make a source of chunks; of a list or tuple, its size is known.

    Parameters
    ----------
    chunks : iterable of (X, y)
    name : str
        What the manifest calls them.

    Returns
    -------
    Source
    """
    size = 0
    if isinstance(chunks, Sequence):
        size = sum(_bytes_of(*_matrix(chunk, k)) for k, chunk in enumerate(chunks))
    return Source(name, size, chunks=chunks, format="chunks")


def read_chunks(
    source: Source, *, dtype: str = "float32", largest_row: int = LARGEST_ROW
) -> Generator[RowPiece]:
    """Read the chunks of a source in pieces of bounded size.

    A matrix that is neither CSR nor dense is turned into CSR as a whole, which takes as much memory
    as it has itself.

    Parameters
    ----------
    source : Source
        Its `chunks` are pairs of a scipy.sparse matrix or array, or what numpy takes for a matrix,
        shape (n_rows, any), and n_rows labels. Is told its bytes, 16 for each nonzero and row, and
        at the end its digest, which is that of the rows, however they are cut into chunks.
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
        A chunk is no such pair, in one sentence that names it.
    """
    digest = Digest()
    for number, chunk in enumerate(source.chunks or ()):
        X, y = _matrix(chunk, number)
        labels = _labels(y, X.shape[0], number)

        cut = _sparse_pieces if hasattr(X, "tocsr") else _dense_pieces
        for begin, indptr, ids, values in cut(X, number, largest_row):
            source.read += 16 * (len(indptr) - 1 + len(ids))
            yield checked_rows(
                labels[begin : begin + len(indptr) - 1], indptr, ids, values, dtype=dtype,
                place=partial(_place, number, begin), read=source.read, digest=digest,
            )  # fmt: skip
    source.sha256 = digest.hexdigest()


def _place(number: int, begin: int, row: int) -> str:
    return f"chunk {number}, row {begin + row}"


def _matrix(chunk: Any, number: int) -> tuple[Any, Any]:
    """Return the matrix and the labels of a chunk, the former sparse or a numpy array."""
    if not isinstance(chunk, tuple | list) or len(chunk) != 2:
        raise DataError(
            f"chunk {number} is a {type(chunk).__name__}; a pair (X, y) of a matrix and its labels "
            "is expected"
        )
    X, y = chunk
    if not hasattr(X, "tocsr"):
        X = np.asarray(X)
    if len(X.shape) != 2:
        raise DataError(f"chunk {number}: X has shape {X.shape}; a matrix has two dimensions")
    if X.dtype.kind not in _NUMBERS:
        raise DataError(f"chunk {number}: X holds {X.dtype}; real numbers are expected")
    return X, y


def _bytes_of(X: Any, y: Any) -> int:
    nnz = X.nnz if hasattr(X, "tocsr") else np.count_nonzero(X)
    return 16 * (int(nnz) + int(X.shape[0]))


def _labels(y: Any, n_rows: int, number: int) -> npt.NDArray[np.float64]:
    y = np.asarray(y)
    if y.dtype.kind not in _NUMBERS:
        raise DataError(f"chunk {number}: y holds {y.dtype}; labels are numbers")
    if y.ndim != 1 or len(y) != n_rows:
        raise DataError(
            f"chunk {number}: y has shape {y.shape}, but X has {n_rows} rows; give a label for each"
        )
    labels: npt.NDArray[np.float64] = y.astype(np.float64, copy=False)
    return labels


_Cut = tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]


def _sparse_pieces(X: Any, number: int, largest_row: int) -> Iterator[_Cut]:
    X = X.tocsr()
    indptr = np.asarray(X.indptr)
    n_stored = min(len(X.indices), len(X.data))
    if indptr[0] != 0 or (np.diff(indptr) < 0).any() or indptr[-1] > n_stored:
        raise DataError(
            f"chunk {number}: the indptr of X does not fit its {n_stored} nonzeros; "
            "X.check_format() tells more"
        )
    return csr_pieces(indptr, X.indices, X.data, partial(_place, number, 0), largest_row)


def csr_pieces(
    indptr: npt.NDArray[np.integer],
    indices: npt.NDArray[np.integer],
    data: npt.NDArray[Any],
    place: Callable[[int], str],
    largest_row: int,
) -> Iterator[_Cut]:
    """Cut a CSR matrix whose `indptr` is sound into pieces, copies of a bounded number of rows.

    Parameters
    ----------
    indptr, indices, data : ndarray
        The matrix; ids from 0 or 1, as they are.
    place : callable
        Says in words where a row is, given its number.
    largest_row : int
        Nonzeros of a row that are allowed.

    Yields
    ------
    begin : int
        First row.
    indptr, ids, values : ndarray
        As `checked_rows` takes them.
    """
    for begin, end in cut_rows(indptr):
        low, high = int(indptr[begin]), int(indptr[end])
        if end == begin + 1:
            refuse_long_row(place(begin), high - low, largest_row)
        yield (
            begin,
            indptr[begin : end + 1].astype(np.int64) - low,
            indices[low:high].astype(np.int64),
            data[low:high].astype(np.float64),
        )


def _dense_pieces(X: npt.NDArray[Any], number: int, largest_row: int) -> Iterator[_Cut]:
    """Cut a dense matrix into pieces; its zeros are no nonzeros."""
    n_rows, width = X.shape
    step = max(1, piece_nnz() // max(1, width))
    for begin in range(0, n_rows, step):
        part = X[begin : begin + step]
        rows, ids = np.nonzero(part)
        counts = np.bincount(rows, minlength=len(part))
        refuse_long_row(_place(number, begin, 0), int(counts.max()), largest_row)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        yield begin, indptr, ids.astype(np.int64), part[rows, ids].astype(np.float64)
