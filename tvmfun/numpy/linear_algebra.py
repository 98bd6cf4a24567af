"""Products of arrays, and their diagonals."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import arrays, asarray
from tvmfun.numpy.elementwise import subtract
from tvmfun.numpy.joining import concat, stack
from tvmfun.numpy.manipulation import broadcast_to, expand_dims, moveaxis, normalize_axis, ravel, reshape
from tvmfun.numpy.statistical import sum
from tvmfun.ops import pointwise
from tvmfun.ops import shape as ops
from tvmfun.ops.linalg import dot_general


def _require_match(name: str, x1: Array, axis1: int, x2: Array, axis2: int) -> None:
    if x1.shape[axis1] != x2.shape[axis2]:
        raise ShapeError(
            name,
            f"axis {axis1} on the left and axis {axis2} on the right must have one size",
            got=f"{x1.aval} and {x2.aval}",
        )


def matmul(x1: Any, x2: Any, /) -> Array:
    """Returns the matrix product over the last axis of ``x1`` and the last but one of ``x2``.

    The other axes broadcast. A vector is a row on the left and a column on the right, and its axis vanishes.

    Raises:
        ShapeError: for 0-d arrays, or if the sizes do not match.

    Source: the array API's ``matmul``.

    >>> matmul([[1, 2], [3, 4]], [1, 1])
    Array([3, 7], dtype=int32)
    """
    x1, x2 = arrays("matmul", x1, x2)
    if not x1.ndim or not x2.ndim:
        raise ShapeError("matmul", "0-d arrays have no matrix product", got=f"{x1.aval} and {x2.aval}", hint="x1 * x2")
    inner = max(x2.ndim - 2, 0)
    _require_match("matmul", x1, x1.ndim - 1, x2, inner)
    if x2.ndim <= 2:  # one matrix for all: contract at once, whatever axes are in front
        return dot_general(x1, x2, contract=((x1.ndim - 1,), (inner,)), batch=((), ()))
    if x1.ndim == 1:
        return dot_general(x2, x1, contract=((inner,), (0,)), batch=((), ()))
    lead = pointwise.broadcast_shapes("matmul", [x1.shape[:-2], x2.shape[:-2]])
    x1 = broadcast_to(x1, lead + x1.shape[-2:])
    x2 = broadcast_to(x2, lead + x2.shape[-2:])
    shared = tuple(range(len(lead)))
    rank = len(lead) + 2
    return dot_general(x1, x2, contract=((rank - 1,), (rank - 2,)), batch=(shared, shared))


def dot(x1: Any, x2: Any, /) -> Array:
    """Returns the product over the last axis of ``x1`` and the last but one of ``x2``; nothing broadcasts."""
    x1, x2 = arrays("dot", x1, x2)
    if not x1.ndim or not x2.ndim:
        return pointwise.multiply(x1, x2)
    inner = max(x2.ndim - 2, 0)
    _require_match("dot", x1, x1.ndim - 1, x2, inner)
    return dot_general(x1, x2, contract=((x1.ndim - 1,), (inner,)), batch=((), ()))


def tensordot(x1: Any, x2: Any, /, axes: int | Sequence[Any] = 2) -> Array:
    """Returns the product summed over pairs of axes.

    Args:
        x1: the left array.
        x2: the right array.
        axes: how many, the last of ``x1`` and the first of ``x2``; or the axes of each, ``((0, 1), (1, 0))``.
    """
    x1, x2 = arrays("tensordot", x1, x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ShapeError("tensordot", f"there are no {axes} axes", got=f"{x1.aval} and {x2.aval}")
        lists = [tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))]
    else:
        lists = [(own,) if isinstance(own, int) else tuple(own) for own in axes]
    if len(lists) != 2 or len(lists[0]) != len(lists[1]):
        raise ArgumentError("tensordot", "there must be as many axes on the left and right", got=str(axes))
    left, right = (
        tuple(normalize_axis("tensordot", axis, x.ndim) for axis in own) for own, x in zip(lists, (x1, x2), strict=True)
    )
    for i, j in zip(left, right, strict=True):
        _require_match("tensordot", x1, i, x2, j)
    return dot_general(x1, x2, contract=(left, right), batch=((), ()))


def vecdot(x1: Any, x2: Any, /, axis: int = -1) -> Array:
    """Returns the dot products along an axis; the other axes broadcast."""
    x1, x2 = arrays("vecdot", x1, x2)
    _require_match("vecdot", x1, normalize_axis("vecdot", axis, x1.ndim), x2, normalize_axis("vecdot", axis, x2.ndim))
    x1, x2 = moveaxis(x1, axis, -1), moveaxis(x2, axis, -1)
    common = pointwise.broadcast_shapes("vecdot", [x1.shape, x2.shape])
    x1, x2 = broadcast_to(x1, common), broadcast_to(x2, common)
    last = len(common) - 1
    shared = tuple(range(last))
    return dot_general(x1, x2, contract=((last,), (last,)), batch=(shared, shared))


def outer(x1: Any, x2: Any, /) -> Array:
    """Returns all products of an element of ``x1`` and one of ``x2``."""
    x1, x2 = arrays("outer", x1, x2)
    return pointwise.multiply(reshape(x1, (x1.size, 1)), reshape(x2, (1, x2.size)))


def inner(x1: Any, x2: Any, /) -> Array:
    """Returns the products over the last axes of both arrays; those of numbers are plain."""
    x1, x2 = arrays("inner", x1, x2)
    if not x1.ndim or not x2.ndim:
        return pointwise.multiply(x1, x2)
    _require_match("inner", x1, x1.ndim - 1, x2, x2.ndim - 1)
    return dot_general(x1, x2, contract=((x1.ndim - 1,), (x2.ndim - 1,)), batch=((), ()))


def vdot(x1: Any, x2: Any, /) -> Array:
    """Returns the dot product of the flattened arrays."""
    return vecdot(ravel(x1), ravel(x2))


def matvec(x1: Any, x2: Any, /) -> Array:
    """Returns the products of matrices and vectors; the other axes broadcast."""
    return matmul(x1, expand_dims(x2, -1))[..., 0]


def vecmat(x1: Any, x2: Any, /) -> Array:
    """Returns the products of vectors and matrices; the other axes broadcast."""
    return matmul(expand_dims(x1, -2), x2)[..., 0, :]


def kron(x1: Any, x2: Any, /) -> Array:
    """Returns the Kronecker product: each element of ``x1`` times all of ``x2``, in place of the element.

    >>> kron([1, 10], [1, 2])
    Array([ 1,  2, 10, 20], dtype=int32)
    """
    x1, x2 = arrays("kron", x1, x2)
    rank = max(x1.ndim, x2.ndim)
    x1, x2 = (reshape(x, (1,) * (rank - x.ndim) + x.shape) for x in (x1, x2))
    outside, inside = (expand_dims(x, range(start, 2 * rank, 2)) for x, start in ((x1, 1), (x2, 0)))
    return reshape(pointwise.multiply(outside, inside), tuple(m * n for m, n in zip(x1.shape, x2.shape, strict=True)))


def cross(x1: Any, x2: Any, /, axis: int = -1) -> Array:
    """Returns the vector products along an axis of size 3; the other axes broadcast. Of size 2, their third element.

    >>> cross([1, 0, 0], [0, 1, 0])
    Array([0, 0, 1], dtype=int32)
    """
    x1, x2 = arrays("cross", x1, x2)
    x1, x2 = moveaxis(x1, axis, -1), moveaxis(x2, axis, -1)
    sizes = (x1.shape[-1], x2.shape[-1])
    if not {2, 3}.issuperset(sizes):
        raise ShapeError("cross", f"axis {axis} must have size 3 or 2", got=f"{x1.aval} and {x2.aval}")
    a, b = ([x[..., i] for i in range(x.shape[-1])] for x in (x1, x2))
    third = subtract(a[0] * b[1], a[1] * b[0])
    if sizes == (2, 2):
        return third
    zero = x1.dtype.type(0)
    a, b = ([*v, zero] if len(v) == 2 else v for v in (a, b))
    parts = [subtract(a[1] * b[2], a[2] * b[1]), subtract(a[2] * b[0], a[0] * b[2]), third]
    common = pointwise.broadcast_shapes("cross", [part.shape for part in parts])
    return moveaxis(stack([broadcast_to(part, common) for part in parts], -1), -1, axis)


# -- diagonals -----------------------------------------------------------------------------------------------


def diagonal(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Returns the diagonals over two axes, which become the last axis.

    >>> diagonal([[1, 2], [3, 4]])
    Array([1, 4], dtype=int32)
    """
    x = asarray(x)
    if x.ndim < 2:
        raise ShapeError("diagonal", "there must be two axes", got=repr(x.aval))
    first, second = (normalize_axis("diagonal", axis, x.ndim) for axis in (axis1, axis2))
    if first == second:
        raise ArgumentError("diagonal", "there must be two different axes", got=f"{axis1} and {axis2}")
    x = moveaxis(x, (first, second), (-2, -1))
    rows, columns = x.shape[-2:]
    begin = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    # In row-major order the elements of a diagonal are evenly spaced.
    flat = reshape(x, (*x.shape[:-2], rows * columns))
    span = (count - 1) * (columns + 1) + 1 if count else 0
    return flat[..., begin : begin + span : columns + 1]


def trace(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    """Returns the sums of the diagonals over two axes; see :func:`diagonal` and :func:`sum`."""
    return sum(diagonal(x, offset, axis1, axis2), -1, dtype)


def diag(x: Any, /, k: int = 0) -> Array:
    """Returns the k-th diagonal of a matrix, or the matrix with a vector on it.

    >>> diag([1, 2])
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = asarray(x)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError("diag", "the argument must be a vector or a matrix", got=repr(x.aval))
    size = x.size + abs(k)
    if not x.size:
        return ops.broadcast_to(x.dtype.type(0), shape=(size, size))
    begin = k if k >= 0 else -k * size
    rest = size * size - begin - (x.size - 1) * (size + 1) - 1
    flat = ops.pad(x, x.dtype.type(0), low=(begin,), high=(rest,), interior=(size,))
    return reshape(flat, (size, size))


def diagflat(x: Any, /, k: int = 0) -> Array:
    """Returns the matrix with the elements on its k-th diagonal."""
    return diag(ravel(x), k)


def fill_diagonal(x: Any, values: Any, /, wrap: bool = False, *, inplace: bool = True) -> Array:
    """Returns the array with values on its main diagonal, where all indices are equal.

    Args:
        x: the array, with at least two axes, all of one size if there are more.
        values: one, or as many as the diagonal has, repeated if there are fewer.
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
    x = asarray(x)
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) > 1):
        raise ShapeError("fill_diagonal", "there must be two axes, or more of one size", got=repr(x.aval))
    step = builtins.sum(math.prod(x.shape[i:]) for i in range(1, x.ndim + 1))
    stop = x.shape[1] * x.shape[1] if x.ndim == 2 and not wrap else x.size
    places = range(x.size)[: min(stop, x.size) : step]
    values = ravel(asarray(values, x.dtype))
    filling = concat([values] * -(-len(places) // max(values.size, 1)))[: len(places)] if values.size != 1 else values
    return reshape(ravel(x).at[: places.stop : step].set(filling), x.shape)
