"""Linear systems, inverses and determinants."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.interpreter import is_tracing
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import eye, ones
from tvmfun.numpy.diagonals import diagonal
from tvmfun.numpy.dtypes import astype, finfo
from tvmfun.numpy.elementwise import (
    abs,
    equal,
    greater,
    log,
    multiply,
    not_equal,
    reciprocal,
    remainder,
    sign,
    square,
    where,
)
from tvmfun.numpy.indexing import take_along_axis
from tvmfun.numpy.linalg.decompositions import floats, matrix, svd, svdvals
from tvmfun.numpy.products import matmul
from tvmfun.numpy.promotion import NestedArrayLike
from tvmfun.numpy.ranges import arange
from tvmfun.numpy.reductions import max, prod, sum
from tvmfun.numpy.shapes import broadcast_to, expand_dims, matrix_transpose, moveaxis, reshape
from tvmfun.ops import calls, control, pointwise
from tvmfun.ops import linalg as ops

__all__ = ["det", "inv", "lstsq", "matrix_rank", "pinv", "slogdet", "solve", "tensorinv", "tensorsolve"]


class SlogdetResult(NamedTuple):
    """Result of :func:`slogdet`."""

    sign: Array
    logabsdet: Array


def _with_equal_lead(x1: Array, x2: Array, name: str) -> tuple[Array, Array]:
    """Matrices whose leading axes are broadcast."""
    lead = pointwise.broadcast_shapes(name, [x1.shape[:-2], x2.shape[:-2]])
    return broadcast_to(x1, (*lead, *x1.shape[-2:])), broadcast_to(x2, (*lead, *x2.shape[-2:]))


def solve(a: NestedArrayLike, b: NestedArrayLike) -> Array:
    """Returns the solutions :math:`x` of :math:`x_1 x = x_2`.

    Args:
        a: square matrices.
        b: one vector for all of them, or matrices with one column for each system.

    >>> solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0])
    Array([1. , 0.5], dtype=float32)
    """
    a, b = floats("solve", a, b)
    a = matrix("solve", a, square=True)
    is_vector = b.ndim == 1
    if is_vector:
        b = expand_dims(b, -1)
    if b.ndim < 2 or b.shape[-2] != a.shape[-1]:
        raise ShapeError("solve", "both sides must have the same number of rows", got=f"{a.aval} and {b.aval}")
    a, b = _with_equal_lead(a, b, "solve")
    factors, _, permutation = ops.lu(a)
    x = _solve_factored(factors, factors, permutation, b)
    return x[..., 0] if is_vector else x


def _solve_factored(lower: Array, upper: Array, permutation: Array, b: Array) -> Array:
    """Solves ``l @ u @ x = b[permutation]`` with the unit lower triangle of one array and the upper one of another."""
    x = take_along_axis(b, expand_dims(permutation, -1), -2, mode="promise_in_bounds")
    x = ops.triangular_solve(lower, x, lower=True, transpose_a=False, unit_diagonal=True)
    return ops.triangular_solve(upper, x, lower=False, transpose_a=False, unit_diagonal=False)


def inv(a: NestedArrayLike) -> Array:
    """Returns the inverse matrices; infinite or NaN for singular ones."""
    a = matrix("inv", a, square=True)
    return solve(a, eye(a.shape[-1], dtype=a.dtype))


def det(a: NestedArrayLike) -> Array:
    """Returns the determinants.

    The derivative is exact even for singular matrices, up to 4 x 4 to any order. Second derivatives of larger singular
    matrices are not: they are NaN, or differences of large numbers.

    >>> det([[1.0, 2.0], [3.0, 4.0]])
    Array(-2., dtype=float32)
    """
    a = matrix("det", a, square=True)
    size = a.shape[-1]
    if size == 0:
        return ones(a.shape[:-2], a.dtype)
    if not dims.is_dynamic(size) and size <= 4:
        return _expanded(a)
    return _with_tangent("det", _det_from_lu, _det_and_tangent, a)


def _with_tangent(name: str, value: Callable, moved: Callable, *operands: Array) -> Array:
    """The value of a function, with the derivative of a rule ``(*operands, *tangents) -> [value, tangent]``."""
    if not is_tracing():
        return value(*operands)
    program, captured = control.closed(value, [operand.aval for operand in operands], name)
    rule = calls.Rule(lambda *values: moved(*values[len(captured) :]))
    return calls.custom_jvp_call(*captured, *operands, program=program, rule=rule, captured=len(captured))[0]


def _det_from_lu(a: Array) -> Array:
    factors, pivots, _ = ops.lu(a)
    return multiply(prod(diagonal(factors, 0, -2, -1), -1), _parity(pivots, a.dtype))


def _det_and_tangent(a: Array, da: Array) -> list[Array]:
    """The determinants and their tangents, ``det(a) * trace(inv(a) @ da)``, which are finite for singular matrices.

    A pivot of 0 is replaced by one so small that the error is less than that of rounding; it cancels in the product.
    With two such pivots the tangent is 0.
    """
    factors, pivots, permutation = ops.lu(a)
    values = diagonal(factors, 0, -2, -1)
    parity, is_zero = _parity(pivots, a.dtype), equal(values, 0)
    largest = max(abs(values), -1, keepdims=True)
    smallest = float(finfo(a.dtype).eps) ** 2 * where(equal(largest, 0), 1, largest)
    filled = where(is_zero, smallest, values)
    upper = where(eye(a.shape[-1], dtype=np.bool_), expand_dims(filled, -1), factors)
    x = _solve_factored(factors, upper, permutation, da)
    scale = where(greater(sum(is_zero, -1), 1), 0, prod(filled, -1) * parity)
    return [multiply(prod(values, -1), parity), scale * sum(diagonal(x, 0, -2, -1), -1)]


def _expanded(a: Array) -> Array:
    """The determinants of matrices of at most 4 x 4, by Laplace's expansion along the first rows."""
    size = a.shape[-1]
    at = lambda i, j: a[..., i, j]
    minor = lambda i, j, k: at(i, j) * at(i + 1, k) - at(i, k) * at(i + 1, j)
    if size == 1:
        return at(0, 0)
    if size == 2:
        return minor(0, 0, 1)
    if size == 3:
        return at(0, 0) * minor(1, 1, 2) - at(0, 1) * minor(1, 0, 2) + at(0, 2) * minor(1, 0, 1)
    upper_and_lower = lambda i, j, k, m: minor(0, i, j) * minor(2, k, m)
    outer = upper_and_lower(0, 1, 2, 3) + upper_and_lower(2, 3, 0, 1)
    middle = upper_and_lower(0, 3, 1, 2) + upper_and_lower(1, 2, 0, 3)
    return outer + middle - upper_and_lower(0, 2, 1, 3) - upper_and_lower(1, 3, 0, 2)


def _parity(pivots: Array, dtype: np.dtype) -> Array:
    """1 or -1 by the number of rows that were exchanged."""
    moved = sum(not_equal(pivots, arange(pivots.shape[-1], dtype=np.int32)), -1)
    return astype(1 - 2 * remainder(moved, 2), dtype)


def slogdet(a: NestedArrayLike, *, method: str | None = None) -> SlogdetResult:
    """Returns the signs of the determinants and the logarithms of their absolute values.

    Args:
        a: square matrices.
        method: for JAX, which knows ``"lu"`` and ``"qr"``: the decomposition is always the first.
    """
    if method not in (None, "lu", "qr"):
        raise ArgumentError("slogdet", "the method is 'lu' or 'qr'", got=repr(method))
    a = matrix("slogdet", a, square=True)
    factors, pivots, _ = ops.lu(a)
    values = diagonal(factors, 0, -2, -1)
    return SlogdetResult(multiply(prod(sign(values), -1), _parity(pivots, a.dtype)), sum(log(abs(values)), -1))


def _cutoff(x: Array, s: Array, rtol: Any, scale: float) -> Array:
    """The size up to which singular values count as zero, for each matrix."""
    if rtol is None:
        rtol = builtins.max(x.shape[-2:]) * float(finfo(x.dtype).eps) * scale
    if np.ndim(rtol):
        rtol = expand_dims(rtol, -1)
    return multiply(rtol, max(s, -1, keepdims=True, initial=0))


def matrix_rank(M: NestedArrayLike, rtol: Any = None, *, hermitian: bool = False, tol: Any = None) -> Array:
    """Returns, as int32, the number of singular values above ``rtol`` times the largest.

    Args:
        M: the matrices.
        rtol: by default the machine epsilon times the larger side.
        hermitian: whether the matrices are symmetric; has no effect.
        tol: an older name of ``rtol``.
    """
    rtol = tol if rtol is None else rtol
    M = matrix("matrix_rank", M)
    s = svdvals(M)
    return sum(greater(s, _cutoff(M, s, rtol, 1)), -1)


def pinv(a: NestedArrayLike, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Array:
    """Returns the Moore-Penrose inverses.

    Args:
        a: the matrices.
        rtol: singular values up to ``rtol`` times the largest count as zero; by default ten times the machine
            epsilon times the larger side.
        hermitian: whether the matrices are symmetric; has no effect.
        rcond: an older name of ``rtol``.

    Source: ``jax.numpy.linalg.pinv``.
    """
    rtol = rcond if rtol is None else rtol
    return _pseudoinverse(matrix("pinv", a), rtol, 10)


def _pseudoinverse(x: Array, rtol: Any, scale: int) -> Array:
    """The Moore-Penrose inverse, with singular values up to a cutoff as zero."""
    fixed = rtol
    # A cutoff that may be traced is an operand of the call: its rule runs in another trace.
    operands = [rtol] if isinstance(rtol, Array) else []

    def value(x: Array, *cutoff: Array) -> Array:
        rtol = cutoff[0] if cutoff else fixed
        u, s, vh = svd(x, full_matrices=False)
        large = greater(s, _cutoff(x, s, rtol, scale))
        inverse = where(large, reciprocal(where(large, s, 1)), 0)
        return matmul(matrix_transpose(vh) * expand_dims(inverse, -2), matrix_transpose(u))

    def moved(x: Array, *rest: Array) -> list[Array]:
        cutoff, dx = rest[: len(operands)], rest[len(operands)]
        rtol = cutoff[0] if cutoff else fixed
        # Golub and Pereyra, "The Differentiation of Pseudo-Inverses and Nonlinear Least Squares Problems Whose
        # Variables Separate" (1973). Through the decomposition it would be wrong where singular values are equal.
        inverse, turned = _pseudoinverse(x, rtol, scale), matrix_transpose(dx)
        left = inverse @ matrix_transpose(inverse) @ (turned - turned @ x @ inverse)
        right = (turned - inverse @ (x @ turned)) @ matrix_transpose(inverse) @ inverse
        return [inverse, left + right - inverse @ dx @ inverse]

    return _with_tangent("pinv", value, moved, x, *operands)


def lstsq(
    a: NestedArrayLike, b: NestedArrayLike, rcond: Any = None, *, numpy_resid: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Returns the least-squares solution of ``a @ x = b``, of smallest norm if there are several.

    Args:
        a: a matrix with a row for each equation.
        b: a vector, or a matrix with a column for each system.
        rcond: singular values up to ``rcond`` times the largest count as zero; by default the machine epsilon times
            the larger side.
        numpy_resid: whether to return no residuals, as NumPy does, where ``a`` has not more rows than columns, or not
            full rank; not of traced arrays.

    Returns:
        The solution, the sums of squared residuals, the rank of ``a`` and its singular values.

    Source: ``jax.numpy.linalg.lstsq``.
    """
    a, b = floats("lstsq", a, b)
    if a.ndim != 2 or b.ndim not in (1, 2) or a.shape[0] != b.shape[0]:
        raise ShapeError("lstsq", "there must be a matrix and as many right sides", got=f"{a.aval} and {b.aval}")
    columns = b if b.ndim == 2 else expand_dims(b, -1)
    s = svdvals(a)
    large = greater(s, _cutoff(a, s, rcond, 1))
    x = matmul(_pseudoinverse(a, rcond, 1), columns)
    residuals = sum(square(columns - matmul(a, x)), 0)
    rank = sum(large)
    if numpy_resid:
        return x if b.ndim == 2 else x[:, 0], residuals[: int(_has_residuals(a, rank)) * residuals.size], rank, s
    if b.ndim == 1:
        x, residuals = x[:, 0], residuals[0]
    return x, residuals, rank, s


def _has_residuals(a: Array, rank: Array) -> bool:
    """Whether NumPy returns residuals of a least-squares solution."""
    return a.shape[0] > a.shape[1] and int(rank) == a.shape[1]


def tensorinv(a: NestedArrayLike, ind: int = 2) -> Array:
    """Returns the inverse of an array as a linear map: ``tensordot(tensorinv(a, ind), a, ind)`` is the identity.

    Args:
        a: the array; the product of its first ``ind`` sizes is that of the others.
        ind: how many leading axes the map goes to.

    >>> tensorinv(eye(4).reshape(2, 2, 4) * 2).shape
    (4, 2, 2)
    """
    (a,) = floats("tensorinv", a)
    if ind <= 0:
        raise ArgumentError("tensorinv", "the number of axes must be positive", got=str(ind))
    rows, columns = a.shape[:ind], a.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise ShapeError("tensorinv", "both halves of the axes must have as many elements", got=repr(a.aval))
    return reshape(inv(reshape(a, (math.prod(rows), -1))), (*columns, *rows))


def tensorsolve(a: NestedArrayLike, b: NestedArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Returns the solution ``x`` of ``tensordot(a, x, x.ndim) = b``.

    Args:
        a: the array, whose first axes are the axes of ``b``.
        b: the right side.
        axes: axes of ``a`` to move to the end first.
    """
    a, b = floats("tensorsolve", a, b)
    if axes is not None:
        a = moveaxis(a, tuple(axes), tuple(range(a.ndim - len(axes), a.ndim)))
    shape = a.shape[b.ndim :]
    if a.shape[: b.ndim] != b.shape or math.prod(shape) != b.size:
        raise ShapeError("tensorsolve", "the axes of both arrays do not fit", got=f"{a.aval} and {b.aval}")
    return reshape(solve(reshape(a, (b.size, b.size)), reshape(b, (b.size,))), shape)
