"""Decompositions, and linear systems solved with them."""

from __future__ import annotations

from typing import Any

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.lax.linalg.arguments import matrices, square
from tvmfun.numpy import linalg
from tvmfun.numpy.promotion import operands
from tvmfun.typing import ArrayLike


def _system(name: str, a: Any, b: Any) -> tuple[Array, Array, bool]:
    """Square matrices, right-hand sides as matrices with the same leading axes, and whether these were vectors."""
    a, b = (tnp.asarray(x) for x in operands(name, tnp.asarray(a), tnp.asarray(b), floating=True))
    a = square(name, a)
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    if is_vector:
        b = b[..., None]
    if not b.ndim or b.shape[-2] != a.shape[-1]:
        raise ShapeError(name, "there must be a right-hand side for each equation", got=f"{a.aval} and {b.aval}")
    lead = tnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return tnp.broadcast_to(a, (*lead, *a.shape[-2:])), tnp.broadcast_to(b, (*lead, *b.shape[-2:])), is_vector


def _triangular(a: Array, b: Array, *, lower: bool, transpose: bool = False, unit: bool = False) -> Array:
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=lower, transpose_a=transpose, unit_diagonal=unit)


def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Array:
    """Returns the solution of ``a @ x = b`` for a triangular matrix.

    Args:
        a: triangular matrices; the other triangle is not read.
        b: the right-hand sides, vectors or matrices.
        trans: 0 or ``"N"``, or 1, ``"T"``, 2 or ``"C"`` to solve with the transposed matrix.
        lower: whether the matrix is lower triangular.
        unit_diagonal: whether its diagonal is taken for ones.
        overwrite_b: has no effect, as the next two.
        debug: has no effect.
        check_finite: has no effect.

    Raises:
        ArgumentError: for another ``trans``.

    >>> solve_triangular(tnp.asarray([[2.0, 1.0], [0.0, 1.0]]), tnp.asarray([3.0, 1.0])).tolist()
    [1.0, 1.0]
    """
    a, b, is_vector = _system("solve_triangular", a, b)
    x = _triangular(a, b, lower=bool(lower), transpose=_transposes("solve_triangular", trans), unit=bool(unit_diagonal))
    return x[..., 0] if is_vector else x


def _transposes(name: str, trans: Any) -> bool:
    known = {0: False, 1: True, 2: True, "N": False, "T": True, "C": True}
    if not isinstance(trans, int | str) or trans not in known:
        raise ArgumentError(name, "trans must be 0, 1, 2, 'N', 'T' or 'C'", got=repr(trans))
    return known[trans]


def cholesky(a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Returns the upper triangular ``r`` with ``r.T @ r = a``, or the lower ``l`` with ``l @ l.T = a``.

    Args:
        a: symmetric positive definite matrices. The result is NaN for others.
        lower: which one.
        overwrite_a: has no effect.
        check_finite: has no effect.

    >>> cholesky(tnp.asarray([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 1.0], [0.0, 2.0]]
    """
    factor = linalg.cholesky(square("cholesky", a))
    return factor if lower else tnp.matrix_transpose(factor)


def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, bool]:
    """Returns ``(c, lower)`` for :func:`cho_solve`, with :func:`cholesky` of ``a``.

    >>> factor, lower = cho_factor(tnp.asarray([[4.0]]))
    >>> factor.tolist(), lower
    ([[2.0]], False)
    """
    return cholesky(square("cho_factor", a), lower=lower), lower


def cho_solve(
    c_and_lower: tuple[Any, bool], b: ArrayLike, overwrite_b: bool = False, check_finite: bool = True
) -> Array:
    """Returns the solution of ``a @ x = b`` from :func:`cho_factor` of ``a``.

    >>> cho_solve(cho_factor(tnp.asarray([[4.0]])), tnp.asarray([2.0])).tolist()
    [0.5]
    """
    c, lower = c_and_lower
    c, b, is_vector = _system("cho_solve", c, b)
    y = _triangular(c, b, lower=bool(lower), transpose=not lower)
    x = _triangular(c, y, lower=bool(lower), transpose=bool(lower))
    return x[..., 0] if is_vector else x


def lu(a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Returns ``(p, l, u)`` with ``a = p @ l @ u``, a permutation, a unit lower and an upper triangular matrix.

    Args:
        a: matrices.
        permute_l: whether to return ``(p @ l, u)``.
        overwrite_a: has no effect.
        check_finite: has no effect.

    >>> [x.tolist() for x in lu(tnp.asarray([[0.0, 2.0], [1.0, 0.0]]))[::2]]
    [[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 2.0]]]
    """
    (a,) = matrices("lu", a)
    factors, _, permutation = lax.linalg.lu(a)
    rows, columns = a.shape[-2:]
    size = min(rows, columns)
    lower = tnp.tril(factors[..., :, :size], -1) + tnp.eye(rows, size, dtype=a.dtype)
    upper = tnp.triu(factors[..., :size, :])
    order = tnp.astype(permutation[..., None, :] == tnp.arange(rows)[:, None], a.dtype)
    return (order @ lower, upper) if permute_l else (order, lower, upper)


def lu_factor(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Array, Array]:
    """Returns ``(lu, pivots)`` for :func:`lu_solve`: both factors in one matrix, and with which row each was exchanged.

    >>> [x.tolist() for x in lu_factor(tnp.asarray([[0.0, 2.0], [1.0, 0.0]]))]
    [[[1.0, 0.0], [0.0, 2.0]], [1, 1]]
    """
    factors, pivots, _ = lax.linalg.lu(square("lu_factor", a))
    return factors, pivots


def lu_solve(
    lu_and_piv: tuple[Any, Any], b: ArrayLike, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Array:
    """Returns the solution of ``a @ x = b``, or of ``a.T @ x = b`` for ``trans=1``, from :func:`lu_factor` of ``a``.

    >>> lu_solve(lu_factor(tnp.asarray([[0.0, 2.0], [1.0, 0.0]])), tnp.asarray([2.0, 3.0])).tolist()
    [3.0, 1.0]
    """
    factors, pivots = lu_and_piv
    turned = _transposes("lu_solve", trans)
    factors, b, is_vector = _system("lu_solve", factors, b)
    size = factors.shape[-1]
    order = lax.linalg.lu_pivots_to_permutation(pivots, size)
    order = tnp.broadcast_to(order, (*b.shape[:-2], size))
    if turned:
        y = _triangular(factors, b, lower=False, transpose=True)
        y = _triangular(factors, y, lower=True, transpose=True, unit=True)
        x = tnp.take_along_axis(y, tnp.argsort(order, axis=-1)[..., None], axis=-2)
    else:
        y = tnp.take_along_axis(b, order[..., None], axis=-2)
        x = _triangular(factors, _triangular(factors, y, lower=True, unit=True), lower=False)
    return x[..., 0] if is_vector else x


def solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Array:
    """Returns the solution of ``a @ x = b``.

    Args:
        a: square matrices.
        b: the right-hand sides, vectors or matrices.
        lower: which triangle is read of positive definite matrices.
        overwrite_a: has no effect, as the next three.
        overwrite_b: has no effect.
        debug: has no effect.
        check_finite: has no effect.
        assume_a: ``"pos"`` for positive definite matrices; ``"gen"``, ``"sym"`` and ``"her"`` are the same.

    Raises:
        ArgumentError: for another ``assume_a``.

    >>> solve(tnp.asarray([[2.0, 0.0], [0.0, 4.0]]), tnp.asarray([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise ArgumentError("solve", "assume_a must be 'gen', 'sym', 'her' or 'pos'", got=repr(assume_a))
    if assume_a != "pos":
        return lu_solve(lu_factor(a), b)
    a = square("solve", a)
    strict = tnp.tril(a, -1) if lower else tnp.triu(a, 1)
    full = strict + tnp.matrix_transpose(strict) + tnp.eye(a.shape[-1], dtype=a.dtype) * a
    return cho_solve(cho_factor(full, lower=lower), b)


def inv(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Returns the inverses of matrices.

    >>> inv(tnp.asarray([[2.0]])).tolist()
    [[0.5]]
    """
    return linalg.inv(square("inv", a))


def det(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Returns the determinants of matrices.

    >>> float(det(tnp.asarray([[2.0, 0.0], [0.0, 3.0]])))
    6.0
    """
    return linalg.det(square("det", a))


def qr(
    a: ArrayLike,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> Any:
    """Returns ``(q, r)`` with ``q @ r = a``, orthonormal columns in ``q`` and an upper triangular ``r``.

    Args:
        a: matrices.
        overwrite_a: has no effect.
        lwork: has no effect.
        mode: ``"full"`` for a square ``q``, ``"economic"`` for one with at most the columns of ``a``, or ``"r"`` for
            ``(r,)`` alone.
        pivoting: whether to exchange columns, so that the diagonal of ``r`` descends in size. The result has their
            order, ``p``, as its last element then, with ``q @ r = a[:, p]``.
        check_finite: has no effect.

    Raises:
        ArgumentError: for another mode.

    >>> [x.shape for x in qr(tnp.ones((3, 2)), mode="economic")]
    [(3, 2), (2, 2)]
    """
    if mode not in ("full", "economic", "r"):
        raise ArgumentError("qr", "the mode must be 'full', 'economic' or 'r'", got=repr(mode))
    result = lax.linalg.qr(*matrices("qr", a), pivoting=bool(pivoting), full_matrices=mode != "economic")
    return result[1:] if mode == "r" else result


def qr_multiply(
    a: ArrayLike,
    c: ArrayLike,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Array, ...]:
    """Returns ``(c @ q, r)`` or ``(q @ c, r)`` of the decomposition ``q @ r = a`` that :func:`qr` calls economic.

    Args:
        a: matrices.
        c: matrices, or a vector.
        mode: ``"right"`` for ``c @ q``, ``"left"`` for ``q @ c``.
        pivoting: whether to exchange columns of ``a``; their order is the third element of the result.
        conjugate: has no effect, as the next two.
        overwrite_a: has no effect.
        overwrite_c: has no effect.

    Raises:
        ArgumentError: for another mode.
        ShapeError: if the shapes do not fit.

    >>> product, r = qr_multiply(tnp.asarray([[3.0], [4.0]]), tnp.asarray([1.0, 0.0]))
    >>> [round(float(x), 4) for x in (product[0], r[0, 0])]
    [-0.6, -5.0]
    """
    name = "qr_multiply"
    if mode not in ("right", "left"):
        raise ArgumentError(name, "the mode must be 'right' or 'left'", got=repr(mode))
    a, c = (tnp.asarray(x) for x in operands(name, tnp.asarray(a), tnp.asarray(c), floating=True))
    (a,) = matrices(name, a)
    q, *rest = qr(a, mode="economic", pivoting=pivoting)
    fits = c.ndim and c.shape[-1 if mode == "right" or c.ndim == 1 else -2] == q.shape[-2 if mode == "right" else -1]
    if not fits:
        raise ShapeError(name, "the second matrix does not fit the orthogonal one", got=f"{a.aval} and {c.aval}")
    return (c @ q if mode == "right" else q @ c, *rest)


def hessenberg(a: ArrayLike, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Returns ``h``, or ``(h, q)`` with ``a = q @ h @ q.T``, where ``h`` has zeros below the first subdiagonal.

    Args:
        a: square matrices.
        calc_q: whether to return ``q``, which is orthogonal, too.
        overwrite_a: has no effect.
        check_finite: has no effect.

    Raises:
        ShapeError: if the matrices are not square.

    >>> h = hessenberg(tnp.asarray([[1.0, 2.0, 3.0], [3.0, 1.0, 1.0], [4.0, 1.0, 1.0]]))
    >>> [round(float(x), 4) for x in h[:, 0]]
    [1.0, -5.0, 0.0]
    """
    a = square("hessenberg", a)
    reduced, taus = lax.linalg.hessenberg(a)
    h = tnp.triu(reduced, -1)
    if not calc_q:
        return h
    size = a.shape[-1]
    if size < 2:
        return h, tnp.ones_like(h)
    inner = lax.linalg.householder_product(reduced[..., 1:, :-1], taus)
    q = tnp.pad(inner, (*(((0, 0),) * (a.ndim - 2)), (1, 0), (1, 0)))
    return h, q.at[..., 0, 0].set(1)


def schur(a: ArrayLike, output: str = "real") -> tuple[Array, Array]:
    """Returns ``(t, z)`` with ``a = z @ t @ z.T``, an orthogonal ``z``, and blocks on the diagonal of ``t``.

    Args:
        a: square matrices.
        output: only ``"real"``: ``t`` is upper triangular but for a block of two rows and columns on the diagonal for
            each pair of complex eigenvalues.

    Raises:
        ArgumentError: for another output.
        ShapeError: if the matrices are not square.

    >>> t, z = schur(tnp.asarray([[0.0, -1.0], [1.0, 0.0]]))
    >>> t.tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    if output != "real":
        raise ArgumentError("schur", "the output must be 'real': there are no complex numbers", got=repr(output))
    return lax.linalg.schur(square("schur", a))


def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """Returns ``(u, s, vt)`` with ``u * s @ vt = a``, or only ``s``, the singular values in descending order.

    Args:
        a: matrices.
        full_matrices: whether ``u`` and ``vt`` are square.
        compute_uv: whether to return all three.
        overwrite_a: has no effect, as the next two.
        check_finite: has no effect.
        lapack_driver: has no effect.

    >>> svd(tnp.asarray([[3.0, 0.0], [0.0, -4.0]]), compute_uv=False).tolist()
    [4.0, 3.0]
    """
    return lax.linalg.svd(*matrices("svd", a), full_matrices=full_matrices, compute_uv=compute_uv)


def eigh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: Any = None,
    type: int = 1,
    check_finite: bool = True,
) -> Any:
    """Returns ``(w, v)``, the eigenvalues of symmetric matrices in ascending order and the eigenvectors as columns.

    Args:
        a: symmetric matrices.
        b: only None, as in JAX: the second matrix of a generalized problem.
        lower: which triangle is read.
        eigvals_only: whether to return only ``w``.
        overwrite_a: has no effect, as the next two.
        overwrite_b: has no effect.
        turbo: has no effect.
        eigvals: only None, as in JAX.
        type: only 1.
        check_finite: has no effect.

    Raises:
        ArgumentError: for an option that is not supported.

    >>> eigh(tnp.asarray([[2.0, 0.0], [0.0, 1.0]]), eigvals_only=True).tolist()
    [1.0, 2.0]
    """
    if b is not None or eigvals is not None or type != 1:
        raise ArgumentError("eigh", "generalized problems and ranges of eigenvalues are not supported")
    a = square("eigh", a)
    v, w = lax.linalg.eigh(a, lower=lower, symmetrize_input=False)
    return w if eigvals_only else (w, v)


def eigh_tridiagonal(
    d: ArrayLike,
    e: ArrayLike,
    *,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[float, float] | None = None,
    tol: float | None = None,
) -> Any:
    """Returns the eigenvalues, and eigenvectors, of symmetric tridiagonal matrices, which are made dense.

    Args:
        d: the diagonal.
        e: the elements next to it.
        eigvals_only: whether to return only the eigenvalues.
        select: ``"a"`` for all, or ``"i"`` for those with the indices from ``select_range[0]`` to ``select_range[1]``.
        select_range: these indices.
        tol: has no effect.

    Raises:
        ArgumentError: for another selection.

    >>> eigh_tridiagonal(tnp.asarray([2.0, 1.0]), tnp.asarray([0.0]), eigvals_only=True).tolist()
    [1.0, 2.0]
    """
    if select not in ("a", "i") or (select == "i") != (select_range is not None):
        raise ArgumentError("eigh_tridiagonal", "select must be 'a', or 'i' with a range", got=repr(select))
    d, e = (tnp.asarray(x) for x in operands("eigh_tridiagonal", d, e, floating=True))
    w, v = eigh(tnp.diag(d) + tnp.diag(e, 1) + tnp.diag(e, -1))
    if select_range is not None:
        chosen = slice(int(select_range[0]), int(select_range[1]) + 1)
        w, v = w[chosen], v[:, chosen]
    return w if eigvals_only else (w, v)
