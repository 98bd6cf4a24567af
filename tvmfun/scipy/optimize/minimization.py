"""Minimization of functions of a vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ArgumentTypeError, ShapeError
from tvmfun.numpy import linalg
from tvmfun.numpy.promotion import operands
from tvmfun.scipy.optimize.line_search import Point, line_search, point_at
from tvmfun.transforms import value_and_grad
from tvmfun.typing import ArrayLike


class OptimizeResults(NamedTuple):
    """Result of :func:`minimize`.

    Attributes:
        x: the solution.
        success: whether the norm of the gradient is below its tolerance.
        status: 0 for success, 1 if there were too many iterations, 3 if the line search found no acceptable step in a
            bracket, 5 if it found no bracket.
        fun: the value of the function at ``x``.
        jac: the gradient at ``x``.
        hess_inv: the approximate inverse of the Hessian.
        nfev: the number of evaluations of the function.
        njev: the number of evaluations of the gradient.
        nit: the number of iterations.
    """

    x: Array
    success: Array
    status: Array
    fun: Array
    jac: Array
    hess_inv: Array
    nfev: Array
    njev: Array
    nit: Array


class _State(NamedTuple):
    x: Array
    point: Point
    inverse: Array
    evaluations: Array
    iterations: Array
    search_status: Array


def minimize(
    fun: Callable[..., Any],
    x0: ArrayLike,
    args: tuple = (),
    *,
    method: str,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    r"""Minimizes a differentiable function of a vector by the BFGS method.

    Each iteration searches along :math:`-H \nabla f(x)` for a step that satisfies the strong Wolfe conditions, and
    updates :math:`H`, the approximate inverse of the Hessian. It may be compiled and batched; derivatives of results go
    through the iterations, forwards only.

    Args:
        fun: the function, ``fun(x, *args)``, whose result is a scalar.
        x0: where to begin, a vector.
        args: further arguments of the function.
        method: ``"BFGS"``, in any case.
        tol: short for the option ``gtol``.
        options: ``maxiter``, the most iterations (200 for each element of ``x0`` by default); ``gtol``, the tolerance
            for the norm of the gradient (1e-5); ``norm``, the order of that norm (infinity); and
            ``line_search_maxiter``, the most evaluations in an iteration (10).

    Raises:
        ArgumentError: for another method or other options.
        ArgumentTypeError: if ``args`` is not a tuple.
        ShapeError: if ``x0`` is not a vector, or a result not a scalar.

    Source: Nocedal and Wright, "Numerical Optimization" (2006), algorithm 6.1.

    >>> result = minimize(lambda x: ((x - 3.0) ** 2).sum(), tnp.zeros(2), method="BFGS")
    >>> result.x.tolist(), bool(result.success), int(result.status)
    ([3.0, 3.0], True, 0)
    """
    name = "minimize"
    if not isinstance(method, str) or method.lower() != "bfgs":
        raise ArgumentError(name, "the only method is 'BFGS'", got=repr(method), hint="tvmfun.optim.lbfgs")
    if not isinstance(args, tuple):
        raise ArgumentTypeError(name, "args must be a tuple", got=type(args).__name__, hint="args=(value,)")
    (x,) = (tnp.asarray(value) for value in operands(name, tnp.asarray(x0), floating=True))
    if x.ndim != 1:
        raise ShapeError(name, "x0 must be a vector", got=repr(x.aval), hint="flatten_util.ravel_pytree(x0)")
    settings = _settings(name, x.shape[0], tol, options)

    def function(x: Array) -> Array:
        value = tnp.asarray(fun(x, *args))
        if value.ndim:
            raise ShapeError(name, "the result of fun must be a scalar", got=repr(value.aval))
        return tnp.astype(value, x.dtype)

    return _bfgs(value_and_grad(function), x, **settings)


def _settings(name: str, size: int, tol: float | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    defaults = {"maxiter": 200 * size, "gtol": 1e-5 if tol is None else tol, "norm": tnp.inf, "line_search_maxiter": 10}
    given = dict(options or {})
    unknown = set(given) - set(defaults)
    if unknown:
        got = ", ".join(sorted(map(str, unknown)))
        raise ArgumentError(name, f"the options are {', '.join(defaults)}", got=got)
    return defaults | {key: value for key, value in given.items() if value is not None}


def _bfgs(
    of: Callable[[Array], tuple[Array, Array]],
    x: Array,
    *,
    maxiter: Any,
    gtol: Any,
    norm: Any,
    line_search_maxiter: Any,
) -> OptimizeResults:
    eye = tnp.eye(x.shape[0], dtype=x.dtype)

    def converged(state: _State) -> Array:
        return linalg.norm(state.point.gradient, norm) < gtol if x.shape[0] else tnp.ones((), "bool")

    def is_unfinished(state: _State) -> Array:
        return (state.search_status == 0) & (state.iterations < maxiter) & tnp.logical_not(converged(state))

    def step(state: _State) -> _State:
        x, start, inverse, evaluations, iterations, _ = state
        direction = -(inverse @ start.gradient)
        start = start._replace(step=tnp.zeros_like(start.step), slope=tnp.vdot(start.gradient, direction))
        evaluate = lambda step: point_at(of, x, direction, step)
        point, count, status = line_search(evaluate, start, line_search_maxiter)
        moved = point.step * direction
        inverse = _updated(inverse, moved, point.gradient - start.gradient, eye)
        return _State(x + moved, point, inverse, evaluations + count, iterations + 1, status)

    value, gradient = of(x)
    zero, none = tnp.zeros((), x.dtype), tnp.zeros((), "int32")
    state = _State(x, Point(zero, value, gradient, zero), eye, none + 1, none, none)
    state = lax.while_loop(is_unfinished, step, state)
    success = converged(state)
    failure = tnp.where(state.search_status > 0, 2 + state.search_status, 1)
    return OptimizeResults(
        x=state.x,
        success=success,
        status=tnp.where(success, 0, failure),
        fun=state.point.value,
        jac=state.point.gradient,
        hess_inv=state.inverse,
        nfev=state.evaluations,
        njev=state.evaluations,
        nit=state.iterations,
    )


def _updated(inverse: Array, moved: Array, change: Array, eye: Array) -> Array:
    """The approximate inverse of the Hessian after a step that changed the gradient; the same if it cannot be."""
    scale = 1 / tnp.vdot(moved, change)
    left = eye - scale * moved[:, None] * change[None, :]
    updated = left @ inverse @ left.T + scale * moved[:, None] * moved[None, :]
    return tnp.where(tnp.isfinite(scale), updated, inverse)
