"""Updates of slices in place: where a state is replaced by itself with a slice of it updated, only that is written.

As a map, ``dynamic_update_slice`` computes every element of its result, so a loop that writes one row of a table per
step would write the whole table. As loops over the update it can be written over the state. So is an array
that is added to a block of the state, or stored there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from tvmfun.core import dims
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.lower.rewrite.equations import with_inner
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.dynamic_slice import dynamic_update_slice, slice_update

#: How many times larger than a block that is updated a state is at least.
_LARGER = 4


def update_slices(program: Program) -> Program:
    """Returns the Program, and those in its loops and branches, with updates of its inputs that can be in place.

    An update changes if it turns, alone or with other updates, an input of the Program into a result of it.

    Args:
        program: without calls.
    """
    producers = {out: equation for equation in program.equations for out in equation.outputs}
    known: set[Atom] = set(program.inputs)
    candidates: list[tuple[Equation, list[Equation]]] = []
    for equation in program.equations:
        if update := _update(equation, producers, known):
            candidates.append((equation, update))
            known.update(equation.outputs)
    wanted: set[Atom] = set(program.outputs).difference(program.inputs)
    chosen: dict[int, list[Equation]] = {}
    for equation, update in reversed(candidates):
        if not wanted.isdisjoint(equation.outputs):
            chosen[id(equation)] = update
            wanted.add(update[-1].inputs[0])  # the state
    if not chosen and all(with_inner(one, update_slices) is one for one in program.equations):
        return program
    lists = (chosen.get(id(one)) or [with_inner(one, update_slices)] for one in program.equations)
    return replace(program, equations=tuple(one for equations in lists for one in equations)).without_dead_code()


def _update(equation: Equation, producers: Mapping[Atom, Equation], states: Collection[Atom]) -> list[Equation]:
    """The update of a state that an equation is, with what computes the slice; none if it is not one."""
    if dims.is_dynamic(tuple(atom.aval.shape for atom in equation.inputs)):
        return []
    if equation.op is dynamic_update_slice and equation.inputs[0] in states:
        has_elements = all(atom.aval.size for atom in equation.inputs)
        return [equation._replace(op=slice_update)] if has_elements else []
    for state, pad in _sums(equation, producers) or _choices(equation, producers):
        if state in states and state.aval == equation.outputs[0].aval and _is_small_block(pad):
            return _update_of_block(equation, state, pad)
    return []


def _sums(equation: Equation, producers: Mapping[Atom, Equation]) -> list[tuple[Atom, Equation]]:
    """The arrays to which an equation adds a padded one, with the padding."""
    pairs = (equation.inputs, equation.inputs[::-1]) if equation.op is pw.add else ()
    return [(state, producers[added]) for state, added in pairs if added in producers and _fills(producers[added], 0)]


def _choices(equation: Equation, producers: Mapping[Atom, Equation]) -> list[tuple[Atom, Equation]]:
    """The array that an equation keeps outside of a block, with the padding of the mask of the block."""
    if equation.op is not pw.where or equation.inputs[0] not in producers:
        return []
    pad = producers[equation.inputs[0]]
    if not _fills(pad, 0) or pad.inputs[0] not in producers:
        return []
    mask = producers[pad.inputs[0]]
    is_true = mask.op is shapes.broadcast_to and isinstance(mask.inputs[0], Literal) and bool(mask.inputs[0].value)
    return [(equation.inputs[2], pad)] if is_true else []


def _fills(equation: Equation, number: int) -> bool:
    """Whether an equation pads with this number."""
    if equation.op is not shapes.pad or not isinstance(equation.inputs[1], Literal):
        return False
    return equation.inputs[1].value == number


def _is_small_block(pad: Equation) -> bool:
    """Whether an equation writes an array as one block into a much larger one."""
    is_block = not any(pad.params["interior"]) and min((*pad.params["low"], *pad.params["high"]), default=0) >= 0
    return is_block and 0 < _LARGER * pad.inputs[0].aval.size <= pad.outputs[0].aval.size


def _update_of_block(equation: Equation, state: Atom, pad: Equation) -> list[Equation]:
    """The equations that compute a block of a result and write it into the state that the result is elsewhere."""
    shape, padded = state.aval.shape, pad.outputs[0].aval.shape
    # A batch may share the mask.
    lead = shape[: len(shape) - len(padded)]
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
