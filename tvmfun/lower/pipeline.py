"""The pipeline: Program -> fused kernels -> scheduled kernels -> one Relax module -> one executable."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import tvm
from tvm import relax, tirx
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import ShapeDtype
from tvmfun.core.dims import Dim
from tvmfun.core.program import Atom, Literal, Program, Variable
from tvmfun.core.relax import in_relax, relax_constant, tensor_type
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native
from tvmfun.lower.codegen.memory_plan import Plan, planned
from tvmfun.lower.fusion import kernel as kernels
from tvmfun.lower.fusion.fuse import Kernel, fuse
from tvmfun.lower.fusion.row_fusion import merge_rows
from tvmfun.lower.rewrite.branch_updates import sink_updates
from tvmfun.lower.rewrite.dilated_convolutions import without_holes
from tvmfun.lower.rewrite.loop_panels import with_panels
from tvmfun.lower.rewrite.scatter_updates import sparse_updates
from tvmfun.lower.schedule import schedule, schedule_in_place
from tvmfun.lower.schedule.control_ops import statements
from tvmfun.lower.schedule.control_ops.statements import InPlace
from tvmfun.lower.tuning import database

# Scheduled kernels by their text: layers of a network share them, and so do Programs.
_KERNELS: OrderedDict[tuple[str, str, InPlace, database.Record | None, bool], tirx.PrimFunc | None] = OrderedDict()
_KERNELS_KEPT = 4096


def _scheduled(
    kernel: Kernel, text: str, target: Target, in_place: InPlace = (), may_be_tuned: bool = True, calls: bool = False
) -> tirx.PrimFunc | None:
    """The scheduled kernel; None if it cannot write the outputs that are to be ``in_place`` over inputs.

    Control flow may have it that it ``calls`` other functions.
    """
    # What shares memory or loops with other values needs to know in which order the rules write.
    record = database.find(text, target) if may_be_tuned and not in_place else None
    key = (text, str(target), in_place, record, calls and kernel.is_control)
    if key not in _KERNELS:
        if kernel.is_control:

            def inner(kernel: Kernel, target: Target, in_place: InPlace) -> tirx.PrimFunc | None:
                return _scheduled(kernel, kernels.text(kernel), target, in_place, may_be_tuned=False)

            _KERNELS[key] = statements.prim_func(kernel, inner, target, in_place, calls)
        elif in_place:
            first = len(kernel.inputs) + len(kernel.sizes)
            places = [(source, first + output) for source, output in in_place]
            _KERNELS[key] = schedule_in_place(kernels.prim_func(kernel), target, places)
        else:
            function = kernels.prim_func(kernel)
            tuned = database.tuned(record, function) if record else None
            _KERNELS[key] = tuned or schedule(function, target)
        if len(_KERNELS) > _KERNELS_KEPT:
            _KERNELS.popitem(last=False)
    return _KERNELS[key]


def clear_cache() -> None:
    """Forgets the scheduled kernels."""
    _KERNELS.clear()


def _kind(atom: Atom) -> tuple:
    return atom.aval.shape, atom.aval.dtype


class Scheduled(NamedTuple):
    """A kernel, its text, its schedule, and whether it writes results over arguments."""

    kernel: Kernel
    text: str
    function: tirx.PrimFunc
    is_in_place: bool


class Step(NamedTuple):
    """A kernel where it is called.

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


class _ModuleBuilder:
    """Writes the Relax function that calls the kernels one after the other."""

    def __init__(
        self,
        program: Program,
        target: Target,
        donated: Collection[int],
        scheduled: Callable[[tvm.ir.GlobalVar, tirx.PrimFunc], None] = lambda name, kernel: None,
    ) -> None:
        self.scheduled = scheduled  # is told of each kernel
        self.program = program
        self.target = target
        self.donated = {program.inputs[i] for i in donated}
        self.places = self.usual_places(donated)
        self.shown: dict[Atom, Atom] = {}  # what each view shows
        self.made: set[Atom] = set()  # the intermediates so far
        self.elsewhere: set[Atom] = set()  # results that were to lie over inputs, and could not
        self.is_dynamic = any(dims.is_dynamic(variable.aval.shape) for variable in program.inputs)
        self.functions: dict[tvm.ir.GlobalVar, relax.Function | tirx.PrimFunc] = {}
        self.globals: dict[tuple[str, InPlace], tvm.ir.GlobalVar] = {}
        self.called: dict[str, tvm.ir.GlobalVar] = {}  # functions that control flow calls
        self.kernels: list[Scheduled] = []
        self.calls: list[Step] = []
        self.bindings: list[relax.VarBinding] = []
        self.values: dict[Variable, relax.Expr] = {}
        # Relax needs an axis of size b to know b: that of size 4*b gets a name of its own, and b becomes a quotient.
        known = dims.known(variable.aval.shape for variable in program.inputs)
        forms = {name: size for name, size in known.items() if size.name is None}
        self.axes = {size: Dim(f"{name}_axis", min=0) for name, size in forms.items()}
        self.sizes = {name: dims.solve_linear(size, self.axes[size]) for name, size in forms.items()}

    def build(self) -> tvm.IRModule:
        parameters = []
        axes = dict(self.axes)
        for i, variable in enumerate(self.program.inputs):
            shape = tuple(axes.pop(size, size) for size in variable.aval.shape)
            self.values[variable] = relax.Var(f"a{i}", self.type(replace(variable.aval, shape=shape)))
            parameters.append(self.values[variable])
        for kernel, in_place in self.steps():
            self.call(kernel, in_place)
        body = relax.Tuple([self.value(atom) for atom in self.program.outputs])
        sequence = relax.SeqExpr([relax.DataflowBlock(self.bindings)] if self.bindings else [], body)
        if sequence.ty.is_missing():
            relax.expr._update_type(sequence, body.ty)
        main = relax.Function(parameters, sequence, body.ty).with_attr("global_symbol", "main")
        return tvm.IRModule({tvm.ir.GlobalVar("main"): main, **self.functions})

    def steps(self) -> list[tuple[Kernel, InPlace]]:
        """The kernels in order, and what each of them may write over arguments."""
        program = without_holes(sparse_updates(self.program))
        if targets.is_cpu(self.target):
            program = with_panels(sink_updates(program), self.target)
            kernels = merge_rows(fuse(program, widens=True), program.outputs)
        else:
            kernels = fuse(program)
        for kernel in kernels:
            if kernel.is_view:
                (argument,) = kernel.inputs
                self.shown[kernel.outputs[0]] = self.shown.get(argument, argument)
        self.last_use = {self.shown.get(atom, atom): i for i, kernel in enumerate(kernels) for atom in kernel.inputs}
        # A value that is returned as it is, or as a view, must not be overwritten.
        self.returned = set(self.program.outputs)
        self.kept = {self.shown.get(atom, atom) for atom in self.returned}
        self.donated -= self.kept
        self.carried: dict[Variable, list[tuple[Variable, Variable]]] = {}
        for variable, *pair in self.carriers(kernels):
            self.carried.setdefault(variable, []).append(tuple(pair))
        return [(kernel, self.in_place(kernel, i)) for i, kernel in enumerate(kernels)]

    def relax(self, value: Any) -> Any:
        """Sizes as expressions of those that Relax knows."""
        return in_relax(dims.at(value, self.sizes))

    def type(self, aval: ShapeDtype) -> relax.Type:
        """The type of a value."""
        return tensor_type(replace(aval, shape=dims.at(aval.shape, self.sizes)))

    def value(self, atom: Atom) -> relax.Expr:
        return relax_constant(atom.value) if isinstance(atom, Literal) else self.values[atom]

    def in_place(self, kernel: Kernel, position: int) -> InPlace:
        """The inputs that nothing needs after this kernel, and the results that it can write over them.

        These are donated inputs of the Program; of control flow, in which a copy costs a pass over the state of a whole
        training step, also intermediates.
        """
        read = Counter(self.shown.get(atom, atom) for atom in kernel.inputs)
        is_control = kernel.is_control and not self.is_dynamic
        dead = [
            i
            for i, a in enumerate(kernel.inputs)
            if (a in self.donated or (is_control and a in self.made)) and self.last_use[a] == position and read[a] == 1
        ]
        pairs = []
        for output, variable in enumerate(kernel.outputs):
            carried = ((i, r) for place, r in self.carried.get(variable, ()) for i in dead if kernel.inputs[i] is place)
            fitting_carried = [pair for pair in carried if self.may_lie_in_place(kernel, pair[0], output)]
            if fitting_carried and not is_control:
                source, result = fitting_carried[0]
                dead.remove(source)
                pairs.append((source, output))
                self.donated.add(variable)
                self.places[result] = variable
                continue
            if variable not in self.returned and not is_control:
                continue
            fitting = [i for i in dead if _kind(kernel.inputs[i]) == _kind(variable)]
            # A result that is returned does not go into the block of intermediates.
            fitting = [i for i in fitting if (kernel.inputs[i] in self.donated) == (variable in self.kept)]
            fitting = [i for i in fitting if self.may_lie_in_place(kernel, i, output)]
            if fitting:
                source = min(fitting, key=lambda i: kernel.inputs[i] is not self.places.get(variable))
                dead.remove(source)
                pairs.append((source, output))
        if not kernel.is_view:
            self.made.update(out for out in kernel.outputs if out not in self.kept)
        return tuple(pairs)

    def carriers(self, fused: list[Kernel]) -> Iterator[tuple[Variable, Variable, Variable]]:
        """Intermediates that a kernel may write over an input, and branches over them the result that replaces it.

        Yields:
            The intermediate, the input and the result.
        """
        makers = {out: kernel for kernel in fused for out in kernel.outputs}
        readers = Counter(self.shown.get(atom, atom) for kernel in fused for atom in kernel.inputs)
        for kernel in fused:
            if kernel.equations[0].op.name != "switch":
                continue
            sources = [a for a in kernel.inputs if a in makers and readers[a] == 1 and a not in self.kept]
            for result in filter(self.returned.__contains__, kernel.outputs):
                place = self.places.get(result)
                for source in sources:
                    if _kind(source) == _kind(result) and place in makers[source].inputs:
                        yield source, place, result

    def may_lie_in_place(self, kernel: Kernel, source: int, output: int) -> bool:
        """Whether a kernel may be able to write a result over an input."""
        if kernel.is_control:
            first = kernel.equations[0]
            return targets.is_cpu(self.target) and statements.may_lie_in_place(first, {source}, output)
        return kernel.reads_in_step(kernel.inputs[source])

    def usual_places(self, donated: Collection[int]) -> dict[Atom, Variable]:
        """For each result the input that it probably replaces: the first is for the first of the same kind."""
        unused: dict[tuple, deque[Variable]] = {}
        for i in donated:
            unused.setdefault(_kind(self.program.inputs[i]), deque()).append(self.program.inputs[i])
        return {out: queue.popleft() for out in self.program.outputs if (queue := unused.get(_kind(out)))}

    def call(self, kernel: Kernel, in_place: InPlace = ()) -> None:
        if all(out.aval.size == 0 for out in kernel.outputs):
            for out in kernel.outputs:
                self.values[out] = self.bind(self.nothing(out.aval), self.type(out.aval))
            self.calls.append(Step(kernel))
            return
        types = [self.type(out.aval) for out in kernel.outputs]
        if kernel.is_view:
            shape = self.relax(kernel.outputs[0].aval.shape)
            value = relax.op.reshape(self.value(kernel.equations[0].inputs[0]), shape)
            self.values[kernel.outputs[0]] = self.bind(value, types[0])
            self.calls.append(Step(kernel))
            return
        result_type = relax.TupleType(types) if len(types) > 1 else types[0]
        arguments = relax.Tuple([*map(self.value, kernel.inputs), *self.relax(kernel.sizes)])
        in_place = tuple(pair for pair in in_place if kernel.inputs[pair[0]] not in self.elsewhere)
        function = self.function(kernel, in_place) if in_place else None
        if function is None:
            self.elsewhere.update(kernel.outputs[output] for _, output in in_place)
            function, in_place = self.function(kernel), ()
        rule = str(self.functions[function].attrs.get("tvmfun.rule", ""))
        self.calls.append(Step(kernel, function.name_hint, rule, in_place))
        if in_place:
            sources = {output: source for source, output in in_place}
            over = [sources.get(output, -1) for output in range(len(types))]
            call = relax.op.call_tir_inplace(function, arguments, over, types)
        else:
            call = relax.Call(tvm.ir.Op.get("relax.call_tir"), [function, arguments], ty_args=[result_type])
        result = self.bind(call, result_type)
        for i, (out, ty) in enumerate(zip(kernel.outputs, types, strict=True)):
            self.values[out] = result if len(types) == 1 else self.bind(relax.TupleGetItem(result, i), ty)

    def nothing(self, aval: ShapeDtype) -> relax.Expr:
        """An array without elements: memory of no bytes, which no kernel has to write."""
        shape = relax.ShapeExpr(self.relax(aval.shape))
        return relax.op.builtin.alloc_tensor(shape, dtypes.NAMES[aval.dtype], 0)

    def bind(self, value: relax.Expr, ty: relax.Type) -> relax.Var:
        if value.ty.is_missing():
            relax.expr._update_type(value, ty)
        var = relax.Var(f"v{len(self.bindings)}", ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def function(self, kernel: Kernel, in_place: InPlace = ()) -> tvm.ir.GlobalVar | None:
        """The function of the kernel; kernels that compute the same share one. None if it cannot be ``in_place``."""
        key = (kernels.text(kernel), in_place)
        if key not in self.globals:
            # Kernels with dynamic sizes, and those of GPUs, have another calling convention.
            calls = targets.is_cpu(self.target) and not self.is_dynamic
            function = _scheduled(kernel, key[0], self.target, in_place, calls=calls)
            if function is None:
                return None
            name = f"{kernel.name}_{len(self.globals)}"
            function, callees = statements.with_callees(function)
            for called, callee in callees.items():
                if called not in self.called:
                    self.called[called] = self.add(called, callee)
            function = function.with_attr("global_symbol", name)
            self.globals[key] = self.add(name, function)
            self.kernels.append(Scheduled(kernel, key[0], function, bool(in_place)))
        return self.globals[key]

    def add(self, name: str, function: tirx.PrimFunc) -> tvm.ir.GlobalVar:
        """A function of the module."""
        var = tvm.ir.GlobalVar(name)
        relax.expr._update_type(var, relax.FuncType.opaque_func(ret=relax.TupleType([])))
        self.functions[var] = function
        self.scheduled(var, function)
        return var


# Reuses memory of values that are no longer needed, also where sizes are dynamic; its kernels need no offsets.
_PLAN_OF_TVM = [
    relax.transform.RewriteDataflowReshape(),
    relax.transform.ToNonDataflow(),
    relax.transform.RemovePurityChecking(),
    relax.transform.CallTIRRewrite(),
    relax.transform.StaticPlanBlockMemory(),
]


def scheduled_module(program: Program, target: Target, donated: Collection[int] = ()) -> tvm.IRModule:
    """The Program as a module of scheduled kernels and a ``main`` that calls them.

    Args:
        program: what to compile.
        target: what for.
        donated: the places of inputs that may be overwritten with results.
    """
    return _ModuleBuilder(program, target, donated).build()


def fused_kernels(program: Program, target: Target, donated: Collection[int] = ()) -> list[tuple[Kernel, InPlace]]:
    """The kernels of the Program in the order in which they run, and what each may write over arguments."""
    return _ModuleBuilder(program, target, donated).steps()


def scheduled_kernels(program: Program, target: Target, donated: Collection[int] = ()) -> list[Scheduled]:
    """The kernels of the Program, each once; those inside of control flow are part of its kernels."""
    builder = _ModuleBuilder(program, target, donated)
    builder.build()
    return builder.kernels


def build(program: Program, target: Target, donated: Collection[int] = ()) -> tuple[native.NativeModule, Plan]:
    """Schedules the Program, plans memory, lowers and generates code, for a CPU and static sizes."""
    built, plan, _ = build_with_steps(program, target, donated)
    return built, plan


def build_with_steps(
    program: Program, target: Target, donated: Collection[int] = ()
) -> tuple[native.NativeModule, Plan, list[Step]]:
    """The same, and the kernels in the order in which they are called."""
    kernels = native.Kernels(target)
    builder = _ModuleBuilder(program, target, donated, kernels.add)
    plan, steps = planned(builder.build()["main"])
    built = native.NativeModule(kernels, steps, plan.block + 1, target)
    return built, replace(plan, analysis=replace(plan.analysis, workspaces=built.workspaces)), builder.calls


def build_for_vm(module: tvm.IRModule, target: Target, dynamic: bool) -> relax.VMExecutable:
    """The same for TVM's virtual machine; ``dynamic`` says that there are dynamic sizes."""
    passes = tvm.transform.Sequential(
        [
            *_PLAN_OF_TVM,
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )
    if not dynamic:
        # Every call would check every argument again. Whoever calls knows their types.
        name = module.get_global_var("main")
        module = tvm.IRModule({**module.functions, name: module[name].with_attr("num_input", 0)}, attrs=module.attrs)
    with target, tvm.transform.PassContext(opt_level=3):
        if not targets.is_cpu(target):
            return relax.build(module, target, relax_pipeline=passes)
        module = passes(module)
        builder = relax.ExecBuilder()
        constants = dict(module.get_attr("const_name_to_constant") or {})
        module = tvm.get_global_func("relax.VMCodeGen")(builder, module)
    library = native.compiled(target, _kernels(module), pointers=False)
    return relax.VMExecutable(tvm.get_global_func("relax.VMLink")(builder, target, library, [], constants))


def _kernels(module: tvm.IRModule) -> dict[tvm.ir.GlobalVar, tirx.PrimFunc]:
    return {name: function for name, function in module.functions.items() if isinstance(function, tirx.PrimFunc)}
