"""Shapes and orders against NumPy, at once and traced."""

import numpy as np
import pytest

import tvmfun
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, DimensionError, ShapeError

X = np.arange(24, dtype="float32").reshape(2, 3, 4)
EMPTY = np.zeros((2, 0, 3), "int32")

CASES = {
    "reshape": [(X, (4, 6)), (X, -1), (X, (2, -1)), (EMPTY, (0, 5)), (EMPTY, (3, -1)), (X[:1, :1, :1], ())],
    "ravel": [(X,), (EMPTY,), (np.float32(1),)],
    "permute_dims": [(X, (2, 0, 1)), (X, (-1, 0, 1)), (EMPTY, (1, 0, 2)), (X[0, 0, 0], ())],
    "transpose": [(X,), (X, (1, 0, 2)), (EMPTY,)],
    "matrix_transpose": [(X,), (EMPTY,)],
    "swapaxes": [(X, 0, 2), (X, -1, 1)],
    "moveaxis": [(X, 0, -1), (X, (0, 1), (2, 0)), (X, -1, 0)],
    "expand_dims": [(X, 0), (X, -1), (X, (0, 2)), (np.float32(1), 0)],
    "squeeze": [(X[:1],), (X[:1], 0), (X[:1, :1], (0, 1)), (X[:, :1], -2)],
    "broadcast_to": [(X[0], (2, 3, 4)), (X, (2, 3, 4)), (np.float32(1), (2, 0)), (X[:, :1], (5, 2, 3, 4))],
    "flip": [(X,), (X, 0), (X, (0, -1)), (EMPTY,)],
    "roll": [(X, 1), (X, 1, 0), (X, -5, -1), (X, (1, 2), (0, 2)), (EMPTY, 1, 0), (X, 7), (X, 1, (0, 1)), (X, 0, 0)],
    "repeat": [(X, 2), (X, 3, 1), (X, 0, 0), (X, [1, 0, 2], 1), (X, [2], -1), (np.int32([1, 2]), np.array([2, 1]))],
    "tile": [(X, 2), (X, (2, 1, 1)), (X[0, 0], (2, 3)), (X, (2, 1, 1, 1)), (X, 0)],
    "concatenate": [((X, X),), ((X, X), 1), ((X, X[:, :1]), -2), ((X, X[:1]), None), ((EMPTY, EMPTY),)],
    "stack": [((X, X),), ((X, X), 1), ((X, X), -1), ([np.float32(1), np.float32(2)],)],
    "vstack": [((X[0, 0], X[1]),), ((X, X),)],
    "hstack": [((X, X),), ((X[0, 0], X[0, 1]),), ([np.float32(1), np.float32(2)],)],
    "split": [(X, 2), (X, 3, 1), (X, [1, 2], -1), (X, [2, 1], 2), (X, [-1, 9], 2)],
    "unstack": [(X,), (X, 1)],
    "broadcast_arrays": [(X, X[0, 0], np.float32(1))],
    "pad": [(X, 1), (X, (1, 2)), (X, ((0, 1), (2, 0), (0, 0))), (X, ((1, 0),)), (EMPTY, 1)],
}
NUMPY = {"unstack": lambda x, axis=0: tuple(np.moveaxis(x, axis, 0))}


@pytest.mark.quick("concatenate", "moveaxis", "squeeze")
@pytest.mark.parametrize("name", CASES)
def test_function_is_that_of_numpy(name):
    function, reference = getattr(tnp, name), NUMPY.get(name) or getattr(np, name)

    def run_all(arrays):
        results = []
        for case, array in zip(CASES[name], arrays, strict=True):
            rest = () if name == "broadcast_arrays" else case[1:]
            results.append(function(*case) if name == "broadcast_arrays" else function(array, *rest))
        return results

    arrays = [case[0] for case in CASES[name]]
    eager, traced = run_all(arrays), tvmfun.jit(run_all)(arrays)
    for case, first, second in zip(CASES[name], eager, traced, strict=True):
        expected = reference(*case)
        for result in (first, second):
            several = isinstance(expected, list | tuple)
            assert not several or len(expected) == len(result)
            for actual, wanted in zip(
                result if several else [result], expected if several else [expected], strict=True
            ):
                actual = np.asarray(actual)
                assert (actual.shape, actual.dtype) == (np.shape(wanted), wanted.dtype), case[1:]
                np.testing.assert_array_equal(actual, wanted, str(case[1:]))


ERRORS = {
    "reshape": [(X, (5, 5)), (X, (-1, -1)), (X, (5, -1)), (EMPTY, (0, -1)), (X, (1.5, 2)), (X, (-2, 3))],
    "permute_dims": [(X, (0, 1)), (X, (0, 0, 1)), (X, (0, 1, 3))],
    "matrix_transpose": [(X[0, 0],)],
    "swapaxes": [(X, 0, 3)],
    "moveaxis": [(X, 0, (1, 2)), (X, 5, 0), (X, (0, 0), (1, 2))],
    "expand_dims": [(X, 4), (X, (0, 0))],
    "squeeze": [(X, 0), (X[:1], 5)],
    "broadcast_to": [(X, (3, 4)), (X, (2, 3, 5)), (X, (-1, 3))],
    "flip": [(X, 3), (X, (0, 0)), (X, 0.5)],
    "roll": [(X, (1, 2, 3), (0, 1)), (X, 1, 4)],
    "repeat": [(X, -1), (X, 1.5), (X, [1, 2], 1), (X, [1, 2, 3], 0)],
    "tile": [(X, -1), (X, 0.5)],
    "concat": [((X, X[0]),), ((X, X[:, :1]),), ((X, X), 3), ((),)],
    "stack": [((X, X[:1]),), ((X, X), 5), ((),)],
    "split": [(X, 5), (X, 0), (X, 2, 7)],
    "unstack": [(X, 3)],
    "broadcast_arrays": [(X, X[:, :2])],
    "pad": [(X, -1), (X, (1, 2, 3)), (X, 1.5), (X, 1, "sideways"), (EMPTY, 1, "edge")],
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_function(name):
    for case in ERRORS[name]:
        with pytest.raises((ShapeError, ArgumentError), match=rf"^\[{name}\] "):
            getattr(tnp, name)(*case)


def test_keywords_of_the_array_api():
    assert tnp.concat([X, X], axis=1).shape == (2, 6, 4)
    assert tnp.stack([X, X], axis=-1).shape == (2, 3, 4, 2)
    assert tnp.expand_dims(X, axis=1).shape == (2, 1, 3, 4)
    assert tnp.flip(X, axis=0).shape == tnp.roll(X, 1, axis=0).shape == X.shape
    assert tnp.reshape(X, shape=(24,), copy=True).shape == tnp.repeat(X, 1, axis=None).shape == (24,)
    assert tnp.permute_dims(X, axes=(1, 0, 2)).shape == tnp.moveaxis(X, source=0, destination=1).shape == (3, 2, 4)


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_method_reshape_has_an_order(order):
    for shape in ((6, 4), (-1,)):
        np.testing.assert_array_equal(tnp.asarray(X).reshape(*shape, order=order), X.reshape(*shape, order=order))
        np.testing.assert_array_equal(tnp.asarray(X).reshape(shape, order=order), X.reshape(shape, order=order))


def test_sizes_and_axes_in_an_array():
    for sizes in (np.array([-1, 4]), tnp.array([-1, 4]), [tnp.array(6), 4]):
        assert tnp.reshape(X, sizes).shape == tnp.asarray(X).reshape(sizes).shape == (6, 4)
        assert tnp.zeros(tnp.abs(tnp.array([2, 4]))).shape == (2, 4)
    assert tnp.sum(X, axis=tnp.array([0, 2])).shape == (X.shape[1],)
    with pytest.raises(ArgumentError, match="the sizes must be integers"):
        tvmfun.jit(lambda sizes: tnp.reshape(X, sizes))(np.array([6, 4]))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_pad_with_elements(mode):
    widths = ((1, 2), (0, 0), (5, 0))
    for f in (lambda x: tnp.pad(x, widths, mode), tvmfun.jit(lambda x: tnp.pad(x, widths, mode))):
        np.testing.assert_array_equal(f(X), np.pad(X, widths, mode))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_pad_with_elements_of_any_axis(mode):
    """Wider than the axis or not, of a dynamic size, and what flows back to each element."""
    for shape, widths in (((1,), 2), ((2,), (3, 1)), ((4, 3), ((0, 2), (3, 0))), ((6, 1, 5), 1)):
        x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        expected = np.pad(x, widths, mode)
        weights = np.cos(np.arange(expected.size, dtype="float32")).reshape(expected.shape)
        weighted = lambda x, widths=widths, weights=weights: tnp.sum(tnp.pad(x, widths, mode) * weights)
        padded, gradient = tvmfun.jit(lambda x: (tnp.pad(x, widths, mode), tvmfun.grad(weighted)(x)))(x)  # noqa: B023
        np.testing.assert_array_equal(padded, expected)
        back = np.bincount(expected.astype(int).ravel(), weights.ravel(), x.size)
        np.testing.assert_allclose(gradient, back.reshape(shape), rtol=1e-5, atol=1e-5)
    of_columns = lambda least: tvmfun.jit(
        lambda x: tnp.pad(x, ((0, 0), (2, 3)), mode), dynamic_shapes={"x": {1: tvmfun.Dim("n", min=least)}}
    )
    for columns in (4, 5, 40):
        x = np.arange(3.0 * columns).reshape(3, columns)
        np.testing.assert_array_equal(of_columns(4)(x), np.pad(x, ((0, 0), (2, 3)), mode))
    if mode != "edge":
        with pytest.raises(DimensionError, match=f"mode '{mode}' needs at least . elements along axis 1"):
            of_columns(1)(x)


def test_pad_with_a_value():
    np.testing.assert_array_equal(tnp.pad(X, 1, constant_values=7), np.pad(X, 1, constant_values=7))
    assert np.isinf(np.asarray(tnp.pad(X, 1, constant_values=-np.inf))[0]).all()
    value = tvmfun.jit(lambda x, v: tnp.pad(x, 1, constant_values=v))(X, 2)
    assert (value.dtype, float(value[0, 0, 0])) == (np.float32, 2)


def test_joining_promotes():
    assert tnp.concat([np.ones(1, "int8"), np.ones(1, "float32")]).dtype == "float32"
    assert tnp.stack([np.ones(1, "int8"), 1.5 * tnp.ones(1, "bfloat16")]).dtype == "bfloat16"
    assert tnp.hstack([tnp.ones(2), 1]).shape == (3,)


def test_an_array_in_the_shape_it_has_is_returned_as_it_is():
    x = tnp.asarray(X)
    assert tnp.reshape(x, X.shape) is tnp.permute_dims(x, (0, 1, 2)) is tnp.broadcast_to(x, X.shape) is x
