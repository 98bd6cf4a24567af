"""Rounding of bfloat16 where it decides: before comparisons, and where stored and computed values would meet.

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

_COMPARISONS = (pw.equal, pw.not_equal, pw.less, pw.less_equal, pw.greater, pw.greater_equal)
_TO_INTEGERS = (pw.floor, pw.ceil, pw.round, pw.trunc)
_EXTREMA = (reductions.max, reductions.min, reductions.argmax, reductions.argmin, conv.window_max)
#: Results of these ops are arguments, or differ from them in the sign.
_MOVES = (pw.maximum, pw.minimum, pw.where, pw.negative, pw.abs, pw.stop_gradient, reductions.max, reductions.min)


def round_compared(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Rounds values of bfloat16 within the kernels that compute them, where a stored value could be another one.

    These are the operands of comparisons, values that several kernels compute and of which one takes the extremum, and
    values that a kernel stores and subtracts from one that it has loaded, as compensated sums do.

    Args:
        kernels: of a Program or of the body of a loop or branch.
    """
    producers = {out: equation for kernel in kernels for equation in kernel.equations for out in equation.outputs}
    if all(out.aval.dtype != dtypes.bfloat16 for out in producers):
        return list(kernels)
    makers = Counter(out for kernel in kernels for equation in kernel.equations for out in equation.outputs)
    extrema = {atom for equation in producers.values() if equation.op in _EXTREMA for atom in equation.inputs}
    sources = {source for atom in extrema for source in _inexact_sources(atom, producers)}
    return [_rounded(kernel, {source for source in sources if makers[source] > 1}) for kernel in kernels]


def _inexact_sources(atom: Atom, producers: Mapping[Variable, Equation]) -> set[Variable]:
    """The values of bfloat16 that ``atom`` is moved or chosen from, and that kernels compute in float32."""
    found: set[Variable] = set()
    waiting, seen = [atom], set()
    while waiting:
        atom = waiting.pop()
        if isinstance(atom, Literal) or atom in seen or atom.aval.dtype != dtypes.bfloat16 or atom not in producers:
            continue
        seen.add(atom)
        if _moves(producers[atom]):
            waiting += producers[atom].inputs
        elif _computes(producers[atom]):
            found.add(atom)
    return found


def _moves(equation: Equation) -> bool:
    return equation.op in _MOVES or equation.op.kind == "injective"


def _computes(equation: Equation) -> bool:
    """Whether a kernel has more digits of the result than bfloat16; conversions to it round."""
    return equation.op.kind in ("pointwise", "reduction", "contraction") and equation.op is not pw.astype


def _decides(equation: Equation) -> bool:
    """Whether rounding the arguments of an equation could change its result altogether."""
    if equation.op in _COMPARISONS:  # with 0 no rounding does
        return not any(isinstance(atom, Literal) and atom.value == 0 for atom in equation.inputs)
    if equation.op is pw.astype:
        return dtypes.is_integer(equation.outputs[0].aval.dtype)
    return equation.op in _TO_INTEGERS or equation.op is conv.window_argmax


def _has_one_source(equation: Equation, producers: Mapping[Variable, Equation]) -> bool:
    """Whether both operands are chosen from the same values, such as a value and the maximum in the same kernel."""
    if len(equation.inputs) != 2:
        return False
    first, second = (_inexact_sources(atom, producers) for atom in equation.inputs)
    return first == second


def _compensates(equation: Equation, inexact: set[Atom]) -> bool:
    """Whether an equation adds to or subtracts from a value that was loaded, as the error of a compensated sum does."""
    is_loaded = lambda atom: isinstance(atom, Variable) and atom not in inexact
    return equation.op in (pw.add, pw.subtract) and any(map(is_loaded, equation.inputs))


def _values_to_round(kernel: Kernel, sources: set[Variable]) -> set[Variable]:
    """The values that the kernel computes and reads, and that have to be rounded in between."""
    own = {out: equation for equation in kernel.equations for out in equation.outputs}
    inexact: set[Atom] = set()
    chosen: set[Atom] = set(sources)
    for equation in kernel.equations:
        if _decides(equation) and not _has_one_source(equation, own):
            chosen.update(equation.inputs)
        if _compensates(equation, inexact):
            chosen.update(atom for atom in equation.inputs if atom in kernel.outputs)
        if not inexact.isdisjoint(equation.inputs) if _moves(equation) else _computes(equation):
            inexact.update(out for out in equation.outputs if out.aval.dtype == dtypes.bfloat16)
    read = {atom for equation in kernel.equations for atom in equation.inputs}
    return {atom for atom in chosen & inexact & read if isinstance(atom, Variable)}


def _rounded(kernel: Kernel, sources: set[Variable]) -> Kernel:
    """The kernel with a conversion to float32 and back after the values to round, for the equations that read them."""
    exact = {variable: Variable(variable.aval) for variable in _values_to_round(kernel, sources)}
    equations: list[Equation] = []
    for equation in kernel.equations:
        equations.append(equation._replace(outputs=tuple(exact.get(out, out) for out in equation.outputs)))
        for out in equation.outputs:
            if out in exact:
                wide = Variable(replace(out.aval, dtype=dtypes.float32))
                equations.append(Equation(pw.astype, (exact[out],), {"dtype": "float32"}, (wide,)))
                equations.append(Equation(pw.astype, (wide,), {"dtype": "bfloat16"}, (out,)))
    return replace(kernel, equations=tuple(equations)) if exact else kernel
