"""Effects of steps: the memory that they read and write, from the code of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tvm import ir, tirx

from tvmfun.lower.schedule.gpu.primitives import MOVES
from tvmfun.lower.tir.walk import called, find
from tvmfun.runtime.cuda_module import Branch, Copy, Launch, Repeat, Step, TensorMap, While, address_in


class Effects(NamedTuple):
    """The slots of the memory that a step reads and writes; a slot that is written may be read too."""

    reads: frozenset[int]
    writes: frozenset[int]


def written_parameters(kernel: tirx.PrimFunc) -> frozenset[int]:
    """Returns the positions of the parameters that a kernel may write.

    A pointer that is passed to a device function counts as written, unless the function is known to read from it.
    """
    sources: dict[ir.Var, ir.Var] = {}
    for declaration in find(kernel.body, tirx.DeclBuffer):
        data = declaration.data
        while called(data) == "tirx.buffer_data":
            data = data.args[0]
        sources[declaration.buffer] = data
    written = {store.buffer for store in find(kernel.body, tirx.BufferStore)}
    calls = find(kernel.body, ir.Call)
    only_read, passed = [], []
    for call in calls:
        is_device_function = called(call) == "tirx.cuda.func_call"
        moves = is_device_function and call.args[0].value.split("<")[0] in MOVES
        for i, argument in enumerate(call.args if is_device_function else ()):
            if called(argument) == "tirx.address_of":
                (only_read if moves and i == 2 else passed).append(argument)
    read = set(only_read).difference(passed)
    for call in calls:
        if called(call) == "tirx.address_of":
            written.update([] if call in read else [call.args[0].source])
        elif called(call) != "tirx.buffer_data":
            written.update(argument.args[0] for argument in call.args if called(argument) == "tirx.buffer_data")

    def origin(buffer: ir.Var) -> ir.Var:
        while buffer in sources:
            buffer = sources[buffer]
        return buffer

    origins = {origin(buffer) for buffer in written}
    return frozenset(i for i, parameter in enumerate(kernel.params) if parameter in origins)


def effects(step: Step, written: Mapping[str, frozenset[int]], writable: frozenset[int]) -> Effects:
    """Returns the effects of a step.

    Args:
        step: the step.
        written: for each kernel the positions of the parameters that it may write.
        writable: the slots that the function of the step may write.
    """
    if isinstance(step, Launch):
        addresses = {i: address for i, argument in enumerate(step.arguments) if (address := address_in(argument))}
        slots = {i: address.slot for i, address in addresses.items()}
        arrays = (i for i in written[step.kernel] if i in slots and not isinstance(step.arguments[i], TensorMap))
        return Effects(frozenset(slots.values()), writable.intersection(slots[i] for i in arrays))
    if isinstance(step, Copy):
        return Effects(frozenset([step.source.slot]), frozenset([step.target.slot]))
    bodies = step.cases if isinstance(step, Branch) else [step.body]
    inner = union(effects(one, written, writable) for body in bodies for one in body)
    if isinstance(step, Repeat):
        return inner
    number = step.condition if isinstance(step, While) else step.index
    return Effects(inner.reads | {number.slot}, inner.writes)


def union(parts: Iterable[Effects]) -> Effects:
    """The effects of several steps."""
    parts = list(parts)
    return Effects(frozenset().union(*(p.reads for p in parts)), frozenset().union(*(p.writes for p in parts)))
