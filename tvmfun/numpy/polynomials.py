"""Polynomials, as vectors of coefficients with the highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, DtypeError, ShapeError
from tvmfun.numpy.creation import arrays, asarray, ones, zeros
from tvmfun.numpy.dtypes import finfo
from tvmfun.numpy.elementwise import add, divide, multiply, pow, sqrt, square, subtract
from tvmfun.numpy.linalg import solvers
from tvmfun.numpy.products import matmul
from tvmfun.numpy.promotion import NestedArrayLike
from tvmfun.numpy.reductions import sum
from tvmfun.numpy.resizing import trim_zeros
from tvmfun.numpy.shapes import atleast_1d, concat, expand_dims, matrix_transpose, reshape, stack
from tvmfun.numpy.signal import convolve

__all__ = ["poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "polyval", "vander"]


def _coefficients(name: str, *values: Any) -> list[Array]:
    vectors = arrays(name, *(atleast_1d(value) for value in values))
    if any(p.ndim != 1 for p in vectors):
        got = ", ".join(repr(p.aval) for p in vectors)
        raise ShapeError(name, "the coefficients must be a vector", got=got)
    return vectors


def polyval(p: NestedArrayLike, x: NestedArrayLike, *, unroll: int = 16) -> Array:
    """Returns the values at ``x`` of the polynomial with coefficients ``p``, highest power first.

    Args:
        p: the coefficients, a vector.
        x: where to evaluate.
        unroll: for JAX: the steps are always straight code.

    >>> polyval([1, 0, 2], 3)
    Array(11, dtype=int32)
    """
    p, x = arrays("polyval", p, x)
    if p.ndim != 1:
        raise ShapeError("polyval", "the coefficients must be a vector", got=repr(p.aval))
    result = multiply(x, 0)
    for k in range(p.size):
        result = add(multiply(result, x), p[k])
    return result


def _equally_long(name: str, a1: Any, a2: Any) -> list[Array]:
    first, second = _coefficients(name, a1, a2)
    size = max(first.size, second.size)
    return [concat([zeros((size - p.size,), p.dtype), p]) for p in (first, second)]


def polyadd(a1: NestedArrayLike, a2: NestedArrayLike) -> Array:
    """Returns the sum of two polynomials.

    >>> polyadd([1, 2], [3, 4, 5])
    Array([3, 5, 7], dtype=int32)
    """
    return add(*_equally_long("polyadd", a1, a2))


def polysub(a1: NestedArrayLike, a2: NestedArrayLike) -> Array:
    """Returns the difference of two polynomials."""
    return subtract(*_equally_long("polysub", a1, a2))


def polymul(a1: NestedArrayLike, a2: NestedArrayLike, *, trim_leading_zeros: bool = False) -> Array:
    """Returns the product of two polynomials, in floats.

    Args:
        a1: a polynomial.
        a2: another one.
        trim_leading_zeros: whether to leave out leading coefficients that are 0; not of traced arrays.

    >>> polymul([1, 1], [1, -1])
    Array([ 1.,  0., -1.], dtype=float32)
    """
    first, second = _coefficients("polymul", a1, a2)
    if trim_leading_zeros:
        first, second = _trimmed("polymul", first), _trimmed("polymul", second)
    first, second = (p if p.size else zeros((1,), p.dtype) for p in (first, second))
    return convolve(first, second)


def _trimmed(name: str, p: Array) -> Array:
    if isinstance(p, Tracer):
        what = "the leading zeros of an array that is being traced are not known, but give the result its shape"
        raise ConcretizationError(name, what, got=repr(p.aval), hint="trim_leading_zeros=False")
    return trim_zeros(p, "f")


def polydiv(u: NestedArrayLike, v: NestedArrayLike, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """Returns the quotient and the remainder of the division of two polynomials, in floats.

    Args:
        u: the dividend.
        v: the divisor, whose first coefficient is not 0.
        trim_leading_zeros: whether to leave out leading zeros of the remainder; not of traced arrays.

    >>> polydiv([1.0, 5.0, 6.0], [1.0, 2.0])[0]
    Array([1., 3.], dtype=float32)
    """
    u, v = arrays("polydiv", *_coefficients("polydiv", u, v), floating=True)
    if not v.size:
        raise ShapeError("polydiv", "the divisor must have a coefficient", got=repr(v.aval))
    steps = u.size - v.size + 1
    if steps <= 0:
        return zeros((1,), u.dtype), u
    quotient = []
    rest = u
    for k in range(steps):
        factor = divide(rest[k], v[0])
        quotient.append(expand_dims(factor, 0))
        part = subtract(rest[k : k + v.size], multiply(factor, v))
        rest = concat([rest[:k], part, rest[k + v.size :]])
    rest = rest[steps:] if v.size > 1 else zeros((1,), u.dtype)
    # As many coefficients as the dividend, which JAX keeps as well.
    rest = concat([zeros((u.size - rest.size,), u.dtype), rest])
    return concat(quotient), _trimmed("polydiv", rest) if trim_leading_zeros else rest


def polyder(p: NestedArrayLike, m: int = 1) -> Array:
    """Returns the coefficients of the ``m``-th derivative.

    >>> polyder([1, 3, 5])
    Array([2, 3], dtype=int32)
    """
    (p,) = _coefficients("polyder", p)
    if m < 0:
        raise ArgumentError("polyder", "the order of the derivative must not be negative", got=str(m))
    # The products of narrow integers may not fit these.
    kind = p.dtype if dtypes.is_float(p.dtype) or p.dtype.itemsize >= 4 else np.dtype("int32")
    for _ in range(m):
        p = multiply(p[:-1], np.arange(p.size - 1, 0, -1).astype(kind)) if p.size > 1 else zeros((0,), kind)
    return p


def polyint(p: NestedArrayLike, m: int = 1, k: Any = None) -> Array:
    """Returns the coefficients of the ``m``-th integral.

    Args:
        p: the polynomial.
        m: how often to integrate.
        k: the constants of integration, of the first one first: one, or ``m``; by default 0.

    >>> polyint([2.0, 3.0], k=1)
    Array([1., 3., 1.], dtype=float32)
    """
    (p,) = arrays("polyint", *_coefficients("polyint", p), floating=True)
    if m < 0:
        raise ArgumentError("polyint", "the number of integrations must not be negative", got=str(m))
    constants = zeros((m,), p.dtype) if k is None else atleast_1d(asarray(k, p.dtype))
    if constants.shape not in ((1,), (m,)):
        raise ShapeError("polyint", f"there must be {m} constants of integration", got=repr(constants.aval))
    for i in range(m):
        constant = constants[i if constants.size == m else 0]
        p = concat([divide(p, np.arange(p.size, 0, -1).astype(p.dtype)), expand_dims(constant, 0)])
    return p


def poly(seq_of_zeros: Any) -> Array:
    """Returns the polynomial with the given zeros and the leading coefficient 1.

    >>> poly([1.0, 2.0])
    Array([ 1., -3.,  2.], dtype=float32)
    """
    (roots,) = arrays("poly", atleast_1d(seq_of_zeros), floating=True)
    if roots.ndim != 1:
        what = "the zeros must be a vector: the characteristic polynomial needs eigenvalues, which may be complex"
        raise ShapeError("poly", what, got=repr(roots.aval), hint="linalg.eigvalsh of a symmetric matrix")
    result = ones((1,), roots.dtype)
    for i in range(roots.size):
        nothing = zeros((1,), roots.dtype)
        result = subtract(concat([result, nothing]), multiply(roots[i], concat([nothing, result])))
    return result


def polyfit(
    x: NestedArrayLike,
    y: NestedArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: NestedArrayLike | None = None,
    cov: Any = False,
) -> Any:
    """Returns the polynomial of a degree that fits points best: the sum of the squared distances is least.

    Args:
        x: the first coordinates of the points, a vector.
        y: the second coordinates: a vector, or a matrix with a column for each fit.
        deg: the degree.
        rcond: as for :func:`tvmfun.numpy.linalg.lstsq`, of columns of equal size.
        full: whether to return the residuals, the rank, the singular values and ``rcond`` as well.
        w: weights of the distances, before they are squared.
        cov: whether to return the covariances of the coefficients as well; ``"unscaled"`` for those of weights that
            are the reciprocal standard deviations.

    Source: ``numpy.polyfit``.

    >>> polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1).round(3)
    Array([2., 1.], dtype=float32)
    """
    x, y = arrays("polyfit", x, y, floating=True)
    if deg < 0:
        raise ArgumentError("polyfit", "the degree must not be negative", got=str(deg))
    if x.ndim != 1 or not x.size or y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
        raise ShapeError("polyfit", "there must be a vector and as many values", got=f"{x.aval} and {y.aval}")
    if x.dtype not in (dtypes.float32, dtypes.float64):
        raise DtypeError("polyfit", "the coordinates must be float32 or float64", got=repr(x.aval))
    left, right = vander(x, deg + 1), y
    if w is not None:
        w = asarray(w, x.dtype)
        if w.shape != x.shape:
            raise ShapeError("polyfit", "there must be a weight for each point", got=f"{w.aval} for {x.aval}")
        left = multiply(left, expand_dims(w, 1))
        right = multiply(right, w if y.ndim == 1 else expand_dims(w, 1))
    rcond = x.size * float(finfo(x.dtype).eps) if rcond is None else rcond
    scale = sqrt(sum(square(left), 0))
    result, residuals, rank, s = solvers.lstsq(divide(left, scale), right, rcond)
    result = divide(result, scale if y.ndim == 1 else expand_dims(scale, 1))
    if full:
        return result, residuals, rank, s, asarray(rcond)
    if not cov:
        return result
    base = solvers.inv(matmul(matrix_transpose(left), left))
    if cov == "unscaled":
        factor = ones((), x.dtype)
    else:
        if x.size <= deg + 1:
            what = "covariances need more points than there are coefficients"
            raise ArgumentError("polyfit", what, got=f"{x.size} for {deg + 1}")
        factor = divide(residuals, x.size - (deg + 1))
    return result, multiply(base, factor) if y.ndim == 1 else multiply(expand_dims(base, 2), factor)


def vander(x: NestedArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """Returns the matrix whose columns are the powers of a vector, by default from the highest to 0.

    >>> vander([2, 3], 3)
    Array([[4, 2, 1],
           [9, 3, 1]], dtype=int32)
    """
    x = asarray(x)
    if x.ndim != 1:
        raise ShapeError("vander", "the argument must be a vector", got=repr(x.aval))
    count = x.size if N is None else N
    powers = range(count) if increasing else range(count - 1, -1, -1)
    return stack([pow(x, k) for k in powers], 1) if count else reshape(x[:0], (x.size, 0))
