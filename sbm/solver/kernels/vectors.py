"""Eight numbers in a vector register.

The compiler combines eight sums of a loop into a vector only sometimes; with this type it always
does. Sums are rounded like those of eight separate numbers.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

__all__ = ["add8", "add_sizes8", "largest8", "store8", "zeros8"]

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
