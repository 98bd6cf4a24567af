"""Initializers against ``jax.nn.initializers``: the same numbers for the same key."""

import inspect

import jax
import numpy as np
import pytest
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, random
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.nn import init

# Each takes the module, ours or JAX's, and makes the same initializer from it.
INITIALIZERS = {
    "zeros": (lambda o: o.zeros, (3, 4)),
    "ones": (lambda o: o.ones, (0, 4)),
    "constant": (lambda o: o.constant(0.3), (2, 3)),
    "constant_array": (lambda o: o.constant(np.asarray([1.0, 2.0, 3.0], "float32")), (2, 3)),
    "uniform": (lambda o: o.uniform(0.7), (4, 9)),
    "normal": (lambda o: o.normal(), (4, 9)),
    "normal_scalar": (lambda o: o.normal(2.0), ()),
    "truncated_normal": (lambda o: o.truncated_normal(0.5), (4, 9)),
    "truncated_normal_bounds": (lambda o: o.truncated_normal(0.5, lower=-0.5, upper=3.0), (4, 9)),
    "variance_fan_out": (lambda o: o.variance_scaling(0.5, "fan_out", "normal"), (4, 9)),
    "variance_fan_geo_avg": (lambda o: o.variance_scaling(3.0, "fan_geo_avg", "uniform"), (4, 9)),
    "variance_axes": (
        lambda o: o.variance_scaling(1.0, "fan_in", "normal", in_axis=(0, 1), out_axis=(2, -1), batch_axis=3),
        (2, 3, 2, 1, 6),
    ),
    "variance_vector": (lambda o: o.variance_scaling(1.0, "fan_in", "normal", in_axis=0, out_axis=0), (6,)),
    "glorot_uniform": (lambda o: o.glorot_uniform(), (4, 9)),
    "glorot_normal": (lambda o: o.glorot_normal(), (2, 4, 9)),
    "xavier_uniform": (lambda o: o.xavier_uniform(), (4, 9)),
    "xavier_normal": (lambda o: o.xavier_normal(-1, -2), (4, 9)),
    "lecun_uniform": (lambda o: o.lecun_uniform(), (4, 9)),
    "lecun_normal": (lambda o: o.lecun_normal(), (4, 9)),
    "he_uniform": (lambda o: o.he_uniform(), (4, 9)),
    "he_normal": (lambda o: o.he_normal(batch_axis=0), (2, 4, 9)),
    "kaiming_uniform": (lambda o: o.kaiming_uniform(), (4, 9)),
    "kaiming_normal": (lambda o: o.kaiming_normal(), (4, 9)),
    "orthogonal_tall": (lambda o: o.orthogonal(), (7, 4)),
    "orthogonal_wide": (lambda o: o.orthogonal(2.0), (4, 7)),
    "orthogonal_axis": (lambda o: o.orthogonal(column_axis=1), (2, 5, 3)),
    "orthogonal_empty": (lambda o: o.orthogonal(), (0, 3)),
    "delta_orthogonal": (lambda o: o.delta_orthogonal(), (3, 4, 5)),
    "delta_orthogonal_2d": (lambda o: o.delta_orthogonal(0.5), (3, 2, 4, 4)),
    "delta_orthogonal_3d": (lambda o: o.delta_orthogonal(), (2, 3, 1, 2, 3)),
}


IN_FLOAT64 = ["constant", "uniform", "normal", "truncated_normal", "he_normal", "glorot_uniform", "delta_orthogonal"]


@pytest.mark.quick("normal-float32")
@pytest.mark.parametrize(
    ("name", "dtype"), [(n, "float32") for n in INITIALIZERS] + [(n, "float64") for n in IN_FLOAT64]
)
def test_numbers_are_those_of_jax(name, dtype):
    make, shape = INITIALIZERS[name]
    with x64(dtype == "float64"):
        expected = np.asarray(make(jax.nn.initializers)(jax.random.PRNGKey(7), shape, dtype))
    actual = np.asarray(make(init)(random.key(7), shape, dtype))
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    # Some units in the last place: erf_inv and the decompositions round differently.
    epsilon = np.finfo(dtype).eps * (64 if "orthogonal" in name or dtype == "float64" else 8)
    np.testing.assert_allclose(actual, expected, rtol=epsilon, atol=epsilon * np.abs(expected).max(initial=0))


def test_names_are_those_of_jax():
    assert set(init.__all__) == {name for name in dir(jax.nn.initializers) if not name.startswith("_")}
    for name in init.__all__:
        ours, theirs = (list(inspect.signature(getattr(o, name)).parameters) for o in (init, jax.nn.initializers))
        if name != "Initializer":
            assert ours == [parameter for parameter in theirs if parameter != "out_sharding"]


@pytest.mark.quick("orthogonal_tall-float16")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["normal", "he_normal", "glorot_uniform", "orthogonal_tall"])
def test_half_precision(name, dtype):
    make, shape = INITIALIZERS[name]
    wide = np.asarray(make(init)(random.key(7), shape, dtype), "float64")
    if name != "orthogonal_tall":
        expected = make(jax.nn.initializers)(jax.random.PRNGKey(7), shape, dtype)
        epsilon = float(tnp.finfo(dtype).eps)
        np.testing.assert_allclose(wide, np.asarray(expected, "float64"), rtol=2 * epsilon, atol=epsilon)
    else:  # JAX decomposes no halves
        np.testing.assert_allclose(wide.T @ wide, np.eye(4), atol=0.02)
    assert make(init)(random.key(7), shape, dtype).dtype == dtype


@pytest.mark.slow
def test_dtype_of_the_maker_and_of_the_call():
    make = init.normal(dtype="float64")
    assert make(random.key(0), (2,)).dtype == "float64"
    assert make(random.key(0), (2,), "float32").dtype == "float32"
    assert init.normal()(random.key(0), (2,)).dtype == "float32"


@pytest.mark.slow
def test_under_jit_and_vmap():
    keys = random.split(random.key(0), 3)
    stacked = tvmfun.jit(tvmfun.vmap(lambda key: init.he_normal()(key, (4, 5))))(keys)
    for i in range(3):
        np.testing.assert_array_equal(stacked[i], init.he_normal()(keys[i], (4, 5)))


def test_truncated_normal_with_arrays_of_bounds():
    lower, upper = np.asarray([[-1.0], [0.5]], "float32"), np.asarray([1.0, 2.0, 0.6], "float32")
    expected = jax.random.truncated_normal(jax.random.PRNGKey(3), lower, upper)
    actual = random.truncated_normal(random.key(3), lower, upper)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    with pytest.raises(ShapeError, match=r"\[truncated_normal\]"):
        random.truncated_normal(random.key(3), lower, upper, (2,))


@pytest.mark.slow
def test_layers_take_initializers():
    key = random.key(1)
    layer = nn.Linear(4, 3, key=key, weight_init=init.he_normal(), bias_init=init.constant(0.5))
    np.testing.assert_array_equal(layer.weight, init.he_normal()(random.split(key)[0], (4, 3)))
    np.testing.assert_array_equal(layer.bias, np.full(3, 0.5, "float32"))
    half = nn.Linear(4, 3, key=key, bias_init=init.zeros, dtype="bfloat16")
    np.testing.assert_array_equal(half.weight, nn.Linear(4, 3, key=key, dtype="bfloat16").weight)
    bias = np.asarray(half.bias)
    assert bias.dtype == "bfloat16" and not bias.any()
    plain, conv = nn.Conv2d(2, 4, 3, key=key), nn.Conv2d(2, 4, 3, key=key, weight_init=init.delta_orthogonal())
    np.testing.assert_array_equal(conv.bias, plain.bias)
    assert np.count_nonzero(np.asarray(conv.weight).any(axis=(2, 3))) == 1
    assert nn.Linear(4, 3, key=key, bias=False, bias_init=init.ones).bias is None
    with pytest.raises(ShapeError, match=r"\[Linear\] the initializer must make a weight of shape \(4, 3\)"):
        nn.Linear(4, 3, key=key, weight_init=lambda key, shape, dtype: tnp.zeros((3, 4), dtype))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: init.variance_scaling(1.0, "fan", "normal"), ArgumentError, r"the mode is unknown, got 'fan'"),
        (lambda: init.variance_scaling(1.0, "fan_in", "cauchy"), ArgumentError, "the distribution is unknown"),
        (lambda: init.he_normal()(random.key(0), (3,)), ShapeError, "the shape must have the axis -2, got"),
        (lambda: init.orthogonal()(random.key(0), (3,)), ShapeError, "must have two axes or more"),
        (lambda: init.delta_orthogonal()(random.key(0), (3, 2)), ShapeError, "three, four or five"),
        (lambda: init.delta_orthogonal()(random.key(0), (3, 4, 2)), ShapeError, "no more inputs"),
        (lambda: init.normal()(random.key(0), (3,), "int32"), DtypeError, r"\[normal\] the dtype must be a float"),
    ],
)
def test_mistakes(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_scales_that_are_traced():
    made = {
        "normal": lambda o, s: o.normal(s),
        "uniform": lambda o, s: o.uniform(s),
        "truncated_normal": lambda o, s: o.truncated_normal(s),
        "orthogonal": lambda o, s: o.orthogonal(s),
        **{
            kind: lambda o, s, kind=kind: o.variance_scaling(s, "fan_in", kind)
            for kind in ("normal", "uniform", "truncated_normal")
        },
    }
    for make in made.values():
        fixed = make(init, 2.5)(random.key(3), (4, 3))
        traced = tvmfun.jit(lambda s, make=make: make(init, s)(random.key(3), (4, 3)))
        np.testing.assert_array_equal(traced(2.5), fixed)
        np.testing.assert_array_equal(make(init, tnp.asarray(2.5))(random.key(3), (4, 3)), fixed)
        by_scale = tvmfun.jacobian(lambda s, make=make: make(init, s)(random.key(3), (4, 3)))(2.5)
        assert np.isfinite(by_scale).all() and np.abs(by_scale).min() > 0
