"""What layers need to make their parameters."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tvmfun import dtypes, random
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.jit import jit
from tvmfun.nn.init import Initializer

__all__ = ["check_positive", "set_parameters"]


def check_positive(where: str, **numbers: int) -> None:
    """Raises an ArgumentError unless each number is a positive integer."""
    for name, number in numbers.items():
        if not isinstance(number, int) or number <= 0:
            raise ArgumentError(where, f"{name} must be a positive integer", got=repr(number))


def set_parameters(
    layer: Any,
    key: Any,
    shape: tuple[int, ...],
    fan_in: int,
    bias: bool,
    dtype: Any,
    weight_init: Initializer | None,
    bias_init: Initializer | None,
) -> None:
    """Gives a frozen layer its initial weight and bias."""
    where, dtype = type(layer).__name__, dtypes.canonical(dtype)
    if not dtypes.is_float(dtype):
        raise DtypeError(where, "the dtype of the parameters must be a float", got=str(dtype), hint='"float32"')
    drawn = {"weight": weight_init is None, "bias": bias and bias_init is None}
    weight, bias_array = _draw_parameters(key, shape=shape, fan_in=fan_in, dtype=dtype, **drawn)
    if weight_init is not None:
        weight = weight_init(random.split(key)[0], shape, dtype)
    if bias and bias_init is not None:
        bias_array = bias_init(random.split(key)[1], shape[-1:], dtype)
    for name, array, expected in (("weight", weight, shape), ("bias", bias_array, shape[-1:])):
        if array is not None and array.shape != expected:
            raise ShapeError(where, f"the initializer must make a {name} of shape {expected}", got=str(array.shape))
        object.__setattr__(layer, name, array)


# Compiled as a whole: op by op, each new shape would compile every op of the generator.
@partial(jit, static_argnames=("shape", "fan_in", "weight", "bias", "dtype"))
def _draw_parameters(
    key: Any, *, shape: tuple[int, ...], fan_in: int, weight: bool, bias: bool, dtype: Any
) -> tuple[Array | None, Array | None]:
    bound = 1 / math.sqrt(fan_in)
    keys = random.split(key)
    shapes = (shape if weight else None, shape[-1:] if bias else None)
    draws = [
        None if s is None else random.uniform(k, s, dtype, -bound, bound) for k, s in zip(keys, shapes, strict=True)
    ]
    return draws[0], draws[1]
