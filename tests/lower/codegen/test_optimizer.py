"""Kernels past LLVM's optimizer: which they are, and that they compute what optimized ones do."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, lax, tree
from tvmfun.core.inline import inlined
from tvmfun.export import load
from tvmfun.lower import kernel_cache, pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native
from tvmfun.lower.codegen.optimizer import is_straight
from tvmfun.reference import evaluate

TARGET = targets.resolve({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def straight(function, *arguments) -> list[bool]:
    """For each kernel of a function, whether it is straight."""
    program = inlined(tvmfun.trace(function)(*(ShapeDtype(x.shape, x.dtype) for x in arguments)), "cpu")
    return [is_straight(kernel.function) for kernel in pipeline.scheduled_kernels(program, TARGET)]


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


def convolved(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


STRAIGHT = {
    "arithmetic": (lambda x: tnp.where(x > 0, x * 2 - 1, x), (64, 256)),
    "a row": (lambda x, y: (x - y) * y, (64, 256), (256,)),
    "a function that is called": (tnp.sin, (64, 256)),
    "a number and a vector": (lambda x, y: x * y, (), (64, 256)),
    "two results": (lambda x, y: (x - y, x > y), (64, 256), (64, 256)),
    "other floats": (lambda x: x.astype("float64") + 1, (64, 256)),
    "a part of a vector": (lambda x: x * 2, (61, 17)),
    "a sum over rows": (lambda x: tnp.sum(x, axis=0), (64, 256)),
    "a sum of products over images": (lambda x, y: tnp.sum(x * (x - y), axis=(0, 1, 2)), (8, 16, 16, 64), (64,)),
    "a transpose": (lambda x: x.T, (64, 64)),
    "a gather": (lambda x: x[np.array([3, 1, 2] * 40)], (64, 256)),
    "a product": (lambda x, y: x @ y, (96, 128), (128, 256)),
    "a product and an epilogue": (lambda x, y, z: tnp.maximum(x @ y + z, 0), (96, 128), (128, 256), (256,)),
    "a convolution": (convolved, (8, 16, 16, 32), (3, 3, 32, 32)),
    "a convolution and an epilogue": (
        lambda x, w: tnp.maximum(convolved(x, w) + x, 0),
        (8, 16, 16, 32),
        (3, 3, 32, 32),
    ),
}
OTHERS = {
    "a formula": (tnp.tanh, (64, 256)),
    "integers": (lambda x: x.astype("int32") * 3, (64, 256)),
    "half precision": (lambda x: x.astype("bfloat16") * 3, (64, 256)),
    "a sum": (lambda x: tnp.sum(x, axis=-1), (64, 256)),
    "a sum of integers": (lambda x: tnp.sum(x.astype("int32"), axis=0), (64, 256)),
    "a cumulative sum": (lambda x: tnp.cumsum(x, axis=0), (64, 256)),
    "a margin": (lambda x: tnp.pad(x, 1), (64, 256)),
    "elements at random": (lambda x: x[:, np.array([3, 1, 2] * 40)], (64, 256)),
    "elements apart": (lambda x: x[:, ::2] + 1, (64, 512)),
    "a sort": (lambda x: tnp.sort(x, axis=-1), (64, 256)),
    "a loop": (lambda x: lax.fori_loop(0, 5, lambda i, x: tnp.sin(x), x), (64, 256)),
    "words": (lambda x, y: x.astype("int8") @ y.astype("int8"), (96, 128), (128, 256)),
}


@pytest.mark.parametrize("name", [*STRAIGHT, *OTHERS])
def test_which_kernels_are_straight(name):
    function, *shapes = {**STRAIGHT, **OTHERS}[name]
    flags = straight(function, *(numbers(*shape) for shape in shapes))
    assert flags
    assert all(flags) if name in STRAIGHT else not all(flags)


@pytest.mark.parametrize("cores", [1, 2])
def test_sums_after_a_small_map_are(cores):
    """Also where no loop is parallel, and with maps of the sums; loops that sums share with maps are not."""
    target = targets.resolve({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": cores})
    specs = [ShapeDtype(shape, "float32") for shape in ((8, 16, 16, 64), (64,))]
    sums = lambda x, s: tnp.sum((x - s / 8) * x, axis=(0, 1, 2))
    (kernel,) = pipeline.scheduled_kernels(tvmfun.trace(sums)(*specs), target)
    assert is_straight(kernel.function)
    of_mean = lambda mean, s: (mean, tnp.sqrt(mean * mean + s))
    updated = lambda x, s: of_mean(sums(x, s) / 2048, s)
    (kernel,) = pipeline.scheduled_kernels(tvmfun.trace(updated)(*specs), target)
    assert is_straight(kernel.function)
    centred = lambda x: x - tnp.mean(x, axis=1, keepdims=True)
    kernels = pipeline.scheduled_kernels(tvmfun.trace(centred)(ShapeDtype((64, 16, 64), "float32")), target)
    assert not all(is_straight(kernel.function) for kernel in kernels)


def test_kernels_of_dynamic_sizes_are_not():
    spec = ShapeDtype((Dim("rows", min=1), 256), "float32")
    kernels = pipeline.scheduled_kernels(tvmfun.trace(lambda x: x * 2 - 1)(spec), TARGET)
    assert not any(is_straight(kernel.function) for kernel in kernels)


@pytest.mark.parametrize("name", [*STRAIGHT, *OTHERS])
def test_the_numbers(name, monkeypatch):
    """With and without the optimizer; products and sums may be fused in one of the two."""
    function, *shapes = {**STRAIGHT, **OTHERS}[name]
    arguments = [numbers(*shape) for shape in shapes]
    without = tree.leaves(tvmfun.jit(function)(*arguments))
    monkeypatch.setattr(native, "is_straight", lambda function: False)
    tvmfun.clear_caches()
    kernel_cache.clear_cache()
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    program = tvmfun.trace(function)(*arguments)
    expected = evaluate(program, [*program.captured, *arguments])
    for got, optimized, wanted in zip(without, tree.leaves(tvmfun.jit(function)(*arguments)), expected, strict=True):
        np.testing.assert_allclose(got, optimized, rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 2, 20])
def test_kernels_of_both_kinds_in_one_program(layers):
    """In one module, in two, and in many."""

    def network(x, w):
        for i in range(layers):
            x = tnp.tanh(x @ w[i])
            x = (x - tnp.mean(x, axis=-1, keepdims=True)) * tnp.arange(i + 1, 129 + i) / 64
        return x, tnp.sum(x, axis=0)

    x, w = numbers(96, 128), numbers(20, 128, 128) / 12
    assert {True, False} == set(straight(network, x, w))
    expected = evaluate(tvmfun.trace(network)(x, w), [x, w])
    for got, wanted in zip(tvmfun.jit(network)(x, w), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


def test_both_kinds_in_an_exported_library(tmp_path):
    function = lambda x, y: (tnp.tanh(x @ y) * 2, tnp.sum(x, axis=0), x - 1)
    x, y = numbers(96, 128), numbers(128, 256)
    compiled = tvmfun.jit(function).lower(x, y).compile()
    compiled.export(tmp_path / "function.so")
    for got, wanted in zip(load(tmp_path / "function.so")(x, y), compiled(x, y), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_results_in_place_of_donated_arguments():
    """Elements of an argument that are read and overwritten are no sums."""
    spec = ShapeDtype((300, 256), "float32")
    program = inlined(tvmfun.trace(lambda x, y: (x - y * 0.5, y * 0.9 + x))(spec, spec), "cpu")
    kernels = pipeline.scheduled_kernels(program, TARGET, donated=(0, 1))
    assert [is_straight(kernel.function) for kernel in kernels] == [True, True]
    assert len(kernels[1].function.params) == 2
    x, y = numbers(300, 256), numbers(300, 256)
    step = tvmfun.jit(lambda x, y: (x - y * 0.5, y * 0.9 + x), donate_argnums=(0, 1))
    got = step(tnp.asarray(x), tnp.asarray(y))
    np.testing.assert_allclose(got[0], x - y * 0.5, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got[1], y * 0.9 + x, rtol=1e-6, atol=1e-6)
