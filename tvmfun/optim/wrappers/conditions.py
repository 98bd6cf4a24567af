"""Transformations that are applied at some steps only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import lax, tree
from tvmfun.core.leaf import abstract
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Updates,
    with_extra_args_support,
)
from tvmfun.optim.transforms.common import safe_increment, zero_count
from tvmfun.optim.tree import zeros_like

__all__ = [
    "ApplyIfFiniteState",
    "ConditionallyMaskState",
    "ConditionallyTransformState",
    "apply_if_finite",
    "conditionally_mask",
    "conditionally_transform",
]


class ApplyIfFiniteState(NamedTuple):
    """The state of ``apply_if_finite``.

    Attributes:
        notfinite_count: how many updates in a row were not finite, a 0-d int32 array.
        last_finite: whether the last was, a 0-d array of bool.
        total_notfinite: how many were not finite so far, a 0-d int32 array.
        inner_state: the state of the transformation.
    """

    notfinite_count: Any
    last_finite: Any
    total_notfinite: Any
    inner_state: OptState


class ConditionallyTransformState(NamedTuple):
    """The state of ``conditionally_transform``.

    Attributes:
        inner_state: the state of the transformation.
        step: the number of updates so far, a 0-d int32 array.
    """

    inner_state: OptState
    step: Any


class ConditionallyMaskState(NamedTuple):
    """The state of ``conditionally_mask``.

    Attributes:
        step: the number of updates so far, a 0-d int32 array.
        inner_state: the state of the transformation.
    """

    step: Any
    inner_state: OptState


def count_not_finite(updates: Updates) -> Any:
    counts = [tnp.sum((~tnp.isfinite(u)).astype("int32")) for u in tree.leaves(updates)]
    return sum(counts, tnp.zeros((), dtype="int32")).astype("int32")


def apply_when(condition: Any, apply: Callable[[], tuple], otherwise: Callable[[], tuple]) -> tuple:
    """``apply()`` or ``otherwise()``, whose dtypes both have; only what is chosen runs."""

    def chosen() -> tuple:
        return tree.map(lambda new, old: tnp.asarray(new).astype(abstract(old).dtype), apply(), otherwise())

    return lax.cond(condition, chosen, lambda: tree.map(tnp.asarray, otherwise()))


def apply_if_finite(inner: GradientTransformation, max_consecutive_errors: int) -> GradientTransformationExtraArgs:
    """Drops updates with a NaN or an infinity, and leaves the state as it was.

    Args:
        inner: the transformation that gets the finite updates.
        max_consecutive_errors: after so many updates in a row that are not finite, the next is let through.

    Returns:
        A transformation whose state is an ``ApplyIfFiniteState``.

    >>> from tvmfun.optim import sgd
    >>> optimizer = apply_if_finite(sgd(1.0), 2)
    >>> state = optimizer.init(tnp.asarray(0.0))
    >>> updates, state = optimizer.update(tnp.asarray(float("nan")), state)
    >>> float(updates), int(state.total_notfinite)
    (0.0, 1)
    """
    inner = with_extra_args_support(inner)

    def init(params: Params) -> ApplyIfFiniteState:
        return ApplyIfFiniteState(zero_count(), tnp.ones((), dtype="bool"), zero_count(), inner.init(params))

    def update(updates: Updates, state: ApplyIfFiniteState, params: Params | None = None, **extra_args: Any) -> tuple:
        finite = count_not_finite(updates) == 0
        in_a_row = tnp.where(finite, 0, safe_increment(state.notfinite_count)).astype("int32")
        total = tnp.where(finite, state.total_notfinite, safe_increment(state.total_notfinite)).astype("int32")
        new_updates, inner_state = apply_when(
            finite | (in_a_row > max_consecutive_errors),
            lambda: inner.update(updates, state.inner_state, params, **extra_args),
            lambda: (zeros_like(updates), state.inner_state),
        )
        return new_updates, ApplyIfFiniteState(in_a_row, finite, total, inner_state)

    return GradientTransformationExtraArgs(init, update)


def conditionally_transform(
    inner: GradientTransformation, should_transform_fn: Callable[..., Any], forward_extra_args: bool = False
) -> GradientTransformationExtraArgs:
    """Applies a transformation at some steps, and passes the updates on as they are at the others.

    Args:
        inner: the transformation.
        should_transform_fn: takes the number of updates so far, a 0-d int32 array, and returns a 0-d array of bool.
        forward_extra_args: whether it takes the further keyword arguments of ``update``, too.

    Returns:
        A transformation whose state is a ``ConditionallyTransformState``.

    >>> from tvmfun.optim import scale
    >>> transform = conditionally_transform(scale(2.0), lambda step: step % 2 == 1)
    >>> state = transform.init(tnp.asarray(0.0))
    >>> for _ in range(2):
    ...     updates, state = transform.update(tnp.asarray(3.0), state)
    ...     print(float(updates))
    3.0
    6.0
    """
    inner = with_extra_args_support(inner)

    def init(params: Params) -> ConditionallyTransformState:
        return ConditionallyTransformState(inner.init(params), zero_count())

    def update(
        updates: Updates, state: ConditionallyTransformState, params: Params | None = None, **extra_args: Any
    ) -> tuple:
        new_updates, inner_state = apply_when(
            should_transform_fn(state.step, **(extra_args if forward_extra_args else {})),
            lambda: inner.update(updates, state.inner_state, params, **extra_args),
            lambda: (updates, state.inner_state),
        )
        return new_updates, ConditionallyTransformState(inner_state, safe_increment(state.step))

    return GradientTransformationExtraArgs(init, update)


def conditionally_mask(
    inner: GradientTransformation, should_transform_fn: Callable[..., Any], forward_extra_args: bool = False
) -> GradientTransformationExtraArgs:
    """Applies a transformation at some steps, and drops the updates at the others.

    Args:
        inner: the transformation.
        should_transform_fn: takes the number of updates so far, a 0-d int32 array, and returns a 0-d array of bool.
        forward_extra_args: whether it takes the further keyword arguments of ``update``, too.

    Returns:
        A transformation whose state is a ``ConditionallyMaskState``.

    >>> from tvmfun.optim import scale
    >>> transform = conditionally_mask(scale(2.0), lambda step: step % 2 == 1)
    >>> state = transform.init(tnp.asarray(0.0))
    >>> for _ in range(2):
    ...     updates, state = transform.update(tnp.asarray(3.0), state)
    ...     print(float(updates))
    0.0
    6.0
    """
    inner = with_extra_args_support(inner)

    def init(params: Params) -> ConditionallyMaskState:
        return ConditionallyMaskState(zero_count(), inner.init(params))

    def update(
        updates: Updates, state: ConditionallyMaskState, params: Params | None = None, **extra_args: Any
    ) -> tuple:
        new_updates, inner_state = apply_when(
            should_transform_fn(state.step, **(extra_args if forward_extra_args else {})),
            lambda: inner.update(updates, state.inner_state, params, **extra_args),
            lambda: (zeros_like(updates), state.inner_state),
        )
        return new_updates, ConditionallyMaskState(safe_increment(state.step), inner_state)

    return GradientTransformationExtraArgs(init, update)
