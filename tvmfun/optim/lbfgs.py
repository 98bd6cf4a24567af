"""L-BFGS: a quasi-Newton method with a line search."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import lax, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Updates,
    identity,
    select,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.linesearch import scale_by_zoom_linesearch
from tvmfun.optim.numerics import need_params, safe_increment, zero_count
from tvmfun.optim.scaling import scale, scale_by_learning_rate
from tvmfun.typing import PyTree, Scalar

__all__ = [
    "ScaleByLBFGSState",
    "lbfgs",
    "scale_by_lbfgs",
]


class ScaleByLBFGSState(NamedTuple):
    """The state of ``scale_by_lbfgs``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        params: the previous parameters.
        updates: the previous updates.
        diff_params_memory: the last changes of the parameters, along a leading axis.
        diff_updates_memory: the last changes of the updates.
        weights_memory: the inverses of their inner products.
    """

    count: Array
    params: Params
    updates: Params
    diff_params_memory: Params
    diff_updates_memory: Updates
    weights_memory: Array


def scale_by_lbfgs(memory_size: int = 10, scale_init_precond: bool = True) -> GradientTransformation:
    """Multiplies the updates by an estimate of the inverse of the Hessian, from the last changes.

    With the changes ``s`` of the parameters and ``y`` of the updates, and ``r = 1 / <s, y>``, each pair makes
    ``P' = (I - r s y^T) P (I - r y s^T) + r s s^T``, from the oldest to the newest; ``u' = P u``.

    Args:
        memory_size: the number of changes to keep.
        scale_init_precond: whether the first ``P`` is ``<s, y> / <y, y>`` times the identity, with the newest pair, and
            at the first update ``min(1, 1 / norm(u))``; else it is the identity.

    Returns:
        A transformation whose state is a ``ScaleByLBFGSState``.

    Raises:
        ArgumentError: if ``memory_size`` is less than 1, or on ``update``, if it gets no ``params``.

    Reference: Nocedal and Wright, "Numerical Optimization" (2006), algorithms 7.4 and 7.5.

    >>> transform = scale_by_lbfgs()
    >>> params = tnp.asarray(3.0)
    >>> state = transform.init(params)
    >>> for _ in range(2):
    ...     updates, state = transform.update(4 * params, state, params)
    ...     params = params - updates
    >>> float(params)
    0.0
    """
    if memory_size < 1:
        raise ArgumentError("scale_by_lbfgs", "memory_size must be at least 1", got=str(memory_size))

    def init(params: Params) -> ScaleByLBFGSState:
        zeros = optim_tree.zeros_like(params)
        memory = tree.map(lambda p: tnp.zeros((memory_size, *tnp.shape(p)), dtype=abstract(p).dtype), params)
        weights = tnp.zeros((memory_size,), dtype=optim_tree.dtype(params, "highest"))
        return ScaleByLBFGSState(zero_count(), zeros, zeros, memory, memory, weights)

    def update(updates: Updates, state: ScaleByLBFGSState, params: Params | None = None) -> tuple:
        need_params("scale_by_lbfgs", params)
        first, dtype = state.count == 0, state.weights_memory.dtype
        s, y = optim_tree.sub(params, state.params), optim_tree.sub(updates, state.updates)
        product = optim_tree.vdot(y, s).astype(dtype)
        none = product == 0
        weight = tnp.where(none, tnp.zeros_like(product), 1 / tnp.where(none, tnp.ones_like(product), product))
        scale: Scalar = 1.0
        if scale_init_precond:
            square = optim_tree.norm(y, squared=True).astype(dtype)
            flat = square <= 0
            scale = tnp.where(flat, tnp.ones_like(square), product / tnp.where(flat, tnp.ones_like(square), square))
            scale = tnp.where(first, tnp.minimum(1 / optim_tree.norm(updates).astype(dtype), 1), scale)
        # Before the first update there are no changes; zeros leave P unchanged.
        s, y, weight = select(first, optim_tree.zeros_like((s, y, weight)), (s, y, weight))
        slot = (state.count - 1) % memory_size

        def remember(memory: Array, newest: Array) -> Array:
            return tree.map(lambda rows, row: rows.at[slot].set(row.astype(rows.dtype)), memory, newest)

        all_s, all_y = remember(state.diff_params_memory, s), remember(state.diff_updates_memory, y)
        weights = remember(state.weights_memory, weight)
        order = (state.count + np.arange(memory_size)) % memory_size
        new_updates = _precondition(updates, all_s, all_y, weights, scale, order)
        return new_updates, ScaleByLBFGSState(safe_increment(state.count), params, updates, all_s, all_y, weights)

    return GradientTransformation(init, update)


def _precondition(updates: Updates, s: PyTree, y: PyTree, weights: Array, scale: Scalar, order: Array) -> Updates:
    """``P u`` by the two-loop recursion: from the newest change to the oldest, and back."""

    def move(u: Updates, factor: Scalar, direction: PyTree) -> Updates:
        return optim_tree.cast_like(optim_tree.add_scale(u, factor, direction), u)

    def right(u: Updates, i: Array) -> tuple[Updates, Any]:
        s_i, y_i = tree.map(lambda rows: rows[i], (s, y))
        factor = weights[i] * optim_tree.vdot(s_i, u)
        return move(u, -factor, y_i), factor

    def left(u: Updates, inputs: tuple) -> tuple[Updates, None]:
        i, factor = inputs
        s_i, y_i = tree.map(lambda rows: rows[i], (s, y))
        return move(u, factor - weights[i] * optim_tree.vdot(y_i, u), s_i), None

    updates, factors = lax.scan(right, updates, order, reverse=True)
    scaled = optim_tree.cast_like(optim_tree.scale(scale, updates), updates)
    return lax.scan(left, scaled, (order, factors))[0]


ZOOM = scale_by_zoom_linesearch(20, initial_guess_strategy="one")


def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = ZOOM,
) -> GradientTransformationExtraArgs:
    """L-BFGS: a quasi-Newton method with a Hessian from the last gradients; :func:`scale_by_lbfgs` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule; ``None`` for 1.
        memory_size: the number of changes of parameters and gradients to keep.
        scale_init_precond: whether the estimate of the Hessian begins with the newest change.
        linesearch: the search for the length of each step, by default :func:`scale_by_zoom_linesearch`; ``None`` for
            none.

    Returns:
        The optimizer. Its ``update`` needs ``params``, and for the search ``value=``, ``grad=`` and ``value_fn=``.

    Raises:
        ArgumentError: if ``memory_size`` is less than 1, or on ``update``, if it gets no ``params``.

    Reference: Liu and Nocedal, "On the limited memory BFGS method for large scale optimization" (1989).

    >>> import tvmfun
    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import apply_updates
    >>> loss = lambda p: (p[0] - 1) ** 2 + 10 * (p[1] - p[0] ** 2) ** 2
    >>> optimizer = lbfgs()
    >>> params = tnp.zeros(2)
    >>> state = optimizer.init(params)
    >>> for _ in range(12):
    ...     value, gradient = tvmfun.value_and_grad(loss)(params)
    ...     updates, state = optimizer.update(gradient, state, params, value=value, grad=gradient, value_fn=loss)
    ...     params = apply_updates(params, updates)
    >>> bool(loss(params) < 1e-6)
    True
    """
    return chain(
        scale_by_lbfgs(memory_size, scale_init_precond),
        scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate),
        identity() if linesearch is None else linesearch,
    )
