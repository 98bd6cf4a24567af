"""Passes from stages to stages: inlining, order, epilogues, and intermediates of another dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import Buffer

from tvmfun.lower.schedule.stages import (
    AnyStage,
    Opaque,
    Stage,
    contains,
    decided,
    is_aligned,
    is_map,
    is_view,
    reads_of,
    same_extents,
    written_by,
)
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Expr
from tvmfun.lower.tir.walk import find, find_outside_indices

# A map that is substituted more than once loads at most this many elements, with those in its indices.
_CHEAP_LOADS = 6
# Such a map names indices at most this often, those of its loads aside: the time in which TVM simplifies formulas of
# indices grows faster than they do.
_CHEAP_INDICES = 16
# The most conditions inside one another after substitution: TVM's simplifier visits each some ten times.
_MOST_NESTED = 3
# The most parts of an intermediate that become separate maps.
_MOST_PARTS = 8
# A stage with at most 1/SHORT_ROW of the points of the largest one counts as one value per row.
SHORT_ROW = 16


def inline_maps(
    stages: list[AnyStage],
    temps: Sequence[Buffer],
    has_branches: Callable[[Stage], bool] = lambda stage: False,
    packs: Callable[[Stage, Stage], bool] = lambda reader, producer: False,
) -> list[AnyStage]:
    """Substitutes intermediate maps into their readers where that repeats no expensive work.

    Args:
        stages: the stages in order.
        temps: the intermediates.
        has_branches: tells which stages have branches, such as the parts of a concatenation, that read each element of
            an intermediate once.
        packs: tells which stages compute the result of another stage while they pack it.
    """
    stages = list(stages)
    position = 0
    while position < len(stages):
        if _can_inline(stages, position, temps, has_branches, packs):
            producer = stages.pop(position)
            stages = [inline_into(stage, producer) for stage in stages]
        else:
            position += 1
    return stages


def _can_inline(
    stages: Sequence[AnyStage],
    position: int,
    temps: Sequence[Buffer],
    has_branches: Callable[[Stage], bool],
    packs: Callable[[Stage, Stage], bool],
) -> bool:
    producer = stages[position]
    if not is_map(producer) or not contains(temps, producer.output):
        return False
    if sum(b.same_as(producer.output) for b in written_by(stages)) != 1:
        return False
    sources = [load.source for load in producer.reads()]
    points, last, readers = 0, position, []
    for later in range(position + 1, len(stages)):
        stage = stages[later]
        reads = reads_of(stage, producer.output)
        if not reads:
            continue
        if not isinstance(stage, Stage):
            return False
        domain = build.points(stage.domain)
        if len(reads) == 1 and build.points(producer.space) < domain:
            is_always = any(load.same_as(reads[0]) for load in unconditional_loads(stage.value))
            if not is_always and has_branches(stage):
                domain = build.points(producer.space)
        points += len(reads) * domain
        last = later
        readers.append(stage)
    between = written_by(stages[position + 1 : last])
    if any(contains(between, source) for source in sources):
        return False
    nested = nested_conditions(producer.value)
    if nested and any(nested + nested_conditions(reader.value, producer.output) > _MOST_NESTED for reader in readers):
        return False
    reuse = points / max(1, build.points(producer.space))
    if reuse <= 1 or all(packs(stage, producer) for stage in readers):
        return True
    names = find_outside_indices(producer.value, ir.Var)
    if len(names) > _CHEAP_INDICES or len(build.loads(producer.value)) > _CHEAP_LOADS:
        return False
    return is_view(producer.value) or (_is_cheap(producer.value) and all(is_map(stage) for stage in readers))


def nested_conditions(value: Expr, buffer: Buffer | None = None) -> int:
    """The most conditions inside one another, in all or around the loads of a buffer, also through indices."""
    inner = [node.condition for node in find(value, tirx.Select)]
    inner += [node.value for node in find(value, tirx.Cast) if _is_comparison(node.value)]
    if buffer is not None:
        inner = [part for part in inner if any(load.source.same_as(buffer) for load in build.loads(part))]
    return max((1 + nested_conditions(part, buffer) for part in inner), default=0)


def _is_comparison(value: Expr) -> bool:
    return str(value.ty) == "bool" and not isinstance(value, ir.TensorLoad)


def _is_cheap(value: Expr) -> bool:
    """Whether a value takes a few additions and multiplications, and no division or function call."""
    candidates = find(value, ir.Call, tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)
    # A call without variables, such as the bits of a constant, is a constant.
    return all(isinstance(node, ir.Call) and not build.variables(node) for node in candidates)


def unconditional_loads(value: Expr) -> list[ir.TensorLoad]:
    """The loads that are evaluated under all conditions of ``if_then_else``."""
    choices = [node for node in find(value, ir.Call) if build.is_choice(node)]
    guarded = [load for node in choices for part in node.args[1:] for load in build.loads(part)]
    return [load for load in build.loads(value) if not any(load.same_as(other) for other in guarded)]


def inline_into(stage: AnyStage, producer: Stage) -> AnyStage:
    """The stage with the formula of a map instead of loads of its output."""
    if not isinstance(stage, Stage) or not reads_of(stage, producer.output):
        return stage

    def expand(indices: Sequence[Expr]) -> Expr:
        env = {
            var: build.cast(index, str(var.ty))
            for var, index in zip(producer.index, indices, strict=True)
            if isinstance(var, ir.Var)
        }
        return build.substitute(producer.value, env)

    return replace(stage, value=build.replace_loads(stage.value, producer.output, expand))


def compute_parts(stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> tuple[list[AnyStage], list[Buffer]]:
    """Computes an intermediate in parts where maps over a smaller space read it in parts, such as ``w[..., 0]``.

    The parts are maps over the space of their readers, so that vectors of them stay in registers.
    """
    stages, temps = list(stages), list(temps)
    position = 0
    while position < len(stages):
        producer = stages[position]
        found = _parts(producer, stages, temps)
        if found is None:
            position += 1
            continue
        parts, readers = found
        stages = [readers.get(id(stage), stage) for stage in stages]
        stages[position : position + 1] = parts
        temps = [buffer for buffer in temps if not buffer.same_as(producer.output)] + [part.output for part in parts]
    return stages, temps


def _parts(
    producer: AnyStage, stages: Sequence[AnyStage], temps: Sequence[Buffer]
) -> tuple[list[Stage], dict[int, Stage]] | None:
    """The maps of the parts of an intermediate, and by id its readers, which read these; None if it has no parts."""
    if not is_map(producer) or not contains(temps, producer.output):
        return None
    readers = [stage for stage in stages if reads_of(stage, producer.output)]
    if not readers or not all(map(is_map, readers)):
        return None
    always = [load for reader in readers for load in unconditional_loads(reader.value)]
    reads = [load for reader in readers for load in reads_of(reader, producer.output)]
    if not all(any(load.same_as(other) for other in always) for load in reads):
        return None  # a condition may guard an element that does not exist
    first = readers[0]
    points, most = build.points(first.space), build.points(producer.space)
    if points >= most or not all(same_extents(first.space, reader.space) for reader in readers):
        return None
    elements: list[tuple[Expr, ...]] = []
    parts: list[Stage] = []

    def part(indices: Sequence[Expr], reader: Stage) -> Expr:
        env = {axis.var: own.var for axis, own in zip(reader.space, first.space, strict=True)}
        element = tuple(build.substitute(index, env) for index in indices)
        number = next((i for i, other in enumerate(elements) if tvm_ffi.structural_equal(element, other)), None)
        if number is None:
            number = len(elements)
            elements.append(element)
            parts.append(_part(producer, element, first.space))
        return parts[number].output[tuple(axis.var for axis in reader.space)]

    changed = {}
    for reader in readers:
        make = lambda indices, reader=reader: part(indices, reader)
        changed[id(reader)] = replace(reader, value=build.replace_loads(reader.value, producer.output, make))
    return (parts, changed) if len(parts) * points <= most and len(parts) <= _MOST_PARTS else None


def _part(producer: Stage, element: Sequence[Expr], space: Sequence[Axis]) -> Stage:
    """The map of one element of an intermediate for each point of a space."""
    axes = tuple(Axis.fresh(axis, axis.extent) for axis in space)
    pairs = zip(producer.index, element, strict=True)
    env = {var: build.cast(index, str(var.ty)) for var, index in pairs if isinstance(var, ir.Var)}
    value = build.substitute(producer.value, env)
    value = decided(build.substitute(value, {old.var: new.var for old, new in zip(space, axes, strict=True)}), axes)
    output = build.buffer([axis.extent for axis in axes], producer.dtype, producer.output.name)
    return Stage(producer.name, axes, (), output, tuple(axis.var for axis in axes), value)


def small_first(stages: Sequence[AnyStage]) -> list[AnyStage]:
    """Moves maps of one element, or of one per row, to the front: they would separate stages that share loops."""
    known = [stage for stage in stages if not isinstance(stage, Opaque)]
    most = max((build.points(stage.space + stage.reduce) for stage in known), default=0)
    first: list[AnyStage] = []
    others: list[AnyStage] = []
    for stage in stages:
        is_small = is_map(stage) and build.points(stage.space) <= max(1, most // SHORT_ROW)
        needs_others = any(contains(written_by(others), load.source) for load in stage.reads())
        (first if is_small and not needs_others else others).append(stage)
    return [*first, *others]


def store_truth_as_numbers(stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> tuple[list[AnyStage], list[Buffer]]:
    """Stores bool intermediates as int8: TVM loses the type of bool buffers that are accessed as vectors."""
    stages, kept = list(stages), []
    for buffer in temps:
        users = [stage for stage in stages if reads_of(stage, buffer) or contains(stage.writes(), buffer)]
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
    """Stores bfloat16 operands of contractions as uint16, because BF16ComputeLegalize would make them float32."""
    stages, kept = list(stages), []
    for buffer in temps:
        readers = [stage for stage in stages if reads_of(stage, buffer)]
        writers = [stage for stage in stages if contains(stage.writes(), buffer)]
        moved = all(is_map(stage) and _only_moves(stage.value, temps) for stage in writers)
        if str(buffer.dtype) != "bfloat16" or not moved or not all(map(match, readers)):
            kept.append(buffer)
            continue
        bits = tirx.decl_buffer(buffer.shape, "uint16", name=buffer.name)
        users = [*readers, *writers]
        stages = [_stored_as(stage, buffer, bits, build.bits_of) if stage in users else stage for stage in stages]
        kept.append(bits)
    return stages, kept


def _only_moves(value: Expr, temps: Sequence[Buffer]) -> bool:
    """Whether a value is an element of an input, a constant, or a choice of these."""
    if build.is_choice(value):
        return all(_only_moves(part, temps) for part in value.args[1:])
    return isinstance(value, tirx.FloatImm) or (isinstance(value, ir.TensorLoad) and not contains(temps, value.source))


def _stored_as(stage: Stage, buffer: Buffer, other: Buffer, convert: Callable[[Expr, str], Expr]) -> Stage:
    """The stage with a buffer replaced by one of another dtype."""
    value = build.replace_loads(stage.value, buffer, lambda at: convert(other[tuple(at)], str(buffer.dtype)))
    if not stage.output.same_as(buffer):
        return replace(stage, value=value)
    init = None if stage.init is None else convert(stage.init, str(other.dtype))
    return replace(stage, value=convert(value, str(other.dtype)), init=init, output=other)


def attach_epilogues(
    stages: list[AnyStage],
    temps: Sequence[Buffer],
    gains_apart: Callable[[Stage, Stage], bool] = lambda stage, reader: False,
) -> list[AnyStage]:
    """Makes pointwise readers of a reduction's result its epilogues, unless a reader is faster apart."""
    stages = list(stages)
    position = 0
    while position < len(stages):
        stage = stages[position]
        if isinstance(stage, Stage) and stage.combine is not None:
            _attach(stages, position, temps, gains_apart)
        position += 1
    return stages


def _attach(
    stages: list[AnyStage], position: int, temps: Sequence[Buffer], gains_apart: Callable[[Stage, Stage], bool]
) -> None:
    target: Stage = stages[position]
    later = position + 1
    while later < len(stages):
        reader = stages[later]
        between = stages[position + 1 : later]
        if is_map(reader) and _is_epilogue(target, reader, between) and not gains_apart(target, reader):
            target = replace(target, epilogues=(*target.epilogues, reader))
            del stages[later]
        else:
            later += 1
    others = stages[:position] + stages[position + 1 :]
    needed = not contains(temps, target.output) or any(reads_of(s, target.output) for s in others)
    stages[position] = replace(target, keep=needed)


def _is_epilogue(target: Stage, reader: Stage, between: Sequence[AnyStage]) -> bool:
    if not reads_of(reader, target.output) or not same_extents(target.space, reader.space):
        return False
    if any(reads_of(stage, reader.output) for stage in between) or contains(written_by(between), reader.output):
        return False
    own = [target, *target.epilogues]
    fresh = written_by(between)
    for load in reader.reads():
        producer = next((stage for stage in own if stage.output.same_as(load.source)), None)
        if producer is not None and not is_aligned(producer, reader, load, len(target.space)):
            return False
        if producer is None and contains(fresh, load.source):
            return False
    return True


def split_columns(stage: Stage) -> Stage | None:
    """A sum over groups of columns, with an axis for the groups and one for the columns of a group; None for others.

    A convolution with groups divides its output channels by their number in a group, to find the input channels.
    """
    if stage.combine is not tirx.Add or not stage.space:
        return None
    column = stage.space[-1]
    sizes = {*build.divisors(stage.value, column.var)}
    if len(sizes) != 1 or not isinstance(column.extent, int):
        return None
    (size,) = sizes
    return None if column.extent % size else _with_split_columns(stage, size)


def _with_split_columns(stage: Stage, size: int) -> Stage:
    """Splits the last axis of the stage and of its epilogues in two, the inner one of this size."""
    *others, column = stage.space
    group, within = Axis.fresh(column, column.extent // size), Axis.fresh(column, size)
    env = {column.var: group.var * size + within.var}
    space = (*others, group, within)
    value = decided(build.substitute(stage.value, env), (*space, *stage.reduce))
    index = tuple(build.substitute(at, env) for at in stage.index)
    epilogues = tuple(_with_split_columns(epilogue, size) for epilogue in stage.epilogues)
    return replace(stage, space=space, value=value, index=index, epilogues=epilogues)


def is_copy(stage: AnyStage, source: Buffer, output: Buffer) -> bool:
    """Whether a stage only copies one buffer to another."""
    if not is_map(stage) or not stage.output.same_as(output) or not isinstance(stage.value, ir.TensorLoad):
        return False
    indices = [axis.var for axis in stage.space]
    return stage.value.source.same_as(source) and list(stage.value.indices) == list(stage.index) == indices
