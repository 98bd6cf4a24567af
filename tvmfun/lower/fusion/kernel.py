"""Kernels: equations that become one function, as text and as a TIR function that is not yet scheduled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from tvm import te, tirx

from tvmfun import dtypes
from tvmfun.core import dims, expressions
from tvmfun.core.array import ShapeDtype
from tvmfun.core.dims import Dim
from tvmfun.core.op import Op
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.errors import DimensionError
from tvmfun.lower.tir.build import Size, constant, variables
from tvmfun.ops.dot import TENSORFLOAT32
from tvmfun.ops.formula import rounded_to_bfloat16
from tvmfun.ops.pointwise import astype
from tvmfun.ops.reduce import sum as sum_op
from tvmfun.ops.shape import broadcast_to, repeated

# A tensor of TVM's, or the formula of an element by its indices.
_Tensor = te.Tensor | Callable[..., tirx.Expr]
# The most formulas that are built inside one another; Python limits the depth of calls.
_DEEPEST = 64


@dataclass(frozen=True)
class Kernel:
    """Equations that become one function.

    Args:
        equations: in order.
        inputs: the values that it reads.
        outputs: the values that it writes: results that other kernels or the caller need.
    """

    equations: tuple[Equation, ...]
    inputs: tuple[Atom, ...]
    outputs: tuple[Variable, ...]

    @cached_property
    def text(self) -> str:
        """The kernel as text, the same for kernels that compute the same."""
        body = Program(
            tuple(a if isinstance(a, Variable) else Variable(a.aval) for a in self.inputs),
            self.equations,
            self.outputs,
            None,  # type: ignore[arg-type]  # a kernel has no trees
            None,  # type: ignore[arg-type]
        )
        return body.text

    @cached_property
    def sizes(self) -> tuple[Dim, ...]:
        """The dynamic sizes that its function takes after the inputs."""
        shapes = (atom.aval.shape for e in self.equations for atom in (*e.inputs, *e.outputs))
        return tuple(dims.names(*shapes, *(value for e in self.equations for value in e.params.values())).values())

    @property
    def is_view(self) -> bool:
        """Whether its result is its input in another shape."""
        return len(self.equations) == 1 and self.equations[0].op.view

    @property
    def is_control(self) -> bool:
        """Whether it is a loop or a branch."""
        return self.equations[0].op.kind == "control"

    @property
    def name(self) -> str:
        """The names of its first ops, for people who read profiles."""
        names = [equation.op.name for equation in self.equations if equation.op is not broadcast_to]
        return "_".join(names[:5]) or "broadcast_to"

    def reads_in_step(self, variable: Atom) -> bool:
        """Whether each element of an input is read only where the same element of the results is computed."""
        first = self.equations[0]
        if (position := first.op.overwrites) is not None:
            return all((atom is variable) == (i == position) for i, atom in enumerate(first.inputs))
        shape, depends = variable.aval.shape, {variable}
        *others, last = self.equations
        # A sum over rows adds up values as they are computed.
        is_column_sum = last.op is sum_op and last.inputs[0].aval.ndim - 1 not in last.params["axis"]
        sums = last.outputs if is_column_sum and others and last.inputs[0] not in self.inputs else ()
        for equation in others if sums else self.equations:
            if depends.intersection(equation.inputs):
                if equation.op.kind != "pointwise" or equation.outputs[0].aval.shape != shape:
                    return False
                depends.update(equation.outputs)
        return all(out.aval.shape == shape for out in self.outputs if out not in sums)

    def prim_func(self) -> tirx.PrimFunc:
        """Returns a TIR function that takes the inputs, the dynamic sizes and the outputs, in this order."""
        function = self._without_sizes()
        if any(equation.params.get("precision") == TENSORFLOAT32 for equation in self.equations):
            function = function.with_attr("tvmfun.precision", TENSORFLOAT32)
        if not self.sizes:
            return function
        inputs, outputs = function.params[: len(self.inputs)], function.params[len(self.inputs) :]
        params = [*inputs, *map(expressions.of_size, self.sizes), *outputs]
        return tirx.PrimFunc(params, function.body, function.ret_type, function.attrs)

    def _without_sizes(self) -> tirx.PrimFunc:
        """The function of the inputs and outputs alone, in which dynamic sizes are free variables."""
        first = self.equations[0]
        if first.op.kind == "opaque":
            return _applied(first, [atom.aval for atom in first.inputs])
        tensors: dict[Variable, _Tensor] = {
            a: te.placeholder(a.aval.shape, dtypes.NAMES[a.aval.dtype], name=f"x{i}") for i, a in enumerate(self.inputs)
        }
        formulas = self._formulas()
        for equation in self.equations:
            formula = rounded_to_bfloat16 if self._rounds_to_bfloat16(equation) else None
            tensors[equation.outputs[0]] = _compute(equation, tensors, formula, equation.outputs[0] in formulas)
        return te.create_prim_func([tensors[v] for v in (*self.inputs, *self.outputs)])

    def _formulas(self) -> dict[Variable, int]:
        """The intermediates that are used by one other formula only, with the depth of each.

        Scheduling would inline them, which takes longer than all its other work.
        """
        readers: dict[Atom, list[Equation]] = {}
        for equation in self.equations:
            for atom in equation.inputs:
                readers.setdefault(atom, []).append(equation)
        found: dict[Variable, int] = {}
        for equation in self.equations:
            out = equation.outputs[0]
            depth = 1 + max((found.get(a, 0) for a in equation.inputs if isinstance(a, Variable)), default=0)
            is_inside = equation.op.kind == "pointwise" and out not in self.outputs and depth <= _DEEPEST
            if is_inside and len(readers.get(out, ())) == 1 and _reads_once(readers[out][0], out.aval.shape):
                found[out] = depth
        return found

    def _rounds_to_bfloat16(self, equation: Equation) -> bool:
        """Whether a conversion to bfloat16 has readers other than products, which round while they pack."""
        if equation.op is not astype or equation.params["dtype"] != "bfloat16":
            return False
        if equation.inputs[0].aval.dtype.itemsize == 1:  # bfloat16 has bools and integers of 8 bits
            return False
        readers = [other for other in self.equations if equation.outputs[0] in other.inputs]
        return not readers or any(other.op.kind != "contraction" for other in readers)


def _reads_once(reader: Equation, shape: tuple[Size, ...]) -> bool:
    """Whether each element of an argument of this shape is read once."""
    if reader.op.kind != "pointwise" or reader.params or reader.outputs[0].aval.shape != shape:
        return False
    return _has_each_once(reader.op, *(dtypes.NAMES[atom.aval.dtype] for atom in reader.inputs))


@cache
def _has_each_once(op: Op, *names: str) -> bool:
    """Whether the formula of a pointwise op without parameters has each argument once."""
    arguments = [tirx.Var(f"x{i}", name) for i, name in enumerate(names)]
    used = variables(op.compute(*arguments))
    return all(sum(map(argument.same_as, used)) <= 1 for argument in arguments)


def _compute(
    equation: Equation, tensors: dict[Variable, _Tensor], formula: Callable[[Any], Any] | None, is_part: bool
) -> _Tensor:
    """The tensor expression of an equation, with ``formula`` instead of the op's, if it is given."""
    op, params, out = equation.op, equation.params, equation.outputs[0].aval
    arguments = [constant(a.value) if isinstance(a, Literal) else tensors[a] for a in equation.inputs]
    if op.kind == "pointwise":
        element = _element(formula or op.compute, arguments, {} if formula else params, out)
        return element if is_part else te.compute(out.shape, element, name=op.name)
    return _applied(equation, [a if isinstance(a, te.Tensor) else _constant(a) for a in arguments])


def _applied(equation: Equation, arguments: list) -> Any:
    """The op's computation of these arguments; an error about dynamic sizes names the op."""
    try:
        return equation.op.compute(*arguments, **equation.params)
    except DimensionError as error:
        raise dims.blame_op(error, equation.op.name, equation.source) from None


def _constant(scalar: tirx.Expr) -> te.Tensor:
    return te.compute((), lambda: scalar)


def _element(formula: Callable, arguments: list, params: dict[str, Any], out: ShapeDtype) -> Callable[..., tirx.Expr]:
    """The formula of an element, by its indices."""

    def value(argument: Any, indices: tuple[tirx.Var, ...]) -> tirx.Expr:
        if isinstance(argument, te.Tensor):
            return repeated(argument, out.shape, indices)
        return argument if isinstance(argument, tirx.Expr) else argument(*indices)

    return lambda *indices: formula(*(value(argument, indices) for argument in arguments), **params)
