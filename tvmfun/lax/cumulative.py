"""Running sums, products and extrema along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.numpy.shapes import normalize_axis
from tvmfun.ops import cumulative as ops


def _cumulative(op: Op, what: str) -> Callable[..., Array]:
    def function(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
        operand = tnp.asarray(operand)
        return op(operand, axis=normalize_axis(op.name, axis, operand.ndim), reverse=bool(reverse))

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = f"Returns {what} up to each one along an axis, from its end if ``reverse``."
    return function


cumsum = _cumulative(ops.cumsum, "the sum of the elements")
cumprod = _cumulative(ops.cumprod, "the product of the elements")
cummax = _cumulative(ops.cummax, "the largest element, whose first occurrence gets the gradient,")
cummin = _cumulative(ops.cummin, "the smallest element, whose first occurrence gets the gradient,")
cumlogsumexp = _cumulative(ops.cumlogsumexp, "the logarithm of the sum of the exponentials of the elements")
