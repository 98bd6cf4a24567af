"""Comparisons, tests for special values, and ``where``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.core.expressions import dtype_name
from tvmfun.core.op import Op, no_flops
from tvmfun.core.trace import argument
from tvmfun.errors import DtypeError
from tvmfun.ops.formula import is_float, is_nan
from tvmfun.ops.pointwise.broadcasting import broadcast_shapes
from tvmfun.ops.pointwise.registration import FLOATS, constant, pointwise
from tvmfun.ops.simplify import by_numpy, index_axis, is_number, made_by, number, same

__all__ = ["equal", "greater", "greater_equal", "isfinite", "isnan", "less", "less_equal", "not_equal", "where"]


def _comparison(
    name: str,
    formula: Callable,
    spelling: Callable,
    exact: Callable,
    of_index: bool | None = None,
    undoes_astype: bool = False,
) -> Op:
    """Registers a comparison; bools are compared as 0 and 1, because LLVM cannot compare vectors of bools.

    Args:
        name: of the op.
        formula: of two elements that are not bools.
        spelling: the op of Relax.
        exact: NumPy's function.
        of_index: the result for an index and 0, if it is always the same.
        undoes_astype: whether the result for a converted bool and 0 is that bool.
    """

    def compare(x: Any, y: Any) -> Any:
        if dtype_name(x) == "bool":
            x, y = x.astype("int8"), y.astype("int8")
        return formula(x, y)

    def simplify(x: Any, y: Any) -> Any:
        if not is_number(y, 0):
            return None
        if undoes_astype and made_by(x, "astype") and np.shape(y) in ((), x.shape):
            truth = argument(x, 0)
            return truth if truth.dtype == dtypes.bool_ else None
        return np.bool_(of_index) if of_index is not None and index_axis(x) is not None else None

    return pointwise(
        name,
        compare,
        domain=dtypes.ALL,
        result=dtypes.bool_,
        spelling=spelling,
        simplify=simplify if undoes_astype or of_index is not None else None,
        exact=by_numpy(exact),
    )


def _equal(x: Any, y: Any) -> Any:
    # TVM generates ordered code for EQ and NE of floats, and simplifies them as if there were no NaN.
    return tirx.And(tirx.Not(is_nan(x)), tirx.EQ(x, y)) if is_float(x) else tirx.EQ(x, y)


def differ(x: Any, y: Any) -> Any:
    """The formula of ``x != y``."""
    return tirx.Or(tirx.Or(is_nan(x), is_nan(y)), tirx.NE(x, y)) if is_float(x) else tirx.NE(x, y)


equal = _comparison("equal", _equal, relax.op.equal, np.equal)
not_equal = _comparison("not_equal", differ, relax.op.not_equal, np.not_equal, undoes_astype=True)


def _less(x: Any, y: Any) -> Any:
    # TVM divides unsigned numbers by the limit, and fails on comparisons of such quotients inside of one another.
    if dtype_name(x) == "uint32" and isinstance(y, tirx.IntImm) and y.value > 0:
        return x <= tirx.const(y.value - 1, "uint32")
    return x < y


def _at_least(x: Any, y: Any) -> Any:
    return tirx.Not(_less(x, y)) if dtype_name(x) == "uint32" else x >= y


less = _comparison("less", _less, relax.op.less, np.less, of_index=False)
less_equal = _comparison("less_equal", lambda x, y: x <= y, relax.op.less_equal, np.less_equal)
greater = _comparison("greater", lambda x, y: _less(y, x), relax.op.greater, np.greater, undoes_astype=True)
greater_equal = _comparison("greater_equal", _at_least, relax.op.greater_equal, np.greater_equal, of_index=True)

isnan = pointwise("isnan", is_nan, domain=FLOATS, result=dtypes.bool_, spelling=relax.op.isnan)


def _isfinite(x: Any) -> Any:
    if dtype_name(x) == "bfloat16":
        x = tirx.Cast("float32", x)
    return tirx.abs(x) < tirx.infinity(dtype_name(x))


isfinite = pointwise("isfinite", _isfinite, domain=FLOATS, result=dtypes.bool_, spelling=relax.op.isfinite)


def _where_shape(condition: ShapeDtype, x: ShapeDtype, y: ShapeDtype) -> ShapeDtype:
    if condition.dtype != dtypes.bool_:
        raise DtypeError("where", "the condition must be bool", got=repr(condition), hint="condition != 0")
    if x.dtype != y.dtype:
        raise DtypeError("where", "both branches must have one dtype", got=f"{x} and {y}", hint="x.astype(y.dtype)")
    common = broadcast_shapes("where", [condition.shape, x.shape, y.shape])
    return ShapeDtype(common, x.dtype, weak=x.weak and y.weak)


def _where_simplify(condition: Any, x: Any, y: Any) -> Any:
    if same(x, y):
        known = number(x)
        return x if known is None else known
    chosen = number(condition)
    return None if chosen is None else x if chosen else y


where = pointwise(
    "where",
    lambda c, x, y: tirx.Select(c, x, y),
    (
        None,
        lambda g, o, c, x, y: where(c, g, constant(0, g)),
        lambda g, o, c, x, y: where(c, constant(0, g), g),
    ),
    shape=_where_shape,
    spelling=relax.op.where,
    simplify=_where_simplify,
    flops=no_flops,
)
