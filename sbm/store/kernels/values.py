"""Compiled codec of values: byte planes, or codes of a few distinct values.

Values are passed as words: unsigned integers with the same bits. Plane k holds byte k of each word.
Exponents compress well, most other bytes do not.

Given: words, or planes, or codes and their table. In place: the other ones. Returned: the number of
distinct words, or whether all values are valid.
"""

import numpy as np
from numba import njit

LARGEST_TABLE = 256
SLOTS = 1024
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(54)


@njit(nogil=True, error_model="numpy")
def find_codes(words, table, slots, codes):
    """Number the distinct words in order of first appearance.

    Parameters
    ----------
    words : (n,) uint32 or uint64
    table : (LARGEST_TABLE,) same type as words, filled in place
        The distinct words.
    slots : (SLOTS,) int32
        Scratch of a hash table with linear probing (Knuth, volume 3, section 6.4).
    codes : (n,) uint8, filled in place
        Position of each word in `table`.

    Returns
    -------
    int
        Number of distinct words; LARGEST_TABLE + 1 if there are more.
    """
    slots[:] = 0
    n_distinct = 0
    for k in range(len(words)):
        word = words[k]
        slot = np.int64((np.uint64(word) * _FACTOR) >> _SHIFT)
        while slots[slot] != 0 and table[slots[slot] - 1] != word:
            slot = (slot + 1) & (SLOTS - 1)
        if slots[slot] == 0:
            if n_distinct == LARGEST_TABLE:
                return LARGEST_TABLE + 1
            table[n_distinct] = word
            n_distinct += 1
            slots[slot] = n_distinct
        codes[k] = slots[slot] - 1
    return n_distinct


@njit(nogil=True, error_model="numpy")
def look_up(codes, table, n_distinct, words):
    """Write the word of each code; return whether they use the whole table.

    Parameters
    ----------
    codes : (n,) uint8
    table : (LARGEST_TABLE,) uint32 or uint64
    words : (n,) same type as table, filled in place
    """
    largest = np.uint8(0)
    for k in range(len(codes)):
        words[k] = table[codes[k]]
        largest = max(largest, codes[k])
    return np.int64(largest) + 1 == n_distinct


@njit(nogil=True, error_model="numpy")
def split_planes(words, planes):
    """Write the bytes of words, plane by plane.

    Parameters
    ----------
    words : (n,) uint32 or uint64
    planes : (bytes of a word, n) uint8, filled in place
    """
    for place in range(words.itemsize):
        shift = words.dtype.type(8 * place)
        for k in range(len(words)):
            planes[place, k] = words[k] >> shift


@njit(nogil=True, error_model="numpy")
def join_planes(planes, exponent, words):
    """Write words from their planes; return whether all are finite as floats.

    Parameters
    ----------
    planes : (bytes of a word, n) uint8
    exponent : int
        The exponent bits of a word.
    words : (n,) uint32 or uint64, filled in place
    """
    words[:] = 0
    for place in range(words.itemsize):
        shift = words.dtype.type(8 * place)
        plane = planes[place]
        for k in range(len(words)):
            words[k] |= words.dtype.type(plane[k]) << shift
    infinite, largest = words.dtype.type(exponent), words.dtype.type(0)
    for k in range(len(words)):
        largest = max(largest, words[k] & infinite)
    return largest < infinite
