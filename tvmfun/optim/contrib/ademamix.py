"""AdEMAMix: a slow mean of the gradients beside the fast one."""

from __future__ import annotations

from typing import NamedTuple

from tvmfun.core.array import Array
from tvmfun.optim import tree as optim_tree
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
from tvmfun.optim.numerics import divide_by_root, in_dtype_of, optional_dtype, safe_increment, zero_count
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.typing import DTypeLike, Scalar

__all__ = [
    "ScaleByAdemamixState",
    "ScaleBySimplifiedAdEMAMixState",
    "ademamix",
    "scale_by_ademamix",
    "scale_by_simplified_ademamix",
    "simplified_ademamix",
]


class ScaleByAdemamixState(NamedTuple):
    """The state of ``scale_by_ademamix``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        count_m2: the same, for the schedules; set it to 0 to restart them.
        m1: the running mean of the updates.
        m2: their slow running mean.
        nu: the running mean of their squares.
    """

    count: Array
    count_m2: Array
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

    t: Array
    m: Updates
    n: Updates


def scale_by_ademamix(
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 6.0,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> GradientTransformation:
    """Adds a slow mean to the mean of :func:`scale_by_adam`.

    ``u' = (m1^ + alpha * m2') / (sqrt(v^ + eps_root) + eps)`` with ``m2' = b3 * m2 + (1 - b3) * u``, and the unbiased
    ``m1^`` and ``v^`` of Adam.

    Args:
        b1: the decay rate of the fast mean.
        b2: the decay rate of the mean of the squares.
        b3: the decay rate of the slow mean: a number, a 0-d array or a schedule.
        alpha: its factor: a number, a 0-d array or a schedule.
        mu_dtype: the initial dtype of all three means; ``None`` for the dtype of the parameters.

    Other arguments: as :func:`tvmfun.optim.adam`.

    Returns:
        A transformation whose state is a ``ScaleByAdemamixState``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.

    Reference: Pagliardini et al., "The AdEMAMix Optimizer: Better, Faster, Older" (2024).

    >>> import tvmfun.numpy as tnp
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
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 5.0,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """AdEMAMix: AdamW with a second, slow mean; :func:`scale_by_ademamix` has the formulas.

    Args: as :func:`scale_by_ademamix` and :func:`tvmfun.optim.adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Pagliardini et al., "The AdEMAMix Optimizer: Better, Faster, Older" (2024).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = ademamix(0.5, alpha=0.0)
    >>> params = tnp.asarray(1.0)
    >>> round(float(optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)[0]), 4)
    -0.5
    """
    scaling = scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype)
    return chain(scaling, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


def scale_by_simplified_ademamix(
    b1: Scalar = 0.99, b2: Scalar = 0.95, alpha: ScalarOrSchedule = 0.0, eps: Scalar = 1e-8, eps_root: Scalar = 0.0
) -> GradientTransformation:
    """Adds the updates to their decaying sum, and divides as :func:`scale_by_adam` does.

    ``m' = b1 * m + u`` and ``u' = (m' + alpha * u) / (sqrt(v^ + eps_root) + eps)`` with Adam's unbiased ``v^``.

    Args:
        b1: the decay rate of the sum.
        b2: the decay rate of the mean of the squares.
        alpha: the factor of the updates: a number, a 0-d array or a schedule.

    Other arguments: as :func:`tvmfun.optim.adam`.

    Returns:
        A transformation whose state is a ``ScaleBySimplifiedAdEMAMixState``.

    Reference: Morwani et al., "Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD Variants"
    (2025).

    >>> import tvmfun.numpy as tnp
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
    b1: Scalar = 0.99,
    b2: Scalar = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """AdEMAMix with one mean fewer; :func:`scale_by_simplified_ademamix` has the formulas.

    Args: as :func:`scale_by_simplified_ademamix` and :func:`tvmfun.optim.adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Morwani et al., "Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD Variants"
    (2025).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = simplified_ademamix(0.5)
    >>> params = tnp.asarray(1.0)
    >>> round(float(optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)[0]), 4)
    -0.5
    """
    scaling = scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root)
    return chain(scaling, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))
