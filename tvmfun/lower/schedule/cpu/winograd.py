"""Convolutions with 3x3 kernels by Winograd's algorithm: 16 multiplications for 4 results instead of 36.

The result is cut into tiles of 2x2, each computed from a patch of 4x4 of the array:

    y = A^T ((G w G^T) * (B^T d B)) A        (* element by element, summed over the input channels)

For each of the 16 positions in a patch, the sum is a matrix product of all patches and the kernel. One block of patches
after the other is transformed, multiplied and transformed back, so that intermediate results stay in the cache. The
gradient with respect to the kernel is a sum over patches, with similar transforms.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015, F(2x2, 3x3) and F(3x3, 2x2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, Stmt

from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.contraction import match, most_terms
from tvmfun.lower.schedule.cpu.emit import emit_contraction
from tvmfun.lower.schedule.cpu.transpose import ramp
from tvmfun.lower.schedule.stages import AnyStage, Stage, is_map
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr

TAPS, OUT, PATCH = 3, 2, 4
POSITIONS = PATCH * PATCH

# Patches of a block: enough to amortize reading the kernel, and few enough to stay in the L2 cache.
PATCHES = range(24, 97)
BLOCK_BYTES = 1 << 20
DEPTHS = range(64, 321)
# Parts of a kernel gradient, each with its own sums. Their number is fixed, so that rounding does not depend on the
# cores. A part has at least so many blocks, and its sums have at most so many bytes, half of an L2 cache.
PARTS, BLOCKS_OF_A_PART, SUM_BYTES = 8, 2, 1 << 19
# With fewer patches, the transform of the kernel costs more than it saves.
MIN_PATCHES = 96


@dataclass(frozen=True)
class Axes:
    """The axes of a convolution or of its gradient; ``images`` is empty for a single image."""

    images: tuple[Axis, ...]
    row: Axis
    column: Axis
    down: Axis
    across: Axis
    channel: Axis
    feature: Axis

    def fit(self, array: ir.TensorLoad, other: ir.TensorLoad, is_kernel: bool) -> bool:
        """Whether an array, and a kernel or a cotangent, are read at the indices of a convolution over these axes."""
        images = [axis.var for axis in self.images]
        indices = [*images, self.row.var + self.down.var, self.column.var + self.across.var, self.channel.var]
        by_kernel = [self.down.var, self.across.var, self.channel.var, self.feature.var]
        by_output = [*images, self.row.var, self.column.var, self.feature.var]
        return _reads_at(array, indices) and _reads_at(other, by_kernel if is_kernel else by_output)

    @property
    def tiles(self) -> list[Axis]:
        """The axes of the tiles of 2x2."""
        return [*self.images, *(Axis.fresh(axis, axis.extent // OUT) for axis in (self.row, self.column))]


@dataclass(frozen=True, eq=False)
class Winograd:
    """A convolution, or its gradient with respect to the kernel, to compute by Winograd's algorithm.

    Args:
        stage: the stage.
        axes: its axes.
        array: the load of the array.
        other: the load of the kernel or the cotangent.
        block: the number of patches to transform at a time.
        parts: for a gradient, the number of parts that are added up independently; with one, all threads share blocks.
        margin: the map that pads the array, if there is one.
    """

    stage: Stage
    axes: Axes
    array: ir.TensorLoad
    other: ir.TensorLoad
    block: int
    parts: int = 1
    margin: Stage | None = None

    @property
    def epilogues(self) -> tuple[Stage, ...]:
        """The maps on each finished element."""
        return self.stage.epilogues

    def writes(self) -> list[Buffer]:
        """The buffers that the stage writes."""
        return self.stage.writes()

    def reads(self) -> list[ir.TensorLoad]:
        """All loads except those of the margin's result, which is never stored."""
        own = self.stage.reads()
        if self.margin is None:
            return own
        return [*self.margin.reads(), *(load for load in own if not load.source.same_as(self.array.source))]


def apply_winograd(stages: Sequence[AnyStage], temps: Sequence[Buffer], machine: Machine) -> list[AnyStage]:
    """Replaces the convolutions that become faster, together with their margins."""
    result: list[AnyStage] = []
    for stage in stages:
        matched = _match(stage, machine)
        if matched is not None:
            source = matched.array.source
            margin = next((s for s in result if is_map(s) and s.output.same_as(source)), None)
            readers = [load for s in stages for load in s.reads() if load.source.same_as(source)]
            is_private = any(buffer.same_as(source) for buffer in temps) and len(readers) == 1
            if margin is not None and is_private and _is_margin(margin):
                result.remove(margin)
                matched = replace(matched, margin=margin)
        result.append(matched or stage)
    return result


def _is_margin(stage: Stage) -> bool:
    """Whether a map is an array inside a constant margin."""
    value = stage.value
    if not isinstance(value, ir.Call) or value.op.name != "prim.if_then_else":
        return False
    return isinstance(value.args[1], ir.TensorLoad) and isinstance(value.args[2], tirx.FloatImm)


def _match(stage: AnyStage, machine: Machine) -> Winograd | None:
    """A convolution with a 3x3 kernel, or the gradient of one for its kernel, that is large enough."""
    contraction = match(stage) if isinstance(stage, Stage) else None
    if contraction is None or stage.dtype != "float32":
        return None
    array, other = contraction.left, contraction.right
    if any(not isinstance(load, ir.TensorLoad) or str(load.ty) != "float32" for load in (array, other)):
        return None
    axes = next((axes for axes in _readings(stage) if axes.fit(array, other, axes.row in stage.space)), None)
    if axes is None or not all(isinstance(axis.extent, int) for axis in stage.domain):
        return None
    if axes.down.extent != TAPS or axes.across.extent != TAPS or axes.row.extent % OUT or axes.column.extent % OUT:
        return None
    if min(axes.channel.extent, axes.feature.extent) < machine.settings.winograd_channels:
        return None
    if axes.channel.extent % machine.lanes("float32") or axes.feature.extent % machine.tile_columns("float32"):
        return None
    patches = build.points(axes.tiles)
    if patches < MIN_PATCHES:
        return None
    if axes.row in stage.space:
        block, parts = _block(axes, patches, machine), 1
    else:
        block, parts = _depth(axes, patches, machine)
    return None if block is None else Winograd(stage, axes, array, other, block, parts)


def _readings(stage: Stage) -> Iterator[Axes]:
    """Yields the axes of a sum of products as a convolution, and as the gradient of one."""
    if len(stage.reduce) == 3 and len(stage.space) in (3, 4):
        *images, row, column, feature = stage.space
        yield Axes(tuple(images), row, column, *stage.reduce, feature)
    if len(stage.space) == 4 and len(stage.reduce) in (2, 3):
        *images, row, column = stage.reduce
        yield Axes(tuple(images), row, column, *stage.space)


def _reads_at(load: ir.TensorLoad, expected: Sequence[Expr]) -> bool:
    """Whether a load has these indices, apart from axes of size one."""
    indices = [index for index in load.indices if not isinstance(index, tirx.IntImm)]
    return len(indices) == len(expected) and all(map(tvm_ffi.structural_equal, indices, expected))


def _block(axes: Axes, patches: int, machine: Machine) -> int | None:
    """The number of patches to transform at a time, such that all cores have equally many blocks."""
    fitting = [n for n in PATCHES if patches % n == 0 and patches // n % machine.cores == 0]
    nbytes = _patch_bytes(axes)
    return max((n for n in fitting if n * nbytes <= BLOCK_BYTES), default=min(fitting, default=None))


def _patch_bytes(axes: Axes) -> int:
    """The bytes of a transformed patch, of its channels and its features."""
    return POSITIONS * (axes.channel.extent + axes.feature.extent) * build.bits("float32") // 8


def _depth(axes: Axes, patches: int, machine: Machine) -> tuple[int | None, int]:
    """The number of patches of a gradient to add up at a time, at most one block of a contraction, and of parts."""
    most = most_terms(machine.tile_columns("float32"), "float32", machine)
    depths = [n for n in DEPTHS if patches % n == 0 and n <= most]
    sums = POSITIONS * axes.channel.extent * axes.feature.extent * build.bits("float32") // 8
    if sums <= SUM_BYTES and PARTS % machine.cores == 0:
        most_in_cache = (BLOCK_BYTES - sums) // _patch_bytes(axes)
        blocks = {n: patches // n for n in depths if n <= most_in_cache}
        fitting = [n for n, count in blocks.items() if count % PARTS == 0 and count // PARTS >= BLOCKS_OF_A_PART]
        if fitting:
            return max(fitting), PARTS
    return max(depths, default=None), 1


def emit_winograd(plan: Winograd, machine: Machine, tasks: int) -> Stmt:
    """The loops of the whole stage."""
    emitter = _Convolution if plan.axes.row in plan.stage.space else _KernelGradient
    return emitter(plan, machine, tasks).emit()


class _Emitter:
    """The parts that convolutions and gradients share: patches, and transforms in registers."""

    def __init__(self, plan: Winograd, machine: Machine, tasks: int) -> None:
        self.plan, self.stage, self.axes, self.block = plan, plan.stage, plan.axes, plan.block
        self.machine, self.tasks = machine, tasks
        self.lanes, self.width = machine.lanes("float32"), machine.tile_columns("float32")
        self.channels, self.features = self.axes.channel.extent, self.axes.feature.extent
        self.tiles = self.axes.tiles
        self.blocks = Axis.fresh(self.axes.row, build.volume(self.tiles) // self.block)
        # One spare patch, so that positions are not a power of two apart, where they would compete for few cache sets.
        self.patches = build.scratch([POSITIONS, self.block + 1, self.channels], "float32", "patches")

    def at(self, block: Expr, i: Expr, make: Callable[[Expr, Env], Stmt]) -> Stmt:
        """The statement that ``make`` writes for a patch of a block, from its number and its first indices."""
        at = build.unflatten(self.tiles, block * self.block + i)
        *images, row, column = (at[axis.var] for axis in self.tiles)
        indices = {self.axes.row.var: row * OUT, self.axes.column.var: column * OUT}
        indices.update(zip((axis.var for axis in self.axes.images), images, strict=True))
        # Bound to variables, because they occur in hundreds of expressions.
        known = {var: ir.Var(var.name, var.ty) for var in indices}
        return build.seq(*(tirx.Bind(known[var], value) for var, value in indices.items()), make(i, known))

    def offset(self, a: int, b: int) -> Env:
        """The indices of a position in the kernel."""
        axes = self.axes
        return {axes.down.var: build.index(axes.down, a), axes.across.var: build.index(axes.across, b)}

    def patch(self, i: Expr, at: Env) -> Stmt:
        """B^T d B of a patch."""

        def vector(begin: Expr) -> Stmt:
            def load(a: int, b: int, k: Expr) -> Expr:
                return self._array({**at, **self.offset(a, b), self.axes.channel.var: begin + k})

            def write(a: int, b: int, k: Expr, value: Expr) -> Stmt:
                return BufferStore(self.patches, value, [a * PATCH + b, i, begin + k])

            return self.transformed(PATCH, load, _patch_line, write)

        return self.vectors(self.axes.channel, vector)

    def _array(self, here: Env) -> Expr:
        """The element of the array, or of its margin, at these indices."""
        margin = self.plan.margin
        if margin is None:
            return build.substitute(self.plan.array, here)
        pairs = zip(margin.index, self.plan.array.indices, strict=True)
        axes = {axis: build.substitute(index, here) for axis, index in pairs if isinstance(axis, ir.Var)}
        return build.substitute(margin.value, axes)

    def vectors(self, axis: Axis, make: Callable[[Expr], Stmt]) -> Stmt:
        """A loop over vectors along an axis."""
        return build.loop(axis, axis.extent // self.lanes, lambda i: make(i * self.lanes))

    def vectors_of_panels(self, make: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """A loop over vectors of features; ``make`` gets the first feature, its panel and its column in that."""
        per_panel = self.width // self.lanes

        def vector(i: Expr) -> Stmt:
            # Bound to variables: a quotient in each of many indices takes long to simplify.
            panel, column = (ir.Var(name, i.ty) for name in ("panel", "column"))
            binds = (tirx.Bind(panel, i // per_panel), tirx.Bind(column, i % per_panel * self.lanes))
            return build.seq(*binds, make(i * self.lanes, panel, column))

        return build.loop(self.axes.feature, self.features // self.lanes, vector)

    def transformed(
        self,
        size: int,
        load: Callable[[int, int, Expr], Expr],
        line: Callable[[Sequence[Expr]], list[Expr]],
        write: Callable[[int, int, Expr, Expr], Stmt],
        more: tuple[int, Callable[[Expr, int, int, Expr], Expr]] | None = None,
    ) -> Stmt:
        """Transforms the vectors of a square along its columns and then along its rows, in registers.

        Args:
            size: the side of the square.
            load: the element at a position and lane.
            line: the transform of a column or row.
            write: the statement that stores a result at a position and lane.
            more: a number of further squares and their elements, which are added first.
        """
        lane = lambda make: build.vectorized(self.axes.feature, self.lanes, make)
        whole = ramp(build.index(self.axes.feature, 0), self.lanes)
        allocations: list[Stmt] = []

        def register() -> Buffer:
            buffer = build.scratch([self.lanes], "float32", "line")
            allocations.append(AllocBuffer(buffer))
            return buffer

        square = [[register() for _ in range(size)] for _ in range(size)]
        positions = list(product(range(size), repeat=2))
        fill = [lane(lambda k, a=a, b=b: BufferStore(square[a][b], load(a, b, k), [k])) for a, b in positions]
        if more is not None:
            count, addend = more

            def added(i: Expr) -> Stmt:
                def one(a: int, b: int, k: Expr) -> Stmt:
                    return BufferStore(square[a][b], square[a][b][k] + addend(i, a, b, k), [k])

                return build.seq(*(lane(lambda k, a=a, b=b: one(a, b, k)) for a, b in positions))

            fill.append(build.loop(self.axes.row, count, added))
        turn: list[Stmt] = []

        def turned(buffers: Sequence[Buffer]) -> list[Buffer]:
            """The registers of a transformed column; those that it leaves as they are stay."""
            vectors = [buffer[whole] for buffer in buffers]
            results = []
            for value in line(vectors):
                same = next((buffer for buffer, vector in zip(buffers, vectors, strict=True) if vector is value), None)
                if same is None:
                    same = register()
                    turn.append(BufferStore(same, value, [whole]))
                results.append(same)
            return results

        half = list(zip(*(turned([row[b] for row in square]) for b in range(size)), strict=True))
        across = lambda a, b, k: line([buffer[k] for buffer in half[a]])[b]
        store = [
            lane(lambda k, a=a, b=b: write(a, b, k, across(a, b, k))) for a, b in product(range(len(half)), repeat=2)
        ]
        return build.seq(*allocations, *fill, *turn, *store)


class _Convolution(_Emitter):
    """A convolution: the kernel is transformed once, and then one block of patches after the other."""

    def __init__(self, plan: Winograd, machine: Machine, tasks: int) -> None:
        super().__init__(plan, machine, tasks)
        # In panels of columns, the order in which register tiles read it.
        shape = [POSITIONS, self.features // self.width, self.channels, self.width]
        self.kernel = build.buffer(shape, "float32", "kernel")
        self.products = build.scratch([POSITIONS, self.block + 1, self.features], "float32", "products")

    def emit(self) -> Stmt:
        """The loops of the whole stage."""

        def task(env: Env) -> Stmt:
            each = lambda make: build.loop(self.axes.row, self.block, lambda i: self.at(env[self.blocks.var], i, make))
            scratch = [AllocBuffer(self.patches), AllocBuffer(self.products)]
            return build.seq(*scratch, each(self.patch), self._multiply(), each(self._results))

        blocks = build.parallel_nest([self.blocks], {}, task, self.tasks)
        return build.seq(AllocBuffer(self.kernel), self._transform_kernel(), blocks)

    def _transform_kernel(self) -> Stmt:
        """G w G^T, channel by channel."""
        channel, feature = self.axes.channel, self.axes.feature

        def vector(env: Env, begin: Expr, panel: Expr, column: Expr) -> Stmt:
            def load(a: int, b: int, k: Expr) -> Expr:
                return build.substitute(self.plan.other, {**env, **self.offset(a, b), feature.var: begin + k})

            def write(a: int, b: int, k: Expr, value: Expr) -> Stmt:
                return BufferStore(self.kernel, value, [a * PATCH + b, panel, env[channel.var], column + k])

            return self.transformed(TAPS, load, _kernel_line, write)

        body = lambda env: self.vectors_of_panels(partial(vector, env))
        return build.parallel_nest([channel], {}, body, self.tasks)

    def _multiply(self) -> Stmt:
        """For each position, the product of patches and kernel."""
        position, panel = Axis.fresh(self.axes.row, POSITIONS), Axis.fresh(self.axes.row, self.features // self.width)
        patch, column = Axis.fresh(self.axes.row, self.block), Axis.fresh(self.axes.feature, self.width)
        channel = Axis.fresh(self.axes.channel, self.channels)
        left = self.patches[position.var, patch.var, channel.var]
        right = self.kernel[position.var, panel.var, channel.var, column.var]
        space, index = (position, panel, patch, column), (position.var, patch.var, panel.var * self.width + column.var)
        return _product(space, (channel,), self.products, index, left * right, self.machine, 1)

    def _results(self, i: Expr, at: Env) -> Stmt:
        """A^T m A of a patch, and the epilogues."""
        row, column, feature = (axis.var for axis in (self.axes.row, self.axes.column, self.axes.feature))

        def vector(begin: Expr) -> Stmt:
            def load(a: int, b: int, k: Expr) -> Expr:
                return self.products[a * PATCH + b, i, begin + k]

            def write(a: int, b: int, k: Expr, value: Expr) -> Stmt:
                return self.stage.store({**at, row: at[row] + a, column: at[column] + b, feature: begin + k}, value)

            return self.transformed(PATCH, load, _result_line, write)

        return self.vectors(self.axes.feature, vector)


class _KernelGradient(_Emitter):
    """A gradient: blocks of patches and tiles of the cotangent are transformed, multiplied and added up.

    Each part of the blocks has its own sums, because a core waits when it writes what another has read. Where sums are
    large or blocks few, all threads work on one block after the other instead. The transforms are those of F(3x3, 2x2):
    tiles of the cotangent take the role of kernels, with 3x3 results.
    """

    def __init__(self, plan: Winograd, machine: Machine, tasks: int) -> None:
        super().__init__(plan, machine, tasks)
        shape = [POSITIONS, self.features // self.width, self.block + 1, self.width]
        self.cotangents = build.buffer(shape, "float32", "cotangents")
        self.parts = Axis.fresh(self.axes.row, plan.parts)
        self.sums = build.buffer([plan.parts, POSITIONS, self.channels, self.features], "float32", "sums")
        self.blocks = Axis.fresh(self.axes.row, self.blocks.extent // plan.parts)
        # Within a part there is one thread.
        self.inner_tasks = 1 if plan.parts > 1 else tasks

    def emit(self) -> Stmt:
        """The loops of the whole stage."""
        patch = Axis.fresh(self.axes.row, self.block)
        buffers = [AllocBuffer(self.patches), AllocBuffer(self.cotangents)]

        def block(env: Env) -> Stmt:
            number = env[self.parts.var] * self.blocks.extent + env[self.blocks.var]

            def transform(inner: Env) -> Stmt:
                both = lambda i, at: build.seq(self.patch(i, at), self._cotangent(i, at))
                return self.at(number, inner[patch.var], both)

            return build.seq(build.parallel_nest([patch], env, transform, self.inner_tasks), self._multiply(env))

        part = lambda env: build.nest([self.blocks], env, block)
        parts = build.parallel_nest([self.parts], {}, part, self.tasks)
        return build.seq(AllocBuffer(self.sums), build.once_per_thread(buffers, parts), self._results())

    def _cotangent(self, i: Expr, at: Env) -> Stmt:
        """G g G^T of a tile of the cotangent."""
        row, column, feature = (axis.var for axis in (self.axes.row, self.axes.column, self.axes.feature))

        def vector(begin: Expr, panel: Expr, first: Expr) -> Stmt:
            def load(a: int, b: int, k: Expr) -> Expr:
                here = {**at, row: at[row] + a, column: at[column] + b, feature: begin + k}
                return build.substitute(self.plan.other, here)

            def write(a: int, b: int, k: Expr, value: Expr) -> Stmt:
                return BufferStore(self.cotangents, value, [a * PATCH + b, panel, i, first + k])

            return self.transformed(OUT, load, _cotangent_line, write)

        return self.vectors_of_panels(vector)

    def _multiply(self, env: Env) -> Stmt:
        """For each position, the product of patches and cotangents, stored for the first block and then added."""
        position, panel = Axis.fresh(self.axes.row, POSITIONS), Axis.fresh(self.axes.row, self.features // self.width)
        channel, column = (Axis.fresh(self.axes.channel, n) for n in (self.channels, self.width))
        patch = Axis.fresh(self.axes.row, self.block)
        left = self.patches[position.var, patch.var, channel.var]
        right = self.cotangents[position.var, panel.var, patch.var, column.var]
        space = (position, panel, channel, column)
        index = (env[self.parts.var], position.var, channel.var, panel.var * self.width + column.var)
        later = None if self.blocks.extent == 1 else build.is_later(env[self.blocks.var])
        return _product(space, (patch,), self.sums, index, left * right, self.machine, self.inner_tasks, later)

    def _results(self) -> Stmt:
        """A^T m A, channel by channel, and the epilogues."""
        channel, feature = self.axes.channel, self.axes.feature

        def vector(env: Env, begin: Expr) -> Stmt:
            def sums(part: Expr | int, a: int, b: int, k: Expr) -> Expr:
                return self.sums[part, a * PATCH + b, env[channel.var], begin + k]

            def write(a: int, b: int, k: Expr, value: Expr) -> Stmt:
                return self.stage.store({**env, **self.offset(a, b), feature.var: begin + k}, value)

            others = (self.plan.parts - 1, lambda i, a, b, k: sums(i + 1, a, b, k)) if self.plan.parts > 1 else None
            return self.transformed(PATCH, partial(sums, 0), _gradient_line, write, others)

        body = lambda env: self.vectors(feature, lambda begin: vector(env, begin))
        return build.parallel_nest([channel], {}, body, self.tasks)


def _product(
    space: tuple[Axis, ...],
    reduce: tuple[Axis, ...],
    output: Buffer,
    index: tuple[Expr, ...],
    value: Expr,
    machine: Machine,
    tasks: int,
    later: Expr | None = None,
) -> Stmt:
    """The loops of a product of matrices, which is added to the output if ``later`` holds."""
    stage = Stage("product", space, reduce, output, index, value, tirx.Add, build.zero("float32"))
    return emit_contraction(match(stage), {}, 0, machine, tasks, later)  # type: ignore[arg-type]  # it is one


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


def _cotangent_line(g: Sequence[Expr]) -> list[Expr]:
    """G of F(3, 2)."""
    half = tirx.const(0.5, "float32")
    return [g[0], (g[0] + g[1]) * half, (g[0] - g[1]) * half, g[1]]


def _gradient_line(m: Sequence[Expr]) -> list[Expr]:
    """A^T of F(3, 2)."""
    return [m[0] + m[1] + m[2], m[1] - m[2], m[1] + m[2] - m[3]]
