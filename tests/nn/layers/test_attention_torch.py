"""Attention layers and transformers beside PyTorch's. Its bool masks say what does not count."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun.numpy as tnp
from tvmfun import nn, random, tree

torch = pytest.importorskip("torch")
torch_layers = pytest.importorskip("support.torch_layers")
pytestmark = pytest.mark.interop
B, T, S, E, N = 2, 5, 4, 8, 2
RNG = np.random.default_rng(0)
MASK = RNG.random((T, T)) < 0.6
MASK[:, 0] = True
MEMORY_MASK = RNG.random((B, N, T, S)) < 0.6
MEMORY_MASK[..., 0] = True
CAUSAL = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
LENGTHS, OTHER_LENGTHS = np.asarray([T, 3]), np.asarray([2, S])


def normal(*shape, seed=0, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def no(mask):
    """A mask as PyTorch wants it."""
    return torch.tensor(~mask).reshape(-1, *mask.shape[-2:]).squeeze(0)


def padding(lengths, length):
    return torch.tensor(np.arange(length) >= lengths[:, None])


ATTENTIONS = {
    "plain": ({}, {}, {}),
    "no bias, causal": ({"bias": False}, {"is_causal": True}, {"attn_mask": CAUSAL}),
    "mask": ({}, {"mask": MASK}, {"attn_mask": no(MASK)}),
    "lengths": ({}, {"key_value_seq_lengths": LENGTHS}, {"key_padding_mask": padding(LENGTHS, T)}),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_self_attention(name):
    settings, ours, theirs = ATTENTIONS[name]
    torch_layers.check(
        nn.MultiHeadAttention(E, N, **settings, key=random.key(0), dtype="float64"),
        torch.nn.MultiheadAttention(E, N, **settings, batch_first=True),
        (normal(B, T, E),),
        lambda layer, x: layer(x, **ours),
        lambda layer, x: layer(x, x, x, need_weights=False, **theirs)[0],
        steps=1,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention_to_others(dtype):
    arrays = normal(B, T, E, dtype=dtype), normal(B, S, 3, seed=1, dtype=dtype), normal(B, S, 5, seed=2, dtype=dtype)
    bias = normal(B, N, T, S, seed=3, dtype=dtype)
    torch_layers.check(
        nn.MultiHeadAttention(E, N, kdim=3, vdim=5, key=random.key(0), dtype=dtype),
        torch.nn.MultiheadAttention(E, N, kdim=3, vdim=5, batch_first=True),
        (*arrays, bias),
        lambda layer, q, k, v, bias: layer(q, k, v, bias=bias),
        lambda layer, q, k, v, bias: layer(q, k, v, attn_mask=bias.reshape(-1, T, S), need_weights=False)[0],
    )


def test_weights_of_pytorch():
    """PyTorch has the three maps in one weight, with the outputs first."""
    theirs = torch.nn.MultiheadAttention(E, N, batch_first=True)
    parameters = {name: p.detach().numpy() for name, p in theirs.named_parameters()}
    parts = zip(np.split(parameters["in_proj_weight"], 3), np.split(parameters["in_proj_bias"], 3), strict=True)
    leaves = [leaf for weight, bias in parts for leaf in (weight.T, bias)]
    leaves += [parameters["out_proj.weight"].T, parameters["out_proj.bias"]]
    layer = nn.MultiHeadAttention(E, N, key=random.key(0))
    layer = tree.unflatten(tree.structure(layer), [tnp.asarray(leaf) for leaf in leaves])
    x = normal(B, T, E, dtype="float32")
    expected = theirs(*[torch.tensor(x)] * 3)[0].detach().numpy()
    np.testing.assert_allclose(np.asarray(layer(x)), expected, rtol=1e-5, atol=1e-6)


PLAIN = {"d_model": E, "nhead": N, "dim_feedforward": 16, "dropout": 0.0}
ENCODERS = {
    "after": ({}, {}, {}),
    "before, gelu, mask": (
        {"norm_first": True, "activation": "gelu", "layer_norm_eps": 1e-3},
        {"mask": MASK},
        {"src_mask": no(MASK)},
    ),
    "no bias, lengths": (
        {"bias": False},
        {"is_causal": True, "seq_lengths": LENGTHS},
        {"src_mask": CAUSAL, "src_key_padding_mask": padding(LENGTHS, T)},
    ),
}


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float64") for name in ENCODERS), ("after", "float32")])
def test_encoder_layer(name, dtype):
    settings, ours, theirs = ENCODERS[name]
    torch_layers.check(
        nn.TransformerEncoderLayer(**PLAIN, **settings, key=random.key(0), dtype=dtype),
        torch.nn.TransformerEncoderLayer(**PLAIN, **settings, batch_first=True),
        (normal(B, T, E, dtype=dtype),),
        lambda layer, x: layer(x, **ours),
        lambda layer, x: layer(x, **theirs),
    )


DECODERS = {
    "after": ({}, {"is_causal": True}, {"tgt_mask": CAUSAL}),
    "before, mask, lengths": (
        {"norm_first": True, "activation": torch.tanh},
        {"mask": MASK, "memory_mask": MEMORY_MASK, "seq_lengths": LENGTHS, "memory_seq_lengths": OTHER_LENGTHS},
        {
            "tgt_mask": no(MASK),
            "memory_mask": no(MEMORY_MASK),
            "tgt_key_padding_mask": padding(LENGTHS, T),
            "memory_key_padding_mask": padding(OTHER_LENGTHS, S),
        },
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_layer(name):
    settings, ours, theirs = DECODERS[name]
    own = {**settings, "activation": tnp.tanh} if "activation" in settings else settings
    torch_layers.check(
        nn.TransformerDecoderLayer(**PLAIN, **own, key=random.key(0), dtype="float64"),
        torch.nn.TransformerDecoderLayer(**PLAIN, **settings, batch_first=True),
        (normal(B, T, E), normal(B, S, E, seed=1)),
        lambda layer, x, memory: layer(x, memory, **ours),
        lambda layer, x, memory: layer(x, memory, **theirs),
    )


def test_transformer():
    sizes = {**PLAIN, "num_encoder_layers": 1, "num_decoder_layers": 2}
    lengths = padding(OTHER_LENGTHS, S)
    torch_layers.check(
        nn.Transformer(**sizes, key=random.key(0), dtype="float64"),
        torch.nn.Transformer(**sizes, batch_first=True),
        (normal(B, S, E), normal(B, T, E, seed=1)),
        lambda model, x, y: model(x, y, tgt_is_causal=True, src_seq_lengths=OTHER_LENGTHS),
        lambda model, x, y: model(x, y, tgt_mask=CAUSAL, src_key_padding_mask=lengths, memory_key_padding_mask=lengths),
        steps=2,
    )


def test_first_parameters_have_the_same_scale():
    """Largest elements and means of squares of all matrices, and biases and scales as they are."""
    sizes = {"d_model": 64, "nhead": 4, "num_encoder_layers": 1, "num_decoder_layers": 1, "dim_feedforward": 64}
    ours = torch_layers.weights(nn.Transformer(**sizes, key=random.key(0)))
    theirs = {
        name: p.detach().numpy() for name, p in torch.nn.Transformer(**sizes, batch_first=True).named_parameters()
    }
    alone = torch.nn.TransformerEncoderLayer(64, 4, 64)
    theirs |= {f"alone.{name}": p.detach().numpy() for name, p in alone.named_parameters()}
    layer = nn.TransformerEncoderLayer(64, 4, 64, key=random.key(0))
    ours |= torch_layers.weights(layer, "alone.")
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if expected.ndim == 2:
            np.testing.assert_allclose(np.abs(ours[name]).max(), np.abs(expected).max(), rtol=0.01, err_msg=name)
            np.testing.assert_allclose(np.std(ours[name]), np.std(expected), rtol=0.05, err_msg=name)
        elif "linear" not in name:
            np.testing.assert_array_equal(ours[name], expected, err_msg=name)
        else:
            np.testing.assert_allclose(np.abs(ours[name]).max(), np.abs(expected).max(), rtol=0.2, err_msg=name)
