"""Attention against the formula in JAX, ``jax.nn.dot_product_attention`` and PyTorch; both ways of computing it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support import oracle

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import random
from tvmfun.core.inline import inlined
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.nn.functional import attention, blockwise_attention, dot_product_attention

jax = pytest.importorskip("jax")
jnp = jax.numpy
RNG = np.random.default_rng(5)
B, T, S, N, K, H = 2, 20, 70, 4, 2, 8


@pytest.fixture(params=["written out", "in blocks", "as on GPUs"])
def way(request, monkeypatch):
    """Each of the ways to compute it, whatever the lengths; blocks so small that there are several.

    What is inlined for GPUs runs on this processor: the ops that store no scores have loop programs for any target.
    """
    blocks(monkeypatch, request.param != "written out")
    if request.param == "as on GPUs":
        for_gpus(monkeypatch)
    return request.param


def for_gpus(monkeypatch):
    monkeypatch.setattr(attention, "on_platform", lambda cpu, cuda, *args: cuda(*args))
    monkeypatch.setattr(attention, "has_gpu_kernel", lambda inputs: bool(inputs.query.size))


def blocks(monkeypatch, on=True):
    many = 1 if on else 1 << 60
    for name in ("_MANY_SCORES", "_MANY_MASKED_SCORES"):
        monkeypatch.setattr(attention, name, many)
    for name, value in {"_ROWS": 16, "_COLUMNS": 64}.items():
        monkeypatch.setattr(blockwise_attention, name, value)


def arrays(dtype="float64", batch=B, length=T, keys=S, heads=N, groups=K, width=H):
    query = RNG.normal(size=(batch, length, heads, width)).astype(dtype)
    key, value = (RNG.normal(size=(batch, keys, groups, width)).astype(dtype) for _ in range(2))
    return query, key, value


def formula(query, key, value, bias=None, *, visible=None, scale=None, keep=None, query_seq_lengths=None):
    """The formula in JAX, in the precision of its arguments; JAX's own function takes the softmax in float32."""
    key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) * (query.shape[3] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    scores = scores if visible is None else jnp.where(visible, scores, -0.7 * np.finfo(scores.dtype).max)
    weights = jax.nn.softmax(scores, axis=-1)
    result = jnp.einsum("bnts,bsnh->btnh", weights if keep is None else weights * keep, value)
    if query_seq_lengths is not None:
        result = result * (np.arange(query.shape[1])[:, None, None] < query_seq_lengths.reshape(-1, 1, 1, 1))
    return result


def visible(length=T, keys=S, causal=False, window=None, mask=True, queries=None, counts=None):
    """Which scores count."""
    t, s = np.arange(length)[:, None], np.arange(keys)
    found = np.ones((1, 1, length, keys), bool) & mask
    found &= (t >= s) | (not causal)
    if window is not None:
        found &= (s >= t - window[0]) & (s <= t + window[1])
    if queries is not None:
        found = found & (t < queries.reshape(-1, 1, 1, 1))
    return found if counts is None else found & (s < counts.reshape(-1, 1, 1, 1))


MASK = RNG.random((1, N, T, S)) < 0.3
MASK[:, :, 5] = False
MASK[:, 2, 7] = False
BIAS, BIAS_OF_KEYS = RNG.normal(size=(1, N, T, S)), RNG.normal(size=(B, 1, 1, S))
QUERIES, COUNTS = np.asarray([13, T], "int32"), np.asarray([40, 0], "int32")

CASES = {
    "plain": ({}, {}),
    "scaled": ({"scale": 0.3}, {"scale": 0.3}),
    "causal": ({"is_causal": True}, {"visible": visible(causal=True)}),
    "window": ({"local_window_size": (3, 30)}, {"visible": visible(window=(3, 30))}),
    "mask": ({"mask": MASK}, {"visible": visible(mask=MASK)}),
    "lengths": (
        {"is_causal": True, "mask": MASK, "query_seq_lengths": QUERIES, "key_value_seq_lengths": COUNTS},
        {"visible": visible(causal=True, mask=MASK, queries=QUERIES, counts=COUNTS), "query_seq_lengths": QUERIES},
    ),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "bias of keys": ({"bias": BIAS_OF_KEYS}, {"bias": BIAS_OF_KEYS}),
}


def value_and_gradients(m, function, given, settings):
    """The leaves of the value and the gradients; a bias among the settings is an argument, too."""
    g = np.cos(np.arange(given[0].size)).reshape(given[0].shape)
    settings = dict(settings)
    bias = settings.pop("bias", None)
    given = given if bias is None else (*given, bias)
    run = lambda *a: m.value_and_grad(lambda *a: (function(*a, **settings) * g).sum(), tuple(range(len(a))))(*a)
    return m.tree.leaves(m.jit(lambda *a: (function(*a, **settings), *run(*a)))(*given))


def by_formula(given, settings):
    with oracle.x64():
        return value_and_gradients(jax, formula, given, settings)


def compare(ours, theirs):
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-10, atol=1e-11)


GIVEN = arrays()


@cache
def expected_of(name):
    """The formula's results, which are those of every way."""
    _, settings = CASES[name]
    return by_formula(GIVEN, settings)


@pytest.mark.quick("in blocks-causal", "as on GPUs-lengths")
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, way):
    settings, _ = CASES[name]
    compare(value_and_gradients(tvmfun, dot_product_attention, GIVEN, settings), expected_of(name))


@pytest.mark.slow
def test_jaxs_function(way):
    given = arrays("float32")
    settings = CASES["lengths"][0]
    theirs = jax.nn.dot_product_attention(*given, **settings)
    ours = dot_product_attention(*given, **settings)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5, atol=1e-5)
    assert ours.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize(("length", "keys", "heads"), [(1, 1, 1), (17, 3, 1), (3, 130, 2)])
def test_odd_sizes(length, keys, heads, monkeypatch):
    blocks(monkeypatch)
    given = arrays(batch=1, length=length, keys=keys, heads=heads, groups=1, width=3)
    expected = {"visible": visible(length, keys, causal=True)}
    ours = value_and_gradients(tvmfun, dot_product_attention, given, {"is_causal": True})
    compare(ours, by_formula(given, expected))


@pytest.mark.parametrize("shape", [(0, T, S), (B, 0, S), (B, T, 0)])
def test_nothing(shape):
    batch, length, keys = shape
    given = arrays("float32", batch=batch, length=length, keys=keys)
    result, (g, _, _) = tvmfun.jit(
        lambda *a: (dot_product_attention(*a), tvmfun.grad(lambda *a: dot_product_attention(*a).sum(), (0, 1, 2))(*a))
    )(*given)
    assert result.shape == g.shape == given[0].shape
    assert not np.asarray(g).any()


@pytest.mark.slow
def test_without_a_batch(way):
    query, key, value = arrays()
    one = dot_product_attention(query[0], key[0], value[0], mask=MASK[0])
    np.testing.assert_allclose(one, np.asarray(dot_product_attention(query, key, value, mask=MASK))[0], atol=1e-14)


@pytest.mark.slow
def test_a_row_that_is_masked_out_gets_the_mean(way):
    query, key, value = arrays("float32")
    everywhere = dot_product_attention(query, key, value, bias=np.full((1, 1, 1, S), -np.inf, "float32"))
    mean = np.repeat(value.mean(axis=1, keepdims=True), N // K, axis=2)
    np.testing.assert_allclose(np.asarray(everywhere), np.broadcast_to(mean, query.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_narrow_floats(dtype, tolerance, way):
    given = [tnp.asarray(x, dtype=dtype) for x in arrays("float32")]
    wide = [np.asarray(x.astype("float32")) for x in given]
    loss = lambda f: lambda *a: f(*a).astype("float32").sum()
    ours = tvmfun.jit(lambda *a: (dot_product_attention(*a), tvmfun.grad(loss(dot_product_attention))(*a)))(*given)
    theirs = jax.jit(lambda *a: (formula(*a), jax.grad(loss(formula))(*a)))(*wide)
    for a, b in zip(ours, theirs, strict=True):
        assert str(a.dtype) == dtype
        np.testing.assert_allclose(np.asarray(a.astype("float32")), b, rtol=tolerance, atol=tolerance)


# -- dropout ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dropout(way):
    """Both implementations drop weights by one ``bernoulli`` mask, forwards and backwards."""
    rate, key = 0.25, random.key(3)
    keep = np.asarray(random.bernoulli(key, 1 - rate, (B, N, T, S))) / (1 - rate)
    settings = {"dropout_rate": rate, "dropout_key": key, "is_causal": True}
    given, expected = arrays(), {"keep": keep, "visible": visible(causal=True)}
    compare(value_and_gradients(tvmfun, dot_product_attention, given, settings), by_formula(given, expected))


def test_dropout_of_nothing(way):
    given = arrays("float32")
    once, again = (dot_product_attention(*given, **k) for k in ({}, {"dropout_rate": 0.0}))
    np.testing.assert_array_equal(np.asarray(once), np.asarray(again))


# -- transforms ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["CPU", "GPU"])
def test_second_derivatives_and_forward_mode(monkeypatch, platform):
    blocks(monkeypatch)
    if platform == "GPU":
        for_gpus(monkeypatch)
    given = arrays(batch=1, length=5, keys=20, heads=2, groups=1, width=4)
    tangents = tuple(np.sin(np.arange(x.size) + 1.0).reshape(x.shape) for x in given)
    seen = {"visible": visible(5, 20, causal=True)}

    def of(m, function, **kwargs):
        loss = lambda *a: (function(*a, **kwargs) ** 3).sum()
        gradient = m.grad(loss, (0, 1, 2))
        along = lambda *a: sum((g * t).sum() for g, t in zip(gradient(*a), tangents, strict=True))
        return m.jit(lambda *a: (m.jvp(loss, a, tangents)[1], m.grad(along, (0, 1, 2))(*a)))(*given)

    ours = of(tvmfun, dot_product_attention, is_causal=True)
    with oracle.x64():
        theirs = of(jax, formula, **seen)
    for a, b in zip(tvmfun.tree.leaves(ours), jax.tree_util.tree_leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_vmap(way):
    query, key, value = arrays()
    counts = np.asarray([40, 7], "int32")

    def of(m, function):
        loss = lambda q, k, v, n: (function(q, k, v, n) ** 2).sum()
        return m.jit(m.vmap(m.value_and_grad(loss, (0, 1)), in_axes=(0, None, 0, 0)))(query, key[0], value, counts)

    ours = of(
        tvmfun, lambda q, k, v, n: dot_product_attention(q[None], k[None], v[None], key_value_seq_lengths=n[None])
    )
    with oracle.x64():
        seen = lambda n: jnp.arange(S) < n
        theirs = of(jax, lambda q, k, v, n: formula(q[None], k[None], v[None], visible=seen(n)))
    for a, b in zip(tvmfun.tree.leaves(ours), jax.tree_util.tree_leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-10, atol=1e-11)


@pytest.mark.slow
def test_dynamic_batch(way):
    run = tvmfun.jit(lambda *a: dot_product_attention(*a, is_causal=True), dynamic_shapes=({0: "b"},) * 3)
    for batch in (1, 3):
        given = arrays(batch=batch)
        with oracle.x64():
            expected = formula(*given, visible=visible(causal=True))
        np.testing.assert_allclose(np.asarray(run(*given)), expected, rtol=1e-10, atol=1e-11)


# -- memory ----------------------------------------------------------------------------------------------------


def sizes(program):
    """The sizes of all results in a Program, those inside its loops too."""
    for equation in program.equations:
        yield from (out.aval.size for out in equation.outputs)
        for inner in equation.params.values():
            if isinstance(inner, tvmfun.Program):
                yield from sizes(inner)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_length(causal):
    width, taken = 2 * 16, []
    for length in (2048, 4096, 8192):
        spec = tvmfun.ShapeDtype((1, length, 2, 16), "float32")
        gradient = tvmfun.grad(lambda *a: dot_product_attention(*a, is_causal=causal).sum(), (0, 1, 2))
        # Per piece of the keys there are cotangents of all queries.
        assert max(sizes(inlined(tvmfun.trace(gradient)(spec, spec, spec)))) <= 8 * length * width
        taken.append(tvmfun.jit(gradient).lower(spec, spec, spec).compile().memory_analysis().temporaries)
    assert taken[2] <= 2.1 * taken[1] <= 4.5 * taken[0]
    assert taken[2] < 16 * 8192 * width * 4


# -- PyTorch ---------------------------------------------------------------------------------------------------


def test_pytorchs_function(way):
    torch = pytest.importorskip("torch")
    given = arrays("float32", groups=N)
    tensors = [torch.from_numpy(x).transpose(1, 2).requires_grad_() for x in given]
    peer = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
    peers = torch.autograd.grad((peer**2).sum(), tensors)
    run = lambda *a: dot_product_attention(*a, is_causal=True)
    ours = tvmfun.jit(lambda *a: (run(*a), *tvmfun.grad(lambda *a: (run(*a) ** 2).sum(), (0, 1, 2))(*a)))(*given)
    for a, b in zip(ours, (peer, *peers), strict=True):
        np.testing.assert_allclose(np.asarray(a), b.detach().transpose(1, 2).numpy(), rtol=1e-5, atol=1e-5)


# -- errors ----------------------------------------------------------------------------------------------------

Q, X = np.zeros((B, T, N, H), "float32"), np.zeros((B, S, K, H), "float32")


@pytest.mark.parametrize(
    ("error", "text", "arguments", "settings"),
    [
        (ShapeError, "query must be", (Q[0, 0], X, X), {}),
        (ShapeError, "one shape", (Q, X, X[:, 1:]), {}),
        (ShapeError, "must divide", (Q[:, :, :3], X, X), {}),
        (ShapeError, "must divide", (Q, X[:, :, :0], X[:, :, :0]), {}),
        (DtypeError, "floats of one dtype", (Q, X, X.astype("float64")), {}),
        (DtypeError, "floats of one dtype", (Q.astype(int),) + (X.astype(int),) * 2, {}),
        (ShapeError, r"the bias must broadcast to \(2, 4, 20, 70\)", (Q, X, X, np.zeros((1, 2, T, S))), {}),
        (DtypeError, "the mask must be bools", (Q, X, X), {"mask": np.zeros((1, 1, T, S))}),
        (DtypeError, "lengths must be integers", (Q, X, X), {"query_seq_lengths": np.zeros(B)}),
        (ShapeError, "there must be 2 lengths", (Q, X, X), {"key_value_seq_lengths": np.zeros(3, int)}),
        (ArgumentError, "less than 1", (Q, X, X), {"dropout_rate": 1.0}),
        (ArgumentError, "a key is needed", (Q, X, X), {"dropout_rate": 0.5}),
    ],
)
def test_errors(error, text, arguments, settings):
    with pytest.raises(error, match=text):
        dot_product_attention(*arguments, **settings)
