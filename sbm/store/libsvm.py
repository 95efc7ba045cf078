"""LIBSVM text to rows: a compiled parser that reads about half a gigabyte a second on one core.

The grammar of a line, with blanks (space, tab, CR, VT, FF) between its parts::

    label [qid:N] [id:value]... [# comment]

Empty lines and lines that hold only a comment are passed over. Labels and values are decimal
numbers, rounded correctly to float64; ``inf`` and ``nan`` are refused. Ids are integers from 0 to
2^63 - 1 in any order, each at most once in a row.
"""

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sbm.compiled import load

__all__ = [
    "LARGEST_VALUE", "SPARE", "ParsedText", "Room", "TextError", "TextParser", "parse_text",
]  # fmt: skip

kernels = load("sbm.store.kernels.text")

# What a line is refused for, in the order of the codes in the kernels.
_REASONS = (
    "",
    "found {token} where a numeric label is expected",
    "found {token}, but only finite numbers are allowed",
    "found {token} where a feature written as id:value is expected",
    "found feature id {token}, the largest allowed id is 9223372036854775807",
    "found {token} without a value, a feature is written as id:value",
    "found {token} where a decimal number is expected",
    (
        "found {token}, too large for the value type (float64 reaches 1.79e308, "
        "float32 3.4e38; see --dtype)"
    ),
    "found feature id {token} twice, each id is allowed once in a row",
)
_DUPLICATE = 8

# Magnitudes above these are refused: all that rounds to a finite number of the type is allowed.
LARGEST_VALUE = {
    "float32": math.nextafter(math.ldexp(2 - 2**-24, 127), 0),
    "float64": math.ldexp(2 - 2**-52, 1023),
}

SPARE = 66  # bytes behind the text: two newlines, and 64 that are read but mean nothing

_LABEL = -1  # in a list of hard numbers: stands for the row's label instead of a feature


@dataclass(frozen=True)
class TextError:
    """One refused line.

    Attributes
    ----------
    line : int
        Line number within the parsed text, from 1.
    code : int
        Reason, a position in the module's table of messages.
    token : str
        The offending piece of the line, shortened to 40 characters.
    """

    line: int
    code: int
    token: str

    @property
    def message(self) -> str:
        """What was found and what is expected, without the place."""
        return _REASONS[self.code].format(token=repr(self.token))


@dataclass(frozen=True)
class ParsedText:
    """The rows of a piece of text, with ids as they stand in the text.

    Attributes
    ----------
    labels : ndarray, shape (n_rows,), float64
    indptr : ndarray, shape (n_rows + 1,), int64
    ids : ndarray, shape (nnz,), int64
        Feature ids, strictly increasing within a row.
    values : ndarray, shape (nnz,), float32 or float64, or None
        None when every value is 1.
    n_lines : int
        Lines read, empty ones and refused ones included.
    errors : list of TextError
        Refused lines, the first ones only when there are many.
    n_errors : int
        How many lines were refused.
    """

    labels: npt.NDArray[np.float64]
    indptr: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.floating] | None
    n_lines: int
    errors: list[TextError]
    n_errors: int

    def copy(self) -> "ParsedText":
        """The same in arrays of its own."""
        values = None if self.values is None else self.values.copy()
        return replace(
            self, labels=self.labels.copy(), indptr=self.indptr.copy(), ids=self.ids.copy(),
            values=values,
        )  # fmt: skip


class Room:
    """Arrays for all that a text of some size can hold; most of them are never touched.

    Parameters
    ----------
    size : int
        Bytes of text.
    dtype : {"float32", "float64"}
        Type of the values.
    """

    def __init__(self, size: int, dtype: str) -> None:
        self.size, self.dtype = size, dtype
        # A row takes at least "1\n", a feature at least " 1:1".
        self.labels = np.empty(size // 2 + 1)
        self.indptr = np.zeros(size // 2 + 2, np.int64)
        self.ids = np.empty(size // 4 + 1, np.int64)
        self.values = np.empty(size // 4 + 1, dtype)


class TextParser(Protocol):
    """What makes rows of whole lines, as `parse_text` does."""

    def __call__(
        self, text: npt.NDArray[np.uint8], size: int, *, dtype: str, skip: bool, room: Room
    ) -> ParsedText:
        """Parse a piece of text."""
        ...


def parse_text(
    text: npt.NDArray[np.uint8],
    size: int,
    *,
    dtype: str = "float32",
    skip: bool = False,
    max_errors: int = 20,
    room: Room | None = None,
) -> ParsedText:
    """Parse whole lines of LIBSVM text.

    Parameters
    ----------
    text : ndarray, shape (at least size + SPARE,), uint8
        The bytes; a missing last newline and the one behind it are added in place.
    size : int
        Bytes of text.
    dtype : {"float32", "float64"}
        Type of the values returned; parsing itself is exact float64.
    skip : bool
        Leave refused lines out instead of stopping at the first one.
    max_errors : int
        How many refused lines to describe.
    room : Room, optional
        Where to put the rows, if it is large enough and of this type.

    Returns
    -------
    ParsedText
        Views of `room`, good until it is used again. With `skip` false and an error, holds only
        the rows before the refused line.
    """
    if size and text[size - 1] != 10:
        text[size] = 10
        size += 1
    text[size] = 10
    if room is None or room.size < size or room.dtype != dtype:
        room = Room(size, dtype)
    labels, indptr, ids, values = room.labels, room.indptr, room.ids, room.values
    errors = np.empty((max_errors, 3), np.int64)
    hard = np.empty((1024, 4), np.int64)
    bits = np.empty(1, np.uint64)
    limit = LARGEST_VALUE[dtype]
    while True:
        rows, nnz, lines, ones, n_errors, n_hard = kernels.parse(
            text, size, limit, skip, labels, indptr, ids, values, errors, hard, bits
        )
        if n_hard <= len(hard):
            break
        hard = np.empty((n_hard, 4), np.int64)
    _resolve(text, hard[:n_hard], labels, indptr, ids, values)
    described = [_describe(text, *map(int, row)) for row in errors[:n_errors]]
    return ParsedText(
        labels=labels[:rows],
        indptr=indptr[: rows + 1],
        ids=ids[:nnz],
        values=None if ones else values[:nnz],
        n_lines=int(lines),
        errors=described,
        n_errors=int(n_errors),
    )


def _resolve(
    text: npt.NDArray[np.uint8],
    hard: npt.NDArray[np.int64],
    labels: npt.NDArray[np.float64],
    indptr: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int64],
    values: npt.NDArray[np.floating],
) -> None:
    """Put the numbers that the kernel could not round with certainty in place."""
    for row, identity, begin, end in hard.tolist():
        number = float(text[begin:end].tobytes())
        if identity == _LABEL:
            labels[row] = number
        else:
            low, high = indptr[row], indptr[row + 1]
            values[low + np.searchsorted(ids[low:high], identity)] = number


def _describe(text: npt.NDArray[np.uint8], line: int, code: int, where: int) -> TextError:
    if code == _DUPLICATE:
        return TextError(line, code, str(where))
    token = text[where : where + 200].tobytes()
    for blank in b" \t\r\n\v\f#":
        token = token.split(bytes([blank]), 1)[0]
    shown = token.decode("utf-8", "replace")
    return TextError(line, code, shown if len(shown) <= 40 else shown[:37] + "...")
