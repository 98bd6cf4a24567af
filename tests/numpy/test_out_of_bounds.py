"""Indices outside of arrays, indices named twice, and NaN in sorts: values and gradients as in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError

X = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0], "float32")
TABLE = np.arange(1.0, 13.0, dtype="float32").reshape(4, 3)
OUTSIDE = np.asarray([-1, -7, 0, 4, 5, 9, 2], "int32")
GATHERED = ((1,), (0,), (0,))
WINDOWS = ((1,), (), (0,))


class Ours:
    np, lax = tnp, lax


class Theirs:
    np, lax = jnp, jax.lax


def gather(m: Any, x: Any, places: Any, numbers: tuple, sizes: tuple, mode: str | None) -> Any:
    return m.lax.gather(x, places[:, None], m.lax.GatherDimensionNumbers(*numbers), sizes, mode=mode)


READS: dict[str, tuple[Callable, np.ndarray]] = {
    "x[places]": (lambda m, x, places: x[places], X),
    "x[:, places]": (lambda m, x, places: x[:, places], TABLE),
    "x[places, 1:]": (lambda m, x, places: x[places, 1:], TABLE),
    "x[places, places]": (lambda m, x, places: x[places, places], TABLE),
    # A scalar index must be traced: a constant one out of bounds is an error.
    "x[place]": (lambda m, x, places: x[places[5]], TABLE),
    "x[place, 0]": (lambda m, x, places: x[places[1], 0], TABLE),
    **{
        f"x.at[places].get({mode})": (lambda m, x, places, mode=mode: x.at[places].get(mode=mode), X)
        for mode in (None, "clip", "fill", "promise_in_bounds")
    },
    **{
        f"take {mode}": (lambda m, x, places, mode=mode: m.np.take(x, places, axis=0, mode=mode), TABLE)
        for mode in (None, "clip", "fill", "wrap")
    },
    **{
        f"take_along_axis {mode}": (lambda m, x, places, mode=mode: m.np.take_along_axis(x, places, 0, mode=mode), X)
        for mode in (None, "clip", "fill")
    },
    **{
        f"gather {mode}": (lambda m, x, places, mode=mode: gather(m, x, places, GATHERED, (1, 3), mode), TABLE)
        for mode in (None, "clip", "fill", "promise_in_bounds")
    },
    **{
        f"gather windows {mode}": (lambda m, x, places, mode=mode: gather(m, x, places, WINDOWS, (2,), mode), X)
        for mode in (None, "clip", "fill", "promise_in_bounds")
    },
}


@pytest.mark.quick(
    "x.at?places?.get(fill)-True",
    "x.at?places?.get(None)-True",
    "x?places, 1:?-True",
    "x.at?places?.get(promise_in_bounds)-True",
)
@pytest.mark.parametrize(
    ("name", "traced"), [(n, t) for n in READS for t in (False, True) if t or "place" not in n.replace("places", "")]
)
def test_reads_outside_are_those_of_jax(name: str, traced: bool):
    function, x = READS[name]

    def both(m: Any, module: Any, x: Any, places: Any) -> tuple:
        weighted = lambda x: m.np.sum(
            (w := function(m, x, places)) * m.np.reshape(m.np.arange(1.0, w.size + 1), w.shape)
        )
        return function(m, x, places), module.grad(weighted)(x)

    expected = jax.jit(lambda x, places: both(Theirs, jax, x, places))(x, OUTSIDE)
    if traced:
        got = tvmfun.jit(lambda x, places: both(Ours, tvmfun, x, places))(x, OUTSIDE)
    else:
        got = both(Ours, tvmfun, tnp.asarray(x), OUTSIDE)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.quick("scatter_add-promise_in_bounds", "scatter-drop", "scatter_min-drop")
@pytest.mark.parametrize("mode", [None, "clip", "drop", "promise_in_bounds"])
@pytest.mark.parametrize("name", ["scatter", "scatter_add", "scatter_min", "scatter_max", "scatter_mul"])
def test_writes_outside_are_those_of_jax(name: str, mode: str | None):
    def write(m: Any, x: Any, updates: Any) -> Any:
        numbers = m.lax.ScatterDimensionNumbers((), (0,), (0,))
        return getattr(m.lax, name)(x, m.np.asarray([[1], [9], [-1], [-9]]), updates, numbers, mode=mode)

    updates = np.arange(10.0, 14.0, dtype="float32")
    np.testing.assert_array_equal(write(Ours, X, updates), write(Theirs, jnp.asarray(X), jnp.asarray(updates)))


def test_places_do_not_wrap_around():
    with pytest.raises(ArgumentError, match="do not wrap around"):
        tnp.asarray(X).at[OUTSIDE].get(mode="wrap")


@pytest.mark.slow
def test_a_function_is_applied_as_often_as_a_place_is_named():
    places = np.asarray([1, 1, 2, -4, 7], "int32")
    function = lambda x: 2 * x + 1
    for mode in (None, "clip", "drop"):
        expected = jnp.asarray(X).at[places].apply(function, mode=mode)
        apply = lambda x, places: x.at[places].apply(function, mode=mode)  # noqa: B023
        np.testing.assert_array_equal(apply(tnp.asarray(X), places), expected)
        np.testing.assert_array_equal(tvmfun.jit(lambda x: apply(x, places))(X), expected)  # noqa: B023
        np.testing.assert_array_equal(tvmfun.jit(apply)(X, places), expected)
    columns = lambda x, places: x.at[1:, places].apply(function)
    expected = columns(jnp.asarray(TABLE), np.asarray([2, 2, 0]))
    np.testing.assert_array_equal(tvmfun.jit(columns)(TABLE, np.asarray([2, 2, 0])), expected)
    assert tnp.asarray(X).at[places].apply(function, unique_indices=True).tolist() == [1, 5, 7, 4, 5]
    square = lambda x, places: tnp.sum(x.at[places].apply(lambda x: x * x))
    want = [1, 8 * 2.0**7, 2 * 3, 1, 1]
    np.testing.assert_array_equal(tvmfun.grad(square)(X, places), want)
    np.testing.assert_array_equal(tvmfun.jit(tvmfun.grad(square))(X, places), want)
    batched = tvmfun.vmap(lambda x, i: x.at[i].apply(function))(np.stack([X, X]), np.asarray([[0, 0], [1, 2]]))
    np.testing.assert_array_equal(batched, [[7, 2, 3, 4, 5], [1, 5, 7, 4, 5]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["min", "max"])
def test_extrema_leave_the_gradient_of_other_elements(name: str):
    x = np.asarray([np.inf, 2.0, np.nan, 4.0, -np.inf], "float32")
    values = np.asarray([2.0, 1.0, 3.0], "float32")

    def gradients(module: Any, numpy: Any) -> Any:
        weights = np.arange(1.0, 6.0, dtype="float32")
        update = lambda x, values: getattr(x.at[np.asarray([1, 1, 3])], name)(values)
        return module.grad(lambda x, values: numpy.sum(update(x, values) * weights), (0, 1))(x, values)

    for ours, theirs in zip(gradients(tvmfun, tnp), gradients(jax, jnp), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # Nobody gets the gradient of an update that is NaN.
    put = lambda values: tnp.sum(getattr(tnp.asarray(X).at[np.asarray([1, 1])], name)(values))
    np.testing.assert_array_equal(tvmfun.grad(put)(np.asarray([np.nan, 1.0])), [0, 0])


def test_updates_that_are_dropped_have_no_gradient():
    values = np.asarray([np.nan, np.inf, 3.0, 0.0], "float32")
    update = lambda x, values: tnp.sum(x.at[np.asarray([9, -9, 1, 1])].multiply(values))
    for ours, theirs in zip(tvmfun.grad(update, (0, 1))(X, values), ([1, 0, 1, 1, 1], [0, 0, 0, 6]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_are_sorted_with_the_derivatives_of_jax(descending: bool):
    x, weights = np.asarray([2.0, 1, 2, 1, 3, 2], "float32"), np.arange(1.0, 7.0, dtype="float32")

    def gradient(module: Any, numpy: Any) -> Any:
        return module.grad(lambda x: numpy.sum(numpy.sort(x, descending=descending) * weights))(x)

    np.testing.assert_array_equal(gradient(tvmfun, tnp), gradient(jax, jnp))


@pytest.mark.quick("False-bool")
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_sorts_are_stable_and_nan_is_the_largest(dtype: str, descending: bool):
    x = np.asarray([[1, 0, 3, 1, 0, 2, 3, 0], [0, 1, 1, 0, 3, 3, 2, 2]]).astype(dtype)
    if dtype == "float32":
        x[:, 1:3] = np.nan
        x[0, 5] = -np.inf
    for axis in (0, 1, None):
        options = {"axis": axis, "descending": descending}
        expected = jnp.argsort(jnp.asarray(x), **options)
        np.testing.assert_array_equal(tnp.argsort(x, **options), expected)
        np.testing.assert_array_equal(tvmfun.jit(lambda x: tnp.argsort(x, **options))(x), expected)  # noqa: B023
        np.testing.assert_array_equal(tnp.sort(x, **options), jnp.sort(jnp.asarray(x), **options))


@pytest.mark.quick("correlate")
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_sliding_products_are_floats(name: str):
    x, v = np.asarray([1, 2, 3], "int32"), np.asarray([1, 10], "int8")
    for left, right in ((x, v), (v, v), (x > 1, v > 1), (x, v.astype("float16"))):
        ours, theirs = getattr(tnp, name)(left, right), getattr(jnp, name)(left, right)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
