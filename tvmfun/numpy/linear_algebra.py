"""Products of arrays, and their diagonals."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import arrays, asarray
from tvmfun.numpy.elementwise import multiply, subtract
from tvmfun.numpy.joining import concat, stack
from tvmfun.numpy.manipulation import broadcast_to, expand_dims, moveaxis, normalize_axis, ravel, reshape
from tvmfun.numpy.precision import dot_general, factors
from tvmfun.numpy.promotion import no_out
from tvmfun.numpy.statistical import sum
from tvmfun.ops import pointwise
from tvmfun.ops import shape as ops

__all__ = [
    "cross",
    "diag",
    "diagflat",
    "diagonal",
    "dot",
    "fill_diagonal",
    "inner",
    "kron",
    "matmul",
    "matvec",
    "outer",
    "tensordot",
    "trace",
    "vdot",
    "vecdot",
    "vecmat",
]


def _require_match(name: str, x1: Array, axis1: int, x2: Array, axis2: int) -> None:
    if x1.shape[axis1] != x2.shape[axis2]:
        raise ShapeError(
            name,
            f"axis {axis1} on the left and axis {axis2} on the right must have one size",
            got=f"{x1.aval} and {x2.aval}",
        )


def matmul(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Returns the matrix product over the last axis of ``a`` and the last but one of ``b``.

    The other axes broadcast. A vector is a row on the left and a column on the right, and its axis vanishes.

    Args:
        a: the left array.
        b: the right array.
        precision: accepted and without effect: float32 products are always exact float32.
        preferred_element_type: the dtype to multiply, to sum and to return in; by default that of the operands.

    Raises:
        ShapeError: for 0-d arrays, or if the sizes do not match.

    Source: the array API's ``matmul``.

    >>> matmul([[1, 2], [3, 4]], [1, 1])
    Array([3, 7], dtype=int32)
    """
    a, b = factors("matmul", a, b, precision=precision, preferred_element_type=preferred_element_type)
    if not a.ndim or not b.ndim:
        raise ShapeError("matmul", "0-d arrays have no matrix product", got=f"{a.aval} and {b.aval}", hint="x1 * x2")
    inner = max(b.ndim - 2, 0)
    _require_match("matmul", a, a.ndim - 1, b, inner)
    if b.ndim <= 2:  # one matrix for all: contract at once, whatever axes are in front
        return dot_general(a, b, contract=((a.ndim - 1,), (inner,)), batch=((), ()))
    if a.ndim == 1:
        return dot_general(b, a, contract=((inner,), (0,)), batch=((), ()))
    lead = pointwise.broadcast_shapes("matmul", [a.shape[:-2], b.shape[:-2]])
    a = broadcast_to(a, lead + a.shape[-2:])
    b = broadcast_to(b, lead + b.shape[-2:])
    shared = tuple(range(len(lead)))
    rank = len(lead) + 2
    return dot_general(a, b, contract=((rank - 1,), (rank - 2,)), batch=(shared, shared))


def dot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Returns the product over the last axis of ``a`` and the last but one of ``b``; nothing broadcasts."""
    a, b = factors("dot", a, b, precision=precision, preferred_element_type=preferred_element_type)
    if not a.ndim or not b.ndim:
        return multiply(a, b)
    inner = max(b.ndim - 2, 0)
    _require_match("dot", a, a.ndim - 1, b, inner)
    return dot_general(a, b, contract=((a.ndim - 1,), (inner,)), batch=((), ()))


def tensordot(
    a: Any, b: Any, axes: int | Sequence[Any] = 2, *, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """Returns the product summed over pairs of axes.

    Args:
        a: the left array.
        b: the right array.
        axes: how many, the last of ``a`` and the first of ``b``; or the axes of each, ``((0, 1), (1, 0))``.
        precision: accepted and without effect: float32 products are always exact float32.
        preferred_element_type: the dtype to multiply, to sum and to return in; by default that of the operands.
    """
    a, b = factors("tensordot", a, b, precision=precision, preferred_element_type=preferred_element_type)
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ShapeError("tensordot", f"there are no {axes} axes", got=f"{a.aval} and {b.aval}")
        lists = [tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))]
    else:
        lists = [(own,) if isinstance(own, int) else tuple(own) for own in axes]
    if len(lists) != 2 or len(lists[0]) != len(lists[1]):
        raise ArgumentError("tensordot", "there must be as many axes on the left and right", got=str(axes))
    left, right = (
        tuple(normalize_axis("tensordot", axis, x.ndim) for axis in own) for own, x in zip(lists, (a, b), strict=True)
    )
    for i, j in zip(left, right, strict=True):
        _require_match("tensordot", a, i, b, j)
    return dot_general(a, b, contract=(left, right), batch=((), ()))


def vecdot(x1: Any, x2: Any, /, axis: int = -1, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Returns the dot products along an axis; the other axes broadcast."""
    x1, x2 = factors("vecdot", x1, x2, precision=precision, preferred_element_type=preferred_element_type)
    _require_match("vecdot", x1, normalize_axis("vecdot", axis, x1.ndim), x2, normalize_axis("vecdot", axis, x2.ndim))
    x1, x2 = moveaxis(x1, axis, -1), moveaxis(x2, axis, -1)
    common = pointwise.broadcast_shapes("vecdot", [x1.shape, x2.shape])
    x1, x2 = broadcast_to(x1, common), broadcast_to(x2, common)
    last = len(common) - 1
    shared = tuple(range(last))
    return dot_general(x1, x2, contract=((last,), (last,)), batch=(shared, shared))


def outer(a: Any, b: Any, out: None = None) -> Array:
    """Returns all products of an element of ``a`` and one of ``b``."""
    no_out("outer", out)
    a, b = arrays("outer", a, b)
    return multiply(reshape(a, (a.size, 1)), reshape(b, (1, b.size)))


def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Returns the products over the last axes of both arrays; those of numbers are plain."""
    a, b = factors("inner", a, b, precision=precision, preferred_element_type=preferred_element_type)
    if not a.ndim or not b.ndim:
        return multiply(a, b)
    _require_match("inner", a, a.ndim - 1, b, b.ndim - 1)
    return dot_general(a, b, contract=((a.ndim - 1,), (b.ndim - 1,)), batch=((), ()))


def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Returns the dot product of the flattened arrays."""
    return vecdot(ravel(a), ravel(b), precision=precision, preferred_element_type=preferred_element_type)


def matvec(x1: Any, x2: Any, /) -> Array:
    """Returns the products of matrices and vectors; the other axes broadcast."""
    return matmul(x1, expand_dims(x2, -1))[..., 0]


def vecmat(x1: Any, x2: Any, /) -> Array:
    """Returns the products of vectors and matrices; the other axes broadcast."""
    return matmul(expand_dims(x1, -2), x2)[..., 0, :]


def kron(a: Any, b: Any) -> Array:
    """Returns the Kronecker product: each element of ``a`` times all of ``b``, in place of the element.

    >>> kron([1, 10], [1, 2])
    Array([ 1,  2, 10, 20], dtype=int32)
    """
    a, b = arrays("kron", a, b)
    rank = max(a.ndim, b.ndim)
    a, b = (reshape(x, (1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    outside, inside = (expand_dims(x, range(start, 2 * rank, 2)) for x, start in ((a, 1), (b, 0)))
    return reshape(multiply(outside, inside), tuple(m * n for m, n in zip(a.shape, b.shape, strict=True)))


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Array:
    """Returns the vector products along an axis of size 3; the other axes broadcast. Of size 2, their third element.

    Args:
        a: the left vectors.
        b: the right vectors.
        axisa: the axis of ``a`` with the elements of a vector.
        axisb: the axis of ``b`` with the elements of a vector.
        axisc: the axis of the result with the elements of a vector.
        axis: the axis for all three.

    >>> cross([1, 0, 0], [0, 1, 0])
    Array([0, 0, 1], dtype=int32)
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = arrays("cross", a, b)
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    sizes = (a.shape[-1], b.shape[-1])
    if not {2, 3}.issuperset(sizes):
        raise ShapeError("cross", "the vectors must have 3 or 2 elements", got=f"{sizes[0]} and {sizes[1]}")
    left, right = ([x[..., i] for i in range(x.shape[-1])] for x in (a, b))
    third = subtract(left[0] * right[1], left[1] * right[0])
    if sizes == (2, 2):
        return third
    zero = a.dtype.type(0)
    left, right = ([*v, zero] if len(v) == 2 else v for v in (left, right))
    parts = [
        subtract(left[1] * right[2], left[2] * right[1]),
        subtract(left[2] * right[0], left[0] * right[2]),
        third,
    ]
    common = pointwise.broadcast_shapes("cross", [part.shape for part in parts])
    return moveaxis(stack([broadcast_to(part, common) for part in parts], -1), -1, axisc)


# -- diagonals -----------------------------------------------------------------------------------------------


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
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
    a = moveaxis(a, (first, second), (-2, -1))
    rows, columns = a.shape[-2:]
    begin = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    # In row-major order the elements of a diagonal are evenly spaced.
    flat = reshape(a, (*a.shape[:-2], rows * columns))
    span = (count - 1) * (columns + 1) + 1 if count else 0
    return flat[..., begin : begin + span : columns + 1]


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Array:
    """Returns the sums of the diagonals over two axes; see :func:`diagonal` and :func:`sum`."""
    no_out("trace", out)
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype)


def diag(v: Any, k: int = 0) -> Array:
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
    size = v.size + abs(k)
    if not v.size:
        return ops.broadcast_to(v.dtype.type(0), shape=(size, size))
    begin = k if k >= 0 else -k * size
    rest = size * size - begin - (v.size - 1) * (size + 1) - 1
    flat = ops.pad(v, v.dtype.type(0), low=(begin,), high=(rest,), interior=(size,))
    return reshape(flat, (size, size))


def diagflat(v: Any, k: int = 0) -> Array:
    """Returns the matrix with the elements on its k-th diagonal."""
    return diag(ravel(v), k)


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = True) -> Array:
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
    step = builtins.sum(math.prod(a.shape[i:]) for i in range(1, a.ndim + 1))
    stop = a.shape[1] * a.shape[1] if a.ndim == 2 and not wrap else a.size
    places = range(a.size)[: min(stop, a.size) : step]
    val = ravel(asarray(val, a.dtype))
    filling = concat([val] * -(-len(places) // max(val.size, 1)))[: len(places)] if val.size != 1 else val
    return reshape(ravel(a).at[: places.stop : step].set(filling), a.shape)
