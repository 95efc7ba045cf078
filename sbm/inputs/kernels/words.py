"""Compiled dictionary of names, lexing of delimited text, and assembling of rows.

Tables: slots (2^k,) int32 holds codes plus one, 0 means free; hashes, names and ends hold the hash
and the bytes of each code.
Source: FNV-1a (Fowler, Noll, Vo) with a random seed, linear probing (Knuth, volume 3, section 6.4).
"""

import numpy as np
from numba import njit

_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_QUARTER = 4  # a table is at most a quarter full, so that searches are short


@njit(nogil=True, error_model="numpy")
def _hash(h, text, begin, end):
    for k in range(begin, end):
        h = (h ^ np.uint64(text[k])) * _PRIME
    return h


@njit(nogil=True, error_model="numpy")
def intern(
    text, offsets, begin, prefix, seed, slots, hashes, names, ends, n_names, insert, out
):  # fmt: skip
    """Write the codes of names, a prefix and a word each, to `out`; add unknown ones if `insert`.

    Parameters
    ----------
    text : (n_bytes,) uint8
        Words, one after the other.
    offsets : (n_words + 1,) int64
        Begin of each word, and the end of the last.
    begin : int
        First word to look up.
    prefix : (any,) uint8
        Begin of all names.
    seed : uint64
    slots, hashes, names, ends : the tables, in place
    n_names : int
        Number of known names.
    insert : bool
        Add unknown names; otherwise they get -1. Then the prefix must be empty.
    out : (n_words,) int32, filled in place

    Returns
    -------
    reached, n_names : int
        `reached` is less than the number of words if a table is full.
    """
    mask = len(slots) - 1
    base = _hash(seed, prefix, 0, len(prefix))
    n_prefix = len(prefix)
    for k in range(begin, len(offsets) - 1):
        low, high = offsets[k], offsets[k + 1]
        size = n_prefix + high - low
        h = _hash(base, text, low, high) * _MIX
        s = np.int64(h >> np.uint64(16)) & mask
        code = slots[s]
        while code != 0:
            at = ends[code - 2] if code > 1 else np.int64(0)
            if hashes[code - 1] == h and ends[code - 1] - at == size:
                same = True
                for j in range(n_prefix):
                    same &= names[at + j] == prefix[j]
                for j in range(high - low):
                    same &= names[at + n_prefix + j] == text[low + j]
                if same:
                    break
            s = (s + 1) & mask
            code = slots[s]
        if code == 0 and insert:
            at = ends[n_names - 1] if n_names else np.int64(0)
            if (
                n_names == len(ends)
                or _QUARTER * n_names >= len(slots)
                or at + high - low > len(names)
            ):
                return k, n_names
            for j in range(high - low):
                names[at + j] = text[low + j]
            ends[n_names] = at + high - low
            hashes[n_names] = h
            n_names += 1
            slots[s] = n_names
            code = np.int32(n_names)
        out[k] = code - 1
    return len(offsets) - 1, n_names


@njit(nogil=True, error_model="numpy")
def rehash(hashes, n_names, slots):
    """Insert the known names into empty slots."""
    mask = len(slots) - 1
    for code in range(n_names):
        s = np.int64(hashes[code] >> np.uint64(16)) & mask
        while slots[s] != 0:
            s = (s + 1) & mask
        slots[s] = code + 1


@njit(nogil=True, error_model="numpy")
def _insert(key, value, first, n, out_ids, out_values):
    """Insert a nonzero into a row that begins at `first` and ends at `n`, by id."""
    p = n
    while p > first and out_ids[p - 1] > key:
        out_ids[p], out_values[p] = out_ids[p - 1], out_values[p - 1]
        p -= 1
    out_ids[p], out_values[p] = key, value


@njit(nogil=True, error_model="numpy")
def assemble(
    numbers, number_codes, missing_codes, codes, limit, ids, indptr, out_ids, out_values
):  # fmt: skip
    """Make rows of columns.

    Parameters
    ----------
    numbers : (n_numbers, n_rows) float64
        Values of columns of numbers; zero for no feature, nan if missing.
    number_codes, missing_codes : (n_numbers,) int32
        Code of each column of numbers, and of its missing cells; -1 for none.
    codes : (n_words, n_rows) int32
        Code of the word of each row in columns of words; -1 for none.
    limit : float
        Largest magnitude of a number.
    ids : (n_codes,) int64
        Feature id of each code.
    indptr : (n_rows + 1,) int64, filled in place
    out_ids, out_values : (any,) int64 and float64, filled in place

    Returns
    -------
    n : int
        Number of nonzeros.
    n_large : int
        Numbers beyond the limit, which are left out.
    """
    n_rows = len(indptr) - 1
    n = n_large = 0
    indptr[0] = 0
    for row in range(n_rows):
        first = n
        for k in range(len(number_codes)):
            value = numbers[k, row]
            code = number_codes[k]
            if value != value:
                code = missing_codes[k]
                value = 1.0
            elif value == 0:
                continue
            elif abs(value) > limit:
                n_large += 1
                continue
            if code >= 0:
                _insert(ids[code], value, first, n, out_ids, out_values)
                n += 1
        for k in range(codes.shape[0]):
            code = codes[k, row]
            if code >= 0:
                _insert(ids[code], 1.0, first, n, out_ids, out_values)
                n += 1
        indptr[row + 1] = n
    return n, n_large


# States of the lexer.
_FIELD = 0  # at the begin of a cell
_PLAIN = 1  # in a cell without quotes
_QUOTED = 2
_CLOSED = 3  # behind the closing quote


@njit(nogil=True, error_model="numpy")
def find_records(text, size, separator, quote, ends, cells, lines):
    """Find the records of delimited text.

    Parameters
    ----------
    text : (any,) uint8
        Begins with a record.
    size : int
        Bytes of text.
    separator, quote : int
        Byte between cells, and around those that contain it.
    ends : (most,) int64, filled in place
        End of each complete record, with its line end. Blank lines belong to the record behind.
    cells : (most,) int64, filled in place
        Number of cells; 0 for a blank end of the text, -1 for text behind a closing quote.
    lines : (most,) int64, filled in place
        Line of each record, from 0.

    Returns
    -------
    n_records : int
    n_lines : int
        Line ends up to the last record.
    """
    n = 0
    n_lines = next_line = line = np.int64(0)
    state = _FIELD
    found = np.int64(1)
    is_wrong = False
    begin = 0
    for k in range(size):
        byte = text[k]
        if state == _QUOTED:
            if byte == quote:
                state = _CLOSED
            elif byte == 10:
                line += 1
            continue
        if byte == 10:
            line += 1
            is_blank = k == begin or (k == begin + 1 and text[begin] == 13)
            begin = k + 1
            state = _FIELD
            if is_blank:
                next_line = line
                continue
            if n == len(ends):
                break
            ends[n] = k + 1
            cells[n] = -1 if is_wrong else found
            lines[n] = next_line
            n_lines = next_line = line
            n += 1
            found = np.int64(1)
            is_wrong = False
        elif byte == separator:
            found += 1
            state = _FIELD
        elif byte == quote and state != _PLAIN:
            state = _QUOTED
        elif state == _CLOSED:
            is_wrong |= byte != 13
        else:
            state = _PLAIN
    return n, n_lines
