"""Linear algebra: the array API's extension, and NumPy's functions beyond it.

Matrices are float32 or float64, of any number: they lie along the last two axes, and the axes before those number them.
Integers become float32.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.core.trace import is_tracing
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.names import missing as _missing
from tvmfun.numpy import linear_algebra
from tvmfun.numpy.contractions import einsum
from tvmfun.numpy.creation import arrays, asarray, eye, ones
from tvmfun.numpy.data_types import astype, finfo
from tvmfun.numpy.elementwise import (
    abs,
    divide,
    greater,
    log,
    multiply,
    not_equal,
    pow,
    reciprocal,
    remainder,
    sign,
    sqrt,
    square,
    where,
)
from tvmfun.numpy.indexing import take_along_axis
from tvmfun.numpy.linear_algebra import matmul, outer, tensordot, vecdot
from tvmfun.numpy.manipulation import (
    Axes,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    normalize_axes,
    reshape,
)
from tvmfun.numpy.statistical import max, min, prod, sum
from tvmfun.ops import calls, control, pointwise, spectral
from tvmfun.ops import decompositions as ops

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]


class EighResult(NamedTuple):
    """What :func:`eigh` returns."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """What :func:`qr` returns."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """What :func:`svd` returns."""

    U: Array
    S: Array
    Vh: Array


class SlogdetResult(NamedTuple):
    """What :func:`slogdet` returns."""

    sign: Array
    logabsdet: Array


def _floats(name: str, *values: Any) -> list[Array]:
    """The arrays in one dtype, a float."""
    return arrays(name, *values, floating=True)


def _matrix(name: str, x: Any, *, square: bool = False) -> Array:
    (x,) = _floats(name, x)
    if x.ndim < 2:
        raise ShapeError(name, "there must be two axes", got=repr(x.aval), hint="x[None, :]")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(name, "the matrix must be square", got=repr(x.aval))
    return x


def _symmetrized(x: Array) -> Array:
    return multiply(x + matrix_transpose(x), 0.5)


# -- decompositions ------------------------------------------------------------------------------------------


def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
    r"""Returns the lower triangular :math:`L` with :math:`L L^T = x`, or with ``upper`` its transpose.

    Args:
        a: symmetric positive definite matrices; NaN comes out of others.
        upper: whether to return an upper triangular matrix.
        symmetrize_input: whether to take :math:`(x + x^T) / 2`, which makes the gradient symmetric; otherwise only the
            lower triangle is read.

    Source: ``jax.numpy.linalg.cholesky``.

    >>> cholesky([[4.0, 2.0], [2.0, 5.0]])
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    a = _matrix("cholesky", a, square=True)
    result = ops.cholesky(_symmetrized(a) if symmetrize_input else a)
    return matrix_transpose(result) if upper else result


def qr(a: Any, mode: str = "reduced") -> Any:
    """Returns matrices with orthonormal columns and upper triangular ones whose product is ``a``.

    Args:
        a: the matrices.
        mode: ``"reduced"`` for as many columns as the smaller side has, ``"complete"`` for a square matrix, ``"r"``
            for the triangular one alone, ``"raw"`` for ``(h, tau)``: the Householder reflections of which the first is
            made, and the triangular one, in transposed matrices; and the factors of the reflections.
    """
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ArgumentError("qr", "the mode is 'reduced', 'complete', 'r' or 'raw'", got=repr(mode))
    if mode == "raw":
        from tvmfun.lax.reflections import triangularized  # lax is made of numpy

        h, taus = triangularized(_matrix("qr", a))
        return matrix_transpose(h), taus
    q, r = ops.qr(_matrix("qr", a), full=mode == "complete")
    return r if mode == "r" else QRResult(q, r)


def eigh(a: Any, UPLO: str = "L", symmetrize_input: bool = True) -> EighResult:
    """Returns the eigenvalues of symmetric matrices, in ascending order, and their eigenvectors as columns.

    Args:
        a: the matrices.
        UPLO: the triangle that is read, ``"L"`` or ``"U"``, if the matrices are not symmetrized.
        symmetrize_input: whether to take the mean of the matrix and its transpose first.
    """
    a = _matrix("eigh", a, square=True)
    if UPLO not in ("L", "U"):
        raise ArgumentError("eigh", "the triangle is 'L' or 'U'", got=repr(UPLO))
    a = _symmetrized(a) if symmetrize_input else matrix_transpose(a) if UPLO == "U" else a
    return EighResult(*spectral.eigh(a))


def eigvalsh(a: Any, UPLO: str = "L", *, symmetrize_input: bool = True) -> Array:
    """Returns the eigenvalues of symmetric matrices, in ascending order; see :func:`eigh`."""
    return eigh(a, UPLO, symmetrize_input=symmetrize_input).eigenvalues


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    r"""Returns the singular value decomposition :math:`x = U \operatorname{diag}(S) V^T`.

    Args:
        a: the matrices.
        full_matrices: whether :math:`U` and :math:`V` are square; otherwise they have as many columns as there are
            singular values. Square ones have no derivative, unless ``a`` is square.
        compute_uv: whether to return all three, or just the singular values.
        hermitian: whether the matrices are symmetric, which makes no difference here.
        subset_by_index: ``(begin, end)``: which singular values to return, of those in descending order.
    """
    a = _matrix("svd", a)
    begin, end = (0, None) if subset_by_index is None else subset_by_index
    if not compute_uv:
        return svdvals(a)[..., begin:end]
    if subset_by_index is None:
        return SVDResult(*spectral.svd(a, full=full_matrices))
    u, s, vh = spectral.svd(a, full=False)
    return SVDResult(u[..., begin:end], s[..., begin:end], vh[..., begin:end, :])


def svdvals(x: Any, /) -> Array:
    """Returns the singular values, in descending order."""
    return spectral.svd(_matrix("svdvals", x), full=False)[1]


# -- solving -------------------------------------------------------------------------------------------------


def _with_equal_lead(x1: Array, x2: Array, name: str) -> tuple[Array, Array]:
    """Matrices whose leading axes are broadcast."""
    lead = pointwise.broadcast_shapes(name, [x1.shape[:-2], x2.shape[:-2]])
    return broadcast_to(x1, (*lead, *x1.shape[-2:])), broadcast_to(x2, (*lead, *x2.shape[-2:]))


def solve(a: Any, b: Any) -> Array:
    """Returns the solutions :math:`x` of :math:`x_1 x = x_2`.

    Args:
        a: square matrices.
        b: one vector for all of them, or matrices with one column for each system.

    >>> solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0])
    Array([1. , 0.5], dtype=float32)
    """
    a, b = _floats("solve", a, b)
    a = _matrix("solve", a, square=True)
    is_vector = b.ndim == 1
    if is_vector:
        b = expand_dims(b, -1)
    if b.ndim < 2 or b.shape[-2] != a.shape[-1]:
        raise ShapeError("solve", "both sides must have the same number of rows", got=f"{a.aval} and {b.aval}")
    a, b = _with_equal_lead(a, b, "solve")
    factors, _, permutation = ops.lu(a)
    x = take_along_axis(b, expand_dims(permutation, -1), -2, mode="promise_in_bounds")
    x = ops.triangular_solve(factors, x, lower=True, transpose_a=False, unit_diagonal=True)
    x = ops.triangular_solve(factors, x, lower=False, transpose_a=False, unit_diagonal=False)
    return x[..., 0] if is_vector else x


def inv(a: Any) -> Array:
    """Returns the inverse matrices; infinite or NaN where there are none."""
    a = _matrix("inv", a, square=True)
    return solve(a, eye(a.shape[-1], dtype=a.dtype))


def det(a: Any) -> Array:
    """Returns the determinants.

    >>> det([[1.0, 2.0], [3.0, 4.0]])
    Array(-2., dtype=float32)
    """
    a = _matrix("det", a, square=True)
    size = a.shape[-1]
    if size == 0:
        return ones(a.shape[:-2], a.dtype)
    if size <= 3:  # exact derivatives, also of singular matrices
        at = lambda i, j: a[..., i, j]
        minor = lambda i, j: at(1, i) * at(2, j) - at(1, j) * at(2, i)
        if size == 1:
            return at(0, 0)
        if size == 2:
            return at(0, 0) * at(1, 1) - at(0, 1) * at(1, 0)
        return at(0, 0) * minor(1, 2) - at(0, 1) * minor(0, 2) + at(0, 2) * minor(0, 1)
    factors, pivots, _ = ops.lu(a)
    return multiply(prod(diagonal(factors), -1), _parity(pivots, a.dtype))


def _parity(pivots: Array, dtype: np.dtype) -> Array:
    """1 or -1 by the number of rows that were exchanged."""
    moved = sum(not_equal(pivots, np.arange(pivots.shape[-1], dtype=np.int32)), -1)
    return astype(1 - 2 * remainder(moved, 2), dtype)


def slogdet(a: Any, *, method: str | None = None) -> SlogdetResult:
    """Returns the signs of the determinants and the logarithms of their absolute values.

    Args:
        a: square matrices.
        method: for JAX, which knows ``"lu"`` and ``"qr"``: the decomposition is always the first.
    """
    if method not in (None, "lu", "qr"):
        raise ArgumentError("slogdet", "the method is 'lu' or 'qr'", got=repr(method))
    a = _matrix("slogdet", a, square=True)
    factors, pivots, _ = ops.lu(a)
    values = diagonal(factors)
    return SlogdetResult(multiply(prod(sign(values), -1), _parity(pivots, a.dtype)), sum(log(abs(values)), -1))


def _cutoff(x: Array, s: Array, rtol: Any, scale: float) -> Array:
    """The size up to which singular values count as zero, for each matrix."""
    if rtol is None:
        rtol = builtins.max(x.shape[-2:]) * float(finfo(x.dtype).eps) * scale
    if np.ndim(rtol):
        rtol = expand_dims(rtol, -1)
    return multiply(rtol, max(s, -1, keepdims=True, initial=0))


def matrix_rank(M: Any, rtol: Any = None, *, hermitian: bool = False, tol: Any = None) -> Array:
    """Returns, as int32, the number of singular values above ``rtol`` times the largest.

    Args:
        M: the matrices.
        rtol: by default the machine epsilon times the larger side.
        hermitian: whether the matrices are symmetric, which makes no difference here.
        tol: an older name of ``rtol``.
    """
    rtol = tol if rtol is None else rtol
    M = _matrix("matrix_rank", M)
    s = svdvals(M)
    return sum(greater(s, _cutoff(M, s, rtol, 1)), -1)


def pinv(a: Any, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Array:
    """Returns the Moore-Penrose inverses.

    Args:
        a: the matrices.
        rtol: singular values up to ``rtol`` times the largest count as zero; by default ten times the machine
            epsilon times the larger side.
        hermitian: whether the matrices are symmetric, which makes no difference here.
        rcond: an older name of ``rtol``.

    Source: ``jax.numpy.linalg.pinv``.
    """
    rtol = rcond if rtol is None else rtol
    return _pseudoinverse(_matrix("pinv", a), rtol, 10)


def _pseudoinverse(x: Array, rtol: Any, scale: int) -> Array:
    """The Moore-Penrose inverse, with singular values up to a cutoff as zero."""

    def value(x: Array) -> Array:
        u, s, vh = svd(x, full_matrices=False)
        large = greater(s, _cutoff(x, s, rtol, scale))
        inverse = where(large, reciprocal(where(large, s, 1)), 0)
        return matmul(matrix_transpose(vh) * expand_dims(inverse, -2), matrix_transpose(u))

    def moved(x: Array, dx: Array) -> list[Array]:
        # Golub and Pereyra, "The Differentiation of Pseudo-Inverses and Nonlinear Least Squares Problems Whose
        # Variables Separate" (1973). Through the decomposition it would be wrong where singular values are equal.
        inverse, turned = _pseudoinverse(x, rtol, scale), matrix_transpose(dx)
        left = inverse @ matrix_transpose(inverse) @ (turned - turned @ x @ inverse)
        right = (turned - inverse @ (x @ turned)) @ matrix_transpose(inverse) @ inverse
        return [inverse, left + right - inverse @ dx @ inverse]

    if not is_tracing():
        return value(x)
    program, captured = control.closed(value, [x.aval], "pinv")
    rule = calls.Rule(moved)
    return calls.custom_jvp_call(*captured, x, program=program, rule=rule, captured=len(captured))[0]


def lstsq(a: Any, b: Any, rcond: Any = None, *, numpy_resid: bool = False) -> tuple[Array, Array, Array, Array]:
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
    a, b = _floats("lstsq", a, b)
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


def tensorinv(a: Any, ind: int = 2) -> Array:
    """Returns the inverse of an array as a linear map: ``tensordot(tensorinv(a, ind), a, ind)`` is the identity.

    Args:
        a: the array; the product of its first ``ind`` sizes is that of the others.
        ind: how many leading axes the map goes to.

    >>> tensorinv(eye(4).reshape(2, 2, 4) * 2).shape
    (4, 2, 2)
    """
    (a,) = _floats("tensorinv", a)
    if ind <= 0:
        raise ArgumentError("tensorinv", "the number of axes must be positive", got=str(ind))
    rows, columns = a.shape[:ind], a.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise ShapeError("tensorinv", "both halves of the axes must have as many elements", got=repr(a.aval))
    return reshape(inv(reshape(a, (math.prod(rows), -1))), (*columns, *rows))


def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Array:
    """Returns the solution ``x`` of ``tensordot(a, x, x.ndim) = b``.

    Args:
        a: the array; its first axes are those of ``b``.
        b: the right side.
        axes: axes of ``a`` to move to the end first.
    """
    a, b = _floats("tensorsolve", a, b)
    if axes is not None:
        a = moveaxis(a, tuple(axes), tuple(range(a.ndim - len(axes), a.ndim)))
    shape = a.shape[b.ndim :]
    if a.shape[: b.ndim] != b.shape or math.prod(shape) != b.size:
        raise ShapeError("tensorsolve", "the axes of both arrays do not fit", got=f"{a.aval} and {b.aval}")
    return reshape(solve(reshape(a, (b.size, b.size)), reshape(b, (b.size,))), shape)


# -- norms ---------------------------------------------------------------------------------------------------


def vector_norm(x: Any, /, *, axis: Axes | None = None, keepdims: bool = False, ord: Any = 2) -> Array:
    r"""Returns :math:`(\sum |x|^p)^{1/p}`.

    Args:
        x: the array.
        axis: one axis or several; by default all.
        keepdims: whether the axes stay, with size 1.
        ord: the number :math:`p`; infinity for the largest absolute value, minus infinity for the smallest, 0 for the
            number of elements that are not 0.
    """
    (x,) = _floats("vector_norm", x)
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


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Returns the norms of matrices.

    Args:
        x: the matrices.
        keepdims: whether the last two axes stay, with size 1.
        ord: ``"fro"`` for the root of the sum of squares, ``"nuc"`` for the sum of the singular values, 2 and -2 for
            the largest and smallest of them, 1 and -1 for the largest and smallest sum of absolute values of a column,
            plus and minus infinity for those of a row.
    """
    x = _matrix("matrix_norm", x)
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


def norm(x: Any, ord: Any = None, axis: Axes | None = None, keepdims: bool = False) -> Array:
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
    (x,) = _floats("norm", x)
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


def cond(x: Any, p: Any = None) -> Array:
    """Returns the condition numbers: the norm of the matrix times that of its inverse.

    Args:
        x: the matrices.
        p: the norm, as for :func:`matrix_norm`; by default 2, for which the matrices need not be square.
    """
    x = _matrix("cond", x)
    if p is None or p in (2, -2):
        s = svdvals(x)
        return divide(s[..., 0], s[..., -1]) if p != -2 else divide(s[..., -1], s[..., 0])
    return multiply(matrix_norm(x, ord=p), matrix_norm(inv(x), ord=p))


# -- products and diagonals ----------------------------------------------------------------------------------


def matrix_power(a: Any, n: int) -> Array:
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
        precision: accepted and without effect: float32 products are always exact float32.

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


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Returns the vector products along an axis of size 3; the other axes broadcast."""
    x1, x2 = asarray(x1), asarray(x2)
    for x in (x1, x2):
        if not x.ndim or x.shape[axis] != 3:
            raise ShapeError("cross", f"axis {axis} must have size 3", got=f"{x1.aval} and {x2.aval}")
    return linear_algebra.cross(x1, x2, axis)


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Returns the diagonals of matrices."""
    return linear_algebra.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Returns the sums of the diagonals of matrices."""
    return linear_algebra.trace(x, offset, -2, -1, dtype)


__getattr__ = _missing(__name__)
publish(globals())
