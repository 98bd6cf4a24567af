"""Conversions from half precision, moved after changes of layout; conversions back are removed.

A change of layout then moves half the bytes, and each kernel that needs float32 converts what it reads.
"""

from __future__ import annotations

from dataclasses import replace

from tvmfun import dtypes
from tvmfun.core.derivative import is_float
from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.lower.rewrite.equations import with_inner
from tvmfun.ops import pointwise as pw

_HALF = (dtypes.float16, dtypes.bfloat16)


def convert_late(program: Program) -> Program:
    """Moves conversions from half precision after changes of layout, also in loops and branches.

    Args:
        program: without calls.
    """
    narrow: dict[Atom, Atom] = {}  # arrays in half precision by their values in wider floats
    same: dict[Atom, Atom] = {}  # by conversions back to their own dtype
    now = lambda atom: same.get(atom, atom)
    equations: list[Equation] = []
    for old in program.equations:
        equation = old._replace(inputs=tuple(map(now, old.inputs))) if same else old
        source = narrow.get(equation.inputs[0]) if equation.inputs else None
        out = equation.outputs[0]
        is_back = equation.op is pw.astype and source is not None and out.aval.dtype == source.aval.dtype
        if is_back and out not in program.outputs:
            same[out] = source
        elif equation.op.precision == "kept" and source is not None and len(equation.inputs) == 1:
            moved = Variable(replace(out.aval, dtype=source.aval.dtype))
            equations.append(equation._replace(inputs=(source,), outputs=(moved,)))
            convert = {"dtype": dtypes.NAMES[out.aval.dtype]}
            equations.append(Equation(pw.astype, (moved,), convert, (out,), equation.source))
            narrow[out] = moved
        else:
            if equation.op is pw.astype and equation.inputs[0].aval.dtype in _HALF and _is_wider(out):
                narrow[out] = equation.inputs[0]
            equations.append(with_inner(equation, convert_late))
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations)).without_dead_code()


def _is_wider(atom: Atom) -> bool:
    """Whether a value is a float with more than half precision."""
    return is_float(atom) and atom.aval.dtype.itemsize > 2
