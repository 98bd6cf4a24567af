"""Rows: stages that reduce rows, or compute each row from reduced ones, in one launch with a team of threads per row.

A team is a warp or a part of one, and several rows share a block; or it is a whole block, if rows are long. Thread
``t`` of ``n`` has vectors ``t, t + n, ...`` of a row, of up to 16 bytes. Results of reductions are in a register of
every thread, and so are the elements of intermediates and of inputs that several stages read. Where rows are too long
for that, a thread keeps its elements of such inputs in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, ForKind, IfThenElse, Stmt

from tvmfun.core import dims
from tvmfun.lower.schedule.gpu import vectors
from tvmfun.lower.schedule.gpu.launch import THREADS, WARP, block_count, launch, registers
from tvmfun.lower.schedule.gpu.reducers import Reducer
from tvmfun.lower.schedule.gpu.row_elements import RowElement, RowVector, store
from tvmfun.lower.schedule.groups import Group
from tvmfun.lower.schedule.stage_passes import inline_into, unconditional_loads
from tvmfun.lower.schedule.stages import Stage, contains, is_map, reads_of, same_extents
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, Size, volume
from tvmfun.lower.tir.walk import called, find, rewrite

#: The most elements of an array that a thread keeps in registers.
_MOST_KEPT = 16
#: The most elements that a thread keeps in registers if vectors have four elements or more.
_MOST_KEPT_IN_VECTORS = 32
#: The most inputs of which a thread keeps elements.
_MOST_ARRAYS = 4
#: The shared memory in bytes that a block needs besides rows.
_OTHER_SHARED = 1 << 10
#: The longest row for a warp; longer ones get a block.
_LONG = 1024
# The elements of a long row that a thread reads before it waits for memory.
_TOGETHER = 4
# The vectors of a long row that a thread reads before it waits for memory.
_VECTORS_TOGETHER = 2
# The most threads of a block.
_MOST_THREADS = 1024
# The most threads with vectors: they need registers, and 1024 threads would leave too few for a second block.
_MOST_WITH_VECTORS = 512


def emit_rows(
    group: Group, private: Sequence[Buffer], most_shared: int, in_place: Sequence[tuple[Buffer, Buffer]] = ()
) -> Stmt | None:
    """The launch of a group whose shared axes are the rows; None if a stage reads elements of other threads.

    Args:
        group: the stages.
        private: buffers that nothing else reads.
        most_shared: the most shared memory of a block, in bytes.
        in_place: inputs, and the outputs to write over them.
    """
    rows = _Rows(group, private, most_shared)
    is_possible = rows.is_possible() and all(rows.may_overwrite(*pair) for pair in in_place)
    return rows.emit() if is_possible else None


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
    """Whether a call is to a function in CUDA C++, such as the one for random bits."""
    return called(call) == "tirx.cuda.func_call"


def _are_axes(indices: Sequence[Expr], axes: Sequence[Axis]) -> bool:
    """Whether indices are the variables of these axes."""
    return len(indices) == len(axes) and all(i.same_as(axis.var) for i, axis in zip(indices, axes, strict=True))


class _Rows:
    """The launch of one group."""

    def __init__(self, group: Group, private: Sequence[Buffer], most_shared: int) -> None:
        self.prefix = group.prefix
        self.private = private
        self.axes = group.stages[0].space[: self.prefix]
        self.stages = list(group.stages)
        self.rows = volume(self.axes)
        lengths = [volume(self.rest(stage)) for stage in self.stages]
        dynamic = [length for length in lengths if isinstance(length, dims.Dim)]
        self.team = team_size(self.rows, dynamic[0] if dynamic else max(lengths))
        self.lanes = self._most_lanes()
        if self.lanes > 1:
            self.team = min(self.team, _MOST_WITH_VECTORS)
        self.per_block = max(1, THREADS // self.team) if self.team <= WARP else 1
        if isinstance(self.rows, int):
            while self.per_block > 1 and self.per_block * self.team > WARP and self.rows <= self.per_block // 2:
                self.per_block //= 2
        self.stages = self._recomputed(self.stages)
        self.in_shared = self._in_shared(most_shared)
        self.known: dict[Buffer, Buffer] = {}  # buffers whose elements the threads that need them have in registers

    def rest(self, stage: Stage) -> list[Axis]:
        """The axes of a stage within a row."""
        return [*stage.space[self.prefix :], *stage.reduce]

    def _most_lanes(self) -> int:
        """The elements of a vector: as many as 16 bytes of the narrowest array that is read, if each thread has one."""
        parts = [stage for stage in self.stages if self.rest(stage)]
        axes = [axis for stage in parts for axis in self.rest(stage)]
        if not all(isinstance(axis.extent, int) and axis.limit is None for axis in axes):
            return 1
        read = [load.source for stage in parts for load in self._vector_loads(stage)]
        accessed = read or [stage.output for stage in parts if self._stores_vectors(stage)]
        sizes = [vectors.size_of(str(buffer.dtype)) for buffer in accessed]
        extents = (self.rest(stage)[-1].extent for stage in parts)
        lanes = math.gcd(vectors.VECTOR_BYTES // min(sizes, default=vectors.VECTOR_BYTES), *extents)
        shortest = min((volume(self.rest(stage)) for stage in parts), default=1)
        while lanes > 1 and lanes * min(self.team, _MOST_WITH_VECTORS) > shortest:
            lanes //= 2
        return lanes

    def _vector_loads(self, stage: Stage) -> list[ir.TensorLoad]:
        """The loads that read neighbours of a row from neighbours of an array, starting at an aligned element."""
        return vectors.row_loads(stage.value, self.rest(stage)[-1], stage.domain)

    def _stores_vectors(self, stage: Stage) -> bool:
        """Whether neighbours of a row are stored to neighbours of an array, from an aligned element on."""
        if not is_map(stage) or stage.epilogues or str(stage.output.dtype) == "bool":
            return False
        *others, index = stage.index
        last, size = self.rest(stage)[-1], stage.output.shape[-1]
        is_along = last.var.same_as(index) and isinstance(size, tirx.IntImm) and int(size) == last.extent
        return is_along and not any(build.uses(other, last.var) for other in others)

    def _recomputed(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages without private maps that registers cannot hold: their readers compute them again.

        Storing them would write and read the row once more, which the readers find in a cache.
        """
        result: list[Stage] = []
        stages = list(stages)
        large = 0
        for i in range(len(stages)):
            stage = stages[i]
            is_private = contains(self.private, stage.output) and is_map(stage) and bool(self.rest(stage))
            fits = self.fits(stage)
            if is_private and fits and self.steps(stage) > _MOST_KEPT:
                large += 1
                fits = large <= 1
            if is_private and not fits and not any(map(is_device_function, find(stage.value, ir.Call))):
                stages = [*stages[: i + 1], *(inline_into(other, stage) for other in stages[i + 1 :])]
            else:
                result.append(stage)
        return result

    # -- what is kept in registers -----------------------------------------------------------------------------

    def is_possible(self) -> bool:
        """Whether a stage reads only elements of other stages' outputs that belong to its row or thread."""
        for stage in self.stages:
            if stage.combine is not None and len(stage.space) != self.prefix:
                return False
            for load in stage.reads():
                producer = next((s for s in self.stages if s is not stage and s.output.same_as(load.source)), None)
                has_elements = producer is not None and is_map(producer) and self.rest(producer)
                if has_elements and not self._is_in_step(producer, stage, load):
                    return False
        return True

    def may_overwrite(self, source: Buffer, output: Buffer) -> bool:
        """Whether each thread reads its elements of an input, and no others, before it stores elements of an output."""
        position, writer = next((i, stage) for i, stage in enumerate(self.stages) if stage.output.same_as(output))
        if not is_map(writer) or not self.rest(writer) or not _are_axes(writer.index, writer.space):
            return False
        for i, stage in enumerate(self.stages):
            axes = [*stage.space[: self.prefix], *self.rest(stage)]
            for load in reads_of(stage, source):
                is_own = _are_axes(load.indices, axes) and same_extents(self.rest(stage), self.rest(writer))
                if i > position or not is_own:
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
        return build.ceil_div(volume(self.rest(stage)), self.team * self.lanes) * self.lanes

    def fits(self, stage: Stage) -> bool:
        """Whether registers can hold a thread's elements."""
        steps = self.steps(stage)
        return isinstance(steps, int) and steps <= (_MOST_KEPT_IN_VECTORS if self.lanes >= 4 else _MOST_KEPT)

    def _shared_loads(self, loads_of: Callable[[Stage], Sequence[ir.TensorLoad]]) -> list[tuple[Stage, ir.TensorLoad]]:
        """The loads that several stages share, each with the first of these stages."""
        written = [buffer for stage in self.stages for buffer in stage.writes()]
        uses: list[tuple[Stage, ir.TensorLoad, list[int]]] = []
        for number, stage in enumerate(self.stages):
            if not self.rest(stage):
                continue
            for load in loads_of(stage):
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
        return [(stage, load) for stage, load, numbers in uses if len(set(numbers)) > 1]

    def _in_shared(self, most: int) -> list[tuple[Stage, ir.TensorLoad]]:
        """The loads of long rows that are kept in shared memory, which holds two blocks if they fit."""
        if self.lanes == 1 or self.per_block > 1 or self.team <= WARP:
            return []
        is_long = lambda stage: len(self.rest(stage)) == 1 and not self.fits(stage)
        found = self._shared_loads(lambda stage: self._vector_loads(stage) if is_long(stage) else [])
        # Only loads of rows: elements that all rows share stay in a cache.
        found = [(stage, load) for stage, load in found if len(load.indices) > 1]
        nbytes = lambda use: volume(self.rest(use[0])) * vectors.size_of(str(use[1].ty))
        chosen: list[tuple[Stage, ir.TensorLoad]] = []
        for use in sorted(found, key=nbytes):
            total = sum(map(nbytes, (*chosen, use)))
            if total <= most // 2 - _OTHER_SHARED or (not chosen and total <= most - _OTHER_SHARED):
                chosen.append(use)
        if chosen and sum(map(nbytes, chosen)) > most // 2 - _OTHER_SHARED:
            self.team = _MOST_THREADS  # the only block of its multiprocessor
        return chosen

    def with_kept_inputs(self) -> list[Stage]:
        """The stages, preceded by copies of inputs that several read at the same elements."""
        in_registers = self._shared_loads(lambda stage: unconditional_loads(stage.value) if self.fits(stage) else [])
        many = [use for use in in_registers if self.steps(use[0]) > _MOST_KEPT][_MOST_ARRAYS // 2 :]
        in_registers = [use for use in in_registers if use not in many][:_MOST_ARRAYS]
        stages = list(self.stages)
        copies: list[Stage] = []
        for stage, load in (*in_registers, *self.in_shared):
            axes = [Axis.fresh(axis, axis.extent) for axis in (*stage.space[: self.prefix], *self.rest(stage))]
            names = [axis.var for axis in (*stage.space[: self.prefix], *self.rest(stage))]
            value = build.substitute(load, {a: b.var for a, b in zip(names, axes, strict=True)})
            if (stage, load) in self.in_shared:
                own = axes[self.prefix :]
                buffer = tirx.decl_buffer(
                    [own[0].extent], str(load.ty), name="x", scope="shared.dyn", data_alignment=16
                )
                copy = Stage("x", tuple(axes), (), buffer, (own[0].var,), value)
            else:
                buffer = build.buffer([axis.extent for axis in axes], str(load.ty), "x")
                copy = Stage("x", tuple(axes), (), buffer, tuple(axis.var for axis in axes), value)
                self.private = [*self.private, buffer]
            copies.append(copy)
            stages = [self._reading(other, copy) for other in stages]
        return self._with_row_values([*copies, *stages])

    def _with_row_values(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages, preceded by loads of the values that all elements of a row need, such as its label."""
        written = [buffer for stage in self.stages for buffer in stage.writes()]
        values: list[Stage] = []

        def known(stage: Stage, load: ir.TensorLoad) -> Buffer | None:
            """The value of a load, if it is one of a row."""
            uses_row = any(build.uses(load, axis.var) for axis in stage.space[: self.prefix])
            if contains(written, load.source) or not uses_row or load.source.scope() != "global":
                return None
            if any(build.uses(load, axis.var) for axis in self.rest(stage)):
                return None
            axes = stage.space[: self.prefix]
            for value in values:
                renamed = build.substitute(load, {a.var: b.var for a, b in zip(axes, value.space, strict=True)})
                if tvm_ffi.structural_equal(renamed, value.value):
                    return value.output
            fresh = tuple(Axis.fresh(axis, axis.extent) for axis in axes)
            own = tuple(axis.var for axis in fresh)
            of_row = build.substitute(load, {a.var: b for a, b in zip(axes, own, strict=True)})
            buffer = build.buffer([axis.extent for axis in axes], str(load.ty), "of_row")
            values.append(Stage("of_row", fresh, (), buffer, own, of_row))
            return buffer

        def reading(stage: Stage) -> Stage:
            if not self.rest(stage):
                return stage
            certain = vectors.certain_loads(stage.value, stage.domain)
            names = tuple(axis.var for axis in stage.space[: self.prefix])

            def read(load: ir.TensorLoad) -> Expr:
                is_certain = any(tvm_ffi.structural_equal(load, other) for other in certain)
                buffer = known(stage, load) if is_certain else None
                return load if buffer is None else buffer[names]

            return replace(stage, value=rewrite(stage.value, (ir.TensorLoad, read)))

        changed = [reading(stage) for stage in stages]
        self.private = [*self.private, *(value.output for value in values)]
        return [*values, *changed]

    def _renamed(self, value: Expr, stage: Stage, like: Stage) -> Expr:
        theirs = (*stage.space[: self.prefix], *self.rest(stage))
        mine = (*like.space[: self.prefix], *self.rest(like))
        return build.substitute(value, {a.var: b.var for a, b in zip(theirs, mine, strict=True)})

    def _reading(self, stage: Stage, copy: Stage) -> Stage:
        """The stage with loads of a copy instead of the original."""
        if not same_extents(self.rest(stage), self.rest(copy)) or not self.rest(stage):
            return stage
        own = (*stage.space[: self.prefix], *self.rest(stage))[-len(copy.index) :]
        names = tuple(axis.var for axis in own)
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
            shared = [stage.output for stage in stages if stage.output.scope() == "shared.dyn"]
            allocated = (vectors.allocated(buffer, int(buffer.shape[0])) for buffer in shared)
            return build.seq(
                *allocated, *(self.stages_of(run, env, thread, lane, exists) for run in self._runs(stages))
            )

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

        stored = [
            stage
            for stage in run
            if not contains(self.private, stage.output) or any(reads_of(other, stage.output) for other in later)
        ]

        def element(here: Env, at: RowElement) -> Stmt:
            stmts = []
            for stage in run:
                own = self._own(stage, run[0], here)
                register = self.known[stage.output]
                stmts.append(BufferStore(register, build.substitute(self._value(stage, at, run[0]), own), [0]))
                if stage in stored:
                    stmts.append(store(stage, register[0], own, at, exists))
            return build.seq(*stmts)

        loop = self._over_elements(run, stored, env, lane, exists, element)
        held = [self.known.pop(stage.output) for stage in run]
        return build.seq(*map(AllocBuffer, held), loop)

    def _own(self, stage: Stage, like: Stage | None, env: Env) -> Env:
        """The values of a stage's axes, derived from another stage's axes or from the rows of the launch."""
        if like is None:
            return {axis.var: env[lead.var] for axis, lead in zip(stage.space[: self.prefix], self.axes, strict=True)}
        return {axis.var: env[mine.var] for axis, mine in zip(stage.space, like.space, strict=True)}

    def stage(self, stage: Stage, env: Env, thread: Expr, lane: Expr, exists: Expr | None) -> Stmt:
        """The statements of one stage, for the row in ``env``."""
        own = self._own(stage, None, env)
        if not self.rest(stage):
            return self._scalars([stage], own, None, lane, exists)
        if stage.combine is None:
            return self._elements(stage, env, lane, exists)
        reducer = Reducer(stage)

        def add(env: Env, at: RowElement) -> Stmt:
            return reducer.add(self._value(stage, at), env)

        exchange = reducer.exchange(self.team) if self.team <= WARP else reducer.exchange_block(thread, self.team)
        return build.seq(
            reducer.allocate(),
            self._over_elements([stage], [], env, lane, exists, add),
            exchange,
            self._scalars([stage, *stage.epilogues], own, reducer.result(), lane, exists),
        )

    def _value(self, stage: Stage, at: RowElement, lead: Stage | None = None) -> Expr:
        """The value of a stage, read from registers where threads have it; ``lead`` is the first stage of its run."""

        def read(load: ir.TensorLoad) -> Expr:
            register = self.known.get(load.source)
            if register is not None:
                return register[0 if int(register.shape[0]) == 1 else at.number]
            named = self._renamed(load, stage, lead or stage) if at.loads else load
            vector = next((vector for other, vector in at.loads if tvm_ffi.structural_equal(other, named)), None)
            return load if vector is None else vector[at.lane]

        return rewrite(stage.value, (ir.TensorLoad, read))

    def _scalars(self, parts: list[Stage], env: Env, result: Expr | None, lane: Expr, exists: Expr | None) -> Stmt:
        """One value per row of a stage, ``result`` if it is a reduction, and of its epilogues."""
        stmts, lead = [], parts[0]
        for part in parts:
            own = {axis.var: env[mine.var] for axis, mine in zip(part.space, lead.space, strict=True)}
            register = registers(1, part.dtype, part.name)
            value = (
                result
                if part is lead and result is not None
                else build.substitute(self._value(part, RowElement(0, 0)), own)
            )
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

        def element(env: Env, at: RowElement) -> Stmt:
            value = build.substitute(self._value(stage, at), env)
            stmts = []
            if register is not None:
                stmts.append(BufferStore(register, value, [at.number]))
                value = register[at.number]
            if is_stored:
                stmts.append(store(stage, value, env, at, exists))
            return build.seq(*stmts)

        loop = self._over_elements([stage], [stage] if is_stored else [], env, lane, exists, element)
        if register is None:
            return loop
        self.known[stage.output] = register
        return build.seq(AllocBuffer(register), loop)

    def _over_elements(
        self,
        run: Sequence[Stage],
        stored: Sequence[Stage],
        env: Env,
        lane: Expr,
        exists: Expr | None,
        body: Callable[[Env, RowElement], Stmt],
    ) -> Stmt:
        """A loop over a thread's elements of a row, around ``body(env, element)``.

        Args:
            run: the stages in the loop, over the same axes.
            stored: the stages of the run whose results are stored.
            env: the row.
            lane: the thread's number in its team.
            exists: whether the row exists; None if all do.
            body: the statements for an element, given the values of the axes of the first stage.
        """
        axes, lanes = self.rest(run[0]), self.lanes
        count = build.ceil_div(self.steps(run[0]), lanes)
        length = volume(axes) // lanes if lanes > 1 else volume(axes)
        bounds = [axis for axis in axes if axis.limit is not None]
        row = self._own(run[0], None, env)
        last = axes[-1]
        coarse = Axis.fresh(last, last.extent // lanes) if lanes > 1 else last

        def here(position: Expr, k: Expr | int) -> Env:
            found = {**row, **build.unflatten([*axes[:-1], coarse], position)}
            return found if lanes == 1 else {**found, last.var: found[coarse.var] * lanes + k}

        def steps(numbers: Sequence[Expr], is_inside: bool = False) -> Stmt:
            """The statements for some vectors, which are all loaded first."""
            parts = [self._vector(run, stored, number * self.team + lane, here, exists) for number in numbers]
            computed = [
                body(here(number * self.team + lane, k), RowElement(number * lanes + k, k, part.loads, part.stores))
                for number, part in zip(numbers, parts, strict=True)
                for k in range(lanes)
            ]
            before = (stmt for part in parts for stmt in part.before)
            stmt = build.seq(*before, *computed, *(stmt for part in parts for stmt in part.after))
            if is_inside:
                return stmt
            tests = [here(numbers[0] * self.team + lane, 0)[axis.var] < axis.bound(row) for axis in bounds]
            if not (isinstance(length, int) and length % self.team == 0):
                tests.insert(0, numbers[0] * self.team + lane < length)
            return IfThenElse(tirx.all(*tests), stmt, None) if tests else stmt

        if self.fits(run[0]):
            return build.loop(last, count, lambda i: steps([i]), ForKind.UNROLLED)
        if not isinstance(length, int):
            return build.loop(last, count, lambda i: steps([i]))
        # Several vectors at once while none is past the end, then the rest.
        together = _TOGETHER if lanes == 1 else _VECTORS_TOGETHER
        several = 0 if bounds else length // (self.team * together)
        first = several * together
        inside = lambda outer: steps([outer * together + i for i in range(together)], is_inside=True)
        loop = build.loop(last, several, inside) if several else None
        rest = build.unrolled(last, count - first, lambda i: steps([first + i])) if count > first else None
        return build.seq(loop, rest)

    def _vector(
        self,
        run: Sequence[Stage],
        stored: Sequence[Stage],
        position: Expr,
        here: Callable[[Expr, Expr], Env],
        exists: Expr | None,
    ) -> RowVector:
        """The registers of a vector, and the statements that load them and that store them."""
        if self.lanes == 1:
            return RowVector((), (), (), ())
        lead, size = run[0], self.rest(run[0])[-1]
        loads: list[tuple[ir.TensorLoad, Buffer]] = []
        for stage in run:
            for load in self._vector_loads(stage):
                if load.source in self.known:
                    continue
                named = self._renamed(load, stage, lead)
                if not any(tvm_ffi.structural_equal(named, other) for other, _ in loads):
                    loads.append((named, registers(self.lanes, str(load.ty), "x")))
        stores = [
            (stage.output, registers(self.lanes, stage.dtype, stage.name))
            for stage in stored
            if self._stores_vectors(stage)
        ]

        def moved(vector: Buffer, make: Callable[[Expr], Stmt]) -> Stmt:
            return vectors.copied(size, self.lanes, str(vector.dtype), make)

        def read(load: ir.TensorLoad, vector: Buffer) -> Stmt:
            return moved(vector, lambda k: BufferStore(vector, build.substitute(load, here(position, k)), [k]))

        def written(stage: Stage, vector: Buffer) -> Stmt:
            at = lambda k: stage.at(self._own(stage, lead, here(position, k)))
            store = moved(vector, lambda k: BufferStore(stage.output, vector[k], at(k)))
            return store if exists is None else IfThenElse(exists, store, None)

        after = [
            written(stage, vector) for stage in stored for output, vector in stores if output.same_as(stage.output)
        ]
        allocated = (AllocBuffer(vector) for _, vector in (*loads, *stores))
        return RowVector(loads, stores, (*allocated, *(read(*pair) for pair in loads)), after)
