"""Random numbers as pure functions of a key: Threefry-2x32 in counter mode.

A key is an array ``uint32[2]``; using it twice gives the same numbers twice. The bits are those of JAX's default
generator for the same key, shape and dtype.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); layout as in ``jax.random``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfun import dtypes, lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.ops.bits import threefry2x32

_UINTS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


def key(seed: Any) -> Array:
    """Returns the key of an integer seed: its high and low 32 bits.

    >>> key(42)
    Array([ 0, 42], dtype=uint32)
    """
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        bits = int(seed) & 0xFFFFFFFFFFFFFFFF
        return tnp.asarray(np.asarray([bits >> 32, bits & 0xFFFFFFFF], np.uint32))
    aval = abstract(seed, "key")
    if not dtypes.is_integer(aval.dtype) or aval.shape:
        raise DtypeError("key", "the seed must be one integer", got=repr(aval))
    return _counter(seed)


def _counter(number: Any) -> Array:
    """An integer as a pair of 32-bit words, high word first."""
    number = tnp.asarray(number)
    high = tnp.zeros((), dtype="uint32")
    if number.dtype.itemsize == 8:
        high = tnp.astype(tnp.bitwise_right_shift(tnp.astype(number, "uint64"), 32), "uint32")
    return tnp.stack([high, tnp.astype(number, "uint32")])


def _check_key(key: Any) -> Array:
    aval = abstract(key, "random")
    if aval.dtype != dtypes.uint32 or aval.shape[-1:] != (2,) or len(aval.shape) != 1:
        raise ShapeError(
            "random",
            "a key is uint32[2]",
            got=repr(aval),
            hint="tvmfun.random.key(seed), or one row of split",
        )
    return tnp.asarray(key)


def _blocks(key: Array, shape: tuple[int, ...], word: str) -> Array:
    return threefry2x32(key, np.zeros(2, np.uint32), shape=shape, word=word)


def split(key: Any, num: Shape = 2) -> Array:
    """Returns new keys, as an array ``uint32[num, 2]`` to unpack or index; the old one should not be used again.

    >>> first, second = split(key(0))
    >>> first
    Array([1797259609, 2579123966], dtype=uint32)
    """
    key = _check_key(key)
    shape = as_shape(num)
    return tnp.stack([_blocks(key, shape, "first"), _blocks(key, shape, "second")], axis=-1)


def fold_in(key: Any, data: Any) -> Array:
    """Returns a new key that depends on the key and the 32-bit integer ``data``, such as a step number."""
    key = _check_key(key)
    if isinstance(data, int):
        data = np.uint32(data & 0xFFFFFFFF)
    low = tnp.astype(tnp.asarray(data), "uint32")
    counter = tnp.stack([tnp.zeros((), dtype="uint32"), low])
    words = [threefry2x32(key, counter, shape=(), word=word) for word in ("first", "second")]
    return tnp.stack(words)


def bits(key: Any, shape: Shape = (), dtype: Any = "uint32") -> Array:
    """Returns uniform random bits as unsigned integers of 8, 16, 32 or 64 bits."""
    key = _check_key(key)
    dtype = dtypes.canonical(dtype)
    if dtype not in dtypes.UNSIGNED:
        raise DtypeError("bits", "the dtype must be an unsigned integer", got=dtypes.NAMES[dtype])
    shape = as_shape(shape)
    if dtype == dtypes.uint64:
        high = tnp.astype(_blocks(key, shape, "first"), "uint64")
        return tnp.bitwise_or(
            tnp.bitwise_left_shift(high, 32), tnp.astype(_blocks(key, shape, "second"), "uint64")
        )
    return tnp.astype(_blocks(key, shape, "xor"), dtype)


def _float_dtype(name: str, dtype: Any) -> np.dtype:
    dtype = dtypes.canonical(dtype)
    if not dtypes.is_float(dtype):
        raise DtypeError(name, "the dtype must be a float", got=dtypes.NAMES[dtype])
    return dtype


# The bits of the mantissa: as many random bits as make a float in [1, 2).
_MANTISSA = {dtypes.bfloat16: 7, dtypes.float16: 10, dtypes.float32: 23, dtypes.float64: 52}


def uniform(
    key: Any, shape: Shape = (), dtype: Any = "float32", minval: Any = 0.0, maxval: Any = 1.0
) -> Array:
    r"""Returns floats uniform in :math:`[\text{minval}, \text{maxval})`.

    >>> uniform(key(0))
    Array(0.947667, dtype=float32)
    """
    dtype = _float_dtype("uniform", dtype)
    mantissa, width = _MANTISSA[dtype], dtype.itemsize * 8
    low, high = (tnp.astype(tnp.asarray(v), dtype) if isinstance(v, Array) else v for v in (minval, maxval))
    uint = _UINTS[dtype.itemsize]
    # bfloat16 draws 16 bits like float16, so that the bits are those of JAX.
    random = bits(key, shape, uint)
    one = int(np.ones((), dtype).view(uint))
    pattern = tnp.bitwise_or(tnp.bitwise_right_shift(random, width - mantissa), one)
    unit = tnp.subtract(lax.bitcast_convert_type(pattern, dtype), 1.0)
    span = (
        tnp.subtract(high, low)
        if isinstance(high, Array) or isinstance(low, Array)
        else _rounded_difference(high, low, dtype)
    )
    return tnp.maximum(low, tnp.add(tnp.multiply(unit, span), low))


def _rounded_difference(high: float, low: float, dtype: np.dtype) -> Any:
    """``high - low`` in the arithmetic of ``dtype``."""
    return dtype.type(high) - dtype.type(low)


def normal(key: Any, shape: Shape = (), dtype: Any = "float32") -> Array:
    r"""Returns floats of the standard normal distribution, :math:`\sqrt 2 \operatorname{erf}^{-1}(u)`.

    >>> normal(key(0), (2,)).shape
    (2,)
    """
    dtype = _float_dtype("normal", dtype)
    low = np.nextafter(dtype.type(-1), dtype.type(0), dtype=dtype)
    u = uniform(key, shape, dtype, minval=low, maxval=1.0)
    return tnp.multiply(dtype.type(math.sqrt(2)), lax.erf_inv(u))


def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None) -> Array:
    """Returns bools that are true with probability ``p``; by default of the shape of ``p``."""
    p = tnp.asarray(p)
    if not dtypes.is_float(p.dtype):
        p = tnp.astype(p, dtypes.DEFAULT_FLOAT)
    return tnp.less(uniform(key, p.shape if shape is None else shape, p.dtype), p)


def randint(key: Any, shape: Shape, minval: int, maxval: int, dtype: Any = "int32") -> Array:
    """Returns integers uniform in ``[minval, maxval)``; both bounds are Python integers.

    Raises:
        ArgumentError: if there is no integer in between.
    """
    dtype = dtypes.canonical(dtype)
    if not dtypes.is_integer(dtype):
        raise DtypeError("randint", "the dtype must be an integer", got=dtypes.NAMES[dtype])
    limits = np.iinfo(dtype)
    if not limits.min <= minval < maxval <= int(limits.max) + 1:
        raise ArgumentError(
            "randint", f"minval < maxval must fit {dtypes.NAMES[dtype]}", got=f"{minval}, {maxval}"
        )
    uint = _UINTS[dtype.itemsize]
    first, second = split(key)
    span = maxval - minval
    width = dtype.itemsize * 8
    if span == 1 << width:
        return tnp.astype(bits(second, shape, uint), dtype)
    # Two draws make a number of twice the width, so that the remainder is nearly uniform.
    multiplier = pow(pow(2, width // 2, span), 2, span)
    high = tnp.remainder(bits(first, shape, uint), span)
    low = tnp.remainder(bits(second, shape, uint), span)
    offset = tnp.remainder(tnp.add(tnp.multiply(high, multiplier), low), span)
    return tnp.add(tnp.astype(offset, dtype), minval)


def permutation(key: Any, x: Any, axis: int = 0) -> Array:
    """Returns the slices of ``x`` along an axis in random order; an integer stands for ``arange``."""
    key = _check_key(key)
    array = tnp.arange(x) if isinstance(x, int) else tnp.asarray(x)
    if not array.ndim:
        raise ShapeError("permutation", "there must be an axis to permute", got=repr(array.aval))
    size = array.shape[axis]
    # Sorting by 32-bit keys shuffles; rounds make ties, which would keep the order, unlikely to matter.
    rounds = math.ceil(3 * math.log(max(1, size)) / math.log(np.iinfo(np.uint32).max))
    order = tnp.arange(size)
    for _ in range(rounds):
        key, subkey = split(key)
        order = tnp.take(order, tnp.argsort(bits(subkey, (size,))))
    return tnp.take(array, order, axis=axis)
