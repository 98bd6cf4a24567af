"""Updates of slices in place: if a state changes only in a slice, only that slice is written.

As a map, ``dynamic_update_slice`` computes every element of its result, so a loop that writes one row of a table per
step would write the whole table. As loops over the update, the result can be written over the table. If a loop adds to
a block of an array that it carries, or stores a block, that becomes such an update, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.lower import target as targets
from tvmfun.lower.rewrite.equations import producers_of, with_inner
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.control import loop
from tvmfun.ops.dynamic_slice import dynamic_update_slice, slice_update

# An array must be at least this many times as large as the updated block.
_TIMES_LARGER = 4


def update_slices(program: Program, target: Target) -> Program:
    """Rewrites updates of a Program's inputs so that they can be in place, also in its loops and branches.

    An update changes if it turns, alone or with other updates, an input of the Program into a result of it. Blocks are
    updated in loops on CPUs only: elsewhere one kernel may compute several updates, and its result is copied anyway.

    Args:
        program: without calls.
        target: the target.
    """
    return _updated(program, (), targets.is_cpu(target))


def _updated(program: Program, carried: tuple[Variable, ...], is_cpu: bool) -> Program:
    """The Program with updates in place; ``carried`` are the inputs that its first results replace."""
    producers = producers_of(program)
    last_reader = {atom: equation for equation in program.equations for atom in equation.inputs}
    known, states = set(program.inputs), set(carried)
    candidates: list[tuple[Equation, list[Equation]]] = []
    for equation in program.equations:
        update = _update_of_slice(equation, known) or _update_of_block(equation, producers, states)
        # A state that is still read would have to be copied.
        if update and (update[-1] is update[0] or last_reader[update[-1].inputs[0]] is equation):
            candidates.append((equation, update))
            known.update(equation.outputs)
            states.update(equation.outputs if update[-1].inputs[0] in states else ())
    results = set(program.outputs).difference(program.inputs)
    replaced = results.intersection(program.outputs[: len(carried)])
    chosen: dict[int, list[Equation]] = {}
    for equation, update in reversed(candidates):
        wanted = results if len(update) == 1 else replaced
        if not wanted.isdisjoint(equation.outputs):
            chosen[id(equation)] = update
            state = update[-1].inputs[0]
            results.add(state)
            replaced.update([state] if equation.outputs[0] in replaced else [])
    equations: list[Equation] = []
    is_same = True
    for equation in program.equations:
        inside = lambda inner, equation=equation: _updated(inner, _carried(equation, inner) if is_cpu else (), is_cpu)
        new = chosen.get(id(equation)) or [with_inner(equation, inside)]
        is_same = is_same and new[0] is equation
        equations += new
    return program if is_same else replace(program, equations=tuple(equations)).without_dead_code()


def _carried(equation: Equation, inner: Program) -> tuple[Variable, ...]:
    """The inputs of an equation's Program that hold the carries of a loop."""
    if equation.op is not loop or inner is not equation.params["body"]:
        return ()
    first = equation.params["consts"]
    return inner.inputs[first : first + equation.params["carry"]]


def _update_of_slice(equation: Equation, states: Collection[Atom]) -> list[Equation]:
    """Turns ``dynamic_update_slice`` of a state into an update in place; none if the equation is not one."""
    if equation.op is not dynamic_update_slice or equation.inputs[0] not in states or _is_dynamic(equation):
        return []
    return [equation._replace(op=slice_update)] if all(atom.aval.size for atom in equation.inputs) else []


def _update_of_block(
    equation: Equation, producers: Mapping[Atom, Equation], states: Collection[Atom]
) -> list[Equation]:
    """The equations that compute a block of a result, and write it into the state; none if most of the state changes.

    The examples of a batch may share the padding.
    """
    if _is_dynamic(equation):
        return []
    for state, pad in _sums(equation, producers) or _choices(equation, producers):
        shape, padded = state.aval.shape, pad.outputs[0].aval.shape
        lead = shape[: len(shape) - len(padded)]
        is_whole = (*lead, *padded) == shape and state.aval == equation.outputs[0].aval
        if state not in states or not is_whole or not _is_small_block(pad):
            continue
        low, sizes = (*(0,) * len(lead), *pad.params["low"]), (*lead, *pad.inputs[0].aval.shape)
        stop = tuple(first + size for first, size in zip(low, sizes, strict=True))
        whole, part = Variable(equation.outputs[0].aval), Variable(replace(equation.outputs[0].aval, shape=sizes))
        params = {"start": low, "stop": stop, "step": (1,) * len(low)}
        starts = tuple(Literal(np.int32(first)) for first in low)
        return [
            equation._replace(outputs=(whole,)),
            Equation(shapes.slice, (whole,), params, (part,), equation.source),
            Equation(slice_update, (state, part, *starts), {}, equation.outputs, equation.source),
        ]
    return []


def _is_dynamic(equation: Equation) -> bool:
    return dims.is_dynamic(tuple(atom.aval.shape for atom in equation.inputs))


def _sums(equation: Equation, producers: Mapping[Atom, Equation]) -> list[tuple[Atom, Equation]]:
    """The arrays to which an equation adds a padded one, with the padding."""
    pairs = (equation.inputs, equation.inputs[::-1]) if equation.op is pw.add else ()
    found = ((state, producers[added]) for state, added in pairs if added in producers)
    return [(state, pad) for state, pad in found if _fills(pad, -0.0)]  # 0 would change the sign of -0


def _choices(equation: Equation, producers: Mapping[Atom, Equation]) -> list[tuple[Atom, Equation]]:
    """The array that an equation keeps outside of a block, with the padding of the mask of the block."""
    if equation.op is not pw.where or equation.inputs[0] not in producers:
        return []
    pad = producers[equation.inputs[0]]
    if not _fills(pad, False) or pad.inputs[0] not in producers:
        return []
    mask = producers[pad.inputs[0]]
    is_true = mask.op is shapes.broadcast_to and isinstance(mask.inputs[0], Literal) and bool(mask.inputs[0].value)
    return [(equation.inputs[2], pad)] if is_true else []


def _fills(equation: Equation, number: float) -> bool:
    """Whether an equation pads with this number, which has the sign of a zero."""
    if equation.op is not shapes.pad or not isinstance(equation.inputs[1], Literal):
        return False
    filler = equation.inputs[1].value
    is_float = dtypes.is_float(filler.dtype)
    return bool(filler == number) and (not is_float or bool(np.signbit(filler) == np.signbit(number)))


def _is_small_block(pad: Equation) -> bool:
    """Whether an equation writes an array as one block into a much larger one."""
    is_block = not any(pad.params["interior"]) and min((*pad.params["low"], *pad.params["high"]), default=0) >= 0
    return is_block and 0 < _TIMES_LARGER * pad.inputs[0].aval.size <= pad.outputs[0].aval.size
