"""Bindings that TVM's passes keep, instead of replacing variables by their formulas.

``StmtSimplify`` replaces a bound variable by its value wherever it is used, if evaluating that has no effect. Formulas
of transcendental functions use intermediate results several times, also in other intermediate results, so their trees
grow exponentially: of the time to compile ``exp``, the passes took half. A value that may read memory is not
substituted, and the operator here, which returns its operand, pretends to do that. Choices that depend on choices grow
exponentially in time, and are bound for that.
"""

from __future__ import annotations

import re

import tvm
from tvm import ir, tirx

from tvmfun.lower.tir.build import is_choice
from tvmfun.lower.tir.walk import called, find, rewrite

#: The name of the memory through which formulas go.
MEMORY = "tvmfun_formula"
_NAME = "tirx.tvmfun_held"
# ``CallEffectKind::kReadState``: not pure, but without consequences for other expressions.
_READS_STATE = 2
# A later registration wins.
_LEVEL = 10

tvm.get_global_func("ir.RegisterOp")(_NAME, "Returns its operand, and pretends to read memory.")
tvm.get_global_func("ir.RegisterOpAttr")(_NAME, "TCallEffectKind", _READS_STATE, _LEVEL)
tvm.get_global_func("ir.RegisterOpAttr")(_NAME, "TVectorizable", True, _LEVEL)
_HELD = ir.Op.get(_NAME)


def hold(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with bindings that simplification keeps: of floats, and of choices that others depend on.

    It is the statement itself if it has neither.
    """
    if any(find(choice.condition, tirx.Select) for choice in find(body, tirx.Select)):
        body = rewrite(body, (tirx.BufferStore, _with_bound_choices))
    return rewrite(body, (tirx.Bind, _held)) if any(map(is_float, find(body, tirx.Bind))) else body


def release(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with plain bindings."""
    return rewrite(body, (ir.Call, lambda call: call.args[0] if called(call) == _NAME else call))


def through_memory(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with formulas of floats that are stored and loaded again.

    TVM's code generator simplifies the value of each binding, also with variables replaced by their values. LLVM's
    optimizer makes registers of such memory; without it, ``codegen.module_text`` does.
    """
    return rewrite(body, (tirx.Bind, _through_memory)) if any(map(_is_formula, find(body, tirx.Bind))) else body


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
    buffer = tirx.decl_buffer([int(lanes or 1)], dtype, name=MEMORY)
    index = [tirx.Ramp(0, 1, int(lanes)) if lanes else 0]
    store = tirx.BufferStore(buffer, value, index)
    return tirx.SeqStmt([tirx.AllocBuffer(buffer), store, tirx.Bind(binding.var, tirx.BufferLoad(buffer, index))])


def _held(binding: tirx.Bind) -> tirx.Bind:
    if not is_float(binding):
        return binding
    return tirx.Bind(binding.var, _kept(binding.value))


def _kept(value: ir.Expr) -> ir.Expr:
    return ir.Call(_HELD, [value], ret_ty=value.ty)


def _with_bound_choices(store: tirx.BufferStore) -> tirx.Stmt:
    """The store after bindings of the integers chosen in conditions of its choices.

    The simplifier visits the condition of a choice about ten times, and that of a choice in it ten times as often.
    """
    bindings: list[tirx.Stmt] = []

    def bound(choice: tirx.Select) -> ir.Expr:
        if not re.fullmatch(r"u?int\d+", str(choice.ty)):  # no float, bool or vector
            return choice
        var = ir.Var("choice", choice.ty)
        bindings.append(tirx.Bind(var, _kept(choice)))
        return var

    def with_bound(value: ir.Expr) -> ir.Expr:
        if isinstance(value, tirx.Select) and _is_evaluated(value.condition):
            condition = rewrite(value.condition, (tirx.Select, bound))
            return tirx.Select(condition, value.true_value, value.false_value)
        if isinstance(value, tirx.Add | tirx.EQ | tirx.NE):
            return type(value)(with_bound(value.a), with_bound(value.b))
        if isinstance(value, tirx.Cast):
            return tirx.Cast(value.ty, with_bound(value.value))
        return value

    value = with_bound(store.value)
    return tirx.SeqStmt([*bindings, tirx.BufferStore(store.buffer, value, store.indices)]) if bindings else store


def _is_evaluated(condition: ir.Expr) -> bool:
    """Whether all choices in a condition are evaluated, and none in one case of a branch or of another choice only."""
    cases = [case for choice in find(condition, tirx.Select) for case in (choice.true_value, choice.false_value)]
    return not any(map(is_choice, find(condition, ir.Call))) and not any(find(case, tirx.Select) for case in cases)
