"""``from_jax`` and ``to_jax``: functions of JAX here, and functions of tvmfun there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tvmfun
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ShapeError, TreeError
from tvmfun.interop.jax.jaxprs import closed, is_key
from tvmfun.typing import PyTree


def from_jax(function: Callable, *specs: PyTree) -> Callable:
    """Returns a function of JAX as a function of tvmfun, to which every transform applies.

    JAX traces it to a jaxpr, once per types of arguments, whose primitives are evaluated as functions of
    :mod:`tvmfun.lax`. So it is differentiated here; ``jax.custom_jvp`` and ``jax.custom_vjp`` inside keep their rules.
    Loops and branches stay loops and branches. Random keys are arrays as :func:`tvmfun.random.key` makes them, and give
    the numbers that JAX gives.

    Args:
        function: takes trees of arrays that JAX knows, by position; returns a tree.
        specs: the types of its arguments, as arrays or ``ShapeDtype``. With them it is traced at once, and accepts no
            other types.

    Raises:
        ProgramError: at a primitive that has no rule, such as a callback; the message has the user's line.
        TreeError: if the arguments have another structure than the types.
        ShapeError: if a leaf has another type.

    >>> import jax.numpy as jnp  # doctest: +SKIP
    >>> norm = from_jax(lambda x: jnp.sqrt(jnp.sum(x**2)))  # doctest: +SKIP
    >>> tvmfun.grad(norm)(tvmfun.numpy.asarray([3.0, 4.0]))  # doctest: +SKIP
    Array([0.6, 0.8], dtype=float32)
    """
    traced: dict[Any, tuple[Callable, Any]] = {}
    if specs:
        leaves, structure = _flatten(specs)
        expected = tuple(map(_type, leaves))
        traced[structure, expected] = _traced(function, structure, expected)

    def call(*arguments: PyTree) -> PyTree:
        leaves, structure = _flatten(arguments)
        leaves = [_words(leaf) for leaf in leaves]
        key = structure, tuple(map(_type, leaves))
        if key not in traced:
            if specs:
                _refuse(next(iter(traced)), key)
            traced[key] = _traced(function, *key)
        run, unflatten = traced[key]
        return unflatten(run(*map(tvmfun.numpy.asarray, leaves)))

    call.__name__ = getattr(function, "__name__", "from_jax")
    return call


def _flatten(values: Any) -> tuple[list[Any], Any]:
    import jax

    return jax.tree.flatten(values, is_leaf=lambda x: isinstance(x, Array))


def _words(leaf: Any) -> Any:
    """The words of JAX's typed keys; other leaves are unchanged."""
    if is_key(leaf):
        from jax import random

        return random.key_data(leaf)
    return leaf


def _type(leaf: Any) -> tuple[tuple[int, ...], str, bool]:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, Array):
        return tuple(leaf.shape), str(leaf.dtype), False
    aval = abstract(leaf, "from_jax")
    return tuple(aval.shape), str(aval.dtype), bool(aval.weak)


def _traced(function: Callable, structure: Any, types: tuple) -> tuple[Callable, Callable]:
    """The function of leaves, and the function that turns its results into a tree."""
    import jax

    leaves = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in types]
    jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(structure, leaves))
    return closed(jaxpr), partial(jax.tree.unflatten, jax.tree.structure(shapes))


def _refuse(expected: tuple, got: tuple) -> None:
    if expected[0] != got[0]:
        raise TreeError("from_jax", "the arguments must have the structure of the types", got=str(got[0]))
    for i, (one, other) in enumerate(zip(expected[1], got[1], strict=True)):
        if one[:2] != other[:2]:
            what = f"leaf {i} must have the type {one[1]}{list(one[0])}"
            raise ShapeError("from_jax", what, got=f"{other[1]}{list(other[0])}", hint="from_jax without types")


def to_jax(function: Callable) -> Callable:
    """Returns a function of tvmfun as a function of JAX, which ``jax.jit``, ``grad`` and ``vmap`` take.

    JAX calls the compiled function back, and for its derivative the compiled vjp; ``jax.vmap`` runs ``tvmfun.vmap``.
    Second derivatives by JAX are derivatives of the vjp, which is such a function as well. Forward mode is refused by
    JAX, as for every ``jax.custom_vjp``.

    Args:
        function: takes and returns trees of arrays that both libraries know: dicts, lists, tuples, None.

    >>> import jax  # doctest: +SKIP
    >>> jax.jit(jax.grad(to_jax(lambda x: tvmfun.numpy.sum(x**3))))(2.0)  # doctest: +SKIP
    Array(12., dtype=float32, weak_type=True)
    """
    import jax

    @jax.custom_vjp
    def call(*arguments: PyTree) -> PyTree:
        return _callback(function, arguments)

    def forward(*arguments: PyTree) -> tuple:
        return call(*arguments), arguments

    def backward(arguments: tuple, cotangents: PyTree) -> tuple:
        leaves, structure = jax.tree.flatten(arguments)
        moving = [i for i, leaf in enumerate(leaves) if jax.numpy.issubdtype(leaf.dtype, np.inexact)]

        def pull(values: list, cotangents: PyTree) -> list:
            def of_moving(*own: Any) -> PyTree:
                full = dict(zip(moving, own, strict=True))
                return function(*jax.tree.unflatten(structure, [full.get(i, x) for i, x in enumerate(values)]))

            return list(tvmfun.vjp(of_moving, *(values[i] for i in moving))[1](cotangents))

        pulled = dict(zip(moving, to_jax(pull)(leaves, cotangents), strict=True))
        zero = lambda leaf: np.zeros(leaf.shape, jax.dtypes.float0)
        return tuple(jax.tree.unflatten(structure, [pulled.get(i, zero(x)) for i, x in enumerate(leaves)]))

    call.defvjp(forward, backward)
    return call


def _callback(function: Callable, arguments: tuple) -> PyTree:
    """A call of the compiled function inside a program of JAX."""
    import jax

    spec = lambda leaf: tvmfun.ShapeDtype(leaf.shape, np.dtype(leaf.dtype))
    arguments = jax.tree.map(jax.numpy.asarray, arguments)
    types = tvmfun.eval_shape(function, *jax.tree.map(spec, arguments))
    leaves, structure = jax.tree.flatten(types, is_leaf=lambda x: isinstance(x, tvmfun.ShapeDtype))
    results = [jax.ShapeDtypeStruct(leaf.shape, str(leaf.dtype)) for leaf in leaves]
    ranks = [leaf.ndim for leaf in jax.tree.leaves(arguments)]
    own = jax.tree.structure(arguments)

    def flat(*values: Any) -> tuple:
        return tuple(
            jax.tree.leaves(function(*jax.tree.unflatten(own, values)), is_leaf=lambda x: isinstance(x, Array))
        )

    compiled: dict[int, Callable] = {}

    def run(*values: Any) -> tuple:
        depth = max((value.ndim - rank for value, rank in zip(values, ranks, strict=True)), default=0)
        if depth not in compiled:
            batched: Callable = flat
            for _ in range(depth):
                batched = tvmfun.vmap(batched)
            compiled[depth] = tvmfun.jit(batched)
        return tuple(np.asarray(result) for result in compiled[depth](*map(np.asarray, values)))

    called = jax.pure_callback(run, tuple(results), *jax.tree.leaves(arguments), vmap_method="broadcast_all")
    return jax.tree.unflatten(structure, called)
