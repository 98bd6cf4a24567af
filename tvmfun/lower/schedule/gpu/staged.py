"""Kernels of maps and reductions: their stages in groups, a launch for each, by the rule of its family."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.target import Target
from tvm.tirx import AllocBuffer, Buffer, Stmt

from tvmfun.lower.schedule.cpu.contraction import match
from tvmfun.lower.schedule.gpu.elementwise import emit_maps
from tvmfun.lower.schedule.groups import Group, is_pointwise, may_overwrite, private_outputs, share_loops
from tvmfun.lower.schedule.stage_passes import attach_epilogues, inline_maps, is_copy, small_first
from tvmfun.lower.schedule.stages import Stage, is_map, parse, without_empty
from tvmfun.lower.tir import build


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Returns the kernel with a launch per group of stages; None if a stage is of another family."""
    return schedule_in_place(function, ())


def schedule_in_place(function: tirx.PrimFunc, in_place: Sequence[tuple[Buffer, Buffer]]) -> tirx.PrimFunc | None:
    """The same with some outputs written over inputs instead of being parameters.

    Args:
        function: the kernel.
        in_place: inputs, and the outputs to write over them. Each element of such an input is read only where the
            same element of its output is computed.
    """
    stages, temps = parse(function)
    if not all(isinstance(stage, Stage) for stage in stages):
        return None
    stages = without_empty(stages)
    stages = [stage for stage in stages if not any(is_copy(stage, *pair) for pair in in_place)]
    stages = attach_epilogues(small_first(inline_maps(stages, temps)), temps)
    if any(match(stage) for stage in stages):
        return None
    groups = share_loops(stages, match, lambda stage: True, 1)
    if not all(may_overwrite(groups, *pair) for pair in in_place):
        return None
    launches = [_emit(group, private_outputs(group, stages, temps)) for group in groups]
    if any(nest is None for nest in launches):
        return None
    body = build.seq(*launches) if launches else tirx.Evaluate(0)
    params = list(function.params)
    for source, output in in_place:
        body = build.replace_accesses(body, output, source, list)
        params = [param for param in params if not param.same_as(output)]
    used = set(build.variables(body))
    body = build.seq(*(AllocBuffer(buffer) for buffer in temps if buffer in used), body)
    root = SBlockRealize([], True, SBlock([], [], [], "root", body))
    function = tirx.PrimFunc(params, root, function.ret_type, function.attrs)
    return function.with_attr("tvmfun.rule", _rule(groups))


def _emit(group: Group, private: Sequence[Buffer]) -> Stmt | None:
    if is_pointwise(group) or (len(group.stages) == 1 and is_map(group.stages[0])):
        return emit_maps(group.stages, private)
    return None


def _rule(groups: Sequence[Group]) -> str:
    return "elementwise"
