"""Convolutions with 3x3 kernels by Winograd's algorithm: 16 multiplications for 4 results instead of 36.

The result is cut into tiles of 2x2, each computed from a patch of 4x4 of the array:

    y = A^T ((G w G^T) * (B^T d B)) A        (* element by element, summed over the input channels)

For each of the 16 positions in a patch, the sum is a matrix product of all patches and the kernel. One block of patches
after the other is transformed, multiplied and transformed back, so that intermediate results stay in the cache. The
gradient with respect to the kernel is a sum over patches, with similar transforms.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015, F(2x2, 3x3) and F(3x3, 2x2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, Stmt

from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.contraction import match, most_terms
from tvmfun.lower.schedule.cpu.contraction_nest import emit_contraction
from tvmfun.lower.schedule.stages import AnyStage, Stage, is_map
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr
from tvmfun.lower.tir.micro_kernels.winograd import Inside, Panels, Steps, WinogradTransform

# The sides of a kernel, of a tile of the result, and of the patch of the image that the tile is computed from.
TAPS = 3
OUT = 2
PATCH = 4
POSITIONS = PATCH * PATCH

# Patches of a block: enough to amortize reading the kernel, and few enough to stay in the L2 cache.
PATCHES = range(24, 97)
BLOCK_BYTES = 1 << 20
DEPTHS = range(64, 321)
# Parts of a kernel gradient, each with its own sums. The number is fixed, so rounding does not depend on the cores.
PARTS = 8
# The fewest blocks of a part.
BLOCKS_OF_A_PART = 2
# The most bytes of a part's sums: half of an L2 cache.
SUM_BYTES = 1 << 19
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
    """Whether a map is an array inside a margin of zeros along single axes, with neighbouring channels."""
    value = stage.value
    if not build.is_choice(value):
        return False
    condition, array, other = value.args
    if not isinstance(array, ir.TensorLoad) or not isinstance(other, tirx.FloatImm) or other.value != 0:
        return False
    *images, down, across, channel = stage.space
    depends = [[build.uses(term, axis.var) for axis in (down, across)] for term in _conjuncts(condition)]
    others = any(build.uses(condition, axis.var) for axis in (*images, channel))
    steps = [build.stride(array.source, array.indices, axis, stage.domain) for axis in (down, across, channel)]
    is_regular = all(isinstance(step, int) for step in steps) and steps[-1] == 1 and build.is_static(array.source)
    return is_regular and not others and all(sum(pair) == 1 for pair in depends)


def _conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that all have to hold."""
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


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
    """The parts that convolutions and gradients share: patches, and results by way of the epilogues."""

    def __init__(self, plan: Winograd, machine: Machine, tasks: int) -> None:
        self.plan, self.stage, self.axes, self.block = plan, plan.stage, plan.axes, plan.block
        self.machine, self.tasks = machine, tasks
        self.lanes, self.width = machine.lanes("float32"), machine.tile_columns("float32")
        self.channels, self.features = self.axes.channel.extent, self.axes.feature.extent
        self.tiles = self.axes.tiles
        self.blocks = Axis.fresh(self.axes.row, build.volume(self.tiles) // self.block)
        # One spare patch, so that positions are not a power of two apart, where they would compete for few cache sets.
        self.patches = build.scratch([POSITIONS, self.block + 1, self.channels], "float32", "patches")
        # A buffer of results for the epilogues.
        self.results = build.scratch([TAPS, TAPS, self.features], "float32", "results")

    def at(self, block: Expr, i: Expr, make: Callable[[Expr, Env], Stmt]) -> Stmt:
        """The statement that ``make`` writes for a patch of a block, from its number and its first indices."""
        at = build.unflatten(self.tiles, block * self.block + i)
        *images, row, column = (at[axis.var] for axis in self.tiles)
        indices = {self.axes.row.var: row * OUT, self.axes.column.var: column * OUT}
        indices.update(zip((axis.var for axis in self.axes.images), images, strict=True))
        # Bound to variables, because the conditions of a margin repeat them.
        known = {var: ir.Var(var.name, var.ty) for var in indices}
        return build.seq(*(tirx.Bind(known[var], value) for var, value in indices.items()), make(i, known))

    def patch(self, i: Expr, at: Env) -> Stmt:
        """B^T d B of a patch."""
        margin, array, axes = self.plan.margin, self.plan.array, self.axes
        inside = None
        if margin is not None:
            indices = zip(margin.index, array.indices, strict=True)
            inner = {axis: index for axis, index in indices if isinstance(axis, ir.Var)}
            condition, array, _ = (build.substitute(value, inner) for value in margin.value.args)
            inside = self._inside(condition, at)
        source, steps, start = self.square(array, (axes.down, axes.across), at)
        transform = WinogradTransform("patch", self.lanes, self.between(self.patches), steps, inside is not None)
        return transform.call(self.patches[0, i, 0], source, self.channels // self.lanes, start, inside)

    def _inside(self, condition: Expr, at: Env) -> Inside:
        """The rows and columns of a patch for which a condition on the indices of the array holds."""
        axes = self.axes
        both = [[], []]
        for term in _conjuncts(condition):
            both[build.uses(term, axes.across.var) or build.uses(term, axes.column.var)].append(term)

        def bits(axis: Axis, terms: Sequence[Expr]) -> Expr:
            number: Expr = tirx.const(0, "int32")
            for k in range(PATCH):
                here = {**at, axis.var: build.index(axis, k)}
                holds = tirx.all(*(build.substitute(term, here) for term in terms)) if terms else True
                number = number + tirx.Select(holds, tirx.const(1 << k, "int32"), tirx.const(0, "int32"))
            return number

        return Inside(*map(bits, (axes.down, axes.across), both))

    def square(self, load: ir.TensorLoad, axes: tuple[Axis, Axis], at: Env) -> tuple[ir.TensorLoad, Steps, Expr | int]:
        """The array of a load, and the steps and the start of the square that it reads along two axes."""
        domain, zero = self.stage.domain, lambda axis: build.index(axis, 0)
        steps = Steps(*(build.stride(load.source, load.indices, axis, domain) for axis in axes))
        first = {axis.var: zero(axis) for axis in (*axes, self.axes.channel, self.axes.feature)}
        start = build.offset(load.source, [build.substitute(index, {**first, **at}) for index in load.indices])
        return load.source[(0,) * len(load.indices)], steps, start

    def between(self, buffer: Buffer) -> Steps:
        """The steps between the positions of a square, which are the first index of a buffer."""
        step = math.prod(map(int, buffer.shape[1:]))
        return Steps(PATCH * step, step)

    def into_panels(self, matrix: str, buffer: Buffer, source: Steps) -> WinogradTransform:
        """The transform that stores to a buffer of positions, panels of features, rows and columns of a panel."""
        panels = Panels(self.width // self.lanes, math.prod(map(int, buffer.shape[2:])))
        return WinogradTransform(matrix, self.lanes, self.between(buffer), source, panels=panels)

    def finish(
        self, transform: Callable[..., WinogradTransform], side: int, square: Expr, at: Env, axes: Sequence[Axis]
    ) -> Stmt:
        """Transforms all features of a square and stores the results, by way of a buffer if epilogues follow.

        Args:
            transform: returns the transform that stores with these steps.
            side: the side of the results.
            square: the first element of the square.
            at: the indices of the first result.
            axes: the axes of the output down and across the results.
        """
        stage, feature, vectors = self.stage, self.axes.feature, self.features // self.lanes
        parts = self.plan.parts if self.plan.parts > 1 else None
        if not stage.epilogues:
            first = stage.output[tuple(stage.at({**at, feature.var: build.index(feature, 0)}))]
            steps = Steps(*(build.stride(stage.output, stage.index, axis, stage.domain) for axis in axes))
            return transform(steps).call(first, square, vectors, parts=parts)
        results, steps = self.results, Steps(TAPS * self.features, self.features)
        down, across = (Axis.fresh(axis, side) for axis in axes)

        def element(env: Env, k: Expr) -> Stmt:
            offsets = {axes[0].var: env[down.var], axes[1].var: env[across.var]}
            here = {var: at[var] + offset for var, offset in offsets.items()}
            return stage.store({**at, **here, feature.var: k}, results[(*offsets.values(), k)])

        def row(env: Env) -> Stmt:
            vector = lambda i: build.vectorized(feature, self.lanes, lambda k: element(env, i * self.lanes + k))
            return build.loop(feature, vectors, vector)

        call = transform(steps).call(results[0, 0, 0], square, vectors, parts=parts)
        return build.seq(call, build.nest([down, across], {}, row))


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
            scratch = map(AllocBuffer, (self.patches, self.products, *([self.results] if self.stage.epilogues else [])))
            return build.seq(*scratch, each(self.patch), self._multiply(), each(self._results))

        blocks = build.parallel_nest([self.blocks], {}, task, self.tasks)
        return build.seq(AllocBuffer(self.kernel), self._transform_kernel(), blocks)

    def _transform_kernel(self) -> Stmt:
        """G w G^T, panel by panel, so that results are stored along the panels."""
        axes, vectors = self.axes, self.width // self.lanes
        panel = Axis.fresh(axes.feature, self.features // self.width)
        wanted = build.ceil_div(self.tasks, panel.extent)
        divisors = (n for n in range(1, self.channels + 1) if self.channels % n == 0)
        part = Axis.fresh(axes.channel, next((n for n in divisors if n >= wanted), self.channels))
        within = Axis.fresh(axes.channel, self.channels // part.extent)

        def channel(env: Env) -> Stmt:
            here = {axes.channel.var: env[part.var] * within.extent + env[within.var]}
            source, steps, start = self.square(self.plan.other, (axes.down, axes.across), here)
            first = self.kernel[0, env[panel.var], here[axes.channel.var], 0]
            transform = self.into_panels("kernel", self.kernel, steps)
            return transform.call(first, source, vectors, start + env[panel.var] * self.width)

        return build.parallel_nest([panel, part, within], {}, channel, self.tasks)

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
        transform = partial(WinogradTransform, "result", self.lanes, source=self.between(self.products))
        return self.finish(transform, OUT, self.products[0, i, 0], at, (self.axes.row, self.axes.column))


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
        source, steps, start = self.square(self.plan.other, (self.axes.row, self.axes.column), at)
        transform = self.into_panels("cotangent", self.cotangents, steps)
        return transform.call(self.cotangents[0, 0, i, 0], source, self.features // self.lanes, start)

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
        axes, step = self.axes, self.channels * self.features
        part = POSITIONS * step if self.plan.parts > 1 else None
        transform = partial(WinogradTransform, "gradient", self.lanes, source=Steps(PATCH * step, step), part=part)

        def channel(env: Env) -> Stmt:
            at = {**env, axes.down.var: build.index(axes.down, 0), axes.across.var: build.index(axes.across, 0)}
            square = self.sums[0, 0, env[axes.channel.var], 0]
            body = self.finish(transform, TAPS, square, at, (axes.down, axes.across))
            return build.seq(AllocBuffer(self.results), body) if self.stage.epilogues else body

        return build.parallel_nest([axes.channel], {}, channel, self.tasks)


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
