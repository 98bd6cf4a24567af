"""The same elements in another shape or order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import Shape, as_shape, asarray
from tvmfun.numpy.promotion import convert, operands
from tvmfun.ops import pointwise
from tvmfun.ops import shape as ops

Axes = int | Sequence[int]


def normalize_axis(name: str, axis: int, ndim: int) -> int:
    """A possibly negative axis as one in ``range(ndim)``.

    Raises:
        ShapeError: if there is no such axis.
    """
    if not -ndim <= axis < ndim:
        raise ShapeError(name, f"an array with {ndim} axes has no such axis", got=f"axis {axis}")
    return axis % ndim


def normalize_axes(name: str, axis: Axes | None, ndim: int) -> tuple[int, ...]:
    """Axes given as None (all), one or several, as sorted numbers in ``range(ndim)``."""
    if axis is None:
        return tuple(range(ndim))
    axes = [normalize_axis(name, a, ndim) for a in ((axis,) if isinstance(axis, int | np.integer) else axis)]
    if len(set(axes)) != len(axes):
        raise ShapeError(name, "an axis is given twice", got=str(axis))
    return tuple(sorted(axes))


def reshape(x: Any, /, shape: Shape) -> Array:
    """Returns the elements, in row-major order, in another shape; one size may be -1.

    >>> reshape(np.arange(6), (2, -1)).shape
    (2, 3)
    """
    x = asarray(x)
    sizes = [size.__index__() for size in ((shape,) if isinstance(shape, int | np.integer) else shape)]
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        if not rest or x.size % rest:
            raise ShapeError("reshape", f"{x.size} elements do not fill {tuple(sizes)}", got=repr(x.aval))
        sizes[sizes.index(-1)] = x.size // rest
    if any(size < 0 for size in sizes):
        raise ShapeError("reshape", "at most one size may be -1", got=str(shape))
    return x if tuple(sizes) == x.shape else ops.reshape(x, shape=tuple(sizes))


def ravel(x: Any, /) -> Array:
    """Returns the elements as one axis."""
    return reshape(x, (-1,)) if asarray(x).size else reshape(x, (0,))


def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """Returns the array with its axes in another order."""
    x = asarray(x)
    order = tuple(normalize_axis("permute_dims", axis, x.ndim) for axis in axes)
    return x if order == tuple(range(x.ndim)) else ops.permute_dims(x, axes=order)


def transpose(x: Any, /, axes: Sequence[int] | None = None) -> Array:
    """Returns the array with its axes in another order, by default reversed."""
    x = asarray(x)
    return permute_dims(x, tuple(reversed(range(x.ndim))) if axes is None else axes)


def matrix_transpose(x: Any, /) -> Array:
    """Returns the array with its last two axes exchanged."""
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError("matrix_transpose", "a matrix has two axes", got=repr(x.aval))
    return swapaxes(x, -1, -2)


def swapaxes(x: Any, /, axis1: int, axis2: int) -> Array:
    """Returns the array with two axes exchanged."""
    x = asarray(x)
    order = list(range(x.ndim))
    i, j = (normalize_axis("swapaxes", axis, x.ndim) for axis in (axis1, axis2))
    order[i], order[j] = j, i
    return permute_dims(x, order)


def moveaxis(x: Any, /, source: Axes, destination: Axes) -> Array:
    """Returns the array with some axes at other places and the rest in order."""
    x = asarray(x)
    listed = lambda axes: [axes] if isinstance(axes, int | np.integer) else list(axes)
    sources = [normalize_axis("moveaxis", axis, x.ndim) for axis in listed(source)]
    places = [normalize_axis("moveaxis", axis, x.ndim) for axis in listed(destination)]
    if len(sources) != len(places):
        raise ArgumentError(
            "moveaxis", "there must be one destination per source", got=f"{source} and {destination}"
        )
    order = [axis for axis in range(x.ndim) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return permute_dims(x, order)


def expand_dims(x: Any, /, axis: Axes = 0) -> Array:
    """Returns the array with axes of size 1 at the given places of the result."""
    x = asarray(x)
    count = 1 if isinstance(axis, int | np.integer) else len(axis)
    new = normalize_axes("expand_dims", axis, x.ndim + count)
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if i in new else next(sizes) for i in range(x.ndim + count)))


def squeeze(x: Any, /, axis: Axes | None = None) -> Array:
    """Returns the array without axes of size 1: the given ones, or all."""
    x = asarray(x)
    if axis is None:
        axis = tuple(i for i, size in enumerate(x.shape) if size == 1)
    gone = normalize_axes("squeeze", axis, x.ndim)
    if any(x.shape[i] != 1 for i in gone):
        raise ShapeError("squeeze", f"axes {gone} must have size 1", got=repr(x.aval))
    return reshape(x, tuple(size for i, size in enumerate(x.shape) if i not in gone))


def broadcast_to(x: Any, /, shape: Shape) -> Array:
    """Returns the array repeated along axes of size 1 and new leading axes."""
    x = asarray(x)
    sizes = as_shape(shape)
    return x if sizes == x.shape else ops.broadcast_to(x, shape=sizes)


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """Returns the arrays broadcast to their common shape."""
    values = [asarray(x) for x in arrays]
    common = pointwise.broadcast_shapes("broadcast_arrays", [x.shape for x in values])
    return [broadcast_to(x, common) for x in values]


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Array:
    """Returns the arrays one after the other along an axis, or flattened if it is None.

    >>> concat([np.ones(1, "int32"), np.zeros(2, "int32")])
    Array([1, 0, 0], dtype=int32)
    """
    if not len(arrays):
        raise ArgumentError("concat", "there must be an array")
    values = [asarray(x) for x in arrays]
    values = [asarray(x) for x in operands("concat", *values)]
    if axis is None:
        values, axis = [ravel(x) for x in values], 0
    return ops.concat(*values, axis=normalize_axis("concat", axis, values[0].ndim))


def concatenate(arrays: Sequence[Any], axis: int | None = 0) -> Array:
    """Returns the arrays one after the other along an axis; NumPy's name of :func:`concat`."""
    return concat(arrays, axis=axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Array:
    """Returns the arrays side by side along a new axis."""
    values = [asarray(x) for x in arrays]
    if len({x.shape for x in values}) > 1:
        raise ShapeError(
            "stack", "all arrays must have one shape", got=", ".join(repr(x.aval) for x in values)
        )
    return concat([expand_dims(x, axis) for x in values], axis=axis)


def vstack(arrays: Sequence[Any], /) -> Array:
    """Returns the arrays stacked as rows."""
    return concat([x if x.ndim > 1 else reshape(x, (1, -1)) for x in map(asarray, arrays)], axis=0)


def hstack(arrays: Sequence[Any], /) -> Array:
    """Returns the arrays side by side along the second axis, vectors along their only one."""
    values = [asarray(x) for x in arrays]
    return concat(values, axis=0 if values[0].ndim < 2 else 1)


def split(x: Any, sections: int | Sequence[int], /, axis: int = 0) -> list[Array]:
    """Returns parts along an axis: ``sections`` equal ones, or cut at the given places."""
    x = asarray(x)
    axis = normalize_axis("split", axis, x.ndim)
    size = x.shape[axis]
    if isinstance(sections, int):
        if sections < 1 or size % sections:
            raise ShapeError("split", f"{size} elements do not make {sections} equal parts", got=repr(x.aval))
        cuts = [size // sections * i for i in range(1, sections)]
    else:
        cuts = [min(max(c + size if c < 0 else c, 0), size) for c in sections]
    lead = (slice(None),) * axis
    return [x[(*lead, slice(a, b))] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Returns the slices along an axis."""
    x = moveaxis(x, axis, 0)
    return tuple(x[i] for i in range(x.shape[0]))


def flip(x: Any, /, *, axis: Axes | None = None) -> Array:
    """Returns the array with the order along some axes (by default all) reversed."""
    x = asarray(x)
    return ops.flip(x, axes=normalize_axes("flip", axis, x.ndim))


def roll(x: Any, /, shift: int | Sequence[int], *, axis: Axes | None = None) -> Array:
    """Returns the array rotated along axes; without an axis, as if it were flat."""
    x = asarray(x)
    if axis is None:
        return reshape(roll(ravel(x), shift, axis=0), x.shape)
    shifts = [shift] if isinstance(shift, int) else list(shift)
    axes = [axis] if isinstance(axis, int) else list(axis)
    for amount, place in zip(shifts, axes, strict=True):
        place = normalize_axis("roll", place, x.ndim)
        if x.shape[place] and amount % x.shape[place]:
            cut = -amount % x.shape[place]
            first, second = split(x, [cut], place)
            x = concat([second, first], axis=place)
    return x


def repeat(x: Any, repeats: int, /, *, axis: int | None = None) -> Array:
    """Returns each element ``repeats`` times in a row along an axis, or flattened if it is None."""
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("repeat", axis, x.ndim)
    wide = broadcast_to(expand_dims(x, axis + 1), (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]))
    return reshape(wide, (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]))


def tile(x: Any, repetitions: Axes, /) -> Array:
    """Returns copies of the array side by side, ``repetitions`` along each axis."""
    x = asarray(x)
    counts = [repetitions] if isinstance(repetitions, int) else list(repetitions)
    rank = max(x.ndim, len(counts))
    counts = [1] * (rank - len(counts)) + counts
    shape = (1,) * (rank - x.ndim) + x.shape
    split_shape = [part for size in shape for part in (1, size)]
    wide = [part for count, size in zip(counts, shape, strict=True) for part in (count, size)]
    whole = tuple(count * size for count, size in zip(counts, shape, strict=True))
    return reshape(broadcast_to(reshape(x, split_shape), wide), whole)


def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Array:
    """Returns the array with elements of one value around it; widths are as in ``numpy.pad``.

    Raises:
        ArgumentError: for a mode other than ``"constant"``.

    >>> pad(np.ones(1, "int32"), (1, 2))
    Array([0, 1, 0, 0], dtype=int32)
    """
    if mode != "constant":
        raise ArgumentError("pad", "the mode must be 'constant'", got=repr(mode))
    x = asarray(x)
    widths = np.broadcast_to(np.asarray(pad_width, np.int64), (x.ndim, 2)).tolist()
    return ops.pad(
        x,
        convert(constant_values, x.dtype),
        low=tuple(low for low, _ in widths),
        high=tuple(high for _, high in widths),
        interior=(0,) * x.ndim,
    )
