"""Conversions of dtypes, also to and from those of a few bits, and quantized numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.interop.onnx.operators.products import conv_integer, matmul_integer
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.tensors import Narrow, dtype_of, is_narrow

onnx = Family(__name__)

_INTEGERS = {
    np.dtype(t): bits
    for t, bits in ((ml_dtypes.int4, 4), (ml_dtypes.uint4, 4), (ml_dtypes.int2, 2), (ml_dtypes.uint2, 2))
}
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_FLOAT4 = np.dtype(ml_dtypes.float4_e2m1fn)


@cache
def _table(dtype: np.dtype) -> np.ndarray:
    """The value of each pattern of bits."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


def decoded(x: Any) -> Any:
    """The elements of a narrow array in single precision; other arrays are unchanged."""
    return tnp.take(tnp.asarray(_table(x.dtype)), tnp.astype(x.bits, "int32")) if isinstance(x, Narrow) else x


@cache
def _thresholds(dtype: np.dtype) -> np.ndarray:
    """The least magnitude that rounds to each finite one but zero, and to infinity; ties go to even bits."""
    magnitudes = _table(dtype)[: 8 if dtype == _FLOAT4 else 128].astype(np.float64)
    finite = magnitudes[np.isfinite(magnitudes)]
    steps = np.append(finite, finite[-1] + (finite[-1] - finite[-2]))
    middles = ((steps[1:] + steps[:-1]) / 2).astype(np.float32)
    to_even = np.arange(1, len(steps)) % 2 == 0
    return np.where(to_even, middles, np.nextafter(middles, np.float32(np.inf)))


def encoded(x: Any, dtype: np.dtype, saturate: bool = True, round_mode: str = "up") -> Narrow:
    """An array rounded to a narrow dtype, to the nearest and then the even value.

    Args:
        x: an array.
        dtype: of the result.
        saturate: whether numbers out of range become the largest one, and not infinity or NaN.
        round_mode: of powers of two.
    """
    if dtype in _INTEGERS:
        return Narrow(_integer_bits(x, dtype), dtype)
    x = tnp.astype(x, "float32")
    if dtype == _E8M0:
        return Narrow(_exponent_bits(x, saturate, round_mode), dtype)
    limits = _thresholds(dtype)
    most = len(limits) - 1
    index = tnp.searchsorted(tnp.asarray(limits), tnp.abs(x), side="right")
    special = np.asarray(np.inf, np.float32).astype(dtype).view(np.uint8).item() & 0x7F
    infinity = special if np.isinf(_table(dtype)[special]) else None
    nan = int(np.asarray(np.nan, np.float32).astype(dtype).view(np.uint8).item())
    has_nan, is_over = dtype != _FLOAT4, index > most
    beyond = most if saturate or not has_nan else infinity if infinity is not None else nan
    bits = tnp.where(is_over, beyond, index)
    sign = 8 if dtype == _FLOAT4 else 128
    is_negative = tnp.signbit(x)
    if "fnuz" in dtype.name:  # the bits of a negative zero are NaN
        is_negative = is_negative & (bits != 0) & (bits != nan)
    bits = tnp.where(is_negative, bits | sign, bits)
    is_nan = tnp.isnan(x) if saturate or infinity is not None or not has_nan else tnp.isnan(x) | is_over
    signed = has_nan and "fnuz" not in dtype.name
    bits = tnp.where(is_nan, tnp.where(tnp.signbit(x), nan | 128, nan & 127) if signed else nan, bits)
    return Narrow(tnp.astype(bits, "uint8"), dtype)


def _integer_bits(x: Any, dtype: np.dtype) -> Any:
    """Integers of a few bits, one in each byte, with the sign in its upper half."""
    bits = _INTEGERS[dtype]
    whole = tnp.astype(tnp.trunc(x) if dtypes.is_float(x.dtype) else x, "int32")
    low = whole & ((1 << bits) - 1)
    if ml_dtypes.iinfo(dtype).min < 0:
        low = tnp.where(low >= 1 << (bits - 1), low - (1 << bits), low)
    return tnp.astype(low & 0xFF, "uint8")


def _exponent_bits(x: Any, saturate: bool, round_mode: str) -> Any:
    """The exponents of powers of two; NaN for other numbers."""
    bits = lax.bitcast_convert_type(tnp.abs(x), "uint32")
    exponent, mantissa = tnp.astype(bits >> 23, "int32"), tnp.astype(bits & 0x7FFFFF, "int32")
    if round_mode == "up":
        more = mantissa > 0
        more = tnp.where(exponent == 0, mantissa > 0x400000, more)
    elif round_mode == "nearest":
        more = tnp.where(exponent == 0, mantissa > 0x400000, mantissa >= 0x400000)
    else:
        more = mantissa < 0
    result = tnp.minimum(exponent + more, 254 if saturate else 255)
    return tnp.astype(tnp.where(tnp.isnan(x) | (x < 0), 255, result), "uint8")


def converted(x: Any, dtype: np.dtype, saturate: bool = True, round_mode: str = "up") -> Any:
    """An array, narrow or not, as one of another dtype."""
    if isinstance(x, Narrow) and x.dtype == dtype:
        return x
    x = decoded(x)
    if is_narrow(dtype):
        return encoded(x, dtype, saturate, round_mode)
    return tnp.astype(x, dtype)


@onnx.reads("Cast", narrow=True)
def _cast(x: Any, *, to: Any, saturate: int = 1, round_mode: str = "up") -> Any:
    dtype = dtypes.canonical(to.lower()) if isinstance(to, str) else dtype_of(to, "a cast")
    return converted(x, dtype, bool(saturate), round_mode)


@onnx.reads("CastLike", narrow=True)
def _cast_like(x: Any, like: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    return converted(x, np.dtype(like.dtype), bool(saturate), round_mode)


@onnx.reads("BitCast")
def _bit_cast(x: Any, *, to: int) -> Any:
    dtype = dtype_of(to, "a cast")
    if dtype == dtypes.bool_:
        return tnp.astype(x, dtype)
    return lax.bitcast_convert_type(tnp.astype(x, "uint8") if x.dtype == dtypes.bool_ else x, dtype)


# -- quantized numbers -------------------------------------------------------------------------------------------------


def _spread(value: Any, x: Any, axis: int, block_size: int) -> Any:
    """A scale or zero point with axes that broadcast over an array."""
    if value.size == 1 and not block_size:
        return tnp.reshape(value, ())
    axis = axis % max(x.ndim, 1)
    if block_size:
        index = np.minimum(np.arange(x.shape[axis]) // block_size, value.shape[axis] - 1)
        return tnp.take(value, index, axis=axis)
    return tnp.reshape(value, (-1, *(1,) * (x.ndim - axis - 1)))


@onnx.reads("QuantizeLinear", narrow=True, frozen=(1, 2))
def quantized(
    x: Any,
    scale: Any,
    zero: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Any:
    """Numbers divided by a scale, rounded and moved by a zero point."""
    dtype = np.dtype(zero.dtype) if zero is not None else dtype_of(output_dtype or 2, "QuantizeLinear")
    wide = tnp.astype(x, dtype_of(precision, "QuantizeLinear")) if precision else x
    wide = wide if dtypes.is_float(wide.dtype) else tnp.astype(wide, "float32")
    y = wide / tnp.astype(_spread(scale, x, axis, block_size), wide.dtype)
    is_integer = dtypes.is_integer(dtype) or dtype in _INTEGERS
    if not is_integer:
        return converted(y, dtype, bool(saturate))
    y = tnp.round(tnp.astype(y, "float32") if y.dtype.itemsize < 4 else y)
    if zero is not None:
        shift = decoded(zero) if isinstance(zero, Narrow) else zero
        y = y + tnp.astype(_spread(shift, x, axis, block_size), y.dtype)
    limits = ml_dtypes.iinfo(dtype) if dtype in _INTEGERS else np.iinfo(dtype)
    return converted(tnp.clip(y, int(limits.min), int(limits.max)), dtype)


@onnx.reads("DequantizeLinear", narrow=True, frozen=(1, 2))
def dequantized(
    x: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Any:
    """Numbers moved by a zero point and multiplied by a scale."""
    kind = dtype_of(output_dtype, "DequantizeLinear") if output_dtype else scale.dtype
    y = decoded(x)
    wide = y if dtypes.is_float(y.dtype) else tnp.astype(y, "int32")
    if zero is not None:
        wide = wide - tnp.astype(_spread(decoded(zero), wide, axis, block_size), wide.dtype)
    result = tnp.astype(wide, "float32") * tnp.astype(_spread(scale, wide, axis, block_size), "float32")
    return tnp.astype(result, kind)


@onnx.reads("DynamicQuantizeLinear")
def _dynamic_quantize_linear(x: Any) -> Any:
    """Bytes, with the scale and the zero point that cover the array and zero."""
    least, most = tnp.minimum(tnp.min(x), 0), tnp.maximum(tnp.max(x), 0)
    scale = (most - least) / 255
    zero = tnp.clip(tnp.round((0 - least) / scale), 0, 255)
    y = tnp.clip(tnp.round(x / scale) + zero, 0, 255)
    return tnp.astype(y, "uint8"), scale, tnp.astype(zero, "uint8")


def _requantized(product: Any, factor: Any, zero: Any) -> Any:
    limits = np.iinfo(zero.dtype)
    y = tnp.round(tnp.astype(product, "float32") * tnp.astype(factor, "float32")) + tnp.astype(zero, "float32")
    return tnp.astype(tnp.clip(y, int(limits.min), int(limits.max)), zero.dtype)


@onnx.reads("QLinearMatMul", frozen=(1, 2, 4, 5, 6, 7))
def _qlinear_matmul(a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, scale: Any, zero: Any) -> Any:
    product = matmul_integer(a, b, a_zero, b_zero)
    one = lambda value: tnp.reshape(value, ()) if value.size == 1 else value
    factor = (
        one(tnp.astype(a_scale, "float32")) * one(tnp.astype(b_scale, "float32")) / one(tnp.astype(scale, "float32"))
    )
    return _requantized(product, factor, one(zero))


@onnx.reads("QLinearConv", frozen=(1, 2, 4, 5, 6, 7))
def _qlinear_conv(
    x: Any,
    x_scale: Any,
    x_zero: Any,
    w: Any,
    w_scale: Any,
    w_zero: Any,
    scale: Any,
    zero: Any,
    bias: Any = None,
    **options: Any,
) -> Any:
    product = conv_integer(x, w, x_zero, w_zero, **options)
    channels = lambda value: tnp.reshape(value, (-1, *(1,) * (x.ndim - 2)))
    product = product if bias is None else product + channels(bias)
    return _requantized(product, channels(w_scale) * tnp.reshape(x_scale / scale, ()), tnp.reshape(zero, ()))
