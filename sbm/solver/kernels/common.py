"""Code shared by the kernels: a row times weights, signs and costs, a step in a box, a gap.

Rows are given as ::

    starts, lengths    (n,) int64, int32: row i has nonzeros starts[i] to starts[i] + lengths[i]
    indices, values    int32, float32 or float64; `values` None if all are 1

Positions read from memory are converted to unsigned: numba checks signed ones for negative values,
which takes a third of the time of a visit.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "GOLDEN", "OUT", "add", "add_damped", "add_sums", "begin_round",
    "chunk_size", "damped_square", "dot", "dot_within", "equal_parts", "exp", "hinge_gap",
    "hinge_gap_within", "is_settled", "is_solved", "list_awake", "log1p", "log_ratio", "mix",
    "permute", "prefetch", "prefetch_ahead", "prefetch_coming", "prefetch_row", "rest_longer",
    "rounding", "sign_and_cost", "step_in_box", "trailing_zeros", "weight_of",
]  # fmt: skip


_AHEAD = 3  # visits; weights are prefetched at most as far ahead
_LEAST_CHUNKS = 8192
_CHUNKS_AHEAD = np.uint64(4)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # increment of splitmix64


@njit(nogil=True, error_model="numpy")
def mix(x):
    """Finisher of the splitmix64 generator: every bit of x changes half of the result's."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, error_model="numpy")
def _shuffle(order, n, x):
    """Shuffle order[:n]; see `permute`."""
    for i in range(n - 1, 0, -1):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
        j = np.int64((x >> np.uint64(33)) % np.uint64(i + 1))
        order[i], order[j] = order[j], order[i]
    return x


@njit(nogil=True, error_model="numpy")
def permute(order, n, x):
    """Write a random permutation to order[:n]; x, not 0, seeds xorshift64; return its next x."""
    for k in range(n):
        order[k] = k
    return _shuffle(order, n, x)


@njit(nogil=True, error_model="numpy")
def chunk_size(n, chunk):
    """Return the rows per chunk: a power of 2, smaller than `chunk` if there are few rows."""
    size = np.int64(chunk)
    while size > 1 and n <= _LEAST_CHUNKS * size >> 1:
        size >>= 1
    return size


@njit(nogil=True, error_model="numpy")
def list_awake(order, chunks, size, state, rest, awake):
    """List the rows of some chunks that are not at rest; return their number.

    The others are left alone for a turn. Few rows are shuffled one by one.

    Parameters
    ----------
    order : (chunks,) int32
        Chunks, in the order of visits.
    chunks, size : int
        Rows per chunk.
    state : (1,) uint64, in place
        Random generator.
    rest : (n,) uint8, in place
        See `rest_longer`.
    awake : (chunks * size,) int32
        Output.
    """
    places = 0
    for k in range(np.uint64(chunks)):
        if k + _CHUNKS_AHEAD < chunks:
            prefetch(rest, np.int64(order[k + _CHUNKS_AHEAD]) * size)
        first = np.int64(order[k]) * size
        for i in range(first, min(first + size, len(rest))):
            turns = rest[i] & np.uint8(15)
            rest[i] -= (turns > 0) & (rest[i] != OUT)
            awake[places] = i
            places += turns == 0
    if size > 1 and places <= _LEAST_CHUNKS:
        state[0] = _shuffle(awake, places, state[0])
    return places


@njit(nogil=True, error_model="numpy")
def begin_round(order, chunk, state, rest, awake):
    """List the rows to visit in a round in `awake`; return their number.

    They come in chunks in random order.

    Parameters
    ----------
    order : (room_for_order(n, chunk),) int32
        Scratch.
    chunk : int
        Most rows per chunk, a power of 2.
    state, rest, awake
        As for `list_awake`.
    """
    size = chunk_size(len(rest), chunk)
    chunks = (len(rest) + size - 1) // size
    state[0] = permute(order, chunks, state[0])
    return list_awake(order, chunks, size, state, rest, awake)


@njit(nogil=True, error_model="numpy")
def is_settled(r, worst, inner_tol):
    """Whether no round needs to follow round r with this largest violation."""
    return worst == 0.0 or (r == 0 and worst <= inner_tol)


@njit(nogil=True, error_model="numpy")
def is_solved(gap, stop, dual_sum, w):
    """Whether a gap is at most `stop` of the dual value; `dual_sum` is Σ d_i, w any array."""
    square = 0.0
    for x in w.flat:
        square += x * x
    return gap <= stop * abs(dual_sum - 0.5 * square)


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
    """Return Σ c_k x^k of ten coefficients, summed in a tree for low latency."""
    x2 = x * x
    x4 = x2 * x2
    low = (c[0] + c[1] * x) + (c[2] + c[3] * x) * x2
    high = (c[4] + c[5] * x) + (c[6] + c[7] * x) * x2
    return low + (high + (c[8] + c[9] * x) * x4) * x4


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def exp(x):
    """Return e^x with relative error 2e-16; x is clipped to -708 to 708."""
    x = min(max(x, _LOWEST), _HIGHEST)
    shifted = x * _PER_LOG2 + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LOG2_HIGH) - k * _LOG2_LOW
    power = (np.float64(shifted).view(np.int64) << _52) + _ONE  # its low bits are those of k
    return (1.0 + (r + r * r * _polynomial(_EXP, r))) * np.int64(power).view(np.float64)


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def _log_around_1(s):
    """Return log((1 + s) / (1 - s)) for |s| ≤ 1/3, with relative error 2e-16."""
    q = s * s
    return s * (2.0 + q * _polynomial(_LOG, q))


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def log1p(x):
    """Return log(1 + x) for 0 ≤ x ≤ 1, with relative error 5e-16."""
    return _log_around_1(x / (2.0 + x))


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_FUSED)
def log_ratio(a, b):
    """Return log(a / b) with absolute or relative error 4e-16; a and b are positive and normal."""
    a_bits = np.float64(a).view(np.int64)
    b_bits = np.float64(b).view(np.int64)
    exponent = (a_bits >> _52) - (b_bits >> _52)
    a = np.int64((a_bits & _MANTISSA) | _ONE).view(np.float64)
    b = np.int64((b_bits & _MANTISSA) | _ONE).view(np.float64)
    return np.float64(exponent) * _LOG2 + _log_around_1((a - b) / (a + b))


_HALF_ULP = 2.0**-53  # relative error of one operation


@intrinsic
def prefetch(typing_context, array, index):
    """Prefetch the cache line of array[index]."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, word(0), word(3), word(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def trailing_zeros(typing_context, word):
    """Return the number of zeros below the lowest bit that is set; the word is not 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic
def equal_parts(typing_context, words, index, part):
    """Return 16 bits: which parts, of 16 bits each, of four uint64 from words[index] on are equal.

    These are a few instructions on vectors.
    """

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        kind = ir.VectorType(ir.IntType(16), 16)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), kind.as_pointer())
        parts = builder.load(address, align=8)
        first = builder.insert_element(
            ir.Constant(kind, ir.Undefined),
            builder.trunc(arguments[2], ir.IntType(16)),
            ir.IntType(32)(0),
        )
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), 16), [0] * 16)
        wanted = builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), lanes)
        bits = builder.bitcast(builder.icmp_unsigned("==", parts, wanted), ir.IntType(16))
        return builder.zext(bits, ir.IntType(64))

    return types.uint64(words, types.intp, types.uint64), generate


@njit(nogil=True, error_model="numpy", forceinline=True)
def prefetch_coming(awake, s, places, starts, lengths, y, indices, alpha, score):
    """Prefetch the nonzeros of a row that is visited soon after visit s, and a later one's entries.

    Rows come in random order, so the processor cannot foresee them. `alpha` is any array that a
    visit reads first.
    """
    later = s + 3 * _AHEAD
    if later >= places:
        return
    i = np.int64(awake[later])
    prefetch(starts, i)
    prefetch(lengths, i)
    prefetch(alpha, i)
    prefetch(score, i)
    if y is not None:
        prefetch(y, i)
    i = np.uint64(awake[s + 2 * _AHEAD])
    begin = np.int64(starts[i])
    prefetch(indices, begin)
    prefetch(indices, begin + np.int64(lengths[i]) - 1)


@njit(nogil=True, error_model="numpy", forceinline=True)
def prefetch_row(w, indices, starts, lengths, row):
    """Prefetch the weights of one row."""
    q = np.uint64(row)
    begin = np.uint64(starts[q])
    for p in range(begin, begin + np.uint64(lengths[q])):
        prefetch(w, np.int64(indices[p]))


@njit(nogil=True, error_model="numpy", forceinline=True)
def prefetch_ahead(w, indices, starts, lengths, i, n, ahead):
    """Prefetch the weights of row i + ahead, of n rows; i and n are unsigned."""
    if ahead > 0 and i + np.uint64(ahead) < n:
        prefetch_row(w, indices, starts, lengths, i + np.uint64(ahead))


@njit(nogil=True, error_model="numpy", forceinline=True)
def weight_of(i, weight):
    """Return the weight of a row, or the only one, which is that of all rows; i is unsigned.

    This takes about 1 % of a visit of a short row, ``i * (len(weight) > 1)`` and
    ``min(i, len(weight) - 1)`` about 2 %, a branch a fifth.
    """
    step = np.uint64(min(len(weight) - 1, 1))
    return weight[i * step]


@njit(nogil=True, error_model="numpy", forceinline=True)
def sign_and_cost(i, y, weight, positive, cost_positive, cost_negative):
    """Return (±1.0, C_i, 1 / C_i) of a row of two classes."""
    is_positive = y[i] == positive
    C = (cost_positive if is_positive else cost_negative) * weight_of(i, weight)
    return 1.0 if is_positive else -1.0, C, 1.0 / C


@njit(nogil=True, error_model="numpy", forceinline=True)
def dot(indices, values, begin, end, w, z, a):
    """Return (z + w·x, a + x·x) for one row."""
    if values is None:
        for p in range(begin, end):
            z += w[np.uint32(indices[p])]
        a += float(end - begin)
    else:
        for p in range(begin, end):
            v = np.float64(values[p])
            z += v * w[np.uint32(indices[p])]
            a += v * v
    return z, a


@njit(nogil=True, error_model="numpy", forceinline=True)
def rounding(n, size):
    """Return a bound on the error of a sum of `n` products, and a few operations, of `size`."""
    return (np.float64(n) + 4.0) * _HALF_ULP * size


@njit(nogil=True, error_model="numpy", forceinline=True)
def dot_within(indices, values, begin, end, w, z):
    """Return z + w·x for one row, a bound on its rounding error, and |x|²; z is one product, or 0.

    The other sums wait for nothing that the first one does not wait for, so they take no time.
    """
    size = abs(z)
    square = 0.0
    if values is None:
        for p in range(begin, end):
            product = w[np.uint32(indices[p])]
            z += product
            size += abs(product)
        square = np.float64(end - begin)
    else:
        for p in range(begin, end):
            x = np.float64(values[p])
            product = x * w[np.uint32(indices[p])]
            z += product
            size += abs(product)
            square += x * x
    return z, rounding(end - begin, size), square


@njit(nogil=True, error_model="numpy", forceinline=True)
def add(indices, values, begin, end, w, step):
    """Add step times one row to w."""
    if values is None:
        for p in range(begin, end):
            w[np.uint32(indices[p])] += step
    else:
        for p in range(begin, end):
            w[np.uint32(indices[p])] += step * np.float64(values[p])


_MOST_REST = np.uint8(8)
OUT = np.uint8(255)  # at rest until the last round


@njit(nogil=True, error_model="numpy", forceinline=True)
def damped_square(indices, values, begin, end, damping, code):
    """Return Σ damping x² of one row."""
    a = 0.0
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        a += v * v * damping[code[np.uint32(indices[p])]]
    return a


@njit(nogil=True, error_model="numpy", forceinline=True)
def add_damped(indices, values, begin, end, w, step, damping, code):
    """Add step times one row to w, each entry times its damping."""
    for p in range(begin, end):
        j = np.uint32(indices[p])
        v = step if values is None else step * np.float64(values[p])
        w[j] += v * damping[code[j]]


@njit(nogil=True, error_model="numpy", forceinline=True)
def rest_longer(rest, is_at_rest):
    """Return how a row is left alone after a visit: the turns to skip, + 16 times their period.

    A row at rest skips 1, then 3, then 7 turns.
    """
    if not is_at_rest:
        return np.uint8(0)
    period = min(_MOST_REST, np.uint8(2) * max(np.uint8(1), rest >> np.uint8(4)))
    return np.uint8((period << np.uint8(4)) + period - np.uint8(1))


@njit(nogil=True, error_model="numpy", forceinline=True)
def step_in_box(G, alpha, upper, curvature):
    """Return (new α, violation, score) of a Newton step in 0 ≤ α ≤ upper.

    The step is exact (Hsieh et al. 2008, equation 9). The violation is the size of the projected
    gradient before the step. The score is the gradient at the new α, as it pushes
    against the bound (SBM 2011, section 2.2, second form).
    """
    PG = min(G, 0.0) if alpha <= 0.0 else (max(G, 0.0) if alpha >= upper else G)
    # A row of zeros has curvature 0 and G < 0: the quotient is -inf, the step is up to the bound.
    new = min(max(alpha - G / curvature, 0.0), upper)
    return new, abs(PG), -G if new <= 0.0 else (G if new >= upper else abs(G))


@njit(nogil=True, error_model="numpy")
def hinge_gap(h, alpha, cost, squared):
    """Return the share of a row in P - F, h = 1 - margin, as a sum of nonnegative terms."""
    if squared:
        r = max(h, 0.0) - 0.5 * alpha / cost
        return cost * r * r - alpha * min(h, 0.0)
    return (cost - alpha) * max(h, 0.0) - alpha * min(h, 0.0)


@njit(nogil=True, error_model="numpy")
def hinge_gap_within(h, error, alpha, cost, squared):
    """Return the largest `hinge_gap` for an h with a given error; it is convex in h."""
    above = hinge_gap(h + error, alpha, cost, squared)
    return max(above, hinge_gap(h - error, alpha, cost, squared))


@njit(nogil=True, error_model="numpy")
def add_sums(sums, gap, loss, dual, support, free, size, missed):
    """Add the totals of one block to the sums of a certificate."""
    sums[0] += gap
    sums[1] += loss
    sums[2] += dual
    sums[3] += support
    sums[4] += free
    sums[5] += size
    sums[6] += missed
