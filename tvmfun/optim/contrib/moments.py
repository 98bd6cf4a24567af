"""Optimizers that divide running means in other ways than Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.leaf import abstract
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Updates,
    map_updates,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.transforms.adding import add_decayed_weights
from tvmfun.optim.transforms.common import (
    divide_by_root,
    in_dtype_of,
    need_params,
    optional_dtype,
    safe_increment,
    value_at,
    zero_count,
)
from tvmfun.optim.transforms.deviations import ScaleByBeliefState
from tvmfun.optim.transforms.moments import ScaleByAdamState
from tvmfun.optim.transforms.scaling import scale_by_learning_rate

__all__ = [
    "MadgradState",
    "ScaleByAdemamixState",
    "ScaleBySimplifiedAdEMAMixState",
    "acprop",
    "ademamix",
    "adopt",
    "madgrad",
    "scale_by_acprop",
    "scale_by_ademamix",
    "scale_by_adopt",
    "scale_by_madgrad",
    "scale_by_simplified_ademamix",
    "simplified_ademamix",
]


class ScaleByAdemamixState(NamedTuple):
    """The state of ``scale_by_ademamix``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        count_m2: the same, for the schedules; set it to 0 to begin them anew.
        m1: the running mean of the updates.
        m2: their slow running mean.
        nu: the running mean of their squares.
    """

    count: Any
    count_m2: Any
    m1: Updates
    m2: Updates
    nu: Updates


class ScaleBySimplifiedAdEMAMixState(NamedTuple):
    """The state of ``scale_by_simplified_ademamix``.

    Attributes:
        t: the number of updates so far, a 0-d int32 array.
        m: the decaying sum of the updates.
        n: the running mean of their squares.
    """

    t: Any
    m: Updates
    n: Updates


class MadgradState(NamedTuple):
    """The state of ``scale_by_madgrad``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        grad_sum_sq: the weighted sum of the squares of the updates.
        s: the weighted sum of the updates.
        x0: the first parameters.
    """

    count: Any
    grad_sum_sq: Updates
    s: Updates
    x0: Params


def scale_by_acprop(b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-16, eps_root: Any = 1e-16) -> GradientTransformation:
    """Divides the updates by the root of the mean squared distance of those before from their mean.

    ``u' = u / (sqrt(v^) + eps)`` with the unbiased ``v^`` (1 at first); then
    ``v' = b2 * v + (1 - b2) * (u - m)**2 + eps_root`` and ``m' = b1 * m + (1 - b1) * u``.

    Args:
        b1: the decay rate of the mean of the updates.
        b2: the decay rate of the mean of the squared distances.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root; it is added to the state.

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
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-16,
    eps_root: Any = 1e-16,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """ACProp: gradients divided by the deviation of those before; :func:`scale_by_acprop` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of the squared distances.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

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


def scale_by_ademamix(
    b1: Any = 0.9,
    b2: Any = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 6.0,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
) -> GradientTransformation:
    """Adds a slow mean to the mean of :func:`scale_by_adam`.

    ``u' = (m1^ + alpha * m2') / (sqrt(v^ + eps_root) + eps)`` with ``m2' = b3 * m2 + (1 - b3) * u``, and the unbiased
    ``m1^`` and ``v^`` of Adam.

    Args:
        b1: the decay rate of the fast mean.
        b2: the decay rate of the mean of the squares.
        b3: the decay rate of the slow mean: a number, a 0-d array or a schedule.
        alpha: its factor: a number, a 0-d array or a schedule.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to begin with for all three means; ``None`` for that of the parameters.

    Returns:
        A transformation whose state is a ``ScaleByAdemamixState``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.

    Reference: Pagliardini et al., "The AdEMAMix Optimizer: Better, Faster, Older" (2024).

    >>> transform = scale_by_ademamix(alpha=0.0)
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 4)
    1.0
    """
    dtype = optional_dtype(mu_dtype)

    def init(params: Params) -> ScaleByAdemamixState:
        m1, m2, nu = (optim_tree.zeros_like(params, dtype) for _ in range(3))
        return ScaleByAdemamixState(zero_count(), zero_count(), m1, m2, nu)

    def update(updates: Updates, state: ScaleByAdemamixState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        slow, factor = (x(state.count_m2) if callable(x) else x for x in (b3, alpha))
        m1 = optim_tree.update_moment(updates, state.m1, b1)
        m2 = map_updates(lambda u, m: (1 - in_dtype_of(m, slow)) * u + in_dtype_of(m, slow) * m, updates, state.m2)
        nu = optim_tree.update_moment(updates, state.nu, b2, 2)
        m1_hat, nu_hat = optim_tree.bias_correction(m1, b1, count), optim_tree.bias_correction(nu, b2, count)
        mixed = map_updates(lambda fast, m: fast + in_dtype_of(m, factor) * m, m1_hat, m2)
        new_state = ScaleByAdemamixState(count, safe_increment(state.count_m2), m1, m2, nu)
        return divide_by_root(mixed, nu_hat, eps, eps_root), new_state

    return GradientTransformation(init, update)


def ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 5.0,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """AdEMAMix: AdamW with a second, slow mean; :func:`scale_by_ademamix` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the fast mean.
        b2: the decay rate of the mean of the squares.
        b3: the decay rate of the slow mean: a number, a 0-d array or a schedule.
        alpha: its factor: a number, a 0-d array or a schedule.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to begin with for all three means; ``None`` for that of the parameters.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Pagliardini et al., "The AdEMAMix Optimizer: Better, Faster, Older" (2024).

    >>> optimizer = ademamix(0.5, alpha=0.0)
    >>> params = tnp.asarray(1.0)
    >>> round(float(optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)[0]), 4)
    -0.5
    """
    scaling = scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype)
    return chain(scaling, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


def scale_by_simplified_ademamix(
    b1: Any = 0.99, b2: Any = 0.95, alpha: ScalarOrSchedule = 0.0, eps: Any = 1e-8, eps_root: Any = 0.0
) -> GradientTransformation:
    """Adds the updates to their decaying sum, and divides as :func:`scale_by_adam` does.

    ``m' = b1 * m + u`` and ``u' = (m' + alpha * u) / (sqrt(v^ + eps_root) + eps)`` with Adam's unbiased ``v^``.

    Args:
        b1: the decay rate of the sum.
        b2: the decay rate of the mean of the squares.
        alpha: the factor of the updates: a number, a 0-d array or a schedule.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.

    Returns:
        A transformation whose state is a ``ScaleBySimplifiedAdEMAMixState``.

    Reference: Morwani et al., "Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD Variants"
    (2025).

    >>> transform = scale_by_simplified_ademamix()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 4)
    1.0
    """

    def init(params: Params) -> ScaleBySimplifiedAdEMAMixState:
        zeros = optim_tree.zeros_like(params)
        return ScaleBySimplifiedAdEMAMixState(zero_count(), zeros, zeros)

    def update(updates: Updates, state: ScaleBySimplifiedAdEMAMixState, params: Params | None = None) -> tuple:
        t = safe_increment(state.t)
        factor = alpha(state.t) if callable(alpha) else alpha
        m = map_updates(lambda u, m: u + b1 * m, updates, state.m)
        n = optim_tree.update_moment(updates, state.n, b2, 2)
        mixed = map_updates(lambda m, u: m + in_dtype_of(u, factor) * u, m, updates)
        new_updates = divide_by_root(mixed, optim_tree.bias_correction(n, b2, t), eps, eps_root)
        return new_updates, ScaleBySimplifiedAdEMAMixState(t, m, n)

    return GradientTransformation(init, update)


def simplified_ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.99,
    b2: Any = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """AdEMAMix with one mean less; :func:`scale_by_simplified_ademamix` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the sum of the gradients.
        b2: the decay rate of the mean of their squares.
        alpha: the factor of the gradients beside it: a number, a 0-d array or a schedule.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Morwani et al., "Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD Variants"
    (2025).

    >>> optimizer = simplified_ademamix(0.5)
    >>> params = tnp.asarray(1.0)
    >>> round(float(optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)[0]), 4)
    -0.5
    """
    scaling = scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root)
    return chain(scaling, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


def fourth_root(count: Any) -> Any:
    """``count**(1/4)``: how far ADOPT lets updates go."""
    return tnp.sqrt(tnp.sqrt(count))


def scale_by_adopt(
    b1: Any = 0.9,
    b2: Any = 0.9999,
    eps: Any = 1e-6,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Any], Any] = fourth_root,
) -> GradientTransformation:
    """Divides by the mean of the squares before, and takes the mean of that.

    ``n = u / max(sqrt(v), eps)``, limited to ``clip_value_fn(count)``; ``m' = b1 * m + (1 - b1) * n`` and
    ``v' = b2 * v + (1 - b2) * u**2``. The first update only makes ``v' = u**2``.

    Args:
        b1: the decay rate of the mean.
        b2: the decay rate of the mean of the squares.
        eps: keeps the denominator away from zero.
        mu_dtype: the dtype to keep the mean in; ``None`` for that of the parameters.
        nesterov: whether to look ahead by one step, as Nesterov does.
        use_clipping: whether ``n`` is limited.
        clip_value_fn: takes the number of updates so far, a 0-d array of floats, and returns the limit.

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

        def normalize(u: Any, v: Any) -> Any:
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


def _unless(first: Any, updates: Updates, mean: Updates, decay: Any) -> Updates:
    """The next running mean, or the same if these are the first updates."""
    return map_updates(lambda u, m: tnp.where(first, m, (1 - decay) * u + decay * m), updates, mean)


def adopt(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.9999,
    eps: Any = 1e-6,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Any], Any] = fourth_root,
) -> GradientTransformationExtraArgs:
    """ADOPT: Adam that divides before it takes the mean; :func:`scale_by_adopt` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean.
        b2: the decay rate of the mean of the squares.
        eps: keeps the denominator away from zero.
        mu_dtype: the dtype to keep the mean in; ``None`` for that of the parameters.
        nesterov: whether to look ahead by one step, as Nesterov does.
        use_clipping: whether normalized gradients are limited.
        clip_value_fn: takes the number of updates so far, a 0-d array of floats, and returns the limit.

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


def scale_by_madgrad(learning_rate: ScalarOrSchedule, momentum: Any = 0.9, eps: Any = 1e-6) -> GradientTransformation:
    """Steps from where the training began: dual averaging with momentum.

    With ``k = (learning_rate + eps) * sqrt(t)``, ``q' = q + k * u**2``, ``s' = s + k * u``, and
    ``u' = (1 - momentum) * (p_0 - s' / (cbrt(q') + eps) - p)``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        momentum: how much of the parameters stays.
        eps: keeps the denominator away from zero.

    Returns:
        A transformation whose state is a ``MadgradState``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Defazio and Jelassi, "Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient
    Method for Stochastic Optimization" (2021).

    >>> transform = scale_by_madgrad(1.0, 0.0)
    >>> params = tnp.asarray(1.0)
    >>> round(float(transform.update(tnp.asarray(8.0), transform.init(params), params)[0]), 4)
    -2.0
    """

    def init(params: Params) -> MadgradState:
        zeros = optim_tree.zeros_like(params)
        return MadgradState(zero_count(), zeros, zeros, params)

    def update(updates: Updates, state: MadgradState, params: Params | None = None) -> tuple:
        need_params("scale_by_madgrad", params)
        count = safe_increment(state.count)

        def weighted(total: Any, u: Any) -> Any:
            dtype = abstract(total).dtype
            weight = (value_at(learning_rate, state.count, dtype) + eps) * tnp.sqrt(count.astype(dtype))
            return total + (weight * u).astype(dtype)

        squares = tree.map(weighted, state.grad_sum_sq, tree.map(tnp.square, updates))
        total = tree.map(weighted, state.s, updates)

        def step(p: Any, p0: Any, s: Any, q: Any) -> Any:
            return (1 - momentum) * (p0 - s / (tnp.cbrt(q) + eps)) + momentum * p - p

        new_updates = tree.map(step, params, state.x0, total, squares)
        return new_updates, MadgradState(count, squares, total, state.x0)

    return GradientTransformation(init, update)


def madgrad(
    learning_rate: ScalarOrSchedule, momentum: Any = 0.9, weight_decay: ScalarOrSchedule = 0.0, eps: Any = 1e-6
) -> GradientTransformationExtraArgs:
    """MADGRAD: dual averaging with momentum; :func:`scale_by_madgrad` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        momentum: how much of the parameters stays.
        weight_decay: a number, a 0-d array or a schedule.
        eps: keeps the denominator away from zero.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Defazio and Jelassi, "Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient
    Method for Stochastic Optimization" (2021).

    >>> optimizer = madgrad(1.0, 0.0)
    >>> params = tnp.asarray(1.0)
    >>> round(float(optimizer.update(tnp.asarray(8.0), optimizer.init(params), params)[0]), 4)
    -2.0
    """
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps))
