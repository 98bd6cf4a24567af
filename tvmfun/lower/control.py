"""Control flow as one function: loops and branches around the kernels of their Programs.

A step costs its kernels and nothing else: no allocation by a runtime, no recursion. State lives in the buffers of the
results. The kernels of a short body are put inline. Those of a long one are functions that it calls, as ``main`` does:
equal ones are compiled once, and TVM's passes take quadratic time for a function with many loops.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import ShapeDtype
from tvmfun.core.inline import subprograms
from tvmfun.core.op import REGISTRY
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.errors import TargetError
from tvmfun.lower import signals
from tvmfun.lower import target as targets
from tvmfun.lower.calls import Stack, called_functions
from tvmfun.lower.cpu.build import Axis, buffer, flatten, nbytes, substitute, unflatten
from tvmfun.lower.cpu.fuse import bits_of
from tvmfun.lower.cpu.machine import SERIAL_WORK, Machine
from tvmfun.lower.cpu.overwrite import writes_once
from tvmfun.lower.fuse import Kernel, fuse
from tvmfun.lower.kernel import constant
from tvmfun.lower.structure import called, find, rewrite

#: Pairs of the positions of an input and of the output that is written over it.
InPlace = tuple[tuple[int, int], ...]
#: Gives the function of a kernel, scheduled for a target, with some outputs written over inputs, or None if it cannot.
Scheduled = Callable[[Kernel, Target, InPlace], Any]

# Bytes that the intermediates of one step may take if steps run at the same time: about what a core's caches hold.
# Steps that need more have kernels that keep all cores busy, and people loop over such steps to save memory.
_STEP_BYTES = 4 << 20

# With more kernels than this, control flow calls them, but for those on so few elements that a call would show.
_FEW_KERNELS, _FEW_ELEMENTS = 12, 2

# The annotation of a loop of one step that is there as a scope.
_SCOPE = "tvmfun.scope"

# The attribute of a function with those that it calls, by name.
_CALLEES = "tvmfun.callees"


@dataclass(frozen=True, eq=False)
class Place:
    """Where a value lies: a buffer, or one row of it, perhaps in another shape."""

    buffer: tirx.Buffer
    aval: ShapeDtype
    lead: tuple = ()

    def row(self, index: Any) -> Place:
        """The place of one row of a stacked value."""
        return Place(self.buffer, ShapeDtype(self.aval.shape[1:], self.aval.dtype), (*self.lead, index))

    def load(self, indices: Sequence[Any] = ()) -> Any:
        """The element at ``indices``."""
        value = self.buffer[tuple(self._indices(indices))]
        return tirx.Cast("bool", value) if self.is_widened else value

    def store(self, value: Any, indices: Sequence[Any] = ()) -> tirx.Stmt:
        """Writes the element at ``indices``."""
        value = value.astype("int8") if self.is_widened else value
        return tirx.BufferStore(self.buffer, value, self._indices(indices))

    def region(self, ranges: Sequence[ir.Range]) -> tirx.BufferRegion:
        """The elements in ``ranges``, or all where the shape is another one."""
        if self.is_reshaped:
            ranges = [ir.Range(0, size) for size in self._shape]
        return tirx.BufferRegion(self.buffer, [*(ir.Range.from_min_extent(i, 1) for i in self.lead), *ranges])

    def first(self) -> Any:
        """The first element of the buffer or row."""
        return self.buffer[(*self.lead, *(0 for _ in self._shape))]

    def _indices(self, indices: Sequence[Any]) -> list:
        if self.is_reshaped:
            axes = [[Axis(tirx.Var("i", "int32"), size) for size in shape] for shape in (self.aval.shape, self._shape)]
            element = flatten(axes[0], {axis.var: i for axis, i in zip(axes[0], indices, strict=True)})
            found = unflatten(axes[1], element)
            indices = [found[axis.var] for axis in axes[1]]
        return [*self.lead, *indices]

    @property
    def _shape(self) -> tuple:
        """That of the buffer or row."""
        return tuple(map(dims.of_expr, self.buffer.shape[len(self.lead) :]))

    @property
    def is_reshaped(self) -> bool:
        """Whether the value has another shape than the memory."""
        return self._shape != self.aval.shape

    @property
    def is_widened(self) -> bool:
        """Whether bools lie there as int8: passes of TVM mix the two up in vectors of bools inside a function."""
        return self.aval.dtype == dtypes.bool_ and str(self.buffer.dtype) != "bool"


class Host:
    """Writes the statements of a control op; its record says where the Programs go.

    Args:
        scheduled: schedules the kernels of the Programs.
        target: what to compile for.
        calls: whether kernels may be functions of their own.
    """

    def __init__(self, scheduled: Scheduled, target: Target, calls: bool) -> None:
        self._schedule = scheduled
        self._calls = calls
        self._fused: dict[int, tuple[Program, list[Kernel]]] = {}
        self.target = target
        self.buffers: list[tirx.Buffer] = []
        self.callees: dict[str, tirx.PrimFunc] = {}
        self._stack = Stack()
        self._named: dict[tuple, tuple[tirx.PrimFunc, str]] = {}
        self.is_serial = False

    def write(self, equation: Equation, inputs: Sequence[Place], outputs: Sequence[Place]) -> tirx.Stmt:
        """The statements of a control op."""
        self._calls = self._calls and self._count(equation) > _FEW_KERNELS
        return self._stack.around(equation.op.compute(self, inputs, outputs, **equation.params))

    def _count(self, equation: Equation) -> int:
        """The number of kernels in the Programs of a control op."""
        kernels = [k for program in subprograms(tuple(equation.params.values())) for k in self._kernels(program)]
        first = [kernel.equations[0] for kernel in kernels]
        return sum(self._count(inner) if inner.op.kind == "control" else 1 for inner in first)

    def _kernels(self, program: Program) -> list[Kernel]:
        """The kernels of a Program, which is kept so that no other one gets its ``id``."""
        if id(program) not in self._fused:
            self._fused[id(program)] = program, fuse(program, widens=targets.is_cpu(self.target))
        return self._fused[id(program)][1]

    def scheduled(self, kernel: Kernel) -> tirx.PrimFunc:
        """The scheduled function of a kernel."""
        return self._schedule(kernel, self.target, ())

    def scattering(self, kernel: Kernel) -> tirx.PrimFunc | None:
        """The function of a scatter that writes into its array, or None if there is none."""
        source = kernel.inputs.index(kernel.equations[0].inputs[0])
        return self._schedule(kernel, self.target, ((source, 0),))

    # -- values ------------------------------------------------------------------------------------------------

    def parameter(self, aval: ShapeDtype, name: str) -> Place:
        """An argument of the function."""
        return Place(buffer(aval.shape, dtypes.NAMES[aval.dtype], name), aval)

    def new(self, aval: ShapeDtype) -> Place:
        """Memory that lives as long as the function runs."""
        dtype = "int8" if aval.dtype == dtypes.bool_ else dtypes.NAMES[aval.dtype]
        self.buffers.append(buffer(aval.shape, dtype, f"v{len(self.buffers)}"))
        return Place(self.buffers[-1], aval)

    def size(self, length: Any) -> Any:
        """A number of steps as an expression."""
        return dims.scalar(length, "int32")

    def read(self, place: Place) -> Any:
        """The value of a scalar, for the loops and branches themselves.

        Raises:
            TargetError: if it is in the memory of a device, where the host cannot look.
        """
        if not targets.is_cpu(self.target):
            raise TargetError(
                "compile",
                "a branch or a number of steps that depends on data needs its data on the host",
                got=self.target.kind.name,
                hint="scan or fori_loop with a fixed number of steps, or where",
            )
        return place.load()

    # -- loops -------------------------------------------------------------------------------------------------

    def loop(
        self, length: Any, extent: Any, step: Callable[[Any], tirx.Stmt], program: Program, is_ordered: bool
    ) -> tirx.Stmt:
        """A loop around ``step(i)``, for ``i`` below ``extent``.

        Args:
            length: the number of steps.
            extent: the same as an expression.
            step: writes a step.
            program: what a step runs.
            is_ordered: whether a step needs the ones before.
        """
        i = _index("i")
        if not is_ordered and self._keeps_cores_busy(length, program):
            body, buffers = self._in_one_thread(lambda: step(i))
            if sum(map(nbytes, buffers)) <= _STEP_BYTES:
                body = tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), body]) if buffers else body
                return tirx.For(i, 0, extent, tirx.ForKind.PARALLEL, body)
        period = self._period(length, program)
        if period is None:
            return _serial(i, extent, step(i))
        if period == 1:
            return _serial(i, extent, tirx.SeqStmt([signals.look(), step(i)]))
        first = i * period
        j = _index("j")
        inner = _serial(j, tirx.min(extent - first, tirx.const(period, "int32")), step(first + j))
        return _serial(i, tirx.floordiv(extent, period) + 1, tirx.SeqStmt([signals.look(), inner]))

    def while_loop(self, condition: Any, body: tirx.Stmt, program: Program) -> tirx.Stmt:
        """A loop as long as a condition holds, around a ``body`` that runs ``program``."""
        period = self._period(None, program)
        if period is None:
            return _while(condition, body)
        if period == 1:
            return _while(condition, tirx.SeqStmt([signals.look(), body]))
        count = self.new(ShapeDtype((), dtypes.int32))
        counted = tirx.SeqStmt([body, count.store(count.load() + 1)])
        inner = _while(tirx.And(condition, count.load() < period), counted)
        return _while(condition, tirx.SeqStmt([signals.look(), count.store(tirx.const(0, "int32")), inner]))

    def _period(self, length: Any, program: Program) -> int | None:
        """After how many steps a loop around a Program looks for signals, if it does.

        It does so between inner loops, which stay free of calls, so that LLVM keeps their state in registers.
        """
        if self.is_serial or not targets.is_cpu(self.target):
            return None
        return signals.period(length, _work(program))

    def _keeps_cores_busy(self, length: Any, program: Program) -> bool:
        """Whether there is enough to do, and it can be dealt out evenly."""
        if self.is_serial or not targets.is_cpu(self.target):
            return False
        steps, cores = dims.typical(length), Machine.of(self.target).cores
        even = steps >= 4 * cores or (steps >= cores and steps % cores == 0)
        return cores > 1 and even and steps * _work(program) >= SERIAL_WORK

    def _in_one_thread(self, make: Callable[[], tirx.Stmt]) -> tuple[tirx.Stmt, list[tirx.Buffer]]:
        """What ``make`` writes for one core, and the memory for it."""
        before = self.target, self.buffers, self._stack
        self.target, self.buffers, self._stack = Target({**self.target.export(), "num-cores": 1}), [], Stack()
        self.is_serial = True
        try:
            return _with_bits(self._stack.around(_without_threads(make())), self.buffers)
        finally:
            (self.target, self.buffers, self._stack), self.is_serial = before, False

    # -- statements --------------------------------------------------------------------------------------------

    def copy(self, source: Place, target: Place) -> tirx.Stmt:
        """Copies a value, unless it is there already."""
        if _is_same(source, target):
            return tirx.Evaluate(tirx.const(0, "int32"))
        x, y = Variable(source.aval), Variable(target.aval)
        equation = Equation(REGISTRY["reshape"], (x,), {"shape": target.aval.shape}, (y,))
        return self._run_kernel(Kernel((equation,), (x,), (y,)), [source, target])

    def fill(self, target: Place, value: float) -> tirx.Stmt:
        """Writes a number to every element."""
        y = Variable(target.aval)
        number = Literal(target.aval.dtype.type(value))
        equation = Equation(REGISTRY["broadcast_to"], (number,), {"shape": target.aval.shape}, (y,))
        return self._run_kernel(Kernel((equation,), (), (y,)), [target])

    def run(self, program: Program, inputs: Sequence[Place], outputs: Sequence[Place]) -> list[tirx.Stmt]:
        """The kernels of a closed Program; ``outputs`` may be places of ``inputs``, which then change at the end."""
        kernels = self._kernels(program)
        places: dict[Variable, Place] = dict(zip(program.inputs, inputs, strict=True))
        in_place: dict[int, InPlace] = {}
        views = self._views(kernels)
        for atom, target in zip(program.outputs, outputs, strict=True):
            if (
                isinstance(atom, Variable)
                and atom not in places
                and self._may_write(atom, target, program, inputs, kernels, views, in_place)
            ):
                places[atom] = target
        states = _states(program, kernels)
        memory = _Memory(self, _last_use(program, kernels, states, views))
        statements: list[tirx.Stmt] = []
        for i, kernel in enumerate(kernels):
            (first, *_) = kernel.outputs
            if first in views and first not in places:
                place = places[views[first]]
                places[first] = Place(place.buffer, first.aval, place.lead)
                continue
            for out in kernel.outputs:
                if out in places:
                    continue
                state = states.get(out)
                if state in places and any(place.buffer.same_as(places[state].buffer) for place in inputs):
                    state = None  # what lies there may still be needed
                places[out] = (
                    places[state] if state in places else memory.new(out, self._calls and not _is_control(kernel))
                )
                if state is not None:
                    places[state] = places[out]
            statements += self._kernel(kernel, places, in_place.get(i, ()))
            memory.finish(i)
        return [*statements, *self._results(program.outputs, outputs, places)]

    def _views(self, kernels: Sequence[Kernel]) -> dict[Variable, Variable]:
        """What each value shows that needs no memory of its own, being another one in another shape."""
        rows = {atom for kernel in kernels if _is_control(kernel) for atom in kernel.inputs}
        views: dict[Variable, Variable] = {}
        for kernel in kernels:
            (source, *_), (out, *_) = kernel.inputs or (None,), kernel.outputs
            if self._calls and kernel.is_view and isinstance(source, Variable) and out not in rows:
                views[out] = views.get(source, source)
        return views

    def _may_write(
        self,
        atom: Variable,
        target: Place,
        program: Program,
        inputs: Sequence[Place],
        kernels: Sequence[Kernel],
        views: Mapping[Variable, Variable],
        in_place: dict[int, InPlace],
    ) -> bool:
        """Whether a result may be written to its place at once: nobody needs what is there, then or later.

        ``in_place`` gets the results that a kernel has to be scheduled for writing over its inputs.
        """
        there = {v for v, place in zip(program.inputs, inputs, strict=True) if place.buffer.same_as(target.buffer)}
        if not there:
            return True
        there.update(view for view, shown in views.items() if shown in there)
        if atom in there or not there.isdisjoint(program.outputs):
            return False
        writer = next(i for i, kernel in enumerate(kernels) if atom in kernel.outputs)
        readers = [i for i, kernel in enumerate(kernels) if not there.isdisjoint(kernel.inputs)]
        if any(i > writer for i in readers):
            return False
        if writer not in readers:
            return True
        known = in_place.get(writer, ())
        if pair := self._in_step(kernels[writer], there, atom, known):
            in_place[writer] = (*known, pair)
            return True
        return not known and self._reads_before(kernels[writer], there, atom)

    def _in_step(
        self, kernel: Kernel, read: set[Variable], written: Variable, known: InPlace
    ) -> tuple[int, int] | None:
        """An input, and the result that the kernel can be scheduled to write over it, besides those ``known``."""
        sources = [i for i, atom in enumerate(kernel.inputs) if atom in read]
        if len(sources) != 1 or _is_control(kernel) or _is_scatter(kernel):
            return None
        if not kernel.reads_in_step(kernel.inputs[sources[0]]):
            return None
        pair = sources[0], kernel.outputs.index(written)
        return None if self._schedule(kernel, self.target, (*known, pair)) is None else pair

    def _reads_before(self, kernel: Kernel, read: set[Variable], written: Variable) -> bool:
        """Whether the kernel reads each element only before it writes the one at the same place, and writes it once."""
        equation = kernel.equations[0]
        if equation.op.kind == "control":
            sources = {i for i, atom in enumerate(kernel.inputs) if atom in read}
            return may_lie_in_place(equation, sources, kernel.outputs.index(written))
        if _is_scatter(kernel):
            array, *others = equation.inputs
            return array in read and read.isdisjoint(others) and self.scattering(kernel) is not None
        atoms = (*kernel.inputs, *kernel.outputs)
        if any(atom.aval.shape != written.aval.shape for atom in atoms if atom in read):
            return False
        function = self.scheduled(kernel)
        buffers = [p for p in function.params if tirx.is_buffer_var(p)]
        sources = [p for p, atom in zip(buffers, atoms, strict=True) if atom in read]
        result = next(p for p, atom in zip(buffers, atoms, strict=True) if atom is written)
        if not writes_once(function.body, result):
            return False
        loads: list[Any] = []
        for node in find(function.body, ir.TensorLoad, tirx.BufferStore):
            if isinstance(node, ir.TensorLoad):
                if node.source.same_as(result):
                    return False
                if any(node.source.same_as(source) for source in sources):
                    loads.append(node.indices)
            elif node.buffer.same_as(result):
                # Loads come first in this walk: those not stored yet must be of this very place.
                if not loads or not all(_is_same_place(at, node.indices) for at in loads):
                    return False
                loads.clear()
        return not loads

    def _results(
        self, atoms: Sequence[Atom], targets: Sequence[Place], places: dict[Variable, Place]
    ) -> list[tirx.Stmt]:
        """Copies the results that are not in place yet, in an order that overwrites nothing that is still needed."""
        statements, waiting = [], []
        for atom, target in zip(atoms, targets, strict=True):
            if isinstance(atom, Literal) or not _is_same(places[atom], target):
                waiting.append((atom if isinstance(atom, Literal) else places[atom], target))
        while waiting:
            needed = [source for source, _ in waiting if isinstance(source, Place)]
            free = (i for i, (_, target) in enumerate(waiting) if not any(_is_same(s, target) for s in needed))
            place = next(free, None)
            if place is None:  # a cycle, as where two carries change places
                source, target = waiting[0]
                kept = self.new(source.aval)
                statements.append(self.copy(source, kept))  # type: ignore[arg-type]
                waiting[0] = (kept, target)
                continue
            source, target = waiting.pop(place)
            is_number = isinstance(source, Literal)
            statements.append(target.store(constant(source.value)) if is_number else self.copy(source, target))
        return statements

    def _kernel(self, kernel: Kernel, places: dict[Variable, Place], in_place: InPlace) -> list[tirx.Stmt]:
        if all(out.aval.size == 0 for out in kernel.outputs):
            return []
        statements, given = [], []
        for atom in kernel.inputs:
            if isinstance(atom, Literal):
                place = self.new(atom.aval)
                statements.append(place.store(constant(atom.value)))
            else:
                place = places[atom]
            given.append(place)
        results = [places[out] for out in kernel.outputs]
        equation = kernel.equations[0]
        if _is_control(kernel):
            return [*statements, equation.op.compute(self, given, results, **equation.params)]
        return [*statements, self._run_kernel(kernel, [*given, *results], in_place)]

    def _run_kernel(self, kernel: Kernel, places: Sequence[Place], in_place: InPlace = ()) -> tirx.Stmt:
        """What runs a kernel on ``places``: its body, or a call of its function."""
        if kernel.outputs[0].aval.size == 0:
            return tirx.Evaluate(tirx.const(0, "int32"))
        function = self._schedule(kernel, self.target, in_place) if in_place else None
        if (
            function is None
            and _is_scatter(kernel)
            and _is_same(places[kernel.inputs.index(kernel.equations[0].inputs[0])], places[-1])
        ):
            function = self.scattering(kernel)
        if function is None:
            function = self.scheduled(kernel)
        elif in_place:
            written = {len(kernel.inputs) + output for _, output in in_place}
            places = [place for i, place in enumerate(places) if i not in written]
        else:
            places = places[:-1]
        call = self._call(kernel, function, places) if self._calls else None
        return call or _inline(kernel, function, places)

    def _call(self, kernel: Kernel, function: tirx.PrimFunc, places: Sequence[Place]) -> tirx.Stmt | None:
        """The call of a kernel's function, or None.

        It is none for so few elements that a call would show, or if two arguments may overlap without being the same.
        """
        if all(place.aval.size < _FEW_ELEMENTS for place in places):
            return None
        given: list[Place] = []
        numbers = []
        for place in places:
            number = next((i for i, other in enumerate(given) if _is_same(place, other)), len(given))
            if number == len(given):
                if any(place.buffer.same_as(other.buffer) for other in given):
                    return None
                given.append(place)
            numbers.append(number)
        widened = tuple(place.is_widened for place in given)
        key = id(function), tuple(numbers), widened, self.is_serial
        if key not in self._named:
            self._named[key] = function, self._callee(kernel.name, function, places, numbers)
        addresses = [tirx.address_of(place.first()) for place in given]
        return self._stack.call(self._named[key][1], addresses)

    def _callee(self, name: str, function: tirx.PrimFunc, places: Sequence[Place], numbers: Sequence[int]) -> str:
        """The name of a function like a kernel's, but with one parameter for arguments of the same number."""
        parameters: list[tirx.Buffer] = []
        body = function.body
        for parameter, place, i in zip(function.params, places, numbers, strict=True):
            if i == len(parameters):
                parameters.append(_unaligned(place.aval.shape, str(place.buffer.dtype), f"x{i}"))
            body = _redirected(body, parameter, Place(parameters[i], place.aval))
        if self.is_serial:
            body = _without_threads(body)
        callee = tirx.PrimFunc(parameters, body, function.ret_type, function.attrs)
        # The same in every process, and for equal kernels.
        name = f"{name}_{tvm_ffi.structural_hash(callee) % 2**64:016x}"
        self.callees[name] = callee.with_attr("global_symbol", name)
        return name


def _inline(kernel: Kernel, function: tirx.PrimFunc, places: Sequence[Place]) -> tirx.Stmt:
    """The body of a kernel's function, working on ``places`` instead of its parameters."""
    function = s_tir.renew_defs(function)
    buffers = [p for p in function.params if tirx.is_buffer_var(p)]
    sizes = [p for p in function.params if not tirx.is_buffer_var(p)]
    body = substitute(function.body, dict(zip(sizes, map(dims.expr, kernel.sizes), strict=True)))
    for parameter, place in zip(buffers, places, strict=True):
        body = _redirected(body, parameter, place)
    return body


def _unaligned(shape: Sequence[int], dtype: str, name: str) -> tirx.Buffer:
    """A parameter that may lie at the address of any element, as rows do."""
    alignment = -(-tvm.DataType(dtype).bits // 8)
    return tirx.decl_buffer(shape, dtype, name=name, data_alignment=alignment)


class _Memory:
    """Buffers for the intermediates of a Program, used again once what lies there is not needed any more."""

    def __init__(self, host: Host, last_use: Mapping[Variable, int | float]) -> None:
        self._host, self._last_use = host, last_use
        self._unused: dict[tuple, list[Place]] = {}
        self._ends: dict[int | float, list[Place]] = {}

    def new(self, value: Variable, any_shape: bool) -> Place:
        """Memory for a value, which may be in a buffer of ``any_shape``."""
        aval = value.aval
        unused = self._unused.get((aval.size, aval.dtype), [])
        fitting = (place for place in unused if any_shape or place.aval.shape == aval.shape)
        place = next(fitting, None)
        if place is None:
            place = self._host.new(aval)
        else:
            unused.remove(place)
        self._ends.setdefault(self._last_use[value], []).append(place)
        return Place(place.buffer, aval)

    def finish(self, kernel: int) -> None:
        """Says that a kernel has run."""
        for place in self._ends.get(kernel, ()):
            self._unused.setdefault((place.aval.size, place.aval.dtype), []).append(place)


def _is_control(kernel: Kernel) -> bool:
    return kernel.equations[0].op.kind == "control"


def _index(name: str) -> ir.Var:
    return ir.Var(name, ir.PrimType("int32"))


def _serial(index: ir.Var, extent: Any, body: tirx.Stmt) -> tirx.For:
    return tirx.For(index, 0, extent, tirx.ForKind.SERIAL, body)


def _while(condition: Any, body: tirx.Stmt) -> tirx.Stmt:
    """A loop as long as a condition holds.

    TVM gives workspaces back at the end of a ``For``, and knows no other scope: the body is put in one of a single
    step, whose annotation keeps the passes from taking it away.
    """
    once = tirx.For(_index("once"), 0, 1, tirx.ForKind.SERIAL, body, None, {_SCOPE: True})
    return tirx.While(condition, once)


def _states(program: Program, kernels: Sequence[Kernel]) -> dict[Variable, Variable]:
    """The last carries of loops by their first ones, where nobody else reads these: both may lie at one place."""
    readers = Counter(atom for kernel in kernels for atom in kernel.inputs)
    readers.update(program.outputs)
    states = {}
    for kernel in kernels:
        equation = kernel.equations[0]
        if equation.op.name == "loop":
            first = equation.params["counted"] + equation.params["consts"]
            starts = kernel.inputs[first : first + equation.params["carry"]]
            pairs = zip(starts, kernel.outputs, strict=False)
            states.update((start, out) for start, out in pairs if readers[start] == 1)
    return states


def _last_use(
    program: Program,
    kernels: Sequence[Kernel],
    states: Mapping[Variable, Variable],
    views: Mapping[Variable, Variable],
) -> dict[Variable, int | float]:
    """The last kernel that makes or reads each value, or the one that lies where it does."""
    last: dict[Variable, int | float] = {}
    for i, kernel in enumerate(kernels):
        last.update((atom, i) for atom in (*kernel.inputs, *kernel.outputs) if isinstance(atom, Variable))
    last.update((atom, math.inf) for atom in program.outputs if isinstance(atom, Variable))
    for view, shown in views.items():
        last[shown] = max(last.get(shown, 0), last[view])
    for start, out in reversed(states.items()):
        if isinstance(start, Variable):
            last[start] = max(last[start], last[out])
    return last


def _is_scatter(kernel: Kernel) -> bool:
    """Whether a kernel is nothing but a scatter into an array."""
    equation = kernel.equations[0]
    return len(kernel.equations) == 1 and equation.op.overwrites == 0 and equation.inputs[0] in kernel.inputs


def may_lie_in_place(equation: Equation, sources: set[int], output: int) -> bool:
    """Whether a result of a control op may be written to where only these arguments lie.

    A branch is written such that its results may lie where its arguments do. A loop reads a first carry before it
    writes the last one, and a row before the one at the same place.
    """
    if equation.op.name == "switch":
        return True
    params = equation.params
    first = params["counted"] + params["consts"]
    carry = params["carry"]
    if output < carry:
        return sources == {first + output}
    fills = params["counted"] or params["cond"] is not None
    return not fills and min(sources) >= first + carry


def _work(program: Program) -> int:
    """About how many elements a Program computes, those of matrix products counted by their terms."""
    total = 0
    for equation in program.equations:
        inner = [_work(own) for own in subprograms(tuple(equation.params.values()))]
        terms = 1
        if equation.op.kind == "contraction":
            left, right = (dims.typical(atom.aval.size) for atom in equation.inputs[:2])
            result = dims.typical(equation.outputs[0].aval.size)
            terms = max(1, math.isqrt(left * right // max(1, result)))
        steps = dims.typical(equation.params.get("length") or 1)
        total += steps * sum(inner) + terms * sum(dims.typical(out.aval.size) for out in equation.outputs)
    return total


def _without_threads(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with serial loops where it has parallel ones, for which it is too deep inside another one."""

    def serial(loop: tirx.For) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return rewrite(body, (tirx.For, serial))


def _is_same_place(one: Any, other: Any) -> bool:
    return tvm_ffi.structural_equal(one, other, map_free_vars=False)


def _is_same(source: Place, target: Place) -> bool:
    same_row = len(source.lead) == len(target.lead) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(source.lead, target.lead, strict=True)
    )
    return source.buffer.same_as(target.buffer) and same_row


def _redirected(body: tirx.Stmt, parameter: Any, place: Place) -> tirx.Stmt:
    """``body`` with ``place`` where it uses ``parameter``."""
    if not place.lead and not place.is_widened and not place.is_reshaped:
        return substitute(body, {parameter: place.buffer})

    def load(node: ir.TensorLoad) -> Any:
        return place.load(node.indices) if node.source.same_as(parameter) else node

    def store(node: tirx.BufferStore) -> Any:
        return place.store(node.value, node.indices) if node.buffer.same_as(parameter) else node

    def region(node: ir.TensorRegion) -> Any:
        return place.region(node.region) if node.source.same_as(parameter) else node

    body = rewrite(body, (ir.TensorLoad, load), (tirx.BufferStore, store))
    return rewrite(body, (ir.TensorRegion, region))


def _with_bits(body: tirx.Stmt, buffers: Sequence[tirx.Buffer]) -> tuple[tirx.Stmt, list[tirx.Buffer]]:
    """The same with uint16 for bfloat16, of which TVM would make float32, while kernels read and write bits."""
    bits = {
        b: buffer(list(map(dims.of_expr, b.shape)), "uint16", b.name) for b in buffers if str(b.dtype) == "bfloat16"
    }
    if not bits:
        return body, list(buffers)

    def load(node: ir.TensorLoad) -> tirx.Expr:
        if node.source not in bits:
            return node
        return tirx.reinterpret(str(node.ty), bits[node.source][tuple(node.indices)])

    def read(call: ir.Call) -> tirx.Expr:
        if called(call) == "tirx.address_of" and called(call.args[0]) == "tirx.reinterpret":
            return tirx.address_of(call.args[0].args[0])
        is_number = called(call) == "tirx.reinterpret" and isinstance(call.ty, ir.PrimType)
        return bits_of(call.args[0], str(call.ty)) if is_number else call

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in bits:
            return node
        return tirx.BufferStore(bits[node.buffer], bits_of(node.value, "uint16"), node.indices)

    for change in ((ir.TensorLoad, load), (ir.Call, read), (tirx.BufferStore, store)):
        body = rewrite(body, change)
    return body, [bits.get(b, b) for b in buffers]


def prim_func(
    kernel: Kernel, scheduled: Scheduled, target: Target, in_place: InPlace = (), calls: bool = False
) -> tirx.PrimFunc:
    """The function of a control op.

    Args:
        kernel: a kernel of one control op.
        scheduled: schedules the kernels of its Programs.
        target: what to compile for.
        in_place: pairs of an input and of the output to write over it, as far as :func:`may_lie_in_place`; there is no
            parameter for such an output.
        calls: whether it may call functions: those of :func:`with_callees`.
    """
    host = Host(scheduled, target, calls)
    inputs = [host.parameter(atom.aval, f"x{i}") for i, atom in enumerate(kernel.inputs)]
    over = {output: inputs[source] for source, output in in_place}
    outputs = [over.get(i) or host.parameter(out.aval, f"y{i}") for i, out in enumerate(kernel.outputs)]
    body, buffers = _with_bits(host.write(kernel.equations[0], inputs, outputs), host.buffers)
    block = SBlock([], [], [], "root", body, alloc_buffers=buffers)
    parameters = [*(place.buffer for place in inputs), *map(dims.expr, kernel.sizes)]
    parameters += [place.buffer for i, place in enumerate(outputs) if i not in over]
    function = tirx.PrimFunc(parameters, SBlockRealize([], tirx.const(True), block))
    names = {name for name, _ in called_functions(body)}
    # Some may have been for steps that run at the same time, which were then found to need too much memory.
    used = {name: callee for name, callee in host.callees.items() if name in names}
    attributes = {"s_tir": True, "tirx.noalias": True, "tvmfun.rule": "control"}
    return function.with_attrs({**attributes, _CALLEES: used} if used else attributes)


def with_callees(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, dict[str, tirx.PrimFunc]]:
    """A function by itself, and those that it calls, by name, if :func:`prim_func` made it."""
    callees = function.attrs.get(_CALLEES, {})
    return function.without_attr(_CALLEES), {str(name): callee for name, callee in callees.items()}
