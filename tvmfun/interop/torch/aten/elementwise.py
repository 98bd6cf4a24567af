"""Pointwise operators: arithmetic, comparisons, activations, copies and conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.interop.layouts import pointwise
from tvmfun.interop.torch.aten.table import Family
from tvmfun.nn import functional as nnf

aten = Family(__name__)


def _scaled_second(function: Callable) -> Callable:
    return lambda x, y, *, alpha=1: function(x, y if isinstance(alpha, int) and alpha == 1 else tnp.multiply(alpha, y))


def _scaled_first(function: Callable) -> Callable:
    return lambda x, y, alpha=1: function(y, x if isinstance(alpha, int) and alpha == 1 else tnp.multiply(alpha, x))


def _divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return tnp.divide(x, y)
    if rounding_mode == "floor":
        return tnp.floor_divide(x, y)
    if all(not dtypes.is_float(tnp.asarray(a).dtype) for a in (x, y)):
        return lax.div(*tnp.broadcast_arrays(x, y))
    return tnp.trunc(tnp.divide(x, y))


def _power(x: Any, y: Any) -> Any:
    if isinstance(y, int | float) and not isinstance(y, bool) and float(y).is_integer() and abs(y) <= 1024:
        is_float = dtypes.is_float(tnp.asarray(x).dtype)
        return lax.integer_pow(x, int(y)) if is_float or y >= 0 else tnp.power(x, y)
    if isinstance(y, float) and abs(y) == 0.5:
        return tnp.sqrt(x) if y > 0 else lax.rsqrt(x)
    return tnp.power(x, y)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    # PyTorch gives the whole derivative at a bound to x.
    if min is not None:
        x = tnp.where(x < min, min, x)
    if max is not None:
        x = tnp.where(x > max, max, x)
    return x


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    return nnf.gelu(x, approximate=approximate == "tanh")


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x * beta
    return tnp.where(scaled > threshold, x, tnp.logaddexp(tnp.minimum(scaled, threshold), 0.0) / beta)


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    negative = scale * alpha * tnp.expm1(tnp.minimum(x, 0.0) * input_scale)
    return tnp.where(x > 0, scale * x, negative)


def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    return tnp.where(x <= min_val, min_val, tnp.where(x >= max_val, max_val, x))


def _hardsigmoid(x: Any) -> Any:
    return _hardtanh(x + 3.0, 0.0, 6.0) / 6.0


def _log_sigmoid(x: Any) -> Any:
    return -tnp.logaddexp(-x, 0.0)


def _logit(x: Any, eps: float | None = None) -> Any:
    if eps is not None:
        x = tnp.where(x < eps, eps, tnp.where(x > 1 - eps, 1 - eps, x))
    return tnp.log(x / (1 - x))


def _xlogy(x: Any, y: Any) -> Any:
    zero = tnp.equal(x, 0)
    safe = tnp.where(zero & ~tnp.isnan(y), 1.0, y)
    return tnp.multiply(x, tnp.log(safe))


def _nan_to_num(x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    return tnp.nan_to_num(x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


def _round(x: Any, *, decimals: int = 0) -> Any:
    return tnp.round(x, decimals)


def _sign(x: Any) -> Any:
    return x if tnp.asarray(x).dtype == dtypes.bool_ else tnp.sign(x)


aten.maps(
    {
        "abs": tnp.abs,
        "acos": tnp.acos,
        "acosh": tnp.acosh,
        "add": _scaled_second(tnp.add),
        "addcdiv": lambda x, y, z, *, value=1: x + value * (y / z),
        "addcmul": lambda x, y, z, *, value=1: x + value * (y * z),
        "asin": tnp.asin,
        "asinh": tnp.asinh,
        "atan": tnp.atan,
        "atan2": tnp.atan2,
        "atanh": tnp.atanh,
        "bitwise_and": tnp.bitwise_and,
        "bitwise_left_shift": tnp.left_shift,
        "bitwise_not": tnp.bitwise_not,
        "bitwise_or": tnp.bitwise_or,
        "bitwise_right_shift": tnp.right_shift,
        "bitwise_xor": tnp.bitwise_xor,
        "ceil": tnp.ceil,
        "clamp": _clamp,
        "clamp_max": lambda x, max: _clamp(x, None, max),
        "clamp_min": lambda x, min: _clamp(x, min, None),
        "copysign": tnp.copysign,
        "cos": tnp.cos,
        "cosh": tnp.cosh,
        "deg2rad": tnp.deg2rad,
        "digamma": lax.digamma,
        "div": _divide,
        "elu": _elu,
        "erf": lax.erf,
        "erfc": lax.erfc,
        "erfinv": lax.erf_inv,
        "exp": tnp.exp,
        "exp2": tnp.exp2,
        "expm1": tnp.expm1,
        "floor": tnp.floor,
        "floor_divide": tnp.floor_divide,
        "fmax": tnp.fmax,
        "fmin": tnp.fmin,
        "fmod": tnp.fmod,
        "frac": lambda x: x - tnp.trunc(x),
        "gcd": tnp.gcd,
        "gelu": _gelu,
        "hardsigmoid": _hardsigmoid,
        "hardswish": lambda x: x * _hardsigmoid(x),
        "hardtanh": _hardtanh,
        "hypot": tnp.hypot,
        "leaky_relu": lambda x, negative_slope=0.01: tnp.where(x > 0, x, negative_slope * x),
        "lerp": lambda x, y, weight: x + weight * (y - x),
        "lgamma": lax.lgamma,
        "log": tnp.log,
        "log10": tnp.log10,
        "log1p": tnp.log1p,
        "log2": tnp.log2,
        "log_sigmoid": _log_sigmoid,
        "log_sigmoid_forward": lambda x: (_log_sigmoid(x), tnp.exp(-tnp.abs(x))),
        "logaddexp": tnp.logaddexp,
        "logaddexp2": tnp.logaddexp2,
        "logit": _logit,
        "maximum": tnp.maximum,
        "minimum": tnp.minimum,
        "mish": lambda x: x * tnp.tanh(_softplus(x)),
        "mul": tnp.multiply,
        "nan_to_num": _nan_to_num,
        "neg": tnp.negative,
        "positive": lambda x: x,
        "pow": _power,
        "rad2deg": tnp.rad2deg,
        "reciprocal": tnp.reciprocal,
        "relu": lambda x: tnp.where(x > 0, x, tnp.zeros_like(x)),
        "remainder": tnp.remainder,
        "round": _round,
        "rsqrt": lax.rsqrt,
        "rsub": _scaled_first(tnp.subtract),
        "selu": lambda x: _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
        "sgn": _sign,
        "sigmoid": lax.logistic,
        "sign": _sign,
        "silu": nnf.silu,
        "sin": tnp.sin,
        "sinc": tnp.sinc,
        "sinh": tnp.sinh,
        "softplus": _softplus,
        "special_entr": lambda x: -_xlogy(x, x) + tnp.where(x < 0, -tnp.inf, 0.0),
        "special_erfcx": lambda x: tnp.exp(x * x) * lax.erfc(x),
        "sqrt": tnp.sqrt,
        "square": lambda x: x * x,
        "sub": _scaled_second(tnp.subtract),
        "tan": tnp.tan,
        "tanh": tnp.tanh,
        "trunc": tnp.trunc,
        "xlogy": _xlogy,
    }
)
aten.maps(
    {
        "eq": tnp.equal,
        "ge": tnp.greater_equal,
        "gt": tnp.greater,
        "heaviside": tnp.heaviside,
        "isfinite": tnp.isfinite,
        "isinf": tnp.isinf,
        "isnan": tnp.isnan,
        "isneginf": tnp.isneginf,
        "isposinf": tnp.isposinf,
        "le": tnp.less_equal,
        "logical_and": tnp.logical_and,
        "logical_not": tnp.logical_not,
        "logical_or": tnp.logical_or,
        "logical_xor": tnp.logical_xor,
        "lt": tnp.less,
        "masked_fill": lambda x, mask, value: tnp.where(mask, tnp.astype(tnp.asarray(value), x.dtype), x),
        "ne": tnp.not_equal,
        "signbit": tnp.signbit,
        "where": tnp.where,
    },
    promotes=False,
)


# -- copies and conversions --------------------------------------------------------------------------------------------


@aten.reads("_to_copy", "alias", "clone", "lift_fresh", "lift_fresh_copy", layouts=True)
def _copy(x: Any, *, dtype: str | None = None) -> Any:
    return x if dtype is None else pointwise(lambda x: tnp.astype(x, dtype))(x)


@aten.reads("detach", layouts=True)
def _detach(x: Any) -> Any:
    return pointwise(lax.stop_gradient)(x)


@aten.reads("copy")
def _overwrite(x: Any, source: Any, non_blocking: bool = False) -> Any:
    return tnp.broadcast_to(tnp.astype(source, x.dtype), x.shape)


@aten.reads("_prelu_kernel", layouts=True)
@pointwise
def _prelu(x: Any, weight: Any) -> Any:
    return tnp.where(x > 0, x, weight * x)


@aten.reads("glu", layouts=False)
def _glu(x: Any, dim: int = -1) -> Any:
    first, second = tnp.split(x, 2, axis=dim)
    return first * lax.logistic(second)


@aten.reads("threshold", layouts=True)
@pointwise
def _threshold(x: Any, threshold: float, value: float) -> Any:
    return tnp.where(x <= threshold, value, x)


@aten.reads("polygamma")
def _polygamma(n: int, x: Any) -> Any:
    return lax.polygamma(tnp.full(x.shape, float(n), x.dtype), x)


# -- derivatives that ``torch.compile`` asks for -----------------------------------------------------------------------


@aten.reads("threshold_backward", layouts=True)
@pointwise
def _threshold_backward(gradient: Any, x: Any, threshold: float) -> Any:
    return tnp.where(x <= threshold, tnp.zeros_like(gradient), gradient)
