"""Maps: one launch for all outputs of a shape, a vector of 16 bytes per thread.

Vectors are loaded and stored as a whole and computed element by element: TVM represents vectors of bools in CUDA as
16-bit numbers. All results are computed before the first is stored, so that they can be written over inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir
from tvm.sym import Analyzer
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.core import dims
from tvmfun.lower.schedule.gpu.launch import over_points, registers
from tvmfun.lower.schedule.stage_passes import unconditional_loads
from tvmfun.lower.schedule.stages import Stage, contains, fusable, indices_at
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume
from tvmfun.lower.tir.walk import rewrite

VECTOR_BYTES = 16
MOST_LANES = 8
#: The fewest threads that keep a device busy; smaller arrays get shorter vectors.
_FULL = 1 << 15


def emit_maps(stages: Sequence[Stage], private: Sequence[Buffer] = ()) -> Stmt:
    """The launch of maps over the same space; no other stage reads the outputs in ``private``."""
    lead = stages[0]
    if not lead.space:
        point = Axis(ir.Var("point", ir.PrimType("int32")), 1)
        return over_points(1, lambda _: VectorOfMaps(stages, private, {}, point, 1).emit(lambda k: {}))
    count = fusable(stages, lead.space)
    outer, inner = list(lead.space[: len(lead.space) - count]), list(lead.space[len(lead.space) - count :])
    lanes = _lanes(stages, outer, inner)
    vectors, tail = divmod(volume(inner), lanes)
    has_tail = tail != 0
    number = Axis.fresh(inner[-1], vectors + 1 if has_tail else vectors)

    def body(point: Expr) -> Stmt:
        env = build.unflatten([*outer, number], point)

        def vector(start: Expr, width: int) -> Stmt:
            at = lambda k: {**env, **indices_at(stages, inner, start + k)}
            return VectorOfMaps(stages, private, vector_loads(stages, outer, inner, width), inner[-1], width).emit(at)

        start = env[number.var] * lanes
        if not has_tail:
            return vector(start, lanes)
        rest = build.loop(inner[-1], tail, lambda i: vector(start + i, 1))
        return IfThenElse(env[number.var] < vectors, vector(start, lanes), rest)

    return over_points(volume([*outer, number]), body)


def _lanes(stages: Sequence[Stage], outer: Sequence[Axis], inner: Sequence[Axis]) -> int:
    """The elements per thread: up to 16 bytes, unless that leaves the device idle or rows have a remainder."""
    vectors = [stage.output for stage in stages] + [load.source for load in vector_loads(stages, outer, inner, 1)]
    sizes = [build.bits(str(buffer.dtype)) // 8 for buffer in vectors if str(buffer.dtype) != "bool"]
    lanes = min(MOST_LANES, VECTOR_BYTES // max(sizes, default=4))
    points = volume([*outer, *inner])
    is_small = lambda lanes: isinstance(points, int) and points < lanes * _FULL
    while lanes > 1 and (is_small(lanes) or (outer and not _divides(lanes, volume(inner)))):
        lanes //= 2
    return lanes


def _divides(number: int, size) -> bool:
    rest = size % number
    return not isinstance(rest, dims.Dim) and rest == 0


def vector_loads(
    stages: Sequence[Stage], outer: Sequence[Axis], inner: Sequence[Axis], width: int
) -> list[ir.TensorLoad]:
    """The distinct loads of inputs that are contiguous along ``inner`` and start at multiples of ``width``."""
    written = [stage.output for stage in stages]
    result: list[ir.TensorLoad] = []
    for stage in stages:
        axes = [stage.space[len(outer) + i] for i in range(len(inner))]
        for load in unconditional_loads(stage.value):
            if contains(written, load.source) or str(load.source.dtype) == "bool":
                continue
            if build.stride(load.source, load.indices, axes[-1], stage.space) != 1:
                continue
            if not starts_at_multiple(load, axes, stage.space, width):
                continue
            named = _in_terms_of(load, stage, stages[0])
            if not any(tvm_ffi.structural_equal(named, other) for other in result):
                result.append(named)
    return result


def _in_terms_of(value, stage: Stage, lead: Stage):
    """The value with the leading stage's names for the axes."""
    return build.substitute(value, {a.var: b.var for a, b in zip(stage.space, lead.space, strict=True)})


def starts_at_multiple(load: ir.TensorLoad, inner: Sequence[Axis], domain: Sequence[Axis], width: int) -> bool:
    """Whether the load's offset is a multiple of ``width`` at the start of ``inner`` axes."""
    if width == 1:
        return True
    start = {axis.var: build.index(axis, 0) for axis in inner}
    offset = build.substitute(build.offset(load.source, load.indices), start)
    if isinstance(offset, int):
        return offset % width == 0
    analyzer = Analyzer()
    for axis in domain:
        analyzer.bind(axis.var, ir.Range(0, axis.extent))
    known = analyzer.modular_set(analyzer.simplify(offset))
    return known.coeff % width == 0 and known.base % width == 0


@dataclass
class VectorOfMaps:
    """The statements for one vector of elements.

    Args:
        stages: maps over the same space, in order.
        private: outputs that are not stored.
        loads: the loads that are read as vectors, with the axes of the first stage.
        like: an axis of the index type.
        width: the number of elements.
    """

    stages: Sequence[Stage]
    private: Sequence[Buffer]
    loads: Sequence[ir.TensorLoad] | dict
    like: Axis
    width: int

    def emit(self, at: Callable[[Expr], Env], use: Callable[[dict[Buffer, Buffer]], Stmt] | None = None) -> Stmt:
        """The statements.

        Args:
            at: gives the values of the first stage's axes for an element's number.
            use: a statement that reads results in registers, by the outputs.
        """
        single = len(self.stages) == 1 and self.width == 1 and use is None
        if single:
            return self.stages[0].store(at(0), build.substitute(self.stages[0].value, at(0)))
        copies = {} if self.width == 1 else {load: registers(self.width, str(load.ty), "x") for load in self.loads}
        results = {stage.output: registers(self.width, str(stage.dtype), "y") for stage in self.stages}
        read = [
            self._copy(result, lambda k, load=load: BufferStore(copies[load], build.substitute(load, at(k)), [k]))
            for load, result in copies.items()
        ]
        compute = build.unrolled(self.like, self.width, lambda k: self._element(at(k), k, copies, results))
        write = [
            self._copy(
                results[stage.output],
                lambda k, stage=stage: stage.store(self._own(stage, at(k)), results[stage.output][k]),
            )
            for stage in self.stages
            if not contains(self.private, stage.output)
        ]
        used = [use(results)] if use else []
        return build.seq(*map(AllocBuffer, (*copies.values(), *results.values())), *read, compute, *used, *write)

    def _copy(self, buffer: Buffer, make: Callable[[Expr], Stmt]) -> Stmt:
        loop = build.unrolled if str(buffer.dtype) == "bool" else build.vectorized
        return loop(self.like, self.width, make)

    def _element(self, env: Env, k: Expr, copies: dict, results: dict[Buffer, Buffer]) -> Stmt:
        stores = []
        for stage in self.stages:
            value = _in_terms_of(stage.value, stage, self.stages[0])

            def load(node: ir.TensorLoad) -> Expr:
                if node.source in results:
                    return results[node.source][k]
                same = (copy for other, copy in copies.items() if tvm_ffi.structural_equal(other, node))
                copy = next(same, None)
                return node if copy is None else copy[k]

            value = build.substitute(rewrite(value, (ir.TensorLoad, load)), env)
            stores.append(BufferStore(results[stage.output], value, [k]))
        return build.seq(*stores)

    def _own(self, stage: Stage, env: Env) -> Env:
        return {**env, **{a.var: env[b.var] for a, b in zip(stage.space, self.stages[0].space, strict=True)}}
