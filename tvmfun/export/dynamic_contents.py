"""The parts of a library's generated C file for dynamic sizes: formulas, and plans that are computed from these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun.core import dims
from tvmfun.core.dims import Dim
from tvmfun.core.program import Program
from tvmfun.errors import ExportError
from tvmfun.export.loader import MOST_SIZE, SizeInfo
from tvmfun.lower.cache import sizes_as_integers, types_of_values
from tvmfun.runtime.formulas import Formula
from tvmfun.runtime.plan import DynamicPlan

# As in sizes.h and sizes.c.
_OPERATIONS = {"+": "FORMULA_ADD", "*": "FORMULA_MULTIPLY", "//": "FORMULA_DIVIDE"}
_MOST_OPERANDS = 64


class Formulas:
    """The arrays of formulas in a C file, each once.

    Args:
        names: the names of the dynamic sizes.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._found: dict[Formula, str] = {}

    def add(self, formula: Formula) -> str:
        """Returns the name of the array of a formula."""
        return self._found.setdefault(formula, f"formula_{len(self._found)}")

    def add_size(self, size: Any) -> str:
        """Returns the name of the array of a size's formula; a size is an integer or a Dim."""
        return self.add(dims.postfix(size))

    def lines(self) -> list[str]:
        """The definitions of the arrays."""
        return [f"static const int64_t {name}[] = {{{self._code(f)}}};" for f, name in self._found.items()]

    def _code(self, formula: Formula) -> str:
        operands, pairs = 0, []
        for token in str(formula).split():
            operands += -1 if token in _OPERATIONS else 1
            if operands > _MOST_OPERANDS:
                raise ExportError("export", "a dynamic size is too complicated", got=str(formula))
            if token in _OPERATIONS:
                pairs.append(f"{_OPERATIONS[token]}, 0")
            elif token in self._names:
                pairs.append(f"FORMULA_SIZE, {self._names.index(token)}")
            else:
                pairs.append(f"FORMULA_NUMBER, {int(token)}")
        return ", ".join([*pairs, "FORMULA_END"])


def size_infos(program: Program) -> list[SizeInfo]:
    """The dynamic sizes of a Program, each with the axis of an argument that determines it."""
    known = dims.known(aval.shape for aval in program.in_avals)
    axes: dict[Dim, tuple[int, int]] = {}
    for i, aval in enumerate(program.in_avals):
        for axis, size in enumerate(aval.shape):
            if isinstance(size, Dim):
                axes.setdefault(size, (i, axis))
    infos = []
    for name, dim in dims.names(*(aval.shape for aval in program.in_avals)).items():
        low, high = dim.bounds
        _, factor, term = dims.linear(known[name])  # type: ignore[misc]  # it is linear
        position, axis = axes[known[name]]
        infos.append(SizeInfo(name, int(low), int(min(high, MOST_SIZE)), position, axis, factor, term))
    return infos


def element_counts(program: Program) -> list[Any]:
    """The numbers of elements of all values of a Program that depend on sizes, and integers computed from sizes."""
    counts = [aval.size for aval in types_of_values(program)]
    return [size for size in dict.fromkeys([*counts, *sizes_as_integers(program)]) if isinstance(size, Dim)]


def static_axes(shape: Sequence[Any]) -> list[int]:
    """The sizes of a shape; -1 for dynamic sizes."""
    return [-1 if isinstance(size, Dim) else int(size) for size in shape]


def plan_lines(i: int, plan: DynamicPlan, formulas: Formulas) -> list[str]:
    """The arrays of the plan of variant ``i``, and the plan."""
    allocations = [
        "{0, 0}" if allocation is None else f"{{{formulas.add(allocation[0])}, {allocation[1]}}}"
        for allocation in plan.allocations
    ]
    lifetimes = [f"{{{first}, {last}}}" for first, last in plan.lifetimes]
    return [
        f"static const formula fresh_formulas_{i}[] = {_array(map(formulas.add, plan.fresh))};",
        f"static const formula buffers_{i}[] = {_array(map(formulas.add, plan.buffers))};",
        f"static const struct lifetime lifetimes_{i}[] = {_array(lifetimes, '{0, 0}')};",
        f"static const struct allocation allocations_{i}[] = {_array(allocations, '{0, 0}')};",
        f"static const struct dynamic_plan dynamic_{i} = {{",
        f"  fresh_formulas_{i}, buffers_{i}, lifetimes_{i}, {len(plan.buffers)},",
        f"  allocations_{i}, {len(plan.allocations)}, {plan.threads}}};",
    ]


def shape_lines(shapes: Sequence[tuple], counts: Sequence[Any], formulas: Formulas) -> list[str]:
    """The arrays of the sizes of all axes of leaves, and of numbers of elements."""
    axes = [size for shape in shapes for size in shape]
    return [
        f"static const formula axes[] = {_array(map(formulas.add_size, axes))};",
        f"static const formula counts[] = {_array(map(formulas.add_size, counts))};",
    ]


def _array(items: Any, last: str = "0") -> str:
    """An initializer; C has no empty arrays."""
    return f"{{{', '.join([*items, last])}}}"
