"""Attention layers, decoding, and stacks of layers: against formulas, and one way to compute beside another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, nn, random, tree
from tvmfun.errors import ArgumentError, ShapeError, TreeError
from tvmfun.nn.functional import apply_rotary

B, T, E, N, K = 2, 7, 16, 4, 2
HEAD = E // N


def normal(*shape, seed=0, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def near(got, expected, tolerance=1e-12):
    for a, b in zip(tree.leaves(got), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def near_float32(got, expected):
    near(got, expected, 2e-6)


# -- rotary positions ------------------------------------------------------------------------------------------


def turned(x, positions, dim, base=10000.0, interleaved=False):
    """The formula in complex numbers."""
    angles = positions[..., None, None] * base ** (-np.arange(0, dim, 2) / dim)
    part = x[..., :dim]
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else np.split(part, 2, axis=-1)
    product = (a + 1j * b) * np.exp(1j * angles)
    parts = product.real, product.imag
    result = np.stack(parts, -1).reshape(part.shape) if interleaved else np.concatenate(parts, -1)
    return np.concatenate([result, x[..., dim:]], -1)


@pytest.mark.quick("False")
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_formula(interleaved):
    x, places = normal(B, T, N, 6), np.asarray([[3, 0, 7, 1000, 2, 5, 4], [0, 1, 2, 3, 4, 5, 6]])
    run = tvmfun.jit(
        lambda x, places: (
            apply_rotary(x, interleaved=interleaved),
            apply_rotary(x, places, dim=4, base=100.0, interleaved=interleaved),
            nn.RotaryEmbedding(2, 50.0, interleaved)(x[0], places[0]),
            apply_rotary(x.astype("bfloat16"), interleaved=interleaved),
        )
    )
    whole, part, single, narrow = run(x, places)
    near(whole, turned(x, np.arange(T), 6, interleaved=interleaved))
    near(part, turned(x, places, 4, 100.0, interleaved))
    near(single, turned(x[0], places[0], 2, 50.0, interleaved))
    assert narrow.dtype == tnp.bfloat16
    near(narrow.astype("float32"), whole, 3e-2)


def test_only_relative_positions_matter():
    q, k = normal(T, 1, 8), normal(T, 1, 8, seed=1)
    shifts = np.asarray([0, 5, 100])

    def scores(shift):
        places = tnp.arange(T) + shift
        return tnp.einsum("tnh,snh->ts", apply_rotary(q, places), apply_rotary(k, places))

    first, *others = tvmfun.jit(tvmfun.vmap(scores))(shifts)
    for other in others:
        near(other, first)
    assert np.abs(np.asarray(first) - (q[:, 0] @ k[:, 0].T)).max() > 0.1


def test_rotary_errors():
    x = np.zeros((T, N, 6), "float32")
    for dim in (5, 8, 0):
        with pytest.raises(ArgumentError, match=rf"dim must be even, positive and at most 6, got {dim}"):
            apply_rotary(x, dim=dim)
    with pytest.raises(ShapeError, match=r"there must be a position for each of \(7,\), got \(3,\)"):
        apply_rotary(x, np.arange(3))
    with pytest.raises(ArgumentError, match=r"\[RotaryEmbedding\] dim must be even"):
        nn.RotaryEmbedding(3)


# -- attention -------------------------------------------------------------------------------------------------


def attention(**settings):
    return nn.MultiHeadAttention(E, N, key=random.key(0), **settings)


def formula(layer, x, visible):
    """Self-attention in JAX."""
    affine = lambda map_, x: x @ map_.weight + (0 if map_.bias is None else map_.bias)
    heads = lambda x: x.reshape(*x.shape[:2], -1, HEAD)
    q, k, v = (heads(affine(map_, x)) for map_ in (layer.q_proj, layer.k_proj, layer.v_proj))
    if layer.rotary is not None:
        angles = jnp.arange(100)[:, None, None] * layer.rotary.base ** (-jnp.arange(0, HEAD, 2) / HEAD)
        turn = lambda x: jnp.concatenate(
            [
                a * jnp.cos(angles[: x.shape[1]]) + b * jnp.sin(angles[: x.shape[1]])
                for a, b in (
                    (x[..., : HEAD // 2], -x[..., HEAD // 2 :]),
                    (x[..., HEAD // 2 :], x[..., : HEAD // 2]),
                )
            ],
            -1,
        )
        q, k = turn(q), turn(k)
    k, v = (jnp.repeat(x, N // layer.num_kv_heads, axis=2) for x in (k, v))
    scores = jnp.where(visible, jnp.einsum("btnh,bsnh->bnts", q, k) / HEAD**0.5, -jnp.inf)
    mixed = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), v)
    return affine(layer.out_proj, mixed.reshape(x.shape))


T_, S_ = np.arange(T)[:, None], np.arange(T)
CASES = {
    "grouped, rotary, causal": ({"num_kv_heads": K, "rotary": nn.RotaryEmbedding(HEAD)}, {"is_causal": True}, T_ >= S_),
    "one group, no bias, window": (
        {"num_kv_heads": 1, "bias": False},
        {"local_window_size": (2, 1)},
        (S_ >= T_ - 2) & (S_ <= T_ + 1),
    ),
    "several masks": (
        {},
        {"mask": (S_ != 3)[None, None], "is_causal": True, "key_value_seq_lengths": np.asarray([2, T])},
        (S_ != 3) & (T_ >= S_) & (np.asarray([2, T])[:, None, None, None] > S_),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_formula(name):
    settings, ours, visible = CASES[name]
    layer, x, g = attention(**settings, dtype="float64"), normal(B, T, E), normal(B, T, E, seed=1)
    loss = lambda call: lambda layer, x: (call(layer, x) * g).sum()
    call = lambda layer, x: layer(x, **ours)
    got = tvmfun.jit(lambda *a: (call(*a), tvmfun.grad(loss(call), (0, 1))(*a)))(layer, x)
    with x64():
        leaves, structure = tree.flatten(layer)
        rebuilt = lambda leaves: tree.unflatten(structure, leaves)
        theirs = lambda leaves, x: formula(rebuilt(leaves), x, visible)
        leaves = [np.asarray(leaf) for leaf in leaves]
        expected = jax.jit(lambda *a: (theirs(*a), jax.grad(loss(theirs), (0, 1))(*a)))(leaves, x)
    near(tree.leaves(got), jax.tree_util.tree_leaves(expected), 1e-11)


def test_queries_behind_their_lengths_see_nothing():
    layer, x = attention(dtype="float64"), normal(B, T, E)
    lengths = np.asarray([3, T])
    y, plain = tvmfun.jit(lambda layer, x: (layer(x, query_seq_lengths=lengths), layer(x)))(layer, x)
    near(y[0, 3:], np.broadcast_to(layer.out_proj.bias, (T - 3, E)))
    near((y[0, :3], y[1]), (plain[0, :3], plain[1]))


@pytest.mark.slow
def test_without_a_batch_and_with_more():
    layer, x = attention(rotary=nn.RotaryEmbedding(HEAD)), normal(3, B, T, E, dtype="float32")

    @tvmfun.jit
    def all_ways(layer, x):
        shifted = layer(x[0], positions=np.arange(T) + 3)
        return tvmfun.vmap(layer)(x), layer(x[0]), layer(x[0, 1]), shifted

    many, batch, single, shifted = all_ways(layer, x)
    near_float32((many[0], many[0, 1], shifted), (batch, single, batch))


@pytest.mark.slow
def test_dynamic_sizes():
    layer = attention(num_kv_heads=K)
    call = lambda x: layer(x, is_causal=True)
    run = tvmfun.jit(call, dynamic_shapes=({0: "b"},))
    x = normal(3, T, E, dtype="float32")
    expected = np.asarray(tvmfun.jit(call)(x))
    for batch in (1, 3):
        near_float32(run(x[:batch]), expected[:batch])


def test_dropout_of_weights():
    layer, x = attention(dropout=0.5), normal(B, T, E, dtype="float32")

    @tvmfun.jit
    def some(layer, x):
        return [layer(x, key=random.key(i)) for i in (1, 1, 2)], layer(x, train=False), attention()(x)

    (first, again, other), kept, plain = some(layer, x)
    near_float32((first, kept), (again, plain))
    assert np.abs(np.asarray(first - other)).max() > 0.01
    with pytest.raises(ArgumentError, match=r"\[MultiHeadAttention\] a key is needed for training, got None"):
        layer(x)


def test_errors():
    with pytest.raises(ArgumentError, match="num_heads must divide embed_dim, and num_kv_heads must divide num_heads"):
        nn.MultiHeadAttention(10, 4, key=random.key(0))
    with pytest.raises(ArgumentError, match="num_heads must divide embed_dim, and num_kv_heads must divide num_heads"):
        attention(num_kv_heads=3)
    with pytest.raises(ArgumentError, match=r"rotary.dim must be at most embed_dim / num_heads, 4, got 6"):
        attention(rotary=nn.RotaryEmbedding(6))
    layer = attention()
    with pytest.raises(ShapeError, match=r"for a cache of \(2, 4\), got \(2, 5, 16\)"):
        layer.decode(np.zeros((B, 5, E), "float32"), layer.init_cache(B, 4))
    with pytest.raises(ArgumentError, match="unknown activation, got 'tanh'"):
        nn.TransformerEncoderLayer(E, N, 16, activation="tanh", key=random.key(0))
    with pytest.raises(ArgumentError, match=r"\[TransformerEncoderLayer\] a key is needed for training"):
        nn.TransformerEncoderLayer(E, N, 16, key=random.key(0))(np.zeros((B, T, E), "float32"))


# -- decoding --------------------------------------------------------------------------------------------------

LENGTH = 12


def steps(decode, cache, x):
    """One position after the other in a loop of the compiled program."""

    def step(cache, row):
        y, cache = decode(row[:, None], cache)
        return cache, y[:, 0]

    cache, ys = lax.scan(step, cache, tnp.moveaxis(x, 1, 0))
    return tnp.moveaxis(ys, 0, 1), cache


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "window"), [({}, None), ({"num_kv_heads": K, "rotary": nn.RotaryEmbedding(HEAD)}, 2)]
)
def test_decoding_is_the_causal_pass(settings, window):
    layer, x = attention(**settings, dtype="float64"), normal(B, T, E)
    decode = lambda layer: lambda x, cache: layer.decode(x, cache, local_window_size=window)

    @tvmfun.jit
    def both_ways(layer, x):
        whole = layer(x, is_causal=True, local_window_size=window)
        empty = layer.init_cache(B, LENGTH)
        in_loop, cache = steps(decode(layer), empty, x)
        first, part = decode(layer)(x[:, :4], empty)
        then, again = decode(layer)(x[:, 4:], part)
        return whole, in_loop, tnp.concatenate([first, then], axis=1), cache, again

    whole, in_loop, in_parts, cache, again = both_ways(layer, x)
    near((in_loop, in_parts, again), (whole, whole, cache))
    assert int(cache.index) == T and cache.key.shape == (B, LENGTH, settings.get("num_kv_heads", N), HEAD)
    assert not np.asarray(cache.key[:, T:]).any()


def test_one_compiled_step_in_place():
    layer, x = attention(num_kv_heads=K, rotary=nn.RotaryEmbedding(HEAD)), normal(B, T, E, dtype="float32")
    traces = []

    def step(layer, x, cache):
        traces.append(x)
        return layer.decode(x, cache)

    jitted = tvmfun.jit(step, donate_argnums=2)
    cache = layer.init_cache(B, LENGTH)
    place = lambda cache: [np.from_dlpack(array.tensor).ctypes.data for array in cache[:2]]
    before = place(cache)
    rows = []
    for i in range(T):
        y, cache = jitted(layer, x[:, i : i + 1], cache)
        rows.append(np.asarray(y))
    assert len(traces) == 1 and place(cache) == before
    whole = tvmfun.jit(lambda x: layer(x, is_causal=True))(x)
    near_float32(np.concatenate(rows, axis=1), whole)


def test_a_step_takes_no_memory_for_the_cache():
    layer = attention()
    taken = []
    for length in (512, 1024):
        given = tvmfun.eval_shape(lambda layer, length=length: layer.init_cache(B, length), layer)
        new = tvmfun.ShapeDtype((B, 1, E), "float32")
        compiled = tvmfun.jit(lambda *a: layer.decode(*a), donate_argnums=1).lower(new, given).compile()
        analysis = compiled.memory_analysis()
        assert analysis.aliased >= 2 * 4 * B * length * E
        assert analysis.outputs < 4096
        taken.append(analysis.temporaries + analysis.workspaces)
    # Scores, twice, and which of them count; a cache would be four times as much.
    assert taken[1] - taken[0] <= 512 * (2 * 4 * B * N + 1)


@pytest.mark.slow
def test_a_loop_keeps_one_cache():
    layer, length = nn.MultiHeadAttention(64, 4, num_kv_heads=2, key=random.key(0)), 2048
    loop = lambda x: steps(layer.decode, layer.init_cache(1, length), x)
    analysis = tvmfun.jit(loop).lower(tvmfun.ShapeDtype((1, T, 64), "float32")).compile().memory_analysis()
    half = 4 * length * 2 * 16
    assert 2 * half <= analysis.outputs < 2.1 * half
    assert analysis.workspaces < half


def test_sequences_at_different_places():
    """Prompts of different lengths, padded at the end, and then two more positions of each."""
    layer, x, lengths = attention(rotary=nn.RotaryEmbedding(HEAD), dtype="float64"), normal(B, T, E), [2, 5]
    more = normal(B, 2, E, seed=3)

    @tvmfun.jit
    def run(layer, x, more):
        _, cache = layer.decode(x, layer.init_cache(B, LENGTH))
        expected = []
        for b, length in enumerate(lengths):
            alone = tnp.concatenate([x[b, :length], more[b]])
            expected.append(layer(alone, is_causal=True)[length:])
        return steps(layer.decode, cache._replace(index=np.asarray(lengths, "int32")), more), expected

    (ys, cache), expected = run(layer, x, more)
    for y, alone in zip(ys, expected, strict=True):
        near(y, alone)
    assert [int(i) for i in cache.index] == [4, 7]


@pytest.mark.slow
def test_a_cache_of_another_dtype():
    layer, x = attention(), normal(B, T, E, dtype="float32")
    both = lambda layer, x: (layer(x, is_causal=True), *layer.decode(x, layer.init_cache(B, T, "bfloat16")))
    whole, y, cache = tvmfun.jit(both)(layer, x)
    assert layer.decode(tnp.asarray(x, dtype="bfloat16"), layer.init_cache(B, T))[0].dtype == np.float32
    assert cache.key.dtype == tnp.bfloat16 and y.dtype == np.float32
    near(y, whole, 2e-2)


SIZES = {"d_model": E, "nhead": N, "dim_feedforward": 24}


@pytest.mark.slow
def test_models_decode():
    rotary = nn.RotaryEmbedding(HEAD)
    keys = random.split(random.key(1), 4)
    encoder = nn.TransformerEncoder([nn.TransformerEncoderLayer(**SIZES, rotary=rotary, key=keys[0])], nn.LayerNorm(E))
    layers = [nn.TransformerDecoderLayer(**SIZES, norm_first=True, num_kv_heads=K, key=keys[i]) for i in (2, 3)]
    decoder = nn.TransformerDecoder(nn.Stacked(layers))
    x, memory, lengths = *normal(2, B, T, E, dtype="float32"), np.asarray([3, T])

    @tvmfun.jit
    def both_ways(encoder, decoder, x, memory):
        looks = {"memory_seq_lengths": lengths}
        pairs = [
            (encoder(x, is_causal=True, train=False), steps(encoder.decode, encoder.init_cache(B, T), x)[0]),
            (
                decoder(x, memory, is_causal=True, train=False, **looks),
                steps(lambda *a: decoder.decode(*a, **looks), decoder.init_cache(memory, T), x)[0],
            ),
        ]
        return pairs

    for whole, stepped in both_ways(encoder, decoder, x, memory):
        near_float32(stepped, whole)


# -- stacks ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stacked_layers_are_layers_one_by_one():
    keys = random.split(random.key(2))
    layers = [nn.TransformerEncoderLayer(8, 2, 12, dropout=0.3, key=keys[i], dtype="float64") for i in range(2)]
    maps = [nn.Linear(8, 8, key=keys[i], dtype="float64") for i in range(2)]
    x, key = normal(B, 5, 8), random.key(5)

    @tvmfun.jit
    def gradient(model, x):
        return tvmfun.value_and_grad(lambda model, x: (model(x, is_causal=True, key=key) ** 2).sum(), (0, 1))(model, x)

    value, (grads, along_x) = gradient(nn.TransformerEncoder(layers), x)
    other, (other_grads, other_along_x) = gradient(nn.TransformerEncoder(nn.Stacked(layers)), x)
    near((other, other_along_x), (value, along_x), 1e-11)
    for ours, theirs in zip(other_grads.layers, grads.layers, strict=True):
        near(ours, theirs, 1e-11)

    @tvmfun.jit
    def others(x):
        """Layers that take neither key nor train."""
        along = lambda f: tvmfun.grad(lambda x: (f(x) ** 3).sum())(x)
        lean = nn.Stacked(maps, checkpoint=True)
        return along(lambda x: lean(x, key=key, train=False)), along(lambda x: maps[1](maps[0](x)))

    lean, plain = others(x)
    near(lean, plain)


def test_a_stack_is_traced_once():
    def equations(count):
        layers = [nn.Linear(3, 3, key=random.key(i)) for i in range(count)]
        return len(
            tvmfun.trace(tvmfun.grad(lambda m, x: m(x).sum()))(nn.Stacked(layers), np.ones((2, 3), "f4")).equations
        )

    assert equations(2) == equations(20)


def test_stack_errors():
    with pytest.raises(ArgumentError, match=r"\[Stacked\] there must be layers"):
        nn.Stacked([])
    with pytest.raises(TreeError):
        nn.Stacked([nn.Linear(3, 3, key=random.key(0)), nn.Linear(3, 3, bias=False, key=random.key(0))])
    with pytest.raises(ShapeError):
        nn.Stacked([nn.Linear(3, 3, key=random.key(0)), nn.Linear(3, 4, key=random.key(0))])
