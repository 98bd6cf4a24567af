"""Transformations applied under a condition, and updates accumulated over several batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Updates,
    refuse_row_sparse,
    select,
    with_extra_args_support,
)
from tvmfun.optim.numerics import safe_increment, zero_count
from tvmfun.optim.tree import zeros_like
from tvmfun.typing import ArrayLike, DTypeLike, PyTree, Scalar

__all__ = [
    "ApplyIfFiniteState",
    "ConditionallyMaskState",
    "ConditionallyTransformState",
    "MultiSteps",
    "MultiStepsState",
    "ShouldSkipUpdateFunction",
    "apply_if_finite",
    "conditionally_mask",
    "conditionally_transform",
    "skip_large_updates",
    "skip_not_finite",
]

#: Returns whether to skip updates, and a tree to keep in the state; see ``MultiSteps``.
ShouldSkipUpdateFunction: TypeAlias = Callable[[Updates, Array, Params | None], tuple[Array, PyTree]]


class ApplyIfFiniteState(NamedTuple):
    """The state of ``apply_if_finite``.

    Attributes:
        notfinite_count: the number of consecutive updates that were not finite, a 0-d int32 array.
        last_finite: whether the last update was finite, a 0-d array of bool.
        total_notfinite: the number of updates that were not finite so far, a 0-d int32 array.
        inner_state: the state of the transformation.
    """

    notfinite_count: Array
    last_finite: Array
    total_notfinite: Array
    inner_state: OptState


class ConditionallyTransformState(NamedTuple):
    """The state of ``conditionally_transform``.

    Attributes:
        inner_state: the state of the transformation.
        step: the number of updates so far, a 0-d int32 array.
    """

    inner_state: OptState
    step: Array


class ConditionallyMaskState(NamedTuple):
    """The state of ``conditionally_mask``.

    Attributes:
        step: the number of updates so far, a 0-d int32 array.
        inner_state: the state of the transformation.
    """

    step: Array
    inner_state: OptState


def count_not_finite(updates: Updates) -> Array:
    counts = [tnp.sum((~tnp.isfinite(u)).astype("int32")) for u in tree.leaves(updates)]
    return sum(counts, tnp.zeros((), dtype="int32")).astype("int32")


def apply_when(condition: ArrayLike, apply: Callable[[], tuple], otherwise: Callable[[], tuple]) -> tuple:
    """Runs ``apply()`` or ``otherwise()``, and converts the result to the dtypes of the latter."""

    def chosen() -> tuple:
        return tree.map(lambda new, old: tnp.asarray(new).astype(abstract(old).dtype), apply(), otherwise())

    return lax.cond(condition, chosen, lambda: tree.map(tnp.asarray, otherwise()))


def apply_if_finite(inner: GradientTransformation, max_consecutive_errors: int) -> GradientTransformationExtraArgs:
    """Drops updates with a NaN or an infinity, and leaves the state as it was.

    Args:
        inner: the transformation that gets the finite updates.
        max_consecutive_errors: the number of consecutive updates to drop; the next one is applied.

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
    """Applies a transformation at some steps, and leaves the updates unchanged at the others.

    Args:
        inner: the transformation.
        should_transform_fn: takes the number of updates so far, a 0-d int32 array, and returns a 0-d array of bool.
        forward_extra_args: whether to pass it the further keyword arguments of ``update``.

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

    Args: as :func:`conditionally_transform`.

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


class MultiStepsState(NamedTuple):
    """The state of ``MultiSteps``.

    Attributes:
        mini_step: the number of gradients accumulated, a 0-d int32 array.
        gradient_step: the number of updates made of them, a 0-d int32 array.
        inner_opt_state: the state of the optimizer.
        acc_grads: the mean, or the sum, of the gradients accumulated.
        skip_state: the second result of ``should_skip_update_fn`` for the last gradients.
    """

    mini_step: Array
    gradient_step: Array
    inner_opt_state: OptState
    acc_grads: Updates
    skip_state: OptState = ()


def skip_not_finite(updates: Updates, gradient_step: Array, params: Params | None) -> tuple[Any, dict[str, Any]]:
    """Tells :class:`MultiSteps` to skip gradients with a NaN or an infinity.

    Args:
        updates: a tree of gradients.
        gradient_step: not used.
        params: not used.

    Returns:
        Whether to skip them, a 0-d array of bool, and a dict of it and the number of elements that are not finite.

    >>> bool(skip_not_finite(tnp.asarray([1.0, float("inf")]), 0, None)[0])
    True
    """
    count = count_not_finite(updates)
    return count > 0, {"should_skip": count > 0, "num_not_finite": count}


def skip_large_updates(
    updates: Updates, gradient_step: Array, params: Params | None, max_squared_norm: Scalar
) -> tuple[Any, dict[str, Any]]:
    """Tells :class:`MultiSteps` to skip large gradients; bind ``max_squared_norm`` with ``functools.partial``.

    Args:
        updates: a tree of gradients.
        gradient_step: not used.
        params: not used.
        max_squared_norm: the limit for the sum of the squares of all elements.

    Returns:
        Whether to skip them, a 0-d array of bool, and a dict of it and the sum; NaN is skipped as well.

    >>> bool(skip_large_updates(tnp.asarray([3.0, 4.0]), 0, None, 24.0)[0])
    True
    """
    square = sum(tnp.sum(tnp.square(u)) for u in tree.leaves(updates))
    skip = ~(square < max_squared_norm)
    return skip, {"should_skip": skip, "norm_squared": square}


class MultiSteps:
    """Accumulates the gradients of several batches, and makes one update of them.

    With the mean of the gradients, ``k`` batches of a mean loss count as one batch ``k`` times as large. The updates
    in between are zeros, and the optimizer does not run.

    Args:
        opt: the optimizer.
        every_k_schedule: how many gradients to accumulate: an int, or a function from the number of updates made so
            far, a 0-d int32 array, to a 0-d integer array.
        use_grad_mean: whether to take the mean of the gradients, or their sum.
        should_skip_update_fn: takes gradients, the number of updates made so far and the parameters, and returns
            whether to leave these gradients out, a 0-d array of bool, and a tree to keep in the state; see
            :func:`skip_not_finite`.
        accumulator_dtype: the dtype to accumulate in; ``None`` for the dtype of the parameters.

    Raises:
        DtypeError: if ``accumulator_dtype`` is unknown.
        ArgumentError: if ``every_k_schedule`` is less than 1.

    >>> from tvmfun.optim import sgd
    >>> optimizer = MultiSteps(sgd(1.0), 2)
    >>> state = optimizer.init(tnp.asarray(0.0))
    >>> for gradient in (1.0, 3.0):
    ...     updates, state = optimizer.update(tnp.asarray(gradient), state)
    ...     print(float(updates), bool(optimizer.has_updated(state)))
    0.0 False
    -2.0 True
    """

    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: int | Callable[[Array], Scalar],
        use_grad_mean: bool = True,
        should_skip_update_fn: ShouldSkipUpdateFunction | None = None,
        accumulator_dtype: DTypeLike | None = "float32",
    ) -> None:
        if isinstance(every_k_schedule, int) and every_k_schedule < 1:
            raise ArgumentError("MultiSteps", "every_k_schedule must be at least 1", got=str(every_k_schedule))
        self.inner_opt = with_extra_args_support(opt)
        self._steps = every_k_schedule if callable(every_k_schedule) else lambda step: every_k_schedule
        self._mean = use_grad_mean
        self._skip = should_skip_update_fn
        self._dtype = None if accumulator_dtype is None else dtypes.canonical(accumulator_dtype)

    def init(self, params: Params) -> MultiStepsState:
        """Makes the state for a tree of parameters."""
        step = zero_count()
        skip_state = () if self._skip is None else self._skip(zeros_like(params), step, params)[1]
        zeros = zeros_like(params, self._dtype)
        return MultiStepsState(zero_count(), step, self.inner_opt.init(params), zeros, skip_state)

    def update(
        self, updates: Updates, state: MultiStepsState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, MultiStepsState]:
        """Accumulates gradients, and returns an update, or zeros and the next state."""
        steps = self._steps(state.gradient_step)

        refuse_row_sparse("MultiSteps", updates)

        def accumulate(u: Array, total: Array) -> Array:
            return total + (u - total) / (state.mini_step + 1).astype(total.dtype) if self._mean else u + total

        grads = tree.map(accumulate, updates, state.acc_grads)
        emit = state.mini_step == steps - 1
        skip, skip_state = None, ()
        if self._skip is not None:
            skip, skip_state = self._skip(updates, state.gradient_step, params)
            emit = emit & ~skip
        mean = tree.map(lambda g, u: g.astype(abstract(u).dtype), grads, updates)
        new_updates, inner = apply_when(
            emit,
            lambda: self.inner_opt.update(mean, state.inner_opt_state, params, **extra_args),
            lambda: (zeros_like(updates), state.inner_opt_state),
        )
        new_state = MultiStepsState(
            ((state.mini_step + 1) % steps).astype("int32"),
            tnp.where(emit, safe_increment(state.gradient_step), state.gradient_step),
            inner,
            select(emit, zeros_like(state.acc_grads), tree.map(lambda g, a: g.astype(a.dtype), grads, state.acc_grads)),
        )
        if skip is not None:
            new_state = select(skip, state._replace(skip_state=()), new_state)
        return new_updates, new_state._replace(skip_state=skip_state)

    def has_updated(self, state: MultiStepsState) -> Array:
        """Whether the last call of ``update`` made an update of the gradients, a 0-d array of bool."""
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def gradient_transformation(self) -> GradientTransformation:
        """The transformation of ``init`` and ``update``."""
        return GradientTransformationExtraArgs(self.init, self.update)
