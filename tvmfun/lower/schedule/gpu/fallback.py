"""The last rule: a thread per point of a block's spatial axes, for blocks that schedule primitives reject."""

from __future__ import annotations

import math

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.target import Target

from tvmfun.core import expressions

_THREADS = 256


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Schedules a thread for each point of a block's spatial axes, which runs the ordered axes serially.

    For blocks that schedule primitives reject because they read their output, such as scatter.
    """
    body, buffers = function.body, []
    if isinstance(body, SBlockRealize) and body.block.name_hint == "root":
        body, buffers = body.block.body, list(body.block.alloc_buffers)
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    bound = [_bind(nest) for nest in nests]
    root = SBlock([], [], [], "root", bound[0] if len(bound) == 1 else tirx.SeqStmt(bound), None, buffers)
    return function.with_body(SBlockRealize([], tirx.const(True), root)).with_attr("tvmfun.rule", "opaque")


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
