"""The operators and methods of arrays, which are functions of ``tvmfun.numpy``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from tvmfun import dtypes
from tvmfun.boundary import bounded
from tvmfun.core.array import Array, install_methods
from tvmfun.core.dims import Dim
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.numpy.at import At
from tvmfun.numpy.calculus import cumprod, cumsum
from tvmfun.numpy.creation import asarray, copy
from tvmfun.numpy.diagonals import diagonal, trace
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import (
    abs,
    add,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    clip,
    divide,
    equal,
    floor_divide,
    greater,
    greater_equal,
    less,
    less_equal,
    multiply,
    negative,
    not_equal,
    positive,
    power,
    remainder,
    round,
    subtract,
)
from tvmfun.numpy.floats import conj, conjugate, imag, real
from tvmfun.numpy.indexing import getitem, take
from tvmfun.numpy.integers import with_other_bits
from tvmfun.numpy.products import dot, matmul
from tvmfun.numpy.reductions import all, any, max, mean, min, prod, ptp, std, sum, var
from tvmfun.numpy.resizing import repeat
from tvmfun.numpy.selection import compress
from tvmfun.numpy.shapes import matrix_transpose, ravel, reshape, squeeze, swapaxes, transpose
from tvmfun.numpy.sorting import argmax, argmin, argpartition, argsort, nonzero, partition, searchsorted, sort

API_VERSION = "2024.12"


_OPERANDS = (Array, int, float, Dim)


def _operator(function: Callable, *, reflected: bool = False) -> Callable:
    @wraps(function)
    def method(self: Array, other: Any) -> Any:
        if isinstance(other, complex):
            hint = "the real and the imaginary part as two arrays"
            raise DtypeError(function.__name__, "there are no complex numbers", got=repr(other), hint=hint)
        if not isinstance(other, _OPERANDS) and not hasattr(other, "dtype"):
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
    function = bounded(function)

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
    """Rounds to ``decimals`` decimals: Python's ``round``."""
    return round(self, decimals or 0)


def _reshape(self: Array, *shape: Any, order: str = "C") -> Array:
    """Returns the elements in another shape, given as a tuple or as integers: ``numpy.reshape``."""
    return reshape(self, shape[0] if len(shape) == 1 else shape, order)


def _transpose(self: Array, *axes: Any) -> Array:
    """Returns the array with its axes in another order, by default reversed."""
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return transpose(self, order or None)


def _to_device(self: Array, device: Any, /, *, stream: None = None) -> Array:
    """Returns the array on a device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``."""
    return asarray(self, device=device)


def _compress(self: Array, condition: Any, axis: int | None = None) -> Array:
    """Returns the slices along an axis where a condition holds."""
    return compress(condition, self, axis)


def _view(self: Array, dtype: Any = None, *sizes: Any) -> Array:
    """Returns the bits of the elements read as another dtype; along the last axis, if it has another width.

    Raises:
        DtypeError: if it is bool, or elements are, and the widths differ.
        ShapeError: if there is no last axis of a whole number of wider elements.
        ArgumentError: if it is a size, as in PyTorch's ``view``.
    """
    if sizes or isinstance(dtype, int | tuple):
        got = ", ".join(map(repr, (dtype, *sizes)))
        raise ArgumentError("view", "it reads elements as another dtype, not in another shape", got=got, hint="reshape")
    if dtype is None:
        return self
    result = dtypes.canonical(dtype)
    count = result.itemsize // self.dtype.itemsize or 1
    if result.itemsize == self.dtype.itemsize:
        return with_other_bits(self, result)
    if not self.ndim or self.shape[-1] % count:
        raise ShapeError("view", f"the last axis must have a multiple of {count} elements", got=repr(self.aval))
    *outer, length = self.shape
    parts = self if count == 1 else reshape(self, (*outer, length // count, count))
    return reshape(with_other_bits(parts, result), (*outer, length * self.dtype.itemsize // result.itemsize))


def _namespace(self: Array, /, *, api_version: str | None = None) -> Any:
    """Returns ``tvmfun.numpy``: the array API's way to find the functions for an array.

    Raises:
        ArgumentError: for a version of the array API later than 2024.12, or an unknown one.
    """
    if api_version not in (None, "2021.12", "2022.12", "2023.12", API_VERSION):
        raise ArgumentError("Array", f"the array API is that of {API_VERSION}", got=repr(api_version))
    return sys.modules["tvmfun.numpy"]


def _complex(self: Array) -> complex:
    """Returns the only element as a Python complex number."""
    return complex(float(self))


_REDUCTIONS = (sum, prod, mean, var, std, max, min, ptp, any, all, argmax, argmin, cumsum, cumprod)
_METHODS = (
    argpartition,
    argsort,
    astype,
    clip,
    copy,
    diagonal,
    dot,
    nonzero,
    partition,
    ravel,
    repeat,
    round,
    searchsorted,
    sort,
    squeeze,
    swapaxes,
    take,
    trace,
)

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
        "__complex__": _complex,
        "__round__": _round,
        "__contains__": _contains,
        "__getitem__": getitem,
        "__array_namespace__": _namespace,
        "at": property(At),
        "T": property(transpose),
        "mT": property(matrix_transpose),
        "reshape": _reshape,
        "transpose": _transpose,
        "to_device": _to_device,
        "flatten": ravel,
        "real": property(real),
        "imag": property(imag),
        "conj": conj,
        "conjugate": conjugate,
        "compress": _compress,
        "view": _view,
        **{function.__name__: bounded(function) for function in _METHODS},
        **{function.__name__: _reduction(function) for function in _REDUCTIONS},
    }
)
