"""Reductions by many threads: accumulators in registers, exchanged within a warp and through shared memory.

An exchange combines a thread's accumulator with that of the thread whose number differs in one bit, so that all threads
end with the same total. Any combiner can be used, such as that of a maximum that keeps NaN, or of (index, value) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt
from tvm.tirx.op import tvm_warp_shuffle_xor

from tvmfun.lower.schedule.gpu.launch import WARP, barrier, registers, shared
from tvmfun.lower.schedule.stages import AnyStage, Block, Stage, contains, reads_of
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Env, Expr
from tvmfun.lower.tir.walk import find, rewrite

#: The dtypes in which narrow numbers are accumulated, and exchanged between threads.
_WIDE = {
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
    **dict.fromkeys(("bool", "int8", "int16"), "int32"),
    **dict.fromkeys(("uint8", "uint16"), "uint32"),
}


@dataclass(frozen=True, eq=False)
class ArgStage(Stage):
    """A reduction to the position of an extremum: ``value`` is compared, the output is its position.

    Args:
        position: the position of a term.
        first: the initial position.
        choose: the condition under which the left of two (position, value) pairs is kept.
    """

    position: Expr = None
    first: Expr = None
    choose: Any = None


def with_arg_stages(stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> list[AnyStage]:
    """Returns the stages with blocks that find the position of an extremum as :class:`ArgStage`."""
    result = []
    for stage in stages:
        others = [other for other in stages if other is not stage]
        found = _arg_stage(stage) if isinstance(stage, Block) and stage.init is not None else None
        if found is not None:
            value = next(buffer for buffer in stage.outputs if not buffer.same_as(found.output))
            unused = contains(temps, value) and not any(reads_of(other, value) for other in others)
            found = found if unused else None
        result.append(found or stage)
    return result


def _arg_stage(block: Block) -> Stage | None:
    """The stage of a block ``position, value = select(c, position, k), select(c, value, term)``."""
    chosen = {bind.var: bind.value for bind in find(block.body, tirx.Bind)}
    stores = find(block.body, BufferStore)
    firsts = {store.buffer: store.value for store in find(block.init, BufferStore)}
    if len(stores) != 2 or len(block.reduce) > 1:
        return None
    values = [chosen.get(store.value) if isinstance(store.value, ir.Var) else store.value for store in stores]
    if not all(isinstance(value, tirx.Select) for value in values):
        return None
    if not tvm_ffi.structural_equal(values[0].condition, values[1].condition):
        return None
    position, term = values[0].false_value, values[1].false_value
    totals = [store.buffer for store in stores]
    index = tuple(stores[0].indices)
    if not block.reduce:  # the only element
        return Stage(block.name, block.space, (), totals[0], index, position)
    condition = values[0].condition
    names = [ir.Var(name, v.ty) for name, v in zip(("i", "x", "j", "y"), (position, term) * 2, strict=True)]
    for buffer, name in zip(totals, names[:2], strict=True):
        condition = build.replace_loads(condition, buffer, lambda _, name=name: name)
    for part, name in ((term, names[3]), (position, names[2])):
        same = lambda node, part=part, name=name: name if tvm_ffi.structural_equal(node, part) else node
        condition = rewrite(condition, (type(part), same))
    if any(not any(var.same_as(name) for name in names) for var in build.variables(condition)):
        return None

    def choose(left: Sequence[Expr], right: Sequence[Expr]) -> Expr:
        return build.substitute(condition, dict(zip(names, (*left, *right), strict=True)))

    return ArgStage(
        block.name,
        block.space,
        block.reduce,
        totals[0],
        index,
        term,
        combine=tirx.Max,  # a reduction, though not by this alone
        init=firsts[totals[1]],
        position=position,
        first=firsts[totals[0]],
        choose=choose,
    )


class Reducer:
    """The accumulators of a reduction in a thread, and how threads combine theirs."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        value = str(stage.init.ty)
        dtypes = [stage.dtype, value] if isinstance(stage, ArgStage) else [stage.dtype]
        self.dtypes = [_WIDE.get(dtype, dtype) for dtype in dtypes]
        make = lambda name: [registers(1, dtype, name) for dtype in self.dtypes]
        self.totals, self.terms, self.others = make("total"), make("term"), make("other")

    def allocate(self) -> Stmt:
        """The declarations of the registers, with the accumulators cleared."""
        first = [self.stage.first] if isinstance(self.stage, ArgStage) else []
        inits = [build.cast(v, d) for v, d in zip((*first, self.stage.init), self.dtypes, strict=True)]
        buffers = map(AllocBuffer, (*self.totals, *self.terms, *self.others))
        return build.seq(*buffers, *(BufferStore(b, v, [0]) for b, v in zip(self.totals, inits, strict=True)))

    def add(self, value: Expr, env: Env) -> Stmt:
        """Combines the total with a term: ``value`` at the point ``env``."""
        values = [build.substitute(value, env)]
        if isinstance(self.stage, ArgStage):
            values.insert(0, build.substitute(self.stage.position, env))
        cast = [build.cast(v, dtype) for v, dtype in zip(values, self.dtypes, strict=True)]
        return build.seq(*self._store(self.terms, cast), self._join(self.terms))

    def _store(self, buffers: Sequence[Buffer], values: Sequence[Expr]) -> list[Stmt]:
        return [BufferStore(buffer, value, [0]) for buffer, value in zip(buffers, values, strict=True)]

    def _join(self, others: Sequence[Buffer]) -> Stmt:
        """Combines the totals with ``others``, which it may overwrite."""
        left, right = [b[0] for b in self.totals], [b[0] for b in others]
        if not isinstance(self.stage, ArgStage):
            return BufferStore(self.totals[0], self.stage.combine(left[0], right[0]), [0])
        # The condition reads all four: first the winner, then the totals.
        chosen = self.stage.choose(left, right)
        winners = [tirx.Select(chosen, a, b) for a, b in zip(left, right, strict=True)]
        final = [BufferStore(total, other[0], [0]) for total, other in zip(self.totals, others, strict=True)]
        position = registers(1, self.dtypes[0], "winner")
        return build.seq(
            AllocBuffer(position),
            BufferStore(position, winners[0], [0]),
            BufferStore(others[1], winners[1], [0]),
            BufferStore(others[0], position[0], [0]),
            *final,
        )

    def exchange(self, threads: int) -> Stmt:
        """Combines the totals of neighbouring threads of a warp, ``threads`` at a time; all get the result."""
        steps = []
        distance = threads // 2
        while distance:
            mask = tirx.const(0xFFFFFFFF, "uint32")
            swap = partial(tvm_warp_shuffle_xor, mask, lane_mask=distance, width=WARP, warp_size=WARP)
            steps += self._store(self.others, [swap(value=total[0]) for total in self.totals])
            steps.append(self._join(self.others))
            distance //= 2
        return build.seq(*steps) if steps else tirx.Evaluate(0)

    def exchange_block(self, thread: Expr, threads: int) -> Stmt:
        """Combines the totals of all threads of a block, at most 1024; all get the result."""
        if threads <= WARP:
            return self.exchange(threads)
        warps = threads // WARP
        slots = [shared([warps], dtype, "partial") for dtype in self.dtypes]
        pairs = list(zip(slots, self.totals, strict=True))
        first = tirx.EQ(tirx.indexmod(thread, WARP), 0)
        keep = build.seq(*(BufferStore(slot, total[0], [tirx.indexdiv(thread, WARP)]) for slot, total in pairs))
        read = [BufferStore(total, slot[tirx.indexmod(thread, warps)], [0]) for slot, total in pairs]
        return build.seq(
            *map(AllocBuffer, slots),
            self.exchange(WARP),
            IfThenElse(first, keep, None),
            barrier(),
            *read,
            self.exchange(warps),
            barrier(),  # before anything else is written to the same memory
        )

    def exchange_columns(self, column: Expr, row: Expr, columns: int, rows: int) -> Stmt:
        """Combines the totals of each column's threads, a power of two; threads of the first row get the result."""
        slots = [shared([rows, columns], dtype, "partial") for dtype in self.dtypes]
        pairs = list(zip(slots, self.totals, strict=True))
        stmts: list[Any] = [*map(AllocBuffer, slots)]
        half = rows // 2
        while half:
            keep = build.seq(*(BufferStore(slot, total[0], [row, column]) for slot, total in pairs))
            read = [
                BufferStore(o, slot[row + half, column], [0]) for (slot, _), o in zip(pairs, self.others, strict=True)
            ]
            stmts += [
                IfThenElse(tirx.all(row >= half, row < 2 * half), keep, None),
                barrier(),
                IfThenElse(row < half, build.seq(*read, self._join(self.others)), None),
                barrier(),
            ]
            half //= 2
        return build.seq(*stmts)

    def result(self) -> Expr:
        """The result in the dtype of the stage."""
        return build.cast(self.totals[0][0], self.stage.dtype)
