"""Exponentials and logarithms made of arithmetic, for kernels to inline.

A call of the C library costs a kernel its registers and keeps the processor from beginning with the
next row. These are some twenty multiplications and additions each, fused where the processor can,
and have no branches, so that visits overlap.

Polynomials are near the best of their degree: they interpolate at Chebyshev's points, with an error
below 2e-17.
"""

import math

import numpy as np
from numba import njit

__all__ = ["exp", "log1p", "log_ratio"]

_FUSED = {"contract"}  # a product and a sum in one instruction

_PER_LOG2 = 1.0 / math.log(2.0)
_LOG2 = math.log(2.0)
# log 2 in two parts; products of the first with exponents are exact.
_LOG2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LOG2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_ROUND = 1.5 * 2.0**52  # added and taken away again it rounds to whole numbers

_MANTISSA = np.int64(2**52 - 1)
_ONE = np.int64(1023 << 52)  # the bits of 1.0
_52 = np.int64(52)

_LOWEST = -708.0  # exp of less is not normal
_HIGHEST = 708.0

# (exp(r) - 1 - r) / r² for |r| ≤ ½ log 2
_EXP = (
    0.5000000000000001, 0.16666666666666669, 0.04166666666662413, 0.008333333333330062,
    0.0013888888917213717, 0.00019841269863053618, 2.4801521295954376e-05, 2.7557268459997064e-06,
    2.7620088445409746e-07, 2.510038549551032e-08,
)  # fmt: skip
# (log((1 + s) / (1 - s)) - 2 s) / s³ as a polynomial in s², for |s| ≤ 1/3
_LOG = (
    0.6666666666666666, 0.40000000000014585, 0.2857142856710876, 0.22222222717427864,
    0.18181789436132859, 0.15385570064958623, 0.13314144209654935, 0.12001072809590713,
    0.08800738486144674, 0.16164045611943534,
)  # fmt: skip


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def _polynomial(c, x):
    """Σ c_k x^k of ten coefficients, in a tree: the shorter wait matters more than the work."""
    x2 = x * x
    x4 = x2 * x2
    low = (c[0] + c[1] * x) + (c[2] + c[3] * x) * x2
    high = (c[4] + c[5] * x) + (c[6] + c[7] * x) * x2
    return low + (high + (c[8] + c[9] * x) * x4) * x4


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def exp(x):
    """e^x to 2e-16 of it; x is brought into -708 to 708."""
    x = min(max(x, _LOWEST), _HIGHEST)
    shifted = x * _PER_LOG2 + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LOG2_HIGH) - k * _LOG2_LOW
    power = (np.float64(shifted).view(np.int64) << _52) + _ONE  # its low bits are those of k
    return (1.0 + (r + r * r * _polynomial(_EXP, r))) * np.int64(power).view(np.float64)


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def _log_around_1(s):
    """Return log((1 + s) / (1 - s)) for |s| ≤ 1/3, to 2e-16 of it."""
    q = s * s
    return s * (2.0 + q * _polynomial(_LOG, q))


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def log1p(x):
    """Return log(1 + x) for 0 ≤ x ≤ 1, to 5e-16 of it."""
    return _log_around_1(x / (2.0 + x))


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def log_ratio(a, b):
    """Return log(a / b), to 4e-16 of it or of 1; a and b are positive and normal."""
    a_bits = np.float64(a).view(np.int64)
    b_bits = np.float64(b).view(np.int64)
    exponent = (a_bits >> _52) - (b_bits >> _52)
    a = np.int64((a_bits & _MANTISSA) | _ONE).view(np.float64)
    b = np.int64((b_bits & _MANTISSA) | _ONE).view(np.float64)
    return np.float64(exponent) * _LOG2 + _log_around_1((a - b) / (a + b))
