"""Transcendental functions as arithmetic that vectorizes, instead of scalar calls into libm.

LLVM cannot vectorize a call of ``expf``, so softmax, GELU or dropout would spend their time in scalar code.
:func:`expand` replaces the calls by the formulas of :mod:`tvmfun.lower.tir.vector_math`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Bind, BufferStore, For, ForKind, Stmt

from tvmfun.lower.tir.bfloat16 import uses_bfloat16, with_float32_arithmetic
from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.math_calls import arguments_of, function_of, guarded_calls
from tvmfun.lower.tir.vector_calls import call_vector_functions
from tvmfun.lower.tir.vector_math.formats import Name, cast
from tvmfun.lower.tir.vector_math.table import FUNCTIONS, INLINED, OF_USUAL_ARGUMENTS
from tvmfun.lower.tir.walk import called, find, rewrite
from tvmfun.ops import formula

FLOATS = ("float16", "bfloat16", "float32", "float64")

# The bits of infinity in float32 and float64.
_INFINITIES = (0x7F800000, 0x7FF << 52)
# The comparison that is false where this one is true or an operand is NaN, and vice versa.
_OPPOSITES = {tirx.GT: tirx.LE, tirx.LT: tirx.GE}
# The floats in which numbers pass a fence, by their types.
_FENCED = {
    "float32": "float32",
    "float64": "float64",
    "int32": "float32",
    "uint32": "float32",
    "int64": "float64",
    "uint64": "float64",
}
# Calls that TVM vectorizes although their operators do not say so.
_VECTORS = ("tirx.reinterpret",)
# LLVM and CUDA have it for vectors, but TVM would turn the statement around it into a loop over lanes.
tvm.ir.register_op_attr("tirx.nearbyint", "TVectorizable", True)


def is_heavy(value: Expr) -> bool:
    """Whether an expression contains a call that expands to many instructions."""
    return any(function_of(call) in FUNCTIONS | OF_USUAL_ARGUMENTS for call in find(value, ir.Call))


def expand(func: tirx.PrimFunc, lanes: int = 0) -> tirx.PrimFunc:
    """Returns the function with vectorizable arithmetic instead of calls on floats in its stores.

    Half precision is computed in float32 and rounded. Calls in a branch of ``if_then_else`` stay, whose arguments may
    only be evaluated when that branch is taken.

    Args:
        func: the function.
        lanes: the number of elements of type float32 in a vector register, if it is known.
    """
    func = call_vector_functions(func, lanes)
    func = func.with_body(
        rewrite(
            func.body,
            (tirx.NE, _expand_inequality),
            (ir.Call, _expand_is_nan),
            (tirx.Select, _expand_extremum),
            (BufferStore, _without_masked_store),
        )
    )
    # TVM's legalization of bfloat16 does not widen bound variables, so it runs before there are any.
    if uses_bfloat16(func.body):
        func = with_float32_arithmetic(func)
    if not any(map(_is_expandable, find(func.body, ir.Call))):
        return func
    body = rewrite(func.body, (For, _expand_vectorized))
    return func.with_body(rewrite(body, (BufferStore, _expand_scalar)))


def _expand_inequality(comparison: tirx.NE) -> Expr:
    """``x != x`` as a test for NaN: TVM's simplifier takes floats for real numbers, and would make it false."""
    same = str(comparison.a.ty) in FLOATS and tvm_ffi.structural_equal(comparison.a, comparison.b)
    return formula.is_nan(comparison.a) if same else comparison


def _expand_is_nan(call: ir.Call) -> Expr:
    """A test for NaN by bits, because ``tirx.isnan`` does not vectorize."""
    return formula.is_nan(call.args[0]) if called(call) == "tirx.isnan" else call


def _expand_extremum(choice: tirx.Select) -> Expr:
    """A maximum or minimum that keeps NaN as choices of one instruction each; as one choice if a number is constant.

    Processors have instructions that return the second number if either is NaN, or both are 0.
    """
    either, x, y = choice.condition, choice.true_value, choice.false_value
    if not isinstance(either, tirx.Or):
        return choice
    order = _order(either.a, x, y)
    tested = _tested_for_nan(either.b)
    if order is None or tested is None or not tvm_ffi.structural_equal(tested, x):
        return choice
    number = _constant(y)
    if number is not None and not math.isnan(number):
        return tirx.Select(_OPPOSITES[order](x, y), y, x)
    if not isinstance(x, ir.TensorLoad | ir.Var):
        return choice
    return tirx.Select(tirx.EQ(x, _hidden(x)), tirx.Select(order(x, y), x, y), x)


def _constant(value: Expr) -> float | None:
    """A float that is a constant, or a formula of constants that hides it from TVM's simplifier."""
    if isinstance(value, tirx.FloatImm):
        return value.value
    if isinstance(value, tirx.Mul):
        factors = _constant(value.a), _constant(value.b)
        return None if None in factors else math.prod(factors)
    if called(value) != "tirx.reinterpret" or not isinstance(value.args[0], tirx.IntImm):
        return None
    dtype = str(value.ty)
    if dtype not in ("float32", "float64"):
        return None
    width = np.dtype(dtype).itemsize * 8
    return float(np.array(value.args[0].value % 2**width, f"uint{width}").view(dtype))


def _without_masked_store(store: BufferStore) -> BufferStore:
    """A choice between a number and the one that it overwrites, with a fence around the old one.

    Otherwise LLVM stores with a mask, which takes about 35 cycles on a Zen 3, and the next loads wait for it.
    """
    choice, dtype = store.value, str(store.buffer.dtype)
    if not isinstance(choice, tirx.Select) or dtype not in _FENCED:
        return store

    def fenced(value: Expr) -> Expr:
        own = isinstance(value, ir.TensorLoad) and value.source.same_as(store.buffer)
        if not own or not all(map(tvm_ffi.structural_equal, value.indices[:], store.indices[:])):
            return value
        kind = _FENCED[dtype]
        number = value if kind == dtype else tirx.reinterpret(kind, value)
        number = tirx.call_llvm_pure_intrin(kind, "llvm.arithmetic.fence", number)
        return number if kind == dtype else tirx.reinterpret(dtype, number)

    values = (fenced(choice.true_value), fenced(choice.false_value))
    return BufferStore(store.buffer, tirx.Select(choice.condition, *values), store.indices)


def _order(comparison: Expr, x: Expr, y: Expr) -> type | None:
    """The comparison of x with y in an expression, even if TVM's simplifier has turned ``x > y`` into ``y < x``."""
    kinds = {tirx.GT: tirx.LT, tirx.LT: tirx.GT}
    kind = type(comparison)
    if kind not in kinds:
        return None
    equal = lambda a, b: tvm_ffi.structural_equal(comparison.a, a) and tvm_ffi.structural_equal(comparison.b, b)
    return kind if equal(x, y) else kinds[kind] if equal(y, x) else None


def _tested_for_nan(test: Expr) -> Expr | None:
    """The number whose bits a test compares with the bits of infinity; None if it is another test."""
    if not isinstance(test, tirx.GT | tirx.LT):
        return None
    masked, infinity = (test.a, test.b) if isinstance(test, tirx.GT) else (test.b, test.a)
    if not isinstance(infinity, tirx.IntImm) or infinity.value not in _INFINITIES:
        return None
    if not isinstance(masked, tirx.BitwiseAnd) or called(masked.a) != "tirx.reinterpret":
        return None
    return masked.a.args[0]


def _hidden(x: Expr) -> Expr:
    """Hides a number from TVM's simplifier, which takes ``x == x`` for true although NaN is not equal to itself."""
    bits = {"float32": "int32", "float64": "int64"}[str(x.ty)]
    return tirx.reinterpret(str(x.ty), formula.hidden(tirx.reinterpret(bits, x)))


def _expand_vectorized(loop: For) -> Stmt:
    if loop.kind != ForKind.VECTORIZED:
        return loop
    registers: list[Stmt] = []
    lane = loop.loop_var - loop.min
    body = rewrite(loop.body, (BufferStore, lambda store: _expand_store(store, int(loop.extent), lane, registers)))
    expanded = For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)
    return tirx.SeqStmt([*registers, expanded]) if registers else expanded


def _expand_scalar(store: BufferStore) -> Stmt:
    registers: list[Stmt] = []
    expanded = _expand_store(store, 1, _i(0), registers)
    return tirx.SeqStmt([*registers, expanded]) if registers else expanded


def _expand_store(store: BufferStore, lanes: int, lane: Expr, registers: list[Stmt]) -> Stmt:
    """Expands the calls in one store; adds allocations for outside the loop over lanes to ``registers``."""
    calls = find(store.value, ir.Call)
    guarded = guarded_calls(calls)
    expandable = {call for call in calls if _is_expandable(call)} - guarded
    if not expandable:
        return store
    # Intermediate results are bound by statements, because CommonSubexprElim fails on subexpressions that two let
    # expressions have in common.
    bindings: list[Stmt] = []

    # If TVM turns the store into a loop over lanes, bound variables would hold the values of the last lane.
    in_memory = lanes > 1 and any(map(_parts_lanes, calls))

    def name(value: Expr) -> Expr:
        if in_memory:
            return value if isinstance(value, ir.TensorLoad) else keep(value)
        if isinstance(value, ir.Var):
            return value
        var = ir.Var("t", value.ty)
        bindings.append(Bind(var, value))
        return var

    def keep(value: Expr) -> Expr:
        # A buffer, which LLVM turns into a register: TVM's simplifier would substitute a variable by its whole
        # formula wherever it is used, and again in the next formula.
        buffer = tirx.decl_buffer((lanes,), str(value.ty))
        registers.append(AllocBuffer(buffer))
        bindings.append(BufferStore(buffer, value, [lane]))
        return buffer[lane]

    several = len(expandable) > 1
    results: list[tuple[ir.Call, Expr]] = []

    def visit(call: ir.Call) -> Expr:
        if call in guarded or not _is_expandable(call):
            return call
        for known, result in results:
            if tvm_ffi.structural_equal(known, call):
                return result
        arguments = arguments_of(call)
        if several:
            arguments = [x if isinstance(x, ir.TensorLoad) else keep(x) for x in arguments]
        result = _expand_call(call, arguments, name)
        results.append((call, keep(result) if several else result))
        return results[-1][1]

    value = rewrite(store.value, (ir.Call, visit))
    if not bindings:
        return store
    return tirx.SeqStmt([*bindings, BufferStore(store.buffer, value, store.indices)])


def _parts_lanes(call: ir.Call) -> bool:
    """Whether TVM cannot vectorize a call, and turns its statement into a loop instead."""
    if _is_expandable(call):
        return False
    op = call.op
    return not isinstance(op, ir.Op) or not (op.name in _VECTORS or op.get_attr("TVectorizable"))


def _is_expandable(call: ir.Call) -> bool:
    dtype = str(call.ty)
    return dtype in FLOATS and function_of(call) in INLINED["float64" if dtype == "float64" else "float32"]


def _expand_call(call: ir.Call, arguments: Sequence[Expr], name: Name) -> Expr:
    dtype = str(call.ty)
    wide = "float64" if dtype == "float64" else "float32"
    result = FUNCTIONS[function_of(call)](*(name(cast(wide, x)) for x in arguments), name)
    return cast(dtype, name(result))


def _i(value: int) -> Expr:
    return tirx.const(value, "int32")
