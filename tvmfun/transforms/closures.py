"""Functions whose derivatives or closed-over values are results: ``custom_gradient`` and ``closure_convert``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.derivative import trace_leaves
from tvmfun.core.leaf import abstract
from tvmfun.errors import GradientError
from tvmfun.ops.control import closing
from tvmfun.transforms.custom import custom_vjp
from tvmfun.typing import PyTree


def custom_gradient(fun: Callable[..., tuple[PyTree, Callable]]) -> Callable[..., Any]:
    """Makes a function with a custom reverse mode derivative: ``fun`` returns ``(result, vjp)``.

    Args:
        fun: returns the result and a function from a cotangent of the result to the cotangent of the argument, or to
            a tuple of the cotangents of all arguments. It is called again in the backward pass.

    Raises:
        GradientError: if ``fun`` does not return a pair.

    Source: follows ``jax.custom_gradient``.

    >>> import tvmfun
    >>> @custom_gradient
    ... def square(x):
    ...     return x * x, lambda g: 10.0 * g * x
    >>> float(square(3.0)), float(tvmfun.grad(square)(3.0))
    (9.0, 30.0)
    """

    def both(args: tuple, kwargs: dict) -> tuple[PyTree, Callable]:
        pair = fun(*args, **kwargs)
        if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[1]):
            what = "the function must return its result and a function from cotangents to cotangents"
            raise GradientError("custom_gradient", what, got=type(pair).__name__)
        return pair

    @custom_vjp
    def call(args: tuple, kwargs: dict) -> PyTree:
        return both(args, kwargs)[0]

    def backward(residuals: tuple, cotangent: PyTree) -> tuple:
        args, kwargs = residuals
        cotangents = both(args, kwargs)[1](cotangent)
        cotangents = tuple(cotangents) if isinstance(cotangents, tuple | list) else (cotangents,)
        if len(cotangents) != len(args):
            what = f"the derivative must return a cotangent for each of {len(args)} arguments"
            raise GradientError("custom_gradient", what, got=str(len(cotangents)))
        return cotangents, tree.map(lambda x: 0.0 * x, kwargs)

    call.defvjp(lambda args, kwargs: (both(args, kwargs)[0], (args, kwargs)), backward)

    @wraps(fun)
    def with_gradient(*args: PyTree, **kwargs: PyTree) -> PyTree:
        return call(args, kwargs)

    return with_gradient


def closure_convert(fun: Callable, *example_args: PyTree) -> tuple[Callable, list[Array]]:
    """Returns a function that takes its closed-over arrays as trailing arguments, and these arrays.

    With it, a rule of :func:`custom_vjp` can take a function that closes over values which are differentiated.

    Args:
        fun: a function of trees of arrays.
        *example_args: arguments; ``fun`` is traced for their shapes and dtypes.

    Returns:
        ``converted(*args, *arrays)``, and the arrays that ``fun`` closes over.

    Source: follows ``jax.closure_convert``.

    >>> import tvmfun.numpy as tnp
    >>> scale = tnp.asarray(3.0)
    >>> converted, arrays = closure_convert(lambda x: scale * x, 1.0)
    >>> float(converted(2.0, *arrays))
    6.0
    """
    leaves, structure = tree.flatten(example_args)
    name = getattr(fun, "__name__", "fun")
    of_leaves = lambda *leaves: fun(*tree.unflatten(structure, leaves))
    traced = trace_leaves(of_leaves, [abstract(leaf, name) for leaf in leaves], name)
    program, captured = closing(traced)
    count = len(example_args)  # the result carries no example: a rule that uses it does not depend on one

    def converted(*args: PyTree) -> PyTree:
        inputs, arrays = args[:count], args[count:]
        values, got = tree.flatten(inputs)
        tree.check_same_structure(
            "closure_convert", structure, got, ("the example arguments", "the arguments"), exact=True
        )
        return tree.unflatten(traced.out_tree, program.evaluate([*arrays, *values]))

    return converted, list(captured)
