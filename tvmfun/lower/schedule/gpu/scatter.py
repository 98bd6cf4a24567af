"""Updates of an array at computed indices, in parallel over rows and columns.

Updates of the same element are combined in their order, so that a result does not change from run to run. A block of
threads takes one row of the array, or, if there are fewer updates than rows, the row that one update goes to, and a
strip of its columns. Its threads compare the targets of the updates with that row, one each, and combine those that
match in order. If several updates target one row, the block of the first combines them all. So there is no atomic
operation, no sort, and no memory for intermediates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt
from tvm.tirx.op import tvm_warp_shuffle_xor

from tvmfun.core import dims, expressions
from tvmfun.lower.schedule.gpu.launch import WARP, barrier, launch, registers, shared
from tvmfun.lower.schedule.stages import Block
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume
from tvmfun.lower.tir.walk import find

_THREADS = 256
_WARPS = _THREADS // WARP
_NOWHERE = -1


@dataclass(frozen=True)
class Updates:
    """A block ``if inside: result[target] = combine(result[target], new)``, in order along its reduced axes.

    Args:
        block: the block.
        batch: the independent axes that the target's first part depends on.
        columns: the other independent axes, each of them an index of the target.
        inside: the condition; None if there is none.
        store: the store.
    """

    block: Block
    batch: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    inside: Expr | None
    store: BufferStore

    def target(self) -> Expr:
        """The offset of the first column of the target."""
        return self.start_of(self.store.indices)

    def start_of(self, indices: Sequence[Expr]) -> Expr:
        """The offset of the first column of a row."""
        start = {axis.var: build.index(axis, 0) for axis in self.columns}
        return build.substitute(build.offset(self.store.buffer, indices), start)

    def rows(self) -> list[Axis]:
        """An axis for each dimension of the array whose index is computed."""
        known = [axis.var for axis in self.block.space]
        return [
            Axis.fresh(self.block.reduce[0], expressions.to_size(size))
            for size, index in zip(self.store.buffer.shape, self.store.indices, strict=True)
            if not any(index.same_as(var) for var in known)
        ]

    def at_row(self, rows: Sequence[Axis]) -> list[Expr]:
        """The indices of the store with ``rows`` for those that are computed."""
        known = [axis.var for axis in self.block.space]
        computed = iter(rows)
        is_known = lambda index: any(index.same_as(var) for var in known)
        return [index if is_known(index) else next(computed).var for index in self.store.indices]


def match_updates(block: Block) -> Updates | None:
    """The updates that a block makes, if it is of that form."""
    if block.init is not None or not block.reduce or block.private:
        return None
    body, inside = block.body, None
    if isinstance(body, IfThenElse) and body.else_case is None:
        body, inside = body.then_case, body.condition
    if not isinstance(body, BufferStore) or any(axis.limit is not None for axis in block.reduce):
        return None
    own = [load for load in build.loads(body.value) if load.source.same_as(body.buffer)]
    if any(not _same(load.indices, body.indices) for load in own):
        return None
    moved = lambda axis: [index for index in body.indices if build.uses(index, axis.var)]
    columns = tuple(
        axis
        for axis in block.space
        if len(moved(axis)) == 1
        and moved(axis)[0].same_as(axis.var)
        and not (inside is not None and build.uses(inside, axis.var))
        and not any(build.uses(load, axis.var) for index in body.indices for load in build.loads(index))
    )
    batch = tuple(axis for axis in block.space if not any(axis is column for column in columns))
    if any(find(index, ir.TensorLoad) and str(index.ty) not in ("int32", "int64") for index in body.indices):
        return None
    return Updates(block, batch, columns, inside, body)


def _same(left, right) -> bool:
    return len(left) == len(right) and all(tvm_ffi.structural_equal(a, b) for a, b in zip(left, right, strict=True))


def emit_updates(updates: Updates) -> Stmt:
    """The launch: a block of threads for each update and strip of columns."""
    order = updates.block.reduce
    count = volume(order)
    width = volume(updates.columns)
    strips = build.ceil_div(width, _THREADS)
    number, strip = Axis.fresh(order[0], count), Axis.fresh(order[0], strips)
    rows = updates.rows()
    by_row = dims.typical(volume(rows)) <= dims.typical(count)
    grid = [*updates.batch, *(rows if by_row else [number]), strip]
    wide = str(updates.target().ty)

    def body(block: Expr, thread: Expr) -> Stmt:
        env = build.unflatten(grid, block)
        mine = build.index(number, 0) if by_row else env[number.var]
        targets = registers(1, wide, "target")
        other = registers(1, wide, "other")
        matches = registers(1, "int32", "matches")
        received = registers(1, "int32", "received")
        flag, some = registers(1, "int32", "flag"), registers(1, "int32", "some")
        total = registers(1, str(updates.store.buffer.dtype), "total")
        flags = shared([_THREADS], "int32", "flags")
        any_of_warp = shared([_WARPS], "int32", "any")
        earlier = shared([1], "int32", "earlier")
        column = env[strip.var] * _THREADS + thread
        is_column = None if isinstance(width, int) and width % _THREADS == 0 else column < width

        def at(update: Expr) -> Env:
            columns = build.unflatten(updates.columns, column) if updates.columns else {}
            return {**env, **columns, **build.unflatten(order, update)}

        def find_target(update: Expr, into) -> Stmt:
            place = {**env, **build.unflatten(order, update)}
            value = build.substitute(updates.target(), place)
            store = BufferStore(into, value, [0])
            if updates.inside is None:
                return store
            nowhere = BufferStore(into, tirx.const(_NOWHERE, wide), [0])
            return IfThenElse(build.substitute(updates.inside, place), store, nowhere)

        def compare(update: Expr) -> Stmt:
            """Sets ``matches`` to whether an update has the target of this block."""
            test = build.cast(tirx.EQ(other[0], targets[0]), "int32")
            found = build.seq(find_target(update, other), BufferStore(matches, test, [0]))
            return build.seq(BufferStore(matches, tirx.const(0, "int32"), [0]), IfThenElse(update < count, found, None))

        def gather_flags() -> list[Stmt]:
            """Tells all threads which of them have a match, and which warps have any."""
            steps: list[Stmt] = [BufferStore(flags, matches[0], [thread])]
            distance = WARP // 2
            mask = tirx.const(0xFFFFFFFF, "uint32")
            while distance:
                swapped = tvm_warp_shuffle_xor(mask, matches[0], distance, WARP, WARP)
                steps.append(BufferStore(received, swapped, [0]))
                steps.append(BufferStore(matches, tirx.max(matches[0], received[0]), [0]))
                distance //= 2
            first = tirx.EQ(tirx.indexmod(thread, WARP), 0)
            keep = BufferStore(any_of_warp, matches[0], [tirx.indexdiv(thread, WARP)])
            return [*steps, IfThenElse(first, keep, None)]

        def earlier_ones(i: Expr) -> Stmt:
            update = i * _THREADS + thread
            found = tirx.all(tirx.EQ(matches[0], 1), update < mine)
            mark = IfThenElse(found, BufferStore(earlier, tirx.const(1, "int32"), [0]), None)
            return build.seq(compare(update), mark)

        def combine(update: Expr) -> Stmt:
            place = at(update)
            value = build.replace_loads(updates.store.value, updates.store.buffer, lambda _: total[0])
            stmt: Stmt = BufferStore(total, build.substitute(value, place), [0])
            return stmt if is_column is None else IfThenElse(is_column, stmt, None)

        def later_ones(i: Expr) -> Stmt:
            start = (build.index(number, 0) + tirx.indexdiv(mine, _THREADS) + i) * _THREADS
            lane = lambda w, k: w * WARP + k
            of_warp = lambda w: build.loop(
                number,
                WARP,
                lambda k: when(flag, flags[lane(w, k)], 1, combine(start + lane(w, k))),
            )
            all_warps = build.loop(number, _WARPS, lambda w: when(some, any_of_warp[w], 1, of_warp(w)))
            return build.seq(compare(start + thread), *gather_flags(), barrier(), all_warps, barrier())

        buffer = updates.store.buffer
        own = at(mine)
        indices = [
            build.substitute(index, own) for index in (updates.at_row(rows) if by_row else updates.store.indices)
        ]
        begin: Stmt = BufferStore(total, buffer[tuple(indices)], [0])
        end: Stmt = BufferStore(buffer, total[0], indices)
        if is_column is not None:
            begin, end = IfThenElse(is_column, begin, None), IfThenElse(is_column, end, None)
        tiles = build.ceil_div(count, _THREADS)
        combined = lambda tiles: build.seq(begin, build.loop(number, tiles, later_ones), end)
        allocated = list(map(AllocBuffer, (targets, other, matches, received, flag, some, total, flags, any_of_warp)))
        if by_row:
            target = BufferStore(targets, build.substitute(updates.start_of(updates.at_row(rows)), own), [0])
            return build.seq(*allocated, target, combined(tiles))
        before = tirx.indexdiv(mine, _THREADS) + 1
        after = build.index(number, tiles) - tirx.indexdiv(mine, _THREADS)
        is_valid = tirx.const(True) if updates.inside is None else build.substitute(updates.inside, own)
        return build.seq(
            *allocated,
            AllocBuffer(earlier),
            find_target(mine, targets),
            IfThenElse(tirx.EQ(thread, 0), BufferStore(earlier, tirx.const(0, "int32"), [0]), None),
            barrier(),
            build.loop(number, before, earlier_ones),
            barrier(),
            when(flag, build.cast(tirx.all(tirx.EQ(earlier[0], 0), is_valid), "int32"), 1, combined(after)),
        )

    return launch(volume(grid), _THREADS, body)


def when(register: Buffer, value: Expr, expected: int, stmt: Stmt) -> Stmt:
    """A branch on a value in shared memory, by way of a register: TVM refuses such loads in conditions."""
    return build.seq(BufferStore(register, value, [0]), IfThenElse(tirx.EQ(register[0], expected), stmt, None))
