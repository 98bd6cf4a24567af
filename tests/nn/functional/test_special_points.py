"""Activations and losses where something is special: at 0, ties, infinities and the ends of pieces, to order 3.

Derivatives are compared with JAX's, or with finite differences in float64 where JAX has no such function or is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import oracle
from support.derivatives import check, orders

import tvmfun
from tvmfun import nn, random
from tvmfun import numpy as tnp
from tvmfun.nn import functional, losses

#: What JAX lacks, or does otherwise, in its words.
IN_JAX: dict[str, Callable] = {
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
    # The other way to write it has a quarter of the second derivative at 0, where it jumps.
    "celu": lambda x: jnp.where(x > 0, x, jnp.expm1(jnp.where(x > 0, 0, x))),
    "hardshrink": lambda x: jnp.where(jnp.abs(x) > 0.5, x, 0.0),
    "softshrink": lambda x: jnp.where(x > 0.5, x - 0.5, jnp.where(x < -0.5, x + 0.5, 0.0)),
    "tanhshrink": lambda x: x - jnp.tanh(x),
    "prelu": lambda x: jnp.where(x >= 0, x, 0.25 * x),
    "softmax": lambda x: jax.nn.softmax(jnp.stack([x, -x, 0 * x]), axis=0)[0],
    "log_softmax": lambda x: jax.nn.log_softmax(jnp.stack([x, -x, 0 * x]), axis=0)[0],
    "logsumexp": lambda x: jax.nn.logsumexp(jnp.stack([x, -x, 0 * x]), axis=0),
    "glu": lambda x: x * jax.nn.sigmoid(x),
}
OURS: dict[str, Callable] = {
    "gelu_exact": lambda x: functional.gelu(x, approximate=False),
    "prelu": lambda x: functional.prelu(x[:, None], np.full(1, 0.25))[:, 0],
    "softmax": lambda x: functional.softmax(tnp.stack([x, -x, 0 * x]), axis=0)[0],
    "log_softmax": lambda x: functional.log_softmax(tnp.stack([x, -x, 0 * x]), axis=0)[0],
    "logsumexp": lambda x: functional.logsumexp(tnp.stack([x, -x, 0 * x]), axis=0),
    "glu": lambda x: functional.glu(tnp.stack([x, x], axis=-1))[:, 0],
}
ACTIVATIONS = [
    *("celu", "elu", "gelu", "gelu_exact", "glu", "hard_sigmoid", "hard_swish", "hard_tanh", "hardshrink", "identity"),
    *("leaky_relu", "log1mexp", "log_sigmoid", "log_softmax", "logsumexp", "mish", "prelu", "relu", "relu6", "selu"),
    *("sigmoid", "silu", "soft_sign", "softmax", "softplus", "softshrink", "sparse_plus", "sparse_sigmoid"),
    *("squareplus", "tanh", "tanhshrink"),
]
POINTS = np.asarray(
    [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, -2.5, 1e-3, 20.0, -20.0, 1e3, -1e3, np.inf, -np.inf, np.nan]
)


def test_every_activation_is_here():
    from tvmfun.nn.functional import activations

    second_names = {"hard_silu", "swish"}
    assert set(activations.__all__) - second_names <= set(ACTIVATIONS)


@pytest.mark.quick("celu", "identity", "selu")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_the_derivatives_of_jax_to_order_three(name: str):
    ours, theirs = OURS.get(name) or getattr(functional, name), IN_JAX.get(name) or getattr(jax.nn, name)
    with oracle.x64():
        expected = orders(jax, jnp, theirs, 3)(jnp.asarray(POINTS))
    got = orders(tvmfun, tnp, ours, 3)(POINTS)
    for order, (x, y) in enumerate(zip(map(np.asarray, got), map(np.asarray, expected), strict=True)):
        # An infinity times 0 is not a derivative, and in single precision or with another formula there may be one.
        known = ~np.isnan(y) if order else np.full(y.shape, True)
        np.testing.assert_allclose(x[known], y[known], 1e-9, 1e-10, err_msg=f"order {order}")


SMOOTH = ("gelu", "log_sigmoid", "log_softmax", "logsumexp", "mish", "sigmoid", "silu", "softmax", "softplus", "tanh")


@pytest.mark.quick("mish")
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_activations_have_derivatives_at_ties(name: str):
    function = OURS.get(name) or getattr(functional, name)
    check(function, [np.asarray([0.0, 0.0, 1.0, -1.0])], order=3, tolerance=1e-5)


def test_the_hessian_of_a_logistic_regression_at_its_start():
    x, labels = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2.0
    losses_of = {
        "sigmoid_binary_cross_entropy": lambda w: tnp.mean(losses.sigmoid_binary_cross_entropy(x @ w, labels)),
        "softplus": lambda w: tnp.mean(functional.softplus(x @ w) - labels * (x @ w)),
        "log_sigmoid": lambda w: -tnp.mean(functional.log_sigmoid((2 * labels - 1) * (x @ w))),
        "logaddexp": lambda w: tnp.mean(tnp.logaddexp(0.0, x @ w) - labels * (x @ w)),
    }
    for name, loss in losses_of.items():
        np.testing.assert_allclose(tvmfun.hessian(loss)(np.zeros(3)), x.T @ x / 80, 1e-12, err_msg=name)


#: Losses of pairs, and the targets.
PAIRS = {
    **dict.fromkeys(("huber_loss", "l2_loss", "squared_error", "log_cosh"), (-1.0, 0.0, 1.0)),
    **dict.fromkeys(("hinge_loss", "perceptron_loss"), (-1.0, 1.0)),
    **dict.fromkeys(("sigmoid_binary_cross_entropy", "sigmoid_focal_loss"), (0.0, 0.5, 1.0)),
    "sparsemax_loss": (0.0, 1.0),
}


@pytest.mark.quick("log_cosh", "l2_loss", "sparsemax_loss")
@pytest.mark.parametrize("name", PAIRS)
def test_losses_have_the_derivatives_of_optax_at_ties(name: str):
    x, y = (v.ravel() for v in np.meshgrid(POINTS[np.abs(POINTS) < 100], PAIRS[name]))
    with oracle.x64():
        expected = orders(jax, jnp, lambda x: getattr(optax.losses, name)(x, jnp.asarray(y)), 2)(jnp.asarray(x))
    got = orders(tvmfun, tnp, lambda x: getattr(losses, name)(x, tnp.asarray(y)), 2)(x)
    for order, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), 1e-8, 1e-9, err_msg=f"order {order}")


@pytest.mark.slow
def test_the_second_derivative_of_ctc_loss_where_all_paths_are_equal():
    rng = np.random.default_rng(1)
    padding, labels = np.zeros((2, 6)), np.asarray([[1, 1, 2], [2, 3, 0]], "int32")
    blanks = np.asarray([[0, 0, 0], [0, 0, 1]], "float64")
    weights = rng.uniform(0.5, 1.5, 2)
    function = lambda logits: tnp.sum(weights * losses.ctc_loss(logits, padding, labels, blanks))
    check(function, [np.zeros((2, 6, 4))], tolerance=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_an_id_outside_an_embedding_gives_nan_and_no_gradient(sparse: bool):
    layer = nn.Embedding(4, 2, sparse=sparse, key=random.key(0))
    ids = np.asarray([3, 4, -1, -5])
    weight = np.asarray(layer.weight.array if sparse else layer.weight)
    expected = np.where([[True], [False], [True], [False]], weight[3], np.nan)
    for rows in (layer(ids), tvmfun.jit(lambda layer, ids: layer(ids))(layer, ids)):
        np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(expected, jnp.take(jnp.asarray(weight), ids, axis=0))
    gradient = tvmfun.grad(lambda layer: tnp.sum(layer(ids)))(layer).weight
    dense = np.asarray(gradient.dense() if sparse else gradient)
    np.testing.assert_array_equal(dense, [[0, 0], [0, 0], [0, 0], [2, 2]])
