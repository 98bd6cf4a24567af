"""Stages: the blocks of a fused PrimFunc, parsed into maps, reductions and other blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir.stmt import SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import Buffer, BufferStore, Stmt

from tvmfun.core import expressions
from tvmfun.errors import ShapeError
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, Size, volume
from tvmfun.lower.tir.walk import find, rewrite

# Combines two partial results: a node class such as tirx.Add, or a function.
Combine = Callable[[Expr, Expr], Expr]


@dataclass(frozen=True, eq=False)
class Stage:
    """A block with a single output: a map (``combine`` is None) or a reduction.

    Axes of size 1 are removed.

    Args:
        name: the name of the block.
        space: the axes of the output, outermost first.
        reduce: the reduced axes.
        output: the buffer.
        index: the indices at which it is written.
        value: the value of a map, or a term of the reduction.
        combine: how a term is combined with the total.
        init: the initial total.
        epilogues: maps over the same space, which run on each finished element.
        keep: whether the output is stored; if not, epilogues are its only readers.
    """

    name: str
    space: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    output: Buffer
    index: tuple[Expr, ...]
    value: Expr
    combine: Combine | None = None
    init: Expr | None = None
    epilogues: tuple[Stage, ...] = ()
    keep: bool = True

    @property
    def domain(self) -> tuple[Axis, ...]:
        """All axes."""
        return self.space + self.reduce

    def over(self, space: tuple[Axis, ...], positions: Env) -> Stage:
        """The stage over other axes, from the positions on its own ones in terms of those."""
        index = tuple(build.substitute(at, positions) for at in self.index)
        return replace(self, space=space, index=index, value=build.substitute(self.value, positions))

    @property
    def dtype(self) -> str:
        """The output's element type."""
        return str(self.output.dtype)

    def writes(self) -> list[Buffer]:
        """The buffers that the stage and its epilogues write."""
        return [self.output, *(stage.output for stage in self.epilogues)]

    def reads(self) -> list[ir.TensorLoad]:
        """All loads of the stage and its epilogues."""
        return self._loads

    @cached_property
    def _loads(self) -> list[ir.TensorLoad]:
        return build.loads(self.value) + [load for stage in self.epilogues for load in stage.reads()]

    @cached_property
    def sources(self) -> frozenset[Buffer]:
        """The buffers that the stage and its epilogues read."""
        return frozenset(load.source for load in self._loads)

    def store(self, env: Env, result: Expr) -> Stmt:
        """The statement that stores ``result`` and the results of the epilogues at the point ``env``."""
        stores = []
        if self.keep:
            stores.append(BufferStore(self.output, result, self.at(env)))
            result = self.output[tuple(self.at(env))]
        for stage in self.epilogues:
            own = {axis.var: env[mine.var] for axis, mine in zip(stage.space, self.space, strict=True)}
            value = build.replace_loads(build.substitute(stage.value, own), self.output, lambda _: result)
            stores.append(BufferStore(stage.output, value, stage.at(own)))
        return build.seq(*stores)

    def at(self, env: Env) -> list[Expr]:
        """The indices of the output at the point ``env``."""
        return [build.substitute(index, env) for index in self.index]


@dataclass(frozen=True, eq=False)
class Block:
    """A block with any body (argmax, scatter, sort): independent along ``space``, in order along ``reduce``.

    Each point of ``space`` has its own copy of the buffers in ``private``.
    """

    name: str
    space: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    outputs: tuple[Buffer, ...]
    body: Stmt
    init: Stmt | None
    private: tuple[Buffer, ...] = ()

    def writes(self) -> list[Buffer]:
        """The buffers that the block writes."""
        return list(self.outputs)

    def reads(self) -> list[ir.TensorLoad]:
        """All loads."""
        return build.loads(self.body)


@dataclass(frozen=True, eq=False)
class Opaque:
    """A statement that is not scheduled, because its form is unknown."""

    body: Stmt
    buffers: tuple[ir.Var, ...] = field(default=())

    def writes(self) -> list[Buffer]:
        """All its buffers: any of them may be written."""
        return list(self.buffers)

    def reads(self) -> list[ir.TensorLoad]:
        """All loads."""
        return build.loads(self.body)


AnyStage = Stage | Block | Opaque


def parse(func: tirx.PrimFunc) -> tuple[list[AnyStage], list[Buffer]]:
    """Returns the stages of a function, and its intermediate buffers."""
    root = func.body
    if not isinstance(root, SBlockRealize) or root.block.iter_vars or root.block.match_buffers:
        return [_opaque(root)], []
    block = root.block
    body = block.body
    stmts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if any(not isinstance(stmt, tirx.For | SBlockRealize) for stmt in stmts):
        return [_opaque(body)], list(block.alloc_buffers)
    return [_parse_nest(stmt) for stmt in stmts], list(block.alloc_buffers)


def _opaque(stmt: Stmt) -> Opaque:
    buffers = {v: v for v in build.variables(stmt) if tirx.is_buffer_var(v)}
    return Opaque(stmt, tuple(buffers))


def _parse_nest(stmt: Stmt) -> AnyStage:
    extents: dict[ir.Var, Size] = {}
    inner = stmt
    while isinstance(inner, tirx.For):
        extent = _size(inner.extent)
        if inner.kind != tirx.ForKind.SERIAL or not _is_int(inner.min, 0) or extent is None:
            return _opaque(stmt)
        extents[inner.loop_var] = extent
        inner = inner.body
    if not isinstance(inner, SBlockRealize) or not _is_int(inner.predicate, 1):
        return _opaque(stmt)
    return _parse_block(inner, extents) or _opaque(stmt)


def _size(value: Expr) -> Size | None:
    """The size that an expression stands for, if it is a size."""
    try:
        return expressions.to_size(value)
    except ShapeError:
        return None


def _parse_block(realize: SBlockRealize, extents: dict[ir.Var, Size]) -> Stage | Block | None:
    block = realize.block
    if block.match_buffers:
        return None
    axes: dict[str, list[Axis]] = {"space": [], "reduce": []}
    units: Env = {}
    bound: set[ir.Var] = set()
    for iter_var, value in zip(block.iter_vars[:], realize.iter_values[:], strict=True):
        extent = _size(iter_var.dom.extent)
        if extent is None:
            return None
        if extent == 1:
            units[iter_var.var] = tirx.IntImm(str(iter_var.var.ty), 0)
            continue
        if extents.get(value) != extent or value in bound:
            return None
        bound.add(value)
        kind = {IterVar.DataPar: "space", IterVar.CommReduce: "reduce"}.get(iter_var.iter_type)
        if kind is None:
            return None
        axes[kind].append(Axis(iter_var.var, extent))
    if any(extent != 1 and var not in bound for var, extent in extents.items()):
        return None
    body = build.substitute(block.body, units)
    init = None if block.init is None else build.substitute(block.init, units)
    stage = None
    if not block.alloc_buffers:
        stage = _make_stage(block.name_hint, axes["space"], axes["reduce"], body, init)
    if stage is None and init is None and block.iter_vars:
        stage = _make_block(block.name_hint, axes["space"], axes["reduce"], body, tuple(block.alloc_buffers))
    return stage


IterVar = tirx.IterVar


def _make_block(name, space, reduce, body: Stmt, private: tuple[Buffer, ...]) -> Block | None:
    """A block of unknown kind, whose iteration variables tell along which axes it is independent."""
    # Calls with side effects, and nested blocks, may access memory without loads and stores.
    strange = find(body, tirx.Evaluate, SBlockRealize)
    written = _stored_buffers(body)
    known = {**written, **{load.source: load.source for load in build.loads(body)}}
    used = [var for var in build.variables(body) if tirx.is_buffer_var(var)]
    if strange or any(buffer not in known for buffer in used):
        return None
    own = (*private, *(stmt.buffer for stmt in find(body, tirx.AllocBuffer)))
    outputs = tuple(buffer for buffer in written if not any(buffer.same_as(other) for other in own))
    return Block(name, tuple(space), tuple(reduce), outputs, body, None, private)


def _stored_buffers(body: Stmt) -> dict[Buffer, Buffer]:
    return {store.buffer: store.buffer for store in find(body, BufferStore)}


def _make_stage(name, space, reduce, body: Stmt, init: Stmt | None) -> Stage | Block | None:
    stores = find(body, BufferStore)
    orders = [_order(store.indices[:], space) for store in stores]
    if not stores or any(order is None for order in orders):
        return None
    outputs = {store.buffer: store.buffer for store in stores}
    identity = {store.buffer: store.indices for store in stores}
    for load in build.loads(body):
        if load.source in outputs and not _all_equal(load.indices, identity[load.source]):
            return None
    if isinstance(body, BufferStore):
        plain = _single(name, orders[0], reduce, body, init)
        if plain is not None:
            return plain
    if init is None and reduce:
        return None
    return Block(name, tuple(orders[0]), tuple(reduce), tuple(outputs), body, init)


def _single(name, space, reduce, store: BufferStore, init: Stmt | None) -> Stage | None:
    """The stage of a block with one store, if that is a map or a reduction with a known combiner."""
    value, output, index = store.value, store.buffer, tuple(store.indices[:])
    if init is None:
        own = [load for load in build.loads(value) if load.source.same_as(output)]
        if reduce or own:
            return None
        return Stage(name, tuple(space), (), output, index, value)
    if not isinstance(init, BufferStore) or not init.buffer.same_as(output):
        return None
    found = combiner(value, init.value, lambda e: isinstance(e, ir.TensorLoad) and e.source.same_as(output))
    if found is None:
        return None
    combine, term = found
    if any(load.source.same_as(output) for load in build.loads(term)):
        return None
    if not reduce:
        return Stage(name, tuple(space), (), output, index, combine(init.value, term))
    # Bools are accumulated as numbers, because TVM cannot lower vectors of bools.
    combine = {tirx.And: tirx.Min, tirx.Or: tirx.Max}.get(combine, combine)
    return Stage(name, tuple(space), tuple(reduce), output, index, term, combine, init.value)


def combiner(value: Expr, init: Expr, is_total: Callable[[Expr], bool]) -> tuple[Combine, Expr] | None:
    """The function that combines the running total with a new term, and the term.

    None unless terms may be regrouped, and partial totals may start from ``init``.
    """
    if isinstance(value, tirx.Select):
        return _extremum(value, is_total) if _is_constant(init) else None
    if type(value) not in IDENTITIES or not IDENTITIES[type(value)](init):
        return None
    total, term = (value.a, value.b) if is_total(value.a) else (value.b, value.a)
    return (type(value), term) if is_total(total) else None


def _extremum(value: tirx.Select, is_total: Callable[[Expr], bool]) -> tuple[Combine, Expr] | None:
    """A choice between total and term, such as a maximum with its own treatment of NaN.

    It may be regrouped, because the block declares the axes as reduction axes.
    """
    total, term = value.true_value, value.false_value
    if not is_total(total):
        return None
    x, y = ir.Var("total", total.ty), ir.Var("term", total.ty)
    condition = build.replace_loads(value.condition, total.source, lambda _: x)
    same = (type(term), lambda node: y if tvm_ffi.structural_equal(node, term) else node)
    condition = rewrite(condition, same)
    if any(not (var.same_as(x) or var.same_as(y)) for var in build.variables(condition)):
        return None

    def combine(left: Expr, right: Expr) -> Expr:
        return build.substitute(tirx.Select(condition, x, y), {x: left, y: right})

    return combine, term


def _order(indices: Sequence[Expr], space: Sequence[Axis]) -> list[Axis] | None:
    """The axes in the order of the output's dimensions; None unless each is the index of exactly one."""
    by_var = {axis.var: axis for axis in space}
    order = []
    for index in indices:
        if isinstance(index, ir.Var) and index in by_var:
            order.append(by_var.pop(index))
        elif not isinstance(index, tirx.IntImm):
            return None
    return None if by_var else order


def _all_equal(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(tvm_ffi.structural_equal(x, y) for x, y in zip(a, b, strict=True))


def _is_int(value, expected: int | None = None) -> bool:
    return isinstance(value, tirx.IntImm) and (expected is None or int(value) == expected)


def _is_number(value: Expr, number: float) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and float(value.value) == number


def _is_constant(value: Expr) -> bool:
    return not build.variables(value)


# The known combiners, with a test whether every partial total may start from a value. Maximum and minimum are
# idempotent, so that any constant may be used more than once.
IDENTITIES: dict[type, Callable[[Expr], bool]] = {
    tirx.Add: lambda init: _is_number(init, 0),
    tirx.Mul: lambda init: _is_number(init, 1),
    tirx.Max: _is_constant,
    tirx.Min: _is_constant,
    tirx.And: lambda init: _is_number(init, 1),
    tirx.Or: lambda init: _is_number(init, 0),
}


def without_empty(stages: list[AnyStage]) -> list[AnyStage]:
    """Returns the stages that have points; a reduction over no terms becomes a map of its initial value."""
    kept: list[AnyStage] = []
    for stage in stages:
        if not isinstance(stage, Opaque) and volume(stage.space) == 0:
            continue
        if isinstance(stage, Stage) and volume(stage.reduce) == 0:
            stage = replace(stage, reduce=(), value=stage.init, combine=None, init=None)
        kept.append(stage)
    return kept


def is_map(stage: AnyStage) -> bool:
    """Whether a stage computes each output element on its own."""
    return isinstance(stage, Stage) and stage.combine is None


def is_window(stage: Stage, space: Sequence[Axis] | None = None) -> bool:
    """Whether an index depends on a reduced and on a remaining axis, the latter one of ``space`` if that is given."""
    remaining = stage.space if space is None else space
    moves = lambda index, axes: any(build.uses(index, axis.var) for axis in axes)
    indices = [index for load in build.loads(stage.value) for index in load.indices]
    return any(moves(index, remaining) and moves(index, stage.reduce) for index in indices)


def decided(value: Expr, space: Sequence[Axis]) -> Expr:
    """Simplifies the indices of a value at points of a space, and makes the choices that depend on the point alone."""
    analyzer = Analyzer()
    for axis in space:
        analyzer.bind(axis.var, ir.Range(0, axis.extent))

    def choose(call: Expr) -> Expr:
        # TVM's simplifier takes floats for real numbers, so that NaN would equal itself.
        if not build.is_choice(call) or build.loads(call.args[0]):
            return call
        condition = analyzer.simplify(call.args[0])
        if not isinstance(condition, tirx.IntImm):
            return call
        return call.args[1] if condition.value else call.args[2]

    simple = lambda load: load.source[tuple(map(analyzer.simplify, load.indices))]
    return rewrite(value, (ir.TensorLoad, simple), (ir.Call, choose))


def written_by(stages: Sequence[AnyStage]) -> list[Buffer]:
    """All buffers that the stages write, with repetitions."""
    return [buffer for stage in stages for buffer in stage.writes()]


def contains(buffers: Sequence[Buffer], buffer: Buffer) -> bool:
    """Whether a buffer is among others."""
    return any(b.same_as(buffer) for b in buffers)


def reads_of(stage: AnyStage, buffer: Buffer) -> list[ir.TensorLoad]:
    """The loads of a buffer in a stage."""
    if isinstance(stage, Opaque) and contains(stage.buffers, buffer):
        return stage.reads() or [None]
    if isinstance(stage, Stage) and buffer not in stage.sources:
        return []
    return [load for load in stage.reads() if load.source.same_as(buffer)]


def accumulator(dtype: str) -> str:
    """The dtype to accumulate in: float32 for narrow floats, int8 for bools."""
    return {"float16": "float32", "bfloat16": "float32", "bool": "int8"}.get(dtype, dtype)


def same_extents(a: Sequence[Axis], b: Sequence[Axis]) -> bool:
    """Whether two iteration spaces have the same shape."""
    return [axis.extent for axis in a] == [axis.extent for axis in b]


def is_view(value: Expr) -> bool:
    """Whether a value is a moved or converted element, or a constant."""
    while isinstance(value, tirx.Cast):
        value = value.value
    value = build.bits_read(value)
    return isinstance(value, ir.TensorLoad) or not build.loads(value)


def is_aligned(producer: Stage | Block, reader: Stage | Block, load: ir.TensorLoad, prefix: int) -> bool:
    """Whether ``load`` reads the same point of the first ``prefix`` axes that ``reader`` computes."""
    index = producer.index if isinstance(producer, Stage) else None
    if index is None:
        return False
    position = {axis.var: i for i, axis in enumerate(producer.space[:prefix])}
    for mine, theirs in zip(index, load.indices, strict=True):
        if isinstance(mine, ir.Var) and mine in position:
            expected = reader.space[position[mine]].var
            if not (isinstance(theirs, ir.Var) and theirs.same_as(expected)):
                return False
    return True


def fusable(stages: Sequence[Stage], axes: Sequence[Axis]) -> int:
    """The number of trailing axes over which all accesses of all stages are contiguous."""
    count = 1
    while count < len(axes):
        outer = len(stages[0].space) - count - 1
        if not all(_walks_as_one(stage, outer) for stage in stages):
            break
        count += 1
    return count


def with_joined_axes(stage: Stage, prefix: int) -> Stage:
    """The map with one axis for neighbouring ones that all accesses walk as one; the last axis stays.

    Args:
        stage: a map.
        prefix: the number of leading axes that stay as they are.

    Returns:
        The stage itself if there are no such axes.
    """
    if stage.epilogues:
        return stage
    for i in range(len(stage.space) - 3, prefix - 1, -1):
        first, second = stage.space[i : i + 2]
        if _walks_as_one(stage, i):
            joined, positions = build.join_axes(first, second, _accesses(stage))
            stage = stage.over((*stage.space[:i], joined, *stage.space[i + 2 :]), positions)
    return stage


def indices_at(stages: Sequence[Stage], inner: Sequence[Axis], position: Expr, is_flat: bool = False) -> Env:
    """The indices of the point with a row-major number, on axes over which all accesses are contiguous.

    The number itself is the index on the last axis, if all offsets are linear and indices may leave their dimension
    (``is_flat``), or axes after the first are dynamic. Otherwise quotients and remainders of the number would have to
    cancel, which takes long, and fails for dynamic sizes: each lane of a vector would be a separate access, which takes
    LLVM up to a minute. On GPUs indices must stay in their dimension, because TVM shrinks buffers to the ranges of
    indices.
    """
    is_dynamic = not all(isinstance(axis.extent, int) for axis in inner[1:])
    if (is_flat or is_dynamic) and all(_is_linear(stage, len(inner)) for stage in stages):
        return {**{axis.var: build.index(axis, 0) for axis in inner[:-1]}, inner[-1].var: position}
    return build.unflatten(inner, position)


def _is_linear(stage: Stage, count: int) -> bool:
    """Whether the offsets of all accesses are linear in the last axes of the stage."""
    axes = stage.space[len(stage.space) - count :]
    return all(build.is_linear(index, axes) for _, indices in _accesses(stage) for index in indices)


def _walks_as_one(stage: Stage, outer: int) -> bool:
    first, second = stage.space[outer], stage.space[outer + 1]
    return build.is_only_in_indices(stage.value, (first, second)) and all(
        build.walks_as_one(access, first, second, stage.space) for access in _accesses(stage)
    )


def _accesses(stage: Stage) -> list[tuple[Buffer, Sequence[Expr]]]:
    """The buffer and the indices of each load, and of the result."""
    return [*build.accesses(stage.value), (stage.output, stage.index)]
