"""What the kernels share: a row times weights, signs and costs, a step in a box, a gap.

Rows are given as ::

    starts, lengths    (n,) int64, int32: row i has nonzeros starts[i] to starts[i] + lengths[i]
    indices, values    int32, float32 or float64; `values` None when all are 1

Positions that come from memory are made unsigned before they are used: numba asks of every signed
one whether it counts from the end, which is a third of what a visit does.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "add", "add_sums", "dot", "dot_within", "hinge_gap", "hinge_gap_within", "prefetch",
    "prefetch_ahead", "prefetch_row", "rounding", "sign_and_cost", "step_in_box",
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
def prefetch_ahead(w, indices, starts, lengths, i, n, ahead):
    """Ask for the weights of the row `ahead` behind row i, of n; i and n are unsigned."""
    if ahead > 0 and i + np.uint64(ahead) < n:
        prefetch_row(w, indices, starts, lengths, i + np.uint64(ahead))


@njit(nogil=True, error_model="numpy", forceinline=True)
def sign_and_cost(i, y, weight, positive, cost_positive, cost_negative):
    """Return (±1.0, C_i) of a row of two classes."""
    is_positive = y[i] == positive
    C = cost_positive if is_positive else cost_negative
    if weight is not None:
        C *= weight[i]
    return 1.0 if is_positive else -1.0, C


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


@njit(nogil=True, error_model="numpy", forceinline=True)
def step_in_box(G, alpha, upper, curvature):
    """Return (new α, violation, score) of a Newton step in 0 ≤ α ≤ upper.

    The step is exact (Hsieh et al. 2008, equation 9). The violation is the size of the projected
    gradient before the step. The score is the gradient as it pushes against the bound where α is
    then (SBM 2011, section 2.2, second form).
    """
    PG = min(G, 0.0) if alpha <= 0.0 else (max(G, 0.0) if alpha >= upper else G)
    # A row of zeros has curvature 0 and G < 0: the quotient is -inf, the step is up to the bound.
    new = min(max(alpha - G / curvature, 0.0), upper)
    return new, abs(PG), -G if new <= 0.0 else (G if new >= upper else abs(G))


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
