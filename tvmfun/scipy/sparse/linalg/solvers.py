"""The solvers that users call."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tvmfun import numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.flatten_util import ravel_pytree
from tvmfun.scipy.sparse.linalg.recurrences import conjugate_gradients, stabilized_gradients
from tvmfun.scipy.sparse.linalg.restarts import batched_cycle, incremental_cycle, minimal_residuals
from tvmfun.scipy.sparse.linalg.systems import problem, solution


def cg(
    A: Callable[[Any], Any] | Any,
    b: Any,
    x0: Any = None,
    *,
    tol: Any = 1e-5,
    atol: Any = 0.0,
    maxiter: Any = None,
    M: Callable[[Any], Any] | Any = None,
) -> tuple[Any, None]:
    r"""Returns the solution of :math:`A x = b` for a symmetric positive definite matrix, by conjugate gradients.

    An iteration applies the matrix once. It ends when :math:`\|b - A x\| \le \max(\mathrm{tol} \|b\|, \mathrm{atol})`.
    Derivatives solve a system with the same matrix, :math:`\bar b = A^{-1} \bar x` and :math:`\bar A = -\bar b x^\top`,
    and are as exact as the tolerance lets both solutions be.

    Args:
        A: a function from a tree like ``b`` to another one, which may use traced values from outside, or a matrix.
        b: the right-hand side, one vector as a tree of arrays.
        x0: where to begin, a tree like ``b``; by default zeros. It has no derivative.
        tol: the tolerance relative to the norm of ``b``.
        atol: the tolerance of the norm of the residual.
        maxiter: the most iterations; by default 10 for each element.
        M: a preconditioner, an approximate inverse of the matrix: a function or a symmetric positive definite matrix.

    Returns:
        The solution, and None. A result that has not converged is the last one; one that met NaN is NaN.

    Raises:
        ShapeError: if a matrix is not square, or shapes do not fit together.
        TreeError: if ``x0`` or ``A(b)`` have another structure than ``b``.
        ArgumentTypeError: if ``A`` or ``M`` is neither a function nor a matrix.

    Source: ``jax.scipy.sparse.linalg.cg``.

    >>> x, _ = cg(tnp.asarray([[2.0, 1.0], [1.0, 2.0]]), tnp.asarray([5.0, 4.0]))
    >>> [round(value, 4) for value in x.tolist()]
    [2.0, 1.0]
    >>> x, _ = cg(lambda x: {"u": 2.0 * x["u"], "v": 4.0 * x["v"]}, {"u": tnp.ones(2), "v": 2.0})
    >>> x["u"].round(4).tolist(), round(float(x["v"]), 4)
    ([0.5, 0.5], 0.5)
    """
    return solution(conjugate_gradients, problem("cg", A, b, x0, tol, atol, maxiter, M), symmetric=True), None


def bicgstab(
    A: Callable[[Any], Any] | Any,
    b: Any,
    x0: Any = None,
    *,
    tol: Any = 1e-5,
    atol: Any = 0.0,
    maxiter: Any = None,
    M: Callable[[Any], Any] | Any = None,
) -> tuple[Any, None]:
    r"""Returns the solution of :math:`A x = b` by stabilized biconjugate gradients.

    The matrix may be any that is not singular, though not every one is solved. An iteration applies it twice.
    Derivatives solve a transposed system, :math:`\bar b = A^{-\top} \bar x`, with the transposed preconditioner.

    Args:
        A: a function from a tree like ``b`` to another one, or a matrix.
        b: the right-hand side, one vector as a tree of arrays.
        x0: where to begin; see :func:`cg`, as for the next four.
        tol: the tolerance relative to the norm of ``b``.
        atol: the tolerance of the norm of the residual.
        maxiter: the most iterations; by default 10 for each element.
        M: a preconditioner.

    Returns:
        The solution, and None.

    Raises:
        ShapeError, TreeError, ArgumentTypeError: as for :func:`cg`.

    Source: ``jax.scipy.sparse.linalg.bicgstab``.

    >>> x, _ = bicgstab(tnp.asarray([[2.0, 1.0], [0.0, 2.0]]), tnp.asarray([5.0, 2.0]))
    >>> [round(value, 4) for value in x.tolist()]
    [2.0, 1.0]
    """
    return solution(stabilized_gradients, problem("bicgstab", A, b, x0, tol, atol, maxiter, M), symmetric=False), None


def gmres(
    A: Callable[[Any], Any] | Any,
    b: Any,
    x0: Any = None,
    *,
    tol: Any = 1e-5,
    atol: Any = 0.0,
    restart: int = 20,
    maxiter: Any = None,
    M: Callable[[Any], Any] | Any = None,
    solve_method: str = "batched",
) -> tuple[Any, Array]:
    r"""Returns the solution of :math:`A x = b` by generalized minimal residuals.

    A cycle finds the solution with the smallest residual in the space of :math:`r, M A r, \ldots, (M A)^{k-1} r` for
    the preconditioned residual :math:`r`, and applies the matrix :math:`k + 1` times. Cycles end when
    :math:`\|b - A x\| \le \max(\mathrm{tol} \|b\|, \mathrm{atol})`, or when the residual no longer becomes smaller.
    Derivatives solve a transposed system, as those of :func:`bicgstab`.

    Args:
        A: a function from a tree like ``b`` to another one, or a matrix.
        b: the right-hand side, one vector as a tree of arrays.
        x0: where to begin; see :func:`cg`, as for the next two and for ``M``.
        tol: the tolerance relative to the norm of ``b``.
        atol: the tolerance of the norm of the residual.
        restart: the dimension :math:`k` of the space, at most the number of elements.
        maxiter: the most cycles; by default 10 for each element.
        M: a preconditioner, on the left.
        solve_method: ``"batched"`` solves for the result once at the end of each cycle; ``"incremental"`` with each
            dimension, so that a cycle ends as soon as its residual is small enough.

    Returns:
        The solution, and an integer: 0, or -1 if the solution has a NaN.

    Raises:
        ArgumentError: for another ``solve_method``, or if ``restart`` is not a positive integer.
        ShapeError, TreeError, ArgumentTypeError: as for :func:`cg`.

    Source: ``jax.scipy.sparse.linalg.gmres``.

    >>> x, info = gmres(tnp.asarray([[0.0, 1.0], [2.0, 0.0]]), tnp.asarray([1.0, 4.0]))
    >>> [round(value, 4) for value in x.tolist()], int(info)
    ([2.0, 1.0], 0)
    """
    cycles = {"batched": batched_cycle, "incremental": incremental_cycle}
    if not isinstance(solve_method, str) or solve_method not in cycles:
        what = "solve_method must be 'batched' or 'incremental'"
        raise ArgumentError("gmres", what, got=repr(solve_method), hint="solve_method='batched'")
    if not hasattr(restart, "__index__") or operator.index(restart) < 1:
        raise ArgumentError("gmres", "restart must be a positive integer", got=repr(restart), hint="restart=20")
    given = problem("gmres", A, b, x0, tol, atol, maxiter, M)
    dimension = min(operator.index(restart), sum(leaf.size for leaf in tree.leaves(given.b)))
    iterate = lambda system: minimal_residuals(system, cycles[solve_method], dimension)
    x = solution(iterate, given, symmetric=False)
    return x, tnp.where(tnp.any(tnp.isnan(ravel_pytree(x)[0])), -1, 0)
