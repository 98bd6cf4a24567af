"""Products with few columns, or few rows and a transposed factor, whose vectors run along the reduced axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from lower.schedule.test_hot_kernels import basic_blocks, modules, operands
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine

RNG = np.random.default_rng(0)
LANES = Machine.of(targets.host()).lanes("float32")


def normal(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


def assert_product(got, x, w, bias=0.0):
    x, w = x.astype("float64"), w.astype("float64")
    terms, eps = x.shape[-1], np.finfo(got.dtype).eps
    bound = np.sqrt(terms) * eps * (abs(x) @ abs(w)) + 4 * eps * abs(bias)
    assert (abs(np.asarray(got, "float64") - (x @ w + bias)) <= bound).all()


def is_along_terms(compiled):
    """Whether the machine code fetches the rows of the next tile; micro-kernels of panels fetch those of a panel."""
    texts = [module.inspect_source("asm") for module in modules(compiled.executable.module)]
    return any("prefetcht1" in text and "tvmfun.micro.product" not in text for text in texts)


# Rows and terms that tiles, blocks and vectors do not divide; rows enough for 16 tiles of 8.
@pytest.mark.quick("plain-1001-1023-3", "plain-1024-1024-8")
@pytest.mark.parametrize(
    ("rows", "terms", "columns"),
    [(1024, 1024, 8), (1001, 1023, 3), (1003, 600, 5), (515, 4099, 2), (128, 8192, 7), (129, 70001, 4), (640, 512, 8)],
    ids=lambda n: str(n),
)
@pytest.mark.parametrize("is_transposed", [False, True], ids=["plain", "transposed"])
def test_sizes(rows, terms, columns, is_transposed):
    x, w = normal(rows, terms), normal(terms, columns)
    f = tvmfun.jit((lambda x, w: x @ w.T) if is_transposed else (lambda x, w: x @ w))
    compiled = f.lower(x, w.T.copy() if is_transposed else w).compile()
    if LANES == 16:
        assert is_along_terms(compiled)
    assert_product(np.asarray(compiled(x, w.T.copy() if is_transposed else w)), x, w)


# -- few rows, and a factor whose terms are neighbours: ``x @ w.T`` --------------------------------------------------


@pytest.mark.quick("float32-1023-1001-8", "bfloat16-515-640-2", "scaled-770-515-11")
@pytest.mark.parametrize("rows", [2, 5, 8, 11, 12, 13])
@pytest.mark.parametrize(("terms", "columns"), [(1023, 1001), (515, 640), (770, 515), (64, 2048), (4099, 131)], ids=str)
@pytest.mark.parametrize("form", ["float32", "float64", "bfloat16", "int8", "scaled"])
def test_few_rows(form, rows, terms, columns):
    x, w, scale = normal(rows, terms), normal(columns, terms), normal(columns)
    if form == "float64":
        x, w = x.astype(form), w.astype(form)
    elif form == "bfloat16":
        x, w = x.astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16)
    elif form in ("int8", "scaled"):
        w = RNG.integers(-128, 128, w.shape, dtype="int8")

    def f(x, w, scale):
        if form == "scaled":
            w = w.astype("float32") * scale[:, None]
        return lax.dot_general(x, w.astype(x.dtype), (((1,), (1,)), ((), ())), preferred_element_type=wide)

    wide = "float64" if form == "float64" else "float32"
    compiled = tvmfun.jit(f).lower(x, w, scale).compile()
    if LANES == 16 and form == "float32" and rows <= 12 and terms >= 16 * rows:
        assert is_along_terms(compiled)
    exact = w.astype("float64") * (scale[:, None] if form == "scaled" else 1)
    assert_product(np.asarray(compiled(x, w, scale)), x, exact.T)


@pytest.mark.parametrize("rows", [3, 12])
@pytest.mark.parametrize("sizes", [(5, 7, 48), (3, 1040), (9, 11, 13), (40, 32)], ids=str)
def test_few_rows_and_terms_along_several_axes(rows, sizes):
    x, w = normal(rows, *sizes), normal(800, *sizes)
    f = tvmfun.jit(lambda x, w: tnp.tensordot(x, w.transpose((*range(1, w.ndim), 0)), len(sizes)))
    assert_product(np.asarray(f(x, w)), x.reshape(rows, -1), w.reshape(800, -1).T)


@pytest.mark.quick("64-3-3-1-1-SAME")
@pytest.mark.parametrize(
    ("channels", "filters", "size", "stride", "dilation", "padding"),
    [
        (64, 3, 3, 1, 1, "SAME"),
        (64, 8, 3, 2, 1, "SAME"),
        (32, 1, 5, 1, 1, "VALID"),
        (48, 6, 3, 1, 2, [(3, 0), (1, 4)]),
        (80, 4, 1, 1, 1, "VALID"),
        (40, 4, 3, 1, 1, "SAME"),
    ],
)
def test_convolutions_to_few_channels(channels, filters, size, stride, dilation, padding):
    """And the gradients for images of few channels."""
    layout = ("NHWC", "HWIO", "NHWC")
    x, w = normal(3, 37, 41, channels), normal(size, size, channels, filters)
    image, kernel = normal(3, 30, 34, filters), normal(size, size, filters, channels)

    def run(lib, loops, dtype):
        def convolve(x, w):
            dilated = {"rhs_dilation": (dilation,) * 2, "dimension_numbers": layout}
            return loops.conv_general_dilated(x, w, (stride,) * 2, padding, **dilated)

        plain = lambda x, w: loops.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)
        square = lambda f: lambda x, w: (f(x, w) ** 2).sum()
        given = (array.astype(dtype) for array in (x, w, image, kernel))
        return lib.jit(
            lambda x, w, y, k: (
                convolve(x, w),
                *lib.grad(square(convolve), (0, 1))(x, w),
                lib.grad(square(plain))(y, k),
            )
        )(*given)

    with x64():
        exact = run(jax, jax.lax, "float64")
    for own, other in zip(run(tvmfun, lax, "float32"), exact, strict=True):
        np.testing.assert_allclose(np.asarray(own), other, rtol=2e-5, atol=2e-6 * abs(np.asarray(other)).max())


def test_infinities_of_few_rows_stay_where_they_are():
    x, w = normal(5, 1025), normal(640, 1025)
    x[3, 0], x[2, 1024], w[7, 2] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = x @ w.T
    got = np.asarray(tvmfun.jit(lambda x, w: x @ w.T)(x, w))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))


def test_epilogue_of_few_rows_is_written_over_a_donated_array():
    x, w, y = normal(6, 1025), normal(700, 1025), normal(6, 700)
    f = tvmfun.jit(lambda y, x, w: y + x @ w.T, donate_argnums=0)
    donated = tvmfun.device_put(y)
    got = np.asarray(f(donated, x, w))
    assert donated.is_deleted()
    assert_product(got, x, w.T, y)


def test_few_rows_of_batches():
    x, w = normal(3, 4, 1025), normal(3, 300, 1025)
    f = lambda x, w: x @ w.swapaxes(-1, -2)
    for got in (tvmfun.jit(f)(x, w), tvmfun.jit(tvmfun.vmap(f))(x, w)):
        assert_product(np.asarray(got), x, w.swapaxes(1, 2))
    shared = np.asarray(tvmfun.jit(tvmfun.vmap(f, in_axes=(0, None)))(x, w[0]))
    assert_product(shared, x, w[0].T)


def test_recurrence_of_few_rows():
    x, w = normal(9, 4, 600), 0.02 * normal(600, 600)
    run = lambda np, loops, w: loops.scan(lambda h, x: (np.tanh(x + h @ w.T), h @ w.T), np.zeros((4, 600)), x)
    ours, theirs = (tvmfun.jit(lambda w: run(tnp, lax, w))(w), run(jnp, jax.lax, w))
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(own), other, atol=2e-5)
    gradient = tvmfun.jit(tvmfun.grad(lambda w: run(tnp, lax, w)[1].sum()))(w)
    expected = jax.grad(lambda w: run(jnp, jax.lax, w)[1].sum())(w)
    np.testing.assert_allclose(np.asarray(gradient), expected, rtol=1e-3, atol=1e-3)


def test_float64():
    x, w = normal(640, 1030, dtype="float64"), normal(1030, 4, dtype="float64")
    assert_product(np.asarray(tvmfun.jit(lambda x, w: x @ w)(x, w)), x, w)


def test_infinities_stay_in_their_row_and_column():
    x, w = normal(640, 1025), normal(1025, 4)
    x[3, 0], x[5, 1024], w[7, 2] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = x @ w
    got = np.asarray(tvmfun.jit(lambda x, w: x @ w)(x, w))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))


def test_epilogue_is_written_over_a_donated_array():
    x, w, y = normal(700, 1025), normal(1025, 6), normal(700, 6)
    f = tvmfun.jit(lambda y, x, w: y + x @ w, donate_argnums=0)
    donated = tvmfun.device_put(y)
    got = np.asarray(f(donated, x, w))
    assert donated.is_deleted()
    assert_product(got, x, w, y)


def test_batches():
    x, w = normal(3, 300, 1025), normal(3, 1025, 5)
    for got in (tvmfun.jit(lambda x, w: x @ w)(x, w), tvmfun.jit(tvmfun.vmap(lambda x, w: x @ w))(x, w)):
        assert_product(np.asarray(got), x, w)
    shared = np.asarray(tvmfun.jit(tvmfun.vmap(lambda x, w: x @ w, in_axes=(0, None)))(x, w[0]))
    assert_product(shared, x, w[0])


def test_in_a_loop():
    x, w = normal(4, 256, 1030), normal(1030, 5)

    def run(x, w):
        return lax.scan(lambda carry, x: (carry + (x @ w).sum(0), x @ (w + carry)), tnp.zeros(5), x)

    carry, ys = tvmfun.jit(run)(x, w)
    total = np.zeros(5)
    for i, y in enumerate(np.asarray(ys)):
        np.testing.assert_allclose(y, x[i] @ (w + total), rtol=1e-3, atol=0.05)
        total = total + (x[i].astype("float64") @ w).sum(0)
    np.testing.assert_allclose(np.asarray(carry), total, rtol=1e-4, atol=1e-2)


def test_derivatives():
    x, w = normal(512, 520, dtype="float64"), normal(520, 3, dtype="float64")
    loss = lambda w: tnp.tanh(tnp.asarray(x) @ w * 0.05).sum()
    gradient = np.asarray(tvmfun.jit(tvmfun.grad(loss))(w))
    y = np.tanh(x @ w * 0.05)
    np.testing.assert_allclose(gradient, 0.05 * x.T @ (1 - y * y), rtol=1e-10)
    product = np.asarray(tvmfun.jit(lambda w, v: tvmfun.jvp(tvmfun.grad(loss), (w,), (v,))[1])(w, w))
    np.testing.assert_allclose(product, 0.0025 * x.T @ (-2 * y * (1 - y * y) * (x @ w)), rtol=1e-9, atol=1e-9)


def test_results_do_not_depend_on_threads():
    x, w = normal(1001, 1025), normal(1025, 6)
    one, two = (
        np.asarray(tvmfun.jit(lambda x, w: x @ w, target={"kind": "llvm", "mcpu": MCPU, "num-cores": cores})(x, w))
        for cores in (1, 2)
    )
    np.testing.assert_array_equal(one, two)


MCPU = str(targets.host().attrs["mcpu"])


@pytest.mark.parametrize(
    ("mcpu", "columns"), [("x86-64-v3", 4), ("x86-64-v3", 2), ("znver5", 8), ("skylake-avx512", 5)]
)
def test_sums_stay_in_registers(mcpu, columns):
    target = targets.resolve({"kind": "llvm", "mcpu": mcpu, "mtriple": "x86_64-linux-gnu", "num-cores": 2})
    f = tvmfun.jit(lambda x, w: x @ w, target=target)
    compiled = f.lower(ShapeDtype((1024, 1024), "float32"), ShapeDtype((1024, columns), "float32")).compile()
    text = "\n".join(module.inspect_source("asm") for module in modules(compiled.executable.module))
    hot = max(basic_blocks(text), key=lambda block: sum("vfmadd" in line for line in block))
    assert sum("vfmadd" in line for line in hot) >= 2 * columns
    assert not any("(%rsp)" in line for line in hot if operands(line))


def test_others_keep_their_tiles():
    """Of so few rows that they stay in L2: others fetch them, too."""
    few_terms = tvmfun.jit(lambda x, w: x @ w).lower(ShapeDtype((512, 256), "float32"), ShapeDtype((256, 8), "float32"))
    many_columns = tvmfun.jit(lambda x, w: x @ w).lower(
        ShapeDtype((128, 1024), "float32"), ShapeDtype((1024, 16), "float32")
    )
    assert not is_along_terms(few_terms.compile())
    assert not is_along_terms(many_columns.compile())
