"""Shapes: reshaping, axes, broadcasting, joining and splitting."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, DeviceArray
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import Shape, as_shape, asarray, sizes_of
from tvmfun.numpy.creation import arrays as promoted
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.promotion import NestedArrayLike, no_out, row_major
from tvmfun.ops import pointwise
from tvmfun.ops import shape as ops
from tvmfun.typing import DTypeLike

__all__ = [
    "append",
    "array_split",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "column_stack",
    "concat",
    "concatenate",
    "dsplit",
    "dstack",
    "expand_dims",
    "flip",
    "fliplr",
    "flipud",
    "hsplit",
    "hstack",
    "isscalar",
    "iterable",
    "matrix_transpose",
    "moveaxis",
    "ndim",
    "permute_dims",
    "ravel",
    "reshape",
    "rollaxis",
    "rot90",
    "shape",
    "size",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "transpose",
    "unstack",
    "vsplit",
    "vstack",
]


Axes = int | Sequence[int]


def normalize_axis(name: str, axis: int, ndim: int, of: str = "an array") -> int:
    """A possibly negative axis as one in ``range(ndim)``.

    Raises:
        ShapeError: in the name of the function ``name``, if there is no such axis.
        ArgumentError: if the axis is not an integer.
    """
    try:
        index = axis.__index__()
    except (AttributeError, TypeError):
        raise ArgumentError(name, "an axis is an integer", got=repr(axis)) from None
    if not -ndim <= index < ndim:
        raise ShapeError(name, f"{of} with {ndim} axes has no such axis", got=f"axis {axis}")
    return index % ndim


def known_integer(value: Any) -> Any:
    """The integer in an array with data, such as a size that was computed while nothing was traced; others as is."""
    is_array = isinstance(value, DeviceArray) and not value.ndim and dtypes.is_integer(value.dtype)
    return operator.index(value) if is_array else value


def listed(value: Any) -> list:
    """One integer or several, also in an array with one axis, as a list."""
    is_array = isinstance(value, np.ndarray | DeviceArray) and value.ndim == 1
    return list(value) if isinstance(value, Sequence) or is_array else [value]


def normalize_axes(name: str, axis: Axes | None, ndim: int, of: str = "an array") -> tuple[int, ...]:
    """Axes given as None (all), one or several, as sorted numbers in ``range(ndim)``."""
    if axis is None:
        return tuple(range(ndim))
    axes = [normalize_axis(name, a, ndim, of) for a in listed(axis)]
    if len(set(axes)) != len(axes):
        raise ShapeError(name, "an axis is given twice", got=str(axis))
    return tuple(sorted(axes))


def reshape(a: NestedArrayLike, shape: Shape, order: str = "C", *, copy: bool | None = None) -> Array:
    """Returns the elements, in row-major order, in another shape.

    Args:
        a: the array.
        shape: the sizes, one of which may be -1 for the rest.
        order: ``"C"`` to read and write the elements in row-major order, ``"F"`` in column-major order.
        copy: for the array API; arrays are immutable, so a copy cannot be told from the original.

    Raises:
        ShapeError: if the number of elements differs.

    >>> reshape(np.arange(6), (2, -1)).shape
    (2, 3)
    """
    a = asarray(a)
    sizes = sizes_of("reshape", listed(shape))
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        if rest == 0 or a.size % rest != 0:
            raise ShapeError("reshape", f"{a.size} elements do not fill {sizes}", got=repr(a.aval))
        sizes = tuple(a.size // rest if size == -1 else size for size in sizes)
    if any(size < 0 for size in sizes):
        raise ShapeError("reshape", "sizes are not negative, but for one -1", got=str(shape))
    if order == "F":
        return transpose(reshape(transpose(a), sizes[::-1]))
    row_major("reshape", order)
    return a if sizes == a.shape else ops.reshape(a, shape=sizes)


def ravel(a: NestedArrayLike, order: str = "C") -> Array:
    """Returns the elements as one axis, in row-major order, or with ``order="F"`` in column-major order."""
    a = asarray(a)
    return reshape(a, (a.size,), order)


def permute_dims(a: Any, /, axes: Sequence[int]) -> Array:
    """Returns the array with its axes in another order.

    >>> permute_dims(np.ones((2, 3)), (1, 0)).shape
    (3, 2)
    """
    a = asarray(a)
    order = tuple(normalize_axis("permute_dims", axis, a.ndim) for axis in axes)
    return a if order == tuple(range(a.ndim)) else ops.permute_dims(a, axes=order)


def transpose(a: NestedArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Returns the array with its axes in another order, by default reversed."""
    a = asarray(a)
    return permute_dims(a, tuple(reversed(range(a.ndim))) if axes is None else axes)


def matrix_transpose(x: NestedArrayLike, /) -> Array:
    """Returns the array with its last two axes exchanged."""
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError("matrix_transpose", "there must be two axes to exchange", got=repr(x.aval))
    return swapaxes(x, -1, -2)


def swapaxes(a: NestedArrayLike, axis1: int, axis2: int) -> Array:
    """Returns the array with two axes exchanged."""
    a = asarray(a)
    order = list(range(a.ndim))
    i, j = (normalize_axis("swapaxes", axis, a.ndim) for axis in (axis1, axis2))
    order[i], order[j] = j, i
    return permute_dims(a, order)


def moveaxis(a: NestedArrayLike, source: Axes, destination: Axes) -> Array:
    """Returns the array with some axes at other positions and the rest in order.

    >>> moveaxis(np.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    a = asarray(a)
    sources = [normalize_axis("moveaxis", axis, a.ndim) for axis in listed(source)]
    indices = [normalize_axis("moveaxis", axis, a.ndim) for axis in listed(destination)]
    if not len(sources) == len(indices) == len(set(sources)) == len(set(indices)):
        raise ArgumentError("moveaxis", "there must be one destination per source", got=f"{source} and {destination}")
    order = [axis for axis in range(a.ndim) if axis not in sources]
    for index, axis in sorted(zip(indices, sources, strict=True)):
        order.insert(index, axis)
    return permute_dims(a, order)


def rollaxis(a: NestedArrayLike, axis: int, start: int = 0) -> Array:
    """Returns the array with an axis moved back until it is before the axis ``start``.

    >>> rollaxis(np.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    a = asarray(a)
    axis = normalize_axis("rollaxis", axis, a.ndim)
    if start != a.ndim:
        start = normalize_axis("rollaxis", start, a.ndim)
    return moveaxis(a, axis, start - 1 if start > axis else start)


def expand_dims(a: NestedArrayLike, axis: Axes = 0) -> Array:
    """Returns the array with axes of size 1 at the given positions of the result."""
    a = asarray(a)
    rank = a.ndim + len(listed(axis))
    new = normalize_axes("expand_dims", axis, rank, of="a result")
    sizes = iter(a.shape)
    return reshape(a, tuple(1 if i in new else next(sizes) for i in range(rank)))


def squeeze(a: NestedArrayLike, axis: Axes | None = None) -> Array:
    """Returns the array without axes of size 1: the given ones, or all."""
    a = asarray(a)
    if axis is None:
        axis = tuple(i for i, size in enumerate(a.shape) if size == 1)
    gone = normalize_axes("squeeze", axis, a.ndim)
    if any(a.shape[i] != 1 for i in gone):
        raise ShapeError("squeeze", f"axes {gone} must have size 1", got=repr(a.aval))
    return reshape(a, tuple(size for i, size in enumerate(a.shape) if i not in gone))


def broadcast_to(array: Any, shape: Shape) -> Array:
    """Returns the array repeated along axes of size 1 and new leading axes."""
    array = asarray(array)
    sizes = as_shape("broadcast_to", shape)
    return array if sizes == array.shape else ops.broadcast_to(array, shape=sizes)


def broadcast_shapes(*shapes: Shape) -> tuple[int, ...]:
    """Returns the shape that arrays of the given shapes broadcast to.

    >>> broadcast_shapes((3, 1), (2,))
    (3, 2)
    """
    name = "broadcast_shapes"
    return pointwise.broadcast_shapes(name, [as_shape(name, shape) for shape in shapes])


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """Returns the arrays broadcast to their common shape."""
    values = [asarray(x) for x in arrays]
    common = pointwise.broadcast_shapes("broadcast_arrays", [x.shape for x in values])
    return [broadcast_to(x, common) for x in values]


def flip(m: NestedArrayLike, axis: Axes | None = None) -> Array:
    """Returns the array with the order along some axes (by default all) reversed."""
    m = asarray(m)
    return ops.flip(m, axes=normalize_axes("flip", axis, m.ndim))


def fliplr(m: NestedArrayLike) -> Array:
    """Returns the array with the order along its second axis reversed."""
    return flip(m, 1)


def flipud(m: NestedArrayLike) -> Array:
    """Returns the array with the order along its first axis reversed."""
    return flip(m, 0)


def rot90(m: NestedArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Returns the array turned by ``k`` right angles, from the first of two axes towards the second.

    >>> rot90([[1, 2], [3, 4]])
    Array([[2, 4],
           [1, 3]], dtype=int32)
    """
    m = asarray(m)
    first, second = (normalize_axis("rot90", axis, m.ndim) for axis in axes)
    if first == second:
        raise ArgumentError("rot90", "there must be two different axes", got=str(axes))
    if k % 4 == 0:
        return m
    if k % 4 == 2:
        return flip(m, (first, second))
    return flip(swapaxes(m, first, second), first) if k % 4 == 1 else swapaxes(flip(m, first), first, second)


def _at_least(arrays: tuple, raise_rank: Callable[[Array], Array]) -> Any:
    results = [raise_rank(asarray(x)) for x in arrays]
    return results[0] if len(results) == 1 else results


def atleast_1d(*arrays: Any) -> Any:
    """Returns the array, or a list of several, with numbers as vectors of one element."""
    return _at_least(arrays, lambda x: x if x.ndim else reshape(x, (1,)))


def atleast_2d(*arrays: Any) -> Any:
    """Returns the array, or a list of several, with vectors as matrices of one row."""
    return _at_least(arrays, lambda x: x if x.ndim > 1 else reshape(x, (1, x.size)))


def atleast_3d(*arrays: Any) -> Any:
    """Returns the array, or a list of several, as arrays of at least three axes; the new ones have size 1."""
    return _at_least(
        arrays, lambda x: x if x.ndim > 2 else expand_dims(x, 2) if x.ndim == 2 else reshape(x, (1, x.size, 1))
    )


def _promoted(name: str, arrays: Sequence[Any], dtype: Any = None) -> list[Array]:
    if not len(arrays):
        raise ArgumentError(name, "there must be an array")
    return promoted(name, *arrays) if dtype is None else [astype(asarray(x), dtype) for x in arrays]


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


def concatenate(arrays: Sequence[Any], axis: int | None = 0, dtype: DTypeLike | None = None) -> Array:
    """Returns the arrays one after the other along an axis, or flattened if it is None, in a dtype of choice."""
    result = concat(arrays, axis)
    return result if dtype is None else astype(result, dtype)


def append(arr: NestedArrayLike, values: NestedArrayLike, axis: int | None = None) -> Array:
    """Returns the values after the array along an axis, both flattened if it is None."""
    return concat([arr, values], axis)


def stack(arrays: Sequence[Any], axis: int = 0, out: None = None, dtype: DTypeLike | None = None) -> Array:
    """Returns the arrays side by side along a new axis.

    >>> stack([[1, 2], [3, 4]], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    no_out("stack", out)
    values = _promoted("stack", arrays, dtype)
    if len({x.shape for x in values}) > 1:
        got = ", ".join(repr(x.aval) for x in values)
        raise ShapeError("stack", "all arrays must have one shape", got=got)
    axis = normalize_axis("stack", axis, values[0].ndim + 1)
    return concat([expand_dims(x, axis) for x in values], axis)


def vstack(tup: Sequence[Any], dtype: DTypeLike | None = None) -> Array:
    """Returns the arrays stacked as rows."""
    return concat([atleast_2d(x) for x in _promoted("vstack", tup, dtype)], 0)


def hstack(tup: Sequence[Any], dtype: DTypeLike | None = None) -> Array:
    """Returns the arrays side by side along the second axis, vectors along their only one."""
    values = [x if x.ndim else ravel(x) for x in _promoted("hstack", tup, dtype)]
    return concat(values, 0 if values[0].ndim < 2 else 1)


def dstack(tup: Sequence[Any], dtype: DTypeLike | None = None) -> Array:
    """Returns the arrays stacked along the third axis."""
    return concat([atleast_3d(x) for x in _promoted("dstack", tup, dtype)], 2)


def column_stack(tup: Sequence[Any]) -> Array:
    """Returns the arrays side by side as columns of a matrix.

    >>> column_stack([[1, 2], [3, 4]])
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    values = _promoted("column_stack", tup)
    return concat([x if x.ndim > 1 else reshape(x, (x.size, 1)) for x in values], 1)


def block(arrays: Any) -> Array:
    """Returns the array made of nested lists of blocks: the innermost lists go along the last axis.

    >>> block([[np.ones((1, 1), "int32"), np.zeros((1, 2), "int32")], [np.ones((1, 3), "int32")]])
    Array([[1, 0, 0],
           [1, 1, 1]], dtype=int32)
    """

    def depth(item: Any) -> int:
        if not isinstance(item, list):
            return 0
        if not item:
            raise ArgumentError("block", "a list must not be empty")
        depths = {depth(inner) for inner in item}
        if len(depths) > 1:
            raise ArgumentError("block", "all blocks must be nested equally deep", got=f"depths {sorted(depths)}")
        return 1 + depths.pop()

    def leaves(item: Any) -> list[Any]:
        return [leaf for inner in item for leaf in leaves(inner)] if isinstance(item, list) else [item]

    levels = depth(arrays)
    blocks = _promoted("block", leaves(arrays))
    rank = max(levels, *(x.ndim for x in blocks))
    in_order = iter(reshape(x, (1,) * (rank - x.ndim) + x.shape) for x in blocks)

    def joined(item: Any, level: int) -> Array:
        if isinstance(item, list):
            return concat([joined(inner, level - 1) for inner in item], rank - level)
        return next(in_order)

    return joined(arrays, levels)


def _split_along(name: str, x: Any, sections: int | Sequence[int], axis: int, equal: bool) -> list[Array]:
    """The parts along an axis: ``sections`` of them, or cut at the given indices."""
    x = asarray(x)
    axis = normalize_axis(name, axis, x.ndim)
    size, sections = x.shape[axis], known_integer(sections)
    if isinstance(sections, int | np.integer):
        if sections < 1:
            raise ArgumentError(name, "there must be at least one part", got=str(sections))
        if equal and size % sections != 0:
            raise ShapeError(
                name, f"{size} elements do not make {sections} equal parts", got=repr(x.aval), hint="array_split"
            )
        short, long = divmod(size, int(sections))  # the first `long` parts have one element more
        cuts = [short * i + dims.minimum(i, long) for i in range(1, int(sections))]
    else:
        cuts = [c + size if c < 0 else c for c in map(dims.index, sections)]
        cuts = [dims.minimum(dims.maximum(c, 0), size) for c in cuts]
    lead = (slice(None),) * axis
    return [x[(*lead, slice(a, b))] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def split(ary: NestedArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Returns parts along an axis: ``indices_or_sections`` equal ones, or cut at the given indices.

    Raises:
        ShapeError: if the axis cannot be cut into that many equal parts.
    """
    return _split_along("split", ary, indices_or_sections, axis, equal=True)


def array_split(ary: NestedArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Returns parts along an axis: ``indices_or_sections`` nearly equal ones, or cut at the given indices.

    >>> [len(part) for part in array_split(np.ones(7), 3)]
    [3, 2, 2]
    """
    return _split_along("array_split", ary, indices_or_sections, axis, equal=False)


def vsplit(ary: NestedArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Returns parts along the first axis; see :func:`split`."""
    return _split_along("vsplit", ary, indices_or_sections, 0, equal=True)


def hsplit(ary: NestedArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Returns parts along the second axis, of a vector along its only one; see :func:`split`."""
    ary = asarray(ary)
    return _split_along("hsplit", ary, indices_or_sections, min(1, ary.ndim - 1), equal=True)


def dsplit(ary: NestedArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Returns parts along the third axis; see :func:`split`."""
    return _split_along("dsplit", ary, indices_or_sections, 2, equal=True)


def unstack(x: NestedArrayLike, /, axis: int = 0) -> tuple[Array, ...]:
    """Returns the slices along an axis."""
    x = asarray(x)
    lead = (slice(None),) * normalize_axis("unstack", axis, x.ndim)
    return tuple(x[(*lead, i)] for i in range(x.shape[axis]))


def iterable(y: NestedArrayLike) -> bool:
    """Returns whether an object can be iterated over, which arrays without axes cannot."""
    return np.iterable(y)


def ndim(a: NestedArrayLike) -> int:
    """Returns the number of axes, also of what only has a shape, such as a :class:`tvmfun.ShapeDtype`."""
    return len(shape(a))


def shape(a: NestedArrayLike) -> tuple[int, ...]:
    """Returns the sizes of the axes, also of what only has a shape, such as a :class:`tvmfun.ShapeDtype`."""
    sizes = getattr(a, "shape", None)
    return tuple(sizes) if isinstance(sizes, tuple | list) else asarray(a).shape


def size(a: NestedArrayLike, axis: Axes | None = None) -> int:
    """Returns the number of elements, or the size of an axis."""
    sizes = shape(a)
    return math.prod(sizes[i] for i in normalize_axes("size", axis, len(sizes)))


def isscalar(element: NestedArrayLike) -> bool:
    """Returns whether ``element`` is a number or an array without axes."""
    return isinstance(element, bool | int | float) or getattr(element, "shape", None) == ()
