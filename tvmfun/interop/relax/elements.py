"""Relax operators that work element by element, and activations."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.interop.relax.table import TRANSLATIONS, Translation, reads
from tvmfun.nn import functional as nn
from tvmfun.ops import calls

_BOOL = "none: the result is not a float"
_INTEGERS = "none: the arguments are not floats"

for _name, _function, _derivative in (
    ("acos", tnp.acos, ""),
    ("acosh", tnp.acosh, ""),
    ("asin", tnp.asin, ""),
    ("asinh", tnp.asinh, ""),
    ("atan", tnp.atan, ""),
    ("atan2", tnp.atan2, ""),
    ("atanh", tnp.atanh, ""),
    ("clip", tnp.clip, ""),
    ("cosh", tnp.cosh, ""),
    # The record divides floats only.
    ("divide", lax.div, ""),
    ("ewise_fma", lambda x, y, z: x * y + z, ""),
    ("isinf", tnp.isinf, _BOOL),
    ("left_shift", tnp.left_shift, _INTEGERS),
    ("logical_and", tnp.logical_and, _BOOL),
    ("logical_not", tnp.logical_not, _BOOL),
    ("logical_or", tnp.logical_or, _BOOL),
    ("logical_xor", tnp.logical_xor, _BOOL),
    ("mod", tnp.fmod, ""),
    ("right_shift", tnp.right_shift, _INTEGERS),
    ("sinh", tnp.sinh, ""),
    ("square", tnp.square, ""),
    ("tan", tnp.tan, ""),
    ("nn.gelu", lambda x: nn.gelu(x, approximate=False), ""),
    ("nn.gelu_tanh", nn.gelu, ""),
    ("nn.silu", lambda x: x * nn.sigmoid(x), ""),
    ("grad.no_grad", lax.stop_gradient, "zero: that is its meaning"),
    # Markers around the region to recompute, without a function to pass to `checkpoint`: they return their argument.
    ("grad.start_checkpoint", calls.barrier, ""),
    ("grad.end_checkpoint", calls.barrier, ""),
):
    TRANSLATIONS[f"relax.{_name}"] = Translation(f"relax.{_name}", _function, _derivative)


@reads("relax.nn.leakyrelu")
def _leakyrelu(x: Any, *, alpha: float) -> Any:
    return tnp.where(x > 0, x, x * alpha)


@reads("relax.nn.prelu")
def _prelu(x: Any, slope: Any, *, axis: int) -> Any:
    axis = axis % x.ndim
    return tnp.where(x > 0, x, x * tnp.reshape(slope, (-1, *(1,) * (x.ndim - axis - 1))))


@reads("relax.nn.selu")
def _selu(x: Any) -> Any:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return scale * tnp.where(x > 0, x, alpha * tnp.expm1(tnp.minimum(x, 0)))


@reads("relax.nn.softplus")
def _softplus(x: Any, *, beta: float, threshold: float) -> Any:
    scaled = x * beta
    # The logarithm is not used above the threshold, and must not overflow there.
    return tnp.where(scaled > threshold, x, tnp.logaddexp(tnp.minimum(scaled, threshold), 0) / beta)


@reads("relax.nn.softmax")
def _softmax(x: Any, *, axis: int) -> Any:
    return nn.softmax(x, axis)


@reads("relax.nn.log_softmax")
def _log_softmax(x: Any, *, axis: int) -> Any:
    return nn.log_softmax(x, axis)


@reads("relax.nn.dropout")
def _dropout(x: Any) -> Any:
    # As in TVM's legalization, which is for inference: nothing is dropped.
    return x, tnp.ones_like(x)


def _qparameter(value: Any, x: Any, axis: int) -> Any:
    """A scale or zero point, one for all or one per index of the axis, with axes that broadcast."""
    value = tnp.asarray(value)
    return tnp.reshape(value, ()) if value.size == 1 else tnp.reshape(value, (-1, *(1,) * (x.ndim - axis % x.ndim - 1)))


def _clipped(x: Any, dtype: str) -> Any:
    info = tnp.iinfo(dtype) if "int" in dtype else tnp.finfo(dtype)
    return tnp.astype(tnp.clip(x, info.min, info.max), dtype)


@reads("relax.quantize", "zero: the result is rounded")
def _quantize(x: Any, scale: Any, zero_point: Any, *, axis: int, out_dtype: str) -> Any:
    scaled = x / tnp.astype(_qparameter(scale, x, axis), x.dtype)
    rounded = tnp.round(scaled) if "int" in out_dtype else scaled
    return _clipped(rounded + tnp.astype(_qparameter(zero_point, x, axis), x.dtype), out_dtype)


@reads("relax.dequantize")
def _dequantize(x: Any, scale: Any, zero_point: Any, *, axis: int, out_dtype: str) -> Any:
    zero_point = _qparameter(zero_point, x, axis)
    wide = "float32" if tnp.isdtype(x.dtype, "real floating") else "int32"
    shifted = tnp.astype(x, wide) - tnp.astype(zero_point, wide)
    result = tnp.astype(shifted, "float32") * tnp.astype(_qparameter(scale, x, axis), "float32")
    return result if out_dtype == "float32" else _clipped(result, out_dtype)
