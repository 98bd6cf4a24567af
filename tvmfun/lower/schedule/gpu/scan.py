"""Scans along an axis on GPUs: one launch, or two where few rows or columns are long.

The first of two launches stores the partial result of each chunk of a row; the second one begins each chunk with the
partial results before it. The order in which elements are joined depends on shapes alone.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvmfun.lower.schedule.gpu.launch import launch
from tvmfun.lower.schedule.gpu.scan_kernels import ScanTiling, functions, is_scannable
from tvmfun.lower.schedule.gpu.vectors import address, call, whole
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr
from tvmfun.ops.cumulative import Scan


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Returns the kernel of a cumulative op with its launches; None if it is not one, or has dynamic sizes."""
    scan = Scan.of(function)
    if scan is None or not all(isinstance(param, Buffer) and build.is_static(param) for param in function.params):
        return None
    shape = [int(size) for size in function.params[0].shape]
    dtype = str(function.params[0].dtype)
    if 0 in shape or not is_scannable(dtype):
        return None
    outer, inner = math.prod(shape[: scan.axis]), math.prod(shape[scan.axis + 1 :])
    body = _launches(ScanTiling(scan, outer, shape[scan.axis], inner, dtype), list(function.params))
    return function.with_body(build.root(body)).with_attr("tvmfun.rule", "scan")


def _launches(tiling: ScanTiling, params: list[Buffer]) -> Stmt:
    code = functions(tiling)
    *inputs, results = params

    def step(name: str, buffers: list[Buffer]) -> Stmt:
        pointers = [address(buffer, *[0] * len(buffer.shape)) for buffer in buffers]
        run = lambda block: call(name, block, *pointers, source=code.source)
        mark = lambda: [whole(totals, size - 1)] if name == code.totals else []

        def body(block: Expr, thread: Expr) -> Stmt:
            return build.seq(*mark(), run(block))

        return launch(tiling.blocks, tiling.threads, body)

    if tiling.chunks == 1:
        return step(code.results, [*inputs, results])
    size = build.ceil_div(tiling.tasks * tiling.chunks * tiling.state_bytes, 8)
    totals = tirx.decl_buffer((size,), "uint64", name="totals")
    steps = step(code.totals, [*inputs, totals]), step(code.results, [*inputs, totals, results])
    return build.seq(tirx.AllocBuffer(totals), *steps)
