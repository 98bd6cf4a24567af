"""Flattening of buffers to one dimension, without a simplification of TVM that is wrong.

``FlattenBuffer`` simplifies each index as an iterator map (``IterMapSimplify``). TVM 0.27 does that wrongly where a
quotient or remainder has an offset, a variable that descends, or one that occurs twice:

=============================  ==============================  =========================
index, ``0 <= i < 64``         becomes                         which differs at
=============================  ==============================  =========================
``(i % 16 + 1) // 2``          ``(i + 1) % 16 // 2``           ``i = 15``: 0 instead of 8
``i // 16 * 8 + that``         ``(i + 1) // 2 - 8``            every ``i``
``(3 - i) // 2``               ``i // -2 + 1``                 ``i = 1``: 0 instead of 1
``i - i % 5``                  an error: a division by 0
=============================  ==============================  =========================

It leaves indices alone where the extent of a loop around them depends on the variable of another one. So the statement
is put into two such loops of one iteration while buffers are flattened. The simplifier proper, which is right, joins
the quotients and remainders of an index then.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import ir, tirx

from tvmfun.lower.tir.walk import find, rewrite

_OUTER, _INNER = (ir.Var(name, ir.PrimType("int32")) for name in ("outer", "inner"))
_FLATTEN = tirx.transform.FlattenBuffer()
_SIMPLIFY = tirx.transform.StmtSimplify()


@tvm.transform.module_pass(opt_level=0, name="tvmfun.FlattenBuffers")
def flatten_buffers(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """The pass that makes every buffer one-dimensional, and simplifies functions with quotients."""
    flat = _with_bodies(_FLATTEN(_with_bodies(module, _in_loops)), _without_loops)
    some = {name: f for name, f in flat.functions.items() if find(f.body, tirx.FloorDiv, tirx.FloorMod)}
    simplified = _SIMPLIFY(tvm.IRModule(some, attrs=module.attrs)).functions if some else {}
    return tvm.IRModule({**flat.functions, **simplified}, attrs=module.attrs)


def _with_bodies(module: tvm.IRModule, change: Callable[[tirx.Stmt], tirx.Stmt]) -> tvm.IRModule:
    functions = {name: function.with_body(change(function.body)) for name, function in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _in_loops(body: tirx.Stmt) -> tirx.Stmt:
    inner = tirx.For(_INNER, 0, _OUTER + 1, tirx.ForKind.SERIAL, body)
    return tirx.For(_OUTER, 0, 1, tirx.ForKind.SERIAL, inner)


def _without_loops(body: tirx.Stmt) -> tirx.Stmt:
    is_ours = lambda loop: any(map(loop.loop_var.same_as, (_OUTER, _INNER)))
    return rewrite(body, (tirx.For, lambda loop: loop.body if is_ours(loop) else loop))
