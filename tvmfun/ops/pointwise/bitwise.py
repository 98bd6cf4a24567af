"""Logic on bools and bits, and shifts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmfun import dtypes
from tvmfun.core.expressions import dtype_name
from tvmfun.core.op import Op
from tvmfun.ops.formula import hidden, is_signed, zero
from tvmfun.ops.pointwise.registration import INTEGERS, pointwise

__all__ = ["bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]


def _bitwise(name: str, on_bits: Callable, on_bools: Callable, spelling: Callable) -> Op:
    @wraps(on_bits)
    def formula(*xs: Any) -> Any:
        return on_bools(*xs) if dtype_name(xs[0]) == "bool" else on_bits(*xs)

    return pointwise(name, formula, domain=(dtypes.bool_, *INTEGERS), spelling=spelling)


bitwise_and = _bitwise("bitwise_and", lambda x, y: x & y, tirx.And, relax.op.bitwise_and)
bitwise_or = _bitwise("bitwise_or", lambda x, y: x | y, tirx.Or, relax.op.bitwise_or)
bitwise_xor = _bitwise(
    "bitwise_xor", lambda x, y: x ^ y, lambda x, y: tirx.NE(x.astype("int8"), y.astype("int8")), relax.op.bitwise_xor
)
# The negation of a comparison would be simplified to the opposite comparison, which is wrong for NaN.
bitwise_not = _bitwise(
    "bitwise_not", lambda x: ~x, lambda x: tirx.EQ(x.astype("int8"), tirx.const(0, "int8")), relax.op.bitwise_not
)


def _defined_shift(shift: Callable, sign_extends: bool) -> Callable[..., Any]:
    """The formula of a shift that is also defined for counts of at least the bit width, where LLVM's is poison.

    As in XLA the result is then 0, or all sign bits if the shift ``sign_extends``.
    """

    def shifted(x: Any, count: Any) -> Any:
        dtype = dtype_name(x)
        last = tirx.const(np.dtype(dtype).itemsize * 8 - 1, dtype)
        too_far = tirx.Or(count > last, count < zero(x)) if is_signed(x) else count > last
        if sign_extends and is_signed(x):
            return shift(x, tirx.Select(too_far, last, count))
        return tirx.Select(too_far, zero(x), shift(x, tirx.Select(too_far, zero(x), count)))

    return shifted


def _shift_left(x: Any, n: Any) -> Any:
    # TVM takes a shift for a product that does not overflow. Random bits rotate unsigned numbers, which are not
    # indices.
    return (hidden(x) if is_signed(x) else x) << n


left_shift = pointwise("left_shift", _defined_shift(_shift_left, sign_extends=False), domain=INTEGERS)
right_shift = pointwise("right_shift", _defined_shift(lambda x, n: x >> n, sign_extends=True), domain=INTEGERS)
