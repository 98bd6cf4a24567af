"""The op ``switch``: one of several Programs, chosen by an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from tvmfun import tree
from tvmfun.core.array import ShapeDtype
from tvmfun.core.batching import Batched, batch, current_axis, repeat
from tvmfun.core.derivative import (
    evaluate_linear,
    indices_of,
    is_float,
    needed_inputs,
    pushforward,
    restricted,
    trace_leaves,
    zeros,
)
from tvmfun.core.leaf import abstract
from tvmfun.core.op import Op, register
from tvmfun.core.program import Program
from tvmfun.ops import pointwise as pw
from tvmfun.ops.control.closed_programs import batched_outputs, closed, influenced, select, split_derivative, strong
from tvmfun.ops.tir import sequence


def _switch_shape(index: ShapeDtype, *avals: ShapeDtype, branches: tuple[Program, ...]) -> tuple:
    return tuple(strong(branches[0].out_avals))


def _switch(builder: Any, inputs: list, outputs: list, *, branches: tuple[Program, ...]) -> tirx.Stmt:
    index, *operands = inputs
    *others, last = branches
    statement = sequence(builder.run(last, operands, outputs))
    for i, branch in reversed(list(enumerate(others))):
        chosen = index.load() <= i  # an index below 0 means the first branch, an index that is too large the last one
        statement = tirx.IfThenElse(chosen, sequence(builder.run(branch, operands, outputs)), statement)
    return statement


def closed_branches(functions: Sequence[Callable], avals: Sequence[ShapeDtype], name: str) -> tuple[tuple, list]:
    """Closed Programs with the same inputs, for branches that capture different values, and these values.

    A value that several branches capture is passed once, so that a result may reuse its memory.
    """
    traced = [closed(fun, avals, name) for fun in functions]
    captured = list({id(value): value for _, values in traced for value in values}.values())
    positions = {id(value): i for i, value in enumerate(captured)}
    types = [abstract(value) for value in captured] + list(avals)
    branches = []
    for program, values in traced:
        used = [positions[id(value)] for value in values]

        def run(*args: Any, program: Program = program, used: list[int] = used) -> list:
            return program.evaluate([*(args[i] for i in used), *args[len(captured) :]])

        branches.append(trace_leaves(run, types, name) if captured else program)
    return tuple(branches), captured


def pull_back(
    call: Callable[..., Any], live: Sequence[bool], operands: Sequence[Any], branches: Sequence[Program]
) -> tuple[tuple, Callable]:
    """Reverse mode through a call of one of several Programs.

    In the forward pass, the selected branch also returns the residuals of its derivative; others return zeros for them.

    Args:
        call: ``(branches, *operands) -> results``.
        live: the operands to differentiate with respect to.
        operands: the arguments.
        branches: the closed Programs.

    Returns:
        The results, and a function from their cotangents to those of the operands.
    """
    first = branches[0]
    live_out = [any(flags) for flags in zip(*(influenced(branch, live) for branch in branches), strict=True)]
    parts = [split_derivative(branch, live, live_out, [True] * len(operands)) for branch in branches]
    visible = len(first.outputs)

    def forwards(k: int) -> Callable:
        def run(*values: Any) -> list:
            outputs = parts[k].forward.evaluate([*parts[k].captured, *values])
            kept = iter(outputs[visible:])
            rest = [next(kept) if j == k else zeros(v.aval) for j, part in enumerate(parts) for v in part.kept]
            return [*outputs[:visible], *rest]

        return run

    programs, captured = closed_branches(
        [forwards(k) for k in range(len(parts))], [*map(abstract, operands)], first.name
    )
    results = call(programs, *captured, *operands)
    saved = iter(results[visible:])
    # The residuals of each branch; only those of the selected branch are not zeros.
    kept = [[next(saved) for _ in part.kept] for part in parts]

    def pull(gs: Sequence[Any]) -> list:
        cotangents = [g for g, flag in zip(gs, live_out, strict=True) if flag]
        wanted = sorted({i for part in parts for i in part.arriving})

        values, structure = tree.flatten((kept, cotangents))

        def backwards(k: int) -> Callable:
            part = parts[k]

            def run(*leaves: Any) -> list:
                kept, cotangents = tree.unflatten(structure, leaves)
                env = dict(zip(part.forward.inputs, (*part.captured, *operands), strict=True))
                env.update(zip(part.kept, kept[k], strict=True))
                outs = evaluate_linear(part.backward, [env[v] for v in part.residuals], cotangents)
                of_input = dict(zip(part.arriving, outs, strict=True))
                return [zeros(operands[i]) if of_input.get(i) is None else of_input[i] for i in wanted]

            return run

        functions = [backwards(k) for k in range(len(parts))]
        programs, captured = closed_branches(functions, [*map(abstract, values)], f"{first.name}_backward")
        of_operand = dict(zip(wanted, call(programs, *captured, *values), strict=True))
        return [of_operand.get(i) for i in range(len(operands))]

    return tuple(results[:visible]), pull


def push_forward(
    call: Callable[..., Any], values: Sequence[Any], tangents: Sequence[Any], branches: Sequence[Program]
) -> tuple[tuple, list]:
    """Forward mode through a call of one of several Programs: the results, and their tangents.

    Args:
        call: ``(branches, *operands) -> results``.
        values: the operands.
        tangents: their tangents; None is a zero, also in the result.
        branches: the closed Programs.
    """
    flags = [t is not None for t in tangents]
    moving = [t for t in tangents if t is not None]
    live_out = [any(f) for f in zip(*(influenced(branch, flags) for branch in branches), strict=True)]

    def with_tangents(branch: Program) -> Callable:
        def run(*args: Any) -> list:
            it = iter(args[len(values) :])
            outs, moved = pushforward(branch, args[: len(values)], [next(it) if flag else None for flag in flags])
            filled = [zeros(x) if t is None else t for x, t in zip(outs, moved, strict=True)]
            return [*outs, *(t for t, flag in zip(filled, live_out, strict=True) if flag)]

        return run

    types = [abstract(x) for x in (*values, *moving)]
    programs, more = closed_branches([with_tangents(branch) for branch in branches], types, branches[0].name)
    results = call(programs, *more, *values, *moving)
    count = len(branches[0].outputs)
    it = iter(results[count:])
    return tuple(results[:count]), [next(it) if flag else None for flag in live_out]


def _with_index(index: Any) -> Callable[..., Any]:
    return lambda branches, *operands: switch(index, *operands, branches=branches)


def _switch_pullback(active, index, *operands, branches):
    results, pull = pull_back(_with_index(index), active[1:], operands, branches)
    return results, lambda gs: [None, *pull(gs)]


def _switch_pushforward(operands, tangents, *, branches):
    return push_forward(_with_index(operands[0]), operands[1:], tangents[1:], branches)


def _switch_batch(batched, index, *operands, branches):
    """Batching: one branch for all examples; if their indices differ, every branch and a choice per example."""
    size = current_axis().size
    flags = batched[1:]

    every = (True,) * len(branches[0].outputs)

    def run(branch: Program, wanted: Sequence[bool] = every) -> Callable:
        def of_values(*values: Any) -> list:
            outputs, is_batched = batch(branch, values, flags)
            return [
                repeat(out, size) if flag and not has else out
                for out, flag, has in zip(outputs, wanted, is_batched, strict=True)
            ]

        return of_values

    if not batched[0]:
        wanted = [any(f) for f in zip(*(batched_outputs(branch, flags, size) for branch in branches), strict=True)]
        functions = [run(branch, wanted) for branch in branches]
        programs, more = closed_branches(functions, [abstract(x) for x in operands], branches[0].name)
        return Batched(switch(index, *more, *operands, branches=programs), tuple(wanted))
    results: list = []
    last = len(branches) - 1
    for i, branch in enumerate(branches):
        here = index <= 0 if i == 0 else index >= i
        chosen = here if i in (0, last) else index == i
        # A branch that an example does not take must not affect its derivative, which may be infinite there.
        taken = [select(chosen, x, pw.stop_gradient(x)) if flag and is_float(x) else x
                 for x, flag in zip(operands, flags, strict=True)]  # fmt: skip
        outs = run(branch)(*taken) if last else run(branch)(*operands)
        results = [select(here, new, old) for new, old in zip(outs, results, strict=True)] if i else outs
    return tuple(results)


def pruned_branches(branches: Sequence[Program], used: Sequence[bool]) -> tuple[list[bool], tuple[Program, ...]]:
    """Flags of the inputs that used outputs of any branch depend on, and the branches with only these inputs."""
    inputs = [any(flags) for flags in zip(*(needed_inputs(branch, used) for branch in branches), strict=True)]
    return inputs, tuple(restricted(branch, inputs, used) for branch in branches)


def _switch_prune(used, *, branches):
    inputs, kept = pruned_branches(branches, used)
    return [0, *indices_of(inputs, 1)], indices_of(used), {"branches": kept}


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
