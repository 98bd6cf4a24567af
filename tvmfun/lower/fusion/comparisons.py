"""Comparisons of bfloat16, which must not depend on the kernel that computes a value.

A kernel computes bfloat16 in float32 and rounds what it stores. An array that another kernel computes again, instead of
loading it, would have no element that equals the stored maximum of its elements, and so the gradient would be 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvmfun import dtypes
from tvmfun.core.program import Atom, Equation, Literal, Variable
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.ops import conv
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce as reductions
from tvmfun.ops import shape as shapes

_COMPARISONS = (pw.equal, pw.not_equal, pw.less, pw.less_equal, pw.greater, pw.greater_equal)
_EXTREMA = (reductions.max, reductions.min, reductions.argmax, reductions.argmin, conv.window_max, conv.window_argmax)
#: Results of these ops are arguments, or differ from them in the sign.
_MOVES = (pw.maximum, pw.minimum, pw.where, pw.negative, pw.abs, pw.stop_gradient, reductions.max, reductions.min)
_VIEWS = (shapes.reshape, shapes.permute_dims, shapes.broadcast_to, shapes.slice, shapes.flip)


def round_compared(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Rounds values of bfloat16 that several kernels compute, if they are compared or have their extremum taken.

    Args:
        kernels: of a Program or of the body of a loop or branch.
    """
    producers = {out: equation for kernel in kernels for equation in kernel.equations for out in equation.outputs}
    if all(out.aval.dtype != dtypes.bfloat16 for out in producers):
        return list(kernels)
    makers = Counter(out for kernel in kernels for equation in kernel.equations for out in equation.outputs)
    inexact: set[Variable] = set()
    for equation in producers.values():
        if equation.op in _EXTREMA or (equation.op in _COMPARISONS and not _has_literal(equation)):
            for atom in equation.inputs:
                inexact.update(source for source in _inexact_sources(atom, producers) if makers[source] > 1)
    return [_rounded(kernel, inexact) for kernel in kernels] if inexact else list(kernels)


def _has_literal(equation: Equation) -> bool:
    return any(isinstance(atom, Literal) for atom in equation.inputs)


def _inexact_sources(atom: Atom, producers: Mapping[Variable, Equation]) -> set[Variable]:
    """The values of bfloat16 that ``atom`` is moved or chosen from, and that kernels compute in float32."""
    found: set[Variable] = set()
    waiting, seen = [atom], set()
    while waiting:
        atom = waiting.pop()
        if isinstance(atom, Literal) or atom in seen or atom.aval.dtype != dtypes.bfloat16 or atom not in producers:
            continue
        seen.add(atom)
        producer = producers[atom]
        if producer.op in _MOVES or producer.op in _VIEWS:
            waiting += producer.inputs
        elif producer.op.kind in ("pointwise", "reduction") and producer.op is not pw.astype:
            found.add(atom)
    return found


def _rounded(kernel: Kernel, inexact: set[Variable]) -> Kernel:
    """The kernel with a conversion to float32 and back after such values, for those of its equations that read them."""
    computed = inexact.intersection(out for equation in kernel.equations for out in equation.outputs)
    read = computed.intersection(atom for equation in kernel.equations for atom in equation.inputs)
    exact = {variable: Variable(variable.aval) for variable in read}
    equations: list[Equation] = []
    for equation in kernel.equations:
        equations.append(equation._replace(outputs=tuple(exact.get(out, out) for out in equation.outputs)))
        for out in equation.outputs:
            if out in exact:
                wide = Variable(replace(out.aval, dtype=dtypes.float32))
                equations.append(Equation(pw.astype, (exact[out],), {"dtype": "float32"}, (wide,)))
                equations.append(Equation(pw.astype, (wide,), {"dtype": "bfloat16"}, (out,)))
    return replace(kernel, equations=tuple(equations)) if exact else kernel
