"""Lines of numbers as text: decimals that read back as the same numbers.

Given: numbers as float64. In place: their shortest decimals, closest to the number among those of
this length, as Python writes them; see `_shorten`.
"""

import numpy as np
from numba import njit

from sbm.inputs.kernels.numbers import TEN, as_float

__all__ = ["write_lines", "write_words"]

_PAIRS = np.array([48 + d for n in range(100) for d in divmod(n, 10)], np.uint8)  # 00 to 99
_HALVES = 134217729.0  # 2^27 + 1: splits a float64 into two of 26 bits (Dekker 1971)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _multiply(a, b):
    """Return the product of two float64 and its rounding error (Dekker 1971)."""
    product = a * b
    split = _HALVES * a
    a1 = split - (split - a)
    a2 = a - a1
    split = _HALVES * b
    b1 = split - (split - b)
    b2 = b - b1
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


@njit(nogil=True, error_model="numpy")
def _shorten(a, precision):
    """Return a whole number m and the least k so that m / 10^k reads back as a.

    A decimal reads back if it is nearer than half the distance to the next number. a 10^k is known
    with its rounding error, so the comparison is exact. 0.0001 <= a < 10^15, which needs at most 17
    digits and k <= 21.

    Parameters
    ----------
    a : float64
    precision : int
        Bits of a significand: 53, or 24 for float32. The latter are read as float64 first, so that
        a decimal next to the middle of two numbers may be rounded twice; such ones are not used.
    """
    bits = np.float64(a).view(np.int64)
    half = as_float(np.uint64(((bits >> 52) - precision) << 52))
    if bits & ((1 << 52) - 1) == 0:  # the number below is nearer
        half *= 0.5
    if precision == 24:
        half *= 1.0 - 2.0**-28
    whole = np.int64(0)
    for k in range(22):
        product, error = _multiply(a, TEN[k])
        near = np.rint(product)
        rest = (product - near) + error
        step = np.rint(rest)
        whole = np.int64(near) + np.int64(step)
        if abs(rest - step) < half * TEN[k]:
            return whole, k
    return whole, 21


@njit(nogil=True, error_model="numpy", forceinline=True)
def _write_digits(number, least, out, p):
    """Write a whole number with at least so many digits; return the end."""
    rest, n, power = np.uint64(number), 1, np.uint64(10)
    while n < least or rest >= power:
        n += 1
        power *= np.uint64(10)
    k = np.uint64(p + n)
    while rest >= np.uint64(100):  # two digits at a time, which is half the divisions
        above = rest // np.uint64(100)
        pair = (rest - np.uint64(100) * above) << np.uint64(1)
        k -= np.uint64(2)
        out[k], out[k + np.uint64(1)] = _PAIRS[pair], _PAIRS[pair + np.uint64(1)]
        rest = above
    while k > np.uint64(p):
        k -= np.uint64(1)
        out[k] = np.uint8(np.uint64(48) + rest % np.uint64(10))
        rest //= np.uint64(10)
    return p + n


@njit(nogil=True, error_model="numpy")
def _write_number(number, precision, others, other_ends, at, out, p):
    """Write a number, or the next of `others`; return the end and how many others were used."""
    a = abs(number)
    if a != 0.0 and not 1e-4 <= a < 1e15:
        for k in range(other_ends[at - 1] if at else 0, other_ends[at]):
            out[p] = others[k]
            p += 1
        return p, at + 1
    if np.float64(number).view(np.int64) < 0:  # also -0.0
        out[p] = 45
        p += 1
    whole, k = (np.int64(a), 0) if a == np.floor(a) else _shorten(a, precision)
    if k == 0:
        return _write_digits(whole, 1, out, p), at
    power = np.int64(TEN[k]) if k < 19 else np.int64(0)
    before = whole // power if power else np.int64(0)
    p = _write_digits(before, 1, out, p)
    out[p] = 46
    return _write_digits(whole - before * power, k, out, p + 1), at


@njit(nogil=True, error_model="numpy")
def write_lines(firsts, lengths, ids, values, precision, others, other_ends, next_other, out):
    """Write a line for each row: its first number, and ``ID:VALUE`` or values after blanks.

    Parameters
    ----------
    firsts : (n_rows,) float64
    lengths : (n_rows,) int32
        Values behind the first number.
    ids : (n,) int64
        From 0. Empty: values have no ids.
    values : (n,) float64
        Empty: all are 1.
    precision : int
        Bits of the significand of values: 24 or 53.
    others, other_ends : (n_bytes,) uint8, (n_others,) int64
        Text of the numbers other than 0 below 0.0001 or from 10^15, first those of `firsts`.
    next_other : int
        Number of others of `firsts`.
    out : uint8, filled in place

    Returns
    -------
    int
        Bytes written.
    """
    p, at, first = 0, 0, 0
    for i in range(len(firsts)):
        p, at = _write_number(firsts[i], 53, others, other_ends, at, out, p)
        for k in range(first, first + lengths[i]):
            out[p] = 32
            p += 1
            if len(ids):
                p = _write_digits(ids[k], 1, out, p)
                out[p] = 58
                p += 1
            if len(values):
                p, next_other = _write_number(
                    values[k], precision, others, other_ends, next_other, out, p
                )
            else:
                out[p] = 49
                p += 1
        first += lengths[i]
        out[p] = 10
        p += 1
    return p


@njit(nogil=True, error_model="numpy")
def write_words(codes, letters, ends, between, out):
    """Write a line for each row of a matrix of codes: the words that they stand for.

    Parameters
    ----------
    codes : (n_rows, n_words) int32
    letters, ends : (n_bytes,) uint8, (n_distinct,) int64
        Words, one after the other, and where they end.
    between : int
        Byte between the words of a line.
    out : uint8, filled in place

    Returns
    -------
    int
        Bytes written.
    """
    p, n_words = 0, codes.shape[1]
    for i in range(len(codes)):
        for j in range(n_words):
            code = codes[i, j]
            for k in range(ends[code - 1] if code else 0, ends[code]):
                out[p] = letters[k]
                p += 1
            out[p] = between
            p += 1
        out[p - 1] = 10
    return p
