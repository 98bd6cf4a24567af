"""Conditions that the updates, or the updated parameters, are made to meet."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.optim.base import GradientTransformation, Params, Updates, map_updates, stateless, stateless_with_tree_map
from tvmfun.optim.transforms.common import need_params

__all__ = [
    "ZeroNansState",
    "centralize",
    "keep_params_nonnegative",
    "zero_nans",
]


class ZeroNansState(NamedTuple):
    """The state of ``zero_nans``.

    Attributes:
        found_nan: for each update whether it had a NaN at the last step, a 0-d array of bool.
    """

    found_nan: Any


def centralize() -> GradientTransformation:
    """Subtracts the mean over all axes but the first, for arrays of two axes or more: ``u' = u - mean(u)``.

    Returns:
        A transformation with an empty state.

    Reference: Yong et al., "Gradient Centralization: A New Optimization Technique for Deep Neural Networks" (2020).

    >>> from tvmfun.optim import EmptyState
    >>> centralize().update(tnp.asarray([[1.0, 3.0]]), EmptyState())[0]
    Array([[-1.,  1.]], dtype=float32)
    """

    def subtract_mean(u: Any, p: Any) -> Any:
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
        found = tree.map(lambda u: tnp.any(tnp.isnan(u)), updates)
        return map_updates(lambda u: tnp.where(tnp.isnan(u), tnp.zeros_like(u), u), updates), ZeroNansState(found)

    return GradientTransformation(init, update)
