"""Maps: loops over independent elements, vectorized along the contiguous axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.core import dims
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.interleave import alternation, deinterleaved, interleaved, interleaving
from tvmfun.lower.schedule.cpu.lookups import with_lookups
from tvmfun.lower.schedule.cpu.next_rows import Fetch
from tvmfun.lower.schedule.cpu.transpose import (
    from_tile,
    in_tile,
    is_row_readable,
    ramp,
    read_row,
    tile_dtype,
    tile_lanes,
    transpose_in_memory,
    transpose_rows,
)
from tvmfun.lower.schedule.cpu.transpose import rows as registers
from tvmfun.lower.schedule.stages import Stage, fusable, indices_at, with_joined_axes
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume
from tvmfun.lower.tir.walk import find, rewrite

CHUNK = 64  # vectors per task along a long contiguous axis
_MOST_CUTS = 3  # each costs a loop nest
# The most bytes of a row whose parts are written one after the other, instead of one part of all rows after another.
_SHORT_ROW = 4 << 10


def emit_maps(
    stages: Sequence[Stage],
    env: Env,
    prefix: int,
    machine: Machine,
    tasks: int,
    private: Sequence[Buffer] = (),
    fetch: Fetch | None = None,
) -> Stmt:
    """The loop nest of maps over the same space, whose first ``prefix`` axes are bound in ``env``.

    No other stage reads the outputs in ``private``, so they stay in registers. ``fetch`` has the elements to prefetch
    with each vector.
    """
    lead = stages[0]
    axes = list(lead.space[prefix:])
    if not axes:
        return _point(stages, env, private)
    if len(stages) == 1:
        if found := interleaving(lead, axes, machine):
            inner = list(found.members[0].space[prefix:])
            nest = _emit_along(found.members, env, inner, machine, tasks, private, are_members=True)
            return build.seq(nest, found.rest and emit_maps([found.rest], env, prefix, machine, tasks))
        if turns := alternation(lead, axes):
            if dims.typical(volume(turns.outer)) < tasks:
                return build.seq(*(emit_maps([member], env, prefix, machine, tasks) for member in turns.members))
            of_member = lambda env: (_emit_along([m], env, turns.inner, machine, 1, private) for m in turns.members)
            return build.parallel_nest(turns.outer, env, lambda env: build.seq(*of_member(env)), tasks)
        pieces = _pieces(stages[0], axes[-1], machine)
        if pieces:
            return _emit_pieces(pieces, env, axes[:-1], prefix, machine, tasks, private)
        across = _transposed_load(stages[0], axes, machine)
        joined = with_joined_axes(lead, prefix) if across is None else lead
        if joined is not lead and _transposed_load(joined, joined.space[prefix:], machine) is not None:
            return emit_maps([joined], env, prefix, machine, tasks, private)
        if across is not None:
            tiles = _emit_transpose(stages[0], env, axes, across, machine, tasks)
            small = _too_small([across[1], axes[-1]], tile_lanes(str(across[0].ty), machine))
            if small is None:
                return tiles
            return IfThenElse(small, _emit_along(stages, env, axes, machine, tasks, private), tiles)
    return _emit_along(stages, env, axes, machine, tasks, private, fetch)


def _pieces(stage: Stage, last: Axis, machine: Machine) -> list[Stage]:
    """Cuts a map at the constants with which it compares the last index; no parts if it needs no cut.

    Where the cases of an ``if_then_else`` meet within a vector, as in a concatenation or between an array and its
    padding, each lane would be a branch. With several conditions even a branch per vector costs too much.
    """
    if not isinstance(last.extent, int) or stage.epilogues:
        return []
    conditions = [_conjuncts(node.args[0]) for node in find(stage.value, ir.Call) if build.is_choice(node)]
    bounds = [[bound for part in parts if (bound := _bound(part, last)) is not None] for parts in conditions]
    cuts = sorted({bound for found in bounds for bound in found if 0 < bound < last.extent})
    is_compound = any(found and len(parts) > 1 for found, parts in zip(bounds, conditions, strict=True))
    is_aligned = not any(cut % machine.lanes(stage.dtype) for cut in cuts)
    if not cuts or len(cuts) > _MOST_CUTS or (is_aligned and not is_compound):
        return []
    return [_piece(stage, last, *ends) for ends in pairwise([0, *cuts, last.extent])]


def _emit_pieces(
    pieces: Sequence[Stage],
    env: Env,
    outer: Sequence[Axis],
    prefix: int,
    machine: Machine,
    tasks: int,
    private: Sequence[Buffer],
) -> Stmt:
    """The loop nests of the parts of a map, or one nest over short rows, whose parts share cache lines."""
    last = sum(piece.space[-1].extent for piece in pieces)
    is_short = last * build.bits(pieces[0].dtype) <= 8 * _SHORT_ROW
    if not is_short or dims.typical(volume(outer)) < tasks:
        return build.seq(*(emit_maps([piece], env, prefix, machine, tasks, private) for piece in pieces))
    of_row = lambda env: (emit_maps([piece], env, prefix + len(outer), machine, 1, private) for piece in pieces)
    return build.parallel_nest(outer, env, lambda env: build.seq(*of_row(env)), tasks)


def _conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that must all hold."""
    is_both = isinstance(condition, tirx.And)
    return [*_conjuncts(condition.a), *_conjuncts(condition.b)] if is_both else [condition]


def _bound(condition: Expr, axis: Axis) -> int | None:
    """The constant where a comparison of an axis with it changes."""
    if isinstance(condition, tirx.LT) and condition.a.same_as(axis.var) and isinstance(condition.b, tirx.IntImm):
        return int(condition.b)
    if isinstance(condition, tirx.LE) and condition.b.same_as(axis.var) and isinstance(condition.a, tirx.IntImm):
        return int(condition.a)
    return None


def _piece(stage: Stage, last: Axis, start: int, end: int) -> Stage:
    """The part of a map for indices along the last axis from ``start`` to ``end``, in which choices are made."""

    def choose(value: Expr) -> Expr:
        if not build.is_choice(value):
            return value
        condition, yes, no = value.args
        left = []
        for part in _conjuncts(condition):
            bound = _bound(part, last)
            if bound is None or start < bound < end:
                left.append(part)
            elif isinstance(part, tirx.LT) == (bound <= start):
                return no
        return tirx.if_then_else(tirx.all(*left), yes, no) if left else yes

    axis = Axis.fresh(last, end - start)
    chosen = replace(stage, value=rewrite(stage.value, (ir.Call, choose)))
    return chosen.over((*stage.space[:-1], axis), {last.var: axis.var + start})


def _emit_along(
    stages: Sequence[Stage],
    env: Env,
    axes: list[Axis],
    machine: Machine,
    tasks: int,
    private: Sequence[Buffer],
    fetch: Fetch | None = None,
    are_members: bool = False,
) -> Stmt:
    """Vectors along the trailing axes over which all accesses are contiguous, interleaved if maps ``are_members``."""
    lanes = min(machine.lanes("int8" if stage.dtype == "bool" else stage.dtype) for stage in stages)
    count = fusable(stages, axes)
    outer, inner = axes[: len(axes) - count], axes[len(axes) - count :]
    vectors, tail = divmod(volume(inner), lanes)
    static = isinstance(vectors, int)
    chunks = Axis.fresh(inner[0], max(1, -(-vectors // CHUNK)) if static else vectors // CHUNK + 1)

    stages, lookups = with_lookups(stages, inner)

    def vector(env: Env, position: Expr, width: int) -> Stmt:
        def lane(k: Expr, make: Callable[[Env], Stmt]) -> Stmt:
            return make({**env, **indices_at(stages, inner, position + k, is_flat=True)})

        if are_members:
            return interleaved(stages, inner[0], width, lane)
        computed = _vector(stages, inner[0], width, lane, private)
        if fetch is None or width < lanes:
            return computed
        return build.seq(fetch.at({**env, **indices_at(stages, inner, position, is_flat=True)}), computed)

    def chunk(env: Env) -> Stmt:
        start = env[chunks.var] * CHUNK
        count = vectors if chunks.extent == 1 else build.minimum(CHUNK, vectors - start)
        loop = lambda count: build.loop(inner[0], count, lambda i: vector(env, (start + i) * lanes, lanes))
        if vectors == 0:
            body = None
        elif lanes == 1 and chunks.extent != 1 and static and vectors % CHUNK:
            # LLVM makes vectors of loops of a constant length only: see ``narrow_stores``.
            body = IfThenElse(env[chunks.var] == chunks.extent - 1, loop(vectors % CHUNK), loop(CHUNK))
        else:
            body = loop(count)
        rest = None
        if tail != 0:
            done = build.index(inner[0], vectors * lanes)
            single = lambda i: vector(env, done + i, 1)
            rest = vector(env, done, tail) if isinstance(tail, int) else build.loop(inner[0], tail, single)
        if rest is not None and chunks.extent != 1:
            rest = IfThenElse(env[chunks.var] == chunks.extent - 1, rest, None)
        found = (tirx.Bind(var, build.substitute(index, _aligned(of, stages[0], env))) for var, of, index in lookups)
        return build.seq(*found, body, rest)

    return build.parallel_nest([*outer, chunks], env, chunk, tasks)


def _transposed_load(stage: Stage, axes: Sequence[Axis], machine: Machine) -> tuple[Expr, Axis] | None:
    """The only load that is contiguous along another axis than the output's last, and that axis."""
    last = axes[-1]
    crosswise = [
        load
        for load in build.loads(stage.value)
        if build.stride(load.source, load.indices, last, stage.space) not in (0, 1)
    ]
    if len(crosswise) != 1 or len(axes) < 2:
        return None
    lanes = tile_lanes(str(crosswise[0].ty), machine)
    for axis in axes[:-1]:
        fits = all(dims.bounds(a.extent)[1] >= lanes for a in (axis, last))
        if fits and is_row_readable(crosswise[0], axis, stage.space):
            return crosswise[0], axis
    return None


def _too_small(axes: Sequence[Axis], lanes: int) -> Expr | None:
    """The condition that an axis is shorter than a tile; None if it never is."""
    tests = [build.index(a, a.extent) < lanes for a in axes if not dims.always_le(lanes, a.extent)]
    return tirx.any(*tests) if tests else None


def _emit_transpose(
    stage: Stage,
    env: Env,
    axes: Sequence[Axis],
    across: tuple[Expr, Axis],
    machine: Machine,
    tasks: int,
) -> Stmt:
    """Square tiles: read along one axis, transposed in registers, written along the other."""
    load, axis = across
    last = axes[-1]
    dtype = str(load.ty)
    lanes, kept = tile_lanes(dtype, machine), tile_dtype(dtype)
    others = [a for a in axes if a is not axis and a is not last]
    rows, columns = (Axis.fresh(a, build.ceil_div(a.extent, lanes)) for a in (axis, last))
    # A part of a row that is written at once is contiguous.
    is_moved = not stage.epilogues and tvm_ffi.structural_equal(stage.value, load)
    is_moved = is_moved and build.stride(stage.output, stage.index, last, stage.space) == 1

    def tile(env: Env) -> Stmt:
        # The last tiles overlap those before them, so that every tile is whole.
        top = build.minimum(env[rows.var] * lanes, axis.extent - lanes)
        left = build.minimum(env[columns.var] * lanes, last.extent - lanes)
        if is_moved and (
            moved := _transposed_in_memory(stage, {**env, axis.var: top, last.var: left}, load, axis, last, lanes)
        ):
            return moved
        turned = registers(lanes, kept, "turned")

        def read(row: int) -> Expr:
            return in_tile(read_row(load, {**env, axis.var: top, last.var: left + row}, lanes), dtype, lanes)

        def keep(row: int, vector: Expr) -> Stmt:
            return BufferStore(turned[row], vector, [ramp(tirx.const(0, "int32"), lanes)])

        def write(row: int) -> Stmt:
            def lane(k: Expr) -> Stmt:
                here = {**env, axis.var: top + row, last.var: left + k}
                # Not the loads of the same buffer at other indices, as in x + x.T.
                element = from_tile(turned[row][k], dtype)
                turn = lambda other: element if tvm_ffi.structural_equal(other, load) else other
                value = rewrite(stage.value, (ir.TensorLoad, turn))
                return stage.store(here, build.substitute(value, here))

            return build.vectorized(last, lanes, lane)

        turn = transpose_rows(read, keep, lanes, kept)
        return build.seq(*map(AllocBuffer, turned), turn, *map(write, range(lanes)))

    nest = [*others, rows, columns]
    if isinstance(rows.extent, int) and dims.typical(volume(others)) < tasks <= rows.extent:
        nest = [rows, *others, columns]  # tasks along one axis, without quotients
    return build.parallel_nest(nest, env, tile, tasks)


def _transposed_in_memory(
    stage: Stage, at: Env, load: ir.TensorLoad, axis: Axis, last: Axis, lanes: int
) -> Stmt | None:
    """The transpose of the tile that begins at ``at`` without any operation, if a micro-kernel can do it."""
    row = ir.Var("row", ir.PrimType("int32"))
    source = build.substitute(load, {**at, last.var: at[last.var] + row})
    result = stage.output[tuple(stage.at({**at, axis.var: at[axis.var] + row}))]
    return transpose_in_memory(source, result, row, lanes)


def _vector(
    stages: Sequence[Stage],
    like: Axis,
    width: int,
    lane: Callable[[Expr, Callable[[Env], Stmt]], Stmt],
    private: Sequence[Buffer],
) -> Stmt:
    """All stages on one vector: all results are computed into registers before the first store.

    Therefore outputs can be written over inputs. Results in ``private`` are not stored.
    """
    # TVM cannot keep a vector of bools in a register.
    buffers = [stage.output for stage in stages if str(stage.output.dtype) != "bool"] if len(stages) > 1 else []
    registers = {buffer: build.scratch([width], str(buffer.dtype), buffer.name) for buffer in buffers}
    read, element = deinterleaved(stages, width, lane)
    stmts = [*read, *map(AllocBuffer, registers.values())]
    for stage in stages:

        def store(k: Expr, stage: Stage = stage) -> Stmt:
            def make(env: Env) -> Stmt:
                own = _aligned(stage, stages[0], env)
                value = build.substitute(element(stage, k), own)
                for buffer, register in registers.items():
                    value = build.replace_loads(value, buffer, lambda _, register=register: register[k])
                if stage.output in registers:
                    return BufferStore(registers[stage.output], value, [k])
                return stage.store(own, value)

            return lane(k, make)

        stmts.append(build.vectorized(like, width, store))
    for stage in stages:
        if stage.output in registers and not any(stage.output.same_as(buffer) for buffer in private):

            def copy(k: Expr, stage: Stage = stage) -> Stmt:
                value = registers[stage.output][k]
                return lane(k, lambda env: stage.store(_aligned(stage, stages[0], env), value))

            stmts.append(build.vectorized(like, width, copy))
    return build.seq(*stmts)


def _point(stages: Sequence[Stage], env: Env, private: Sequence[Buffer]) -> Stmt:
    """All stages on one element, outside of any loop."""
    point = Axis(ir.Var("point", ir.PrimType("int32")), 1)
    return _vector(stages, point, 1, lambda _, make: make(env), private)


def _aligned(stage: Stage, lead: Stage, env: Env) -> Env:
    """The environment with the stage's own names for the axes of the leading stage."""
    own = zip(stage.space, lead.space, strict=True)
    return {**env, **{axis.var: env[mine.var] for axis, mine in own if mine.var in env}}
