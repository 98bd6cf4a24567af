"""Calls of mathematical functions of numbers as calls of functions of vectors.

TVM does not vectorize such calls, so each becomes a separate statement, which computes all lanes. The functions are
written by :mod:`tvmfun.lower.tir.vector_math.definitions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, BufferStore, For, ForKind, Stmt

from tvmfun.lower.tir.build import Expr, is_choice, loop_around, seq
from tvmfun.lower.tir.math_calls import arguments_of, function_of, guarded_calls
from tvmfun.lower.tir.vector_math.definitions import VectorFunction
from tvmfun.lower.tir.vector_math.table import FUNCTIONS, INLINED, OF_USUAL_ARGUMENTS, is_called
from tvmfun.lower.tir.walk import find, rewrite

# Numbers of double precision that fill two registers of AVX2 and one of AVX-512: formulas with more would spill.
_MOST_LANES = 8
# Up to this exponent, powers are products: of doubles, whose error stays far below that of rounding to singles.
_LARGEST_EXPONENT = 1024


def call_vector_functions(func: tirx.PrimFunc, lanes: int) -> tirx.PrimFunc:
    """Returns a scheduled function whose stores call functions of vectors.

    Calls in a branch of ``if_then_else`` stay there, for single numbers: their arguments may only be evaluated when the
    branch is taken.

    Args:
        func: the function.
        lanes: the number of elements of type float32 in a vector register; 0 if it is not known.
    """
    if not any(map(_is_replaced, find(func.body, ir.Call))):
        return func
    body = rewrite(func.body, (ir.Call, _with_single_calls))
    body = rewrite(body, (For, lambda loop: _expanded_loop(loop, lanes)))
    inside = {store for loop in find(body, For) if _is_vectorized(loop) for store in find(loop.body, BufferStore)}
    single = lambda store: store if store in inside else _expanded(store, None, lanes)
    return func.with_body(rewrite(body, (BufferStore, single)))


def _is_replaced(call: ir.Call) -> bool:
    return is_called(function_of(call), str(call.ty))


def _with_single_calls(choice: ir.Call) -> Expr:
    """An ``if_then_else`` whose branches call functions of single numbers."""
    if not is_choice(choice):
        return choice
    single = lambda call: _call(call, 1, arguments_of(call)) if _is_replaced(call) else call
    condition, *branches = choice.args
    return tirx.if_then_else(condition, *(rewrite(branch, (ir.Call, single)) for branch in branches))


def _call(call: ir.Call, lanes: int, arguments: Sequence[Expr]) -> Expr:
    """The call of a function of vectors, instead of a call of a function of numbers."""
    bits = int(str(call.ty).removeprefix("float"))
    function = VectorFunction(str(function_of(call)), bits, lanes, len(arguments))
    return tirx.call_pure_extern(function.dtype, function.name, *arguments)


def _known_exponent(call: ir.Call) -> int:
    """The exponent of a power of singles, if it is a known integer; 0 otherwise."""
    if function_of(call) != "pow" or str(call.ty) != "float32":
        return 0
    exponent = arguments_of(call)[1]
    number = exponent.value if isinstance(exponent, tirx.FloatImm) else 0.0
    return int(number) if abs(number) <= _LARGEST_EXPONENT and number == int(number) else 0


def _is_vectorized(loop: For) -> bool:
    return loop.kind == ForKind.VECTORIZED


def _expanded_loop(loop: For, width: int) -> Stmt:
    """Splits a vectorized loop over stores into one loop per store, after the statements that each store needs."""
    stores = list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
    if not _is_vectorized(loop) or not all(isinstance(store, BufferStore) for store in stores):
        return loop
    return seq(*(_expanded(store, loop, width) for store in stores))


def _expanded(store: BufferStore, loop: For | None, width: int) -> Stmt:
    """A store after the statements that it needs, for all lanes of the vectorized ``loop`` around it or for one."""
    calls = find(store.value, ir.Call)
    guarded = guarded_calls(calls)
    if not any(_is_replaced(call) and call not in guarded for call in calls):
        return store if loop is None else loop_around(loop, store)
    lanes = 1 if loop is None else int(loop.extent)
    lane = tirx.const(0, "int32") if loop is None else loop.loop_var - loop.min
    statements: list[Stmt] = []
    known: list[tuple[ir.Call, tirx.Buffer]] = []

    def visit(call: ir.Call) -> Expr:
        # Other functions get a statement as well: their arguments would be computed again for each call.
        if call in guarded or str(call.ty) not in INLINED or function_of(call) not in FUNCTIONS | OF_USUAL_ARGUMENTS:
            return call
        for earlier, result in known:
            if tvm_ffi.structural_equal(earlier, call):
                return result[lane]
        # Twice the registers of AVX-512 hold twice the doubles that single precision is computed in.
        most = max(_MOST_LANES, width if str(call.ty) == "float32" else 0)
        block = _Block(str(call.ty), lanes, lane, most, loop, statements)
        result = block.called(call) if _is_replaced(call) else block.kept(call)
        known.append((call, result))
        return result[lane]

    value = rewrite(store.value, (ir.Call, visit))
    last = BufferStore(store.buffer, value, store.indices)
    return seq(*statements, last if loop is None else loop_around(loop, last))


class _Block(NamedTuple):
    """The statements before a store that calls functions.

    Args:
        dtype: the type of the call.
        lanes, lane: the number of lanes, and the lane of an iteration of the loop.
        most: the most lanes of a function.
        loop: the vectorized loop around the store; None if there is a single lane.
        statements: the statements before the store.
    """

    dtype: str
    lanes: int
    lane: Expr
    most: int
    loop: For | None
    statements: list[Stmt]

    def register(self, dtype: str = "") -> tirx.Buffer:
        """A buffer for all lanes, which becomes registers; by default of the call's type."""
        buffer = tirx.decl_buffer((self.lanes,), dtype or self.dtype)
        self.statements.append(AllocBuffer(buffer))
        return buffer

    def kept(self, value: Expr, dtype: str = "") -> tirx.Buffer:
        """Appends the computation of an expression."""
        buffer = self.register(dtype)
        store = BufferStore(buffer, value, [self.lane])
        self.statements.append(store if self.loop is None else loop_around(self.loop, store))
        return buffer

    def called(self, call: ir.Call) -> tirx.Buffer:
        """Appends calls of a function of vectors."""
        if exponent := _known_exponent(call):
            return self.power(arguments_of(call)[0], exponent)
        arguments = [x if isinstance(x, tirx.FloatImm) else self.kept(x) for x in arguments_of(call)]
        result = self.register()
        for begin in range(0, self.lanes, self.most):
            size = min(self.lanes - begin, self.most)
            value = _call(call, size, [_part(argument, begin, size) for argument in arguments])
            self.statements.append(BufferStore(result, value, [_indices(begin, size)]))
        return result

    def power(self, x: Expr, exponent: int) -> tirx.Buffer:
        """Appends ``x**exponent`` by repeated squaring in double precision, which rounds to the nearest single.

        Of the 29 bits that singles lack, the products lose 10 at most. No partial product leaves the range unless the
        result leaves that of singles.
        """
        product = lambda a, b: self.kept(a[self.lane] * b[self.lane], "float64")
        square, n = self.kept(tirx.Cast("float64", x), "float64"), abs(exponent)
        factors = [square] if n & 1 else []
        while n := n >> 1:
            square = product(square, square)
            factors += [square] if n & 1 else []
        number = reduce(product, factors)[self.lane]
        return self.kept(tirx.Cast("float32", tirx.const(1.0, "float64") / number if exponent < 0 else number))


def _part(argument: Expr | tirx.Buffer, begin: int, size: int) -> Expr:
    """Some lanes of an argument."""
    if isinstance(argument, tirx.FloatImm):
        return tirx.Broadcast(argument, size) if size > 1 else argument
    return argument[_indices(begin, size)]


def _indices(begin: int, size: int) -> Expr:
    first = tirx.const(begin, "int32")
    return tirx.Ramp(first, tirx.const(1, "int32"), size) if size > 1 else first
