"""Compiled hashing of names and parser of Vowpal Wabbit text; `sbm.inputs.vw` has the grammar.

Source: MurmurHash3 (Appleby 2011) and the grammar of Vowpal Wabbit.
"""

import numpy as np
from numba import njit

from sbm.inputs.kernels.numbers import join_digits, line_end, load_digits
from sbm.inputs.kernels.text import (
    BARE,
    BLANK,
    FIRST_ROUNDED,
    IGNORED,
    REQUIRED,
    is_inf_or_nan,
    is_rounded,
    note,
    parse_number,
    parse_short_number,
)
from sbm.store.kernels.sorting import sort_and_add

# Error codes; sbm/inputs/vw.py has the messages, in this order.
OK = 0
BAD_LABEL = 1
NOT_FINITE = 2
NO_LABEL = 3
NEGATIVE = 4
BASE = 5
BAD_VALUE = 6
OUT_OF_RANGE = 7
NO_BAR = 8
NO_NAME = 9
HARD = 9  # the last bit of a number is not certain, which does not matter here
ROUNDED = 10

_ENDS_WORD = np.zeros(256, np.bool_)
_ENDS_WORD[[9, 10, 32, 58, 124]] = True  # tab, newline, space, colon, bar

_ANY = np.uint8(58)  # a colon
_FNV = np.uint64(16777619)  # the prime that Vowpal Wabbit multiplies ids of pairs by
_MASK32 = np.uint64(0xFFFFFFFF)
_C1 = np.uint64(0xCC9E2D51)
_C2 = np.uint64(0x1B873593)


@njit(nogil=True, error_model="numpy")
def _mix(word):
    k = (word * _C1) & _MASK32
    k = ((k << np.uint64(15)) | (k >> np.uint64(17))) & _MASK32
    return (k * _C2) & _MASK32


@njit(nogil=True, error_model="numpy")
def _murmur(text, begin, end, seed):
    """MurmurHash3_x86_32 (Appleby, 2011) of text[begin:end]."""
    h = seed & _MASK32
    n = end - begin
    p = begin
    while p + 4 <= end:
        word = np.uint64(text[p]) | np.uint64(text[p + 1]) << np.uint64(8)
        word |= np.uint64(text[p + 2]) << np.uint64(16) | np.uint64(text[p + 3]) << np.uint64(24)
        h ^= _mix(word)
        h = ((h << np.uint64(13)) | (h >> np.uint64(19))) & _MASK32
        h = (h * np.uint64(5) + np.uint64(0xE6546B64)) & _MASK32
        p += 4
    word = np.uint64(0)
    for k in range(p, end):
        word |= np.uint64(text[k]) << np.uint64(8 * (k - p))
    if p < end:
        h ^= _mix(word)
    h ^= np.uint64(n) & _MASK32
    h ^= h >> np.uint64(16)
    h = (h * np.uint64(0x85EBCA6B)) & _MASK32
    h ^= h >> np.uint64(13)
    h = (h * np.uint64(0xC2B2AE35)) & _MASK32
    return h ^ (h >> np.uint64(16))


@njit(nogil=True, error_model="numpy")
def _hash_name(text, begin, end, seed):
    """Hash a name as Vowpal Wabbit does by default: a name of digits is a number."""
    while begin < end and text[begin] <= 32:
        begin += 1
    while begin < end and text[end - 1] <= 32:
        end -= 1
    number = np.uint64(0)
    for k in range(begin, end):
        digit = np.uint64(text[k]) - np.uint64(48)
        if digit > np.uint64(9):
            return _murmur(text, begin, end, seed)
        number = number * np.uint64(10) + digit
    return number + seed


@njit(nogil=True, error_model="numpy")
def hash_names(text, ends, mask, out):
    """Write the ids of concatenated names to `out`.

    Parameters
    ----------
    text : (n_bytes,) uint8
    ends : (n_names,) int64
        End of each name.
    mask : int
        Bits of the hash that form the id.
    out : (n_names,) int64, filled in place

    Returns
    -------
    int
        Number of names.
    """
    begin = np.int64(0)
    for k in range(len(ends)):
        out[k] = np.int64(_hash_name(text, begin, ends[k], np.uint64(0)) & np.uint64(mask))
        begin = ends[k]
    return np.int64(len(ends))


@njit(nogil=True, error_model="numpy")
def _number(text, begin, end, bits, limit):
    """Parse text[begin:end] as one number; return (number, code)."""
    behind = text[end]
    text[end] = 10  # stops the parser of numbers
    code = OK
    x, q = parse_short_number(text, begin)
    if q != end:
        x, q, code = parse_number(text, begin, bits, limit)
    if code == BAD_VALUE and is_inf_or_nan(text, begin):
        code = NOT_FINITE
    elif q != end and code != OUT_OF_RANGE:
        code = BAD_VALUE
    text[end] = behind
    return x, OK if code == HARD else code


@njit(nogil=True, error_model="numpy")
def _word_end(text, p):
    """Return the end of a name or number: a space, tab, colon, bar or the end of the line."""
    while not _ENDS_WORD[text[p]]:
        p += 1
    return p


@njit(nogil=True, error_model="numpy")
def _is_blank_line(text, begin, end):
    while begin < end and text[begin] <= 32:
        begin += 1
    return begin == end


@njit(nogil=True, error_model="numpy")
def _parse_label(text, begin, bar, bits, limit, exact):
    """Parse ``[...TAB] label [importance] [base] ['tag]`` at text[begin:bar].

    Returns (label, importance, error code, position of the error).
    """
    sign = np.int64(text[begin] == 45)
    digits, n = load_digits(text, begin + sign)
    if 0 < n < 8 and begin + sign + n + 1 == bar and text[bar - 1] == 32:  # most are like this
        label = np.float64(join_digits(digits, n))
        return -label if sign else label, 1.0, OK, begin
    for k in range(begin, bar):
        if text[k] == 9:
            begin = k + 1
            break
    end = bar
    while end > begin and text[end - 1] == 32:
        end -= 1
    last = end
    while last > begin and text[last - 1] != 32:
        last -= 1
    if end > last and (end == bar or text[last] == 39):  # a tag
        end = last
    label = 0.0
    weight = 1.0
    n = np.int64(0)
    p = begin
    while True:
        while p < end and text[p] == 32:
            p += 1
        if p == end:
            break
        q = p
        while q < end and text[q] != 32:
            q += 1
        x, code = _number(text, p, q, bits, limit)
        if code != OK:
            return label, weight, BAD_LABEL if code == BAD_VALUE else code, p
        if n == 0:
            label = x
            if exact and abs(x) >= FIRST_ROUNDED and is_rounded(text, p, x, bits):
                return label, weight, ROUNDED, p
        elif n == 1:
            weight = x
            if x < 0.0:
                return label, weight, NEGATIVE, p
        elif n == 2 and x != 0.0:
            return label, weight, BASE, p
        elif n > 2:
            return label, weight, BAD_LABEL, p
        n += 1
        p = q
    return label, weight, OK if n else NO_LABEL, begin


@njit(nogil=True, error_model="numpy")
def _add_pairs(start, nnz, limit, mask, ids, values, names, n_names, letters, pairs):
    """Append the products of the features of some namespaces to a row that begins at `start`.

    The id is that of Vowpal Wabbit: the first one times the prime of FNV, exclusive or the second
    one. Returns (nnz, n_names, whether a product is too large); as `_parse_features`, if the room
    is too small.
    """
    end = nnz
    first_name = n_names - (end - start)  # of the row
    for k in range(pairs.shape[0]):
        a, b = pairs[k, 0], pairs[k, 1]
        for i in range(start, end):
            if letters[i] != a and a != _ANY:
                continue
            for j in range(i if a == b else start, end):
                if letters[j] != b and b != _ANY:
                    continue
                x = values[i] * values[j]
                if not abs(x) <= limit:
                    return nnz, n_names, True
                if x == 0.0:
                    continue
                if nnz == len(ids) or n_names == len(names) > 0:
                    return np.int64(len(ids) + 1), n_names, False
                h = (np.uint64(ids[i]) * _FNV) ^ np.uint64(ids[j])
                ids[nnz] = np.int64(h & np.uint64(mask))
                values[nnz] = x
                if len(names):
                    behind = names[first_name + j - start, 1] + 1
                    names[n_names, 0] = ids[nnz]
                    names[n_names, 1] = names[first_name + i - start, 1] | behind << 32
                    n_names += 1
                nnz += 1
    return nnz, n_names, False


@njit(nogil=True, error_model="numpy", forceinline=True)
def _parse_plain(text, begin):
    """Parse a name of fewer than eight digits, and a value that is such a number, or 1.

    Most features are like this. Returns (number of the name, value, end); end is 0 for others.
    """
    digits, n = load_digits(text, np.int64(begin))
    end = begin + np.uint64(n)
    value, c = 1.0, text[end]
    is_plain = 0 < n < 8
    if c == 58:
        digit, behind = text[end + np.uint64(1)] - np.uint8(48), text[end + np.uint64(2)]
        if digit <= 9 and (behind == 32 or behind == 10):  # can be guessed, unlike a length
            value, c, end = np.float64(digit), behind, end + np.uint64(2)
        else:
            more, m = load_digits(text, np.int64(end + np.uint64(1)))
            end += np.uint64(1 + m)
            is_plain &= 0 < m < 8
            value, c = np.float64(join_digits(more, m)), text[end]
    if not (is_plain and (c == 32 or c == 10)):
        return np.uint64(0), value, np.uint64(0)
    return join_digits(digits, n), value, end


@njit(nogil=True, error_model="numpy")
def _parse_features(
    text, p, end, limit, mask, ids, values, nnz, names, n_names, named, letters, bits
):
    """Parse ``|[namespace[:weight]] [name[:value]]...`` at text[p:end].

    Returns (nnz, n_names, error code, position of the error). If the room is too small, nnz exceeds
    it.
    """
    seed = np.uint64(0)
    scale = 1.0
    letter = np.uint8(32)  # of the namespace without a name
    size = min(len(ids), len(names)) if len(names) else len(ids)
    while p < end:
        at = np.uint64(p)
        c = text[at]
        if c == 32 and max(nnz, n_names) < size:
            feature, x, q = _parse_plain(text, at + np.uint64(1))
            x *= scale
            if q and x != 0.0 and abs(x) <= limit:
                k = np.uint64(nnz)
                ids[k], values[k] = np.int64((feature + seed) & np.uint64(mask)), x
                if len(letters):
                    letters[k] = letter
                # Names of products need those of all features of the row.
                if len(names) and (len(letters) or _is_new(ids[k], named)):
                    n = np.uint64(n_names)
                    names[n, 0], names[n, 1] = ids[k], p + 1
                    n_names += 1
                nnz += 1
                p = np.int64(q)
                continue
        if c == 32 or c == 9:
            p += 1
            continue
        opens = c == 124
        begin = p + 1 if opens else p
        # Most names of digits are short: eight bytes tell where they end, and which number it is.
        digits, n_digits = load_digits(text, begin)
        is_number = 0 < n_digits < 8 and _ENDS_WORD[text[begin + n_digits]]
        p = begin + n_digits if is_number else _word_end(text, begin)
        name_end = p
        x = 1.0
        if text[p] == 58 and p < end:
            q = _word_end(text, p + 1)
            x, code = _number(text, p + 1, q, bits, limit)
            if code == OK and text[q] == 58:
                code = BAD_VALUE
            if code != OK:
                return nnz, n_names, code, p + 1
            p = q
        if opens:
            if name_end == begin and text[name_end] == 58:
                return nnz, n_names, NO_NAME, begin
            seed = np.uint64(0)
            if is_number:
                seed = join_digits(digits, n_digits)
            else:
                seed = _hash_name(text, begin, name_end, seed)
            letter = text[begin] if name_end > begin else np.uint8(32)
            scale = x
            continue
        if name_end == begin:
            return nnz, n_names, NO_NAME, begin
        x *= scale
        if not abs(x) <= limit:
            return nnz, n_names, OUT_OF_RANGE, begin
        if x == 0.0:
            continue
        if nnz == len(ids) or n_names == len(names) > 0:
            return np.int64(len(ids) + 1), n_names, OK, p
        if is_number:
            h = join_digits(digits, n_digits) + seed
        else:
            h = _hash_name(text, begin, name_end, seed)
        ids[nnz] = np.int64(h & np.uint64(mask))
        values[nnz] = x
        if len(letters):
            letters[nnz] = letter
        if len(names):
            names[n_names, 0], names[n_names, 1] = ids[nnz], begin
            n_names += 1
        nnz += 1
    return nnz, n_names, OK, p


@njit(nogil=True, error_model="numpy", forceinline=True)
def _are_ascending(ids, start, end):
    found = True
    for k in range(start + 1, end):
        found &= ids[k - 1] < ids[k]
    return found


@njit(nogil=True, error_model="numpy", forceinline=True)
def _is_new(feature, named):
    """Whether a feature has no name yet, as far as is known."""
    place, bit = np.uint64(feature) >> np.uint64(3), np.uint64(feature) & np.uint64(7)
    return place >= np.uint64(len(named)) or (np.uint64(named[place]) >> bit) & np.uint64(1) == 0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _drop_named(names, first, end, named):
    """Move the names from `first` to `end` whose ids have none yet to the front; return their end.

    Branch-free, so that many memory accesses overlap.
    """
    kept = np.uint64(first)
    for k in range(np.uint64(first), np.uint64(end)):
        feature, place = names[k, 0], names[k, 1]
        names[kept, 0], names[kept, 1] = feature, place
        kept += np.uint64(_is_new(feature, named))
    return np.int64(kept)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _write_name(text, begin, bar, out, n):
    """Write the name at text[begin], with the namespace behind `bar`, to out[n:], if it fits.

    Returns its end.
    """
    p = bar + 1
    while not (_ENDS_WORD[text[p]] or text[p] == 13):
        if n < len(out):
            out[n] = text[p]
        n, p = n + 1, p + 1
    if p > bar + 1:
        if n < len(out):
            out[n] = 94  # ^
        n += 1
    p = begin
    while not (_ENDS_WORD[text[p]] or text[p] == 13):
        if n < len(out):
            out[n] = text[p]
        n, p = n + 1, p + 1
    return n


@njit(nogil=True, error_model="numpy")
def write_names(text, places, ends, out):
    """Write names of features, ``namespace^name``, one after the other.

    Parameters
    ----------
    text : (n_bytes,) uint8
    places : (n_names, 2) int64
        As `parse` returns them.
    ends : (n_names,) int64, filled in place
        End of each name.
    out : (n,) uint8, filled in place

    Returns
    -------
    int
        Bytes of all names. If `out` is shorter, it does not have all of them.
    """
    n = before = np.int64(0)
    bar = np.int64(-1)  # the last one before `before`
    for k in range(len(places)):
        begin, second = places[k, 1] & np.int64(0xFFFFFFFF), places[k, 1] >> 32
        p = begin - 1
        while p >= before and text[p] != 124:
            p -= 1
        if p >= before or begin < before:
            while text[p] != 124:
                p -= 1
            bar = p
        before = begin
        n = _write_name(text, begin, bar, out, n)
        if second:
            if n < len(out):
                out[n] = 42  # *
            n += 1
            p = second - 2
            while text[p] != 124:
                p -= 1
            n = _write_name(text, second - 1, p, out, n)
        ends[k] = n
    return n


@njit(nogil=True, error_model="numpy")
def parse(
    text,
    size,
    limit,
    label_limit,
    mask,
    skip,
    need,
    exact,
    labels,
    weights,
    indptr,
    ids,
    values,
    names,
    named,
    letters,
    pairs,
    errors,
    notes,
    bits,
):
    """Parse whole lines; the kernel of `parse_vw`.

    Parameters
    ----------
    text : (at least size + 8,) uint8
        text[size - 1] is a newline. Bytes after words are changed temporarily.
    size : int
        Bytes of text.
    limit, label_limit : float
        Largest magnitude of a value, and of a label.
    mask : int
        Bits of the hash that form the id.
    skip : bool
        Continue after an invalid line instead of stopping.
    need, exact
        As in the kernel for LIBSVM text.
    labels, weights, indptr, ids, values : arrays, filled in place
    names : (as long as ids, or 0, 2) int64, filled in place
        Id and position of each feature in the order of the text. Of a product, the position of
        the first feature, and 2^32 times that of the second one plus 1.
    named : (size,) uint8
        Bits of ids whose names are known and so left out; larger ids have none. Bits, because they
        fit in the cache.
    letters : (as long as ids, or 0) uint8, filled in place
        First letter of the namespace of each feature, if there are pairs.
    pairs : (n_pairs, 2) uint8
        First letters of namespaces whose features are multiplied; a colon for all.
    errors : (k, 3) int64, filled in place
        Line, code and position of the first k invalid lines.
    notes : (7,) int64, zeros, filled in place
        Of those of the kernel for LIBSVM text, the first two.
    bits : (1,) uint64
        Scratch.

    Returns
    -------
    n_rows, nnz, n_lines, ones, n_errors, n_names : int
        n_rows is -1 if `ids` is too small.
    """
    rows = np.int64(0)
    nnz = np.int64(0)
    line = np.int64(0)
    n_errors = np.int64(0)
    n_names = np.int64(0)
    p = np.int64(0)
    while p < size:
        line += 1
        begin = p
        while text[p] != 10 and text[p] != 124:
            p += 1
        bar = p
        end = line_end(text, bar)
        p = end + 1
        if bar == end and _is_blank_line(text, begin, end):
            if need == IGNORED:
                labels[rows], weights[rows] = np.nan, 1.0
                rows += 1
                indptr[rows] = nnz
            else:
                note(notes, BLANK, line)
            continue
        if text[end - 1] == 13:
            end -= 1
        start, start_names = nnz, n_names
        where = begin
        code = NO_BAR
        if bar < end:
            labels[rows], weights[rows], code, where = _parse_label(
                text, begin, bar, bits, label_limit, exact
            )
            if code == NO_LABEL:
                note(notes, BARE, line)
            if need == IGNORED or (code == NO_LABEL and need != REQUIRED):
                labels[rows], code = np.nan, OK
        if code == OK:
            behind = text[end]
            text[end] = 10
            nnz, n_names, code, where = _parse_features(
                text, bar, end, limit, mask, ids, values, nnz, names, n_names, named, letters, bits
            )
            text[end] = behind
        if code == OK and len(pairs) and nnz <= len(ids):
            nnz, n_names, is_large = _add_pairs(
                start, nnz, limit, mask, ids, values, names, n_names, letters, pairs
            )
            if is_large:
                code, where = OUT_OF_RANGE, bar
        if nnz > len(ids):
            return np.int64(-1), nnz, line, False, n_errors, n_names
        if code == OK and not _are_ascending(ids, start, nnz):
            nnz = sort_and_add(ids, values, start, nnz)
            for k in range(start, nnz):
                if not abs(values[k]) <= limit:
                    code, where = OUT_OF_RANGE, bar
        if code != OK:
            if n_errors < errors.shape[0]:
                errors[n_errors, 0], errors[n_errors, 1], errors[n_errors, 2] = line, code, where
            n_errors += 1
            nnz, n_names = start, start_names
            if not skip:
                break
        else:
            rows += 1
            indptr[rows] = nnz
            n_names = _drop_named(names, start_names, n_names, named)
    ones = True
    for k in range(nnz):
        ones = ones and values[k] == 1.0
    return rows, nnz, line, ones, n_errors, n_names
