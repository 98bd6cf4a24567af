"""Selection of elements by masks, numbers and indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, IndexingError, ShapeError
from tvmfun.numpy import elementwise
from tvmfun.numpy.calculus import cumsum
from tvmfun.numpy.creation import Shape, arrays, as_shape, asarray, ones
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import clip, floor_divide, multiply, not_equal, remainder
from tvmfun.numpy.indexing import take, take_along_axis
from tvmfun.numpy.promotion import NestedArrayLike, no_out, operands, require_integer
from tvmfun.numpy.shapes import broadcast_arrays, expand_dims, moveaxis, normalize_axis, ravel, reshape, stack
from tvmfun.numpy.sorting import flatnonzero, nonzero
from tvmfun.ops import pointwise
from tvmfun.typing import DTypeLike

__all__ = [
    "choose",
    "compress",
    "extract",
    "ix_",
    "mask_indices",
    "place",
    "put",
    "put_along_axis",
    "ravel_multi_index",
    "select",
    "unravel_index",
    "where",
]


def choose(a: NestedArrayLike, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """Returns for each element of ``a`` the element of the array with that number.

    Args:
        a: integers.
        choices: the arrays, which broadcast with ``a``.
        out: must be None: arrays are immutable.
        mode: what becomes of numbers without an array: ``"raise"`` an error, not of traced arrays, ``"clip"`` the
            nearest number, ``"wrap"`` the remainder.

    Raises:
        IndexingError: for such a number, in mode ``"raise"``.

    >>> choose([1, 0], [[1, 2], [10, 20]])
    Array([10,  2], dtype=int32)
    """
    no_out("choose", out)
    a = asarray(a)
    require_integer("choose", a)
    values = arrays("choose", *choices)
    if mode not in ("raise", "clip", "wrap"):
        raise ArgumentError("choose", "the mode is 'raise', 'clip' or 'wrap'", got=repr(mode))
    count = len(values)
    if mode == "raise":
        if isinstance(a, Tracer):
            hint = "mode='clip' or mode='wrap'"
            raise ArgumentError("choose", "traced numbers cannot be checked", got=repr(a.aval), hint=hint)
        host = np.asarray(a)
        if ((host < 0) | (host >= count)).any():
            raise IndexingError("choose", f"there are {count} arrays", got=str(host))
    a = remainder(a, count) if mode == "wrap" else clip(a, 0, count - 1)
    a, *values = broadcast_arrays(a, *values)
    rows = stack(values, -1)
    return take_along_axis(rows, expand_dims(a, -1), -1, mode="promise_in_bounds")[..., 0]


def compress(
    condition: NestedArrayLike,
    a: NestedArrayLike,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: NestedArrayLike = 0,
    out: None = None,
) -> Array:
    """Returns the slices along an axis where a condition holds.

    Args:
        condition: a vector of bools, which may be shorter than the axis.
        a: the array.
        axis: the axis; by default the array is flattened.
        size: how many to return, which must be given when the condition is traced; if there are more, the last are
            left out.
        fill_value: the elements of missing ones.
        out: must be None: arrays are immutable.

    >>> compress([True, False, True], [1, 2, 3])
    Array([1, 3], dtype=int32)
    """
    no_out("compress", out)
    mask, a = asarray(condition), asarray(a)
    if mask.ndim != 1:
        raise ShapeError("compress", "the condition must be a vector", got=repr(mask.aval))
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis("compress", axis, a.ndim)
    if mask.size > a.shape[axis]:
        raise ShapeError("compress", f"axis {axis} has {a.shape[axis]} elements", got=repr(mask.aval))
    if size is None:
        return take(a, flatnonzero(mask), axis, mode="promise_in_bounds")
    return take(a, flatnonzero(mask, size=size, fill_value=a.shape[axis]), axis, mode="fill", fill_value=fill_value)


def extract(
    condition: NestedArrayLike, arr: NestedArrayLike, *, size: int | None = None, fill_value: NestedArrayLike = 0
) -> Array:
    """Returns the elements of the flattened array where a condition holds; see :func:`compress`.

    >>> extract([[True, False], [True, True]], [[1, 2], [3, 4]])
    Array([1, 3, 4], dtype=int32)
    """
    return compress(ravel(condition), ravel(arr), size=size, fill_value=fill_value)


def mask_indices(n: int, mask_func: Any, k: Any = 0, *, size: int | None = None) -> tuple[Array, ...]:
    """Returns the rows and columns of a square matrix where a function such as ``triu`` leaves ones.

    Args:
        n: the size of the matrix.
        mask_func: ``(matrix, k) -> matrix``.
        k: handed to the function.
        size: as for :func:`nonzero`.
    """
    return nonzero(mask_func(ones((n, n), dtypes.int32), k), size=size)


def _immutable(name: str, inplace: bool) -> None:
    if inplace:
        hint = f"{name}(..., inplace=False), which returns the result"
        raise ArgumentError(name, "arrays are immutable", got="inplace=True", hint=hint)


def place(arr: NestedArrayLike, mask: NestedArrayLike, vals: NestedArrayLike, *, inplace: bool = True) -> Array:
    """Returns the array with values where a mask is true: the first at the first such index, and so on.

    Args:
        arr: the array.
        mask: bools of its shape.
        vals: the values, repeated if there are fewer than indices.
        inplace: must be False: arrays are immutable.

    Raises:
        ArgumentError: for ``inplace=True``, NumPy's default.

    >>> place([1, 2, 3, 4], [True, False, True, True], [7, 8], inplace=False)
    Array([7, 2, 8, 7], dtype=int32)
    """
    _immutable("place", inplace)
    arr, mask = asarray(arr), not_equal(asarray(mask), 0)
    if arr.size != mask.size:
        raise ShapeError("place", "the mask must have as many elements as the array", got=f"{mask.aval}, {arr.aval}")
    values = ravel(asarray(vals, arr.dtype))
    if not values.size:
        if mask.size and not isinstance(mask, Tracer) and np.asarray(mask).any():
            raise ArgumentError("place", "there must be a value", got="none")
        return arr
    flat = ravel(mask)
    number = cumsum(astype(flat, dtypes.int32)) - 1
    chosen = take(values, remainder(clip(number, 0, None), values.size), mode="promise_in_bounds")
    return reshape(elementwise.where(flat, chosen, ravel(arr)), arr.shape)


def put(a: NestedArrayLike, ind: Any, v: NestedArrayLike, mode: str | None = None, *, inplace: bool = True) -> Array:
    """Returns the array with values at indices of the flattened array.

    Args:
        a: the array.
        ind: integers.
        v: the values, repeated if there are fewer than indices.
        mode: indices out of bounds: for ``"clip"``, the default, the nearest index, for ``"wrap"`` the remainder.
        inplace: must be False: arrays are immutable.

    Raises:
        ArgumentError: for ``inplace=True``, NumPy's default.

    >>> put([1, 2, 3], [0, -1], [7, 8], inplace=False)
    Array([7, 2, 8], dtype=int32)
    """
    _immutable("put", inplace)
    a, ind = asarray(a), ravel(ind)
    require_integer("put", ind)
    values = ravel(asarray(v, a.dtype))
    if mode not in (None, "clip", "wrap"):
        hint = "indices inside the array"
        raise ArgumentError("put", "the mode is 'clip' or 'wrap'", got=repr(mode), hint=hint)
    if not ind.size or not values.size:
        return a
    if mode == "wrap":
        ind = remainder(ind, a.size)
    elif mode == "clip":
        ind = clip(ind, 0, a.size - 1)
    else:
        ind = clip(elementwise.where(ind < 0, ind + a.size, ind), 0, a.size - 1)
    repeated = take(values, np.arange(ind.size) % values.size, mode="promise_in_bounds")
    return reshape(ravel(a).at[ind].set(repeated), a.shape)


def put_along_axis(
    arr: NestedArrayLike,
    indices: NestedArrayLike,
    values: NestedArrayLike,
    axis: int | None,
    inplace: bool = True,
    *,
    mode: str | None = None,
) -> Array:
    """Returns the array with values at the indices along an axis; see ``take_along_axis``.

    Args:
        arr: the array.
        indices: integers; the shape of ``arr`` but for ``axis``, or one that broadcasts to that.
        values: broadcast to the shape of the indices.
        axis: the axis; None for the flattened array.
        inplace: must be False: arrays are immutable.
        mode: the treatment of indices out of bounds, as for ``arr.at``.

    Raises:
        ArgumentError: for ``inplace=True``, NumPy's default.

    >>> put_along_axis([[1, 2], [3, 4]], [[1], [0]], 9, 1, inplace=False)
    Array([[1, 9],
           [9, 4]], dtype=int32)
    """
    _immutable("put_along_axis", inplace)
    arr, indices = asarray(arr), asarray(indices)
    require_integer("put_along_axis", indices)
    shape = arr.shape
    x = arr
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("put_along_axis", axis, x.ndim)
    if indices.ndim != x.ndim:
        raise ShapeError("put_along_axis", f"the indices must have {x.ndim} axes", got=repr(indices.aval))
    rows, columns = moveaxis(x, axis, -1), moveaxis(indices, axis, -1)
    lead = rows.shape[:-1]
    wide = pointwise.broadcast_shapes("put_along_axis", [columns.shape, (*lead, 1)])
    columns, values = broadcast_arrays(columns, moveaxis(_wide(values, indices), axis, -1))
    columns, values = (
        y if y.shape == wide else broadcast_arrays(y, np.zeros(wide, bool))[0] for y in (columns, values)
    )
    # Each row has an index of its own along the leading axes.
    others = tuple(np.arange(size).reshape((-1,) + (1,) * (len(lead) - i)) for i, size in enumerate(lead))
    result = rows.at[(*others, columns)].set(astype(values, rows.dtype), mode=mode)
    return reshape(moveaxis(result, -1, axis), shape)


def _wide(values: Any, indices: Array) -> Array:
    """The values with as many axes as the indices."""
    values = asarray(values)
    return reshape(values, (1,) * max(0, indices.ndim - values.ndim) + values.shape)


def ix_(*arrays: Any) -> tuple[Array, ...]:
    """Returns the vectors, each along an axis of its own: together they index the grid of all combinations.

    A vector of bools stands for the indices where it is true.

    >>> [indices.shape for indices in ix_([0, 1], [2, 3, 4])]
    [(2, 1), (1, 3)]
    """
    results = []
    for i, x in enumerate(map(asarray, arrays)):
        if x.ndim != 1:
            raise ShapeError("ix_", "the arguments must be vectors", got=repr(x.aval))
        x = flatnonzero(x) if x.dtype == dtypes.bool_ else x
        results.append(reshape(x, (1,) * i + (-1,) + (1,) * (len(arrays) - i - 1)))
    return tuple(results)


def unravel_index(indices: NestedArrayLike, shape: Shape) -> tuple[Array, ...]:
    """Returns the indices along each axis of elements numbered in row-major order; numbers outside are clamped.

    >>> unravel_index(5, (2, 3))
    (Array(1, dtype=int32), Array(2, dtype=int32))
    """
    flat = asarray(indices)
    require_integer("unravel_index", flat)
    sizes = as_shape("unravel_index", shape)
    total = math.prod(sizes)
    flat = clip(flat, -total, total - 1)
    results = []
    for size in reversed(sizes):
        results.append(remainder(flat, size))
        flat = floor_divide(flat, size)
    return tuple(reversed(results))


def ravel_multi_index(
    multi_index: Sequence[Any], dims: Shape, mode: str = "raise", order: str = "C", *, dtype: DTypeLike | None = None
) -> Array:
    """Returns the number in row-major order of the elements at indices along each axis.

    Args:
        multi_index: one array of indices for each axis.
        dims: the sizes of the axes.
        mode: what becomes of indices out of bounds: ``"raise"`` an error, not of traced indices, ``"clip"`` the nearest
            index, ``"wrap"`` the remainder.
        order: ``"C"`` for row-major order, ``"F"`` for column-major order.
        dtype: of the result; by default that of the indices.

    Raises:
        IndexingError: for indices out of bounds, in mode ``"raise"``.

    >>> ravel_multi_index(([1, 0], [2, 1]), (2, 3))
    Array([5, 1], dtype=int32)
    """
    sizes = as_shape("ravel_multi_index", dims)
    indices = [asarray(p) for p in multi_index]
    if len(indices) != len(sizes):
        raise ShapeError("ravel_multi_index", f"there must be indices along {len(sizes)} axes", got=str(len(indices)))
    if mode not in ("raise", "clip", "wrap"):
        raise ArgumentError("ravel_multi_index", "the mode is 'raise', 'clip' or 'wrap'", got=repr(mode))
    if order not in ("C", "F"):
        raise ArgumentError("ravel_multi_index", "the order is 'C' or 'F'", got=repr(order))
    if order == "F":
        indices, sizes = indices[::-1], sizes[::-1]
    result: Any = 0
    for p, size in zip(indices, sizes, strict=True):
        require_integer("ravel_multi_index", p)
        if mode == "raise":
            if isinstance(p, Tracer):
                hint = "mode='clip' or mode='wrap'"
                raise ArgumentError(
                    "ravel_multi_index", "traced indices cannot be checked", got=repr(p.aval), hint=hint
                )
            host = p.concrete("ravel_multi_index").numpy()
            if ((host < 0) | (host >= size)).any():
                raise IndexingError("ravel_multi_index", f"an axis has {size} elements", got=str(host))
        p = clip(p, 0, size - 1) if mode == "clip" else remainder(p, size) if mode == "wrap" else p
        result = multiply(result, size) + p
    return asarray(result, dtype)


def where(
    condition: NestedArrayLike,
    x1: NestedArrayLike | None = None,
    x2: NestedArrayLike | None = None,
    /,
    *,
    size: int | None = None,
    fill_value: NestedArrayLike | None = None,
) -> Any:
    """Returns ``x1`` where the condition holds and ``x2`` elsewhere; alone, the indices where it holds.

    Gradients flow only to the chosen branch, but are NaN if the other one's derivative is infinite there.

    Args:
        condition: an array; elements other than 0 count as true.
        x1: what to take where it holds.
        x2: what to take elsewhere.
        size: as for :func:`nonzero`, for the indices.
        fill_value: as for :func:`nonzero`, for the indices.

    >>> where(np.asarray([True, False]), 1.0, 2.0)
    Array([1., 2.], dtype=float32)
    """
    if x1 is None and x2 is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x1 is None or x2 is None:
        raise ArgumentError("where", "there must be two branches, or none", got="one")
    return elementwise.where(condition, x1, x2)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Array:
    """Returns the choice of the first condition that holds, or the default, elementwise.

    >>> x = np.asarray([-2, 0, 3])
    >>> select([x < 0, x > 0], [-1, 1])
    Array([-1,  0,  1], dtype=int32)
    """
    if len(condlist) != len(choicelist) or not len(condlist):
        got = f"{len(condlist)} and {len(choicelist)}"
        raise ArgumentError("select", "there must be a choice for each condition", got=got)
    result, *choicelist = operands("select", default, *choicelist)
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        result = elementwise.where(condition, choice, result)
    return result
