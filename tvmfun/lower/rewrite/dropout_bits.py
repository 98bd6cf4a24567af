"""Dropout of attention, drawn once for the result and its gradients.

A draw takes about 80 integer operations, and the kernels of attention need it three times: for the result, for the
cotangent of the queries, and for those of keys and values. That takes longer than their products. Stored bits, one per
pair of query and key, take a sixteenth of the memory of scores in bfloat16, and are read during the products.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tvmfun.core import dims
from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.lower.rewrite.equations import with_inner
from tvmfun.ops.attention import WORD, AttentionParams, attention, attention_gradients, dropout_bits


class _Draws(NamedTuple):
    """The keys, the shape of the scores, the rate and causality, on which the bits of dropout depend."""

    keys: Atom
    shape: tuple[int, ...]
    rate: float
    causal: bool


def share_dropout_bits(program: Program) -> Program:
    """Adds the bits of dropout that gradients read to a Program, also in its loops and branches.

    An attention with the same bits reads them, too. An attention without gradients, such as one that ``checkpoint``
    computes a second time, draws in its kernel.

    Args:
        program: without calls.
    """
    wanted = {_draws(equation) for equation in program.equations if equation.op is attention_gradients}
    bits: dict[_Draws, Variable] = {}
    equations: list[Equation] = []
    for equation in program.equations:
        draws = _draws(equation)
        if draws is None or draws not in wanted:
            equations.append(with_inner(equation, share_dropout_bits))
            continue
        if draws not in bits:
            equations.append(_drawn(draws, equation.source))
            (bits[draws],) = equations[-1].outputs
        equations.append(_reading(equation, bits[draws]))
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations))


def _draws(equation: Equation) -> _Draws | None:
    """The arguments of the bits that an attention should read; None if it should read none."""
    if equation.op not in (attention, attention_gradients):
        return None
    settings = AttentionParams(equation.op is attention_gradients, **equation.params)
    query, key = (atom.aval.shape for atom in equation.inputs[:2])
    shape = (query[0], query[2], query[1], key[1])
    if not settings.rate or "dropout_key" not in settings.optional or dims.is_dynamic(shape):
        return None
    # Kernels skip scores outside of a window, and memory should not be quadratic in the length: at most the result's.
    if settings.window is not None or key[1] > WORD * query[3]:
        return None
    return _Draws(settings.named(equation.inputs)["dropout_key"], shape, settings.rate, settings.causal)


def _drawn(draws: _Draws, source: str) -> Equation:
    """The equation that draws the bits."""
    params = {"shape": draws.shape, "rate": draws.rate, "causal": draws.causal}
    bits = Variable(dropout_bits.shape(draws.keys.aval, **params))
    return Equation(dropout_bits, (draws.keys,), params, (bits,), source)


def _reading(equation: Equation, bits: Variable) -> Equation:
    """The attention with bits instead of keys of dropout: the last optional argument in either case."""
    optional = (*equation.params["optional"][:-1], "kept")
    return equation._replace(inputs=(*equation.inputs[:-1], bits), params={**equation.params, "optional": optional})
