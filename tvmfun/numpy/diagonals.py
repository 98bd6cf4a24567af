"""Diagonals and triangles of matrices."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun.core import dims
from tvmfun.core.array import Array, device_array
from tvmfun.errors import ArgumentError, DimensionError, ShapeError
from tvmfun.numpy.creation import asarray, diagonal_numbers, ones
from tvmfun.numpy.elementwise import equal, greater_equal, less_equal, where
from tvmfun.numpy.promotion import NestedArrayLike, no_out
from tvmfun.numpy.reductions import sum
from tvmfun.numpy.shapes import concat, moveaxis, normalize_axis, ravel, reshape
from tvmfun.ops import shape as ops
from tvmfun.typing import DTypeLike

__all__ = [
    "diag",
    "diag_indices",
    "diag_indices_from",
    "diagflat",
    "diagonal",
    "fill_diagonal",
    "trace",
    "tri",
    "tril",
    "tril_indices",
    "tril_indices_from",
    "triu",
    "triu_indices",
    "triu_indices_from",
]


def _matrices(name: str, x: Any) -> Array:
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError(name, "there must be two axes", got=repr(x.aval), hint="x[None, :]")
    return x


def tril(m: NestedArrayLike, k: int = 0) -> Array:
    """Returns matrices with zeros above the k-th diagonal."""
    m = _matrices("tril", m)
    return where(less_equal(diagonal_numbers(m.shape[-2:]), k), m, m.dtype.type(0))


def triu(m: NestedArrayLike, k: int = 0) -> Array:
    """Returns matrices with zeros below the k-th diagonal."""
    m = _matrices("triu", m)
    return where(greater_equal(diagonal_numbers(m.shape[-2:]), k), m, m.dtype.type(0))


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> Array:
    """Returns a matrix with ones up to the k-th diagonal and zeros above it."""
    return tril(ones((N, N if M is None else M), dtype), k)


def _device_indices(arrays: Sequence[np.ndarray]) -> tuple[Array, ...]:
    return tuple(device_array(np.asarray(indices, np.int32)) for indices in arrays)


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
    return _device_indices(np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """Returns the int32 rows and columns of the elements from the k-th diagonal of an ``n`` by ``m`` matrix."""
    return _device_indices(np.triu_indices(n, k, m))


def tril_indices_from(arr: NestedArrayLike, k: int = 0) -> tuple[Array, ...]:
    """Returns the rows and columns of the elements up to the k-th diagonal of a matrix."""
    rows, columns = _matrix("tril_indices_from", arr)
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: NestedArrayLike, k: int = 0) -> tuple[Array, ...]:
    """Returns the rows and columns of the elements from the k-th diagonal of a matrix."""
    rows, columns = _matrix("triu_indices_from", arr)
    return triu_indices(rows, k, columns)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Returns the int32 indices of the main diagonal of an array with ``ndim`` axes of size ``n``."""
    return _device_indices(np.diag_indices(n, ndim))


def diag_indices_from(arr: NestedArrayLike) -> tuple[Array, ...]:
    """Returns the indices of the main diagonal of an array whose axes have one size."""
    arr = asarray(arr)
    if arr.ndim < 2 or len(set(arr.shape)) > 1:
        raise ShapeError("diag_indices_from", "there must be two axes or more, all of one size", got=repr(arr.aval))
    return diag_indices(arr.shape[0], arr.ndim)


def diagonal(a: NestedArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Returns the diagonals over two axes, which become the last axis.

    >>> diagonal([[1, 2], [3, 4]])
    Array([1, 4], dtype=int32)
    """
    a = asarray(a)
    if a.ndim < 2:
        raise ShapeError("diagonal", "there must be two axes", got=repr(a.aval))
    first, second = (normalize_axis("diagonal", axis, a.ndim) for axis in (axis1, axis2))
    if first == second:
        raise ArgumentError("diagonal", "there must be two different axes", got=f"{axis1} and {axis2}")
    if first > second:
        first, second, offset = second, first, -offset
    rows, columns = a.shape[first], a.shape[second]
    begin = offset if offset >= 0 else -offset * columns
    ends = (rows, columns - offset) if offset >= 0 else (rows + offset, columns)
    count = dims.maximum(0, dims.minimum(*ends))
    if dims.is_dynamic((count, columns)):
        row, column = builtins.max(-offset, 0), builtins.max(offset, 0)
        a = moveaxis(a, (first, second), (-2, -1))
        return _main_diagonal(a[..., row : row + count, column : column + count])
    # In row-major order the elements of a diagonal are evenly spaced.
    a = moveaxis(a, second, first + 1)
    flat = reshape(a, (*a.shape[:first], rows * columns, *a.shape[first + 2 :]))
    span = (count - 1) * (columns + 1) + 1 if count else 0
    spaced = flat[(slice(None),) * first + (slice(begin, begin + span, columns + 1),)]
    return moveaxis(spaced, first, -1)


def _main_diagonal(a: Array) -> Array:
    """The main diagonals of square matrices of dynamic size: columns of matrices whose rows begin one element later."""
    *lead, size, _ = a.shape
    flat = _with_zeros(reshape(a, (*lead, size * size)), 0, size)
    return reshape(flat, (*lead, size, size + 1))[..., 0]


def _with_zeros(x: Array, before: int, after: int) -> Array:
    """Pads the last axis with ``before`` leading and ``after`` trailing zeros."""
    lead = (0,) * (x.ndim - 1)
    return ops.pad(x, x.dtype.type(0), low=(*lead, before), high=(*lead, after), interior=(0,) * x.ndim)


def trace(
    a: NestedArrayLike,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike | None = None,
    out: None = None,
) -> Array:
    """Returns the sums of the diagonals over two axes; see :func:`diagonal` and :func:`sum`."""
    no_out("trace", out)
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype)


def diag(v: NestedArrayLike, k: int = 0) -> Array:
    """Returns the k-th diagonal of a matrix, or the matrix with a vector on it.

    >>> diag([1, 2])
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    v = asarray(v)
    if v.ndim == 2:
        return diagonal(v, k)
    if v.ndim != 1:
        raise ShapeError("diag", "the argument must be a vector or a matrix", got=repr(v.aval))
    if dims.is_dynamic(v.size):
        rows = _with_zeros(v, builtins.max(-k, 0), builtins.max(k, 0))
        return where(equal(diagonal_numbers((rows.size, rows.size)), k), rows[:, None], v.dtype.type(0))
    size = v.size + abs(k)
    if not v.size:
        return ops.broadcast_to(v.dtype.type(0), shape=(size, size))
    begin = k if k >= 0 else -k * size
    rest = size * size - begin - (v.size - 1) * (size + 1) - 1
    flat = ops.pad(v, v.dtype.type(0), low=(begin,), high=(rest,), interior=(size,))
    return reshape(flat, (size, size))


def diagflat(v: NestedArrayLike, k: int = 0) -> Array:
    """Returns the matrix with the elements on its k-th diagonal."""
    return diag(ravel(v), k)


def fill_diagonal(a: NestedArrayLike, val: NestedArrayLike, wrap: bool = False, *, inplace: bool = True) -> Array:
    """Returns the array with values on its main diagonal, where all indices are equal.

    Args:
        a: the array, with at least two axes, all of one size if there are more.
        val: one, or as many as the diagonal has, repeated if there are fewer.
        wrap: whether the diagonal of a tall matrix starts again below its end.
        inplace: must be False: arrays are immutable.

    Raises:
        ArgumentError: for ``inplace=True``, NumPy's default.

    >>> fill_diagonal([[1, 2], [3, 4]], 0, inplace=False)
    Array([[0, 2],
           [3, 0]], dtype=int32)
    """
    if inplace:
        hint = "fill_diagonal(x, values, inplace=False), which returns the result"
        raise ArgumentError("fill_diagonal", "arrays are immutable", got="inplace=True", hint=hint)
    a = asarray(a)
    if a.ndim < 2 or (a.ndim > 2 and len(set(a.shape)) > 1):
        raise ShapeError("fill_diagonal", "there must be two axes, or more of one size", got=repr(a.aval))
    val = ravel(asarray(val, a.dtype))
    if dims.is_dynamic(a.shape):
        if a.ndim > 2 or wrap or val.size != 1:
            known = "the size of each axis must be known for several values, for more than two axes, and to wrap"
            raise DimensionError("fill_diagonal", known, got=repr(a.aval), hint="a static size")
        return where(equal(diagonal_numbers(a.shape), 0), val, a)
    step = builtins.sum(math.prod(a.shape[i:]) for i in range(1, a.ndim + 1))
    stop = a.shape[1] * a.shape[1] if a.ndim == 2 and not wrap else a.size
    indices = range(a.size)[: min(stop, a.size) : step]
    filling = concat([val] * -(-len(indices) // max(val.size, 1)))[: len(indices)] if val.size != 1 else val
    return reshape(ravel(a).at[: indices.stop : step].set(filling), a.shape)
