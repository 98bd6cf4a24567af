"""The kernels that dominate training are scheduled as intended: register tiles, also in the benchmarked models."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm.s_tir.analysis import estimate_tir_flops

import tvmfun
from tvmfun import ShapeDtype, lax
from tvmfun.core.inline import inlined
from tvmfun.lower import kernel_cache, pipeline
from tvmfun.lower import target as targets

VECTORS = {"x86-64-v3": "ymm", "x86-64-v4": "zmm"}


def target(mcpu):
    return targets.resolve({"kind": "llvm", "mcpu": mcpu, "mtriple": "x86_64-linux-gnu", "num-cores": 2})


def float32(*shape):
    return ShapeDtype(shape, "float32")


def convolution(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def kernel_gradient(x, w, g):
    return tvmfun.vjp(lambda w: convolution(x, w), w)[1](g)[0]


def image_gradient(x, w, g):
    return tvmfun.vjp(lambda x: convolution(x, w), x)[1](g)[0]


X, W, G = float32(4, 16, 16, 32), float32(3, 3, 32, 64), float32(4, 16, 16, 64)
PRODUCTS = {
    "product": (lambda a, b: a @ b, float32(256, 384), float32(384, 512)),
    "product with a transposed factor": (lambda a, b: a @ b.T, float32(256, 384), float32(512, 384)),
    "product of the gradient": (lambda a, b: a.T @ b, float32(256, 384), float32(256, 512)),
    "convolution": (convolution, X, W),
    "gradient for the images": (image_gradient, X, W, G),
    "gradient for the kernel": (kernel_gradient, X, W, G),
}


def basic_blocks(code):
    """The pieces of an assembly program without jumps or labels inside."""
    block = []
    for line in code.splitlines():
        line = line.split("#")[0].strip()
        if line.endswith(":"):
            yield block
            block = []
        elif line:
            block.append(line)
            if line.startswith("j"):
                yield block
                block = []
    yield block


def operands(instruction):
    """The operands in AT&T's order: the destination comes last."""
    return re.split(r",\s*(?![^()]*\))", instruction.split(maxsplit=1)[1])


def modules(module):
    """A module and those that it imports."""
    return [module, *(inner for imported in module.imports for inner in modules(imported))]


@pytest.mark.quick(
    "product with a transposed factor-x86-64-v4", "product-x86-64-v3", "convolution-x86-64-v4", "product-x86-64-v4"
)
@pytest.mark.parametrize("mcpu", VECTORS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_innermost_loop_of_a_product_stores_nothing(name, mcpu):
    """A sum that is kept in memory makes it several times slower, and every result stays right."""
    function, *specifications = PRODUCTS[name]
    compiled = tvmfun.jit(function, target=target(mcpu)).lower(*specifications).compile()
    code = "\n".join(library.inspect_source("asm") for library in modules(compiled.executable.module))
    hot = max(basic_blocks(code), key=lambda block: sum(line.startswith("vfmadd") for line in block))
    products = [operands(line) for line in hot if line.startswith("vfmadd")]
    assert len(products) >= 8 and hot[-1].startswith("j")
    sums = {written for *_, written in products}
    assert len(sums) >= 8 and all(re.fullmatch(rf"%{VECTORS[mcpu]}\d+", register) for register in sums)
    stores = [line for line in hot if line.startswith("v") and "(" in operands(line)[-1]]
    assert not stores and not any("(%rsp)" in line for line in hot)


@pytest.mark.parametrize("mcpu", VECTORS)
@pytest.mark.parametrize("rows", [1, 2, 8, 32])
def test_few_rows_fetch_a_later_panel_of_a_large_operand(rows, mcpu):
    """The prefetcher follows fewer rows of the right operand than a block has."""
    specifications = float32(rows, 1100), float32(1100, 4096)
    compiled = tvmfun.jit(lambda a, b: a @ b, target=target(mcpu)).lower(*specifications).compile()
    code = "\n".join(library.inspect_source("asm") for library in modules(compiled.executable.module))
    hot = max(basic_blocks(code), key=lambda block: sum(line.startswith("vfmadd") for line in block))
    assert any(line.startswith("prefetcht1") for line in hot) == (rows > 1)


@pytest.mark.parametrize("mcpu", VECTORS)
def test_vectors_of_a_grouped_convolution_stay_in_a_group(mcpu):
    """A vector over two groups of channels loads its factors from separate addresses, one by one."""
    grouped = lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
    )
    compiled = tvmfun.jit(grouped, target=target(mcpu)).lower(X, float32(3, 3, 8, 32)).compile()
    code = "\n".join(library.inspect_source("asm") for library in modules(compiled.executable.module))
    hot = max(basic_blocks(code), key=lambda block: sum(line.startswith("vfmadd") for line in block))
    assert sum(line.startswith("vfmadd") and ("%ymm" in line or "%zmm" in line) for line in hot) >= 4
    assert not any(line.startswith(("vgather", "vinsertps", "vunpck", "vmovlhps")) for line in hot)


# Operations of a kernel that deserves a register tile.
HOT = 1 << 20
# Ops without a schedule, because they run in one thread.
SCATTERS = {"scatter"}
FAST = ["MLP", "MNIST CNN", "ResNet-18", "LSTM", "DLRM", "BERT, 4 layers", "GPT-2 mini"]
LARGE = ["BERT-base", "GPT-2 124M"]


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_training_steps_are_scheduled_as_intended(name, monkeypatch):
    pytest.importorskip("torch")  # the models have a version for it
    pytest.importorskip("optax")
    from bench.bench_models import CASES
    from bench.ours import Ours

    assert [case.name for case in CASES if case.precision == "float32"] == [*FAST, *LARGE]
    runner = Ours(next(case for case in CASES if case.name == name))
    program = inlined(runner.run.lower(*runner.types()).program)
    for mcpu in VECTORS:
        rules = scheduled_rules(program, target(mcpu), monkeypatch)
        assert {
            equation.op.name for kernel, rule in rules if rule == "fallback" for equation in kernel.equations
        } <= SCATTERS, mcpu
        hot = [rule for kernel, rule in rules if has_products(kernel) and operations(kernel) > HOT]
        convolves = {"winograd"} if name in ("MNIST CNN", "ResNet-18") else set()
        assert len(hot) >= 4 and set(hot) == {"contraction"} | convolves, mcpu


def scheduled_rules(program, target, monkeypatch):
    """The kernels of a program, also those within loops, with the rules that schedule them."""
    scheduled = []

    def recorded(kernel, *arguments, **options):
        function = schedule(kernel, *arguments, **options)
        scheduled.append((kernel, function))
        return function

    schedule = kernel_cache.scheduled
    kernel_cache.clear_cache()
    with monkeypatch.context() as patched:
        patched.setattr(kernel_cache, "scheduled", recorded)
        pipeline.scheduled_module(program, target)
    return [(kernel, str(function.attrs["tvmfun.rule"])) for kernel, function in scheduled]


def has_products(kernel):
    return any(equation.op.kind == "contraction" for equation in kernel.equations)


def operations(kernel):
    return estimate_tir_flops(tvm.IRModule({"main": kernel.prim_func()}))
