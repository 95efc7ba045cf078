"""Compiled dictionary of names, and assembling of rows.

Tables: slots (2^k,) uint64 hold the upper half of a hash, and below it a code plus one; 0 means
free. names and name_ends hold the bytes of each code.
Source: linear probing (Knuth, volume 3, section 6.4); the hash is that of `hash_text`.
"""

import numpy as np
from numba import njit

from sbm.inputs.kernels.cells import PADDING, hash_text, is_same, slot_of

_QUARTER = 4  # a table is at most a quarter full, so that searches are short
_EQUALS = 61
_U0 = np.uint64(0)
_TAG = np.uint64(0xFFFFFFFF00000000)
_CODE = np.uint64(0xFFFFFFFF)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _hash_name(seed, factor, text, low, high):
    """Return the hash of a name: of the bytes up to the first equals sign, then of the others."""
    p = low
    while p < high and text[p] != _EQUALS:
        p += 1
    if p == high:
        return hash_text(seed, factor, text, low, high)
    h = hash_text(seed, factor, text, low, p + 1)
    return hash_text(h, factor, text, p + 1, high)


@njit(nogil=True, error_model="numpy")
def intern(text, begins, ends, begin, seed, factor, slots, names, name_ends, n_names, insert, out):
    """Write the codes of names to `out`; add unknown ones if `insert`.

    Parameters
    ----------
    text : (n_bytes,) uint8
        With `PADDING` bytes behind the names; so has `names`.
    begins, ends : (n,) int64
        Of each name in the text.
    begin : int
        First name to look up.
    seed, factor : uint64
        Random, so that colliding names cannot be constructed; the factor is odd.
    slots, names, name_ends : the tables, in place
    n_names : int
        Number of known names.
    insert : bool
        Add unknown names; otherwise they get -1.
    out : (n,) int32, filled in place

    Returns
    -------
    reached, n_names : int
        `reached` is less than the number of names if a table is full.
    """
    mask = len(slots) - 1
    for k in range(begin, len(begins)):
        low, high = begins[k], ends[k]
        s, tag = slot_of(_hash_name(seed, factor, text, low, high))
        s &= mask
        code = np.int64(0)
        while slots[s] != _U0:
            if slots[s] & _TAG == tag:
                found = np.int64(slots[s] & _CODE)
                at = name_ends[found - 2] if found > 1 else np.int64(0)
                if name_ends[found - 1] - at == high - low and is_same(
                    names, at, text, low, high - low
                ):
                    code = found
                    break
            s = (s + 1) & mask
        if code == 0 and insert:
            at = name_ends[n_names - 1] if n_names else np.int64(0)
            if (
                n_names == len(name_ends)
                or _QUARTER * n_names >= len(slots)
                or at + high - low + PADDING > len(names)
            ):
                return k, n_names
            for j in range(high - low):
                names[at + j] = text[low + j]
            name_ends[n_names] = at + high - low
            n_names += 1
            slots[s] = tag | np.uint64(n_names)
            code = np.int64(n_names)
        out[k] = code - 1
    return len(begins), n_names


@njit(nogil=True, error_model="numpy")
def rehash(before, slots):
    """Insert the names of a table into empty slots."""
    mask = len(slots) - 1
    for k in range(len(before)):
        if before[k] == _U0:
            continue
        s = np.int64(before[k] >> np.uint64(32)) & mask
        while slots[s] != _U0:
            s = (s + 1) & mask
        slots[s] = before[k]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _insert(key, value, first, n_numbers, n, out_ids, out_values):
    """Insert a nonzero into a row that begins at `first` and ends at `n`, by id.

    The values from `n_numbers` on are 1, so they need not move if the new one is, too.
    """
    p = n
    while p > first and out_ids[p - 1] > key:
        out_ids[p] = out_ids[p - 1]
        p -= 1
    out_ids[p] = key
    if p < n_numbers or value != 1.0:
        for k in range(n, p, -1):
            out_values[k] = out_values[k - 1]
        out_values[p] = value
    else:
        out_values[n] = 1.0


@njit(nogil=True, error_model="numpy")
def assemble(
    numbers, number_codes, missing_codes, codes, crossed, limit, exact, ids, indptr, out_ids,
    out_values,
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
    crossed : (n_crossed, n_rows) float64
        Values of the last of these; those of the others are 1.
    limit : float
        Largest magnitude of a number.
    exact : float
        Largest magnitude up to which a float32 holds all whole numbers; infinite if the values are
        not stored as float32.
    ids : (n_codes,) int64
        Feature id of each code.
    indptr : (n_rows + 1,) int64, filled in place
    out_ids : (any,) int64, filled in place
    out_values : (any,) float32 or float64, filled in place

    Returns
    -------
    n : int
        Number of nonzeros.
    n_large : int
        Numbers beyond the limit, which are left out.
    changed : int
        Row of the first whole number that the type of the values changes, and behind it the number
        of the column; -1 if there is none.
    """
    n_rows = len(indptr) - 1
    n_all = len(number_codes)
    n_ones = codes.shape[0] - crossed.shape[0]
    n = n_large = np.int64(0)
    changed = np.int64(-1)
    indptr[0] = 0
    for row in range(n_rows):
        first = n
        for k in range(n_all):
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
            elif (
                abs(value) > exact
                and changed < 0
                and value == np.floor(value)
                and np.float64(np.float32(value)) != value
            ):
                changed = row * n_all + k
            if code >= 0:
                _insert(ids[code], value, first, n, n, out_ids, out_values)
                n += 1
        n_numbers = n
        for k in range(n_ones):
            code = codes[k, row]
            if code >= 0:
                _insert(ids[code], 1.0, first, n_numbers, n, out_ids, out_values)
                n += 1
        for k in range(crossed.shape[0]):
            code, value = codes[n_ones + k, row], crossed[k, row]
            if code < 0 or value == 0:
                continue
            if not abs(value) <= limit:
                n_large += 1
                continue
            _insert(ids[code], value, first, n, n, out_ids, out_values)
            n += 1
        indptr[row + 1] = n
    return n, n_large, changed
