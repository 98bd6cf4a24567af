"""Running sums and the like on GPUs: emulated against the CPU in float64, and compiled for three architectures."""

import numpy as np
import pytest
from support.emulated_products import emulate, needs_gxx, needs_nvcc, resources, scheduled
from support.gpu_modules import gpu_module
from support.serial_gpu import SM_90

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, dtypes, errors, lax
from tvmfun.core.op import REGISTRY
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda import compilers
from tvmfun.lower.schedule.gpu.scan_kernels import ScanTiling
from tvmfun.ops.cumulative import Scan

OPS = {
    name: {"largest": True} if name == "cum_arg_extremum" else {}
    for name in (
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "cumlogsumexp",
        "linear_recurrence",
        "cum_arg_extremum",
    )
}
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6, "float64": 1e-14}


def operands(name, shape, dtype, seed=0):
    """Elements whose products stay in range."""
    rng, kind = np.random.default_rng([seed, *shape]), dtypes.canonical(dtype)
    if not dtypes.is_float(kind):
        ends = np.iinfo(kind)
        return (rng.integers(max(ends.min, -100), 100, shape).astype(kind),)
    x = rng.standard_normal(shape)
    if name == "cumprod":
        return (np.exp(x * 0.02).astype(kind),)
    return (
        (rng.uniform(-1, 1, shape).astype(kind), x.astype(kind)) if name == "linear_recurrence" else (x.astype(kind),)
    )


def check(name, arrays, orders=2, **params):
    """Compares a scan with the CPU: integers and extrema exactly, the others in float64."""
    run = lambda *arrays: REGISTRY[name](*arrays, **OPS[name], **params)
    (ours,), rules = emulate(run, *arrays, orders=orders)
    assert rules == ["scan"]
    is_sum = dtypes.is_float(arrays[0].dtype) and name not in ("cummax", "cummin", "cum_arg_extremum")
    wide = [x.astype("float64") for x in arrays] if is_sum else arrays
    expected = np.asarray(tvmfun.jit(run)(*wide))
    if is_sum:
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=1)
        # Rounding errors of products add up.
        bound = TOLERANCE[str(ours.dtype)] * largest * (25 if name == "cumprod" else 1)
        np.testing.assert_allclose(ours.astype("float64"), expected, rtol=0, atol=bound)
    else:
        assert ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, expected)


# The shape and the axis: parts of a warp, several warps, tiles with a carry, chunks; rows that are not contiguous;
# columns, also in chunks.
SHAPES = {
    "one": ((1,), 0),
    "two": ((2, 2), 1),
    "parts-of-warps": ((70, 13), 1),
    "a-warp": ((5, 101), 1),
    "warps": ((3, 1001), 1),
    "tiles": ((2, 9001), 1),
    "many-rows-of-tiles": ((300, 1301), 1),
    "chunks": ((40001,), 0),
    "apart": ((2, 50, 3), 1),
    "columns": ((3, 21, 33), 1),
    "columns-in-chunks": ((2, 300, 17), 1),
}


# Directions take turns, so that each op and each shape is scanned in both.
@needs_gxx
@pytest.mark.quick("cumsum-chunks-forward", "linear_recurrence-tiles-reverse", "cummax-columns-in-chunks-reverse")
@pytest.mark.parametrize(
    ("name", "shape", "direction"),
    [
        (name, shape, ("reverse", "forward")[(i + k) % 2])
        for i, name in enumerate(OPS)
        for k, shape in enumerate(SHAPES)
    ],
)
def test_ops(name, shape, direction):
    sizes, axis = SHAPES[shape]
    check(
        name,
        operands(name, sizes, "float32"),
        orders=1 if shape == "many-rows-of-tiles" else 2,
        axis=axis,
        reverse=direction == "reverse",
    )


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtypes.NAMES[dtype]) for name in ("cumsum", "cum_arg_extremum") for dtype in dtypes.ALL[1:]),
        *(
            (name, dtype)
            for name in ("cumprod", "cummax", "cummin")
            for dtype in ("int8", "uint32", "float16", "float64")
        ),
        *((name, dtype) for name in ("cumlogsumexp", "linear_recurrence") for dtype in ("bfloat16", "float64")),
    ],
)
def test_dtypes(name, dtype):
    check(name, operands(name, (3, 203), dtype), axis=1, reverse=True)


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("name", [name for name in OPS if name != "linear_recurrence"])
def test_special_values(name):
    special = [np.nan, np.inf, -np.inf, 0.0, 1.0, 1.0, -2.0]
    rows = np.asarray([np.roll(special, i)[: 3 + i % 5].tolist() + [1.0] * (290 - i % 5) for i in range(7)], "float32")
    run = lambda x: REGISTRY[name](x, axis=1, reverse=False, **OPS[name])
    (ours,), _ = emulate(run, rows)
    np.testing.assert_allclose(ours, np.asarray(tvmfun.jit(run)(rows)), rtol=1e-6)


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("length", [40, 3000])
def test_partial_products_out_of_range(length):
    """Results are those of the CPU where products of a part of a row are out of range, or those from its beginning."""
    x = np.ones((3, length), "float32")
    x[0, 1:3], x[1, :6], x[2, 4:8] = 1e30, [1e38, 1e-30, 1e-30, 1e30, 1e30, 0.0], 1e25
    x[0, 0] = 0.0
    for run, arrays in (
        (lambda x: REGISTRY["cumprod"](x, axis=1, reverse=False), (x,)),
        (lambda a, b: REGISTRY["linear_recurrence"](a, b, axis=1, reverse=False), (x, np.where(x < 1e20, x - 1, 0))),
    ):
        (ours,), _ = emulate(run, *arrays)
        np.testing.assert_array_equal(ours, np.asarray(tvmfun.jit(run)(*arrays)))


def uses(x):
    """Gradients, a batch of scans, a loop of them, and what is made of them."""
    weights = tnp.cos(tnp.arange(x.size, dtype="float32").reshape(x.shape))
    loss = lambda x: sum(tnp.sum(op(x, axis=1) * weights) for op in (lax.cumsum, lax.cumprod, lax.cummax))
    log_sums = lambda x: tnp.sum(lax.cumlogsumexp(x, axis=0, reverse=True) * weights)
    loop = lax.fori_loop(0, 3, lambda i, y: lax.cumsum(y, axis=1) * 0.1, x)
    pairs = lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (x, x), axis=1)
    initial = tnp.cumulative_sum(x, axis=1, include_initial=True)
    return tvmfun.grad(loss)(x), tvmfun.grad(log_sums)(x), tvmfun.vmap(lax.cummin)(x), loop, *pairs, initial


@needs_gxx
@pytest.mark.slow
def test_the_launcher_runs_them():
    from support.cuda_emulator.gpu import emulated_gpus

    x = np.random.default_rng(2).uniform(0.8, 1.2, (5, 47)).astype("float32")
    expected = tvmfun.jit(uses)(x)
    with emulated_gpus(seed=4):
        results = [np.asarray(y) for y in tvmfun.jit(uses)(tvmfun.device_put(x, "cuda"))]
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-4, atol=1e-4)


def test_the_number_of_launches(monkeypatch):
    monkeypatch.setattr(compilers, "why_none", lambda: errors.TargetError("compile", "launches only"))

    def count(name, *shape):
        module = gpu_module(lambda x: REGISTRY[name](x, axis=0, reverse=False), ShapeDtype(shape, "float32"))
        return len(list(module.launches()))

    assert [count("cumsum", 1000), count("cumsum", 1 << 20), count("cumsum", 1 << 14, 64)] == [1, 2, 2]
    assert [count("cumprod", 1 << 20), count("cumsum", 0), count("cumsum", 3, 0)] == [1, 0, 0]


@pytest.mark.parametrize("length", [1, 31, 4096, 4097, 70000, 10**7, 2**31 - 1])
@pytest.mark.parametrize("outer", [1, 9, 5000])
def test_chunks_cover_the_axis(outer, length):
    for inner in (1, 3, 64):
        cut = ScanTiling(Scan("cumsum", 1, False), outer, length, inner, "float32")
        assert cut.chunk * (cut.chunks - 1) < length <= cut.chunk * cut.chunks
        assert cut.by_column or cut.chunk % cut.team == 0
        assert cut.threads % cut.team == 0 and cut.threads % 32 == 0


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("first", "arch"), [(0, "sm_80"), (1, "sm_90a"), (2, "sm_100")])
def test_no_register_is_spilled(first, arch, tmp_path):
    """Sources are the same on all architectures: each is compiled for one of them."""
    dtypes_of = lambda name: ("float16", "float64") if name != "cummax" else ("int8", "int64")
    shapes = ((700, 5), 1), ((500, 4000), 1), ((100000,), 0), ((70, 2000, 64), 1)
    every = [(name, dtype, *shape) for name in OPS for dtype in dtypes_of(name) for shape in shapes]
    cases, sources = [], []
    for name, dtype, shape, axis in every[first::3]:
        run = lambda *x, name=name, axis=axis: REGISTRY[name](*x, **OPS[name], axis=axis, reverse=False)
        types = [ShapeDtype(shape, dtype)] * (2 if name == "linear_recurrence" else 1)
        for one in scheduled(run, *types, arch=arch):
            cases.append((name, dtype, shape))
            sources.append(one.source(targets.resolve({**SM_90, "arch": arch})))
    for case, kernels in zip(cases, resources(sources, arch, tmp_path), strict=True):
        for used in kernels:
            assert (used.spilled_bytes, used.stack_bytes) == (0, 0), case
            assert used.registers <= 128, case
