"""The PrimFunc of a control op: a loop or branches around the kernels of its Programs."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.target import Target

from tvmfun.core import expressions
from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.schedule.control_ops.buffer_refs import with_bits
from tvmfun.lower.schedule.control_ops.statements import OnCallee, Schedule, StatementBuilder
from tvmfun.lower.schedule.control_ops.stopwatch import Stopwatch
from tvmfun.lower.tir.calling_convention import called_functions

# The attribute of a function that holds its callees, by name.
_CALLEES = "tvmfun.callees"


def prim_func(
    kernel: Kernel,
    schedule: Schedule,
    target: Target,
    in_place: InPlace = (),
    on_callee: OnCallee | None = None,
    stopwatch: Stopwatch | None = None,
) -> tirx.PrimFunc:
    """The function of a control op.

    Args:
        kernel: a kernel of one control op.
        schedule: schedules the kernels of its Programs.
        target: what to compile for.
        in_place: the results to write over inputs, each allowed by :func:`can_be_in_place`; they have no parameters.
        on_callee: called with functions that it calls as soon as they are known; :func:`with_callees` returns all.
            None if it may not call other functions.
        stopwatch: takes the times of its kernels, if it may call functions.
    """
    laps = stopwatch.laps(kernel, in_place) if stopwatch and on_callee else None
    builder = StatementBuilder(schedule, target, on_callee, laps)
    inputs = [builder.parameter(atom.aval, f"x{i}") for i, atom in enumerate(kernel.inputs)]
    over = {pair.output: inputs[pair.input] for pair in in_place}
    outputs = [over.get(i) or builder.parameter(out.aval, f"y{i}") for i, out in enumerate(kernel.outputs)]
    body, buffers = with_bits(builder.write(kernel.equations[0], inputs, outputs), builder.buffers)
    block = SBlock([], [], [], "root", body, alloc_buffers=buffers)
    parameters = [*(ref.buffer for ref in inputs), *map(expressions.of_size, kernel.sizes)]
    parameters += [ref.buffer for i, ref in enumerate(outputs) if i not in over]
    function = tirx.PrimFunc(parameters, SBlockRealize([], tirx.const(True), block))
    names = {name for name, _ in called_functions(body)}
    # Callees of parallel steps are unused if these turned out to need too much memory.
    used = {name: callee for name, callee in builder.callees.items() if name in names}
    attributes = {"s_tir": True, "tirx.noalias": True, "tvmfun.rule": "control"}
    return function.with_attrs({**attributes, _CALLEES: used} if used else attributes)


def with_callees(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, dict[str, tirx.PrimFunc]]:
    """A function without its attribute of callees, and the functions that it calls, by name."""
    callees = function.attrs.get(_CALLEES, {})
    return function.without_attr(_CALLEES), {str(name): callee for name, callee in callees.items()}
