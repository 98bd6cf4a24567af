"""Bindings that TVM's passes keep instead of replacing variables by their formulas.

``StmtSimplify`` replaces a bound variable by its value at each use, if evaluating the value has no effect. Formulas of
transcendental functions use intermediate results several times, also in other intermediate results, so their trees
grow exponentially: the passes took half of the time to compile ``exp``. A value that may read memory is not
substituted, and the operator here, which returns its operand, pretends to read memory.
"""

from __future__ import annotations

import tvm
from tvm import ir, tirx

from tvmfun.lower.tir import build
from tvmfun.lower.tir.walk import called, find, rewrite

_NAME = "tirx.tvmfun_held"
# ``CallEffectKind::kReadState``: not pure, but without consequences for other expressions.
_READS_STATE = 2
# The latest registration wins.
_LEVEL = 10

tvm.get_global_func("ir.RegisterOp")(_NAME, "Returns its operand, and pretends to read memory.")
tvm.get_global_func("ir.RegisterOpAttr")(_NAME, "TCallEffectKind", _READS_STATE, _LEVEL)
tvm.get_global_func("ir.RegisterOpAttr")(_NAME, "TVectorizable", True, _LEVEL)
_HELD = ir.Op.get(_NAME)


def hold(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with bindings of floats that simplification keeps; the statement itself if it has none."""
    return rewrite(body, (tirx.Bind, _held)) if any(map(is_float, find(body, tirx.Bind))) else body


def release(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with plain bindings."""
    return rewrite(body, (ir.Call, lambda call: call.args[0] if called(call) == _NAME else call))


def through_memory(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with formulas of floats that are stored and loaded again.

    TVM's code generator simplifies the value of each binding, also with variables replaced by their values. LLVM's
    optimizer makes registers of such memory; without it, ``codegen.mem2reg`` does.
    """
    return rewrite(body, (tirx.Bind, _through_memory)) if any(map(_is_formula, find(body, tirx.Bind))) else body


def without_vector_conditions(body: tirx.Stmt) -> tirx.Stmt:
    """Replaces variables that are vectors of conditions by their values; the statement itself if there are none.

    TVM's analyzer of sets fails on vectors that it finds to be constant, such as a comparison of the lanes' numbers.
    """
    values: dict[ir.Var, tirx.PrimExpr] = {}
    for binding in find(body, tirx.Bind):
        if _is_of_conditions(binding.value):
            values[binding.var] = build.substitute(binding.value, values)
    if not values:
        return body
    nothing = lambda binding: tirx.Evaluate(0) if binding.var in values else binding
    return build.substitute(rewrite(body, (tirx.Bind, nothing)), values)


def _is_of_conditions(value: tirx.PrimExpr) -> bool:
    """Whether an expression is a vector of truth values, or of integers that are converted from them."""
    value = value.value if isinstance(value, tirx.Cast) else value
    return str(value.ty).startswith("boolx")


def is_float(binding: tirx.Bind) -> bool:
    """Whether a float is bound."""
    return str(binding.value.ty).startswith("float")


def _is_formula(binding: tirx.Bind) -> bool:
    return is_float(binding) and not isinstance(binding.value, ir.TensorLoad)


def _through_memory(binding: tirx.Bind) -> tirx.Stmt:
    if not _is_formula(binding):
        return binding
    value = binding.value
    dtype, _, lanes = str(value.ty).partition("x")
    buffer = tirx.decl_buffer([int(lanes or 1)], dtype, name="tvmfun_formula")
    index = [tirx.Ramp(0, 1, int(lanes)) if lanes else 0]
    store = tirx.BufferStore(buffer, value, index)
    return tirx.SeqStmt([tirx.AllocBuffer(buffer), store, tirx.Bind(binding.var, tirx.BufferLoad(buffer, index))])


def _held(binding: tirx.Bind) -> tirx.Bind:
    if not is_float(binding):
        return binding
    value = binding.value
    return tirx.Bind(binding.var, ir.Call(_HELD, [value], ret_ty=value.ty))
