"""Kernels of stages: a launch for each group of stages, by the rule of its family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.target import Target
from tvm.tirx import AllocBuffer, Buffer, Stmt

from tvmfun.lower.schedule.cpu.contraction import match
from tvmfun.lower.schedule.gpu import tiles
from tvmfun.lower.schedule.gpu.blocks import emit_block
from tvmfun.lower.schedule.gpu.column_sums import SummedMaps
from tvmfun.lower.schedule.gpu.columns import emit_columns, lanes
from tvmfun.lower.schedule.gpu.elementwise import emit_maps
from tvmfun.lower.schedule.gpu.reducers import ArgStage, with_arg_stages
from tvmfun.lower.schedule.gpu.rows import emit_rows
from tvmfun.lower.schedule.gpu.scatter import emit_updates, match_updates
from tvmfun.lower.schedule.gpu.transpose import crosswise_loads, emit_transpose
from tvmfun.lower.schedule.groups import Group, is_pointwise, may_overwrite, private_outputs, share_loops
from tvmfun.lower.schedule.reduction_passes import along_reduced_axis, cut_reduction, merge_reduced_axes
from tvmfun.lower.schedule.stage_passes import attach_epilogues, inline_maps, is_copy, small_first
from tvmfun.lower.schedule.stages import (
    AnyStage,
    Block,
    Opaque,
    Stage,
    contains,
    is_map,
    parse,
    reads_of,
    without_empty,
    written_by,
)
from tvmfun.lower.tir import build

#: Fewer rows than this run in one launch only if they are short, so that one block is done soon.
_MANY_ROWS = 64
_SHORT_ROW = 1 << 13
#: The blocks that a reduction is spread over, and the fewest terms that are worth a block.
_BLOCKS = 512
_LEAST_TERMS = 1 << 11


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Returns the kernel with a launch per group of stages; None if a stage is of another family."""
    return schedule_in_place(function, target, ())


def schedule_in_place(
    function: tirx.PrimFunc, target: Target, in_place: Sequence[tuple[Buffer, Buffer]]
) -> tirx.PrimFunc | None:
    """Like :func:`schedule`, with some outputs written over inputs instead of being parameters.

    Args:
        function: the kernel.
        target: the target.
        in_place: inputs, and the outputs to write over them. Each element of such an input is read only where the
            same element of its output is computed.
    """
    stages, temps = parse(function)
    stages = with_arg_stages(stages, temps)
    if any(isinstance(stage, Opaque) for stage in stages):
        return None
    stages = without_empty(stages)
    stages = [stage for stage in stages if not any(is_copy(stage, *pair) for pair in in_place)]
    summed = SummedMaps.match(stages, temps)
    if summed is not None:
        return _with_body(function, summed.emit(), (), in_place, "columns")
    stages = attach_epilogues(small_first(inline_maps(stages, temps, has_branches=lambda stage: True)), temps)
    if any(match(stage) for stage in stages):
        return None
    stages, temps = _prepare(stages, temps)
    groups = share_loops(stages, lambda stage: None, along_reduced_axis, _fills_device)
    most_shared = tiles.most_shared(str(target.attrs.get("arch", "")))
    launches: list[Stmt] = []
    for i, group in enumerate(groups):
        written = [pair for pair in in_place if contains(written_by(group.stages), pair[1])]
        later = [stage for other in groups[i + 1 :] for stage in other.stages]
        if any(reads_of(stage, source) for source, _ in written for stage in later):
            return None
        in_rows = [pair for pair in written if not may_overwrite([group], *pair)]
        emitted = _emit(group, stages, temps, most_shared, in_rows)
        if emitted is None:
            return None
        launches += emitted
    return _with_body(function, launches, temps, in_place, _rule(groups))


def _with_body(
    function: tirx.PrimFunc,
    launches: Sequence[Stmt],
    temps: Sequence[Buffer],
    in_place: Sequence[tuple[Buffer, Buffer]],
    rule: str,
) -> tirx.PrimFunc:
    """The kernel with launches as its body."""
    body = build.seq(*launches) if launches else tirx.Evaluate(0)
    params = list(function.params)
    for source, output in in_place:
        body = build.replace_buffers(body, {output: source})
        params = [param for param in params if not param.same_as(output)]
    used = set(build.variables(body))
    body = build.seq(*(AllocBuffer(buffer) for buffer in temps if buffer in used), body)
    root = SBlockRealize([], True, SBlock([], [], [], "root", body))
    function = tirx.PrimFunc(params, root, function.ret_type, function.attrs)
    return function.with_attr("tvmfun.rule", rule)


def _prepare(stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> tuple[list[AnyStage], list[Buffer]]:
    """Returns the stages with long reductions to few results cut in pieces, and the intermediates, old and new."""
    result: list[AnyStage] = []
    temps = list(temps)
    for stage in stages:
        pieces: Sequence[AnyStage] = (stage,)
        if isinstance(stage, Stage) and stage.combine is not None and not isinstance(stage, ArgStage):
            stage = merge_reduced_axes(stage)
            longest = sorted(stage.reduce, key=lambda axis: -build.points([axis]))
            if not along_reduced_axis(stage):
                stage = replace(stage, reduce=tuple(longest))
            pieces = (stage,)
            rows = along_reduced_axis(stage)
            tasks = build.points(stage.space) if rows else -(-build.points(stage.space) // (32 * lanes(stage)))
            chunks = min(_BLOCKS // max(tasks, 1), _terms_per_task(stage) // _LEAST_TERMS)
            if tasks < _BLOCKS // 4 and chunks > 1:
                cut = cut_reduction(stage, chunks, f"{stage.name}_part")
                pieces = cut or pieces
                temps += [piece.output for piece in pieces[:-1]]
        result += pieces
    return result, temps


def _terms_per_task(stage: Stage) -> int:
    return build.points(stage.reduce) * (1 if along_reduced_axis(stage) else 32)


def _fills_device(members: Sequence[AnyStage], prefix: int) -> bool:
    """Whether a launch with a team of threads for each point of the shared axes can run these stages."""
    if any(stage.combine is not None and len(stage.space) != prefix for stage in members):
        return False
    longest = max(build.points(stage.domain[prefix:]) for stage in members)
    return build.points(members[0].space[:prefix]) >= _MANY_ROWS or longest <= _SHORT_ROW


def _emit(
    group: Group,
    stages: Sequence[AnyStage],
    temps: Sequence[Buffer],
    most_shared: int,
    in_place: Sequence[tuple[Buffer, Buffer]],
) -> list[Stmt] | None:
    """The launches of a group: one, unless threads would read elements that others of the same launch write.

    Args:
        group: the stages that run in it.
        stages: all stages of the kernel.
        temps: its intermediates.
        most_shared: the most shared memory of a block, in bytes.
        in_place: inputs, and the outputs to write over them, without pairs that are safe element by element.

    Returns:
        The launches; None if an output would be written too early.
    """
    private = private_outputs(group, stages, temps)
    if in_place:
        launch = emit_rows(group, private, most_shared, in_place)
        return None if launch is None else [launch]
    if len(group.stages) == 1:
        return [_emit_stage(group.stages[0], most_shared)]
    if is_pointwise(group):
        return [emit_maps(group.stages, private)]
    launch = emit_rows(group, private, most_shared)
    return [launch] if launch is not None else [_emit_stage(stage, most_shared) for stage in group.stages]


def _emit_stage(stage: AnyStage, most_shared: int) -> Stmt:
    if isinstance(stage, Block):
        updates = match_updates(stage)
        return emit_block(stage) if updates is None else emit_updates(updates)
    if is_map(stage):
        across = crosswise_loads(stage)
        return emit_maps([stage]) if across is None else emit_transpose(stage, across)
    if along_reduced_axis(stage):
        return emit_rows(Group((stage,), len(stage.space)), (), most_shared)
    return emit_columns(stage)


def _rule(groups: Sequence[Group]) -> str:
    stages = [stage for group in groups for stage in group.stages]
    if any(isinstance(stage, Block) for stage in stages):
        return "scatter" if any(isinstance(s, Block) and match_updates(s) for s in stages) else "block"
    reductions = [stage for stage in stages if stage.combine is not None]
    if not reductions:
        return "elementwise"
    return "rows" if any(along_reduced_axis(stage) for stage in reductions) else "columns"
