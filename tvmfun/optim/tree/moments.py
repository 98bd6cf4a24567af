"""Running means of trees."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.leaf import abstract
from tvmfun.optim.base import Updates, map_updates

__all__ = [
    "bias_correction",
    "update_infinity_moment",
    "update_moment",
    "update_moment_per_elem_norm",
]


def update_moment(updates: Updates, moments: Updates, decay: Any, order: int = 1) -> Updates:
    """One step of a running mean of powers: ``m' = (1 - decay) * u**order + decay * m``.

    Args:
        updates: a tree of arrays; where it has ``None`` the result has, too.
        moments: the means so far, a tree of the same structure.
        decay: the decay rate, a number or a 0-d array.
        order: the power.

    Returns:
        The next means.

    >>> update_moment({"w": 3.0}, {"w": 1.0}, 0.5, 2)
    {'w': 5.0}
    """
    return map_updates(lambda u, m: (1 - decay) * u**order + decay * m, updates, moments)


def update_moment_per_elem_norm(updates: Updates, moments: Updates, decay: Any, order: int = 1) -> Updates:
    """One step of a running mean of powers, as :func:`update_moment`: they differ for complex numbers only.

    Args:
        updates: a tree of arrays; where it has ``None`` the result has, too.
        moments: the means so far, a tree of the same structure.
        decay: the decay rate, a number or a 0-d array.
        order: the power.

    Returns:
        The next means.

    >>> update_moment_per_elem_norm({"w": 3.0}, {"w": 1.0}, 0.5, 2)
    {'w': 5.0}
    """
    return update_moment(updates, moments, decay, order)


def update_infinity_moment(updates: Updates, moments: Updates, decay: Any, eps: Any) -> Updates:
    """One step of a decaying maximum: ``m' = max(|u| + eps, decay * m)``.

    Args:
        updates: a tree of arrays; where it has ``None`` the result has, too.
        moments: the maxima so far, a tree of the same structure.
        decay: the decay rate, a number or a 0-d array.
        eps: keeps the maximum away from zero.

    Returns:
        The next maxima.

    >>> float(update_infinity_moment({"w": tnp.asarray(-3.0)}, {"w": 1.0}, 0.5, 0.0)["w"])
    3.0
    """
    return map_updates(lambda u, m: tnp.maximum(tnp.abs(u) + eps, decay * m), updates, moments)


def bias_correction(moment: Updates, decay: Any, count: Any) -> Updates:
    """Removes the bias of a running mean that started from zero: ``m / (1 - decay**count)``.

    Args:
        moment: a tree of arrays; where it has ``None`` the result has, too.
        decay: the decay rate, a number or a 0-d array.
        count: the number of steps, a 0-d array of integers.

    Returns:
        A tree of the same structure.

    >>> float(bias_correction(tnp.asarray(1.5), 0.5, tnp.asarray(1)))
    3.0
    """

    @functools.cache  # one power for all leaves of a dtype
    def missing(dtype: np.dtype) -> Any:
        # In half precision decay**count would round to 1, and the result be infinite.
        wide = dtypes.result_type(dtype, "float32")
        return (1 - decay ** tnp.asarray(count).astype(wide)).astype(dtype)

    return map_updates(lambda m: m / missing(abstract(m).dtype), moment)
