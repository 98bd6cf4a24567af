"""Conversions to narrower floats, moved before changes of layout.

The kernel that computes the values then stores them converted, and the change of layout moves half the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvmfun.core.derivative import is_float
from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.lower.rewrite.equations import producers_of, readers_of, with_inner
from tvmfun.ops import pointwise as pw
from tvmfun.ops.shape import permute_dims, reshape


def convert_early(program: Program) -> Program:
    """Moves conversions before reshapes and permutations in a Program, also in its loops and branches.

    A permutation moves data: the conversion moves only before that of a product, and if it is the only reader.

    Args:
        program: without calls.
    """
    producers, readers = producers_of(program), readers_of(program)
    equations: list[Equation] = []
    for equation in program.equations:
        layouts = _layouts_before(equation, producers, readers)
        equations += _reordered(equation, layouts) if layouts else [with_inner(equation, convert_early)]
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations)).without_dead_code()


def _layouts_before(
    equation: Equation, producers: Mapping[Atom, Equation], readers: Mapping[Atom, int]
) -> list[Equation]:
    """The changes of layout that the conversion may precede, last first; none if it is not such a conversion."""
    if equation.op is not pw.astype or not _narrows(equation):
        return []
    found: list[Equation] = []
    is_read_elsewhere = False
    atom = equation.inputs[0]
    while (producer := producers.get(atom)) is not None and producer.op in (reshape, permute_dims):
        is_read_elsewhere = is_read_elsewhere or readers[atom] > 1
        if producer.op is permute_dims and is_read_elsewhere:
            break
        found.append(producer)
        atom = producer.inputs[0]
    is_product = producer is not None and producer.op.kind == "contraction"
    while found and (producer is None or (found[-1].op is permute_dims and not is_product)):
        producer = found.pop()
    return found


def _narrows(conversion: Equation) -> bool:
    """Whether a conversion is from floats to floats of fewer bytes."""
    (source,), (result,) = conversion.inputs, conversion.outputs
    return is_float(source) and is_float(result) and result.aval.dtype.itemsize < source.aval.dtype.itemsize


def _reordered(conversion: Equation, layouts: list[Equation]) -> list[Equation]:
    """The conversion, then the changes of layout of its result."""
    dtype = conversion.outputs[0].aval.dtype
    source = layouts[-1].inputs[0]
    equations = [conversion._replace(inputs=(source,), outputs=(Variable(replace(source.aval, dtype=dtype)),))]
    for layout in reversed(layouts):
        result = Variable(replace(layout.outputs[0].aval, dtype=dtype))
        equations.append(layout._replace(inputs=equations[-1].outputs, outputs=(result,)))
    equations[-1] = equations[-1]._replace(outputs=conversion.outputs)
    return equations
