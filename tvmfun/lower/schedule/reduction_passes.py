"""Passes over reductions: joined axes, operands computed in advance, and long sums cut in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import tirx

from tvmfun.core import dims
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.stages import Stage, accumulator, is_view, is_window
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume
from tvmfun.ops.formula import opaque

# A reduction with fewer independent tasks than this is cut into pieces. All these numbers are fixed, so that results do
# not depend on the number of threads.
MIN_TASKS = 16
# The most pieces.
MAX_CHUNKS = 32
# The least work, in scalar operations, that is cut into pieces.
SPLIT_WORK = 1 << 16
# The least work that is cut into pieces if there are at least ``MIN_TASKS // 2`` tasks.
_LONG_WORK = 1 << 18
# Operands that are used at least this often are computed in advance.
MIN_REUSE = 4


def along_reduced_axis(stage: Stage, prefix: int = 0) -> bool:
    """Whether lanes along the last reduced axis need fewer gathers than lanes along the last remaining axis.

    A load that is contiguous along the lanes is a vector, a load that does not depend on them is broadcast, and any
    other is a gather. If the gathers are equally many, the direction with more vectors wins.
    """
    if len(stage.space) == prefix:
        return True
    loads = build.loads(stage.value)

    def cost(axis: Axis) -> tuple[int, int]:
        strides = [build.stride(load.source, load.indices, axis, stage.domain) for load in loads]
        return sum(step not in (0, 1) for step in strides), -strides.count(1)

    rows, columns = cost(stage.reduce[-1]), cost(stage.space[-1])
    return rows < columns or (rows == columns and rows[0] > 0 and rows[1] == 0)


def unrolled(stage: Stage, machine: Machine) -> list[Stage]:
    """Turns a reduction of few terms into maps, each of which combines the result of the one before with a term.

    Their lanes are neighbouring results. Producers and readers can be maps of the same kernel, and vectors stay in
    registers.

    Returns:
        The maps; the last one has the output. The reduction itself if it has many terms, or one result.
    """
    terms = volume(stage.reduce)
    if not stage.space or not isinstance(terms, int) or terms > _few(stage, machine):
        return [stage]
    dtype = accumulator(stage.dtype)
    maps: list[Stage] = []
    # TVM drops a plain 0.0, so that a sum of -0.0 would not be 0.0.
    is_zero = isinstance(stage.init, tirx.FloatImm) and stage.init.value == 0
    total = opaque(0.0, dtype) if is_zero else build.cast(stage.init, dtype)
    for number in range(terms):
        last = number == terms - 1
        space = stage.space if last else tuple(Axis.fresh(axis, axis.extent) for axis in stage.space)
        env = {axis.var: own.var for axis, own in zip(stage.space, space, strict=True)}
        env |= build.unflatten(stage.reduce, tirx.const(number, str(stage.reduce[0].var.ty)))
        if maps:
            total = maps[-1].output[tuple(axis.var for axis in space)]
        value = stage.combine(total, build.cast(build.substitute(stage.value, env), dtype))
        if last:
            maps.append(replace(stage, reduce=(), value=build.cast(value, stage.dtype), combine=None, init=None))
        else:
            output = build.buffer([axis.extent for axis in space], dtype, stage.name)
            maps.append(Stage(stage.name, space, (), output, tuple(axis.var for axis in space), value))
    return maps


def _few(stage: Stage, machine: Machine) -> int:
    """The most terms of a reduction to unroll: less than a vector, or half of one if neighbouring results fill vectors.

    Windows over many channels are not unrolled: all channels of an element are read before the next element. For
    integers the limit is half as high: TVM's simplifier takes long for sums of choices between them.
    """
    lanes = machine.lanes("float32")
    last = stage.space[-1]
    if along_reduced_axis(stage) or not dims.always_le(lanes, last.extent):
        return lanes - 1 if accumulator(stage.dtype).startswith("float") else lanes // 2
    return 0 if is_window(stage) and not is_window(stage, [last]) else lanes // 2


def merge_reduced_axes(stage: Stage, is_flat: bool = False) -> Stage:
    """Joins neighbouring reduced axes over which every load is contiguous, for longer vectorized loops.

    Indices may leave their dimension if ``is_flat``, as on CPUs.
    """
    done: list[Axis] = []
    pending = list(stage.reduce)
    while len(pending) > 1:
        *rest, first, second = pending
        read = build.accesses(stage.value)
        alike = build.is_only_in_indices(stage.value, (first, second)) and all(
            build.walks_as_one(access, first, second, stage.domain) for access in read
        )
        if alike:
            joined, env = build.join_axes(first, second, read if is_flat else ())
            stage = replace(stage, value=build.substitute(stage.value, env), reduce=(*rest, joined, *done))
            pending = [*rest, joined]
        else:
            done.insert(0, pending.pop())
    return stage


def hoist_operands(
    stage: Stage, contraction, is_packed: Callable[[Expr, Sequence[Axis]], bool]
) -> tuple[list[Stage], Stage]:
    """Returns stages that compute the operands of a contraction that are not mere loads, and the contraction of these.

    Inside the contraction they would be evaluated again for each tile that uses them. A right operand for which
    ``is_packed(value, axes)`` holds is computed when it is packed.
    """
    before: list[Stage] = []
    operands = []
    for name, value in (("left", contraction.left), ("right", contraction.right)):
        axes = [axis for axis in stage.domain if build.uses(value, axis.var)]
        reuse = build.points(stage.domain) // max(1, build.points(axes))
        if is_view(value) or reuse < MIN_REUSE or (name == "right" and is_packed(value, axes)):
            operands.append(value)
            continue
        buffer = build.buffer([axis.extent for axis in axes], str(value.ty), f"{stage.name}_{name}")
        fresh = [Axis.fresh(axis, axis.extent) for axis in axes]
        env: Env = {axis.var: new.var for axis, new in zip(axes, fresh, strict=True)}
        index = tuple(axis.var for axis in fresh)
        before.append(Stage(buffer.name, tuple(fresh), (), buffer, index, build.substitute(value, env)))
        operands.append(buffer[tuple(axis.var for axis in axes)])
    return before, replace(stage, value=operands[0] * operands[1])


def split_reduction(stage: Stage, tasks: int, work: int, name: str) -> tuple[Stage, Stage] | None:
    """Cuts a long reduction with few tasks into enough partial reductions, and their sum, in order."""
    least = SPLIT_WORK if tasks < MIN_TASKS // 2 else _LONG_WORK
    if not stage.reduce or tasks >= MIN_TASKS or work < least:
        return None
    wanted = build.ceil_div(MAX_CHUNKS, max(1, tasks))
    return cut_reduction(stage, 1 << (wanted - 1).bit_length(), name)


def cut_reduction(stage: Stage, most: int, name: str) -> tuple[Stage, Stage] | None:
    """Cuts a reduction along its first reduced axis into at most ``most`` partial ones and their sum, in order."""
    head, *rest = stage.reduce
    chunks = min(build.points([head]), most)
    length = build.ceil_div(head.extent, chunks)
    if not dims.always_le(1, length):  # which may be 0
        length = head.extent // chunks + 1
    if isinstance(length, int):
        length = _matching(length, build.divisors(stage.value, head.var))
    chunks = build.ceil_div(head.extent, length)
    if chunks == 1:
        return None
    chunk = Axis.fresh(head, chunks)
    start = chunk.var * length
    even = head.extent % length == 0
    inner = Axis.fresh(head, length, None if even else tirx.min(length, head.extent - start))
    space = [Axis.fresh(axis, axis.extent) for axis in stage.space]
    env: Env = {axis.var: new.var for axis, new in zip(stage.space, space, strict=True)}
    env[head.var] = start + inner.var
    shape = [chunks, *(axis.extent for axis in space)]
    partial = build.buffer(shape, accumulator(stage.dtype), name)
    first = Stage(
        name,
        (chunk, *space),
        (inner, *rest),
        partial,
        (chunk.var, *(axis.var for axis in space)),
        build.cast(build.substitute(stage.value, env), accumulator(stage.dtype)),
        stage.combine,
        build.cast(stage.init, accumulator(stage.dtype)),
    )
    again = Axis.fresh(head, chunks)
    total = partial[(again.var, *(axis.var for axis in stage.space))]
    return first, replace(stage, reduce=(again,), value=build.cast(total, stage.dtype))


def _matching(length: int, divisors: Sequence[int]) -> int:
    """A length near ``length`` that divides the rows of a joined axis or is a multiple: reads stay contiguous."""
    for divisor in sorted(divisors, reverse=True):
        if divisor <= length:
            return build.ceil_div(length, divisor) * divisor
        least = build.ceil_div(divisor, length)
        parts = next((n for n in range(least, 4 * least) if divisor % n == 0), None)
        if parts is not None:
            return divisor // parts
    return length
