"""Arithmetic on dynamic sizes whose value exceeds int32: exact as a float, an error as an integer."""

import shutil

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, errors, export, jit, lax
from tvmfun.core import dims

N = {"x": {0: "n"}}
NUMBERS = {
    "product": lambda x: tnp.sum(x) / (x.shape[0] * 50257 * 1000),
    "pairs": lambda x: tnp.sum(x) / (x.shape[0] * (x.shape[0] - 1)),
    "cube": lambda x: x.shape[0] ** 3 + tnp.sum(x),
    "quotient": lambda x: tnp.sum(x) * (x.shape[0] ** 3 // 7),
    "float": lambda x: 0.5 * x.shape[0] ** 2 - tnp.sum(x),
    "root": lambda x: tnp.sqrt(1.0 * x.shape[0] ** 2 * x.shape[0]) * x[0],
    "negative": lambda x: tnp.sum(x) + (1 - 2 * x.shape[0] ** 2),
    "gradient": tvmfun.grad(lambda x: tnp.sum(x**2) / (x.shape[0] ** 2 * 3)),
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c / (x.shape[0] ** 2), tnp.sum(x)),
    "batched": lambda x: tvmfun.vmap(lambda row: row / x.shape[0] ** 2)(x),
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NUMBERS)
def test_floats_are_those_of_static_sizes(name, dtype):
    function = NUMBERS[name]
    dynamic = jit(function, dynamic_shapes=N)
    for n in (50_000, 3):
        x = np.linspace(0.5, 1.5, n).astype(dtype)
        ours, expected = dynamic(x), jit(function)(x)
        assert ours.aval == expected.aval
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(np.asarray(ours), np.asarray(expected), tolerance, tolerance)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tnp.asarray(x.shape[0] ** 3),
        lambda x: (x > 0).astype("int32") + x.shape[0] ** 3,
        lambda x: tnp.asarray(x.shape[0] ** 3 // 7),
        lambda x: lax.fori_loop(0, 2, lambda i, c: c + x.shape[0] ** 3, 0),
        lambda x: lax.cond(x[0] > 0, lambda: x.shape[0] ** 3, lambda: 0),
    ],
    ids=["alone", "beside integers", "quotient", "loop", "branch"],
)
def test_integers_that_do_not_fit_are_an_error(function):
    dynamic = jit(function, dynamic_shapes=N)
    np.testing.assert_array_equal(np.asarray(dynamic(np.ones(10, "float32"))), function(np.ones(10, "float32")))
    with pytest.raises(errors.ShapeError, match=r"int32, must be less than 2\*\*31, got n = 2000"):
        dynamic(np.ones(2000, "float32"))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="an export needs a C compiler")
def test_exported_functions(tmp_path):
    def function(x):
        return tnp.sum(x) / (x.shape[0] * 50257 * 1000), tnp.asarray(x.shape[0] ** 2)

    compiled = jit(function, dynamic_shapes=N).lower(ShapeDtype(("n",), "float32")).compile()
    compiled.export(tmp_path / "step.so")
    step = export.load(tmp_path / "step.so")
    mean, square = step(np.ones(40_000, "float32"))
    np.testing.assert_allclose(mean, 1 / 50257e3, 1e-6)
    assert square == 40_000**2
    with pytest.raises(errors.ExportError, match=r"2\*\*31"):
        step(np.ones(50_000, "float32"))


@pytest.mark.slow
def test_memory_is_reported_for_numpys_integers():
    compiled = jit(lambda x: x @ x.T, dynamic_shapes={"x": ("a", "b")}).lower(ShapeDtype((4, 5), "float32")).compile()
    sizes = {"a": 100, "b": 90}
    expected = compiled.memory_analysis(sizes)
    assert expected.arguments == 4 * 100 * 90
    assert compiled.memory_analysis({name: np.int8(size) for name, size in sizes.items()}) == expected


def test_which_sizes_may_be_long():
    a, b = Dim("a"), Dim("b")
    assert not any(map(dims.may_be_long, (3, a, a - 1, a + 7, a // 2, (a - 1) // b)))
    assert all(map(dims.may_be_long, (2 * a, a + b, a * b, 7 - a, a * a // b, (3 * a) // 2)))
