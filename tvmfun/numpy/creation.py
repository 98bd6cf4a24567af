"""Making arrays: from Python and NumPy values, and from nothing.

Outside a trace the elements are made by NumPy: there is nothing to compile for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes, runtime
from tvmfun.core.array import Array, device_array, foreign_array, move
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import Tracer, is_tracing
from tvmfun.errors import ArgumentError, ConcretizationError, DtypeError, ShapeError
from tvmfun.numpy.elementwise import (
    add,
    astype,
    divide,
    equal,
    greater_equal,
    less_equal,
    multiply,
    subtract,
    where,
)
from tvmfun.numpy.promotion import convert, dtype_or, operand
from tvmfun.ops import pointwise
from tvmfun.ops import shape as ops

Shape = int | Sequence[int]


def as_shape(name: str, shape: Shape) -> tuple[int, ...]:
    """A shape given as an integer or a sequence as a tuple.

    Raises:
        ArgumentError: in the name of the function ``name``, if a size is negative or no integer.
    """
    sizes = (shape,) if hasattr(shape, "__index__") and not getattr(shape, "ndim", 0) else shape
    try:
        result = tuple(size.__index__() for size in sizes)  # type: ignore[union-attr]
    except ConcretizationError:
        raise ConcretizationError(
            name,
            "the sizes must not be traced, because they give the result its shape",
            got=repr(shape),
            hint="static_argnums, or x.shape",
        ) from None
    except (AttributeError, TypeError):
        raise ArgumentError(name, "the sizes must be integers", got=repr(shape)) from None
    if any(size < 0 for size in result):
        raise ArgumentError(name, "the sizes must not be negative", got=repr(shape))
    return result


def _placed(name: str, x: Array, device: Any) -> Array:
    return x if device is None else move(x.concrete(name), runtime.device(device))


def asarray(value: Any, /, dtype: Any = None, *, copy: bool | None = None, device: Any = None) -> Array:
    """Returns an array with the elements of ``value``.

    Args:
        value: an array of any library that speaks DLPack or ``__array__``, a number, or nested sequences.
        dtype: of the result. By default that of ``value``; Python numbers become bool, int32 or float32.
        copy: False to insist on sharing memory, which works for arrays of this library only.
        device: where the result lies; by default the CPU.

    Raises:
        DtypeError: if tvmfun has no such dtype.
        ArgumentError: if a copy is needed and forbidden.

    >>> asarray([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    >>> asarray(np.arange(2.0)).dtype
    dtype('float64')
    """
    kind = None if dtype is None else dtypes.canonical(dtype)
    if copy is False and not (isinstance(value, Array) and (kind is None or kind == value.dtype)):
        raise ArgumentError("asarray", "a copy is needed", got="copy=False", hint="copy=None")
    if isinstance(value, Array):
        result = value
    elif isinstance(value, np.ndarray | np.generic):
        dtypes.canonical(value.dtype)  # complains about what `astype` would silently take, such as strings
        result = device_array(value if kind is None else value.astype(kind))
    elif isinstance(value, bool | int | float):
        number = convert("asarray", value, kind or dtypes.of_scalar(value))
        result = device_array(number, weak=kind is None)
    elif isinstance(value, list | tuple | range):
        result = _from_sequence(value, kind)
    elif hasattr(value, "__dlpack__") or hasattr(value, "__array__"):
        result = foreign_array(value, "asarray")
    else:
        raise DtypeError("asarray", "it cannot become an array", got=type(value).__name__, hint="numbers or arrays")
    return _placed("asarray", result if kind is None else astype(result, kind), device)


def _leaves(value: Sequence) -> Iterator[Any]:
    for item in value:
        if isinstance(item, list | tuple | range):
            yield from _leaves(item)
        else:
            yield item


def _from_sequence(value: Sequence, kind: np.dtype | None) -> Array:
    leaves = list(_leaves(value))
    if any(_must_be_stacked(leaf) for leaf in leaves):
        return _stacked([asarray(item, kind) for item in value])
    if kind is None:
        avals = {abstract(operand("asarray", leaf), "asarray") for leaf in leaves}
        kind = dtypes.promote(*{(aval.dtype, aval.weak) for aval in avals})[0] if avals else dtypes.DEFAULT_FLOAT
    try:
        return device_array(np.array(value, kind))
    except OverflowError:
        raise DtypeError(
            "asarray",
            f"a Python integer does not fit {dtypes.NAMES[kind]}",
            got=f"{min(leaves)} to {max(leaves)}",
            hint="dtype='int64'",
        ) from None
    except (TypeError, ValueError) as error:
        raise DtypeError("asarray", "the sequence does not make an array", got=str(error)) from None


def _must_be_stacked(leaf: Any) -> bool:
    if isinstance(leaf, Array):
        return isinstance(leaf, Tracer) or bool(leaf.ndim)
    return hasattr(leaf, "__dlpack__") and not isinstance(leaf, np.ndarray | np.generic)


def _stacked(rows: list[Array]) -> Array:
    # In terms of ops, because `manipulation.stack` is built on this module.
    if len({row.shape for row in rows}) > 1:
        shapes = ", ".join(repr(row.aval) for row in rows)
        raise ShapeError("asarray", "all arrays in a sequence must have one shape", got=shapes)
    dtype, _ = dtypes.promote(*((row.dtype, row.weak_type) for row in rows))
    shape = (1, *rows[0].shape)
    return ops.concat(*(ops.reshape(convert("asarray", row, dtype), shape=shape) for row in rows), axis=0)


def array(value: Any, /, dtype: Any = None, **options: Any) -> Array:
    """Returns an array with the elements of ``value``: another name of :func:`asarray`."""
    return asarray(value, dtype, **options)


def full(shape: Shape, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns an array of one value.

    Args:
        shape: an integer or a tuple of them.
        fill_value: a number, or an array that broadcasts to ``shape``.
        dtype: by default that of ``fill_value``.
        device: where the result lies; by default the CPU.

    >>> full((2,), 7)
    Array([7, 7], dtype=int32)
    """
    sizes = as_shape("full", shape)
    fill_value = operand("full", fill_value)
    kind = dtype_or(dtype, abstract(fill_value, "full").dtype)
    filling = convert("full", fill_value, kind)
    if isinstance(filling, np.generic) and not is_tracing():
        return _placed("full", device_array(np.full(sizes, filling, kind)), device)
    # The result has a dtype of its own, also when it is filled with a Python number.
    return _placed("full", astype(ops.broadcast_to(filling, shape=sizes), kind), device)


def zeros(shape: Shape, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns an array of zeros, float32 by default."""
    return full(shape, 0, dtype_or(dtype, dtypes.DEFAULT_FLOAT), device=device)


def ones(shape: Shape, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns an array of ones, float32 by default."""
    return full(shape, 1, dtype_or(dtype, dtypes.DEFAULT_FLOAT), device=device)


def empty(shape: Shape, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns an array of zeros: what is in memory by chance is no function of the arguments."""
    return zeros(shape, dtype, device=device)


def full_like(x: Any, /, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns an array of one value with the shape and, by default, the dtype of ``x``."""
    x = asarray(x)
    return full(x.shape, fill_value, dtype_or(dtype, x.dtype), device=device)


def zeros_like(x: Any, /, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns zeros with the shape and, by default, the dtype of ``x``."""
    return full_like(x, 0, dtype, device=device)


def ones_like(x: Any, /, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns ones with the shape and, by default, the dtype of ``x``."""
    return full_like(x, 1, dtype, device=device)


def empty_like(x: Any, /, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns zeros with the shape and, by default, the dtype of ``x``."""
    return zeros_like(x, dtype, device=device)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns ``start, start + step, ...`` up to but without ``stop``.

    Raises:
        ArgumentError: if the step is 0.
        ConcretizationError: for a traced argument, because they give the result its shape.

    >>> arange(1, 7, 2)
    Array([1, 3, 5], dtype=int32)
    """
    first, last = (0, start) if stop is None else (start, stop)
    avals = [abstract(operand("arange", value), "arange") for value in (first, last, step)]
    kind = dtype_or(dtype, dtypes.promote(*((aval.dtype, aval.weak) for aval in avals))[0])
    if kind == dtypes.bool_:
        kind = dtypes.DEFAULT_INT
    if all(dtypes.is_integer(aval.dtype) or aval.dtype == dtypes.bool_ for aval in avals):
        first, last, step = int(first), int(last), int(step)
        count = -(-(last - first) // step) if step else 0
    else:
        first, last, step = float(first), float(last), float(step)
        count = math.ceil((last - first) / step) if step else 0
    if not step:
        raise ArgumentError("arange", "the step must not be 0")
    count = max(0, count)
    if count and dtypes.is_integer(kind):
        for value in (first, first + (count - 1) * step):
            convert("arange", value, kind)  # complains if it does not fit
    if is_tracing() and isinstance(first, int):
        counting = kind if dtypes.is_integer(kind) else dtypes.int64
        numbers = ops.iota(shape=(count,), axis=0, dtype=dtypes.NAMES[counting])
        return astype(numbers if (first, step) == (0, 1) else add(multiply(numbers, step), first), kind)
    is_float = isinstance(first, float)
    numbers = np.arange(first, last, step) if is_float else first + step * np.arange(count)
    return _placed("arange", device_array(numbers.astype(kind)), device)


def linspace(
    start: Any, stop: Any, /, num: int = 50, endpoint: bool = True, *, dtype: Any = None, device: Any = None
) -> Array:
    """Returns ``num`` evenly spaced numbers from ``start`` to ``stop``, with or without the end.

    >>> linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    if num < 0:
        raise ArgumentError("linspace", "the number of elements must not be negative", got=str(num))
    ends = [operand("linspace", end) for end in (start, stop)]
    avals = [abstract(end, "linspace") for end in ends]
    common, _ = dtypes.promote(*((aval.dtype, aval.weak) for aval in avals), (dtypes.DEFAULT_FLOAT, True))
    kind = dtype_or(dtype, common)
    if any(isinstance(end, Tracer) for end in ends):
        steps = max(num - 1 if endpoint else num, 1)
        fraction = divide(ops.iota(shape=(num,), axis=0, dtype=dtypes.NAMES[common]), float(steps))
        numbers = add(multiply(subtract(1.0, fraction), ends[0]), multiply(fraction, ends[1]))
        return _placed("linspace", astype(numbers, kind), device)
    first, last = (np.asarray(end, np.float64) for end in ends)
    return _placed("linspace", device_array(np.linspace(first, last, num, endpoint).astype(kind)), device)


def eye(n_rows: int, n_cols: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns a matrix with ones on the k-th diagonal and zeros elsewhere.

    >>> eye(2, dtype="int32")
    Array([[1, 0],
           [0, 1]], dtype=int32)
    """
    kind = dtype_or(dtype, dtypes.DEFAULT_FLOAT)
    sizes = as_shape("eye", (n_rows, n_rows if n_cols is None else n_cols))
    if is_tracing():
        return astype(equal(_diagonals(sizes), k), kind)
    return _placed("eye", device_array(np.eye(*sizes, k=k, dtype=kind)), device)


def _diagonals(shape: tuple[int, ...]) -> Array:
    """For each element of a matrix, the number of its diagonal."""
    column = ops.iota(shape=shape, axis=1, dtype="int32")
    return pointwise.subtract(column, ops.iota(shape=shape, axis=0, dtype="int32"))


def _matrices(name: str, x: Any) -> Array:
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError(name, "there must be two axes", got=repr(x.aval), hint="x[None, :]")
    return x


def tril(x: Any, /, k: int = 0) -> Array:
    """Returns matrices with zeros above the k-th diagonal."""
    x = _matrices("tril", x)
    return where(less_equal(_diagonals(x.shape[-2:]), k), x, x.dtype.type(0))


def triu(x: Any, /, k: int = 0) -> Array:
    """Returns matrices with zeros below the k-th diagonal."""
    x = _matrices("triu", x)
    return where(greater_equal(_diagonals(x.shape[-2:]), k), x, x.dtype.type(0))
