"""Decompositions of matrices, the last two axes of an array, with JAX's names and arguments.

All of it is compiled into the module; no linear algebra library is called.
"""

from __future__ import annotations

from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.lax import arrays, control_flow, indexing
from tvmfun.names import missing as _missing
from tvmfun.numpy.promotion import operands
from tvmfun.ops import decompositions, spectral


def _matrices(name: str, *arrays: Any) -> list[Array]:
    found = [tnp.asarray(x) for x in operands(name, *map(tnp.asarray, arrays), floating=True)]
    if any(x.ndim < 2 for x in found):
        raise ShapeError(name, "a matrix has two axes", got=", ".join(str(x.aval) for x in found))
    return found


def _square(name: str, x: Any) -> Array:
    (x,) = _matrices(name, x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(name, "the matrix must be square", got=repr(x.aval))
    return x


def _symmetrized(x: Array) -> Array:
    return (x + tnp.matrix_transpose(x)) / 2


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Array:
    r"""Returns the lower triangular :math:`L` with :math:`L L^\top = A`.

    Args:
        x: symmetric positive definite matrices, float32 or float64. The result is NaN for others.
        symmetrize_input: whether to use :math:`(A + A^\top) / 2`; otherwise only the lower triangle is read.

    Source: ``jax.lax.linalg.cholesky``.

    >>> cholesky(tnp.asarray([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    x = _square("cholesky", x)
    return decompositions.cholesky(_symmetrized(x) if symmetrize_input else x)


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    r"""Returns the :math:`X` with :math:`A X = B`, or :math:`X A = B`, for a triangular :math:`A`.

    Args:
        a: square matrices, float32 or float64.
        b: matrices with the same leading axes; for ``left_side`` one row per unknown may also be given as a vector.
        left_side: whether ``a`` is on the left of the unknowns.
        lower: which triangle of ``a`` is read; the other may hold anything.
        transpose_a: whether to use :math:`A^\top`.
        conjugate_a: has no effect on real numbers.
        unit_diagonal: whether the diagonal is taken for ones.

    Source: ``jax.lax.linalg.triangular_solve``.

    >>> triangular_solve(tnp.asarray([[2.0, 0.0], [1.0, 1.0]]), tnp.asarray([[2.0], [3.0]]), left_side=True, lower=True)
    Array([[1.],
           [2.]], dtype=float32)
    """
    name = "triangular_solve"
    a, b = (tnp.asarray(x) for x in operands(name, tnp.asarray(a), tnp.asarray(b), floating=True))
    if is_vector := b.ndim == a.ndim - 1:
        b = tnp.expand_dims(b, -1 if left_side else -2)
    a, b = _matrices(name, a, b)
    flags = {"lower": bool(lower), "unit_diagonal": bool(unit_diagonal)}
    if left_side:
        x = decompositions.triangular_solve(a, b, transpose_a=bool(transpose_a), **flags)
    else:  # the transposed system
        turned = decompositions.transpose(b)
        x = decompositions.transpose(decompositions.triangular_solve(a, turned, transpose_a=not transpose_a, **flags))
    return tnp.squeeze(x, -1 if left_side else -2) if is_vector else x


def lu(x: Any) -> tuple[Array, Array, Array]:
    r"""Returns the decomposition :math:`P A = L U` with partial pivoting.

    Args:
        x: matrices, float32 or float64.

    Returns:
        ``(lu, pivots, permutation)``: the upper triangle and below it the lower one, whose diagonal is 1; with which
        row each row was exchanged; and ``x[permutation]`` is the product.

    Source: ``jax.lax.linalg.lu``.

    >>> factors, pivots, permutation = lu(tnp.asarray([[1.0, 2.0], [2.0, 2.0]]))
    >>> factors.tolist(), pivots.tolist(), permutation.tolist()
    ([[2.0, 2.0], [0.5, 1.0]], [1, 1], [1, 0])
    """
    return decompositions.lu(*_matrices("lu", x))


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Array:
    """Returns the permutation of ``permutation_size`` rows that successive exchanges amount to.

    >>> lu_pivots_to_permutation(tnp.asarray([2, 2]), 3).tolist()
    [2, 0, 1]
    """
    pivots = tnp.asarray(pivots)
    if not pivots.ndim or pivots.shape[-1] > permutation_size:
        raise ShapeError("lu_pivots_to_permutation", "there are more pivots than rows", got=repr(pivots.aval))
    columns = arrays.iota("int32", permutation_size)
    first = arrays.broadcast(columns, pivots.shape[:-1])
    if not pivots.shape[-1]:
        return first

    def exchange(i: Any, rows: Array) -> Array:
        pivot = indexing.dynamic_slice_in_dim(pivots, i, 1, -1)
        here, other = indexing.dynamic_slice_in_dim(rows, i, 1, -1), tnp.take_along_axis(rows, pivot, -1)
        return tnp.where(columns == i, other, tnp.where(columns == pivot, here, rows))

    return control_flow.fori_loop(0, pivots.shape[-1], exchange, first)


def qr(x: Any, *, pivoting: bool = False, full_matrices: bool = True) -> tuple[Array, Array]:
    """Returns ``(q, r)`` with ``q @ r = x``, orthonormal columns in ``q`` and an upper triangular ``r``.

    Args:
        x: matrices, float32 or float64.
        pivoting: must be False: columns stay in their order.
        full_matrices: whether ``q`` is square; otherwise it has at most as many columns as ``x``. A ``q`` with more
            columns than ``x`` has no derivative.

    Source: ``jax.lax.linalg.qr``.
    """
    if pivoting:
        raise ArgumentError("qr", "the columns stay in their order", got="pivoting=True", hint="svd")
    return decompositions.qr(*_matrices("qr", x), full=bool(full_matrices))


def eigh(
    x: Any,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
) -> tuple[Array, Array]:
    r"""Returns ``(v, w)``: the eigenvectors of symmetric matrices as columns, and the eigenvalues.

    Args:
        x: symmetric matrices, float32 or float64.
        lower: which triangle is read if the matrix is not symmetrized.
        symmetrize_input: whether to use :math:`(A + A^\top) / 2`.
        sort_eigenvalues: whether they must ascend; they always do.
        subset_by_index: ``(begin, end)``: which eigenvalues to return, of those in ascending order.

    Source: ``jax.lax.linalg.eigh``.

    >>> vectors, values = eigh(tnp.asarray([[2.0, 0.0], [0.0, 1.0]]))
    >>> values.tolist()
    [1.0, 2.0]
    """
    x = _square("eigh", x)
    if symmetrize_input:
        x = _symmetrized(x)
    w, v = spectral.eigh(x if lower or symmetrize_input else decompositions.transpose(x))
    if subset_by_index is not None:
        begin, end = subset_by_index
        w, v = w[..., begin:end], v[..., begin:end]
    return v, w


def svd(
    x: Any, *, full_matrices: bool = True, compute_uv: bool = True, subset_by_index: tuple[int, int] | None = None
) -> Array | tuple[Array, Array, Array]:
    """Returns ``(u, s, vt)`` with ``u * s @ vt = x``, or only ``s``, the singular values in descending order.

    Args:
        x: matrices, float32 or float64.
        full_matrices: whether ``u`` and ``vt`` are square. Of a matrix that is not they have no derivative then.
        compute_uv: whether to return all three.
        subset_by_index: ``(begin, end)``: which singular values to return, of those in descending order.

    Source: ``jax.lax.linalg.svd``.

    >>> svd(tnp.asarray([[3.0, 0.0], [0.0, -4.0]]), compute_uv=False).tolist()
    [4.0, 3.0]
    """
    (x,) = _matrices("svd", x)
    if subset_by_index is not None:
        result = tnp.linalg.svd(x, full_matrices, compute_uv, subset_by_index=subset_by_index)
        return tuple(result) if compute_uv else result
    u, s, vt = spectral.svd(x, full=bool(full_matrices and compute_uv))
    return (u, s, vt) if compute_uv else s


__getattr__ = _missing(__name__)
