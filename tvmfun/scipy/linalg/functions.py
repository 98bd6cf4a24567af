"""Functions of matrices, and matrix equations."""

from __future__ import annotations

import math
from typing import Any

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.lax.staging import compiled
from tvmfun.numpy import linalg
from tvmfun.numpy.promotion import operands
from tvmfun.scipy.linalg.solvers import solve, square
from tvmfun.typing import ArrayLike


def _pade(order: int) -> list[float]:
    """Coefficients of the numerator of the diagonal Padé approximant of the exponential function."""
    f = math.factorial
    return [f(2 * order - j) * f(order) / (f(2 * order) * f(j) * f(order - j)) for j in range(order + 1)]


# The degree for each precision, and up to which norm it is exact to rounding (Higham 2005, table 2.3).
_DEGREES = {4: (7, 3.925724783138660), 8: (13, 5.371920351148152)}


@compiled("max_squarings")
def _expm(a: Array, *, max_squarings: int) -> Array:
    degree, most = _DEGREES[a.dtype.itemsize]
    norm = tnp.max(tnp.sum(tnp.abs(lax.stop_gradient(a)), axis=-2), axis=-1)
    steps = tnp.ceil(tnp.log2(tnp.maximum(norm, most) / most))[..., None, None]
    scaled = a / 2 ** tnp.minimum(steps, max_squarings)
    eye = tnp.broadcast_to(tnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    b, second = _pade(degree), scaled @ scaled
    powers = [eye, second]
    while len(powers) <= degree // 2:
        powers.append(powers[-1] @ second)
    even = sum((b[2 * k] * powers[k] for k in range(1, len(powers))), b[0] * eye)
    odd = scaled @ sum((b[2 * k + 1] * powers[k] for k in range(1, len(powers))), b[1] * eye)
    result = linalg.solve(even - odd, even + odd)
    again = lambda x, k: (tnp.where(k < steps, x @ x, x), None)
    result, _ = lax.scan(again, result, tnp.arange(max_squarings, dtype=a.dtype))
    return tnp.where(steps <= max_squarings, result, math.nan)


def expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16) -> Array:
    r"""Returns the matrix exponential :math:`\sum_k A^k / k!`.

    Args:
        A: square matrices, float32 or float64.
        upper_triangular: has no effect.
        max_squarings: how often a matrix may be halved to make it small; the result is NaN for larger ones.

    Source: Higham, "The scaling and squaring method for the matrix exponential revisited" (2005).

    >>> expm(tnp.zeros((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    a = square("expm", A)
    return a if not a.size else _expm(a, max_squarings=int(max_squarings))


def expm_frechet(A: ArrayLike, E: ArrayLike, *, method: str | None = None, compute_expm: bool = True) -> Any:
    """Returns ``(expm(A), L)``, or only ``L``, the derivative of the matrix exponential in the direction ``E``.

    Args:
        A: square matrices.
        E: matrices of the same shape.
        method: has no effect: both come from the exponential of one matrix of twice the size.
        compute_expm: whether to return both.

    Raises:
        ShapeError: if the shapes differ.

    Source: Van Loan, "Computing integrals involving the matrix exponential" (1978).

    >>> expm_frechet(tnp.zeros((1, 1)), tnp.ones((1, 1)), compute_expm=False).tolist()
    [[1.0]]
    """
    a, e = (tnp.asarray(x) for x in operands("expm_frechet", tnp.asarray(A), tnp.asarray(E), floating=True))
    a, e = square("expm_frechet", a), square("expm_frechet", e)
    if a.shape != e.shape:
        raise ShapeError("expm_frechet", "both matrices must have the same shape", got=f"{a.aval} and {e.aval}")
    size = a.shape[-1]
    both = expm(tnp.concatenate([tnp.concatenate([a, e], -1), tnp.concatenate([tnp.zeros_like(a), a], -1)], -2))
    derivative = both[..., :size, size:]
    return (both[..., :size, :size], derivative) if compute_expm else derivative


def sqrtm(A: ArrayLike, blocksize: int = 1) -> Array:
    r"""Returns the real :math:`X` with :math:`X X = A`, of matrices with no eigenvalue that is 0 or negative.

    Args:
        A: square matrices, float32 or float64. The result is not a root, or not finite, if it would be complex.
        blocksize: has no effect.

    Source: Denman and Beavers, "The matrix sign function and computations in systems" (1976).

    >>> [round(x, 4) for x in sqrtm(tnp.asarray([[4.0, 0.0], [0.0, 9.0]])).ravel().tolist()]
    [2.0, 0.0, 0.0, 3.0]
    """
    a = square("sqrtm", A)
    # A scale near 1 makes the iteration, which doubles the digits, begin nearby.
    norm = tnp.sqrt(tnp.sum(tnp.square(a), axis=(-2, -1), keepdims=True) / max(a.shape[-1], 1))
    scale = lax.stop_gradient(tnp.where(norm > 0, norm, 1.0))

    def step(state: tuple, _: None) -> tuple:
        y, z = state
        return ((y + linalg.inv(z)) / 2, (z + linalg.inv(y)) / 2), None

    eye = tnp.broadcast_to(tnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    (root, _), _ = lax.scan(step, (a / scale, eye), None, length=14 if a.dtype.itemsize == 4 else 18)
    return root * tnp.sqrt(scale)


def polar(
    a: ArrayLike,
    side: str = "right",
    *,
    method: str = "qdwh",
    eps: float | None = None,
    max_iterations: int | None = None,
) -> tuple[Array, Array]:
    """Returns ``(u, p)``, orthonormal rows or columns and a positive semidefinite matrix, with ``a = u @ p``.

    Args:
        a: matrices.
        side: ``"right"``, or ``"left"`` for ``a = p @ u``.
        method: ``"qdwh"`` or ``"svd"``; both are computed from singular values.
        eps: has no effect.
        max_iterations: has no effect.

    Raises:
        ArgumentError: for another side or method.

    >>> u, p = polar(tnp.asarray([[0.0, -2.0], [2.0, 0.0]]))
    >>> [round(abs(x), 4) for x in p.ravel().tolist()]
    [2.0, 0.0, 0.0, 2.0]
    """
    if side not in ("right", "left") or method not in ("qdwh", "svd"):
        got = f"side={side!r}, method={method!r}"
        raise ArgumentError("polar", "the side is 'right' or 'left', and the method 'qdwh' or 'svd'", got=got)
    u, s, vt = linalg.svd(tnp.asarray(a), full_matrices=False)
    if side == "right":
        return u @ vt, tnp.matrix_transpose(vt) * s[..., None, :] @ vt
    return u @ vt, u * s[..., None, :] @ tnp.matrix_transpose(u)


def solve_sylvester(A: ArrayLike, B: ArrayLike, C: ArrayLike, *, method: str = "schur", tol: float = 1e-8) -> Array:
    """Returns the solution of ``A @ X + X @ B = C``.

    Args:
        A: an m x m matrix.
        B: an n x n matrix.
        C: an m x n matrix.
        method: has no effect: it is solved as one system of m n equations.
        tol: has no effect.

    Raises:
        ShapeError: if the shapes do not fit.

    >>> solve_sylvester(tnp.eye(2), tnp.eye(2), 2 * tnp.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    name = "solve_sylvester"
    a, b, c = (tnp.asarray(x) for x in operands(name, *map(tnp.asarray, (A, B, C)), floating=True))
    a, b = square(name, a), square(name, b)
    if a.ndim != 2 or b.ndim != 2 or c.shape != (a.shape[0], b.shape[0]):
        raise ShapeError(name, "the shapes do not fit", got=f"{a.aval}, {b.aval} and {c.aval}")
    m, n = c.shape
    system = tnp.kron(a, tnp.eye(n, dtype=a.dtype)) + tnp.kron(tnp.eye(m, dtype=a.dtype), b.T)
    return tnp.reshape(solve(system, tnp.ravel(c)), (m, n))
