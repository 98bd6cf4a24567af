"""The Schur decomposition of real matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax import control_flow, slicing
from tvmfun.lax.linalg.arguments import square
from tvmfun.lax.linalg.householder import hessenberg, ormqr, reflection
from tvmfun.lax.staging import undifferentiable
from tvmfun.numpy.promotion import NestedArrayLike

__all__ = ["schur"]

#: The most iterations per eigenvalue; after more the result is NaN.
_LIMIT = 30
#: One of this many iterations has unusual shifts.
_UNUSUAL = 10


def schur(
    x: NestedArrayLike,
    *,
    compute_schur_vectors: bool = True,
    sort_eig_vals: bool = False,
    select_callable: Callable[..., Any] | None = None,
) -> Any:
    r"""Returns the real Schur decomposition :math:`A = Q T Q^\top` with an orthogonal :math:`Q`.

    :math:`T` is upper triangular but for blocks of two rows and columns on the diagonal, one for each pair of complex
    eigenvalues. Such a block has equal diagonal elements, and its other two have opposite signs.

    Args:
        x: square matrices, float32 or float64.
        compute_schur_vectors: whether to return ``(t, q)``, and not only ``(t,)``.
        sort_eig_vals: has no effect, as in JAX.
        select_callable: has no effect, as in JAX.

    Raises:
        ShapeError: if the matrices are not square.
        GradientError: if it is differentiated.

    Source: Francis, "The QR transformation" (1961); Golub and Van Loan, "Matrix Computations" (2013), algorithm 7.5.2.

    >>> t, q = schur(tnp.asarray([[2.0, 0.0], [1.0, 1.0]]))
    >>> [round(float(value), 4) for value in tnp.sort(tnp.diag(t))]
    [1.0, 2.0]
    """
    x = undifferentiable("schur", square("schur", x))
    size = x.shape[-1]
    if not x.size or size == 1:
        t, q = x, tnp.ones_like(x)
    else:
        # A power of 2, so that products neither overflow nor lose digits.
        scale = tnp.ldexp(tnp.ones((), x.dtype), tnp.frexp(tnp.max(tnp.abs(x), axis=(-2, -1), keepdims=True))[1])
        h, taus = hessenberg(x / scale)
        inner = ormqr(h[..., 1:, :-1], taus, tnp.eye(size - 1, dtype=x.dtype))
        q = tnp.pad(inner, (*(((0, 0),) * (x.ndim - 2)), (1, 0), (1, 0)))
        q = tnp.where(tnp.arange(size)[:, None] + tnp.arange(size) == 0, 1, q)
        t, q = _each(tnp.triu(h, -1), q)
        t = t * scale
    return (t, q) if compute_schur_vectors else (t,)


def _each(h: Array, q: Array) -> tuple[Array, Array]:
    from tvmfun.transforms import vmap

    decompose: Callable[..., Any] = _decompose
    for _ in range(h.ndim - 2):
        decompose = vmap(decompose)
    return decompose(h, q)


def _decompose(h: Array, q: Array) -> tuple[Array, Array]:
    """The decomposition of one Hessenberg matrix, and the product of ``q`` and the orthogonal matrix that makes it."""
    size = h.shape[-1]
    # One more row and column of zeros, so that there are always three to look at.
    h, q = tnp.pad(h, (0, 1)), tnp.pad(q, ((0, 0), (0, 1)))
    index = tnp.arange(size + 1)

    def is_unfinished(state: tuple) -> Array:
        _, _, last, _, total = state
        return (last > 0) & (total < _LIMIT * size)

    def step(state: tuple) -> tuple:
        h, q, last, count, total = state
        h = _with_zeros(h)
        below = tnp.concatenate([tnp.zeros(1, h.dtype), tnp.diagonal(h, -1)])
        first = tnp.max(tnp.where((index <= last) & (below == 0), index, 0))
        branches = (
            lambda h, q: (h, q),
            lambda h, q: _standardized(h, q, first),
            lambda h, q: _swept(h, q, first, last, count),
        )
        height = tnp.minimum(last - first, 2)
        h, q = control_flow.switch(height, branches, h, q)
        found = height < 2
        return h, q, tnp.where(found, first - 1, last), tnp.where(found, 0, count + 1), total + 1

    start = (h, q, tnp.asarray(size - 1, "int32"), tnp.zeros((), "int32"), tnp.zeros((), "int32"))
    h, q, last, _, _ = control_flow.while_loop(is_unfinished, step, start)
    failed = (last > 0) | tnp.isnan(tnp.sum(h))
    return tnp.where(failed, tnp.nan, h[:size, :size]), tnp.where(failed, tnp.nan, q[:, :size])


def _with_zeros(h: Array) -> Array:
    """The matrix with zeros for subdiagonal elements that do not matter beside their neighbours."""
    size = tnp.abs(tnp.diagonal(h))
    beside = size[:-1] + size[1:]
    beside = tnp.where(beside == 0, tnp.max(tnp.abs(h)), beside)
    small = tnp.abs(tnp.diagonal(h, -1)) <= tnp.finfo(h.dtype).eps * beside
    row, column = tnp.arange(h.shape[0])[:, None], tnp.arange(h.shape[0])
    gone = tnp.concatenate([tnp.zeros(1, "bool"), small])[:, None] & (row == column + 1)
    return tnp.where(gone | (row > column + 1), 0, h)


def _block_at(h: Array, row: Any, column: Any, shape: tuple[int, int]) -> Array:
    return slicing.dynamic_slice(h, (row, column), shape)


def _turned(x: Array, factor: Array, first: Any, *, axis: int) -> Array:
    """Rows (axis 0) or columns from ``first`` on, multiplied by a small matrix from the left or its transpose."""
    part = slicing.dynamic_slice_in_dim(x, first, factor.shape[0], axis)
    part = factor @ part if axis == 0 else part @ factor.T
    return slicing.dynamic_update_slice_in_dim(x, part, first, axis)


def _similar(h: Array, q: Array, factor: Array, first: Any) -> tuple[Array, Array]:
    h = _turned(_turned(h, factor, first, axis=0), factor, first, axis=1)
    return h, _turned(q, factor, first, axis=1)


def _swept(h: Array, q: Array, first: Array, last: Array, count: Array) -> tuple[Array, Array]:
    """One step of the QR iteration with two shifts at once, on the rows from ``first`` to ``last``."""
    (a, b), (c, d) = _block_at(h, last - 1, last - 1, (2, 2))
    trace, determinant = a + d, a * d - b * c
    reach = tnp.abs(c) + tnp.abs(_block_at(h, last - 1, last - 2, (1, 1))[0, 0])
    is_unusual = (count + 1) % _UNUSUAL == 0
    trace, determinant = tnp.where(is_unusual, 1.5 * reach, trace), tnp.where(is_unusual, reach * reach, determinant)
    top = _block_at(h, first, first, (3, 3))
    begin = tnp.stack(
        [
            top[0, 0] * (top[0, 0] - trace) + top[0, 1] * top[1, 0] + determinant,
            top[1, 0] * (top[0, 0] + top[1, 1] - trace),
            top[2, 1] * top[1, 0],
        ]
    )

    def chase(k: Any, state: tuple) -> tuple:
        h, q = state
        column = _block_at(h, k, tnp.maximum(k - 1, 0), (3, 1))[:, 0]
        column = tnp.where(k == first, begin, column)
        # There are only two rows at the end.
        v, tau = reflection(tnp.where(k + np.arange(3) <= last, column, 0), 0)
        return _similar(h, q, tnp.eye(3, dtype=h.dtype) - tau * v[:, None] * v[None, :], k)

    h, q = control_flow.fori_loop(first, last, chase, (h, q))
    return tnp.triu(h, -1), q


def _standardized(h: Array, q: Array, first: Array) -> tuple[Array, Array]:
    """A block of two rows made triangular, or its diagonal elements equal if the eigenvalues are complex."""
    (a, b), (c, d) = _block_at(h, first, first, (2, 2))
    half = (a - d) / 2
    largest = tnp.maximum(tnp.maximum(tnp.abs(half), tnp.abs(b)), tnp.abs(c))
    scale = tnp.where(largest > 0, largest, 1)
    p, b, c = half / scale, b / scale, c / scale
    square = p * p + b * c
    is_real = square >= 0
    # (z, c) is an eigenvector if the eigenvalues are real.
    z = p + tnp.where(p < 0, -1, 1) * tnp.sqrt(tnp.where(is_real, square, 0))
    length = tnp.hypot(z, c)
    is_triangular = c == 0
    real = tnp.where(is_triangular, 1, z / tnp.where(length > 0, length, 1)), c / tnp.where(length > 0, length, 1)
    # Otherwise b and c have different signs, and half the angle makes the diagonal equal.
    angle = 0.5 * tnp.arctan2(-2 * p, b + c)
    cosine = tnp.where(is_real, real[0], tnp.cos(angle))
    sine = tnp.where(is_real, tnp.where(is_triangular, 0, real[1]), tnp.sin(angle))
    factor = tnp.stack([tnp.stack([cosine, sine]), tnp.stack([-sine, cosine])])
    h, q = _similar(h, q, factor, first)
    block = _block_at(h, first, first, (2, 2))
    mean = 0.5 * (block[0, 0] + block[1, 1])
    exact = tnp.where(is_real, block * np.array([[1, 1], [0, 1]]), tnp.where(np.eye(2, dtype=bool), mean, block))
    return slicing.dynamic_update_slice(h, tnp.astype(exact, h.dtype), (first, first)), q
