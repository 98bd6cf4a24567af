"""Kinds of parameters for the annotations of shape rules, and checks that several rules share.

A Program that was read from a text may have parameters of any kind, which a rule would trust: ``True`` passes for an
axis, and so does ``1.0``. :func:`check_parameters` checks an equation against the annotations of its op's rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.core.dims import Dim
from tvmfun.errors import ArgumentTypeError, ShapeError

__all__ = ["Dtype", "Ints", "Margins", "Size", "Sizes", "check_axes", "check_parameters", "check_strides"]

#: A size, which may be dynamic.
Size = Annotated[Any, "size"]
Sizes = tuple[Size, ...]
#: Pairs of the elements added before and after each axis.
Margins = tuple[tuple[Size, Size], ...]
Ints = tuple[int, ...]
#: The name of a dtype.
Dtype = Annotated[str, "dtype"]

# Kernels compute indices with 32 bits.
_LARGEST = 2**31 - 1


def check_parameters(name: str, rule: Callable[..., Any], params: Mapping[str, Any]) -> None:
    """Checks that parameters have the kinds that a shape rule is annotated with.

    Args:
        name: the op.
        rule: its shape rule.
        params: the parameters.

    Raises:
        ArgumentTypeError: if a parameter has another kind, is missing, or is unknown to the rule.
    """
    kinds = _kinds(rule)
    unknown = next((key for key in params if key not in kinds), None)
    missing = next((key for key, (_, required) in kinds.items() if required and key not in params), None)
    if unknown or missing:
        raise ArgumentTypeError(name, f"its parameters are {', '.join(kinds) or 'none'}", got=", ".join(params))
    for key, value in params.items():
        kind, _ = kinds[key]
        if not _is_of(value, kind):
            raise ArgumentTypeError(name, f"the parameter {key} is of another kind", got=repr(value))


@cache
def _kinds(rule: Callable[..., Any]) -> dict[str, tuple[Any, bool]]:
    """The annotations of the parameters of a rule by name, and whether they are required."""
    hints = get_type_hints(rule, include_extras=True)
    return {
        key: (hints.get(key, Any), parameter.default is Parameter.empty)
        for key, parameter in signature(rule).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }


def _is_of(value: Any, kind: Any) -> bool:
    origin, options = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if kind == Size:
        return isinstance(value, Dim) or _is_of(value, int)
    if kind == Dtype:
        return type(value) is str and value in dtypes.NAMES.values()
    if origin in (Union, UnionType):
        return any(_is_of(value, option) for option in options)
    if origin is Literal:
        return type(value) is str and value in options
    if origin is tuple and options[-1] is Ellipsis:
        return type(value) is tuple and all(_is_of(item, options[0]) for item in value)
    if origin is tuple:
        return type(value) is tuple and len(value) == len(options) and all(map(_is_of, value, options))
    if kind in (None, NoneType):
        return value is None
    if kind is int:
        return type(value) is int and abs(value) <= 2**63
    return type(value) is kind if kind in (bool, float, str) else isinstance(value, origin or kind)


def check_axes(name: str, x: ShapeDtype, axes: Sequence[int]) -> None:
    """Raises unless ``axes`` are different axes of ``x``, counted from the first."""
    if len(set(axes)) != len(axes) or any(not 0 <= axis < x.ndim for axis in axes):
        raise ShapeError(name, f"{tuple(axes)} are not axes of the argument", got=repr(x))


def check_strides(name: str, what: str, numbers: Sequence[int]) -> None:
    """Raises unless all strides, dilations or windows are positive, and fit the 32 bits of an index."""
    if any(not 1 <= number <= _LARGEST for number in numbers):
        raise ShapeError(name, f"{what} must be at least 1 and below 2**31", got=str(tuple(numbers)))
