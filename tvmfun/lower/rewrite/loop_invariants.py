"""Loop-invariant code motion: values that each step of a loop would compute from its constants are computed before.

A cast of weights, a dequantization or a merged low-rank update is often written inside of a recurrence, at its use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvmfun.core import dims
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.lower.rewrite.equations import with_inner
from tvmfun.ops.control import loop
from tvmfun.ops.pointwise import astype

# The kinds of ops that may move. A while loop may have no step, so it keeps ops that take long.
_MOVABLE = ("pointwise", "injective", "reduction", "contraction")
# The kinds of ops that always read stored arrays.
_READERS = ("contraction", "control", "opaque")
# Values stay in the loop if they are more than this many times larger than the constants they are computed from.
_GROWTH = 2
# Values of at most this many bytes may always move.
_SMALL_BYTES = 1 << 20


def hoist_invariants(program: Program) -> Program:
    """Moves computations that depend on a loop's constants alone before the loop.

    Products, loops and branches read arrays, so all their inputs move. Sums, products and expensive functions move as
    well; inexpensive maps with other readers stay and are fused with these. Conversions of weights that would be large
    when widened stay, too: a product converts narrow weights while it reads them.

    Args:
        program: without calls.
    """
    equations: list[Equation] = []
    for equation in program.equations:
        changed = with_inner(equation, hoist_invariants)
        equations += _hoisted(changed) if changed.op is loop else [changed]
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations))


@dataclass(frozen=True)
class _Value:
    """Properties of an invariant value of a loop's body.

    Args:
        nbytes: the bytes of the constants that it is computed from.
        is_computed: whether it is more than a rearrangement of elements.
        is_expensive: whether it is too expensive to be fused with its readers.
        is_widened: whether it is a constant that was converted, and nothing else.
    """

    nbytes: int
    is_computed: bool = False
    is_expensive: bool = False
    is_widened: bool = False


def _hoisted(equation: Equation) -> list[Equation]:
    """The equations that move, and the loop with their results as further constants."""
    params, body = equation.params, equation.params["body"]
    first, consts, cond = int(params["counted"]), params["consts"], params["cond"]
    values = {inside: _Value(_nbytes(inside)) for inside in body.inputs[:consts]}
    makers: dict[Variable, Equation] = {}
    moved: dict[Variable, None] = {}
    for step in body.equations:
        value = _invariant(step, values, is_certain=cond is None)
        if value is not None:
            values[step.outputs[0]] = value
            makers[step.outputs[0]] = step
            continue
        reads_arrays = step.op.kind in _READERS
        moved |= dict.fromkeys(
            atom for atom in step.inputs if atom in makers and _should_move(atom, values[atom], reads_arrays)
        )
    if not moved:
        return [equation]
    outside: dict[Atom, Atom] = dict(zip(body.inputs[:consts], equation.inputs[first:], strict=False))
    before: list[Equation] = []

    def copied(atom: Atom) -> Atom:
        """The value outside of the loop."""
        if isinstance(atom, Literal) or atom in outside:
            return outside.get(atom, atom)
        maker = makers[atom]
        result = Variable(atom.aval)
        before.append(maker._replace(inputs=tuple(map(copied, maker.inputs)), outputs=(result,)))
        outside[atom] = result
        return result

    constants = tuple(map(copied, moved))
    steps = tuple(step for step in body.equations if step.outputs[0] not in moved)
    body = replace(body, inputs=(*moved, *body.inputs), equations=steps).without_dead_code()
    if cond is not None:
        cond = replace(cond, inputs=(*(Variable(atom.aval) for atom in moved), *cond.inputs))
    params = {**params, "body": body, "cond": cond, "consts": consts + len(moved)}
    inputs = (*equation.inputs[:first], *constants, *equation.inputs[first:])
    return [*before, equation._replace(inputs=inputs, params=params)]


def _invariant(step: Equation, values: dict[Atom, _Value], is_certain: bool) -> _Value | None:
    """The properties of an equation's result if it depends on constants alone; None if not, or if it has to stay."""
    arguments = [atom for atom in step.inputs if not isinstance(atom, Literal)]
    is_movable = step.op.kind in _MOVABLE or (is_certain and step.op.kind == "opaque")
    if not is_movable or len(step.outputs) != 1 or not arguments or not all(atom in values for atom in arguments):
        return None
    known = [values[atom] for atom in arguments]
    is_map = step.op.kind in ("pointwise", "injective")
    return _Value(
        sum(value.nbytes for value in known),
        is_computed=step.op.kind != "injective" or any(value.is_computed for value in known),
        is_expensive=not (is_map and step.op.is_inexpensive(step.outputs[0].aval.dtype))
        or any(value.is_expensive for value in known),
        is_widened=step.op is astype and not any(value.is_computed for value in known),
    )


def _should_move(atom: Variable, value: _Value, reads_arrays: bool) -> bool:
    """Whether a value that a step reads is worth an array."""
    nbytes = _nbytes(atom)
    if nbytes > max(_GROWTH * value.nbytes, _SMALL_BYTES):
        return False
    if value.is_widened and nbytes > max(value.nbytes, _SMALL_BYTES):
        return False
    return value.is_computed and (reads_arrays or value.is_expensive)


def _nbytes(atom: Variable) -> int:
    return dims.typical(atom.aval.nbytes)
