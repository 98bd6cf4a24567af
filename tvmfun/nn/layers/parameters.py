"""What layers have in common: how they are made, and how they are shown."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tvmfun import dtypes, random, tree
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.jit import jit
from tvmfun.nn.init import Initializer

__all__ = ["check_positive", "float_dtype", "layer", "set_fields", "set_parameters", "with_fields"]

_T = TypeVar("_T")


def layer(cls: type[_T]) -> type[_T]:
    """Makes a class with annotated fields a layer: an immutable tree that shows the types of its arrays."""
    if "__repr__" not in vars(cls):
        cls.__repr__ = _show
    return tree.register_dataclass(dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)(cls))


def _show(self: Any) -> str:
    fields = (f"{field.name}={_described(getattr(self, field.name))}" for field in dataclasses.fields(self))
    return f"{type(self).__name__}({', '.join(fields)})"


def _described(value: Any) -> str:
    if isinstance(value, Array):
        return repr(ShapeDtype(value.shape, value.dtype))
    return dtypes.NAMES[value] if isinstance(value, np.dtype) else repr(value)


def set_fields(layer: Any, /, **fields: Any) -> None:
    """Sets fields of a frozen layer that is being made."""
    for name, value in fields.items():
        object.__setattr__(layer, name, value)


def with_fields(layer: _T, /, **fields: Any) -> _T:
    """The same layer with other values for some fields."""
    new = object.__new__(type(layer))
    set_fields(new, **{**vars(layer), **fields})
    return new


def float_dtype(where: str, dtype: Any) -> Any:
    """The dtype of parameters.

    Raises:
        DtypeError: if it is not a float.
    """
    dtype = dtypes.canonical(dtype)
    if not dtypes.is_float(dtype):
        raise DtypeError(where, "the dtype of the parameters must be a float", got=str(dtype), hint='"float32"')
    return dtype


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
    where = type(layer).__name__
    dtype = float_dtype(where, dtype)
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
