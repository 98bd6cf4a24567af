"""Conversions between half precision and float32, moved out of loops or into them, so that stacks are narrow.

A product in a loop reads half precision, which is converted to float32 in the Program: without this pass, constants are
converted in every step, and stacks hold the converted values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.lower.rewrite.equations import with_inner
from tvmfun.ops.control import loop
from tvmfun.ops.pointwise import astype

_HALF = ("float16", "bfloat16")


def convert_outside_loops(program: Program) -> Program:
    """Returns the Program with the conversions of its loops moved to where the fewest bytes pass.

    Constants are rounded to half precision before a loop. Results that a loop widens are stacked in half precision and
    widened afterwards; stacks that were widened are read in half precision, and widened in the loop. Results that
    a loop rounds and that readers round again are stacked both ways.

    Args:
        program: without calls.
    """
    makers: dict[Atom, Equation] = {}
    equations: list[Equation] = []
    roundings = {equation.inputs[0]: equation for equation in program.equations if _rounds(equation)}
    done: set[Variable] = set()
    for equation in program.equations:
        if not done.isdisjoint(equation.outputs):
            continue
        equation = with_inner(equation, convert_outside_loops)
        is_plain = equation.op is loop and equation.params["cond"] is None
        if is_plain:
            equation = _with_rounded_stacks(equation, roundings)
            done.update(equation.outputs)
        for each in _converted(equation, makers) if is_plain else [equation]:
            equations.append(each)
            makers.update(dict.fromkeys(each.outputs, each))
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations)).without_dead_code()


def _with_rounded_stacks(equation: Equation, roundings: Mapping[Atom, Equation]) -> Equation:
    """The loop with its own roundings of rows as results, instead of ``roundings`` of the stacks."""
    params, body = equation.params, equation.params["body"]
    own = {(step.inputs[0], step.params["dtype"]): step.outputs[0] for step in body.equations if _rounds(step)}
    results, outputs = list(body.outputs), list(equation.outputs)
    for row, stack in list(zip(results, outputs, strict=True))[params["carry"] :]:
        rounding = roundings.get(stack)
        rounded = own.get((row, rounding.params["dtype"])) if rounding is not None else None
        if rounded is not None:
            results.append(rounded)
            outputs.append(rounding.outputs[0])
    if len(results) == len(body.outputs):
        return equation
    inside = replace(body, outputs=tuple(results))
    return equation._replace(outputs=tuple(outputs), params={**params, "body": inside})


def _converted(equation: Equation, makers: Mapping[Atom, Equation]) -> list[Equation]:
    """The loop between the conversions that were in it or around it; ``makers`` are the equations before it."""
    params, body = equation.params, equation.params["body"]
    first, consts, carry = int(params["counted"]), params["consts"], params["carry"]
    rounded, steps = _rounded_constants(body, equation.inputs[first : first + consts], consts)
    before = [conversion for conversion, _ in rounded]
    inputs, rows = list(equation.inputs), list(body.inputs)
    widened: list[Equation] = []
    for i in range(consts + carry, len(rows)):
        maker = makers.get(inputs[first + i])
        if maker is not None and _widens(maker):
            inputs[first + i] = maker.inputs[0]
            row = Variable(replace(rows[i].aval, dtype=maker.inputs[0].aval.dtype))
            widened.append(maker._replace(inputs=(row,), outputs=(rows[i],)))
            rows[i] = row
    own = {out: step for step in steps for out in step.outputs}
    results, outputs = list(body.outputs), list(equation.outputs)
    after: list[Equation] = []
    for i in range(carry, len(results)):
        maker = own.get(results[i])
        if maker is not None and _widens(maker):
            results[i] = maker.inputs[0]
            stack = Variable(replace(outputs[i].aval, dtype=maker.inputs[0].aval.dtype))
            after.append(maker._replace(inputs=(stack,), outputs=(outputs[i],)))
            outputs[i] = stack
    if not (before or widened or after):
        return [equation]
    inside = replace(
        body,
        inputs=(*(constant for _, constant in rounded), *rows),
        equations=(*widened, *steps),
        outputs=tuple(results),
    ).without_dead_code()
    constants = [conversion.outputs[0] for conversion in before]
    changed = equation._replace(
        inputs=(*inputs[:first], *constants, *inputs[first:]),
        outputs=tuple(outputs),
        params={**params, "body": inside, "consts": consts + len(constants)},
    )
    return [*before, changed, *after]


def _rounded_constants(
    body: Program, outside: tuple[Atom, ...], consts: int
) -> tuple[list[tuple[Equation, Variable]], list[Equation]]:
    """The conversions of a loop's constants to half precision with the inputs of their results, and the other steps."""
    given = dict(zip(body.inputs[:consts], outside, strict=True))
    rounded: list[tuple[Equation, Variable]] = []
    steps: list[Equation] = []
    for step in body.equations:
        source = step.inputs[0] if _rounds(step) else None
        if source in given:
            result = Variable(step.outputs[0].aval)
            rounded.append((step._replace(inputs=(given[source],), outputs=(result,)), step.outputs[0]))
        else:
            steps.append(step)
    return rounded, steps


def _rounds(equation: Equation) -> bool:
    """Whether an equation converts float32 to half precision."""
    (source, *_) = equation.inputs or (None,)
    is_wide = isinstance(source, Variable) and str(source.aval.dtype) == "float32"
    return equation.op is astype and is_wide and equation.params["dtype"] in _HALF


def _widens(equation: Equation) -> bool:
    """Whether an equation converts half precision to float32."""
    (source, *_) = equation.inputs or (None,)
    is_half = isinstance(source, Variable) and str(source.aval.dtype) in _HALF
    return equation.op is astype and is_half and equation.params["dtype"] == "float32"
