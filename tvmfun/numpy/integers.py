"""Bits and divisors of integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.numpy.creation import arrays, asarray
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.promotion import NestedArrayLike, array, operands
from tvmfun.numpy.reductions import any, sum
from tvmfun.numpy.resizing import pad
from tvmfun.numpy.shapes import broadcast_arrays, expand_dims, moveaxis, normalize_axis, ravel, reshape
from tvmfun.ops import pointwise as ops

__all__ = [
    "bitwise_count",
    "gcd",
    "lcm",
    "packbits",
    "unpackbits",
]


def with_other_bits(x: Array, dtype: np.dtype) -> Array:
    """The bits of elements as elements of another dtype, whose parts are along a last axis, the lowest first.

    Wider elements consist of the whole last axis; narrower ones get a further axis.
    """
    mine, its = x.dtype.itemsize, dtype.itemsize
    if mine == its or dtypes.bool_ in (x.dtype, dtype):
        return ops.bitcast(x, dtype=dtypes.NAMES[dtype])
    narrow, wide = f"uint{8 * min(mine, its)}", np.dtype(f"uint{8 * max(mine, its)}")
    count = max(mine, its) // min(mine, its)
    shifts = np.arange(count, dtype=wide) * wide.type(8 * min(mine, its))
    if mine > its:
        words = expand_dims(ops.bitcast(x, dtype=dtypes.NAMES[wide]), -1)
        parts = ops.astype(ops.right_shift(*broadcast_arrays(words, asarray(shifts))), dtype=narrow)
        return ops.bitcast(parts, dtype=dtypes.NAMES[dtype])
    if not x.ndim or x.shape[-1] != count:
        hint = f"arrays of the shape (..., {count})"
        raise ShapeError("bitcast", f"{count} elements of {x.dtype} are one of {dtype}", got=repr(x.aval), hint=hint)
    parts = ops.astype(ops.bitcast(x, dtype=narrow), dtype=dtypes.NAMES[wide])
    words = sum(ops.left_shift(*broadcast_arrays(parts, asarray(shifts))), -1, dtype=wide)
    return ops.bitcast(words, dtype=dtypes.NAMES[dtype])


def population_count(x: Any) -> Any:
    """The number of bits that are set in an integer, in its own dtype, elementwise.

    Neighbouring counts are added in parallel: in fields of 2, 4 and 8 bits, and then all bytes by a multiplication.
    Source: Knuth, "The Art of Computer Programming" 4A (2011), 7.1.3.
    """
    width = x.dtype.itemsize * 8
    own = dtypes.NAMES[x.dtype]
    unsigned = np.dtype(f"uint{width}")
    bits = x if x.dtype == unsigned else ops.bitcast(x, dtype=f"uint{width}")
    repeated = lambda byte: unsigned.type(int.from_bytes(bytes([byte]) * (width // 8), "little"))
    shifted = lambda value, count: ops.right_shift(value, unsigned.type(count))
    bits = ops.subtract(bits, ops.bitwise_and(shifted(bits, 1), repeated(0x55)))
    pairs = repeated(0x33)
    bits = ops.add(ops.bitwise_and(bits, pairs), ops.bitwise_and(shifted(bits, 2), pairs))
    bits = ops.bitwise_and(ops.add(bits, shifted(bits, 4)), repeated(0x0F))
    if width > 8:
        bits = shifted(ops.multiply(bits, repeated(0x01)), width - 8)
    return ops.astype(bits, dtype=own)


def bitwise_count(x: NestedArrayLike) -> Array:
    """Returns the number of bits that are set in the absolute value of an integer, as uint8, elementwise.

    >>> bitwise_count([7, -8])
    Array([3, 1], dtype=uint8)
    """
    x = array("bitwise_count", asarray(x))
    if x.dtype == dtypes.bool_:
        return astype(x, dtypes.uint8)
    if not dtypes.is_integer(x.dtype):
        raise DtypeError("bitwise_count", "the numbers must be integers", got=repr(x.aval))
    return astype(population_count(ops.abs(x) if x.dtype in dtypes.SIGNED else x), dtypes.uint8)


def _weights(name: str, bitorder: str) -> np.ndarray:
    if bitorder not in ("big", "little"):
        raise ArgumentError(name, "the order of the bits is 'big' or 'little'", got=repr(bitorder))
    indices = np.arange(8, dtype=np.uint8)
    return indices[::-1].copy() if bitorder == "big" else indices


def packbits(a: NestedArrayLike, axis: int | None = None, bitorder: str = "big") -> Array:
    """Returns bytes that each pack eight elements: a bit is 1 where the element is not 0.

    Args:
        a: integers or bools.
        axis: the axis along which to pack, padded with zeros; by default the array is flattened.
        bitorder: ``"big"`` if the first of eight elements becomes the highest bit, or ``"little"``.

    >>> packbits([1, 0, 1, 0, 0, 0, 0, 0, 1])
    Array([160, 128], dtype=uint8)
    """
    shifts = _weights("packbits", bitorder)
    a = asarray(a)
    if dtypes.is_float(a.dtype):
        raise DtypeError("packbits", "the elements must be integers or bools", got=repr(a.aval))
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis("packbits", axis, a.ndim)
    bits = astype(ops.not_equal(a, a.dtype.type(0)), dtypes.uint8)
    rows = moveaxis(bits, axis, -1)
    rows = pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -rows.shape[-1] % 8)])
    groups = reshape(rows, (*rows.shape[:-1], rows.shape[-1] // 8, 8))
    packed = sum(ops.left_shift(groups, asarray(shifts)), -1, dtypes.uint8)
    return moveaxis(packed, -1, axis)


def unpackbits(a: NestedArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Array:
    """Returns the bits of bytes as zeros and ones.

    Args:
        a: an array of uint8.
        axis: the axis along which to unpack; by default the array is flattened.
        count: the number of bits to return: fewer than there are, or more, padded with zeros; a negative count drops
            that many from the end.
        bitorder: ``"big"`` if the highest bit comes first, or ``"little"``.

    >>> unpackbits(np.asarray([5], "uint8"))
    Array([0, 0, 0, 0, 0, 1, 0, 1], dtype=uint8)
    """
    shifts = _weights("unpackbits", bitorder)
    a = asarray(a)
    if a.dtype != dtypes.uint8:
        raise DtypeError("unpackbits", "the array must be made of bytes", got=repr(a.aval), hint="x.astype('uint8')")
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis("unpackbits", axis, a.ndim)
    rows = expand_dims(moveaxis(a, axis, -1), -1)
    bits = ops.bitwise_and(ops.right_shift(rows, asarray(shifts)), np.uint8(1))
    bits = reshape(bits, (*bits.shape[:-2], bits.shape[-2] * 8))
    if count is not None:
        size = bits.shape[-1]
        wanted = count if count >= 0 else size + count
        if wanted < 0:
            raise ArgumentError("unpackbits", f"there are {size} bits", got=f"count={count}")
        bits = bits[..., :wanted]
        bits = pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, max(0, wanted - size))])
    return moveaxis(bits, -1, axis)


def _integers(name: str, *values: Any) -> list[Any]:
    found = operands(name, *values)
    if not dtypes.is_integer(found[0].dtype):
        raise DtypeError(name, "the numbers must be integers", got=dtypes.NAMES[found[0].dtype])
    return found


def gcd(x1: NestedArrayLike, x2: NestedArrayLike) -> Array:
    """Returns the greatest common divisor of integers, elementwise, by Euclid's algorithm.

    >>> gcd(12, [8, 9])
    Array([4, 3], dtype=int32)
    """
    from tvmfun.lax.control_flow import while_loop

    x1, x2 = broadcast_arrays(*arrays("gcd", *_integers("gcd", *arrays("gcd", x1, x2))))
    zero = x1.dtype.type(0)
    pair = while_loop(
        lambda pair: any(ops.not_equal(pair[1], zero)),
        lambda pair: (
            ops.where(ops.equal(pair[1], zero), pair[0], pair[1]),
            ops.where(ops.equal(pair[1], zero), zero, ops.remainder(pair[0], pair[1])),
        ),
        (ops.abs(x1), ops.abs(x2)),
    )
    return ops.abs(pair[0])  # the size of the least integer is negative, and so may be remainders


def lcm(x1: NestedArrayLike, x2: NestedArrayLike) -> Array:
    """Returns the least common multiple of integers, elementwise.

    >>> lcm(4, [6, 0])
    Array([12,  0], dtype=int32)
    """
    x1, x2 = arrays("lcm", x1, x2)
    divisor = gcd(x1, x2)
    x1, x2 = ops.abs(x1), ops.abs(x2)
    zero, one = divisor.dtype.type(0), divisor.dtype.type(1)
    none = ops.equal(divisor, zero)
    return ops.where(none, zero, ops.multiply(x1, ops.floor_divide(x2, ops.where(none, one, divisor))))
