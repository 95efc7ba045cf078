"""Compiled parser of Vowpal Wabbit text, and the hashing of feature names to ids.

Grammar of a line::

    label [importance] [0] ['tag] |[namespace[:weight]] [name[:value]]... [|namespace ...]

Ids match those of Vowpal Wabbit (``--hash strings``): MurmurHash3 of the name, seeded with the hash
of the namespace. A name that consists of digits is a number, and that hash is added to it. There
are no interactions and no constant feature. As in Vowpal Wabbit, features with value 0 are dropped,
values of equal ids are summed, and the weight of a namespace multiplies its values. The importance
is the weight of the row. A base other than 0 is an error, because a store holds none. Blank lines
are skipped, unless labels are ignored.

A feature is named ``namespace^name``, as by ``--invert_hash``.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.inputs.nametable import NameTable, NewNames
from sbm.inputs.options import InputOptions
from sbm.inputs.parsing import (
    LABELS,
    LARGEST_VALUE,
    ROUNDED_LABEL,
    TOO_LARGE,
    Arrays,
    Counts,
    Int64s,
    ParsedText,
    Room,
    TextError,
    TextParser,
    parse_lines,
    token_at,
)
from sbm.names import Names

kernels = load("sbm.inputs.kernels.names")

# Error messages, indexed by the codes of the kernel.
REASONS = (
    "",
    "found {token} where a numeric label is expected, as in 1 |f name:value",
    "found {token}, but only finite numbers are allowed",
    "found no label followed by a space before the bar; expected a line like 1 |f name:value",
    "found importance {token}; it must be a number of at least 0",
    "found base {token}, but bases are not supported; remove it",
    "found {token} where a decimal number is expected",
    "found {token}, " + TOO_LARGE,
    "found {token} without a bar; expected a Vowpal Wabbit line like 1 |f name:value",
    "found {token} where a name is expected, as in 1 |f name:value",
    ROUNDED_LABEL,
)


def vw_parser(options: InputOptions) -> TextParser:
    """Return a parser with these options."""
    assert options.hash_bits is not None
    mask = (1 << options.hash_bits) - 1
    return partial(
        parse_vw,
        mask=mask,
        labels=options.labels,
        targets=options.targets,
        names=options.names,
        tagged=options.tag is not None,
        pairs=options.quadratic,
    )


def parse_vw(
    text: npt.NDArray[np.uint8],
    size: int,
    *,
    mask: int,
    dtype: str = "float32",
    skip: bool = False,
    labels: bool | None = True,
    targets: bool = False,
    names: NameTable | None = None,
    tagged: bool = False,
    pairs: Sequence[str] = (),
    max_errors: int = 20,
    room: Room | None = None,
    look: bool = True,
) -> ParsedText:
    """Parse whole lines of Vowpal Wabbit text, as `sbm.inputs.libsvm.parse_text` those of LIBSVM.

    Parsing uses float64, accurate to the second-last bit.

    Parameters
    ----------
    mask : int
        Bits of the hash that form the id.
    names : NameTable, optional
        Names that are known; names of other ids are returned.
    tagged : bool
        Return the tags of rows.
    pairs : sequence of str
        First letters of two namespaces each, whose features are multiplied; a colon for all.
    """
    named = np.empty(0, np.uint8) if names is None else names.known
    weights, places, n_names = np.empty(0), np.empty((0, 2), np.int64), 0
    of_pairs = np.frombuffer("".join(pairs).encode(), np.uint8).reshape(-1, 2)

    def read(size: int, errors: Int64s, notes: Int64s) -> tuple[Arrays, Counts]:
        fits = room is not None and room.fits(text, size, labels)
        into = room if room is not None and fits else Room.of(text, size, "float64")
        y, indptr, ids, values = into.labels, into.indptr, into.ids, into.values
        if into.dtype != "float64":
            values = into.more("values", ids.shape, np.float64)
        nonlocal weights, places, n_names
        weights = into.more("weights", y.shape, np.float64)
        bits = np.empty(1, np.uint64)
        while True:
            places = into.more("places", (0 if names is None else len(ids), 2), np.int64)
            *counts, n_names = kernels.parse(
                text, size, LARGEST_VALUE[dtype], LARGEST_VALUE["float64"], mask, skip,
                LABELS[labels], not targets, y, weights, indptr, ids, values, places, named,
                into.more("letters", (len(ids) if pairs else 0,), np.uint8), of_pairs, errors,
                notes, bits,
            )  # fmt: skip
            if counts[0] >= 0:
                rows, nnz, lines, ones, n_errors = counts
                return (y, indptr, ids, values), (rows, nnz, lines, ones, n_errors)
            ids, values = np.empty(2 * len(ids), np.int64), np.empty(2 * len(ids))  # short names

    parsed = parse_lines(text, size, dtype, max_errors, read, _describe)
    weights = weights[: len(parsed.labels)]
    return replace(
        parsed,
        weights=None if (weights == 1).all() else weights.copy(),
        names=None if names is None else _names_at(text, places[:n_names]),
        tags=_tags(text, size, len(parsed.labels)) if tagged else None,
    )


def _tags(text: npt.NDArray[np.uint8], size: int, n_rows: int) -> npt.NDArray[np.object_]:
    """Return the tags of rows, empty for those without one, of valid lines."""
    lines = [line for line in text[:size].tobytes().split(b"\n") if n_rows and line.strip()]
    tags = np.full(n_rows, "", object)
    for k, line in enumerate(lines[:n_rows]):
        head = line.partition(b"|")[0]
        words = head.split()
        tag = next((word[1:] for word in words if word.startswith(b"'")), b"")
        if not tag and words and not head[-1:].isspace() and b"|" in line:
            tag = words[-1]
        tags[k] = tag.decode("utf-8", "replace")
    return tags


def _names_at(text: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> NewNames:
    """Return the names of the features at places of the text, with their ids."""
    ends, out = np.empty(len(places), np.int64), np.empty(0, np.uint8)
    out = np.empty(kernels.write_names(text, places, ends, out), np.uint8)
    kernels.write_names(text, places, ends, out)
    return places[:, 0].copy(), Names(out, ends)


def _describe(text: npt.NDArray[np.uint8], line: int, code: int, where: int) -> TextError:
    return TextError(line, code, token_at(text, where, b" \t\r\n|"))


def hash_names(names: Sequence[bytes], hash_bits: int) -> npt.NDArray[np.int64]:
    """Hash names without a namespace to ids.

    Parameters
    ----------
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
