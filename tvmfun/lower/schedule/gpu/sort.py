"""Sorts of rows on GPUs: a launch that sorts tiles, and one for each doubling of the length of sorted runs."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvmfun.lower.schedule.gpu.launch import launch
from tvmfun.lower.schedule.gpu.sort_kernels import SortTiling, functions, is_sortable
from tvmfun.lower.schedule.gpu.vectors import address, allocated, call, whole
from tvmfun.lower.schedule.stages import contains
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr
from tvmfun.ops.sorting import ARGSORT


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Returns the kernel of an ``argsort`` with its launches; None if it is not one, or has dynamic sizes."""
    if not (function.attrs and function.attrs.get(ARGSORT)) or len(function.params) != 2:
        return None
    elements, order = function.params
    if not all(isinstance(size, tirx.IntImm) and int(size) for size in elements.shape):
        return None
    if not is_sortable(str(elements.dtype)):
        return None
    *outer, length = map(int, elements.shape)
    body = _launches(SortTiling(math.prod(outer), length, str(elements.dtype)), elements, order)
    root = build.root(body)
    return function.with_body(root).with_attr("tvmfun.rule", "sort")


def _launches(tiling: SortTiling, elements: Buffer, order: Buffer) -> Stmt:
    """The launches: keys and positions pass between two buffers, such that the last positions are in ``order``."""
    code = functions(tiling)
    shape = (tiling.rows * tiling.length,)
    rounds = (tiling.tiles - 1).bit_length()
    keys = [tirx.decl_buffer(shape, tiling.key, name=f"keys{i}") for i in range(min(rounds, 2))]
    orders = [order, *(tirx.decl_buffer(shape, "int32", name="positions") for _ in range(min(rounds, 1)))]
    temporary = [*keys, *orders[1:]]
    # The arrays that are sorted after each round.
    sorted_runs = [[keys[i % 2], orders[(rounds - i) % 2]] for i in range(rounds)] + [[order]]

    def step(name: str, blocks: int, buffers: list[Buffer], *numbers: int) -> Stmt:
        shared = tirx.decl_buffer((tiling.shared_bytes,), "uint8", name="shared", scope="shared.dyn")
        pointers = [address(buffer, *[0] * len(buffer.shape)) for buffer in buffers]
        marks = [whole(buffer, shape[0] - 1) for buffer in buffers if contains(temporary, buffer)]

        def body(block: Expr, thread: Expr) -> Stmt:
            run = call(name, block, address(shared, 0), *pointers, *map(tirx.const, numbers), source=code.source)
            return build.seq(allocated(shared, tiling.shared_bytes), *marks, run)

        return launch(blocks, tiling.threads, body)

    tiles = tiling.rows * tiling.tiles
    steps = [step(code.tiles, build.ceil_div(tiles, tiling.threads // tiling.team), [elements, *sorted_runs[0]])]
    for i in range(rounds):
        name = code.last if i == rounds - 1 else code.merge
        steps.append(step(name, tiles, [*sorted_runs[i], *sorted_runs[i + 1]], tiling.size << i))
    return build.seq(*map(tirx.AllocBuffer, temporary), *steps)
