"""Blocks with any body: a thread for each point of the axes that they declare independent, the others in order."""

from __future__ import annotations

from tvm.tirx import AllocBuffer, Stmt

from tvmfun.lower.schedule.gpu.launch import over_points
from tvmfun.lower.schedule.stages import Block
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Env, Expr, volume


def emit_block(block: Block) -> Stmt:
    """The launch of a block; each thread has its own copy of the private buffers."""

    def body(point: Expr) -> Stmt:
        env = build.unflatten(block.space, point)

        def step(env: Env) -> Stmt:
            return build.substitute(block.body, env)

        init = None if block.init is None else build.substitute(block.init, env)
        return build.seq(*map(AllocBuffer, block.private), init, build.nest(block.reduce, env, step))

    return over_points(volume(block.space), body)
