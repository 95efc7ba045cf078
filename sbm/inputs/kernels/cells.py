"""Compiled reading of cells of text: where they are, and numbers, dates and words in them.

Cells are given by a text, the begin of each and its end; `PADDING` bytes behind each may be read.
They are those of delimited text, or of a column of strings of Arrow. What a kernel does not
understand, it lists in `rest`; the caller reads these few cells with `sbm.inputs.columns.cells`,
which defines what is right.

Source: Lemire 2021 (see `sbm.inputs.kernels.numbers`), Hinnant 2013 (dates), Thorup 2015 (hashing).
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from sbm.inputs.kernels.numbers import (
    TEN,
    as_float,
    join_digits,
    load_digits,
    load_word,
    nearest_double,
    trailing_zeros,
)

PADDING = 16  # bytes of text that may be read behind a cell, to read several at once
_NEWLINE = 10
_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U9 = np.uint64(9)
_U10 = np.uint64(10)
_U32 = np.uint64(32)
_BIT53 = np.uint64(1 << 53)
_TEN_INTEGER = np.array([10**k for k in range(20)], np.uint64)
_MOST_DIGITS = 19  # of a number that is read exactly
_LARGEST_EXPONENT = 10_000


@intrinsic
def _find_any(typing_context, array, position, first, second):
    """Return a bit mask of which of the 64 bytes at a position are one of two, or a line end."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte = ir.IntType(8)
        vector = ir.VectorType(byte, 64)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), vector.as_pointer())
        loaded = builder.load(address, align=1)
        none = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        found = builder.icmp_unsigned("==", loaded, ir.Constant(vector, [_NEWLINE] * 64))
        for wanted in arguments[2:]:
            one = builder.insert_element(
                none, builder.trunc(wanted, byte), ir.Constant(ir.IntType(32), 0)
            )
            same = builder.icmp_unsigned("==", loaded, builder.shuffle_vector(one, none, zeros))
            found = builder.or_(found, same)
        return builder.bitcast(found, ir.IntType(64))

    return types.uint64(array, types.intp, types.int64, types.int64), generate


# --------------------------------------------------------------------------------------- records


@njit(nogil=True, error_model="numpy")
def find_cells(text, size, separator, quote, width, begins, ends, stops, found, lines):
    """Find the cells of the records of delimited text.

    Blank lines are skipped. A record with more or fewer cells than the header, or text behind a
    closing quote, has empty cells.

    Parameters
    ----------
    text : (any,) uint8
        Begins with a record; at least 64 bytes behind `size` may be read.
    size : int
        Bytes of text.
    separator, quote : int
        Byte between cells, and around those that contain it.
    width : int
        Cells of a record.
    begins, ends : (width, most) int32, filled in place
        Of each cell, without quotes; -1 - begin if it has doubled quotes, see `join_quotes`.
    stops : (most,) int64, filled in place
        End of each record, with its line end.
    found : (most,) int64, filled in place
        Cells of each record; -1 for text behind a closing quote.
    lines : (most,) int64, filled in place
        Line of each record, from 0.

    Returns
    -------
    n_records : int
    n_lines : int
        Line ends up to the last record.
    n_doubled : int
        Cells with doubled quotes.
    """
    n = np.int64(0)
    cell = np.int64(0)
    line = n_lines = record_line = np.int64(0)
    n_doubled = doubled_before = np.int64(0)
    begin = np.int64(0)  # of the cell
    is_wrong = False
    most = begins.shape[1]
    window = np.int64(0)
    marks = _find_any(text, window, separator, quote)
    while True:
        while marks == _U0:
            window += 64
            if window >= size:
                return n, n_lines, doubled_before
            marks = _find_any(text, window, separator, quote)
        p = window + np.int64(trailing_zeros(marks))
        if p >= size:
            return n, n_lines, doubled_before
        marks &= marks - _U1
        byte = text[p]
        if byte == quote and p != begin:
            continue  # inside a cell without quotes
        low, high, is_doubled = begin, p, False
        if byte == quote:
            low = p + 1
            p += 1
            while True:
                while p < size and text[p] != quote:
                    line += text[p] == _NEWLINE
                    p += 1
                if p + 1 >= size:
                    return n, n_lines, doubled_before
                if text[p + 1] != quote:
                    break
                is_doubled = True
                p += 2
            high = p
            p += 1
            while p < size and text[p] != separator and text[p] != _NEWLINE:
                is_wrong |= text[p] != 13
                p += 1
            if p >= size:
                return n, n_lines, doubled_before
            byte = text[p]
            window = p + 1
            marks = _find_any(text, window, separator, quote) if window < size else _U0
        elif byte == _NEWLINE and high > low and text[high - 1] == 13:
            high -= 1
        if byte == _NEWLINE:
            line += 1
            if cell == 0 and low == begin and high == begin:  # blank
                begin = p + 1
                record_line = line
                continue
        if cell < width:
            begins[cell, n] = -1 - low if is_doubled else low
            ends[cell, n] = high
            n_doubled += is_doubled
        cell += 1
        begin = p + 1
        if byte != _NEWLINE:
            continue
        if cell != width or is_wrong:
            for k in range(width):
                begins[k, n] = ends[k, n] = 0
            n_doubled = doubled_before
        stops[n] = begin
        found[n] = -1 if is_wrong else cell
        lines[n] = record_line
        n += 1
        n_lines = record_line = line
        doubled_before = n_doubled
        cell = 0
        is_wrong = False
        if n == most:
            return n, n_lines, doubled_before


@njit(nogil=True, error_model="numpy")
def join_quotes(text, quote, begins, ends, n):
    """Make one quote of two in the cells of `find_cells` that have some.

    Parameters
    ----------
    text : (any,) uint8, in place
    begins, ends : (width, most) int32, in place
    n : int
        Records.
    """
    for k in range(begins.shape[0]):
        for row in range(n):
            if begins[k, row] >= 0:
                continue
            low = -1 - begins[k, row]
            begins[k, row] = low
            to = p = np.int64(low)
            while p < ends[k, row]:
                text[to] = text[p]
                to += 1
                p += 2 if text[p] == quote else 1
            ends[k, row] = to


@njit(nogil=True, error_model="numpy")
def gather(text, begins, ends, offsets, out):
    """Copy cells one behind the other.

    Parameters
    ----------
    text : (any,) uint8
    begins, ends : (n,) int32
    offsets : (n + 1,) int32, filled in place
        Begin of each copy, and the end of the last.
    out : (any,) uint8, filled in place
    """
    at = np.int64(0)
    offsets[0] = 0
    for k in range(len(begins)):
        for p in range(begins[k], ends[k]):
            out[at] = text[p]
            at += 1
        offsets[k + 1] = at


# --------------------------------------------------------------------------------------- numbers


@njit(nogil=True, error_model="numpy", forceinline=True)
def _is_blank(c):
    return c == 32 or 9 <= c <= 13


@njit(nogil=True, error_model="numpy", forceinline=True)
def _digits(text, p, end):
    """Return the number that up to eight digits at text[p:end] are, and how many they are."""
    word, n = load_digits(text, p)
    n = min(n, end - p)
    if n <= 0:
        return _U0, np.int64(0)
    return join_digits(word, n), n


@njit(nogil=True, error_model="numpy")
def _parse(text, p, end, point, is_plain):
    """Parse text[p:end] as a number; return (number, whether it is one).

    Unless `is_plain`, digits may be in groups of three, behind a dollar, and before a percent sign.
    A number with more than 19 digits is left to others.
    """
    negative = text[p] == 45
    if negative or text[p] == 43:
        p += 1
    is_percent = False
    if not is_plain:
        if p < end and text[p] == 36:  # dollar
            p += 1
            while p < end and _is_blank(text[p]):
                p += 1
        if end > p + 1 and text[end - 1] == 37:  # percent
            is_percent = True
            end -= 1
            while end > p and _is_blank(text[end - 1]):
                end -= 1
            if not 48 <= text[end - 1] <= 57:
                return 0.0, False
    w = _U0
    digits = np.int64(0)
    q = np.int64(0)
    since = np.int64(0)  # digits since the last separator of groups
    is_grouped = False
    comma = 44 if point == 46 else 46
    while p < end:
        d = np.uint64(text[p]) - np.uint64(48)
        if d <= _U9:
            w = w * _U10 + d
            digits += 1
            since += 1
        elif not is_plain and (text[p] == comma or text[p] == 32 or text[p] == 39):
            if not (since == 3 if is_grouped else 1 <= since <= 3):
                return 0.0, False
            is_grouped = True
            since = 0
        else:
            break
        p += 1
    if is_grouped and since != 3:
        return 0.0, False
    if p < end and text[p] == point:
        p += 1
        begin = p
        while p < end:
            d = np.uint64(text[p]) - np.uint64(48)
            if d > _U9:
                break
            w = w * _U10 + d
            p += 1
        q = begin - p
        digits += p - begin
    if digits == 0 or digits > _MOST_DIGITS:
        return 0.0, False
    if p < end and (text[p] | 32) == 101 and not is_grouped and not is_percent:
        p += 1
        minus = p < end and text[p] == 45
        if p < end and (minus or text[p] == 43):
            p += 1
        begin = p
        e = np.int64(0)
        while p < end:
            d = np.uint64(text[p]) - np.uint64(48)
            if d > _U9 or e > _LARGEST_EXPONENT:
                break
            e = e * 10 + np.int64(d)
            p += 1
        if p == begin:
            return 0.0, False
        q += -e if minus else e
    if p != end or q > 280:
        return 0.0, False
    if w < _BIT53 and -22 <= q <= 22:
        x = np.float64(w)
        x = x / TEN[-q] if q < 0 else x * TEN[q]
    elif w == _U0:
        x = 0.0
    else:
        x = as_float(nearest_double(w, q))
    if is_percent:
        x /= 100.0
    return (-x if negative else x), True


@njit(nogil=True, error_model="numpy")
def read_numbers(text, begins, ends, point, is_plain, out, rest):
    """Read cells as numbers.

    Parameters
    ----------
    text : (any,) uint8
    begins, ends : (n,) int32
    point : int
        Decimal separator.
    is_plain : bool
        Leave numbers with groups of digits, a dollar or a percent sign to others.
    out : (n,) float64, filled in place
        nan for an empty cell.
    rest : (n,) int64, filled in place
        Cells that are something else.

    Returns
    -------
    n_rest : int
    """
    # Numbers of up to eight digits before and behind the point are read here, without a call, which
    # would take twice the time.
    n_others = np.int64(0)
    for k in range(len(begins)):
        p, end = np.int64(begins[k]), np.int64(ends[k])
        rest[n_others] = k
        negative = text[p] == 45
        p += negative
        w, n = _digits(text, p, end)
        p += n
        x = np.float64(w)
        if p < end and text[p] == point:
            fraction, decimals = _digits(text, p + 1, end)
            p += 1 + decimals
            n += decimals
            w = w * _TEN_INTEGER[decimals] + fraction
            x = np.float64(w) / TEN[decimals]
        out[k] = -x if negative else x
        n_others += p != end or n == 0 or w >= _BIT53
    n_rest = np.int64(0)
    for j in range(n_others):
        k = rest[j]
        p, end = np.int64(begins[k]), np.int64(ends[k])
        while p < end and _is_blank(text[p]):
            p += 1
        while end > p and _is_blank(text[end - 1]):
            end -= 1
        out[k] = np.nan
        if p < end:
            x, is_one = _parse(text, p, end, point, is_plain)
            if is_one:
                out[k] = x
            else:
                rest[n_rest] = k
                n_rest += 1
    return n_rest


@njit(nogil=True, error_model="numpy")
def _lower_word(text, p, n):
    """Return up to eight letters as a number, in lower case."""
    word = _U0
    for k in range(n):
        word = (word << np.uint64(8)) | np.uint64(text[p + k] | 32)
    return word


_TRUE = np.uint64(int.from_bytes(b"true"))
_FALSE = np.uint64(int.from_bytes(b"false"))


@njit(nogil=True, error_model="numpy")
def read_flags(text, begins, ends, out, rest):
    """Read cells as flags, 1 for true and 0 for false; see `read_numbers`."""
    n_rest = np.int64(0)
    for k in range(len(begins)):
        p = np.int64(begins[k])
        n = ends[k] - p
        x = np.nan
        if n == 4 and _lower_word(text, p, 4) == _TRUE:
            x = 1.0
        elif n == 5 and _lower_word(text, p, 5) == _FALSE:
            x = 0.0
        elif n == 1 and 48 <= text[p] <= 49:
            x = np.float64(text[p] - 48)
        elif n != 0:
            rest[n_rest] = k
            n_rest += 1
        out[k] = x
    return n_rest


# ----------------------------------------------------------------------------------------- dates

_NO_TIME = np.int64(-(1 << 63))
_SECOND = np.int64(1_000_000)
_DAY = np.int64(86_400) * _SECOND
_IN_2000 = np.int64(10_957) * _DAY
_YEAR = 365.2425 * 86_400_000_000.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _two(text, p):
    """Return the number of two digits, -1 if they are none."""
    a, b = np.int64(text[p]) - 48, np.int64(text[p + 1]) - 48
    return a * 10 + b if 0 <= a <= 9 and 0 <= b <= 9 else np.int64(-1)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _days(year, month, day):
    """Return the days since 1970 of a date (Hinnant 2013, days_from_civil)."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@njit(nogil=True, error_model="numpy")
def _parse_date(text, p, end):
    """Parse text[p:end] as a date such as 2026-11-01 or 2026-11-01T10:00:05Z."""
    if end - p < 10 or text[p + 4] != 45 or text[p + 7] != 45:
        return _NO_TIME
    century, years = _two(text, p), _two(text, p + 2)
    month, day = _two(text, p + 5), _two(text, p + 8)
    year = century * 100 + years
    if century < 0 or years < 0 or not 1 <= month <= 12 or day < 1:
        return _NO_TIME
    days = 31 - (month == 4 or month == 6 or month == 9 or month == 11)
    if month == 2:
        days = 28 + (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))
    if day > days:
        return _NO_TIME
    time = _days(year, month, day) * _DAY
    if end - p == 10:
        return time
    p += 10
    if end - p < 6 or (text[p] != 84 and text[p] != 32) or text[p + 3] != 58:
        return _NO_TIME
    hour, minute = _two(text, p + 1), _two(text, p + 4)
    second = np.int64(0)
    p += 6
    micro = np.int64(0)
    if end - p >= 3 and text[p] == 58:
        second = _two(text, p + 1)
        p += 3
        if p < end and text[p] == 46:
            p += 1
            scale = _SECOND // 10
            begin = p
            while p < end and 48 <= text[p] <= 57:
                micro += scale * (np.int64(text[p]) - 48)
                scale //= 10
                p += 1
            if p == begin or p > begin + 9:
                return _NO_TIME
    if p < end and text[p] == 90:
        p += 1
    if p != end or not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59):
        return _NO_TIME
    return time + ((hour * 60 + minute) * 60 + second) * _SECOND + micro


@njit(nogil=True, error_model="numpy")
def read_dates(text, begins, ends, out, rest):
    """Read cells as dates of ISO 8601, in microseconds since 1970; see `read_numbers`.

    An empty cell is the smallest number.
    """
    n_rest = np.int64(0)
    for k in range(len(begins)):
        time = _NO_TIME
        if ends[k] > begins[k]:
            time = _parse_date(text, np.int64(begins[k]), np.int64(ends[k]))
            if time == _NO_TIME:
                rest[n_rest] = k
                n_rest += 1
        out[k] = time
    return n_rest


@njit(nogil=True, error_model="numpy")
def split_dates(times, years, parts):
    """Write what features are made of.

    Parameters
    ----------
    times : (n,) int64
        Microseconds since 1970; the smallest number if missing.
    years : (n,) float64, filled in place
        Years since 2000; nan if missing.
    parts : (3, n) int64, filled in place
        Month from 0, weekday from Monday, and hour; -1 if missing.
    """
    for k in range(len(times)):
        time = times[k]
        if time == _NO_TIME:
            years[k] = np.nan
            parts[0, k] = parts[1, k] = parts[2, k] = -1
            continue
        years[k] = (time - _IN_2000) / _YEAR
        days = time // _DAY
        # Hinnant 2013, civil_from_days: the year begins in March.
        z = days + 719_468
        of_era = z - (z // 146_097) * 146_097
        year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
        of_year = of_era - (365 * year + year // 4 - year // 100)
        parts[0, k] = ((5 * of_year + 2) // 153 + 2) % 12
        parts[1, k] = (days + 3) % 7
        parts[2, k] = (time - days * _DAY) // (3600 * _SECOND)


# ----------------------------------------------------------------------------------------- words

_FOLD = np.uint64(29)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _mask(n):
    """Return a mask of the first n bytes of a word, n < 8."""
    return (_U1 << np.uint64(8 * n)) - _U1


@njit(nogil=True, error_model="numpy", forceinline=True)
def hash_text(h, factor, text, begin, end):
    """Return a hash of text[begin:end], of which eight bytes are multiplied at a time.

    Up to 8 bytes behind the end are read.

    A random odd factor makes the upper bits of a product a universal hash (Thorup 2015).
    """
    p = begin
    while p + 8 <= end:
        h = (h ^ load_word(text, p)) * factor
        h ^= h >> _FOLD
        p += 8
    word = load_word(text, p) & _mask(end - p) | np.uint64(end - begin) << np.uint64(56)
    h = (h ^ word) * factor
    return h ^ (h >> _FOLD)


@njit(nogil=True, error_model="numpy", forceinline=True)
def slot_of(h):
    """Return the place to begin a search at, and the tag that is stored there; of a hash."""
    return np.int64(h >> _U32), h & np.uint64(0xFFFFFFFF00000000)


@njit(nogil=True, error_model="numpy", forceinline=True)
def is_same(a, p, b, q, n):
    """Whether a[p:p + n] and b[q:q + n] are the same bytes; 8 bytes behind them are read."""
    wrong = _U0
    while n >= 8:
        wrong |= load_word(a, p) ^ load_word(b, q)
        p += 8
        q += 8
        n -= 8
    return wrong | ((load_word(a, p) ^ load_word(b, q)) & _mask(n)) == _U0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _is_whole(text, p, end):
    """Whether text[p:end] are digits, behind a sign or not."""
    p += (text[p] == 45 or text[p] == 43) and end > p + 1
    while p < end and 48 <= text[p] <= 57:
        p += 1
    return p == end


@njit(nogil=True, error_model="numpy")
def are_digits(text, begins, ends):
    """Return whether all cells are digits, behind a sign or not, or empty."""
    for k in range(len(begins)):
        low, high = np.int64(begins[k]), np.int64(ends[k])
        if low < high and not _is_whole(text, low, high):
            return False
    return True


@njit(nogil=True, error_model="numpy")
def find_words(
    text, begins, ends, prefix, seed, factor, slots, names, name_ends, missing, digits, out, rest,
    other,
):  # fmt: skip
    """Look up the codes of cells as words.

    Parameters
    ----------
    text : (any,) uint8
    begins, ends : (n,) int32
    prefix : (any,) uint8
        Begin of their names, and `PADDING` bytes.
    seed, factor, slots, names, name_ends
        As for `intern` in `sbm.inputs.kernels.words`.
    missing : int
        Code of blank cells; -1 if it is unknown.
    digits : bool
        Only look up words of digits.
    out : (n,) int32, filled in place
        Code of each cell, -1 if it is listed.
    rest : (n,) int64, filled in place
        Cells with an unknown word, and blank ones without a code.
    other : (n,) int64, filled in place
        Cells that are not words of digits.

    Returns
    -------
    n_rest, n_other : int
    """
    n_rest = n_other = np.int64(0)
    mask = len(slots) - 1
    n_prefix = len(prefix) - PADDING
    base = hash_text(seed, factor, prefix, 0, n_prefix)
    for k in range(len(begins)):
        low, high = np.int64(begins[k]), np.int64(ends[k])
        p = low
        while p < high and (text[p] == 32 or (9 <= text[p] <= 13 and text[p] != 11)):
            p += 1
        code = np.int32(0)
        if p == high:
            code = np.int32(missing + 1)
        else:
            if digits and not _is_whole(text, p, high):
                other[n_other] = k
                n_other += 1
                out[k] = -1
                continue
            s, tag = slot_of(hash_text(base, factor, text, low, high))
            size = n_prefix + high - low
            s &= mask
            while slots[s] != _U0:
                if slots[s] & np.uint64(0xFFFFFFFF00000000) == tag:
                    found = np.int64(slots[s] & np.uint64(0xFFFFFFFF))
                    at = name_ends[found - 2] if found > 1 else np.int64(0)
                    if (
                        name_ends[found - 1] - at == size
                        and is_same(names, at + n_prefix, text, low, high - low)
                        and is_same(names, at, prefix, 0, n_prefix)
                    ):
                        code = np.int32(found)
                        break
                s = (s + 1) & mask
        out[k] = code - 1
        if code == 0:
            rest[n_rest] = k
            n_rest += 1
    return n_rest, n_other


@njit(nogil=True, error_model="numpy")
def join_names(text, begins, ends, prefix, missing, out, offsets, n):
    """Write the names of words, a prefix and a cell each, one behind the other.

    Parameters
    ----------
    text : (any,) uint8
    begins, ends : (n_words,) int32
    prefix : (any,) uint8
        With `PADDING` bytes behind it.
    missing : (any,) uint8
        The word of a blank cell.
    out : (any,) uint8, filled in place
    offsets : (any,) int64, in place
        Begin of each name, and the end of the last; the first `n` + 1 are there.
    n : int
        Names that are there.
    """
    at = offsets[n]
    for k in range(len(begins)):
        for j in range(len(prefix) - PADDING):
            out[at + j] = prefix[j]
        at += len(prefix) - PADDING
        low, high = np.int64(begins[k]), np.int64(ends[k])
        p = low
        while p < high and (text[p] == 32 or (9 <= text[p] <= 13 and text[p] != 11)):
            p += 1
        if p == high:
            for j in range(len(missing)):
                out[at + j] = missing[j]
            at += len(missing)
        else:
            for j in range(low, high):
                out[at + j - low] = text[j]
            at += high - low
        n += 1
        offsets[n] = at
