"""Groups: stages that run one after another inside common loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.tirx import Buffer

from tvmfun.lower.schedule.stages import (
    AnyStage,
    Stage,
    contains,
    is_aligned,
    is_map,
    reads_of,
    same_extents,
    written_by,
)
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr


@dataclass(frozen=True)
class Group:
    """Stages that run one after another inside common loops over their first ``prefix`` axes."""

    stages: tuple[AnyStage, ...]
    prefix: int = 0


def share_loops(
    stages: Sequence[AnyStage],
    match: Callable,
    along_reduced_axis: Callable[[Stage], bool],
    is_worthwhile: Callable[[Sequence[Stage], int], bool],
) -> list[Group]:
    """Groups neighbouring stages that can share their outer loops.

    Args:
        stages: the stages in order.
        match: recognises contractions. One may only end a group, and needs its tile axes for itself.
        along_reduced_axis: tells which reductions have lanes along an axis they reduce. The others need their last
            axis for itself.
        is_worthwhile: tells whether it pays that stages, of which one reads another, share this many loops; not asked
            for maps over the same space.
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
        joined = _join(groups[-1], stage, limit, is_worthwhile) if groups and not closed else None
        if joined is None:
            groups.append(Group((stage,)))
        else:
            groups[-1] = joined
        closed = contraction is not None
    return groups


def _join(
    current: Group, stage: AnyStage, limit: int, is_worthwhile: Callable[[Sequence[Stage], int], bool]
) -> Group | None:
    members = current.stages
    if not all(isinstance(s, Stage) for s in (*members, stage)):
        return None
    inputs = [load.source for member in members for load in member.reads()]
    outputs = written_by(members)
    if any(contains(inputs + outputs, buffer) for buffer in stage.writes()):
        return None
    related = any(contains(outputs, load.source) for load in stage.reads())
    if len(members) > 1:  # the number of shared loops is chosen, and may be 0
        limit = min(limit, current.prefix)
    limit = min(limit, *(len(member.space) for member in members))
    for prefix in range(limit, -1, -1):
        if _shares(members, stage, prefix):
            joined = Group((*members, stage), prefix)
            if is_pointwise(joined) or (related and is_worthwhile(joined.stages, prefix)):
                return joined
    return None


def is_pointwise(group: Group) -> bool:
    """Whether all stages of the group are maps over one common space."""
    return all(is_map(stage) and len(stage.space) == group.prefix for stage in group.stages)


def may_overwrite(groups: Sequence[Group], source: Buffer, output: Buffer) -> bool:
    """Whether each element of an input is last read before the same element of an output is written.

    Each element is read only where the same element of the output is computed.
    """
    readers = []
    for group in groups:
        parts = [part for stage in group.stages for part in (stage, *getattr(stage, "epilogues", ()))]
        reading = [part for part in parts if any(load.source.same_as(source) for load in _own_reads(part))]
        # In a pointwise group all stores come after all computations.
        if not (is_pointwise(group) and contains(written_by(group.stages), output)):
            readers += reading
    return all(isinstance(part, Stage) and is_map(part) and part.output.same_as(output) for part in readers)


def _own_reads(part: AnyStage) -> list[ir.TensorLoad]:
    return build.loads(part.value) if isinstance(part, Stage) else part.reads()


def private_outputs(group: Group, stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> list[Buffer]:
    """The intermediates that no stage outside the group reads."""
    others = [stage for stage in stages if not any(stage is member for member in group.stages)]
    outputs = [b for b in written_by(group.stages) if contains(temps, b)]
    return [b for b in outputs if not any(reads_of(stage, b) for stage in others)]


def shrink(group: Group, buffer: Buffer) -> tuple[Group, Buffer]:
    """Makes an intermediate private to one iteration of the group's common loops; returns the group and the buffer."""
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
    return any(is_aligned(producer, reader, load, prefix) for reader in readers)
