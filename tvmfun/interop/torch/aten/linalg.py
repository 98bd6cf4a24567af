"""Linear algebra on the last two axes: decompositions, determinants and systems of equations.

Matrices that are singular, or not positive definite, give infinities or NaN where PyTorch raises an error.
"""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.interop.torch.aten.table import Family
from tvmfun.lax import linalg as own
from tvmfun.scipy.linalg import expm

aten = Family(__name__)


def _no_failure(x: Any) -> Any:
    """The codes of LAPACK, one per matrix: 0 is success."""
    return tnp.zeros(x.shape[:-2], "int32")


def _symmetric(x: Any, *, upper: bool) -> Any:
    """The symmetric matrix of one triangle, whose derivative is shared by both, as in PyTorch."""
    triangle, rest = (tnp.triu(x), tnp.triu(x, 1)) if upper else (tnp.tril(x), tnp.tril(x, -1))
    mean = (x + x.mT) / 2
    return lax.stop_gradient(triangle + rest.mT - mean) + mean


def _solve_triangular(a: Any, b: Any, *, lower: bool, transpose: bool = False, unit: bool = False) -> Any:
    lead = tnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (tnp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    return own.triangular_solve(a, b, left_side=True, lower=lower, transpose_a=transpose, unit_diagonal=unit)


# ``linalg_cholesky``, ``linalg_inv``, ``linalg_solve``, ``linalg_tensorinv`` and ``linalg_lu_factor`` have rows because
# PyTorch decomposes them into checks with side effects, whose order the exported graph would keep by tokens.


# -- decompositions ----------------------------------------------------------------------------------------------------


@aten.reads("cholesky")
def _cholesky(x: Any, upper: bool = False) -> Any:
    lower = own.cholesky(_symmetric(x, upper=upper), symmetrize_input=False)
    # The derivative with respect to a symmetric matrix uses both triangles.
    return lower.mT if upper else lower


@aten.reads("linalg_cholesky")
def _linalg_cholesky(x: Any, *, upper: bool = False) -> Any:
    return _cholesky(x, upper)


@aten.reads("linalg_cholesky_ex")
def _cholesky_ex(x: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    return _cholesky(x, upper), _no_failure(x)


@aten.reads("cholesky_solve")
def _cholesky_solve(b: Any, factor: Any, upper: bool = False) -> Any:
    halfway = _solve_triangular(factor, b, lower=not upper, transpose=upper)
    return _solve_triangular(factor, halfway, lower=not upper, transpose=not upper)


@aten.reads("cholesky_inverse")
def _cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    unit = tnp.broadcast_to(tnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return _cholesky_solve(unit, factor, upper)


@aten.reads("linalg_qr")
def _qr(x: Any, mode: str = "reduced") -> Any:
    q, r = own.qr(x, full_matrices=mode == "complete")
    return (tnp.zeros(0, x.dtype) if mode == "r" else q), r


@aten.reads("_linalg_svd")
def _svd(x: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    if not compute_uv:
        none = tnp.zeros(0, x.dtype)
        return none, tnp.linalg.svdvals(x), none
    return tuple(tnp.linalg.svd(x, full_matrices=full_matrices))


@aten.reads("_linalg_eigh")
def _eigh(x: Any, UPLO: str = "L", compute_v: bool = True) -> Any:
    values, vectors = tnp.linalg.eigh(_symmetric(x, upper=UPLO.upper() == "U"), symmetrize_input=False)
    return values, (vectors if compute_v else tnp.zeros(0, x.dtype))


@aten.reads("linalg_lu_factor_ex")
def _lu_factor(x: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    factors, pivots, _ = own.lu(x)
    return factors, pivots + 1, _no_failure(x)


@aten.reads("linalg_lu_factor")
def _checked_lu_factor(x: Any, *, pivot: bool = True) -> Any:
    return _lu_factor(x)[:2]


@aten.reads("lu_unpack")
def _lu_unpack(factors: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    rows, columns = factors.shape[-2:]
    least = min(rows, columns)
    order = own.lu_pivots_to_permutation(pivots - 1, rows)
    permutation = tnp.equal(tnp.arange(rows)[:, None], order[..., None, :]).astype(factors.dtype)
    lower = tnp.tril(factors[..., :least], -1) + tnp.eye(rows, least, dtype=factors.dtype)
    none = tnp.zeros(0, factors.dtype)
    data = (lower, tnp.triu(factors[..., :least, :])) if unpack_data else (none, none)
    return (permutation if unpack_pivots else none), *data


@aten.reads("linalg_lu")
def _lu(x: Any, *, pivot: bool = True) -> Any:
    factors, pivots, _ = own.lu(x)
    return _lu_unpack(factors, pivots + 1)


@aten.reads("linalg_householder_product")
def _householder_product(vectors: Any, taus: Any) -> Any:
    return own.householder_product(vectors, taus)


# -- determinants, inverses and systems --------------------------------------------------------------------------------


@aten.reads("_linalg_det")
def _det(x: Any) -> Any:
    factors, pivots, _ = own.lu(x)
    return tnp.linalg.det(x), factors, pivots + 1


@aten.reads("_linalg_slogdet")
def _slogdet(x: Any) -> Any:
    factors, pivots, _ = own.lu(x)
    return *tnp.linalg.slogdet(x), factors, pivots + 1


aten.reads("linalg_inv", "inverse")(tnp.linalg.inv)
aten.reads("linalg_tensorinv")(tnp.linalg.tensorinv)


@aten.reads("linalg_inv_ex")
def _inverse(x: Any, *, check_errors: bool = False) -> Any:
    return tnp.linalg.inv(x), _no_failure(x)


@aten.reads("_linalg_solve_ex")
def _solve(a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    factors, pivots, _ = own.lu(a)
    # As in PyTorch, a batch of vectors has the leading axes of the matrices.
    is_vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    right = b[..., None] if is_vector else b
    x = tnp.linalg.solve(a, right) if left else tnp.linalg.solve(a.mT, right.mT).mT
    return (x[..., 0] if is_vector else x), factors, pivots + 1, _no_failure(a)


@aten.reads("linalg_solve")
def _linalg_solve(a: Any, b: Any, *, left: bool = True) -> Any:
    return _solve(a, b, left=left)[0]


@aten.reads("linalg_lu_solve")
def _lu_solve(factors: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    if not left:  # x a = b is a^T x^T = b^T
        return _lu_solve(factors, pivots, b.mT, adjoint=not adjoint).mT
    order = own.lu_pivots_to_permutation(pivots - 1, factors.shape[-1])
    lead = tnp.broadcast_shapes(factors.shape[:-2], b.shape[:-2])
    b, order = tnp.broadcast_to(b, (*lead, *b.shape[-2:])), tnp.broadcast_to(order, (*lead, order.shape[-1]))
    if adjoint:
        halfway = _solve_triangular(factors, b, lower=False, transpose=True)
        x = _solve_triangular(factors, halfway, lower=True, transpose=True, unit=True)
        return tnp.take_along_axis(x, tnp.argsort(order, axis=-1)[..., None], -2)
    exchanged = tnp.take_along_axis(b, order[..., None], -2)
    halfway = _solve_triangular(factors, exchanged, lower=True, unit=True)
    return _solve_triangular(factors, halfway, lower=False)


@aten.reads("linalg_solve_triangular")
def _linalg_solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if left:
        return _solve_triangular(a, b, lower=not upper, unit=unitriangular)
    return _solve_triangular(a, b.mT, lower=not upper, transpose=True, unit=unitriangular).mT


@aten.reads("triangular_solve")
def _triangular_solve(b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Any:
    x = _solve_triangular(a, b, lower=not upper, transpose=transpose, unit=unitriangular)
    return x, tnp.broadcast_to(a, (*x.shape[:-2], *a.shape[-2:]))


@aten.reads("linalg_pinv.atol_rtol_tensor")
def _pseudoinverse(x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    if rtol is None:
        usual = max(x.shape[-2:]) * float(tnp.finfo(x.dtype).eps)
        rtol = usual if atol is None else tnp.where(atol > 0, 0.0, usual)
    if atol is not None:  # the threshold is the larger one of both
        largest = lax.stop_gradient(tnp.max(tnp.linalg.svdvals(x), axis=-1))
        rtol = tnp.maximum(atol / tnp.where(largest == 0, 1.0, largest), rtol)
    return tnp.linalg.pinv(x, rtol, hermitian)


@aten.reads("linalg_matrix_exp")
def _matrix_exponential(x: Any) -> Any:
    return expm(x)
