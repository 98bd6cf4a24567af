"""Places in arrays: of triangles and diagonals, in grids, and in row-major order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, device_array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, IndexingError, ShapeError
from tvmfun.numpy.creation import Shape, as_shape, asarray
from tvmfun.numpy.elementwise import clip, floor_divide, multiply, remainder
from tvmfun.numpy.manipulation import reshape
from tvmfun.numpy.promotion import require_integer
from tvmfun.numpy.searching import flatnonzero

__all__ = [
    "diag_indices",
    "diag_indices_from",
    "indices",
    "ix_",
    "ravel_multi_index",
    "tril_indices",
    "tril_indices_from",
    "triu_indices",
    "triu_indices_from",
    "unravel_index",
]


def _places(arrays: Sequence[np.ndarray]) -> tuple[Array, ...]:
    return tuple(device_array(np.asarray(places, np.int32)) for places in arrays)


def _matrix(name: str, x: Any) -> tuple[int, int]:
    x = asarray(x)
    if x.ndim != 2:
        raise ShapeError(name, "the argument must be a matrix", got=repr(x.aval))
    return x.shape[0], x.shape[1]


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """Returns the int32 rows and columns of the elements up to the k-th diagonal of an ``n`` by ``m`` matrix.

    >>> tril_indices(2)
    (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    return _places(np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """Returns the int32 rows and columns of the elements from the k-th diagonal of an ``n`` by ``m`` matrix."""
    return _places(np.triu_indices(n, k, m))


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Array, ...]:
    """Returns the rows and columns of the elements up to the k-th diagonal of a matrix."""
    rows, columns = _matrix("tril_indices_from", arr)
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Array, ...]:
    """Returns the rows and columns of the elements from the k-th diagonal of a matrix."""
    rows, columns = _matrix("triu_indices_from", arr)
    return triu_indices(rows, k, columns)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Returns the int32 places of the main diagonal of an array with ``ndim`` axes of size ``n``."""
    return _places(np.diag_indices(n, ndim))


def diag_indices_from(arr: Any) -> tuple[Array, ...]:
    """Returns the places of the main diagonal of an array whose axes have one size."""
    arr = asarray(arr)
    if arr.ndim < 2 or len(set(arr.shape)) > 1:
        raise ShapeError("diag_indices_from", "there must be two axes or more, all of one size", got=repr(arr.aval))
    return diag_indices(arr.shape[0], arr.ndim)


def indices(dimensions: Shape, dtype: Any = None, sparse: bool = False) -> Any:
    """Returns, for each axis of a grid, the place of every element along it, as int32 by default.

    Args:
        dimensions: the sizes of the axes.
        dtype: of the result.
        sparse: whether to return one array for each axis, with size 1 along the others, and not one for all.
    """
    shape = as_shape("indices", dimensions)
    kind = dtypes.DEFAULT_INT if dtype is None else dtypes.canonical(dtype)
    grid = np.indices(shape, sparse=sparse)
    return tuple(device_array(places.astype(kind)) for places in grid) if sparse else device_array(grid.astype(kind))  # type: ignore[reportAttributeAccessIssue]


def ix_(*arrays: Any) -> tuple[Array, ...]:
    """Returns the vectors, each along an axis of its own: together they index the grid of all combinations.

    A vector of bools stands for the places where it is true.

    >>> [places.shape for places in ix_([0, 1], [2, 3, 4])]
    [(2, 1), (1, 3)]
    """
    results = []
    for i, x in enumerate(map(asarray, arrays)):
        if x.ndim != 1:
            raise ShapeError("ix_", "the arguments must be vectors", got=repr(x.aval))
        x = flatnonzero(x) if x.dtype == dtypes.bool_ else x
        results.append(reshape(x, (1,) * i + (-1,) + (1,) * (len(arrays) - i - 1)))
    return tuple(results)


def unravel_index(indices: Any, shape: Shape) -> tuple[Array, ...]:
    """Returns the places along each axis of elements numbered in row-major order; numbers outside are clamped.

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
    multi_index: Sequence[Any], dims: Shape, mode: str = "raise", order: str = "C", *, dtype: Any = None
) -> Array:
    """Returns the number in row-major order of the elements at places along each axis.

    Args:
        multi_index: one array of places for each axis.
        dims: the sizes of the axes.
        mode: what becomes of places outside: ``"raise"`` an error, not of traced places, ``"clip"`` the nearest
            place, ``"wrap"`` the remainder.
        order: ``"C"`` for row-major order, ``"F"`` for column-major order.
        dtype: of the result; by default that of the places.

    Raises:
        IndexingError: for places outside, in mode ``"raise"``.

    >>> ravel_multi_index(([1, 0], [2, 1]), (2, 3))
    Array([5, 1], dtype=int32)
    """
    sizes = as_shape("ravel_multi_index", dims)
    places = [asarray(p) for p in multi_index]
    if len(places) != len(sizes):
        raise ShapeError("ravel_multi_index", f"there must be places along {len(sizes)} axes", got=str(len(places)))
    if mode not in ("raise", "clip", "wrap"):
        raise ArgumentError("ravel_multi_index", "the mode is 'raise', 'clip' or 'wrap'", got=repr(mode))
    if order not in ("C", "F"):
        raise ArgumentError("ravel_multi_index", "the order is 'C' or 'F'", got=repr(order))
    if order == "F":
        places, sizes = places[::-1], sizes[::-1]
    result: Any = 0
    for p, size in zip(places, sizes, strict=True):
        require_integer("ravel_multi_index", p)
        if mode == "raise":
            if isinstance(p, Tracer):
                hint = "mode='clip' or mode='wrap'"
                raise ArgumentError("ravel_multi_index", "traced places cannot be checked", got=repr(p.aval), hint=hint)
            host = p.concrete("ravel_multi_index").numpy()
            if ((host < 0) | (host >= size)).any():
                raise IndexingError("ravel_multi_index", f"an axis has {size} elements", got=str(host))
        p = clip(p, 0, size - 1) if mode == "clip" else remainder(p, size) if mode == "wrap" else p
        result = multiply(result, size) + p
    return asarray(result, dtype)
