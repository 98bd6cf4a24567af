r"""Householder reflections :math:`1 - \tau v v^\top`, and reductions of matrices by them.

As in LAPACK, each vector begins with a 1 that is not stored. The rest of it lies below the diagonal of a matrix, and
the factors :math:`\tau` in a vector.
"""

from __future__ import annotations

from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.lax import control_flow, slicing
from tvmfun.lax.linalg.arguments import matrices, square
from tvmfun.numpy.promotion import NestedArrayLike, operands

__all__ = ["hessenberg", "householder_product", "ormqr", "tridiagonal"]


def reflection(x: Array, first: Any) -> tuple[Array, Array]:
    """``(v, tau)`` of the reflections that map the elements of vectors from ``first`` on to multiples of a unit vector.

    ``v`` is 0 before ``first``. Nothing is reflected if all elements after it are 0.
    """
    index = tnp.arange(x.shape[-1])
    head = tnp.where(index == first, x, 0)
    tail = tnp.where(index > first, x, 0)
    largest = tnp.max(tnp.abs(tail), axis=-1, initial=0, keepdims=True)
    is_zero = largest == 0
    # Scaled, so that squares neither overflow nor lose digits.
    scale = tnp.where(is_zero, 1, tnp.maximum(largest, tnp.max(tnp.abs(head), axis=-1, initial=0, keepdims=True)))
    tail, head = tail / scale, tnp.sum(head / scale, axis=-1, keepdims=True)
    squares = tnp.where(is_zero, 1, head * head + tnp.sum(tail * tail, axis=-1, keepdims=True))
    beta = tnp.where(head < 0, 1, -1) * tnp.sqrt(squares)
    v = tnp.where(index == first, 1, tail / tnp.where(is_zero, 1, head - beta))
    return tnp.astype(v, x.dtype), tnp.where(is_zero, 0, (beta - head) / beta)[..., 0]


def apply_left(v: Array, tau: Array, x: Array) -> Array:
    """The reflection times ``x``."""
    row = tnp.sum(v[..., :, None] * x, axis=-2, keepdims=True)
    return x - tau[..., None, None] * v[..., :, None] * row


def apply_right(x: Array, v: Array, tau: Array) -> Array:
    """``x`` times the reflection."""
    column = tnp.sum(x * v[..., None, :], axis=-1, keepdims=True)
    return x - tau[..., None, None] * column * v[..., None, :]


def _column(x: Array, k: Any) -> Array:
    return slicing.dynamic_index_in_dim(x, k, axis=-1, keepdims=False)


def ormqr(
    a: NestedArrayLike, taus: NestedArrayLike, c: NestedArrayLike, *, left: bool = True, transpose: bool = False
) -> Array:
    r"""Returns the product of the orthogonal :math:`Q` of reflections and :math:`C`, without making :math:`Q`.

    Args:
        a: the vectors of the reflections, below the diagonals of m x n matrices, as ``numpy.linalg.qr`` with
            ``mode="raw"`` returns them transposed.
        taus: their factors, k of them.
        c: matrices with m rows, or columns if :math:`Q` is on their right.
        left: whether the result is :math:`Q C`; otherwise it is :math:`C Q`.
        transpose: whether to use :math:`Q^\top`.

    Raises:
        ShapeError: if the shapes do not fit.

    >>> import numpy as np
    >>> h, taus = tnp.linalg.qr(np.asarray([[3.0, 1.0], [4.0, 2.0]], "float32"), mode="raw")
    >>> [round(float(x), 4) for x in ormqr(h.T, taus, tnp.eye(2))[:, 0]]
    [-0.6, -0.8]
    """
    name = "ormqr"
    a, taus, c = (tnp.asarray(x) for x in operands(name, *map(tnp.asarray, (a, taus, c)), floating=True))
    a, c = matrices(name, a, c)
    m, size = a.shape[-2], taus.shape[-1] if taus.ndim else -1
    if not 0 <= size <= min(a.shape[-2:]) or c.shape[-2 if left else -1] != m:
        what = "there must be a column for each factor, and as many rows in both matrices"
        raise ShapeError(name, what, got=f"{a.aval}, {taus.aval} and {c.aval}")
    lead = tnp.broadcast_shapes(a.shape[:-2], taus.shape[:-1], c.shape[:-2])
    x = tnp.broadcast_to(c if left else tnp.matrix_transpose(c), (*lead, *(c.shape[-2:] if left else c.shape[:-3:-1])))
    if size:
        index = tnp.arange(m)

        def step(x: Array, reflected: tuple) -> tuple[Array, None]:
            column, tau, k = reflected
            v = tnp.where(index > k, column, tnp.astype(index == k, column.dtype))
            return apply_left(v, tau, x), None

        rows = tnp.moveaxis(a[..., :size], -1, 0), tnp.moveaxis(taus, -1, 0), tnp.arange(size)
        # Q is the product of the reflections in their order, so the last one is applied first.
        x, _ = control_flow.scan(step, x, rows, reverse=bool(transpose) != bool(left))
    return x if left else tnp.matrix_transpose(x)


def householder_product(a: NestedArrayLike, taus: NestedArrayLike) -> Array:
    """Returns the first columns of the product of reflections, matrices of the shape of ``a``.

    Args:
        a: the vectors of the reflections, below the diagonals of m x n matrices with at least as many rows as columns.
        taus: their factors, at most n of them.

    Raises:
        ShapeError: if the shapes do not fit.

    Source: ``jax.lax.linalg.householder_product``.

    >>> householder_product(tnp.asarray([[0.0], [1.0]]), tnp.asarray([1.0])).tolist()
    [[0.0], [-1.0]]
    """
    (a,) = matrices("householder_product", a)
    if a.shape[-2] < a.shape[-1]:
        raise ShapeError("householder_product", "there must be at least as many rows as columns", got=repr(a.aval))
    return ormqr(a, taus, tnp.eye(*a.shape[-2:], dtype=a.dtype))


def hessenberg(a: NestedArrayLike) -> tuple[Array, Array]:
    """Reduces square matrices to upper Hessenberg form, with zeros below the first subdiagonal.

    Args:
        a: square matrices.

    Returns:
        ``(h, taus)``: the Hessenberg matrices, in which the vectors of the reflections lie below the first
        subdiagonal, and their factors.

    Raises:
        ShapeError: if the matrices are not square.

    Source: Golub and Van Loan, "Matrix Computations" (2013), algorithm 7.4.2; ``jax.lax.linalg.hessenberg``.

    >>> h, taus = hessenberg(tnp.asarray([[1.0, 2.0, 3.0], [3.0, 1.0, 1.0], [4.0, 1.0, 1.0]]))
    >>> [round(float(x), 4) for x in h[:, 0]], [round(float(x), 4) for x in taus]
    ([1.0, -5.0, 0.5], [1.6, 0.0])
    """
    x = square("hessenberg", a)
    size = x.shape[-1]
    taus = tnp.zeros((*x.shape[:-2], max(size - 1, 0)), x.dtype)
    if size < 3:
        return x, taus
    index = tnp.arange(size)

    def step(k: Any, state: tuple) -> tuple:
        x, stored, taus = state
        v, tau = reflection(_column(x, k), k + 1)
        x = apply_right(apply_left(v, tau, x), v, tau)
        stored = tnp.where(index == k, v[..., :, None], stored)
        return x, stored, tnp.where(index[:-1] == k, tau[..., None], taus)

    x, stored, taus = control_flow.fori_loop(0, size - 2, step, (x, tnp.zeros_like(x), taus))
    return tnp.triu(x, -1) + tnp.tril(stored, -2), taus


def tridiagonal(a: NestedArrayLike, *, lower: bool = True) -> tuple[Array, Array, Array, Array]:
    """Reduces symmetric matrices to tridiagonal form.

    Args:
        a: symmetric matrices.
        lower: which triangle is read.

    Returns:
        ``(a, d, e, taus)``: the matrices, with the tridiagonal ones in them, beside it, in the triangle that was read,
        the vectors of the reflections, and in the other triangle what was there; the diagonals; the elements next to
        them; and the factors of the reflections.

    Raises:
        ShapeError: if the matrices are not square or empty.

    Source: Golub and Van Loan, "Matrix Computations" (2013), algorithm 8.3.1; ``jax.lax.linalg.tridiagonal``.

    >>> _, d, e, _ = tridiagonal(tnp.asarray([[1.0, 3.0, 4.0], [3.0, 2.0, 0.0], [4.0, 0.0, 2.0]]))
    >>> [round(float(x), 4) for x in d], [round(float(x), 4) for x in e]
    ([1.0, 2.0, 2.0], [-5.0, 0.0])
    """
    x = square("tridiagonal", a)
    if not x.shape[-1]:
        raise ShapeError("tridiagonal", "there must be elements", got=repr(x.aval))
    # From the other end, an upper triangle is a lower one.
    turned = x if lower else tnp.flip(x, (-2, -1))
    strict = tnp.tril(turned, -1)
    symmetric = tnp.tril(turned) + tnp.matrix_transpose(strict)
    reduced, taus = hessenberg(symmetric)
    d, e = tnp.diagonal(reduced, 0, -2, -1), tnp.diagonal(reduced, -1, -2, -1)
    result = tnp.tril(reduced) + tnp.triu(turned, 1)
    if lower:
        return result, d, e, taus
    return tnp.flip(result, (-2, -1)), tnp.flip(d, -1), tnp.flip(e, -1), tnp.flip(taus, -1)


def triangularized(x: Array) -> tuple[Array, Array]:
    """Upper triangular matrices with the vectors of the reflections that made them so, and their factors."""
    m, n = x.shape[-2:]
    rank = min(m, n)
    taus = tnp.zeros((*x.shape[:-2], rank), x.dtype)
    if not rank:
        return x, taus
    index = tnp.arange(n)

    def step(k: Any, state: tuple) -> tuple:
        x, stored, taus = state
        v, tau = reflection(_column(x, k), k)
        stored = tnp.where(index == k, v[..., :, None], stored)
        return apply_left(v, tau, x), stored, tnp.where(index[:rank] == k, tau[..., None], taus)

    x, stored, taus = control_flow.fori_loop(0, rank, step, (x, tnp.zeros_like(x), taus))
    return tnp.triu(x) + tnp.tril(stored, -1), taus


def column_order(x: Array) -> Array:
    """The pivot order: each column is the one farthest from the span of the columns before it."""
    m, n = x.shape[-2:]
    start = tnp.broadcast_to(tnp.arange(n), (*x.shape[:-2], n))
    if not x.size:
        return start
    index = tnp.arange(n)
    scale = tnp.max(tnp.abs(x), axis=(-2, -1), keepdims=True)
    rest = x / tnp.where(scale > 0, scale, 1)

    def step(k: Any, state: tuple) -> tuple:
        rest, order = state
        sizes = tnp.where(index >= k, tnp.sum(rest * rest, axis=-2), -1)
        best = tnp.argmax(sizes, axis=-1)[..., None]
        swapped = tnp.where(index == k, best, tnp.where(index == best, k, index))
        order = tnp.take_along_axis(order, swapped, -1)
        rest = tnp.take_along_axis(rest, swapped[..., None, :], -1)
        v, tau = reflection(_column(rest, k), k)
        rest = apply_left(v, tau, rest)
        return tnp.where(tnp.arange(m)[:, None] <= k, 0, rest), order

    return control_flow.fori_loop(0, min(m, n), step, (rest, start))[1]
