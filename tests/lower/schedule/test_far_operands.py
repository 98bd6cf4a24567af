"""Products whose operands are far apart in memory, where they meet loops, batches, donation, derivatives and dtypes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, lax
from tvmfun.lower import machine, target
from tvmfun.lower.schedule.cpu import contraction_nest
from tvmfun.lower.settings import ScheduleSettings, using

CACHES = {1: 48 << 10, 2: 96 << 10, 3: 1 << 20}


@pytest.fixture(autouse=True, params=[1 << 15, 1], ids=["little is serial", "all is parallel"])
def kinds(request, monkeypatch):
    """Deep panels, also for small products, and caches that are full soon; the kinds of loops that were built."""
    built: list[str] = []

    def loops_of(*arguments):
        loops = original(*arguments)
        built.append(type(loops).__name__)
        return loops

    original = contraction_nest.loops_of
    monkeypatch.setattr(contraction_nest, "loops_of", loops_of)
    monkeypatch.setattr("tvmfun.lower.schedule.cpu.grouped_panels._LITTLE_WORK", 0)
    monkeypatch.setattr("tvmfun.lower.schedule.cpu.contraction.LARGE_BYTES", CACHES[2])
    monkeypatch.setattr(machine, "_machine", machine._machine.__wrapped__)
    monkeypatch.setattr(machine.Machine, "cache_bytes", lambda self, level: CACHES[level])
    with using(ScheduleSettings(panel_level=2, serial_work=request.param)):
        yield built


def draw(*shape, seed=0, dtype="float32"):
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[0])).astype(dtype)


def close(result, expected, tolerance=2e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a), b, rtol=tolerance, atol=tolerance), result, expected
    )


def descend(np_, w, x):
    """A step of gradient descent on half the squares of ``x @ w``, without its derivative by tracing."""
    return w - 0.5 * (x.T @ np_.tanh(x @ w))


@pytest.mark.parametrize("sizes", [(400, 70, 90), (515, 66, 129)], ids=str)
def test_updates_in_loops_are_written_over_their_arguments(kinds, sizes):
    terms, rows, columns = sizes
    x, w = draw(terms, rows), draw(rows, columns, seed=1)
    step = tvmfun.jit(lambda w, x: lax.fori_loop(0, 3, lambda _, w: descend(tnp, w, x), w), donate_argnums=0)
    expected = w
    for _ in range(3):
        expected = descend(np, expected, x)
    close(step(tnp.asarray(w), x), expected)
    once = tvmfun.jit(lambda w, x: descend(tnp, w, x), donate_argnums=0)
    close(once(tnp.asarray(w), x), descend(np, w, x))
    assert "PackedRowsLoops" in kinds


def test_batches_by_vmap(kinds):
    x, y = draw(3, 400, 50), draw(3, 400, 80, seed=1)
    expected = np.swapaxes(x, 1, 2) @ y
    close(tvmfun.jit(tvmfun.vmap(lambda x, y: x.T @ y))(x, y), expected)
    close(tvmfun.jit(tvmfun.vmap(lambda x, y: x.T @ y, in_axes=(0, None)))(x, y[0]), np.swapaxes(x, 1, 2) @ y[0])
    assert "PackedRowsLoops" in kinds


def test_first_and_second_derivatives(kinds):
    x, w, v = draw(380, 100), draw(100, 132, seed=1), draw(100, 132, seed=2)

    def product(library, np_):
        def both(x, w, v):
            slope = library.grad(lambda w: np_.sum(np_.tanh(x @ w) ** 2))
            return slope(w), library.jvp(slope, (w,), (v,))[1]

        return both

    close(tvmfun.jit(product(tvmfun, tnp))(x, w, v), jax.jit(product(jax, jnp))(x, w, v), 1e-4)
    assert "PackedRowsLoops" in kinds


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_other_dtypes(kinds, dtype):
    x, y = draw(400, 35, dtype="float64") * 40, draw(400, 70, seed=1, dtype="float64") * 40
    x, y = x.astype(dtype), y.astype(dtype)
    expected = x.astype("float64").T @ y.astype("float64")
    result = tvmfun.jit(lambda x, y: tnp.matmul(x.T, y))(x, y)
    assert result.dtype == dtype
    tolerance = {"float16": 2e-3, "float64": 1e-13, "int32": 0}[dtype]
    np.testing.assert_allclose(np.asarray(result).astype("float64"), expected, rtol=tolerance, atol=tolerance * 400)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bfloat16", "float16"])
def test_narrow_floats_without_instructions_for_them(kinds, dtype, monkeypatch):
    if "avx512f" not in machine.Machine.of(target.host()).features:
        pytest.skip("runs code with AVX-512")
    monkeypatch.setitem(CACHES, 2, 2 << 20)  # from which deep panels are derived
    tvmfun.clear_caches()
    x, y = draw(400, 70).astype(dtype), draw(400, 90, seed=1).astype(dtype)
    product = lambda x, y: tnp.matmul(x.T, y, preferred_element_type="float32")
    result = tvmfun.jit(product, target={"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})(x, y)
    close(result, x.astype("float32").T @ y.astype("float32"))
    assert kinds == ["PackedRowsLoops"]
    kinds.clear()
    turned = np.ascontiguousarray(x.T)
    product = lambda x, y: tnp.matmul(x, y, preferred_element_type="float32")
    result = tvmfun.jit(product, target={"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})(turned, y)
    close(result, turned.astype("float32") @ y.astype("float32"))
    assert kinds == ["PackedRowsLoops"]


NARROW = [ml_dtypes.bfloat16, np.float16]
needs_conversions = pytest.mark.skipif(
    "avx512bf16" in machine.Machine.of(target.host()).features, reason="multiplies bfloat16 itself"
)


@needs_conversions
@pytest.mark.parametrize("dtype", NARROW, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [(70, 400, 130), (97, 517, 200), (515, 33, 129), (12, 1100, 333)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_rows_are_converted_once(kinds, dtype, sizes, layout):
    """Rows, terms and columns in whole tiles, vectors and blocks or not, with and without an epilogue."""
    m, k, n = sizes
    x, y = draw(m, k).astype(dtype), draw(*((k, n) if layout == "nn" else (n, k)), seed=1).astype(dtype)
    turned = lambda y: y if layout == "nn" else y.T
    product = lambda x, y: tnp.matmul(x, turned(y), preferred_element_type="float32")
    expected = x.astype("float32") @ turned(y.astype("float32"))
    close(tvmfun.jit(product)(x, y), expected, 1e-4)
    close(tvmfun.jit(lambda x, y: tnp.tanh(product(x, y)) + y[0, 0])(x, y), np.tanh(expected) + float(y[0, 0]), 1e-4)
    assert set(kinds) == {"PackedRowsLoops"}


@needs_conversions
def test_converted_rows_in_loops_batches_and_derivatives(kinds):
    """A loop whose carry is written in place, a batch by vmap, and both derivatives of a product of both arguments."""
    x, w = draw(150, 150).astype(NARROW[0]), draw(150, 150, seed=1).astype(NARROW[0])
    step = lambda w, x: (w - tnp.matmul(x, w, preferred_element_type="float32") * 0.25).astype("bfloat16")
    run = tvmfun.jit(lambda w, x: lax.fori_loop(0, 3, lambda _, w: step(w, x), w), donate_argnums=0)
    expected = w
    for _ in range(3):
        update = x.astype("float32") @ expected.astype("float32")
        expected = (expected.astype("float32") - update * 0.25).astype(NARROW[0])
    close(np.asarray(run(tnp.asarray(w), x)).astype("float32"), expected.astype("float32"), 2e-2)

    batch = np.stack([x, x[::-1], x * 2])
    wide = batch.astype("float32") @ w.astype("float32")
    product = lambda x, w: tnp.matmul(x, w, preferred_element_type="float32")
    close(tvmfun.jit(tvmfun.vmap(product, in_axes=(0, None)))(batch, w), wide, 1e-4)

    def slopes(library, np_):
        return library.grad(lambda x, w: np_.sum(np_.tanh(np_.matmul(x, w).astype("float32"))), argnums=(0, 1))

    found, wanted = tvmfun.jit(slopes(tvmfun, tnp))(x, w), jax.jit(slopes(jax, jnp))(x, w)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a).astype("float32"), np.asarray(b).astype("float32"), atol=0.1)
    assert "PackedRowsLoops" in kinds


def test_windows_with_strides_and_dilation(kinds):
    image, kernel = draw(4, 24, 24, 32), draw(3, 3, 32, 128, seed=1)

    def gradient(library, lax_, np_):
        convolve = lambda w: lax_.conv_general_dilated(
            np_.asarray(image), w, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return library.grad(lambda w: np_.sum(np_.sin(convolve(w))))

    close(tvmfun.jit(gradient(tvmfun, lax, tnp))(kernel), jax.jit(gradient(jax, jax.lax, jnp))(kernel), 1e-4)
    assert "PackedRowsLoops" in kinds


@pytest.mark.parametrize("rows", [2, 7, 32])
def test_recurrences_stream_their_matrix(kinds, rows):
    w, h = draw(1100, 1100), draw(rows, 1100, seed=1)
    step = tvmfun.jit(
        lambda w, h: lax.scan(lambda h, _: (tnp.tanh(h @ w), h[:, 0]), h, None, length=4), donate_argnums=1
    )
    expected, firsts = h, []
    for _ in range(4):
        firsts.append(expected[:, 0])
        expected = np.tanh(expected @ w)
    close(step(w, tnp.asarray(h)), (expected, np.stack(firsts)))
    close(tvmfun.jit(lambda w, h: (h @ w) * 2 + h)(w, h), (h @ w) * 2 + h)
    assert "StreamedLoops" in kinds


def test_sizes_known_at_call_time_alone():
    b = Dim("b", min=0)
    step = tvmfun.jit(lambda x, y: x.T @ y)
    compiled = step.lower(ShapeDtype((b, 40), "float32"), ShapeDtype((b, 70), "float32")).compile()
    for terms in (0, 1, 319, 700):
        x, y = draw(max(terms, 1), 40)[:terms], draw(max(terms, 1), 70, seed=1)[:terms]
        close(compiled(x, y), x.T @ y)


@pytest.mark.parametrize("shape", [(0, 40, 70), (400, 0, 70), (400, 40, 0)], ids=str)
def test_no_elements(shape):
    terms, rows, columns = shape
    result = tvmfun.jit(lambda x, y: x.T @ y)(np.ones((terms, rows), "float32"), np.ones((terms, columns), "float32"))
    assert np.array_equal(np.asarray(result), np.zeros((rows, columns)))
