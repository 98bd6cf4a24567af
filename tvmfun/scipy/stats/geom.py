r"""The geometric distribution: the number of the first success, from 1, in trials of probability ``p``.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.geom``. ``loc`` is added to ``k``.
"""

from __future__ import annotations

import math
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpmf(k: Any, p: Any, loc: Any = 0) -> Array:
    """Returns the logarithm of the probability of ``k``, minus infinity where that is 0."""
    k, loc, p = arrays("logpmf", k, loc, p)
    k = k - loc
    outside = tnp.logical_or(k <= 0, tnp.floor(k) != k)
    k = tnp.where(outside, 1.0, k)
    value = special.xlog1py(k - 1, -p) + tnp.log(p)
    return tnp.where(outside, -math.inf, value)


def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Returns the probability of ``k``.

    >>> round(float(pmf(2, 0.5)), 5)
    0.25
    """
    return tnp.exp(logpmf(k, p, loc))


__all__ = ["logpmf", "pmf"]
