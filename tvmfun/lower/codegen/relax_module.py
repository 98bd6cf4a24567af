"""The Relax module of a Program: its scheduled kernels, and a ``main`` that calls them in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tvm
from tvm import relax, tirx
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.program import Atom, Literal, Program, Variable
from tvmfun.core.relax import in_relax, relax_constant, tensor_type
from tvmfun.lower import target as targets
from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.interrupts import held_interrupts
from tvmfun.lower.schedule.control_ops.function import with_callees

#: ``(kernel, target, in_place, on_callee=) -> function``, or None if the kernel cannot write over inputs like that.
Schedule = Callable[..., tirx.PrimFunc | None]
#: ``(name, function, is_callee)``: takes a scheduled function.
OnFunction = Callable[[tvm.ir.GlobalVar, tirx.PrimFunc, bool], None]


class ScheduledKernel(NamedTuple):
    """A kernel, its scheduled function, and whether the function writes results over arguments."""

    kernel: Kernel
    function: tirx.PrimFunc
    is_in_place: bool

    @property
    def rule(self) -> str:
        """The name of the rule that scheduled it."""
        return str(self.function.attrs["tvmfun.rule"])


class Step(NamedTuple):
    """A kernel at the point where ``main`` calls it.

    Args:
        kernel: the kernel.
        name: the name of its function; None for a view, and where no result has elements.
        rule: the name of the rule that scheduled it.
        in_place: the results that it writes over inputs.
    """

    kernel: Kernel
    name: str | None = None
    rule: str = ""
    in_place: InPlace = ()


class ModuleBuilder:
    """Schedules kernels, and writes the Relax function that calls them one after the other.

    Args:
        program: the Program that the kernels compute.
        target: the target.
        schedule: schedules a kernel.
        on_function: called with the name of each function of the module as soon as it is scheduled, the function, and
            whether control flow calls it.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        schedule: Schedule,
        on_function: OnFunction = lambda name, function, is_callee: None,
    ) -> None:
        self.program = program
        self.target = target
        self.schedule = schedule
        self.on_function = on_function
        #: The scheduled kernels, each once.
        self.kernels: list[ScheduledKernel] = []
        #: The kernels in the order of the calls.
        self.steps: list[Step] = []
        self._moved: set[Atom] = set()  # results whose planned in-place write was replaced by a separate allocation
        self._functions: dict[tvm.ir.GlobalVar, relax.Function | tirx.PrimFunc] = {}
        self._names: dict[tuple[str, InPlace], tvm.ir.GlobalVar] = {}
        self._callees: set[str] = set()  # names of functions that control flow calls
        self._bindings: list[relax.VarBinding] = []
        self._values: dict[Variable, relax.Expr] = {}
        # The calling convention of GPUs and of kernels with dynamic sizes has no calls of other functions.
        is_dynamic = any(dims.is_dynamic(variable.aval.shape) for variable in program.inputs)
        may_call = targets.is_cpu(target) and not is_dynamic
        self._on_callee = self._add_callee if may_call else None

    def build(self, kernels: Sequence[tuple[Kernel, InPlace]]) -> tvm.IRModule:
        """Returns the module.

        Args:
            kernels: in the order of the calls, with the results to write over inputs.
        """
        parameters = []
        for i, variable in enumerate(self.program.inputs):
            self._values[variable] = relax.Var(f"a{i}", tensor_type(variable.aval))
            parameters.append(self._values[variable])
        for kernel, in_place in kernels:
            if all(out.aval.size == 0 for out in kernel.outputs):
                self._add_empty(kernel)
            elif kernel.is_view:
                self._add_view(kernel)
            else:
                self._add_call(kernel, in_place)
        body = relax.Tuple([self._value(atom) for atom in self.program.outputs])
        sequence = relax.SeqExpr([relax.DataflowBlock(self._bindings)] if self._bindings else [], body)
        if sequence.ty.is_missing():
            relax.expr._update_type(sequence, body.ty)
        main = relax.Function(parameters, sequence, body.ty).with_attr("global_symbol", "main")
        return tvm.IRModule({tvm.ir.GlobalVar("main"): main, **self._functions})

    # -- kernels -----------------------------------------------------------------------------------------------

    def _add_empty(self, kernel: Kernel) -> None:
        """Results without elements: memory of no bytes, which no kernel has to write."""
        for out in kernel.outputs:
            shape = relax.ShapeExpr(in_relax(out.aval.shape))
            memory = relax.op.builtin.alloc_tensor(shape, dtypes.NAMES[out.aval.dtype], 0)
            self._values[out] = self._bind(memory, tensor_type(out.aval))
        self.steps.append(Step(kernel))

    def _add_view(self, kernel: Kernel) -> None:
        (out,) = kernel.outputs
        shape = in_relax(out.aval.shape)
        value = relax.op.reshape(self._value(kernel.equations[0].inputs[0]), shape)
        self._values[out] = self._bind(value, tensor_type(out.aval))
        self.steps.append(Step(kernel))

    def _add_call(self, kernel: Kernel, in_place: InPlace) -> None:
        types = [tensor_type(out.aval) for out in kernel.outputs]
        result_type = relax.TupleType(types) if len(types) > 1 else types[0]
        arguments = relax.Tuple([*map(self._value, kernel.inputs), *in_relax(kernel.sizes)])
        in_place = tuple(pair for pair in in_place if kernel.inputs[pair.input] not in self._moved)
        function = self._function(kernel, in_place) if in_place else None
        if function is None:
            self._moved.update(kernel.outputs[pair.output] for pair in in_place)
            function, in_place = self._function(kernel), ()
        rule = str(self._functions[function].attrs.get("tvmfun.rule", ""))
        self.steps.append(Step(kernel, function.name_hint, rule, in_place))
        if in_place:
            sources = {pair.output: pair.input for pair in in_place}
            over = [sources.get(output, -1) for output in range(len(types))]
            call = relax.op.call_tir_inplace(function, arguments, over, types)
        else:
            call = relax.Call(tvm.ir.Op.get("relax.call_tir"), [function, arguments], ty_args=[result_type])
        result = self._bind(call, result_type)
        for i, (out, ty) in enumerate(zip(kernel.outputs, types, strict=True)):
            self._values[out] = result if len(types) == 1 else self._bind(relax.TupleGetItem(result, i), ty)

    def _function(self, kernel: Kernel, in_place: InPlace = ()) -> tvm.ir.GlobalVar | None:
        """The function of the kernel; kernels that compute the same share one. None if it cannot be ``in_place``."""
        key = (kernel.text, in_place)
        if key not in self._names:
            with held_interrupts():
                function = self.schedule(kernel, self.target, in_place, on_callee=self._on_callee)
            if function is None:
                return None
            name = f"{kernel.name}_{len(self._names)}"
            function, callees = with_callees(function)
            for callee_name, callee in callees.items():
                self._add_callee(callee_name, callee)
            function = function.with_attr("global_symbol", name)
            self._names[key] = self._add_function(name, function)
            self.kernels.append(ScheduledKernel(kernel, function, bool(in_place)))
        return self._names[key]

    def _add_callee(self, name: str, function: tirx.PrimFunc) -> None:
        if name not in self._callees:
            self._callees.add(name)
            self._add_function(name, function, is_callee=True)

    def _add_function(self, name: str, function: tirx.PrimFunc, is_callee: bool = False) -> tvm.ir.GlobalVar:
        var = tvm.ir.GlobalVar(name)
        relax.expr._update_type(var, relax.FuncType.opaque_func(ret=relax.TupleType([])))
        self._functions[var] = function
        self.on_function(var, function, is_callee)
        return var

    # -- Relax -------------------------------------------------------------------------------------------------

    def _value(self, atom: Atom) -> relax.Expr:
        return relax_constant(atom.value) if isinstance(atom, Literal) else self._values[atom]

    def _bind(self, value: relax.Expr, ty: relax.Type) -> relax.Var:
        if value.ty.is_missing():
            relax.expr._update_type(value, ty)
        var = relax.Var(f"v{len(self._bindings)}", ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var
