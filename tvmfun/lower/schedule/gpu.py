"""Schedules for GPUs: TVM's dlight rules, from the most specific to the most general, and a fallback for opaque ops."""

from __future__ import annotations

import math
from importlib.metadata import version

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.s_tir import SBlock, SBlockRealize, dlight
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core import expressions
from tvmfun.errors import TargetError
from tvmfun.lower.tir.walk import called, find, rewrite

_RULES = {
    "contraction": dlight.gpu.Matmul,
    "reduction": dlight.gpu.Reduction,
    "normalization": dlight.gpu.GeneralReduction,
    "fallback": dlight.gpu.Fallback,
}
_THREADS = 256
_REDUCTION_OF_THREADS = tvm.transform.Sequential(
    [s_tir.transform.CanonicalizeLoop(), s_tir.transform.LowerCrossThreadReduction()]
)


def _release(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(name).split(".")[:3] if part.isdecimal())


# ``Schedule.tensorize`` of TVM 0.27 ends the process with newer versions of apache-tvm-ffi.
_TENSORIZE_CRASHES = _release("apache-tvm-ffi") >= (0, 1, 15)


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Returns the kernel with its loops bound to blocks and threads.

    Raises:
        TargetError: if a thread would need memory of a dynamic size.
    """
    _check_private_memory(function)
    function = function.with_body(rewrite(function.body, (tvm.ir.Call, _bits_of_constant)))
    if _TENSORIZE_CRASHES:
        function = function.with_attr("dlight.do_not_tensorize", True)
    for name, rule in _RULES.items():
        with target:
            try:
                space = rule().apply(function, target, False)
                if space is None:
                    continue
                scheduled = (space[0] if isinstance(space, list) else space).mod["main"]
                # Reductions across threads only work for combiners that TVM knows, unlike that of argmax.
                _REDUCTION_OF_THREADS(tvm.IRModule({"main": scheduled}))
            except (tvm.error.InternalError, tvm.s_tir.ScheduleError, AssertionError, ValueError, RuntimeError):
                continue  # the rule does not support this kernel; the next one is more general
        if "threadIdx" in scheduled.script():
            scheduled = scheduled.with_body(rewrite(scheduled.body, (tirx.For, _without_bool_vectors)))
            return scheduled.with_attr({"tvmfun.rule": name, "tirx.is_scheduled": True})
    return _one_thread_per_point(function).with_attr({"tvmfun.rule": "opaque", "tirx.is_scheduled": True})


def _bits_of_constant(call: tvm.ir.Call) -> tvm.ir.Expr:
    """The bits of a constant as a constant: TVM's code would take its address, which it does not have."""
    value = call.args[0] if called(call) == "tirx.reinterpret" else None
    if not isinstance(value, tirx.FloatImm) or not str(call.ty).startswith(("int", "uint")):
        return call
    number = np.asarray(value.value, dtypes.canonical(str(value.ty)))
    return tirx.const(int(number.view(str(call.ty))), str(call.ty))


def _without_bool_vectors(loop: tirx.For) -> tirx.For:
    """An unrolled loop instead of a vectorized one that reads or writes bools.

    TVM represents vectors of bools in CUDA as 16-bit numbers, and interprets their bits as floats.
    """
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    accesses = [node.source for node in find(loop.body, tvm.ir.TensorLoad)]
    accesses += [node.buffer for node in find(loop.body, tirx.BufferStore)]
    if not any(str(buffer.dtype) == "bool" for buffer in accesses):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body)


def _check_private_memory(function: tirx.PrimFunc) -> None:
    for buffer in (buffer for block in find(function.body, SBlock) for buffer in block.alloc_buffers):
        if buffer.scope() == "local" and not all(isinstance(size, tirx.IntImm) for size in buffer.shape):
            raise TargetError(
                "compile",
                "a thread of a GPU cannot keep an array of dynamic size, as sorting along a dynamic axis does",
                got=str(list(buffer.shape)),
                hint="a static size of that axis",
            )


def _one_thread_per_point(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Gives each point of a block's spatial axes a thread, which runs the ordered axes serially.

    For blocks that schedule primitives reject because they read their output, such as scatter.
    """
    body = function.body
    if isinstance(body, SBlockRealize) and body.block.name_hint == "root":
        body = body.block.body
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    bound = [_bind(nest) for nest in nests]
    root = SBlock([], [], [], "root", bound[0] if len(bound) == 1 else tirx.SeqStmt(bound))
    return function.with_body(SBlockRealize([], tirx.const(True), root))


def _bind(nest: tirx.Stmt) -> tirx.Stmt:
    loops = []
    while isinstance(nest, tirx.For):
        loops.append(nest)
        nest = nest.body
    realize = nest
    kinds = [axis.iter_type for axis in realize.block.iter_vars]
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    ordered = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != tirx.IterVar.DataPar]
    count = math.prod(expressions.to_size(loop.extent) for loop in spatial)
    blocks = max(1, -(-count // _THREADS)) if isinstance(count, int) else count // _THREADS + 1
    block_index, thread_index = tirx.Var("block", "int32"), tirx.Var("thread", "int32")
    point = block_index * _THREADS + thread_index
    positions, rest = {}, point
    for loop in reversed(spatial):
        positions[loop.loop_var] = tirx.indexmod(rest, loop.extent)
        rest = tirx.indexdiv(rest, loop.extent)
    values = [positions.get(value, value) for value in realize.iter_values]  # loop variables, one per axis
    body: tirx.Stmt = SBlockRealize(values, point < count, realize.block)
    for loop in reversed(ordered):
        body = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)
    for variable, extent, tag in (
        (thread_index, _THREADS, "threadIdx.x"),
        (block_index, blocks, "blockIdx.x"),
    ):
        axis = tirx.IterVar(tvm.ir.Range(0, extent), tirx.Var(tag, "int32"), tirx.IterVar.ThreadIndex, tag)
        body = tirx.For(variable, 0, extent, tirx.ForKind.THREAD_BINDING, body, axis)
    return body
