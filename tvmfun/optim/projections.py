"""Euclidean projections: the nearest point of a set."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun import tree as pytree
from tvmfun.boundary import publish
from tvmfun.names import missing as _missing
from tvmfun.nn.functional import relu
from tvmfun.nn.losses.simplex import project_on_simplex
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.base import ravel
from tvmfun.typing import PyTree, Scalar

__all__ = [
    "projection_box",
    "projection_halfspace",
    "projection_hypercube",
    "projection_hyperplane",
    "projection_l1_ball",
    "projection_l1_sphere",
    "projection_l2_ball",
    "projection_l2_sphere",
    "projection_linf_ball",
    "projection_non_negative",
    "projection_simplex",
    "projection_vector",
]


def projection_non_negative(tree: PyTree) -> PyTree:
    """The nearest tree without negative numbers: ``max(x, 0)``.

    Args:
        tree: a tree of arrays.

    Returns:
        A tree of the same structure.

    >>> projection_non_negative(tnp.asarray([-1.0, 2.0]))
    Array([0., 2.], dtype=float32)
    """
    return pytree.map(relu, tree)


def projection_box(tree: PyTree, lower: Scalar, upper: Scalar) -> PyTree:
    """The nearest tree between two bounds: ``min(max(x, lower), upper)``.

    Args:
        tree: a tree of arrays.
        lower: the lower bounds: a tree of the same structure, or one number for all.
        upper: the upper bounds, likewise.

    Returns:
        A tree of the same structure.

    >>> projection_box(tnp.asarray([-1.0, 0.5, 3.0]), 0.0, tnp.asarray([1.0, 1.0, 2.0]))
    Array([0. , 0.5, 2. ], dtype=float32)
    """
    return pytree.map(tnp.clip, tree, _for_each(tree, lower), _for_each(tree, upper))


def projection_hypercube(tree: PyTree, scale: Scalar = 1) -> PyTree:
    """The nearest tree between 0 and ``scale``.

    Args:
        tree: a tree of arrays.
        scale: the upper bound: a number, or a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> projection_hypercube(tnp.asarray([-1.0, 0.5, 3.0]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return projection_box(tree, 0, scale)


def projection_simplex(tree: PyTree, scale: Scalar = 1) -> PyTree:
    """The nearest tree of nonnegative numbers that add up to ``scale``.

    ``max(x - t, 0)`` with the ``t`` that gives this sum; all leaves are one vector. It becomes NaN if an element is NaN
    or infinite.

    Args:
        tree: a tree of arrays.
        scale: the sum, a positive number or a 0-d array.

    Returns:
        A tree of the same structure.

    Reference: Duchi et al., "Efficient Projections onto the l1-Ball for Learning in High Dimensions" (2008).

    >>> projection_simplex(tnp.asarray([2.0, 3.0, 0.5]))
    Array([0., 1., 0.], dtype=float32)
    """
    vector, restore = ravel(tree)
    return restore(scale * project_on_simplex(vector / scale))


def projection_l1_sphere(tree: PyTree, scale: Scalar = 1) -> PyTree:
    """The nearest tree whose absolute values add up to ``scale``.

    Args:
        tree: a tree of arrays.
        scale: the norm, a positive number or a 0-d array.

    Returns:
        A tree of the same structure.

    >>> projection_l1_sphere(tnp.asarray([-2.0, 1.5]))
    Array([-0.75,  0.25], dtype=float32)
    """
    absolute = projection_simplex(pytree.map(tnp.abs, tree), scale)
    return optim_tree.mul(pytree.map(tnp.sign, tree), absolute)


def projection_l1_ball(tree: PyTree, scale: Scalar = 1) -> PyTree:
    """The nearest tree whose absolute values add up to at most ``scale``.

    Args:
        tree: a tree of arrays.
        scale: the largest norm, a positive number or a 0-d array.

    Returns:
        A tree of the same structure.

    >>> projection_l1_ball(tnp.asarray([-2.0, 1.5])), projection_l1_ball(tnp.asarray([-0.5, 0.0]))
    (Array([-0.75,  0.25], dtype=float32), Array([-0.5,  0. ], dtype=float32))
    """
    tree = pytree.map(tnp.asarray, tree)
    inside = optim_tree.norm(tree, ord=1) <= scale
    return lax.cond(inside, lambda x: x, lambda x: projection_l1_sphere(x, scale), tree)


def projection_l2_sphere(tree: PyTree, scale: Scalar = 1) -> PyTree:
    """The nearest tree of Euclidean norm ``scale``: ``scale * x / norm(x)``.

    Args:
        tree: a tree of arrays.
        scale: the norm, a positive number or a 0-d array.

    Returns:
        A tree of the same structure.

    >>> projection_l2_sphere(tnp.asarray([6.0, 8.0]))
    Array([0.6, 0.8], dtype=float32)
    """
    return optim_tree.scale(scale / optim_tree.norm(tree), tree)


def projection_l2_ball(tree: PyTree, scale: Scalar = 1) -> PyTree:
    """The nearest tree of a Euclidean norm of at most ``scale``.

    Args:
        tree: a tree of arrays.
        scale: the largest norm, a positive number or a 0-d array.

    Returns:
        A tree of the same structure.

    >>> projection_l2_ball(tnp.asarray([6.0, 8.0])), projection_l2_ball(tnp.asarray([0.5, 0.0]))
    (Array([0.6, 0.8], dtype=float32), Array([0.5, 0. ], dtype=float32))
    """
    square = optim_tree.norm(tree, squared=True)
    return optim_tree.scale(scale / tnp.sqrt(tnp.maximum(square, scale**2)), tree)


def projection_linf_ball(tree: PyTree, scale: Scalar = 1) -> PyTree:
    """The nearest tree of numbers between ``-scale`` and ``scale``.

    Args:
        tree: a tree of arrays.
        scale: the largest absolute value, a positive number or a 0-d array.

    Returns:
        A tree of the same structure.

    >>> projection_linf_ball(tnp.asarray([-2.0, 0.5]))
    Array([-1. ,  0.5], dtype=float32)
    """
    return pytree.map(lambda x: tnp.clip(x, -scale, scale), tree)


def projection_vector(x: PyTree, a: PyTree) -> PyTree:
    """The nearest multiple of a tree: ``<x, a> / <a, a> * a``.

    Args:
        x: a tree of arrays.
        a: a tree of the same structure, not all zero.

    Returns:
        A tree of the same structure.

    >>> projection_vector(tnp.asarray([1.0, 2.0]), tnp.asarray([0.0, 3.0]))
    Array([0., 2.], dtype=float32)
    """
    return optim_tree.scale(optim_tree.vdot(x, a) / optim_tree.vdot(a, a), a)


def projection_hyperplane(x: PyTree, a: PyTree, b: Scalar) -> PyTree:
    """The nearest tree with ``<x, a> = b``.

    Args:
        x: a tree of arrays.
        a: the normal of the plane, a tree of the same structure, not all zero.
        b: a number or a 0-d array.

    Returns:
        A tree of the same structure.

    >>> projection_hyperplane(tnp.asarray([1.0, 2.0]), tnp.asarray([0.0, 3.0]), 3.0)
    Array([1., 1.], dtype=float32)
    """
    return optim_tree.add_scale(x, (b - optim_tree.vdot(x, a)) / optim_tree.vdot(a, a), a)


def projection_halfspace(x: PyTree, a: PyTree, b: Scalar) -> PyTree:
    """The nearest tree with ``<x, a> <= b``.

    Args:
        x: a tree of arrays.
        a: the normal of the boundary, a tree of the same structure, not all zero.
        b: a number or a 0-d array.

    Returns:
        A tree of the same structure.

    >>> projection_halfspace(tnp.asarray([1.0, 0.5]), tnp.asarray([0.0, 3.0]), 3.0)
    Array([1. , 0.5], dtype=float32)
    """
    factor = (b - optim_tree.vdot(x, a)) / optim_tree.vdot(a, a)
    return optim_tree.add_scale(x, tnp.minimum(factor, 0), a)


def _for_each(tree: PyTree, bound: Any) -> PyTree:
    """The bound of each leaf; a single number bounds all of them."""
    if pytree.structure(bound).is_leaf():
        return pytree.map(lambda _: bound, tree)
    return bound


__getattr__ = _missing(__name__)
publish(globals())
