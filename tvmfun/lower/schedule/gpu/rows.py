"""Rows: stages that reduce rows, or compute each row from reduced ones, in one launch with a team of threads per row.

A team is a warp or a part of one, and several rows share a block; or it is a whole block, if rows are long. Thread
``t`` of ``n`` has elements ``t, t + n, ...`` of a row. Results of reductions are in a register of every thread, and so
are the elements of intermediates and of inputs that several stages read, unless rows are long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, ForKind, IfThenElse, Stmt

from tvmfun.core import dims
from tvmfun.lower.schedule.gpu.launch import THREADS, WARP, block_count, launch, registers
from tvmfun.lower.schedule.gpu.reducers import Reducer
from tvmfun.lower.schedule.groups import Group
from tvmfun.lower.schedule.stage_passes import inline_into, unconditional_loads
from tvmfun.lower.schedule.stages import Stage, contains, is_map, reads_of, same_extents
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, Size, volume
from tvmfun.lower.tir.walk import called, find, rewrite

#: The most elements of an array that a thread keeps in registers, and the most arrays of which it keeps some.
_MOST_KEPT = 16
_MOST_ARRAYS = 4
#: The longest rows for a warp; longer ones get a block.
_LONG = 1024
# Elements of a long row that a thread reads before it waits for memory.
_TOGETHER = 4
_MOST_THREADS = 1024


def emit_rows(group: Group, private: Sequence[Buffer]) -> Stmt | None:
    """The launch of a group whose shared axes are the rows; None if a stage reads elements of other threads."""
    rows = _Rows(group, private)
    return rows.emit() if rows.is_possible() else None


def team_size(rows: Size, length: Size) -> int:
    """The threads for a row: about four elements each, a warp at most for rows up to a thousand elements."""
    if isinstance(length, dims.Dim):
        return THREADS
    if length > _LONG:
        threads = 128
        while threads < _MOST_THREADS and threads * 16 < length:
            threads *= 2
        return threads
    items = 4 if dims.typical(rows) * length >= 1 << 18 else 1
    threads = 1
    while threads < WARP and threads * items < length:
        threads *= 2
    if dims.typical(rows) <= 128 and length > 4 * WARP:  # few rows: a block each
        return 128
    return threads


def is_device_function(call: ir.Call) -> bool:
    """Whether a call is one of CUDA C++, such as that of random bits."""
    return called(call) == "tirx.cuda.func_call"


class _Rows:
    """The launch of one group."""

    def __init__(self, group: Group, private: Sequence[Buffer]) -> None:
        self.prefix = group.prefix
        self.private = private
        self.axes = group.stages[0].space[: self.prefix]
        self.stages = list(group.stages)
        self.rows = volume(self.axes)
        lengths = [volume(self.rest(stage)) for stage in self.stages]
        dynamic = [length for length in lengths if isinstance(length, dims.Dim)]
        self.team = team_size(self.rows, dynamic[0] if dynamic else max(lengths))
        self.per_block = max(1, THREADS // self.team) if self.team <= WARP else 1
        if isinstance(self.rows, int):
            while self.per_block > 1 and self.per_block * self.team > WARP and self.rows <= self.per_block // 2:
                self.per_block //= 2
        self.stages = self._recomputed(self.stages)
        self.known: dict[Buffer, Buffer] = {}  # buffers whose elements the threads that need them have in registers

    def rest(self, stage: Stage) -> list[Axis]:
        """The axes of a stage within a row."""
        return [*stage.space[self.prefix :], *stage.reduce]

    def _recomputed(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages without private maps that registers cannot hold: their readers compute them again.

        Storing them would write and read the row once more, which the readers find in a cache.
        """
        result: list[Stage] = []
        stages = list(stages)
        for i in range(len(stages)):
            stage = stages[i]
            is_private = contains(self.private, stage.output) and is_map(stage) and bool(self.rest(stage))
            if is_private and not self.fits(stage) and not any(map(is_device_function, find(stage.value, ir.Call))):
                stages = [*stages[: i + 1], *(inline_into(other, stage) for other in stages[i + 1 :])]
            else:
                result.append(stage)
        return result

    # -- what is kept in registers -----------------------------------------------------------------------------

    def is_possible(self) -> bool:
        """Whether each element that a stage reads of another stage's output is of the row, or of the same thread."""
        for stage in self.stages:
            if stage.combine is not None and len(stage.space) != self.prefix:
                return False
            for load in stage.reads():
                producer = next((s for s in self.stages if s is not stage and s.output.same_as(load.source)), None)
                has_elements = producer is not None and is_map(producer) and self.rest(producer)
                if has_elements and not self._is_in_step(producer, stage, load):
                    return False
        return True

    def _is_in_step(self, producer: Stage, stage: Stage, load: ir.TensorLoad) -> bool:
        mine, theirs = self.rest(stage), self.rest(producer)
        if not same_extents(mine, theirs):
            return False
        names = [axis.var for axis in (*stage.space[: self.prefix], *mine)]
        at = dict(zip((axis.var for axis in producer.space), names, strict=True))
        expected = [build.substitute(index, at) for index in producer.index]
        return all(tvm_ffi.structural_equal(a, b) for a, b in zip(expected, load.indices, strict=True))

    def steps(self, stage: Stage) -> Size:
        """The elements of a row that a thread has."""
        return build.ceil_div(volume(self.rest(stage)), self.team)

    def fits(self, stage: Stage) -> bool:
        """Whether registers can hold a thread's elements."""
        steps = self.steps(stage)
        return isinstance(steps, int) and steps <= _MOST_KEPT

    def with_kept_inputs(self) -> list[Stage]:
        """The stages, preceded by copies to registers of inputs that several read at the same elements."""
        written = [buffer for stage in self.stages for buffer in stage.writes()]
        uses: list[tuple[Stage, ir.TensorLoad, list[int]]] = []
        for number, stage in enumerate(self.stages):
            if not self.rest(stage) or not self.fits(stage):
                continue
            for load in unconditional_loads(stage.value):
                if contains(written, load.source) or not any(build.uses(load, a.var) for a in self.rest(stage)):
                    continue
                for first, other, numbers in uses:
                    same = same_extents(self.rest(first), self.rest(stage)) and tvm_ffi.structural_equal(
                        self._renamed(load, stage, first), other
                    )
                    if same:
                        numbers.append(number)
                        break
                else:
                    uses.append((stage, load, [number]))
        shared = [use for use in uses if len(set(use[2])) > 1][:_MOST_ARRAYS]
        stages = list(self.stages)
        copies: list[Stage] = []
        for stage, load, _ in shared:
            axes = [Axis.fresh(axis, axis.extent) for axis in (*stage.space[: self.prefix], *self.rest(stage))]
            names = [axis.var for axis in (*stage.space[: self.prefix], *self.rest(stage))]
            value = build.substitute(load, {a: b.var for a, b in zip(names, axes, strict=True)})
            buffer = build.buffer([axis.extent for axis in axes], str(load.ty), "x")
            copy = Stage("x", tuple(axes), (), buffer, tuple(axis.var for axis in axes), value)
            copies.append(copy)
            stages = [self._reading(other, copy) for other in stages]
        self.private = [*self.private, *(copy.output for copy in copies)]
        return [*copies, *stages]

    def _renamed(self, value: Expr, stage: Stage, like: Stage) -> Expr:
        theirs = (*stage.space[: self.prefix], *self.rest(stage))
        mine = (*like.space[: self.prefix], *self.rest(like))
        return build.substitute(value, {a.var: b.var for a, b in zip(theirs, mine, strict=True)})

    def _reading(self, stage: Stage, copy: Stage) -> Stage:
        """The stage with loads of a copy instead of what it copies."""
        if not same_extents(self.rest(stage), self.rest(copy)) or not self.rest(stage):
            return stage
        names = tuple(axis.var for axis in (*stage.space[: self.prefix], *self.rest(stage)))
        same = lambda load: (
            copy.output[names] if tvm_ffi.structural_equal(self._renamed(load, stage, copy), copy.value) else load
        )
        return replace(stage, value=rewrite(stage.value, (ir.TensorLoad, same)))

    # -- loops -------------------------------------------------------------------------------------------------

    def emit(self) -> Stmt:
        """The launch."""
        stages = self.with_kept_inputs()

        def body(block: Expr, thread: Expr) -> Stmt:
            row, lane = block, thread
            if self.per_block > 1:
                row = block * self.per_block + tirx.indexdiv(thread, self.team)
                lane = tirx.indexmod(thread, self.team)
            whole = isinstance(self.rows, int) and (self.rows % self.per_block == 0 or self.rows == 1)
            # Rows past the end are computed again, because all threads of a warp take part in an exchange.
            last = self.rows - 1 if isinstance(self.rows, int) else build.index(self.axes[0], self.rows) - 1
            here = row if whole else tirx.max(tirx.min(row, last), 0)
            env = build.unflatten(self.axes, here) if self.axes else {}
            exists = None if whole and self.per_block * self._blocks() == self.rows else row < self.rows
            return build.seq(*(self.stages_of(run, env, thread, lane, exists) for run in self._runs(stages)))

        return launch(self._blocks(), self.team * self.per_block, body)

    def _blocks(self) -> Size:
        return block_count(self.rows, self.per_block)

    def _runs(self, stages: Sequence[Stage]) -> list[list[Stage]]:
        """The stages, with neighbours in one list that share a loop: maps whose elements registers cannot hold."""
        runs: list[list[Stage]] = []
        for stage in stages:
            shares = is_map(stage) and self.rest(stage) and not self.fits(stage)
            last = runs[-1][0] if runs else None
            if shares and last is not None and is_map(last) and same_extents(self.rest(last), self.rest(stage)):
                runs[-1].append(stage)
            else:
                runs.append([stage])
        return runs

    def stages_of(self, run: Sequence[Stage], env: Env, thread: Expr, lane: Expr, exists: Expr | None) -> Stmt:
        """The statements of stages, for the row in ``env``."""
        if len(run) == 1:
            return self.stage(run[0], env, thread, lane, exists)
        self.known.update((stage.output, registers(1, stage.dtype, stage.name)) for stage in run)
        later = [stage for stage in self.stages if not any(stage is member for member in run)]

        def element(here: Env, i: Expr) -> Stmt:
            stmts = []
            for stage in run:
                own = self._own(stage, run[0], here)
                register = self.known[stage.output]
                stmts.append(BufferStore(register, build.substitute(self._value(stage, i), own), [0]))
                if not contains(self.private, stage.output) or any(reads_of(other, stage.output) for other in later):
                    store = BufferStore(stage.output, register[0], stage.at(own))
                    stmts.append(store if exists is None else IfThenElse(exists, store, None))
            return build.seq(*stmts)

        lead = self._own(run[0], None, env)
        loop = self._over_elements(run[0], lead, lane, element)
        held = [self.known.pop(stage.output) for stage in run]
        return build.seq(*map(AllocBuffer, held), loop)

    def _own(self, stage: Stage, like: Stage | None, env: Env) -> Env:
        """The values of a stage's axes, from those of another one, or for the rows from those of the launch."""
        if like is None:
            return {axis.var: env[lead.var] for axis, lead in zip(stage.space[: self.prefix], self.axes, strict=True)}
        return {axis.var: env[mine.var] for axis, mine in zip(stage.space, like.space, strict=True)}

    def stage(self, stage: Stage, env: Env, thread: Expr, lane: Expr, exists: Expr | None) -> Stmt:
        """The statements of one stage, for the row in ``env``."""
        own = self._own(stage, None, env)
        if not self.rest(stage):
            return self._scalars([stage], own, None, lane, exists)
        if stage.combine is None:
            return self._elements(stage, own, lane, exists)
        reducer = Reducer(stage)

        def add(env: Env, i: Expr) -> Stmt:
            return reducer.add(self._value(stage, i), env)

        exchange = reducer.exchange(self.team) if self.team <= WARP else reducer.exchange_block(thread, self.team)
        return build.seq(
            reducer.allocate(),
            self._over_elements(stage, own, lane, add),
            exchange,
            self._scalars([stage, *stage.epilogues], own, reducer.result(), lane, exists),
        )

    def _value(self, stage: Stage, i: Expr) -> Expr:
        """The value of a stage, with registers for what the threads know; ``i`` counts a thread's elements."""

        def read(load: ir.TensorLoad) -> Expr:
            register = self.known.get(load.source)
            if register is None:
                return load
            return register[0 if int(register.shape[0]) == 1 else i]

        return rewrite(stage.value, (ir.TensorLoad, read))

    def _scalars(self, parts: list[Stage], env: Env, result: Expr | None, lane: Expr, exists: Expr | None) -> Stmt:
        """One value per row of a stage, ``result`` if it is a reduction, and of its epilogues."""
        stmts, lead = [], parts[0]
        for part in parts:
            own = {axis.var: env[mine.var] for axis, mine in zip(part.space, lead.space, strict=True)}
            register = registers(1, part.dtype, part.name)
            value = result if part is lead and result is not None else build.substitute(self._value(part, 0), own)
            stmts += [AllocBuffer(register), BufferStore(register, value, [0])]
            self.known[part.output] = register
            is_stored = part.keep if part is lead else True
            if is_stored and not contains(self.private, part.output):
                store = BufferStore(part.output, register[0], part.at(own))
                mine = tirx.EQ(lane, 0) if exists is None else tirx.all(tirx.EQ(lane, 0), exists)
                stmts.append(IfThenElse(mine, store, None) if self.team > 1 or exists is not None else store)
        return build.seq(*stmts)

    def _elements(self, stage: Stage, env: Env, lane: Expr, exists: Expr | None) -> Stmt:
        """The elements of a map, kept in registers if a later stage may read them there."""
        is_kept = self.fits(stage)
        is_stored = not contains(self.private, stage.output) or not is_kept
        steps = self.steps(stage)
        register = registers(steps, stage.dtype, stage.name) if is_kept else None

        def element(env: Env, i: Expr) -> Stmt:
            value = build.substitute(self._value(stage, i), env)
            stmts = []
            if register is not None:
                stmts.append(BufferStore(register, value, [i]))
                value = register[i]
            if is_stored:
                store = BufferStore(stage.output, value, stage.at(env))
                stmts.append(store if exists is None else IfThenElse(exists, store, None))
            return build.seq(*stmts)

        loop = self._over_elements(stage, env, lane, element)
        if register is None:
            return loop
        self.known[stage.output] = register
        return build.seq(AllocBuffer(register), loop)

    def _over_elements(self, stage: Stage, env: Env, lane: Expr, body: Callable[[Env, Expr], Stmt]) -> Stmt:
        """A loop over a thread's elements of a row, around ``body(env, number)``."""
        axes = self.rest(stage)
        length, steps = volume(axes), self.steps(stage)
        bounds = [axis for axis in axes if axis.limit is not None]

        def step(i: Expr, is_inside: bool = False) -> Stmt:
            position = i * self.team + lane
            here = {**env, **build.unflatten(axes, position)}
            tests = [here[axis.var] < axis.bound(here) for axis in bounds]
            if not is_inside and not (isinstance(length, int) and length % self.team == 0):
                tests.insert(0, position < length)
            stmt = body(here, i)
            return IfThenElse(tirx.all(*tests), stmt, None) if tests else stmt

        if self.fits(stage):
            return build.loop(axes[-1], steps, step, ForKind.UNROLLED)
        if not isinstance(length, int):
            return build.loop(axes[-1], steps, step)
        # Several elements at once, none of which is past the end, and the rest.
        several = length // (self.team * _TOGETHER)
        first = several * _TOGETHER
        inside = lambda outer: build.unrolled(axes[-1], _TOGETHER, lambda i: step(outer * _TOGETHER + i, True))
        loop = build.loop(axes[-1], several, inside) if several else None
        rest = build.unrolled(axes[-1], steps - first, lambda i: step(first + i)) if steps > first else None
        return build.seq(loop, rest)
