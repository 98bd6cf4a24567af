"""The table of translations of ATen operators into compositions of functions of tvmfun.

Its keys are names such as ``"add"``, for all overloads of an operator, or ``"max.dim"``, for one. Operators
that PyTorch can decompose into operators of the table need no row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvmfun.interop.layouts import pointwise


@dataclass(frozen=True)
class Translation:
    """The translation of the calls of one ATen operator.

    Args:
        name: the operator, with or without an overload.
        family: the module that adds it.
        function: a composition with the parameters of the operator's schema: tensors are arrays, dtypes are names, and
            parameters about devices and memory are left out.
        layouts: whether the function takes and returns arrays that are stored with their channels last.
        promotes: whether arrays among the arguments are converted to the dtype of the result first.
        random: whether the function takes a function that returns a key as its first argument.
    """

    name: str
    family: str
    function: Callable[..., Any]
    layouts: bool = False
    promotes: bool = False
    random: bool = False


#: Every translation by the operator's name.
TRANSLATIONS: dict[str, Translation] = {}

#: Operators that compute nothing: assertions about what ``torch.export`` has seen, about sizes, and of LAPACK.
ASSERTIONS = frozenset(
    {
        "_assert_async",
        "_assert_scalar",
        "_assert_tensor_metadata",
        "_linalg_check_errors",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    }
)


class Family:
    """A module that adds rows to the table.

    Args:
        module: its ``__name__``.
    """

    def __init__(self, module: str) -> None:
        self.name = module.rpartition(".")[2]

    def reads(self, *names: str, **properties: bool) -> Callable[[Callable], Callable]:
        """A decorator that adds a function as the translation of operators; see :class:`Translation`."""

        def add(function: Callable) -> Callable:
            for name in names:
                TRANSLATIONS[name] = Translation(name, self.name, function, **properties)
            return function

        return add

    def maps(self, functions: dict[str, Callable], promotes: bool = True) -> None:
        """Adds pointwise functions."""
        for name, function in functions.items():
            self.reads(name, layouts=True, promotes=promotes)(pointwise(function))


def translation_of(name: str) -> Translation | None:
    """The row for an operator such as ``"add.Tensor"``, if there is one."""
    return TRANSLATIONS.get(name) or TRANSLATIONS.get(name.partition(".")[0])
