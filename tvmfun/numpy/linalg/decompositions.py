"""Decompositions of matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import arrays
from tvmfun.numpy.elementwise import multiply
from tvmfun.numpy.promotion import NestedArrayLike
from tvmfun.numpy.shapes import matrix_transpose
from tvmfun.ops import linalg as ops

__all__ = ["cholesky", "eigh", "eigvalsh", "qr", "svd", "svdvals"]


class EighResult(NamedTuple):
    """Result of :func:`eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """Result of :func:`qr`."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """Result of :func:`svd`."""

    U: Array
    S: Array
    Vh: Array


def floats(name: str, *values: Any) -> list[Array]:
    """The arguments as arrays of their common float dtype."""
    return arrays(name, *values, floating=True)


def matrix(name: str, x: NestedArrayLike, *, square: bool = False) -> Array:
    (x,) = floats(name, x)
    if x.ndim < 2:
        raise ShapeError(name, "there must be two axes", got=repr(x.aval), hint="x[None, :]")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(name, "the matrix must be square", got=repr(x.aval))
    return x


def _symmetrized(x: Array) -> Array:
    return multiply(x + matrix_transpose(x), 0.5)


def cholesky(a: NestedArrayLike, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
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
    a = matrix("cholesky", a, square=True)
    result = ops.cholesky(_symmetrized(a) if symmetrize_input else a)
    return matrix_transpose(result) if upper else result


def qr(a: NestedArrayLike, mode: str = "reduced") -> Any:
    """Returns matrices with orthonormal columns and upper triangular ones whose product is ``a``.

    Args:
        a: the matrices.
        mode: ``"reduced"`` for as many columns as the smaller side has, ``"complete"`` for a square matrix, ``"r"``
            for the triangular one alone, ``"raw"`` for ``(h, tau)``: the Householder reflections whose product is the
            first matrix, and the triangular one, in transposed matrices; and the factors of the reflections.
    """
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ArgumentError("qr", "the mode is 'reduced', 'complete', 'r' or 'raw'", got=repr(mode))
    if mode == "raw":
        from tvmfun.lax.linalg.householder import triangularized

        h, taus = triangularized(matrix("qr", a))
        return matrix_transpose(h), taus
    q, r = ops.qr(matrix("qr", a), full=mode == "complete")
    return r if mode == "r" else QRResult(q, r)


def eigh(a: NestedArrayLike, UPLO: str = "L", symmetrize_input: bool = True) -> EighResult:
    """Returns the eigenvalues of symmetric matrices, in ascending order, and their eigenvectors as columns.

    Args:
        a: the matrices.
        UPLO: the triangle that is read, ``"L"`` or ``"U"``, if the matrices are not symmetrized.
        symmetrize_input: whether to take the mean of the matrix and its transpose first.
    """
    a = matrix("eigh", a, square=True)
    if UPLO not in ("L", "U"):
        raise ArgumentError("eigh", "the triangle is 'L' or 'U'", got=repr(UPLO))
    a = _symmetrized(a) if symmetrize_input else matrix_transpose(a) if UPLO == "U" else a
    return EighResult(*ops.eigh(a, vectors=True))


def eigvalsh(a: NestedArrayLike, UPLO: str = "L", *, symmetrize_input: bool = True) -> Array:
    """Returns the eigenvalues of symmetric matrices, in ascending order; see :func:`eigh`."""
    return eigh(a, UPLO, symmetrize_input=symmetrize_input).eigenvalues


def svd(
    a: NestedArrayLike,
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
        compute_uv: whether to return all three, or only the singular values.
        hermitian: whether the matrices are symmetric; has no effect.
        subset_by_index: ``(begin, end)``: the range of singular values to return, in descending order.
    """
    a = matrix("svd", a)
    begin, end = (0, None) if subset_by_index is None else subset_by_index
    if not compute_uv:
        return svdvals(a)[..., begin:end]
    if subset_by_index is None:
        return SVDResult(*ops.svd(a, full=full_matrices, vectors=True))
    u, s, vh = ops.svd(a, full=False, vectors=True)
    return SVDResult(u[..., begin:end], s[..., begin:end], vh[..., begin:end, :])


def svdvals(x: NestedArrayLike, /) -> Array:
    """Returns the singular values, in descending order."""
    return ops.svd(matrix("svdvals", x), full=False, vectors=True)[1]
