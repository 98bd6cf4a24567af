"""Transposes: tiles that are read along one axis and written along another, by way of shared memory.

Rows of a tile have one unused element, so that the threads that read a column use different banks.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, BufferStore, IfThenElse, Stmt

from tvmfun.core import dims
from tvmfun.lower.schedule.gpu.launch import barrier, launch, shared
from tvmfun.lower.schedule.stage_passes import unconditional_loads
from tvmfun.lower.schedule.stages import Stage
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume
from tvmfun.lower.tir.walk import rewrite

_TILE = 32
_ROWS = 8
_MOST_TILES = 3


def crosswise_loads(stage: Stage) -> tuple[Axis, list[ir.TensorLoad]] | None:
    """The loads of a map that are contiguous along an axis other than its last, and that axis; None without any."""
    if len(stage.space) < 2 or not _is_long(stage.space[-1]):
        return None
    last = stage.space[-1]
    for axis in stage.space[:-1]:
        found: list[ir.TensorLoad] = []
        for load in unconditional_loads(stage.value):
            step = build.stride(load.source, load.indices, axis, stage.space)
            across = build.stride(load.source, load.indices, last, stage.space)
            known = any(tvm_ffi.structural_equal(load, other) for other in found)
            if step == 1 and across not in (0, 1) and not known:
                found.append(load)
        if found and _is_long(axis):
            return axis, found[:_MOST_TILES]
    return None


def _is_long(axis: Axis) -> bool:
    return dims.typical(axis.extent) >= _TILE // 2


def emit_transpose(stage: Stage, across: tuple[Axis, list[ir.TensorLoad]]) -> Stmt:
    """The launch of a map with such loads."""
    axis, loads = across
    last = stage.space[-1]
    others = [a for a in stage.space if a is not axis and a is not last]
    tops, lefts = (Axis.fresh(a, build.ceil_div(a.extent, _TILE)) for a in (axis, last))
    grid = [*others, tops, lefts]

    def body(block: Expr, thread: Expr) -> Stmt:
        env = build.unflatten(grid, block)
        x, y = tirx.indexmod(thread, _TILE), tirx.indexdiv(thread, _TILE)
        tiles = [shared([_TILE, _TILE + 1], str(load.ty), "tile") for load in loads]

        def within(place: Env, stmt: Stmt) -> Stmt:
            exact = lambda a: isinstance(a.extent, int) and a.extent % _TILE == 0
            tests = [place[a.var] < a.extent for a in (axis, last) if not exact(a)]
            return IfThenElse(tirx.all(*tests), stmt, None) if tests else stmt

        def at(row: Expr, column: Expr) -> Env:
            """The point of the map at a row, along ``axis``, and a column of the tile."""
            return {**env, axis.var: env[tops.var] * _TILE + row, last.var: env[lefts.var] * _TILE + column}

        def read(i: Expr) -> Stmt:
            column = i * _ROWS + y
            place = at(x, column)
            pairs = zip(tiles, loads, strict=True)
            return within(
                place, build.seq(*(BufferStore(t, build.substitute(load, place), [column, x]) for t, load in pairs))
            )

        def write(i: Expr) -> Stmt:
            row = i * _ROWS + y
            place = at(row, x)

            def turned(load: ir.TensorLoad) -> Expr:
                for tile, other in zip(tiles, loads, strict=True):
                    if tvm_ffi.structural_equal(load, other):
                        return tile[x, row]
                return load

            value = build.substitute(rewrite(stage.value, (ir.TensorLoad, turned)), place)
            return within(place, stage.store(place, value))

        steps = _TILE // _ROWS
        return build.seq(
            *map(AllocBuffer, tiles),
            build.unrolled(last, steps, read),
            barrier(),
            build.unrolled(last, steps, write),
        )

    return launch(volume(grid), _TILE * _ROWS, body)
