"""Jacobians and Hessians: batched products with all unit vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from tvmfun import dtypes, tree
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import GradientError
from tvmfun.transforms.autodiff import (
    argument_numbers,
    check_differentiable,
    jvp,
    positions,
    refuse_holomorphic,
    replaced,
    vjp,
)
from tvmfun.transforms.staging import as_arrays, staged
from tvmfun.transforms.vmap import vmap
from tvmfun.typing import PyTree


def jacfwd(
    fun: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    r"""Returns a function that computes the Jacobian :math:`\partial f_i / \partial x_j`, column by column.

    Forward mode: the cost grows with the number of inputs; for functions with more outputs than inputs.

    Args:
        fun: a function of trees of arrays.
        argnums: the position, or positions, of the arguments to differentiate with respect to.
        has_aux: whether ``fun`` returns ``(result, aux)``; the function then returns ``(jacobian, aux)``.
        holomorphic: must be False: there are no complex numbers.

    Returns:
        A function with the arguments of ``fun``: for each leaf of the result a tree like the argument (or a tuple of
        trees), whose leaves have the shape of the result's leaf followed by the shape of the argument's.

    Raises:
        GradientError: if an argument has leaves that are not floats.

    Source: follows ``jax.jacfwd``.

    >>> import tvmfun.numpy as tnp
    >>> jacfwd(lambda x: x * x)(tnp.asarray([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """

    def columns(of_chosen: Callable, chosen: list, is_single: bool) -> PyTree:
        leaves, structure = tree.flatten(tuple(chosen))

        def column(unit: list) -> tuple:
            return jvp(of_chosen, chosen, tree.unflatten(structure, unit), has_aux=has_aux)

        value, moved, *aux = vmap(column, out_axes=(None, 0, None)[: 2 + has_aux])(_units(leaves))
        outputs, result_tree = tree.flatten(value)
        blocks = []
        for out, tangent in zip(outputs, tree.leaves(moved), strict=True):
            parts = tnp.split(tangent, _ends(leaves)[:-1])
            shaped = [
                tnp.reshape(tnp.moveaxis(part, 0, -1), (*out.shape, *leaf.shape))
                for part, leaf in zip(parts, leaves, strict=True)
            ]
            blocks.append(_chosen_tree(structure, shaped, is_single))
        return tree.unflatten(result_tree, blocks), *aux

    refuse_holomorphic("jacfwd", holomorphic)
    return _jacobian(fun, argnums, has_aux, columns)


def jacrev(
    fun: Callable,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    r"""Returns a function that computes the Jacobian :math:`\partial f_i / \partial x_j`, row by row.

    Reverse mode: the cost grows with the number of outputs; for functions with more inputs than outputs.
    Arguments, results and errors are as for :func:`jacfwd`, but with ``allow_int`` leaves that are not floats have a
    Jacobian of zeros.

    Source: follows ``jax.jacrev``.

    >>> import tvmfun.numpy as tnp
    >>> jacrev(lambda x: tnp.sum(x * x))(tnp.asarray([1.0, 2.0]))
    Array([2., 4.], dtype=float32)
    """

    def rows(of_chosen: Callable, chosen: list, is_single: bool) -> PyTree:
        value, pull, *aux = vjp(of_chosen, *chosen, has_aux=has_aux)
        outputs, result_tree = tree.flatten(value)
        for out in outputs:
            if not dtypes.is_float(out.dtype):
                raise GradientError("jacrev", "all results must be floats", got=repr(out.aval), hint="has_aux=True")
        leaves, structure = tree.flatten(tuple(chosen))
        pulled = vmap(lambda unit: pull(tree.unflatten(result_tree, unit)))(_units(outputs))
        parts = [tnp.split(g, _ends(outputs)[:-1]) for g in tree.leaves(pulled)]
        blocks = []
        for i, out in enumerate(outputs):
            shaped = [tnp.reshape(part[i], (*out.shape, *leaf.shape)) for part, leaf in zip(parts, leaves, strict=True)]
            blocks.append(_chosen_tree(structure, shaped, is_single))
        return tree.unflatten(result_tree, blocks), *aux

    refuse_holomorphic("jacrev", holomorphic)
    return _jacobian(fun, argnums, has_aux, rows, allow_int)


def hessian(
    fun: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    r"""Returns a function that computes the Hessian :math:`\partial^2 f / \partial x_i \partial x_j`.

    Forward over reverse mode. Arguments, results and errors are as for :func:`jacfwd`, applied twice.

    Source: follows ``jax.hessian``.

    >>> import tvmfun.numpy as tnp
    >>> hessian(lambda x: tnp.sum(x**3))(tnp.asarray([1.0, 2.0]))
    Array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux)


def _jacobian(
    fun: Callable, argnums: int | Sequence[int], has_aux: bool, compute: Callable, allow_int: bool = False
) -> Callable[..., Any]:
    numbers = argument_numbers(argnums)

    @wraps(fun)
    def jacobian(*args: PyTree, **kwargs: PyTree) -> PyTree:
        indices = positions(numbers, len(args))

        def of_arrays(args: tuple, kwargs: dict) -> PyTree:
            chosen = [args[i] for i in indices]
            for i, argument in zip(indices, chosen, strict=True) if not allow_int else ():
                check_differentiable("grad", argument, f"argument {i}", every_leaf=True)

            def of_chosen(*chosen: PyTree) -> PyTree:
                return fun(*replaced(args, indices, chosen), **kwargs)

            result, *aux = compute(of_chosen, chosen, not isinstance(argnums, Sequence))
            return (result, *aux) if has_aux else result

        chosen = [as_arrays(args[i]) for i in indices]
        return staged(of_arrays, replaced(args, indices, chosen), kwargs)

    return jacobian


def _ends(leaves: Sequence[Array]) -> list[int]:
    """The end of each leaf's range in the concatenation of all leaves."""
    ends, total = [], 0
    for leaf in leaves:
        total += math.prod(abstract(leaf).shape)
        ends.append(total)
    return ends


def _units(leaves: Sequence[Array]) -> list[Array]:
    """All unit vectors of the space of the leaves: for each leaf an array with one row per unit vector."""
    ends = _ends(leaves)
    units = []
    for leaf, end in zip(leaves, ends, strict=True):
        aval = abstract(leaf)
        size = math.prod(aval.shape)
        block = tnp.eye(ends[-1], size, k=size - end, dtype=aval.dtype)
        units.append(tnp.reshape(block, (ends[-1], *aval.shape)))
    return units


def _chosen_tree(structure: tree.Structure, leaves: list, is_single: bool) -> PyTree:
    chosen = tree.unflatten(structure, leaves)
    return chosen[0] if is_single else chosen
