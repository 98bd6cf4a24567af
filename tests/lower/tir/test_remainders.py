"""Remainders of floats on vectors: the bits of C's ``fmod`` and of NumPy's ``remainder``, whatever the quotient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.trace import trace
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.tir.vector_math.definitions import VectorFunction

COUNT = 20_011
UINTS = {"float32": np.uint32, "float64": np.uint64}


def pairs(dtype):
    """Dividends and divisors: random bits, ordinary numbers, quotients near integers, subnormal and special values."""
    rng, uint = np.random.default_rng(0), UINTS[dtype]
    info = np.finfo(dtype)
    any_bits = lambda: rng.integers(0, np.iinfo(uint).max, COUNT, dtype=uint, endpoint=True).view(dtype)
    usual = rng.normal(size=(2, COUNT)).astype(dtype)
    whole = rng.integers(-50, 50, (2, COUNT)).astype(dtype)
    tiny = rng.integers(1, 2000, (2, COUNT)).astype(uint).view(dtype)
    special = [0, 1, 3, 0.1, 1.5, info.max, info.tiny, info.smallest_subnormal, np.inf, np.nan]
    special = np.array([sign * value for value in special for sign in (1, -1)], dtype)
    grid = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    infinity = np.array(np.inf, dtype)
    # On both sides of multiples, with quotients up to some times what the arithmetic serves.
    factor = (2.0 ** rng.uniform(0, info.nmant + 4, COUNT)).astype(dtype)
    multiple = np.round(factor) * usual[1]
    near = [
        np.stack([value.astype(dtype), usual[1]])
        for value in (
            multiple,
            np.nextafter(multiple, infinity),
            np.nextafter(multiple, -infinity),
        )
    ]
    return np.concatenate(
        [np.stack([any_bits(), any_bits()]), usual * 100 // 1 / 7, usual, whole, tiny, grid, *near], 1
    )


def assert_same_bits(got, expected):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    uint = f"uint{8 * got.dtype.itemsize}"
    same = (got.view(uint) == expected.view(uint)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), (got[~same][:5], expected[~same][:5])


@pytest.mark.parametrize("dtype", UINTS)
@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_bits_of_numpy(name, dtype):
    x, y = pairs(dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    assert_same_bits(tvmfun.jit(getattr(tnp, name))(x, y), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_bits_for_half_precision(name, dtype):
    """Remainders of such numbers are such numbers, so NumPy's in float32 are exact; JAX's lose subnormal ones."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2**16, (2, COUNT)).astype("uint16").view(jnp.dtype(dtype))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x.astype("float32"), y.astype("float32")).astype(x.dtype)
    got = tvmfun.jit(getattr(tnp, name))(tnp.asarray(x), tnp.asarray(y))
    assert_same_bits(np.asarray(got).astype("float32"), expected.astype("float32"))


FORMS = {
    "one divisor": lambda m, x, y: m.remainder(x, m.asarray(0.3, x.dtype)),
    "sum of rows": lambda m, x, y: m.sum(m.remainder(x, y), axis=1),
    "sum of columns": lambda m, x, y: m.sum(m.fmod(x, y), axis=0),
    "one of another": lambda m, x, y: m.fmod(m.remainder(x, y), m.fmod(y, m.asarray(0.01, x.dtype))),
    "padded": lambda m, x, y: m.pad(m.remainder(x, y), ((1, 2), (3, 0))) * 2,
    "broadcast": lambda m, x, y: m.remainder(x[:, :1], y[:1, :]),
    "transposed": lambda m, x, y: m.remainder(x, y).T + 1,
    "scalar": lambda m, x, y: m.remainder(x[0, 0], y[0, 0]),
    "truth": lambda m, x, y: m.remainder(x, y) > m.fmod(y, x),
    "none": lambda m, x, y: m.remainder(x[:0], y[:0]),
    "floor": lambda m, x, y: m.floor_divide(x, y),
}


@pytest.mark.quick("float32")
@pytest.mark.parametrize("dtype", UINTS)
def test_in_all_kinds_of_kernels(dtype):
    x, y = np.random.default_rng(0).normal(size=(2, 19, 37)).astype(dtype)
    x[3, 5], y[4, 6], y[4, 7] = 1e30, 0, np.inf  # some lanes that need libm
    got = tvmfun.jit(lambda x, y: {name: form(tnp, x, y) for name, form in FORMS.items()})(x, y)
    with np.errstate(all="ignore"):
        for name, form in FORMS.items():
            np.testing.assert_allclose(
                np.asarray(got[name]),
                form(np, x, y),
                rtol=1e-4 if dtype == "float32" else 1e-12,
                atol=1e-6,
                err_msg=name,
            )


def test_a_vector_calls_libm_only_for_lanes_that_need_it():
    program = trace(lambda x: x % 3.0)(tvmfun.ShapeDtype((160,), "float32"))
    cpu = targets.resolve({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 1})
    module = pipeline.scheduled_module(program, cpu)
    (text,) = (f.script() for name, f in module.functions.items() if name.name_hint != "main")
    assert "fmodf" not in text and '"tvmfun.micro.math.fmod.32.16.2"' in text
    definition = VectorFunction("fmod", 32, 16, 2).definition()
    assert definition.count("call float @fmodf") == 1 and "br i1 %any, label %lane, label %end" in definition
    assert "declare float @fmodf(float, float)" in definition and "@llvm.fma.v16f32(" in definition


def test_a_remainder_of_floats_is_computed_once_and_one_of_integers_where_it_is_read():
    def program(dtype):
        def several(x):
            rest = x % tnp.asarray(7, dtype)
            return tnp.sum(rest, axis=0), tnp.sum(rest * rest, axis=1)

        return trace(several)(tvmfun.ShapeDtype((64, 64), dtype))

    cpu = targets.resolve({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 1})
    times = lambda dtype: sum(
        equation.op.name == "remainder"
        for kernel, _ in pipeline.fused_kernels(program(dtype), cpu)
        for equation in kernel.equations
    )
    assert times("float32") == 1 and times("int32") == 2


@pytest.mark.slow
def test_derivatives_of_periodic_distances():
    def energy(m, x):
        difference = x[:, None] - x[None]
        difference = (difference + 2.0) % 4.0 - 2.0
        return m.sum(m.exp(-difference * difference))

    x = np.random.default_rng(0).uniform(-9, 9, 23)
    with x64():
        expected = jax.grad(lambda x: energy(jnp, x))(x), jax.hessian(lambda x: energy(jnp, x))(x)
    ours = lambda x: energy(tnp, x)
    for got, value in zip(
        tvmfun.jit(lambda x: (tvmfun.grad(ours)(x), tvmfun.hessian(ours)(x)))(x), expected, strict=True
    ):
        np.testing.assert_allclose(np.asarray(got), value, rtol=1e-9, atol=1e-9)
    rows = np.stack([x, x + 1.5])
    np.testing.assert_allclose(tvmfun.vmap(lambda x: lax.rem(x, 1.3))(rows), np.fmod(rows, 1.3))
