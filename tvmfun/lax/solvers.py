"""Solutions of equations, with the derivatives that follow from the equations and not from the steps to a solution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvmfun import numpy as tnp
from tvmfun import tree
from tvmfun.core.derivative import trace_leaves
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import abstract
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


def _closure_converted(function: Callable, *examples: Any) -> tuple[Callable, list[Any]]:
    """A function of the traced values that another one has captured and its arguments, and these values."""
    from tvmfun.transforms import closure_convert

    if not is_tracing():
        return lambda _, *args: function(*args), []
    structures = [tree.structure(example) for example in examples]
    of_leaves = lambda *leaves: function(*map(tree.unflatten, structures, leaves))
    converted, captured = closure_convert(of_leaves, *map(tree.leaves, examples))
    return lambda values, *args: converted(*map(tree.leaves, args), *values), captured


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

    def find(captured: Any, guess: Any) -> Any:
        return _with_aux(solve(lambda x: closed(captured, x), guess), has_aux)

    def find_tangent(captured: Any, x: Any, y: Any) -> Any:
        return tangent_solve(lambda dx: jvp(lambda x: closed(captured, x), (x,), (dx,))[1], y)

    solver, consts = _closure_converted(find, captured, guess)
    tangent_solver, tangent_consts = _closure_converted(find_tangent, captured, guess, guess)

    @custom_jvp
    def root(captured: Any, consts: Any, tangent_consts: Any, guess: Any) -> Any:
        return solver(consts, captured, guess)

    @root.defjvp
    def root_jvp(primals: Any, tangents: Any) -> Any:
        captured, _, tangent_consts, _ = primals
        x, aux = root(*primals)
        _, residual = jvp(lambda values: closed(values, x), (captured,), (tangents[0],))
        moved = tree.map(tnp.negative, tangent_solver(tangent_consts, captured, x, residual))
        return (x, aux), (moved, tree.map(tnp.zeros_like, aux))

    x, aux = root(captured, consts, tangent_consts, guess)
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
    from tvmfun.transforms import linear_transpose

    b = tree.map(tnp.asarray, b)
    closed, captured = _closed("custom_linear_solve", matvec, b)

    types = tree.map(abstract, b)  # in whose value a function that calls this one may be linear

    def turned(captured: Any, y: Any) -> Any:
        return linear_transpose(lambda x: closed(captured, x), types)(y)[0]

    def find(captured: Any, b: Any) -> Any:
        return _with_aux(solve(lambda x: closed(captured, x), b), has_aux)

    solver = _Solver(closed, *_closure_converted(find, captured, b))
    transposed = solver if symmetric else None
    if transpose_solve is not None and not symmetric:

        def find_transposed(captured: Any, b: Any) -> Any:
            return _with_aux(transpose_solve(lambda y: turned(captured, y), b), has_aux)

        transposed = _Solver(turned, *_closure_converted(find_transposed, captured, b))
    x, aux = _solution(solver, transposed, captured, b)
    return (x, aux) if has_aux else x


class _Solver(NamedTuple):
    """A linear function of captured values and a vector, and a solver of its equations, with what that has captured."""

    apply: Callable
    find: Callable
    consts: list[Any]


def _solution(solver: _Solver, transposed: _Solver | None, captured: Any, b: Any) -> Any:
    """The solution and more that the solver returns, with the derivative by the transposed solver."""
    from tvmfun.transforms import custom_vjp, vjp

    @custom_vjp
    def solution(captured: Any, consts: Any, transposed_consts: Any, b: Any) -> Any:
        return solver.find(consts, captured, b)

    def forward(captured: Any, consts: Any, transposed_consts: Any, b: Any) -> Any:
        x, aux = solution(captured, consts, transposed_consts, b)
        return (x, aux), (captured, consts, transposed_consts, x)

    def backward(kept: Any, cotangents: Any) -> Any:
        captured, consts, transposed_consts, x = kept
        if transposed is None:
            hint = "transpose_solve=, or symmetric=True"
            raise ArgumentError("custom_linear_solve", "a derivative needs the transposed solution", hint=hint)
        first, second = solver._replace(consts=consts), transposed._replace(consts=transposed_consts)
        moved, _ = _solution(second, first, captured, cotangents[0])
        _, pull = vjp(lambda values: solver.apply(values, x), captured)
        return tree.map(tnp.negative, pull(moved)[0]), None, None, moved

    solution.defvjp(forward, backward)
    return solution(captured, solver.consts, transposed.consts if transposed else [], b)
