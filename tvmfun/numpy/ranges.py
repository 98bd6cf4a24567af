"""Ranges and grids of numbers."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, device_array
from tvmfun.core.dims import Dim
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, ShapeError
from tvmfun.numpy.creation import Shape, arrays, as_shape, asarray
from tvmfun.numpy.dtypes import astype, placed
from tvmfun.numpy.elementwise import (
    abs,
    add,
    divide,
    equal,
    floor,
    log10,
    logical_and,
    maximum,
    multiply,
    pow,
    sign,
    subtract,
    where,
)
from tvmfun.numpy.promotion import convert, dtype_or, element_type, operand
from tvmfun.numpy.shapes import broadcast_to, concat, expand_dims, known_integer, moveaxis, reshape, stack
from tvmfun.ops import shape as ops
from tvmfun.typing import DTypeLike

__all__ = [
    "arange",
    "c_",
    "geomspace",
    "index_exp",
    "indices",
    "linspace",
    "logspace",
    "meshgrid",
    "mgrid",
    "ogrid",
    "r_",
    "s_",
]


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: DTypeLike | None = None, *, device: Any = None) -> Array:
    """Returns ``start, start + step, ...`` up to but without ``stop``.

    Raises:
        ArgumentError: if the step is 0.
        ConcretizationError: for a traced argument, because they give the result its shape.

    >>> arange(1, 7, 2)
    Array([1, 3, 5], dtype=int32)
    """
    first, last = (0, start) if stop is None else (start, stop)
    step = 1 if step is None else step
    if _is_traced(first, last, step):
        what = "the bounds must not be traced, because they give the result its shape"
        got = ", ".join(map(repr, (first, last, step)))
        raise ConcretizationError("arange", what, got=got, hint="static_argnums, or x.shape")
    avals = [abstract(operand("arange", value), "arange") for value in (first, last, step)]
    kind = dtype_or(dtype, element_type("arange", first, last, step))
    if kind == dtypes.bool_:
        kind = dtypes.DEFAULT_INT
    if all(dtypes.is_integer(aval.dtype) or aval.dtype == dtypes.bool_ for aval in avals):
        first, last, step = (n if isinstance(n, Dim) else int(n) for n in (first, last, step))
        count = -(-(last - first) // step) if step else 0
    else:
        first, last, step = float(first), float(last), float(step)
        count = math.ceil((last - first) / step) if step else 0
    if not step:
        raise ArgumentError("arange", "the step must not be 0")
    count = dims.maximum(0, count)
    if count != 0 and dtypes.is_integer(kind):
        for value in (first, first + (count - 1) * step):
            if not isinstance(value, Dim):
                convert("arange", value, kind)  # complains if it does not fit
    if is_tracing() and not isinstance(first, float):
        counting = kind if dtypes.is_integer(kind) else dtypes.int64
        numbers = ops.iota(shape=(count,), axis=0, dtype=dtypes.NAMES[counting])
        return astype(numbers if (first, step) == (0, 1) else add(multiply(numbers, step), first), kind)
    is_float = isinstance(first, float)
    numbers = np.arange(first, last, step) if is_float else first + step * np.arange(count)  # type: ignore[reportArgumentType, reportCallIssue]
    return placed("arange", device_array(numbers.astype(kind)), device)


def _is_traced(*values: Any) -> bool:
    return any(isinstance(value, Tracer) for value in values)


def _float_of(dtype: DTypeLike | None) -> DTypeLike | None:
    """The dtype to compute in: the one asked for, if it is of floats."""
    return dtype if dtype is not None and dtypes.is_float(dtypes.canonical(dtype)) else None


def _numbers(value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)


def _common_dtype(name: str, dtype: Any, *ends: Any) -> np.dtype:
    """The dtype of numbers between two ends: a float, unless it is given."""
    return dtype_or(dtype, element_type(name, *ends, 0.0))


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """Returns ``num`` evenly spaced numbers from ``start`` to ``stop``, with or without the end.

    Args:
        start: the first number, or an array of them.
        stop: the last one, or an array.
        num: how many.
        endpoint: whether ``stop`` is among them.
        retstep: whether to return the distance between them as well.
        dtype: of the result; integers are rounded down.
        axis: the axis of the result along which the numbers of arrays are spaced.
        device: the device of the result; by default the CPU.

    >>> linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    num = known_integer(num)
    if num < 0:
        raise ArgumentError("linspace", "the number of elements must not be negative", got=str(num))
    first, last = (operand("linspace", end) for end in (start, stop))
    common = _common_dtype("linspace", None, first, last)
    kind = dtype_or(dtype, common)
    if isinstance(num, bool) or not isinstance(num, int | np.integer | Dim):
        raise ArgumentError("linspace", "the number of points must be an integer", got=repr(num))
    parts = num - 1 if endpoint else num
    if _is_traced(first, last) or isinstance(num, Dim):
        common = kind if dtypes.is_float(kind) and kind.itemsize > common.itemsize else common
        first, last = (asarray(convert("linspace", end, common)) for end in (first, last))
        count = astype(parts, common) if isinstance(num, Dim) else float(parts)
        positions = ops.iota(shape=(num,), axis=0, dtype=dtypes.NAMES[common])
        step = divide(subtract(last, first), where(equal(count, 0.0), math.nan, count))
        fraction = divide(positions, maximum(count, 1.0))
        fraction = reshape(fraction, (num,) + (1,) * max(first.ndim, last.ndim))
        numbers = moveaxis(add(multiply(subtract(1.0, fraction), first), multiply(fraction, last)), 0, axis)
        result = astype(floor(numbers) if dtypes.is_integer(kind) else numbers, kind)
    else:
        first, last = map(_numbers, (first, last))
        numbers = np.linspace(first, last, num, endpoint, axis=axis)
        numbers = np.floor(numbers) if dtypes.is_integer(kind) else numbers
        result = device_array(numbers.astype(kind))
        step = asarray((last - first) / parts if parts else np.full_like(last - first, np.nan), common)
    result = placed("linspace", result, device)
    return (result, step) if retstep else result


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """Returns ``base`` to the power of evenly spaced exponents from ``start`` to ``stop``.

    >>> logspace(0, 3, 4)
    Array([   1.,   10.,  100., 1000.], dtype=float32)
    """
    if not _is_traced(start, stop, base) and not dims.is_dynamic((start, stop, num)):
        numbers = np.logspace(*map(_numbers, (start, stop)), num, endpoint, _numbers(base), axis=axis)  # type: ignore[reportCallIssue]
        return device_array(numbers.astype(_common_dtype("logspace", dtype, start, stop)))
    result = pow(base, linspace(start, stop, num, endpoint, dtype=_float_of(dtype), axis=axis))
    return result if dtype is None else astype(result, dtype)


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: DTypeLike | None = None, axis: int = 0
) -> Array:
    """Returns ``num`` numbers from ``start`` to ``stop``, in which neighbours have the same ratio.

    Args:
        start: the first number, or an array of them.
        stop: the last one, or an array; of the same sign.
        num: how many.
        endpoint: whether ``stop`` is among them.
        dtype: of the result.
        axis: the axis of the result along which the numbers of arrays are spaced.

    >>> geomspace(1, 8, 4)
    Array([1., 2., 4., 8.], dtype=float32)
    """
    if not _is_traced(start, stop) and not dims.is_dynamic((start, stop, num)):
        numbers = np.geomspace(*map(_numbers, (start, stop)), num, endpoint, axis=axis)  # type: ignore[reportCallIssue]
        return device_array(numbers.astype(_common_dtype("geomspace", dtype, start, stop)))
    first, last = (asarray(multiply(end, 1.0), _float_of(dtype)) for end in (start, stop))
    exponents = linspace(log10(abs(first)), log10(abs(last)), num, endpoint, dtype=_float_of(dtype), axis=axis)
    axis = axis % exponents.ndim
    spaced = lambda end: expand_dims(broadcast_to(end, exponents.shape[:axis] + exponents.shape[axis + 1 :]), axis)
    first, last = spaced(first), spaced(last)
    numbers = multiply(pow(10.0, exponents), sign(first))
    # The ends are exact.
    index = ops.iota(shape=exponents.shape, axis=axis, dtype="int32")
    numbers = where(index == 0, first, numbers)
    if endpoint:  # a single number is the first one
        numbers = where(logical_and(index == num - 1, index > 0), last, numbers)
    return numbers if dtype is None else astype(numbers, dtype)


def meshgrid(*arrays: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Array]:
    """Returns the coordinates of a grid, one array for each of its axes.

    Args:
        arrays: the coordinates along each axis: vectors or numbers.
        copy: for NumPy; arrays are immutable, so a copy cannot be told from the original.
        sparse: whether the results have size 1 along the other axes, to be broadcast.
        indexing: ``"xy"`` if the first two axes of the results are exchanged, as in plots; otherwise ``"ij"``.

    Raises:
        ShapeError: if an array has more than one axis.

    >>> meshgrid([1, 2], [3, 4, 5])[0]
    Array([[1, 2],
           [1, 2],
           [1, 2]], dtype=int32)
    """
    values = [asarray(x) for x in arrays]
    if indexing not in ("xy", "ij"):
        raise ArgumentError("meshgrid", "the indexing is 'xy' or 'ij'", got=repr(indexing))
    if any(x.ndim > 1 for x in values):
        got = ", ".join(repr(x.aval) for x in values)
        raise ShapeError("meshgrid", "the arrays must be vectors", got=got, hint="x.ravel()")
    order = list(range(len(values)))
    if indexing == "xy" and len(values) > 1:
        order[:2] = 1, 0
    sizes = [0] * len(values)
    for x, axis in zip(values, order, strict=True):
        sizes[axis] = x.size
    own = lambda axis: tuple(size if i == axis else 1 for i, size in enumerate(sizes))
    spread = [reshape(x, own(axis)) for x, axis in zip(values, order, strict=True)]
    return spread if sparse else [broadcast_to(x, tuple(sizes)) for x in spread]


def _slice_numbers(name: str, item: slice) -> Array:
    """The numbers of a slice; an imaginary step is how many there are, with the end."""
    start, step = 0 if item.start is None else item.start, item.step
    if item.stop is None:
        raise ArgumentError(name, "a slice must have an end", got=str(item))
    if isinstance(step, complex):
        return linspace(start, item.stop, int(builtins.abs(step)))
    return arange(start, item.stop, 1 if step is None else step)


class _Grid:
    """The coordinates of a grid, each along an axis of its own."""

    def __init__(self, name: str, sparse: bool) -> None:
        self.name = name
        self.sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _slice_numbers(self.name, key)
        axes = arrays(self.name, *(_slice_numbers(self.name, item) for item in key))
        grid = meshgrid(*axes, sparse=self.sparse, indexing="ij")
        return grid if self.sparse else stack(grid)

    def __repr__(self) -> str:
        return self.name


#: ``mgrid[0:2, 0:3]``: the coordinates of a grid, one after the other along a new first axis.
mgrid = _Grid("mgrid", sparse=False)
#: ``ogrid[0:2, 0:3]``: the coordinates of a grid as a list of arrays with size 1 along the other axes.
ogrid = _Grid("ogrid", sparse=True)


class _Joined:
    """Arrays, numbers and slices joined along an axis.

    A leading string gives one to three integers: the axis along which they are joined, the least number of
    axes, and the position of a vector's axis. ``"r"`` and ``"c"`` make a vector a matrix of one row or column.
    """

    def __init__(self, name: str, axis: int, ndim: int, index: int) -> None:
        self.name = name
        self.defaults = (axis, ndim, index)

    def __getitem__(self, key: Any) -> Array:
        items = list(key) if isinstance(key, tuple) else [key]
        axis, ndim, index = self.defaults
        is_matrix = ""
        if items and isinstance(items[0], str):
            text = items.pop(0)
            if text in ("r", "c"):
                is_matrix, axis, ndim = text, -1 if text == "r" else 0, 1
            else:
                axis, ndim, index = self._directions(text)
        parts = []
        for item in items:
            x = _slice_numbers(self.name, item) if isinstance(item, slice) else asarray(item)
            missing = ndim - x.ndim
            if missing > 0:
                rank = x.ndim
                x = reshape(x, (1,) * missing + x.shape)
                if index != -1 and rank:
                    begin = index + ndim + 1 - rank if index < 0 else index
                    x = moveaxis(x, tuple(range(missing, ndim)), tuple(range(begin, begin + rank)))
            parts.append(x)
        result = concat(arrays(self.name, *parts), axis)
        if is_matrix and result.ndim == 1:
            return expand_dims(result, 0 if is_matrix == "r" else 1)
        return result

    def _directions(self, text: str) -> Sequence[int]:
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3:
            raise ArgumentError(self.name, "directions are 'r', 'c' or one to three integers", got=repr(text))
        return [*numbers, *self.defaults[len(numbers) :]]

    def __repr__(self) -> str:
        return self.name


#: ``r_[1, 2:5, x]``: numbers, slices and arrays joined along the first axis.
r_ = _Joined("r_", 0, 1, -1)
#: ``c_[x, y]``: the same along the last axis, vectors as columns.
c_ = _Joined("c_", -1, 2, 0)
#: ``s_[1:2, ...]``: the index itself.
s_ = np.s_
#: ``index_exp[1:2]``: the index itself, always a tuple.
index_exp = np.index_exp


def indices(dimensions: Shape, dtype: DTypeLike | None = None, sparse: bool = False) -> Any:
    """Returns, for each axis of a grid, the index of every element along it, as int32 by default.

    Args:
        dimensions: the sizes of the axes.
        dtype: of the result.
        sparse: whether to return one array for each axis, with size 1 along the others, and not one for all.
    """
    shape = as_shape("indices", dimensions)
    kind = dtypes.DEFAULT_INT if dtype is None else dtypes.canonical(dtype)
    grid = np.indices(shape, sparse=sparse)
    if sparse:
        return tuple(device_array(axis.astype(kind)) for axis in grid)
    return device_array(grid.astype(kind))  # type: ignore[reportAttributeAccessIssue]
