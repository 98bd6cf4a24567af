"""Norms of vectors and matrices, and condition numbers."""

from __future__ import annotations

import builtins
import math
from typing import Any

from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.numpy.elementwise import abs, divide, multiply, not_equal, pow, sqrt, square
from tvmfun.numpy.linalg.decompositions import floats, matrix, svdvals
from tvmfun.numpy.linalg.solvers import inv
from tvmfun.numpy.promotion import NestedArrayLike
from tvmfun.numpy.reductions import max, min, sum
from tvmfun.numpy.shapes import Axes, moveaxis, normalize_axes, reshape

__all__ = ["cond", "matrix_norm", "norm", "vector_norm"]


def vector_norm(x: NestedArrayLike, /, *, axis: Axes | None = None, keepdims: bool = False, ord: Any = 2) -> Array:
    r"""Returns :math:`(\sum |x|^p)^{1/p}`.

    Args:
        x: the array.
        axis: one axis or several; by default all.
        keepdims: whether the axes stay, with size 1.
        ord: the number :math:`p`; infinity for the largest absolute value, minus infinity for the smallest, 0 for the
            number of elements that are not 0.
    """
    (x,) = floats("vector_norm", x)
    axes = normalize_axes("vector_norm", axis, x.ndim)
    size = abs(x)
    if isinstance(ord, str):
        raise ArgumentError("vector_norm", "the order is a number", got=repr(ord))
    if ord == math.inf:
        return max(size, axes, keepdims=keepdims)
    if ord == -math.inf:
        return min(size, axes, keepdims=keepdims)
    if ord == 0:
        return sum(not_equal(x, 0), axes, x.dtype, keepdims=keepdims)
    if ord == 1:
        return sum(size, axes, keepdims=keepdims)
    if ord == 2:
        return sqrt(sum(square(x), axes, keepdims=keepdims))
    return pow(sum(pow(size, ord), axes, keepdims=keepdims), 1 / ord)


def matrix_norm(x: NestedArrayLike, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Returns the norms of matrices.

    Args:
        x: the matrices.
        keepdims: whether the last two axes stay, with size 1.
        ord: ``"fro"`` for the root of the sum of squares, ``"nuc"`` for the sum of the singular values, 2 and -2 for
            the largest and smallest of them, 1 and -1 for the largest and smallest sum of absolute values of a column,
            plus and minus infinity for those of a row.
    """
    x = matrix("matrix_norm", x)
    if ord is None or ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in (2, -2, "nuc"):
        s = svdvals(x)
        result = sum(s, -1) if ord == "nuc" else max(s, -1) if ord == 2 else min(s, -1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = sum(abs(x), -2 if builtins.abs(ord) == 1 else -1)
        result = max(sums, -1) if ord > 0 else min(sums, -1)
    else:
        raise ArgumentError("matrix_norm", "the order is 'fro', 'nuc', 1, -1, 2, -2, inf or -inf", got=repr(ord))
    return reshape(result, (*result.shape, 1, 1)) if keepdims else result


def norm(x: NestedArrayLike, ord: Any = None, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Returns a norm of vectors or matrices.

    Args:
        x: the array.
        ord: as for :func:`vector_norm` or :func:`matrix_norm`; by default the root of the sum of squares.
        axis: one axis for vectors, two for matrices; by default all.
        keepdims: whether the axes stay, with size 1.

    Source: ``numpy.linalg.norm``.

    >>> norm([3.0, 4.0])
    Array(5., dtype=float32)
    """
    (x,) = floats("norm", x)
    if ord is None:
        return vector_norm(x, axis=axis, keepdims=keepdims)
    axes = (axis,) if isinstance(axis, int) else tuple(range(x.ndim)) if axis is None else tuple(axis)
    if len(axes) == 1:
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=ord)
    if len(axes) != 2:
        raise ArgumentError("norm", "an order needs one axis or two", got=f"{len(axes)}", hint="axis=")
    result = matrix_norm(moveaxis(x, axes, (-2, -1)), ord=ord)
    if not keepdims:
        return result
    reduced = normalize_axes("norm", axes, x.ndim)
    return reshape(result, tuple(1 if i in reduced else size for i, size in enumerate(x.shape)))


def cond(x: NestedArrayLike, p: NestedArrayLike | None = None) -> Array:
    """Returns the condition numbers: the norm of the matrix times that of its inverse.

    Args:
        x: the matrices.
        p: the norm, as for :func:`matrix_norm`; by default 2, for which the matrices need not be square.
    """
    x = matrix("cond", x)
    if p is None or p in (2, -2):
        s = svdvals(x)
        return divide(s[..., 0], s[..., -1]) if p != -2 else divide(s[..., -1], s[..., 0])
    return multiply(matrix_norm(x, ord=p), matrix_norm(inv(x), ord=p))
