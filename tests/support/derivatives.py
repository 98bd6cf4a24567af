"""The derivative check every op and transform has to pass: finite differences in float64, to order 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tvmfun
from tvmfun import reference, tree

EPSILON = 1e-5


def dot(left, right) -> float:
    """The inner product of two trees."""
    pairs = zip(tree.leaves(left), tree.leaves(right), strict=True)
    return float(sum(np.vdot(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs))


def like(values, seed: int):
    """A random tree of the shapes of ``values``, from -1 to 1."""
    rng = np.random.default_rng(seed)
    return tree.map(lambda x: rng.uniform(-1, 1, np.shape(x)).astype(np.float64), values)


def in_numpy(function: Callable, *arguments: Any) -> Callable:
    """The function of arguments like these, whose ops NumPy computes: for properties of rules, not of machine code."""
    program = tvmfun.trace(function)(*arguments)

    def call(*arguments: Any) -> Any:
        results = reference.evaluate(program, [*program.captured, *tree.leaves(arguments)])
        return tree.unflatten(program.out_tree, results)

    return call


def check(
    function: Callable,
    arguments: Sequence[np.ndarray],
    order: int = 2,
    tolerance: float = 1e-6,
    compiled: bool = False,
) -> None:
    """Compares jvp with central differences and vjp with jvp, and for order 2 those of the vjp, too, in one Program.

    NumPy computes it unless it is compiled, which is faster for loops of many steps: this is about rules, and
    derivatives are compiled where they are compared with JAX's.
    """
    arguments = tree.map(lambda x: np.asarray(x, np.float64), tuple(arguments))
    for i in range(1, order):
        # A cotangent of its own, so that the cotangent's influence is differentiated too.
        arguments = (like(tvmfun.eval_shape(function, *arguments), seed=i + 10), *arguments)
        function = _with_vjp(function)
    direction = like(arguments, seed=order)

    def derivatives(arguments, direction, cotangent):
        value, pull = tvmfun.vjp(function, *arguments)
        return value, tvmfun.jvp(function, arguments, direction)[1], pull(cotangent)

    cotangent = like(tvmfun.eval_shape(function, *arguments), seed=order + 10)
    evaluate = tvmfun.jit(derivatives) if compiled else in_numpy(derivatives, arguments, direction, cotangent)
    moved = [tree.map(lambda x, d, s=sign: x + s * EPSILON * d, arguments, direction) for sign in (1, -1)]
    ahead, behind = (evaluate(point, direction, cotangent)[0] for point in moved)
    numerical = tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)) / (2 * EPSILON), ahead, behind)
    _, tangent, pulled = evaluate(arguments, direction, cotangent)

    np.testing.assert_allclose(dot(pulled, direction), dot(cotangent, tangent), rtol=1e-9, atol=1e-9)
    for i in range(order - 1, 0, -1):
        # Each vjp is less exact than what it is of.
        (numerical, numerical_of_vjp), (tangent, tangent_of_vjp) = numerical, tangent
        _compare(tangent_of_vjp, numerical_of_vjp, tolerance * 10**i)
    _compare(tangent, numerical, tolerance)


def _with_vjp(function: Callable) -> Callable:
    """The function of a cotangent and the arguments that returns the value and the arguments' cotangents."""

    def both(cotangent, *arguments):
        value, pull = tvmfun.vjp(function, *arguments)
        return value, pull(cotangent)

    return both


def _compare(got, numerical, tolerance: float) -> None:
    """Compares trees within a tolerance, relative to the largest element and at least to 1."""
    scale = 1 + max((float(np.abs(n).max()) for n in tree.leaves(numerical) if np.size(n)), default=0.0)
    for ours, expected in zip(tree.leaves(got), tree.leaves(numerical), strict=True):
        np.testing.assert_allclose(np.asarray(ours), expected, rtol=0, atol=tolerance * scale)


def orders(module: Any, numpy: Any, function: Callable, order: int) -> Callable:
    """The value and the derivatives of a function of each element, by reverse mode again and again."""

    def derivative(function: Callable) -> Callable:
        return lambda x: module.grad(lambda x: numpy.sum(function(x)))(x)

    def of(x: Any) -> list:
        results, current = [], function
        for _ in range(order + 1):
            results.append(current(x))
            current = derivative(current)
        return results

    return module.jit(of)
