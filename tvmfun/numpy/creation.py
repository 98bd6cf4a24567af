"""Arrays from Python and NumPy values, and arrays of one value.

Outside a trace NumPy makes the elements: there is nothing to compile for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, DeviceArray, ShapeDtype, device_array, duplicate, foreign_array, is_foreign_array
from tvmfun.core.dims import Dim
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import abstract, of_dataclass
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, DtypeError, ShapeError
from tvmfun.numpy.dtypes import astype, placed, weakly_typed
from tvmfun.numpy.elementwise import equal
from tvmfun.numpy.promotion import (
    NestedArrayLike,
    convert,
    dtype_or,
    element_type,
    operand,
    operand_types,
    operands,
    row_major,
)
from tvmfun.ops import pointwise
from tvmfun.ops import shape as ops
from tvmfun.typing import DTypeLike

__all__ = [
    "array",
    "asarray",
    "copy",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "identity",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


Shape = int | Sequence[int]


def as_shape(name: str, shape: Shape) -> tuple[int, ...]:
    """A shape given as an integer or a sequence as a tuple.

    Raises:
        ArgumentError: in the name of the function ``name``, if a size is negative or no integer.
    """
    result = sizes_of(name, (shape,) if hasattr(shape, "__index__") and not getattr(shape, "ndim", 0) else shape)
    if any(size < 0 for size in result):
        raise ArgumentError(name, "the sizes must not be negative", got=repr(shape))
    return result


def sizes_of(name: str, shape: Any) -> tuple[int, ...]:
    """The sizes of a sequence as Python integers, negative ones included.

    Raises:
        ConcretizationError: in the name of the function ``name``, if a size is being traced.
        ArgumentError: in its name, if one is not an integer.
    """
    try:
        return tuple(map(dims.index, shape))
    except ConcretizationError:
        raise ConcretizationError(
            name,
            "the sizes must not be traced, because they give the result its shape",
            got=repr(shape),
            hint="static_argnums, or x.shape",
        ) from None
    except TypeError:
        raise ArgumentError(name, "the sizes must be integers", got=repr(shape)) from None


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: bool | None = None, device: Any = None) -> Array:
    """Returns an array with the elements of ``a``.

    Args:
        a: an array of any library that supports DLPack, ``__array__``, ``__array_interface__`` (images of PIL) or
            buffers, a number, or nested sequences.
        dtype: of the result. By default that of ``a``; Python numbers become bool, int32 or float32.
        order: for NumPy: ``"K"``, ``"A"`` or ``"C"``; all arrays are in row-major order.
        copy: True for a buffer of its own, which no one else can donate; False to insist on sharing memory, which
            works for arrays of this library only.
        device: the device of the result; by default the CPU.

    Raises:
        DtypeError: if tvmfun has no such dtype.
        ArgumentError: if a copy is needed and forbidden.

    >>> asarray([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    >>> asarray(np.arange(2.0)).dtype
    dtype('float64')
    """
    row_major("asarray", order)
    kind = None if dtype is None else dtypes.canonical(dtype)
    if copy is False and not (isinstance(a, Array) and (kind is None or kind == a.dtype)):
        raise ArgumentError("asarray", "a copy is needed", got="copy=False", hint="copy=None")
    if isinstance(a, Array):
        result = duplicate(a) if copy and isinstance(a, DeviceArray) and not is_tracing() else a
    elif isinstance(a, Dim):
        result = dims.as_array(a)
    elif isinstance(a, np.ndarray | np.generic):
        dtypes.canonical(a.dtype)  # complains about what `astype` would silently take, such as strings
        result = device_array(a if kind is None else a.astype(kind))
    elif isinstance(a, bool | int | float):
        number = convert("asarray", a, kind or dtypes.of_scalar(a))
        result = device_array(number, weak=kind is None)
    elif isinstance(a, list | tuple | range):
        result = _from_sequence(a, kind)
    elif is_foreign_array(a):
        result = foreign_array(a, "asarray")
    else:
        hint = of_dataclass(a) or "numbers or arrays"
        raise DtypeError("asarray", "it cannot become an array", got=type(a).__name__, hint=hint)
    return placed("asarray", result if kind is None else astype(result, kind), device)


def _leaves(value: Sequence) -> Iterator[Any]:
    for item in value:
        if isinstance(item, list | tuple | range):
            yield from _leaves(item)
        else:
            yield item


def _from_sequence(value: Sequence, kind: np.dtype | None) -> Array:
    leaves = list(_leaves(value))
    if kind is None:
        leaves = [operand("asarray", leaf) for leaf in leaves]
        if any(isinstance(leaf, Array) for leaf in leaves):
            found = set(operand_types("asarray", leaves))
        else:  # scalars of NumPy and numbers alone are data
            found = {(aval.dtype, aval.weak) for aval in (abstract(leaf, "asarray") for leaf in leaves)}
        kind = dtypes.promote(*found)[0] if found else dtypes.DEFAULT_FLOAT
    if any(_must_be_stacked(leaf) for leaf in leaves):
        return _stacked([asarray(item, kind) for item in value])
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
    """The rows, of one dtype, as an array."""
    # In terms of ops, because `manipulation.stack` is built on this module.
    if len({row.shape for row in rows}) > 1:
        shapes = ", ".join(repr(row.aval) for row in rows)
        hint = "one of them, if they are the results of a function"
        raise ShapeError("asarray", "all arrays in a sequence must have one shape", got=shapes, hint=hint)
    shape = (1, *rows[0].shape)
    return ops.concat(*(ops.reshape(row, shape=shape) for row in rows), axis=0)


def arrays(name: str, *values: Any, floating: bool = False) -> list[Array]:
    """The values, lists among them, as arrays of the dtype they promote to; integers become floats if ``floating``.

    Python numbers keep their precision until it is known.
    """
    values = tuple(asarray(value) if isinstance(value, list | tuple | range) else value for value in values)
    found = operands(name, *values, floating=floating)
    made = [value for value in found if isinstance(value, Array)]
    weak = bool(made) and all(value.weak_type for value in made)
    return [value if isinstance(value, Array) else device_array(value, weak=weak) for value in found]


def array(
    object: NestedArrayLike,
    dtype: DTypeLike | None = None,
    copy: bool | None = True,
    order: str | None = "K",
    ndmin: int = 0,
    *,
    device: Any = None,
) -> Array:
    """Returns an array with the elements of a value and, by default, a buffer of its own; see :func:`asarray`.

    Args:
        object: an array of any library, a number, or nested sequences.
        dtype: of the result; by default that of ``object``.
        copy: whether the buffer must be its own.
        order: for NumPy; see :func:`asarray`.
        ndmin: the smallest number of axes: leading axes of size 1 are added.
        device: the device of the result; by default the CPU.

    >>> array([1, 2], ndmin=2)
    Array([[1, 2]], dtype=int32)
    """
    result = asarray(object, dtype, order, copy=copy, device=device)
    missing = ndmin - result.ndim
    return result if missing <= 0 else ops.reshape(result, shape=(1,) * missing + result.shape)


def copy(a: NestedArrayLike, order: str | None = None) -> Array:
    """Returns the array with a buffer of its own, which no one else can donate; see :func:`asarray` for ``order``."""
    return asarray(a, None, order, copy=True)


def from_dlpack(x: NestedArrayLike, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """Returns an array with the elements of one that speaks DLPack; they are copied.

    Args:
        x: an array of any library with ``__dlpack__``.
        device: the device of the result; by default that of ``x``.
        copy: False to insist on sharing memory, which works for arrays of this library only.

    Raises:
        DtypeError: if ``x`` does not speak DLPack, or tvmfun has no such dtype.
        ArgumentError: if a copy is needed and forbidden.
    """
    if not hasattr(x, "__dlpack__"):
        raise DtypeError("from_dlpack", "the argument does not speak DLPack", got=type(x).__name__, hint="asarray")
    if isinstance(x, Array):
        return asarray(x, copy=copy, device=device)
    if copy is False:
        raise ArgumentError("from_dlpack", "a copy is needed", got="copy=False", hint="copy=None")
    return placed("from_dlpack", foreign_array(x, "from_dlpack"), device)


def full(shape: Shape, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Returns an array of one value.

    Args:
        shape: an integer or a tuple of them.
        fill_value: a number, or an array that broadcasts to ``shape``.
        dtype: by default that of ``fill_value``: weak, if this is a Python number.
        device: the device of the result; by default the CPU.

    >>> full((2,), 7), full((2,), 0.5) * ones(2, "bfloat16")
    (Array([7, 7], dtype=int32), Array([0.5, 0.5], dtype=bfloat16))
    """
    [(found, weak)] = operand_types("full", [operand("full", fill_value)])
    kind = dtype_or(dtype, element_type("full", fill_value))
    return _filled(shape, fill_value, kind, weak and dtype is None and found != dtypes.bool_, device)


def _filled(shape: Shape, fill_value: Any, dtype: np.dtype, weak: bool, device: Any) -> Array:
    sizes = as_shape("full", shape)
    filling = convert("full", operand("full", fill_value), dtype, weak)
    if isinstance(filling, np.generic) and not is_tracing():
        return placed("full", device_array(np.full(sizes, filling, dtype), weak=weak), device)
    filled = ops.broadcast_to(filling, shape=sizes)
    return placed("full", weakly_typed(filled) if weak else astype(filled, dtype), device)


def zeros(shape: Shape, dtype: DTypeLike | None = None, *, device: Any = None) -> Array:
    """Returns an array of zeros, float32 by default."""
    return full(shape, 0, dtype_or(dtype, dtypes.DEFAULT_FLOAT), device=device)


def ones(shape: Shape, dtype: DTypeLike | None = None, *, device: Any = None) -> Array:
    """Returns an array of ones, float32 by default."""
    return full(shape, 1, dtype_or(dtype, dtypes.DEFAULT_FLOAT), device=device)


def empty(shape: Shape, dtype: DTypeLike | None = None, *, device: Any = None) -> Array:
    """Returns an array of zeros: uninitialized memory would not be a function of the arguments."""
    return zeros(shape, dtype, device=device)


def full_like(
    a: NestedArrayLike | ShapeDtype,
    fill_value: NestedArrayLike,
    dtype: DTypeLike | None = None,
    shape: Shape | None = None,
    *,
    device: Any = None,
) -> Array:
    """Returns an array of one value, by default with the shape and the dtype of ``a``.

    Args:
        a: an array, or something that only has a shape and a dtype, such as a result of ``eval_shape``.
        fill_value: the value, which broadcasts to the shape.
        dtype: the dtype of the result; by default that of ``a``.
        shape: the shape of the result; by default that of ``a``.
        device: where to put the result.

    Source: ``jax.numpy.full_like``.

    >>> full_like([1.5, 2.5], 2, shape=(1,))
    Array([2.], dtype=float32)
    """
    model = a if isinstance(a, ShapeDtype) else asarray(a).aval
    sizes = model.shape if shape is None else shape
    return _filled(sizes, fill_value, dtype_or(dtype, model.dtype), dtype is None and model.weak, device)


def zeros_like(
    a: NestedArrayLike | ShapeDtype, dtype: DTypeLike | None = None, shape: Shape | None = None, *, device: Any = None
) -> Array:
    """Returns zeros, by default with the shape and the dtype of ``a``."""
    return full_like(a, 0, dtype, shape, device=device)


def ones_like(
    a: NestedArrayLike | ShapeDtype, dtype: DTypeLike | None = None, shape: Shape | None = None, *, device: Any = None
) -> Array:
    """Returns ones, by default with the shape and the dtype of ``a``."""
    return full_like(a, 1, dtype, shape, device=device)


def empty_like(
    prototype: NestedArrayLike | ShapeDtype,
    dtype: DTypeLike | None = None,
    shape: Shape | None = None,
    *,
    device: Any = None,
) -> Array:
    """Returns zeros, by default with the shape and the dtype of ``prototype``."""
    return zeros_like(prototype, dtype, shape, device=device)


def eye(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None, *, device: Any = None) -> Array:
    """Returns a matrix with ones on the k-th diagonal and zeros elsewhere.

    >>> eye(2, dtype="int32")
    Array([[1, 0],
           [0, 1]], dtype=int32)
    """
    kind = dtype_or(dtype, dtypes.DEFAULT_FLOAT)
    sizes = as_shape("eye", (N, N if M is None else M))
    if is_tracing():
        return astype(equal(diagonal_numbers(sizes), k), kind)
    return placed("eye", device_array(np.eye(*sizes, k=k, dtype=kind)), device)


def diagonal_numbers(shape: tuple[int, ...]) -> Array:
    """For each element of a matrix, the number of its diagonal."""
    column = ops.iota(shape=shape, axis=1, dtype="int32")
    return pointwise.subtract(column, ops.iota(shape=shape, axis=0, dtype="int32"))


def identity(n: int, dtype: DTypeLike | None = None) -> Array:
    """Returns the square matrix with ones on its diagonal."""
    return eye(n, dtype=dtype)
