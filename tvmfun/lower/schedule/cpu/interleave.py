"""Interleaved accesses of maps, in LLVM's sense: vectors that shuffles split and combine.

A map whose neighbouring results come from different formulas, such as a stack along a new last axis or the gradient of
``x[::2]``, is computed as one map for each of them, whose vectors are interleaved before they are stored. Loads at a
distance of a few elements are read as whole vectors, from which each map takes its elements. If formulas alternate
along other axes, as in the gradient of a strided convolution, each map stores its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx import AllocBuffer, Buffer, BufferStore, Stmt

from tvmfun.core import dims
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.transpose import from_tile, in_tile, ramp, shuffled, tile_dtype
from tvmfun.lower.schedule.stages import Stage, decided, fusable
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr
from tvmfun.lower.tir.walk import find, rewrite

# Calls a function with the indices of the lane of a number.
Lane = Callable[[Expr | int, Callable[[Env], Stmt]], Stmt]

# With more members, shuffles cost more than single elements.
_MOST_MEMBERS = 8
# With more, a transpose of two short axes takes longer by members; a repetition does not.
_MOST_MOVED = 6
# Loads of a member whose elements are read one by one. LLVM takes seconds to compile many of them, as of short sums.
_MOST_GATHERED = 6


class Interleaving(NamedTuple):
    """The maps of a map whose neighbouring results come from several formulas in turn.

    Args:
        members: one map per residue class of the result index; their axes are the same.
        rest: the map of the last results, of which there are fewer than members; None if there are none.
    """

    members: list[Stage]
    rest: Stage | None


def interleaving(stage: Stage, axes: Sequence[Axis], machine: Machine) -> Interleaving | None:
    """Splits a map into those that it interleaves along the last of its ``axes``; None if unknown or no gain.

    All conditions on the number of a result are decided in the members.
    """
    stage, axes = _with_short_axes(stage, axes)
    count = _factor(stage, axes)
    if count is None:
        return None
    last, rest = axes[-1], None
    if _is_short(axes):
        space, numbers = stage.space[:-1], [build.index(last, member) for member in range(count)]
    else:
        group = Axis.fresh(last, last.extent // count)
        space, numbers = (*stage.space[:-1], group), [group.var * count + member for member in range(count)]
        if last.extent % count:
            after = Axis.fresh(last, last.extent % count)
            first = last.extent - after.extent
            rest = _part(stage, (*stage.space[:-1], after), {last.var: after.var + first})
    members = [_part(stage, space, {last.var: number}) for number in numbers]
    if any(_is_undecided(member) for member in members):
        return None
    most_gathered = 0 if _is_one_formula(stage) else _MOST_GATHERED
    if _is_short(axes) and any(_gathered(member) > most_gathered for member in members):
        return None
    inner = space[len(space) - fusable(members, space[len(stage.space) - len(axes) :]) :]
    is_long = dims.typical(build.volume(inner)) >= machine.lanes("int8" if stage.dtype == "bool" else stage.dtype)
    return Interleaving(members, rest) if is_long else None


class Alternation(NamedTuple):
    """The maps of a map whose formulas alternate along axes before the last one.

    Args:
        members: one map per residue class of the result's indices; their axes are the same.
        outer: the loops around all members, up to the last axis along which they alternate.
        inner: the loops of each member.
    """

    members: list[Stage]
    outer: list[Axis]
    inner: list[Axis]


def alternation(stage: Stage, axes: Sequence[Axis]) -> Alternation | None:
    """Splits a map into those that alternate along some of its ``axes``; None if there are none, or too many.

    Conditions on the remainders of indices are decided in the members.
    """
    if stage.combine is not None or stage.epilogues:
        return None
    counts = {axis: count for axis in axes[:-1] if (count := _period(stage, axis))}
    if not counts or math.prod(counts.values()) > _MOST_MEMBERS:
        return None
    groups = {axis: Axis.fresh(axis, axis.extent // count) for axis, count in counts.items()}
    space = tuple(groups.get(axis, axis) for axis in stage.space)
    members = [
        _part(stage, space, {a.var: groups[a].var * counts[a] + i for a, i in zip(counts, numbers, strict=True)})
        for numbers in product(*map(range, counts.values()))
    ]
    own = space[len(space) - len(axes) :]
    split = 1 + max(own.index(group) for group in groups.values())
    return Alternation(members, list(own[:split]), list(own[split:]))


def _period(stage: Stage, axis: Axis) -> int | None:
    """The period of a map's choices along an axis, if it divides the axis."""
    if not isinstance(axis.extent, int) or axis.limit is not None:
        return None
    choices = (call for call in find(stage.value, ir.Call) if build.is_choice(call))
    found = {divisor for call in choices for divisor in build.divisors(call.args[0], axis.var)}
    count = found.pop() if len(found) == 1 else 1
    return count if 1 < count <= _MOST_MEMBERS and axis.extent % count == 0 else None


def _with_short_axes(stage: Stage, axes: Sequence[Axis]) -> tuple[Stage, Sequence[Axis]]:
    """The map with one axis for short ones at its end that no loop walks as one, as in a repetition of pairs."""
    if stage.combine is not None or stage.epilogues:
        return stage, axes
    count = 1 + fusable([stage], axes)
    short = axes[-count:]
    sizes = [axis.extent for axis in short]
    if count >= len(axes) or not all(isinstance(n, int) for n in sizes) or math.prod(sizes) > _MOST_MEMBERS:
        return stage, axes
    if not all(build.walks_as_one((stage.output, stage.index), *pair, stage.space) for pair in pairwise(short)):
        return stage, axes
    far = axes[-count - 1]
    if math.prod(sizes) > _MOST_MOVED and any(step >= math.prod(sizes) for step in _steps(stage, far)):
        return stage, axes
    joined = Axis.fresh(short[-1], math.prod(sizes))
    over = stage.over((*stage.space[:-count], joined), build.unflatten(short, joined.var))
    return over, [*axes[:-count], joined]


def _factor(stage: Stage, axes: Sequence[Axis]) -> int | None:
    """The number of formulas that may alternate along the last axis; None if there is one formula."""
    last = axes[-1]
    if stage.combine is not None or stage.epilogues or not isinstance(last.extent, int):
        return None
    if build.stride(stage.output, stage.index, last, stage.space) != 1:
        return None
    if _is_short(axes):
        is_dense = build.stride(stage.output, stage.index, axes[-2], stage.space) == last.extent
        return last.extent if is_dense and fusable([stage], axes) == 1 else None
    found = set(build.divisors(stage.value, last.var))
    return found.pop() if len(found) == 1 and 1 < max(found) <= _MOST_MEMBERS else None


def _is_short(axes: Sequence[Axis]) -> bool:
    """Whether the last axis itself numbers the members."""
    return len(axes) > 1 and axes[-1].extent <= _MOST_MEMBERS


def _is_one_formula(stage: Stage) -> bool:
    """Whether all results of a map have the same formula, so that members only make its vectors longer."""
    is_chosen = any(map(build.is_choice, find(stage.value, ir.Call)))
    return not is_chosen and not build.divisors(stage.value, stage.space[-1].var)


def _gathered(member: Stage) -> int:
    """The number of loads whose elements are too far apart for whole vectors: each element is a load of its own."""
    return sum(step > _MOST_MEMBERS for step in _steps(member, member.space[-1]))


def _steps(stage: Stage, axis: Axis) -> list[float]:
    """The distances of the elements that each load reads along an axis; infinite if they are not known."""
    loads = [load for load in build.loads(stage.value) if load.indices]
    steps = [build.stride(load.source, load.indices, axis, stage.space) for load in loads]
    return [step if isinstance(step, int) else math.inf for step in steps]


def _part(stage: Stage, space: tuple[Axis, ...], env: Env) -> Stage:
    """The map at these numbers of results, in which conditions on them are decided where that is possible."""
    analyzer = Analyzer()
    index = tuple(analyzer.simplify(build.substitute(at, env)) for at in stage.index)
    return replace(stage, space=space, index=index, value=decided(build.substitute(stage.value, env), space))


def _is_undecided(member: Stage) -> bool:
    """Whether a choice, or a quotient of the number of a result, is left in a map."""
    return any(map(build.is_choice, find(member.value, ir.Call))) or bool(
        build.divisors(member.value, member.space[-1].var)
    )


def interleaved(members: Sequence[Stage], like: Axis, width: int, lane: Lane) -> Stmt:
    """The statements that compute ``width`` results of each member, and store them in turn."""
    if width == 1:
        single = lambda stage: lane(0, lambda env: stage.store(env, build.substitute(stage.value, env)))
        return build.seq(*map(single, members))
    dtype, count = members[0].dtype, len(members)
    # TVM has no arithmetic on the bits of bfloat16.
    is_wide = dtype == "bfloat16" and not all(isinstance(stage.value, ir.TensorLoad) for stage in members)
    kept = "float32" if is_wide else tile_dtype(dtype)
    registers = [build.scratch([width], kept, "member") for _ in members]
    before, value = deinterleaved(members, width, lane)
    stmts: list[Stmt] = [*before, *map(AllocBuffer, registers)]
    for stage, register in zip(members, registers, strict=True):

        def compute(k: Expr, stage: Stage = stage, register: Buffer = register) -> Stmt:
            element = value(stage, k)
            element = build.cast(element, kept) if is_wide else in_tile(element, dtype)
            return lane(k, lambda env: BufferStore(register, build.substitute(element, env), [k]))

        stmts.append(build.vectorized(like, width, compute))
    vectors = [register[_whole(width)] for register in registers]
    for first in range(0, count * width, width):
        order = [number % count * width + number // count for number in range(first, first + width)]
        mixed = shuffled(vectors, order)
        mixed = tirx.Cast(f"{dtype}x{width}", mixed) if is_wide else from_tile(mixed, dtype, width)

        def store(env: Env, stage: Stage = members[first % count], mixed: Expr = mixed) -> Stmt:
            *outer, last = stage.at(env)
            return BufferStore(stage.output, mixed, [*outer, ramp(last, width)])

        stmts.append(lane(first // count, store))
    return build.seq(*stmts)


def deinterleaved(stages: Sequence[Stage], width: int, lane: Lane) -> tuple[list[Stmt], Callable[[Stage, Expr], Expr]]:
    """Reads the elements of maps that are a few elements apart as whole vectors.

    Returns:
        The statements that read, and a function of a map and a lane that returns the map's value, computed from
        the elements that were read instead of loads.
    """
    stmts: list[Stmt] = []
    known: list[tuple[ir.TensorLoad, Buffer]] = []
    for group in _groups(stages) if width > 1 else []:
        read, registers = group.read(width, lane)
        stmts += read
        known += registers

    def value(stage: Stage, k: Expr) -> Expr:
        names = _names(stage, stages[0])

        def of_load(load: ir.TensorLoad) -> Expr:
            named = build.substitute(load, names)
            for other, register in known:
                if tvm_ffi.structural_equal(other, named):
                    return from_tile(register[k], str(load.ty))
            return load

        return rewrite(stage.value, (ir.TensorLoad, of_load)) if known else stage.value

    return stmts, value


def _names(stage: Stage, lead: Stage) -> Env:
    """The axes of the leading stage instead of the stage's own."""
    if stage is lead:
        return {}
    return {axis.var: first.var for axis, first in zip(stage.space, lead.space, strict=True)}


@dataclass(frozen=True)
class _Group:
    """Loads from one array whose elements alternate, by their offset from the first."""

    step: int
    loads: dict[int, ir.TensorLoad]

    def read(self, width: int, lane: Lane) -> tuple[list[Stmt], list[tuple[ir.TensorLoad, Buffer]]]:
        """The statements that read the elements, and each load with the register of its elements."""
        first = self.loads[0]
        size = max(self.loads) + self.step * (width - 1) + 1
        # The last vector ends at the last element, since the array may end there.
        begins = [*range(0, size - width, width), size - width]
        dtype = str(first.ty)
        stmts: list[Stmt] = []
        whole = []

        def read(env: Env) -> Stmt:
            *outer, last = (build.substitute(index, env) for index in first.indices)
            for begin in begins:
                vector = in_tile(first.source[(*outer, ramp(last + begin, width))], dtype, width)
                whole.append(ir.Var("whole", vector.ty))
                stmts.append(tirx.Bind(whole[-1], vector))
            return stmts[-1]

        lane(0, read)
        registers = []
        for distance, load in self.loads.items():
            numbers = range(distance, distance + self.step * width, self.step)
            vector_of = lambda number: min(number // width, len(begins) - 1)
            order = [vector_of(number) * width + number - begins[vector_of(number)] for number in numbers]
            register = build.scratch([width], tile_dtype(dtype), load.source.name)
            stmts += [AllocBuffer(register), BufferStore(register, shuffled(whole, order), [_whole(width)])]
            registers.append((load, register))
        return stmts, registers


def _groups(stages: Sequence[Stage]) -> list[_Group]:
    """The groups of loads of maps over the same space, in terms of the axes of the first one."""
    last = stages[0].space[-1]
    found: list[tuple[int, dict[int, ir.TensorLoad]]] = []
    analyzer = Analyzer()
    for stage in stages:
        # Reads under a condition may be out of bounds without it.
        if any(map(build.is_choice, find(stage.value, ir.Call))):
            continue
        names = _names(stage, stages[0])
        for load in (build.substitute(load, names) for load in build.loads(stage.value)):
            step = build.stride(load.source, load.indices, last, stages[0].space) if load.indices else 0
            if not isinstance(step, int) or not 1 < step <= _MOST_MEMBERS:
                continue
            for other, loads in found:
                distance = _distance(loads[0], load, analyzer) if other == step else None
                if distance is not None and all(abs(distance - own) < step for own in loads):
                    loads[distance] = load
                    break
            else:
                found.append((step, {0: load}))
    return [_Group(step, {distance - min(loads): loads[distance] for distance in loads}) for step, loads in found]


def _distance(first: ir.TensorLoad, second: ir.TensorLoad, analyzer: Analyzer) -> int | None:
    """The distance of two loads from one array, in elements; None if it varies."""
    if not first.source.same_as(second.source):
        return None
    ends = (build.offset(load.source, load.indices) for load in (second, first))
    distance = analyzer.simplify(next(ends) - next(ends))
    return int(distance) if isinstance(distance, tirx.IntImm) else None


def _whole(width: int) -> Expr:
    return ramp(tirx.const(0, "int32"), width)
