"""Vowpal Wabbit's text to rows: a compiled parser, and the hashes that make ids of names.

The grammar of a line::

    label [1] [0] ['tag] |[namespace[:weight]] [name[:value]]... [|namespace ...]

Ids are those of Vowpal Wabbit: MurmurHash3 of the name, with the hash of the namespace as its seed;
a name of digits alone is a number, to which that hash is added (its ``--hash strings``). There are
no interactions and no constant feature. Features of value 0 are left out, and values of equal ids
are added up, as there. A weight of a namespace multiplies its values. An importance other than 1
and a base other than 0 are refused: a store has neither.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.inputs.parsing import (
    LABELS,
    LARGEST_VALUE,
    Arrays,
    Counts,
    InputOptions,
    ParsedText,
    Room,
    TextError,
    TextParser,
    parse_lines,
    token_at,
)

__all__ = ["REASONS", "hash_names", "parse_vw", "vw_parser"]

kernels = load("sbm.inputs.kernels.names")

# What a line is refused for, in the order of the codes in the kernels.
REASONS = (
    "",
    "found {token} where a numeric label is expected, as in 1 |f name:value",
    "found {token}, but only finite numbers are allowed",
    "found no label in front of the bar, and a blank behind it, as in 1 |f name:value",
    (
        "found the importance {token}, but rows have weights only while they are trained; leave it "
        "out, and give sbm train --weights FILE"
    ),
    "found the base {token}, but there is no such thing here; leave it out",
    "found {token} where a decimal number is expected",
    (
        "found {token}, too large for the value type (float64 reaches 1.79e308, "
        "float32 3.4e38; see --dtype)"
    ),
    "found {token} without a bar, a line of Vowpal Wabbit's is written as 1 |f name:value",
    "found {token} where a name is expected, as in 1 |f name:value",
)


def vw_parser(options: InputOptions) -> TextParser:
    """Make the parser of pieces of text."""
    assert options.hash_bits is not None
    return partial(parse_vw, mask=(1 << options.hash_bits) - 1, labels=options.labels)


def parse_vw(
    text: npt.NDArray[np.uint8],
    size: int,
    *,
    mask: int,
    dtype: str = "float32",
    skip: bool = False,
    labels: bool | None = True,
    max_errors: int = 20,
    room: Room | None = None,
) -> ParsedText:
    """Parse whole lines of Vowpal Wabbit's text.

    Parameters
    ----------
    text : ndarray, shape (at least size + SPARE,), uint8
        The bytes; a missing last newline and the one behind it are added in place.
    size : int
        Bytes of text.
    mask : int
        Bits of a hash that are its id.
    dtype : {"float32", "float64"}
        Type of the values returned; parsing itself is float64, to the last bit but one.
    skip : bool
        Leave refused lines out instead of stopping at the first one.
    labels : bool, optional
        As of `InputOptions`.
    max_errors : int
        How many refused lines to describe.
    room : Room, optional
        Where to put rows, if it is large enough.

    Returns
    -------
    ParsedText
        Views of `room`, good until it is used again. With `skip` false and an error, holds only
        the rows before the refused line.
    """

    def read(size: int, errors: npt.NDArray[np.int64]) -> tuple[Arrays, Counts]:
        into = room if room is not None and room.size >= size else Room(size, "float64")
        y, indptr, ids = into.labels, into.indptr, into.ids
        values = into.values if into.dtype == "float64" else np.empty(len(ids))
        bits = np.empty(1, np.uint64)
        while True:
            counts = kernels.parse(
                text, size, LARGEST_VALUE[dtype], LARGEST_VALUE["float64"], mask, skip,
                LABELS[labels], y, indptr, ids, values, errors, bits,
            )  # fmt: skip
            if counts[0] >= 0:
                return (y, indptr, ids, values), counts
            ids, values = np.empty(2 * len(ids), np.int64), np.empty(2 * len(ids))  # short names

    return parse_lines(text, size, dtype, max_errors, read, _describe)


def _describe(text: npt.NDArray[np.uint8], line: int, code: int, where: int) -> TextError:
    return TextError(line, code, token_at(text, where, b" \t\r\n|"))


def hash_names(names: Sequence[bytes], hash_bits: int) -> npt.NDArray[np.int64]:
    """Ids of names without a namespace.

    Parameters
    ----------
    names : sequence of bytes
    hash_bits : int
        1 to 32.

    Returns
    -------
    ndarray, shape (n_names,), int64
    """
    ids = np.empty(len(names), np.int64)
    ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))
    text = np.frombuffer(b"".join(names) + b"\0", np.uint8)
    kernels.hash_names(text, ends, (1 << hash_bits) - 1, ids)
    return ids
