"""The syntax tree of a Relay program. Names are resolved: a variable is the number of its binding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of an array.

    Args:
        shape: its sizes; None for a dynamic one, which is written ``?``.
        dtype: the name of its dtype.
    """

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"Tensor[({sizes}), {self.dtype}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    """The type of a tuple."""

    fields: tuple[Type, ...]


#: A type; None is one that is not written, or the type of a function.
Type: TypeAlias = TensorType | TupleType | None


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a program.

    Args:
        offset: of its first character in the text.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """A number: ``1f``."""

    value: Any


@dataclass(frozen=True, slots=True)
class Meta(Node):
    """An object of the metadata section: ``meta[relay.Constant][0]``."""

    key: str
    index: int


@dataclass(frozen=True, slots=True)
class Variable(Node):
    """The value of a binding or a parameter: ``%x``, ``%0``."""

    number: int


@dataclass(frozen=True, slots=True)
class Global(Node):
    """A function of the module: ``@main``."""

    name: str


@dataclass(frozen=True, slots=True)
class Operator(Node):
    """An operator: ``nn.conv2d``."""

    name: str


@dataclass(frozen=True, slots=True)
class Tuple(Node):
    """A tuple: ``(%a, %b)``."""

    fields: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Item(Node):
    """A field of a tuple: ``%a.0``."""

    value: Expr
    index: int


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A call of an operator or a function, with the operator's attributes."""

    function: Expr
    arguments: tuple[Expr, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class If(Node):
    """``if (condition) { then } else { otherwise }``."""

    condition: Expr
    then: Block
    otherwise: Block


@dataclass(frozen=True, slots=True)
class Binding(Node):
    """``let %x: type = value;`` or ``%0 = value;``."""

    number: int
    type: Type
    value: Expr


@dataclass(frozen=True, slots=True)
class Block(Node):
    """Bindings and a result, between braces."""

    bindings: tuple[Binding, ...]
    result: Expr


@dataclass(frozen=True, slots=True)
class Parameter(Node):
    """A parameter of a function."""

    name: str
    number: int
    type: Type


@dataclass(frozen=True, slots=True)
class Function(Node):
    """``fn (%x: type) -> type { body }``, or a function of the module."""

    parameters: tuple[Parameter, ...]
    result: Type
    body: Block


Expr: TypeAlias = Constant | Meta | Variable | Global | Operator | Tuple | Item | Call | If | Block | Function


@dataclass(frozen=True, slots=True)
class Module:
    """The functions of a text.

    Args:
        functions: by name.
        metadata: the offset of the metadata section; None if there is none.
        constants: the objects of the section that are used, each once.
    """

    functions: Mapping[str, Function]
    metadata: int | None
    constants: tuple[Meta, ...]
