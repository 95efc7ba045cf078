"""Compiled codec of rows: gather, sort, encode as symbols and bits, and decode.

A row is its first index and the gaps between its indices. A number x (a gap or
a row length) becomes a one-byte symbol, which an entropy coder compresses, and n nearly random
bits, which are stored raw. Symbols below 128 are the number itself. Above, with e the position of
the leading one ::

    n = e - 2,   symbol = 104 + 4 n + floor(x / 2^n),   bits = x mod 2^n

so a symbol has the number's magnitude and the two bits after the leading one; symbols are 128 to
227 for numbers up to 2^32 - 1. The bits of all numbers form one stream, lowest first, followed by
`SPARE` zero bytes because the stream is read eight bytes at a time.

Positions in the inner loops are unsigned: for signed ones numba checks for negative positions,
which takes a quarter of the decoding time.

Given: rows as (starts, lengths, indices, values), or symbols and bits. In place: the other ones.
Returned: the length of the bit stream, or whether it is valid.
Source: symbols as in deflate's lengths (RFC 1951, 3.2.5), of 32-bit numbers.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from sbm.store.kernels.sorting import radix_sort

SPARE = 8
_AHEAD = 12  # rows to prefetch; hides memory latency
_LANES = 16
_SHORT = 64  # longest row sorted by counting
_U0 = np.uint64(0)
_U32 = np.uint64(32)
_LOW32 = np.uint64(0xFFFFFFFF)


def _symbol_table():
    """Return the least number of each symbol, and the number of bits that follow it."""
    least, n_bits = np.full(256, 1 << 32), np.zeros(256, np.int64)  # invalid symbols: too large
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
    """Read eight bytes at any position as a number."""

    def generate(context, builder, signature, arguments):
        return builder.load(_address(context, builder, signature, arguments, 64), align=1)

    return types.uint64(array, types.intp), generate


@intrinsic
def _store_word(typing_context, array, position, word):
    """Write a number to eight bytes at any position."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _address(context, builder, signature, arguments, 64), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), generate


@intrinsic
def _leading_zeros(typing_context, number):
    """Count leading zeros of 64 bits; 64 for 0."""

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def _are_below(typing_context, array, index, number):
    """Compare sixteen int32 starting at array[index] with a number; a bit is set if less."""

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
    """Count the set bits of a number."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


@intrinsic
def _prefetch(typing_context, array, index):
    """Prefetch the cache line of array[index]."""

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
    """Return the symbol of a number and the number of bits that follow."""
    above = np.int64(x >= 128)
    n = above * (61 - _leading_zeros(np.uint64(x)))
    return np.uint8((x >> n) + above * 104 + 4 * n), n


@njit(nogil=True, error_model="numpy")
def _put(bits, at, kept, fill, x, n):
    """Append the n low bits of x; `kept` has the `fill` < 8 bits of an incomplete byte.

    Returns the next (at, kept, fill).
    """
    kept |= (np.uint64(x) & ((np.uint64(1) << np.uint64(n)) - np.uint64(1))) << np.uint64(fill)
    _store_word(bits, at, kept)
    fill += n
    return at + (fill >> 3), kept >> np.uint64(fill & ~7), fill & 7


@njit(nogil=True, error_model="numpy")
def _close(bits, at, kept, fill):
    """Write the incomplete byte and the spare bytes; return the size of the stream in bytes."""
    _store_word(bits, at, kept)
    at += fill > 0
    _store_word(bits, at, _U0)
    return at + SPARE


@njit(nogil=True, error_model="numpy")
def _get(bits, position, last, n):
    """Return n bits at a position; `last` is the largest position of a word to read."""
    word = _load_word(bits, min(position >> 3, last)) >> np.uint64(position & 7)
    return np.int64(word & ((np.uint64(1) << np.uint64(n)) - np.uint64(1)))


@njit(nogil=True, error_model="numpy")
def _is_end(bits, position):
    """Whether a stream ends at the given position."""
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
    """Decode the result of `encode_numbers`; return whether the stream has the right length.

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
def _sort_short(indices, values, begin, length, k, out_indices, out_values):
    """Write a short row's indices in increasing order from out_indices[k], values alongside.

    The position of an index is the number of smaller indices. Counting them is quadratic, but
    compares sixteen at a time without branches. The last sixteen may reach into the next row,
    whose indices are not counted.
    """
    first = (np.int64(1) << min(length, _LANES)) - 1
    for j in range(begin, begin + length):
        index = indices[np.uint64(j)]
        rank = k + _count_ones(_are_below(indices, begin, index) & first)
        for lanes in range(_LANES, length, _LANES):
            own = (np.int64(1) << min(length - lanes, _LANES)) - 1
            rank += _count_ones(_are_below(indices, begin + lanes, index) & own)
        out_indices[np.uint64(rank)] = index
        if values is not None:
            out_values[np.uint64(rank)] = values[np.uint64(j)]


@njit(nogil=True, error_model="numpy")
def _sort_long(indices, values, begin, length, k, out_indices, out_values, words, counts):
    """As `_sort_short`, for rows of any length: copy a sorted row, sort others by radix.

    A word is an index and the position of its value.
    """
    ascending, previous, largest = True, np.int32(-1), np.int32(0)
    for j in range(length):
        index = indices[np.uint64(begin + j)]
        words[np.uint64(j)] = (np.uint64(index) << _U32) | np.uint64(j)
        ascending &= index > previous
        largest = max(largest, index)
        previous = index
    at = _U0
    if not ascending:
        at = radix_sort(words, length, 32, 64 - _leading_zeros(np.uint64(largest)), counts)
    for j in range(length):
        word = words[at + np.uint64(j)]
        out_indices[np.uint64(k + j)] = word >> _U32
        if values is not None:
            out_values[np.uint64(k + j)] = values[np.uint64(begin) + (word & _LOW32)]


@njit(nogil=True, error_model="numpy")
def gather_rows(starts, indices, values, rows, lengths, out_indices, out_values, words, counts):
    """Copy the chosen rows one after the other, each sorted by index.

    Parameters
    ----------
    starts : (n_rows,) int64
    indices : int32
        Distinct within a row, in any order.
    values : float or None
        None when all are 1.
    rows, lengths : (n_chosen,) int64, int32
        Which rows, in which order, and the nonzeros of each.
    out_indices : (nnz,) int32, filled in place
    out_values : (nnz,) float, filled in place, or None
    words : (at least twice the longest row,) uint64
        Scratch.
    counts : (256,) int64
        Scratch.
    """
    k = np.int64(0)
    for i in range(len(rows)):
        if i + 2 * _AHEAD < len(rows):
            _prefetch(starts, rows[i + 2 * _AHEAD])
        if i + _AHEAD < len(rows):
            _prefetch(indices, starts[rows[i + _AHEAD]])
            _prefetch(indices, starts[rows[i + _AHEAD]] + _LANES)
        begin, length = starts[rows[i]], np.int64(lengths[i])
        if length <= _SHORT and begin + length + _LANES <= len(indices):
            _sort_short(indices, values, begin, length, k, out_indices, out_values)
        else:
            _sort_long(indices, values, begin, length, k, out_indices, out_values, words, counts)
        k += length


@njit(nogil=True, error_model="numpy")
def encode_rows(lengths, indices, symbols, bits):
    """Write the gaps of sorted rows as symbols and bits.

    Parameters
    ----------
    lengths : (n_rows,) int32
    indices : (nnz,) int32
        Increasing within a row.
    symbols : (nnz,) uint8, filled in place
    bits : (at least 4 nnz + 16,) uint8, filled in place

    Returns
    -------
    n_bytes : int
        Bytes of the stream of bits.
    """
    at, kept, fill = np.int64(0), _U0, np.int64(0)
    k = np.int64(0)
    for i in range(len(lengths)):
        previous = np.int64(-1)
        for _ in range(lengths[i]):
            index = np.int64(indices[np.uint64(k)])
            gap = index - previous - 1
            previous = index
            symbol, n = _symbol_of(gap)
            symbols[np.uint64(k)] = symbol
            at, kept, fill = _put(bits, at, kept, fill, gap, n)
            k += 1
    return _close(bits, at, kept, fill)


@njit(nogil=True, error_model="numpy")
def decode_rows(symbols, bits, lengths, n_features, out):
    """Decode the result of `encode_rows`, except values; return whether all indices are valid.

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
