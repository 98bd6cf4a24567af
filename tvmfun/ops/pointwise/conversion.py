"""Conversion between dtypes, and the identity without a derivative."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.dims import may_be_long
from tvmfun.core.expressions import dtype_name
from tvmfun.core.op import REGISTRY, no_flops
from tvmfun.core.relax import Spelling
from tvmfun.core.trace import argument, producer
from tvmfun.errors import DtypeError
from tvmfun.ops.formula import NARROW, bfloat16_bits, hidden, is_float, is_nan, opaque, zero
from tvmfun.ops.parameters import Dtype
from tvmfun.ops.pointwise.comparison import differ
from tvmfun.ops.pointwise.registration import pointwise
from tvmfun.ops.simplify import cast, made_by

__all__ = ["astype", "bitcast", "stop_gradient"]


def _astype_shape(x: ShapeDtype, *, dtype: Dtype, weak: bool = False) -> ShapeDtype:
    return ShapeDtype(x.shape, dtypes.canonical(dtype), weak=weak)


def _to_integer(x: Any, dtype: str) -> Any:
    """A float as an integer, as in XLA: truncated towards 0 and saturating, and 0 for NaN.

    In LLVM a value that does not fit gives poison, and vectors differ from scalars there.
    """
    info = np.iinfo(dtype)
    whole = lambda value: opaque(value, dtype) if info.bits == 64 and value else tirx.const(value, dtype)
    known = _constant(x)
    if known is not None:  # TVM's simplifier would convert NaN and infinities
        return whole(0 if math.isnan(known) else int(min(max(known, info.min), info.max)))
    if dtype_name(x) in ("float16", "bfloat16"):
        x = tirx.Cast("float32", x)
    if info.bits <= 16:  # whose limits are floats, so that all steps use vectors of floats
        least, most = (tirx.const(float(limit), dtype_name(x)) for limit in (info.min, info.max))
        within = tirx.Select(is_nan(x), zero(x), tirx.Select(x < most, tirx.Select(x > least, x, least), most))
        return within.astype("int32").astype(dtype)
    low, end = (tirx.const(float(limit), dtype_name(x)) for limit in (info.min, 2 ** (info.bits - (info.min < 0))))
    outside = tirx.Select(x >= end, whole(info.max), tirx.Select(x < low, whole(info.min), tirx.const(0, dtype)))
    return tirx.Select(tirx.And(x >= low, x < end), x.astype(dtype), outside)


def _constant(x: Any) -> float | None:
    """The value of a constant float; TVM represents bfloat16 constants as conversions."""
    if isinstance(x, tirx.Cast) and isinstance(x.value, tirx.FloatImm) and dtype_name(x) == "bfloat16":
        return float(dtypes.canonical("bfloat16").type(x.value.value))
    return x.value if isinstance(x, tirx.FloatImm) else None


def _rounded_to_odd(x: Any) -> Any:
    """A float64 as a float32, rounded to odd: if inexact, to the neighbour whose last bit is 1.

    The result is on the same side of every half precision number, and of the middle between two, as the float64, so it
    is rounded to float16 like the float64. Processors without an instruction for that call a function per element.
    Boldo and Melquiond, *Emulation of FMA and correctly rounded sums*, 2008.
    """
    whole = lambda value: tirx.const(value, "int64")
    bits = tirx.reinterpret("int64", x)
    rest, last = 2**29 - 1, 2**29  # the bits that a float32 has not, and the last one that it has
    inexact = ((bits & whole(rest)) + whole(rest)) & whole(last)
    return tirx.reinterpret("float64", (bits | inexact) & whole(~rest)).astype("float32")


def _astype(x: Any, *, dtype: str, weak: bool = False) -> Any:
    if dtype == dtype_name(x):
        return x
    if dtype == "bool":
        return differ(x, zero(x))
    if dtype_name(x) == "bool":  # LLVM's signed view of true is -1
        return tirx.Select(x, tirx.const(1, dtype), tirx.const(0, dtype))
    if is_float(x) and dtypes.is_integer(dtypes.canonical(dtype)):
        return _to_integer(x, dtype)
    if dtype in NARROW and not is_float(x) and dtype != dtype_name(x):
        return hidden(x).astype(dtype)
    if dtype == "float16" and dtype_name(x) == "float64":
        x = _rounded_to_odd(x)
    return x.astype(dtype)


def _astype_exact(x: np.generic, *, dtype: str, weak: bool = False) -> np.generic | None:
    # A conversion to the same dtype stays an equation: it gives a number a dtype that is not weak.
    return None if x.dtype == dtype else cast(x, dtype=dtype)


def _is_widened(x: Any, dtype: np.dtype) -> bool:
    """Whether ``x`` has half precision, which a float of this dtype holds exactly."""
    return (
        isinstance(x, Array)
        and x.dtype in (dtypes.float16, dtypes.bfloat16)
        and dtypes.is_float(dtype)
        and dtype.itemsize > 2
    )


def _astype_simplify(x: Any, *, dtype: str, weak: bool = False) -> Any:
    if isinstance(x, Array) and x.dtype == dtype:
        return x
    if made_by(x, "astype") and _is_widened(inner := argument(x, 0), x.dtype) and inner.dtype == dtype:
        return inner
    # A size is a Python integer of any length, for which int32 may be too small.
    if made_by(x, "dim_size") and x.dtype == dtypes.int32 and dtypes.is_float(dtypes.canonical(dtype)):
        equation = producer(x)
        assert equation is not None
        if may_be_long(equation.params["size"]):
            return astype(REGISTRY["dim_size"](size=equation.params["size"], dtype="float64"), dtype=dtype, weak=weak)
    return None


#: ``astype(x, dtype=, weak=)``: the elements in another dtype, which gives way to that of arrays if it is weak.
astype = pointwise(
    "astype",
    _astype,
    (lambda g, o, x, **params: astype(g, dtype=dtypes.NAMES[x.dtype]),),
    shape=_astype_shape,
    spelling=Spelling(
        "relax.astype",
        lambda exprs, params: relax.op.astype(*exprs, params["dtype"]),
        lambda call: (list(call.args), {"dtype": str(call.attrs.dtype)}),
    ),
    simplify=_astype_simplify,
    exact=_astype_exact,
    flops=no_flops,
)


def _bitcast_shape(x: ShapeDtype, *, dtype: Dtype) -> ShapeDtype:
    result = dtypes.canonical(dtype)
    if result.itemsize != x.dtype.itemsize or dtypes.bool_ in (x.dtype, result):
        raise DtypeError("bitcast", "both dtypes must have the same number of bits", got=f"{x.dtype} to {result}")
    return ShapeDtype(x.shape, result)


def _bitcast(x: Any, *, dtype: str) -> Any:
    if dtype_name(x) != "bfloat16":
        return tirx.reinterpret(dtype, x)
    # Within a kernel, a bfloat16 is a float32 that has not been rounded yet.
    return tirx.reinterpret(dtype, bfloat16_bits(x))


bitcast = pointwise("bitcast", _bitcast, shape=_bitcast_shape, precision="high", flops=no_flops)
stop_gradient = pointwise("stop_gradient", lambda x: x, (None,), shape=lambda x: x, flops=no_flops)
