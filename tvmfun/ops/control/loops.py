"""The op ``loop``: its types, its statement, batching, and the removal of unused results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.core.batching import Batched, batch, current_axis, repeat
from tvmfun.core.derivative import indices_of, needed_inputs, restricted, trace_leaves, zeros
from tvmfun.core.op import Op, register
from tvmfun.core.program import Program, Variable
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce as reductions
from tvmfun.ops import shape as shapes
from tvmfun.ops.control.closed_programs import batched_outputs, select, stacked, strong
from tvmfun.ops.control.loop_derivatives import loop_pullback, loop_pushforward
from tvmfun.ops.control.operands import LoopOperands, fixpoint, run_loop
from tvmfun.ops.parameters import Size
from tvmfun.ops.tir import sequence

_INT = ShapeDtype((), dtypes.int32)
_BOOL = ShapeDtype((), dtypes.bool_)


def _loop_shape(
    *avals: ShapeDtype,
    body: Program,
    cond: Program | None,
    length: Size | None,
    reverse: bool,
    counted: bool,
    consts: int,
    carry: int,
) -> tuple:
    outs = strong(body.out_avals)
    steps = (_INT,) if cond is not None and length is not None else ()
    return (*outs[:carry], *(stacked(aval, length) for aval in outs[carry:]), *steps)


def _loop_runs(*, body: Program, cond: Program | None, length: Any, **params: Any) -> list:
    """Body and condition, with the number of their runs: one if the number of steps is unknown."""
    steps = 1 if length is None else length
    return [[(program, steps) for program in (body, cond) if program is not None]]


def _loop(builder: Any, inputs: list, outputs: list, *, body, cond, length, reverse, **roles) -> tirx.Stmt:
    """``for i in range(n): carry, ys[i] = body(consts, carry, xs[i])``, while ``cond(consts, carry)`` holds."""
    count, consts, start, xs = LoopOperands.split(inputs, **roles)
    carry = len(start)
    has_steps = cond is not None and length is not None
    state, ys = outputs[:carry], outputs[carry : len(outputs) - has_steps]

    def step(i: Any, old: list = state, new: list = state) -> list[tirx.Stmt]:
        x_rows, y_rows = ([buffer.row(i) for buffer in stack] for stack in (xs, ys))
        return builder.run(body, [*consts, *old, *x_rows], [*new, *y_rows])

    if cond is None and not count and builder.alternates(body, length, state):
        return _alternating(builder, body, length, reverse, (start, state), step)
    statements = [builder.copy(*pair) for pair in zip(start, state, strict=True)]
    if count or cond is not None:
        statements += [builder.fill(y, 0) for y in ys]
    if cond is None and count and builder.is_on_device:
        return sequence([*statements, _counted_on_device(builder, count[0], step, body, reverse)])
    if cond is None:
        extent = count[0].load() if count else builder.size(length)
        run = lambda i: sequence(step(extent - 1 - i if reverse else i))
        return sequence([*statements, builder.loop(length, extent, run, body, is_ordered=carry > 0)])

    going = builder.new(ShapeDtype((), dtypes.bool_))
    test = builder.run(cond, [*consts, *state], [going])
    again = builder.run(cond, [*consts, *state], [going])
    if not has_steps:
        return sequence([*statements, *test, builder.while_loop(going.load(), sequence([*step(0), *again]), body)])
    steps = outputs[-1]
    if builder.is_on_device:  # if the host cannot compute with them, kernels count the steps
        bools, numbers = (lambda *values: [values[0] & (values[1] < length)]), (lambda value: [value + 1])
        limited = builder.run(trace_leaves(bools, [going.aval, _INT], "limit"), [going, steps], [going])
        counted = builder.run(trace_leaves(numbers, [_INT], "count"), [steps], [steps])
        iteration = sequence([*step(steps.load()), *counted, *again, *limited])
        loop = builder.while_loop(going.load(), iteration, body)
        return sequence([*statements, builder.fill(steps, 0), *test, *limited, loop])
    increment = steps.store(steps.load() + 1)
    bounded = tirx.And(going.load(), steps.load() < builder.size(length))
    iteration = sequence([*step(steps.load()), increment, *again])
    loop = builder.while_loop(bounded, iteration, body)
    return sequence([*statements, steps.store(tirx.const(0, "int32")), *test, loop])


def _alternating(
    builder: Any, body: Program, length: int, reverse: bool, states: tuple[list, list], step: Callable
) -> tirx.Stmt:
    """A loop whose state alternates between two buffers: a step may write the new state before it reads the old one.

    Args:
        builder: writes the statements.
        body: the Program of a step.
        length: the number of steps.
        reverse: whether to go from the last row to the first.
        states: the first state, and the memory of the last one.
        step: writes the step of an index, from one state to another.
    """
    start, last = states
    other = [builder.new(ref.aval) for ref in last]
    row = lambda i: length - 1 - i if reverse else i
    alone = length % 2  # so that the last step writes the memory of the last state
    statements = [builder.copy(*pair) for pair in zip(start, other if alone else last, strict=True)]
    if alone:
        statements += step(row(tirx.const(0, "int32")), other, last)
    run = lambda i: sequence(
        [*step(row(2 * i + alone), last, other), *step(row(2 * i + alone + 1), other, last)],
    )
    pairs = length // 2
    return sequence([*statements, builder.loop(pairs, builder.size(pairs), run, body, is_ordered=True)])


def _counted_on_device(builder: Any, count: Any, step: Any, body: Program, reverse: bool) -> tirx.Stmt:
    """A loop whose number of steps is in the device's memory: kernels count the steps, because the host cannot."""
    index, going = builder.new(_INT), builder.new(_BOOL)
    begin = trace_leaves(lambda n: [n > 0], [_INT], "begin")
    advance = trace_leaves(lambda i, n: [i + 1, i + 1 < n], [_INT, _INT], "advance")
    i = count.load() - 1 - index.load() if reverse else index.load()
    iteration = sequence([*step(i), *builder.run(advance, [index, count], [index, going])])
    start = [builder.fill(index, 0), *builder.run(begin, [count], [going])]
    return sequence([*start, builder.while_loop(going.load(), iteration, body)])


# -- batching ----------------------------------------------------------------------------------------------------------


def _loop_batch(batched, *operands, body, cond, length, reverse, **roles):
    """Batching: a loop over batched carries; examples whose own loop has ended no longer change."""
    count, consts, start, xs = LoopOperands.split(operands, **roles)
    flags = LoopOperands.split(batched, **roles)
    size, carry = current_axis().size, len(start)
    live = fixpoint(flags.carry, lambda now: batched_outputs(body, flags._replace(carry=now).of_body, size)[:carry])
    by_count = any(flags.count)
    masked = by_count or (cond is not None and batched_outputs(cond, [*flags.consts, *live], size)[0])
    if masked:
        live = [True] * carry
    in_flags = flags._replace(carry=live)
    y_flags = [True] * (len(body.outputs) - carry) if masked else batched_outputs(body, in_flags.of_body, size)[carry:]
    has_steps = cond is not None and length is not None
    zero = dtypes.int32.type(0)
    # With a mask, the carry has one more entry: the steps of each example, or the row if counts differ.
    trips, counts, position = count, (), ()
    if by_count:
        # One count of 0 besides, because a batch may be empty, where there is no maximum.
        padded = shapes.pad(count[0], zero, low=(0,), high=(1,), interior=(0,))
        trips, counts = (reductions.max(padded, axis=(0,)),), count
        position = (trips[0] - 1 if reverse else shapes.broadcast_to(zero, shape=()),)
    elif masked and has_steps:
        position = (shapes.broadcast_to(zero, shape=(size,)),)

    def running(consts: Any, state: Any) -> tuple[Any, bool]:
        """The condition, and whether it has a batch axis."""
        (going,), (is_batched,) = batch(cond, [*consts, *state], in_flags.of_condition)
        return going, is_batched

    def step(fixed: Any, carried: Any, row: Any) -> tuple:
        (counts, consts), (state, position) = fixed, carried
        outs, is_batched = batch(body, [*consts, *state, *row], in_flags.of_body)
        outs = _repeated(outs, [*live, *y_flags], is_batched, size)
        if not masked:
            return (outs[:carry], ()), outs[carry:]
        if by_count:
            going = shapes.broadcast_to(position[0], shape=(size,)) < counts[0]
        else:
            going, has_batch = running(consts, state)
            going = going if has_batch else repeat(going, size)
        state = [select(going, new, old) for new, old in zip(outs[:carry], state, strict=True)]
        ys = [select(going, y, zeros(y)) for y in outs[carry:]]
        if by_count:
            position = (position[0] + (-1 if reverse else 1),)
        elif position:
            position = (position[0] + pw.astype(going, dtype="int32"),)
        return (state, position), ys

    def condition(fixed: Any, carried: Any) -> Any:
        going, is_batched = running(fixed[1], carried[0])
        # A sum, because it is 0 for an empty batch, where there is no maximum.
        return reductions.sum(pw.astype(going, dtype="int32"), axis=(0,)) != 0 if is_batched else going

    batched_operands = LoopOperands(
        trips,
        (counts, consts),
        (_repeated(start, live, flags.carry, size), position),
        [_swapped(x) if flag else x for x, flag in zip(xs, flags.xs, strict=True)],
    )
    (state, position), ys, steps = run_loop(
        step,
        batched_operands,
        body.name,
        length=length,
        reverse=reverse,
        condition=cond and condition,
        condition_name=cond.name if cond else "",
    )
    ys = [_swapped(y) if flag else y for y, flag in zip(ys, y_flags, strict=True)]
    steps = position if masked and has_steps else steps
    return Batched((*state, *ys, *steps), (*live, *y_flags, *(masked for _ in steps)))


def _repeated(values, wanted, batched, size) -> list:
    """Values with the batch axis, repeated along it if it is wanted and missing."""
    return [repeat(x, size) if flag and not has else x for x, flag, has in zip(values, wanted, batched, strict=True)]


def _swapped(x: Any) -> Any:
    """``x`` with its first two axes, batch and step, exchanged."""
    return shapes.permute_dims(x, axes=(1, 0, *range(2, x.ndim)))


# -- rows that are the same --------------------------------------------------------------------------------------------


def _loop_simplify(*operands, body, **params):
    """Rows that are the same value are stacked once, such as a cotangent that several derivatives need."""
    carry = params["carry"]
    first = {atom: i for i, atom in reversed([*enumerate(body.outputs[carry:], carry)]) if isinstance(atom, Variable)}
    kept = [i < carry or first.get(atom, i) == i for i, atom in enumerate(body.outputs)]
    if all(kept):
        return None
    results = loop(*operands, body=restricted(body, [True] * len(body.inputs), kept), **params)
    position = {i: number for number, i in enumerate(indices_of(kept))}
    rows = [i if kept[i] else first[atom] for i, atom in enumerate(body.outputs)]
    return (*(results[position[i]] for i in rows), *results[sum(kept) :])


# -- unused results ----------------------------------------------------------------------------------------------------


def _loop_prune(used, *, body, cond, length, reverse, counted, consts, carry):
    """Keeps a carry if it is used, or if the condition or another kept carry depends on it."""
    ys = list(used[carry : len(body.outputs)])
    tested = needed_inputs(cond, [True]) if cond is not None else [False] * (consts + carry)

    def needed(carries: list[bool]) -> LoopOperands:
        flags = needed_inputs(body, [*carries, *ys])
        return LoopOperands.split(flags, counted=False, consts=consts, carry=carry)

    live = fixpoint([u or t for u, t in zip(used[:carry], tested[consts:], strict=True)], lambda now: needed(now).carry)
    flags = needed(live)._replace(carry=live)
    flags = flags._replace(consts=[a or b for a, b in zip(flags.consts, tested, strict=False)])
    params = {
        "body": restricted(body, flags.of_body, [*live, *ys]),
        "cond": cond if cond is None else restricted(cond, flags.of_condition, [True]),
        "length": length,
        "reverse": reverse,
        "counted": counted,
        "consts": sum(flags.consts),
        "carry": sum(live),
    }
    steps = used[len(body.outputs) :]
    inputs = [*range(counted), *indices_of(flags.of_body, counted)]
    return inputs, indices_of([*live, *ys, *(True for _ in steps)]), params


#: ``loop(*count, *consts, *carry, *xs, body=, cond=, length=, reverse=, counted=, consts=, carry=)``: runs the closed
#: Program ``body(*consts, *carry, *xs_row) -> (*carry, *ys_row)`` at most ``length`` times (None: without bound),
#: while the closed Program ``cond(*consts, *carry)`` holds if there is one, and ``count`` times if it is ``counted``.
#: Returns the last carry, the stacked rows, zero where no step was made, and with both ``cond`` and ``length`` the
#: number of steps. ``reverse`` visits the rows from the last to the first.
loop = register(
    Op(
        "loop",
        "control",
        _loop_shape,
        _loop,
        batch=_loop_batch,
        simplify=_loop_simplify,
        pullback=loop_pullback,
        pushforward=loop_pushforward,
        runs=_loop_runs,
        prune=_loop_prune,
        inexpensive=False,
    )
)
