"""Lines of numbers as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.units import format_number

__all__ = ["number_lines", "word_lines"]

# Bytes of a blank, an id of 19 digits, a colon, and a value: a sign, 0., three zeros, 17 digits.
_WIDEST = 44


def number_lines(
    firsts: npt.NDArray[np.float64],
    lengths: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int64] | None,
    values: npt.NDArray[np.floating] | None,
    is_single: bool = False,
) -> npt.NDArray[np.uint8]:
    """Return a line of text for each row: its first number, and ``ID:VALUE`` or values.

    Numbers are the shortest decimals that read back the same, as `format_number` writes them.

    Parameters
    ----------
    firsts : ndarray, shape (n_rows,), float64
    lengths : ndarray, shape (n_rows,), int32
        Values behind the first number of each row.
    ids : ndarray, shape (n,), int64, or None
        None: values have no ids.
    values : ndarray, shape (n,), or None
        None: all are 1.
    is_single : bool
        Whether values are read back as float32.
    """
    firsts = firsts + 0.0  # -0.0 becomes 0.0
    form = format_number
    if ids is not None:
        form = _single if is_single else _double
    given = np.empty(0) if values is None else np.ascontiguousarray(values, np.float64)
    heads, tails = _others(firsts, format_number), _others(given, form)
    text = np.frombuffer("".join(heads + tails).encode(), np.uint8)
    ends = np.cumsum([len(one) for one in heads + tails], dtype=np.int64)
    codes = np.empty(0, np.int64) if ids is None else ids
    n = int(lengths.sum(dtype=np.int64))
    room = _WIDEST * (len(firsts) + n) + len(text)
    out = np.empty(room, np.uint8)
    size = load("sbm.inputs.kernels.lines").write_lines(
        firsts, lengths, codes, given, 24 if is_single else 53, text, ends, len(heads), out
    )
    return out[:size]


def word_lines(
    codes: npt.NDArray[np.int32], words: Sequence[str], between: str = " "
) -> npt.NDArray[np.uint8]:
    """Return a line of text for each row of a matrix of codes, with the words they stand for.

    Parameters
    ----------
    codes : ndarray, shape (n_rows, n_words), int32
    words : sequence of str
    between : str
        One character, between the words of a line.
    """
    encoded = [word.encode() for word in words]
    ends = np.cumsum([len(word) for word in encoded], dtype=np.int64)
    letters = np.frombuffer(b"".join(encoded), np.uint8)
    out = np.empty(codes.size * (1 + max(map(len, encoded))), np.uint8)
    kernels = load("sbm.inputs.kernels.lines")
    return out[: kernels.write_words(codes, letters, ends, ord(between), out)]


def _others(numbers: npt.NDArray[np.float64], form: Callable[[float], str]) -> list[str]:
    """Return the text of numbers that the kernel does not write: very small and large ones."""
    sizes = np.abs(numbers)
    others = numbers[~((sizes == 0) | (sizes >= 1e-4) & (sizes < 1e15))]
    return [form(number) for number in others.tolist()]


def _double(number: float) -> str:
    return repr(number).removesuffix(".0")


def _single(number: float) -> str:
    """Return the shortest text that is the same float32, also if it is read as float64 first."""
    text = str(np.float32(number)).removesuffix(".0")
    return text if np.float32(float(text)) == number else repr(number)
