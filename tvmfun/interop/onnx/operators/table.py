"""The table of translations of ONNX operators into compositions of functions of tvmfun.

A translation takes the inputs of a node by position, None where one is left out, and its attributes by name. Where a
later version of an operator has made an input of an attribute, one parameter serves both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Translation:
    """The translation of the nodes of one operator.

    Args:
        name: the operator, after its domain if that is not ONNX's own: ``"ai.onnx.preview.training.Adam"``.
        family: the module that adds it.
        function: a composition; it returns an array, or a tuple with an array for each output.
        since: the first version of the operators' set that it is for.
        static: the positions of inputs whose values must be known when a function is traced: they come as NumPy arrays.
            Negative ones count from the end of the operator's list: ``-1`` stands for all inputs.
        shapes: whether only the shapes of the inputs are read, so that the result is always known.
        bits: whether the function moves elements without looking at them, so that it serves dtypes of a few bits.
        narrow: whether it takes and returns arrays of such dtypes itself.
        frozen: the positions of inputs that are not trained: statistics, scales of quantized numbers.
        context: whether it takes a :class:`~tvmfun.interop.onnx.graphs.Call` first.
        random: whether it takes a key first.
    """

    name: str
    family: str
    function: Callable[..., Any]
    since: int = 1
    static: tuple[int, ...] = ()
    shapes: bool = False
    bits: bool = False
    narrow: bool = False
    frozen: tuple[int, ...] = ()
    context: bool = False
    random: bool = False

    def is_static(self, position: int) -> bool:
        """Whether the value of an input must be known."""
        return position in self.static or -1 in self.static


#: The translations by the operator's name, the newest first.
TRANSLATIONS: dict[str, list[Translation]] = {}


class Family:
    """A module that adds rows to the table.

    Args:
        module: its ``__name__``.
        domain: of its operators.
    """

    def __init__(self, module: str, domain: str = "") -> None:
        self.name = module.rpartition(".")[2]
        self.domain = domain

    def reads(self, *names: str, **properties: Any) -> Callable[[Callable], Callable]:
        """A decorator that adds a function as the translation of operators; see :class:`Translation`."""

        def add(function: Callable) -> Callable:
            for name in names:
                full = full_name(self.domain, name)
                rows = TRANSLATIONS.setdefault(full, [])
                rows.append(Translation(full, self.name, function, **properties))
                rows.sort(key=lambda row: -row.since)
            return function

        return add

    def maps(self, functions: dict[str, Callable], **properties: Any) -> None:
        """Adds functions of the inputs alone; attributes of old versions, which say how memory is used, are dropped."""
        for name, function in functions.items():
            self.reads(name, **properties)(_without_hints(function))


def _without_hints(function: Callable) -> Callable:
    return lambda *inputs, consumed_inputs=None: function(*inputs)


def full_name(domain: str, name: str) -> str:
    """The operator's name after its domain; ONNX's own has none."""
    return name if domain in ("", "ai.onnx") else f"{domain}.{name}"


def translation_of(domain: str, name: str, version: int) -> Translation | None:
    """The row for an operator of a version of the set, if there is one."""
    rows = TRANSLATIONS.get(full_name(domain, name), ())
    return next((row for row in rows if row.since <= version), None)
