"""C's remainder of floats, ``fmod``, as vector arithmetic instead of a scalar call into libm for each element.

``fmod(a, b)`` is exact for any quotient: ``|a| - k |b|`` with the sign of ``a``, where ``k`` is ``|a| / |b|`` rounded
towards zero. Nearly all remainders that programs take have small quotients, and for these two instructions are enough.
Let ``p`` be the number of bits of the significand (24 or 53), ``a, b >= 0`` from here on, ``d`` the quotient ``a / b``
rounded to nearest, ``q = trunc(d)``, and ``r = a - q b`` with one rounding at most (a fused multiply-add).

If ``d < 2**p``, this is the remainder, or becomes it by adding ``b`` once where it is negative:

- ``k <= a / b < k + 1``, and both ends are floats, because ``k < 2**p``. Rounding is monotonic, so ``k <= d <= k + 1``,
  and ``q`` is ``k`` or ``k + 1``.
- If ``a < b``, the remainder is ``a`` itself, also where ``b`` is infinite; that case is selected. Otherwise both are
  multiples of the unit in the last place of ``b``, and so is ``a - q b``, which lies in ``[-b, b)``: a float, so that
  nothing is rounded. The same holds for the sum with ``b``, which lies in ``[0, b)``. Subnormal numbers are multiples
  of their unit, too.

Everything else (larger quotients, an infinite ``a``, ``b = 0``, NaN) fails ``d < 2**p``, except an infinite ``b``,
which is right as it is. Lanes of a vector for which this happens call libm.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, BufferStore, For, ForKind, Stmt

from tvmfun.lower.tir.build import seq
from tvmfun.lower.tir.walk import called, find, rewrite

# TVM's node classes do not declare their operators in a way that type checkers understand.
Expr = Any

#: The functions of libm: the type of their arguments, the integer type of that width, and the bits of a significand.
FUNCTIONS = {"fmodf": ("float32", "int32", 24), "fmod": ("float64", "int64", 53)}


def vectorize_remainders(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Returns a scheduled function whose stores compute ``fmod`` by arithmetic.

    Calls in a branch of ``if_then_else`` stay: their arguments may only be evaluated when the branch is taken.
    """
    if not any(map(is_remainder, find(func.body, ir.Call))):
        return func
    body = rewrite(func.body, (For, _expanded_loop))
    inside = {store for loop in find(body, For) if _is_vectorized(loop) for store in find(loop.body, BufferStore)}
    single = lambda store: store if store in inside else _expanded(store, None)
    return func.with_body(rewrite(body, (BufferStore, single)))


def is_remainder(value: Expr) -> bool:
    """Whether an expression is a call of ``fmod``."""
    return called(value) == "tirx.call_pure_extern" and _function(value) in FUNCTIONS


def _function(call: ir.Call) -> str:
    return str(call.args[0].value)


def _is_vectorized(loop: For) -> bool:
    return loop.kind == ForKind.VECTORIZED


def _expanded_loop(loop: For) -> Stmt:
    """A vectorized loop over stores as one loop per store, with the remainders of each before it."""
    stores = list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
    if not _is_vectorized(loop) or not all(isinstance(store, BufferStore) for store in stores):
        return loop
    return seq(*(_expanded(store, loop) for store in stores))


def _expanded(store: BufferStore, loop: For | None) -> Stmt:
    """A store, for all lanes of the vectorized ``loop`` around it or for a single one, and its remainders before it."""
    guarded = _guarded(store.value)
    if not any(is_remainder(call) and call not in guarded for call in find(store.value, ir.Call)):
        return store if loop is None else _loop_around(loop, store)
    lanes = 1 if loop is None else int(loop.extent)
    lane = tirx.const(0, "int32") if loop is None else loop.loop_var - loop.min
    statements: list[Stmt] = []
    known: list[tuple[ir.Call, tirx.Buffer]] = []

    def visit(call: ir.Call) -> Expr:
        if not is_remainder(call) or call in guarded:
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


def _guarded(value: Expr) -> set[ir.Call]:
    """The calls inside the branches of ``if_then_else``."""
    choices = [call for call in find(value, ir.Call) if called(call) in ("prim.if_then_else", "tirx.if_then_else")]
    return {inner for call in choices for branch in call.args[1:] for inner in find(branch, ir.Call)}


def _emit(call: ir.Call, lanes: int, lane: Expr, loop: For | None, statements: list[Stmt]) -> tirx.Buffer:
    """Appends statements that compute a remainder in all lanes; returns the buffer of the result."""
    name = _function(call)
    dtype, integer, bits = FUNCTIONS[name]
    sign = -(2 ** (31 if bits == 24 else 63))
    number = lambda value, kind=dtype: _repeated(tirx.const(value, kind), lanes)

    def register(kind: str) -> tirx.Buffer:
        buffer = tirx.decl_buffer((lanes,), kind)
        statements.append(AllocBuffer(buffer))
        return buffer

    def whole(buffer: tirx.Buffer) -> Expr:
        return buffer[_indices(lanes)]

    def kept(value: Expr, kind: str = dtype) -> Expr:
        buffer = register(kind)
        statements.append(BufferStore(buffer, value, [_indices(lanes)]))
        return whole(buffer)

    def argument(value: Expr) -> tuple[Expr, Any]:
        """The vector of an argument, and a function that returns one lane of it."""
        if isinstance(value, tirx.FloatImm):
            return _repeated(value, lanes), lambda i: value
        buffer = register(dtype)
        store = BufferStore(buffer, value, [lane])
        statements.append(store if loop is None else _loop_around(loop, store))
        return whole(buffer), lambda i: buffer[i]

    dividend, dividend_of = argument(call.args[1])
    divisor, divisor_of = argument(call.args[2])
    vector = lambda kind: kind if lanes == 1 else f"{kind}x{lanes}"
    a, b = kept(tirx.abs(dividend)), kept(tirx.abs(divisor))
    quotient = kept(tirx.div(a, b))
    # LLVM's intrinsic, because TVM's may round twice.
    rest = kept(tirx.call_llvm_pure_intrin(vector(dtype), "llvm.fma", number(0.0) - tirx.trunc(quotient), b, a))
    rest = kept(tirx.Select(rest < number(0.0), rest + b, rest))
    rest = kept(tirx.Select(a < b, a, rest))
    signed = tirx.reinterpret(vector(integer), rest) | (
        tirx.reinterpret(vector(integer), dividend) & number(sign, integer)
    )
    result = register(dtype)
    statements.append(BufferStore(result, tirx.reinterpret(vector(dtype), signed), [_indices(lanes)]))

    far = register("int32")
    is_far = tirx.Select(quotient < number(2.0**bits), number(0, "int32"), number(1, "int32"))
    statements.append(BufferStore(far, is_far, [_indices(lanes)]))
    i = ir.Var("lane", ir.PrimType("int32"))
    exact = tirx.call_pure_extern(dtype, name, dividend_of(i), divisor_of(i))
    repair = tirx.IfThenElse(far[i] != 0, BufferStore(result, exact, [i]), None)
    any_far = far[0]
    if lanes > 1:
        any_far = tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.or", whole(far))
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


def _repeated(value: Expr, lanes: int) -> Expr:
    return tirx.Broadcast(value, lanes) if lanes > 1 else value
