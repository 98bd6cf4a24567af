"""Sorts on GPUs: emulated against NumPy's stable order, element by element, and compiled for three architectures."""

import numpy as np
import pytest
from support.emulated_products import emulate, needs_gxx, needs_nvcc, resources, scheduled
from support.gpu_modules import gpu_module
from support.serial_gpu import SM_90

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, dtypes, errors, lax
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda import compilers
from tvmfun.ops.sorting import argsort

DTYPES = [dtypes.NAMES[dtype] for dtype in dtypes.ALL]
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 65504.0, -65504.0, 0.5]


def elements(shape, dtype, seed=0):
    """Elements of which many are equal, with the extreme ones of the dtype."""
    rng, kind = np.random.default_rng([seed, *shape]), dtypes.canonical(dtype)
    if kind == np.bool_:
        return rng.random(shape) > 0.5
    if dtypes.is_float(kind):
        return rng.choice(np.asarray([*SPECIAL, *rng.standard_normal(9)]), shape).astype(kind)
    ends = np.iinfo(kind)
    return rng.choice(np.asarray([ends.min, ends.max, *(k for k in range(-3, 4) if k >= ends.min)], kind), shape)


def order(x):
    """The stable order of rows with all NaNs equal and last, by NumPy."""
    wide = x.astype("float64") if dtypes.is_float(x.dtype) else x
    return np.argsort(wide, axis=-1, kind="stable")


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    x = elements((3, 201), dtype)
    (result,), rules = emulate(lambda x: argsort(x), x)
    assert rules == ["sort"] and result.dtype == np.int32
    np.testing.assert_array_equal(result, order(x))


SHAPES = [(1,), (2,), (8,), (9,), (3, 1), (70, 5), (200, 2), (2, 0), (0, 3), (2, 3, 31), (5, 257), (2, 4096)]
LONG = [(4097,), (2, 6001), (8193,), (20000,)]


@needs_gxx
@pytest.mark.quick("1", "2x0", "200x2", "5x257", "2x6001")
@pytest.mark.parametrize("shape", SHAPES + LONG)
def test_shapes(shape):
    """Rows that share a block, rows that are a tile, and rows whose tiles are merged in one, two and three rounds."""
    x = elements(shape, "float32")
    (result,), _ = emulate(lambda x: argsort(x), x)
    np.testing.assert_array_equal(result, order(x))


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("values", ["ascending", "descending", "equal", "runs"])
def test_sequences_with_a_structure(values):
    n = 9001
    rows = {
        "ascending": range(n),
        "descending": range(n, 0, -1),
        "equal": [7] * n,
        "runs": [i % 2048 for i in range(n)],
    }
    x = np.asarray([*rows[values]], "int64")
    (result,), _ = emulate(lambda x: argsort(x), x)
    np.testing.assert_array_equal(result, order(x))


def uses(x, w):
    """Functions made of sorts: values, the largest ones, both directions, other axes, a gradient, a batch of sorts."""
    top = lax.top_k(x, 3)
    gradient = tvmfun.grad(lambda x: tnp.sum(tnp.sort(x, axis=0) * w))(x)
    return tnp.sort(x), tnp.argsort(x, 0, descending=True), *top, gradient, tvmfun.vmap(tnp.sort)(w)


@needs_gxx
@pytest.mark.slow
def test_the_launcher_runs_them():
    from support.cuda_emulator.gpu import emulated_gpus

    x, w = elements((6, 50), "float32"), np.random.default_rng(1).standard_normal((6, 50)).astype("float32")
    expected = tvmfun.jit(uses)(x, w)
    with emulated_gpus(seed=3):
        results = [np.asarray(y) for y in tvmfun.jit(uses)(*tvmfun.device_put((x, w), "cuda"))]
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))


def test_the_number_of_launches(monkeypatch):
    monkeypatch.setattr(compilers, "why_none", lambda: errors.TargetError("compile", "launches only"))
    count = lambda *shape: len(list(gpu_module(lambda x: argsort(x), ShapeDtype(shape, "float32")).launches()))
    assert [count(1000, 30), count(3, 4096), count(1 << 20)] == [1, 1, 9]


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "arch"), [("float16", "sm_100"), ("float32", "sm_90a"), ("int64", "sm_80")])
def test_no_register_is_spilled(dtype, arch, tmp_path):
    """Sources are the same on all architectures."""
    sources = [
        one.source(targets.resolve({**SM_90, "arch": arch}))
        for shape in ((1000, 5), (8, 4096), (2, 10000))
        for one in scheduled(lambda x: argsort(x), ShapeDtype(shape, dtype), arch=arch)
    ]
    for kernels in resources(sources, arch, tmp_path):
        for used in kernels:
            assert (used.spilled_bytes, used.stack_bytes) == (0, 0)
            assert used.registers <= 64
