"""Which stages become one loop nest: inlining, epilogues, groups and split reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import ir, tirx
from tvm.tirx import Buffer

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.lower.structure import called, find

from . import build
from .build import Axis, Env, Expr
from .stages import AnyStage, Block, Opaque, Stage

# A long reduction with fewer independent tasks than MIN_TASKS is cut in pieces. Both numbers are fixed, so
# results do not depend on the number of threads.
MIN_TASKS = 16
MAX_CHUNKS = 32
SPLIT_WORK = 1 << 16
CHEAP_LOADS = 6
MIN_REUSE = 4
# What has so many times as many elements is rows of something.
SHORT_ROW = 16


@dataclass(frozen=True)
class Group:
    """Stages that run one after another inside common loops over their first `prefix` axes."""

    stages: tuple[AnyStage, ...]
    prefix: int = 0


def is_map(stage: AnyStage) -> bool:
    """Whether a stage computes each output element on its own."""
    return isinstance(stage, Stage) and stage.combine is None


def written(stages: Sequence[AnyStage]) -> list[Buffer]:
    """All buffers the stages write, with repetitions."""
    return [buffer for stage in stages for buffer in stage.writes()]


def _contains(buffers: Sequence[Buffer], buffer: Buffer) -> bool:
    return any(b.same_as(buffer) for b in buffers)


def _reads(stage: AnyStage, buffer: Buffer) -> list[ir.TensorLoad]:
    if isinstance(stage, Opaque) and _contains(stage.buffers, buffer):
        return stage.reads() or [None]
    return [load for load in stage.reads() if load.source.same_as(buffer)]


def inline_maps(stages: list[AnyStage], temps: Sequence[Buffer]) -> list[AnyStage]:
    """Substitute intermediate maps into their readers where that repeats no expensive work."""
    stages = list(stages)
    position = 0
    while position < len(stages):
        if _can_inline(stages, position, temps):
            producer = stages.pop(position)
            stages = [_inline_into(stage, producer) for stage in stages]
        else:
            position += 1
    return stages


def _can_inline(stages: Sequence[AnyStage], position: int, temps: Sequence[Buffer]) -> bool:
    producer = stages[position]
    if not is_map(producer) or not _contains(temps, producer.output):
        return False
    if sum(b.same_as(producer.output) for b in written(stages)) != 1:
        return False
    sources = [load.source for load in producer.reads()]
    points, last = 0, position
    for later in range(position + 1, len(stages)):
        stage = stages[later]
        reads = _reads(stage, producer.output)
        if not reads:
            continue
        if not isinstance(stage, Stage):
            return False
        points += len(reads) * build.points(stage.domain)
        last = later
    between = written(stages[position + 1 : last])
    if any(_contains(between, source) for source in sources):
        return False
    readers = [stage for stage in stages[position + 1 :] if _reads(stage, producer.output)]
    reuse = points / max(1, build.points(producer.space))
    if _is_view(producer.value) or reuse <= 1:
        return True
    return _is_cheap(producer.value) and all(is_map(stage) for stage in readers)


def _is_view(value: Expr) -> bool:
    """A moved or converted element, or a constant."""
    while isinstance(value, tirx.Cast):
        value = value.value
    value = build.bits_read(value)
    return isinstance(value, ir.TensorLoad) or not build.loads(value)


def _is_cheap(value: Expr) -> bool:
    """A handful of additions and the like; no division or function call."""
    candidates = find(value, ir.Call, tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)
    # The bits of a constant as a number are a constant.
    costly = any(not isinstance(node, ir.Call) or build.variables(node) for node in candidates)
    return not costly and len(build.loads(value)) <= CHEAP_LOADS


def _inline_into(stage: AnyStage, producer: Stage) -> AnyStage:
    if not isinstance(stage, Stage) or not _reads(stage, producer.output):
        return stage

    def expand(indices: Sequence[Expr]) -> Expr:
        env = {
            var: build.cast(index, str(var.ty))
            for var, index in zip(producer.index, indices, strict=True)
            if isinstance(var, ir.Var)
        }
        return build.substitute(producer.value, env)

    return replace(stage, value=build.replace_loads(stage.value, producer.output, expand))


def small_first(stages: Sequence[AnyStage]) -> list[AnyStage]:
    """Compute single numbers, and one per row, before what does not make them, so that they do not part its loops."""
    known = [stage for stage in stages if not isinstance(stage, Opaque)]
    most = max((build.points(stage.space + stage.reduce) for stage in known), default=0)
    first: list[AnyStage] = []
    others: list[AnyStage] = []
    for stage in stages:
        is_small = is_map(stage) and build.points(stage.space) <= max(1, most // SHORT_ROW)
        needs_others = any(_contains(written(others), load.source) for load in stage.reads())
        (first if is_small and not needs_others else others).append(stage)
    return [*first, *others]


def store_truth_as_numbers(stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> tuple[list[AnyStage], list[Buffer]]:
    """Make int8 of bool intermediates: StorageRewrite loses the type of bool buffers used as vectors."""
    stages, kept = list(stages), []
    for buffer in temps:
        users = [stage for stage in stages if _reads(stage, buffer) or _contains(stage.writes(), buffer)]
        if str(buffer.dtype) != "bool" or not all(isinstance(stage, Stage) for stage in users):
            kept.append(buffer)
            continue
        numbers = tirx.decl_buffer(buffer.shape, "int8", name=buffer.name)
        stages = [_stored_as(stage, buffer, numbers, build.cast) if stage in users else stage for stage in stages]
        kept.append(numbers)
    return stages, kept


def store_factors_as_bits(
    stages: Sequence[AnyStage], temps: Sequence[Buffer], match: Callable
) -> tuple[list[AnyStage], list[Buffer]]:
    """Make uint16 of bfloat16 intermediates that contractions read, of which BF16ComputeLegalize makes float32."""
    stages, kept = list(stages), []
    for buffer in temps:
        readers = [stage for stage in stages if _reads(stage, buffer)]
        writers = [stage for stage in stages if _contains(stage.writes(), buffer)]
        moved = all(is_map(stage) and _only_moves(stage.value, temps) for stage in writers)
        if str(buffer.dtype) != "bfloat16" or not moved or not all(map(match, readers)):
            kept.append(buffer)
            continue
        bits = tirx.decl_buffer(buffer.shape, "uint16", name=buffer.name)
        users = [*readers, *writers]
        stages = [_stored_as(stage, buffer, bits, bits_of) if stage in users else stage for stage in stages]
        kept.append(bits)
    return stages, kept


def _only_moves(value: Expr, temps: Sequence[Buffer]) -> bool:
    """Whether a bfloat16 is an element of an input, a constant, or a choice of these."""
    if _is_choice(value):
        return all(_only_moves(part, temps) for part in value.args[1:])
    return isinstance(value, tirx.FloatImm) or (isinstance(value, ir.TensorLoad) and not _contains(temps, value.source))


def _is_choice(value: Expr) -> bool:
    return called(value) == "prim.if_then_else"


def bits_of(value: Expr, dtype: str) -> Expr:
    """The bits of a number that is only moved, as another type; also the number that bits are."""
    if str(value.ty) == dtype:
        return value
    if _is_choice(value):
        condition, *parts = value.args
        return tirx.if_then_else(condition, *(bits_of(part, dtype) for part in parts))
    if isinstance(value, tirx.FloatImm) and str(value.ty) == "bfloat16":
        return tirx.const(int(np.array(value.value, dtypes.bfloat16).view(np.uint16)), dtype)
    if called(value) == "tirx.reinterpret":
        return bits_of(value.args[0], dtype)
    return tirx.reinterpret(dtype, value)


def _stored_as(stage: Stage, buffer: Buffer, other: Buffer, convert: Callable[[Expr, str], Expr]) -> Stage:
    """The stage with another buffer, of another dtype, in place of one."""
    value = build.replace_loads(stage.value, buffer, lambda at: convert(other[tuple(at)], str(buffer.dtype)))
    if not stage.output.same_as(buffer):
        return replace(stage, value=value)
    init = None if stage.init is None else convert(stage.init, str(other.dtype))
    return replace(stage, value=convert(value, str(other.dtype)), init=init, output=other)


def attach_epilogues(stages: list[AnyStage], temps: Sequence[Buffer]) -> list[AnyStage]:
    """Move pointwise readers of a reduction's result into its write-back."""
    stages = list(stages)
    position = 0
    while position < len(stages):
        stage = stages[position]
        if isinstance(stage, Stage) and stage.combine is not None:
            _attach(stages, position, temps)
        position += 1
    return stages


def _attach(stages: list[AnyStage], position: int, temps: Sequence[Buffer]) -> None:
    target: Stage = stages[position]
    later = position + 1
    while later < len(stages):
        reader = stages[later]
        between = stages[position + 1 : later]
        if is_map(reader) and _is_epilogue(target, reader, between):
            target = replace(target, epilogues=(*target.epilogues, reader))
            del stages[later]
        else:
            later += 1
    others = stages[:position] + stages[position + 1 :]
    needed = not _contains(temps, target.output) or any(_reads(s, target.output) for s in others)
    stages[position] = replace(target, keep=needed)


def _is_epilogue(target: Stage, reader: Stage, between: Sequence[AnyStage]) -> bool:
    if not _reads(reader, target.output) or not same_extents(target.space, reader.space):
        return False
    if any(_reads(stage, reader.output) for stage in between) or _contains(written(between), reader.output):
        return False
    own = [target, *target.epilogues]
    fresh = written(between)
    for load in reader.reads():
        producer = next((stage for stage in own if stage.output.same_as(load.source)), None)
        if producer is not None and not _is_aligned(producer, reader, load, len(target.space)):
            return False
        if producer is None and _contains(fresh, load.source):
            return False
    return True


def same_extents(a: Sequence[Axis], b: Sequence[Axis]) -> bool:
    """Whether two iteration spaces have the same shape."""
    return [axis.extent for axis in a] == [axis.extent for axis in b]


def _is_aligned(producer: Stage | Block, reader: Stage | Block, load: ir.TensorLoad, prefix: int) -> bool:
    """Whether `load` reads the very point of the first `prefix` axes that `reader` is at."""
    index = producer.index if isinstance(producer, Stage) else None
    if index is None:
        return False
    position = {axis.var: i for i, axis in enumerate(producer.space[:prefix])}
    for mine, theirs in zip(index, load.indices, strict=True):
        if isinstance(mine, ir.Var) and mine in position:
            expected = reader.space[position[mine]].var
            if not (isinstance(theirs, ir.Var) and theirs.same_as(expected)):
                return False
    return True


def merge_reduced_axes(stage: Stage) -> Stage:
    """Join neighbouring reduced axes that every load walks as one, for longer contiguous runs."""
    done: list[Axis] = []
    pending = list(stage.reduce)
    while len(pending) > 1:
        *rest, first, second = pending
        alike = build.is_only_in_indices(stage.value, (first, second)) and all(
            build.walks_as_one(access, first, second, stage.domain) for access in build.accesses(stage.value)
        )
        if alike:
            joined = Axis.fresh(second, first.extent * second.extent)
            env = build.unflatten((first, second), joined.var)
            stage = replace(stage, value=build.substitute(stage.value, env), reduce=(*rest, joined, *done))
            pending = [*rest, joined]
        else:
            done.insert(0, pending.pop())
    return stage


def hoist_operands(stage: Stage, contraction) -> tuple[list[Stage], Stage]:
    """Compute the operands of a contraction that are more than views beforehand, once.

    Left in place, they would be evaluated anew for each tile that uses them.
    """
    before: list[Stage] = []
    operands = []
    for name, value in (("left", contraction.left), ("right", contraction.right)):
        axes = [axis for axis in stage.domain if build.uses(value, axis.var)]
        reuse = build.points(stage.domain) // max(1, build.points(axes))
        if _is_view(value) or reuse < MIN_REUSE:
            operands.append(value)
            continue
        buffer = build.buffer([axis.extent for axis in axes], str(value.ty), f"{stage.name}_{name}")
        fresh = [Axis.fresh(axis, axis.extent) for axis in axes]
        env: Env = {axis.var: new.var for axis, new in zip(axes, fresh, strict=True)}
        index = tuple(axis.var for axis in fresh)
        before.append(Stage(buffer.name, tuple(fresh), (), buffer, index, build.substitute(value, env)))
        operands.append(buffer[tuple(axis.var for axis in axes)])
    return before, replace(stage, value=operands[0] * operands[1])


def split_reduction(stage: Stage, tasks: int, work: int, name: str) -> tuple[Stage, Stage] | None:
    """Cut a long reduction with few tasks into a fixed number of partial ones and their sum, in order."""
    if not stage.reduce or tasks >= MIN_TASKS or work < SPLIT_WORK:
        return None
    head, *rest = stage.reduce
    chunks = min(build.points([head]), MAX_CHUNKS)
    length = build.ceil_div(head.extent, chunks)
    if not dims.always_le(1, length):  # which may be 0
        length = head.extent // chunks + 1
    if isinstance(length, int):
        length = _matching(length, build.divisors(stage.value, head.var))
    chunks = build.ceil_div(head.extent, length)
    if chunks == 1:
        return None
    chunk = Axis.fresh(head, chunks)
    start = chunk.var * length
    even = head.extent % length == 0
    inner = Axis.fresh(head, length, None if even else tirx.min(length, head.extent - start))
    space = [Axis.fresh(axis, axis.extent) for axis in stage.space]
    env: Env = {axis.var: new.var for axis, new in zip(stage.space, space, strict=True)}
    env[head.var] = start + inner.var
    shape = [chunks, *(axis.extent for axis in space)]
    partial = build.buffer(shape, accumulator(stage.dtype), name)
    first = Stage(
        name,
        (chunk, *space),
        (inner, *rest),
        partial,
        (chunk.var, *(axis.var for axis in space)),
        build.cast(build.substitute(stage.value, env), accumulator(stage.dtype)),
        stage.combine,
        build.cast(stage.init, accumulator(stage.dtype)),
    )
    again = Axis.fresh(head, chunks)
    total = partial[(again.var, *(axis.var for axis in stage.space))]
    return first, replace(stage, reduce=(again,), value=build.cast(total, stage.dtype))


def _matching(length: int, divisors: Sequence[int]) -> int:
    """A length near ``length`` whose pieces end where the rows of a joined axis end, so that reads stay contiguous."""
    for divisor in sorted(divisors, reverse=True):
        if divisor <= length:
            return build.ceil_div(length, divisor) * divisor
        least = build.ceil_div(divisor, length)
        parts = next((n for n in range(least, 4 * least) if divisor % n == 0), None)
        if parts is not None:
            return divisor // parts
    return length


def accumulator(dtype: str) -> str:
    """The type to accumulate in: narrow floats in float32, truth values as numbers."""
    return {"float16": "float32", "bfloat16": "float32", "bool": "int8"}.get(dtype, dtype)


def group(
    stages: Sequence[AnyStage], match: Callable, along_reduced_axis: Callable[[Stage], bool], min_prefix: int
) -> list[Group]:
    """Collect neighbouring stages that can share their outer loops.

    Args:
        stages: the stages in order.
        match: recognises contractions. One may only end a group, and needs its tile axes for itself.
        along_reduced_axis: tells which reductions have lanes along an axis they reduce. The others need their last
            axis for itself.
        min_prefix: the parallel iterations that make it worthwhile to share loops.
    """
    groups: list[Group] = []
    closed = False
    for stage in stages:
        contraction = match(stage)
        limit = len(stage.space) if isinstance(stage, Stage) else 0
        if contraction is not None:
            limit = min(stage.space.index(contraction.row), stage.space.index(contraction.column))
        elif isinstance(stage, Stage) and stage.combine is not None and not along_reduced_axis(stage):
            limit -= 1
        joined = _join(groups[-1], stage, limit, min_prefix) if groups and not closed else None
        if joined is None:
            groups.append(Group((stage,)))
        else:
            groups[-1] = joined
        closed = contraction is not None
    return groups


def _join(current: Group, stage: AnyStage, limit: int, min_prefix: int) -> Group | None:
    members = current.stages
    if not all(isinstance(s, Stage) for s in (*members, stage)):
        return None
    inputs = [load.source for member in members for load in member.reads()]
    outputs = written(members)
    if any(_contains(inputs + outputs, buffer) for buffer in stage.writes()):
        return None
    related = any(_contains(outputs, load.source) for load in stage.reads())
    limit = min([limit, current.prefix or limit, *(len(member.space) for member in members)])
    for prefix in range(limit, -1, -1):
        if _shares(members, stage, prefix):
            joined = Group((*members, stage), prefix)
            if is_pointwise(joined) or (related and build.points(stage.space[:prefix]) >= min_prefix):
                return joined
    return None


def is_pointwise(group: Group) -> bool:
    """Whether the group is maps over one common space."""
    return all(is_map(stage) and len(stage.space) == group.prefix for stage in group.stages)


def is_copy(stage: AnyStage, source: Buffer, output: Buffer) -> bool:
    """Whether a stage does nothing but copy one buffer to another."""
    if not is_map(stage) or not stage.output.same_as(output) or not isinstance(stage.value, ir.TensorLoad):
        return False
    place = [axis.var for axis in stage.space]
    return stage.value.source.same_as(source) and list(stage.value.indices) == list(stage.index) == place


def may_overwrite(groups: Sequence[Group], source: Buffer, output: Buffer) -> bool:
    """Whether every element of an input is read for the last time before that element of an output is written.

    Where it is read at all, it is where the same element of the output is computed.
    """
    readers = []
    for group in groups:
        parts = [part for stage in group.stages for part in (stage, *getattr(stage, "epilogues", ()))]
        reading = [part for part in parts if any(load.source.same_as(source) for load in _own_reads(part))]
        # Here all stores come after all computations.
        if not (is_pointwise(group) and _contains(written(group.stages), output)):
            readers += reading
    return all(isinstance(part, Stage) and is_map(part) and part.output.same_as(output) for part in readers)


def _own_reads(part: AnyStage) -> list[ir.TensorLoad]:
    return build.loads(part.value) if isinstance(part, Stage) else part.reads()


def private_outputs(group: Group, stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> list[Buffer]:
    """The intermediates that no stage outside the group reads."""
    others = [stage for stage in stages if not any(stage is member for member in group.stages)]
    outputs = [b for b in written(group.stages) if _contains(temps, b)]
    return [b for b in outputs if not any(_reads(stage, b) for stage in others)]


def shrink(group: Group, buffer: Buffer) -> tuple[Group, Buffer]:
    """Make an intermediate private to one iteration of the group's common loops."""
    producer = next(s for member in group.stages for s in (member, *member.epilogues) if s.output.same_as(buffer))
    shared = [axis.var for axis in producer.space[: group.prefix]]
    fixed = [any(index.same_as(var) for var in shared) for index in producer.index]
    shape = [1 if gone else size for gone, size in zip(fixed, buffer.shape, strict=True)]
    small = tirx.decl_buffer(shape, str(buffer.dtype), name=buffer.name)

    def at(indices: Sequence[Expr]) -> tuple[Expr, ...]:
        zero = (tirx.const(0, str(index.ty)) for index in indices)
        return tuple(z if gone else index for z, gone, index in zip(zero, fixed, indices, strict=True))

    def move(stage: Stage) -> Stage:
        value = build.replace_loads(stage.value, buffer, lambda indices: small[at(indices)])
        stage = replace(stage, value=value, epilogues=tuple(move(part) for part in stage.epilogues))
        if stage.output.same_as(buffer):
            stage = replace(stage, output=small, index=at(stage.index))
        return stage

    return replace(group, stages=tuple(move(stage) for stage in group.stages)), small


def _shares(members: Sequence[Stage], stage: Stage, prefix: int) -> bool:
    if not same_extents(members[0].space[:prefix], stage.space[:prefix]):
        return False
    for load in stage.reads():
        for member in members:
            for part in (member, *member.epilogues):
                if part.output.same_as(load.source) and not _is_aligned_all(part, stage, load, prefix):
                    return False
    return True


def _is_aligned_all(producer: Stage, stage: Stage, load: ir.TensorLoad, prefix: int) -> bool:
    readers = (stage, *stage.epilogues)
    return any(_is_aligned(producer, reader, load, prefix) for reader in readers)
