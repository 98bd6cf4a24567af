"""Parts that all layers share: the class decorator, initial parameters, checks of arguments."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np

from tvmfun import dtypes, random, tree
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.errors import ArgumentError, DtypeError, ImmutableError, ShapeError
from tvmfun.names import missing_attribute
from tvmfun.nn.init import Initializer
from tvmfun.numpy.creation import Shape
from tvmfun.typing import DType, DTypeLike, Key

__all__ = ["check_positive", "float_dtype", "initial_parameters", "layer", "with_fields"]

_T = TypeVar("_T")


# -- the class -------------------------------------------------------------------------------------------------


def layer(cls: type[_T]) -> type[_T]:
    """Makes a class with annotated fields a layer: an immutable tree whose repr shows the types of its arrays.

    Its ``__init__`` assigns the fields; once it has returned, assigning one raises an ImmutableError.
    ``dataclasses.replace(layer, bias=bias)`` returns a layer with another value of a field.
    """
    if "__repr__" not in vars(cls):
        cls.__repr__ = _show
    cls = dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)(cls)
    cls.__setattr__, cls.__delattr__ = _explained(cls.__setattr__), _explained(cls.__delattr__)
    if not hasattr(cls, "__getattr__"):
        cls.__getattr__ = _missing  # type: ignore[reportAttributeAccessIssue]
    if "__init__" in vars(cls):
        cls.__init__ = _unfrozen_during(cls.__init__)
    return tree.register_dataclass(cls)


def _show(self: Any) -> str:
    fields = (f"{field.name}={_described(getattr(self, field.name))}" for field in dataclasses.fields(self))
    return f"{type(self).__name__}({', '.join(fields)})"


def _described(value: Any) -> str:
    if isinstance(value, Array):
        return repr(ShapeDtype(value.shape, value.dtype))
    return dtypes.NAMES[value] if isinstance(value, np.dtype) else repr(value)


def _explained(assign: Callable[..., None]) -> Any:
    """The ``__setattr__`` or ``__delattr__`` of a frozen dataclass, with an error of this library."""

    @wraps(assign)
    def checked(self: Any, name: str, *value: Any) -> None:
        try:
            assign(self, name, *value)
        except dataclasses.FrozenInstanceError:
            what = "layers are immutable"
            hint = "dataclasses.replace, tree.map, or a new layer"
            raise ImmutableError(type(self).__name__, what, got=f"an assignment to {name!r}", hint=hint) from None

    return checked


def _missing(self: Any, name: str) -> Any:
    """The ``__getattr__`` of a layer."""
    raise missing_attribute("layer", type(self).__name__, name)


def _unfrozen_during(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that may assign to the fields of a frozen class: it runs on an object of an unfrozen subclass.

    Called with all fields, some of which are no parameters of its own, as by ``dataclasses.replace``, it assigns these.
    """
    parameters = inspect.signature(init).parameters.values()
    own = {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        is_known = kwargs.keys() <= own
        if not args and not is_known and kwargs.keys() == {field.name for field in dataclasses.fields(cls)}:
            for name, value in kwargs.items():
                object.__setattr__(self, name, value)
            return
        if cls.__setattr__ is object.__setattr__:  # called by the constructor of a subclass
            init(self, *args, **kwargs)
            return
        object.__setattr__(self, "__class__", _unfrozen(cls))
        try:
            init(self, *args, **kwargs)
        finally:
            object.__setattr__(self, "__class__", cls)

    return __init__


@cache
def _unfrozen(cls: type) -> type:
    """A subclass of the same name whose instances can be assigned to."""
    namespace = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    namespace |= {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(cls)(cls.__name__, (cls,), namespace)


def with_fields(layer: _T, /, **fields: Any) -> _T:
    """A copy of a layer with other values for some fields."""
    new = object.__new__(type(layer))
    for name, value in {**vars(layer), **fields}.items():
        object.__setattr__(new, name, value)
    return new


# -- arguments -------------------------------------------------------------------------------------------------


def float_dtype(where: str, dtype: DTypeLike) -> DType:
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


# -- initial parameters ----------------------------------------------------------------------------------------


def initial_parameters(
    where: str,
    key: Key,
    shape: tuple[int, ...],
    *,
    fan_in: int,
    bias: bool,
    dtype: DTypeLike,
    weight_init: Initializer | None,
    bias_init: Initializer | None,
) -> tuple[Array, Array | None]:
    """Draws the weight and the bias of a layer, uniform within ``1 / sqrt(fan_in)`` unless there are initializers."""
    dtype = float_dtype(where, dtype)
    bound = 1 / math.sqrt(fan_in)

    def uniform(key: Key, shape: Shape, dtype: Any = dtype) -> Array:
        return random.uniform(key, shape, dtype, -bound, bound)

    keys = random.split(key)
    weight = (weight_init or uniform)(keys[0], shape, dtype)
    bias_array = (bias_init or uniform)(keys[1], shape[-1:], dtype) if bias else None
    for name, array, expected in (("weight", weight, shape), ("bias", bias_array, shape[-1:])):
        if array is not None and array.shape != expected:
            raise ShapeError(where, f"the initializer must make a {name} of shape {expected}", got=str(array.shape))
    return weight, bias_array
