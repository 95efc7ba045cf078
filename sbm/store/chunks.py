"""Rows that are in memory already: chunks ``(X, y)`` of matrices and labels.

Column k of a matrix is feature id k, as for `sbm.Model.decision_function`; nothing is added to it
or taken from it. Chunks and rows are numbered from 0 in what is said of them, as Python does.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.store.pieces import (
    LARGEST_ROW,
    Digest,
    RowPiece,
    checked_rows,
    cut_rows,
    piece_nnz,
    refuse_long_row,
)
from sbm.store.text import Source

__all__ = ["chunk_source", "csr_pieces", "read_chunks"]

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
