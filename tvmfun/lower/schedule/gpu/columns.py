"""Reductions whose neighbouring threads have neighbouring outputs: column sums, windows, and short reductions."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import IfThenElse, Stmt

from tvmfun.lower.schedule.gpu.launch import WARP, block_count, launch, over_points
from tvmfun.lower.schedule.gpu.reducers import Reducer
from tvmfun.lower.schedule.stages import Stage
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Env, Expr, volume

#: The threads of a block that share a column.
_ROWS = 8
#: From this many terms on a column has several threads.
_LONG = 32


def emit_columns(stage: Stage) -> Stmt:
    """The launch of a reduction: a thread per output, or several if there are many terms."""
    outputs = volume(stage.space)
    if build.points(stage.reduce) < _LONG:
        return over_points(outputs, lambda point: _serial(stage, build.unflatten(stage.space, point)))

    def body(block: Expr, thread: Expr) -> Stmt:
        column, row = tirx.indexmod(thread, WARP), tirx.indexdiv(thread, WARP)
        point = block * WARP + column
        whole = isinstance(outputs, int) and outputs % WARP == 0
        last = build.index(stage.space[0], outputs) - 1 if stage.space else tirx.const(0, "int32")
        here = point if whole else tirx.max(tirx.min(point, last), 0)
        env = build.unflatten(stage.space, here)
        reducer = Reducer(stage)
        store = stage.store(env, reducer.result())
        mine = tirx.EQ(row, 0) if whole else tirx.all(tirx.EQ(row, 0), point < outputs)
        head, *rest = stage.reduce
        steps = build.ceil_div(head.extent, _ROWS)

        def step(i: Expr) -> Stmt:
            position = i * _ROWS + row
            bound = head.bound(env)
            add = build.nest(rest, {**env, head.var: position}, lambda env: reducer.add(stage.value, env))
            exact = isinstance(bound, int) and bound % _ROWS == 0
            return add if exact else IfThenElse(position < bound, add, None)

        return build.seq(
            reducer.allocate(),
            build.loop(head, steps, step),
            reducer.exchange_columns(column, row, WARP, _ROWS),
            IfThenElse(mine, store, None),
        )

    return launch(block_count(outputs, WARP), WARP * _ROWS, body)


def _serial(stage: Stage, env: Env) -> Stmt:
    reducer = Reducer(stage)
    add = build.nest(stage.reduce, env, lambda env: reducer.add(stage.value, env))
    return build.seq(reducer.allocate(), add, stage.store(env, reducer.result()))
