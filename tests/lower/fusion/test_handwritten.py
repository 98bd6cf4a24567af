"""Layers written out in array code take the memory and the traffic of the library's own."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, nn

BATCH, LENGTH, WIDTH, HEADS, WORDS = 6, 96, 320, 5, 777
HEAD = WIDTH // HEADS
CAUSAL = np.tri(LENGTH, dtype=bool)


def array(*shape, dtype="float32"):
    return ShapeDtype(shape, dtype)


# -- softmax and attention -------------------------------------------------------------------------------------------


def softmax(x):
    e = tnp.exp(x - tnp.max(x, axis=-1, keepdims=True))
    return e / tnp.sum(e, axis=-1, keepdims=True)


def softmax_by_logarithm(x):
    shifted = x - tnp.max(x, axis=-1, keepdims=True)
    return tnp.exp(shifted - tnp.log(tnp.sum(tnp.exp(shifted), axis=-1, keepdims=True)))


MASKS = {
    "by a number": lambda s: tnp.where(CAUSAL, s, -1e9),
    "by infinity": lambda s: tnp.where(CAUSAL, s, -tnp.inf),
    "by adding": lambda s: s + (1 - CAUSAL.astype("float32")) * -1e9,
    "by tril": lambda s: tnp.where(tnp.tril(tnp.ones((LENGTH, LENGTH))) == 0, -tnp.inf, s),
}


def split(x):
    return x.reshape(BATCH, LENGTH, HEADS, HEAD)


def attention(weights, mask):
    def call(query, key, value):
        query, key, value = map(split, (query, key, value))
        scores = mask(tnp.einsum("bqhd,bkhd->bhqk", query, key) / np.float32(HEAD**0.5))
        return tnp.einsum("bhqk,bkhd->bqhd", weights(scores), value).reshape(BATCH, LENGTH, WIDTH)

    return call


def transposed_attention(query, key, value):
    query, key, value = (split(x).transpose(0, 2, 1, 3) for x in (query, key, value))
    scores = MASKS["by infinity"](query @ key.swapaxes(-1, -2) / np.float32(HEAD**0.5))
    return (softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH)


def own_attention(query, key, value):
    query, key, value = map(split, (query, key, value))
    return nn.functional.dot_product_attention(query, key, value, is_causal=True).reshape(BATCH, LENGTH, WIDTH)


# -- normalization and activation ------------------------------------------------------------------------------------


def layer_norm(variance, inverse):
    def call(x, scale, shift):
        mean = tnp.mean(x, axis=-1, keepdims=True)
        return (x - mean) * inverse(variance(x, mean) + 1e-5) * scale + shift

    return call


SQUARES = lambda x, mean: tnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
PRODUCTS = lambda x, mean: tnp.mean((x - mean) * (x - mean), axis=-1, keepdims=True)
VARIANCE = lambda x, mean: tnp.var(x, axis=-1, keepdims=True)
ROOT = lambda x: 1 / tnp.sqrt(x)
TANH = 0.7978845608028654


# -- cross-entropy ---------------------------------------------------------------------------------------------------


def log_probabilities(logits):
    shifted = logits - tnp.max(logits, axis=-1, keepdims=True)
    return shifted - tnp.log(tnp.sum(tnp.exp(shifted), axis=-1, keepdims=True))


def taken(logits, labels):
    shifted = logits - tnp.max(logits, axis=-1, keepdims=True)
    picked = tnp.take_along_axis(shifted, labels[..., None], axis=-1)[..., 0]
    return tnp.mean(tnp.log(tnp.sum(tnp.exp(shifted), axis=-1)) - picked)


def indexed(logits, labels):
    flat = log_probabilities(logits).reshape(-1, WORDS)
    return -tnp.mean(flat[tnp.arange(BATCH * LENGTH), labels.reshape(-1)])


def taken_of_logarithms(logits, labels):
    return -tnp.mean(tnp.take_along_axis(log_probabilities(logits), labels[..., None], axis=-1))


# -- both forms ------------------------------------------------------------------------------------------------------

ROWS = array(BATCH, LENGTH, WIDTH)
FORMS = {
    "attention": (
        own_attention,
        [ROWS] * 3,
        {
            **{name: attention(softmax, mask) for name, mask in MASKS.items()},
            "by its logarithm": attention(softmax_by_logarithm, MASKS["by a number"]),
            "transposed": transposed_attention,
        },
    ),
    "layer norm": (
        lambda x, scale, shift: nn.functional.layer_norm(x, WIDTH, scale, shift),
        [ROWS, array(WIDTH), array(WIDTH)],
        {
            "squares": layer_norm(SQUARES, lax.rsqrt),
            "products": layer_norm(PRODUCTS, ROOT),
            "var": layer_norm(VARIANCE, ROOT),
        },
    ),
    "gelu": (
        nn.functional.gelu,
        [array(BATCH, LENGTH, 4 * WIDTH)],
        {"cubes": lambda x: 0.5 * x * (1 + tnp.tanh(TANH * (x + 0.044715 * x**3)))},
    ),
    "cross-entropy": (
        nn.losses.cross_entropy,
        [array(BATCH, LENGTH, WORDS), array(BATCH, LENGTH, dtype="int32")],
        {"taken": taken, "indexed": indexed, "taken of logarithms": taken_of_logarithms},
    ),
}


def cost(function, specs):
    """The bytes that the kernels of a function and its gradient read and write, and the bytes that they need."""

    def both(*args):
        count = sum(spec.dtype == np.float32 for spec in specs)
        result, pull = tvmfun.vjp(lambda *floats: function(*floats, *args[count:]), *args[:count])
        return result, pull(tnp.tanh(result))

    compiled = tvmfun.jit(both).lower(*specs).compile()
    return compiled.cost_analysis().bytes, compiled.memory_analysis().peak


@functools.cache
def cost_of_the_librarys(layer):
    own, specs, _ = FORMS[layer]
    return cost(own, specs)


@pytest.mark.quick("cross-entropy-indexed", "attention-by infinity", "layer norm-var")
@pytest.mark.parametrize(("layer", "form"), [(layer, form) for layer, (_, _, forms) in FORMS.items() for form in forms])
def test_a_layer_in_array_code_costs_as_much_as_the_librarys(layer, form):
    _, specs, forms = FORMS[layer]
    for ours, written in zip(cost_of_the_librarys(layer), cost(forms[form], specs), strict=True):
        assert written <= 1.05 * ours
