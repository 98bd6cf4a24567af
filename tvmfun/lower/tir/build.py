"""Small builders for TIR loops and expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import (
    AllocBuffer,
    AttrStmt,
    Buffer,
    BufferStore,
    Cast,
    For,
    ForKind,
    Stmt,
    decl_buffer,
)

from tvmfun import dtypes
from tvmfun.core import dims, expressions
from tvmfun.errors import ShapeError
from tvmfun.lower.tir.walk import called, find, rewrite
from tvmfun.ops.formula import opaque
from tvmfun.ops.tir import sequence

# TVM's node classes do not declare their operators and fields in a way that type checkers understand.
Expr = Any
Env = dict[Any, Expr]
# An integer, or a Dim if it is only known at call time.
Size = Any

# As in TVM's runtime: smaller allocations are on the stack.
WORKSPACE_BYTES = 1024
# A statement that every thread runs, up to its share of the parallel loop inside.
LAUNCH_POINT = "pragma_parallel_launch_point"
# Loops that stay loops in machine code.
COUNTED = (ForKind.SERIAL, ForKind.PARALLEL)


@dataclass(frozen=True, eq=False)
class Axis:
    """One loop axis: its variable, its size, and a tighter bound at run time, if there is one."""

    var: ir.Var
    extent: Size
    limit: Expr | None = None

    @classmethod
    def fresh(cls, like: Axis, extent: Size, limit: Expr | None = None) -> Axis:
        """A new axis with the index type of ``like``."""
        return cls(ir.Var(like.var.name, like.var.ty), extent, limit)

    def bound(self, env: Env) -> Expr | Size:
        """The number of iterations, given the enclosing loops in ``env``."""
        return self.extent if self.limit is None else substitute(self.limit, env)


def volume(axes: Sequence[Axis]) -> Size:
    """The number of points of an iteration domain."""
    return math.prod(axis.extent for axis in axes)


def points(axes: Sequence[Axis]) -> int:
    """The number of points with typical values for dynamic sizes; for decisions that only affect speed."""
    return dims.typical(volume(axes))


def ceil_div(size: Size, by: Size) -> Size:
    """``size / by``, rounded up."""
    return -(-size // by)


def substitute(value, env: Env):
    """The expression or statement with variables replaced."""
    if not env:
        return value
    # A variable hashes by address; comparing variables with ``==`` would dominate the cost.
    by_address = {hash(var): new for var, new in env.items()}
    return rewrite(value, (ir.Var, lambda var: by_address.get(hash(var), var)))


def renewed(stmt: Stmt) -> Stmt:
    """A copy of a statement with new bound variables, so that both copies can be in one function."""
    definitions = find(stmt, For, tirx.Bind, tirx.Let)
    variables = [node.loop_var if isinstance(node, For) else node.var for node in definitions]
    return substitute(stmt, {var: ir.Var(var.name, var.ty) for var in variables})


def replace_buffers(stmt: Stmt, new: Mapping[Buffer, Buffer], move: Callable[[Sequence[Expr]], list] = list) -> Stmt:
    """The statement with ``new[buffer][move(indices)]`` instead of ``buffer[indices]``, and allocations of the new."""
    if not new:
        return stmt

    def load(node: ir.TensorLoad) -> Expr:
        other = new.get(node.source)
        return node if other is None else other[tuple(move(node.indices))]

    def store(node: BufferStore) -> Stmt:
        other = new.get(node.buffer)
        return node if other is None else BufferStore(other, node.value, move(node.indices))

    def allocate(node: AllocBuffer) -> Stmt:
        other = new.get(node.buffer)
        return node if other is None else AllocBuffer(other)

    return rewrite(stmt, (ir.TensorLoad, load), (BufferStore, store), (AllocBuffer, allocate))


def replace_loads(value: Expr, buffer: Buffer, make: Callable[[Sequence[Expr]], Expr]) -> Expr:
    """The expression with ``make(indices)`` instead of each load of ``buffer``."""

    def visit(load):
        return make(load.indices) if load.source.same_as(buffer) else load

    return rewrite(value, (ir.TensorLoad, visit))


def loads(value) -> list[ir.TensorLoad]:
    """All buffer loads of an expression or statement, in order."""
    return find(value, ir.TensorLoad)


def uses(value, var: ir.Var) -> bool:
    """Whether a variable occurs in an expression or statement."""
    return any(v.same_as(var) for v in variables(value))


def variables(value) -> list[ir.Var]:
    """All variables of an expression or statement, buffers included."""
    return find(value, ir.Var)


def divisors(value, var: ir.Var) -> list[int]:
    """The constants by which an expression divides terms that depend on ``var``."""
    quotients = find(value, tirx.FloorDiv, tirx.FloorMod)
    return [int(node.b) for node in quotients if isinstance(node.b, tirx.IntImm) and uses(node.a, var)]


def operation_count(value) -> int:
    """The number of sums, products, quotients and calls in an expression, with those in its indices."""
    return len(find(value, tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, ir.Call))


def count_calls(value) -> int:
    """The number of function calls in an expression or statement."""
    return len(find(value, ir.Call))


def offset(buffer: Buffer, indices: Sequence[Expr]) -> Expr | int:
    """The row-major offset of ``buffer[indices]``, in elements."""
    total: Expr | int = 0
    for size, index in zip(_sizes(buffer), indices, strict=True):
        total = total * size + index
    return total


@lru_cache(maxsize=1024)
def _sizes(buffer: Buffer) -> tuple[Size, ...]:
    return tuple(map(expressions.to_size, buffer.shape))


def stride(buffer: Buffer, indices: Sequence[Expr], axis: Axis, domain: Sequence[Axis]) -> Size | None:
    """The change of the offset when ``axis`` advances by one, or None if that varies."""
    steps = [step_of(index, axis.var) for index in indices[:]]  # iterating over TVM's arrays takes longer
    if None not in steps:  # nearly always, and ten times as fast
        return offset(buffer, steps)  # type: ignore[arg-type,return-value]  # all are numbers
    at = offset(buffer, indices)
    analyzer = Analyzer()
    for other in domain:
        analyzer.bind(other.var, ir.Range(0, other.extent))
    step = analyzer.simplify(substitute(at, {axis.var: axis.var + 1}) - at)
    try:
        return expressions.to_size(step)
    except ShapeError:
        return None


def is_along_row(load: ir.TensorLoad, row: Axis, column: Axis, domain: Sequence[Axis]) -> bool:
    """Whether a load goes through an array's row element by element with ``column``, from row to row with ``row``.

    Rows that are looked up do not count: outside of the loops, the lookup's elements may not exist.
    """
    if any(loads(index) for index in load.indices) or not uses(load, row.var):
        return False
    return stride(load.source, load.indices, column, domain) == 1


def step_of(index: Expr | int, var: ir.Var) -> int | None:
    """The change of an index when a variable advances by one, if it is a sum of multiples of variables."""
    if isinstance(index, ir.Var):
        return int(index.same_as(var))
    if isinstance(index, int | tirx.IntImm):
        return 0
    if isinstance(index, tirx.Add | tirx.Sub):
        first, second = step_of(index.a, var), step_of(index.b, var)
        if first is None or second is None:
            return None
        return first + second if isinstance(index, tirx.Add) else first - second
    if isinstance(index, tirx.Mul) and isinstance(index.b, tirx.IntImm):
        step = step_of(index.a, var)
        return None if step is None else step * int(index.b)
    return None if uses(index, var) else 0


def cast(value: Expr, dtype: str) -> Expr:
    """The value converted to a dtype; the value itself if it has that dtype."""
    if str(value.ty) == dtype:
        return value
    return value != zero(str(value.ty)) if dtype == "bool" else Cast(dtype, value)


def bits_read(value: Expr) -> Expr:
    """The load whose bits an expression reinterprets, or the expression itself."""
    if called(value) == "tirx.reinterpret":
        (inner,) = value.args
        return inner if isinstance(inner, ir.TensorLoad) else value
    return value


def seq(*stmts: Stmt | None) -> Stmt:
    """The statements one after another; missing ones are left out."""
    return sequence([stmt for stmt in stmts if stmt is not None])


def root(body: Stmt) -> Stmt:
    """A root block, which Relax's passes expect as the body of a function."""
    return SBlockRealize([], True, SBlock([], [], [], "root", body))


def prefetch(load: ir.TensorLoad, to_write: bool = False, level: int = 1) -> Stmt:
    """Fetches the cache line of an element, which need not exist, into a cache, to read or write it later."""
    kind, locality, is_data = (tirx.const(value, "int32") for value in (int(to_write), 4 - level, 1))
    arguments = (tirx.address_of(load), kind, locality, is_data)
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch.p0", *arguments))


def loop(like: Axis, extent, body: Callable[[Expr], Stmt], kind: ForKind = ForKind.SERIAL) -> Stmt:
    """A loop from 0 to ``extent`` with a new variable; the body alone for a single iteration."""
    if isinstance(extent, int) and extent == 1 and kind != ForKind.PARALLEL:
        return body(index(like, 0))
    var = ir.Var(like.var.name, like.var.ty)
    return For(var, 0, extent, kind, body(var))


def vectorized(like: Axis, width: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """A vectorized loop of ``width`` lanes."""
    return loop(like, width, body, ForKind.VECTORIZED)


def loop_around(loop: For, body: Stmt) -> For:
    """A copy of a loop, with a new variable, around another body."""
    var = ir.Var(loop.loop_var.name, loop.loop_var.ty)
    body = rewrite(body, (ir.Var, lambda other: var if other.same_as(loop.loop_var) else other))
    return For(var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)


def unrolled(like: Axis, extent: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """A fully unrolled loop."""
    return loop(like, extent, body, ForKind.UNROLLED)


def nest(axes: Sequence[Axis], env: Env, body: Callable[[Env], Stmt]) -> Stmt:
    """Serial loops over ``axes`` around ``body``, which gets the loop variables in its environment."""
    if not axes:
        return body(env)
    head, *rest = axes
    return loop(head, head.bound(env), lambda i: nest(rest, {**env, head.var: i}, body))


def parallel_nest(axes: Sequence[Axis], env: Env, body: Callable[[Env], Stmt], tasks: int) -> Stmt:
    """Like :func:`nest`, with leading axes fused into one parallel loop until that has ``tasks`` iterations."""
    count, size = 0, 1
    while count < len(axes) and dims.typical(size) < tasks and axes[count].limit is None:
        size *= axes[count].extent
        count += 1
    if size == 1 or tasks <= 1:
        return nest(axes, env, body)

    def task(index: Expr) -> Stmt:
        return nest(axes[count:], {**env, **unflatten(axes[:count], index)}, body)

    return loop(axes[0], size, task, ForKind.PARALLEL)


def once_per_thread(allocations: Sequence[Stmt], loops: Stmt) -> Stmt:
    """Loops with allocations before them: each thread of a parallel loop makes its own, instead of one per iteration.

    Allocating and freeing memory takes the runtime 60 ns, a tenth of the time of a softmax over 1024 numbers.
    """
    if not allocations:
        return loops
    body = seq(*allocations, loops)
    is_parallel = isinstance(loops, For) and loops.kind == ForKind.PARALLEL
    return AttrStmt(0, LAUNCH_POINT, 1, body) if is_parallel else body


def unflatten(axes: Sequence[Axis], index: Expr) -> Env:
    """The position on each axis of the point with row-major index ``index``."""
    env: Env = {}
    inner = volume(axes)
    for position, axis in enumerate(axes):
        outer, inner = inner, volume(axes[position + 1 :])
        value = index if position == 0 else index % outer
        env[axis.var] = value // inner if inner != 1 else value
    return env


def flatten(axes: Sequence[Axis], env: Env) -> Expr | Size:
    """The inverse of :func:`unflatten`."""
    total: Expr | int = 0
    for axis in axes:
        total = total * axis.extent + env[axis.var]
    return total


def index(like: Axis, value: Size) -> Expr:
    """A size as an expression of the axis' index type."""
    return expressions.scalar(value, str(like.var.ty))


def is_later(number: Expr) -> Expr:
    """Whether an iteration is not the first one."""
    return tirx.NE(number, tirx.const(0, str(number.ty)))


def minimum(a, b) -> Expr:
    """The smaller of two index expressions."""
    return tirx.min(a, b)


def zero(dtype: str) -> Expr:
    """Zero of any element type."""
    return tirx.const(0, dtype)


def constant(value: np.generic) -> Expr:
    """A scalar expression with the value of a NumPy scalar."""
    name = dtypes.NAMES[value.dtype]
    if name == "bool":
        return tirx.const(bool(value), "bool")
    if name in ("int64", "uint64") and value != 0:
        return opaque(int(value), name)
    if dtypes.is_integer(value.dtype):
        return tirx.const(int(value), name)
    if name == "bfloat16":  # TVM cannot repeat a constant of bfloat16 along a vector
        return tirx.Cast(name, constant(np.float32(value)))
    if value == 0:
        return opaque(float(value), name)
    return tirx.const(float(value), name)


def buffer(shape: Sequence[Size], dtype: str, name: str) -> Buffer:
    """A buffer of this shape, dtype and name."""
    return decl_buffer([expressions.of_size(size) for size in shape], dtype, name=name)


def scratch(shape: Sequence[Size], dtype: str, name: str) -> Buffer:
    """A buffer private to one iteration.

    Up to 1 KiB is on the stack, and in registers if all indices are constant after unrolling. Larger buffers come from
    the thread's workspace. (Buffers of scope "local" would always do so.)
    """
    return buffer(shape, dtype, name)


def is_on_stack(buffer: Buffer) -> bool:
    """Whether TVM puts a private buffer on the stack."""
    return is_static(buffer) and nbytes(buffer) < WORKSPACE_BYTES


def is_static(buffer: Buffer) -> bool:
    """Whether a buffer has no dynamic size."""
    return all(isinstance(size, tirx.IntImm) for size in buffer.shape)


def bits(dtype: str) -> int:
    """The size of one element in bits."""
    return tvm.DataType(dtype).bits


def nbytes(buffer: Buffer) -> int:
    """The size of a buffer of static shape."""
    return math.prod(map(int, buffer.shape)) * bits(str(buffer.dtype)) // 8


def is_larger(buffer: Buffer, limit: int) -> bool:
    """Whether a buffer is known to be larger than a cache, in bytes; False for dynamic sizes."""
    return is_static(buffer) and nbytes(buffer) > limit


def walks_as_one(access: tuple[Buffer, Sequence[Expr]], first: Axis, second: Axis, domain: Sequence[Axis]) -> bool:
    """Whether an access is contiguous over two neighbouring axes, so that they can be joined into one."""
    far = stride(*access, first, domain)
    near = stride(*access, second, domain)
    return far is not None and near is not None and far == near * second.extent


def join_axes(first: Axis, second: Axis, flat: Sequence[tuple[Buffer, Sequence[Expr]]] = ()) -> tuple[Axis, Env]:
    """Joins two neighbouring axes that accesses walk as one; returns the axis, and the position on each of the two.

    Cancelling quotients and remainders takes the passes long. Therefore the first position is 0 if the accesses may
    leave their dimension, ``flat`` has all of them, and their indices are linear.
    """
    joined = Axis.fresh(second, first.extent * second.extent)
    if flat and all(is_linear(at, (first, second)) for _, indices in flat for at in indices):
        return joined, {first.var: index(first, 0), second.var: joined.var}
    return joined, unflatten((first, second), joined.var)


def accesses(value) -> list[tuple[Buffer, Sequence[Expr]]]:
    """The buffer and the indices of each load."""
    return [(load.source, load.indices[:]) for load in loads(value)]


def is_only_in_indices(value, axes: Sequence[Axis]) -> bool:
    """Whether an expression or statement depends on the axes only through the indices of its loads and stores."""
    bare = rewrite(
        value,
        (ir.TensorLoad, lambda load: zero(str(load.ty))),
        (BufferStore, lambda store: tirx.Evaluate(store.value)),
    )
    return not any(uses(bare, axis.var) for axis in axes)


def is_linear(index: Expr, axes: Sequence[Axis]) -> bool:
    """Whether an index is a sum of multiples of the axes and of terms that do not depend on them.

    >>> i, j = (Axis(ir.Var(name, ir.PrimType("int32")), 8) for name in "ij")
    >>> is_linear(4 * i.var + j.var, [i, j]), is_linear(4 * i.var + j.var % 4, [i, j]), is_linear(j.var % 4, [i])
    (True, False, True)
    """
    if all(step_of(index, axis.var) is not None for axis in axes):
        return True
    used = any(uses(index, axis.var) for axis in axes)
    if not used:
        return True
    if isinstance(index, tirx.Mul) and all(any(uses(x, a.var) for a in axes) for x in (index.a, index.b)):
        return False
    return isinstance(index, tirx.Add | tirx.Sub | tirx.Mul) and all(is_linear(x, axes) for x in (index.a, index.b))


def is_choice(value: Expr) -> bool:
    """Whether an expression is an ``if_then_else``, which evaluates only one of its branches."""
    return called(value) == "prim.if_then_else"


def bits_of(value: Expr, dtype: str) -> Expr:
    """Reinterprets the bits of a value that is only moved as another type, such as bfloat16 as uint16 and back."""
    if str(value.ty) == dtype:
        return value
    if is_choice(value):
        condition, *parts = value.args
        return tirx.if_then_else(condition, *(bits_of(part, dtype) for part in parts))
    number = value.value if isinstance(value, tirx.Cast) else value  # LLVM has no bits of a constant that is cast
    if isinstance(number, tirx.FloatImm) and str(value.ty) == "bfloat16":
        return tirx.const(int(np.array(number.value, dtypes.bfloat16).view(np.uint16)), dtype)
    if called(value) == "tirx.reinterpret":
        return bits_of(value.args[0], dtype)
    return tirx.reinterpret(dtype, value)
