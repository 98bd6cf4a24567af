"""Products inside of blocks: micro-kernels whose sums fit in the registers of the processor."""

from __future__ import annotations

import pytest
from tvm import ir

import tvmfun
from tvmfun import ShapeDtype
from tvmfun import numpy as tnp
from tvmfun.lower import pipeline
from tvmfun.lower.machine import Machine
from tvmfun.lower.target import resolve
from tvmfun.lower.tir.micro_kernels.products import TileProduct, is_product
from tvmfun.lower.tir.walk import find
from tvmfun.ops.tir import PRODUCT

PROCESSORS = {
    "SSE": {"mcpu": "x86-64-v2"},
    "AVX2": {"mcpu": "x86-64-v3"},
    "AVX-512": {"mcpu": "x86-64-v4"},
    "Neon": {"mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"},
}
DECOMPOSITIONS = {
    "cholesky": tnp.linalg.cholesky,
    "solve": lambda a: tnp.linalg.solve(a, a),
    "qr": tnp.linalg.qr,
    "eigh": tnp.linalg.eigh,
    "svd": tnp.linalg.svd,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", DECOMPOSITIONS)
@pytest.mark.quick("cholesky-AVX2-float32", "svd-AVX-512-float64")
def test_decompositions_call_micro_kernels(name, processor, dtype):
    # Any two of the decomposition, the processor, the dtype and the size meet.
    size = (70, "n")[(list(PROCESSORS).index(processor) + (dtype == "float64")) % 2]
    target = resolve({"kind": "llvm", "num-cores": 2, **PROCESSORS[processor]})
    machine = Machine.of(target)
    program = tvmfun.trace(DECOMPOSITIONS[name])(ShapeDtype((size, size), dtype))
    kernels = [kernel for kernel in pipeline.scheduled_kernels(program, target) if kernel.rule == "fallback"]
    assert kernels
    for kernel in kernels:
        assert PRODUCT not in kernel.function.script()
        calls = [call for call in find(kernel.function.body, ir.Call) if is_product(call)]
        assert calls
        for call in calls:
            product = TileProduct.of_name(str(call.args[0].value).split("product.")[1].split("."))
            assert product.lanes == machine.lanes(dtype)
            assert product.rows * product.vectors + product.vectors < machine.registers
            assert product.adds
