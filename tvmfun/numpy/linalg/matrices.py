"""Powers and chains of matrix products; the array API's functions of the last two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun.core.array import Array
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.numpy import diagonals, products
from tvmfun.numpy.creation import asarray, eye
from tvmfun.numpy.linalg.solvers import inv
from tvmfun.numpy.products import einsum, matmul
from tvmfun.numpy.promotion import NestedArrayLike
from tvmfun.numpy.shapes import broadcast_to
from tvmfun.typing import DTypeLike

__all__ = ["cross", "diagonal", "matrix_power", "multi_dot", "trace"]


def matrix_power(a: NestedArrayLike, n: int) -> Array:
    """Returns square matrices multiplied ``n`` times; a negative number of times, their inverses."""
    a = asarray(a)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError("matrix_power", "the matrix must be square", got=repr(a.aval))
    try:
        n = n.__index__()
    except AttributeError:
        raise DtypeError("matrix_power", "the power is an integer", got=repr(n)) from None
    if n < 0:
        a, n = inv(a), -n
    if n == 0:
        return broadcast_to(eye(a.shape[-1], dtype=a.dtype), a.shape)
    result = None
    while True:
        if n & 1:
            result = a if result is None else matmul(result, a)
        n >>= 1
        if not n:
            return asarray(result)
        a = matmul(a, a)


def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Array:
    """Returns the product of matrices in the order that takes the fewest multiplications; the ends may be vectors.

    Args:
        arrays: the matrices.
        precision: ``"high"`` allows float32 factors to be rounded to 11 bits; see :class:`tvmfun.lax.Precision`.

    >>> multi_dot([[1, 2], [[1, 0], [0, 1]], [3, 4]])
    Array(11, dtype=int32)
    """
    values = [asarray(x) for x in arrays]
    ends = (0, len(values) - 1)
    if len(values) < 2 or any(x.ndim != 2 and not (i in ends and x.ndim == 1) for i, x in enumerate(values)):
        got = ", ".join(repr(x.aval) for x in values)
        raise ShapeError("multi_dot", "there must be at least two matrices; the ends may be vectors", got=got)
    inner = list(range(1, len(values)))  # the axes that neighbours share
    terms = [[*([0] if i > 0 or x.ndim == 2 else []), 1] for i, x in enumerate(values)]
    terms = [[i + k for k in term] for i, term in enumerate(terms)]
    if values[-1].ndim == 1:
        terms[-1] = [len(values) - 1]
    free = [axis for term in terms for axis in term if axis not in inner]
    operands = [part for x, term in zip(values, terms, strict=True) for part in (x, term)]
    return einsum(*operands, free, optimize="dp", precision=precision)


def cross(x1: NestedArrayLike, x2: NestedArrayLike, /, *, axis: int = -1) -> Array:
    """Returns the vector products along an axis of size 3; the other axes broadcast."""
    x1, x2 = asarray(x1), asarray(x2)
    for x in (x1, x2):
        if not x.ndim or x.shape[axis] != 3:
            raise ShapeError("cross", f"axis {axis} must have size 3", got=f"{x1.aval} and {x2.aval}")
    return products.cross(x1, x2, axis)


def diagonal(x: NestedArrayLike, /, *, offset: int = 0) -> Array:
    """Returns the diagonals of matrices."""
    return diagonals.diagonal(x, offset, -2, -1)


def trace(x: NestedArrayLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Array:
    """Returns the sums of the diagonals of matrices."""
    return diagonals.trace(x, offset, -2, -1, dtype)
