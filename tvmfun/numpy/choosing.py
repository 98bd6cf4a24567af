"""Elements chosen by masks and numbers, and arrays with other values at such places."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, IndexingError, ShapeError
from tvmfun.numpy.creation import arrays, asarray, ones
from tvmfun.numpy.cumulative import cumsum
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.elementwise import clip, not_equal, remainder, where
from tvmfun.numpy.indexing import take, take_along_axis
from tvmfun.numpy.joining import stack
from tvmfun.numpy.manipulation import broadcast_arrays, expand_dims, moveaxis, normalize_axis, ravel, reshape
from tvmfun.numpy.promotion import no_out, require_integer
from tvmfun.numpy.searching import flatnonzero, nonzero
from tvmfun.ops import pointwise

__all__ = ["choose", "compress", "extract", "mask_indices", "place", "put", "put_along_axis"]


def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Array:
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
    condition: Any,
    a: Any,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: Any = 0,
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


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Array:
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


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = True) -> Array:
    """Returns the array with values where a mask is true: the first at the first such place, and so on.

    Args:
        arr: the array.
        mask: bools of its shape.
        vals: the values, repeated if there are fewer than places.
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
    return reshape(where(flat, chosen, ravel(arr)), arr.shape)


def put(a: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = True) -> Array:
    """Returns the array with values at places of the flattened array.

    Args:
        a: the array.
        ind: integers.
        v: the values, repeated if there are fewer than places.
        mode: what becomes of places outside: ``"clip"``, the default, the nearest place, ``"wrap"`` the remainder.
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
        ind = clip(where(ind < 0, ind + a.size, ind), 0, a.size - 1)
    repeated = take(values, np.arange(ind.size) % values.size, mode="promise_in_bounds")
    return reshape(ravel(a).at[ind].set(repeated), a.shape)


def put_along_axis(
    arr: Any, indices: Any, values: Any, axis: int | None, inplace: bool = True, *, mode: str | None = None
) -> Array:
    """Returns the array with values at the place along an axis that each index names; see ``take_along_axis``.

    Args:
        arr: the array.
        indices: integers; the shape of ``arr`` but for ``axis``, or one that broadcasts to that.
        values: broadcast to the shape of the indices.
        axis: the axis; None for the flattened array.
        inplace: must be False: arrays are immutable.
        mode: what becomes of places outside: as for ``arr.at``.

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
    # Each row has a place of its own along the leading axes.
    others = tuple(np.arange(size).reshape((-1,) + (1,) * (len(lead) - i)) for i, size in enumerate(lead))
    result = rows.at[(*others, columns)].set(astype(values, rows.dtype), mode=mode)
    return reshape(moveaxis(result, -1, axis), shape)


def _wide(values: Any, indices: Array) -> Array:
    """The values with as many axes as the indices."""
    values = asarray(values)
    return reshape(values, (1,) * max(0, indices.ndim - values.ndim) + values.shape)
