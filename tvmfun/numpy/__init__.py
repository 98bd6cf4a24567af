"""NumPy for programs: functions with the names and meanings of the array API standard, on arrays that can be traced.

Dtypes promote as in JAX: Python numbers take the dtype of the array they meet, and default to int32 and float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from tvmfun.core.array import Array, install_methods
from tvmfun.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    result_type,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tvmfun.numpy import indexing as _indexing
from tvmfun.numpy.creation import (
    arange,
    array,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from tvmfun.numpy.elementwise import (
    abs,
    add,
    astype,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    cos,
    divide,
    equal,
    exp,
    expm1,
    floor,
    floor_divide,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    positive,
    power,
    reciprocal,
    remainder,
    round,
    sign,
    sin,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
    where,
)
from tvmfun.numpy.indexing import (
    argsort,
    sort,
    take,
    take_along_axis,
)
from tvmfun.numpy.linear_algebra import (
    dot,
    matmul,
    outer,
    tensordot,
    vecdot,
)
from tvmfun.numpy.manipulation import (
    broadcast_arrays,
    broadcast_to,
    concat,
    concatenate,
    expand_dims,
    flip,
    hstack,
    matrix_transpose,
    moveaxis,
    pad,
    permute_dims,
    ravel,
    repeat,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    tile,
    transpose,
    unstack,
    vstack,
)
from tvmfun.numpy.statistical import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)

pi = math.pi
e = math.e
inf = math.inf
nan = math.nan
newaxis = None

__all__ = [
    "Array",
    "abs",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "array",
    "asarray",
    "astype",
    "bfloat16",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool_",
    "broadcast_arrays",
    "broadcast_to",
    "ceil",
    "clip",
    "concat",
    "concatenate",
    "cos",
    "count_nonzero",
    "divide",
    "dot",
    "e",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "flip",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "hstack",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "not_equal",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "permute_dims",
    "pi",
    "positive",
    "power",
    "prod",
    "ravel",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "round",
    "sign",
    "sin",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unstack",
    "var",
    "vecdot",
    "vstack",
    "where",
    "zeros",
    "zeros_like",
]

# -- operators and methods of arrays -------------------------------------------------------------------------------


def _operator(function: Callable, *, reflected: bool = False) -> Callable:
    @wraps(function)
    def method(self: Array, other: Any) -> Any:
        if not hasattr(other, "dtype") and not isinstance(other, bool | int | float):
            return NotImplemented  # let the other operand try, and Python explain
        return function(other, self) if reflected else function(self, other)

    return method


_BINARY = {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "truediv": divide,
    "floordiv": floor_divide,
    "mod": remainder,
    "pow": power,
    "matmul": matmul,
    "and": bitwise_and,
    "or": bitwise_or,
    "xor": bitwise_xor,
    "lshift": bitwise_left_shift,
    "rshift": bitwise_right_shift,
}
_COMPARISONS = {
    "eq": equal,
    "ne": not_equal,
    "lt": less,
    "le": less_equal,
    "gt": greater,
    "ge": greater_equal,
}


def _positional_axis(function: Callable) -> Callable:
    @wraps(function)
    def method(self: Array, axis: Any = None, **options: Any) -> Array:
        return function(self, axis=axis, **options)

    return method


def _reshape_method(self: Array, *shape: Any) -> Array:
    """Returns the elements, in row-major order, in another shape, given as a tuple or as integers."""
    return reshape(self, shape[0] if len(shape) == 1 else shape)


def _transpose_method(self: Array, *axes: Any) -> Array:
    """Returns the array with its axes in another order, by default reversed."""
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return transpose(self, order or None)


def _namespace(self: Array, *, api_version: str | None = None) -> Any:
    """Returns this module: the array API's way to find the functions for an array."""
    import tvmfun.numpy

    return tvmfun.numpy


install_methods(
    {
        **{f"__{name}__": _operator(function) for name, function in (_BINARY | _COMPARISONS).items()},
        **{f"__r{name}__": _operator(function, reflected=True) for name, function in _BINARY.items()},
        "__neg__": negative,
        "__pos__": positive,
        "__abs__": abs,
        "__invert__": bitwise_invert,
        "__getitem__": _indexing.getitem,
        "__array_namespace__": _namespace,
        "at": property(_indexing.At),
        "T": property(transpose),
        "mT": property(matrix_transpose),
        "reshape": _reshape_method,
        "transpose": _transpose_method,
        "astype": astype,
        "ravel": ravel,
        "flatten": ravel,
        "squeeze": squeeze,
        "swapaxes": swapaxes,
        "sum": _positional_axis(sum),
        "prod": _positional_axis(prod),
        "mean": _positional_axis(mean),
        "var": _positional_axis(var),
        "std": _positional_axis(std),
        "max": _positional_axis(max),
        "min": _positional_axis(min),
        "any": _positional_axis(any),
        "all": _positional_axis(all),
        "argmax": _positional_axis(argmax),
        "argmin": _positional_axis(argmin),
        "clip": clip,
        "round": round,
        "dot": dot,
        "take": take,
        "repeat": repeat,
    }
)
