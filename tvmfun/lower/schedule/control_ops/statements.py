"""Statements of control ops: loops and branches around the kernels of their Programs.

A step runs its kernels and nothing else: the runtime allocates nothing and is not called recursively. State is kept in
the buffers of the results. The kernels of a short body are inlined. The kernels of a long body are functions that it
calls, as ``main`` does: equal ones are compiled once, and TVM's passes take quadratic time for a function with many
loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core import dims, expressions
from tvmfun.core.array import ShapeDtype
from tvmfun.core.inline import subprograms
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.lower import target as targets
from tvmfun.lower.fusion.column_sums import attach_column_sums
from tvmfun.lower.fusion.comparisons import round_compared
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.in_place import InPlace, Overwrite, can_be_in_place
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.fusion.options import fusion_options
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.control_ops import liveness, signals
from tvmfun.lower.schedule.control_ops.buffer_refs import BufferPool, BufferRef, is_same, redirected, with_bits
from tvmfun.lower.schedule.control_ops.late_scatters import scatter_late, scattered
from tvmfun.lower.schedule.control_ops.stopwatch import Lap, started, timed
from tvmfun.lower.tir.build import buffer, constant, nbytes, substitute
from tvmfun.lower.tir.calling_convention import Stack
from tvmfun.lower.tir.overwrite import writes_once
from tvmfun.lower.tir.walk import find, rewrite
from tvmfun.ops.shape import broadcast_to, reshape

#: ``(kernel, target, in_place) -> function``, or None if the kernel cannot write over inputs like that.
Schedule = Callable[[Kernel, Target, InPlace], Any]
#: ``(name, function)``: takes a function that control flow calls.
OnCallee = Callable[[str, tirx.PrimFunc], None]

# The most bytes of a step's intermediates if steps run in parallel: about the size of a core's caches. Steps that need
# more have kernels that keep all cores busy, and are often looped over to save memory.
_STEP_BYTES = 4 << 20

# With more kernels than this, control flow calls kernels instead of inlining them.
_FEW_KERNELS = 12
# Kernels with fewer elements than this are always inlined.
_FEW_ELEMENTS = 2

# Limits of loops whose state alternates between two buffers; their code has each step twice. The most kernels per step.
_FEW_LAUNCHES = 8
# The most bytes of the state.
_SMALL_STATE = 64 << 20
# The fewest steps.
_SHORTEST_LOOP = 4

# The annotation of a loop of one step that serves as a scope.
_SCOPE = "tvmfun.scope"


class StatementBuilder:
    """Writes the statements of a control op; the ``compute`` of its record calls the methods.

    Args:
        schedule: schedules the kernels of the Programs.
        target: what to compile for.
        on_callee: called with each function of a kernel as soon as it is certain to be called; None if kernels may not
            be separate functions.
        laps: takes the times of kernels; then all are separate functions.
    """

    def __init__(
        self, schedule: Schedule, target: Target, on_callee: OnCallee | None, laps: list[Lap] | None = None
    ) -> None:
        self._schedule = schedule
        self._on_callee = on_callee
        self._calls = on_callee is not None
        self._laps = laps
        self._fused: dict[int, tuple[Program, list[Kernel]]] = {}
        self.target = target
        self.buffers: list[tirx.Buffer] = []
        self.callees: dict[str, tirx.PrimFunc] = {}
        self._stack = Stack()
        # Functions are kept alive, so that the ``id`` in a key stays unique.
        self._named: dict[tuple, tuple[tirx.PrimFunc, str]] = {}
        self.is_serial = False

    def write(self, equation: Equation, inputs: Sequence[BufferRef], outputs: Sequence[BufferRef]) -> tirx.Stmt:
        """The statements of a control op."""
        self._calls = self._calls and (self._laps is not None or self._count(equation) > _FEW_KERNELS)
        body = equation.op.compute(self, inputs, outputs, **equation.params)
        return self._stack.around(body if self._laps is None else started(self._stack, body))

    def _count(self, equation: Equation) -> int:
        """The number of kernels in the Programs of a control op."""
        kernels = [k for program in subprograms(tuple(equation.params.values())) for k in self._kernels(program)]
        return sum(self._count(kernel.equations[0]) if kernel.is_control else 1 for kernel in kernels)

    def _kernels(self, program: Program) -> list[Kernel]:
        """The kernels of a Program; it is kept alive, so that its ``id`` stays unique."""
        if id(program) not in self._fused:
            its = fusion_options(self.target)
            kernels = fuse(program, its)
            kernels = attach_column_sums(kernels, program.outputs) if its.has_epilogues else kernels
            self._fused[id(program)] = program, scatter_late(round_compared(kernels))
        return self._fused[id(program)][1]

    def scheduled(self, kernel: Kernel) -> tirx.PrimFunc:
        """The scheduled function of a kernel."""
        return self._schedule(kernel, self.target, ())

    def scatter_in_place(self, kernel: Kernel) -> tirx.PrimFunc | None:
        """The function of a scatter that writes into its array, or None if it cannot."""
        source = kernel.inputs.index(kernel.equations[0].inputs[0])
        return self._schedule(kernel, self.target, (Overwrite(source, 0),))

    # -- values ------------------------------------------------------------------------------------------------

    def parameter(self, aval: ShapeDtype, name: str) -> BufferRef:
        """A parameter of the function."""
        return BufferRef(buffer(aval.shape, dtypes.NAMES[aval.dtype], name), aval)

    def new(self, aval: ShapeDtype) -> BufferRef:
        """A buffer that lives as long as the function runs."""
        dtype = "int8" if aval.dtype == dtypes.bool_ else dtypes.NAMES[aval.dtype]
        self.buffers.append(buffer(aval.shape, dtype, f"v{len(self.buffers)}"))
        return BufferRef(self.buffers[-1], aval)

    def size(self, length: Any) -> Any:
        """A number of steps as an expression."""
        return expressions.scalar(length, "int32")

    @property
    def is_on_device(self) -> bool:
        """Whether values are in the memory of a device: the host can read a condition, but not compute with arrays."""
        return not targets.is_cpu(self.target)

    # -- loops -------------------------------------------------------------------------------------------------

    def alternates(self, program: Program, length: Any, state: Sequence[BufferRef]) -> bool:
        """Whether a loop's state should alternate between two buffers: on GPUs, if a step is a few launches of maps.

        Then more launches are independent, and become one. A state that is updated in place has one buffer.
        """
        if targets.is_cpu(self.target) or not isinstance(length, int) or length < _SHORTEST_LOOP:
            return False
        kernels = self._kernels(program)
        is_simple = all(not kernel.is_control and not _is_scatter(kernel) for kernel in kernels)
        size = sum(ref.aval.nbytes for ref in state)
        return bool(state) and is_simple and len(kernels) <= _FEW_LAUNCHES and dims.always_le(size, _SMALL_STATE)

    def loop(
        self, length: Any, extent: Any, step: Callable[[Any], tirx.Stmt], program: Program, is_ordered: bool
    ) -> tirx.Stmt:
        """A loop around ``step(i)``, for ``i`` below ``extent``.

        Args:
            length: the number of steps.
            extent: the number of steps as an expression.
            step: writes a step.
            program: the Program that a step runs.
            is_ordered: whether a step depends on the ones before.
        """
        i = _index("i")
        if not is_ordered and self._keeps_cores_busy(length, program):
            body, buffers = self._in_one_thread(lambda: step(i))
            if sum(map(nbytes, buffers)) <= _STEP_BYTES:
                body = tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), body]) if buffers else body
                steps = tirx.For(i, 0, extent, tirx.ForKind.PARALLEL, body)
                return self._timed(steps, program.name, "control", self._kernels(program), steps=length)
        period = self._period(length, program)
        if period is None:
            return _serial(i, extent, step(i))
        if period == 1:
            return _serial(i, extent, tirx.SeqStmt([signals.check(), step(i)]))
        first = i * period
        j = _index("j")
        inner = _serial(j, tirx.min(extent - first, tirx.const(period, "int32")), step(first + j))
        return _serial(i, tirx.floordiv(extent, period) + 1, tirx.SeqStmt([signals.check(), inner]))

    def while_loop(self, condition: Any, body: tirx.Stmt, program: Program) -> tirx.Stmt:
        """A loop around a ``body`` that runs ``program``, as long as a condition holds."""
        period = self._period(None, program)
        if period is None:
            return _while(condition, body)
        if period == 1:
            return _while(condition, tirx.SeqStmt([signals.check(), body]))
        count = self.new(ShapeDtype((), dtypes.int32))
        counted = tirx.SeqStmt([body, count.store(count.load() + 1)])
        inner = _while(tirx.And(condition, count.load() < period), counted)
        return _while(condition, tirx.SeqStmt([signals.check(), count.store(tirx.const(0, "int32")), inner]))

    def _period(self, length: Any, program: Program) -> int | None:
        """The number of steps of a loop around a Program between two checks for signals; None for no checks.

        Checks are between inner loops, which stay free of calls, so that LLVM keeps their state in registers.
        """
        if self.is_serial or not targets.is_cpu(self.target):
            return None
        return signals.period(length, _work(program))

    def _keeps_cores_busy(self, length: Any, program: Program) -> bool:
        """Whether there is enough work for all cores, evenly distributed."""
        if self.is_serial or not targets.is_cpu(self.target):
            return False
        steps, machine = dims.typical(length), Machine.of(self.target)
        cores = machine.cores
        even = steps >= 4 * cores or (steps >= cores and steps % cores == 0)
        return cores > 1 and even and steps * _work(program) >= machine.settings.serial_work

    def _in_one_thread(self, make: Callable[[], tirx.Stmt]) -> tuple[tirx.Stmt, list[tirx.Buffer]]:
        """The statement that ``make`` writes for one core, and its buffers."""
        before = self.target, self.buffers, self._stack
        self.target, self.buffers, self._stack = Target({**self.target.export(), "num-cores": 1}), [], Stack()
        self.is_serial = True
        try:
            return with_bits(self._stack.around(_without_threads(make())), self.buffers)
        finally:
            (self.target, self.buffers, self._stack), self.is_serial = before, False

    # -- statements --------------------------------------------------------------------------------------------

    def copy(self, source: BufferRef, target: BufferRef) -> tirx.Stmt:
        """Copies a value, unless both refer to the same memory."""
        if is_same(source, target):
            return tirx.Evaluate(tirx.const(0, "int32"))
        x, y = Variable(source.aval), Variable(target.aval)
        equation = Equation(reshape, (x,), {"shape": target.aval.shape}, (y,))
        return self._run_kernel(Kernel((equation,), (x,), (y,)), [source, target])

    def fill(self, target: BufferRef, value: float) -> tirx.Stmt:
        """Writes a number to every element."""
        y = Variable(target.aval)
        number = Literal(target.aval.dtype.type(value))
        equation = Equation(broadcast_to, (number,), {"shape": target.aval.shape}, (y,))
        return self._run_kernel(Kernel((equation,), (), (y,)), [target])

    def run(self, program: Program, inputs: Sequence[BufferRef], outputs: Sequence[BufferRef]) -> list[tirx.Stmt]:
        """The kernels of a closed Program; ``outputs`` may share memory with ``inputs``, which is overwritten last."""
        kernels = self._kernels(program)
        # Control flow selects rows of its arguments, so their first axis must be that of the buffer.
        stacked = {atom for kernel in kernels if kernel.is_control for atom in (*kernel.inputs, *kernel.outputs)}
        views = self._views(kernels, stacked)
        given = dict(zip(program.inputs, inputs, strict=True))
        early: list[tuple[Variable, BufferRef]] = []
        results: list[tuple[Atom, BufferRef]] = []
        for atom, target in zip(program.outputs, outputs, strict=True):
            # Old states are copied to their stacks first, so that new states can be written over them.
            if isinstance(atom, Variable) and atom in given and not _is_part(target, inputs):
                early.append((atom, target))
            else:
                results.append((atom, target))
        final, in_place = self._final_memory(given, results, kernels, views)
        refs: dict[Variable, BufferRef] = {**given, **final}
        states = liveness.states(program, kernels)
        memory = BufferPool(self.new, liveness.last_use(program, kernels, states, views))
        statements = [self.copy(given[atom], target) for atom, target in early]
        for i, kernel in enumerate(kernels):
            (first, *_) = kernel.outputs
            if first in views and first not in refs:
                ref = refs[views[first]]
                refs[first] = BufferRef(ref.buffer, first.aval, ref.lead)
                continue
            for out in kernel.outputs:
                if out in refs:
                    continue
                state = states.get(out)
                if state in refs and any(ref.buffer.same_as(refs[state].buffer) for ref in inputs):
                    state = None  # the value of the input may still be needed
                refs[out] = refs[state] if state in refs else memory.new(out, self._calls and out not in stacked)
                if state is not None:
                    refs[state] = refs[out]
            statements += self._kernel(kernel, refs, in_place.get(i, ()))
            memory.finish(i)
        return [*statements, *self._results(results, refs)]

    def _views(self, kernels: Sequence[Kernel], stacked: set[Atom]) -> dict[Variable, Variable]:
        """Maps views to the values that they show; they need no memory."""
        views: dict[Variable, Variable] = {}
        for kernel in kernels:
            (source, *_), (out, *_) = kernel.inputs or (None,), kernel.outputs
            if self._calls and kernel.is_view and isinstance(source, Variable) and out not in stacked:
                views[out] = views.get(source, source)
        return views

    def _final_memory(
        self,
        given: Mapping[Variable, BufferRef],
        outputs: Sequence[tuple[Atom, BufferRef]],
        kernels: Sequence[Kernel],
        views: Mapping[Variable, Variable],
    ) -> tuple[dict[Variable, BufferRef], dict[int, InPlace]]:
        """The results that kernels may write to their final memory, because the old value is not read afterwards.

        Args:
            given: the memory of the inputs.
            outputs: the results, and their final memory.
            kernels: the kernels.
            views: views, and the values that they show.

        Returns:
            The memory of these results, and for each kernel that needs a schedule for it the results to write over its
            inputs.
        """
        final: dict[Variable, BufferRef] = {}
        # Results of kernels that read the old value, and the variables that hold it.
        updates: dict[int, dict[Variable, tuple[BufferRef, set[Variable]]]] = {}
        read_last = {atom for atom, _ in outputs}
        for atom, target in outputs:
            if not isinstance(atom, Variable) or atom in given or atom in final:
                continue
            old = {v for v, ref in given.items() if ref.buffer.same_as(target.buffer)}
            if not old:
                final[atom] = target
                continue
            old.update(view for view, shown in views.items() if shown in old)
            if atom in old or not old.isdisjoint(read_last):
                continue
            writer = next(i for i, kernel in enumerate(kernels) if atom in kernel.outputs)
            last = max((i for i, kernel in enumerate(kernels) if not old.isdisjoint(kernel.inputs)), default=-1)
            if last < writer:
                final[atom] = target
                kept = {*read_last, *views, *views.values()}
                final.update(dict.fromkeys(self._between(kernels, writer, old, last, kept), target))
            elif last == writer:
                updates.setdefault(writer, {}).setdefault(atom, (target, old))
        in_place: dict[int, InPlace] = {}
        for i, updated in updates.items():
            results = {atom: update for atom, update in updated.items() if atom not in final}
            pairs = {atom: _pair(kernels[i], old, atom) for atom, (_, old) in results.items()}
            in_place[i] = self._schedulable(kernels[i], [pair for pair in pairs.values() if pair])
            for atom, (target, old) in results.items():
                if pairs[atom] in in_place[i] or (not in_place[i] and self._reads_before(kernels[i], old, atom)):
                    final[atom] = target
        return final, in_place

    def _between(
        self, kernels: Sequence[Kernel], writer: int, old: set[Variable], last: int, kept: set[Atom]
    ) -> list[Variable]:
        """The arrays between an old value and the one that scatters make of it: all are written over the old one.

        Args:
            kernels: the kernels.
            writer: the position of the last scatter.
            old: the variables that hold the old value.
            last: the position of the last kernel that reads it.
            kept: results, views and what they show, which may be read later.
        """
        found: list[Variable] = []
        while (array := scattered(kernels[writer])) is not None:
            is_first = array in old
            if not self._reads_before(kernels[writer], old if is_first else {array}, kernels[writer].outputs[0]):
                return []
            if is_first:
                return found if last == writer else []
            last_reader = max(i for i, kernel in enumerate(kernels) if array in kernel.inputs)
            maker = next((i for i, kernel in enumerate(kernels) if array in kernel.outputs), None)
            if array in kept or last_reader != writer or maker is None:
                return []
            found.append(array)
            writer = maker
        return []

    def _schedulable(self, kernel: Kernel, pairs: Sequence[Overwrite]) -> InPlace:
        """The pairs for which the kernel has a schedule: all of them, or as many as can be added one by one."""
        if not pairs or self._schedule(kernel, self.target, tuple(pairs)) is not None:
            return tuple(pairs)
        found: InPlace = ()
        for pair in pairs:
            if self._schedule(kernel, self.target, (*found, pair)) is not None:
                found = (*found, pair)
        return found

    def _reads_before(self, kernel: Kernel, read: set[Variable], written: Variable) -> bool:
        """Whether the kernel reads each element before it writes the one at the same index, and writes it once."""
        equation = kernel.equations[0]
        if kernel.is_control:
            sources = {i for i, atom in enumerate(kernel.inputs) if atom in read}
            return can_be_in_place(equation, sources, kernel.outputs.index(written))
        if _is_scatter(kernel):
            array, *others = equation.inputs
            return array in read and read.isdisjoint(others) and self.scatter_in_place(kernel) is not None
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
                # The walk visits the loads of a store first: all of them must be at this index.
                if not loads or not all(tvm_ffi.structural_equal(at, node.indices) for at in loads):
                    return False
                loads.clear()
        return not loads

    def _results(self, results: Sequence[tuple[Atom, BufferRef]], refs: dict[Variable, BufferRef]) -> list[tirx.Stmt]:
        """Copies results to their final memory, in an order in which no value is overwritten before it is copied."""
        statements, waiting = [], []
        for atom, target in results:
            if isinstance(atom, Literal) or not is_same(refs[atom], target):
                waiting.append((atom if isinstance(atom, Literal) else refs[atom], target))
        while waiting:
            needed = [source for source, _ in waiting if isinstance(source, BufferRef)]
            free = (i for i, (_, target) in enumerate(waiting) if not any(is_same(s, target) for s in needed))
            position = next(free, None)
            if position is None:  # a cycle, such as two swapped carries
                source, target = waiting[0]
                kept = self.new(source.aval)
                statements.append(self.copy(source, kept))  # type: ignore[arg-type]
                waiting[0] = (kept, target)
                continue
            source, target = waiting.pop(position)
            is_number = isinstance(source, Literal)
            statements.append(target.store(constant(source.value)) if is_number else self.copy(source, target))
        return statements

    def _kernel(self, kernel: Kernel, refs: dict[Variable, BufferRef], in_place: InPlace) -> list[tirx.Stmt]:
        if all(out.aval.size == 0 for out in kernel.outputs):
            return []
        statements, arguments = [], []
        for atom in kernel.inputs:
            if isinstance(atom, Literal):
                ref = self.new(atom.aval)
                statements.append(ref.store(constant(atom.value)))
            else:
                ref = refs[atom]
            arguments.append(ref)
        results = [refs[out] for out in kernel.outputs]
        equation = kernel.equations[0]
        if kernel.is_control:
            return [*statements, equation.op.compute(self, arguments, results, **equation.params)]
        return [*statements, self._run_kernel(kernel, [*arguments, *results], in_place)]

    def _run_kernel(self, kernel: Kernel, refs: Sequence[BufferRef], in_place: InPlace = ()) -> tirx.Stmt:
        """The statement that runs a kernel on ``refs``: its inlined body, or a call of its function."""
        if kernel.outputs[0].aval.size == 0:
            return tirx.Evaluate(tirx.const(0, "int32"))
        function = self._schedule(kernel, self.target, in_place) if in_place else None
        if function is None and _is_scatter(kernel):
            source = kernel.inputs.index(kernel.equations[0].inputs[0])
            if is_same(refs[source], refs[-1]):
                function, in_place = self.scatter_in_place(kernel), (Overwrite(source, 0),)
        if function is None:
            function, in_place = self.scheduled(kernel), ()
        written = {len(kernel.inputs) + pair.output for pair in in_place}
        refs = [ref for i, ref in enumerate(refs) if i not in written]
        call = self._call(kernel, function, refs) if self._calls else None
        body = call or _inline(kernel, function, refs)
        return self._timed(body, kernel.name, str(function.attrs["tvmfun.rule"]), [kernel], in_place=in_place)

    def _timed(self, body: tirx.Stmt, name: str, rule: str, kernels: Sequence[Kernel], **options: Any) -> tirx.Stmt:
        """A statement that runs kernels, with a reading of the clock where their times are taken."""
        if self._laps is None or self.is_serial:
            return body
        self._laps.append(Lap(name, rule, tuple(kernels), **options))
        return timed(self._stack, body, self._laps[-1])

    def _call(self, kernel: Kernel, function: tirx.PrimFunc, refs: Sequence[BufferRef]) -> tirx.Stmt | None:
        """The call of a kernel's function, or None if it must be inlined.

        Kernels on few elements are inlined, and kernels whose arguments may overlap without being the same.
        """
        if all(ref.aval.size < _FEW_ELEMENTS for ref in refs):
            return None
        distinct: list[BufferRef] = []
        numbers = []
        for ref in refs:
            number = next((i for i, other in enumerate(distinct) if is_same(ref, other)), len(distinct))
            if number == len(distinct):
                if any(ref.buffer.same_as(other.buffer) for other in distinct):
                    return None
                distinct.append(ref)
            numbers.append(number)
        widened = tuple(ref.is_widened for ref in distinct)
        key = id(function), tuple(numbers), widened, self.is_serial
        if key not in self._named:
            self._named[key] = function, self._callee(kernel.name, function, refs, numbers)
        addresses = [tirx.address_of(ref.first()) for ref in distinct]
        return self._stack.call(self._named[key][1], addresses)

    def _callee(self, name: str, function: tirx.PrimFunc, refs: Sequence[BufferRef], numbers: Sequence[int]) -> str:
        """Adds a variant of a kernel's function in which equal arguments share a parameter; returns its name."""
        parameters: list[tirx.Buffer] = []
        for ref, i in zip(refs, numbers, strict=True):
            if i == len(parameters):
                parameters.append(_unaligned(ref.aval.shape, str(ref.buffer.dtype), f"x{i}"))
        own = [BufferRef(parameters[i], ref.aval) for ref, i in zip(refs, numbers, strict=True)]
        body = redirected(function.body, zip(function.params, own, strict=True))
        if self.is_serial:
            body = _without_threads(body)
        callee = tirx.PrimFunc(parameters, body, function.ret_type, function.attrs)
        # A name that is the same in every process, and for equal kernels.
        name = f"{name}_{tvm_ffi.structural_hash(callee) % 2**64:016x}"
        self.callees[name] = callee.with_attr("global_symbol", name)
        # Parallel steps are written again if they turn out to need too much memory.
        if self._on_callee is not None and not self.is_serial:
            self._on_callee(name, self.callees[name])
        return name


def _inline(kernel: Kernel, function: tirx.PrimFunc, refs: Sequence[BufferRef]) -> tirx.Stmt:
    """The body of a kernel's function, with ``refs`` instead of its parameters."""
    function = s_tir.renew_defs(function)
    buffers = [p for p in function.params if tirx.is_buffer_var(p)]
    sizes = [p for p in function.params if not tirx.is_buffer_var(p)]
    body = substitute(function.body, dict(zip(sizes, map(expressions.of_size, kernel.sizes), strict=True)))
    return redirected(body, zip(buffers, refs, strict=True))


def _unaligned(shape: Sequence[int], dtype: str, name: str) -> tirx.Buffer:
    """A parameter that is only aligned to its elements, as rows are."""
    alignment = -(-tvm.DataType(dtype).bits // 8)
    return tirx.decl_buffer(shape, dtype, name=name, data_alignment=alignment)


def _index(name: str) -> ir.Var:
    return ir.Var(name, ir.PrimType("int32"))


def _serial(index: ir.Var, extent: Any, body: tirx.Stmt) -> tirx.For:
    return tirx.For(index, 0, extent, tirx.ForKind.SERIAL, body)


def _while(condition: Any, body: tirx.Stmt) -> tirx.Stmt:
    """A loop that runs as long as a condition holds.

    TVM frees workspaces at the end of a ``For`` only, so the body is inside one of a single step. Its annotation keeps
    passes from removing it.
    """
    once = tirx.For(_index("once"), 0, 1, tirx.ForKind.SERIAL, body, None, {_SCOPE: True})
    return tirx.While(condition, once)


def _pair(kernel: Kernel, read: set[Variable], written: Variable) -> Overwrite | None:
    """A result, and the only input among ``read`` if the kernel reads its elements where it computes the results."""
    sources = [i for i, atom in enumerate(kernel.inputs) if atom in read]
    if len(sources) != 1 or kernel.is_control or _is_scatter(kernel):
        return None
    is_in_step = kernel.reads_in_step(kernel.inputs[sources[0]])
    return Overwrite(sources[0], kernel.outputs.index(written)) if is_in_step else None


def _is_part(ref: BufferRef, others: Sequence[BufferRef]) -> bool:
    """Whether a value is in the same buffer as one of the others."""
    return any(ref.buffer.same_as(other.buffer) for other in others)


def _is_scatter(kernel: Kernel) -> bool:
    """Whether a kernel consists of a scatter into one of its inputs."""
    return scattered(kernel) is not None


def _work(program: Program) -> int:
    """The approximate number of elements that a Program computes; elements of matrix products count once per term."""
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
    """The statement with serial instead of parallel loops, because it runs inside of a parallel one."""

    def serial(loop: tirx.For) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return rewrite(body, (tirx.For, serial))
