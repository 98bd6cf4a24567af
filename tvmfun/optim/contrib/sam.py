"""Sharpness-aware minimization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvmfun import lax, tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Updates,
    apply_updates,
    map_updates,
    select,
    stateless,
)
from tvmfun.optim.numerics import need_params, zero_count

__all__ = ["SAMState", "normalize", "sam"]


def normalize() -> GradientTransformation:
    """Divides the updates by the norm of all of them: ``u' = u / norm(u)``.

    Returns:
        A transformation with an empty state.

    >>> import tvmfun.numpy as tnp
    >>> updates = tnp.asarray([3.0, 4.0])
    >>> normalize().update(updates, normalize().init(updates))[0]
    Array([0.6, 0.8], dtype=float32)
    """

    def apply(updates: Updates, params: Params | None) -> Updates:
        norm = optim_tree.norm(updates)
        return map_updates(lambda u: u / norm, updates)

    return stateless(apply)


class SAMState(NamedTuple):
    """The state of ``sam``.

    Attributes:
        steps_since_sync: the number of adversarial steps since the last outer one, a 0-d int32 array.
        opt_state: the state of the outer optimizer.
        adv_state: the state of the adversarial one.
        cache: the parameters before the adversarial steps; ``None`` in the opaque mode.
    """

    steps_since_sync: Array
    opt_state: OptState
    adv_state: OptState
    cache: Params | None


def sam(
    optimizer: GradientTransformation,
    adv_optimizer: GradientTransformation,
    sync_period: int = 2,
    reset_state: bool = True,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> GradientTransformationExtraArgs:
    """Sharpness-aware minimization: ascends for some steps, then descends from the start with the gradient found there.

    ``sync_period - 1`` steps ``p' = p - u_adv`` of the adversarial optimizer go up; then ``p' = p_0 + u`` with the
    update ``u`` that the outer optimizer makes of the last gradient. With ``chain(normalize(), sgd(rho))`` climbing one
    step, this is the method of the paper.

    Args:
        optimizer: the outer optimizer.
        adv_optimizer: the adversarial one.
        sync_period: the number of steps per step of the outer optimizer.
        reset_state: whether to reset the adversarial optimizer then.
        opaque_mode: whether all steps of a period are made by one call of ``update``, which then needs
            ``grad_fn=``: a function from parameters and the number of the step to a gradient.
        batch_axis_name: in the opaque mode, a named axis to take the mean of the gradients over.

    Returns:
        The optimizer, with a ``SAMState``; its ``update`` needs ``params``.

    Raises:
        ArgumentError: if ``sync_period`` is less than 1; on ``update``, if it gets no ``params``, or in the opaque mode
            no ``grad_fn``.

    Reference: Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization" (2021).

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import chain, sgd
    >>> optimizer = sam(sgd(0.5), chain(normalize(), sgd(0.25)))
    >>> params = tnp.asarray(1.0)
    >>> state = optimizer.init(params)
    >>> for _ in range(2):
    ...     updates, state = optimizer.update(2 * params, state, params)
    ...     params = apply_updates(params, updates)
    ...     print(float(params))
    1.25
    -0.25
    """
    if sync_period < 1:
        raise ArgumentError("sam", "sync_period must be at least 1", got=str(sync_period))

    def init(params: Params) -> SAMState:
        cache = None if opaque_mode else params
        return SAMState(zero_count(), optimizer.init(params), adv_optimizer.init(params), cache)

    def climb(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        updates, state = adv_optimizer.update(updates, state, params)
        return map_updates(lambda u: -u, updates), state

    def update(updates: Updates, state: SAMState, params: Params | None = None, **extra_args: Any) -> tuple:
        need_params("sam", params)
        first, last = state.steps_since_sync == 0, state.steps_since_sync == sync_period - 1
        # The start of the climb, from which the outer optimizer continues.
        cache = select(first, params, state.cache)
        up, adv_state = climb(updates, state.adv_state, params)
        step, opt_state = optimizer.update(updates, state.opt_state, cache)
        down = tree.map(lambda start, p, u: start - p + u, cache, params, step)
        restart = adv_optimizer.init(params) if reset_state else state.adv_state
        return select(last, down, up), SAMState(
            ((state.steps_since_sync + 1) % sync_period).astype("int32"),
            select(last, opt_state, state.opt_state),
            select(last, restart, adv_state),
            cache,
        )

    def opaque_update(
        updates: Updates,
        state: SAMState,
        params: Params | None = None,
        *,
        grad_fn: Callable[[Params, int], Updates] | None = None,
        **extra_args: Any,
    ) -> tuple:
        need_params("sam", params)
        if grad_fn is None:
            raise ArgumentError(
                "sam", "the opaque mode needs the gradient", got="grad_fn=None", hint="update(..., grad_fn=grad(loss))"
            )
        highest, adv_state = params, state.adv_state
        for step in range(sync_period - 1):
            up, adv_state = climb(updates, adv_state, highest)
            highest = apply_updates(highest, up)
            updates = grad_fn(highest, step)
            if batch_axis_name is not None:
                updates = lax.pmean(updates, batch_axis_name)
        if reset_state:
            adv_state = adv_optimizer.init(params)
        updates, opt_state = optimizer.update(updates, state.opt_state, params)
        return updates, SAMState(zero_count(), opt_state, adv_state, None)

    return GradientTransformationExtraArgs(init, opaque_update if opaque_mode else update)
