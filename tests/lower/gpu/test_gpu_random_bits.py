"""Random bits on GPUs: computed in the kernel that uses them, with the values of the CPU."""

import numpy as np
import pytest
from support.cuda_emulator import GXX

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, random
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.ops.bits import threefry2x32

SM_90 = targets.resolve({"kind": "cuda", "arch": "sm_90"})
KEY = np.asarray([7, 11], np.uint32)


def dropped(key, x):
    return tnp.where(random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def normalized(key, x, y):
    h = dropped(key, x) + y
    centered = h - tnp.mean(h, -1, keepdims=True)
    return centered / tnp.sqrt(tnp.mean(centered**2, -1, keepdims=True) + 1e-5), h


def in_a_scan(key, xs):
    def step(key, x):
        own, key = random.split(key)
        return key, dropped(own, x)

    return lax.scan(step, key, xs)


def words(key, x):
    base = np.asarray([1, 0xFFFFFFFE], np.uint32)  # a counter whose low word overflows
    return [threefry2x32(key, base, shape=shape, word=word) for shape in ((), (5,), (0, 3)) for word in WORDS]


WORDS = ("first", "second", "xor")
PROGRAMS = {
    "words": words,
    "mask": dropped,
    "two-users": lambda key, x: (random.bits(key, x.shape), random.bits(key, x.shape) > 5),
    "normal": lambda key, x: random.normal(key, x.shape),
    "keys": lambda key, x: tvmfun.vmap(dropped)(random.split(key, len(x)), x),
    "sum": lambda key, x: tnp.sum(dropped(key, x), 1),
    "softmax": lambda key, x: dropped(key, tvmfun.nn.functional.softmax(x)),
    "scan": in_a_scan,
    "gradient": tvmfun.grad(lambda key, x: tnp.sum(dropped(key, x) ** 2), argnums=1),
}


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PROGRAMS, "normalized"])
def test_values_are_those_of_the_cpu(name, monkeypatch):
    if GXX is None:
        pytest.skip("there is no g++, which compiles the emulated kernels")
    from support.cuda_emulator.gpu import emulated_gpus

    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    function, arguments = PROGRAMS.get(name, normalized), (KEY, draw(37, 70))
    if name == "normalized":  # rows of more elements than registers hold
        arguments = KEY, draw(40, 770), draw(40, 770, seed=1)
    results = []
    with emulated_gpus(seed=3):
        for device in ("cuda", "cpu"):
            result = tvmfun.jit(function)(*tvmfun.device_put(arguments, device))
            results.append([np.asarray(leaf) for leaf in tvmfun.tree.leaves(result)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one == 0, other == 0)
        np.testing.assert_allclose(one, other, rtol=3e-5, atol=1e-6)


@pytest.mark.parametrize(("function", "shapes"), [(dropped, [(64, 96)]), (normalized, [(512, 768)] * 2)])
def test_a_mask_is_no_launch_and_no_memory(function, shapes, monkeypatch):
    types = [ShapeDtype((2,), "uint32"), *(ShapeDtype(shape, "float32") for shape in shapes)]
    kernels = pipeline.fused_kernels(inlined(tvmfun.trace(function)(*types), "cuda"), SM_90)
    assert len(kernels) == 1
    ((kernel, _),) = kernels
    assert all(out.aval.dtype == "float32" for out in kernel.outputs)
