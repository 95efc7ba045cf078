"""Inference of the kinds of columns from the first rows of a table.

The same table gives the same kinds in every format: types of the file are only used as far as text
shows them, too. So words of digits are numbers in a Parquet file as in CSV.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sbm.inputs.columns.arrays import (
    array_of,
    floats_of,
    integers_of,
    known_words,
    values_of,
)
from sbm.inputs.columns.cells import (
    DATES,
    MONEY,
    NULL_WORDS,
    PLAIN,
    find_flags,
    is_list,
    is_number,
    is_string,
    is_time,
    parse_dates,
    parse_numbers,
    shown,
    simplified,
    times_of,
)
from sbm.inputs.columns.kinds import Column
from sbm.units import shorten

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE = 10_000  # rows
_FEWEST_IDS = 100  # cells that all differ
_FEWEST_TEXTS, _DISTINCT_SHARE, _WORDS_OF_TEXT = 10, 0.9, 4
# Cells of a kind that make a column of it: nearly all, or fewer if the others are a few words.
_NEARLY_ALL, _MANY, _FEW_OTHERS = 0.9, 0.8, 3
_FIRST_INEXACT = 2.0**53
_DAY = 86_400_000_000  # microseconds
_MOST_DATES = 1_000  # words that are tried as dates
# Names of columns whose whole numbers are codes, not quantities.
_CODE = re.compile(
    r"(^|[_\-. ])(id|ids|uid|uuid|guid|code|zip|zipcode|postcode|sku)$|[a-z](Id|ID)$"
)
_LIKE_A_DATE = r"^(\d{1,4}[-/. ]|[A-Z][a-z]{2,8} \d)"
_LONG = "more digits than a float64 holds"
_LEADING_ZERO = r"^[+-]?0\d+$"


def infer(name: str, sample: pa.Array, decimal: str | None = None) -> Column:
    """Return the kind of a column.

    Parameters
    ----------
    name : str
    sample : pyarrow.Array
        Its first cells.
    decimal : {".", ","}, optional
        Decimal separator of numbers that are text. Default: found out.
    """
    import pyarrow.types as kinds

    column = simplified(sample)
    kind = column.type
    if kinds.is_null(kind) or column.null_count == len(column):
        return Column(name, "empty", seen="no values")
    if kinds.is_boolean(kind):
        return Column(
            name, "flag", "flags", seen=_missing("true or false", column.null_count, column)
        )
    if is_number(kind):
        numbers = np.asarray(floats_of(column.drop_null()), np.float64)
        numbers = numbers[~np.isnan(numbers)]
        if not len(numbers):
            return Column(name, "empty", seen="no values")
        is_long = kinds.is_integer(kind) and bool((abs(numbers) >= _FIRST_INEXACT).any())
        return _of_numbers(name, numbers, len(column), [], coded=_LONG if is_long else "")
    if kinds.is_timestamp(kind):
        return _of_dates(name, times_of(column.drop_null()), "", len(column))
    if is_list(kind):
        return _of_lists(name, column)
    if is_string(kind):
        return _of_words(name, column, decimal)
    return Column(name, "ignored", seen=f"type {shorten(str(kind))} is not read")


def _missing(seen: str, n: int, column: Any) -> str:
    share = n / max(1, len(column))
    if not n:
        return seen
    return f"{seen}, {_percent(share)} missing"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "under 1 %"


def _of_numbers(
    name: str,
    numbers: Any,
    n: int,
    notes: list[str],
    decimal: str = ".",
    coded: str = "",
    others: Sequence[str] = (),
    n_others: int = 0,
) -> Column:
    """Return a column of numbers.

    Parameters
    ----------
    coded : str
        Why they are codes, if they are.
    others : sequence of str
        Notes about cells that are no numbers.
    n_others : int
        Number of these cells, which are missing if the column is one of numbers.
    """
    found = np.unique(numbers)
    is_whole = bool((found == np.floor(found)).all() and np.isfinite(found).all())
    all_differ = len(found) == len(numbers) >= _FEWEST_IDS
    what = "whole numbers" if is_whole else "numbers"
    low, high = (np.format_float_positional(v, trim="-", precision=4) for v in found[[0, -1]])
    what += f" {low} to {high}" if len(found) > 1 else f" {low}"
    if is_whole and not coded and _CODE.search(name):
        coded = "named as a code"
    seen = [f"{what}, {len(found):,} distinct", *notes, *(() if coded else others)]
    n_missing = n - len(numbers) - (n_others if coded else 0)
    if n_missing > 0:
        seen.append(f"{_percent(n_missing / n)} missing")
    kind = "number"
    if coded:
        kind = "id" if all_differ else "category"
        seen.append(coded)
    elif is_whole and all_differ and bool((np.diff(numbers) == 1).all()):
        kind = "id"
        seen.append("each is the one before plus 1")
    if kind == "id":
        seen.append("all differ")
    return Column(name, kind, "numbers", decimal=decimal, seen=", ".join(seen))


def _of_dates(name: str, times: Any, pattern: str, n: int) -> Column:
    has_time = bool((times % _DAY != 0).any())
    first, last = (str(np.datetime64(int(t), "us"))[:10] for t in (times.min(), times.max()))
    seen = f"dates {first} to {last}" + (" with a time" if has_time else "")
    seen += f" ({pattern})" if pattern else ""
    if len(times) < n:
        seen += f", {_percent(1 - len(times) / n)} missing"
    return Column(name, "date", "dates", pattern=pattern, has_time=has_time, seen=seen)


def _of_lists(name: str, column: pa.Array) -> Column:
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    inner = column.type.value_type
    inner = inner.value_type if kinds.is_dictionary(inner) else inner
    lengths = pc.list_value_length(column.drop_null())
    longest = pc.max(lengths).as_py() or 0
    if is_string(inner):
        return Column(name, "words", "lists", seen=f"lists of up to {longest:,} words")
    if kinds.is_integer(inner) and not kinds.is_fixed_size_list(column.type):
        return Column(name, "ids", "lists", seen=f"lists of up to {longest:,} whole numbers")
    if (is_number(inner) or kinds.is_decimal(inner)) and longest == pc.min(lengths).as_py():
        seen = f"vectors of {longest:,} numbers"
        return Column(name, "vector", "vectors", size=longest, seen=seen)
    what = "lists of numbers of different lengths" if is_number(inner) else f"lists of {inner}"
    return Column(name, "ignored", seen=f"{shorten(what)} are not read")


def _of_words(name: str, column: pa.Array, decimal: str | None) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    counted = pc.value_counts(pc.ascii_trim_whitespace(column.drop_null()))
    words, counts = counted.field("values"), integers_of(counted.field("counts"))
    is_blank = values_of(pc.equal(words, known_words(("",), words.type)[0]))
    nulls = pc.is_in(words, value_set=known_words(NULL_WORDS, words.type))
    nulls = values_of(nulls)
    n = len(column)
    if is_blank.all():
        return Column(name, "empty", seen="no values")
    # As words, only blank cells are missing.
    n_words, n_cells = int((~is_blank).sum()), int(counts[~is_blank].sum())
    used = words.filter(array_of(~nulls))
    if len(used):
        counts_used = counts[~nulls]
        found = (
            _of_flag_words(name, n, used, counts_used)
            or _of_number_words(name, column, used, counts_used, decimal)
            or _of_date_words(name, n, used, counts_used)
        )
        if found:
            return found
    gaps = pc.sum(pc.count_substring_regex(words, r"\S\s+\S")).as_py() or 0
    n_texts = gaps + len(words)
    example = shorten(shown(words.filter(array_of(~is_blank)), 0), 30)
    seen = f"{n_words:,} distinct words such as '{example}'"
    if n_cells < n:
        seen += f", {_percent(1 - n_cells / n)} missing"
    is_distinct = n_cells >= _FEWEST_TEXTS and n_words > _DISTINCT_SHARE * n_cells
    if is_distinct and n_texts > _WORDS_OF_TEXT * n_words:
        return Column(name, "text", "words", seen=f"{seen}; raw text")
    if n_words == n_cells >= _FEWEST_IDS:
        return Column(name, "id", "words", seen=f"{seen}, all differ")
    return Column(name, "category", "words", seen=seen)


def _fits(words: pa.Array, counts: Any, fits: Any) -> bool:
    """Whether so many cells fit a kind that the others are read as missing."""
    import pyarrow.compute as pc

    share = counts[fits].sum() / counts.sum()
    if share >= _NEARLY_ALL:
        return True
    others = words.filter(array_of(~fits))
    return (
        share >= _MANY
        and len(others) <= _FEW_OTHERS
        and not pc.any(pc.match_substring_regex(others, r"\d")).as_py()
    )


def _others(words: pa.Array, counts: Any, fits: Any, n: int) -> list[str]:
    """Return a note about the cells that do not fit."""
    if fits.all():
        return []
    others, share = words.filter(array_of(~fits)), counts[~fits].sum() / n
    such = f"are '{shorten(shown(others, 0), 20)}'"
    if len(others) > 1:
        such = f"are {len(others):,} words such as '{shorten(shown(others, 0), 20)}'"
    return [f"{_percent(share)} {such}, read as missing"]


def _of_flag_words(name: str, n: int, words: pa.Array, counts: Any) -> Column | None:
    """Return a column of flags, unless too many of its words are none."""
    fits = find_flags(words)
    if not fits.any() or not _fits(words, counts, fits):
        return None
    seen = ["true or false", *_others(words, counts, fits, n)]
    n_missing = n - int(counts.sum())
    seen += [f"{_percent(n_missing / n)} missing"] if n_missing else []
    return Column(name, "flag", "flags", seen=", ".join(seen))


def _of_number_words(
    name: str, column: pa.Array, words: pa.Array, counts: Any, decimal: str | None
) -> Column | None:
    """Return a column of numbers, unless too many of its words are none."""
    import pyarrow.compute as pc

    numbers, are_numbers = parse_numbers(words, decimal or ".")
    used_decimal = decimal or "."
    if decimal is None and not are_numbers.all():
        with_comma, are_with_comma = parse_numbers(words, ",")
        if counts[are_with_comma].sum() > counts[are_numbers].sum():
            numbers, are_numbers, used_decimal = with_comma, are_with_comma, ","
    if not _fits(words, counts, are_numbers):
        return None
    notes = []
    total = len(column)
    is_plain = used_decimal == "." and pc.all(pc.match_substring_regex(words, PLAIN)).as_py()
    for what, pattern in () if is_plain else (
        ("a thousands separator", "\\d[ ,.'_\u2019\u00a0\u202f]\\d{3}"),
        ("a currency", MONEY),
        ("a percent sign", r"%\)?$"),
        ("parentheses or another minus sign", "^[(\u2212\u2013]"),
    ):  # fmt: skip
        if what.startswith("a thousands"):
            plain = (
                r"^[+-]?(\d+\.?\d*|\.\d+)([eE]|$)" if used_decimal == "." else r"^[+-]?\d+,?\d*$"
            )
            has = pc.and_(
                pc.match_substring_regex(words, pattern),
                pc.invert(pc.match_substring_regex(words, plain)),
            )
        else:
            has = pc.match_substring_regex(words, pattern)
        n = int(counts[values_of(has) & are_numbers].sum())
        notes += [f"{_percent(n / total)} have {what}"] if n else []
    notes += ["decimal comma"] if used_decimal == "," else []
    coded = ""
    if pc.any(pc.match_substring_regex(words, _LEADING_ZERO)).as_py():
        coded = "leading zeros"
    elif pc.any(pc.match_substring_regex(words, r"^[+-]?\d{16,}$")).as_py():
        is_digits = values_of(pc.match_substring_regex(words, r"^[+-]?\d+$"))
        coded = _LONG if (abs(numbers[is_digits]) >= _FIRST_INEXACT).any() else ""
    places = pc.index_in(pc.ascii_trim_whitespace(column), value_set=words).drop_null()
    every = numbers[integers_of(places)]
    every = every[~np.isnan(every)]
    if coded == "leading zeros" and len(words) == int(counts.sum()) >= _FEWEST_IDS:
        seen = f"{len(words):,} words of digits with leading zeros, all differ"
        return Column(name, "id", "words", seen=seen)
    others = _others(words, counts, are_numbers, total)
    n_others = int(counts[~are_numbers].sum())
    found = _of_numbers(name, every, total, notes, used_decimal, coded, others, n_others)
    if coded == "leading zeros":
        seen = f"{len(words):,} distinct codes of digits with leading zeros"
        return Column(name, "category", "words", seen=seen)
    return found


def _of_date_words(name: str, n: int, words: pa.Array, counts: Any) -> Column | None:
    """Return a column of dates, unless too many of its words are none."""
    import pyarrow.compute as pc

    some, its = words[:_MOST_DATES], counts[:_MOST_DATES]
    if not _fits(some, its, values_of(pc.match_substring_regex(some, _LIKE_A_DATE))):
        return None
    shares = [its[is_time(parse_dates(some, pattern))].sum() for pattern in ("", *DATES)]
    best = int(np.argmax(shares))
    pattern = ("", *DATES)[best]
    times = parse_dates(words, pattern)
    fits = is_time(times)
    if not fits.any() or not _fits(words, counts, fits):
        return None
    found = _of_dates(name, times[fits], pattern, int(fits.sum()))
    seen = [found.seen]
    if len(also := [p for p, n in zip(DATES, shares[1:], strict=True) if n == shares[best]]) > 1:
        seen.append(f"{also[1]} would fit, too")
    seen += _others(words, counts, fits, n)
    n_missing = n - int(counts.sum())
    seen += [f"{_percent(n_missing / n)} missing"] if n_missing else []
    return replace(found, seen=", ".join(seen))
