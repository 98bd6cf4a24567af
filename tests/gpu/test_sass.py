"""Instructions of the hot kernels: every product of a step in half precision or tf32 is on tensor cores."""

import re

import numpy as np
import pytest
from support.emulated_products import Scheduled, cubin, needs_nvcc, scheduled
from support.sass import instructions, needs_nvdisasm
from support.steps import bert_step

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.core.inline import inlined
from tvmfun.execute import input_positions
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.models import BERTConfig

# A main loop's dtype, tile and part of a warp, as its functions are named.
_LOOP = re.compile(r"#define tvmfun_(\w+?)_(\d+)x(\d+)x(\d+)x(\d+)x(\d+)_[km]{2}(_wgmma\d?)?\n")
#: The terms of an instruction, and its name.
UNITS = {
    "bfloat16": (16, "HMMA.16816.F32.BF16"),
    "float16": (16, "HMMA.16816.F32"),
    "tf32": (8, "HMMA.1688.F32.TF32"),
}


def check_product(source, arch, directory):
    """Asserts that a product has the instructions that a step of its main loop needs, or as many of unrolled steps."""
    (loop,) = set(_LOOP.findall(source))
    dtype, (_, _, depth, rows, columns) = loop[0], map(int, loop[1:6])
    counts = instructions(cubin(source, arch, directory))
    multiplied = sum(count for name, count in counts.items() if name.startswith(("HMMA", "HGMMA")))
    if dtype == "float32":
        # A thread has 8 x 8 of the results in registers.
        assert multiplied == 0 and counts["FFMA"] >= rows * columns // 32 * 4
        return dtype
    terms, name = UNITS[dtype]
    if loop[6]:
        kind = name.partition(".F32")[2]
        assert counts[f"HGMMA.64x{columns}x{terms}.F32{kind}"] == multiplied > 0
        per_step = rows // 64 * (depth // terms)
        # One wait per step and one at the end: the assembler has not put any between the products of a step.
        assert multiplied % per_step == 0 and counts["WARPGROUP.DEPBAR.LE"] == multiplied // per_step + 1
        return dtype
    assert counts[name] == multiplied > 0
    assert multiplied % (rows // 16 * (columns // 8) * (depth // terms)) == 0
    return dtype


@needs_nvcc
@needs_nvdisasm
@pytest.mark.slow
@pytest.mark.parametrize("size", [512, 2048])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "tf32", "float32"])
def test_products_have_the_instructions_of_their_main_loop(dtype, arch, size, tmp_path):
    x, y = (
        np.zeros(shape, "float32" if dtype in ("tf32", "float32") else "float16")
        for shape in ((size, 512), (size, 512))
    )
    cast = dtype if dtype == "bfloat16" else str(x.dtype)
    precision = "tensorfloat32" if dtype == "tf32" else None
    run = lambda x, y: tnp.matmul(x.astype(cast), y.T.astype(cast), precision=precision)
    products = [one for one in scheduled(run, x, y, arch=arch) if one.rule == "product"]
    for one in products:
        assert check_product(one.source(targets.resolve({"kind": "cuda", "arch": arch})), arch, tmp_path) == dtype
    assert len(products) == 1


@needs_nvcc
@needs_nvdisasm
@pytest.mark.slow
def test_every_product_of_bert_in_bfloat16_is_on_tensor_cores(tmp_path):
    step, types = bert_step(BERTConfig(), 32, 128, "bfloat16")
    target = targets.resolve({"kind": "cuda", "arch": "sm_90a"})
    lowered = tvmfun.jit(step, donate_argnums=0, target=target).lower(*types)
    donated = input_positions(lowered.program, lowered.donated)
    kernels = pipeline.scheduled_kernels(inlined(lowered.program, "cuda"), target, donated)
    products = {one.kernel.text: Scheduled(one.kernel, one.function) for one in kernels if one.rule == "product"}
    assert len(products) >= 10
    for one in products.values():
        assert check_product(one.source(target), "sm_90a", tmp_path) == "bfloat16", one.kernel.text
