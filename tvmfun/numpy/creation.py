"""Making arrays: from Python and NumPy values, and from nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes, runtime
from tvmfun.core.array import Array, device_array, move
from tvmfun.core.trace import Tracer, is_tracing, scalar
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.numpy.elementwise import add, astype, greater_equal, less_equal, multiply, where
from tvmfun.numpy.promotion import convert, dtype_or
from tvmfun.ops import shape as ops

Shape = int | Sequence[int]


def as_shape(shape: Shape) -> tuple[int, ...]:
    """A shape given as an integer or a sequence as a tuple.

    Raises:
        ArgumentError: if a size is negative or no integer.
    """
    sizes = (shape,) if isinstance(shape, int | np.integer) else shape
    try:
        result = tuple(size.__index__() for size in sizes)
    except (AttributeError, TypeError):
        raise ArgumentError("shape", "sizes must be integers", got=repr(shape)) from None
    if any(size < 0 for size in result):
        raise ArgumentError("shape", "sizes must not be negative", got=repr(shape))
    return result


def asarray(value: Any, /, dtype: Any = None, *, copy: bool | None = None, device: Any = None) -> Array:
    """Returns an array with the elements of ``value``.

    Args:
        value: an array of any library that speaks DLPack or ``__array__``, a number, or nested sequences of them.
        dtype: of the result. By default that of ``value``; Python numbers become bool, int32 or float32.
        copy: for the array API; arrays are immutable, so a copy cannot be told from the original.
        device: where the result lies; by default the CPU.

    Raises:
        DtypeError: if tvmfun has no such dtype.

    >>> asarray([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    >>> asarray(np.arange(2.0)).dtype
    dtype('float64')
    """
    if isinstance(value, Array):
        result = value
    elif isinstance(value, bool | int | float):
        number = scalar(value) if dtype is None else convert(value, dtypes.canonical(dtype))
        result = device_array(number, weak=dtype is None)
    elif isinstance(value, np.ndarray | np.generic):
        result = device_array(value if dtype is None else value.astype(dtypes.canonical(dtype)))
    elif hasattr(value, "__dlpack__"):
        result = device_array(_from_dlpack(value))
    elif hasattr(value, "__array__"):
        result = device_array(np.asarray(value))
    elif isinstance(value, list | tuple):
        result = _from_sequence(value)
    else:
        raise DtypeError(
            "asarray", "it cannot become an array", got=type(value).__name__, hint="numbers or arrays"
        )
    if dtype is not None:
        result = astype(result, dtype)
    return result if device is None else move(result.concrete("asarray"), runtime.device(device))


def _from_dlpack(value: Any) -> np.ndarray:
    try:
        return np.from_dlpack(value)
    except (
        BufferError,
        RuntimeError,
        TypeError,
        ValueError,
    ):  # read-only, or a dtype NumPy's DLPack does not know
        return np.asarray(value)


def _from_sequence(value: Sequence) -> Array:
    leaves: list[Any] = []

    def collect(item: Any) -> None:
        for part in item:
            collect(part) if isinstance(part, list | tuple) else leaves.append(part)

    collect(value)
    if any(isinstance(leaf, Tracer) for leaf in leaves) or any(
        isinstance(leaf, Array) and leaf.ndim for leaf in leaves
    ):
        from tvmfun.numpy.manipulation import stack

        return stack([_from_sequence(v) if isinstance(v, list | tuple) else asarray(v) for v in value])
    try:
        result = np.asarray(value)
    except ValueError:
        raise DtypeError("asarray", "nested sequences must have equal lengths", got="ragged ones") from None
    if all(isinstance(leaf, bool | int | float) for leaf in leaves):
        default = {
            "b": dtypes.bool_,
            "i": dtypes.DEFAULT_INT,
            "u": dtypes.DEFAULT_INT,
            "f": dtypes.DEFAULT_FLOAT,
        }
        kind = result.dtype.kind
        if kind in "iu" and result.size and not -(2**31) <= result.min() <= result.max() < 2**31:
            raise DtypeError(
                "asarray",
                "Python integers are int32",
                got=str(value)[:40],
                hint="dtype='int64' on a NumPy array",
            )
        result = result.astype(default.get(kind, result.dtype))
    return device_array(result)


def array(value: Any, /, dtype: Any = None, **options: Any) -> Array:
    """Returns an array with the elements of ``value``; the same as :func:`asarray`, since arrays never change."""
    return asarray(value, dtype, **options)


def full(shape: Shape, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Returns an array of one value.

    >>> full((2,), 7)
    Array([7, 7], dtype=int32)
    """
    value = asarray(fill_value) if not isinstance(fill_value, Array) else fill_value
    filling = convert(fill_value, dtype_or(dtype, value.dtype))
    result = ops.broadcast_to(filling, shape=as_shape(shape))
    # The result has a dtype of its own, also when it is filled with a Python number.
    result = astype(result, result.dtype)
    return result if device is None else move(result.concrete("full"), runtime.device(device))


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """Returns an array of zeros, float32 by default."""
    return full(shape, 0, dtype=dtype_or(dtype, dtypes.DEFAULT_FLOAT), device=device)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """Returns an array of ones, float32 by default."""
    return full(shape, 1, dtype=dtype_or(dtype, dtypes.DEFAULT_FLOAT), device=device)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """Returns an array of zeros: what is in memory by chance is no function of the arguments."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None) -> Array:
    """Returns an array of one value with the shape and, by default, the dtype of ``x``."""
    x = asarray(x)
    return full(x.shape, fill_value, dtype=dtype_or(dtype, x.dtype))


def zeros_like(x: Any, /, *, dtype: Any = None) -> Array:
    """Returns zeros with the shape and, by default, the dtype of ``x``."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Any, /, *, dtype: Any = None) -> Array:
    """Returns ones with the shape and, by default, the dtype of ``x``."""
    return full_like(x, 1, dtype=dtype)


def empty_like(x: Any, /, *, dtype: Any = None) -> Array:
    """Returns zeros with the shape and, by default, the dtype of ``x``."""
    return zeros_like(x, dtype=dtype)


def arange(start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None) -> Array:
    """Returns ``start, start + step, ...`` up to but without ``stop``.

    >>> arange(1, 7, 2)
    Array([1, 3, 5], dtype=int32)
    """
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ArgumentError("arange", "the step must not be 0")
    count = max(0, math.ceil((last - first) / step))
    is_float = any(isinstance(v, float | np.floating) for v in (first, last, step))
    kind = dtype_or(dtype, dtypes.DEFAULT_FLOAT if is_float else dtypes.DEFAULT_INT)
    if not is_tracing():  # nothing to compile for
        return device_array((first + step * np.arange(count)).astype(kind))
    steps = ops.iota(shape=(count,), axis=0, dtype=dtypes.NAMES[kind])
    return (
        add(multiply(steps, convert(step, kind)), convert(first, kind)) if (first, step) != (0, 1) else steps
    )


def linspace(
    start: float, stop: float, /, num: int = 50, *, endpoint: bool = True, dtype: Any = None
) -> Array:
    """Returns ``num`` evenly spaced numbers from ``start`` to ``stop``, with or without the end."""
    kind = dtype_or(dtype, dtypes.DEFAULT_FLOAT)
    return asarray(np.linspace(start, stop, num, endpoint=endpoint).astype(kind))


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None) -> Array:
    """Returns a matrix with ones on the k-th diagonal and zeros elsewhere."""
    kind = dtype_or(dtype, dtypes.DEFAULT_FLOAT)
    return asarray(np.eye(n_rows, n_cols, k=k, dtype=kind))


def _diagonals(x: Array) -> Array:
    """For each element of a matrix, the number of its diagonal."""
    from tvmfun.numpy.elementwise import subtract

    row = ops.iota(shape=x.shape[-2:], axis=0, dtype="int32")
    return subtract(ops.iota(shape=x.shape[-2:], axis=1, dtype="int32"), row)


def tril(x: Any, /, *, k: int = 0) -> Array:
    """Returns matrices with zeros above the k-th diagonal."""
    x = asarray(x)
    return where(less_equal(_diagonals(x), k), x, 0)


def triu(x: Any, /, *, k: int = 0) -> Array:
    """Returns matrices with zeros below the k-th diagonal."""
    x = asarray(x)
    return where(greater_equal(_diagonals(x), k), x, 0)
