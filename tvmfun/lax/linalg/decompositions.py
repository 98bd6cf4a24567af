"""Decompositions of matrices, and functions computed from them."""

from __future__ import annotations

from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.lax import control_flow, shapes, slicing
from tvmfun.lax.elementwise import stop_gradient
from tvmfun.lax.linalg.arguments import matrices, square, vectors
from tvmfun.lax.linalg.householder import column_order
from tvmfun.lax.staging import undifferentiable
from tvmfun.numpy.promotion import NestedArrayLike, operands
from tvmfun.ops import linalg as ops
from tvmfun.ops.linalg.matrices import transpose

__all__ = [
    "cholesky",
    "cholesky_update",
    "eigh",
    "lu",
    "lu_pivots_to_permutation",
    "qdwh",
    "qr",
    "svd",
    "symmetric_product",
    "triangular_solve",
]


def _symmetrized(x: Array) -> Array:
    return (x + tnp.matrix_transpose(x)) / 2


def cholesky(x: NestedArrayLike, *, symmetrize_input: bool = True) -> Array:
    r"""Returns the lower triangular :math:`L` with :math:`L L^\top = A`.

    Args:
        x: symmetric positive definite matrices, float32 or float64. The result is NaN for others.
        symmetrize_input: whether to use :math:`(A + A^\top) / 2`; otherwise only the lower triangle is read.

    Source: ``jax.lax.linalg.cholesky``.

    >>> cholesky(tnp.asarray([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    x = square("cholesky", x)
    return ops.cholesky(_symmetrized(x) if symmetrize_input else x)


def triangular_solve(
    a: NestedArrayLike,
    b: NestedArrayLike,
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
    a, b = matrices(name, a, b)
    flags = {"lower": bool(lower), "unit_diagonal": bool(unit_diagonal)}
    if left_side:
        x = ops.triangular_solve(a, b, transpose_a=bool(transpose_a), **flags)
    else:  # the transposed system
        turned = transpose(b)
        x = transpose(ops.triangular_solve(a, turned, transpose_a=not transpose_a, **flags))
    return tnp.squeeze(x, -1 if left_side else -2) if is_vector else x


def lu(x: NestedArrayLike) -> tuple[Array, Array, Array]:
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
    return ops.lu(*matrices("lu", x))


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Array:
    """Returns the permutation of ``permutation_size`` rows that successive exchanges amount to.

    >>> lu_pivots_to_permutation(tnp.asarray([2, 2]), 3).tolist()
    [2, 0, 1]
    """
    pivots = tnp.asarray(pivots)
    if not pivots.ndim or pivots.shape[-1] > permutation_size:
        raise ShapeError("lu_pivots_to_permutation", "there are more pivots than rows", got=repr(pivots.aval))
    columns = shapes.iota("int32", permutation_size)
    first = shapes.broadcast(columns, pivots.shape[:-1])
    if not pivots.shape[-1]:
        return first

    def exchange(i: Any, rows: Array) -> Array:
        pivot = slicing.dynamic_slice_in_dim(pivots, i, 1, -1)
        here, other = slicing.dynamic_slice_in_dim(rows, i, 1, -1), tnp.take_along_axis(rows, pivot, -1)
        return tnp.where(columns == i, other, tnp.where(columns == pivot, here, rows))

    return control_flow.fori_loop(0, pivots.shape[-1], exchange, first)


def qr(x: NestedArrayLike, *, pivoting: bool = False, full_matrices: bool = True) -> Any:
    """Returns ``(q, r)`` with ``q @ r = x``, orthonormal columns in ``q`` and an upper triangular ``r``.

    Args:
        x: matrices, float32 or float64.
        pivoting: whether to exchange columns, so that the diagonal of ``r`` descends in size. The result is ``(q, r,
            p)`` then, with ``q @ r = x[:, p]``.
        full_matrices: whether ``q`` is square; otherwise it has at most as many columns as ``x``. A ``q`` with more
            columns than ``x`` has no derivative.

    Source: ``jax.lax.linalg.qr``; Golub and Van Loan, "Matrix Computations" (2013), algorithm 5.4.1.

    >>> q, r, p = qr(tnp.asarray([[1.0, 0.0], [0.0, -3.0]]), pivoting=True)
    >>> p.tolist(), tnp.abs(r).tolist()
    ([1, 0], [[3.0, 0.0], [0.0, 1.0]])
    """
    (x,) = matrices("qr", x)
    if not pivoting:
        return ops.qr(x, full=bool(full_matrices))
    order = column_order(stop_gradient(x))
    columns = tnp.take_along_axis(x, order[..., None, :], -1)
    return (*ops.qr(columns, full=bool(full_matrices)), order)


def cholesky_update(r_matrix: Any, w_vector: Any) -> Array:
    r"""Returns the upper triangular factor of :math:`R^\top R + w w^\top`.

    Args:
        r_matrix: :math:`R`, upper triangular matrices with a positive diagonal.
        w_vector: :math:`w`, vectors.

    Raises:
        ShapeError: if the shapes do not fit.

    Source: Golub and Van Loan, "Matrix Computations" (2013), section 6.5.4; ``jax.lax.linalg.cholesky_update``.

    >>> cholesky_update(tnp.asarray([[3.0]]), tnp.asarray([4.0])).tolist()
    [[5.0]]
    """
    name = "cholesky_update"
    r, w = vectors(name, r_matrix, w_vector)
    r = square(name, r)
    if w.shape[-1] != r.shape[-1]:
        raise ShapeError(name, "the vector must have an element for each row", got=f"{r.aval} and {w.aval}")
    lead = tnp.broadcast_shapes(r.shape[:-2], w.shape[:-1])
    r, w = tnp.broadcast_to(r, (*lead, *r.shape[-2:])), tnp.broadcast_to(w, (*lead, w.shape[-1]))
    if not r.size:
        return r
    index = tnp.arange(r.shape[-1])

    def rotate(w: Array, row: tuple) -> tuple[Array, Array]:
        row, k = row
        at = lambda x: tnp.sum(tnp.where(index == k, x, 0), axis=-1, keepdims=True)
        length = tnp.hypot(at(row), at(w))
        cosine, sine = at(row) / length, at(w) / length
        turned = cosine * w - sine * row
        return tnp.where(index > k, turned, 0), tnp.where(index >= k, cosine * row + sine * w, 0)

    _, rows = control_flow.scan(rotate, w, (tnp.moveaxis(r, -2, 0), index))
    return tnp.moveaxis(rows, 0, -2)


def symmetric_product(
    a_matrix: Any, c_matrix: Any, *, alpha: float = 1.0, beta: float = 0.0, symmetrize_output: bool = False
) -> Array:
    r"""Returns :math:`\alpha A A^\top + \beta C` for a symmetric :math:`C`.

    Args:
        a_matrix: :math:`A`, m x n matrices.
        c_matrix: :math:`C`, m x m matrices.
        alpha: a number.
        beta: a number.
        symmetrize_output: whether to copy the lower triangle into the upper one.

    Raises:
        ShapeError: if the shapes do not fit.

    Source: ``jax.lax.linalg.symmetric_product``.

    >>> symmetric_product(tnp.asarray([[1.0], [2.0]]), tnp.eye(2), beta=3.0).tolist()
    [[4.0, 2.0], [2.0, 7.0]]
    """
    name = "symmetric_product"
    a, c = matrices(name, a_matrix, c_matrix)
    if c.shape != (*a.shape[:-1], a.shape[-2]):
        raise ShapeError(name, "the second matrix must have the shape of the product", got=f"{a.aval} and {c.aval}")
    result = alpha * (a @ tnp.matrix_transpose(a)) + beta * c
    return tnp.tril(result) + tnp.matrix_transpose(tnp.tril(result, -1)) if symmetrize_output else result


def qdwh(
    x: Any,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[int, int] | None = None,
) -> tuple[Array, Array, Array, Array]:
    r"""Returns the polar decomposition :math:`X = U H` by Halley's iteration with dynamic weights.

    Args:
        x: a matrix with independent columns.
        is_hermitian: has no effect, as in JAX.
        max_iterations: the most iterations; 10 by default.
        eps: the precision; by default that of the dtype. Iterations end when one changes :math:`U` by less than its
            norm times :math:`(4 \epsilon)^{1/3}`.
        dynamic_shape: the shape of the upper left part of ``x`` that is meant, with zeros around it.

    Returns:
        ``(u, h, iterations, converged)``: orthonormal columns, a positive definite matrix, how many iterations there
        were, and whether they ended before there were too many.

    Raises:
        ShapeError: if ``x`` has more columns than rows, or is not one matrix.

    Source: Nakatsukasa, Bai and Gygi, "Optimizing Halley's iteration for computing the matrix polar decomposition"
    (2010).

    >>> u, h, _, converged = qdwh(tnp.asarray([[0.0, -2.0], [2.0, 0.0]]))
    >>> [round(float(value), 4) for value in tnp.diag(h)], bool(converged)
    ([2.0, 2.0], True)
    """
    name = "qdwh"
    (x,) = matrices(name, x)
    m, n = x.shape[-2:]
    if x.ndim != 2 or m < n:
        raise ShapeError(name, "there must be one matrix, with at least as many rows as columns", got=repr(x.aval))
    if dynamic_shape is not None:
        rows, columns = dynamic_shape
        x = tnp.where((tnp.arange(m)[:, None] < rows) & (tnp.arange(n) < columns), x, 0)
    x = undifferentiable(name, x)
    eps = float(tnp.finfo(x.dtype).eps) if eps is None else eps
    limit = 10 if max_iterations is None else max_iterations
    # The largest singular value is at most `above`, and the smallest, when scaled, at least `lowest`.
    above = tnp.sqrt(tnp.sum(tnp.abs(x), axis=0).max(initial=0) * tnp.sum(tnp.abs(x), axis=1).max(initial=0))
    start = x / tnp.where(above > 0, above, 1)
    eye = tnp.eye(n, dtype=x.dtype)
    inverse = triangular_solve(ops.qr(start, full=False)[1], eye, left_side=True)
    lowest = 1 / tnp.sqrt(tnp.sum(inverse * inverse))
    lowest = tnp.where(lowest > eps, tnp.minimum(lowest, 1), eps)  # also if that is NaN

    def is_unfinished(state: tuple) -> Array:
        return (state[2] < limit) & tnp.logical_not(state[3])

    def step(state: tuple) -> tuple:
        u, least, count, _ = state
        square = least * least
        root = tnp.cbrt(4 * (1 - square) / (square * square))
        inner = tnp.sqrt(1 + root)
        a = inner + 0.5 * tnp.sqrt(8 - 4 * root + 8 * (2 - square) / (square * inner))
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        q, _ = ops.qr(tnp.concatenate([tnp.sqrt(c) * u, eye]), full=False)
        turned = b / c * u + (a - b / c) / tnp.sqrt(c) * (q[:m] @ q[m:].T)
        least = tnp.minimum(least * (a + b * square) / (1 + c * square), 1)
        change = tnp.sqrt(tnp.sum((turned - u) ** 2))
        nearly = (4 * eps) ** (1 / 3)
        converged = (change <= tnp.sqrt(tnp.sum(turned**2)) * nearly) & (least >= 1 - nearly)
        return turned, least, count + 1, converged

    begin = (start, lowest, tnp.zeros((), "int32"), tnp.zeros((), "bool"))
    u, _, count, converged = control_flow.while_loop(is_unfinished, step, begin) if x.size else begin
    h = u.T @ x
    return u, (h + h.T) / 2, count, converged


def eigh(
    x: NestedArrayLike,
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
    x = square("eigh", x)
    if symmetrize_input:
        x = _symmetrized(x)
    w, v = ops.eigh(x if lower or symmetrize_input else transpose(x), vectors=True)
    if subset_by_index is not None:
        begin, end = subset_by_index
        w, v = w[..., begin:end], v[..., begin:end]
    return v, w


def svd(
    x: NestedArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
) -> Array | tuple[Array, Array, Array]:
    """Returns ``(u, s, vt)`` with ``u * s @ vt = x``, or only ``s``, the singular values in descending order.

    Args:
        x: matrices, float32 or float64.
        full_matrices: whether ``u`` and ``vt`` are square. Then they have no derivative unless ``x`` is square.
        compute_uv: whether to return all three.
        subset_by_index: ``(begin, end)``: the range of singular values to return, in descending order.

    Source: ``jax.lax.linalg.svd``.

    >>> svd(tnp.asarray([[3.0, 0.0], [0.0, -4.0]]), compute_uv=False).tolist()
    [4.0, 3.0]
    """
    (x,) = matrices("svd", x)
    if subset_by_index is not None:
        result = tnp.linalg.svd(x, full_matrices, compute_uv, subset_by_index=subset_by_index)
        return tuple(result) if compute_uv else result
    u, s, vt = ops.svd(x, full=bool(full_matrices and compute_uv), vectors=True)
    return (u, s, vt) if compute_uv else s
