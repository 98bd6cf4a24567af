"""The bits of integers and floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.numpy import integers
from tvmfun.numpy.dtypes import finfo
from tvmfun.numpy.promotion import array, operands
from tvmfun.ops import pointwise as ops


def _integer(name: str, x: Any) -> Any:
    x = array(name, x)
    if not dtypes.is_integer(x.dtype):
        raise DtypeError(name, "the numbers must be integers", got=dtypes.NAMES[x.dtype])
    return x


def population_count(x: Any) -> Array:
    """Returns the number of bits that are set in an integer, in its dtype, elementwise.

    >>> population_count(tnp.asarray([7, -1]))
    Array([ 3, 32], dtype=int32)
    """
    return integers.population_count(_integer("population_count", x))


def clz(x: Any) -> Array:
    """Returns the number of zeros before the first bit that is set in an integer, in its dtype, elementwise.

    >>> clz(tnp.asarray([1, 0, -1]))
    Array([31, 32,  0], dtype=int32)
    """
    x = _integer("clz", x)
    own, width = dtypes.NAMES[x.dtype], x.dtype.itemsize * 8
    value = ops.bitcast(x, dtype=f"uint{width}") if x.dtype in dtypes.SIGNED else x
    shift = 1
    while shift < width:  # every bit after the first one
        value = ops.bitwise_or(value, ops.right_shift(value, value.dtype.type(shift)))
        shift *= 2
    return ops.astype(integers.population_count(ops.bitwise_not(value)), dtype=own)


def mulhi(x: Any, y: Any) -> Array:
    """Returns the upper half of the bits of the product of two integers, elementwise.

    >>> mulhi(tnp.asarray([1 << 30]), tnp.asarray([8]))
    Array([2], dtype=int32)
    """
    x, y = operands("mulhi", _integer("mulhi", x), _integer("mulhi", y))
    width = x.dtype.itemsize * 8
    shift = lambda value, count: ops.right_shift(value, value.dtype.type(count))
    if width < 64:
        wide = "int64" if x.dtype in dtypes.SIGNED else "uint64"
        product = ops.multiply(ops.astype(x, dtype=wide), ops.astype(y, dtype=wide))
        return ops.astype(shift(product, width), dtype=dtypes.NAMES[x.dtype])
    # In halves of 32 bits; a signed upper half carries the sign.
    mask = x.dtype.type(0xFFFFFFFF)
    low = lambda value: ops.bitwise_and(value, mask)
    a, b, c, d = shift(x, 32), low(x), shift(y, 32), low(y)
    as_unsigned = lambda value: ops.astype(value, dtype="uint64")
    carry = ops.astype(shift(ops.multiply(as_unsigned(b), as_unsigned(d)), 32), dtype=dtypes.NAMES[x.dtype])
    middle = ops.add(ops.multiply(a, d), carry)
    rest = ops.add(ops.multiply(b, c), low(middle))
    return ops.add(ops.add(ops.multiply(a, c), shift(middle, 32)), shift(rest, 32))


def nextafter(x1: Any, x2: Any) -> Array:
    """Returns the next float after ``x1`` in the direction of ``x2``, elementwise."""
    return tnp.nextafter(x1, x2)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Array:
    """Returns the nearest number that a narrower float could hold, in the dtype of ``operand``, elementwise.

    The even one of two equally near ones; infinity for what is too large, 0 for what is less than the smallest normal
    number. The derivative is 1.

    Args:
        operand: floats.
        exponent_bits: of the narrower float, at least 1.
        mantissa_bits: of the narrower float, without the first bit, which is implied.

    >>> reduce_precision(tnp.asarray(1.2345), 8, 7)
    Array(1.234375, dtype=float32)
    """
    (x,) = operands("reduce_precision", operand, floating=True)
    if exponent_bits < 1 or mantissa_bits < 0:
        got = f"{exponent_bits} and {mantissa_bits}"
        raise ArgumentError("reduce_precision", "a float has bits for its exponent and its mantissa", got=got)
    own, limits = x.dtype, finfo(x.dtype)
    width, real = own.itemsize * 8, own.type
    value = ops.bitcast(ops.stop_gradient(x), dtype=f"uint{width}")
    unsigned = value.dtype.type
    sign = ops.bitwise_and(value, unsigned(1 << (width - 1)))
    size = ops.bitwise_xor(value, sign)
    drop = limits.nmant - mantissa_bits
    if drop > 0:
        last = ops.bitwise_and(ops.right_shift(size, unsigned(drop)), unsigned(1))
        size = ops.add(size, ops.add(last, unsigned((1 << (drop - 1)) - 1)))
        size = ops.bitwise_and(size, unsigned((1 << width) - (1 << drop)))
    infinity = unsigned(int.from_bytes(np.asarray(np.inf, own).tobytes(), "little"))
    if exponent_bits < width - 1 - limits.nmant:
        bias, own_bias = (1 << (exponent_bits - 1)) - 1, (1 << (width - 2 - limits.nmant)) - 1
        too_large = unsigned((own_bias + bias + 1) << limits.nmant)
        smallest = unsigned((own_bias - bias + 1) << limits.nmant)
        size = ops.where(ops.greater_equal(size, too_large), infinity, size)
        size = ops.where(ops.less(size, smallest), unsigned(0), size)
    rounded = ops.bitcast(ops.bitwise_or(size, sign), dtype=dtypes.NAMES[own])
    finite = ops.isfinite(x)
    rounded = ops.where(ops.isnan(x), real(np.nan), rounded)
    # Adds 0, whose derivative is 1.
    return ops.add(rounded, ops.where(finite, ops.subtract(x, ops.stop_gradient(x)), real(0)))


__all__ = ["clz", "mulhi", "nextafter", "population_count", "reduce_precision"]
