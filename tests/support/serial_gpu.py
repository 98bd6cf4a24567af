"""Execution of scheduled GPU kernels on the CPU: loops over the threads of a block, cut where the threads synchronize.

A barrier or a shuffle ends the loop over the threads, and another one begins after it. What a thread keeps across that
point becomes an array with an element per thread, and what the threads of a block share an array per block. The threads
can also run in reverse order; a result that changes with it depends on a race.

This proves schedules, not TVM's CUDA code of them, nor how fast they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import ir, s_tir, tirx
from tvm.ir import StringImm
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx import AllocBuffer, BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt

import tvmfun
from tvmfun import ShapeDtype, dtypes
from tvmfun.core import dims
from tvmfun.core.inline import inlined
from tvmfun.core.program import Literal
from tvmfun.lower import kernel_cache, pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native
from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.schedule import schedule
from tvmfun.lower.tir import build
from tvmfun.lower.tir.calling_convention import NO_ALIAS, packed
from tvmfun.lower.tir.flatten import flatten_buffers
from tvmfun.lower.tir.walk import called, find, rewrite

SM_90 = {"kind": "cuda", "arch": "sm_90"}
# Each function runs once, which takes less time than LLVM's optimizer.
_UNOPTIMIZED = tvm.target.Target({"kind": "llvm", "opt-level": 0})
# The passes for CPUs that LLVM needs. The others, which simplify, take longer than LLVM does for the code that they
# would have made shorter.
_FLATTENING = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.LowerOpaqueBlock(),
        flatten_buffers,
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
    ]
)
_LOWERING = tvm.transform.Sequential(
    [
        tirx.transform.MakePackedAPI(),
        tirx.transform.BF16StorageLegalize(),
        tirx.transform.LowerTVMBuiltin(),
        tirx.transform.LowerIntrin(),
        native.FOLD_ZERO,
    ]
)
_SHUFFLES = (
    "tirx.tvm_warp_shuffle",
    "tirx.tvm_warp_shuffle_xor",
    "tirx.tvm_warp_shuffle_down",
    "tirx.tvm_warp_shuffle_up",
)


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel: how often it runs, its blocks, and the threads of a block; sizes may be dynamic."""

    times: Any
    blocks: Any
    threads: Any


def launches(function: tirx.PrimFunc) -> list[Launch]:
    """The launches of a scheduled kernel, in order."""
    found: list[Launch] = []

    def visit(node: Any, times: Any) -> None:
        if isinstance(node, SBlockRealize | SBlock):
            visit(node.block if isinstance(node, SBlockRealize) else node.body, times)
        elif isinstance(node, SeqStmt):
            for part in node.seq:
                visit(part, times)
        elif isinstance(node, IfThenElse):
            visit(node.then_case, times)
            if node.else_case is not None:
                visit(node.else_case, times)
        elif isinstance(node, For) and node.kind == ForKind.THREAD_BINDING:
            extents: dict[str, Any] = {}
            for loop in find(node, For):
                if loop.kind == ForKind.THREAD_BINDING:
                    extents[str(loop.thread_binding.thread_tag)] = _size(loop.extent)
            product = lambda kind: np.prod([e for tag, e in extents.items() if tag.startswith(kind)], dtype=object)
            found.append(Launch(times, product("block"), product("thread")))
        elif isinstance(node, For):
            visit(node.body, times * _size(node.extent))

    visit(function.body, 1)
    return found


def _size(extent: Any) -> Any:
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def is_ours(function: tirx.PrimFunc) -> bool:
    """Whether a kernel was scheduled by tvmfun: the loop over a block's threads is the body of that over blocks."""
    bound = [loop for loop in find(function.body, For) if loop.kind == ForKind.THREAD_BINDING]
    over_blocks = [loop for loop in bound if str(loop.thread_binding.thread_tag) == "blockIdx.x"]
    inner = [loop.body for loop in over_blocks]
    is_threads = lambda loop: (
        isinstance(loop, For) and str(getattr(loop.thread_binding, "thread_tag", "")) == "threadIdx.x"
    )
    return len(bound) == 2 * len(inner) and all(map(is_threads, inner))


def on_cpu(function: tirx.PrimFunc, reverse: bool = False) -> tirx.PrimFunc:
    """Returns the scheduled kernel with loops instead of blocks and threads, in reverse order on request."""
    body = rewrite(function.body, (For, lambda loop: _serial_blocks(loop, reverse)))
    attributes = {"s_tir": True, "global_symbol": "main", "tirx.noalias": True}
    return tirx.PrimFunc(function.params, body, function.ret_type, tvm.ir.make_node("ir.DictAttrs", **attributes))


def _serial_blocks(loop: For, reverse: bool) -> Stmt:
    if loop.kind in (ForKind.VECTORIZED, ForKind.UNROLLED):
        return For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, loop.body)
    if loop.thread_binding is None or not str(loop.thread_binding.thread_tag).startswith("block"):
        return loop
    threads = loop.body
    return For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, _Block(threads, reverse).serial())


class _Block:
    """The threads of one block."""

    def __init__(self, loop: For, reverse: bool) -> None:
        self.thread, self.count, self.reverse = loop.loop_var, loop.extent, reverse
        self.body = loop.body
        self.memory: dict[ir.Var, ir.Var] = {}
        self.exchanged: list[ir.Var] = []
        self.private: set[ir.Var] = set()

    def serial(self) -> Stmt:
        for node in find(self.body, AllocBuffer):
            buffer = node.buffer
            if buffer.scope() == "local":
                self.private.add(buffer)
                shape = [self.count, *buffer.shape]
            else:
                assert buffer.scope() in ("shared", "shared.dyn"), buffer.scope()
                shape = list(buffer.shape)
            self.memory[buffer] = tirx.decl_buffer(shape, str(buffer.dtype), name=buffer.name)
        body = self.split(rewrite(self.body, (AllocBuffer, lambda _: tirx.Evaluate(0))))
        for old, new in self.memory.items():
            at = (lambda indices: [self.thread, *indices]) if old in self.private else list
            body = build.replace_buffers(body, {old: new}, at)
        body = rewrite(body, (For, self._renamed))
        return build.seq(*(AllocBuffer(buffer) for buffer in (*self.memory.values(), *self.exchanged)), body)

    def _renamed(self, loop: For) -> For:
        """A loop over the threads with a variable of its own, in the wanted order."""
        if not loop.loop_var.same_as(self.thread):
            return loop
        own = ir.Var("thread", self.thread.ty)
        position = self.count - 1 - own if self.reverse else own
        return For(own, 0, loop.extent, ForKind.SERIAL, build.substitute(loop.body, {self.thread: position}))

    def each(self, stmt: Stmt) -> Stmt:
        return For(self.thread, 0, self.count, ForKind.SERIAL, stmt)

    def split(self, stmt: Stmt) -> Stmt:
        if not _synchronizes(stmt):
            return self.each(stmt)
        if isinstance(stmt, SeqStmt):
            parts: list[Stmt] = []
            run: list[Stmt] = []
            for part in stmt.seq:
                if _synchronizes(part):
                    parts += [self.each(build.seq(*run))] if run else []
                    parts.append(self.split(part))
                    run = []
                else:
                    run.append(part)
            parts += [self.each(build.seq(*run))] if run else []
            return build.seq(*parts)
        if isinstance(stmt, For):
            check, extent = self.uniform(stmt.extent)
            return build.seq(*check, For(stmt.loop_var, stmt.min, extent, ForKind.SERIAL, self.split(stmt.body)))
        if isinstance(stmt, IfThenElse):
            check, condition = self.uniform(stmt.condition)
            rest = None if stmt.else_case is None else self.split(stmt.else_case)
            return build.seq(*check, IfThenElse(condition, self.split(stmt.then_case), rest))
        if isinstance(stmt, BufferStore):
            return self.shuffled(stmt)
        assert isinstance(stmt, tirx.Evaluate), type(stmt)
        return tirx.Evaluate(0)

    def uniform(self, value: Any) -> tuple[list[Stmt], Any]:
        """A check that all threads agree on a value, as they must where they synchronize below it, and the value."""
        variables = build.variables(value)
        assert not any(var.same_as(self.thread) for var in variables), "a barrier that not all threads reach"
        if not any(var in self.private for var in variables):
            return [], value
        of_first = rewrite(value, (ir.TensorLoad, self._of_first_thread))
        agrees = tirx.EQ(build.cast(value, "int32"), build.cast(of_first, "int32"))
        return [self.each(tirx.AssertStmt(agrees, StringImm("RuntimeError")))], of_first

    def _of_first_thread(self, load: ir.TensorLoad) -> Any:
        return self.memory[load.source][(0, *load.indices)] if load.source in self.private else load

    def shuffled(self, store: BufferStore) -> Stmt:
        """A store of a value that other threads of the warp have computed."""
        before: list[Stmt] = []

        def exchange(call: ir.Call) -> Any:
            if called(call) not in _SHUFFLES:
                return call
            _, value, lane, width, _ = call.args
            assert not _synchronizes(value), "a shuffle of a shuffle"
            sent = tirx.decl_buffer([self.count], str(value.ty), name="sent")
            self.exchanged.append(sent)
            before.append(self.each(BufferStore(sent, value, [self.thread])))
            return sent[_source(called(call), self.thread, lane, int(width))]

        value = rewrite(store.value, (ir.Call, exchange))
        return build.seq(*before, self.each(BufferStore(store.buffer, value, store.indices)))


def _source(name: str | None, thread: Any, lane: Any, width: int) -> Any:
    """The thread that a shuffle reads from."""
    own = tirx.floormod(thread, width)
    first = thread - own
    if name == "tirx.tvm_warp_shuffle":
        return first + tirx.floormod(lane, width)
    if name == "tirx.tvm_warp_shuffle_xor":
        other = tirx.bitwise_xor(own, tirx.Cast(str(own.ty), lane) if hasattr(lane, "ty") else lane)
        return tirx.Select(other < width, first + other, thread)
    other = own + lane if name == "tirx.tvm_warp_shuffle_down" else own - lane
    return tirx.Select(tirx.all(other >= 0, other < width), first + other, thread)


def _synchronizes(node: Any) -> bool:
    return any(called(call) in ("tirx.tvm_storage_sync", *_SHUFFLES) for call in find(node, ir.Call))


@dataclass
class Run:
    """Results of an emulated run, and how they were computed.

    Args:
        results: the results.
        rules: the rule of each kernel, in order.
        launches: the launches of each kernel.
        overwritten: the number of results of kernels that were written over arguments of them.
    """

    results: list[np.ndarray]
    rules: list[str] = field(default_factory=list)
    launches: list[list[Launch]] = field(default_factory=list)
    overwritten: int = 0


class _Emulation:
    """A function scheduled for a GPU, with its kernels compiled for the CPU, for each order of the threads of a block.

    They are one module, since a module takes longer than the kernels in it.
    """

    def __init__(self, function: Callable, arrays: Sequence[Any], specs: Sequence[Any], foreign: bool) -> None:
        self._target = targets.resolve(SM_90)
        avals = specs or [ShapeDtype(np.shape(array), np.asarray(array).dtype) for array in arrays]
        traced = tvmfun.trace(function)(*avals)
        self._program = inlined(traced, "cuda")
        values = map(np.asarray, (*traced.captured, *arrays))
        self._inputs: dict[Any, Any] = dict(zip(self._program.inputs, values, strict=True))
        self._foreign = foreign
        planned = pipeline.fused_kernels(self._program, self._target)
        self._kernels = [kernel for kernel, _ in planned]
        self._in_place = [in_place for _, in_place in planned]
        self._scheduled = [None if self._is_free(k) else self._schedule(i, k) for i, k in enumerate(self._kernels)]
        self._sizes = self._actual_sizes()
        self._module: Any = None

    def _actual_sizes(self) -> dict[str, int]:
        return {
            size.name: actual
            for variable, value in self._inputs.items()
            for size, actual in zip(variable.aval.shape, value.shape, strict=True)
            if isinstance(size, dims.Dim) and size.name
        }

    def _is_free(self, kernel: Kernel) -> bool:
        """Whether a kernel has nothing to compute."""
        return kernel.is_view or all(0 in out.aval.shape for out in kernel.outputs)

    def _schedule(self, i: int, kernel: Kernel) -> tirx.PrimFunc:
        pairs = self._in_place[i]
        scheduled = kernel_cache.scheduled(kernel, self._target, pairs) if pairs else None
        if scheduled is None or not is_ours(scheduled):
            self._in_place[i] = ()
            scheduled = schedule(kernel.prim_func(), self._target)
        assert self._foreign or is_ours(scheduled), f"{kernel.name} is scheduled by {scheduled.attrs['tvmfun.rule']}"
        return scheduled

    def compile(self, *orders: bool) -> _Emulation:
        """Compiles the kernels for orders of the threads: whether they are reversed."""
        functions = {
            _symbol(i, reverse): on_cpu(scheduled, reverse) if is_ours(scheduled) else self._kernels[i].prim_func()
            for reverse in orders
            for i, scheduled in enumerate(self._scheduled)
            if scheduled is not None
        }
        self._module = _compiled(functions) if functions else None
        return self

    def run(self, reverse: bool) -> Run:
        """Executes the kernels in one of the compiled orders."""
        values = dict(self._inputs)
        outcome = Run([])
        for i, (kernel, scheduled) in enumerate(zip(self._kernels, self._scheduled, strict=True)):
            shapes = [tuple(map(self._number, out.aval.shape)) for out in kernel.outputs]
            arguments = [atom.value if isinstance(atom, Literal) else values[atom] for atom in kernel.inputs]
            if scheduled is not None:
                outcome.rules.append(str(scheduled.attrs["tvmfun.rule"]))
                outcome.launches.append(launches(scheduled))
            if all(0 in shape for shape in shapes):
                results = [np.zeros(s, out.aval.dtype) for s, out in zip(shapes, kernel.outputs, strict=True)]
            elif scheduled is None:
                results = [arguments[0].reshape(shapes[0])]
            else:
                sizes = map(self._number, kernel.sizes)
                function = self._module[_symbol(i, reverse)]
                given = [*map(np.asarray, arguments), *sizes]
                results = _called(function, given, shapes, kernel, self._in_place[i])
                outcome.overwritten += len(self._in_place[i])
            values.update(zip(kernel.outputs, results, strict=True))
        outputs = self._program.outputs
        outcome.results = [atom.value if isinstance(atom, Literal) else values[atom] for atom in outputs]
        return outcome

    def _number(self, size: Any) -> int:
        return size if isinstance(size, int) else int(dims.at(size, self._sizes))


def _symbol(number: int, reverse: bool) -> str:
    return f"kernel{number}_{'reverse' if reverse else 'forward'}"


def run(
    function: Callable, *arrays: Any, specs: Sequence[Any] = (), reverse: bool = False, foreign: bool = False
) -> Run:
    """Schedules a function for a GPU and executes its kernels on the CPU.

    Args:
        function: the function.
        arrays: its arguments.
        specs: the types of the arguments, if sizes are dynamic.
        reverse: whether the threads of a block run in reverse order.
        foreign: whether kernels that no schedule of tvmfun takes, such as products, are executed unscheduled.
    """
    return _Emulation(function, arrays, specs, foreign).compile(reverse).run(reverse)


def call(function: tirx.PrimFunc, arguments: list, shapes: list, kernel: Kernel) -> list[np.ndarray]:
    """The results of a function for the CPU."""
    return _called(_compiled({"main": function})["main"], arguments, shapes, kernel)


def _compiled(functions: dict[str, tirx.PrimFunc]) -> Any:
    target = native.llvm_options(_UNOPTIMIZED)
    named = {
        ir.GlobalVar(name): function.with_attrs({"global_symbol": name, NO_ALIAS: False})
        for name, function in functions.items()
    }
    with target, tvm.transform.PassContext(opt_level=3):
        flat = _FLATTENING(tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(named)))
        module = _LOWERING(tvm.IRModule({name: packed(function) for name, function in flat.functions.items()}))
        return tvm.get_global_func("target.build.llvm")(module, target)


def _called(
    function: Callable, arguments: list, shapes: list, kernel: Kernel, in_place: InPlace = ()
) -> list[np.ndarray]:
    tensors = [argument if isinstance(argument, int) else _tensor(argument) for argument in arguments]
    over = {pair.output: tensors[pair.input] for pair in in_place}
    # Elements that are not written must show, so the other outputs begin as something unlikely.
    begin = lambda shape, out: _tensor(np.full(shape, 77, out.aval.dtype))
    outputs = [over.get(i) or begin(*pair) for i, pair in enumerate(zip(shapes, kernel.outputs, strict=True))]
    written = (out for i, out in enumerate(outputs) if i not in over)
    function(*(x if isinstance(x, int) else x.data_ptr() for x in (*tensors, *written)))
    return [out.numpy().astype(o.aval.dtype, copy=False) for out, o in zip(outputs, kernel.outputs, strict=True)]


def _tensor(array: np.ndarray) -> Any:
    return tvm.runtime.empty(array.shape, dtypes.NAMES[array.dtype]).copyfrom(array)


def values(shape: tuple, dtype: str, seed: int = 0) -> np.ndarray:
    """Random values: normal, small integers, or bools."""
    rng = np.random.default_rng([seed, *shape])
    kind = dtypes.canonical(dtype)
    if kind == np.bool_:
        return rng.random(shape) > 0.5
    if dtypes.is_integer(kind):
        return rng.integers(-100, 100, shape).astype(kind)
    return rng.standard_normal(shape).astype(kind)


TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}


def check(function: Callable, *arrays: Any, specs: Sequence[Any] = (), foreign: bool = False) -> Run:
    """Compares the emulated results, with the threads in both orders, to those for the CPU."""
    expected = [np.asarray(leaf) for leaf in tvmfun.tree.leaves(tvmfun.jit(function)(*arrays))]
    emulation = _Emulation(function, arrays, specs, foreign).compile(False, True)
    forward, backward = emulation.run(False), emulation.run(True)
    for first, second, theirs in zip(forward.results, backward.results, expected, strict=True):
        _assert_agree(first, theirs)
        # To compare bits takes much less time than to compare numbers.
        if first.tobytes() != second.tobytes():
            _assert_agree(second, theirs)
    return backward


def _assert_agree(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if dtypes.is_float(theirs.dtype):
        tolerance = TOLERANCE[dtypes.NAMES[theirs.dtype]]
        wide = (ours.astype("float64"), theirs.astype("float64"))
        np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(ours, theirs)
