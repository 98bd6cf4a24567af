"""Control flow: loops and branches around Programs, compiled as loops and branches.

Their Programs are closed: what a body captures is passed to the op, in front of its other arguments. Every transform
of a loop is another loop around a transformed body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from tvm import tirx

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.core.batching import Batched, batch, current_axis, repeat
from tvmfun.core.derivative import (
    Tape,
    evaluate_linear,
    flat_program,
    is_float,
    needed_inputs,
    partition,
    places,
    pushforward,
    restricted,
    trace_leaves,
    zeros,
)
from tvmfun.core.dims import typical
from tvmfun.core.leaf import abstract
from tvmfun.core.op import Op, register
from tvmfun.core.program import Equation, Program, Variable
from tvmfun.errors import GradientError
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce as reductions
from tvmfun.ops import shape as shapes
from tvmfun.ops.dot import dot_general

_INT = ShapeDtype((), dtypes.int32)


def closed(fun: Callable, avals: Sequence[ShapeDtype], name: str) -> tuple[Program, tuple]:
    """Traces a function of arrays as a closed Program: what it captures comes first among its inputs."""
    program = trace_leaves(fun, [ShapeDtype(a.shape, a.dtype) for a in avals], name)
    return closing(program)


def closing(program: Program) -> tuple[Program, tuple]:
    """A Program with its captured values as ordinary inputs, and those values."""
    if not program.captured:
        return program, ()
    inputs = program.inputs
    same = trace_leaves(lambda *values: program.evaluate(values), [v.aval for v in inputs], program.name)
    return same, program.captured


def _example(x: Any) -> ShapeDtype:
    """The type of one row of a stacked array."""
    aval = abstract(x)
    return ShapeDtype(aval.shape[1:], aval.dtype)


def _stack(aval: ShapeDtype, length: Any) -> ShapeDtype:
    return ShapeDtype((length, *aval.shape), aval.dtype)


def _strong(aval: ShapeDtype) -> ShapeDtype:
    return ShapeDtype(aval.shape, aval.dtype)


def _influence(program: Program, active: Sequence[bool]) -> list[bool]:
    """Which outputs a derivative with respect to the active inputs reaches."""
    reached = {v for v, flag in zip(program.inputs, active, strict=True) if flag and is_float(v)}
    for equation in program.equations:
        rules = equation.op.vjp
        carries = (
            atom in reached and not (isinstance(rules, tuple) and rules[i] is None)
            for i, atom in enumerate(equation.inputs)
        )
        if any(carries):
            reached.update(filter(is_float, equation.outputs))
    return [atom in reached for atom in program.outputs]


def _select(condition: Any, new: Any, old: Any) -> Any:
    """``where`` for a condition per example of a batch and values with more axes behind."""
    ndim = abstract(new).ndim
    size = condition.shape[0]
    return pw.where(shapes.reshape(condition, shape=(size, *(1,) * (ndim - 1))), new, old)


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


# -- loop --------------------------------------------------------------------------------------------------------------


class _Operands(NamedTuple):
    """The arguments of a loop, or one flag for each, by their roles."""

    count: tuple
    consts: tuple
    carry: tuple
    xs: tuple


def _roles(values: Sequence[Any], consts: int, carry: int, counted: bool) -> _Operands:
    count, rest = tuple(values[:counted]), tuple(values[counted:])
    return _Operands(count, rest[:consts], rest[consts : consts + carry], rest[consts + carry :])


def _loop_shape(*avals: ShapeDtype, body: Program, cond: Program | None, length: Any, **params: Any) -> tuple:
    carry = params["carry"]
    outs = [_strong(aval) for aval in body.out_avals]
    steps = (_INT,) if cond is not None and length is not None else ()
    return (*outs[:carry], *(_stack(aval, length) for aval in outs[carry:]), *steps)


def _loop_runs(*, body: Program, cond: Program | None, length: Any, **params: Any) -> list:
    """Each step once; also where nobody knows how many there will be, one."""
    steps = 1 if length is None else length
    return [[(program, steps) for program in (body, cond) if program is not None]]


def _loop(host: Any, inputs: list, outputs: list, *, body, cond, length, reverse, counted, consts, carry) -> tirx.Stmt:
    """``for i in range(n): carry, ys[i] = body(consts, carry, xs[i])``, while ``cond(consts, carry)`` holds."""
    count, fixed, start, xs = _roles(inputs, consts, carry, counted)
    has_steps = cond is not None and length is not None
    state, ys = outputs[:carry], outputs[carry : len(outputs) - has_steps]
    statements = [host.copy(*pair) for pair in zip(start, state, strict=True)]
    if counted or cond is not None:
        statements += [host.fill(y, 0) for y in ys]

    def step(row: Any) -> list[tirx.Stmt]:
        rows = [[place.row(row) for place in stacked] for stacked in (xs, ys)]
        return host.run(body, [*fixed, *state, *rows[0]], [*state, *rows[1]])

    if cond is None:
        extent = host.read(count[0]) if counted else host.size(length)
        run = lambda i: _sequence(step(extent - 1 - i if reverse else i))
        return _sequence([*statements, host.loop(length, extent, run, body, is_ordered=carry > 0)])

    going = host.new(ShapeDtype((), dtypes.bool_))
    test = host.run(cond, [*fixed, *state], [going])
    again = host.run(cond, [*fixed, *state], [going])
    if not has_steps:
        return _sequence([*statements, *test, host.while_loop(host.read(going), _sequence([*step(0), *again]), body)])
    steps = outputs[-1]
    increment = steps.store(host.read(steps) + 1)
    bounded = tirx.And(host.read(going), host.read(steps) < host.size(length))
    iteration = _sequence([*step(host.read(steps)), increment, *again])
    loop = host.while_loop(bounded, iteration, body)
    return _sequence([*statements, steps.store(tirx.const(0, "int32")), *test, loop])


def _fixpoint(flags: Sequence[bool], grow: Callable[[list[bool]], Sequence[bool]]) -> list[bool]:
    """The smallest set of carries that contains ``flags`` and all that ``grow`` says follows from it."""
    current = list(flags)
    while True:
        following = [a or b for a, b in zip(current, grow(current), strict=True)]
        if following == current:
            return current
        current = following


def _depending(program: Program, sources: Collection[Variable]) -> list[bool]:
    """Which outputs depend on some inputs."""
    reached = set(sources)
    for equation in program.equations:
        if not reached.isdisjoint(equation.inputs):
            reached.update(equation.outputs)
    return [atom in reached for atom in program.outputs]


def _without_zeros(linear: Program, live: Sequence[bool]) -> Program:
    """A Program that is linear in its last inputs, without those of them that are zero and the outputs that then are.

    Its other inputs are those of ``linear`` that it needs.
    """
    count = len(linear.inputs) - len(live)

    def run(*values: Any) -> list:
        given = iter(values[count:])
        found = evaluate_linear(linear, values[:count], [next(given) if flag else None for flag in live])
        return [g for g in found if g is not None]

    inputs = [*linear.inputs[:count], *(v for v, flag in zip(linear.inputs[count:], live, strict=True) if flag)]
    traced = trace_leaves(run, [v.aval for v in inputs], linear.name)
    own = dict(zip(traced.inputs, inputs, strict=True))
    read = lambda atom: own.get(atom, atom)
    equations = [e._replace(inputs=tuple(map(read, e.inputs))) for e in traced.equations]
    used = {atom for e in equations for atom in e.inputs} | set(map(read, traced.outputs))
    kept = [v for i, v in enumerate(inputs) if i >= count or v in used]
    return flat_program(kept, equations, list(map(read, traced.outputs)), linear.name)


def _loop_pullback(active, *operands, body, cond, length, reverse, counted, consts, carry):
    """Forwards, the loop keeps per step what its derivative needs; backwards, a loop in reverse order uses it."""
    count, fixed, start, xs = _roles(operands, consts, carry, counted)
    is_active = _roles(active, consts, carry, counted)
    if cond is not None and length is None:
        raise GradientError(
            "grad",
            "reverse mode through a while_loop keeps the carry of every step and needs a bound on their number",
            got="a while_loop without max_steps",
            hint="while_loop(cond, body, init, max_steps=1000), or forward mode",
        )
    live_carry = _fixpoint(
        is_active.carry, lambda flags: _influence(body, [*is_active.consts, *flags, *is_active.xs])[:carry]
    )
    live = [*is_active.consts, *live_carry, *is_active.xs]
    live_out = _influence(body, live)
    live_out[:carry] = live_carry
    avals = [v.aval for v in body.inputs]
    present: list[int] = []  # the inputs of the body that get a cotangent

    def joint(*values: Any) -> list:
        values, gs = values[: len(avals)], iter(values[len(avals) :])  # type: ignore[assignment]
        tape = Tape(body, values, live)
        found = tape.backward([next(gs) if flag else None for flag in live_out])
        present[:] = [i for i, g in enumerate(found) if g is not None]
        return [*tape.outputs, *(found[i] for i in present)]

    seeds = [aval for aval, flag in zip(body.out_avals, live_out, strict=True) if flag]
    both, captured = closed(joint, [*avals, *seeds], body.name)
    n = len(captured)
    free = [True] * (n + consts) + [False] * carry + [True] * len(xs) + [False] * len(seeds)
    early, linear, is_known = partition(both, [True] * (n + len(avals)) + [False] * len(seeds), free)
    # A cotangent that needs no other cotangent is zero or does not exist.
    arriving = [i for i, flag in zip(present, is_known[len(body.outputs) :], strict=True) if not flag]
    residuals = linear.inputs[: len(linear.inputs) - len(seeds)]
    seeded = [i for i, flag in enumerate(live_out) if flag]
    outside = dict(zip(both.inputs, (*captured, *fixed), strict=False))
    rows = dict(zip(both.inputs[n + consts + carry :], xs, strict=False))
    kept = [v for v in residuals if v not in outside and v not in rows]
    outputs = [*both.outputs[: len(body.outputs)], *kept]
    forward = flat_program(both.inputs[: n + len(avals)], early.equations, outputs, body.name)
    results = loop(
        *count,
        *captured,
        *fixed,
        *start,
        *xs,
        body=forward,
        cond=cond if cond is None else _with_more_consts(cond, [v.aval for v in both.inputs[:n]]),
        length=length,
        reverse=reverse,
        counted=counted,
        consts=n + consts,
        carry=carry,
    )
    has_steps = cond is not None
    visible = len(body.outputs)
    saved = dict(zip(kept, results[visible : visible + len(kept)], strict=True))
    trips = (results[-1],) if has_steps else count

    def pull(gs: Sequence[Any]) -> list:
        def grow(flags: list[bool]) -> list[bool]:
            """A carry has a cotangent if one arrives there that comes of others."""
            sources = [v for v, flag in zip(linear.inputs[len(residuals) :], flags, strict=True) if flag]
            found = {i for i, flag in zip(arriving, _depending(linear, sources), strict=True) if flag}
            return [i < carry and consts + i in found for i in seeded]

        moving = _fixpoint([gs[i] is not None for i in seeded], grow)
        reached = {i for i, flag in zip(seeded, moving, strict=True) if flag}
        if not reached:
            return [None] * len(operands)
        # Where a result is not used, the derivative of what leads there does not matter, and may be infinite.
        late, backward = linear, arriving
        if not all(moving):
            sources = [v for v, flag in zip(linear.inputs[len(residuals) :], moving, strict=True) if flag]
            backward = [i for i, flag in zip(arriving, _depending(linear, sources), strict=True) if flag]
            late = _without_zeros(linear, moving)
        needed = late.inputs[: len(late.inputs) - len(reached)]
        given = [zeros(x) if g is None else g for g, x in zip(gs, results, strict=False)]
        g_carry = [given[i] for i in range(carry) if i in reached]
        g_ys = [given[i] for i in range(carry, visible) if i in reached]
        # Sums of products of small factors: the factors are kept, and multiplied all at once after the loop.
        products = {} if has_steps else _products(late, {i: k for k, i in enumerate(backward) if i < consts}, outside)
        factors = {
            a: None for equation in products.values() for a in equation.inputs if a not in rows and a not in saved
        }
        late_and_factors = flat_program(late.inputs, late.equations, [*late.outputs, *factors], late.name)
        summed = [i for i in backward if i < consts and i not in products]
        flowing = [consts + i for i in range(carry) if i in reached]
        stacked = [i for i in backward if i >= consts + carry]
        invariant = [v for v in needed if v in outside]
        varying = [v for v in needed if v not in outside]

        def body_backward(*values: Any) -> list:
            it = iter(values)
            env = {v: next(it) for v in invariant}
            cotangents = [next(it) for _ in flowing]
            sums = [next(it) for _ in summed]
            env.update((v, next(it)) for v in varying)
            found = late_and_factors.evaluate([*(env[v] for v in needed), *cotangents, *it])
            by_input = dict(zip(backward, found, strict=False))
            moved = [by_input[i] if i in by_input else zeros(c) for i, c in zip(flowing, cotangents, strict=True)]
            return [
                *moved,
                *(pw.add(s, by_input[i]) for i, s in zip(summed, sums, strict=True)),
                *(by_input[i] for i in stacked),
                *found[len(backward) :],
            ]

        streams = [rows[v] if v in rows else saved[v] for v in varying]
        operands_backward = [
            *(outside[v] for v in invariant),
            *g_carry,
            *(zeros(fixed[i]) for i in summed),
            *streams,
            *g_ys,
        ]
        split = len(operands_backward) - len(streams) - len(g_ys)
        types = [abstract(x) for x in operands_backward[:split]] + [_example(x) for x in operands_backward[split:]]
        program, more = closed(body_backward, types, f"{body.name}_backward")
        found = loop(
            *trips,
            *more,
            *operands_backward,
            body=program,
            cond=None,
            length=length,
            reverse=not reverse,
            counted=bool(trips),
            consts=len(more) + len(invariant),
            carry=len(flowing) + len(summed),
        )
        cotangents: dict[int, Any] = dict(zip([*flowing, *summed, *stacked], found, strict=False))
        stacks = {**rows, **saved, **dict(zip(factors, found[len(found) - len(factors) :], strict=True))}
        cotangents.update((i, _product_over_steps(equation, stacks)) for i, equation in products.items())
        return [*(None for _ in count), *(cotangents.get(i) for i in range(len(avals)))]

    return (*results[:visible], *(results[-1:] if has_steps else ())), pull


def _products(late: Program, outputs: dict[int, int], fixed: Collection[Variable]) -> dict[int, Equation]:
    """The matrix products that make some outputs of a Program, where what would have to be kept of a step is smaller.

    Args:
        late: a Program that a loop runs at every step.
        outputs: the places of outputs, by any name.
        fixed: the inputs that are the same at every step.
    """
    makers = {out: equation for equation in late.equations for out in equation.outputs}
    products = {}
    for name, place in outputs.items():
        equation = makers.get(late.outputs[place])
        if equation is None or equation.op is not dot_general or any(atom in fixed for atom in equation.inputs):
            continue
        kept = sum(typical(atom.aval.nbytes) for atom in equation.inputs if atom in makers)
        if kept <= typical(equation.outputs[0].aval.nbytes):
            products[name] = equation
    return products


def _product_over_steps(equation: Equation, stacks: dict) -> Any:
    """The sum over all steps of a matrix product, given its factors with the steps as their first axis."""
    contract, batch = (
        tuple(tuple(a + 1 for a in axes) for axes in equation.params[name]) for name in ("contract", "batch")
    )
    left, right = (stacks[atom] for atom in equation.inputs)
    return dot_general(left, right, contract=((0, *contract[0]), (0, *contract[1])), batch=batch)


def _with_more_consts(cond: Program, avals: Sequence[ShapeDtype]) -> Program:
    """A condition that ignores some more leading inputs."""
    if not avals:
        return cond
    types = [*avals, *(v.aval for v in cond.inputs)]
    return trace_leaves(lambda *values: cond.evaluate(values[len(avals) :]), types, cond.name)


def _loop_pushforward(operands, tangents, *, body, cond, length, reverse, counted, consts, carry):
    """One loop over values and tangents together."""
    count, fixed, start, xs = _roles(operands, consts, carry, counted)
    _, t_fixed, t_start, t_xs = _roles(tangents, consts, carry, counted)
    flags = [t is not None for t in (*t_fixed, *t_start, *t_xs)]
    live_carry = _fixpoint(
        flags[consts : consts + carry],
        lambda now: _influence(body, [*flags[:consts], *now, *flags[consts + carry :]])[:carry],
    )
    live = [*flags[:consts], *live_carry, *flags[consts + carry :]]
    live_out = _influence(body, live)
    live_out[:carry] = live_carry
    start_moving = [zeros(x) if t is None else t for x, t, flag in zip(start, t_start, live_carry, strict=True) if flag]
    fixed_moving, xs_moving = [t for t in t_fixed if t is not None], [t for t in t_xs if t is not None]
    n_fixed, n_carry = len(fixed_moving), len(start_moving)

    def split(values: Sequence[Any]) -> tuple[list, list]:
        """The values of the body's inputs, and their tangents."""
        it = iter(values)
        own_fixed, own_t_fixed = [next(it) for _ in range(consts)], [next(it) for _ in range(n_fixed)]
        own_carry, own_t_carry = [next(it) for _ in range(carry)], [next(it) for _ in range(n_carry)]
        own_xs = [next(it) for _ in xs]
        moving = iter([*own_t_fixed, *own_t_carry, *it])
        return [*own_fixed, *own_carry, *own_xs], [next(moving) if flag else None for flag in live]

    def both(*values: Any) -> list:
        primals, directions = split(values)
        outs, moved = pushforward(body, primals, directions)
        filled = [zeros(x) if t is None else t for x, t in zip(outs, moved, strict=True)]
        t_carry = [t for t, flag in zip(filled[:carry], live_carry, strict=True) if flag]
        t_ys = [t for t, flag in zip(filled[carry:], live_out[carry:], strict=True) if flag]
        return [*outs[:carry], *t_carry, *outs[carry:], *t_ys]

    stationary = [*fixed, *fixed_moving, *start, *start_moving]
    types = [abstract(x) for x in stationary] + [_example(x) for x in (*xs, *xs_moving)]
    program, more = closed(both, types, body.name)
    test = None
    if cond is not None:
        types = [abstract(x) for x in (*more, *stationary)]
        test = trace_leaves(
            lambda *values: cond.evaluate(
                [*values[len(more) : len(more) + consts], *values[len(more) + consts + n_fixed :][:carry]]
            ),
            types,
            cond.name,
        )
    found = loop(
        *count,
        *more,
        *stationary,
        *xs,
        *xs_moving,
        body=program,
        cond=test,
        length=length,
        reverse=reverse,
        counted=counted,
        consts=len(more) + consts + n_fixed,
        carry=carry + n_carry,
    )
    n_ys = len(body.outputs) - carry
    it = iter(found)
    carries = [next(it) for _ in range(carry)]
    moved = iter([next(it) for _ in range(n_carry)])
    ys = [next(it) for _ in range(n_ys)]
    moved_ys = iter([next(it) for flag in live_out[carry:] if flag])
    out_tangents = [next(moved) if flag else None for flag in live_carry]
    out_tangents += [next(moved_ys) if flag else None for flag in live_out[carry:]]
    steps = list(it)
    return (*carries, *ys, *steps), [*out_tangents, *(None for _ in steps)]


def _loop_batch(batched, *operands, body, cond, length, reverse, counted, consts, carry):
    """A loop over batched carries; examples whose own loop has ended stay as they are until the last one ends."""
    count, fixed, start, xs = _roles(operands, consts, carry, counted)
    flags = _roles(batched, consts, carry, counted)
    size = current_axis().size

    def grow(now: list[bool]) -> list[bool]:
        return _batched_outputs(body, [*flags.consts, *now, *flags.xs], size)[:carry]

    live = _fixpoint(flags.carry, grow)
    masked = any(flags.count) or (cond is not None and _batched_outputs(cond, [*flags.consts, *live], size)[0])
    if masked:
        live = [True] * carry
    in_flags = [*flags.consts, *live, *flags.xs]
    y_flags = [True] * (len(body.outputs) - carry) if masked else _batched_outputs(body, in_flags, size)[carry:]
    has_steps = cond is not None and length is not None
    by_count = masked and any(flags.count)
    zero = dtypes.int32.type(0)
    # With a mask, the carry has one more entry: the steps of each example, or the row if counts differ.
    extra: list = []
    trips = count
    if by_count:
        trips = (reductions.max(count[0], axis=(0,)),)
        extra = [trips[0] - 1 if reverse else shapes.broadcast_to(zero, shape=())]
    elif masked and has_steps:
        extra = [shapes.broadcast_to(zero, shape=(size,))]
    per_example = [count[0]] if by_count else []

    def running(own: Sequence[Any], counts: Sequence[Any], places: Sequence[Any]) -> Any:
        """Which examples take part in this step."""
        if by_count:
            return shapes.broadcast_to(places[0], shape=(size,)) < counts[0]
        outputs, is_batched = batch(cond, own[: consts + carry], in_flags[: consts + carry])  # type: ignore[arg-type]
        return outputs[0] if is_batched[0] else repeat(outputs[0], size)

    def step(*values: Any) -> list:
        it = iter(values)
        own_count = [next(it) for _ in per_example]
        own_fixed, own_carry = [next(it) for _ in range(consts)], [next(it) for _ in range(carry)]
        places = [next(it) for _ in extra]
        own = [*own_fixed, *own_carry, *it]
        outs, is_batched = batch(body, own, in_flags)
        outs = [
            repeat(out, size) if flag and not has else out
            for out, flag, has in zip(outs, [*live, *y_flags], is_batched, strict=True)
        ]
        if not masked:
            return outs
        going = running(own, own_count, places)
        carries = [_select(going, new, old) for new, old in zip(outs[:carry], own_carry, strict=True)]
        ys = [_select(going, y, zeros(y)) for y in outs[carry:]]
        if by_count:
            places = [places[0] + (-1 if reverse else 1)]
        elif extra:
            places = [places[0] + pw.astype(going, dtype="int32")]
        return [*carries, *places, *ys]

    def test(*values: Any) -> Any:
        own = [*values[: consts + carry]]
        outputs, is_batched = batch(cond, own, in_flags[: consts + carry])  # type: ignore[arg-type]
        going = pw.astype(outputs[0], dtype="int32")
        return reductions.max(going, axis=(0,)) != 0 if is_batched[0] else outputs[0]

    started = [
        repeat(x, size) if flag and not had else x for x, flag, had in zip(start, live, flags.carry, strict=True)
    ]
    streams = [_swapped(x) if flag else x for x, flag in zip(xs, flags.xs, strict=True)]
    stationary = [*per_example, *fixed, *started, *extra]
    types = [abstract(x) for x in stationary] + [_example(x) for x in streams]
    program, more = closed(step, types, body.name)
    guard = None
    if cond is not None:
        n = len(more) + len(per_example)
        guard_types = [abstract(x) for x in (*more, *stationary)]
        guard, captured = closed(lambda *values: test(*values[n:]), guard_types, cond.name)
        assert not captured
    found = loop(
        *trips,
        *more,
        *stationary,
        *streams,
        body=program,
        cond=guard,
        length=length,
        reverse=reverse,
        counted=counted,
        consts=len(more) + len(per_example) + consts,
        carry=carry + len(extra),
    )
    ys = found[carry + len(extra) : carry + len(extra) + len(y_flags)]
    ys = [_swapped(y) if flag else y for y, flag in zip(ys, y_flags, strict=True)]
    steps: list = []
    if has_steps:
        steps = [found[carry]] if masked else [found[-1]]
    return Batched((*found[:carry], *ys, *steps), (*live, *y_flags, *(masked for _ in steps)))


def _batched_outputs(program: Program, flags: Sequence[bool], size: Any) -> list[bool]:
    """Which outputs of a Program are batched if these inputs are."""
    found: list[bool] = []

    def run(*values: Any) -> list:
        outputs, found[:] = batch(program, values, flags)
        return outputs

    avals = [_stack(v.aval, size) if flag else v.aval for v, flag in zip(program.inputs, flags, strict=True)]
    trace_leaves(run, avals, program.name)
    return found


def _swapped(x: Any) -> Any:
    """``x`` with its first two axes, batch and step, exchanged."""
    return shapes.permute_dims(x, axes=(1, 0, *range(2, x.ndim)))


def _loop_prune(used, *, body, cond, length, reverse, counted, consts, carry):
    """A carry stays if it is used, or the condition or another one that stays depends on it."""
    ys = list(used[carry : len(body.outputs)])
    tested = needed_inputs(cond, [True]) if cond is not None else [False] * (consts + carry)

    def needed(carries: Sequence[bool]) -> list[bool]:
        return needed_inputs(body, [*carries, *ys])

    start = [u or t for u, t in zip(used[:carry], tested[consts:], strict=True)]
    live = _fixpoint(start, lambda flags: needed(flags)[consts : consts + carry])
    inputs = needed(live)
    inputs[:consts] = [a or b for a, b in zip(inputs[:consts], tested[:consts], strict=True)]
    inputs[consts : consts + carry] = live
    params = {
        "body": restricted(body, inputs, [*live, *ys]),
        "cond": cond if cond is None else restricted(cond, inputs[: consts + carry], [True]),
        "length": length,
        "reverse": reverse,
        "counted": counted,
        "consts": sum(inputs[:consts]),
        "carry": sum(live),
    }
    steps = used[len(body.outputs) :]
    return [*range(counted), *places(inputs, counted)], places([*live, *ys, *(True for _ in steps)]), params


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
        pullback=_loop_pullback,
        pushforward=_loop_pushforward,
        runs=_loop_runs,
        prune=_loop_prune,
        inexpensive=False,
    )
)

# -- switch ------------------------------------------------------------------------------------------------------------


def _switch_shape(index: ShapeDtype, *avals: ShapeDtype, branches: tuple[Program, ...]) -> tuple:
    return tuple(_strong(aval) for aval in branches[0].out_avals)


def _switch(host: Any, inputs: list, outputs: list, *, branches: tuple[Program, ...]) -> tirx.Stmt:
    index, *operands = inputs
    *others, last = branches
    statement = _sequence(host.run(last, operands, outputs))
    for i, branch in reversed(list(enumerate(others))):
        chosen = host.read(index) <= i  # an index below 0 means the first branch, one too large the last
        statement = tirx.IfThenElse(chosen, _sequence(host.run(branch, operands, outputs)), statement)
    return statement


def closed_branches(functions: Sequence[Callable], avals: Sequence[ShapeDtype], name: str) -> tuple[tuple, list]:
    """Closed Programs with the same inputs, for branches that capture different values, and those values.

    What several branches capture is passed once, so that a result may lie in its memory.
    """
    traced = [closed(fun, avals, name) for fun in functions]
    captured = list({id(value): value for _, values in traced for value in values}.values())
    positions = {id(value): i for i, value in enumerate(captured)}
    types = [abstract(value) for value in captured] + list(avals)
    branches = []
    for program, values in traced:
        own = [positions[id(value)] for value in values]

        def run(*args: Any, program: Program = program, own: list[int] = own) -> list:
            return program.evaluate([*(args[i] for i in own), *args[len(captured) :]])

        branches.append(trace_leaves(run, types, name) if captured else program)
    return tuple(branches), captured


def _switch_pullback(active, index, *operands, branches):
    """Forwards, the branch taken also returns what its derivative needs; the others return zeros for it."""
    live = active[1:]
    influences = [_influence(branch, live) for branch in branches]
    live_out = [any(flags) for flags in zip(*influences, strict=True)]
    avals = [abstract(x) for x in operands]
    seeds = [aval for aval, flag in zip(branches[0].out_avals, live_out, strict=True) if flag]
    parts = []
    for branch in branches:
        present: list[int] = []

        def joint(*values: Any, branch: Program = branch, present: list[int] = present) -> list:
            values, gs = values[: len(avals)], iter(values[len(avals) :])  # type: ignore[assignment]
            tape = Tape(branch, values, live)
            found = tape.backward([next(gs) if flag else None for flag in live_out])
            present[:] = [i for i, g in enumerate(found) if g is not None]
            return [*tape.outputs, *(found[i] for i in present)]

        both, captured = closed(joint, [*avals, *seeds], branch.name)
        known = [True] * (len(captured) + len(avals)) + [False] * len(seeds)
        early, late, is_known = partition(both, known, known)
        backward = [i for i, k in zip(present, is_known[len(branch.outputs) :], strict=True) if not k]
        residuals = late.inputs[: len(late.inputs) - len(seeds)]
        given = dict(zip(both.inputs, (*captured, *operands), strict=False))
        kept = [v for v in residuals if v not in given]
        outputs = [*both.outputs[: len(branch.outputs)], *kept]
        forward = flat_program(both.inputs[: len(captured) + len(avals)], early.equations, outputs, branch.name)
        parts.append((forward, captured, late, residuals, given, kept, backward))
    visible = len(branches[0].outputs)
    all_kept = [[v.aval for v in part[5]] for part in parts]

    def forwards(k: int) -> Callable:
        forward, captured = parts[k][:2]

        def run(*values: Any) -> list:
            outputs = forward.evaluate([*captured, *values])
            own = iter(outputs[visible:])
            rest = [next(own) if j == k else zeros(a) for j, kept in enumerate(all_kept) for a in kept]
            return [*outputs[:visible], *rest]

        return run

    programs, more = closed_branches([forwards(k) for k in range(len(branches))], avals, branches[0].name)
    results = switch(index, *more, *operands, branches=programs)
    saved_all = results[visible:]

    def pull(gs: Sequence[Any]) -> list:
        own_gs = [g for g, flag in zip(gs, live_out, strict=True) if flag]
        given_gs = [g for g in own_gs if g is not None]
        wanted = sorted({i for part in parts for i in part[6]})

        def backwards(k: int) -> Callable:
            _, _, late, residuals, given, kept, backward = parts[k]
            begin = sum(map(len, all_kept[:k]))

            def run(*values: Any) -> list:
                saved, cotangents = values[: len(saved_all)], values[len(saved_all) :]
                env = {**given, **dict(zip(kept, saved[begin : begin + len(kept)], strict=True))}
                arriving = iter(cotangents)
                arriving = [None if g is None else next(arriving) for g in own_gs]
                found = dict(zip(backward, evaluate_linear(late, [env[v] for v in residuals], arriving), strict=True))
                return [zeros(operands[i]) if found.get(i) is None else found[i] for i in wanted]

            return run

        types = [abstract(x) for x in (*saved_all, *given_gs)]
        programs, more = closed_branches(
            [backwards(k) for k in range(len(branches))], types, f"{branches[0].name}_backward"
        )
        found = switch(index, *more, *saved_all, *given_gs, branches=programs)
        cotangents = dict(zip(wanted, found, strict=True))
        return [None, *(cotangents.get(i) for i in range(len(operands)))]

    return tuple(results[:visible]), pull


def _switch_pushforward(operands, tangents, *, branches):
    index, *values = operands
    flags = [t is not None for t in tangents[1:]]
    moving = [t for t in tangents[1:] if t is not None]
    live_out = [any(f) for f in zip(*(_influence(branch, flags) for branch in branches), strict=True)]

    def moved(branch: Program) -> Callable:
        def run(*args: Any) -> list:
            it = iter(args[len(values) :])
            outs, found = pushforward(branch, args[: len(values)], [next(it) if flag else None for flag in flags])
            filled = [zeros(x) if t is None else t for x, t in zip(outs, found, strict=True)]
            return [*outs, *(t for t, flag in zip(filled, live_out, strict=True) if flag)]

        return run

    types = [abstract(x) for x in (*values, *moving)]
    programs, more = closed_branches([moved(branch) for branch in branches], types, branches[0].name)
    found = switch(index, *more, *values, *moving, branches=programs)
    count = len(branches[0].outputs)
    it = iter(found[count:])
    return tuple(found[:count]), [next(it) if flag else None for flag in live_out]


def _switch_batch(batched, index, *operands, branches):
    """One branch for all examples; or, where they differ, every branch and a choice per example."""
    size = current_axis().size
    flags = batched[1:]

    every = (True,) * len(branches[0].outputs)

    def run(branch: Program, wanted: Sequence[bool] = every) -> Callable:
        def of_values(*values: Any) -> list:
            outputs, found = batch(branch, values, flags)
            return [
                repeat(out, size) if flag and not has else out
                for out, flag, has in zip(outputs, wanted, found, strict=True)
            ]

        return of_values

    if not batched[0]:
        wanted = [any(f) for f in zip(*(_batched_outputs(branch, flags, size) for branch in branches), strict=True)]
        functions = [run(branch, wanted) for branch in branches]
        programs, more = closed_branches(functions, [abstract(x) for x in operands], branches[0].name)
        return Batched(switch(index, *more, *operands, branches=programs), tuple(wanted))
    results: list = []
    last = len(branches) - 1
    for i, branch in enumerate(branches):
        here = index <= 0 if i == 0 else index >= i
        own = here if i in (0, last) else index == i
        # A branch that an example does not take has no part in its derivative, which may be infinite there.
        taken = [_select(own, x, pw.stop_gradient(x)) if flag and is_float(x) else x
                 for x, flag in zip(operands, flags, strict=True)]  # fmt: skip
        outs = run(branch)(*taken) if last else run(branch)(*operands)
        results = [_select(here, new, old) for new, old in zip(outs, results, strict=True)] if i else outs
    return tuple(results)


def _switch_prune(used, *, branches):
    inputs = [any(flags) for flags in zip(*(needed_inputs(branch, used) for branch in branches), strict=True)]
    return [0, *places(inputs, 1)], places(used), {"branches": tuple(restricted(b, inputs, used) for b in branches)}


#: ``switch(index, *operands, branches=)``: the results of the closed Program ``branches[index](*operands)``; an index
#: outside the branches means the nearest. Only the chosen branch runs.
switch = register(
    Op(
        "switch",
        "control",
        _switch_shape,
        _switch,
        batch=_switch_batch,
        pullback=_switch_pullback,
        pushforward=_switch_pushforward,
        runs=lambda *, branches: [[(branch, 1)] for branch in branches],
        prune=_switch_prune,
        inexpensive=False,
    )
)
