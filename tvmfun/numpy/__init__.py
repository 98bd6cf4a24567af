"""NumPy for programs: functions with the names and meanings of the array API standard, which can be traced.

Dtypes promote as in JAX: Python numbers take the dtype of the array they meet and are int32 or float32 alone.
"""

from __future__ import annotations

import math
import sys
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
    uint8,
    uint16,
    uint32,
    uint64,
)
from tvmfun.errors import ArgumentError
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
from tvmfun.numpy.promotion import result_type
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

# -- operators and methods of arrays -------------------------------------------------------------------------


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


def _reduction(function: Callable) -> Callable:
    @wraps(function)
    def method(self: Array, axis: Any = None, *args: Any, out: None = None, **options: Any) -> Array:
        # `numpy.sum(x)` calls `x.sum(axis=None, dtype=None, out=None)`.
        if out is not None:
            raise ArgumentError(function.__name__, "arrays are immutable, so there is no out", got=repr(out))
        return function(self, axis, *args, **options)

    return method


def _contains(self: Array, value: Any) -> bool:
    """Returns whether an element equals ``value``."""
    return bool(any(equal(self, value)))


def _divmod(self: Array, other: Any) -> tuple[Array, Array]:
    """Returns the floor division and its remainder."""
    return floor_divide(self, other), remainder(self, other)


def _rdivmod(self: Array, other: Any) -> tuple[Array, Array]:
    """Returns the floor division of ``other`` and its remainder."""
    return floor_divide(other, self), remainder(other, self)


def _round(self: Array, decimals: int | None = None) -> Array:
    """Returns the nearest number with so many decimals: Python's ``round``."""
    return round(self, decimals or 0)


def _reshape(self: Array, *shape: Any) -> Array:
    """Returns the elements, in row-major order, in another shape, given as a tuple or as integers."""
    return reshape(self, shape[0] if len(shape) == 1 else shape)


def _transpose(self: Array, *axes: Any) -> Array:
    """Returns the array with its axes in another order, by default reversed."""
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return transpose(self, order or None)


def _to_device(self: Array, device: Any, /, *, stream: None = None) -> Array:
    """Returns the array on a device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``."""
    return asarray(self, device=device)


def _namespace(self: Array, *, api_version: str | None = None) -> Any:
    """Returns this module: the array API's way to find the functions for an array."""
    return sys.modules[__name__]


_REDUCTIONS = (sum, prod, mean, var, std, max, min, any, all, argmax, argmin)

install_methods(
    {
        **{f"__{name}__": _operator(function) for name, function in (_BINARY | _COMPARISONS).items()},
        **{f"__r{name}__": _operator(function, reflected=True) for name, function in _BINARY.items()},
        "__divmod__": _divmod,
        "__rdivmod__": _rdivmod,
        "__neg__": negative,
        "__pos__": positive,
        "__abs__": abs,
        "__invert__": bitwise_invert,
        "__round__": _round,
        "__contains__": _contains,
        "__getitem__": _indexing.getitem,
        "__array_namespace__": _namespace,
        "at": property(_indexing.At),
        "T": property(transpose),
        "mT": property(matrix_transpose),
        "reshape": _reshape,
        "transpose": _transpose,
        "to_device": _to_device,
        "astype": astype,
        "ravel": ravel,
        "flatten": ravel,
        "squeeze": squeeze,
        "swapaxes": swapaxes,
        "argsort": argsort,
        "clip": clip,
        "copy": positive,
        "dot": dot,
        "repeat": repeat,
        "round": round,
        "take": take,
        **{function.__name__: _reduction(function) for function in _REDUCTIONS},
    }
)
