"""Conversion of batches of rows from a format's reader to checked pieces; reader of matrices.

The reader of a format is a generator ``read_batches(source, dtype, largest_row)`` that yields
`Batch`; `read_rows` does the rest. The reader of chunks ``(X, y)`` in memory is in this module:
column k of a matrix is feature id k, as for `sbm.Model.decision_function`. Messages number chunks
and their rows from 0, as Python does, and rows of files from 1.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.errors import DataError
from sbm.inputs.live import SourceProgress
from sbm.inputs.nametable import LabelWords, NewNames
from sbm.inputs.options import InputOptions
from sbm.inputs.parsing import (
    EXACT_FLOAT32,
    LARGEST_VALUE,
    ROUNDED_LABEL,
    TOO_LARGE,
    ParsedText,
    as_floats,
    find_rounded,
    show_change,
)
from sbm.inputs.text import PIECE, Source
from sbm.plain import dataclass
from sbm.rows import require_matrix, require_rows
from sbm.units import format_number

_NONZERO = 16  # bytes of an id and a value, or of an indptr entry and a label
_READ = 1 << 20  # bytes hashed at a time
_MOST_PROBLEMS = 20  # most invalid rows of a piece that are described
_SHOWN = 3  # of these in an error

kernels = load("sbm.store.kernels.sorting")

T = TypeVar("T")
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Sliced(Protocol):
    """An array, or a file that is read in slices."""

    def __len__(self) -> int:
        """Return the number of elements."""
        ...

    def __getitem__(self, part: slice, /) -> npt.NDArray[Any]:
        """Return the elements of a slice."""
        ...


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a source, before checks; see `_require_batch`."""

    labels: npt.NDArray[Any]  # shape (n_rows,); numbers of any type
    # shape (n_rows + 1,), integers that ascend from 0 to ``len(ids)``; row k has the nonzeros
    # ``indptr[k]`` to ``indptr[k + 1]``
    indptr: npt.NDArray[np.integer]
    # ids, values: ids and values of nonzeros, as many of each, in any order within a row. Each
    # slice is read once, in order. An id that is too large is negative.
    ids: Sliced
    values: Sliced
    # error messages of invalid rows, by position in the batch
    refused: Mapping[int, str] = field(default_factory=dict)
    size: int = 0  # bytes of the source that the rows take; 0 if the reader counts them itself
    # ``place(k)`` names row k in messages. Default: the source name and the row number.
    place: Callable[[int], str] | None = None
    names: NewNames | None = None  # names of features, in order of first appearance
    name_of: Callable[[int], str] | None = None  # ``name_of(id)`` names a feature in messages
    weights: Floats | None = None  # shape (n_rows,); factor of each row's cost
    tags: npt.NDArray[np.object_] | None = None  # shape (n_rows,); as in `ParsedText`
    # whether ids ascend within each row, no value is beyond the limit of the type, and `changed` is
    # known
    is_sorted: bool = False
    # row and message of the first whole number that the type of the values changes
    changed: tuple[int, str] = (0, "")


Reader = Callable[[Source, str, int], Generator[Batch]]


@dataclass(frozen=True)
class RowPiece:
    """Consecutive rows of a source, checked."""

    parsed: ParsedText  # the valid rows; `n_lines` counts all rows, `n_errors` the invalid ones
    problems: list[str]  # messages about the first invalid rows, with their place
    read: int  # bytes of the source read when the piece was complete


class Digest:
    """SHA-256 of rows, independent of how they are divided into pieces."""

    def __init__(self) -> None:
        self._hashes = [hashlib.sha256() for _ in range(4)]

    def add(self, labels: Floats, indptr: Ints, ids: Ints, values: Floats) -> None:
        """Add rows, with ids increasing within each row."""
        with np.errstate(invalid="ignore"):  # of signaling nan
            arrays = (labels + 0.0, np.diff(indptr), ids, values + 0.0)
        for part, array in zip(self._hashes, arrays, strict=True):
            part.update(array)

    def hexdigest(self) -> str:
        """Return the digest of all rows so far."""
        return hashlib.sha256(b"".join(part.digest() for part in self._hashes)).hexdigest()


@contextlib.contextmanager
def digested(source: Source, paths: Sequence[Path]) -> Iterator[None]:
    """Compute the digest of files in a thread, while they are read in another order.

    Parameters
    ----------
    source : Source
        Receives the digest and the bytes read at the end.
    paths : sequence of Path
        Files to hash, one after the other.
    """
    is_over = threading.Event()
    with ThreadPoolExecutor(1, "sbm-digest") as pool:
        digest = pool.submit(_digest, paths, is_over)
        try:
            yield
            source.sha256, source.read = digest.result(), source.size
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
    """Return the number of nonzeros plus rows of a piece, which fit the memory of a text piece."""
    return PIECE // _NONZERO


def _cut_rows(indptr: npt.NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end row of each piece; a very long row is a piece of its own."""
    most, n = piece_nnz(), len(indptr) - 1
    begin = 0
    while begin < n:
        ends = indptr[begin + 1 : begin + 1 + most]
        fits = int(np.searchsorted(ends, indptr[begin] + most, side="right"))
        yield begin, begin + max(1, fits)
        begin += max(1, fits)


def refuse_long_row(place: str, nnz: int, largest: int) -> None:
    """Check that a row fits in memory.

    Raises `DataError` if the row has more than `largest` nonzeros.
    """
    if nnz > largest:
        raise DataError(
            f"{place}: found a row with {nnz} nonzeros, which does not fit in --mem; raise --mem"
        )


def read_rows(
    read: Reader, source: Source, *, dtype: str = "float32", largest_row: int = 1 << 26
) -> Generator[RowPiece]:
    """Read a source in pieces of bounded size.

    Ids are sorted within each row, and values of equal ids are summed. Explicit zeros are kept, as
    in text.

    Parameters
    ----------
    read : callable
        ``read(source, dtype, largest_row)`` yields `Batch`.
    source : Source
        Receives the bytes read. Chunks also receive the digest of their rows, which does not depend
        on the division into chunks; readers of files set the digest of the bytes.
    dtype : {"float32", "float64"}
        Type of the values.
    largest_row : int
        Maximum number of nonzeros of a row.

    Raises
    ------
    DataError
        A row is too long, the arrays of a batch do not fit together, or the reader fails.
    """
    digest = Digest() if source.chunks is not None else None
    first = 1
    with contextlib.closing(read(source, dtype, largest_row)) as batches:
        for batch in batches:
            place = batch.place or partial(_place, source.name, first)
            n_rows, before = len(batch.labels), source.read
            _require_batch(batch, place, source.name)
            for begin, end in _cut_rows(batch.indptr):
                low, high = int(batch.indptr[begin]), int(batch.indptr[end])
                if end == begin + 1:
                    refuse_long_row(place(begin), high - low, largest_row)
                labels = as_floats(batch.labels[begin:end])
                indptr = batch.indptr[begin : end + 1].astype(np.int64) - low
                is_sorted = batch.is_sorted
                ids = batch.ids[low:high].astype(np.int64, copy=not is_sorted)
                values: npt.NDArray[Any] = batch.values[low:high]
                values = values if is_sorted else as_floats(values)
                nnz = len(ids) if is_sorted else kernels.sort_rows(indptr, ids, values)
                if digest is not None:
                    digest.add(labels, indptr, ids[:nnz], values[:nnz])
                refused = {k - begin: why for k, why in batch.refused.items() if begin <= k < end}
                if source.options.labels is False:
                    labels[:] = np.nan
                elif not source.options.targets:
                    for k in find_rounded(batch.labels[begin:end]).tolist():
                        shown = repr(str(batch.labels[begin + k]))
                        refused.setdefault(k, ROUNDED_LABEL.format(token=shown))
                may_lack = source.options.labels is not True
                weights = None if batch.weights is None else batch.weights[begin:end]
                tags = None if batch.tags is None else batch.tags[begin:end]
                parsed = _take_good(
                    labels, weights, tags, indptr, ids[:nnz], values[:nnz], dtype, refused,
                    may_lack, is_sorted,
                )  # fmt: skip
                if begin == 0 and batch.names is not None:
                    parsed = replace(parsed, names=batch.names)
                if not source.changed and dtype == "float32" and parsed.values is not None:
                    row, change = batch.changed
                    if not is_sorted:
                        row, change = _find_change(values[:nnz], ids[:nnz], indptr, batch)
                        row += begin
                    source.changed = f"{place(row)}: {change}" if change else ""
                some = sorted(refused)[:_MOST_PROBLEMS]
                reasons = [refused[k] for k in some]
                problems = [
                    f"{place(begin + k)}: {'the same' if why in reasons[:n] else why}"
                    for n, (k, why) in enumerate(zip(some, reasons, strict=True))
                ]
                if batch.size:  # else a reading thread counts them
                    source.read = before + batch.size * end // n_rows
                yield RowPiece(parsed, problems, source.read)
            first += n_rows
    if digest is not None:
        source.sha256 = digest.hexdigest()


def _find_change(values: Floats, ids: Ints, indptr: Ints, batch: Batch) -> tuple[int, str]:
    """Return the row of the first whole number that float32 changes, and a message, else empty."""
    size = np.abs(values)
    large = np.flatnonzero((size > EXACT_FLOAT32) & (size <= LARGEST_VALUE["float32"]))
    some = values[large]
    changed = large[(some == np.floor(some)) & (some.astype(np.float32) != some)]
    if not len(changed):
        return 0, ""
    k = changed[0]
    feature: object = int(ids[k]) if batch.name_of is None else batch.name_of(int(ids[k]))
    if (names := batch.names) is not None:
        known = np.flatnonzero(names[0] == ids[k])
        feature = names[1][int(known[0])] if len(known) else feature
    row = int(np.searchsorted(indptr, k, side="right")) - 1
    return row, show_change(feature, float(values[k]))


def _require_batch(batch: Batch, place: Callable[[int], str], name: str) -> None:
    """Check that the arrays of a batch fit together, for all readers and before any kernel.

    Raises `DataError` if they do not.
    """
    n_rows, names = len(batch.labels), batch.names or ((), ())
    weights = batch.labels if batch.weights is None else batch.weights
    if not batch.labels.shape == weights.shape == (n_rows,):
        raise DataError(
            f"{name}: found labels of shape {batch.labels.shape} and weights of shape "
            f"{weights.shape}; expected one of each per row"
        )
    n_ids, n_values = len(batch.ids), len(batch.values)
    require_rows(place, n_rows, batch.indptr, n_ids, n_values)
    if not batch.indptr[-1] == n_ids == n_values or len(names[0]) != len(names[1]):
        raise DataError(
            f"{name}: found {n_ids} ids and {n_values} values in rows of {batch.indptr[-1]} "
            f"nonzeros, and {len(names[1])} names of {len(names[0])} ids; expected equal numbers"
        )
    for part, kinds in ((batch.ids, "iu"), (batch.values, _NUMBERS)):
        if isinstance(part, np.ndarray) and (part.ndim != 1 or part.dtype.kind not in kinds):
            raise DataError(
                f"{name}: found ids or values of dtype {part.dtype} and shape {part.shape}; "
                "expected integers and numbers in one dimension"
            )


def _place(name: str, first: int, row: int) -> str:
    return f"{name}, row {first + row}"


def _take_good(
    labels: Floats,
    weights: Floats | None,
    tags: npt.NDArray[np.object_] | None,
    indptr: Ints,
    ids: Ints,
    values: npt.NDArray[np.floating],
    dtype: str,
    refused: dict[int, str],
    may_lack: bool,
    is_checked: bool,
) -> ParsedText:
    """Return the valid rows, and add messages about invalid numbers to `refused`.

    If rows `may_lack` labels, a label may be nan. Values that are checked are not checked again.
    """
    bad = ~np.isfinite(labels)
    bad_labels = np.flatnonzero(bad & ~np.isnan(labels) if may_lack else bad)
    bad_values = np.empty(0, np.intp)
    if not is_checked:
        bad_values = np.flatnonzero((ids < 0) | ~(np.abs(values) <= LARGEST_VALUE[dtype]))
    rows_of_values = np.searchsorted(indptr, bad_values, side="right") - 1
    n_rows = len(labels)
    wrong = np.zeros(n_rows, np.bool_)
    wrong[bad_labels] = wrong[rows_of_values] = wrong[list(refused)] = True
    for row in np.flatnonzero(wrong)[:_MOST_PROBLEMS].tolist():
        if row in refused:
            continue
        if row in bad_labels:
            found = f"found {labels[row]} as the label, but only finite numbers are allowed"
        else:
            k = int(bad_values[np.searchsorted(rows_of_values, row)])
            found = _describe(int(ids[k]), float(values[k]))
        refused[row] = found
    n_wrong = int(np.count_nonzero(wrong))
    if n_wrong:
        kept, lengths = ~wrong, np.diff(indptr)
        nonzeros = np.repeat(kept, lengths)
        labels, ids, values = labels[kept], ids[nonzeros], values[nonzeros]
        weights = None if weights is None else weights[kept]
        tags = None if tags is None else tags[kept]
        indptr = np.concatenate([[0], np.cumsum(lengths[kept])])
    ones = bool((values == 1).all())
    typed = None if ones else values.astype(dtype, copy=False)
    return ParsedText(labels, indptr, ids, typed, n_rows, [], n_wrong, weights=weights, tags=tags)


def _describe(identity: int, value: float) -> str:
    if identity < 0:
        return (
            "found a feature id that is negative or too large; ids must be from 0 to "
            "9223372036854775807"
        )
    found = f"found {format_number(value)} as the value of feature {identity}"
    if not np.isfinite(value):
        return f"{found}, but only finite numbers are allowed"
    return f"{found}, {TOO_LARGE}"


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

    Raises `DataError` if a row is invalid and `skip` is false.
    """
    flight: deque[tuple[RowPiece, Future[T]]] = deque()
    for piece in pieces:
        flight.append((piece, pool.submit(convert, piece.parsed)))
        while len(flight) > ahead:
            yield source, _taken(source, *flight.popleft(), skip)
    while flight:
        yield source, _taken(source, *flight.popleft(), skip)


def list_problems(problems: Sequence[str], n: int) -> str:
    """Return a message about `n` invalid rows, of which the first are described."""
    more = n - _SHOWN
    return "; ".join(problems[:_SHOWN]) + (f"; and {more:,} more rows" if more > 0 else "")


def _taken(source: Source, piece: RowPiece, task: Future[Any], skip: bool) -> Any:
    """Update the counters and return the result of a piece."""
    converted = task.result()
    if piece.problems and not skip:
        raise DataError(list_problems(piece.problems, piece.parsed.n_errors))
    source.problems += piece.problems[: 20 - len(source.problems)]
    done, parsed = source.done, piece.parsed
    source.done = SourceProgress(
        piece.read, done.lines + parsed.n_lines, done.rows + len(parsed.labels),
        done.skipped + parsed.n_errors,
    )  # fmt: skip
    source.parsed = piece.read
    return converted


_NUMBERS = "biuf"  # kinds of numpy types that are real numbers


def chunk_source(chunks: Iterable[tuple[Any, Any]], name: str, options: InputOptions) -> Source:
    """Return a source of chunks; its size is known for a list or tuple.

    Parameters
    ----------
    chunks : iterable of (X, y)
    name : str
        Name in the manifest.
    """
    size = 0
    if isinstance(chunks, Sequence):
        for k, chunk in enumerate(chunks):
            X, _ = _matrix(chunk, k)
            is_sparse = hasattr(X, "tocsr")
            nnz = len(X.data) if _is_csr(X) else X.nnz if is_sparse else np.count_nonzero(X)
            size += _NONZERO * (int(nnz) + int(X.shape[0]))
    return Source(name, size, chunks=chunks, format="chunks", options=options)


def read_chunks(source: Source, dtype: str, largest_row: int) -> Generator[Batch]:
    """Read chunks of rows in memory.

    A sparse matrix that is not CSR is converted to CSR as a whole, which needs about as much memory
    as the matrix. Zeros of dense matrices are dropped. A nonzero and a row count as 16 bytes each.

    Parameters
    ----------
    source : Source
        Its `chunks` are pairs (X, y): X is a scipy.sparse matrix or array or an array-like, shape
        (n_rows, any), and y has n_rows labels.
    dtype, largest_row
        As in `read_rows`.

    Raises
    ------
    DataError
        A chunk is not such a pair.
    """
    for number, chunk in enumerate(source.chunks or ()):
        X, y = _matrix(chunk, number)
        name = f"chunk {number}"
        labels = read_labels(y, X.shape[0], name, source.options.words)
        if hasattr(X, "tocsr"):
            X = X.tocsr()
            used = slice(0, int(X.indptr.max(initial=0)))  # there may be space for more
            yield Batch(
                labels, X.indptr, X.indices[used], X.data[used],
                size=_NONZERO * (len(labels) + used.stop), place=partial(_place, name, 0),
            )  # fmt: skip
            continue
        step = max(1, piece_nnz() // max(1, X.shape[1]))
        for begin in range(0, len(labels), step):
            part = X[begin : begin + step]
            rows, ids = np.nonzero(part)
            yield Batch(
                labels[begin : begin + step],
                np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(part)))]),
                ids, part[rows, ids], size=_NONZERO * (len(part) + len(ids)),
                place=partial(_place, name, begin),
            )  # fmt: skip


def _matrix(chunk: Any, number: int) -> tuple[Any, Any]:
    """Return the matrix of a chunk (sparse or a numpy array) and its labels."""
    if not isinstance(chunk, tuple | list) or len(chunk) != 2:
        raise DataError(
            f"chunk {number} is a {type(chunk).__name__}; expected a pair (X, y) of a matrix and "
            "its labels"
        )
    X, y = chunk
    if isinstance(X, np.ma.MaskedArray) or isinstance(y, np.ma.MaskedArray):
        raise DataError(f"chunk {number} is a masked array; fill what is masked, or drop the rows")
    is_frame = hasattr(X, "__arrow_c_stream__")
    if not hasattr(X, "tocsr"):
        X = np.asarray(X)
    if len(X.shape) != 2:
        raise DataError(f"chunk {number}: X has shape {X.shape}; expected two dimensions")
    if X.dtype.kind not in _NUMBERS:
        advice = (
            ". For columns of words, give the data frame instead of a pair, and label='COLUMN'"
            if is_frame
            else ""
        )
        raise DataError(f"chunk {number}: X has dtype {X.dtype}; expected real numbers{advice}")
    if hasattr(X, "tocsr") and not _is_csr(X):  # rows are checked later, but not a conversion
        require_matrix(f"chunk {number}", X)
    return X, y


def _is_csr(X: Any) -> bool:
    return getattr(X, "format", "") == "csr"


def _largest_character(words: npt.NDArray[np.str_]) -> int:
    """Return the largest code point of an array of words, which NumPy does not check."""
    codes = np.ascontiguousarray(words).view(f"{words.dtype.str[0]}u4")
    return int(codes.max(initial=0))


def read_labels(
    labels: Any, n_rows: int, place: str, words: LabelWords, what: str = "y"
) -> npt.NDArray[Any]:
    """Return labels as numbers of any type; words are encoded.

    Parameters
    ----------
    labels : array-like, shape (n_rows,) or (n_rows, 1)
    place, what : str
        Where the labels are, and their name, for messages.
    words : LabelWords

    Raises
    ------
    DataError
        The labels are not numbers or words, or were the other kind before.
    """
    y: npt.NDArray[Any] = np.asarray(labels)
    if y.dtype.kind == "U" and isinstance(labels, list | tuple):  # NumPy makes words of numbers
        y = np.asarray(labels, dtype=object)
    if y.shape == (n_rows, 1):
        y = y[:, 0]
    if y.ndim != 1 or len(y) != n_rows:
        several = ""
        if y.ndim == 2 and len(y) == n_rows:
            several = "; several labels per row (multi-label) need a model for each column of y"
        raise DataError(
            f"{place}: {what} has shape {y.shape}, but X has {n_rows} rows; expected one label per "
            f"row{several}"
        )
    if y.dtype.kind == "U" and _largest_character(y) > sys.maxunicode:
        raise DataError(f"{place}: {what} holds characters beyond Unicode; it is damaged")
    items = y.tolist() if y.dtype.kind in "OU" else []
    if y.dtype.kind in _NUMBERS or (items and all(isinstance(label, Real) for label in items)):
        if n_rows:
            words.expect_numbers(place)
        return y
    if y.dtype.kind not in "OU":
        raise DataError(
            f"{place}: {what} has dtype {y.dtype}; expected all labels to be words, or all numbers"
        )
    if not all(isinstance(label, str) for label in items):
        kind = str if isinstance(items[0], str) else Real
        row = next(k for k, x in enumerate(items) if not isinstance(x, kind) or x != x)
        raise DataError(
            f"{place}, row {row}: found {items[row]!r:.40} as the label; expected all labels to be "
            "words, or all numbers"
        )
    if items:
        words.expect_words(place, items[0])
    try:
        return words.encode(items)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
