"""Random bits, and uniform floats and integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes, lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.lax.staging import compiled_for_all_shapes
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.ops.pointwise import broadcast_shapes
from tvmfun.random.keys import blocks, check_key, split
from tvmfun.typing import ArrayLike, DTypeLike, Key

UINTS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


def bits(key: Key, shape: Shape = (), dtype: DTypeLike | None = "uint32") -> Array:
    """Returns uniform random bits as unsigned integers of 8, 16, 32 or 64 bits.

    >>> from tvmfun import random
    >>> bits(random.key(0), (2,), "uint8")
    Array([167, 146], dtype=uint8)
    """
    key = check_key("bits", key)
    dtype = dtypes.canonical("uint32" if dtype is None else dtype)
    if dtype not in dtypes.UNSIGNED:
        raise DtypeError("bits", "the dtype must be an unsigned integer", got=dtypes.NAMES[dtype])
    return _bits(key, shape=as_shape("bits", shape), dtype=dtype)


@compiled_for_all_shapes("dtype")
def _bits(key: Array, *, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    return bits_of(key, shape, dtype)


def bits_of(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Random bits of a key, or of each key in an array of keys, whose axes come first."""
    if dtype == dtypes.uint64:
        high = tnp.astype(blocks(key, shape, "first"), dtype)
        low = tnp.astype(blocks(key, shape, "second"), dtype)
        return tnp.bitwise_or(tnp.bitwise_left_shift(high, 32), low)
    return tnp.astype(blocks(key, shape, "xor"), dtype)


def float_dtype(name: str, dtype: DTypeLike | None) -> np.dtype:
    """A float dtype; None is float32.

    Raises:
        DtypeError: for others.
    """
    dtype = dtypes.canonical("float32" if dtype is None else dtype)
    if not dtypes.is_float(dtype):
        raise DtypeError(name, "the dtype must be a float", got=dtypes.NAMES[dtype], hint='"float32"')
    return dtype


def integer_dtype(name: str, dtype: DTypeLike | None) -> np.dtype:
    """An integer dtype; None is int32.

    Raises:
        DtypeError: for others.
    """
    dtype = dtypes.canonical("int32" if dtype is None else dtype)
    if not dtypes.is_integer(dtype):
        raise DtypeError(name, "the dtype must be an integer", got=dtypes.NAMES[dtype])
    return dtype


def float_request(
    name: str, key: Key, shape: Shape, dtype: DTypeLike | None
) -> tuple[Array, tuple[int, ...], np.dtype]:
    """The checked key, shape and float dtype that a function ``name`` was called with."""
    return check_key(name, key), as_shape(name, shape), float_dtype(name, dtype)


# The number of mantissa bits: the random bits that a float in [1, 2) needs.
MANTISSA = {dtypes.bfloat16: 7, dtypes.float16: 10, dtypes.float32: 23, dtypes.float64: 52}


def uniform(
    key: Key, shape: Shape = (), dtype: DTypeLike | None = "float32", minval: ArrayLike = 0.0, maxval: ArrayLike = 1.0
) -> Array:
    r"""Returns floats uniform in :math:`[\text{minval}, \text{maxval})`.

    Args:
        key: the key.
        shape: of the result.
        dtype: of the result, a float.
        minval: the lower bound, a number or an array that broadcasts to ``shape``.
        maxval: the upper bound, likewise.

    >>> from tvmfun import random
    >>> uniform(random.key(0))
    Array(0.947667, dtype=float32)
    """
    key, sizes, dtype = float_request("uniform", key, shape, dtype)
    low, high = bound("uniform", minval, dtype), bound("uniform", maxval, dtype)
    result = uniform_of(key, low, high, shape=sizes, dtype=dtype)
    if result.shape != sizes:
        raise ShapeError("uniform", f"the bounds must broadcast to {sizes}", got=f"a result of {result.shape}")
    return result


@compiled_for_all_shapes("dtype")
def uniform_of(key: Array, low: ArrayLike, high: ArrayLike, *, shape: tuple, dtype: np.dtype) -> Array:
    """Floats uniform between ``low`` and ``high`` of a key, or of each of many keys, whose axes come first."""
    mantissa, uint = MANTISSA[dtype], UINTS[dtype.itemsize]
    # As in JAX, a mantissa that fits in 8 bits (that of bfloat16) is drawn as 8 bits.
    drawn = dtypes.uint8 if mantissa < 8 else uint
    random = tnp.astype(bits_of(key, shape, drawn), uint)
    one = int(np.ones((), dtype).view(uint))
    pattern = tnp.bitwise_or(tnp.bitwise_right_shift(random, drawn.itemsize * 8 - mantissa), one)
    unit = tnp.subtract(lax.bitcast_convert_type(pattern, dtype), 1.0)
    # The difference of two constants is one more constant.
    constant = isinstance(high, np.generic) and isinstance(low, np.generic)
    span = dtype.type(high - low) if constant else rounded(tnp.subtract(high, low))  # type: ignore[operator]
    return tnp.maximum(low, rounded(tnp.add(rounded(tnp.multiply(unit, span)), low)))


def rounded(x: Array) -> Array:
    """``x``, rounded also in the middle of a kernel, where bfloat16 has the bits of float32: as JAX rounds it."""
    if x.dtype != dtypes.bfloat16:
        return x
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, "uint16"), x.dtype)


def bound(name: str, value: Any, dtype: np.dtype) -> Any:
    """A bound in ``dtype``: an array, or a constant."""
    is_array = np.ndim(value) or isinstance(value, Array)
    return rounded(tnp.astype(value, dtype)) if is_array else dtype.type(value)


def randint(key: Key, shape: Shape, minval: ArrayLike, maxval: ArrayLike, dtype: DTypeLike | None = "int32") -> Array:
    """Returns integers uniform in ``[minval, maxval)``, or ``minval`` if there are none.

    Args:
        key: the key.
        shape: of the result.
        minval: the lower bound, a number or an array of them that broadcasts to ``shape``; as the upper one, rounded
            towards 0 and moved into the range of ``dtype``.
        maxval: the upper bound, likewise; one more than the largest integer means all of them.
        dtype: of the result, an integer.

    Raises:
        DtypeError: if the dtype is not an integer, or the bounds are not numbers.
        ShapeError: if the bounds do not broadcast to the shape.

    >>> from tvmfun import random
    >>> randint(random.key(0), (4,), 0, 10)
    Array([9, 0, 2, 3], dtype=int32)
    """
    key = check_key("randint", key)
    dtype = integer_dtype("randint", dtype)
    if not (isinstance(minval, int | np.integer) and isinstance(maxval, int | np.integer)):
        low, high = (_integer_bound(bound) for bound in (minval, maxval))
        return _randint_between(key, as_shape("randint", shape), low, high, dtype)
    low, high = int(minval), int(maxval)
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    low, high = min(max(low, least), most), min(max(high, least), most + 1)
    # Narrow integers are drawn as 32 bits, which makes them more nearly uniform.
    width = max(32, dtype.itemsize * 8)
    span = max(high - low, 1)
    first, second = split(key)
    offset = bits(second, shape, UINTS[width // 8])
    if span < 1 << width:
        # Two draws make a number of twice the width, modulo span. The multiplier is 0 for spans of more than half the
        # width, as in JAX, and then the first draw has no effect.
        multiplier = (2 ** (width // 2) % span) ** 2 % 2**width % span
        offset = tnp.remainder(offset, span)
        if multiplier:
            higher = tnp.remainder(bits(first, shape, UINTS[width // 8]), span)
            offset = tnp.remainder(tnp.add(tnp.multiply(higher, multiplier), offset), span)
    if dtype in dtypes.UNSIGNED and dtype.itemsize * 8 == width:
        return tnp.add(offset, low)
    signed = dtypes.int64 if width == 64 else dtypes.int32
    if low >= 0:
        return tnp.astype(tnp.add(tnp.astype(offset, signed), low), dtype)
    # An offset may exceed the signed range: flipping its sign bit subtracts 2**(width - 1), which is added to `low`.
    half = 1 << (width - 1)
    return tnp.astype(tnp.add(tnp.astype(tnp.bitwise_xor(offset, half), signed), low + half), dtype)


def _integer_bound(bound: ArrayLike) -> Array:
    aval = abstract(bound, "randint", "a bound", hint="numbers")
    if dtypes.is_float(aval.dtype):
        return tnp.astype(tnp.asarray(bound), "int64")
    if not dtypes.is_integer(aval.dtype):
        raise DtypeError("randint", "the bounds must be numbers", got=repr(aval))
    return tnp.asarray(bound)


def _randint_between(key: Array, shape: tuple, low: Array, high: Array, dtype: np.dtype) -> Array:
    """Random integers between arrays of bounds."""
    if broadcast_shapes("randint", [low.shape, high.shape, shape]) != shape:
        raise ShapeError("randint", f"the bounds must broadcast to {shape}", got=f"{low.aval} and {high.aval}")
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    width = max(32, dtype.itemsize * 8)
    uint = UINTS[width // 8]
    # Bounds of one width more than the dtype, for ``most + 1``; there is none for 64 bits.
    wide = dtypes.int64 if dtype.itemsize < 8 else dtype
    within = lambda bound, top: tnp.astype(tnp.clip(bound, *_overlap(bound.dtype, least, top)), wide)
    low, high = within(low, most), within(high, most + 1 if dtype.itemsize < 8 else most)
    is_empty = tnp.less_equal(high, low)
    span = tnp.astype(tnp.subtract(tnp.astype(high, dtypes.uint64), tnp.astype(low, dtypes.uint64)), uint)
    span = tnp.where(is_empty, uint.type(1), span)
    is_all = tnp.equal(span, 0)  # a span of 2**32
    span = tnp.where(is_all, uint.type(1), span)
    first, second = split(key)
    half = tnp.remainder(tnp.full((), 1 << (width // 2), uint), span)
    multiplier = tnp.remainder(tnp.multiply(half, half), span)
    lower = bits(second, shape, uint)
    higher = tnp.remainder(bits(first, shape, uint), span)
    offset = tnp.remainder(tnp.add(tnp.multiply(higher, multiplier), tnp.remainder(lower, span)), span)
    offset = tnp.where(is_all, lower, offset)
    return tnp.astype(tnp.add(tnp.astype(low, uint), offset), dtype)


def _overlap(dtype: np.dtype, least: int, most: int) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return max(least, int(limits.min)), min(most, int(limits.max))
