"""Attention whose gradients recompute the scores from log-sums, instead of reading stored ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfun.core.array import Array
from tvmfun.nn.functional.direct_attention import AttentionInputs
from tvmfun.transforms import custom_vjp, vjp

__all__ = ["recomputing_attention"]


def recomputing_attention(
    inputs: AttentionInputs,
    forward: Callable[[AttentionInputs], tuple[Array, Array]],
    backward: Callable[[AttentionInputs, Array, Array, Array], tuple],
    formula: Callable[[AttentionInputs], Array],
) -> Array:
    """Attention with functions for the result and the cotangents; further derivatives are those of the formula.

    Args:
        inputs: the arguments.
        forward: from the arguments to the result and its log-sums, in any layout.
        backward: from the arguments, the result, the log-sums and the cotangent of the result to the cotangents of
            query, key, value and bias.
        formula: the same result, as a function that has derivatives of any order and mode.
    """

    @custom_vjp
    def attention(query: Array, key: Array, value: Array, bias: Array | None, others: tuple) -> tuple[Array, Array]:
        return forward(AttentionInputs(query, key, value, bias, *others))

    def attention_forward(*parts: Any) -> tuple[tuple[Array, Array], tuple]:
        results = attention(*parts)
        return results, (parts, *results)

    def attention_backward(residuals: tuple, gs: tuple[Array, Array]) -> tuple:
        parts, result, log_sums = residuals
        return (*gradients(*parts, result, log_sums, gs[0]), None)

    attention.defvjp(attention_forward, attention_backward)

    @custom_vjp
    def gradients(
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None,
        others: tuple,
        result: Array,
        log_sums: Array,
        g: Array,
    ) -> tuple:
        return backward(AttentionInputs(query, key, value, bias, *others), result, log_sums, g)

    def gradients_forward(*parts: Any) -> tuple[Any, tuple]:
        return gradients(*parts), (parts[:4], parts[4], parts[7])

    def gradients_backward(residuals: tuple, gs: tuple) -> tuple:
        floats, others, g = residuals

        def of_formula(floats: tuple, g: Array) -> tuple:
            return vjp(lambda *floats: formula(AttentionInputs(*floats, *others)), *floats)[1](g)

        d_floats, d_g = vjp(of_formula, floats, g)[1](gs)
        return (*d_floats, None, None, None, d_g)

    gradients.defvjp(gradients_forward, gradients_backward)
    return attention(*inputs[:4], tuple(inputs[4:]))[0]
