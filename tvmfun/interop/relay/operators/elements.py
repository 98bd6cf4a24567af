"""Pointwise operators: arithmetic, comparisons, conversions and activations."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.interop.layouts import pointwise
from tvmfun.interop.relay.operators.table import DType, Family, Unread, as_dtype, axis_of
from tvmfun.nn import functional as nnf

relay = Family(__name__)


def _rounded(x: Any) -> Any:
    """The nearest integer; halves are rounded away from zero, as C's ``round`` does."""
    whole = tnp.trunc(x)
    return tnp.where(tnp.abs(x - whole) >= 0.5, whole + tnp.sign(x), whole)


relay.maps(
    {
        "abs": tnp.abs,
        "acos": tnp.acos,
        "acosh": tnp.acosh,
        "asin": tnp.asin,
        "asinh": tnp.asinh,
        "atan": tnp.atan,
        "atanh": tnp.atanh,
        "bitwise_not": tnp.bitwise_not,
        "ceil": tnp.ceil,
        "cos": tnp.cos,
        "cosh": tnp.cosh,
        "erf": lax.erf,
        "exp": tnp.exp,
        "fast_erf": lax.erf,
        "fast_exp": tnp.exp,
        "fast_tanh": tnp.tanh,
        "floor": tnp.floor,
        "isfinite": tnp.isfinite,
        "isinf": tnp.isinf,
        "isnan": tnp.isnan,
        "log": tnp.log,
        "log10": tnp.log10,
        "log2": tnp.log2,
        "logical_not": tnp.logical_not,
        "negative": tnp.negative,
        "nn.relu": nnf.relu,
        "ones_like": tnp.ones_like,
        "round": _rounded,
        "rsqrt": lax.rsqrt,
        "sigmoid": nnf.sigmoid,
        "sign": tnp.sign,
        "sin": tnp.sin,
        "sinh": tnp.sinh,
        "sqrt": tnp.sqrt,
        "tan": tnp.tan,
        "tanh": tnp.tanh,
        "trunc": tnp.trunc,
        "zeros_like": tnp.zeros_like,
    },
    operands=1,
)
relay.maps(
    {
        "add": tnp.add,
        "bitwise_and": tnp.bitwise_and,
        "bitwise_or": tnp.bitwise_or,
        "bitwise_xor": tnp.bitwise_xor,
        # Quotients of integers are truncated, and remainders have the dividend's sign.
        "divide": lax.div,
        "equal": tnp.equal,
        "floor_divide": tnp.floor_divide,
        "floor_mod": tnp.remainder,
        "greater": tnp.greater,
        "greater_equal": tnp.greater_equal,
        "left_shift": tnp.left_shift,
        "less": tnp.less,
        "less_equal": tnp.less_equal,
        "logical_and": tnp.logical_and,
        "logical_or": tnp.logical_or,
        "logical_xor": tnp.logical_xor,
        "maximum": tnp.maximum,
        "minimum": tnp.minimum,
        "mod": tnp.fmod,
        "multiply": tnp.multiply,
        "not_equal": tnp.not_equal,
        "power": tnp.power,
        "right_shift": tnp.right_shift,
        "subtract": tnp.subtract,
        "trunc_divide": lax.div,
        "trunc_mod": tnp.fmod,
    },
    operands=2,
)


# -- values that pass through ------------------------------------------------------------------------------------------


@relay.reads("copy", "annotation.checkpoint", "annotation.stop_fusion", layouts=True)
def _copy(x: Any) -> Any:
    return x


@relay.reads("device_copy", layouts=True)
def _device_copy(
    x: Any,
    *,
    src_virtual_device: Unread = None,
    dst_virtual_device: Unread = None,
    src_dev_type: Unread = None,
    dst_dev_type: Unread = None,
) -> Any:
    return x


@relay.reads("on_device", layouts=True)
def _on_device(
    x: Any, *, virtual_device: Unread = None, constrain_body: Unread = None, constrain_result: Unread = None
) -> Any:
    return x


@relay.reads("annotation.compiler_begin", "annotation.compiler_end", layouts=True)
def _compiler(x: Any, *, compiler: Unread = None) -> Any:
    return x


# -- conversions and choices -------------------------------------------------------------------------------------------


@relay.reads("cast", layouts=True)
@pointwise
def _cast(x: Any, *, dtype: DType) -> Any:
    return as_dtype(x, dtype)


@relay.reads("cast_like", mixed=True)
def _cast_like(x: Any, like: Any) -> Any:
    return as_dtype(x, like.dtype.name)


@relay.reads("reinterpret")
def _reinterpret(x: Any, *, dtype: DType) -> Any:
    return lax.bitcast_convert_type(x, dtype)


@relay.reads("clip", layouts=True)
@pointwise
def _clip(x: Any, *, a_min: float, a_max: float) -> Any:
    if dtypes.is_float(x.dtype):
        return tnp.clip(x, a_min, a_max)
    info = tnp.iinfo(x.dtype)
    return tnp.clip(x, max(int(info.min), int(max(a_min, info.min))), int(min(a_max, info.max)))


@relay.reads("where", mixed=True, layouts=True)
@pointwise
def _where(condition: Any, x: Any, y: Any) -> Any:
    return tnp.where(condition if condition.dtype.name == "bool" else condition != 0, x, y)


# -- activations -------------------------------------------------------------------------------------------------------


@relay.reads("nn.leaky_relu", layouts=True)
@pointwise
def _leaky_relu(x: Any, *, alpha: float = 0.25) -> Any:
    return tnp.where(x > 0, x, x * alpha)


def _along(name: str, parameter: Any, axis: int, x: Any) -> Any:
    """A parameter with one axis, with axes that broadcast it along an axis of ``x``."""
    return tnp.reshape(parameter, (*parameter.shape, *(1,) * (x.ndim - axis_of(name, axis, x.ndim) - 1)))


@relay.reads("nn.prelu", layouts=True)
def _prelu(x: Any, slope: Any, *, axis: int = 1) -> Any:
    return pointwise(lambda x, slope: tnp.where(x > 0, x, x * slope))(x, _along("nn.prelu", slope, axis, x))


@relay.reads("nn.softmax", "nn.fast_softmax")
def _softmax(x: Any, *, axis: int = -1) -> Any:
    return nnf.softmax(x, axis)


@relay.reads("nn.log_softmax")
def _log_softmax(x: Any, *, axis: int = -1) -> Any:
    return nnf.log_softmax(x, axis)


@relay.reads("nn.bias_add", layouts=True)
def _bias_add(x: Any, bias: Any, *, axis: int = 1) -> Any:
    return pointwise(tnp.add)(x, _along("nn.bias_add", bias, axis, x))
