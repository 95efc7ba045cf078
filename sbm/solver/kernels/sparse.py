"""What the kernels share: rows times weights, signs and costs, the order of visits, a gap.

Rows are given as (starts, lengths, indices, values), `values` None when all are 1. Positions that
come from memory are made unsigned before they are used: numba asks of every signed one whether it
counts from the end, which is a third of what a visit does.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "add", "add_sums", "dot", "dot_within", "hinge_gap", "hinge_gap_within", "new_order",
    "prefetch", "prefetch_row", "rounding", "rows_left", "sign_and_cost",
]  # fmt: skip

_HALF_ULP = 2.0**-53  # relative error of one operation


@intrinsic
def prefetch(typing_context, array, index):
    """Ask for the cache line of array[index]; no effect but on time."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, word(0), word(3), word(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@njit(nogil=True, error_model="numpy", forceinline=True)
def prefetch_row(w, indices, starts, lengths, row):
    """Ask for the weights of one row."""
    q = np.uint64(row)
    begin = np.uint64(starts[q])
    for p in range(begin, begin + np.uint64(lengths[q])):
        prefetch(w, np.int64(indices[p]))


@njit(nogil=True, error_model="numpy", forceinline=True)
def sign_and_cost(i, y, weight, positive, cost_positive, cost_negative):
    """Return (±1.0, C_i) of a row of two classes."""
    is_positive = y[i] == positive
    C = cost_positive if is_positive else cost_negative
    if weight is not None:
        C *= weight[i]
    return 1.0 if is_positive else -1.0, C


@njit(nogil=True, error_model="numpy")
def close_ranks(active, m):
    """Move the rows of active[:m] that are still active to its front; return their number."""
    kept = 0
    for t in range(m):
        if active[t] >= 0:
            active[kept] = active[t]
            kept += 1
    return kept


@njit(nogil=True, error_model="numpy")
def rows_left(active, m, r, dropped):
    """Bring the rows of the round behind round r to the front of `active`; return their number."""
    if r == 0:
        for t in range(m):
            active[t] = t
    elif dropped > 0:
        m = close_ranks(active, m)
    return m


@njit(nogil=True, error_model="numpy")
def shuffle(order, n, state):
    """Fisher-Yates on order[:n]; state[0] is a xorshift64 generator."""
    x = state[0]
    for i in range(n - 1, 0, -1):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
        j = np.int64((x >> np.uint64(33)) % np.uint64(i + 1))
        order[i], order[j] = order[j], order[i]
    state[0] = x


@njit(nogil=True, error_model="numpy")
def new_order(order, m, chunk, state):
    """Put the chunks of m rows in a fresh random order; return how many there are."""
    chunks = (m + chunk - 1) // chunk
    for k in range(chunks):
        order[k] = k
    shuffle(order, chunks, state)
    return chunks


@njit(nogil=True, error_model="numpy")
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
    """Bound of the error of a sum of `n` products, and a few operations more, of sizes `size`."""
    return (np.float64(n) + 4.0) * _HALF_ULP * size


@njit(nogil=True, error_model="numpy")
def dot_within(indices, values, begin, end, w, z):
    """Return z + w·x for one row, and a bound of its rounding error; z is one product, or 0.

    The second sum waits for nothing that the first one does not wait for, so it takes no time.
    """
    size = abs(z)
    if values is None:
        for p in range(begin, end):
            product = w[np.uint32(indices[p])]
            z += product
            size += abs(product)
    else:
        for p in range(begin, end):
            product = np.float64(values[p]) * w[np.uint32(indices[p])]
            z += product
            size += abs(product)
    return z, rounding(end - begin, size)


@njit(nogil=True, error_model="numpy")
def add(indices, values, begin, end, w, step):
    """Add step times one row to w."""
    if values is None:
        for p in range(begin, end):
            w[np.uint32(indices[p])] += step
    else:
        for p in range(begin, end):
            w[np.uint32(indices[p])] += step * np.float64(values[p])


@njit(nogil=True, error_model="numpy")
def hinge_gap(h, alpha, cost, squared):
    """Share of one row in P - F, h = 1 - margin, as a sum of terms that are never negative."""
    if squared:
        r = max(h, 0.0) - 0.5 * alpha / cost
        return cost * r * r - alpha * min(h, 0.0)
    return (cost - alpha) * max(h, 0.0) - alpha * min(h, 0.0)


@njit(nogil=True, error_model="numpy")
def hinge_gap_within(h, error, alpha, cost, squared):
    """Largest `hinge_gap` of an h that is known to within an error: it is convex in h."""
    above = hinge_gap(h + error, alpha, cost, squared)
    return max(above, hinge_gap(h - error, alpha, cost, squared))


@njit(nogil=True, error_model="numpy")
def add_sums(sums, gap, loss, dual, support, free):
    """Add to a certificate's sums what the rows of one block come to."""
    sums[0] += gap
    sums[1] += loss
    sums[2] += dual
    sums[3] += support
    sums[4] += free
