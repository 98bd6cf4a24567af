"""Functions that are vector arithmetic for usual arguments, and calls of libm for others.

The quotient of a remainder is rarely above 2**24, and the argument of a sine rarely above a million. For such arguments
:mod:`tvmfun.lower.tir.vector_math` has arithmetic. Lanes of a vector with others are computed again by libm, after a
test of the whole vector.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, BufferStore, For, ForKind, Stmt

from tvmfun.lower.tir.build import seq
from tvmfun.lower.tir.math_calls import arguments_of, function_of, guarded_calls
from tvmfun.lower.tir.vector_math import OF_USUAL_ARGUMENTS, OF_USUAL_IN_DOUBLE
from tvmfun.lower.tir.vector_math.formats import Expr
from tvmfun.lower.tir.walk import find, rewrite


def expand_for_usual_arguments(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Returns a scheduled function whose stores compute such functions by arithmetic.

    Calls in a branch of ``if_then_else`` stay: their arguments may only be evaluated when the branch is taken.
    """
    if not any(map(has_arithmetic, find(func.body, ir.Call))):
        return func
    body = rewrite(func.body, (For, _expanded_loop))
    inside = {store for loop in find(body, For) if _is_vectorized(loop) for store in find(loop.body, BufferStore)}
    single = lambda store: store if store in inside else _expanded(store, None)
    return func.with_body(rewrite(body, (BufferStore, single)))


def has_arithmetic(call: ir.Call) -> bool:
    """Whether a call is of a function that is arithmetic for usual arguments."""
    functions = {"float32": OF_USUAL_ARGUMENTS, "float64": OF_USUAL_IN_DOUBLE}.get(str(call.ty), ())
    return function_of(call) in functions


def _is_vectorized(loop: For) -> bool:
    return loop.kind == ForKind.VECTORIZED


def _expanded_loop(loop: For) -> Stmt:
    """A vectorized loop over stores as one loop per store, with what each needs before it."""
    stores = list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
    if not _is_vectorized(loop) or not all(isinstance(store, BufferStore) for store in stores):
        return loop
    return seq(*(_expanded(store, loop) for store in stores))


def _expanded(store: BufferStore, loop: For | None) -> Stmt:
    """A store, for all lanes of the vectorized ``loop`` around it or for a single one, and what it needs before it."""
    calls = find(store.value, ir.Call)
    guarded = guarded_calls(calls)
    if not any(has_arithmetic(call) and call not in guarded for call in calls):
        return store if loop is None else _loop_around(loop, store)
    lanes = 1 if loop is None else int(loop.extent)
    lane = tirx.const(0, "int32") if loop is None else loop.loop_var - loop.min
    statements: list[Stmt] = []
    known: list[tuple[ir.Call, tirx.Buffer]] = []

    def visit(call: ir.Call) -> Expr:
        if not has_arithmetic(call) or call in guarded:
            return call
        for earlier, result in known:
            if tvm_ffi.structural_equal(earlier, call):
                return result[lane]
        result = _emit(call, lanes, lane, loop, statements)
        known.append((call, result))
        return result[lane]

    value = rewrite(store.value, (ir.Call, visit))
    last = BufferStore(store.buffer, value, store.indices)
    return seq(*statements, last if loop is None else _loop_around(loop, last))


def _emit(call: ir.Call, lanes: int, lane: Expr, loop: For | None, statements: list[Stmt]) -> tirx.Buffer:
    """Appends statements that compute a call in all lanes; returns the buffer of the result."""
    dtype, function = str(call.ty), function_of(call)
    whole = _indices(lanes)

    def register(kind: str) -> tirx.Buffer:
        buffer = tirx.decl_buffer((lanes,), kind)
        statements.append(AllocBuffer(buffer))
        return buffer

    def kept(value: Expr) -> Expr:
        if isinstance(value, ir.TensorLoad):
            return value
        buffer = register(str(value.ty).partition("x")[0])
        statements.append(BufferStore(buffer, value, [whole]))
        return buffer[whole]

    def argument(value: Expr) -> tuple[Expr, Any]:
        """The vector of an argument, and a function that returns one lane of it."""
        if isinstance(value, tirx.FloatImm):
            return tirx.Broadcast(value, lanes) if lanes > 1 else value, lambda i: value
        buffer = register(dtype)
        store = BufferStore(buffer, value, [lane])
        statements.append(store if loop is None else _loop_around(loop, store))
        return buffer[whole], lambda i: buffer[i]

    vectors, of_lane = zip(*map(argument, arguments_of(call)), strict=True)
    value, is_usual = OF_USUAL_ARGUMENTS[function](*vectors, kept)
    result = register(dtype)
    statements.append(BufferStore(result, value, [whole]))

    far, vector = register("int32"), "int32" if lanes == 1 else f"int32x{lanes}"
    is_far = tirx.Select(is_usual, tirx.const(0, vector), tirx.const(1, vector))
    statements.append(BufferStore(far, is_far, [whole]))
    i = ir.Var("lane", ir.PrimType("int32"))
    exact = tirx.call_pure_extern(dtype, f"{function}f" if dtype == "float32" else function, *(x(i) for x in of_lane))
    repair = tirx.IfThenElse(far[i] != 0, BufferStore(result, exact, [i]), None)
    any_far = far[0]
    if lanes > 1:
        any_far = tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.or", far[whole])
    statements.append(tirx.IfThenElse(any_far != 0, For(i, 0, lanes, ForKind.SERIAL, repair), None))
    return result


def _loop_around(loop: For, body: Stmt) -> For:
    """A copy of the loop, with a new variable, around another body."""
    var = ir.Var(loop.loop_var.name, loop.loop_var.ty)
    body = rewrite(body, (ir.Var, lambda other: var if other.same_as(loop.loop_var) else other))
    return For(var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)


def _indices(lanes: int) -> Expr:
    zero = tirx.const(0, "int32")
    return tirx.Ramp(zero, tirx.const(1, "int32"), lanes) if lanes > 1 else zero
