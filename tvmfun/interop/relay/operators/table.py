"""The table of translations of Relay's operators into compositions of functions of tvmfun."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.errors import ArgumentError
from tvmfun.interop.layouts import pointwise

#: The types of attributes: the annotations of a translation's keyword-only parameters.
Ints: TypeAlias = tuple[int, ...]
#: Lists of ints, such as the padding of each axis.
Pairs: TypeAlias = tuple[tuple[int, ...], ...]
Floats: TypeAlias = tuple[float, ...]
#: The name of a dtype; an empty text means None, as TVM prints it.
DType: TypeAlias = str
#: Attributes without a meaning for the result, such as devices.
Unread: TypeAlias = Any

#: The most elements of an array, and of an axis along which indices are computed while a program is read.
MOST_ELEMENTS = 2**33
LONGEST_AXIS = 2**20


class Context(Protocol):
    """Options of the conversion that an operator may need, besides its arguments."""

    train: bool

    def key(self) -> Any:
        """A key for the operator's random numbers."""
        ...

    def update(self, old: Any, new: Callable[[Any], Any]) -> Any:
        """The new value of a statistic, as a function of the old one, which may be a parameter of the program."""
        ...


class Attribute(NamedTuple):
    """An attribute of an operator.

    Args:
        kind: its type, as the annotation of the parameter is written.
        default: its value where it is not written; ``inspect.Parameter.empty`` if it must be.
    """

    kind: str
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether it must be written."""
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True)
class Translation:
    """The translation of the calls of one Relay operator.

    Args:
        name: the operator, e.g. ``"nn.conv2d"``.
        family: the module that adds it.
        function: a composition of the call's arguments. Its keyword-only parameters are the operator's attributes.
        attributes: these by name.
        arguments: the least and the largest number of arguments.
        mixed: whether arguments may differ in dtype.
        contextual: whether the function takes a :class:`Context` first.
        layouts: whether it takes and returns arrays that are stored with their channels last.
    """

    name: str
    family: str
    function: Callable[..., Any]
    attributes: Mapping[str, Attribute]
    arguments: tuple[int, int]
    mixed: bool = False
    contextual: bool = False
    layouts: bool = False


#: Every translation by the operator's name.
TRANSLATIONS: dict[str, Translation] = {}


class Family:
    """A module that adds rows to the table.

    Args:
        module: its ``__name__``.
    """

    def __init__(self, module: str) -> None:
        self.name = module.rpartition(".")[2]

    def reads(
        self, *names: str, mixed: bool = False, contextual: bool = False, layouts: bool = False
    ) -> Callable[[Callable], Callable]:
        """A decorator that adds a function as the translation of operators; see :class:`Translation`."""

        def add(function: Callable) -> Callable:
            parameters = list(inspect.signature(function).parameters.values())[contextual:]
            attributes = {
                p.name: Attribute(str(p.annotation), p.default) for p in parameters if p.kind is p.KEYWORD_ONLY
            }
            positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
            least = sum(p.default is p.empty for p in positional)
            for name in names:
                TRANSLATIONS[name] = Translation(
                    name, self.name, function, attributes, (least, len(positional)), mixed, contextual, layouts
                )
            return function

        return add

    def maps(self, functions: Mapping[str, Callable], operands: int) -> None:
        """Adds functions of ``operands`` arrays without attributes."""
        for name, function in functions.items():
            arguments = (operands, operands)
            TRANSLATIONS[name] = Translation(name, self.name, pointwise(function), {}, arguments, layouts=True)


# -- values of attributes ----------------------------------------------------------------------------------------------


def read_attributes(row: Translation, written: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a call, with defaults where none are written.

    Raises:
        ArgumentError: if the operator has no such attribute, one is missing, or a value is of another kind.
    """
    for name in written:
        if name not in row.attributes:
            known = ", ".join(row.attributes) or "none"
            raise ArgumentError(row.name, f"it has no attribute {name!r}", got=name, hint=f"one of {known}")
    result = {}
    for name, attribute in row.attributes.items():
        value = written.get(name)
        if value is None and "None" not in attribute.kind:
            if attribute.is_required:
                raise ArgumentError(row.name, f"the attribute {name!r} must be written")
            result[name] = attribute.default
        elif name not in written:
            result[name] = None if attribute.is_required else attribute.default
        else:
            result[name] = _converted(row.name, name, attribute.kind, value)
    return result


def _converted(where: str, name: str, kind: str, value: Any) -> Any:
    kind = kind.removesuffix(" | None")
    if value is None or kind == "Unread":
        return value
    if kind == "Ints":
        value = value if isinstance(value, tuple) else (value,)
    checked = _CHECKS[kind](value)
    if checked is None:
        raise ArgumentError(where, f"the attribute {name!r} must be {_NOUNS[kind]}", got=repr(value)[:60])
    return None if checked == "" and kind == "DType" else checked


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ints(value: Any) -> Any:
    return value if isinstance(value, tuple) and all(map(_is_int, value)) else None


def _dtype(value: Any) -> Any:
    return value if value in ("", *dtypes.NAMES.values()) else None


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: value if _is_int(value) else None,
    "float": lambda value: float(value) if _is_int(value) or isinstance(value, float) else None,
    "bool": lambda value: bool(value) if isinstance(value, bool) or value in (0, 1) else None,
    "str": lambda value: value if isinstance(value, str) else None,
    "DType": lambda value: _dtype(value) if isinstance(value, str) else None,
    "Ints": _ints,
    "Floats": lambda value: (
        tuple(map(float, value))
        if isinstance(value, tuple) and all(_is_int(item) or isinstance(item, float) for item in value)
        else None
    ),
    "Pairs": lambda value: value if isinstance(value, tuple) and all(_ints(row) is not None for row in value) else None,
    "int | Ints": lambda value: value if _is_int(value) else _ints(value),
}
_NOUNS = {
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
    "str": "text",
    "DType": f"one of {', '.join(dtypes.NAMES.values())}",
    "Ints": "a list of integers",
    "Floats": "a list of numbers",
    "Pairs": "a list of lists of integers",
    "int | Ints": "an integer or a list of integers",
}


# -- helpers of translations -------------------------------------------------------------------------------------------


def refuse(where: str, what: str, got: Any) -> ArgumentError:
    """The error for a value that is not read."""
    return ArgumentError(where, what, got=str(got)[:60])


def axis_of(where: str, axis: int, ndim: int) -> int:
    """An axis that is not negative.

    Raises:
        ArgumentError: if the array has no such axis.
    """
    if not -ndim <= axis < ndim:
        raise refuse(where, f"the axis must be one of {ndim}", axis)
    return axis % ndim


def check_sizes(where: str, sizes: tuple, longest: int = 2**31 - 1) -> None:
    """Raises unless an array of these sizes can exist; dynamic sizes are not looked at.

    Raises:
        ArgumentError: if a size is negative or too large.
    """
    total = 1
    for size in sizes:
        if not isinstance(size, int):
            continue
        total *= size
        if not 0 <= size <= longest or total > MOST_ELEMENTS:
            raise refuse(where, "a result must not be larger than the memory of any machine", sizes)


def as_dtype(x: Any, dtype: str | None) -> Any:
    """The array converted to another dtype, or unchanged."""
    return x if dtype is None or x.dtype.name == dtype else tnp.astype(tnp.asarray(x), dtype)
