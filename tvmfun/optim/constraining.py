"""Constraints: limits on elements and norms, finite updates, nonnegative parameters, centered gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.nn.functional.floats import floats
from tvmfun.numpy.promotion import at_least_float32
from tvmfun.optim.base import (
    EmptyState,
    GradientTransformation,
    Params,
    Updates,
    map_updates,
    stateless,
    stateless_with_tree_map,
)
from tvmfun.optim.numerics import global_norm, in_dtype_of, need_params, root_mean_square
from tvmfun.typing import Scalar

__all__ = [
    "AdaptiveGradClipState",
    "ClipByGlobalNormState",
    "ClipState",
    "NonNegativeParamsState",
    "ZeroNansState",
    "adaptive_grad_clip",
    "centralize",
    "clip",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "keep_params_nonnegative",
    "per_example_global_norm_clip",
    "per_example_layer_norm_clip",
    "zero_nans",
]

#: optax's names of these states, which are empty.
AdaptiveGradClipState = ClipByGlobalNormState = ClipState = NonNegativeParamsState = EmptyState


def clip(max_delta: Scalar) -> GradientTransformation:
    """Limits every element of the updates: ``u' = min(max(u, -max_delta), max_delta)``.

    Args:
        max_delta: the largest absolute value, a number or a 0-d array.

    Returns:
        A transformation with an empty state.

    >>> from tvmfun.optim import EmptyState
    >>> clip(1.0).update(tnp.asarray([-3.0, 0.5]), EmptyState())[0]
    Array([-1. ,  0.5], dtype=float32)
    """
    return stateless(lambda updates, params: tree.map(lambda u: tnp.clip(u, -max_delta, max_delta), updates))


def clip_by_global_norm(max_norm: Scalar) -> GradientTransformation:
    """Limits the norm of all updates together: ``u' = u * min(1, max_norm / global_norm(u))``.

    Args:
        max_norm: the largest norm, a number or a 0-d array.

    Returns:
        A transformation with an empty state.

    Reference: Pascanu et al., "On the difficulty of training Recurrent Neural Networks" (2012).

    >>> from tvmfun.optim import EmptyState
    >>> clip_by_global_norm(1.0).update(tnp.asarray([6.0, 8.0]), EmptyState())[0]
    Array([0.6, 0.8], dtype=float32)
    """

    def limit(updates: Updates, params: Params | None) -> Updates:
        norm = global_norm(updates)
        factor = tnp.where(norm < max_norm, 1.0, max_norm / norm)
        return tree.map(lambda u: u * in_dtype_of(u, factor), updates)

    return stateless(limit)


def clip_by_block_rms(threshold: Scalar) -> GradientTransformation:
    """Limits the root mean square of each update: ``u' = u / max(1, rms(u) / threshold)``.

    Args:
        threshold: the largest root mean square, a number or a 0-d array.

    Returns:
        A transformation with an empty state.

    Reference: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018).

    >>> from tvmfun.optim import EmptyState
    >>> clip_by_block_rms(1.0).update(tnp.asarray([3.0, -3.0]), EmptyState())[0]
    Array([ 1., -1.], dtype=float32)
    """
    return stateless_with_tree_map(lambda u, p: u / tnp.maximum(1.0, root_mean_square(u) / threshold))


def adaptive_grad_clip(
    clipping: Scalar, eps: Scalar = 1e-3, axis: int | Sequence[int] | None = None
) -> GradientTransformation:
    """Limits the norm of each unit of the updates relative to the norm of its parameters.

    ``u' = u * min(1, clipping * max(norm(p), eps) / norm(u))`` for the weights of each output (each index of the
    last axis), or for all weights of a vector.

    Args:
        clipping: the largest ratio of the two norms.
        eps: the least norm of the parameters.
        axis: the axes over which to take the norms; ``None`` for all but the last of an array of two to five axes.

    Returns:
        A transformation with an empty state.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.
        ShapeError: on ``update``, if ``axis`` is ``None`` and an array has more than five axes.

    Reference: Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization" (2021).

    >>> from tvmfun.optim import EmptyState
    >>> adaptive_grad_clip(0.5).update(tnp.asarray([6.0, 8.0]), EmptyState(), tnp.asarray([0.0, 2.0]))[0]
    Array([0.6, 0.8], dtype=float32)
    """

    def apply(updates: Updates, params: Params | None) -> Updates:
        need_params("adaptive_grad_clip", params)

        def limit(u: Array, p: Array) -> Array:
            norm, largest = _unit_norm(u, axis), clipping * tnp.maximum(_unit_norm(p, axis), eps)
            return tnp.where(norm < largest, u, u * (largest / tnp.maximum(norm, 1e-6)))

        return map_updates(limit, updates, params)

    return stateless(apply)


def per_example_global_norm_clip(grads: Updates, l2_norm_clip: Scalar) -> tuple[Updates, Array]:
    """Limits the norm of the gradients of each example, and adds up the examples.

    ``sum_i(g_i * min(1, l2_norm_clip / global_norm(g_i)))``.

    Args:
        grads: a tree of arrays of shape (examples, ...).
        l2_norm_clip: the largest norm, a number or a 0-d array.

    Returns:
        The tree of sums, and the number of examples that were clipped, a 0-d int32 array.

    Raises:
        ShapeError: if the arrays do not share their first axis.

    Reference: Abadi et al., "Deep Learning with Differential Privacy" (2016).

    >>> total, clipped = per_example_global_norm_clip(tnp.asarray([[6.0, 8.0], [0.0, 0.5]]), 1.0)
    >>> total, int(clipped)
    (Array([0.6, 1.3], dtype=float32), 1)
    """
    _check_examples("per_example_global_norm_clip", grads)
    rows = [at_least_float32(floats(g)).reshape((tnp.shape(g)[0], -1)) for g in tree.leaves(grads)]
    squares = [tnp.sum(tnp.square(row), axis=1) for row in rows]
    norms = tnp.sqrt(sum(squares))
    # Examples whose gradients are zero are not scaled.
    factors = tnp.where(norms > 0, tnp.minimum(l2_norm_clip / tnp.where(norms > 0, norms, 1), 1.0), 1.0)
    clipped = tnp.sum((factors < 1).astype("int32")).astype("int32")
    return map_updates(lambda g: tnp.tensordot(in_dtype_of(g, factors), g, 1), grads), clipped


def per_example_layer_norm_clip(
    grads: Updates, global_l2_norm_clip: Scalar, uniform: bool = True
) -> tuple[Updates, Array]:
    """Limits the norm of each array of the gradients of each example, and adds up the examples.

    The limits are chosen so that the norm of all arrays together is at most ``global_l2_norm_clip``.

    Args:
        grads: a tree of arrays of shape (examples, ...).
        global_l2_norm_clip: the largest norm, a number or a 0-d array.
        uniform: whether all arrays have the same limit, or larger ones a larger limit.

    Returns:
        The tree of sums, and a tree of the numbers of examples that were clipped, 0-d int32 arrays.

    Raises:
        ShapeError: if the arrays do not share their first axis.

    Reference: McMahan et al., "Learning Differentially Private Recurrent Language Models" (2018).

    >>> total, clipped = per_example_layer_norm_clip({"w": tnp.asarray([[6.0, 8.0], [0.0, 0.5]])}, 1.0)
    >>> total["w"], int(clipped["w"])
    (Array([0.6, 1.3], dtype=float32), 1)
    """
    _check_examples("per_example_layer_norm_clip", grads)
    leaves, structure = tree.flatten(grads)
    sizes = [1 if uniform else tnp.size(leaf) for leaf in leaves]
    limits = [global_l2_norm_clip * (size / sum(sizes)) ** 0.5 for size in sizes]
    results = [per_example_global_norm_clip(leaf, limit) for leaf, limit in zip(leaves, limits, strict=True)]
    totals, clipped = ([result[i] for result in results] for i in range(2))
    return tree.unflatten(structure, totals), tree.unflatten(structure, clipped)


def _unit_norm(x: Array, axis: int | Sequence[int] | None) -> Array:
    x = tnp.asarray(x)
    if axis is None and sum(n != 1 for n in x.shape) > 1:
        if x.ndim > 5:
            raise ShapeError(
                "adaptive_grad_clip",
                "the units of an array of more than five axes are not known",
                got=repr(x.aval),
                hint="axis=",
            )
        # A 3-d array is a stack of matrices.
        axis = 0 if x.ndim < 4 else tuple(range(x.ndim - 1))
    return tnp.sqrt(tnp.sum(tnp.square(x), axis=axis, keepdims=True))


def _check_examples(where: str, grads: Updates) -> None:
    shapes = [tnp.shape(leaf) for leaf in tree.leaves(grads)]
    if len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
        raise ShapeError(where, "the arrays must share their first axis, the examples", got=str(shapes))


class ZeroNansState(NamedTuple):
    """The state of ``zero_nans``.

    Attributes:
        found_nan: for each update whether it had a NaN at the last step, a 0-d array of bool.
    """

    found_nan: Updates


def centralize() -> GradientTransformation:
    """Subtracts the mean over all axes but the first, for arrays of two axes or more: ``u' = u - mean(u)``.

    Returns:
        A transformation with an empty state.

    Reference: Yong et al., "Gradient Centralization: A New Optimization Technique for Deep Neural Networks" (2020).

    >>> from tvmfun.optim import EmptyState
    >>> centralize().update(tnp.asarray([[1.0, 3.0]]), EmptyState())[0]
    Array([[-1.,  1.]], dtype=float32)
    """

    def subtract_mean(u: Array, p: Array) -> Array:
        return u if tnp.ndim(u) < 2 else u - tnp.mean(u, axis=tuple(range(1, tnp.ndim(u))), keepdims=True)

    return stateless_with_tree_map(subtract_mean)


def keep_params_nonnegative() -> GradientTransformation:
    """Shortens updates that would make a parameter negative: ``u' = max(u, -p)``.

    Returns:
        A transformation with an empty state.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    >>> from tvmfun.optim import EmptyState
    >>> keep_params_nonnegative().update(tnp.asarray(-3.0), EmptyState(), tnp.asarray(2.0))[0]
    Array(-2., dtype=float32)
    """

    def apply(updates: Updates, params: Params | None) -> Updates:
        need_params("keep_params_nonnegative", params)
        return map_updates(lambda u, p: tnp.where(p + u < 0, -p, u), updates, params)

    return stateless(apply)


def zero_nans() -> GradientTransformation:
    """Replaces NaNs in the updates by zeros.

    Returns:
        A transformation whose state is a ``ZeroNansState``.

    >>> transform = zero_nans()
    >>> transform.update(tnp.asarray([float("nan"), 1.0]), transform.init(tnp.zeros((2,))))
    (Array([0., 1.], dtype=float32), ZeroNansState(found_nan=Array(True, dtype=bool)))
    """

    def init(params: Params) -> ZeroNansState:
        return ZeroNansState(tree.map(lambda p: tnp.zeros((), dtype="bool"), params))

    def update(updates: Updates, state: ZeroNansState, params: Params | None = None) -> tuple:
        has_nan = tree.map(lambda u: tnp.any(tnp.isnan(u)), updates)
        return map_updates(lambda u: tnp.where(tnp.isnan(u), tnp.zeros_like(u), u), updates), ZeroNansState(has_nan)

    return GradientTransformation(init, update)
