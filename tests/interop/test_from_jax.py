"""Functions of JAX, read from their jaxprs, and functions of tvmfun in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import errors, optim, random
from tvmfun.interop.jax import from_jax, to_jax

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def leaves(values):
    return jax.tree.leaves(values, is_leaf=lambda x: isinstance(x, tvmfun.Array))


def assert_same(ours, theirs, tolerance=2e-5):
    ours, theirs = leaves(ours), leaves(theirs)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert str(one.dtype) == str(other.dtype)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=tolerance, atol=tolerance)


@jax.custom_vjp
def rounded(x):
    return jnp.round(x)


rounded.defvjp(lambda x: (jnp.round(x), x), lambda x, g: (g * x,))


@jax.custom_jvp
def power(x, n):
    return x**n


power.defjvp(lambda primals, tangents: (power(*primals), 7.0 * primals[0] * tangents[0]))

at = lambda x: jnp.asarray(x).at

FUNCTIONS = {
    "relu": lambda x: jax.nn.relu(x) @ x.T,
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=1),
    "softmax": jax.nn.softmax,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "scan": lambda x: jax.lax.scan(lambda c, y: (jnp.tanh(c + y), c * y), jnp.zeros(5), x),
    "scan in reverse": lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y, c), x[0], x[1:], reverse=True),
    "map": lambda x: jax.lax.map(lambda row: jnp.sort(row) * 2, x),
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "switch": lambda x: jax.lax.switch(2, [jnp.sin, jnp.cos, jnp.tanh], x),
    "fori_loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) * (i + 1), x),
    "checkpoint": lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x),
    "indices": lambda x: x[1:, ::2] + jnp.asarray(x)[jnp.array([0, 2, 1])][:, jnp.array([0, 1, 2])],
    "updates": lambda x: at(at(x)[1].add(3.0))[:, 2].set(x[:, 1] ** 2),
    "sorted": lambda x: jnp.sort(x, axis=1) + jnp.cumsum(x, 0) - jnp.flip(x),
    "top_k": lambda x: jax.lax.top_k(x, 2)[0],
    "cholesky": lambda x: jnp.linalg.cholesky(x @ x.T + 4 * jnp.eye(4)),
    "solve": lambda x: jnp.linalg.solve(x[:, :4] + 4 * jnp.eye(4), x),
    "qr": lambda x: jnp.abs(jnp.linalg.qr(x.T)[1]),
    "svd": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "einsum": lambda x: jnp.einsum("ij,kj->ik", x, x),
    "where": lambda x: jnp.where(x > 0, x, -x).mean(0),
    "one_hot": lambda x: jax.nn.one_hot(jnp.argmax(x, 1), 5) * x,
    "pad": lambda x: jnp.pad(x, 1) ** 3,
    "resize": lambda x: jax.image.resize(x, (8, 10), "bilinear"),
    "custom_vjp": lambda x: rounded(x * 3),
    "custom_jvp": lambda x: power(x, 2.0),
    "custom_jvp in scan": lambda x: jax.lax.scan(lambda c, y: (power(c, 2.0) + y, c), x[0], x)[0],
    "vmap": lambda x: jax.vmap(lambda row: jnp.outer(row, row).sum(1))(x),
    "their gradient": jax.grad(lambda x: jnp.sum(jnp.tanh(x) ** 2)),
}


@pytest.mark.quick("relu", "scan", "cond", "custom_vjp", "custom_jvp in scan")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives_are_jaxs(name):
    function, x = FUNCTIONS[name], draw(4, 5)
    ours = from_jax(function)
    assert_same(tvmfun.jit(ours)(x), jax.jit(function)(x))
    of_ours = lambda x: sum(tnp.sum(tnp.sin(y)) for y in leaves(ours(x)))
    of_theirs = lambda x: sum(jnp.sum(jnp.sin(y)) for y in leaves(function(x)))
    assert_same(tvmfun.jit(tvmfun.grad(of_ours))(x), jax.grad(of_theirs)(x), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu", "cond", "custom_vjp", "custom_jvp", "solve", "scan"])
def test_second_derivatives_and_vmap(name):
    function, x = FUNCTIONS[name], draw(4, 5)
    ours = from_jax(function)
    twice = lambda module, sum_, sin, f: module.grad(
        lambda x: sum_(sin(module.grad(lambda x: sum(sum_(sin(y)) for y in leaves(f(x))))(x)))
    )
    assert_same(tvmfun.jit(twice(tvmfun, tnp.sum, tnp.sin, ours))(x), twice(jax, jnp.sum, jnp.sin, function)(x), 1e-3)
    xs = draw(3, 4, 5)
    assert_same(tvmfun.vmap(ours)(xs), jax.vmap(function)(xs), 1e-4)


@pytest.mark.slow
def test_convolutions_and_pools():
    x, w = draw(2, 9, 8, 3), draw(3, 3, 3, 4)

    def network(x, w):
        y = jax.lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jax.lax.reduce_window(y, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")

    ours = from_jax(network)
    assert_same(ours(x, w), network(x, w))
    of = lambda f, np: lambda x, w: np.sum(f(x, w) ** 2)
    assert_same(tvmfun.jit(tvmfun.grad(of(ours, tnp), (0, 1)))(x, w), jax.grad(of(network, jnp), (0, 1))(x, w), 1e-3)


DRAWS = {
    "normal": lambda key: jax.random.normal(key, (5,)),
    "split": lambda key: jax.random.bernoulli(jax.random.split(key)[1], 0.3, (7,)),
    "permutation": lambda key: jax.random.permutation(jax.random.fold_in(key, 3), 9),
}


@pytest.mark.quick("split")
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_jaxs(name):
    function, expected = DRAWS[name], jax.jit(DRAWS[name])
    ours = tvmfun.jit(from_jax(function))
    assert_same(ours(random.key(3)), expected(jax.random.key(3)), 1e-6)
    assert_same(ours(jax.random.key_data(jax.random.key(4))), expected(jax.random.PRNGKey(4)), 1e-6)
    assert_same(from_jax(function)(jax.random.key(4)), expected(jax.random.key(4)), 1e-6)


@pytest.mark.slow
def test_keys_in_a_loop():
    add = lambda total, key: (total + jax.random.uniform(key), key)
    function = lambda key: jax.lax.scan(add, 0.0, jax.random.split(key, 3))[0]
    assert_same(from_jax(function)(random.key(1)), function(jax.random.key(1)))


def test_a_whole_training_step():
    optimizer = optax.adamw(1e-2)
    x, y = draw(16, 3), draw(16, 1)
    params = {"w": draw(3, 8), "v": draw(8, 1)}

    def loss(params, x, y):
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)

    def step(state, x, y):
        params, memory = state
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        updates, memory = optimizer.update(gradient, memory, params)
        return (optax.apply_updates(params, updates), memory), value

    theirs = ours = (params, optimizer.init(params))
    whole = from_jax(step)
    mine, memory = params, optim.adamw(1e-2, weight_decay=1e-4).init(params)
    own = optim.adamw(1e-2, weight_decay=1e-4)
    gradient = tvmfun.jit(tvmfun.value_and_grad(from_jax(loss)))
    for _ in range(4):
        theirs, expected = jax.jit(step)(theirs, x, y)
        ours, value = whole(ours, x, y)
        ours = jax.tree.map(np.asarray, ours, is_leaf=lambda leaf: isinstance(leaf, tvmfun.Array))
        third, grads = gradient(mine, x, y)
        updates, memory = own.update(grads, memory, mine)
        mine = optim.apply_updates(mine, updates)
        np.testing.assert_allclose([float(value), float(third)], float(expected), rtol=1e-5)
    assert_same(ours[0], theirs[0])


@pytest.mark.slow
def test_a_model_of_flax_with_statistics_and_dropout():
    nn = pytest.importorskip("flax.linen")

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.relu(nn.Conv(8, (3, 3))(x))
            x = nn.BatchNorm(use_running_average=not train)(x)
            x = nn.Dropout(0.3, deterministic=not train)(x.reshape(len(x), -1))
            return nn.LayerNorm()(nn.Dense(4)(x))

    x, key = draw(6, 8, 8, 1), jax.random.PRNGKey(0)
    network = Network()
    variables = jax.tree.map(np.asarray, network.init({"params": key, "dropout": key}, x, True))

    def loss(params, statistics, x, key):
        full = {"params": params, "batch_stats": statistics}
        y, new = network.apply(full, x, True, rngs={"dropout": key}, mutable=["batch_stats"])
        return jnp.mean(y**2 * jnp.arange(4)), new["batch_stats"]

    arguments = variables["params"], variables["batch_stats"], x, np.asarray(key)
    ours = tvmfun.jit(tvmfun.value_and_grad(from_jax(loss), has_aux=True))(*arguments)
    assert_same(ours, jax.value_and_grad(loss, has_aux=True)(*arguments), 1e-4)


@pytest.mark.slow
def test_a_model_of_equinox():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(3, 2, 8, 2, key=jax.random.PRNGKey(1))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    flat, structure = jax.tree.flatten(params)

    def loss(flat, x):
        model = eqx.combine(jax.tree.unflatten(structure, flat), static)
        return jnp.mean(jax.vmap(model)(x) ** 2)

    flat, x = list(map(np.asarray, flat)), draw(5, 3)
    assert_same(tvmfun.jit(tvmfun.value_and_grad(from_jax(loss)))(flat, x), jax.value_and_grad(loss)(flat, x))


def test_bad_input_is_named():
    callback = lambda x: jax.pure_callback(np.sin, x, x)
    with pytest.raises(errors.ProgramError, match=r"pure_callback at .*test_from_jax\.py:\d+"):
        from_jax(lambda x: jax.jit(callback)(x))(draw(2))
    typed = from_jax(lambda x: x + 1, tvmfun.ShapeDtype((3,), "float32"))
    assert typed(draw(3)).shape == (3,)
    with pytest.raises(errors.ShapeError, match="leaf 0 must have the type"):
        typed(draw(4))
    with pytest.raises(errors.TreeError, match="structure"):
        typed((draw(3),))


def test_our_functions_in_jax():
    function = lambda params, x: {"y": tnp.sum(tnp.tanh(x @ params["w"]), axis=1)}
    reference = lambda params, x: {"y": jnp.sum(jnp.tanh(x @ params["w"]), axis=1)}
    theirs, params, x = to_jax(function), {"w": draw(5, 3)}, draw(4, 5)
    assert_same(jax.jit(theirs)(params, x), reference(params, x))
    of = lambda f: lambda params, x: jnp.sum(f(params, x)["y"] ** 2)
    assert_same(jax.jit(jax.grad(of(theirs)))(params, x), jax.grad(of(reference))(params, x), 1e-4)


@pytest.mark.slow
def test_our_functions_in_vmap_and_second_derivatives_of_jax():
    function = lambda w, x, i: tnp.sum(tnp.tanh(x @ w), axis=1) * i
    reference = lambda w, x, i: jnp.sum(jnp.tanh(x @ w), axis=1) * i
    theirs, w, xs, i = to_jax(function), draw(5, 3), draw(6, 4, 5), np.int32(3)
    assert_same(jax.vmap(theirs, (None, 0, None))(w, xs, i), jax.vmap(reference, (None, 0, None))(w, xs, i))
    twice = lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(lambda x: jnp.sum(f(w, x, i)))(x))))
    assert_same(twice(theirs)(xs[0]), twice(reference)(xs[0]), 1e-3)
    once = lambda f: jax.grad(lambda w: jnp.sum(f(w, xs[0], i)))
    assert_same(once(theirs)(w), once(reference)(w))
