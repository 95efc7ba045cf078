"""Compiled codec of rows: gathered, sorted, written as symbols and bits, and read again.

A row is its first index and the gaps behind it. A number x (a gap, or a row's length) becomes a
symbol, one byte that a later entropy coder shortens, and n bits that look random and stay as they
are. Symbols below 128 are the number itself. Above, with e the position of the leading one ::

    n = e - 2,   symbol = 104 + 4 n + floor(x / 2^n),   bits = x mod 2^n

so that a symbol holds the number's magnitude and its two bits behind the leading one, 128 to 227
for numbers up to 2^32 - 1. Bits of all numbers follow one another, lowest first, in one stream,
which ends with `SPARE` bytes of zeros because it is read eight bytes at a time.

Positions in the inner loops are unsigned: numba lets negative ones count from the end, and the
comparison that takes is a quarter of the time of decoding.

Given: rows as (starts, lengths, indices, values), or symbols and bits. In place: the other of them.
Returned: the length of the stream of bits, or whether it was sound.
Source: symbols as in deflate's lengths (RFC 1951, 3.2.5), of 32-bit numbers.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from sbm.store.kernels.sorting import heap_sort

__all__ = ["decode_numbers", "decode_rows", "encode_numbers", "encode_rows"]

SPARE = 8
_AHEAD = 12  # rows; hides the way to memory
_LANES = 16
_SHORT = 64  # longest row that is sorted by counting
_U0 = np.uint64(0)
_U7 = np.uint64(7)


def _symbol_table():
    """Return for each symbol the least number it stands for, and the bits behind it."""
    least, n_bits = np.full(256, 1 << 32), np.zeros(256, np.int64)  # what is no symbol is too large
    least[:128] = np.arange(128)
    above = np.arange(128, 228)
    n_bits[128:228] = (above - 108) >> 2
    least[128:228] = (4 + (above & 3)) << n_bits[128:228]
    return least, n_bits


_LEAST, _N_BITS = _symbol_table()


def _address(context, builder, signature, arguments, width):
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(width).as_pointer())


@intrinsic
def _load_word(typing_context, array, position):
    """Eight bytes of an array of bytes, from any position on, as a number."""

    def generate(context, builder, signature, arguments):
        return builder.load(_address(context, builder, signature, arguments, 64), align=1)

    return types.uint64(array, types.intp), generate


@intrinsic
def _store_word(typing_context, array, position, word):
    """Write a number over eight bytes of an array of bytes."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _address(context, builder, signature, arguments, 64), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), generate


@intrinsic
def _leading_zeros(typing_context, number):
    """How many of 64 bits stand before the leading one; 64 for 0."""

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def _are_below(typing_context, array, index, number):
    """Which of sixteen int32, from array[index] on, are less than a number: a bit for each."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(32)
        vector = ir.VectorType(word, _LANES)
        address = _address(context, builder, signature, arguments, 32)
        numbers = builder.load(builder.bitcast(address, vector.as_pointer()), align=4)
        first = builder.insert_element(vector(ir.Undefined), arguments[2], word(0))
        same = builder.shuffle_vector(first, vector(ir.Undefined), vector([0] * _LANES))
        less = builder.icmp_signed("<", numbers, same)
        return builder.zext(builder.bitcast(less, ir.IntType(_LANES)), ir.IntType(64))

    return types.int64(array, types.intp, types.int32), generate


@intrinsic
def _count_ones(typing_context, bits):
    """How many bits of a number are set."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


@intrinsic
def _prefetch(typing_context, array, index):
    """Ask for the cache line of array[index]; no effect but on time."""

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, signature, arguments, 8)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, word(0), word(3), word(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


# -------------------------------------------------------------------------------- numbers


@njit(nogil=True, error_model="numpy")
def _symbol_of(x):
    """Return the symbol of a number and how many bits follow."""
    above = np.int64(x >= 128)
    n = above * (61 - _leading_zeros(np.uint64(x)))
    return np.uint8((x >> n) + above * 104 + 4 * n), n


@njit(nogil=True, error_model="numpy")
def _put(bits, at, kept, fill, x, n):
    """Append the n low bits of x; `kept` holds the `fill` < 8 bits that make no byte yet.

    Returns the next (at, kept, fill).
    """
    kept |= (np.uint64(x) & ((np.uint64(1) << np.uint64(n)) - np.uint64(1))) << np.uint64(fill)
    _store_word(bits, at, kept)
    fill += n
    return at + (fill >> 3), kept >> np.uint64(fill & ~7), fill & 7


@njit(nogil=True, error_model="numpy")
def _close(bits, at, kept, fill):
    """Write what is kept and the spare bytes; return the bytes of the stream."""
    _store_word(bits, at, kept)
    at += fill > 0
    _store_word(bits, at, _U0)
    return at + SPARE


@njit(nogil=True, error_model="numpy")
def _get(bits, position, last, n):
    """The n bits from a position on; `last` is where the last word begins, read at the most."""
    word = _load_word(bits, min(position >> 3, last)) >> np.uint64(position & 7)
    return np.int64(word & ((np.uint64(1) << np.uint64(n)) - np.uint64(1)))


@njit(nogil=True, error_model="numpy")
def _is_end(bits, position):
    """Whether a stream that was read up to a position ends there."""
    return ((position + 7) >> 3) + SPARE == len(bits)


@njit(nogil=True, error_model="numpy")
def encode_numbers(numbers, symbols, bits):
    """Write numbers as symbols and bits.

    Parameters
    ----------
    numbers : (n,) int32, none negative
    symbols : (n,) uint8, filled in place
    bits : (at least 4 n + 16,) uint8, filled in place

    Returns
    -------
    n_bytes : int
        Bytes of the stream of bits.
    """
    at, kept, fill = np.int64(0), _U0, np.int64(0)
    for i in range(len(numbers)):
        x = np.int64(numbers[i])
        symbols[i], n = _symbol_of(x)
        at, kept, fill = _put(bits, at, kept, fill, x, n)
    return _close(bits, at, kept, fill)


@njit(nogil=True, error_model="numpy")
def decode_numbers(symbols, bits, limit, out):
    """Undo `encode_numbers`; return whether the stream is as long as it should be.

    Parameters
    ----------
    symbols : (n,) uint8
    bits : (at least SPARE,) uint8
    limit : int
        Every number must be below.
    out : (n,) int32, filled in place
    """
    position, last = np.int64(0), len(bits) - SPARE
    valid = True
    for i in range(len(symbols)):
        n = _N_BITS[symbols[i]]
        x = _LEAST[symbols[i]] + _get(bits, position, last, n)
        position += n
        valid &= x < limit
        out[i] = x
    return valid and _is_end(bits, position)


# ----------------------------------------------------------------------------------- rows


@njit(nogil=True, error_model="numpy")
def _sort_into(indices, values, begin, length, ordered, out_values):
    """Write a row's indices to ordered[:length] in increasing order, its values alongside.

    An index goes to the place that is the number of smaller ones. To count them all is quadratic,
    but takes sixteen at a time and no branch. The last sixteen may reach into the next row, which
    is there to be read but does not count; at the end of the array it is not there.
    """
    if length > _SHORT or begin + length + _LANES > len(indices):
        for j in range(length):
            ordered[j] = indices[begin + j]
            if values is not None:
                out_values[j] = values[begin + j]
        heap_sort(ordered, out_values, values is not None, 0, length)
        return
    first = (np.int64(1) << min(length, _LANES)) - 1
    for j in range(begin, begin + length):
        index = indices[np.uint64(j)]
        rank = _count_ones(_are_below(indices, begin, index) & first)
        for lanes in range(_LANES, length, _LANES):
            own = (np.int64(1) << min(length - lanes, _LANES)) - 1
            rank += _count_ones(_are_below(indices, begin + lanes, index) & own)
        ordered[np.uint64(rank)] = index
        if values is not None:
            out_values[np.uint64(rank)] = values[np.uint64(j)]


@njit(nogil=True, error_model="numpy")
def encode_rows(starts, lengths, indices, values, rows, ordered, symbols, bits, out_values):
    """Write the gaps of the chosen rows as symbols and bits, and copy their values.

    Parameters
    ----------
    starts, lengths : (n_rows,) int64 and int32
    indices : int32
        Distinct within a row, in any order.
    values : float or None
        None when all are 1.
    rows : (n_chosen,) int64
        Which rows, in which order.
    ordered : (at least the longest row,) int32
        Scratch.
    symbols : (nnz,) uint8, filled in place
    bits : (at least 4 nnz + 16,) uint8, filled in place
    out_values : (nnz,) float, filled in place, or None

    Returns
    -------
    n_bytes : int
        Bytes of the stream of bits.
    """
    at, kept, fill = np.int64(0), _U0, np.int64(0)
    k = 0
    for i in range(len(rows)):
        if i + 2 * _AHEAD < len(rows):
            _prefetch(starts, rows[i + 2 * _AHEAD])
            _prefetch(lengths, rows[i + 2 * _AHEAD])
        if i + _AHEAD < len(rows):
            _prefetch(indices, starts[rows[i + _AHEAD]])
            _prefetch(indices, starts[rows[i + _AHEAD]] + _LANES)
        begin, length = starts[rows[i]], np.int64(lengths[rows[i]])
        sorted_values = None if values is None else out_values[k : k + length]
        _sort_into(indices, values, begin, length, ordered, sorted_values)
        previous = np.int64(-1)
        for j in range(length):
            index = np.int64(ordered[np.uint64(j)])
            gap = index - previous - 1
            previous = index
            symbol, n = _symbol_of(gap)
            symbols[np.uint64(k)] = symbol
            at, kept, fill = _put(bits, at, kept, fill, gap, n)
            k += 1
    return _close(bits, at, kept, fill)


@njit(nogil=True, error_model="numpy")
def decode_rows(symbols, bits, lengths, n_features, out):
    """Undo `encode_rows` but for the values; return whether these are rows of known features.

    Parameters
    ----------
    symbols : (nnz,) uint8
    bits : (at least SPARE,) uint8
    lengths : (n_rows,) int32
    n_features : int
        Every index must be below.
    out : (nnz,) int32, filled in place
    """
    position, last = np.int64(0), len(bits) - SPARE
    k = np.int64(0)
    for i in range(len(lengths)):
        index = np.int64(-1)
        end = k + lengths[i]
        if end > len(symbols) or lengths[i] < 0:
            return False
        while k < end:
            symbol = symbols[np.uint64(k)]
            n = _N_BITS[symbol]
            index += 1 + _LEAST[symbol] + _get(bits, position, last, n)
            position += n
            out[np.uint64(k)] = index
            k += 1
        if index >= n_features:
            return False
    return k == len(symbols) and _is_end(bits, position)
