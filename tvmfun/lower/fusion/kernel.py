"""Kernels: equations that become one function, as text and as a TIR function that is not yet scheduled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import te, tirx

from tvmfun import dtypes
from tvmfun.core import dims, expressions
from tvmfun.core.array import ShapeDtype
from tvmfun.core.dims import Dim
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.errors import DimensionError
from tvmfun.lower.tir.build import constant
from tvmfun.ops.dot import TENSORFLOAT32
from tvmfun.ops.formula import rounded_to_bfloat16
from tvmfun.ops.pointwise import astype
from tvmfun.ops.reduce import sum as sum_op
from tvmfun.ops.shape import broadcast_to, repeated


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
        # A sum over rows adds up what is computed anyway, where it is computed.
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
        tensors: dict[Variable, te.Tensor] = {
            a: te.placeholder(a.aval.shape, dtypes.NAMES[a.aval.dtype], name=f"x{i}") for i, a in enumerate(self.inputs)
        }
        for equation in self.equations:
            formula = rounded_to_bfloat16 if self._rounds_to_bfloat16(equation) else None
            tensors[equation.outputs[0]] = _compute(equation, tensors, formula)
        return te.create_prim_func([tensors[v] for v in (*self.inputs, *self.outputs)])

    def _rounds_to_bfloat16(self, equation: Equation) -> bool:
        """Whether a conversion to bfloat16 has readers other than products, which round while they pack."""
        if equation.op is not astype or equation.params["dtype"] != "bfloat16":
            return False
        if equation.inputs[0].aval.dtype.itemsize == 1:  # bfloat16 has bools and integers of 8 bits
            return False
        readers = [other for other in self.equations if equation.outputs[0] in other.inputs]
        return not readers or any(other.op.kind != "contraction" for other in readers)


def _compute(equation: Equation, tensors: dict[Variable, te.Tensor], formula: Callable[[Any], Any] | None) -> te.Tensor:
    """The tensor expression of an equation, with ``formula`` instead of the op's, if it is given."""
    op, params, out = equation.op, equation.params, equation.outputs[0].aval
    arguments = [constant(a.value) if isinstance(a, Literal) else tensors[a] for a in equation.inputs]
    if op.kind == "pointwise":
        return _pointwise(formula or op.compute, arguments, {} if formula else params, out, op.name)
    return _applied(equation, [a if isinstance(a, te.Tensor) else _constant(a) for a in arguments])


def _applied(equation: Equation, arguments: list) -> Any:
    """The op's computation of these arguments; an error about dynamic sizes names the op."""
    try:
        return equation.op.compute(*arguments, **equation.params)
    except DimensionError as error:
        raise dims.blame_op(error, equation.op.name, equation.source) from None


def _constant(scalar: tirx.Expr) -> te.Tensor:
    return te.compute((), lambda: scalar)


def _pointwise(formula: Callable, arguments: list, params: dict[str, Any], out: ShapeDtype, name: str) -> te.Tensor:
    def element(*indices: tirx.Var) -> tirx.Expr:
        values = (repeated(a, out.shape, indices) if isinstance(a, te.Tensor) else a for a in arguments)
        return formula(*values, **params)

    return te.compute(out.shape, element, name=name)
