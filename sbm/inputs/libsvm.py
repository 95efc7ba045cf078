"""Compiled parser of LIBSVM text; reads about a gigabyte per second on one core.

Grammar of a line, with whitespace (space, tab, CR, VT, FF) between its parts::

    label [qid:N] [id:value]... [# comment]

Lines with only a comment are skipped, and blank ones too, unless labels are ignored. Labels and
values are decimal numbers, rounded correctly to float64; ``inf`` and ``nan`` are rejected. Blanks
may follow the colon. Ids are integers from 0 to 2^63 - 1 in any order, each at most once per row.
"""

import re

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.inputs.parsing import (
    EXACT_FLOAT32,
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
    parse_lines,
    token_at,
)

kernels = load("sbm.inputs.kernels.text")

# Error messages, indexed by the codes of the kernel.
REASONS = (
    "",
    "found {token} where a numeric label is expected",
    "found {token}, but only finite numbers are allowed",
    "found {token} where a feature written as id:value is expected",
    "found feature id {token}; the largest allowed id is 9223372036854775807",
    "found {token} without a value; a feature is written as id:value",
    "found {token} where a decimal number is expected",
    "found {token}, " + TOO_LARGE,
    "found feature id {token} twice; each id is allowed once per row",
    "found {token}; qid is allowed once, right after the label, with an integer",
    ROUNDED_LABEL,
)
_BAD_LABEL, _BAD_ID, _NO_VALUE, _BAD_VALUE, _DUPLICATE, _QUERY = 1, 3, 5, 6, 8, 9

_ENDS = b" \t\r\n\v\f#"  # bytes that end a token
_LABEL = -1  # feature id that marks the label in the list of hard numbers


def parse_text(
    text: npt.NDArray[np.uint8],
    size: int,
    *,
    dtype: str = "float32",
    skip: bool = False,
    labels: bool | None = True,
    targets: bool = False,
    max_errors: int = 20,
    room: Room | None = None,
    look: bool = True,
) -> ParsedText:
    """Parse whole lines of LIBSVM text.

    Parameters
    ----------
    text : ndarray, shape (at least size + SPARE,), uint8
        The text. A missing final newline and an extra one after it are written in place.
    size : int
        Bytes of text.
    dtype : {"float32", "float64"}
        Type of the returned values. Parsing uses exact float64.
    skip : bool
        Skip invalid lines instead of stopping at the first one.
    labels, targets : bool, optional
        As in `InputOptions`.
    max_errors : int
        Number of invalid lines to describe.
    room : Room, optional
        Arrays for the rows; used if large enough and of type `dtype`.
    look : bool
        Whether to note also whole numbers of eight digits that `dtype` changes. If there may be
        some, the text is parsed twice.

    Returns
    -------
    ParsedText
        Views of `room`, valid until it is used again. If `skip` is false and a line is invalid,
        only the rows before that line.
    """

    def read(size: int, errors: Int64s, notes: Int64s) -> tuple[Arrays, Counts]:
        fits = room is not None and room.dtype == dtype and room.fits(text, size, labels)
        into = room if room is not None and fits else Room.of(text, size, dtype)
        y, indptr, ids, values = arrays = into.labels, into.indptr, into.ids, into.values
        hard, bits = np.empty((1024, 4), np.int64), np.empty(1, np.uint64)
        is_plain = True
        while True:
            *counts, n_hard = kernels.parse(
                text, size, LARGEST_VALUE[dtype], skip, LABELS[labels], not targets, is_plain, y,
                indptr, ids, values, errors, hard, notes, bits,
            )  # fmt: skip
            rows, nnz, lines, ones, n_errors = counts
            if n_hard > len(hard):
                hard = np.empty((n_hard, 4), np.int64)
            elif is_plain and look and not ones and _may_be_changed(values[:nnz]):
                is_plain, notes[:] = False, 0
            else:
                break
        _resolve(text, hard[:n_hard], y, indptr, ids, values)
        return arrays, (rows, nnz, lines, ones, n_errors)

    return parse_lines(text, size, dtype, max_errors, read, _describe)


def _may_be_changed(values: npt.NDArray[np.floating]) -> bool:
    """Whether a number of eight digits may have been a whole number that float32 does not hold."""
    if values.dtype != np.float32 or max(values.max(), -values.min()) < EXACT_FLOAT32:
        return False
    sizes = np.abs(values)
    return bool(((sizes >= EXACT_FLOAT32) & (sizes <= 1e8)).any())


def _resolve(
    text: npt.NDArray[np.uint8],
    hard: npt.NDArray[np.int64],
    labels: npt.NDArray[np.float64],
    indptr: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int64],
    values: npt.NDArray[np.floating],
) -> None:
    """Fill in the numbers that the kernel could not round with certainty."""
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
    token = token_at(text, where, _ENDS)
    if code == _BAD_VALUE and not token:  # a colon, and nothing after it
        begin = where
        while begin > 0 and text[begin - 1] not in _ENDS:
            begin -= 1
        return TextError(line, _NO_VALUE, token_at(text, begin, _ENDS))
    if code == _BAD_ID and token.startswith("qid:"):
        code = _QUERY
    hint = _hint(text, line, where) if code in (_BAD_LABEL, _BAD_ID, _NO_VALUE) else ""
    return TextError(line, code, token, hint)


_MULTI_LABEL = (
    "Several labels per row (multi-label) are not supported; train a model for each label, on rows "
    "labelled 1 or -1"
)
_FEATURES = "turn it into features first (see Raw text in docs/inputs.md)"
_SEVERAL = re.compile(rb"[-+.\d]*(,\s?[-+.\d]*)+(:\S*)?\s")  # labels at the begin of a line
_LONGEST = 2000  # bytes of a line that are looked at


def _hint(text: npt.NDArray[np.uint8], number: int, where: int) -> str:
    """Return what a line looks like in which no label or feature was found, and what to do."""
    begin = text[max(0, where - _LONGEST) : where].tobytes().rpartition(b"\n")[2]
    end, _, following = text[where : where + _LONGEST].tobytes().partition(b"\n")
    line = (begin + end).strip()
    first, *rest = line.split() or [b""]
    pairs = sum(re.match(rb"\d+:", word) is not None for word in rest)
    if first[:1] in (b"{", b"["):
        return f"JSON is not read; write it as a table, or, if it holds text, {_FEATURES}"
    if number == 1 and re.fullmatch(rb"\d+ \d+ \d+", line) and re.search(rb" \d+:", following):
        return f"This looks like a header of rows, features and labels. {_MULTI_LABEL}"
    if pairs and 2 * pairs >= len(rest):
        if _SEVERAL.match(line):
            return _MULTI_LABEL
        is_pair = re.fullmatch(rb"[-+.\d]+:[.\d]+", first)
        return "A row begins with its label; --weights reads its weight from a file" * bool(is_pair)
    if b"|" in line:
        return "This looks like Vowpal Wabbit's text; use --format vw"
    if not rest:
        return "This looks like CSV; use --format csv" * (b"," in line)
    if b"\t" in line and b" " not in line:
        return "This looks like a table; use --format tsv"
    n_words = sum(re.search(rb"[a-zA-Z]{2}|[\x80-\xff]", word) is not None for word in rest)
    is_text = n_words > 1 or first.startswith(b"__label__")
    return f"Raw text is not read; {_FEATURES}" * is_text
