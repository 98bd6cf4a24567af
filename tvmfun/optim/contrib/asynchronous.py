"""ACProp and ADOPT: division by a second moment that excludes the current gradient."""

from __future__ import annotations

from collections.abc import Callable

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.adam import ScaleByAdamState
from tvmfun.optim.adam_variants import ScaleByBeliefState
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    map_updates,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.numerics import divide_by_root, optional_dtype, safe_increment, zero_count
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.typing import DTypeLike, Scalar

__all__ = [
    "acprop",
    "adopt",
    "scale_by_acprop",
    "scale_by_adopt",
]


def scale_by_acprop(
    b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-16, eps_root: Scalar = 1e-16
) -> GradientTransformation:
    """Divides the updates by the standard deviation of the previous updates.

    ``u' = u / (sqrt(v^) + eps)`` with the unbiased ``v^`` (1 at first); then
    ``v' = b2 * v + (1 - b2) * (u - m)**2 + eps_root`` and ``m' = b1 * m + (1 - b1) * u``.

    Args: as :func:`tvmfun.optim.scale_by_belief`.

    Returns:
        A transformation whose state is a ``ScaleByBeliefState``.

    Reference: Zhuang et al., "Momentum Centering and Asynchronous Update for Adaptive Gradient Methods" (2021).

    >>> transform = scale_by_acprop()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> float(updates)
    3.0
    """

    def init(params: Params) -> ScaleByBeliefState:
        return ScaleByBeliefState(zero_count(), optim_tree.zeros_like(params), optim_tree.zeros_like(params))

    def update(updates: Updates, state: ScaleByBeliefState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        mu = optim_tree.update_moment(updates, state.mu, b1)
        surprise = map_updates(lambda u, m: u - m, updates, state.mu)
        nu = map_updates(lambda v: v + eps_root, optim_tree.update_moment(surprise, state.nu, b2, 2))
        first = state.count == 0
        before = optim_tree.bias_correction(state.nu, b2, tnp.maximum(state.count, 1))
        before = map_updates(lambda v: tnp.where(first, tnp.ones_like(v), v), before)
        return divide_by_root(updates, before, eps), ScaleByBeliefState(count, mu, nu)

    return GradientTransformation(init, update)


def acprop(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-16,
    eps_root: Scalar = 1e-16,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """ACProp: gradients over the standard deviation of the previous ones; :func:`scale_by_acprop` has the formulas.

    Args: as :func:`tvmfun.optim.scale_by_belief` and :func:`tvmfun.optim.adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Zhuang et al., "Momentum Centering and Asynchronous Update for Adaptive Gradient Methods" (2021).

    >>> optimizer = acprop(0.5)
    >>> params = tnp.asarray(1.0)
    >>> float(optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)[0])
    -2.0
    """
    scaling = scale_by_acprop(b1, b2, eps, eps_root)
    return chain(scaling, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


def fourth_root(count: Array) -> Array:
    """``count**(1/4)``: the limit of ADOPT."""
    return tnp.sqrt(tnp.sqrt(count))


def scale_by_adopt(
    b1: Scalar = 0.9,
    b2: Scalar = 0.9999,
    eps: Scalar = 1e-6,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Array], Scalar] = fourth_root,
) -> GradientTransformation:
    """Divides by the root of the previous second moment, and takes the mean of the result.

    ``n = u / max(sqrt(v), eps)``, limited to ``clip_value_fn(count)``; ``m' = b1 * m + (1 - b1) * n`` and
    ``v' = b2 * v + (1 - b2) * u**2``. The first update only makes ``v' = u**2``.

    Args:
        use_clipping: whether ``n`` is limited.
        clip_value_fn: a function from the number of updates so far, a 0-d array of floats, to the limit.

    Other arguments: as :func:`tvmfun.optim.adam`.

    Returns:
        A transformation whose state is a ``ScaleByAdamState``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.

    Reference: Taniguchi et al., "ADOPT: Modified Adam Can Converge with Any beta2 with the Optimal Rate" (2024).

    >>> transform = scale_by_adopt()
    >>> state = transform.init(tnp.asarray(2.0))
    >>> for _ in range(2):
    ...     updates, state = transform.update(tnp.asarray(3.0), state)
    ...     print(round(float(updates), 6))
    0.0
    0.1
    """
    dtype = optional_dtype(mu_dtype)

    def init(params: Params) -> ScaleByAdamState:
        return ScaleByAdamState(zero_count(), optim_tree.zeros_like(params, dtype), optim_tree.zeros_like(params))

    def update(updates: Updates, state: ScaleByAdamState, params: Params | None = None) -> tuple:
        first = state.count == 0

        def normalize(u: Array, v: Array) -> Array:
            n = u / tnp.maximum(tnp.sqrt(v), eps)
            if not use_clipping:
                return n
            limit = clip_value_fn(state.count.astype(abstract(n).dtype))
            return tnp.clip(n, -limit, limit)

        normalized = map_updates(normalize, updates, state.nu)
        mu = _unless(first, normalized, state.mu, b1)
        new_updates = _unless(first, normalized, mu, b1) if nesterov else mu
        square = optim_tree.update_moment(updates, state.nu, b2, 2)
        nu = map_updates(lambda u, v: tnp.where(first, u * u, v), updates, square)
        return new_updates, ScaleByAdamState(safe_increment(state.count), optim_tree.cast(mu, dtype), nu)

    return GradientTransformation(init, update)


def _unless(first: Array, updates: Updates, mean: Updates, decay: Scalar) -> Updates:
    """The next running mean, or the same if these are the first updates."""
    return map_updates(lambda u, m: tnp.where(first, m, (1 - decay) * u + decay * m), updates, mean)


def adopt(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.9999,
    eps: Scalar = 1e-6,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Array], Scalar] = fourth_root,
) -> GradientTransformationExtraArgs:
    """ADOPT: Adam that divides before it takes the mean; :func:`scale_by_adopt` has the formulas.

    Args: as :func:`scale_by_adopt` and :func:`tvmfun.optim.adam`.

    Returns:
        The optimizer.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.

    Reference: Taniguchi et al., "ADOPT: Modified Adam Can Converge with Any beta2 with the Optimal Rate" (2024).

    >>> optimizer = adopt(0.5)
    >>> state = optimizer.init(tnp.asarray(2.0))
    >>> for _ in range(2):
    ...     updates, state = optimizer.update(tnp.asarray(3.0), state)
    >>> round(float(updates), 6)
    -0.05
    """
    scaling = scale_by_adopt(
        b1, b2, eps, mu_dtype, nesterov=nesterov, use_clipping=use_clipping, clip_value_fn=clip_value_fn
    )
    return chain(scaling, scale_by_learning_rate(learning_rate))
