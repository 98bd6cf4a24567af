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
        ShapeError: in the name of the function ``name``, if there is no such axis.
        ArgumentError: if the axis is no integer.
    """
    try:
        place = axis.__index__()
    except (AttributeError, TypeError):
        raise ArgumentError(name, "an axis is an integer", got=repr(axis)) from None
    if not -ndim <= place < ndim:
        raise ShapeError(name, f"an array with {ndim} axes has no such axis", got=f"axis {axis}")
    return place % ndim


def _listed(value: Any) -> list:
    """One integer or several as a list."""
    return list(value) if isinstance(value, Sequence | np.ndarray) else [value]


def normalize_axes(name: str, axis: Axes | None, ndim: int) -> tuple[int, ...]:
    """Axes given as None (all), one or several, as sorted numbers in ``range(ndim)``."""
    if axis is None:
        return tuple(range(ndim))
    axes = [normalize_axis(name, a, ndim) for a in _listed(axis)]
    if len(set(axes)) != len(axes):
        raise ShapeError(name, "an axis is given twice", got=str(axis))
    return tuple(sorted(axes))


def reshape(x: Any, /, shape: Shape, *, copy: bool | None = None) -> Array:
    """Returns the elements, in row-major order, in another shape.

    Args:
        x: the array.
        shape: the sizes, one of which may be -1: what the others leave.
        copy: for the array API; arrays are immutable, so a copy cannot be told from the original.

    Raises:
        ShapeError: if the number of elements is another one.

    >>> reshape(np.arange(6), (2, -1)).shape
    (2, 3)
    """
    x = asarray(x)
    try:
        sizes = tuple(size.__index__() for size in _listed(shape))
    except (AttributeError, TypeError):
        raise ArgumentError("reshape", "the sizes must be integers", got=repr(shape)) from None
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        if not rest or x.size % rest:
            raise ShapeError("reshape", f"{x.size} elements do not fill {sizes}", got=repr(x.aval))
        sizes = tuple(x.size // rest if size == -1 else size for size in sizes)
    if any(size < 0 for size in sizes):
        raise ShapeError("reshape", "sizes are not negative, but for one -1", got=str(shape))
    return x if sizes == x.shape else ops.reshape(x, shape=sizes)


def ravel(x: Any, /) -> Array:
    """Returns the elements as one axis."""
    x = asarray(x)
    return reshape(x, (x.size,))


def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """Returns the array with its axes in another order.

    >>> permute_dims(np.ones((2, 3)), (1, 0)).shape
    (3, 2)
    """
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
        raise ShapeError("matrix_transpose", "there must be two axes to exchange", got=repr(x.aval))
    return swapaxes(x, -1, -2)


def swapaxes(x: Any, /, axis1: int, axis2: int) -> Array:
    """Returns the array with two axes exchanged."""
    x = asarray(x)
    order = list(range(x.ndim))
    i, j = (normalize_axis("swapaxes", axis, x.ndim) for axis in (axis1, axis2))
    order[i], order[j] = j, i
    return permute_dims(x, order)


def moveaxis(x: Any, /, source: Axes, destination: Axes) -> Array:
    """Returns the array with some axes at other places and the rest in order.

    >>> moveaxis(np.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = asarray(x)
    sources = [normalize_axis("moveaxis", axis, x.ndim) for axis in _listed(source)]
    places = [normalize_axis("moveaxis", axis, x.ndim) for axis in _listed(destination)]
    if not len(sources) == len(places) == len(set(sources)) == len(set(places)):
        raise ArgumentError("moveaxis", "there must be one destination per source", got=f"{source} and {destination}")
    order = [axis for axis in range(x.ndim) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return permute_dims(x, order)


def expand_dims(x: Any, /, axis: Axes = 0) -> Array:
    """Returns the array with axes of size 1 at the given places of the result."""
    x = asarray(x)
    rank = x.ndim + len(_listed(axis))
    new = normalize_axes("expand_dims", axis, rank)
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if i in new else next(sizes) for i in range(rank)))


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
    sizes = as_shape("broadcast_to", shape)
    return x if sizes == x.shape else ops.broadcast_to(x, shape=sizes)


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """Returns the arrays broadcast to their common shape."""
    values = [asarray(x) for x in arrays]
    common = pointwise.broadcast_shapes("broadcast_arrays", [x.shape for x in values])
    return [broadcast_to(x, common) for x in values]


def _promoted(name: str, arrays: Sequence[Any]) -> list[Array]:
    if not len(arrays):
        raise ArgumentError(name, "there must be an array")
    return [asarray(x) for x in operands(name, *map(asarray, arrays))]


def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Array:
    """Returns the arrays one after the other along an axis, or flattened if it is None.

    >>> concat([np.ones(1, "int32"), np.zeros(2, "int32")])
    Array([1, 0, 0], dtype=int32)
    """
    values = _promoted("concat", arrays)
    if axis is None:
        values, axis = [ravel(x) for x in values], 0
    if any(x.ndim != values[0].ndim for x in values):
        got = ", ".join(repr(x.aval) for x in values)
        raise ShapeError("concat", "all arrays must have the same number of axes", got=got)
    return ops.concat(*values, axis=normalize_axis("concat", axis, values[0].ndim))


def concatenate(arrays: Sequence[Any], axis: int | None = 0) -> Array:
    """Returns the arrays one after the other along an axis; NumPy's name of :func:`concat`."""
    return concat(arrays, axis)


def stack(arrays: Sequence[Any], /, axis: int = 0) -> Array:
    """Returns the arrays side by side along a new axis.

    >>> stack([[1, 2], [3, 4]], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    values = _promoted("stack", arrays)
    if len({x.shape for x in values}) > 1:
        got = ", ".join(repr(x.aval) for x in values)
        raise ShapeError("stack", "all arrays must have one shape", got=got)
    axis = normalize_axis("stack", axis, values[0].ndim + 1)
    return concat([expand_dims(x, axis) for x in values], axis)


def vstack(arrays: Sequence[Any], /) -> Array:
    """Returns the arrays stacked as rows."""
    values = _promoted("vstack", arrays)
    return concat([x if x.ndim > 1 else reshape(x, (1, x.size)) for x in values], 0)


def hstack(arrays: Sequence[Any], /) -> Array:
    """Returns the arrays side by side along the second axis, vectors along their only one."""
    values = [x if x.ndim else ravel(x) for x in _promoted("hstack", arrays)]
    return concat(values, 0 if values[0].ndim < 2 else 1)


def split(x: Any, sections: int | Sequence[int], /, axis: int = 0) -> list[Array]:
    """Returns parts along an axis: ``sections`` equal ones, or cut at the given places.

    Raises:
        ShapeError: if there are no so many equal parts.
    """
    x = asarray(x)
    axis = normalize_axis("split", axis, x.ndim)
    size = x.shape[axis]
    if isinstance(sections, int | np.integer):
        if sections < 1 or size % sections:
            raise ShapeError("split", f"{size} elements do not make {sections} equal parts", got=repr(x.aval))
        cuts = [size // int(sections) * i for i in range(1, int(sections))]
    else:
        cuts = [min(max(c + size if c < 0 else c, 0), size) for c in map(int, sections)]
    lead = (slice(None),) * axis
    return [x[(*lead, slice(a, b))] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def unstack(x: Any, /, axis: int = 0) -> tuple[Array, ...]:
    """Returns the slices along an axis."""
    x = asarray(x)
    lead = (slice(None),) * normalize_axis("unstack", axis, x.ndim)
    return tuple(x[(*lead, i)] for i in range(x.shape[axis]))


def flip(x: Any, /, axis: Axes | None = None) -> Array:
    """Returns the array with the order along some axes (by default all) reversed."""
    x = asarray(x)
    return ops.flip(x, axes=normalize_axes("flip", axis, x.ndim))


def roll(x: Any, /, shift: Axes, axis: Axes | None = None) -> Array:
    """Returns the array rotated along axes; without an axis, as if it were flat.

    >>> roll([1, 2, 3, 4], 1)
    Array([4, 1, 2, 3], dtype=int32)
    """
    x = asarray(x)
    if axis is None:
        return reshape(roll(ravel(x), sum(map(int, _listed(shift))), 0), x.shape)
    shifts, axes = _listed(shift), _listed(axis)
    if 1 in (len(shifts), len(axes)):
        shifts, axes = (
            shifts * (len(axes) if len(shifts) == 1 else 1),
            axes * (len(shifts) if len(axes) == 1 else 1),
        )
    if len(shifts) != len(axes):
        raise ArgumentError("roll", "there must be one shift per axis", got=f"{shift} and {axis}")
    for amount, place in zip(shifts, axes, strict=True):
        place = normalize_axis("roll", place, x.ndim)
        if x.shape[place] and amount % x.shape[place]:
            first, second = split(x, [-amount % x.shape[place]], place)
            x = concat([second, first], place)
    return x


def repeat(x: Any, repeats: int | Sequence[int], /, axis: int | None = None) -> Array:
    """Returns each element several times in a row along an axis, or flattened if it is None.

    Args:
        x: the array.
        repeats: how often, for all elements or for each one along the axis; not traced.
        axis: the axis.

    >>> repeat([1, 2], 2)
    Array([1, 1, 2, 2], dtype=int32)
    """
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("repeat", axis, x.ndim)
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise ArgumentError("repeat", "the repeats must be non-negative integers", got=repr(repeats))
    if counts.size != 1:
        if counts.size != x.shape[axis]:
            raise ShapeError("repeat", f"there must be {x.shape[axis]} numbers of repeats", got=str(counts.size))
        return x[(slice(None),) * axis + (np.repeat(np.arange(counts.size), counts),)]
    count = int(counts.reshape(()))
    wide = broadcast_to(expand_dims(x, axis + 1), (*x.shape[: axis + 1], count, *x.shape[axis + 1 :]))
    return reshape(wide, (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]))


def tile(x: Any, repetitions: Axes, /) -> Array:
    """Returns copies of the array side by side, ``repetitions`` along each axis.

    >>> tile([1, 2], 2)
    Array([1, 2, 1, 2], dtype=int32)
    """
    x = asarray(x)
    counts = list(as_shape("tile", repetitions))
    rank = max(x.ndim, len(counts))
    counts = [1] * (rank - len(counts)) + counts
    shape = (1,) * (rank - x.ndim) + x.shape
    apart = [part for size in shape for part in (1, size)]
    wide = [part for count, size in zip(counts, shape, strict=True) for part in (count, size)]
    whole = tuple(count * size for count, size in zip(counts, shape, strict=True))
    return reshape(broadcast_to(reshape(x, apart), wide), whole)


def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Array:
    """Returns the array with elements around it.

    Args:
        x: the array.
        pad_width: how many: a number, ``(before, after)``, or one such pair per axis.
        mode: ``"constant"``, ``"edge"``, ``"reflect"``, ``"symmetric"`` or ``"wrap"``.
        constant_values: the value of mode ``"constant"``.

    Raises:
        ArgumentError: for another mode.
        ShapeError: for widths that are negative or do not fit.

    >>> pad(np.ones(1, "int32"), (1, 2))
    Array([0, 1, 0, 0], dtype=int32)
    """
    x = asarray(x)
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    except ValueError:
        raise ShapeError("pad", f"the widths must be pairs for {x.ndim} axes", got=str(pad_width)) from None
    if any(not isinstance(width, int) or width < 0 for pair in widths for width in pair):
        raise ShapeError("pad", "the widths must be non-negative integers", got=str(pad_width))
    if mode != "constant":
        return _pad_with_elements(x, widths, mode)
    return ops.pad(
        x,
        convert("pad", constant_values, x.dtype),
        low=tuple(low for low, _ in widths),
        high=tuple(high for _, high in widths),
        interior=(0,) * x.ndim,
    )


def _pad_with_elements(x: Array, widths: list, mode: str) -> Array:
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        modes = "constant, edge, reflect, symmetric or wrap"
        raise ArgumentError("pad", f"the mode must be {modes}", got=repr(mode))
    for axis, pair in enumerate(widths):
        if any(pair):
            if not x.shape[axis]:
                raise ShapeError("pad", f"axis {axis} has no elements to pad with", got=repr(x.aval))
            # NumPy pads the numbers of the elements; they say which ones to take.
            places = np.pad(np.arange(x.shape[axis]), pair, mode)  # type: ignore[call-overload]
            x = x[(slice(None),) * axis + (places,)]
    return x
