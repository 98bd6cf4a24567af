"""CPU schedules: parallel and vectorized loops for a fused PrimFunc.

The blocks of the function are read as *stages* (`stages`), simplified (`stage_passes`, `reduction_passes`), and
grouped if they can share loops (`groups`). The rule that fits the structure of each stage builds its loops:
`contraction`, `winograd`, `reduction`, `elementwise`, `block`. Blocks that no rule understands keep their loops.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

import tvm
from tvm import tirx
from tvm.tirx import AllocBuffer, Buffer, Stmt

from tvmfun.core import dims
from tvmfun.errors import PerformanceWarning
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.block import emit_block, is_straight
from tvmfun.lower.schedule.cpu.contraction import match, tile_count
from tvmfun.lower.schedule.cpu.contraction_nest import emit_contraction
from tvmfun.lower.schedule.cpu.elementwise import emit_maps
from tvmfun.lower.schedule.cpu.fallback import parallelize
from tvmfun.lower.schedule.cpu.few_columns import emit_few_columns, few_columns, is_packed, with_packed_columns
from tvmfun.lower.schedule.cpu.interleave import interleaving
from tvmfun.lower.schedule.cpu.narrow_factors import is_computed_by_packing, is_narrow
from tvmfun.lower.schedule.cpu.next_rows import Fetch, fetch_descending, fetches
from tvmfun.lower.schedule.cpu.packed_dots import with_words
from tvmfun.lower.schedule.cpu.reduction import WIDE, emit_reduction, row_chunks
from tvmfun.lower.schedule.cpu.scan import schedule_scan
from tvmfun.lower.schedule.cpu.winograd import Winograd, apply_winograd, emit_winograd
from tvmfun.lower.schedule.groups import Group, is_pointwise, may_overwrite, private_outputs, share_loops, shrink
from tvmfun.lower.schedule.reduction_passes import (
    along_reduced_axis,
    cut_reduction,
    hoist_operands,
    merge_reduced_axes,
    split_reduction,
    unrolled,
)
from tvmfun.lower.schedule.stage_passes import (
    attach_epilogues,
    compute_parts,
    inline_maps,
    is_copy,
    small_first,
    split_columns,
    store_factors_as_bits,
    store_truth_as_numbers,
)
from tvmfun.lower.schedule.stages import AnyStage, Block, Opaque, Stage, is_map, is_window, parse, without_empty
from tvmfun.lower.tir import build, intrinsics
from tvmfun.lower.tir.build import Axis, Env, Size, volume
from tvmfun.lower.tir.masked_loads import mask_loads
from tvmfun.lower.tir.overwrite import writes_once

__all__ = ["schedule", "schedule_in_place"]

RULE = "tvmfun.rule"
#: The names of the rules for kernels other than control flow.
RULES = ("fallback", "winograd", "contraction", "window", "reduction", "scalar", "elementwise", "scan")

# The unit of cost is about one addition. Multiply-adds per unit of cost in a register tile.
CONTRACTION_SPEED = 16
# Cost of a function call.
CALL_COST = 8
# Cost of one point of a block with branches or loops.
LOOP_COST = 256
# The fewest rows for which a function of one number per row gets its own loops.
MANY_ROWS = 256
# Products of groups whose columns fill half a vector need at least this many rows, so that sums do not wait for one
# another.
_ROWS_OF_HALF = 8
# And at least this many terms.
_TERMS_OF_HALF = 32
# The assumed number of iterations of a loop whose bounds are computed.
VARYING_EXTENT = 16


def schedule(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Returns an equivalent function with parallel and vectorized loops.

    Args:
        func: a function of static or dynamic sizes whose body is a root block with one nest per stage.
        target: an ``llvm`` target; its features give the vector width and ``num-cores`` the cores.

    Returns:
        The function; its attribute ``tvmfun.rule`` names the rule that was used.

    Warns:
        PerformanceWarning: if scheduling failed, which is a defect of this package.
    """
    machine = Machine.of(target)
    try:
        scan = schedule_scan(func, machine)
        scheduled = _schedule(func, machine, ()) if scan is None else scan.with_attr(RULE, "scan")
    except Exception as error:
        # An unscheduled function is slow but correct.
        text = f"[schedule] a kernel is compiled without a schedule, and slow: {type(error).__name__}: {error}"
        warnings.warn(text, PerformanceWarning, stacklevel=2)
        scheduled = None
    return _expanded(scheduled or parallelize(func).with_attr(RULE, "fallback"), machine)


def schedule_in_place(
    func: tirx.PrimFunc, target: tvm.target.Target, in_place: Sequence[tuple[Buffer, Buffer]]
) -> tirx.PrimFunc | None:
    """Like :func:`schedule`, with some outputs written over inputs instead of being parameters.

    Args:
        func: the function.
        target: an ``llvm`` target.
        in_place: inputs, and the outputs to write over them. Each element of such an input is read only where the
            same element of its output is computed.

    Returns:
        The function, or None if an output would be written before its input is read for the last time.
    """
    machine = Machine.of(target)
    scheduled = _schedule(func, machine, in_place)
    return scheduled and _expanded(scheduled, machine)


def _expanded(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """A scheduled function in terms of what TVM vectorizes."""
    return intrinsics.expand(mask_loads(func, machine.has_masked_loads), machine.lanes("float32"))


def _schedule(func: tirx.PrimFunc, machine: Machine, in_place: Sequence[tuple[Buffer, Buffer]]) -> tirx.PrimFunc | None:
    stages, temps = parse(func)
    if all(isinstance(stage, Opaque) for stage in stages):
        return None
    stages = without_empty(stages)
    stages = [stage for stage in stages if not any(is_copy(stage, *pair) for pair in in_place)]
    stages, temps = _without_short_reductions(stages, temps, machine)
    has_branches = lambda stage: interleaving(stage, stage.space, machine) is not None
    stages = inline_maps(stages, temps, has_branches, is_computed_by_packing)
    stages, temps = compute_parts(stages, temps)
    stages, temps = store_truth_as_numbers(stages, temps)
    if not machine.features.isdisjoint(("avx512bf16", "amx-bf16")):
        stages, temps = store_factors_as_bits(stages, temps, match)
    stages = small_first(stages)
    apart = stages[-1] if stages and _gains_by_vectors(stages[-1]) else None
    stages = attach_epilogues(stages, temps, lambda stage, reader: reader is apart and along_reduced_axis(stage))
    stages = [_with_groups(stage, machine) for stage in stages]
    stages = apply_winograd(stages, temps, machine)
    rule = _rule(stages)
    stages, temps = _prepare(stages, temps, machine)
    is_worthwhile = partial(_gains_by_sharing, apart=apart, machine=machine)
    groups = share_loops(stages, match, along_reduced_axis, is_worthwhile)
    if not all(may_overwrite(groups, *pair) for pair in in_place):
        return None
    private = [private_outputs(group, stages, temps) for group in groups]
    nests = [_emit(group, own, machine) for group, own in zip(groups, private, strict=True)]
    body = build.seq(*nests) if nests else tirx.Evaluate(0)
    for group, nest in zip(groups, nests, strict=True):
        mapped = [stage.output for stage in group.stages if is_map(stage)]
        overwritten = (output for _, output in in_place if any(output.same_as(own) for own in mapped))
        if not all(writes_once(nest, output) for output in overwritten):
            return None
    return _overwriting(func.with_body(_root(body, temps)), in_place).with_attr(RULE, rule)


def _without_short_reductions(
    stages: Sequence[AnyStage], temps: Sequence[Buffer], machine: Machine
) -> tuple[list[AnyStage], list[Buffer]]:
    """Replaces reductions of few terms that are not products by maps; returns the stages and the intermediates."""
    result: list[AnyStage] = []
    temps = list(temps)
    for stage in stages:
        is_reduction = isinstance(stage, Stage) and stage.combine is not None and match(stage) is None
        maps = unrolled(stage, machine) if is_reduction else [stage]
        temps += [part.output for part in maps[:-1]]
        result += maps
    return result, temps


def _with_groups(stage: AnyStage, machine: Machine) -> AnyStage:
    """Turns a sum over groups of columns into a matrix product per group, if tiles of its columns fill vectors."""
    if not isinstance(stage, Stage) or stage.combine is None or match(stage) is not None:
        return stage
    split = split_columns(stage)
    contraction = None if split is None else match(split)
    if contraction is None:
        return stage
    columns, lanes = build.points([contraction.column]), machine.lanes(stage.dtype)
    is_high = build.points([contraction.row]) >= _ROWS_OF_HALF and build.points(stage.reduce) >= _TERMS_OF_HALF
    return contraction.stage if columns >= lanes or (2 * columns >= lanes and is_high) else stage


def _gains_by_sharing(members: Sequence[Stage], prefix: int, apart: AnyStage | None, machine: Machine) -> bool:
    """Whether stages, of which one reads another, gain by common loops over their first ``prefix`` axes.

    There have to be iterations for all cores, not only maps of less than a vector in each iteration, and an axis for
    the lanes of each reduction. A stage that is better ``apart`` may not be a single number per iteration.
    """
    if members[-1] is apart and len(members[-1].space) == prefix:
        return False
    reductions = [stage for stage in members if stage.combine is not None]
    if any(len(stage.space) == prefix and not along_reduced_axis(stage) for stage in reductions):
        return False
    within = max(build.points(stage.domain[prefix:]) for stage in members)
    is_short = all(map(is_map, members)) and within < machine.lanes("float32")
    return build.points(members[0].space[:prefix]) >= 2 * machine.cores and not is_short


def _gains_by_vectors(stage: AnyStage) -> bool:
    """Whether a function of a number per row, such as the logarithm of a sum, takes less time in loops of its own.

    The numbers are then read once more, but in vectors.
    """
    return (
        isinstance(stage, Stage)
        and is_map(stage)
        and intrinsics.is_heavy(stage.value)
        and build.points(stage.space) >= MANY_ROWS
    )


def _overwriting(func: tirx.PrimFunc, in_place: Sequence[tuple[Buffer, Buffer]]) -> tirx.PrimFunc:
    """The function with the outputs written over inputs, and without parameters for them."""
    body, params = func.body, list(func.params)
    for source, output in in_place:
        body = build.replace_buffers(body, {output: source})
        params = [param for param in params if not param.same_as(output)]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _prepare(stages: Sequence[AnyStage], temps: Sequence[Buffer], machine: Machine):
    """Returns the stages with reductions in the form that their rules need, and the intermediates, old and new."""
    result: list[AnyStage] = []
    temps = list(temps)
    promoted = [buffer for buffer in temps if str(buffer.dtype) == "bfloat16"]
    for stage in stages:
        pieces: list[AnyStage] = [stage]
        if isinstance(stage, Stage) and stage.combine is not None:
            pieces = _prepare_reduction(stage, machine, promoted)
            temps.extend(piece.output for piece in pieces[:-1])
        result.extend(pieces)
    return result, temps


def _prepare_reduction(stage: Stage, machine: Machine, promoted: Sequence[Buffer]) -> list[AnyStage]:
    """Returns the stages of a reduction: hoisted operands, joined axes, and a long sum with few tasks cut in pieces.

    The buffers in ``promoted`` will hold wider numbers than their dtype says.
    """
    contraction = match(stage)
    before: list[Stage] = []
    if contraction is None:
        stage = merge_reduced_axes(stage, is_flat=True)
        chunks = row_chunks(stage, machine)
        if chunks:
            return list(cut_reduction(stage, chunks, f"{stage.name}_part") or (stage,))
    elif (few := few_columns(contraction, machine)) is not None:
        return list(with_packed_columns(stage, few, machine))
    else:
        packed = with_words(stage, contraction, machine, promoted)
        before, stage = packed or hoist_operands(stage, contraction, is_narrow)
        # Packed words are an axis of their own, and quotients by dynamic sizes would stay in the indices.
        if packed is None and all(isinstance(axis.extent, int) for axis in stage.reduce):
            stage = merge_reduced_axes(stage, is_flat=True)
    pieces = split_reduction(stage, _independent_tasks(stage, machine), _work(stage), f"{stage.name}_part")
    return [*before, *(pieces or (stage,))]


def _independent_tasks(stage: Stage, machine: Machine) -> int:
    return dims.typical(_task_count(stage, machine))


def _task_count(stage: Stage, machine: Machine) -> Size:
    """The number of tiles, rows, or tiles of columns of a reduction."""
    contraction = match(stage)
    if contraction is not None:
        return tile_count(contraction, machine)
    if along_reduced_axis(stage):
        return volume(stage.space)
    return volume(stage.space[:-1]) * build.ceil_div(stage.space[-1].extent, WIDE * machine.lanes(stage.dtype))


def _root(body: Stmt, temps: Sequence[Buffer]) -> Stmt:
    """The function's body: a root block, which Relax's passes expect, with allocations of the intermediates in use.

    The allocations are statements. TVM would move the buffers of a block into the loops, and sums that stay in memory
    between two iterations would be lost.
    """
    used = set(map(hash, build.variables(body))) if temps else ()  # their addresses
    live = [AllocBuffer(buffer) for buffer in temps if hash(buffer) in used]
    return build.root(build.seq(*live, body))


def _emit(group: Group, private: Sequence[Buffer], machine: Machine) -> Stmt:
    """The loops of one group; intermediates in ``private`` need not outlive an iteration."""
    work = sum(_work(stage) for stage in group.stages)
    tasks = machine.tasks(work)
    if len(group.stages) == 1:
        stage = group.stages[0]
        return _emit_stage(stage, {}, 0, machine, tasks, fetch_descending(stage, machine))
    if is_pointwise(group):
        return emit_maps(group.stages, {}, 0, machine, tasks, private)
    shared = group.stages[0].space[: group.prefix]
    fetched = fetches(group, private, machine)
    on_stack, in_workspace = [], []
    for buffer in private:
        group, scratch = shrink(group, buffer)
        (on_stack if build.is_on_stack(scratch) else in_workspace).append(AllocBuffer(scratch))

    def body(env: Env) -> Stmt:
        bound = ((stage, _bind(stage, shared, env), fetch) for stage, fetch in zip(group.stages, fetched, strict=True))
        return build.seq(*on_stack, *(_emit_stage(s, own, group.prefix, machine, 1, f) for s, own, f in bound))

    return build.once_per_thread(in_workspace, build.parallel_nest(shared, {}, body, tasks))


def _bind(stage: Stage, shared: Sequence[Axis], env: Env) -> Env:
    return {axis.var: env[lead.var] for axis, lead in zip(stage.space, shared, strict=False)}


def _emit_stage(
    stage: AnyStage, env: Env, prefix: int, machine: Machine, tasks: int, fetch: Fetch | None = None
) -> Stmt:
    if isinstance(stage, Opaque):
        return stage.body
    if isinstance(stage, Block):
        return emit_block(stage, machine, tasks)
    if isinstance(stage, Winograd):
        return emit_winograd(stage, machine, tasks)
    if stage.combine is None:
        return emit_maps([stage], env, prefix, machine, tasks, fetch=fetch)
    contraction = match(stage, prefix)
    if contraction is not None:
        few = few_columns(contraction, machine)
        if few is not None and is_packed(few, machine):
            return emit_few_columns(few, env, prefix, machine, tasks)
        return emit_contraction(contraction, env, prefix, machine, tasks)
    return emit_reduction(stage, env, prefix, machine, tasks)


def _work(stage: AnyStage) -> int:
    """The cost of a stage, in additions of one vector lane."""
    if isinstance(stage, Opaque):
        return 0
    if isinstance(stage, Winograd):
        return _work(stage.stage)
    points = build.points(stage.space + stage.reduce)
    if match(stage) is not None:
        return points // CONTRACTION_SPEED
    if isinstance(stage, Stage):
        return points * (1 + CALL_COST * build.count_calls(stage.value))
    return points * (1 if is_straight(stage) else max(LOOP_COST, _loop_work(stage.body)))


def _loop_work(stmt: Stmt) -> int:
    """The iterations of all loops in the body of a block, a typical number for loops whose bounds vary."""
    if isinstance(stmt, tirx.For):
        extent = int(stmt.extent) if isinstance(stmt.extent, tirx.IntImm) else VARYING_EXTENT
        return extent * _loop_work(stmt.body)
    if isinstance(stmt, tirx.SeqStmt):
        return sum(map(_loop_work, stmt.seq))
    if isinstance(stmt, tirx.While | tirx.AttrStmt):
        return _loop_work(stmt.body)
    if isinstance(stmt, tirx.IfThenElse):
        return max(_loop_work(case) for case in (stmt.then_case, stmt.else_case) if case is not None)
    return 1


def _rule(stages: Sequence[AnyStage]) -> str:
    """The name of the rule of the most complex stage."""
    if any(isinstance(stage, Opaque) or _is_irregular(stage) for stage in stages):
        return "fallback"
    if any(isinstance(stage, Winograd) for stage in stages):
        return "winograd"
    if any(match(stage) for stage in stages):
        return "contraction"
    reductions = [stage for stage in stages if not isinstance(stage, Winograd) and stage.init is not None]
    if any(isinstance(stage, Stage) and is_window(stage) for stage in reductions):
        return "window"
    if reductions:
        return "reduction"
    return "scalar" if all(volume(stage.space) == 1 for stage in stages) else "elementwise"


def _is_irregular(stage: Stage | Block) -> bool:
    """Whether a stage is a block that is neither a map nor a reduction."""
    return isinstance(stage, Block) and stage.init is None and (bool(stage.reduce) or not is_straight(stage))
