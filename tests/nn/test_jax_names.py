"""The functions of ``jax.nn`` by their names in ``tvmfun.nn``: values, dtypes and derivatives."""

import jax
import numpy as np
import pytest
from support.oracle import x64

import tvmfun
from tvmfun import nn
from tvmfun.errors import DtypeError, ShapeError

#: Names of ``jax.nn`` that are not here, and why.
NOT_HERE = {
    "get_scaled_dot_general_config": "describes numbers of 8 and 4 bits, which the kernels here do not have",
    "scaled_dot_general": "rounds its factors to 8 or 4 bits, which the kernels here do not have",
}
X = np.random.default_rng(0).normal(size=(3, 4), scale=2).astype("float32")
MASK = np.array([[True, False, True, True], [True] * 4, [False, False, True, False]])
B = np.array([1.0, -2.0, 0.0, 0.5], "float32")

POINTWISE = (
    *("celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu"),
    *("log_sigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softplus", "sparse_plus"),
    *("sparse_sigmoid", "squareplus", "swish", "tanh"),
)
CASES = {
    **{name: lambda n, x, name=name: getattr(n, name)(x) for name in POINTWISE},
    "gelu-exact": lambda n, x: n.gelu(x, approximate=False),
    "log1mexp": lambda n, x: n.log1mexp(abs(x)),
    "softmax": lambda n, x: n.softmax(x, axis=0),
    "softmax-all": lambda n, x: n.softmax(x, axis=None),
    "softmax-where": lambda n, x: n.softmax(x, axis=1, where=MASK),
    "log_softmax-axes": lambda n, x: n.log_softmax(x, axis=(0, 1)),
    "logsumexp": lambda n, x: n.logsumexp(x, axis=1, keepdims=True),
    "logsumexp-where": lambda n, x: n.logsumexp(x, axis=0, where=MASK),
    "logsumexp-b": lambda n, x: n.logsumexp(x, axis=0, b=abs(B)),
    "logsumexp-sign": lambda n, x: n.logsumexp(x, axis=1, b=B, return_sign=True)[0],
    "logmeanexp": lambda n, x: n.logmeanexp(x),
    "logmeanexp-where": lambda n, x: n.logmeanexp(x, axis=1, where=MASK),
    "standardize": lambda n, x: n.standardize(x, axis=0),
    "standardize-where": lambda n, x: n.standardize(x, axis=1, where=MASK, epsilon=0.5),
}


def public(module):
    return {name for name in dir(module) if not name.startswith("_")}


def test_every_name_is_here_or_has_a_reason():
    assert public(jax.nn) - set(dir(nn)) == set(NOT_HERE)
    assert public(jax.nn.initializers) <= set(dir(nn.initializers))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_derivatives(dtype):
    x = X.astype(dtype)

    def both(module, n):
        def sums(x):
            return {name: (case(n, x) ** 2).sum() for name, case in CASES.items()}

        return module.jit(lambda x: ({k: case(n, x) for k, case in CASES.items()}, module.jacrev(sums)(x)))(x)

    with x64(dtype == "float64"):
        expected = jax.device_get(both(jax, jax.nn))
    found = tvmfun.device_get(both(tvmfun, nn))
    tolerance = 2e-5 if dtype == "float32" else 1e-11
    for name in CASES:
        for ours, theirs in zip(found, expected, strict=True):
            assert ours[name].dtype == theirs[name].dtype and ours[name].shape == theirs[name].shape, name
            scale = np.abs(theirs[name][np.isfinite(theirs[name])]).max(initial=1)
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=tolerance * scale, err_msg=name)


def test_scaled_matmul():
    x, scales = np.stack([X, X + 1]), np.stack([B, B + 1]).reshape(2, 2, 2)
    args = x, x[:, :2], np.concatenate([scales, scales], axis=1)[:, :3], scales
    a, c, s, t = (np.repeat(x, 2, axis=2) if x.shape[2] == 2 else x for x in args)  # JAX has none for CPUs
    formula = np.einsum("bmk,bmk,bnk,bnk->bmn", a, s, c, t)
    np.testing.assert_allclose(tvmfun.jit(nn.scaled_matmul)(*args), formula, rtol=1e-5, atol=1e-5)
    assert nn.scaled_matmul(*args, preferred_element_type="bfloat16").dtype == "bfloat16"


@pytest.mark.slow
def test_rows_without_elements_that_count():
    none = np.zeros((2, 3), bool)
    x = np.ones((2, 3), "float32")
    assert not np.asarray(nn.softmax(x, where=none)).any()
    assert np.isneginf(np.asarray(nn.log_softmax(x, where=none))).all()
    assert np.isneginf(np.asarray(nn.logsumexp(x, axis=1, where=none))).all()
    assert not np.asarray(tvmfun.grad(lambda x: nn.softmax(x, where=none).sum())(x)).any()


@pytest.mark.slow
def test_logarithms_at_special_points():
    for x in ([np.inf, -np.inf], [np.nan, 0.0], [-np.inf, -np.inf], [1e4, -1e4], [0.0]):
        x = np.array(x, "float32")
        np.testing.assert_array_equal(nn.logsumexp(x), jax.nn.logsumexp(x))
        np.testing.assert_allclose(nn.log1mexp(abs(x)), jax.nn.log1mexp(abs(x)))
    ours, sign = nn.logsumexp(np.array([1.0, 2.0], "float32"), b=np.array([1.0, -1.0], "float32"), return_sign=True)
    theirs = jax.nn.logsumexp(np.array([1.0, 2.0], "float32"), b=np.array([1.0, -1.0], "float32"), return_sign=True)
    np.testing.assert_allclose((ours, sign), theirs, rtol=1e-6)
    assert np.isnan(nn.logsumexp(np.ones(2, "float32"), b=np.array([1.0, -2.0], "float32")))


@pytest.mark.parametrize("axis", [-1, 0, 1, -3])
def test_one_hot(axis):
    labels = np.array([[0, 2, 5], [-1, 1, 0]])
    for dtype in (None, "int32", "bfloat16"):
        ours = nn.one_hot(labels, 3, dtype=dtype, axis=axis)
        theirs = jax.nn.one_hot(labels, 3, dtype=dtype, axis=axis)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_wrong_arguments():
    with pytest.raises(ShapeError, match="axis"):
        nn.one_hot(np.array([1]), 3, axis=2)
    with pytest.raises(DtypeError, match="integers"):
        nn.one_hot(np.ones(2), 3)
    with pytest.raises(ShapeError, match="scaled_matmul"):
        nn.scaled_matmul(np.ones((1, 2, 3)), np.ones((1, 2, 3)), np.ones((1, 2, 2)), np.ones((1, 2, 2)))


def test_initializers_are_those_of_init():
    assert nn.initializers.glorot_uniform is nn.init.glorot_uniform
