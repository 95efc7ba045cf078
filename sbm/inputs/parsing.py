"""What parsers of whole lines share: the records they make, and the frame around their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError

__all__ = [
    "HASH_BITS", "LABELS", "LARGEST_ID", "LARGEST_VALUE", "SPARE", "InputOptions", "ParsedText",
    "Room", "TextError", "TextParser", "parse_lines", "token_at",
]  # fmt: skip


LARGEST_ID = (1 << 63) - 1
HASH_BITS = 22  # ids are found in a plain array then, which is fast and takes 16 MB
MOST_HASH_BITS = 32  # of a hash
LABELS = {True: 0, None: 1, False: 2}  # what kernels call `InputOptions.labels`


@dataclass(frozen=True)
class InputOptions:
    """How inputs are read; None is what nobody has said yet.

    Attributes
    ----------
    format : str, optional
        Of all inputs; else the name of each tells its own.
    hash_bits : int, optional
        Where features have names, ids are so many bits of their hashes.
    label : str, optional
        Column of a table that holds the labels.
    text : tuple of str, optional
        Columns of a table whose cells are words, even if they look like numbers.
    labels : bool, optional
        True: each row has a label. None: the label of a row without one is nan. False: labels are
        not used, so they need not be numbers.
    columns : tuple of str
        Of the tables that were read before, but those of labels.
    """

    format: str | None = None
    hash_bits: int | None = None
    label: str | None = None
    text: tuple[str, ...] | None = None
    labels: bool | None = True
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        bits = self.hash_bits
        if bits is not None and not 1 <= bits <= MOST_HASH_BITS:
            raise SettingsError(f"hash_bits is {bits}; it must be from 1 to {MOST_HASH_BITS}")

    def record(self) -> dict[str, Any]:
        """What makes the same ids of the same names again, as JSON holds it."""
        return {
            "hash_bits": self.hash_bits, "label": self.label, "text": list(self.text or ())
        }  # fmt: skip

    def following(self, record: Mapping[str, Any], what: str) -> InputOptions:
        """Fill in what was chosen before, when a store or a model was made.

        Raises
        ------
        SettingsError
            Something else was asked for, so that ids would have another meaning; the record is
            none.
        """
        bits, label, text = (record.get(key) for key in ("hash_bits", "label", "text"))
        columns = record.get("columns", [])
        if not _is_record(bits, label, text, columns):
            raise SettingsError(f"what {what} says of its inputs makes no sense; split them again")
        if self.hash_bits not in (None, bits):
            raise SettingsError(
                f"hash_bits is {self.hash_bits}, but names in {what} were hashed to {bits} bits; "
                "leave out --hash-bits"
            )
        assert text is not None
        if self.text is not None and sorted(self.text) != sorted(text):
            raise SettingsError(
                f"the text columns of {what} are {', '.join(text) or 'none'}; leave out --text"
            )
        return replace(
            self, hash_bits=bits, label=label if self.label is None else self.label,
            text=tuple(text), columns=tuple(columns),
        )  # fmt: skip


def _is_record(bits: Any, label: Any, text: Any, columns: Any) -> bool:
    return (
        type(bits) is int
        and 1 <= bits <= MOST_HASH_BITS
        and (label is None or isinstance(label, str))
        and isinstance(text, list)
        and isinstance(columns, list)
        and all(isinstance(name, str) for name in text + columns)
    )


# Magnitudes above these are refused: all that rounds to a finite number of the type is allowed.
LARGEST_VALUE = {
    "float32": math.nextafter(math.ldexp(2 - 2**-24, 127), 0),
    "float64": math.ldexp(2 - 2**-52, 1023),
}

SPARE = 66  # bytes behind the text: two newlines, and 64 that are read but mean nothing


@dataclass(frozen=True)
class TextError:
    """One refused line.

    Attributes
    ----------
    line : int
        Line number within the parsed text, from 1.
    code : int
        Reason, a position in the table of messages of its format's module.
    token : str
        The offending piece of the line, shortened to 40 characters.
    """

    line: int
    code: int
    token: str

    def explain(self, reasons: Sequence[str]) -> str:
        """Say what was found, and what is expected, in the words of a table of messages."""
        what = reasons[self.code].format(token=repr(self.token))
        is_text = all(c >= " " or c == "\t" for c in self.token)
        return what if is_text else f"{what}; this looks like a binary file, not text"


@dataclass(frozen=True)
class ParsedText:
    """The rows of a piece of text, with ids as they stand in the text.

    Attributes
    ----------
    labels : ndarray, shape (n_rows,), float64
        nan: the row has none.
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

    def copy(self) -> ParsedText:
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


# What a kernel is called by: (size of the text, room for refused lines) to arrays and counts.
Arrays = tuple[
    npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]
]
Counts = tuple[int, int, int, bool, int]


def parse_lines(
    text: npt.NDArray[np.uint8],
    size: int,
    dtype: str,
    max_errors: int,
    read: Callable[[int, npt.NDArray[np.int64]], tuple[Arrays, Counts]],
    describe: Callable[[npt.NDArray[np.uint8], int, int, int], TextError],
) -> ParsedText:
    """End a text as kernels want it, have it read, and make of it what `TextParser` returns.

    Parameters
    ----------
    text, size, dtype, max_errors
        As of `parse_text`.
    read : callable
        ``read(size, errors)``: returns labels, indptr, ids and values, and how many rows,
        nonzeros and lines there are, whether all values are 1, and how many lines were refused.
    describe : callable
        Makes of the text and a row of `errors` what was refused.

    Returns
    -------
    ParsedText
    """
    if size and text[size - 1] != 10:
        text[size] = 10
        size += 1
    text[size] = 10
    errors = np.empty((max_errors, 3), np.int64)
    (labels, indptr, ids, values), (rows, nnz, lines, ones, n_errors) = read(size, errors)
    return ParsedText(
        labels=labels[:rows],
        indptr=indptr[: rows + 1],
        ids=ids[:nnz],
        values=None if ones else values[:nnz].astype(dtype, copy=False),
        n_lines=int(lines),
        errors=[describe(text, *map(int, row)) for row in errors[:n_errors]],
        n_errors=int(n_errors),
    )


def token_at(text: npt.NDArray[np.uint8], where: int, ends: bytes) -> str:
    """Return what stands in a text up to one of some bytes, shortened to 40 characters."""
    token = text[where : where + 200].tobytes()
    for end in ends:
        token = token.split(bytes([end]), 1)[0]
    shown = token.decode("utf-8", "replace")
    return shown if len(shown) <= 40 else shown[:37] + "..."
