"""Solutions of equations, with the derivatives that follow from the equations and not from the steps to a solution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfun import numpy as tnp
from tvmfun import tree
from tvmfun.core.derivative import trace_leaves
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.promotion import NestedArrayLike
from tvmfun.ops import control

__all__ = ["custom_linear_solve", "custom_root"]


def _closed(name: str, function: Callable, example: Any) -> tuple[Callable, list[Any]]:
    """A function of the values that another one has captured and its argument, and these values."""
    leaves, structure = tree.flatten(example)
    avals = [tnp.asarray(leaf).aval for leaf in leaves]
    program = trace_leaves(lambda *x: function(tree.unflatten(structure, x)), avals, name)
    if [aval.shape for aval in program.out_avals] != [aval.shape for aval in avals]:
        got = ", ".join(map(repr, program.out_avals))
        raise ShapeError(name, "the function must map arrays to arrays of the same shapes", got=got)
    inner, captured = control.closing(program)

    def closed(values: Any, x: Any) -> Any:
        return tree.unflatten(structure, inner.evaluate([*values, *tree.leaves(x)]))

    return closed, list(captured)


def _with_aux(result: Any, has_aux: bool) -> tuple[Any, Any]:
    return result if has_aux else (result, None)


def custom_root(
    f: Callable[[Any], Any],
    initial_guess: Any,
    solve: Callable[[Callable, Any], Any],
    tangent_solve: Callable[[Callable, Any], Any],
    has_aux: bool = False,
) -> Any:
    r"""Returns a root of a function, whose derivative is that of the implicit function.

    With :math:`f(x, \theta) = 0` it is :math:`dx = -J^{-1} \frac{\partial f}{\partial \theta} d\theta`, however the
    root was found. The derivative with respect to the guess is 0.

    Args:
        f: ``x -> residual``, trees of the same structure; it may use traced values from outside.
        initial_guess: where to begin.
        solve: ``(f, initial_guess) -> root``, with ``has_aux`` ``(root, aux)``; it need not have a derivative.
        tangent_solve: ``(g, y) -> x`` with ``g(x) = y`` for a linear function ``g``.
        has_aux: whether ``solve`` returns more, which has no derivative.

    Source: ``jax.lax.custom_root``.

    >>> import tvmfun
    >>> def newton(f, x):
    ...     for _ in range(20):
    ...         x = x - f(x) / tvmfun.grad(f)(x)
    ...     return x
    >>> root = lambda a: custom_root(lambda x: x * x - a, 1.0, newton, lambda g, y: y / g(1.0))
    >>> float(tvmfun.grad(root)(4.0))
    0.25
    """
    from tvmfun.transforms import custom_jvp, jvp

    guess = tree.map(tnp.asarray, initial_guess)
    closed, captured = _closed("custom_root", f, guess)

    @custom_jvp
    def root(captured: Any, guess: Any) -> Any:
        return _with_aux(solve(lambda x: closed(captured, x), guess), has_aux)

    @root.defjvp
    def root_jvp(primals: Any, tangents: Any) -> Any:
        captured, guess = primals
        x, aux = root(captured, guess)
        _, residual = jvp(lambda values: closed(values, x), (captured,), (tangents[0],))
        linear = lambda dx: jvp(lambda x: closed(captured, x), (x,), (dx,))[1]
        moved = tree.map(tnp.negative, tangent_solve(linear, residual))
        return (x, aux), (moved, tree.map(tnp.zeros_like, aux))

    x, aux = root(captured, guess)
    return (x, aux) if has_aux else x


def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: NestedArrayLike,
    solve: Callable[[Callable, Any], Any],
    transpose_solve: Callable[[Callable, Any], Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    r"""Returns the solution of a linear equation, whose derivative solves another one.

    With :math:`A x = b` it is :math:`\bar b = A^{-\top} \bar x` and :math:`\bar A = -\bar b x^\top`, however the
    solution was found.

    Args:
        matvec: the linear function; it may use traced values from outside.
        b: the right side.
        solve: ``(matvec, b) -> x``, with ``has_aux`` ``(x, aux)``; it need not have a derivative.
        transpose_solve: ``(vecmat, b) -> x`` for the transposed function; needed for derivatives.
        symmetric: whether the function is its own transpose, so that ``solve`` will do.
        has_aux: whether ``solve`` returns more, which has no derivative.

    Source: ``jax.lax.custom_linear_solve``.

    >>> solve = lambda matvec, b: b / matvec(1.0)
    >>> float(custom_linear_solve(lambda x: 4.0 * x, 2.0, solve, symmetric=True))
    0.5
    """
    from tvmfun.transforms import custom_vjp, linear_transpose, vjp

    b = tree.map(tnp.asarray, b)
    closed, captured = _closed("custom_linear_solve", matvec, b)
    transposed = solve if symmetric else transpose_solve

    @custom_vjp
    def solution(captured: Any, b: Any) -> Any:
        return _with_aux(solve(lambda x: closed(captured, x), b), has_aux)

    def forward(captured: Any, b: Any) -> Any:
        x, aux = solution(captured, b)
        return (x, aux), (captured, x)

    def backward(kept: Any, cotangents: Any) -> Any:
        captured, x = kept
        if transposed is None:
            hint = "transpose_solve=, or symmetric=True"
            raise ArgumentError("custom_linear_solve", "a derivative needs the transposed solution", hint=hint)
        function = lambda x: closed(captured, x)
        turned = function if symmetric else lambda y: linear_transpose(function, x)(y)[0]
        result = custom_linear_solve(turned, cotangents[0], transposed, solve, symmetric, has_aux)
        moved = result[0] if has_aux else result
        _, pull = vjp(lambda values: closed(values, x), captured)
        return tree.map(tnp.negative, pull(moved)[0]), moved

    solution.defvjp(forward, backward)
    x, aux = solution(captured, b)
    return (x, aux) if has_aux else x
