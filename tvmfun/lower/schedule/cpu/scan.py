"""Scans along rows in vectors: running sums and extrema.

One by one, each element of a row waits for the one before. A vector of 2**k lanes takes k steps: in step i, the second
half of each block of 2**(i + 1) lanes is joined with the last lane of the first half. Then all lanes are joined with
the result of the vectors before, which is all that the next vector waits for. Sklansky, *Conditional-sum addition
logic*, 1960.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, Stmt

from tvmfun import dtypes
from tvmfun.core import dims, expressions
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.transpose import ramp, shuffled
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr
from tvmfun.ops.cumulative import JOINS, Join, Scan

#: Ops that join elements by one or a few instructions; a product could overflow in another order of its factors.
_OPS = ("cumsum", "cummax", "cummin")


def schedule_scan(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """Returns the kernel of a scan along the last axis.

    Args:
        function: the function of an op of :mod:`tvmfun.ops.cumulative`, or another one.
        machine: the processor.

    Returns:
        The kernel; None for other functions, other axes, joins that could overflow and rows of less than a vector.
    """
    scan = Scan.of(function)
    if scan is None:
        return None
    shape = [expressions.to_size(size) for size in function.params[0].shape]
    if scan.op not in _OPS or scan.axis != len(shape) - 1:
        return None
    source, *_, result = function.params  # the sizes that depend on the call are between them
    rows = _Rows(JOINS[scan.op], scan.reverse, source, result, machine)
    if dims.typical(shape[-1]) < rows.lanes:
        return None
    axes = [Axis(ir.Var("i", ir.PrimType("int32")), size) for size in shape]
    tasks = machine.tasks(build.points(axes))
    loops = build.parallel_nest(axes[:-1], {}, lambda env: rows.scan(axes, env), tasks)
    return function.with_body(build.root(loops))


class _Rows:
    """The loops over one row."""

    def __init__(self, join: Join, reverse: bool, source: Buffer, result: Buffer, machine: Machine):
        dtype = str(source.dtype)
        is_narrow = dtypes.is_integer(dtypes.canonical(dtype)) and build.bits(dtype) < 32
        self.wide = "int32" if is_narrow else join.of(dtype)
        self.lanes = machine.lanes(self.wide)
        self.identity = join.identity(self.wide)
        self.combine, self.reverse, self.source, self.result = join.combine, reverse, source, result

    def scan(self, axes: list[Axis], env: Env) -> Stmt:
        """The loops over the last of the axes, given those before."""
        *outer, axis = axes
        lanes, size = self.lanes, axis.extent
        before, vector, moved = (build.scratch([lanes], self.wide, name) for name in ("before", "vector", "moved"))
        whole = ramp(tirx.const(0, "int32"), lanes)
        same = tirx.Broadcast(self.identity, lanes)
        each = lambda body: build.vectorized(axis, lanes, body)

        def element(buffer: Buffer, number: Expr) -> ir.TensorLoad:
            position = size - 1 - number if self.reverse else number
            return buffer[(*(env[axis.var] for axis in outer), position)]

        def read(buffer: Buffer, start: Expr, lane: Expr) -> ir.TensorLoad:
            first = size - start - lanes if self.reverse else start
            return buffer[(*(env[axis.var] for axis in outer), first + lane)]

        def store(load: ir.TensorLoad, value: Expr) -> Stmt:
            return BufferStore(load.source, value.astype(str(self.result.dtype)), list(load.indices))

        def piece(number: Expr) -> Stmt:
            start = number * lanes
            joined = lambda lane: self.combine(before[lane], vector[lane])
            return build.seq(
                each(lambda lane: BufferStore(vector, read(self.source, start, lane).astype(self.wide), [lane])),
                *self._prefixes(axis, vector, moved),
                each(lambda lane: store(read(self.result, start, lane), joined(lane))),
                BufferStore(moved, shuffled([vector[whole]], [0 if self.reverse else lanes - 1] * lanes), [whole]),
                each(lambda lane: BufferStore(before, self.combine(before[lane], moved[lane]), [lane])),
            )

        def rest(number: Expr) -> Stmt:
            start = size // lanes * lanes
            value = self.combine(before[0], element(self.source, start + number).astype(self.wide))
            return build.seq(BufferStore(before, value, [0]), store(element(self.result, start + number), before[0]))

        return build.seq(
            *map(AllocBuffer, (before, vector, moved)),
            BufferStore(before, same, [whole]),
            build.loop(axis, size // lanes, piece),
            build.loop(axis, size % lanes, rest) if size % lanes != 0 else None,
        )

    def _prefixes(self, axis: Axis, vector: Buffer, moved: Buffer) -> Iterator[Stmt]:
        """The statements that join each lane of a vector with all before it."""
        whole = ramp(tirx.const(0, "int32"), self.lanes)
        sources = [vector[whole], tirx.Broadcast(self.identity, self.lanes)]
        join = lambda lane: BufferStore(vector, self.combine(moved[lane], vector[lane]), [lane])
        half = 1
        while half < self.lanes:
            yield BufferStore(moved, shuffled(sources, _ends(half, self.lanes, self.reverse)), [whole])
            yield build.vectorized(axis, self.lanes, join)
            half *= 2


def _ends(half: int, lanes: int, reverse: bool) -> list[int]:
    """Indices of lanes: for each lane of a second half, the last lane of the first half; else ``lanes``."""
    if reverse:
        return [lanes - 1 - lane if lane < lanes else lanes for lane in reversed(_ends(half, lanes, False))]
    return [lane // half * half - 1 if lane & half else lanes for lane in range(lanes)]
