"""Compiled parser of LIBSVM text; `sbm.inputs.libsvm` has the grammar.

Source: Lemire 2021 and Mushtak & Lemire 2023 (decimal to float64), Lemire & Mula (eight digits in
one word); see each function.
"""

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from sbm.inputs.kernels.numbers import (
    ABOVE_9,
    TEN,
    TOPS,
    ZEROS,
    as_float,
    join_digits,
    join_shifted,
    load_digits,
    load_word,
    nearest_double,
    trailing_zeros,
)
from sbm.store.kernels.sorting import heap_sort

# Error codes; sbm/inputs/libsvm.py has the messages, in this order.
OK = 0
BAD_LABEL = 1
NOT_FINITE = 2
BAD_ID = 3
ID_TOO_LARGE = 4
NO_COLON = 5
BAD_VALUE = 6
OUT_OF_RANGE = 7
DUPLICATE = 8
HARD = 9  # not an error: the number needs arbitrary precision
ROUNDED = 10

# Whether rows need a label: `LABELS` of sbm/inputs/parsing.py.
REQUIRED = 0
IGNORED = 2

# Places in `notes`; `LineNotes` of sbm/inputs/parsing.py has the same order.
BLANK = 0
BARE = 1
COMMENT = 2
LATER_COMMENT = 3
CHANGED = 4
CHANGED_ID = 5
CHANGED_BITS = 6

LARGEST_LABEL = math.ldexp(2 - 2**-52, 1023)
FIRST_ROUNDED = 2.0**53  # whole numbers from here on may not be a float64
_EXACT_FLOAT32 = 2.0**24  # up to here all whole numbers are a float32
LABEL = np.int64(-1)  # feature id that marks the label in the list of hard numbers

_TEN_INTEGER = np.array([10**k for k in range(20)], np.uint64)


def _edges():
    """Return the digits of the smallest numbers that are too large, for float32 and float64.

    They are the midpoints between the largest float64 allowed and the next one. That one is even,
    so the midpoint rounds to it. For float32 it is itself a midpoint of two float32 numbers.
    """
    middles = (2**128 - 2**103 - 2**74, 2**1024 - 2**970)
    return np.array([[int(d) for d in str(m).ljust(309, "0")] for m in middles], np.uint8)


_EDGES = _edges()

_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U9 = np.uint64(9)
_U10 = np.uint64(10)
_U64 = np.uint64(64)
_LOW52 = np.uint64(0x000FFFFFFFFFFFFF)
_POINTS = np.uint64(0x2E2E2E2E2E2E2E2E)
_BITS = np.uint64(0x0101010101010101)
_BIT52 = np.uint64(1 << 52)
_BIT53 = np.uint64(1 << 53)


@intrinsic
def _find_marks(typing_context, array, position):
    """Return a bit mask of which of the 64 bytes at a position are blanks, line ends or colons."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        vector = ir.VectorType(ir.IntType(8), 64)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), vector.as_pointer())
        found = builder.load(address, align=1)
        small = builder.icmp_unsigned("<=", found, vector([32] * 64))
        colons = builder.icmp_unsigned("==", found, vector([58] * 64))
        return builder.bitcast(builder.or_(small, colons), ir.IntType(64))

    return types.uint64(array, types.uint64), generate


@njit(nogil=True, error_model="numpy")
def _short_integer(text, p):
    """Parse up to eight digits at text[p:]; return (number, number of digits)."""
    word, n = load_digits(text, p)
    if n == 0:
        return _U0, np.int64(0)
    return join_digits(word, n), n


@njit(nogil=True, error_model="numpy")
def _is_blank(c):
    return c == 32 or (9 <= c <= 13 and c != 10)


@njit(nogil=True, error_model="numpy")
def _ends_token(c):
    return c <= 32 or c == 35


@njit(nogil=True, error_model="numpy")
def parse_short_number(text, p):
    """Parse a number in a common form; return (number, end position), else (0.0, 0).

    The form is fewer than eight digits, optionally a point and at most 22 digits, 19 significant
    ones in all, and the end of the token. Up to 2^53 the digits are an exact integer, so one
    division rounds correctly.
    """
    negative = text[p] == 45
    q = p + (negative | (text[p] == 43))
    w, n = _short_integer(text, q)
    q += n
    if n < 8 and text[q] == 46:
        fraction, decimals = _short_integer(text, q + 1)
        w = w * _TEN_INTEGER[decimals] + fraction
        last = decimals
        while last == 8:
            fraction, last = _short_integer(text, q + 1 + decimals)
            decimals += last
            if w >= _TEN_INTEGER[19 - last] or decimals > 22:
                return 0.0, 0
            w = w * _TEN_INTEGER[last] + fraction
        q += 1 + decimals
        n += decimals
        x = np.float64(w) / TEN[decimals] if w < _BIT53 else as_float(nearest_double(w, -decimals))
    else:
        x = np.float64(w)
    if n == 0 or not _ends_token(text[q]):
        return 0.0, 0
    return (-x if negative else x), q


@njit(nogil=True, error_model="numpy")
def _is_too_large(text, p, limit):
    """Whether the digits at text[p:] of a number near the limit reach the first too large one."""
    edge = _EDGES[1 if limit >= LARGEST_LABEL else 0]
    while text[p] == 48 or text[p] == 46:
        p += 1
    for k in range(len(edge)):
        if text[p] == 46:
            p += 1
        d = np.int64(text[p]) - 48
        if 0 <= d <= 9:
            p += 1
        else:  # no more digits
            d = 0
        if d != edge[k]:
            return d > edge[k]
    return True


@njit(nogil=True, error_model="numpy")
def parse_number(text, p, bits, limit):
    """Parse the token at text[p:] as a number; return (number, end position, code).

    `code` is `HARD` if 19 digits do not determine the last bit. The number is then correct to one
    unit in the last place and within the limit. `bits` is scratch of one uint64.
    """
    negative = text[p] == 45
    if negative or text[p] == 43:
        p += 1
    begin = p
    w = _U0
    q = np.int64(0)
    digits = np.int64(0)  # significant ones
    seen = np.int64(0)
    truncated = False
    point = False
    while True:
        c = text[p]
        d = np.uint64(c) - np.uint64(48)
        if d <= _U9:
            seen += 1
            if digits < 19:
                w = w * _U10 + d
                if w != _U0:
                    digits += 1
                if point:
                    q -= 1
            else:
                truncated = truncated or d != _U0
                if not point:
                    q += 1
        elif c == 46 and not point:
            point = True
        else:
            break
        p += 1
    if seen == 0:
        return 0.0, p, BAD_VALUE
    if text[p] == 101 or text[p] == 69:
        p += 1
        minus = text[p] == 45
        if minus or text[p] == 43:
            p += 1
        e = np.int64(0)
        seen = 0
        while True:
            d = np.uint64(text[p]) - np.uint64(48)
            if d > _U9:
                break
            seen += 1
            if e < 10**17:  # no line has enough digits to compensate a larger one
                e = e * 10 + np.int64(d)
            p += 1
        if seen == 0:
            return 0.0, p, BAD_VALUE
        q += -e if minus else e
    if not _ends_token(text[p]):
        return 0.0, p, BAD_VALUE
    code = OK
    if w == _U0:
        x = 0.0
    elif w < _BIT53 and not truncated and -22 <= q <= 22:
        x = float(w)
        x = x / TEN[-q] if q < 0 else x * TEN[q]
    elif q > 308:
        return 0.0, p, OUT_OF_RANGE
    else:
        bits[0] = nearest_double(w, q)
        x = bits.view(np.float64)[0]
        if truncated:
            bits[0] = nearest_double(w + _U1, q)
            above = bits.view(np.float64)[0]
            if x <= limit and above > limit:
                if _is_too_large(text, begin, limit):
                    return 0.0, p, OUT_OF_RANGE
            elif x != above:
                code = HARD
    if x > limit:
        return 0.0, p, OUT_OF_RANGE
    return (-x if negative else x), p, code


@njit(nogil=True, error_model="numpy")
def is_rounded(text, p, x, bits):
    """Whether the number at text[p:] is whole, in plain digits, and not exactly its float64 x.

    |x| is at least 2^53. Numbers with an exponent or a fraction are not whole. Compares the lowest
    64 bits, which suffices up to 35 digits. `bits` is scratch of one uint64.
    """
    if text[p] == 43 or text[p] == 45:
        p += 1
    number = _U0
    d = np.uint64(text[p]) - np.uint64(48)
    while d <= _U9:
        number = number * _U10 + d
        p += 1
        d = np.uint64(text[p]) - np.uint64(48)
    if text[p] == 46:
        p += 1
        while text[p] == 48:
            p += 1
    if not _ends_token(text[p]):
        return False
    bits.view(np.float64)[0] = abs(x)
    shift = np.int64(bits[0] >> np.uint64(52)) - 1075
    mantissa = (bits[0] & _LOW52) | _BIT52
    return number != (mantissa << np.uint64(shift) if shift < 64 else _U0)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _next_mark(text, window, marks):
    """Return the position of the next mark, and the window and marks behind it.

    `marks` has those of the 64 bytes at `window` that were not yet returned. So where tokens end is
    known before the ones in front of them are parsed.
    """
    while marks == _U0:
        window += _U64
        marks = _find_marks(text, window)
    return window + trailing_zeros(marks), window, marks & (marks - _U1)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _integer_of(text, p, n):
    """Parse the n bytes at text[p:] as digits; return (number, whether they are 1 to 8 digits)."""
    word = (load_word(text, np.int64(p)) ^ ZEROS) << ((_U64 - (n << np.uint64(3))) & np.uint64(63))
    is_valid = (n - _U1 < np.uint64(8)) & (((word + ABOVE_9) | word) & TOPS == _U0)
    return join_shifted(word), is_valid


@njit(nogil=True, error_model="numpy", forceinline=True)
def _parse_token(text, p, end):
    """Parse the number at text[p:end]; return (number, whether it has a common form).

    As `parse_short_number`, which it calls unless the form is digits, a point and digits, up to 8
    of each.
    """
    q = p + np.uint64((text[p] == 45) | (text[p] == 43))
    points = load_word(text, np.int64(q)) ^ _POINTS
    n = trailing_zeros((points - _BITS) & ~points & TOPS) >> np.uint64(3)
    whole, is_whole = _integer_of(text, q, n)
    decimals = end - q - n - _U1
    fraction, is_fraction = _integer_of(text, q + n + _U1, decimals)
    if is_whole & is_fraction & (n < np.uint64(8)):
        x = np.float64(whole * _TEN_INTEGER[decimals] + fraction) / TEN[decimals]
        return (-x if text[p] == 45 else x), True
    x, behind = parse_short_number(text, np.int64(p))
    return x, np.uint64(behind) == end


@njit(nogil=True, error_model="numpy")
def _parse_plain(text, size, p, is_inside, arrays, rows, line, nnz, ones, last):
    """Parse lines in the common form: a short label, then a blank before each id and number.

    Ids ascend. Stops at anything else, including errors, which the caller handles: at the begin of
    a line, or inside one, behind its label or a feature. If `is_inside`, it begins there, behind
    the id `last`, and stops inside the same line. Positions are unsigned, because numba checks
    signed ones for negative numbers. `arrays` are labels, indptr, ids and values.

    Returns
    -------
    p, is_inside, rows, line, nnz, ones, ones_before, last
        `line` counts the line that it stopped inside. `last` is the last id of that line, or -1,
        and `ones_before` is `ones` before that line.
    """
    labels, indptr, ids, values = arrays
    end, at, n = np.uint64(size), np.uint64(p), np.uint64(nnz)
    window, marks = at, _find_marks(text, at)
    is_continued, ones_before = is_inside, ones
    while at < end:
        if not is_inside:
            mark, window, marks = _next_mark(text, window, marks)
            is_signed = np.uint64((text[at] == 45) | (text[at] == 43))
            number, is_valid = _integer_of(text, at + is_signed, mark - at - is_signed)
            if not is_valid or (text[mark] != 32 and text[mark] != 10):
                break
            x = np.float64(number)
            labels[rows] = -x if text[at] == 45 else x
            line += 1
            at, is_inside = mark, True
        while text[at] == 32:
            colon, window, marks = _next_mark(text, window, marks)
            number, is_valid = _integer_of(text, at + _U1, colon - at - _U1)
            key = np.int64(number)
            if not is_valid or text[colon] != 58 or key <= last:
                break
            mark, window, marks = _next_mark(text, window, marks)
            x = 1.0
            if text[colon + _U1] != 49 or mark != colon + np.uint64(2) or text[mark] == 58:
                x, is_valid = _parse_token(text, colon + _U1, mark)
                if not is_valid:
                    break
                ones = _keep_ones(ones, x, values, n)
            ids[n] = key
            if not ones:
                values[n] = x
            last = key
            n += _U1
            at = mark
        if is_continued:
            break
        if text[at] == 10:
            at += _U1
        elif text[at] == 32 and text[at + _U1] == 10:  # many files have a blank there
            at += np.uint64(2)
        else:
            break
        is_inside, last, ones_before = False, np.int64(-1), ones
        rows += 1
        indptr[rows] = n
    return np.int64(at), is_inside, rows, line, np.int64(n), ones, ones_before, last


@njit(nogil=True, error_model="numpy")
def _keep_ones(ones, x, values, nnz):
    """Return whether all values are still 1; at the first other value, write the ones before it."""
    if ones and x != 1.0:
        values[:nnz] = 1.0
        return False
    return ones


@njit(nogil=True, error_model="numpy")
def is_inf_or_nan(text, p):
    """Whether an invalid number is inf or nan, in any spelling."""
    if text[p] == 43 or text[p] == 45:
        p += 1
    a = text[p] | 32
    if a != 105 and a != 110:
        return False
    b = text[p + 1] | 32
    c = text[p + 2] | 32 if text[p + 1] > 32 else 0
    return (a == 105 and b == 110 and c == 102) or (a == 110 and b == 97 and c == 110)


@njit(nogil=True, error_model="numpy")
def parse(
    text,
    size,
    limit,
    skip,
    need,
    exact,
    is_plain,
    labels,
    indptr,
    ids,
    values,
    errors,
    hard,
    notes,
    bits,
):
    """Parse whole lines; the kernel of `parse_text`.

    Parameters
    ----------
    text : (at least size + 66,) uint8; SPARE in sbm/inputs/parsing.py
        text[size - 1] and text[size] are newlines. Every inner loop stops at a newline, so none of
        them checks `size`.
    size : int
        Bytes of text.
    limit : float
        Largest magnitude of a value.
    skip : bool
        Continue after an invalid line instead of stopping.
    need : int
        0: every row needs a label; 1: a missing label is nan; 2: as 1, labels need not be numbers,
        and a blank line is a row.
    exact : bool
        Whether labels that are whole numbers have to be exact in float64.
    is_plain : bool
        Whether features may be in the common form; else whole numbers up to 10^8 are noted, too.
    labels, indptr, ids, values : arrays, filled in place
        `values` is written only if some value is not 1.
    errors : (k, 3) int64, filled in place
        Line, code and position of the first k invalid lines.
    hard : (h, 4) int64, filled in place
        Row, id (or `LABEL`), begin and end of each number that needs more precision.
    notes : (7,) int64, zeros, filled in place
        First line (from 1) that is blank and no row; first row that begins with a feature where a
        label may be missing; first line with only a comment before a row, and after one; and of the
        first whole number that the type of the values changes: line, feature id and bits.
    bits : (1,) uint64
        Scratch.

    Returns
    -------
    n_rows, nnz, n_lines, ones, n_errors, n_hard : int
    """
    rows = np.int64(0)
    nnz = np.int64(0)
    line = np.int64(0)
    n_errors = np.int64(0)
    n_hard = np.int64(0)
    ones = True
    p = np.int64(0)
    arrays = labels, indptr, ids, values
    while p < size:
        is_inside, ones_before, previous = False, ones, np.int64(-1)
        if is_plain:
            p, is_inside, rows, line, nnz, ones, ones_before, previous = _parse_plain(
                text, size, p, False, arrays, rows, line, nnz, ones, previous
            )
            if p == size:
                break
        start, hard_start, begin, code = nnz, n_hard, p, OK
        if is_inside:
            start = indptr[rows]
        else:
            line += 1
            while _is_blank(text[p]):
                p += 1
            c = text[p]
            if c == 10:
                p += 1
                if need == IGNORED:
                    labels[rows] = np.nan
                    rows += 1
                    indptr[rows] = nnz
                else:
                    note(notes, BLANK, line)
                continue
            if c == 35:
                note(notes, LATER_COMMENT if rows else COMMENT, line)
                while text[p] != 10:
                    p += 1
                p += 1
                continue
            begin = p
            x, p = parse_short_number(text, p)
            if p == 0:
                x, p, code = parse_number(text, begin, bits, LARGEST_LABEL)
                is_large = exact and code != BAD_VALUE and abs(x) >= FIRST_ROUNDED
                if is_large and is_rounded(text, begin, x, bits):
                    code = ROUNDED
            if code == HARD:
                if n_hard < hard.shape[0]:
                    hard[n_hard, 0], hard[n_hard, 1] = rows, LABEL
                    hard[n_hard, 2], hard[n_hard, 3] = begin, p
                n_hard += 1
                code = OK
            elif code == BAD_VALUE:
                code = NOT_FINITE if is_inf_or_nan(text, begin) else BAD_LABEL
            if code != OK and need != REQUIRED:
                first = _first_feature(text, begin)
                if first == begin:
                    note(notes, BARE, line)
                if first == begin or need == IGNORED:
                    x, p, code = np.nan, first, OK
            labels[rows] = x
        if code == OK and previous < 0:
            p = _behind_query_id(text, p)
        ascending = True
        while code == OK:
            if is_plain:
                p, _, _, _, nnz, ones, _, previous = _parse_plain(
                    text, size, p, True, arrays, rows, line, nnz, ones, previous
                )
            while _is_blank(text[p]):
                p += 1
            c = text[p]
            if c == 10 or c == 35:
                break
            begin = p
            d = np.uint64(c) - np.uint64(48)
            identity = np.uint64(0)
            while d <= _U9:
                identity = identity * _U10 + d
                p += 1
                d = np.uint64(text[p]) - np.uint64(48)
            if p - begin > 18 and _too_large(text, begin, p):
                code = ID_TOO_LARGE
                break
            if text[p] != 58 or p == begin:
                code = NO_COLON if p > begin and _ends_token(text[p]) else BAD_ID
                break
            p += 1
            begin = p
            while _is_blank(text[p]):
                p += 1
            if text[p] == 10 or text[p] == 35:
                code = BAD_VALUE
                break
            begin = p
            x, p, code = parse_number(text, p, bits, limit)
            if code == HARD:
                if n_hard < hard.shape[0]:
                    hard[n_hard, 0], hard[n_hard, 1] = rows, np.int64(identity)
                    hard[n_hard, 2], hard[n_hard, 3] = begin, p
                n_hard += 1
                code = OK
                if ones:  # the last bit is not known yet
                    ones = False
                    values[:nnz] = 1.0
            elif code != OK:
                if code == BAD_VALUE and is_inf_or_nan(text, begin):
                    code = NOT_FINITE
                break
            key = np.int64(identity)
            ascending = ascending and key > previous
            previous = key
            ones = _keep_ones(ones, x, values, nnz)
            ids[nnz] = key
            if not ones:
                values[nnz] = x
                is_changed = abs(x) > _EXACT_FLOAT32 and values[nnz] != x and x == np.floor(x)
                if is_changed and notes[CHANGED] == 0:
                    bits.view(np.float64)[0] = x
                    notes[CHANGED], notes[CHANGED_ID] = line, key
                    notes[CHANGED_BITS] = np.int64(bits[0])
            nnz += 1
        if code == OK and not ascending:
            heap_sort(ids, values, not ones, start, nnz)
            for k in range(start + 1, nnz):
                if ids[k] == ids[k - 1]:
                    code = DUPLICATE
                    begin = ids[k]
                    break
        if code != OK:
            if n_errors < errors.shape[0]:
                errors[n_errors, 0], errors[n_errors, 1] = line, code
                errors[n_errors, 2] = begin
            n_errors += 1
            nnz = start
            n_hard = hard_start
            ones = ones_before
            if not skip:
                break
        while text[p] != 10:
            p += 1
        p += 1
        if code == OK:
            rows += 1
            indptr[rows] = nnz
    return rows, nnz, line, ones, n_errors, n_hard


@njit(nogil=True, error_model="numpy")
def note(notes, place, line):
    """Note a line, if it is the first."""
    if notes[place] == 0:
        notes[place] = line


@njit(nogil=True, error_model="numpy")
def _first_feature(text, p):
    """Return p if a feature (with a colon) begins there, else the end of the token."""
    q = p
    while not _ends_token(text[q]):
        if text[q] == 58:
            return p
        q += 1
    return q


@njit(nogil=True, error_model="numpy")
def _too_large(text, begin, end):
    """Whether the decimal integer text[begin:end] exceeds 2^63 - 1."""
    while begin < end and text[begin] == 48:
        begin += 1
    if end - begin != 19:
        return end - begin > 19
    x = _U0
    for k in range(begin, end):  # 19 digits fit in 64 bits
        x = x * _U10 + np.uint64(text[k] - 48)
    return x > np.uint64(0x7FFFFFFFFFFFFFFF)


@njit(nogil=True, error_model="numpy")
def _behind_query_id(text, p):
    """Return the position after ``qid:digits`` if present, else p.

    It is the group number of ranking data, which is ignored.
    """
    q = p
    while _is_blank(text[q]):
        q += 1
    if text[q] != 113 or text[q + 1] != 105 or text[q + 2] != 100 or text[q + 3] != 58:
        return p
    q += 4
    begin = q
    while 48 <= text[q] <= 57:
        q += 1
    return q if q > begin and _ends_token(text[q]) else p
