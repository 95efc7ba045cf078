"""Eight numbers in a vector register.

The compiler combines eight sums of a loop into a vector only sometimes; with this type it always
does. Sums are rounded like those of eight separate numbers.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

__all__ = ["PLAIN", "add8", "add_few", "add_sizes8", "largest8", "store8", "zeros8"]

_VECTOR = ir.VectorType(ir.DoubleType(), 8)


class _Eight(types.Type):
    """Eight float64."""

    def __init__(self) -> None:
        super().__init__("eight")


_eight = _Eight()


@register_model(_Eight)
class _EightModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, _VECTOR)


def _place(context, builder, array_type, array, index):
    """Return the address of eight elements of an array, counted in its order in memory."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


def _splat(builder, number):
    """Return a vector of eight times the same number."""
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, ir.IntType(32)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), mask)


def _product(context, builder, signature, arguments):
    """Return the second argument times the eight elements that the third and fourth name."""
    place = _place(context, builder, signature.args[2], arguments[2], arguments[3])
    return builder.fmul(_splat(builder, arguments[1]), builder.load(place, align=8))


def _masked(context, builder, array_type, array, index, n):
    """Return the first n of eight elements of an array, and zeros; no others are read."""
    place = _place(context, builder, array_type, array, index)
    vector = ir.VectorType(ir.IntType(64), 8)
    some = builder.insert_element(ir.Constant(vector, ir.Undefined), n, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)
    limit = builder.shuffle_vector(some, ir.Constant(vector, ir.Undefined), zeros)
    mask = builder.icmp_unsigned("<", ir.Constant(vector, list(range(8))), limit)
    others = ir.Constant(_VECTOR, [0.0] * 8)
    kind = ir.FunctionType(_VECTOR, [place.type, ir.IntType(32), mask.type, _VECTOR])
    load = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.load.v8f64.p0")
    return builder.call(load, [place, ir.IntType(32)(8), mask, others])


def _call(builder, name, result, argument):
    kind = ir.FunctionType(result, [argument.type])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [argument])


@intrinsic
def zeros8(typing_context):
    """Return eight zeros."""
    return _eight(), lambda *_: ir.Constant(_VECTOR, [0.0] * 8)


@intrinsic
def add8(typing_context, sums, v, W, index):
    """Return sums + v * W.flat[index : index + 8]."""

    def generate(context, builder, signature, arguments):
        return builder.fadd(arguments[0], _product(context, builder, signature, arguments))

    return _eight(_eight, types.float64, W, types.uint64), generate


@intrinsic
def add_few(typing_context, sums, v, W, index, n):
    """Return sums + v * the first n of W.flat[index : index + 8], and of zeros."""

    def generate(context, builder, signature, arguments):
        sums, v, W, index, n = arguments
        some = _masked(context, builder, signature.args[2], W, index, n)
        return builder.fadd(sums, builder.fmul(_splat(builder, v), some))

    return _eight(_eight, types.float64, W, types.uint64, types.uint64), generate


@intrinsic
def add_sizes8(typing_context, sums, v, W, index):
    """Return sums + abs(v * W.flat[index : index + 8])."""

    def generate(context, builder, signature, arguments):
        product = _product(context, builder, signature, arguments)
        return builder.fadd(arguments[0], _call(builder, "llvm.fabs.v8f64", _VECTOR, product))

    return _eight(_eight, types.float64, W, types.uint64), generate


@intrinsic
def store8(typing_context, sums, z, k):
    """Write sums to z[k : k + 8]."""

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature.args[1], arguments[1], arguments[2])
        builder.store(arguments[0], place, align=8)
        return context.get_dummy_value()

    return types.void(_eight, z, types.uint64), generate


@intrinsic
def largest8(typing_context, sums):
    """Return the largest of eight numbers, none of which is NaN."""

    def generate(context, builder, signature, arguments):
        return _call(builder, "llvm.vector.reduce.fmax.v8f64", ir.DoubleType(), arguments[0])

    return types.float64(_eight), generate


def _add_few(sums, v, W, index, n):
    sums[:n] += v * W.flat[index : index + n]
    return sums


def _write(sums, z, k):
    z[k : k + 8] = sums


# The same in Python, by name; `prefetch` does nothing there.
PLAIN = {
    "zeros8": lambda: np.zeros(8),
    "add8": lambda sums, v, W, index: sums + v * W.flat[index : index + 8],
    "add_few": _add_few,
    "add_sizes8": lambda sums, v, W, index: sums + abs(v * W.flat[index : index + 8]),
    "store8": _write,
    "largest8": np.max,
    "prefetch": lambda array, index: None,
}
