"""Compiled conversion of decimal numbers to float64, and loads of several bytes at once.

Source: Lemire 2021 and Mushtak & Lemire 2023; see each function.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


def _powers_of_five():
    """Return the leading 128 bits of 5^q for q in [-342, 308], high and low words.

    Negative powers are rounded up and positive ones down, as the error bound of the conversion
    requires (Lemire, "Number parsing at a gigabyte per second", 2021, section 5).
    """
    high, low = [], []
    for q in range(-342, 309):
        if q < 0:
            divisor = 5**-q
            bits = divisor.bit_length()
            power = 2 ** (bits + 127 if q >= -27 else 2 * bits + 128) // divisor + 1
        else:
            power = 5**q << 128
        power >>= power.bit_length() - 128
        high.append(power >> 64)
        low.append(power & (2**64 - 1))
    return np.array(high, dtype=np.uint64), np.array(low, dtype=np.uint64)


_FIVE_HIGH, _FIVE_LOW = _powers_of_five()
TEN = np.array([float(10**k) for k in range(23)])  # exact in float64

_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U9 = np.uint64(9)
_U32 = np.uint64(32)
_U63 = np.uint64(63)
_LOW32 = np.uint64(0xFFFFFFFF)
_LOW9 = np.uint64(0x1FF)
_BIT52 = np.uint64(1 << 52)
_BIT53 = np.uint64(1 << 53)
ZEROS = np.uint64(0x3030303030303030)  # the word "00000000"
_LOW7S = np.uint64(0x7F7F7F7F7F7F7F7F)
ABOVE_9 = np.uint64(0x7676767676767676)  # adding it to ten or more sets the top bit
TOPS = np.uint64(0x8080808080808080)


@njit(nogil=True, error_model="numpy")
def _multiply(a, b):
    """Return the high and low words of the 128-bit product of two uint64."""
    a0, a1 = a & _LOW32, a >> _U32
    b0, b1 = b & _LOW32, b >> _U32
    low = a0 * b0
    middle = a1 * b0 + (low >> _U32)
    cross = a0 * b1 + (middle & _LOW32)
    return a1 * b1 + (middle >> _U32) + (cross >> _U32), (cross << _U32) | (low & _LOW32)


@njit(nogil=True, error_model="numpy")
def nearest_double(w, q):
    """Return the bits of the float64 nearest to w 10^q; w > 0, q <= 308.

    Multiplies the normalised decimal significand by 128 bits of 5^q (Lemire 2021, algorithm 1).
    Mushtak and Lemire, "Fast number parsing without fallback", 2023, prove that these bits suffice.
    """
    if q < -342:
        return _U0
    shift = 0
    while w >> _U63 == _U0:
        w <<= _U1
        shift += 1
    high, low = _multiply(w, _FIVE_HIGH[q + 342])
    if high & _LOW9 == _LOW9:
        extra, _ = _multiply(w, _FIVE_LOW[q + 342])
        low += extra
        if low < extra:
            high += _U1
    upper = high >> _U63
    drop = upper + _U9
    mantissa = high >> drop
    exponent = ((217706 * q) >> 16) + 63 + np.int64(upper) - shift + 1023
    if exponent <= 0:
        if exponent <= -63:
            return _U0
        mantissa >>= np.uint64(1 - exponent)
        # A carry into bit 52 gives the correct exponent 1.
        return (mantissa + (mantissa & _U1)) >> _U1
    if low <= _U1 and -4 <= q <= 23 and mantissa & np.uint64(3) == _U1 and mantissa << drop == high:
        mantissa &= ~_U1  # exactly half way: round to even
    mantissa = (mantissa + (mantissa & _U1)) >> _U1
    if mantissa >= _BIT53:
        mantissa = _BIT52
        exponent += 1
    if exponent >= 2047:
        return np.uint64(0x7FF0000000000000)
    return (mantissa & ~_BIT52) | (np.uint64(exponent) << np.uint64(52))


@intrinsic
def load_word(typing_context, array, position):
    """Load eight bytes from any position of a byte array as an integer."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.gep(data, [arguments[1]])
        return builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(array, types.intp), generate


@intrinsic
def as_float(typing_context, bits):
    """Return the float64 with the given bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@intrinsic
def trailing_zeros(typing_context, number):
    """Return the number of trailing zero bits of a 64-bit integer; 64 for 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@njit(nogil=True, error_model="numpy", forceinline=True)
def load_digits(text, p):
    """Load eight bytes of text[p:] for `join_digits`; return them and how many begin as digits.

    A byte is not a digit if its top bit is set in `others`.
    """
    word = load_word(text, p) ^ ZEROS
    others = (((word & _LOW7S) + ABOVE_9) | word) & TOPS
    return word, np.int64(trailing_zeros(others) >> np.uint64(3))


@njit(nogil=True, error_model="numpy", forceinline=True)
def join_digits(word, n):
    """Return the number that the first n digits of `load_digits` are, 1 to 8.

    They are shifted to the end of the word, after zeros, and combined to pairs, fours and eight
    (method of Lemire and Mula, as in simdjson).
    """
    return join_shifted(word << np.uint64(64 - 8 * n))


@njit(nogil=True, error_model="numpy", forceinline=True)
def join_shifted(word):
    """Return the number that the bytes of a word are, from digits without their upper bits."""
    word = ((word * np.uint64(2561)) >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    word = ((word * np.uint64(6553601)) >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    return (word * np.uint64(42949672960001)) >> _U32


@njit(nogil=True, error_model="numpy", forceinline=True)
def line_end(text, p):
    """Return the position of the first newline from p on.

    Of eight bytes, those that are newlines become 0, and keep no bit after the sum.
    """
    while True:
        word = load_word(text, p) ^ np.uint64(0x0A0A0A0A0A0A0A0A)
        found = ~(((word & _LOW7S) + _LOW7S) | word | _LOW7S)
        if found != _U0:
            return p + np.int64(trailing_zeros(found) >> np.uint64(3))
        p += 8
