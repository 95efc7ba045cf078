"""Shared code of the line parsers: options, parsed rows, errors and the call of the kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sbm.inputs.nametable import NewNames
from sbm.plain import dataclass
from sbm.units import format_number

LARGEST_ID = (1 << 63) - 1
HASH_BITS = 22  # the lookup is then a plain array of 16 MB, which is fast
MOST_HASH_BITS = 32
LABELS = {True: 0, None: 1, False: 2}  # `InputOptions.labels` as the kernels encode it


# Largest magnitudes that round to a finite number of the type; larger values are invalid.
LARGEST_VALUE = {
    "float32": math.nextafter(math.ldexp(2 - 2**-24, 127), 0),
    "float64": math.ldexp(2 - 2**-52, 1023),
}

EXACT_FLOAT32 = 2.0**24  # up to here all whole numbers are a float32
FIRST_ROUNDED = 2.0**53  # whole numbers from here on may not be a float64

# End of the message about such a value.
TOO_LARGE = "too large: --dtype float32 holds up to 3.4e38, and --dtype float64 up to 1.79e308"

_COUNTED = 1 << 16  # bytes among which newlines are counted at a time
SPARE = 66  # bytes after the text: two newlines, and 64 that are read but ignored


@dataclass(frozen=True)
class TextError:
    """An invalid line."""

    line: int  # line number within the parsed text, from 1
    code: int  # index into the error messages of the format
    token: str  # the invalid part of the line, shortened to 40 characters
    hint: str = ""  # what the line looks like instead, and what to do

    def explain(self, reasons: Sequence[str]) -> str:
        """Return the error message, with `reasons` the messages of the format."""
        what = reasons[self.code].format(token=repr(self.token))
        is_text = all(c >= " " or c == "\t" for c in self.token)
        return what if is_text else f"{what}; this looks like a binary file, not text"


class LineNotes(NamedTuple):
    """Lines of a piece of text that matter for the whole text, by their number from 1; 0 if none.

    The kernels write them in this order.
    """

    blank: int = 0  # the first blank line that is no row
    bare: int = 0  # the first row without a label, if labels may be missing
    comment: int = 0  # the first line with only a comment, before the rows
    later_comment: int = 0  # the same, after a row
    # changed, changed_id, changed_bits: line, feature id and float64 of the first whole number that
    # the type of the values changes
    changed: int = 0
    changed_id: int = 0
    changed_bits: int = 0


_NO_NOTES = LineNotes()


@dataclass(frozen=True)
class ParsedText:
    """The rows of a piece of text, with the ids of the text."""

    labels: npt.NDArray[np.float64]  # shape (n_rows,); nan if the row has no label
    indptr: npt.NDArray[np.int64]  # shape (n_rows + 1,)
    ids: npt.NDArray[np.int64]  # shape (nnz,); feature ids, strictly increasing within a row
    values: npt.NDArray[np.floating] | None  # shape (nnz,); None when every value is 1
    n_lines: int  # lines read, including empty and invalid ones
    errors: list[TextError]  # the first invalid lines
    n_errors: int  # number of invalid lines
    names: NewNames | None = None  # names of features that may be new
    # shape (n_rows,); factor of each row's cost; None when every factor is 1
    weights: npt.NDArray[np.float64] | None = None
    tags: npt.NDArray[np.object_] | None = (
        None  # shape (n_rows,); a text for each row, if asked for
    )
    notes: LineNotes = _NO_NOTES
    # the first whole number that the type of the values changes, with its feature; empty if none
    changed: str = ""

    def behind(self, n: int) -> ParsedText:
        """Return the rows without the first `n`."""
        first = self.indptr[n]
        return replace(
            self,
            labels=self.labels[n:],
            indptr=self.indptr[n:] - first,
            ids=self.ids[first:],
            values=None if self.values is None else self.values[first:],
            weights=None if self.weights is None else self.weights[n:],
            tags=None if self.tags is None else self.tags[n:],
        )

    def copy(self) -> ParsedText:
        """Return a copy that shares no arrays."""
        values = None if self.values is None else self.values.copy()
        return replace(
            self, labels=self.labels.copy(), indptr=self.indptr.copy(), ids=self.ids.copy(),
            values=values, weights=None if self.weights is None else self.weights.copy(),
        )  # fmt: skip


class Room:
    """Arrays large enough for the rows of any text of a given size.

    Parameters
    ----------
    size : int
        Bytes of text.
    dtype : {"float32", "float64"}
        Type of the values.
    lines : int, optional
        Lines of the text, if known.
    """

    def __init__(self, size: int, dtype: str, lines: int | None = None) -> None:
        self.size, self.dtype = size, dtype
        # A row takes at least "1\n", unless a blank line is one, a feature at least " 1:1".
        rows = size // 2 if lines is None else lines
        self.labels = np.empty(rows + 1)
        self.indptr = np.zeros(rows + 2, np.int64)
        self.ids = np.empty(size // 4 + 1, np.int64)
        self.values = np.empty(size // 4 + 1, dtype)
        self._more: dict[str, npt.NDArray[Any]] = {}

    @classmethod
    def of(cls, text: npt.NDArray[np.uint8], size: int, dtype: str) -> Room:
        """Return arrays for a text that ends with a newline; its lines are counted."""
        return cls(size, dtype, _count_lines(text, size))

    def more(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array of any content that a parser needs besides, the same at each call."""
        found = self._more.get(name)
        if found is None or len(found) < shape[0]:
            found = self._more[name] = np.empty(shape, dtype)
        return found[: shape[0]]

    def fits(self, text: npt.NDArray[np.uint8], size: int, labels: bool | None) -> bool:
        """Return whether the rows of a text fit; without `labels` (False), each line may be one."""
        most = _count_lines(text, size) if labels is False else 0
        return self.size >= size and len(self.labels) > most


def _count_lines(text: npt.NDArray[np.uint8], size: int) -> int:
    starts = range(0, size, _COUNTED)
    return sum(int(np.count_nonzero(text[k : min(k + _COUNTED, size)] == 10)) for k in starts)


class TextParser(Protocol):
    """A function that parses whole lines, such as `parse_text`."""

    def __call__(
        self,
        text: npt.NDArray[np.uint8],
        size: int,
        *,
        dtype: str,
        skip: bool,
        room: Room,
        look: bool,
    ) -> ParsedText:
        """Parse a piece of text."""
        ...


# What a call of a kernel returns: arrays of rows, and counts.
Arrays = tuple[
    npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]
]
Counts = tuple[int, int, int, bool, int]
Int64s = npt.NDArray[np.int64]


def parse_lines(
    text: npt.NDArray[np.uint8],
    size: int,
    dtype: str,
    max_errors: int,
    read: Callable[[int, Int64s, Int64s], tuple[Arrays, Counts]],
    describe: Callable[[npt.NDArray[np.uint8], int, int, int], TextError],
) -> ParsedText:
    """Terminate a text with newlines, parse it with a kernel and return the rows.

    Parameters
    ----------
    text, size, dtype, max_errors
        As in `parse_text`.
    read : callable
        ``read(size, errors, notes)`` fills in errors and `LineNotes`, and returns the arrays
        (labels, indptr, ids, values) and the counts (rows, nonzeros, lines, whether all values are
        1, invalid lines).
    describe : callable
        Converts a row of `errors` to a `TextError`, given the text.
    """
    if size and text[size - 1] != 10:
        text[size] = 10
        size += 1
    text[size] = 10
    errors = np.empty((max_errors, 3), np.int64)
    places = np.zeros(len(LineNotes._fields), np.int64)
    (labels, indptr, ids, values), (rows, nnz, lines, ones, n_errors) = read(size, errors, places)
    notes = LineNotes(*places.tolist())
    return ParsedText(
        labels=labels[:rows],
        indptr=indptr[: rows + 1],
        ids=ids[:nnz],
        values=None if ones else values[:nnz].astype(dtype, copy=False),
        n_lines=int(lines),
        errors=[describe(text, *map(int, row)) for row in errors[:n_errors]],
        n_errors=int(n_errors),
        notes=notes,
        changed=show_change(notes.changed_id, float(np.int64(notes.changed_bits).view(np.float64)))
        if notes.changed
        else "",
    )


def show_change(feature: object, number: float) -> str:
    """Return a note about a whole number that float32 changes."""
    stored = format_number(float(np.float32(number)))
    return (
        f"feature {feature} has the value {format_number(number)}, which float32 stores as "
        f"{stored}; --dtype float64 keeps it"
    )


ROUNDED_LABEL = (
    "found the label {token}, which float64 cannot hold exactly; number the labels from 0, make "
    "words of them (--categorical in a table), or write targets with an exponent (1.5e18)"
)
_PLAIN_DIGITS = re.compile(r"\s*([+-]?\d+)(\.0*)?\s*", re.ASCII)


def is_rounded(text: str, number: float) -> bool:
    """Whether a text is a whole number in plain digits, and not exactly its float64."""
    if abs(number) < FIRST_ROUNDED or math.isinf(number):
        return False
    from decimal import Decimal  # here, because a start takes longer with it

    digits = _PLAIN_DIGITS.fullmatch(text)
    return digits is not None and Decimal(digits[1]) != Decimal(number)


def find_rounded(labels: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return the positions of whole numbers that are not exactly a float64."""
    if labels.dtype.kind not in "iufO" or labels.dtype.itemsize < 8 or labels.dtype == np.float64:
        return np.empty(0, np.intp)
    numbers = as_floats(labels)
    large = np.flatnonzero((np.abs(numbers) >= FIRST_ROUNDED) & np.isfinite(numbers))
    rounded = [bool(int(labels[k]) == labels[k] != int(numbers[k])) for k in large]
    return large[rounded]


def as_floats(numbers: npt.NDArray[Any], *, copy: bool = True) -> npt.NDArray[np.float64]:
    """Convert numbers of any type, without warnings; those out of range become infinite."""
    try:
        with np.errstate(all="ignore"):
            return numbers.astype(np.float64, copy=copy)
    except OverflowError:
        most = LARGEST_VALUE["float64"]
        return np.array([float(x) if abs(x) <= most else math.inf for x in numbers.tolist()])


def token_at(text: npt.NDArray[np.uint8], where: int, ends: bytes) -> str:
    """Return the text from `where` up to the first byte in `ends`, at most 40 characters."""
    token = text[where : where + 200].tobytes()
    for end in ends:
        token = token.split(bytes([end]), 1)[0]
    shown = token.decode("utf-8", "replace")
    return shown if len(shown) <= 40 else shown[:37] + "..."
