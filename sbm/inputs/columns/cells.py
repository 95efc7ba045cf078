"""Cells of a column as numbers, dates and words, without a step per cell in Python.

Cells are an array of Arrow, or `Text`, which compiled kernels read. What those do not understand,
such as ``12 €``, the functions here read with pyarrow, one word each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.errors import DataError
from sbm.inputs.columns.arrays import (
    array_of,
    floats_of,
    integers_of,
    known_words,
    nothing,
    string,
    strings,
    valid_of,
    values_of,
)
from sbm.inputs.columns.kinds import MISSING
from sbm.inputs.parsing import as_floats
from sbm.plain import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

kernels = load("sbm.inputs.kernels.cells")

PADDING = 16  # that of the kernels
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

# Cells that mean a missing number, flag or date. In categories they are words.
NULL_WORDS = (
    "", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "-NaN", "null", "NULL", "Null", "None",
    "none", "--", "-", "?", ".", "NaT", "<NA>", MISSING,
)  # fmt: skip
_FEW_WORDS = 64
# Regular expressions in the syntax of RE2.
PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^(?i:[+-]?inf(inity)?)$"
_PLAIN_COMMA = r"^[+-]?(\d+,?\d*|,\d+)([eE][+-]?\d+)?$"
_BLANKS, _BETWEEN = "[\\s\u00a0\u202f]*", "[ '_\u2019\u00a0\u202f{}]"  # between groups of digits
# Groups are of three digits; in India, all but the last are of two.
_GROUPED = rf"^[+-]?(\d{{1,3}}({_BETWEEN.format(',')}\d{{3}})+|\d\d?(,\d\d)+,\d{{3}})(\.\d*)?$"
_GROUPED_COMMA = rf"^[+-]?\d{{1,3}}({_BETWEEN.format('.')}\d{{3}})+(,\d*)?$"
_MINUS = "^(\\(?)[\u2212\u2013]"  # the sign minus, and a dash
MONEY = (
    r"(?:[A-Z]{0,2}\p{Sc}|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|CZK|BRL|MXN|kr|zł)"
)
_BEFORE, _BEHIND = rf"^([+-]?){_BLANKS}{MONEY}{_BLANKS}", rf"{_BLANKS}{MONEY}$"
_PERCENT = rf"(\d){_BLANKS}%$"
_ISO = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
)
_ZONED = r"[ T].*(Z|[+-]\d\d(:?\d\d)?)$"
_DAYS = ("%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%d %b %Y", "%d-%b-%Y",
         "%b %d, %Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%b-%y")  # fmt: skip
DATES = tuple(day + time for time in ("", " %H:%M", " %H:%M:%S") for day in _DAYS)
# Of a date with the format %Y; strptime also takes fewer digits. Two digits are %y, which POSIX
# defines: 69 to 99 are in the 20th century.
_FOUR_DIGITS = r"(^|\D)\d{4}($|\D)"
_TRUE, _FALSE = "true", "false"
_IN_2000 = 946_684_800_000_000  # microseconds from 1970 to 2000
_YEAR = 365.2425 * 86_400_000_000.0  # microseconds


def require_pyarrow(what: str) -> None:
    """Import pyarrow, or raise `DataError` if it is not installed."""
    # Its other allocators keep freed memory, up to 60 MB that --mem would have to include.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise DataError(
            f"{what} needs pyarrow, which is not installed; run pip install pyarrow"
        ) from None


@dataclass(frozen=True)
class Text:
    """Cells of text; an empty one is missing."""

    text: npt.NDArray[np.uint8]  # with `PADDING` bytes behind the last cell
    begins: Places  # shape (n,)
    ends: Places  # shape (n,)

    @classmethod
    def of(cls, column: pa.Array) -> Text:
        """Return the strings of an array, without a copy of them."""
        import pyarrow as pa

        if pa.types.is_string_view(column.type):
            column = column.cast(pa.large_string())
        n = len(column)
        _, offsets, data = column.buffers()
        if not n or offsets is None or data is None:
            return cls(np.zeros(PADDING, np.uint8), *np.zeros((2, n), np.int32))
        kind = np.int64 if pa.types.is_large_string(column.type) else np.int32
        places: Any = np.frombuffer(offsets, kind)[column.offset : column.offset + n + 1]
        first, last = int(places[0]), int(places[-1])
        if last - first > np.iinfo(np.int32).max:
            raise DataError("found cells of more than 2 GB in a batch; write smaller batches")
        text = np.frombuffer(data, np.uint8)
        if len(text) < last + PADDING:
            text = np.append(text[first:last], np.zeros(PADDING, np.uint8))
        else:
            text = text[first:]
        places = (places - first).astype(np.int32, copy=False)
        begins, ends = places[:-1], places[1:]
        if column.null_count:
            ends = np.where(valid_of(column), ends, begins)
        return cls(text, begins, ends)

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def null_count(self) -> int:
        """Number of missing cells."""
        return int(np.count_nonzero(self.begins == self.ends))

    def slice(self, first: int, n: int) -> Text:
        """Return some consecutive cells."""
        part = slice(first, first + n)
        return Text(self.text, self.begins[part], self.ends[part])

    def are_digits(self) -> bool:
        """Return whether all cells are whole numbers with one spelling, or empty."""
        return bool(kernels.are_digits(self.text, self.begins, self.ends))

    def take(self, rows: npt.NDArray[Any]) -> Text:
        """Return some cells."""
        return Text(self.text, self.begins[rows], self.ends[rows])

    def as_arrow(self) -> pa.Array:
        """Return the cells as strings, null if missing."""
        import pyarrow as pa

        lengths = self.ends - self.begins
        out = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
        offsets = np.empty(len(self) + 1, np.int32)
        kernels.gather(self.text, self.begins, self.ends, offsets, out)
        valid = lengths > 0
        mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.string(), len(self), buffers)


Cells = Any  # a `pyarrow.Array` or `Text`


def as_arrow(cells: Cells) -> pa.Array:
    """Return cells as an array of Arrow."""
    return cells.as_arrow() if isinstance(cells, Text) else cells


def take(cells: Cells, rows: npt.NDArray[Any]) -> Cells:
    """Return some cells."""
    if isinstance(cells, Text):
        return cells.take(rows)
    return cells.take(array_of(rows))


def simplified(column: Cells) -> Cells:
    """Return a column of one of few types: numbers, booleans, strings, times, lists or null.

    Dictionaries are decoded, unless they hold strings.
    """
    import pyarrow as pa
    import pyarrow.types as kinds

    if isinstance(column, Text):
        return column
    kind = column.type
    if kinds.is_dictionary(kind):
        if kinds.is_string_view(kind.value_type):
            words = column.dictionary.cast(pa.large_string())
            return pa.DictionaryArray.from_arrays(column.indices, words)
        if is_string(kind.value_type):
            return column
        column = column.dictionary_decode()
        kind = column.type
    if kinds.is_string_view(kind):
        return column.cast(pa.large_string())
    if is_list(kind) and kinds.is_string_view(kind.value_type):
        return column.cast(pa.large_list(pa.large_string()))
    if kinds.is_decimal(kind) or kinds.is_float16(kind):
        return column.cast(pa.float64())
    if kinds.is_date(kind):
        return column.cast(pa.timestamp("s" if kinds.is_date32(kind) else "ms"))
    return column


def is_string(kind: pa.DataType) -> bool:
    """Return whether cells are strings."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(kind):
        kind = kind.value_type
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether cells are lists."""
    import pyarrow.types as kinds

    tests = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
    return any(test(kind) for test in tests)


def is_number(kind: pa.DataType) -> bool:
    """Return whether cells are numbers."""
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_floating(kind))


# ------------------------------------------------------------------------------------- numbers


def numbers_of(column: Cells, decimal: str = ".") -> tuple[Floats, Any]:
    """Return cells as numbers, and which of them are neither numbers nor missing.

    Parameters
    ----------
    column : pyarrow.Array or Text
        See `simplified`.
    decimal : {".", ","}
        Decimal separator of numbers that are text.

    Returns
    -------
    numbers : ndarray, shape (n,), float64
        nan for the other cells.
    is_mixed : ndarray, shape (n,), bool; or None if there are none
    """
    import pyarrow.types as kinds

    if isinstance(column, Text):
        return _read(column, decimal, False, lambda rest: _number_words(rest, decimal))
    kind = column.type
    if kinds.is_null(kind):
        return np.full(len(column), np.nan), None
    if not is_string(kind):
        if kinds.is_boolean(kind):
            column = column.cast("int8")
        elif kinds.is_timestamp(kind):
            return years_of(times_of(column)), None
        elif not is_number(kind):
            return np.full(len(column), np.nan), valid_of(column)
        return as_floats(floats_of(column), copy=False), None
    if not kinds.is_dictionary(kind):
        return numbers_of(Text.of(column), decimal)
    return _of_words(column, *numbers_of(Text.of(column.dictionary), decimal))


def _of_words(column: pa.Array, numbers: Floats, mixed: Any) -> tuple[Floats, Any]:
    """Return the numbers of the cells of a dictionary, given those of its words."""
    codes = _codes(column)
    found = np.append(numbers, np.nan)[codes]
    return found, None if mixed is None else np.append(mixed, False)[codes]


def _number_words(column: pa.Array, decimal: str) -> tuple[Floats, Any]:
    """Return the cells of a dictionary as numbers; see `numbers_of`."""
    import pyarrow.compute as pc

    words = _trimmed(column.dictionary)
    numbers, is_one = parse_numbers(words, decimal)
    is_null = pc.is_in(words, value_set=known_words(NULL_WORDS, words.type))
    is_wrong = ~(is_one | values_of(is_null))
    return _of_words(column, numbers, is_wrong if is_wrong.any() else None)


def plain_numbers(cells: Text, read_rest: Callable[[pa.Array], Floats]) -> Floats:
    """Return cells as numbers that are digits with a point or an exponent.

    Parameters
    ----------
    read_rest : callable
        Returns the numbers of other words.
    """
    return _read(cells, ".", True, lambda rest: (read_rest(rest.dictionary)[_codes(rest)], None))[0]


def _read(
    cells: Text, decimal: str, is_plain: bool, read_rest: Callable[[pa.Array], tuple[Floats, Any]]
) -> tuple[Floats, Any]:
    """Return cells as numbers, and which are mixed; `read_rest` reads what kernels do not."""
    numbers, rest = np.empty(len(cells)), np.empty(len(cells), np.int64)
    n_rest = kernels.read_numbers(
        cells.text, cells.begins, cells.ends, ord(decimal), is_plain, numbers, rest
    )
    return _completed(cells, numbers, rest[:n_rest], read_rest)


def _completed(
    cells: Text, numbers: Floats, rows: Ints, read_rest: Callable[[pa.Array], tuple[Floats, Any]]
) -> tuple[Floats, Any]:
    """Fill in the numbers of some cells; return the numbers, and which of them are mixed."""
    if not len(rows):
        return numbers, None
    numbers[rows], mixed = read_rest(cells.take(rows).as_arrow().dictionary_encode())
    if mixed is None:
        return numbers, None
    is_mixed = np.zeros(len(cells), np.bool_)
    is_mixed[rows] = mixed
    return numbers, is_mixed


def _trimmed(words: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string_view(words.type):
        words = words.cast(pa.large_string())
    return pc.fill_null(pc.ascii_trim_whitespace(words), string("", words.type))


def _floats(column: pa.Array) -> Floats:
    return np.asarray(floats_of(column), np.float64)


def _codes(column: pa.Array) -> Ints:
    """Return the codes of a dictionary, -1 for null."""
    return integers_of(column.indices, -1)


def parse_numbers(words: pa.Array, decimal: str = ".") -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return words as numbers, nan for others, and which of them are numbers.

    Numbers may have groups of digits, a currency, a percent sign, a typographic minus, or be in
    parentheses if they are negative.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = pc.match_substring_regex(words, PLAIN)
    if decimal == "." and pc.all(plain).as_py() in (True, None):
        return _floats(words.cast(pa.float64())), np.ones(len(words), np.bool_)
    text = pc.replace_substring_regex(words, f"^{_BLANKS}|{_BLANKS}$", "")
    text = pc.replace_substring_regex(text, _MINUS, r"\1-")
    text = pc.replace_substring_regex(text, r"^\(([^-+].*)\)$", r"-\1")
    is_percent = pc.match_substring_regex(text, _PERCENT)
    text = pc.replace_substring_regex(text, _PERCENT, r"\1")
    text = pc.replace_substring_regex(text, _BEFORE, r"\1")
    text = pc.replace_substring_regex(text, _BEHIND, "")
    grouped = pc.match_substring_regex(text, _GROUPED if decimal == "." else _GROUPED_COMMA)
    between = _BETWEEN.format("," if decimal == "." else ".")
    text = pc.if_else(grouped, pc.replace_substring_regex(text, between, ""), text)
    if decimal == ",":
        plain = pc.match_substring_regex(text, _PLAIN_COMMA)
        text = pc.replace_substring(text, ",", ".")
    else:
        plain = pc.match_substring_regex(text, PLAIN)
    text = pc.if_else(plain, text, nothing(words.type))
    numbers = _floats(text.cast(pa.float64()))
    percent = values_of(is_percent)
    numbers = np.where(percent, numbers / 100, numbers)
    return numbers, values_of(plain)


# --------------------------------------------------------------------------------------- flags


def flags_of(column: Cells) -> tuple[Floats, Any]:
    """Return cells as 1 for true, 0 for false and nan for others; see `numbers_of`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, Text):
        values, rest = np.empty(len(column)), np.empty(len(column), np.int64)
        n_rest = kernels.read_flags(column.text, column.begins, column.ends, values, rest)
        return _completed(column, values, rest[:n_rest], flags_of)
    if not is_string(column.type):
        numbers, is_mixed = numbers_of(column)
        is_wrong = ~np.isnan(numbers) & (numbers != 0) & (numbers != 1)
        if is_wrong.any():
            is_mixed = is_wrong if is_mixed is None else is_mixed | is_wrong
        return np.where(is_wrong, np.nan, numbers), is_mixed
    if not pa.types.is_dictionary(column.type):
        return flags_of(Text.of(column))
    words = pc.ascii_lower(_trimmed(column.dictionary))
    is_true = pc.is_in(words, value_set=strings([_TRUE, "1", "1.0"], words.type))
    is_false = pc.is_in(words, value_set=strings([_FALSE, "0", "0.0"], words.type))
    nulls = [word.lower() for word in NULL_WORDS]
    is_null = pc.is_in(words, value_set=strings(nulls, words.type))
    yes, no, null = map(values_of, (is_true, is_false, is_null))
    values = np.append(np.where(yes, 1.0, np.where(no, 0.0, np.nan)), np.nan)
    codes = _codes(column)
    is_mixed = np.append(~(yes | no | null), False)[codes]
    return values[codes], is_mixed if is_mixed.any() else None


def find_flags(words: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which words are true or false, in any case."""
    import pyarrow.compute as pc

    known = known_words((_TRUE, _FALSE), words.type)
    return values_of(pc.is_in(pc.ascii_lower(words), value_set=known))


# --------------------------------------------------------------------------------------- dates

_NO_TIME = np.iinfo(np.int64).min


def times_of(column: Cells, pattern: str = "") -> Ints:
    """Return dates as microseconds since 1970 in UTC, the smallest number if missing or invalid.

    Parameters
    ----------
    column : pyarrow.Array or Text
        Timestamps or strings; see `simplified`.
    pattern : str
        Format of strings, for strptime. Default: ISO 8601.
    """
    import pyarrow as pa

    if isinstance(column, Text):
        if pattern:
            return times_of(column.as_arrow().dictionary_encode(), pattern)
        times, rest = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
        n_rest = kernels.read_dates(column.text, column.begins, column.ends, times, rest)
        if n_rest:
            rows = rest[:n_rest]
            times[rows] = times_of(column.take(rows).as_arrow().dictionary_encode())
        return times
    if pa.types.is_timestamp(column.type):
        times = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast("int64")
        return integers_of(times, _NO_TIME)
    if not is_string(column.type):
        return np.full(len(column), _NO_TIME)
    if not pa.types.is_dictionary(column.type):
        return times_of(Text.of(column), pattern)
    return np.append(parse_dates(_trimmed(column.dictionary), pattern), _NO_TIME)[_codes(column)]


def parse_dates(words: pa.Array, pattern: str) -> Ints:
    """Return words as dates; see `times_of`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pattern:
        if "%Y" in pattern:
            has_year = pc.match_substring_regex(words, _FOUR_DIGITS)
            words = pc.if_else(has_year, words, nothing(words.type))
        found = pc.strptime(words, format=pattern, unit="us", error_is_null=True)
        return times_of(found)
    is_iso = pc.match_substring_regex(words, _ISO)
    text = pc.replace_substring_regex(words, r"(\.\d{6})\d+", r"\1")
    text = pc.replace_substring_regex(text, r"([ T].*[+-]\d\d)(\d\d)$", r"\1:\2")
    is_zoned = pc.match_substring_regex(words, _ZONED)
    result = np.full(len(words), _NO_TIME)
    for chosen, zone in (
        (pc.and_(is_iso, pc.invert(is_zoned)), None),
        (pc.and_(is_iso, is_zoned), "UTC"),
    ):
        some = pc.if_else(chosen, text, nothing(words.type))
        if some.null_count < len(some):
            result = np.maximum(result, times_of(_cast_dates(some, pa.timestamp("us", zone))))
    return result


def _cast_dates(words: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast words to times; days that do not exist, such as February 30, become null."""
    import pyarrow as pa

    try:
        return words.cast(kind)
    except pa.ArrowInvalid:
        if len(words) == 1:
            return pa.nulls(1, kind)
        half = len(words) // 2
        parts = [_cast_dates(part, kind) for part in (words[:half], words[half:])]
        return pa.concat_arrays(parts)


def is_time(times: Ints) -> npt.NDArray[np.bool_]:
    """Return which dates are valid."""
    valid: npt.NDArray[np.bool_] = times != _NO_TIME
    return valid


def years_of(times: Ints) -> Floats:
    """Return dates in years since 2000, nan if missing."""
    return np.where(is_time(times), (times - _IN_2000) / _YEAR, np.nan)


def null_dates(column: Cells) -> npt.NDArray[np.bool_]:
    """Return which cells of a column of dates are missing, and not invalid."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = as_arrow(column)
    if not is_string(column.type):
        return ~valid_of(column)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    words = _trimmed(column.dictionary)
    is_null = pc.is_in(words, value_set=known_words(NULL_WORDS, words.type))
    found: npt.NDArray[np.bool_] = np.append(values_of(is_null), True)
    return found[_codes(column)]


# --------------------------------------------------------------------------------------- words


def dictionary_of(cells: Text) -> tuple[Ints, pa.Array]:
    """Return the word of each cell, -1 if it is missing, and the distinct words."""
    encoded = cells.as_arrow().dictionary_encode()
    return _codes(encoded), encoded.dictionary


def coded(column: pa.Array) -> tuple[Ints, Text]:
    """Return the cells of a dictionary of strings as words: the word of each, and the words."""
    words, codes = Text.of(column.dictionary), _codes(column)
    if column.indices.null_count:  # an empty word is missing, too
        codes = np.where(codes < 0, len(words), codes)
        nothing = np.zeros(1, np.int32)
        words = Text(words.text, np.append(words.begins, nothing), np.append(words.ends, nothing))
    if len(words) > _FEW_WORDS + len(codes):  # a batch may use few of the words of its file
        is_used = np.zeros(len(words), np.bool_)
        is_used[codes] = True
        words = words.take(np.flatnonzero(is_used))
        codes = (np.cumsum(is_used) - 1)[codes]
    return codes, words


def words_of(column: Cells, content: str) -> tuple[Ints, pa.Array]:
    """Return cells as words: the code of each, and the words in order of first appearance.

    A missing or blank cell is `MISSING`. Words that are not used, of dictionaries, may be there.

    Parameters
    ----------
    content : str
        What the column holds. Numbers and flags have one spelling: 94110.0 is 94110, True is true.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    column = as_arrow(column)
    if kinds.is_null(column.type):
        column = column.cast(pa.string())
    if not is_string(column.type):
        if kinds.is_floating(column.type):  # nan is missing
            column = pc.if_else(pc.is_nan(column), nothing(column.type), column)
        if is_number(column.type):  # few of them are converted to words
            column = column.dictionary_encode()
            words = column.dictionary.cast(pa.large_string())
            column = pa.DictionaryArray.from_arrays(column.indices, words)
        else:
            column = column.cast(pa.large_string())
    if kinds.is_dictionary(column.type):
        codes, words = _codes(column), column.dictionary
        if kinds.is_string_view(words.type):
            words = words.cast(pa.large_string())
        if column.null_count or words.null_count:
            words = pa.concat_arrays(
                [words.fill_null(string(MISSING, words.type)), strings([MISSING], words.type)]
            )
            codes = np.where(codes < 0, len(words) - 1, codes)
        if len(words) > _FEW_WORDS:  # a batch may use few of the words of its file
            is_used = np.zeros(len(words), np.bool_)
            is_used[codes] = True
            words = words.filter(array_of(is_used))
            codes = (np.cumsum(is_used) - 1)[codes]
    else:
        encoded = column.fill_null(string(MISSING, column.type)).dictionary_encode()
        codes, words = _codes(encoded), encoded.dictionary
    is_blank = pc.match_substring_regex(words, r"^\s*$")
    if pc.any(is_blank).as_py():
        words = pc.if_else(is_blank, string(MISSING, words.type), words)
    if content == "flags":
        words = pc.ascii_lower(words)
    elif content == "numbers":
        words = _canonical(words)
    return codes, words


def _canonical(words: pa.Array) -> pa.Array:
    """Return numbers with one spelling each; words of digits alone stay as they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_null = pc.is_in(words, value_set=known_words(NULL_WORDS, words.type))
    words = pc.if_else(is_null, string(MISSING, words.type), words)
    is_float = pc.match_substring_regex(words, r"^[+-]?\d*(\.\d*([eE][+-]?\d+)?|[eE][+-]?\d+)$")
    is_float = pc.and_(is_float, pc.match_substring_regex(words, PLAIN))
    if not pc.any(is_float).as_py():
        return words
    some = pc.if_else(is_float, words, nothing(words.type))
    text = some.cast(pa.float64()).cast(pa.string()).cast(words.type)
    return pc.if_else(is_float, text, words)


def shown(column: Cells, row: int) -> str:
    """Return a cell as text, for messages."""
    if isinstance(column, Text):
        cell = column.text[column.begins[row] : column.ends[row]].tobytes()
        return cell.decode("utf-8", "replace")
    cell = column.slice(row, 1)
    if is_string(cell.type):
        return decoded(cell)[0]
    value = cell[0].as_py()
    return "" if value is None else str(value)


def decoded(words: Cells) -> list[str]:
    """Return strings as text, empty for null; bytes that are not UTF-8 are replaced."""
    import pyarrow as pa

    words = as_arrow(words)

    if pa.types.is_dictionary(words.type):
        words = words.dictionary_decode()
    if pa.types.is_string_view(words.type):
        words = words.cast(pa.large_string())
    kind = pa.large_binary() if pa.types.is_large_string(words.type) else pa.binary()
    return [(word or b"").decode("utf-8", "replace") for word in words.cast(kind).to_pylist()]
