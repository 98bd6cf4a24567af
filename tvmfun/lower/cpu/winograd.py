"""Convolutions with 3x3 kernels by the algorithm of Winograd: 16 multiplications for 4 results instead of 36.

The result is cut in tiles of 2x2, each computed from a patch of 4x4 of the array:

    y = A^T ((G w G^T) * (B^T d B)) A        (* element by element, summed over the input channels)

For each of the 16 places in a patch that sum is a matrix product of all patches and the kernel. Blocks of patches are
transformed, multiplied and transformed back one after the other, so that what is between stays in the cache.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015, F(2x2, 3x3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from . import build
from .build import Axis, Env, Expr
from .contraction import emit_contraction, match
from .fuse import is_map
from .machine import Machine
from .stages import AnyStage, Stage

TAPS, OUT, PATCH = 3, 2, 4
PLACES = PATCH * PATCH

# Patches of a block: so many that the kernel is read seldom, and so few that they stay in the second-level cache.
PATCHES = range(24, 97)
BLOCK_BYTES = 1 << 20
# With fewer patches, transforming the kernel takes longer than it saves.
MIN_PATCHES = 96
MIN_CHANNELS = 32


@dataclass(frozen=True, eq=False)
class Winograd:
    """A convolution to compute this way, and the map that puts a margin around its array, if there is one.

    `row`, `column` and `feature` are axes of the result, `image` too, unless there is one image only.
    """

    conv: Stage
    margin: Stage | None
    array: ir.TensorLoad
    kernel: ir.TensorLoad
    block: int

    @property
    def epilogues(self) -> tuple[Stage, ...]:
        """The maps on each finished element."""
        return self.conv.epilogues

    def writes(self) -> list[Buffer]:
        """The buffers this stage fills."""
        return self.conv.writes()

    def reads(self) -> list[ir.TensorLoad]:
        """All loads but those of the margin's result, which is never stored."""
        if self.margin is None:
            return self.conv.reads()
        return [*self.margin.reads(), *(load for load in self.conv.reads() if load is not self.array)]


def fold(stages: Sequence[AnyStage], temps: Sequence[Buffer], machine: Machine) -> list[AnyStage]:
    """Replaces the convolutions that gain by it, together with their margins."""
    result: list[AnyStage] = []
    for stage in stages:
        found = _match(stage, machine)
        if found is None:
            result.append(stage)
            continue
        conv, array, kernel, block = found
        margin = next((s for s in result if is_map(s) and s.output.same_as(array.source)), None)
        users = [load for s in stages for load in s.reads() if load.source.same_as(array.source)]
        is_private = any(buffer.same_as(array.source) for buffer in temps) and len(users) == 1
        if margin is not None and is_private and _guard(margin) is not None:
            result.remove(margin)
        else:
            margin = None
        result.append(Winograd(conv, margin, array, kernel, block))
    return result


def _guard(margin: Stage) -> tuple[Expr, Expr] | None:
    """Where a map that adds a margin of zeros reads its array, and what it reads."""
    value = margin.value
    if not isinstance(value, ir.Call) or value.op.name != "prim.if_then_else":
        return None
    condition, inside, outside = value.args
    plain = isinstance(inside, ir.TensorLoad) and isinstance(outside, tirx.FloatImm) and outside.value == 0
    return (condition, inside) if plain else None


def _match(stage: AnyStage, machine: Machine) -> tuple[Stage, ir.TensorLoad, ir.TensorLoad, int] | None:
    """The operands of a 3x3 convolution that is large enough, and how many patches make a block."""
    contraction = match(stage) if isinstance(stage, Stage) else None
    if contraction is None or stage.dtype != "float32" or len(stage.reduce) != 3 or len(stage.space) not in (3, 4):
        return None
    array, kernel = contraction.left, contraction.right
    loads = isinstance(array, ir.TensorLoad) and isinstance(kernel, ir.TensorLoad)
    if not loads or str(array.ty) != "float32" or str(kernel.ty) != "float32":
        return None
    *images, row, column, feature = stage.space
    down, across, channel = stage.reduce
    sizes = [axis.extent for axis in stage.domain]
    if not all(isinstance(size, int) for size in sizes) or down.extent != TAPS or across.extent != TAPS:
        return None
    if row.extent % OUT or column.extent % OUT or channel.extent < MIN_CHANNELS or feature.extent < MIN_CHANNELS:
        return None
    lanes = machine.lanes("float32")
    if channel.extent % lanes or feature.extent % _width(machine):
        return None
    places = [*(axis.var for axis in images), row.var + down.var, column.var + across.var, channel.var]
    if not _reads_at(array, places) or not _reads_at(kernel, [down.var, across.var, channel.var, feature.var]):
        return None
    patches = build.points([*images, row, column]) // (OUT * OUT)
    block = _block(patches, channel.extent + feature.extent, machine)
    return None if block is None or patches < MIN_PATCHES else (stage, array, kernel, block)


def _reads_at(load: ir.TensorLoad, places: Sequence[Expr]) -> bool:
    """Whether a load has these indices, but for axes of size one."""
    indices = [index for index in load.indices if not isinstance(index, tirx.IntImm)]
    return len(indices) == len(places) and all(map(tvm_ffi.structural_equal, indices, places))


def _width(machine: Machine) -> int:
    """The columns of a register tile."""
    return 2 * machine.lanes("float32")


def _block(patches: int, channels: int, machine: Machine) -> int | None:
    """How many patches to transform at a time, so that all cores have as many blocks."""
    fitting = [n for n in PATCHES if patches % n == 0 and patches // n % machine.cores == 0]
    small = [n for n in fitting if PLACES * n * channels * build.bits("float32") // 8 <= BLOCK_BYTES]
    return max(small) if small else min(fitting, default=None)


def emit_winograd(stage: Winograd, machine: Machine, tasks: int) -> Stmt:
    """The kernel transformed, then block after block of patches."""
    return _Emitter(stage, machine).emit(tasks)


class _Emitter:
    def __init__(self, stage: Winograd, machine: Machine) -> None:
        self.stage, self.conv, self.block = stage, stage.conv, stage.block
        self.machine, self.lanes, self.width = machine, machine.lanes("float32"), _width(machine)
        *self.images, self.row, self.column, self.feature = self.conv.space
        self.down, self.across, self.channel = self.conv.reduce
        channels, features = self.channel.extent, self.feature.extent
        # In panels of columns, as the register tiles read them.
        self.kernel = build.buffer([PLACES, features // self.width, channels, self.width], "float32", "kernel")
        # One patch more than needed, or the places would lie a power of two apart and share a few lines of the cache.
        self.patches = build.scratch([PLACES, self.block + 1, channels], "float32", "patches")
        self.products = build.scratch([PLACES, self.block + 1, features], "float32", "products")

    def emit(self, tasks: int) -> Stmt:
        """All loops."""
        tiles = [*self.images, *(Axis.fresh(axis, axis.extent // OUT) for axis in (self.row, self.column))]
        blocks = Axis.fresh(self.row, build.volume(tiles) // self.block)

        def place(env: Env, i: Expr) -> Env:
            """Which image a patch is of, and where it begins."""
            at = build.unflatten(tiles, env[blocks.var] * self.block + i)
            *images, row, column = (at[axis.var] for axis in tiles)
            ours = zip((axis.var for axis in self.images), images, strict=True)
            return {**dict(ours), self.row.var: row * OUT, self.column.var: column * OUT}

        def each(env: Env, make: Callable[[Expr, Env], Stmt]) -> Stmt:
            return build.loop(self.row, self.block, lambda i: make(i, place(env, i)))

        def task(env: Env) -> Stmt:
            scratch = [AllocBuffer(self.patches), AllocBuffer(self.products)]
            return build.seq(*scratch, each(env, self._patch), self._multiply(), each(env, self._results))

        body = build.parallel_nest([blocks], {}, task, tasks)
        return build.seq(AllocBuffer(self.kernel), self._kernel(tasks), body)

    def _kernel(self, tasks: int) -> Stmt:
        """G w G^T, channel by channel."""

        def vector(env: Env, begin: Expr) -> Stmt:
            def load(a: int, b: int, k: Expr) -> Expr:
                at = {self.down.var: build.index(self.down, a), self.across.var: build.index(self.across, b)}
                return build.substitute(self.stage.kernel, {**env, **at, self.feature.var: begin + k})

            def write(a: int, b: int, k: Expr, value: Expr) -> Stmt:
                where = [a * PATCH + b, begin // self.width, env[self.channel.var], begin % self.width + k]
                return BufferStore(self.kernel, value, where)

            return self._transformed(TAPS, load, _kernel_line, write)

        body = lambda env: self._vectors(self.feature, lambda begin: vector(env, begin))
        return build.parallel_nest([self.channel], {}, body, tasks)

    def _patch(self, i: Expr, at: Env) -> Stmt:
        """B^T d B of a patch."""

        def load(begin: Expr, value: Expr) -> Callable[[int, int, Expr], Expr]:
            return lambda a, b, k: self._array(value, at, a, b, begin + k)

        def write(begin: Expr) -> Callable[[int, int, Expr, Expr], Stmt]:
            return lambda a, b, k, value: BufferStore(self.patches, value, [a * PATCH + b, i, begin + k])

        def read(value: Expr) -> Stmt:
            transformed = lambda begin: self._transformed(PATCH, load(begin, value), _patch_line, write(begin))
            return self._vectors(self.channel, transformed)

        if self.stage.margin is None:
            return read(self.stage.array)
        condition, inside = _guard(self.stage.margin)  # type: ignore[misc]  # it has one, or it would not be here
        first, last = (self._array(condition, at, k, k, build.index(self.row, 0)) for k in (0, PATCH - 1))
        return IfThenElse(tirx.And(first, last), read(inside), read(self.stage.margin.value))

    def _array(self, value: Expr, at: Env, a: int, b: int, channel: Expr) -> Expr:
        """An expression of the margin's axes, or the array itself, at a place of a patch."""
        offset = {self.down.var: build.index(self.down, a), self.across.var: build.index(self.across, b)}
        here = {**at, **offset, self.channel.var: channel}
        if self.stage.margin is None:
            return build.substitute(value, here)
        pairs = zip(self.stage.margin.index, self.stage.array.indices, strict=True)
        axes = {axis: build.substitute(index, here) for axis, index in pairs if isinstance(axis, ir.Var)}
        return build.substitute(value, axes)

    def _multiply(self) -> Stmt:
        """For each place, the matrix product of patches and kernel."""
        place, panel = Axis.fresh(self.row, PLACES), Axis.fresh(self.row, self.feature.extent // self.width)
        patch, column = Axis.fresh(self.row, self.block), Axis.fresh(self.feature, self.width)
        channel = Axis.fresh(self.channel, self.channel.extent)
        left = self.patches[place.var, patch.var, channel.var]
        right = self.kernel[place.var, panel.var, channel.var, column.var]
        index = (place.var, patch.var, panel.var * self.width + column.var)
        product = Stage(
            "products", (place, panel, patch, column), (channel,), self.products, index, left * right, tirx.Add,
            build.zero("float32"),
        )  # fmt: skip
        return emit_contraction(match(product), {}, 0, self.machine, 1)  # type: ignore[arg-type]  # it is one

    def _results(self, i: Expr, at: Env) -> Stmt:
        """A^T m A of a patch, and what the epilogues make of it."""

        def vector(begin: Expr) -> Stmt:
            def load(a: int, b: int, k: Expr) -> Expr:
                return self.products[a * PATCH + b, i, begin + k]

            def write(a: int, b: int, k: Expr, value: Expr) -> Stmt:
                row, column = at[self.row.var] + a, at[self.column.var] + b
                here = {**at, self.row.var: row, self.column.var: column, self.feature.var: begin + k}
                return self.conv.store(here, value)

            return self._transformed(PATCH, load, _result_line, write)

        return self._vectors(self.feature, vector)

    def _vectors(self, axis: Axis, make: Callable[[Expr], Stmt]) -> Stmt:
        return build.loop(axis, axis.extent // self.lanes, lambda i: make(i * self.lanes))

    def _transformed(
        self,
        size: int,
        load: Callable[[int, int, Expr], Expr],
        line: Callable[[Sequence[Expr]], list[Expr]],
        write: Callable[[int, int, Expr, Expr], Stmt],
    ) -> Stmt:
        """Vectors of a square, transformed along its columns and then along its rows, in registers."""
        lane = lambda make: build.vectorized(self.feature, self.lanes, make)
        register = lambda: build.scratch([self.lanes], "float32", "line")
        given = [[register() for _ in range(size)] for _ in range(size)]
        count = len(line([build.zero("float32")] * size))
        half = [[register() for _ in range(size)] for _ in range(count)]
        allocations = [AllocBuffer(buffer) for row in (*given, *half) for buffer in row]

        def down(a: int, b: int, k: Expr) -> Expr:
            return line([row[b][k] for row in given])[a]

        def across(a: int, b: int, k: Expr) -> Expr:
            return line([buffer[k] for buffer in half[a]])[b]

        fill = [
            lane(lambda k, a=a, b=b: BufferStore(given[a][b], load(a, b, k), [k]))
            for a, b in product(range(size), repeat=2)
        ]
        turn = [
            lane(lambda k, a=a, b=b: BufferStore(half[a][b], down(a, b, k), [k]))
            for a, b in product(range(count), range(size))
        ]
        store = [lane(lambda k, a=a, b=b: write(a, b, k, across(a, b, k))) for a, b in product(range(count), repeat=2)]
        return build.seq(*allocations, *fill, *turn, *store)


def _kernel_line(g: Sequence[Expr]) -> list[Expr]:
    """G."""
    half = tirx.const(0.5, "float32")
    return [g[0], (g[0] + g[2] + g[1]) * half, (g[0] + g[2] - g[1]) * half, g[2]]


def _patch_line(d: Sequence[Expr]) -> list[Expr]:
    """B^T."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _result_line(m: Sequence[Expr]) -> list[Expr]:
    """A^T."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
