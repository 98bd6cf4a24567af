"""Optimizers whose steps depend on the norm of a whole array: LAMB, LARS, Fromage and NovoGrad."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.optim.adam import scale_by_adam
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    map_updates,
    stateless,
)
from tvmfun.optim.combine import chain, masked
from tvmfun.optim.momentum import trace
from tvmfun.optim.numerics import (
    need_params,
    optional_dtype,
    safe_increment,
    safe_norm,
    zero_count,
)
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.optim.tree import cast, zeros_like
from tvmfun.typing import DTypeLike, Scalar

__all__ = [
    "ScaleByNovogradState",
    "ScaleByTrustRatioState",
    "fromage",
    "lamb",
    "lars",
    "novograd",
    "scale_by_novograd",
    "scale_by_trust_ratio",
]

#: optax's name of the state of ``scale_by_trust_ratio``, which is empty.
ScaleByTrustRatioState = EmptyState


class ScaleByNovogradState(NamedTuple):
    """The state of ``scale_by_novograd``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the decaying sum of the normalized updates.
        nu: the running mean of the squared norm of each update, a 0-d array.
    """

    count: Array
    mu: Updates
    nu: Updates


def scale_by_trust_ratio(
    min_norm: Scalar = 0.0, trust_coefficient: Scalar = 1.0, eps: Scalar = 0.0
) -> GradientTransformation:
    """Scales each update to a norm in proportion to the norm of its parameter.

    ``u' = u * trust_coefficient * norm(p) / (norm(u) + eps)``, and ``u' = u`` if one of the norms is zero.

    Args:
        min_norm: the lower bound of both norms.
        trust_coefficient: the ratio of the two norms.
        eps: keeps the denominator away from zero.

    Returns:
        A transformation with an empty state.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020).

    >>> transform = scale_by_trust_ratio()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)), tnp.asarray(2.0))
    >>> round(float(updates), 6)
    2.0
    """

    def apply(updates: Updates, params: Params | None) -> Updates:
        need_params("scale_by_trust_ratio", params)

        def rescale(u: Array, p: Array) -> Array:
            param_norm, update_norm = safe_norm(p, min_norm), safe_norm(u, min_norm)
            is_zero = (param_norm == 0) | (update_norm == 0)
            divisor = tnp.where(is_zero, tnp.ones_like(update_norm), update_norm + eps)
            return u * tnp.where(is_zero, tnp.ones_like(param_norm), trust_coefficient * param_norm / divisor)

        return map_updates(rescale, updates, params)

    return stateless(apply)


def scale_by_novograd(
    b1: Scalar = 0.9,
    b2: Scalar = 0.25,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> GradientTransformation:
    """Divides each update by a running mean of its norm, decays the weights, and adds momentum.

    ``v' = b2 * v + (1 - b2) * norm(u)**2`` (at first ``norm(u)**2``),
    ``m' = b1 * m + u / (sqrt(v' + eps_root) + eps) + weight_decay * p``, and ``u' = m'``.

    Args:
        b1: the decay rate of the sum of the normalized updates.
        b2: the decay rate of the mean of the squared norms.
        weight_decay: the factor of the parameters, a number or a 0-d array.
        mu_dtype: the dtype of the sum; ``None`` for the dtype of the parameters.

    Other arguments: as :func:`adam`.

    Returns:
        A transformation whose state is a ``ScaleByNovogradState``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments" (2019).

    >>> transform = scale_by_novograd()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)), tnp.asarray(2.0))
    >>> round(float(updates), 6)
    1.0
    """
    dtype = optional_dtype(mu_dtype)

    def init(params: Params) -> ScaleByNovogradState:
        norms = tree.map(lambda p: tnp.zeros((), dtype=abstract(p).dtype), params)
        return ScaleByNovogradState(zero_count(), zeros_like(params, dtype), norms)

    def update(updates: Updates, state: ScaleByNovogradState, params: Params | None = None) -> tuple:
        need_params("scale_by_novograd", params)
        first, count = state.count == 0, safe_increment(state.count)

        def mean_norm(u: Array, v: Array) -> Array:
            square = tnp.sum(tnp.square(u)).astype(v.dtype)
            return tnp.where(first, square, (1 - b2) * square + b2 * v)

        def add(u: Array, p: Array, v: Array, m: Array) -> Array:
            normalized = u / (tnp.sqrt(v + eps_root) + eps) + weight_decay * p
            return normalized + tnp.where(first, tnp.zeros_like(m), b1 * m)

        nu = map_updates(mean_norm, updates, state.nu)
        mu = cast(map_updates(add, updates, params, nu, state.mu), dtype)
        return mu, ScaleByNovogradState(count, mu, nu)

    return GradientTransformation(init, update)


def lamb(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-6,
    eps_root: Scalar = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """LAMB: Adam, with steps scaled by the norm of each parameter; :func:`scale_by_trust_ratio` has the formula.

    Args:
        eps: keeps the denominator away from zero.
        weight_decay: a number, a 0-d array or a schedule.

    Other arguments: as :func:`adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = lamb(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.2
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
    )


def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn | None = True,
    trust_coefficient: Scalar = 0.001,
    eps: Scalar = 0.0,
    trust_ratio_mask: MaskOrFn | None = True,
    momentum: Scalar = 0.9,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """LARS: momentum, with steps scaled by the norm of each parameter; :func:`scale_by_trust_ratio` has the formula.

    Args:
        weight_decay: a number, a 0-d array or a schedule.
        weight_decay_mask: which parameters to decay, as for :func:`masked`.
        trust_ratio_mask: which updates to scale, as for :func:`masked`.
        momentum: the decay rate of the momentum.

    Other arguments: as :func:`scale_by_trust_ratio` and :func:`sgd`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: You et al., "Large Batch Training of Convolutional Networks" (2017).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = lars(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.0002
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        masked(scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps), trust_ratio_mask),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
    )


def fromage(learning_rate: ScalarOrSchedule, min_norm: Scalar = 1e-6) -> GradientTransformationExtraArgs:
    """Fromage: steps in proportion to the parameters, and a shrinkage that bounds them.

    ``u = -r * learning_rate * g * norm(p) / norm(g) + (r - 1) * p`` with ``r = 1 / sqrt(1 + learning_rate**2)``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        min_norm: the lower bound of the norms.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Bernstein et al., "On the distance between two neural networks and the stability of learning" (2020).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = fromage(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.208933
    """

    def shrinkage(rate: Scalar) -> Scalar:
        return 1 / (1 + rate**2) ** 0.5

    if callable(learning_rate):
        rate = learning_rate
        step: ScalarOrSchedule = lambda count: shrinkage(rate(count)) * rate(count)
        decay: ScalarOrSchedule = lambda count: shrinkage(rate(count)) - 1
    else:
        step, decay = learning_rate * shrinkage(learning_rate), shrinkage(learning_rate) - 1
    return chain(scale_by_trust_ratio(min_norm), scale_by_learning_rate(step), add_decayed_weights(decay))


def novograd(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.25,
    eps: Scalar = 1e-6,
    eps_root: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
) -> GradientTransformationExtraArgs:
    """NovoGrad: gradients divided by the running mean of their norm; :func:`scale_by_novograd` has the formulas.

    Args: as :func:`scale_by_novograd` and :func:`adam`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments" (2019).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = novograd(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.1
    """
    scaling = scale_by_novograd(b1, b2, eps, eps_root, weight_decay)
    return chain(scaling, scale_by_learning_rate(learning_rate))
