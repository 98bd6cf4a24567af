"""Reductions whose neighbouring threads have neighbouring outputs: column sums, windows, and short reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, BufferStore, IfThenElse, Stmt

from tvmfun.lower.schedule.gpu import vectors
from tvmfun.lower.schedule.gpu.launch import WARP, block_count, launch, over_points, registers
from tvmfun.lower.schedule.gpu.reducers import Reducer
from tvmfun.lower.schedule.stages import Stage
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume
from tvmfun.lower.tir.walk import rewrite

#: The threads of a block that share a column.
_ROWS = 8
#: The fewest terms for which a column has several threads.
_LONG = 32
#: The bytes of the narrowest array that a thread reads of a row, and the rows that it reads before it waits.
_BYTES = 8
_TOGETHER = 4


def lanes(stage: Stage) -> int:
    """The neighbouring columns of a thread: as many as 8 bytes of the narrowest array have."""
    if not stage.space or not all(isinstance(axis.extent, int) for axis in stage.domain):
        return 1
    last = stage.space[-1]
    found = vectors.row_loads(stage.value, last, stage.domain)
    sizes = [vectors.size_of(str(load.source.dtype)) for load in found]
    width = math.gcd(_BYTES // min(sizes, default=_BYTES), last.extent)
    return width if len(stage.reduce) == 1 and stage.reduce[0].limit is None else 1


def _distinct(loads: Sequence[ir.TensorLoad]) -> list[ir.TensorLoad]:
    found: list[ir.TensorLoad] = []
    for load in loads:
        if not any(tvm_ffi.structural_equal(load, other) for other in found):
            found.append(load)
    return found


def emit_columns(stage: Stage) -> Stmt:
    """The launch of a reduction: a thread per output, or several if there are many terms."""
    outputs = volume(stage.space)
    if build.points(stage.reduce) < _LONG:
        return over_points(outputs, lambda point: _serial(stage, build.unflatten(stage.space, point)))
    width = lanes(stage)
    if width > 1:
        return _in_vectors(stage, width)

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


def _in_vectors(stage: Stage, width: int) -> Stmt:
    """The launch of a reduction in which a thread has some neighbouring columns, and reads some rows at a time."""
    (head,), last = stage.reduce, stage.space[-1]
    count = volume(stage.space) // width
    coarse = Axis.fresh(last, last.extent // width)
    reads = _distinct(vectors.row_loads(stage.value, last, stage.domain))
    certain = vectors.certain_loads(stage.value, stage.domain)
    of_rows = _distinct([load for load in certain if not build.uses(load, last.var)])

    def body(block: Expr, thread: Expr) -> Stmt:
        column, row = tirx.indexmod(thread, WARP), tirx.indexdiv(thread, WARP)
        point = block * WARP + column
        whole = count % WARP == 0
        found = build.unflatten([*stage.space[:-1], coarse], point if whole else tirx.min(point, count - 1))
        at = lambda k: {**found, last.var: found[coarse.var] * width + k}
        reducers = [Reducer(stage) for _ in range(width)]
        mine = tirx.EQ(row, 0) if whole else tirx.all(tirx.EQ(row, 0), point < count)

        def steps(numbers: Sequence[Expr], is_inside: bool = True) -> Stmt:
            """Adds the terms of some rows, which are all read first."""
            before, after = [], []
            for number in numbers:
                position = number * _ROWS + row
                copies = [(load, registers(width, str(load.ty), "x")) for load in reads]
                values = [(load, registers(1, str(load.ty), "of_row")) for load in of_rows]
                here = lambda k, position=position: {**at(k), head.var: position}
                for load, vector in copies:
                    make = lambda k, load=load, vector=vector, here=here: BufferStore(
                        vector, build.substitute(load, here(k)), [k]
                    )
                    before += [AllocBuffer(vector), vectors.copied(last, width, str(vector.dtype), make)]
                before += [AllocBuffer(value) for _, value in values]
                after += [BufferStore(value, build.substitute(load, here(0)), [0]) for load, value in values]
                for k, reducer in enumerate(reducers):

                    def of_vector(load: ir.TensorLoad, copies=copies, values=values, k=k) -> Expr:
                        known = [
                            *((other, copy[k]) for other, copy in copies),
                            *((other, one[0]) for other, one in values),
                        ]
                        same = (register for other, register in known if tvm_ffi.structural_equal(other, load))
                        return next(same, load)

                    after.append(reducer.add(rewrite(stage.value, (ir.TensorLoad, of_vector)), here(k)))
            stmt = build.seq(*before, *after)
            return stmt if is_inside else IfThenElse(numbers[0] * _ROWS + row < head.extent, stmt, None)

        several = head.extent // (_ROWS * _TOGETHER)
        first, end = several * _TOGETHER, build.ceil_div(head.extent, _ROWS)
        loop = build.loop(head, several, lambda i: steps([i * _TOGETHER + j for j in range(_TOGETHER)]))
        is_exact = head.extent % _ROWS == 0
        rest = [steps([build.index(head, number)], is_exact) for number in range(first, end)]
        return build.seq(
            *(reducer.allocate() for reducer in reducers),
            *([loop] if several else []),
            *rest,
            *(reducer.exchange_columns(column, row, WARP, _ROWS) for reducer in reducers),
            IfThenElse(mine, build.seq(*(stage.store(at(k), one.result()) for k, one in enumerate(reducers))), None),
        )

    return launch(block_count(count, WARP), WARP * _ROWS, body)


def _serial(stage: Stage, env: Env) -> Stmt:
    reducer = Reducer(stage)
    add = build.nest(stage.reduce, env, lambda env: reducer.add(stage.value, env))
    return build.seq(reducer.allocate(), add, stage.store(env, reducer.result()))
