"""Random numbers as pure functions of a key: Threefry-2x32 in counter mode.

A key is an array ``uint32[2]``; using it twice gives the same numbers twice. The bits are those of JAX's
default generator for the same key, shape and dtype.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); layout as in ``jax.random``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from tvmfun import dtypes, lax
from tvmfun import numpy as tnp
from tvmfun.boundary import publish
from tvmfun.core import dims
from tvmfun.core.array import Array, DeviceArray
from tvmfun.core.dims import Dim
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import is_tracing
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.jit import jit
from tvmfun.names import missing as _missing
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.numpy.promotion import convert, operand
from tvmfun.ops.bits import threefry2x32
from tvmfun.ops.pointwise import broadcast_shapes

_UINTS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


def key(seed: Any) -> Array:
    """Returns the key of an integer seed: its high and low 32 bits.

    Args:
        seed: an integer of 32 or 64 bits. A Python integer has 32 bits if it fits, so that a negative one
            gives the same key whether it is traced or not.

    Raises:
        ArgumentError: for a Python integer of more than 64 bits.
        DtypeError: if the seed is no integer.

    >>> key(42)
    Array([ 0, 42], dtype=uint32)
    """
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not -(2**63) <= seed < 2**64:
            raise ArgumentError("key", "the seed must have at most 64 bits", got=str(seed))
        seed = np.uint64(seed % 2 ** (32 if -(2**31) <= seed < 2**31 else 64))
    aval = abstract(seed, "key")
    if not dtypes.is_integer(aval.dtype) or aval.shape:
        raise DtypeError("key", "the seed must be one integer", got=repr(aval))
    if isinstance(seed, Array):
        return _words(seed)
    number = int(seed) % 2 ** (64 if aval.dtype.itemsize == 8 else 32)
    return tnp.asarray(np.asarray([number >> 32, number & 0xFFFFFFFF], np.uint32))


def _words(number: Array) -> Array:
    """An integer as a pair of 32-bit words, high word first; a narrower one has no high word."""
    high = tnp.zeros((), "uint32")
    if number.dtype.itemsize == 8:
        high = tnp.astype(tnp.bitwise_right_shift(tnp.astype(number, "uint64"), 32), "uint32")
    return tnp.stack([high, tnp.astype(number, "uint32")])


def _check_key(name: str, key: Any) -> Array:
    aval = abstract(key, name)
    if aval.dtype != dtypes.uint32 or aval.shape != (2,):
        hint = "tvmfun.random.key(seed), or one row of split"
        raise ShapeError(name, "a key is uint32[2]", got=repr(aval), hint=hint)
    return tnp.asarray(key)


def _blocks(key: Array, shape: tuple[int, ...], word: str) -> Array:
    return threefry2x32(key, np.zeros(2, np.uint32), shape=shape, word=word)


def split(key: Any, num: Shape = 2) -> Array:
    """Returns new keys to unpack or index, ``uint32[num, 2]``; the old one should not be used again.

    >>> first, second = split(key(0))
    >>> first
    Array([1797259609, 2579123966], dtype=uint32)
    """
    key = _check_key("split", key)
    shape = as_shape("split", num)
    return tnp.stack([_blocks(key, shape, "first"), _blocks(key, shape, "second")], axis=-1)


def fold_in(key: Any, data: Any) -> Array:
    """Returns a new key that depends on the key and the low 32 bits of an integer, such as a step number."""
    key = _check_key("fold_in", key)
    if isinstance(data, int):
        data = np.uint32(data & 0xFFFFFFFF)
    aval = abstract(data, "fold_in")
    if not dtypes.is_integer(aval.dtype) or aval.shape:
        raise DtypeError("fold_in", "the data must be one integer", got=repr(aval))
    low = tnp.astype(tnp.asarray(data), "uint32")
    counter = tnp.stack([tnp.zeros((), "uint32"), low])
    return tnp.stack([threefry2x32(key, counter, shape=(), word=word) for word in ("first", "second")])


def bits(key: Any, shape: Shape = (), dtype: Any = "uint32") -> Array:
    """Returns uniform random bits as unsigned integers of 8, 16, 32 or 64 bits."""
    key = _check_key("bits", key)
    dtype = dtypes.canonical(dtype)
    if dtype not in dtypes.UNSIGNED:
        raise DtypeError("bits", "the dtype must be an unsigned integer", got=dtypes.NAMES[dtype])
    sizes = as_shape("bits", shape)
    if dtype == dtypes.uint64:
        high = tnp.astype(_blocks(key, sizes, "first"), dtype)
        low = tnp.astype(_blocks(key, sizes, "second"), dtype)
        return tnp.bitwise_or(tnp.bitwise_left_shift(high, 32), low)
    return tnp.astype(_blocks(key, sizes, "xor"), dtype)


def _float_dtype(name: str, dtype: Any) -> np.dtype:
    dtype = dtypes.canonical(dtype)
    if not dtypes.is_float(dtype):
        raise DtypeError(name, "the dtype must be a float", got=dtypes.NAMES[dtype])
    return dtype


# The number of bits of the mantissa: so many random bits make a float in [1, 2).
_MANTISSA = {dtypes.bfloat16: 7, dtypes.float16: 10, dtypes.float32: 23, dtypes.float64: 52}


def uniform(key: Any, shape: Shape = (), dtype: Any = "float32", minval: Any = 0.0, maxval: Any = 1.0) -> Array:
    r"""Returns floats uniform in :math:`[\text{minval}, \text{maxval})`.

    Args:
        key: the key.
        shape: of the result.
        dtype: of the result, a float.
        minval: the lower bound, a number or an array that broadcasts to ``shape``.
        maxval: the upper bound, likewise.

    >>> uniform(key(0))
    Array(0.947667, dtype=float32)
    """
    key = _check_key("uniform", key)
    dtype = _float_dtype("uniform", dtype)
    sizes = as_shape("uniform", shape)
    low, high = _bound("uniform", minval, dtype), _bound("uniform", maxval, dtype)
    result = _uniform(key, low, high, shape=sizes, dtype=dtype)
    if result.shape != sizes:
        raise ShapeError("uniform", f"the bounds must broadcast to {sizes}", got=f"a result of {result.shape}")
    return result


def _whole(fun: Callable) -> Callable:
    """``fun`` compiled as a whole also outside of a trace, so that it rounds the same there."""
    compiled = jit(fun, static_argnames=("shape", "dtype"))
    return wraps(fun)(lambda *args, **static: (fun if is_tracing() else compiled)(*args, **static))


@_whole
def _uniform(key: Array, low: Any, high: Any, *, shape: tuple, dtype: np.dtype) -> Array:
    mantissa, uint = _MANTISSA[dtype], _UINTS[dtype.itemsize]
    # As in JAX, a mantissa that fits in 8 bits (that of bfloat16) is drawn as 8 bits.
    drawn = dtypes.uint8 if mantissa < 8 else uint
    random = tnp.astype(bits(key, shape, drawn), uint)
    one = int(np.ones((), dtype).view(uint))
    pattern = tnp.bitwise_or(tnp.bitwise_right_shift(random, drawn.itemsize * 8 - mantissa), one)
    unit = tnp.subtract(lax.bitcast_convert_type(pattern, dtype), 1.0)
    # The difference of two constants is one more constant.
    constant = isinstance(high, np.generic) and isinstance(low, np.generic)
    span = dtype.type(high - low) if constant else _rounded(tnp.subtract(high, low))  # type: ignore[operator]
    return tnp.maximum(low, _rounded(tnp.add(_rounded(tnp.multiply(unit, span)), low)))


def _rounded(x: Array) -> Array:
    """``x``, rounded also in the middle of a kernel, where bfloat16 has the bits of float32: as JAX rounds it."""
    if x.dtype != dtypes.bfloat16:
        return x
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, "uint16"), x.dtype)


def _bound(name: str, value: Any, dtype: np.dtype) -> Any:
    """A bound in ``dtype``: an array, or a constant."""
    is_array = np.ndim(value) or isinstance(value, Array)
    return _rounded(tnp.astype(value, dtype)) if is_array else dtype.type(value)


def normal(key: Any, shape: Shape = (), dtype: Any = "float32") -> Array:
    r"""Returns floats of the standard normal distribution, :math:`\sqrt 2 \operatorname{erf}^{-1}(u)`.

    >>> normal(key(0), (2,)).shape
    (2,)
    """
    key = _check_key("normal", key)
    return _normal(key, shape=as_shape("normal", shape), dtype=_float_dtype("normal", dtype))


@_whole
def _normal(key: Array, *, shape: tuple, dtype: np.dtype) -> Array:
    low = np.nextafter(dtype.type(-1), dtype.type(0), dtype=dtype)
    return _normal_of(uniform(key, shape, dtype, low, 1.0))


def _normal_of(uniform: Array) -> Array:
    """What is normal if ``uniform`` is uniform between -1 and 1."""
    root = uniform.dtype.type(math.sqrt(2))
    return _rounded(tnp.multiply(root, _rounded(lax.erf_inv(uniform))))


def truncated_normal(key: Any, lower: Any, upper: Any, shape: Shape | None = None, dtype: Any = "float32") -> Array:
    r"""Returns floats of the standard normal distribution within the open interval from ``lower`` to ``upper``.

    They are :math:`\sqrt 2 \operatorname{erf}^{-1}(u)` with :math:`u` uniform between
    :math:`\operatorname{erf}(\text{lower} / \sqrt 2)` and :math:`\operatorname{erf}(\text{upper} / \sqrt 2)`.

    Args:
        key: the key.
        lower: the lower bound, a number or an array that broadcasts to ``shape``.
        upper: the upper bound, likewise.
        shape: of the result; by default that of the bounds together.
        dtype: of the result, a float.

    Raises:
        ShapeError: if the bounds do not broadcast to the shape.

    >>> values = truncated_normal(key(0), -1.0, 1.0, (100,))
    >>> bool(tnp.all(tnp.abs(values) < 1))
    True
    """
    key = _check_key("truncated_normal", key)
    dtype = _float_dtype("truncated_normal", dtype)
    ends = _bound("truncated_normal", lower, dtype), _bound("truncated_normal", upper, dtype)
    sizes = np.broadcast_shapes(*map(np.shape, ends)) if shape is None else as_shape("truncated_normal", shape)
    return _truncated_normal(key, *ends, shape=sizes, dtype=dtype)


@_whole
def _truncated_normal(key: Array, *ends: Any, shape: tuple, dtype: np.dtype) -> Array:
    root = dtype.type(math.sqrt(2))
    scaled = (_rounded(tnp.asarray(tnp.divide(end, root))) for end in ends)
    low, high = (tnp.broadcast_to(_rounded(lax.erf(end)), shape) for end in scaled)
    values = _normal_of(uniform(key, shape, dtype, low, high))
    # Rounding may reach the bounds, which do not belong to the interval.
    return tnp.clip(values, _next(ends[0], dtype.type(math.inf)), _next(ends[1], dtype.type(-math.inf)))


def _next(bound: Any, direction: np.generic) -> Any:
    """The next float in a direction: a constant if the bound is one."""
    if isinstance(bound, np.generic):
        return np.nextafter(bound, direction)
    return tnp.nextafter(lax.stop_gradient(bound), direction)


def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None) -> Array:
    """Returns bools that are true with probability ``p``; by default of the shape of ``p``."""
    key = _check_key("bernoulli", key)
    p = operand("bernoulli", p)
    dtype = abstract(p, "bernoulli").dtype
    dtype = dtype if dtypes.is_float(dtype) else dtypes.DEFAULT_FLOAT
    sizes = np.shape(p) if shape is None else as_shape("bernoulli", shape)
    result = tnp.less(uniform(key, sizes, dtype), convert("bernoulli", p, dtype))
    if result.shape != sizes:
        raise ShapeError("bernoulli", f"the probabilities must broadcast to {sizes}", got=str(np.shape(p)))
    return result


def randint(key: Any, shape: Shape, minval: Any, maxval: Any, dtype: Any = "int32") -> Array:
    """Returns integers uniform in ``[minval, maxval)``, or ``minval`` if there are none.

    Args:
        key: the key.
        shape: of the result.
        minval: the lower bound, an integer or an array of them that broadcasts to ``shape``; as the upper one, moved
            into the range of ``dtype``.
        maxval: the upper bound, likewise; one more than the largest integer means all of them.
        dtype: of the result, an integer.

    Raises:
        DtypeError: if the dtype or the bounds are no integers.
        ShapeError: if the bounds do not broadcast to the shape.

    >>> randint(key(0), (4,), 0, 10)
    Array([9, 0, 2, 3], dtype=int32)
    """
    key = _check_key("randint", key)
    dtype = dtypes.canonical(dtype)
    if not dtypes.is_integer(dtype):
        raise DtypeError("randint", "the dtype must be an integer", got=dtypes.NAMES[dtype])
    if not (isinstance(minval, int | np.integer) and isinstance(maxval, int | np.integer)):
        for bound in (minval, maxval):
            aval = abstract(bound, "randint", "a bound", hint="integers")
            if not dtypes.is_integer(aval.dtype):
                raise DtypeError("randint", "the bounds must be integers", got=repr(aval))
        return _randint_between(key, as_shape("randint", shape), tnp.asarray(minval), tnp.asarray(maxval), dtype)
    low, high = int(minval), int(maxval)
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    low, high = min(max(low, least), most), min(max(high, least), most + 1)
    # Narrow integers are drawn as 32 bits, which makes them more nearly uniform.
    width = max(32, dtype.itemsize * 8)
    span = max(high - low, 1)
    first, second = split(key)
    offset = bits(second, shape, _UINTS[width // 8])
    if span < 1 << width:
        # Two draws make a number of twice the width, modulo span. In the arithmetic of one draw, as in JAX,
        # the first counts only for spans of at most half the width.
        multiplier = (2 ** (width // 2) % span) ** 2 % 2**width % span
        offset = tnp.remainder(offset, span)
        if multiplier:
            higher = tnp.remainder(bits(first, shape, _UINTS[width // 8]), span)
            offset = tnp.remainder(tnp.add(tnp.multiply(higher, multiplier), offset), span)
    if dtype in dtypes.UNSIGNED and dtype.itemsize * 8 == width:
        return tnp.add(offset, low)
    signed = dtypes.int64 if width == 64 else dtypes.int32
    if low >= 0:
        return tnp.astype(tnp.add(tnp.astype(offset, signed), low), dtype)
    # An offset may be larger than signed integers are: flipping its first bit subtracts half of their number.
    half = 1 << (width - 1)
    return tnp.astype(tnp.add(tnp.astype(tnp.bitwise_xor(offset, half), signed), low + half), dtype)


def _randint_between(key: Array, shape: tuple, low: Array, high: Array, dtype: np.dtype) -> Array:
    """The same for arrays of bounds."""
    if broadcast_shapes("randint", [low.shape, high.shape, shape]) != shape:
        raise ShapeError("randint", f"the bounds must broadcast to {shape}", got=f"{low.aval} and {high.aval}")
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    width = max(32, dtype.itemsize * 8)
    uint = _UINTS[width // 8]
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


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Array:
    """Returns the slices of ``x`` along an axis in random order.

    Args:
        key: the key.
        x: an array, or an integer that stands for ``arange`` of it.
        axis: the axis.
        independent: whether each vector along the axis gets an order of its own.

    Raises:
        ShapeError: if there is no such axis.

    >>> permutation(key(0), 4).shape
    (4,)
    """
    key = _check_key("permutation", key)
    is_number = isinstance(x, int | np.integer | Dim)
    array = tnp.arange(x) if is_number else tnp.asarray(x)
    if isinstance(array, DeviceArray) and not array.ndim and dtypes.is_integer(array.dtype):
        array = tnp.arange(int(array))
    if not array.ndim:
        raise ShapeError("permutation", "there must be an axis to permute", got=repr(array.aval))
    if not -array.ndim <= axis < array.ndim:
        raise ShapeError("permutation", f"there is no axis {axis}", got=repr(array.aval))
    size = array.size if independent else array.shape[axis]
    # Sorting by 32-bit keys shuffles; rounds make ties, which would keep the order, unlikely to matter.
    # Their number depends on the size; for a dynamic one it is that of the largest size, as in JAX.
    most = size if isinstance(size, int) else min(dims.bounds(size)[1], 2**31)
    rounds = math.ceil(3 * math.log(max(1, most)) / math.log(np.iinfo(np.uint32).max))
    order = None
    for _ in range(rounds):
        key, subkey = split(key)
        if independent:
            places = tnp.argsort(bits(subkey, array.shape), axis=axis)
            array = tnp.take_along_axis(array, places, axis)
            continue
        places = tnp.argsort(bits(subkey, (size,)))
        order = places if order is None else tnp.take(order, places)
    return array if order is None else tnp.take(array, order, axis)


__getattr__ = _missing(__name__)
publish(globals())
