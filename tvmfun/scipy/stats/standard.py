"""The standard form of a distribution: arguments of one dtype, location and scale removed."""

from __future__ import annotations

from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.numpy.promotion import operands
from tvmfun.typing import ArrayLike


def arrays(name: str, *values: Any) -> list[Array]:
    """The arguments as float arrays of one dtype."""
    return [tnp.asarray(x) for x in operands(name, *values, floating=True)]


def standardized(name: str, x: ArrayLike, loc: ArrayLike, scale: ArrayLike, *parameters: Any) -> list[Array]:
    """``(x - loc) / scale``, ``scale`` and the parameters as arrays."""
    x, loc, scale, *rest = arrays(name, x, loc, scale, *parameters)
    return [(x - loc) / scale, scale, *rest]


def log_of(probability: Array, opposite: Array) -> Array:
    """The logarithm of a probability; computed from ``opposite``, its complement, where that is the smaller one."""
    is_small = probability < 0.5
    near_one = tnp.log1p(-tnp.where(is_small, 0.5, opposite))
    return tnp.where(is_small, tnp.log(tnp.where(is_small, probability, 0.5)), near_one)


def within(y: Array, outside: Array, inside: float) -> Array:
    """``y``, and a harmless value where it is outside of the support, so that derivatives stay finite."""
    return tnp.where(outside, inside, y)
